"""Samples of the posterior: the exact prior times the surrogate of the likelihood."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS

from dpppl.noise_aware.coordinates import NUM_DRAWS, NUM_WIDE, Coordinates
from dpppl.noise_aware.curvature import Array, positive_part
from dpppl.noise_aware.recipe import Prior, Surrogate
from dpppl.noise_aware.wide import WidePrior, WideSurrogate
from dpppl.noise_aware.wide_posterior import WideMixture, placed_by, scaled

_NUM_WARMUP, _NUM_CURVATURES = 500, 300
_DIVERGING, _R_HAT = 0.02, 1.1


class Mixture(NamedTuple):
    """A posterior under a normal prior: normal given the curvature, which is drawn from what its release left open.

    `means` (k, d), `covariances` (k, d, d), of the latents; all weigh alike. Gradients near the posterior mean say next
    to nothing of the curvature, and weights by their evidence would prefer small ones, whose posteriors are wide."""

    means: Array
    covariances: Array

    @classmethod
    def of(cls, surrogate: Surrogate, prior: Prior) -> "Mixture":
        """A function of the releases alone: the draws of curvatures have a seed of their own."""
        metric = surrogate.metric
        precision = metric.T @ np.linalg.inv(prior.covariance) @ metric
        means, covariances = [], []
        for h in surrogate.curvature.draws(np.random.default_rng(0), _NUM_CURVATURES):
            scores = surrogate.scores + surrogate.follows * (h - surrogate.curvature.mean)
            weighted = np.linalg.solve(_plus(scores, surrogate.noise_variance), h)
            covariances.append(np.linalg.inv(precision + h @ weighted))
            means.append(covariances[-1] @ weighted.T @ (surrogate.gradient + h @ surrogate.centre))
        return cls(prior.mean + np.array(means) @ metric.T, metric @ np.array(covariances) @ metric.T)

    def moments(self) -> Prior:
        """Mean and covariance."""
        mean = self.means.mean(axis=0)
        between = (self.means - mean).T @ (self.means - mean) / len(self.means)
        return Prior(mean, self.covariances.mean(axis=0) + between)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Independent draws (count, d)."""
        chosen = rng.integers(len(self.means), size=count)
        roots = np.linalg.cholesky(self.covariances)
        return self.means[chosen] + np.einsum(
            "nij,nj->ni", roots[chosen], rng.standard_normal((count, self.means.shape[1]))
        )


def _plus(scores: Array, noise_variance: float) -> Array:
    """The variance of scores and of noise; positive definite."""
    total = scores + noise_variance * np.eye(len(scores))
    try:
        np.linalg.cholesky(total)
    except np.linalg.LinAlgError:
        return positive_part(scores) + noise_variance * np.eye(len(scores))
    return total


def draw(
    coordinates: Coordinates,
    mixture: Mixture | WideMixture,
    surrogate: Surrogate | WideSurrogate,
    prior: Prior | WidePrior,
    is_normal: bool,
    public: Any,
    key: Any,
    num_samples: int,
) -> tuple[dict[str, Array], str | None]:
    """Unconstrained latents by site, (num_samples, ...): independent draws where the prior is normal, else NUTS; and what
    is wrong with NUTS's draws, if anything."""
    if not is_normal:
        return _nuts(coordinates, mixture, surrogate, prior, public, key, num_samples)
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,), jnp.uint32)))
    points = jnp.asarray(mixture.draw(rng, num_samples), jnp.float32)
    return {site: np.asarray(value) for site, value in jax.vmap(coordinates.latents)(points).items()}, None


def _linear(surrogate: Surrogate, prior: Prior, found: Prior) -> Callable[[Any], Any]:
    """The function of coordinates (d,) whose squares, halved, are the surrogate of the likelihood. `found`: moments."""
    inverse = np.linalg.inv(surrogate.metric)
    spread = inverse @ (found.covariance + np.outer(*[found.mean - surrogate.point(prior.mean)] * 2)) @ inverse.T
    whitened = np.linalg.inv(np.linalg.cholesky(surrogate.noise(spread)))  # of the gradient's noise
    h = surrogate.curvature.mean
    offset = whitened @ (surrogate.gradient + h @ (surrogate.centre - inverse @ (found.mean - prior.mean)))
    slope = whitened @ h @ inverse
    arrays = [jnp.asarray(a, jnp.float32) for a in (found.mean, offset, slope)]
    return lambda vector: arrays[1] - arrays[2] @ (vector - arrays[0])


def _nuts(
    coordinates: Coordinates,
    mixture: Any,
    surrogate: Any,
    prior: Any,
    public: Any,
    key: Any,
    num_samples: int,
) -> tuple[dict[str, Array], str | None]:
    """NumPyro's NUTS over all latents of the model, with its exact prior; the surrogate is of their coordinates."""
    is_wide = isinstance(mixture, WideMixture)
    linear = mixture.linear() if is_wide else _linear(surrogate, prior, mixture.moments())
    prior_key, key = jax.random.split(key)
    draws = coordinates.draws(public, prior_key, NUM_WIDE if is_wide else NUM_DRAWS)
    unravel = ravel_pytree({site: values[0] for site, values in draws.items()})[1]
    points = np.asarray(jax.vmap(lambda z: ravel_pytree(z)[0])(draws), np.float64)

    def residual(latents: Any) -> Any:
        return linear(coordinates.vector(unravel(latents), public))

    def are_in(sites: tuple[str, ...]) -> Array:
        where = {site: jnp.full(s.shape, site in sites) for site, s in coordinates.split.latents.items()}
        return np.asarray(ravel_pytree(where)[0])

    measured, moves = are_in(coordinates.sites), are_in(coordinates.moves)
    if is_wide and not coordinates.held:
        place = placed_by(mixture, points, measured)
    else:
        place = (scaled if is_wide else _white)(residual, points, measured, moves)

    def potential(x: Any) -> Any:
        latents, log_det = place(x)
        return 0.5 * jnp.sum(residual(latents) ** 2) - coordinates.split.log_prior(unravel(latents), public) - log_det

    mcmc = MCMC(
        NUTS(potential_fn=potential, target_accept_prob=0.9), num_warmup=_NUM_WARMUP, num_samples=num_samples,
        progress_bar=False,
    )  # fmt: skip
    mcmc.run(key, init_params=jnp.zeros(points.shape[1]))
    placed = jax.jit(jax.vmap(lambda x: unravel(place(x)[0])))(mcmc.get_samples())
    samples = {site: np.asarray(value) for site, value in placed.items()}
    diverging = float(np.mean(np.asarray(mcmc.get_extra_fields()["diverging"])))
    with np.errstate(all="ignore"):
        r_hat = max(float(np.max(split_gelman_rubin(value[None]))) for value in samples.values())
    if diverging <= _DIVERGING and r_hat <= _R_HAT:
        return samples, None
    return samples, f"NUTS did not explore the posterior ({diverging:.0%} divergences, split R-hat {r_hat:.2f})"


def _white(residual: Any, points: Array, measured: Array, moves: Array) -> Callable[[Any], tuple[Any, Any]]:
    """A function of x (n,) that gives latents and the log determinant of their derivatives, and makes x nearly white under
    prior times exp(-|`residual`(latents)|^2 / 2). `points` (m, n): prior draws.

    The residual is affine in the latents that are `moves` (n,), given all others: these get the mean and covariance
    that they would have under a normal prior, given the others. The others get those of a linear residual around latents that
    fit, which need no search: `measured` (n,) are latents that are coordinates themselves."""
    middle, width = np.median(points, axis=0), np.subtract(*np.quantile(points, (0.84, 0.16), axis=0)) / 2.0
    prior = np.atleast_2d(np.cov(np.clip((points - middle) / width, -4.0, 4.0).T))  # of heavy tails, too
    precision, start, free = np.linalg.inv(prior), np.zeros(len(middle)), measured | moves
    centre, scales = jnp.asarray(middle, jnp.float32), jnp.asarray(width, jnp.float32)
    at = lambda t: residual(centre + scales * t)  # noqa: E731
    both = jax.jit(lambda t: (at(t), jax.jacobian(at)(t)))
    for _ in range(3):  # exact after two: first the latents that are measured, then those that move
        value, slope = (np.asarray(v, np.float64) for v in both(jnp.asarray(start, jnp.float32)))
        total = slope[:, free].T @ slope[:, free] + precision[np.ix_(free, free)]
        start[free] = np.linalg.solve(total, slope[:, free].T @ (slope[:, free] @ start[free] - value))
    covariance = np.linalg.inv(slope.T @ slope + precision)[np.ix_(~moves, ~moves)]
    given, own = np.flatnonzero(~moves), np.flatnonzero(moves)
    around, root = jnp.asarray(start[given], jnp.float32), jnp.asarray(np.linalg.cholesky(covariance), jnp.float32)
    prior_root = jnp.asarray(np.linalg.cholesky(np.linalg.inv(prior[np.ix_(moves, moves)])).T, jnp.float32)

    def place(x: Any) -> tuple[Any, Any]:
        t = jnp.zeros_like(x).at[given].set(around + root @ x[given])
        if not len(own):
            return centre + scales * t, 0.0
        along = lambda moved: at(t.at[own].set(moved))  # noqa: E731
        value, slope = along(t[own]), jax.jacfwd(along)(t[own])
        q, r = jnp.linalg.qr(jnp.concatenate([slope, prior_root]))
        moved = solve_triangular(r, x[own] - q[: len(value)].T @ value)
        return centre + scales * t.at[own].set(moved), -jnp.sum(jnp.log(jnp.abs(jnp.diag(r))))

    return place
