"""Bayes factors of point nulls from a private posterior: the Savage-Dickey density ratio."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.distributions.transforms import IndependentTransform

from dpppl.errors import ConfigurationError
from dpppl.noise_aware.coordinates import Coordinates
from dpppl.noise_aware.settings import NoiseAwareSettings
from dpppl.report.verdict import warn_of
from dpppl.runs.driver import TRACING


def bayes_factor(
    noise_aware: NoiseAwareSettings, element: str, value: float = 0.0, *, allow_unconverged: bool = False
) -> float:
    """Compute the Bayes factor of the point null `element` = `value` against the model; above 1 it favours the null.

    The ratio of posterior to prior density at the value (Dickey 1971), both in closed form: the posterior is a mixture of
    normal laws and counts the privacy noise. Free: a function of the releases and public values.

    - **element** - a latent, with its index where it is an array: "mu", "weights[2]", "w[0,1]".
    - **value** - the null's value, in the latent's own unit.
    - **allow_unconverged** - whether to answer without an UnconvergedWarning where the verdict refuses the posterior.

    Assumes that nuisance latents have the same prior under the null as in the model given the null. Of many elements some look
    significant by chance: give each null higher prior odds, or use `uncertainty.discoveries`.
    Raises ConfigurationError before `run`, and for a model whose unconstrained priors are not normal."""
    mixture, coordinates, releases = noise_aware._mixture, noise_aware._coordinates, noise_aware._releases
    if mixture is None or coordinates is None or releases is None or noise_aware._verdict is None:
        raise ConfigurationError("`run` must be called before `bayes_factor`.")
    names = coordinates.names()
    if not releases.is_normal or element not in names:
        known = f"elements: {', '.join(names[:6])}" if releases.is_normal else "this model has other priors"
        raise ConfigurationError(
            f"bayes_factor needs the name of a latent's element, in a model whose priors are all normal (or log-normal); {known}."
        )
    warn_of(noise_aware._verdict.refusals, "bayes_factor(..., allow_unconverged=True)", allow_unconverged)
    number, prior = names.index(element), releases.prior
    place, variance = _unconstrained(coordinates, element, value), float(prior.variance[number])
    before = -0.5 * ((place - prior.mean[number]) ** 2 / variance + np.log(2.0 * np.pi * variance))
    return float(np.exp(mixture.log_density(number, place) - before))


def _unconstrained(coordinates: Coordinates, element: str, value: float) -> float:
    """A value of an element in unconstrained space."""
    wanted, found = element.split("[")[0], {}
    split = coordinates.split

    def visit(site: Any, transform: Any) -> Any:
        found[site["name"]] = transform
        return jnp.zeros(split.latents[site["name"]].shape)

    with TRACING:
        split.visit_latents(visit, split.placeholder_public())
        transform = found[wanted]
        while isinstance(transform, IndependentTransform):
            transform = transform.base_transform
        if transform.domain.event_dim:
            raise ConfigurationError(
                f"the elements of '{wanted}' depend on each other: bayes_factor has no value for one alone."
            )
        place = float(transform.inv(jnp.asarray(value, float)))
    if not np.isfinite(place):
        raise ConfigurationError(f"value is outside the support of '{wanted}'.")
    return place
