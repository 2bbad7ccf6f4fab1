"""Which steps of a chain are kept, and where."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.util import nested_attrgetter

from dpppl.errors import ConfigurationError
from dpppl.runs.driver import NUM_CHUNKS, Method, set_places


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Which states of a chain are collected.

    - **fields** - fields of the state.
    - **num_steps** - steps of the run.
    - **first** - number of steps before those that are collected.
    - **num_collected** - how many states.
    - **thinning** - steps from one of them to the next.
    """

    fields: tuple[str, ...]
    num_steps: int
    first: int
    num_collected: int
    thinning: int

    @property
    def length(self) -> int:
        """Steps of a chunk."""
        return max(1, -(-self.num_steps // NUM_CHUNKS))

    def slot(self, number: Any) -> Any:
        """Where step `number` of the run goes among the collected ones, or -1 if it is not collected."""
        since = number - self.first
        kept = (since >= 0) & (since % self.thinning == self.thinning - 1)
        where = jnp.where if isinstance(number, jax.core.Tracer) else np.where
        return where(kept & (since // self.thinning < self.num_collected), since // self.thinning, -1)

    def method(self, step: Callable[..., Any], mapping: Any) -> Method:
        """The driver's `Method`, for `step(state, rows, public)`, which returns the next state."""
        slots, get = self.length // self.thinning + 2, nested_attrgetter(*self.fields)

        def fields_of(state: Any) -> tuple[Any, ...]:
            return (get(state),) if len(self.fields) == 1 else tuple(get(state))

        def empty(state: Any) -> Any:
            shapes = jax.eval_shape(fields_of, state)
            return jax.tree.map(lambda s: jnp.zeros((slots + 1, *s.shape), s.dtype), shapes)

        def record(buffer: Any, number: Any, start: Any, state: Any, _: Any) -> Any:
            slot = self.slot(number)  # what is not collected goes to the last place, which is dropped
            return set_places(buffer, jnp.where(slot < 0, slots, slot - self._base(start)), fields_of(state))

        def kept(start: int, count: int) -> np.ndarray:
            places = np.asarray(self.slot(np.arange(start, start + count)))
            return places[places >= 0] - int(self._base(start))

        return Method(
            step=lambda state, rows, public: (step(state, rows=rows, public=public), None),
            num_steps=self.num_steps, length=self.length, empty=empty, record=record, kept=kept, mapping=mapping,
        )  # fmt: skip

    def _base(self, start: Any) -> Any:
        maximum = jnp.maximum if isinstance(start, jax.core.Tracer) else np.maximum
        return maximum(start - self.first, 0) // self.thinning


def fields_to_collect(
    sample_field: str, default_fields: tuple[str, ...], extra_fields: Any
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(fields of the state to collect, latent sites to leave out), from what NumPyro's `extra_fields` may name."""
    if not isinstance(extra_fields, tuple | list):
        raise ConfigurationError("extra_fields must be a tuple or a list of names.")
    names = list(dict.fromkeys((sample_field, *default_fields, *extra_fields)))
    removed = tuple(name[len("~z.") :] for name in names if name.startswith("~z."))
    return tuple(name for name in names if not name.startswith("~z.")), removed


def check_fields(fields: tuple[str, ...], states: Any) -> None:
    """Refuse fields that the state does not have, and every way to name its key (NumPyro also takes positions)."""
    for name in fields:
        try:
            leaves = jax.tree.leaves(nested_attrgetter(name)(states))
        except (AttributeError, LookupError, TypeError):
            leaves = []
        if not (leaves and all(isinstance(leaf, jax.Array) for leaf in leaves)):
            raise ConfigurationError(f"extra_fields: the state of this kernel has no field '{name}'.")
        if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves):
            raise ConfigurationError("extra_fields cannot name rng_key: whoever holds the key can subtract the noise.")
