"""Private rows that stay where they are stored: what a source is, and which kinds there are.

A *table* is a file, or a data set, that can be opened to read some of its records. A *source* is what one argument of a model
is given: a part of each record of a table, with the shape and dtype of an array, and no values in memory.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpppl.errors import ConfigurationError

Array = np.ndarray[Any, np.dtype[Any]]


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

    @abstractmethod
    def opened(self, sources: Sequence["Source"]) -> Opened:
        """To read these of its sources. Raises OSError for a file that is not there or was changed."""

    def why_not(self, name: Any) -> str | None:
        """Why a column that the table has cannot be taken, and the cure; None where it has none of that name."""
        return None

    @property
    def why_not_drawn(self) -> str | None:
        """Why rows cannot be read one by one, and the cure; None where they can."""
        return None


@dataclass(frozen=True)
class Source:
    """The rows of one argument: pass it to a model in place of an array.

    - **table** - what is read.
    - **key** - which part of a record: None for all of it.
    - **shape**, **dtype** - those of the array that it stands for, (N, ...).

    `source[key]` is a source of a part of each record, where the kind of table has parts."""

    table: Table
    key: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def num_rows(self) -> int:
        """N."""
        return self.shape[0]

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, key: Any) -> "Source":
        raise ConfigurationError(
            f"rows of a {type(self.table).__name__} have no parts {key!r}: pass the source itself."
        )

    def read(self, start: int, count: int) -> Array:
        """Rows `start`, ..., `start + count - 1`, on the host. Raises OSError."""
        return self._once(lambda opened: opened.read(start, count))

    def take(self, indices: Any) -> Array:
        """Rows by their numbers, on the host. Raises OSError."""
        return self._once(lambda opened: opened.take(np.asarray(indices)))

    def _once(self, act: Any) -> Array:
        opened = self.table.opened([self])
        try:
            return np.array(act(opened)[0])
        finally:
            opened.close()


def fitted(array: Array, dtype: np.dtype[Any]) -> Array:
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
    def of(cls, path: Any) -> "FileState":
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
