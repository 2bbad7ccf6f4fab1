"""The accesses of a run as programs: each traced once, proved, and compiled."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tqdm.auto import tqdm

from dpppl.access.centring import draw_key
from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_statistic
from dpppl.access.mechanism import ROW_NUMBER, Mechanism
from dpppl.data.disk import of_row
from dpppl.data.rows import arrays_of, placement_of
from dpppl.errors import ConfigurationError
from dpppl.noise_aware.frame import Geometry
from dpppl.noise_aware.joint import KINDS, Joint, OfKind
from dpppl.noise_aware.plan import STEPS
from dpppl.noise_aware.recipe import Ask
from dpppl.noise_aware.statistics import RowStatistics
from dpppl.processes import messages
from dpppl.runs.checkpoint import Checkpoint
from dpppl.runs.driver import Program, prepare_all
from dpppl.subsampling import FullBatch

MECHANISM = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
"""Statistics come in units of their bounds: at most 1 long."""
HISTOGRAMS = ("norm_bin", "curvature_bin")
"""Kinds of accesses that are one program."""
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
    key: Any
    rows: Any
    public: Any
    before: Callable[[int], None]
    charged: np.ndarray | None = None
    checkpoint: Checkpoint | None = None

    def asker(self) -> Callable[..., Any]:
        """The function of (kind, at, noise multiplier, repeats, walk) that makes the accesses of one run, in order."""
        done, place, kept = 0, 0, [] if self.checkpoint is None else self.checkpoint.leaves

        def ask(kind: str, at: Any, noise_multiplier: float, repeats: int = 1, **walk: Any) -> Any:
            nonlocal done, place
            self._check(kind, noise_multiplier, done, repeats)
            state = _floats(at | walk) | {
                "i": np.int32(done), "rng_key": self.key, "noise_multiplier": np.float32(noise_multiplier),
            }  # fmt: skip
            name = kind
            if kind in HISTOGRAMS:
                name, state["of_curvature"] = "bin", np.bool_(kind == "curvature_bin")
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
    values: list[Any]

    def recorded(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which adds to `values` what it returns."""

        def asked(*args: Any, **walk: Any) -> Any:
            self.values.append(ask(*args, **walk))
            return self.values[-1]

        return asked

    def asker(self) -> Callable[..., Any]:
        """A function that returns the values again, in order. It raises ConfigurationError where there are no more."""
        values = iter(self.values)

        def ask(*_: Any, **__: Any) -> Any:
            for found in values:
                return found
            raise ConfigurationError("the run was interrupted before it had released all that a posterior needs.")

        return ask


def prepared(
    statistics: RowStatistics, key: Any, rows: Any, public: Any, dimension: int
) -> dict[str, Program | OfKind]:
    """The programs of all kinds of accesses, by name. Raises PrivacyLeakError; looks at no data."""
    at = {"point": np.zeros(dimension), "norm": 1.0, "bound": 1.0} | statistics.geometry.at
    first = {"i": np.int32(0), "rng_key": key, "noise_multiplier": np.float32(1.0)}
    placement = placement_of(rows)
    row, num_rows = (
        jax.tree.map(lambda x: of_row(x, placement), arrays_of(rows)),
        len(jax.tree.leaves(arrays_of(rows))[0]),
    )
    joint = Joint.of(statistics, row, public, num_rows)
    if joint is not None:
        state = joint.asked("curvature", _floats(at)) | first
        (program,) = prepare_all([(partial(_every, joint), (state, rows, public), False)], rows=1)
        return {kind: OfKind(joint, program, kind) for kind in KINDS}
    walk = {"mean": np.zeros(dimension)} | statistics.geometry.walk
    alone, along = (_floats(at) | first, rows, public), (_floats(at | walk) | first, rows, public)
    directions = np.zeros((dimension, statistics.geometry.num_directions))
    fits = (_floats(at | {"directions": directions}) | first, rows, public)
    histograms = (alone[0] | {"of_curvature": np.bool_(False)}, rows, public)
    sizes = (alone[0] | {"halfway": np.zeros(dimension, np.float32)}, rows, public)
    few = statistics.geometry.num_directions - 1
    sides = (_floats(at | {"sides": np.zeros((2 * few, dimension)), "along": directions[:, 1:]}) | first, rows, public)
    single = {"bin": histograms, "curvature": alone, "sizes": sizes, "sides": sides, "scalars": fits}
    programs = [(partial(_single, kind, statistics), arguments, True) for kind, arguments in single.items()]
    programs.append((partial(_walk, statistics), along, False))
    return dict(zip((*single, "gradient"), prepare_all(programs, rows=1)))


def _floats(values: Any) -> Any:
    return {name: np.asarray(value, np.float32) for name, value in values.items()}


def _access(statistic: Callable[..., Any], state: Any, at: Any, step: Any, rows: Any, public: Any) -> Any:
    total = noisy_statistic(MECHANISM,
        statistic, at, rows, (public, draw_key(state["rng_key"], step)), key=state["rng_key"],
        noise_multiplier=state["noise_multiplier"], step=step, number=ROW_NUMBER,
    ).total  # fmt: skip
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), total)


def _at(statistics: RowStatistics, state: Any) -> Any:
    names = (
        "point",
        "norm",
        "bound",
        "halfway",
        "sides",
        "along",
        "directions",
        "of_curvature",
        "kind",
        "passes",
        *statistics.geometry.at,
    )
    return {name: state[name] for name in names if name in state}


def _single(kind: str, statistics: RowStatistics, state: Any, rows: Any, public: Any) -> Any:
    return _access(getattr(statistics, kind), state, _at(statistics, state), state["i"], rows, public)


def _walk(statistics: RowStatistics, state: Any, rows: Any, public: Any) -> Any:
    """Gradients on the way to the posterior mean given those so far: positions (T, d), noisy scores (T, d)."""
    at, geometry = _at(statistics, state), statistics.geometry

    def body(carry: Any, update: Any) -> Any:
        i, count, point, average = carry
        noisy = _access(statistics.gradient, state, at | {"point": point}, i, rows, public)
        new, average = _moved(geometry, state, count, point, average, noisy, *update)
        return (i + 1, count + 1.0, new, average), (point, noisy)

    start = (state["i"], jnp.zeros((), jnp.float32), at["point"], jnp.zeros(state["offsets"].shape[1:], jnp.float32))
    return lax.scan(body, start, (state["gains"], state["offsets"]))[1]


def _every(joint: Joint, state: Any, rows: Any, public: Any) -> Any:
    """`repeats` accesses of one kind, as on a walk: positions (T, d), and noisy sums (T, width)."""
    at, geometry = _at(joint.statistics, state), joint.statistics.geometry

    def body(number: Any, carry: Any) -> Any:
        i, point, average, positions, values = carry
        noisy = _access(joint, state, at | {"point": point}, i, rows, public)
        update, gradient = (state[name][number] for name in ("gains", "offsets")), noisy[: len(point)]
        new, average = _moved(geometry, state, number.astype(jnp.float32), point, average, gradient, *update)
        return i + 1, new, average, positions.at[number].set(point), values.at[number].set(noisy)

    shapes = state["offsets"].shape[1:], (STEPS, len(at["point"])), (STEPS, joint.width)
    start = state["i"], at["point"], *(jnp.zeros(shape, jnp.float32) for shape in shapes)
    return lax.fori_loop(0, state["repeats"], body, start)[3:]


def _moved(
    geometry: Geometry, state: Any, count: Any, point: Any, average: Any, noisy: Any, gain: Any, offset: Any
) -> tuple[Any, Any]:
    """The next point of a walk after `count` steps, and the next average of gradients, given the noisy gradient at a point."""

    def limited(value: Any, centre: Any, width: Any) -> Any:
        return centre + jnp.clip(value - centre, -width, width)

    mean = state["mean"]
    u = geometry.coordinates(state, point - mean)
    weight = 4.0 / (count + 4.0)
    average = (1.0 - weight) * average + weight * (
        geometry.gradient(state, noisy) * state["norm"] + geometry.times(state["curvature"], u)
    )
    new = mean + geometry.latents(state, geometry.times(gain, average) + offset)
    new = limited(new, point, state["scales"] / (1.0 + count / 8.0))
    return limited(new, state["point"], state["reach"] * state["scales"]), average


def bar_for(num_accesses: int, *, visible: bool) -> Any:
    """A bar for a number of accesses, to be used as a context; without a rate, as phases differ too much."""
    shape = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}]"
    return tqdm(total=num_accesses, disable=not (visible and messages.leads()), desc="compiling", bar_format=shape)


def shown(ask: Ask, bar: Any) -> Ask:
    """`ask`, with each access on the bar: its kind and number alone, which are public."""

    def shown_ask(kind: str, at: Any, noise_multiplier: float, repeats: int = 1, **walk: Any) -> Any:
        bar.set_description(_PHASES.get(kind, kind))
        found = ask(kind, at, noise_multiplier, repeats, **walk)
        bar.update(repeats)
        return found

    return shown_ask
