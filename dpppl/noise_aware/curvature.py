"""What noisy releases of a curvature say of it: a mean and a variance for each entry, and what its error adds elsewhere."""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

Array = np.ndarray
_CORRELATIONS = np.array([0.003, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.6])
_CLEAR = 10.0  # standard deviations from which a diagonal entry is taken as released
EVENING = 0.25
"""The power of the curvature in the metric; one half undoes it all, and is unstable."""
_EM_STEPS, _NUM_VALUES, _SPECTRAL_STEPS, _STANDS_OUT = 60, 200, 3, 1.05


class Curvature(NamedTuple):
    """Posterior means (d, d) and variances (d, d) of a curvature's entries, symmetric; and values (d, k) of each of its
    diagonal entries, equally likely. Of blocks (k, b, b) means and variances only."""

    mean: Array
    variance: Array
    diagonals: Array = np.empty((0, 0))

    def draws(self, rng: np.random.Generator, count: int) -> Array:
        """Symmetric matrices (count, d, d): diagonals from their values, correlations normal, which keep every two coordinates
        positive definite."""
        dimension, num_values = self.diagonals.shape
        diagonals = np.stack([row[rng.integers(num_values, size=count)] for row in self.diagonals], axis=1)
        upper = np.triu_indices(dimension, 1)
        scales = np.sqrt(np.diag(self.mean)[upper[0]] * np.diag(self.mean)[upper[1]])
        noise = np.sqrt(np.maximum(self.variance[upper], 0.0)) * rng.standard_normal((count, len(upper[0])))
        correlations = np.clip((self.mean[upper] + noise) / scales, -0.95, 0.95)
        drawn = np.zeros((count, dimension, dimension))
        drawn[:, upper[0], upper[1]] = correlations * np.sqrt(diagonals[:, upper[0]] * diagonals[:, upper[1]])
        return drawn + drawn.transpose(0, 2, 1) + diagonals[:, :, None] * np.eye(dimension)

    def changed(self, log_std: float) -> "Curvature":
        """Where each coordinate's scale may have changed: diagonals times lognormal factors of this sd of the logarithm."""
        rng, noise = np.random.default_rng(0), ndtri(_middles(self.diagonals.shape[1]))
        factors = np.exp(log_std * rng.permuted(np.broadcast_to(noise, self.diagonals.shape), axis=1))
        log_variance = log_std**2 * (0.5 + 0.5 * np.eye(len(self.mean)))
        variance = self.variance + (self.variance + self.mean**2) * np.expm1(log_variance)
        return Curvature(self.mean, variance, self.diagonals * factors)


def _middles(count: int) -> Array:
    return (np.arange(count) + 0.5) / count


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


def denoised(noisy: Array, std: float, smallest: Array) -> Curvature:
    """Entries of a curvature, given `noisy` = curvature + noise of sd `std` on the diagonal, std / sqrt 2 off it.

    A diagonal entry is above `smallest` (d,), with a law of its logarithm that is fitted to all of them, and uniform where
    these say nothing; an off-diagonal one is sqrt(D_i D_j) times a normal correlation whose scale is a mixture, with
    weights fitted to all of them."""
    means, variances, values = _diagonal(np.diag(noisy), std, smallest)
    if len(means) == 1:
        return Curvature(np.diag(means), np.diag(variances), values)
    upper = np.triu_indices(len(means), 1)
    matrix, spread = np.diag(means), np.diag(variances)
    matrix[upper], spread[upper] = _off_diagonal(noisy[upper], np.outer(means, means)[upper], std)
    return Curvature(matrix + np.triu(matrix, 1).T, spread + np.triu(spread, 1).T, values)


def denoised_blocks(noisy: Array, real: Array, std: float, smallest: Array) -> Curvature:
    """The same for diagonal blocks (k, b, b) of one curvature, their entries taken together. `real`, `smallest`: (k, b);
    rows that are not real are padding, and stay 0."""
    matrix, spread = np.zeros_like(noisy), np.zeros_like(noisy)
    k, i = np.nonzero(real)
    matrix[k, i, i], spread[k, i, i] = _diagonal(noisy[k, i, i], std, smallest[real])[:2]
    k, i, j = np.nonzero(real[:, :, None] & real[:, None, :] & np.triu(np.ones(noisy.shape[1:], bool), 1))
    matrix[k, i, j], spread[k, i, j] = _off_diagonal(noisy[k, i, j], matrix[k, i, i] * matrix[k, j, j], std)
    matrix[k, j, i], spread[k, j, i] = matrix[k, i, j], spread[k, i, j]
    for _ in range(_SPECTRAL_STEPS):
        matrix += _outlying(np.where(real[:, :, None] & real[:, None, :], noisy - matrix, 0.0), real, std)
    return Curvature(matrix, spread)


def _outlying(residual: Array, real: Array, std: float) -> Array:
    """What stands out of noise in blocks (k, b, b), off their diagonals: directions which many small entries make, such as
    those that a curvature does not know because columns add up to the same. They would be lost by entries.

    Eigenvalues beyond those of noise, with the size and the share of their vectors that they have without it."""
    values, vectors = np.linalg.eigh(residual)
    edge = std**2 / 2 * real.sum(axis=1, keepdims=True)  # squared: half the radius of the noise's spectrum
    root = np.sqrt(np.maximum(values**2 - 4.0 * edge, 0.0))
    size = np.sign(values) * (np.abs(values) + root) / 2
    kept = np.where(np.abs(values) > 2.0 * _STANDS_OUT * np.sqrt(edge), size - edge / np.where(size, size, 1.0), 0.0)
    return (vectors * kept[:, None, :]) @ vectors.swapaxes(1, 2) * (np.eye(real.shape[1]) == 0)


def block_draws(curvature: Curvature, real: Array, rng: np.random.Generator) -> Array:
    """One draw of diagonal blocks (k, b, b): lognormal diagonals, normal entries off them."""
    identity = np.eye(real.shape[1])
    means = np.where(real, np.diagonal(curvature.mean, axis1=1, axis2=2), 1.0)
    log_variance = np.log1p(np.diagonal(curvature.variance, axis1=1, axis2=2) / means**2)
    diagonals = means * np.exp(np.sqrt(log_variance) * rng.standard_normal(real.shape) - log_variance / 2)
    noise = np.triu(rng.standard_normal(curvature.mean.shape), 1)
    entries = curvature.mean + np.sqrt(np.maximum(curvature.variance, 0.0)) * (noise + noise.swapaxes(1, 2))
    largest = 0.95 * np.sqrt(diagonals[:, :, None] * diagonals[:, None, :])
    return np.where(identity > 0, (diagonals * real)[:, None, :], np.clip(entries, -largest, largest))


def _diagonal(diagonal: Array, std: float, smallest: Array) -> tuple[Array, Array, Array]:
    """Means and variances of diagonal entries (d,), and equally likely values (d, k)."""
    grid = np.exp(np.linspace(np.log(np.min(smallest)), np.log(np.max(diagonal.clip(smallest)) + 8.0 * std), 400))
    log_likelihood = np.where(grid >= smallest[:, None], -0.5 * ((diagonal[:, None] - grid) / std) ** 2, -np.inf)
    likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    weight = responsibilities(likelihood.T, len(diagonal) / len(grid)).T  # half fitted, half uniform
    means = weight @ grid
    variances = weight @ grid**2 - means**2
    clear, middles = diagonal > _CLEAR * std, _middles(_NUM_VALUES)
    below = np.cumsum(weight, axis=1)
    values = np.array([np.interp(middles, row / row[-1], grid) for row in below])
    values = np.where(clear[:, None], diagonal[:, None] + std * ndtri(middles), values)
    return np.where(clear, diagonal, means), np.where(clear, std**2, variances), values


def _off_diagonal(entries: Array, scales: Array, std: float) -> tuple[Array, Array]:
    """Means and variances of entries (n,) off the diagonal, given the products `scales` (n,) of their diagonal ones."""
    prior = _CORRELATIONS[:, None] ** 2 * scales
    marginal = prior + std**2 / 2
    log_likelihood = -0.5 * entries**2 / marginal - 0.5 * np.log(marginal)
    responsibility = responsibilities(np.exp(log_likelihood - log_likelihood.max(axis=0)), 1.0)
    gain = prior / marginal
    conditional = gain * entries
    mean = (responsibility * conditional).sum(axis=0)
    second = (responsibility * (gain * std**2 / 2 + conditional**2)).sum(axis=0)
    return np.clip(mean, -np.sqrt(scales), np.sqrt(scales)), second - mean**2


def responsibilities(likelihood: Array, pseudo_count: float) -> Array:
    """Of the components (k, n) for n observations, with shares fitted to all of these by expectation maximisation, each
    component counting `pseudo_count` observations beforehand."""
    shares = np.full(len(likelihood), 1.0 / len(likelihood))
    for _ in range(_EM_STEPS):
        responsibility = shares[:, None] * likelihood
        responsibility /= responsibility.sum(axis=0)
        shares = responsibility.sum(axis=1) + pseudo_count
        shares /= shares.sum()
    return responsibility


def variance_of_scores(noisy: Array, std: float, curvature: Array) -> tuple[Array, Array]:
    """The variance J of the sum of scores, given `noisy` = J + noise (as in `denoised`), and how it follows the curvature A.

    J is at most A and is much like a multiple of it: entries start from rho A, with a relative spread of 0.3, and move
    to what was released as far as its noise allows. Returns J (d, d) and its derivatives by entries of A, (d, d);
    of diagonal blocks (k, d, d), the same."""
    size, error, identity = np.sum(curvature**2), std**2, np.eye(curvature.shape[-1])
    # 1, which is safe, where noise drowns it
    ratio = (np.sum(noisy * curvature) / size + error / size) / (1.0 + error / size)
    ratio = float(np.clip(ratio + np.sqrt(error / (size + error)), 0.05, 1.0))
    diagonal = np.maximum(np.diagonal(curvature, axis1=-2, axis2=-1), 1e-30)
    prior = (0.3 * ratio) ** 2 * (diagonal[..., :, None] * diagonal[..., None, :])
    gain = prior / (prior + error * np.where(identity > 0, 1.0, 0.5))
    follows = ratio * (1.0 - gain)
    return positive_part(follows * curvature + gain * noisy), follows


def error_in_variables(variance: Array, spread: Array) -> Array:
    """The covariance of R delta, for independent entries R_ij = R_ji of these variances and E[delta delta'] = spread; of
    batches (..., d, d), too."""
    cross, identity = variance * spread, np.eye(variance.shape[-1])
    alone = times(variance, np.diagonal(spread, axis1=-2, axis2=-1))
    return positive_part(np.where(identity > 0, alone[..., None, :], cross))
