"""Attacks on steps by hand: many runs of a kernel or SVI, in which the first row is a canary, compiled as one program."""

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpppl.access.door import door_p
from dpppl.access.mechanism import Mechanism
from dpppl.contrib.audit.canaries import of_first
from dpppl.data.disk import in_memory
from dpppl.jaxprs import evaluate, flattened
from dpppl.mcmc.kernel import DPKernel
from dpppl.randomness.keys import stream
from dpppl.subsampling import FullBatch
from dpppl.svi.runner import SVI
from dpppl.types import Equation, Function, Tree

_BATCH = 10_000


def by_hand(
    audited: Any, args: tuple[object, ...], kwargs: dict[str, object], key: jax.Array, num_steps: Any, attack: str,
    num_trials: int,
) -> tuple[Any, bool, Any]:  # fmt: skip
    """Return what steps by hand cost, whether each sees all rows, and the scores of runs with and without the canary.

    - **audited** - a kernel, or an SVI with a noise multiplier.
    - **args**, **kwargs** - the model's arguments, rows of a unit together.
    - **num_steps**, **attack**, **num_trials** - as for `audit`."""
    target = _target(audited, args, kwargs, stream(key, "start"))
    report = target.audited.privacy_report(target.state._replace(i=np.int32(num_steps)))
    score = partial(_white_box if attack == "white_box" else _black_box, target, num_steps)
    batched = jax.jit(jax.vmap(score, in_axes=(None, 0)))
    keys = jax.random.split(stream(key, "trials"), (2, num_trials // 2))
    scores = [
        np.concatenate([batched(present, half[i : i + _BATCH]) for i in range(0, len(half), _BATCH)])
        for present, half in zip((1.0, 0.0), keys)
    ]
    return report.events, target.mechanism.subsampling.rate == 1.0, scores


@dataclass(frozen=True)
class _Target:
    """The attacked method: its mechanism, first state and step, and what its last state shows an attacker."""

    audited: Any
    mechanism: Mechanism
    state: Tree
    step: Function
    position: Function

    def attacked(self, state: Tree, present: Tree, **changes: Any) -> tuple[Tree, Tree, Tree]:
        """The next state where only the canary speaks, if it is `present`; and what `of_first` says of its access."""
        seen: list[Tree] = []

        def canary(equation: Equation, operands: Tree) -> Any:
            if equation.primitive is not door_p:
                return None
            access = equation.params["access"]
            coins = jnp.zeros(operands[access.roles.rows[0]].shape[0]).at[0].set(present)
            outputs, *found = of_first(access, coins, jax.random.key(0, impl="threefry2x32"), *operands)
            seen.append(found)
            return outputs

        step = partial(self.step, replace(self.mechanism, **changes))
        closed, like = jax.make_jaxpr(step, return_shape=True)(state)
        flat = flattened(closed)
        inputs, given = [*flat.jaxpr.constvars, *flat.jaxpr.invars], [*flat.consts, *jax.tree.leaves(state)]
        found = evaluate(flat.jaxpr, dict(zip(inputs, given)), canary)
        return jax.tree.unflatten(jax.tree.structure(like), found), *seen[0]


def _target(audited: DPKernel | SVI, args: tuple[object, ...], kwargs: dict[str, object], key: jax.Array) -> _Target:
    own = copy.copy(audited)
    if isinstance(own, SVI):
        start, noise = own.set_up(key, args, kwargs), own.noise_multiplier
        objective = own.objective()
        rows, public = objective.split.arrays(args, kwargs)
        in_memory(rows, "an audit")

        def step(mechanism: Mechanism, state: Tree) -> Tree:
            return own.step_function(objective, mechanism, noise)(state, rows, public)[0]

        return _Target(own, own.mechanism, start, step, own.get_params)
    own.check_norm()
    start, bound = own.init(key, 0, None, args, kwargs), own.bind(args, kwargs)
    rows, public = bound.split.arrays(args, kwargs)
    in_memory(rows, "an audit")

    def move(mechanism: object, state: Tree) -> Tree:
        return replace(bound, kernel=own.copy(mechanism=mechanism)).step(state, rows=rows, public=public)

    return _Target(own, own.mechanism, start, move, lambda state: state.z)


def _white_box(target: _Target, num_steps: int, present: object, key: jax.Array) -> Tree:
    """Log likelihood ratio of all that the door returned, at the starting values."""
    state, rate = target.state._replace(rng_key=key), target.mechanism.subsampling.rate

    def access(total: jax.Array, number: jax.Array) -> Tree:
        _, x, sigma = target.attacked(state._replace(i=number), present)
        return total + jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + (x - 0.5) / sigma**2), None

    return jax.lax.scan(access, jnp.zeros(()), jnp.arange(num_steps))[0]


def _black_box(target: _Target, num_steps: int, present: object, key: jax.Array) -> Tree:
    """How far the run went to where the canary pushes in the first step: there the noise, the same twice, cancels."""
    state = target.state._replace(rng_key=key)
    pushed, free = (target.position(target.attacked(state, p, subsampling=FullBatch())[0]) for p in (1.0, 0.0))
    run = jax.lax.scan(lambda state, _: (target.attacked(state, present)[0], None), state, length=num_steps)[0]
    direction, end = (ravel_pytree(x)[0] for x in (jax.tree.map(jnp.subtract, pushed, free), target.position(run)))
    return direction @ end / jnp.linalg.norm(direction)
