import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax import lax
from scipy import stats

import dpppl
from dpppl.errors import ConfigurationError, KeyReuseError
from dpppl.randomness import chacha, keys, native, normal
from dpppl.report.provenance import KeyOrigin

SIZE = 200_000


def draws_from(words):
    """What `standard_normal` makes of words (4, M), through a compiled program: (2, M)."""
    with jax.enable_x64(True):
        return np.asarray(jax.jit(normal._box_muller)(jnp.asarray(words, jnp.uint32)))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("key", [dpppl.randomness.chacha.wrap, jax.random.key], ids=["native", "XLA"])
def test_the_distribution_is_standard_normal(key):
    """False-alarm rate 2e-6 for a correct scale; 5 % too large or too small is rejected, and so are related pairs."""
    noise = np.asarray(normal.standard_normal(key(1 if key is jax.random.key else np.arange(8)), SIZE))
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert stats.kstest(1.05 * noise, "norm").pvalue < 1e-6
    assert stats.kstest(noise / 1.05, "norm").pvalue < 1e-6
    one, other = noise.reshape(2, -1)
    angles = np.arctan2(other, one)
    assert stats.kstest(angles, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-6
    assert stats.kstest(np.arctan2(other, one + 0.05), stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue < 1e-6
    assert abs(np.corrcoef(one**2, other**2)[0, 1]) * np.sqrt(SIZE / 2) < 4.9


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("size", [1, 8, 109, 1_000, 20_001])
def test_the_native_draws_are_those_of_xla(size):
    if not native.available():
        pytest.skip("no C extension")
    subkeys = jnp.stack([chacha.wrap(np.arange(8)), dpppl.secret_key()])
    drawn = np.asarray(jax.vmap(lambda key: normal.standard_normal(key, size))(subkeys))
    for key, of_key in zip(subkeys, drawn):
        words = jax.random.bits(key, (4, 4 * -(-size // 8)), jnp.uint32)
        np.testing.assert_allclose(of_key, draws_from(words).ravel()[:size], rtol=4e-15)
        assert np.array_equal(of_key, normal.standard_normal(key, size))


def test_the_native_draws_are_those_of_ieee_arithmetic_bit_for_bit():
    """Each operation rounded by itself, so that every processor draws the same; fused multiplications and additions differ."""
    if not native.available():
        pytest.skip("no C extension")
    key = chacha.wrap(np.arange(8))
    words = jax.random.bits(key, (4, 500), jnp.uint32)
    with jax.enable_x64(True):
        each_alone = np.ravel(normal._box_muller(words))  # not compiled as one program
    assert np.array_equal(normal.standard_normal(key, 1_000), each_alone)


def test_draws_are_exact_functions_of_their_words():
    """Against 40 digits: radii from the whole range, all directions. Rounding U to 53 bits moves r^2 by up to 2.3e-16."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (4, 300), dtype=np.uint32)
    shifts = np.arange(300, dtype=np.uint32) % 32
    words[0] = np.where(np.arange(300) % 2, words[0] >> shifts, ~(words[0] >> shifts))
    words[2, :100] &= ~np.uint32(0) << np.uint32(30)
    drawn = draws_from(words)
    with mpmath.workdps(40):
        for k, (high, low, angle, fine) in enumerate(words.T.astype(object)):
            u = mpmath.mpf(high * 2**32 + low) / 2**64 + mpmath.mpf(2) ** -65
            low_bits = angle % 2**30
            turn = (low_bits - 2**30 * (low_bits >= 2**29)) * 2**32 + fine + mpmath.mpf(0.5)
            x, radius = turn / mpmath.mpf(2) ** 62 * mpmath.pi / 2, mpmath.sqrt(-2 * mpmath.log(u))
            pair = mpmath.cos(x) * (-1) ** (angle >> 31), mpmath.sin(x)
            pair = pair[::-1] if angle >> 30 & 1 else pair
            for found, exact in zip(drawn[:, k], pair):
                assert abs(found / exact - radius) <= 2.3e-16 / radius + 1e-15 * radius


def test_the_extreme_words_give_finite_full_tails():
    top = 2**32 - 1
    smallest, largest = draws_from([[0, top], [0, top], [0, 0], [0, 0]]).T
    assert np.isfinite(smallest).all() and np.isfinite(largest).all()
    assert abs(np.hypot(*smallest) - np.sqrt(2 * 65 * np.log(2))) < 1e-12  # 9.49: a mass of 2^-65 beyond
    assert np.hypot(*largest) < 2e-8
    single = float(np.sqrt(2) * lax.erf_inv(np.nextafter(np.float32(1), np.float32(0))))
    assert single < 5.5  # float32 would stop here


def test_radii_have_the_right_tail_far_beyond_six_standard_deviations():
    tails = np.array([1e-2, 1e-5, 1e-8, 1e-10, 1e-12, 1e-15, 1e-18])
    ranks = [int(tail * 2**64) for tail in tails]
    words = np.array([[rank >> 32 for rank in ranks], [rank % 2**32 for rank in ranks], [0] * 7, [0] * 7])
    np.testing.assert_allclose(stats.chi2.sf(np.sum(draws_from(words) ** 2, axis=0), 2), tails, rtol=2e-2)


def test_all_128_bits_matter():
    """Each bit moves the pair, so no word is thrown away."""
    flipped = np.zeros((4, 129), np.uint32)
    for bit in range(128):
        flipped[bit // 32, bit] = 1 << bit % 32
    assert len(np.unique(draws_from(flipped), axis=1).T) == 129


@pytest.mark.quick_cases(1)
def test_it_works_inside_every_transformation(x64):
    key, size = jax.random.key(3), 5
    expected = np.asarray(normal.standard_normal(key, size))
    assert expected.dtype == np.float64

    def narrow(key):
        return normal.standard_normal(key, size).astype(jnp.float32)

    def looped(key):
        return lax.fori_loop(0, 2, lambda i, out: out.at[i].set(narrow(key)), jnp.zeros((2, size), jnp.float32))

    @jax.jit
    def everywhere(key):
        subkeys = jnp.stack([key, key])
        wide = normal.standard_normal(key, size)
        vmapped = jax.vmap(narrow)(subkeys)[1]
        scanned = lax.scan(lambda carry, key: (carry, narrow(key)), 0, subkeys)[1][1]
        return wide, narrow(key), vmapped, scanned, jax.vmap(looped)(subkeys)[1, 1]

    wide, *others = everywhere(key)
    assert wide.dtype == np.float64
    np.testing.assert_allclose(wide, expected, rtol=1e-14)
    for result in others:
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_streams_and_keys_are_unrelated():
    """False-alarm rate about 1e-6 a pair: |r| sqrt(n) is nearly standard normal. A stream shared at 5 % is seen."""
    key = jax.random.key(5)
    subkeys = [
        keys.stream(key, "noise"),
        keys.stream(key, "subsampling"),
        keys.stream(jax.random.key(6), "noise"),
        key,
    ]
    draw = jax.jit(lambda key: normal.standard_normal(key, SIZE))
    draws = np.array([draw(k) for k in subkeys])

    def related(a, b):
        return abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(SIZE) > 4.9

    assert not any(related(draws[i], draws[j]) for i in range(4) for j in range(i))
    assert related(draws[0], draws[1] + 0.05 * draws[0])


def test_a_stream_is_a_function_of_key_and_name():
    key = jax.random.key(5)
    assert keys.stream(key, "noise") == keys.stream(key, "noise")
    assert keys.stream(key, "noise") != keys.stream(key, "initial values")


@pytest.mark.parametrize(("generator", "size"), [("chacha20", 32), ("threefry", 8)])
def test_a_secret_key_is_the_operating_systems_entropy(monkeypatch, generator, size):
    monkeypatch.setattr(keys.os, "urandom", lambda count: bytes(range(1, count + 1)))
    key = dpppl.secret_key(generator)
    assert jax.random.key_data(key).tobytes() == bytes(range(1, size + 1))


@pytest.mark.parametrize(("generator", "bits"), [("chacha20", 256), ("threefry", 64)])
def test_every_bit_of_a_secret_key_matters(monkeypatch, generator, bits):
    subkeys, others = [], int.from_bytes(bytes(range(3, 3 + bits // 8)), "little")  # no key that a seed gives
    for bit in range(bits):
        monkeypatch.setattr(keys.os, "urandom", lambda count, bit=bit: (others ^ 1 << bit).to_bytes(count, "little"))
        subkeys.append(dpppl.secret_key(generator))
    draw = jax.jit(jax.vmap(lambda key: jax.random.bits(keys.stream(key, "noise"), (2,), jnp.uint32)))
    assert len(np.unique(draw(jnp.stack(subkeys)), axis=0)) == bits


def test_a_key_is_claimed_once_in_whatever_form_it_comes():
    key = dpppl.secret_key()
    keys.claim(key)
    with pytest.raises(KeyReuseError, match="already used"):
        keys.claim(key)
    with pytest.raises(KeyReuseError):
        keys.claim(keys.as_key(np.asarray(jax.random.key_data(key))))
    keys.claim(dpppl.secret_key())


def test_the_origin_of_a_key_is_told():
    assert str(KeyOrigin.of(dpppl.secret_key())) == "the operating system's entropy (256-bit ChaCha20)"
    assert "64-bit threefry" in str(KeyOrigin.of(dpppl.secret_key("threefry")))
    assert "supplied by the caller" in str(KeyOrigin.of(jax.random.split(dpppl.secret_key())[0]))
    for short in (jax.random.key(0), jax.random.PRNGKey(12_345_678), jax.random.key(7, impl="rbg")):
        assert "short seed that can be guessed" in str(KeyOrigin.of(keys.as_key(short)))


@pytest.mark.parametrize("wrong", [0, 1.5, None, "key", np.zeros(2, np.int32)])
def test_what_is_not_a_key_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="secret_key"):
        keys.as_key(wrong)


def test_a_batch_of_keys_is_refused():
    with pytest.raises(ConfigurationError, match="single key"):
        keys.as_key(jax.random.split(jax.random.key(0)))


def test_raw_key_data_are_accepted():
    key = jax.random.key(7)
    assert keys.as_key(jax.random.key_data(key)) == key


def test_a_batch_of_raw_keys_is_no_key():
    for size in (2, 8):
        with pytest.raises(dpppl.ConfigurationError, match="must be a single key, not a batch"):
            keys.as_key(np.ones((3, size), np.uint32))
    for wrong in (np.ones(3, np.uint32), np.ones(2, np.int64), [1, 2], None):
        with pytest.raises(dpppl.ConfigurationError, match="must be a JAX random key"):
            keys.as_key(wrong)
