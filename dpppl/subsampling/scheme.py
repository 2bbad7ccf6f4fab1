"""The interface of subsampling schemes: which rows a step draws, and what the accountant must know."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from dpppl.types import Document

Step = int | np.integer | jax.Array
BATCH = "rows are drawn, by subsampling=dpppl.Poisson.of_batch(32, num_data=1_000), 32 of 1,000 on average."
"""What a method says of an argument batch_size."""
Multipliers = NDArray[np.float64]


class Selection(NamedTuple):
    """Rows of one step.

    - **index** - their numbers, (M,) int32; None: all rows in order.
    - **mask** - (M,) bool, which of these count; None: all."""

    index: jax.Array | None  # type: ignore[assignment]
    mask: jax.Array | None


class Subsampling(ABC):
    """How the rows of a step are chosen, and what the accountant must know of it.

    `rate`: the probability that a step uses a given row. `failure_probability`: bound for one step on the total variation
    distance to the stated distribution. `neighboring_relation`: the relation that the accounts hold under."""

    if TYPE_CHECKING:  # fields of some schemes, properties of others

        @property
        def rate(self) -> float: ...

        @property
        def failure_probability(self) -> float: ...
    else:
        failure_probability = 0.0
    neighboring_relation: str = "zero_out"

    @abstractmethod
    def draw(self, key: jax.Array, num_rows: int, step: Step = 0) -> Selection:
        """The rows of the step number `step`, of `num_rows`; `key` is the same at every step of a run."""

    def draw_part(self, key: jax.Array, num_rows: int, step: Step, first: jax.Array, length: int) -> Selection:
        """The same as one of several devices needs it, which has rows `first`, ..., `first` + `length` - 1: a mask without
        an index is that of these rows alone, False beyond the last row."""
        index, mask = self.draw(key, num_rows, step)
        if index is not None or mask is None:
            return Selection(index, mask)
        return Selection(None, lax.dynamic_slice_in_dim(jnp.pad(mask, (0, length)), first, length))

    @abstractmethod
    def describe(self) -> str:
        """One line for the report."""

    @property
    def event_fields(self) -> Document:
        """How the accountant is to treat an access: fields of a GaussianEvent. Empty: a plain Gaussian."""
        return {}

    def batch_cap(self, num_rows: int) -> int | None:
        """The static cap on a step's rows, where one is used: not when each row is drawn on its own."""
        return None

    def likely_places(self, num_rows: int) -> int | None:
        """How many places of an index, from the first, hold all rows of a step in all but about 1 in 40; None: all."""
        return None

    def accounted(self, noise_multipliers: Multipliers, first: int) -> Multipliers:
        """Noise multipliers of the events to compose, from those of the steps first, first + 1, ...: one each."""
        return noise_multipliers
