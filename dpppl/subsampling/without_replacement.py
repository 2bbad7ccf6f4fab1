"""A uniformly random subset of fixed size at every step."""

import warnings
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpppl.errors import ConfigurationError
from dpppl.subsampling.distinct import distinct_rows, tries_needed
from dpppl.subsampling.scheme import Selection, Step, Subsampling
from dpppl.types import Document
from dpppl.validation import checked_type, plain, positive


@checked_type
@dataclass(frozen=True)
class WithoutReplacement(Subsampling):
    """A uniformly random subset of `batch_size` of the `num_data` rows, at every step.

    - **batch_size** - rows of a step.
    - **num_data** - number of rows.
    - **failure_probability** - of a step in total variation, charged to delta.
    - **neighboring_relation** - "replace_one", the only one that is accounted.

    Accounted by RDP under the replace-one relation, where a row moves the sum by 2 * clipping_norm: dear. At rate .01,
    noise multiplier 1 and 1,000 steps epsilon is about 21, against 2.8 for Poisson sampling under replace-one. Raises
    ConfigurationError unless 0 < batch_size <= num_data, and when a run has another number of rows than num_data.

    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     WithoutReplacement(10, 1000).rate
    0.01
    """

    batch_size: int
    num_data: int
    failure_probability: float = 1e-22
    neighboring_relation: str = "replace_one"

    def __post_init__(self) -> None:
        sizes = [plain(self.batch_size), plain(self.num_data)]
        if not all(type(size) is int for size in sizes) or not 0 < sizes[0] <= sizes[1]:
            raise ConfigurationError(
                "WithoutReplacement(batch_size, num_data) needs 0 < batch_size <= num_data, integers."
            )
        for name, size in zip(("batch_size", "num_data"), sizes):
            object.__setattr__(self, name, size)
        if not positive(self.failure_probability, name="failure_probability") < 1e-3:
            raise ConfigurationError("failure_probability must lie in (0, 1e-3); leave it out for 1e-22.")
        if self.neighboring_relation != "replace_one":
            raise ConfigurationError("WithoutReplacement is accounted under the replace-one relation only.")
        warnings.warn(
            "fixed-size batches without replacement cost far more privacy than Poisson(rate) of the same rate.",
            stacklevel=3,
        )

    @property
    def rate(self) -> float:
        """The share of the rows that a step uses."""
        return self.batch_size / self.num_data

    @property
    def event_fields(self) -> Document:
        return {"batch_size": self.batch_size, "num_data": self.num_data}

    def draw(self, key: jax.Array, num_rows: int, step: Step = 0) -> Selection:
        if num_rows != self.num_data:
            raise ConfigurationError(
                f"WithoutReplacement was given num_data = {self.num_data}, but there are {num_rows} rows. Under the "
                "replace-one relation the number of rows is public: give it exactly."
            )
        if self.batch_size == num_rows:
            return Selection(None, None)
        fewer = min(self.batch_size, num_rows - self.batch_size)
        tries = tries_needed(fewer, num_rows, self.failure_probability)
        words = jax.random.bits(jax.random.fold_in(key, step), (tries,), jnp.uint32)
        chosen = distinct_rows(words, num_rows, fewer)
        if fewer == self.batch_size:
            return chosen
        left_out = jnp.zeros(num_rows, bool).at[chosen.index].max(chosen.mask)
        return Selection(None, ~left_out)

    def describe(self) -> str:
        return f"{self.batch_size} of {self.num_data} rows without replacement at every step (RDP, replace-one)"
