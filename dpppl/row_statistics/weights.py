"""Survey weights: the column that holds one a row, and its public cap."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpppl.errors import ConfigurationError
from dpppl.types import Function, Tree
from dpppl.validation import a, positive


@dataclass(frozen=True)
class Weights:
    """The column that holds one weight a row, and its public cap.

    - **name** - the name under which `run` gets the column.
    - **cap** - the largest weight; larger ones count as the cap."""

    name: str
    cap: float

    @classmethod
    def of(cls, weights: object, max_weight: object) -> "Weights | None":
        """From the arguments of a method. Raises ConfigurationError if they do not fit together."""
        if weights is None and max_weight is None:
            return None
        if not isinstance(weights, str):
            raise ConfigurationError(
                "weights is the name under which run gets the column, got "
                f'{"none" if weights is None else a(type(weights).__name__)}: give weights="weight", max_weight=..., and then '
                "run(rng_key, ..., weight=column)."
            )
        if max_weight is None:
            raise ConfigurationError(
                f"weights={weights!r} needs max_weight, the largest weight that counts in full: a public number, chosen without "
                "looking at the data."
            )
        return cls(weights, positive(max_weight, name="max_weight"))

    @property
    def code(self) -> str:
        """Say which weights leave a row out, as one of the codes of `supports.codes`."""
        return f"argument '{self.name}' holds weights: rows with a negative, infinite or missing one are left out"

    def model(self, model: Function, keywords: Tree) -> Function:
        """The model with the column as a further argument, which it ignores.

        Raises ConfigurationError where a call's `keywords` lack the column."""
        if self.name not in keywords:
            raise ConfigurationError(f"the rows have weights: give {self.name}=..., one weight for each row.")

        def weighted(*args: Tree, **kwargs: Tree) -> Tree:
            return model(*args, **{name: value for name, value in kwargs.items() if name != self.name})

        return weighted

    def of_row(self, row: Tree) -> jax.Array:
        """The row's weight in units of the cap, in [0, 1]; NaN, so that the row is left out, for a negative or infinite one."""
        weight = jnp.asarray(row[self.name], float) / self.cap
        return jnp.where(jnp.isfinite(weight) & (weight >= 0.0), jnp.minimum(weight, 1.0), jnp.nan)
