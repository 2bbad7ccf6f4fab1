"""One reading of entries for all tables: each by itself and by what is declared of its column, so that no row decides another's.

An entry that its column does not declare is missing: NaN, or no category. No entry fails, or warns.
"""

import codecs
import csv
import decimal
import numbers
import os
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import DTypeLike

from dpppl.errors import ConfigurationError
from dpppl.types import Foreign

Array = np.ndarray
NUMBERS = "biuf"
"""NumPy's kinds of real numbers."""
_TEXT = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
_SEPARATORS = {";": "a semicolon", "\t": "a tab", "|": "a bar", ",": "a comma"}
_WORDS = {"true": 1.0, "false": 0.0}
_KINDS = {
    "number": r"u?int\d|float|double|half|bool|decimal|sparse\[(u?int|float|bool)",
    "time": r"date|time|duration|period|interval|month",
}
_DECLARED = dict.fromkeys("biufc", "number") | dict.fromkeys("mM", "time")


def number(entry: Foreign) -> float:
    """An entry as a number; NaN where it is none. Text that writes a number, "true" or "false" is one.

    >>> [number(entry) for entry in (3, "-2.5e1", True, "?", None, 10**400)]
    [3.0, -25.0, 1.0, nan, nan, nan]
    """
    try:
        if isinstance(entry, bytes):
            entry = entry.decode("ascii")
        if isinstance(entry, str):
            return float(entry) if _TEXT.fullmatch(entry) else _WORDS.get(entry.strip().lower(), np.nan)
        if getattr(entry, "shape", None) == ():
            entry = np.asarray(entry)
            return float(entry) if entry.dtype.kind in NUMBERS else np.nan
        return float(entry) if isinstance(entry, numbers.Real | decimal.Decimal) else np.nan
    except Exception:  # an object of a class of its own may raise anything
        return np.nan


def numbers_of(entries: Iterable[object], dtype: DTypeLike = np.float32, shape: tuple[int, ...] = ()) -> Array:
    """The numbers of entries (n, *shape), each of this shape; NaN in place of one that is not."""
    with np.errstate(all="ignore"):
        if not shape:
            return np.fromiter(map(number, entries), float).astype(dtype)
        return np.stack([_of_shape(entry, shape).astype(dtype) for entry in entries])


def _of_shape(entry: object, shape: tuple[int, ...]) -> Array:
    try:
        found = np.asarray(entry)
        if found.shape == shape:
            return found if found.dtype.kind in NUMBERS else numbers_of(found.ravel(), float).reshape(shape)
    except Exception:  # an object of a class of its own may raise anything
        pass
    return np.full(shape, np.nan)


def categories_of(entries: Iterable[object], values: Sequence[object]) -> Array:
    """Which of these texts and numbers each entry is, (n,) int32; -1 where it is none of them."""
    texts = {value: place for place, value in enumerate(values) if isinstance(value, str)}
    known = {number(value): place for place, value in enumerate(values) if not isinstance(value, str)}

    def place(entry: object) -> int:
        found = texts.get(str.__str__(entry), -1) if isinstance(entry, str) else -1
        return found if found >= 0 or not known else known.get(number(entry), -1)

    return np.fromiter(map(place, entries), np.int32)


def optional(dtype: np.dtype) -> np.dtype:
    """The type of floats that holds numbers of a type, and NaN."""
    return dtype if dtype.kind == "f" else np.promote_types(dtype, np.float32)


def declared(column: Foreign) -> str:
    """Say what a column's type tells of its entries, and no entry does: "number", "time", or "" for text, objects and others."""
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    if isinstance(dtype, np.dtype):
        return _DECLARED.get(dtype.kind, "")
    return next((kind for kind, words in _KINDS.items() if re.match(words, str(dtype).lower())), "")


def numbers_in(column: Foreign) -> Array:
    """The entries of a column whose type is one of numbers: in this type of NumPy's, or floats if it allows missing ones."""
    settings = {"zero_copy_only": False} if type(column).__module__.partition(".")[0] == "pyarrow" else {}
    array = np.asarray(column.to_numpy(**settings))
    if isinstance(getattr(column, "dtype", None), np.dtype):
        return array
    return numbers_of(array, float) if array.dtype == object else array.astype(float)


def entries_of(column: Foreign) -> list[object]:
    """The entries of a column as Python's objects, None where Arrow, pandas or polars has a missing one."""
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def is_missing(entry: Foreign) -> bool:
    """Whether an entry says that there is none: None, NaN, NaT, pandas' NA, or a tuple or set that holds one."""
    if entry is None or (isinstance(entry, tuple | frozenset) and any(map(is_missing, entry))):
        return True
    try:
        return bool(entry != entry)
    except Exception:  # pandas' NA is neither, and an object of a class of its own may raise anything
        return True


def text_rows(
    path: str | os.PathLike[str], separator: str | None = None
) -> tuple[list[str], Iterator[Sequence[str]], int]:
    """Names, rows and number of rows of a text file. Its first line holds names; each other line is a row, an empty one too.

    Lines are read one by one: a quote ends with its line. A row with more or fewer entries than there are names is empty.
    `separator`: what is between entries; a comma, or of a `.tsv` file a tab, unless given. Raises OSError, and ConfigurationError
    for a file without a line and for one in UTF-16."""
    separator = separator or ("\t" if os.fspath(path).endswith(".tsv") else ",")
    with open(path, "rb") as file:
        content = file.read()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigurationError(f"{os.fspath(path)} is in UTF-16: save it as UTF-8.")
    lines = content.decode("utf-8-sig", "surrogateescape").split("\n")
    if not lines[-1]:
        lines.pop()  # the end of the last line
    if not lines:
        raise ConfigurationError(f"{os.fspath(path)} is empty: its first line names the columns.")
    names, *rest = lines
    known = _fields(names, separator)
    rows = (_fields(line, separator) for line in rest)
    return known, (row if len(row) == len(known) else () for row in rows), len(rest)


def place_of(name: object, names: Sequence[str]) -> int:
    """The place of a column among the names of a first line, without the blanks around these where that is needed.

    Raises ConfigurationError, which shows no name but the one asked for, as the first line may be a row."""
    found = names if name in names else [each.strip() for each in names]
    if found.count(name) > 1:
        raise ConfigurationError(f"the file's first line names column {name!r} twice: give each its own name.")
    if name in found:
        return found.index(name)
    mark, cure = other_separator(names), ""
    if mark:
        cure = f"; {_SEPARATORS[mark]} stands there: from_disk(path, {name!r}, separator={mark!r})"
        cure += ", and decimal=',' for numbers such as 1,5" if mark == ";" else ""
    raise ConfigurationError(f"there is no column {name!r} in the file's first line, which names the columns{cure}.")


def other_separator(names: Sequence[str]) -> str:
    """The mark that separates a first line which was read as one name, "" where there is none or it was read as several."""
    return next((mark for mark in _SEPARATORS if len(names) == 1 and mark in names[0]), "")


def _fields(line: str, separator: str) -> list[str]:
    line = line.removesuffix("\r")
    try:
        return line.split(separator) if '"' not in line else next(csv.reader([line], delimiter=separator))
    except csv.Error:
        return []
