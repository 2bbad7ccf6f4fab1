"""The coordinates in which the likelihood is measured, as one vector, and what the prior says of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.arguments import Arrays, Shapes
from dpppl.errors import UnsupportedModelError
from dpppl.initialization import initial_values
from dpppl.model import SplitModel
from dpppl.noise_aware.recipe import Prior
from dpppl.noise_aware.search import Search

_NUM_DRAWS = 10_000


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The vector (d,) of some sites' values, in the order of `shapes`: of latent sites unconstrained, of deterministic ones
    as they are. The likelihood depends on latents through these only.

    `moves`: the latents, not among them, in which the deterministic ones are affine and take any value, given all others."""

    split: SplitModel
    shapes: Shapes
    moves: tuple[str, ...]

    @classmethod
    def of(cls, split: SplitModel, public: Arrays | None = None, named: Sequence[str] | None = None) -> "Coordinates":
        """Those of a model, as found (see `Search`), or the sites `named`; looks at no private data.

        `public`: the Public arrays, zeros if not given. Raises ConfigurationError, naming the site, for sites named
        that cannot be coordinates."""
        search = Search(split, split.placeholder_public() if public is None else public)
        sites = search.best() if named is None else search.checked(named)
        return cls(split, {site: search.shapes[site] for site in sorted(sites)}, search.moved_by(sites))

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    @property
    def held(self) -> tuple[str, ...]:
        """The deterministic sites among them."""
        return tuple(site for site in self.shapes if site not in self.split.latents)

    @property
    def dimension(self) -> int:
        return sum(shape.size for shape in self.shapes.values())

    def names(self) -> list[str]:
        """Of the coordinates: site, with an index where it has several."""
        found = []
        for site, s in self.shapes.items():
            found += [f"{site}[{','.join(map(str, i))}]" if s.shape else site for i in np.ndindex(*s.shape)]
        return found

    def vector(self, z: Arrays, public: Arrays | None = None) -> jax.Array:
        """The coordinates (d,) of latents; Public arrays are needed where deterministic sites are among them."""
        values = z | {site: self.split.constrain(z, public or {})[site] for site in self.held}
        return jnp.concatenate([jnp.ravel(values[site]) for site in self.shapes])

    def latents(self, vector: Any) -> Arrays:
        """Latents with these coordinates, 0 where they do not enter, and values for the deterministic sites held: what
        `SplitModel.log_likelihood` takes."""
        z = {site: jnp.zeros(s.shape, s.dtype) for site, s in self.split.latents.items()}
        start = 0
        for site, s in self.shapes.items():
            z[site] = vector[start : start + s.size].reshape(s.shape).astype(s.dtype)
            start += s.size
        return z

    def draws(self, public: Arrays, key: Any) -> Arrays:
        """Latents drawn from the prior, 10,000 each."""
        draw = jax.jit(jax.vmap(lambda key: initial_values(self.split, public, key, "prior_sample")))
        found: Arrays = draw(jax.random.split(key, _NUM_DRAWS))
        return found

    def prior(self, public: Arrays, key: Any) -> tuple[Prior, bool]:
        """Mean and covariance, and whether the prior of all latents is normal and they are the coordinates.

        Exact where it is; else of draws. Raises UnsupportedModelError for improper priors."""
        draws = self.draws(public, key)
        points = np.asarray(jax.jit(jax.vmap(self.vector, (0, None)))(draws, public), np.float64)
        for site, values in draws.items():
            if np.any(np.ptp(np.asarray(values), axis=0) == 0.0):
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
