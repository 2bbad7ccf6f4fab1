"""The recipe for wide models: blocks of the curvature, and how much of it lies beside them.

As `recipe`, but a stage releases, of the curvature H, its diagonal blocks in a `Frame` and H Omega for a few columns Omega, drawn
from what was believed of the latents before. What blocks do not explain of H Omega is noise as far as the posterior
goes: it has the variance that H's entries beside the blocks give the gradient. What stands out of it are directions
that run through all latents, which the next frame turns into its first block.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpppl.noise_aware.blocks import RANK, Frame
from dpppl.noise_aware.curvature import (
    Array,
    Curvature,
    denoised_blocks,
    error_in_variables,
    from_vector,
    positive_part,
    responsibilities,
    times,
    variance_of_scores,
)
from dpppl.noise_aware.geometry import Blocks
from dpppl.noise_aware.plan import STEPS, Plan
from dpppl.noise_aware.recipe import (
    BESIDE,
    CARRIED,
    LEVELS,
    TAIL,
    Ask,
    Bounds,
    Release,
    excess_of,
    found_bounds,
    gains_of,
    gaussian_posterior,
    weighted_mean,
)
from dpppl.noise_aware.statistics import J_SHARE

COLUMNS = 6
_LATE = STEPS // 2  # gradients of which the scatter is judged: where moves beside the blocks are small
_STANDS_OUT, _MOST_KNOWN = 1.1, RANK // 2
_MULTIPLES = np.exp(np.linspace(np.log(0.25), np.log(1e6), 60))


class WidePrior(NamedTuple):
    """Mean (d,) and standard deviations (d,) of the coordinates, and standardised draws (n, d), or None where they are
    independent. `pieces`: the coordinates of each block."""

    mean: Array
    scales: Array
    draws: Array | None
    pieces: Sequence[Array]

    @property
    def variance(self) -> Array:
        return self.scales**2

    @property
    def curvature(self) -> str:
        """Which curvature is released."""
        return f"blocks of at most {max(map(len, self.pieces))} coordinates"

    def geometry(self) -> Blocks:
        """For the programs of a run."""
        shape = self.first().roots.shape
        return Blocks(len(self.mean), shape[0], shape[1], RANK, COLUMNS)

    def first(self) -> Frame:
        """A frame whose first block are directions that the prior knows of."""
        directions = np.zeros((len(self.mean), 0))
        if self.draws is not None:
            count, dimension = self.draws.shape
            values, vectors = np.linalg.eigh(self.draws @ self.draws.T / count)
            chosen = np.flatnonzero(values > 1.5 * (1.0 + np.sqrt(dimension / count)) ** 2)[-_MOST_KNOWN:]
            directions = np.linalg.qr(self.draws.T @ vectors[:, chosen])[0]
        return Frame.of(self.scales, directions, self.pieces)

    def covariance(self, frame: Frame) -> Array:
        """Blocks, of scaled and turned latents; 1 in padding."""
        if self.draws is None:
            return np.tile(np.eye(frame.roots.shape[1]), (len(frame.roots), 1, 1))
        inside = frame.layout.gathered(frame.turned(self.draws)).transpose(1, 2, 0)
        return frame.layout.padded(inside @ inside.swapaxes(1, 2) / len(self.draws))


class Known(NamedTuple):
    """Mean (d,) and variance (d,) of each coordinate."""

    mean: Array
    variance: Array


class WideSurrogate(NamedTuple):
    """As `recipe.Surrogate`, in blocks: `curvature` and `scores` hold matrices (k, b, b). `beside` (k, b): the variance
    that entries beside the blocks add where the trace of curvature times spread is `trace`. `unknown` (k, b): the share of
    a coordinate that lies in directions of which the data may say nothing, as columns that add up to the same."""

    frame: Frame
    centre: Array
    gradient: Array
    noise_variance: float
    curvature: Curvature
    scores: Array
    follows: Array
    beside: Array
    trace: float
    unknown: Array

    def widened(self, spread: Array, precision: Array) -> Array:
        """A posterior covariance of u with the prior's, of this precision, in the share that is unknown."""
        root = np.sqrt(self.unknown)
        return spread + root[:, :, None] * (np.linalg.inv(precision) - spread) * root[:, None, :]

    def beside_at(self, spread: Array) -> Array:
        """What entries beside the blocks add to the variance of the gradient (k, b)."""
        return self.beside * (np.sum(self.curvature.mean * spread) / self.trace)

    def noise(self, spread: Array) -> Array:
        identity = np.eye(self.centre.shape[1])
        extra = error_in_variables(self.curvature.variance, spread)
        return self.scores + extra + identity * (self.noise_variance + self.beside_at(spread))[:, None, :]

    def point(self, mean: Array) -> Array:
        return mean + self.frame.latents(self.centre)


class WideStage(NamedTuple):
    """As `recipe.Stage`; `covariance`: blocks, of scaled and turned latents."""

    norm: float
    bound: float
    surrogate: WideSurrogate
    belief: Known
    covariance: Array
    chi_squared: float
    degrees: int
    excess: float


def run_wide(
    ask: Ask, plan: Plan, scale: float, prior: WidePrior, bounds: Bounds, num_rows: int, redrawn: float = 0.0
) -> tuple[list[WideStage], Any]:
    """All stages in order, the last one with both of its curvatures, and the scalars. `scale`: 1 / mu; `redrawn`: see
    `Responses`."""
    *priced, closing = plan.priced(scale)
    scales, dimension = prior.scales, len(prior.mean)
    frame = prior.first()
    covariance = prior.covariance(frame)
    point, belief, inflation, norm, bound = prior.mean + BESIDE * scales, prior.mean, 1.0, 1.0, 1.0
    per_row = dimension * priced[-1]["gradient"] ** 2 / (STEPS * num_rows)
    level = LEVELS[0] + (LEVELS[1] - LEVELS[0]) / (1.0 + per_row)
    stages: list[WideStage] = []
    for number, sigma in enumerate(priced):
        layout, roots, inverse = frame.layout, frame.roots, frame.inverse
        sketch = Sketch.drawn(frame, covariance, np.random.default_rng(number))
        at: dict[str, Any] = {
            "point": point, "norm": norm, "bound": bound, "scales": scales, "turn": frame.turn, "roots": roots,
            "index": layout.index, "place": layout.place, "sketch": sketch.columns,
        }  # fmt: skip
        at |= found_bounds(ask, at, bounds, sigma, level, num_rows, np.sqrt(dimension * layout.index.shape[1]))
        here = _released(ask("curvature", at, sigma["curvature"]), sigma["curvature"], at, frame)
        std = at["norm"] * sigma["gradient"]
        inner = roots @ np.linalg.inv(prior.covariance(frame)) @ roots
        start = frame.coordinates(point - prior.mean)
        flat = np.zeros_like(start)
        surrogate_at = _surrogate(here, frame, inner, sketch, num_rows)
        average = surrogate_at(start, flat, std**2 / STEPS)
        usable = positive_part(average.curvature.mean)
        average = average._replace(curvature=average.curvature._replace(mean=usable))
        known = roots @ np.linalg.inv(inflation * covariance) @ roots
        gains, offsets = gains_of(average, frame.coordinates(belief - prior.mean), known, std)
        positions, noisy = ask(
            "gradient", at, sigma["gradient"], STEPS, mean=prior.mean, inverse=inverse, gains=gains, offsets=offsets,
            curvature=usable,
        )  # fmt: skip
        first = int(STEPS * (1.0 - TAIL))
        new_point, scores = positions[first:].mean(axis=0), layout.gathered(noisy[first:] * at["norm"])
        if number == len(priced) - 1:
            at |= {"point": new_point}
            again = _released(ask("curvature", at, closing["curvature"]), closing["curvature"], at, frame)
            surrogate_at = _surrogate(here.combined(again), frame, inner, sketch, num_rows)
        centre, gradient = frame.coordinates(new_point - prior.mean), scores.mean(axis=0)
        surrogate = surrogate_at(centre, gradient, std**2 / (STEPS - first))
        moved = frame.coordinates(positions[-_LATE:])
        residual = scores[-_LATE:] + times(surrogate.curvature.mean, moved)
        residual -= residual.mean(axis=0)
        degrees = dimension * (len(residual) - 1)
        own = float((np.diagonal(surrogate.scores, axis1=1, axis2=2) * layout.real).sum()) / dimension
        scatter = std**2 + redrawn * max(0.0, own)
        chi_squared = float((residual**2).sum() / (scatter * degrees))
        mean, spread = gaussian_posterior(surrogate, inner)
        spread = surrogate.widened(spread, inner)
        excess = excess_of(surrogate, inner, mean, spread)
        belief, covariance = prior.mean + frame.latents(mean), roots @ spread @ roots
        known_now = Known(belief, frame.variances(spread * layout.real[:, :, None] * layout.real[:, None, :]))
        stages.append(
            WideStage(at["norm"], at["bound"], surrogate, known_now, covariance, chi_squared, degrees, excess)
        )
        if number < len(priced) - 1:
            new, curvature = _next(frame, here, average, sketch, prior.pieces)
            covariance = new.layout.padded(_real(new, frame.carried(_real(frame, covariance), new)))
            ratio = _trace(new, curvature) / _trace(frame, inverse @ usable @ inverse)
            norm, bound, frame, inflation = at["norm"] * float(np.sqrt(ratio)), at["bound"] * ratio, new, CARRIED
            point = new_point + np.clip(belief - new_point, -scales / 2, scales / 2)
    return stages, ask("scalars", at, closing["scalars"])


class _Wide(NamedTuple):
    """A release of blocks, and of products (d, COLUMNS) with the same noise."""

    blocks: Release
    products: Array

    def combined(self, other: "_Wide") -> "_Wide":
        stds = self.blocks.curvature_std, other.blocks.curvature_std
        products, _ = weighted_mean(self.products, stds[0], other.products, stds[1])
        return _Wide(self.blocks.combined(other.blocks), products)


def _real(frame: Frame, matrices: Array) -> Array:
    real = frame.layout.real
    return matrices * real[:, :, None] * real[:, None, :]


def _trace(frame: Frame, curvature: Array) -> float:
    """In u, of a curvature of scaled and turned latents."""
    return float(np.sum((frame.roots @ frame.roots) * curvature))


class Sketch(NamedTuple):
    """Omega, `columns` (d, COLUMNS): of a normal law with `variances` (d,), divided by `size`."""

    columns: Array
    variances: Array
    size: float

    @classmethod
    def drawn(cls, frame: Frame, covariance: Array, rng: np.random.Generator) -> "Sketch":
        """From a belief, of a size for which a row's products are about as long as its blocks."""
        spread = frame.inverse @ covariance @ frame.inverse
        drawn = rng.standard_normal((COLUMNS, *frame.layout.index.shape))
        columns = frame.layout.scattered(times(np.linalg.cholesky(spread), drawn)).T
        variances = frame.layout.scattered(np.diagonal(spread, axis1=1, axis2=2))
        size = float(np.sqrt(np.mean(variances) * COLUMNS * (len(covariance) - 1)))
        return cls(columns / size, variances, size)


def _released(values: Any, sigma: float, at: Any, frame: Frame) -> _Wide:
    width, real = frame.layout.index.shape[1], frame.layout.real
    numbers = len(real) * width * (width + 1) // 2

    def blocks(vector: Array) -> Array:
        return _real(frame, from_vector(vector.reshape(len(real), -1), width))

    unit, unit_j = at["bound"] / np.sqrt(1.0 - J_SHARE), at["norm"] ** 2 / np.sqrt(J_SHARE)
    release = Release(blocks(values["A"][:numbers]) * unit, sigma * unit, blocks(values["J"]) * unit_j, sigma * unit_j)
    return _Wide(release, values["A"][numbers:].reshape(-1, COLUMNS) * unit)


def _surrogate(here: _Wide, frame: Frame, precision: Array, sketch: Sketch, num_rows: int) -> Any:
    """The function of (centre, gradient, noise variance) that gives a surrogate."""
    layout, release = frame.layout, here.blocks
    smallest = 0.05 * np.diagonal(precision, axis1=1, axis2=2)
    curvature = denoised_blocks(release.curvature, layout.real, release.curvature_std, smallest)
    scores, follows = variance_of_scores(release.scores, release.scores_std, positive_part(curvature.mean))
    columns = layout.gathered(sketch.columns.T)
    residual, noise = _residual(here, frame, curvature.mean, sketch), release.curvature_std**2
    unsure = layout.scattered(times(curvature.variance, np.mean(columns**2, axis=0)))
    # What covariates that vary independently leave: rows' own entries, squared and summed.
    inside, variances = np.diagonal(curvature.mean, axis1=1, axis2=2), sketch.variances / sketch.size**2
    least = layout.scattered(inside) * np.sum(layout.scattered(inside) * variances) / num_rows
    beside = _variances(residual, noise + unsure, least)
    left, strength = _directions(residual, noise, sketch)
    # More than directions that are not known at all could leave; of COLUMNS products some must be left to tell.
    left = left[:, strength > np.mean(inside[layout.real])][:, : COLUMNS // 2]
    kept = (residual - left @ (left.T @ residual)) * np.sqrt(COLUMNS / (COLUMNS - left.shape[1]))
    unknown = _unknown(kept, noise, layout.scattered(inside), variances, num_rows)
    trace = float(np.sum(layout.scattered(inside) * sketch.variances))
    return lambda centre, gradient, noise_variance: WideSurrogate(
        frame, centre, gradient, noise_variance, curvature, scores, follows, layout.gathered(beside) * sketch.size**2,
        trace, unknown * layout.real,
    )  # fmt: skip


def _residual(here: _Wide, frame: Frame, curvature: Array, sketch: Sketch) -> Array:
    """Products with Omega that the blocks do not explain, (d, COLUMNS)."""
    columns = frame.layout.gathered(sketch.columns.T)
    return here.products - frame.layout.scattered(times(curvature, columns)).T


def _variances(residual: Array, noise: Array, least: Array) -> Array:
    """Of the rows of products (d, COLUMNS), less that of their noise (d,): multiples of `least` (d,), with a law that is
    fitted to all."""
    variance = least[:, None] * _MULTIPLES + noise[:, None]
    squares = np.sum(residual**2, axis=1)[:, None]
    log_likelihood = -0.5 * (COLUMNS * np.log(variance) + squares / variance)
    likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    return least * (responsibilities(likelihood.T, 1.0).T @ _MULTIPLES)


def _unknown(residual: Array, noise: float, inside: Array, variances: Array, num_rows: int) -> float:
    """The share of directions in which the curvature may be 0, from the squares of products that the blocks do not
    explain: as if all of these came from there. `inside`, `variances` (d,): the curvature's diagonal, and that of Omega."""
    weights = np.minimum(inside, np.median(inside)) ** 2 / inside / np.sum(np.minimum(inside, np.median(inside)) ** 2)
    weights = weights / np.mean(inside * variances)
    found = np.sum(weights * (np.mean(residual**2, axis=1) - noise)) - len(inside) / num_rows
    error = noise * np.sqrt(2.0 / COLUMNS * np.sum(weights**2))
    return float(np.clip(found, 0.0, 1.0)) * found**2 / (found**2 + error**2)


def _directions(residual: Array, noise: float, sketch: Sketch) -> tuple[Array, Array]:
    """Unit vectors (d, n) in u that stand out of the noise of products, and the curvature beside the blocks in each."""
    left, values, _ = np.linalg.svd(residual, full_matrices=False)
    edge = _STANDS_OUT * np.sqrt(noise) * (np.sqrt(len(residual)) + np.sqrt(COLUMNS))
    left = left[:, values > edge]
    along = left.T @ sketch.columns
    return left, np.sum((left.T @ residual) * along, axis=1) / np.sum(along**2, axis=1)


def _next(
    frame: Frame, here: _Wide, surrogate: WideSurrogate, sketch: Sketch, pieces: Sequence[Array]
) -> tuple[Frame, Array]:
    """The frame of the next stage, and the curvature of its scaled and turned latents: directions that stand out beside
    the blocks, and those of the first block in which the curvature is largest."""
    layout, inverse = frame.layout, frame.inverse
    residual = _residual(here, frame, surrogate.curvature.mean, sketch)
    left, strength = _directions(residual, here.blocks.curvature_std**2, sketch)
    new = frame.turned(layout.scattered(times(inverse, layout.gathered(left.T)))).T  # (d, n), of scaled latents
    curvature = inverse @ surrogate.curvature.mean @ inverse
    count = int(layout.real[0].sum())
    order, vectors = np.linalg.eigh(curvature[0, :count, :count])
    axes = np.zeros((count, len(residual)))
    axes[np.arange(count), layout.index[0, :count]] = 1.0
    typical = np.median(np.diagonal(curvature, axis1=1, axis2=2)[layout.real])
    old = frame.turned(vectors[:, np.argsort(-np.abs(order - typical))].T @ axes).T
    found = np.concatenate([new / np.linalg.norm(new, axis=0), old], axis=1)[:, :RANK]
    turned = Frame.of(frame.scales, np.linalg.qr(found)[0], pieces)
    added = turned.layout.gathered(turned.turned(new.T))
    total = frame.carried(curvature, turned) + np.einsum("n,nki,nkj->kij", np.maximum(strength, 0.0), added, added)
    return turned.evened(total), total
