"""`dpppl.from_disk`: a source for what a user has."""

import os
from typing import Any

import numpy as np

from dpppl.data.sources import FileState, Source
from dpppl.data.sources_arrow import FORMATS, ArrowTable, ParquetTable
from dpppl.data.sources_columns import of_table
from dpppl.data.sources_items import Items
from dpppl.data.sources_npy import of_memmap
from dpppl.errors import ConfigurationError, forgetting


@forgetting
def from_disk(what: Any) -> Source:
    """Private rows that stay where they are: pass what this returns to a model in place of an array.

    - **what** - a path of a `.npy` file, of an Arrow file (IPC, Feather) or of a Parquet file (for `FullBatch()`); a NumPy memory
      map; a data set of Hugging Face's `datasets`, or any object with `len` and items by number.

    Returns a source, of which parts are sources, too: `source[:, :10]` of an array, `source["age"]` and
    `source[["age", "income"]]` of columns, so that one file can be several arguments. Rows are read when an access needs them, by
    a thread that reads ahead; a run never holds more than a few blocks, and finds the numbers that it would find in memory.
    Raises ConfigurationError for what cannot be read, and OSError for a file that is not there.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/rows.npy"
    >>> np.save(path, np.ones((100, 3), np.float32))
    >>> source = from_disk(path)
    >>> source.shape, source[:, 0].shape
    ((100, 3), (100,))
    """
    if isinstance(what, Source):
        return what
    if isinstance(what, str | os.PathLike):
        return _of_file(what)
    if isinstance(what, np.memmap):
        return of_memmap(what)
    if type(what).__module__.partition(".")[0] == "datasets":
        return _of_hugging_face(what)
    if hasattr(what, "__len__") and hasattr(what, "__getitem__") and not isinstance(what, np.ndarray | dict):
        items = Items(what)
        return _of_table(items)
    raise ConfigurationError(f"from_disk takes a path or a data set, not a {type(what).__name__}.")


def _of_file(path: Any) -> Source:
    with open(path, "rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        array = np.load(path, mmap_mode="r")
        if not isinstance(array, np.memmap):
            raise ConfigurationError(f"{os.fspath(path)} holds no array of rows.")
        return of_memmap(array)
    for magic, kind in FORMATS.items():
        if start.startswith(magic):
            file_state = FileState.of(path)
            table: Any = ParquetTable(file_state) if kind == "parquet" else ArrowTable((file_state,), kind)
            return _of_table(table)
    raise ConfigurationError(f"{os.fspath(path)} is no .npy, Arrow or Parquet file.")


def _of_hugging_face(dataset: Any) -> Source:
    if not hasattr(dataset, "data") or not hasattr(dataset, "flatten_indices"):
        raise ConfigurationError(f"a {type(dataset).__name__} has no rows by number: choose a split, dataset['train'].")
    if getattr(dataset, "_indices", None) is not None:
        raise ConfigurationError(
            "this data set was shuffled or selected from, by a list of rows: store it in their order, dataset.flatten_indices()."
        )
    files = tuple(FileState.of(file["filename"]) for file in dataset.cache_files)
    table = ArrowTable(files, None, (dataset.data.table,))
    return _of_table(table)


def _of_table(table: Any) -> Source:
    if not table.num_rows or not table.columns:
        raise ConfigurationError("this data set has no rows, or no column of numbers.")
    return of_table(table)
