"""Follows values through a traced program: rows outside the door, keys anywhere, effects, captured arrays."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from dpppl.information_flow import control
from dpppl.information_flow.facts import bounds_of, has_kind, integer_of, key_of
from dpppl.information_flow.keys import Counters, Use
from dpppl.information_flow.primitives import SAMPLERS, group, jaxpr_of, known, named, programs_in
from dpppl.information_flow.values import Form, Lost, Number, Raw, Trail, Value, depends_on_rows

_NOWHERE: frozenset[int] = frozenset()
_PASSED = group("optimization_barrier", "device_put")
_CHOSEN = group("convert_element_type", "copy", "sharding_constraint", "slice", "dynamic_slice", "name")
_COMBINING = group("reduce", "reduce_window", "select_and_scatter", "scatter")
"""They hold a function that combines two elements."""
_LOOPS = {
    named("scan"): control.scan,
    named("while"): control.while_loop,
    named("cond"): control.cond,
    named("linear_solve"): control.linear_solve,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A way by which something private could leave. `kind`: one or two words; `what`: a sentence; `trail`: the way."""

    kind: str
    what: str
    trail: Trail | None = None


class Walk:
    """One pass over a program.

    `doors` maps a door's primitive to the parameter that holds its program; `inside()` gives the rules for one access;
    `problem_with(value, door)` says why a captured array is refused, or None.

    `findings`; `uses` of keys; `entered`: the rules of each door met; `constants`: captured arrays; `control`:
    secrets that decide whether this part of the program runs."""

    def __init__(self, doors: dict, inside: Callable, problem_with: Callable):
        self.doors, self.inside, self.problem_with = doors, inside, problem_with
        self.findings: list[Finding] = []
        self.uses: list[Use] = []
        self.door: Any = None
        self.entered: dict[int, Any] = {}
        self.equations: set[int] = set()
        self.constants: dict[int, Any] = {}
        self.counters = Counters()
        self.devices: dict[Hashable, int] = {}
        self.control: list[Trail] = []
        self.branches: tuple[tuple[int, int], ...] = ()
        self.scope: tuple[int, ...] = ()
        self._idents: dict[Hashable, int] = {}
        self._count = 0

    def fresh(self) -> int:
        """A number that nothing else has."""
        self._count += 1
        return -self._count - 1

    def ident(self, *description) -> int:
        """The number of a value: equal for equal descriptions."""
        try:
            return self._idents.setdefault(description, len(self._idents))
        except TypeError:  # a parameter that cannot be compared
            return self.fresh()

    def find(self, kind: str, what: str, trail: Trail | None = None) -> None:
        """Note a finding, once."""
        if all((kind, what) != (finding.kind, finding.what) for finding in self.findings):
            self.findings.append(Finding(kind, what, trail))

    def mark(self) -> tuple:
        """Where the records stand."""
        return len(self.uses), len(self.findings), self.door.mark() if self.door is not None else None

    def back_to(self, mark: tuple) -> None:
        """Forget what was recorded since, because a loop's body is followed again."""
        del self.uses[mark[0] :], self.findings[mark[1] :]
        if self.door is not None:
            self.door.back_to(mark[2])

    # Programs

    def program(self, program, inputs: list[Value]) -> list[Value]:
        """A jaxpr, closed or open: its outputs."""
        jaxpr = program.jaxpr if hasattr(program, "consts") else program
        environment: dict[Any, Value] = dict(zip(jaxpr.invars, inputs))
        environment.update(zip(jaxpr.constvars, map(self.constant, getattr(program, "consts", ()))))

        def read(atom):
            return self.literal(atom) if isinstance(atom, Literal) else environment[atom]

        for equation in jaxpr.eqns:
            self.equations.add(id(equation))
            outputs = self.equation(equation, [read(atom) for atom in equation.invars])
            environment.update(zip(equation.outvars, outputs))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation, inputs: list[Value]) -> list[Value]:
        """One equation: its outputs."""
        primitive, groups = equation.primitive, known()
        if primitive in self.doors:
            return self.through_door(equation, inputs)
        if primitive in groups.calls:
            return self.call(equation, inputs)
        if primitive in groups.remat:
            before, self.scope = self.scope, (*self.scope, id(equation))
            outputs = self.call(equation, inputs)
            self.scope = before
            return outputs
        if primitive in groups.shard_map:
            return control.sharded(self, equation, inputs)
        if primitive in _LOOPS:
            return _LOOPS[primitive](self, equation, inputs)
        return inputs if primitive in _PASSED else self.plain(equation, inputs)

    def call(self, equation, inputs: list[Value]) -> list[Value]:
        """A call of one program with the equation's inputs."""
        parameters = equation.params
        names = [name for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if jaxpr_of(parameters.get(name)) is not None]
        if not names or len(jaxpr_of(parameters[names[0]]).invars) != len(inputs):
            return self.unknown(equation, inputs)
        return self.program(parameters[names[0]], inputs)

    def through_door(self, equation, inputs: list[Value]) -> list[Value]:
        """An access: its program is checked inside, and what comes out is public."""
        if self.door is not None:
            self.find("door", "there is a door inside the door", Trail(equation))
            return [Value(ident=self.fresh()) for _ in equation.outvars]
        self.door = self.entered[id(equation)] = self.inside()
        before, self.scope = self.scope, (*self.scope, self.fresh())
        arguments = [self.door.enter(self, value, atom.aval) for value, atom in zip(inputs, equation.invars)]
        self.door.leave(self, self.program(equation.params[self.doors[equation.primitive]], arguments))
        self.scope, self.door = before, None
        loops = _NOWHERE.union(*(value.loops for value in inputs))
        return [Value(ident=self.fresh(), loops=loops) for _ in equation.outvars]

    # Values that stand in the program

    def literal(self, literal) -> Value:
        """A number in the program text, or an array there."""
        value = literal.val
        if np.size(value) > 1 or has_kind(literal.aval, jax.dtypes.prng_key):
            return self.constant(value)
        ident = self.ident("literal", np.asarray(value).dtype.str, np.asarray(value).tobytes())
        return _constant(value, ident)

    def constant(self, value) -> Value:
        """An array that the program captured."""
        ident = self.ident("constant", id(value))
        if isinstance(value, jax.core.Tracer):
            self.find("constant", "the door calls a function that captures a value of the surrounding computation: pass "
                      "it as an argument")  # fmt: skip
            return Value(Lost("it is captured"), ident=ident, trail=Trail("a captured value"))
        problem = self.problem_with(value, self.door)
        if problem is not None:
            self.find("constant", f"a captured array, {describe(value)}, {problem}")
        self.constants[id(value)] = value
        return Value(ident=ident) if has_kind(value, jax.dtypes.prng_key) else _constant(value, ident)

    # Equations without programs

    def plain(self, equation, inputs: list[Value]) -> list[Value]:
        """An equation that computes its outputs from its inputs, and perhaps does something else."""
        groups, primitive = known(), equation.primitive
        self.check_effects(equation, inputs)
        if not any(primitive in group for group in (groups.first_order, groups.callbacks, SAMPLERS)):
            return self.unknown(equation, inputs)
        for constant in _captured(equation) if primitive in _COMBINING else ():
            self.constant(constant)
        loops = _NOWHERE.union(*(value.loops for value in inputs))
        names, parameters = tuple(value.ident for value in inputs), tuple(equation.params.values())
        count = range(len(equation.outvars))
        idents = [self.fresh() if equation.effects else self.ident(primitive, parameters, names, k) for k in count]
        if primitive in groups.keys.draws or primitive in SAMPLERS:
            return [self.draw(equation, inputs, idents[0], loops)]
        forms, secret = self.forms(equation, inputs, idents), any(value.secret for value in inputs)
        trail, one = self.trail_after(equation, inputs), len(idents) == 1
        key = key_of(equation, inputs) if secret and one else None
        number = integer_of(equation, inputs, self.devices) if one else None
        pieces: tuple[int, ...] = ()
        if primitive is named("concatenate") and all(np.shape(atom.aval)[-1] == 1 for atom in equation.invars):
            pieces = names if equation.params["dimension"] == len(equation.outvars[0].aval.shape) - 1 else ()
        bounds = bounds_of(primitive, inputs)
        return [
            Value(form, secret, key, number, bounds, ident, loops, trail, pieces) for form, ident in zip(forms, idents)
        ]

    def forms(self, equation, inputs: list[Value], idents) -> list[Form]:
        """How the outputs depend on rows."""
        primitive, count = equation.primitive, len(idents)
        if not count or all(value.form is None for value in inputs):
            return [None] * count
        if self.door is not None:
            return self.door.forms(self, equation, inputs, idents)
        chosen = primitive in _CHOSEN or (primitive is named("squeeze") and 0 not in equation.params["dimensions"])
        if chosen and isinstance(inputs[0].form, Raw) and all(value.form is None for value in inputs[1:]):
            return [_windowed(equation, inputs)] * count
        return [Lost("it is computed from private rows")] * count

    def trail_after(self, equation, inputs: list[Value]) -> Trail | None:
        """How secrets came to the outputs; inside the door, only to where their way was lost."""
        first = next((value for value in inputs if depends_on_rows(value.form)), None)
        first = first or next((value for value in inputs if value.secret), None)
        lost = next((value for value in inputs if isinstance(value.form, Lost)), None)
        if lost is not None and self.door is not None:
            return lost.trail
        return Trail(equation, first.trail) if first is not None else None

    def draw(self, equation, inputs: list[Value], ident: int, loops) -> Value:
        """Random numbers: public, as long as no noise is drawn from the same key."""
        source, form = inputs[0], None
        if any(depends_on_rows(value.form) for value in inputs):
            form = self.forms(equation, inputs, [ident])[0]
        if source.secret and source.key is None:
            self.find("key reuse", "a draw is made from a key that cannot be followed", Trail(equation, source.trail))
        elif source.secret:
            in_door = self.door is not None
            use = Use(source.key, ident, equation, self.branches, self.scope, in_door=in_door, loops=loops)
            self.uses.append(use)
        if source.secret and self.door is not None and form is None:
            form = self.door.drawn(equation, source, ident)
        trail = self.trail_after(equation, inputs) if depends_on_rows(form) else None
        return Value(form, ident=ident, loops=loops, trail=trail)

    def check_effects(self, equation, inputs: list[Value]) -> None:
        """Refuse what is done with secrets, or depending on them; and take nothing from outside."""
        called = equation.primitive in known().callbacks
        effects = [effect for effect in equation.effects if type(effect).__name__ != "NamedAxisEffect"]
        if not (called or effects):
            return
        name, secret = equation.primitive.name, next((v for v in inputs if _is_secret(v)), None)
        if secret is not None:
            what = "key material" if secret.secret else "private rows"
            self.find("effect", f"{name} is given {what}", Trail(equation, secret.trail))
        elif self.control:
            self.find("effect", f"it depends on a secret whether {name} runs", Trail(equation, self.control[-1]))
        if called and equation.outvars and self.problem_with(None, None) is not None:
            self.find("constant", f"what {name} returns may hold private values", Trail(equation))

    def unknown(self, equation, inputs: list[Value]) -> list[Value]:
        """A primitive that is not JAX's own, or holds programs, functions or arrays in a way that is not known here."""
        for constant in _captured(equation):
            self.constant(constant)
        trail, name, secrets = self.trail_after(equation, inputs), equation.primitive.name, any(map(_is_secret, inputs))
        if secrets:
            self.find("unknown", f"{name} is not known here: what it does with secrets cannot be followed", trail)
        elif self.problem_with(None, None) is not None:
            self.find("unknown", f"{name} is not known here: what it returns may hold private values", Trail(equation))
        if not secrets:
            return [Value(ident=self.fresh()) for _ in equation.outvars]
        secret, lost = any(value.secret for value in inputs), Lost("it went through an unknown operation")
        return [Value(lost, secret, ident=self.fresh(), trail=trail) for _ in equation.outvars]


def describe(value) -> str:
    """Shape and type of a captured array."""
    return f"{np.shape(value)} {getattr(value, 'dtype', type(value).__name__)}"


def _windowed(equation, inputs: list[Value]) -> Raw:
    """Private rows, or the part of them that a slice leaves."""
    form, parameters = inputs[0].form, equation.params
    length, new_length = (np.shape(v.aval)[:1] for v in (equation.invars[0], equation.outvars[0]))
    if length == new_length:
        return form
    strides = parameters.get("strides") or (1,)
    how: Hashable = inputs[1].ident if len(inputs) > 1 else (parameters["start_indices"][0], strides[0])
    return replace(form, window=(*form.window, (how, *new_length)))


def _is_secret(value: Value) -> bool:
    return value.secret or depends_on_rows(value.form)


def _constant(value, ident: int) -> Value:
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iufb" or not numbers.size or np.isnan(numbers).any():
        return Value(ident=ident)
    low, high = float(numbers.min()), float(numbers.max())
    exact = Number(None, int(low)) if numbers.dtype.kind in "iu" and low == high else None
    return Value(number=exact, bounds=(low, high), ident=ident)


def _captured(equation) -> Iterator:
    """Arrays captured by the programs in an equation's parameters, and in theirs."""
    for program in programs_in(equation):
        yield from getattr(program, "consts", ())
        for inner in jaxpr_of(program).eqns:
            yield from _captured(inner)
