"""The Gaussian surrogate of the likelihood that the releases give, with known noise, and posteriors under normal priors."""

from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.curvature import Curvature, ReleasedCurvature, dispersion
from dpppl.noise_aware.sketch import Sketch
from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.matrices import Array, eigh, positive_part, posterior_covariance, root_of, times

_FEW, _PASSES = 5, 8
_FARTHEST = 1e4  # prior sds, beyond which a posterior mean is rounding


class Surrogate(NamedTuple):
    """gradient | u ~ N(h (u - centre), J + noise), h drawn from `curvature`, with J its variance of scores. Vectors are (k, b),
    matrices (k, b, b); narrow models have one block.

    - **basis** - from u to latents.
    - **centre**, **gradient**, **noise_variance** - where the gradients were taken, the mean noisy score, its privacy noise.
    - **curvature** - draws of h.
    - **off_block**, **trace** - (k, b): the variance that off-block entries add where curvature times spread has this trace.
    - **unknown** - (k, b): the share of a coordinate in directions that the data may leave open, as of collinear columns."""

    basis: Basis
    centre: Array
    gradient: Array
    noise_variance: float
    curvature: Curvature
    off_block: Array
    trace: float
    unknown: Array

    def off_block_at(self, h: Array, spread: Array) -> Array:
        """Variance (k, b) that off-block entries add to the gradient; `h` is the mean of the curvature."""
        return self.off_block * (np.sum(h * spread) / self.trace)

    def noise_at(self, covariance: Array) -> Array:
        """The variances (k, b) of noise, where u has this prior covariance; off-block terms are those at the posterior."""
        noise = np.full(self.centre.shape, self.noise_variance)
        if not np.any(self.off_block):
            return noise
        few = self._replace(curvature=self.curvature.thinned(_FEW))
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
        pull = times(slope.swapaxes(-1, -2), total)
        mean = times(spread, pull)
        farthest = _FARTHEST * np.sqrt(np.trace(covariance, axis1=-2, axis2=-1))
        length = np.linalg.norm(mean, axis=-1)
        return mean * (farthest / np.maximum(length, farthest))[..., None], spread

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


class OneSided(NamedTuple):
    """The direction of u in which scores vary least, in units of what the curvature leads one to expect of them: where few rows,
    or rows whose responses are certain, inform it, the likelihood falls off on one side alone.

    - **sure** - by how many standard errors of noise the variance is below half of what is typical, less what the least
      eigenvalue of noise is below 0.
    - **known** - the share of the prior's variance that the posterior does not have there.
    - **move** - u (k, b), along which the posterior changes most with it."""

    sure: float
    known: float
    move: Array

    @classmethod
    def of(cls, released: ReleasedCurvature, curvature: Array, spread: Array, covariance: Array) -> "OneSided":
        """`curvature`: its mean; `spread`, `covariance`: of the posterior and the prior, all (k, b, b)."""
        typical = dispersion(released.score_variance, released.score_variance_std, curvature)[0]
        vectors = eigh(released.score_variance - typical * curvature)[1][..., 0]  # of each block
        along = lambda matrices: np.sum(vectors * times(matrices, vectors), axis=1)  # noqa: E731
        expected, found, left = along(curvature), along(released.score_variance), along(spread) / along(covariance)
        sure = (0.5 * typical * expected - found) / released.score_variance_std - np.sqrt(2.0 * spread.shape[-1])
        block = int(np.argmax(sure))
        move = np.zeros_like(vectors)
        move[block] = times(spread[block], vectors[block])
        return cls(float(sure[block]), float(1.0 - left[block]), move)


def surrogate_of(
    released: ReleasedCurvature, curvature: Curvature, basis: Basis, sketch: Sketch, num_rows: int,
    measured: tuple[Array, Array, float],
) -> Surrogate:  # fmt: skip
    """The surrogate of a released curvature and draws of it; `measured`: centre, gradient and its noise variance."""
    layout, mean = basis.layout, curvature.mean
    columns = layout.gathered(sketch.columns.T)
    unsure = np.zeros(layout.dimension)
    if len(columns):
        off = curvature.matrices - mean
        unsure = layout.scattered(np.mean([times(h, c) ** 2 for h in off for c in columns], axis=0))
    found = sketch.off_block(released.products, basis, mean, unsure, released.curvature_std**2, num_rows)
    return Surrogate(basis, *measured, curvature, layout.gathered(found[0]), found[1], found[2] * layout.real)


def excess_spread(surrogate: Surrogate, covariance: Array, spread: Array) -> float:
    """By how much a posterior of u lies farther around its mean than it would with no noise: squared distances by the curvature
    h, over the same for the covariance (h + prior precision)^-1, less one."""
    h = surrogate.curvature.mean
    lengths = np.trace(h @ spread, axis1=-2, axis2=-1).sum()
    least = posterior_covariance(positive_part(h), root_of(covariance))
    return max(0.0, float(lengths / np.trace(h @ least, axis1=-2, axis2=-1).sum()) - 1.0)
