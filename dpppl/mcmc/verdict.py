"""Which sites may be read: verdicts from the samples, steps and counts that a run has released."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

from dpppl.mcmc.arrival import FALSE_ALARM, Arrival, Noise, noise_of
from dpppl.mcmc.bound import BoundKernel
from dpppl.model.supports import codes
from dpppl.report.counted_rows import BIASED, IGNORED, ClippedRows, CountedRows, rows_of
from dpppl.report.learned import LEARNED, PARTLY, PRIOR, Learned, Partner, named, shifts
from dpppl.report.verdict import line_of

READ, MEAN, CLIPPED = "read", "read the mean only", BIASED
SHORT, MOVING, UNSTABLE = "do not read: too short", "do not read: still moving", "do not read: unstable"
DEPENDS, _REFUSED = "do not read: depends on ", "do not read: "
_MOST_ALONE = 10_000
_FEWEST, _LEAST, _DRIFT = 50, 10, 8
SMALLEST_SIZE, LARGEST_R_HAT, LARGEST_EXCESS, SMALLEST_SIZE_FOR_MEAN = 50.0, 1.1, 0.5, 10.0
LARGEST_SHIFT, LARGEST_SHIFT_TO_READ = 1.0, 0.5

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of a run.

    - **step_size** - the largest step size after the search, smallest over chains.
    - **excess** - by latent site, the largest relative excess of the positions' variance over the samples'.
    - **moving** - sites with an element that still drifts.
    - **clipped** - the rows that were clipped while samples were taken; None where not measured.
    - **counted** - the rows that do not inform the posterior; None where not counted.
    """

    step_size: float
    excess: Mapping[str, float]
    moving: tuple[str, ...] = ()
    clipped: ClippedRows | None = None
    counted: CountedRows | None = None

    @property
    def over_long(self) -> tuple[str, ...]:
        """Sites whose steps are too long, or not finite."""
        return tuple(site for site, excess in self.excess.items() if not excess <= LARGEST_EXCESS)

    @property
    def too_long(self) -> str:
        """By how much to shorten steps that are too long: the excess of a variance grows as steps do."""
        worst = max((self.excess[site] for site in self.over_long), default=0.0)
        times = min(10, max(2, int(np.ceil(2.0 * worst / LARGEST_EXCESS)))) if np.isfinite(worst) else 10
        return (
            f"steps of {self.step_size:.3g} are too long for {', '.join(self.over_long)}: raise num_samples and num_warmup "
            f"{times}-fold, which shortens matched steps at no cost; a step_size of your own: {self.step_size / times:.2g}"
        )

    @property
    def is_biased(self) -> bool:
        """Whether so many rows were clipped that the posterior is biased."""
        return self.clipped is not None and self.clipped.is_biased


def measure(
    bound: BoundKernel, states: Any, collected: Mapping[str, Any], first: int, thinning: int
) -> tuple[Measured, Arrival]:
    """Measurements of a run, and which elements have arrived.

    - **bound** - the kernel that ran.
    - **states** - last states.
    - **collected** - fields of the states, leaves (chains, draws, ...), by name.
    - **first** - number of the first step that was collected.
    - **thinning** - steps from one collected state to the next.
    """
    kernel = bound.kernel
    longest_steps = kernel.longest_steps(states.search)
    middle = bound.to_metric(collected["midpoint"])
    chains, draws = np.shape(next(iter(middle.values())))[:2]
    longest = min(float(longest_steps.min()), float(kernel.schedule(first, max(1, draws * thinning))[0].max()))
    sums, clipped, counted = collected.get("clipped"), None, None
    if sums is not None and draws > 1:
        counts, error = mean_counts(sums, thinning)
        clipped, counted = rows_of(counts, error, kernel.mechanism.clipping, bound.split.num_rows, codes(bound.split))
    measured = Measured(step_size=longest, excess=dict.fromkeys(middle, 0.0), clipped=clipped, counted=counted)
    if not draws:
        return measured, Arrival()
    positions = bound.to_metric(collected.get("z", collected["midpoint"]))
    noise = noise_of(bound, first, draws, thinning, np.broadcast_to(longest_steps, chains))
    arrival = Arrival.of(middle, positions, noise) if "z" in collected and draws > 2 else Arrival()
    moving = tuple(site for site, found in arrival.moving.items() if np.any(found))
    return replace(measured, excess=excess_of(middle, positions, noise), moving=moving), arrival


def excess_of(midpoints: Mapping[str, Any], positions: Mapping[str, Any], noise: Noise) -> dict[str, float]:
    """`Measured.excess`, from collected midpoints and positions (chains, draws, ...) by site, as chains move.

    With m the midpoint of z and the one before, Var z = Var m + E (z - m)^2; means over chains and draws. The variance of fewer
    than 50 draws tells nothing. So of the first 50, if there are ten, the power of moves in units of their noise is taken,
    too, without that of slow cosines, which a drift has: where the posterior is Gaussian, that is 1 more than the same
    excess. It counts where it is above what may pass by more than noise explains, with a chance of 1 % for the whole run."""
    from scipy import fft
    from scipy.special import chdtri

    found, count = {}, sum(max(1, int(np.prod(np.shape(z)[2:]))) for z in positions.values())
    free = 0.25 * noise.most * noise.moves[:, :_FEWEST]
    freedom = max(1.0, free.size * noise.independent)
    chance = chdtri(freedom, FALSE_ALARM / count) / freedom
    for site, position in positions.items():
        middle, off = np.asarray(midpoints[site], np.float64), np.asarray(position, np.float64)
        if not (np.all(np.isfinite(middle)) and np.all(np.isfinite(off))):
            found[site] = np.inf
            continue
        squares, found[site] = (off - middle) ** 2, 0.0
        if middle.shape[1] >= _LEAST:
            moves = (off - middle)[:, :_FEWEST].reshape(*free.shape, -1) / free[:, :, None] ** 0.5
            fast = fft.dct(moves, axis=1, norm="ortho")[:, min(_DRIFT, free.shape[1] // 4) :]
            ratio = float(np.sum(fast**2, axis=(0, 1)).max(initial=0.0)) / free.size
            found[site] = ratio - 1.0 if ratio > (1.0 + LARGEST_EXCESS) * chance else 0.0
        if middle.shape[1] >= _FEWEST:
            with np.errstate(all="ignore"):
                ratios = np.mean(squares, axis=(0, 1)) / np.mean(np.var(middle, axis=1), axis=0)
            found[site] = max(found[site], float(np.nan_to_num(ratios).max(initial=0.0)))
    return found


def mean_counts(sums: Any, thinning: int) -> tuple[Array, float]:
    """Means over steps of counts of rows, and the sd of their noise.

    - **sums** - running sums of `DPKernel`'s states, at least two draws: (chains, draws, NUM_COUNTS + 1).
    - **thinning** - steps from draw to draw.
    """
    sums = np.asarray(sums, np.float64)
    steps = (sums.shape[1] - 1) * thinning
    means = ((sums[:, -1] - sums[:, 0]) / steps).mean(axis=0)
    return means[:-1], float((means[-1] / (steps * sums.shape[0])) ** 0.5)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Which elements of a run's samples may be read.

    - **words** - by site, the verdict on each element, constrained.
    - **learned** - by site, "learned", "partly" or "prior" for each element that has arrived, else "".
    - **measured** - of the run.
    """

    words: dict[str, Array]
    learned: dict[str, Array]
    measured: Measured

    @property
    def by_site(self) -> dict[str, Array]:
        """A word for each element of each site: see `reading`."""
        return self.words

    @property
    def refusals(self) -> list[str]:
        """Why elements should not be read, a line for each reason."""
        return [line.removeprefix(_REFUSED) for line in verdict_lines(self) if line.startswith(_REFUSED)]

    @property
    def doubts(self) -> list[str]:
        """Lines on the elements of which only a part may be read."""
        return [line for line in verdict_lines(self) if line.startswith((MEAN, CLIPPED, PRIOR))]

    def line(self) -> str:
        """The worst of all findings, in one line."""
        return line_of(self.refusals, self.doubts, "all elements have arrived")


def reading(samples: Mapping[str, Any], measured: Measured, arrival: Arrival, prior: Mapping[str, Array]) -> Reading:
    """The verdict on each element of each site.

    "too short": fewer than 50 effective samples in all, or a split R-hat above 1.1. "read the mean only": too short, but held
    by the posterior, with ten effective samples of each chain or more. "still moving": the positions drift. See `Arrival`.
    "unstable": the step is so long that positions spread 1.5 times as wide as the samples (variances), or values are not
    finite; a site computed from others has the worst of theirs. "biased by clipping": of what would be read, where more
    rows were clipped than N^(-1/2) of them. "prior": it would be read, and its spread and location are the prior's. "depends
    on ...": it would be read, but latents that have not arrived may move it by more than its sd; where that is more than
    half an sd, at most its mean is read.

    - **samples** - constrained, {site: (chains, draws, ...)}.
    - **measured**, **arrival** - of the run.
    - **prior** - prior draws of the same sites, {site: (any number, ...)}.
    """
    words, learned, sizes, flat = {}, {}, {}, {}
    for site, value in samples.items():
        value = np.asarray(value, np.float64)
        size, r_hat = _mixing(value)
        words[site] = _alone(site, value, size, r_hat, measured, arrival).reshape(-1)
        flat[site], sizes[site] = value.reshape(value.shape[0] * value.shape[1], -1), size.reshape(-1)
        learned[site] = np.full(len(words[site]), "", dtype=object)
        compared = np.flatnonzero(_has_arrived(words[site]) & np.isfinite(sizes[site]))
        if len(compared):
            draws = prior[site].reshape(len(prior[site]), -1)[:, compared]
            learned[site][compared] = Learned.of(flat[site][:, compared], sizes[site][compared], draws).words
        words[site] = np.where(learned[site] == PRIOR, PRIOR, words[site])
    partners = []
    for site in measured.excess:  # the latents
        if np.any(late := ~_has_arrived(words[site])):
            draws = prior[site].reshape(len(prior[site]), -1)
            partners.append(Partner.of(site, flat[site][:, late], draws[:, late]))
    for site in words if partners else ():
        _hold_back(words[site], flat[site], sizes[site], partners)
        learned[site][~_has_arrived(words[site])] = ""
    shapes = {site: np.shape(value)[2:] for site, value in samples.items()}
    by_shape = lambda found: {site: value.reshape(shapes[site]) for site, value in found.items()}  # noqa: E731
    return Reading(words=by_shape(words), learned=by_shape(learned), measured=measured)


def refused_alone(samples: Mapping[str, Any], measured: Measured, arrival: Arrival) -> list[str]:
    """The sites with an element that should not be read, by itself; of more than 10,000 elements only whether they move.

    The part of `reading` that needs neither other elements nor the prior, and so takes a moment.

    - **samples**, **measured**, **arrival** - as for `reading`."""
    found = []
    for site, value in samples.items():
        shape, is_small = np.shape(value)[2:], np.size(value) <= _MOST_ALONE * np.shape(value)[0] * np.shape(value)[1]
        value = np.asarray(value, np.float64)
        size, r_hat = _mixing(value) if is_small else (np.full(shape, np.inf), np.ones(shape))
        words = _alone(site, value, size, r_hat, measured, arrival)
        if not np.all(_has_arrived(words)):
            found.append(site)
    return found


def _alone(site: str, value: Array, size: Array, r_hat: Array, measured: Measured, arrival: Arrival) -> Array:
    """The verdict on each element by itself, without a look at other elements and at the prior."""
    unstable = site in measured.over_long or (site not in measured.excess and bool(measured.over_long))
    moving, held = arrival.of_samples(site, value.shape[2:])
    words = np.full(value.shape[2:], SHORT, dtype=object)
    words[held & (size >= SMALLEST_SIZE_FOR_MEAN * len(value))] = CLIPPED if measured.is_biased else MEAN
    words[(size >= SMALLEST_SIZE) & (r_hat <= LARGEST_R_HAT)] = CLIPPED if measured.is_biased else READ
    words[moving] = MOVING
    words[~np.all(np.isfinite(value), axis=(0, 1)) | unstable] = UNSTABLE
    if measured.counted is not None and measured.counted.refusals:
        words[_has_arrived(words)] = IGNORED
    return words


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


def _mixing(value: Array) -> tuple[Array, Array]:
    """(effective samples, split R-hat) of each element of (chains, draws, ...); constants are known."""
    still = np.ptp(value, axis=(0, 1)) == 0.0
    if value.shape[1] < 4:
        return np.zeros(value.shape[2:]), np.full(value.shape[2:], np.inf)
    with np.errstate(all="ignore"):
        size, r_hat = effective_sample_size(value), split_gelman_rubin(value)
    return np.where(still, np.inf, size), np.where(still, 1.0, r_hat)


def verdict_lines(found: Reading) -> list[str]:
    """The verdicts in some sentences, with what to do about them."""
    measured = found.measured
    words = np.concatenate([np.ravel(v) for v in found.words.values()])
    norm = "" if measured.is_biased else " or a smaller clipping_norm"
    longer = f"the budget bounds the diffusion time: more rows, a larger epsilon{norm}"
    cures = {
        READ: "",
        MEAN: f"it is within about a posterior sd of the posterior's; the spread is not known to be; {longer}",
        CLIPPED: "",
        PRIOR: "the data changed neither spread nor location; use more rows or a larger epsilon, and check masks, the coding of "
        "the data and clipping_norm",
        IGNORED: "the model cannot use all rows",
        SHORT: f"neither mean nor spread is known to be the posterior's; {longer}",
        MOVING: "noisy gradients show a steady drift, so the mean reflects the transient: raise num_warmup, or start nearer "
        f"(init_strategy); {longer}",
        DEPENDS: "these latents have not arrived, and the samples do not exclude that the mean moves with them; centre and "
        f"scale the columns; {longer}",
        UNSTABLE: measured.too_long,
    }
    lines = []
    for verdict, cure in cures.items():
        is_meant = lambda word: word == verdict or (verdict == DEPENDS and word.startswith(DEPENDS))  # noqa: B023, E731
        for word in filter(is_meant, dict.fromkeys(map(str, words))):
            lines.append(f"{word}: {_count(found.words, word)}{'; ' + cure if cure else ''}")
    by_word = [(word, _count(found.learned, word)) for word in (LEARNED, PARTLY, PRIOR)]
    if any(count for _, count in by_word):
        lines.append("from the data: " + ", ".join(f"{word} {count}" for word, count in by_word if count))
    lines += [] if measured.clipped is None else [str(measured.clipped)]
    return lines if measured.counted is None else [*lines, *measured.counted.lines]


def _count(words: Mapping[str, Array], word: str) -> str:
    """How many elements have this word, and of which sites; "" for none."""
    count, size = (sum(int(np.sum(found(v))) for v in words.values()) for found in (lambda v: v == word, np.ones_like))
    sites = [site for site, v in words.items() if np.any(v == word)]
    return f"{count} of {size} ({', '.join(sites[:6])}{', ...' if len(sites) > 6 else ''})" if count else ""
