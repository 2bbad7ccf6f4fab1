"""What a private SVI run returns: parameters, iterates, posterior draws, and what they cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import autoguide

from dpppl.errors import ConfigurationError
from dpppl.report import PrivacyReport
from dpppl.svi.elbo import Objective

_NUM_BATCHES = 20


@dataclass(frozen=True, eq=False)
class SVIResult:
    """`params`: constrained parameters by name; `state`: the last state, without its key; `trajectory`: unconstrained
    iterates by parameter, (number kept, ...); `guide`: the guide that was fitted, set up without data.

    All of it is private output: it may be released at the price in `privacy_report()`. There are no losses.
    """

    params: dict[str, Any]
    state: Any
    trajectory: dict[str, Any] = field(repr=False)
    guide: Any = field(repr=False)
    objective: Objective = field(repr=False)
    report: PrivacyReport = field(repr=False)

    def privacy_report(self) -> PrivacyReport:
        """What everything its SVI object had run, when this run ended, has cost."""
        return self.report

    def averaged_params(self, tail: float = 0.5) -> dict[str, Any]:
        """Constrained parameters, averaged unconstrained over the last share `tail` of the trajectory.

        Averaging is free and takes out most of the privacy noise, if the optimiser has arrived (Polyak, Juditsky 1992).
        """
        return self.objective.constrain(jax.tree.map(lambda x: jnp.mean(x, axis=0), self._tail(tail)))

    def noise_aware_params(self, tail: float = 0.5) -> dict[str, Any]:
        """Averaged parameters of a Gaussian guide, with the uncertainty that the privacy noise adds to its location.

        The variance of the averaged location, estimated by the means of 20 batches of the trajectory's tail, is added
        to the guide's own. It holds what privacy noise, subsampling and guide draws together do to the location.

        Assumes that the iterates are stationary over the tail and forget themselves within a batch (a 20th of it); in
        directions where they do not (the learning rate is too small), the addition is too small. Clipping bias is not
        in it. For AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal and AutoLowRankMultivariateNormal.
        Reference: in the spirit of Jälkö, Prediger, Honkela, Kaski (2023), section 4, who fit a linear model instead.
        """
        params, guide = self.averaged_params(tail), self.guide
        iterates = self._tail(tail)
        for name in [name for name in params if name.endswith("_loc")]:
            scatter = _batch_means(iterates[name])
            variance = np.sum(scatter**2, axis=0)
            prefix = name.removesuffix("loc")
            if isinstance(guide, autoguide.AutoNormal | autoguide.AutoDiagonalNormal):
                params[prefix + "scale"] = jnp.sqrt(params[prefix + "scale"] ** 2 + variance)
            elif isinstance(guide, autoguide.AutoMultivariateNormal):
                factor = params[prefix + "scale_tril"]
                params[prefix + "scale_tril"] = jnp.linalg.cholesky(factor @ factor.T + scatter.T @ scatter)
            elif isinstance(guide, autoguide.AutoLowRankMultivariateNormal):
                scale, factor = params[prefix + "scale"], params[prefix + "cov_factor"]
                diagonal = scale**2
                params[prefix + "scale"] = jnp.sqrt(diagonal + variance)
                params[prefix + "cov_factor"] = factor * (scale / params[prefix + "scale"])[:, None]
            else:
                raise ConfigurationError(f"{type(guide).__name__} has no Gaussian location to widen; use AutoNormal.")
        return params

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

    def _tail(self, tail: float):
        if not 0.0 < tail <= 1.0:
            raise ConfigurationError("tail is the share of the trajectory to use, in (0, 1].")
        length = len(jax.tree.leaves(self.trajectory)[0])
        return jax.tree.map(lambda x: x[length - max(1, round(tail * length)) :], self.trajectory)


def _batch_means(iterates) -> np.ndarray:
    """Deviations (b, ...) whose squares sum to the variance of the mean of `iterates` (n, ...)."""
    if len(iterates) < 2 * _NUM_BATCHES:
        raise ConfigurationError(
            f"the tail holds {len(iterates)} iterates, and {2 * _NUM_BATCHES} are needed; lower thinning or run longer."
        )
    length = len(iterates) // _NUM_BATCHES
    recent = np.asarray(iterates[len(iterates) - length * _NUM_BATCHES :], np.float64)
    means = recent.reshape(_NUM_BATCHES, length, *iterates.shape[1:]).mean(axis=1)
    return (means - means.mean(axis=0)) / np.sqrt(_NUM_BATCHES * (_NUM_BATCHES - 1.0))
