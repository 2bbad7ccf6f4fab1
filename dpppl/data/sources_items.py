"""In-memory and indexable sources: arrays beside rows on disk, and data sets that return items by number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpppl.data.sources import Array, Opened, Source, Table
from dpppl.data.sources_columns import Columns, arranged


@dataclass(frozen=True, eq=False)
class InMemory(Table, Opened):
    """An array in memory, beside others that are on disk.

    - **array** - (N, ...)."""

    array: Array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InMemory) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)

    @classmethod
    def source(cls, array: Array) -> Source:
        """The source of an array."""
        return Source(cls(array), None, array.shape, array.dtype)

    @property
    def num_rows(self) -> int:  # type: ignore[override]
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


@dataclass(frozen=True, eq=False)
class Items(Table):
    """A data set with `len` and items by number: arrays, or dicts or tuples of arrays and numbers, each of one shape.

    - **dataset** - it runs on the host, and is asked for many items at once by `__getitems__`, if it has that."""

    dataset: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Items) and self.dataset is other.dataset

    def __hash__(self) -> int:
        return id(self.dataset)

    @cached_property
    def num_rows(self) -> int:  # type: ignore[override]
        """N."""
        return len(self.dataset)

    @cached_property
    def columns(self) -> Columns:
        """From the first item."""
        return {key: (np.shape(value), np.asarray(value).dtype) for key, value in _parts(self.items([0])[0]).items()}

    def items(self, numbers: list[int]) -> Sequence[Any]:
        """Items by their numbers."""
        if hasattr(self.dataset, "__getitems__"):
            return list(self.dataset.__getitems__(numbers))
        return [self.dataset[number] for number in numbers]

    def opened(self, sources: Sequence[Source]) -> Opened:
        return _OpenedItems(self, [source.key for source in sources])


class _OpenedItems(Opened):
    def __init__(self, table: Items, keys: list[Any]) -> None:
        self._table, self._keys = table, keys

    def read(self, start: int, count: int) -> list[Array]:
        return self.take(np.arange(start, start + count))

    def take(self, indices: Array) -> list[Array]:
        items = [_parts(item) for item in self._table.items(indices.tolist())]
        if len(items) != len(indices):
            raise OSError("a data set gave another number of items than it was asked for")

        def column(name: Any) -> Array:
            shape, dtype = self._table.columns[name]
            found = np.empty((len(items), *shape), dtype)
            for place, item in enumerate(items):
                value = np.asarray(item[name])
                if value.shape != shape or value.dtype != dtype:
                    raise OSError(f"items of a data set differ in the shape or dtype of {name!r}")
                found[place] = value
            return found

        return arranged(self._keys, column)

    def close(self) -> None:
        """The data set stays with whoever made it."""


def _parts(item: Any) -> dict[Any, Any]:
    if isinstance(item, Mapping):
        return dict(item)
    return dict(enumerate(item)) if isinstance(item, tuple) else {0: item}
