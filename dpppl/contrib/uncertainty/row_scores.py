"""Scores of a row for `dpppl.private_score`: posterior predictive checks, and which of two models predicts better."""

from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.infer import log_likelihood

from dpppl.errors import UnsupportedModelError
from dpppl.model import censoring
from dpppl.runs.private_score import ModelScore, checked_range
from dpppl.types import BySite, Function, Tree
from dpppl.validation import checked

_MOST_DRAWS = 50


@checked
def discrepancy(model: Function, statistic: Function, bounds: tuple[float, float]) -> Function:
    """Build the score of a row for `private_score`: a statistic of its responses less the same of replicated responses.

    - **model** - a NumPyro model.
    - **statistic** - `statistic(draw, responses, *args)`, a number: one posterior draw by site, the row's responses by observed
      site, and the model's arguments for that row.
    - **bounds** - (low, high) of the statistic, chosen without looking at the rows. It is clipped to them.

    The score takes (samples, the model's arguments), samples as `dpppl.Public`, and is at most high - low from 0. It averages
    over 50 posterior draws at most, with one replicate each, whose later responses are drawn given its earlier ones.
    Its mean is near 0 where the model is right: see `PrivateScore.p_value` (Gelman, Meng, Stern 1996). The interval counts
    noise and sampling. It leaves out the privacy noise in the posterior itself, which matters where this is much wider than
    without privacy.

    Raises ConfigurationError for bounds that are not a range.

    >>> import dpppl, jax, numpy as np, numpyro, numpyro.distributions as dist
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> far = discrepancy(model, lambda draw, responses, y: abs(responses["y"] - draw["mu"]), bounds=(0.0, 4.0))
    >>> samples = dpppl.Public({"mu": np.zeros(20)})
    >>> for scale in (1.0, 1.3):                                            # the second is too wide for the model
    ...     y = scale * jax.random.normal(jax.random.key(0), (4_000,))
    ...     found = dpppl.private_score(dpppl.secret_key(), far, samples, y, bounds=(-4.0, 4.0), noise_multiplier=5.0,
    ...                                 measure_spread=True)
    ...     print(found.p_value() < 1e-3)
    False
    True
    """
    low, high = checked_range(bounds)

    def difference(row_number: Any, batch: Tree, /, samples: Tree, *args: Tree, **kwargs: Tree) -> jax.Array:
        count = len(jax.tree.leaves(samples)[0])
        few = jax.tree.map(lambda x: x[:: -(-count // _MOST_DRAWS)], samples)
        numbers = jnp.arange(len(jax.tree.leaves(few)[0]))

        def of_draw(pair: Tree) -> jax.Array:
            number, draw = pair
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), row_number), number)
            value = lambda responses: jnp.clip(  # noqa: E731
                jnp.asarray(statistic(draw, responses, *args, **kwargs), float).reshape(()), low, high
            )
            observed, replicated = _responses(model, draw, key, *_of_model(batch, 1, kwargs))
            return value(observed) - value(replicated)

        return jnp.mean(jax.lax.map(of_draw, (numbers, few)))

    return ModelScore(difference)


def _responses(model: Function, draw: Tree, key: jax.Array, args: Tree, kwargs: Tree) -> tuple[Tree, Tree]:
    """By observed site, what a row observed and what the model draws in its place, later responses given the drawn ones."""
    observed, draws, censored = dict[str, Tree](), dict[str, Tree](), dict[str, Any]()

    def redraw(site: Any) -> Tree:
        if site["type"] != "sample" or not site["is_observed"]:
            return None
        name, site_key = site["name"], jax.random.fold_in(jax.random.fold_in(key, 1), len(draws))
        observed[name] = jnp.asarray(site["value"])[0]
        if not censoring.is_censored(site["fn"]):
            draws[name] = site["fn"].sample(site_key)
            return draws[name]
        if not censoring.declared(site):
            raise UnsupportedModelError(
                f"site '{name}' does not say when rows are censored, so that replicates would not be; write "
                'infer={"censored_by": end} in its numpyro.sample (docs/survival.md).'
            )
        draws[name], censored[name] = censoring.draw(site, site_key), dict(site)
        return censoring.provisional(site, draws).value

    latents = handlers.substitute(handlers.seed(model, key), data=draw)
    handlers.trace(handlers.substitute(latents, substitute_fn=redraw)).get_trace(*args, **kwargs)
    found = draws | {name: censoring.observed(site, draws).value for name, site in censored.items()}
    return observed, {name: value[0] for name, value in found.items()}


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

    def difference(
        _: Any, batch: Tree, /, of_first: BySite, of_second: BySite, *args: object, **kwargs: object
    ) -> Tree:
        given = _of_model(batch, 2, kwargs)
        return _log_density(first, of_first, *given) - _log_density(second, of_second, *given)

    return ModelScore(difference)


def _of_model(batch: Tree, num_samples: int, kwargs: Tree) -> tuple[Tree, Tree]:
    """The model's own arguments of a batch, after `num_samples` of posteriors; `kwargs` are its own keywords."""
    return batch[0][num_samples:], {name: batch[1][name] for name in kwargs}


def _log_density(model: Function, samples: BySite, args: Tree, kwargs: Tree) -> jax.Array:
    """Log predictive density of one row: the log mean over samples of its likelihood."""
    sites = log_likelihood(model, dict(samples), *args, parallel=True, **kwargs)
    logs: Any = sum(value.reshape(value.shape[0], -1).sum(axis=1) for value in sites.values())
    return jax.nn.logsumexp(logs) - jnp.log(len(logs))
