"""Which of two models predicts better: the difference of log predictive densities as a score of a row."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.infer import log_likelihood

from dpppl.types import BySite, Function, Tree
from dpppl.validation import checked


@checked
def elpd_difference(first: Function, second: Function) -> Function:
    """Build the score of a row for `private_score`: log predictive density under `first` less that under `second`.

    - **first**, **second** - NumPyro models with the same arguments.

    The score takes (samples of first, samples of second, the models' arguments), samples as `dpppl.Public`. Its mean is the
    difference of expected log predictive densities (elpd): positive where `first` predicts better. Use rows that neither was
    fitted to: on the rows of the fit, the difference favours the larger model (Vehtari, Gelman, Gabry 2017).

    >>> import dpppl, jax, numpy as np, numpyro, numpyro.distributions as dist
    >>> def model(scale, y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu, scale), obs=y)
    >>> narrow, wide = (lambda y, scale=scale: model(scale, y) for scale in (1.0, 3.0))
    >>> y, samples = jax.random.normal(jax.random.key(0), (2_000,)), dpppl.Public({"mu": np.zeros(4)})
    >>> found = dpppl.private_score(dpppl.secret_key(), elpd_difference(narrow, wide), samples, samples, y,
    ...                             bounds=(-3.0, 3.0), noise_multiplier=5.0, measure_spread=True)
    >>> low, high = found.interval(0.9)
    >>> 0.5 < low < high < 0.8                                    # log 3 - 4 / 9 = .65 is expected
    True
    """

    def difference(of_first: BySite, of_second: BySite, *args: object, **kwargs: object) -> Tree:
        args, kwargs = jax.tree.map(lambda x: jnp.asarray(x)[None], (args, kwargs))
        return _log_density(first, of_first, args, kwargs) - _log_density(second, of_second, args, kwargs)

    return difference


def _log_density(model: Function, samples: Mapping[str, object], args: Tree, kwargs: Tree) -> jax.Array:
    """Log predictive density of one row: the log mean over samples of its likelihood."""
    sites = log_likelihood(model, dict(samples), *args, parallel=True, **kwargs)
    logs: Any = sum(value.reshape(value.shape[0], -1).sum(axis=1) for value in sites.values())
    return jax.nn.logsumexp(logs) - jnp.log(len(logs))
