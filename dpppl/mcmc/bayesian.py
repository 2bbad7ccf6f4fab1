"""What a chain cost typical rows, by the Bayesian accountant."""

from typing import Any

import jax
import jax.numpy as jnp

from dpppl.accounting.bayesian import BayesianSpent
from dpppl.errors import ConfigurationError
from dpppl.mcmc.bound import BoundKernel
from dpppl.runs.bayesian import bayesian_spent, kept_positions


def chain_spent(
    bound: BoundKernel,
    positions: Any,
    collected: tuple[int, int],
    searched: int,
    data: tuple[Any, Any],
    *,
    num_rows: int,
    delta: float,
) -> BayesianSpent:
    """See `MCMC.bayesian_privacy`.

    - **bound** - the kernel, with its noise multiplier, bound to the run's arguments.
    - **positions** - unconstrained latents by site, (chains, draws, ...), or None where they were not collected.
    - **collected** - the steps before the first collected position's interval, and the steps of an interval.
    - **searched** - the steps of a search for step sizes, which look at the data elsewhere than at their positions.
    - **data** - the private rows, leading axis N, and the Public arrays of the model.
    - **num_rows**, **delta** - as in `runs.bayesian.bayesian_spent`.
    """
    if positions is None:
        raise ConfigurationError('bayesian_privacy needs the positions of the chains: run(..., extra_fields=("z",)).')
    (first, thinning), (rows, public) = collected, data
    chains, draws = jax.tree.leaves(positions)[0].shape[:2]
    steps = first + draws * thinning
    kept = kept_positions(jax.tree.map(jnp.asarray, positions), first, thinning, steps)
    gradient = jax.grad(bound.log_likelihood)
    return bayesian_spent(
        bound.kernel.charge(0, steps, chains),
        lambda z, row, public, key: gradient(bound.to_metric(z), row, public),
        {number: position for number, position in kept.items() if number >= searched},
        rows, public, num_rows=num_rows, delta=delta,
    )  # fmt: skip
