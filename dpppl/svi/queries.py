"""Learning curves that are paid for: sums over rows of a bounded number, through the same door as everything else."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.clipping import Flat
from dpppl.access.mechanism import ROW_NUMBER
from dpppl.errors import ConfigurationError
from dpppl.model.refusals import check_captured
from dpppl.randomness import keys
from dpppl.runs.budget import Charge
from dpppl.runs.driver import TRACING, prepare
from dpppl.runs.provenance import Status, claim
from dpppl.subsampling import FullBatch
from dpppl.svi.elbo import Objective
from dpppl.validation import positive

if TYPE_CHECKING:
    from dpppl.svi.runner import SVI


def noisy_sum_of(
    svi: "SVI", what: str, statistic: Callable[..., Any], rows: Any, public: Any, key: Any, bound: float,
    noise_multiplier: float | None,
) -> float:  # fmt: skip
    """The sum over all rows of `statistic(row, public)`, each clipped to [-bound, bound], with noise; charged first.

    The gradient of `w * statistic(row)` in w is the statistic, so the door clips and sums it as it is. Without a noise
    multiplier the query uses up what the budget has left."""
    mechanism = replace(svi.mechanism, clipping=Flat(bound), subsampling=FullBatch())

    def charge_at(sigma: float) -> Charge:
        relation = svi.mechanism.neighboring_relation
        return Charge(mechanism, np.array([sigma]), is_query=True, neighboring_relation=relation)

    if noise_multiplier is None:
        if svi.budget.target_epsilon is None:
            raise ConfigurationError(
                "give noise_multiplier: there is no target_epsilon whose rest the query could use."
            )
        noise_multiplier = svi.budget.calibrate(charge_at)
    charge = charge_at(positive(noise_multiplier, name="noise_multiplier"))

    def weighted(weight: Any, row: Any, public: Any) -> Any:
        return weight * statistic(row, public)

    def query(rows: Any, public: Any, key: Any) -> Any:
        return mechanism.noisy_sum(
            weighted, 0.0, rows, public, key=key, noise_multiplier=noise_multiplier, number=ROW_NUMBER
        ).total

    arguments = (rows, public, keys.stream(key, "query"))
    svi.budget.admit([charge])
    program = prepare(query, arguments, rows=0)
    with svi.budget.reserve_for([charge], what, uuid.uuid4().hex) as reservation:
        origin = claim(key)
        status = Status.COMPLETE if svi._provenance.status is Status.NOTHING else svi._provenance.status
        svi._provenance = svi._provenance.and_now(status, origin, None if svi._provenance.starts else svi._start)
        reservation.charge(0, 1)
        return float(program(*arguments))


def estimate_elbo(
    svi: "SVI", objective: Objective, key: Any, params: Any, args: Any, kwargs: Any, bound: float,
    noise_multiplier: float | None, num_particles: int,
) -> float:  # fmt: skip
    """See SVI.estimate_elbo."""
    objective = replace(objective, num_particles=num_particles)
    rows, public = objective.arrays(args, kwargs)
    draw_key = keys.stream(key, "guide")

    def terms(row: Any, everything: Any) -> Any:
        return objective.mean_log_likelihood(everything[0], row, everything[1:])

    with TRACING:
        phi = objective.unconstrain(params)
        prior, _ = jax.jit(objective.draws)(phi, draw_key, public)
    total = noisy_sum_of(svi, "estimate_elbo", terms, rows, (phi, public, draw_key), key, bound, noise_multiplier)
    return float(prior) + total


def estimate_accuracy(
    svi: "SVI", objective: Objective, key: Any, params: Any, correct: Callable[..., Any], args: Any, kwargs: Any,
    noise_multiplier: float | None, num_particles: int,
) -> float:  # fmt: skip
    """See SVI.estimate_accuracy."""
    if svi.num_data is None:
        raise ConfigurationError("an accuracy is a share of the rows: declare their number, num_data.")
    rows, public = objective.arrays(args, kwargs)

    def is_correct(row: Any, everything: Any) -> Any:
        public, samples = everything
        args, kwargs = objective.split.arguments.join(row, public)
        return jnp.clip(jnp.asarray(correct(samples, *args, **kwargs), float), 0.0, 1.0)

    row = jax.eval_shape(lambda rows: jax.tree.map(lambda x: x[0], rows), rows)
    with TRACING:
        samples = objective.sample(params, keys.stream(key, "guide"), num_particles)
        svi._captured += check_captured(jax.make_jaxpr(is_correct)(row, (public, samples)), {objective.split.num_rows})
    everything = (public, samples)
    total = noisy_sum_of(svi, "estimate_accuracy", is_correct, rows, everything, key, 1.0, noise_multiplier)
    return total / svi.num_data
