"""The likelihood of one run: its arrays, its budget, and the model that it is about."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.types import Tree

Array = np.ndarray
_CHANCE, _CARE, _REFUSED = 0.004, 0.2, 1.0  # of a misfit by chance, each of two checks; sds of the pool


class PublishedMixture(NamedTuple):
    """exp(log_weight - |offset + slope v|^2 / 2), averaged over n draws of the curvature, for coordinates z (d,), where v is
    (1 - turn turn') (z - centre) / scales in blocks.

    - **centre** - (d,): where the rows' scores were summed.
    - **scales** - (d,), positive.
    - **turn** - (d, r): directions that couple blocks; r = 0 where there is one block.
    - **numbers** - (k, b): the coordinates of each block; d is padding.
    - **offsets**, **slopes** - (n, k, b), and (n, k, b, b), in units of the noise: of privacy, and of the sampling of the data.
    - **log_weights** - (n,): with these each draw is equally likely under the run's own prior. They favour steep draws: among
      several owners these would pull all towards their centres, so each owner of k has a k-th of them.
    - **reach** - the distance from the centre, see `distance`, that one in a hundred of the run's own posterior draws exceeds.
    - **arrival** - that of the run's own posterior mean.
    - **ranks** - (3, 3): of three moments of the ranks of responses (two by surprise, one by value) how far they are from the
      model's, the standard errors of that, and the variances of one row's.
    - **cut** - the part of the scores that was clipped."""

    centre: Array
    scales: Array
    turn: Array
    numbers: Array
    offsets: Array
    slopes: Array
    log_weights: Array
    reach: Array
    arrival: Array
    ranks: Array
    cut: Array

    def blocks(self, z: jax.Array) -> jax.Array:
        """v (..., k, b) of coordinates z (..., d)."""
        moved = (z - jnp.asarray(self.centre, float)) / jnp.asarray(self.scales, float)
        turn = jnp.asarray(self.turn, float)
        moved = moved - (moved @ turn) @ turn.T
        padded = jnp.concatenate([moved, jnp.zeros((*moved.shape[:-1], 1), moved.dtype)], axis=-1)
        return jnp.take(padded, jnp.asarray(self.numbers), axis=-1, mode="clip")

    def log_prob(self, z: jax.Array, num_owners: int = 1) -> jax.Array:
        """The log likelihood (...) of coordinates (..., d), but for a constant, as a factor of those of several owners."""
        squares = self._squares(z)
        logs = jnp.asarray(self.log_weights / num_owners, float) - 0.5 * squares
        return jax.nn.logsumexp(logs, axis=-1) - np.log(len(self.log_weights))

    def _squares(self, z: jax.Array) -> jax.Array:
        """|offset + slope v|^2, (..., n)."""
        moves = jnp.einsum("nkij,...kj->...nki", jnp.asarray(self.slopes, float), self.blocks(z))
        return jnp.sum((jnp.asarray(self.offsets, float) + moves) ** 2, axis=(-2, -1))

    def fall(self, z: jax.Array) -> jax.Array:
        """How far coordinates (..., d) lie from the maximum, in standard deviations of the likelihood, (...)."""
        return jnp.sqrt(jnp.mean(self._squares(z), axis=-1))

    def distance(self, z: jax.Array) -> jax.Array:
        """How far coordinates (..., d) lie from the centre, in standard deviations of the likelihood, (...)."""
        information = np.mean(self.slopes.swapaxes(-1, -2) @ self.slopes, axis=0)
        v = self.blocks(z)
        squares = jnp.einsum("...ki,kij,...kj->...", v, jnp.asarray(information, float), v)
        return jnp.sqrt(jnp.maximum(squares, 0.0))


@dataclass(frozen=True, kw_only=True)
class OwnerFacts:
    """Facts of a run that readers must know; plain values.

    - **name** - of the owner.
    - **epsilon**, **delta**, **relation**, **unit** - the guarantee of all that the run's object has released.
    - **num_rows** - rows, or units, of the run.
    - **width** - "model" or "sandwich".
    - **verdict**, **is_refused** - the line of the verdict, and whether it refuses the posterior.
    - **columns** - types of the private arguments by name, of one row.
    - **public** - digests of the Public arguments by name.
    - **program** - the digest of the program that computes the log likelihood of a row.
    - **versions** - of dpppl, jax and numpyro."""

    name: str
    epsilon: float
    delta: float
    relation: str
    unit: str
    num_rows: int
    width: str
    verdict: str
    is_refused: bool
    columns: Mapping[str, str]
    public: Mapping[str, str]
    program: str
    versions: Mapping[str, str]

    def document(self) -> dict[str, Tree]:
        """The fields, by name, as JSON has them."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: dict(x) if isinstance(x, Mapping) else x for name, x in found.items()}

    @property
    def budget(self) -> str:
        """The guarantee in words."""
        return f"epsilon {self.epsilon:.4g} at delta {self.delta:g}"


@dataclass(frozen=True, eq=False)
class Owner:
    """The likelihood of one run.

    - **facts**, **mixture** - what readers must know, and the arrays."""

    facts: OwnerFacts
    mixture: PublishedMixture

    @cached_property
    def digest(self) -> str:
        """A digest of the arrays, which tells one release from another."""
        return content_digest("", self.mixture._asdict())


def content_digest(text: str, arrays: Mapping[str, Array]) -> str:
    """A digest of a text and of arrays by name."""
    found = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        found.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def wrong(owners: Sequence[Owner]) -> list[tuple[str, str]]:
    """Names and words of what the owners together show against their model: a pool's sd shrinks, a misfit that all share stays.

    Moments of ranks are averaged, weighted by the inverse squares of their errors, as if one run had ranked all rows. How far
    they move the pool is in sds without privacy, so at least as many as in the pool's own."""
    from scipy.special import chdtrc

    if len(owners) < 2 or any(owner.facts.width != "model" for owner in owners):
        return []
    departures, stds, variances = np.stack([owner.mixture.ranks for owner in owners]).swapaxes(0, 1)
    precision = np.sum(stds**-2.0, axis=0)
    weights = stds**-2.0 / precision
    departure, variance = (weights * departures).sum(axis=0), (weights * variances).sum(axis=0)
    chi_squared = departure**2 * precision
    counts = np.array([owner.facts.num_rows for owner in owners])
    tilts = counts.sum() * departure**2 / variance
    moved = np.sqrt(max(tilts[:2].sum(), tilts[2])) * np.average(
        [owner.mixture.cut for owner in owners], weights=counts
    )
    chance = min(chdtrc(2, chi_squared[:2].sum()), chdtrc(1, chi_squared[2]))
    if chance > _CHANCE or moved < _CARE:
        return []
    words = (
        "responses of all owners together have other tails or another shape than the model's, which one owner's noise may hide; "
        f"clipping is centred on the model, so this may move the pool by {moved:.1f} sd: use a richer model, or "
        'width="sandwich".'
    )
    return [("Do not read" if moved >= _REFUSED else "Read with care", words)]
