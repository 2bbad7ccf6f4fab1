"""The sites that the likelihood is measured in, as one vector, and their prior.

The likelihood of mu, tau and z in `effects = mu + tau * z` is far from quadratic, and nearly so in the effects. A run
therefore measures it in deterministic sites where these replace latents, all found from abstract traces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.errors import UnsupportedModelError
from dpppl.information_flow.executables import run_once
from dpppl.likelihood.search import CoordinateSearch
from dpppl.model.arguments import Arrays, Shapes
from dpppl.model.initialization import drawn_from_prior
from dpppl.model.split import SplitModel
from dpppl.row_statistics.basis import RANK, Basis, coordinate_blocks
from dpppl.row_statistics.matrices import Array, eigh
from dpppl.types import Tree
from dpppl.validation import element_name

_MOST_KNOWN_DIRECTIONS = RANK // 2
MOST_FULL = 200  # coordinates, of which the whole curvature is released
PRIOR_DRAWS, WIDE_PRIOR_DRAWS = 10_000, 2_000
_COMPARED_DRAWS, _NUMBERS = 16, 20_100  # of a curvature that is released
_LONGEST_TAIL = 6.0  # interquartile ranges: 8 sds of a normal law


class Prior(NamedTuple):
    """The prior of the coordinates, unconstrained.

    - **mean**, **scales** - means and standard deviations (d,).
    - **pieces** - the coordinates of each block.
    - **correlation**, **draws** - (d, d); where it is None, standardised draws (n, d), or None, too: independent coordinates.
    - **normal** - numbers of the coordinates whose own prior is normal; None for wide models."""

    mean: Array
    scales: Array
    pieces: Sequence[Array]
    correlation: Array | None = None
    draws: Array | None = None
    normal: Array | None = None

    @property
    def variance(self) -> Array:
        return self.scales**2

    @property
    def is_full(self) -> bool:
        return len(self.pieces) == 1

    @property
    def released_part(self) -> str:
        """Which part of a curvature is released."""
        return "full" if self.is_full else f"blocks of at most {max(map(len, self.pieces))} coordinates"

    def first(self) -> Basis:
        """A basis in which the prior is white in each block; of several, the first are directions that the prior knows of."""
        directions = np.zeros((len(self.mean), 0))
        if self.draws is not None and not self.is_full:
            count, dimension = self.draws.shape
            values, vectors = eigh(self.draws @ self.draws.T / count)
            chosen = np.flatnonzero(values > 1.5 * (1.0 + np.sqrt(dimension / count)) ** 2)[-_MOST_KNOWN_DIRECTIONS:]
            directions = np.linalg.qr(self.draws.T @ vectors[:, chosen])[0]
        basis = Basis.of(self.scales, directions, self.pieces)
        return basis.whitened(np.zeros_like(basis.roots), self.covariance(basis))

    def covariance(self, basis: Basis) -> Array:
        """Blocks, of scaled and reflected latents; 1 in padding."""
        if self.correlation is not None:
            return self.correlation[None]
        if self.draws is None:
            return np.tile(np.eye(basis.roots.shape[1]), (len(basis.roots), 1, 1))
        inside = basis.layout.gathered(basis.reflected(self.draws)).transpose(1, 2, 0)
        return basis.layout.padded(inside @ inside.swapaxes(1, 2) / len(self.draws))


class Known(NamedTuple):
    """A normal approximation.

    - **mean**, **variance** - of each coordinate, (d,)."""

    mean: Array
    variance: Array


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The vector (d,) through which alone the likelihood depends on latents: values of sites in the order of `shapes`, latent
    sites unconstrained, deterministic ones as they are.

    - **split**, **shapes** - the model, and shapes of the sites.
    - **moves** - latents, not among the sites, in which the deterministic sites are affine and take any value, given all
    others."""

    split: SplitModel
    shapes: Shapes
    moves: tuple[str, ...]

    @classmethod
    def of(cls, split: SplitModel, public: Arrays | None = None, named: Sequence[str] | None = None) -> "Coordinates":
        """Those of a model, found by `CoordinateSearch`, or the sites `named`. Looks at no private data. Without `public` Public
        arrays are zeros. Raises ConfigurationError, naming the site, for sites named that cannot be coordinates."""
        search = CoordinateSearch(split, split.placeholder_public() if public is None else public)
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
        return list(self.site_of)

    @property
    def site_of(self) -> dict[str, str]:
        """The site of each coordinate, by its name."""
        return {element_name(site, index): site for site, s in self.shapes.items() for index in np.ndindex(*s.shape)}

    def vector(self, z: Arrays, public: Arrays | None = None) -> jax.Array:
        """The coordinates (d,) of latents; Public arrays are needed where deterministic sites are among them."""
        values = z | {site: self.split.constrain(z, public or {})[site] for site in self.held}
        return jnp.concatenate([jnp.ravel(values[site]) for site in self.shapes])

    def latents(self, vector: jax.Array) -> Arrays:
        """Latents with these coordinates, 0 where they do not enter, and values for the deterministic sites held."""
        z = {site: jnp.zeros(s.shape, s.dtype) for site, s in self.split.latents.items()}
        start = 0
        for site, s in self.shapes.items():
            z[site] = vector[start : start + s.size].reshape(s.shape).astype(s.dtype)
            start += s.size
        return z

    def log_prior(self, vector: jax.Array, public: Arrays) -> Tree:
        """The log prior density of latents with these coordinates."""
        return self.split.log_prior(self.latents(vector), public)

    def draws(self, public: Arrays, key: jax.Array) -> Arrays:
        """Latents drawn from the prior, `PRIOR_DRAWS` each, of wide models `WIDE_PRIOR_DRAWS`."""
        count = PRIOR_DRAWS if self.dimension <= MOST_FULL else WIDE_PRIOR_DRAWS
        return drawn_from_prior(self.split, public, key, count)

    def prior(self, public: Arrays, key: jax.Array) -> tuple[Prior, bool]:
        """The prior of the coordinates, and whether it is normal and they are all latents: exact where it is, else of draws, cut
        off where a heavy tail would decide the variance. Of wide models it is normal only if the coordinates are independent
        under it. Raises UnsupportedModelError for improper priors."""
        draws = self.draws(public, key)
        points = np.asarray(run_once(jax.vmap(self.vector, (0, None)), draws, public), np.float64)
        slope, some = jax.vmap(jax.grad(self.split.log_prior), (0, None)), jax.tree.map(lambda x: x[:64], draws)
        slopes = run_once(slope, some, public)
        for site, values in draws.items():
            # A density may be left out, too (`handlers.mask(mask=False)`).
            stays, is_flat = np.ptp(np.asarray(values), axis=0) == 0.0, np.all(np.asarray(slopes[site]) == 0.0, axis=0)
            if np.any(stays | is_flat):
                raise UnsupportedModelError(
                    f"site '{site}' has no proper prior, and NoiseAware starts from the prior: give it one, however wide."
                )
        low, middle, high = np.quantile(points, [0.25, 0.5, 0.75], axis=0)
        reach = np.where(high > low, _LONGEST_TAIL * (high - low), np.inf)
        points = np.clip(points, middle - reach, middle + reach)
        are_latents = set(self.sites) == set(self.split.latents)
        if self.dimension <= MOST_FULL:
            mean, covariance = points.mean(axis=0), np.atleast_2d(np.cov(points.T))
            exact = self._normal(public, mean, points[:64]) if are_latents else None
            mean, covariance = (mean, covariance) if exact is None else exact
            scales = np.sqrt(np.diag(covariance))
            whole = [np.arange(self.dimension)]
            normal = whole[0][_are_normal(points)] if exact is None else whole[0]
            return Prior(mean, scales, whole, covariance / np.outer(scales, scales), normal=normal), exact is not None
        pieces = coordinate_blocks([s.size for s in self.shapes.values()], max(RANK, 2 * _NUMBERS // self.dimension))
        if are_latents and (independent := self._independent(public, points[:_COMPARED_DRAWS])):
            return Prior(*independent, pieces), True
        mean, scales = points.mean(axis=0), points.std(axis=0)
        return Prior(mean, scales, pieces, draws=(points - mean) / scales), False

    def _independent(self, public: Arrays, points: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The exact means and sds if coordinates are independent and normal: each slope follows its own value, at some draws."""
        mean = points.mean(axis=0)
        gradient = jax.grad(self.log_prior)
        at = np.array([mean, *points], np.float32)
        each = lambda at, public: lax.map(lambda x: gradient(x, public), at)  # noqa: E731
        values = np.asarray(run_once(each, at, public), np.float64)
        precision = -np.sum((values[1:] - values[0]) * (points - mean), axis=0) / np.sum((points - mean) ** 2, axis=0)
        if not np.all(precision > 0.0):
            return None
        residual = values[1:] - values[0] + precision * (points - mean)
        if not np.all(np.abs(residual) < 1e-3 * np.sqrt(precision)):
            return None
        return mean + values[0] / precision, precision**-0.5

    def _normal(self, public: Arrays, mean: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The prior's exact moments if it is normal, as compared at some of its draws, from estimates."""

        def expansion(start: jax.Array, points: jax.Array, public: Arrays) -> Tree:
            log_prior = lambda x: self.log_prior(x, public)  # noqa: E731
            found = jax.vmap(log_prior)(points) - log_prior(start)
            return jax.grad(log_prior)(start), jax.hessian(log_prior)(start), found

        arguments = np.asarray(mean, np.float32), np.asarray(points, np.float32), public
        gradient, hessian, found = (np.asarray(x, np.float64) for x in run_once(expansion, *arguments))
        away, precision = points - mean, -hessian
        expected = away @ gradient - 0.5 * np.einsum("ni,ij,nj->n", away, precision, away)
        if not np.allclose(found, expected, rtol=1e-3, atol=1e-3 * len(mean)):
            return None
        if np.any(np.linalg.eigvalsh(precision) <= 0.0):
            raise UnsupportedModelError(
                "the prior's log density does not fall on both sides of some latent, which is no proper prior; an "
                "AffineTransform needs its domain, AffineTransform(0.1, 1.0, domain=dist.constraints.positive)."
            )
        covariance = np.linalg.inv(precision)
        return mean + covariance @ gradient, (covariance + covariance.T) / 2


def _are_normal(draws: Array) -> Array:
    """Whether the third and fourth moments of draws (n, d) are a normal law's, up to six of their sds with 10,000 draws."""
    z = (draws - draws.mean(axis=0)) / draws.std(axis=0)
    return (np.abs(np.mean(z**3, axis=0)) < 0.15) & (np.abs(np.mean(z**4, axis=0) - 3.0) < 0.3)
