"""The discrete Gaussian distribution, drawn with integers alone.

Noise drawn as floating-point numbers is no real number: which of them occur depends on what they are added to, and that
can undo the privacy (Mironov 2012). Whole numbers added to whole numbers leave no such trace.
"""

import functools
import math
from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from dpppl.errors import ConfigurationError
from dpppl.types import Tree

STD = 2.0**31
"""The standard deviation of the numbers drawn: the parameter s of exp(-n^2 / (2 s^2))."""
MOST_NUMBERS = 10**6
"""How many numbers one call draws at most."""
FAILURE_PROBABILITY = 1e-22
"""Bound on the total variation between the numbers of a call and some whose probabilities are all exact to 2e-19."""

_STRIPS, _NUM_STRIPS, _PLACE_BITS = 256, 3328, 23  # to a standard deviation; 13 of these; bits of a place in a strip
_BUCKETS, _THRESHOLD_BITS, _TERMS = 4096, 92, 10

discrete_normal_p = Primitive("dpppl_discrete_normal")


def discrete_normal(key: jax.Array, size: int) -> jax.Array:
    """`size` independent draws of the discrete Gaussian on the integers with parameter `STD`, shape (size,), int64.

    A strip is drawn with the probability of its inner edge, a place in it uniformly, and both are kept with probability
    exp(-y), y = (place^2 + 2 edge place) / (2 STD^2) < .051; what is not kept (1 in 643) is drawn again from fresh bits.
    How often that happens, which may be seen from outside, is independent of the numbers kept. Integer arithmetic
    throughout: the same on every machine.

    Guarantee: the distance in total variation is below 1e-28 a number for the strips' probabilities (rounded to 2^-104)
    and what lies beyond 13 standard deviations; but for that, every probability is right to a factor 1 +- 2e-19, of
    exp(-y) in 64 bits, whatever the number. Accounts charge both.

    Raises ConfigurationError for more than a million numbers.
    Reference: Karney (2016), algorithm D, with narrower strips and exp(-y) by its series.

    >>> discrete_normal(jax.random.key(0), 3).shape
    (3,)
    """
    if size > MOST_NUMBERS:
        raise ConfigurationError(
            f"discretise=True draws at most {MOST_NUMBERS:,} numbers a step; this model has {size:,} latents to move "
            "(times particles). Use discretise=False."
        )
    return discrete_normal_p.bind(key, size=size)


def _draw(key: jax.Array, *, size: int) -> jax.Array:
    """Keys of any shape; see `discrete_normal`."""
    if key.ndim:
        return jax.vmap(functools.partial(_draw, size=size))(key)

    def again(state: Tree) -> Tree:
        iteration, drawn, missing = state
        number, kept = _candidates(jax.random.bits(jax.random.fold_in(key, iteration), (6, size), jnp.uint32))
        return iteration + 1, jnp.where(missing, number, drawn), missing & ~kept

    with jax.enable_x64(True):
        start = (jnp.uint32(0), jnp.zeros(size, jnp.int64), jnp.ones(size, bool))
        return lax.while_loop(lambda state: jnp.any(state[2]), again, start)[1]


def _candidates(words: jax.Array) -> Tree:
    """Numbers (size,), and which to keep, from 192 bits each: (6, size) uint32."""
    mixed, high, low, lowest, first, second = words.astype(jnp.uint64)
    bucket = (high >> 20).astype(jnp.int32)
    rest = ((high & (2**20 - 1)) << 40) | (low << 8) | (mixed & 255)
    threshold, lower, others = (jnp.asarray(table)[bucket] for table in _tables())
    own = (rest < threshold) | ((rest == threshold) & (lowest < lower))
    strip = jnp.where(own, bucket.astype(jnp.uint64), others)
    place = (mixed >> 8) & (2**_PLACE_BITS - 1)
    number = ((strip << _PLACE_BITS) | place).astype(jnp.int64)
    y = (((strip << (_PLACE_BITS + 1)) + place) * place) << 1  # in units of 2^-64
    negative = (mixed >> 31) == 1
    kept = ((first << 32) | second) >= _one_minus_exp(y)
    return jnp.where(negative, -number, number), kept & ~(negative & (number == 0))


def _one_minus_exp(y: jax.Array) -> jax.Array:
    """1 - exp(-y) for y below 1/16; both are uint64, in units of 2^-64. Too large, by less than 3.5 of these."""
    series = [np.uint64(2**64 // math.factorial(n)) for n in range(2, _TERMS + 1)]
    result = jnp.full_like(y, series.pop())
    while series:
        result = series.pop() - _high_product(y, result)
    return y - _high_product(y, _high_product(y, result))


def _high_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """The upper 64 bits of a * b, or up to 2 less."""
    mask = np.uint64(2**32 - 1)
    a_high, a_low, b_high, b_low = a >> 32, a & mask, b >> 32, b & mask
    return a_high * b_high + ((a_high * b_low) >> 32) + ((a_low * b_high) >> 32)


@functools.cache
def _tables() -> tuple[np.ndarray, ...]:
    """Strips by the alias method: bucket k is strip k where 92 random bits are below its threshold, else another.

    The thresholds' upper 60 bits, their lower 32, and the other strips."""
    full = 2**_THRESHOLD_BITS
    with localcontext() as context:
        context.prec = 50
        density = [(-((Decimal(k) / _STRIPS) ** 2) / 2).exp() for k in range(_NUM_STRIPS)]
        scale = Decimal(full * _BUCKETS) / sum(density)
        left = [int((p * scale).to_integral_value()) for p in density] + [0] * (_BUCKETS - _NUM_STRIPS)
    left[0] += full * _BUCKETS - sum(left)
    thresholds, others = [full] * _BUCKETS, list(range(_BUCKETS))
    small, large = [k for k in range(_BUCKETS) if left[k] < full], [k for k in range(_BUCKETS) if left[k] > full]
    while small:
        poor, rich = small.pop(), large[-1]
        thresholds[poor], others[poor] = left[poor], rich
        left[rich] -= full - left[poor]
        if left[rich] <= full:
            large.pop()
        if left[rich] < full:
            small.append(rich)
    upper, lower = zip(*(divmod(threshold, 2**32) for threshold in thresholds))
    return tuple(np.array(table, np.uint64) for table in (upper, lower, others))


@discrete_normal_p.def_impl
def _run(key: jax.Array, *, size: object) -> jax.Array:
    return jax.jit(_draw, static_argnames="size")(key, size=size)


@discrete_normal_p.def_abstract_eval
def _shape(key: jax.Array, *, size: int) -> Tree:
    return jax.core.ShapedArray((*key.shape, size), np.dtype(np.int64))


def _lower(context: object, key: jax.Array, *, size: int) -> Tree:
    with jax.enable_x64(True):
        return mlir.lower_fun(functools.partial(_draw, size=size), multiple_results=False)(context, key)


def _batch(keys: jax.Array, axes: Tree, *, size: int) -> Tree:
    return discrete_normal_p.bind(jnp.moveaxis(keys[0], axes[0], 0), size=size), 0


mlir.register_lowering(discrete_normal_p, _lower)
batching.primitive_batchers[discrete_normal_p] = _batch
