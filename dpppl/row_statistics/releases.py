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

from dpppl.access.centring import draw_key
from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_statistic
from dpppl.access.mechanism import ROW_NUMBER, Mechanism
from dpppl.data.disk import of_row
from dpppl.data.rows import arrays_of, placement_of
from dpppl.errors import ConfigurationError
from dpppl.row_statistics.accesses import Ask, At, Kind, State, num_directions
from dpppl.row_statistics.joint import Joint, OfKind
from dpppl.row_statistics.statistics import RowStatistics
from dpppl.row_statistics.walk import STEPS, Walk, walked
from dpppl.runs.checkpoint import Checkpoint
from dpppl.runs.driver import Program, prepare_all
from dpppl.subsampling import FullBatch
from dpppl.types import Foreign, Function, Tree

MECHANISM = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())  # statistics are in units of their bounds
_MANY_ROWS = 10_000  # from so many rows on, curvatures take longer than XLA's optimisation of their program
_MANY_NUMBERS = 10**6  # from so many on, sums of a gradient's padded numbers take longer than XLA on an own program
_PHASES = {
    Kind.GRADIENT: "gradients", Kind.CURVATURE: "curvature", Kind.BIN: "histograms of norms", Kind.SIZES: "sizes of curvatures",
    Kind.SIDES: "curvatures on both sides", Kind.SCALARS: "scalars",
}  # fmt: skip


Programs = dict[Kind, Program | OfKind]


@dataclass(frozen=True)
class Accesses:
    """Makes the accesses of a run.

    - **programs**, **key** - compiled programs by kind, and the key of all accesses.
    - **rows**, **public** - the model's arrays.
    - **before** - of the number of accesses so far: charges them; called before they are made.
    - **charged** - the noise multipliers that are charged, in order: no access is made with less. None: nothing is charged.
    - **checkpoint** - the run's file, if one is kept. Its releases are not asked again, and are charged as if they were: the
      account knows an access by its number, and counts it once."""

    programs: Programs
    key: jax.Array
    rows: Tree
    public: Tree
    before: Callable[[int], None]
    charged: np.ndarray | None = None
    checkpoint: Checkpoint | None = None

    def asker(self, values: list[Tree] | None = None, bar: Foreign = None) -> Ask:
        """The function of (kind, at, noise multiplier, repeats, walk) that makes the accesses of one run, in order, adds what
        they release to `values`, and shows their kind and number on the `bar`."""
        done, place, kept = 0, 0, [] if self.checkpoint is None else self.checkpoint.leaves
        if self.checkpoint is not None and not self.checkpoint.resumed:
            self.checkpoint.write(kept)  # a run that is killed in its first access goes on, too

        def ask(kind: Kind, at: At, noise_multiplier: float, repeats: int = 1, walk: Walk | None = None) -> Tree:
            nonlocal done, place
            charged = None if self.charged is None else self.charged[done : done + repeats]
            if charged is not None and (len(charged) < repeats or not noise_multiplier >= max(charged) * (1.0 - 1e-9)):
                raise AssertionError(f"access {done} ({kind}) has less noise than it is charged for")
            if bar is not None:
                bar.set_description(_PHASES[kind])
            state = State(at, done, self.key, noise_multiplier, walk).on_device()
            self.before(done + repeats)
            done += repeats
            program = self.programs[kind]
            if place < len(kept):
                leaves, tree = jax.tree.flatten(program.outputs)
                found, place = jax.tree.unflatten(tree, kept[place : place + len(leaves)]), place + len(leaves)
            else:
                found = jax.device_get(program(state, self.rows, self.public))
                if self.checkpoint is not None:
                    kept.extend(jax.tree.leaves(found))
                    place = len(kept)
                    self.checkpoint.write(kept, done=done)
            found = jax.tree.map(lambda x: np.asarray(x, np.float64), found)
            if values is not None:
                values.append(found)
            if bar is not None:
                bar.update(repeats)
            return found

        return ask


class Released(NamedTuple):
    """All that a run released, and the public values it used. It pickles, and holds nothing that was not released.

    - **prior**, **is_normal** - of the coordinates, and whether it is normal.
    - **scale** - 1 / mu.
    - **values** - of the accesses in order, as arrays on the host.
    - **public** - the model's Public arrays."""

    prior: Tree
    is_normal: bool
    scale: float
    values: list[Tree]
    public: Tree = None

    def asker(self) -> Ask:
        """A function that returns the values again, in order. It raises ConfigurationError where there are no more."""
        values = iter(self.values)

        def ask(*_: Tree, **__: Tree) -> Tree:
            for found in values:
                return found
            raise ConfigurationError("the run was interrupted before it had released all that a posterior needs.")

        return ask


def prepared(statistics: RowStatistics, key: jax.Array, rows: Tree, public: Tree, dimension: int) -> Programs:
    """The programs of all kinds of accesses. Raises PrivacyLeakError; looks at no data."""
    at = At(np.zeros(dimension), 1.0, 1.0, statistics.basis)
    alone = State(at, 0, key, 1.0)
    placement = placement_of(rows)
    row = jax.tree.map(lambda x: of_row(x, placement), arrays_of(rows))
    num_rows = len(jax.tree.leaves(arrays_of(rows))[0])
    joint = Joint.of(statistics, row, public, num_rows)
    walking = alone._replace(walk=Walk.like(statistics.basis)).on_device()
    programs = [(partial(_walk, statistics.gradient, dimension), (walking, rows, public), False)]
    if joint is not None:
        programs.append((partial(_walk, joint, joint.width), (joint.asked(Kind.CURVATURE, alone), rows, public), False))
        *own, every = prepare_all(programs if num_rows * joint.width > _MANY_NUMBERS else programs[1:], rows=1)
        return {kind: OfKind(joint, every, kind) for kind in Kind} | dict(zip([Kind.GRADIENT], own))
    directions = np.zeros((dimension, num_directions(dimension)))
    along = directions[:, 1:]
    single = {
        Kind.BIN: at._replace(of_curvature=False), Kind.CURVATURE: at, Kind.SIZES: at._replace(halfway=at.point),
        Kind.SIDES: at._replace(sides=np.tile(at.point, (2 * along.shape[1], 1)), along=along),
        Kind.SCALARS: at._replace(directions=directions),
    }  # fmt: skip
    for kind, needs in single.items():
        arguments, is_quick = (alone._replace(at=needs).on_device(), rows, public), num_rows < _MANY_ROWS
        programs.append((partial(_single, kind, statistics), arguments, is_quick or kind != Kind.CURVATURE))
    return dict(zip((Kind.GRADIENT, *single), prepare_all(programs, rows=1)))


def _access(statistic: Function, state: State, at: At, step: jax.Array, rows: Tree, public: Tree) -> Tree:
    total = noisy_statistic(MECHANISM,
        statistic, at, rows, (public, draw_key(state.rng_key, step)), key=state.rng_key,
        noise_multiplier=state.noise_multiplier, step=step, number=ROW_NUMBER,
    ).total  # fmt: skip
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), total)


def _single(kind: Kind, statistics: RowStatistics, state: State, rows: Tree, public: Tree) -> Tree:
    total = _access(getattr(statistics, kind), state, state.at, state.i, rows, public)
    if kind != Kind.CURVATURE:
        return total
    return statistics.unpacked(state.at, public, draw_key(state.rng_key, state.i), state.noise_multiplier, total)


def _walk(statistic: Function, width: int, state: State, rows: Tree, public: Tree) -> Tree:
    """See `walked`: of the first numbers of `width` that the statistic gives. With `repeats` so many steps alone."""
    at, steps = state.at, STEPS if state.repeats is None else state.repeats
    assert state.walk is not None

    def gradient(i: Tree, point: Tree) -> jax.Array:
        return _access(statistic, state, at._replace(point=point), i, rows, public)

    return walked(gradient, state.walk, at.basis, at.point, at.norm, state.i, steps, width)
