"""Calls, loops and devices: loops to a fixed point. Branches, and all other primitives that hold programs, may only compute."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from dpppl import jaxprs
from dpppl.information_flow.lattice import (
    Data,
    Names,
    Number,
    Trail,
    Value,
    Variable,
    axis,
    counter,
    join,
    number_of,
    unknown,
)  # fmt: skip
from dpppl.information_flow.primitives import Kind, named
from dpppl.information_flow.rules import is_followed


def call(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """A call of one program with the equation's inputs."""
    programs = list(jaxprs.programs(equation))
    if len(programs) != 1 or len(jaxprs.open_jaxpr(programs[0]).invars) != len(inputs):
        return list(walk.unknown(equation, inputs))
    return list(walk.program(programs[0], inputs))


# Loops


def scan(walk: Any, equation: JaxprEqn, inputs: list[Value]) -> list[Value]:
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


def while_loop(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
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


def _counter(equation: JaxprEqn) -> int | None:
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
    walk: Any, equation: Any, iteration: Variable, carry: list[Value], run: Callable[[list[Value]], list[Value]],
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


def devices(walk: Any, equation: JaxprEqn, inputs: list[Value]) -> list[Value]:
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


RULES: dict[Kind, Callable[[Any, Any, list[Value]], list[Value]]] = {
    Kind.CALL: call, Kind.SCAN: scan, Kind.WHILE: while_loop, Kind.DEVICES: devices,
}  # fmt: skip
