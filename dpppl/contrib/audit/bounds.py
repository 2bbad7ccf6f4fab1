"""Lower bounds on epsilon from the scores of attacks: of many runs with one canary, or of one run with many canaries."""

import functools
import math
from typing import Any

import numpy as np

from dpppl.accounting.curves import gaussian_epsilon
from dpppl.types import Function, Tree

Array = np.ndarray
_SHARES = (0.01, 0.02, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 0.7, 1.0)
_LARGEST = 40.0
"""Of epsilon and mu: a bound is not above."""


def many_runs(present: Array, absent: Array, *, delta: float, confidence: float, gaussian: bool) -> float:
    """Return the bound of an attack on many runs: its threshold is chosen on one half of the scores, and judged on the other.

    - **present**, **absent** - scores (n,) of the runs with and without the canary.
    - **delta** - delta of the bound.
    - **confidence** - probability that it is true, by Clopper-Pearson intervals.
    - **gaussian** - whether to bound the parameter of Gaussian differential privacy (Nasr et al. 2023, section 4)."""
    from scipy import stats

    def rates(positive: Tree, negative: Tree, threshold: Tree, level: Any) -> Tree:
        hits, alarms = int(np.sum(positive > threshold)), int(np.sum(negative > threshold))
        low = stats.beta.ppf(1 - level, hits, len(positive) - hits + 1) if hits else 0.0
        high = stats.beta.ppf(level, alarms + 1, len(negative) - alarms) if alarms < len(negative) else 1.0
        return low, high

    def bound(positive: object, negative: object, threshold: object, level: object) -> float:
        true_low, false_high = rates(positive, negative, threshold, level)
        if not gaussian:
            return math.log((true_low - delta) / false_high) if true_low > delta and false_high > 0 else 0.0
        mu = stats.norm.isf(false_high) - stats.norm.isf(true_low) if 0 < true_low and false_high < 1 else 0.0
        return gaussian_epsilon(max(mu, 0.0), delta)

    level = 1 - (1 - confidence) / 2
    best = 0.0
    for positive, negative in ((present, absent), (-absent, -present)):
        first, second = ((x[: len(y) // 2], x[len(y) // 2 :]) for x, y in ((positive, present), (negative, absent)))
        candidates = np.quantile(np.concatenate([first[0], second[0]]), np.linspace(0.02, 0.999, 50))
        threshold = max(candidates, key=lambda t: bound(first[0], second[0], t, level))
        best = max(best, bound(first[1], second[1], threshold, 1 - (1 - level) / 2))
    return max(0.0, best)


def one_run(
    scores: Array, coins: Array, *, delta: float, confidence: float, gaussian: bool, reported: float
) -> tuple[float, float]:
    """Return the bound of an attack on one run with many canaries, and the bound if all its guesses had been right.

    The attack guesses the coins of the canaries with the most extreme scores. How many it guesses depends on what is reported,
    never on the scores. Mahloujifar, Melis, Chaudhuri (2025), algorithm 3, whose recursion bounds the probability of so many
    right guesses from the trade-off curve; that of (epsilon, delta) or of Gaussian differential privacy.

    - **scores** - (m,) high where the canary seems to be in.
    - **coins** - (m,) whether each canary was in, each with probability 1/2.
    - **delta**, **confidence**, **gaussian** - as for `many_runs`.
    - **reported** - epsilon that is reported, for which the number of guesses is chosen."""
    m = len(scores)
    guesses = _best_number(m, reported, delta, confidence, gaussian)
    order = np.argsort(scores, kind="stable")
    right = int(np.sum(coins[order[m - guesses // 2 :]])) + int(np.sum(~coins[order[: guesses - guesses // 2]]))
    found = [_refuted(n, guesses, m, delta, confidence, gaussian) for n in (right, guesses)]
    return found[0], found[1]


@functools.lru_cache
def _best_number(m: int, reported: float, delta: float, confidence: float, gaussian: bool) -> int:
    """How many guesses give the largest bound where scores are those of a Gaussian mechanism that costs what is reported, and one
    sd fewer guesses are right than expected."""
    from scipy import optimize, stats

    most = gaussian_epsilon(_LARGEST / 4, delta)
    target = min(max(reported, 1e-3), most)
    mu = optimize.brentq(lambda mu: gaussian_epsilon(mu, delta) - target, 1e-6, _LARGEST / 4, xtol=1e-4)

    def bound(share: float) -> float:
        tail = lambda t: 0.5 * (stats.norm.sf(t) + stats.norm.sf(t - mu)) - 0.5 * share  # noqa: E731
        threshold = optimize.brentq(tail, -_LARGEST, _LARGEST) if share < 1.0 else 0.5 * mu
        guesses = max(1, round(share * m))
        right = stats.norm.sf(threshold - mu) / (stats.norm.sf(threshold) + stats.norm.sf(threshold - mu))
        unlucky = guesses * right - (guesses * right * (1.0 - right)) ** 0.5
        return _refuted(max(0, int(unlucky)), guesses, m, delta, confidence, gaussian)

    return max(1, round(max(_SHARES, key=bound) * m))


@functools.lru_cache
def _refuted(right: int, guesses: int, m: int, delta: float, confidence: float, gaussian: bool) -> float:
    """The largest epsilon of a grid that so many right guesses refute."""
    from scipy.special import ndtr, ndtri

    low, high = 0.0, _LARGEST
    for _ in range(3):
        grid = np.linspace(low, high, 41)
        if gaussian:
            least = lambda x, mu=grid: ndtr(ndtri(x) - mu)  # noqa: E731
        else:
            least = lambda x, e=grid: np.maximum(  # noqa: E731
                np.maximum(0.0, np.exp(-e) * (x - delta)), 1.0 - delta - np.exp(e) * (1.0 - x)
            )
        refuted = np.broadcast_to(_is_refuted(least, right, guesses, m, 1.0 - confidence), grid.shape)
        if not refuted[0]:
            return 0.0
        last = len(grid) - 1 if np.all(refuted) else int(np.argmin(refuted)) - 1
        low, high = grid[last], grid[min(last + 1, len(grid) - 1)]
    return gaussian_epsilon(low, delta) if gaussian else float(low)


def _is_refuted(least: Function, right: int, guesses: int, m: int, level: float) -> Any:
    """Whether `right` of `guesses` has probability below `level` for each of some trade-off curves.

    - **least** - `least(x)`: least probability of an event on one data set that has probability x on the neighbouring one."""
    share = level / m
    h: Any = share * (guesses - right)
    r: Any = share * right
    for i in range(right - 1, -1, -1):
        new = np.maximum(h, least(np.minimum(r, 1.0)))
        r, h = r + i / (guesses - i) * (new - h), new
    return r + h > guesses / m
