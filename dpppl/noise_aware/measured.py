"""Numbers on a run, from its releases, by which a posterior may be read or not."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from scipy.special import chdtrc

from dpppl.findings.counted_rows import STANDS_OUT
from dpppl.findings.directions import known_together
from dpppl.findings.finding import Array
from dpppl.findings.learned import SMALLEST_SHARE
from dpppl.noise_aware.curvature import dispersion
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.recipe import RecipeOutcome
from dpppl.noise_aware.surrogate import OneSided, excess_spread, largest_sampled, resolved
from dpppl.row_statistics.coordinates import Known, Prior
from dpppl.row_statistics.matrices import eigh, root_of
from dpppl.row_statistics.response_ranks import Fit

MANY_COORDINATES, MOST_BLURRED = 20, 0.5
MOVED, MOVED_BY_TAILS, MOST_CUT = 0.5, 0.2, 0.05
"""A model that does not fit is a note, up to three limits: how many posterior sds a departure may move estimates; the same where
other tails are sure; and which part of scores is clipped. Of larger parts a histogram's noise hides the tails."""
MOST_IMPOSSIBLE = 0.002
ONE_SIDED = 1.0  # standard errors


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
    def of(cls, last: RecipeOutcome, prior: Prior, names: Sequence[str]) -> "Widths":
        released, modelled = (Mixture.of(s, prior).moments().variance for s in (last.surrogate, last.modelled))
        ratios = np.sqrt(released / modelled)
        number = int(np.argmax(np.abs(np.log(ratios))))
        u = last.in_u
        ratio = dispersion(u.released.score_variance, u.released.score_variance_std, u.slope)
        return cls(*ratio, names[number], float(ratios[number]))


class Pull(NamedTuple):
    """How far the prior moves a posterior where it does not expect what the data say.

    - **chance** - of a mean as far from the prior's as the run's is, or farther, by the prior and the noise (Box 1980). Of the
      coordinates whose prior is normal.
    - **moved**, **latent** - how many posterior sds the prior moves the mean, along the latent that it moves farthest."""

    chance: float = 1.0
    moved: float = 0.0
    latent: str = ""

    @classmethod
    def of(cls, last: RecipeOutcome, prior: Prior, names: Sequence[str]) -> "Pull":
        """Under the prior the mean of a normal posterior has the prior's variance less the posterior's."""
        if prior.normal is None or prior.correlation is None or not len(prior.normal):
            return cls()
        chosen = np.ix_(prior.normal, prior.normal)
        root, spread = root_of(prior.correlation[chosen]), last.covariance[0][chosen]
        inverse = np.linalg.pinv(root)
        left, vectors = eigh(inverse @ spread @ inverse.T)
        off = ((last.belief.mean - prior.mean) / prior.scales)[prior.normal]
        off, is_learned = vectors.T @ inverse @ off, left < 1.0 - SMALLEST_SHARE
        length = np.sum(off[is_learned] ** 2 / (1.0 - left[is_learned]))
        pulled = np.where(is_learned, off * left / np.where(is_learned, 1.0 - left, 1.0), 0.0)
        moved = np.abs(root @ vectors @ pulled) / np.sqrt(np.diag(spread))
        number = int(np.argmax(moved))
        chance = float(chdtrc(np.sum(is_learned), length)) if np.any(is_learned) else 1.0
        return cls(chance, float(moved[number]), names[prior.normal[number]])


def blurred(found: Known, names: Sequence[str]) -> tuple[str, ...]:
    """The sites of at least 20 coordinates whose means have an sd of less than twice their median sd."""
    sites, sd = np.array([name.split("[")[0] for name in names]), np.sqrt(found.variance)
    members = {str(site): np.flatnonzero(sites == site) for site in dict.fromkeys(sites)}
    many = {site: own for site, own in members.items() if len(own) >= MANY_COORDINATES}
    return tuple(site for site, own in many.items() if np.median(sd[own]) > MOST_BLURRED * np.std(found.mean[own]))


@dataclass(frozen=True, kw_only=True)
class MeasuredReleases(Fit):
    """Numbers on a run from its releases, with those of `Fit`.

    - **arrival** - the largest distance, in sd, from where scores were summed to the posterior mean.
    - **agreement** - that between the means given the early and given the late looks, in sd of the former.
    - **chi_squared** - the scatter of late scores around one line, in units of their noise.
    - **degrees** - the degrees of freedom of that.
    - **cut** - the part of scores that was clipped, over scores, by root mean squares: `harm` times this is how far estimates
      may lie from those of the same model without clipping.
    - **learned** - by latent, 1 - posterior / prior variance.
    - **norms** - the bounds of late looks.
    - **resolved** - how far draws of the curvature agree on the directions that were learned, from 0 to 1.
    - **one_sided** - the latent that a one-sided likelihood informs most, or "" where none is seen; see `OneSided`.
    - **together** - the latents that are known only together.
    - **farthest** - the latent that lies farthest from its prior mean, and how far, in prior sd.
    - **pull** - how far the prior moves the posterior, and whether it expects what the data say.
    - **curvature** - which part of it was released.
    - **sampler** - what is wrong with the draws from the posterior that the releases give, or None.
    - **blurred** - sites of many coordinates that differ by little more than they are known by.
    - **through** - the latents that the likelihood knows through coordinates only.
    - **beyond** - by site of the other latents "learned", "partly" or "prior" for each element, from draws, (elements,).
    - **sites** - the site of each coordinate, by its name.
    - **symmetric** - the latents that may change places or signs without a change of the model, in words.
    - **unnamed** - a cure in words: which values that alone carry latents to rows the model should name as sites.
    - **codes** - which values the observed sites take; see `supports.codes`.
    - **poisson** - the observed sites whose law is Poisson's.
    - **widths** - what the released variance of scores says beside the model's."""

    arrival: float
    agreement: float
    chi_squared: float
    degrees: int
    learned: dict[str, float] = field(repr=False)
    norms: tuple[float, float]
    cut: float = 1.0
    resolved: float = 1.0
    one_sided: str = ""
    together: tuple[str, ...] = ()
    farthest: tuple[str, float] = ("", 0.0)
    pull: Pull = field(default=Pull())
    curvature: str = "full"
    sampler: str | None = None
    blurred: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    beyond: dict[str, Array] = field(default_factory=dict, repr=False)
    sites: dict[str, str] = field(default_factory=dict, repr=False)
    symmetric: tuple[str, ...] = ()
    unnamed: str | None = None
    codes: tuple[str, ...] = ()
    poisson: tuple[str, ...] = ()
    widths: Widths = field(default=Widths())

    @classmethod
    def from_releases(
        cls, run: RecipeOutcome, found: Known, prior: Prior, names: Sequence[str], num_rows: int, rows_per_unit: int = 1,
        sampled: float | None = None,
    ) -> Self:  # fmt: skip
        """`found`: moments of the posterior; `rows_per_unit`: the most rows of a unit, of which there are `num_rows`; `sampled`:
        the largest share of posterior variance that is the sampling of the data, where known."""
        sd, scalars, u = np.sqrt(found.variance), run.scalars, run.in_u
        in_u = run.surrogate, u.covariance, u.spread
        sampled = largest_sampled(*in_u) if sampled is None else sampled
        along = ["", *(names[number] for number in scalars.coordinates)]
        fit = Fit.from_sums(scalars.values, scalars.std, num_rows, excess_spread(*in_u), along, sampled, rows_per_unit)
        distance = np.abs(found.mean - prior.mean) / np.sqrt(prior.variance)
        learned = 1.0 - found.variance / prior.variance
        one_sided = OneSided.of(u.released, u.slope, u.spread, u.covariance)
        moved = np.abs(run.surrogate.basis.to_latents(one_sided.move)) / sd
        is_seen = one_sided.sure > ONE_SIDED and one_sided.known > 0.5
        return cls(
            **vars(fit), chi_squared=run.chi_squared, degrees=run.degrees, cut=run.cut,
            resolved=resolved(u.spreads, u.covariance),
            one_sided=names[int(np.argmax(moved))] if is_seen else "",
            norms=(run.norm, run.curvature_bound), curvature=prior.released_part,
            arrival=float(np.max(np.abs(found.mean - run.surrogate.point(prior.mean)) / sd)),
            agreement=float(np.max(np.abs(found.mean - run.earlier.mean) / np.sqrt(run.earlier.variance))),
            pull=Pull.of(run, prior, names), widths=Widths.of(run, prior, names), learned=dict(zip(names, map(float, learned))),
            together=known_together(names, run.covariance[0] if prior.is_full else np.eye(1)),
            farthest=(names[int(np.argmax(distance))], float(np.max(distance))), blurred=blurred(found, names),
        )  # fmt: skip

    @property
    def is_prior(self) -> bool:
        """Whether nothing was learned."""
        return bool(self.learned) and max(self.learned.values()) < SMALLEST_SHARE

    @property
    def is_wrong(self) -> bool:
        """Whether a departure from the model may have moved estimates, or was measured between modes of a symmetric model. Under
        surely other tails noise hides more of what is clipped than the histogram shows."""
        least = MOVED if self.tails < 1.0 else MOVED_BY_TAILS
        return self.moved >= least or self.cut >= MOST_CUT or self.has_impossible or bool(self.symmetric)

    @property
    def moved(self) -> float:
        """How far a departure from the model moves estimates away from those without clipping, at most, in posterior sds.

        By Cauchy and Schwarz: a law whose densities under the model's have the relative variance V changes the mean of what is
        clipped off a score by at most V^(1/2) times its sd. Ranks see three moments of V: a few extreme rows, which noise hides,
        may move the estimates without clipping farther."""
        return max(self.harm) * self.cut

    @property
    def has_impossible(self) -> bool:
        """Whether more responses are next to impossible than noise explains."""
        share, std = self.impossible
        return share >= MOST_IMPOSSIBLE and share >= STANDS_OUT * std
