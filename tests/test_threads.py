"""Models that people asked about in 2025 and 2026 in public threads on Bayesian regression: each runs, or its cure does."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import dpppl
from dpppl.errors import UnsupportedModelError
from dpppl.noise_aware.binding import bind
from dpppl.randomness import keys

N, RNG = 3_000, np.random.default_rng(7)
X = RNG.normal(size=N).astype(np.float32)
LEVEL = RNG.integers(0, 5, N).astype(np.int32)
NAMES = "monotone", "ordered beta", "by day", "gaps"
STEPS = np.array([0.0, 0.4, 0.5, 0.9, 1.0])


def monotone(x, level, y):
    """bambi 986: an ordered predictor, whose steps are a simplex."""
    slope, scale = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("scale", dist.HalfNormal(1.0))
    steps = numpyro.sample("steps", dist.Dirichlet(jnp.ones(4)))
    sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(slope * 4 * sums[level], scale), obs=y)


class OrderedBeta(dist.Distribution):
    """0, 1, or a number between: a law that NumPyro does not have."""

    support, arg_constraints = dist.constraints.unit_interval, {}
    pytree_data_fields = ("eta", "cuts", "phi")

    def __init__(self, eta, cuts, phi, *, validate_args=None):
        self.eta, self.cuts, self.phi = eta, cuts, phi
        super().__init__(jnp.shape(eta), (), validate_args=validate_args)

    def _parts(self):
        mean = jax.nn.sigmoid(self.eta)
        none, all_of_it = jax.nn.log_sigmoid(self.cuts[0] - self.eta), jax.nn.log_sigmoid(self.eta - self.cuts[1])
        return none, all_of_it, dist.Beta(mean * self.phi, (1 - mean) * self.phi)

    def log_prob(self, value):
        none, all_of_it, beta = self._parts()
        between = jnp.log1p(-jnp.exp(none) - jnp.exp(all_of_it)) + beta.log_prob(jnp.clip(value, 1e-4, 1 - 1e-4))
        return jnp.where(value == 0, none, jnp.where(value == 1, all_of_it, between))

    def sample(self, key, sample_shape=()):
        (none, all_of_it, beta), (first, second) = self._parts(), jax.random.split(key)
        u = jax.random.uniform(first, self.shape(sample_shape))
        between = beta.sample(second, sample_shape)
        return jnp.where(u < jnp.exp(none), 0.0, jnp.where(u > 1 - jnp.exp(all_of_it), 1.0, between))


def ordered_beta(x, y):
    """ordbetareg 27: cut points are latents."""
    slope, first = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("first", dist.Normal(-1, 1))
    gap, phi = numpyro.sample("gap", dist.LogNormal(1, 0.5)), numpyro.sample("phi", dist.LogNormal(1.5, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", OrderedBeta(slope * x, jnp.stack([first, first + gap]), phi), obs=y)


def ordered_beta_by_factor(x, y):
    slope, phi = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("phi", dist.LogNormal(1.5, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.factor("law", OrderedBeta(slope * x, jnp.array([-1.5, 2.0]), phi).log_prob(y))


def by_day(x, days, is_before, is_after):
    """CensoredDistributions.jl 111: times known to the day."""
    slope, level = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("level", dist.Normal(0, 2))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        law = dist.IntervalCensoredDistribution(dist.LogNormal(level + slope * x, scale), is_before, is_after)
        numpyro.sample("time", law, obs=days, infer={"inspected_at": jnp.arange(1.0, 41.0)})


def gaps(x, y):
    """pymc-extras 682: two responses, with gaps apart."""
    slopes, scale = numpyro.sample("slopes", dist.Normal(0, 1).expand([2])), numpyro.sample("scale", dist.HalfNormal(1))
    ok = ~jnp.isnan(y)
    with numpyro.plate("data", x.shape[0]):
        law = dist.Normal(x[:, None] * slopes, scale).mask(ok).to_event(1)
        numpyro.sample("y", law, obs=jnp.where(ok, y, 0.0))


def cases():
    share = np.asarray(OrderedBeta(0.6 * X, jnp.array([-1.5, 2.0]), 5.0).sample(jax.random.key(1)))
    day = np.floor(np.exp(0.5 * X + 0.6 * RNG.normal(size=N) + 1))
    before, after = day < 1, day >= 40
    days = np.stack([np.where(before, 1, np.minimum(day, 40)), np.where(after, 40, day + 1)], -1).astype(np.float32)
    pair = (X[:, None] * [0.5, -0.4] + RNG.normal(size=(N, 2))).astype(np.float32)
    pair[RNG.random((N, 2)) < 0.2] = np.nan
    return {
        "monotone": (monotone, (X, LEVEL, (1.5 * STEPS[LEVEL] + 0.8 * RNG.normal(size=N)).astype(np.float32))),
        "ordered beta": (ordered_beta, (X, share)),
        "by day": (by_day, (X, days, before.astype(np.int32), after.astype(np.int32))),
        "gaps": (gaps, (X, pair)),
    }


@pytest.fixture(scope="module")
def made():
    return cases()


def test_the_cure_of_a_factor_is_a_law_of_ones_own():
    """That it works is `test_posteriors_are_those_of_nuts`, of the same law."""
    settings, given = dpppl.NoiseAware(ordered_beta_by_factor, noise_multiplier=1.0), (X, np.abs(X) / 9.0)
    with pytest.raises(UnsupportedModelError, match="if need be one of your own with log_prob and sample"):
        bind(settings, given, {}, keys.as_key(jax.random.key(0)))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_posteriors_are_those_of_nuts(name, made):
    """Means within a posterior sd of NUTS, and widths of .9 to 1.5 of its."""
    model, given = made[name]
    run = dpppl.NoiseAware(model, target_epsilon=8.0, target_delta=1e-6, progress_bar=False, print_cost=False)
    run.run(jax.random.key(11 + NAMES.index(name)), *given)
    assert not run.verdict.refusals
    nuts = MCMC(NUTS(model), num_warmup=400, num_samples=600, progress_bar=False)
    nuts.run(jax.random.key(1), *given)
    for site, right in nuts.get_samples().items():
        found, right = np.asarray(run.get_samples()[site]), np.asarray(right)
        assert np.all(np.abs(found.mean(0) - right.mean(0)) < right.std(0)), site
        ratio = found.std(0) / right.std(0)
        assert np.all((ratio > 0.85) & (ratio < 1.5)), site
