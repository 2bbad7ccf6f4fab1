"""The rows of one access: those that a step draws, and of these the ones that a device has.

Every device makes the same draws from the same key and keeps those of its own rows, in their order. So which rows a step
looks at depends on no number of devices, and each is looked at by one device only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpppl.data.disk import OnDisk
from dpppl.data.rows import Placement, Sharded, devices_of
from dpppl.subsampling import Subsampling
from dpppl.types import Function, Scalar, Tree


@dataclass(frozen=True)
class Blocks:
    """Places of rows that are fetched block by block.

    - **length** - how many places there are.
    - **at_once** - how many are best fetched at once.
    - **like** - shapes and types of what is fetched, of one place.
    - **fetch** - `fetch(start, size)`: what stands in so many places (size, ...), and (size,) which of these count, or None: all.
    - **mask** - (length,) which places count, where that is known before they are fetched.
    - **likely** - how many of the first usually hold all that count; None: all."""

    length: int
    at_once: int
    like: Tree
    fetch: Callable[[Scalar, int], tuple[Tree, Tree]]
    mask: jax.Array | None = None
    likely: int | None = None

    def size(self, chunk: int) -> int:
        """How many places to fetch at once: whole chunks, two or more, so that XLA compiles one as it does in memory; or all."""
        most = self.at_once if self.likely is None else min(self.at_once, self.likely + chunk - 1)
        return min(self.length, max(2, most // chunk) * chunk)


class Drawn(NamedTuple):
    """The rows of a step, on this device.

    - **rows** - what `fetch` makes rows of, a pytree of arrays (B, ...).
    - **mask** - (B,) which of them count; None: all.
    - **fetch** - makes rows.
    - **likely** - how many of the first usually hold all that count; None: all. Chunks beyond the last that counts are left out.
    - **among** - how many there are on all devices together, which sizes of chunks depend on; None: B.
    - **blocks** - of rows on disk: they give what `fetch` makes rows of, and `rows` and `mask` are None."""

    rows: Tree
    mask: jax.Array | None = None
    fetch: Function = lambda rows: rows
    likely: int | None = None
    among: int | None = None
    blocks: Blocks | None = None

    @property
    def length(self) -> int:
        """How many there are on all devices together."""
        found: int = jax.tree.leaves(self.rows)[0].shape[0] if self.among is None else self.among
        return found


def rows_of_step(
    subsampling: Subsampling, key: jax.Array, step: jax.Array, rows: Tree, number: str | None, placement: Placement | None
) -> Drawn:  # fmt: skip
    """Those of `rows`, arrays (length, ...), that count in this step. `number`: a name for a row's place in it.

    With a `placement` this is run by one of several devices, and `rows` are its own."""
    if isinstance(placement, OnDisk):
        return _on_disk(subsampling, key, step, number, placement)
    length = jax.tree.leaves(rows)[0].shape[0]
    devices = devices_of(placement)
    num_rows = length if devices is None else devices.num_rows
    if devices is None:
        index, mask = subsampling.draw(key, num_rows, step)
        places = jnp.arange(num_rows if index is None else index.shape[0], dtype=jnp.int32)
        among = places.shape[0]
    else:
        first = devices.index().astype(jnp.int32) * length
        index, mask = subsampling.draw_part(key, num_rows, step, first, length)
        if index is None:
            places, among = first + jnp.arange(length, dtype=jnp.int32), num_rows
            if length * devices.devices > num_rows:
                mask = places < num_rows if mask is None else mask & (places < num_rows)
        else:
            among = index.shape[0]
            index, mask, places = _own(index, mask, first, length)
    if index is not None and mask is not None:
        index = jnp.where(mask, index, 0)  # places that do not count read one row

    def fetch(part: Tree) -> Tree:
        index_or_rows, places = part
        found = index_or_rows
        if index is not None:
            found = jax.tree.map(lambda x: x.at[index_or_rows].get(mode="promise_in_bounds"), rows)
        return found if number is None else {**found, number: places}

    likely = None if index is None else subsampling.likely_places(num_rows)
    return Drawn((rows if index is None else index, places), mask, fetch, likely, among)


def _on_disk(subsampling: Subsampling, key: jax.Array, step: jax.Array, number: str | None, placement: OnDisk) -> Drawn:
    """The same of rows that are read when they are needed: nothing as long as the data is made on the way."""
    num_rows = placement.num_rows
    kind = jax.eval_shape(lambda: subsampling.draw(key, num_rows, step))

    def fetch(part: Tree) -> Tree:
        rows, places = part
        return rows if number is None else {**rows, number: places}

    def rows_from(start: Tree, size: int) -> Tree:
        places = start + jnp.arange(size, dtype=jnp.int32)
        if kind.mask is None:
            mask = None
        elif by_parts:
            mask = subsampling.draw_part(key, num_rows, step, start, size).mask
        else:
            mask = lax.dynamic_slice_in_dim(whole, start, size)
        return (placement.block(start, size), places), mask

    like = placement.rows_like(1), jax.ShapeDtypeStruct((1,), jnp.int32)
    if kind.index is None:
        by_parts = type(subsampling).draw_part is not Subsampling.draw_part
        whole: Tree = None if by_parts else subsampling.draw(key, num_rows, step).mask
        at_once = placement.at_once if kind.mask is None else placement.at_once_to_draw
        return Drawn(None, None, fetch, None, num_rows, Blocks(num_rows, at_once, like, rows_from))
    index, mask = subsampling.draw(key, num_rows, step)
    assert index is not None and mask is not None
    index, length = jnp.where(mask, index, 0), index.shape[0]

    def rows_drawn(start: Scalar, size: int) -> Tree:
        part = lambda x: lax.dynamic_slice_in_dim(x, start, size)  # noqa: E731
        return (placement.drawn(part(index)), start + jnp.arange(size, dtype=jnp.int32)), part(mask)

    likely = subsampling.likely_places(num_rows)
    return Drawn(
        None, None, fetch, likely, length, Blocks(length, placement.at_once, like, rows_drawn, mask, likely or length)
    )


def _own(index: jax.Array, mask: jax.Array | None, first: jax.Array, length: int) -> tuple[jax.Array, ...]:
    """Of drawn rows those from `first` on, `length` many: their places there, in order, which of these count, and their places
    among all that were drawn."""
    own = (index >= first) & (index - first < length)
    own = own if mask is None else own & mask
    slots = jnp.where(own, jnp.cumsum(own, dtype=jnp.int32) - 1, index.shape[0])
    put = lambda values: jnp.zeros(index.shape, jnp.int32).at[slots].set(values, mode="drop", unique_indices=True)  # noqa: E731
    places = jnp.arange(index.shape[0], dtype=jnp.int32)
    return put(index - first), places < jnp.sum(own, dtype=jnp.int32), put(places)


def from_first(function: Function, placement: Sharded | None) -> Tree:
    """The first device's `function()`, a pytree of arrays, on all devices: one noise, whatever arithmetic the others have."""
    if placement is None:
        return function()
    like = jax.eval_shape(function)
    with jax.enable_x64(True):
        nothing = lambda: jax.tree.map(jnp.zeros_like, like)  # noqa: E731
        return placement.total(lax.cond(placement.index() == 0, function, nothing))
