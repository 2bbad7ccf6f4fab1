"""Whether clipping that is not centred has biased a posterior, and which rows do not inform it, from noised counts of rows."""

from dataclasses import dataclass
from typing import Any

from dpppl.access.clipping import Adaptive, Centred, Clipping, Normalised
from dpppl.runs.counted_rows import CountedRows, stands_out

COUNT_SHARE = 0.01
"""The share of a run's cost, in mu^2, that `measure_clipping` spends."""
BIASED = "biased by clipping"
_REMEDY = 'clipping="centred" removes the bias where the model can be simulated, a larger clipping_norm lessens it'


@dataclass(frozen=True, kw_only=True)
class ClippedRows:
    """The measured share of clipped rows.

    - **share** - an estimate of it.
    - **error** - standard deviation of the estimate's noise.
    - **num_rows** - number of rows.
    """

    share: float
    error: float
    num_rows: int

    @property
    def is_biased(self) -> bool:
        """Whether more rows were clipped than a posterior of N rows hides: above N^(-1/2)."""
        return self.share - 2.0 * self.error > self.num_rows**-0.5

    def __str__(self) -> str:
        share = min(1.0, max(0.0, self.share))
        line = f"about {share:.1%} ± {self.error:.1%} of rows were clipped"
        return f"{line}: {_REMEDY}" if self.is_biased else line


def count_share_of(clipping: Clipping, measure: bool, has_histogram: bool) -> float:
    """The share of an access's cost that counts of rows take: none where clipping counts by itself, or is centred and a histogram
    counts rows."""
    counts_otherwise = isinstance(clipping, Adaptive) or (has_histogram and isinstance(clipping, Centred))
    return COUNT_SHARE if measure and not counts_otherwise else 0.0


def rows_of(
    counts: Any, error: float, clipping: Clipping, num_rows: int, codes: tuple[str, ...]
) -> tuple[ClippedRows | None, CountedRows]:
    """Clipped rows, None where clipping is centred or changes the length of every row, and rows that do not inform a posterior.

    - **counts** - noised counts (NUM_COUNTS,), means over steps, as shares of the rows that a step draws.
    - **error** - standard deviation of the noise of each.
    - **clipping** - the rule of clipping.
    - **num_rows** - number of rows.
    - **codes** - see `CountedRows`."""
    clipped, *apart = (float(count) for count in counts)
    std = error / clipping.count_sensitivity
    missing, silent = (count / clipping.count_sensitivity for count in apart)
    counted = CountedRows(outside=None, missing=missing, silent=silent, std=std, codes=codes)
    if isinstance(clipping, Centred | Normalised):
        return None, counted
    speaking = 1.0 - sum(share for share in (missing, silent) if stands_out(share, std))
    return ClippedRows(share=clipping.clipped_share(clipped, speaking), error=error, num_rows=num_rows), counted
