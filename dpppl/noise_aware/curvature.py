"""Curvatures as they are released, and draws of them given the noise, each with the variance of scores that goes with it."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.eigen_draws import eigen_draws
from dpppl.row_statistics.accesses import At
from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.matrices import Array, eigh, from_vector, positive_part, symmetric_root
from dpppl.row_statistics.statistics import units
from dpppl.types import Tree

_SMALLEST, _RELATIVE_SPREAD = 0.02, 0.3
_LEAST_RATIO = 0.5  # of the typical variance of scores in units of the curvature
_SATURATED = 30.0  # the most by which clipping is taken to lower the variance of scores more than the curvature


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

    def averaged(self, redrawn: float, count: float, added: float = 0.0) -> "Curvature":
        """With the variance of the mean of `count` gradients in place of that of each. All have the same rows, so only what is
        drawn anew for each averages out: the share `redrawn` of the model's variance of scores, or `added` times it."""
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


def drawn_curvature(
    noisy: Array, std: float, score_variance: Array, score_variance_std: float, real: Array, covariance: Array, count: int,
    most: float = 1.0,
) -> Curvature:  # fmt: skip
    """Draws of diagonal blocks (k, b, b) of a curvature, given noisy releases under a prior of this `covariance`.

    - **noisy**, **std** - curvature plus noise, (k, b, b), of this sd on the diagonal, and std / sqrt 2 off it.
    - **score_variance**, **score_variance_std** - variance of the scores with noise, and the sd of that noise.
    - **real** - (k, b), where there is no padding.
    - **most** - see `_ratio`."""
    smallest = _SMALLEST * min(1.0 / np.linalg.eigvalsh(covariance).max(), std)
    values, vectors = eigen_draws(noisy, std, real, score_variance, smallest, count)
    mean = ((vectors * values[:, :, None, :]) @ vectors.swapaxes(2, 3)).mean(axis=0)
    return Curvature(values, vectors, _ratio(score_variance, score_variance_std, mean, most, count))


def _ratio(noisy: Array, std: float, curvature: Array, most: float, count: int) -> Array:
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
    least = 0.0 if is_open else _LEAST_RATIO * multiple * identity
    return positive_part(vectors @ found @ vectors.swapaxes(-1, -2) - least) + least


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
        _, unit_a, unit_j = units(at.score_share, most_scores)
        unit, unit_j = at.curvature_bound / (at.kept * unit_a), at.norm**2 / unit_j
        products = values["A"][numbers:].reshape(len(basis.scales), -1) * unit
        curvature, score_variance = matrices(values["A"][:numbers]) * unit, matrices(values["J"]) * unit_j
        stds = float(sigma * unit), float(sigma * unit_j)
        return cls(curvature, stds[0], products, score_variance, stds[1], most_scores)

    @classmethod
    def mean(cls, each: Iterable["ReleasedCurvature"]) -> "ReleasedCurvature":
        """The precision-weighted mean of some in one basis, with the same bounds."""
        found = list(each)

        def mean(arrays: list[Array], stds: list[float]) -> tuple[Array, float]:
            weights = np.array(stds) ** -2.0
            total = float(np.sum(weights))
            return np.asarray(np.tensordot(weights / total, np.array(arrays), 1)), float(total**-0.5)

        stds = [one.curvature_std for one in found]
        curvature, std = mean([one.curvature for one in found], stds)
        scores, scores_std = mean([one.score_variance for one in found], [one.score_variance_std for one in found])
        return cls(curvature, std, mean([x.products for x in found], stds)[0], scores, scores_std, found[0].most_scores)

    def posterior(self, basis: Basis, covariance: Array, count: int) -> Curvature:
        """Draws of the curvature, where u has this prior covariance."""
        released = self.curvature, self.curvature_std, self.score_variance, self.score_variance_std
        return drawn_curvature(*released, basis.layout.real, covariance, count, self.most_scores)


def unsaturated(curvature: Array, ratio: Array) -> Array:
    """The information A J^-1 A of clipped scores, (k, b, b), of a curvature A and the `ratio` of J to it. Rows that have what is
    rare are long: along such columns clipping makes A small, and J smaller still."""
    values, vectors = eigh(ratio.reshape(-1, *curvature.shape).mean(axis=0))  # of draws, the mean
    typical = np.maximum(np.median(values, axis=-1, keepdims=True), 1e-100)
    inverse = typical / np.clip(values, typical / _SATURATED, typical)
    inverse = (vectors * inverse[..., None, :]) @ vectors.swapaxes(-1, -2)
    root = symmetric_root(curvature)
    return root @ inverse @ root
