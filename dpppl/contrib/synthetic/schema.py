"""The public description of a table: names, categories, ranges and rounding, never inferred from data."""

import json
import os
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpppl.data.entries import categories_of, declared, entries_of, number, numbers_of
from dpppl.errors import ConfigurationError
from dpppl.types import Foreign, Tree
from dpppl.validation import a, checked, checked_fields

Array = np.ndarray
LEFT_OUT = (
    "an entry is missing, or not in the schema; spell entries as the schema does, or name a category for missing ones"
)
"""Why a row is not used, and the cure."""
_KEYS: dict[str, tuple[str, ...]] = {"categories": (), "edges": ("decimals",), "range": ("decimals", "log")}
"""By the key that says a column's kind in a schema file: what else it may give."""


@checked_fields
@dataclass(frozen=True)
class Category:
    """A column with a fixed set of values.

    - **name** - the column's name.
    - **values** - its categories, at least two, as the table spells them.
    """

    name: str
    values: tuple[object, ...]

    def __post_init__(self) -> None:
        values = tuple(self.values) if isinstance(self.values, Sequence) and not isinstance(self.values, str) else ()
        object.__setattr__(self, "values", values)
        plain = [value for value in values if isinstance(value, str) or _is_number(value)]
        known = {value if isinstance(value, str) else number(value) for value in plain}
        if len(values) < 2 or len(known) < len(values) or len(set(map(str, values))) < len(values):
            raise ConfigurationError(
                f"column '{self.name}' needs two or more different categories, each a text or a finite number, as in "
                f"Category('{self.name}', ('F', 'M'))."
            )

    def encoded(self, column: Sequence[object]) -> tuple[Array, Array]:
        """Codes 0, 1, ... (N,) int32, and whether each entry is one of the categories, (N,) bool. Text "1" is the category 1."""
        self.check(column)
        codes = categories_of(entries_of(column), self.values)
        return np.maximum(codes, 0), codes >= 0

    def check(self, column: Foreign) -> None:
        """Raise ConfigurationError for a column whose type, not an entry, says that none of its entries is a category."""
        kind, texts = declared(column), [isinstance(value, str) for value in self.values]
        if kind == "time" or (kind == "number" and all(texts)):
            raise ConfigurationError(_wrong(self.name, column, "write the categories as the table has them"))

    def decoded(self, codes: Array, random: np.random.Generator) -> Any:
        """The categories of codes (N,), as a pandas Categorical; `random` is not used."""
        import pandas as pd

        return pd.Categorical.from_codes(np.asarray(codes, int), categories=list(self.values))

    def features(self, codes: object) -> Any:
        """Indicators of all categories but the first, (N, len(values) - 1)."""
        import jax

        return jax.nn.one_hot(codes, len(self.values))[..., 1:]

    @property
    def size(self) -> int:
        """Number of categories."""
        return len(self.values)


@checked_fields
@dataclass(frozen=True)
class Number:
    """A column of numbers within a public range.

    - **name** - the column's name.
    - **low**, **high** - the range; an entry outside is moved to the nearest end.
    - **decimals** - digits after the point that synthetic values keep, and both ends have; 0 gives whole numbers.
    - **log** - whether to model log(1 + value - low), for skewed columns.
    """

    name: str
    low: float
    high: float
    decimals: int = 2
    log: bool = False

    def __post_init__(self) -> None:
        if not (_is_number(self.low) and _is_number(self.high) and self.low < self.high):
            raise ConfigurationError(f"column '{self.name}' needs a finite range of two numbers, low below high.")
        _check_ends(self.name, (self.low, self.high), self.decimals)

    def encoded(self, column: Sequence[Any]) -> tuple[Array, Array]:
        """Values moved to [-1, 1], (N,) float32, and whether each entry is a number, (N,) bool."""
        values, known = _numbers(self.name, column, self.low)
        values = self._scaled(np.clip(values, self.low, self.high))
        return values.astype(np.float32), known

    def decoded(self, scaled: Array, random: np.random.Generator) -> Array:
        """Values in the column's unit from scaled ones (N,): within the range, and rounded; `random` is not used."""
        part = np.clip((np.asarray(scaled, float) + 1.0) / 2.0, 0.0, 1.0)
        values = self.low + (np.expm1(part * self._width) if self.log else part * self._width)
        return _whole(np.clip(np.round(values, self.decimals), self.low, self.high), self.decimals)

    def features(self, scaled: Tree) -> Any:
        """The scaled value itself, (N, 1)."""
        return scaled[..., None]

    def _scaled(self, values: Array) -> Array:
        part = np.log1p(values - self.low) if self.log else values - self.low
        return 2.0 * part / self._width - 1.0

    @property
    def _width(self) -> float:
        width = self.high - self.low
        return float(np.log1p(width)) if self.log else width


@checked_fields
@dataclass(frozen=True)
class Intervals:
    """A column of numbers of any shape, in public intervals: each has a share of its own, and values are uniform within it.

    - **name** - the column's name.
    - **edges** - ends of the intervals, increasing, at least three. An interval holds its lower end, and the last one both. An
      entry outside is moved to the nearest end. Give frequent values, such as 40 hours a week, an interval of their own.
    - **decimals** - digits after the point that synthetic values keep, and all edges have; 0 gives whole numbers.

    >>> hours = Intervals("hours", (1, 40, 41, 99), decimals=0)
    >>> codes, known = hours.encoded([38, 40, 60, 99, "?"])
    >>> codes.tolist(), known.tolist(), hours.decoded(np.array([1, 1]), np.random.default_rng(0)).tolist()
    ([0, 1, 2, 2, 0], [True, True, True, True, False], [40, 40])
    """

    name: str
    edges: tuple[float, ...]
    decimals: int = 2

    def __post_init__(self) -> None:
        given = list(self.edges) if isinstance(self.edges, Sequence | np.ndarray) else []
        edges = tuple(map(float, given)) if all(map(_is_number, given)) else ()
        object.__setattr__(self, "edges", edges)
        if len(edges) < 3 or not (np.isfinite(edges).all() and np.all(np.diff(edges) > 0.0)):
            raise ConfigurationError(f"column '{self.name}' needs three or more finite edges, in increasing order.")
        _check_ends(self.name, edges, self.decimals)

    def encoded(self, column: Sequence[Any]) -> tuple[Array, Array]:
        """Numbers of intervals (N,) int32, and whether each entry is a number, (N,) bool."""
        values, known = _numbers(self.name, column, self.edges[0])
        codes = np.searchsorted(self.edges[1:-1], values, side="right")
        return codes.astype(np.int32), known

    def decoded(self, codes: Array, random: np.random.Generator) -> Array:
        """Values (N,) in the column's unit, uniform within the intervals of codes (N,), and rounded down."""
        ends, step = np.array(self.edges), 10.0**-self.decimals
        ends[-1] += step  # the last interval holds both of its ends
        low, high = ends[np.asarray(codes, int)], ends[np.asarray(codes, int) + 1]
        values = np.floor((low + random.random(len(low)) * (high - low)) / step + 1e-9) * step
        return _whole(np.round(np.clip(values, low, self.edges[-1]), self.decimals), self.decimals)

    def features(self, codes: Tree) -> Any:
        """Midpoints of intervals, scaled to [-1, 1], (N, 1)."""
        return self.midpoints[codes][..., None]

    @property
    def size(self) -> int:
        """Number of intervals."""
        return len(self.edges) - 1

    @property
    def midpoints(self) -> Any:
        """Midpoints of all intervals, scaled to [-1, 1], (size,)."""
        import jax.numpy as jnp

        ends = np.array(self.edges)
        return jnp.asarray((ends[1:] + ends[:-1] - ends[0] - ends[-1]) / (ends[-1] - ends[0]), float)


Column = Category | Number | Intervals


@checked_fields
@dataclass(frozen=True)
class Schema:
    """The columns of a table, in the order in which they are modelled: each given those before it.

    - **columns** - `Category`, `Number` and `Intervals` records. All of it is public: write it down without looking at the data.

    >>> schema = Schema((Category("sex", ("F", "M")), Number("age", 0, 100, decimals=0)))
    >>> columns, gaps = schema.encoded({"sex": ["F", "M", "?"], "age": [20, 100, 50]})
    >>> columns["sex"].tolist(), columns["age"].tolist(), gaps.tolist()
    ([0, 1, 0], [-0.6000000238418579, 1.0, 0.0], [0.0, 0.0, nan])
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        columns = tuple(self.columns) if isinstance(self.columns, Sequence) else ()
        object.__setattr__(self, "columns", columns)
        names = [column.name for column in columns if isinstance(column, Category | Number | Intervals)]
        if not names or len(names) < len(columns) or not all(isinstance(name, str) for name in names):
            raise ConfigurationError(
                'a schema is a tuple of columns: Schema((Category("sex", ("F", "M")), Number("age", 0, 100))).'
            )
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"the schema has two columns '{twice}': give each a name of its own.")

    @classmethod
    @checked
    def from_json(cls, path: str | Path) -> "Schema":
        """Read a schema file: {"columns": [{"name": ..., "categories": [...]}, {"name": ..., "range": [low, high]}]}.

        A column of numbers may also give "decimals" and "log". With "edges" in place of "range" it has `Intervals`.
        Raises ConfigurationError for anything else: no entry is converted."""
        if not isinstance(path, str | os.PathLike):
            raise ConfigurationError(f"path must be the path of a schema file, got {a(type(path).__name__)}.")
        columns: list[Column] = []
        try:
            for entry in json.loads(Path(path).read_text(encoding="utf-8-sig"))["columns"]:
                columns.append(_column(entry))
        except OSError:
            raise ConfigurationError(f"{path} cannot be read; write a schema as JSON there.") from None
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}, column {len(columns) + 1}: {error}") from None
        except (ValueError, KeyError, TypeError):
            raise ConfigurationError(
                f'{path} is no schema; write {{"columns": [{{"name": "sex", "categories": ["F", "M"]}}, '
                '{"name": "age", "range": [0, 100], "decimals": 0}]}.'
            ) from None
        return cls(tuple(columns))

    @checked
    def encoded(self, table: Foreign) -> tuple[dict[str, Array], Array]:
        """Encode a table for `table_model`: arrays by column, and `gaps` (N,), 0 or NaN where an entry of the row is missing.

        - **table** - a data frame, or columns by name; only the schema's columns are used.

        A row with a missing entry, or one that the schema does not know, is left out by its gap inside the mechanism. Raises
        ConfigurationError, without a data value, for no rows, and a column that is missing or of another type."""
        entries = {column.name: _of_table(table, column.name) for column in self.columns}
        if len({len(column) for column in entries.values()}) > 1:
            lengths = ", ".join(f"'{name}' has {len(column):,}" for name, column in entries.items())
            raise ConfigurationError(f"the table's columns differ in length, {lengths}: give an entry for each row.")
        if not all(map(len, entries.values())):
            raise ConfigurationError("the table has no rows: give one with at least one row.")
        encoded = {column.name: column.encoded(entries[column.name]) for column in self.columns}
        complete = np.all([known for _, known in encoded.values()], axis=0)
        gaps = np.where(complete, 0.0, np.nan).astype(np.float32)
        return {name: values for name, (values, _) in encoded.items()}, gaps

    def design(self, columns: Mapping[str, Array], names: Sequence[str]) -> tuple[Array, tuple[str, ...]]:
        """Covariates (N, D) float32 for a regression of yours, and a label for each.

        - **columns** - as `encoded` returns them.
        - **names** - the schema's columns to take, in order.

        A category has an indicator for each value but the first; numbers, and midpoints of intervals, are scaled to [-1, 1].

        >>> schema = Schema((Category("sex", ("F", "M")), Number("age", 0, 100)))
        >>> x, labels = schema.design(schema.encoded({"sex": ["F", "M"], "age": [20, 100]})[0], ["sex", "age"])
        >>> labels, x.tolist()
        (('sex=M', 'age'), [[0.0, -0.6000000238418579], [1.0, 1.0]])
        """
        if not isinstance(columns, Mapping):
            raise ConfigurationError(f"columns is {a(type(columns).__name__)}; give schema.encoded(table)[0].")
        known = {column.name: column for column in self.columns}
        if isinstance(names, str) or not names or not all(name in known and name in columns for name in names):
            raise ConfigurationError(f"names is a list of the schema's columns, which are {', '.join(known)}.")
        x = np.concatenate([np.asarray(known[name].features(columns[name])) for name in names], axis=1)
        return x.astype(np.float32), tuple(label for name in names for label in labels_of(known[name]))


def labels_of(column: Column) -> list[str]:
    """Labels of the features of a column."""
    return [f"{column.name}={v}" for v in column.values[1:]] if isinstance(column, Category) else [column.name]


def _of_table(table: Foreign, name: str) -> Foreign:
    """A column of a table. Raises ConfigurationError, without a data value."""
    try:
        column = table[name]
    except Exception:  # what other libraries say may hold values
        is_path = isinstance(table, str | os.PathLike)
        cure = "read the file first, pandas.read_csv(path)" if is_path else "give a data frame or a dict that has it"
        raise ConfigurationError(
            f"the table, {a(type(table).__name__)}, has no column '{name}', which the schema names: {cure}."
        ) from None
    if hasattr(column, "columns"):
        raise ConfigurationError(f"the table has several columns '{name}': give each a name of its own.")
    shape = getattr(column, "shape", None) or (hasattr(column, "__len__") and (len(column),))
    if isinstance(column, str | bytes | Mapping | Set) or not shape or len(shape) != 1:
        raise ConfigurationError(
            f"column '{name}' of the table is a {type(column).__name__}: give a list or an array, an entry a row."
        )
    return column


def _column(entry: Mapping[str, Any]) -> Column:
    """A column of a schema file. Its entries are checked, not converted."""
    if not any({"name", kind} <= set(entry) <= {"name", kind, *more} for kind, more in _KEYS.items()):
        raise ConfigurationError(
            "a column gives its name, and categories, or edges and decimals, or range, decimals and log: leave out all else."
        )
    name, options = entry["name"], {key: value for key, value in entry.items() if key in _KEYS["range"]}
    if "categories" in entry:
        return Category(name, entry["categories"])
    if "edges" in entry:
        return Intervals(name, entry["edges"], **options)
    low, high = entry["range"]
    return Number(name, low, high, **options)


def _is_number(value: Any) -> bool:
    return not isinstance(value, str | bytes) and bool(np.isfinite(number(value)))


def _check_ends(name: str, ends: Sequence[float], decimals: int) -> None:
    """Raise ConfigurationError for an end that rounded values cannot have: they would lie outside of it."""
    for end in ends:
        if abs(np.round(end, decimals) - end) > 1e-9 * max(1.0, abs(end)):
            raise ConfigurationError(f"column '{name}' has the end {end:g}: give more decimals, or round it.")


def _numbers(name: str, column: Foreign, otherwise: float) -> tuple[Array, Array]:
    """Entries (N,) as numbers, `otherwise` for those that are none, and whether each is one, (N,) bool."""
    if declared(column) == "time":
        raise ConfigurationError(_wrong(name, column, "pass numbers, such as days since a public date"))
    values = numbers_of(entries_of(column), float)
    known = np.isfinite(values)
    return np.where(known, values, otherwise), known


def _wrong(name: str, column: Foreign, cure: str) -> str:
    dtype = re.split(r"[\[(<,]", str(getattr(column, "dtype", getattr(column, "type", ""))))[0]
    return f"column '{name}' of the table is of type {dtype}, and the schema's is another: {cure}."


def _whole(values: Array, decimals: int) -> Array:
    """Rounded values, as integers where they have no decimals."""
    return values.astype(np.int64) if decimals == 0 else values
