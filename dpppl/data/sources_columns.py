"""Tables of columns: a source is one column, or several columns stacked."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpppl.data.sources import Array, Source
from dpppl.errors import ConfigurationError

Columns = Mapping[Any, tuple[tuple[int, ...], np.dtype[Any]]]
"""By name: shape and dtype of one row's value."""


class ColumnSource(Source):
    """Columns of a table. `source["a"]` is the source of one, (N, ...); `source[["a", "b"]]` of several with equal shapes,
    (N, 2, ...)."""

    def __getitem__(self, key: Any) -> Source:
        table: Any = self.table
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


def of_table(table: Any) -> Source:
    """The source of a table with `columns`: of its only one, or one of which columns are to be chosen."""
    if len(table.columns) == 1:
        return ColumnSource(table, None, (), np.dtype(object))[next(iter(table.columns))]
    record = np.dtype([(str(name), dtype, shape) for name, (shape, dtype) in table.columns.items()])
    return ColumnSource(table, None, (table.num_rows,), record)


def columns_of(keys: list[Any]) -> list[Any]:
    """The names of all columns that these sources need, each once."""
    return list(dict.fromkeys(name for key in keys for name in (key if isinstance(key, tuple) else (key,))))


def arranged(keys: list[Any], column: Callable[[Any], Array]) -> list[Array]:
    """The rows of each source, from those of each column."""
    found = {name: column(name) for name in columns_of(keys)}
    return [np.stack([found[n] for n in key], axis=1) if isinstance(key, tuple) else found[key] for key in keys]
