"""Rows that are read from storage, inside an access, when it needs them: their placement."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from dpppl.data import disk_reading
from dpppl.data.rows import Rows, placement_of
from dpppl.data.sources import Source
from dpppl.data.sources_items import InMemory
from dpppl.data.sources_npy import of_memmap
from dpppl.errors import ConfigurationError

MOST_ROWS = 2**31 - 2**20
"""Numbers of rows are 32-bit integers."""
_BLOCK_BYTES, _BLOCK_ROWS = 2**22, 2**16


@dataclass(frozen=True)
class OnDisk:
    """Where rows lie that are read when an access needs them.

    - **num_rows** - how many rows there are.
    - **sources** - of each argument its label, its source, and the type that JAX holds its values in.

    In a program an array (N, 0, ...), which holds no numbers, stands for the rows of an argument."""

    num_rows: int
    sources: tuple[tuple[str, Source, np.dtype[Any]], ...] = field(repr=False)

    over = None
    devices = 1

    @property
    def row_bytes(self) -> int:
        """A row's size in memory, in bytes."""
        return sum(x.dtype.itemsize * int(np.prod(x.shape)) for x in self.rows_like(1).values())

    @property
    def at_once(self) -> int:
        """How many rows are best read at once."""
        return max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, self.row_bytes)))

    @property
    def at_once_to_draw(self) -> int:
        """The same where a step draws for each row, which `Poisson` does by blocks of 65,536 rows."""
        return max(1, min(_BLOCK_ROWS, 8 * _BLOCK_BYTES // max(1, self.row_bytes)))

    def rows_like(self, count: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of this number of rows, by argument, as JAX holds them."""
        return {label: jax.ShapeDtypeStruct((count, *source.shape[1:]), dtype) for label, source, dtype in self.sources}

    def drawn_by(self, subsampling: Any) -> float | None:
        """How many rows an access reads one by one, on average; None where it reads all."""
        drawn = jax.eval_shape(lambda: subsampling.draw(jax.random.key(0), self.num_rows))
        return None if drawn.index is None else float(subsampling.rate * self.num_rows)

    def check(self, subsampling: Any) -> None:
        """Raise ConfigurationError where an access would draw rows one by one, and a table cannot give them."""
        reasons = [source.table.why_not_drawn for _, source, _ in self.sources if source.table.why_not_drawn]
        if reasons and self.drawn_by(subsampling) is not None:
            raise ConfigurationError(reasons[0])

    def describe(self) -> str:
        """One line for the report."""
        return "private rows are read from disk while a run needs them"

    def block(self, start: Any, size: int) -> Any:
        """Rows `start`, ..., `start + size - 1`, by argument: inside an access only."""
        read = disk_reading.Block(self, size)
        return jax.pure_callback(read, self.rows_like(size), start, vmap_method="sequential")

    def drawn(self, index: Any) -> Any:
        """Rows of these numbers (n,), by argument: inside an access only."""
        return jax.pure_callback(
            disk_reading.Draw(self), self.rows_like(index.shape[0]), index, vmap_method="broadcast_all"
        )


def of_row(array: Any, placement: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of a row of an array (N, ...), or of what stands for one (N, 0, ...)."""
    return jax.ShapeDtypeStruct(array.shape[1 + isinstance(placement, OnDisk) :], array.dtype)


def in_memory(rows: Any, what: str) -> Any:
    """`rows` that are arrays. Raises ConfigurationError for rows on disk, which `what` does not take."""
    if isinstance(placement_of(rows), OnDisk):
        raise ConfigurationError(
            f"{what} needs its rows in memory, and these are on disk: load as many as fit, as arrays."
        )
    return rows


def taken(rows: Any, numbers: Any) -> Any:
    """Rows by their numbers, on the host: never what may leave it."""
    if not isinstance(placement_of(rows), OnDisk):
        return jax.tree.map(lambda x: x[numbers], rows)
    return disk_reading.Draw(rows.placement)(np.asarray(numbers))


def on_disk(arrays: Mapping[str, Any], mesh: Any) -> Rows | None:
    """`arrays` by argument, if one of them is a source or a memory map: then all are read as they are needed."""
    if not any(isinstance(x, Source | np.memmap) for x in arrays.values()):
        return None
    if mesh is not None:
        raise ConfigurationError("rows from disk are read for one device: leave mesh= out.")
    if jax.process_count() > 1:
        raise ConfigurationError(
            "rows from disk are read by one process, and this is one of several: load its rows as arrays."
        )
    sources = {label: _source(label, x) for label, x in arrays.items()}
    num_rows = next(iter(sources.values())).num_rows
    if num_rows > MOST_ROWS:
        raise ConfigurationError(f"{num_rows:,} rows are more than numbers of 32 bits can tell apart, {MOST_ROWS:,}.")
    types = {
        label: jax.dtypes.canonicalize_dtype(source.dtype) for label, source in sources.items()
    }  # as jnp.asarray's
    placement = OnDisk(num_rows, tuple((label, source, types[label]) for label, source in sources.items()))
    stand_ins = {  # made by NumPy: a program of XLA's would loop over rows
        label: jax.device_put(np.zeros((num_rows, 0, *x.shape[1:]), x.dtype))
        for label, x in placement.rows_like(1).items()
    }
    return Rows(stand_ins, placement)


def _source(label: str, array: Any) -> Source:
    if isinstance(array, Source):
        return array
    if isinstance(array, np.memmap):
        try:
            return of_memmap(array)
        except ConfigurationError as error:
            raise ConfigurationError(f"argument '{label}': {error}") from None
    if isinstance(array, jax.core.Tracer):
        raise ConfigurationError(f"argument '{label}' is traced, and others are read from disk: pass it as it is.")
    return InMemory.source(np.asarray(array))
