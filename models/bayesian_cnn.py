"""A small Bayesian convolutional network for images."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax

from models.priors import gaussian

LAYERS = ((8, 2, 16), (4, 2, 32))  # window, stride, channels, as in DP-SGD's MNIST networks


def bayesian_cnn(x, y=None, num_classes=10, hidden=32, prior=gaussian, prior_scale=1.0):
    """Images `x` of shape (N, height, width, channels), labels `y` of shape (N,) in 0..num_classes-1.

    Weights have `prior(prior_scale / sqrt(inputs of a unit))`. Sites: k0, c0, k1, c1 (convolutions), w0, b0, w1, b1."""
    channels, kernels = x.shape[-1], []
    for i, (window, _, outputs) in enumerate(LAYERS):
        shape = (window, window, channels, outputs)
        kernels.append(_layer(f"k{i}", f"c{i}", shape, window * window * channels, prior, prior_scale))
        channels = outputs
    images = jnp.zeros((1, *x.shape[1:]))
    flat = jax.eval_shape(features, images, kernels).shape[-1]
    dense = [_layer("w0", "b0", (flat, hidden), flat, prior, prior_scale)]
    dense.append(_layer("w1", "b1", (hidden, num_classes), hidden, prior, prior_scale))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=logits(x, kernels, dense)), obs=y)


def _layer(weights, biases, shape, inputs, prior, prior_scale):
    return (
        numpyro.sample(weights, prior(prior_scale / inputs**0.5).expand(shape).to_event(len(shape))),
        numpyro.sample(biases, prior(prior_scale).expand(shape[-1:]).to_event(1)),
    )


def features(x, kernels):
    """Convolutions with ReLU, flattened: (N, height, width, channels) to (N, features)."""
    for (weights, biases), (_, stride, _) in zip(kernels, LAYERS):
        x = lax.conv_general_dilated(x, weights, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + biases)
    return x.reshape(x.shape[0], -1)


def logits(x, kernels, dense):
    """Class logits of images."""
    x = features(x, kernels)
    (w0, b0), (w1, b1) = dense
    return jax.nn.relu(x @ w0 + b0) @ w1 + b1
