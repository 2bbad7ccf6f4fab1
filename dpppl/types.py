"""Names of types that rooms share."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np

Tree: TypeAlias = Any
"""A pytree of arrays, keys or shapes: dicts, tuples and other containers. JAX has no type for it."""
Numbers: TypeAlias = jax.Array | np.ndarray
"""Numbers on the device or on the host."""
BySite: TypeAlias = Mapping[str, Numbers]
"""Arrays by name of a site, or of a parameter."""
Document: TypeAlias = Mapping[str, Any]
"""Plain values of JSON, by name."""
Function: TypeAlias = Callable[..., Any]
"""A function with arguments of its own: a model, a guide, a statistic."""
Scalar: TypeAlias = float | Numbers
"""One number, of Python or of an array."""
Equation: TypeAlias = Any
"""A `JaxprEqn` of JAX's. Its variables have shapes and dtypes that JAX's annotations leave out."""
Traced: TypeAlias = Any
"""A traced program of JAX's, open or closed: a `Jaxpr` or a `ClosedJaxpr`."""
Atom: TypeAlias = Any
"""A variable or a literal of a traced program."""
Distribution: TypeAlias = Any
"""A distribution, constraint or transform of NumPyro's, which annotates none."""
Foreign: TypeAlias = Any
"""An object of a library that is optional, or has no types: a pyarrow table, a data frame, matplotlib's axes."""
