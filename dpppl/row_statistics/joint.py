"""All kinds of accesses as one program."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun

from dpppl.access.norm_histogram import SIZE, in_bin
from dpppl.jaxprs import equations
from dpppl.model.units import UnitResponses
from dpppl.row_statistics.accesses import At, Kind, State, num_directions
from dpppl.row_statistics.fit import Order
from dpppl.row_statistics.statistics import RANKED_DRAWS, Influence, RowStatistics
from dpppl.row_statistics.walk import STEPS, Walk
from dpppl.runs.driver import Program
from dpppl.types import Tree

_MOST_COORDINATES = 32  # up to so many, each access can afford numbers for a curvature
_FEWEST_ROWS = 1_000
"""The proof allows fewer single numbers in a program than there are rows, and a joint one holds more than one of a kind."""


class _First(NamedTuple):
    """Numbers of the first point, as in `Influence`; `own`: the length of the score."""

    psi: Tree
    is_clipped: Tree
    own: Tree
    squares: Tree
    matrix: Tree
    along: Tree


class _Each(NamedTuple):
    """Numbers of a point, or of all; `side`: the curvature along its own direction, of those on both sides."""

    length: Tree
    side: Tree
    log_probs: Tree
    totals: Tree


@dataclass(frozen=True)
class Joint:
    """The statistic of all kinds. `at.sides` (2 n, d) are the points after the first.

    - **statistics** - the statistics of single kinds, of responses that are drawn, or listed and more than two."""

    statistics: RowStatistics

    @classmethod
    def of(cls, statistics: RowStatistics, row: Tree, public: Tree, num_rows: int) -> "Joint | None":
        """None where programs of their own are better: two responses, which are cheap, many coordinates, factorisations, which
        passes over the program of a row do not move out of loops, or few rows; and where rows have more than one response, or
        censored ones, or missing values, or share their responses."""
        responses, is_small = statistics.responses, len(statistics.basis.scales) <= _MOST_COORDINATES
        is_plain = responses.from_one_key and not (responses.missing or responses.is_shared or responses.is_binary)
        if not is_plain or isinstance(responses, UnitResponses) or not is_small or num_rows < _FEWEST_ROWS:
            return None
        point = jnp.zeros(len(statistics.basis.scales))
        made = equations(jax.make_jaxpr(statistics.log_likelihood)(point, row, public))
        return None if any(each.primitive in vars(lax.linalg).values() for each in made) else cls(statistics)

    @property
    def sizes(self) -> dict[Kind, tuple[int, ...]]:
        """How many numbers the parts of each kind have."""
        basis, few = self.statistics.basis, self._few
        blocks, width, _ = basis.roots.shape
        matrix = blocks * width * (width + 1) // 2
        scalars = Order(2 + self.statistics.responses.has_gaps, 1 + few).size
        parts = (len(basis.scales),), (matrix + basis.sketch.size, matrix), (SIZE,), (2,), (4 * few,), (scalars,)
        return dict(zip(Kind, parts))

    @property
    def width(self) -> int:
        return max(map(sum, self.sizes.values()))

    @property
    def _few(self) -> int:
        return num_directions(len(self.statistics.basis.scales)) - 1

    @property
    def _is_listed(self) -> bool:
        return self.statistics.responses.supports is not None

    def passes(self, kind: Kind) -> int:
        """How many points a kind looks at. Each of scalars' after the first draws other responses at the same point."""
        draws = 0 if self._is_listed else -(-RANKED_DRAWS // self.statistics.responses.num_draws)
        return {Kind.SIZES: 2, Kind.SIDES: 1 + 2 * self._few, Kind.SCALARS: 1 + draws}.get(kind, 1)

    def asked(self, kind: Kind, state: State) -> State:
        """The state of an access of this kind, given what it needs alone."""
        at, few = state.at, self._few
        directions, points = np.zeros((len(at.point), 1 + few)), np.tile(at.point, (2 * few, 1))
        if at.halfway is not None:
            points[0] = at.halfway
        at = at._replace(
            halfway=None, kind=kind.number, passes=self.passes(kind), of_curvature=bool(at.of_curvature),
            sides=points if at.sides is None else at.sides, along=directions[:, 1:] if at.along is None else at.along,
            directions=directions if at.directions is None else at.directions,
        )  # fmt: skip
        walk = Walk.like(at.basis) if state.walk is None else state.walk
        return state._replace(at=at, walk=walk, repeats=STEPS if kind == Kind.GRADIENT else 1).on_device()

    def read(self, kind: Kind, positions: jax.Array, values: jax.Array) -> Tree:
        """The numbers that a kind has released, from positions (STEPS, d) and noisy sums (STEPS, width) of an access."""
        sizes = self.sizes[kind]
        if kind == Kind.GRADIENT:
            return positions, values[:, : sizes[0]]
        if kind == Kind.CURVATURE:
            return {"A": values[0, : sizes[0]], "J": values[0, sizes[0] : sum(sizes)]}
        return values[0, : sizes[0]]

    def __call__(self, at: At, row: Tree, rest: Tree) -> jax.Array:
        """The numbers (width,) of one row, of the kind that `at` names."""
        assert at.along is not None and at.directions is not None and at.sides is not None
        (public, key), sides, along, directions = rest, at.sides, at.along, at.directions
        few, statistics = self._few, self.statistics

        def at_point(number: jax.Array) -> tuple[_First, _Each]:
            later = lax.dynamic_index_in_dim(sides, jnp.maximum(number - 1, 0), keepdims=False)
            here = at._replace(point=jnp.where(number == 0, at.point, later))
            redraw = number * (at.kind == Kind.SCALARS.number)
            draws = jnp.where(redraw > 0, jax.random.fold_in(key, redraw), key)
            members = statistics.members(here, row, public, draws)
            found = statistics.drawn_influence(here, *members[1:4])

            def others() -> Tree:
                weight = statistics.weight(row, found.length, here.curvature_bound)
                matrix = _where(at.kind == Kind.CURVATURE.number, found.matrix)
                own = jnp.linalg.norm(statistics.through(here, members.jacobian, members.scores[:1])[0])
                totals = statistics.totals(here, row, public, members.others)
                return own, found.squares(directions), matrix, weight * found.along(along), members.log_probs, totals

            own, squares, matrix, curvatures, log_probs, totals = _where(at.kind != Kind.GRADIENT.number, others)
            each = _Each(found.length, curvatures[(number - 1) % few], log_probs, totals)
            return _First(found.psi, found.is_clipped, own, squares, matrix, curvatures), each

        traced, like = jax.make_jaxpr(at_point, return_shape=True)(jax.ShapeDtypeStruct((), np.int32))

        def one(number: jax.Array, seen: tuple[_First, _Each]) -> tuple[_First, _Each]:
            first, each = jax.tree.unflatten(jax.tree.structure(like), jaxpr_as_fun(traced)(number))
            first = jax.tree.map(partial(jnp.where, number == 0), first, seen[0])
            places = _Each(number, number - 1, number, number)
            return first, jax.tree.map(partial(lax.dynamic_update_index_in_dim, axis=0), seen[1], each, places)

        counts = _Each(2, 2 * few, *[self.passes(Kind.SCALARS)] * 2)
        zeros = lambda x, *count: jnp.zeros((*count, *x.shape), x.dtype)  # noqa: E731
        start = jax.tree.map(zeros, like[0]), jax.tree.map(zeros, like[1], counts)
        first, every = lax.fori_loop(0, at.passes, one, start)
        # Of the real response at the first point, of others at later ones, or, where they are listed, at the first.
        of_each = lambda x: x[0] if self._is_listed else jnp.append(x[0, 0], x[1:, 1:])  # noqa: E731
        log_probs, totals = of_each(every.log_probs), of_each(every.totals)
        shares = jnp.full(len(log_probs), 1.0 / len(log_probs))
        if self._is_listed:
            shares = jnp.append(jnp.zeros(1), jax.nn.softmax(log_probs[1:]))
        given = lambda: first.matrix, lambda _: first.squares, lambda _: first.along
        found = Influence(None, first.psi, every.length[0], first.is_clipped, *given)
        padded = lambda x: jnp.pad(x.astype(jnp.float32), (0, self.width - len(x)))  # noqa: E731
        heads: dict[Kind, Callable[[], Tree]] = {
            Kind.GRADIENT: lambda: padded(statistics.gradient_of(at, row, found)),
            Kind.CURVATURE: lambda: padded(jnp.concatenate([*statistics.curvature_of(at, row, found).values()])),
            Kind.BIN: lambda: padded(in_bin(jnp.where(at.of_curvature, found.length / at.norm**2, first.own))),
            Kind.SIZES: lambda: padded(statistics.sizes_of(at, row, every.length[::-1])),
            Kind.SIDES: lambda: padded(statistics.sides_of(jnp.append(first.along, every.side).reshape(3, few))),
            Kind.SCALARS: lambda: padded(statistics.scalars_of(at, row, public, shares, found, log_probs, totals)),
        }
        return lax.switch(at.kind, [heads[kind] for kind in Kind])


def _where(is_asked: jax.Array, function: Callable[[], Tree]) -> Tree:
    """Return what a function returns, or zeros. No row decides which."""
    like = jax.eval_shape(function)
    return lax.cond(is_asked, function, lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like))


class OfKind(NamedTuple):
    """The compiled program of all kinds, for one of them.

    - **joint**, **program** - all kinds, and their program; **kind** - the one."""

    joint: Joint
    program: Program
    kind: Kind

    @property
    def digest(self) -> str:
        return self.program.digest

    @property
    def outputs(self) -> Tree:
        """Shapes of what an access of this kind releases."""
        return jax.eval_shape(lambda found: self.joint.read(self.kind, *found), self.program.outputs)

    def __call__(self, state: Tree, rows: Tree, public: Tree) -> Tree:
        return self.joint.read(self.kind, *self.program(self.joint.asked(self.kind, state), rows, public))
