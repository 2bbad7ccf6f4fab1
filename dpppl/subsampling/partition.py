"""Each row once an epoch: a random split, one part a step."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.errors import ConfigurationError
from dpppl.subsampling.scheme import Multipliers, Selection, Step, Subsampling
from dpppl.validation import checked_type, positive_integer


@checked_type
@dataclass(frozen=True)
class Partition(Subsampling):
    """Each row once an epoch: a random split into `num_batches` batches, drawn anew every epoch, one batch a step.

    - **num_batches** - batches of an epoch.

    Guarantee: the split does not depend on the values, so by parallel composition an epoch costs one Gaussian event at
    its smallest noise multiplier; an epoch that is begun is charged in full. No amplification is claimed.
    Raises ConfigurationError unless num_batches is a positive integer.

    >>> Partition(20).rate
    0.05
    """

    num_batches: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_batches", positive_integer(self.num_batches, name="Partition: num_batches"))

    @property
    def rate(self) -> float:
        """The share of the rows that a step uses."""
        return 1.0 / self.num_batches

    def accounted(self, noise_multipliers: Multipliers, first: int) -> Multipliers:
        """One event an epoch, at the smallest noise multiplier of its steps."""
        epochs = (first + np.arange(len(noise_multipliers))) // self.num_batches
        starts = np.flatnonzero(np.diff(epochs, prepend=epochs[:1] - 1))
        return np.minimum.reduceat(noise_multipliers, starts) if len(starts) else noise_multipliers

    def draw(self, key: jax.Array, num_rows: int, step: Step = 0) -> Selection:
        if self.num_batches > num_rows:
            raise ConfigurationError(
                f"Partition({self.num_batches}) has more batches than there are rows ({num_rows}); lower num_batches."
            )
        epoch, batch = jnp.divmod(jnp.asarray(step, jnp.int32), self.num_batches)
        quotient, remainder = divmod(num_rows, self.num_batches)
        slots = jnp.arange(quotient + (remainder > 0), dtype=jnp.int32)
        start = batch * quotient + jnp.minimum(batch, remainder)
        inside = slots < quotient + (batch < remainder)
        position = jnp.where(inside, start + slots, 0)
        return Selection(_shuffled(jax.random.fold_in(key, epoch), position, num_rows), inside)

    def describe(self) -> str:
        return (
            f"random partition into {self.num_batches} batches, redrawn every epoch; one Gaussian event an epoch, "
            "an epoch begun is charged in full, no amplification claimed"
        )


def _shuffled(key: jax.Array, position: jax.Array, num_rows: int) -> jax.Array:
    """Where a pseudo-random permutation of the rows puts each of `position`; distinct for distinct positions.

    A Feistel network on the next power of four, walked until it lands inside. Only posteriors depend on its quality:
    a partition's privacy needs a split that ignores the values, whatever it is."""
    half = max(1, -(-(num_rows - 1).bit_length() // 2))
    mask = np.uint32(2**half - 1)
    round_keys = jax.random.bits(key, (8,), jnp.uint32)

    def network(value: jax.Array) -> jax.Array:
        left, right = value >> half, value & mask
        for round_key in round_keys:
            mixed = (right ^ round_key) * np.uint32(0x85EBCA6B)
            mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE35)
            left, right = right, left ^ ((mixed ^ (mixed >> 16)) & mask)
        return (left << half) | right

    def walk(value: jax.Array) -> jax.Array:
        return jnp.where(value < num_rows, value, network(value))

    start = network(position.astype(jnp.uint32))
    return lax.while_loop(lambda value: jnp.any(value >= num_rows), walk, start).astype(jnp.int32)
