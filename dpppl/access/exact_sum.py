"""The sum of a clipped statistic of each row: all rows at once (vmap) or chunk by chunk (microbatch)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.access.drawn import Blocks, Drawn
from dpppl.data.rows import Sharded
from dpppl.row_program.materialize import Statistic
from dpppl.types import Function, Scalar, Tree

_INT32_GRIDS = ((512, 65_536, 21), (64, 2**22, 24))
"""Up to how many rows of up to which size 32-bit integers can sum, and the bits of the grid."""
_BITS = 26
"""Of the grid that all of these are multiples of: sums are counted in its steps."""
_MOST_ROWS = 65_536


def sum_of_rows(
    statistic: Function, drawn: Drawn, clip: Function, *, strategy: str = "auto", steps: Tree = None,
    placement: Sharded | None = None,
) -> Tree:  # fmt: skip
    """Sum over rows of the clipped `statistic(row)`, a pytree of arrays, divided by the clipping norm.

    `clip` maps the statistics of all rows (leaves (B, ...)) and the mask to rows of norm at most 1. Returns a pytree like one
    row's statistic in float64. Given `steps`, such a pytree of float64 scalars: the clipped rows times these, rounded to whole
    numbers, summed in int64. With a `placement` each of several devices has some of the rows, and the sum is that of all.

    Guarantee: zeroing one row moves the result by at most 1 + SLACK in L2 norm. Statistics are stored (`Statistic`), so that
    the bits that are clipped are those that their norm was computed from. Clipped rows are rounded to a fixed grid on which
    their sum is exact in any order, so the only errors are a row's own: its norm (3.1e-5) and its rounding (below 6.2e-5).
    Chunks of up to 512 float32 rows use steps of 2^-21 and 32-bit integers, those of up to 64 long rows (4e6 latents) steps
    of 2^-24; others, steps of 2^-26 (a row's rounding is below 6.2e-5 up to 6e7 latents). Chunks, and devices, are added as
    64-bit integers: up to 2^37 rows, with float64 only for the result, whose rounding is below 1e-6 for 2^31 rows.
    Sizes of chunks depend on no number of devices, so that a row's own numbers do not, either."""
    fetched = jax.eval_shape(drawn.fetch, drawn.rows if drawn.blocks is None else drawn.blocks.like)
    like = jax.eval_shape(statistic, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), fetched))
    size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(like))
    chunk = evenly(_chunk_rows(size, drawn.length, strategy), drawn.likely)
    bits = next((bits for rows_, size_, bits in _INT32_GRIDS if chunk <= rows_ and size <= size_), None)

    def chunk_sum(rows: Tree, mask: jax.Array) -> Tree:
        statistics = Statistic.of(statistic).of_rows(drawn.fetch(rows))
        clipped = clip(statistics, mask)
        if steps is None:
            return jax.tree.map(lambda leaf: _sum_rows(leaf, bits), clipped)
        return jax.tree.map(_sum_whole_rows, clipped, steps)

    total = over_drawn(chunk_sum, drawn, chunk, placement, until_last=drawn.likely is not None)
    with jax.enable_x64(True):
        return total if steps is not None else jax.tree.map(lambda x: x.astype(jnp.float64) * 2.0**-_BITS, total)


def over_drawn(
    chunk_sum: Function, drawn: Drawn, chunk: int, placement: Sharded | None, until_last: bool = True
) -> Tree:
    """The sum of `chunk_sum(rows, mask)` over chunks of so many of the rows drawn, on all devices; see `over_chunks`."""
    if drawn.blocks is None:
        total = over_chunks(chunk_sum, drawn.rows, drawn.mask, chunk, until_last)
    else:
        total = over_blocks(chunk_sum, drawn.blocks, chunk)
    return total if placement is None else placement.total(total)


def over_blocks(chunk_sum: Function, blocks: Blocks, chunk: int) -> Tree:
    """`over_chunks` of rows that are fetched block by block, each of whole chunks: the same chunks in the same order."""
    length, size = blocks.length, blocks.size(chunk)
    if size >= length:
        return over_chunks(chunk_sum, *blocks.fetch(0, length), chunk, until_last=blocks.mask is not None)

    def body(number: Scalar, total: Tree) -> Tree:
        start = jnp.minimum(number * size, length - size).astype(jnp.int32)  # the last block reaches back
        rows, mask = blocks.fetch(start, size)
        return over_chunks(
            chunk_sum, rows, mask, chunk, until_last=blocks.mask is not None, first=number * size - start, total=total
        )

    used: Scalar = -(-length // size)
    if blocks.mask is not None:
        used = jnp.max(jnp.where(blocks.mask, jnp.arange(length) + size, 0)) // size
    return lax.fori_loop(0, used, body, _nothing(chunk_sum, blocks.like, chunk))


def over_chunks(
    chunk_sum: Function, rows: Tree, mask: jax.Array | None, chunk: int, until_last: bool = False, first: Scalar | None = None,
    total: Tree = None,
) -> Tree:  # fmt: skip
    """The sum of `chunk_sum(rows, mask)`, a pytree of 64-bit arrays, over chunks of so many rows (B, ...); of fewer rows than a
    chunk has, one that is filled up.

    `until_last`: leave out the chunks behind the last row that `mask` holds. `first`: the chunks begin at this row, those before
    do not count; `total` is what their sum is added to."""
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    begin = 0 if first is None else first
    if chunk > num_rows:
        fill = lambda x: jnp.pad(x, [(0, chunk - num_rows)] + [(0, 0)] * (x.ndim - 1))  # noqa: E731
        mask, rows = fill(jnp.ones(num_rows, bool) if mask is None else mask), jax.tree.map(fill, rows)
    if chunk >= num_rows and first is None:
        return chunk_sum(rows, mask)

    def body(carry: Tree, number: Tree) -> tuple[Tree, None]:
        place = number * chunk if first is None else first + number * chunk
        start = jnp.minimum(place, num_rows - chunk)
        take = lambda x: lax.dynamic_slice_in_dim(x, start, chunk)  # noqa: E731
        fresh = start + jnp.arange(chunk) >= place
        part = chunk_sum(jax.tree.map(take, rows), fresh if mask is None else fresh & take(mask))
        with jax.enable_x64(True):
            return jax.tree.map(jnp.add, carry, part), None

    zero = _nothing(chunk_sum, rows, chunk) if total is None else total
    if first is None and (mask is None or not until_last):
        return lax.scan(body, zero, jnp.arange(-(-num_rows // chunk)))[0]
    used = (num_rows - begin + chunk - 1) // chunk
    if mask is not None and until_last:
        used = jnp.max(jnp.where(mask, jnp.arange(num_rows) + chunk - begin, 0)) // chunk
    return lax.fori_loop(0, used, lambda number, total: body(total, number)[0], zero)


def _nothing(chunk_sum: Function, rows: Tree, chunk: int) -> Tree:
    """The sum of no chunks."""
    few = lambda x: jax.ShapeDtypeStruct((chunk, *x.shape[1:]), x.dtype)  # noqa: E731
    like = jax.eval_shape(chunk_sum, jax.tree.map(few, rows), jax.ShapeDtypeStruct((chunk,), bool))
    with jax.enable_x64(True):
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)


def evenly(chunk: int, likely: int | None) -> int:
    """Rows of a chunk, at most `chunk`, so that a few equal ones hold the first `likely` places."""
    return chunk if likely is None else -(-likely // -(-likely // chunk))


def _chunk_rows(size: int, num_rows: int, strategy: str) -> int:
    """Rows whose statistics are held at once: bounded memory, by the size of one and the kind of device."""
    if strategy == "vmap":
        return min(num_rows, _MOST_ROWS)
    largest, numbers = (_INT32_GRIDS[0][0], 2**17) if jax.default_backend() == "cpu" else (_MOST_ROWS, 2**28)
    chunk = max(4, min(largest, numbers // size))
    return min(chunk, num_rows) if strategy == "auto" else min(chunk, max(1, num_rows // 2))


def _sum_rows(rows: Tree, bits: int | None) -> Tree:
    """Sum rows of norm at most 1 over the leading axis, rounded to a grid so that the sum is exact: in steps of 2^-_BITS,
    int64."""
    with jax.enable_x64(True):
        if rows.dtype == jnp.float64 or bits is None:
            steps = jnp.round(rows.astype(jnp.float64) * 2.0**_BITS)  # XLA undoes (x + large) - large
            return jnp.sum(steps, axis=0).astype(jnp.int64)
        if bits == 21:  # in [4, 8) a float32 is a multiple of 2^-21: its bits count the steps
            anchor = np.float32(1.5 * 2**2)
            steps = lax.bitcast_convert_type(rows + anchor, jnp.int32) - anchor.view(np.int32)
        else:
            steps = jnp.round(rows * np.float32(2**bits)).astype(jnp.int32)
        return jnp.sum(steps, axis=0, dtype=jnp.int32).astype(jnp.int64) * 2 ** (_BITS - bits)


def _sum_whole_rows(rows: Tree, steps: object) -> jax.Array:
    """The same with `steps` grid points to a norm of 1: whole numbers, int64."""
    with jax.enable_x64(True):
        return jnp.sum(jnp.round(rows.astype(jnp.float64) * steps).astype(jnp.int64), axis=0)
