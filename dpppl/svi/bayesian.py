"""What a run of SVI cost typical rows, by the Bayesian accountant."""

from typing import Any

import jax
import numpy as np

from dpppl.accounting.bayesian import BayesianSpent
from dpppl.errors import ConfigurationError
from dpppl.runs.bayesian import bayesian_spent, kept_positions
from dpppl.runs.budget import Charge
from dpppl.svi.elbo import Objective


def svi_spent(
    objective: Objective, gradient: str, charge: Charge, trajectory: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
    num_rows: int, delta: float,
) -> BayesianSpent:  # fmt: skip
    """See `SVI.bayesian_privacy`.

    - **gradient**: "aligned" or "per_parameter".
    - **charge**: the accesses of the run.
    - **trajectory**: unconstrained parameters by name, (kept, ...), as in `SVIResult`.

    Guide draws are private no more than parameters are; fresh ones stand for those that were made, one a row and step.
    """
    if objective.reads_rows:
        raise ConfigurationError("bayesian_privacy needs a model and guide whose latents all rows share.")
    rows, public = objective.arrays(args, kwargs)
    kept = jax.tree.leaves(trajectory)[0].shape[0]
    thinning = -(-charge.num_steps // kept)

    def aligned(phi: Any, row: Any, public: Any, key: Any) -> Any:
        _, z = objective.draws(phi, key, public)
        return jax.grad(objective._sum_over_particles)(z, row, public)

    def per_parameter(phi: Any, row: Any, public: Any, key: Any) -> Any:
        return jax.grad(objective.mean_log_likelihood)(phi, row, (public, key))

    iterates = jax.tree.map(lambda x: np.asarray(x)[None], trajectory)
    positions = kept_positions(iterates, 0, thinning, charge.num_steps)
    of = {"aligned": aligned, "per_parameter": per_parameter}[gradient]
    return bayesian_spent(charge, of, positions, rows, public, num_rows=num_rows, delta=delta)
