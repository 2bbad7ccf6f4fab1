"""Coordinates u: one block, or for wide models several, after a reflection that moves directions that couple all blocks into one.

A covariate that all others follow gives the curvature a few large eigenvalues whose vectors run through all latents. A reflection
maps as many axes, the pivots, to these vectors; the pivots form the first block, and what is left is nearly block-diagonal.
Matrices are (k, b, b), vectors of u in blocks (k, b); padding is 0 (1 on the diagonal of roots and of prior covariances).

Rows release the isometric numbers of a curvature, a symmetric matrix in u; their length is its Frobenius norm.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import qr

from dpppl.row_statistics.matrices import Array, eigh, isometric, symmetric_root, times
from dpppl.types import Tree

X = TypeVar("X", np.ndarray, jax.Array)
RANK, COLUMNS = 24, 6
_OF_BLOCKS = 0.25  # the power of the curvature in the metric of several blocks, whose curvature is a part
_ALIKE = np.log(60.0)  # curvatures of columns in one scale are apart by this factor at most
_LARGEST_RATIO = 1e6  # the largest ratio of scales, beyond which covariances are rounding


class Layout(NamedTuple):
    """The coordinates of each block.

    - **numbers**, **place** - (k, b): numbers of coordinates; d, their number, is padding. (d,): where each stands in the
      flattened blocks."""

    numbers: Array
    place: Array

    @classmethod
    def of(cls, coordinate_blocks: Sequence[Array], pivots: Array) -> "Layout":
        """A first block of the pivots; then the `coordinate_blocks`, (n,) each, without these. One block needs no pivots."""
        if len(coordinate_blocks) == 1:
            return cls(coordinate_blocks[0][None], np.argsort(coordinate_blocks[0]))
        width = max(RANK, max(map(len, coordinate_blocks)))
        dimension = sum(map(len, coordinate_blocks))
        index = np.full((1 + len(coordinate_blocks), width), dimension)
        index[0, : len(pivots)] = pivots
        for row, block in zip(index[1:], coordinate_blocks):
            row[: len(block)] = np.where(np.isin(block, pivots), dimension, block)
        places = np.zeros(dimension + 1, int)
        places[index.ravel()] = np.arange(index.size)
        return cls(index, places[:-1])

    @property
    def dimension(self) -> int:
        return len(self.place)

    @property
    def real(self) -> Array:
        return np.asarray(self.numbers < self.dimension)

    def gathered(self, vectors: X) -> X:
        """(..., d) as blocks (..., k, b)."""
        xp = _namespace(vectors)
        padded = xp.concatenate([vectors, xp.zeros((*vectors.shape[:-1], 1), vectors.dtype)], axis=-1)
        return xp.take(padded, self.numbers, axis=-1, mode="clip")

    def scattered(self, blocks: X) -> X:
        flat = blocks.reshape(*blocks.shape[:-2], self.numbers.size)
        return _namespace(blocks).take(flat, self.place, axis=-1, mode="clip")

    def padded(self, matrices: Array) -> Array:
        """Matrices with 1 on the diagonal of padding."""
        return matrices + np.eye(self.numbers.shape[1]) * ~self.real[:, :, None]

    def entries(self, matrices: Array, rows: Array, columns: Array) -> Array:
        """Entries of the block-diagonal matrix at coordinates `rows`, `columns`, which may be padding."""
        width, places = self.numbers.shape[1], np.append(self.place, -1)
        i, j = places[rows], places[columns]
        within = (i // width == j // width) & (i >= 0) & (j >= 0)
        return np.where(within, matrices[i // width, i % width, j % width], 0.0)


def coordinate_blocks(sizes: Sequence[int], most: int) -> list[Array]:
    """Numbers 0, 1, ... of the coordinates of sites of these sizes, in pieces of at most `most`: large sites in equal pieces,
    small ones together."""
    pieces: list[list[int]] = []
    start = 0
    for size in sizes:
        for part in np.array_split(np.arange(start, start + size), -(-size // most)):
            if not pieces or len(pieces[-1]) + size > most:
                pieces.append([])
            pieces[-1] += list(part)
        start += size
    return [np.array(piece) for piece in pieces]


class Basis(NamedTuple):
    """latents = mean + scales * reflected(roots @ u): u lies in the blocks of `layout`, and reflected(v) = v - Y Y' v.

    The latents here are the coordinates z before they are whitened, as `At.point`.
    Its methods take and return arrays of NumPy, or of JAX in the program of a row.

    - **scales**, **turn** - (d,), and Y (d, RANK); (d, 0) where there is one block.
    - **layout** - the coordinates of each block.
    - **roots** - (k, b, b): from u to scaled and reflected latents; at first roots of the prior's correlation.
    - **sketch** - (d, COLUMNS): rows release a curvature's diagonal blocks, and its products with these; (d, 0): one block."""

    scales: Array
    turn: Array
    layout: Layout
    roots: Array
    sketch: Array

    @classmethod
    def of(cls, scales: Array, directions: Array, pieces: Sequence[Array]) -> "Basis":
        """The one whose first block is the span of `directions` (d, r), orthonormal; not whitened yet."""
        turn, pivots = np.zeros((len(scales), RANK if len(pieces) > 1 else 0)), np.zeros(0, int)
        if count := directions.shape[1]:  # 1 - Y Y' swaps the pivots' axes with a basis of the directions
            pivots = np.asarray(qr(directions.T, mode="economic", pivoting=True)[2][:count])
            left, values, right = np.linalg.svd(directions[pivots])
            difference = directions @ (right.T @ left.T)
            difference[pivots] += np.eye(count)
            turn[:, :count] = difference @ (left / np.sqrt(1.0 + values)) @ left.T
        layout = Layout.of(pieces, pivots)
        roots = np.tile(np.eye(layout.numbers.shape[1]), (len(layout.numbers), 1, 1))
        return cls(scales, turn, layout, roots, np.zeros((len(scales), COLUMNS if len(pieces) > 1 else 0)))

    def whitened(self, curvature: Array, covariance: Array, power: float = 0.5) -> "Basis":
        """With roots S (S' curvature S + 1)^-p times a number that makes the mean logarithm 0, SS' the prior's `covariance`, both
        of the scaled and reflected latents. For the `power` p = 1/2 the posterior is white; several blocks have p = 1/4.
        Eigenvalues that are farther from their geometric mean than columns of one scale explain are whitened in full."""
        is_one = len(covariance) == 1
        root, power, beyond = symmetric_root(covariance), *((power, 0.5) if is_one else (_OF_BLOCKS, _OF_BLOCKS))
        values, vectors = eigh(root @ curvature @ root)
        logs = np.log1p(np.maximum(values, 0.0))
        logs = np.minimum(logs, logs.min() + np.log(_LARGEST_RATIO) / power)
        off = logs - logs.sum() / self.layout.dimension  # padding: 0
        near = np.clip(off, -_ALIKE, _ALIKE)
        powers = np.exp(-power * near - beyond * (off - near))
        powers /= np.exp(np.sum(np.log(powers) * self.layout.real) / self.layout.dimension)
        roots = root @ (vectors * powers[:, None, :]) @ vectors.swapaxes(1, 2)
        return self._replace(roots=self.layout.padded(self.real(roots)))

    def real(self, matrices: Array) -> Array:
        """Matrices with 0 in padding."""
        return matrices * self.layout.real[:, :, None] * self.layout.real[:, None, :]

    def covariance_of_latents(self, covariance: Array) -> Array:
        """The covariance of scaled and reflected latents, in blocks, where u has this one."""
        return self.roots @ covariance @ self.roots.swapaxes(1, 2)

    def covariance_of_u(self, covariance: Array) -> Array:
        return self.inverse @ covariance @ self.inverse.swapaxes(1, 2)

    @property
    def inverse(self) -> Array:
        return np.linalg.inv(self.roots)

    def reflected(self, vectors: X) -> X:
        return vectors - (vectors @ self.turn) @ self.turn.T if self.turn.shape[1] else vectors

    def to_latents(self, u: X) -> X:
        """The displacement of latents from m0, (..., d), for values in blocks (..., k, b)."""
        return self.scales * self.reflected(self.layout.scattered(times(self.roots, u)))

    def to_u(self, moved: X) -> X:
        """The inverse of `to_latents`."""
        return times(self.inverse, self.layout.gathered(self.reflected(moved / self.scales)))

    def variances(self, covariance: Array) -> Array:
        """Variances of the latents (d,), where u has this covariance."""
        total = self.covariance_of_latents(self.real(covariance))
        gathered = self.layout.gathered(self.turn.T)  # (r, k, b)
        product = self.layout.scattered(times(total, gathered)).T
        inside = self.turn.T @ product
        diagonal = self.layout.scattered(np.diagonal(total, axis1=1, axis2=2))
        reflected = np.einsum("dr,rs,ds->d", self.turn, inside, self.turn)
        return self.scales**2 * (diagonal - 2.0 * np.sum(self.turn * product, axis=1) + reflected)

    def carried(self, matrices: Array, other: "Basis") -> Array:
        """The blocks, in `other`, of the symmetric matrix with these blocks here, both of scaled and reflected latents."""
        index, ours, theirs = other.layout.numbers, self.turn, other.turn
        before = np.concatenate([-ours, ours @ (ours.T @ theirs) - theirs], axis=1)  # the change is 1 + before after'
        after = other.layout.gathered(np.concatenate([ours, theirs], axis=1).T).transpose(1, 2, 0)
        product = self.layout.scattered(times(matrices, self.layout.gathered(before.T))).T
        cross = after @ other.layout.gathered(product.T).transpose(1, 2, 0).swapaxes(1, 2)
        own = self.layout.entries(matrices, index[:, :, None], index[:, None, :])
        found = own + cross + cross.swapaxes(1, 2) + after @ (before.T @ product) @ after.swapaxes(1, 2)
        return (found + found.swapaxes(1, 2)) / 2

    # Numbers of curvatures, which rows release

    def pulled(self, scores: jax.Array) -> jax.Array:
        """Scores (..., d) of latents as those of u."""
        return self.layout.scattered(self.blocks(scores))

    def blocks(self, scores: jax.Array) -> jax.Array:
        inside = self.layout.gathered(self.reflected(scores * self.scales))
        return jnp.einsum("...kb,kbc->...kc", inside, self.roots)

    def curvature(self, weights: jax.Array, psi: jax.Array, scores: jax.Array) -> jax.Array:
        """The numbers of the symmetric part of sum weights psi scores', for psi, scores (m, d)."""
        a, b = self.layout.gathered(psi), self.layout.gathered(scores)
        product = jnp.einsum("m,mki,mkj->kij", weights, a, b)
        sketch = (weights[:, None] * psi).T @ (scores @ self.sketch)
        sketch += (weights[:, None] * scores).T @ (psi @ self.sketch)
        product = (product + jnp.swapaxes(product, 1, 2)) / 2
        return jnp.concatenate([isometric(product).ravel(), sketch.ravel() / 2])

    def length_of_product(self, inner: jax.Array, jacobian: jax.Array, grams: jax.Array) -> jax.Array:
        """The length of the numbers of J' M J, of which none is formed: the symmetric part of M (n, n) counts, J is a `jacobian`
        (n, k, b) in blocks, and `grams` (k, n, n) holds JJ' of each."""
        inner = (inner + inner.T) / 2
        products = inner @ grams
        columns = inner @ jnp.tensordot(jacobian, self.layout.gathered(self.sketch.T), ((1, 2), (1, 2)))
        off_block = jnp.sum(jnp.tensordot(columns, jacobian, (0, 0)) ** 2)
        return jnp.sqrt(jnp.maximum(jnp.sum(products * jnp.swapaxes(products, 1, 2)), 0.0) + off_block)

    def square(self, score: jax.Array) -> jax.Array:
        """The numbers of score score'."""
        return jnp.concatenate([self.outer(score), jnp.outer(score, score @ self.sketch).ravel()])

    def length(self, score: jax.Array, square: jax.Array) -> jax.Array:
        """The length of `self.square(score)`, whose score has the squared length `square`."""
        inside = jnp.sum(self.layout.gathered(score) ** 2, axis=1)
        return jnp.sqrt(jnp.sum(inside**2) + square * jnp.sum((score @ self.sketch) ** 2))

    def outer(self, score: jax.Array) -> jax.Array:
        """The isometric numbers of the outer product of a score, of its blocks alone."""
        inside = self.layout.gathered(score)
        return isometric(inside[:, :, None] * inside[:, None, :]).ravel()


def _namespace(array: object) -> Tree:
    return np if isinstance(array, np.ndarray) else jnp
