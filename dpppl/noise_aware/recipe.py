"""From noisy releases to a Gaussian surrogate of the likelihood with known noise, in stages that start where the last one ended.

A stage releases the curvature at its point, then gradients while it walks to the posterior mean given all of them, in the
coordinates u of a `Basis` that evens out the curvature that the one before released, so that clipping and noise are spread
over directions as the posterior needs. Of wide models it releases diagonal blocks, and a sketch of the rest.

A large norm adds noise. A small one moves the root of the clipped score away from that of the score, wherever responses do not
follow the model. Stages that only walk clip hard. The gradients of the last stages decide what is estimated: these take the
largest norm that widens the posterior by at most `bounds.MOST_WIDENED`.
"""

from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.bounds import Bounds, Expected, found_bounds
from dpppl.noise_aware.curvature import Curvature, ReleasedCurvature, decline, dispersion
from dpppl.noise_aware.sides import Sides
from dpppl.noise_aware.sketch import Sketch, next_frame
from dpppl.noise_aware.surrogate import Surrogate, excess_of, gains_given, largest_sampled, moments, resolved, tempered
from dpppl.row_statistics.accesses import Ask, At, Kind
from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.coordinates import Known, Prior
from dpppl.row_statistics.fit import Directions, Scalars
from dpppl.row_statistics.matrices import Array, eigh, symmetric_root, times
from dpppl.row_statistics.plan import Noises, Plan
from dpppl.row_statistics.walk import REACH, STEPS, Walk

AVERAGED_SHARE = 0.7  # of a stage's gradients: the first are taken where the likelihood has another curvature
INFLATION = 4.0  # covariance inflation of a stage's posterior, from which the walk of the next starts
OFFSET = 1e-6  # not at 0 itself, where NumPyro's Bernoulli has another gradient in its logits
_SURPRISE = 4.0
_EARLY_PART = 0.8  # at most: a curvature that decides about coordinates alone may be that of typical rows
_SATURATED = 30.0  # the most by which clipping is taken to lower the variance of scores more than the curvature
_LATE = STEPS // 2
_DRAWS, _LAST_DRAWS = 20, 60  # of the curvature, in a stage and at the end


class Stage(NamedTuple):
    """Result of one stage.

    - **norm**, **curvature_bound** - the bounds used on scores and curvatures.
    - **surrogate**, **belief** - that of the stage's own releases, and the posterior that they give under a normal prior.
    - **covariance** - its covariance in blocks of scaled and reflected latents.
    - **chi_squared**, **degrees** - the scatter of its gradients in units of their noise, and the degrees of freedom of that.
    - **excess** - relative excess of the posterior's spread over its noiseless value.
    - **resolved** - how far draws of the curvature agree on the directions that were learned.
    - **sampled** - the largest share of posterior variance that is the sampling of the data.
    - **hidden**, **dispersion** - see `ReleasedCurvature.hidden`, `curvature.dispersion`.
    - **cut** - the part of scores that its norm clips, over scores, by root mean squares.
    - **sides**, **modelled** - of the last stage: see `Sides`; the surrogate with the variance of scores that the model has."""

    norm: float
    curvature_bound: float
    surrogate: Surrogate
    belief: Known
    covariance: Array
    chi_squared: float
    degrees: int
    excess: float
    resolved: float = 1.0
    sides: Sides | None = None
    sampled: float = 1.0
    hidden: float = 0.0
    modelled: Surrogate | None = None
    dispersion: tuple[float, float] = (1.0, 0.0)
    cut: float = 1.0


Outcome = tuple[list[Stage], Scalars]
"""All stages of a run, in order, and how well rows fit."""


class _Start(NamedTuple):
    """The beliefs at the start of a stage; covariance in blocks, `curvature` as expected, of scaled latents."""

    at: At
    mean: Array
    covariance: Array
    curvature: Array | None = None


def run_recipe(
    ask: Ask, plan: Plan, scale: float, prior: Prior, bounds: Bounds, num_rows: int, redrawn: float = 0.0,
    most_scores: float = 1.0, added: float = 0.0,
) -> Outcome:  # fmt: skip
    """All stages in order, the last one with both of its curvatures, and how well rows fit.

    - **ask** - the function that makes an access.
    - **scale** - 1 / mu.
    - **bounds** - the user's bounds of a row, where given.
    - **redrawn**, **added** - see `Responses`.
    - **most_scores** - the largest multiple of the curvature that the variance of scores may be: 1 for the model's own rows, more
      for correlated rows of a unit, infinite for a sandwich."""
    *priced, closing = plan.priced(scale)
    scouts = [sigma for sigma in priced if Kind.GRADIENT not in sigma]
    priced, dimension = priced[len(scouts) :], len(prior.mean)
    start = _scouted(ask, scouts, prior, bounds, priced[-1][Kind.GRADIENT] ** 2 / STEPS, num_rows)
    stages: list[Stage] = []
    for number, sigma in enumerate(priced):
        basis, is_last = start.at.basis, number == len(priced) - 1
        believed, covariance = map(basis.covariance_of_u, (start.covariance, prior.covariance(basis)))
        mean_u, by = basis.to_u(start.mean - prior.mean), INFLATION if number else 1.0
        length = np.sum(mean_u * times(np.linalg.pinv(covariance, hermitian=True), mean_u))
        is_surprised = length > dimension + _SURPRISE * np.sqrt(2.0 * dimension)
        # A walk goes rather too far than not far enough; from a mean far from the prior's the last one ends at the posterior.
        known = mean_u, by * believed
        if is_last and is_surprised:
            known = tempered(mean_u, believed, covariance, by)
        sketch = Sketch.drawn(basis, believed, np.random.default_rng(number))
        known_of_u = None if start.curvature is None else basis.roots.swapaxes(1, 2) @ start.curvature @ basis.roots
        at = start.at._replace(basis=basis._replace(sketch=sketch.columns))
        expected = Expected(sigma[Kind.GRADIENT] ** 2 / STEPS, known_of_u, covariance)
        at, cut = found_bounds(ask, at, bounds, sigma, expected, num_rows)
        values, noise = ask(Kind.CURVATURE, at, sigma[Kind.CURVATURE]), sigma[Kind.CURVATURE]
        here = ReleasedCurvature.of(values, noise, at, most_scores)
        std, curvature = at.norm * sigma[Kind.GRADIENT], here.posterior(basis, covariance, _DRAWS, mean_u)
        flat, count = np.zeros(basis.roots.shape[:2]), int(STEPS * AVERAGED_SHARE)
        average = _surrogate(here, curvature, basis, sketch, num_rows, (flat, flat, std**2 / STEPS))
        mean, (gains, offsets) = curvature.mean, gains_given(average, *known, std)
        walk = Walk(prior.mean, basis.inverse, gains, offsets, mean, REACH[number])
        positions, noisy = ask(Kind.GRADIENT, at, sigma[Kind.GRADIENT], STEPS, walk)
        point, scores = positions[-count:].mean(axis=0), basis.layout.gathered(noisy * at.norm)
        centre, gradient = basis.to_u(point - prior.mean), scores[-count:].mean(axis=0)
        if is_last:
            at = at._replace(point=point)
            values = ask(Kind.CURVATURE, at, closing[Kind.CURVATURE])
            here = here.combined(ReleasedCurvature.of(values, closing[Kind.CURVATURE], at, most_scores))
            curvature = here.posterior(basis, covariance, _LAST_DRAWS, centre)
        law = curvature.averaged(redrawn, count, added)  # with the variance of the mean of `count` gradients
        surrogate = _surrogate(here, law, basis, sketch, num_rows, (centre, gradient, std**2 / count))
        if is_last:
            sizes = ask(Kind.SIZES, at._replace(halfway=(prior.mean + point) / 2.0), closing[Kind.SIZES])
            surrogate = surrogate._replace(decline=decline(sizes, closing[Kind.SIZES]))
            modelled = surrogate._replace(curvature=curvature.as_model().averaged(redrawn, count, added))
        late = count if prior.is_full else _LATE  # of wide models where off-block moves are small
        # The scatter of noisy scores around a line of this curvature, in units of their noise.
        residual = scores[-late:] + times(curvature.mean, basis.to_u(positions[-late:]))
        residual -= residual.mean(axis=0)
        own = np.diagonal(curvature.score_variance.mean(axis=0), axis1=1, axis2=2).sum() / dimension
        degrees = dimension * (late - 1)
        scatter = float((residual**2).sum() / ((std**2 + (redrawn + added) * own) * degrees))
        means, spreads = surrogate.posteriors(covariance)
        posterior_u, spread = moments(means, spreads)
        belief = Known(prior.mean + basis.to_latents(posterior_u), basis.variances(spread))
        stages.append(Stage(
            at.norm, at.curvature_bound, surrogate, belief, basis.covariance_of_latents(spread), scatter, degrees,
            excess=excess_of(surrogate, covariance, posterior_u, spread), resolved=resolved(spreads, covariance),
            sampled=largest_sampled(surrogate, covariance, spread), hidden=here.hidden(covariance),
            dispersion=dispersion(here.score_variance, here.score_variance_std, curvature.mean), cut=cut,
        ))  # fmt: skip
        start = start if is_last else _next(stages[-1], point, here, sketch, mean, prior)
    first, last = stages[0], stages[-1]
    sides = Sides.asked(
        ask, at, closing[Kind.SIDES], first.surrogate, last.surrogate, last.belief, last.covariance, prior, num_rows
    )
    stages[-1] = last._replace(sides=sides, modelled=modelled)
    directions = Directions.of(basis, centre, law.mean, num_rows)
    values = ask(Kind.SCALARS, at._replace(directions=directions.columns), closing[Kind.SCALARS])
    return stages, Scalars(values, directions.coordinates, closing[Kind.SCALARS])


def _scouted(ask: Ask, scouts: list[Noises], prior: Prior, bounds: Bounds, noise: float, num_rows: int) -> _Start:
    """At the prior mean, in coordinates in which no direction has much more curvature than the least known one may have, by
    releases of these noise multipliers: in the prior's, a column in small units hides all others, and a walk follows its
    noise."""
    basis = prior.first()
    at, covariance = At(prior.mean + OFFSET * prior.scales, 1.0, 1.0, basis, 1.0), prior.covariance(basis)
    for sigma in scouts:
        expected = Expected(noise, None, prior.covariance(at.basis))
        at, _ = found_bounds(ask, at, bounds, sigma, expected, num_rows, _EARLY_PART)
        here = ReleasedCurvature.of(ask(Kind.CURVATURE, at, sigma[Kind.CURVATURE]), sigma[Kind.CURVATURE], at)
        basis, ratio = at.basis.flattened(here.curvature, here.largest_error)
        at = At(at.point, at.norm * np.sqrt(ratio), at.curvature_bound * ratio, basis, at.curvature_bound * ratio)
    return _Start(at, prior.mean, covariance)


def _next(stage: Stage, point: Array, here: ReleasedCurvature, sketch: Sketch, mean: Array, prior: Prior) -> _Start:
    """After a stage that ended at `point`. Scores change with the basis as their rms does, by the trace of the curvature."""
    basis = stage.surrogate.basis
    residual = sketch.unexplained(here.products, basis, mean)
    left, strength = sketch.directions(residual, here.curvature_std**2)
    informed = unsaturated(mean, stage.surrogate.curvature.ratio)
    new, of_latents = next_frame(basis, informed, left, strength, prior.pieces)
    error = basis.inverse.swapaxes(1, 2) @ basis.inverse * here.largest_error if prior.is_full else None
    new = new.whitened(of_latents, prior.covariance(new), error)
    if prior.is_full:
        new = new.whitened_along(stage.belief.mean - prior.mean, of_latents)
    covariance = new.layout.padded(new.real(basis.carried(basis.real(stage.covariance), new)))
    squared = np.sum((new.roots @ new.roots.swapaxes(1, 2)) * of_latents)
    ratio = float(np.clip(squared / np.trace(mean, axis1=1, axis2=2).sum(), 1e-12, 1e12))
    point = point + np.clip(stage.belief.mean - point, -prior.scales / 2, prior.scales / 2)
    norm, bound = stage.norm * float(np.sqrt(ratio)), stage.curvature_bound * ratio
    return _Start(At(point, norm, bound, new, bound), stage.belief.mean, covariance, of_latents)


def unsaturated(curvature: Array, ratio: Array) -> Array:
    """The information A J^-1 A of clipped scores, (k, b, b), of a curvature A and the `ratio` of J to it. Rows that have what is
    rare are long: along such columns clipping makes A small, and J smaller still."""
    values, vectors = eigh(ratio.reshape(-1, *curvature.shape).mean(axis=0))  # of draws, the mean
    typical = np.maximum(np.median(values, axis=-1, keepdims=True), 1e-100)
    inverse = typical / np.clip(values, typical / _SATURATED, typical)
    inverse = (vectors * inverse[..., None, :]) @ vectors.swapaxes(-1, -2)
    root = symmetric_root(curvature)
    return root @ inverse @ root


def _surrogate(
    here: ReleasedCurvature, curvature: Curvature, basis: Basis, sketch: Sketch, num_rows: int,
    measured: tuple[Array, Array, float],
) -> Surrogate:  # fmt: skip
    """`measured`: centre, gradient and its noise variance."""
    layout, mean = basis.layout, curvature.mean
    columns = layout.gathered(sketch.columns.T)
    unsure = np.zeros(layout.dimension)
    if len(columns):
        off = curvature.matrices - mean
        unsure = layout.scattered(np.mean([times(h, c) ** 2 for h in off for c in columns], axis=0))
    off_block, trace, unknown = sketch.off_block(here.products, basis, mean, unsure, here.curvature_std**2, num_rows)
    return Surrogate(basis, *measured, curvature, layout.gathered(off_block), trace, unknown * layout.real)
