"""The posterior of a wide model given its releases, in blocks, and coordinates in which NUTS explores it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg

from dpppl.noise_aware.blocks import Frame
from dpppl.noise_aware.curvature import Array, block_draws, positive_part, times
from dpppl.noise_aware.recipe import gaussian_posterior
from dpppl.noise_aware.wide import Known, WidePrior, WideSurrogate

_NUM_CURVATURES, _AT_ONCE = 100, 64


class WideMixture(NamedTuple):
    """As `posterior.Mixture`: `means` (n, k, b) and `covariances` (n, k, b, b) of u in `frame`, where latents have
    `mean` (d,) at u = 0, and their prior `precision` (k, b, b)."""

    mean: Array
    frame: Frame
    precision: Array
    means: Array
    covariances: Array

    @classmethod
    def of(cls, surrogate: WideSurrogate, prior: WidePrior) -> "WideMixture":
        frame = surrogate.frame
        precision = frame.roots @ np.linalg.inv(prior.covariance(frame)) @ frame.roots
        beside = surrogate.beside_at(gaussian_posterior(surrogate, precision)[1])
        noise = np.eye(precision.shape[1]) * (surrogate.noise_variance + beside)[:, None, :]
        rng = np.random.default_rng(0)
        means, covariances = [], []
        for _ in range(_NUM_CURVATURES):
            h = block_draws(surrogate.curvature, frame.layout.real, rng)
            scores = surrogate.scores + surrogate.follows * (h - surrogate.curvature.mean)
            weighted = np.linalg.solve(positive_part(scores) + noise, h)
            covariance = np.linalg.inv(precision + h @ weighted)
            total = surrogate.gradient + times(h, surrogate.centre)
            means.append(times(covariance, times(weighted.swapaxes(1, 2), total)))
            covariances.append(surrogate.widened(covariance, precision))
        return cls(prior.mean, frame, precision, np.array(means), np.array(covariances))

    def spread(self) -> Array:
        """The covariance of u, in blocks."""
        away = (self.means - self.means.mean(axis=0)).transpose(1, 2, 0)
        return self.covariances.mean(axis=0) + away @ away.swapaxes(1, 2) / len(self.means)

    def moments(self) -> Known:
        """Mean and variances of the coordinates."""
        real = self.frame.layout.real
        spread = self.spread() * real[:, :, None] * real[:, None, :]
        return Known(self.mean + self.frame.latents(self.means.mean(axis=0)), self.frame.variances(spread))

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Independent draws (count, d)."""
        chosen = rng.integers(len(self.means), size=count)
        drawn = np.empty((count, len(self.mean)))
        for number in np.unique(chosen):
            own = np.flatnonzero(chosen == number)
            noise = rng.standard_normal((len(own), *self.means.shape[1:]))
            u = self.means[number] + times(np.linalg.cholesky(self.covariances[number]), noise)
            drawn[own] = self.mean + self.frame.latents(u)
        return drawn

    def linear(self) -> Callable[[Any], Any]:
        """The function of coordinates (d,) whose squares, halved, make this posterior of a normal prior."""
        frame, mean = self.frame, self.means.mean(axis=0)
        total = np.linalg.inv(self.spread())
        values, vectors = np.linalg.eigh(total - self.precision)
        roots = np.sqrt(np.maximum(values, 1e-6 * values.max()))
        slope = (vectors * roots[:, None, :]).swapaxes(1, 2)
        missing = times(vectors.swapaxes(1, 2), times(total, mean)) / roots
        arrays = (
            times(slope, mean) - missing,
            slope @ frame.inverse,
            self.mean + frame.latents(mean),
            frame.scales,
            frame.turn,
        )
        start, slopes, centre, scales, turn = (jnp.asarray(a, jnp.float32) for a in arrays)
        index = jnp.asarray(frame.layout.index)

        def residual(vector: Any) -> Any:
            moved = (vector - centre) / scales
            moved = jnp.append(moved - turn @ (turn.T @ moved), 0.0)[index]
            return (start + jnp.einsum("kij,kj->ki", slopes, moved)).ravel()

        return residual


def placed_by(mixture: WideMixture, points: Array, measured: Array) -> Callable[[Any], tuple[Any, Any]]:
    """A function of x (n,) that gives latents, and the log determinant of its derivatives but for a constant, where the
    latents that are `measured` (n,) are the coordinates: these white under the mixture, the others as in their prior."""
    frame, layout = mixture.frame, mixture.frame.layout
    middle, width = _prior_scales(points)
    arrays = frame.roots @ np.linalg.cholesky(mixture.spread()), mixture.moments().mean, frame.scales, frame.turn
    roots, mean, scales, turn = (jnp.asarray(a, jnp.float32) for a in arrays)
    index, place, where = jnp.asarray(layout.index), jnp.asarray(layout.place), np.flatnonzero(measured)

    def latents(x: Any) -> tuple[Any, Any]:
        t = jnp.einsum("kij,kj->ki", roots, jnp.append(x[where], 0.0)[index]).ravel()[place]
        return (middle + width * x).at[where].set(mean + scales * (t - turn @ (turn.T @ t))), 0.0

    return latents


def scaled(
    residual: Callable[[Any], Any], points: Array, measured: Array, moves: Array
) -> Callable[[Any], tuple[Any, Any]]:
    """As `posterior._white`, with a scale of its own for each latent, around latents that fit."""
    centre, scales = _prior_scales(points)
    mask = jnp.asarray(measured | moves, jnp.float32)

    def at(t: Any) -> Any:
        return residual(centre + scales * t)

    @jax.jit
    def fitted(t: Any) -> Any:
        value, forward = jax.linearize(at, t)
        backward = jax.linear_transpose(forward, t)
        normal = lambda s: s + mask * backward(forward(mask * s))[0]  # noqa: E731
        return t + mask * cg(normal, -mask * (backward(value)[0] + t), maxiter=300)[0]

    start = jnp.zeros_like(centre)
    for _ in range(3):
        start = fitted(start)
    forward = jax.linearize(at, start)[1]
    square = lambda i: jnp.sum(forward(jax.nn.one_hot(i, len(centre))) ** 2)  # noqa: E731
    squares = jax.jit(lambda: jax.lax.map(square, jnp.arange(len(centre)), batch_size=_AT_ONCE))()
    size = 1.0 / jnp.sqrt(1.0 + squares)
    return lambda x: (centre + scales * (start + size * x), 0.0)


def _prior_scales(points: Array) -> tuple[Any, Any]:
    """Medians and half widths (n,) of prior draws (m, n)."""
    middle, width = np.median(points, axis=0), np.subtract(*np.quantile(points, (0.84, 0.16), axis=0)) / 2.0
    return jnp.asarray(middle, jnp.float32), jnp.asarray(width, jnp.float32)
