"""Chains that run together or one after another: their first states, and which of them failed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.mcmc.kernel import DPKernel


def initial_states(
    kernel: DPKernel, key: Any, num_chains: int, num_warmup: int, init_params: Any, resume: Any, args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """The states before a run's first step: a batch of them for several chains. `resume`: states to go on from.

    Looks at no data. Raises ConfigurationError where starting values or states do not fit."""
    chain_key = jax.random.split(key, num_chains) if num_chains > 1 else key
    if init_params is not None:
        init_params = jax.tree.map(jnp.asarray, init_params)
        leading = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(init_params)}
        if num_chains > 1 and leading != {(num_chains,)}:
            raise ConfigurationError("`init_params` must have the same leading dimension as `num_chains`.")
        if not_finite(init_params, 1):
            raise ConfigurationError("init_params must be finite.")
    states = kernel.init(chain_key, num_warmup, init_params, args, kwargs)
    if resume is None:
        return states
    resume = resume._replace(rng_key=states.rng_key)
    if jax.tree.map(jnp.shape, resume) != jax.tree.map(jnp.shape, states) or len(np.unique(np.asarray(resume.i))) != 1:
        raise ConfigurationError("post_warmup_state does not fit this model and number of chains.")
    if np.min(np.asarray(resume.i)) < 0:
        raise ConfigurationError("post_warmup_state holds a negative number of steps.")
    return jax.tree.map(jnp.asarray, resume)


def mapping_of(chain_method: Any) -> Any:
    """How the chunk of one chain becomes that of all chains that run together: see `Method.mapping`."""
    named: dict[Any, Any] = {"parallel": "pmap", "vectorized": jax.vmap}
    return chain_method if callable(chain_method) else named[chain_method]


def unstack(states: Any) -> list[Any]:
    """The states of each chain."""
    count = len(jax.tree.leaves(states)[0])
    return [jax.tree.map(lambda leaf: leaf[chain], states) for chain in range(count)]  # noqa: B023


def not_finite(values: Any, num_chains: int) -> tuple[int, ...]:
    """The numbers of the chains with values that are not finite; several chains are stacked along the first axis."""
    chains = unstack(values) if num_chains > 1 else [values]
    finite = [all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(chain)) for chain in chains]
    return tuple(number for number, ok in enumerate(finite) if not ok)
