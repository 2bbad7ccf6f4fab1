"""From a target (epsilon, delta), or advantage, to a noise multiplier."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

from dpppl.accounting import privacy_spent
from dpppl.accounting.dp_events import Events
from dpppl.errors import ConfigurationError
from dpppl.validation import checked, fraction

_TOLERANCE = 1e-3  # of the target epsilon


@checked
def calibrate_noise_multiplier(
    make_event: Callable[[float], Events], target_epsilon: float, target_delta: float, accountant: str = "auto", *,
    neighboring_relation: str | None = None, group_size: int = 1,
) -> float:  # fmt: skip
    """Smallest noise multiplier for which `make_event(noise_multiplier)` meets the target.

    - **make_event** - `make_event(noise_multiplier)`, what would be asked of the data.
    - **target_epsilon**, **target_delta** - the target.
    - **accountant**, **neighboring_relation** - as for `epsilon`.
    - **group_size** - the most rows of one person, which are protected together, as for `group_epsilon`.

    Guarantee: `epsilon(make_event(result), target_delta, accountant)` is at most `target_epsilon`, evaluated at the
    value returned, and within 0.1 % of it where such a noise multiplier exists between 1e-6 and 1e12.

    Raises ConfigurationError if no noise multiplier meets the target.

    >>> from dpppl.accounting import GaussianEvent
    >>> make_event = lambda sigma: GaussianEvent(noise_multipliers=((sigma, 1000),))
    >>> round(calibrate_noise_multiplier(make_event, target_epsilon=1.0, target_delta=1e-5))
    118
    """
    cost = _cost(make_event, target_epsilon, target_delta, accountant, neighboring_relation, group_size)
    return _search(cost, target_epsilon, "noise multiplier", start=1.0, cheaper=1, low=1e-6, high=1e12)


@checked
def calibrate_advantage(
    make_event: Callable[[float], Events], target_advantage: float, accountant: str = "auto"
) -> float:
    """Smallest noise multiplier for which no attack on one row has more than `target_advantage`, in (0, 1).

    - **make_event**, **accountant** - as for `calibrate_noise_multiplier`; DpEvents are of the relation "zero_out".

    The advantage is the largest difference of an attack's true and false positive rates, delta at epsilon 0 (Kulynych et al.
    2024). Guarantee: `delta(make_event(result), 0.0, accountant)` is at most the target, and within 0.1 % of it.

    Raises ConfigurationError if no noise multiplier meets the target.

    >>> from dpppl.accounting import GaussianEvent
    >>> make_event = lambda sigma: GaussianEvent(noise_multipliers=((sigma, 1000),))
    >>> round(calibrate_advantage(make_event, 0.1), 1)
    125.9
    """
    fraction(target_advantage, name="target_advantage")
    cost = lambda sigma: privacy_spent.delta(make_event(sigma), 0.0, accountant)  # noqa: E731
    return _search(
        cost, target_advantage, "noise multiplier", start=1.0, cheaper=1, low=1e-6, high=1e12, what="advantage"
    )


def _cost(
    make_event: Callable[..., Events], target_epsilon: float, target_delta: float, accountant: str,
    neighboring_relation: str | None, group_size: int = 1,
) -> Callable[[float], float]:  # fmt: skip
    privacy_spent.check_delta(target_delta)
    try:
        inspect.signature(make_event).bind(1.0)
    except TypeError as error:
        raise ConfigurationError(
            f"make_event is called with one argument, the number that is looked for: {error}."
        ) from None
    except ValueError:  # a built-in function, which has no signature
        pass
    if not (math.isfinite(target_epsilon) and target_epsilon > 0):
        raise ConfigurationError(f"target_epsilon {target_epsilon} must be positive and finite.")
    return lambda value: privacy_spent.group_epsilon(
        make_event(value), target_delta, group_size, accountant, neighboring_relation=neighboring_relation
    )


def _search(
    cost: Callable[[float], float], target: float, name: str, *, start: float, cheaper: int, low: float, high: float,
    what: str = "epsilon",
) -> float:  # fmt: skip
    """Walk from `start` until both a value that meets the target and one that does not are known, then refine."""
    good = bad = first = None
    value = start
    while good is None or bad is None:
        spent = cost(value)
        first = spent if first is None else first
        if spent <= target:
            good = (value, spent)
        else:
            bad = (value, spent)
        end = high if (cheaper > 0) == (spent > target) else low
        if value == end and good is None:
            raise ConfigurationError(
                f"target {what} {target} cannot be met: at {name} {value:g} {what} is still {spent:g}. "
                + (
                    f"It is the same at {start:g}: make_event must use its argument."
                    if first == spent < math.inf and value != start
                    else f"Use a larger {what} or delta, fewer accesses, more noise, or sampling with a smaller failure "
                    "probability."
                )
            )
        if value == end and bad is None:
            return value
        step = math.exp(min(max(1.2 * abs(math.log(spent / target)), 0.05), 3.0)) if 0 < spent < math.inf else 20.0
        value = min(value * step, high) if end == high else max(value / step, low)
    return _refine(cost, target, good, bad)


def _refine(
    cost: Callable[[float], float], target: float, good: tuple[float, float], bad: tuple[float, float]
) -> float:
    """A value that meets the target within the tolerance, or next to one that does not, between good and bad ones.

    `good` and `bad` are pairs (value, epsilon). Secants of log epsilon against log value, which is close to linear."""
    known = [good, bad]
    for attempt in range(200):
        if good[1] >= target * (1 - _TOLERANCE) or abs(good[0] - bad[0]) <= 1e-9 * good[0]:
            break
        value = math.sqrt(good[0] * bad[0])
        nearest = sorted((abs(math.log(e / target)), x, e) for x, e in known if 0 < e < math.inf)[:2]
        if attempt % 4 < 3 and len(nearest) == 2 and nearest[0][2] != nearest[1][2]:
            (_, x0, e0), (_, x1, e1) = nearest
            slope = math.log(x1 / x0) / math.log(e1 / e0)
            way = slope * math.log(target * (1 - _TOLERANCE / 2) / e0)
            value = x0 * math.exp(min(max(way, -50.0), 50.0))  # where the cost hardly depends on the value
        edges = [good[0] * (bad[0] / good[0]) ** share for share in (0.02, 0.98)]
        value = min(max(value, min(edges)), max(edges))
        spent = cost(value)
        known.append((value, spent))
        if spent <= target:
            good = (value, spent)
        else:
            bad = (value, spent)
    return good[0]
