"""The distribution of rows' gradient norms, estimated from one noised histogram of their logarithms."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_statistic
from dpppl.access.mechanism import Mechanism
from dpppl.errors import ConfigurationError
from dpppl.row_program.hoist import gradient
from dpppl.subsampling import FullBatch
from dpppl.types import BySite, Function, Scalar, Tree

LOWEST, NUM_BINS = -40, 64
"""Bins of norms are octaves: number k holds those from 2^(LOWEST + k) to twice that; the last one holds longer ones, too."""
SILENT, MISSING, OUTSIDE = -3, -2, -1
"""The last bins: of rows whose norm is 0 (below 2^LOWEST), is not finite, or whose response is outside the support."""
SIZE = NUM_BINS + 3
FINE = 2
FINE_SIZE = FINE * NUM_BINS + 3
"""Finer bins, of an octave and in all: they tell norms apart, and find fewer rows, since every count has the same noise."""

_CELLS = 8  # of an octave in what is fitted
_EXPECTED, _NEGLIGIBLE = (0.0, 5.0), 1e-6
_SINGLE = 4, (0.2, 0.35, 0.6, 0.9, 1.3, 1.9)  # means to an octave, and sds, of one lognormal law
_PAIR, _CHANCE = (2, (0.35, 0.9)), 0.05  # the same of two laws, and the chance that there are two
_MISFIT, _FOUND, _CLEAR = 0.3, 0.1, 5.0
_SAFE, _FAR, _UNSEEN = 0.9, 2.0**10, 3.0

Array = np.ndarray


def in_bin(norm: jax.Array, is_outside: jax.Array | bool = False, in_an_octave: int = 1) -> jax.Array:
    """The bin of a row as a 1 among zeros, (SIZE,), or (FINE_SIZE,) with `FINE` bins in an octave.

    - **norm** - the row's norm, a traced scalar.
    - **is_outside** - whether its response is outside the support."""
    size = NUM_BINS * in_an_octave + 3
    number = jnp.clip(jnp.floor(in_an_octave * (jnp.log2(jnp.maximum(norm, 1e-30)) - LOWEST)), 0, size - 4)
    number = jnp.where(norm < 2.0**LOWEST, size + SILENT, number)
    number = jnp.where(jnp.isfinite(norm), number, size + MISSING)
    return jax.nn.one_hot(jnp.where(is_outside, size + OUTSIDE, number).astype(jnp.int32), size)


def gradient_norm(log_likelihood: Function, is_outside: Function = lambda z, row, public: False) -> Function:
    """The statistic of a row for `noisy_histogram`: the bin of the norm of its gradient in z.

    Its first argument is {"start": z, "far": two other points, stacked}. A norm at the start that is 1,000 times shorter
    than at both other points, as where factors of a product start at 0, is replaced by the shorter of theirs.

    - **log_likelihood** - the function of (z, row, public).
    - **is_outside** - `is_outside(z, row, public)`, whether a row's response is outside the support."""

    def norm(z: BySite, row: Tree, public: Tree) -> jax.Array:
        leaves = jax.tree.leaves(gradient(log_likelihood)(z, row, public))
        return jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in leaves))

    def statistic(at: Tree, row: Tree, public: Tree) -> Tree:
        near = norm(at["start"], row, public)
        far = jnp.min(jax.vmap(norm, (0, None, None))(at["far"], row, public))
        is_far = jnp.isfinite(far) & (_FAR * near < far)
        return in_bin(jnp.where(is_far, far, near), is_outside(at["start"], row, public))

    return statistic


def histogram_mechanism(discretise: bool = False) -> Mechanism:
    """The door that a histogram goes through: each row adds a vector of norm 1 at most, so counts move by 1 in all."""
    return Mechanism(clipping=Flat(1.0), subsampling=FullBatch(), discretise=discretise)


def noisy_histogram(
    statistic: Function, z: Tree, rows: Tree, public: Tree, *, key: jax.Array, noise_multiplier: Scalar,
    discretise: bool = False,
) -> jax.Array:  # fmt: skip
    """Counts of rows by bin, with noise, (SIZE,) float32: one access of `histogram_mechanism()`.

    - **statistic** - `statistic(z, row, public)`, the bin of a row as `in_bin` gives it.
    - **z**, **rows**, **public**, **key** - as for `door.noisy_statistic`.
    - **noise_multiplier** - sd of the noise in each count; the access costs noise_multiplier^-2 in mu^2.
    - **discretise** - as in `Mechanism`."""
    mechanism = histogram_mechanism(discretise)
    return noisy_statistic(mechanism, statistic, z, rows, public, key=key, noise_multiplier=noise_multiplier).total


@dataclass(frozen=True, eq=False)
class Norms:
    """The distribution of norms of the rows that inform the posterior, estimated from a noised histogram.

    - **edges** - cell edges, log2 of the norm, (cells + 1,).
    - **mass** - the share of these rows in each cell, (cells,).
    - **error** - sd, in octaves, of the location of the norms; above 1 the noise has drowned the counts.
    - **share** - these rows as a share of all rows.
    - **unseen** - so many sds of a count's noise as may hide rows, or make them up, as a share of these rows."""

    edges: Array
    mass: Array
    error: float
    share: float = 1.0
    unseen: float = 0.0

    @classmethod
    def fitted(
        cls, counts: np.ndarray, noise_std: float, num_rows: int, expected: tuple[float, float] = _EXPECTED,
        scale: float = 1.0, negligible: float = _NEGLIGIBLE,
    ) -> "Norms":  # fmt: skip
        """From noised counts, all of whose arguments are public.

        One or two lognormal distributions are fitted, all of a grid averaged by their evidence. Then every bin moves from the fit
        to its own count as far as the noise allows: where the fit has rows, or where a count stands out by five sds. With little
        noise this is the histogram, with much noise the fit. The shortest norms are cut off while they hold a negligible part
        of the information.

        - **counts** - noised counts, (SIZE,) or (FINE_SIZE,).
        - **noise_std** - sd of their noise.
        - **num_rows** - number of all rows.
        - **expected** - mean and sd, in octaves, of where norms are expected; matters where noise drowns the counts.
        - **scale** - sd of the prior along a latent. A norm of 1 / scale is as much information as the prior's.
        - **negligible** - the negligible part of the squared norms, each counted as at most 1 / scale^2.

        >>> counts = np.zeros(SIZE); counts[39:42] = 200.0, 600.0, 200.0      # norms around 2^(-40 + 40.5)
        >>> round(Norms.fitted(counts, 5.0, 1000).quantile(0.5), 2)
        1.41
        """
        counts = np.asarray(counts, np.float64)
        if counts.shape not in ((SIZE,), (FINE_SIZE,)) or not np.all(np.isfinite(counts)):
            raise ConfigurationError(f"a histogram of norms has {SIZE} or {FINE_SIZE} finite counts.")
        fine, error = _fit(counts, noise_std, num_rows, expected)
        counts, fit, noise = counts[:SILENT], fine.sum(axis=1), noise_std / num_rows
        free = _MISFIT * fit + _FOUND * (counts > _CLEAR * noise_std)
        share = np.maximum(0.0, fit + free**2 / (free**2 + noise**2 + 1e-300) * (counts / num_rows - fit))
        inside = (fine + 1e-9) / np.sum(fine + 1e-9, axis=1, keepdims=True)
        mass = (share[:, None] * inside).ravel()
        edges = np.linspace(LOWEST, LOWEST + NUM_BINS, _CELLS * NUM_BINS + 1)
        information = np.cumsum(mass * np.minimum(scale * 2.0 ** edges[1:], 1.0) ** 2)
        mass = np.where(information > negligible * information[-1], mass, 0.0)
        total = float(min(1.0, mass.sum()))
        return cls(edges, mass / mass.sum(), error, total, _UNSEEN * noise / max(total, 1e-30))

    def quantile(self, probability: float) -> float:
        """The norm that so large a share of the rows is not longer than."""
        below = np.concatenate([[0.0], np.cumsum(self.mass)])
        return float(2.0 ** np.interp(probability, below / below[-1], self.edges))

    @property
    def longest(self) -> float:
        """The longest norm that noise has not made up."""
        return self.quantile(max(0.5, 1.0 - self.unseen))

    @property
    def are_hidden(self) -> bool:
        """Whether noise has drowned the counts, so that the norms are those that were expected."""
        return not self.error < 1.0

    def high_quantile(self, probability: float) -> float:
        """That quantile; the .9 quantile of what is expected where noise has drowned the counts.

        This is larger than most norms, so that a run is too short rather than biased by clipping."""
        return self.quantile(_SAFE if self.are_hidden else probability)

    def mean(self, function: Callable[[Array], Array]) -> float:
        """The mean over rows of a function of their norms."""
        return float(np.sum(self.mass * function(self.middles)))

    @property
    def middles(self) -> Array:
        """The norm in the middle of each cell, (cells,)."""
        return 2.0 ** (0.5 * (self.edges[1:] + self.edges[:-1]))


@cache
def _laws(num_bins: int, means_to_an_octave: int, sds: tuple[float, ...]) -> tuple[Array, Array]:
    """Lognormal laws of a grid: means in octaves, (m,), and the share of each cell by bin, (m, num_bins, cells of a bin)."""
    from scipy.special import ndtr

    means = np.repeat(np.linspace(LOWEST, LOWEST + NUM_BINS, means_to_an_octave * NUM_BINS + 1), len(sds))
    inner = np.linspace(LOWEST, LOWEST + NUM_BINS, _CELLS * NUM_BINS + 1)[1:-1]
    inner = np.concatenate([[-np.inf], inner, [np.inf]])
    spread = np.resize(sds, len(means))
    return means, np.diff(ndtr((inner - means[:, None]) / spread[:, None]), axis=1).reshape(len(means), num_bins, -1)


def _fit(counts: Array, noise_std: float, num_rows: int, expected: tuple[float, float]) -> tuple[Array, float]:
    """The mean over one and over two laws, equally likely, of the share of rows in each cell by bin, and the sd of their
    means. How many rows a law has, is any number from 0 to all; together as many as other bins leave."""
    spread = noise_std**2 + num_rows**0.5  # no law fits better than the rows scatter
    left, left_variance = num_rows - counts[SILENT:].sum(), 3.0 * noise_std**2 + 1.0

    def informed(coarse: Array) -> Array:
        """The information on the numbers of rows of laws (m, bins), times these numbers."""
        return coarse @ counts[:SILENT] / spread + left / left_variance

    def prior(means: Array) -> Array:
        energy = 0.5 * ((means - expected[0]) / expected[1]) ** 2
        return -energy - np.log(np.sum(np.exp(-energy)))

    means, shares = _laws(len(counts) + SILENT, *_SINGLE)
    coarse = shares.sum(axis=2)
    told, curvature = informed(coarse), np.sum(coarse**2, axis=1) / spread + 1.0 / left_variance
    number = np.clip(told / curvature, 1.0, num_rows)
    volume = np.minimum(0.5 * np.log(2.0 * np.pi / curvature), np.log(num_rows))
    single = number * told - 0.5 * number**2 * curvature + volume - np.log(num_rows) + prior(means)

    two_means, two_shares = _laws(len(counts) + SILENT, *_PAIR)
    coarse = two_shares.sum(axis=2)
    told, information = informed(coarse), coarse @ coarse.T / spread + 1.0 / left_variance
    one, other = np.triu_indices(len(told), 1)
    own, others, cross = information[one, one], information[other, other], information[one, other]
    determinant = np.maximum(own * others - cross**2, 1e-300)
    first = (told[one] * others - told[other] * cross) / determinant
    second = (told[other] * own - told[one] * cross) / determinant
    volume = np.minimum(np.log(2.0 * np.pi) - 0.5 * np.log(determinant), np.log(0.5 * num_rows**2))
    pair = 0.5 * (first * told[one] + second * told[other]) + volume - np.log(0.5 * num_rows**2)
    pair += prior(two_means)[one] + prior(two_means)[other] + np.log(2.0 * _CHANCE)
    pair[(first <= 0.0) | (second <= 0.0) | (first + second > 2.0 * num_rows)] = -np.inf

    best = max(single.max(), pair.max())
    single, pair = np.exp(single - best), np.exp(pair - best)
    total = single.sum() + pair.sum()
    single, pair = single / total, pair / total
    numbers = np.bincount(one, pair * first, len(told)) + np.bincount(other, pair * second, len(told))
    fine = np.tensordot(single * number, shares, axes=1) + np.tensordot(numbers, two_shares, axes=1)
    kept = np.flatnonzero(pair)
    middle = (first[kept] * two_means[one[kept]] + second[kept] * two_means[other[kept]]) / (first + second)[kept]
    weights, middle = np.concatenate([single, pair[kept]]), np.concatenate([means, middle])
    return fine / num_rows, float(np.sum(weights * (middle - weights @ middle) ** 2) ** 0.5)
