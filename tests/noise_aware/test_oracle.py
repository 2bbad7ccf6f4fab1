"""The oracle of benchmarks/lib/oracle.py, where posterior and noise are known in closed form."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from benchmarks.lib.oracle import Reference, noise_multiplier
from dpppl import accounting


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


@pytest.mark.slow
def test_rows_alike_in_length_lose_what_their_noise_adds():
    n, y = 1_000, np.tile(np.float32([-1.0, 1.0]), 500)
    found, sigma = Reference.of(model, (y,), pairs=500), noise_multiplier(1.0, 1e-6)
    assert (
        abs(found.mean()[0]) < 1e-6
        and abs(found.covariance()[0, 0] * (n + 1.0) - 1.0) < 1e-6
        and found.effective > 0.999
    )
    assert abs(found.oracle(1.0, 1e-6) - ((n + 1.0) / (n / (1.0 + sigma**2 / n) + 1.0) - 1.0)) < 1e-6
    shifted = np.random.default_rng(0).normal(1.0, 2.0, (20_000, 1)) / np.sqrt(n + 1.0)  # one sd off, twice as wide
    error, off, width, mass = found.compared(shifted)
    assert (
        abs(error - 1.0) < 0.05
        and abs(off[0] - 1.0) < 0.03
        and abs(width[0] - 2.0) < 0.03
        and abs(mass[0] - 0.989) < 0.006
    )


def test_its_noise_is_that_of_the_budget():
    event = lambda sigma: (accounting.GaussianEvent(noise_multipliers=((sigma, 1),)),)  # noqa: E731
    assert abs(noise_multiplier(1.0, 1e-6) / accounting.calibrate_noise_multiplier(event, 1.0, 1e-6) - 1.0) < 1e-3
