"""Sources in files: `.npy` and other memory maps, Arrow (IPC and Feather), Hugging Face's data sets, Parquet for full passes.

Blocks of a memory-mapped array are read by `pread`, and drawn rows through the memory map.
"""

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpppl.data.entries import NUMBERS, optional
from dpppl.data.sources import Array, Columns, FileState, Opened, Source, Table, arranged, columns_of
from dpppl.errors import ConfigurationError
from dpppl.types import Foreign


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
    - **shape**, **dtype** - of the values of one record."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    def of(self, records: Array) -> Array:
        """A view (n, ...) of records (n, size) of bytes."""
        strides = (records.shape[1], *self.strides)
        return np.ndarray((len(records), *self.shape), self.dtype, records.data, self.offset, strides)


class NpySource(Source):
    """A part of the records of a file. `source[:, key]` is what NumPy would index behind the axis of rows, as a source."""

    def __getitem__(self, key: object) -> Source:
        rows = key[0] if isinstance(key, tuple) and key else key
        if not (isinstance(rows, slice) and rows == slice(None)):
            raise ConfigurationError("a source keeps all its rows: index behind them, source[:, 0] or source[:, 1:].")
        table: Foreign = self.table
        whole = np.memmap(table.file.path, np.uint8, "r", table.first, (table.num_rows, table.size))
        found = self.key.of(whole)[key]
        if not np.may_share_memory(found, whole):
            raise ConfigurationError("columns of a source are chosen by numbers and slices, not by lists of numbers.")
        return _source(table, found, found.ctypes.data - whole.ctypes.data)


def of_memmap(array: Foreign) -> Source:
    """The rows of a NumPy memory map, or of a view of one: read from its file, never copied as a whole.

    Raises ConfigurationError where the file does not hold rows one after the other, or not what the map shows."""
    cure = (
        "copy it by numpy.array(x) if it fits into memory, or numpy.save(path, numpy.ascontiguousarray(x)) and pass "
        "dpppl.from_disk(path)"
    )
    base = array
    while isinstance(base.base, np.memmap):
        base = base.base
    if not isinstance(base.filename, str | os.PathLike) or not os.path.exists(base.filename):
        raise ConfigurationError(f"a memory map without a file that has a name cannot be read: {cure}.")
    if base.mode == "c":
        raise ConfigurationError(f"a memory map of mode 'c' shows changes that its file does not hold: {cure}.")
    if base.mode in ("r+", "w+"):
        base.flush()
    if array.dtype.kind not in NUMBERS + "c":
        raise ConfigurationError(
            "the rows of a memory map are no numbers: code text as numbers, and give a field of records, "
            "dpppl.from_disk(numpy.load(path, mmap_mode='r')['field'])."
        )
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


def _source(table: Records, array: np.ndarray, offset: int) -> Source:
    field = Field(offset, array.shape[1:], array.strides[1:], array.dtype)
    return NpySource(table, field, array.shape, array.dtype.newbyteorder("="))


class _OpenedRecords(Opened):
    def __init__(self, table: Records, fields: Sequence[Field]) -> None:
        self._table, self._fields = table, fields
        self._map: Foreign = None
        self._file = open(table.file.path, "rb", buffering=0)
        try:
            table.file.check(self._file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        except OSError:
            self.close()
            raise

    def read(self, start: int, count: int) -> list[Array]:
        table = self._table
        records = np.empty((count, table.size), np.uint8)
        left, place = records.reshape(-1).data, table.first + start * table.size
        while left:
            done = os.preadv(self._file.fileno(), [left], place)
            if not done:
                raise OSError(f"{table.file.path} ends before its last row")
            left, place = left[done:], place + done
        table.file.check()
        return [field.of(records) for field in self._fields]

    def take(self, indices: Array) -> list[Array]:
        table = self._table
        table.file.check()  # a map of a file that was cut off ends the process where it ends
        if self._map is None:
            records = np.dtype((np.void, table.size))
            self._map = np.memmap(self._file, records, "r", table.first, (table.num_rows,))
        found = np.empty((len(indices), table.size), np.uint8)
        np.take(self._map, indices, out=found.view(self._map.dtype)[:, 0], mode="clip")
        return [field.of(found) for field in self._fields]

    def close(self) -> None:
        self._map = None
        self._file.close()


FORMATS = {b"ARROW1": "file", b"\xff\xff\xff\xff": "stream", b"PAR1": "parquet"}
"""How files begin."""
SEPARATORS = ".csv", ".tsv"
"""How the names of text files end."""


def _pyarrow() -> Foreign:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise ConfigurationError('Arrow and Parquet files need pyarrow: pip install "dpppl[arrow]".') from None
    return pyarrow


class _OfArrow(Table):
    """A table with an Arrow schema."""

    _schema: Foreign

    @cached_property
    def columns(self) -> Columns:
        """The columns of numbers, by their types alone."""
        return _numbers(self._schema)

    @property
    def names(self) -> list[str]:  # type: ignore[override]
        """Those of all columns."""
        return list(self._schema.names)

    def why_not(self, name: object) -> str | None:
        types, index = _pyarrow().types, self._schema.get_field_index(str(name))
        if index < 0:
            return None
        kind = self._schema.field(index).type
        cure = "code it as numbers first"
        if types.is_decimal(kind):
            cure = f"store table[{name!r}].cast('float64') instead"
        elif types.is_list(kind) or types.is_large_list(kind):
            cure = (
                "the lengths of lists may differ from row to row. Store lists of one length, "
                f"table[{name!r}].cast(pyarrow.list_(pyarrow.float32(), LENGTH)), or, of Hugging Face's datasets, "
                f"data.cast_column({name!r}, datasets.Sequence(datasets.Value('float32'), LENGTH))"
            )
        return f"column {name!r} is of type {kind}, whose rows are no arrays of numbers of one shape: {cure}."


@dataclass(frozen=True)
class ArrowTable(_OfArrow):
    """An Arrow file, or a table of pyarrow's whose columns lie in files.

    - **files** - the files.
    - **kind** - of an Arrow file "file" or "stream"; None for a table.
    - **given** - the table, in a tuple, or nothing."""

    files: tuple[FileState, ...]
    kind: str | None = None
    given: tuple[object, ...] = field(default=(), repr=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrowTable) or (self.files, self.kind) != (other.files, other.kind):
            return False
        return len(self.given) == len(other.given) and all(a is b for a, b in zip(self.given, other.given))

    def __hash__(self) -> int:
        return hash((self.files, self.kind, *map(id, self.given)))

    @cached_property
    def num_rows(self) -> int:
        """N."""
        return int(self._table().num_rows)

    @cached_property
    def _schema(self) -> Foreign:
        return self._table().schema

    def opened(self, sources: Sequence[Source]) -> Opened:
        for file in self.files:
            file.check()
        keys = [source.key for source in sources]
        return _OpenedArrow(self.files, keys, self._table().select(columns_of(keys)))

    def _table(self) -> Foreign:
        if self.given:
            return self.given[0]
        pyarrow, [file] = _pyarrow(), self.files
        mapped = pyarrow.memory_map(file.path)
        opened = pyarrow.ipc.open_file if self.kind == "file" else pyarrow.ipc.open_stream
        return opened(mapped).read_all()  # views of the map: no row is read


class _OpenedArrow(Opened):
    def __init__(self, files: Sequence[FileState], keys: list[Hashable], table: Foreign) -> None:
        self._files, self._keys, self._held = files, keys, _numbers(table.schema)
        self._chunks = {n: [c for c in table.column(n).chunks if len(c)] for n in table.column_names}
        self._ends = {n: np.cumsum([len(chunk) for chunk in chunks]) for n, chunks in self._chunks.items()}

    def read(self, start: int, count: int) -> list[Array]:
        self._check()
        slices = lambda n: _slices(self._ends[n], self._chunks[n].__getitem__, start, count)  # noqa: E731
        return arranged(self._keys, lambda n: _joined([_values(each, *self._held[n]) for each in slices(n)]))

    def take(self, indices: Array) -> list[Array]:
        self._check()
        return arranged(self._keys, lambda name: self._taken(name, indices))

    def _taken(self, name: str, indices: Array) -> Array:
        ends, chunks = self._ends[name], self._chunks[name]
        numbers = np.searchsorted(ends, indices, side="right")
        order = np.argsort(numbers, kind="stable")
        found, places = [], np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
        for part in places:
            number = numbers[part[0]]
            first = int(ends[number - 1]) if number else 0
            found.append(_values(chunks[number].take(indices[part] - first), *self._held[name]))
        together = _joined(found)
        put = np.empty_like(together)
        put[order] = together
        return put

    def _check(self) -> None:
        for file in self._files:  # a map of a file that was cut off ends the process where it ends
            file.check()

    def close(self) -> None:
        self._chunks, self._ends = {}, {}


@dataclass(frozen=True)
class ParquetTable(_OfArrow):
    """A Parquet file, whose row groups are decoded as a whole: for full passes.

    - **file** - the file."""

    file: FileState

    @cached_property
    def num_rows(self) -> int:
        """N."""
        return int(_pyarrow().parquet.read_metadata(self.file.path).num_rows)

    @cached_property
    def _schema(self) -> Foreign:
        return _pyarrow().parquet.read_schema(self.file.path)

    @property
    def why_not_drawn(self) -> str:
        return (
            "Parquet decodes a group of rows to read one of them: it is for full passes, FullBatch(). For other subsampling "
            "write it as Arrow once, import pyarrow.dataset as ds; "
            f"ds.write_dataset(ds.dataset({self.file.path!r}), 'rows', format='feather', preserve_order=True), and use "
            "dpppl.from_disk('rows/part-0.feather')."
        )

    def opened(self, sources: Sequence[Source]) -> Opened:
        self.file.check()
        return _OpenedParquet(self.file, [source.key for source in sources])


class _OpenedParquet(Opened):
    def __init__(self, file: FileState, keys: list[Hashable]) -> None:
        self._file, self._keys = file, keys
        self._open = _pyarrow().parquet.ParquetFile(file.path)
        metadata, self._held = self._open.metadata, _numbers(self._open.schema_arrow)
        self._ends = np.cumsum([metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)])
        self._group: tuple[int, Foreign] = -1, None

    def read(self, start: int, count: int) -> list[Array]:
        self._file.check()
        parts = list(_slices(self._ends, self._decoded, start, count))

        def column(name: str) -> Array:
            chunks = [chunk for part in parts for chunk in part.column(name).chunks if len(chunk)]
            return _joined([_values(chunk, *self._held[name]) for chunk in chunks])

        return arranged(self._keys, column)

    def take(self, indices: Array) -> list[Array]:
        raise OSError("rows of Parquet are not drawn one by one")

    def _decoded(self, number: int) -> Foreign:
        if self._group[0] != number:
            self._group = -1, None
            self._group = number, self._open.read_row_group(number, columns=columns_of(self._keys))
        return self._group[1]

    def close(self) -> None:
        self._group = -1, None
        self._open.close()


def _slices(ends: Array, chunk: Callable[[int], Foreign], start: int, count: int) -> Iterator[Foreign]:
    """Rows `start`, ..., `start + count - 1` of chunks that end at `ends`, chunk by chunk."""
    number = int(np.searchsorted(ends, start, side="right"))
    while count > 0:
        skipped = start - (int(ends[number - 1]) if number else 0)
        part = chunk(number).slice(skipped, count)
        yield part
        start, count, number = start + len(part), count - len(part), number + 1


def _numbers(schema: Foreign) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of one row of each column of numbers. A schema decides, and no row: where it allows missing values they are
    NaN, and whole numbers are floats, whether any is missing or not."""
    found = {field.name: _held(field.type, field.nullable) for field in schema}
    return {name: held for name, held in found.items() if held is not None}


def _held(kind: Foreign, nullable: bool) -> tuple[tuple[int, ...], np.dtype] | None:
    """Shape and dtype of a value of an Arrow type; None for types that are not numbers of one shape."""
    types = _pyarrow().types
    if hasattr(kind, "storage_type") and hasattr(kind, "shape") and all(kind.shape):
        inner = _held(_innermost(kind.storage_type), True)
        return None if inner is None else (tuple(kind.shape), inner[1])
    if hasattr(kind, "storage_type"):
        return _held(kind.storage_type, nullable)
    if types.is_dictionary(kind):
        return _held(kind.value_type, nullable)
    if types.is_fixed_size_list(kind):
        inner = _held(kind.value_type, nullable or kind.value_field.nullable)
        return None if inner is None else ((kind.list_size, *inner[0]), inner[1])
    if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
        return None
    dtype = np.dtype(kind.to_pandas_dtype())
    return (), optional(dtype) if nullable else dtype


def _innermost(kind: object) -> Foreign:
    return _innermost(kind.value_type) if hasattr(kind, "value_type") else kind


def _values(array: Foreign, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """The rows of an Arrow array, (n, *shape): NaN where a value, or a list of the right length, is missing."""
    array = getattr(array, "storage", array)
    if hasattr(array, "dictionary_decode"):
        array = array.dictionary_decode()
    if not shape:
        array = array.cast("uint8") if dtype.kind == "f" and str(array.type) == "bool" else array
        if (
            dtype.kind != "f"
        ):  # a null where the schema says that there is none: with it the others would be read as floats
            array = array.fill_null(_absent(dtype))
        return np.asarray(array.to_numpy(zero_copy_only=False)).astype(dtype, copy=False)
    if len(shape) > 1 and not hasattr(array.type.value_type, "value_type"):  # a tensor of pyarrow's: one list a row
        return _values(array, (int(np.prod(shape)),), dtype).reshape(len(array), *shape)
    if hasattr(array.type, "list_size") and not array.null_count:
        inner = array.flatten()
    else:
        lengths = array.value_lengths() if hasattr(array, "value_lengths") else None
        right = np.asarray(array.is_valid()) if lengths is None else lengths.to_numpy(zero_copy_only=False) == shape[0]
        if not np.all(right):
            found = np.full((len(array), *shape), np.nan if dtype.kind == "f" else _absent(dtype), dtype)
            found[right] = _values(array.filter(_pyarrow().array(right)), shape, dtype)
            return found
        inner = array.flatten()
    return _values(inner, shape[1:], dtype).reshape(len(array), *shape)


def _absent(dtype: np.dtype) -> int | bool:
    """A whole number or truth value in the place of a missing one, which the schema excludes: as far out as can be."""
    return False if dtype.kind == "b" else int(np.iinfo(dtype).min or np.iinfo(dtype).max)


def _joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
