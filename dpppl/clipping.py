"""Bound what one row can add to the sum of gradients."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.errors import ConfigurationError

SLACK = 1e-4
"""Relative slack of the sensitivity in floating point: see `clip_rows` and `gradients.clipped_sum`."""

_LONGEST_FLOAT32_SUM = 1024


@dataclass(frozen=True)
class Flat:
    """One norm over all latents: a row's gradient g becomes g * min(1, clipping_norm / |g|).

    Raises ConfigurationError unless `clipping_norm` is positive and finite (between 1e-30 and 1e30).

    >>> Flat(2.0).clipping_norm
    2.0
    """

    clipping_norm: float

    def __post_init__(self):
        norm = self.clipping_norm
        if isinstance(norm, bool) or not isinstance(norm, int | float | np.floating) or not 1e-30 <= norm <= 1e30:
            raise ConfigurationError(
                f"clipping_norm must be a positive, finite number (1e-30 to 1e30), got {norm!r}. "
                "It bounds how far one row can move the gradient of the log likelihood."
            )
        object.__setattr__(self, "clipping_norm", float(norm))

    def clip(self, gradients, mask):
        """See `clip_rows`."""
        return clip_rows(gradients, mask, self.clipping_norm)

    def describe(self) -> str:
        """One line for the report."""
        return f"flat, clipping_norm {self.clipping_norm:.6g}"


@dataclass(frozen=True, eq=False)
class PerSite:
    """A norm for each latent site: the gradient with respect to site s is clipped to `norms[s]` on its own.

    `clipping_norm` is the norm of all together, sqrt(sum of squares): the sensitivity.
    Raises ConfigurationError unless every norm is positive and finite.

    >>> PerSite({"a": 3.0, "b": 4.0}).clipping_norm
    5.0
    """

    norms: Mapping[str, float]

    def __post_init__(self):
        if not self.norms:
            raise ConfigurationError("clipping_norm as a dict needs an entry for every latent site.")
        object.__setattr__(self, "norms", {site: Flat(norm).clipping_norm for site, norm in self.norms.items()})

    @property
    def clipping_norm(self) -> float:
        """L2 norm of the norms of all sites."""
        return math.hypot(*self.norms.values())

    def clip(self, gradients, mask):
        """Rows of `gradients`, a dict by site with leaves (B, ...), clipped site by site; joint norm at most 1."""
        if set(gradients) != set(self.norms):
            raise ConfigurationError(
                f"clipping_norm is given for sites {sorted(self.norms)}, but the latent sites are {sorted(gradients)}."
            )
        total = self.clipping_norm
        return {
            site: jax.tree.map(lambda leaf, share=self.norms[site] / total: leaf * share, clip_rows(leaf, mask, norm))
            for (site, norm), leaf in zip(sorted(self.norms.items()), (gradients[s] for s in sorted(gradients)))
        }

    def describe(self) -> str:
        """One line for the report."""
        sites = ", ".join(f"{site} {norm:.6g}" for site, norm in self.norms.items())
        return f"per site ({sites}), joint norm {self.clipping_norm:.6g}"


def clip_rows(gradients, mask, clipping_norm: float):
    """Clip each row of `gradients` (a pytree, leaves (B, ...)) and divide it by `clipping_norm`.

    Returns rows of joint norm at most 1. `mask` (B,) bool or None: rows where it is False become exactly 0.

    Guarantee: a returned row has L2 norm at most 1 + 3.2e-5 in exact arithmetic, whatever the input; a row whose norm
    is not finite (NaN, infinity, or an overflow of its square) is exactly 0. Norms are summed in float32 over at most
    1,024 terms (relative error below 3.1e-5 of the norm) and in float64 beyond and over leaves. A norm below 1e-19 * clipping_norm may
    read 0; such a row is then returned divided by clipping_norm, far below 1.

    >>> import jax.numpy as jnp
    >>> clip_rows({"w": jnp.array([[3.0, 4.0], [jnp.inf, 0.0]])}, None, 1.0)["w"].tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    dtype = jnp.promote_types(jnp.result_type(*jax.tree.leaves(gradients)), jnp.float32)
    scaled = jax.tree.map(lambda g: g.astype(dtype) * np.asarray(1.0 / clipping_norm, dtype), gradients)
    with jax.enable_x64(True):
        squared = sum(_squared_norm(leaf) for leaf in jax.tree.leaves(scaled))
        keep = jnp.isfinite(squared) if mask is None else jnp.isfinite(squared) & mask
        factor = jnp.minimum(np.ones((), squared.dtype), 1.0 / jnp.sqrt(squared)).astype(dtype)

        def select(leaf):
            shape = (-1,) + (1,) * (leaf.ndim - 1)
            return jnp.where(keep.reshape(shape), leaf * factor.reshape(shape), np.zeros((), dtype))

        return jax.tree.map(select, scaled)


def _squared_norm(leaf):
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
