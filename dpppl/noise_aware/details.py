"""Whether a posterior may be read: verdicts from what was released, and the lines that the report adds."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dpppl.model_refusals import quoted
from dpppl.noise_aware.curvature import Array
from dpppl.noise_aware.recipe import Known, Prior, Stage
from dpppl.noise_aware.statistics import BESIDE_FIT, FIT

ARRIVED, AGREEMENT, SCATTER = 2.0, 4.0, 0.1
MISFIT, SURE = 0.02, 9.2
MANY, BLURRED = 20, 0.5
_VARIANCES = (1 / 12 + 1 / 28, 1 / 3 + 1 / 7)  # of moments of a rank in a continuous law


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the releases say of a run.

    `arrival`: the largest distance, in sd, from where the last gradients were taken to the posterior mean. `agreement`:
    that between the last two stages' means, in sd of the earlier. `chi_squared`: the scatter of gradients in units of their
    known noise, with its `degrees` of freedom. `rank`: the mean rank of responses, by surprise, among those that the model
    gives in their place, .5 where it is right, with its standard error. `fit`: of moments of that rank, how far they are
    from the model's and the same in squared standard errors, chi-squared with 2 degrees of freedom. `clipped`: shares of
    rows whose score and whose curvature was clipped, and their standard error. `learned`: by latent, 1 - posterior / prior
    variance. `norms`: the last stage's bounds. `curvature`: which of it was released. `sampler`: what is wrong with the
    draws from the posterior that the releases give, if anything. `blurred`: sites of many coordinates that differ by little more
    than they are known by; `through`: the latents that the likelihood knows only through coordinates."""

    arrival: float
    agreement: float
    chi_squared: float
    degrees: int
    rank: tuple[float, float]
    fit: tuple[float, float]
    clipped: tuple[float, float, float]
    learned: dict[str, float] = field(repr=False)
    norms: tuple[float, float]
    curvature: str = "full"
    sampler: str | None = None
    blurred: tuple[str, ...] = ()
    through: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        stages: Sequence[Stage],
        found: Known,
        scalars: Array,
        scalar_std: float,
        prior: Prior,
        names: Sequence[str],
        num_rows: int,
    ) -> "Verdict":
        """`found`: moments of the posterior; `scalars`: see `RowStatistics.scalars`; `scalar_std`: of their noise."""
        before, sd = stages[-2].belief, np.sqrt(found.variance)
        point = stages[-1].surrogate.point(prior.mean)
        moments, beside = scalars[:2] / (FIT * num_rows), scalars[2:] / (BESIDE_FIT * num_rows)
        std, beside_std = scalar_std / (FIT * num_rows), scalar_std / (BESIDE_FIT * num_rows)
        variances = np.minimum(_VARIANCES, np.maximum(beside[:2], 0.0) + 2.0 * beside_std)
        # Scores explain no more of the moments than there is; off the truth, these have other means by as much.
        moments_std = np.sqrt(std**2 + variances / num_rows * (1.0 + stages[-1].excess))
        rank = np.array([0.5, 0.25])
        share = np.clip(beside[2:], 0.0, 1.0)
        learned = 1.0 - found.variance / prior.variance
        return cls(
            arrival=float(np.max(np.abs(found.mean - point) / sd)),
            agreement=float(np.max(np.abs(found.mean - before.mean) / np.sqrt(before.variance))),
            chi_squared=stages[-1].chi_squared,
            degrees=stages[-1].degrees,
            rank=(0.5 + float(rank @ moments), float(np.linalg.norm(rank * moments_std))),
            fit=(float(np.linalg.norm(moments)), float(np.sum((moments / moments_std) ** 2))),
            clipped=(float(share[0]), float(share[1]), beside_std),
            learned=dict(zip(names, map(float, learned))),
            norms=(stages[-1].norm, stages[-1].bound),
            curvature=prior.curvature,
            blurred=blurred(found, names),
        )

    @property
    def refusals(self) -> list[str]:
        """Why the samples should not be read at all."""
        cure = "raise the budget, give the latents narrower priors, or fewer of them"
        lines = []
        if not self.arrival < ARRIVED:
            lines.append(f"the gradients were taken {self.arrival:.1f} sd away from the posterior mean: {cure}.")
        if not self.agreement < AGREEMENT:
            lines.append(f"the last two stages disagree by {self.agreement:.1f} sd: {cure}.")
        if not self.chi_squared < 1.0 + SCATTER + 4.0 * np.sqrt(2.0 / self.degrees):
            lines.append(
                f"gradients scatter {self.chi_squared:.2f} times as widely as their noise: the likelihood is not near "
                f"quadratic where they were taken; {cure}, or transform the latents."
            )
        return (
            lines if self.sampler is None else [*lines, f"{self.sampler}: write the model with better scaled latents."]
        )

    @property
    def misfit(self) -> str | None:
        """What the responses' ranks say against the model: in one run of 100 by chance."""
        departure, chi_squared = self.fit
        if chi_squared < SURE or departure < MISFIT:
            return None
        return (
            f"the model is wrong: by surprise, responses rank {self.rank[0]:.3f} ± {self.rank[1]:.3f} among its own (more than "
            f".5 if they are more dispersed), and their ranks are not uniform (chi-squared {chi_squared:.0f} of 2 degrees); "
            "clipping is centred on what the model expects, so estimates move; use a richer model."
        )

    @property
    def released(self) -> str | None:
        """What of the curvature was not."""
        if self.curvature == "full":
            return None
        return (
            f"curvature released in {self.curvature}: samples know no correlations between blocks but a few directions."
        )

    @property
    def spreads(self) -> str | None:
        """Which latents may be too small, if any."""
        if not (self.blurred and self.through):
            return None
        return (
            f"values of {quoted(self.blurred)} differ by little more than they are known by: an sd among them may come out "
            f"too small, if {quoted(self.through)} is one, and outlying values are drawn in too far; raise the budget, or "
            "form fewer and larger groups."
        )

    def share_learned(self) -> list[tuple[str, str]]:
        """For each latent whether it is "prior", "partly" or "learned"."""
        word = lambda share: "prior" if share < 0.1 else "learned" if share > 0.5 else "partly"  # noqa: E731
        return [(name, word(share)) for name, share in self.learned.items()]

    def line(self) -> str:
        """In one line."""
        return f"do not read: {self.refusals[0]}" if self.refusals else "read: the releases agree with each other"


def blurred(found: Known, names: Sequence[str]) -> tuple[str, ...]:
    """The sites of at least 20 coordinates whose means have an sd of less than twice their median sd."""
    sites = np.array([name.split("[")[0] for name in names])
    members = {str(site): np.flatnonzero(sites == site) for site in dict.fromkeys(sites)}
    sd = np.sqrt(found.variance)
    return tuple(
        site
        for site, own in members.items()
        if len(own) >= MANY and np.median(sd[own]) > BLURRED * np.std(found.mean[own])
    )


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
                f"responses rank {v.rank[0]:.3f} ± {v.rank[1]:.3f} by surprise (.5 expected); chi-squared {v.fit[1]:.1f} of 2",
            ),
            ("latents", ", ".join(f"{words.count(w)} {w}" for w in ("learned", "partly", "prior"))),
        ]

    def warnings(self) -> list[str]:
        """See `Details`."""
        if self.verdict is None:
            return []
        doubts = [self.verdict.misfit, self.verdict.spreads]
        return [*(f"Do not read the samples: {line}" for line in self.verdict.refusals), *filter(None, doubts)]

    def assumptions(self) -> list[str]:
        """See `Details`."""
        return [
            "The posterior is for data that the model describes; its clipping is centred on the model's own responses.",
            "Bounds were found from private histograms, or given.",
        ]
