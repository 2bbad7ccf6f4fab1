"""The abstract interpreter: one transfer function for each kind of equation, from what is known of its inputs."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer
from jax.extend.core import Literal

from dpppl import jaxprs
from dpppl.information_flow import control, keys, numbers
from dpppl.information_flow.lattice import LOST, Data, Key, Names, Number, Trail, Value, Variable, multiple
from dpppl.information_flow.messages import Finding, describe
from dpppl.information_flow.primitives import Kind, effects_of, is_key, is_table, is_unset, kind_of, named


class Roles(NamedTuple):
    """What a door's operands are, by number: `rows`, `key`, `step`; the others must be public. `chains`: how many leading
    axes key and step have for vectorised accesses. `streams`: the numbers that an access folds into its key, before the
    step. `generators`: the types of keys whose children are unrelated. `program`: of one row, for what it captured."""

    rows: tuple[int, ...]
    key: int
    step: int
    chains: int
    streams: tuple[int, ...]
    generators: tuple[Any, ...]
    program: Any


class Walk:
    """One pass over a program. `doors`: by primitive, the roles of its operands, from its parameters;
    `problem_with(value)`: why a captured array is refused, or None.

    Found on the way: `findings`; `uses` of keys; `doors_met`; `constants`, captured arrays. Where the pass is:
    `variables` of the loops, devices and chains around; `control`: a secret that decides whether this part runs;
    `place`: the number of the call. `lengths`: how many values variables have."""

    def __init__(self, doors: Mapping[Any, Callable[[Any], Roles]], problem_with: Callable[[Any], str | None]) -> None:
        self.doors, self.problem_with = doors, problem_with
        self.findings: list[Finding] = []
        self.uses: list[keys.Use] = []
        self.doors_met: set[int] = set()
        self.equations: set[int] = set()
        self.constants: dict[int, Any] = {}
        self.variables: frozenset[Variable] = frozenset()
        self.control: Trail | None = None
        self.place = 0
        self.lengths: dict[Variable, int | None] = {}
        self._places: dict[Hashable, int] = {}

    def at(self, *what: Hashable) -> int:
        """A number for a place: this call, and what of it."""
        return self._places.setdefault((self.place, *what), len(self._places) + 1)

    def counter(self, length: int | None, *what: Hashable) -> Variable:
        """A variable of this place, with so many values."""
        variable = ("counter", self.at(*what))
        self.lengths[variable] = length
        return variable

    @contextmanager
    def within(self, **context: Any) -> Iterator[None]:
        """Around a part of the program: another `place`, `variables` or `control`."""
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
        jaxpr = jaxprs.open_jaxpr(program)
        environment: dict[Any, Value] = {}

        def write(variables: Any, values: Any, *where: Hashable) -> None:
            for k, (variable, value) in enumerate(zip(variables, values, strict=True)):
                environment[variable] = self.settled(value, variable.aval, *where, k)

        write(jaxpr.invars, inputs, "inputs")
        write(jaxpr.constvars, map(self.constant, getattr(program, "consts", ())), "constants")
        for equation in jaxpr.eqns:
            self.equations.add(id(equation))
            given = [self.literal(a) if isinstance(a, Literal) else environment[a] for a in equation.invars]
            write(equation.outvars, self.equation(equation, given), id(equation))
        return [self.literal(a) if isinstance(a, Literal) else environment[a] for a in jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """One equation: its outputs."""
        if equation.primitive in self.doors:
            return self.through_door(equation, inputs)
        kind = kind_of(equation.primitive)
        if kind in control.RULES:
            return control.RULES[kind](self, equation, inputs)
        self.check_effects(equation, inputs)
        if kind is Kind.IDENTITY:
            return inputs
        if kind is Kind.DRAW:
            return [self.draw(equation, inputs)]
        return self.unknown(equation, inputs) if kind is Kind.UNKNOWN else self.plain(equation, inputs)

    # Values that stand in the program

    def literal(self, literal: Any) -> Value:
        """A number in the program text, or an array there."""
        if np.size(literal.val) != 1 or is_key(literal.aval):
            return self.constant(literal.val)
        return Value(number=numbers.constant(np.asarray(literal.val, literal.aval.dtype)))

    def constant(self, value: Any) -> Value:
        """An array that the program captured."""
        if not is_table(value):
            problem = self.problem_with(value)
            if problem is not None:
                self.find("constant", f"a captured array, {describe(value)}, {problem}")
            self.constants[id(value)] = value
        return Value(number=numbers.constant(value))

    def settled(self, value: Value, aval: Any, *what: Hashable) -> Value:
        """A value whose number, where it is an integer, has a name at least: another one in each execution of this
        place, and for each element."""
        bits = numbers.bits_of(aval)
        if value.number is not None or not bits:
            return value
        around = [*sorted(self.variables, key=repr), *(("axis", k) for k in range(len(np.shape(aval))))]
        name = ("unknown", self.at(*what), tuple(map(multiple, around)))
        return value._replace(number=multiple(name)._replace(bits=bits))

    # Equations without programs

    def plain(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """Outputs that are computed from the inputs, and nothing else."""
        for program in jaxprs.programs(equation):  # that combine two elements, or solve
            self.check_within(equation, program)
        primitive, number = equation.primitive, inputs[0].number if inputs else None
        if primitive is named("select_n") and number is not None and not number.terms and number.bits == 1:
            if not inputs[0].is_secret:
                return [inputs[1 + number.offset]]
        if primitive is named("convert_element_type") and inputs[0].data is Data.ROWS:
            if equation.invars[0].aval.dtype == equation.outvars[0].aval.dtype:
                return inputs
        data = Data.PUBLIC if all(value.data is Data.PUBLIC for value in inputs) else Data.DERIVED
        key = LOST if any(value.key is not None for value in inputs) else None
        shared = Value(data, key=key, trail=self.trail_after(equation, inputs))
        names = numbers.rearrangements(equation, inputs, self.lengths)
        if names and all(value.key is None for value in inputs[1:]):
            raw = key is not None and not is_key(equation.invars[0].aval)
            parts = map(inputs[0].renamed, names)
            return [shared._replace(key=LOST if raw else part.key, number=part.number) for part in parts]
        if len(equation.outvars) != 1:
            return [shared] * len(equation.outvars)
        number, below = numbers.computed(equation, inputs, self.lengths), numbers.below(equation, inputs)
        return [shared._replace(key=key and keys.derived(equation, inputs), number=number, below=below)]

    def check_within(self, equation: Any, program: Any) -> None:
        """What programs inside an operation may do: compute."""
        for inner in jaxprs.equations(program):
            kind = kind_of(inner.primitive)
            if kind in (Kind.CALLBACK, Kind.DRAW, Kind.DEVICES, Kind.UNKNOWN) or effects_of(inner) or is_unset(inner):
                what = f"what {equation.primitive.name} does with elements calls {inner.primitive.name}: it may only compute"
                self.find("effect", what, Trail(equation))
        for constant in jaxprs.constants(program):
            self.constant(constant)

    def trail_after(self, equation: Any, inputs: list[Value]) -> Trail | None:
        """How secrets came to the outputs."""
        secret = [value for value in inputs if value.data is not Data.PUBLIC]
        secret += [value for value in inputs if value.key is not None]
        return Trail(equation, secret[0].trail) if secret else None

    def use(self, key: Key, aval: Any, equation: Any, *what: Hashable) -> None:
        """Note that something is drawn from a key, or keys, other than by an access."""
        elements = [self.counter(length, id(equation), *what, "axis", k) for k, length in enumerate(np.shape(aval))]
        key = key.renamed({("axis", k): multiple(element) for k, element in enumerate(elements)})
        self.uses.append(keys.Use(key=key, equation=equation, variables=self.variables))

    def draw(self, equation: Any, inputs: list[Value]) -> Value:
        """Random numbers: public, as long as no access has to do with their key."""
        if inputs[0].key is not None:
            self.use(inputs[0].key, equation.invars[0].aval, equation)
        if all(value.data is Data.PUBLIC for value in inputs):
            return Value()
        return Value(Data.DERIVED, trail=self.trail_after(equation, inputs))

    # Doors

    def through_door(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """An access: rows as they are, nothing else that depends on them, and a key and step of its own."""
        roles = self.doors[equation.primitive](equation.params)
        self.doors_met.add(self.at(id(equation)))
        self.equations.update(map(id, jaxprs.equations(roles.program)))
        for constant in jaxprs.constants(roles.program):
            if not isinstance(constant, Tracer):  # which is an operand
                self.constant(constant)
        for k, value in enumerate(inputs):
            if k in roles.rows and value.data is Data.DERIVED:
                self.find("door", "what enters an access as rows was computed from private rows. Work on one row belongs "
                          "into the log likelihood, which is given each row by itself; what looks at several rows is an "
                          "access of its own", Trail(equation, value.trail))  # fmt: skip
            elif k not in roles.rows and value.data is not Data.PUBLIC:
                self.find("door", "an access is given private rows beside its rows: every row's part would depend on them",
                          Trail(equation, value.trail))  # fmt: skip
            if value.key is not None and k != roles.key:
                self.use(value.key, equation.invars[k].aval, equation, k)
        lengths = np.shape(equation.invars[roles.key].aval)[: roles.chains]
        chains = [self.counter(length, id(equation), "chain", k) for k, length in enumerate(lengths)]
        names: Names = {("axis", k): multiple(chain) for k, chain in enumerate(chains)}
        key, step = (inputs[k].renamed(names) for k in (roles.key, roles.step))
        with self.within(variables=self.variables | set(chains)):
            self.access(equation, roles, key, step.number)
        return [Value()] * len(equation.outvars)

    def access(self, equation: Any, roles: Roles, secret: Value, step: Number | None) -> None:
        """Note the key of an access."""
        key = secret.key
        if key is None:
            self.find("noise", "an access has no secret key: its sum would leave without noise. Keys are arguments, and "
                      "typed: jax.random.key, dpppl.secret_key, jax.random.wrap_key_data(raw)", Trail(equation))  # fmt: skip
        elif equation.invars[roles.key].aval.dtype not in roles.generators:
            self.find("noise", "the key of an access is of another generator than threefry2x32 or ChaCha20: its children may "
                      "be related", Trail(equation, secret.trail))  # fmt: skip
        elif not key.exact:
            self.find("key reuse", "the key of an access cannot be followed. Make it by fold_in, split and indexing with "
                      "constants and counters; do not carry a key that changes through a loop, but one key and a step that "
                      "counts, or loop over jax.random.split(key, n); wrap raw keys first, jax.random.wrap_key_data(key)",
                      Trail(equation, secret.trail))  # fmt: skip
        elif step is None:
            self.find("key reuse", "the step of an access is no integer", Trail(equation))
        else:
            use = keys.Use(key=key, equation=equation, step=step, streams=roles.streams, variables=self.variables)
            self.uses.append(use)

    # Effects, and what is not known

    def check_effects(self, equation: Any, inputs: list[Value]) -> None:
        """Refuse what is done with secrets, or depending on them; and take nothing from outside."""
        called = kind_of(equation.primitive) is Kind.CALLBACK
        if is_unset(equation):
            self.find(
                "effect", f"memory of {equation.primitive.name} may hold anything: use jnp.zeros", Trail(equation)
            )
        if not (called or effects_of(equation)):
            return
        name, secret = equation.primitive.name, next((value for value in inputs if value.is_secret), None)
        if secret is not None:
            what = "key material" if secret.key is not None else "private rows"
            self.find("effect", f"{name} is given {what}", Trail(equation, secret.trail))
        elif self.control:
            self.find("effect", f"it depends on a secret whether {name} runs", Trail(equation, self.control))
        elif not called:
            self.find("effect", f"{name} has effects that cannot be followed: pass values on as arguments and results",
                      Trail(equation))  # fmt: skip
        elif equation.outvars:
            self.find("constant", f"what {name} returns comes from outside of the program and may hold private values: "
                      "compute it before, and pass it as an argument", Trail(equation))  # fmt: skip

    def unknown(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """A primitive that is not JAX's own, or holds programs, functions or arrays in a way that is not known here."""
        for program in jaxprs.programs(equation):
            for constant in jaxprs.constants(program):
                self.constant(constant)
        trail, name = self.trail_after(equation, inputs) or self.control, equation.primitive.name
        if trail is not None:
            self.find("unknown", f"{name} is not known here: what it does with secrets cannot be followed", trail)
        elif self.problem_with(None) is not None:
            self.find("unknown", f"{name} is not known here: what it returns may hold private values", Trail(equation))
        return [Value(Data.PUBLIC if trail is None else Data.DERIVED, trail=trail)] * len(equation.outvars)
