"""A Gaussian mixture with ordered means: the component labels cannot switch."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def gaussian_mixture(y, num_components=2, prior_scale=3.0):
    """`y` of shape (N,). The first mean is N(0, prior_scale^2), the gaps are log-normal, the scale is common.

    Which component a row belongs to is summed out in the density, so there is no latent per row.
    """
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(num_components, 2.0)))
    spread = jnp.ones(num_components).at[0].set(prior_scale)
    means = numpyro.sample(
        "means",
        dist.TransformedDistribution(dist.Normal(0.0, spread).to_event(1), dist.transforms.OrderedTransform()),
    )
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=weights), dist.Normal(means, scale)), obs=y)


def enumerated_gaussian_mixture(y, num_components=2, prior_scale=3.0):
    """The same model with a discrete latent for each row, which inference sums out."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(num_components, 2.0)))
    spread = jnp.ones(num_components).at[0].set(prior_scale)
    means = numpyro.sample(
        "means",
        dist.TransformedDistribution(dist.Normal(0.0, spread).to_event(1), dist.transforms.OrderedTransform()),
    )
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("data", y.shape[0]):
        component = numpyro.sample("component", dist.Categorical(probs=weights), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(means[component], scale), obs=y)
