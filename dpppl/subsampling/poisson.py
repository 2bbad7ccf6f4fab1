"""Each row on its own with one probability: drawn exactly, at a cost that does not grow with the rows."""

import functools
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from dpppl.errors import ConfigurationError
from dpppl.subsampling.distinct import distinct_rows, smallest_meeting, tries_needed
from dpppl.subsampling.scheme import Selection, Step, Subsampling
from dpppl.types import Document
from dpppl.validation import checked, checked_type, in_words, optional, plain, positive, positive_integer

SAMPLING_BITS = 192
_BLOCK = 65_536
Table = NDArray[np.uint32]


@checked_type
@dataclass(frozen=True)
class Poisson(Subsampling):
    """Each row independently with probability `rate`, at every step.

    - **rate** - that probability, in (0, 1].
    - **overflow_probability** - bound on the chance that a step draws more rows than the static cap, and that the fixed number of
      tries does not suffice; the runner sets it from the budget.
    - **num_data** - the number of rows that the rate was made for, which a run checks; None: any.

    Guarantee: the set of rows is drawn exactly, up to `failure_probability` a step in total variation, which the
    accountant charges to delta. No step is scaled by the number of rows it happened to draw.
    Raises ConfigurationError unless 0 < rate <= 1.

    >>> Poisson.of_batch(256, 60_000).rate
    0.004266666666666667
    """

    rate: float
    overflow_probability: float = 1e-22
    num_data: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        rate = plain(self.rate)
        if not (isinstance(rate, int | float) and 0.0 < rate <= 1.0):
            raise ConfigurationError(f"Poisson(rate): the rate is a probability in (0, 1], got {in_words(rate)}.")
        object.__setattr__(self, "rate", float(rate))
        object.__setattr__(self, "num_data", optional(positive_integer, self.num_data, name="num_data"))
        if not positive(self.overflow_probability, name="overflow_probability") < 1e-3:
            raise ConfigurationError("overflow_probability must lie in (0, 1e-3); leave it out for 1e-22.")

    @classmethod
    @checked
    def of_batch(cls, batch_size: int, num_data: int) -> "Poisson":
        """The rate that draws `batch_size` of `num_data` rows on average; `num_data` becomes declared and public."""
        if not 0 < batch_size <= num_data:
            raise ConfigurationError("Poisson.of_batch(batch_size, num_data) needs 0 < batch_size <= num_data.")
        return cls(batch_size / num_data, num_data=num_data)

    @property
    def failure_probability(self) -> float:
        """Bound on the total variation between a step's rows and exact Poisson sampling, for any number of rows.

        Exact means at `rate`, or less than 2^-64 below it, which costs no more. 2^-160 bounds the rounding of the
        table of batch sizes."""
        return 0.0 if self.rate == 1.0 else 3.0 * max(self.overflow_probability, 2.0**-160)

    @property
    def event_fields(self) -> Document:
        return {"sampling_rate": self.rate}

    def draw(self, key: jax.Array, num_rows: int, step: Step = 0) -> Selection:
        """Rows of one step. Cost does not grow with `num_rows` when the rate is small."""
        if self.num_data not in (None, num_rows):
            raise ConfigurationError(
                f"Poisson.of_batch was given num_data={self.num_data}, and there are {num_rows} rows (or units), so batches have "
                f"another size: give num_data={num_rows}."
            )
        if self.rate == 1.0:
            return Selection(None, None)
        key = jax.random.fold_in(key, step)
        if self.batch_cap(num_rows) is None:
            return draw_dense(key, num_rows, self.rate)
        return draw_sparse(key, num_rows, self.rate, *sparse_sizes(self.rate, num_rows, self.overflow_probability))

    def draw_part(self, key: jax.Array, num_rows: int, step: Step, first: jax.Array, length: int) -> Selection:
        if self.rate == 1.0 or self.batch_cap(num_rows) is not None:
            return self.draw(key, num_rows, step)
        return draw_dense(jax.random.fold_in(key, step), num_rows, self.rate, first, length)

    def batch_cap(self, num_rows: int) -> int | None:
        """The most rows of a step that sparse sampling has room for; None where every row is drawn on its own."""
        cap, tries = sparse_sizes(self.rate, num_rows, self.overflow_probability)
        return None if self.rate == 1.0 or tries > 0.75 * num_rows else cap

    def likely_places(self, num_rows: int) -> int | None:
        mean = self.rate * num_rows
        return int(mean * (1.0 + 0.5 * self.rate) + 2.0 * mean**0.5) + 1  # repeated rows leave places empty

    def describe(self) -> str:
        """One line for the report."""
        return (
            f"Poisson, rate {self.rate:.6g}, drawn exactly; overflow of the cap on a step's rows charged to delta "
            f"(at most {self.failure_probability:.1e} a step)"
        )


def draw_dense(
    key: jax.Array, num_rows: int, rate: float, first: int | jax.Array = 0, length: int | None = None
) -> Selection:
    """One 64-bit threshold comparison a row; the rate is rounded down to a multiple of 2^-64, never up.

    Rows are drawn in blocks of _BLOCK, each block with a key of its own. So a device draws only the blocks of its `length` rows
    from `first` on."""
    numerator, denominator = rate.as_integer_ratio()
    threshold = numerator * 2**64 // denominator
    high, low = np.uint32(threshold >> 32), np.uint32(threshold & 0xFFFFFFFF)

    def drawn(key: jax.Array, size: int) -> jax.Array:
        words = jax.random.bits(key, (2, size), jnp.uint32)
        return (words[0] < high) | ((words[0] == high) & (words[1] < low))

    if num_rows <= _BLOCK:
        mask = drawn(key, num_rows)
        return Selection(
            None, mask if length is None else lax.dynamic_slice_in_dim(jnp.pad(mask, (0, length)), first, length)
        )
    start, offset = jnp.divmod(jnp.asarray(first, jnp.int32), _BLOCK)
    count = -(-num_rows // _BLOCK) if length is None else -(-length // _BLOCK) + 1
    blocks = lax.map(lambda block: drawn(jax.random.fold_in(key, block), _BLOCK), start + jnp.arange(count))
    mask = lax.dynamic_slice_in_dim(blocks.reshape(-1), offset, num_rows if length is None else length)
    return Selection(None, mask if length is None else mask & (first + jnp.arange(length, dtype=jnp.int32) < num_rows))


def draw_sparse(key: jax.Array, num_rows: int, rate: float, cap: int, tries: int) -> Selection:
    """The batch size from its binomial distribution, then a uniformly random subset of that size.

    The first n distinct values of a sequence of independent uniform draws are a uniformly random subset of size n.
    Draws are 32-bit words with rejection, so uniform without bias; a repeated or rejected one is masked out."""
    words = jax.random.bits(key, (tries + SAMPLING_BITS // 32,), jnp.uint32)
    smallest, table = _binomial_thresholds(rate, num_rows, cap)
    size = smallest + jnp.sum(_at_least(words[: SAMPLING_BITS // 32], table))
    return distinct_rows(words[SAMPLING_BITS // 32 :], num_rows, size)


def _at_least(words: jax.Array, table: Table) -> jax.Array:
    """Whether the number `words` (W,) uint32, most significant first, is at least each row of `table` (K, W)."""
    result = jnp.ones(table.shape[0], bool)
    for digit in reversed(range(words.shape[0])):
        result = (words[digit] > table[:, digit]) | ((words[digit] == table[:, digit]) & result)
    return result


@functools.lru_cache(maxsize=32)
def _binomial_thresholds(rate: float, num_rows: int, cap: int) -> tuple[int, Table]:
    """(smallest, table): P(Binomial(num_rows, rate) <= k) for smallest <= k < cap as 192-bit integers, (K, 6) uint32.

    Weights are 256-bit integers built from the mode by the exact ratio of neighbouring probabilities, so a threshold
    is wrong by less than 2^-191 and the table by less than cap * 2^-191 in total variation."""
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
    return smallest, table


@functools.lru_cache(maxsize=32)
def sparse_sizes(rate: float, num_rows: int, overflow_probability: float) -> tuple[int, int]:
    """(cap, tries): P(Binomial(num_rows + 1, rate) > cap) and P(fewer than cap distinct rows in `tries` draws)
    are each at most `overflow_probability`."""
    from scipy import stats

    cap = min(smallest_meeting(lambda k: stats.binom.sf(k, num_rows + 1, rate) <= overflow_probability, 1), num_rows)
    return cap, tries_needed(cap, num_rows, overflow_probability)
