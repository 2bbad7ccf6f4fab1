"""Whether a posterior may be read: what the releases say for and against it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dpppl.model.refusals import quoted
from dpppl.noise_aware import recipe
from dpppl.noise_aware.coordinates import Known, Prior
from dpppl.noise_aware.fit import Fit, Scalars, certain
from dpppl.noise_aware.posterior import Mixture
from dpppl.noise_aware.recipe import Stage
from dpppl.report import verdict
from dpppl.report.counted_rows import STANDS_OUT, CountedRows
from dpppl.report.render import table
from dpppl.report.verdict import REFUSED, Array, Finding, Level, ranked

MOST_DISPERSED = 1.1
PSEUDO_TRUE = (
    "the model is wrong by the ranks of responses: intervals are for its pseudo-true value, at which clipped scores have mean "
    "zero, and predictions of single rows are not calibrated."
)
HIDDEN = 40.0
MANY, BLURRED = 20, 0.5
ARRIVED, AGREEMENT, SKEWED, SCATTER = 2.0, 8.0, 4.0, 0.1
EXACT = 0.005  # smaller departures are not told, however many rows there are
HARM, SURE, UNLEARNED = 1.0, 9.66, 4.0  # posterior sds; 9.66: one run in 125 by chance
CUT = 0.05
"""The most that may be clipped off scores where a model that does not fit is a note: of more, a histogram's noise hides tails."""
TOGETHER = 14.8  # ranks and next to impossible responses, chi-squared of 3 degrees: one run in 500 by chance
LINK_CHANCE = 0.005  # of doubting a right model for its ranks by value
SKEW_SURE = 9.55  # the same for the skewness of these ranks: one run in 500 by chance
DISPERSED = 3.0  # the variance of twice a rank where units are of any other law, over that of a uniform rank
IMPOSSIBLE, CONFLICT, FORGOTTEN, LEARNED, RESOLVED = 0.002, 3.0, 0.2, 0.1, 0.7


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

    @property
    def doubt(self) -> str | None:
        """Whether scores vary by more than the model and the noise of the release explain."""
        if not self.ratio - STANDS_OUT * self.std > MOST_DISPERSED:
            return None
        cure = "" if self.is_sandwich else '; NoiseAware(..., width="sandwich") counts it in full'
        return (
            f"scores vary {self.ratio:.1f} ± {self.std:.1f} times as much as under the model, and the sd of '{self.latent}' is "
            f"{self.wider:.1f} times the model's: responses are more dispersed, or rows of a unit correlated{cure}."
        )

    def described(self) -> str:
        """A line of the report."""
        return (
            f"{self.ratio:.2f} ± {self.std:.2f} times the model's (at most 1 expected); the sd of '{self.latent}' "
            f"{self.wider:.2f} times that of the model-based width"
        )


MODELLED = Widths()


_MORE = "raise the budget, give the latents narrower priors, or fewer of them"


def unknown_scale(hidden: float, has_columns: bool = True) -> str | None:
    """A finding on scales that the run has not found; `hidden`: see `Release.hidden`, `has_columns`: see `SplitModel`."""
    if hidden < HIDDEN:
        return None
    scaled = (
        "some columns are in units of their own (years, euros), or nearly constant; write (x - centre) / scale in the model, "
        "with public constants or those of dpppl.private_scale, or raise the budget"
    )
    return (
        f"noise hides a direction of the latents that the data may know {hidden:,.0f} times as well as the prior does, while "
        f"another one is well known: {scaled if has_columns else _MORE}."
    )


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
class Verdict(verdict.Verdict):
    """The verdict on a run, from its releases.

    - **arrival** - the largest distance, in sd, from where the last gradients were taken to the posterior mean.
    - **agreement** - that between the last two stages' means, in sd of the earlier.
    - **chi_squared** - the scatter of gradients in units of their known noise.
    - **degrees** - the degrees of freedom of that.
    - **rank** - the mean rank of responses, by surprise, among those that the model gives in their place, .5 where it is right,
      with its standard error.
    - **fit** - how far the moments of that rank are from the model's, and the same in squared standard errors, chi-squared with 2
      degrees of freedom.
    - **harm** - by how many posterior sds a departure as in `fit`, as in `link`, and as in `skew` moves estimates at most, if
      all scores were clipped.
    - **cut** - the part of scores that was clipped, over scores, by root mean squares: `harm` times this is how far estimates
      may lie from those of the same model without clipping.
    - **clipped** - shares of rows whose score and whose curvature was clipped, and their standard error.
    - **learned** - by latent, 1 - posterior / prior variance.
    - **norms** - the last stage's bounds.
    - **unseen** - the sds by which a departure moves estimates, at most, that `fit` shows in half of the runs.
    - **link** - by which coordinate ranks of responses by value change most ("" for the fitted values), how far their signed mean
      is from 0, its square in squared standard errors, and how many means were compared.
    - **skew** - how far the third moment of ranks by value is from the model's, and its square in squared standard errors.
    - **outside**, **missing** - shares of rows whose response is outside the model's support, and of others with no finite score.
    - **share_std** - sd of the noise of these shares.
    - **gaps** - the share of rows with missing values that the model sums out or masks, and the sd of its noise, or None.
    - **impossible** - the share of responses that the model finds next to impossible, and its standard error.
    - **stages_learned** - the mean of `learned` in the last two stages.
    - **sides** - latents that the likelihood bounds less, or more, on one side of the mean than the posterior has it, each
      with its sd below and above the mean, in units of the stated one.
    - **resolved** - how far draws of the curvature agree on the directions that were learned, from 0 to 1.
    - **hidden** - how much better than the prior the data may know a direction that noise hides; see `unknown_scale`.
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
    - **has_columns** - whether numbers of a row enter the law of its responses.
    - **widths** - what the released variance of scores says beside the model's."""

    arrival: float
    agreement: float
    chi_squared: float
    degrees: int
    rank: tuple[float, float]
    fit: tuple[float, float]
    clipped: tuple[float, float, float]
    learned: dict[str, float] = field(repr=False)
    norms: tuple[float, float]
    link: tuple[str, float, float, int] = ("", 0.0, 0.0, 1)
    skew: tuple[float, float] = (0.0, 0.0)
    harm: tuple[float, ...] = (0.0, 0.0, 0.0)
    cut: float = 1.0
    unseen: float = 0.0
    sides: tuple[tuple[str, float, float], ...] = ()
    outside: float = 0.0
    missing: float = 0.0
    share_std: float = 0.0
    gaps: tuple[float, float] | None = None
    impossible: tuple[float, float] = (0.0, 0.0)
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

    otherwise = "the releases agree with each other and with the model"

    @classmethod
    def of(
        cls, stages: Sequence[Stage], found: Known, scalars: Scalars, scalar_std: float, prior: Prior, names: Sequence[str],
        num_rows: int,
    ) -> "Verdict":  # fmt: skip
        """`found`: moments of the posterior; `scalar_std`: of the noise of `scalars`."""
        (*_, before, last), sd = stages, np.sqrt(found.variance)
        fit = Fit.of(scalars.values, scalar_std, num_rows, last.excess, scalars.num_flags)
        number, departure, chi_squared = fit.link
        distance = np.abs(found.mean - prior.mean) / np.sqrt(prior.variance)
        share = lambda known: 1.0 - known.variance / prior.variance  # noqa: E731
        return cls(
            arrival=float(np.max(np.abs(found.mean - last.surrogate.point(prior.mean)) / sd)),
            agreement=float(np.max(np.abs(found.mean - before.belief.mean) / np.sqrt(before.belief.variance))),
            chi_squared=last.chi_squared,
            degrees=last.degrees,
            rank=fit.rank,
            fit=fit.shape,
            harm=tuple(harm * last.sampled**0.5 for harm in fit.harm),
            cut=last.cut,
            unseen=(SURE * last.sampled) ** 0.5 * fit.unseen,
            sides=() if last.sides is None else last.sides.named(names),
            link=(names[scalars.coordinates[number - 1]] if number else "", departure, chi_squared, fit.num_links),
            skew=fit.skew,
            outside=fit.outside,
            missing=fit.missing,
            share_std=fit.std,
            impossible=fit.impossible,
            clipped=fit.clipped,
            gaps=fit.gaps,
            learned=dict(zip(names, map(float, share(found)))),
            stages_learned=(float(np.mean(share(before.belief))), float(np.mean(share(last.belief)))),
            resolved=last.resolved,
            hidden=last.hidden,
            farthest=(names[int(np.argmax(distance))], float(np.max(distance))),
            norms=(last.norm, last.bound),
            curvature=prior.curvature,
            blurred=blurred(found, names),
            widths=Widths.of(last, prior, names),
        )

    @property
    def findings(self) -> list[Finding]:
        """See `verdict.Verdict`: what was measured of the rows, then what the releases say of the run and of the model."""
        unfinished, far = self._unfinished(), self.conflict and f"{self.conflict}."
        misfit, departure = (self.misfit, None) if self.is_wrong else (None, self.misfit)
        sampler = None if self.sampler is None else f"{self.sampler}: write the model with better scaled latents."
        hidden = unknown_scale(self.hidden, self.has_columns)
        refused = (hidden, *unfinished, sampler, far if misfit and not unfinished else None, misfit)
        care = (
            self._unlearned(), None if unfinished or misfit else far, self.correlation, self.pseudo_true, self.widths.doubt,
            self._forgotten(), self._unresolved(), self._skewed(),
            *recipe.findings(self.sides), self.label_switching, self.spreads,
        )  # fmt: skip
        return ranked([
            *self.counted.findings, *Finding.each(Level.REFUSED, refused), *Finding.each(Level.CARE, care),
            *Finding.each(Level.NOTE, [departure]),
        ])  # fmt: skip

    @property
    def counted(self) -> CountedRows:
        """The rows that do not inform the posterior."""
        return CountedRows(outside=self.outside, missing=self.missing, silent=0.0, std=self.share_std, codes=self.codes)

    def _unfinished(self) -> list[str]:
        """Findings of a run that has not converged."""
        far = self.conflict
        cure = far or self.unnamed or _MORE
        lines = []
        if not self.arrival < ARRIVED:
            lines.append(f"the gradients were taken {self.arrival:.1f} sd away from the posterior mean: {cure}.")
        if not self.agreement < AGREEMENT:
            lines.append(f"the last two stages disagree by {self.agreement:.1f} sd: {cure}.")
        if not self.chi_squared < 1.0 + SCATTER + 4.0 * np.sqrt(2.0 / self.degrees):
            lines.append(
                f"gradients scatter {self.chi_squared:.2f} times as widely as their noise: the likelihood is not near "
                f"quadratic where they were taken; {cure}{'' if far or self.unnamed else ', or transform the latents'}."
            )
        return lines

    @property
    def conflict(self) -> str | None:
        """Which latent the data put where the prior does not expect it."""
        name, distance = self.farthest
        if distance < CONFLICT:
            return None
        return (
            f"the prior puts '{name}' at {distance:.1f} sd, and the run starts from the prior: give it a wider prior, or "
            "scale the columns that belong to it"
        )

    @property
    def misfit(self) -> str | None:
        """Findings against the model from the responses' ranks. Empty for a sandwich, which reports them as `pseudo_true`."""
        lines = self._against()
        if not lines or self.widths.is_sandwich:
            return None
        moved = (
            f"clipping is centred on what the model expects, so estimates move, by up to {self.moved:.1f} posterior sd"
        )
        if self.symmetric:
            return (
                f"the model does not fit where the run ended: {'; '.join(lines)}; the model stays the same when "
                f"{'; or '.join(self.symmetric)}, so this may be between its modes; {moved}; order the latents in the prior "
                "(dist.transforms.OrderedTransform), and use a richer model if that fits no better."
            )
        if not self.is_wrong:
            return (
                f"the model does not fit: {'; '.join(lines)}. Few scores are clipped, so estimates lie within {self.moved:.1f} "
                "posterior sd of those without privacy under the same model; its intervals and predictions are the model's."
            )
        return f"the model is wrong: {'; '.join(lines)}; {moved}; use a richer model."

    @property
    def is_wrong(self) -> bool:
        """Whether a departure from the model may have moved estimates, or was measured between modes of a symmetric model.

        Responses that are next to impossible, and scores in tails that noise hides, may move them by any distance."""
        return self.moved >= HARM or self.cut >= CUT or self._has_impossible or bool(self.symmetric)

    @property
    def moved(self) -> float:
        """How far a departure from the model moves estimates away from those without clipping, at most, in posterior sds.

        By Cauchy and Schwarz: a law whose densities under the model's have the relative variance V changes the mean of what is
        clipped off a score by at most V^(1/2) times its sd."""
        return max(self.harm) * self.cut

    @property
    def _has_impossible(self) -> bool:
        share, std = self.impossible
        return share >= IMPOSSIBLE and share >= STANDS_OUT * std and not self.in_units

    def _against(self) -> list[str]:
        """Findings against the model from the responses' ranks, as parts of a sentence; by chance in less than 2 % of runs."""
        lines = []
        departure, chi_squared = self.fit
        # Ranks were taken far from the truth where next to nothing was learned, and scatter by more than they are given.
        times = 1.0 if max(self.learned.values(), default=1.0) > 0.5 else UNLEARNED
        share, std = self.impossible
        together = chi_squared + max(share / std, 0.0) ** 2 if std else chi_squared
        is_sure = chi_squared >= times * SURE or together >= times * TOGETHER
        if is_sure and departure >= EXACT and self.harm[0] >= HARM and not self.in_units:
            lines.append(
                f"by surprise, responses rank {self.rank[0]:.3f} ± {self.rank[1]:.3f} among its own (more than .5 if they are "
                f"more dispersed), and their ranks are not uniform (chi-squared {chi_squared:.0f} of 2 degrees, and "
                f"{together:.0f} of 3 with responses that are next to impossible)"
            )
        coordinate, departure, chi_squared, count = self.link
        times *= DISPERSED if self.in_units else 1.0
        if self.harm[1] >= HARM and chi_squared >= times * certain(LINK_CHANCE / count):
            where = f"'{coordinate}' matters most" if coordinate else "fitted values are most extreme"
            lines.append(
                f"where {where}, responses are too {'high' if departure > 0 else 'low'} (chi-squared {chi_squared:.0f} of 1 "
                "degree), as if a square, an interaction or another link were missing"
            )
        departure, chi_squared = self.skew
        is_sure = chi_squared >= times * SKEW_SURE and abs(departure) >= EXACT
        if is_sure and self.harm[2] >= HARM and not self.in_units:
            lines.append(
                f"responses have another distribution than the model's: by value, the third moment of their ranks is "
                f"{departure:+.3f} (0 expected, chi-squared {chi_squared:.0f} of 1 degree)"
            )
        if self._has_impossible:
            lines.append(
                f"{share:.1%} ± {std:.1%} of the responses are next to impossible under it: outliers, or another scale"
            )
        return lines

    @property
    def pseudo_true(self) -> str | None:
        """Of a sandwich: whether ranks say that the model is wrong."""
        return PSEUDO_TRUE if self.widths.is_sandwich and self._against() else None

    @property
    def correlation(self) -> str | None:
        """Of units: whether their rows are as independent as the model has them. The variance of scores counts it if not."""
        if not self.in_units or self.fit[1] < SURE or self.fit[0] < EXACT or self.harm[0] < HARM:
            return None
        return (
            f"rows of one unit are correlated, or of another law than the model's (units rank {self.rank[0]:.3f} ± "
            f"{self.rank[1]:.3f} by surprise): read means and their intervals, which count it, not scales."
        )

    def _unlearned(self) -> str | None:
        is_prior = bool(self.learned) and max(self.learned.values()) < LEARNED
        return "nothing was learned: the samples are the prior's; raise the budget." if is_prior else None

    def _forgotten(self) -> str | None:
        before, after = self.stages_learned
        if before - after < FORGOTTEN:
            return None
        return (
            f"the last stage has learned {after:.0%} of the latents and the one before, with a smaller part of the budget, "
            f"{before:.0%}: what is said to be learned is not; raise the budget, or take fewer latents."
        )

    def _unresolved(self) -> str | None:
        if self.resolved >= RESOLVED or self._unlearned():
            return None
        return (
            f"noise hides the directions in which the data know the latents (draws of the curvature agree on {self.resolved:.0%} "
            "of what was learned): shares learned may be too large by a tenth or more, and predictions are too near the prior's; "
            "raise the budget, take fewer latents, or predict by dpppl.SVI."
        )

    def _skewed(self) -> str | None:
        if self._unfinished() or not self.agreement >= SKEWED:
            return None
        return (
            f"the last two stages disagree by {self.agreement:.1f} sd, more than their noise: the likelihood is skewed where "
            "they were taken, as where most probabilities are near 0 or 1; its intervals may be too narrow."
        )

    @property
    def label_switching(self) -> str | None:
        """Which latents can change places."""
        if not self.symmetric:
            return None
        return (
            f"the model stays the same when {'; or '.join(self.symmetric)}: its posterior has as many modes, of which the "
            "samples show one at most, with labels that mean nothing by themselves; order the latents in the prior, or read "
            "only what does not depend on labels."
        )

    @property
    def released(self) -> str | None:
        """A sentence on the part of the curvature that was not released; None where all of it was."""
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
        """For each latent whether it is "prior", "partly" or "learned"; "do not read" where the run is refused."""
        word = lambda share: "prior" if share < LEARNED else "learned" if share > 0.5 else "partly"  # noqa: E731
        found = [(name, word(share)) for name, share in self.learned.items()]
        for site, words in self.beyond.items():
            found += [(f"{site}{list(i) if i else ''}", one) for i, one in np.ndenumerate(words)]
        return [(name, REFUSED) for name, _ in found] if self.refusals else found

    @property
    def by_site(self) -> dict[str, Array]:
        """For each element of each site of the coordinates the word of `share_learned`, in order, (elements,)."""
        found = [(name.split("[")[0], word) for name, word in self.share_learned()]
        return {site: np.array([w for s, w in found if s == site], dtype=object) for site in dict(found)}

    def rows(self) -> list[tuple[str, str]]:
        """Lines of the report: pairs of a name and a text."""
        words, (clipped, of_curvature, std) = [word for _, word in self.share_learned()], self.clipped
        return [
            ("verdict", self.line()),
            (
                "bounds",
                f"clipping_norm {self.norms[0]:.3g}, curvature {self.norms[1]:.3g}, in the last stage's coordinates",
            ),
            ("curvature", self.curvature + ("; correlations between them are not released" if self.released else "")),
            ("rows clipped", f"{clipped:.0%} (curvature {of_curvature:.0%}) ± {std:.0%}; centred, so unbiased"),
            (
                "arrival",
                f"{self.arrival:.2f} sd; stages agree within {self.agreement:.2f} sd; chi-squared {self.chi_squared:.2f}",
            ),
            (
                "fit",
                f"responses rank {self.rank[0]:.3f} ± {self.rank[1]:.3f} by surprise (.5 expected); chi-squared "
                f"{self.fit[1]:.1f} of 2; by value {self.link[1]:+.3f} (0 expected), chi-squared "
                f"{self.link[2]:.1f}, the largest of {self.link[3]}; third moment {self.skew[0]:+.3f} (0 expected), chi-squared "
                f"{self.skew[1]:.1f}; a departure that moves estimates by {self.unseen:.1f} sd "
                "may pass unseen",
            ),
            ("variance of scores", self.widths.described()),
            (
                "rows that say nothing",
                f"{self.outside:.1%} outside the support, {self.missing:.1%} not finite, ± {self.share_std:.1%}; next "
                f"to impossible {self.impossible[0]:.1%} ± {self.impossible[1]:.1%}",
            ),
            *([] if self.gaps is None else [("rows with missing values", f"{self.gaps[0]:.1%} ± {self.gaps[1]:.1%}")]),
            (
                "latents",
                ", ".join(f"{words.count(w)} {w}" for w in ("learned", "partly", "prior", REFUSED) if w in words),
            ),
        ]

    def __repr__(self) -> str:
        found = [finding for finding in self.findings if finding.level < Level.NOTE][1:]
        return "\n".join(["NoiseAware's verdict", *table(self.rows()), *(f"  - {line}" for line in found)])
