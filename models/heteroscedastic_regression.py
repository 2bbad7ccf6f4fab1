"""Regression whose noise depends on the inputs: aleatoric uncertainty that the model itself predicts."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from models.priors import gaussian


def heteroscedastic_regression(x, y=None, hidden=20, prior=gaussian, prior_scale=1.0):
    """`x` of shape (N, D), `y` of shape (N,). One tanh layer; two outputs, the mean and the log of the noise's sd."""
    inputs = x.shape[-1]
    w0 = numpyro.sample("w0", prior(prior_scale).expand([inputs, hidden]).to_event(2))
    b0 = numpyro.sample("b0", prior(prior_scale).expand([hidden]).to_event(1))
    w1 = numpyro.sample("w1", prior(prior_scale / hidden**0.5).expand([hidden, 2]).to_event(2))
    b1 = numpyro.sample("b1", prior(prior_scale).expand([2]).to_event(1))
    outputs = jnp.tanh(x @ w0 + b0) @ w1 + b1
    spread = jax.nn.softplus(outputs[..., 1]) + 1e-3
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(outputs[..., 0], spread), obs=y)
