"""Names of types that rooms share."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import numpy as np

Tree: TypeAlias = Any
"""A pytree of arrays, keys or shapes: dicts, tuples and other containers. JAX has no type for it."""
BySite: TypeAlias = Mapping[str, jax.Array]
"""Arrays by name of a site, or of a parameter."""
Numbers: TypeAlias = jax.Array | np.ndarray
"""Numbers on the device or on the host."""
