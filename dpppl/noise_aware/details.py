"""The report's lines about a noise-aware run."""

from dataclasses import dataclass, replace

from dpppl.model.split import SplitModel
from dpppl.noise_aware.releases import MECHANISM
from dpppl.noise_aware.verdict import Verdict
from dpppl.report.report import MechanismFacts
from dpppl.runs.private_runner import Facts

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


def noise_aware_facts(split: SplitModel | None, num_accesses: int, verdict: Verdict | None) -> Facts:
    """The report's lines about runs of a model, with the verdict on the last one.

    - **split** - the model of the last run.
    - **num_accesses** - of one run.
    - **verdict** - on the last run, where it has ended."""
    num_rows = None if split is None else split.num_rows
    mechanism = replace(MechanismFacts.of(MECHANISM, num_rows), clipping=CLIPPING)
    details = NoiseAwareDetails(num_accesses=num_accesses, verdict=verdict)
    return Facts("NoiseAware", mechanism, details, num_rows, () if split is None else split.assumed_public)
