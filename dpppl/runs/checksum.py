"""A number that identifies rows, wherever they lie: against mistakes, not attacks.

Each row's bits are mixed into one number of 64 bits, this with the number of the row, and all are added up, modulo 2^64. So the
sum depends on the rows and their order, and not on how they are sharded over devices and processes, none of which is sent a row
of another. Somebody who may choose rows can find others with the same sum.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def checksum(arrays: Any, num_rows: int) -> list[tuple[int, str, tuple[int, ...]]]:
    """For each array (length, ...) its sum over the first `num_rows` rows, with type and shape.

    >>> checksum(np.array([1.0, 2.0], np.float32), 2) == checksum(np.array([1.0, 2.0, 3.0], np.float32), 2)
    True
    >>> checksum(np.array([1.0, 2.0], np.float32), 2) == checksum(np.array([2.0, 1.0], np.float32), 2)
    False
    """
    with jax.enable_x64(True):
        sums = [_total(x, num_rows) for x in jax.tree.leaves(arrays)]
    shapes = [(str(x.dtype), (num_rows, *x.shape[1:])) for x in jax.tree.leaves(arrays)]
    return [(int(np.asarray(total)), *shape) for total, shape in zip(sums, shapes)]


@functools.partial(jax.jit, static_argnums=1)
def _total(array: Any, num_rows: int) -> Any:
    words = _words(array).reshape(array.shape[0], -1)
    places = jnp.arange(1, words.shape[1] + 1, dtype=jnp.uint64)
    of_rows = jnp.sum(_mixed(words + places * np.uint64(_GOLDEN)), axis=1)
    numbers = jnp.arange(1, array.shape[0] + 1, dtype=jnp.uint64)
    mixed = _mixed(of_rows ^ _mixed(numbers * np.uint64(_GOLDEN)))
    return jnp.sum(jnp.where(numbers <= num_rows, mixed, np.uint64(0)))


def _words(array: Any) -> Any:
    """The bits of each number."""
    if jnp.iscomplexobj(array):
        return jnp.stack([_words(array.real), _words(array.imag)], axis=-1)
    if array.dtype == bool:
        return array.astype(jnp.uint64)
    return jax.lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}").astype(jnp.uint64)


def _mixed(words: Any) -> Any:
    """SplitMix64's finaliser, a bijection (Steele, Lea, Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))
