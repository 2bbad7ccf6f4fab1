"""Bayesian linear regression with unknown noise."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def linear_regression(x, y=None, prior_scale=1.0):
    """`x` of shape (N, D), `y` of shape (N,); N(0, prior_scale^2) weights and a half-normal noise scale."""
    weights = numpyro.sample("weights", dist.Normal(0.0, prior_scale).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, prior_scale))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.dot(x, weights) + intercept, noise), obs=y)
