"""Posterior draws of a curvature given its noisy releases, and the variance of scores that goes with each."""

from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.spectral import eigen_draws

Array = np.ndarray
EVENING = 0.25
"""The power of the curvature in the metric; one half undoes it all, and is unstable."""
_SMALLEST, _RELATIVE_SPREAD = 0.02, 0.3
_SPREAD_ALONG, _GRID = 0.6, 200


class Curvature(NamedTuple):
    """Positive definite draws of a curvature, equally weighted. Padding is 0.

    - **values** - eigenvalues (n, ..., d).
    - **vectors** - eigenvectors (n, ..., d, d), in columns.
    - **ratio** - (..., d, d), or (n, ..., d, d): the variance of scores in units of the curvature."""

    values: Array
    vectors: Array
    ratio: Array

    @property
    def matrices(self) -> Array:
        """(n, ..., d, d)."""
        return self._powers(1.0)

    @property
    def mean(self) -> Array:
        return self.matrices.mean(axis=0)

    @property
    def scores(self) -> Array:
        """The variance of the sum of scores that goes with each draw, (n, ..., d, d)."""
        roots = self._powers(0.5)
        return roots @ self.ratio @ roots

    def _powers(self, exponent: float) -> Array:
        return (self.vectors * self.values[..., None, :] ** exponent) @ self.vectors.swapaxes(-1, -2)

    def averaged(self, redrawn: float, count: int) -> "Curvature":
        """With the variance of the mean of `count` gradients in place of that of each.

        All have the same rows, and draws of their own, which make the share `redrawn` of the variance of scores; where these
        vary by more than the model's, of the curvature, which is the model's variance."""
        scores, mean = (np.trace(x, axis1=-2, axis2=-1).sum() for x in (self.scores.mean(axis=0), self.mean))
        redrawn *= float(mean / max(scores, mean))
        return self._replace(ratio=self.ratio * (1.0 - redrawn * (1.0 - 1.0 / count)))

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
    noisy: Array,
    std: float,
    scores: Array,
    scores_std: float,
    real: Array,
    covariance: Array,
    count: int,
    most: float = 1.0,
    along: Array | None = None,
) -> Curvature:
    """Draws of diagonal blocks (k, b, b) of a curvature, given noisy releases.

    - **noisy**, **std** - curvature plus noise, (k, b, b), of this sd on the diagonal, and std / sqrt 2 off it.
    - **scores**, **scores_std** - variance of the scores with noise, and the sd of that noise.
    - **real** - (k, b), where there is no padding.
    - **covariance** - the prior's, (k, b, b).
    - **count** - number of draws.
    - **most** - see `_ratio`.
    - **along** - a direction of one block, a unit vector (b,), that is not like the others; see `_drawn_along`."""
    smallest = _SMALLEST * min(1.0 / np.linalg.eigvalsh(covariance).max(), std)
    values, vectors = eigen_draws(noisy, std, real, scores, smallest, count)
    if along is not None:
        values, vectors = _drawn_along(along, values, vectors, noisy, std)
    mean = ((vectors * values[:, :, None, :]) @ vectors.swapaxes(2, 3)).mean(axis=0)
    return Curvature(values, vectors, _ratio(scores, scores_std, mean, most, count))


def _drawn_along(along: Array, values: Array, vectors: Array, noisy: Array, std: float) -> tuple[Array, Array]:
    """The draws, (n, 1, b) and (n, 1, b, b), whose curvature along the unit vector `along` (b,) is drawn anew: from its release,
    and a lognormal prior around the mean over all directions, which is what coordinates are made for (`Frame.evened_along`).

    Along the way from the prior mean a regression has another curvature than across it, as fitted values grow and responses
    become nearly certain (or counts large). A prior that knows no directions would make it like the others."""
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
    values, vectors = np.linalg.eigh(stretch @ matrices @ stretch)
    return np.maximum(values, values[:, -1:] * 1e-12)[:, None], vectors[:, None]


def _ratio(noisy: Array, std: float, curvature: Array, most: float = 1.0, count: int = 0) -> Array:
    """The variance of scores J in units of the curvature A: C in J = A^(1/2) C A^(1/2), given `noisy` = J + noise.

    J is much like a multiple of A, of at most `most`: 1, or the rows of a unit, which may be correlated. So C starts from a
    multiple of one, with entries of a relative spread of 0.3, and moves to what was released as far as its noise allows.
    Symmetric, positive semidefinite. Where `most` is infinite, for a sandwich, the spread is 1, and `count` draws (count, ...)
    hold what the noise of J leaves open."""
    size, error = np.sum(curvature**2), std**2
    # 1, which is safe, where noise drowns it
    multiple = (dispersion(noisy, std, curvature)[0] + error / size) / (1.0 + error / size)
    multiple = float(np.clip(multiple + np.sqrt(error / (size + error)), 0.05, most))
    values, vectors = np.linalg.eigh(curvature)
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


def from_vector(vector: Array, dimension: int) -> Array:
    """The symmetric matrices (..., d, d) whose isometric coordinates (upper triangles, off-diagonal entries times sqrt 2) the
    vectors (..., n) are.

    >>> from_vector(np.array([1.0, np.sqrt(2.0), 3.0]), 2).tolist()
    [[1.0, 1.0], [1.0, 3.0]]
    """
    matrix = np.zeros((*vector.shape[:-1], dimension, dimension))
    upper = np.triu_indices(dimension)
    matrix[..., upper[0], upper[1]] = vector / np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
    return matrix + np.triu(matrix, 1).swapaxes(-1, -2)


def positive_part(matrix: Array) -> Array:
    """The nearest positive semidefinite matrix; of a batch (..., d, d), too."""
    values, vectors = np.linalg.eigh((matrix + matrix.swapaxes(-1, -2)) / 2)
    return (vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2)


def times(matrix: Array, vector: Array) -> Array:
    """Matrices (..., d, d) times vectors (..., d)."""
    return (matrix @ vector[..., None])[..., 0]
