"""What an access asks of a row: a score clipped around its centre, its curvature, where its norms lie, and how well it fits.

All are computed in coordinates u (see `geometry`), from the scores s (1 + m, d) of the responses
that a row could have given and their weights. psi = clip(s - a) is centred (see `centring`), and a row whose
curvature A = sym(E[psi s']) is longer than `bound` is weighed down, by w = min(1, bound / |A|), in every release alike:
w depends on no response, so sum w psi still has mean zero at the truth, and its curvature is the sum of w A exactly.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.centring import binary_factor, centre, clipped, odds_of, row_scores, unnumbered
from dpppl.mechanism import ROW_NUMBER
from dpppl.noise_aware.geometry import Geometry
from dpppl.norms import in_bin
from dpppl.responses import Responses
from dpppl.shared_work import value_and_gradient

J_SHARE = 0.15
"""The share of a curvature's cost that goes to the variance of scores."""
FIT, BESIDE_FIT = 0.93, 0.16
"""By what two moments of ranks are multiplied, and the four numbers released with them, so that all are at most 1 long."""
_NUM_DRAWS, _TIED = 32, 1e-3


class RowStatistics:
    """The statistics of a row, each a function of (at, row, (public, key)); `at`: "point" (d,), "norm", "bound", and what
    `geometry` needs. `latents(point)` gives the model's."""

    def __init__(self, responses: Responses, latents: Callable[[Any], Any], geometry: Geometry) -> None:
        self._responses, self._latents, self.geometry = responses, latents, geometry

    def _log_likelihood(self, point: Any, row: Any, public: Any, responses: Any = None) -> Any:
        return self._responses.split.log_likelihood(self._latents(point), row, public, responses)

    def _respond(self, point: Any, row: Any, public: Any, key: Any) -> Any:
        return self._responses(self._latents(point), row, public, key)

    def _own(self, at: Any, row: Any, public: Any) -> tuple[Any, Any]:
        """The log probability of the row's own response, and its score in u, (d,)."""
        log_prob, score = value_and_gradient(self._log_likelihood)(at["point"], unnumbered(row), public)
        return log_prob, self.geometry.pulled(at, score)

    def _influence(self, at: Any, row: Any, public_and_key: Any) -> "_Influence":
        norm = at["norm"]
        if self._responses.is_binary:
            log_prob, score = self._own(at, row, public_and_key[0])
            odds, square = odds_of(log_prob), jnp.sum(score**2)
            factor = binary_factor(odds, jnp.sqrt(square), norm)
            return _Influence(
                factor * score,
                factor * odds * self.geometry.length(at, score, square),
                factor < 1.0,
                lambda: factor * odds * self.geometry.square(at, score),
            )
        scores, weights = row_scores(self._log_likelihood, self._respond)(at["point"], row, *public_and_key)
        scores = self.geometry.pulled(at, scores)
        centred = scores - centre(scores, weights, norm)
        psi = clipped(centred, norm)
        # A real score that is not finite takes its row out; another one is left out.
        left_out = (jnp.arange(len(scores)) > 0) & ~jnp.all(jnp.isfinite(scores), axis=1)
        psi = jnp.where(left_out[:, None], 0.0, psi)
        scores = jnp.where(jnp.isfinite(scores), scores, 0.0)

        def matrix() -> Any:
            return self.geometry.curvature(at, weights, psi, scores)

        length, is_clipped = jnp.sqrt(jnp.sum(matrix() ** 2)), jnp.sum(centred[0] ** 2) > norm**2
        return _Influence(psi[0], length, is_clipped, matrix)

    def _weight(self, at: Any, length: Any) -> Any:
        return jnp.minimum(1.0, at["bound"] / jnp.maximum(length, 1e-30))

    def norm_bin(self, at: Any, row: Any, rest: Any) -> Any:
        """A 1 among zeros (norms.NUM_BINS,): the bin of the log norm of the row's own score."""
        return in_bin(jnp.linalg.norm(self._own(at, row, rest[0])[1]))

    def curvature_bin(self, at: Any, row: Any, rest: Any) -> Any:
        """A 1 among zeros (norms.NUM_BINS,): the bin of the log norm of the row's curvature, scores clipped."""
        return in_bin(self._influence(at, row, rest).length)

    def gradient(self, at: Any, row: Any, rest: Any) -> Any:
        """w psi of the row's own response, in units of the norm: (d,), at most 1 long."""
        found = self._influence(at, row, rest)
        return found.psi * (self._weight(at, found.length) / at["norm"])

    def curvature(self, at: Any, row: Any, rest: Any) -> Any:
        """Isometric coordinates of w A / bound and of (w psi / norm)(w psi / norm)' for the row's own response.

        Jointly at most 1 long: their shares are 1 - J_SHARE and J_SHARE."""
        found = self._influence(at, row, rest)
        w = self._weight(at, found.length)
        own = found.psi * (w / at["norm"])
        return {
            "A": np.sqrt(1.0 - J_SHARE) * found.matrix() * (w / at["bound"]),
            "J": np.sqrt(J_SHARE) * self.geometry.outer(at, own),
        }

    def scalars(self, at: Any, row: Any, rest: Any) -> Any:
        """FIT times the moments of the response's rank; BESIDE_FIT times the variances of these under the
        model, and times whether score and curvature were clipped. Jointly at most 1 long.

        NaN, which the door counts as zero, where the row's `gradient` is not finite: infinities have ranks, too."""
        found = self._influence(at, row, rest)
        moments, variances = moments_of_rank(*self._log_probs(at, row, *rest))
        flags = jnp.stack([found.is_clipped, found.length > at["bound"]]).astype(moments.dtype)
        counts = jnp.all(jnp.isfinite(found.psi * self._weight(at, found.length)))
        return jnp.where(counts, jnp.concatenate([FIT * moments, BESIDE_FIT * variances, BESIDE_FIT * flags]), jnp.nan)

    def _log_probs(self, at: Any, row: Any, public: Any, key: Any) -> tuple[Any, Any]:
        """Of the real response, and of those that it could have been; and their weights. All (1 + m,)."""
        responses = replace(self._responses, num_draws=_NUM_DRAWS)
        key, row = jax.random.fold_in(key, row[ROW_NUMBER]), unnumbered(row)
        values, weights = responses(self._latents(at["point"]), row, public, key)
        log_prob = lambda r=None: self._log_likelihood(at["point"], row, public, r)  # noqa: E731
        return jnp.append(log_prob(), jax.vmap(log_prob)(values)), weights


def moments_of_rank(log_probs: Any, weights: Any) -> tuple[Any, Any]:
    """Two moments of a response's rank by surprise less what the model expects of them, and their variances under the model.
    The first member is the real response; ranks of equals are halved.

    With P1 and P3 Legendre's polynomials of the rank, which have mean 0 where the model is right (Neyman 1937), (P1 + P3) / 2
    for tails and P1 - P3 for shoulders: jointly they are hardly longer than alone, 1 and .96."""
    log_probs = jnp.maximum(log_probs, -1e30)  # differences of infinities are none
    is_likelier = jnp.clip(0.5 + (log_probs - log_probs[:, None]) / _TIED, 0.0, 1.0)
    u = is_likelier @ weights - 0.5
    moments = jnp.stack([10.0 * u**3 - 0.5 * u, 5.0 * u - 20.0 * u**3])
    centred = moments - (moments @ weights)[:, None]
    return centred[:, 0], centred**2 @ weights


class _Influence(NamedTuple):
    """`psi` (d,): the real response's score, centred and clipped; `length`: the Frobenius norm of the row's curvature,
    which `matrix` computes, as its `geometry` has it; `is_clipped`: whether the centred score was longer than the norm."""

    psi: Any
    length: Any
    is_clipped: Any
    matrix: Callable[[], Any]
