"""Clipping weights of rows from upper bounds of their norms: the rules of `clipping`, with room for rounding."""

from typing import Any

import jax
import jax.numpy as jnp

from dpppl.access.clipping import Adaptive, Clipping, Flat, Normalised, PerSite
from dpppl.types import BySite

_MOST_SQUARED = 1e37
_BELOW = 1.0 - 1.1e-3
_KINDS = (Flat, PerSite, Normalised, Adaptive)
"""By exact type: another kind of clipping bounds rows in another way."""


def supports(clipping: Clipping, z: BySite) -> bool:
    """Whether gradients of rows in `z` can be weighted for this clipping without being formed."""
    return type(clipping) in _KINDS and (not isinstance(clipping, PerSite) or set(z) == set(clipping.norms))


def weigh(clipping: Clipping, squares: Any, keep: Any, norm: Any) -> Any:
    """By what to multiply the rows' gradients: a pytree of (B,) float64 like `squares`, which are upper bounds of squared
    norms by latent. `norm`: that of this access, if it adapts.

    The sum of the weighted gradients is in units of the clipping norm. Rows with `keep` False, or with a norm that is
    no number or above 3e18, have weight 0."""
    joint = _float64(norm if isinstance(clipping, Adaptive) else clipping.clipping_norm)
    found = []
    for latents, own in clipping.parts(squares, norm):
        weights = _shrunk(clipping, latents, keep, _float64(own)) / joint
        found.append(jax.tree.map(lambda _, weights=weights: weights, latents))
    return dict(zip(clipping.norms, found)) if isinstance(clipping, PerSite) else found[0]


def count(clipping: Clipping, squares: Any, keep: Any, norm: Any) -> jax.Array:
    """Each row's contribution to the counts (B, NUM_COUNTS) float64, as in `Clipping.counted`; 0 where `keep` is False."""
    parts = clipping.parts(squares, norm)
    units = [sum(jax.tree.leaves(latents)) / _float64(own) ** 2 for latents, own in parts]
    return jnp.where(keep[:, None], clipping.counted(units, norm), 0.0)


def _shrunk(clipping: Clipping, squares: object, keep: Any, norm: Any) -> jax.Array:
    """Weights by the joint norm of all `squares`, in units of `norm`; times that norm at most _BELOW."""
    squared = sum(jax.tree.leaves(squares))
    keep = keep & (squared <= _MOST_SQUARED)
    return jnp.where(keep, clipping.weights(squared / (norm * _BELOW) ** 2), 0.0)


def _float64(norm: jax.Array) -> jax.Array:
    return jnp.asarray(norm, jnp.float64)
