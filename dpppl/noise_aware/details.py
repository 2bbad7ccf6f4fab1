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
        words = [word for _, word in v.share_learned()]
        return [
            *lines,
            ("verdict", v.line()),
            ("bounds", f"clipping_norm {v.norms[0]:.3g}, curvature {v.norms[1]:.3g}, in the last stage's coordinates"),
            (
                "curvature",
                v.curvature if v.released is None else f"{v.curvature}; correlations between them are not released",
            ),
            (
                "rows clipped",
                f"{v.clipped[0]:.0%} (curvature {v.clipped[1]:.0%}) ± {v.clipped[2]:.0%}; centred, so unbiased",
            ),
            (
                "arrival",
                f"{v.arrival:.2f} sd; stages agree within {v.agreement:.2f} sd; chi-squared {v.chi_squared:.2f}",
            ),
            (
                "fit",
                f"responses rank {v.rank[0]:.3f} ± {v.rank[1]:.3f} by surprise (.5 expected); chi-squared {v.fit[1]:.1f} of 2; "
                f"by value {v.link[1]:+.3f} (0 expected), chi-squared {v.link[2]:.1f}, the largest of {v.link[3]}",
            ),
            (
                "rows that say nothing",
                f"{v.outside:.1%} outside the support, {v.missing:.1%} not finite, ± {v.share_std:.1%}; next to impossible "
                f"{v.impossible[0]:.1%} ± {v.impossible[1]:.1%}",
            ),
            ("latents", ", ".join(f"{words.count(w)} {w}" for w in ("learned", "partly", "prior"))),
        ]

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
