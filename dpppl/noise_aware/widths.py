"""Two widths: by the variance of scores that rows have, and by the model's."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.posterior import Mixture
from dpppl.noise_aware.prior import Prior
from dpppl.noise_aware.recipe import Stage
from dpppl.report.counted_rows import STANDS_OUT

MOST_DISPERSED = 1.1
PSEUDO_TRUE = (
    "the model is wrong by the ranks of responses: intervals are for its pseudo-true value, at which clipped scores have mean "
    "zero, and predictions of single rows are not calibrated."
)


class Widths(NamedTuple):
    """Findings from the released variance of scores.

    - **ratio** - by what the model's variance of scores is multiplied to be nearest to the released one. At most 1 where the
      model is right.
    - **std** - its standard error by noise.
    - **latent** - the latent whose sd changes most if the model's variance is used.
    - **wider** - its sd over that with the model's variance.
    - **is_sandwich** - whether the sds come from the released variance whatever the model says."""

    ratio: float = 1.0
    std: float = 0.0
    latent: str = ""
    wider: float = 1.0
    is_sandwich: bool = False

    @classmethod
    def of(cls, last: Stage, prior: Prior, names: Sequence[str]) -> "Widths":
        """From the last stage."""
        if last.modelled is None:
            return cls()
        released, modelled = (Mixture.of(s, prior).moments().variance for s in (last.surrogate, last.modelled))
        ratios = np.sqrt(released / modelled)
        number = int(np.argmax(np.abs(np.log(ratios))))
        return cls(*last.dispersion, names[number], float(ratios[number]))

    @property
    def doubt(self) -> str | None:
        """Whether scores vary by more than the model and the noise of the release explain."""
        if not self.ratio - STANDS_OUT * self.std > MOST_DISPERSED:
            return None
        cure = "" if self.is_sandwich else '; NoiseAware(..., width="sandwich") counts it in full'
        return (
            f"scores vary {self.ratio:.1f} ± {self.std:.1f} times as much as under the model, and the sd of '{self.latent}' is "
            f"{self.wider:.1f} times the model's: responses are more dispersed, or rows of a unit correlated{cure}."
        )

    def described(self) -> str:
        """A line of the report."""
        return (
            f"{self.ratio:.2f} ± {self.std:.2f} times the model's (at most 1 expected); the sd of '{self.latent}' "
            f"{self.wider:.2f} times that of the model-based width"
        )


MODELLED = Widths()
