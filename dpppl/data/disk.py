"""Rows that are read from storage inside an access: their placement, and a thread that reads ahead.

Files are open while a program runs. Host callbacks use NumPy only.
"""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import jax
import numpy as np

from dpppl.data.files import of_memmap
from dpppl.data.rows import Rows, placement_of
from dpppl.data.sources import Array, InMemory, Items, Source, fitted
from dpppl.errors import ConfigurationError, DataReadError
from dpppl.types import Foreign, Function, Tree

MOST_ROWS = 2**31 - 2**20
"""Numbers of rows are 32-bit integers."""
OWN_CODE = (
    "the data set's own code raised an error, or gave another number of items than it was asked for (what it says may tell of a "
    "row, so it is left out; to see it, ask it for each item: for number in range(len(dataset)): dataset[number])"
)
"""The cause of every error of a data set that gives items by number."""
AHEAD = 2
"""How many blocks are read before they are asked for."""
_BLOCK_BYTES, _BLOCK_ROWS = 2**22, 2**16


@dataclass(frozen=True)
class OnDisk:
    """Where rows lie that are read when an access needs them.

    - **num_rows** - how many rows there are.
    - **sources** - of each argument its label, its source, and the type that JAX holds its values in.

    In a program an array (N, 0, ...), which holds no numbers, stands for the rows of an argument."""

    num_rows: int
    sources: tuple[tuple[str, Source, np.dtype], ...] = field(repr=False)

    over = None

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
        """Rows that are read at once where a step draws for each row; `Poisson` draws for blocks of 65,536 rows."""
        return max(1, min(_BLOCK_ROWS, 8 * _BLOCK_BYTES // max(1, self.row_bytes)))

    def rows_like(self, count: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of this number of rows, by argument, as JAX holds them."""
        return {label: jax.ShapeDtypeStruct((count, *source.shape[1:]), dtype) for label, source, dtype in self.sources}

    def drawn_by(self, subsampling: Tree) -> float | None:
        """How many rows an access reads one by one, on average; None where it reads all."""
        drawn = jax.eval_shape(lambda: subsampling.draw(jax.random.key(0), self.num_rows))
        return None if drawn.index is None else float(subsampling.rate * self.num_rows)

    def check(self, subsampling: object) -> None:
        """Raise ConfigurationError where an access would draw rows one by one, and a table cannot give them."""
        reasons = [source.table.why_not_drawn for _, source, _ in self.sources if source.table.why_not_drawn]
        if reasons and self.drawn_by(subsampling) is not None:
            raise ConfigurationError(reasons[0])

    def describe(self) -> str:
        """One line for the report."""
        return "private rows are read from disk while a run needs them"

    def block(self, start: object, size: int) -> Tree:
        """Rows `start`, ..., `start + size - 1`, by argument: inside an access only."""
        read = Block(self, size)
        return jax.pure_callback(read, self.rows_like(size), start, vmap_method="sequential")

    def drawn(self, index: jax.Array) -> Tree:
        """Rows of these numbers (n,), by argument: inside an access only."""
        return jax.pure_callback(Draw(self), self.rows_like(index.shape[0]), index, vmap_method="broadcast_all")


def of_row(array: jax.Array, placement: object) -> jax.ShapeDtypeStruct:
    """Shape and type of a row of an array (N, ...), or of what stands for one (N, 0, ...)."""
    return jax.ShapeDtypeStruct(array.shape[1 + isinstance(placement, OnDisk) :], array.dtype)


def in_memory(rows: Tree, what: str) -> Tree:
    """`rows` that are arrays. Raises ConfigurationError for rows on disk, which `what` does not take."""
    if isinstance(placement_of(rows), OnDisk):
        raise ConfigurationError(f"{what} needs its rows in memory; these are on disk: load as many as fit, as arrays.")
    return rows


def on_disk(arrays: Mapping[str, Foreign], mesh: jax.sharding.Mesh | None) -> Rows | None:
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


def _source(label: str, array: jax.Array) -> Source:
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


_open: dict[OnDisk, "TableReader"] = {}
_lock = threading.Lock()


class TableReader:
    """Open tables of a placement, read by a thread of their own.

    - **placement** - the placement."""

    def __init__(self, placement: OnDisk) -> None:
        self.users = 0
        self.error: str | None = None
        self._number = placement.num_rows
        self._blocks: dict[tuple[int, int], Future[dict[str, Array]]] = {}
        tables: dict[Foreign, list[tuple[str, Source]]] = {}
        for label, source, _ in placement.sources:
            tables.setdefault(source.table, []).append((label, source))
        self._types = {label: dtype for label, _, dtype in placement.sources}
        self._tables: list[tuple[list[str], Foreign, bool]] = []
        try:
            for table, parts in tables.items():
                opened = table.opened([source for _, source in parts])
                self._tables.append(([label for label, _ in parts], opened, isinstance(table, Items)))
        except BaseException:
            self.close()
            raise
        self._thread = ThreadPoolExecutor(1, "dpppl-reader")

    def block(self, start: int, size: int) -> dict[str, Array]:
        """A block of rows by argument; those that follow are read meanwhile, after the last ones the first ones."""
        found = self._blocks.pop((start, size), None) or self._submit(start, size)
        following = start
        for _ in range(AHEAD):
            following = min(following + size, self._number - size) if following + size < self._number else 0
            if (following, size) not in self._blocks and following != start:
                self._blocks[following, size] = self._submit(following, size)
        return dict(found.result())

    def drawn(self, index: Array) -> dict[str, Array]:
        """Rows by argument, (*index.shape, ...)."""
        flat = index.reshape(-1)
        found = self._all(lambda table: table.take(flat))
        return {label: rows.reshape(*index.shape, *rows.shape[1:]) for label, rows in found.items()}

    def _submit(self, start: int, size: int) -> Future[dict[str, Array]]:
        return self._thread.submit(self._all, lambda table: table.read(start, size))

    def _all(self, act: Function) -> dict[str, Array]:
        found = {}
        with np.errstate(all="ignore"):
            for labels, table, runs_code in self._tables:
                for label, rows in zip(labels, _without_its_words(act, table) if runs_code else act(table)):
                    found[label] = fitted(rows, self._types[label])  # a view, which JAX copies
        return found

    def close(self) -> None:
        """Wait for what is being read, and close all files."""
        if hasattr(self, "_thread"):
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._blocks.clear()
        for _, table, _ in self._tables:
            table.close()


@contextlib.contextmanager
def reading(placement: OnDisk) -> Iterator[None]:
    """Inside, the tables of a placement are open. Raises DataReadError for what could not be read, when it ends, too."""
    with _lock:
        try:
            found = _open.get(placement) or TableReader(placement)
        except Exception as error:
            raise DataReadError(_told(error)) from None
        _open[placement] = found
        found.users += 1
    try:
        yield
    except Exception:
        if found.error is None:
            raise
    finally:
        with _lock:
            found.users -= 1
            if not found.users:
                del _open[placement]
                found.close()
    if found.error is not None:
        raise DataReadError(found.error) from None


def _without_its_words(act: Function, table: Foreign) -> list[Array]:
    """`act(table)` of a data set's own code: its errors may hold a row's values, in words, kinds, notes and causes."""
    try:
        return act(table)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None
    except BaseException:  # also SystemExit, whose words JAX would print
        raise DataReadError(OWN_CODE) from None


def _told(error: BaseException) -> str:
    """The cause of an error, without any value: the text of another library's error may hold some."""
    what = str(error) if isinstance(error, OSError) else "the files are damaged"
    return (
        f"rows could not be read: {what}. Earlier charges stay, nothing of what was then computed is "
        "returned. Mend the data and run again; a run with checkpoint= goes on where it was."
    )


def _called(placement: OnDisk, act: Callable[[TableReader], dict[str, Array]]) -> dict[str, Array]:
    """Run a callback with the running program's reader or, outside a program, with one of its own."""
    found = _open.get(placement)
    if found is None:
        with reading(placement):
            return _called(placement, act)
    try:
        return act(found)
    except Exception as error:
        found.error = found.error or _told(error)
    raise DataReadError(found.error) from None


@dataclass(frozen=True)
class Block:
    """The callback for consecutive rows of a placement.

    - **placement** - the placement.
    - **size** - how many rows."""

    placement: OnDisk
    size: int

    def __call__(self, start: object) -> dict[str, Array]:
        first = int(np.asarray(start))
        return _called(self.placement, lambda reading: reading.block(first, self.size))


@dataclass(frozen=True)
class Draw:
    """The callback for rows of a placement by their numbers.

    - **placement** - the placement."""

    placement: OnDisk

    def __call__(self, index: np.ndarray) -> dict[str, Array]:
        numbers = np.asarray(index)
        return _called(self.placement, lambda reading: reading.drawn(numbers))


def contents_of(placement: OnDisk) -> dict[str, Array]:
    """A digest of all rows of each argument, as bytes; each row is read once."""
    digests = {label: hashlib.sha256(f"{rows.dtype}".encode()) for label, rows in placement.rows_like(1).items()}
    with reading(placement):
        for start in range(0, placement.num_rows, placement.at_once):
            size = min(placement.at_once, placement.num_rows - start)
            for label, rows in _called(placement, lambda reading: reading.block(start, size)).items():  # noqa: B023
                digests[label].update(np.ascontiguousarray(rows).data)
    return {label: np.frombuffer(found.digest(), np.uint8) for label, found in digests.items()}
