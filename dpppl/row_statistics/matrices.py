"""Symmetric matrices: eigenvalues, roots, isometric coordinates."""

from functools import cache

import jax
import numpy as np

from dpppl.types import Foreign, Tree

Array = np.ndarray


@cache
def _libraries() -> Foreign:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def eigh(matrices: Array) -> tuple[Array, Array]:
    """Return `np.linalg.eigh` of matrices (..., n, n), by one thread: for n = 26 those of OpenBLAS take sixty times as long."""
    with _libraries().limit(limits=1, user_api="blas"):
        values, vectors = np.linalg.eigh(matrices)
    return values, vectors


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


def symmetric_root(matrix: Array) -> Array:
    """The symmetric R with R R the positive part of a symmetric matrix; of a batch (..., d, d), too."""
    values, vectors = eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ vectors.swapaxes(-1, -2)


def positive_part(matrix: Array) -> Array:
    """The nearest positive semidefinite matrix; of a batch (..., d, d), too."""
    values, vectors = eigh((matrix + matrix.swapaxes(-1, -2)) / 2)
    return (vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2)


def times(matrix: Tree, vector: Tree) -> Tree:
    """Matrices (..., d, d) times vectors (..., d)."""
    return (matrix @ vector[..., None])[..., 0]


def root_of(covariance: Array) -> Array:
    """R with R R' = covariance."""
    values, vectors = eigh((covariance + covariance.swapaxes(-1, -2)) / 2)
    return vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]


def posterior_covariance(information: Array, root: Array) -> Array:
    """(information + (root root')^-1)^-1, of positive semidefinite information however large."""
    values, vectors = eigh(root.swapaxes(-1, -2) @ information @ root)
    half = (root @ vectors) / np.sqrt(1.0 + np.maximum(values, 0.0))[..., None, :]
    return half @ half.swapaxes(-1, -2)


def isometric(matrix: jax.Array) -> jax.Array:
    """Symmetric matrices (..., d, d) as vectors of the same length: upper triangles, off-diagonal entries times sqrt 2."""
    upper = np.triu_indices(matrix.shape[-1])
    return matrix[..., upper[0], upper[1]] * np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0)).astype(np.float32)
