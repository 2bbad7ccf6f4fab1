"""Parts of a predictive variance, and the share of a prior's variance that the data removed."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from dpppl.errors import ConfigurationError
from dpppl.model.structure import plates_of
from dpppl.types import BySite, Document
from dpppl.validation import checked


def as_array(value: ArrayLike, name: str) -> np.ndarray:
    """`value` as a float64 array. Raises ConfigurationError inside JAX transformations and for what is not numbers."""
    if isinstance(value, jax.core.Tracer):
        raise ConfigurationError(f"{name} is traced: call this outside of jax.jit and other transformations.")
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name} must be an array of real numbers, got {type(value).__name__}.") from None


class VarianceParts(NamedTuple):
    """Predictive variance in two parts, arrays of the shape of one sample's means:

    - **epistemic**: Var_z(E[y | z]), which more data, or less noise for privacy, would remove.
    - **aleatoric**: E_z(Var[y | z]), which stays.

    >>> VarianceParts(epistemic=np.array([0.1]), aleatoric=np.array([0.3])).total
    array([0.4])
    """

    epistemic: np.ndarray
    aleatoric: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """The variance of the posterior predictive distribution, by the law of total variance."""
        return self.epistemic + self.aleatoric


@checked
def decompose_variance(
    means: ArrayLike, variances: ArrayLike | None = None, *, weights: ArrayLike | None = None
) -> VarianceParts:
    """The two parts of the predictive variance, over posterior samples z_1, ..., z_S.

    - **means**: (S, ...) E[y | z_s] for each input: (S, N) for real or binary responses, (S, N, K) for K classes.
    - **variances**: (S, ...) Var[y | z_s]. None: means are probabilities p, of a response that is 0 or 1 or of each class, and
      variances are p (1 - p). For several classes the parts are those of the classes' indicators, (N, K).
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
    share = np.ones(len(centre)) if weights is None else as_array(weights, "weights")
    if share.shape != centre.shape[:1] or not (np.all(share >= 0.0) and 0.0 < share.sum() < np.inf):
        raise ConfigurationError(
            f"weights must have shape {centre.shape[:1]}, finite and not negative, one of them positive."
        )
    mean = np.average(centre, axis=0, weights=share)
    epistemic = np.average((centre - mean) ** 2, axis=0, weights=share)
    return VarianceParts(epistemic, np.average(within, axis=0, weights=share))


@checked
def learned_shares(posterior: BySite, prior: BySite) -> dict[str, float]:
    """By latent, 1 - posterior variance / prior variance: 1 where the data decide, 0 where the prior does.

    - **posterior**: samples, a dict by site, (S, ...), as `get_samples()` gives them.
    - **prior**: of the prior, a dict by site, as `Predictive(model, num_samples=...)` gives it; other sites are left out.

    A site of several elements gives a share for each, "w[0]". Raises ConfigurationError for a site that has no prior samples,
    of another shape, or whose prior samples do not vary.

    >>> learned_shares({"w": np.array([1.0, 2.0])}, {"w": np.array([0.0, 2.0])})
    {'w': 0.75}
    """
    before = by_element(prior, like=posterior)
    if constant := [name for name, draws in before.items() if not np.var(draws) > 0.0]:
        raise ConfigurationError(f"the prior samples of {constant[0]!r} do not vary: their variance has no share.")
    after = by_element(posterior, like=posterior)
    return {name: float(1.0 - np.var(after[name]) / np.var(draws)) for name, draws in before.items()}


def by_element(samples: BySite, like: BySite) -> dict[str, np.ndarray]:
    """Samples (S,) of each element of the sites in `like`, by name: "w", or "w[0]", "w[1]".

    Raises ConfigurationError for a site that is missing or whose elements have another shape than in `like`."""
    found: dict[str, np.ndarray] = {}
    for site in like:
        if site not in samples:
            raise ConfigurationError(f"site {site!r} of the posterior is not among the other samples.")
        draws, shape = as_array(samples[site], site), np.shape(like[site])[1:]
        if draws.ndim < 1 or draws.shape[1:] != shape:
            raise ConfigurationError(f"site {site!r} has samples (S, ...) where the elements' shape is {shape}.")
        for place in np.ndindex(shape):
            found[site + (str(list(place)) if place else "")] = draws[(slice(None), *place)]
    return found


def check_samples(trace: Document, samples: BySite, of_rows: Sequence[str]) -> None:
    """Raise ConfigurationError for samples of another model than the traced one, whose `of_rows` are in the plate of rows."""
    rows = {plate for name in of_rows for plate in plates_of(trace[name])}
    for name, site in trace.items():
        is_latent = site["type"] == "sample" and not site["is_observed"] and name not in of_rows
        if is_latent and not rows.intersection(plates_of(site)):
            shape, given = tuple(site["fn"].shape()), np.shape(samples[name])[1:] if name in samples else None
            if given != shape:
                fault = "samples lack" if given is None else f"samples have elements of shape {given} of"
                raise ConfigurationError(
                    f"{fault} the model's latent '{name}', {shape}; give those of a run of this model."
                )
