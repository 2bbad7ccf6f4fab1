"""Parameters of a Gaussian guide, corrected and widened for the noise of its gradients."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import autoguide

from dpppl.errors import ConfigurationError
from dpppl.frame.moved_guides import Movement
from dpppl.model.initialization import drawn_from_prior
from dpppl.svi.elbo import Objective
from dpppl.types import BySite, Tree

_MIN_LENGTH, _PRIOR_DRAWS, _IMPROPER, _WANDERING = 40, 1000, 1e12, 0.25
_GAUSSIAN = (autoguide.AutoNormal, autoguide.AutoDiagonalNormal, autoguide.AutoMultivariateNormal)

Array = np.ndarray


def noise_aware_params(
    objective: Objective, public: BySite, trajectory: BySite, gradients: BySite
) -> dict[str, jax.Array]:
    """See `SVIResult.noise_aware_params`. `trajectory`, `gradients`: the tail, leaves (number kept, ...)."""
    guide = objective.guide
    if not isinstance(guide, _GAUSSIAN):
        names = ", ".join(kind.__name__ for kind in _GAUSSIAN)
        raise ConfigurationError(f"{type(guide).__name__} has no Gaussian location to widen; use {names}.")
    params = dict(objective.constrain(jax.tree.map(lambda x: jnp.mean(x, axis=0), trajectory)))
    _warn_of_wandering(objective, trajectory)
    moments = _prior_moments(objective, public)
    for name in [name for name in params if name in moments]:
        gradient, prefix = np.asarray(gradients[name], np.float64), name.removesuffix("loc")
        if len(gradient) < _MIN_LENGTH:
            raise ConfigurationError(
                f"the tail holds {len(gradient)} iterates, and {_MIN_LENGTH} are needed; lower thinning or run longer."
            )
        mean, variance = gradient.mean(axis=0), gradient.var(axis=0, ddof=1) / len(gradient)
        prior_mean, prior_variance = moments[name]
        loc = np.asarray(params[name], np.float64)
        if isinstance(guide, autoguide.AutoMultivariateNormal):
            factor, noise = np.asarray(params[prefix + "scale_tril"], np.float64), np.diag(variance)
            if objective.metric is not None:  # in which noise is white
                white = Movement.of(objective.metric, guide, objective.transforms).metric
                noise = white.inverse.T @ np.diag((gradient @ white.root).var(axis=0, ddof=1)) @ white.inverse
                noise /= len(gradient)
            loc, covariance = _combined(loc, factor @ factor.T, mean, noise, prior_mean, np.diag(prior_variance))
            params[prefix + "scale_tril"] = jnp.asarray(np.linalg.cholesky(covariance), jnp.result_type(float))
        else:
            own = np.minimum(np.asarray(params[prefix + "scale"], np.float64) ** 2, prior_variance)
            before = prior_variance - own
            gain = before / np.maximum(before + own**2 * variance, 1e-300)
            loc = prior_mean + gain * (loc + own * mean - prior_mean)
            spread = np.sqrt(own + (1.0 - gain) * before)
            params[prefix + "scale"] = jnp.asarray(spread, jnp.result_type(float))
        params[name] = jnp.asarray(loc, jnp.result_type(float))
    return params


def _warn_of_wandering(objective: Objective, trajectory: BySite) -> None:
    """Say so where privacy noise still moves the guide's spreads."""
    params = jax.vmap(objective.constrain)(trajectory)
    spreads = [np.asarray(value) for name, value in params.items() if name.endswith("_scale")]
    spreads += [np.diagonal(value, axis1=1, axis2=2) for name, value in params.items() if name.endswith("_tril")]
    moved = np.concatenate([np.log(value).std(axis=0).ravel() for value in spreads]) > _WANDERING
    if moved.any():
        warnings.warn(
            f"noise still moves the spreads of {moved.sum()} of {moved.size} latents: their noise-aware intervals may "
            "be far too narrow. Lower the learning rate, run longer, or spend more.",
            stacklevel=4,
        )


def _prior_moments(objective: Objective, public: BySite) -> dict[str, tuple[Array, Array]]:
    """Mean and variance of the unconstrained prior, by the name of the location parameter; 1,000 prior draws."""
    guide, draws = objective.guide, drawn_from_prior(objective.split, dict(public), jax.random.key(0), _PRIOR_DRAWS)
    named: dict[str, Tree] = {}
    if isinstance(guide, autoguide.AutoNormal):
        named = {f"{site}_{guide.prefix}_loc": draw for site, draw in draws.items()}
    else:
        flat = np.zeros((_PRIOR_DRAWS, guide.latent_dim))
        for site, place in guide._unpack_latent(np.arange(guide.latent_dim)).items():
            flat[:, np.ravel(place)] = np.reshape(draws[site], (_PRIOR_DRAWS, -1))
        named[f"{guide.prefix}_loc"] = flat
    moments = {}
    for name, leaf in named.items():
        values = np.asarray(leaf, np.float64)
        variance = values.var(axis=0)
        moments[name] = (values.mean(axis=0), np.where(variance > 0, variance, _IMPROPER))
    return moments


def _combined(
    loc: Array, own: Array, gradient: Array, gradient_covariance: Array, prior_mean: Array, prior_covariance: Array
) -> tuple[Array, Array]:
    """Location and covariance of the noise-aware posterior; vectors (d,), matrices (d, d), the prior's diagonal."""
    width = np.sqrt(np.diag(prior_covariance))
    values, vectors = np.linalg.eigh(own / np.outer(width, width))
    own = np.outer(width, width) * ((vectors * np.minimum(values, 1.0)) @ vectors.T)
    estimate, noise = loc + own @ gradient, own @ gradient_covariance @ own
    before = prior_covariance - own  # of m*, given the model
    gain = before @ np.linalg.pinv(before + noise, hermitian=True)
    unknown = before - gain @ before
    return prior_mean + gain @ (estimate - prior_mean), own + 0.5 * (unknown + unknown.T)
