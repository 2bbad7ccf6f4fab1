"""Whether clipping that is not centred has biased a posterior, from a noised count of clipped rows."""

from dataclasses import dataclass

from dpppl.access.clipping import Adaptive, Centred, Flat, Normalised, PerSite

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
        """Whether more rows were clipped than a posterior of so many hides: above N^(-1/2)."""
        return self.share - 2.0 * self.error > self.num_rows**-0.5

    def __str__(self) -> str:
        share = min(1.0, max(0.0, self.share))
        line = f"about {share:.1%} ± {self.error:.1%} of rows were clipped"
        return f"{line}: {_REMEDY}" if self.is_biased else line


def count_share_of(clipping: Flat | PerSite | Adaptive, measure: bool) -> float:
    """The share of an access's cost that a count takes: none where clipping is centred, which biases nothing, counts by
    itself, or changes the length of every row."""
    return 0.0 if not measure or isinstance(clipping, Centred | Adaptive | Normalised) else COUNT_SHARE
