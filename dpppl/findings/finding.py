"""One answer to "may these results be read?" for all methods: findings on a run, in one order of precedence."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import ClassVar, TypeVar

import numpy as np

from dpppl.errors import UnconvergedWarning, concluding, warn
from dpppl.report import render
from dpppl.report.labels import NO_LABELS, Labels

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
    - **latent** - the latent, or the sites, that it is about; "" for the whole run.
    - **of_rows** - whether it was measured of the rows, and may explain what else was found."""

    level: Level
    words: str
    cure: str = ""
    latent: str = ""
    of_rows: bool = False

    def __str__(self) -> str:
        return f"{self.words}; {self.cure}" if self.cure else self.words


refused, care, note = (partial(Finding, level) for level in Level)
Found = Iterator[Finding]
Run = TypeVar("Run")


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


def findings_of(run: Run, *checks: Callable[[Run], Iterable[Finding]]) -> list[Finding]:
    """Findings of the checks on a run, in order of precedence; equally grave ones in the order of the checks."""
    return ranked(finding for check in checks for finding in check(run))


class Verdict(ABC):
    """One verdict on the results of a run, for all methods: what its releases say, and findings on that. Free."""

    otherwise: ClassVar[str]
    """The words of a run without a grave finding."""
    labels: Labels = NO_LABELS
    """Of elements."""

    @property
    @abstractmethod
    def findings(self) -> Sequence[Finding]:
        """All findings, in order of precedence: see `findings_of`."""

    def by_label(self, findings: Iterable[Finding]) -> list[Finding]:
        """Findings by the labels of elements."""
        named = self.labels.named
        return [replace(f, words=named(f.words), cure=named(f.cure), latent=named(f.latent)) for f in findings]

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
        return [f"{REFUSED}: {each}" if each.level == Level.REFUSED else str(each) for each in self.findings]

    def line(self) -> str:
        """The worst finding, and how many others follow: "do not read: ...", "read with care: ..." or "read: ..."."""
        first, *others = [each for each in self.findings if each.level < Level.NOTE] or [note(self.otherwise)]
        rest = f" ({len(others)} more {'finding' if len(others) == 1 else 'findings'})" if others else ""
        words = {Level.REFUSED: REFUSED, Level.CARE: "read with care", Level.NOTE: "read"}
        return f"{words[first.level]}: {first}{rest}"

    def __str__(self) -> str:
        """The line, the other findings, and how many elements of each site have which word, one a line."""
        is_worst = any(each.level < Level.NOTE for each in self.findings)
        return "\n".join([self.line(), *self.lines[is_worst:], *(f"{site}: {words}" for site, words in self._counts())])

    def __repr__(self) -> str:
        return str(self)

    def _counts(self) -> list[tuple[str, str]]:
        """How many elements of each site have which word."""
        words = {site: np.unique(word.astype(str), return_counts=True) for site, word in self.by_site.items()}
        return [(site, ", ".join(f"{count} {word}" for word, count in zip(*counts))) for site, counts in words.items()]

    def _repr_html_(self) -> str:
        """For notebooks: the line, the other refusals, and how many elements of each site have which word."""
        others = self.refusals[1:]
        return render.summary(self.line(), self._counts(), [("Warnings", others)] if others else [], "Words by site")


def sites_with(word: str, words: Mapping[str, Array]) -> tuple[int, str]:
    """How many elements have a word, and their names, at most six; a site is named where all of its elements have it.

    - **words** - by site, a word for each element.

    >>> sites_with("read", {"w": np.array(["read", "prior"]), "mu": np.array("read")})
    (2, 'w[0], mu')"""
    has, names = {site: own == word for site, own in words.items()}, list[str]()
    for site, own in has.items():
        names += (
            [site]
            if np.size(own) and np.all(own)
            else [f"{site}[{','.join(map(str, place))}]" for place in np.argwhere(own)]
        )
    return sum(int(np.sum(own)) for own in has.values()), few(names)


def few(names: Sequence[str]) -> str:
    """At most six names.

    >>> few("abcdefg")
    'a, b, c, d, e, f, ...'"""
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def warn_of(refusals: Callable[[], Sequence[str]], call: str, allow_unconverged: bool) -> None:
    """Warn where results are refused; `call`: what returns them without a warning, and without a look at what is refused."""
    if allow_unconverged:
        return
    with concluding("the verdict", f"{call} returns the results without their verdict"):
        found = refusals()
    if found:
        warn(
            f"these results should not be read: {found[0]} {call} returns them without this warning.",
            UnconvergedWarning,
        )
