"""`dpppl.from_disk`: a source for what a user has."""

import contextlib
import glob
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from dpppl.data.entries import NUMBERS
from dpppl.data.files import FORMATS, SEPARATORS, ArrowTable, ParquetTable, of_memmap
from dpppl.data.sources import FileState, Items, Source, TextSource, of_table
from dpppl.errors import ConfigurationError, DataReadError, forgetting
from dpppl.types import Foreign
from dpppl.validation import a, checked


@forgetting
@checked
def from_disk(
    what: object, columns: str | Sequence[str] | None = None, *, dtype: DTypeLike | None = None, separator: str | None = None,
    decimal: str = ".",
) -> Source:  # fmt: skip
    """Private rows that stay where they are: pass what this returns to a model in place of an array.

    - **what** - a path of a `.npy` file, of an Arrow file (IPC, Feather), of a Parquet file (for `FullBatch()`) or of a `.csv` or
      `.tsv` file, which is read into memory at once; a NumPy memory map; a data set of Hugging Face's `datasets`, or any object
      with `len` and items by number.
    - **columns** - the column, or the columns, to take: `from_disk(path, "age")` is `from_disk(path)["age"]`.
    - **dtype** - of an object with items by number, as no item decides: NumPy's type of an item, `("float32", (3,))`, or names,
      types and shapes of its parts, `[("x", "float32", (3,)), ("y", "float32")]`. An entry that does not fit is NaN.
    - **separator**, **decimal** - of text: what is between entries, and the mark in numbers, `separator=";", decimal=","` say. A
      text file declares no types: an entry that is no number so written is NaN, a date too, for example.

    Returns a source, of which parts are sources, too: `source[:, :10]` of an array, `source["age"]` and
    `source[["age", "income"]]` of columns, so that one file can be several arguments. Rows are read when an access needs them, by
    a thread that reads ahead; a run never holds more than a few blocks, and finds the numbers that it would find in memory.
    Raises ConfigurationError for what cannot be read, and DataReadError, an OSError, for a file that is not there or is damaged.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/rows.npy"
    >>> np.save(path, np.ones((100, 3), np.float32))
    >>> source = from_disk(path)
    >>> source.shape, source[:, 0].shape
    ((100, 3), (100,))
    """
    if columns is not None:
        if not isinstance(columns, Sequence) or not columns:
            given = "none" if isinstance(columns, Sequence) else type(columns).__name__
            raise ConfigurationError(f"columns must be a name or a list of names, got {given}.")
        return from_disk(what, dtype=dtype, separator=separator, decimal=decimal)[
            columns if isinstance(columns, str) else list(columns)
        ]
    is_file = isinstance(what, Source | str | os.PathLike | np.memmap) or _is_hugging_face(what)
    if dtype is not None and is_file:
        raise ConfigurationError("dtype= is for objects with items by number: files and data sets declare their own.")
    is_text = isinstance(what, str | os.PathLike) and os.fspath(what).endswith(SEPARATORS)
    for name, mark in (("separator", separator), ("decimal", decimal)):
        if mark not in (None, ".") and not (is_text and isinstance(mark, str) and len(mark) == 1):
            raise ConfigurationError(
                f"{name}= is one character, of a .csv or .tsv file: from_disk('rows.csv', {name}=',')."
            )
    if isinstance(what, Source):
        return what
    if isinstance(what, str | os.PathLike):
        try:
            return _of_file(what, separator, decimal)
        except ConfigurationError:
            raise
        except OSError as error:
            path = os.fspath(what)
            cure = "; give the path of one file, not a pattern" if glob.has_magic(path) else ""
            cure = "; download it first" if "://" in path else cure
            raise DataReadError(f"{path} cannot be read: {error.strerror or 'not a file of rows'}{cure}.") from None
        except Exception:  # what it says may hold values
            raise DataReadError(
                f"{os.fspath(what)} is damaged, or no file of rows of one shape: write it anew."
            ) from None
    if isinstance(what, np.memmap):
        return of_memmap(what)
    if _is_hugging_face(what):
        return _of_hugging_face(what)
    is_held = isinstance(what, np.ndarray | dict) or hasattr(what, "columns")
    if hasattr(what, "__len__") and hasattr(what, "__getitem__") and not is_held:
        items = Items(what, _declared(dtype, type(what).__name__))
        try:
            return of_table(items)
        except ConfigurationError:
            raise
        except Exception:  # what it says may hold values
            raise DataReadError(
                "the data set's own code raised an error for its length (what it says may tell of a row, so it is left out): "
                "call len(dataset) to see it."
            ) from None
    cure = "; an array in memory, a dict of arrays or a data frame is passed to the model itself"
    raise ConfigurationError(f"from_disk takes a path or a data set, not {a(type(what).__name__)}{cure}.")


def _is_hugging_face(what: object) -> bool:
    return type(what).__module__.partition(".")[0] == "datasets"


def _of_file(path: str | os.PathLike[str], separator: str | None, decimal: str) -> Source:
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
            table: Foreign = ParquetTable(file_state) if kind == "parquet" else ArrowTable((file_state,), kind)
            return of_table(table)
    if os.fspath(path).endswith(SEPARATORS):
        return TextSource.of(path, separator, decimal)
    raise ConfigurationError(f"{os.fspath(path)} is no .npy, .csv, .tsv, Arrow or Parquet file.")


def _of_hugging_face(dataset: Foreign) -> Source:
    if isinstance(dataset, dict) or not hasattr(dataset, "data") or not hasattr(dataset, "flatten_indices"):
        raise ConfigurationError(f"a {type(dataset).__name__} has no rows by number: choose a split, dataset['train'].")
    if getattr(dataset, "_indices", None) is not None:
        raise ConfigurationError(
            "this data set was shuffled or selected from, by a list of rows: store it in their order, dataset.flatten_indices()."
        )
    files = tuple(FileState.of(file["filename"]) for file in dataset.cache_files)
    return of_table(ArrowTable(files, None, (dataset.data.table,)))


def _declared(dtype: DTypeLike | None, kind: str) -> np.dtype:
    """Take the declaration of an item of a data set of this kind. Raises ConfigurationError for what does not declare numbers."""
    with contextlib.suppress(TypeError, ValueError):
        found: Foreign = np.dtype(dtype)
        parts = [found[name] for name in found.names] if found.names else [found]
        if dtype is not None and all(part.base.kind in NUMBERS for part in parts):
            return found
    cause = f"no item decides what {a(kind)} holds" if dtype is None else "dtype= is no type of numbers"
    raise ConfigurationError(
        f"{cause}: declare one by its dtype, from_disk(dataset, dtype=('float32', "
        "(3,))) for arrays of shape (3,), or of its parts, dtype=[('x', 'float32', (3,)), ('y', 'float32')]. For a file give its "
        "path alone."
    )
