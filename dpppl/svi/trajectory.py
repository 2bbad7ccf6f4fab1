"""The trajectory of SVI: thinned iterates, and means of releases over the steps between them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.clipping import NUM_COUNTS
from dpppl.runs.driver import NUM_CHUNKS, Method, set_places
from dpppl.validation import positive_integer

_SIZE, _LENGTH = 2**24, 1000


def thinning_for(optim_state: Any, num_steps: int, asked: int | None = None) -> int:
    """How many steps an iterate stands for: as `asked`, else about 1,000 are kept, or fewer where they are large."""
    if asked is not None:
        return positive_integer(asked, name="thinning")
    size = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(optim_state))
    kept = min(_LENGTH, max(2, _SIZE // max(1, size)))
    return max(1, -(-num_steps // kept))


def method_of(
    step: Callable[..., tuple[Any, Any]], params_of: Callable[[Any], Any], num_steps: int, thinning: int, counts: bool
) -> Method:
    """The driver's `Method`. `step(state, rows, public)` gives the next state; and the noisy ascent direction with, if it
    `counts`, those of rows as shares."""
    length = -(-num_steps // NUM_CHUNKS)
    length = -(-length // thinning) * thinning  # so that no iterate is shared by two chunks

    def empty(state: Any) -> Any:
        zeros = jax.tree.map(lambda x: jnp.zeros((length // thinning, *x.shape), x.dtype), params_of(state))
        return zeros, (zeros, jnp.zeros((length // thinning, NUM_COUNTS)) if counts else None)

    def record(buffers: Any, number: Any, start: Any, state: Any, released: Any) -> Any:
        iterates, means = buffers
        place = (number - start) // thinning
        share = 1.0 / jnp.minimum(thinning, num_steps - number // thinning * thinning)
        means = jax.tree.map(lambda b, x: b.at[place].add((share * x).astype(b.dtype)), means, released)
        return set_places(iterates, place, params_of(state)), means

    def kept(start: int, count: int) -> np.ndarray:
        return np.arange(-(-count // thinning))

    return Method(step=step, num_steps=num_steps, length=length, empty=empty, record=record, kept=kept)
