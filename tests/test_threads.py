"""Models that people asked about in 2025 and 2026 in public threads on Bayesian regression: each runs, or its cure does."""

import jax
import numpy as np
import pytest
from numpyro.infer.autoguide import AutoMultivariateNormal

import dpppl
from benchmarks.lib.threads import X, by_nuts, made, off, ordered_beta_by_factor
from dpppl.errors import UnsupportedModelError
from dpppl.noise_aware.binding import bind
from dpppl.randomness import keys

NAMES = "monotone", "ordered beta", "by day", "gaps", "entered", "hurdle", "slopes"


def test_the_cure_of_a_factor_is_a_law_of_ones_own():
    """That it works is `test_posteriors_are_those_of_nuts`, of the same law."""
    settings, given = dpppl.NoiseAware(ordered_beta_by_factor, noise_multiplier=1.0), (X, np.abs(X) / 9.0)
    with pytest.raises(UnsupportedModelError, match="if need be one of your own with log_prob and sample"):
        bind(settings, given, {}, keys.as_key(jax.random.key(0)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "prevalence", "zero sum", "horseshoe"])
def test_no_method_refuses_them(name):
    model, given = made()[name]
    assert [words[:5] for _, words in dpppl.check(model, *given, target_epsilon=8.0).methods] == ["runs;"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_posteriors_are_those_of_nuts(name):
    """Means within a posterior sd of NUTS, and widths of .85 to 1.5 of its."""
    model, given = made()[name]
    run = dpppl.NoiseAware(model, target_epsilon=8.0, target_delta=1e-6, progress_bar=False, print_cost=False)
    run.run(jax.random.key(11 + NAMES.index(name)), *given)
    assert not run.verdict.refusals
    found = off(run.get_samples(), by_nuts(name))
    assert all(far.max() < 1.0 and 0.85 < ratio.min() and ratio.max() < 1.5 for far, _, ratio in found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize("method", ["DPSGHMC", "SVI"])
def test_a_chain_and_svi_are_near_nuts(method):
    """Two responses, one of which is masked by the other, under a law of one's own: means within a posterior sd of NUTS."""
    model, given = made()["hurdle"]
    settings = {"target_epsilon": 8.0, "target_delta": 1e-6, "print_cost": False}
    if method == "SVI":
        run = dpppl.SVI(model, AutoMultivariateNormal(model), **settings)
        run = run.run(jax.random.key(112), 600, *given, progress_bar=False)
        found = run.sample_posterior(jax.random.key(3), 2_000)
    else:
        run = dpppl.MCMC(dpppl.DPSGHMC(model), num_warmup=300, num_samples=700, progress_bar=False, **settings)
        run.run(jax.random.key(111), *given)
        found = run.get_samples()
    sites = off(found, by_nuts("hurdle"))
    assert run.verdict.line().startswith("read: ") and all(far.max() < 1.0 for far, *_ in sites.values()), sites
