"""Programs as JAX traces them, jaxprs open or closed: the one walker through them, and what depends on what in them.

Differences between versions of JAX are handled here only.
"""

import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.extend.core
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, JaxprEqn, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from dpppl.types import Atom, Equation, Function, Traced, Tree

Shapes = dict[str, jax.ShapeDtypeStruct]
VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)  # fmt: skip
"""Errors of JAX where the value of an abstract array would decide in Python."""
_TABLE = re.compile(re.escape(os.path.dirname(__file__)) + r"/model/samplers\.py:[\d:]+ \(_chebyshev\)")


def abstract(shape: Sequence[int], dtype: object) -> jax.ShapeDtypeStruct:
    """An array's shape and dtype, without the array."""
    make: Function = jax.ShapeDtypeStruct
    return make(tuple(shape), dtype)


def open_jaxpr(program: Traced) -> Traced:
    """The jaxpr itself, without the constants it was closed over; None for anything else."""
    inner = getattr(program, "jaxpr", program)
    return inner if hasattr(inner, "eqns") else None


def programs(equation: Equation) -> Iterator[Tree]:
    """The programs in an equation's parameters, or of what expands when it is compiled, as jnp.nonzero does since JAX 0.11."""
    if (high := equation.params.get("_prim")) is not None and hasattr(high, "expand"):
        expand = lambda *operands: jax.tree.leaves(high.expand(*jax.tree.unflatten(high.in_tree, operands)))  # noqa: E731
        return iter([jax.make_jaxpr(expand)(*(abstract(v.aval.shape, v.aval.dtype) for v in equation.invars))])
    leaves = jax.tree.leaves(equation.params, is_leaf=lambda leaf: open_jaxpr(leaf) is not None)
    return (leaf for leaf in leaves if open_jaxpr(leaf) is not None)


def equations(program: Traced) -> Iterator[Tree]:
    """All equations, also those of the programs inside.

    >>> twice = jax.jit(lambda x: 2.0 * x)
    >>> [equation.primitive.name for equation in equations(jax.make_jaxpr(lambda x: twice(x) + 1.0)(0.0))]
    ['jit', 'mul', 'add']
    """
    for equation in open_jaxpr(program).eqns:
        yield equation
        for inner in programs(equation):
            yield from equations(inner)


def is_literal(v: Tree) -> bool:
    """Whether an equation's operand is a number written into the program."""
    return hasattr(v, "val")


def bind(equation: JaxprEqn, operands: Sequence[object]) -> list[Tree]:
    """The outputs of one equation, given its operands: as evaluating its program would compute them."""
    given = [(v, value) for v, value in zip(equation.invars, operands) if not is_literal(v)]
    alone = jax.make_jaxpr(lambda: ())().jaxpr.replace(
        invars=[v for v, _ in given], outvars=list(equation.outvars), eqns=[equation], effects=equation.effects
    )
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*(value for _, value in given))


def scan_parts(equation: JaxprEqn) -> tuple[int, int]:
    """How many inputs of a `lax.scan` are constants, and how many of them and of its outputs are carried; the rest are
    slices. Read from their ranks: versions of JAX differ in what they note.

    >>> program = jax.make_jaxpr(lambda w, x: jax.lax.scan(lambda c, x: (c * w + x, c), 0.0, x))(2.0, np.ones(3))
    >>> scan_parts(program.eqns[-1])
    (1, 1)
    """
    inner = open_jaxpr(equation.params["jaxpr"])

    def whole(outside: Sequence[Tree], inside: Sequence[Tree]) -> int:
        return sum(len(np.shape(a.aval)) == len(np.shape(b.aval)) for a, b in zip(outside, inside))

    carried = whole(equation.outvars, inner.outvars)
    return whole(equation.invars, inner.invars) - carried, carried


Rule = Callable[[Equation, Sequence[Tree]], Sequence[Tree] | None]
"""From an equation and its operands, its outputs; for `evaluate`, None where they are computed as the equation says."""


def walk(
    program: Traced, operands: Sequence[Tree] | dict[Atom, Tree], rule: Function,
    known: Function = lambda value, aval=None: value, wanted: Sequence[Atom] | None = None,
) -> list[Tree]:  # fmt: skip
    """Go through the equations of a program and return the values of its outputs: numbers, or anything known of them.

    - **operands** - values of the inputs, of an open program its constants first; or a dict by variable, which is filled.
    - **rule** - from an equation and its operands, its outputs. It may walk through the programs inside, as `called` does.
    - **known** - `known(value, aval)`, of a literal; `known(value)`, of an array that a closed program captured.
    - **wanted** - variables: their values are returned, and equations that these do not need are left out, but for effects."""
    jaxpr = open_jaxpr(program)
    if not isinstance(operands, dict):
        given = [*map(known, getattr(program, "consts", ())), *operands]
        operands = dict(zip(inputs_of(jaxpr), given, strict=True))
    values, chosen = operands, jaxpr.eqns
    if wanted is not None:
        needed, chosen = {v for v in wanted if not is_literal(v) and v not in values}, []
        for equation in reversed(jaxpr.eqns):
            if needed.intersection(equation.outvars) or equation.effects:
                chosen.append(equation)
                needed.update(v for v in equation.invars if not is_literal(v) and v not in values)
        chosen.reverse()
    read = lambda v: known(v.val, v.aval) if is_literal(v) else values[v]  # noqa: E731
    for equation in chosen:
        for v, output in zip(equation.outvars, rule(equation, [*map(read, equation.invars)]), strict=True):
            values.setdefault(v, output)
    return [*map(read, jaxpr.outvars if wanted is None else wanted)]


def called(equation: Equation, operands: Sequence[Tree], rule: Function, known: Function) -> list[Tree] | None:
    """The outputs of an equation that calls a program, by a walk through it; None for all others."""
    inner = next(programs(equation), None) if equation.primitive.name in CALLS else None
    return None if inner is None else walk(inner, operands, rule, known)


def evaluate(
    program: Traced, operands: Sequence[Tree] | dict[Atom, Tree], rule: Rule | None = None,
    wanted: Sequence[Atom] | None = None,
) -> list[Tree]:  # fmt: skip
    """The numbers of the outputs of a program, or of `wanted` variables, by `walk`. `rule` may compute some equations.

    >>> program = jax.make_jaxpr(lambda x: np.float32(2) * jax.numpy.sin(x))(0.0)
    >>> swapped = lambda equation, operands: [jax.numpy.cos(*operands)] if equation.primitive.name == "sin" else None
    >>> evaluate(program, [0.0], swapped)[0].item()
    2.0
    """

    def computed(equation: Equation, operands: Sequence[Tree]) -> Sequence[Tree]:
        outputs = None if rule is None else rule(equation, operands)
        return bind(equation, operands) if outputs is None else outputs

    given = dict(operands) if isinstance(operands, dict) else operands
    return walk(program, given, computed, wanted=open_jaxpr(program).outvars if wanted is None else wanted)


def rewritten(program: Traced, rule: Rule) -> Traced:
    """An open program whose equations are computed by a rule, where it gives outputs: see `evaluate`."""
    traced = trace(lambda *given: evaluate(program, given, rule), inputs_of(program)).jaxpr
    constants = len(program.constvars)
    return traced.replace(constvars=traced.invars[:constants], invars=traced.invars[constants:])


def inputs_of(program: Traced) -> list[Atom]:
    """The inputs of an open program, its constants first."""
    return [*program.constvars, *program.invars]


def trace(function: Function, variables: Sequence[Atom]) -> ClosedJaxpr:
    """The program of a function of values like those of `variables`."""
    return jax.make_jaxpr(function)(*(abstract(v.aval.shape, v.aval.dtype) for v in variables))


def varying(program: Traced, varies: Sequence[bool]) -> set[Atom]:
    """The variables of an open program that are made of inputs that vary. Constants are the first inputs."""
    values = dict(zip(inputs_of(program), varies, strict=True))
    walk(program, values, lambda equation, given: [any(given)] * len(equation.outvars), lambda *_: False)
    return {v for v, does in values.items() if does}


_STEPS = {"ceil", "floor", "round", "sign", "stop_gradient"}


def has_slope(program: Traced, varies: Sequence[bool]) -> list[bool]:
    """Which outputs of an open program may have a derivative in inputs that vary; constants are the first inputs. Numbers that
    are no floats have none, nor have roundings; each input of a loop or of a rule of its own may reach each output.

    >>> step = jax.make_jaxpr(lambda a, x: (jax.numpy.where(x < a, 1.0, x), jax.numpy.maximum(a, x)))(0.0, 0.0).jaxpr
    >>> has_slope(step, (True, False)), has_slope(step, (False, True))
    ([False, True], [True, True])
    """

    def rule(equation: Equation, given: Sequence[bool]) -> list[bool]:
        if not any(given) or equation.primitive.name in _STEPS:
            return [False] * len(equation.outvars)
        reached = called(equation, given, rule, lambda *_: False) or [True] * len(equation.outvars)
        floats = (jax.numpy.issubdtype(v.aval.dtype, jax.numpy.inexact) for v in equation.outvars)
        return [does and is_float for does, is_float in zip(reached, floats)]

    return walk(program, varies, rule, lambda *_: False)


REARRANGEMENTS = {"broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "reshape", "squeeze", "transpose"}


def is_rearranged(program: Traced, value: Atom, other: Atom) -> bool:
    """Whether one variable of a program is another, or this in another shape.

    >>> program = jax.make_jaxpr(lambda x: (2.0 * x, x.reshape(1, 3)))(np.ones(3)).jaxpr
    >>> [is_rearranged(program, v, program.invars[0]) for v in program.outvars]
    [False, True]
    """
    made_of = {e.outvars[0]: e.invars[0] for e in open_jaxpr(program).eqns if e.primitive.name in REARRANGEMENTS}
    while value is not other and not is_literal(value) and value in made_of:
        value = made_of[value]
    return value is other


def split(program: Traced, varies: Sequence[bool]) -> tuple[Tree, Tree] | None:
    """Two closed programs for an open one: `before(*inputs that do not vary)`, and `after(*what it gave, *inputs)`, which gives
    the outputs. Constants are the first inputs. Equations without cost stay in the second; None if nothing else is left.

    >>> program = jax.make_jaxpr(lambda x, y: jax.numpy.exp(x) * y)(0.0, 0.0).jaxpr
    >>> [[equation.primitive.name for equation in part.eqns] for part in split(program, (False, True))]
    [['exp'], ['mul']]
    """
    inputs = inputs_of(program)
    steady = [v for v, varied in zip(inputs, varies) if not varied]
    made_of = dict(zip(inputs, (2 if varied else 1 for varied in varies)))  # 0: of no input, 1: of steady ones alone
    walk(program, made_of, lambda equation, given: [max(given, default=0)] * len(equation.outvars), lambda *_: 0)
    is_made = lambda v: not is_literal(v) and made_of[v] == 1  # noqa: E731
    ends = [e.invars for e in program.eqns if any(not is_literal(v) and made_of[v] == 2 for v in e.invars)]
    crossing: dict[Atom, None] = dict.fromkeys(v for end in (*ends, program.outvars) for v in end if is_made(v))
    for equation in reversed(program.eqns):
        if equation.primitive.name in REARRANGEMENTS and equation.outvars[0] in crossing:
            del crossing[equation.outvars[0]]
            crossing |= dict.fromkeys(filter(is_made, equation.invars))
    if not (found := [v for v in crossing if v not in inputs]):
        return None
    before = trace(lambda *given: evaluate(program, dict(zip(steady, given)), wanted=found), steady)
    return before, trace(lambda *given: evaluate(program, dict(zip([*found, *inputs], given))), [*found, *inputs])


_OFTEN = 8
CALLS = {"call_hi_primitive", "jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"}


def flattened(program: Traced, rule: Rule = lambda equation, operands: None) -> jax.extend.core.ClosedJaxpr:
    """A closed program without calls: what `jax.jit` and `jax.checkpoint` wrapped is inlined, also in bodies of scans.

    `rule`: see `evaluate`.

    >>> twice = jax.jit(lambda x: 2.0 * x)
    >>> [e.primitive.name for e in flattened(jax.make_jaxpr(lambda x: twice(x) + 1.0)(0.0)).eqns]
    ['mul', 'add']
    """

    def inline(equation: JaxprEqn, operands: Sequence[object]) -> Sequence[Tree] | None:
        if (outputs := rule(equation, operands)) is not None:
            return outputs
        name, inner = equation.primitive.name, next(programs(equation), None)
        if name == "scan":
            return bind(equation.replace(params=equation.params | {"jaxpr": flattened(inner, rule)}), operands)
        return evaluate(inner, operands, inline) if name in CALLS else None

    return trace(lambda *arguments: evaluate(program, arguments, inline), program.jaxpr.invars)


def constants(program: Traced, inside: bool = False) -> Iterator[Tree]:
    """The arrays that a program and the programs in it captured; of `inside`, those that it holds otherwise than as its own."""
    jaxpr, is_array = open_jaxpr(program), lambda v: is_literal(v) and np.ndim(v.val)
    yield from () if inside else (value for value in getattr(program, "consts", ()) if hasattr(value, "dtype"))
    yield from (v.val for v in jaxpr.outvars if is_array(v))
    for equation in jaxpr.eqns:
        yield from (v.val for v in equation.invars if is_array(v))
        for inner in programs(equation):
            yield from constants(inner)


def count_numbers(program: Traced, inside: Function = programs) -> tuple[int, int, int]:
    """How many single numbers stand in a program and those inside it: captured ones and those in lines of the user's code, as
    often as they stand; the same without zeros, which stand for latents; different ones, also of libraries, but for `_TABLE`.

    >>> count_numbers(jax.make_jaxpr(lambda x: jax.numpy.sin(2.0 * x) + 2.0)(0.0))
    (2, 2, 1)
    """
    found = list(_numbers(program, inside))
    own = [value.item() for value, counted in found if counted]
    return len(own), sum(map(bool, own)), len({(str(v.dtype), v.item()) for v, _ in found})


def _numbers(program: Traced, inside: Function) -> Iterator[tuple[Tree, bool]]:
    """Each of them, and whether it was captured or is the user's. Constant places, as in x[3], from the user's lines count, of
    arrays that are read at few of them many times: labels may be written so. A loop reads each place once, or a few times."""
    jaxpr, read = open_jaxpr(program), dict[Atom, list[Tree]]()
    captured = (*getattr(program, "consts", ()), *(v.val for v in jaxpr.outvars if is_literal(v)))
    values = [(value, True) for value in captured]
    for equation in jaxpr.eqns:
        line, literals = source_of(equation), [v.val for v in equation.invars if is_literal(v)]
        if equation.primitive.name == "integer_pow":
            literals.append(np.asarray(equation.params["y"]))
        if equation.primitive.name == "slice" and is_of_user(line):
            read.setdefault(equation.invars[0], []).append(equation.params["start_indices"])
        values += [(value, is_of_user(line)) for value in literals if not _TABLE.match(line)]
        for inner in inside(equation):
            yield from _numbers(inner, inside)
    often = (places for places in read.values() if len(places) > _OFTEN * len(set(places)))
    values += [(np.asarray(sum(place)), True) for places in often for place in places]
    plain = (value for value in values if np.size(value[0]) == 1 and not is_key(value[0]))
    yield from ((np.asarray(value), counted) for value, counted in plain)


def source_of(equation: JaxprEqn) -> str:
    """The source line that an equation is from, or nothing."""
    try:
        return str(source_info_util.summarize(equation.source_info))
    except Exception:  # these are only words: another version of JAX may have no such function
        return ""


def is_of_user(line: str) -> bool:
    """Whether a source line is neither a library's nor ours."""
    return ":" in line and "site-packages" not in line and not line.startswith(os.path.dirname(__file__))


def depends_on(function: Function, *arguments: object) -> tuple[Tree, ...]:
    """Which leaves of `arguments` any output of `function` depends on: the same trees, with bools; abstract.

    >>> depends_on(lambda x, y: y["a"] * x.size, np.ones(3), {"a": 2.0})
    (False, {'a': True})
    """
    program = jax.make_jaxpr(function)(*arguments)
    return tuple(jax.tree.unflatten(jax.tree.structure(arguments), used_inputs(program)))


def used_inputs(program: Traced, outputs: Sequence[bool] | None = None) -> list[bool]:
    """Which inputs the chosen outputs depend on; by default, all outputs."""
    jaxpr = open_jaxpr(program)
    return dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars) if outputs is None else outputs)[1]


class Dependence:
    """Which outputs of a function depend on which inputs, from one abstract trace.

    - **function** - `function(*inputs.values())` returns a dict by role of dicts by name.
    - **inputs** - by role, each a dict by name.

    >>> x = jax.ShapeDtypeStruct((3,), np.float32)
    >>> found = Dependence(lambda a, b: {"sum": {"of a": a["x"] + 1.0, "of b": b["y"]}}, a={"x": x}, b={"y": x})
    >>> found.inputs("sum", "of a")
    [('a', 'x')]
    """

    def __init__(self, function: Function, **inputs: Shapes) -> None:
        self.program, self._shapes = jax.make_jaxpr(function, return_shape=True)(*inputs.values())
        paths = jax.tree_util.tree_flatten_with_path(self._shapes)[0]
        self._outputs = [(path[0].key, path[1].key) for path, _ in paths]
        self._inputs = [(kind, name) for kind, group in inputs.items() for name in sorted(group)]
        self._reduced = functools.cache(self._reduce)

    def names(self, role: str) -> list[str]:
        """The outputs of a role."""
        return list(dict.fromkeys(name for own, name in self._outputs if own == role))

    def shape(self, role: str, name: str) -> jax.ShapeDtypeStruct:
        """Shape and dtype of an output."""
        return self._shapes[role][name]

    def inputs(self, role: str, name: str | None = None) -> list[tuple[str, str]]:
        """(kind, name) of the inputs that an output, or those of a role, depend on."""
        return self._reduced(role, name)[1]

    def without_slope(self, role: str) -> list[tuple[str, str]]:
        """(kind, name) of the inputs that outputs of a role depend on, and in which none has a derivative: see `has_slope`."""
        jaxpr, inputs = self._reduced(role, None)
        alone = ([*[False] * len(jaxpr.constvars), *(v is one for v in jaxpr.invars)] for one in jaxpr.invars)
        return [label for label, varies in zip(inputs, alone) if not any(has_slope(jaxpr, varies))]

    def text(self, role: str, name: str) -> list[str]:
        """The program's text without memory addresses, and its constants: equal for equal programs."""
        jaxpr, numbers = self._reduced(role, name)[0], dict[Atom, int]()

        def show(*variables: Tree) -> list[str]:
            number = lambda v: v.val if is_literal(v) else numbers.setdefault(v, len(numbers))  # noqa: E731
            return [f"{number(v)}:{v.aval}" for v in variables]

        lines = [f"{show(*e.invars, *e.outvars)} {e.primitive} {e.params}" for e in jaxpr.eqns]
        lines.append(f"{show(*jaxpr.invars, *jaxpr.outvars)}")
        own = zip(jaxpr.constvars, getattr(jaxpr, "consts", self.program.consts))  # JAX 0.10 keeps them outside
        captured = [value for v, value in own if v in numbers] + list(constants(jaxpr, inside=True))
        captured = [jax.random.key_data(v) if is_key(v) else v for v in captured if not isinstance(v, jax.core.Tracer)]
        lines += [repr(np.asarray(v).tobytes()) for v in captured]
        return [re.sub(r"0x[0-9a-f]+", "", line) for line in lines]

    def _reduce(self, role: str, name: str | None = None) -> tuple[Traced, list[tuple[str, str]]]:
        """The program of an output, or of those of a role, without what it does not need; and its inputs."""
        wanted = [own == role and name in (None, each) for own, each in self._outputs]
        jaxpr, used = dce_jaxpr(self.program.jaxpr, wanted)
        return jaxpr, [label for label, is_used in zip(self._inputs, used) if is_used]


def is_key(value: Tree) -> bool:
    """Whether an array, or an abstract one, holds typed random keys."""
    return hasattr(value, "dtype") and bool(jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key))
