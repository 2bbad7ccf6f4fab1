"""Weibull regression of times that are censored where follow-up ends."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import constraints
from numpyro.distributions.util import validate_sample


class CensoredWeibull(dist.Distribution):
    """min(T, end) of a Weibull time T: what a study with known `end` of follow-up observes.

    Unlike numpyro's RightCensoredDistribution it knows when rows would have been censored, so it can be simulated."""

    arg_constraints = dict.fromkeys(("scale", "concentration", "end"), constraints.positive)
    support = constraints.positive

    def __init__(self, scale, concentration, end, *, validate_args=None):
        self.scale, self.concentration, self.end = jnp.broadcast_arrays(scale, concentration, end)
        batch_shape = lax.broadcast_shapes(jnp.shape(scale), jnp.shape(concentration), jnp.shape(end))
        super().__init__(batch_shape, validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        return jnp.minimum(dist.Weibull(self.scale, self.concentration).sample(key, sample_shape), self.end)

    @validate_sample
    def log_prob(self, value):
        log_survival = -((value / self.scale) ** self.concentration)
        log_hazard = jnp.log(self.concentration / self.scale) + (self.concentration - 1.0) * jnp.log(value / self.scale)
        return log_survival + jnp.where(value < self.end, log_hazard, 0.0)


def survival_regression(x, end, y=None, prior_scale=1.0):
    """`x` (N, D), `end` of follow-up (N,), times `y` (N,), equal to `end` where censored; log-linear scale."""
    weights = numpyro.sample("weights", dist.Normal(0.0, prior_scale).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, prior_scale))
    concentration = numpyro.sample("concentration", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        scale = jnp.exp(jnp.dot(x, weights) + intercept)
        numpyro.sample("y", CensoredWeibull(scale, concentration, end), obs=y)
