"""Records the releases of a run's accesses, and replays them in place of another run's.

An audit compiles a run's proved programs with `taped_p` in place of the door. It computes the same access, and a callback on
the host keeps the output (first run), or compares it and returns the output that was kept (second run). Both runs use the same
noise, so the difference of two outputs is what one row changed. Each access is also made with twice its noise multiplier, and
the difference is its noise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Primitive
from jax.interpreters import mlir
from scipy import special

from dpppl.access.door import Access, door_p
from dpppl.access.mechanism import ACCOUNTED
from dpppl.jaxprs import is_key, open_jaxpr
from dpppl.runs.processes import digest
from dpppl.types import Traced, Tree

taped_p = Primitive("dpppl_taped_door")
taped_p.multiple_results = True

OPERANDS = ("position", "rows", "public arrays", "captured arrays", "key", "noise multiplier", "step")
_ROUNDING = 2.0**-22
"""Of two float32 numbers, in units of each."""
_CHANCE, _EQUAL = 1e-6, 1e-5
"""Of a false alarm about the size of the noise; and how near each other noise is the same, in standard deviations."""

Array = np.ndarray


class Made(NamedTuple):
    """One access.

    - **operands** - digests of its operands but rows, by name.
    - **noise_multiplier** - that it was made with.
    - **outputs** - what it returned.
    - **mechanism** - its mechanism, in words."""

    operands: dict[str, str]
    noise_multiplier: float
    outputs: tuple[Array, ...]
    mechanism: str


@dataclass(eq=False)
class Tape:
    """The accesses, charges and programs of a run.

    - **before** - the tape whose releases this run is given; None for a first run.
    - **accesses** - those made, by key and step, in order.
    - **noise** - charged noise multipliers, in order.
    - **steps** - how many steps of each charge were charged, by run and number.
    - **charges** - charges in words, in order.
    - **digests** - of the programs as they were proved.
    - **faults** - what was wrong with accesses, in words without values.
    - **drawn** - the noise of each access, in units of the standard deviation that it should have.
    - **moved** - largest change of an access's clipped sum, in units of the clipping norm."""

    before: "Tape | None" = None
    accesses: dict[tuple[bytes, bytes], Made] = field(default_factory=dict)
    noise: list[float] = field(default_factory=list)
    steps: dict[tuple[str, int], int] = field(default_factory=dict)
    charges: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    drawn: list[Array] = field(default_factory=list)
    moved: float = 0.0

    # See runs.watching.Watcher

    def charged(self, run: tuple[str, int], charge: Any, first: int, until: int) -> None:
        """Note a charge.

        - **run** - the id of its run, and its number.
        """
        known = max(first, self.steps.get(run, 0))  # by the run that this one resumes
        self.steps[run] = max(until, known)
        self.noise += list(np.tile(charge.noise_multipliers[known:until], charge.chains))
        multipliers = charge.noise_multipliers[first:until]
        self.charges.append(f"{charge.mechanism} {charge.neighboring_relation} {charge.chains} {multipliers.tolist()}")

    def program(self, closed: Traced, digest: str) -> Traced:
        """Return the program with this tape at its doors."""
        self.digests.append(digest)
        return taped(closed, self)

    # While a program runs

    def access(self, access: Access, *operands: Tree) -> Tree:
        """Return the outputs of an access, through the tape."""
        outputs = access(*operands)
        noise_multiplier = jax.tree.leaves(access.parts[OPERANDS.index("noise multiplier")])[0]
        louder = access(*(2 * x if k == noise_multiplier else x for k, x in enumerate(operands)))
        given, names = for_host(access, operands)
        like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs]
        return jax.pure_callback(partial(self._through, access, names), like, given, list(outputs), list(louder))

    def _through(
        self, access: Access, names: Sequence[str], given: Tree, outputs: Tree, louder: Tree
    ) -> list[np.ndarray]:
        """On the host, with NumPy only: keep or compare the access of each chain, and return what it releases."""
        given, outputs, louder = ([np.asarray(x) for x in values] for values in (given, outputs, louder))
        lead = outputs[0].shape[: len(access.chains)]
        released = [np.array(x) for x in outputs]
        for chain in np.ndindex(*lead):
            made = self._made(access, names, *([x[chain] for x in values] for values in (given, outputs, louder)))
            for place, value in zip(released, made):
                place[chain] = value
        return released

    def _made(
        self, access: Access, names: Sequence[str], given: list[Array], outputs: list[Array], louder: list[Array]
    ) -> Sequence[Array]:
        parts: dict[str, list[Array]] = {name: [] for name in OPERANDS if name != "rows"}
        for name, value in zip(names, given):
            parts[name].append(value)
        at = parts["key"][0].tobytes(), parts["step"][0].tobytes()
        sigma = float(parts["noise multiplier"][0])
        made = Made({n: digest(v) for n, v in parts.items()}, sigma, tuple(outputs), str(access.mechanism))
        number = len(self.accesses)
        scales = _scales(access.mechanism, len(outputs))
        drawn = [np.ravel(b - a.astype(np.float64)) / (x * sigma) for x, a, b in zip(scales, outputs, louder)]
        self.drawn.append(np.concatenate(drawn))
        if at in self.accesses:
            self.faults.append(f"access {number} has key and step of an earlier one")
        if number >= len(self.noise):
            self.faults.append(f"access {number} was made before it was charged")
        self.accesses[at] = made
        kept = None if self.before is None else self.before.accesses.get(at)
        if kept is None:
            return outputs
        differing = [n for n, digest in made.operands.items() if digest != kept.operands[n]]
        if made.mechanism != kept.mechanism:
            differing.append("mechanism")
        if [(x.shape, x.dtype) for x in outputs] != [(x.shape, x.dtype) for x in kept.outputs]:
            self.faults.append(f"access {number} releases numbers of another shape or type")
            return outputs
        if differing:
            self.faults.append(f"access {number} has another {' and '.join(differing)}")
        else:
            self.moved = max(self.moved, _moved(scales, kept.outputs, outputs))
        return kept.outputs

    def wrong_noise(self) -> Iterator[str]:
        """Yield what is wrong: less noise than was charged, the same noise twice, other accesses charged than made."""
        made = np.sort([m.noise_multiplier for m in self.accesses.values()])
        charged = np.sort(self.noise)
        if len(made) != len(charged):
            yield f"{len(made)} accesses were made and {len(charged)} charged"
        elif short := int(np.sum(made < charged * ACCOUNTED)):
            yield f"{short} accesses have less noise than was charged"
        every = np.concatenate([np.zeros(0), *self.drawn])
        if every.size and special.gammainc(0.5 * every.size, 0.5 * np.sum(every**2)) < _CHANCE:
            yield "the noise is smaller than its noise multiplier says"
        several = [x for x in self.drawn if x.size > 1]
        pairs = ((x, y) for n, x in enumerate(several) for y in several[:n] if x.shape == y.shape)
        if any(np.max(np.abs(x - y)) < _EQUAL for x, y in pairs):
            yield "two accesses have the same noise"


def _scales(mechanism: Any, number: int) -> list[float]:
    """The standard deviation of the noise in each output of an access, for a noise multiplier of 1."""
    return [mechanism.noise_scale] * (number - mechanism.counts) + [mechanism.count_std] * mechanism.counts


def _moved(scales: Sequence[float], one: Sequence[Array], other: Sequence[Array]) -> float:
    """The change of an access's output under equal noise, in units of what its noise multiplier is charged for."""
    square = 0.0
    for scale, a, b in zip(scales, one, other):
        a, b = np.asarray(a, np.float64) / scale, np.asarray(b, np.float64) / scale
        square += float(np.sum(np.maximum(np.abs(a - b) - _ROUNDING * np.abs(a), 0.0) ** 2))
    return square**0.5


def for_host(access: Access, operands: Sequence[Tree]) -> tuple[list[Tree], list[str]]:
    """Return the operands but rows, keys as their data, each with the leading axes of all chains; and their names."""
    names: dict[int, str] = {}
    for name, part in zip(OPERANDS, access.parts):
        names |= {number: name for number in jax.tree.leaves(part)}
    levels = access.chains[::-1]  # the outermost first
    lead: list[int] = []
    for place in range(len(levels)):
        k = levels[place].index(True)
        lead.append(operands[k].shape[sum(level[k] for level in levels[:place])])
    found, kept = [], []
    for k, value in enumerate(operands):
        if names[k] == "rows":
            continue
        value = jax.random.key_data(value) if is_key(value) else jnp.asarray(value)
        own = value.shape[sum(level[k] for level in levels) :]
        axes = iter(value.shape)
        open_shape = [next(axes) if level[k] else 1 for level in levels]
        found.append(jnp.broadcast_to(value.reshape(*open_shape, *own), (*lead, *own)))
        kept.append(names[k])
    return found, kept


def taped(closed: Traced, tape: Any) -> Traced:
    """Return a program with `tape.access` at its doors.

    - **tape** - an object with a method `access(access, *operands)` that returns what a door does."""
    return closed.replace(jaxpr=_taped(closed.jaxpr, tape))


def _taped(jaxpr: Traced, tape: object) -> Traced:
    """An open program with the tape at its doors, those of programs inside included."""

    def inside(value: Tree) -> Tree:
        if open_jaxpr(value) is None:
            return value
        return value.replace(jaxpr=_taped(value.jaxpr, tape)) if hasattr(value, "jaxpr") else _taped(value, tape)

    def changed(equation: JaxprEqn) -> Tree:
        if equation.primitive is door_p:
            return equation.replace(primitive=taped_p, params={**equation.params, "tape": tape})
        is_program = lambda value: open_jaxpr(value) is not None  # noqa: E731
        return equation.replace(params=jax.tree.map(inside, equation.params, is_leaf=is_program))

    return jaxpr.replace(eqns=[changed(equation) for equation in jaxpr.eqns])


@taped_p.def_abstract_eval
def _shapes(*operands: object, access: Access, tape: object) -> Tree:
    return door_p.abstract_eval(*operands, access=access)[0]


def _lower(context: Any, *operands: Tree, access: Access, tape: Any) -> Tree:
    with jax.enable_x64(True):  # as the door itself is lowered
        return mlir.lower_fun(partial(tape.access, access), multiple_results=True)(context, *operands)


mlir.register_lowering(taped_p, _lower)
