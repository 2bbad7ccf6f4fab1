"""The accesses of a run as programs: each traced once, proved, and compiled."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.access.centring import draw_key
from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_statistic
from dpppl.access.mechanism import ROW_NUMBER, Mechanism
from dpppl.data.disk import of_row
from dpppl.data.rows import arrays_of, placement_of
from dpppl.errors import ConfigurationError
from dpppl.noise_aware.curvature import times
from dpppl.noise_aware.joint import KINDS, Joint, OfKind
from dpppl.noise_aware.plan import STEPS, Ask, At, State, Walk, num_directions
from dpppl.noise_aware.statistics import RowStatistics
from dpppl.runs.checkpoint import Checkpoint
from dpppl.runs.driver import Program, prepare_all
from dpppl.subsampling import FullBatch
from dpppl.types import Function, Numbers, Tree

MECHANISM = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
"""Statistics come in units of their bounds: at most 1 long."""
HISTOGRAMS = ("norm_bin", "curvature_bin")
"""Kinds of accesses that are one program."""
_MANY_ROWS = 10_000
"""From so many rows on, curvatures take longer than XLA's optimisation of their program."""
_PHASES = {
    "norm_bin": "scores' norms",
    "curvature_bin": "curvatures' norms",
    "curvature": "curvature",
    "gradient": "gradients",
    "sizes": "sizes of curvatures",
    "sides": "curvatures on both sides",
    "scalars": "scalars",
}


@dataclass(frozen=True)
class Releases:
    """Makes the accesses of a run.

    - **programs** - compiled programs by name.
    - **key** - the key of all accesses.
    - **rows**, **public** - the model's arrays.
    - **before** - of the number of accesses so far: charges them; called before they are made.
    - **charged** - the noise multipliers that are charged, in order: no access is made with less. None: nothing is charged.
    - **checkpoint** - the run's file, if one is kept. Its releases are not asked again, and are charged as if they were:
      the account knows an access by its number, and counts it once."""

    programs: dict[str, Program | OfKind]
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
        if self.charged is None:
            return
        charged = self.charged[done : done + repeats]
        if len(charged) < repeats or not noise_multiplier >= max(charged) * (1.0 - 1e-9):
            raise AssertionError(f"access {done} ({kind}) has less noise than it is charged for")


class Released(NamedTuple):
    """All that a run released, and the public values it used. It pickles, and holds nothing that was not released.

    - **prior** - of the coordinates.
    - **is_normal** - whether the prior is normal.
    - **scale** - 1 / mu.
    - **values** - of the accesses in order, as arrays on the host."""

    prior: Any
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
) -> dict[str, Program | OfKind]:
    """The programs of all kinds of accesses, by name. Raises PrivacyLeakError; looks at no data."""
    at = At(np.zeros(dimension), 1.0, 1.0, statistics.frame)
    alone = State(at, 0, key, 1.0)
    placement = placement_of(rows)
    row, num_rows = (
        jax.tree.map(lambda x: of_row(x, placement), arrays_of(rows)),
        len(jax.tree.leaves(arrays_of(rows))[0]),
    )
    joint = Joint.of(statistics, row, public, num_rows)
    if joint is not None:
        state = joint.asked("curvature", alone)
        (program,) = prepare_all([(partial(_every, joint), (state.on_device(), rows, public), False)], rows=1)
        return {kind: OfKind(joint, program, kind) for kind in KINDS}
    directions = np.zeros((dimension, num_directions(dimension)))
    along = directions[:, 1:]
    single = {
        "bin": at._replace(of_curvature=False), "curvature": at, "sizes": at._replace(halfway=at.point),
        "sides": at._replace(sides=np.tile(at.point, (2 * along.shape[1], 1)), along=along),
        "scalars": at._replace(directions=directions),
    }  # fmt: skip
    is_quick = lambda kind: kind != "curvature" or num_rows < _MANY_ROWS  # noqa: E731
    programs = [
        (partial(_single, kind, statistics), (alone._replace(at=own).on_device(), rows, public), is_quick(kind))
        for kind, own in single.items()
    ]
    walking = alone._replace(walk=Walk.like(statistics.frame)).on_device()
    programs.append((partial(_walk, statistics), (walking, rows, public), False))
    return dict(zip((*single, "gradient"), prepare_all(programs, rows=1)))


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


def _walk(statistics: RowStatistics, state: State, rows: Tree, public: Tree) -> Tree:
    """Gradients on the way to the posterior mean given those so far: positions (T, d), noisy scores (T, d)."""
    assert state.walk is not None
    walk = state.walk

    def body(carry: Tree, update: Tree) -> Tree:
        i, count, point, average = carry
        noisy = _access(statistics.gradient, state, state.at._replace(point=point), i, rows, public)
        new, average = _moved(state.at, walk, count, point, average, noisy, *update)
        return (i + 1, count + 1.0, new, average), (point, noisy)

    start = (state.i, jnp.zeros((), jnp.float32), state.at.point, jnp.zeros(walk.offsets.shape[1:], jnp.float32))
    return lax.scan(body, start, (walk.gains, walk.offsets))[1]


def _every(joint: Joint, state: State, rows: Tree, public: Tree) -> Tree:
    """`repeats` accesses of one kind, as on a walk: positions (T, d), and noisy sums (T, width)."""
    assert state.walk is not None
    at, walk = state.at, state.walk

    def body(number: jax.Array, carry: Tree) -> Tree:
        i, point, average, positions, values = carry
        noisy = _access(joint, state, at._replace(point=point), i, rows, public)
        gradient = noisy[: len(point)]
        update = walk.gains[number], walk.offsets[number]
        new, average = _moved(at, walk, number.astype(jnp.float32), point, average, gradient, *update)
        return i + 1, new, average, positions.at[number].set(point), values.at[number].set(noisy)

    shapes = walk.offsets.shape[1:], (STEPS, len(at.point)), (STEPS, joint.width)
    start = state.i, at.point, *(jnp.zeros(shape, jnp.float32) for shape in shapes)
    return lax.fori_loop(0, state.repeats, body, start)[3:]


def _moved(
    at: At,
    walk: Walk,
    count: jax.Array,
    point: Numbers,
    average: jax.Array,
    noisy: jax.Array,
    gain: Numbers,
    offset: Numbers,
) -> tuple[jax.Array, jax.Array]:
    """The next point of a walk after `count` steps, and the next average of gradients, given the noisy gradient at a point."""

    def limited(value: Numbers, centre: Numbers, width: Numbers) -> jax.Array:
        return jnp.clip(value - centre, -width, width) + centre

    frame = at.frame
    u = frame.coordinates(jnp.asarray(point - walk.mean), walk.inverse)
    weight = 4.0 / (count + 4.0)
    average = (1.0 - weight) * average + weight * (frame.layout.gathered(noisy) * at.norm + times(walk.curvature, u))
    new = walk.mean + frame.latents(times(gain, average) + offset)
    new = limited(new, point, frame.scales / (1.0 + count / 8.0))
    return limited(new, at.point, walk.reach * frame.scales), average


def shown(ask: Ask, bar: Any) -> Ask:
    """`ask`, with each access on the bar: its kind and number alone, which are public."""

    def shown_ask(kind: str, at: At, noise_multiplier: float, repeats: int = 1, walk: Walk | None = None) -> Tree:
        bar.set_description(_PHASES.get(kind, kind))
        found = ask(kind, at, noise_multiplier, repeats, walk)
        bar.update(repeats)
        return found

    return shown_ask
