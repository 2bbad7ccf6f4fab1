"""ChaCha20 (RFC 8439) as a JAX random number generator with 256-bit keys.

JAX's own threefry keys have 64 bits, and its guarantee is statistical. Privacy noise has to be unpredictable. On CPUs the
blocks are computed in C where that was built (`native`), elsewhere by XLA: the same words.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl

from dpppl.randomness import native
from dpppl.types import Tree

_CONSTANTS = np.frombuffer(b"expand 32-byte k", np.uint32)
_TAG = "cc20"
_BITS, _SPLIT, _FOLD = (np.uint32(domain) for domain in range(3))


def blocks(key: jax.Array, counter: object, nonce: object, count: int) -> jax.Array:
    """`count` blocks of the keystream, as words (16, count) uint32.

    `key`: (8,) uint32; `counter`: the first block's, uint32; `nonce`: (3,) uint32. Reference: RFC 8439, section 2.3."""
    operands = key, jnp.asarray(counter, jnp.uint32)[None], nonce
    if not native.available():
        return _by_xla(*operands, count=count)
    by_call = partial(native.call, native.BLOCKS, jax.ShapeDtypeStruct((16, count), jnp.uint32))
    return lax.platform_dependent(*operands, cpu=by_call, default=partial(_by_xla, count=count))


@partial(jax.jit, static_argnames="count", inline=True)
def _by_xla(key: jax.Array, counter: jax.Array, nonce: jax.Array, *, count: int) -> jax.Array:
    counters = counter + jnp.arange(count, dtype=jnp.uint32)
    start = (
        jnp.broadcast_to(_CONSTANTS[:, None], (4, count)),
        jnp.broadcast_to(key[:4, None], (4, count)),
        jnp.broadcast_to(key[4:, None], (4, count)),
        jnp.concatenate([counters[None], jnp.broadcast_to(nonce[:, None], (3, count))]),
    )
    rounds = lax.fori_loop(0, 10, lambda _, state: _double_round(*state), start)
    return jnp.concatenate([after + before for after, before in zip(rounds, start)])


def _double_round(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> Tree:
    a, b, c, d = _quarter_rounds(a, b, c, d)
    a, b, c, d = _quarter_rounds(a, jnp.roll(b, -1, 0), jnp.roll(c, -2, 0), jnp.roll(d, -3, 0))
    return a, jnp.roll(b, 1, 0), jnp.roll(c, 2, 0), jnp.roll(d, 3, 0)


def _quarter_rounds(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> Tree:
    for left, right in ((16, 12), (8, 7)):
        a = a + b
        d = _rotate(d ^ a, left)
        c = c + d
        b = _rotate(b ^ c, right)
    return a, b, c, d


def _rotate(words: jax.Array, by: int) -> jax.Array:
    return (words << by) | (words >> (32 - by))


def native_normal(key: jax.Array, count: int) -> jax.Array:
    """8 * `count` normal draws, float64, that `normal.standard_normal` makes of a key's first blocks, on CPUs only."""
    words, nonce = words_of_normal(key)
    like = jax.ShapeDtypeStruct((8, count), jnp.float64)
    return native.call(native.NORMAL, like, words, jnp.zeros(1, jnp.uint32), nonce).reshape(-1)


def words_of_normal(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The words of a key (8,), and the nonce (3,) of what normal draws are made of."""
    return jax.random.key_data(key), jnp.array([0, 0, _BITS], jnp.uint32)


def _words(key: jax.Array, first: object, second: object, domain: object, count: int) -> jax.Array:
    """`count` words of the keystream for a nonce of two numbers and a domain, so that uses never overlap."""
    nonce = jnp.stack([jnp.asarray(first, jnp.uint32), jnp.asarray(second, jnp.uint32), jnp.asarray(domain)])
    return blocks(key, 0, nonce, -(-count // 16)).reshape(-1)[:count]


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    size = int(np.prod(shape))
    words = _words(key, 0, 0, _BITS, -(-size * bit_width // 32))
    if bit_width == 32:
        return words.reshape(shape)
    dtype = {8: jnp.uint8, 16: jnp.uint16, 64: jnp.uint64}[bit_width]
    if bit_width == 64:
        return lax.bitcast_convert_type(words.reshape(-1, 2), dtype).reshape(shape)
    return lax.bitcast_convert_type(words, dtype).reshape(-1)[:size].reshape(shape)


@partial(jax.jit, static_argnames="shape", inline=True)
def _split_words(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return _words(key, 0, 0, _SPLIT, 8 * int(np.prod(shape))).reshape(*shape, 8)


@partial(jax.jit, inline=True)
def _folded_words(key: jax.Array, data: object) -> jax.Array:
    return _words(key, data, 0, _FOLD, 8)


def _split(key: jax.Array, shape: object) -> jax.Array:
    return _split_words(key, shape)  # a function that pickle finds by its name, as it does not that of jax.jit


def _fold_in(key: jax.Array, data: object) -> jax.Array:
    return _folded_words(key, data)


def _seed(seed: object) -> jax.Array:
    """A key from an integer: for tests only, it holds no more bits than the integer."""
    words = jnp.zeros(8, jnp.uint32)
    return words.at[0].set(jnp.asarray(seed).astype(jnp.uint32))


chacha20 = define_prng_impl(
    key_shape=(8,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name="chacha20", tag=_TAG
)
"""The generator, for `jax.random.wrap_key_data(words, impl=chacha20)`."""


def wrap(words: object) -> jax.Array:
    """A typed key from 8 words of key material, (8,) uint32."""
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl=chacha20)


def is_chacha(key: jax.Array) -> bool:
    """Whether a typed key is of this generator."""
    return str(key.dtype) == f"key<{_TAG}>"
