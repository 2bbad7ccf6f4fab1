"""Central-limit Gaussian differential privacy: an APPROXIMATION that can report too small an epsilon.

For comparison with published figures only; the headline number comes from `dpppl.accounting.epsilon`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpppl.accounting.curves import gaussian_delta, gaussian_epsilon
from dpppl.accounting.dp_events import Events, as_events
from dpppl.accounting.events import GaussianEvent, gaussian_mu
from dpppl.accounting.privacy_spent import check_delta
from dpppl.errors import ConfigurationError


def approximate_mu(event: Events, *, neighboring_relation: str | None = None) -> float:
    """Approximate Gaussian-DP parameter mu of all accesses together.

    Poisson at rate q, zero-out or add/remove: q sqrt(sum_t (e^(1/sigma_t^2) - 1)). Fixed-size batches, replace-one,
    with s_t = sigma_t / 2: sqrt(2) q sqrt(sum_t (e^(1/s_t^2) Phi(1.5/s_t) + 3 Phi(-0.5/s_t) - 2)). Every row each time:
    exact, sqrt(sum_t 1/sigma_t^2). The squares of several events add up. `neighboring_relation` is that of DpEvents, as
    for `accounting.epsilon`.

    Not a guarantee: the limit holds for many accesses, each with little effect, and errs on either side.

    Raises ConfigurationError for a sampling scheme under a relation to which neither formula applies.

    References: Bu, Dong, Long, Su 2020, corollary 4; Dong, Roth, Su 2022, section 5.

    >>> round(approximate_mu(GaussianEvent(noise_multipliers=((1.0, 1000),), sampling_rate=0.005)), 4)
    0.2073
    """
    return math.sqrt(math.fsum(_mu_squared(e) for e in as_events(event, neighboring_relation)))


def approximate_epsilon(event: Events, delta: float, *, neighboring_relation: str | None = None) -> float:
    """Epsilon of the approximate mu at delta in (0, 1): comparison only, can be too small.

    >>> round(approximate_epsilon(GaussianEvent(noise_multipliers=((1.0, 1000),), sampling_rate=0.005), 1e-5), 3)
    0.754
    """
    check_delta(delta)
    mu = approximate_mu(event, neighboring_relation=neighboring_relation)
    return gaussian_epsilon(mu, delta) if math.isfinite(mu) else math.inf


def approximate_delta(event: Events, epsilon: float, *, neighboring_relation: str | None = None) -> float:
    """Delta of the approximate mu at epsilon >= 0: comparison only, can be too small."""
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ConfigurationError(f"epsilon {epsilon} must be finite and not negative.")
    mu = approximate_mu(event, neighboring_relation=neighboring_relation)
    return gaussian_delta(mu, epsilon) if math.isfinite(mu) else 1.0


def _mu_squared(event: GaussianEvent) -> float:
    replace_one = event.neighboring_relation == "replace_one"
    if event.noise_multipliers and min(event.noise_multipliers)[0] < 0.04:
        return math.inf  # e^(1/sigma^2) overflows
    if event.is_full_batch:
        return (gaussian_mu([event]) * event.sensitivity) ** 2
    if event.batch_size is None or event.num_data is None:
        if replace_one:
            raise ConfigurationError("the central limit for Poisson sampling is for zero-out and add/remove only.")
        return event.sampling_rate**2 * _sum(event, lambda sigma: math.expm1(sigma**-2))
    if not replace_one:
        raise ConfigurationError("the central limit for fixed-size batches is for neighboring_relation='replace_one'.")
    return 2 * (event.batch_size / event.num_data) ** 2 * _sum(event, _fixed_size_term)


def _sum(event: GaussianEvent, term: Callable[[float], float]) -> float:
    return math.fsum(count * term(sigma) for sigma, count in event.noise_multipliers)


def _fixed_size_term(sigma: float) -> float:
    """e^(x^2) Phi(1.5 x) + 3 Phi(-0.5 x) - 2 at x = 2 / sigma, written without the cancellation at small x."""
    x = 2 / sigma
    if x > 25:
        return math.inf
    lower, upper = math.erf(0.5 * x / math.sqrt(2)), math.erf(1.5 * x / math.sqrt(2))
    return math.expm1(x**2) * (1 + upper) / 2 + upper / 2 - 1.5 * lower
