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

from dpppl.noise_aware.bounds import Bounds, Expected, Lengths, chosen_bounds
from dpppl.noise_aware.curvature import ReleasedCurvature
from dpppl.noise_aware.line import FLOOR, Line, Look, trace
from dpppl.noise_aware.sketch import Sketch, next_frame
from dpppl.noise_aware.surrogate import Surrogate, moments, surrogate_of
from dpppl.row_statistics.accesses import Ask, At, Kind
from dpppl.row_statistics.coordinates import Known, Prior
from dpppl.row_statistics.matrices import Array, times
from dpppl.row_statistics.plan import EARLY, FIRST, METRICS, PlannedLook, ReleasePlan
from dpppl.row_statistics.response_ranks import Directions, Fit, Scalars
from dpppl.types import Tree

OFFSET = 1e-6  # not at 0 itself, where NumPyro's Bernoulli has another gradient in its logits
_LATE_SLOPE = 0.15  # the relative error of a slope where late looks are a posterior sd from the posterior mean
_STEP = 1.5  # the most prior sds that a point moves along a latent
_CURVATURE_DRAWS = 60  # by which its noise is integrated
# (power, noise): looks are whitened by this power of the curvature plus `noise` times its noise's largest eigenvalue.
# The first looks find units of columns; a full power of a curvature that clipping has cut stretches rare columns.
_UNITS, _EARLY, _METRICS = (0.5, 0.3), (0.35, 1.0), ((0.5, 1.0), (0.35, 1.0), (0.2, 1.0))
_TURNS = ((_UNITS,),) * (FIRST - 1) + ((_EARLY,),) * (EARLY - FIRST) + (_METRICS,)  # after each early look
assert len(_METRICS) == METRICS

Place = tuple[At, Line]  # a point and a metric, and what looks before say, in this metric


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


class RecipeInputs(NamedTuple):
    """The arguments of `run_recipe`.

    - **ask**, **plan**, **scale** - the function that makes an access; all accesses; 1 / mu.
    - **prior**, **bounds**, **num_rows** - the latents' prior; the user's bounds of a row, where given; how many rows there are.
    - **redrawn**, **added** - see `Responses`.
    - **most_scores** - the largest multiple of the curvature that the variance of scores may be: 1 for the model's own rows, more
      for correlated rows of a unit, infinite for a sandwich.
    - **rows_per_unit** - the most rows of a unit."""

    ask: Ask
    plan: ReleasePlan
    scale: float
    prior: Prior
    bounds: Bounds
    num_rows: int
    redrawn: float = 0.0
    most_scores: float = 1.0
    added: float = 0.0
    rows_per_unit: int = 1

    def noise_of(self, share: float) -> float:
        return self.scale / np.sqrt(share)


class Stage(NamedTuple):
    """Looks in one metric at one norm.

    - **at**, **line** - where the next one is made, and what those before say.
    - **sketch**, **covariance** - random directions; the prior's covariance of u.
    - **cut** - see `RecipeOutcome`."""

    at: At
    line: Line
    sketch: Sketch
    covariance: Array
    cut: float


def run_recipe(*arguments: Tree, **others: Tree) -> RecipeOutcome:
    """All accesses in order, and what they say. Takes the arguments of `RecipeInputs`."""
    of = RecipeInputs(*arguments, **others)
    early, places = _early_looks(of)
    return _concluded(of, early, *_late_looks(of, early, places))


def _early_looks(of: RecipeInputs) -> tuple[Stage, list[Place]]:
    """Looks that find the posterior, each in the metric to which the one before leads. The stage of the last, after it, and the
    metrics to which it leads."""
    first = of.prior.first()
    places = [(At(of.prior.mean + OFFSET * of.prior.scales, 1.0, 1.0, first), Line.none(first))]
    for number, kinds in enumerate(_TURNS):
        look, stage = _looked(of, _stage(of, number, places, Fit()), of.plan.looks[number])
        places = [_turned(stage, look, of.prior, *kind) for kind in kinds]
    return stage, places


def _late_looks(of: RecipeInputs, early: Stage, places: Sequence[Place]) -> tuple[Stage, list[Look]]:
    """Looks that decide the posterior, in one stage, at one of these places."""
    planned, looks = of.plan.looks[EARLY:], list[Look]()
    fit = Fit() if planned[0].scalars is None else _fit(of, early, planned[0].scalars)
    stage = _stage(of, EARLY, places, fit)
    for each in planned:
        look, stage = _looked(of, stage, each)
        looks.append(look)
    return stage, looks


def _stage(of: RecipeInputs, number: int, places: Sequence[Place], fit: Fit) -> Stage:
    """The stage of early look `number`, or of all late ones: where scores are shortest, by histograms if any are planned. Bounds
    are the user's, or from the histogram, or those of the place."""
    looks = of.plan.looks[number:] if number == EARLY else of.plan.looks[number : number + 1]
    lengths = [
        Lengths.asked(of.ask, at, of.noise_of(share), line.slope if number else None, of.num_rows)
        for (at, line), share in zip(places, looks[0].bins)
    ]
    best = int(np.argmin([each.mean_square for each in lengths])) if lengths else 0
    at, line = places[best]
    covariance, cut = line.basis.covariance_of_u(of.prior.covariance(line.basis)), 1.0
    sketch = Sketch.drawn(line.basis, line.posterior(covariance)[1], np.random.default_rng(number))
    at = at._replace(basis=line.basis._replace(sketch=sketch.columns), score_share=looks[0].score_share)
    if of.bounds.norm and of.bounds.curvature:
        at = at._replace(norm=of.bounds.norm, curvature_bound=of.bounds.curvature)
    elif lengths:
        noise = sum(of.noise_of(look.share) ** -2.0 for look in looks) ** -0.5
        slope = line.slope if number else None
        expected = Expected(noise, slope, covariance, number == EARLY, of.most_scores, fit)
        at, cut = chosen_bounds(lengths[best], at, of.bounds, expected, of.num_rows)
    return Stage(at, line, sketch, covariance, cut)


def _looked(of: RecipeInputs, stage: Stage, planned: PlannedLook) -> tuple[Look, Stage]:
    """A look, and the stage after it: at the posterior mean, or on the way to it where it is far."""
    at = stage.at._replace(score_share=planned.score_share)
    look = Look.asked(of.ask, at, of.noise_of(planned.share), of.prior, of.most_scores)
    line, mean = stage.line.with_look(look, stage.covariance)
    step = of.prior.mean + line.basis.to_latents(mean) - at.point
    step *= min(1.0, _STEP / max(float(np.max(np.abs(step / of.prior.scales))), 1e-30))
    return look, stage._replace(at=at._replace(point=at.point + step), line=line)


def _fit(of: RecipeInputs, stage: Stage, share: float) -> Fit:
    """How well rows fit, by an access to scalars."""
    at, basis, h, noise = stage.at, stage.at.basis, stage.line.slope, of.noise_of(share)
    spread = stage.line.posterior(stage.covariance)[1]
    directions = Directions.of(basis, basis.to_u(np.asarray(at.point) - of.prior.mean), h, of.num_rows)
    values = of.ask(Kind.SCALARS, at._replace(directions=directions.columns), noise)
    excess = trace(h @ spread) / basis.layout.dimension
    along = [""] * (1 + len(directions.coordinates))
    return Fit.from_sums(values, noise, of.num_rows, excess, along, rows_per_unit=of.rows_per_unit)


def _turned(stage: Stage, look: Look, prior: Prior, power: float, noise: float) -> Place:
    """In coordinates in which the posterior is white. Scores change with them as their root mean square does, by the trace of
    the curvature."""
    (at, line, sketch, *_), released = stage, look.curvature
    basis, before = at.basis, line.curvature
    residual = sketch.unexplained(released.products, basis, before)
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


def _concluded(of: RecipeInputs, early: Stage, stage: Stage, looks: Sequence[Look]) -> RecipeOutcome:
    """From the late looks, all in one stage, and an access to scalars, the last one."""
    prior, covariance, at, basis = of.prior, stage.covariance, looks[-1].at, looks[-1].at.basis
    released = ReleasedCurvature.mean(look.curvature for look in looks)
    curvature = released.posterior(basis, covariance, _CURVATURE_DRAWS)
    late = Late.of(looks, curvature.mean)

    def surrogate_around(point: Array) -> tuple[Surrogate, float]:
        """Of looks weighed by their distance from a point, and the number of looks that weigh as much."""
        centre, score, variance, number = late.averaged(point)
        law = curvature.averaged(of.redrawn, number, of.added)
        return surrogate_of(released, law, basis, stage.sketch, of.num_rows, (centre, score, variance)), number

    nearest = np.tensordot(late.noises**-1.0 / np.sum(late.noises**-1.0), late.centres, 1)
    near, _ = moments(*surrogate_around(nearest)[0].posteriors(covariance))
    surrogate, number = surrogate_around(near)
    means, spreads = surrogate.posteriors(covariance)
    mean, spread = moments(means, spreads)
    modelled = surrogate._replace(curvature=curvature.as_model().averaged(of.redrawn, number, of.added))
    dimension = basis.layout.dimension
    sampling = (of.redrawn + of.added) * (trace(curvature.score_variance.mean(axis=0)) / dimension)
    degrees = dimension * (len(looks) - 1)
    before, spread_before = early.line.posterior(early.covariance)
    earlier = Known(prior.mean + early.line.basis.to_latents(before), early.line.basis.variances(spread_before))
    point, noise = prior.mean + basis.to_latents(mean), float(of.plan.noise_multipliers(of.scale)[-1])
    directions = Directions.of(basis, mean, surrogate.curvature.mean, of.num_rows)
    values = of.ask(Kind.SCALARS, at._replace(point=point, directions=directions.columns), noise)
    return RecipeOutcome(
        at.norm, at.curvature_bound, stage.cut, surrogate, modelled, Known(point, basis.variances(spread)),
        basis.covariance_of_latents(spread), earlier,
        chi_squared=late.scatter(near, sampling, released.curvature_std**2 / 2.0) / degrees, degrees=degrees,
        in_u=InU(released, late.h, spreads, spread, covariance), scalars=Scalars(values, directions.coordinates, noise),
    )  # fmt: skip
