"""The abstract interpreter: one transfer function for each kind of equation, from what is known of its inputs."""

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from dpppl.information_flow import control, keys, numbers
from dpppl.information_flow.keys import Use
from dpppl.information_flow.lattice import (
    LOST,
    Affine,
    Base,
    Data,
    Key,
    Number,
    Trail,
    Value,
    Variable,
    affine,
    join_keys,
    renamed,
    renamed_key,
)
from dpppl.information_flow.messages import Finding, describe
from dpppl.information_flow.primitives import (
    constants_in,
    contents,
    effects_of,
    equations_in,
    has_named_generator,
    is_key,
    jaxpr_of,
    known,
    named,
    programs_in,
)

_TABLE = 64
"""The size of JAX's own tables, at most."""


class Roles(NamedTuple):
    """What a door's operands are, by number: `rows`, `key`, `step`; the others must be public. `chains`: for each
    vectorised axis, from the innermost, which operands have a leading axis for it. `streams`: the numbers that an
    access folds into its key, before the step. `program`: of one row, for the arrays that it captured."""

    rows: tuple[int, ...]
    key: int
    step: int
    chains: tuple[tuple[bool, ...], ...]
    streams: tuple[int, ...]
    program: Any


class Walk:
    """One pass over a program. `doors`: by primitive, the roles of its operands, from its parameters;
    `problem_with(value)`: why a captured array is refused, or None.

    Found on the way: `findings`; `uses` of keys; `doors_met`; `constants`, captured arrays. Where the pass is:
    `variables` of the loops, devices and chains around, `branches` around, `control`: secrets that decide whether this
    part runs, `place`: the number of the call. `lengths`: how many values variables have."""

    def __init__(self, doors: Mapping[Any, Callable[[Any], Roles]], problem_with: Callable[[Any], str | None]) -> None:
        self.doors, self.problem_with = doors, problem_with
        self.findings: list[Finding] = []
        self.uses: list[Use] = []
        self.doors_met: set[int] = set()
        self.equations: set[int] = set()
        self.constants: dict[int, Any] = {}
        self.variables: frozenset[Variable] = frozenset()
        self.branches: tuple[Any, ...] = ()
        self.control: tuple[Trail, ...] = ()
        self.devices: dict[Hashable, Variable] = {}
        self.place = 0
        self.lengths: dict[Variable, int | None] = {}
        self._places: dict[Hashable, int] = {}

    def at(self, *what: Hashable) -> int:
        """A number for a place: this call, and what of it."""
        return self._places.setdefault((self.place, *what), len(self._places) + 1)

    @contextmanager
    def within(self, **context: Any) -> Iterator[None]:
        """Around a part of the program: another `place`, `variables`, `branches`, `control` or `devices`."""
        before = {name: getattr(self, name) for name in context}
        vars(self).update(context)
        yield
        vars(self).update(before)

    def find(self, kind: str, what: str, trail: Trail | None = None) -> None:
        """Note a finding, once."""
        if all((kind, what) != (finding.kind, finding.what) for finding in self.findings):
            self.findings.append(Finding(kind, what, trail))

    # Programs

    def program(self, program: Any, inputs: list[Value]) -> list[Value]:
        """A jaxpr, closed or open: its outputs."""
        jaxpr = jaxpr_of(program)
        environment: dict[Any, Value] = dict(zip(jaxpr.invars, inputs))
        environment.update(zip(jaxpr.constvars, map(self.constant, getattr(program, "consts", ()))))

        def read(atom: Any) -> Value:
            return self.literal(atom) if isinstance(atom, Literal) else environment[atom]

        for equation in jaxpr.eqns:
            self.equations.add(id(equation))
            outputs = self.equation(equation, [read(atom) for atom in equation.invars])
            environment.update(zip(equation.outvars, outputs))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """One equation: its outputs."""
        primitive, groups = equation.primitive, known()
        if primitive in self.doors:
            return self.through_door(equation, inputs)
        if primitive in groups.calls:
            return self.call(equation, inputs)
        if primitive in groups.loops:
            return control.LOOPS[primitive](self, equation, inputs)
        if primitive in groups.shard_map:
            return control.sharded(self, equation, inputs)
        self.check_effects(equation, inputs)
        if primitive not in groups.plain | groups.callbacks:
            return self.unknown(equation, inputs)
        if primitive in groups.identities:
            return inputs
        for program in programs_in(equation):  # that combine two elements
            for inner in equations_in(program):
                if inner.primitive in groups.callbacks or effects_of(inner):
                    self.find("effect", f"what combines elements in {primitive.name} has effects", Trail(equation))
            for constant in constants_in(program):
                self.constant(constant)
        if primitive in groups.keys.draws:
            return [self.draw(equation, inputs)]
        return self.plain(equation, inputs)

    def call(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """A call of one program with the equation's inputs."""
        names = [n for n in ("jaxpr", "call_jaxpr", "fun_jaxpr") if jaxpr_of(equation.params.get(n)) is not None]
        if not names or len(jaxpr_of(equation.params[names[0]]).invars) != len(inputs):
            return self.unknown(equation, inputs)
        with self.within(place=self.at(id(equation))):
            return self.program(equation.params[names[0]], inputs)

    # Values that stand in the program

    def literal(self, literal: Any) -> Value:
        """A number in the program text, or an array there."""
        if np.size(literal.val) > 1 or is_key(literal.aval):
            return self.constant(literal.val)
        if not numbers.bits_of(literal.aval):
            return Value()
        return Value(number=numbers.constant(np.asarray(literal.val, literal.aval.dtype)))

    def constant(self, value: Any) -> Value:
        """An array that the program captured."""
        array = None if is_key(value) else np.asarray(value)
        if array is None or array.size > _TABLE or contents(array) not in known().tables:
            problem = self.problem_with(value)
            if problem is not None:
                self.find("constant", f"a captured array, {describe(value)}, {problem}")
            self.constants[id(value)] = value
        if array is None:
            return Value()
        return self.settled(Value(number=numbers.constant(array)), array, ("constant", id(value)))

    def settled(self, value: Value, aval: Any, *what: Hashable) -> Value:
        """A value whose number, where it is an integer, has a name at least."""
        bits = numbers.bits_of(aval)
        if value.number is not None or not bits:
            return value
        return value._replace(number=self.named(aval, bits, self.at(*what), self.variables))

    def named(self, aval: Any, bits: int, name: Hashable, variables: frozenset[Variable]) -> Number:
        """An unknown integer of this name, another one in each turn and for each element."""
        around = [*sorted(variables, key=repr), *(("axis", k) for k in range(len(np.shape(aval))))]
        return Number(Base(name, tuple(affine(0, {variable: 1}) for variable in around)), affine(0), bits)

    # Equations without programs

    def plain(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """Outputs that are computed from the inputs, and nothing else."""
        primitive = equation.primitive
        if primitive is named("select_n") and inputs[0].truth is not None and not inputs[0].is_secret:
            return [inputs[1 + inputs[0].truth]]
        public = all(value.data is Data.PUBLIC for value in inputs)
        if primitive is named("convert_element_type") and inputs[0].data is Data.ROWS:
            if equation.invars[0].aval.dtype == equation.outvars[0].aval.dtype:
                return inputs
        shared = Value(data=Data.PUBLIC if public else Data.DERIVED, trail=self.trail_after(equation, inputs))
        if any(value.key is not None for value in inputs):
            shared = shared._replace(key=LOST)
        if len(equation.outvars) != 1:
            return [self.settled(shared, v.aval, id(equation), k) for k, v in enumerate(equation.outvars)]
        rule, aval = numbers.rearrangement(equation, inputs, self.lengths), equation.outvars[0].aval
        number = renamed(inputs[0].number, rule) if rule else numbers.computed(equation, inputs, self.lengths)
        if primitive is named("axis_index"):
            number = self._device_index(equation)
        truth, below = numbers.truth(equation, inputs, self.lengths), numbers.below(equation, inputs)
        if rule is not None:
            truth = inputs[0].truth
        if primitive is named("and"):
            below = inputs[0].below or inputs[1].below
        key = None if shared.key is None else self.key_after(equation, inputs, rule)
        value = shared._replace(key=key, number=number, truth=truth, below=below)
        return [self.settled(value, aval, id(equation), 0)]

    def key_after(self, equation: Any, inputs: list[Value], rule: Any) -> Key:
        """Which key an equation makes, some of whose inputs are secret."""
        first = inputs[0].key
        if rule is not None and first is not None and all(value.key is None for value in inputs[1:]):
            if first.words and not keys.keeps_words(equation, rule):
                return LOST
            return renamed_key(first, rule) or LOST
        key = keys.derived(equation, inputs)
        arrays = [value for value, atom in zip(inputs, equation.invars) if is_key(atom.aval)]
        chosen = arrays and all(is_key(v.aval) for v in equation.outvars)
        if key != LOST or not chosen or any(value.key is not None for value in inputs if value not in arrays):
            return key
        one = functools.reduce(join_keys, (value.key for value in arrays))  # one of the keys that went in
        one = renamed_key(one, lambda variable: None if variable[0] == "axis" else affine(0, {variable: 1}))
        return LOST if one is None else one._replace(exact=False)

    def _device_index(self, equation: Any) -> Number | None:
        variable, bits = self.devices.get(equation.params["axis_name"]), numbers.bits_of(equation.outvars[0].aval)
        return None if variable is None else Number(None, affine(0, {variable: 1}), bits)

    def trail_after(self, equation: Any, inputs: list[Value]) -> Trail | None:
        """How secrets came to the outputs."""
        secret = [value for value in inputs if value.data is not Data.PUBLIC]
        secret += [value for value in inputs if value.key is not None]
        return Trail(equation, secret[0].trail) if secret else None

    def use(self, key: Key, aval: Any, equation: Any, *what: Hashable) -> None:
        """Note that something is drawn from a key, or keys, other than by an access."""
        names: dict[Variable, Variable] = {}
        for k, length in enumerate(np.shape(aval)):
            names["axis", k] = ("element", self.at(id(equation), *what), k)
            self.lengths[names["axis", k]] = length
        key_ = renamed_key(key, lambda variable: affine(0, {names.get(variable, variable): 1})) or LOST
        self.uses.append(Use(key=key_, equation=equation, variables=self.variables, branches=self.branches))

    def draw(self, equation: Any, inputs: list[Value]) -> Value:
        """Random numbers: public, as long as no access has to do with their key."""
        if inputs[0].key is not None:
            self.use(inputs[0].key, equation.invars[0].aval, equation)
        derived = any(value.data is not Data.PUBLIC for value in inputs)
        value = Value(Data.DERIVED, trail=self.trail_after(equation, inputs)) if derived else Value()
        return self.settled(value, equation.outvars[0].aval, id(equation), 0)

    # Doors

    def through_door(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """An access: rows as they are, nothing else that depends on them, and a key and step of its own."""
        roles, place = self.doors[equation.primitive](equation.params), self.at(id(equation))
        self.doors_met.add(place)
        self.equations.update(map(id, equations_in(roles.program)))
        for constant in constants_in(roles.program):
            self.constant(constant)
        spreads = {inputs[k].spread for k in roles.rows if inputs[k].data is Data.ROWS}
        for k, value in enumerate(inputs):
            if k in roles.rows and value.data is Data.DERIVED:
                self.find("door", "what enters an access as rows was computed from private rows. Work on one row belongs "
                          "into the log likelihood, which is given each row by itself; what looks at several rows is an "
                          "access of its own", Trail(equation, value.trail))  # fmt: skip
            elif k not in roles.rows and value.data is not Data.PUBLIC:
                self.find("door", "an access is given private rows beside its rows: every row's part would depend on them",
                          Trail(equation, value.trail))  # fmt: skip
        if len(spreads) > 1:
            self.find("door", "the private arrays of an access are dealt out to devices differently", Trail(equation))
        chains: list[Variable] = [("chain", place, number) for number in range(len(roles.chains))]
        for number, (variable, level) in enumerate(zip(chains, roles.chains)):
            first = level.index(True)
            outer = sum(other[first] for other in roles.chains[number + 1 :])
            self.lengths[variable] = equation.invars[first].aval.shape[outer]
        for k, value in enumerate(inputs):
            if value.key is not None and k != roles.key:
                self.use(value.key, equation.invars[k].aval, equation, k)

        def chain(k: int) -> Callable[[Variable], Affine]:
            own = [variable for variable, level in zip(chains, roles.chains) if level[k]]
            names: dict[Variable, Variable] = {("axis", axis): v for axis, v in enumerate(reversed(own))}
            return lambda variable: affine(0, {names.get(variable, variable): 1})

        key, step = (
            renamed_key(inputs[roles.key].key, chain(roles.key)),
            renamed(inputs[roles.step].number, chain(roles.step)),
        )
        with self.within(variables=self.variables | set(chains)):
            self.access(equation, roles, key, step, inputs[roles.key].trail)
        return [self.settled(Value(), v.aval, id(equation), k) for k, v in enumerate(equation.outvars)]

    def access(self, equation: Any, roles: Roles, key: Key | None, step: Number | None, trail: Trail | None) -> None:
        """Note the key of an access."""
        if key is None:
            self.find("noise", "an access has no secret key: its sum would leave without noise", Trail(equation))
        elif not is_key(equation.invars[roles.key].aval) or not has_named_generator(equation.invars[roles.key].aval):
            self.find("noise", "the key of an access is of another generator than threefry2x32 or ChaCha20: its children may "
                      "be related", Trail(equation, trail))  # fmt: skip
        elif not key.exact:
            self.find("key reuse", "the key of an access cannot be followed. Make it by fold_in, split and indexing with "
                      "constants and counters; do not carry a key that changes through a loop, but one key and a step that "
                      "counts, or loop over jax.random.split(key, n)", Trail(equation, trail))  # fmt: skip
        elif step is None:
            self.find("key reuse", "the step of an access is no integer", Trail(equation))
        else:
            self.uses.append(
                Use(key=key, equation=equation, step=step, streams=roles.streams, variables=self.variables,
                    branches=self.branches)
            )  # fmt: skip

    # Effects, and what is not known

    def check_effects(self, equation: Any, inputs: list[Value]) -> None:
        """Refuse what is done with secrets, or depending on them; and take nothing from outside."""
        called = equation.primitive in known().callbacks
        if not (called or effects_of(equation)):
            return
        name, secret = equation.primitive.name, next((value for value in inputs if value.is_secret), None)
        if secret is not None:
            what = "key material" if secret.key is not None else "private rows"
            self.find("effect", f"{name} is given {what}", Trail(equation, secret.trail))
        elif self.control:
            self.find("effect", f"it depends on a secret whether {name} runs", Trail(equation, self.control[-1]))
        elif not called:
            self.find("effect", f"{name} has effects that cannot be followed: pass values on as arguments and results",
                      Trail(equation))  # fmt: skip
        elif equation.outvars:
            self.find("constant", f"what {name} returns comes from outside of the program and may hold private values: "
                      "compute it before, and pass it as an argument", Trail(equation))  # fmt: skip

    def unknown(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """A primitive that is not JAX's own, or holds programs, functions or arrays in a way that is not known here."""
        for program in programs_in(equation):
            for constant in constants_in(program):
                self.constant(constant)
        trail, name = self.trail_after(equation, inputs), equation.primitive.name
        if trail is not None:
            self.find("unknown", f"{name} is not known here: what it does with secrets cannot be followed", trail)
        elif self.problem_with(None) is not None:
            self.find("unknown", f"{name} is not known here: what it returns may hold private values", Trail(equation))
        lost = LOST if any(value.key is not None for value in inputs) else None
        data = Data.DERIVED if any(value.data is not Data.PUBLIC for value in inputs) else Data.PUBLIC
        value = Value(data, key=lost, trail=trail)
        return [self.settled(value, v.aval, id(equation), k) for k, v in enumerate(equation.outvars)]
