"""Calibration: whether events of predicted probability p happen in a share p of the cases."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpppl.contrib.uncertainty.inputs import class_predictions
from dpppl.errors import ConfigurationError
from dpppl.validation import checked, positive_integer


class ReliabilityBins(NamedTuple):
    """Of the bins that hold a row, in order, arrays (M,):

    - **predicted**: mean probability that was given.
    - **observed**: share of rows in which the event happened.
    - **share**: share of all rows, by weight; sums to 1.

    >>> isinstance(reliability_bins([0.2, 0.8], [0, 1]), ReliabilityBins)
    True
    """

    predicted: np.ndarray
    observed: np.ndarray
    share: np.ndarray


@checked
def reliability_bins(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    num_bins: int = 15,
    bins: str = "width",
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> ReliabilityBins:
    """Predicted probability against observed frequency, bin by bin: the data of a reliability diagram.

    - **probabilities**: (N,) the probability of class 1, or (N, K) of each class; averaged over posterior samples.
    - **labels**: (N,) classes 0, ..., K - 1.
    - **num_bins**: the number of bins; empty ones are left out.
    - **bins**: "width", intervals ((m - 1) / M, m / M], or "mass", intervals between quantiles, which hold equal
      weight up to ties.
    - **weights**: (N,) weights of rows, or None.
    - **mask**: (N,) True for rows that count, or None.

    For (N,) the event is class 1. For (N, K) the event is that the most probable class is right, and its probability
    is the largest one. Adds no noise: of private rows this is a release that no report covers.

    Raises ConfigurationError where shapes differ, for numbers that are no probabilities or labels, and for unknown bins.
    Source: Guo, Pleiss, Sun, Weinberger (2017), equations 1 and 2.

    >>> found = reliability_bins([0.1, 0.3, 0.9, 0.9], [0, 1, 1, 1], num_bins=2)
    >>> found.predicted.round(6).tolist(), found.observed.tolist(), found.share.tolist()
    ([0.2, 0.9], [0.5, 1.0], [0.5, 0.5])
    """
    num_bins = positive_integer(num_bins, name="num_bins")
    chances, classes, share = class_predictions(probabilities, labels, weights, mask)
    if chances.ndim == 1:
        happened = classes == 1
    else:
        happened, chances = np.argmax(chances, axis=1) == classes, np.max(chances, axis=1)
    if bins == "width":
        inner = np.arange(1, num_bins) / num_bins
    elif bins == "mass":
        order = np.argsort(chances, kind="stable")
        below = np.cumsum(share[order])
        places = np.searchsorted(below, np.arange(1, num_bins) / num_bins - 1e-12)
        inner = chances[order][np.minimum(places, len(order) - 1)]
    else:
        raise ConfigurationError('bins must be "width" or "mass".')
    place = np.searchsorted(inner, chances)
    total, predicted, observed = (
        np.bincount(place, share * value, num_bins) for value in (np.ones_like(chances), chances, happened)
    )
    held = total > 0.0
    return ReliabilityBins(predicted[held] / total[held], observed[held] / total[held], total[held])


@checked
def expected_calibration_error(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    num_bins: int = 15,
    bins: str = "width",
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> float:
    """Mean over rows of |predicted - observed| in their bin, in [0, 1]. Errors as `reliability_bins`.

    - **probabilities**, **labels**, **num_bins**, **bins**, **weights**, **mask** - as for `reliability_bins`.

    It depends on the bins, and is positive by chance also for calibrated predictions: with N rows in M bins up to about
    .4 sqrt(M / N). Adds no noise: of private rows this is a release that no report covers.

    Source: Naeini, Cooper, Hauskrecht (2015); Guo et al. (2017), equation 3.

    >>> round(expected_calibration_error([0.1, 0.3, 0.9, 0.9], [0, 1, 1, 1], num_bins=2), 6)
    0.2
    """
    found = reliability_bins(probabilities, labels, num_bins=num_bins, bins=bins, weights=weights, mask=mask)
    return float(np.sum(found.share * np.abs(found.predicted - found.observed)))


@checked
def maximum_calibration_error(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    num_bins: int = 15,
    bins: str = "width",
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> float:
    """Largest |predicted - observed| of a bin, in [0, 1]. Errors as `reliability_bins`.

    - **probabilities**, **labels**, **num_bins**, **bins**, **weights**, **mask** - as for `reliability_bins`.

    With bins of equal width a bin of few rows may decide it. Adds no noise: of private rows this is a release that no
    report covers.

    Source: Naeini, Cooper, Hauskrecht (2015); Guo et al. (2017), equation 5.

    >>> round(maximum_calibration_error([0.1, 0.3, 0.9, 0.9], [0, 1, 1, 1], num_bins=2), 6)
    0.3
    """
    found = reliability_bins(probabilities, labels, num_bins=num_bins, bins=bins, weights=weights, mask=mask)
    return float(np.max(np.abs(found.predicted - found.observed)))
