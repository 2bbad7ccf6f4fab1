"""Which rows a step looks at: indices drawn on the device, exactly, and what the accountant must know of it."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.errors import ConfigurationError

SAMPLING_BITS = 96


class Selection(NamedTuple):
    """Rows of one step. `index` (M,) int32, or None for all rows in order; `mask` (M,) bool, or None for all True."""

    index: jax.Array | None
    mask: jax.Array | None


@dataclass(frozen=True)
class FullBatch:
    """Every row at every step: sampling rate 1, no amplification, and no minibatch noise in the posterior.

    >>> FullBatch().rate
    1.0
    """

    rate: float = 1.0

    def __post_init__(self):
        if self.rate != 1.0:
            raise ConfigurationError("FullBatch has rate 1; use Poisson(rate) to look at fewer rows.")

    failure_probability = 0.0

    def draw(self, key, num_rows: int) -> Selection:
        """All rows."""
        return Selection(None, None)

    def describe(self) -> str:
        """One line for the report."""
        return "full batch: every row at every step"


@dataclass(frozen=True)
class Poisson:
    """Each row independently with probability `rate`, at every step.

    Guarantee: the set of rows is drawn exactly, up to `failure_probability` a step in total variation, which the
    accountant charges to delta. No step is scaled by the number of rows it happened to draw.
    `overflow_probability` bounds the chance that a step draws more rows than the static cap, and that the fixed number
    of tries does not suffice; the runner sets it from the budget.
    Raises ConfigurationError unless 0 < rate <= 1.

    >>> Poisson.of_batch(256, 60_000).rate
    0.004266666666666667
    """

    rate: float
    overflow_probability: float = 1e-22

    def __post_init__(self):
        if not (isinstance(self.rate, int | float | np.floating) and 0.0 < self.rate <= 1.0):
            raise ConfigurationError(f"Poisson(rate): the rate is a probability in (0, 1], got {self.rate!r}.")
        object.__setattr__(self, "rate", float(self.rate))
        if not 0.0 < self.overflow_probability < 1e-3:
            raise ConfigurationError("overflow_probability must lie in (0, 1e-3).")

    @classmethod
    def of_batch(cls, batch_size: int, num_data: int) -> "Poisson":
        """The rate that draws `batch_size` of `num_data` rows on average; `num_data` becomes a declared, public value."""
        if not 0 < batch_size <= num_data:
            raise ConfigurationError("Poisson.of_batch(batch_size, num_data) needs 0 < batch_size <= num_data.")
        return cls(batch_size / num_data)

    @property
    def failure_probability(self) -> float:
        """Bound on the total variation between a step's rows and exact Poisson sampling, for any number of rows."""
        return 0.0 if self.rate == 1.0 else 3.0 * self.overflow_probability

    def draw(self, key, num_rows: int) -> Selection:
        """Rows of one step. Cost does not grow with `num_rows` when the rate is small."""
        if self.rate == 1.0:
            return Selection(None, None)
        cap, tries = sparse_sizes(self.rate, num_rows, self.overflow_probability)
        if tries > 0.75 * num_rows:
            return draw_dense(key, num_rows, self.rate)
        return draw_sparse(key, num_rows, self.rate, cap, tries)

    def describe(self) -> str:
        """One line for the report."""
        return (
            f"Poisson, rate {self.rate:.6g}, drawn exactly; cap on the rows of a step and its overflow charged to delta "
            f"(at most {self.failure_probability:.1e} a step)"
        )


def draw_dense(key, num_rows: int, rate: float) -> Selection:
    """One 64-bit threshold comparison a row; the rate is rounded down to a multiple of 2^-64, never up."""
    numerator, denominator = rate.as_integer_ratio()
    threshold = numerator * 2**64 // denominator
    words = jax.random.bits(key, (2, num_rows), jnp.uint32)
    high, low = np.uint32(threshold >> 32), np.uint32(threshold & 0xFFFFFFFF)
    return Selection(None, (words[0] < high) | ((words[0] == high) & (words[1] < low)))


def draw_sparse(key, num_rows: int, rate: float, cap: int, tries: int) -> Selection:
    """The batch size from its binomial distribution, then a uniformly random subset of that size.

    The first n distinct values of a sequence of independent uniform draws are a uniformly random subset of size n.
    Draws are 32-bit words with rejection, so uniform without bias; a repeated or rejected one is masked out.
    """
    words = jax.random.bits(key, (tries + SAMPLING_BITS // 32,), jnp.uint32)
    smallest, table = _binomial_thresholds(rate, num_rows, cap)
    size = smallest + jnp.sum(_at_least(words[: SAMPLING_BITS // 32], table))
    draws = words[SAMPLING_BITS // 32 :]
    largest_unbiased = np.uint32(2**32 // num_rows * num_rows - 1)
    value = jnp.where(draws <= largest_unbiased, draws % np.uint32(num_rows), np.uint32(num_rows))
    keep = (value < num_rows) & ~_repeats(value)
    index = jnp.minimum(value, np.uint32(num_rows - 1)).astype(jnp.int32)
    return Selection(index, keep & (jnp.cumsum(keep) <= size))


def _repeats(value):
    """True where an equal value stands earlier in the array. Sorts (value, position) packed into 64 bits: exact."""
    count = value.shape[0]
    bits = max(1, (count - 1).bit_length())
    with jax.enable_x64(True):
        packed = value.astype(jnp.uint64) * np.uint64(2**bits) + jnp.arange(count, dtype=jnp.uint64)
        packed = lax.sort(packed, is_stable=False)
        same = packed[1:] // np.uint64(2**bits) == packed[:-1] // np.uint64(2**bits)
        position = (packed % np.uint64(2**bits)).astype(jnp.int32)
    same = jnp.concatenate([jnp.zeros(1, bool), same])
    return jnp.zeros(count, bool).at[position].set(same, unique_indices=True, mode="promise_in_bounds")


def _at_least(words, table):
    """Whether the number `words` (3,) uint32, most significant first, is at least each row of `table` (K, 3)."""
    result = jnp.ones(table.shape[0], bool)
    for digit in reversed(range(words.shape[0])):
        result = (words[digit] > table[:, digit]) | ((words[digit] == table[:, digit]) & result)
    return result


@functools.lru_cache(maxsize=32)
def _binomial_thresholds(rate: float, num_rows: int, cap: int) -> tuple[int, np.ndarray]:
    """(smallest, table): P(Binomial(num_rows, rate) <= k) for smallest <= k < cap as 96-bit integers, (K, 3) uint32.

    Weights are 256-bit integers built from the mode by the exact ratio of neighbouring probabilities, so a threshold
    is wrong by less than 2^-95 and the table by less than cap * 2^-95 in total variation.
    """
    success, total = rate.as_integer_ratio()
    failure = total - success
    mode = min(int(num_rows * rate), num_rows)
    weights = {mode: 2**256}
    for k in range(mode, num_rows):
        weights[k + 1] = weights[k] * ((num_rows - k) * success) // ((k + 1) * failure)
        if not weights[k + 1]:
            break
    for k in range(mode, 0, -1):
        weights[k - 1] = weights[k] * (k * failure) // ((num_rows - k + 1) * success)
        if not weights[k - 1]:
            break
    norm, running, smallest, rows = sum(weights.values()), 0, min(weights), []
    for k in range(smallest, min(cap, max(weights) + 1)):
        running += weights[k]
        threshold = min((running << SAMPLING_BITS) // norm, 2**SAMPLING_BITS - 1)
        rows.append([(threshold >> shift) & 0xFFFFFFFF for shift in (64, 32, 0)])
    return smallest, np.array(rows, np.uint32).reshape(-1, 3)


@functools.lru_cache(maxsize=32)
def sparse_sizes(rate: float, num_rows: int, overflow_probability: float) -> tuple[int, int]:
    """(cap, tries): P(Binomial(num_rows + 1, rate) > cap) and P(fewer than cap distinct rows in `tries` draws)
    are each at most `overflow_probability`."""
    from scipy import stats

    cap = min(_smallest(lambda k: stats.binom.sf(k, num_rows + 1, rate) <= overflow_probability, 1), num_rows)
    bad = min(1.0, cap / num_rows + (2**32 % num_rows) / 2**32)
    if bad > 0.5:
        return cap, 4 * num_rows
    tries = _smallest(lambda m: stats.binom.sf(m - cap, m, bad) <= overflow_probability, cap)
    return cap, tries


def _smallest(condition, start: int) -> int:
    """The smallest integer at or above `start` that meets a monotone condition, by doubling and bisection."""
    step = 1
    while not condition(start + step - 1):
        step *= 2
    low, high = start - 1 + step // 2, start + step - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if condition(middle) else (middle, high)
    return high if not condition(start) else start
