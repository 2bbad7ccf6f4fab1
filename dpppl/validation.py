"""Checks of a user's numbers, before anything is run or charged, and settings that cannot be changed."""

import difflib
import functools
import inspect
import math
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dpppl.errors import ConfigurationError, forgetting

T = TypeVar("T")


def plain(value: Any) -> Any:
    """A number that is given as an array without axes, or as NumPy's, as Python's; anything else as it is.

    >>> plain(np.array(2.5)), plain("auto")
    (2.5, 'auto')
    """
    jax = sys.modules.get("jax")  # a ledger does without it
    is_array = isinstance(value, np.generic | np.ndarray)
    if jax is not None and isinstance(value, jax.Array):
        is_array = not isinstance(value, jax.core.Tracer)
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


def check_target(epsilon: Any, delta: Any) -> None:
    """Reject an invalid budget: `epsilon` is positive and finite, `delta` in (0, 1) and not larger; either may be None.

    Raises ConfigurationError, also for an epsilon without a delta."""
    if delta is not None and not (positive(delta, name="target_delta") < 1.0):
        raise ConfigurationError(f"target_delta {delta!r} must be in (0, 1); take less than 1 / number of rows.")
    if epsilon is None:
        return
    positive(epsilon, name="target_epsilon")
    if delta is None:
        raise ConfigurationError("target_epsilon needs target_delta.")
    if delta > epsilon:
        raise ConfigurationError(
            f"target_delta {float(delta):g} is larger than target_epsilon {float(epsilon):g}, so they seem to be swapped: write "
            f"target_epsilon={float(delta):g}, target_delta={float(epsilon):g}. A mechanism with such a delta may publish rows."
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
    """An `__init__` that says which of its arguments are wrong: those that it does not have, and those that it lacks.

    The call then raises ConfigurationError, with the name that was probably meant; or with the reason that the class's
    `_NO_ARGUMENT` gives, by name, for an argument that it does not have."""
    signature = inspect.signature(init)

    @forgetting
    @functools.wraps(init)
    def checked(self: object, *args: object, **kwargs: object) -> None:
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            names = [name for name in inspect.signature(type(self)).parameters if name not in kwargs]
            wrong = [name for name in kwargs if f"'{name}'" in str(error)]
            close = [known for known in names if wrong and wrong[0] in known]
            close = close or difflib.get_close_matches("".join(wrong[:1]), names, 1, 0.65)
            reason = getattr(type(self), "_NO_ARGUMENT", {}).get("".join(wrong[:1]))
            if reason is not None:
                raise ConfigurationError(f"{type(self).__name__} has no argument {wrong[0]}: {reason}") from None
            meant = f"did you mean {close[0]}?" if close else f"its arguments are {', '.join(names)}."
            raise ConfigurationError(f"{type(self).__name__}: {error}; {meant}") from None
        init(self, *args, **kwargs)

    return checked


def checked_type(cls: type[T]) -> type[T]:
    """A class whose `__init__` is checked, as by `checked_call`."""
    setattr(cls, "__init__", checked_call(vars(cls)["__init__"]))  # noqa: B010
    return cls


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


class Fixed:
    """Settings, which are attributes without an underscore, are set once: what was accounted is what runs."""

    def __setattr__(self, name: str, value: object) -> None:
        is_property = isinstance(getattr(type(self), name, None), property)
        if not name.startswith("_") and (is_property or name in vars(self)):
            raise ConfigurationError(
                f"{name} is a setting of this {type(self).__name__}, fixed when it was made; make a new one."
            )
        super().__setattr__(name, value)
