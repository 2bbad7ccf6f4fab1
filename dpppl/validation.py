"""What every number that a user gives is checked for, before anything is run or charged; settings that stay as they are."""

import math
import sys
from typing import Any

import numpy as np

from dpppl.errors import ConfigurationError


def positive(value: Any, *, name: str) -> float:
    """`value` as a float. Raises ConfigurationError, naming the argument, unless it is a positive, finite number.

    >>> positive(2, name="temperature")
    2.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise ConfigurationError(f"{name} must be a positive number, got {type(value).__name__}.")
    if not 0 < value < math.inf or (isinstance(value, int) and value > sys.float_info.max):
        raise ConfigurationError(f"{name} must be positive and finite, got {value!r}.")
    return float(value)


def positive_integer(value: Any, *, name: str) -> int:
    """`value` as an int. Raises ConfigurationError, naming the argument, unless it is a whole number of at least 1.

    >>> positive_integer(3, name="num_steps")
    3
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ConfigurationError(f"{name} must be a positive integer, got {type(value).__name__}.")
    if value < 1:
        raise ConfigurationError(f"{name} must be a positive integer, got {value!r}.")
    return int(value)


def check_target(epsilon: Any, delta: Any) -> None:
    """Refuse a budget that is none: `epsilon` positive and finite, with `delta` in (0, 1); either may be None.

    Raises ConfigurationError, also for an epsilon without a delta."""
    if delta is not None and not (positive(delta, name="target_delta") < 1.0):
        raise ConfigurationError(f"target_delta {delta!r} must be in (0, 1); take less than 1 / number of rows.")
    if epsilon is None:
        return
    positive(epsilon, name="target_epsilon")
    if delta is None:
        raise ConfigurationError("target_epsilon needs target_delta.")


class Fixed:
    """Settings, which are attributes without an underscore, are set once: what was accounted is what runs."""

    def __setattr__(self, name: str, value: Any) -> None:
        is_property = isinstance(getattr(type(self), name, None), property)
        if not name.startswith("_") and (is_property or name in vars(self)):
            raise ConfigurationError(
                f"{name} is a setting of this {type(self).__name__}, fixed when it was made; make a new one."
            )
        super().__setattr__(name, value)
