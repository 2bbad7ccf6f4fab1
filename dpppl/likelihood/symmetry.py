"""Symmetries of a model, found without data: latents that may change places or signs while prior and likelihood stay the same.

Such a posterior has several modes with equal weights (label switching in mixtures, hidden units of networks). Candidates are
tried on draws from the prior and on rows made up, with responses that the model draws.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from dpppl.information_flow.executables import compiled, run_once
from dpppl.model.arguments import Arrays
from dpppl.model.refusals import quoted
from dpppl.model.responses import Responses
from dpppl.model.split import SplitModel
from dpppl.types import Distribution, Document, Function, Tree

_NUM_POINTS, _NUM_ROWS, _MOST_SITES, _TOLERANCE = 6, 12, 4, 1e-3


class Move(NamedTuple):
    """A map of one site's values (n, ...).

    - **site**, **kind**, **axis** - "swap": entries 0 and 1 along `axis` change places. "flip": all change their sign.
      "complement": a probability p becomes 1 - p."""

    site: str
    kind: str
    axis: int = 1

    def moved(self, values: Tree) -> Tree:
        if self.kind == "swap":
            order = np.arange(values.shape[self.axis])
            order[:2] = 1, 0
            return np.take(values, order, axis=self.axis)
        return -values if self.kind == "flip" else 1.0 - values

    def replaced(self, values: Tree) -> Tree:
        """With those of the entries that move which another point has."""
        if self.kind != "swap":
            return np.roll(values, 1, axis=0)
        is_moved = np.arange(values.shape[self.axis]) < 2
        shape = [1] * values.ndim
        shape[self.axis] = len(is_moved)
        return np.where(is_moved.reshape(shape), np.roll(values, 1, axis=0), values)


def symmetries(split: SplitModel, draws: Function, responses: Responses, public: Arrays) -> tuple[str, ...]:
    """Each as what its latents do, in words; the smallest sets of latents only. Looks at no private data.

    - **draws** - `draws(public, key)`, latents drawn from the prior, (n, ...) by site."""
    key = jax.random.key(0, impl="threefry2x32")  # JAX draws counts with no other
    points = {name: np.asarray(value)[:_NUM_POINTS] for name, value in draws(public, key).items()}
    rows, rng = {}, np.random.default_rng(0)  # of normal numbers, and of the integers 0 to 3
    for name, shape in split.row.items():
        size = (_NUM_ROWS, *shape.shape)
        whole = np.arange(np.prod(size, dtype=int)).reshape(size) % 4
        is_real = jnp.issubdtype(shape.dtype, jnp.floating)
        rows[name] = np.asarray(rng.standard_normal(size) if is_real else whole, shape.dtype)

    def made_up(points: Arrays, rows: Arrays, key: jax.Array, public: Arrays) -> tuple[Tree, Tree, Tree]:
        """Constrained values, the bounds of intervals, and responses drawn for the rows."""
        first = {name: value[0] for name, value in points.items()}
        values, bounds = jax.vmap(split.constrain, (0, None))(points, public), {}

        def visit(site: Document, _: Distribution) -> Tree:
            support = site["fn"].support
            if isinstance(support, constraints.interval):
                bounds[site["name"]] = jnp.asarray(support.lower_bound), jnp.asarray(support.upper_bound)
            return first[site["name"]]

        split.visit_latents(visit, public)
        draw = lambda row, key: responses.draw(first, row, public, key)  # noqa: E731
        return {name: values[name] for name in points}, bounds, jax.vmap(draw)(rows, jax.random.split(key, _NUM_ROWS))

    def densities(values: Arrays, rows: Arrays, drawn: Tree, public: Arrays) -> tuple[Tree, Tree]:
        """Log likelihoods of the rows, and the log prior of the constrained values."""

        def at(values: Arrays) -> tuple[Tree, Tree]:
            z: dict[str, Tree] = {}
            jacobians = []

            def visit(site: Document, transform: Distribution) -> Tree:
                name = site["name"]
                z[name] = transform.inv(values[name])
                jacobians.append(jnp.sum(transform.log_abs_det_jacobian(z[name], values[name])))
                return z[name]

            split.visit_latents(visit, public)
            likelihood = jax.vmap(lambda row, given: split.log_likelihood(z, row, public, given))(rows, drawn)
            return likelihood, split.log_prior(z, public) - sum(jacobians)

        return jax.vmap(at)(values)

    values, bounds, drawn = jax.device_get(run_once(made_up, points, rows, key, public))
    program = compiled(densities, values, rows, drawn, public)
    densities_of = lambda values: program(values, rows, drawn, public)  # noqa: E731
    before = densities_of(values)
    found: list[tuple[Move, ...]] = []
    words = []
    for moves in _candidates(values, bounds, points):
        if any(set(other) <= set(moves) for other in found):
            continue
        after = values | {move.site: move.moved(values[move.site]) for move in moves}
        without = values | {move.site: move.replaced(values[move.site]) for move in moves}
        if _same(before, densities_of(after)) and not _same(before[:1], densities_of(without)[:1], 10.0):
            found.append(moves)
            swapped = [move.site for move in moves if move.kind == "swap"]
            others = [move.site for move in moves if move.kind != "swap"]
            beside = f" and {quoted(others)} becomes 1 - {others[0]}" if others else ""
            flips = f"{quoted(others)} {'changes its sign' if len(others) == 1 else 'change their signs'}"
            words.append(f"entries of {quoted(swapped)} change places{beside}" if swapped else flips)
    return tuple(words)


def _candidates(values: Arrays, bounds: dict[str, Tree], points: Arrays) -> Iterator[tuple[Move, ...]]:
    axes = {name: np.shape(value)[1:] for name, value in values.items()}
    shares = [n for n, (low, high) in bounds.items() if not axes[n] and np.all(low == 0.0) and np.all(high == 1.0)]
    lengths = sorted({length for shape in axes.values() for length in shape if length > 1})
    for length in lengths:
        able = [Move(n, "swap", 1 + shape.index(length)) for n, shape in axes.items() if length in shape]
        able += [Move(n, "complement") for n in shares] if length == 2 else []
        for subset in _subsets(able, len(able)):
            if any(move.kind == "swap" for move in subset):
                yield subset
    signed = [Move(n, "flip") for n in values if np.array_equal(values[n], points[n])]
    yield from _subsets(signed, 2)


def _subsets(moves: list[Move], most: int) -> Iterator[tuple[Move, ...]]:
    few = len(moves) <= _MOST_SITES
    for size in range(1, most + 1) if few else (1, len(moves)):
        yield from itertools.combinations(moves, size)


def _same(before: tuple[Tree, ...], after: tuple[Tree, ...], times: float = 1.0) -> bool:
    """Whether all numbers agree, those left out that are not finite before or after."""
    for one, other in zip(before, after):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        finite = np.isfinite(one) & np.isfinite(other)
        if not finite.any():
            return False
        one, other = one[finite], other[finite]
        if np.max(np.abs(one - other)) > times * _TOLERANCE * (1.0 + np.median(np.abs(one))):
            return False
    return True
