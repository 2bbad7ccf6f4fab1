"""Which elements may be read: the verdict from the samples, steps and counts that a run has released. No further access."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

from dpppl.findings.counted_rows import BIASED, IGNORED
from dpppl.findings.finding import REFUSED, Finding, Found, Level, Verdict, care, findings_of, note, refused, sites_with
from dpppl.findings.learned import LEARNED, PARTLY, PRIOR, Learned, Partner, named, shifts
from dpppl.mcmc.measured import Arrival, MeasuredChains
from dpppl.report.labels import NO_LABELS, Labels
from dpppl.types import BySite

READ, MEAN, CLIPPED = "read", "read the mean only", BIASED
SHORT, MOVING, UNSTABLE = "do not read: too short", "do not read: still moving", "do not read: unstable"
WRONG = "do not read: the model is wrong"
DEPENDS = "do not read: depends on "
_MOST_ALONE = 10_000
SMALLEST_SIZE, LARGEST_R_HAT, SMALLEST_SIZE_FOR_MEAN = 50.0, 1.1, 10.0
LARGEST_SHIFT, LARGEST_SHIFT_TO_READ = 1.0, 0.5
RELAXED, RELAXED_MEAN = 12.0, 6.0
"""Relaxation times that make a mean's error by chance .41 posterior sds, and a width's a fifth; and a mean's .58."""

Array = np.ndarray


def of_rows(run: "ChainVerdict") -> Sequence[Finding]:
    """The rows that do not inform the posterior."""
    return () if run.measured.counted is None else run.measured.counted.findings


def of_elements(run: "ChainVerdict") -> Found:
    """A finding for each word that elements have, but for those of rows and of the norm."""
    norm = "" if run.measured.is_biased else " or a smaller clipping_norm"
    longer = f"the budget bounds the diffusion time: more rows, a larger epsilon{norm}"
    if run.measured.relaxations is not None:
        least = min((x for own in run.measured.relaxations.values() for x in np.ravel(own) if x), default=0.0)
        longer = f"samples span {least:.2g} relaxation times of the posterior, {RELAXED:g} are enough; {longer}"
    data = "use more rows or a larger epsilon, and check masks, the coding of the data and clipping_norm"
    by_word = (
        refused(UNSTABLE, run.measured.too_long),
        refused(MOVING, "noisy gradients show a steady drift, so the mean reflects the transient: raise num_warmup, or start "
                f"nearer (init_strategy); {longer}"),
        refused(SHORT, f"neither mean nor spread is known to be the posterior's; {longer}"),
        refused(DEPENDS, "these latents have not arrived, and the samples do not exclude that the mean moves with them; centre "
                f"and scale the columns; {longer}"),
        care(MEAN, "it is within about a posterior sd of the posterior's; the spread is not known to be; "
             f"{run.measured.too_noisy or longer}"),
        care(CLIPPED), care(PRIOR, f"the data changed neither spread nor location; {data}"), note(READ),
    )  # fmt: skip
    words = dict.fromkeys(str(word) for own in run.words.values() for word in np.ravel(own))
    for finding in by_word:
        for word in words:
            if word == finding.words or (finding.words == DEPENDS and word.startswith(DEPENDS)):
                shown, sites = _count(run.words, word)
                yield replace(finding, words=f"{word.removeprefix(f'{REFUSED}: ')}: {shown}", latent=sites)


def of_data(run: "ChainVerdict") -> Found:
    """How much the data informed the elements that have arrived, and the rows that were clipped."""
    counts = [(word, _count(run.learned, word)) for word in (LEARNED, PARTLY, PRIOR)]
    if from_data := ", ".join(f"{word} {shown}" for word, (shown, sites) in counts if sites):
        yield note(f"from the data: {from_data}")
    if run.measured.clipped is not None:
        yield note(str(run.measured.clipped))
    yield from run.measured.metric_findings


def _count(words: Mapping[str, Array], word: str) -> tuple[str, str]:
    """How many elements have this word, and of which sites."""
    count, sites = sites_with(word, words)
    return f"{count} of {sum(np.size(own) for own in words.values())} ({sites})", sites


@dataclass(frozen=True, kw_only=True, repr=False)
class ChainVerdict(Verdict):
    """Which elements of a run's samples may be read.

    - **words** - by site, the verdict on each element, constrained.
    - **learned** - by site, "learned", "partly" or "prior" for each element that has arrived, else "".
    - **measured** - of the run.
    - **labels** - of elements."""

    words: dict[str, Array]
    learned: dict[str, Array]
    measured: MeasuredChains
    labels: Labels = NO_LABELS

    otherwise = "all elements have arrived"

    @property
    def by_site(self) -> dict[str, Array]:
        """A word for each element of each site: see `reading`."""
        return self.words

    @property
    def findings(self) -> list[Finding]:
        return self.by_label(findings_of(self, of_rows, of_elements, of_data))

    def of_sites(self, sites: Iterable[str]) -> "ChainVerdict":
        """The verdict on the elements of some sites."""
        words, learned = ({site: own[site] for site in sites} for own in (self.words, self.learned))
        return replace(self, words=words, learned=learned)


def reading(samples: BySite, measured: MeasuredChains, arrival: Arrival, prior: Mapping[str, Array]) -> ChainVerdict:
    """The verdict on each element of each site.

    "too short": fewer than 50 effective samples in all, or a split R-hat above 1.1. "read the mean only": too short, but held by
    the posterior, with ten effective samples of each chain or more. With a frame: fewer than 12 relaxation times, 6 or more. Or
    the noise of steps may widen sds by more than 15 %. "still moving": the positions drift. See `Arrival`. "unstable": the step
    is so long that positions spread 1.5 times as wide as the samples (variances), or values are not finite; a site computed from
    others has the worst of theirs. "the model is wrong": it would be read, but clipping moves estimates, see `Metric`. "biased by
    clipping": of what would be read, where more rows were clipped than N^(-1/2) of them. "prior": it would be read, and its
    spread and location are the prior's. "depends on ...": latents that have not arrived may move it by more than its sd. Where
    they may move it by half an sd to one sd, at most "read the mean only".

    - **samples** - constrained, {site: (chains, draws, ...)}.
    - **prior** - prior draws of the same sites, {site: (any number, ...)}."""
    words, learned, sizes, flat = {}, {}, {}, {}
    for site, value in samples.items():
        value = np.asarray(value, np.float64)
        own, size = _alone(site, value, measured, arrival)
        words[site] = own.reshape(-1)
        flat[site], sizes[site] = value.reshape(value.shape[0] * value.shape[1], len(words[site])), size.reshape(-1)
        learned[site] = np.full(len(words[site]), "", dtype=object)
        compared = np.flatnonzero(_has_arrived(words[site]) & np.isfinite(sizes[site]))
        if len(compared):
            draws = prior[site].reshape(len(prior[site]), -1)[:, compared]
            learned[site][compared] = Learned.of(flat[site][:, compared], sizes[site][compared], draws).words
        words[site] = np.where(learned[site] == PRIOR, PRIOR, words[site])
    partners = []
    for site in measured.excess:  # the latents
        if len(flat[site]) and np.any(late := ~_has_arrived(words[site])):
            draws = prior[site].reshape(len(prior[site]), -1)
            partners.append(Partner.of(site, flat[site][:, late], draws[:, late]))
    for site in words if partners else ():
        _hold_back(words[site], flat[site], sizes[site], partners)
        learned[site][~_has_arrived(words[site])] = ""
    shapes = {site: np.shape(value)[2:] for site, value in samples.items()}
    by_shape = lambda found: {site: value.reshape(shapes[site]) for site, value in found.items()}  # noqa: E731
    return ChainVerdict(words=by_shape(words), learned=by_shape(learned), measured=measured)


def refused_alone(samples: BySite, measured: MeasuredChains, arrival: Arrival) -> list[str]:
    """The sites with an element that should not be read, by itself; of more than 10,000 elements only whether they move.

    The part of `reading` that needs neither other elements nor the prior, and so takes a moment."""
    values = {site: np.asarray(value, np.float64) for site, value in samples.items()}
    words = {site: _alone(site, value, measured, arrival, _MOST_ALONE)[0] for site, value in values.items()}
    return [site for site, own in words.items() if not np.all(_has_arrived(own))]


def _alone(
    site: str, value: Array, measured: MeasuredChains, arrival: Arrival, most: float = np.inf
) -> tuple[Array, Array]:
    """The verdict on each element by itself, without a look at other elements and at the prior, and its effective sample size,
    which is not computed of more than `most` elements."""
    shape = value.shape[2:]
    is_small = np.prod(shape) <= most
    size, r_hat = mixing(value) if is_small else (np.full(shape, np.inf), np.ones(shape))
    unstable = site in measured.over_long or (site not in measured.excess and bool(measured.over_long))
    moving, held = arrival.of_samples(site, shape)
    words = np.full(shape, SHORT, dtype=object)
    if measured.relaxations is None:
        is_long = (size >= SMALLEST_SIZE) & (r_hat <= LARGEST_R_HAT)
        has_mean = held & (size >= SMALLEST_SIZE_FOR_MEAN * len(value))
    else:  # a free walk of a posterior's variance spans 3 on average, and as many as the first in 7 % of runs
        spans = measured.relaxed(site, shape)
        is_long, has_mean = spans >= RELAXED, held & (spans >= RELAXED_MEAN)
    words[has_mean] = CLIPPED if measured.is_biased else MEAN
    words[is_long] = CLIPPED if measured.is_biased else MEAN if measured.too_noisy else READ
    words[moving] = MOVING
    words[~np.all(np.isfinite(value), axis=(0, 1)) | unstable] = UNSTABLE
    if measured.counted is not None and measured.counted.refusals:
        words[_has_arrived(words)] = IGNORED
    elif any(finding.level == Level.REFUSED for finding in measured.metric_findings):
        words[_has_arrived(words)] = WRONG
    return words, size


def _has_arrived(words: Array) -> Array:
    return np.isin(words.astype(str), (READ, MEAN, CLIPPED, PRIOR))


def _hold_back(words: Array, values: Array, sizes: Array, partners: Sequence[Partner]) -> None:
    """Change the words of the elements that `partners` may move."""
    own = np.flatnonzero(np.isin(words.astype(str), (READ, MEAN, CLIPPED)) & np.isfinite(sizes))
    if not len(own):
        return
    squares = shifts(values[:, own], np.std(values[:, own], axis=0), sizes[own], partners)
    for place, square in enumerate(np.sum(list(squares.values()), axis=0)):
        if square > LARGEST_SHIFT**2:
            words[own[place]] = f"{DEPENDS}{named(squares, place)}"
        elif square > LARGEST_SHIFT_TO_READ**2 and words[own[place]] == READ:
            words[own[place]] = MEAN


def mixing(value: Array) -> tuple[Array, Array]:
    """(effective samples, split R-hat) of each element of (chains, draws, ...); constants are known, fewer than 4 draws not."""
    if value.shape[1] < 4:
        return np.zeros(value.shape[2:]), np.full(value.shape[2:], np.inf)
    still = np.ptp(value, axis=(0, 1)) == 0.0
    with np.errstate(all="ignore"):
        size, r_hat = effective_sample_size(value), split_gelman_rubin(value)
    return np.where(still, np.inf, size), np.where(still, 1.0, r_hat)
