"""Scores against scikit-learn and numbers worked out by hand; what weights, masks and wrong arguments do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scoringrules
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from dpppl.contrib import uncertainty
from dpppl.errors import ConfigurationError

RNG = np.random.default_rng(0)
CHANCES = RNG.random(200)
LABELS = (RNG.random(200) < CHANCES).astype(int)
WEIGHTS = RNG.integers(0, 4, 200)
CLASSES = RNG.dirichlet(np.ones(3), 200)
KINDS = RNG.integers(0, 3, 200)
DRAWS, RESPONSES = RNG.normal(size=(50, 200)), RNG.normal(size=200)
SCORES = {
    "ece": (uncertainty.expected_calibration_error, CHANCES, LABELS),
    "ece, mass": (lambda *a, **k: uncertainty.expected_calibration_error(*a, bins="mass", **k), CHANCES, LABELS),
    "mce": (uncertainty.maximum_calibration_error, CLASSES, KINDS),
    "brier": (uncertainty.brier_score, CLASSES, KINDS),
    "log": (uncertainty.log_score, CHANCES, LABELS),
    "log, samples": (lambda draws, _, **k: uncertainty.predictive_log_score(draws, **k), DRAWS, RESPONSES),
    "crps": (uncertainty.crps, DRAWS, RESPONSES),
    "coverage": (uncertainty.interval_coverage, DRAWS, RESPONSES),
}


@pytest.mark.parametrize(("bins", "strategy"), [("width", "uniform"), ("mass", "quantile")])
def test_bins_are_those_of_scikit_learn(bins, strategy):
    observed, predicted = calibration_curve(LABELS, CHANCES, n_bins=10, strategy=strategy)
    found = uncertainty.reliability_bins(CHANCES, LABELS, num_bins=10, bins=bins)
    np.testing.assert_allclose(found.observed, observed)
    np.testing.assert_allclose(found.predicted, predicted)
    np.testing.assert_allclose(found.share.sum(), 1.0)
    assert bins == "width" or np.allclose(found.share, 0.1)


def test_calibration_errors_by_hand():
    """Two classes wrong at confidence .6 and .7, one right at .9: in 2 bins one bin; in 10 bins .6, .7 and .1."""
    chances, labels = [[0.6, 0.4], [0.3, 0.7], [0.1, 0.9]], [1, 0, 1]
    assert uncertainty.expected_calibration_error(chances, labels, num_bins=2) == pytest.approx(2.2 / 3 - 1 / 3)
    assert uncertainty.expected_calibration_error(chances, labels, num_bins=10) == pytest.approx(1.4 / 3)
    assert uncertainty.maximum_calibration_error(chances, labels, num_bins=10) == pytest.approx(0.7)


def test_scores_are_those_of_scikit_learn():
    assert uncertainty.brier_score(CHANCES, LABELS) == pytest.approx(brier_score_loss(LABELS, CHANCES))
    assert uncertainty.brier_score(CLASSES, KINDS) == pytest.approx(
        brier_score_loss(KINDS, CLASSES, scale_by_half=False)
    )
    assert uncertainty.log_score(CHANCES, LABELS) == pytest.approx(log_loss(LABELS, CHANCES))
    assert uncertainty.log_score(CLASSES, KINDS, weights=WEIGHTS) == pytest.approx(
        log_loss(KINDS, CLASSES, sample_weight=WEIGHTS)
    )
    assert uncertainty.log_score([1.0, 0.0], [0, 0]) == np.inf


@pytest.mark.parametrize(("fair", "estimator"), [(False, "nrg"), (True, "fair")])
def test_crps_is_that_of_scoringrules(fair, estimator):
    by_row = scoringrules.crps_ensemble(RESPONSES, DRAWS, m_axis=0, estimator=estimator)
    assert uncertainty.crps(DRAWS, RESPONSES, fair=fair) == pytest.approx(by_row.mean())
    weighted = np.average(by_row, weights=WEIGHTS)
    assert uncertainty.crps(DRAWS, RESPONSES, fair=fair, weights=WEIGHTS) == pytest.approx(weighted)


def test_crps_of_all_pairs_and_of_a_normal_distribution():
    pairs = np.abs(DRAWS[:, None] - DRAWS[None]).sum((0, 1))
    first = np.abs(DRAWS - RESPONSES).mean(0)
    assert uncertainty.crps(DRAWS, RESPONSES) == pytest.approx(np.mean(first - pairs / (2 * 50**2)))
    fair = uncertainty.crps(DRAWS, RESPONSES, fair=True)
    assert fair == pytest.approx(np.mean(first - pairs / (2 * 50 * 49)))
    y, grid = 0.7, stats.norm.ppf((np.arange(4000) + 0.5) / 4000)[:, None]
    exact = y * (2 * stats.norm.cdf(y) - 1) + 2 * stats.norm.pdf(y) - 1 / np.sqrt(np.pi)
    assert uncertainty.crps(grid, [y]) == pytest.approx(exact, abs=1e-3)


def test_coverage_of_calibrated_draws_is_the_level():
    """400 draws a row, 4,000 rows: standard error .005; draws half as wide cover .59."""
    rng = np.random.default_rng(1)
    draws, y = rng.normal(size=(400, 4000)), rng.normal(size=4000)
    assert uncertainty.interval_coverage(draws, y) == pytest.approx(0.9, abs=0.02)
    assert uncertainty.interval_coverage(0.5 * draws, y) == pytest.approx(0.59, abs=0.03)


@pytest.mark.parametrize("name", SCORES)
def test_a_weight_is_a_number_of_copies_and_a_mask_leaves_out(name):
    score, predicted, observed = SCORES[name]
    axis = 0 if len(predicted) == len(observed) else 1
    copies = np.repeat(np.arange(200), WEIGHTS)
    alone = score(np.take(predicted, copies, axis), observed[copies])
    assert isinstance(alone, float) and score(predicted, observed, weights=WEIGHTS) == pytest.approx(alone)
    broken = np.moveaxis(predicted.copy(), axis, 0)
    broken[:100] = np.nan
    found = score(jnp.asarray(np.moveaxis(broken, 0, axis)), jnp.asarray(observed), mask=jnp.arange(200) >= 100)
    kept = np.arange(100, 200)
    assert found == pytest.approx(score(np.take(predicted, kept, axis), observed[kept]), abs=1e-5)


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


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: uncertainty.brier_score([0.5, 1.5], [0, 1]), "not logits"),
        (lambda: uncertainty.brier_score([[0.5, 0.2]], [0]), "sum to 1"),
        (lambda: uncertainty.brier_score([0.5], [2]), "whole numbers from 0 to 1"),
        (lambda: uncertainty.brier_score(np.ones((2, 3, 4)), [0, 1]), "average over posterior samples"),
        (lambda: uncertainty.log_score([0.5, 0.5], [1]), r"labels must have shape \(2,\)"),
        (lambda: uncertainty.log_score(["a"], [1]), "real numbers"),
        (lambda: uncertainty.log_score([0.5], [1], mask=[False]), "at least one unmasked row"),
        (lambda: uncertainty.log_score([0.5], [1], weights=[-1.0]), "not negative"),
        (lambda: uncertainty.log_score([0.5], [1], weights=[1.0, 1.0]), r"weights must have shape \(1,\)"),
        (lambda: uncertainty.reliability_bins([0.5], [1], bins="even"), '"width" or "mass"'),
        (lambda: uncertainty.reliability_bins([0.5], [1], num_bins=0), "num_bins"),
        (lambda: uncertainty.crps([1.0], [1.0]), r"\(S, N\)"),
        (lambda: uncertainty.crps([[1.0]], [1.0], fair=True), "at least 2"),
        (lambda: uncertainty.crps([[np.nan]], [1.0]), "finite"),
        (lambda: uncertainty.interval_coverage([[1.0]], [1.0], level=90), "level"),
        (lambda: uncertainty.predictive_log_score([[np.nan]]), "NaN"),
        (lambda: uncertainty.decompose_variance([[2.0]]), "give variances"),
        (lambda: uncertainty.decompose_variance([[2.0]], [1.0]), "shape of means"),
        (lambda: uncertainty.decompose_variance([[2.0]], [[-1.0]]), "not negative"),
        (lambda: jax.jit(lambda p: uncertainty.brier_score(p, [1]))(jnp.ones(1)), "outside of jax.jit"),
    ],
)
def test_wrong_arguments_are_named(call, words):
    with pytest.raises(ConfigurationError, match=words):
        call()


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
