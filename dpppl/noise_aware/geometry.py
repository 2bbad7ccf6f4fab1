"""Coordinates u of the likelihood, as rows and walks compute with them: one matrix for all, or blocks of wide models.

A curvature is a symmetric matrix in u; rows release its isometric numbers, whose length is its Frobenius norm.
"""

from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from dpppl.noise_aware.plan import STEPS


class Geometry(Protocol):
    """`at`, `walk`: example values of what a state holds of it, by name. Scores (..., d) are `pulled` into u; a
    `curvature` comes from scores psi, s (m, d) and weights (m,), or is the `square` of one score, with its `length`; its
    `numbers` are released, as are those of the `outer` product of a score with itself."""

    at: dict[str, Any]
    walk: dict[str, Any]

    def pulled(self, at: Any, scores: Any) -> Any: ...
    def curvature(self, at: Any, weights: Any, psi: Any, scores: Any) -> Any: ...
    def square(self, at: Any, score: Any) -> Any: ...
    def length(self, at: Any, score: Any, square: Any) -> Any: ...
    def numbers(self, curvature: Any) -> Any: ...
    def outer(self, at: Any, score: Any) -> Any: ...
    def coordinates(self, state: Any, moved: Any) -> Any: ...
    def gradient(self, state: Any, noisy: Any) -> Any: ...
    def times(self, matrix: Any, vector: Any) -> Any: ...
    def latents(self, state: Any, u: Any) -> Any: ...


class Dense:
    """latents = mean + "metric" (d, d) @ u, and full curvatures."""

    def __init__(self, dimension: int) -> None:
        vector, matrix = np.zeros(dimension), np.eye(dimension)
        self.at = {"metric": matrix}
        self.walk = {
            "inverse": matrix, "gains": np.zeros((STEPS, *matrix.shape)), "offsets": np.zeros((STEPS, dimension)),
            "curvature": matrix, "scales": vector,
        }  # fmt: skip

    def pulled(self, at: Any, scores: Any) -> Any:
        return scores @ at["metric"]

    def curvature(self, at: Any, weights: Any, psi: Any, scores: Any) -> Any:
        product = jnp.sum(weights[:, None, None] * psi[:, :, None] * scores[:, None, :], axis=0)
        return (product + product.T) / 2

    def square(self, at: Any, score: Any) -> Any:
        return jnp.outer(score, score)

    def length(self, at: Any, score: Any, square: Any) -> Any:
        return square

    def numbers(self, curvature: Any) -> Any:
        return isometric(curvature)

    def outer(self, at: Any, score: Any) -> Any:
        return isometric(jnp.outer(score, score))

    def coordinates(self, state: Any, moved: Any) -> Any:
        return state["inverse"] @ moved

    def gradient(self, state: Any, noisy: Any) -> Any:
        return noisy

    def times(self, matrix: Any, vector: Any) -> Any:
        return matrix @ vector

    def latents(self, state: Any, u: Any) -> Any:
        return state["metric"] @ u


class Blocks:
    """latents = mean + "scales" (d,) (1 - Y Y') "roots" @ u: u in blocks (k, b) that "index" (k, b) places, from which
    "place" (d,) reads them; Y = "turn" (d, r) is a reflection. See `blocks.Frame`.

    A curvature is its diagonal blocks, and its products with the columns of "sketch" (d, m)."""

    def __init__(self, dimension: int, count: int, width: int, rank: int, columns: int) -> None:
        matrices, vectors = np.tile(np.eye(width), (count, 1, 1)), np.zeros((count, width))
        self.at = {
            "scales": np.ones(dimension), "turn": np.zeros((dimension, rank)), "roots": matrices, "index": vectors,
            "place": np.zeros(dimension), "sketch": np.zeros((dimension, columns)),
        }  # fmt: skip
        self.walk = {
            "inverse": matrices, "gains": np.zeros((STEPS, *matrices.shape)), "offsets": np.zeros((STEPS, count, width)),
            "curvature": matrices,
        }  # fmt: skip

    def _gathered(self, at: Any, vectors: Any) -> Any:
        padded = jnp.concatenate([vectors, jnp.zeros((*vectors.shape[:-1], 1), vectors.dtype)], axis=-1)
        return jnp.take(padded, at["index"].astype(jnp.int32), axis=-1, mode="clip")

    def _scattered(self, at: Any, blocks: Any) -> Any:
        flat = blocks.reshape(*blocks.shape[:-2], -1)
        return jnp.take(flat, at["place"].astype(jnp.int32), axis=-1, mode="clip")

    def _turned(self, at: Any, vectors: Any) -> Any:
        return vectors - (vectors @ at["turn"]) @ at["turn"].T

    def pulled(self, at: Any, scores: Any) -> Any:
        inside = self._gathered(at, self._turned(at, scores * at["scales"]))
        return self._scattered(at, jnp.einsum("...kb,kbc->...kc", inside, at["roots"]))

    def curvature(self, at: Any, weights: Any, psi: Any, scores: Any) -> Any:
        a, b = self._gathered(at, psi), self._gathered(at, scores)
        product = jnp.einsum("m,mki,mkj->kij", weights, a, b)
        sketch = (weights[:, None] * psi).T @ (scores @ at["sketch"])
        sketch += (weights[:, None] * scores).T @ (psi @ at["sketch"])
        product = (product + jnp.swapaxes(product, 1, 2)) / 2
        return jnp.concatenate([isometric(product).ravel(), sketch.ravel() / 2])

    def square(self, at: Any, score: Any) -> Any:
        return jnp.concatenate([self.outer(at, score), jnp.outer(score, score @ at["sketch"]).ravel()])

    def length(self, at: Any, score: Any, square: Any) -> Any:
        inside = jnp.sum(self._gathered(at, score) ** 2, axis=1)
        return jnp.sqrt(jnp.sum(inside**2) + square * jnp.sum((score @ at["sketch"]) ** 2))

    def numbers(self, curvature: Any) -> Any:
        return curvature

    def outer(self, at: Any, score: Any) -> Any:
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
        return state["scales"] * self._turned(state, self._scattered(state, self.times(state["roots"], u)))


def isometric(matrix: Any) -> Any:
    """Symmetric matrices (..., d, d) as vectors of the same length: upper triangles, off-diagonal entries times sqrt 2."""
    upper = np.triu_indices(matrix.shape[-1])
    return matrix[..., upper[0], upper[1]] * np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0)).astype(np.float32)
