"""Posterior draws of the eigenvalues and eigenvectors of a curvature given its noisy release.

A release M = H + E has noise E that is invariant under rotations (sd s on the diagonal, s / sqrt 2 off it), so p(M | H) is
proportional to exp(-|M - H|^2 / 2 s^2) whatever the axes. H = U diag(lambda) U' gets a prior of the same kind: U uniform
over the orthogonal matrices, log lambda normal with unknown mean and variance, but for a small share that may be anything,
as where columns add up to the same. Gibbs sampling as in Hoff (2009): pairs of eigenvectors are rotated, then the mean and
variance of log eigenvalues drawn, then these; rotations and eigenvalues by slices, which need no step size and reject
nothing. It knows M by its eigenvalues alone, so that draws are equivariant under rotations of M.
"""

from typing import NamedTuple

import numpy as np

from dpppl.row_statistics.matrices import Array, eigh

_SHAPE, _SCALE = 1.5, 3.0  # of the inverse gamma prior of the variance of log eigenvalues
_APART = 0.02  # the share of them that follows no normal law
_ROUNDS = 64  # of disjoint pairs, at most, between draws of eigenvalues
_BURN_IN, _THIN = 40, 2  # draws of eigenvalues before the first one that is kept, and from one to the next


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
