"""The private histogram of norms: what leaves the door, and what is read from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpppl.access.norm_histogram import (
    LOWEST,
    MISSING,
    NUM_BINS,
    OUTSIDE,
    SILENT,
    SIZE,
    Norms,
    gradient_norm,
    histogram_mechanism,
    noisy_histogram,
)
from dpppl.errors import ConfigurationError

ROWS = np.exp(np.random.default_rng(0).standard_normal((500, 1))).astype(np.float32)


@jax.jit
def histogram(rows, key, noise_multiplier=1e-6):
    """Of the norms of gradients that are the rows themselves; responses above 1e20 are outside the support."""
    statistic = gradient_norm(lambda z, row, public: z * row[0], lambda z, row, public: row[0] > 1e20)
    at = {"start": jnp.zeros(()), "far": jnp.ones(2)}
    return noisy_histogram(statistic, at, rows, {}, key=key, noise_multiplier=noise_multiplier)


def expected(norms):
    """Counts of norms (n,) that are positive."""
    number = np.floor(np.log2(norms)) - LOWEST
    return np.bincount(np.clip(number, 0, NUM_BINS - 1).astype(int), minlength=SIZE).astype(float)


def test_rows_are_counted_by_octave_and_rows_without_a_norm_apart():
    """A norm of 1e-8 is a norm; one of 1e-13 is 0."""
    apart = {SILENT: [0.0, 1e-13, 0.0, -0.0], MISSING: [np.nan, np.inf, -np.inf], OUTSIDE: [1e21, np.inf]}
    apart[MISSING] = apart[MISSING][:1] + [-np.inf]
    rows = np.concatenate([ROWS[:, 0], [1e-8, 1e15], *apart.values()]).astype(np.float32)[:, None]
    wanted = expected(np.concatenate([ROWS[:, 0], [1e-8, 1e15]]))
    for number, values in apart.items():
        wanted[number] = len(values)
    np.testing.assert_allclose(histogram(rows, jax.random.key(0)), wanted, atol=1e-3)


@pytest.mark.slow
def test_rows_that_are_silent_at_the_start_only_have_the_norms_of_other_points():
    """The gradient of a b x at a = b = 1e-4 is 1e-4 x, and x / 2 at the other points; where x is 0, it is silent everywhere."""

    def likelihood(z, row, public):
        return z[0] * z[1] * row[0]

    def finite_near(z, row, public):
        return row[0] * jnp.where(jnp.abs(z[0]) < 0.1, z[0], jnp.inf)

    def counts(function, rows):
        at = {"start": jnp.full(2, 1e-4), "far": jnp.stack([jnp.full(2, 0.5), jnp.full(2, -0.5)])}
        return noisy_histogram(gradient_norm(function), at, rows, {}, key=jax.random.key(0), noise_multiplier=1e-6)

    found = np.asarray(counts(likelihood, np.concatenate([ROWS, np.zeros((7, 1), np.float32)])))
    wanted = expected(ROWS[:, 0] / np.sqrt(2.0))
    wanted[SILENT] = 7
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    np.testing.assert_allclose(counts(finite_near, ROWS), expected(ROWS[:, 0]), atol=1e-3)


def test_a_row_moves_the_counts_by_one_and_the_noise_is_what_is_charged():
    """The noise's variance over all bins and 50 keys, false-alarm rate 1e-5; an sd 7 % off is found."""
    one_less = ROWS[np.arange(len(ROWS)) != 7]
    key = jax.random.key(0)
    assert np.linalg.norm(histogram(ROWS, key) - histogram(one_less, key)) <= 1.0 + 1e-3
    noise = jax.vmap(histogram, (None, 0, None))(ROWS, jax.random.split(key, 50), 20.0) - expected(ROWS[:, 0])
    assert abs(np.mean((noise / 20.0) ** 2) - 1.0) < 4.4 * (2.0 / noise.size) ** 0.5
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
    counts = expected(values) + 20_000 * noise * rng.standard_normal(SIZE)
    found = Norms.fitted(counts, 20_000 * noise, 20_000)
    assert found.error < 0.3
    assert abs(np.log(found.quantile(0.5) / np.median(values))) < 0.15
    for probability in (0.25, 0.75, 0.9):
        assert abs(np.log2(found.quantile(probability) / np.quantile(values, probability))) < 0.5
    assert found.mean(lambda v: np.minimum(v, 1.0)) <= 1.0


def fitted(norms, num_rows, noise_std, rng, **settings):
    """From rows of which those without a norm here are silent."""
    counts = expected(norms)
    counts[SILENT] += num_rows - len(norms)
    settings = dict(expected=(0.0, 3.0), scale=1.0, negligible=1e-3) | settings
    return Norms.fitted(counts + noise_std * rng.standard_normal(SIZE), noise_std, num_rows, **settings)


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("num_rows", [400, 4_000, 40_000])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99])
def test_the_norm_is_that_of_the_rows_that_inform_the_posterior(share, num_rows):
    """Norms of y ~ N(1, 1) at 0, and silent rows, at mu = .54 (epsilon 2), 20 times: a .9 quantile is at most too short by
    half. Counts that noise drowns say so, and give a norm on the long side, within what the prior expects."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        norms = np.abs(1.0 + rng.standard_normal(round((1.0 - share) * num_rows)))
        found = fitted(norms, num_rows, 18.5, rng)
        ratio = found.high_quantile(0.9) / np.quantile(norms, 0.9)
        assert (0.25 < ratio < 300.0) if found.are_hidden else (0.5 < ratio < 4.0)
        assert found.are_hidden or abs(found.share - (1.0 - share)) < 0.1 * (1.0 - share) + 5.0 * 18.5 / num_rows
        assert not (len(norms) >= 2_000 and found.are_hidden)


@pytest.mark.parametrize("faint", [1e-12, 1e-8, 1e-4])
@pytest.mark.parametrize("share", [0.5, 0.92, 0.99])
def test_rows_that_are_next_to_silent_do_not_decide_the_norm(share, faint):
    """Covariates of 1e-8 for 0, masks by a scale of 1e-12: a mode of its own, which holds no information."""
    rng = np.random.default_rng(1)
    norms = np.abs(1.0 + rng.standard_normal(40_000))
    norms[: round(share * 40_000)] *= faint
    found = fitted(norms, 40_000, 18.5, rng)
    assert abs(np.log2(found.quantile(0.9) / np.quantile(norms[round(share * 40_000) :], 0.9))) < 1.3
    assert found.share == pytest.approx(1.0 - share, abs=0.1)


def test_two_modes_are_fitted_as_two_where_no_count_is_clear():
    """Two modes of 200 rows each, 12 octaves apart, no count above five sds of the noise: one lognormal lies between them, where
    no rows are. 20 times, and at least 18 must find both within an octave."""
    rng, hits = np.random.default_rng(2), 0
    for _ in range(20):
        modes = np.array([2.0**-6, 2.0**6])[:, None] * np.exp(0.5 * rng.standard_normal((2, 200)))
        counts = expected(modes.ravel())
        noise = max(18.5, counts.max() / 5.0)
        found = Norms.fitted(counts + noise * rng.standard_normal(SIZE), noise, 400)
        quantiles = [np.log2(found.quantile(p)) for p in (0.25, 0.75)]
        hits += abs(quantiles[0] + 6.0) < 1.0 and abs(quantiles[1] - 6.0) < 1.0
    assert hits >= 18


def test_drowned_counts_say_so():
    counts = np.random.default_rng(2).standard_normal(SIZE) * 500.0
    found = Norms.fitted(counts, 500.0, 500, expected=(-3.0, 3.0))
    assert found.are_hidden and -3.0 < np.log2(found.high_quantile(0.99)) < 3.0 < np.log2(found.quantile(0.99))
    with pytest.raises(ConfigurationError, match="finite"):
        Norms.fitted(counts * np.nan, 500.0, 500)
    assert Norms.fitted(np.zeros(SIZE), 1e9, 1).quantile(0.5) > 0.0
    silent = np.eye(SIZE)[SILENT] * 1e4
    assert 0.0 < Norms.fitted(silent, 10.0, 10_000).high_quantile(0.9) < np.inf
