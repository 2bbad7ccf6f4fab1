"""A tight accountant of Poisson-sampled Gaussian accesses, written without dpppl and dp_accounting, to test them by.

An access's output, a normal of unit variance around 0 (row absent) or around 1/sigma with probability q (present), is
cut into cells. A cell's probabilities are differences of distribution functions, so its loss is exact for whoever
sees the cell only. Probabilities are tilted by e^(order loss), normalised, and put on a grid by three weights that keep
each loss's mean and variance; one Fourier transform composes all accesses. The tilt makes the answer's own losses the
likely ones, so rounding is relative to delta, however small delta is.

An estimate, right to about 1e-4 of epsilon (see test_accounting_tight.py), and no bound.

`python tests/tight.py [number of settings]` compares dpppl with it on random settings.
"""

import math

import numpy as np
from scipy import fft, special
from scipy.optimize import brentq, minimize_scalar

CELL = 0.01  # standard deviations
TAIL = 11.0
WIDTH = 34.0  # natural logarithms of what lies outside of the window, under the tilted law


def gaussian_epsilon(mu, delta):
    """Of mu-Gaussian differential privacy (Balle and Wang 2018, theorem 8), by root finding on its closed form."""

    def excess(epsilon):
        log_second = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
        return special.ndtr(mu / 2 - epsilon / mu) - math.exp(log_second) - delta

    return 0.0 if excess(0.0) <= 0.0 else brentq(excess, 0.0, 50 * mu * (mu + 10), xtol=1e-12)


def interval_probability(low, high, mean):
    """P(low < x < high) for x normal around `mean` with unit variance, small in relative error on either side."""
    low, high = low - mean, high - mean
    mirror = low > 0
    a, b = np.where(mirror, -high, low), np.where(mirror, -low, high)
    return special.ndtr(b) - special.ndtr(a)


def cells(sigma, rate, remove):
    """Losses of the cells and log probabilities of the side they are drawn from: row present if `remove`."""
    shift = 1 / sigma
    edges = np.arange(-TAIL, shift + TAIL + CELL, CELL)
    absent = interval_probability(edges[:-1], edges[1:], 0.0)
    moved = interval_probability(edges[:-1], edges[1:], shift)
    with np.errstate(divide="ignore"):
        log_absent, log_moved = np.log(absent), np.log(moved)
    keep = np.isfinite(log_absent) & np.isfinite(log_moved)
    log_absent, log_moved = log_absent[keep], log_moved[keep]
    with np.errstate(divide="ignore"):
        loss = np.logaddexp(np.log1p(-rate), math.log(rate) + log_moved - log_absent)
    return (loss, log_absent + loss) if remove else (-loss, log_absent)


class Direction:
    """All accesses, in one of the two directions."""

    def __init__(self, accesses, rate, remove):
        self.parts = [(*cells(sigma, rate, remove), count) for sigma, count in accesses]

    def log_moment(self, order):
        return sum(count * special.logsumexp(order * loss + log_p) for loss, log_p, count in self.parts)

    def curve(self, order, refinement):
        """A grid of epsilons, and log delta at each."""
        tilted, mean, variance = [], 0.0, 0.0
        for loss, log_p, count in self.parts:
            p = np.exp(order * loss + log_p - special.logsumexp(order * loss + log_p))
            tilted.append(p)
            mean += count * (p @ loss)
            variance += count * (p @ (loss - p @ loss) ** 2)
        spread, here = math.sqrt(variance), self.log_moment(order)

        def edge(sign):  # Chernoff's bound of the tilted law, or the end of its support
            steps = sign * np.concatenate(
                [np.array([0.2, 0.5, 1.0]) * math.sqrt(2 * WIDTH) / spread, np.geomspace(0.03, 1, 6) * order]
            )
            ends = [count * (loss.max() if sign > 0 else loss.min()) for loss, _, count in self.parts]
            return (
                min(sign * sum(ends), *(sign * (self.log_moment(order + t) - here + WIDTH) / t for t in steps)) * sign
            )

        bottom, top = edge(-1), edge(1)
        step = max(min(spread / 100, 0.1 / order) / refinement, (top - bottom) / 2**21)
        size = fft.next_fast_len(int((top - bottom) / step) + 8, real=True)
        log_modulus, phase = 0.0, 0.0
        for (loss, _, count), p in zip(self.parts, tilted):
            at = np.rint(loss / step).astype(np.int64)
            t = loss / step - at
            mass = np.zeros(size)
            for offset, weight in ((-1, t * (t - 1) / 2), (0, 1 - t**2), (1, t * (t + 1) / 2)):
                mass += np.bincount((at + offset) % size, weights=p * weight, minlength=size)
            spectrum = fft.rfft(mass)
            log_modulus = log_modulus + count * np.log(np.maximum(np.abs(spectrum), 1e-300))
            phase = phase + count * np.angle(spectrum)
        composed = fft.irfft(np.exp(log_modulus) * np.exp(1j * phase), size)
        first = math.floor(bottom / step)
        losses = (first + np.arange(size)) * step
        composed = np.roll(composed, -(first % size)) * np.exp(np.minimum(-order * (losses - mean), 300))
        # delta at losses[k], over exp(here - order mean): sums over j > k of m_j and of m_j e^(losses[k] - losses[j])
        above = np.cumsum(composed[::-1])[::-1] - composed
        weighted = composed * np.exp(-(losses - mean))
        discounted = np.exp(losses - mean) * (np.cumsum(weighted[::-1])[::-1] - weighted)
        with np.errstate(divide="ignore", invalid="ignore"):
            return losses, np.log(above - discounted) + here - order * mean

    def log_delta(self, epsilon):
        def exponent(log_order):
            order = math.exp(log_order)
            return self.log_moment(order) - order * epsilon + conversion(order)

        def answer(losses, log_deltas):
            return float(np.interp(epsilon, losses, log_deltas))

        return self.refined(minimum(exponent), answer, 1e-3)

    def epsilon(self, delta):
        def exponent(log_order):
            order = math.exp(log_order)
            return (self.log_moment(order) - math.log(delta) + conversion(order)) / order

        def answer(losses, log_deltas):
            above = max(np.flatnonzero(log_deltas > math.log(delta)), default=0)
            pair = slice(above, above + 2)
            return max(0.0, float(np.interp(-math.log(delta), -log_deltas[pair], losses[pair])))

        return self.refined(minimum(exponent), answer, 1e-4)

    def refined(self, log_order, answer, tolerance):
        """The answer on a grid so fine that one twice as coarse gives nearly the same."""
        coarser, refinement = math.inf, 1
        while True:
            losses, log_deltas = self.curve(math.exp(log_order), refinement)
            good = np.isfinite(log_deltas)
            found = answer(losses[good], log_deltas[good])
            if (found != 0 and abs(found - coarser) <= tolerance * abs(found)) or len(losses) > 2**19:
                return found
            coarser, refinement = found, refinement * (2 if found else 8)


def conversion(order):
    """log of the largest (1 - e^-x) e^(-order x), x > 0."""
    return order * math.log(order) - (1 + order) * math.log1p(order)


def minimum(function):
    return minimize_scalar(
        function, bounds=(math.log(1e-2), math.log(1e9)), method="bounded", options={"xatol": 0.02}
    ).x


def epsilon(accesses, rate, delta):
    """The epsilon of accesses [(noise multiplier, count), ...] at `delta`: zero out, or add or remove, one row."""
    removing = Direction(accesses, rate, True).epsilon(delta)
    largest = -sum(count for _, count in accesses) * math.log1p(-rate) if rate < 1 else math.inf
    # No loss is larger when a row is added.
    return removing if largest <= removing else max(removing, Direction(accesses, rate, False).epsilon(delta))


def delta(accesses, rate, epsilon):
    return math.exp(max(Direction(accesses, rate, remove).log_delta(epsilon) for remove in (True, False)))


def attacked(sigma, rate, count, epsilon):
    """A delta that is reached at `epsilon` by asking whether any of `count` outputs exceeds a threshold."""
    cut = np.linspace(-5.0, 20.0 + 1 / sigma, 20_001)
    absent = special.ndtr(-cut)
    present = (1 - rate) * absent + rate * special.ndtr(1 / sigma - cut)
    exceeds = [-np.expm1(count * np.log1p(-np.minimum(p, 1 - 1e-16))) for p in (present, absent)]
    return float(np.max(exceeds[0] - math.exp(epsilon) * exceeds[1]))


def random_setting(rng):
    """(sigma, rate, count, delta) over the whole range, such that epsilon is between 1e-3 and 100."""
    while True:
        sigma = math.exp(rng.uniform(math.log(0.3), math.log(500)))
        rate = min(1.0, math.exp(rng.uniform(math.log(1e-6), math.log(2.0))))
        count = int(math.exp(rng.uniform(0.0, math.log(1e6))))
        at_delta = 10 ** rng.uniform(-13, -1)
        # The central limit's mu, to leave out what nobody would run: no privacy at all, or no loss of it.
        mu = rate * math.sqrt(count * math.expm1(min(sigma**-2, 50.0)))
        if 1e-3 < mu < 20:
            return sigma, rate, count, at_delta
