"""Samples of the posterior: the exact prior times the surrogate of the likelihood."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS

from dpppl.noise_aware.coordinates import Coordinates
from dpppl.noise_aware.curvature import Array, positive_part
from dpppl.noise_aware.recipe import Prior, Surrogate

_NUM_WARMUP, _NUM_CURVATURES = 500, 300
_DIVERGING, _R_HAT = 0.02, 1.1


class Mixture(NamedTuple):
    """A posterior under a normal prior: normal given the curvature, which is drawn from what its release left open.

    `weights` (k,), `means` (k, d), `covariances` (k, d, d), of the latents."""

    weights: Array
    means: Array
    covariances: Array

    @classmethod
    def of(cls, surrogate: Surrogate, prior: Prior) -> "Mixture":
        """A function of the releases alone: the draws of curvatures have a seed of their own."""
        metric, dimension = surrogate.metric, len(prior.mean)
        precision = metric.T @ np.linalg.inv(prior.covariance) @ metric
        inverse = np.linalg.inv(precision)
        log_weights, means, covariances = [], [], []
        for h in surrogate.curvature.draws(np.random.default_rng(0), _NUM_CURVATURES):
            scores = positive_part(surrogate.scores + surrogate.follows * (h - surrogate.curvature.mean))
            noise = scores + surrogate.noise_variance * np.eye(dimension)
            shifted = surrogate.gradient + h @ surrogate.centre  # normal around h u
            total = noise + h @ inverse @ h
            log_weights.append(-0.5 * shifted @ np.linalg.solve(total, shifted) - 0.5 * np.linalg.slogdet(total)[1])
            weighted = np.linalg.solve(noise, h)
            covariances.append(np.linalg.inv(precision + h @ weighted))
            means.append(covariances[-1] @ weighted.T @ shifted)
        return cls(
            _tempered(np.array(log_weights)),
            prior.mean + np.array(means) @ metric.T,
            metric @ np.array(covariances) @ metric.T,
        )

    def moments(self) -> Prior:
        """Mean and covariance."""
        mean = self.weights @ self.means
        between = (self.means - mean).T * self.weights @ (self.means - mean)
        return Prior(mean, np.tensordot(self.weights, self.covariances, axes=1) + between)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Independent draws (count, d)."""
        chosen = rng.choice(len(self.weights), size=count, p=self.weights)
        roots = np.linalg.cholesky(self.covariances)
        return self.means[chosen] + np.einsum(
            "nij,nj->ni", roots[chosen], rng.standard_normal((count, self.means.shape[1]))
        )


def _tempered(log_weights: Array) -> Array:
    """Weights whose effective number is at least a sixth of all: raised to the power that it takes."""
    power = 1.0
    while True:
        weights = np.exp(power * (log_weights - log_weights.max()))
        weights /= weights.sum()
        if 1.0 / (weights**2).sum() >= len(weights) / 6:
            return weights
        power /= 2.0


def draw(
    coordinates: Coordinates,
    surrogate: Surrogate,
    prior: Prior,
    is_normal: bool,
    public: Any,
    key: Any,
    num_samples: int,
) -> tuple[dict[str, Array], str | None]:
    """Unconstrained latents by site, (num_samples, ...): independent draws where the prior is normal, else NUTS; and what
    is wrong with NUTS's draws, if anything."""
    mixture = Mixture.of(surrogate, prior)
    if not is_normal:
        return _nuts(coordinates, surrogate, prior, mixture.moments(), public, key, num_samples)
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,), jnp.uint32)))
    points = jnp.asarray(mixture.draw(rng, num_samples), jnp.float32)
    return {site: np.asarray(value) for site, value in jax.vmap(coordinates.latents)(points).items()}, None


def _nuts(
    coordinates: Coordinates, surrogate: Surrogate, prior: Prior, found: Prior, public: Any, key: Any, num_samples: int
) -> tuple[dict[str, Array], str | None]:  # fmt: skip
    """NumPyro's NUTS over all latents of the model, with its exact prior; the surrogate is of their coordinates."""
    inverse = np.linalg.inv(surrogate.metric)
    spread = inverse @ (found.covariance + np.outer(*[found.mean - _point(surrogate, prior)] * 2)) @ inverse.T
    whitened = np.linalg.inv(np.linalg.cholesky(surrogate.noise(spread)))  # of the gradient's noise
    h = surrogate.curvature.mean
    offset = whitened @ (surrogate.gradient + h @ (surrogate.centre - inverse @ (found.mean - prior.mean)))
    slope = whitened @ h @ inverse
    prior_key, key = jax.random.split(key)
    draws = coordinates.draws(public, prior_key)
    unravel = ravel_pytree({site: values[0] for site, values in draws.items()})[1]
    points = np.asarray(jax.vmap(lambda z: ravel_pytree(z)[0])(draws), np.float64)
    vector = lambda x: coordinates.vector(unravel(x), public)  # noqa: E731
    moves = {site: jnp.full(s.shape, site in coordinates.movable) for site, s in coordinates.split.latents.items()}
    start, root = _white(points, vector, np.asarray(ravel_pytree(moves)[0]), found.mean, slope)
    arrays = [jnp.asarray(a, jnp.float32) for a in (start, root, found.mean, offset, slope)]

    def potential(x: Any) -> Any:
        x = arrays[0] + arrays[1] @ x
        residual = arrays[3] - arrays[4] @ (vector(x) - arrays[2])
        return 0.5 * jnp.sum(residual**2) - coordinates.split.log_prior(unravel(x), public)

    kernel = NUTS(potential_fn=potential, target_accept_prob=0.9, dense_mass=bool(coordinates.held))
    mcmc = MCMC(kernel, num_warmup=_NUM_WARMUP, num_samples=num_samples, progress_bar=False)
    mcmc.run(key, init_params=jnp.zeros(len(start)))
    found_latents = jax.vmap(lambda x: unravel(arrays[0] + arrays[1] @ x))(mcmc.get_samples())
    samples = {site: np.asarray(value) for site, value in found_latents.items()}
    diverging = float(np.mean(np.asarray(mcmc.get_extra_fields()["diverging"])))
    with np.errstate(all="ignore"):
        r_hat = max(float(np.max(split_gelman_rubin(value[None]))) for value in samples.values())
    if diverging <= _DIVERGING and r_hat <= _R_HAT:
        return samples, None
    return samples, f"NUTS did not explore the posterior ({diverging:.0%} divergences, split R-hat {r_hat:.2f})"


def _white(points: Array, vector: Any, moves: Array, target: Array, slope: Array) -> tuple[Array, Array]:
    """Latents (n,) near the median of the prior draws `points` at which `vector`, their coordinates, is `target`, by those
    latents that are `moves`; and a root (n, n) of what their covariance were, if prior and coordinates were linear there."""
    start, scales = np.median(points, axis=0), np.subtract(*np.quantile(points, (0.84, 0.16), axis=0)) / 2.0
    prior = np.cov(np.clip((points - start) / scales, -4.0, 4.0).T)  # of heavy tails, too
    linear = jax.jit(lambda x: (vector(x), jax.jacobian(vector)(x)))
    for _ in range(3):  # exact after two: first the latents that are coordinates, then what the others are affine in
        value, jacobian = (np.asarray(v, np.float64) for v in linear(jnp.asarray(start, jnp.float32)))
        jacobian = jacobian * scales
        start = start + scales * moves * np.linalg.lstsq(jacobian * moves, target - value, rcond=1e-6)[0]
    measured = slope @ jacobian
    covariance = np.linalg.inv(measured.T @ measured + np.linalg.inv(np.atleast_2d(prior)))
    return start, scales[:, None] * np.linalg.cholesky(covariance)


def _point(surrogate: Surrogate, prior: Prior) -> Array:
    return prior.mean + surrogate.metric @ surrogate.centre
