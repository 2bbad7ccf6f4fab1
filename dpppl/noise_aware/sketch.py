"""The off-block entries of a wide model's curvature H, estimated from H Omega, the products with a few random vectors.

To the posterior, what the blocks do not explain of H Omega is noise, with the variance that H's off-block entries give the
gradient. Directions of H Omega that exceed this noise run through all latents: the reflection of the next frame maps them
to its first block.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.blocks import RANK, Frame
from dpppl.noise_aware.curvature import Array, times

COLUMNS = 6
_STANDS_OUT = 1.1
_MULTIPLES = np.exp(np.linspace(np.log(0.25), np.log(1e6), 60))
_EM_STEPS = 60


class Sketch(NamedTuple):
    """Random directions that tell of a curvature's entries off the blocks.

    - **columns** - (d, COLUMNS): normal draws with `variances`, divided by `size`. No columns where there is one block.
    - **variances** - (d,).
    - **size** - a positive number."""

    columns: Array
    variances: Array
    size: float

    @classmethod
    def drawn(cls, frame: Frame, covariance: Array, rng: np.random.Generator) -> "Sketch":
        """From what is believed of u, of a size for which a row's products are about as long as its blocks."""
        variances = frame.layout.scattered(np.diagonal(covariance, axis1=1, axis2=2))
        if len(covariance) == 1:
            return cls(np.zeros((len(variances), 0)), variances, 1.0)
        drawn = rng.standard_normal((COLUMNS, *frame.layout.index.shape))
        values, vectors = np.linalg.eigh(covariance)
        columns = frame.layout.scattered(times(vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :], drawn)).T
        size = float(np.sqrt(np.mean(variances) * COLUMNS * (len(covariance) - 1)))
        return cls(columns / size, variances, size)

    def unexplained(self, products: Array, frame: Frame, curvature: Array) -> Array:
        """Products with Omega (d, COLUMNS) less those of the blocks."""
        columns = frame.layout.gathered(self.columns.T)
        return products - frame.layout.scattered(times(curvature, columns)).T

    def directions(self, residual: Array, noise: float) -> tuple[Array, Array]:
        """Unit vectors (d, n) in u that stand out of the noise of products, and the curvature beside the blocks in each."""
        left, values, _ = np.linalg.svd(residual, full_matrices=False)
        edge = _STANDS_OUT * np.sqrt(noise) * (np.sqrt(len(residual)) + np.sqrt(COLUMNS))
        left = left[:, values > edge]
        along = left.T @ self.columns
        return left, np.sum((left.T @ residual) * along, axis=1) / np.sum(along**2, axis=1)

    def beside(
        self, products: Array, frame: Frame, curvature: Array, unsure: Array, noise: float, num_rows: int
    ) -> tuple[Array, float, float]:
        """The variances (d,) that entries beside the blocks add to the gradient, the trace of curvature times spread for which
        they do, and the share of directions in which the curvature may be 0. `unsure` (d,): the variance of the products
        that the blocks explain; `noise`: that of the noise of products."""
        inside = frame.layout.scattered(np.diagonal(curvature, axis1=1, axis2=2))
        trace = float(np.sum(inside * self.variances))
        if not self.columns.shape[1]:
            return np.zeros_like(inside), trace, 0.0
        residual, variances = self.unexplained(products, frame, curvature), self.variances / self.size**2
        # Independent covariates leave rows' own entries, squared and summed.
        least = inside * np.sum(inside * variances) / num_rows
        found = _variances(residual, noise + unsure, least)
        left, strength = self.directions(residual, noise)
        # More than directions that are not known at all could leave; of COLUMNS products some must be left to tell.
        left = left[:, strength > np.mean(inside)][:, : COLUMNS // 2]
        kept = (residual - left @ (left.T @ residual)) * np.sqrt(COLUMNS / (COLUMNS - left.shape[1]))
        return found * self.size**2, trace, _unknown(kept, noise, inside, variances, num_rows)


def _variances(residual: Array, noise: Array, least: Array) -> Array:
    """Empirical-Bayes variances (d,) of the rows of products (d, COLUMNS), noise (d,) removed: multiples of `least` (d,), the
    distribution of which is fitted to all rows by expectation maximisation."""
    variance = least[:, None] * _MULTIPLES + noise[:, None]
    squares = np.sum(residual**2, axis=1)[:, None]
    log_likelihood = -0.5 * (COLUMNS * np.log(variance) + squares / variance)
    likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    shares = np.full(len(_MULTIPLES), 1.0 / len(_MULTIPLES))
    for _ in range(_EM_STEPS):
        responsibility = shares * likelihood
        responsibility /= responsibility.sum(axis=1, keepdims=True)
        shares = responsibility.sum(axis=0) + 1.0
        shares /= shares.sum()
    return least * (responsibility @ _MULTIPLES)


def _unknown(residual: Array, noise: float, inside: Array, variances: Array, num_rows: int) -> float:
    """The share of directions in which the curvature may be 0, from the squares of products that the blocks do not
    explain: as if all of these came from there. `inside`, `variances` (d,): the curvature's diagonal, and that of Omega."""
    weights = np.minimum(inside, np.median(inside)) ** 2 / inside / np.sum(np.minimum(inside, np.median(inside)) ** 2)
    weights = weights / np.mean(inside * variances)
    found = np.sum(weights * (np.mean(residual**2, axis=1) - noise)) - len(inside) / num_rows
    error = noise * np.sqrt(2.0 / COLUMNS * np.sum(weights**2))
    return float(np.clip(found, 0.0, 1.0)) * found**2 / (found**2 + error**2)


def next_frame(
    frame: Frame, curvature: Array, left: Array, strength: Array, pieces: Sequence[Array]
) -> tuple[Frame, Array]:
    """The frame of the next stage, not evened, and the curvature of its scaled and turned latents. The first block is made of
    the directions `left` (d, n) in u that stand out beside the blocks, by `strength` (n,), and of those of the present
    first block in which the `curvature` is least typical. One block alone stays."""
    layout, inverse = frame.layout, frame.inverse
    curvature = inverse.swapaxes(1, 2) @ curvature @ inverse
    if len(pieces) == 1:
        return frame, curvature
    new = frame.turned(layout.scattered(times(inverse.swapaxes(1, 2), layout.gathered(left.T)))).T  # of scaled latents
    count = int(layout.real[0].sum())
    order, vectors = np.linalg.eigh(curvature[0, :count, :count])
    axes = np.zeros((count, layout.dimension))
    axes[np.arange(count), layout.index[0, :count]] = 1.0
    typical = np.median(np.diagonal(curvature, axis1=1, axis2=2)[layout.real])
    old = frame.turned(vectors[:, np.argsort(-np.abs(order - typical))].T @ axes).T
    found = np.concatenate([new / np.linalg.norm(new, axis=0), old], axis=1)[:, :RANK]
    turned = Frame.of(frame.scales, np.linalg.qr(found)[0], pieces)
    added = turned.layout.gathered(turned.turned(new.T))
    total = frame.carried(curvature, turned) + np.einsum("n,nki,nkj->kij", np.maximum(strength, 0.0), added, added)
    return turned, total
