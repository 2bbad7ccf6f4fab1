"""Trade-offs between epsilon and delta, one for each accountant, for sampling that is exact."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from dpppl.accounting.events import GaussianEvent, binomial, gaussian_mu, to_dp_event
from dpppl.errors import ConfigurationError

ACCOUNTANTS = ("auto", "gaussian", "pld", "rdp")
LARGEST_MEANINGFUL_EPSILON = 100.0
ROUND_UP = 1 + 1e-8  # above the accountants' rounding errors
_FEW_ORDERS = (1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256, 512, 1024)
_MOST_POINTS = 100_000  # of one access's grid, about .7 seconds; 5 times as many over all noise multipliers
_LARGEST_GROUP = 1000
_MANY_ACCESSES = 300_000
_LARGE_ORDERS = (2048, 4096, 8192)  # beyond dp_accounting's default, for epsilon below .05


@dataclass(frozen=True)
class Curve:
    """epsilon(delta) and delta(epsilon) of one accountant, and its name for reports."""

    epsilon: Callable[[float], float]
    delta: Callable[[float], float]
    name: str


def build(
    events: tuple[GaussianEvent, ...],
    accountant: str,
    group_size: int = 1,
) -> tuple[Curve, ...]:
    """Upper bounds by `accountant` for data sets that differ in `group_size` rows.

    Raises ConfigurationError if the accountant does not support the sampling scheme under the relation.
    """
    if accountant not in ACCOUNTANTS:
        raise ConfigurationError(f"accountant {accountant!r} must be one of {', '.join(ACCOUNTANTS)}.")
    discrete = any(e.discrete for e in events)
    full_batch = all(e.is_full_batch for e in events)
    fixed_size = any(not e.is_full_batch and e.batch_size is not None for e in events)
    replace_one = bool(events) and events[0].neighboring_relation == "replace_one"
    if fixed_size and not replace_one:
        raise ConfigurationError(
            "batches drawn without replacement are accounted under neighboring_relation='replace_one' only; "
            "use it, or Poisson sampling."
        )
    if discrete and (fixed_size or accountant not in ("auto", "rdp")):
        raise ConfigurationError(
            "discrete noise is accounted by 'rdp' only, and not for batches drawn without replacement; use "
            "accountant='auto' and Poisson sampling."
        )
    if discrete:
        accountant = "rdp"
    if accountant == "auto":
        accountant = "gaussian" if full_batch else "rdp" if fixed_size else "pld"
    if accountant == "gaussian" and not full_batch:
        raise ConfigurationError("accountant 'gaussian' needs every row at each access; use 'pld' or 'auto'.")
    if accountant == "pld" and fixed_size:
        raise ConfigurationError(
            "accountant 'pld' does not support batches drawn without replacement; use 'rdp' or Poisson sampling."
        )
    if accountant == "rdp" and replace_one and any(not e.is_full_batch and e.batch_size is None for e in events):
        raise ConfigurationError(
            "accountant 'rdp' does not support Poisson sampling under neighboring_relation='replace_one'; "
            "use 'pld' for Poisson sampling alone, or 'zero_out'."
        )
    if not events:
        return (_gaussian(0.0),)
    if any(sigma == 0 for e in events for sigma, _ in e.noise_multipliers):
        return (Curve(lambda d: math.inf, lambda e: 1.0, "none (an access without noise)"),)
    if accountant == "gaussian":
        return (_gaussian(group_size * gaussian_mu(events) * (2 if replace_one else 1)),)
    if accountant == "rdp":
        if full_batch:
            return (_rdp(events, group_size=group_size),)
        # Discrete noise: E[(Q/P)^k] for whole k is that of continuous noise, and the reflection n -> shift - n swaps P and
        # Q, so removing a row is bounded by adding it (Mironov, Talwar, Zhang 2019, theorem 5).
        # At fractional orders dp_accounting only interpolates fixed-size batches, at the price of two orders.
        orders = tuple(range(2, 64)) + _FEW_ORDERS[-4:] + _LARGE_ORDERS if fixed_size or discrete else None
        return (_group(_rdp(events, orders), group_size),)
    return _pld_and_rdp(events, replace_one, group_size)


def _gaussian(mu: float) -> Curve:
    return Curve(lambda d: gaussian_epsilon(mu, d), lambda e: gaussian_delta(mu, e), "exact Gaussian (analytic)")


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta of mu-Gaussian-DP at epsilon (Dong, Roth, Su 2022, corollary 2.13)."""
    return math.exp(_gaussian_log_delta(mu, epsilon)) if mu > 0 else 0.0


def gaussian_epsilon(mu: float, delta: float) -> float:
    """epsilon of mu-Gaussian-DP at delta: the root of `gaussian_delta`."""
    from scipy.optimize import brentq

    target = math.log(delta)
    if mu == 0 or _gaussian_log_delta(mu, 0.0) <= target:
        return 0.0
    upper = mu**2 / 2 + mu * math.sqrt(-2 * target)  # by the Gaussian tail bound
    if upper > 1e6:
        return upper
    error = 1e-12 * upper
    return error + float(brentq(lambda e: _gaussian_log_delta(mu, e) - target, 0.0, upper, xtol=error, rtol=1e-12))


def _gaussian_log_delta(mu: float, epsilon: float) -> float:
    """log of Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), accurate in both tails."""
    from scipy.special import erfcx, ndtr

    mu = max(mu, 1e-6)  # delta rises with mu; below, the difference of two terms would round to 0
    low, high = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    # e^epsilon phi(high) = phi(low): both terms share one Gaussian factor, and erfcx is what is left of each.
    if low > 0:
        return math.log((erfcx(low / math.sqrt(2)) - erfcx(high / math.sqrt(2))) / 2) - low**2 / 2
    return math.log(ndtr(-low) - math.exp(-(low**2) / 2) * erfcx(high / math.sqrt(2)) / 2)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence dp_accounting's remarks on RDP orders it leaves out: the minimum over the others is still a bound."""
    logger = logging.getLogger("absl")
    disabled, logger.disabled = logger.disabled, True
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        logger.disabled = disabled


def _dp_relation(events: tuple[GaussianEvent, ...]) -> Any:
    from dp_accounting import NeighboringRelation

    return {
        "zero_out": NeighboringRelation.REPLACE_SPECIAL,
        "add_or_remove_one": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace_one": NeighboringRelation.REPLACE_ONE,
    }[events[0].neighboring_relation]


def _rdp(events: tuple[GaussianEvent, ...], orders: tuple[float, ...] | None = None, group_size: int = 1) -> Curve:
    """RDP; `group_size` above 1 for full-batch events only."""
    from dp_accounting import rdp

    orders = orders or (*rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS, *_LARGE_ORDERS)
    relation = _dp_relation(events)
    # dp_accounting's RDP takes noise / sensitivity whatever the relation, and replacing a row moves the sum by 2C.
    divisor = 2.0 if relation.name == "REPLACE_ONE" else 1.0
    ledger = rdp.RdpAccountant(orders, relation)
    alpha = ledger.orders
    with _quiet():
        ledger.compose(to_dp_event(events, group_size=group_size, divisor=divisor))
        # dp_accounting answers epsilon = 0 where rounding leaves no divergence: add what rounding can hide.
        spread = np.minimum(1, alpha * max(e.sampling_rate for e in events)) * alpha * np.log(alpha)
        accesses = sum(e.num_accesses for e in events)
        divergences = np.maximum(ledger.rdp, 0) + accesses * (1e-14 + 1e-15 * spread) / (alpha - 1)
        # The probabilities of a million discrete numbers are all right to a factor 1 +- 4e-13.
        divergences += 1e-12 * alpha / (alpha - 1) * sum(e.num_accesses for e in events if e.discrete)

    def quiet(function: Callable[..., tuple[float, float]], argument: float) -> float:
        with _quiet():
            return float(function(alpha, divergences, argument)[0])

    return Curve(
        functools.partial(quiet, rdp.rdp_privacy_accountant.compute_epsilon),
        functools.partial(quiet, rdp.rdp_privacy_accountant.compute_delta),
        f"RDP (dp_accounting {version('dp-accounting')})",
    )


def _group(curve: Curve, group_size: int) -> Curve:
    """A curve for one row turned into one for `group_size` rows (Vadhan 2017, lemma 2.2)."""
    if group_size == 1:
        return curve

    def log_delta(epsilon: float) -> float:
        one = epsilon / group_size
        # A delta that underflows is still below 1e-300.
        return math.log(max(curve.delta(one), 1e-300)) + _log_expm1(epsilon) - _log_expm1(one)

    def epsilon(delta: float) -> float:
        low, high = 1e-9, 1.0
        while log_delta(high) > math.log(delta):
            low, high = high, 2 * high
            if high > 1e6:
                return math.inf
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if log_delta(middle) <= math.log(delta) else (middle, high)
        return high

    return Curve(epsilon, lambda e: math.exp(min(0.0, log_delta(max(e, 1e-9)))), f"{curve.name}, general group bound")


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))


def _pld_and_rdp(events: tuple[GaussianEvent, ...], replace_one: bool, group_size: int) -> tuple[Curve, ...]:
    """PLD beside an RDP bound, which is the smaller one where PLD's grid is too coarse for very many tiny accesses."""
    one_row = _rdp(tuple(dataclasses.replace(e, neighboring_relation="zero_out") for e in events), _FEW_ORDERS)
    # Replacing a row zeroes one out and puts another in: a group of two under zero-out.
    bound = _group(one_row, 2 * group_size if replace_one else group_size)
    by_pld = group_size == 1 if replace_one else group_size <= _LARGEST_GROUP
    interval = _interval(events, 2 if replace_one else group_size, group_size) if by_pld else None
    if interval is None:
        return (bound,)
    pld = _pld(events, interval, group_size)
    name = f"PLD (dp_accounting {version('dp-accounting')}, interval {interval:.1e})"
    return (Curve(lambda d: float(pld.get_epsilon(d)), lambda e: float(pld.get_delta(e)), name), bound)


@functools.lru_cache(maxsize=8)
def _pld(events: tuple[GaussianEvent, ...], interval: float, group_size: int) -> Any:
    from dp_accounting import pld

    accountant = pld.PLDAccountant(_dp_relation(events), interval)
    with _quiet():
        # Unlike its RDP, dp_accounting's PLD doubles the sensitivity itself under REPLACE_ONE: never halve here.
        accountant.compose(to_dp_event(events, group_size=group_size))
    return accountant


def _interval(events: tuple[GaussianEvent, ...], rows: int, group_size: int) -> float | None:
    """PLD's grid: fine enough for the losses of single accesses, coarse enough for rounding and time.

    The grid adds at most interval^2 / 4 to the variance of each access's loss, and rounding adds mass in proportion to
    accesses, range and interval^-2: both only raise the bound. None: no grid gives an answer in seconds.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    weights = weights / weights.sum()
    accesses, mean, variance, fine, width, widest, sparse = 0, 0.0, 0.0, 0.0, 0.0, 0.0, math.inf
    for e in events:
        drawn, probabilities = binomial(rows, 1.0 if e.is_full_batch else e.sampling_rate)
        drawn, probabilities = drawn[probabilities > 0], probabilities[probabilities > 0]
        for sigma, count in [(1 / gaussian_mu([e]), 1)] if e.is_full_batch else e.noise_multipliers:
            likely = probabilities > 1e-9
            present = _loss(drawn[likely, None] / sigma + nodes, drawn, probabilities, sigma)
            present_mean = float(probabilities[likely] @ present @ weights)
            mean += count * present_mean
            variance += count * float(probabilities[likely] @ (present - present_mean) ** 2 @ weights)
            absent = _loss(nodes, drawn, probabilities, sigma)
            fine += count * float(weights @ (absent - weights @ absent) ** 2)
            largest = float(_loss(np.array(rows / sigma + 10), drawn, probabilities, sigma))
            accesses += count
            width += largest
            widest = max(widest, largest)
            if count > _MANY_ACCESSES:
                sparse = min(sparse, largest / 1200)
    reach = width + mean + 10 * math.sqrt(variance)
    distinct = sum(1 if e.is_full_batch else len(e.noise_multipliers) for e in events)
    points = max(widest, width / 5, reach / 50, reach * distinct / 200)
    points *= 4 if group_size > 1 else 1  # a group's grid is slower to fill
    finest = max(1e-6, points / _MOST_POINTS, 2e-8 * math.sqrt(accesses * widest))
    wanted = min(1e-3, math.sqrt(fine) / 100, 0.1 * math.sqrt(fine / accesses))
    interval = float(f"{max(wanted, finest):.1e}")
    # dp_accounting raises the size of a grid below 1000 points to the power `count`, digit by digit.
    return interval if interval <= min(sparse, 0.1) else None


def _loss(x: np.ndarray, drawn: np.ndarray, probabilities: np.ndarray, sigma: float) -> np.ndarray:
    """log of the ratio of densities, sum_j p_j N(d_j, sigma^2) to N(0, sigma^2), at sigma x: the shape of x."""
    exponents = (drawn * x[..., None] - drawn**2 / 2 / sigma) / sigma + np.log(probabilities)
    return np.logaddexp.reduce(exponents, axis=-1)
