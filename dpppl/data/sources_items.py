"""Sources of what is no file: arrays in memory beside rows on disk, and data sets that give items by number."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpppl.data.sources import Array, Opened, Source, Table


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
