"""The abstract interpreter: abstract values of outputs from those of inputs, equation by equation, and findings on the way.

Loops are followed to a fixed point. Branches, and all other primitives that hold programs, may only compute.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer
from jax.extend.core import Literal

from dpppl import jaxprs
from dpppl.information_flow.findings import CURE, Finding, describe, problem_with
from dpppl.information_flow.lattice import (
    LOST,
    Data,
    Key,
    Names,
    Number,
    Trail,
    Use,
    Value,
    Variable,
    axis,
    counter,
    join,
    number_of,
    unknown,
)  # fmt: skip
from dpppl.information_flow.rules import (
    RULES,
    Kind,
    constant,
    effects_of,
    is_followed,
    is_table,
    is_unset,
    kind_of,
    named,
    other_generators,
)  # fmt: skip
from dpppl.jaxprs import is_key
from dpppl.types import Equation, Traced, Tree

_COMPUTED = (
    "rows that enter an access were computed from private rows, or are sharded over devices although each device needs all "
    "of them. Work on one row belongs in the log likelihood, which gets each row by itself; a computation on several rows is "
    "an access of its own"
)
_ROWS_AMONG_OPERANDS = (
    "an access gets private rows in addition to its own: every row's contribution would depend on them"
)


def call(walk: "Walk", equation: Equation, inputs: list[Value]) -> list[Value]:
    """A call of one program with the equation's inputs."""
    programs = list(jaxprs.programs(equation))
    if len(programs) != 1 or len(jaxprs.open_jaxpr(programs[0]).invars) != len(inputs):
        return list(walk.unknown(equation, inputs))
    return list(walk.program(programs[0], inputs))


# Loops


def scan(walk: "Walk", equation: Equation, inputs: list[Value]) -> list[Value]:
    """`lax.scan`, and `lax.fori_loop` where the number of iterations is known. Backwards, slices are not followed."""
    program, length = equation.params["jaxpr"], equation.params["length"]
    iteration, (num_consts, num_carry) = counter(length), jaxprs.scan_parts(equation)
    end = num_consts + num_carry
    slices = [
        value.lost() if equation.params["reverse"] else value.renamed(_inside(atom, iteration)).derived()
        for value, atom in zip(inputs[end:], equation.invars[end:])
    ]

    def run(state: list[Value]) -> list[Value]:
        return list(walk.program(program, [*inputs[:num_consts], *state, *slices]))

    state, stacked = _follow(walk, equation, iteration, inputs[num_consts:end], run)
    return [*(value.renamed({iteration: Number(length)}) for value in state), *(value.lost() for value in stacked)]


def _inside(atom: Any, iteration: Variable) -> Names:
    """The axes of an array, inside a loop over the first one."""
    return {axis(k): number_of(axis(k - 1)) for k in range(len(np.shape(atom.aval)))} | {axis(0): number_of(iteration)}


def while_loop(walk: "Walk", equation: Equation, inputs: list[Value]) -> list[Value]:
    """`lax.while_loop`, and `lax.fori_loop` where the number of iterations is not known: then numbers are counted."""
    parameters, counting = equation.params, _counter(equation)
    num_cond, num_body = parameters["cond_nconsts"], parameters["body_nconsts"]
    for_body, state = inputs[num_cond : num_cond + num_body], inputs[num_cond + num_body :]
    # A number that moves by 1 and stays below another one cannot pass it, nor wrap.
    iteration = counter(None if counting is None else 256 ** equation.outvars[counting].aval.dtype.itemsize)

    def run(state: list[Value]) -> list[Value]:
        return list(walk.program(parameters["body_jaxpr"], [*for_body, *state]))

    state, _ = _follow(walk, equation, iteration, state, run, counting)
    walk.only_computes(equation, parameters["cond_jaxpr"])
    (predicate,) = walk.program(parameters["cond_jaxpr"], [*inputs[:num_cond], *state])
    if predicate.is_secret:
        walk.only_computes(equation, parameters["body_jaxpr"])
        kind, what = ("key", "a key") if predicate.data is Data.PUBLIC else ("rows", "a private row")
        walk.find(kind, f"{what} decides when a loop ends, or whether", Trail(equation, predicate.trail))
    return [value.renamed({iteration: None}) for value in state]


def _counter(equation: Equation) -> int | None:
    """The place in the state of a number that the loop's condition says is below one that stands still, and no more."""
    condition, body = (jaxprs.open_jaxpr(equation.params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
    num_cond, num_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    if [inner.primitive for inner in condition.eqns] != [named("lt")] or condition.outvars != condition.eqns[0].outvars:
        return None
    state = condition.invars[num_cond:]
    still = [v for v, out, given in zip(state, body.outvars, body.invars[num_body:]) if out is given]
    number, limit = condition.eqns[0].invars
    if number not in state or not (jaxprs.is_literal(limit) or limit in condition.invars[:num_cond] or limit in still):
        return None
    return int(state.index(number)) if is_followed(number.aval) else None


def _follow(
    walk: "Walk", equation: Equation, iteration: Variable, carry: list[Value], run: Callable[[list[Value]], list[Value]],
    counting: int | None = None,
) -> tuple[list[Value], list[Value]]:  # fmt: skip
    """Interpret the loop's body until a fixed point: the state at the start of an iteration, and the body's other outputs.

    - **iteration** - the loop's counter.
    - **carry** - the state before the loop.
    - **run** - the body: from the state to its outputs.
    - **counting** - the place in the state of an integer that ends the loop before `iteration` does, if it moves by 1.

    The first pass takes integers in the state for any number, and finds by how much an iteration moves each: if by 0, it is
    constant; if by 1, it is its start plus `iteration`."""
    mark, atoms = (len(walk.uses), len(walk.findings)), [v.aval for v in equation.outvars[: len(carry)]]
    labels, numbers, moves = carry, [unknown(len(a.shape)) if is_followed(a) else None for a in atoms], None
    with walk.within(iteration):
        while True:
            del walk.uses[mark[0] :], walk.findings[mark[1] :]
            state = [value._replace(number=number) for value, number in zip(labels, numbers)]
            outputs = run(state)
            following = [join(value, output) for value, output in zip(labels, outputs)]
            if moves is not None and all(a[:2] == b[:2] for a, b in zip(following, labels)):
                return state, outputs[len(carry) :]
            if moves is None:
                moves = [_move(number, value.number) for number, value in zip(numbers, outputs)]
                ends = iteration.length is not None and (counting is None or moves[counting] == 1)
                added = [
                    Number(0) if move == 0 else number_of(iteration) if move == 1 and ends else None for move in moves
                ]
                numbers = [value.number and more and value.number.plus(more) for value, more in zip(carry, added)]
            labels = following


def _move(before: Number | None, after: Number | None) -> int | None:
    """By how much an iteration moves a number, whatever it was."""
    return after.offset - before.offset if before and after and before.terms == after.terms else None


# Devices


def devices(walk: "Walk", equation: Equation, inputs: list[Value]) -> list[Value]:
    """`jax.shard_map` and `jax.pmap`: a program that runs on every device of a mesh, with all of an array, or with one element
    each along its first axis. Other shardings are not followed."""
    parameters, program, sizes = equation.params, equation.params["jaxpr"], dict(equation.params["mesh"].shape)
    manual = parameters.get("newly_manual_axes", parameters.get("manual_axes", sizes))
    numbers = {name: counter(size) for name, size in sizes.items() if name in manual}

    def part(value: Value, spec: Any, atom: Any) -> Value:
        dealt = {k: names if isinstance(names, tuple) else (names,) for k, names in enumerate(spec) if names}
        if not dealt:
            return value
        if set(dealt) != {0} or len(dealt[0]) != 1 or dealt[0][0] not in numbers or atom.aval.shape[0] != 1:
            return value.lost()
        return value.derived().renamed({axis(0): number_of(numbers[dealt[0][0]])})

    with walk.within(*numbers.values()):
        given = zip(inputs, parameters["in_specs"], jaxprs.open_jaxpr(program).invars)
        outputs = walk.program(program, [part(*one) for one in given])
    return [value.lost() for value in outputs]


CONTROL: dict[Kind, Callable[["Walk", Equation, list[Value]], list[Value]]] = {
    Kind.CALL: call, Kind.SCAN: scan, Kind.WHILE: while_loop, Kind.DEVICES: devices,
}  # fmt: skip


class Roles(NamedTuple):
    """The roles of a door's operands, by number; all others must be public.

    - **rows** - the private arrays.
    - **key** - the access's key.
    - **step** - the number of the access.
    - **chains** - the number of leading axes of key and step.
    - **streams** - the numbers that an access folds into its key, before the step.
    - **program** - that of one row."""

    rows: tuple[int, ...]
    key: int
    step: int
    chains: int
    streams: tuple[int, ...]
    program: Traced


class Walk:
    """The abstract interpreter, in one pass over a program.

    - **doors** - by primitive, the roles of its operands, from its parameters.
    - **problem_with** - of a captured array: why it is refused, or None.
    - **variables** - counters of the loops, devices and chains around."""

    def __init__(self, doors: Mapping[Any, Callable[[Any], Roles]], problem_with: Callable[[Any], str | None]) -> None:
        self.doors, self.problem_with = doors, problem_with
        self.findings: list[Finding] = []
        self.uses: list[Use] = []
        self.constants: dict[int, Any] = {}
        self.variables: frozenset[Variable] = frozenset()

    @contextmanager
    def within(self, *variables: Variable) -> Iterator[None]:
        """Around a part of the program that runs once for each of their values."""
        before, self.variables = self.variables, self.variables | set(variables)
        yield
        self.variables = before

    def find(self, kind: str, what: str, trail: Trail | None = None) -> None:
        """Note a finding, once."""
        if all((kind, what) != (finding.kind, finding.what) for finding in self.findings):
            self.findings.append(Finding(kind, what, trail))

    def programs(self, equation: Equation) -> list[Tree]:
        """The programs in an equation, also that of a row."""
        own = [self.doors[equation.primitive](equation.params).program] if equation.primitive in self.doors else []
        return [*own, *jaxprs.programs(equation)]

    def program(self, program: Traced, inputs: Sequence[Value]) -> list[Value]:
        """A jaxpr, closed or open: its outputs."""
        jaxpr = jaxprs.open_jaxpr(program)
        values = dict(zip(jaxpr.invars, inputs, strict=True))
        values.update(zip(jaxpr.constvars, map(self.constant, getattr(program, "consts", ())), strict=True))
        read = lambda atom: self.literal(atom) if isinstance(atom, Literal) else values[atom]  # noqa: E731
        for equation in jaxpr.eqns:
            outputs = self.equation(equation, [*map(read, equation.invars)])
            values.update(zip(equation.outvars, outputs, strict=True))
        return [*map(read, jaxpr.outvars)]

    def equation(self, equation: Equation, inputs: list[Value]) -> list[Value]:
        """One equation: its outputs."""
        self.check_generators(equation)
        if equation.primitive in self.doors:
            return self.through_door(equation, inputs)
        kind = kind_of(equation.primitive)
        if kind in CONTROL:
            return CONTROL[kind](self, equation, inputs)
        self.check_effects(equation, inputs)
        if kind is Kind.IDENTITY:
            return inputs
        if kind is Kind.DRAW:
            return [self.draw(equation, inputs)]
        return self.unknown(equation, inputs) if kind is Kind.UNKNOWN else self.plain(equation, inputs)

    def literal(self, literal: Any) -> Value:
        """A number in the program text, or an array there."""
        if np.size(literal.val) != 1 or is_key(literal.aval):
            return self.constant(literal.val)
        return Value(number=constant(np.asarray(literal.val, literal.aval.dtype)))

    def constant(self, value: Tree) -> Value:
        """An array that the program captured."""
        if not is_table(value):
            problem = self.problem_with(value)
            if problem is not None:
                self.find("constant", f"a captured array, {describe(value)}, {problem}")
            self.constants[id(value)] = value
        return Value(number=constant(value))

    def plain(self, equation: Equation, inputs: Sequence[Value]) -> list[Value]:
        """Outputs that are computed from the inputs, and nothing else."""
        for program in jaxprs.programs(equation):  # that combine two elements, solve, or are branches
            self.only_computes(equation, program)
        data = Data.PUBLIC if all(value.data is Data.PUBLIC for value in inputs) else Data.DERIVED
        key = LOST if any(value.key is not None for value in inputs) else None
        rule, shared = RULES.get(equation.primitive), Value(data, key, None, self.trail_after(equation, inputs))
        if rule is None or any(value.key is not None for value in inputs[1:]):
            return [shared] * len(equation.outvars)
        found = rule(equation, inputs)
        each = found if isinstance(found, list) else [found]
        return [shared._replace(key=key and known, number=number) for number, known in each]

    def only_computes(self, equation: Equation, program: Traced) -> None:
        """Refuse more than computing, in a part of a program of which it is not followed how often it runs."""
        within, trail = equation.primitive.name, Trail(equation)
        for inner in jaxprs.equations(program):
            is_access = inner.primitive in self.doors
            if is_access or kind_of(inner.primitive) is Kind.DRAW:
                self.find("key reuse", f"there is an access or a draw within {within}, a branch, condition or operation: "
                          "make it outside, always, and choose between results by jax.numpy.where", trail)  # fmt: skip
            problem = None if is_access else problem_with(inner)
            if problem is not None:
                self.find(problem[0], f"{within} calls {inner.primitive.name}{problem[1]}", trail)
        for value in jaxprs.constants(program):
            self.constant(value)

    def trail_after(self, equation: Equation, inputs: Sequence[Value]) -> Trail | None:
        """How secrets came to the outputs: private rows, else keys."""
        secret = sorted((value for value in inputs if value.is_secret), key=lambda value: value.data is Data.PUBLIC)
        return Trail(equation, secret[0].trail) if secret else None

    def check_generators(self, equation: Equation) -> None:
        """Refuse keys of generators that are not known by name, also public ones."""
        if other_generators(equation):
            self.find("noise", f"{equation.primitive.name} has a key of another generator than threefry2x32 or ChaCha20: its "
                      "children may be related, and what it draws is not in the program. Use keys of dpppl.secret_key() or "
                      "jax.random.key(seed, impl='threefry2x32')", Trail(equation))  # fmt: skip

    def use(self, key: Key, aval: Any, equation: Equation) -> None:
        """Note that something is drawn from a key, or keys, other than by an access."""
        names: Names = {axis(k): number_of(counter(length)) for k, length in enumerate(np.shape(aval))}
        self.uses.append(Use(key.renamed(names), equation, self.variables))

    def draw(self, equation: Equation, inputs: Sequence[Value]) -> Value:
        """Random numbers: public, as long as no access has to do with their key."""
        if inputs[0].key is not None:
            self.use(inputs[0].key, equation.invars[0].aval, equation)
        public = all(value.data is Data.PUBLIC for value in inputs)
        return Value() if public else Value(Data.DERIVED, trail=self.trail_after(equation, inputs))

    def through_door(self, equation: Equation, inputs: Sequence[Value]) -> list[Value]:
        """An access: rows as they are, nothing else that depends on them, and a key and step of its own."""
        roles = self.doors[equation.primitive](equation.params)
        for value in jaxprs.constants(roles.program):
            if not isinstance(value, Tracer):  # which is an operand
                self.constant(value)
        for k, value in enumerate(inputs):
            if k in roles.rows and value.data is Data.DERIVED:
                self.find("door", _COMPUTED, Trail(equation, value.trail))
            elif k not in roles.rows and value.data is not Data.PUBLIC:
                self.find("door", _ROWS_AMONG_OPERANDS, Trail(equation, value.trail))
            if value.key is not None and k != roles.key:
                self.use(value.key, equation.invars[k].aval, equation)
        chains = [counter(length) for length in np.shape(equation.invars[roles.key].aval)[: roles.chains]]
        names: Names = {axis(k): number_of(chain) for k, chain in enumerate(chains)}
        key, step = (inputs[k].renamed(names) for k in (roles.key, roles.step))
        with self.within(*chains):
            self.access(equation, roles, key, step.number)
        return [Value()] * len(equation.outvars)

    def access(self, equation: Equation, roles: Roles, secret: Value, step: Number | None) -> None:
        """Note the key of an access."""
        if secret.key is None:
            self.find("noise", "an access has no secret key: its sum would leave without noise. Keys are arguments, and "
                      "typed: jax.random.key, dpppl.secret_key, jax.random.wrap_key_data outside", Trail(equation))  # fmt: skip
        elif secret.key == LOST:
            self.find("key reuse", f"the key of an access cannot be followed. {CURE}", Trail(equation, secret.trail))
        elif step is None:
            self.find("key reuse", f"the step of an access cannot be followed. {CURE}", Trail(equation))
        else:
            self.uses.append(Use(secret.key, equation, self.variables, step, roles.streams))

    def check_effects(self, equation: Equation, inputs: Sequence[Value]) -> None:
        """Refuse what is done with secrets; and take nothing from outside."""
        name, called = equation.primitive.name, kind_of(equation.primitive) is Kind.CALLBACK
        if is_unset(equation):
            self.find("effect", f"memory of {name} may hold anything: use jnp.zeros", Trail(equation))
        if not (called or effects_of(equation)):
            return
        secret = next((value for value in inputs if value.is_secret), None)
        if secret is not None:
            what = "key material" if secret.key is not None else "private rows"
            self.find("effect", f"{name} is given {what}", Trail(equation, secret.trail))
        elif not called:
            self.find("effect", f"{name} has effects that cannot be followed: pass values on as arguments and results",
                      Trail(equation))  # fmt: skip
        elif equation.outvars:
            self.find("constant", f"what {name} returns comes from outside of the program and may hold private values: "
                      "compute it before, and pass it as an argument", Trail(equation))  # fmt: skip

    def unknown(self, equation: Equation, inputs: Sequence[Value]) -> list[Value]:
        """A primitive that is not JAX's own, or holds programs, functions or arrays in a way that is not known here."""
        for program in jaxprs.programs(equation):
            for value in jaxprs.constants(program):
                self.constant(value)
        trail, name = self.trail_after(equation, inputs), equation.primitive.name
        if trail is not None:
            self.find("unknown", f"{name} is not known here: what it does with secrets cannot be followed", trail)
        else:
            self.find("unknown", f"{name} is not known here: what it returns may hold private values", Trail(equation))
        return [Value(Data.PUBLIC if trail is None else Data.DERIVED, trail=trail)] * len(equation.outvars)
