"""One answer to "may these results be read?" for all methods: findings on a run, in one order of precedence."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import ClassVar

import numpy as np

from dpppl.errors import UnconvergedWarning, warn
from dpppl.report import render

Array = np.ndarray
REFUSED = "do not read"
"""The word for each element where the whole run is refused: how much the data informed it is not to be read either."""


class Level(IntEnum):
    """How grave a finding is, the gravest first: results are refused, to be read with care, or as they should be."""

    REFUSED = 0
    CARE = 1
    NOTE = 2


@dataclass(frozen=True)
class Finding:
    """One finding on a run.

    - **level** - how grave it is.
    - **words** - what was found.
    - **cure** - what to do about it; "" where `words` say it.
    - **of_rows** - whether it was measured of the rows, and may explain what else was found."""

    level: Level
    words: str
    cure: str = ""
    of_rows: bool = False

    @classmethod
    def each(cls, level: Level, texts: Iterable[str | None]) -> list["Finding"]:
        """Findings of one level, in these words; those that are None or empty are left out."""
        return [cls(level, text) for text in texts if text]

    def __str__(self) -> str:
        return f"{self.words}; {self.cure}" if self.cure else self.words


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Findings in order of precedence: the gravest first, and of equally grave ones those on rows.

    A finding that may explain another is as grave as the gravest one.

    >>> rows = Finding(Level.NOTE, "all rows are masked", of_rows=True)
    >>> [finding.words for finding in ranked([Finding(Level.CARE, "nothing was learned"), rows])]
    ['all rows are masked', 'nothing was learned']"""
    findings = list(findings)
    worst = min((finding.level for finding in findings), default=Level.NOTE)
    raised = [replace(finding, level=worst) if finding.of_rows else finding for finding in findings]
    return sorted(raised, key=lambda finding: (finding.level, not finding.of_rows))


class Verdict(ABC):
    """One verdict on the results of a run, for all methods. Computed from releases: free."""

    otherwise: ClassVar[str]
    """The words of a run without a grave finding."""

    @property
    @abstractmethod
    def findings(self) -> Sequence[Finding]:
        """All findings, in order of precedence: see `ranked`."""

    @property
    def by_site(self) -> Mapping[str, Array]:
        """A word for each element of each site."""
        return {}

    @property
    def refusals(self) -> list[str]:
        """Why the results should not be read, the cause of others first; empty where they may be."""
        return [str(finding) for finding in self.findings if finding.level == Level.REFUSED]

    @property
    def doubts(self) -> list[str]:
        """Doubts that readers of the results should know."""
        return [str(finding) for finding in self.findings if finding.level == Level.CARE]

    @property
    def lines(self) -> list[str]:
        """All findings, one a line."""
        words = {Level.REFUSED: f"{REFUSED}: "}
        return [f"{words.get(finding.level, '')}{finding}" for finding in self.findings]

    def line(self) -> str:
        """The worst finding, and how many others follow: "do not read: ...", "read with care: ..." or "read: ..."."""
        grave = [finding for finding in self.findings if finding.level < Level.NOTE]
        if not grave:
            return f"read: {self.otherwise}"
        more = len(grave) - 1
        rest = f" ({more} more {'finding' if more == 1 else 'findings'})" if more else ""
        return f"{REFUSED if grave[0].level == Level.REFUSED else 'read with care'}: {grave[0]}{rest}"

    def _repr_html_(self) -> str:
        """For notebooks: the line, the other refusals, and how many elements of each site have which word."""
        words = {site: np.unique(word.astype(str), return_counts=True) for site, word in self.by_site.items()}
        rows = [(site, ", ".join(f"{count} {word}" for word, count in zip(*counts))) for site, counts in words.items()]
        others = self.refusals[1:]
        return render.summary(self.line(), rows, [("Warnings", others)] if others else [], "Words by site")


def warn_of(refusals: Sequence[str], call: str, allow_unconverged: bool) -> None:
    """Warn where results are refused; `call`: what returns them without a warning."""
    if refusals and not allow_unconverged:
        warn(
            f"these results should not be read: {refusals[0]} {call} returns them without this warning.",
            UnconvergedWarning,
        )
