"""Coordinates u of the likelihood inside the program of a row: blocks, of which most models have one.

A curvature is a symmetric matrix in u; rows release its isometric numbers, whose length is its Frobenius norm.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from dpppl.noise_aware.fit import NUM_AXES
from dpppl.noise_aware.plan import STEPS


class Geometry:
    """latents = mean + scales * (1 - Y Y') roots @ u, as rows and walks compute with it: see `blocks.Frame`.

    - **dimension** - d, the number of coordinates.
    - **count**, **width** - k and b: u has k blocks of b.
    - **rank** - columns of the reflection Y.
    - **columns** - columns m of the sketch.

    A curvature is its diagonal blocks, and its products with the sketch. `at`, `walk` are example values of what a state holds,
    by name: "scales" (d,), "turn" Y (d, rank), "roots" (k, b, b), "index" (k, b), which coordinate stands at each place of u,
    "place" (d,), where each coordinate stands, "sketch" (d, m). `num_directions`: in how many directions rows are compared
    (`fit.Directions`)."""

    def __init__(self, dimension: int, count: int, width: int, rank: int, columns: int) -> None:
        self.num_directions = 1 + min(dimension, NUM_AXES)
        matrices, vectors = np.tile(np.eye(width), (count, 1, 1)), np.zeros((count, width))
        self.at = {
            "scales": np.ones(dimension), "turn": np.zeros((dimension, rank)), "roots": matrices, "index": vectors,
            "place": np.zeros(dimension), "sketch": np.zeros((dimension, columns)),
        }  # fmt: skip
        self.walk = {
            "inverse": matrices, "gains": np.zeros((STEPS, *matrices.shape)), "offsets": np.zeros((STEPS, count, width)),
            "curvature": matrices, "reach": 1.0,
        }  # fmt: skip

    def _gathered(self, at: Any, vectors: Any) -> Any:
        padded = jnp.concatenate([vectors, jnp.zeros((*vectors.shape[:-1], 1), vectors.dtype)], axis=-1)
        return jnp.take(padded, at["index"].astype(jnp.int32), axis=-1, mode="clip")

    def scattered(self, at: Any, blocks: Any) -> Any:
        """Blocks (..., k, b) as vectors (..., d)."""
        flat = blocks.reshape(*blocks.shape[:-2], -1)
        return jnp.take(flat, at["place"].astype(jnp.int32), axis=-1, mode="clip")

    def _turned(self, at: Any, vectors: Any) -> Any:
        return vectors - (vectors @ at["turn"]) @ at["turn"].T if at["turn"].shape[1] else vectors

    def pulled(self, at: Any, scores: Any) -> Any:
        """Scores (..., d) of latents as those of u."""
        return self.scattered(at, self.blocks(at, scores))

    def blocks(self, at: Any, scores: Any) -> Any:
        """The same in the blocks of u, (..., k, b)."""
        inside = self._gathered(at, self._turned(at, scores * at["scales"]))
        return jnp.einsum("...kb,kbc->...kc", inside, at["roots"])

    def curvature(self, at: Any, weights: Any, psi: Any, scores: Any) -> Any:
        """The numbers of the symmetric part of sum weights psi scores', for psi, scores (m, d)."""
        a, b = self._gathered(at, psi), self._gathered(at, scores)
        product = jnp.einsum("m,mki,mkj->kij", weights, a, b)
        sketch = (weights[:, None] * psi).T @ (scores @ at["sketch"])
        sketch += (weights[:, None] * scores).T @ (psi @ at["sketch"])
        product = (product + jnp.swapaxes(product, 1, 2)) / 2
        return jnp.concatenate([isometric(product).ravel(), sketch.ravel() / 2])

    def length_of_product(self, at: Any, inner: Any, jacobian: Any, grams: Any) -> Any:
        """The length of the numbers of J' M J, of which none is formed: the symmetric part of M (n, n) counts, J is a
        `jacobian` (n, k, b) in blocks, and `grams` (k, n, n) holds JJ' of each."""
        inner = (inner + inner.T) / 2
        products = inner @ grams
        columns = inner @ jnp.tensordot(jacobian, self._gathered(at, at["sketch"].T), ((1, 2), (1, 2)))
        beside = jnp.sum(jnp.tensordot(columns, jacobian, (0, 0)) ** 2)
        return jnp.sqrt(jnp.maximum(jnp.sum(products * jnp.swapaxes(products, 1, 2)), 0.0) + beside)

    def square(self, at: Any, score: Any) -> Any:
        """The numbers of score score'."""
        return jnp.concatenate([self.outer(at, score), jnp.outer(score, score @ at["sketch"]).ravel()])

    def length(self, at: Any, score: Any, square: Any) -> Any:
        """The bound for a score whose squared length is `square`."""
        inside = jnp.sum(self._gathered(at, score) ** 2, axis=1)
        return jnp.sqrt(jnp.sum(inside**2) + square * jnp.sum((score @ at["sketch"]) ** 2))

    def outer(self, at: Any, score: Any) -> Any:
        """The isometric numbers of the outer product of a score, of its blocks alone."""
        inside = self._gathered(at, score)
        return isometric(inside[:, :, None] * inside[:, None, :]).ravel()

    def coordinates(self, state: Any, moved: Any) -> Any:
        inside = self._gathered(state, self._turned(state, moved / state["scales"]))
        return self.times(state["inverse"], inside)

    def gradient(self, state: Any, noisy: Any) -> Any:
        return self._gathered(state, noisy)

    def times(self, matrix: Any, vector: Any) -> Any:
        return jnp.einsum("kij,kj->ki", matrix, vector)

    def latents(self, state: Any, u: Any) -> Any:
        return state["scales"] * self._turned(state, self.scattered(state, self.times(state["roots"], u)))


def isometric(matrix: Any) -> Any:
    """Symmetric matrices (..., d, d) as vectors of the same length: upper triangles, off-diagonal entries times sqrt 2."""
    upper = np.triu_indices(matrix.shape[-1])
    return matrix[..., upper[0], upper[1]] * np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0)).astype(np.float32)
