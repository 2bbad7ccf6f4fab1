"""Released curvatures: blocks, and the entries outside of the blocks of wide models, known from H Omega for a few random vectors.

To the posterior, what the blocks do not explain of H Omega is noise, with the variance that H's off-block entries give the
gradient. Directions of H Omega that exceed this noise run through all latents: the reflection of the next basis maps them
to its first block.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpppl.row_statistics.basis import COLUMNS, RANK, Basis
from dpppl.row_statistics.matrices import Array, eigh, times

_STANDS_OUT = 1.1
_MULTIPLES = np.exp(np.linspace(np.log(0.25), np.log(1e6), 60))
_EM_STEPS = 60


class Sketch(NamedTuple):
    """Random directions that tell of a curvature's entries off the blocks.

    - **columns**, **variances**, **size** - (d, COLUMNS): normal draws with variances (d,), divided by a size. No columns where
      there is one block."""

    columns: Array
    variances: Array
    size: float

    @classmethod
    def drawn(cls, basis: Basis, covariance: Array, rng: np.random.Generator) -> "Sketch":
        """From what is believed of u, of a size for which a row's products are about as long as its blocks."""
        variances = basis.layout.scattered(np.diagonal(covariance, axis1=1, axis2=2))
        if len(covariance) == 1:
            return cls(np.zeros((len(variances), 0)), variances, 1.0)
        drawn = rng.standard_normal((COLUMNS, *basis.layout.numbers.shape))
        values, vectors = eigh(covariance)
        columns = basis.layout.scattered(times(vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :], drawn)).T
        size = float(np.sqrt(np.mean(variances) * COLUMNS * (len(covariance) - 1)))
        return cls(columns / size, variances, size)

    def unexplained(self, products: Array, basis: Basis, curvature: Array) -> Array:
        """Products with Omega (d, COLUMNS) less those of the blocks."""
        columns = basis.layout.gathered(self.columns.T)
        return products - basis.layout.scattered(times(curvature, columns)).T

    def directions(self, residual: Array, noise: float) -> tuple[Array, Array]:
        """Unit vectors (d, n) in u that stand out of the noise of products, and the off-block curvature in each."""
        left, values, _ = np.linalg.svd(residual, full_matrices=False)
        edge = _STANDS_OUT * np.sqrt(noise) * (np.sqrt(len(residual)) + np.sqrt(COLUMNS))
        left = left[:, values > edge]
        along = left.T @ self.columns
        return left, np.sum((left.T @ residual) * along, axis=1) / np.sum(along**2, axis=1)

    def off_block(
        self, products: Array, basis: Basis, curvature: Array, unsure: Array, noise: float, num_rows: int
    ) -> tuple[Array, float, float]:
        """The variances (d,) that off-block entries add to the gradient, the trace of curvature times spread for which
        they do, and the share of directions in which the curvature may be 0. `unsure` (d,): the variance of the products that the
        blocks explain; `noise`: that of the noise of products."""
        inside = basis.layout.scattered(np.diagonal(curvature, axis1=1, axis2=2))
        trace = float(np.sum(inside * self.variances))
        if not self.columns.shape[1]:
            return np.zeros_like(inside), trace, 0.0
        residual, variances = self.unexplained(products, basis, curvature), self.variances / self.size**2
        # Independent covariates leave rows' own entries, squared and summed.
        least = inside * np.sum(inside * variances) / num_rows
        # Empirical-Bayes variances of the rows of products, noise removed: multiples of `least`, fitted to all by EM.
        variance = least[:, None] * _MULTIPLES + (noise + unsure)[:, None]
        logs = -0.5 * (COLUMNS * np.log(variance) + np.sum(residual**2, axis=1)[:, None] / variance)
        likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))
        shares = np.full(len(_MULTIPLES), 1.0 / len(_MULTIPLES))
        for _ in range(_EM_STEPS):
            responsibility = shares * likelihood
            responsibility /= responsibility.sum(axis=1, keepdims=True)
            shares = responsibility.sum(axis=0) + 1.0
            shares /= shares.sum()
        found = least * (responsibility @ _MULTIPLES)
        left, strength = self.directions(residual, noise)
        # More than directions that are not known at all could leave; of COLUMNS products some must be left to tell.
        left = left[:, strength > np.mean(inside)][:, : COLUMNS // 2]
        kept = (residual - left @ (left.T @ residual)) * np.sqrt(COLUMNS / (COLUMNS - left.shape[1]))
        # As if all squares of products that the blocks do not explain came from directions without curvature.
        squares = np.minimum(inside, np.median(inside)) ** 2
        weights = squares / inside / np.sum(squares) / np.mean(inside * variances)
        excess = np.sum(weights * (np.mean(kept**2, axis=1) - noise)) - len(inside) / num_rows
        error = noise * np.sqrt(2.0 / COLUMNS * np.sum(weights**2))
        unknown = float(np.clip(excess, 0.0, 1.0)) * excess**2 / (excess**2 + error**2)
        return found * self.size**2, trace, unknown


def next_frame(
    basis: Basis, curvature: Array, left: Array, strength: Array, pieces: Sequence[Array]
) -> tuple[Basis, Array]:
    """The basis of the next stage, not whitened, and the curvature of its scaled and reflected latents. The first block is made
    of the directions `left` (d, n) in u that stand out off the blocks, by `strength` (n,), and of those eigenvectors of the
    present first block whose eigenvalues are farthest from the median. A single block stays."""
    layout, inverse = basis.layout, basis.inverse
    curvature = inverse.swapaxes(1, 2) @ curvature @ inverse
    if len(pieces) == 1:
        return basis, curvature
    new = basis.reflected(layout.scattered(times(inverse.swapaxes(1, 2), layout.gathered(left.T)))).T  # of latents
    count = int(layout.real[0].sum())
    order, vectors = eigh(curvature[0, :count, :count])
    axes = np.zeros((count, layout.dimension))
    axes[np.arange(count), layout.numbers[0, :count]] = 1.0
    typical = np.median(np.diagonal(curvature, axis1=1, axis2=2)[layout.real])
    old = basis.reflected(vectors[:, np.argsort(-np.abs(order - typical))].T @ axes).T
    found = np.concatenate([new / np.linalg.norm(new, axis=0), old], axis=1)[:, :RANK]
    reflected = Basis.of(basis.scales, np.linalg.qr(found)[0], pieces)
    added = reflected.layout.gathered(reflected.reflected(new.T))
    total = basis.carried(curvature, reflected) + np.einsum("n,nki,nkj->kij", np.maximum(strength, 0.0), added, added)
    return reflected, total
