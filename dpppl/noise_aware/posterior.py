"""Samples of the posterior: the exact prior times the surrogate of the likelihood."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.noise_aware import nuts
from dpppl.noise_aware.coordinates import Coordinates
from dpppl.noise_aware.curvature import Array, positive_part
from dpppl.noise_aware.recipe import Prior, Surrogate
from dpppl.noise_aware.wide_posterior import WideMixture

_NUM_CURVATURES, _FIRST = 200, 40
_CHANGE = 1.0


class Mixture(NamedTuple):
    """A posterior under a normal prior: normal given the curvature, which is drawn from what its release left open.

    `means` (k, d), `covariances` (k, d, d), of the latents; all weigh alike. Gradients near the posterior mean say next
    to nothing of the curvature, and weights by their evidence would prefer small ones, whose posteriors are wide.
    `surrogate`: the likelihood that they count, widened."""

    means: Array
    covariances: Array
    surrogate: Surrogate

    @classmethod
    def of(cls, surrogate: Surrogate, prior: Prior) -> "Mixture":
        """A function of the releases alone: the draws of curvatures have a seed of their own."""
        return cls._drawn(widened(surrogate, prior), prior, _NUM_CURVATURES)

    @classmethod
    def _drawn(cls, surrogate: Surrogate, prior: Prior, num_curvatures: int) -> "Mixture":
        metric = surrogate.metric
        precision = metric.T @ np.linalg.inv(prior.covariance) @ metric
        means, covariances = [], []
        for h in surrogate.curvature.draws(np.random.default_rng(0), num_curvatures):
            scores = surrogate.scores + surrogate.follows * (h - surrogate.curvature.mean)
            weighted = np.linalg.solve(_plus(scores, surrogate.noise_variance), h)
            covariances.append(np.linalg.inv(precision + h @ weighted))
            means.append(covariances[-1] @ weighted.T @ (surrogate.gradient + h @ surrogate.centre))
        return cls(prior.mean + np.array(means) @ metric.T, metric @ np.array(covariances) @ metric.T, surrogate)

    def moments(self) -> Prior:
        """Mean and covariance."""
        mean = self.means.mean(axis=0)
        between = (self.means - mean).T @ (self.means - mean) / len(self.means)
        return Prior(mean, self.covariances.mean(axis=0) + between)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Independent draws (count, d)."""
        chosen = rng.integers(len(self.means), size=count)
        roots = np.linalg.cholesky(self.covariances)
        return self.means[chosen] + np.einsum(
            "nij,nj->ni", roots[chosen], rng.standard_normal((count, self.means.shape[1]))
        )


def widened(surrogate: Surrogate, prior: Prior) -> Surrogate:
    """The surrogate whose curvature counts that the likelihood is not quadratic: between the point where it was released and the
    latents, the logarithm of a coordinate's curvature is taken to change by one for each prior sd that the posterior is wide.

    That is how much a logistic regression's does whose logits have a prior sd of 2."""
    found = Mixture._drawn(surrogate, prior, _FIRST).moments()
    width = np.sqrt(np.mean(np.diag(found.covariance) / np.diag(prior.covariance)))
    return surrogate._replace(curvature=surrogate.curvature.changed(_CHANGE * float(width)))


def _plus(scores: Array, noise_variance: float) -> Array:
    """The variance of scores and of noise; positive definite."""
    total = scores + noise_variance * np.eye(len(scores))
    try:
        np.linalg.cholesky(total)
    except np.linalg.LinAlgError:
        return positive_part(scores) + noise_variance * np.eye(len(scores))
    return total


def draw(
    coordinates: Coordinates,
    mixture: Mixture | WideMixture,
    prior_mean: Array,
    is_normal: bool,
    public: Any,
    key: Any,
    num_samples: int,
) -> tuple[dict[str, Array], str | None]:
    """Unconstrained latents by site, (num_samples, ...): independent draws where the prior is normal, else NUTS; and what
    is wrong with NUTS's draws, if anything."""
    if not is_normal and isinstance(mixture, WideMixture):
        return nuts.wide(coordinates, mixture, public, key, num_samples)
    if not is_normal and isinstance(mixture, Mixture):
        sampler = nuts.Sampler(coordinates, num_samples)
        return nuts.dense(sampler, mixture.surrogate, prior_mean, mixture.moments(), public, key)
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,), jnp.uint32)))
    points = jnp.asarray(mixture.draw(rng, num_samples), jnp.float32)
    return {site: np.asarray(value) for site, value in jax.vmap(coordinates.latents)(points).items()}, None
