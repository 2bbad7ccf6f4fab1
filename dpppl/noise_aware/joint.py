"""All kinds of accesses as one program: draws, scores and centring of a row are compiled once, not once a kind.

A row goes through one loop over points, as many as the kind needs, and then releases the numbers of the kind that `at` names,
padded by zeros to a common length. Each kind reads its own numbers from the noisy sum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun

from dpppl.access.norm_histogram import SIZE, in_bin
from dpppl.jaxprs import equations
from dpppl.model.units import UnitResponses
from dpppl.noise_aware.plan import STEPS, At, State, Walk, num_directions
from dpppl.noise_aware.statistics import NUM_DRAWS, Influence, RowStatistics
from dpppl.runs.driver import Program
from dpppl.types import Tree

KINDS = ("gradient", "curvature", "bin", "sizes", "sides", "scalars")
_MOST_COORDINATES = 32
"""Up to so many, each access can afford numbers for a curvature."""
_FEWEST_ROWS = 1_000
"""The proof allows fewer single numbers in a program than there are rows, and in this one stand more than in those of a kind."""


class _Seen(NamedTuple):
    """Numbers of the points so far.

    - **psi**, **is_clipped**, **own**, **squares**, **matrix** - at the first, as in `Influence`, but `own` is the length of the
      row's score, and `squares` and `matrix` are numbers.
    - **lengths** - of curvatures, at the first two, (2,).
    - **along** - curvatures along directions, (3, n): see `RowStatistics.sides_of`.
    - **log_probs**, **totals** - of responses, (1 + m,)."""

    psi: jax.Array
    is_clipped: jax.Array
    own: jax.Array
    squares: jax.Array
    matrix: jax.Array
    lengths: jax.Array
    along: jax.Array
    log_probs: jax.Array
    totals: jax.Array


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
        responses, is_small = statistics.responses, len(statistics.frame.scales) <= _MOST_COORDINATES
        is_plain = responses.from_one_key and not responses.missing and not isinstance(responses, UnitResponses)
        is_plain &= not responses.is_shared
        if responses.is_binary or not is_plain or not is_small or num_rows < _FEWEST_ROWS:
            return None
        return None if _has_factorisations(statistics, row, public) else cls(statistics)

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """How many numbers the parts of each kind have."""
        frame, few = self.statistics.frame, self._few
        blocks, width, _ = frame.roots.shape
        matrix = blocks * width * (width + 1) // 2
        curvature = matrix + frame.sketch.size, matrix
        scalars = 13 + few + self.statistics.responses.has_gaps
        return dict(zip(KINDS, ((len(frame.scales),), curvature, (SIZE,), (2,), (4 * few,), (scalars,))))

    @property
    def width(self) -> int:
        """The common length."""
        return max(map(sum, self.sizes.values()))

    @property
    def _few(self) -> int:
        return num_directions(len(self.statistics.frame.scales)) - 1

    @property
    def _is_listed(self) -> bool:
        return self.statistics.responses.supports is not None

    def passes(self, kind: str) -> int:
        """How many points a kind looks at. Each of scalars' after the first draws other responses at the same point."""
        draws = 0 if self._is_listed else -(-NUM_DRAWS // self.statistics.responses.num_draws)
        return {"sizes": 2, "sides": 1 + 2 * self._few, "scalars": 1 + draws}.get(kind, 1)

    def asked(self, kind: str, state: State) -> State:
        """The state of an access of this kind, given what it needs alone."""
        at, few = state.at, self._few
        directions, points = np.zeros((len(at.point), 1 + few)), np.tile(at.point, (2 * few, 1))
        if at.halfway is not None:
            points[0] = at.halfway
        at = at._replace(
            halfway=None, kind=KINDS.index(kind), passes=self.passes(kind), of_curvature=bool(at.of_curvature),
            sides=points if at.sides is None else at.sides, along=directions[:, 1:] if at.along is None else at.along,
            directions=directions if at.directions is None else at.directions,
        )  # fmt: skip
        walk = Walk.like(at.frame) if state.walk is None else state.walk
        return state._replace(at=at, walk=walk, repeats=STEPS if kind == "gradient" else 1).on_device()

    def read(self, kind: str, positions: jax.Array, values: jax.Array) -> Tree:
        """The numbers that a kind has released, from positions (STEPS, d) and noisy sums (STEPS, width) of an access."""
        sizes = self.sizes[kind]
        if kind == "gradient":
            return positions, values[:, : sizes[0]]
        if kind == "curvature":
            return {"A": values[0, : sizes[0]], "J": values[0, sizes[0] : sum(sizes)]}
        return values[0, : sizes[0]]

    def __call__(self, at: At, row: Tree, rest: Tree) -> Tree:
        """The numbers (width,) of one row."""
        assert at.along is not None and at.directions is not None and at.sides is not None
        (public, key), sides, along, directions = rest, at.sides, at.along, at.directions
        kind, few = at.kind, self._few
        is_scalars = (kind == KINDS.index("scalars")).astype(jnp.int32)

        def at_point(number: jax.Array) -> _Seen:
            """The numbers of one point, as if it were the first; `along` (n,)."""
            later = lax.dynamic_index_in_dim(sides, jnp.maximum(number - 1, 0), keepdims=False)
            here = at._replace(point=jnp.where(number == 0, at.point, later))
            redraw = number * is_scalars
            draws = jnp.where(redraw > 0, jax.random.fold_in(key, redraw), key)
            members = self.statistics.members(here, row, public, draws)
            found = self.statistics.drawn_influence(here, *members[1:4])

            def others() -> Tree:
                weight = self.statistics.weight(here, row, found.length)
                matrix = _where(kind == KINDS.index("curvature"), found.matrix)
                own = jnp.linalg.norm(self.statistics.through(here, members.jacobian, members.scores[:1])[0])
                totals = self.statistics.totals(here, row, public, members.others)
                squares = found.squares(directions)
                return own, squares, matrix, weight * found.along(along), members.log_probs, totals

            own, squares, matrix, curvatures, log_probs, totals = _where(kind != KINDS.index("gradient"), others)
            return _Seen(found.psi, found.is_clipped, own, squares, matrix, found.length, curvatures, log_probs, totals)

        traced, like = jax.make_jaxpr(at_point, return_shape=True)(jax.ShapeDtypeStruct((), np.int32))
        num_others = (1 if self._is_listed else self.passes("scalars") - 1) * (like.totals.shape[0] - 1)

        def one(number: jax.Array, seen: _Seen) -> _Seen:
            here, is_first = jax.tree.unflatten(jax.tree.structure(like), jaxpr_as_fun(traced)(number)), number == 0
            place = 1 + (0 if self._is_listed else jnp.maximum(number - 1, 0) * (like.totals.shape[0] - 1))

            def collected(into: jax.Array, values: jax.Array) -> jax.Array:
                """The real response's from the first point, others from later ones, or, where they are listed, the first."""
                others = lax.dynamic_update_slice_in_dim(into, values[1:].astype(into.dtype), place, 0)
                into = jnp.where(is_first == self._is_listed, others, into)
                return into.at[0].set(jnp.where(is_first, values[0], into[0]))

            first = [jnp.where(is_first, new, old) for new, old in zip(here[:5], seen[:5])]
            lengths = jnp.where(jnp.arange(2) == number, here.lengths, seen.lengths)
            chosen = jnp.where(is_first, here.along, here.along[(number - 1) % few])
            places = jnp.where(is_first, jnp.arange(3 * few) < few, jnp.arange(3 * few) == few + number - 1)
            curvatures = jnp.where(places.reshape(3, few), jnp.broadcast_to(chosen, (3, few)), seen.along)
            collections = collected(seen.log_probs, here.log_probs), collected(seen.totals, here.totals)
            return _Seen._make([*first, lengths, curvatures, *collections])

        zeros = [jnp.zeros(x.shape, x.dtype) for x in like[:5]]
        shapes = (2,), (3, few), (1 + num_others,), (1 + num_others,)
        start = _Seen(*zeros, *(jnp.zeros(shape, like.lengths.dtype) for shape in shapes))
        return self._released(at, row, public, lax.fori_loop(0, at.passes, one, start))

    def _released(self, at: At, row: Tree, public: Tree, seen: _Seen) -> jax.Array:
        """The numbers of the kind that `at` names, (width,)."""
        statistics, length = self.statistics, seen.lengths[0]
        found = Influence(
            None, seen.psi, length, seen.is_clipped, lambda: seen.matrix, lambda _: seen.squares, lambda _: seen.along
        )
        count = seen.log_probs.shape[0]
        if self._is_listed:
            shares = jnp.append(jnp.zeros(1), jax.nn.softmax(seen.log_probs[1:]))
        else:
            shares = jnp.full(count, 1.0 / count)
        heads: tuple[Callable[[], Any], ...] = (
            lambda: statistics.gradient_of(at, row, found),
            lambda: jnp.concatenate([*statistics.curvature_of(at, row, found).values()]),
            lambda: in_bin(jnp.where(at.of_curvature, length / at.norm**2, seen.own)),
            lambda: statistics.sizes_of(at, row, seen.lengths[::-1]),
            lambda: statistics.sides_of(seen.along),
            lambda: statistics.scalars_of(at, row, public, shares, found, seen.log_probs, seen.totals),
        )

        def padded(head: Callable[[], Any]) -> Callable[[], Any]:
            return lambda: (lambda x: jnp.pad(x.astype(jnp.float32), (0, self.width - len(x))))(head())

        return lax.switch(at.kind, [padded(head) for head in heads])


def _where(is_asked: jax.Array, function: Callable[[], Tree]) -> Tree:
    """Return what a function returns, or zeros. No row decides which."""
    like = jax.eval_shape(function)
    return lax.cond(is_asked, function, lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like))


def _has_factorisations(statistics: RowStatistics, row: Tree, public: Tree) -> bool:
    """Whether the log likelihood of a row factorises matrices or solves systems."""
    point = jnp.zeros(len(statistics.frame.scales))
    program = jax.make_jaxpr(statistics.log_likelihood)(point, row, public)
    return any(equation.primitive in vars(jax.lax.linalg).values() for equation in equations(program))


@dataclass(frozen=True)
class OfKind:
    """The program of all kinds, for one of them.

    - **joint** - what it computes.
    - **program** - compiled.
    - **kind** - a name."""

    joint: Joint
    program: Program
    kind: str

    @property
    def digest(self) -> str:
        """The program's."""
        return self.program.digest

    @property
    def outputs(self) -> Tree:
        """Shapes of what an access of this kind releases."""
        return jax.eval_shape(lambda found: self.joint.read(self.kind, *found), self.program.outputs)

    def __call__(self, state: Tree, rows: Tree, public: Tree) -> Tree:
        """The numbers that an access of this kind releases."""
        return self.joint.read(self.kind, *self.program(self.joint.asked(self.kind, state), rows, public))
