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
    Array,
    Curvature,
    denoised,
    error_in_variables,
    from_vector,
    positive_part,
    variance_of_scores,
)
from dpppl.noise_aware.plan import Plan
from dpppl.noise_aware.statistics import J_SHARE
from dpppl.norms import Norms

TAIL = 0.7
"""The share of a stage's gradients that is averaged."""
_CARRIED = 4.0  # how much wider than its posterior what a stage found is believed by the walk of the next
_BESIDE = 1e-3  # not at 0 itself, where NumPyro's Bernoulli has another gradient in its logits
_EVENING = 0.25  # power of the curvature in the metric; one half undoes it all, and is unstable
_CLIPPED_IN_MEDIAN, _LEVELS = 0.5, (0.5, 0.99)


class Prior(NamedTuple):
    """Mean (d,) and covariance (d, d) of the latents that enter the likelihood, unconstrained."""

    mean: Array
    covariance: Array


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
        curvature, curvature_std = _weighted(self.curvature, self.curvature_std, other.curvature, other.curvature_std)
        scores, scores_std = _weighted(self.scores, self.scores_std, other.scores, other.scores_std)
        return Release(curvature, curvature_std, scores, scores_std)


class Surrogate(NamedTuple):
    """`gradient` | u ~ N(h (centre - u) ..., see `posterior`): all that the releases say of the likelihood near `centre`.

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


class Stage(NamedTuple):
    """What one stage found: the bounds used, the surrogate of its own releases, and the scatter of its gradients in units
    of their noise, with its degrees of freedom."""

    norm: float
    bound: float
    surrogate: Surrogate
    chi_squared: float
    degrees: int


Ask = Callable[..., Any]
"""`ask(kind, at, noise_multipliers, **walk)`: the noisy sums of an access; of a walk, positions and noisy scores."""


def run_recipe(
    ask: Ask, plan: Plan, scale: float, prior: Prior, bounds: Bounds, num_rows: int
) -> tuple[list[Stage], Any]:
    """All stages in order, the last one with both of its curvatures, and the scalars (see `RowStatistics.scalars`)."""
    multipliers = iter(np.split(plan.noise_multipliers(scale), np.cumsum([b.repeats for b in plan.blocks])[:-1]))
    kinds = iter(plan.blocks)

    def access(kind: str, at: Any, **walk: Any) -> tuple[Any, float]:
        assert next(kinds).kind == kind
        sigma = next(multipliers)
        return ask(kind, at, sigma, **walk), float(sigma[0])

    scales = np.sqrt(np.diag(prior.covariance))
    metric, point = np.diag(scales), prior.mean + _BESIDE * scales
    precision = np.linalg.inv(prior.covariance)
    stages: list[Stage] = []
    belief = prior
    num_stages = sum(block.kind == "gradient" for block in plan.blocks)
    for number in range(num_stages):
        at: dict[str, Any] = {"point": point, "metric": metric, "norm": 1.0, "bound": 1.0}
        at |= _found_bounds(access, at, bounds, plan, multipliers_of(plan, scale, number), num_rows)
        here = _released(*access("curvature", at), at)
        gradients = multipliers_of(plan, scale, number)["gradient"]
        steps = len(gradients)
        std = at["norm"] * gradients[0]
        inner = metric.T @ precision @ metric
        likelihood, scores, follows = _denoised(here, inner)
        usable = likelihood._replace(mean=positive_part(likelihood.mean))
        start = np.linalg.solve(metric, point - prior.mean)
        average = Surrogate(metric, start, np.zeros_like(start), std**2 / steps, usable, scores, follows)
        known = metric.T @ np.linalg.inv(belief.covariance) @ metric
        gains, offsets = _gains(average, np.linalg.solve(metric, belief.mean - prior.mean), known, std, steps)
        (positions, noisy), _ = access(
            "gradient", at, mean=prior.mean, inverse=np.linalg.inv(metric), gains=gains, offsets=offsets,
            curvature=usable.mean, scales=scales,
        )  # fmt: skip
        first = int(steps * (1.0 - TAIL))
        new_point, gradient = positions[first:].mean(axis=0), noisy[first:].mean(axis=0) * at["norm"]
        if number == num_stages - 1:
            again = _released(*access("curvature", at | {"point": new_point}), at)
            likelihood, scores, follows = _denoised(here.combined(again), inner)
        centre = np.linalg.solve(metric, new_point - prior.mean)
        surrogate = Surrogate(metric, centre, gradient, std**2 / (steps - first), likelihood, scores, follows)
        residual = noisy[first:] * at["norm"] - gradient
        residual += np.linalg.solve(metric, (positions[first:] - new_point).T).T @ likelihood.mean
        degrees = residual.shape[1] * (len(residual) - 1)
        chi_squared = float((residual**2).sum() / (std**2 * degrees))
        stages.append(Stage(at["norm"], at["bound"], surrogate, chi_squared, degrees))
        mean, covariance = gaussian_posterior(surrogate, np.zeros_like(start), inner)
        belief = Prior(prior.mean + metric @ mean, _CARRIED * metric @ covariance @ metric.T)
        point = new_point + np.clip(belief.mean - new_point, -scales / 2, scales / 2)
        metric = _evened(usable.mean, metric, scales)
    at = at | {"point": new_point}
    return stages, access("scalars", at)[0]


def multipliers_of(plan: Plan, scale: float, stage: int) -> dict[str, Array]:
    """The noise multipliers of one stage's blocks, by kind."""
    found: dict[str, Array] = {}
    number = 0
    for block, sigma in zip(
        plan.blocks, np.split(plan.noise_multipliers(scale), np.cumsum([b.repeats for b in plan.blocks])[:-1])
    ):
        if number == stage:
            found.setdefault(block.kind, sigma)
        number += block.kind == "gradient"
    return found


def gaussian_posterior(
    surrogate: Surrogate, prior_mean: Array, prior_precision: Array, steps: int = 60
) -> tuple[Array, Array]:
    """Mean and covariance of u under a normal prior (in u), the error of the curvature included self-consistently."""
    h = surrogate.curvature.mean
    spread = np.linalg.inv(prior_precision)
    for _ in range(steps):
        weighted = np.linalg.solve(surrogate.noise(spread), h)
        covariance = np.linalg.inv(prior_precision + h.T @ weighted)
        spread = (spread + covariance) / 2
    information = weighted.T @ (surrogate.gradient + h @ surrogate.centre)
    return covariance @ (information + prior_precision @ prior_mean), covariance


def _gains(surrogate: Surrogate, mean: Array, precision: Array, std: float, steps: int) -> tuple[Array, Array]:
    """For each step, the posterior mean as a linear map (steps, d, d) of the averaged gradient (at u = 0, linearised), and
    an offset (steps, d), where a normal distribution of this `mean` and `precision` stands for what was known before."""
    h, identity = surrogate.curvature.mean, np.eye(len(precision))
    spread = np.linalg.inv(precision)
    for _ in range(25):
        weighted = np.linalg.solve(surrogate.noise(spread), h)
        spread = (spread + np.linalg.inv(precision + h.T @ weighted)) / 2
    fixed = surrogate.scores + error_in_variables(surrogate.curvature.variance, spread)
    maps = []
    for step in range(steps):
        variance = std**2 * (16.0 / 7.0) / (step + 1)  # of the average with weights 4 / (t + 4)
        weighted = np.linalg.solve(fixed + variance * identity, h)
        both = np.column_stack([weighted.T, precision @ mean])
        maps.append(np.linalg.solve(precision + h @ weighted, both))
    return np.array(maps)[:, :, :-1], np.array(maps)[:, :, -1]


def _found_bounds(
    access: Any, at: Any, bounds: Bounds, plan: Plan, sigma: dict[str, Array], num_rows: int
) -> dict[str, float]:
    norm, bound = bounds.norm, bounds.curvature
    if norm is None or bound is None:
        counts, std = access("norm_bin", at)
        norm = Norms.fitted(counts, std, num_rows).quantile(0.5) if norm is None else norm
        counts, std = access("curvature_bin", at | {"norm": norm})
        affordable = len(at["point"]) * float(sigma["curvature"][0]) / (np.sqrt(2.0) * _CLIPPED_IN_MEDIAN * num_rows)
        level = 1.0 - np.clip(affordable, 1.0 - _LEVELS[1], 1.0 - _LEVELS[0])
        bound = Norms.fitted(counts, std, num_rows).quantile(float(level)) if bound is None else bound
    return {"norm": norm, "bound": bound}


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
    powers = values**-_EVENING * np.exp(_EVENING * np.mean(np.log(values)))
    return np.diag(scales) @ (vectors * powers) @ vectors.T


def _weighted(a: Array, std_a: float, b: Array, std_b: float) -> tuple[Array, float]:
    w, v = std_a**-2, std_b**-2
    return (w * a + v * b) / (w + v), float((w + v) ** -0.5)
