"""Data frames, series and lists of numbers among a model's arguments, as arrays."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

import jax
import numpy as np

from dpppl.data.entries import declared, numbers_in, numbers_of
from dpppl.data.sources import Source
from dpppl.errors import ConfigurationError
from dpppl.types import Foreign, Tree

ARRAYS = (np.ndarray, jax.Array, jax.ShapeDtypeStruct, Source)
IsPublic = Callable[[Tree], bool]


def with_arrays(labels: Sequence[str], values: Sequence[Tree], is_public: IsPublic) -> list[Tree]:
    """Replace data frames, series (of pandas, polars and others), other array-likes and lists of numbers by NumPy arrays.

    A list as long as the data holds a float32 number for each row, NaN where an entry is none, whatever its entries are; without
    arrays among the arguments, the longest list is as long as the data. `is_public` says which leaves are marked as public;
    lists under them stay, and iterators and sparse arrays are looked at whole. Neither pandas nor polars is imported. Raises
    ConfigurationError, naming argument and column, for an argument that is not an array of numbers; it never shows a value."""
    is_leaf = lambda value: is_public(value) or _is_whole(value)  # noqa: E731
    check_indices(labels, values, is_public)
    found = [_map(_as_array, n, v, _is_whole) for n, v in zip(labels, values)]
    leaves = [leaf for value in found for leaf in jax.tree.leaves(value, is_leaf=is_leaf) if not is_public(leaf)]
    lengths = {np.shape(leaf)[0] for leaf in leaves if isinstance(leaf, ARRAYS) and leaf.shape}
    lengths = lengths or {max((len(leaf) for leaf in leaves if is_list(leaf)), default=0)}

    def taken(label: str, value: Tree) -> Tree:
        if not is_list(value):
            return value
        if len(value) not in lengths:
            kind, length = type(value).__name__, " or ".join(f"{n:,}" for n in sorted(lengths))
            is_other = all(2 * min(len(value), n) <= max(len(value), n) for n in lengths)
            public = f", or, if it tells nothing of a row, dpppl.Public({label})" if is_other else ""
            raise ConfigurationError(
                f"argument '{label}' is a {kind} of {len(value):,} entries, and the data have {length} rows: give a number for "
                f"each row{public}."
            )
        return numbers_of(value)

    return [_map(taken, n, v, is_leaf) for n, v in zip(labels, found)]


def read_by_entry(labels: Sequence[str], values: Sequence[Tree], is_public: IsPublic) -> list[str]:
    """A sentence on each private argument of which no type says what it holds, or whose type JAX lacks; of types alone."""
    found = []
    for label, value in zip(labels, values):
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=lambda x: is_public(x) or _is_whole(x)):
            words = leaf.table.by_entry if isinstance(leaf, Source) else ""
            if is_list(leaf):
                words = "a list: an entry that is not one number counts as missing (a word, a date, 1,5, a dict, a row)"
            elif str(getattr(leaf, "dtype", "")).lower() == "uint64":
                words = f"uint64: numbers above {np.iinfo(np.uint32).max:,}, as ids and hashes are, count as that one"
            if words and not is_public(leaf):
                found.append(f"argument '{label}{jax.tree_util.keystr(path)}' is {words}")
    return found


def is_list(value: object) -> bool:
    """Whether a list or tuple has an entry for each row, rather than columns: arrays, frames or lists longer than itself.

    So no entry of a list of numbers decides it, whatever that entry is."""
    if not isinstance(value, list | tuple) or hasattr(value, "_fields") or not value:
        return False
    return not all(_length(each) > len(value) for each in value)


def _length(value: Tree, depth: int = 0) -> float:
    """The length of a column, or of the shortest in a dict; 0 for what is none. None and marked values are as long as any."""
    try:
        if value is None or hasattr(value, "tree_flatten"):
            return np.inf
        if isinstance(value, Mapping):
            return min((_length(each, depth + 1) for each in value.values()), default=np.inf) if depth < 100 else 0
        is_array = bool(getattr(value, "shape", None)) or hasattr(value, "to_numpy")
        return len(value) if is_array or isinstance(value, list | tuple | Source) else 0
    except Exception:  # an object of a class of its own may raise anything
        return 0


def _is_whole(value: Tree) -> bool:
    return is_list(value) or isinstance(value, Iterator) or hasattr(type(value), "todense")


def check_indices(labels: Sequence[str], values: Sequence[object], is_public: IsPublic) -> None:
    """Refuse private frames and series of pandas whose rows are not in one order by their indices, or, beside what has none, not
    in that of their numbers: arrays go by position.

    The refusal shows how two tables were joined or sorted, as one for their lengths does, and no value of either."""
    found: list[tuple[str, Foreign]] = []
    without: list[tuple[str, Foreign]] = []
    for label, value in zip(labels, values):
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=lambda x: is_public(x) or _is_whole(x)):
            is_of_pandas = type(leaf).__module__.partition(".")[0] == "pandas"
            where = label + jax.tree_util.keystr(path)
            if is_of_pandas and hasattr(leaf, "dtypes") and hasattr(leaf, "index"):
                found.append((where, leaf.index))
            elif not is_public(leaf) and (is_list(leaf) or bool(getattr(leaf, "shape", None))):
                without.append((where, leaf))
    for label, index in found[1:]:
        first, of_first = found[0]
        if len(index) == len(of_first) and not index.equals(of_first):
            by_index = f"To match them by index, pass {label}.reindex({first}.index); " if index.is_unique else ""
            raise ConfigurationError(
                f"arguments '{first}' and '{label}' have different indices, and rows are matched by position. {by_index}"
                f"{'if' if by_index else 'If'} their positions match, pass {label}.to_numpy()."
            )
    for label, index in found:
        other = next((name for name, leaf in without if len(leaf) == len(index)), None)
        if other is not None and getattr(index.dtype, "kind", "") in "iu" and not index.is_monotonic_increasing:
            raise ConfigurationError(
                f"the rows of argument '{label}' are not in the order of its index, '{other}' has no index, and rows are matched "
                f"by position. If '{other}' is in the order of the index, pass {label}.sort_index(); if their positions match, "
                f"pass {label}.to_numpy()."
            )


def _map(function: Callable[[str, Tree], Tree], label: str, value: Tree, is_leaf: IsPublic) -> Tree:
    def at(path: tuple[object, ...], leaf: Tree) -> Tree:
        return function(label + jax.tree_util.keystr(path).replace("[<flat index 0>]", ""), leaf)  # of Public

    return jax.tree_util.tree_map_with_path(at, value, is_leaf=is_leaf)


def _as_array(label: str, value: Tree) -> Tree:
    """`value` as a NumPy array if it is array-like; itself if it is an array, or nothing like one."""
    if isinstance(value, np.ma.MaskedArray):
        raise ConfigurationError(
            f"argument '{label}' is a NumPy masked array; pass {label}.filled(0.0), and what is not masked, "
            f"~numpy.ma.getmaskarray({label}), as an argument of its own for numpyro.handlers.mask."
        )
    if isinstance(value, np.ndarray) and value.dtype.kind in "iufc" and not value.dtype.isnative:
        return value.astype(value.dtype.newbyteorder("="))
    if isinstance(value, (*ARRAYS, np.generic, type, list, tuple)):
        return value
    kind = f"argument '{label}' is a {type(value).__name__}"
    for method in ("toarray", "todense", "collect"):  # a sparse matrix, JAX's sparse array, a lazy frame
        if hasattr(value, method):
            raise ConfigurationError(f"{kind}; pass {label}.{method}().")
    if isinstance(value, Iterator | Set):
        raise ConfigurationError(
            f"{kind}, which has no order or is read only once; pass an array, or a list of numbers."
        )
    if hasattr(value, "columns") and (hasattr(value, "to_numpy") or hasattr(value, "itercolumns")):
        columns: Iterable[tuple[object, Foreign]]
        if hasattr(value, "itercolumns"):  # of pyarrow
            columns = zip(value.schema.names, value.itercolumns())
        else:
            columns = ((c.name, c) for c in value.iter_columns()) if hasattr(value, "iter_columns") else value.items()
        arrays = [_column(f"{_name_of(name, k)} of argument '{label}'", each) for k, (name, each) in enumerate(columns)]
        return np.stack(arrays, axis=1) if arrays else np.empty((len(value), 0))
    if hasattr(value, "to_numpy"):
        return _column(f"argument '{label}'", value)
    if hasattr(value, "__array__"):
        try:
            array = np.asarray(value)
        except Exception:  # what it says may hold values
            array = np.empty(0, object)
        if array.dtype.kind not in "biufc":
            raise ConfigurationError(f"{kind} that gives no array of numbers; pass a NumPy or JAX array.")
        return array
    if hasattr(value, "__jax_array__"):
        raise ConfigurationError(f"{kind}; pass a NumPy or JAX array.")
    return value


def _column(what: str, series: Foreign) -> np.ndarray:
    """The numbers of a series of pandas, polars, Arrow or alike. Its type decides, and no entry, whether it holds numbers."""
    dtype = series.dtype if hasattr(series, "dtype") else series.type
    if declared(series) == "number":
        try:
            return numbers_in(series)
        except Exception:  # what it says may hold values
            pass
    raise ConfigurationError(
        f"{what} is of dtype {re.split('[([<,]', str(dtype))[0]}; arrays are numbers: pass .astype('float32') of it if it holds "
        "numbers, leave it out, or code it as numbers (text and categories as 0, 1, ... or one column for each, dates as days)."
    )


def _name_of(name: object, number: int) -> str:
    """A column's name, or its number where the name could be a value: the first row of a file without a header, say."""
    return f"column '{name}'" if isinstance(name, str) and name.isidentifier() else f"column number {number}, from 0,"
