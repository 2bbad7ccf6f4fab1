"""The accesses of a run: their order, and the share of the privacy cost that each of them gets."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpppl.accounting.looks import BINS, EARLY_SHARE, SCALARS, shares
from dpppl.row_statistics.accesses import Kind

EARLY, LATE = 8, 5
"""Looks that find the posterior and its metric, and looks that decide it, in one metric at one norm."""
_GROWTH, _LATE_GROWTH = 1.35, 1.3  # of the share of a look over the one before
FIRST = 4  # of the early looks those that find units of columns
METRICS = 3  # metrics that late looks may have
_BINS_BEFORE = {0: 1, FIRST: 1, EARLY: METRICS}  # by the number of a look, how many histograms of norms are before it
_EARLY_CURVATURE = 0.5, 0.3  # the least of the first looks, and of other early ones


class PlannedLook(NamedTuple):
    """A look and the accesses before it, by their shares of mu^2.

    - **share** - of the look; **score_share** - the share of its squared length that goes to scores.
    - **bins** - of the histograms of norms before it, one for each metric that it may have.
    - **scalars** - of an access to scalars before these, or None."""

    share: float
    score_share: float
    bins: tuple[float, ...] = ()
    scalars: float | None = None

    @property
    def accesses(self) -> list[tuple[Kind, float]]:
        """Kinds and shares, in order."""
        scalars = [] if self.scalars is None else [(Kind.SCALARS, self.scalars)]
        return [*scalars, *((Kind.BINS, share) for share in self.bins), (Kind.LOOK, self.share)]


@dataclass(frozen=True)
class ReleasePlan:
    """The accesses of a run. A Gaussian access of noise multiplier s costs 1 / s^2 of mu^2 on a full batch.

    - **looks** - in order. The shares of all accesses sum to 1; the last is one to scalars."""

    looks: tuple[PlannedLook, ...]

    @property
    def accesses(self) -> list[tuple[Kind, float]]:
        """Kinds and shares, in order."""
        return [*(access for look in self.looks for access in look.accesses), (Kind.SCALARS, SCALARS[1])]

    @property
    def num_accesses(self) -> int:
        return len(self.accesses)

    def noise_multipliers(self, scale: float) -> np.ndarray:
        """Noise multipliers of the accesses, in order, (num_accesses,), for `scale` = 1 / mu."""
        return scale / np.sqrt([share for _, share in self.accesses])


def plan_of(has_bins: bool = True, dimension: int = 1, num_rows: float = np.inf) -> ReleasePlan:
    """Looks of growing shares, histograms before some of them where bounds are to be found, and scalars before the late looks,
    for these bounds, and at the end. See `accounting.looks.shares`."""
    of_run = shares(dimension, num_rows, has_bins)
    early, late = _GROWTH ** np.arange(EARLY), _LATE_GROWTH ** np.arange(LATE)
    of_early = np.maximum(of_run.curvature, np.where(np.arange(EARLY) < FIRST, *_EARLY_CURVATURE))
    curvatures = [*of_early.tolist(), *[of_run.curvature] * LATE]
    of_looks = [*(EARLY_SHARE * early / early.sum()), *(of_run.late * late / late.sum())]
    bins = BINS / sum(_BINS_BEFORE.values())
    return ReleasePlan(
        tuple(
            PlannedLook(
                share, 1.0 - curvature, (bins,) * (_BINS_BEFORE.get(number, 0) if has_bins else 0),
                SCALARS[0] if number == EARLY else None,
            )
            for number, (share, curvature) in enumerate(zip(of_looks, curvatures))
        )
    )  # fmt: skip
