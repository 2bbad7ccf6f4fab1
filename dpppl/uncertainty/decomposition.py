"""What the variance of a predictive distribution is made of."""

from typing import Any, NamedTuple

import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.uncertainty.inputs import as_array, row_weights


class VarianceParts(NamedTuple):
    """Predictive variance in two parts, arrays of the shape of one sample's means:

    - **epistemic**: Var_z(E[y | z]), which more data, or less noise for privacy, would remove.
    - **aleatoric**: E_z(Var[y | z]), which stays.
    """

    epistemic: np.ndarray
    aleatoric: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """The variance of the posterior predictive distribution, by the law of total variance."""
        return self.epistemic + self.aleatoric


def decompose_variance(means: Any, variances: Any = None, *, weights: Any = None) -> VarianceParts:
    """The two parts of the predictive variance, over posterior samples z_1, ..., z_S.

    - **means**: (S, ...) E[y | z_s] for each input: (S, N) for real or binary responses, (S, N, K) for K classes.
    - **variances**: (S, ...) Var[y | z_s]. None: means are probabilities p, of a response that is 0 or 1, or of each class,
      and variances are p (1 - p); parts of several classes are those of their indicators, (N, K).
    - **weights**: (S,) weights of posterior samples, or None.

    The privacy noise of a run is part of its posterior's width, so it counts as epistemic. Inputs must be public or the
    recipient's own. Raises ConfigurationError where shapes differ, for numbers that are not finite, negative variances,
    and means outside of [0, 1] where no variances are given. Source: Depeweg et al. (2018), equation 9.

    >>> parts = decompose_variance([[0.2], [0.6]])
    >>> parts.epistemic.round(6).tolist(), parts.aleatoric.round(6).tolist()  # together .4 (1 - .4)
    ([0.04], [0.2])
    """
    centre = as_array(means, "means")
    if centre.ndim < 1 or len(centre) < 1:
        raise ConfigurationError("means must have shape (S, ...), one for each posterior sample.")
    if variances is None:
        if not np.all((centre >= 0.0) & (centre <= 1.0 + 1e-6)):
            raise ConfigurationError("means must be probabilities in [0, 1], or give variances too.")
        centre = np.minimum(centre, 1.0)
        within = centre * (1.0 - centre)
    else:
        within = as_array(variances, "variances")
    if within.shape != centre.shape:
        raise ConfigurationError(f"variances must have the shape of means, {centre.shape}, got {within.shape}.")
    if not (np.all(np.isfinite(centre)) and np.all(np.isfinite(within)) and np.all(within >= 0.0)):
        raise ConfigurationError("means and variances must be finite, and variances not negative.")
    share = row_weights(len(centre), weights, None)
    mean = np.tensordot(share, centre, 1)
    return VarianceParts(np.tensordot(share, (centre - mean) ** 2, 1), np.tensordot(share, within, 1))
