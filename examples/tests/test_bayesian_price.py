"""Prices of runs by the Bayesian accountant: norms of rows' own gradients at released positions."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta

import dpppl
from dpppl.errors import ConfigurationError, PrivacyWarning
from dpppl.mcmc.step_search import steps_of
from dpppl.model.arguments import Public
from examples.papers.bayesian_accountant import BayesianAccountant
from examples.papers.bayesian_price import chain_spent, svi_spent

RATE, NORM, SIGMA = 0.1, 4.0, 1.5
Y = np.random.default_rng(0).normal(0.0, 0.5, 400).astype(np.float32)


def model(y, scale):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


ARGUMENTS = (Y, Public(np.float32(1.0)))


def by_hand(positions, sigmas, share):
    """Rows' gradients are y - mean; accesses without a position at the clipping norm."""
    ratios = [
        np.ones(len(Y)) if mean is None
        else np.sqrt((1 - share) * np.minimum(np.abs(np.float64(Y) - mean) / NORM, 1.0) ** 2 + share)
        for mean in positions
    ]  # fmt: skip
    return BayesianAccountant(noise_multipliers=sigmas, sampling_rate=RATE).spent(ratios)


@pytest.mark.parametrize("chains, warmup", [(1, 0), (2, 4)])
def test_chains(chains, warmup):
    kernel = dpppl.DPSGLD(
        model, clipping_norm=NORM, step_size=1e-4, noise_multiplier=SIGMA, subsampling=dpppl.Poisson(RATE)
    )
    mcmc = dpppl.MCMC(
        kernel, num_warmup=warmup, num_samples=12, num_chains=chains, thinning=2, progress_bar=False, print_cost=False,
        chain_method="vectorized",
    )  # fmt: skip
    mcmc.run(dpppl.secret_key(), *ARGUMENTS, extra_fields=("z",))
    z = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["z"]["mean"], np.float64)
    positions = [
        z[chain, (number - warmup) // 2 - 1] if number > warmup and (number - warmup) % 2 == 0 else None
        for number in range(warmup + 12)
        for chain in range(chains)
    ]
    mechanism = mcmc.calibrated_kernel().mechanism
    sigmas = np.repeat(mcmc.calibrated_kernel().schedule(0, warmup + 12)[1], chains)
    with pytest.warns(PrivacyWarning, match="no differential privacy"):
        found = chain_spent(mcmc, *ARGUMENTS)
    assert found.num_rows == len(Y)
    assert found.epsilon == pytest.approx(by_hand(positions, sigmas, mechanism.count_share).epsilon, rel=1e-4)
    with pytest.warns(PrivacyWarning):
        assert chain_spent(mcmc, *ARGUMENTS, num_rows=50).num_rows == 50


def test_steps_of_a_search_count_at_the_clipping_norm():
    kernel = dpppl.DPSGLD(model, clipping_norm=NORM, noise_multiplier=SIGMA, subsampling=dpppl.Poisson(RATE))
    mcmc = dpppl.MCMC(kernel, num_warmup=60, num_samples=10, progress_bar=False, print_cost=False)
    mcmc.warmup(dpppl.secret_key(), *ARGUMENTS, extra_fields=("z",), collect_warmup=True)
    searched = int(steps_of(60))
    assert 0 < searched < 60
    z = np.asarray(mcmc.get_extra_fields()["z"]["mean"], np.float64)
    positions = [z[number - 1] if number >= searched else None for number in range(60)]
    calibrated = mcmc.calibrated_kernel()
    expected = by_hand(positions, calibrated.schedule(0, 60)[1], calibrated.mechanism.count_share).epsilon
    everywhere = by_hand([None, *z[:-1]], calibrated.schedule(0, 60)[1], calibrated.mechanism.count_share).epsilon
    with pytest.warns(PrivacyWarning):
        found = chain_spent(mcmc, *ARGUMENTS).epsilon
    assert found == pytest.approx(expected, rel=1e-4) and found > 1.001 * everywhere


def test_svi_costs_typical_rows_less_than_the_guarantee_says():
    svi = dpppl.SVI(
        model, AutoDelta(model), numpyro.optim.Adam(0.01), clipping_norm=NORM, noise_multiplier=SIGMA,
        subsampling=dpppl.Poisson(RATE), print_cost=False,
    )  # fmt: skip
    result = svi.run(dpppl.secret_key(), 40, *ARGUMENTS, progress_bar=False)
    with pytest.warns(PrivacyWarning, match="without noise"):
        found = svi_spent(svi, result, *ARGUMENTS)
    means = np.asarray(jax.tree.leaves(result.trajectory)[0], np.float64)
    share = svi.budget.charged[-1].mechanism.count_share
    assert found.epsilon == pytest.approx(by_hand([None, *means[:-1]], np.full(40, SIGMA), share).epsilon, rel=1e-4)
    assert found.epsilon < 0.8 * dpppl.accounting.epsilon(result.report.events, 1e-10)


def test_refusals():
    kernel = dpppl.DPSGLD(model, clipping_norm=NORM, step_size=1e-4, noise_multiplier=SIGMA, clipping="centred")
    mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=4, progress_bar=False, print_cost=False)
    mcmc.run(dpppl.secret_key(), *ARGUMENTS)
    with pytest.raises(ConfigurationError, match="extra_fields"):
        chain_spent(mcmc, *ARGUMENTS)
    mcmc.run(dpppl.secret_key(), *ARGUMENTS, extra_fields=("z",))
    with pytest.raises(ConfigurationError, match="flat"):
        chain_spent(mcmc, *ARGUMENTS)
