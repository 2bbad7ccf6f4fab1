"""Posterior draws of a curvature given its noisy releases, and the variance of scores that goes with each.

A release M = H + E has noise E that is invariant under rotations (sd s on the diagonal, s / sqrt 2 off it), so p(M | H) is
proportional to exp(-|M - H|^2 / 2 s^2) whatever the axes. H = U diag(lambda) U' gets a prior of the same kind: U uniform
over the orthogonal matrices, log lambda normal with unknown mean and variance, but for a small share that may be anything,
as where columns add up to the same. Gibbs sampling as in Hoff (2009): pairs of eigenvectors are rotated, then the mean and
variance of log eigenvalues drawn, then these; rotations and eigenvalues by slices, which need no step size and reject
nothing. It knows M by its eigenvalues alone, so that draws are equivariant under rotations of M.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from dpppl.types import Foreign, Tree

Array = np.ndarray
_SHAPE, _SCALE = 1.5, 3.0  # of the inverse gamma prior of the variance of log eigenvalues
_APART = 0.02  # the share of them that follows no normal law
_ROUNDS = 64  # of disjoint pairs, at most, between draws of eigenvalues
_BURN_IN, _THIN = 40, 2  # draws of eigenvalues before the first one that is kept, and from one to the next
EVENING = 0.25
"""The power of the curvature in the metric; one half undoes it all, and is unstable."""
_SMALLEST, _RELATIVE_SPREAD = 0.02, 0.3
_SPREAD_ALONG, _GRID = 0.6, 200


@cache
def _libraries() -> Foreign:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def eigh(matrices: Array) -> tuple[Array, Array]:
    """Return `np.linalg.eigh` of matrices (..., n, n), by one thread: for n = 26 those of OpenBLAS take sixty times as long."""
    with _libraries().limit(limits=1, user_api="blas"):
        values, vectors = np.linalg.eigh(matrices)
    return values, vectors


def eigen_draws(
    noisy: Array, std: float, real: Array, reference: Array, smallest: float, count: int
) -> tuple[Array, Array]:
    """Eigenvalues (count, k, b) and eigenvectors (count, k, b, b), in columns, of curvatures at least `smallest`, given `noisy`
    (k, b, b) with noise of sd `std` on the diagonal; eigenvalues are 0 in padding, where `real` is not.

    - **reference** - symmetric matrices (k, b, b), equivariant under rotations as `noisy` is, which decide the signs of its
      eigenvectors: else these would differ from machine to machine."""
    width = real.shape[1]
    beyond = 1.0 + 4.0 * width * np.abs(noisy).max()  # padding comes first
    both = real[:, :, None] & real[:, None, :]
    values, vectors = eigh(np.where(both, (noisy + noisy.swapaxes(1, 2)) / 2.0, -beyond * np.eye(width)))
    sides = np.sum(vectors[:, :, :-1] * (reference @ vectors[:, :, 1:]), axis=1)
    vectors[:, :, 1:] *= np.cumprod(np.where(sides < 0.0, -1.0, 1.0), axis=1)[:, None, :]
    exists = np.arange(width) >= width - real.sum(axis=1, keepdims=True)
    values = np.where(exists, values, 0.0)
    if width % 2:
        values, exists = (np.pad(a, ((0, 0), (0, 1))) for a in (values, exists))
    low, high = np.log(smallest), np.log(max(values.max(), 10.0 * smallest) + 6.0 * std)
    rng, width = np.random.default_rng(0), values.shape[1]
    logs = np.log(np.clip(values, np.exp(low), np.exp(high)))
    rows = np.tile(np.eye(width), (len(values), 1, 1))  # eigenvectors, by those of the release
    law = _Law(logs[exists].mean(), 1.0, low, high)
    drawn = np.empty((count, *values.shape)), np.empty((count, *rows.shape))
    half = width // 2  # a round robin: after b - 1 steps each pair has met once
    order = np.r_[0, half, 1 : half - 1, half + 1 : 2 * half, half - 1] if half > 1 else np.arange(2)
    for step in range(_BURN_IN + _THIN * count):
        for _ in range(min(_ROUNDS, width - 1)):
            rows = _rotated(rows, np.exp(logs), exists, values, std, rng)
            rows, logs, exists = (a[:, order] for a in (rows, logs, exists))
        law = law.given(logs[exists], rng)
        # Uniform where both the likelihood and the prior exceed uniform shares of their present values.
        centres = np.einsum("kib,kib,kb->ki", rows, rows, values)
        around = np.sqrt(((np.exp(logs) - centres) / std) ** 2 + 2.0 * rng.standard_exponential(logs.shape)) * std
        reach, limits = law.reach(logs, rng), np.exp([low, high])
        least = np.maximum(np.log(np.clip(centres - around, *limits)), law.mean - reach)
        most = np.minimum(np.log(np.clip(centres + around, *limits)), law.mean + reach)
        logs = np.clip(least + rng.random(logs.shape) * (most - least), low, high)
        number, is_drawn = divmod(step - _BURN_IN + 1, _THIN)
        if step >= _BURN_IN and not is_drawn:
            drawn[0][number - 1] = np.exp(logs) * exists
            drawn[1][number - 1] = rows
    return drawn[0], vectors @ drawn[1].swapaxes(2, 3)[:, :, : vectors.shape[1]]


def _rotated(rows: Array, scales: Array, exists: Array, values: Array, std: float, rng: np.random.Generator) -> Array:
    """Pairs of eigenvectors, the rows i and i + b / 2, rotated in their planes by angles phi of density
    exp(kappa cos(2 phi - base)): uniform on the arc around base where that exceeds a uniform share of its present value."""
    half = rows.shape[1] // 2
    a, b = rows[:, :half], rows[:, half:]
    weighted = a * values[:, None, :]
    across = np.einsum("kib,kib->ki", weighted, b)
    differ = (np.einsum("kib,kib->ki", weighted, a) - np.einsum("kib,kib,kb->ki", b, b, values)) / 2.0
    away = scales[:, :half] - scales[:, half:]
    kappa = np.maximum(np.abs(away / std) * np.hypot(differ / std, across / std), 1e-300)
    base = np.arctan2(np.sign(away) * across, np.sign(away) * differ)
    level = np.sin(base / 2.0) ** 2 + np.minimum(rng.standard_exponential(base.shape) / kappa, 2.0) / 2.0
    arc = 2.0 * np.arcsin(np.sqrt(np.minimum(level, 1.0)))
    phi = (base + arc * rng.uniform(-1.0, 1.0, base.shape)) / 2.0 * (exists[:, :half] & exists[:, half:])
    cos, sin = np.cos(phi)[:, :, None], np.sin(phi)[:, :, None]
    return np.concatenate([cos * a + sin * b, cos * b - sin * a], axis=1)


class _Law(NamedTuple):
    """Of log eigenvalues: normal, but for a small share that is uniform from `low` to `high`."""

    mean: float
    sd: float
    low: float
    high: float

    def density(self, logs: Array) -> tuple[Array, float]:
        """The values for the normal part and for the uniform part."""
        scale = (1.0 - _APART) / (np.sqrt(2.0 * np.pi) * self.sd)
        return scale * np.exp(-0.5 * ((logs - self.mean) / self.sd) ** 2), _APART / (self.high - self.low)

    def given(self, logs: Array, rng: np.random.Generator) -> "_Law":
        """Drawn given all of them: the mean flat, the variance inverse gamma a priori."""
        normal, uniform = self.density(logs)
        is_apart = rng.random(logs.shape) * (normal + uniform) < uniform
        own = logs[~is_apart]
        if not len(own):
            return self
        sd = np.sqrt((_SCALE + np.sum((own - own.mean()) ** 2) / 2.0) / rng.gamma(_SHAPE + (len(own) - 1) / 2.0))
        return self._replace(mean=own.mean() + sd / np.sqrt(len(own)) * rng.standard_normal(), sd=sd)

    def reach(self, logs: Array, rng: np.random.Generator) -> Array:
        """How far from the mean the density exceeds a uniform share of that at `logs`."""
        normal, uniform = self.density(logs)
        level = (rng.random(logs.shape) * (normal + uniform) - uniform) / self.density(np.asarray(self.mean))[0]
        return self.sd * np.sqrt(-2.0 * np.log(np.clip(level, 1e-300, 1.0))) + np.where(level > 0.0, 0.0, np.inf)


class Curvature(NamedTuple):
    """Positive definite draws of a curvature, equally weighted. Padding is 0.

    - **values**, **vectors** - eigenvalues (n, ..., d), and eigenvectors (n, ..., d, d), in columns.
    - **ratio** - (..., d, d), or (n, ..., d, d): the variance of scores in units of the curvature."""

    values: Array
    vectors: Array
    ratio: Array

    @property
    def matrices(self) -> Array:
        return self._powers(1.0)

    @property
    def mean(self) -> Array:
        return self.matrices.mean(axis=0)

    @property
    def scores(self) -> Array:
        """The variance of the sum of scores that goes with each draw, (n, ..., d, d)."""
        roots = self._powers(0.5)
        return roots @ self.ratio @ roots

    def _powers(self, exponent: float) -> Array:
        return (self.vectors * self.values[..., None, :] ** exponent) @ self.vectors.swapaxes(-1, -2)

    def averaged(self, redrawn: float, count: int, added: float = 0.0) -> "Curvature":
        """With the variance of the mean of `count` gradients in place of that of each: all have the same rows, and draws of their
        own, which make the share `redrawn` of the variance that the model gives scores, or add its multiple `added`."""
        scores, mean = (np.trace(x, axis1=-2, axis2=-1).sum() for x in (self.scores.mean(axis=0), self.mean))
        by = 1.0 - redrawn * (1.0 - 1.0 / count) + added / count
        return self._replace(ratio=self.ratio * (1.0 + (by - 1.0) * float(mean / max(scores, mean))))

    def as_model(self) -> "Curvature":
        """With the curvature as the variance of scores, which a model without misspecification bounds it by."""
        return self._replace(ratio=np.eye(self.vectors.shape[-2]))

    def thinned(self, count: int) -> "Curvature":
        """About this number of the draws."""
        step = max(1, len(self.values) // count)
        ratio = self.ratio[::step] if self.ratio.ndim > self.values.ndim else self.ratio
        return self._replace(values=self.values[::step], vectors=self.vectors[::step], ratio=ratio)

    def error(self, spread: Array) -> Array:
        """The covariance (..., d, d) of (h - mean) delta, for E[delta delta'] = spread."""
        off = self.matrices - self.mean
        return np.mean(off @ spread @ off, axis=0)


def drawn(
    noisy: Array, std: float, scores: Array, scores_std: float, real: Array, covariance: Array, count: int, most: float = 1.0,
    along: Array | None = None,
) -> Curvature:  # fmt: skip
    """Draws of diagonal blocks (k, b, b) of a curvature, given noisy releases under a prior of this `covariance`.

    - **noisy**, **std** - curvature plus noise, (k, b, b), of this sd on the diagonal, and std / sqrt 2 off it.
    - **scores**, **scores_std** - variance of the scores with noise, and the sd of that noise.
    - **real** - (k, b), where there is no padding.
    - **most**, **along** - see `_ratio`, and `_drawn_along`."""
    smallest = _SMALLEST * min(1.0 / np.linalg.eigvalsh(covariance).max(), std)
    values, vectors = eigen_draws(noisy, std, real, scores, smallest, count)
    if along is not None:
        values, vectors = _drawn_along(along, values, vectors, noisy, std)
    mean = ((vectors * values[:, :, None, :]) @ vectors.swapaxes(2, 3)).mean(axis=0)
    return Curvature(values, vectors, _ratio(scores, scores_std, mean, most, count))


def _drawn_along(along: Array, values: Array, vectors: Array, noisy: Array, std: float) -> tuple[Array, Array]:
    """The draws, (n, 1, b) and (n, 1, b, b), whose curvature along the unit vector `along` (b,) is drawn anew: from its release,
    and a lognormal prior around the mean over all directions, which is what coordinates are made for (`Frame.evened_along`).

    Along the way from the prior mean a regression has another curvature than across it, which a prior that knows no directions
    would not allow."""
    matrices = (vectors[:, 0] * values[:, 0, None, :]) @ vectors[:, 0].swapaxes(1, 2)
    # from eigenvalues: along @ matrices @ along may be rounded to 0
    typical, present = values[:, 0].mean(axis=1), np.sum(values[:, 0] * (along @ vectors[:, 0]) ** 2, axis=1)
    away = np.linspace(-4.0, 4.0, _GRID)
    grid = typical[:, None] * np.exp(_SPREAD_ALONG * away)
    logs = -0.5 * (away**2 + ((grid - along @ noisy[0] @ along) / std) ** 2)
    shares = np.cumsum(np.exp(logs - logs.max(axis=1, keepdims=True)), axis=1)
    level = shares[:, -1:] * np.random.default_rng(1).random((len(grid), 1))
    chosen = np.take_along_axis(grid, np.argmax(shares >= level, axis=1)[:, None], axis=1)[:, 0]
    stretch = np.eye(len(along)) + (np.sqrt(chosen / present) - 1.0)[:, None, None] * np.outer(along, along)
    values, vectors = eigh(stretch @ matrices @ stretch)
    return np.maximum(values, values[:, -1:] * 1e-12)[:, None], vectors[:, None]


def _ratio(noisy: Array, std: float, curvature: Array, most: float = 1.0, count: int = 0) -> Array:
    """The variance of scores J in units of the curvature A: C in J = A^(1/2) C A^(1/2), given `noisy` = J + noise.

    J is much like a multiple of A, of at most `most`: 1, or the rows of a unit, which may be correlated. So C starts from one,
    with entries of a relative spread of 0.3, and moves to what was released as far as its noise allows. Where `most` is infinite,
    for a sandwich, the spread is 1, and `count` draws (count, ...) hold what the noise of J leaves open."""
    size, error = np.sum(curvature**2), std**2
    # 1, which is safe, where noise drowns it
    multiple = (dispersion(noisy, std, curvature)[0] + error / size) / (1.0 + error / size)
    multiple = float(np.clip(multiple + np.sqrt(error / (size + error)), 0.05, most))
    values, vectors = eigh(curvature)
    roots = np.sqrt(np.maximum(values, 1e-30))
    scales, identity = roots[..., :, None] * roots[..., None, :], np.eye(values.shape[-1])
    is_open = np.isinf(most)
    prior = ((1.0 if is_open else _RELATIVE_SPREAD) * multiple * scales) ** 2
    noise = error * np.where(identity > 0, 1.0, 0.5)
    gain = prior / (prior + noise)
    released = vectors.swapaxes(-1, -2) @ noisy @ vectors / scales
    found = multiple * identity + gain * (released - multiple * identity)
    if is_open and count:
        drawn = np.random.default_rng(2).standard_normal((count, *found.shape)) * np.sqrt(gain * noise) / scales
        upper = np.triu(drawn)
        found = found + upper + np.triu(upper, 1).swapaxes(-1, -2)
    return positive_part(vectors @ found @ vectors.swapaxes(-1, -2))


def dispersion(noisy: Array, std: float, curvature: Array) -> tuple[float, float]:
    """By what the curvature is multiplied to be nearest to the variance of scores, given `noisy`, and the sd of that by noise."""
    size = np.sum(curvature**2)
    return float(np.sum(noisy * curvature) / size), float(std / np.sqrt(size))


def from_vector(vector: Array, dimension: int) -> Array:
    """The symmetric matrices (..., d, d) whose isometric coordinates (upper triangles, off-diagonal entries times sqrt 2) the
    vectors (..., n) are.

    >>> from_vector(np.array([1.0, np.sqrt(2.0), 3.0]), 2).tolist()
    [[1.0, 1.0], [1.0, 3.0]]
    """
    matrix = np.zeros((*vector.shape[:-1], dimension, dimension))
    upper = np.triu_indices(dimension)
    matrix[..., upper[0], upper[1]] = vector / np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
    return matrix + np.triu(matrix, 1).swapaxes(-1, -2)


def symmetric_root(matrix: Array) -> Array:
    """The symmetric R with R R the positive part of a symmetric matrix; of a batch (..., d, d), too."""
    values, vectors = eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ vectors.swapaxes(-1, -2)


def positive_part(matrix: Array) -> Array:
    """The nearest positive semidefinite matrix; of a batch (..., d, d), too."""
    values, vectors = eigh((matrix + matrix.swapaxes(-1, -2)) / 2)
    return (vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2)


def times(matrix: Tree, vector: Tree) -> Tree:
    """Matrices (..., d, d) times vectors (..., d)."""
    return (matrix @ vector[..., None])[..., 0]
