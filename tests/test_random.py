import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import stats

import dpppl
from dpppl import random
from dpppl.errors import ConfigurationError, KeyReuseError
from dpppl.runs.provenance import KeyOrigin

SIZE = 200_000


def words_of(ranks):
    """The words (2, M) that stand for the 53-bit integers `ranks` in `standard_normal`, junk in the unused bits."""
    ranks = np.asarray(ranks, np.uint64)
    high, low = ranks >> np.uint64(26), ranks & np.uint64(2**26 - 1)
    return np.stack([high << np.uint64(5) | np.uint64(31), low << np.uint64(6) | np.uint64(63)]).astype(np.uint32)


def draws_from(monkeypatch, ranks):
    """What `standard_normal` makes of the words for `ranks`, through a compiled program."""
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: jnp.asarray(words_of(ranks)))
    return np.asarray(jax.jit(lambda key: random.standard_normal(key, len(ranks)))(jax.random.key(0)))


def test_the_distribution_is_standard_normal():
    """False-alarm rate 1e-6 for a correct scale; 5 % too large or too small is rejected."""
    noise = np.asarray(random.standard_normal(jax.random.key(1), SIZE))
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert stats.kstest(1.05 * noise, "norm").pvalue < 1e-6
    assert stats.kstest(noise / 1.05, "norm").pvalue < 1e-6


def test_the_extreme_words_give_finite_full_tails(monkeypatch):
    ranks = np.array([0, 1, 2**26 - 1, 2**26, 2**52 - 1])
    ranks = np.concatenate([ranks, 2**53 - 1 - ranks[::-1]])
    noise = draws_from(monkeypatch, ranks)
    assert noise.dtype == np.float64
    assert np.all(np.isfinite(noise)) and np.all(np.diff(noise) > 0)
    assert np.array_equal(noise, -noise[::-1])
    assert 8.1 < noise[-1] < 8.4
    single = float(np.sqrt(2) * lax.erf_inv(np.nextafter(np.float32(1), np.float32(0))))
    assert single < 5.5  # float32 would stop here


def test_quantiles_agree_with_scipy_far_beyond_six_standard_deviations(monkeypatch):
    tails = np.array([1e-2, 1e-5, 1e-8, 1e-10, 1e-12, 1e-14, 1e-15, 2.0**-53])
    ranks = (tails * 2**53).astype(np.uint64)
    exact = stats.norm.ppf((ranks + 0.5) / 2.0**53)
    noise = draws_from(monkeypatch, np.concatenate([ranks, 2**53 - 1 - ranks]))
    np.testing.assert_allclose(noise, np.concatenate([exact, -exact]), rtol=1e-9)
    assert exact[4] < -7.0 and exact[-1] < -8.0


def test_all_53_bits_matter(monkeypatch):
    """Each bit of the integer moves the draw, so no word is thrown away."""
    noise = draws_from(monkeypatch, [0, *(2**bit for bit in range(53))])
    assert len(np.unique(noise)) == 54


def test_it_works_inside_every_transformation(x64):
    key, size = jax.random.key(3), 5
    expected = np.asarray(random.standard_normal(key, size))
    assert expected.dtype == np.float64

    def narrow(key):
        return random.standard_normal(key, size).astype(jnp.float32)

    def looped(key):
        return lax.fori_loop(0, 2, lambda i, out: out.at[i].set(narrow(key)), jnp.zeros((2, size), jnp.float32))

    @jax.jit
    def everywhere(key):
        keys = jnp.stack([key, key])
        wide = random.standard_normal(key, size)
        vmapped = jax.vmap(narrow)(keys)[1]
        scanned = lax.scan(lambda carry, key: (carry, narrow(key)), 0, keys)[1][1]
        return wide, narrow(key), vmapped, scanned, jax.vmap(looped)(keys)[1, 1]

    wide, *others = everywhere(key)
    assert wide.dtype == np.float64
    np.testing.assert_allclose(wide, expected, rtol=1e-14)
    for result in others:
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_streams_and_keys_are_unrelated():
    """False-alarm rate about 1e-6 a pair: |r| sqrt(n) is nearly standard normal. A stream shared at 5 % is seen."""
    key = jax.random.key(5)
    keys = [
        random.stream(key, "noise"),
        random.stream(key, "subsampling"),
        random.stream(jax.random.key(6), "noise"),
        key,
    ]
    draws = np.array([random.standard_normal(k, SIZE) for k in keys])

    def related(a, b):
        return abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(SIZE) > 4.9

    assert not any(related(draws[i], draws[j]) for i in range(4) for j in range(i))
    assert related(draws[0], draws[1] + 0.05 * draws[0])


def test_a_stream_is_a_function_of_key_and_name():
    key = jax.random.key(5)
    assert random.stream(key, "noise") == random.stream(key, "noise")
    assert random.stream(key, "noise") != random.stream(key, "initial values")


@pytest.mark.parametrize(("generator", "size"), [("chacha20", 32), ("threefry", 8)])
def test_a_secret_key_is_the_operating_systems_entropy(monkeypatch, generator, size):
    monkeypatch.setattr(random.os, "urandom", lambda count: bytes(range(1, count + 1)))
    key = dpppl.secret_key(generator)
    assert jax.random.key_data(key).tobytes() == bytes(range(1, size + 1))


@pytest.mark.parametrize(("generator", "bits"), [("chacha20", 256), ("threefry", 64)])
def test_every_bit_of_a_secret_key_matters(monkeypatch, generator, bits):
    keys = []
    for bit in range(bits):
        monkeypatch.setattr(random.os, "urandom", lambda count, bit=bit: (1 << bit).to_bytes(count, "little"))
        keys.append(dpppl.secret_key(generator))
    draw = jax.jit(jax.vmap(lambda key: jax.random.bits(random.stream(key, "noise"), (2,), jnp.uint32)))
    assert len(np.unique(draw(jnp.stack(keys)), axis=0)) == bits


def test_a_key_is_claimed_once_in_whatever_form_it_comes():
    key = dpppl.secret_key()
    random.claim(key)
    with pytest.raises(KeyReuseError, match="already used"):
        random.claim(key)
    with pytest.raises(KeyReuseError):
        random.claim(random.as_key(np.asarray(jax.random.key_data(key))))
    random.claim(dpppl.secret_key())


def test_the_origin_of_a_key_is_told():
    assert str(KeyOrigin.of(dpppl.secret_key())) == "the operating system's entropy (256-bit ChaCha20)"
    assert "64-bit threefry" in str(KeyOrigin.of(dpppl.secret_key("threefry")))
    assert "supplied by the caller" in str(KeyOrigin.of(jax.random.split(dpppl.secret_key())[0]))
    for short in (jax.random.key(0), jax.random.PRNGKey(12_345_678), jax.random.key(7, impl="rbg")):
        assert "short seed that can be guessed" in str(KeyOrigin.of(random.as_key(short)))


@pytest.mark.parametrize("wrong", [0, 1.5, None, "key", np.zeros(2, np.int32)])
def test_what_is_not_a_key_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="secret_key"):
        random.as_key(wrong)


def test_a_batch_of_keys_is_refused():
    with pytest.raises(ConfigurationError, match="single key"):
        random.as_key(jax.random.split(jax.random.key(0)))


def test_raw_key_data_are_accepted():
    key = jax.random.key(7)
    assert random.as_key(jax.random.key_data(key)) == key
