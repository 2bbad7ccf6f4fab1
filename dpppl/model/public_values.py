"""Which arguments are public without a mark, and the words for those that are public in the report."""

import contextlib
import datetime
import functools
import inspect
import os
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import CodeType

import jax
import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.jaxprs import is_key
from dpppl.model.array_likes import is_list
from dpppl.types import Function, Tree

_NUMBERS = (bool, int, float, complex, np.number, np.bool_)
_LONGEST = 40
_FILES = tuple(".npy .npz .csv .tsv .parquet .arrow .feather .h5 .hdf5 .xlsx .json .txt .gz".split())
_MOST_SETTINGS = 32
_FEW_ARRAYS = 6
_CONTAINERS = (list, tuple, dict, OrderedDict, defaultdict)
_DEEPEST = 10
# Where functions are no user's: their numbers are public with their code.
_LIBRARIES = (
    *(os.path.dirname(path) + os.sep for path in (os.__file__, np.__path__[0])),
    os.path.dirname(jax.__path__[0]),
)
_RULE = (
    "Arrays and data frames of numbers are private rows. Only a number, True, False, None or a string of at most "
    f"{_LONGEST} characters is public without a mark"
)
Test = Callable[[Tree], bool]


def is_setting(value: object) -> bool:
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


def check_marked(name: str, value: Tree, is_array: Test, is_public: Test) -> None:
    """Raise ConfigurationError for an argument that would be public, or hold something public, without a mark.

    - **name**, **value** - the argument, with arrays in place of array-likes.
    - **is_array**, **is_public** - whether a leaf is an array, and whether it is marked."""
    if isinstance(value, os.PathLike) or (isinstance(value, str) and value.lower().endswith(_FILES)):
        raise ConfigurationError(f"argument '{name}' is a file's path; pass its rows, dpppl.from_disk({name}).")
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


def described(names: Sequence[str], leaves: Iterable[tuple[str, Tree]], trees: Iterable[Tree]) -> tuple[str, ...]:
    """Name and type of all that arguments hold and that is not private: from the labels of leaves and their values or shapes,
    and from the arguments' structures, whose keys and static fields are public."""
    found = {name: Counter(_static(tree)) for name, tree in zip(names, trees)}
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


def captured(model: Function, given: Sequence[str], above: tuple[int, ...] = ()) -> tuple[str, ...]:
    """Name and type of the numbers that a model takes from outside its call: closures, globals, defaults, functools.partial,
    attributes of an object that is called, and the same of the user's functions that it calls.

    - **given** - names of the call's arguments."""
    found: dict[str, object] = {}
    if id(model) in above or len(above) > _DEEPEST:
        return ()
    inner = getattr(model, "__wrapped__", None) or getattr(model, "__func__", None)
    if isinstance(model, functools.partial):
        found |= {f"args[{number}]": value for number, value in enumerate(model.args)} | model.keywords
        inner = model.func
    if inspect.isfunction(model):
        if model.__code__.co_filename.startswith(_LIBRARIES):
            return ()
        for name, cell in zip(model.__code__.co_freevars, model.__closure__ or ()):
            with contextlib.suppress(ValueError):  # not assigned yet
                found[name] = cell.cell_contents
        found |= {name: model.__globals__[name] for name in _names(model.__code__) if name in model.__globals__}
        found |= {p.name: p.default for p in inspect.signature(model).parameters.values() if p.default is not p.empty}
    elif inner is None and callable(model) and not inspect.isclass(model):
        found |= getattr(model, "__dict__", {})
    owner = getattr(model, "__self__", None)
    found |= {} if owner is None or inspect.ismodule(owner) else {"self": owner}
    counted = ((name, _numbers(value)) for name, value in found.items() if name not in given)
    words = [f"captured '{name}' ({kind})" for name, kind in counted if kind]
    for value in (inner, *found.values()):
        if callable(value) and not inspect.isclass(value):
            words += captured(value, (), (*above, id(model)))
    return tuple(dict.fromkeys(words))


def _names(code: CodeType) -> set[str]:
    """Names that a function's code looks up, those of functions in it included."""
    return set(code.co_names).union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _numbers(value: Tree) -> str:
    """The type of a value that is, or holds, single numbers; nothing for others, and for arrays, whose shapes are listed."""
    if callable(value) or inspect.ismodule(value):  # the module jax.lax has a function `dtype`
        return ""
    if isinstance(value, _NUMBERS) or (hasattr(value, "dtype") and np.size(value) == 1 and not is_key(value)):
        return str(getattr(value, "dtype", type(value).__name__))
    if hasattr(value, "dtype"):
        return ""
    plain = isinstance(value, (*_CONTAINERS, set, frozenset))
    held = list(value) if isinstance(value, set | frozenset) else value if plain else getattr(value, "__dict__", None)
    try:
        leaves = (leaf for leaf in jax.tree.leaves(held) if hasattr(leaf, "dtype") or not hasattr(leaf, "__dict__"))
        count = sum(bool(_numbers(leaf)) for leaf in leaves)
    except Exception:
        return type(value).__name__
    return f"{type(value).__name__} of {count} number{'s' * (count > 1)}" if count else ""


def _static(tree: Tree) -> Iterable[str]:
    """Words for what a structure holds besides leaves: keys of dicts, and static fields and aux data of other nodes."""
    found = tree.node_data()
    if found is None:
        return
    kind, static = found
    if kind not in (list, tuple, type(None)):
        where = "the keys of a dict" if kind in _CONTAINERS else f"a {kind.__name__}"
        for each in jax.tree.leaves(static, is_leaf=lambda leaf: leaf is None):
            if each is not None and not isinstance(each, type):
                yield f"{type(each).__name__} in {where}"
    for child in tree.children():
        yield from _static(child)


def _has_plain_structure(tree: Tree) -> bool:
    """Whether what a tree holds besides its leaves, as keys of dicts and static fields, are a few names and numbers."""
    found = tree.node_data()
    if found is None:
        return True
    kind, static = found
    if kind not in (list, tuple, type(None)):
        settings = jax.tree.leaves(static, is_leaf=lambda leaf: leaf is None)
        types = [each for each in settings if not isinstance(each, type)]  # of a default dict, of a named tuple
        if not all(map(is_setting, types)) or (kind not in _CONTAINERS and len(types) > _MOST_SETTINGS):
            return False
    return all(map(_has_plain_structure, tree.children()))


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "a string" if len(value) <= _LONGEST else f"a string of more than {_LONGEST} characters"
    return f"a {type(value).__name__}"


def _refusal(name: str, value: object, kind: str, held: Sequence[object]) -> str:
    return (
        f"argument '{name}' is {kind}. {_RULE}. If '{name}' holds rows, pass {_as_numbers(name, value, held)}; if it tells "
        f"nothing of a row, pass dpppl.Public({name})."
    )


def _as_numbers(name: str, value: object, held: Sequence[object]) -> str:
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
