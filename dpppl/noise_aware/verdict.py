"""Whether a posterior may be read: numbers on a run from its releases, and what they say for and against it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from scipy.special import chdtrc

from dpppl.findings import verdict
from dpppl.findings.counted_rows import STANDS_OUT, CountedRows, told_shares
from dpppl.findings.verdict import REFUSED, Array, Finding, Found, Level, care, few, found, note, refused
from dpppl.model.refusals import quoted
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.recipe import Stage
from dpppl.noise_aware.sides import FACTOR
from dpppl.report.render import table
from dpppl.row_statistics.coordinates import Known, Prior
from dpppl.row_statistics.fit import SURE, Fit, Scalars, certain
from dpppl.row_statistics.matrices import eigh, root_of

MOST_DISPERSED = 1.1
HIDDEN = 40.0
ARRIVED, AGREEMENT, SKEWED, SCATTER = 2.0, 8.0, 4.0, 0.1
EXACT = 0.005  # smaller departures by surprise, and third moments, are not told, however many rows there are
UNLEARNED = 4.0
TOGETHER = 14.8  # ranks and next to impossible responses, chi-squared of 3 degrees: one run in 500 by chance
LINK_CHANCE = 0.005  # of doubting a right model for its ranks by value
SKEW_SURE = 9.55  # the same for the skewness of these ranks: one run in 500 by chance
DISPERSED = 3.0  # the variance of twice a rank where units are of any other law, over that of a uniform rank
CONFLICT, FORGOTTEN, RESOLVED = 3.0, 0.2, 0.7
_MORE = "raise the budget, give the latents narrower priors, or fewer of them"
MANY, BLURRED = 20, 0.5
HARM, WEAK = 1.0, 10.0  # posterior sds
BLIND = 1.5  # noise over what is sought: its absence moves a release by less than .7 of its sds
UNEXPECTED = 0.002  # by chance in one run of 500
MOVED, CUT = 0.5, 0.05
"""The most posterior sds by which a departure may move estimates, and the most that may be clipped off scores, where a model that
does not fit is a note: of more, a histogram's noise hides tails."""
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
        if last.modelled is None:
            return cls()
        released, modelled = (Mixture.of(s, prior).moments().variance for s in (last.surrogate, last.modelled))
        ratios = np.sqrt(released / modelled)
        number = int(np.argmax(np.abs(np.log(ratios))))
        return cls(*last.dispersion, names[number], float(ratios[number]))


MODELLED = Widths()


class Pull(NamedTuple):
    """How far the prior moves a posterior where it does not expect what the data say.

    - **chance** - of a mean as far from the prior's as the run's is, or farther, by the prior and the noise (Box 1980). Of the
      coordinates whose prior is normal.
    - **moved**, **latent** - how many posterior sds the prior moves the mean, along the latent that it moves farthest."""

    chance: float = 1.0
    moved: float = 0.0
    latent: str = ""

    @classmethod
    def of(cls, last: Stage, prior: Prior, names: Sequence[str]) -> "Pull":
        """Under the prior the mean of a normal posterior has the prior's variance less the posterior's."""
        if prior.normal is None or prior.correlation is None or not len(prior.normal):
            return cls()
        chosen = np.ix_(prior.normal, prior.normal)
        root, spread = root_of(prior.correlation[chosen]), last.covariance[0][chosen]
        inverse = np.linalg.pinv(root)
        left, vectors = eigh(inverse @ spread @ inverse.T)
        off = ((last.belief.mean - prior.mean) / prior.scales)[prior.normal]
        off, is_learned = vectors.T @ inverse @ off, left < 1.0 - LEARNED
        length = np.sum(off[is_learned] ** 2 / (1.0 - left[is_learned]))
        pulled = np.where(is_learned, off * left / np.where(is_learned, 1.0 - left, 1.0), 0.0)
        moved = np.abs(root @ vectors @ pulled) / np.sqrt(np.diag(spread))
        number = int(np.argmax(moved))
        chance = float(chdtrc(np.sum(is_learned), length)) if np.any(is_learned) else 1.0
        return cls(chance, float(moved[number]), names[prior.normal[number]])


FREE = Pull()


def blurred(found: Known, names: Sequence[str]) -> tuple[str, ...]:
    """The sites of at least 20 coordinates whose means have an sd of less than twice their median sd."""
    sites, sd = np.array([name.split("[")[0] for name in names]), np.sqrt(found.variance)
    members = {str(site): np.flatnonzero(sites == site) for site in dict.fromkeys(sites)}
    many = {site: own for site, own in members.items() if len(own) >= MANY}
    return tuple(site for site, own in many.items() if np.median(sd[own]) > BLURRED * np.std(found.mean[own]))


@dataclass(frozen=True, kw_only=True)
class Verdict(Fit, verdict.Verdict):
    """The verdict on a run: `CHECKS` on numbers from its releases, with those of `Fit`.

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
    - **beside** - the noise of the curvature on either side, over that curvature: the median over latents.
    - **resolved** - how far draws of the curvature agree on the directions that were learned, from 0 to 1.
    - **hidden** - how much better than the prior the data may know a direction that noise hides; see `ReleasedCurvature.hidden`.
    - **farthest** - the latent that lies farthest from its prior mean, and how far, in prior sd.
    - **pull** - how far the prior moves the posterior, and whether it expects what the data say.
    - **curvature** - which part of it was released.
    - **sampler** - what is wrong with the draws from the posterior that the releases give, or None.
    - **blurred** - sites of many coordinates that differ by little more than they are known by.
    - **through** - the latents that the likelihood knows through coordinates only.
    - **beyond** - by site of the other latents "learned", "partly" or "prior" for each element, from draws, (elements,).
    - **sites** - the site of each coordinate, by its name.
    - **symmetric** - the latents that may change places or signs without a change of the model, in words.
    - **unnamed** - how to name values through which alone rows know latents; see `unnamed`.
    - **codes** - which values the observed sites take; see `supports.codes`.
    - **in_units** - whether a row is a unit of several.
    - **has_columns** - whether numbers of a row enter the law of its responses; see `SplitModel`.
    - **widths** - what the released variance of scores says beside the model's."""

    otherwise = "the releases agree with each other and with the model"
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
    beside: float = 0.0
    farthest: tuple[str, float] = ("", 0.0)
    pull: Pull = FREE
    curvature: str = "full"
    sampler: str | None = None
    blurred: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    beyond: dict[str, Array] = field(default_factory=dict, repr=False)
    sites: dict[str, str] = field(default_factory=dict, repr=False)
    symmetric: tuple[str, ...] = ()
    unnamed: str | None = None
    codes: tuple[str, ...] = ()
    in_units: bool = False
    has_columns: bool = True
    widths: Widths = MODELLED

    @classmethod
    def from_releases(
        cls, stages: Sequence[Stage], found: Known, scalars: Scalars, prior: Prior, names: Sequence[str], num_rows: int
    ) -> Self:
        """`found`: moments of the posterior."""
        (*_, before, last), sd = stages, np.sqrt(found.variance)
        along = ["", *(names[number] for number in scalars.coordinates)]
        fit = Fit.from_sums(scalars.values, scalars.std, num_rows, last.excess, along, scalars.num_flags, last.sampled)
        distance = np.abs(found.mean - prior.mean) / np.sqrt(prior.variance)
        share = lambda known: 1.0 - known.variance / prior.variance  # noqa: E731
        return cls(
            **vars(fit), chi_squared=last.chi_squared, degrees=last.degrees, cut=last.cut, resolved=last.resolved,
            hidden=last.hidden, norms=(last.norm, last.curvature_bound), curvature=prior.curvature,
            arrival=float(np.max(np.abs(found.mean - last.surrogate.point(prior.mean)) / sd)),
            agreement=float(np.max(np.abs(found.mean - before.belief.mean) / np.sqrt(before.belief.variance))),
            sides=() if last.sides is None else last.sides.named(names), pull=Pull.of(last, prior, names),
            widths=Widths.of(last, prior, names), beside=0.0 if last.sides is None else float(np.median(last.sides.noise)),
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
        return self.moved >= MOVED or self.cut >= CUT or self.has_impossible or bool(self.symmetric)

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
        return share >= IMPOSSIBLE and share >= STANDS_OUT * std and not self.in_units

    @property
    def released(self) -> str | None:
        """A sentence on the part of the curvature that was not released; None where all of it was."""
        words = "samples know no correlations between blocks but a few directions."
        return None if self.curvature == "full" else f"curvature released in {self.curvature}: {words}"

    @property
    def findings(self) -> list[Finding]:
        """See `verdict.Verdict`."""
        return found(self, *CHECKS)

    @property
    def misfit(self) -> str | None:
        """The finding against the model from ranks of responses, or that they could show none; None for a sandwich."""
        return next(map(str, misfit(self)), None)

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
        beyond = [site for site, words in self.beyond.items() for _ in np.ravel(words)]
        sites = [self.sites.get(name, name.split("[")[0]) for name in self.learned] + beyond
        found = [(site, word) for site, (_, word) in zip(sites, self.share_learned())]
        return {site: np.array([w for s, w in found if s == site], dtype=object) for site in dict(found)}

    def rows(self) -> list[tuple[str, str]]:
        """Lines of the report: pairs of a name and a text."""
        (clipped, of_curvature, std), (place, chi_squared, count) = self.clipped, self.link[1:]
        words = [word for _, word in self.share_learned()]
        blocks = "; correlations between them are not released" if self.released else ""
        gaps = [] if self.gaps is None else [("rows with missing values", f"{self.gaps[0]:.1%} ± {self.gaps[1]:.1%}")]
        counts = [f"{words.count(word)} {word}" for word in ("learned", "partly", "prior", REFUSED) if word in words]
        agree, scatter = f"stages agree within {self.agreement:.2f} sd", f"chi-squared {self.chi_squared:.2f}"
        fit = (
            f"responses rank {self.rank[0]:.3f} ± {self.rank[1]:.3f} by surprise (.5 expected); chi-squared {self.fit[1]:.1f} of "
            f"2; by value {place:+.3f} (0 expected), chi-squared {chi_squared:.1f}, the largest of {count}; third moment "
            f"{self.skew[0]:+.3f} (0 expected), chi-squared {self.skew[1]:.1f}"
        )
        unlikely, unlikely_std = self.impossible
        kinds = {"outside the support": self.outside, "not finite": self.missing, "next to impossible": unlikely}
        part = "an unknown part" if self.cut == 1.0 else f"{self.cut:.1%}"
        harm = (
            f"{part} of the scores is cut off, so a misfit too small to be noticed (half of the time) moves estimates by "
            f"at most {self.unseen * self.cut:.2f} posterior sd"
        )
        centred = "centred, so unbiased where the model fits"
        bounds = f"clipping_norm {self.norms[0]:.3g}, curvature {self.norms[1]:.3g}, in the last stage's coordinates"
        widths = (
            f"{self.widths.ratio:.2f} ± {self.widths.std:.2f} times the model's (at most 1 expected); the sd of "
            f"'{self.widths.latent}' {self.widths.wider:.2f} times that of the model-based width"
        )
        return [
            ("verdict", self.line()),
            ("bounds", bounds),
            ("curvature", self.curvature + blocks),
            ("rows clipped", f"{clipped:.0%} (curvature {of_curvature:.0%}) ± {std:.0%}; {centred}"),
            ("harm of clipping", harm),
            ("arrival", f"{self.arrival:.2f} sd; {agree}; {scatter}"),
            ("fit", fit),
            ("variance of scores", widths),
            ("rows that say nothing", told_shares(kinds, max(self.share_std, unlikely_std))),
            *gaps,
            ("latents", ", ".join(counts)),
        ]

    def __repr__(self) -> str:
        found = [finding for finding in self.findings if finding.level < Level.NOTE][1:]
        return "\n".join(["NoiseAware's verdict", *table(self.rows()), *(f"  - {line}" for line in found)])


def ignored(run: Verdict) -> Sequence[Finding]:
    """Rows that do not inform the posterior."""
    shares = CountedRows(outside=run.outside, missing=run.missing, silent=0.0, std=run.share_std, codes=run.codes)
    return shares.findings


def unknown_scale(run: Verdict) -> Found:
    """Scales that the run has not found."""
    scaled = (
        "where columns are in units of their own (years, euros) or nearly constant, write (x - centre) / scale in the model, "
        "with public constants or those of dpppl.private_scale; where categories are rare, merge them; or raise the budget"
    )
    if not run.hidden < HIDDEN:
        yield refused(
            f"noise hides a direction of the latents that the data may know {run.hidden:,.0f} times as well as the prior does, "
            f"while another one is well known: {run.unnamed or (scaled if run.has_columns else _MORE)}."
        )


def unfinished(run: Verdict) -> Found:
    """The run has not converged."""
    far = _conflict(run)
    cure = far or run.unnamed or _MORE
    if not run.arrival < ARRIVED:
        yield refused(f"the gradients were taken {run.arrival:.1f} sd away from the posterior mean: {cure}.")
    if not run.agreement < AGREEMENT:
        yield refused(f"the last two stages disagree by {run.agreement:.1f} sd: {cure}.")
    if not run.chi_squared < 1.0 + SCATTER + 4.0 * np.sqrt(2.0 / run.degrees):
        yield refused(
            f"gradients scatter {run.chi_squared:.2f} times as widely as their noise: the likelihood is not near "
            "quadratic where they were taken",
            f"{cure}{'' if far or run.unnamed else ', or transform the latents'}.",
        )


def failed(run: Verdict) -> Found:
    """The sampler did not draw from the posterior, or the posterior is the prior."""
    if run.sampler is not None:
        yield refused(f"{run.sampler}: write the model with better scaled latents.")
    if run.is_prior:
        yield care("nothing was learned: the samples are the prior's", "raise the budget.")


def _conflict(run: Verdict) -> str:
    """The latent that the data put where the prior does not expect it, in words; else ""."""
    (name, distance), cure = run.farthest, "give it a wider prior, or scale the columns that belong to it"
    words = f"the prior puts '{name}' at {distance:.1f} sd, and the run starts from the prior: {cure}"
    return "" if distance < CONFLICT else words


def conflict(run: Verdict) -> Found:
    """Data and prior disagree; where the run has not converged its cure says so."""
    far, (chance, moved, latent) = _conflict(run), run.pull
    is_pulled = chance < UNEXPECTED and moved >= HARM
    if any(unfinished(run)) or not (far or is_pulled):
        return
    unsure = run.beside > BLIND and is_pulled
    level = Level.REFUSED if unsure or any(each.level == Level.REFUSED for each in misfit(run)) else Level.CARE
    if far:
        yield Finding(level, f"{far}.", latent=run.farthest[0])
    else:
        what = f"the prior has latents as far from its means as here in one run of 500 at most, and moves '{latent}' by"
        cure = "give it a wider prior, scale the columns that belong to it, or raise the budget."
        yield Finding(level, f"{what} {moved:.1f} posterior sd", cure, latent)


def misfit(run: Verdict) -> Found:
    """The model is wrong by the ranks of responses, or may be unseen. A sandwich is checked in `of_scores`."""
    lines = "; ".join(against(run))
    if run.unseen > WEAK and not run.widths.is_sandwich:
        what = f"a misfit that moves estimates by {run.unseen:.0f} posterior sd would be seen in half of such runs only"
        yield care(
            f"the rows are too few for this budget to check the model: {what}", "raise the budget or use more rows."
        )
    if not lines or run.widths.is_sandwich:
        return
    moved = f"clipping is centred on what the model expects, so estimates move, by up to {run.moved:.1f} posterior sd"
    if not run.is_wrong:
        yield note(
            f"the model does not fit: {lines}. Few scores are clipped, so estimates lie within {run.moved:.1f} posterior sd of "
            "those without privacy under the same model, but for a few extreme rows that noise hides, which may move the latter "
            "alone; intervals and predictions are the model's."
        )
    elif run.symmetric:
        yield refused(
            f"the model does not fit where the run ended: {lines}; the model stays the same when {'; or '.join(run.symmetric)}, "
            f"so this may be between its modes; {moved}",
            "order the latents in the prior (dist.transforms.OrderedTransform), and use a richer model if that fits no better.",
        )
    else:
        yield refused(f"the model is wrong: {lines}; {moved}", "use a richer model.")


def against(run: Verdict) -> Sequence[str]:
    """Arguments against the model from ranks of responses, as parts of a sentence; by chance in less than 2 % of runs."""
    lines = []
    departure, chi_squared = run.fit
    # Ranks were taken far from the truth where next to nothing was learned, and scatter by more than they are given.
    times = 1.0 if max(run.learned.values(), default=1.0) > 0.5 else UNLEARNED
    share, std = run.impossible
    together = chi_squared + max(share / std, 0.0) ** 2 if std else chi_squared
    is_sure = chi_squared >= times * SURE or together >= times * TOGETHER
    if is_sure and departure >= EXACT and run.harm[0] >= HARM and not run.in_units:
        lines.append(
            f"by surprise, responses rank {run.rank[0]:.3f} ± {run.rank[1]:.3f} among its own (more than .5 if they are "
            f"more dispersed), and their ranks are not uniform (chi-squared {chi_squared:.0f} of 2 degrees, and "
            f"{together:.0f} of 3 with responses that are next to impossible)"
        )
    coordinate, departure, chi_squared, count = run.link
    times *= DISPERSED if run.in_units else 1.0
    if run.harm[1] >= HARM and chi_squared >= times * certain(LINK_CHANCE / count):
        where = f"'{coordinate}' matters most" if coordinate else "fitted values are most extreme"
        lines.append(
            f"where {where}, responses are too {'high' if departure > 0 else 'low'} (chi-squared {chi_squared:.0f} of 1 "
            "degree), as if a square, an interaction or another link were missing"
        )
    departure, chi_squared = run.skew
    is_sure = chi_squared >= times * SKEW_SURE and abs(departure) >= EXACT
    if is_sure and run.harm[2] >= HARM and not run.in_units:
        lines.append(
            f"responses have another distribution than the model's: by value, the third moment of their ranks is "
            f"{departure:+.3f} (0 expected, chi-squared {chi_squared:.0f} of 1 degree)"
        )
    if run.has_impossible:
        lines.append(
            f"{share:.1%} ± {std:.1%} of the responses are next to impossible under it: outliers, or another scale"
        )
    return lines


def of_scores(run: Verdict) -> Found:
    """Rows of a unit are not as independent as the model has them; the model of a sandwich is wrong; or scores vary by more than
    the model and the noise of the release explain."""
    if run.in_units and not (run.fit[1] < SURE or run.fit[0] < EXACT or run.harm[0] < HARM):
        yield care(
            f"rows of one unit are correlated, or of another law than the model's (units rank {run.rank[0]:.3f} ± "
            f"{run.rank[1]:.3f} by surprise): read means and their intervals, which count it, not scales."
        )
    ratio, std, latent, wider, is_sandwich = run.widths
    if is_sandwich and against(run):
        yield care(
            "the model is wrong by the ranks of responses: intervals are for its pseudo-true value, at which clipped scores have "
            "mean zero, and predictions of single rows are not calibrated."
        )
    if ratio - STANDS_OUT * std > MOST_DISPERSED:
        cure = "" if is_sandwich else '; NoiseAware(..., width="sandwich") counts it in full'
        yield care(
            f"scores vary {ratio:.1f} ± {std:.1f} times as much as under the model, and the sd of '{latent}' is {wider:.1f} "
            f"times the model's: responses are more dispersed, or rows of a unit correlated{cure}.",
            latent=latent,
        )


def of_stages(run: Verdict) -> Found:
    """The last stage knows less than the one before, noise hides what was learned, or the likelihood is not normal there."""
    before, after = run.stages_learned
    if not before - after < FORGOTTEN:
        yield care(
            f"the last stage has learned {after:.0%} of the latents and the one before, with a smaller part of the budget, "
            f"{before:.0%}: what is said to be learned is not",
            "raise the budget, or take fewer latents.",
        )
    if not (run.resolved >= RESOLVED or run.is_prior):
        yield care(
            f"noise hides the directions in which the data know the latents (draws of the curvature agree on {run.resolved:.0%} "
            "of what was learned): shares learned may be too large by a tenth or more, and predictions are too near the prior's",
            "raise the budget, take fewer latents, or predict by dpppl.SVI.",
        )
    if run.agreement >= SKEWED and not any(unfinished(run)):
        yield care(
            f"the last two stages disagree by {run.agreement:.1f} sd, more than their noise: the likelihood is skewed where "
            "they were taken, as where most probabilities are near 0 or 1; its intervals may be too narrow."
        )


def one_sided(run: Verdict) -> Found:
    """Latents that the data bound on one side only, and those whose posterior reaches too far; the worst come first."""
    if run.beside > BLIND and not run.is_prior:
        yield care(
            "the rows are too few for this budget to see whether the data bound latents on both sides: noise is "
            f"{run.beside:.1f} times the curvature beside the mean",
            "raise the budget or use more rows.",
        )
    order = sorted(run.sides, key=lambda side: -max(abs(np.log(width)) for width in side[1:]))
    shown = lambda names: quoted(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")  # noqa: E731
    if wider := [name for name, *widths in order if max(widths) > 1.0]:
        yield care(
            f"the data bound {shown(wider)} on one side only, as a rare category or a group without events does: the mean and "
            "the interval may be far off",
            "merge categories or groups, or give the latent a narrower prior.",
            few(wider),
        )
    if narrower := [name for name, *widths in order if min(widths) < 1.0]:
        yield care(
            f"the posterior of {shown(narrower)} reaches to values that the data exclude: the interval is too wide by a factor "
            f"of {FACTOR:g} or more, and the mean may be off",
            "raise the budget, or give the latent a narrower prior.",
            few(narrower),
        )


def of_latents(run: Verdict) -> Found:
    """Latents that can change places, or that are too many to know the sd among them."""
    if run.symmetric:
        yield care(
            f"the model stays the same when {'; or '.join(run.symmetric)}: its posterior has as many modes, of which the "
            "samples show one at most, with labels that mean nothing by themselves",
            "order the latents in the prior, or read only what does not depend on labels.",
        )
    if run.blurred and run.through:
        yield care(
            f"values of {quoted(run.blurred)} differ by little more than they are known by: an sd among them may come out "
            f"too small, if {quoted(run.through)} is one, and outlying values are drawn in too far",
            "raise the budget, or form fewer and larger groups.",
            few(run.through),
        )


CHECKS = (ignored, unknown_scale, unfinished, failed, conflict, misfit, of_scores, of_stages, one_sided, of_latents)
"""All findings on a run. Equally grave ones keep this order."""
