"""From noisy releases to a Gaussian surrogate of the likelihood with known noise, look by look.

A look releases the sum of scores and the curvature at one point. Early looks are at the posterior mean given all looks so far,
in coordinates u in which the posterior that they give is white, so that clipping and noise are spread over directions as the
posterior needs. Late looks, which have most of the budget, are made in one metric at one norm. They alone decide the posterior:
their scores lie around one line, whose slope is the curvature that they release.

A large norm adds noise. A small one moves the root of the clipped score away from that of the score, wherever responses do not
follow the model. So ranks of responses, before the late looks, decide how long their norm is; see `bounds.norm_of_looks`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.bounds import Bounds, Expected, Lengths, found_bounds
from dpppl.noise_aware.curvature import ReleasedCurvature
from dpppl.noise_aware.line import FLOOR, Line, Look, trace
from dpppl.noise_aware.sketch import Sketch, next_frame
from dpppl.noise_aware.surrogate import Surrogate, moments, surrogate_of
from dpppl.row_statistics.accesses import Ask, At, Kind
from dpppl.row_statistics.coordinates import Known, Prior
from dpppl.row_statistics.matrices import Array, times
from dpppl.row_statistics.plan import EARLY, FIRST, METRICS, ReleasePlan
from dpppl.row_statistics.response_ranks import Directions, Fit, Scalars

OFFSET = 1e-6  # not at 0 itself, where NumPyro's Bernoulli has another gradient in its logits
_LATE_SLOPE = 0.15  # the relative error of a slope where late looks are a posterior sd from the posterior mean
_STEP = 1.5  # the most prior sds that a point moves along a latent
_DRAWS = 60  # of the curvature
# (power, noise): looks are whitened by this power of the curvature plus `noise` times its noise's largest eigenvalue.
# The first looks find units of columns; a full power of a curvature that clipping has cut stretches rare columns.
_UNITS, _EARLY, _METRICS = (0.5, 0.3), (0.35, 1.0), ((0.5, 1.0), (0.35, 1.0), (0.2, 1.0))
assert len(_METRICS) == METRICS


class InU(NamedTuple):
    """Matrices in the late looks' coordinates u, (k, b, b).

    - **released** - the mean of their curvatures.
    - **slope** - the mean of the draws of the curvature.
    - **spreads**, **spread** - the posterior covariance for each draw, (n, k, b, b), and over all.
    - **covariance** - the prior's."""

    released: ReleasedCurvature
    slope: Array
    spreads: Array
    spread: Array
    covariance: Array


class RecipeOutcome(NamedTuple):
    """The result of a run.

    - **norm**, **curvature_bound**, **cut** - the bounds of late looks, and the part of scores that the norm clips, over scores,
      by root mean squares.
    - **surrogate**, **modelled** - of the late looks, with the variance of scores as released; and with that of the model.
    - **belief**, **covariance** - the posterior under a normal prior, and its covariance in blocks of scaled, reflected latents.
    - **earlier** - the same given the early looks alone.
    - **chi_squared**, **degrees** - the scatter of late scores around one line in units of their noise, and its degrees of
      freedom.
    - **in_u** - of what is measured in u.
    - **scalars** - how well rows fit."""

    norm: float
    curvature_bound: float
    cut: float
    surrogate: Surrogate
    modelled: Surrogate
    belief: Known
    covariance: Array
    earlier: Known
    chi_squared: float
    degrees: int
    in_u: InU
    scalars: Scalars


def run_recipe(
    ask: Ask, plan: ReleasePlan, scale: float, prior: Prior, bounds: Bounds, num_rows: int, redrawn: float = 0.0,
    most_scores: float = 1.0, added: float = 0.0, rows_per_unit: int = 1,
) -> RecipeOutcome:  # fmt: skip
    """All accesses in order, and what they say.

    - **ask** - the function that makes an access.
    - **scale** - 1 / mu.
    - **bounds** - the user's bounds of a row, where given.
    - **redrawn**, **added** - see `Responses`.
    - **most_scores** - the largest multiple of the curvature that the variance of scores may be: 1 for the model's own rows, more
      for correlated rows of a unit, infinite for a sandwich.
    - **rows_per_unit** - the most rows of a unit."""
    noise_of = lambda share: scale / np.sqrt(share)  # noqa: E731
    line, late, cut, fit = Line.none(prior.first()), [], 1.0, Fit()
    at = At(prior.mean + OFFSET * prior.scales, 1.0, 1.0, line.basis)
    metrics = [(at, line)]
    for number, planned in enumerate(plan.looks):
        is_late = number >= EARLY
        if planned.scalars is not None:
            fit = _fit(ask, at, noise_of(planned.scalars), line, prior, num_rows, rows_per_unit)
        lengths = [
            Lengths.asked(ask, place, noise_of(share), known.slope if number else None, num_rows)
            for (place, known), share in zip(metrics, planned.bins)
        ]
        best = int(np.argmin([each.mean_square for each in lengths])) if lengths else 0
        at, line = metrics[best]
        at, basis = at._replace(score_share=planned.score_share), line.basis
        covariance = basis.covariance_of_u(prior.covariance(basis))
        if number <= EARLY:
            sketch = Sketch.drawn(basis, line.posterior(covariance)[1], np.random.default_rng(number))
            at = at._replace(basis=basis._replace(sketch=sketch.columns))
        if bounds.norm and bounds.curvature:
            at = at._replace(norm=bounds.norm, curvature_bound=bounds.curvature)
        elif lengths:
            together = plan.looks[number:] if is_late else [planned]  # looks that have these bounds
            noise = sum(noise_of(look.share) ** -2.0 for look in together) ** -0.5
            expected = Expected(noise, line.slope if number else None, covariance, is_late, most_scores, fit)
            at, cut = found_bounds(lengths[best], at, bounds, expected, num_rows)
        look = Look.asked(ask, at, noise_of(planned.share), prior, most_scores)
        late += [look] * is_late
        line, mean = line.with_look(look, covariance)
        at = _moved(at, prior, basis.to_latents(mean))
        if number == EARLY - 1:
            mean, spread = line.posterior(covariance)
            belief = Known(prior.mean + basis.to_latents(mean), basis.variances(spread))
        kinds = () if is_late else _METRICS if number == EARLY - 1 else (_UNITS if number < FIRST - 1 else _EARLY,)
        metrics = [_turned(at, line, look, sketch, prior, *kind) for kind in kinds] or [(at, line)]
    noise = float(plan.noise_multipliers(scale)[-1])
    return _concluded(ask, late, sketch, prior, belief, cut, noise, num_rows, redrawn, added)


def _moved(at: At, prior: Prior, mean: Array) -> At:
    """At a posterior mean, in latents from the prior mean, or on the way to it where it is far."""
    step = prior.mean + mean - at.point
    step *= min(1.0, _STEP / max(float(np.max(np.abs(step / prior.scales))), 1e-30))
    return at._replace(point=at.point + step)


def _fit(ask: Ask, at: At, noise: float, line: Line, prior: Prior, num_rows: int, rows_per_unit: int) -> Fit:
    """How well rows fit, by an access to scalars."""
    basis, h = at.basis, line.slope
    covariance = basis.covariance_of_u(prior.covariance(basis))
    spread = line.posterior(covariance)[1]
    directions = Directions.of(basis, basis.to_u(np.asarray(at.point) - prior.mean), h, num_rows)
    values = ask(Kind.SCALARS, at._replace(directions=directions.columns), noise)
    excess = trace(h @ spread) / basis.layout.dimension
    along = [""] * (1 + len(directions.coordinates))
    return Fit.from_sums(values, noise, num_rows, excess, along, rows_per_unit=rows_per_unit)


def _turned(
    at: At, line: Line, look: Look, sketch: Sketch, prior: Prior, power: float, noise: float
) -> tuple[At, Line]:
    """In coordinates in which the posterior is white. Scores change with them as their root mean square does, by the trace of
    the curvature."""
    basis, released, before = at.basis, look.curvature, line.curvature
    residual = sketch.unexplained(released.products, basis, line.curvature)
    left, strength = sketch.directions(residual, released.curvature_std**2)
    error, width = line.floor / FLOOR, basis.roots.shape[1]
    hidden = noise * error * np.sqrt(2.0 * width) * np.eye(width)
    new, of_latents = next_frame(basis, line.known_at(error) + hidden, left, strength, prior.pieces)
    line = line.carried(new.whitened(of_latents, prior.covariance(new), power))
    size, size_before = trace(line.curvature), max(trace(before), released.curvature_std)
    ratio = float(np.clip(size / size_before, 1e-12, 1e12)) if size > 0.0 else 1.0
    norm, bound = at.norm * float(np.sqrt(ratio)), at.curvature_bound * ratio
    return at._replace(basis=line.basis, norm=norm, curvature_bound=bound), line


class Late(NamedTuple):
    """Late looks in one basis. Their scores lie around one line of slope h.

    - **h** - the mean curvature (k, b, b).
    - **centres**, **lines** - where they were made, and their scores at u = 0 by this slope, (n, k, b).
    - **noises** - variances of the noise of scores, (n,).
    - **dimension** - of u, without padding."""

    h: Array
    centres: Array
    lines: Array
    noises: Array
    dimension: int

    @classmethod
    def of(cls, looks: Sequence[Look], h: Array) -> "Late":
        lines = np.array([look.scores + times(h, look.centre) for look in looks])
        noises, dimension = np.array([look.std**2 for look in looks]), looks[0].at.basis.layout.dimension
        return cls(h, np.array([look.centre for look in looks]), lines, noises, dimension)

    def distances(self, point: Array) -> tuple[Array, Array]:
        """Of the looks from a point, (n,): squared, in u and in mean squares of scores."""
        off = self.centres - point
        return np.sum(off**2, axis=(1, 2)), np.sum(times(self.h, off) ** 2, axis=(1, 2)) / self.dimension

    def averaged(self, point: Array) -> tuple[Array, Array, float, float]:
        """Centre and score of all looks, the variance of this score's noise, and the number of looks that weigh as much. A look
        counts less where it is far from the point, which is the posterior mean."""
        weights = 1.0 / (self.noises + _LATE_SLOPE**2 * self.distances(point)[1])
        variance = float(1.0 / np.sum(weights))
        weights = weights * variance
        centre, line = np.tensordot(weights, self.centres, 1), np.tensordot(weights, self.lines, 1)
        return centre, line - times(self.h, centre), variance, 1.0 / float(np.sum(weights**2))

    def scatter(self, point: Array, sampling: float, slope_variance: float) -> float:
        """The sum of squares of scores around their mean line, each in units of its variance: noise, `sampling`, and error of
        the slope at the distance from the point."""
        squares = self.distances(point)
        expected = self.noises + sampling + slope_variance * squares[0] + _LATE_SLOPE**2 * squares[1]
        scattered = self.lines - np.tensordot(1.0 / expected, self.lines, 1) / np.sum(1.0 / expected)
        return float(np.sum(np.sum(scattered**2, axis=(1, 2)) / expected))


def _concluded(
    ask: Ask, looks: Sequence[Look], sketch: Sketch, prior: Prior, earlier: Known, cut: float, noise: float, num_rows: int,
    redrawn: float, added: float,
) -> RecipeOutcome:  # fmt: skip
    """From the late looks, all in one basis; `noise`: of the access to scalars, the last one."""
    at, basis = looks[-1].at, looks[-1].at.basis
    dimension, covariance = basis.layout.dimension, basis.covariance_of_u(prior.covariance(basis))
    released = ReleasedCurvature.mean(look.curvature for look in looks)
    curvature = released.posterior(basis, covariance, _DRAWS)
    late = Late.of(looks, curvature.mean)
    around = np.tensordot(late.noises**-1.0 / np.sum(late.noises**-1.0), late.centres, 1)
    for _ in range(2):
        before = around
        centre, score, variance, number = late.averaged(before)
        law = curvature.averaged(redrawn, number, added)
        surrogate = surrogate_of(released, law, basis, sketch, num_rows, (centre, score, variance))
        means, spreads = surrogate.posteriors(covariance)
        around, spread = moments(means, spreads)
    modelled = surrogate._replace(curvature=curvature.as_model().averaged(redrawn, number, added))
    sampling = (redrawn + added) * (trace(curvature.score_variance.mean(axis=0)) / dimension)
    degrees = dimension * (len(looks) - 1)
    point = prior.mean + basis.to_latents(around)
    directions = Directions.of(basis, around, law.mean, num_rows)
    values = ask(Kind.SCALARS, at._replace(point=point, directions=directions.columns), noise)
    return RecipeOutcome(
        at.norm, at.curvature_bound, cut, surrogate, modelled, Known(point, basis.variances(spread)),
        basis.covariance_of_latents(spread), earlier,
        chi_squared=late.scatter(before, sampling, released.curvature_std**2 / 2.0) / degrees, degrees=degrees,
        in_u=InU(released, late.h, spreads, spread, covariance), scalars=Scalars(values, directions.coordinates, noise),
    )  # fmt: skip
