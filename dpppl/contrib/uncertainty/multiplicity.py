"""Which of many nulls to reject, from posterior probabilities or Bayes factors."""

import numpy as np
from numpy.typing import ArrayLike

from dpppl.contrib.uncertainty.decomposition import as_array
from dpppl.errors import ConfigurationError
from dpppl.validation import checked, fraction


@checked
def discoveries(bayes_factors: ArrayLike, *, prior_null: float = 0.5, false_discovery_rate: float = 0.05) -> np.ndarray:
    """Reject the nulls with the smallest posterior probabilities while their mean stays below a false discovery rate.

    - **bayes_factors** - of each null against its alternative, (K,): `NoiseAware.bayes_factor`.
    - **prior_null** - prior probability of each null, in (0, 1).
    - **false_discovery_rate** - bound on the posterior expected share of false ones among those rejected, in (0, 1).

    Returns whether each null is rejected, (K,) bool. Free: post-processing. Reference: Newton, Noueiry, Sarkar, Ahlquist
    (2004), "Detecting differential gene expression with a semiparametric hierarchical mixture method", section 4.

    >>> discoveries([0.001, 0.01, 0.5, 20.0]).tolist()
    [True, True, False, False]
    """
    factors = as_array(bayes_factors, "bayes_factors")
    if factors.ndim != 1 or not np.all(factors >= 0.0):
        raise ConfigurationError("bayes_factors must be numbers of shape (K,), none negative.")
    for name, value in (("prior_null", prior_null), ("false_discovery_rate", false_discovery_rate)):
        fraction(value, name=name)
    odds = factors * prior_null / (1.0 - prior_null)
    null = np.where(np.isinf(odds), 1.0, odds / (1.0 + np.where(np.isinf(odds), 0.0, odds)))
    order = np.argsort(null, kind="stable")
    expected = np.cumsum(null[order]) / np.arange(1, len(null) + 1)
    return expected[np.argsort(order)] <= false_discovery_rate  # means of sorted numbers grow
