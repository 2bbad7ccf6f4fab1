"""Convolutions and max-pooling written so that XLA compiles them well on CPUs also in the bodies of loops.

There only the layout NHWC, HWIO, NHWC reaches the fast kernels, and a gradient by select-and-scatter is slow: all
operations here are the same numbers in that layout, and selections.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun

from dpppl.jaxprs import flattened
from dpppl.types import Document, Equation, Function, Tree

_LAYOUT = ("NHWC", "HWIO", "NHWC")
_LARGEST_WINDOW = 16
_FEW_CHANNELS = 8


def rewrite(function: Function) -> Function:
    """The same function of pytrees of arrays, with these convolutions and this pooling, and their gradients.

    >>> pool = lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    >>> x = jnp.arange(16.0).reshape(1, 4, 4, 1)
    >>> [e.primitive.name for e in jax.make_jaxpr(rewrite(pool))(x).eqns][:3]
    ['slice', 'slice', 'ge']
    """

    def rewritten(*arguments: object) -> Tree:
        program, like = jax.make_jaxpr(function, return_shape=True)(*arguments)
        leaves = jaxpr_as_fun(flattened(program, rule))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    return rewritten


def rule(equation: Equation, operands: Sequence[jax.Array]) -> list[jax.Array] | None:
    """The outputs of a convolution in two dimensions or of a small max-pool, None for all else."""
    name, parameters = equation.primitive.name, equation.params
    if name == "reduce_window_max":
        return _max_pool(parameters, *operands)
    if name != "conv_general_dilated" or len(parameters["window_strides"]) != 2:
        return None
    dilated = {*parameters["lhs_dilation"], *parameters["rhs_dilation"]} != {1}
    grouped = parameters["feature_group_count"] != 1 or parameters["batch_group_count"] != 1
    return None if dilated or grouped else [_convolution(parameters, *operands)]


def _last(spec: Sequence[int]) -> tuple[int, ...]:
    """Axes in the order N, H, W, C of an operand with this specification."""
    return spec[0], *spec[2:], spec[1]


def _convolution(parameters: Document, x: jax.Array, w: jax.Array) -> Tree:
    """The convolution in the fast layout, with gradients in the fast layout."""
    numbers, strides, padding = (parameters[k] for k in ("dimension_numbers", "window_strides", "padding"))
    convolve = functools.partial(
        lax.conv_general_dilated, dimension_numbers=_LAYOUT, precision=parameters["precision"],
        preferred_element_type=parameters["preferred_element_type"],
    )  # fmt: skip

    @jax.custom_vjp
    def run(x: jax.Array, w: jax.Array) -> jax.Array:
        return convolve(x, w, strides, padding)

    def backward(saved: Tree, d: Tree) -> tuple[jax.Array, jax.Array]:
        x, w = saved
        spans = [(d.shape[1 + k] - 1) * strides[k] for k in range(2)]
        lows = [w.shape[k] - 1 - padding[k][0] for k in range(2)]
        room = [(low, x.shape[1 + k] + w.shape[k] - 2 - spans[k] - low) for k, low in enumerate(lows)]
        of_x = convolve(d, w[::-1, ::-1].transpose(0, 1, 3, 2), (1, 1), room, lhs_dilation=strides)
        lows = [padding[k][0] for k in range(2)]
        room = [(low, spans[k] + w.shape[k] - x.shape[1 + k] - low) for k, low in enumerate(lows)]
        of_w = convolve(x.transpose(3, 1, 2, 0), d.transpose(1, 2, 0, 3), (1, 1), room, rhs_dilation=strides)
        return of_x, of_w.transpose(1, 2, 0, 3)

    run.defvjp(lambda x, w: (run(x, w), (x, w)), backward)
    out, into, *space = numbers.rhs_spec
    y = run(x.transpose(_last(numbers.lhs_spec)), w.transpose(*space, into, out))
    return y.transpose(np.argsort(_last(numbers.out_spec)))


def _max_pool(parameters: Document, x: jax.Array) -> list[jax.Array] | None:
    """The largest of shifted arrays; of equal ones the first takes the gradient, as in XLA's own rule."""
    window, strides = parameters["window_dimensions"], parameters["window_strides"]
    dilated = {*parameters["base_dilation"], *parameters["window_dilation"]} != {1}
    if dilated or math.prod(window) > _LARGEST_WINDOW or not jnp.issubdtype(x.dtype, jnp.floating):
        return None
    if any(low or high for low, high in parameters["padding"]):
        x = lax.pad(x, np.asarray(-np.inf, x.dtype), [(low, high, 0) for low, high in parameters["padding"]])
    lengths = [(size - w) // s + 1 for size, w, s in zip(x.shape, window, strides)]

    def shifted(start: tuple[int, ...]) -> jax.Array:
        stop = [first + (n - 1) * s + 1 for first, n, s in zip(start, lengths, strides)]
        return lax.slice(x, start, stop, strides)

    return [functools.reduce(lambda best, y: jnp.where(best >= y, best, y), map(shifted, np.ndindex(*window)))]


def patches(x: jax.Array, parameters: Document, kernel: Sequence[int]) -> jax.Array:
    """The input of each position of a convolution's output: (positions, window, channels in), flat in the last two."""
    numbers, dilation = parameters["dimension_numbers"], parameters["rhs_dilation"]
    room = [(low, high, d - 1) for (low, high), d in zip(parameters["padding"], parameters["lhs_dilation"])]
    x = lax.pad(x.transpose(_last(numbers.lhs_spec)), np.zeros((), x.dtype), [(0, 0, 0), *room, (0, 0, 0)])
    for k in range(len(dilation), 0, -1):  # one axis after the other: the runs of memory that are copied grow
        window, step, stride = kernel[numbers.rhs_spec[1 + k]], dilation[k - 1], parameters["window_strides"][k - 1]
        span = x.shape[k] - (window - 1) * step
        x = jnp.concatenate([lax.slice_in_dim(x, n * step, n * step + span, stride, k) for n in range(window)], -1)
    return x.reshape(-1, x.shape[-1])


def few_channels(parameters: Document, x: jax.Array, w: jax.Array) -> jax.Array | None:
    """A convolution as the product of `patches` and the kernel, or None: XLA's are slow for inputs with few channels."""
    numbers = parameters["dimension_numbers"]
    if x.shape[numbers.lhs_spec[1]] >= _FEW_CHANNELS:
        return None
    out, into, *space = numbers.rhs_spec
    kernel = w.transpose(*space, into, out).reshape(-1, w.shape[out])
    y = lax.dot(patches(x, parameters, w.shape), kernel, precision=parameters["precision"])
    shape = jax.eval_shape(lambda x, w: lax.conv_general_dilated_p.bind(x, w, **parameters), x, w).shape
    y = y.reshape(*(shape[k] for k in _last(numbers.out_spec)))
    return y.transpose(np.argsort(_last(numbers.out_spec)))
