"""Distinct rows from independent draws: which are kept, and how many draws it takes."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.randomness import native
from dpppl.subsampling.scheme import Selection


def distinct_rows(draws: jax.Array, num_rows: int, size: int | jax.Array) -> Selection:
    """The first `size` distinct rows named by 32-bit words, masked out where rejected or repeated."""
    by_xla = functools.partial(_by_sorting, num_rows=num_rows)
    if not native.available():
        return by_xla(draws, size)

    def by_call(draws: jax.Array, size: int | jax.Array) -> Selection:
        like = [jax.ShapeDtypeStruct(draws.shape, dtype) for dtype in (jnp.int32, jnp.bool_)]
        rows, most = jnp.full(1, num_rows, jnp.uint32), jnp.asarray(size, jnp.int32)[None]
        return Selection(*native.call(native.DISTINCT, like, draws, rows, most))

    return lax.platform_dependent(draws, size, cpu=by_call, default=by_xla)


def _by_sorting(draws: jax.Array, size: int | jax.Array, num_rows: int) -> Selection:
    largest_unbiased = np.uint32(2**32 // num_rows * num_rows - 1)
    value = jnp.where(draws <= largest_unbiased, draws % np.uint32(num_rows), np.uint32(num_rows))
    keep = (value < num_rows) & ~_repeats(value)
    index = jnp.minimum(value, np.uint32(num_rows - 1)).astype(jnp.int32)
    return Selection(index, keep & (jnp.cumsum(keep) <= size))


def _repeats(value: jax.Array) -> jax.Array:
    """True where an equal value stands earlier in the array. Sorts (value, position) packed into 64 bits: exact."""
    count = value.shape[0]
    bits = max(1, (count - 1).bit_length())
    with jax.enable_x64(True):
        packed = value.astype(jnp.uint64) * np.uint64(2**bits) + jnp.arange(count, dtype=jnp.uint64)
        packed = lax.sort(packed, is_stable=False)
        same = packed[1:] // np.uint64(2**bits) == packed[:-1] // np.uint64(2**bits)
        position = (packed % np.uint64(2**bits)).astype(jnp.int32)
    same = jnp.concatenate([jnp.zeros(1, bool), same])
    return jnp.zeros(count, bool).at[position].set(same, unique_indices=True, mode="promise_in_bounds")


def tries_needed(size: int, num_rows: int, failure_probability: float) -> int:
    """Draws among which `size` distinct rows are found but with this probability; 4 * num_rows if that is too many."""
    from scipy import stats

    bad = min(1.0, size / num_rows + (2**32 % num_rows) / 2**32)
    if bad > 0.51:
        return 4 * num_rows
    return smallest_meeting(lambda m: stats.binom.sf(m - size, m, bad) <= failure_probability, size)


def smallest_meeting(condition: Callable[[int], bool], start: int) -> int:
    """The smallest integer at or above `start` that meets a monotone condition, by doubling and bisection."""
    step = 1
    while not condition(start + step - 1):
        step *= 2
    low, high = start - 1 + step // 2, start + step - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if condition(middle) else (middle, high)
    return high if not condition(start) else start
