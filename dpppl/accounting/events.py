"""Accesses of the data as plain numbers: noise multipliers, counts, sampling rate and neighbouring relation."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpppl.accounting.relations import relation_of
from dpppl.errors import ConfigurationError
from dpppl.validation import checked, checked_fields, plain


@checked_fields
@dataclass(frozen=True, kw_only=True)
class GaussianEvent:
    """Many accesses of a (sub)sampled Gaussian mechanism, as plain numbers.

    - **noise_multipliers** - pairs (noise std / clipping norm, number of accesses). A multiplier of 0 means no noise and costs
      epsilon = inf.
    - **sampling_rate** - the Poisson rate; 1.0 means every row at each access (also one entry per epoch of a fixed partition).
    - **neighboring_relation** - "zero_out" (dp_accounting's REPLACE_SPECIAL), "add_or_remove_one" or "replace_one".
    - **failure_probability** - bound, over all accesses together and for either of the two data sets compared, on the probability
      that sampling was not exact (cap overflow, total variation).
    - **batch_size**, **num_data** - given together: fixed-size batches without replacement, and `sampling_rate` is ignored.
    - **discrete** - whether sums and noise are whole numbers, the noise a discrete Gaussian.

    Raises ConfigurationError for a number outside its range.

    >>> GaussianEvent(noise_multipliers=((1.0, 1000),), sampling_rate=0.01).num_accesses
    1000
    """

    noise_multipliers: tuple[tuple[float, int], ...]
    sampling_rate: float = 1.0
    neighboring_relation: str = "zero_out"
    failure_probability: float = 0.0
    batch_size: int | None = None
    num_data: int | None = None
    discrete: bool = False

    def __post_init__(self) -> None:
        pairs_given = isinstance(self.noise_multipliers, list | tuple)
        if not pairs_given or any(
            not isinstance(pair, list | tuple) or len(pair) != 2 for pair in self.noise_multipliers
        ):
            raise ConfigurationError(
                "noise_multipliers are pairs (noise multiplier, number of accesses): ((10.0, 400),)."
            )
        numbers = [(plain(sigma), plain(count)) for sigma, count in self.noise_multipliers]
        are_numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for pair in numbers for x in pair)
        if not are_numbers or any(not abs(count) <= sys.float_info.max or count != int(count) for _, count in numbers):
            raise ConfigurationError(
                "noise_multipliers are pairs of numbers (noise multiplier, number of accesses, a whole number)."
            )
        for sigma, count in numbers:
            if not 0 <= sigma <= sys.float_info.max:
                raise ConfigurationError(f"noise multiplier {sigma} must be finite and not negative.")
            if not 1 <= count <= 1e15:
                raise ConfigurationError(
                    f"number of accesses {count:g} must be at least 1, and at most 1e15; leave the entry out for none."
                )
        object.__setattr__(self, "noise_multipliers", tuple((float(sigma), int(count)) for sigma, count in numbers))
        for name in ("sampling_rate", "failure_probability", "batch_size", "num_data", "discrete"):
            object.__setattr__(self, name, plain(getattr(self, name)))  # ledgers write numbers of Python's alone
        if not 0 < self.sampling_rate <= 1:
            raise ConfigurationError(f"sampling_rate {self.sampling_rate} must be in (0, 1].")
        relation_of(self.neighboring_relation)
        if not 0 <= self.failure_probability < 1:
            raise ConfigurationError(f"failure_probability {self.failure_probability} must be in [0, 1).")
        if (self.batch_size is None) != (self.num_data is None):
            raise ConfigurationError("batch_size and num_data describe fixed-size batches together: give both or none.")
        if self.batch_size is not None and self.num_data is not None and not 1 <= self.batch_size <= self.num_data:
            raise ConfigurationError(f"batch_size {self.batch_size} must be between 1 and num_data {self.num_data}.")

    @property
    def num_accesses(self) -> int:
        """Number of times the data were accessed."""
        return sum(count for _, count in self.noise_multipliers)

    @property
    def sensitivity(self) -> float:
        """Largest L2 change of a sum of rows, clipped to norm 1, between neighbours."""
        return relation_of(self.neighboring_relation).sensitivity

    @property
    def is_full_batch(self) -> bool:
        """True when every access sees every row, so that the exact Gaussian formula applies."""
        return self.batch_size == self.num_data and (self.batch_size is not None or self.sampling_rate == 1)


@checked
def round_down(noise_multipliers: np.ndarray, max_values: int = 64) -> tuple[tuple[float, int], ...]:
    """Noise multipliers of all accesses, shape (T,), as at most `max_values` pairs (multiplier, count), ascending.

    Guarantee: every multiplier is kept or replaced by a smaller one, so a bound for the result holds for the input.
    Up to `max_values` distinct values are kept exactly; more are rounded down to the smallest of their neighbours, in
    groups chosen to lose little under subsampling. Full-batch accesses are accounted exactly however many values they
    have: for them `max_values` may be the number of steps.

    >>> round_down(np.array([2.0, 1.0, 2.0]))
    ((1.0, 1), (2.0, 2))
    """
    try:
        sigmas = np.asarray(noise_multipliers, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        raise ConfigurationError("noise_multipliers must be an array of numbers, one for each access.") from None
    if not (np.all(np.isfinite(sigmas)) and np.all(sigmas >= 0)):
        raise ConfigurationError("every noise multiplier must be finite and not negative.")
    values, counts = np.unique(sigmas, return_counts=True)
    if len(values) > max_values:
        if max_values < 2:
            raise ConfigurationError(f"max_values {max_values} must be at least 2.")
        zeros = int(values[0] == 0)
        positive, number = values[zeros:], counts[zeros:]
        # Cells that lose about equally much: with a small rate an access costs about e^(sigma^-2) - 1.
        inverse_square = np.maximum(positive[:-1], 1e-3) ** -2
        slope = np.exp(np.minimum(inverse_square, 10.0)) * inverse_square
        loss = np.sqrt(number[:-1] * np.log(positive[1:] / positive[:-1]) * slope)
        position = np.concatenate([[0.0], np.cumsum(loss)])
        cells = np.minimum(position / position[-1] * (max_values - zeros), max_values - zeros - 1).astype(int)
        _, first, inverse = np.unique(cells, return_index=True, return_inverse=True)
        merged = np.bincount(inverse, weights=number)
        values = np.concatenate([values[:zeros], positive[first]])
        counts = np.concatenate([counts[:zeros], merged])
    return tuple((float(sigma), int(count)) for sigma, count in zip(values, counts))


def without_noise(events: Sequence[GaussianEvent]) -> bool:
    """Whether any access has no noise, or so little that its divergence overflows."""
    return any(sigma < 1e-150 for e in events for sigma, _ in e.noise_multipliers)


def gaussian_mu(events: Sequence[GaussianEvent]) -> float:
    """Square root of the sum over accesses of (sensitivity C / noise std)^2, ignoring subsampling and the relation."""
    pairs = [pair for e in events for pair in e.noise_multipliers]
    if without_noise(events):
        return math.inf
    return math.sqrt(math.fsum(count * min(sigma, 1e150) ** -2.0 for sigma, count in pairs))
