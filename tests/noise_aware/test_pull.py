"""Whether the prior expects what the data say, and how far it moves the posterior."""

from types import SimpleNamespace

import numpy as np

from dpppl.noise_aware.measured import Pull
from dpppl.noise_aware.verdict import LEAST_CHANCE
from dpppl.row_statistics.coordinates import Known, Prior, _are_normal

MEANS, SCALES, NAMES = np.array([1.0, -2.0, 0.5, 0.0]), np.array([0.5, 3.0, 1.0, 2.0]), list("abcd")
CORRELATION = np.array([[1.0, 0.6, 0.0, 0.2], [0.6, 1.0, 0.3, 0.0], [0.0, 0.3, 1.0, 0.0], [0.2, 0.0, 0.0, 1.0]])
INFORMATION = np.array([[0.6, 0.5, 0.0, 0.0], [0.5, 8.0, 1.0, 0.0], [0.0, 1.0, 2.0, 0.0], [0.0, 0.0, 0.0, 1e-3]])
PRIOR = Prior(MEANS, SCALES, [np.arange(4)], CORRELATION, normal=np.arange(4))
SPREAD = np.linalg.inv(INFORMATION + np.linalg.inv(CORRELATION))
"""Of latents in units of the prior's scales, as are `INFORMATION` and `CORRELATION`."""


def posterior(truth, rng):
    """The mean of the posterior, in the prior's scales, of a likelihood centred on `truth` but for its noise."""
    noise = np.linalg.cholesky(INFORMATION) @ rng.standard_normal(4)
    return SPREAD @ (INFORMATION @ truth + noise)


def pull(mean, prior=PRIOR):
    stage = SimpleNamespace(belief=Known(MEANS + SCALES * mean, SCALES**2 * np.diag(SPREAD)), covariance=SPREAD[None])
    return Pull.of(stage, prior, NAMES)


def test_a_right_prior_expects_what_the_data_say_and_a_wrong_one_does_not():
    """4,000 runs: the share below .05 has an sd of .0034, and lies within five of them of .05 but for one test in a million."""
    rng, root = np.random.default_rng(0), np.linalg.cholesky(CORRELATION)
    chances = np.array([pull(posterior(root @ rng.standard_normal(4), rng)).chance for _ in range(4_000)])
    assert abs(np.mean(chances < 0.05) - 0.05) < 0.017 and abs(np.mean(chances) - 0.5) < 0.023
    wrong = [pull(posterior(np.array([0.0, 4.5, 0.0, 0.0]), rng)).chance for _ in range(200)]
    assert np.mean(np.array(wrong) < LEAST_CHANCE) > 0.9


def test_the_pull_is_the_distance_to_the_likelihood():
    """Without noise, the likelihood's centre is the truth."""
    truth = np.array([0.3, 4.0, -0.4, 0.0])
    mean = SPREAD @ INFORMATION @ truth
    found, moved = pull(mean), np.abs(mean - truth) / np.sqrt(np.diag(SPREAD))
    assert found.latent == NAMES[np.argmax(moved)] and abs(found.moved - moved.max()) < 0.02


def test_only_normal_priors_are_compared():
    rng = np.random.default_rng(0)
    draws = np.stack(
        [
            rng.normal(size=10_000),
            rng.laplace(size=10_000),
            np.log(np.abs(rng.normal(size=10_000))),
            rng.standard_t(8, size=10_000),
        ]
    )
    assert _are_normal(draws.T).tolist() == [True, False, False, False]
    some, none = PRIOR._replace(normal=np.array([1, 3])), PRIOR._replace(normal=np.array([], int))
    assert pull(np.array([9.0, 0.0, 9.0, 0.0]), some).chance > 0.5 and pull(np.full(4, 9.0), none) == Pull()
    assert pull(np.array([0.0, 4.0, 0.0, 0.0]), some).latent == "b"
