"""A Bayesian neural network for classification: fully connected layers with a prior on every weight."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from models.priors import gaussian


def bayesian_mlp(x, y=None, hidden=(400,), num_classes=10, prior=gaussian, prior_scale=1.0):
    """`x` of shape (N, D), labels `y` of shape (N,) in 0..num_classes-1.

    A layer's weights have `prior(prior_scale / sqrt(inputs))`, its biases `prior(prior_scale)`. Sites: w0, b0, w1, ...
    """
    sizes = (x.shape[-1], *hidden, num_classes)
    layers = []
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights = prior(prior_scale / inputs**0.5).expand([inputs, outputs]).to_event(2)
        biases = prior(prior_scale).expand([outputs]).to_event(1)
        layers.append((numpyro.sample(f"w{i}", weights), numpyro.sample(f"b{i}", biases)))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=logits(x, layers)), obs=y)


def logits(x, layers):
    """Class logits of inputs (N, D), given the layers' weights and biases; ReLU between layers."""
    for weights, biases in layers[:-1]:
        x = jax.nn.relu(x @ weights + biases)
    weights, biases = layers[-1]
    return jnp.asarray(x @ weights + biases)
