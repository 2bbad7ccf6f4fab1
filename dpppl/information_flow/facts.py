"""What is known of numbers and keys that an equation computes, whatever depends on rows."""

import jax
import numpy as np

from dpppl.information_flow import keys
from dpppl.information_flow.keys import Key
from dpppl.information_flow.primitives import group, known, named
from dpppl.information_flow.values import Number, Value, depends_on_rows

_SAME = group(
    "broadcast_in_dim", "reshape", "squeeze", "convert_element_type", "copy", "stop_gradient", "transpose", "name"
)
_SQUARES = group("mul", "square", "abs")
_ADDING = group("add", "mul", "reduce_sum", "dot_general", "sqrt")


def has_kind(array, kind) -> bool:
    """Whether an array, or an abstract one, holds integers, say, or keys."""
    return hasattr(array, "dtype") and jax.dtypes.issubdtype(array.dtype, kind)


def bounds_of(primitive, inputs: list[Value]) -> tuple[float, float] | None:
    """Smallest and largest element, where that is easy: constants, their products with zero, and sums of squares."""
    if not inputs:
        return None
    if primitive in _SAME:
        return inputs[0].bounds
    if primitive is named("mul") and any(value.bounds == (0.0, 0.0) for value in inputs):
        return 0.0, 0.0
    if primitive in _SQUARES and len({value.ident for value in inputs}) == 1:
        return 0.0, np.inf
    if primitive in _ADDING and all(value.bounds is not None and value.bounds[0] >= 0.0 for value in inputs):
        return 0.0, np.inf
    return None


def number_of(value: Value) -> Number:
    """What is known of an integer; at least that it is itself."""
    return value.number if value.number is not None else Number(("value", value.ident), 0)


def integer_of(equation, inputs: list[Value], devices: dict) -> Number | None:
    """What is known of an integer that an equation computes; of an array of them, what holds element by element."""
    aval, primitive = equation.outvars[0].aval, equation.primitive
    if not has_kind(aval, np.integer) or aval.dtype.itemsize < 4:
        return None
    if primitive is named("iota"):
        return Number(("iota", aval.shape[0]), 0) if len(aval.shape) == 1 else None
    if primitive is named("axis_index"):
        return Number(("axis", devices.get(equation.params["axis_name"])), 0)
    if primitive in _SAME:
        old, reordered = equation.invars[0].aval, primitive is named("transpose")
        if primitive is named("reshape"):
            reordered = equation.params["dimensions"] is not None
        before, after = ([length for length in shape if length != 1] for shape in (np.shape(old), aval.shape))
        aligned = not before or (before == after and not reordered)
        return number_of(inputs[0]) if aligned and has_kind(old, np.integer) else None
    if primitive is named("add") or primitive is named("sub"):
        (a, b), sign = map(number_of, inputs), 1 if primitive is named("add") else -1
        if b.base is None:
            return Number(a.base, a.offset + sign * b.offset)
        if a.base is None and sign == 1:
            return Number(b.base, a.offset + b.offset)
    return None


def key_of(equation, inputs: list[Value]) -> Key | None:
    """Which key an equation makes of the key it is given, or None if that cannot be followed."""
    source, groups, primitive = inputs[0], known().keys, equation.primitive
    if source.key is None or depends_on_rows(source.form):
        return None
    key, parameters = source.key, equation.params
    shape, new_shape = np.shape(equation.invars[0].aval), np.shape(equation.outvars[0].aval)
    if primitive is groups.fold_in:
        return keys.fold_in(key, number_of(inputs[1]), len(new_shape))
    if primitive is groups.split:
        return keys.split(key, tuple(parameters["shape"]))
    if primitive in groups.wrap:
        return key._replace(axes=key.axes[:-1]) if key.axes[-1:] == (keys.WORDS,) else None
    if primitive in groups.unwrap:
        return key._replace(axes=(*key.axes, keys.WORDS))
    if primitive in groups.same or primitive is groups.seed:
        return key
    if primitive is named("slice"):
        return keys.cut(key, parameters["start_indices"], parameters["limit_indices"], parameters["strides"], shape)
    if primitive is named("squeeze"):
        return keys.squeeze(key, [axis % len(shape) for axis in parameters["dimensions"]])
    if primitive is named("reshape") and parameters["dimensions"] is None:
        return keys.rearrange(key, shape, new_shape)
    if primitive is named("transpose"):
        return key._replace(axes=tuple(key.axes[axis] for axis in parameters["permutation"]))
    if primitive is named("broadcast_in_dim"):
        return keys.broadcast(key, shape, new_shape, parameters["broadcast_dimensions"])
    if primitive is named("dynamic_slice") and not any(value.secret for value in inputs[1:]):
        for axis, (length, index) in enumerate(zip(new_shape, inputs[1:])):
            if length == 1 != shape[axis]:
                key = keys.pick(key, axis, number_of(index))
            elif length != shape[axis]:
                return None
        return key
    return None
