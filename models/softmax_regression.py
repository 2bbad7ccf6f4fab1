"""Bayesian softmax regression in K - 1 contrasts of K classes, so that the data identify every latent."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from scipy.linalg import helmert


def softmax_regression(x, y=None, num_classes=10, prior_scale=1.0):
    """`x` of shape (N, D), labels `y` of shape (N,) in 0..K-1. Sites: weights (D, K - 1), intercepts (K - 1,).

    Independent N(0, prior_scale^2) contrasts give the predictions of independent N(0, prior_scale^2) weights of every class."""
    prior = dist.Normal(0.0, prior_scale)
    weights = numpyro.sample("weights", prior.expand([x.shape[1], num_classes - 1]).to_event(2))
    intercepts = numpyro.sample("intercepts", prior.expand([num_classes - 1]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=logits(x, weights, intercepts)), obs=y)


def logits(x, weights, intercepts):
    """Class logits (N, K), which sum to zero: contrasts times the rows of Helmert's orthonormal matrix."""
    contrasts = jnp.asarray(helmert(weights.shape[1] + 1), x.dtype)
    return (x @ weights + intercepts) @ contrasts
