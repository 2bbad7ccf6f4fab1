"""The ChaCha20 generator: the vectors of RFC 8439, and JAX's calling convention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpppl.randomness import chacha, native

KEY = np.frombuffer(bytes(range(32)), np.uint32)


@pytest.fixture(params=["native", "XLA"], autouse=True)
def way(request, monkeypatch):
    """Both ways to compute blocks."""
    if request.param == "XLA":
        monkeypatch.setattr(native, "available", lambda: False)
    elif not native.available():
        pytest.skip("no C extension")


def block(key, counter, nonce):
    words = chacha.blocks(jnp.asarray(key), counter, jnp.asarray(nonce), 1)
    return np.asarray(words)[:, 0].tobytes()


def test_the_block_of_section_2_3_2():
    nonce = np.frombuffer(bytes.fromhex("000000090000004a00000000"), np.uint32)
    assert block(KEY, 1, nonce).hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


@pytest.mark.parametrize(
    ("last_byte_of_key", "counter", "expected"),
    [
        (0, 0, "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"),
        (0, 1, "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"),
        (1, 1, "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"),
    ],
)
def test_the_keystreams_of_appendix_a_1(last_byte_of_key, counter, expected):
    key = np.frombuffer(bytes(31) + bytes([last_byte_of_key]), np.uint32)
    assert block(key, counter, np.zeros(3, np.uint32)).hex().startswith(expected)


@pytest.mark.parametrize("count", [1, 3, 16, 37, 2_060])
def test_several_blocks_are_one_keystream(count):
    nonce = np.arange(3, dtype=np.uint32)
    together = np.asarray(chacha.blocks(jnp.asarray(KEY), 5, jnp.asarray(nonce), count))
    some = sorted({0, count // 2, count - 1})
    assert [together[:, i].tobytes() for i in some] == [block(KEY, 5 + i, nonce) for i in some]


def test_derived_keys_and_draws_never_share_a_keystream():
    key = chacha.wrap(KEY)
    streams = [jax.random.key_data(k).tobytes() for k in jax.random.split(key, 4)]
    streams += [jax.random.key_data(jax.random.fold_in(key, i)).tobytes() for i in range(4)]
    streams += [jax.random.bits(key, (8,)).tobytes(), KEY.tobytes()]
    assert len(set(streams)) == len(streams)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint32])
def test_bits_of_every_width_are_uniform(dtype):
    draws = np.asarray(jax.random.bits(chacha.wrap(KEY), (640_000,), dtype)).astype(np.float64)
    counts = np.bincount((draws / 2.0 ** (8 * np.dtype(dtype).itemsize) * 16).astype(int), minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-6
    counts[0] += counts[0] // 20
    assert stats.chisquare(counts).pvalue < 1e-6  # a cell 5 % too heavy is seen


def test_it_can_be_mapped_and_scanned():
    keys = jax.random.split(chacha.wrap(KEY), 3)
    mapped = jax.vmap(lambda key: jax.random.bits(key, (4,)))(keys)
    scanned = jax.lax.scan(lambda carry, key: (carry, jax.random.bits(key, (4,))), 0, keys)[1]
    single = jnp.stack([jax.random.bits(key, (4,)) for key in keys])
    assert (mapped == single).all() and (scanned == single).all()
