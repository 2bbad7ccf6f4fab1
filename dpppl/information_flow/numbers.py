"""Integers: transfer functions of the affine domain, exact modulo a power of two, and which of them are in range."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpppl.information_flow.lattice import Affine, Number, Value, Variable, affine, combine
from dpppl.information_flow.primitives import group, named

Lengths = Mapping[Variable, int | None]
"""How many values a variable has, from 0 on; None: not known."""
Rule = Callable[[Variable], Affine | None]

_LONGEST = 100_000


def bits_of(aval: Any) -> int:
    """The bits of an integer's type; 0 for what is no integer."""
    dtype = getattr(aval, "dtype", None)
    is_integer = dtype is not None and jnp.issubdtype(dtype, np.integer)
    return int(np.dtype(dtype).itemsize * 8) if is_integer else 0


def constant(value: Any) -> Number | None:
    """What is known of an array that stands in the program: one number, or an arithmetic progression."""
    bits = bits_of(value)
    if not bits or not 0 < np.size(value) <= _LONGEST or np.ndim(value) > 1:
        return None
    numbers = [int(number) for number in np.ravel(np.asarray(value))]
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    if any(number != numbers[0] + step * k for k, number in enumerate(numbers)):
        return None
    return Number(None, affine(numbers[0], {("axis", 0): step}), bits)


def interval(form: Affine, lengths: Lengths) -> tuple[int, int] | None:
    """Smallest and largest value of an affine form."""
    low = high = form[0]
    for variable, coefficient in form[1]:
        length = lengths.get(variable)
        if length is None:
            return None
        ends = 0, coefficient * max(0, length - 1)
        low, high = low + min(ends), high + max(ends)
    return low, high


def exact(number: Number | None, aval: Any, lengths: Lengths) -> tuple[int, int] | None:
    """The interval of a number, if it is known not to wrap in the type of `aval`."""
    if number is None or number.base is not None or not 0 < bits_of(aval) <= number.bits:
        return None
    axes: Lengths = {("axis", k): length for k, length in enumerate(np.shape(aval))}
    found, limits = interval(number.affine, {**lengths, **axes}), np.iinfo(aval.dtype)
    return found if found is not None and limits.min <= found[0] and found[1] <= limits.max else None


# Rearrangements: which element of the input each element of the output is


def rearrangement(equation: Any, inputs: Sequence[Value], lengths: Lengths) -> Rule | None:
    """For primitives that only rearrange their first input: the form of its axes in those of the output."""
    shapes = np.shape(equation.invars[0].aval) if equation.invars else (), equation.outvars[0].aval.shape
    forms: dict[Any, Affine] | None = None
    if equation.primitive is named("dynamic_slice"):
        forms = _dynamic_slice(equation, inputs, lengths)
    elif equation.primitive in _REARRANGEMENTS:
        forms = _REARRANGEMENTS[equation.primitive](equation.params, *shapes)
    if forms is None:
        return None
    return lambda variable: forms.get(variable[1]) if variable[0] == "axis" else affine(0, {variable: 1})


def _axis(k: int, offset: int = 0, stride: int = 1) -> Affine:
    return affine(offset, {("axis", k): stride})


def _reshape(parameters: Any, old: Sequence[int], new: Sequence[int]) -> dict[Any, Affine] | None:
    long, new_long = ([k for k, n in enumerate(shape) if n != 1] for shape in (old, new))
    if [old[k] for k in long] != [new[k] for k in new_long] or parameters.get("dimensions") is not None:
        return None
    return {k: affine(0) for k in range(len(old))} | {k: _axis(t) for k, t in zip(long, new_long)}


def _dynamic_slice(equation: Any, inputs: Sequence[Value], lengths: Lengths) -> dict[Any, Affine]:
    """Without clamping: only where the index is known to lie inside."""
    forms, new = {}, equation.outvars[0].aval.shape
    for k, (length, value, atom) in enumerate(zip(new, inputs[1:], equation.invars[1:])):
        size, range_ = np.shape(equation.invars[0].aval)[k], exact(value.number, atom.aval, lengths)
        if length == size:
            forms[k] = _axis(k)
        elif value.number is not None and range_ is not None and 0 <= range_[0] and range_[1] <= size - length:
            forms[k] = combine(_axis(k), value.number.affine)
    return forms


_REARRANGEMENTS: dict[Any, Callable[[Any, Any, Any], dict[Any, Affine] | None]] = {
    named("broadcast_in_dim"): lambda p, old, new: {
        k: _axis(t) if old[k] == new[t] else affine(0) for k, t in enumerate(p["broadcast_dimensions"])
    },
    named("squeeze"): lambda p, old, new: _reshape({}, old, new),
    named("reshape"): _reshape,
    named("slice"): lambda p, old, new: {
        k: _axis(k, start, (p["strides"] or (1,) * len(old))[k]) for k, start in enumerate(p["start_indices"])
    },
    named("transpose"): lambda p, old, new: {axis: _axis(k) for k, axis in enumerate(p["permutation"])},
    named("rev"): lambda p, old, new: {
        k: _axis(k, n - 1, -1) if k in p["dimensions"] else _axis(k) for k, n in enumerate(old)
    },
}
"""From the parameters and the shapes before and after."""


# Arithmetic


def computed(equation: Any, inputs: Sequence[Value], lengths: Lengths) -> Number | None:
    """The integer that an equation computes from integers, where that is affine."""
    rule, bits = _ARITHMETIC.get(equation.primitive), bits_of(equation.outvars[0].aval)
    numbers = [value.number for value in inputs]
    if rule is None or not bits or None in numbers:
        return None
    return rule(equation, numbers, lengths, bits)


def _sum(equation: Any, numbers: Sequence[Number], lengths: Lengths, bits: int) -> Number | None:
    (first, second), sign = numbers, 1 if equation.primitive is named("add") else -1
    if (first.base is not None and second.base is not None) or (second.base is not None and sign < 0):
        return None
    return Number(first.base or second.base, combine(first.affine, second.affine, sign), min(first.bits, second.bits))


def _product(equation: Any, numbers: Sequence[Number], lengths: Lengths, bits: int) -> Number | None:
    for first, second in (numbers, numbers[::-1]):
        if second.base is None and not second.affine[1] and first.base is None:
            return Number(None, combine(affine(0), first.affine, second.affine[0]), min(first.bits, second.bits))
    return None


def _converted(equation: Any, numbers: Sequence[Number], lengths: Lengths, bits: int) -> Number | None:
    """To fewer bits, or as many: the same modulo these. To more: only what is known to be in range."""
    (number,), aval = numbers, equation.invars[0].aval
    if bits <= bits_of(aval):
        return number._replace(bits=min(number.bits, bits))
    return number._replace(bits=bits) if exact(number, aval, lengths) is not None else None


def _remainder(equation: Any, numbers: Sequence[Number], lengths: Lengths, bits: int) -> Number | None:
    """Of what is smaller already."""
    first, second = (exact(n, v.aval, lengths) for n, v in zip(numbers, equation.invars))
    inside = first is not None and second is not None and 0 <= first[0] and first[1] < second[0]
    return numbers[0] if inside else None


_ARITHMETIC: dict[Any, Callable[..., Number | None]] = {
    **dict.fromkeys(group("add", "sub"), _sum),
    named("mul"): _product,
    named("convert_element_type"): _converted,
    named("iota"): lambda equation, numbers, lengths, bits: Number(None, _axis(equation.params["dimension"]), bits),
    named("rem"): _remainder,
}


# Conditions


def truth(equation: Any, inputs: Sequence[Value], lengths: Lengths) -> bool | None:
    """Whether a comparison of integers is certainly true, or certainly false."""
    primitive = equation.primitive
    if primitive not in group("lt", "le", "gt", "ge"):
        return None
    first, second = (exact(value.number, atom.aval, lengths) for value, atom in zip(inputs, equation.invars))
    if primitive in group("gt", "le"):  # the other way round, or its contrary
        first, second = second, first
    if first is None or second is None:
        return None
    certain = True if first[1] < second[0] else False if first[0] >= second[1] else None
    return certain if primitive in group("lt", "gt") or certain is None else not certain


def below(equation: Any, inputs: Sequence[Value]) -> tuple[Number, Number] | None:
    """(a, b) of a condition that says a < b, for integers of one type."""
    order = {named("lt"): (0, 1), named("gt"): (1, 0)}.get(equation.primitive)
    if order is None:
        return None
    first, second = (inputs[k].number for k in order)
    return (first, second) if first is not None and second is not None else None
