"""Released curvatures: blocks, and the entries outside of the blocks of wide models, known from H Omega for a few random vectors.

To the posterior, what the blocks do not explain of H Omega is noise, with the variance that H's off-block entries give the
gradient. Directions of H Omega that exceed this noise run through all latents: the reflection of the next frame maps them
to its first block.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.curvature import Array, Curvature, drawn, eigh, from_vector, times
from dpppl.noise_aware.frame import COLUMNS, RANK, Frame
from dpppl.noise_aware.plan import At
from dpppl.noise_aware.statistics import scores_share
from dpppl.types import Tree

_STANDS_OUT = 1.1
_MULTIPLES = np.exp(np.linspace(np.log(0.25), np.log(1e6), 60))
_EM_STEPS = 60
_ROUGH, _MOST_DECLINE, _DIFFERENT, _CLEAR = 0.1, 3.0, 3.0, 3.0


class Sketch(NamedTuple):
    """Random directions that tell of a curvature's entries off the blocks.

    - **columns**, **variances**, **size** - (d, COLUMNS): normal draws with variances (d,), divided by a size. No columns where
      there is one block."""

    columns: Array
    variances: Array
    size: float

    @classmethod
    def drawn(cls, frame: Frame, covariance: Array, rng: np.random.Generator) -> "Sketch":
        """From what is believed of u, of a size for which a row's products are about as long as its blocks."""
        variances = frame.layout.scattered(np.diagonal(covariance, axis1=1, axis2=2))
        if len(covariance) == 1:
            return cls(np.zeros((len(variances), 0)), variances, 1.0)
        drawn = rng.standard_normal((COLUMNS, *frame.layout.numbers.shape))
        values, vectors = eigh(covariance)
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
        they do, and the share of directions in which the curvature may be 0. `unsure` (d,): the variance of the products that the
        blocks explain; `noise`: that of the noise of products."""
        inside = frame.layout.scattered(np.diagonal(curvature, axis1=1, axis2=2))
        trace = float(np.sum(inside * self.variances))
        if not self.columns.shape[1]:
            return np.zeros_like(inside), trace, 0.0
        residual, variances = self.unexplained(products, frame, curvature), self.variances / self.size**2
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
    frame: Frame, curvature: Array, left: Array, strength: Array, pieces: Sequence[Array]
) -> tuple[Frame, Array]:
    """The frame of the next stage, not evened, and the curvature of its scaled and turned latents. The first block is made of the
    directions `left` (d, n) in u that stand out beside the blocks, by `strength` (n,), and of those of the present first block in
    which the `curvature` is least typical. One block alone stays."""
    layout, inverse = frame.layout, frame.inverse
    curvature = inverse.swapaxes(1, 2) @ curvature @ inverse
    if len(pieces) == 1:
        return frame, curvature
    new = frame.turned(layout.scattered(times(inverse.swapaxes(1, 2), layout.gathered(left.T)))).T  # of scaled latents
    count = int(layout.real[0].sum())
    order, vectors = eigh(curvature[0, :count, :count])
    axes = np.zeros((count, layout.dimension))
    axes[np.arange(count), layout.numbers[0, :count]] = 1.0
    typical = np.median(np.diagonal(curvature, axis1=1, axis2=2)[layout.real])
    old = frame.turned(vectors[:, np.argsort(-np.abs(order - typical))].T @ axes).T
    found = np.concatenate([new / np.linalg.norm(new, axis=0), old], axis=1)[:, :RANK]
    turned = Frame.of(frame.scales, np.linalg.qr(found)[0], pieces)
    added = turned.layout.gathered(turned.turned(new.T))
    total = frame.carried(curvature, turned) + np.einsum("n,nki,nkj->kij", np.maximum(strength, 0.0), added, added)
    return turned, total


class Release(NamedTuple):
    """A released curvature.

    - **curvature**, **curvature_std** - its blocks (k, b, b), and the sd of the noise in these and in `products`.
    - **products** - (d, COLUMNS): its products with the sketch.
    - **scores**, **scores_std** - the variance of scores, (k, b, b), and the sd of the noise in it.
    - **most_scores** - the variance of scores is at most this multiple of the curvature; infinite for a sandwich."""

    curvature: Array
    curvature_std: float
    products: Array
    scores: Array
    scores_std: float
    most_scores: float = 1.0

    @classmethod
    def of(cls, values: Tree, sigma: float, at: At, frame: Frame, most_scores: float = 1.0) -> "Release":
        """From the noisy sums of an access of noise multiplier `sigma`, with the bounds in `at`."""
        blocks, width = frame.roots.shape[:2]
        numbers = blocks * width * (width + 1) // 2
        matrices = lambda vector: frame.real(from_vector(vector.reshape(blocks, -1), width))  # noqa: E731
        share = scores_share(most_scores)
        unit, unit_j = at.bound / np.sqrt(1.0 - share), at.norm**2 / np.sqrt(share)
        products = values["A"][numbers:].reshape(len(frame.scales), -1) * unit
        curvature, scores = matrices(values["A"][:numbers]) * unit, matrices(values["J"]) * unit_j
        return cls(curvature, sigma * unit, products, scores, sigma * unit_j, most_scores)

    @property
    def largest_error(self) -> float:
        """About the largest eigenvalue of the noise in a block."""
        return self.curvature_std * float(np.sqrt(2.0 * self.curvature.shape[-1]))

    def hidden(self, covariance: Array) -> float:
        """How much better than the prior, of this `covariance` (k, b, b), the data may know a direction that noise hides: the
        bound on the curvature's error over the prior precision along an eigenvector. 0 where nothing is hidden, or no direction
        stands clear of the noise (then the budget, and not the scale of columns, is the cause), or there are blocks."""
        if len(covariance) > 1:
            return 0.0
        values, vectors = eigh(self.curvature[0])
        if values[-1] < _CLEAR * self.largest_error:
            return 0.0
        least = np.sum(vectors * (np.linalg.pinv(covariance[0], hermitian=True) @ vectors), axis=0)
        return float(np.max(np.where(values < self.largest_error, self.largest_error / least, 0.0)))

    def combined(self, other: "Release") -> "Release":
        """The precision-weighted mean of two; the `other` alone where these differ by more than their noise explains."""
        # An eigenvalue of the difference exceeds the largest of its noise in one of 1,000 runs or so.
        noise, width = np.hypot(self.curvature_std, other.curvature_std), self.curvature.shape[-1]
        largest = np.abs(np.linalg.eigvalsh(other.curvature - self.curvature)).max()
        if largest > noise * (np.sqrt(2.0 * width) + _DIFFERENT):
            return other

        def mean(a: Array, std_a: float, b: Array, std_b: float) -> tuple[Array, float]:
            w, v = std_a**-2, std_b**-2
            return (w * a + v * b) / (w + v), float((w + v) ** -0.5)

        curvature = mean(self.curvature, self.curvature_std, other.curvature, other.curvature_std)
        products, _ = mean(self.products, self.curvature_std, other.products, other.curvature_std)
        scores = mean(self.scores, self.scores_std, other.scores, other.scores_std)
        return Release(*curvature, products, *scores, self.most_scores)

    def posterior(self, frame: Frame, covariance: Array, count: int, moved: Array) -> Curvature:
        """Draws of the curvature, where u has this prior covariance and lies `moved` (k, b) from its prior mean."""
        released = self.curvature, self.curvature_std, self.scores, self.scores_std
        is_far = len(moved) == 1 and bool(np.any(moved))
        along = moved[0] / np.linalg.norm(moved) if is_far else None
        return drawn(*released, frame.layout.real, covariance, count, self.most_scores, along)


def decline(sizes: Array, std: float) -> float:
    """The power a by which the curvature declines with the distance r from the prior mean, as r^-a, from its size half way and
    here, `sizes` (2,) with noise of this sd, where that shows it; shrunk towards 0 as by one more number of sd 1."""
    if np.min(sizes) < 2.0 * std:
        return 0.0
    way, variance = np.log(2.0), np.sum((std / sizes) ** 2) + _ROUGH**2
    return float(np.clip(way * np.log(sizes[0] / sizes[1]) / (way**2 + variance), -_MOST_DECLINE, _MOST_DECLINE))
