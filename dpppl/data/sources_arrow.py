"""Sources in Arrow files (IPC and Feather), data sets of Hugging Face, and, for full passes, Parquet."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpppl.data.sources import Array, FileState, Opened, Source, Table
from dpppl.data.sources_columns import Columns, arranged, columns_of
from dpppl.errors import ConfigurationError

FORMATS = {b"ARROW1": "file", b"\xff\xff\xff\xff": "stream", b"PAR1": "parquet"}
"""How files begin."""


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise ConfigurationError('Arrow and Parquet files need pyarrow: pip install "dpppl[arrow]".') from None
    return pyarrow


@dataclass(frozen=True)
class ArrowTable(Table):
    """An Arrow file, or a table of pyarrow's whose columns lie in files.

    - **files** - the files.
    - **kind** - of an Arrow file "file" or "stream"; None for a table.
    - **given** - the table, in a tuple, or nothing."""

    files: tuple[FileState, ...]
    kind: str | None = None
    given: tuple[Any, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrowTable) or (self.files, self.kind) != (other.files, other.kind):
            return False
        return len(self.given) == len(other.given) and all(a is b for a, b in zip(self.given, other.given))

    def __hash__(self) -> int:
        return hash((self.files, self.kind, *map(id, self.given)))

    @cached_property
    def num_rows(self) -> int:  # type: ignore[override]
        """N."""
        return int(self._table().num_rows)

    @cached_property
    def columns(self) -> Columns:
        """Those of numbers, without missing values."""
        table = self._table()
        names = [name for name in table.column_names if table.column(name).null_count == 0]
        return _numbers({name: table.column(name).chunk(0) for name in names if table.column(name).num_chunks})

    def opened(self, sources: Sequence[Source]) -> Opened:
        for file in self.files:
            file.check()
        keys = [source.key for source in sources]
        return _OpenedArrow(self.files, keys, self._table().select(columns_of(keys)))

    def _table(self) -> Any:
        if self.given:
            return self.given[0]
        pyarrow, [file] = _pyarrow(), self.files
        mapped = pyarrow.memory_map(file.path)
        opened = pyarrow.ipc.open_file if self.kind == "file" else pyarrow.ipc.open_stream
        return opened(mapped).read_all()  # views of the map: no row is read


class _OpenedArrow(Opened):
    def __init__(self, files: Sequence[FileState], keys: list[Any], table: Any) -> None:
        self._files, self._keys = files, keys
        self._chunks = {n: [c for c in table.column(n).chunks if len(c)] for n in table.column_names}
        self._ends = {n: np.cumsum([len(chunk) for chunk in chunks]) for n, chunks in self._chunks.items()}

    def read(self, start: int, count: int) -> list[Array]:
        self._check()
        return arranged(self._keys, lambda name: _joined([_values(c) for c in self._parts(name, start, count)]))

    def take(self, indices: Array) -> list[Array]:
        self._check()
        return arranged(self._keys, lambda name: self._taken(name, indices))

    def _parts(self, name: str, start: int, count: int) -> Iterator[Any]:
        ends, chunks = self._ends[name], self._chunks[name]
        number = int(np.searchsorted(ends, start, side="right"))
        while count > 0:
            skipped = start - (int(ends[number - 1]) if number else 0)
            part = chunks[number].slice(skipped, count)
            yield part
            start, count, number = start + len(part), count - len(part), number + 1

    def _taken(self, name: str, indices: Array) -> Array:
        ends, chunks = self._ends[name], self._chunks[name]
        numbers = np.searchsorted(ends, indices, side="right")
        order = np.argsort(numbers, kind="stable")
        found, places = [], np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
        for part in places:
            number = numbers[part[0]]
            first = int(ends[number - 1]) if number else 0
            found.append(np.take(_values(chunks[number]), indices[part] - first, axis=0, mode="clip"))
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
class ParquetTable(Table):
    """A Parquet file, whose row groups are decoded as a whole: for full passes.

    - **file** - the file."""

    file: FileState

    @cached_property
    def num_rows(self) -> int:  # type: ignore[override]
        """N."""
        return int(_pyarrow().parquet.read_metadata(self.file.path).num_rows)

    @cached_property
    def columns(self) -> Columns:
        """Those of numbers."""
        found = _pyarrow().parquet.ParquetFile(self.file.path)
        with found:
            [first] = found.iter_batches(1, row_groups=[0]) if self.num_rows == 1 else [next(found.iter_batches(1))]
        return _numbers({name: first.column(name) for name in first.schema.names})

    @property
    def why_not_drawn(self) -> str:
        return (
            "Parquet decodes a group of rows to read one of them: it is for full passes, FullBatch(). For other subsampling "
            "write it as Arrow once, import pyarrow.dataset as ds; "
            f"ds.write_dataset(ds.dataset({self.file.path!r}), 'rows', format='feather'), and use "
            "dpppl.from_disk('rows/part-0.feather')."
        )

    def opened(self, sources: Sequence[Source]) -> Opened:
        self.file.check()
        return _OpenedParquet(self.file, [source.key for source in sources])


class _OpenedParquet(Opened):
    def __init__(self, file: FileState, keys: list[Any]) -> None:
        self._file, self._keys = file, keys
        self._open = _pyarrow().parquet.ParquetFile(file.path)
        metadata = self._open.metadata
        self._ends = np.cumsum([metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)])
        self._group: tuple[int, Any] = -1, None

    def read(self, start: int, count: int) -> list[Array]:
        self._file.check()
        parts: list[Any] = []
        number = int(np.searchsorted(self._ends, start, side="right"))
        while count > 0:
            skipped = start - (int(self._ends[number - 1]) if number else 0)
            part = self._decoded(number).slice(skipped, count)
            parts.append(part)
            start, count, number = start + len(part), count - len(part), number + 1

        def column(name: str) -> Array:
            chunks = [chunk for part in parts for chunk in part.column(name).chunks if len(chunk)]
            if any(chunk.null_count for chunk in chunks):
                raise OSError(f"{self._file.path}: column {name!r} has missing values; fill them in first")
            return _joined([_values(chunk) for chunk in chunks])

        return arranged(self._keys, column)

    def take(self, indices: Array) -> list[Array]:
        raise OSError("rows of Parquet are not drawn one by one")

    def _decoded(self, number: int) -> Any:
        if self._group[0] != number:
            self._group = -1, None
            self._group = number, self._open.read_row_group(number, columns=columns_of(self._keys))
        return self._group[1]

    def close(self) -> None:
        self._group = -1, None
        self._open.close()


def _numbers(first: dict[str, Any]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of one row of each column that holds numbers, from an array of its first rows."""
    found = {}
    for name, array in first.items():
        try:
            value = _values(array.slice(0, 1))
        except (ValueError, TypeError, NotImplementedError):  # pyarrow's errors are these
            continue
        if value.dtype.kind in "biuf":
            found[name] = value.shape[1:], value.dtype
    return found


def _values(array: Any) -> Array:
    """The rows of an Arrow array, (n, ...); lists have equal lengths. A view where the type allows it."""
    if hasattr(array, "storage"):
        array = array.storage
    if not hasattr(array, "flatten") or not hasattr(array.type, "value_type"):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    inner = _values(array.flatten())
    width, rest = divmod(len(inner), len(array))
    lengths = array.value_lengths() if hasattr(array, "value_lengths") else None
    if rest or (lengths is not None and np.any(lengths.to_numpy(zero_copy_only=False) != width)):
        raise ValueError("lists of different lengths")
    return inner.reshape(len(array), width, *inner.shape[1:])


def _joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
