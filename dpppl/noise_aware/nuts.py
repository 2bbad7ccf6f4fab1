"""NumPyro's NUTS over all latents of a model, under its exact prior and a surrogate of the likelihood."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS

from dpppl.noise_aware.coordinates import NUM_WIDE, Coordinates
from dpppl.noise_aware.curvature import Array
from dpppl.noise_aware.recipe import Prior, Surrogate
from dpppl.noise_aware.wide_posterior import WideMixture, placed_by, scaled

_NUM_WARMUP, _DIVERGING, _R_HAT = 500, 0.02, 1.1

Found = tuple[dict[str, Array], str | None]
"""Unconstrained latents by site, and what is wrong with them, if anything."""


def dense(sampler: "Sampler", surrogate: Surrogate, prior_mean: Array, found: Prior, public: Any, key: Any) -> Found:
    """With a full curvature; `found`: moments of the posterior under a normal prior."""
    inverse = np.linalg.inv(surrogate.metric)
    spread = inverse @ (found.covariance + np.outer(*[found.mean - surrogate.point(prior_mean)] * 2)) @ inverse.T
    whitened = np.linalg.inv(np.linalg.cholesky(surrogate.noise(spread)))  # of the gradient's noise
    h = surrogate.curvature.mean
    offset = whitened @ (surrogate.gradient + h @ (surrogate.centre - inverse @ (found.mean - prior_mean)))
    likelihood = tuple(jnp.asarray(a, jnp.float32) for a in (found.mean, offset, whitened @ h @ inverse))
    prior_key, key = jax.random.split(key)
    data = likelihood, public
    state = data, sampler.white(data, sampler.coordinates.draws(public, prior_key))
    sampler.mcmc.run(key, *state, init_params={"x": jnp.zeros(sampler.dimension)})
    return _checked(sampler.mcmc, sampler.placed(sampler.mcmc.get_samples()["x"], *state))


def wide(coordinates: Coordinates, mixture: WideMixture, public: Any, key: Any, num_samples: int) -> Found:
    """With a curvature in blocks."""
    linear, (prior_key, key) = mixture.linear(), jax.random.split(key)
    draws = coordinates.draws(public, prior_key, NUM_WIDE)
    unravel = ravel_pytree({site: values[0] for site, values in draws.items()})[1]
    points = np.asarray(jax.vmap(lambda z: ravel_pytree(z)[0])(draws), np.float64)
    measured, moves = (_are_in(coordinates, sites) for sites in (coordinates.sites, coordinates.moves))

    def residual(latents: Any) -> Any:
        return linear(coordinates.vector(unravel(latents), public))

    place = scaled(residual, points, measured, moves) if coordinates.held else placed_by(mixture, points, measured)

    def potential(x: Any) -> Any:
        latents, log_det = place(x)
        return 0.5 * jnp.sum(residual(latents) ** 2) - coordinates.split.log_prior(unravel(latents), public) - log_det

    mcmc = MCMC(
        NUTS(potential_fn=potential, target_accept_prob=0.9), num_warmup=_NUM_WARMUP, num_samples=num_samples,
        progress_bar=False,
    )  # fmt: skip
    mcmc.run(key, init_params=jnp.zeros(points.shape[1]))
    return _checked(mcmc, jax.jit(jax.vmap(lambda x: unravel(place(x)[0])))(mcmc.get_samples()))


def _checked(mcmc: MCMC, placed: Any) -> Found:
    samples = {site: np.asarray(value) for site, value in placed.items()}
    diverging = float(np.mean(np.asarray(mcmc.get_extra_fields()["diverging"])))
    with np.errstate(all="ignore"):
        r_hat = max(float(np.max(split_gelman_rubin(value[None]))) for value in samples.values())
    if diverging <= _DIVERGING and r_hat <= _R_HAT:
        return samples, None
    return samples, f"NUTS did not explore the posterior ({diverging:.0%} divergences, split R-hat {r_hat:.2f})"


def _are_in(coordinates: Coordinates, sites: tuple[str, ...]) -> Array:
    """Whether each latent (n,) belongs to one of the sites."""
    latents = coordinates.split.latents
    return np.asarray(ravel_pytree({n: jnp.full(s.shape, n in sites) for n, s in latents.items()})[0])


class Sampler:
    """NUTS over the latents of a model, as one vector, under its prior times exp(-|residual|^2 / 2); compiled once for all
    surrogates.

    Its `x` (n,) is nearly white: see `_place`."""

    def __init__(self, coordinates: Coordinates, num_samples: int) -> None:
        latents = coordinates.split.latents
        zeros, self._unravel = ravel_pytree({site: jnp.zeros(s.shape, s.dtype) for site, s in latents.items()})
        self.dimension, self.coordinates = len(zeros), coordinates
        self._moves = _are_in(coordinates, coordinates.moves)
        self._free = _are_in(coordinates, coordinates.sites) | self._moves
        self._own, self._given = np.flatnonzero(self._moves), np.flatnonzero(~self._moves)
        self._slopes = jax.jit(lambda t, frame, data: (lambda at: (at(t), jax.jacobian(at)(t)))(self._at(frame, data)))
        self.mcmc = MCMC(
            NUTS(self._model, target_accept_prob=0.9), num_warmup=_NUM_WARMUP, num_samples=num_samples,
            progress_bar=False, jit_model_args=True,
        )  # fmt: skip
        self.placed = jax.jit(jax.vmap(lambda x, data, frame: self._latents(x, data, frame)[0], (0, None, None)))

    def _model(self, data: Any, frame: Any) -> None:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (self.dimension,)))
        with numpyro.handlers.block():  # sites of the user's model
            latents, log_det, residual = self._latents(x, data, frame)
            log_prior = self.coordinates.split.log_prior(latents, data[1])
        numpyro.factor("log_density", log_prior + log_det - 0.5 * jnp.sum(residual**2))

    def _latents(self, x: Any, data: Any, frame: Any) -> tuple[Any, Any, Any]:
        """Latents, the log determinant of their derivatives, and their residual."""
        t, log_det = self._place(x, data, frame)
        return self._unravel(frame["centre"] + frame["scales"] * t), log_det, self._at(frame, data)(t)

    def _at(self, frame: Any, data: Any) -> Callable[[Any], Any]:
        """The residual of latents in units of their prior's spread."""
        (mean, offset, slope), public = data

        def residual(t: Any) -> Any:
            latents = self._unravel(frame["centre"] + frame["scales"] * t)
            return offset - slope @ (self.coordinates.vector(latents, public) - mean)

        return residual

    def white(self, data: Any, draws: Any) -> dict[str, Any]:
        """What `_place` needs; `draws`: from the prior, by site, (m, ...).

        Latents that are coordinates themselves or `moves` are placed where they fit, and the spread of all others is that of a
        linear residual around these, which needs no search."""
        points = np.asarray(jax.vmap(lambda z: ravel_pytree(z)[0])(draws), np.float64)
        middle, width = np.median(points, axis=0), np.subtract(*np.quantile(points, (0.84, 0.16), axis=0)) / 2.0
        covariance = np.atleast_2d(np.cov(np.clip((points - middle) / width, -4.0, 4.0).T))  # of heavy tails, too
        frame = {"centre": jnp.asarray(middle, jnp.float32), "scales": jnp.asarray(width, jnp.float32)}
        precision, start, free = np.linalg.inv(covariance), np.zeros(len(middle)), self._free
        for _ in range(3):  # exact after two: first the latents that are measured, then those that move
            found = self._slopes(jnp.asarray(start, jnp.float32), frame, data)
            value, slope = (np.asarray(v, np.float64) for v in found)
            total = slope[:, free].T @ slope[:, free] + precision[np.ix_(free, free)]
            start[free] = np.linalg.solve(total, slope[:, free].T @ (slope[:, free] @ start[free] - value))
        given, own = self._given, self._own
        root = np.linalg.cholesky(np.linalg.inv(slope.T @ slope + precision)[np.ix_(given, given)])
        prior_root = np.linalg.cholesky(np.linalg.inv(covariance[np.ix_(own, own)])).T
        arrays = {"around": start[given], "root": root, "prior_root": prior_root}
        return frame | {name: jnp.asarray(a, jnp.float32) for name, a in arrays.items()}

    def _place(self, x: Any, data: Any, frame: Any) -> tuple[Any, Any]:
        """Latents, in units of their prior's spread, and the log determinant of their derivatives by x.

        The residual is affine in the latents that are `moves`, given all others: these get the mean and covariance that they
        would have under a normal prior, given the others."""
        given, own, at = self._given, self._own, self._at(frame, data)
        t = jnp.zeros_like(x).at[given].set(frame["around"] + frame["root"] @ x[given])
        if not len(own):
            return t, 0.0
        along = lambda moved: at(t.at[own].set(moved))  # noqa: E731
        value, slope = along(t[own]), jax.jacfwd(along)(t[own])
        q, r = jnp.linalg.qr(jnp.concatenate([slope, frame["prior_root"]]))
        moved = solve_triangular(r, x[own] - q[: len(value)].T @ value)
        return t.at[own].set(moved), -jnp.sum(jnp.log(jnp.abs(jnp.diag(r))))
