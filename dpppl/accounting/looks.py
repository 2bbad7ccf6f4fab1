"""How a NoiseAware run spends its budget, and what its noise adds: the same numbers for its accesses and for plans before data.

Shares are of mu^2. N rows of d latents: in coordinates in which a row's score has the mean squared length d, the curvature of all
rows is N in every direction. A noise multiplier s of all late looks together adds C^2 s^2 to the variance of the sum of scores,
where rows' own sampling is N, and s C^2 (2 d)^(1/2) to the norm of the curvature.
"""

import math
from dataclasses import dataclass

ACCESSES = 20
EARLY_SHARE, BINS, SCALARS = 0.1, 0.025, (0.02, 0.04)
"""Shares of early looks together, of histograms together, and of ranks before the late looks and at the end."""
_CURVATURE, _LEAST_CURVATURE = 2.7, 0.05
_LONGER = 2.7  # by how much the late norm multiplies the least noise of scores
_BY_ERROR = 0.9, 18.0
"""The variance that the relative error of the curvature adds, and its square; fitted, as `_LONGER`, to runs on right models."""


@dataclass(frozen=True)
class Shares:
    """Shares of a run with so many rows and latents.

    - **late** - of all late looks together.
    - **curvature** - of a late look, the part of its squared length that goes to the curvature; the rest goes to scores."""

    late: float
    curvature: float


def shares(num_latents: int, num_rows: float, has_bins: bool = True) -> Shares:
    """Return the shares of a run. Noise in the curvature is to its size as s d^(3/2) / N, noise in scores to their sampling as
    s (d / N)^(1/2): the ratio of the shares that make the sum of squares least is as that of both.

    >>> shares(5, 20_000).curvature < shares(100, 20_000).curvature
    True
    """
    late = 1.0 - EARLY_SHARE - sum(SCALARS) - (BINS if has_bins else 0.0)
    ratio = _CURVATURE * num_latents / math.sqrt(num_rows)
    curvature = max(_LEAST_CURVATURE, ratio / (1.0 + ratio))
    return Shares(late, curvature)


def added_variance(num_latents: int, num_rows: float, noise_multiplier: float, squared_norm: float) -> float:
    """Return the variance that privacy adds to the place of the likelihood's mode, in units of its variance without privacy.

    - **noise_multiplier** - 1 / mu of the run.
    - **squared_norm** - the squared clipping norm in units of a row's curvature in one direction."""
    of = shares(num_latents, num_rows)
    scores = _LONGER * squared_norm * noise_multiplier**2 / (of.late * (1.0 - of.curvature) * num_rows)
    error = noise_multiplier * num_latents * math.sqrt(2.0 * num_latents / (of.late * of.curvature)) / num_rows
    return scores + _BY_ERROR[0] * error + _BY_ERROR[1] * error**2
