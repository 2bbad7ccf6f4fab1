"""Learning curves that are paid for: sums over rows of a bounded number, through the same door as everything else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from dpppl.errors import ConfigurationError
from dpppl.model.refusals import check_captured
from dpppl.randomness import keys
from dpppl.report.provenance import KeyOrigin, Status
from dpppl.runs.driver import TRACING, on_host
from dpppl.runs.query import Query, noisy_query, query_charge
from dpppl.svi.binding import bind
from dpppl.svi.settings import SVISettings
from dpppl.validation import check_num_data


def noisy_sum_of(
    svi: SVISettings, what: str, statistic: Callable[..., Any], rows: Any, public: Any, key: Any, bound: float,
    noise_multiplier: float | None,
) -> float:  # fmt: skip
    """The sum over all rows of `statistic(row, public)`, each clipped to [-bound, bound], with noise; charged first.

    Without a noise multiplier the query uses up what the budget has left."""
    if noise_multiplier is None and svi.budget.target_epsilon is None:
        raise ConfigurationError("give noise_multiplier: there is no target_epsilon whose rest the query could use.")
    query = Query(
        statistic=statistic, bound=bound, rows=rows, public=public, what=what, discretise=svi.mechanism.discretise,
        neighboring_relation=svi.mechanism.neighboring_relation,
    )  # fmt: skip

    def begin(origin: KeyOrigin) -> None:
        status = Status.COMPLETE if svi._provenance.status is Status.NOTHING else svi._provenance.status
        svi._noted(status, origin, None if svi._provenance.starts else svi._start)

    return float(noisy_query(query, query_charge(query, svi.budget, noise_multiplier), key, svi.budget, begin))


@on_host
def estimate_elbo(
    svi: SVISettings, rng_key: Any, params: Any, *args: Any, bound: float, noise_multiplier: float | None = None,
    num_particles: int = 16, **kwargs: Any,
) -> float:  # fmt: skip
    """A noised estimate of the ELBO with all rows: one access, with noise of sd `bound * noise_multiplier`.

    - **rng_key** - one key, used once; take it from `dpppl.secret_key()`.
    - **params** - constrained parameters by name, such as `result.params`.
    - **args**, **kwargs** - the model's arguments, as for `run`.
    - **bound** - each row's log likelihood is clipped to [-bound, bound].
    - **noise_multiplier** - noise sd in units of `bound`; None: as little as what is left of the target allows (`reserve`).
    - **num_particles** - guide draws that the ELBO is averaged over; more cost nothing.

    Charged before the access. Raises ConfigurationError or BudgetExceededError before any data are touched."""
    key = keys.as_key(rng_key)
    args, kwargs = svi.grouped(args, kwargs, key)
    objective = replace(bind(svi, key, args, kwargs)[0], num_particles=num_particles)
    rows, public = objective.arrays(args, kwargs, svi.mesh)
    draw_key = keys.stream(key, "guide")

    def terms(row: Any, everything: Any) -> Any:
        return objective.mean_log_likelihood(everything[0], row, everything[1:])

    with TRACING:
        phi = objective.unconstrain(params)
        prior, _ = jax.jit(objective.draws)(phi, draw_key, public)
    total = noisy_sum_of(svi, "estimate_elbo", terms, rows, (phi, public, draw_key), key, bound, noise_multiplier)
    return float(prior) + total


@on_host
def estimate_accuracy(
    svi: SVISettings, rng_key: Any, params: Any, correct: Callable[..., Any], *args: Any,
    noise_multiplier: float | None = None, num_particles: int = 16, **kwargs: Any,
) -> float:  # fmt: skip
    """A noised estimate of the share of rows that are predicted right: one access. Needs `num_data`, the rows' number.

    - **rng_key** - one key, used once; take it from `dpppl.secret_key()`.
    - **params** - constrained parameters by name, such as `result.params`.
    - **correct** - `correct(samples, *args, **kwargs)`: whether one row is predicted right, from 0 to 1, given posterior
      samples by site (num_particles, ...) and the model's arguments for that row, without their leading axis.
    - **args**, **kwargs** - the model's arguments, as for `run`.
    - **noise_multiplier** - noise sd in rows; None: as for `estimate_elbo`.
    - **num_particles** - posterior samples that `correct` is given.

    Charged before the access. Raises ConfigurationError or BudgetExceededError before any data are touched."""
    key = keys.as_key(rng_key)
    objective, _ = bind(svi, key, args, kwargs)
    if svi.num_data is None:
        raise ConfigurationError("an accuracy is a share of the rows: declare their number, num_data.")
    check_num_data(svi.num_data, objective.split.num_rows)
    rows, public = objective.arrays(args, kwargs, svi.mesh)

    def is_correct(row: Any, everything: Any) -> Any:
        public, samples = everything
        args, kwargs = objective.split.arguments.join(row, public)
        return jnp.clip(jnp.asarray(correct(samples, *args, **kwargs), float), 0.0, 1.0)

    row = objective.split.row
    with TRACING:
        samples = objective.sample(params, keys.stream(key, "guide"), num_particles)
        program = jax.make_jaxpr(is_correct)(row, (public, samples))
        svi._also_captured(check_captured(program, {objective.split.num_rows}))
    everything = (public, samples)
    total = noisy_sum_of(svi, "estimate_accuracy", is_correct, rows, everything, key, 1.0, noise_multiplier)
    return total / svi.num_data
