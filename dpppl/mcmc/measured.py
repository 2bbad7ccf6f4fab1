"""Numbers on a run of chains: which elements have arrived, whether steps are short enough, and counts of rows.

The noise of every step is known, and independent from step to step. So where the gradient of a latent is zero, its positions are
a random walk of known variance, and the squared low-frequency cosine coefficients of its increments (a discrete cosine
transform over the draws) are chi-square. Where a chain drifts towards a distant posterior, the lowest frequencies have more
power. Where it has arrived, all low frequencies have less: increments add up to the displacement, which stays bounded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dpppl.findings.counted_rows import ClippedRows, CountedRows, rows_of
from dpppl.findings.finding import Finding
from dpppl.mcmc.bound import BoundKernel
from dpppl.types import BySite, Tree

FALSE_ALARM, LARGEST_EXCESS, LARGEST_WIDENING = 0.01, 0.5, 1.15
_FEWEST, _LEAST, _DRIFT, _SLOWEST, _SLOW = 50, 10, 8, 2, 8
_MOST_TOGETHER, _SHARE = 0.1, 0.1
_UNFOUNDED = 0.4  # a walk spans 30 relaxation times, of which this leaves the 12 that may be read, in .1 % of runs, and 12 in 7 %

Array = np.ndarray


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The effect of noise alone on preconditioned positions.

    - **moves** - variance of the last move before a draw, (chains, draws).
    - **ways** - variance of the increment from draw to draw, (chains, draws - 1).
    - **friction** - share of its momentum that a chain without forces loses in a step, 1 without momentum; or (chains, 1, 1).
    - **thinning** - steps from draw to draw.
    - **most** - largest factor by which subsampling raises both variances.
    - **heat** - temperature of full batches, mean over steps, divided by the target's."""

    moves: Array
    ways: Array
    friction: float | Array
    thinning: int = 1
    most: float = 1.0
    heat: float = 1.0


def noise_of(bound: BoundKernel, first_kept: int, draws: int, thinning: int, longest: Array) -> Noise:
    """The noise of a run.

    - **first_kept** - number of the first step that was collected.
    - **draws** - collected states of each chain.
    - **longest** - longest step size of each chain after its search, (chains,)."""
    kernel = bound.kernel
    moves, ways, frictions, most, heat = [], [], [], 1.0, 0.0
    rate = kernel.mechanism.subsampling.rate
    for step_size in longest:
        step_sizes, multipliers = kernel.shortened_schedule(first_kept, draws * thinning, step_size)
        std = kernel.noise_std(step_sizes, multipliers)
        friction = kernel.friction_at(std)
        way = 2.0 * kernel.temperature_at(step_sizes, std) * kernel.diffusion_time(step_sizes, std)
        moves.append((way * friction / (2.0 - friction))[thinning - 1 :: thinning])
        frictions.append(friction)
        ways.append(way.reshape(draws, thinning).sum(axis=1)[1:])
        heat = max(heat, float(np.mean(kernel.temperature_at(step_sizes, std))) / kernel.temperature)
        # No clipped gradient is longer than C, so a batch's sum over its rate varies by (1 - rate) / rate * N C^2 at most in any
        # direction, and the noise by (noise_multiplier C / rate)^2: variances of samples grow at most as the sum of both does.
        most = max(most, 1.0 + rate * (1.0 - rate) * bound.split.num_rows / np.min(multipliers) ** 2)
    return Noise(
        moves=np.array(moves), ways=np.array(ways), friction=np.reshape(frictions, (-1, 1, 1)), thinning=thinning,
        most=most, heat=heat,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """Whether elements of latent sites have arrived.

    - **moving** - by site, whether each element still drifts.
    - **held** - by site, whether the posterior bounds each element."""

    moving: Mapping[str, Array] = field(default_factory=dict)
    held: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, midpoints: Mapping[str, object], positions: BySite, noise: Noise) -> "Arrival":
        """Test collected states by site (chains, draws, ...), in preconditioned coordinates.

        An element is moving if its two slowest cosines are stronger than noise explains, or those of its site together
        while nothing holds it: 1 % of runs at most where nothing pulls. It is held if its eight slow cosines are weaker than
        noise alone would let them be, 1 % of elements that nothing holds, and those of combinations too: `_held_together`."""
        from scipy.special import chdtr, chdtrc  # scipy.stats takes half a second to import

        ways = {site: _cosines(np.asarray(midpoints[site]), np.asarray(z), noise) for site, z in positions.items()}
        count = sum(way.shape[2] for way in ways.values())
        moving, held = {}, {}
        for site, way in ways.items():
            chains, slow, size = way.shape
            power = way**2
            slowest = power[:, :_SLOWEST].sum(axis=(0, 1)) / noise.most
            freedom = chains * min(_SLOWEST, slow)
            alone = chdtrc(freedom, slowest) < 0.5 * FALSE_ALARM / count
            together = chdtrc(freedom * size, slowest.sum()) < 0.5 * FALSE_ALARM / len(ways)
            is_held = chdtr(chains * slow, power.sum(axis=(0, 1))) < FALSE_ALARM
            shape = np.shape(positions[site])[2:]
            moving[site], held[site] = (alone | (together & ~is_held)).reshape(shape), is_held
        flat = np.concatenate([way.reshape(way.shape[0] * way.shape[1], -1) for way in ways.values()], axis=1)
        every = _held_together(flat, np.concatenate([*held.values()]))
        parts = np.split(every, np.cumsum([len(own) for own in held.values()]))
        return cls(moving=moving, held={site: part.reshape(moving[site].shape) for site, part in zip(held, parts)})

    def of_samples(self, site: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """(moving, held) of a site in constrained space, whose draws have this shape: of its own elements, or the worst of them
        where their shape is another. A site that is computed from others has the worst of all sites."""
        sites = [site] if site in self.moving else list(self.moving)
        moving, held = ([by_site[s] for s in sites] for by_site in (self.moving, self.held))
        if len(sites) == 1 and moving[0].shape == shape:
            return moving[0], held[0]
        worst = any(np.any(m) for m in moving), bool(sites) and all(np.all(h) for h in held)
        return np.full(shape, worst[0]), np.full(shape, worst[1])


def _held_together(cosines: Array, held: Array) -> Array:
    """Whether elements that are held each by itself are held together, too, (elements,). `cosines`: (of all chains, elements).

    Where a posterior holds differences of elements and not their sum, each element has a part only of the sum's power. So the
    combination with the strongest cosines is tested as one element is, with a chance of 1 % for each and 10 % at most."""
    from scipy.special import chdtri

    own = np.flatnonzero(held)
    if not len(own):
        return held
    _, strengths, directions = np.linalg.svd(cosines[:, own], full_matrices=False)
    chance = min(_MOST_TOGETHER, FALSE_ALARM * len(own))
    shares = directions[strengths**2 >= chdtri(len(cosines), 1.0 - chance)] ** 2
    together = held.copy()
    together[own] = ~np.any(shares > _SHARE * shares.max(axis=1, keepdims=True, initial=0.0), axis=0)
    return together


def _cosines(midpoints: Array, positions: Array, noise: Noise) -> Array:
    """Slow cosines of a site's increments in units of their noise, (chains, cosines, elements); with momentum, of increments of
    where a free chain would come to rest, which are independent."""
    from scipy import fft

    chains, draws = positions.shape[:2]
    positions = positions.astype(np.float64).reshape(chains, draws, -1)
    with np.errstate(all="ignore"):  # what is not finite is neither moving nor held
        moves = 2.0 * (positions - midpoints.reshape(positions.shape))
        rest = positions + (1.0 - noise.friction) / noise.friction * moves
        increments = np.diff(rest, axis=1) / noise.ways[:, :, None] ** 0.5
        return np.asarray(fft.dct(increments, axis=1, norm="ortho")[:, :_SLOW])


@dataclass(frozen=True, kw_only=True)
class MeasuredChains:
    """Measurements of a run.

    - **step_size** - the largest step size after the search, smallest over chains.
    - **excess** - by latent site, the largest relative excess of the positions' variance over the samples'.
    - **moving** - sites with an element that still drifts.
    - **clipped** - the rows that were clipped while samples were taken; None where not measured.
    - **counted** - the rows that do not inform the posterior; None where not counted.
    - **relaxations** - by latent site, how many relaxation times of the posterior the samples of each element span; None without
      a metric, in which the time of a chain in units of the posterior's variance is known.
    - **metric_findings** - findings of the frame: clipping, misfit, latents known together only; see `Metric`.
    - **most**, **heat** - see `Noise`."""

    step_size: float
    excess: Mapping[str, float]
    moving: tuple[str, ...] = ()
    clipped: ClippedRows | None = None
    counted: CountedRows | None = None
    relaxations: Mapping[str, Array] | None = None
    metric_findings: tuple[Finding, ...] = ()
    most: float = 1.0
    heat: float = 1.0

    def relaxed(self, site: str, shape: tuple[int, ...]) -> Array:
        """`relaxations` of a site in constrained space: of its own elements, or the least."""
        found = self.relaxations or {}
        if site in found and np.shape(found[site]) == shape:
            return found[site]
        own = [found[site]] if site in found else [*found.values()]
        return np.full(shape, min((np.min(x, initial=np.inf) for x in own), default=0.0))

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
    def too_noisy(self) -> str:
        """By which noise sds may be more than 15 % too wide, and what to do; empty if by none."""
        widening = (self.most * self.heat) ** 0.5
        causes = {
            "noise above the sampler's own (step_size='matched', or a smaller one, has none)": self.heat,
            "sampling noise of batches (subsampling=dpppl.FullBatch() has none at the same epsilon; more steps or a larger "
            "noise_multiplier hide it)": self.most,
        }  # fmt: skip
        named = " and ".join(cause for cause, factor in causes.items() if factor > 1.01)
        return f"sds may be up to {widening:.2g} times as wide by {named}" if widening > LARGEST_WIDENING else ""

    @property
    def is_biased(self) -> bool:
        """Whether enough rows were clipped to bias the posterior."""
        return self.clipped is not None and self.clipped.is_biased


def measure(
    bound: BoundKernel, states: Tree, collected: BySite, first_kept: int, thinning: int
) -> tuple[MeasuredChains, Arrival]:
    """Measurements of a run, and which elements have arrived.

    - **collected** - fields of the states, leaves (chains, draws, ...), by name.
    - **first_kept** - number of the first step that was collected.
    - **thinning** - steps from one collected state to the next."""
    kernel = bound.kernel
    longest_steps = kernel.longest_steps(states.search)
    middle = bound.coordinates(collected["midpoint"])
    chains, draws = np.shape(next(iter(middle.values())))[:2]
    longest = min(float(longest_steps.min()), float(kernel.schedule(first_kept, max(1, draws * thinning))[0].max()))
    sums, clipped, counted = collected.get("clipped"), None, None
    if sums is not None and draws > 1:
        counts, error = mean_counts(sums, thinning)
        clipped, counted = rows_of(counts, error, kernel.mechanism.clipping, bound.split.num_rows, bound.codes)
    measured = MeasuredChains(step_size=longest, excess=dict.fromkeys(middle, 0.0), clipped=clipped, counted=counted)
    if not draws:
        return measured, Arrival()
    positions = bound.coordinates(collected.get("z", collected["midpoint"]))
    noise = noise_of(bound, first_kept, draws, thinning, np.broadcast_to(longest_steps, chains))
    arrival = Arrival.of(middle, positions, noise) if "z" in collected and draws > 2 else Arrival()
    if kernel.metric is not None and arrival.held:  # from its coordinates to the latents
        still, held = ({s: ~x for s, x in arrival.moving.items()}, arrival.held)
        still, held = ({s: x > 0 for s, x in kernel.metric.least(found).items()} for found in (still, held))
        arrival = Arrival(moving={s: ~x for s, x in still.items()}, held=held)
        time = 0.5 * float(noise.ways.sum())
        spans = {site: time / np.maximum(np.var(x, axis=(0, 1)), 1e-30) for site, x in middle.items()}
        least = kernel.metric.least(spans)
        relaxations = {site: x * np.where(kernel.metric.hides(site), _UNFOUNDED, 1.0) for site, x in least.items()}
        measured = replace(measured, relaxations=relaxations, metric_findings=kernel.metric.findings)
    moving = tuple(site for site, found in arrival.moving.items() if np.any(found))
    excess = excess_of(middle, positions, noise)
    return replace(measured, excess=excess, moving=moving, most=noise.most, heat=noise.heat), arrival


def mean_counts(sums: object, thinning: int) -> tuple[Array, float]:
    """Means over steps of counts of rows, and the sd of their noise; `sums`: `ChainState.clipped`, (chains, draws, ...)."""
    sums = np.asarray(sums, np.float64)
    steps = (sums.shape[1] - 1) * thinning
    means = ((sums[:, -1] - sums[:, 0]) / steps).mean(axis=0)
    return means[:-1], float((means[-1] / (steps * sums.shape[0])) ** 0.5)


def excess_of(midpoints: BySite, positions: BySite, noise: Noise) -> dict[str, float]:
    """`MeasuredChains.excess`, from collected midpoints and positions (chains, draws, ...) by site, as chains move.

    With m the midpoint of z and the one before, Var z = Var m + E (z - m)^2; means over chains and draws. The variance of fewer
    than 50 draws is too uncertain to use. So of the first 50, if there are ten, the power of moves in units of their noise is
    taken, too, without that of slow cosines, which a drift has: where the posterior is Gaussian, that is 1 more than the same
    excess. It counts where it is above what may pass by more than noise explains, with a chance of 1 % for the whole run."""
    from scipy import fft
    from scipy.special import chdtri

    found, count = {}, sum(max(1, int(np.prod(np.shape(z)[2:]))) for z in positions.values())
    free = 0.25 * noise.most * noise.moves[:, :_FEWEST]
    kept = (1.0 - noise.friction) ** (2 * noise.thinning)  # momentum correlates the squares of successive moves
    freedom = max(1.0, free.size * float(np.mean((1.0 - kept) / (1.0 + kept))))
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
