"""A variational auto-encoder for binary images: a latent of each row, an encoder that computes its distribution."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def model(x, latent=8, hidden=64):
    """`x` of shape (N, D) in {0, 1}; the decoder's weights are parameters, learned by maximum likelihood."""
    size = x.shape[-1]
    w0, b0 = _layer("decoder0", latent, hidden)
    w1, b1 = _layer("decoder1", hidden, size)
    with numpyro.plate("data", x.shape[0]):
        code = numpyro.sample("code", dist.Normal(0.0, 1.0).expand([latent]).to_event(1))
        logits = jnp.tanh(code @ w0 + b0) @ w1 + b1
        numpyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x)


def guide(x, latent=8, hidden=64):
    """The encoder: mean and standard deviation of a row's code, from the row."""
    size = x.shape[-1]
    w0, b0 = _layer("encoder0", size, hidden)
    w1, b1 = _layer("encoder1", hidden, 2 * latent)
    with numpyro.plate("data", x.shape[0]):
        mean, spread = jnp.split(jnp.tanh(x @ w0 + b0) @ w1 + b1, 2, axis=-1)
        numpyro.sample("code", dist.Normal(mean, jax.nn.softplus(spread) + 1e-3).to_event(1))


def _layer(name, inputs, outputs):
    """Weights (inputs, outputs) that start at random, and biases that start at 0."""
    start = lambda key: jax.random.normal(key, (inputs, outputs)) / inputs**0.5  # noqa: E731
    return numpyro.param(f"{name}_weights", start), numpyro.param(f"{name}_biases", jnp.zeros(outputs))
