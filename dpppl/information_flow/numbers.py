"""Integers: transfer functions of the affine domain, exact modulo a power of two, and which of them are in range."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpppl.information_flow.lattice import Names, Number, Value, Variable, multiple
from dpppl.information_flow.primitives import named

Lengths = Mapping[Variable, int | None]
"""How many values a variable has, from 0 on; None, or not in it: not known."""


def bits_of(aval: Any) -> int:
    """The bits of an integer's type, 1 of a truth's; 0 for what is neither."""
    dtype = getattr(aval, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.integer):
        return int(dtype == np.bool_)
    return int(jnp.iinfo(dtype).bits)


def constant(value: Any) -> Number | None:
    """A number that stands in the program."""
    bits = bits_of(value)
    return Number(int(np.asarray(value).item()), (), bits) if bits and np.size(value) == 1 else None


def exact(number: Number | None, aval: Any, lengths: Lengths) -> tuple[int, int] | None:
    """The smallest and the largest value of a number, if it is known not to wrap in the type of `aval`."""
    bits, axes = bits_of(aval), np.shape(aval)
    if number is None or not 0 < bits <= number.bits:
        return None
    low = high = number.offset
    for variable, coefficient in number.terms:
        length = axes[variable[1]] if variable[0] == "axis" else lengths.get(variable)
        if length is None:
            return None
        ends = 0, coefficient * max(0, length - 1)
        low, high = low + min(ends), high + max(ends)
    least, most = (0, 1) if bits == 1 else (int(jnp.iinfo(aval.dtype).min), int(jnp.iinfo(aval.dtype).max))
    return (low, high) if least <= low and high <= most else None


# Rearrangements: which element of the input each element of the output is


def rearrangements(equation: Any, inputs: Sequence[Value], lengths: Lengths) -> list[Names]:
    """Of a primitive that only rearranges its first input: the axes of that in terms of the axes of each output."""
    rule, old = _REARRANGEMENTS.get(equation.primitive), np.shape(equation.invars[0].aval) if inputs else ()
    if equation.primitive is named("unstack"):
        apart = equation.params["axis"]
        kept: Names = {("axis", k): _axis(k - (k > apart)) for k in range(len(old))}
        return [kept | {("axis", apart): Number(n)} for n in range(len(equation.outvars))]
    if rule is None:
        return []
    new = np.shape(equation.outvars[0].aval)
    starts = [
        value.number if _inside(exact(value.number, atom.aval, lengths), old[k] - new[k]) else None
        for k, (value, atom) in enumerate(zip(inputs[1:], equation.invars[1:]))
    ]
    found = rule(equation.params, old, new, starts)
    return [{("axis", k): found.get(k) for k in range(len(old))}]


def _inside(range_: tuple[int, int] | None, most: int) -> bool:
    return range_ is not None and 0 <= range_[0] and range_[1] <= most


def _axis(k: int, offset: int = 0, stride: int = 1) -> Number:
    return multiple(("axis", k), stride, offset)


def _dynamic_slice(parameters: Any, old: Any, new: Any, starts: Sequence[Number | None]) -> dict[int, Number]:
    """Without clamping: only where the index is known to lie inside."""
    known = {k: start._replace(bits=64).plus(_axis(k)) for k, start in enumerate(starts) if start is not None}
    return known | {k: _axis(k) for k in range(len(old)) if old[k] == new[k]}


def _reshape(parameters: Any, old: Any, new: Any, starts: Any) -> dict[int, Number]:
    """Where only axes of length 1 come or go."""
    long, new_long = ([k for k, n in enumerate(shape) if n != 1] for shape in (old, new))
    if [old[k] for k in long] != [new[k] for k in new_long]:
        return {}
    return {k: Number(0) for k in range(len(old))} | {k: _axis(t) for k, t in zip(long, new_long)}


_REARRANGEMENTS: dict[Any, Callable[[Any, Any, Any, Any], dict[int, Number]]] = {
    named("broadcast_in_dim"): lambda p, old, new, _: {
        k: _axis(t) if old[k] == new[t] else Number(0) for k, t in enumerate(p["broadcast_dimensions"])
    },
    named("squeeze"): _reshape,
    named("reshape"): _reshape,
    named("slice"): lambda p, old, new, _: {
        k: _axis(k, start, (p["strides"] or (1,) * len(old))[k]) for k, start in enumerate(p["start_indices"])
    },
    named("transpose"): lambda p, old, new, _: {axis: _axis(k) for k, axis in enumerate(p["permutation"])},
    named("dynamic_slice"): _dynamic_slice,
}
"""From the parameters, the shapes before and after, and indices that are known to lie inside."""


# Arithmetic


def computed(equation: Any, inputs: Sequence[Value], lengths: Lengths) -> Number | None:
    """The integer that an equation computes from integers, where that is affine."""
    rule, numbers = _ARITHMETIC.get(equation.primitive), [value.number for value in inputs]
    if rule is None or None in numbers or not bits_of(equation.outvars[0].aval):
        return None
    return rule(equation, numbers, lengths)


def _product(equation: Any, numbers: Sequence[Number], lengths: Lengths) -> Number | None:
    first, second = numbers if not numbers[1].terms else numbers[::-1]
    return None if second.terms else Number(0, (), second.bits).plus(first, second.offset)


def _converted(equation: Any, numbers: Sequence[Number], lengths: Lengths) -> Number | None:
    """To fewer bits, or as many: the same modulo these. To more: only what is known to be in range."""
    (number,), old, new = numbers, equation.invars[0].aval, bits_of(equation.outvars[0].aval)
    if new <= bits_of(old):
        return number._replace(bits=min(number.bits, new)) if new > 1 else None
    return number._replace(bits=new) if exact(number, old, lengths) is not None else None


def _less(equation: Any, numbers: Sequence[Number], lengths: Lengths) -> Number | None:
    """Where it is certain."""
    first, second = (exact(number, atom.aval, lengths) for number, atom in zip(numbers, equation.invars))
    if first is None or second is None or (second[0] <= first[1] and first[0] < second[1]):
        return None
    return Number(int(first[1] < second[0]), (), 1)


_ARITHMETIC: dict[Any, Callable[[Any, Any, Lengths], Number | None]] = {
    named("add"): lambda equation, numbers, lengths: numbers[0].plus(numbers[1]),
    named("sub"): lambda equation, numbers, lengths: numbers[0].plus(numbers[1], -1),
    named("mul"): _product,
    named("convert_element_type"): _converted,
    named("iota"): lambda equation, numbers, lengths: _axis(equation.params["dimension"])._replace(
        bits=bits_of(equation.outvars[0].aval)
    ),
    named("lt"): _less,
}


def below(equation: Any, inputs: Sequence[Value]) -> tuple[Number, Number] | None:
    """(a, b) of a condition that says a < b, for integers of one type, and perhaps more."""
    if equation.primitive is named("and"):
        return inputs[0].below or inputs[1].below
    if equation.primitive is not named("lt") or inputs[0].number is None or inputs[1].number is None:
        return None
    return inputs[0].number, inputs[1].number
