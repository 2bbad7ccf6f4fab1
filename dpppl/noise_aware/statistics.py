"""Statistics of a row: its centred score, its curvature, the bins of their norms, and how well it fits.

All are computed in coordinates u (see `frame`), from the scores s (1 + m, d) of the responses
that a row could have given and their weights. psi = clip(s - a) is centred (see `centring`), and a row whose
curvature A = sym(E[psi s']) is longer than a bound is weighed down, by min(1, bound / |A|): curvatures by w, whose bound is
`bound`, scores by v, whose bound is `score_bound`, as large or larger. Both depend on no response where these are listed, and on
all alike where they are drawn, so sum v psi still has mean zero at the truth. Its curvature is the sum of v A, and the sum of
w A is most of it. (Of units, and of a sandwich, the real response does not enter
A: nearly zero.)"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.centring import (
    averaged,
    binary_factor,
    centre,
    clipped,
    odds_of,
    squared_length,
    unnumbered,
)
from dpppl.access.mechanism import ROW_NUMBER
from dpppl.access.norm_histogram import in_bin
from dpppl.errors import ConfigurationError
from dpppl.model.responses import Responses
from dpppl.model.units import UnitResponses
from dpppl.noise_aware.fit import numbers
from dpppl.noise_aware.frame import Frame
from dpppl.noise_aware.plan import At
from dpppl.row_program.hoist import gradient, value_and_gradient
from dpppl.row_program.parameters import scores_by_parameters
from dpppl.types import Function, Numbers, Tree
from dpppl.validation import a, positive

J_SHARE, _SANDWICH_SHARE = 0.15, 0.5
"""The share of a curvature's cost that goes to the variance of scores; of a sandwich, whose width it decides."""
NUM_DRAWS = 32


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


def moment(weights: jax.Array, psi: jax.Array, scores: jax.Array) -> jax.Array:
    """The matrix (k, k) of sum weights psi scores', for psi, scores (m, k)."""
    return (weights[:, None] * psi).T @ scores


class Members(NamedTuple):
    """Responses that a row could have given, the real one first.

    - **log_probs** - (1 + m,).
    - **scores** - (1 + m, d), in u; with a `jacobian` of k numbers in blocks of u they are its products with `scores` (1 + m, k).
    - **weights** - (1 + m,).
    - **jacobian** - of the k numbers that a distribution is made of, in blocks of u, or None.
    - **others** - by site, (m, ...)."""

    log_probs: jax.Array
    scores: jax.Array
    weights: jax.Array
    jacobian: jax.Array | None
    others: Tree


class Influence(NamedTuple):
    """A row's score and its curvature.

    - **score** - of the real response, (d,); of `Joint` None.
    - **psi** - the same, centred and clipped, (d,).
    - **length** - the Frobenius norm of the row's curvature.
    - **is_clipped** - whether the centred score was longer than the norm.
    - **matrix** - computes the curvature, as its `frame` has it.
    - **squares** - of directions (d, n): the model's variance of scores along each.
    - **along** - of directions (d, n): the row's curvature along each."""

    score: Any
    psi: jax.Array
    length: jax.Array
    is_clipped: jax.Array
    matrix: Callable[[], jax.Array]
    squares: Callable[[Numbers], jax.Array]
    along: Callable[[Numbers], jax.Array]


def scores_share(most_scores: float) -> float:
    """Return the share of a curvature's cost that goes to the variance of scores."""
    return _SANDWICH_SHARE if np.isinf(most_scores) else J_SHARE


class RowStatistics:
    """The statistics of a row, each a function of (at, row, (public, key)).

    - **responses** - those that the model could have given in a row's place.
    - **latents** - from a point to the model's latents.
    - **frame** - one of the same shapes as those that accesses have.
    - **weights** - the column of weights, if there is one: all that the row releases of scores is multiplied by its weight,
      in [0, 1], after clipping: scores of the whole population still have mean zero.
    - **most_scores** - see `run_recipe`."""

    def __init__(
        self,
        responses: Responses,
        latents: Callable[[Tree], Tree],
        frame: Frame,
        weights: Weights | None = None,
        most_scores: float = 1.0,
    ) -> None:
        self._responses, self._latents, self.frame, self._weights = responses, latents, frame, weights
        self._scores_share = scores_share(most_scores)
        self._real_counts = not (isinstance(responses, UnitResponses) or np.isinf(most_scores))

    def _share(self, row: Tree) -> Numbers | float:
        """The row's weight, in [0, 1]; NaN where the row is left out."""
        return 1.0 if self._weights is None else self._weights.of_row(row)

    def log_likelihood(self, point: Numbers, row: Tree, public: Tree, responses: Tree = None) -> jax.Array:
        """NaN, gradient included, where the row's own response is outside the model's support: the row says nothing."""
        latents = self._latents(point)
        log_prob = self._responses.split.log_likelihood(latents, row, public, responses)
        if responses is not None:
            return log_prob
        is_outside = self._responses.is_outside(latents, row, public)
        # Not a factor: log probabilities that are -inf outside of the support have a gradient of 0, and would keep it.
        return log_prob + jnp.sum(point) * jnp.where(is_outside, jnp.nan, 0.0)

    def _respond(self, point: Numbers, row: Tree, public: Tree, key: jax.Array) -> tuple[Tree, jax.Array]:
        return self._responses(self._latents(point), row, public, key)

    def _own(self, at: At, row: Tree, public: Tree) -> tuple[jax.Array, jax.Array]:
        """The log probability of the row's own response, and its score in u, (d,)."""
        log_prob, score = value_and_gradient(self.log_likelihood)(at.point, unnumbered(row), public)
        return log_prob, at.frame.pulled(score)

    def _mean(self, of: Callable[[Influence], Tree], at: At, row: Tree, rest: Tree) -> Tree:
        """A statistic of a row. Where it has missing values, what it would be with these filled in, averaged by their
        probabilities given what the row observes.

        Its mean is then that for complete rows, whatever part of what is observed decides which values are missing: clipping is
        centred for complete rows, whose law the model gives, and not for those of one pattern."""
        if not self._responses.missing:
            return of(self._influence(at, row, rest))
        scores, chances, weights, jacobian = self._completed(at, row, *rest)
        completed, others = scores[: len(chances)], scores[len(chances) :]
        found = jax.vmap(
            lambda score: of(self.drawn_influence(at, jnp.concatenate([score[None], others]), weights, jacobian))
        )(completed)
        return averaged(found, chances)

    def _completed(
        self, at: At, row: Tree, public: Tree, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
        """Scores (m + n, k) of a row with its missing values filled in, each of m ways, and of n rows that it could have been;
        the probabilities (m,) of the former, the weights (1 + n,) of one of them and of the latter, and a Jacobian as
        `_by_parameters` has it, or None."""
        point, number, row = at.point, row[ROW_NUMBER], unnumbered(row)
        latents = self._latents(point)
        completions, chances = self._responses.completions(latents, row, public)
        others, weights = self._respond(point, row, public, jax.random.fold_in(key, number))
        values = {site: jnp.concatenate([completions[site], others[site]]) for site in others}
        found = scores_by_parameters(self.log_likelihood, point, row, public, values)
        if found is None:
            score = gradient(self.log_likelihood)
            scores, jacobian = at.frame.pulled(jax.vmap(lambda r: score(point, row, public, r))(values)), None
        else:
            scores, jacobian = found[1], at.frame.blocks(found[2])
        silent = jnp.where(self._responses.is_outside(latents, row, public), jnp.nan, 0.0)
        return scores.at[: len(chances)].add(silent), chances, weights, jacobian

    def _influence(self, at: At, row: Tree, public_and_key: Tree) -> Influence:
        norm = at.norm
        if self._responses.is_binary:
            log_prob, score = self._own(at, row, public_and_key[0])
            odds, square = odds_of(log_prob), jnp.sum(score**2)
            factor = binary_factor(odds, jnp.sqrt(square), norm)
            return Influence(
                score,
                factor * score,
                factor * odds * at.frame.length(score, square),
                factor < 1.0,
                lambda: factor * odds * at.frame.square(score),
                lambda directions: odds * (score @ directions) ** 2,
                lambda directions: factor * odds * (score @ directions) ** 2,
            )
        return self.drawn_influence(at, *self.members(at, row, *public_and_key)[1:4])

    def members(self, at: At, row: Tree, public: Tree, key: jax.Array) -> Members:
        """The responses that a row could have given, and their scores; by parameters where these are few, see
        `scores_by_parameters`."""
        point, number, row = at.point, row[ROW_NUMBER], unnumbered(row)
        latents = self._latents(point)
        others, weights = self._respond(point, row, public, jax.random.fold_in(key, number))
        own = self._responses.own(latents, row, public)
        if own is not None:
            joined = lambda one, more: jnp.concatenate([jnp.asarray(one)[None], more])  # noqa: E731
            values = jax.tree.map(joined, {site: own[site] for site in others}, others)
            found = scores_by_parameters(self.log_likelihood, point, row, public, values)
            if found is not None:
                silent = jnp.where(self._responses.is_outside(latents, row, public), jnp.nan, 0.0)
                log_probs, scores = (x.at[0].add(silent) for x in found[:2])
                return Members(log_probs, scores, weights, at.frame.blocks(found[2]), others)
        each = value_and_gradient(self.log_likelihood)
        real, rest = each(point, row, public, None), jax.vmap(lambda r: each(point, row, public, r))(others)
        log_probs, scores = (jnp.concatenate([x[None], y]) for x, y in zip(real, rest))
        return Members(log_probs, at.frame.pulled(scores), weights, None, others)

    def through(self, at: At, jacobian: jax.Array | None, vectors: jax.Array) -> jax.Array:
        """Vectors like the scores of `Members` as those of u."""
        return vectors if jacobian is None else at.frame.layout.scattered(jnp.tensordot(vectors, jacobian, 1))

    def drawn_influence(self, at: At, scores: jax.Array, weights: jax.Array, jacobian: jax.Array | None) -> Influence:
        """From the scores (1 + m, d) of responses. Given a `jacobian` of k numbers in blocks of u, `scores` are (1 + m, k), and
        their products with it are the scores: lengths of vectors of k numbers are then those of their products."""
        norm = at.norm
        grams = None if jacobian is None else jnp.einsum("kib,lib->ikl", jacobian, jacobian)
        gram = None if grams is None else jnp.sum(grams, axis=0)
        through = partial(self.through, at, jacobian)
        centred = scores - centre(scores, weights, norm, gram)
        psi = clipped(centred, norm, gram)
        # A real score that is not finite takes its row out; another one is left out.
        left_out = (jnp.arange(len(scores)) > 0) & ~jnp.all(jnp.isfinite(scores), axis=1)
        psi, scores = (jnp.where(left_out[:, None], 0.0, vectors) for vectors in (psi, scores))

        # Real responses of a unit, and in a sandwich, may vary by more than the model's, which say how scores move with latents.
        drawn = jnp.where(jnp.arange(len(weights)) > 0, weights / jnp.sum(weights[1:]), 0.0)
        of_curvature = weights if self._real_counts else drawn

        def matrix() -> jax.Array:
            if jacobian is None:
                return at.frame.curvature(of_curvature, psi, scores)
            ones, product = jnp.ones(len(jacobian), jacobian.dtype), moment(of_curvature, psi, scores)
            return at.frame.curvature(ones, through(jnp.eye(len(jacobian))), through(product))

        def squares(directions: Numbers) -> jax.Array:
            """The real response is left out: signs of ranks must not depend on it."""
            return weights[1:] @ (through(scores[1:]) @ directions) ** 2 / jnp.sum(weights[1:])

        if jacobian is None or grams is None:
            length = jnp.sqrt(jnp.sum(matrix() ** 2))
        else:
            length = at.frame.length_of_product(moment(of_curvature, psi, scores), jacobian, grams)

        def along(directions: Numbers) -> jax.Array:
            return of_curvature @ ((through(psi) @ directions) * (through(scores) @ directions))

        is_clipped = squared_length(centred[0], gram) > norm**2
        return Influence(through(scores[0]), through(psi[0]), length, is_clipped, matrix, squares, along)

    def weight(self, at: At, row: Tree, length: jax.Array) -> jax.Array:
        """Of a curvature of this length."""
        return self._factor(at.bound, length) * self._share(row)

    def score_weight(self, at: At, row: Tree, length: jax.Array) -> jax.Array:
        """Of the score of a row with such a curvature."""
        return self._factor(at.score_bound, length) * self._share(row)

    @staticmethod
    def _factor(bound: Numbers | float, length: jax.Array) -> jax.Array:
        return jnp.minimum(1.0, bound / jnp.maximum(length, 1e-30))

    def bin(self, at: At, row: Tree, rest: Tree) -> jax.Array:
        """A 1 among zeros (norm_histogram.SIZE,): the bin of the log norm of the row's own score; where `at` is
        `of_curvature`, that of its curvature over the squared norm, scores clipped."""
        own = self._own_score(at, row, rest[0])

        def of(found: Influence) -> Tree:
            score = jnp.linalg.norm(found.score if own is None else own)
            length = found.length / at.norm**2  # in units of the norm: its scale may be any
            return in_bin(jnp.where(at.of_curvature, length, score))

        return self._mean(of, at, row, rest)

    def _own_score(self, at: At, row: Tree, public: Tree) -> jax.Array | None:
        """The row's own score, (d,); None where it is that of its influence."""
        return None if self._responses.missing else self._own(at, row, public)[1]

    def gradient(self, at: At, row: Tree, rest: Tree) -> jax.Array:
        """v psi of the row's own response, in units of the norm: (d,), at most 1 long."""
        return self._mean(lambda found: self.gradient_of(at, row, found), at, row, rest)

    def gradient_of(self, at: At, row: Tree, found: Influence) -> jax.Array:
        """The same from the row's influence."""
        return found.psi * (self.score_weight(at, row, found.length) / at.norm)

    def curvature(self, at: At, row: Tree, rest: Tree) -> Tree:
        """Isometric coordinates of w A / bound and of (v psi / norm)(v psi / norm)' for the row's own response.

        Jointly at most 1 long: see `scores_share`. Of a row with missing values A is the mean of those of complete rows, less the
        covariance of w psi and the score given what is observed: the information that is missing (Louis 1982)."""

        def of(found: Influence) -> Tree:
            w, v = self.weight(at, row, found.length), self.score_weight(at, row, found.length)
            psi = found.psi * w
            product = at.frame.curvature(one, psi[None], found.score[None]) if has_missing else 0.0
            return found.matrix() * w, psi, found.score, product, found.psi * v

        one, has_missing = jnp.ones(1), bool(self._responses.missing)
        matrix, psi, score, product, weighed = self._mean(of, at, row, rest)
        if has_missing:
            matrix -= product - at.frame.curvature(one, psi[None], score[None])
        return self._scaled(at, matrix, weighed)

    def curvature_of(self, at: At, row: Tree, found: Influence) -> Tree:
        """The same from the row's influence."""
        w, v = self.weight(at, row, found.length), self.score_weight(at, row, found.length)
        return self._scaled(at, found.matrix() * w, found.psi * v)

    def released(self, at: At, public: Tree, key: jax.Array, noise: jax.Array, total: Tree) -> Tree:
        """Return a release of curvatures from the noisy sums of what `curvature` gives; `noise` is the sd of their noise."""
        return total

    def _scaled(self, at: At, matrix: jax.Array, psi: jax.Array) -> Tree:
        return {
            "A": np.sqrt(1.0 - self._scores_share) * (matrix / at.bound),
            "J": np.sqrt(self._scores_share) * at.frame.outer(psi / at.norm),
        }

    def sizes(self, at: At, row: Tree, rest: Tree) -> jax.Array:
        """The lengths of w A `halfway`, and at the point, in units of sqrt 2 times the bound: (2,)."""
        assert at.halfway is not None
        points = at.halfway, at.point
        of = lambda found: self.sizes_of(at, row, found.length)  # noqa: E731
        return jnp.stack([self._mean(of, at._replace(point=point), row, rest) for point in points])

    def sizes_of(self, at: At, row: Tree, lengths: jax.Array) -> jax.Array:
        """The same from lengths."""
        return self._share(row) * jnp.minimum(lengths / at.bound, 1.0) / np.sqrt(2.0)

    def sides(self, at: At, row: Tree, rest: Tree) -> jax.Array:
        """Curvatures w E[psi s'] along directions, `along` (d, n): at the point, and each at its own two of the points
        `sides` (2 n, d). In units of their bounds, (4 n,), at most 1 long. A row's three of a direction are scaled
        alike, and the fourth is the first where that made it smaller, else 0."""
        has_missing = bool(self._responses.missing)

        def curvatures(point: Numbers, directions: Numbers) -> Tree:
            def of(found: Influence) -> Tree:
                w = self.weight(at, row, found.length)
                psi, score = found.psi @ directions * w, found.score @ directions
                return w * found.along(directions), psi, score, psi * score

            along, psi, score, product = self._mean(of, at._replace(point=point), row, rest)
            return along - (product - psi * score) if has_missing else along

        return self.sides_of(self._beside(at, curvatures))

    @staticmethod
    def _beside(at: At, curvatures: Callable[[Numbers, Numbers], jax.Array]) -> jax.Array:
        """Curvatures of (point, directions), (3, n): along all directions at the point, and along each at its own two."""
        assert at.along is not None
        directions = jnp.tile(at.along.T[:, :, None], (2, 1, 1))
        beside = jax.lax.map(lambda pair: curvatures(*pair)[0], (at.sides, directions))
        return jnp.concatenate([curvatures(at.point, at.along), beside]).reshape(3, -1)

    @staticmethod
    def sides_of(values: jax.Array) -> jax.Array:
        """The same from curvatures (3, n)."""
        values = jnp.clip(jnp.nan_to_num(values, nan=0.0), -1e6, 1e6)
        longest = jnp.max(jnp.abs(values), axis=0)
        values = values / jnp.maximum(longest, 1.0)
        found = jnp.concatenate([values, jnp.where(longest > 1.0, values[:1], 0.0)])
        return found.ravel() / np.sqrt(found.size)

    def scalars(self, at: At, row: Tree, rest: Tree) -> jax.Array:
        """How well the row fits, see `fit.numbers`. In `directions` rows are compared."""
        log_probs, values, weights = self._alternatives(at, row, *rest)
        of = partial(self.scalars_of, at, row, rest[0], weights)
        if not self._responses.missing:
            return of(self._influence(at, row, rest), log_probs, values)
        scores, chances, shares, jacobian = self._completed(at, row, *rest)
        count = len(chances)

        def completed(number: jax.Array) -> Tree:
            one = lambda x: jnp.concatenate([x[number][None], x[count:]])  # noqa: E731
            return of(self.drawn_influence(at, one(scores), shares, jacobian), one(log_probs), one(values))

        return averaged(jax.vmap(completed)(jnp.arange(count)), chances)

    def scalars_of(
        self, at: At, row: Tree, public: Tree, weights: jax.Array, found: Influence, log_probs: jax.Array, values: jax.Array,
    ) -> jax.Array:  # fmt: skip
        """The same from its influence, and the weights, log probabilities and values of responses, (1 + m,)."""
        assert at.directions is not None
        responses, situation = self._responses, (self._latents(at.point), unnumbered(row), public)
        gaps = [responses.has_gap(*situation)] if responses.has_gaps else []
        flags = jnp.stack([found.is_clipped, found.length > at.bound, *gaps])
        speaks = jnp.all(jnp.isfinite(found.psi * self.weight(at, row, found.length)))
        squares, is_outside = found.squares(at.directions), responses.is_outside(*situation)
        return numbers(log_probs, values, weights, squares, flags, speaks, is_outside, self._share(row))

    def totals(self, at: At, row: Tree, public: Tree, values: Tree) -> jax.Array:
        """The sum of all that a row observes, and the same of `values` by site (m, ...): (1 + m,)."""
        return self._responses.totals(self._latents(at.point), unnumbered(row), public, values)

    @property
    def responses(self) -> Responses:
        """Those that the model could have given in a row's place."""
        return self._responses

    def _alternatives(self, at: At, row: Tree, public: Tree, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Log probabilities of the real response and of those that it could have been, their values, and their weights, all
        (1 + m,). Of rows with missing values the former two hold, in the place of the real response, all ways to fill these
        in."""
        responses = replace(self._responses, num_draws=NUM_DRAWS)
        # Not the draws that squares, and with them the signs of ranks, are made of: ranks among these would have another mean.
        key, row = jax.random.fold_in(jax.random.fold_in(key, row[ROW_NUMBER]), 1), unnumbered(row)
        latents = self._latents(at.point)
        values, weights = responses(latents, row, public, key)
        log_prob = lambda r=None: self.log_likelihood(at.point, row, public, r)  # noqa: E731
        if responses.missing:
            completions, _ = responses.completions(latents, row, public)
            values = {site: jnp.concatenate([completions[site], value]) for site, value in values.items()}
            log_probs = jax.vmap(log_prob)(values)
        else:
            log_probs = jnp.append(log_prob(), jax.vmap(log_prob)(values))
        return log_probs, responses.totals(latents, row, public, values), weights
