"""What the report says of a noise-aware run."""

from dataclasses import dataclass

from dpppl.noise_aware.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class NoiseAwareDetails:
    """What the report says of a noise-aware run."""

    num_accesses: int
    verdict: Verdict | None = None

    def rows(self) -> list[tuple[str, str]]:
        """See `Details`."""
        lines = [("accesses", f"{self.num_accesses} a run: histograms, curvatures, gradients, scalars; all charged")]
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
