"""Bound what one row can add to the sum of gradients."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.errors import ConfigurationError
from dpppl.types import BySite, Function, Scalar, Tree
from dpppl.validation import checked_type, fraction, in_words, plain, positive

_LONGEST_FLOAT32_SUM = 1024
SLACK = 1e-4
"""Relative slack of the sensitivity in floating point: see `clip_rows` and `ghost_sum.clipped_sum`."""
NUM_COUNTS = 3
"""Counts that may be released with a sum: of clipped rows, of rows whose norm is not finite, and of rows whose norm is 0."""
_SILENT, _FAINT = 1e-30, 1e-12


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


class Clipping:
    """The base class of clipping: rows longer than the norm are shortened to it, all latents of a row together.

    - **clipping_norm** - the norm of what a row adds at most: the sensitivity of the sum."""

    clipping_norm: Tree

    @property
    def count_sensitivity(self) -> float:
        """How far one row moves the counts."""
        return 0.5

    def parts(self, latents: Tree, norm: Scalar | None = None) -> list[tuple[Tree, Tree]]:
        """The groups of latents that are clipped together, each with its norm; `norm`: that of this access, if it adapts."""
        return [(latents, self.clipping_norm)]

    def weights(self, squared_norms: jax.Array) -> jax.Array:
        """The rule: by what to multiply rows, at most 1 / norm, given squared norms (B,), float64, in units of the norm."""
        return jnp.minimum(np.ones((), squared_norms.dtype), 1.0 / jnp.sqrt(squared_norms))

    def clip(self, gradients: Tree, mask: jax.Array | None, norm: Scalar | None = None) -> Tree:
        """Rows of norm at most 1: see `clip_rows`."""
        [(latents, own)] = self.parts(gradients, norm)
        return clip_rows(latents, mask, own, self.weights)

    def counted(self, squared_norms: Sequence[jax.Array], norm: Scalar | None = None) -> jax.Array:
        """Each row's contribution to the counts (B, NUM_COUNTS), given those of its `parts`: one entry is not 0.

        The first is 1/2 if the row is longer than any norm, else -1/2. Rows that are not finite, or 0, have `count_sensitivity`
        in the second or the third."""
        longer = functools.reduce(jnp.logical_or, [x > 1.0 for x in squared_norms])
        return self._apart(jnp.where(longer, 0.5, -0.5), squared_norms, _SILENT)

    def _apart(self, counted: jax.Array, squared_norms: Sequence[jax.Array], silent: Scalar) -> jax.Array:
        """These counts (B,) of rows whose squared norms, in units of the norm, are finite and not all below `silent`."""
        is_finite = functools.reduce(jnp.logical_and, [jnp.isfinite(x) for x in squared_norms])
        is_silent = is_finite & functools.reduce(jnp.logical_and, [x < silent for x in squared_norms])
        own, size = jnp.where(is_finite & ~is_silent, counted, 0.0), self.count_sensitivity
        return jnp.stack([own, *(jnp.where(x, size, 0.0) for x in (~is_finite, is_silent))], axis=-1)

    def clipped_share(self, count: float, speaking: float) -> float:
        """The share of clipped rows, from the first count and the rows that have a norm, both as shares of all rows."""
        return 0.5 * speaking + count


@dataclass(frozen=True)
class Flat(Clipping):
    """One norm over all latents: a row's gradient g becomes g * min(1, clipping_norm / |g|).

    - **clipping_norm** - L2 norm that a row adds at most.

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


@dataclass(frozen=True, eq=False)
class PerSite(Clipping):
    """A norm for each latent site: the gradient with respect to site s is clipped to `norms[s]` on its own.

    - **norms** - L2 norms by site. `clipping_norm`, the sensitivity, is the root of their sum of squares.

    Raises ConfigurationError unless every norm is positive and finite.

    >>> PerSite({"a": 3.0, "b": 4.0}).clipping_norm
    5.0
    """

    norms: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.norms:
            raise ConfigurationError("clipping_norm as a dict needs an entry for every latent site.")
        object.__setattr__(self, "norms", {site: Flat(norm).clipping_norm for site, norm in self.norms.items()})

    @property
    def clipping_norm(self) -> float:
        """L2 norm of the norms of all sites."""
        return math.hypot(*self.norms.values())

    def parts(self, latents: Tree, norm: Scalar | None = None) -> list[tuple[Tree, Tree]]:
        """One group for each site."""
        return [(latents[site], own) for site, own in self.norms.items()]

    def clip(self, gradients: Tree, mask: jax.Array | None, norm: Scalar | None = None) -> Tree:
        """Rows of `gradients`, a dict by site with leaves (B, ...), clipped site by site; joint norm at most 1."""
        if set(gradients) != set(self.norms):
            raise ConfigurationError(
                f"clipping_norm is given for sites {sorted(self.norms)}, but the latent sites are {sorted(gradients)}."
            )
        total = self.clipping_norm
        return {
            site: jax.tree.map(lambda leaf, share=own / total: leaf * share, clip_rows(part, mask, own, self.weights))
            for site, (part, own) in zip(self.norms, self.parts(gradients))
        }

    def describe(self) -> str:
        """One line for the report."""
        sites = ", ".join(f"{site} {norm:.6g}" for site, norm in self.norms.items())
        return f"per site ({sites}), joint norm {self.clipping_norm:.6g}"


@dataclass(frozen=True)
class Normalised(Flat):
    """Automatic clipping: a row's gradient g becomes clipping_norm * g / (|g| + stability).

    - **clipping_norm** - L2 norm that a row adds at most.
    - **stability** - norm below which rows count less; between 1e-12 and 1e12 times clipping_norm.

    Every row counts about equally, so clipping_norm needs no tuning beyond the learning rate; but the sum is not the gradient
    of a likelihood even where all rows are short, so it suits optimisation only.

    Reference: Bu, Wang, Zha, Karypis (2022), Automatic clipping, equation 4.

    >>> Normalised(1.0).stability
    0.01
    """

    stability: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        # A norm below 1e-19 reads 0: far less than the stability it is then divided by, or the row would be unbounded.
        if not (isinstance(self.stability, int | float) and 1e-12 <= self.stability / self.clipping_norm <= 1e12):
            raise ConfigurationError("Normalised: stability must lie between 1e-12 and 1e12 times clipping_norm.")

    def weights(self, squared_norms: jax.Array) -> jax.Array:
        """1 / (norm + stability), in units of the norm."""
        return 1.0 / (jnp.sqrt(squared_norms) + self.stability / self.clipping_norm)

    def describe(self) -> str:
        """One line for the report."""
        return f"normalised, clipping_norm {self.clipping_norm:.6g}, stability {self.stability:.6g}"


@checked_type
@dataclass(frozen=True, kw_only=True)
class Adaptive(Clipping):
    """Flat clipping whose norm follows a quantile of the gradients' norms, by a noised count.

    - **quantile** - the share of rows that should not be clipped, of rows whose gradient is finite and not 0 (a millionth of the
      first norm).
    - **learning_rate** - each step multiplies the norm by exp(learning_rate * (quantile - share of rows not longer)).
    - **count_share** - the share of a step's privacy cost (in noise_multiplier^-2) that the count spends.
    - **clipping_norm** - the first norm; `dpppl.SVI` sets it.

    Guarantee: sum and count leave the door together, as one Gaussian event whose noise multiplier s satisfies
    s^-2 = s_sum^-2 + s_count^-2, s_count = count noise std / max(quantile, 1 - quantile). Rows without a norm are counted in two
    further coordinates, so one row still moves the counts by max(quantile, 1 - quantile) at most.
    Raises ConfigurationError unless quantile and count_share lie in (0, 1) and learning_rate is positive.
    Reference: Andrew, Thakkar, McMahan, Ramaswamy (2021), Algorithm 1 and Theorem 1.

    >>> Adaptive(quantile=0.5).count_sensitivity
    0.5
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    count_share: float = 0.01
    clipping_norm: Tree = None

    def __post_init__(self) -> None:
        if self.clipping_norm is not None:
            object.__setattr__(self, "clipping_norm", Flat(self.clipping_norm).clipping_norm)
        for name in ("quantile", "count_share"):
            fraction(getattr(self, name), name=name)
        if not positive(self.learning_rate, name="learning_rate") <= 10.0:
            raise ConfigurationError("Adaptive: learning_rate must lie in (0, 10].")

    @property
    def count_sensitivity(self) -> float:
        """How far one row moves the counts."""
        return max(self.quantile, 1.0 - self.quantile)

    def parts(self, latents: Tree, norm: Scalar | None = None) -> list[tuple[Tree, Tree]]:
        """All latents, with the norm of this access."""
        return [(latents, norm)]

    def counted(self, squared_norms: Sequence[jax.Array], norm: Scalar | None = None) -> jax.Array:
        """As in `Clipping`; the first is 1 for each row not longer than the norm, 0 for each other, less the quantile."""
        not_longer = jnp.where(squared_norms[0] <= 1.0, 1.0 - self.quantile, -self.quantile)
        return self._apart(not_longer, squared_norms, _FAINT * (self.clipping_norm / norm) ** 2)

    def clipped_share(self, count: float, speaking: float) -> float:
        """As in `Clipping`."""
        return (1.0 - self.quantile) * speaking - count

    def next_norm(self, clipping_norm: jax.Array, noisy_counts: jax.Array, expected_rows: float) -> jax.Array:
        """The norm of the next step, given the noised counts. Steps are as if at least a quarter of the rows had a norm."""
        speaking = expected_rows - (noisy_counts[1] + noisy_counts[2]) / self.count_sensitivity
        speaking = jnp.clip(speaking, 0.25 * expected_rows, expected_rows)
        step = jnp.clip(self.learning_rate * noisy_counts[0] / speaking, -1.0, 1.0)
        low, high = max(1e-20, 1e-6 * self.clipping_norm), min(1e18, 1e6 * self.clipping_norm)
        return jnp.clip(clipping_norm * jnp.exp(-step), low, high)

    def describe(self) -> str:
        """One line for the report."""
        return (
            f"adaptive, from clipping_norm {self.clipping_norm:.6g} towards quantile {self.quantile:g}; sum and count "
            f"are one event, the count spends {self.count_share:g} of it"
        )


def british(clipping: str) -> str:
    """The name of a kind of clipping as it is written here; American spelling is taken, too."""
    spelled = {"centered": "centred", "normalized": "normalised"}
    return spelled.get(clipping, clipping) if isinstance(clipping, str) else clipping


def clipping_of(clipping: str, clipping_norm: float | Mapping[str, float]) -> Flat | PerSite | Centred:
    """The clipping rule for a kernel's arguments `clipping` and `clipping_norm`. Raises ConfigurationError where they clash."""
    clipping = british(clipping)
    if clipping == "centred":
        if isinstance(clipping_norm, Mapping):
            raise ConfigurationError("centred clipping takes one clipping_norm for all sites together, not a dict.")
        return Centred(clipping_norm)
    if clipping != "flat":
        raise ConfigurationError('clipping must be "flat" or "centred" (SVI: also "normalised", dpppl.Adaptive(...)).')
    return PerSite(clipping_norm) if isinstance(clipping_norm, Mapping) else Flat(clipping_norm)


def clip_rows(
    gradients: BySite, mask: jax.Array | None, clipping_norm: Scalar, weights: Function | None = None
) -> Tree:
    """Clip each row of `gradients` (a pytree, leaves (B, ...)) and divide it by `clipping_norm`.

    Returns rows of joint norm at most 1. `mask` (B,) bool or None: rows where it is False become exactly 0. `weights`: see
    `Clipping.weights`, whose rule is the default.

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
        factors = (Clipping().weights if weights is None else weights)(squared).astype(dtype)

        def select(leaf: jax.Array) -> jax.Array:
            factor = factors.reshape((-1,) + (1,) * (leaf.ndim - 1))
            return jnp.where(factor > 0.0, leaf * factor, np.zeros((), dtype))

        return jax.tree.map(select, units)


def with_count(clipping: Clipping, norm: Scalar | None = None) -> Function:
    """`clipping.clip` for pairs of gradients and zeros (B, NUM_COUNTS), in whose place what rows add to the counts is put.

    Rows where the mask is False count 0. `norm`: that of this access, if it adapts."""

    def both(pair: Tree, mask: jax.Array | None) -> Tree:
        gradients, zeros = pair
        # as `clip_rows` computes them: once in all
        squares = [scaled(part, 1.0 / own)[1] for part, own in clipping.parts(gradients, norm)]
        with jax.enable_x64(True):
            counted = clipping.counted(squares, norm).astype(zeros.dtype)
            counted = counted if mask is None else jnp.where(mask[:, None], counted, np.zeros((), zeros.dtype))
        return clipping.clip(gradients, mask, norm), counted

    return both
