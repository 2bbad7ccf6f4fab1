"""Which rows a step looks at: indices drawn on the device, exactly, and what the accountant must know of it."""

import functools
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl import information_flow
from dpppl.errors import ConfigurationError

SAMPLING_BITS = 192


class Selection(NamedTuple):
    """Rows of one step. `index` (M,) int32, or None for all rows in order; `mask` (M,) bool, or None for all True."""

    index: jax.Array | None  # type: ignore[assignment]
    mask: jax.Array | None


class Subsampling(ABC):
    """How the rows of a step are chosen, and what the accountant must know of it.

    `rate`: the probability that a step uses a given row. `failure_probability`: bound a step on the total variation
    from the stated distribution. `neighboring_relation`: the relation that the accounts hold under.
    """

    rate: float
    failure_probability: float = 0.0
    neighboring_relation: str = "zero_out"

    @abstractmethod
    def draw(self, key, num_rows: int, step=0) -> Selection:
        """The rows of the step number `step`, of `num_rows`; `key` is the same at every step of a run."""

    @abstractmethod
    def describe(self) -> str:
        """One line for the report."""

    @property
    def event_fields(self) -> dict:
        """How the accountant is to treat an access: fields of a GaussianEvent. Empty: a plain Gaussian."""
        return {}

    def batch_cap(self, num_rows: int) -> int | None:
        """The static cap on a step's rows, where one is used: not when each row is drawn on its own."""
        return None

    def accounted(self, noise_multipliers: np.ndarray, first: int) -> np.ndarray:
        """Noise multipliers of the events to compose, from those of the steps first, first + 1, ...: one each."""
        return noise_multipliers


@dataclass(frozen=True)
class FullBatch(Subsampling):
    """Every row at every step: sampling rate 1, no amplification, and no minibatch noise in the posterior.

    >>> FullBatch().rate
    1.0
    """

    rate: float = 1.0

    def __post_init__(self):
        if self.rate != 1.0:
            raise ConfigurationError("FullBatch has rate 1; use Poisson(rate) to look at fewer rows.")

    def draw(self, key, num_rows: int, step=0) -> Selection:
        return Selection(None, None)

    def describe(self) -> str:
        return "full batch: every row at every step"


@dataclass(frozen=True)
class Poisson(Subsampling):
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
        """The rate that draws `batch_size` of `num_data` rows on average; `num_data` becomes declared and public."""
        if not 0 < batch_size <= num_data:
            raise ConfigurationError("Poisson.of_batch(batch_size, num_data) needs 0 < batch_size <= num_data.")
        return cls(batch_size / num_data)

    @property
    def failure_probability(self) -> float:  # type: ignore[override]
        """Bound on the total variation between a step's rows and exact Poisson sampling, for any number of rows.

        Exact means at `rate`, or less than 2^-64 below it, which costs no more. 2^-160 bounds the rounding of the
        table of batch sizes.
        """
        return 0.0 if self.rate == 1.0 else 3.0 * max(self.overflow_probability, 2.0**-160)

    @property
    def event_fields(self) -> dict:
        return {"sampling_rate": self.rate}

    def draw(self, key, num_rows: int, step=0) -> Selection:
        """Rows of one step. Cost does not grow with `num_rows` when the rate is small."""
        if self.rate == 1.0:
            return Selection(None, None)
        key = jax.random.fold_in(key, step)
        cap = self.batch_cap(num_rows)
        if cap is None:
            return draw_dense(key, num_rows, self.rate)
        return draw_sparse(key, num_rows, self.rate, *sparse_sizes(self.rate, num_rows, self.overflow_probability))

    def batch_cap(self, num_rows: int) -> int | None:
        """The most rows of a step that sparse sampling has room for; None where every row is drawn on its own."""
        cap, tries = sparse_sizes(self.rate, num_rows, self.overflow_probability)
        return None if self.rate == 1.0 or tries > 0.75 * num_rows else cap

    def describe(self) -> str:
        """One line for the report."""
        return (
            f"Poisson, rate {self.rate:.6g}, drawn exactly; overflow of the cap on a step's rows charged to delta "
            f"(at most {self.failure_probability:.1e} a step)"
        )


@dataclass(frozen=True)
class Partition(Subsampling):
    """Each row once an epoch: a random split into `num_batches` batches, drawn anew every epoch, one batch a step.

    Guarantee: the split does not depend on the values, so by parallel composition an epoch costs one Gaussian event at
    its smallest noise multiplier; an epoch that is begun is charged in full. No amplification is claimed.
    Raises ConfigurationError unless num_batches is a positive integer.

    >>> Partition(20).rate
    0.05
    """

    num_batches: int

    def __post_init__(self):
        if isinstance(self.num_batches, bool) or not isinstance(self.num_batches, int) or self.num_batches < 1:
            raise ConfigurationError("Partition(num_batches): the number of batches is a positive integer.")

    @property
    def rate(self) -> float:  # type: ignore[override]
        """The share of the rows that a step uses."""
        return 1.0 / self.num_batches

    def accounted(self, noise_multipliers: np.ndarray, first: int) -> np.ndarray:
        """One event an epoch, at the smallest noise multiplier of its steps."""
        epochs = (first + np.arange(len(noise_multipliers))) // self.num_batches
        starts = np.flatnonzero(np.diff(epochs, prepend=epochs[:1] - 1))
        return np.minimum.reduceat(noise_multipliers, starts) if len(starts) else noise_multipliers

    def draw(self, key, num_rows: int, step=0) -> Selection:
        if self.num_batches > num_rows:
            raise ConfigurationError(
                f"Partition({self.num_batches}) has more batches than there are rows ({num_rows}); lower num_batches."
            )
        epoch, batch = jnp.divmod(jnp.asarray(step, jnp.int32), self.num_batches)
        quotient, remainder = divmod(num_rows, self.num_batches)
        slots = jnp.arange(quotient + (remainder > 0), dtype=jnp.int32)
        start = batch * quotient + jnp.minimum(batch, remainder)
        inside = slots < quotient + (batch < remainder)
        position = jnp.where(inside, start + slots, 0)
        return Selection(_shuffled(jax.random.fold_in(key, epoch), position, num_rows), inside)

    def describe(self) -> str:
        return (
            f"random partition into {self.num_batches} batches, redrawn every epoch; one Gaussian event an epoch, "
            "an epoch begun is charged in full, no amplification claimed"
        )


@dataclass(frozen=True)
class WithoutReplacement(Subsampling):
    """A uniformly random subset of `batch_size` of the `num_data` rows, at every step.

    Accounted by RDP under the replace-one relation, where a row moves the sum by 2 * clipping_norm: dear. At rate .01,
    noise multiplier 1 and 1,000 steps epsilon is about 21, against 2.8 for Poisson sampling under replace-one.
    Raises ConfigurationError unless 0 < batch_size <= num_data, and when a run's rows are not num_data many.

    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     WithoutReplacement(10, 1000).rate
    0.01
    """

    batch_size: int
    num_data: int
    failure_probability: float = 1e-22
    neighboring_relation: str = "replace_one"

    def __post_init__(self):
        if not (isinstance(self.batch_size, int) and isinstance(self.num_data, int)) or not (
            0 < self.batch_size <= self.num_data
        ):
            raise ConfigurationError(
                "WithoutReplacement(batch_size, num_data) needs 0 < batch_size <= num_data, integers."
            )
        if self.neighboring_relation != "replace_one" or not 0 < self.failure_probability < 1e-3:
            raise ConfigurationError("WithoutReplacement is accounted under the replace-one relation only.")
        warnings.warn(
            "fixed-size batches without replacement cost far more privacy than Poisson(rate) of the same rate.",
            stacklevel=3,
        )

    @property
    def rate(self) -> float:  # type: ignore[override]
        """The share of the rows that a step uses."""
        return self.batch_size / self.num_data

    @property
    def event_fields(self) -> dict:
        return {"batch_size": self.batch_size, "num_data": self.num_data}

    def draw(self, key, num_rows: int, step=0) -> Selection:
        if num_rows != self.num_data:
            raise ConfigurationError(
                f"WithoutReplacement was given num_data = {self.num_data}, but there are {num_rows} rows. Under the "
                "replace-one relation the number of rows is public: give it exactly."
            )
        if self.batch_size == num_rows:
            return Selection(None, None)
        fewer = min(self.batch_size, num_rows - self.batch_size)
        tries = _tries(fewer, num_rows, self.failure_probability)
        words = jax.random.bits(jax.random.fold_in(key, step), (tries,), jnp.uint32)
        chosen = _distinct(words, num_rows, fewer)
        if fewer == self.batch_size:
            return chosen
        left_out = jnp.zeros(num_rows, bool).at[chosen.index].max(chosen.mask)
        return Selection(None, ~left_out)

    def describe(self) -> str:
        return f"{self.batch_size} of {self.num_data} rows without replacement at every step (RDP, replace-one)"


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
    return _distinct(words[SAMPLING_BITS // 32 :], num_rows, size)


def _distinct(draws, num_rows: int, size) -> Selection:
    """The first `size` distinct rows named by 32-bit words, masked out where rejected or repeated."""
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
    """Whether the number `words` (W,) uint32, most significant first, is at least each row of `table` (K, W)."""
    result = jnp.ones(table.shape[0], bool)
    for digit in reversed(range(words.shape[0])):
        result = (words[digit] > table[:, digit]) | ((words[digit] == table[:, digit]) & result)
    return result


@functools.lru_cache(maxsize=32)
def _binomial_thresholds(rate: float, num_rows: int, cap: int) -> tuple[int, np.ndarray]:
    """(smallest, table): P(Binomial(num_rows, rate) <= k) for smallest <= k < cap as 192-bit integers, (K, 6) uint32.

    Weights are 256-bit integers built from the mode by the exact ratio of neighbouring probabilities, so a threshold
    is wrong by less than 2^-191 and the table by less than cap * 2^-191 in total variation.
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
    norm, running, smallest, rows = sum(weights.values()), 0, min(min(weights), cap), []
    for k in range(smallest, min(cap, max(weights) + 1)):
        running += weights[k]
        threshold = min((running << SAMPLING_BITS) // norm, 2**SAMPLING_BITS - 1)
        rows.append([(threshold >> shift) & 0xFFFFFFFF for shift in reversed(range(0, SAMPLING_BITS, 32))])
    table = np.array(rows, np.uint32).reshape(-1, SAMPLING_BITS // 32)
    for column in table.T:
        information_flow.register_table(column)
    return smallest, table


@functools.lru_cache(maxsize=32)
def sparse_sizes(rate: float, num_rows: int, overflow_probability: float) -> tuple[int, int]:
    """(cap, tries): P(Binomial(num_rows + 1, rate) > cap) and P(fewer than cap distinct rows in `tries` draws)
    are each at most `overflow_probability`."""
    from scipy import stats

    cap = min(_smallest(lambda k: stats.binom.sf(k, num_rows + 1, rate) <= overflow_probability, 1), num_rows)
    return cap, _tries(cap, num_rows, overflow_probability)


def _tries(size: int, num_rows: int, failure_probability: float) -> int:
    """Draws among which `size` distinct rows are found but with this probability; 4 * num_rows if that is too many."""
    from scipy import stats

    bad = min(1.0, size / num_rows + (2**32 % num_rows) / 2**32)
    if bad > 0.51:
        return 4 * num_rows
    return _smallest(lambda m: stats.binom.sf(m - size, m, bad) <= failure_probability, size)


def _shuffled(key, position, num_rows: int):
    """Where a pseudo-random permutation of the rows puts each of `position`; distinct for distinct positions.

    A Feistel network on the next power of four, walked until it lands inside. Only posteriors depend on its quality:
    a partition's privacy needs a split that ignores the values, whatever it is."""
    half = max(1, -(-(num_rows - 1).bit_length() // 2))
    mask = np.uint32(2**half - 1)
    round_keys = jax.random.bits(key, (8,), jnp.uint32)

    def network(value):
        left, right = value >> half, value & mask
        for round_key in round_keys:
            mixed = (right ^ round_key) * np.uint32(0x85EBCA6B)
            mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE35)
            left, right = right, left ^ ((mixed ^ (mixed >> 16)) & mask)
        return (left << half) | right

    def walk(value):
        return jnp.where(value < num_rows, value, network(value))

    start = network(position.astype(jnp.uint32))
    return lax.while_loop(lambda value: jnp.any(value >= num_rows), walk, start).astype(jnp.int32)


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
