"""The sites that the likelihood is measured in, as one vector, and their prior.

The likelihood of mu, tau and z in `effects = mu + tau * z` is far from quadratic, and nearly so in the effects. A run
therefore measures it in deterministic sites where these replace latents, all found from abstract traces.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.information_flow.executables import run_once
from dpppl.jaxprs import Dependence, abstract, depends_on
from dpppl.model.arguments import Arrays, Shapes
from dpppl.model.initialization import drawn_from_prior
from dpppl.model.refusals import quoted
from dpppl.model.split import SplitModel
from dpppl.model.structure import plates_of
from dpppl.model.supports import first_values
from dpppl.noise_aware.curvature import Array, eigh
from dpppl.noise_aware.frame import RANK, Frame, homes
from dpppl.types import Tree

_MOST_KNOWN = RANK // 2
MOST_FULL = 200  # coordinates, of which the whole curvature is released
NUM_DRAWS, NUM_WIDE = 10_000, 2_000
_COMPARED, _NUMBERS = 16, 20_100  # of a curvature that is released
_TAIL = 6.0  # interquartile ranges: 8 sds of a normal law


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
    def curvature(self) -> str:
        """Which curvature is released."""
        return "full" if self.is_full else f"blocks of at most {max(map(len, self.pieces))} coordinates"

    def first(self) -> Frame:
        """A frame in which the prior is white in each block; of several, the first are directions that the prior knows of."""
        directions = np.zeros((len(self.mean), 0))
        if self.draws is not None and not self.is_full:
            count, dimension = self.draws.shape
            values, vectors = eigh(self.draws @ self.draws.T / count)
            chosen = np.flatnonzero(values > 1.5 * (1.0 + np.sqrt(dimension / count)) ** 2)[-_MOST_KNOWN:]
            directions = np.linalg.qr(self.draws.T @ vectors[:, chosen])[0]
        frame = Frame.of(self.scales, directions, self.pieces)
        return frame.evened(np.zeros_like(frame.roots), self.covariance(frame))

    def covariance(self, frame: Frame) -> Array:
        """Blocks, of scaled and turned latents; 1 in padding."""
        if self.correlation is not None:
            return self.correlation[None]
        if self.draws is None:
            return np.tile(np.eye(frame.roots.shape[1]), (len(frame.roots), 1, 1))
        inside = frame.layout.gathered(frame.turned(self.draws)).transpose(1, 2, 0)
        return frame.layout.padded(inside @ inside.swapaxes(1, 2) / len(self.draws))


class Known(NamedTuple):
    """A normal approximation.

    - **mean**, **variance** - of each coordinate, (d,)."""

    mean: Array
    variance: Array


class Search:
    """Finds deterministic sites that can be coordinates: computed from latents and Public arrays alone, outside of the data
    plate, and jointly taking every real value as the latents vary. Looks at no private data.

    - **split**, **public** - the model, and Public arrays, on which the rank may depend.

    That they take every value is proved, since the likelihood is evaluated, and its surrogate believed, wherever the releases
    lead: given the latents among the coordinates, the sites must be affine in some of the other latents, with a matrix of full
    rank. More coordinates than latents that they replace would have a singular prior, besides costing noise."""

    def __init__(self, split: SplitModel, public: Arrays) -> None:
        self._split, self._public = split, public
        self._sites: dict[str, tuple[str, bool]] = {}  # its type, and whether it lies in the data plate
        values = {}

        def explore(z: Arrays, row: Arrays, public: Arrays) -> None:
            trace = split.visit_observed(lambda site: None, z, row, public, first_values(split))
            for name, site in trace.items():
                inside = site["type"] in ("sample", "deterministic") and split.data_plate in plates_of(site)
                self._sites[name], value = (site["type"], inside), site["value"]
                if name in split.deterministic and not inside and jnp.issubdtype(jnp.result_type(value), jnp.floating):
                    values[name] = abstract(jnp.shape(value), jnp.result_type(value))

        def tangents(z: Arrays, tangent: Arrays, public: Arrays) -> dict[str, Arrays]:
            """The derivatives of deterministic sites along each latent by itself."""
            sites = lambda latent: lambda value: self._deterministic(z | {latent: value}, public)  # noqa: E731
            return {latent: jax.jvp(sites(latent), (z[latent],), (tangent[latent],))[1] for latent in z}

        jax.eval_shape(explore, split.latents, split.row, split.arguments.public)
        self.shapes = split.latents | values
        if values:
            inputs = {"latent": split.latents, "tangent": split.latents, "public": split.arguments.public}
            self._slopes = Dependence(tangents, **inputs)

    def _deterministic(self, z: Arrays, public: Arrays) -> Arrays:
        values = self._split.constrain(z, public)
        return {site: values[site] for site in self.shapes if site not in self._split.latents}

    def best(self) -> set[str]:
        """The latents that enter the likelihood, with those replaced that deterministic sites can replace: each time by the site
        that leaves the fewest coordinates. Where a site is affine in all that it replaces, the latents stay: their prior may be
        normal."""

        def is_gain(before: set[str], after: set[str], name: str) -> bool:
            latents = before & set(self._split.latents)
            computed_from = {n for n in latents if ("tangent", n) in self._slopes.inputs(n, name)}
            return not before <= after and set(self._affine([name], computed_from)) != computed_from

        sites = self._entering(())
        while True:
            better = [
                found
                for name in self.shapes
                if name not in sites and name not in self._split.latents
                for found in [self._entering((*self._held(sites), name))]
                if name in found and is_gain(sites, found, name) and self._is_onto(found)
            ]
            if not better:
                return sites
            sites = min(better, key=lambda found: sum(self.shapes[site].size for site in found))

    def checked(self, named: Sequence[str]) -> set[str]:
        """The sites named, if they can be coordinates. Raises ConfigurationError, naming the site, the cause and the cure."""
        for name in named:
            if name not in self.shapes:
                raise ConfigurationError(self._unfit(name))
        sites = set(named)
        entering = self._entering(self._held(sites))
        if missing := sorted(entering - sites):
            raise ConfigurationError(
                f"the likelihood depends on site {quoted(missing)}, which coordinates {tuple(named)} leave out; name it "
                "too, or a deterministic site through which it enters."
            )
        if idle := sorted(sites - entering):
            raise ConfigurationError(
                f"the likelihood does not depend on site {quoted(idle)} once the other coordinates are given; leave it out."
            )
        if not self._is_onto(sites):
            raise ConfigurationError(
                f"site {quoted(self._held(sites))} cannot be shown to take every real value. It must be an affine "
                "function, of full rank, of latents that are not coordinates themselves: mu + tau * z is one of z. Name the "
                "latents that it is computed from, or an unbounded site before the transformation."
            )
        return sites

    def moved_by(self, sites: Iterable[str]) -> tuple[str, ...]:
        """Latents, not among the sites, in which the deterministic ones are jointly affine; large ones first."""
        return self._affine(self._held(sites), [n for n in self._split.latents if n not in sites])

    def _affine(self, names: Sequence[str], latents: Iterable[str]) -> tuple[str, ...]:
        """Those of the latents that move the deterministic sites `names`, with derivatives that depend on none of them."""
        found: list[str] = []
        for latent in sorted(latents, key=lambda n: -self.shapes[n].size):
            inputs = {pair for name in names for pair in self._slopes.inputs(latent, name)}
            if ("tangent", latent) in inputs and not inputs & {("latent", other) for other in (*found, latent)}:
                found.append(latent)
        return tuple(found)

    def _is_onto(self, sites: set[str]) -> bool:
        """Whether the deterministic sites take every value, given the latents among the sites: the rank at some latents."""
        held, latents = self._held(sites), self.moved_by(sites)
        dimension = sum(self.shapes[site].size for site in held)
        if not held or dimension > sum(self.shapes[latent].size for latent in latents):
            return not held
        rng = np.random.default_rng(0)
        z = {n: np.asarray(0.3 * rng.standard_normal(s.shape), s.dtype) for n, s in self._split.latents.items()}

        def values(moved: Arrays) -> Tree:
            found = self._deterministic(z | moved, self._public)
            return jnp.concatenate([jnp.ravel(found[site]) for site in held])

        slopes = jax.jit(jax.jacobian(values))({n: z[n] for n in latents})
        matrix = np.concatenate([np.reshape(slopes[n], (dimension, -1)) for n in latents], axis=1)
        return bool(np.all(np.isfinite(matrix))) and int(np.linalg.matrix_rank(matrix, rtol=1e-5)) == dimension

    def _held(self, sites: Iterable[str]) -> tuple[str, ...]:
        return tuple(site for site in sites if site not in self._split.latents)

    def _entering(self, held: Sequence[str]) -> set[str]:
        """The latents that enter the likelihood where the deterministic sites `held` are given, and those of these that do."""
        split = self._split
        shapes = split.latents | {site: self.shapes[site] for site in held}
        used = depends_on(split.log_likelihood, shapes, split.row, split.arguments.public)[0]
        return {site for site, is_used in used.items() if is_used}

    def _unfit(self, name: str) -> str:
        kind, inside = self._sites.get(name, (None, False))
        if kind is None:
            return f"coordinates name site '{name}', which the model does not have; it could be {quoted(sorted(self.shapes))}."
        if inside:
            return (
                f"site '{name}' lies in the data plate, and coordinates are what all rows share; name the latents that it is "
                "computed from, or compute it before the plate."
            )
        if kind == "deterministic" and name not in self._split.deterministic:
            return (
                f"site '{name}' depends on rows, or on their number, and cannot be a coordinate; compute it from latents "
                "and dpppl.Public arrays alone."
            )
        return (
            f"site '{name}' is neither a continuous latent nor a deterministic site of real numbers; coordinates could be "
            f"{quoted(sorted(self.shapes))}."
        )


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
        """Those of a model, as found (see `Search`), or the sites `named`; looks at no private data. Without `public` Public
        arrays are zeros. Raises ConfigurationError, naming the site, for sites named that cannot be coordinates."""
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
        """Latents drawn from the prior, `NUM_DRAWS` each, of wide models `NUM_WIDE`."""
        count = NUM_DRAWS if self.dimension <= MOST_FULL else NUM_WIDE
        return drawn_from_prior(self.split, public, key, count)

    def prior(self, public: Arrays, key: jax.Array) -> tuple[Prior, bool]:
        """The prior of the coordinates, and whether it is normal and they are all latents: exact where it is, else of draws, cut
        off where a heavy tail would decide the variance. Of wide models it is normal only if the coordinates are independent
        under it. Raises UnsupportedModelError for improper priors."""
        draws = self.draws(public, key)
        points = np.asarray(run_once(jax.vmap(self.vector, (0, None)), draws, public), np.float64)
        for site, values in draws.items():
            if np.any(np.ptp(np.asarray(values), axis=0) == 0.0):
                raise UnsupportedModelError(
                    f"site '{site}' has no proper prior, and NoiseAware starts from the prior: give it one, however wide."
                )
        low, middle, high = np.quantile(points, [0.25, 0.5, 0.75], axis=0)
        reach = np.where(high > low, _TAIL * (high - low), np.inf)
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
        pieces = homes([shape.size for shape in self.shapes.values()], max(RANK, 2 * _NUMBERS // self.dimension))
        if are_latents and (independent := self._independent(public, points[:_COMPARED])):
            return Prior(*independent, pieces), True
        mean, scales = points.mean(axis=0), points.std(axis=0)
        return Prior(mean, scales, pieces, draws=(points - mean) / scales), False

    def _independent(self, public: Arrays, points: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The exact means and sds of the coordinates if the prior is normal and they are independent: if each one's derivative
        follows its own value, at some draws."""
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

        def told(start: jax.Array, points: jax.Array, public: Arrays) -> Tree:
            log_prior = lambda x: self.log_prior(x, public)  # noqa: E731
            found = jax.vmap(log_prior)(points) - log_prior(start)
            return jax.grad(log_prior)(start), jax.hessian(log_prior)(start), found

        arguments = np.asarray(mean, np.float32), np.asarray(points, np.float32), public
        gradient, hessian, found = (np.asarray(x, np.float64) for x in run_once(told, *arguments))
        away, precision = points - mean, -hessian
        expected = away @ gradient - 0.5 * np.einsum("ni,ij,nj->n", away, precision, away)
        if not np.allclose(found, expected, rtol=1e-3, atol=1e-3 * len(mean)):
            return None
        covariance = np.linalg.inv(precision)
        return mean + covariance @ gradient, (covariance + covariance.T) / 2


def _are_normal(draws: Array) -> Array:
    """Whether the third and fourth moments of draws (n, d) are a normal law's, up to six of their sds with 10,000 draws."""
    z = (draws - draws.mean(axis=0)) / draws.std(axis=0)
    return (np.abs(np.mean(z**3, axis=0)) < 0.15) & (np.abs(np.mean(z**4, axis=0) - 3.0) < 0.3)
