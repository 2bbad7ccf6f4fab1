"""Whether a chain has reached the posterior, tested on its released positions: no further access.

The noise of every step is known, and independent from step to step. So where the gradient of a latent is zero, its positions are
a random walk of known variance, and the squared low-frequency cosine coefficients of its increments (a discrete cosine
transform over the draws) are chi-square. Where a chain drifts towards a distant posterior, the lowest frequencies have more
power. Where it has arrived, all low frequencies have less: increments add up to the displacement, which stays bounded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpppl.mcmc.bound import BoundKernel

FALSE_ALARM = 0.01
_SLOWEST, _SLOW = 2, 8
_MOST_TOGETHER, _SHARE = 0.1, 0.1

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The effect of noise alone on preconditioned positions.

    - **moves** - variance of the last move before a draw, (chains, draws).
    - **ways** - variance of the increment from draw to draw, (chains, draws - 1).
    - **friction** - share of its momentum that a chain without forces loses in a step, 1 without momentum.
    - **thinning** - steps from draw to draw.
    - **most** - largest factor by which subsampling raises both variances.
    """

    moves: Array
    ways: Array
    friction: float
    thinning: int = 1
    most: float = 1.0

    @property
    def independent(self) -> float:
        """How many independent moves one of a row of draws is worth: their squares are correlated by momentum."""
        kept = (1.0 - self.friction) ** (2 * self.thinning)
        return float((1.0 - kept) / (1.0 + kept))


def noise_of(bound: BoundKernel, first: int, draws: int, thinning: int, longest: Array) -> Noise:
    """The noise of a run.

    - **bound** - the kernel that ran.
    - **first** - number of the first step that was collected.
    - **draws** - collected states of each chain.
    - **thinning** - steps from draw to draw.
    - **longest** - longest step size of each chain after its search, (chains,).
    """
    kernel = bound.kernel
    moves, ways, friction, most = [], [], 1.0, 0.0
    rate = kernel.mechanism.subsampling.rate
    for step_size in longest:
        step_sizes, multipliers = kernel.shortened_schedule(first, draws * thinning, step_size)
        std = kernel.noise_std(step_sizes, multipliers)
        friction = kernel.friction_at(std)
        way = 2.0 * kernel.temperature_at(step_sizes, std) * kernel.diffusion_time(step_sizes, std)
        moves.append((way * friction / (2.0 - friction))[thinning - 1 :: thinning])
        ways.append(way.reshape(draws, thinning).sum(axis=1)[1:])
        most = max(most, rate * (1.0 - rate) * bound.split.num_rows / np.min(multipliers) ** 2)
    return Noise(
        moves=np.array(moves),
        ways=np.array(ways),
        friction=float(np.mean(friction)),
        thinning=thinning,
        most=1.0 + most,
    )


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """Whether elements of latent sites have arrived.

    - **moving** - by site, whether each element still drifts.
    - **held** - by site, whether the posterior bounds each element.
    """

    moving: Mapping[str, Array] = field(default_factory=dict)
    held: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, midpoints: Mapping[str, Any], positions: Mapping[str, Any], noise: Noise) -> "Arrival":
        """Test the collected states, in preconditioned coordinates.

        - **midpoints**, **positions** - (chains, draws, ...) by site.
        - **noise** - the noise of the run.

        An element is moving if its two slowest cosines are stronger than noise explains, or those of its site together
        while nothing holds it. The chance of that where nothing pulls is at most 1 % for the whole run, and less where a
        posterior holds it. It is held if its eight slow cosines are weaker than noise alone would let them be: 1 % for an
        element that nothing holds. So must be those of every combination of held elements: see `_held_together`."""
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
            moving[site] = (alone | (together & ~is_held)).reshape(shape)
            held[site] = is_held
        flat = np.concatenate([way.reshape(-1, way.shape[2]) for way in ways.values()], axis=1)
        parts = np.split(
            _held_together(flat, np.concatenate(list(held.values()))), np.cumsum([len(h) for h in held.values()])
        )
        return cls(moving=moving, held={site: part.reshape(moving[site].shape) for site, part in zip(held, parts)})

    def of_samples(self, site: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """(moving, held) of a site in constrained space: of its own elements, or the worst of them where their shape is
        another; of a site that is computed from others the worst of all.

        - **site** - name of the site.
        - **shape** - shape of one draw of it.
        """
        sites = [site] if site in self.moving else list(self.moving)
        moving, held = ([by_site[s] for s in sites] for by_site in (self.moving, self.held))
        if len(sites) == 1 and moving[0].shape == shape:
            return moving[0], held[0]
        worst = any(np.any(m) for m in moving), bool(sites) and all(np.all(h) for h in held)
        return np.full(shape, worst[0]), np.full(shape, worst[1])


def _held_together(cosines: Array, held: Array) -> Array:
    """Which of the elements that are held each by itself are held together, too: (elements,).

    Where a posterior holds differences of elements and not their sum, each element has a part only of the power that the sum
    has. So the combination of held elements with the strongest cosines is tested as one element is, with a chance of 1 %
    for each of them and 10 % at most. Elements of a combination that is not held are not held.

    - **cosines** - slow cosines in units of their noise, (cosines of all chains, elements).
    - **held** - whether each element is held by itself, (elements,)."""
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
    """Slow cosines of a site's increments in units of their noise, (chains, cosines, elements).

    With momentum the increments are those of where a free chain would come to rest, which are independent."""
    from scipy import fft

    chains, draws = positions.shape[:2]
    positions = positions.astype(np.float64).reshape(chains, draws, -1)
    with np.errstate(all="ignore"):  # what is not finite is neither moving nor held
        moves = 2.0 * (positions - midpoints.reshape(positions.shape))
        rest = positions + (1.0 - noise.friction) / noise.friction * moves
        increments = np.diff(rest, axis=1) / noise.ways[:, :, None] ** 0.5
        return np.asarray(fft.dct(increments, axis=1, norm="ortho")[:, :_SLOW])
