"""Survival curves from posterior samples."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from numpyro import handlers

from dpppl.contrib.uncertainty.decomposition import as_array, check_samples
from dpppl.errors import ConfigurationError
from dpppl.model.censoring import is_censored
from dpppl.model.structure import unwrapped
from dpppl.types import BySite, Function, Tree
from dpppl.validation import checked, fraction


class SurvivalCurve(NamedTuple):
    """Probabilities of an event later than given times, for n rows of covariates.

    - **times** - (T,).
    - **mean** - posterior means, (n, T).
    - **lower**, **upper** - pointwise credible band, (n, T).
    - **level** - the posterior probability between them."""

    times: np.ndarray
    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    level: float


@checked
def survival_curve(
    model: Function, samples: BySite, times: ArrayLike, *args: object, site: str = "time", level: float = 0.9,
    **kwargs: object,
) -> SurvivalCurve:  # fmt: skip
    """Compute survival curves and pointwise credible bands from posterior samples, at no privacy cost.

    - **model** - the NumPyro model that the samples are of.
    - **samples** - by site, (S, ...).
    - **times** - (T,).
    - **args**, **kwargs** - the model's arguments for new rows: public covariates, or the recipient's own; no times.
    - **site** - the site of the times, whose distribution has a `cdf`.
    - **level** - the posterior probability of the band at each time.

    Guarantee: post-processing of the samples. Private covariates would be a new release that no report covers.
    Raises ConfigurationError for a site that the model does not have, a distribution without `cdf`, and a level outside (0, 1).

    >>> import numpyro, numpyro.distributions as dist
    >>> def model(x, time=None):
    ...     rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    ...     with numpyro.plate("data", x.shape[0]):
    ...         numpyro.sample("time", dist.Exponential(rate * jnp.exp(x)), obs=time)
    >>> curve = survival_curve(model, {"rate": jnp.array([0.9, 1.0, 1.1])}, [0.0, 1.0], jnp.zeros(1))
    >>> curve.mean.round(2).tolist()
    [[1.0, 0.37]]
    """
    at = as_array(times, "times")
    if at.ndim != 1 or not np.all(np.isfinite(at)):
        raise ConfigurationError("times must be finite, of shape (T,).")
    level = fraction(level, name="level")

    def of_draw(draw: Tree) -> Tree:
        with handlers.seed(rng_seed=0), handlers.substitute(data=draw), handlers.trace() as trace:
            model(*args, **kwargs)
        if site not in trace or trace[site]["type"] != "sample":
            known = [name for name, found in trace.items() if found["type"] == "sample" and name not in draw]
            raise ConfigurationError(f"the model has no site '{site}'; site= may be one of {known}.")
        check_samples(trace, samples, (site,))
        fn = unwrapped(trace[site]["fn"])
        fn = fn.base_dist if is_censored(fn) else fn
        try:
            of_law = 1.0 - fn.cdf(jnp.asarray(at, jnp.result_type(float))[:, None])  # (T, 1) of a law that rows share
            return jnp.broadcast_to(of_law, (len(at), jnp.size(trace[site]["value"])))
        except NotImplementedError:
            raise ConfigurationError(
                f"the {type(fn).__name__} of site '{site}' has no cdf; use a distribution that has one."
            ) from None

    curves = np.asarray(jax.lax.map(of_draw, jax.tree.map(jnp.asarray, dict(samples)), batch_size=100), np.float64)
    tail = (1.0 - level) / 2.0
    lower, upper = np.quantile(curves, [tail, 1.0 - tail], axis=0)
    return SurvivalCurve(at, curves.mean(axis=0).T, lower.T, upper.T, level)
