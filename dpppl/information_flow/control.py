"""Calls, branches, loops and devices. Loops run to a fixed point; branches are given nothing secret."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

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
    multiple,
    unknown,
)  # fmt: skip
from dpppl.information_flow.primitives import Kind, named
from dpppl.information_flow.rules import bits_of


def call(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """A call of one program with the equation's inputs."""
    programs = list(jaxprs.programs(equation))
    if len(programs) != 1 or len(jaxprs.open_jaxpr(programs[0]).invars) != len(inputs):
        return list(walk.unknown(equation, inputs))
    return list(walk.program(programs[0], inputs))


def cond(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`lax.cond` and `lax.switch`: branches that are given secrets, or chosen by one, may only compute."""
    if any(value.is_secret for value in inputs):
        return list(walk.plain(equation, inputs))
    results = [walk.program(branch, inputs[1:]) for branch in equation.params["branches"]]
    return [functools.reduce(join, values).lost() for values in zip(*results)]


# Loops


def scan(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`lax.scan`, and `lax.fori_loop` where the number of turns is known. Backwards, slices are not followed."""
    program, length = equation.params["jaxpr"], equation.params["length"]
    turn, (num_consts, num_carry) = counter(length), jaxprs.scan_parts(equation)
    end = num_consts + num_carry
    slices = [
        value.lost() if equation.params["reverse"] else value.renamed(_inside(atom, turn)).derived()
        for value, atom in zip(inputs[end:], equation.invars[end:])
    ]

    def run(state: list[Value]) -> list[Value]:
        return list(walk.program(program, [*inputs[:num_consts], *state, *slices]))

    state, stacked = _follow(walk, equation, turn, inputs[num_consts:end], run, lambda strides: True)
    return [*(value.renamed({turn: Number(length)}) for value in state), *(value.lost() for value in stacked)]


def _inside(atom: Any, turn: Variable) -> Names:
    """The axes of an array, inside a loop over the first one."""
    return {axis(k): multiple(axis(k - 1)) for k in range(len(np.shape(atom.aval)))} | {axis(0): multiple(turn)}


def while_loop(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`lax.while_loop`, and `lax.fori_loop` where the number of turns is not known: then numbers are counted."""
    parameters, counting = equation.params, _counter(equation)
    num_cond, num_body = parameters["cond_nconsts"], parameters["body_nconsts"]
    for_body, state = inputs[num_cond : num_cond + num_body], inputs[num_cond + num_body :]
    bits = 0 if counting is None else bits_of(equation.outvars[counting].aval)

    def run(state: list[Value]) -> list[Value]:
        return list(walk.program(parameters["body_jaxpr"], [*for_body, *state]))

    # A number that moves by 1 and stays below another one cannot pass it, nor wrap.
    turn, counts = counter(2**bits if bits else None), lambda strides: counting is not None and strides[counting] == 1
    state, _ = _follow(walk, equation, turn, state, run, counts)
    walk.only_computes(equation, parameters["cond_jaxpr"])
    (predicate,) = walk.program(parameters["cond_jaxpr"], [*inputs[:num_cond], *state])
    if predicate.is_secret:
        walk.only_computes(equation, parameters["body_jaxpr"])
        kind, what = ("key", "a key") if predicate.data is Data.PUBLIC else ("rows", "a private row")
        walk.find(kind, f"{what} decides when a loop ends, or whether", Trail(equation, predicate.trail))
    return [value.renamed({turn: None}) for value in state]


def _counter(equation: Any) -> int | None:
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
    return int(state.index(number)) if bits_of(number.aval) else None


def _follow(
    walk: Any, equation: Any, turn: Variable, carry: list[Value], run: Callable[[list[Value]], list[Value]],
    counts: Callable[[Sequence[int | None]], bool],
) -> tuple[list[Value], list[Value]]:  # fmt: skip
    """Follow turns until what is known no longer changes: the state at the start of a turn, and what a turn puts out beside
    it.

    An integer in the state is any number in the first pass, which finds the stride by which each turn moves it; then it is
    start + stride * turn. `counts(strides)`: whether the loop is known to end before `turn` does."""
    mark, atoms = (len(walk.uses), len(walk.findings)), [v.aval for v in equation.outvars[: len(carry)]]
    labels, numbers, strides = carry, [unknown(len(a.shape), bits_of(a)) for a in atoms], None
    with walk.within(turn):
        while True:
            del walk.uses[mark[0] :], walk.findings[mark[1] :]
            state = [value._replace(number=number) for value, number in zip(labels, numbers)]
            outputs = run(state)
            following = [join(value, output) for value, output in zip(labels, outputs)]
            if strides is not None and all(a[:2] == b[:2] for a, b in zip(following, labels)):
                return state, outputs[len(carry) :]
            if strides is None:
                strides = [_stride(number, value.number) for number, value in zip(numbers, outputs)]
                moving = counts(strides)
                numbers = [
                    value.number and (multiple(turn, stride).plus(value.number) if moving or not stride else None)
                    if stride is not None else None
                    for value, stride in zip(carry, strides)
                ]  # fmt: skip
            labels = following


def _stride(before: Number | None, after: Number | None) -> int | None:
    """By how much a turn moves a number, whatever it was."""
    if before is None or after is None:
        return None
    moved = after.plus(before, -1)
    return None if moved.terms or moved.bits < before.bits else moved.offset


# Devices


def devices(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`jax.shard_map` and `jax.pmap`: a program that runs on every device of a mesh, with a part of each array."""
    parameters, program, sizes = equation.params, equation.params["jaxpr"], dict(equation.params["mesh"].shape)
    manual = parameters.get("newly_manual_axes", parameters.get("manual_axes", sizes))
    numbers = {name: counter(size) for name, size in sizes.items() if name in manual}
    dealt = [
        {
            k: names[0] if isinstance(names, tuple) and len(names) == 1 else names
            for k, names in enumerate(spec)
            if names
        }
        for spec in parameters["in_specs"]
    ]
    if len({tuple(d.items()) for d, value in zip(dealt, inputs) if value.data is Data.ROWS}) > 1:
        walk.find("door", "private arrays are dealt out to devices differently", Trail(equation))
    atoms = jaxprs.open_jaxpr(program).invars
    with walk.within(*numbers.values()):
        outputs = walk.program(program, [_part(*given, numbers) for given in zip(inputs, dealt, atoms)])
    return [value.lost() for value in outputs]


def _part(value: Value, dealt: dict[int, Any], atom: Any, numbers: dict[Any, Variable]) -> Value:
    """What a device has of an array: all of it, or neighbouring elements along the first axis; else it is not followed."""
    if not dealt:
        return value
    if set(dealt) != {0} or dealt[0] not in numbers:
        return value.lost()
    return value.renamed({axis(0): multiple(axis(0)).plus(multiple(numbers[dealt[0]], atom.aval.shape[0]))})


RULES: dict[Kind, Callable[[Any, Any, list[Value]], list[Value]]] = {
    Kind.CALL: call, Kind.COND: cond, Kind.SCAN: scan, Kind.WHILE: while_loop, Kind.DEVICES: devices,
}  # fmt: skip
