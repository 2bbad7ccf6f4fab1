"""The bounds of a row's score and curvature: given by the user, or chosen from private histograms."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dpppl.access.norm_histogram import Norms
from dpppl.row_statistics.accesses import Ask, At, Kind
from dpppl.row_statistics.matrices import Array, eigh
from dpppl.row_statistics.plan import Noises

MOST_WIDENED = 1.1  # by how much bounds that clip fewer rows may widen a posterior
_EARLY = (0.25, 0.5)  # the norm's quantile of rows' scores where noise rules, and where the sampling of data does
_HIDDEN = 4.0  # the norm is at most this many times the longest believed row: longer rows may hide in the noise
_CLIPPED_IN_MEDIAN, _PARTS = 0.5, (0.5, 0.99)
_EXPECTED = (0.0, 1.5)  # log2 of a curvature's length over the squared norm: that of a clipped score times one as long


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of a row in u. None: chosen from private histograms.

    - **norm**, **curvature** - of a score, and of a row's curvature.
    - **negligible** - posterior sds that clipping may move an estimate by, as the histogram has it, and be worth no noise."""

    norm: float | None = None
    curvature: float | None = None
    negligible: float = field(default=0.0, repr=False)


class Expected(NamedTuple):
    """The expectation of a stage's gradients before its norm is chosen.

    - **noise** - the variance of the noise in their mean, in units of the squared norm.
    - **curvature**, **covariance** - of u, (k, b, b), from the stages before (None in the first), and the prior's."""

    noise: float
    curvature: Array | None
    covariance: Array


def found_bounds(
    ask: Ask, at: At, bounds: Bounds, sigma: Noises, expected: Expected, num_rows: int, most: float = _PARTS[1]
) -> tuple[At, float]:
    """`at` with the user's bounds, or those from the stage's histograms, or else those of the stage before. Also the part of
    scores that the norm clips, over scores, by root mean squares.

    - **sigma** - noise multipliers by kind of access.
    - **most** - the largest quantile of curvatures that becomes the bound."""
    if Kind.BIN not in sigma:
        norm, bound = bounds.norm or at.norm, bounds.curvature or at.curvature_bound
        return at._replace(norm=norm, curvature_bound=bound, score_bound=bound), 1.0
    noise = sigma[Kind.BIN]
    norms = Norms.fitted(ask(Kind.BIN, at._replace(of_curvature=False), noise), noise, num_rows)
    informed = max(1.0, norms.share * num_rows)
    norm = bounds.norm or chosen_norm(norms, expected, informed, num_rows, bounds.negligible)
    counts = ask(Kind.BIN, at._replace(norm=norm, of_curvature=True), noise)
    lengths = Norms.fitted(counts, noise, num_rows, _EXPECTED)
    entries = len(at.point) * at.basis.roots.shape[1]
    affordable = np.sqrt(entries / 2.0) * sigma[Kind.CURVATURE] / (_CLIPPED_IN_MEDIAN * informed)
    bound = bounds.curvature or norm**2 * lengths.quantile(float(np.clip(1.0 - affordable, _PARTS[0], most)))
    widest = bound
    if expected.curvature is not None:
        # The largest one under which rows' curvature is at most `MOST_WIDENED` times as large as what is released of it.
        kept = lambda b: lengths.mean(lambda x: np.minimum(x, b))  # noqa: E731
        candidates = bound / norm**2 * 2.0 ** np.arange(0.0, 40.0, 0.25)
        widest = norm**2 * float(max(b for b in candidates if kept(b) <= MOST_WIDENED * kept(bound / norm**2)))
    left = norms.mean(lambda x: np.maximum(x - norm, 0.0) ** 2) / norms.mean(np.square)
    return at._replace(norm=norm, curvature_bound=bound, score_bound=widest), float(np.sqrt(left))


def chosen_norm(norms: Norms, expected: Expected, informed: float, num_rows: int, negligible: float = 0.0) -> float:
    """The norm of a stage: in the first ones a low quantile; later the largest one that widens what is learned, on average over
    directions, by at most `MOST_WIDENED`, up to `_HIDDEN` times the longest believed row: longer ones that noise hides may move
    estimates by several sds; no longer than where clipping moves estimates by a `negligible` number of sds. `informed`: how many
    of `num_rows` inform the posterior.

    Along an eigenvector of the curvature, of which h is expected without clipping, clipped scores have the curvature h k and the
    variance h s, with k = E[|x| min(|x|, C)] / E[x^2] and s = E[min(|x|, C)^2] / E[x^2] over the norms x of rows."""
    if expected.curvature is None:
        per_row = expected.covariance.shape[0] * expected.covariance.shape[1] / num_rows
        return norms.quantile(_EARLY[0] + (_EARLY[1] - _EARLY[0]) / (1.0 + per_row * expected.noise))
    candidates = 2.0 ** norms.edges[1:]
    longest = norms.quantile(max(0.5, 1.0 - norms.unseen))
    seen = np.minimum(norms.middles, longest)
    clipped = np.minimum(seen, candidates[:, None])
    squared, kept = clipped**2 @ norms.mass, (clipped * seen) @ norms.mass
    values, vectors = eigh(expected.curvature)
    prior = np.sum(vectors * (expected.covariance @ vectors), axis=1)
    known, prior = values[values > 0.0][:, None], prior[values > 0.0][:, None]  # but for padding
    known = known * informed / np.sum(known)
    variance = (known * squared + candidates**2 * expected.noise) / (known * kept) ** 2
    share = prior / (prior + variance)  # of the prior's variance, what is learned
    least = int(np.argmin(np.mean(np.log(share * variance), axis=0)))
    wider = np.average(np.log(variance / variance[:, least, None]), axis=0, weights=share[:, least]) / 2.0
    longer = np.maximum(norms.middles - candidates[:, None], 0.0) @ norms.mass
    moved = np.sqrt(np.mean(share / variance * (informed * longer / (known * kept)) ** 2, axis=0))
    cheap = np.flatnonzero((wider <= np.log(MOST_WIDENED)) & (candidates <= _HIDDEN * longest))
    return float(candidates[min(cheap[-1], max([least, *cheap[moved[cheap] >= negligible]]))])
