"""Latents of a row that are summed out: the values that each is tried at, and what each weighs.

A discrete latent takes the values of its finite support. One under a normal law, or a monotone transform of a normal variable t,
takes those at evenly spaced t, which weigh as the normal density does: the trapezoidal rule. It resolves likelihoods twice as
sharp as the Gauss-Hermite rule of as many nodes, whose outer nodes have next to no weight.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from dpppl.model.structure import NUM_NODES, Site, unwrapped

_REACH = 4.5
NODES = np.linspace(-_REACH, _REACH, NUM_NODES)
LOG_WEIGHTS = -(NODES**2) / 2 - np.log(np.sum(np.exp(-(NODES**2) / 2)))


def value_at(site: Site, number: Any) -> Any:
    """The value with this number; of a continuous site at node t, the transform of loc + scale t."""
    fn = unwrapped(site["fn"])
    if fn.support.is_discrete:
        return fn.enumerate_support(expand=False)[number]
    transforms = fn.transforms if isinstance(fn, dist.TransformedDistribution) else []
    normal = unwrapped(fn.base_dist) if transforms else fn
    value = normal.loc + normal.scale * jnp.asarray(NODES, jnp.result_type(float))[number]
    for transform in transforms:
        value = transform(value)
    return value


def log_weight(site: Site, number: Any) -> Any:
    """The log weight of the value with this number, in the shape of the site's value. Masks of the latent itself do not count:
    a latent of which nothing depends is summed to 1."""
    if site["fn"].support.is_discrete:
        log_prob = unwrapped(site["fn"]).log_prob(site["value"])
        return log_prob if site["scale"] is None else site["scale"] * log_prob
    return jnp.broadcast_to(jnp.asarray(LOG_WEIGHTS, jnp.result_type(float))[number], jnp.shape(site["value"]))
