"""From noisy releases to a Gaussian surrogate of the likelihood with known noise, in stages that start where the last one ended.

A stage releases the curvature at its point, then gradients while it walks to the posterior mean given all of them, in the
coordinates u of a `Frame` that evens out the curvature that the one before released, so that clipping and noise are spread
over directions as the posterior needs. Of wide models it releases diagonal blocks, and a sketch of the rest.

A large norm adds noise. A small one moves the root of the clipped score away from that of the score, wherever responses do not
follow the model. Stages that only walk clip hard. The gradients of the last stages decide what is estimated: these take the
largest norm that widens the posterior by at most `DEAR`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpppl.access.norm_histogram import Norms
from dpppl.noise_aware.coordinates import Known, Prior
from dpppl.noise_aware.curvature import Array, Curvature, dispersion, eigh, symmetric_root, times
from dpppl.noise_aware.fit import Directions, Scalars
from dpppl.noise_aware.frame import Frame
from dpppl.noise_aware.plan import NUM_AXES, STEPS, Ask, At, Plan, Walk
from dpppl.noise_aware.sketch import Release, Sketch, decline, next_frame
from dpppl.noise_aware.surrogate import Surrogate, excess_of, gains_of, largest_sampled, moments, resolved, tempered

APART = 2.5
"""In posterior sds: the curvature there is about its mean over the first five."""
TYPICAL = 4.5
"""A row's curvature along a latent is bounded by this multiple of the mean over rows."""
FACTOR, STANDS_OUT, _LEAST = 1.8, 4.0, 0.05
TAIL = 0.7
"""The share of a stage's gradients that is averaged. The first ones are taken where the likelihood has another curvature."""
CARRIED = 4.0  # covariance inflation of a stage's posterior, from which the walk of the next starts
BESIDE = 1e-6  # not at 0 itself, where NumPyro's Bernoulli has another gradient in its logits
_SURPRISE = 4.0
_EARLY_PART = 0.8  # at most: a curvature that decides about coordinates alone may be that of typical rows
_SATURATED = 30.0  # the most by which clipping is taken to lower the variance of scores more than the curvature
REACH = (2.0, 4.0, 8.0, 8.0, 8.0)  # how far each stage may walk from its start, in prior sds
_LATE = STEPS // 2
_DRAWS, _LAST_DRAWS = 20, 60  # of the curvature, in a stage and at the end
DEAR = 1.1
"""By how much bounds that clip fewer rows may widen a posterior."""
_EARLY = (0.25, 0.5)  # the norm's quantile of rows' scores where noise rules, and where the sampling of data does
_UNSEEN = 3.0  # rows beyond a quantile are believed if they are more than so many sds of a count's noise
_NEGLIGIBLE = 0.1  # posterior sds that clipping may move an estimate by at most, and be no longer worth any noise
_CLIPPED_IN_MEDIAN, _PARTS = 0.5, (0.5, 0.99)
_EXPECTED = (0.0, 1.5)  # log2 of a curvature's length over the squared norm: that of a clipped score times one as long


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of a row in u. None: chosen from private histograms.

    - **norm**, **curvature** - of a score, and of a row's curvature."""

    norm: float | None = None
    curvature: float | None = None


class Expected(NamedTuple):
    """The expectation of a stage's gradients before its norm is chosen.

    - **noise** - the variance of the noise in their mean, in units of the squared norm.
    - **curvature**, **covariance** - of u, (k, b, b), from the stages before (None in the first), and the prior's."""

    noise: float
    curvature: Array | None
    covariance: Array


def found_bounds(
    ask: Ask,
    at: At,
    bounds: Bounds,
    sigma: dict[str, float],
    expected: Expected,
    num_rows: int,
    most: float = _PARTS[1],
) -> tuple[At, float]:
    """`at` with the user's bounds, or those from the stage's histograms, or else those of the stage before. Also the part of
    scores that the norm clips, over scores, by root mean squares.

    - **sigma** - noise multipliers by kind of access.
    - **most** - the largest quantile of curvatures that becomes the bound."""
    if "norm_bin" not in sigma:
        norm, bound = bounds.norm or at.norm, bounds.curvature or at.bound
        return at._replace(norm=norm, bound=bound, score_bound=bound), 1.0
    norms = Norms.fitted(ask("norm_bin", at, sigma["norm_bin"]), sigma["norm_bin"], num_rows)
    informed = max(1.0, norms.share * num_rows)
    norm = bounds.norm or chosen_norm(norms, sigma["norm_bin"], expected, informed, num_rows)
    counts = ask("curvature_bin", at._replace(norm=norm), sigma["curvature_bin"])
    lengths = Norms.fitted(counts, sigma["curvature_bin"], num_rows, _EXPECTED)
    entries = len(at.point) * at.frame.roots.shape[1]
    affordable = np.sqrt(entries / 2.0) * sigma["curvature"] / (_CLIPPED_IN_MEDIAN * informed)
    bound = bounds.curvature or norm**2 * lengths.quantile(float(np.clip(1.0 - affordable, _PARTS[0], most)))
    widest = bound
    if expected.curvature is not None:
        # The largest one under which rows' curvature is at most `DEAR` times as large as what is released of it.
        kept = lambda b: lengths.mean(lambda x: np.minimum(x, b))  # noqa: E731
        candidates = bound / norm**2 * 2.0 ** np.arange(0.0, 40.0, 0.25)
        widest = norm**2 * float(max(b for b in candidates if kept(b) <= DEAR * kept(bound / norm**2)))
    left = norms.mean(lambda x: np.maximum(x - norm, 0.0) ** 2) / norms.mean(np.square)
    return at._replace(norm=norm, bound=bound, score_bound=widest), float(np.sqrt(left))


def chosen_norm(norms: Norms, noise_std: float, expected: Expected, informed: float, num_rows: int) -> float:
    """The norm of a stage: in the first ones a low quantile; later the largest one that still matters and widens the posterior by
    at most `DEAR`. `informed`: how many of `num_rows` inform the posterior; `noise_std`: the noise of counts.

    Along an eigenvector of the curvature, of which h is expected without clipping, clipped scores have the curvature h k and the
    variance h s, with k = E[|x| min(|x|, C)] / E[x^2] and s = E[min(|x|, C)^2] / E[x^2] over the norms x of rows."""
    if expected.curvature is None:
        per_row = expected.covariance.shape[0] * expected.covariance.shape[1] / num_rows
        return norms.quantile(_EARLY[0] + (_EARLY[1] - _EARLY[0]) / (1.0 + per_row * expected.noise))
    candidates, middle = 2.0 ** norms.edges[1:], norms.middles
    seen = np.minimum(middle, norms.quantile(max(0.5, 1.0 - _UNSEEN * noise_std / informed)))
    clipped = np.minimum(seen, candidates[:, None])
    squared, kept = clipped**2 @ norms.mass, (clipped * seen) @ norms.mass
    values, vectors = eigh(expected.curvature)
    prior = np.sum(vectors * (expected.covariance @ vectors), axis=1)
    known, prior = values[values > 0.0][:, None], prior[values > 0.0][:, None]  # but for padding
    known = known * informed / np.sum(known)
    variance = (known * squared + candidates**2 * expected.noise) / (known * kept) ** 2
    shrunk = prior / (prior + variance)
    widths = 0.5 * np.mean(np.log(shrunk * variance), axis=0)
    longer = np.maximum(middle - candidates[:, None], 0.0) @ norms.mass
    moved = np.sqrt(np.mean(shrunk / variance * (informed * longer / (known * kept)) ** 2, axis=0))
    least = int(np.argmin(widths))
    worthwhile = np.flatnonzero((widths <= widths[least] + np.log(DEAR)) & (moved > _NEGLIGIBLE))
    return float(candidates[max(least, *worthwhile)] if len(worthwhile) else candidates[least])


class Sides(NamedTuple):
    """How wide the likelihood and the prior make a latent on either side of its posterior mean.

    - **latents** - numbers of the latents (n,).
    - **widths** - (n, 2): sd below and above the mean, in units of the stated sd; 1 where noise may explain the difference.
    - **noise** - (n,): sd of a side's noise in units of the curvature that is expected there."""

    latents: Array
    widths: Array
    noise: Array

    def named(self, names: Sequence[str]) -> tuple[tuple[str, float, float], ...]:
        """The latents whose widths are not 1, by name, each with both widths."""
        found = zip(self.latents, self.widths)
        return tuple(
            (names[number], float(low), float(high)) for number, (low, high) in found if (low, high) != (1.0, 1.0)
        )

    @classmethod
    def asked(
        cls, ask: Ask, at: At, noise_multiplier: float, stages: Sequence["Stage"], prior: Prior, num_rows: int
    ) -> "Sides":
        """The widths along at most `NUM_AXES` latents, the most doubtful ones, from one access."""
        last = stages[-1]
        surrogate, mean, frame = last.surrogate, last.belief.mean, last.surrogate.frame

        def diagonal(surrogate: Surrogate) -> Array:
            inverse, layout = surrogate.frame.inverse, surrogate.frame.layout
            matrices = inverse.swapaxes(1, 2) @ surrogate.curvature.mean @ inverse
            return np.maximum(layout.scattered(np.diagonal(matrices, axis1=1, axis2=2)), 1e-30)

        # Those first whose curvature changes most within a posterior sd.
        change, sd = np.abs(np.log(diagonal(stages[0].surrogate) / diagonal(surrogate))), np.sqrt(last.belief.variance)
        latents = np.argsort(-change * sd / np.hypot(mean - prior.mean, sd), kind="stable")[:NUM_AXES]
        spread = frame.from_latents(last.covariance)
        axes = np.zeros((len(latents), len(prior.mean)))
        axes[np.arange(len(latents)), latents] = prior.scales[latents]
        # Along each latent, one posterior sd long.
        moves = times(spread, times(frame.roots.swapaxes(1, 2), frame.layout.gathered(frame.turned(axes))))
        variances = frame.variances(spread)[latents]
        moves /= np.sqrt(variances)[:, None, None]
        stated = np.maximum(np.sum(moves * times(surrogate.curvature.mean, moves), axis=(1, 2)), 1e-30)
        learned = np.clip(1.0 - variances / prior.variance[latents], _LEAST, 1.0)
        # The share of the gradient's variance that is the sampling of the data, along each.
        scores = surrogate.curvature.scores.mean(axis=0)
        noise = surrogate.noise_at(frame.from_latents(prior.covariance(frame)))
        total = scores + np.eye(noise.shape[-1]) * noise[:, None, :]
        pull = np.linalg.solve(total, times(surrogate.curvature.mean, moves)[..., None])[..., 0]
        sampled, full = (np.sum(pull * times(matrices, pull), axis=(1, 2)) for matrices in (scores, total))
        bounds = TYPICAL * stated / learned / num_rows
        away = APART * frame.latents(moves)
        along = (frame.layout.scattered(moves) / np.sqrt(bounds)[:, None]).T
        at = at._replace(point=mean, sides=np.concatenate([mean - away, mean + away]), along=along)
        values = ask("sides", at, noise_multiplier)
        unit = np.sqrt(values.size) * bounds / stated
        curvatures, std = values.reshape(4, -1) * unit, noise_multiplier * unit
        expected, noise = expected_beside(curvatures, std)
        return cls(latents, widths(curvatures, std, learned, sampled / full), noise / np.maximum(expected, 1e-12))


def expected_beside(curvatures: Array, std: Array) -> tuple[Array, Array]:
    """The curvature that is expected on both sides, (n,), and the sd of what is seen of it there; arguments as for `widths`.

    Where few rows inform a latent, all three are too small by as much: then sides are compared with the middle."""
    centre, weighed = curvatures[0], curvatures[3]
    part, least = np.clip(weighed / np.maximum(centre, std), 0.0, 1.0), np.maximum(centre - 2.5 * std, std)
    noise = std * np.sqrt(1.0 + (np.maximum(1.0 - centre, 0.0) / least) ** 2 + (part / least) ** 2)
    return 1.0 - part + part * np.maximum(centre, 0.0), noise


def widths(curvatures: Array, std: Array, learned: Array, sampled: Array) -> Array:
    """The sd on either side of the mean in units of the stated one, (n, 2), from `curvatures` (4, n) at the mean, below and
    above, and of rows that were weighed down, in units of the surrogate's, and the sd of their noise.

    The prior makes the share 1 - learned of the posterior precision. A likelihood of g times the curvature adds learned g^2 / (1
    + j (g - 1)), where j is the share `sampled` of noise that is the sampling of the data. Sides count where one differs by
    `FACTOR` from the stated sd, or from the other side."""
    centre, sides, (expected, noise) = curvatures[0], curvatures[1:3], expected_beside(curvatures, std)
    precision = lambda g: 1.0 - learned + learned * g**2 / (1.0 + sampled * (np.maximum(g, 0.0) - 1.0) + 1e-12)  # noqa: E731
    relative = np.maximum(sides, 0.0) / np.maximum(expected, 1e-12)
    is_low = (precision(np.minimum(relative, 1.0)) < FACTOR**-2) & (expected - sides > STANDS_OUT * noise)
    highest = np.maximum(sides, centre)
    is_high = (precision(highest) > FACTOR**2) & (highest > 1.0 + STANDS_OUT * std)
    wide, narrow = np.sort(precision(relative), axis=0)
    is_low |= (narrow > FACTOR**2 * wide) & (np.abs(sides[1] - sides[0]) > STANDS_OUT * np.sqrt(2.0) * std)
    found = np.where(is_low, relative, np.where(is_high, highest, 1.0))
    return np.where(is_low | is_high, 1.0 / np.sqrt(np.maximum(precision(found), 1e-4)), 1.0).T


class Stage(NamedTuple):
    """Result of one stage.

    - **norm**, **bound** - the bounds used on scores and curvatures.
    - **surrogate**, **belief** - that of the stage's own releases, and the posterior that they give under a normal prior.
    - **covariance** - its covariance in blocks of scaled and reflected latents.
    - **chi_squared**, **degrees** - the scatter of its gradients in units of their noise, and the degrees of freedom of that.
    - **excess** - relative excess of the posterior's spread over its noiseless value.
    - **resolved** - how far draws of the curvature agree on the directions that were learned.
    - **sampled** - the largest share of posterior variance that is the sampling of the data.
    - **hidden**, **dispersion** - see `Release.hidden`, `curvature.dispersion`.
    - **cut** - the part of scores that its norm clips, over scores, by root mean squares.
    - **sides**, **modelled** - of the last stage: see `Sides`; the surrogate with the variance of scores that the model has."""

    norm: float
    bound: float
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
    """Start of a stage: what is believed of the latents, with a covariance in blocks; `curvature`: of the scaled latents,
    expected."""

    frame: Frame
    point: Array
    mean: Array
    covariance: Array
    norm: float
    bound: float
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
    scouts = [sigma for sigma in priced if "gradient" not in sigma]
    priced, dimension = priced[len(scouts) :], len(prior.mean)
    start = _scouted(ask, scouts, prior, bounds, priced[-1]["gradient"] ** 2 / STEPS, num_rows)
    stages: list[Stage] = []
    for number, sigma in enumerate(priced):
        frame, is_last = start.frame, number == len(priced) - 1
        believed, covariance = map(frame.from_latents, (start.covariance, prior.covariance(frame)))
        mean_u, by = frame.coordinates(start.mean - prior.mean), CARRIED if number else 1.0
        length = np.sum(mean_u * times(np.linalg.pinv(covariance, hermitian=True), mean_u))
        is_surprised = length > dimension + _SURPRISE * np.sqrt(2.0 * dimension)
        # A walk goes rather too far than not far enough; from a mean far from the prior's the last one ends at the posterior.
        known = mean_u, by * believed
        if is_last and is_surprised:
            known = tempered(mean_u, believed, covariance, by)
        sketch = Sketch.drawn(frame, believed, np.random.default_rng(number))
        at = _at(start, sketch)
        known_of_u = None if start.curvature is None else frame.roots.swapaxes(1, 2) @ start.curvature @ frame.roots
        expected = Expected(sigma["gradient"] ** 2 / STEPS, known_of_u, covariance)
        at, cut = found_bounds(ask, at, bounds, sigma, expected, num_rows)
        here = Release.of(ask("curvature", at, sigma["curvature"]), sigma["curvature"], at, frame, most_scores)
        std, curvature = at.norm * sigma["gradient"], here.posterior(frame, covariance, _DRAWS, mean_u)
        flat, count = np.zeros(frame.roots.shape[:2]), int(STEPS * TAIL)
        average = _surrogate(here, curvature, frame, sketch, num_rows, (flat, flat, std**2 / STEPS))
        mean, (gains, offsets) = curvature.mean, gains_of(average, *known, std)
        walk = Walk(prior.mean, frame.inverse, gains, offsets, mean, REACH[number])
        positions, noisy = ask("gradient", at, sigma["gradient"], STEPS, walk)
        point, scores = positions[-count:].mean(axis=0), frame.layout.gathered(noisy * at.norm)
        centre, gradient = frame.coordinates(point - prior.mean), scores[-count:].mean(axis=0)
        if is_last:
            at = at._replace(point=point)
            values = ask("curvature", at, closing["curvature"])
            here = here.combined(Release.of(values, closing["curvature"], at, frame, most_scores))
            curvature = here.posterior(frame, covariance, _LAST_DRAWS, centre)
        law = curvature.averaged(redrawn, count, added)
        surrogate = _surrogate(here, law, frame, sketch, num_rows, (centre, gradient, std**2 / count))
        if is_last:
            sizes = ask("sizes", at._replace(halfway=(prior.mean + point) / 2.0), closing["sizes"])
            surrogate = surrogate._replace(decline=decline(sizes, closing["sizes"]))
            modelled = surrogate._replace(curvature=curvature.as_model().averaged(redrawn, count, added))
        late = count if prior.is_full else _LATE  # of wide models where moves beside the blocks are small
        # The scatter of noisy scores around a line of this curvature, in units of their noise.
        residual = scores[-late:] + times(curvature.mean, frame.coordinates(positions[-late:]))
        residual -= residual.mean(axis=0)
        own = np.diagonal(curvature.scores.mean(axis=0), axis1=1, axis2=2).sum() / dimension
        degrees = dimension * (late - 1)
        scatter = float((residual**2).sum() / ((std**2 + (redrawn + added) * own) * degrees))
        means, spreads = surrogate.posteriors(covariance)
        mean_u, spread = moments(means, spreads)
        belief = Known(prior.mean + frame.latents(mean_u), frame.variances(spread))
        stages.append(Stage(
            at.norm, at.bound, surrogate, belief, frame.to_latents(spread), scatter, degrees,
            excess=excess_of(surrogate, covariance, mean_u, spread), resolved=resolved(spreads, covariance),
            sampled=largest_sampled(surrogate, covariance, spread), hidden=here.hidden(covariance),
            dispersion=dispersion(here.scores, here.scores_std, curvature.mean), cut=cut,
        ))  # fmt: skip
        start = start if is_last else _next(stages[-1], point, here, sketch, mean, prior)
    sides = Sides.asked(ask, at, closing["sides"], stages, prior, num_rows)
    stages[-1] = stages[-1]._replace(sides=sides, modelled=modelled)
    directions = Directions.of(frame, centre, law.mean, num_rows)
    values = ask("scalars", at._replace(directions=directions.columns), closing["scalars"])
    return stages, Scalars(values, directions.coordinates, closing["scalars"])


def _scouted(
    ask: Ask, scouts: Sequence[dict[str, float]], prior: Prior, bounds: Bounds, noise: float, num_rows: int
) -> _Start:
    """At the prior mean, in coordinates in which no direction has much more curvature than the least known one may have, by
    releases of these noise multipliers: in the prior's, a column in small units hides all others, and a walk follows its
    noise."""
    frame = prior.first()
    start = _Start(frame, prior.mean + BESIDE * prior.scales, prior.mean, prior.covariance(frame), 1.0, 1.0)
    for sigma in scouts:
        frame = start.frame
        at = _at(start, Sketch.drawn(frame, start.covariance, np.random.default_rng(0)))
        expected = Expected(noise, None, prior.covariance(frame))
        at, _ = found_bounds(ask, at, bounds, sigma, expected, num_rows, _EARLY_PART)
        here = Release.of(ask("curvature", at, sigma["curvature"]), sigma["curvature"], at, frame)
        frame, ratio = frame.flattened(here.curvature, here.largest_error)
        start = start._replace(frame=frame, norm=at.norm * np.sqrt(ratio), bound=at.bound * ratio)
    return start


def _at(start: _Start, sketch: Sketch) -> At:
    frame = start.frame._replace(sketch=sketch.columns)
    return At(start.point, start.norm, start.bound, frame, start.bound)


def _next(stage: Stage, point: Array, here: Release, sketch: Sketch, curvature: Array, prior: Prior) -> _Start:
    """After a stage that ended at `point`. Scores change with the frame as their rms does, by the trace of the curvature."""
    frame = stage.surrogate.frame
    residual = sketch.unexplained(here.products, frame, curvature)
    left, strength = sketch.directions(residual, here.curvature_std**2)
    informed = unsaturated(curvature, stage.surrogate.curvature.ratio)
    new, of_latents = next_frame(frame, informed, left, strength, prior.pieces)
    error = frame.inverse.swapaxes(1, 2) @ frame.inverse * here.largest_error if prior.is_full else None
    new = new.evened(of_latents, prior.covariance(new), error)
    if prior.is_full:
        new = new.evened_along(stage.belief.mean - prior.mean, of_latents)
    covariance = new.layout.padded(new.real(frame.carried(frame.real(stage.covariance), new)))
    squared = np.sum((new.roots @ new.roots.swapaxes(1, 2)) * of_latents)
    ratio = float(np.clip(squared / np.trace(curvature, axis1=1, axis2=2).sum(), 1e-12, 1e12))
    point = point + np.clip(stage.belief.mean - point, -prior.scales / 2, prior.scales / 2)
    return _Start(
        new, point, stage.belief.mean, covariance, stage.norm * float(np.sqrt(ratio)), stage.bound * ratio, of_latents
    )


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
    here: Release, curvature: Curvature, frame: Frame, sketch: Sketch, num_rows: int, measured: tuple[Array, Array, float]
) -> Surrogate:  # fmt: skip
    """`measured`: centre, gradient and its noise variance."""
    layout, mean = frame.layout, curvature.mean
    columns = layout.gathered(sketch.columns.T)
    unsure = np.zeros(layout.dimension)
    if len(columns):
        off = curvature.matrices - mean
        unsure = layout.scattered(np.mean([times(h, c) ** 2 for h in off for c in columns], axis=0))
    beside, trace, unknown = sketch.beside(here.products, frame, mean, unsure, here.curvature_std**2, num_rows)
    return Surrogate(frame, *measured, curvature, layout.gathered(beside), trace, unknown * layout.real)
