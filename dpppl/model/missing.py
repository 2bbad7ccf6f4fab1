"""Latents of a row that stand for missing values: which they are, whether a row uses them, and the rows that they complete.

`split` is a SplitModel, `z` its unconstrained latents, `row` one private row. `given` are values by site, on a batch of one row.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import UnsupportedModelError
from dpppl.jaxprs import Dependence, abstract
from dpppl.model.arguments import Arrays
from dpppl.model.handlers import made_up_value
from dpppl.model.refusals import MISSING_CURE, of_row_message
from dpppl.model.row_independence import known
from dpppl.model.structure import Site, Trace, is_observed, log_prob_of, log_weight, plates_of, unmasked, unwrapped
from dpppl.types import Distribution, Tree

_NUM_ROWS = 16


def assignments(split: Any) -> Arrays:
    """The numbers of all joint values of a row's latents that are summed out, (m,) by site."""
    names, sizes = zip(*split.summed)
    return dict(zip(names, np.indices(sizes).reshape(len(sizes), -1)))


def completions(split: Any, z: Arrays, row: Arrays, public: Arrays) -> tuple[Arrays, jax.Array]:
    """Values (m, ...) of the row's latents that are summed out, by site, and their log probabilities (m,) given what the row
    observes, but for a constant."""

    def at(numbers: Arrays) -> tuple[Arrays, Any]:
        trace = split.visit_observed(lambda site: None, z, row, public, numbers)
        values = {name: trace[name]["value"] for name in numbers}
        weights = [jnp.sum(log_weight(trace[name], number)) for name, number in numbers.items()]
        return values, sum(weights, _total(split, trace, numbers))

    return jax.vmap(at)(assignments(split))


def log_density(split: Any, z: Arrays, row: Arrays, public: Arrays, given: Arrays) -> jax.Array:
    """Log density of a row whose latents that are summed out have the values `given`. Latents that it does not use count 0."""
    trace = trace_of(split, z, row, public, given)
    total = _total(split, trace, dict(split.summed))
    for name, is_used in _in_use(split, z, row, public, given, trace).items():
        total += jnp.where(is_used, jnp.sum(unwrapped(trace[name]["fn"]).log_prob(trace[name]["value"])), 0.0)
    return total


def in_use(split: Any, z: Arrays, row: Arrays, public: Arrays) -> Arrays:
    """Whether a row uses each of its latents that are summed out, or observes a value in its place, by site."""
    first = {name: np.zeros((), int) for name, _ in split.summed}
    return _in_use(split, z, row, public, {}, split.visit_observed(lambda site: None, z, row, public, first))


def stand_ins(split: Any, latents: Arrays, public: Arrays) -> tuple[str, ...]:
    """The latents of a row that are summed out and stand for missing values: those with a mask, and others that of the rows that
    were made up some do not use; if discrete, some do. `latents`: shapes by site, None where they are discrete. `public`: Public
    arrays as given, since a latent may enter through them. Looks at no private data.

    Raises UnsupportedModelError for other continuous ones, and where a latent stands in what is observed."""
    _check_observed(split)
    found = list(split.masked)
    for name, _ in split.summed:
        if name in split.masked:
            continue
        of_rows = jax.jit(jax.vmap(partial(_of_made_up, split, name), (None, None, 0)))
        try:
            uses, hidden = jax.device_get(of_rows(*_made_up(split, public)))
        except (TypeError, IndexError, UnsupportedModelError):  # an index, which cannot be NaN
            continue
        if latents[name] is None:
            found += [] if np.all(uses) or not np.any(uses) or np.any(hidden) else [name]
        elif np.all(uses):
            raise UnsupportedModelError(of_row_message(name, False, split.data_plate))
        elif np.any(hidden):
            raise UnsupportedModelError(
                f"latent '{name}' of each row stands for missing values and has no mask that says where; {MISSING_CURE}"
            )
        else:
            found.append(name)
    return tuple(found)


def trace_of(split: Any, z: Arrays, row: Arrays, public: Arrays, given: Arrays) -> Trace:
    """A run on one row with the values `given`; latents that are summed out and not among them have the first of theirs."""
    of = lambda site: given[site["name"]]  # noqa: E731
    choices = {name: of if name in given else np.zeros((), int) for name, _ in split.summed}
    return split.visit_observed(lambda site: given.get(site["name"]), z, row, public, choices)


def _of_row(split: Any, trace: Trace, but: Iterable[str]) -> list[Site]:
    """The sites of a row, but for those of these names."""
    sites = [s for s in trace.values() if s["type"] == "sample" and split.data_plate in plates_of(s)]
    return [s for s in sites if s["name"] not in but]


def _total(split: object, trace: Trace, but: Iterable[str]) -> jax.Array:
    return sum((jnp.sum(log_prob_of(s)) for s in _of_row(split, trace, but)), start=jnp.zeros(()))


def _in_use(split: Any, z: Arrays, row: Arrays, public: Arrays, given: Arrays, trace: Trace) -> Arrays:
    """By the mask of a latent, where it has one; of others that stand for missing values by `_uses`."""
    found: Arrays = {}
    for name, _ in split.summed:
        found[name] = jnp.all(unmasked(trace[name]["fn"])) if name in split.masked else jnp.ones((), bool)
        if name in split.missing and name not in split.masked:
            values = given | {other: trace[other]["value"] for other, _ in split.summed}
            found[name] = _uses(split, name, z, row, public, values, trace)
    return found


def _uses(split: object, name: str, z: Arrays, row: Arrays, public: Arrays, given: Arrays, trace: Trace) -> jax.Array:
    """Whether parameters of another site of a row become NaN where a latent is NaN; `trace` is that of the values `given`."""
    tainted = trace_of(split, z, row, public, given | {name: jnp.full(jnp.shape(trace[name]["value"]), jnp.nan)})

    def has_new_nan(fn: Distribution, tainted: Distribution) -> jax.Array:  # which no mask takes out
        pairs = zip(jax.tree.leaves(fn), jax.tree.leaves(tainted))
        found = [jnp.any((new != new) & (old == old)) for old, new in pairs]
        return jnp.any(jnp.stack([jnp.zeros((), bool), *found])) & jnp.any(unmasked(fn))

    return jnp.any(jnp.stack([has_new_nan(s["fn"], tainted[s["name"]]["fn"]) for s in _of_row(split, trace, [name])]))


def _of_made_up(split: Any, name: str, z: Arrays, public: Arrays, row: Arrays) -> tuple[Tree, Tree]:
    """Whether a row uses a latent, and whether its log density depends on the latent although it does not seem to."""

    def inside(site: Site) -> Tree:  # a value in its support
        found = made_up_value(site["fn"].support, jnp.full(jnp.shape(site["value"]), 0.3))
        return None if found is None else found.astype(jnp.result_type(site["value"]))

    values, _ = completions(split, z, row, public)
    trace = split.visit_observed(inside, z, row, public, {other: np.zeros((), int) for other in values})
    given = {other: site["value"] for other, site in trace.items() if site["type"] == "sample" and site["is_observed"]}
    given |= {other: value[0] for other, value in values.items()}

    def without_law(value: jax.Array) -> jax.Array:
        return _total(split, trace_of(split, z, row, public, given | {name: value}), [name])

    found = jax.vmap(without_law)(values[name])
    uses = _uses(split, name, z, row, public, given, trace_of(split, z, row, public, given))
    return uses, ~uses & jnp.any(found != found[0]) & jnp.all(jnp.isfinite(found))


def _check_observed(split: Any) -> None:
    """Refuse scales of a row, and what observes latents of it that are summed out: their law is not that of their own site."""
    if not split.summed:
        return

    def observed(z: Arrays, row: Arrays, public: Arrays, numbers: Arrays) -> dict[str, Arrays]:
        sites = _of_row(split, split.visit_observed(lambda site: None, z, row, public, numbers), [])
        if scaled := [s["name"] for s in sites if s["scale"] is not None]:
            raise UnsupportedModelError(
                f"site '{scaled[0]}' is scaled, and '{split.summed[0][0]}' is summed out in each row: the scale would be "
                "inside the sum, no weight of the row; leave handlers.scale out, or use dpppl.NoiseAware(..., weights='weight', "
                "max_weight=2.0)."
            )
        return {"observed": {s["name"]: s["given"] for s in sites if is_observed(s, split.data_plate)}}

    numbers = {name: abstract((), int) for name, _ in split.summed}
    found = Dependence(
        observed, latent=split.latents, row=split.row, public=split.arguments.public, **{"of row": numbers}
    )
    for name in found.names("observed"):
        for role, label in found.inputs("observed", name):
            if role == "of row":
                raise UnsupportedModelError(
                    f"the observed values of site '{name}' contain the latent '{label}' of each row; {MISSING_CURE}"
                )


def _made_up(split: Any, public: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    """Latents, Public arrays, and rows (n, ...) that differ in all that may be a mask."""
    rng, rows = np.random.default_rng(0), {}
    for name, shape in split.row.items():
        size = (_NUM_ROWS, *shape.shape)
        is_float = jnp.issubdtype(shape.dtype, jnp.inexact)
        numbers = rng.uniform(0.1, 0.9, size) if is_float else rng.integers(0, 2, size)
        numbers[0] = 1
        rows[name] = numbers.astype(shape.dtype)
    z = {name: np.asarray(0.3 * rng.standard_normal(s.shape), s.dtype) for name, s in split.latents.items()}
    draw = lambda shape, dtype: np.asarray(rng.uniform(0.1, 0.9, shape)).astype(dtype)  # noqa: E731
    return z, known(public, split.num_rows, draw), rows
