"""Decreasing step sizes that optax does not have."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp

from dpppl.errors import ConfigurationError


def polynomial_decay(initial_step_size: float, power: float = 1.0 / 3.0) -> Callable[..., Any]:
    """The schedule h_t = initial_step_size * t^(-power), where t = count + 1 counts from 1.

    A power of 1/3 is optimal for the mean squared error of posterior averages (Li, Chen, Liu, Carin 2019, section 3).
    Raises ConfigurationError unless both are positive and finite and power is at most 1.

    >>> float(polynomial_decay(0.1)(7))
    0.05000000074505806
    """
    if not 0.0 < initial_step_size < float("inf"):
        raise ConfigurationError("polynomial_decay: initial_step_size must be positive and finite.")
    if not 0.0 < power <= 1.0:
        raise ConfigurationError("polynomial_decay: power must lie in (0, 1].")
    return partial(_decayed, initial_step_size, power)


def _decayed(initial_step_size: Any, power: Any, count: Any) -> Any:
    return initial_step_size * (jnp.asarray(count, jnp.result_type(float)) + 1.0) ** -power
