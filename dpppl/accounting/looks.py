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
_LONGER = 1.5  # by how much the late norm multiplies the least noise, on data that a model describes
_SLOPE = 0.6  # what of the curvature's relative error counts as noise in scores, by squares


@dataclass(frozen=True)
class Shares:
    """Shares of a run with so many rows and latents.

    - **late** - of all late looks together.
    - **curvature** - of a late look, the part of its squared length that goes to the curvature; the rest goes to scores.
    - **counted** - the share that noise in intervals is as large as it would be for, if all of it went to one sum of scores."""

    late: float
    curvature: float
    counted: float


def shares(num_latents: int, num_rows: float, has_bins: bool = True) -> Shares:
    """Return the shares of a run. Noise in the curvature is to its size as s d^(3/2) / N, noise in scores to their sampling as
    s (d / N)^(1/2): the ratio of the shares that make the sum of squares least is as that of both.

    >>> shares(5, 20_000).curvature < shares(100, 20_000).curvature
    True
    """
    late = 1.0 - EARLY_SHARE - sum(SCALARS) - (BINS if has_bins else 0.0)
    ratio = _CURVATURE * num_latents / math.sqrt(num_rows)
    curvature = max(_LEAST_CURVATURE, ratio / (1.0 + ratio))
    return Shares(late, curvature, late * (1.0 - curvature) / _LONGER)
