"""From noisy releases to a Gaussian surrogate of the likelihood whose noise is known: staged, each from the one before.

A stage releases the curvature h at its point, then gradients while it walks to the posterior mean given all of them.
Coordinates: latents = m0 + metric u, with m0 the prior mean. The metric of a stage evens out the curvature that the one
before released, so that clipping and noise are spread over directions as the posterior needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dpppl.noise_aware.curvature import (
    EVENING,
    Array,
    Curvature,
    denoised,
    error_in_variables,
    from_vector,
    positive_part,
    times,
    variance_of_scores,
)
from dpppl.noise_aware.geometry import Dense
from dpppl.noise_aware.plan import STEPS, Plan
from dpppl.noise_aware.statistics import J_SHARE
from dpppl.norms import Norms

TAIL = 0.9
"""The share of a stage's gradients that is averaged."""
CARRIED = 4.0  # how much wider than its posterior what a stage found is believed by the walk of the next
BESIDE = 1e-3  # not at 0 itself, where NumPyro's Bernoulli has another gradient in its logits
_CLIPPED_IN_MEDIAN, _PARTS = 0.5, (0.5, 0.99)
LEVELS = (0.25, 0.5)  # the norm's quantile of rows' scores where noise rules, and where the sampling of data does


class Prior(NamedTuple):
    """Mean (d,) and covariance (d, d) of the latents that enter the likelihood, unconstrained."""

    mean: Array
    covariance: Array

    @property
    def variance(self) -> Array:
        return np.diag(self.covariance)

    @property
    def curvature(self) -> str:
        """Which curvature is released."""
        return "full"

    def geometry(self) -> Dense:
        """For the programs of a run."""
        return Dense(len(self.mean))


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Norm of a score and of a row's curvature, in the metric; None: found from private histograms."""

    norm: float | None = None
    curvature: float | None = None


class Release(NamedTuple):
    """A curvature as released, with the sd of its noise, and the variance of scores with its own."""

    curvature: Array
    curvature_std: float
    scores: Array
    scores_std: float

    def combined(self, other: "Release") -> "Release":
        """The precision-weighted mean of two."""
        curvature, curvature_std = weighted_mean(
            self.curvature, self.curvature_std, other.curvature, other.curvature_std
        )
        scores, scores_std = weighted_mean(self.scores, self.scores_std, other.scores, other.scores_std)
        return Release(curvature, curvature_std, scores, scores_std)


class Surrogate(NamedTuple):
    """`gradient` | u ~ N(h (u - centre), `noise`), h the curvature: all that the releases say of the likelihood.

    `gradient` (d,): the mean noisy score at `centre` (d,), of noise variance `noise_variance`, in u; `curvature`: of the
    likelihood; `scores`: the variance (d, d) of a score's sum over possible data, `follows`: its derivatives by entries of
    the curvature."""

    metric: Array
    centre: Array
    gradient: Array
    noise_variance: float
    curvature: Curvature
    scores: Array
    follows: Array

    def noise(self, spread: Array) -> Array:
        """The covariance of the gradient around its mean, where E[(u - centre)(u - centre)'] = `spread`."""
        extra = error_in_variables(self.curvature.variance, spread)
        return self.scores + self.noise_variance * np.eye(len(self.centre)) + extra

    def point(self, mean: Array) -> Array:
        """The latents at the centre, `mean` being those at u = 0."""
        return mean + self.metric @ self.centre


class Stage(NamedTuple):
    """What one stage found: the bounds used, the surrogate of its own releases, the posterior `belief` that they give under
    a normal prior, the scatter of its gradients in units of their noise, with its degrees of freedom, and the `excess` of
    the posterior's spread."""

    norm: float
    bound: float
    surrogate: Surrogate
    belief: Prior
    chi_squared: float
    degrees: int
    excess: float


Ask = Callable[..., Any]
"""`ask(kind, at, noise_multiplier, repeats, **walk)`: the noisy sums of an access; of a walk, positions and noisy scores."""


def run_recipe(
    ask: Ask, plan: Plan, scale: float, prior: Prior, bounds: Bounds, num_rows: int, redrawn: float = 0.0
) -> tuple[list[Stage], Any]:
    """All stages in order, the last one with both of its curvatures, and the scalars (see `RowStatistics.scalars`).
    `scale`: 1 / mu; `redrawn`: see `Responses`."""
    *priced, closing = plan.priced(scale)
    scales = np.sqrt(np.diag(prior.covariance))
    precision = np.linalg.inv(prior.covariance)
    found = Found(np.diag(scales), prior.mean + BESIDE * scales, prior, 1.0, 1.0)
    per_row = len(scales) * priced[-1]["gradient"] ** 2 / (STEPS * num_rows)  # variance of noise over that of scores
    level = LEVELS[0] + (LEVELS[1] - LEVELS[0]) / (1.0 + per_row)
    stages: list[Stage] = []
    for number, sigma in enumerate(priced):
        metric = found.metric
        at: dict[str, Any] = {"point": found.point, "metric": metric, "norm": found.norm, "bound": found.bound}
        at |= found_bounds(ask, at, bounds, sigma, level, num_rows, len(scales))
        here = _released(ask("curvature", at, sigma["curvature"]), sigma["curvature"], at)
        std = at["norm"] * sigma["gradient"]
        inner = metric.T @ precision @ metric
        likelihood, scores, follows = _denoised(here, inner)
        usable = likelihood._replace(mean=positive_part(likelihood.mean))
        start = np.linalg.solve(metric, found.point - prior.mean)
        average = Surrogate(metric, start, np.zeros_like(start), std**2 / STEPS, usable, scores, follows)
        known = metric.T @ np.linalg.inv(found.belief.covariance) @ metric
        gains, offsets = gains_of(average, np.linalg.solve(metric, found.belief.mean - prior.mean), known, std)
        positions, noisy = ask(
            "gradient", at, sigma["gradient"], STEPS, mean=prior.mean, inverse=np.linalg.inv(metric), gains=gains,
            offsets=offsets, curvature=usable.mean, scales=scales,
        )  # fmt: skip
        first = int(STEPS * (1.0 - TAIL))
        new_point, gradient = positions[first:].mean(axis=0), noisy[first:].mean(axis=0) * at["norm"]
        if number == len(priced) - 1:
            at |= {"point": new_point}
            again = _released(ask("curvature", at, closing["curvature"]), closing["curvature"], at)
            likelihood, scores, follows = _denoised(here.combined(again), inner)
        centre = np.linalg.solve(metric, new_point - prior.mean)
        surrogate = Surrogate(metric, centre, gradient, std**2 / (STEPS - first), likelihood, scores, follows)
        residual = noisy[first:] * at["norm"] - gradient
        residual += np.linalg.solve(metric, (positions[first:] - new_point).T).T @ likelihood.mean
        degrees = residual.shape[1] * (len(residual) - 1)
        scatter = std**2 + redrawn * max(0.0, float(np.trace(scores))) / len(scales)
        chi_squared = float((residual**2).sum() / (scatter * degrees))
        mean, covariance = gaussian_posterior(surrogate, inner)
        belief = Prior(prior.mean + metric @ mean, metric @ covariance @ metric.T)
        excess = excess_of(surrogate, inner, mean, covariance)
        stages.append(Stage(at["norm"], at["bound"], surrogate, belief, chi_squared, degrees, excess))
        found = _next(stages[-1], new_point, usable.mean, scales)
    return stages, ask("scalars", at, closing["scalars"])


class Found(NamedTuple):
    """Where a stage starts: its metric and point, what is believed of the latents, and bounds, which are those of the
    stage before in its metric."""

    metric: Array
    point: Array
    belief: Prior
    norm: float
    bound: float


def _next(stage: Stage, point: Array, curvature: Array, scales: Array) -> Found:
    """After a stage that ended at `point`. Lengths of scores are taken to change with the metric as their root mean square
    does, by the trace of the curvature."""
    old = stage.surrogate.metric
    new = _evened(curvature, old, scales)
    change = np.linalg.solve(old, new)
    ratio = float(np.trace(change.T @ curvature @ change) / np.trace(curvature))
    belief = stage.belief._replace(covariance=CARRIED * stage.belief.covariance)
    point = point + np.clip(belief.mean - point, -scales / 2, scales / 2)
    return Found(new, point, belief, stage.norm * float(np.sqrt(ratio)), stage.bound * ratio)


def gaussian_posterior(surrogate: Any, precision: Array) -> tuple[Array, Array]:
    """Mean and covariance of u under a normal prior of mean 0, the error of the curvature included self-consistently.
    `surrogate`: a Surrogate, or one in blocks: vectors (k, b), matrices (k, b, b)."""
    weighted, covariance = _consistent(surrogate, precision)
    total = surrogate.gradient + times(surrogate.curvature.mean, surrogate.centre)
    return times(covariance, times(weighted.swapaxes(-1, -2), total)), covariance


def excess_of(surrogate: Any, precision: Array, mean: Array, covariance: Array) -> float:
    """By how much a posterior of u lies farther around the surrogate's centre than it would with no noise at the mode: squared
    distances by the curvature h, over the same for the covariance (h + precision)^-1, less one."""
    h, off = positive_part(surrogate.curvature.mean), mean - surrogate.centre
    lengths = np.trace(h @ covariance, axis1=-2, axis2=-1).sum() + np.sum(off * times(h, off))
    return max(0.0, float(lengths / np.trace(np.linalg.solve(precision + h, h), axis1=-2, axis2=-1).sum()) - 1.0)


def _consistent(surrogate: Any, precision: Array) -> tuple[Array, Array]:
    """Noise^-1 h and the posterior covariance, where the covariance is that of what the curvature's error acts on."""
    h = surrogate.curvature.mean
    spread = np.linalg.inv(precision)
    for _ in range(60):
        weighted = np.linalg.solve(surrogate.noise(spread), h)
        covariance = np.linalg.inv(precision + h.swapaxes(-1, -2) @ weighted)
        if np.max(np.abs(covariance - spread)) < 1e-6 * np.max(np.abs(spread)):
            break
        spread = covariance
    return weighted, covariance


def gains_of(surrogate: Any, mean: Array, precision: Array, std: float) -> tuple[Array, Array]:
    """For each step, the posterior mean as a linear map (STEPS, d, d) of the averaged gradient (at u = 0, linearised), and
    an offset (STEPS, d), where a normal distribution of this `mean` and `precision` stands for what was known before."""
    h, identity = surrogate.curvature.mean, np.eye(precision.shape[-1])
    fixed = surrogate._replace(noise_variance=0.0).noise(_consistent(surrogate, precision)[1])
    maps = []
    for step in range(STEPS):
        variance = std**2 * (16.0 / 7.0) / (step + 1)  # of the average with weights 4 / (t + 4)
        weighted = np.linalg.solve(fixed + variance * identity, h)
        both = np.concatenate([weighted.swapaxes(-1, -2), times(precision, mean)[..., None]], axis=-1)
        maps.append(np.linalg.solve(precision + h @ weighted, both))
    return np.array(maps)[..., :-1], np.array(maps)[..., -1]


def found_bounds(
    ask: Ask, at: Any, bounds: Bounds, sigma: dict[str, float], level: float, num_rows: int, size: float
) -> dict[str, float]:
    """Bounds that were given; else from the stage's histograms, or, where it has none, those of the stage before.
    `size`: the root of how many entries the curvature has."""
    norm, bound = bounds.norm, bounds.curvature
    if "norm_bin" in sigma:
        counts = ask("norm_bin", at, sigma["norm_bin"])
        norm = Norms.fitted(counts, sigma["norm_bin"], num_rows).quantile(level) if norm is None else norm
        counts = ask("curvature_bin", at | {"norm": norm}, sigma["curvature_bin"])
        affordable = size * sigma["curvature"] / (np.sqrt(2.0) * _CLIPPED_IN_MEDIAN * num_rows)
        part = 1.0 - np.clip(affordable, 1.0 - _PARTS[1], 1.0 - _PARTS[0])
        expected = (2.0 * float(np.log2(norm)), 1.5)  # as long as the clipped score times one of its length
        fitted = Norms.fitted(counts, sigma["curvature_bin"], num_rows, expected)
        bound = fitted.quantile(float(part)) if bound is None else bound
    return {"norm": norm or at["norm"], "bound": bound or at["bound"]}


def _released(values: Any, sigma: float, at: Any) -> Release:
    dimension = len(at["point"])
    curvature = from_vector(values["A"], dimension) * (at["bound"] / np.sqrt(1.0 - J_SHARE))
    scores = from_vector(values["J"], dimension) * (at["norm"] ** 2 / np.sqrt(J_SHARE))
    return Release(
        curvature, sigma * at["bound"] / np.sqrt(1.0 - J_SHARE), scores, sigma * at["norm"] ** 2 / np.sqrt(J_SHARE)
    )


def _denoised(release: Release, precision: Array) -> tuple[Curvature, Array, Array]:
    curvature = denoised(release.curvature, release.curvature_std, 0.05 * np.diag(precision))
    return curvature, *variance_of_scores(release.scores, release.scores_std, positive_part(curvature.mean))


def _evened(curvature: Array, metric: Array, scales: Array) -> Array:
    """The metric of the next stage: prior scales times (curvature + prior)^(-1/4), of about the size of the scales."""
    from_scales = np.linalg.solve(metric, np.diag(scales))
    values, vectors = np.linalg.eigh(positive_part(from_scales.T @ curvature @ from_scales) + np.eye(len(scales)))
    powers = values**-EVENING * np.exp(EVENING * np.mean(np.log(values)))
    return np.diag(scales) @ (vectors * powers) @ vectors.T


def weighted_mean(a: Array, std_a: float, b: Array, std_b: float) -> tuple[Array, float]:
    w, v = std_a**-2, std_b**-2
    return (w * a + v * b) / (w + v), float((w + v) ** -0.5)
