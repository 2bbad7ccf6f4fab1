"""How much of each row's gradient counts: from upper bounds of its norms, by kind of clipping."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpppl.access.clipping import Adaptive, Flat, Normalised, PerSite

_MOST_SQUARED = 1e37
_BELOW = 1.0 - 1.1e-3


def supports(clipping: Any, z: Any) -> bool:
    """Whether gradients of rows in `z` can be weighted for this clipping without being formed."""
    return type(clipping) in _RULES and (not isinstance(clipping, PerSite) or set(z) == set(clipping.norms))


def weigh(clipping: Any, squares: Any, keep: Any, norm: Any) -> tuple[Any, Any]:
    """(weights, count): by what to multiply the rows' gradients, a pytree of (B,) float64 like `squares`, which are upper
    bounds of squared norms by latent; with Adaptive, also the rows' shares of the count (B,), else None.

    The sum of the weighted gradients is in units of the clipping norm. Rows with `keep` False, or with a norm that is
    no number or above 3e18, have weight 0."""
    return _RULES[type(clipping)](clipping, squares, keep, norm)


def clipped_rows(clipping: Any, squares: Any, keep: Any) -> Any:
    """1/2 for each row that is clipped, at any site where each is clipped by itself, -1/2 for each other: (B,) float64;
    0 where `keep` is False."""
    parts = [(squares, clipping.clipping_norm)]
    if isinstance(clipping, PerSite):
        parts = [(squares[site], norm) for site, norm in clipping.norms.items()]
    full = [sum(jax.tree.leaves(of_site)) > norm**2 for of_site, norm in parts]
    return jnp.where(keep, jnp.where(jnp.any(jnp.stack(full), axis=0), 0.5, -0.5), 0.0)


def _shrunk(squares: Any, keep: Any, norm: Any, weight: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Weights by one joint norm, and its square."""
    squared = sum(jax.tree.leaves(squares))
    keep = keep & (squared <= _MOST_SQUARED)
    return jnp.where(keep, weight(jnp.sqrt(squared)), 0.0), squared


def _at_most(norm: Any) -> Callable[[Any], Any]:
    return lambda length: jnp.minimum(1.0 / norm, _BELOW / length)


def _flat(clipping: Any, squares: Any, keep: Any, norm: Any) -> tuple[Any, Any]:
    weights, _ = _shrunk(squares, keep, norm, _at_most(clipping.clipping_norm))
    return jax.tree.map(lambda _: weights, squares), None


def _normalised(clipping: Any, squares: Any, keep: Any, norm: Any) -> tuple[Any, Any]:
    weights, _ = _shrunk(squares, keep, norm, lambda length: _BELOW / (length + clipping.stability))
    return jax.tree.map(lambda _: weights, squares), None


def _per_site(clipping: Any, squares: Any, keep: Any, norm: Any) -> tuple[Any, Any]:
    found = {}
    for site, of_site in squares.items():
        own = clipping.norms[site]
        weights, _ = _shrunk(of_site, keep, norm, _at_most(own))
        found[site] = jax.tree.map(lambda _, w=weights * (own / clipping.clipping_norm): w, of_site)
    return found, None


def _adaptive(clipping: Any, squares: Any, keep: Any, norm: Any) -> tuple[Any, Any]:
    weights, squared = _shrunk(squares, keep, norm, _at_most(norm.astype(jnp.float64)))
    shares = jnp.where(squared <= norm.astype(jnp.float64) ** 2, 1.0 - clipping.quantile, -clipping.quantile)
    return jax.tree.map(lambda _: weights, squares), jnp.where(keep, shares, 0.0)


_RULES = {Flat: _flat, PerSite: _per_site, Normalised: _normalised, Adaptive: _adaptive}
"""By exact type: another kind of clipping bounds rows in another way."""
