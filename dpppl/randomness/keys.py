"""Secret keys, each used once, and named streams."""

import contextlib
import hashlib
import os
import threading
import zlib
from collections.abc import Iterator
from contextvars import ContextVar

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import ConfigurationError, KeyReuseError
from dpppl.processes import messages
from dpppl.randomness import chacha
from dpppl.validation import checked

_GENERATORS = {8: "256-bit ChaCha20", 2: "64-bit threefry"}
_issued: set[str] = set()
_claimed: set[str] = set()
_claims = threading.Lock()
_apart: ContextVar[set[str] | None] = ContextVar("claims apart", default=None)


def _after_fork() -> None:
    """Leave the parent's keys to the parent: both processes hold them, and on changed data equal noise cancels."""
    global _claims
    _claims = threading.Lock()
    _claimed.update(_issued)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@checked
def secret_key(generator: str = "chacha20") -> jax.Array:
    """A new key from the operating system's entropy, for privacy noise and subsampling.

    In a program of several processes all call it, and all get the same key, from process 0.

    `generator`: "chacha20", 256 bits (RFC 8439), or "threefry", 64 bits, JAX's own.

    `jax.random.key(seed)` holds at most 32 bits and the seed is usually written in a script: whoever knows it can
    subtract the noise. Keys from here are remembered (as digests, in this process) so that the privacy report can say
    where the randomness came from.

    >>> import dpppl
    >>> dpppl.secret_key().shape
    ()
    """
    if generator not in ("chacha20", "threefry"):
        raise ConfigurationError('secret_key: the generator is "chacha20" or "threefry".')
    length = 32 if generator == "chacha20" else 8
    words = np.frombuffer(bytes.fromhex(messages.from_first("secret key", lambda: os.urandom(length).hex())), np.uint32)
    if isinstance(jnp.zeros(()), jax.core.Tracer):
        raise ConfigurationError(
            "secret_key() was called inside jax.jit or another transform of JAX, where it would be the same key in each call; "
            "make the key outside and pass it in."
        )
    key = chacha.wrap(words) if length == 32 else jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    _issued.add(_digest(key))
    return key


def as_key(key: jax.Array) -> jax.Array:
    """Accept a typed key or raw uint32 key data, one key; return it typed. Raises ConfigurationError otherwise."""
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        typed = key
    elif isinstance(key, jax.Array | np.ndarray) and key.dtype == np.uint32 and key.shape[-1:] in ((8,), (2,)):
        typed = chacha.wrap(key) if key.shape[-1:] == (8,) else jax.random.wrap_key_data(jnp.asarray(key))
    else:
        raise ConfigurationError("rng_key must be a JAX random key; take one from dpppl.secret_key().")
    if typed.ndim:
        raise ConfigurationError(
            "rng_key must be a single key, not a batch; chains are given their own by splitting it."
        )
    return typed


def generator_of(key: jax.Array) -> str:
    """The key's generator and its length, in words."""
    return _GENERATORS.get(jax.random.key_data(key).size, "another generator")


def is_issued(key: jax.Array) -> bool:
    """Whether `secret_key` made this key, in this process."""
    return _digest(key) in _issued


def is_guessable(key: jax.Array) -> bool:
    """Whether the key is one that a short seed gives, as jax.random.PRNGKey(0) does: half of its words are 0."""
    words = np.asarray(jax.random.key_data(key)).ravel()
    return bool(2 * np.count_nonzero(words) <= words.size)


def claim(key: jax.Array, *, again: bool = False) -> None:
    """Mark a key as used. Raises KeyReuseError if the key was used before: on changed data the noise could be subtracted.
    `again`: the run that used the key is resumed."""
    digest, claimed = _digest(key), _claimed if (own := _apart.get()) is None else own
    with _claims:
        if digest in claimed and not again:
            raise KeyReuseError(
                "this key was already used, or comes from the process that this one was forked from; call dpppl.secret_key() "
                "again for every run."
            )
        claimed.add(digest)


@contextlib.contextmanager
def claims_apart() -> Iterator[None]:
    """Inside, this thread claims keys, and its claims have no effect outside: for a run that is replayed."""
    token = _apart.set(set(_claimed))
    try:
        yield
    finally:
        _apart.reset(token)


def stream(key: jax.Array, name: str) -> jax.Array:
    """The sub-key of a named stream; different names give unrelated keys."""
    return jax.random.fold_in(key, np.uint32(zlib.crc32(name.encode())))


def threefry(key: jax.Array) -> jax.Array:
    """A threefry key made of two random words of `key`, for draws that need not be secret: NumPyro and JAX draw counts, among
    others, with no other generator."""
    return jax.random.wrap_key_data(jax.random.bits(key, (2,), jnp.uint32), impl="threefry2x32")


def _digest(key: jax.Array) -> str:
    data = np.asarray(jax.random.key_data(key))
    return hashlib.sha256(data.tobytes()).hexdigest()
