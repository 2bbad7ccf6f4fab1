"""Attacks find most of what the account says is lost, never more, and see noise that is too small."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpppl
from dpppl.audit import audit

Y = np.arange(1.0, 5.0, dtype=np.float32)
SIGMA_FOR = {0.5: 26.0, 2.0: 7.5}


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def attack(kernel=dpppl.DPSGLD, epsilon=2.0, **options):
    kernel = kernel(model, clipping_norm=1.0, noise_multiplier=SIGMA_FOR[epsilon])
    return audit(kernel, Y, num_steps=16, delta=1e-5, rng_key=jax.random.key(0), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "epsilon", "num_trials"),
    [
        (dpppl.DPSGLD, 0.5, 100_000),
        (dpppl.DPSGLD, 2.0, 20_000),
        (dpppl.DPSGHMC, 2.0, 20_000),
        (dpppl.DPSGNHT, 2.0, 20_000),
    ],
)
def test_the_white_box_attack_finds_half_of_what_is_reported_and_not_more(kernel, epsilon, num_trials):
    """False-alarm rate of the upper side: 1 - confidence, with a fixed key."""
    result = attack(kernel, epsilon, num_trials=num_trials)
    assert 0.8 * epsilon < result.epsilon_reported < 1.25 * epsilon
    assert 0.5 * result.epsilon_reported < result.epsilon_lower <= result.epsilon_reported
    assert result.consistent


@pytest.mark.slow
def test_the_black_box_attack_does_not_find_more_than_is_reported():
    assert 0.0 < attack(attack="black_box").epsilon_lower <= attack(attack="black_box").epsilon_reported


@pytest.mark.slow
def test_noise_that_is_halved_is_seen(monkeypatch):
    whole = dpppl.random.standard_normal

    def halved(*arguments):
        with jax.enable_x64(True):
            return 0.5 * whole(*arguments)

    monkeypatch.setattr(dpppl.random, "standard_normal", halved)
    assert not attack().consistent


@pytest.mark.parametrize("options", [{"attack": "grey_box"}, {"confidence": 0.3}, {"num_trials": 10}])
def test_arguments_out_of_range_are_refused(options):
    with pytest.raises(dpppl.ConfigurationError, match=r"audit|attack"):
        attack(**options)
