"""Which runs a budget admits, when each may be chosen after the results of those before it.

Fixed before anything is charged: (epsilon, delta), and a few branches b, each with a bound B_b. Branch "Gaussian" counts
mu^2 = sum of (sensitivity / noise std)^2 and is infinite once an access is subsampled; branch alpha, one for each Renyi
order, counts the divergence rho(alpha). A run is admitted if with it at least one branch's count is within its bound.

Why this is (epsilon, delta)-DP. Stop the interaction when branch b's count would pass its bound, and call that M_b. The counts
of an access are fixed before it, given the past, so M_b is (alpha, B_alpha)-RDP (Feldman, Zrnic 2021), or
B_G^(1/2)-Gaussian-DP: padded to exactly B_G, its privacy loss is a Brownian motion read at time B_G, whatever the
steps in between depended on (Smith, Thakurta 2022; Koskela, Tobaben, Honkela 2023). Counts only grow. Where the real
interaction ends, some branch is within its bound, so it was all along: the real transcript is that of M_b, and so is its
privacy loss L. Hence (1 - e^(epsilon - L))+ is at most the sum over b of (1 - e^(epsilon - L_b))+, and its mean, which is the
real delta, at most the sum of the delta_b at which M_b is (epsilon, delta_b)-DP. These sum to less than delta:

    Gaussian: delta_b of a mu-Gaussian mechanism, mu^2 = B_G (Balle, Wang 2018)
    alpha:    B_alpha = epsilon - (log(1 / delta_b) + log(c_alpha)) / (alpha - 1), c_alpha = (1 - 1/alpha)^(alpha - 1) / alpha
              (Canonne, Kamath, Steinke 2020, proposition 12)

The rest of delta pays for inexact sampling: the sum of failure probabilities beta stays below rest / (1 + e^epsilon). So
switching between the two rules needs no decision in advance; it costs the split of delta. Runs may be interleaved: an access,
or an epoch of a partition, is one mechanism, and filters hold for concurrent interactive mechanisms (Haney et al. 2023).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpppl.accounting import GaussianEvent, SelectionEvent, rdp
from dpppl.accounting.curves import gaussian_epsilon
from dpppl.accounting.events import gaussian_mu
from dpppl.accounting.privacy_spent import LARGEST_MEANINGFUL_EPSILON, check_delta
from dpppl.accounting.relations import relation_of
from dpppl.errors import ConfigurationError
from dpppl.validation import check_not_swapped, plain

Costs = NDArray[np.float64]
FAILURE = -1
ROUND_UP = 1 + 1e-8  # above rounding errors of sums and bounds
_ORDERS = ((1.0, 0.7), (0.7, 0.3))
"""alpha - 1 relative to the order best for a Gaussian, and its part of what all orders get of delta. Lower orders admit runs
with little noise, whose divergence jumps at high ones; the bound of still lower ones is about 0."""


@dataclass(frozen=True, kw_only=True)
class PrivacyFilter:
    """The rule that admits runs to one budget.

    - **epsilon**, **delta** - the budget.
    - **neighboring_relation** - what the guarantee compares.
    - **gaussian_share** - the share of delta of runs on full batches with continuous noise, which are counted by mu^2.
    - **orders** - pairs (Renyi order, share of delta); shares sum to 1 with the two others.
    - **failure_share** - the share of delta for failure probabilities.

    A cost is a float64 array (1 + number of orders + 1,): mu^2, a divergence for each order, failure probability.

    How much of epsilon is lost: fill the budget with one run, and divide that run's own exact epsilon by the ledger's.
    `full_batch_only`: nothing. Otherwise, at epsilon .3 to 8 and delta 1e-5 and 1e-7, full batches lose 2 to 5 %, and Poisson
    runs (rates .001 to .2, noise 1 to 10) 11 % in the median, 18 % in the worst tenth and once 42 % (rate .001, noise 1). Of
    this about 8 are the conversion from Renyi divergence at any one order, and 3 the Gaussian branch."""

    epsilon: float
    delta: float
    neighboring_relation: str
    gaussian_share: float
    orders: tuple[tuple[float, float], ...]
    failure_share: float

    @classmethod
    def of(cls, epsilon: float, delta: float, neighboring_relation: str, full_batch_only: bool) -> PrivacyFilter:
        """The rule for a budget. Raises ConfigurationError for an invalid budget."""
        epsilon, delta = plain(epsilon), plain(delta)
        check_delta(delta)
        number = isinstance(epsilon, int | float) and not isinstance(epsilon, bool)
        if not (number and 0 < epsilon <= LARGEST_MEANINGFUL_EPSILON):
            raise ConfigurationError(
                f"a ledger's epsilon is a number above 0 and at most {LARGEST_MEANINGFUL_EPSILON:g} (more is no "
                f"meaningful guarantee), got {epsilon!r}."
            )
        check_not_swapped(epsilon, delta)
        relation_of(neighboring_relation)
        gaussian, failure = (1.0, 0.0) if full_batch_only else (0.495, 0.01)
        orders = () if full_batch_only else _orders(epsilon, delta, 1.0 - gaussian - failure)
        return cls(
            epsilon=float(epsilon), delta=float(delta), neighboring_relation=neighboring_relation,
            gaussian_share=gaussian, orders=orders, failure_share=failure,
        )  # fmt: skip

    @property
    def full_batch_only(self) -> bool:
        """Whether all of delta is for the exact Gaussian rule."""
        return not self.orders

    @property
    def failure_allowance(self) -> float:
        """The sum of failure probabilities that the budget has room for."""
        return self.failure_share * self.delta / (1.0 + math.exp(self.epsilon))

    @property
    def advantage(self) -> float:
        """The largest advantage of an attacker who sees all that this budget admits."""
        if self.full_batch_only:
            return math.erf(math.sqrt(self.bounds[0] / 8.0))
        return math.tanh(self.epsilon / 2.0) + 2.0 * self.delta / (math.exp(self.epsilon) + 1.0)

    @functools.cached_property
    def bounds(self) -> Costs:
        """The largest value of each count."""
        alpha, share = np.array(self.orders).reshape(-1, 2).T
        renyi = self.epsilon - (-np.log(share * self.delta) + _log_constant(alpha)) / (alpha - 1)
        gaussian = _gaussian_budget(self.epsilon, self.gaussian_share * self.delta)
        return np.array([gaussian, *renyi, self.failure_allowance]) / ROUND_UP

    def describe(self) -> str:
        """One line for the report."""
        if self.full_batch_only:
            return "exact Gaussian filter for accesses of all rows, none subsampled"
        orders = " and ".join(f"{alpha:g}" for alpha, _ in self.orders)
        words = f"Gaussian filter while no access is subsampled, Renyi filter at orders {orders}"
        return f"{words}; full_batch_only=True at its making has no such loss, and no subsampled run"

    def cost(self, events: Sequence[GaussianEvent]) -> Costs:
        """The counts of accesses. Raises ConfigurationError for events that this rule has no bound for."""
        for event in events:
            self._check(event)
        return sum((_cost(e, tuple(alpha for alpha, _ in self.orders)) for e in events), self.nothing)

    @property
    def nothing(self) -> Costs:
        """The count of no access."""
        return np.zeros(len(self.orders) + 2)

    def admits(self, total: Costs) -> bool:
        """Whether accesses that count this much together are within the budget."""
        within = total <= self.bounds
        return bool(within[FAILURE] and np.any(within[:FAILURE]))

    def used(self, total: Costs) -> float:
        """The share of the budget that a total takes up; admitted up to 1."""
        possible = self.bounds[:FAILURE] > 0
        share = float(np.min((total / np.where(self.bounds > 0, self.bounds, 1.0))[:FAILURE][possible]))
        failure = total[FAILURE] / self.bounds[FAILURE] if total[FAILURE] else 0.0
        return max(share, float(failure))

    def remaining(self, total: Costs) -> float:
        """Epsilon, alone and at this delta, of the largest run on full batches that fits beside the total."""
        per_mu_squared = np.array([1.0, *(alpha / 2 for alpha, _ in self.orders)])
        room = float(np.max((self.bounds - total)[:FAILURE] / per_mu_squared))
        return gaussian_epsilon(math.sqrt(room), self.delta) if room > 0 else 0.0

    def _check(self, event: GaussianEvent) -> None:
        if event.neighboring_relation != self.neighboring_relation:
            raise ConfigurationError(
                f"this ledger's budget is for the relation {self.neighboring_relation!r}, and the run is accounted under "
                f"{event.neighboring_relation!r}: costs under different relations do not add up. Keep a ledger for each."
            )
        if self.full_batch_only and (not event.is_full_batch or event.discrete or event.failure_probability > 0):
            raise ConfigurationError(
                "this ledger was made with full_batch_only=True: it admits continuous noise on full batches (or on fixed "
                "partitions) only. Use those, or a ledger made without it."
            )
        fixed_size, replace_one = event.batch_size is not None, event.neighboring_relation == "replace_one"
        if not event.is_full_batch and (fixed_size != replace_one or (fixed_size and event.discrete)):
            raise ConfigurationError(
                "a ledger counts Renyi divergences, which are known for Poisson sampling under zero-out or add/remove, and "
                "for batches of fixed size with continuous noise under replace-one; this run has another combination."
            )


def _gaussian_budget(epsilon: float, delta: float) -> float:
    """The largest mu^2 of a Gaussian mechanism that is (epsilon, delta)-DP."""
    from scipy.optimize import brentq

    high = 1.0
    while gaussian_epsilon(high, delta) < epsilon:
        high *= 2
    mu = float(brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 0.0, high, xtol=1e-12, rtol=1e-12))
    return (mu * (1 - 1e-9)) ** 2


def _log_constant(alpha: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(-np.log(alpha) + (alpha - 1) * np.log1p(-1 / alpha))


def _orders(epsilon: float, delta: float, share: float) -> tuple[tuple[float, float], ...]:
    """Renyi orders and shares of delta. Whole numbers where that loses nothing, and one at least: discrete noise needs one."""
    grid = np.geomspace(1.01, 1e5, 10_000)
    best = grid[np.argmax((epsilon + (math.log(delta) - _log_constant(grid)) / (grid - 1)) / grid)]
    shares: dict[float, float] = {}
    for part, weight in _ORDERS:
        alpha = 1 + part * (best - 1)
        order = float(round(alpha)) if alpha > 2.75 else round(float(alpha), 2)
        shares[order] = shares.get(order, 0.0) + weight * share
    if not any(order.is_integer() for order in shares):
        nearest = min(shares, key=lambda order: abs(order - 2))
        shares[2.0] = shares.pop(nearest)
    return tuple(sorted(shares.items(), reverse=True))


def _cost(event: GaussianEvent | SelectionEvent, orders: tuple[float, ...]) -> Costs:
    if isinstance(event, SelectionEvent):
        renyi, mu = _rdp(event, orders), math.inf
    elif event.is_full_batch:
        renyi, mu = _rdp(event, orders), math.inf if event.discrete else event.sensitivity * gaussian_mu([event])
    else:  # accesses at one noise multiplier cost the same, and chunks of a run have the same ones
        renyi, mu = np.zeros(len(orders)), math.inf
        for sigma, count in event.noise_multipliers:
            one = dataclasses.replace(event, noise_multipliers=((sigma, 1),), failure_probability=0.0)
            renyi = renyi + count * _rdp(one, orders)
    return np.array([mu**2, *renyi, event.failure_probability])


@functools.lru_cache(maxsize=4096)
def _rdp(event: GaussianEvent | SelectionEvent, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """Renyi divergences of all accesses at each order, (len(orders),); inf where there is no bound."""
    if not orders:
        return np.zeros(0)
    alpha = np.array(orders)
    bounded = alpha == np.round(alpha) if event.discrete and not event.is_full_batch else np.ones(len(alpha), bool)
    divergences = np.full(len(alpha), math.inf)
    if bounded.any():
        divergences[bounded] = rdp(event, alpha[bounded])
    return divergences
