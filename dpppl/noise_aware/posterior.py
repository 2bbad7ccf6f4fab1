"""Samples of the posterior: the exact prior times the surrogate of the likelihood."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.information_flow.executables import run_once
from dpppl.noise_aware import nuts
from dpppl.noise_aware.coordinates import Coordinates
from dpppl.noise_aware.curvature import Array, times
from dpppl.noise_aware.prior import Known, Prior
from dpppl.noise_aware.surrogate import Surrogate, moments, root_of

_CHAINS = 30


class Mixture(NamedTuple):
    """A posterior under a normal prior: normal given the curvature, which is drawn from what its release left open.

    - **mean** - latents at u = 0.
    - **prior** - (k, b, b): the prior covariance of u.
    - **means** - (n, k, b), equally weighted.
    - **covariances** - (n, k, b, b).
    - **surrogate** - the likelihood.

    Gradients near the posterior mean say next to nothing of the curvature, and weights by their evidence would prefer small ones,
    whose posteriors are wide."""

    mean: Array
    prior: Array
    means: Array
    covariances: Array
    surrogate: Surrogate

    @classmethod
    def of(cls, surrogate: Surrogate, prior: Prior) -> "Mixture":
        """A function of the releases alone: the draws of curvatures have a seed of their own."""
        frame = surrogate.frame
        covariance = frame.from_latents(prior.covariance(frame))
        return cls(prior.mean, covariance, *surrogate.posteriors(covariance), surrogate)

    def moments(self) -> Known:
        """Mean and variances of the coordinates."""
        frame, (mean, spread) = self.surrogate.frame, moments(self.means, self.covariances)
        return Known(self.mean + frame.latents(mean), frame.variances(spread))

    def log_density(self, number: int, value: float) -> float:
        """Log posterior density of one coordinate at a value.

        - **number** - number of the coordinate.
        - **value** - value of the coordinate."""
        from scipy.special import logsumexp

        frame = self.surrogate.frame
        means = self.mean[number] + frame.latents(self.means)[:, number]
        variances = np.array([frame.variances(covariance)[number] for covariance in self.covariances])
        logs = -0.5 * ((value - means) ** 2 / variances + np.log(2.0 * np.pi * variances))
        return float(logsumexp(logs) - np.log(len(logs)))

    def linear(self) -> tuple[nuts.Linear, nuts.Linear, Array]:
        """Likelihoods: one for each normal distribution of a part of them, and that of all together, whose covariance (k, b, b)
        is the last."""
        step, frame = max(1, len(self.means) // _CHAINS), self.surrogate.frame
        mean, spread = moments(self.means, self.covariances)
        each = nuts.Linear.of(self.means[::step], self.covariances[::step], self.prior, self.mean, frame)
        return each, nuts.Linear.of(mean[None], spread[None], self.prior, self.mean, frame), spread

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Independent draws (count, d), as many of each normal distribution."""
        chosen, drawn = rng.permutation(np.arange(count) % len(self.means)), np.empty((count, len(self.mean)))
        for number in np.unique(chosen):
            own = np.flatnonzero(chosen == number)
            noise = rng.standard_normal((len(own), *self.means.shape[1:]))
            u = self.means[number] + times(root_of(self.covariances[number]), noise)
            drawn[own] = self.mean + self.surrogate.frame.latents(u)
        return drawn


def draw(
    coordinates: Coordinates, mixture: Mixture, is_normal: bool, public: Any, key: Any, num_samples: int
) -> tuple[dict[str, Array], str | None]:
    """Unconstrained latents by site, (num_samples, ...), and what is wrong with NUTS's draws, if anything.

    - **coordinates** - in which the likelihood is measured.
    - **mixture** - posteriors given surrogates of the likelihood.
    - **is_normal** - whether the prior is normal: then draws are independent, else NUTS's.
    - **public** - the model's Public arrays.
    - **key** - key of the draws.
    - **num_samples** - number of draws."""
    if not is_normal:
        return nuts.Sampler(coordinates, num_samples)(*mixture.linear(), public, key)
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,), jnp.uint32)))
    points = np.asarray(mixture.draw(rng, num_samples), np.float32)
    return {site: np.asarray(value) for site, value in run_once(jax.vmap(coordinates.latents), points).items()}, None
