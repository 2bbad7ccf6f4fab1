"""From noisy releases to a Gaussian surrogate of the likelihood with known noise, look by look.

A look releases the sum of scores and the curvature at one point. Early looks are at the posterior mean given all looks so far,
in coordinates u in which the posterior that they give is white, so that clipping and noise are spread over directions as the
posterior needs. Late looks, which have most of the budget, are made in one metric at one norm. They alone decide the posterior:
their scores lie around one line, whose slope is the curvature that they release.

A large norm adds noise. A small one moves the root of the clipped score away from that of the score, wherever responses do not
follow the model. So ranks of responses, before the late looks, decide how long their norm is; see `bounds.chosen_norm`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.bounds import Bounds, Expected, Lengths, found_bounds
from dpppl.noise_aware.curvature import ReleasedCurvature
from dpppl.noise_aware.sketch import Sketch, next_frame
from dpppl.noise_aware.surrogate import Surrogate, moments, surrogate_of
from dpppl.row_statistics.accesses import Ask, At, Kind
from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.coordinates import Known, Prior
from dpppl.row_statistics.fit import Directions, Fit, Scalars
from dpppl.row_statistics.matrices import Array, eigh, posterior_covariance, root_of, times
from dpppl.row_statistics.plan import EARLY, FIRST, METRICS, ReleasePlan
from dpppl.row_statistics.statistics import units

OFFSET = 1e-6  # not at 0 itself, where NumPyro's Bernoulli has another gradient in its logits
_SLOPE = 0.3  # the relative error of a slope at points that are a posterior sd or more apart
_LATE_SLOPE = 0.15  # the same of late looks, by their distance from the posterior mean
_KEPT = 0.8  # of what looks before say: likelihoods are skewed, and looks get nearer
_FLOOR = 2.0  # sds of a curvature's noise, below which none counts
_STEP = 1.5  # the most prior sds that a point moves along a latent
_DRAWS = 60  # of the curvature
# Of a metric: the power of the curvature that makes it white, and how many times what noise makes of eigenvalues is added before.
# The first looks find units of columns; a full power of a curvature that clipping has cut stretches rare columns.
_UNITS, _EARLY, _METRICS = (0.5, 0.3), (0.35, 1.0), ((0.5, 1.0), (0.35, 1.0), (0.2, 1.0))
assert len(_METRICS) == METRICS
_UNKNOWN = 1e60  # the error of a curvature of which nothing is known


class Look(NamedTuple):
    """One look.

    - **at**, **centre** - where it was made, and the point in u, (k, b).
    - **scores**, **std** - its noisy sum of scores in u, (k, b), and the sd of that noise.
    - **curvature** - as released."""

    at: At
    centre: Array
    scores: Array
    std: float
    curvature: ReleasedCurvature

    @classmethod
    def asked(cls, ask: Ask, at: At, sigma: float, prior: Prior, most_scores: float) -> "Look":
        """The look of noise multiplier `sigma` at this place."""
        values, unit = ask(Kind.LOOK, at, sigma), at.norm / units(at.score_share, most_scores)[0]
        scores = at.basis.layout.gathered(values["score"]) * unit
        centre = at.basis.to_u(np.asarray(at.point) - prior.mean)
        return cls(
            at, centre, np.asarray(scores), float(sigma * unit), ReleasedCurvature.of(values, sigma, at, most_scores)
        )


class Line(NamedTuple):
    """All that looks say of the latents under a flat prior, in coordinates u.

    - **basis** - the coordinates u.
    - **information**, **pull** - (k, b, b); and it times the place that the looks say, (k, b).
    - **curvature**, **error** - that of the likelihood with noise, (k, b, b), and the sd of an entry.
    - **floor** - what noise may make of an eigenvalue."""

    basis: Basis
    information: Array
    pull: Array
    curvature: Array
    error: float
    floor: float

    @property
    def slope(self) -> Array:
        """The curvature (k, b, b), whose eigenvalues are at least the floor."""
        return self.known_at(self.floor)

    def known_at(self, floor: float) -> Array:
        """The curvature, whose eigenvalues are at least `floor`."""
        values, vectors = eigh(self.curvature)
        return self.basis.real((vectors * np.maximum(values, floor)[:, None, :]) @ vectors.swapaxes(1, 2))

    @classmethod
    def none(cls, basis: Basis) -> "Line":
        zeros = np.zeros_like(basis.roots)
        return cls(basis, zeros, zeros[..., 0], zeros, _UNKNOWN, 0.0)

    def carried(self, basis: Basis) -> "Line":
        """The same in other coordinates."""
        ours, back, root = self.basis, self.basis.inverse, basis.roots.swapaxes(1, 2)

        def into(matrices: Array) -> Array:
            of_latents = ours.carried(ours.real(back.swapaxes(1, 2) @ matrices @ back), basis)
            return basis.real(root @ of_latents @ basis.roots)

        pull = ours.reflected(ours.layout.scattered(times(back.swapaxes(1, 2), self.pull)))
        pull = times(root, basis.layout.gathered(basis.reflected(pull)))
        by = float(np.sum(basis.real(back @ basis.roots) ** 2)) / basis.layout.dimension  # of the noise of entries
        error, floor = (min(x * by, _UNKNOWN) for x in (self.error, self.floor))
        return Line(basis, into(self.information), pull, into(self.curvature), error, floor)

    def with_look(self, look: Look, covariance: Array) -> tuple["Line", Array]:
        """With a further look, and the posterior mean (k, b) under a normal prior around u = 0 of this `covariance`. Where that
        mean is far from the look, slopes are in error by `_SLOPE` of themselves, in all directions."""
        own, dimension, at = look.curvature, self.basis.layout.dimension, look.centre
        size = lambda matrices: float(np.trace(matrices, axis1=1, axis2=2).sum()) / dimension  # noqa: E731
        typical = max(size(own.curvature), own.curvature_std)
        scale = float(np.clip(typical / max(size(self.curvature), 1e-9 * typical), 0.2, 5.0))
        weights = np.array([own.curvature_std, scale * self.error]) ** -2.0
        error, weights = float(np.sum(weights) ** -0.5), weights / np.sum(weights)
        mean, spread = self.posterior(covariance)
        curvature = weights[0] * own.curvature + weights[1] * scale * self.curvature
        line = self._replace(curvature=curvature, floor=_FLOOR * error)
        values, vectors = eigh(curvature)
        floored = np.maximum(values, line.floor)
        known = np.maximum(values, 0.0) ** 3 / (values**2 + error**2)  # of a slope that noise hides little
        of = lambda x: (vectors * x[:, None, :]) @ vectors.swapaxes(1, 2)  # noqa: E731
        h, root, gain = self.basis.real(of(floored)), of(known), of(known**2 / floored)
        roots = _roots(h)
        told = times(gain, look.scores + times(h, at))
        for _ in range(4):  # noise in the slope counts as far from the look as the posterior reaches
            reach = np.sum((mean - at) ** 2) + np.trace(self.basis.real(spread), axis1=1, axis2=2).sum()
            variance = look.std**2 + error**2 / 2.0 * reach
            pull, information = _KEPT * self.pull + told / variance, _KEPT * self.information + root @ root / variance
            line = line._replace(information=information, pull=pull)
            mean, spread = line.posterior(covariance, roots)
        step = mean - at
        apart = float(np.clip(np.nan_to_num(np.sum(step * times(h, step))) / dimension, 0.0, _UNKNOWN))
        error = float(np.hypot(error, _SLOPE * np.tanh(np.sqrt(apart)) * size(h)))
        return line._spread_by(_SLOPE**2 * apart, roots)._replace(error=error), mean

    def _spread_by(self, by: float, roots: tuple[Array, Array]) -> "Line":
        """The same where its place has a further variance, by this factor the inverse of the curvature, which has these roots."""
        root, inverse = roots
        known, turn = eigh(inverse @ self.information @ inverse.swapaxes(1, 2))
        back = root @ (turn / (1.0 + by * np.maximum(known, 0.0))[:, None, :]) @ turn.swapaxes(1, 2) @ inverse
        return self._replace(information=back @ self.information, pull=times(back, self.pull))

    def posterior(self, covariance: Array, roots: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
        """The posterior's mean (k, b) and covariance (k, b, b), with the sampling of rows, under a normal prior around u = 0;
        `roots`: of the slope, where they are known."""
        sampled = self._spread_by(1.0, roots or _roots(self.slope))
        information = (sampled.information + sampled.information.swapaxes(1, 2)) / 2.0
        found = posterior_covariance(information, root_of(covariance))
        return times(found, sampled.pull), found


def _roots(curvature: Array) -> tuple[Array, Array]:
    """A root R of the curvature (k, b, b), RR', and its inverse."""
    values, vectors = eigh(curvature)
    roots = np.sqrt(np.maximum(values, np.max(values) * 1e-12 + 1e-200))[:, None, :]
    return vectors * roots, (vectors / roots).swapaxes(1, 2)


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
    noises = plan.noise_multipliers(scale)
    sigmas = [(sigma, access.score_share) for access, sigma in zip(plan.accesses, noises) if access.kind is Kind.LOOK]
    accesses, line, late, cut, fit = iter(zip(plan.accesses, noises)), Line.none(prior.first()), [], 1.0, Fit()
    at = At(prior.mean + OFFSET * prior.scales, 1.0, 1.0, line.basis)
    metrics = [(at, line)]
    for number, (sigma, score_share) in enumerate(sigmas):
        (access, noise), is_late = next(accesses), number >= EARLY
        if access.kind is Kind.SCALARS:
            fit = _fit(ask, at, noise, line, prior, num_rows, rows_per_unit)
            access, noise = next(accesses)
        lengths: list[Lengths] = []
        while access.kind is Kind.BINS:
            place, slope = metrics[len(lengths)][0], metrics[len(lengths)][1].slope if number else None
            lengths.append(Lengths.asked(ask, place, noise, slope, num_rows))
            access, noise = next(accesses)
        best = int(np.argmin([each.mean_square for each in lengths])) if lengths else 0
        at, line = metrics[best]
        at, basis = at._replace(score_share=score_share), line.basis
        covariance = basis.covariance_of_u(prior.covariance(basis))
        if number <= EARLY:
            sketch = Sketch.drawn(basis, line.posterior(covariance)[1], np.random.default_rng(number))
            at = at._replace(basis=basis._replace(sketch=sketch.columns))
        if bounds.norm and bounds.curvature:
            at = at._replace(norm=bounds.norm, curvature_bound=bounds.curvature)
        elif lengths:
            together = sum(s**-2.0 for s, _ in sigmas[number : None if is_late else number + 1]) ** -0.5
            expected = Expected(together, line.slope if number else None, covariance, is_late, most_scores, fit)
            at, cut = found_bounds(lengths[best], at, bounds, expected, num_rows)
        look = Look.asked(ask, at, sigma, prior, most_scores)
        late += [look] * is_late
        line, mean = line.with_look(look, covariance)
        moved = prior.mean + basis.to_latents(mean) - at.point
        moved *= min(1.0, _STEP / max(float(np.max(np.abs(moved / prior.scales))), 1e-30))
        at = at._replace(point=at.point + moved)
        if number == EARLY - 1:
            mean, spread = line.posterior(covariance)
            belief = Known(prior.mean + basis.to_latents(mean), basis.variances(spread))
        kinds = () if is_late else _METRICS if number == EARLY - 1 else (_UNITS if number < FIRST - 1 else _EARLY,)
        metrics = [_turned(at, line, look, sketch, prior, *kind) for kind in kinds] or [(at, line)]
    return _concluded(ask, late, sketch, prior, belief, cut, float(noises[-1]), num_rows, redrawn, added)


def _fit(ask: Ask, at: At, noise: float, line: Line, prior: Prior, num_rows: int, rows_per_unit: int) -> Fit:
    """How well rows fit, by an access to scalars."""
    basis, h = at.basis, line.slope
    covariance = basis.covariance_of_u(prior.covariance(basis))
    spread = line.posterior(covariance)[1]
    directions = Directions.of(basis, basis.to_u(np.asarray(at.point) - prior.mean), h, num_rows)
    values = ask(Kind.SCALARS, at._replace(directions=directions.columns), noise)
    excess = float(np.trace(h @ spread, axis1=1, axis2=2).sum()) / basis.layout.dimension
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
    error, width = line.floor / _FLOOR, basis.roots.shape[1]
    hidden = noise * error * np.sqrt(2.0 * width) * np.eye(width)
    new, of_latents = next_frame(basis, line.known_at(error) + hidden, left, strength, prior.pieces)
    line = line.carried(new.whitened(of_latents, prior.covariance(new), power))
    squared = [float(np.trace(h, axis1=1, axis2=2).sum()) for h in (line.curvature, before)]
    least = released.curvature_std
    ratio = float(np.clip(squared[0] / max(squared[1], least), 1e-12, 1e12)) if squared[0] > 0.0 else 1.0
    norm, bound = at.norm * float(np.sqrt(ratio)), at.curvature_bound * ratio
    return at._replace(basis=line.basis, norm=norm, curvature_bound=bound), line


def _concluded(
    ask: Ask, looks: Sequence[Look], sketch: Sketch, prior: Prior, earlier: Known, cut: float, noise: float, num_rows: int,
    redrawn: float, added: float,
) -> RecipeOutcome:  # fmt: skip
    """From the late looks, all in one basis; `noise`: of the access to scalars, the last one."""
    at, basis = looks[-1].at, looks[-1].at.basis
    dimension, covariance = basis.layout.dimension, basis.covariance_of_u(prior.covariance(basis))
    released = ReleasedCurvature.mean(look.curvature for look in looks)
    curvature = released.posterior(basis, covariance, _DRAWS)
    h, centres = curvature.mean, np.array([look.centre for look in looks])
    lines = np.array([look.scores + times(h, look.centre) for look in looks])
    noises = np.array([look.std**2 for look in looks])
    around = np.tensordot(noises**-1.0 / np.sum(noises**-1.0), centres, 1)
    for _ in range(2):  # a look counts less where it is far from the posterior mean
        off = centres - around
        squares = np.sum(off**2, axis=(1, 2)), np.sum(times(h, off) ** 2, axis=(1, 2)) / dimension
        weights = 1.0 / (noises + _LATE_SLOPE**2 * squares[1])
        variance = float(1.0 / np.sum(weights))
        weights = weights * variance
        centre, line = np.tensordot(weights, centres, 1), np.tensordot(weights, lines, 1)
        effective = redrawn, 1.0 / float(np.sum(weights**2)), added
        law = curvature.averaged(*effective)
        measured = centre, line - times(h, centre), variance
        surrogate = surrogate_of(released, law, basis, sketch, num_rows, measured)
        means, spreads = surrogate.posteriors(covariance)
        around, spread = moments(means, spreads)
    modelled = surrogate._replace(curvature=curvature.as_model().averaged(*effective))
    # The scatter of scores around a line of this slope, in units of their noise and that of the slope.
    own = np.diagonal(curvature.score_variance.mean(axis=0), axis1=1, axis2=2).sum() / dimension
    expected = (
        noises + (redrawn + added) * own + released.curvature_std**2 / 2.0 * squares[0] + _LATE_SLOPE**2 * squares[1]
    )
    scattered = lines - np.tensordot(1.0 / expected, lines, 1) / np.sum(1.0 / expected)
    degrees = dimension * (len(looks) - 1)
    point = prior.mean + basis.to_latents(around)
    directions = Directions.of(basis, around, law.mean, num_rows)
    values = ask(Kind.SCALARS, at._replace(point=point, directions=directions.columns), noise)
    return RecipeOutcome(
        at.norm, at.curvature_bound, cut, surrogate, modelled, Known(point, basis.variances(spread)),
        basis.covariance_of_latents(spread), earlier,
        chi_squared=float(np.sum(np.sum(scattered**2, axis=(1, 2)) / expected) / degrees), degrees=degrees,
        in_u=InU(released, h, spreads, spread, covariance), scalars=Scalars(values, directions.coordinates, noise),
    )  # fmt: skip
