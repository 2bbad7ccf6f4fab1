"""Bayesian Poisson regression for counts, with a log link."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def poisson_regression(x, y=None, prior_scale=1.0):
    """`x` of shape (N, D), counts `y` of shape (N,); independent N(0, prior_scale^2) weights."""
    weights = numpyro.sample("weights", dist.Normal(0.0, prior_scale).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, prior_scale))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(jnp.dot(x, weights) + intercept)), obs=y)
