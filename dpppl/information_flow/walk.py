"""The abstract interpreter of the proof: abstract values of outputs from those of inputs, and findings on the way.

Loops are followed to a fixed point. Branches, and all other primitives that hold programs, may only compute.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from jax.core import Tracer
from jax.extend.core import Primitive

from dpppl import jaxprs
from dpppl.information_flow.lattice import (
    LOST,
    Data,
    Integer,
    Key,
    Names,
    Use,
    Value,
    Variable,
    axis,
    counter,
    join,
    number_of,
    unknown,
)  # fmt: skip
from dpppl.information_flow.leaks import CURE, Leak, Trail, describe
from dpppl.information_flow.rules import (
    Kind,
    constant,
    effects_of,
    followed,
    is_followed,
    is_table,
    is_unset,
    kind_of,
    named,
    other_generators,
    problem_with,
)  # fmt: skip
from dpppl.jaxprs import is_key
from dpppl.types import Atom, Equation, Traced, Tree

_COMPUTED = (
    "rows that enter an access were computed from private rows, or are sharded over devices although each device needs all "
    "of them. Work on one row belongs in the log likelihood, which gets each row by itself; a computation on several rows is "
    "an access of its own"
)
_BESIDE_ROWS = "an access gets private rows in addition to its own: every row's contribution would depend on them"


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
    """The domain of the proof, for `jaxprs.walk`, in one pass over a program.

    - **doors** - by primitive, the roles of its operands, from its parameters.
    - **problem_with** - of a captured array: why it is refused, or None.
    - **variables** - counters of the loops, devices and chains around."""

    def __init__(
        self, doors: Mapping[Primitive, Callable[[Tree], Roles]], problem_with: Callable[[Equation], str | None]
    ) -> None:
        self.doors, self.problem_with = doors, problem_with
        self.findings: list[Leak] = []
        self.uses: list[Use] = []
        self.constants: dict[int, object] = {}
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
            self.findings.append(Leak(kind, what, trail))

    def programs(self, equation: Equation) -> list[Tree]:
        """The programs in an equation, also that of a row."""
        own = [self.doors[equation.primitive](equation.params).program] if equation.primitive in self.doors else []
        return [*own, *jaxprs.programs(equation)]

    def program(self, program: Traced, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of a program."""
        return jaxprs.walk(program, inputs, self.equation, self.known)

    def known(self, value: Tree, aval: Tree = None) -> Value:
        """A number in the program text, an array there, or one that the program captured."""
        if aval is not None and np.size(value) == 1 and not is_key(aval):
            return Value(number=constant(np.asarray(value, aval.dtype)))
        if not is_table(value):
            problem = self.problem_with(value)
            if problem is not None:
                self.find("constant", f"a captured array, {describe(value)}, {problem}")
            self.constants[id(value)] = value
        return Value(number=constant(value))

    def equation(self, equation: Equation, inputs: list[Value]) -> list[Value]:
        """The outputs of an equation."""
        if other_generators(equation):  # also public keys
            self.find("noise", f"{equation.primitive.name} has a key of another generator than threefry2x32 or ChaCha20: its "
                      "children may be related, and what it draws is not in the program. Use keys of dpppl.secret_key() or "
                      "jax.random.key(seed, impl='threefry2x32')", Trail(equation))  # fmt: skip
        if equation.primitive in self.doors:
            return self.through_door(equation, inputs)
        kind, programs = kind_of(equation.primitive), list(jaxprs.programs(equation))
        loops = {Kind.SCAN: self.scan, Kind.WHILE: self.while_loop, Kind.DEVICES: self.devices}
        if kind in loops:
            return loops[kind](equation, inputs)
        if kind is Kind.CALL and len(programs) == 1 and len(jaxprs.open_jaxpr(programs[0]).invars) == len(inputs):
            return self.program(programs[0], inputs)
        if kind is not Kind.CALL:
            self.check_effects(equation, inputs)
        # how secrets came to the outputs: private rows, else keys
        secret = sorted((value for value in inputs if value.is_secret), key=lambda value: value.data is Data.PUBLIC)
        trail = Trail(equation, secret[0].trail) if secret else None
        data = Data.PUBLIC if all(value.data is Data.PUBLIC for value in inputs) else Data.DERIVED
        if kind is Kind.IDENTITY:
            return inputs
        if kind is Kind.DRAW:  # public, as long as no access has to do with the key
            if inputs[0].key is not None:
                self.use(inputs[0].key, equation.invars[0].aval, equation)
            return [Value(data, trail=None if data is Data.PUBLIC else trail)]
        if kind in (Kind.CALL, Kind.UNKNOWN):
            return self.unknown(equation, programs, trail)
        for program in programs:  # that combine two elements, solve, or are branches
            self.only_computes(equation, program)
        key = LOST if any(value.key is not None for value in inputs) else None
        shared = Value(data, key, None, trail)
        if any(value.key is not None for value in inputs[1:]):
            return [shared] * len(equation.outvars)
        return [shared._replace(key=key and known, number=number) for number, known in followed(equation, inputs)]

    def unknown(self, equation: Equation, programs: Sequence[Traced], trail: Trail | None) -> list[Value]:
        """A primitive that is not JAX's own, or holds programs, functions or arrays in a way that is not known here."""
        for value in (value for program in programs for value in jaxprs.constants(program)):
            self.known(value)
        does = "what it does with secrets cannot be followed" if trail else "what it returns may hold private values"
        self.find("unknown", f"{equation.primitive.name} is not known here: {does}", trail or Trail(equation))
        return [Value(Data.PUBLIC if trail is None else Data.DERIVED, trail=trail)] * len(equation.outvars)

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
            self.known(value)

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

    # Keys and accesses

    def use(self, key: Key, aval: Tree, equation: Equation) -> None:
        """Note that something is drawn from a key, or keys, other than by an access."""
        names: Names = {axis(k): number_of(counter(length)) for k, length in enumerate(np.shape(aval))}
        self.uses.append(Use(key.renamed(names), equation, self.variables))

    def through_door(self, equation: Equation, inputs: Sequence[Value]) -> list[Value]:
        """An access: rows as they are, nothing else that depends on them, and a key and step of its own."""
        roles = self.doors[equation.primitive](equation.params)
        for value in jaxprs.constants(roles.program):
            if not isinstance(value, Tracer):  # which is an operand
                self.known(value)
        for k, value in enumerate(inputs):
            if k in roles.rows and value.data is Data.DERIVED:
                self.find("door", _COMPUTED, Trail(equation, value.trail))
            elif k not in roles.rows and value.data is not Data.PUBLIC:
                self.find("door", _BESIDE_ROWS, Trail(equation, value.trail))
            if value.key is not None and k != roles.key:
                self.use(value.key, equation.invars[k].aval, equation)
        chains = [counter(length) for length in np.shape(equation.invars[roles.key].aval)[: roles.chains]]
        names: Names = {axis(k): number_of(chain) for k, chain in enumerate(chains)}
        secret, step = inputs[roles.key].renamed(names), inputs[roles.step].renamed(names).number
        if secret.key is None:
            self.find("noise", "an access has no secret key: its sum would leave without noise. Keys are arguments, and "
                      "typed: jax.random.key, dpppl.secret_key, jax.random.wrap_key_data outside", Trail(equation))  # fmt: skip
        elif secret.key == LOST:
            self.find("key reuse", f"the key of an access cannot be followed. {CURE}", Trail(equation, secret.trail))
        elif step is None:
            self.find("key reuse", f"the step of an access cannot be followed. {CURE}", Trail(equation))
        else:
            self.uses.append(Use(secret.key, equation, self.variables.union(chains), step, roles.streams))
        return [Value()] * len(equation.outvars)

    # Loops and devices

    def scan(self, equation: Equation, inputs: list[Value]) -> list[Value]:
        """`lax.scan`, and `lax.fori_loop` where the number of iterations is known. Backwards, slices are not followed."""
        length, (num_consts, num_carry) = equation.params["length"], jaxprs.scan_parts(equation)
        iteration, end = counter(length), num_consts + num_carry
        slices = []
        for value, v in zip(inputs[end:], equation.invars[end:]):
            inside = {axis(k): number_of(axis(k - 1)) for k in range(1, len(np.shape(v.aval)))}
            inside[axis(0)] = number_of(iteration)
            slices.append(value.lost() if equation.params["reverse"] else value.renamed(inside).derived())

        def run(state: list[Value]) -> list[Value]:
            return self.program(equation.params["jaxpr"], [*inputs[:num_consts], *state, *slices])

        state, stacked = self.follow(equation, iteration, inputs[num_consts:end], run)
        return [*(value.renamed({iteration: Integer(length)}) for value in state), *(value.lost() for value in stacked)]

    def while_loop(self, equation: Equation, inputs: list[Value]) -> list[Value]:
        """`lax.while_loop`, and `lax.fori_loop` where the number of iterations is not known: then numbers are counted."""
        parameters, counting = equation.params, _counter(equation)
        num_cond, num_body = parameters["cond_nconsts"], parameters["body_nconsts"]
        for_body, state = inputs[num_cond : num_cond + num_body], inputs[num_cond + num_body :]
        # A number that moves by 1 and stays below another one cannot pass it, nor wrap.
        iteration = counter(None if counting is None else 256 ** equation.outvars[counting].aval.dtype.itemsize)
        run = lambda state: self.program(parameters["body_jaxpr"], [*for_body, *state])  # noqa: E731
        state, _ = self.follow(equation, iteration, state, run, counting)
        self.only_computes(equation, parameters["cond_jaxpr"])
        (predicate,) = self.program(parameters["cond_jaxpr"], [*inputs[:num_cond], *state])
        if predicate.is_secret:
            self.only_computes(equation, parameters["body_jaxpr"])
            kind, what = ("key", "a key") if predicate.data is Data.PUBLIC else ("rows", "a private row")
            self.find(kind, f"{what} decides when a loop ends, or whether", Trail(equation, predicate.trail))
        return [value.renamed({iteration: None}) for value in state]

    def follow(
        self, equation: Equation, iteration: Variable, carry: list[Value], run: Callable[[list[Value]], list[Value]],
        counting: int | None = None,
    ) -> tuple[list[Value], list[Value]]:  # fmt: skip
        """Interpret the loop's body until a fixed point: the state at the start of an iteration, and the body's other outputs.

        - **iteration** - the loop's counter.
        - **carry** - the state before the loop.
        - **run** - the body: from the state to its outputs.
        - **counting** - the place in the state of an integer that ends the loop before `iteration` does, if it moves by 1.

        The first pass takes integers in the state for any number, and finds by how much an iteration moves each: if by 0, it is
        constant; if by 1, it is its start plus `iteration`."""
        mark, atoms = (len(self.uses), len(self.findings)), [v.aval for v in equation.outvars[: len(carry)]]
        labels, numbers, moves = carry, [unknown(len(a.shape)) if is_followed(a) else None for a in atoms], None
        with self.within(iteration):
            while True:
                del self.uses[mark[0] :], self.findings[mark[1] :]
                state = [value._replace(number=number) for value, number in zip(labels, numbers)]
                outputs = run(state)
                following = [join(value, output) for value, output in zip(labels, outputs)]
                if moves is not None and all(a[:2] == b[:2] for a, b in zip(following, labels)):
                    return state, outputs[len(carry) :]
                if moves is None:
                    pairs = zip(numbers, (value.number for value in outputs))
                    moves = [b.offset - a.offset if a and b and a.terms == b.terms else None for a, b in pairs]
                    ends = iteration.length is not None and (counting is None or moves[counting] == 1)
                    added: dict[int | None, Integer] = {0: Integer(0)}
                    added |= {1: number_of(iteration)} if ends else {}
                    starts = zip((value.number for value in carry), (added.get(move) for move in moves))
                    numbers = [start and more and start.plus(more) for start, more in starts]
                labels = following

    def devices(self, equation: Equation, inputs: list[Value]) -> list[Value]:
        """`jax.shard_map` and `jax.pmap`: a program that runs on every device of a mesh, with all of an array, or with one
        element each along its first axis. Other shardings are not followed."""
        parameters, program, sizes = equation.params, equation.params["jaxpr"], dict(equation.params["mesh"].shape)
        manual = parameters.get("newly_manual_axes", parameters.get("manual_axes", sizes))
        numbers = {name: counter(size) for name, size in sizes.items() if name in manual}

        def part(value: Value, spec: Tree, atom: Atom) -> Value:
            dealt = {k: names if isinstance(names, tuple) else (names,) for k, names in enumerate(spec) if names}
            if not dealt:
                return value
            if set(dealt) != {0} or len(dealt[0]) != 1 or dealt[0][0] not in numbers or atom.aval.shape[0] != 1:
                return value.lost()
            return value.derived().renamed({axis(0): number_of(numbers[dealt[0][0]])})

        with self.within(*numbers.values()):
            given = map(part, inputs, parameters["in_specs"], jaxprs.open_jaxpr(program).invars)
            return [value.lost() for value in self.program(program, list(given))]


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
