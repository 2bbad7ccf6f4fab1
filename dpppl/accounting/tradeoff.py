"""Limits on attacks: the errors, gains and success rates that a privacy guarantee allows, from the events that ran.

All follows from delta(epsilon). An attack that says of one row "it was used" is wrong at a false positive rate (it was
not used) and a false negative rate (it was). (epsilon, delta)-DP forces the second to be at least
max(1 - delta - e^epsilon a, e^-epsilon (1 - delta - a), 0) at false positive rate a (Wasserman, Zhou 2010), for each
epsilon at once: the largest of these is the trade-off curve (Dong, Roth, Su 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpppl.accounting import additive, curves
from dpppl.accounting.dp_events import Events, as_events
from dpppl.accounting.events import without_noise
from dpppl.errors import ConfigurationError
from dpppl.validation import checked, fraction

Array = NDArray[np.float64]

LEAST_RATE = 1e-10
"""Mu-GDP, where it is not exact, is claimed for error rates of at least this."""
_NUM_EPSILONS = 400
_LEAST_DELTA = 1e-12
_LARGEST_EPSILON = 600.0
_ABOVE_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, kw_only=True)
class GaussianSummary:
    """One number for a whole trade-off curve: mu of the Gaussian one that it does not fall below (Gomez et al. 2025).

    - **mu** - that number; where it is not exact, for error rates of at least 1e-10.
    - **regret** - by how much it overstates the risk, in [0, 1]: both error rates, raised by it, reach the curve.
    - **exact** - whether the curve is that of mu."""

    mu: float
    regret: float
    exact: bool


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """Limits for an attacker on one row who knows all other rows and sees every release.

    - **epsilons**, **deltas** - points of the guarantee, rising and falling, (n,); between them delta is convex in e^epsilon.
    - **mu** - where the guarantee is exactly mu-Gaussian DP, else None.

    Guarantee: rates of errors are lower bounds, and gains and successes upper bounds, for every attack, under the events'
    neighbouring relation. Exact for full batches; elsewhere as tight as the accountant, within .001.

    References: Kulynych et al. 2024 (advantage, rates), Hayes, Mahloujifar, Balle 2023 and Kulynych et al. 2025
    (reconstruction, attributes), Jayaraman et al. 2021 (predictive value).

    >>> from dpppl.accounting import GaussianEvent
    >>> risk = trade_off(GaussianEvent(noise_multipliers=((100.0, 10_000),)))
    >>> risk.gaussian.mu, round(risk.advantage, 3), round(risk.true_positive_rate(0.01), 3)
    (1.0, 0.383, 0.092)

    >>> isinstance(risk, TradeOff)
    True
    """

    epsilons: Array = field(repr=False)
    deltas: Array = field(repr=False)
    mu: float | None = None

    @overload
    def false_negative_rate(self, false_positive_rate: float) -> float: ...
    @overload
    def false_negative_rate(self, false_positive_rate: Array) -> Array: ...
    @checked
    def false_negative_rate(self, false_positive_rate: float | Array) -> float | Array:
        """Least false negative rate of an attack with these false positive rates, in [0, 1], any shape."""
        rates = _rates(false_positive_rate, "false_positive_rate")
        if self.mu is not None:
            from scipy.special import ndtr, ndtri

            found = ndtr(-ndtri(rates) - self.mu)
        else:
            found = np.zeros(rates.shape)
            for epsilon, delta in zip(self.epsilons, self.deltas):
                steep, flat = 1 - delta - math.exp(epsilon) * rates, math.exp(-epsilon) * (1 - delta - rates)
                found = np.maximum(found, np.maximum(steep, flat))
        return float(found) if found.ndim == 0 else found

    @overload
    def true_positive_rate(self, false_positive_rate: float) -> float: ...
    @overload
    def true_positive_rate(self, false_positive_rate: Array) -> Array: ...
    @checked
    def true_positive_rate(self, false_positive_rate: float | Array) -> float | Array:
        """Largest share of used rows that an attack can recognise at these false positive rates."""
        return 1 - self.false_negative_rate(false_positive_rate)

    @property
    def advantage(self) -> float:
        """Largest difference of true and false positive rate: the total variation, delta at epsilon 0."""
        return float(self.deltas[0])

    @checked
    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at epsilon >= 0, between the points by convexity."""
        if not epsilon >= 0:
            raise ConfigurationError(f"epsilon {epsilon} must not be negative.")
        if self.mu is not None:
            return curves.gaussian_delta(self.mu, epsilon)
        x = np.exp(np.minimum(np.append(self.epsilons, epsilon), _LARGEST_EPSILON) - self.epsilons[-1])
        return float(np.interp(x[-1], x[:-1], self.deltas))

    @checked
    def bayes_risk(self, prior: float) -> float:
        """Least probability of being wrong about a row that was used with probability `prior` in (0, 1)."""
        fraction(prior, name="prior")
        rarer = min(prior, 1 - prior)
        return rarer * (1 - self.delta(math.log1p(-rarer) - math.log(rarer)))

    @checked
    def positive_predictive_value(self, prior: float, false_positive_rate: float) -> float:
        """Largest probability that an attack's "it was used" is true, at a prior in (0, 1) and a false positive rate > 0."""
        fraction(prior, name="prior")
        if not 0 < false_positive_rate <= 1:
            raise ConfigurationError(f"false_positive_rate {false_positive_rate} must be in (0, 1].")
        hits = prior * self.true_positive_rate(float(false_positive_rate))
        return hits / (hits + (1 - prior) * false_positive_rate)

    @checked
    def inference_success(self, baseline: float) -> float:
        """Largest probability of guessing a secret of the row that is guessed with `baseline` from all else.

        The secret is whatever is drawn at random for the row: the whole of it (reconstruction), or an attribute. `baseline`
        in [0, 1] is the success of the best guess that ignores the release, 1/2 for a fair bit."""
        return self.true_positive_rate(float(_rates(baseline, "baseline")))

    @property
    def gaussian(self) -> GaussianSummary:
        """Mu, and whether it is exact."""
        from scipy.special import ndtri

        if self.mu is not None:
            return GaussianSummary(mu=self.mu, regret=0.0, exact=True)
        x = np.exp(self.epsilons)
        false_positives = np.minimum(-np.diff(self.deltas) / np.diff(x), 1.0)  # where successive tangents meet
        false_negatives = 1 - self.deltas[:-1] - x[:-1] * false_positives
        # A Gaussian curve is convex: where it is not above two corners, it is not above the line between them.
        seen = (false_positives >= LEAST_RATE) & (false_negatives >= LEAST_RATE)
        corners = -ndtri(false_positives[seen]) - ndtri(false_negatives[seen])
        middle = -2 * ndtri((1 - self.advantage) / 2)
        mu = float(max(middle, *corners, 0.0)) if self.advantage < 1 else math.inf
        if not math.isfinite(mu):
            return GaussianSummary(mu=math.inf, regret=0.0, exact=False)
        theirs = np.array([curves.gaussian_delta(mu, epsilon) for epsilon in self.epsilons])
        regret = float(np.max((theirs - self.deltas) / (1 + x), initial=0.0))
        return GaussianSummary(mu=mu, regret=regret, exact=False)


@checked
def trade_off(
    event: Events, accountant: str = "auto", *, neighboring_relation: str | None = None, group_size: int = 1
) -> TradeOff:
    """The trade-off between an attack's errors that all accesses together leave.

    - **event**, **accountant**, **neighboring_relation** - as for `accounting.epsilon`, and so are the errors.
    - **group_size** - rows of one person that are attacked together, as for `accounting.group_epsilon`.

    Failure probabilities of sampling are counted: a probability beta raises delta by (1 + e^epsilon) beta.

    >>> from dpppl.accounting import GaussianEvent
    >>> risk = trade_off(GaussianEvent(noise_multipliers=((1.0, 1000),), sampling_rate=0.01))
    >>> round(risk.advantage, 2), round(risk.bayes_risk(0.5), 2), risk.gaussian.exact
    (0.16, 0.42, False)
    """
    events = as_events(event, neighboring_relation)
    built = curves.build(events, accountant, group_size)
    beta = math.fsum(e.failure_probability for e in events)
    mu = (
        group_size * math.sqrt(additive.gaussian_mu_squared(events)) if built[0].name == curves.EXACT_GAUSSIAN else None
    )
    if mu == math.inf or without_noise(events):
        return TradeOff(epsilons=np.zeros(1), deltas=np.ones(1))
    if mu is not None and not beta:
        epsilons = _epsilons(built[0])
        return TradeOff(epsilons=epsilons, deltas=built[0].deltas(epsilons), mu=mu)
    if built[0].epsilon(0.1) > curves.LARGEST_MEANINGFUL_EPSILON:
        return TradeOff(epsilons=np.zeros(1), deltas=np.ones(1))  # next to nothing is left to say, and PLD takes long
    epsilons = _epsilons(built[0])
    deltas = np.min([curve.deltas(epsilons) for curve in built], axis=0) * _ABOVE_ROUNDING
    deltas = np.minimum(deltas + np.exp(np.log1p(np.exp(-epsilons)) + epsilons) * beta, 1.0)
    kept = _lower_hull(np.exp(epsilons - epsilons[-1]), np.minimum.accumulate(deltas))
    return TradeOff(epsilons=epsilons[kept], deltas=np.minimum.accumulate(deltas)[kept])


def _epsilons(curve: curves.Curve) -> Array:
    """Epsilons from 0 to where delta is next to nothing, closer to each other where delta is large."""
    largest = min(curve.epsilon(_LEAST_DELTA), _LARGEST_EPSILON)
    return largest * np.linspace(0, 1, _NUM_EPSILONS) ** 1.5 if largest else np.zeros(1)


def _lower_hull(x: Array, y: Array) -> list[int]:
    """Which of the points, x rising, are corners of the largest convex function below them."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2:]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return kept


def _rates(values: ArrayLike, name: str) -> Array:
    try:
        rates = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name} must be a number in [0, 1], or an array of these.") from None
    if not np.all((rates >= 0) & (rates <= 1)):
        raise ConfigurationError(f"{name} must be in [0, 1].")
    return rates
