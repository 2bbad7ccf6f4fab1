"""Curvatures as they are released, and draws of them given the noise, each with the variance of scores that goes with it."""

from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.eigen_draws import eigen_draws
from dpppl.row_statistics.accesses import At
from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.matrices import Array, eigh, from_vector, positive_part
from dpppl.row_statistics.statistics import scores_share
from dpppl.types import Tree

_SMALLEST, _RELATIVE_SPREAD = 0.02, 0.3
_SPREAD_ALONG, _GRID = 0.6, 200
_ROUGH, _MOST_DECLINE, _DIFFERENT, _CLEAR = 0.1, 3.0, 3.0, 3.0


class Curvature(NamedTuple):
    """Positive definite draws of a curvature, equally weighted. Padding is 0.

    - **values**, **vectors** - eigenvalues (n, ..., d), and eigenvectors (n, ..., d, d), in columns.
    - **ratio** - (..., d, d), or (n, ..., d, d): the variance of scores in units of the curvature."""

    values: Array
    vectors: Array
    ratio: Array

    @property
    def matrices(self) -> Array:
        return self._powers(1.0)

    @property
    def mean(self) -> Array:
        return self.matrices.mean(axis=0)

    @property
    def score_variance(self) -> Array:
        """The variance of the sum of scores that goes with each draw, (n, ..., d, d)."""
        roots = self._powers(0.5)
        return roots @ self.ratio @ roots

    def _powers(self, exponent: float) -> Array:
        return (self.vectors * self.values[..., None, :] ** exponent) @ self.vectors.swapaxes(-1, -2)

    def averaged(self, redrawn: float, count: int, added: float = 0.0) -> "Curvature":
        """With the variance of the mean of `count` gradients in place of that of each: all have the same rows, and draws of their
        own, which make the share `redrawn` of the variance that the model gives scores, or add its multiple `added`."""
        variance, mean = (np.trace(x, axis1=-2, axis2=-1).sum() for x in (self.score_variance.mean(axis=0), self.mean))
        by = 1.0 - redrawn * (1.0 - 1.0 / count) + added / count
        return self._replace(ratio=self.ratio * (1.0 + (by - 1.0) * float(mean / max(variance, mean))))

    def as_model(self) -> "Curvature":
        """With the curvature as the variance of scores, which a model without misspecification bounds it by."""
        return self._replace(ratio=np.eye(self.vectors.shape[-2]))

    def thinned(self, count: int) -> "Curvature":
        """About this number of the draws."""
        step = max(1, len(self.values) // count)
        ratio = self.ratio[::step] if self.ratio.ndim > self.values.ndim else self.ratio
        return self._replace(values=self.values[::step], vectors=self.vectors[::step], ratio=ratio)

    def error(self, spread: Array) -> Array:
        """The covariance (..., d, d) of (h - mean) delta, for E[delta delta'] = spread."""
        off = self.matrices - self.mean
        return np.mean(off @ spread @ off, axis=0)


def drawn(
    noisy: Array, std: float, score_variance: Array, score_variance_std: float, real: Array, covariance: Array, count: int,
    most: float = 1.0, along: Array | None = None,
) -> Curvature:  # fmt: skip
    """Draws of diagonal blocks (k, b, b) of a curvature, given noisy releases under a prior of this `covariance`.

    - **noisy**, **std** - curvature plus noise, (k, b, b), of this sd on the diagonal, and std / sqrt 2 off it.
    - **score_variance**, **score_variance_std** - variance of the scores with noise, and the sd of that noise.
    - **real** - (k, b), where there is no padding.
    - **most**, **along** - see `_ratio`, and `_drawn_along`."""
    smallest = _SMALLEST * min(1.0 / np.linalg.eigvalsh(covariance).max(), std)
    values, vectors = eigen_draws(noisy, std, real, score_variance, smallest, count)
    if along is not None:
        values, vectors = _drawn_along(along, values, vectors, noisy, std)
    mean = ((vectors * values[:, :, None, :]) @ vectors.swapaxes(2, 3)).mean(axis=0)
    return Curvature(values, vectors, _ratio(score_variance, score_variance_std, mean, most, count))


def _drawn_along(along: Array, values: Array, vectors: Array, noisy: Array, std: float) -> tuple[Array, Array]:
    """The draws, (n, 1, b) and (n, 1, b, b), whose curvature along the unit vector `along` (b,) is drawn anew."""
    # From its release, and a lognormal prior around the mean over all directions, for which coordinates are made
    # (`Basis.whitened_along`). Along the way from the prior mean a regression has another curvature than across it, which a prior
    # that knows no directions would not allow.
    matrices = (vectors[:, 0] * values[:, 0, None, :]) @ vectors[:, 0].swapaxes(1, 2)
    # from eigenvalues: along @ matrices @ along may be rounded to 0
    typical, present = values[:, 0].mean(axis=1), np.sum(values[:, 0] * (along @ vectors[:, 0]) ** 2, axis=1)
    away = np.linspace(-4.0, 4.0, _GRID)
    grid = typical[:, None] * np.exp(_SPREAD_ALONG * away)
    logs = -0.5 * (away**2 + ((grid - along @ noisy[0] @ along) / std) ** 2)
    shares = np.cumsum(np.exp(logs - logs.max(axis=1, keepdims=True)), axis=1)
    level = shares[:, -1:] * np.random.default_rng(1).random((len(grid), 1))
    chosen = np.take_along_axis(grid, np.argmax(shares >= level, axis=1)[:, None], axis=1)[:, 0]
    stretch = np.eye(len(along)) + (np.sqrt(chosen / present) - 1.0)[:, None, None] * np.outer(along, along)
    values, vectors = eigh(stretch @ matrices @ stretch)
    return np.maximum(values, values[:, -1:] * 1e-12)[:, None], vectors[:, None]


def _ratio(noisy: Array, std: float, curvature: Array, most: float = 1.0, count: int = 0) -> Array:
    """The variance of scores J in units of the curvature A: C in J = A^(1/2) C A^(1/2), given `noisy` = J + noise."""
    # J is much like a multiple of A, of at most `most`: 1, or the rows of a unit, which may be correlated. So C starts from one,
    # with entries of a relative spread of 0.3, and moves to what was released as far as its noise allows. Where `most` is
    # infinite, for a sandwich, the spread is 1, and `count` draws (count, ...) hold what the noise of J leaves open.
    size, error = np.sum(curvature**2), std**2
    # 1, which is safe, where noise drowns it
    multiple = (dispersion(noisy, std, curvature)[0] + error / size) / (1.0 + error / size)
    multiple = float(np.clip(multiple + np.sqrt(error / (size + error)), 0.05, most))
    values, vectors = eigh(curvature)
    roots = np.sqrt(np.maximum(values, 1e-30))
    scales, identity = roots[..., :, None] * roots[..., None, :], np.eye(values.shape[-1])
    is_open = np.isinf(most)
    prior = ((1.0 if is_open else _RELATIVE_SPREAD) * multiple * scales) ** 2
    noise = error * np.where(identity > 0, 1.0, 0.5)
    gain = prior / (prior + noise)
    released = vectors.swapaxes(-1, -2) @ noisy @ vectors / scales
    found = multiple * identity + gain * (released - multiple * identity)
    if is_open and count:
        drawn = np.random.default_rng(2).standard_normal((count, *found.shape)) * np.sqrt(gain * noise) / scales
        upper = np.triu(drawn)
        found = found + upper + np.triu(upper, 1).swapaxes(-1, -2)
    return positive_part(vectors @ found @ vectors.swapaxes(-1, -2))


def dispersion(noisy: Array, std: float, curvature: Array) -> tuple[float, float]:
    """By what the curvature is multiplied to be nearest to the variance of scores, given `noisy`, and the sd of that by noise."""
    size = np.sum(curvature**2)
    return float(np.sum(noisy * curvature) / size), float(std / np.sqrt(size))


class ReleasedCurvature(NamedTuple):
    """A released curvature.

    - **curvature**, **curvature_std** - its blocks (k, b, b), and the sd of the noise in these and in `products`.
    - **products** - (d, COLUMNS): its products with the sketch.
    - **score_variance**, **score_variance_std** - the variance of scores, (k, b, b), and the sd of the noise in it.
    - **most_scores** - the variance of scores is at most this multiple of the curvature; infinite for a sandwich."""

    curvature: Array
    curvature_std: float
    products: Array
    score_variance: Array
    score_variance_std: float
    most_scores: float = 1.0

    @classmethod
    def of(cls, values: Tree, sigma: float, at: At, most_scores: float = 1.0) -> "ReleasedCurvature":
        """From the noisy sums of an access of noise multiplier `sigma`, with the bounds in `at`."""
        basis, (blocks, width, _) = at.basis, at.basis.roots.shape
        numbers = blocks * width * (width + 1) // 2
        matrices = lambda vector: basis.real(from_vector(vector.reshape(blocks, -1), width))  # noqa: E731
        share = scores_share(most_scores)
        unit, unit_j = at.curvature_bound / np.sqrt(1.0 - share), at.norm**2 / np.sqrt(share)
        products = values["A"][numbers:].reshape(len(basis.scales), -1) * unit
        curvature, score_variance = matrices(values["A"][:numbers]) * unit, matrices(values["J"]) * unit_j
        return cls(curvature, sigma * unit, products, score_variance, sigma * unit_j, most_scores)

    @property
    def largest_error(self) -> float:
        """About the largest eigenvalue of the noise in a block."""
        return self.curvature_std * float(np.sqrt(2.0 * self.curvature.shape[-1]))

    def hidden(self, covariance: Array) -> float:
        """How much better than the prior, of this `covariance` (k, b, b), the data may know a direction that noise hides: the
        bound on the curvature's error over the prior precision along an eigenvector. 0 where nothing is hidden, or no direction
        stands clear of the noise (then the budget, and not the scale of columns, is the cause), or there are blocks."""
        if len(covariance) > 1:
            return 0.0
        values, vectors = eigh(self.curvature[0])
        if values[-1] < _CLEAR * self.largest_error:
            return 0.0
        least = np.sum(vectors * (np.linalg.pinv(covariance[0], hermitian=True) @ vectors), axis=0)
        return float(np.max(np.where(values < self.largest_error, self.largest_error / least, 0.0)))

    def combined(self, other: "ReleasedCurvature") -> "ReleasedCurvature":
        """The precision-weighted mean of two; the `other` alone where these differ by more than their noise explains."""
        # An eigenvalue of the difference exceeds the largest of its noise in one of 1,000 runs or so.
        noise, width = np.hypot(self.curvature_std, other.curvature_std), self.curvature.shape[-1]
        largest = np.abs(np.linalg.eigvalsh(other.curvature - self.curvature)).max()
        if largest > noise * (np.sqrt(2.0 * width) + _DIFFERENT):
            return other

        def mean(a: Array, std_a: float, b: Array, std_b: float) -> tuple[Array, float]:
            w, v = std_a**-2, std_b**-2
            return (w * a + v * b) / (w + v), float((w + v) ** -0.5)

        curvature = mean(self.curvature, self.curvature_std, other.curvature, other.curvature_std)
        products, _ = mean(self.products, self.curvature_std, other.products, other.curvature_std)
        scores = mean(self.score_variance, self.score_variance_std, other.score_variance, other.score_variance_std)
        return ReleasedCurvature(*curvature, products, *scores, self.most_scores)

    def posterior(self, basis: Basis, covariance: Array, count: int, moved: Array) -> Curvature:
        """Draws of the curvature, where u has this prior covariance and lies `moved` (k, b) from its prior mean."""
        released = self.curvature, self.curvature_std, self.score_variance, self.score_variance_std
        is_far = len(moved) == 1 and bool(np.any(moved))
        along = moved[0] / np.linalg.norm(moved) if is_far else None
        return drawn(*released, basis.layout.real, covariance, count, self.most_scores, along)


def decline(sizes: Array, std: float) -> float:
    """The power a by which the curvature declines with the distance r from the prior mean, as r^-a, from its size half way and
    here, `sizes` (2,) with noise of this sd, where that shows it; shrunk towards 0 as by one more number of sd 1."""
    if np.min(sizes) < 2.0 * std:
        return 0.0
    way, variance = np.log(2.0), np.sum((std / sizes) ** 2) + _ROUGH**2
    return float(np.clip(way * np.log(sizes[0] / sizes[1]) / (way**2 + variance), -_MOST_DECLINE, _MOST_DECLINE))
