"""Reading for a run: files are open while a program runs, and a thread reads ahead. Host callbacks use NumPy only."""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpppl.data.sources import Array, Source, fitted
from dpppl.errors import DataReadError

AHEAD = 2
"""How many blocks are read before they are asked for."""

_open: dict[Any, "Reading"] = {}
_lock = threading.Lock()


class Reading:
    """Open tables of a placement, read by a thread of their own.

    - **placement** - the placement.
    """

    def __init__(self, placement: Any) -> None:
        self.users = 0
        self.error: str | None = None
        self._number = placement.num_rows
        self._blocks: dict[tuple[int, int], Future[Any]] = {}
        tables: dict[Any, list[tuple[str, Source]]] = {}
        for label, source, _ in placement.sources:
            tables.setdefault(source.table, []).append((label, source))
        self._types = {label: dtype for label, _, dtype in placement.sources}
        self._tables: list[tuple[list[str], Any]] = []
        try:
            for table, parts in tables.items():
                opened = table.opened([source for _, source in parts])
                self._tables.append(([label for label, _ in parts], opened))
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

    def _submit(self, start: int, size: int) -> Any:
        return self._thread.submit(self._all, lambda table: table.read(start, size))

    def _all(self, act: Callable[[Any], Any]) -> dict[str, Array]:
        found = {}
        with np.errstate(all="ignore"):
            for labels, table in self._tables:
                for label, rows in zip(labels, act(table)):
                    found[label] = fitted(rows, self._types[label])  # a view, which JAX copies
        return found

    def close(self) -> None:
        """Wait for what is being read, and close all files."""
        if hasattr(self, "_thread"):
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._blocks.clear()
        for _, table in self._tables:
            table.close()


@contextlib.contextmanager
def reading(placement: Any) -> Iterator[None]:
    """Inside, the tables of a placement are open. Raises DataReadError for what could not be read, when it ends, too."""
    with _lock:
        try:
            found = _open.get(placement) or Reading(placement)
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


def _told(error: BaseException) -> str:
    """The cause of an error, without any value: the text of another library's error may hold some."""
    what = str(error) if isinstance(error, OSError) else f"a {type(error).__name__}"
    return (
        f"rows could not be read: {what}. Earlier charges stay, nothing of what was then computed is "
        "returned. Mend the data and run again; a run with checkpoint= goes on where it was."
    )


def _called(placement: Any, act: Callable[[Reading], dict[str, Array]]) -> dict[str, Array]:
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
    - **size** - how many rows.
    """

    placement: Any
    size: int

    def __call__(self, start: Any) -> dict[str, Array]:
        first = int(np.asarray(start))
        return _called(self.placement, lambda reading: reading.block(first, self.size))


@dataclass(frozen=True)
class Draw:
    """The callback for rows of a placement by their numbers.

    - **placement** - the placement.
    """

    placement: Any

    def __call__(self, index: Any) -> dict[str, Array]:
        numbers = np.asarray(index)
        return _called(self.placement, lambda reading: reading.drawn(numbers))


def contents_of(placement: Any) -> dict[str, Array]:
    """A digest of all rows of each argument, as bytes; each row is read once."""
    digests = {label: hashlib.sha256(f"{rows.dtype}".encode()) for label, rows in placement.rows_like(1).items()}
    with reading(placement):
        for start in range(0, placement.num_rows, placement.at_once):
            size = min(placement.at_once, placement.num_rows - start)
            for label, rows in _called(placement, lambda reading: reading.block(start, size)).items():  # noqa: B023
                digests[label].update(np.ascontiguousarray(rows).data)
    return {label: np.frombuffer(found.digest(), np.uint8) for label, found in digests.items()}
