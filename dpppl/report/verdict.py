"""One answer to "may these results be read?", which MCMC, SVI and NoiseAware give alike."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from dpppl.errors import UnconvergedWarning, warn
from dpppl.report import render

Array = np.ndarray
REFUSED = "do not read"
"""The word for each element where the whole run is refused: how much the data informed it is not to be read either."""


class Verdict(Protocol):
    """One verdict on the results of a run, for all methods. Computed from releases: free."""

    @property
    def refusals(self) -> Sequence[str]:
        """Why the results should not be read, the cause of others first; empty where they may be."""

    @property
    def by_site(self) -> Mapping[str, Array]:
        """A word for each element of each site."""

    def line(self) -> str:
        """The worst of all findings, in one line."""


def line_of(refusals: Sequence[str], doubts: Sequence[str], otherwise: str) -> str:
    """The line of a verdict: "do not read: ...", "read with care: ..." or, without a finding, "read: ..."."""
    found = refusals or doubts
    if not found:
        return f"read: {otherwise}"
    more = len(refusals) + len(doubts) - 1
    rest = f" ({more} more {'finding' if more == 1 else 'findings'})" if more else ""
    return f"{REFUSED if refusals else 'read with care'}: {found[0]}{rest}"


def html_of(verdict: Verdict) -> str:
    """For notebooks: the line, the other refusals, and how many elements of each site have which word."""
    words = {site: np.unique(found.astype(str), return_counts=True) for site, found in verdict.by_site.items()}
    rows = [(site, ", ".join(f"{count} {word}" for word, count in zip(*found))) for site, found in words.items()]
    others = verdict.refusals[1:]
    return render.summary(verdict.line(), rows, [("Warnings", list(others))] if others else [], "Words by site")


def warn_of(refusals: Sequence[str], call: str, allow_unconverged: bool) -> None:
    """Warn where results are refused; `call`: what returns them without a warning."""
    if refusals and not allow_unconverged:
        warn(
            f"these results should not be read: {refusals[0]} {call} returns them without this warning.",
            UnconvergedWarning,
        )
