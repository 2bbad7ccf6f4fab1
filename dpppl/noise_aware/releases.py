"""The accesses of a run as programs: each traced once, proved, and compiled.

Where it pays, all kinds are one program (`Joint`): draws, scores and centring of a row are compiled once, not once a kind. A row
goes through one loop over points, as many as the kind needs, and then releases the numbers of the kind that `at` names, padded by
zeros to a common length. Each kind reads its own numbers from the noisy sum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun

from dpppl.access.centring import draw_key
from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_statistic
from dpppl.access.mechanism import ROW_NUMBER, Mechanism
from dpppl.access.norm_histogram import SIZE, in_bin
from dpppl.data.disk import of_row
from dpppl.data.rows import arrays_of, placement_of
from dpppl.errors import ConfigurationError
from dpppl.jaxprs import equations
from dpppl.model.units import UnitResponses
from dpppl.noise_aware.curvature import times
from dpppl.noise_aware.plan import STEPS, Ask, At, State, Walk, num_directions
from dpppl.noise_aware.statistics import NUM_DRAWS, Influence, RowStatistics
from dpppl.runs.checkpoint import Checkpoint
from dpppl.runs.driver import Program, prepare_all
from dpppl.subsampling import FullBatch
from dpppl.types import Foreign, Function, Numbers, Tree

MECHANISM = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
"""Statistics come in units of their bounds: at most 1 long."""
HISTOGRAMS = ("norm_bin", "curvature_bin")
"""Kinds of accesses that are one program."""
KINDS = ("gradient", "curvature", "bin", "sizes", "sides", "scalars")
_MANY_ROWS = 10_000
"""From so many rows on, curvatures take longer than XLA's optimisation of their program."""
_MANY_NUMBERS = 10**6
"""From so many on, a gradient's sums of padded numbers take longer than XLA takes for a program of its own."""
_MOST_COORDINATES = 32
"""Up to so many, each access can afford numbers for a curvature."""
_FEWEST_ROWS = 1_000
"""The proof allows fewer single numbers in a program than there are rows, and a joint one holds more than one of a kind."""
_PHASES = {
    "norm_bin": "scores' norms", "curvature_bin": "curvatures' norms", "curvature": "curvature", "gradient": "gradients",
    "sizes": "sizes of curvatures", "sides": "curvatures on both sides", "scalars": "scalars",
}  # fmt: skip


class _Seen(NamedTuple):
    """Numbers of the first point, as in `Influence` (`own`: the length of the score; `along` (n,)), and of all points that a kind
    looks at: lengths of curvatures, those along directions beside the first point, and log probabilities and sums of
    responses."""

    psi: jax.Array
    is_clipped: jax.Array
    own: jax.Array
    squares: jax.Array
    matrix: jax.Array
    along: jax.Array
    lengths: jax.Array
    beside: jax.Array
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
        is_plain = responses.from_one_key and not (responses.missing or responses.is_shared or responses.is_binary)
        if not is_plain or isinstance(responses, UnitResponses) or not is_small or num_rows < _FEWEST_ROWS:
            return None
        point = jnp.zeros(len(statistics.frame.scales))
        made = equations(jax.make_jaxpr(statistics.log_likelihood)(point, row, public))
        return None if any(each.primitive in vars(lax.linalg).values() for each in made) else cls(statistics)

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """How many numbers the parts of each kind have."""
        frame, few = self.statistics.frame, self._few
        blocks, width, _ = frame.roots.shape
        matrix = blocks * width * (width + 1) // 2
        scalars = 13 + few + self.statistics.responses.has_gaps
        parts = (len(frame.scales),), (matrix + frame.sketch.size, matrix), (SIZE,), (2,), (4 * few,), (scalars,)
        return dict(zip(KINDS, parts))

    @property
    def width(self) -> int:
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

    def __call__(self, at: At, row: Tree, rest: Tree) -> jax.Array:
        """The numbers (width,) of one row, of the kind that `at` names."""
        assert at.along is not None and at.directions is not None and at.sides is not None
        (public, key), sides, along, directions = rest, at.sides, at.along, at.directions
        kind, few, statistics = at.kind, self._few, self.statistics
        is_scalars = (kind == KINDS.index("scalars")).astype(jnp.int32)

        def at_point(number: jax.Array) -> _Seen:
            later = lax.dynamic_index_in_dim(sides, jnp.maximum(number - 1, 0), keepdims=False)
            here = at._replace(point=jnp.where(number == 0, at.point, later))
            redraw = number * is_scalars
            draws = jnp.where(redraw > 0, jax.random.fold_in(key, redraw), key)
            members = statistics.members(here, row, public, draws)
            found = statistics.drawn_influence(here, *members[1:4])

            def others() -> Tree:
                weight = statistics.weight(row, found.length, here.bound)
                matrix = _where(kind == KINDS.index("curvature"), found.matrix)
                own = jnp.linalg.norm(statistics.through(here, members.jacobian, members.scores[:1])[0])
                totals = statistics.totals(here, row, public, members.others)
                squares = found.squares(directions)
                return own, squares, matrix, weight * found.along(along), members.log_probs, totals

            own, squares, matrix, curvatures, log_probs, totals = _where(kind != KINDS.index("gradient"), others)
            of_direction = curvatures[(number - 1) % few]
            first = found.psi, found.is_clipped, own, squares, matrix, curvatures
            return _Seen(*first, found.length, of_direction, log_probs, totals)

        traced, like = jax.make_jaxpr(at_point, return_shape=True)(jax.ShapeDtypeStruct((), np.int32))

        def one(number: jax.Array, seen: _Seen) -> _Seen:
            here = jax.tree.unflatten(jax.tree.structure(like), jaxpr_as_fun(traced)(number))
            first = [jnp.where(number == 0, new, old) for new, old in zip(here[:6], seen[:6])]
            places = zip(seen[6:], here[6:], (number, number - 1, number, number))
            return _Seen._make([*first, *(lax.dynamic_update_index_in_dim(*each, 0) for each in places)])

        counts = 2, 2 * few, *[self.passes("scalars")] * 2
        start = [jnp.zeros(x.shape, x.dtype) for x in like[:6]]
        start += [jnp.zeros((count, *x.shape), x.dtype) for count, x in zip(counts, like[6:])]
        seen = lax.fori_loop(0, at.passes, one, _Seen._make(start))
        # Of the real response at the first point, of others at later ones, or, where they are listed, at the first.
        log_probs, totals = (
            x[0] if self._is_listed else jnp.append(x[0, 0], x[1:, 1:]) for x in (seen.log_probs, seen.totals)
        )
        shares = jnp.full(len(log_probs), 1.0 / len(log_probs))
        if self._is_listed:
            shares = jnp.append(jnp.zeros(1), jax.nn.softmax(log_probs[1:]))
        length = seen.lengths[0]
        found = Influence(
            None, seen.psi, length, seen.is_clipped, lambda: seen.matrix, lambda _: seen.squares, lambda _: seen.along
        )
        heads: tuple[Callable[[], Tree], ...] = (
            lambda: statistics.gradient_of(at, row, found),
            lambda: jnp.concatenate([*statistics.curvature_of(at, row, found).values()]),
            lambda: in_bin(jnp.where(at.of_curvature, length / at.norm**2, seen.own)),
            lambda: statistics.sizes_of(at, row, seen.lengths[::-1]),
            lambda: statistics.sides_of(jnp.append(seen.along, seen.beside).reshape(3, few)),
            lambda: statistics.scalars_of(at, row, public, shares, found, log_probs, totals),
        )

        def padded(head: Callable[[], Tree]) -> Callable[[], Tree]:
            return lambda: (lambda x: jnp.pad(x.astype(jnp.float32), (0, self.width - len(x))))(head())

        return lax.switch(kind, [padded(head) for head in heads])


def _where(is_asked: jax.Array, function: Callable[[], Tree]) -> Tree:
    """Return what a function returns, or zeros. No row decides which."""
    like = jax.eval_shape(function)
    return lax.cond(is_asked, function, lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like))


class _OfKind(NamedTuple):
    """The compiled program of all kinds, for one of them."""

    joint: Joint
    program: Program
    kind: str

    @property
    def digest(self) -> str:
        return self.program.digest

    @property
    def outputs(self) -> Tree:
        """Shapes of what an access of this kind releases."""
        return jax.eval_shape(lambda found: self.joint.read(self.kind, *found), self.program.outputs)

    def __call__(self, state: Tree, rows: Tree, public: Tree) -> Tree:
        return self.joint.read(self.kind, *self.program(self.joint.asked(self.kind, state), rows, public))


@dataclass(frozen=True)
class Releases:
    """Makes the accesses of a run.

    - **programs**, **key** - compiled programs by name, and the key of all accesses.
    - **rows**, **public** - the model's arrays.
    - **before** - of the number of accesses so far: charges them; called before they are made.
    - **charged** - the noise multipliers that are charged, in order: no access is made with less. None: nothing is charged.
    - **checkpoint** - the run's file, if one is kept. Its releases are not asked again, and are charged as if they were: the
      account knows an access by its number, and counts it once."""

    programs: dict[str, Program | _OfKind]
    key: jax.Array
    rows: Tree
    public: Tree
    before: Callable[[int], None]
    charged: np.ndarray | None = None
    checkpoint: Checkpoint | None = None

    def asker(self) -> Ask:
        """The function of (kind, at, noise multiplier, repeats, walk) that makes the accesses of one run, in order."""
        done, place, kept = 0, 0, [] if self.checkpoint is None else self.checkpoint.leaves

        def ask(kind: str, at: At, noise_multiplier: float, repeats: int = 1, walk: Walk | None = None) -> Tree:
            nonlocal done, place
            self._check(kind, noise_multiplier, done, repeats)
            name = kind
            if kind in HISTOGRAMS:
                name, at = "bin", at._replace(of_curvature=kind == "curvature_bin")
            state = State(at, done, self.key, noise_multiplier, walk).on_device()
            self.before(done + repeats)
            done += repeats
            program = self.programs[name]
            if place < len(kept):
                leaves, tree = jax.tree.flatten(program.outputs)
                found, place = jax.tree.unflatten(tree, kept[place : place + len(leaves)]), place + len(leaves)
            else:
                found = jax.device_get(program(state, self.rows, self.public))
                if self.checkpoint is not None:
                    kept.extend(jax.tree.leaves(found))
                    place = len(kept)
                    self.checkpoint.write(kept, done=done)
            return jax.tree.map(lambda x: np.asarray(x, np.float64), found)

        return ask

    def _check(self, kind: str, noise_multiplier: float, done: int, repeats: int) -> None:
        """Raises AssertionError where accesses after the first `done` would have less noise than they are charged for."""
        charged = None if self.charged is None else self.charged[done : done + repeats]
        if charged is not None and (len(charged) < repeats or not noise_multiplier >= max(charged) * (1.0 - 1e-9)):
            raise AssertionError(f"access {done} ({kind}) has less noise than it is charged for")


class Released(NamedTuple):
    """All that a run released, and the public values it used. It pickles, and holds nothing that was not released.

    - **prior**, **is_normal** - of the coordinates, and whether it is normal.
    - **scale** - 1 / mu.
    - **values** - of the accesses in order, as arrays on the host."""

    prior: Tree
    is_normal: bool
    scale: float
    values: list[Tree]

    def recorded(self, ask: Ask) -> Ask:
        """The same function, which adds to `values` what it returns."""

        def asked(*args: Tree, **options: Tree) -> Tree:
            self.values.append(ask(*args, **options))
            return self.values[-1]

        return asked

    def asker(self) -> Ask:
        """A function that returns the values again, in order. It raises ConfigurationError where there are no more."""
        values = iter(self.values)

        def ask(*_: Tree, **__: Tree) -> Tree:
            for found in values:
                return found
            raise ConfigurationError("the run was interrupted before it had released all that a posterior needs.")

        return ask


def prepared(
    statistics: RowStatistics, key: jax.Array, rows: Tree, public: Tree, dimension: int
) -> dict[str, Program | _OfKind]:
    """The programs of all kinds of accesses, by name. Raises PrivacyLeakError; looks at no data."""
    at = At(np.zeros(dimension), 1.0, 1.0, statistics.frame)
    alone = State(at, 0, key, 1.0)
    placement = placement_of(rows)
    row = jax.tree.map(lambda x: of_row(x, placement), arrays_of(rows))
    num_rows = len(jax.tree.leaves(arrays_of(rows))[0])
    joint = Joint.of(statistics, row, public, num_rows)
    walking = alone._replace(walk=Walk.like(statistics.frame)).on_device()
    programs = [(partial(_walk, statistics.gradient, dimension), (walking, rows, public), False)]
    if joint is not None:
        programs.append((partial(_walk, joint, joint.width), (joint.asked("curvature", alone), rows, public), False))
        *own, every = prepare_all(programs if num_rows * joint.width > _MANY_NUMBERS else programs[1:], rows=1)
        return {kind: _OfKind(joint, every, kind) for kind in KINDS} | dict(zip(["gradient"], own))
    directions = np.zeros((dimension, num_directions(dimension)))
    along = directions[:, 1:]
    single = {
        "bin": at._replace(of_curvature=False), "curvature": at, "sizes": at._replace(halfway=at.point),
        "sides": at._replace(sides=np.tile(at.point, (2 * along.shape[1], 1)), along=along),
        "scalars": at._replace(directions=directions),
    }  # fmt: skip
    is_quick = lambda kind: kind != "curvature" or num_rows < _MANY_ROWS  # noqa: E731
    programs += [
        (partial(_single, kind, statistics), (alone._replace(at=own).on_device(), rows, public), is_quick(kind))
        for kind, own in single.items()
    ]
    return dict(zip(("gradient", *single), prepare_all(programs, rows=1)))


def _access(statistic: Function, state: State, at: At, step: jax.Array, rows: Tree, public: Tree) -> Tree:
    total = noisy_statistic(MECHANISM,
        statistic, at, rows, (public, draw_key(state.rng_key, step)), key=state.rng_key,
        noise_multiplier=state.noise_multiplier, step=step, number=ROW_NUMBER,
    ).total  # fmt: skip
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), total)


def _single(kind: str, statistics: RowStatistics, state: State, rows: Tree, public: Tree) -> Tree:
    total = _access(getattr(statistics, kind), state, state.at, state.i, rows, public)
    if kind != "curvature":
        return total
    return statistics.released(state.at, public, draw_key(state.rng_key, state.i), state.noise_multiplier, total)


def _walk(statistic: Function, width: int, state: State, rows: Tree, public: Tree) -> Tree:
    """Gradients on the way to the posterior mean given those so far, the first numbers of `width` that the statistic gives:
    positions (STEPS, d), and noisy sums (STEPS, width). With `repeats` so many steps alone."""
    assert state.walk is not None
    at, walk = state.at, state.walk
    frame = at.frame

    def limited(value: Numbers, centre: Numbers, width: Numbers) -> jax.Array:
        return jnp.clip(value - centre, -width, width) + centre

    def body(number: jax.Array, carry: Tree) -> Tree:
        i, point, average, positions, values = carry
        noisy = _access(statistic, state, at._replace(point=point), i, rows, public)
        u = frame.coordinates(jnp.asarray(point - walk.mean), walk.inverse)
        count, moved = number.astype(jnp.float32), frame.layout.gathered(noisy[: len(point)]) * at.norm
        weight = 4.0 / (count + 4.0)
        average = (1.0 - weight) * average + weight * (moved + times(walk.curvature, u))
        new = walk.mean + frame.latents(times(walk.gains[number], average) + walk.offsets[number])
        new = limited(limited(new, point, frame.scales / (1.0 + count / 8.0)), at.point, walk.reach * frame.scales)
        return i + 1, new, average, positions.at[number].set(point), values.at[number].set(noisy)

    shapes = walk.offsets.shape[1:], (STEPS, len(at.point)), (STEPS, width)
    start = state.i, at.point, *(jnp.zeros(shape, jnp.float32) for shape in shapes)
    return lax.fori_loop(0, STEPS if state.repeats is None else state.repeats, body, start)[3:]


def shown(ask: Ask, bar: Foreign) -> Ask:
    """`ask`, with each access on the bar: its kind and number alone, which are public."""

    def shown_ask(kind: str, at: At, noise_multiplier: float, repeats: int = 1, walk: Walk | None = None) -> Tree:
        bar.set_description(_PHASES.get(kind, kind))
        found = ask(kind, at, noise_multiplier, repeats, walk)
        bar.update(repeats)
        return found

    return shown_ask
