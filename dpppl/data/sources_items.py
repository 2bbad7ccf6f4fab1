"""In-memory and indexable sources: arrays used with rows on disk, and data sets that return items by number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dpppl.data.sources import Array, Opened, Source, Table
from dpppl.data.sources_columns import Columns, arranged


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


@dataclass(frozen=True, eq=False)
class Items(Table):
    """A data set with `len` and items by number: arrays, or dicts or tuples of arrays and numbers, each of one shape.

    - **dataset** - it runs on the host, and is asked for many items at once by `__getitems__`, if it has that."""

    dataset: Any = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Items) and self.dataset is other.dataset

    def __hash__(self) -> int:
        return id(self.dataset)

    @cached_property
    def num_rows(self) -> int:
        """N."""
        return len(self.dataset)

    @cached_property
    def columns(self) -> Columns:
        """Those of numbers, from the first item."""
        first = {key: np.asarray(value) for key, value in _parts(self.items([0])[0]).items()}
        return {key: (value.shape, value.dtype) for key, value in first.items() if value.dtype.kind in "biuf"}

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

        found = {name: np.zeros((len(items), *shape), dtype) for name, (shape, dtype) in self._table.columns.items()}
        alike = [
            _put(item, {name: rows[place, ...] for name, rows in found.items()}) for place, item in enumerate(items)
        ]
        missing = ~np.asarray(alike, bool)
        for rows in found.values():
            rows[missing] = np.nan if rows.dtype.kind == "f" else 0
        return arranged(self._keys, found.__getitem__)

    def close(self) -> None:
        """The data set stays with whoever made it."""


def _put(item: Mapping[Any, Any], place: Mapping[Any, Array]) -> bool:
    """Write an item into its place in each column; whether all its values have the columns' shapes and kinds. One that has not is
    missing: a run that failed would tell of it."""
    for name, row in place.items():
        try:
            value = np.asarray(item[name])
        except (KeyError, TypeError, ValueError):
            return False
        if value.shape != row.shape or not np.can_cast(value.dtype, row.dtype, "same_kind"):
            return False
        row[...] = value
    return True


def _parts(item: Any) -> dict[Any, Any]:
    if isinstance(item, Mapping):
        return dict(item)
    return dict(enumerate(item)) if isinstance(item, tuple) else {0: item}
