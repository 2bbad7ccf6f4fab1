"""Whether a posterior may be read: findings on the numbers that a run has given."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpppl.findings import finding
from dpppl.findings.counted_rows import STANDS_OUT, CountedRows, told_shares
from dpppl.findings.directions import add_up
from dpppl.findings.finding import REFUSED, Array, Finding, Found, Level, care, few, findings_of, note, refused
from dpppl.findings.learned import WORDS, word_of
from dpppl.model.refusals import quoted
from dpppl.noise_aware.measured import MeasuredReleases
from dpppl.report.labels import NO_LABELS, Labels
from dpppl.report.render import table
from dpppl.row_statistics.response_ranks import SURE, certain
from dpppl.validation import element_name

# Thresholds of several checks; those of one alone stand in it.
LEAST_DEPARTURE = 0.005  # smaller departures by surprise, and third moments, are not told, however many rows there are
LEAST_HARM, MOST_UNSEEN, MOST_MOVED = 1.0, 10.0, 1.0  # posterior sds
LEAST_CHANCE = 0.002  # by chance in one run of 500
_MORE = "raise the budget, give the latents narrower priors, or fewer of them"


@dataclass(frozen=True, kw_only=True, repr=False)
class NoiseAwareVerdict(MeasuredReleases, finding.Verdict):
    """The verdict on a run: `CHECKS` on its numbers.

    - **labels** - of elements."""

    labels: Labels = NO_LABELS

    otherwise = "the releases agree with each other and with the model"

    @property
    def released(self) -> str | None:
        """A sentence on the part of the curvature that was not released; None where all of it was."""
        words = "samples know no correlations between blocks but a few directions."
        return None if self.curvature == "full" else f"curvature released in {self.curvature}: {words}"

    @property
    def findings(self) -> list[Finding]:
        """See `finding.Verdict`."""
        return findings_of(self, *CHECKS)

    @property
    def misfit(self) -> str | None:
        """The finding against the model from ranks of responses, or that they could show none; None for a sandwich."""
        return next(map(str, misfit(self)), None)

    def share_learned(self) -> list[tuple[str, str]]:
        """For each latent whether it is "prior", "partly" or "learned"; "do not read" where the run is refused."""
        found = [(name, word_of(share)) for name, share in self.learned.items()]
        for site, words in self.beyond.items():
            found += [(self.labels.named(element_name(site, i)), one) for i, one in np.ndenumerate(words)]
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
        counts = [f"{words.count(word)} {word}" for word in (*WORDS, REFUSED) if word in words]
        agree, scatter = f"looks agree within {self.agreement:.2f} sd", f"chi-squared {self.chi_squared:.2f}"
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
        bounds = f"clipping_norm {self.norms[0]:.3g}, curvature {self.norms[1]:.3g}, in the coordinates of late looks"
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


def ignored(run: MeasuredReleases) -> Sequence[Finding]:
    """Rows that do not inform the posterior."""
    shares = CountedRows(outside=run.outside, missing=run.missing, silent=0.0, std=run.share_std, codes=run.codes)
    return shares.findings


def unfinished(run: MeasuredReleases) -> Found:
    """The run has not converged."""
    far = _conflict(run)
    cure = far or run.unnamed or add_up(run.together) or _MORE
    most_arrival, most_disagreement, most_scatter = 8.0, 8.0, 0.1
    if not run.arrival < most_arrival:
        yield refused(f"scores were summed {run.arrival:.1f} sd away from the posterior mean: {cure}.")
    if not run.agreement < most_disagreement:
        yield refused(f"the late looks disagree with the early ones by {run.agreement:.1f} sd: {cure}.")
    if not run.chi_squared < 1.0 + most_scatter + 4.0 * np.sqrt(2.0 / run.degrees):
        yield refused(
            f"scores scatter {run.chi_squared:.2f} times as widely as their noise around one line: the likelihood is not near "
            "quadratic where they were summed",
            f"{cure}{'' if far or run.unnamed else ', or transform the latents'}.",
        )


def failed(run: MeasuredReleases) -> Found:
    """The sampler did not draw from the posterior, or the posterior is the prior."""
    if run.sampler is not None:
        yield refused(f"{run.sampler}: write the model with better scaled latents.")
    if run.is_prior:
        cure = "raise the budget, and check masks, weights and the coding of the data: rows that count for nothing look the same."
        yield care("nothing was learned: the samples are the prior's", cure)
    if run.unnamed and not any(unfinished(run)):
        what = "rows know some latents through a value without a name, in which alone the likelihood is near normal"
        yield care(f"{what}: means and spreads may be 2 posterior sd off", f"{run.unnamed}.")


def _conflict(run: MeasuredReleases) -> str:
    """The latent that the data put where the prior does not expect it, in words; else ""."""
    (name, distance), cure = run.farthest, "give it a wider prior, or scale the columns that belong to it"
    least = max(3.0, certain(LEAST_CHANCE / max(1, len(run.learned))) ** 0.5)  # of the farthest of them all
    words = f"the prior puts '{name}' at {distance:.1f} sd, and the run starts from the prior: {cure}"
    return "" if distance < least else words


def conflict(run: MeasuredReleases) -> Found:
    """Data and prior disagree; where the run has not converged its cure says so."""
    far, (chance, moved, latent) = _conflict(run), run.pull
    is_pulled = chance < LEAST_CHANCE and moved >= LEAST_HARM
    if any(unfinished(run)) or not (far or is_pulled):
        return
    level = Level.REFUSED if any(each.level == Level.REFUSED for each in misfit(run)) else Level.CARE
    if far:
        yield Finding(level, f"{far}.", latent=run.farthest[0])
    else:
        what = f"the prior has latents as far from its means as here in one run of 500 at most, and moves '{latent}' by"
        cure = "give it a wider prior, scale the columns that belong to it, or raise the budget."
        yield Finding(level, f"{what} {moved:.1f} posterior sd", cure, latent)


def misfit(run: MeasuredReleases, most_unseen: float = MOST_UNSEEN) -> Found:
    """The model is wrong by the ranks of responses, or may be unseen. A sandwich is checked in `of_scores`."""
    lines = "; ".join(against(run))
    if run.unseen > most_unseen and not run.widths.is_sandwich:
        what = f"a misfit that moves estimates by {run.unseen:.0f} posterior sd would be seen in half of such runs only"
        yield care(
            f"the rows are too few for this budget to check the model: {what}", "raise the budget or use more rows."
        )
    if not lines or run.widths.is_sandwich:
        return
    by = f"up to {run.moved:.1f}" if run.moved >= 0.05 else "less than .05"
    moved = f"clipping is centred on what the model expects, so estimates move, by {by} posterior sd"
    if not run.is_wrong:
        yield note(
            f"the model does not fit: {lines}. Few scores are clipped, so estimates lie within {run.moved:.1f} posterior sd of "
            "those without privacy under the same model, but for a few extreme rows that noise hides, which may move the latter "
            f"alone; intervals and predictions are the model's.{_of_events(run)}"
        )
    elif run.symmetric:
        yield refused(
            f"the model does not fit where the run ended: {lines}; the model stays the same when {'; or '.join(run.symmetric)}, "
            f"so this may be between its modes; {moved}",
            "order the latents in the prior (dist.transforms.OrderedTransform), and use a richer model if that fits no better.",
        )
    elif run.moved >= MOST_MOVED or run.has_impossible:
        yield refused(f"the model is wrong: {lines}; {moved}", f"use a richer model.{_of_events(run)}")
    else:
        yield care(
            f"the model does not fit: {lines}; {moved}, and by rows that noise hides",
            f"use a richer model.{_of_events(run)}",
        )


def _of_events(run: MeasuredReleases) -> str:
    """What to write for events that were taken for counts, with their time as exposure."""
    return "".join(
        f" If '{site}' counts the one event that ends a row's time (0 or 1), it is not Poisson: numpyro.sample('time', "
        f"dist.RightCensoredDistribution(dist.Exponential(rate), {site} == 0), obs=time, infer={{'censored_by': end}}), with end "
        "the time that a row would have without an event, has the same likelihood."
        for site in run.poisson
    )


def against(run: MeasuredReleases, part: float = 1.0) -> Sequence[str]:
    """Arguments against the model from ranks of responses, as parts of a sentence; by chance in less than 2 % of runs.

    - **part** - of each chi-squared that is asked for."""
    unlearned_factor = 4.0
    together_sure = 14.8  # ranks and next to impossible responses, chi-squared of 3 degrees: one run in 500 by chance
    link_chance = 0.005  # of doubting a right model for its ranks by value
    skew_sure = 9.55  # the same for the skewness of these ranks: one run in 500 by chance
    lines, (departure, chi_squared) = [], run.fit
    # Ranks were taken far from the truth where next to nothing was learned, and scatter by more than they are given.
    times = part * (1.0 if max(run.learned.values(), default=1.0) > 0.5 else unlearned_factor)
    share, std = run.impossible
    together = chi_squared + max(share / std, 0.0) ** 2 if std else chi_squared
    is_sure = chi_squared >= times * SURE or together >= times * together_sure
    if is_sure and departure >= LEAST_DEPARTURE and run.harm[0] >= LEAST_HARM:
        lines.append(
            f"by surprise, responses rank {run.rank[0]:.3f} ± {run.rank[1]:.3f} among its own (more than .5 if they are "
            f"more dispersed), and their ranks are not uniform (chi-squared {chi_squared:.0f} of 2 degrees, and "
            f"{together:.0f} of 3 with responses that are next to impossible)"
        )
    coordinate, departure, chi_squared, count = run.link
    if run.harm[1] >= LEAST_HARM and chi_squared >= times * certain(link_chance / count):
        where = f"'{coordinate}' matters most" if coordinate else "fitted values are most extreme"
        lines.append(
            f"where {where}, responses are too {'high' if departure > 0 else 'low'} (chi-squared {chi_squared:.0f} of 1 "
            "degree), as if a square, an interaction or another link were missing"
        )
    departure, chi_squared = run.skew
    is_sure = chi_squared >= times * skew_sure and abs(departure) >= LEAST_DEPARTURE
    if is_sure and run.harm[2] >= LEAST_HARM:
        lines.append(
            f"responses have another distribution than the model's: by value, the third moment of their ranks is "
            f"{departure:+.3f} (0 expected, chi-squared {chi_squared:.0f} of 1 degree)"
        )
    if run.has_impossible:
        lines.append(
            f"{share:.1%} ± {std:.1%} of the responses are next to impossible under it: outliers, or another scale"
        )
    return lines


def of_scores(run: MeasuredReleases) -> Found:
    """Rows of a unit are not as independent as the model has them; the model of a sandwich is wrong; or scores vary by more than
    the model and the noise of the release explain."""
    alike, error = run.alike
    if alike - STANDS_OUT * error > 1.1:
        yield care(
            f"rows of one unit are correlated (sums of their ranks vary {alike:.1f} ± {error:.1f} times as much as of "
            "independent rows): read means and their intervals, which count it, not scales."
        )
    ratio, std, latent, wider, is_sandwich = run.widths
    if is_sandwich and against(run):
        yield care(
            "the model is wrong by the ranks of responses: intervals are for its pseudo-true value, at which clipped scores have "
            "mean zero, and predictions of single rows are not calibrated."
        )
    if ratio - STANDS_OUT * std > 1.1:
        cure = "" if is_sandwich else '; NoiseAware(..., width="sandwich") counts it in full'
        yield care(
            f"scores vary {ratio:.1f} ± {std:.1f} times as much as under the model, and the sd of '{latent}' is {wider:.1f} "
            f"times the model's: responses are more dispersed, or rows of a unit correlated{cure}.",
            latent=latent,
        )


def of_looks(run: MeasuredReleases) -> Found:
    """Noise hides what was learned, or the likelihood is not normal there."""
    least_resolved, skewed_disagreement = 0.7, 4.0
    if not (run.resolved >= least_resolved or run.is_prior):
        yield care(
            f"noise hides the directions in which the data know the latents (draws of the curvature agree on {run.resolved:.0%} "
            "of what was learned): shares learned may be too large by a tenth or more, and predictions are too near the prior's",
            f"{add_up(run.together) or 'raise the budget, take fewer latents, or predict by dpppl.SVI'}.",
        )
    if run.one_sided:
        yield care(
            f"few rows, or rows whose responses are certain, inform '{run.one_sided}': its likelihood falls off on one side "
            "only, and its mean may be too near the prior's by more than its interval",
            "merge rare categories, drop the column that these rows have, or give the latent a narrower prior.",
            run.one_sided,
        )
    if max(run.agreement, run.arrival) >= skewed_disagreement and not any(unfinished(run)):
        what = f"the late looks disagree with the early ones by {run.agreement:.1f} sd"
        if run.arrival >= run.agreement:
            what = f"scores were summed {run.arrival:.1f} sd away from the posterior mean"
        yield care(
            f"{what}, more than their noise: the likelihood is skewed there, as where most probabilities are near 0 or 1, or a "
            "category is empty; its intervals may be too narrow."
        )


def of_latents(run: MeasuredReleases) -> Found:
    """Latents that are known only together, that can change places, or that are too many to know the sd among them."""
    if run.together:
        yield note(f"{add_up(run.together)}.")
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


CHECKS = (ignored, unfinished, failed, conflict, misfit, of_scores, of_looks, of_latents)
"""All findings on a run. Equally grave ones keep this order."""
