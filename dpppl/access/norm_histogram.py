"""The distribution of rows' gradient norms, estimated from one noised histogram of their logarithms."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.clipping import Flat
from dpppl.access.mechanism import Mechanism
from dpppl.errors import ConfigurationError
from dpppl.row_program.hoist import gradient
from dpppl.subsampling import FullBatch

LOWEST, NUM_BINS = -18, 40
"""Bins are octaves: number k holds the norms from 2^(LOWEST + k) to twice that; the outer ones hold the rest, too."""

_FINE = 8  # cells of an octave in what is fitted
_MEANS = np.linspace(LOWEST, LOWEST + NUM_BINS, 4 * NUM_BINS + 1)
_SDS = np.array([0.2, 0.35, 0.6, 0.9, 1.3, 1.9])
_EXPECTED = (0.0, 5.0)
_MISFIT, _FOUND, _CLEAR = 0.3, 0.1, 5.0

Array = np.ndarray[Any, np.dtype[Any]]


def in_bin(norm: Any) -> Any:
    """Which bin a norm, a traced scalar, lies in: a 1 among zeros (NUM_BINS,); all zeros if it is not finite."""
    number = jnp.floor(jnp.log2(jnp.maximum(norm, 1e-30))) - LOWEST
    one = jax.nn.one_hot(jnp.clip(number, 0, NUM_BINS - 1).astype(jnp.int32), NUM_BINS)
    return jnp.where(jnp.isfinite(norm), one, 0.0)


def gradient_norm(log_likelihood: Callable[..., Any]) -> Callable[..., Any]:
    """The statistic of a row for `noisy_histogram`: the bin of the norm of its gradient in z."""

    def statistic(z: Any, row: Any, public: Any) -> Any:
        leaves = jax.tree.leaves(gradient(log_likelihood)(z, row, public))
        return in_bin(jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in leaves)))

    return statistic


def histogram_mechanism(discretise: bool = False) -> Mechanism:
    """The door that a histogram goes through: each row adds a vector of norm 1 at most, so counts move by 1 in all."""
    return Mechanism(clipping=Flat(1.0), subsampling=FullBatch(), discretise=discretise)


def noisy_histogram(
    statistic: Callable[..., Any], z: Any, rows: Any, public: Any, *, key: Any, noise_multiplier: Any, step: Any = 0,
    discretise: bool = False,
) -> Any:  # fmt: skip
    """Counts of rows by bin, with noise, (NUM_BINS,) float32: one access of `histogram_mechanism()`.

    - **statistic** - `statistic(z, row, public)`, the bin of a row as `in_bin` gives it.
    - **z**, **rows**, **public**, **key**, **step** - as for `Mechanism.noisy_statistic`.
    - **noise_multiplier** - sd of the noise in each count; the access costs noise_multiplier^-2 in mu^2.
    - **discretise** - as in `Mechanism`."""
    mechanism = histogram_mechanism(discretise)
    return mechanism.noisy_statistic(
        statistic, z, rows, public, key=key, noise_multiplier=noise_multiplier, step=step
    ).total


@dataclass(frozen=True, eq=False)
class Norms:
    """The distribution of rows' norms, estimated from a noised histogram.

    - **edges** - cell edges, log2 of the norm, (cells + 1,).
    - **mass** - the share of the rows in each cell, (cells,).
    - **error** - sd, in octaves, of the location of the norms; above 1 the noise has drowned the counts."""

    edges: Array
    mass: Array
    error: float

    @classmethod
    def fitted(cls, counts: Any, noise_std: float, num_rows: int, expected: tuple[float, float] = _EXPECTED) -> "Norms":
        """From noised counts (NUM_BINS,), their noise's sd and the number of rows, all of them public. `expected`: mean and
        sd, in octaves, of where the norms were thought to lie, which decide only where noise drowns the counts.

        First a lognormal distribution is fitted, all means and sds of a grid averaged by their likelihood; then every bin moves
        from the fit to its own count as far as the noise allows: where the fit has rows, or where a count stands out
        by five sds. With little noise this is the histogram, with much noise the fit.

        >>> counts = np.zeros(NUM_BINS); counts[17:20] = 200.0, 600.0, 200.0      # norms around 2^(-18 + 18.5)
        >>> round(Norms.fitted(counts, 5.0, 1000).quantile(0.5), 2)
        1.41
        """
        from scipy.special import ndtr

        counts = np.asarray(counts, np.float64)
        if counts.shape != (NUM_BINS,) or not np.all(np.isfinite(counts)):
            raise ConfigurationError(f"a histogram of norms has {NUM_BINS} finite counts.")
        edges = np.linspace(LOWEST, LOWEST + NUM_BINS, _FINE * NUM_BINS + 1)
        inner = np.concatenate([[-np.inf], edges[1:-1], [np.inf]])
        shares = np.diff(ndtr((inner - _MEANS[:, None, None]) / _SDS[:, None]), axis=2)
        misfit = num_rows * shares.reshape(*shares.shape[:2], NUM_BINS, _FINE).sum(axis=3) - counts
        spread = noise_std**2 + num_rows**0.5  # no distribution fits better than the rows scatter
        energy = 0.5 * np.sum(misfit**2, axis=2) / spread + 0.5 * ((_MEANS[:, None] - expected[0]) / expected[1]) ** 2
        weights = np.exp(np.min(energy) - energy)
        weights /= weights.sum()
        fine = np.tensordot(weights, shares, axes=2).reshape(NUM_BINS, _FINE)
        fit, noise = fine.sum(axis=1), noise_std / num_rows
        free = _MISFIT * fit + _FOUND * (counts > _CLEAR * noise_std)
        share = np.maximum(0.0, fit + free**2 / (free**2 + noise**2 + 1e-300) * (counts / num_rows - fit))
        inside = (fine + 1e-9) / np.sum(fine + 1e-9, axis=1, keepdims=True)
        mass = (share[:, None] * inside).ravel()
        centre = np.sum(weights * _MEANS[:, None])
        error = np.sum(weights * (_MEANS[:, None] - centre) ** 2) ** 0.5
        return cls(edges, mass / mass.sum(), float(error))

    def quantile(self, probability: float) -> float:
        """The norm that so large a share of the rows is not longer than."""
        below = np.concatenate([[0.0], np.cumsum(self.mass)])
        return float(2.0 ** np.interp(probability, below / below[-1], self.edges))

    def high_quantile(self, probability: float) -> float:
        """That quantile, or the median where noise has drowned the counts and tails are guesses."""
        return self.quantile(probability if self.error < 1.0 else 0.5)

    def mean(self, function: Callable[[Array], Array]) -> float:
        """The mean over rows of a function of their norms."""
        return float(np.sum(self.mass * function(2.0 ** (0.5 * (self.edges[1:] + self.edges[:-1])))))
