"""Bound what one row can add to the sum of gradients."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.errors import ConfigurationError
from dpppl.types import BySite, Function, Scalar, Tree
from dpppl.validation import in_words, plain

_LONGEST_FLOAT32_SUM = 1024
SLACK = 1e-4
"""Relative slack of the sensitivity in floating point: see `clip_rows` and `ghost_sum.clipped_sum`."""
NUM_COUNTS = 3
"""Counts that may be released with a sum: of clipped rows, of rows whose norm is not finite, and of rows whose norm is 0."""
COUNT_SENSITIVITY = 0.5
"""How far one row moves the counts."""
_SILENT = 1e-30


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


def _flat_weights(squared_norms: jax.Array) -> jax.Array:
    return jnp.minimum(np.ones((), squared_norms.dtype), 1.0 / jnp.sqrt(squared_norms))


def clipping_counts(squared_norms: jax.Array) -> jax.Array:
    """Each row's contribution to the counts (B, NUM_COUNTS), given squared norms (B,), in units of the norm: one entry is not 0.

    The first is 1/2 if the row is longer than the norm, else -1/2. Rows that are not finite, or 0, have 1/2 in the second or
    the third."""
    is_finite = jnp.isfinite(squared_norms)
    is_silent = is_finite & (squared_norms < _SILENT)
    longer = jnp.where(squared_norms > 1.0, 0.5, -0.5)
    own, size = jnp.where(is_finite & ~is_silent, longer, 0.0), COUNT_SENSITIVITY
    return jnp.stack([own, *(jnp.where(x, size, 0.0) for x in (~is_finite, is_silent))], axis=-1)


@dataclass(frozen=True)
class Flat:
    """One norm over all latents: a row's gradient g becomes g * min(1, clipping_norm / |g|).

    - **clipping_norm** - L2 norm that a row adds at most: the sensitivity of the sum.

    Raises ConfigurationError unless `clipping_norm` is positive and finite (between 1e-30 and 1e18).

    >>> Flat(2.0).clipping_norm
    2.0
    """

    clipping_norm: float

    def __post_init__(self) -> None:
        norm = plain(self.clipping_norm)
        if isinstance(norm, bool) or not isinstance(norm, int | float) or not 1e-30 <= norm <= 1e18:
            raise ConfigurationError(
                f"clipping_norm must be a positive, finite number (1e-30 to 1e18), got {in_words(norm)}. "
                "It bounds how far one row can move the gradient of the log likelihood."
            )
        object.__setattr__(self, "clipping_norm", float(norm))

    def weights(self, squared_norms: jax.Array) -> jax.Array:
        """The rule: by what to multiply rows, at most 1 / norm, given squared norms (B,), float64, in units of the norm."""
        return _flat_weights(squared_norms)

    def clip(self, gradients: Tree, mask: jax.Array | None) -> Tree:
        """Rows of norm at most 1: see `clip_rows`."""
        return clip_rows(gradients, mask, self.clipping_norm, self.weights)

    def describe(self) -> str:
        """One line for the report."""
        return f"flat, clipping_norm {self.clipping_norm:.6g}"


@dataclass(frozen=True)
class Centred(Flat):
    """Clipping to one norm around the gradient that the model expects of a row: see `centring`.

    - **clipping_norm** - L2 norm that a row adds at most.
    - **num_draws** - responses drawn from the model for each row, where they are too many to list.

    Unbiased whatever share of the rows is clipped, as long as the model is right.
    Raises ConfigurationError unless `num_draws` is a positive integer.

    >>> Centred(2.0).describe()
    'centred, clipping_norm 2, 8 draws a row where responses cannot be listed'
    """

    num_draws: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.num_draws, bool) or not isinstance(self.num_draws, int) or self.num_draws < 1:
            raise ConfigurationError("Centred: num_draws must be a positive integer.")

    def describe(self) -> str:
        """One line for the report."""
        norm = f"centred, clipping_norm {self.clipping_norm:.6g}"
        return f"{norm}, {self.num_draws} draws a row where responses cannot be listed"


def british(clipping: str) -> str:
    """The name of a kind of clipping as it is written here; American spelling is taken, too."""
    return "centred" if clipping == "centered" else clipping


def clipping_of(clipping: str | None, clipping_norm: float | str) -> Flat:
    """The rule for a method's arguments; "auto" is centred by default, at norm 1 until a run has chosen it.

    Raises ConfigurationError for another rule."""
    is_auto = isinstance(clipping_norm, str) and clipping_norm == "auto"
    kind = british(clipping) if clipping is not None else "centred" if is_auto else "flat"
    if kind not in ("flat", "centred"):
        raise ConfigurationError('clipping must be "flat" or "centred".')
    norm: Tree = 1.0 if is_auto else clipping_norm
    return Centred(norm) if kind == "centred" else Flat(norm)


def clip_rows(
    gradients: BySite, mask: jax.Array | None, clipping_norm: Scalar, weights: Function | None = None
) -> Tree:
    """Clip each row of `gradients` (a pytree, leaves (B, ...)) and divide it by `clipping_norm`.

    Returns rows of joint norm at most 1. `mask` (B,) bool or None: rows where it is False become exactly 0. `weights`: see
    `Flat.weights`, whose rule is the default.

    Guarantee: a returned row has L2 norm at most 1 + 3.2e-5 in exact arithmetic, whatever the input; a row whose norm
    is not finite (NaN, infinity, or an overflow of its square in the gradients' type) is exactly 0. Norms are summed in
    float32 over at most 1,024 terms (relative error below 3.1e-5 of the norm), in float64 beyond and over leaves. A
    norm below 1e-19 * clipping_norm may read 0; such a row is then returned divided by clipping_norm, far below 1.

    >>> import jax.numpy as jnp
    >>> clip_rows({"w": jnp.array([[3.0, 4.0], [jnp.inf, 0.0]])}, None, 1.0)["w"].tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    units, squared = scaled(gradients, 1.0 / clipping_norm)
    dtype = jnp.result_type(*jax.tree.leaves(units))
    with jax.enable_x64(True):
        keep = squared <= np.finfo(dtype).max  # then the factor is no subnormal number, which would be imprecise
        keep = keep if mask is None else keep & mask
        # Before the root, which XLA computes once; it computes all else again for each leaf.
        squared = jnp.where(keep, squared, np.inf)
        factors = (weights or _flat_weights)(squared).astype(dtype)

        def select(leaf: jax.Array) -> jax.Array:
            factor = factors.reshape((-1,) + (1,) * (leaf.ndim - 1))
            return jnp.where(factor > 0.0, leaf * factor, np.zeros((), dtype))

        return jax.tree.map(select, units)


def with_count(clipping: Flat) -> Function:
    """`clipping.clip` for pairs of gradients and zeros (B, NUM_COUNTS), in whose place what rows add to the counts is put.

    Rows where the mask is False count 0."""

    def both(pair: Tree, mask: jax.Array | None) -> Tree:
        gradients, zeros = pair
        # as `clip_rows` computes them: once in all
        _, squared = scaled(gradients, 1.0 / clipping.clipping_norm)
        with jax.enable_x64(True):
            counts = clipping_counts(squared).astype(zeros.dtype)
            counts = counts if mask is None else jnp.where(mask[:, None], counts, np.zeros((), zeros.dtype))
        return clipping.clip(gradients, mask), counts

    return both
