"""Private rows that stay where they are stored: what a source is, and which kinds there are.

A *table* is a file, or a data set, that can be opened to read some of its records. A *source* is what one argument of a model
is given: a part of each record of a table, with the shape and dtype of an array, and no values in memory.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpppl.data.entries import numbers_of, optional, place_of, text_rows
from dpppl.errors import ConfigurationError
from dpppl.types import Foreign, Function, Tree

Array = np.ndarray
Columns = Mapping[Any, tuple[tuple[int, ...], np.dtype]]
"""By name: shape and dtype of one row's value."""


class Opened(ABC):
    """A table while it is read, for some of its sources."""

    @abstractmethod
    def read(self, start: int, count: int) -> list[Array]:
        """Rows `start`, ..., `start + count - 1` of each source, (count, ...). Raises OSError."""

    @abstractmethod
    def take(self, indices: Array) -> list[Array]:
        """Rows of each source by their numbers, (n, ...). Raises OSError."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files."""


class Table(ABC):
    """Records in storage. Tables are hashable, and equal where they are the same records of the same file."""

    if TYPE_CHECKING:  # a field of some tables, a property of others

        @property
        def num_rows(self) -> int: ...

    names: Sequence[object] = ()
    """Those of all columns, where `why_not` says something of others than numbers."""

    @abstractmethod
    def opened(self, sources: Sequence["Source"]) -> Opened:
        """To read these of its sources. Raises OSError for a file that is not there or was changed."""

    by_entry: ClassVar[str] = ""
    """How its entries are read, in words, where no type is declared; else ""."""

    def why_not(self, name: object) -> str | None:
        """Why a column that the table has cannot be taken, and the cure; None where it has none of that name."""
        return None

    @property
    def why_not_drawn(self) -> str | None:
        """Why rows cannot be read one by one, and the cure; None where they can."""
        return None


@dataclass(frozen=True)
class Source(np.lib.mixins.NDArrayOperatorsMixin):
    """The rows of one argument: pass it to a model in place of an array.

    - **table** - what is read.
    - **key** - which part of a record: None for all of it.
    - **shape**, **dtype** - those of the array that it stands for, (N, ...).

    `source[key]` is a source of a part of each record, where the kind of table has parts."""

    table: Table
    key: Any
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def num_rows(self) -> int:
        """N."""
        return self.shape[0]

    def __len__(self) -> int:
        return self.num_rows

    def __array__(self, *_: object, **__: object) -> Array:
        raise ConfigurationError(
            "a source is no array in memory: use it in a model, or load it, source.read(0, len(source))."
        )

    __array_ufunc__ = __array__

    def __getitem__(self, key: object) -> "Source":
        raise ConfigurationError(f"rows of a {type(self.table).__name__} have no parts {key!r}: pass the source.")

    def read(self, start: int, count: int) -> Array:
        """Rows `start`, ..., `start + count - 1`, on the host. Raises OSError."""
        return self._once(lambda opened: opened.read(start, count))

    def take(self, indices: object) -> Array:
        """Rows by their numbers, on the host. Raises OSError."""
        return self._once(lambda opened: opened.take(np.asarray(indices)))

    def _once(self, act: Function) -> Array:
        opened = self.table.opened([self])
        try:
            return np.array(act(opened)[0])
        finally:
            opened.close()


def fitted(array: Array, dtype: np.dtype) -> Array:
    """An array in a type that JAX holds: whole numbers beyond its range become its largest or smallest, and do not wrap round."""
    if array.dtype.kind in "iu" and dtype.kind in "iu" and not np.can_cast(array.dtype, dtype):
        range_ = np.iinfo(dtype)
        array = np.clip(array, max(range_.min, np.iinfo(array.dtype).min), min(range_.max, np.iinfo(array.dtype).max))
    return np.asarray(array, dtype)


@dataclass(frozen=True)
class FileState:
    """Which file it is, to notice one that was changed or replaced.

    - **path** - absolute.
    - **size**, **modified**, **number** - bytes, nanoseconds, inode."""

    path: str
    size: int
    modified: int
    number: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> "FileState":
        """Its state now. Raises OSError."""
        path = os.path.realpath(path)
        return cls(path, *_stat(os.stat(path)))

    def check(self, descriptor: int | None = None) -> None:
        """Raise OSError if the file, or the one that is open, is not what it was."""
        found = _stat(os.stat(self.path) if descriptor is None else os.fstat(descriptor))
        if found != (self.size, self.modified, self.number):
            raise OSError(f"{self.path} was changed or replaced after its rows were given to dpppl")


def _stat(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ino


class ColumnSource(Source):
    """Columns of a table. `source["a"]` is the source of one, (N, ...); `source[["a", "b"]]` of several with equal shapes,
    (N, 2, ...)."""

    def __getitem__(self, key: object) -> Source:
        table: Foreign = self.table
        names = tuple(key) if isinstance(key, list) else (key,)
        for name in names:
            if name not in table.columns and (why := table.why_not(name)) is not None:
                raise ConfigurationError(why)
            if name not in table.columns:
                known = ", ".join(repr(known) for known in table.columns)
                raise ConfigurationError(
                    f"there is no column {name!r} of numbers without missing values; choose of {known}, or fill in missing "
                    "values and code text as numbers first."
                )
        shapes, dtypes = zip(*(table.columns[name] for name in names))
        if len(set(shapes)) > 1:
            raise ConfigurationError(
                f"columns {', '.join(map(str, names))} have rows of different shapes: take each alone."
            )
        lead = (table.num_rows, len(names)) if isinstance(key, list) else (table.num_rows,)
        key = names if isinstance(key, list) else key
        return ColumnSource(table, key, (*lead, *shapes[0]), np.result_type(*dtypes))


def of_table(table: Foreign) -> Source:
    """The source of a table with `columns`: of its only one, or one of type `object`, of which columns are to be chosen.

    Raises ConfigurationError where there is nothing to choose."""
    if not table.num_rows or not table.columns:
        reasons = [why for name in table.names if (why := table.why_not(name)) is not None] if table.num_rows else []
        raise ConfigurationError(
            f"this data set has no rows, or no column of numbers{''.join(f'; {w}' for w in reasons[:1]) or '.'}"
        )
    whole = ColumnSource(table, None, (table.num_rows,), np.dtype(object))
    return whole[next(iter(table.columns))] if len(table.columns) == 1 else whole


def columns_of(keys: Sequence[object]) -> list[Any]:
    """The names of all columns that these sources need, each once."""
    return list(dict.fromkeys(name for key in keys for name in (key if isinstance(key, tuple) else (key,))))


def arranged(keys: Sequence[object], column: Callable[[Any], Array]) -> list[Array]:
    """The rows of each source, from those of each column."""
    found = {name: column(name) for name in columns_of(keys)}
    return [np.stack([found[n] for n in key], axis=1) if isinstance(key, tuple) else found[key] for key in keys]


@dataclass(frozen=True, eq=False)
class InMemory(Table, Opened):
    """An array in memory, used with others that are on disk.

    - **array** - (N, ...)."""

    array: Array = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InMemory) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)

    @classmethod
    def source(cls, array: Array) -> Source:
        """The source of an array."""
        return Source(cls(array), None, array.shape, array.dtype)

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.array)

    def opened(self, sources: Sequence[Source]) -> Opened:
        return self

    def read(self, start: int, count: int) -> list[Array]:
        return [self.array[start : start + count]]

    def take(self, indices: Array) -> list[Array]:
        return [np.take(self.array, indices, axis=0, mode="clip")]

    def close(self) -> None:
        """Nothing to let go of."""


class OfText(InMemory):
    """Columns of a text file, which declares no types."""

    by_entry = (
        "a column of a text file: an entry that is no number such as 1234.5 counts as missing (a word, a date, 1,5 without "
        "from_disk(path, decimal=',')), and so does a line with more or fewer entries than the first"
    )


@dataclass(frozen=True)
class TextSource(Source):
    """Columns of a text file, in memory: `source["a"]` is one, (N,), and `source[["a", "b"]]` are several, (N, 2).

    - **names** - the file's first line. It may be a row, of a file without names, so nothing shows it."""

    names: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, path: str | os.PathLike[str], separator: str | None = None, decimal: str = ".") -> Source:
        """The columns of a file as floats, NaN where an entry is no number. Its only column is chosen by name, too."""
        names, rows, count = text_rows(path, separator)
        if not count:
            raise ConfigurationError("this file has no rows: its first line names its columns.")
        missing = (None,) * len(names)
        entries: Iterator[str | None] = (entry for row in rows for entry in row or missing)
        if decimal != ".":
            entries = (entry and entry.replace(".", "?").replace(decimal, ".") for entry in entries)
        array = numbers_of(entries, float).reshape(count, len(names))
        return cls(OfText(array), None, (count,), np.dtype(object), tuple(names))

    def __getitem__(self, key: object) -> Source:
        table: Foreign = self.table
        places = [place_of(name, self.names) for name in (key if isinstance(key, list) else [key])]
        return OfText.source(table.array[:, places if isinstance(key, list) else places[0]])


@dataclass(frozen=True, eq=False)
class Items(Table):
    """A data set with `len` and items by number, which runs on the host.

    - **dataset** - it is asked for many items at once by `__getitems__`, if it has that.
    - **dtype** - what is declared of an item: names, shapes and types of its columns, or shape and type of its only one."""

    by_entry = "a data set by items: an entry that does not fit its dtype counts as missing"
    dataset: Foreign = field(repr=False)
    dtype: np.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Items) and self.dataset is other.dataset and self.dtype == other.dtype

    def __hash__(self) -> int:
        return id(self.dataset)

    @cached_property
    def num_rows(self) -> int:
        """N."""
        return len(self.dataset)

    @cached_property
    def columns(self) -> Columns:
        """The declared columns: floats, as an item may be missing."""
        types = [self.dtype[name] for name in self.dtype.names] if self.dtype.names else [self.dtype]
        return {name: (kind.shape, optional(kind.base)) for name, kind in zip(self.dtype.names or (0,), types)}

    def items(self, numbers: list[int]) -> Sequence[Tree]:
        """Items by their numbers."""
        if hasattr(self.dataset, "__getitems__"):
            return list(self.dataset.__getitems__(numbers))
        return [self.dataset[number] for number in numbers]

    def opened(self, sources: Sequence[Source]) -> Opened:
        return _OpenedItems(self, [source.key for source in sources])


class _OpenedItems(Opened):
    def __init__(self, table: Items, keys: list[Hashable]) -> None:
        self._table, self._keys = table, keys

    def read(self, start: int, count: int) -> list[Array]:
        return self.take(np.arange(start, start + count))

    def take(self, indices: Array) -> list[Array]:
        items = self._table.items(indices.tolist())
        if len(items) != len(indices):
            raise OSError("a data set gave another number of items than it was asked for")
        columns = self._table.columns

        def column(name: Hashable) -> Array:
            shape, dtype = columns[name]
            place = list(columns).index(name)
            return numbers_of((_part(item, name, place, bool(self._table.dtype.names)) for item in items), dtype, shape)

        return arranged(self._keys, column)

    def close(self) -> None:
        """The data set stays with whoever made it."""


def _part(item: object, name: object, place: int, has_parts: bool) -> object:
    """The value of a column in an item: by name in a mapping, by place in a tuple; None where it has none."""
    try:
        if isinstance(item, Mapping):
            return item.get(name)
        if isinstance(item, tuple):
            return item[place]
    except Exception:  # an object of a class of its own may raise anything
        return None
    return None if has_parts else item
