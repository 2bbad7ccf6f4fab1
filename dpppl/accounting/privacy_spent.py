"""From events to epsilon(delta) and delta(epsilon): exact Gaussian, PLD and RDP."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpppl.accounting import curves
from dpppl.accounting.dp_events import Events, as_events
from dpppl.accounting.events import GaussianEvent
from dpppl.errors import ConfigurationError
from dpppl.validation import checked

LARGEST_MEANINGFUL_EPSILON = curves.LARGEST_MEANINGFUL_EPSILON


@dataclass(frozen=True)
class PrivacySpent:
    """A guarantee.

    - **epsilon**, **delta** - the pair; epsilon may be inf.
    - **accountant** - name of the accountant whose bound it is.
    - **meaningful** - whether epsilon is at most 100, `LARGEST_MEANINGFUL_EPSILON`; above, it says next to nothing about a row.

    >>> PrivacySpent(epsilon=1.0, delta=1e-6, accountant="exact Gaussian (analytic)", meaningful=True).meaningful
    True
    """

    epsilon: float
    delta: float
    accountant: str
    meaningful: bool


@checked
def epsilon(event: Events, delta: float, accountant: str = "auto", *, neighboring_relation: str | None = None) -> float:
    """Smallest epsilon found for which the accesses together are (epsilon, delta)-DP; inf if there is none.

    - **event** - a GaussianEvent, a DpEvent of dp_accounting (see `from_dp_event`), or a sequence of them, which are
      composed.
    - **delta** - in (0, 1).
    - **accountant** - "gaussian", "pld", "rdp" or "auto": exact Gaussian where every row is used each time, RDP for fixed-size
      batches and for discrete noise, else PLD. RDP is tried, too, where PLD's epsilon exceeds what RDP could reach, or PLD cannot
      be used (more than 40 for the total mu of full batches or 1000 for 1 / noise multiplier; a group of more than 1000 rows, or
      of 2 that are replaced).
    - **neighboring_relation** - that of DpEvents, which have none of their own: "zero_out" unless given, which costs what
      dp_accounting's default ADD_OR_REMOVE_ONE costs.

    Guarantee: an upper bound under the events' neighbouring relation. With a failure probability beta it is solved at
    delta - (1 + e^epsilon) beta.

    Raises ConfigurationError if delta is outside (0, 1) or the accountant does not support the sampling scheme.

    References: Balle, Wang 2018, theorem 8 (exact Gaussian); Koskela et al. 2020, Doroshenko et al. 2022 and
    `dpppl.accounting.pld` (PLD); Mironov 2017 (RDP); Wang, Balle, Kasiviswanathan 2019 (fixed-size batches).

    >>> round(epsilon(GaussianEvent(noise_multipliers=((10.0, 100),)), delta=1e-5), 2)
    4.38
    """
    return spent(event, delta, accountant, neighboring_relation=neighboring_relation).epsilon


@checked
def delta(
    event: Events, epsilon: float, accountant: str = "auto", *, neighboring_relation: str | None = None,
    group_size: int = 1,
) -> float:  # fmt: skip
    """Smallest delta found for which the accesses together are (epsilon, delta)-DP, at most 1.

    - **epsilon** - finite, not negative.
    - **event**, **accountant**, **neighboring_relation** - as for `epsilon`, and so are guarantee and errors; a failure
      probability beta adds (1 + e^epsilon) beta.
    - **group_size** - the most rows of one person, as for `group_epsilon`.

    >>> round(delta(GaussianEvent(noise_multipliers=((1.0, 1),)), epsilon=1.0), 4)
    0.1269
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ConfigurationError(f"epsilon {epsilon} must be finite and not negative.")
    events = as_events(event, neighboring_relation)
    exact_sampling = min(curve.delta(min(epsilon, 1e12)) for curve in curves.build(events, accountant, group_size))
    beta = _failure_probability(events)
    slack = math.exp(min(math.log(beta) + math.log1p(math.exp(-epsilon)) + epsilon, 0.0)) if beta else 0.0
    return min(1.0, exact_sampling * curves.ROUND_UP + slack)


@checked
def spent(
    event: Events, delta: float, accountant: str = "auto", *, neighboring_relation: str | None = None,
    group_size: int = 1,
) -> PrivacySpent:  # fmt: skip
    """`epsilon` together with the accountant that gave it.

    - **event**, **delta**, **accountant**, **neighboring_relation** - as for `epsilon`, and so are guarantee and errors.
    - **group_size** - the most rows of one person, as for `group_epsilon`.

    >>> spent(GaussianEvent(noise_multipliers=((1.0, 1),)), delta=1e-5).accountant
    'exact Gaussian (analytic)'
    """
    check_delta(delta)
    events = as_events(event, neighboring_relation)
    found, beta = [], _failure_probability(events)
    for curve in curves.build(events, accountant, group_size):
        found.append((_solve(curve.epsilon, delta, beta), curve.name))
        if curve.final(delta, found[-1][0]):
            break
    value, name = min(found)
    return PrivacySpent(value, delta, name, value <= LARGEST_MEANINGFUL_EPSILON)


@checked
def group_epsilon(
    event: Events, delta: float, group_size: int, accountant: str = "auto", *, neighboring_relation: str | None = None
) -> float:
    """Epsilon when all of the at most `group_size` rows of one person are zeroed out, added, removed or replaced.

    Full-batch accesses: noise multipliers divided by the group size, exact. Poisson sampling under zero-out or
    add/remove with PLD: a Binomial(group_size, rate) number of the rows falls into each batch (Choquette-Choo et al.
    2023, corollary 4.7). Otherwise the general bound (k epsilon, delta (e^(k epsilon) - 1)/(e^epsilon - 1)) on the
    guarantee for one row. The failure probability must hold for both data sets compared, whatever the group's size.

    - **group_size** - the most rows of one person.
    - **event**, **delta**, **accountant**, **neighboring_relation** - as for `epsilon`, and so are guarantee and errors.

    >>> round(group_epsilon(GaussianEvent(noise_multipliers=((10.0, 100),)), delta=1e-5, group_size=3), 2)
    16.68
    """
    return spent(event, delta, accountant, neighboring_relation=neighboring_relation, group_size=group_size).epsilon


def check_delta(delta: float) -> None:
    """Raise ConfigurationError unless delta is in (0, 1)."""
    if isinstance(delta, bool) or not hasattr(delta, "__float__"):
        raise ConfigurationError(f"delta is a {type(delta).__name__}; give a number in (0, 1), such as 1e-6.")
    if not 0 < delta < 1:
        raise ConfigurationError(f"delta {delta} must be in (0, 1); take less than 1 / number of rows.")


def _failure_probability(events: Sequence[GaussianEvent]) -> float:
    return math.fsum(e.failure_probability for e in events)


def _solve(epsilon_at: Callable[[float], float], delta: float, beta: float) -> float:
    """Smallest epsilon with epsilon_at(delta - (1 + e^epsilon) beta) <= epsilon, found from below; inf if none is."""
    value = epsilon_at(delta) * curves.ROUND_UP
    if beta == 0:
        return value
    for _ in range(100):
        candidate = value * (1 + 1e-6)
        remaining = delta - (1 + math.exp(candidate)) * beta if candidate < 700 else 0.0
        if remaining <= 0:
            break
        value = epsilon_at(remaining) * curves.ROUND_UP
        if value <= candidate:
            return candidate
    return math.inf
