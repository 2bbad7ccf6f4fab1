"""From a target (epsilon, delta) to a noise multiplier, a number of steps, a sampling rate or a step size."""

from __future__ import annotations

import math
from collections.abc import Callable

from dpppl.accounting import accountants
from dpppl.accounting.accountants import Events
from dpppl.errors import ConfigurationError


def _check(target_epsilon: float, target_delta: float) -> None:
    accountants.check_delta(target_delta)
    if not (math.isfinite(target_epsilon) and target_epsilon > 0):
        raise ConfigurationError(f"target_epsilon {target_epsilon} must be positive and finite.")


def calibrate_noise_multiplier(
    make_event: Callable[[float], Events], target_epsilon: float, target_delta: float, accountant: str = "auto"
) -> float:
    """Smallest noise multiplier (within 0.1 %) for which `make_event(noise_multiplier)` meets the target.

    Guarantee: `epsilon(make_event(result), target_delta, accountant) <= target_epsilon`, evaluated as returned.
    Raises ConfigurationError if no noise multiplier reaches the target.
    """
    _check(target_epsilon, target_delta)

    def cost(log_sigma: float) -> float:
        return accountants.epsilon(make_event(math.exp(log_sigma)), target_delta, accountant)

    low = high = 0.0
    while cost(high) > target_epsilon:
        low, high = high, high + 1.0
        if high > 30:
            raise ConfigurationError(f"target_epsilon {target_epsilon} is not reached by any noise multiplier.")
    while low == high or cost(low) <= target_epsilon:
        high, low = min(high, low), low - 1.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if cost(middle) <= target_epsilon else (middle, high)
    return math.exp(high)
