"""What a private SVI run returns: parameters, iterates, posterior draws, and what they cost."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import autoguide

from dpppl.errors import ConfigurationError
from dpppl.initialization import initial_values
from dpppl.runs.report import PrivacyReport
from dpppl.svi.elbo import Objective

_MIN_LENGTH, _PRIOR_DRAWS, _IMPROPER, _WANDERING = 40, 1000, 1e12, 0.25
_GAUSSIAN = (autoguide.AutoNormal, autoguide.AutoDiagonalNormal, autoguide.AutoMultivariateNormal)


@dataclass(frozen=True, eq=False)
class SVIResult:
    """`params`: constrained parameters by name; `state`: the last state, without its key; `trajectory`: unconstrained
    iterates by parameter, (number kept, ...); `gradients`: the noisy ascent directions, averaged between iterates;
    `guide`: the guide that was fitted, set up without data.

    All of it is private output: it may be released at the price in `privacy_report()`. There are no losses. It holds
    functions, so `pickle` takes its arrays, its state and its report, and only cloudpickle takes the whole.
    """

    params: dict[str, Any]
    state: Any
    trajectory: dict[str, Any] = field(repr=False)
    gradients: dict[str, Any] = field(repr=False)
    guide: Any = field(repr=False)
    objective: Objective = field(repr=False)
    public: dict[str, Any] = field(repr=False)
    report: PrivacyReport = field(repr=False)

    def privacy_report(self) -> PrivacyReport:
        """What everything its SVI object had run, when this run ended, has cost."""
        return self.report

    def averaged_params(self, tail: float = 0.5) -> dict[str, Any]:
        """Constrained parameters, averaged unconstrained over the last share `tail` of the trajectory.

        Averaging is free and takes out most of the privacy noise, if the optimiser has arrived (Polyak, Juditsky 1992).
        """
        return self.objective.constrain(jax.tree.map(lambda x: jnp.mean(x, axis=0), _tail(self.trajectory, tail)))

    def noise_aware_params(self, tail: float = 0.5) -> dict[str, Any]:
        """Parameters of a Gaussian guide whose location is corrected, and whose spread widened, for the noise it saw.

        Near the optimum a step's gradient in the location m is A (m* - m) + noise, where A is the inverse of the guide's
        own covariance S. So the averages over the tail of iterates and gradients, m + S g, estimate m* with covariance
        V = S Var(g) S, whether or not the iterates have arrived; Var(g), measured over the tail, holds privacy noise,
        subsampling and guide draws. Given the data, m* has the prior covariance less S about the prior's mean: the two
        are combined as Gaussians, and the result is S plus what remains unknown of m*. S is taken to be no wider than
        the prior, and so is the result: noise also makes the guide's own spread wander.

        Assumes: a posterior close to Gaussian over the tail's iterates; independent noise from step to step; a guide
        covariance that has converged (its own error is not counted); a prior like the Gaussian of its moments; for
        AutoNormal and AutoDiagonalNormal a diagonal A. Clipping bias is not in it. A guide that is still too wide enters
        squared: the result is shrunk to the prior and predicts worse than `averaged_params`. Run until spreads no longer
        depend on where they started. A guide whose spread privacy noise has made too narrow does more harm: the result is
        too narrow, too. Warns where a spread's logarithm moves by more than .25 over the tail (standard deviation).
        For AutoNormal, AutoDiagonalNormal and AutoMultivariateNormal.
        Reference: in the spirit of Jälkö, Prediger, Honkela, Kaski (2023), section 4, who fit A to the gradients.
        """
        if not isinstance(self.guide, _GAUSSIAN):
            names = ", ".join(kind.__name__ for kind in _GAUSSIAN)
            raise ConfigurationError(f"{type(self.guide).__name__} has no Gaussian location to widen; use {names}.")
        params = self.averaged_params(tail)
        gradients = _tail(self.gradients, tail)
        self._warn_of_wandering(tail)
        moments = self._prior_moments()
        for name in [name for name in params if name.endswith("_loc")]:
            gradient, prefix = np.asarray(gradients[name], np.float64), name.removesuffix("loc")
            if len(gradient) < _MIN_LENGTH:
                raise ConfigurationError(
                    f"the tail holds {len(gradient)} iterates, and {_MIN_LENGTH} are needed; lower thinning or run longer."
                )
            mean, variance = gradient.mean(axis=0), gradient.var(axis=0, ddof=1) / len(gradient)
            prior_mean, prior_variance = moments[name]
            loc = np.asarray(params[name], np.float64)
            if isinstance(self.guide, autoguide.AutoMultivariateNormal):
                factor = np.asarray(params[prefix + "scale_tril"], np.float64)
                loc, covariance = _combined(
                    loc, factor @ factor.T, mean, np.diag(variance), prior_mean, np.diag(prior_variance)
                )
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

    def _warn_of_wandering(self, tail: float) -> None:
        """Say so where privacy noise still moves the guide's spreads."""
        params = jax.vmap(self.objective.constrain)(_tail(self.trajectory, tail))
        spreads = [np.asarray(value) for name, value in params.items() if name.endswith("_scale")]
        spreads += [np.diagonal(value, axis1=1, axis2=2) for name, value in params.items() if name.endswith("_tril")]
        moved = np.concatenate([np.log(value).std(axis=0).ravel() for value in spreads]) > _WANDERING
        if moved.any():
            warnings.warn(
                f"noise still moves the spreads of {moved.sum()} of {moved.size} latents: their noise-aware intervals may "
                "be far too narrow. Lower the learning rate, run longer, or spend more.",
                stacklevel=3,
            )

    def _prior_moments(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Mean and variance of the unconstrained prior, by the name of the location parameter; 1,000 prior draws."""
        keys, split = jax.random.split(jax.random.key(0), _PRIOR_DRAWS), self.objective.split
        draws = jax.vmap(lambda key: initial_values(split, self.public, key, "prior_sample"))(keys)
        named: dict[str, Any] = {}
        if isinstance(self.guide, autoguide.AutoNormal):
            named = {f"{site}_{self.guide.prefix}_loc": draw for site, draw in draws.items()}
        else:
            places = self.guide._unpack_latent(np.arange(self.guide.latent_dim))
            flat = np.zeros((_PRIOR_DRAWS, self.guide.latent_dim))
            for site, place in places.items():
                flat[:, np.ravel(place)] = np.reshape(draws[site], (_PRIOR_DRAWS, -1))
            named[f"{self.guide.prefix}_loc"] = flat
        moments = {}
        for name, leaf in named.items():
            values = np.asarray(leaf, np.float64)
            variance = values.var(axis=0)
            moments[name] = (values.mean(axis=0), np.where(variance > 0, variance, _IMPROPER))
        return moments

    def sample_posterior(self, rng_key, num_samples: int, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Draws from the guide at `params` (by default those of the last step), by site, leading axis `num_samples`."""
        params = self.params if params is None else params
        if isinstance(self.guide, autoguide.AutoGuide):
            return self.guide.sample_posterior(rng_key, dict(params), sample_shape=(num_samples,))
        return self.objective.sample(params, rng_key, num_samples)

    def to_arviz(self, rng_key, num_samples: int = 1000, params: Mapping[str, Any] | None = None):
        """ArviZ InferenceData of posterior draws, with the privacy report as attributes. Needs the [arviz] extra.

        It holds no observed data and no log likelihood: both would be private rows."""
        import arviz

        draws = {name: np.asarray(x)[None] for name, x in self.sample_posterior(rng_key, num_samples, params).items()}
        attributes = {"inference_library": "dpppl", "privacy_report": self.report.to_json()}
        return arviz.from_dict(posterior=draws, attrs=attributes | {"epsilon": str(self.report.epsilon)})


def _tail(trajectory, tail: float):
    """The last share `tail` of a trajectory."""
    if not 0.0 < tail <= 1.0:
        raise ConfigurationError("tail is the share of the trajectory to use, in (0, 1].")
    length = len(jax.tree.leaves(trajectory)[0])
    return jax.tree.map(lambda x: x[length - max(1, round(tail * length)) :], trajectory)


def _combined(loc, own, gradient, gradient_covariance, prior_mean, prior_covariance):
    """Location and covariance of the noise-aware posterior; vectors (d,), matrices (d, d), the prior's diagonal."""
    width = np.sqrt(np.diag(prior_covariance))
    values, vectors = np.linalg.eigh(own / np.outer(width, width))
    own = np.outer(width, width) * ((vectors * np.minimum(values, 1.0)) @ vectors.T)
    estimate, noise = loc + own @ gradient, own @ gradient_covariance @ own
    before = prior_covariance - own  # of m*, given the model
    gain = before @ np.linalg.pinv(before + noise, hermitian=True)
    unknown = before - gain @ before
    return prior_mean + gain @ (estimate - prior_mean), own + 0.5 * (unknown + unknown.T)
