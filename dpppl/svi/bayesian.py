"""What a run of SVI cost typical rows, by the Bayesian accountant."""

from typing import Any

import jax
import numpy as np

from dpppl.accounting.bayesian import BayesianSpent
from dpppl.errors import ConfigurationError
from dpppl.runs.bayesian import bayesian_spent, kept_positions
from dpppl.runs.driver import forgetful
from dpppl.svi.result import SVIResult
from dpppl.svi.settings import SVISettings


@forgetful
def bayesian_privacy(
    svi: SVISettings, result: SVIResult, *args: Any, num_rows: int = 1000, delta: float = 1e-10, **kwargs: Any
) -> BayesianSpent:
    """What a run cost rows like the data's, by the Bayesian accountant: not private, no part of the report.

    - **result** - of this object's last run; the more iterates it keeps, the better: steps between them count at the
      clipping norm.
    - **args**, **kwargs** - those of `run`.
    - **num_rows**, **delta** - as in `runs.bayesian.bayesian_spent`.

    Guide draws are private no more than parameters are; fresh ones stand for those that were made, one a row and step.
    Raises ConfigurationError for clipping that is not flat, subsampling that is neither Poisson nor of full batches, and
    a guide that draws latents of rows."""
    charge = next(charge for charge in reversed(svi.budget.charged) if not charge.is_query)
    objective, trajectory = svi.objective(), result.trajectory
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
    of = {"aligned": aligned, "per_parameter": per_parameter}[svi.gradient]
    return bayesian_spent(charge, of, positions, rows, public, num_rows=num_rows, delta=delta)
