"""Samples of the posterior: the exact prior times the surrogate of the likelihood."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS

from dpppl.noise_aware.coordinates import Coordinates
from dpppl.noise_aware.curvature import Array, positive_part
from dpppl.noise_aware.recipe import Prior, Surrogate

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
    mixture: Mixture,
    surrogate: Surrogate,
    prior: Prior,
    is_normal: bool,
    public: Any,
    key: Any,
    num_samples: int,
) -> tuple[dict[str, Array], str | None]:
    """Unconstrained latents by site, (num_samples, ...): independent draws where the prior is normal, else NUTS; and what
    is wrong with NUTS's draws, if anything."""
    if not is_normal:
        return _nuts(coordinates, surrogate, prior, mixture.moments(), public, key, num_samples)
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,), jnp.uint32)))
    points = jnp.asarray(mixture.draw(rng, num_samples), jnp.float32)
    return {site: np.asarray(value) for site, value in jax.vmap(coordinates.latents)(points).items()}, None


def _nuts(
    coordinates: Coordinates, surrogate: Surrogate, prior: Prior, found: Prior, public: Any, key: Any, num_samples: int
) -> tuple[dict[str, Array], str | None]:  # fmt: skip
    """NumPyro's NUTS, in coordinates that are white under the approximation. `rest`: latents only the prior knows."""
    root = np.linalg.cholesky(found.covariance)
    inverse = np.linalg.inv(surrogate.metric)
    spread = inverse @ (found.covariance + np.outer(*[found.mean - _point(surrogate, prior)] * 2)) @ inverse.T
    whitened = np.linalg.inv(np.linalg.cholesky(surrogate.noise(spread)))  # of the gradient's noise
    h = surrogate.curvature.mean
    offset = whitened @ (surrogate.gradient + h @ (surrogate.centre - inverse @ (found.mean - prior.mean)))
    slope = whitened @ h @ inverse @ root
    arrays = [jnp.asarray(a, jnp.float32) for a in (found.mean, root, offset, slope)]
    rest = {site: s for site, s in coordinates.split.latents.items() if site not in coordinates.sites}

    def latents(x: Any) -> Any:
        return coordinates.latents(arrays[0] + arrays[1] @ x["white"]) | x["rest"]

    def potential(x: Any) -> Any:
        residual = arrays[2] - arrays[3] @ x["white"]
        return 0.5 * jnp.sum(residual**2) - coordinates.split.log_prior(latents(x), public)

    start = {"white": jnp.zeros(len(found.mean)), "rest": {n: jnp.zeros(s.shape, s.dtype) for n, s in rest.items()}}
    mcmc = MCMC(
        NUTS(potential_fn=potential, target_accept_prob=0.9), num_warmup=_NUM_WARMUP, num_samples=num_samples,
        progress_bar=False,
    )  # fmt: skip
    mcmc.run(key, init_params=start)
    samples = {site: np.asarray(value) for site, value in jax.vmap(latents)(mcmc.get_samples()).items()}
    diverging = float(np.mean(np.asarray(mcmc.get_extra_fields()["diverging"])))
    with np.errstate(all="ignore"):
        r_hat = max(float(np.max(split_gelman_rubin(value[None]))) for value in samples.values())
    if diverging <= _DIVERGING and r_hat <= _R_HAT:
        return samples, None
    return samples, f"NUTS did not explore the posterior ({diverging:.0%} divergences, split R-hat {r_hat:.2f})"


def _point(surrogate: Surrogate, prior: Prior) -> Array:
    return prior.mean + surrogate.metric @ surrogate.centre
