"""Priors for weights, as functions from a scale to a distribution: Gaussian, Laplace, nearly flat, two-Gaussian scale mixture."""

import jax.numpy as jnp
import numpyro.distributions as dist


def gaussian(scale=1.0):
    """N(0, scale^2)."""
    return dist.Normal(0.0, scale)


def laplace(scale=1.0):
    """Laplace with standard deviation `scale`: many weights near 0, some large."""
    return dist.Laplace(0.0, scale / 2.0**0.5)


def flat(scale=1.0):
    """N(0, (100 scale)^2): nearly flat, and still proper."""
    return dist.Normal(0.0, 100.0 * jnp.asarray(scale))


def scale_mixture(scale=1.0, weight=0.5, ratio=0.1):
    """weight * N(0, scale^2) + (1 - weight) * N(0, (ratio * scale)^2): spike and slab (Blundell et al. 2015, eq. 7)."""
    scales = jnp.stack([jnp.asarray(scale), jnp.asarray(scale) * ratio], axis=-1)
    mixing = dist.Categorical(probs=jnp.array([weight, 1.0 - weight]))
    return dist.MixtureSameFamily(mixing, dist.Normal(0.0, scales))
