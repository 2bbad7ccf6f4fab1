"""Trade-offs between epsilon and delta, one for each accountant, for sampling that is exact."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from dpppl.accounting import additive, pld
from dpppl.accounting.events import GaussianEvent, gaussian_mu, without_noise
from dpppl.accounting.losses import Array, DominatingPair
from dpppl.accounting.selection import SelectionEvent
from dpppl.errors import ConfigurationError

ACCOUNTANTS = ("auto", "gaussian", "pld", "rdp")
LARGEST_MEANINGFUL_EPSILON = 100.0
EXACT_GAUSSIAN = "exact Gaussian (analytic)"
ROUND_UP = 1 + 1e-8  # above the accountants' rounding errors
_FEW_ORDERS = (1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256, 512, 1024)
_LARGE_ORDERS = (2048, 4096, 8192)  # beyond dp_accounting's default, for epsilon below .05
_WHOLE_ORDERS = (*range(2, 64), *_FEW_ORDERS[-4:], *_LARGE_ORDERS)
_LARGEST_GROUP = 1000
_LARGEST_SHIFT = 1000.0  # in units of the noise, of a group in a batch
_LARGEST_MU = 40.0


@dataclass(frozen=True)
class Curve:
    """The guarantee of one accountant at all deltas.

    - **epsilon** - epsilon(delta).
    - **delta** - delta(epsilon).
    - **name** - the accountant's, for reports.
    - **final** - `final(delta, epsilon)`: whether no later curve can be below this one's epsilon at delta.
    - **profile** - delta at many epsilons at once, where that is cheaper than one by one."""

    epsilon: Callable[[float], float]
    delta: Callable[[float], float]
    name: str
    final: Callable[[float, float], bool] = lambda delta, epsilon: False
    profile: Callable[[Array], Array] | None = None

    def deltas(self, epsilons: Array) -> Array:
        """delta at each of the epsilons, shape (n,)."""
        return np.array([self.delta(e) for e in epsilons]) if self.profile is None else self.profile(epsilons)


def build(events: tuple[GaussianEvent, ...], accountant: str, group_size: int = 1) -> tuple[Curve, ...]:
    """Upper bounds by `accountant` for data sets that differ in `group_size` rows.

    Raises ConfigurationError if the accountant does not support the sampling scheme under the relation, or for a group without
    rows."""
    if not 1 <= group_size <= 1e9 or group_size != int(group_size):
        raise ConfigurationError(f"group_size {group_size:g} must be a whole number, at least 1 and at most 1e9.")
    if accountant not in ACCOUNTANTS:
        raise ConfigurationError(f"accountant {accountant!r} must be one of {', '.join(ACCOUNTANTS)}.")
    additive.check_scheme(events)
    discrete = any(e.discrete for e in events)
    full_batch = all(e.is_full_batch for e in events)
    fixed_size = any(not e.is_full_batch and e.batch_size is not None for e in events)
    replace_one = bool(events) and events[0].neighboring_relation == "replace_one"
    selected = any(isinstance(e, SelectionEvent) for e in events)
    if (discrete or selected) and accountant not in ("auto", "rdp"):
        what = "discrete noise" if discrete else "a private selection"
        raise ConfigurationError(f"{what} is accounted by 'rdp' only; use accountant='auto'.")
    if discrete:
        accountant = "rdp"
    if selected:
        return (_group(_rdp(events, _WHOLE_ORDERS if discrete else None), group_size),)
    if accountant == "auto":
        accountant = "gaussian" if full_batch else "rdp" if fixed_size else "pld"
    if accountant == "gaussian" and not full_batch:
        raise ConfigurationError("accountant 'gaussian' needs every row at each access; use 'pld' or 'auto'.")
    if accountant == "pld" and fixed_size:
        raise ConfigurationError(
            "accountant 'pld' does not support batches drawn without replacement; use 'rdp' or Poisson sampling."
        )
    if not events:
        return (_gaussian(0.0),)
    if without_noise(events):
        return (Curve(lambda d: math.inf, lambda e: 1.0, "none (an access without noise)"),)
    if accountant == "gaussian":
        return (_gaussian(group_size * math.sqrt(additive.gaussian_mu_squared(events))),)
    if accountant == "rdp":
        if full_batch:
            pairs = [tuple((sigma / group_size, count) for sigma, count in e.noise_multipliers) for e in events]
            return (_rdp(tuple(dataclasses.replace(e, noise_multipliers=p) for e, p in zip(events, pairs))),)
        # Discrete noise: E[(Q/P)^k] for whole k is that of continuous noise, and the reflection n -> shift - n swaps P and
        # Q, so removing a row is bounded by adding it (Mironov, Talwar, Zhang 2019, theorem 5).
        # At fractional orders dp_accounting only interpolates fixed-size batches, at the price of two orders.
        return (_group(_rdp(events, _WHOLE_ORDERS if fixed_size or discrete else None), group_size),)
    return _pld_and_rdp(events, replace_one, group_size)


def _gaussian(mu: float) -> Curve:
    return Curve(lambda d: gaussian_epsilon(mu, d), lambda e: gaussian_delta(mu, e), EXACT_GAUSSIAN)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta of mu-Gaussian-DP at epsilon (Dong, Roth, Su 2022, corollary 2.13)."""
    return math.exp(_gaussian_log_delta(mu, epsilon)) if mu > 0 else 0.0


def gaussian_epsilon(mu: float, delta: float) -> float:
    """epsilon of mu-Gaussian-DP at delta: the root of `gaussian_delta`."""
    from scipy.optimize import brentq

    mu, target = float(mu), math.log(delta)
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

    low, high = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if low > 50:
        return -(min(low, 1e150) ** 2) / 2  # above the log, and below -1000
    # e^epsilon phi(high) = phi(low): both terms share one Gaussian factor, and erfcx is what is left of each.
    a, b = low / math.sqrt(2), high / math.sqrt(2)
    if mu < 1e-4:  # the difference of nearly equal numbers: minus the derivative is convex, so its chord lies above
        slopes = [2 / math.sqrt(math.pi) - 2 * x * erfcx(x) for x in (a, b)]
        return math.log(mu / math.sqrt(2) * sum(slopes) / 4) - low**2 / 2
    if low > 0:
        return math.log((erfcx(a) - erfcx(b)) / 2) - low**2 / 2
    return math.log(ndtr(-low) - math.exp(-(low**2) / 2) * erfcx(b) / 2)


def _rdp(events: tuple[GaussianEvent, ...], orders: tuple[float, ...] | None = None) -> Curve:
    from dp_accounting import rdp

    alpha = np.array(orders or (*rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS, *_LARGE_ORDERS), dtype=np.float64)

    @functools.cache
    def divergences() -> additive.Array:
        return additive.rdp(events, alpha)

    def quiet(function: Callable[..., tuple[float, float]], argument: float) -> float:
        with additive.quiet():
            return float(function(alpha, divergences(), argument)[0])

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
    """PLD, and an RDP bound where that could be smaller: beyond 1e8 accesses, for extreme delta or almost no noise."""
    one_row = _rdp(tuple(dataclasses.replace(e, neighboring_relation="zero_out") for e in events), _FEW_ORDERS)
    # Replacing a row zeroes one out and puts another in: a group of two under zero-out.
    bound = _group(one_row, 2 * group_size if replace_one else group_size)
    directions = _directions(events, replace_one, group_size)
    if not directions:
        return (bound,)

    def largest(of: Callable[[pld.Composition, float, float], float], at: float) -> float:
        return functools.reduce(lambda found, direction: max(found, of(direction, at, found)), directions, 0.0)

    def final(delta: float, epsilon: float) -> bool:
        return epsilon <= max(direction.renyi_epsilon(delta) for direction in directions)

    def profile(epsilons: Array) -> Array:
        return np.max([direction.deltas(epsilons) for direction in directions], axis=0)

    epsilon, delta = (functools.partial(largest, of) for of in (pld.Composition.epsilon, pld.Composition.delta))
    return (Curve(epsilon, delta, "PLD (tilted Fourier transform)", final, profile), bound)


@functools.lru_cache(maxsize=8)
def _directions(
    events: tuple[GaussianEvent, ...], replace_one: bool, group_size: int
) -> tuple[pld.Composition, ...] | None:
    """Removing and adding a group of rows, or replacing one row; None where PLD cannot be used."""
    if (replace_one and group_size > 1) or group_size > _LARGEST_GROUP:
        return None
    rows = 2 if replace_one else group_size
    full = rows * gaussian_mu([e for e in events if e.is_full_batch])
    sampled: Counter[tuple[float, float]] = Counter()
    for e in events:
        for sigma, count in () if e.is_full_batch else e.noise_multipliers:
            sampled[sigma, e.sampling_rate] += count
    if full > _LARGEST_MU or any(rows > sigma * _LARGEST_SHIFT for sigma, _ in sampled):
        return None
    # Laws of the output in units of the noise: shifts of a normal, and their probabilities.
    absent = np.zeros(1), np.ones(1)
    pairs = [((np.array([full]), np.ones(1)), absent, 1)] if full else []
    for (sigma, rate), count in sampled.items():
        drawn, weights = _drawn(1 if replace_one else group_size, rate)
        pairs.append(((drawn / sigma, weights), (-drawn / sigma, weights) if replace_one else absent, count))
    removed = pld.Composition([DominatingPair(*present, *other, count) for present, other, count in pairs])
    if replace_one:
        return (removed,)
    mirrored = [DominatingPair(*other, -present[0], present[1], count) for present, other, count in pairs]
    return removed, pld.Composition(mirrored)


def _drawn(group_size: int, rate: float) -> tuple[Array, Array]:
    """Numbers of a group's rows that a Poisson batch may hold, and their probabilities."""
    from scipy.stats import binom

    rows = np.arange(group_size + 1.0)
    weights = binom.pmf(rows, group_size, rate)
    return rows[weights > 0], weights[weights > 0]
