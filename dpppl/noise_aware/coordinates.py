"""The coordinates in which the likelihood is measured, as one vector, and what the prior says of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.errors import UnsupportedModelError
from dpppl.information_flow.executables import run_once
from dpppl.model.arguments import Arrays, Shapes
from dpppl.model.initialization import drawn_from_prior
from dpppl.model.split import SplitModel
from dpppl.noise_aware.blocks import RANK, homes
from dpppl.noise_aware.prior import Prior
from dpppl.noise_aware.search import Search

MOST_FULL = 200  # coordinates, of which the whole curvature is released
NUM_DRAWS, NUM_WIDE = 10_000, 2_000
_COMPARED, _NUMBERS = 16, 20_100  # of a curvature that is released
_TAIL = 6.0  # interquartile ranges: 8 sds of a normal law


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The vector (d,) through which alone the likelihood depends on latents: values of sites in the order of `shapes`, latent
    sites unconstrained, deterministic ones as they are.

    - **split** - the model.
    - **shapes** - shapes of the sites.
    - **moves** - latents, not among the sites, in which the deterministic sites are affine and take any value, given all others.
    """

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
    def through(self) -> tuple[str, ...]:
        """The latents that are known through coordinates only, and are not `moves`."""
        return tuple(site for site in self.split.latents if site not in (*self.shapes, *self.moves))

    @property
    def dimension(self) -> int:
        return sum(shape.size for shape in self.shapes.values())

    def names(self) -> list[str]:
        """Names of the coordinates: the site, with an index where it has several."""
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
        """Latents drawn from the prior, `NUM_DRAWS` each, of wide models `NUM_WIDE`."""
        count = NUM_DRAWS if self.dimension <= MOST_FULL else NUM_WIDE
        return drawn_from_prior(self.split, public, key, count)

    def prior(self, public: Arrays, key: Any) -> tuple[Prior, bool]:
        """The prior of the coordinates, and whether it is normal and they are all latents.

        Exact where it is, else of draws; of wide models it is normal only if the coordinates are independent under it.
        Raises UnsupportedModelError for improper priors."""
        is_full = self.dimension <= MOST_FULL
        points = self._prior_points(public, key)
        are_latents = set(self.sites) == set(self.split.latents)
        if is_full:
            mean, covariance = points.mean(axis=0), np.atleast_2d(np.cov(points.T))
            exact = self._normal(public, mean, points[:64]) if are_latents else None
            mean, covariance = (mean, covariance) if exact is None else exact
            scales = np.sqrt(np.diag(covariance))
            whole = [np.arange(self.dimension)]
            return Prior(mean, scales, whole, covariance / np.outer(scales, scales)), exact is not None
        pieces = homes([shape.size for shape in self.shapes.values()], max(RANK, 2 * _NUMBERS // self.dimension))
        if are_latents and (independent := self._independent(public, points[:_COMPARED])):
            return Prior(*independent, pieces), True
        mean, scales = points.mean(axis=0), points.std(axis=0)
        return Prior(mean, scales, pieces, draws=(points - mean) / scales), False

    def _prior_points(self, public: Arrays, key: Any) -> np.ndarray:
        """Coordinates (n, d) drawn from the prior, cut off where a heavy tail would decide the variance. Raises
        UnsupportedModelError for improper ones."""
        draws = self.draws(public, key)
        points = np.asarray(run_once(jax.vmap(self.vector, (0, None)), draws, public), np.float64)
        for site, values in draws.items():
            if np.any(np.ptp(np.asarray(values), axis=0) == 0.0):
                raise UnsupportedModelError(
                    f"site '{site}' has no proper prior, and NoiseAware starts from the prior: give it one, however wide."
                )
        low, middle, high = np.quantile(points, [0.25, 0.5, 0.75], axis=0)
        reach = np.where(high > low, _TAIL * (high - low), np.inf)
        return np.clip(points, middle - reach, middle + reach)

    def _independent(self, public: Arrays, points: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The exact means and sds of the coordinates if the prior is normal and they are independent: if each one's
        derivative follows its own value, at some draws."""
        mean = points.mean(axis=0)
        gradient = lambda x, public: jax.grad(lambda x: self.split.log_prior(self.latents(x), public))(x)  # noqa: E731
        at = np.array([mean, *points], np.float32)
        values = np.asarray(
            run_once(lambda at, public: lax.map(lambda x: gradient(x, public), at), at, public), np.float64
        )
        precision = -np.sum((values[1:] - values[0]) * (points - mean), axis=0) / np.sum((points - mean) ** 2, axis=0)
        if not np.all(precision > 0.0):
            return None
        residual = values[1:] - values[0] + precision * (points - mean)
        if not np.all(np.abs(residual) < 1e-3 * np.sqrt(precision)):
            return None
        return mean + values[0] / precision, precision**-0.5

    def _normal(self, public: Arrays, mean: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The prior's exact moments if it is normal, as compared at some of its draws, from estimates."""

        def told(start: Any, points: Any, public: Arrays) -> Any:
            log_prior = lambda x: self.split.log_prior(self.latents(x), public)  # noqa: E731
            found = jax.vmap(log_prior)(points) - log_prior(start)
            return jax.grad(log_prior)(start), jax.hessian(log_prior)(start), found

        with jax.enable_x64(True):
            arguments = np.asarray(mean, np.float32), np.asarray(points, np.float32), public
            gradient, hessian, found = (np.asarray(x, np.float64) for x in run_once(told, *arguments))
        away, precision = points - mean, -hessian
        expected = away @ gradient - 0.5 * np.einsum("ni,ij,nj->n", away, precision, away)
        if not np.allclose(found, expected, rtol=1e-3, atol=1e-3 * len(mean)):
            return None
        covariance = np.linalg.inv(precision)
        return mean + covariance @ gradient, (covariance + covariance.T) / 2
