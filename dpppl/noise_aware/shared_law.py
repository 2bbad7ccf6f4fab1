"""A law that no row enters: scores of all that a row could be, their centre and their curvature, computed once for all rows.

Without covariates every row has the same responses, so each access needs one table of their scores. A row adds its own score
alone, which is looked up in the table where all responses are listed. No row enters the table, so that the sensitivity is that of
clipping.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.access.centring import unnumbered
from dpppl.model.responses import Responses
from dpppl.noise_aware.fit import numbers
from dpppl.noise_aware.frame import Frame, isometric
from dpppl.noise_aware.plan import At
from dpppl.noise_aware.statistics import Influence, RowStatistics
from dpppl.row_program.hoist import gradient
from dpppl.types import Numbers, Scalar, Tree

_PRECISION, _MOST_ITERATIONS = 3e-5, 50


class Table(NamedTuple):
    """The scores of all responses, or of many draws.

    - **scores** - (m, d), in u; those that were not finite are 0.
    - **weights** - (m,), of sum 1.
    - **psi** - clipped, centred scores, (m, d).
    - **centre** - (d,).
    - **matrix** - the numbers of the curvature, as `Frame.curvature` has them.
    - **length** - the Frobenius norm of the curvature."""

    scores: jax.Array
    weights: jax.Array
    psi: jax.Array
    centre: jax.Array
    matrix: jax.Array
    length: jax.Array

    @classmethod
    def of(cls, frame: Frame, scores: jax.Array, weights: jax.Array, norm: Scalar) -> "Table":
        """From scores (m, d) and weights (m,) of any sum; scores that are not finite are left out."""
        finite = jnp.all(jnp.isfinite(scores), axis=1)
        scores, weights = jnp.where(finite[:, None], scores, 0.0), jnp.where(finite, weights, 0.0)
        weights = weights / jnp.maximum(jnp.sum(weights), 1e-30)
        centre = centre_of_many(scores, weights, norm)
        psi = clipped_around(scores, centre, norm)[0]
        matrix = frame.curvature(weights, psi, scores)
        return cls(scores, weights, psi, centre, matrix, jnp.sqrt(jnp.sum(matrix**2)))

    def squares(self, directions: Numbers) -> jax.Array:
        """The variance of scores along directions (d, n)."""
        return self.weights @ (self.scores @ directions) ** 2

    def along(self, directions: Numbers) -> jax.Array:
        """The curvature along directions (d, n)."""
        return self.weights @ ((self.psi @ directions) * (self.scores @ directions))


def centre_of_many(scores: jax.Array, weights: jax.Array, norm: Scalar) -> jax.Array:
    """The centre a (d,) with `sum_k weights_k clip(scores_k - a) = 0`, for many finite scores (m, d) and weights (m,).

    By repeated weighted means, until one moves by less than 3e-5 of the norm."""

    def mean(shares: jax.Array) -> jax.Array:
        return shares @ scores / jnp.maximum(jnp.sum(shares), 1e-30)

    def better(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        count, centre, _ = state
        new = mean(weights * clipped_around(scores, centre, norm)[1])
        return count + 1, new, jnp.sqrt(jnp.sum((new - centre) ** 2))

    def goes_on(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return (state[0] < _MOST_ITERATIONS) & (state[2] > _PRECISION * norm)

    start = mean(weights)
    return lax.while_loop(goes_on, better, (jnp.zeros((), jnp.int32), start, jnp.full((), jnp.inf, start.dtype)))[1]


def clipped_around(scores: jax.Array, centre: jax.Array, norm: Scalar) -> tuple[jax.Array, jax.Array]:
    """Scores (..., d) less the centre, shortened to at most `norm`, and the factors (...,) that shortened them."""
    centred = scores - centre
    factors = jnp.minimum(1.0, norm / jnp.maximum(jnp.sqrt(jnp.sum(centred**2, axis=-1)), 1e-30))
    return centred * factors[..., None], factors


class SharedStatistics(RowStatistics):
    """The statistics of a row whose law is that of all rows: see `Responses.shared`."""

    def table(self, at: At, public: Tree, key: jax.Array) -> Table:
        """The table that all rows share. No row enters it."""
        values, weights, row = self._responses.shared(self._latents(at.point), public, key)
        score = gradient(self.log_likelihood)
        scores = jax.vmap(lambda response: score(at.point, row, public, response))(values)
        return Table.of(at.frame, at.frame.pulled(scores), weights, at.norm)

    def _influence(self, at: At, row: Tree, public_and_key: Tree) -> Influence:
        public, table = public_and_key[0], self.table(at, *public_and_key)
        if self._responses.supports is None:
            score = self._own(at, row, public)[1]
        else:
            place, is_listed = self._responses.place(self._latents(at.point), unnumbered(row), public)
            score = jnp.where(is_listed, table.scores[place], jnp.nan)
        psi, factor = clipped_around(score, table.centre, at.norm)
        length = jnp.where(jnp.all(jnp.isfinite(psi)), table.length, jnp.nan)  # a row without a score says nothing
        return Influence(score, psi, length, factor < 1.0, lambda: table.matrix, table.squares, table.along)

    def _own_score(self, at: At, row: Tree, public: Tree) -> None:
        return None

    def curvature(self, at: At, row: Tree, rest: Tree) -> Tree:
        """The length of w A / bound, and all products of v psi / norm. Jointly at most 1 long: see `scores_share`.

        All A have one direction, which no row enters; and a symmetric matrix is as long as its isometric coordinates."""
        found = self._influence(at, row, rest)
        w, v = self.weight(at, row, found.length), self.score_weight(at, row, found.length)
        inside = at.frame.layout.gathered(found.psi * (v / at.norm))
        outer = np.float32(np.sqrt(self._scores_share)) * inside[:, :, None] * inside[:, None, :]
        return {"A": np.sqrt(1.0 - self._scores_share) * found.length * w[None] / at.bound, "J": outer}

    def released(self, at: At, public: Tree, key: jax.Array, noise: jax.Array, total: Tree) -> Tree:
        """From noisy sums of what `curvature` gives to those of its isometric coordinates.

        Noise in isometric coordinates is alike in all directions; in those that no row's curvature has it is drawn here."""
        table = self.table(at, public, key)
        along = table.matrix / jnp.maximum(table.length, 1e-30)
        drawn = noise * jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, 1), 1), along.shape)
        outer = (total["J"] + jnp.swapaxes(total["J"], 1, 2)) / 2
        return {"A": drawn + (total["A"] - drawn @ along) * along, "J": isometric(outer).ravel()}

    def sides(self, at: At, row: Tree, rest: Tree) -> jax.Array:
        """See `RowStatistics.sides`. No row enters the curvatures, so that they are computed once."""

        def curvatures(point: Numbers, directions: Numbers) -> jax.Array:
            here = at._replace(point=point)
            table = self.table(here, *rest)
            return self._factor(here.bound, table.length) * table.along(directions)

        speaks = jnp.isfinite(self._influence(at, row, rest).length)
        return self.sides_of(self._beside(at, curvatures) * jnp.where(speaks, self._share(row), 0.0))

    def scalars(self, at: At, row: Tree, rest: Tree) -> jax.Array:
        """See `RowStatistics.scalars`; looked up where all responses are listed."""
        if self._responses.supports is None or self._weights is not None:
            return super().scalars(at, row, rest)
        responses, latents, public = self._responses, self._latents(at.point), rest[0]
        every, own = self._every_scalars(at, *rest), (latents, unnumbered(row), public)
        (place, is_listed), is_outside = responses.place(*own), responses.is_outside(*own)
        silent = jnp.zeros(every.shape[1]).at[1].set(is_outside).at[2].set(~is_outside)
        return jnp.where(is_listed, every[place], silent)

    def _every_scalars(self, at: At, public: Tree, key: jax.Array) -> jax.Array:
        """The numbers of a row with each of the listed responses, (m, n)."""
        assert at.directions is not None
        responses, latents, table = self._responses, self._latents(at.point), self.table(at, public, key)
        values, shares, row = responses.shared(latents, public, key)
        log_probs = jax.vmap(lambda response: self.log_likelihood(at.point, row, public, response))(values)
        totals, squares = responses.totals(latents, row, public, values)[1:], table.squares(at.directions)
        weights, speaks, is_outside = jnp.append(jnp.zeros(1), shares), jnp.ones((), bool), jnp.zeros((), bool)

        def of(number: jax.Array) -> jax.Array:
            is_clipped = clipped_around(table.scores[number], table.centre, at.norm)[1] < 1.0
            flags = jnp.stack([is_clipped, table.length > at.bound])
            first = lambda x: jnp.concatenate([x[number][None], x])  # noqa: E731
            return numbers(first(log_probs), first(totals), weights, squares, flags, speaks, is_outside)

        return lax.map(of, jnp.arange(len(shares)))


def statistics_of(responses: Responses, *arguments: Any) -> RowStatistics:
    """The statistics of a row of these responses; `arguments` are the others of `RowStatistics`."""
    return (SharedStatistics if responses.is_shared else RowStatistics)(responses, *arguments)
