"""SVI step by step, as NumPyro's users write it: `init`, then `update` once for each state."""

from functools import partial
from typing import Any

import jax
import numpy as np

from dpppl.data.rows import of_one_process, placement_of
from dpppl.errors import ConfigurationError
from dpppl.randomness import keys
from dpppl.report.provenance import KeyOrigin, KeySource, Start, Status
from dpppl.runs import single_steps
from dpppl.runs.budget import Charge
from dpppl.runs.driver import forgetful, prepare
from dpppl.subsampling import Partition
from dpppl.svi.binding import bind
from dpppl.svi.settings import SVISettings
from dpppl.svi.step import SVIState, check_state
from dpppl.validation import check_num_data


@forgetful
def init(svi: SVISettings, rng_key: Any, *args: Any, init_params: Any = None, **kwargs: Any) -> SVIState:
    """The first state, for steps by `update`. Looks at no data and charges nothing.

    - **rng_key** - one key, used once, which the state holds; take it from `dpppl.secret_key()`.
    - **args**, **kwargs** - the model's arguments; arrays are private rows unless marked `dpppl.Public`.
    - **init_params** - constrained starting values, by the name of the parameter; others are drawn without data.

    Raises KeyReuseError for a key that was used, ConfigurationError inside a function that JAX traces."""
    single_steps.check_eager("init", rng_key)
    key = keys.as_key(rng_key)
    state = set_up(svi, key, args, kwargs, init_params)
    check_num_data(svi.num_data, svi.objective().split.num_rows)
    single_steps.begin(key)
    return state


@forgetful
def update(svi: SVISettings, state: SVIState, *args: Any, **kwargs: Any) -> tuple[SVIState, None]:
    """One step: one access of the data, charged first. Returns the next state, and None in the place of NumPyro's loss.

    - **state** - the state that `init` or the last `update` returned. It is updated once, in the process whose `init` made
      it, because two steps from one state have the same noise.
    - **args**, **kwargs** - the model's arguments, as for `init`.

    Raises KeyReuseError for a state that was updated; ConfigurationError inside jax.jit and other transformations (a step is
    compiled by itself; use `run`), with a Partition, and where a target sets the budget; then nothing was looked at or charged.
    """
    objective, noise = svi.objective(), fixed_noise(svi)
    check_state(state, "update(state): state")
    if isinstance(svi.mechanism.subsampling, Partition):
        raise ConfigurationError(
            "a Partition charges each row once an epoch, which holds only while the rows keep their order; update "
            "cannot know that they do. Use run, or Poisson(rate)."
        )
    rows, public = objective.arrays(args, kwargs, svi.mesh)
    arguments = (state, of_one_process(rows, "SVI.update"), public)
    single_steps.check_eager("update", arguments)
    key, count = single_steps.key_of(state), int(state.i)
    shapes = (placement_of(arguments[1]), *((np.shape(x), str(x.dtype)) for x in jax.tree.leaves(arguments)))
    if shapes not in svi._programs:
        step = svi._step(objective, svi.mechanism, noise)
        svi._programs[shapes] = prepare(lambda *arguments: step(*arguments)[0], arguments, rows=1)
    charge, take = Charge(svi.mechanism, np.array([noise])), partial(single_steps.take, key, count)
    svi.budget.charge_one(charge, "SVI.update", single_steps.name_of(key), take)
    for origin in (KeyOrigin.of(key), KeyOrigin(KeySource.STATE, "as init was given")):
        svi._noted(Status.BY_HAND, origin, svi._start)
    return svi._programs[shapes](*arguments), None


def fixed_noise(svi: SVISettings) -> float:
    """The noise multiplier of single steps. Raises ConfigurationError where only a run can know it."""
    if svi._has_auto_norm:
        raise ConfigurationError('clipping_norm="auto" is chosen by run; update needs the norm as a number.')
    if svi.noise_multiplier is None:
        raise ConfigurationError(
            "the noise of update follows from the number of steps, which only run(rng_key, num_steps, ...) knows; give "
            "noise_multiplier without target_epsilon to use init and update."
        )
    return svi.noise_multiplier


def set_up(
    svi: SVISettings, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], init_params: Any = None
) -> SVIState:
    """See `init`, without its claim of the key."""
    objective, state = bind(svi, key, args, kwargs, init_params)
    svi._bound(objective, None if init_params is None else Start.SUPPLIED)
    return state
