"""Every row at every step."""

from dataclasses import dataclass

import jax

from dpppl.errors import ConfigurationError
from dpppl.subsampling.scheme import Selection, Step, Subsampling
from dpppl.validation import checked_type


@checked_type
@dataclass(frozen=True)
class FullBatch(Subsampling):
    """Every row at every step: no amplification, and no minibatch noise in the posterior.

    - **rate** - 1.

    >>> FullBatch().rate
    1.0
    """

    rate: float = 1.0

    def __post_init__(self) -> None:
        if self.rate != 1.0:
            raise ConfigurationError("FullBatch has rate 1; use Poisson(rate) to look at fewer rows.")

    def draw(self, key: jax.Array, num_rows: int, step: Step = 0) -> Selection:
        return Selection(None, None)

    def describe(self) -> str:
        return "full batch: every row at every step"
