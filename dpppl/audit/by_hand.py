"""Attacks on steps by hand: many runs of a kernel or SVI, in which the first row is a canary, compiled as one program."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.mechanism import Mechanism
from dpppl.data.disk import in_memory
from dpppl.mcmc.kernel import DPKernel
from dpppl.randomness.keys import stream
from dpppl.subsampling import FullBatch
from dpppl.svi.by_hand import set_up
from dpppl.svi.runner import SVI
from dpppl.types import Tree

_CANARY, _CANARY_WEIGHT = "(canary)", 1e6
_BATCH = 10_000


def by_hand(
    audited: Any, args: Any, kwargs: Any, key: jax.Array, num_steps: Any, attack: str, num_trials: int
) -> tuple[Any, bool, Any]:
    """Return what steps by hand cost, whether each sees all rows, and the scores of runs with and without the canary.

    - **audited** - a kernel, or an SVI with a noise multiplier.
    - **args**, **kwargs** - the model's arguments, rows of a unit together.
    - **key** - key of the trials.
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
    step: Callable[..., Any]
    position: Callable[..., Any]

    def attacked(self, state: Tree, present: object, **changes: object) -> Any:
        """The next state where only the canary speaks, if it is `present`, and what was seen: see `_Canary`."""
        seen: list[tuple[Any, ...]] = []
        canary = _Canary(**(vars(self.mechanism) | changes), present=present, seen=seen)
        return self.step(canary, state), *seen[0]


def _target(audited: DPKernel | SVI, args: Any, kwargs: Any, key: Any) -> _Target:
    own = copy.copy(audited)
    if isinstance(own, SVI):
        start, noise = set_up(own, key, args, kwargs), own.noise_multiplier
        objective = own.objective()
        rows, public = objective.arrays(args, kwargs)
        in_memory(rows, "an audit")

        def step(mechanism: Any, state: Any) -> Any:
            return own._step(objective, mechanism, noise)(state, rows, public)[0]

        return _Target(own, own.mechanism, start, step, own.get_params)
    own.check_norm()
    start, bound = own.init(key, 0, None, args, kwargs), own.bind(args, kwargs)
    rows, public = bound.split.arrays(args, kwargs)
    in_memory(rows, "an audit")

    def move(mechanism: object, state: Tree) -> Any:
        return replace(bound, kernel=own.copy(mechanism=mechanism)).step(state, rows=rows, public=public)

    return _Target(own, own.mechanism, start, move, lambda state: state.z)


@dataclass(frozen=True, kw_only=True)
class _Canary(Mechanism):
    """A mechanism to which only the first row, the canary, contributes: a gradient that is always clipped.

    - **present** - whether it does.
    - **seen** - takes what each access returned, along the canary's gradient and in units of the norm, and its noise.
    """

    present: Any
    seen: list[Any]

    def noisy_sum(self, log_likelihood: Any, z: Tree, rows: Any, public: Any, **settings: Any) -> Any:
        return self._attacked(super().noisy_sum, log_likelihood, jax.grad(log_likelihood), z, rows, public, **settings)

    def noisy_statistic(self, statistic: Any, z: Tree, rows: Any, public: Any, **settings: Any) -> Any:
        if _CANARY in rows:  # from `noisy_sum`
            return super().noisy_statistic(statistic, z, rows, public, **settings)
        return self._attacked(super().noisy_statistic, statistic, statistic, z, rows, public, **settings)

    def _attacked(
        self, access: Any, function: Any, direction: Tree, z: Any, rows: Any, public: Any, **settings: Any
    ) -> Any:
        """`access` of `function(z, row, public)`, times the canary's weight; `direction`: where the canary pushes."""

        def canary(z: Any, row: Any, public: Any) -> Any:
            row = dict(row)
            weight = row.pop(_CANARY)
            return jax.tree.map(lambda leaf: weight * leaf, function(z, row, public))

        weights = jnp.zeros(len(next(iter(rows.values())))).at[0].set(_CANARY_WEIGHT * self.present)
        noisy = access(canary, z, {**rows, _CANARY: weights}, public, **settings)
        number = settings.get("number")
        first = jax.tree.map(lambda x: x[0], rows) | ({} if number is None else {number: 0})
        along = _along(direction(z, first, public), noisy.total)
        self.seen.append((along / self.clipping.clipping_norm, settings["noise_multiplier"]))
        return noisy


def _along(direction: Tree, value: jax.Array) -> Any:
    """The part of `value` in this direction; both are pytrees of one structure."""
    inner = lambda a, b: sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))  # noqa: E731
    return inner(direction, value) / jnp.sqrt(inner(direction, direction))


def _white_box(target: _Target, num_steps: int, present: object, key: jax.Array) -> Any:
    """Log likelihood ratio of all that the door returned, at the starting values."""
    state, rate = target.state._replace(rng_key=key), target.mechanism.subsampling.rate

    def access(total: jax.Array, number: jax.Array) -> Any:
        _, x, sigma = target.attacked(state._replace(i=number), present)
        return total + jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + (x - 0.5) / sigma**2), None

    return jax.lax.scan(access, jnp.zeros(()), jnp.arange(num_steps))[0]


def _black_box(target: _Target, num_steps: int, present: object, key: jax.Array) -> Any:
    """How far the run went to where the canary pushes in the first step: there the noise, the same twice, cancels."""
    state = target.state._replace(rng_key=key)
    pushed, free = (target.position(target.attacked(state, p, subsampling=FullBatch())[0]) for p in (1.0, 0.0))
    run = jax.lax.scan(lambda state, _: (target.attacked(state, present)[0], None), state, length=num_steps)[0]
    return _along(jax.tree.map(jnp.subtract, pushed, free), target.position(run))
