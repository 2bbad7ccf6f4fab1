"""The walk of a stage: gradients at points that move to the posterior mean given all those so far."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.matrices import Array, eigh, posterior_covariance, root_of, times
from dpppl.types import Numbers, Tree

STEPS = 40
REACH = (2.0, 4.0, 8.0, 8.0, 8.0)  # how far each stage may walk from its start, in prior sds


class Walk(NamedTuple):
    """The needs of a walk of `STEPS` gradients.

    - **mean**, **inverse** - the prior mean, (d,), and of the basis's roots, (k, b, b).
    - **gains**, **offsets** - for each step, see `gains_of`.
    - **curvature** - that of the likelihood, (k, b, b).
    - **reach** - how far it may go from its start, in prior sds."""

    mean: Numbers
    inverse: Numbers
    gains: Numbers
    offsets: Numbers
    curvature: Numbers
    reach: float

    @classmethod
    def like(cls, basis: Basis) -> "Walk":
        """One of the same shapes, of zeros."""
        blocks, width, _ = basis.roots.shape
        matrices = np.zeros((blocks, width, width))
        gains, offsets = np.zeros((STEPS, *matrices.shape)), np.zeros((STEPS, blocks, width))
        return cls(np.zeros(len(basis.scales)), matrices, gains, offsets, matrices, 1.0)


def gains_of(curvature: Array, fixed: Array, std: float, mean: Array, covariance: Array) -> tuple[Array, Array]:
    """For each step, the posterior mean as a linear map (STEPS, k, b, b) of the averaged gradient (at u = 0, linearised), and an
    offset (STEPS, k, b), where a normal distribution of this `mean` and `covariance` stands for what was known before.

    - **curvature** - that of the likelihood, (k, b, b).
    - **fixed**, **std** - the variance of all gradients alike, (k, b, b), and the sd of the privacy noise of each."""
    values, vectors = eigh(fixed)
    root, gains, offsets = root_of(covariance), [], []
    pull = times(np.linalg.pinv(covariance, hermitian=True), mean)
    for step in range(STEPS):
        variance = std**2 * (16.0 / 7.0) / (step + 1)  # of the average with the weights in `walked`
        weighted = (vectors / (np.maximum(values, 0.0) + variance)[..., None, :]) @ vectors.swapaxes(-1, -2) @ curvature
        found = posterior_covariance(curvature @ weighted, root)
        gains.append(found @ weighted.swapaxes(-1, -2))
        offsets.append(times(found, pull))
    return np.array(gains), np.array(offsets)


def walked(
    gradient: Callable[[Tree, Tree], jax.Array], walk: Walk, basis: Basis, start: Numbers, norm: Numbers | float, first: Tree,
    num_steps: Tree, width: int,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Positions (STEPS, d), and noisy sums (STEPS, width), of `num_steps` of them; the first d numbers are the score over `norm`.

    - **gradient** - of the number of an access, the first being `first`, and a point (d,): the noisy sum (width,)."""

    def limited(value: Numbers, centre: Numbers, width: Numbers) -> jax.Array:
        return jnp.clip(value - centre, -width, width) + centre

    def body(number: jax.Array, carry: Tree) -> Tree:
        i, point, average, positions, values = carry
        noisy = gradient(i, point)
        u = basis.to_u(jnp.asarray(point - walk.mean), walk.inverse)
        count, moved = number.astype(jnp.float32), basis.layout.gathered(noisy[: len(point)]) * norm
        weight = 4.0 / (count + 4.0)
        average = (1.0 - weight) * average + weight * (moved + times(walk.curvature, u))
        new = walk.mean + basis.to_latents(times(walk.gains[number], average) + walk.offsets[number])
        new = limited(limited(new, point, basis.scales / (1.0 + count / 8.0)), start, walk.reach * basis.scales)
        return i + 1, new, average, positions.at[number].set(point), values.at[number].set(noisy)

    shapes = walk.offsets.shape[1:], (STEPS, len(start)), (STEPS, width)
    zeros = (jnp.zeros(shape, jnp.float32) for shape in shapes)
    return lax.fori_loop(0, num_steps, body, (first, start, *zeros))[3:]
