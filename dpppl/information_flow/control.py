"""Branches, loops and devices: what decides their course flows into what they compute; loops run to a fixed point."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dpppl import jaxprs
from dpppl.information_flow.lattice import LOST, Data, Names, Number, Trail, Value, Variable, join, multiple
from dpppl.information_flow.primitives import Kind

_MOST_PASSES = 30


def call(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """A call of one program with the equation's inputs."""
    programs = list(jaxprs.programs(equation))
    if len(programs) != 1 or len(jaxprs.open_jaxpr(programs[0]).invars) != len(inputs):
        return list(walk.unknown(equation, inputs))
    with walk.within(place=walk.at(id(equation))):
        return list(walk.program(programs[0], inputs))


def cond(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`lax.cond` and `lax.switch`."""
    index, results = inputs[0], []
    for number, branch in enumerate(equation.params["branches"]):
        with walk.within(place=walk.at(id(equation), number), control=_deciding(walk, index)):
            results.append(walk.program(branch, inputs[1:]))
    return [_under(index, functools.reduce(join, values)) for values in zip(*results)]


def _under(predicate: Value, output: Value) -> Value:
    """An output of a branch or a loop whose course `predicate` decides."""
    if not predicate.is_secret:
        return output
    trail = Trail("a branch or the end of a loop", predicate.trail)
    if predicate.data is not Data.PUBLIC:
        return output._replace(data=Data.DERIVED, trail=trail)
    return output._replace(key=LOST, trail=output.trail or trail)


def _deciding(walk: Any, predicate: Value) -> Trail | None:
    """The secret that decides what runs in a part that `predicate` decides."""
    found: Trail | None = walk.control
    return Trail("a branch or the end of a loop", predicate.trail) if predicate.is_secret else found


# Loops


def scan(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`lax.scan`."""
    program, length, backwards = equation.params["jaxpr"], equation.params["length"], equation.params["reverse"]
    turn, (num_consts, num_carry) = walk.counter(length, id(equation)), jaxprs.scan_parts(equation)
    end = num_consts + num_carry
    place = multiple(turn, -1, length - 1) if backwards else multiple(turn)
    back = multiple(("axis", 0), -1, length - 1) if backwards else multiple(("axis", 0))
    slices = [
        value.renamed(_axes(atom, -1) | {("axis", 0): place}).derived()
        for value, atom in zip(inputs[end:], equation.invars[end:])
    ]

    def run(carry: list[Value]) -> list[Value]:
        return list(walk.program(program, [*inputs[:num_consts], *carry, *slices]))

    outputs = _fixed_point(walk, equation, turn, inputs[num_consts:end], run)
    stacked = zip(outputs[num_carry:], equation.outvars[num_carry:])
    return [
        *(value.renamed({turn: Number(length)}) for value in outputs[:num_carry]),
        *(value.renamed(_axes(atom, 1) | {turn: back}).derived() for value, atom in stacked),
    ]


def _axes(atom: Any, by: int) -> Names:
    """Axes that stand elsewhere inside a loop over the first one, or outside."""
    return {("axis", k): multiple(("axis", k + by)) for k in range(len(np.shape(atom.aval)))}


def while_loop(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`lax.while_loop`, and `lax.fori_loop` where the number of turns is not known."""
    parameters, turn, predicate = equation.params, walk.counter(None, id(equation)), Value()
    num_cond, num_body = parameters["cond_nconsts"], parameters["body_nconsts"]
    for_condition, for_body = inputs[:num_cond], inputs[num_cond : num_cond + num_body]

    def run(carry: list[Value]) -> list[Value]:
        nonlocal predicate
        before = len(walk.uses)
        with walk.within(place=walk.at("condition"), control=_deciding(walk, predicate)):
            (found,) = walk.program(parameters["cond_jaxpr"], [*for_condition, *carry])
        if len(walk.uses) > before:
            walk.find("key reuse", "the condition of a loop uses a key, once more than the loop: use it in the loop, and "
                      "carry the result", Trail(equation))  # fmt: skip
        predicate = join(predicate, found)._replace(below=found.below)
        walk.lengths[turn] = _most_turns(turn, predicate)
        with walk.within(place=walk.at("body"), control=_deciding(walk, predicate)):
            outputs = walk.program(parameters["body_jaxpr"], [*for_body, *carry])
        return [_under(predicate, value) for value in outputs]

    course = lambda: (predicate.data, predicate.key, walk.lengths[turn])  # noqa: E731
    outputs = _fixed_point(walk, equation, turn, inputs[num_cond + num_body :], run, course)
    if predicate.data is not Data.PUBLIC:
        walk.find("rows", "a private row decides when a loop ends, or whether", Trail(equation, predicate.trail))
    return [_under(predicate, value.renamed({turn: None})) for value in outputs]


def _most_turns(turn: Variable, predicate: Value) -> int | None:
    """A bound on the turns of a loop that goes on while a number that moves by 1 is below one that stands still: it
    cannot pass it, nor wrap, whatever they are."""
    if predicate.below is None:
        return None
    counter, limit = predicate.below
    start = counter.plus(multiple(turn), -1)
    if counter.bits != limit.bits or None in (start.renamed({turn: None}), limit.renamed({turn: None})):
        return None
    left = limit.plus(start, -1)
    return left.offset if not left.terms and left.offset >= 0 else 2**counter.bits


def _fixed_point(
    walk: Any, equation: Any, turn: Variable, carry: list[Value], run: Callable[[list[Value]], list[Value]],
    course: Callable[[], Any] = lambda: None,
) -> list[Value]:  # fmt: skip
    """Follow turns until what is known no longer changes: the state at the start of a turn, and then what a turn puts
    out beside it.

    An integer in the state is any number in the first pass, in which the stride is found by which each turn moves it;
    then it is start + stride * turn, if there is one. `course`: what is known of the loop's own course."""
    labels, mark = carry, (len(walk.uses), len(walk.findings))
    with walk.within(variables=walk.variables | {turn}, place=walk.at(id(equation))):
        state = enumerate(equation.outvars[: len(carry)])
        numbers = [walk.settled(Value(), atom.aval, "state", k).number for k, atom in state]
        counted = None
        for _ in range(_MOST_PASSES):
            del walk.uses[mark[0] :], walk.findings[mark[1] :]
            before = course()
            current = [value._replace(number=n, below=None) for value, n in zip(labels, numbers)]
            outputs = run(current)
            following = [join(value, output) for value, output in zip(labels, outputs)]
            counted = counted or [_counted(turn, *found) for found in zip(carry, numbers, outputs)]
            if (counted, course(), _known(following)) == (numbers, before, _known(labels)):
                return [*current, *outputs[len(carry) :]]
            labels, numbers = following, counted
    walk.find("unknown", "a loop cannot be followed to its end", Trail(equation))
    return [*current, *outputs[len(carry) :]]


def _known(values: list[Value]) -> list[Any]:
    return [(value.data, value.key) for value in values]


def _counted(turn: Variable, first: Value, before: Number | None, after: Value) -> Number | None:
    """A number in a loop's state at the start of any turn. `before`: any number; `after`: what a turn makes of it."""
    if before is None or after.number is None or first.number is None:
        return before
    stride = after.number.plus(before, -1)
    return before if stride.terms else first.number.plus(multiple(turn, stride.offset))


# Devices


def devices(walk: Any, equation: Any, inputs: list[Value]) -> list[Value]:
    """`jax.shard_map` and `jax.pmap`: a program that runs on every device of a mesh, with a part of each array."""
    parameters, program, sizes = equation.params, equation.params["jaxpr"], dict(equation.params["mesh"].shape)
    manual = parameters.get("newly_manual_axes", parameters.get("manual_axes", sizes))
    found = {name: walk.counter(sizes[name], id(equation), str(name)) for name in sizes if name in manual}
    dealt = [
        {axis: n if isinstance(n, tuple) else (n,) for axis, n in enumerate(spec) if n not in (None, ())}
        for spec in parameters["in_specs"]
    ]
    if len({tuple(d.items()) for d, value in zip(dealt, inputs) if value.data is Data.ROWS}) > 1:
        walk.find("door", "private arrays are dealt out to devices differently", Trail(equation))
    atoms = jaxprs.open_jaxpr(program).invars
    parts = [_part(*given, found, sizes) for given in zip(inputs, dealt, atoms)]
    with walk.within(place=walk.at(id(equation)), variables=walk.variables | set(found.values())):
        outputs = walk.program(program, parts)
    gone: Names = dict.fromkeys(found.values())
    return [value.renamed(gone).derived()._replace(number=None) for value in outputs]


def _part(value: Value, dealt: Any, atom: Any, found: Any, sizes: Any) -> Value:
    """What a device has of an array whose axes are `dealt` out along axes of the mesh: rows as they are, if whole."""
    names: Names = {}
    for axis, mesh_axes in dealt.items():
        place, stride = multiple(("axis", axis)), np.shape(atom.aval)[axis]
        for name in reversed(mesh_axes):
            place, stride = place.plus(multiple(found[name], stride)), stride * sizes[name]
        names["axis", axis] = place
    return value.renamed(names) if set(dealt) <= {0} else value.renamed(names).derived()


RULES: dict[Kind, Callable[[Any, Any, list[Value]], list[Value]]] = {
    Kind.CALL: call, Kind.COND: cond, Kind.SCAN: scan, Kind.WHILE: while_loop, Kind.DEVICES: devices,
}  # fmt: skip
