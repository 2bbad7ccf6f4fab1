"""The rows of one access: those that a step draws, and of these the ones that a device has.

Every device makes the same draws from the same key and keeps those of its own rows, in their order. So which rows a step
looks at depends on no number of devices, and each is looked at by one device only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpppl.subsampling import Subsampling


class Drawn(NamedTuple):
    """What a step looks at, on this device.

    - **rows** - what `fetch` makes rows of, a pytree of arrays (B, ...).
    - **mask** - (B,) which of them count; None: all.
    - **fetch** - makes rows.
    - **likely** - how many of the first usually hold all that count; None: all.
    - **among** - how many there are on all devices together, which sizes of chunks depend on."""

    rows: Any
    mask: Any
    fetch: Callable[[Any], Any]
    likely: int | None
    among: int


def drawn(subsampling: Subsampling, key: Any, step: Any, rows: Any, number: str | None, placement: Any) -> Drawn:
    """Those of `rows`, arrays (length, ...), that count in this step. `number`: a name for a row's place in it.

    With a `placement` this is run by one of several devices, and `rows` are its own."""
    length = jax.tree.leaves(rows)[0].shape[0]
    num_rows = length if placement is None else placement.num_rows
    if placement is None:
        index, mask = subsampling.draw(key, num_rows, step)
        places = jnp.arange(num_rows if index is None else index.shape[0], dtype=jnp.int32)
        among = places.shape[0]
    else:
        first = placement.index().astype(jnp.int32) * length
        index, mask = subsampling.draw_part(key, num_rows, step, first, length)
        if index is None:
            places, among = first + jnp.arange(length, dtype=jnp.int32), num_rows
            if length * placement.devices > num_rows:
                mask = places < num_rows if mask is None else mask & (places < num_rows)
        else:
            among = index.shape[0]
            index, mask, places = _own(index, mask, first, length)

    def fetch(part: Any) -> Any:
        index_or_rows, places = part
        found = index_or_rows
        if index is not None:
            found = jax.tree.map(lambda x: x.at[index_or_rows].get(mode="promise_in_bounds"), rows)
        return found if number is None else {**found, number: places}

    likely = None if index is None else subsampling.likely_places(num_rows)
    return Drawn((rows if index is None else index, places), mask, fetch, likely, among)


def _own(index: Any, mask: Any, first: Any, length: int) -> tuple[Any, Any, Any]:
    """Of drawn rows those from `first` on, `length` many: their places there, in order, which of these count, and their places
    among all that were drawn."""
    own = (index >= first) & (index - first < length)
    own = own if mask is None else own & mask
    slots = jnp.where(own, jnp.cumsum(own, dtype=jnp.int32) - 1, index.shape[0])
    put = lambda values: jnp.zeros(index.shape, jnp.int32).at[slots].set(values, mode="drop", unique_indices=True)  # noqa: E731
    places = jnp.arange(index.shape[0], dtype=jnp.int32)
    return put(index - first), places < jnp.sum(own, dtype=jnp.int32), put(places)


def total_of(values: Any, placement: Any) -> Any:
    """The sum over devices of what each has summed over its rows."""
    return values if placement is None else placement.total(values)


def drawn_once(draw: Callable[[], Any], placement: Any) -> Any:
    """What the first of the devices draws, on all of them: one noise, whatever arithmetic the others have."""
    if placement is None:
        return draw()
    like = jax.eval_shape(draw)
    with jax.enable_x64(True):
        first = placement.index() == 0
        return placement.total(lax.cond(first, draw, lambda: jnp.zeros(like.shape, like.dtype)))
