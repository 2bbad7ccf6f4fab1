"""Sources in `.npy` files and other memory-mapped arrays: blocks of rows by `pread`, rows drawn by a memory map."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpppl.data.sources import Array, FileState, Opened, Source, Table
from dpppl.errors import ConfigurationError


@dataclass(frozen=True)
class Records(Table):
    """Equally long records of a file, one after the other.

    - **file** - the file.
    - **first** - where the first record begins, in bytes.
    - **size** - of a record, in bytes.
    - **num_rows** - how many there are."""

    file: FileState
    first: int
    size: int
    num_rows: int

    def opened(self, sources: Sequence[Source]) -> Opened:
        return _OpenedRecords(self, [source.key for source in sources])


@dataclass(frozen=True)
class Field:
    """Where in a record the values of a source lie.

    - **offset**, **strides** - in bytes.
    - **shape**, **dtype** - of the values of one record.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    def of(self, records: Array) -> Array:
        """A view (n, ...) of records (n, size) of bytes."""
        strides = (records.shape[1], *self.strides)
        return np.ndarray((len(records), *self.shape), self.dtype, records.data, self.offset, strides)


class NpySource(Source):
    """A part of the records of a file. `source[:, key]` is what NumPy would index behind the axis of rows, as a source."""

    def __getitem__(self, key: Any) -> Source:
        rows = key[0] if isinstance(key, tuple) and key else key
        if not (isinstance(rows, slice) and rows == slice(None)):
            raise ConfigurationError(
                "a source keeps all of its rows: index behind them, source[:, 0] or source[:, 1:]."
            )
        table: Any = self.table
        whole = np.memmap(table.file.path, np.uint8, "r", table.first, (table.num_rows, table.size))
        found = self.key.of(whole)[key]
        if not np.may_share_memory(found, whole):
            raise ConfigurationError("columns of a source are chosen by numbers and slices, not by lists of numbers.")
        return _source(table, found, found.ctypes.data - whole.ctypes.data)


def of_memmap(array: Any) -> Source:
    """The rows of a NumPy memory map, or of a view of one: read from its file, never copied as a whole.

    Raises ConfigurationError where the file does not hold rows one after the other, or not what the map shows."""
    cure = "copy it by numpy.array(x) if it fits into memory, or numpy.save it and pass dpppl.from_disk(path)"
    base = array
    while isinstance(base.base, np.memmap):
        base = base.base
    if not isinstance(base.filename, str | os.PathLike) or not os.path.exists(base.filename):
        raise ConfigurationError(f"a memory map without a file that has a name cannot be read: {cure}.")
    if base.mode == "c":
        raise ConfigurationError(f"a memory map of mode 'c' shows changes that its file does not hold: {cure}.")
    if base.mode in ("r+", "w+"):
        base.flush()
    if not array.ndim or not len(array):
        raise ConfigurationError("a memory map without rows: its leading axis has length 0, or it has none.")
    size = array.strides[0] if len(array) > 1 else array.dtype.itemsize * max(1, array.size)
    reach = sum((n - 1) * s for n, s in zip(array.shape[1:], array.strides[1:])) + array.dtype.itemsize
    begin = base.offset + (array.ctypes.data - base.ctypes.data)
    # records begin where those of the whole array do, so that its columns are parts of one table
    inside = (begin - base.offset) % size if 0 < size else 0
    file = FileState.of(base.filename)
    beyond = begin - inside + len(array) * size > file.size
    if size <= 0 or min(array.strides, default=0) < 0 or inside + reach > size or beyond:
        raise ConfigurationError(
            "the rows of a memory map do not lie one after the other in its file (order='F', a transpose, reversed, or every "
            f"so-many-th row): {cure}."
        )
    table = Records(file, begin - inside, size, len(array))
    return _source(table, array, inside)


def _source(table: Records, array: Any, offset: int) -> Source:
    field = Field(offset, array.shape[1:], array.strides[1:], array.dtype)
    return NpySource(table, field, array.shape, array.dtype)


class _OpenedRecords(Opened):
    def __init__(self, table: Records, fields: Sequence[Field]) -> None:
        self._table, self._fields = table, fields
        self._map: Any = None
        self._file = os.open(table.file.path, os.O_RDONLY)
        try:
            table.file.check(self._file)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        except OSError:
            self.close()
            raise

    def read(self, start: int, count: int) -> list[Array]:
        table = self._table
        records = np.empty((count, table.size), np.uint8)
        left, place = records.reshape(-1).data, table.first + start * table.size
        while left:
            done = os.preadv(self._file, [left], place)
            if not done:
                raise OSError(f"{table.file.path} ends before its last row")
            left, place = left[done:], place + done
        return [field.of(records) for field in self._fields]

    def take(self, indices: Array) -> list[Array]:
        table = self._table
        table.file.check(self._file)  # a map of a file that was cut off ends the process where it ends
        if self._map is None:
            records = np.dtype((np.void, table.size))
            self._map = np.memmap(table.file.path, records, "r", table.first, (table.num_rows,))
        found = np.empty((len(indices), table.size), np.uint8)
        np.take(self._map, indices, out=found.view(self._map.dtype)[:, 0], mode="clip")
        return [field.of(found) for field in self._fields]

    def close(self) -> None:
        self._map = None
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
