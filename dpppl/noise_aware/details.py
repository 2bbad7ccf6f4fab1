"""The report's lines about a noise-aware run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpppl.noise_aware.releases import MECHANISM
from dpppl.noise_aware.settings import NoiseAwareSettings
from dpppl.noise_aware.verdict import Verdict
from dpppl.runs.budget import Charge, events_of
from dpppl.runs.provenance import Provenance
from dpppl.runs.report import MechanismFacts, PrivacyReport

CLIPPING = "centred on what the model expects of a row; every release in units of its bound, so at most 1 a row"


@dataclass(frozen=True, kw_only=True)
class NoiseAwareDetails:
    """The report's lines about a noise-aware run.

    - **num_accesses** - of one run.
    - **verdict** - of the last run, by its end."""

    num_accesses: int
    verdict: Verdict | None = None

    def rows(self) -> list[tuple[str, str]]:
        """See `Details`."""
        kinds = "histograms, curvatures and their sizes, gradients, scalars"
        lines = [("accesses", f"{self.num_accesses} a run: {kinds}; all charged")]
        if (v := self.verdict) is None:
            return lines
        return [*lines, *v.rows()]

    def warnings(self) -> list[str]:
        """See `Details`."""
        if self.verdict is None:
            return []
        return [*(f"Do not read the samples: {line}" for line in self.verdict.refusals), *self.verdict.doubts]

    def assumptions(self) -> list[str]:
        """See `Details`."""
        return [
            "The posterior is for data that the model describes; its clipping is centred on the model's own responses.",
            "Bounds were found from private histograms, or given; the verdict counts, with noise, the rows that say nothing.",
        ]


def noise_aware_report(
    settings: NoiseAwareSettings, charges: Sequence[Charge], provenance: Provenance, verdict: Verdict | None = None
) -> PrivacyReport:
    """The report of what was charged."""
    split = None if settings._coordinates is None else settings._coordinates.split
    num_rows = None if split is None else split.num_rows
    return PrivacyReport(
        method="NoiseAware",
        events=events_of(charges),
        delta=settings.budget.target_delta,
        mechanism=replace(MechanismFacts.of(MECHANISM, num_rows), clipping=CLIPPING),
        provenance=provenance,
        details=NoiseAwareDetails(num_accesses=settings._plan().num_accesses, verdict=verdict),
        num_data=settings.num_data,
        num_rows=num_rows,
        assumed_public=() if split is None else split.assumed_public,
        ledger=settings.budget.ledger_line(),
        unit=settings.unit,
        placement=settings._placement,
    )
