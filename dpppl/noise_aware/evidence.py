"""Numbers on a run of NoiseAware, from its releases."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from dpppl.findings.counted_rows import STANDS_OUT
from dpppl.findings.verdict import Array
from dpppl.noise_aware.coordinates import Known, Prior
from dpppl.noise_aware.fit import Fit, Scalars
from dpppl.noise_aware.posterior import Mixture
from dpppl.noise_aware.recipe import Stage

MANY, BLURRED = 20, 0.5
HARM = 1.0  # posterior sds
CUT = 0.05
"""The most that may be clipped off scores where a model that does not fit is a note: of more, a histogram's noise hides tails."""
IMPOSSIBLE, LEARNED = 0.002, 0.1


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


MODELLED = Widths()


def blurred(found: Known, names: Sequence[str]) -> tuple[str, ...]:
    """The sites of at least 20 coordinates whose means have an sd of less than twice their median sd."""
    sites, sd = np.array([name.split("[")[0] for name in names]), np.sqrt(found.variance)
    members = {str(site): np.flatnonzero(sites == site) for site in dict.fromkeys(sites)}
    many = {site: own for site, own in members.items() if len(own) >= MANY}
    return tuple(site for site, own in many.items() if np.median(sd[own]) > BLURRED * np.std(found.mean[own]))


@dataclass(frozen=True, kw_only=True)
class Evidence(Fit):
    """Numbers on a run, from its releases, with those of `Fit`.

    - **arrival** - the largest distance, in sd, from where the last gradients were taken to the posterior mean.
    - **agreement** - that between the last two stages' means, in sd of the earlier.
    - **chi_squared** - the scatter of gradients in units of their known noise.
    - **degrees** - the degrees of freedom of that.
    - **cut** - the part of scores that was clipped, over scores, by root mean squares: `harm` times this is how far estimates
      may lie from those of the same model without clipping.
    - **learned** - by latent, 1 - posterior / prior variance.
    - **norms** - the last stage's bounds.
    - **stages_learned** - the mean of `learned` in the last two stages.
    - **sides** - latents that the likelihood bounds less, or more, on one side of the mean than the posterior has it, each
      with its sd below and above the mean, in units of the stated one.
    - **resolved** - how far draws of the curvature agree on the directions that were learned, from 0 to 1.
    - **hidden** - how much better than the prior the data may know a direction that noise hides; see `Release.hidden`.
    - **farthest** - the latent that lies farthest from its prior mean, and how far, in prior sd.
    - **curvature** - which part of it was released.
    - **sampler** - what is wrong with the draws from the posterior that the releases give, or None.
    - **blurred** - sites of many coordinates that differ by little more than they are known by.
    - **through** - the latents that the likelihood knows through coordinates only.
    - **beyond** - by site of the other latents "learned", "partly" or "prior" for each element, from draws, (elements,).
    - **symmetric** - the latents that may change places or signs without a change of the model, in words.
    - **unnamed** - how to name values through which alone rows know latents; see `unnamed`.
    - **codes** - which values the observed sites take; see `supports.codes`.
    - **in_units** - whether a row is a unit of several.
    - **has_columns** - whether numbers of a row enter the law of its responses; see `SplitModel`.
    - **widths** - what the released variance of scores says beside the model's."""

    arrival: float
    agreement: float
    chi_squared: float
    degrees: int
    learned: dict[str, float] = field(repr=False)
    norms: tuple[float, float]
    cut: float = 1.0
    sides: tuple[tuple[str, float, float], ...] = ()
    stages_learned: tuple[float, float] = (0.0, 0.0)
    resolved: float = 1.0
    hidden: float = 0.0
    farthest: tuple[str, float] = ("", 0.0)
    curvature: str = "full"
    sampler: str | None = None
    blurred: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    beyond: dict[str, Array] = field(default_factory=dict, repr=False)
    symmetric: tuple[str, ...] = ()
    unnamed: str | None = None
    codes: tuple[str, ...] = ()
    in_units: bool = False
    has_columns: bool = True
    widths: Widths = MODELLED

    @classmethod
    def from_releases(
        cls, stages: Sequence[Stage], found: Known, scalars: Scalars, scalar_std: float, prior: Prior, names: Sequence[str],
        num_rows: int,
    ) -> Self:  # fmt: skip
        """`found`: moments of the posterior; `scalar_std`: of the noise of `scalars`."""
        (*_, before, last), sd = stages, np.sqrt(found.variance)
        along = ["", *(names[number] for number in scalars.coordinates)]
        num_flags = len(scalars.values) - 10 - len(along)
        fit = Fit.from_sums(scalars.values, scalar_std, num_rows, last.excess, along, num_flags, last.sampled)
        distance = np.abs(found.mean - prior.mean) / np.sqrt(prior.variance)
        share = lambda known: 1.0 - known.variance / prior.variance  # noqa: E731
        return cls(
            **vars(fit), chi_squared=last.chi_squared, degrees=last.degrees, cut=last.cut, resolved=last.resolved,
            hidden=last.hidden, norms=(last.norm, last.bound), curvature=prior.curvature, widths=Widths.of(last, prior, names),
            arrival=float(np.max(np.abs(found.mean - last.surrogate.point(prior.mean)) / sd)),
            agreement=float(np.max(np.abs(found.mean - before.belief.mean) / np.sqrt(before.belief.variance))),
            sides=() if last.sides is None else last.sides.named(names),
            learned=dict(zip(names, map(float, share(found)))),
            stages_learned=(float(np.mean(share(before.belief))), float(np.mean(share(last.belief)))),
            farthest=(names[int(np.argmax(distance))], float(np.max(distance))), blurred=blurred(found, names),
        )  # fmt: skip

    @property
    def is_prior(self) -> bool:
        """Whether nothing was learned."""
        return bool(self.learned) and max(self.learned.values()) < LEARNED

    @property
    def is_wrong(self) -> bool:
        """Whether a departure from the model may have moved estimates, or was measured between modes of a symmetric model."""
        return self.moved >= HARM or self.cut >= CUT or self.has_impossible or bool(self.symmetric)

    @property
    def moved(self) -> float:
        """How far a departure from the model moves estimates away from those without clipping, at most, in posterior sds.

        By Cauchy and Schwarz: a law whose densities under the model's have the relative variance V changes the mean of what is
        clipped off a score by at most V^(1/2) times its sd."""
        return max(self.harm) * self.cut

    @property
    def has_impossible(self) -> bool:
        """Whether more responses are next to impossible than noise explains."""
        share, std = self.impossible
        return share >= IMPOSSIBLE and share >= STANDS_OUT * std and not self.in_units

    @property
    def released(self) -> str | None:
        """A sentence on the part of the curvature that was not released; None where all of it was."""
        words = (
            f"curvature released in {self.curvature}: samples know no correlations between blocks but a few directions."
        )
        return None if self.curvature == "full" else words
