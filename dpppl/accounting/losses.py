"""The privacy loss of one Gaussian access, subsampled or not: its exact distribution, and one on a grid (step 1 of `pld`)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_CELL = 0.02  # standard deviations between the outputs looked at: adds cell^2 / 6 to the relative variance of a loss
_LARGEST_LOSS = 500.0
ROUNDING = 2.0**-53
LEAST = 1e-300


@dataclass(frozen=True, eq=False)
class DominatingPair:
    """Accesses with outputs distributed as P or Q, mixtures of unit normals with dP/dQ rising, in units of the noise.

    - **shifts**, **weights** - means of P's normals and their weights, (k,).
    - **other_shifts**, **other_weights** - those of Q, (m,).
    - **count** - number of accesses.
    - **tail** - mass of P left out on either side: losses there count as infinite above, and as the smallest one below."""

    shifts: Array
    weights: Array
    other_shifts: Array
    other_weights: Array
    count: int
    tail: float = 1e-30

    def loss(self, z: Array) -> tuple[Array, Array]:
        """log dP/dQ at outputs z (n,), and its derivative."""
        present, slope = _log_ratio(z, self.shifts, self.weights)
        absent, other_slope = _log_ratio(z, self.other_shifts, self.other_weights)
        return present - absent, slope - other_slope

    @functools.cached_property
    def nodes(self) -> tuple[Array, Array, Array]:
        """Rising outputs (n,) between P's tails, where losses are within 500, the losses, and log P around each.

        The probabilities are approximate: order, interval and period are chosen by them, and no bound rests on them."""
        from scipy.special import ndtri

        share = self.tail / len(self.weights)
        seen = self.weights > 2 * share
        reach, around = -ndtri(share / self.weights[seen]), self.shifts[seen]
        ends = np.array([(around - reach).min(), (around + reach).max()])
        within = np.clip(self.loss(ends)[0], -_LARGEST_LOSS, _LARGEST_LOSS)
        least = min(self.shifts.min(), self.other_shifts.min(), ends[0]) - 40
        low, high = self._outputs(within, least, ends, ends[1])
        z = np.linspace(low, high, math.ceil((high - low) / _CELL) + 2)
        log_density = _log_ratio(z, self.shifts, self.weights)[0] - z**2 / 2
        return z, self.loss(z)[0], log_density - log_sum(log_density)

    def _outputs(self, losses: Array, low: Array | float, z: Array, high: Array | float) -> Array:
        """Outputs that have the losses, between `low` and `high`: Newton's method from `z`, bisection where it leaves."""
        for _ in range(100):
            value, slope = self.loss(z)
            error = losses - value
            if np.all(np.abs(error) <= 1e-15 * (1 + 10 * np.abs(losses))):
                break
            low, high = np.where(error > 0, z, low), np.where(error < 0, z, high)
            newton = z + error / np.maximum(slope, 1e-300)
            z = np.where((newton > low) & (newton < high), newton, (low + high) / 2)
        return z

    def on_grid(self, interval: float) -> GridLosses:
        """Losses on multiples of `interval` whose delta is not below this access's at any epsilon."""
        from scipy.special import ndtr

        z, values, _ = self.nodes
        first = np.floor(values[0] / interval)
        last = max(np.ceil(values[-1] / interval), first + 1)
        index = np.unique(np.rint(values / interval))
        index = index[(index > first) & (index < last)]
        near = np.searchsorted(values, index * interval)
        low, high = z[np.maximum(near - 2, 0)], z[np.minimum(near + 1, len(z) - 1)]
        between = self._outputs(index * interval, low, np.interp(index * interval, values, z), high)
        # Where the loss is off epsilon by an error, delta as computed is too small by that error times a probability.
        error = np.max(np.abs(self.loss(between)[0] - index * interval), initial=0.0)
        z, index = np.concatenate([z[:1], between, z[-1:]]), np.concatenate([[first], index, [last]])
        # Distribution functions err by 3e-14, e^epsilon by 6e-14, weights by 1e-14 a component, masses by a few roundings.
        safety = 1 + 2e-13 * (1 + (len(z) + 100 * (len(self.weights) + len(self.other_weights))) / 1000) + 2 * error
        present_below, present_above = (safety * self.weights @ ndtr(s * (z - self.shifts[:, None])) for s in (1, -1))
        absent_below, absent_above = (self.other_weights @ ndtr(s * (z - self.other_shifts[:, None])) for s in (1, -1))
        ratio = np.exp(index * interval)
        # At the end, delta where the loss is a little smaller.
        delta = present_above - np.append(ratio[:-1], np.exp(values[-1])) * absent_above
        # delta - (1 + s) + e^epsilon: below 0 and the median, what delta would lose by cancellation.
        excess = np.maximum(ratio * absent_below - present_below, 0)
        seam = np.searchsorted((index >= 0) | (present_below > present_above), True) - 1
        seam = np.clip(seam, 0, len(z) - 2)
        rises = np.where(np.arange(len(z) - 1) < seam, np.diff(excess), np.diff(delta))
        gaps = np.diff(index) * interval
        masses = np.zeros(len(z))
        masses[1:] += rises / np.expm1(-gaps)
        masses[:-1] += rises / np.expm1(gaps)
        masses[0] -= excess[0]
        masses[seam] += ratio[seam]
        return GridLosses(index.astype(np.int64), np.maximum(masses, LEAST), max(float(delta[-1]), 0.0), self.count)


def _log_ratio(z: Array, shifts: Array, weights: Array) -> tuple[Array, Array]:
    """log of the density at z (n,) of a mixture of unit normals over that of one around 0, and its derivative."""
    exponents = z[:, None] * shifts - shifts**2 / 2 + np.log(weights)
    top = exponents.max(axis=1)
    terms = np.exp(exponents - top[:, None])
    total = terms.sum(axis=1)
    return top + np.log(total), terms @ shifts / total


@dataclass(frozen=True, eq=False)
class GridLosses:
    """The privacy loss of an access on a grid.

    - **index** - losses as multiples of the interval, (n,).
    - **masses** - their probabilities, (n,).
    - **infinite** - probability of an infinite loss.
    - **count** - number of accesses."""

    index: NDArray[np.int64]
    masses: Array
    infinite: float
    count: int

    def tilted(self, order: float) -> tuple[Array, float, float]:
        """Masses times e^(order index) over a constant that makes their sum 1, its log, and their relative error."""
        exponents = np.log(self.masses) + order * self.index
        log_constant = log_sum(exponents)
        largest = -math.log(LEAST) + order * float(max(-self.index[0], self.index[-1])) + abs(log_constant)
        return np.exp(exponents - log_constant), log_constant, ROUNDING * (4 * largest + len(self.index))


def log_sum(exponents: Array) -> float:
    """log of the sum of exp(exponents)."""
    top = float(exponents.max())
    return top + math.log(float(np.exp(exponents - top).sum()))
