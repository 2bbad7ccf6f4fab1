"""Proper scores of predictive distributions, smaller is better, and the coverage of their intervals."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from dpppl.contrib.uncertainty.inputs import as_array, class_predictions, real_predictions, row_weights
from dpppl.errors import ConfigurationError
from dpppl.validation import checked, fraction


@checked
def brier_score(
    probabilities: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None, mask: ArrayLike | None = None
) -> float:
    """Mean squared distance of the probabilities from what happened.

    - **probabilities**: (N,) of class 1: mean of (p - y)^2, in [0, 1]; or (N, K): mean over rows of the sum over classes, as
      Brier defined it, in [0, 2], which for two classes is twice the former.
    - **labels**: (N,) classes 0, ..., K - 1.
    - **weights**: (N,) weights of rows, or None.
    - **mask**: (N,) True for rows that count, or None.

    Adds no noise: of private rows this is a release that no report covers. Raises ConfigurationError where shapes
    differ and for numbers that are no probabilities or labels. Source: Brier (1950).

    >>> round(brier_score([0.8, 0.4], [1, 0]), 6), round(brier_score([[0.2, 0.8], [0.6, 0.4]], [1, 0]), 6)
    (0.1, 0.2)
    """
    chances, classes, share = class_predictions(probabilities, labels, weights, mask)
    if chances.ndim == 1:
        return float(share @ (chances - classes) ** 2)
    return float(share @ np.sum((chances - np.eye(chances.shape[1])[classes]) ** 2, axis=1))


@checked
def log_score(
    probabilities: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None, mask: ArrayLike | None = None
) -> float:
    """Mean negative log probability of what happened, in nats: the negative log likelihood (NLL) of a row.

    - **probabilities**, **labels**, **weights**, **mask** - as for `brier_score`.

    Errors as `brier_score`. Infinite where something happened that had probability 0. Adds no noise: of
    private rows this is a release that no report covers. Source: Good (1952).

    >>> round(log_score([0.5, 0.25], [1, 0]), 4)
    0.4904
    """
    chances, classes, share = class_predictions(probabilities, labels, weights, mask)
    if chances.ndim == 1:
        chances = np.stack([1.0 - chances, chances], axis=1)
    with np.errstate(divide="ignore"):
        return float(-(share @ np.log(chances[np.arange(len(classes)), classes])))


@checked
def predictive_log_score(
    log_likelihoods: ArrayLike, *, weights: ArrayLike | None = None, mask: ArrayLike | None = None
) -> float:
    """`log_score` for any response: mean over rows of -log mean over z of p(y | z), in nats.

    - **log_likelihoods**: (S, N) log p(y_n | z_s) of each row given each posterior sample, as
      `numpyro.infer.log_likelihood` gives them.
    - **weights**: (N,) weights of rows, or None.
    - **mask**: (N,) True for rows that count, or None.

    Adds no noise: of private rows this is a release that no report covers. Raises ConfigurationError where shapes
    differ and for NaN.

    >>> round(predictive_log_score(np.log([[0.5, 0.2], [0.5, 0.3]])), 4)  # -(log .5 + log .25) / 2
    1.0397
    """
    values = as_array(log_likelihoods, "log_likelihoods")
    if values.ndim != 2 or values.shape[0] < 1:
        raise ConfigurationError(f"log_likelihoods must have shape (S, N), got {values.shape}.")
    share = row_weights(values.shape[1], weights, mask)
    values, share = values[:, share > 0.0], share[share > 0.0]
    if np.any(np.isnan(values)):
        raise ConfigurationError("log_likelihoods must not be NaN; leave rows out by mask.")
    return float(-(share @ (logsumexp(values, axis=0) - np.log(len(values)))))


@checked
def crps(
    samples: ArrayLike,
    responses: ArrayLike,
    *,
    fair: bool = False,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> float:
    """Continuous ranked probability score E|X - y| - E|X - X'| / 2, mean over rows, in the units of the response.

    - **samples**: (S, N) draws of the posterior predictive distribution for each row.
    - **responses**: (N,) real responses.
    - **fair**: whether to divide the sum over pairs by S (S - 1), which makes the estimate unbiased for that of infinitely
      many draws; else by S^2, the score of the draws themselves.
    - **weights**: (N,) weights of rows, or None.
    - **mask**: (N,) True for rows that count, or None.

    Adds no noise: of private rows this is a release that no report covers. Raises ConfigurationError where shapes
    differ, for numbers that are not finite, and for `fair` with a single draw. Source: Gneiting, Raftery (2007),
    equation 21; Ferro (2014) for `fair`.

    >>> crps([[0.0], [2.0]], [1.0]), crps([[0.0], [2.0]], [1.0], fair=True)
    (0.5, 0.0)
    """
    draws, observed, share = real_predictions(samples, responses, weights, mask)
    count = len(draws)
    if fair and count < 2:
        raise ConfigurationError("fair=True needs at least 2 draws for each row.")
    ranks = 2.0 * np.arange(1, count + 1) - count - 1.0  # of sorted draws, the sum over pairs i < j of x_j - x_i
    pairs = ranks @ np.sort(draws, axis=0)
    spread = pairs / (count * (count - 1.0 if fair else count))
    return float(share @ (np.mean(np.abs(draws - observed), axis=0) - spread))


@checked
def interval_coverage(
    samples: ArrayLike,
    responses: ArrayLike,
    *,
    level: float = 0.9,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> float:
    """Share of responses that lie in the central interval of their predictive draws; calibrated draws give `level`.

    - **samples**: (S, N) draws of the posterior predictive distribution for each row.
    - **responses**: (N,) real responses.
    - **level**: the probability of the interval, in (0, 1); between the quantiles (1 - level) / 2 and (1 + level) / 2.
    - **weights**: (N,) weights of rows, or None.
    - **mask**: (N,) True for rows that count, or None.

    Adds no noise: of private rows this is a release that no report covers. Raises ConfigurationError where shapes
    differ, for numbers that are not finite, and for another level.

    >>> draws = np.arange(101.0)[:, None] * np.ones(2)
    >>> interval_coverage(draws, [50.0, 99.0])
    0.5
    """
    level = fraction(level, name="level")
    draws, observed, share = real_predictions(samples, responses, weights, mask)
    low, high = np.quantile(draws, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0)
    return float(share @ ((low <= observed) & (observed <= high)))
