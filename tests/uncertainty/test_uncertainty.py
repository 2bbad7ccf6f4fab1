"""Calibration errors against scikit-learn and numbers worked out by hand; parts of variances; what wrong arguments do."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sklearn.calibration import calibration_curve

from dpppl.contrib import uncertainty
from dpppl.errors import ConfigurationError

RNG = np.random.default_rng(0)
CHANCES = RNG.random(200)
LABELS = (RNG.random(200) < CHANCES).astype(int)


def test_the_calibration_error_is_that_of_scikit_learns_bins():
    observed, predicted = calibration_curve(LABELS, CHANCES, n_bins=10)
    share = np.histogram(CHANCES, np.linspace(0.0, 1.0, 11))[0] / 200
    found = uncertainty.expected_calibration_error(jnp.asarray(CHANCES), LABELS, num_bins=10)
    assert found == pytest.approx(share @ np.abs(predicted - observed), abs=1e-6)


def test_calibration_errors_by_hand():
    """Two classes wrong at confidence .6 and .7, one right at .9: in 2 bins one bin; in 10 bins .6, .7 and .1."""
    chances, labels = [[0.6, 0.4], [0.3, 0.7], [0.1, 0.9]], [1, 0, 1]
    assert uncertainty.expected_calibration_error(chances, labels, num_bins=2) == pytest.approx(2.2 / 3 - 1 / 3)
    assert uncertainty.expected_calibration_error(chances, labels, num_bins=10) == pytest.approx(1.4 / 3)


def test_variance_parts_sum_to_the_variance_of_the_mixture():
    rng = np.random.default_rng(2)
    means, sds = rng.normal(size=(40, 3)), rng.uniform(0.5, 2.0, (40, 3))
    parts = uncertainty.decompose_variance(jnp.asarray(means), jnp.asarray(sds) ** 2)
    second = (sds**2 + means**2).mean(0)
    np.testing.assert_allclose(parts.total, second - means.mean(0) ** 2, rtol=1e-5)
    np.testing.assert_allclose(parts.epistemic, means.var(0), rtol=1e-5)
    chances = rng.dirichlet(np.ones(3), (40, 5))
    of_classes, mean = uncertainty.decompose_variance(chances), chances.mean(0)
    np.testing.assert_allclose(of_classes.total, mean * (1 - mean))
    weighted = uncertainty.decompose_variance(chances, weights=np.arange(40))
    copied = uncertainty.decompose_variance(np.repeat(chances, np.arange(40), axis=0))
    np.testing.assert_allclose(weighted.epistemic, copied.epistemic)


error = uncertainty.expected_calibration_error


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: error([0.5], [2]), "whole numbers from 0 to 1"),
        (lambda: error([[0.5, 0.2, 0.3]], [0.5]), "whole numbers from 0 to 2"),
        (lambda: error(np.ones((2, 3, 4)), [0, 1]), "averaged over posterior samples"),
        (lambda: uncertainty.decompose_variance([[0.5]], weights=[-1.0]), "not negative"),
        (lambda: uncertainty.decompose_variance([[0.5]], weights=[1.0, 1.0]), r"weights must have shape \(1,\)"),
        (lambda: uncertainty.decompose_variance([[2.0]], [[-1.0]]), "not negative"),
        (lambda: jax.jit(lambda p: error(p, [1]))(jnp.ones(1)), "outside of jax.jit"),
    ],
)
def test_wrong_arguments_are_named(call, words):
    with pytest.raises(ConfigurationError, match=words):
        call()


def test_survival_curves_have_a_row_for_each_row():
    def model(x, time=None):
        rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("time", dist.Exponential(rate), obs=time)

    curve = uncertainty.survival_curve(model, {"rate": np.array([0.5, 0.5])}, [0.0, 2.0], np.zeros(3))
    np.testing.assert_allclose(curve.mean, [[1.0, np.exp(-1.0)]] * 3, rtol=1e-6)
    assert curve.lower.shape == curve.upper.shape == (3, 2)


def test_discoveries_hold_the_share_of_false_ones():
    """100 normal means, half of them 0, with known posteriors: the share of false discoveries is .05 or less on average, and
    with Bayes factors that are 10 times too small it is not."""
    rng, wrong, careless = np.random.default_rng(0), [], []
    for _ in range(200):
        is_null = rng.random(100) < 0.5
        y = np.where(is_null, 0.0, 3.0 * rng.standard_normal(100)) + rng.standard_normal(100)
        factors = np.sqrt(10.0) * np.exp(-0.5 * y**2 * 0.9)  # N(0, 1) against N(0, 10)
        for factor, found in ((1.0, wrong), (0.1, careless)):
            rejected = uncertainty.discoveries(factor * factors)
            found.append(np.sum(rejected & is_null) / max(1, rejected.sum()))
    assert np.mean(wrong) < 0.06 < np.mean(careless)
    with pytest.raises(ConfigurationError):
        uncertainty.discoveries([-1.0])
    assert not uncertainty.discoveries([np.inf, 100.0]).any()
