"""Calibration: whether events of predicted probability p happen in a share p of the cases."""

import numpy as np
from numpy.typing import ArrayLike

from dpppl.contrib.uncertainty.decomposition import as_array
from dpppl.errors import ConfigurationError
from dpppl.validation import checked, positive_integer


@checked
def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, *, num_bins: int = 15) -> float:
    """Mean over rows of |predicted - observed| in their bin ((m - 1) / M, m / M], in [0, 1].

    - **probabilities** - (N,) of class 1, or (N, K) of each class, averaged over samples. For (N, K) the event is that the
      most probable class is right.
    - **labels** - (N,) classes 0, ..., K - 1.
    - **num_bins** - M.

    It is positive by chance also for calibrated predictions: up to about .4 sqrt(M / N). Adds no noise: of private rows this is
    a release that no report covers. Raises ConfigurationError where shapes differ, for numbers that are no probabilities or
    labels. Source: Naeini, Cooper, Hauskrecht (2015); Guo et al. (2017), equation 3.

    >>> round(expected_calibration_error([0.1, 0.3, 0.9, 0.9], [0, 1, 1, 1], num_bins=2), 6)
    0.2
    """
    chances, classes = as_array(probabilities, "probabilities"), as_array(labels, "labels")
    if chances.ndim not in (1, 2) or not np.all((chances >= 0.0) & (chances <= 1.0 + 1e-6)):
        raise ConfigurationError(
            "probabilities must lie in [0, 1], of shape (N,) or (N, K): not logits, and averaged over posterior samples."
        )
    if classes.shape != chances.shape[:1]:
        raise ConfigurationError(f"labels must have shape {chances.shape[:1]}, got {classes.shape}.")
    num_classes = 2 if chances.ndim == 1 else chances.shape[1]
    if not np.all(np.isin(classes, np.arange(num_classes))):
        raise ConfigurationError(
            f"labels must be whole numbers from 0 to {num_classes - 1}: pass (y + 1) / 2 for labels -1 and 1, y - 1 for 1 to K."
        )
    happened = classes == 1 if chances.ndim == 1 else np.argmax(chances, axis=1) == classes
    chances = chances if chances.ndim == 1 else np.max(chances, axis=1)
    place = np.searchsorted(np.arange(1, positive_integer(num_bins, name="num_bins")) / num_bins, chances)
    return float(np.abs(np.bincount(place, chances - happened)).sum() / len(chances))
