"""Bayesian accountant (Triastcyn, Faltings 2020): what typical rows lose. A weaker notion than differential privacy.

Differential privacy bounds the privacy loss of every row that could be in the data. Bayesian differential privacy bounds it
for a row drawn from the distribution of the data, and so may use how long rows' gradients are, not only how long they may
be. It says nothing of unusual rows, its estimate rests on an assumption (below), and the estimate is a function of the
private rows without noise. It stands beside an epsilon of `accounting.epsilon`, never in its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpppl.errors import ConfigurationError

Array = NDArray[np.float64]

ORDERS = (*range(1, 33), *range(36, 65, 4), *range(72, 129, 8), 160, 192, 256)
_SQUARES = np.concatenate([[0.0], np.geomspace(1e-8, 1e4, 16_000)])


@dataclass(frozen=True, kw_only=True)
class BayesianSpent:
    """A Bayesian privacy bound.

    - **epsilon**, **delta**: the privacy loss of a random row exceeds epsilon with probability at most delta.
    - **order**: the order lambda at which the bound was smallest.
    - **num_rows**: how many rows the estimate was made from.
    - **epsilons**: the bound at each of the accountant's orders.
    """

    epsilon: float
    delta: float
    order: int
    num_rows: int
    epsilons: tuple[float, ...] = field(repr=False)

    @property
    def attack_success(self) -> float:
        """Posterior probability of a guess that started at 1/2, at a privacy loss of epsilon (their equation 1)."""
        return 1.0 / (1.0 + math.exp(-self.epsilon))

    def share_covered(self, delta: float) -> float:
        """Share of the distribution's rows that are (epsilon, `delta`)-private, at least: Markov's inequality."""
        if not 0 < delta < 1:
            raise ConfigurationError(f"delta {delta} must be in (0, 1).")
        return max(0.0, 1.0 - self.delta / delta)

    def __str__(self) -> str:
        return (
            f"Bayesian epsilon {self.epsilon:.4g} at delta {self.delta:g}, for rows like the data's only; estimated from "
            f"{self.num_rows:,} rows, not itself private, and no differential privacy"
        )


@dataclass(frozen=True, kw_only=True)
class BayesianAccountant:
    """Composes the privacy loss of random rows over the steps of a run (Triastcyn, Faltings 2020, theorems 1 to 4).

    - **noise_multipliers**: of each step, (T,): standard deviation of the noise in units of `clipping_norm`.
    - **sampling_rate**: probability that a row is used in a step, in (0, 1]; 1 for full batches.
    - **clipping_norm**: the unit of the norms that `spent` is given; 1 where they are divided by it.
    - **delta**: probability that a random row loses more than epsilon. With the default, 1e-10, all but a share of 1e-5 of
      the distribution's rows are (epsilon, 1e-5)-private.
    - **failure_probability**: that any of the estimates is too small, taken out of `delta`.
    - **orders**: positive integers; the best one is found, and each costs its part of `failure_probability`.

    With norms that all equal `clipping_norm` the result is that of the moments accountant (Abadi et al. 2016) plus the
    price of the failure probability.

    Assumes: rows are independent draws; the costs exp(T c) of the sampled rows are Gaussian, so that Student's t bounds
    their mean. Heavier tails than the sample shows make the estimate too small: a heuristic, not a guarantee.

    >>> accountant = BayesianAccountant(noise_multipliers=np.ones(100), sampling_rate=0.01)
    >>> rng = np.random.default_rng(0)
    >>> long, short = np.ones((100, 500)), rng.uniform(0.0, 0.2, (100, 500))
    >>> round(accountant.spent(long).epsilon, 1), round(accountant.spent(short).epsilon, 1)
    (3.1, 0.2)
    """

    noise_multipliers: ArrayLike
    sampling_rate: float = 1.0
    clipping_norm: float = 1.0
    delta: float = 1e-10
    failure_probability: float | None = None
    orders: tuple[int, ...] = ORDERS

    def __post_init__(self) -> None:
        noise = np.asarray(self.noise_multipliers, dtype=np.float64)
        if noise.ndim != 1 or not noise.size or not np.all((noise > 0) & np.isfinite(noise)):
            raise ConfigurationError("noise_multipliers must be positive and finite, one a step, of shape (T,).")
        if not 0 < self.sampling_rate <= 1:
            raise ConfigurationError(f"sampling_rate {self.sampling_rate} must be in (0, 1].")
        if not (self.clipping_norm > 0 and math.isfinite(self.clipping_norm)):
            raise ConfigurationError(f"clipping_norm {self.clipping_norm} must be positive and finite.")
        if not 0 < self.delta < 1:
            raise ConfigurationError(f"delta {self.delta} must be in (0, 1).")
        failure = self.delta / 10 if self.failure_probability is None else self.failure_probability
        if not 0 < failure < self.delta:
            raise ConfigurationError(f"failure_probability {failure} must be in (0, delta).")
        if not self.orders or any(int(order) != order or order < 1 for order in self.orders):
            raise ConfigurationError("orders must be positive integers.")
        object.__setattr__(self, "noise_multipliers", noise)
        object.__setattr__(self, "failure_probability", failure)

    def spent(self, norms: Iterable[ArrayLike]) -> BayesianSpent:
        """The bound, from norms of the same sampled rows' clipped gradients at each step.

        - **norms**: for each of the T steps an array (m,): how far the sum of that step moves when row i is left out. An
          array (T, m), or an iterable that yields one step at a time. The rows are m distinct ones, drawn once.

        Raises ConfigurationError for another number of steps, fewer than two rows, or norms that are negative or not finite.
        """
        noise = np.asarray(self.noise_multipliers)
        weights = noise**-2.0
        holder = weights.sum() / weights  # exponents of Hölder's inequality: sum of 1 / p_t is 1
        total, number, num_rows, quantile = np.zeros(len(self.orders)), 0, None, 0.0
        for step in norms:
            step = np.asarray(step, dtype=np.float64)
            if number == len(noise):
                raise ConfigurationError(f"norms of more than the {len(noise)} steps that were declared.")
            if step.ndim != 1 or len(step) < 2 or num_rows not in (None, len(step)):
                raise ConfigurationError("norms of each step must have one shape (m,), with at least two rows.")
            if not np.all((step >= 0) & np.isfinite(step)):
                raise ConfigurationError("norms must be finite and not negative.")
            if num_rows is None:
                quantile = self._quantile(len(step))
            num_rows = len(step)
            total += self._cost(step / self.clipping_norm / noise[number], holder[number], quantile)
            number += 1
        if number != len(noise) or num_rows is None:
            raise ConfigurationError(f"norms of {number} steps, of {len(noise)} that were declared.")
        assert self.failure_probability is not None
        epsilons = (total - math.log(self.delta - self.failure_probability)) / np.array(self.orders)
        best = int(np.argmin(epsilons))
        return BayesianSpent(
            epsilon=float(epsilons[best]),
            delta=self.delta,
            order=int(self.orders[best]),
            num_rows=num_rows,
            epsilons=tuple(epsilons.tolist()),
        )

    def _quantile(self, num_rows: int) -> float:
        """The quantile of Student's t that is exceeded with the share of the failure probability that each estimate has."""
        from scipy.stats import t

        assert self.failure_probability is not None
        num_estimates = len(np.asarray(self.noise_multipliers)) * len(self.orders)
        return float(t.isf(self.failure_probability / num_estimates, num_rows - 1))

    def _cost(self, distances: Array, exponent: float, quantile: float) -> Array:
        """An upper estimate of log E exp(p c) / p for each order; `distances` (m,) in units of the noise's sd."""
        table = _costs(self.orders, self.sampling_rate)
        costs = np.stack([np.interp(distances**2, _SQUARES, row, right=math.inf) for row in table])  # (orders, m)
        logs = exponent * costs
        highest = logs.max(axis=1)
        if np.isinf(highest).any():
            return np.full(len(self.orders), math.inf)
        scaled = np.exp(logs - highest[:, None])
        spread = scaled.std(axis=1, ddof=0) / math.sqrt(len(distances) - 1)
        return (highest + np.log(scaled.mean(axis=1) + quantile * spread)) / exponent


@lru_cache(maxsize=8)
def _costs(orders: tuple[int, ...], rate: float) -> Array:
    """lambda times the Rényi divergence of order lambda + 1 of a step, at squared distances `_SQUARES`: (orders, squares).

    Mironov, Talwar, Zhang 2019, section 3.3. In the squared distance it is convex, so that interpolation bounds it from above.
    """
    from scipy.special import logsumexp
    from scipy.stats import binom

    found = np.zeros((len(orders), len(_SQUARES)))
    for place, order in enumerate(orders):
        k = np.arange(order + 2)
        with np.errstate(divide="ignore"):
            found[place] = logsumexp(binom.logpmf(k, order + 1, rate) + 0.5 * (k * k - k) * _SQUARES[:, None], axis=1)
    return np.maximum(found, 0.0)
