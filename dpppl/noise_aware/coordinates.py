"""The latents that enter the likelihood as one vector, and what the prior says of them."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.arguments import Arrays
from dpppl.errors import UnsupportedModelError
from dpppl.initialization import initial_values
from dpppl.jaxprs import depends_on
from dpppl.model import SplitModel
from dpppl.noise_aware.recipe import Prior

_NUM_DRAWS = 10_000


@dataclass(frozen=True, eq=False)
class Coordinates:
    """`sites`: the latent sites that enter the likelihood, sorted; the vector is their unconstrained values in order."""

    split: SplitModel
    sites: tuple[str, ...]

    @classmethod
    def of(cls, split: SplitModel) -> "Coordinates":
        """Those of a model: abstract, looks at no data."""
        row = {name: jax.ShapeDtypeStruct(s.shape[1:], s.dtype) for name, s in split.arguments.shapes(1).items()}
        enters = depends_on(split.log_likelihood, split.latents, row, split.arguments.public)[0]
        return cls(split, tuple(sorted(site for site, used in enters.items() if used)))

    @property
    def dimension(self) -> int:
        return sum(int(np.prod(self.split.latents[site].shape)) for site in self.sites)

    def names(self) -> list[str]:
        """Of the coordinates: site, with an index where it has several."""
        found = []
        for site in self.sites:
            shape = self.split.latents[site].shape
            found += [f"{site}[{','.join(map(str, i))}]" if shape else site for i in np.ndindex(*shape)]
        return found

    def vector(self, z: Arrays) -> jax.Array:
        """The coordinates (d,) of latents."""
        return jnp.concatenate([jnp.ravel(z[site]) for site in self.sites])

    def latents(self, vector: Any) -> Arrays:
        """Latents with these coordinates; 0 where they do not enter."""
        z = {site: jnp.zeros(s.shape, s.dtype) for site, s in self.split.latents.items()}
        start = 0
        for site in self.sites:
            shape = self.split.latents[site].shape
            size = int(np.prod(shape))
            z[site] = vector[start : start + size].reshape(shape).astype(z[site].dtype)
            start += size
        return z

    def prior(self, public: Arrays, key: Any) -> tuple[Prior, bool]:
        """Mean and covariance, and whether the prior of all latents is normal and they all enter.

        Exact where it is; else of 10,000 draws. Raises UnsupportedModelError for improper priors."""
        draw = jax.jit(jax.vmap(lambda key: initial_values(self.split, public, key, "prior_sample")))
        draws = draw(jax.random.split(key, _NUM_DRAWS))
        points = np.asarray(jax.vmap(self.vector)(draws), np.float64)
        for site in self.sites:
            if np.any(np.ptp(np.asarray(draws[site]), axis=0) == 0.0):
                raise UnsupportedModelError(
                    f"site '{site}' has no proper prior, and NoiseAware starts from the prior: give it one, however wide."
                )
        prior = Prior(points.mean(axis=0), np.atleast_2d(np.cov(points.T)))
        if set(self.sites) != set(self.split.latents):
            return prior, False
        log_prior = jax.jit(lambda x: self.split.log_prior(self.latents(x), public))
        exact = self._normal(log_prior, prior, points[:64])
        return (prior, False) if exact is None else (exact, True)

    def _normal(self, log_prior: Any, prior: Prior, points: np.ndarray) -> Prior | None:
        """The prior's exact moments if it is normal, as compared at some of its draws."""
        with jax.enable_x64(True):
            mean = jnp.asarray(prior.mean, jnp.float32)
            gradient = np.asarray(jax.grad(log_prior)(mean), np.float64)
            precision = -np.asarray(jax.hessian(log_prior)(mean), np.float64)
        away = points - prior.mean
        expected = away @ gradient - 0.5 * np.einsum("ni,ij,nj->n", away, precision, away)
        found = np.asarray(jax.vmap(log_prior)(jnp.asarray(points, jnp.float32)) - log_prior(mean), np.float64)
        if not np.allclose(found, expected, rtol=1e-3, atol=1e-3 * len(mean)):
            return None
        covariance = np.linalg.inv(precision)
        return Prior(prior.mean + covariance @ gradient, (covariance + covariance.T) / 2)
