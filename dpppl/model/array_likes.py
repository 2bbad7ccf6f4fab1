"""Data frames, series and lists of numbers among a model's arguments, as arrays."""

import re
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import jax
import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.types import Foreign

_NUMBERS = "biufc"
_ARRAYS = (np.ndarray, jax.Array, jax.ShapeDtypeStruct)
IsPublic = Callable[[Any], bool]


def with_arrays(labels: Sequence[str], values: Sequence[Any], is_public: IsPublic) -> list[Any]:
    """Replace data frames, series (of pandas, polars and others), other array-likes and lists of numbers by NumPy arrays. A
    list counts if it is as long as the data or, where no argument is an array, as the longest list.

    `is_public` says which leaves are marked as public; lists under them stay. Neither pandas nor polars is imported. Raises
    ConfigurationError, naming argument and column, for an argument that is not an array of numbers; it never shows a value."""
    _check_indices(labels, values, is_public)
    found = [_map(_as_array, n, v, _is_whole) for n, v in zip(labels, values)]
    private = [leaf for leaf in jax.tree.leaves(found, is_leaf=is_public) if not is_public(leaf)]
    lengths = {np.shape(leaf)[0] for leaf in private if isinstance(leaf, _ARRAYS) and np.shape(leaf)}
    if not lengths:
        is_list = lambda value: is_public(value) or _is_numbers(value)  # noqa: E731
        leaves = [leaf for value in found for leaf in jax.tree.leaves(value, is_leaf=is_list)]
        lengths = {max((len(leaf) for leaf in leaves if _is_numbers(leaf)), default=0)}

    def is_column(value: jax.Array) -> bool:
        return _is_numbers(value) and len(value) in lengths

    def taken(label: str, value: Any) -> Any:
        return _list_as_array(label, value) if is_column(value) else value

    return [_map(taken, n, v, lambda leaf: is_public(leaf) or is_column(leaf)) for n, v in zip(labels, found)]


def _check_indices(labels: Sequence[str], values: Sequence[object], is_public: IsPublic) -> None:
    """Refuse private frames and series of pandas whose rows are not in one order by their indices: arrays go by position.

    The refusal shows how two tables were joined, as one for their lengths does, and no value of either."""
    found: list[tuple[str, Any]] = []
    for label, value in zip(labels, values):
        for path, leaf in jax.tree_util.tree_leaves_with_path(
            value, is_leaf=lambda x: is_public(x) or isinstance(x, Iterator)
        ):
            if (
                type(leaf).__module__.partition(".")[0] == "pandas"
                and hasattr(leaf, "dtypes")
                and hasattr(leaf, "index")
            ):
                found.append((label + jax.tree_util.keystr(path), leaf.index))
    for label, index in found[1:]:
        first, of_first = found[0]
        if len(index) == len(of_first) and not index.equals(of_first):
            raise ConfigurationError(
                f"arguments '{first}' and '{label}' have different indices, and rows are matched by position. To match them by "
                f"index, pass {label}.loc[{first}.index]; if their positions match, pass {label}.to_numpy()."
            )


def _is_whole(leaf: jax.Array) -> bool:
    """Whether a value is looked at as it is, whatever parts JAX finds in it: an iterator, or JAX's sparse array."""
    return isinstance(leaf, Iterator) or hasattr(type(leaf), "todense")


def _map(function: Callable[[str, Any], Any], label: str, value: jax.Array, is_leaf: IsPublic) -> Any:
    def at(path: Any, leaf: Any) -> Any:
        return function(label + jax.tree_util.keystr(path).replace("[<flat index 0>]", ""), leaf)  # of Public

    return jax.tree_util.tree_map_with_path(at, value, is_leaf=is_leaf)


def _is_numbers(value: jax.Array) -> bool:
    """Whether a value is a list or tuple, maybe of lists, that holds numbers only."""
    if not isinstance(value, list | tuple):
        return False
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, int | float | complex | np.number | np.bool) for leaf in leaves)


def _list_as_array(label: str, value: list[object]) -> Any:
    try:
        array = np.asarray(value)
        array = (
            array.astype(float) if array.dtype == object else array
        )  # None is NaN, whole numbers of any size are floats
    except (ValueError, TypeError, OverflowError):
        array = np.empty(0, object)
    return _checked(
        array, f"argument '{label}' is a {type(value).__name__} whose entries are not alike; pass an array."
    )


def _as_array(label: str, value: jax.Array) -> Any:
    """`value` as a NumPy array if it is array-like; itself if it is an array, or nothing like one."""
    if isinstance(value, np.ma.MaskedArray):
        raise ConfigurationError(
            f"argument '{label}' is a NumPy masked array; pass {label}.filled(0.0), and what is not masked, "
            f"~numpy.ma.getmaskarray({label}), as an argument of its own for numpyro.handlers.mask."
        )
    if isinstance(value, (*_ARRAYS, np.generic, type)):
        return value
    kind = f"argument '{label}' is a {type(value).__name__}"
    for method in ("toarray", "todense", "collect"):  # a sparse matrix, JAX's sparse array, a lazy frame
        if hasattr(value, method):
            raise ConfigurationError(f"{kind}; pass {label}.{method}().")
    if isinstance(value, Iterator | Set):
        raise ConfigurationError(
            f"{kind}, which has no order or is read only once; pass an array, or a list of numbers."
        )
    if hasattr(value, "to_numpy") and hasattr(value, "columns"):
        columns = value.iter_columns() if hasattr(value, "iter_columns") else (column for _, column in value.items())
        arrays = [_column(f"{_name_of(column, k)} of argument '{label}'", column) for k, column in enumerate(columns)]
        return np.stack(arrays, axis=1) if arrays else np.empty((len(value), 0))
    if hasattr(value, "to_numpy"):
        return _column(f"argument '{label}'", value)
    if hasattr(value, "__array__"):
        try:
            array = np.asarray(value)
        except Exception:  # what it says may hold values
            array = np.empty(0, object)
        return _checked(array, f"{kind} that gives no array of numbers; pass a NumPy or JAX array.")
    if hasattr(value, "__jax_array__"):
        raise ConfigurationError(f"{kind}; pass a NumPy or JAX array.")
    return value


def _column(what: str, series: Foreign) -> Any:
    """The numbers of a series of pandas, polars, Arrow or alike. The series' type decides on the array's: where it allows missing
    values they are NaN, and all numbers are floats, whether any is missing or not."""
    dtype = series.dtype if hasattr(series, "dtype") else series.type
    message = (
        f"{what} is of dtype {re.split('[([<,]', str(dtype))[0]}; arrays are numbers: leave it out, or code it as numbers (text "
        "and categories as 0, 1, ... or one column for each, dates as days)."
    )
    if str(dtype) in ("category", "object"):
        raise ConfigurationError(message)
    try:
        array = _numpy_of(series)
        if not isinstance(dtype, np.dtype) and (_is_number(dtype) or array.dtype.kind in _NUMBERS):
            missing = (value is None or type(value).__name__ == "NAType" for value in array.ravel())
            array = np.where(list(missing), np.nan, array) if array.dtype == object else array
            array = array.astype(float)
    except Exception:  # what it says may hold values
        raise ConfigurationError(message) from None
    return _checked(array, message)


def _name_of(column: Foreign, number: int) -> str:
    """A column's name, or its number where the name could be a value: the first row of a file without a header, say."""
    name = column.name
    return f"column '{name}'" if isinstance(name, str) and name.isidentifier() else f"column number {number}, from 0,"


def _numpy_of(series: Foreign) -> np.ndarray:
    is_arrow = type(series).__module__.partition(".")[0] == "pyarrow"
    return np.asarray(series.to_numpy(zero_copy_only=False) if is_arrow else series.to_numpy())


def _is_number(dtype: object) -> bool:
    """Whether a type that allows missing values is one of numbers or of truth values."""
    return getattr(dtype, "kind", "O") in _NUMBERS or bool(re.match(r"u?int\d|float\d|bool|double", str(dtype).lower()))


def _checked(array: np.ndarray, message: str) -> Any:
    if array.dtype.kind not in _NUMBERS:
        raise ConfigurationError(message)
    return array
