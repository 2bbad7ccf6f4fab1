"""Checks of a user's numbers, before anything is run or charged, and settings that cannot be changed."""

import difflib
import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from dpppl.errors import ConfigurationError, forgetting

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


def plain(value: Any) -> Any:
    """A number that is given as an array without axes, or as NumPy's, as Python's; anything else as it is.

    >>> plain(np.array(2.5)), plain("auto")
    (2.5, 'auto')
    """
    jax = sys.modules.get("jax")  # a ledger does without it
    is_array = isinstance(value, np.generic | np.ndarray)
    if jax is not None and isinstance(value, jax.Array):
        is_array = not isinstance(value, jax.core.Tracer) and isinstance(value.dtype, np.dtype)  # no key
    return value.item() if is_array and np.shape(value) == () else value


def positive(value: object, *, name: str) -> float:
    """`value` as a float. Raises ConfigurationError, naming the argument, unless it is a positive, finite number.

    >>> positive(2, name="temperature")
    2.0
    """
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name} must be a positive number, got {type(value).__name__}.")
    if not 0 < value < math.inf or (isinstance(value, int) and value > sys.float_info.max):
        raise ConfigurationError(f"{name} must be positive and finite, got {in_words(value)}.")
    return float(value)


def fraction(value: object, *, name: str) -> float:
    """`value` as a float. Raises ConfigurationError, naming the argument, unless it is a number in (0, 1).

    >>> fraction(0.9, name="level")
    0.9
    """
    if positive(value, name=name) >= 1.0:
        raise ConfigurationError(f"{name} must be in (0, 1), such as {name}=0.9, which is 90 %.")
    return float(plain(value))


def positive_integer(value: object, *, name: str) -> int:
    """`value` as an int. Raises ConfigurationError, naming the argument, unless it is a whole number of at least 1.

    >>> positive_integer(3, name="num_steps")
    3
    """
    value = plain(value)
    if isinstance(value, float):  # in words: it may be a row's value that was misplaced
        raise ConfigurationError(
            f"{name} must be a positive integer, got a float; round it, int({name.split(': ')[-1]})."
        )
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{name} must be a positive integer, got {type(value).__name__}.")
    if value < 1:
        raise ConfigurationError(f"{name} must be a positive integer, got {in_words(value)}.")
    return value


def element_name(site: str, place: Sequence[int]) -> str:
    """The name of an element of a site: "w[0,1]", or the site itself where it has one."""
    return f"{site}[{','.join(map(str, place))}]" if len(place) else site


def in_words(value: object) -> str:
    """A setting that is refused, which may be a row's value that was misplaced, in words.

    >>> in_words(-2.5), in_words([2.5])
    ('a negative number', 'a list')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"a {type(value).__name__}"
    if value == 0:
        return "0"
    return "a negative number" if value < 0 else "NaN" if value != value else "a number too large"


def optional(check: Callable[..., T], value: object, *, name: str) -> T | None:
    """`check(value, name=name)`; None stays None.

    >>> optional(positive, None, name="step_size") is None
    True
    """
    return None if value is None else check(value, name=name)


def check_target(epsilon: float | None, delta: float | None) -> None:
    """Reject an invalid budget: `epsilon` is positive and finite, `delta` in (0, 1) and not larger; either may be None.

    Raises ConfigurationError, also for an epsilon without a delta."""
    if delta is not None and not (positive(delta, name="target_delta") < 1.0):
        raise ConfigurationError(f"target_delta {delta!r} must be in (0, 1); take less than 1 / number of rows.")
    if epsilon is None:
        return
    positive(epsilon, name="target_epsilon")
    if delta is None:
        raise ConfigurationError("target_epsilon needs target_delta.")
    check_not_swapped(epsilon, delta, "target_")


def check_not_swapped(epsilon: float, delta: float, prefix: str = "") -> None:
    """Raise ConfigurationError for a delta above epsilon; `prefix` is that of the arguments' names."""
    if delta > epsilon:
        raise ConfigurationError(
            f"{prefix}delta {float(delta):g} is larger than {prefix}epsilon {float(epsilon):g}, so they seem to be swapped: "
            f"write {prefix}epsilon={float(delta):g}, {prefix}delta={float(epsilon):g}. A mechanism with such a delta may "
            "publish rows."
        )


def check_num_data(declared: int | None, num_rows: int) -> None:
    """Raise ConfigurationError where the declared number of rows, or of units, is not the number that is given.

    The refusal tells nothing that is private: rows are arrays of N rows, and N is public under each relation that a run states,
    zero-out and replace-one. A run whose relation hides N would have to neither refuse nor truncate here."""
    if declared is not None and declared != num_rows:
        raise ConfigurationError(
            f"num_data={declared} is declared, and there are {num_rows} rows (or units): write num_data={num_rows}, or leave it "
            "out."
        )


def checked_call(init: Callable[..., None]) -> Callable[..., None]:
    """An `__init__` that says which of its arguments are wrong: those that it does not have or lacks, and switches by a word or a
    number.

    The call then raises ConfigurationError, with the name that was probably meant; or with the reason that the class's
    `_NO_ARGUMENT` gives, by name, for an argument that it does not have."""
    signature = inspect.signature(init)

    @forgetting
    @functools.wraps(init)
    def checked(self: object, *args: object, **kwargs: object) -> None:
        cls = type(self)
        names = list(inspect.signature(cls).parameters)
        reasons: Mapping[str, str] = getattr(cls, "_NO_ARGUMENT", {})
        bound = check_bound(signature, (self, *args), kwargs, cls.__name__, names, reasons)
        for name, value in bound.arguments.items():
            if signature.parameters[name].annotation is bool:
                _check_declared(name, value, signature.parameters[name], cls.__doc__)
        init(self, *args, **kwargs)

    return checked


def checked_type(cls: type[T]) -> type[T]:
    """A class whose `__init__` is checked, as by `checked_call`."""
    setattr(cls, "__init__", checked_call(vars(cls)["__init__"]))  # noqa: B010
    return cls


def checked_fields(cls: type[T]) -> type[T]:
    """A data class whose `__init__` is checked, as by `checked`."""
    setattr(cls, "__init__", checked(vars(cls)["__init__"], cls.__name__, cls.__doc__))  # noqa: B010
    return cls


def checked(function: Callable[P, R], name: str | None = None, doc: str | None = None) -> Callable[P, R]:
    """A function whose arguments are checked by its signature: their names and number, and the types of those that it declares as
    a number, text, a truth value, a function, a sequence, a mapping or a class of dpppl. A wrong call raises ConfigurationError,
    with what the docstring says of an argument of another type."""
    signature = inspect.signature(function)
    names = [parameter for parameter in signature.parameters if parameter not in ("self", "cls")]
    told = function.__name__ if name is None else name

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = check_bound(signature, args, kwargs, told, names, {})
        for parameter, value in bound.arguments.items():
            _check_declared(parameter, value, signature.parameters[parameter], doc or function.__doc__)
        return function(*args, **kwargs)

    return wrapper


def check_bound(
    signature: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object], what: str,
    names: Sequence[str], reasons: Mapping[str, str],
) -> inspect.BoundArguments:  # fmt: skip
    """The call's arguments, by name. Raises ConfigurationError for a call that a signature does not take.

    - **what**, **names** - the words for what is called, and the arguments that it has.
    - **reasons** - why it does not have an argument, by name."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        last = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
        unknown = [name for name in kwargs if f"'{name}'" in str(error)]
        unknown += [name for name in kwargs if last not in names and name not in {*signature.parameters, *names}]
        wrong, said = "".join(unknown[:1]), str(error)
        if f"'{wrong}'" not in said and wrong:
            said = f"got an unexpected keyword argument '{wrong}'"
        if wrong in reasons:
            raise ConfigurationError(f"{what} has no argument {wrong}: {reasons[wrong]}") from None
        free = [name for name in names if name not in kwargs]
        close = [known for known in free if wrong and wrong.lower() in known.lower()]
        close = close or difflib.get_close_matches(wrong, free, 1, 0.65)
        close = close or [known for known in free if known == _ELSEWHERE.get(wrong)]
        meant = f"did you mean {close[0]}?" if close else f"its arguments are {', '.join(names) or 'none'}."
        raise ConfigurationError(f"{what}: {said}; {meant}") from None


_ELSEWHERE = {
    "max_grad_norm": "clipping_norm", "l2_norm_clip": "clipping_norm", "sigma": "noise_multiplier", "lr": "step_size",
    "learning_rate": "step_size",
}  # fmt: skip
"""The names that other libraries have for an argument."""
_DECLARED: dict[str, tuple[Any, str]] = {
    "float": ((int, float), "a number"),
    "int": (int, "a whole number"),
    "str": (str, "text"),
    "bool": (bool, "True or False"),
    "Callable": (Callable, "a function"),
    "Mapping": (Mapping, "a dict"),
    "Sequence": (Iterable, "a list"),
}


def _check_declared(name: str, value: object, parameter: inspect.Parameter, doc: str | None) -> None:
    """Raise ConfigurationError where an argument is not of the type that its annotation declares, as far as this knows it."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or value is parameter.default:
        return
    declared, value = parameter.annotation, plain(value)
    words = declared if isinstance(declared, str) else str(declared).replace("collections.abc.", "")
    words = declared.__name__ if isinstance(declared, type) and "[" not in words else words
    if words.endswith(" | None") and value is None:
        return
    kind, _, inner = words.removesuffix(" | None").partition("[")
    if "|" in inner.rpartition("]")[2] or "|" in kind:
        return
    types, what = _DECLARED.get(kind, (object, ""))
    if isinstance(declared, type) and declared.__module__.startswith("dpppl."):
        types, what = declared, a(declared.__name__)
    is_text = kind == "Sequence" and isinstance(value, str)
    if isinstance(value, types) and not is_text and (kind not in ("int", "float") or not isinstance(value, bool)):
        return
    given, inner, cure = type(value).__name__, inner.removesuffix("]"), ""
    if kind == "int" and isinstance(value, float):
        cure = f"; round it, int({name})"
    elif kind == "int" and isinstance(value, list | np.ndarray):
        cure = f"; for their number write len({name})"
    elif kind == "Sequence" and given in (inner, "int" if inner == "float" else ""):
        cure = f"; write [{name}]"
    elif kind in ("Sequence", "Mapping") and hasattr(value, name):
        cure = f"; give its .{name}"
    if said := re.search(
        rf"- \*\*(?:\w+\*\*, \*\*)*{name}\*\*.*?(?: -|:) (.+?)(?:\.\s|\.?$|\n\n|\n +- \*\*)", doc or "", re.DOTALL
    ):
        cure += f" ({name}: {' '.join(said[1].replace('`', '').split())})"
    raise ConfigurationError(f"{name} must be {what}, got {'None' if value is None else a(given)}{cure}.")


def a(name: str) -> str:
    """A word with its article.

    >>> a("int"), a("dict")
    ('an int', 'a dict')
    """
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def full_signature(cls: type) -> inspect.Signature:
    """Signature of a class whose `__init__` hands `**settings` on to its base's: its own parameters, then the base's keywords."""
    parameters: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        found = inspect.signature(vars(base)["__init__"]).parameters if "__init__" in vars(base) else {}
        parameters = {**parameters, **{n: p for n, p in found.items() if n not in parameters}}
        if not any(p.kind is p.VAR_KEYWORD for p in found.values()) and found:
            break
    kept = [p for name, p in parameters.items() if name != "self" and p.kind is not p.VAR_KEYWORD]
    return inspect.Signature(kept)


def not_set(of: object, name: str) -> ConfigurationError:
    """The error for an attribute that is not set: a setting, or what follows from settings and runs."""
    kind = type(of).__name__
    if name in full_signature(type(of)).parameters:
        return ConfigurationError(
            f"{name} is a setting of this {kind}, fixed when it was made; make a new one, {kind}(..., {name}=...)."
        )
    return ConfigurationError(
        f"{name} of this {kind} follows from its settings and its runs, and is not set: keep what you make of it in a variable "
        "of your own."
    )


class Fixed:
    """Settings, which are attributes without an underscore, are set once: what was accounted is what runs."""

    def __setattr__(self, name: str, value: object) -> None:
        is_set = name in vars(self) or getattr(getattr(type(self), name, None), "fset", self) is None
        if not name.startswith("_") and is_set:
            raise not_set(self, name)
        super().__setattr__(name, value)
