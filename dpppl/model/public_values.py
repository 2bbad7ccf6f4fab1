"""Which arguments are public without a mark, and the words for those that are public in the report."""

import datetime
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import jax
import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.model.array_likes import is_list
from dpppl.types import Tree

_NUMBERS = (bool, int, float, complex, np.number, np.bool_)
_LONGEST = 40
_MOST_SETTINGS = 32
_FEW_ARRAYS = 6
_CONTAINERS = (list, tuple, dict, OrderedDict, defaultdict)
_RULE = (
    "Arrays and data frames of numbers are private rows. Only a number, True, False, None or a string of at most "
    f"{_LONGEST} characters is public without a mark"
)
Test = Callable[[Any], bool]


def is_setting(value: jax.Array) -> bool:
    """Whether a value is public without a mark: a number of at most 64 bits, a bool, None, or one short string. An object of a
    class made from these may hold more and is none, but for members of an enumeration."""
    if value is None:
        return True
    if type(value).__module__ not in ("builtins", "numpy", "ml_dtypes") and not isinstance(value, Enum):
        return False
    if isinstance(value, str | np.timedelta64):  # NumPy counts the latter among the integers
        return isinstance(value, str) and len(value) <= _LONGEST
    return isinstance(value, _NUMBERS) and not (isinstance(value, int) and abs(value) >= 2**64)


def check_nesting(name: str, value: Tree, above: tuple[int, ...] = ()) -> None:
    """Raise ConfigurationError for a container that holds itself, which JAX cannot flatten, and for a container with an array
    for each row. Its keys may be names of persons, so no error shows them."""
    kind = f"argument '{name}' is a {type(value).__name__}"
    if isinstance(value, _CONTAINERS) and (id(value) in above or len(above) > 100):
        raise ConfigurationError(f"{kind} that holds itself; pass an array.")
    if not isinstance(value, _CONTAINERS) or is_list(value):
        return
    inner = list(value.values() if isinstance(value, dict) else value)
    lengths = [len(x) for x in inner if isinstance(x, list | tuple) or getattr(x, "shape", None)]
    if len(lengths) > _FEW_ARRAYS and len(lengths) >= max(lengths):
        raise ConfigurationError(
            f"{kind} of at least as many arrays or lists as one of them has entries: one for each row, it seems. Pass an array "
            f"whose leading axis is that of the rows, numpy.stack(list({name}.values())) where all have one shape."
        )
    for each in inner:
        check_nesting(name, each, (*above, id(value)))


def check_marked(name: str, value: jax.Array, is_array: Test, is_public: Test) -> None:
    """Raise ConfigurationError for an argument that would be public, or hold something public, without a mark.

    - **name**, **value** - the argument, with arrays in place of array-likes.
    - **is_array**, **is_public** - whether a leaf is an array, and whether it is marked."""
    leaves, tree = jax.tree.flatten(value, is_leaf=is_public)
    if jax.tree_util.treedef_is_leaf(tree):
        if not (is_setting(value) or is_array(value) or is_public(value)):
            raise ConfigurationError(_refusal(name, value, _kind(value), [value]))
        return
    kind = f"a {type(value).__name__}"
    if others := [leaf for leaf in leaves if not (is_array(leaf) or is_public(leaf))]:
        raise ConfigurationError(_refusal(name, value, f"{kind} that holds {_kind(others[0])}", others))
    if not _has_plain_structure(tree):
        raise ConfigurationError(_refusal(name, value, f"{kind} that holds more than arrays", []))


def check_number(names: Sequence[str], num_rows: int, least: int) -> None:
    """Raise ConfigurationError for as many arguments that are single numbers as there are rows, and at least so many."""
    if len(names) >= max(least, num_rows):
        raise ConfigurationError(
            f"{len(names)} arguments are single numbers, as many as there are rows, which may be the rows themselves: pass "
            "them as one array, wrapped in dpppl.Public if it is not private."
        )


def described(names: Sequence[str], leaves: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Name and type of each argument that is not private, from the labels of its leaves and their values or shapes."""
    found: dict[str, Counter[str]] = {name: Counter() for name in names}
    for label, leaf in leaves:
        name = max((name for name in names if label.startswith(name)), key=len)
        is_array = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
        words = f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]" if is_array else type(leaf).__name__
        found[name][words] += 1
    each = {
        name: ", ".join(words if count == 1 else f"{count} {words}" for words, count in types.items())
        for name, types in found.items()
        if types
    }
    return tuple(f"argument '{name}' ({words})" for name, words in each.items())


def _has_plain_structure(tree: Tree) -> bool:
    """Whether what a tree holds besides its leaves, as keys of dicts and static fields, are a few names and numbers."""
    found = tree.node_data()
    if found is None:
        return True
    kind, static = found
    if kind not in (list, tuple, type(None)):
        settings = jax.tree.leaves(static, is_leaf=lambda leaf: leaf is None)
        types = [each for each in settings if not isinstance(each, type)]  # of a default dict, of a named tuple
        known = all(map(is_setting, types)) and (kind in _CONTAINERS or len(types) <= _MOST_SETTINGS)
        if not known:
            return False
    return all(map(_has_plain_structure, tree.children()))


def _kind(value: jax.Array) -> str:
    if isinstance(value, str):
        return "a string" if len(value) <= _LONGEST else f"a string of more than {_LONGEST} characters"
    return f"a {type(value).__name__}"


def _refusal(name: str, value: jax.Array, kind: str, held: Sequence[object]) -> str:
    return (
        f"argument '{name}' is {kind}. {_RULE}. If '{name}' holds rows, pass {_as_numbers(name, value, held)}; if it tells "
        f"nothing of a row, pass dpppl.Public({name})."
    )


def _as_numbers(name: str, value: jax.Array, held: Sequence[object]) -> str:
    """The remedy for an argument: code that passes its rows as numbers."""
    if any(isinstance(each, str) for each in held):
        return f"codes, numpy.array([WORDS.index(word) for word in {name}]), where WORDS is a public list of all words"
    if held and all(isinstance(each, datetime.date | np.datetime64) for each in held):
        return f"days, numpy.asarray({name}, 'datetime64[D]').astype(float)"
    if isinstance(value, Mapping):
        return (
            f"its arrays as arguments of their own, or numbers as one array, numpy.array(list({name}.values()), float)"
        )
    if held and isinstance(value, Iterable):
        return f"numbers, numpy.array(list({name}), float)"
    return "its arrays as arguments of their own"
