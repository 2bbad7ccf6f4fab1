"""The sites that the likelihood can be measured in, found from abstract traces."""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.jaxprs import Dependence, abstract, depends_on
from dpppl.model.arguments import Arrays
from dpppl.model.refusals import quoted
from dpppl.model.split import SplitModel
from dpppl.model.structure import plates_of
from dpppl.model.supports import first_values
from dpppl.types import Tree


class CoordinateSearch:
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
