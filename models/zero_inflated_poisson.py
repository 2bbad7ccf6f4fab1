"""Zero-inflated Poisson regression, with a discrete latent for each row."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def zero_inflated_poisson(x, y=None):
    """`x` of shape (N, D), counts `y` of shape (N,). A row is closed, and its count 0, with probability `gate`."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    gate = numpyro.sample("gate", dist.Beta(2.0, 2.0))
    with numpyro.plate("data", x.shape[0]):
        closed = numpyro.sample("closed", dist.Bernoulli(gate), infer={"enumerate": "parallel"})
        rate = jnp.where(closed == 1, 1e-6, jnp.exp(x @ weights + intercept))
        numpyro.sample("y", dist.Poisson(rate), obs=y)
