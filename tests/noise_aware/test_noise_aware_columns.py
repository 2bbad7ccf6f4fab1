"""Columns in units of their own, and columns that few rows carry: widths are those of scaled columns, and never too small."""

import functools

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from test_noise_aware import Bench, split_rows

from dpppl.noise_aware.mixture import Mixture

NUM_ROWS = 5_000
MU = {0.5: 0.1536, 2.0: 0.5218, 3.0: 0.7457}  # of these epsilons at delta 1e-5


def linear(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@functools.cache
def programs(model, num_rows, width):
    return Bench(model, (np.zeros((num_rows, width), np.float32), np.zeros(num_rows, np.float32)))


def posterior(model, x, y, mu, seed):
    """Means and sds of the latents."""
    found = programs(model, *x.shape)
    outcome = found.run(split_rows(found, (x.astype(np.float32), y.astype(np.float32))), seed, mu)
    moments = Mixture.of(outcome.surrogate, found.prior).moments()
    return moments.mean, np.sqrt(moments.variance)


def columns(kind, num_rows, rng):
    """A design with a column of ones, the truth, and the centres and scales that would make it an ordinary one."""
    one, age, year = np.ones(num_rows), rng.uniform(20.0, 90.0, num_rows), rng.integers(1950, 2021, num_rows)
    euros = np.exp(rng.normal(10.0, 0.7, num_rows)).clip(1e3, 1e5)
    found = {
        "years of age": ([age], [1.0, 0.05], [55.0], [20.0]),
        "euros": ([euros], [1.0, 4e-5], [3e4], [2e4]),
        "grams": ([rng.normal(3_400.0, 500.0, num_rows)], [-1.0, 1e-3], [3_400.0], [500.0]),
        "calendar years": ([year], [0.5, 1e-3], [1985.0], [20.0]),
        "age and euros": ([age, euros], [1.0, 0.05, 3e-5], [55.0, 3e4], [20.0, 2e4]),
    }[kind]
    x = np.column_stack([one, *found[0]])
    return x, np.array(found[1]), np.array([0.0, *found[2]]), np.array([1.0, *found[3]])


def exact(x, y):
    covariance = np.linalg.inv(x.T @ x + np.eye(x.shape[1]))
    return covariance @ x.T @ y, np.sqrt(np.diag(covariance))


KINDS = ("years of age", "euros", "grams", "calendar years", "age and euros")


def without_privacy(x, y):
    """The mode of a logistic regression's posterior, and sds by its curvature."""
    weights = np.zeros(x.shape[1])
    for _ in range(100):
        p = 1.0 / (1.0 + np.exp(-x @ weights))
        covariance = np.linalg.inv((x.T * (p * (1.0 - p))) @ x + np.eye(len(weights)))
        step = covariance @ (x.T @ (y - p) - weights)
        weights = weights + step / max(1.0, np.max(np.abs(x @ step)))
    return weights, np.sqrt(np.diag(covariance))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("kind", "num_rows"), [("years of age", 1_000), ("calendar years", 4_000)])
def test_a_logistic_regression_finds_units(kind, num_rows):
    """At epsilon 2, beside an ordinary column."""
    rng, found = np.random.default_rng(1), programs(logistic, num_rows, 3)
    x, truth, _, _ = columns(kind, num_rows, rng)
    x = np.column_stack([x, rng.standard_normal(num_rows)]).astype(np.float32)
    y = rng.random(num_rows) < 1.0 / (1.0 + np.exp(-x @ [-2.0, truth[1], 0.7]))
    outcome = found.run(split_rows(found, (x, y.astype(np.float32))), 0, MU[2.0])
    moments, (mean, sd) = Mixture.of(outcome.surrogate, found.prior).moments(), without_privacy(x.astype(float), y)
    assert np.all(np.sqrt(moments.variance) < 2.2 * sd) and np.all(np.sqrt(moments.variance) > 0.8 * sd)
    assert np.max(np.abs(moments.mean - mean) / np.sqrt(moments.variance)) < 4.0


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_in_their_own_units_cost_little(kind, epsilon):
    """Relative to the posterior without privacy, at most 1.5 times the width with scaled columns. Euros, in which a slope is 1e-5
    of a prior sd, may stay unknown, and so may grams at epsilon .5: then the posterior is wider, and right."""
    rng = np.random.default_rng(1)
    x, truth, centre, scale = columns(kind, NUM_ROWS, rng)
    y = x @ truth + rng.standard_normal(NUM_ROWS)
    raw, scaled = (
        (posterior(linear, design, y, MU[epsilon], 0), exact(design, y)) for design in (x, (x - centre) / scale)
    )
    ratios = [np.max(sd / known_sd) for (_, sd), (_, known_sd) in (raw, scaled)]
    may_stay = "euros" in kind or (kind == "grams" and epsilon < 1.0)
    assert ratios[1] < 1.9 and (ratios[0] <= 1.5 * ratios[1] or may_stay)
    (mean, sd), (known, _) = raw
    assert np.max(np.abs(mean - known) / sd) < 4.0


@pytest.mark.slow
@pytest.mark.xfail(
    reason="where the likelihood falls off exponentially, late looks are made before the mode, and say too much"
)
@pytest.mark.parametrize("share", [0.05, 0.01])
def test_a_column_that_few_rows_carry_is_not_known_better_than_without_privacy(share):
    """Standardised, with a weight that makes those rows' responses certain: the curvature falls along the last walk.

    One key of five may state a narrower posterior, since no row bounds the weight from above."""
    rng, num_rows = np.random.default_rng(3), 10_000
    column = np.where(rng.random(num_rows) < share, 1.0, 0.0)
    x = np.column_stack([np.ones(num_rows), rng.standard_normal((num_rows, 2)), (column - share) / column.std()])
    y = rng.random(num_rows) < 1.0 / (1.0 + np.exp(-x @ [0.5, -0.5, 0.7, 1.57]))
    known, known_sd = without_privacy(x, y)
    narrow = 0
    for seed in range(5):
        mean, sd = posterior(logistic, x, y, MU[3.0], seed)
        narrow += not np.all(sd > 0.8 * known_sd)
        assert np.max(np.abs(mean - known) / sd) < 5.0
    assert narrow <= 1
