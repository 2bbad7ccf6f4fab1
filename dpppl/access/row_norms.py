"""Norms of rows' gradients, in float32 where that is precise enough and in float64 beyond."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.types import BySite, Tree

_LONGEST_FLOAT32_SUM = 1024


def scaled(gradients: BySite, factor: object) -> tuple[Tree, Tree]:
    """Multiply rows of gradients by a factor; return them and their squared norms (B,), float64.

    - **gradients** - a pytree with leaves (B, ...).
    - **factor** - a number."""
    dtype = jnp.promote_types(jnp.result_type(*jax.tree.leaves(gradients)), jnp.float32)
    units = jax.tree.map(lambda g: g.astype(dtype) * jnp.asarray(factor, dtype), gradients)
    with jax.enable_x64(True):
        return units, sum(_squared_norm(leaf) for leaf in jax.tree.leaves(units))


def _squared_norm(leaf: jax.Array) -> jax.Array:
    """Squared norm of each row of one leaf (B, ...), float64: summed in float32 over short last axes only."""
    rows, last = leaf.shape[0], (leaf.shape[-1] if leaf.ndim > 1 else 1)
    if leaf.dtype == jnp.float64 or last > _LONGEST_FLOAT32_SUM:
        return jnp.sum(jnp.square(leaf.astype(jnp.float64)).reshape(rows, -1), axis=1)
    if leaf.size == rows * last:
        leaf = leaf.reshape(rows, last)
        return lax.dot(leaf * leaf, np.ones(last, leaf.dtype), precision=lax.Precision.HIGHEST).astype(jnp.float64)
    partial = lax.dot_general(
        leaf * leaf, np.ones(last, leaf.dtype), (((leaf.ndim - 1,), (0,)), ((), ())), precision=lax.Precision.HIGHEST
    )
    return jnp.sum(partial.astype(jnp.float64).reshape(rows, -1), axis=1)
