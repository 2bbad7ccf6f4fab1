"""Branches, loops and shards: what decides their course flows into what they compute; loops run to a fixed point."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dpppl.information_flow import keys
from dpppl.information_flow.facts import number_of
from dpppl.information_flow.keys import Use
from dpppl.information_flow.values import Draw, Lost, Number, Raw, Trail, Value, depends_on_rows, join

_MOST_PASSES = 30


def cond(walk, equation, inputs: list[Value]) -> list[Value]:
    """`lax.cond` and `lax.switch`."""
    index, operands, before, results = inputs[0], inputs[1:], walk.branches, []
    point = walk.fresh()
    for number, branch in enumerate(equation.params["branches"]):
        walk.branches = (*before, (point, number))
        results.append(_controlled(walk, index, lambda branch=branch: walk.program(branch, operands)))
    walk.branches = before
    outputs = [_either(walk, values) for values in zip(*results)]
    return [under(index, value._replace(loops=value.loops | index.loops)) for value in outputs]


def under(predicate: Value, output: Value) -> Value:
    """An output of a branch or a loop whose course `predicate` decides."""
    trail = _decided_by(predicate)
    if depends_on_rows(predicate.form):
        why = Lost("a branch or a loop depends on private rows")
        return output._replace(form=why, trail=trail, number=None, key=None, bounds=None)
    if isinstance(predicate.form, Draw):
        output = output._replace(form=join(output.form, Draw(predicate.form.boxes, own=False)))
    if predicate.secret:
        return output._replace(secret=True, key=None, trail=output.trail or trail)
    return output


def _decided_by(predicate: Value) -> Trail | None:
    if depends_on_rows(predicate.form) or predicate.secret:
        return Trail("a branch or the end of a loop", predicate.trail)
    return None


def _controlled(walk, predicate: Value, run: Callable):
    """`run()`, with effects inside refused if the predicate is secret."""
    trail = _decided_by(predicate)
    if trail is None:
        return run()
    walk.control.append(trail)
    outputs = run()
    walk.control.pop()
    return outputs


def _either(walk, values) -> Value:
    first = values[0]
    for other in values[1:]:
        first = Value(
            join(first.form, other.form),
            first.secret or other.secret,
            first.key if first.key == other.key else None,
            first.number if first.number == other.number and first.ident == other.ident else None,
            first.bounds if first.bounds == other.bounds else None,
            first.ident if first.ident == other.ident else walk.fresh(),
            first.loops | other.loops,
            first.trail or other.trail,
        )
    return first


def linear_solve(walk, equation, inputs: list[Value]) -> list[Value]:
    """`lax.custom_linear_solve`: of its programs, `solve` is the one that runs."""
    lengths = equation.params["const_lengths"]
    first = lengths.matvec + lengths.vecmat
    constants, sides = inputs[first : first + lengths.solve], inputs[sum(lengths) :]
    return walk.program(equation.params["jaxprs"].solve, [*constants, *sides])


# Loops


def scan(walk, equation, inputs: list[Value]) -> list[Value]:
    """`lax.scan`. Which inputs are constants, state and slices is read from their ranks: versions of JAX differ."""
    body, length, loop = equation.params["jaxpr"], equation.params["length"], walk.fresh()
    program = getattr(body, "jaxpr", body)

    def longer(outer, inner):
        return [len(a.aval.shape) > len(b.aval.shape) for a, b in zip(outer, inner)]

    num_carry = longer(equation.outvars, program.outvars).count(False)
    num_constants = longer(equation.invars, program.invars).count(False) - num_carry
    constants, carry = inputs[:num_constants], inputs[num_constants : num_constants + num_carry]
    slices = [_slice_of(walk, value, loop) for value in inputs[num_constants + num_carry :]]

    def turn(current):
        outputs = walk.program(body, [*constants, *current, *slices])
        return outputs[:num_carry], outputs[num_carry:]

    current, stacked = _fixed_point(walk, equation, loop, carry, turn, length)
    return [*current, *(_stack_of(walk, value, loop) for value in stacked)]


def while_loop(walk, equation, inputs: list[Value]) -> list[Value]:
    """`lax.while_loop`, and `lax.fori_loop` where the number of turns is not known."""
    parameters, loop = equation.params, walk.fresh()
    num_cond, num_body = parameters["cond_nconsts"], parameters["body_nconsts"]
    for_condition, for_body = inputs[:num_cond], inputs[num_cond : num_cond + num_body]
    carry, predicates = inputs[num_cond + num_body :], [Value()]

    def ended(outputs):
        if walk.door is not None:
            return walk.door.under_loop(predicates[0], outputs)
        return [under(predicates[0], value) for value in outputs]

    def turn(current):
        predicates[:] = walk.program(parameters["cond_jaxpr"], [*for_condition, *current])
        body = lambda: walk.program(parameters["body_jaxpr"], [*for_body, *current])  # noqa: E731
        return ended(_controlled(walk, predicates[0], body)), []

    current, _ = _fixed_point(walk, equation, loop, carry, turn, None)
    return ended(current)


def _fixed_point(walk, equation, loop: int, carry, turn: Callable, length: int | None):
    """Follow turns until what is known of the state no longer changes; the state after the loop, and other outputs."""
    current, mark = list(carry), walk.mark()
    for _ in range(_MOST_PASSES):
        walk.back_to(mark)
        outputs, others = turn(current)
        following = [
            _carried(walk, ("carry", loop, k), before, after, equation.outvars[k].aval)
            for k, (before, after) in enumerate(zip(current, outputs))
        ]
        if [value._replace(trail=None) for value in following] == [value._replace(trail=None) for value in current]:
            break
        current = following
    else:
        walk.find("unknown", "a loop cannot be followed to its end", Trail(equation))
    if length != 1:
        _check_turns(walk, equation, loop, carry, current, outputs, mark[0], length)
    return [_after_loop(walk, loop, k, *pair, length) for k, pair in enumerate(zip(carry, current))], others


def _carried(walk, name, before: Value, after: Value, aval) -> Value:
    """What is known of a loop's variable that is first `before`, and `after` a turn."""
    same, key, number = before.ident == after.ident, before.key, before.number
    if key is not None and key != after.key and (key.root != name or after.key is None):
        is_raw = keys.WORDS in key.axes
        key = keys.root_key(name, aval.shape, is_raw) if after.key is not None else None
    if number != after.number and (number is None or number.base != name):
        number = Number(name, 0)
    return Value(
        join(before.form, after.form),
        before.secret or after.secret,
        key,
        number,
        before.bounds if before.bounds == after.bounds else None,
        before.ident if same else walk.ident(name),
        before.loops if same else before.loops | after.loops | {name[1]},
        before.trail or after.trail,
    )


def _check_turns(walk, equation, loop: int, carry, current, outputs, mark: int, length: int | None) -> None:
    """Refuse noise that two turns of a loop draw from the same key, and rows that all turns choose alike."""
    uses, moved = walk.uses[mark:], {}
    for k, (first, value, after) in enumerate(zip(carry, current, outputs)):
        name = ("carry", loop, k)
        if value.number == Number(name, 0) and after.number is not None and after.number.base == name:
            walk.counters.strides[name] = abs(after.number.offset)
            walk.counters.turns[name] = (number_of(first), after.number.offset, length)
        if value.key is not None and value.key.root == name:
            moved[name] = after.key
            noise = any(use.is_noise and use.key.root == name for use in uses)
            use = Use(first.key, walk.fresh(), equation, walk.branches, walk.scope, noise, hands_over=True)
            walk.uses.append(use)
    for use in uses:
        if use.key.root in moved:
            after = moved[use.key.root]
            evolves = after is not None and after.root == use.key.root and bool(after.parts)
            moves = evolves and walk.counters.unrelated(use.key, after)
        else:
            moves = walk.counters.moves(use.key, loop)
        if use.is_noise and not moves:
            walk.find("key reuse", "turns of a loop may draw the same noise: fold the number of the step into the key, or "
                      "split it", Trail(use.step))  # fmt: skip
        elif use.in_door and walk.door is None and loop not in use.loops:
            walk.find("key reuse", "all turns of a loop choose the same rows: fold the number of the step into the key",
                      Trail(use.step))  # fmt: skip


def _after_loop(walk, loop: int, k: int, first: Value, value: Value, length: int | None) -> Value:
    """A loop's variable when the loop has ended."""
    name, number, key = ("carry", loop, k), value.number, value.key
    if number is not None and number.base == name:
        number = None
        if length is not None and name in walk.counters.turns:
            start, step, _ = walk.counters.turns[name]
            number = Number(start.base, start.offset + step * length)
    if key is not None and key.root == name:
        key = key._replace(root=("after", loop, k))
    ident = value.ident if value.ident == first.ident else walk.ident("after", loop, k)
    return value._replace(number=number, key=key, ident=ident, loops=value.loops - {loop})


def _slice_of(walk, value: Value, loop: int) -> Value:
    """What a turn of a loop sees of an array over whose first axis the loop runs."""
    base = ("slice", loop, value.ident)
    number, key, form = None, value.key, value.form
    if value.number is not None and isinstance(value.number.base, tuple) and value.number.base[0] == "iota":
        number, walk.counters.strides[base] = Number(base, value.number.offset), 1
    if key is not None:
        if key.axes[0] >= 0:
            walk.counters.strides[base] = 1
        key = keys.pick(key, 0, Number(base, 0))
        key = key._replace(axes=key.axes[1:])
    if walk.door is not None:
        form = walk.door.slice_of(form)
    elif isinstance(form, Raw):
        form = Lost("a loop runs over the rows")
    ident = walk.ident("slice", loop, value.ident)
    return value._replace(form=form, number=number, key=key, ident=ident, loops=value.loops | {loop}, pieces=())


def _stack_of(walk, value: Value, loop: int) -> Value:
    """The outputs of all turns, stacked."""
    form = walk.door.stack_of(value.form) if walk.door is not None else value.form
    form = Lost("private rows") if isinstance(form, Raw) else form
    loops = value.loops - {loop}
    return value._replace(form=form, number=None, key=None, ident=walk.fresh(), loops=loops, pieces=())


# Shards


def sharded(walk, equation, inputs: list[Value]) -> list[Value]:
    """`jax.shard_map` and `jax.pmap`: a program that runs on every device. A key that all have must not make noise."""
    loop, mesh = walk.fresh(), equation.params.get("mesh")
    names: Any = getattr(mesh, "axis_names", ())
    if len(names) == 1:
        walk.devices[names[0]], walk.counters.strides["axis", loop] = loop, 1
    specs: Any = equation.params.get("in_specs", ((),) * len(inputs))
    inside = []
    for value, spec in zip(inputs, specs):
        axes = [axis for axis, mapped in enumerate(spec) if mapped not in (None, ())]
        key = value.key
        for axis in axes if key is not None else ():
            if key.axes[axis] >= 0:
                base = ("shard", loop, value.ident)
                walk.counters.strides[base] = 1
                key = keys.pick(key, axis, Number(base, 0))
        if 0 in axes and isinstance(value.form, Raw):
            part = ("shard", loop, str(spec[0]))
            value = value._replace(form=replace(value.form, window=(*value.form.window, part)))
        if axes:
            value = value._replace(
                ident=walk.ident("shard", loop, value.ident), loops=value.loops | {loop}, number=None
            )
        inside.append(value._replace(key=key))
    mark = len(walk.uses)
    outputs = walk.call(equation, inside)
    for use in walk.uses[mark:] if getattr(mesh, "size", 2) > 1 else ():
        if use.is_noise and not walk.counters.moves(use.key, loop):
            walk.find("key reuse", "every device draws the same noise: give each its own key", Trail(use.step))
    lost = Lost("private rows leave a shard")
    return [
        value._replace(form=lost if isinstance(value.form, Raw) else value.form, loops=value.loops - {loop})
        for value in outputs
    ]
