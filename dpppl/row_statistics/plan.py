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


class PlannedAccess(NamedTuple):
    """One access of a run.

    - **kind**, **share** - and its share of mu^2.
    - **score_share** - the share of its squared length that goes to scores."""

    kind: Kind
    share: float
    score_share: float = 1.0


class PlannedLook(NamedTuple):
    """A look, and the accesses before it.

    - **noise_multiplier**, **score_share** - of the look.
    - **bins** - noise multipliers of the histograms of norms before it, one for each metric that it may have.
    - **scalars** - that of the scalars before these, or None."""

    noise_multiplier: float
    score_share: float
    bins: tuple[float, ...]
    scalars: float | None


@dataclass(frozen=True)
class ReleasePlan:
    """The accesses of a run. A Gaussian access of noise multiplier s costs 1 / s^2 of mu^2 on a full batch.

    - **accesses** - in order; their shares sum to 1."""

    accesses: tuple[PlannedAccess, ...]

    @property
    def num_accesses(self) -> int:
        return len(self.accesses)

    def noise_multipliers(self, scale: float) -> np.ndarray:
        """Noise multipliers of the accesses, in order, (num_accesses,), for `scale` = 1 / mu."""
        return scale / np.sqrt([access.share for access in self.accesses])

    def looks(self, scale: float) -> list[PlannedLook]:
        """The looks in order, for `scale` = 1 / mu. Scalars are the last access, after all of them."""
        looks, bins, scalars = list[PlannedLook](), list[float](), None
        for access, noise in zip(self.accesses, self.noise_multipliers(scale)):
            if access.kind is Kind.LOOK:
                looks.append(PlannedLook(noise, access.score_share, tuple(bins), scalars))
                bins, scalars = [], None
            elif access.kind is Kind.BINS:
                bins.append(noise)
            else:
                scalars = noise
        return looks


def plan_of(has_bins: bool = True, dimension: int = 1, num_rows: float = np.inf) -> ReleasePlan:
    """Looks of growing shares, histograms before some of them where bounds are to be found, and scalars before the late looks,
    for these bounds, and at the end. See `accounting.looks.shares`."""
    of_run = shares(dimension, num_rows, has_bins)
    early, late = _GROWTH ** np.arange(EARLY), _LATE_GROWTH ** np.arange(LATE)
    of_early = np.maximum(of_run.curvature, np.where(np.arange(EARLY) < FIRST, *_EARLY_CURVATURE))
    looks = [PlannedAccess(Kind.LOOK, s, 1.0 - c) for s, c in zip(EARLY_SHARE * early / early.sum(), of_early.tolist())]
    looks += [PlannedAccess(Kind.LOOK, s, 1.0 - of_run.curvature) for s in of_run.late * late / late.sum()]
    accesses: list[PlannedAccess] = []
    for number, look in enumerate(looks):
        if number == EARLY:
            accesses.append(PlannedAccess(Kind.SCALARS, SCALARS[0]))
        if has_bins:
            accesses += [PlannedAccess(Kind.BINS, BINS / sum(_BINS_BEFORE.values()))] * _BINS_BEFORE.get(number, 0)
        accesses.append(look)
    return ReleasePlan((*accesses, PlannedAccess(Kind.SCALARS, SCALARS[1])))
