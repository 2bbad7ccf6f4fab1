"""What a chain cost typical rows, by the Bayesian accountant."""

from typing import Any

import jax
import jax.numpy as jnp

from dpppl.accounting.bayesian import BayesianSpent
from dpppl.errors import ConfigurationError
from dpppl.mcmc.kernel import DPKernel
from dpppl.runs.bayesian import bayesian_spent, kept_positions


def chain_spent(
    kernel: DPKernel, positions: Any, first: int, thinning: int, args: tuple[Any, ...], kwargs: dict[str, Any],
    num_rows: int, delta: float,
) -> BayesianSpent:  # fmt: skip
    """See `MCMC.bayesian_privacy`.

    - **kernel**: with its noise multiplier; bound here.
    - **positions**: unconstrained latents by site, (chains, draws, ...), or None where they were not collected; the first
      after `first + thinning` steps, then one every `thinning`.
    """
    if positions is None:
        raise ConfigurationError('bayesian_privacy needs the positions of the chains: run(..., extra_fields=("z",)).')
    kernel.bind(args, kwargs)
    rows, public = kernel.split.arrays(args, kwargs)
    chains, draws = jax.tree.leaves(positions)[0].shape[:2]
    steps = first + draws * thinning
    gradient = jax.grad(kernel._log_likelihood)
    return bayesian_spent(
        kernel.charge(0, steps, chains),
        lambda z, row, public, key: gradient(kernel._unscaled(z), row, public),
        kept_positions(jax.tree.map(jnp.asarray, positions), first, thinning, steps),
        rows, public, num_rows=num_rows, delta=delta,
    )  # fmt: skip
