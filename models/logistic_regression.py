"""Bayesian logistic regression, under a Gaussian or a Laplace prior."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def gaussian(x, y=None, prior_scale=1.0):
    """`x` of shape (N, D), labels `y` of shape (N,) in {0, 1}; independent N(0, prior_scale^2) weights."""
    _likelihood(x, y, dist.Normal(0.0, prior_scale))


def laplace(x, y=None, prior_scale=1.0):
    """As `gaussian`, with Laplace(0, prior_scale) weights: the sparse prior."""
    _likelihood(x, y, dist.Laplace(0.0, prior_scale))


def _likelihood(x, y, prior):
    weights = numpyro.sample("weights", prior.expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", prior)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=jnp.dot(x, weights) + intercept), obs=y)
