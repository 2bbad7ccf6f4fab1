"""Learning curves that are paid for: sums over rows of a bounded number, through the same door as everything else."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from dpppl import random
from dpppl.clipping import Flat
from dpppl.errors import ConfigurationError
from dpppl.mechanism import prove_rows_stay_inside
from dpppl.model_refusals import check_captured
from dpppl.subsampling import FullBatch
from dpppl.svi.budget import Charge
from dpppl.svi.elbo import ROW_NUMBER


def noisy_sum_of(svi, statistic, rows, public, key, bound: float, noise_multiplier: float) -> float:
    """The sum over all rows of `statistic(row, public)`, each clipped to [-bound, bound], with noise; charged first.

    The gradient of `w * statistic(row)` in w is the statistic, so the door clips and sums it as it is."""
    mechanism = replace(svi.mechanism, clipping=Flat(bound), subsampling=FullBatch())
    event = Charge(0, 1, noise_multiplier, mechanism).event
    event = replace(event, neighboring_relation=svi.mechanism.neighboring_relation)

    def weighted(weight, row, public):
        return weight * statistic(row, public)

    def query(rows, public, key):
        return mechanism.noisy_sum(
            weighted, 0.0, rows, public, key=key, noise_multiplier=noise_multiplier, number=ROW_NUMBER
        ).total

    arguments = (rows, public, random.stream(key, "query"))
    prove_rows_stay_inside(query, arguments, rows=0)
    svi.admit_query(event, key)
    return float(jax.jit(query)(*arguments))


def estimate_elbo(svi, key, params, args, kwargs, bound, noise_multiplier, num_particles: int) -> float:
    """See SVI.estimate_elbo."""
    objective = replace(svi.objective(), num_particles=num_particles)
    rows, public = objective.arrays(args, kwargs)
    phi, draw_key = objective.unconstrain(params), random.stream(key, "guide")

    def terms(row, everything):
        return objective.mean_log_likelihood(everything[0], row, everything[1:])

    prior, _ = jax.jit(objective.draws)(phi, draw_key, public)
    return float(prior) + noisy_sum_of(svi, terms, rows, (phi, public, draw_key), key, bound, noise_multiplier)


def estimate_accuracy(svi, key, params, correct, args, kwargs, noise_multiplier, num_particles: int) -> float:
    """See SVI.estimate_accuracy."""
    if svi.num_data is None:
        raise ConfigurationError("an accuracy is a share of the rows: declare their number, num_data.")
    objective = svi.objective()
    rows, public = objective.arrays(args, kwargs)
    samples = objective.sample(params, random.stream(key, "guide"), num_particles)

    def is_correct(row, everything):
        public, samples = everything
        args, kwargs = objective.split.arguments.join(row, public)
        return jnp.clip(jnp.asarray(correct(samples, *args, **kwargs), float), 0.0, 1.0)

    row = jax.eval_shape(lambda rows: jax.tree.map(lambda x: x[0], rows), rows)
    svi._captured += check_captured(jax.make_jaxpr(is_correct)(row, (public, samples)), {objective.split.num_rows})
    total = noisy_sum_of(svi, is_correct, rows, (public, samples), key, 1.0, noise_multiplier)
    return total / svi.num_data
