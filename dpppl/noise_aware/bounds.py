"""The bounds of a row's score and curvature: given by the user, or chosen from private histograms."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dpppl.access.norm_histogram import SIZE, Norms
from dpppl.row_statistics.accesses import Ask, At, Kind
from dpppl.row_statistics.matrices import Array, eigh
from dpppl.row_statistics.response_ranks import Fit
from dpppl.row_statistics.statistics import units

MOST_ADDED = 1.1  # by how much bounds that clip fewer rows may multiply the variance that privacy adds
_GUARD = 0.5  # by how much they may add to it where other tails are sure, as a part of the variance of sampling
_FIRST = (0.25, 0.5)  # the norm's quantile of rows' scores where noise rules, and where the sampling of data does
_MOST = 4.0  # by how much a misfit may multiply the variance that privacy adds
_HIDDEN = 4.0  # the norm is at most this many times the longest believed row: longer rows may hide in the noise
_LONGER = 2.0  # by how much rows, or roots of their curvatures, may be longer than the longest believed score
_UNCLIPPED = 1e15  # a norm
_UNEVEN = 0.5  # by what a bound changes the shape of a curvature, as a part of what it cuts off
_LEAST_KEPT = 0.2
_OCTAVES = 1.5  # sd of the location of norms where looks before have told their mean square


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of a row in u. None: chosen from private histograms.

    - **norm**, **curvature** - of a score, and of a row's curvature.
    - **negligible** - posterior sds that clipping may move an estimate by, as the histogram has it, and be worth no noise."""

    norm: float | None = None
    curvature: float | None = None
    negligible: float = field(default=0.0, repr=False)


class Expected(NamedTuple):
    """Numbers that are expected of looks before their bounds are chosen.

    - **noise** - the noise multiplier of all of them together.
    - **curvature**, **covariance** - of u, (k, b, b), from looks before (None in the first), and the prior's.
    - **is_late** - whether they decide the posterior.
    - **most_scores** - see `run_recipe`.
    - **fit** - of rows, as known before."""

    noise: float
    curvature: Array | None
    covariance: Array
    is_late: bool
    most_scores: float
    fit: Fit = Fit()


class Lengths(NamedTuple):
    """Lengths of rows as histograms have them.

    - **scores**, **roots** - of their scores, and the roots of the lengths of their curvatures."""

    scores: Norms
    roots: Norms

    @classmethod
    def asked(cls, ask: Ask, at: At, noise: float, curvature: Array | None, num_rows: int) -> "Lengths":
        """From an access with this `noise`; `curvature`: that of all rows, as looks before have it, if there are any."""
        counts, noise = ask(Kind.BINS, at._replace(norm=_UNCLIPPED), noise) * np.sqrt(2.0), noise * np.sqrt(2.0)
        where = (0.0, 5.0)
        if curvature is not None:
            mean_square = np.trace(curvature, axis1=1, axis2=2).sum() / num_rows
            where = (0.5 * float(np.log2(max(mean_square, 1e-30))) - 0.5, _OCTAVES)
        return cls(*(Norms.fitted(own, noise, num_rows, where) for own in np.split(counts, [SIZE])))

    @property
    def mean_square(self) -> float:
        """The mean square of scores, without rows that are longer than is believed."""
        norms = self.scores
        return float(norms.share * norms.mean(lambda x: np.minimum(x, norms.longest) ** 2))


def chosen_bounds(lengths: Lengths, at: At, bounds: Bounds, expected: Expected, num_rows: int) -> tuple[At, float]:
    """Where looks are made, with their bounds, chosen or given; and `RecipeOutcome.cut`."""
    norms, roots = lengths
    informed = max(1.0, norms.share * num_rows)
    unit, unit_a, unit_j = map(float, units(at.score_share, expected.most_scores))
    norm = bounds.norm or norm_of_looks(
        norms, expected, (expected.noise / unit) ** 2, informed, num_rows, bounds.negligible, expected.noise / unit_j
    )
    # A row's curvature is a clipped score by one about as long: its bound makes least error, by noise and by what it cuts off.
    dimension, width = len(at.point), at.basis.roots.shape[1]
    believed = np.minimum(roots.middles, min(roots.longest, _LONGER * norms.longest))
    sizes, candidates = believed * np.minimum(believed, norm), 4.0 ** roots.edges[1:]
    kept = np.minimum(sizes, candidates[:, None]) @ roots.mass / (sizes @ roots.mass)
    error = candidates * expected.noise / unit_a * np.sqrt(2.0 * width) * dimension / (informed * (sizes @ roots.mass))
    # Early looks correct a curvature for what its bound cuts off, on average over directions.
    late = expected.is_late
    # `error` is the noise's largest eigenvalue; a mean is moved by half of it, the root mean square over directions.
    loss = (error * (0.5 if late else 1.0 / kept)) ** 2 + ((1.0 if late else _UNEVEN) * (1.0 - kept)) ** 2
    typical = norms.quantile(0.5)  # a score is about as long as its curvature's root, or shorter
    best = int(np.argmin(np.where(candidates >= typical * min(typical, norm) / 2.0, loss, np.inf)))
    bound = float(candidates[best])
    if bounds.curvature:
        best, bound = int(np.searchsorted(candidates, bounds.curvature).clip(0, len(kept) - 1)), bounds.curvature
    left = norms.mean(lambda x: np.maximum(x - norm, 0.0) ** 2) / norms.mean(np.square)
    at = at._replace(norm=norm, curvature_bound=bound, kept=1.0 if late else max(float(kept[best]), _LEAST_KEPT))
    return at, float(np.sqrt(left))


def norm_of_looks(
    norms: Norms, expected: Expected, noise: float, informed: float, num_rows: int, negligible: float = 0.0,
    noise_of_squares: float = 0.0,
) -> float:  # fmt: skip
    """Return the norm of looks: of the first a low quantile, later the largest one that multiplies the squared error of privacy
    by at most `MOST_ADDED`. Moves of estimates by clipping, where ranks of responses speak against the model, are part of that
    error. It is at most `_HIDDEN` times the longest believed row, and no longer than where clipping moves estimates by a
    `negligible` number of sds.

    - **noise** - the variance of the noise in the sum of scores, in units of the squared norm.
    - **informed** - how many of `num_rows` inform the posterior.
    - **noise_of_squares** - the sd of the noise in the sum of products of scores, in the same units, on which a sandwich rests.

    Along an eigenvector of the curvature, of which h is expected without clipping, clipped scores have the curvature h k and the
    variance h s, with k = E[|x| min(|x|, C)] / E[x^2] and s = E[min(|x|, C)^2] / E[x^2] over the norms x of rows."""
    if expected.curvature is None:
        per_row = expected.covariance.shape[0] * expected.covariance.shape[1] / num_rows
        return norms.quantile(_FIRST[0] + (_FIRST[1] - _FIRST[0]) / (1.0 + per_row * noise))
    candidates = 2.0 ** norms.edges[1:]
    longest = norms.longest
    seen = np.minimum(norms.middles, longest)
    clipped = np.minimum(seen, candidates[:, None])
    squared, kept = clipped**2 @ norms.mass, (clipped * seen) @ norms.mass
    values, vectors = eigh(expected.curvature)
    prior = np.sum(vectors * (expected.covariance @ vectors), axis=1)
    known, prior = values[values > 0.0][:, None], prior[values > 0.0][:, None]  # but for padding
    known = known * informed / np.sum(known)
    variance = (known * squared + candidates**2 * noise) / (known * kept) ** 2
    share = prior / (prior + variance)  # of the prior's variance, what is learned
    least = int(np.argmin(np.mean(np.log(share * variance), axis=0)))
    longer = np.maximum(np.minimum(norms.middles, _LONGER * longest) - candidates[:, None], 0.0)
    moved = np.sqrt(np.mean(share / variance * (informed * (longer @ norms.mass) / (known * kept)) ** 2, axis=0))
    sampled = expected.is_late / (known * (seen**2 @ norms.mass))  # left open without privacy
    learned = share[:, least, None]
    error = np.mean(learned * (variance - sampled), axis=0)
    error /= np.mean(learned * (sampled if expected.is_late else variance[:, least, None]), axis=0)
    if expected.is_late and np.isinf(expected.most_scores):
        error += candidates**2 * noise_of_squares * len(known) / (informed * squared)
    # Rows that noise hides may be longer than any that were seen. The sandwich's own noise grows faster than their harm falls.
    guard = 0.0 if np.isinf(expected.most_scores) else _GUARD * expected.fit.tails
    is_allowed = (candidates <= _HIDDEN * longest) & (error <= max(_MOST * np.min(error), np.min(error) + guard))
    error += expected.fit.squared_harm / len(known) * (longer**2 @ norms.mass) / norms.mean(np.square)
    error = np.where(is_allowed, error, np.inf)
    least = int(np.argmin(error))
    cheap = np.flatnonzero(error <= max(MOST_ADDED * error[least], error[least] + guard))
    return float(candidates[min(cheap[-1], max([least, *cheap[moved[cheap] >= negligible]]))])
