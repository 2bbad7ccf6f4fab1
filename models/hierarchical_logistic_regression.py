"""Hierarchical logistic regression: one intercept per group, drawn around a common mean."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def hierarchical_logistic_regression(x, group, num_groups, y=None):
    """`x` of shape (N, D), `group` of shape (N,) in 0..num_groups-1, labels `y` of shape (N,) in {0, 1}.

    The intercepts are sampled standardised and scaled (non-centred), which mixes better when groups are small.
    """
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", num_groups):
        standardised = numpyro.sample("standardised", dist.Normal(0.0, 1.0))
    intercepts = numpyro.deterministic("intercepts", mean + spread * standardised)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=jnp.dot(x, weights) + intercepts[group]), obs=y)
