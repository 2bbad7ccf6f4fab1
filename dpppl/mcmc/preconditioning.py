"""Public diagonals in whose coordinates a chain moves."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpppl.errors import ConfigurationError


def diagonal_of(preconditioner: Mapping[str, Any]) -> dict[str, Any]:
    """By site, float64. Raises ConfigurationError unless all of it is positive and finite."""
    if not isinstance(preconditioner, Mapping):
        raise ConfigurationError(
            f"preconditioner is a {type(preconditioner).__name__}; give a dict of positive numbers by site, {{'mu': 4.0}}."
        )
    try:
        values = {site: np.asarray(value, np.float64) for site, value in preconditioner.items()}
    except (TypeError, ValueError):
        raise ConfigurationError("preconditioner must hold positive numbers by site, {'mu': 4.0}.") from None
    for site, value in values.items():
        if not np.all(np.isfinite(value) & (value > 0)):
            raise ConfigurationError(f"the preconditioner of site '{site}' must be positive and finite.")
    return values


def scale_of(site: str, diagonal: Any, latent: Any) -> Any:
    """Square root of a preconditioner's diagonal, with the latent's shape and type."""
    scale = jnp.sqrt(jnp.asarray(diagonal, latent.dtype))
    try:
        return jnp.broadcast_to(scale, latent.shape)
    except ValueError:
        raise ConfigurationError(
            f"the preconditioner of site '{site}' has shape {scale.shape}, which does not broadcast to the shape "
            f"{latent.shape} of the unconstrained site."
        ) from None
