"""Rules that combine the analyses of several synthetic tables into one estimate with its interval."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpppl.errors import ConfigurationError
from dpppl.validation import checked, fraction

Array = np.ndarray

RULES = {
    "fully_synthetic": (
        "Raghunathan, Reiter, Rubin (2003): the posterior is calibrated, each table comes from a posterior draw of its own, "
        "the analysis is about as rich as the model of the table, and estimates are near normal."
    ),
    "mixture": (
        "Räisä, Jälkö, Honkela (2025): the same, and tables are several times as large as the data, so that each table's own "
        "variance is small relative to the variance between tables."
    ),
}
"""By name of a rule: its source and its conditions."""


@dataclass(frozen=True)
class Combined:
    """A combined analysis.

    - **estimate** - combined estimates, (...,).
    - **variance** - variance of each, (...,).
    - **degrees_of_freedom** - of Student's t for "fully_synthetic"; infinite for "mixture".
    - **rule** - name of the rule; `RULES[rule]` states its conditions.
    - **was_negative** - whether the rule's variance was negative, so that a bound took its place: take more or larger tables.
    - **components** - estimates and variances of the tables, (M, ...).

    >>> combined = combine([0.4, 0.5, 0.6], [0.001, 0.001, 0.001])
    >>> isinstance(combined, Combined), combined.rule in RULES
    (True, True)
    """

    estimate: Array
    variance: Array
    degrees_of_freedom: Array
    rule: str
    was_negative: Array
    components: tuple[Array, Array]

    @checked
    def interval(self, probability: float = 0.95) -> tuple[Array, Array]:
        """Lower and upper ends of a central interval, (...,) each."""
        from scipy import optimize, stats

        probability = fraction(probability, name="probability")
        tail = (1.0 - probability) / 2.0
        if self.rule == "fully_synthetic":
            half = stats.t.isf(tail, self.degrees_of_freedom) * np.sqrt(self.variance)
            return self.estimate - half, self.estimate + half
        means, sds = self.components[0], np.sqrt(self.components[1])
        ends = np.empty((2, *self.estimate.shape))
        for place in np.ndindex(self.estimate.shape):
            own = means[(slice(None), *place)], sds[(slice(None), *place)]
            for side, level in enumerate((tail, 1.0 - tail)):
                below = lambda x: float(np.mean(stats.norm.cdf(x, *own))) - level  # noqa: B023, E731
                reach = 10.0 * float(own[1].max()) + 1e-9
                ends[(side, *place)] = optimize.brentq(below, own[0].min() - reach, own[0].max() + reach)
        return ends[0], ends[1]


@checked
def combine(
    estimates: ArrayLike, variances: ArrayLike, *, rule: str = "fully_synthetic", size_ratio: float = 1.0
) -> Combined:
    """Combine estimates from M synthetic tables.

    - **estimates** - estimate of each table, (M, ...).
    - **variances** - squared standard error of each, computed as if the table were real, (M, ...).
    - **rule** - "fully_synthetic" or "mixture"; `RULES` states their conditions.
    - **size_ratio** - rows of a synthetic table over rows of the data; used where the variance would be negative.

    "fully_synthetic": T = (1 + 1/M) B - U, with B the variance between tables and U their mean variance, and
    (M - 1)(1 - U / ((1 + 1/M) B))^2 degrees of freedom (Raghunathan, Reiter, Rubin 2003, section 2). Where T is negative,
    `size_ratio` U takes its place (Reiter 2002, equation 7). "mixture": the equal mixture of
    normals with these means and variances.

    Raises ConfigurationError for fewer than two tables, unequal shapes, or variances that are not positive.

    >>> found = combine([1.0, 1.4, 0.8, 1.2], [0.01, 0.01, 0.01, 0.01])
    >>> round(float(found.estimate), 3), round(float(found.variance), 4), round(float(found.degrees_of_freedom), 2)
    (1.1, 0.0733, 2.32)
    >>> [round(float(end), 2) for end in found.interval()]
    [0.08, 2.12]
    """
    try:
        estimates, variances = np.asarray(estimates, float), np.asarray(variances, float)
    except (TypeError, ValueError):
        raise ConfigurationError("estimates and variances must be numbers, one of each table and analysis.") from None
    if rule not in RULES:
        raise ConfigurationError(f'rule is "fully_synthetic" or "mixture", got {rule!r}.')
    if estimates.shape != variances.shape or estimates.ndim < 1 or len(estimates) < 2:
        raise ConfigurationError(
            f"estimates and variances need one shape (M, ...), of M tables, two or more; got {estimates.shape} and "
            f"{variances.shape}."
        )
    if not (np.all(variances > 0.0) and np.all(np.isfinite(variances)) and np.all(np.isfinite(estimates))):
        raise ConfigurationError("estimates must be finite, and variances positive and finite.")
    if not size_ratio > 0.0:
        raise ConfigurationError(f"size_ratio {size_ratio} must be positive.")
    count, between, within = len(estimates), estimates.var(axis=0, ddof=1), variances.mean(axis=0)
    if rule == "mixture":
        total, freedom, negative = between + within, np.full(between.shape, np.inf), np.zeros(between.shape, bool)
    else:
        scaled = (1.0 + 1.0 / count) * between
        negative = scaled <= within
        total = np.where(negative, size_ratio * within, scaled - within)
        with np.errstate(divide="ignore", invalid="ignore"):
            freedom = np.where(negative, count - 1.0, (count - 1.0) * (1.0 - within / scaled) ** 2)
        freedom = np.maximum(freedom, 1.0)
    return Combined(estimates.mean(axis=0), total, freedom, rule, negative, (estimates, variances))
