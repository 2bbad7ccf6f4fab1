"""Rows that were clipped and rows that do not inform the posterior, from one noised count of each kind."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dpppl.access.clipping import COUNT_SENSITIVITY, Centred, Flat
from dpppl.findings.finding import Finding, Found, Level, Verdict, care, note

IGNORED = "do not read: rows are ignored"
MOST = 0.5
SHARE, STANDS_OUT = 0.01, 4.0
"""The smallest share of rows that is reported, and by how many sds of its noise it must exceed 0.

By chance three counts of which all are 0 exceed 4 sd in 1 of 10,000 runs."""


_MISSING = (
    "model missing covariates by obs_mask=ok, mask missing responses (page Missing values), and correct other rows. Dropping "
    "rows biases estimates where the response decides what is missing."
)
_UNKNOWN = 1.0
"""An error of a share of rows that leaves it unknown."""


def stands_out(share: float, std: float) -> bool:
    """Whether a noised share of rows is large enough to report, and larger than noise explains.

    >>> stands_out(0.16, 0.038), stands_out(0.142, 0.038), stands_out(0.009, 0.0001)
    (True, False, False)"""
    return share > max(SHARE, STANDS_OUT * std)


@dataclass(frozen=True, kw_only=True)
class CountedRows(Verdict):
    """Noised shares of rows that do not inform the posterior. Each row is of one kind at most.

    - **outside** - share of rows whose response is outside the support of its distribution, or whose ids are out of range; None
      where `missing` includes them.
    - **missing** - share of other rows whose gradient is not finite.
    - **silent** - share of rows whose gradient is 0.
    - **std** - standard deviation of the noise of each share.
    - **codes** - the values that observed sites and ids take, and how arguments are read; see `supports.codes`.
    - **octaves** - where noise hides the norms of the rows, the sd of their logarithm; else None."""

    outside: float | None
    missing: float
    silent: float
    std: float
    codes: tuple[str, ...] = ()
    octaves: float | None = None

    otherwise = "the model uses all rows"

    @property
    def findings(self) -> list[Finding]:
        """Rows that the model cannot use, which refuse the run; then rows without a gradient, which are no error where the model
        masks them, and which explain other findings where they are most of the rows; and a clipping norm that is a guess."""
        lines, codes = [], "; ".join(self._known[0])
        hidden = f"they have {self._wrong} ({codes})" if self.outside is None and codes else ""
        if self.outside is not None and stands_out(self.outside, self.std):
            words = f"{self._share(self.outside)} of the rows have {self._wrong}: {codes}."
            lines.append(Finding(Level.REFUSED, words, of_rows=True))
        if stands_out(self.missing, self.std):
            read = self._known[1]
            words = (
                f"{self._share(self.missing)} of the rows are ignored: {hidden and f'{hidden}, or '}they hold missing values "
                f"(NaN), or their gradient is not finite, as at an exposure of 0 or of numbers "
                f"whose squares overflow{''.join(f'. {each[0].upper()}{each[1:]}' for each in read)}"
            )
            lines.append(Finding(Level.REFUSED, words, _MISSING, of_rows=True))
        if stands_out(self.silent, self.std):
            words = (
                f"{self._share(self.silent)} of the rows have a gradient of 0{' at the start' * (self.outside is not None)}: "
                f"they are masked, or all of their covariates are 0{hidden and f', or {hidden}'}"
            )
            cure = "if the model should use these rows, check its mask and the coding of its columns."
            lines.append(Finding(Level.NOTE, words, cure, of_rows=self.silent > MOST))
        if self.octaves is not None:
            words = (
                f"noise hides the norms of the rows' gradients (known to a factor of {2.0 ** min(self.octaves, 20.0):.1g}): "
                'clipping_norm="auto" chose a norm that fits the prior\'s scale'
            )
            lines.append(Finding(Level.NOTE, words, "give the norm as a number, or raise the budget."))
        return lines

    @property
    def warnings(self) -> list[str]:
        """`findings` as sentences of a report."""
        words = {Level.REFUSED: "Do not read the posterior: "}
        lines = (words.get(finding.level, "") + str(finding) for finding in self.findings)
        return [f"{line[0].upper()}{line[1:]}" for line in lines]

    def __str__(self) -> str:
        kinds = {"not finite": self.missing, "gradient 0": self.silent}
        kinds = kinds if self.outside is None else {"outside the support": self.outside} | kinds
        if self.std >= 1.0:
            return "hidden by the noise: its sd is above the number of rows"
        return told_shares(kinds, self.std)

    @property
    def _known(self) -> tuple[list[str], list[str]]:
        """The `codes` on values that a model takes, and those on how arguments are read."""
        read = [code for code in self.codes if code.startswith("argument ")]
        return [code for code in self.codes if code not in read], read

    @property
    def _wrong(self) -> str:
        """Name the fault of rows that do not fit `codes`."""
        are_ids = [code.startswith(("ids ", "numbers cast ")) for code in self._known[0]]
        kinds = {"responses outside the support": not are_ids or not all(are_ids), "ids out of range": any(are_ids)}
        return " or ".join(kind for kind, is_wrong in kinds.items() if is_wrong)

    def _share(self, share: float) -> str:
        return f"{_percent(share)} ± {self.std:.1%}"


def told_shares(kinds: Mapping[str, float], std: float) -> str:
    """Noised shares of rows with their kinds: "none" where noise explains them.

    >>> told_shares({"not finite": -0.002, "gradient 0": 0.25}, 0.004)
    'not finite none, gradient 0 25.0% of the rows, each ± 0.4%'"""
    shares = (f"{name} {'none' if share < 2.0 * std else _percent(share)}" for name, share in kinds.items())
    return f"{', '.join(shares)} of the rows, each ± {std:.1%}"


def _percent(share: float) -> str:
    """A noisy share, as the nearest one that is possible."""
    return f"{min(1.0, max(0.0, share)):.1%}"


COUNT_SHARE = 0.01
"""The share of a run's cost, in mu^2, that `measure_clipping` spends."""
BIASED = "biased by clipping"
LITTLE, ALL = 0.6, 0.98
"""Shares of the information: estimates of a run that holds less than the first may be far off; less than the second is told."""
_REMEDY = 'clipping="centred" removes the bias where the model can be simulated, a larger clipping_norm lessens it'


@dataclass(frozen=True, kw_only=True)
class ClippedRows:
    """The measured share of clipped rows.

    - **share** - an estimate of it.
    - **error** - standard deviation of the estimate's noise.
    - **num_rows** - number of rows."""

    share: float
    error: float
    num_rows: int

    @property
    def is_biased(self) -> bool:
        """Whether more rows were clipped than a posterior of N rows hides: above N^(-1/2)."""
        return self.share - 2.0 * self.error > self.num_rows**-0.5

    def __str__(self) -> str:
        share = min(1.0, max(0.0, self.share))
        if self.error > _UNKNOWN:
            return "noise hides how many rows were clipped"
        line = f"about {share:.1%} ± {self.error:.1%} of rows were clipped"
        return f"{line}: {_REMEDY}" if self.is_biased else line


def count_share_of(clipping: Flat, measure: bool, has_histogram: bool) -> float:
    """The share of an access's cost that counts of rows take: none where clipping is centred and a histogram counts rows."""
    return COUNT_SHARE if measure and not (has_histogram and isinstance(clipping, Centred)) else 0.0


def rows_of(
    counts: Iterable[float], error: float, clipping: Flat, num_rows: int, codes: tuple[str, ...]
) -> tuple[ClippedRows | None, CountedRows]:
    """Clipped rows, None where clipping is centred, and rows that do not inform a posterior.

    - **counts** - noised counts (NUM_COUNTS,), means over steps, as shares of the rows that a step draws.
    - **error** - standard deviation of the noise of each."""
    clipped, *apart = (float(count) for count in counts)
    std = error / COUNT_SENSITIVITY
    missing, silent = (count / COUNT_SENSITIVITY for count in apart)
    counted = CountedRows(outside=None, missing=missing, silent=silent, std=std, codes=codes)
    if isinstance(clipping, Centred):
        return None, counted
    speaking = 1.0 - sum(share for share in (missing, silent) if stands_out(share, std))
    return ClippedRows(share=0.5 * speaking + clipped, error=error, num_rows=num_rows), counted


def of_information(informed: float) -> Found:
    """Say that clipping took, and noise hid, all of the information but the share `informed`."""
    held = f"clipped scores hold {informed:.0%} of the information"
    if informed < LITTLE:
        few = "few rows hold the rest, as rare events do, so means may be off and intervals too wide"
        yield care(
            f"{held}: {few}", "use a larger epsilon or more rows, merge rare categories, or take dpppl.NoiseAware."
        )
    elif informed < ALL:
        yield note(
            f"{held}: the interval of a latent that few rows inform, as a rare category's, may be several times too wide"
        )
