"""Statistics of a row: its centred score, its curvature, the bins of their norms, and how well it fits.

All are computed in coordinates u (see `basis`), from the scores s (1 + m, d) of the responses that a row could have given and
their weights. psi = clip(s - a) is centred (see `centring`). A row whose curvature A = sym(E[psi s']) is longer than a bound is
weighed down, by w = min(1, bound / |A|): its curvature alone, so that sum psi has mean zero at the truth, and sum w A is most of
its curvature. (Of units, and of a sandwich, the real response does not enter A: nearly zero.)"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.centring import averaged, binary_factor, centre, clipped, odds_of, squared_length, unnumbered
from dpppl.access.mechanism import ROW_NUMBER
from dpppl.access.norm_histogram import FINE, in_bin
from dpppl.model.responses import Responses
from dpppl.model.units import UnitResponses, parts
from dpppl.row_program.hoist import value_and_gradient
from dpppl.row_program.parameters import scores_by_parameters
from dpppl.row_statistics.accesses import At
from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.response_ranks import Ranks, assembled, ranked, ranked_unit
from dpppl.row_statistics.weights import Weights
from dpppl.types import Numbers, Scalar, Tree

RANKED_DRAWS = 32  # responses drawn for each row, of which its ranks are made


class Members(NamedTuple):
    """Responses that a row could have given, the real one first.

    - **weights** - (1 + m,).
    - **scores**, **jacobian** - (1 + m, d), in u, and None; or (1 + m, k), whose products with the jacobian, of the k numbers
      that a distribution is made of, in blocks of u, are the scores.
    - **chances** - (c,), where a row has missing values: then the c ways to fill these in stand in the place of the real one."""

    scores: jax.Array
    weights: jax.Array
    jacobian: jax.Array | None
    chances: jax.Array


class Influence(NamedTuple):
    """A row's score and its curvature.

    - **score**, **psi** - of the real response, (d,); and the same centred and clipped.
    - **length** - the Frobenius norm of the row's curvature.
    - **is_clipped** - whether the centred score was longer than the norm.
    - **matrix** - computes the curvature, as its `basis` has it.
    - **squares** - of directions (d, n): the model's variance of scores along each."""

    score: jax.Array
    psi: jax.Array
    length: jax.Array
    is_clipped: jax.Array
    matrix: Callable[[], jax.Array]
    squares: Callable[[Numbers], jax.Array]


def units(score_share: Scalar, most_scores: float) -> tuple[Scalar, Scalar, Scalar]:
    """By what score, A and J of a look are multiplied, whose squares sum to 1. A sandwich's width depends on J."""
    scores, rest = 0.5 if np.isinf(most_scores) else 0.15, 1.0 - score_share
    xp = np if isinstance(score_share, float) else jnp
    return xp.sqrt(score_share), xp.sqrt(rest * (1.0 - scores)), xp.sqrt(rest * scores)


@dataclass(frozen=True, eq=False)
class RowStatistics:
    """The statistics of a row, each a function of (at, row, (public, key)).

    - **responses** - those that the model could have given in a row's place.
    - **latents** - from a point to the model's latents.
    - **basis** - one of the same shapes as those that accesses have.
    - **weights** - the column of weights, if there is one: all that the row releases of scores is multiplied by its weight, in
      [0, 1], after clipping: scores of the whole population still have mean zero, also where weights depend on responses.
    - **most_scores** - see `run_recipe`."""

    responses: Responses
    latents: Callable[[Tree], Tree]
    basis: Basis
    weights: Weights | None = None
    most_scores: float = 1.0

    def _share(self, row: Tree) -> Numbers | float:
        """The row's weight, in [0, 1]; NaN where the row is left out."""
        return 1.0 if self.weights is None else self.weights.of_row(row)

    def log_likelihood(self, point: Numbers, row: Tree, public: Tree, responses: Tree = None) -> jax.Array:
        """NaN, gradient included, where the row's own response is outside the model's support: the row says nothing."""
        latents = self.latents(point)
        log_prob = self.responses.split.log_likelihood(latents, row, public, responses)
        if responses is not None:
            return log_prob
        is_outside = self.responses.is_outside(latents, row, public)
        # Not a factor: log probabilities that are -inf outside of the support have a gradient of 0, and would keep it.
        return log_prob + jnp.sum(point) * jnp.where(is_outside, jnp.nan, 0.0)

    def _own(self, at: At, row: Tree, public: Tree) -> tuple[jax.Array, jax.Array]:
        """The log probability of the row's own response, and its score in u, (d,)."""
        log_prob, score = value_and_gradient(self.log_likelihood)(at.point, unnumbered(row), public)
        return log_prob, at.basis.pulled(score)

    def _mean(self, of: Callable[..., Tree], at: At, row: Tree, rest: Tree, *of_members: jax.Array) -> Tree:
        """`of` the influence and other numbers of members; with missing values averaged by their probabilities given the rest."""
        if not self.responses.missing:
            return of(self._influence(at, row, rest), *of_members)
        # The mean is then that for complete rows, whatever part of what is observed decides which values are missing: clipping
        # is centred for complete rows, whose law the model gives, and not for those of one pattern.
        members = self.members(at, row, *rest)
        count = len(members.chances)

        def completed(number: jax.Array) -> Tree:
            scores, *given = (jnp.concatenate([x[number][None], x[count:]]) for x in (members.scores, *of_members))
            return of(self.drawn_influence(at, scores, members.weights, members.jacobian), *given)

        return averaged(jax.vmap(completed)(jnp.arange(count)), members.chances)

    def _influence(self, at: At, row: Tree, public_and_key: Tree) -> Influence:
        if not self.responses.is_binary:
            return self.drawn_influence(at, *self.members(at, row, *public_and_key)[:3])
        log_prob, score = self._own(at, row, public_and_key[0])  # the other response's score is -odds as long
        odds, square = odds_of(log_prob), jnp.sum(score**2)
        factor = binary_factor(odds, jnp.sqrt(square), at.norm)
        squares = lambda directions: odds * (score @ directions) ** 2  # noqa: E731
        length, matrix = factor * odds * at.basis.length(score, square), lambda: factor * odds * at.basis.square(score)
        return Influence(score, factor * score, length, factor < 1.0, matrix, squares)

    def members(self, at: At, row: Tree, public: Tree, key: jax.Array) -> Members:
        """The responses that a row could have given, and their scores; by parameters where these are few, see
        `scores_by_parameters`."""
        point, number, row = at.point, row[ROW_NUMBER], unnumbered(row)
        latents, each, chances = self.latents(point), value_and_gradient(self.log_likelihood), jnp.ones(1)
        others, weights = self.responses(latents, row, public, jax.random.fold_in(key, number))
        if self.responses.missing:
            own, chances = self.responses.completions(latents, row, public)
        else:
            own = jax.tree.map(lambda x: jnp.asarray(x)[None], self.responses.own(latents, row, public))
        if own is None:
            scores = jax.vmap(lambda r: each(point, row, public, r)[1])(others)
            scores = jnp.concatenate([each(point, row, public)[1][None], scores])
            return Members(at.basis.pulled(scores), weights, None, chances)
        values = jax.tree.map(lambda *x: jnp.concatenate(x), {site: own[site] for site in others}, others)
        found = scores_by_parameters(self.log_likelihood, point, row, public, values)
        if found is None:
            scores, jacobian = at.basis.pulled(jax.vmap(lambda r: each(point, row, public, r)[1])(values)), None
        else:
            scores, jacobian = found[1], at.basis.blocks(found[2])
        silent = jnp.where(self.responses.is_outside(latents, row, public), jnp.nan, 0.0)
        return Members(scores.at[: len(chances)].add(silent), weights, jacobian, chances)

    def through(self, at: At, jacobian: jax.Array | None, vectors: jax.Array) -> jax.Array:
        """Vectors like the scores of `Members` as those of u."""
        return vectors if jacobian is None else at.basis.layout.scattered(jnp.tensordot(vectors, jacobian, 1))

    def drawn_influence(self, at: At, scores: jax.Array, weights: jax.Array, jacobian: jax.Array | None) -> Influence:
        """From the scores (1 + m, d) of responses. Given a `jacobian` of k numbers in blocks of u, `scores` are (1 + m, k), and
        their products with it are the scores: lengths of vectors of k numbers are then those of their products."""
        norm, basis, through = at.norm, at.basis, partial(self.through, at, jacobian)
        grams = None if jacobian is None else jnp.einsum("kib,lib->ikl", jacobian, jacobian)
        gram = None if grams is None else jnp.sum(grams, axis=0)
        centred = scores - centre(scores, weights, norm, gram)
        psi = clipped(centred, norm, gram)
        # A real score that is not finite takes its row out; another one is left out.
        left_out = (jnp.arange(len(scores)) > 0) & ~jnp.all(jnp.isfinite(scores), axis=1)
        psi, scores = (jnp.where(left_out[:, None], 0.0, vectors) for vectors in (psi, scores))
        of_curvature = weights
        if isinstance(self.responses, UnitResponses) or np.isinf(self.most_scores):
            # These real responses may vary by more than the model's, which say how scores move with latents.
            of_curvature = jnp.where(jnp.arange(len(weights)) > 0, weights / jnp.sum(weights[1:]), 0.0)
        if jacobian is None or grams is None:
            matrix = lambda: basis.curvature(of_curvature, psi, scores)  # noqa: E731
            length = jnp.sqrt(jnp.sum(matrix() ** 2))
        else:
            product, ones = (of_curvature[:, None] * psi).T @ scores, jnp.ones(len(jacobian), jacobian.dtype)
            matrix = lambda: basis.curvature(ones, through(jnp.eye(len(ones))), through(product))  # noqa: E731
            length = basis.length_of_product(product, jacobian, grams)
        return Influence(
            through(scores[0]), through(psi[0]), length, squared_length(centred[0], gram) > norm**2, matrix,
            # Without the real response: signs of ranks must not depend on it.
            lambda directions: weights[1:] @ (through(scores[1:]) @ directions) ** 2 / jnp.sum(weights[1:]),
        )  # fmt: skip

    def look(self, at: At, row: Tree, rest: Tree) -> Tree:
        """psi / norm, isometric coordinates of w A / bound, and of psi psi' / norm^2 for the row's own response, by "score", "A"
        and "J". Jointly at most 1 long: the first has the share `at.score_share` of the squared length, see `units`.

        Of a row with missing values A is the mean of those of complete rows, less the covariance of w psi and the score given
        what is observed: the information that is missing (Louis 1982)."""
        weight = lambda found: jnp.minimum(1.0, at.curvature_bound / jnp.maximum(found.length, 1e-30))  # noqa: E731
        if not self.responses.missing:
            found = self._influence(at, row, rest)
            return self._scaled(at, row, found.psi, found.matrix() * weight(found))
        product = lambda psi, score: at.basis.curvature(jnp.ones(1), psi[None], score[None])  # noqa: E731

        def of(found: Influence) -> Tree:
            w = weight(found)
            return w * (found.matrix() - product(found.psi, found.score)), w * found.psi, found.score, found.psi

        matrix, weighed, score, psi = self._mean(of, at, row, rest)
        return self._scaled(at, row, psi, matrix + product(weighed, score))

    def _scaled(self, at: At, row: Tree, psi: jax.Array, matrix: jax.Array) -> Tree:
        unit, unit_a, unit_j = units(at.score_share, self.most_scores)
        psi, matrix = psi * (self._share(row) / at.norm), matrix * (self._share(row) / at.curvature_bound)
        return {"score": unit * psi, "A": unit_a * matrix, "J": unit_j * at.basis.outer(psi)}

    def unpacked(self, at: At, public: Tree, key: jax.Array, noise: jax.Array, total: Tree) -> Tree:
        """Return a look from the noisy sums of what `look` gives; `noise` is the sd of their noise."""
        return total

    def bins(self, at: At, row: Tree, rest: Tree) -> jax.Array:
        """The row's weight among zeros in the bin of the norm of its own score, and in that of the root of its curvature's
        length, over sqrt 2: see `Kind.BINS`. Of rows with missing values a mean of such.

        Noise makes up tails, the more the finer bins are, and a norm of scores goes by their tail. Curvatures may have a sharp
        end in the middle of an octave."""

        def of(found: Influence) -> jax.Array:
            return jnp.concatenate(
                [in_bin(jnp.linalg.norm(found.score)), in_bin(jnp.sqrt(found.length), in_an_octave=FINE)]
            )

        return self._mean(of, at, row, rest) * (self._share(row) / np.sqrt(2.0))

    def scalars(self, at: At, row: Tree, rest: Tree) -> jax.Array:
        """How well the row fits, see `fit.numbers`; of a unit, its rows. In `directions` rows are compared."""
        if isinstance(self.responses, UnitResponses):
            return self._scalars_of_unit(self.responses, at, row, rest)
        log_probs, values, weights = self._alternatives(at, row, *rest)
        return self._mean(partial(self.scalars_of, at, row, rest[0], weights), at, row, rest, log_probs, values)

    def scalars_of(
        self, at: At, row: Tree, public: Tree, weights: jax.Array, found: Influence, log_probs: jax.Array, values: jax.Array,
    ) -> jax.Array:  # fmt: skip
        assert at.directions is not None
        size = self.responses.size_of(unnumbered(row))
        ranks = ranked(log_probs, values, weights, found.squares(at.directions), size)
        return assembled(ranks, *self._flags(at, row, public, found), self._share(row))

    def _scalars_of_unit(self, responses: UnitResponses, at: At, row: Tree, rest: Tree) -> jax.Array:
        """Each row of the unit is compared with responses of its own law."""
        (public, key), directions = rest, at.directions
        assert directions is not None
        rows, mask = parts(responses.of_rows.split, unnumbered(row))
        alone = replace(self, responses=responses.of_rows)
        keys = jax.random.split(jax.random.fold_in(key, row[ROW_NUMBER]), len(mask))

        def of_row(one: Tree, key: jax.Array) -> Ranks:
            one = one | {ROW_NUMBER: jnp.zeros((), jnp.int32)}
            log_probs, values, weights = alone._alternatives(at, one, public, key)
            squares = alone._influence(at, one, (public, key)).squares(directions) * len(mask)
            return ranked(log_probs, values, weights, squares, responses.of_rows.size)

        ranks = ranked_unit(jax.vmap(of_row)(rows, keys), mask)
        return assembled(ranks, *self._flags(at, row, public, self._influence(at, row, rest)))

    def _flags(self, at: At, row: Tree, public: Tree, found: Influence) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Whether a row is clipped or has gaps, (2,) or (3,); whether its score is finite; and whether its response is outside
        the support."""
        responses, situation = self.responses, (self.latents(at.point), unnumbered(row), public)
        gaps = [responses.has_gap(*situation)] if responses.has_gaps else []
        flags = jnp.stack([found.is_clipped, found.length > at.curvature_bound, *gaps])
        speaks = jnp.all(jnp.isfinite(found.psi)) & jnp.isfinite(found.length * self._share(row))
        return flags, speaks, responses.is_outside(*situation)

    def totals(self, at: At, row: Tree, public: Tree, values: Tree) -> jax.Array:
        """The sum of all that a row observes, and the same of `values` by site (m, ...): (1 + m,)."""
        return self.responses.totals(self.latents(at.point), unnumbered(row), public, values)

    def _alternatives(self, at: At, row: Tree, public: Tree, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Log probabilities, values, weights of the real response, the first two in all its completions, and others: (1 + m,)."""
        responses = replace(self.responses, num_draws=RANKED_DRAWS)
        # Not the draws that squares, and with them the signs of ranks, are made of: ranks among these would have another mean.
        key, row = jax.random.fold_in(jax.random.fold_in(key, row[ROW_NUMBER]), 1), unnumbered(row)
        latents = self.latents(at.point)
        values, weights = responses(latents, row, public, key)
        log_prob = lambda r=None: self.log_likelihood(at.point, row, public, r)  # noqa: E731
        if responses.missing:
            completions, _ = responses.completions(latents, row, public)
            values = {site: jnp.concatenate([completions[site], value]) for site, value in values.items()}
            log_probs = jax.vmap(log_prob)(values)
        else:
            log_probs = jnp.append(log_prob(), jax.vmap(log_prob)(values))
        return log_probs, responses.totals(latents, row, public, values), weights
