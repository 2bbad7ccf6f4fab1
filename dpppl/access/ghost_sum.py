"""Ghost clipping: the clipped sum of rows whose gradients are given as factors, and why one row moves it by no more than it may.

There are no layers to register: `factored` finds where the program of one row uses latents, and what is not understood falls
back, latent by latent. `clipped_sum` gets the rows' norms from the factors, and the sum as one weighted product.

A row's contribution is *defined* by stored numbers: with factors a_l, b_l of latent l (or its whole gradient g_l), row i adds
c_i a_il b_il', in exact arithmetic, and its weight c_i is computed from the same stored bits. u = 2^-24.

1. Stored bits. A compiler may compute a value twice, for its norm and for the sum, and round differently. So factors pass
   through a call of C, or a loop whose number of turns depends on data (`stored`); what only copies inputs need not.
2. Norms from above. A sum of at most 1,024 float32 squares is wrong by a factor of 1 + 6.2e-5 at most, and by 2^-126 for
   each term or partial sum that underflows; longer ones are added in float64. `upper_squares` adds all of this, so
   that N_i is at least the norm of row i; rows with N_i^2 above 1e37, or not a number, get weight zero and are replaced by zeros.
3. Weights. c_i N_i <= 1 - 1.1e-3 before c_i is rounded to float32, which makes room for 4; and so is the norm of what the
   row adds, also after the product c_i b_i is rounded (2u together).
4. The sum. Products of BLOCK = k rows, and whole gradients, are added in float32, in an order that is not known, and the blocks
   in float64. An entry e of a block is wrong by at most u times the sum over rows of d_e(i) |v_ie|, where d_e(i) <= k + 1
   counts the operations through which row i's term goes; in a tree of k leaves the squares of d_e(i) add up to at most
   S = 1 + 2^2 + ... + (k + 1)^2. By Cauchy and Schwarz the block is wrong by at most u sqrt(S) (sum of |v_i|^2)^(1/2) <=
   u sqrt(k S) in L2 norm, over all latents together. Without row i the same holds; blocks without it are the same bits.
5. Blocks and lookups are added in float64 within a chunk, then at most 1,024 chunks: in a tree whose every
   addition is wrong by at most 2^-53 of a sum of at most B rows. Up to B = 2^27 that is less than 1.8e-5, with and
   without the row together. Of D devices each adds up at most 1,024 / D + 1 chunks of its own rows, and then they add
   their D sums: for D up to 256 no more additions than one device makes.

Zeroing a row therefore moves the sum by at most 1 - 1.1e-3 + 2 u sqrt(k S) + 4u + 1.8e-5, in units of the clipping norm. For
k = 128 that is 1 + 6.6e-5 < 1 + clipping.SLACK.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.access.clipping import Flat, counted
from dpppl.access.drawn import Drawn
from dpppl.access.exact_sum import evenly, over_drawn
from dpppl.access.factors import Form, factors, plan, restored
from dpppl.data.rows import Sharded
from dpppl.row_program.materialize import materialize
from dpppl.types import BySite, Function, Tree

_MOST_SQUARED = 1e37
_BELOW = 1.0 - 1.1e-3
BLOCK = 128
"""Rows whose outer products and whole gradients are added in float32."""
_TINY = 2.0**-126
_ROUNDED = 1.0 + 7e-5
_LONGEST_FLOAT32_SUM = 1024
_NUMBERS, _CACHED, _LATENTS = 2**25, 2**20, 8
"""Most numbers of a chunk of rows; of convolutions on CPUs, whose caches hold about these, or for each latent these."""
_MOST_ROWS = 2048
_MOST_CHUNKS = 1024
MOST_DEVICES = 256
_FEWEST_LATENTS = 2048
_BLOCKS, _PRODUCTS = 8, 2**23
"""How many blocks are added up in one pass, and how many numbers they may take."""


@dataclass(frozen=True)
class Forms:
    """How rows' gradients are given as factors.

    - **of_latents** - the form of the gradient in each latent.
    - **tree** - the structure of the latents."""

    of_latents: tuple[Form, ...]
    tree: Tree

    @property
    def like(self) -> Tree:
        """The latents' shapes and types."""
        return jax.tree.unflatten(self.tree, [jax.ShapeDtypeStruct(f.shape, f.dtype) for f in self.of_latents])


class Factored(NamedTuple):
    """A row's gradient in factors.

    - **statistic** - of (z, row, public): factors of the row's gradient in z.
    - **forms** - what the factors mean."""

    statistic: Function
    forms: Forms


def factored(log_likelihood: Function, z: BySite, row: Tree, public: Tree, *, always: bool = False) -> Factored | None:
    """How to form the gradient of `log_likelihood(z, row, public)` in factors, from shapes and types alone.

    None where that is of no use: all of the gradient would be formed, or (unless `always`) there are few latents, or forming it
    is likely to be as fast."""
    leaves, tree = jax.tree.flatten(z)
    if not all(jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves):
        return None
    if sum(int(np.prod(jnp.shape(leaf))) for leaf in leaves) < _FEWEST_LATENTS and not always:
        return None
    found = plan(log_likelihood, z, row, public)
    if not found.program.out_avals[0].shape == () or not (any(found.factored) or found.summed):
        return None
    if not (found.worthwhile or always):
        return None
    return Factored(lambda *arguments: factors(found, jax.tree.leaves(arguments)), Forms(found.forms, tree))


def supports(clipping: Flat) -> bool:
    """Whether gradients of rows can be weighted for this clipping without being formed: by exact type, as another rule bounds
    rows in another way."""
    return type(clipping) is Flat


def weigh(clipping: Flat, squared: jax.Array, keep: jax.Array) -> jax.Array:
    """By what to multiply the rows' gradients (B,) float64, given upper bounds of their squared norms.

    The sum of the weighted gradients is in units of the clipping norm. Rows with `keep` False, or with a norm that is
    no number or above 3e18, have weight 0."""
    norm = jnp.asarray(clipping.clipping_norm, jnp.float64)
    keep = keep & (squared <= _MOST_SQUARED)
    return jnp.where(keep, clipping.weights(squared / (norm * _BELOW) ** 2), 0.0) / norm


def clipped_sum(
    statistic: Function, forms: Forms, drawn: Drawn, clipping: Flat, counts: bool = False,
    placement: Sharded | None = None,
) -> Tree:  # fmt: skip
    """Sum of the clipped gradients of rows, divided by the clipping norm: a pytree of float64 arrays.

    `statistic(row)`: factors of the row's gradient, a list of tuples, as `forms` describe; if it `counts`, a
    pair: the sum, and that of `clipping.counted`. `drawn`, `placement`: see `exact_sum.sum_of_rows`.

    Guarantee: zeroing one row moves the result by at most 1 + clipping.SLACK in L2 norm, see above."""
    num_rows, per_row = drawn.length, sum(form.numbers for form in forms.of_latents)
    most = _NUMBERS
    if jax.default_backend() == "cpu" and any(form.convolved for form in forms.of_latents):
        most = min(most, max(_CACHED, _LATENTS * sum(leaf.size for leaf in jax.tree.leaves(forms.like))))
    chunk = max(4, min(num_rows, _MOST_ROWS, most // max(1, per_row)))
    chunk = max(evenly(chunk, drawn.likely), -(-num_rows // _MOST_CHUNKS))
    multiple = 4 * -(-chunk // BLOCK)
    chunk = min(num_rows, -(-chunk // multiple) * multiple)

    def chunk_sum(rows: Tree, mask: jax.Array | None) -> Tree:
        factors = stored(statistic, forms.of_latents, drawn.fetch(rows))
        with jax.enable_x64(True):
            squares: list[jax.Array] = [upper_squares(form, *parts) for form, parts in zip(forms.of_latents, factors)]
            squared = functools.reduce(jnp.add, squares)
            keep = jnp.ones(squared.shape, bool) if mask is None else mask
            weights = weigh(clipping, squared, keep)
            sums = [weighted(form, parts, weights) for form, parts in zip(forms.of_latents, factors)]
            total = jax.tree.unflatten(forms.tree, sums)
            if not counts:
                return total
            own = counted(squared / jnp.asarray(clipping.clipping_norm, jnp.float64) ** 2)
            return total, jnp.sum(jnp.where(keep[:, None], own, 0.0), axis=0)

    return over_drawn(chunk_sum, drawn, chunk, placement)


def stored(statistic: Function, forms: Sequence[Form], rows: Tree) -> list[tuple[Tree, ...]]:
    """The factors of all rows, each computed once (`materialize`), but for those that only copy inputs."""

    def computed() -> list[Tree]:
        with jax.default_matmul_precision("highest"):
            return list(jax.tree.leaves(jax.vmap(statistic)(rows)))

    free = [form.exact and part == 0 for form in forms for part in range(1 if form.kind == "whole" else 2)]
    kept = iter(materialize(lambda: [part for part, copied in zip(computed(), free) if not copied], rows))
    parts = iter([part if copied else next(kept) for part, copied in zip(computed(), free)])
    return [tuple(next(parts) for _ in range(1 if form.kind == "whole" else 2)) for form in forms]


def upper_squares(form: Form, *parts: Tree) -> jax.Array:
    """Upper bounds (B,), float64, of the squared norms of the rows' gradients in one latent."""
    if form.kind == "outer":
        bounds = [_squares(part) * _ROUNDED + 2.0 * part.shape[-1] * _TINY for part in parts]
        return jnp.sum(bounds[0] * bounds[1], axis=-1)
    whole = parts[-1].reshape(parts[-1].shape[0], -1)
    return _squares(whole) * _ROUNDED + 2.0 * whole.shape[-1] * _TINY


def _squares(x: jax.Array) -> jax.Array:
    """Sums of squares over the last axis, float64."""
    size = x.shape[-1]
    piece = next((k for k in range(min(size, _LONGEST_FLOAT32_SUM), 0, -1) if size % k == 0), 1)
    if x.dtype != jnp.float32 or piece < min(size, 64):
        return jnp.sum(jnp.square(x.astype(jnp.float64)), axis=-1)
    x = x.reshape(*x.shape[:-1], size // piece, piece)
    ones = np.ones(piece, np.float32)
    sums = lax.dot_general(x * x, ones, (((x.ndim - 1,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)
    return jnp.sum(sums.astype(jnp.float64), axis=-1)


def weighted(form: Form, parts: Sequence[Tree], weights: jax.Array) -> jax.Array:
    """The sum over rows of their gradients in one latent times their weights (B,), float64."""
    spread = lambda x, like: x.reshape(-1, *[1] * (like.ndim - 1))  # noqa: E731
    last, dtype = parts[-1], jnp.promote_types(parts[-1].dtype, jnp.float32)
    factor = spread(weights.astype(dtype), last)
    last = jnp.where(factor > 0, last.astype(dtype) * factor, np.zeros((), dtype))
    if form.kind == "whole":
        flat = last.reshape(len(last), 1, -1)
        return restored(_product(jnp.ones((len(last), 1, 1), dtype), flat).reshape(last.shape[1:]), form.restore)
    if form.kind == "lookup":
        table = jnp.zeros((form.sizes[2], last.shape[-1]), jnp.float64)
        flat = last.reshape(-1, last.shape[-1]).astype(jnp.float64)
        return restored(table.at[parts[0].ravel()].add(flat, mode="drop")[None], form.restore)
    first = jnp.where(spread(weights, parts[0]) > 0, parts[0].astype(dtype), np.zeros((), dtype))
    return restored(_product(first, last), form.restore)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    """sum over rows of a (B, G, m) times b (B, G, n): (G, m, n) float64; float32 within blocks of at most BLOCK rows."""
    blocks = 1 if a.dtype == jnp.float64 else -(-len(a) // BLOCK)
    size = -(-len(a) // blocks)
    room = [(0, blocks * size - len(a)), (0, 0), (0, 0)]
    a, b = (jnp.pad(x, room).reshape(blocks, size, *x.shape[1:]) for x in (a, b))

    def product(k: object) -> jax.Array:
        dims = (((0,), (0,)), ((), ())) if a.shape[2] == 1 else (((0,), (0,)), ((1,), (1,)))
        x, y = (z[k, :, 0] if a.shape[2] == 1 else z[k] for z in (a, b))
        found = lax.dot_general(x, y, dims, precision=lax.Precision.HIGHEST).astype(jnp.float64)
        return found.reshape(a.shape[2], a.shape[-1], b.shape[-1])

    group = min(blocks, max(1, min(_BLOCKS, _PRODUCTS // (a.shape[2] * a.shape[-1] * b.shape[-1]))))
    some = lambda first, number: sum(product(first + k) for k in range(number))  # noqa: E731
    total = some(0, blocks % group or group)
    return lax.fori_loop(
        0, (blocks - 1) // group, lambda k, total: total + some((blocks - 1) % group + 1 + k * group, group), total
    )
