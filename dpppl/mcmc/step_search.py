"""A search for the largest stable step, in the first part of the warmup, from noisy gradients that are released anyway.

A matched step grows with epsilon, and beyond 2 / (largest curvature of the posterior) a chain explodes. The search makes accesses
in pairs, at the position -+ r u / 2. The difference of two gradients over r is -H u plus noise: its running mean turns u towards
the stiffest direction (a power iteration), its product with u measures the curvature. After a pair the position climbs. Accesses
have the plan's noise, which is small beside the curvature where the matched step is too long. It is for chains whose norm is
given, or whose model has no frame: a frame knows its steps. With norm 2 on three means of 5,000 rows, 200 + 200 steps, DPSGLD
explodes without it from epsilon 3 on (at 10, means are 99 sds off), DPSGHMC and DPSGNHT at 30. With it means lie within .2 sd.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpppl.types import BySite, Function, Scalar, Tree

SHARE = 0.4
"""The share of the warmup that is spent."""
_MIN_STEPS = 20
_MEMORY, _TURN, _FIRST = 0.1, 0.06, 3
_SDS, _REACH = 2.0, 0.5


class StepSearch(NamedTuple):
    """The state of the search, in the coordinates in which latents move.

    - **until** - the step at which it ends, 0 for none.
    - **count** - pairs of gradients so far.
    - **gradient** - the first of a pair.
    - **product** - running mean of H u, curvature times direction.
    - **curvature** - along the direction.
    - **variance** - of the curvature, from noise."""

    until: jax.Array
    count: Tree
    gradient: BySite
    product: BySite
    curvature: jax.Array
    variance: jax.Array

    @property
    def steepest(self) -> jax.Array:
        """The largest curvature, one sd above what was measured; 0 before."""
        return jnp.abs(self.curvature) + jnp.sqrt(self.variance)


def steps_of(num_warmup: jax.Array) -> jax.Array:
    """How many steps a search takes: an even number, 0 where the warmup is too short."""
    steps = jnp.asarray(SHARE * num_warmup / 2.0, jnp.int32) * 2
    return jnp.where(steps < _MIN_STEPS, 0, steps)


def no_search(position: BySite) -> StepSearch:
    """Before anything was measured."""
    zeros, ones = (jax.tree.map(like, position) for like in (jnp.zeros_like, jnp.ones_like))
    number, none = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.result_type(float))
    return StepSearch(number, number, zeros, ones, none, none)


def probe(search: StepSearch, step: jax.Array, position: BySite, hidden: jax.Array) -> Tree:
    """Where step number `step` looks at the data: at `position`, or while it searches r / 2 from it along u, on the one
    side or the other."""
    side = jnp.where(step < search.until, jnp.where(step % 2 == 1, 0.5, -0.5), 0.0)
    away = side * _reach(search, hidden)
    return jax.tree.map(lambda x, u: x + away * u, position, _direction(search))


def after(
    search: StepSearch, step: jax.Array, position: BySite, gradient: Tree, *, gradient_std: jax.Array, hidden: jax.Array,
    largest_step: Function, length_of: Function,
) -> tuple[StepSearch, Tree]:  # fmt: skip
    """The search and the position after one of its steps.

    - **position** - the position before, in the coordinates in which latents move.
    - **gradient** - the noisy gradient at the point that `probe` returned.
    - **gradient_std** - standard deviation of the noise in a coordinate of the gradient.
    - **hidden** - curvature below which no matched step is too long.
    - **largest_step** - `largest_step(curvature)`, the largest step that a curvature allows.
    - **length_of** - `length_of(move)`, the length of a move in unconstrained space, which is limited."""
    second = step % 2 == 1
    reach, u = _reach(search, hidden), _direction(search)
    product = jax.tree.map(lambda first, other: (first - other) / reach, search.gradient, gradient)
    noise, before = 2.0 * (gradient_std / reach) ** 2, search.variance / (1.0 - _MEMORY)
    gain = jnp.where(search.count == 0, 1.0, before / (before + noise))  # Kalman's, which forgets
    turn = jnp.maximum(_TURN, 2.0 / (search.count + 2.0))
    measured = search._replace(
        count=search.count + 1,
        product=jax.tree.map(lambda old, new: (1.0 - turn) * old + turn * new, search.product, product),
        curvature=search.curvature + gain * (_dot(u, product) - search.curvature),
        variance=gain * noise,
    )
    step_size = largest_step(measured.steepest) * (measured.count > _FIRST)
    move = jax.tree.map(lambda first, other: 0.5 * step_size * (first + other), search.gradient, gradient)
    shorter = jnp.minimum(1.0, _REACH / jnp.maximum(length_of(move), 1e-30))
    moved = jax.tree.map(lambda x, m: jnp.where(second, x + shorter * m, x), position, move)
    first = search._replace(gradient=gradient)
    return jax.tree.map(lambda a, b: jnp.where(second, a, b), measured, first), moved


def _direction(search: StepSearch) -> Tree:
    """u, of norm 1: along the running mean of H u."""
    norm = jnp.sqrt(_dot(search.product, search.product))
    return jax.tree.map(lambda x: x / jnp.maximum(norm, 1e-30), search.product)


def _reach(search: StepSearch, hidden: Scalar) -> jax.Array:
    """r: about two sds of a posterior of the curvature that is thought to be there."""
    curvature = jnp.where(search.count == 0, hidden, search.steepest)
    return jnp.minimum(_REACH, _SDS / jnp.sqrt(jnp.maximum(curvature, 1e-12)))


def _dot(one: object, other: object) -> Tree:
    return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other)))
