"""One step of SVI (a guide draw, a noisy sum of row gradients, an update of the parameters)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpppl.access.centring import noisy_centred_sum
from dpppl.access.door import noisy_sum
from dpppl.access.mechanism import ROW_NUMBER, Mechanism
from dpppl.data.rows import number_of
from dpppl.errors import ConfigurationError
from dpppl.frame.moved_guides import is_of
from dpppl.randomness import keys
from dpppl.svi import optimizers
from dpppl.svi.elbo import Objective
from dpppl.types import Foreign, Tree


class SVIState(NamedTuple):
    """The state of SVI between steps.

    - **i** - number of steps done, each one access.
    - **optim_state** - the optimiser's state, as NumPyro keeps it.
    - **rng_key** - the key of the steps; None in states that `run` returns."""

    i: jax.Array
    optim_state: Tree
    rng_key: jax.Array


def svi_step(
    objective: Objective, mechanism: Mechanism, noise_multiplier: jax.Array, optim: Foreign, gradient: str,
    state: SVIState, rows: Tree, public: Tree,
) -> tuple[SVIState, Tree]:  # fmt: skip
    """The next state; and the noisy ascent direction with the noised counts of rows as shares, None where none are counted.

    `noise_multiplier`: of its access; `gradient`: "aligned" or "per_parameter"."""
    phi, rate = optim.get_params(state.optim_state), mechanism.subsampling.rate
    key = jax.random.fold_in(keys.stream(state.rng_key, "guide"), state.i)
    row_sum = (objective.aligned if gradient == "aligned" else objective.per_parameter)(phi, key, public)
    law = objective.responses
    settings: dict[str, Tree] = dict(key=state.rng_key, noise_multiplier=noise_multiplier, step=state.i)
    if law is not None:
        noisy = noisy_centred_sum(
            mechanism, law, law.is_binary, row_sum.log_likelihood, row_sum.to_latents, row_sum.position, rows, row_sum.public,
            objective.num_particles, **settings,
        )  # fmt: skip
    else:
        settings["number"] = ROW_NUMBER if objective.reads_rows else None
        noisy = noisy_sum(mechanism, row_sum.log_likelihood, row_sum.position, rows, row_sum.public, **settings)
    shares = None if noisy.count is None else noisy.count / (rate * number_of(rows))
    direction = row_sum.direction(noisy.total, rate)
    optim_state = optimizers.update(optim, jax.tree.map(jnp.negative, direction), state.optim_state)
    return SVIState(state.i + 1, optim_state, state.rng_key), (direction, shares)


def check_state(state: Tree, name: str, optim: Foreign = None) -> None:
    """Raise ConfigurationError unless `state` is a state, and where the optimiser is given, of its frame; `name` names the
    argument."""
    if not isinstance(state, SVIState):
        raise ConfigurationError(
            f"{name} is a {type(state).__name__}; give a state that svi.init or svi.update returned, or result.state."
        )
    if optim is not None and not is_of(state.optim_state, optim):
        raise ConfigurationError(
            f"{name} is of another frame, or of none, or of an earlier version: use it with the SVI that made it, which pickles."
        )


def continued(before: SVIState, fresh: SVIState) -> SVIState:
    """A state that was returned, with the key of a fresh one. Raises ConfigurationError where they do not fit."""
    shapes = lambda tree: jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), tree)  # noqa: E731
    if shapes(before.optim_state) != shapes(fresh.optim_state):
        raise ConfigurationError("init_state does not fit this model, guide and optimiser.")
    if int(before.i) < 0:
        raise ConfigurationError("init_state holds a negative number of steps.")
    return before._replace(rng_key=fresh.rng_key)
