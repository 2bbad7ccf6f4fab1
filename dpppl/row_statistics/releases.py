"""The accesses of a run as programs: each traced once, proved, and compiled."""

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
from dpppl.data.rows import arrays_of
from dpppl.errors import ConfigurationError
from dpppl.row_statistics.accesses import Ask, At, Kind, State, num_directions
from dpppl.row_statistics.statistics import RowStatistics
from dpppl.runs.checkpoint import Checkpoint
from dpppl.runs.driver import Program, prepare_all
from dpppl.subsampling import FullBatch
from dpppl.types import Foreign, Tree

MECHANISM = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())  # statistics are in units of their bounds
_MANY_ROWS = 10_000  # from so many rows on, looks take longer than XLA's optimisation of their program
_PHASES = {Kind.LOOK: "looks", Kind.BINS: "histograms of norms", Kind.SCALARS: "scalars"}

Programs = dict[Kind, Program]


@dataclass(frozen=True)
class Accesses:
    """Makes the accesses of a run.

    - **programs**, **key** - compiled programs by kind, and the key of all accesses.
    - **rows**, **public** - the model's arrays.
    - **before** - of the number of accesses so far: charges them; called before they are made.
    - **charged** - the noise multipliers that are charged, in order: no access is made with less. None: nothing is charged.
    - **checkpoint** - the run's file, if one is kept. Releases that it holds are not made again. All are charged by their
      numbers, and a number counts once."""

    programs: Programs
    key: jax.Array
    rows: Tree
    public: Tree
    before: Callable[[int], None]
    charged: np.ndarray | None = None
    checkpoint: Checkpoint | None = None

    def asker(self, values: list[Tree] | None = None, bar: Foreign = None) -> Ask:
        """The function of (kind, at, noise multiplier) that makes the accesses of one run, in order, adds what they release to
        `values`, and shows their kind and number on the `bar`."""
        done, place, kept = 0, 0, [] if self.checkpoint is None else self.checkpoint.leaves
        if self.checkpoint is not None and not self.checkpoint.resumed:
            self.checkpoint.write(kept)  # a run that is killed in its first access goes on, too

        def ask(kind: Kind, at: At, noise_multiplier: float) -> Tree:
            nonlocal done, place
            charged = None if self.charged is None else self.charged[done : done + 1]
            if charged is not None and not (len(charged) and noise_multiplier >= charged[0] * (1.0 - 1e-9)):
                raise AssertionError(f"access {done} ({kind}) has less noise than it is charged for")
            if bar is not None:
                bar.set_description(_PHASES[kind])
            state = State(at, done, self.key, noise_multiplier).on_device()
            self.before(done + 1)
            done += 1
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
                bar.update(1)
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
    num_rows = len(jax.tree.leaves(arrays_of(rows))[0])
    directed = at._replace(directions=np.zeros((dimension, num_directions(dimension))))
    needs = {Kind.LOOK: at, Kind.BINS: at, Kind.SCALARS: directed}
    programs = [
        (partial(_access, kind, statistics), (State(where, 0, key, 1.0).on_device(), rows, public),
         num_rows < _MANY_ROWS or kind != Kind.LOOK)
        for kind, where in needs.items()
    ]  # fmt: skip
    return dict(zip(needs, prepare_all(programs, rows=1)))


def _access(kind: Kind, statistics: RowStatistics, state: State, rows: Tree, public: Tree) -> Tree:
    draws = draw_key(state.rng_key, state.i)
    total = noisy_statistic(MECHANISM,
        getattr(statistics, kind), state.at, rows, (public, draws), key=state.rng_key,
        noise_multiplier=state.noise_multiplier, step=state.i, number=ROW_NUMBER,
    ).total  # fmt: skip
    total = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), total)
    return statistics.unpacked(state.at, public, draws, state.noise_multiplier, total) if kind is Kind.LOOK else total
