"""Rows of one law: scores from one table, which no row enters: 8,000 rows of 384 cells in 57 s; by rows not within 300 s."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpppl.access.centring import unnumbered
from dpppl.model.responses import Responses
from dpppl.row_program.hoist import gradient
from dpppl.row_statistics.accesses import At
from dpppl.row_statistics.matrices import isometric
from dpppl.row_statistics.response_ranks import MISSING, OUTSIDE, numbers
from dpppl.row_statistics.statistics import Influence, RowStatistics, units
from dpppl.types import Numbers, Scalar, Tree

_PRECISION, _MOST_ITERATIONS = 3e-5, 50


class _Table(NamedTuple):
    """Scores (m, d) of all responses, or of many draws, weights of sum 1, scores centred and clipped, and the curvature."""

    scores: jax.Array
    weights: jax.Array
    psi: jax.Array
    centre: jax.Array
    matrix: jax.Array
    length: jax.Array

    def squares(self, directions: Numbers) -> jax.Array:
        return self.weights @ (self.scores @ directions) ** 2


def centre_of_many(scores: jax.Array, weights: jax.Array, norm: Scalar) -> jax.Array:
    """The centre a (d,) with `sum_k weights_k clip(scores_k - a) = 0`, for many finite scores (m, d) and weights (m,): repeated
    weighted means, until one moves by less than 3e-5 of the norm."""

    def mean(shares: jax.Array) -> jax.Array:
        return shares @ scores / jnp.maximum(jnp.sum(shares), 1e-30)

    def better(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        count, centre, _ = state
        new = mean(weights * clipped_around(scores, centre, norm)[1])
        return count + 1, new, jnp.sqrt(jnp.sum((new - centre) ** 2))

    goes_on = lambda state: (state[0] < _MOST_ITERATIONS) & (state[2] > _PRECISION * norm)  # noqa: E731
    start = mean(weights)
    return lax.while_loop(goes_on, better, (jnp.zeros((), jnp.int32), start, jnp.full((), jnp.inf, start.dtype)))[1]


def clipped_around(scores: jax.Array, centre: jax.Array, norm: Scalar) -> tuple[jax.Array, jax.Array]:
    """Scores (..., d) less the centre, shortened to at most `norm`, and the factors (...,) that shortened them."""
    centred = scores - centre
    factors = jnp.minimum(1.0, norm / jnp.maximum(jnp.sqrt(jnp.sum(centred**2, axis=-1)), 1e-30))
    return centred * factors[..., None], factors


class SharedStatistics(RowStatistics):
    """The statistics of a row whose law is that of all rows (see `Responses.shared`): a table of scores, their centre and their
    curvature, computed once for all rows. No row enters it, so that the sensitivity is that of clipping. A row adds its own score
    alone, looked up in the table where all responses are listed."""

    def table(self, at: At, public: Tree, key: jax.Array) -> _Table:
        """The table that all rows share; scores that are not finite are left out."""
        values, weights, row = self.responses.shared(self.latents(at.point), public, key)
        score = gradient(self.log_likelihood)
        scores = at.basis.pulled(jax.vmap(lambda response: score(at.point, row, public, response))(values))
        finite = jnp.all(jnp.isfinite(scores), axis=1)
        scores, weights = jnp.where(finite[:, None], scores, 0.0), jnp.where(finite, weights, 0.0)
        weights = weights / jnp.maximum(jnp.sum(weights), 1e-30)
        centre = centre_of_many(scores, weights, at.norm)
        psi = clipped_around(scores, centre, at.norm)[0]
        matrix = at.basis.curvature(weights, psi, scores)
        return _Table(scores, weights, psi, centre, matrix, jnp.sqrt(jnp.sum(matrix**2)))

    def _influence(self, at: At, row: Tree, public_and_key: Tree) -> Influence:
        public, table = public_and_key[0], self.table(at, *public_and_key)
        if self.responses.supports is None:
            score = self._own(at, row, public)[1]
        else:
            place, is_listed = self.responses.place(self.latents(at.point), unnumbered(row), public)
            score = jnp.where(is_listed, table.scores[place], jnp.nan)
        psi, factor = clipped_around(score, table.centre, at.norm)
        length = jnp.where(jnp.all(jnp.isfinite(psi)), table.length, jnp.nan)  # a row without a score says nothing
        return Influence(score, psi, length, factor < 1.0, lambda: table.matrix, table.squares)

    def look(self, at: At, row: Tree, rest: Tree) -> Tree:
        """psi / norm, the length of w A / bound, and all products of psi / norm. All A have one direction, which no row enters;
        and a symmetric matrix is as long as its isometric coordinates."""
        found, (unit, unit_a, unit_j) = self._influence(at, row, rest), units(at.score_share, self.most_scores)
        psi, inside = found.psi / at.norm, at.basis.layout.gathered(found.psi / at.norm)
        length = jnp.minimum(found.length / at.curvature_bound, 1.0)[None]
        return {"score": unit * psi, "A": unit_a * length, "J": unit_j * inside[:, :, None] * inside[:, None, :]}

    def unpacked(self, at: At, public: Tree, key: jax.Array, noise: jax.Array, total: Tree) -> Tree:
        """From noisy sums of what `look` gives to those of isometric coordinates. Their noise is alike in all directions; in
        those that no row's curvature has it is drawn here."""
        table = self.table(at, public, key)
        along = table.matrix / jnp.maximum(table.length, 1e-30)
        drawn = noise * jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, 1), 1), along.shape)
        outer = (total["J"] + jnp.swapaxes(total["J"], 1, 2)) / 2
        return total | {"A": drawn + (total["A"] - drawn @ along) * along, "J": isometric(outer).ravel()}

    def scalars(self, at: At, row: Tree, rest: Tree) -> jax.Array:
        """See `RowStatistics.scalars`; where all responses are listed, looked up in a table (m, n) of a row with each."""
        if self.responses.supports is None:
            return super().scalars(at, row, rest)
        assert at.directions is not None
        responses, latents, public, table = self.responses, self.latents(at.point), rest[0], self.table(at, *rest)
        values, shares, one = responses.shared(latents, *rest)
        log_probs = jax.vmap(lambda response: self.log_likelihood(at.point, one, public, response))(values)
        totals, squares = responses.totals(latents, one, public, values)[1:], table.squares(at.directions)
        weights, speaks, never = jnp.append(jnp.zeros(1), shares), jnp.ones((), bool), jnp.zeros((), bool)

        def of(number: jax.Array) -> jax.Array:
            is_clipped = clipped_around(table.scores[number], table.centre, at.norm)[1] < 1.0
            flags = jnp.stack([is_clipped, table.length > at.curvature_bound])
            first = lambda x: jnp.concatenate([x[number][None], x])  # noqa: E731
            return numbers(first(log_probs), first(totals), weights, squares, flags, speaks, never, size=responses.size)

        every, own = lax.map(of, jnp.arange(len(shares))), (latents, unnumbered(row), public)
        (place, is_listed), is_outside = responses.place(*own), responses.is_outside(*own)
        silent = jnp.zeros(every.shape[1]).at[OUTSIDE].set(is_outside).at[MISSING].set(~is_outside)
        return jnp.where(is_listed, every[place], silent)


def statistics_of(responses: Responses, *arguments: Tree) -> RowStatistics:
    """The statistics of a row of these responses; `arguments` are the others of `RowStatistics`."""
    return (SharedStatistics if responses.is_shared else RowStatistics)(responses, *arguments)
