"""The private histogram of norms: what leaves the door, and what is read from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpppl.access import norm_histogram as norms
from dpppl.access.norm_histogram import LOWEST, NUM_BINS, Norms, gradient_norm, histogram_mechanism, noisy_histogram
from dpppl.errors import ConfigurationError

ROWS = np.exp(np.random.default_rng(0).standard_normal((500, 1))).astype(np.float32)


@jax.jit
def histogram(rows, key, noise_multiplier=1e-6):
    """Of the norms of gradients that are the rows themselves."""
    statistic = gradient_norm(lambda z, row, public: z * row[0])
    return noisy_histogram(statistic, jnp.zeros(()), rows, {}, key=key, noise_multiplier=noise_multiplier)


def expected(rows):
    number = np.floor(np.log2(np.maximum(rows[:, 0], 1e-30))) - LOWEST
    return np.bincount(np.clip(number, 0, NUM_BINS - 1).astype(int), minlength=NUM_BINS)


def test_rows_are_counted_by_octave():
    rows = np.concatenate([ROWS, [[0.0], [1e30]]]).astype(np.float32)
    np.testing.assert_allclose(histogram(rows, jax.random.key(0)), expected(rows), atol=1e-3)
    missing = np.concatenate([ROWS, [[np.nan], [np.inf]]]).astype(np.float32)
    np.testing.assert_allclose(histogram(missing, jax.random.key(0)), expected(ROWS), atol=1e-3)  # adds nothing


def test_a_row_moves_the_counts_by_one_and_the_noise_is_what_is_charged():
    """The noise's variance over 40 bins and 50 keys, false-alarm rate 1e-5; an sd 7 % off is found."""
    one_less = np.where(np.arange(len(ROWS))[:, None] == 7, np.nan, ROWS)
    key = jax.random.key(0)
    assert np.linalg.norm(histogram(ROWS, key) - histogram(one_less, key)) <= 1.0 + 1e-3
    noise = (jax.vmap(histogram, (None, 0, None))(ROWS, jax.random.split(key, 50), 20.0) - expected(ROWS)) / 20.0
    assert abs(np.mean(noise**2) - 1.0) < 4.4 * (2.0 / noise.size) ** 0.5
    [(sigma, count)] = histogram_mechanism().event([20.0]).noise_multipliers
    assert count == 1 and 19.9 < sigma <= 20.0


LAWS = {
    "lognormal": lambda rng, n: np.exp(0.8 * rng.standard_normal(n) - 2.0),
    "two groups": lambda rng, n: np.where(rng.random(n) < 0.3, 0.01, 10.0) * np.exp(0.3 * rng.standard_normal(n)),
    "residuals": lambda rng, n: np.linalg.norm(rng.standard_normal((n, 5)), axis=1) * rng.beta(2, 3, n),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_quantiles_are_found_again(law, noise):
    """Noise in shares of the rows. Half an octave is the promise up to 2 %; the median's is 15 %."""
    rng = np.random.default_rng(1)
    values = LAWS[law](rng, 20_000)
    counts = expected(values[:, None]) + 20_000 * noise * rng.standard_normal(NUM_BINS)
    found = Norms.fitted(counts, 20_000 * noise, 20_000)
    assert found.error < 0.3
    assert abs(np.log(found.quantile(0.5) / np.median(values))) < 0.15
    for probability in (0.25, 0.75, 0.9):
        assert abs(np.log2(found.quantile(probability) / np.quantile(values, probability))) < 0.5
    assert found.mean(lambda v: np.minimum(v, 1.0)) <= 1.0


def test_drowned_counts_say_so():
    counts = np.random.default_rng(2).standard_normal(NUM_BINS) * 500.0
    assert Norms.fitted(counts, 500.0, 500).error > 1.0
    with pytest.raises(ConfigurationError, match="finite"):
        Norms.fitted(counts * np.nan, 500.0, 500)
    assert norms.Norms.fitted(np.zeros(NUM_BINS), 1e9, 1).quantile(0.5) > 0.0
