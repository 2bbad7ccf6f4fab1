"""Released curvatures, and what their sizes say of the change along the way."""

from typing import Any, NamedTuple

import numpy as np

from dpppl.noise_aware.blocks import Frame
from dpppl.noise_aware.curvature import Array, Curvature, drawn, from_vector
from dpppl.noise_aware.statistics import scores_share

_ROUGH, _MOST_DECLINE, _DIFFERENT, _STANDS_OUT = 0.1, 3.0, 3.0, 3.0


class Release(NamedTuple):
    """A released curvature.

    - **curvature** - its blocks (k, b, b).
    - **curvature_std** - sd of the noise in these and in `products`.
    - **products** - (d, COLUMNS): its products with the sketch.
    - **scores** - the variance of scores, (k, b, b).
    - **scores_std** - sd of the noise in it.
    - **most_scores** - the variance of scores is at most this multiple of the curvature; infinite for a sandwich."""

    curvature: Array
    curvature_std: float
    products: Array
    scores: Array
    scores_std: float
    most_scores: float = 1.0

    @classmethod
    def of(cls, values: Any, sigma: float, at: Any, frame: Frame, most_scores: float = 1.0) -> "Release":
        """From the noisy sums of an access of noise multiplier `sigma`, with the bounds in `at`."""
        blocks, width = frame.roots.shape[:2]
        numbers = blocks * width * (width + 1) // 2
        matrices = lambda vector: frame.real(from_vector(vector.reshape(blocks, -1), width))  # noqa: E731
        share = scores_share(most_scores)
        unit, unit_j = at["bound"] / np.sqrt(1.0 - share), at["norm"] ** 2 / np.sqrt(share)
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
        values, vectors = np.linalg.eigh(self.curvature[0])
        if values[-1] < _STANDS_OUT * self.largest_error:
            return 0.0
        least = np.sum(vectors * (np.linalg.pinv(covariance[0], hermitian=True) @ vectors), axis=0)
        return float(np.max(np.where(values < self.largest_error, self.largest_error / least, 0.0)))

    def combined(self, other: "Release") -> "Release":
        """The precision-weighted mean of two; the `other` alone where these differ by more than their noise explains."""
        if self._differs(other):
            return other
        curvature, curvature_std = _weighted_mean(
            self.curvature, self.curvature_std, other.curvature, other.curvature_std
        )
        products, _ = _weighted_mean(self.products, self.curvature_std, other.products, other.curvature_std)
        scores, scores_std = _weighted_mean(self.scores, self.scores_std, other.scores, other.scores_std)
        return Release(curvature, curvature_std, products, scores, scores_std, self.most_scores)

    def _differs(self, other: "Release") -> bool:
        """Whether an eigenvalue of the difference exceeds the largest of its noise, as in one of 1,000 runs or so."""
        width = self.curvature.shape[-1]
        noise = np.hypot(self.curvature_std, other.curvature_std)
        largest = np.abs(np.linalg.eigvalsh(other.curvature - self.curvature)).max()
        return bool(largest > noise * (np.sqrt(2.0 * width) + _DIFFERENT))

    def posterior(self, frame: Frame, covariance: Array, count: int, moved: Array) -> Curvature:
        """Draws of the curvature, where u has this prior covariance and lies `moved` (k, b) from its prior mean."""
        released = self.curvature, self.curvature_std, self.scores, self.scores_std
        is_far = len(moved) == 1 and bool(np.any(moved))
        along = moved[0] / np.linalg.norm(moved) if is_far else None
        return drawn(*released, frame.layout.real, covariance, count, self.most_scores, along)


def decline(sizes: Array, std: float) -> float:
    """The power a by which the curvature declines with the distance r from the prior mean, as r^-a.

    From its size half way and here, `sizes` (2,) with noise of this sd, where that shows it; shrunk towards 0 as by one more
    number of sd 1."""
    if np.min(sizes) < 2.0 * std:
        return 0.0
    way, variance = np.log(2.0), np.sum((std / sizes) ** 2) + _ROUGH**2
    return float(np.clip(way * np.log(sizes[0] / sizes[1]) / (way**2 + variance), -_MOST_DECLINE, _MOST_DECLINE))


def _weighted_mean(a: Array, std_a: float, b: Array, std_b: float) -> tuple[Array, float]:
    w, v = std_a**-2, std_b**-2
    return (w * a + v * b) / (w + v), float((w + v) ** -0.5)
