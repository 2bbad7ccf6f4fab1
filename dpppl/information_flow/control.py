"""Branches, loops and devices: what decides their course flows into what they compute; loops run to a fixed point."""

import functools
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from dpppl.information_flow import numbers
from dpppl.information_flow.lattice import (
    LOST,
    Affine,
    Data,
    Number,
    Trail,
    Value,
    Variable,
    affine,
    combine,
    join,
    renamed,
    renamed_key,
)
from dpppl.information_flow.primitives import jaxpr_of, named

_MOST_PASSES = 30


def cond(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`lax.cond` and `lax.switch`: the branches exclude each other in one turn of the loops around them."""
    index, operands, point, results = inputs[0], inputs[1:], walk.at(id(equation)), []
    for number, branch in enumerate(equation.params["branches"]):
        branches = (*walk.branches, (point, number, walk.variables))
        with walk.within(branches=branches, place=walk.at(id(equation), number), control=_controlled(walk, index)):
            results.append(walk.program(branch, operands))
    joined = [functools.reduce(join, values) for values in zip(*results)]
    return [
        walk.settled(_under(index, value), atom.aval, id(equation), "out", k)
        for k, (value, atom) in enumerate(zip(joined, equation.outvars))
    ]


def linear_solve(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`lax.custom_linear_solve`: of its programs, `solve` is the one that runs."""
    lengths = equation.params["const_lengths"]
    first = lengths.matvec + lengths.vecmat
    constants, sides = inputs[first : first + lengths.solve], inputs[sum(lengths) :]
    with walk.within(place=walk.at(id(equation))):
        return list(walk.program(equation.params["jaxprs"].solve, [*constants, *sides]))


def _under(predicate: Value, output: Value) -> Value:
    """An output of a branch or a loop whose course `predicate` decides."""
    if not predicate.is_secret:
        return output
    trail = Trail("a branch or the end of a loop", predicate.trail)
    if predicate.data is not Data.PUBLIC:
        return output._replace(data=Data.DERIVED, trail=trail)
    return output._replace(key=LOST, trail=output.trail or trail)


def _controlled(walk: Any, predicate: Value) -> tuple[Trail, ...]:
    """The secrets that decide what runs in a part that `predicate` decides."""
    if not predicate.is_secret:
        return tuple(walk.control)
    return (*walk.control, Trail("a branch or the end of a loop", predicate.trail))


# Loops


def scan(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`lax.scan`. Which inputs are constants, state and slices is read from their ranks: versions of JAX differ."""
    body, length, turn = equation.params["jaxpr"], equation.params["length"], _turn(walk, equation)
    walk.lengths[turn] = length

    def longer(outer: Any, inner: Any) -> list[bool]:
        return [len(np.shape(a.aval)) > len(b.aval.shape) for a, b in zip(outer, inner)]

    num_carry = longer(equation.outvars, jaxpr_of(body).outvars).count(False)
    num_constants = longer(equation.invars, jaxpr_of(body).invars).count(False) - num_carry
    constants, carry = inputs[:num_constants], inputs[num_constants : num_constants + num_carry]
    place = affine(length - 1, {turn: -1}) if equation.params["reverse"] else affine(0, {turn: 1})
    with walk.within(variables=walk.variables | {turn}, place=walk.at(id(equation))):
        slices = [
            walk.settled(_taken(value, place), atom.aval, "slice", k)
            for k, (value, atom) in enumerate(
                zip(inputs[num_constants + num_carry :], jaxpr_of(body).invars[num_constants + num_carry :])
            )
        ]

    def run(current: list[Value]) -> list[Value]:
        return list(walk.program(body, [*constants, *current, *slices]))

    current, outputs = _fixed_point(walk, equation, turn, carry, run)
    back = affine(length - 1, {("axis", 0): -1}) if equation.params["reverse"] else affine(0, {("axis", 0): 1})
    after = _after(walk, equation, turn, carry, current, length)
    stacked = [
        walk.settled(_derived(_renamed(value, _stacked(turn, back))), atom.aval, id(equation), "out", k)
        for k, (value, atom) in enumerate(zip(outputs[num_carry:], equation.outvars[num_carry:]), num_carry)
    ]
    return [*after, *stacked]


def while_loop(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`lax.while_loop`, and `lax.fori_loop` where the number of turns is not known."""
    parameters, turn = equation.params, _turn(walk, equation)
    num_cond, num_body = parameters["cond_nconsts"], parameters["body_nconsts"]
    for_condition, for_body = inputs[:num_cond], inputs[num_cond : num_cond + num_body]
    carry, predicate = inputs[num_cond + num_body :], Value()
    walk.lengths[turn] = None

    def run(current: list[Value]) -> list[Value]:
        nonlocal predicate
        before = len(walk.uses)
        with walk.within(place=walk.at("condition"), control=_controlled(walk, predicate)):
            (found,) = walk.program(parameters["cond_jaxpr"], [*for_condition, *current])
            again = len(walk.uses) > before
        predicate = join(predicate, found)._replace(below=found.below)
        turns = _most_turns(walk, turn, predicate)
        walk.lengths[turn] = turns + again if turns is not None else None
        with walk.within(place=walk.at("body"), control=_controlled(walk, predicate)):
            outputs = walk.program(parameters["body_jaxpr"], [*for_body, *current])
        return [_under(predicate, value) for value in outputs]

    current, _ = _fixed_point(
        walk, equation, turn, carry, run, lambda: (predicate.data, predicate.key, walk.lengths[turn])
    )
    if predicate.data is not Data.PUBLIC:
        walk.find("rows", "a private row decides when a loop ends, or whether", Trail(equation, predicate.trail))
    return [_under(predicate, value) for value in _after(walk, equation, turn, carry, current, None)]


def _turn(walk: Any, equation: Any) -> Variable:
    return ("turn", walk.at(id(equation)))


def _most_turns(walk: Any, turn: Variable, predicate: Value) -> int | None:
    """A bound on the turns of a loop that goes on while a counter is below what does not change.

    A counter that moves by 1 cannot pass the limit, nor wrap, whatever they are; one that moves by more could."""
    if predicate.below is None:
        return None
    counter, limit = predicate.below
    mentioned = [dict(form[1]) for number in predicate.below if number.base is not None for form in number.base.which]
    if any(turn in terms for terms in mentioned) or turn in dict(limit.affine[1]) or counter.bits != limit.bits:
        return None
    stride = dict(counter.affine[1]).get(turn, 0)
    start = combine(counter.affine, affine(0, {turn: stride}), -1)
    left = combine(limit.affine, start, -1)
    known = counter.base == limit.base and not left[1] and left[0] >= 0
    if stride == 1:
        return left[0] if known else 2**counter.bits
    fits = (
        counter.base is None and not start[1] and start[0] >= 0 and limit.affine[0] + stride < 2 ** (counter.bits - 1)
    )
    return -(-left[0] // stride) if stride > 1 and known and fits else None


def _fixed_point(
    walk: Any,
    equation: Any,
    turn: Variable,
    carry: list[Value],
    run: Callable[[list[Value]], list[Value]],
    course: Callable[[], Any] = lambda: None,
) -> tuple[list[Value], list[Value]]:
    """Follow turns until what is known no longer changes: the state at the start of a turn, and a turn's outputs.

    A carried integer is first any number; then start + stride * turn, if every turn adds a stride; and any number
    again if that is not what a turn then computes. `course`: what is known of the loop's own course."""
    avals = [atom.aval for atom in equation.outvars[: len(carry)]]
    any_number = [
        walk.named(aval, numbers.bits_of(aval), walk.at(id(equation), "carry", k), walk.variables | {turn})
        if numbers.bits_of(aval)
        else None
        for k, aval in enumerate(avals)
    ]
    labels, guesses, failed = list(carry), list(any_number), [False] * len(carry)
    mark = len(walk.uses), len(walk.findings)
    for _ in range(_MOST_PASSES):
        del walk.uses[mark[0] :], walk.findings[mark[1] :]
        before = course()
        current = [value._replace(number=n, truth=None, below=None) for value, n in zip(labels, guesses)]
        with walk.within(variables=walk.variables | {turn}, place=walk.at(id(equation))):
            outputs = run(current)
        following = [join(value, output) for value, output in zip(labels, outputs)]
        numbers_ = list(guesses)
        for k, (guess, unknown, output) in enumerate(zip(guesses, any_number, outputs)):
            if guess is None or unknown is None:
                continue
            stride = _stride(guess, output.number)
            if guess == unknown and stride is not None and not failed[k]:
                numbers_[k] = _counted(carry[k].number, stride, turn)
            elif guess != unknown and (stride is None or guess != _counted(carry[k].number, stride, turn)):
                numbers_[k], failed[k] = unknown, True
        if numbers_ == guesses and _known(following) == _known(labels) and course() == before:
            return current, outputs
        labels, guesses = following, numbers_
    walk.find("unknown", "a loop cannot be followed to its end", Trail(equation))
    return current, outputs


def _known(values: list[Value]) -> list[Any]:
    return [(value.data, value.spread, value.key) for value in values]


def _stride(before: Number, after: Number | None) -> int | None:
    """By how much a turn moves a number, or None if that cannot be said."""
    if after is None or before.base != after.base or before.bits != after.bits:
        return None
    difference = combine(after.affine, before.affine, -1)
    return None if difference[1] else difference[0]


def _counted(start: Number | None, stride: int, turn: Variable) -> Number | None:
    if start is None:
        return None
    return start._replace(affine=combine(start.affine, affine(0, {turn: stride})))


def _after(
    walk: Any, equation: Any, turn: Variable, carry: list[Value], current: list[Value], length: int | None
) -> list[Value]:
    """A loop's state when the loop has ended."""

    def ended(variable: Variable) -> Affine | None:
        if variable != turn:
            return affine(0, {variable: 1})
        return None if length is None else affine(length)

    results = []
    for k, (first, value) in enumerate(zip(carry, current)):
        counted = value.number is not None and first.number is not None and value.number.base == first.number.base
        number = renamed(value.number, ended) if counted else None
        gone = _renamed(value._replace(number=None), lambda v: None if v == turn else affine(0, {v: 1}))
        results.append(walk.settled(gone._replace(number=number), equation.outvars[k].aval, id(equation), "out", k))
    return results


def _renamed(value: Value, rule: Callable[[Variable], Affine | None]) -> Value:
    return Value(value.data, value.spread, renamed_key(value.key, rule), renamed(value.number, rule), trail=value.trail)


def _taken(value: Value, place: Affine) -> Value:
    """What a turn sees of an array over whose first axis the loop runs."""

    def rule(variable: Variable) -> Affine:
        if variable[0] != "axis":
            return affine(0, {variable: 1})
        axis: Any = variable[1]
        return place if axis == 0 else affine(0, {("axis", axis - 1): 1})

    return _derived(_renamed(value, rule))


def _stacked(turn: Variable, back: Affine) -> Callable[[Variable], Affine]:
    def rule(variable: Variable) -> Affine:
        if variable == turn:
            return back
        axis: Any = variable[1]
        return affine(0, {("axis", axis + 1): 1}) if variable[0] == "axis" else affine(0, {variable: 1})

    return rule


def _derived(value: Value) -> Value:
    return value if value.data is Data.PUBLIC else value._replace(data=Data.DERIVED)


# Devices


def sharded(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`jax.shard_map` and `jax.pmap`: a program that runs on every device of a mesh, with a part of each array."""
    parameters, inner = equation.params, jaxpr_of(equation.params["jaxpr"])
    sizes = dict(parameters["mesh"].shape)
    names = [n for n in sizes if n in parameters.get("newly_manual_axes", parameters.get("manual_axes", sizes))]
    place = walk.at(id(equation))
    devices: dict[Hashable, Variable] = {name: ("device", place, str(name)) for name in names}
    walk.lengths.update({devices[name]: sizes[name] for name in names})
    variables = walk.variables | set(devices.values())
    inside = []
    with walk.within(place=place, variables=variables, devices={**walk.devices, **devices}):
        for k, (value, spec, atom) in enumerate(zip(inputs, parameters["in_specs"], inner.invars)):
            split = {axis: _tuple(mapped) for axis, mapped in enumerate(spec) if mapped not in (None, ())}
            rule = functools.partial(_part, split, np.shape(atom.aval), devices, sizes)
            part = value._replace(key=renamed_key(value.key, rule), number=renamed(value.number, rule))
            if value.data is Data.ROWS and split:
                by_row = set(split) == {0}
                part = part._replace(spread=(value.spread, split[0])) if by_row else _derived(part)
            inside.append(walk.settled(part, atom.aval, "part", k))
        outputs = walk.program(parameters["jaxpr"], inside)
    gone = lambda v: None if v in devices.values() else affine(0, {v: 1})  # noqa: E731
    return [
        walk.settled(
            _derived(value)._replace(key=renamed_key(value.key, gone), number=None), atom.aval, id(equation), "out", k
        )
        for k, (value, atom) in enumerate(zip(outputs, equation.outvars))
    ]


def _tuple(names: Any) -> tuple[Any, ...]:
    return names if isinstance(names, tuple) else (names,)


def _part(split: Any, shape: tuple[int, ...], devices: Any, sizes: Any, variable: Variable) -> Affine:
    """Where an element of a device's part stands in the whole array."""
    form = affine(0, {variable: 1})
    axis: Any = variable[1]
    if variable[0] != "axis" or axis not in split:
        return form
    stride = shape[axis]
    for name in reversed(split[axis]):
        form = combine(form, affine(0, {devices[name]: stride}))
        stride *= sizes[name]
    return form


LOOPS: dict[Any, Callable[[Any, Any, list[Value]], list[Value]]] = {
    named("scan"): scan,
    named("while"): while_loop,
    named("cond"): cond,
    named("linear_solve"): linear_solve,
}
