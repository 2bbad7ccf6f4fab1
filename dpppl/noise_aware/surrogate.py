"""The Gaussian surrogate of the likelihood that the releases give, with known noise, and posteriors under normal priors."""

from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.curvature import Curvature
from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.matrices import Array, eigh, positive_part, posterior_covariance, root_of, times
from dpppl.row_statistics.walk import gains_of

_FEW, _PASSES = 20, 8
_FARTHEST = 1e4  # prior sds, beyond which a posterior mean is rounding


class Surrogate(NamedTuple):
    """gradient | u ~ N(h (u - centre), J + noise), h drawn from `curvature`, with J its variance of scores. Vectors are (k, b),
    matrices (k, b, b); narrow models have one block.

    - **basis** - from u to latents.
    - **centre**, **gradient**, **noise_variance** - where the gradients were taken, the mean noisy score, its privacy noise.
    - **curvature** - draws of h.
    - **off_block**, **trace** - (k, b): the variance that off-block entries add where curvature times spread has this trace.
    - **unknown** - (k, b): the share of a coordinate in directions of which the data may say nothing, as columns that add up to
      the same.
    - **decline** - the curvature declines with the distance r from u = 0 as r^-decline."""

    basis: Basis
    centre: Array
    gradient: Array
    noise_variance: float
    curvature: Curvature
    off_block: Array
    trace: float
    unknown: Array
    decline: float = 0.0

    def off_block_at(self, h: Array, spread: Array) -> Array:
        """Variance (k, b) that off-block entries add to the gradient; `h` is the mean of the curvature."""
        return self.off_block * (np.sum(h * spread) / self.trace)

    def noise_at(self, covariance: Array) -> Array:
        """The variances (k, b) of noise, where u has this prior covariance; off-block terms are those at the posterior."""
        noise = np.full(self.centre.shape, self.noise_variance)
        if not np.any(self.off_block):
            return noise
        few = self._replace(curvature=self.curvature.thinned(_FEW // 4))
        h, spread = few.curvature.mean, covariance
        for _ in range(_PASSES):
            total = noise + self.off_block_at(h, spread)
            spread = few.given(total, covariance)[1].mean(axis=0)
        return total

    def given(self, noise: Array, covariance: Array) -> tuple[Array, Array]:
        """Means (n, k, b) and covariances (n, k, b, b) of u given each draw of the curvature, under a normal prior of mean 0. By
        eigenvalues throughout, so that no release makes it fail."""
        h, root = self.curvature.matrices, root_of(covariance)
        values, vectors = eigh(self.curvature.score_variance + np.eye(noise.shape[-1]) * noise[..., None, :])
        white = vectors.swapaxes(-1, -2) / np.sqrt(np.maximum(values, noise.min()))[..., None]
        total = times(white, self.gradient + times(h, self.centre))
        slope = white @ h
        spread = posterior_covariance(slope.swapaxes(-1, -2) @ slope, root)
        pull = times(slope.swapaxes(-1, -2), total) + self._outward(h, white, spread)
        mean = times(spread, pull)
        farthest = _FARTHEST * np.sqrt(np.trace(covariance, axis1=-2, axis2=-1))
        length = np.linalg.norm(mean, axis=-1)
        return mean * (farthest / np.maximum(length, farthest))[..., None], spread

    def _outward(self, h: Array, white: Array, spread: Array) -> Array:
        """The slope (n, k, b) of the log density as the curvature declines from u = 0; `white` makes the noise the identity."""
        if not self.decline:
            return np.zeros_like(self.centre)
        # Farther out all directions are wider, so more of the posterior lies there. Integrated over direction j, of curvature
        # h_j, variance of scores J_j, noise Q_j, prior precision p_j, the density goes as (1 + h_j^2 / Q_j p_j)^(-1/2).
        # With h and J proportional to r^-a the logarithm of the product over j has the slope a sum_j s_j (1 - J_j / 2 Q_j) in log
        # r, where s_j is the share of the prior variance that j has lost. Without privacy, J = Q = h, this is half of what h
        # loses, as in Laplace's method (Tierney, Kadane 1986).
        slope, diagonal = white @ h, lambda matrices: np.diagonal(matrices, axis1=-2, axis2=-1)
        learned = slope @ spread @ slope.swapaxes(-1, -2)
        sampled = white @ self.curvature.score_variance @ white.swapaxes(-1, -2)
        count = diagonal(learned).sum(axis=(-2, -1)) - 0.5 * np.sum(learned * sampled, axis=(-3, -2, -1))
        variance = np.sum(diagonal(spread) * (diagonal(h) > 0.0), axis=(-2, -1))  # but for padding
        squared = np.sum(self.centre**2) + variance  # as the posterior has it
        return (self.decline * count / squared)[..., None, None] * self.centre

    def pull(self, covariance: Array, moves: Array) -> tuple[Array, Array, Array]:
        """V^-1 h M of moves M (..., k, b, c), J, and the gradient's variance V (k, b, b), where u has this prior covariance."""
        scores = self.curvature.score_variance.mean(axis=0)
        total = scores + np.eye(scores.shape[-1]) * self.noise_at(covariance)[:, None, :]
        return np.linalg.solve(total, self.curvature.mean @ moves), scores, total

    def posteriors(self, covariance: Array) -> tuple[Array, Array]:
        """Posteriors where the unknown share of the curvature is as in the prior."""
        means, spreads = self.given(self.noise_at(covariance), covariance)
        share = np.sqrt(self.unknown)
        return means, spreads + share[:, :, None] * (covariance - spreads) * share[:, None, :]

    def point(self, mean: Array) -> Array:
        """The latents at the centre, `mean` being those at u = 0."""
        return mean + self.basis.to_latents(self.centre)


def largest_sampled(surrogate: Surrogate, covariance: Array, spread: Array) -> float:
    """The largest share, over directions of u, of the posterior variance `spread` that is the sampling of the data, where u has
    this prior covariance; the rest is due to privacy noise, to the unknown curvature, and to the prior."""
    pull, scores, _ = surrogate.pull(covariance, root_of(spread))
    return float(np.clip(np.linalg.eigvalsh(pull.swapaxes(1, 2) @ scores @ pull).max(), 0.0, 1.0))


def moments(means: Array, covariances: Array) -> tuple[Array, Array]:
    """Mean and covariance of an equal mixture of n normal distributions."""
    mean = means.mean(axis=0)
    off = np.moveaxis(means - mean, 0, -1)
    return mean, covariances.mean(axis=0) + off @ off.swapaxes(-1, -2) / len(means)


def resolved(covariances: Array, prior: Array) -> float:
    """How far equally likely posterior covariances (n, k, b, b) agree on the directions that were learned, from 0 to 1: the
    squared length of the mean of 1 - R^-1 S R^-T, RR' the `prior` covariance (k, b, b), over the mean of the squared lengths; 1
    where nothing was learned."""
    values, vectors = eigh((prior + prior.swapaxes(-1, -2)) / 2)
    inverse = (vectors / np.sqrt(np.maximum(values, values.max() * 1e-12))[..., None, :]).swapaxes(-1, -2)
    learned = np.eye(prior.shape[-1]) - inverse @ covariances @ inverse.swapaxes(-1, -2)
    squared = np.sum(learned**2) / len(learned)
    return float(np.sum(learned.mean(axis=0) ** 2) / squared) if squared > 0.0 else 1.0


def gains_given(surrogate: Surrogate, mean: Array, covariance: Array, std: float) -> tuple[Array, Array]:
    """See `gains_of`: those of a walk that this surrogate expects, whose gradients have privacy noise of this `std`."""
    few = surrogate.curvature.thinned(_FEW)
    h, noise = few.mean, surrogate.noise_at(covariance)
    spread = surrogate._replace(curvature=few).given(noise, covariance)[1].mean(axis=0)
    fixed = few.score_variance.mean(axis=0) + few.error(spread)
    fixed += np.eye(h.shape[-1]) * (noise - surrogate.noise_variance)[:, None, :]
    return gains_of(h, fixed, std, mean, covariance)


def tempered(mean: Array, spread: Array, covariance: Array, by: float) -> tuple[Array, Array]:
    """Mean and covariance of u where a posterior of this mean and `spread` has 1 / `by` of its information, but for that of its
    prior, of mean 0 and this `covariance`."""
    precision = np.linalg.pinv(spread, hermitian=True)
    information = positive_part(precision - np.linalg.pinv(covariance, hermitian=True)) / by
    found = posterior_covariance(information, root_of(covariance))
    return times(found, times(precision, mean)) / by, found


def excess_of(surrogate: Surrogate, covariance: Array, mean: Array, spread: Array) -> float:
    """By how much a posterior of u lies farther around the surrogate's centre than it would with no noise at the mode: squared
    distances by the curvature h, over the same for the covariance (h + prior precision)^-1, less one."""
    h, off = surrogate.curvature.mean, mean - surrogate.centre
    lengths = np.trace(h @ spread, axis1=-2, axis2=-1).sum() + np.sum(off * times(h, off))
    least = posterior_covariance(positive_part(h), root_of(covariance))
    return max(0.0, float(lengths / np.trace(h @ least, axis1=-2, axis2=-1).sum()) - 1.0)
