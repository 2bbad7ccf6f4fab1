"""Private selection: a random number of private runs, of which only the best is released.

The number of runs K is drawn from a truncated negative binomial (of which the geometric is one) or a Poisson distribution,
and kept secret; each run takes a candidate at random. Choosing the best then costs little more than one run: with D(a) the
Renyi divergence of a run, that of the selection at order a is (Papernot, Steinke 2022)

    theorem 2, shape n > -1:  D(a) + (1 + n) min over b of [(1 - 1/b) D(b) + log(1/g) / b] + log(E K) / (a - 1)
    theorem 6, Poisson:       D(a) + E K delta(log(1 + 1/(a - 1))) + log(E K) / (a - 1)

with g the parameter of the distribution and delta(epsilon) that of a run. Divergences only: no other accountant knows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpppl.accounting.events import GaussianEvent
from dpppl.errors import ConfigurationError
from dpppl.validation import a, checked, checked_fields, plain

_LEAST_GAMMA, _LARGEST = 1e-12, 1e6


@checked_fields
@dataclass(frozen=True, kw_only=True)
class SelectionEvent:
    """The best of a random number of runs, as plain numbers.

    - **candidates** - the events of a run, its score included, for each candidate that may be drawn.
    - **mean** - the expected number of runs, from 1 to a million; next to 1 it is taken as 1.
    - **shape** - of the truncated negative binomial, from 0 (logarithmic) to a million, 1 for the geometric one; None for
      Poisson, which may run nothing.

    Raises ConfigurationError for numbers out of range.

    >>> from dpppl import accounting
    >>> run = GaussianEvent(noise_multipliers=((20.0, 100),))
    >>> best = SelectionEvent(candidates=((run,),), mean=10.0)
    >>> round(accounting.epsilon(run, 1e-6), 2), round(accounting.epsilon(best, 1e-6), 2)
    (2.25, 4.55)
    """

    candidates: tuple[tuple[GaussianEvent, ...], ...]
    mean: float
    shape: float | None = 1.0

    def __post_init__(self) -> None:
        given: object = self.candidates
        is_nested = isinstance(given, list | tuple) and all(isinstance(each, list | tuple) and each for each in given)
        if not (given and is_nested and all(isinstance(e, GaussianEvent) for c in self.candidates for e in c)):
            raise ConfigurationError(
                "a selection has at least one candidate, each with at least one GaussianEvent: candidates=((event,),)."
            )
        fields = tuple(map(tuple, self.candidates)), plain(self.mean), plain(self.shape)
        for name, value in zip(("candidates", "mean", "shape"), fields):
            object.__setattr__(self, name, value)
        if len({e.neighboring_relation for c in self.candidates for e in c}) > 1:
            raise ConfigurationError("all candidates of a selection must have the same neighbouring relation.")
        if not 1 <= self.mean <= _LARGEST or (self.shape is not None and not 0 <= self.shape <= _LARGEST):
            raise ConfigurationError(
                "a selection's mean (mean_runs) is a number from 1 to 1e6, its shape one from 0 to 1e6, or None for Poisson."
            )

    @property
    def neighboring_relation(self) -> str:
        """The bound for all candidates."""
        return self.candidates[0][0].neighboring_relation

    @property
    def noise_multipliers(self) -> tuple[tuple[float, int], ...]:
        """Noise multipliers of the accesses of all candidates, each candidate once."""
        return tuple(pair for c in self.candidates for e in c for pair in e.noise_multipliers)

    @property
    def num_accesses(self) -> int:
        """The most that one run makes."""
        return max(sum(e.num_accesses for e in c) for c in self.candidates)

    @property
    def failure_probability(self) -> float:
        """The expected sum over all runs."""
        return self.mean * max(math.fsum(e.failure_probability for e in c) for c in self.candidates)

    @property
    def is_full_batch(self) -> bool:
        """Never: a selection is no Gaussian mechanism."""
        return False

    @property
    def discrete(self) -> bool:
        """Whether any noise is discrete: then whole orders only."""
        return any(e.discrete for c in self.candidates for e in c)

    sampling_rate, batch_size, num_data = 1.0, None, None

    @property
    def gamma(self) -> float:
        """The parameter of the truncated negative binomial."""
        return _gamma(self.mean, self.shape)

    @checked
    def draw(self, rng: np.random.Generator) -> int:
        """A number of runs. It must stay secret."""
        if not isinstance(rng, np.random.Generator):
            raise ConfigurationError(f"rng is {a(type(rng).__name__)}; give numpy.random.default_rng().")
        if self.shape is None:
            return int(rng.poisson(self.mean))
        gamma, rest, count = self.gamma, rng.random(), 0
        if gamma == 1:
            return 1
        if self.shape < 1e-15:
            return int(rng.logseries(1 - gamma))
        if self.shape * -math.log(gamma) > 0.7:  # 0 less often than every second time
            while not count:
                count = int(rng.negative_binomial(self.shape, gamma))
            return count
        term = _ratio(math.log(gamma), self.shape) * gamma**self.shape
        while rest >= 0:  # the first number up to which the probabilities exceed a uniform one
            term, count = term * (1 - gamma) * ((count + self.shape if count else 1) / (count + 1)), count + 1
            rest -= term
        return count


def _ratio(log_gamma: float, shape: float) -> float:
    """shape / (1 - gamma^shape), and its limit for a shape of 0."""
    return -1 / log_gamma if shape < 1e-15 else shape / -math.expm1(shape * log_gamma)


def _gamma(mean: float, shape: float | None) -> float:
    from scipy.optimize import brentq

    if shape is None:
        raise ConfigurationError("a Poisson number of runs has no gamma.")
    if mean < 1 + 1e-9:
        return 1.0
    if shape == 1:
        return 1 / mean

    def excess(log_gamma: float) -> float:
        return _ratio(log_gamma, shape) * math.expm1(-log_gamma) - mean

    least = min(1e-9, (mean - 1) / (shape + 1))  # y / (1 - e^-y) < 1 + y
    return math.exp(float(brentq(excess, math.log(_LEAST_GAMMA), -least, xtol=1e-18)))
