"""Uniform and normal numbers that need not be secret: a hash of a key's words and a counter, several times as fast as threefry.

Statistics of rows draw many numbers for each row and step. An adversary who knew them would learn nothing: they are draws from
the model at a point that is released.
"""

import jax
import jax.numpy as jnp
import numpy as np

_STREAM = 1 << 24  # numbers of one stream of a key; more of them overlap with the next


def uniform(key: jax.Array, shape: tuple[int, ...], stream: int = 0) -> jax.Array:
    """Uniform numbers inside (0, 1), multiples of 2^-24 plus 2^-25.

    - **key** - a key; keys should be independent, as those of `jax.random.fold_in` are.
    - **shape** - that of the result.
    - **stream** - which of the key's numbers: different streams are independent.

    The hash is Wellons' lowbias32 of the counter and the first word, and again with the second word; its bias of avalanche is
    0.17 of 2^-10 (Wellons 2018, hash-prospector).

    >>> bool(jnp.all(uniform(jax.random.key(0), (3,)) == uniform(jax.random.key(0), (4,))[:3]))
    True
    """
    words = jax.random.key_data(key)
    counter = jnp.arange(int(np.prod(shape)), dtype=jnp.uint32).reshape(shape) + np.uint32(stream * _STREAM % 2**32)
    mixed = _mixed(_mixed(counter * np.uint32(0x9E3779B9) + words[0]) + words[1])
    dtype = jnp.result_type(float)
    return (mixed >> 8).astype(jnp.int32).astype(dtype) * dtype.type(2.0**-24) + dtype.type(2.0**-25)


def normal(key: jax.Array, shape: tuple[int, ...], stream: int = 0) -> jax.Array:
    """Standard normal numbers up to 5.4; the arguments are those of `uniform`."""
    return normal_of(uniform(key, shape, stream))


def normal_of(u: jax.Array) -> jax.Array:
    """The standard normal quantile at uniform numbers."""
    return np.sqrt(2.0).astype(u.dtype) * jax.lax.erf_inv(2.0 * u - 1.0)


def _mixed(x: jax.Array) -> jax.Array:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * np.uint32(factor)
    return x ^ (x >> 16)
