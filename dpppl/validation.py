"""Checks of plain settings: numbers in range, targets, and settings that stay what they were."""

import math
from typing import Any

import numpy as np

from dpppl.errors import ConfigurationError


def positive(value: Any, *, name: str) -> float:
    """`value` as a float, or a ConfigurationError that names the argument.

    >>> positive(2, name="step_size")
    2.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise ConfigurationError(f"{name} must be a positive number, got {type(value).__name__}.")
    if not (value > 0 and math.isfinite(value)):
        raise ConfigurationError(f"{name} must be positive and finite, got {value!r}.")
    return float(value)


def positive_integer(value: Any, *, name: str) -> int:
    """`value`, if it is one.

    >>> positive_integer(3, name="thinning")
    3
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        what = repr(value) if isinstance(value, int | float) else type(value).__name__  # an array may hold data
        raise ConfigurationError(f"{name} must be a positive integer, got {what}.")
    return int(value)


class Fixed:
    """Settings, which are attributes without an underscore, are set once: what was accounted is what runs."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name in vars(self):
            raise ConfigurationError(
                f"{name} is a setting of this {type(self).__name__}, fixed when it was made; make a new one."
            )
        super().__setattr__(name, value)
