"""Starting values that never look at data: prior medians, prior draws, or the user's own."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.information_flow.row_free import proved
from dpppl.model.split import SplitModel
from dpppl.model.structure import Site, unwrapped

_NUM_DRAWS = 1_000
STRATEGIES = ("prior_median", "prior_sample")


def initial_values(
    split: SplitModel, public: dict[str, Any], key: jax.Array, strategy: str | Mapping[str, Any] = "prior_median"
) -> dict[str, jax.Array]:
    """Unconstrained starting values by latent site; may be mapped over `key`.

    "prior_median": the median of each site given the medians of those before it, in closed form where there is one,
    else of 1,000 prior draws. "prior_sample": one draw from the prior. Improper priors start at 0, unconstrained.
    A dict holds the user's own unconstrained values, as NumPyro's `init_params` does.

    Guarantee: the values do not depend on the private rows, which are not an argument.
    Raises ConfigurationError for an unknown strategy, and for a dict that does not fit the latent sites."""
    if isinstance(strategy, Mapping):
        return _checked(split, strategy)
    if strategy not in STRATEGIES:
        raise ConfigurationError("the initial values are 'prior_median', 'prior_sample' or a dict of values by site.")
    start = proved(partial(_from_prior, split, strategy=strategy), public, key, num_rows=None)
    values: dict[str, jax.Array] = start(public, key)
    return values


def _checked(split: SplitModel, values: Mapping[str, Any]) -> dict[str, jax.Array]:
    if values.keys() != split.latents.keys():
        raise ConfigurationError(
            f"initial values are given for {sorted(values)}, but the latent sites are {sorted(split.latents)}."
        )
    for name, latent in split.latents.items():
        if np.shape(values[name]) != latent.shape:
            raise ConfigurationError(
                f"the initial value of site '{name}' has shape {np.shape(values[name])}, but its unconstrained shape "
                f"is {latent.shape}."
            )
        if not isinstance(values[name], jax.core.Tracer) and not np.all(np.isfinite(values[name])):
            raise ConfigurationError(f"the initial value of site '{name}' is not finite.")
    return {name: jnp.asarray(values[name], latent.dtype) for name, latent in split.latents.items()}


@partial(jax.jit, static_argnames=("split", "strategy"))
def _from_prior(split: SplitModel, public: dict[str, Any], key: jax.Array, strategy: str) -> dict[str, jax.Array]:
    z: dict[str, jax.Array] = {}

    def visit(site: Site, transform: Any) -> jax.Array:
        latent = split.latents[site["name"]]
        site_key = jax.random.fold_in(key, len(z))
        value = jnp.broadcast_to(_start(site, transform, site_key, strategy), latent.shape)
        z[site["name"]] = jnp.where(jnp.isfinite(value), value, 0.0).astype(latent.dtype)
        return z[site["name"]]

    split.visit_latents(visit, public)
    return z


def _start(site: Site, transform: Any, key: jax.Array, strategy: str) -> Any:
    """The unconstrained start of one site, given those before it."""
    sample_shape = site["kwargs"]["sample_shape"]
    try:
        if strategy == "prior_sample":
            return transform.inv(site["fn"].sample(key, sample_shape))
        median = _closed_form_median(site["fn"])
        if median is not None:
            return transform.inv(jnp.broadcast_to(median, sample_shape + site["fn"].shape()))
        return jnp.median(transform.inv(site["fn"].sample(key, (_NUM_DRAWS, *sample_shape))), axis=0)
    except NotImplementedError:  # an improper prior cannot be sampled
        return jnp.zeros(())


def _closed_form_median(distribution: Any) -> Any:
    """The median of a distribution of scalars, or None where NumPyro has no quantile function for it."""
    distribution = unwrapped(distribution)
    if distribution.event_dim:
        return None
    try:
        return distribution.icdf(0.5)
    except (NotImplementedError, ImportError):  # some quantile functions need tensorflow_probability
        return None
