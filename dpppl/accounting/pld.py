"""Privacy loss distributions of many accesses, composed by an exponentially tilted Fourier transform.

An access is a pair of distributions P, Q of its output; its loss is log dP/dQ at an output of P. Composition adds independent
losses, and delta at epsilon is the mean of (1 - e^(epsilon - loss))_+. Where one access's delta is raised, at every
epsilon, so is that of all accesses together (Zhu, Dong, Wang 2022). Every step here raises it, by little:

1. One access. P counts 1 + s times, s above the rounding errors, so that delta as computed is above the true one. It is
   computed at multiples of an interval; pieces linear in e^epsilon connect it, above a convex function. They are the
   delta of a loss on these multiples (Doroshenko et al. 2022).
2. All accesses. Probabilities times e^(order loss), normalised, are a distribution under which losses near epsilon are likely.
   The Fourier transform convolves it with itself; times e^(-order loss) it is what is wanted, with rounding errors that
   are small compared with delta, however small delta is. Without the tilt they are about 1e-16 an access, whatever
   delta is. A bound on what rounding takes off is computed with the transform and added to each of its numbers.
3. The transform is periodic. Mass below a period counts higher up, and mass above is bounded by Chernoff's
   inequality and added to delta.

dp_accounting's PLD transforms without a tilt: at a delta of 1e-14 its epsilon is up to 3.8 times ours, which exceeds the truth by
less than 0.1 %. In most settings it takes ten times as long or longer (`benchmarks/privacy/independent_accounts.py --pld`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpppl.accounting.losses import LEAST, ROUNDING, Array, DominatingPair, log_sum

_LEFT_OUT = 1e-5  # of delta: what all accesses together may add to an infinite loss
_LONGEST_INTERVAL = 100.0
_TILT = 0.85  # of the best order: rare large losses stay rare, and the period short
_MOST_POINTS = 2**21
_OUTSIDE = 24.0  # -log of the tilted distribution's probability on one side of the period


@dataclass(frozen=True, eq=False)
class Deltas:
    """Upper bounds on delta on a grid of epsilons.

    - **interval** - distance of two epsilons.
    - **first** - the first epsilon, as a multiple of the interval.
    - **deltas** - the bounds, falling, (n,)."""

    interval: float
    first: int
    deltas: Array

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon, not negative, at which delta is at most `delta`; inf if there is none."""
        enough = np.flatnonzero(self.deltas <= delta)
        if not enough.size:
            return math.inf
        at = int(enough[0])
        epsilon = (self.first + at) * self.interval
        if at:
            share = (delta - self.deltas[at]) / (self.deltas[at - 1] - self.deltas[at])
            epsilon += math.log1p(share * math.expm1(-self.interval))
        return max(0.0, float(epsilon))

    def delta(self, epsilon: float) -> float:
        """delta at `epsilon`, at most 1."""
        at = math.ceil(epsilon / self.interval) - self.first
        if at < 1:
            return 1.0
        if at >= len(self.deltas):
            return min(1.0, float(self.deltas[-1]))
        share = math.expm1(epsilon - (self.first + at) * self.interval) / math.expm1(-self.interval)
        rise = min(max(share, 0.0), 1.0) * (self.deltas[at - 1] - self.deltas[at])
        return min(1.0, float(self.deltas[at] + rise))


@dataclass(frozen=True, eq=False)
class Window:
    """The losses that are likely under a tilted distribution.

    - **bottom**, **top** - the smallest and the largest.
    - **spread** - standard deviation of the tilted distribution.
    - **higher_orders** - Renyi orders that bound what lies above."""

    bottom: float
    top: float
    spread: float
    higher_orders: Array


@dataclass(frozen=True, eq=False)
class Composition:
    """Accesses one after the other, in one direction: P's rows are those of the larger data set, or of the smaller.

    - **accesses** - the accesses."""

    accesses: Sequence[DominatingPair]

    def epsilon(self, delta: float, enough: float = 0.0) -> float:
        """Smallest epsilon found at which delta is at most `delta`, in (0, 1); inf if there is none.

        It is no further improved once it is at most `enough`."""
        cut = self._without(_LEFT_OUT * delta)
        exponent = cut._chernoff(delta)
        order = cut._best_order(exponent)
        return cut._refined(order, exponent(order), enough, lambda deltas: deltas.epsilon(delta))

    def delta(self, epsilon: float, enough: float = 0.0) -> float:
        """Upper bound on delta at `epsilon`, at most 1, no further improved once it is at most `enough`."""
        cut, log_delta = self, -600.0
        for _ in range(2):  # Chernoff's bound may be far above delta, but hardly a million times
            cut = cut._without(_LEFT_OUT * 1e-6 * math.exp(log_delta))
            order = cut._best_order(functools.partial(cut._log_delta, epsilon))
            log_delta = min(0.0, max(-600.0, cut._log_delta(epsilon, order)))
        return cut._refined(order, epsilon, enough, lambda deltas: deltas.delta(epsilon))

    def deltas(self, epsilons: Array) -> Array:
        """Upper bounds on delta at many epsilons, rising, from the transforms that are made for a few of them."""
        best = np.ones(len(epsilons))
        for at in epsilons[:: max(1, len(epsilons) // 4)]:

            def answer(found: Deltas, at: float = float(at)) -> float:
                np.minimum(best, [found.delta(e) for e in epsilons], out=best)
                return found.delta(at)

            self._refined(self._best_order(functools.partial(self._log_delta, at)), at, 0.0, answer)
        return best

    def renyi_epsilon(self, delta: float) -> float:
        """About the epsilon that Renyi accounting would give with every order."""
        cut = self._without(_LEFT_OUT * delta)
        exponent = cut._chernoff(delta)
        return exponent(cut._best_order(exponent))

    def _without(self, probability: float) -> Composition:
        """The same with tails of all accesses left out that have at most the probability together."""
        share = max(probability / len(self.accesses), 1e-280)
        return Composition([dataclasses.replace(a, tail=share / a.count) for a in self.accesses])

    def _log_delta(self, epsilon: float, order: float) -> float:
        """log of about Chernoff's bound on delta: the last two terms are that of the largest (1 - e^-x) e^(-order x), over x > 0
        (Canonne, Kamath, Steinke 2020)."""
        exponent = self._log_moment(order) - order * epsilon
        return exponent + (order * math.log(order) - (1 + order) * math.log1p(order))

    def _refined(self, best_order: float, epsilon: float, enough: float, answer: Callable[[Deltas], float]) -> float:
        """The answer, near `epsilon`, on a grid so fine that one three times as coarse differs by 0.1 %."""
        order = _TILT * best_order
        window = self._window(order)
        interval = min(3 * self._interval(order, window.spread, epsilon), _LONGEST_INTERVAL)
        best = math.inf
        while True:
            coarser, best = best, min(best, answer(self._deltas(order, window, interval)))
            last = window.top - window.bottom > interval * _MOST_POINTS
            if best <= enough or coarser <= (1 + 1e-3) * best or last:
                return best
            interval /= 3

    def _interval(self, order: float, spread: float, epsilon: float) -> float:
        """An interval that costs about 1e-4 of epsilon, where losses are about normal.

        A loss between two multiples goes to both. That adds interval^2 / 6 to its variance, or near 0 the interval times
        its size, and to log delta the variance times order (order + 1) / 2."""
        interval, allowed = min(spread / 100, 0.1 / order), 1e-4 * max(2 * epsilon, 8 / order) / (order + 1)
        tilted = [(a.count * np.exp(_tilted(a, order)), np.abs(a.nodes[1])) for a in self.accesses]
        while sum(p @ np.minimum(interval / 6, size) for p, size in tilted) * interval > allowed:
            interval *= 0.7
        return interval

    def _chernoff(self, delta: float) -> Callable[[float], float]:
        return lambda order: (self._log_delta(0.0, order) - math.log(delta)) / order

    def _log_moment(self, order: float) -> float:
        """log of the mean of e^(order loss), about."""
        return math.fsum(a.count * log_sum(a.nodes[2] + order * a.nodes[1]) for a in self.accesses)

    def _best_order(self, exponent: Callable[[float], float]) -> float:
        """The order at which a Chernoff bound is smallest, up to 1e6 over the largest loss."""
        from scipy.optimize import minimize_scalar

        largest = max(float(np.abs(a.nodes[1][[0, -1]]).max()) for a in self.accesses)
        bounds, options = (math.log(1e-2), math.log(1e6 / max(largest, 1e-12))), {"xatol": 0.05}
        found = minimize_scalar(lambda x: exponent(math.exp(x)), bounds=bounds, method="bounded", options=options)
        return math.exp(found.x)

    def _window(self, order: float) -> Window:
        """An interval that holds nearly all of the distribution tilted by `order`."""
        variance = 0.0
        for a in self.accesses:
            losses, p = a.nodes[1], np.exp(_tilted(a, order))
            variance += a.count * float(p @ (losses - p @ losses) ** 2)
        # Where losses are all but equal, what is added for rounding spreads them.
        spread = max(math.sqrt(variance), 1e-11 * sum(a.count for a in self.accesses))
        # Orders at which Chernoff's inequality bounds the tails well, whether these are a normal's or rare large losses.
        steps = np.concatenate([np.array([0.05, 0.1, 0.2, 0.4, 0.8]) * order, np.array([2.0, 4.0, 8.0]) / spread])
        here = self._log_moment(order)
        edges = [[(self._log_moment(order + t) - here + _OUTSIDE) / t for t in sign * steps] for sign in (-1, 1)]
        bottom = max(*edges[0], sum(a.count * float(a.nodes[1][0]) for a in self.accesses))
        top = min(*edges[1], sum(a.count * float(a.nodes[1][-1]) for a in self.accesses))
        return Window(bottom, top, spread, order + steps)

    def _deltas(self, order: float, window: Window, interval: float) -> Deltas:
        """Upper bounds on delta at multiples of an interval at least as long as `interval`, in the window."""
        from scipy import fft
        from scipy.signal import lfilter

        interval = max(interval, (window.top - window.bottom) / _MOST_POINTS)
        if interval > _LONGEST_INTERVAL:
            return Deltas(interval, 0, np.array([math.inf]))
        margin = 2 + math.ceil(
            8 * math.sqrt(sum(a.count for a in self.accesses))
        )  # each loss moves by up to an interval
        first = math.floor(window.bottom / interval) - margin
        size = fft.next_fast_len(math.ceil(window.top / interval) + margin - first, real=True)
        parts = [a.on_grid(interval) for a in self.accesses]
        # Each of log2(size) stages adds a few roundings of a sum of moduli; products and sums of logarithms add a few more.
        noise = 8 * ROUNDING * (math.log2(size) + 2 + len(parts))
        modulus, raised, phase = np.zeros((3, size // 2 + 1))
        log_constant, log_error = 0.0, 8 * ROUNDING * size
        for part in parts:
            tilted, log_sum, relative_error = part.tilted(order * interval)
            folded = np.bincount(part.index % size, tilted, size)
            folded[0] -= 1  # most of it, where losses are rare: the transform less 1 errs in proportion to the rest
            less_one = fft.rfft(folded)
            spectrum = 1 + less_one
            size_of = np.maximum(np.abs(spectrum), LEAST)
            near_one = np.log1p(np.maximum(2 * less_one.real + np.abs(less_one) ** 2, -0.9)) / 2
            modulus += part.count * np.where(np.abs(less_one) < 0.5, near_one, np.log(size_of))
            phase += part.count * np.angle(spectrum)
            raised += part.count * np.log1p(noise * float(np.abs(folded).sum()) / size_of)
            log_constant += part.count * log_sum
            log_error += part.count * relative_error
        error = 2 / size * float(np.sum(noise * np.exp(modulus) - np.exp(modulus + raised) * np.expm1(-raised)))
        composed = np.maximum(fft.irfft(np.exp(modulus) * np.exp(1j * phase), size), 0) + error
        # Where the exponent is cut off, delta is above 1.
        exponents = np.minimum(log_constant + log_error - order * interval * (first + np.arange(size)), 300)
        masses = np.roll(composed, -(first % size)) * np.exp(exponents)
        # delta at a multiple, from that at the next: (1 - e^-interval) P(loss > multiple) + e^-interval delta.
        sums = np.cumsum(masses[:0:-1])
        deltas = np.append(lfilter([-math.expm1(-interval)], [1, -math.exp(-interval)], sums)[::-1], 0.0)
        log_total = sum(part.count * math.log(part.infinite + part.masses.sum()) for part in parts)
        infinite = sum(part.count * part.infinite for part in parts) * math.exp(min(log_total, 700.0))
        outside = -math.inf
        if first + size <= sum(part.count * int(part.index[-1]) for part in parts):
            outside = min(
                sum(part.count * part.tilted(higher * interval)[1] for part in parts)
                - higher * (first + size) * interval
                for higher in window.higher_orders
            )
        deltas += infinite + math.exp(min(outside, 0.0))
        return Deltas(interval, first, np.where(np.isfinite(deltas), deltas, np.inf))


def _tilted(access: DominatingPair, order: float) -> Array:
    """Approximate log probabilities of the distribution tilted by `order`."""
    exponents = access.nodes[2] + order * access.nodes[1]
    return exponents - log_sum(exponents)
