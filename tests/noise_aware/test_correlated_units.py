"""Rows of one unit may be correlated: the variance of scores counts it, and the verdict says so."""

from dataclasses import replace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpppl
from dpppl.noise_aware.curvature import _ratio
from dpppl.noise_aware.verdict import Verdict


def test_the_variance_of_scores_may_exceed_the_curvature_in_units_only():
    curvature, scores = 10.0 * np.eye(3)[None], 35.0 * np.eye(3)[None]
    in_rows, in_units = (np.diagonal(_ratio(scores, 8.0, curvature, most)[0]) for most in (1.0, 20.0))
    assert np.all(in_rows < 1.5) and np.all((in_units > 3.0) & (in_units < 4.5))


def verdict(**changed):
    fine = Verdict(
        arrival=0.5, agreement=0.5, chi_squared=1.0, degrees=100, rank=(0.6, 0.01), fit=(0.1, 80.0), clipped=(0.0, 0.0, 0.01),
        learned={"b": 0.9}, norms=(1.0, 1.0), harm=(5.0, 5.0, 5.0),
    )  # fmt: skip
    return replace(fine, **changed)


def test_another_law_of_units_is_a_doubt_and_of_rows_a_refusal():
    assert "the model is wrong" in verdict().refusals[0]
    units = verdict(in_units=True)
    assert not units.refusals and units.doubts[0].startswith("rows of one unit are correlated")
    assert not verdict(in_units=True, fit=(0.001, 1.0)).doubts
    link = ("b", 0.1, 20.0, 2)  # ranks by value scatter more widely in units
    assert verdict(in_units=True, link=link).refusals == [] != verdict(fit=(0.001, 1.0), link=link).refusals
    assert verdict(in_units=True, link=("b", 0.1, 60.0, 2)).refusals


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


@pytest.mark.slow
def test_intervals_of_persons_count_their_correlation():
    """1,500 persons of 1 to 12 rows, 40 % of the variance their own: means vary 1.9 times as widely as of independent rows."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(1_500), rng.integers(1, 13, 1_500))
    y = (0.3 + np.sqrt(0.4) * rng.normal(size=1_500)[ids] + np.sqrt(0.6) * rng.normal(size=len(ids))).astype(np.float32)
    sums = np.bincount(ids, y - y.mean())
    robust, naive = np.sqrt(np.sum(sums**2)) / len(y), 1 / np.sqrt(len(y))
    assert robust > 1.7 * naive
    persons = dpppl.NoiseAware(
        model, target_epsilon=2.0, target_delta=1e-5, unit="person", max_rows_per_unit=12, progress_bar=False
    )
    persons.run(dpppl.secret_key(), y, person=ids)
    samples = np.asarray(persons.get_samples()["mu"])  # not refused
    assert 0.8 * robust < samples.std() < 2.0 * robust
    assert abs(samples.mean() - 0.3) < 4 * samples.std()
    assert persons.privacy_report().num_rows == 1_500 and persons.privacy_report().epsilon <= 2.0
