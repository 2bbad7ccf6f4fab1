"""Posterior draws of a curvature given its noisy releases, and the variance of scores that goes with each."""

from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.spectral import eigen_draws

Array = np.ndarray
EVENING = 0.25
"""The power of the curvature in the metric; one half undoes it all, and is unstable."""
_SMALLEST, _RELATIVE_SPREAD = 0.02, 0.3


class Curvature(NamedTuple):
    """Positive definite draws of a curvature, equally weighted. Padding is 0.

    - **values** - eigenvalues (n, ..., d).
    - **vectors** - eigenvectors (n, ..., d, d), in columns.
    - **ratio** - (..., d, d): the variance of scores in units of the curvature."""

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

    def thinned(self, count: int) -> "Curvature":
        """About so many of the draws."""
        step = max(1, len(self.values) // count)
        return self._replace(values=self.values[::step], vectors=self.vectors[::step])

    def changed(self, log_std: float) -> "Curvature":
        """Where each direction's scale may have changed: eigenvalues times lognormal factors of this sd of the logarithm."""
        noise = np.random.default_rng(0).standard_normal(self.values.shape)
        return self._replace(values=self.values * np.exp(log_std * noise))

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
) -> Curvature:
    """Draws of diagonal blocks (k, b, b) of a curvature, given noisy releases.

    - **noisy**, **std** - curvature plus noise, (k, b, b), of this sd on the diagonal, and std / sqrt 2 off it.
    - **scores**, **scores_std** - variance of the scores with noise, and the sd of that noise.
    - **real** - (k, b), where there is no padding.
    - **covariance** - the prior's, (k, b, b).
    - **count** - number of draws.
    - **most** - see `_ratio`."""
    smallest = _SMALLEST / np.linalg.eigvalsh(covariance).max()
    values, vectors = eigen_draws(noisy, std, real, scores, smallest, count)
    mean = ((vectors * values[:, :, None, :]) @ vectors.swapaxes(2, 3)).mean(axis=0)
    return Curvature(values, vectors, _ratio(scores, scores_std, mean, most))


def _ratio(noisy: Array, std: float, curvature: Array, most: float = 1.0) -> Array:
    """The variance of scores J in units of the curvature A: C in J = A^(1/2) C A^(1/2), given `noisy` = J + noise.

    J is much like a multiple of A, of at most `most`: 1, or the rows of a unit, which may be correlated. So C starts from a
    multiple of one, with entries of a relative spread of 0.3, and moves to what was released as far as its noise allows.
    Symmetric, positive semidefinite."""
    size, error = np.sum(curvature**2), std**2
    # 1, which is safe, where noise drowns it
    multiple = (np.sum(noisy * curvature) / size + error / size) / (1.0 + error / size)
    multiple = float(np.clip(multiple + np.sqrt(error / (size + error)), 0.05, most))
    values, vectors = np.linalg.eigh(curvature)
    roots = np.sqrt(np.maximum(values, 1e-30))
    scales, identity = roots[..., :, None] * roots[..., None, :], np.eye(values.shape[-1])
    prior = (_RELATIVE_SPREAD * multiple * scales) ** 2
    gain = prior / (prior + error * np.where(identity > 0, 1.0, 0.5))
    released = vectors.swapaxes(-1, -2) @ noisy @ vectors / scales
    found = multiple * identity + gain * (released - multiple * identity)
    return positive_part(vectors @ found @ vectors.swapaxes(-1, -2))


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
