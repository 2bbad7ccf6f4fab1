"""The responses that a model could have given in a row's place: all of them with their probabilities, or draws."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import UnsupportedModelError
from dpppl.model import censoring, missing, supports
from dpppl.model.arguments import Arrays
from dpppl.model.censoring_checks import check_declarations
from dpppl.model.own_values import why_not_own
from dpppl.model.samplers import drawn
from dpppl.model.split import SplitModel
from dpppl.model.structure import Site, counted, is_factor, is_masked, plates_of, unwrapped

NUM_DRAWS = 8
FLAT = 'use clipping="flat", with a dpppl kernel or dpppl.SVI'
"""The cure for responses that cannot be simulated: what is not centred needs none."""
_MOST_RESPONSES = 16


@dataclass(frozen=True, eq=False)
class Responses:
    """The distribution of a row's responses given its other arguments and the latents.

    - **split** - the model.
    - **num_draws** - number of responses that are drawn for a row.
    - **supports** - for each observed site its possible values, where they are few enough to list jointly; None where responses
      are drawn. Each is a dict by site, on a batch of one row.
    - **scaled** - sites whose log probability is scaled (`handlers.scale`).
    - **observed** - the observed sites.
    - **from_one_key** - whether all draws of a row are made from one key: those of a single site that is not censored.
    - **missing** - latents of a row that stand for missing values. Where there are any, all latents of a row that are summed out
      are responses, too; of what is observed `completions` are then the means.
    - **has_gaps** - whether rows may have missing values: these, or masked responses."""

    split: SplitModel
    num_draws: int = NUM_DRAWS
    supports: Mapping[str, np.ndarray[Any, Any]] | None = field(default=None, repr=False)
    scaled: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    from_one_key: bool = False
    missing: tuple[str, ...] = ()
    has_gaps: bool = False

    @classmethod
    def of(cls, split: SplitModel, num_draws: int = NUM_DRAWS) -> "Responses":
        """Those of a model. Abstract: looks at no data.

        Raises UnsupportedModelError, naming the site, where the model's responses cannot be simulated."""
        if split.local:
            raise UnsupportedModelError(
                f"site '{split.local[0]}' is a latent of each row, so that the latents which all rows share do not decide "
                f"what else a row might have been; {FLAT}."
            )
        sites: list[Site] = []
        latents: list[Site] = []

        def distributions(z: Arrays, row: Arrays, public: Arrays) -> tuple[Any, Any]:
            indicators: dict[str, Any] = {}

            def visit(site: Site) -> Any:
                if not censoring.is_censored(site["fn"]):
                    return site["value"]
                indicators[f"indicator of {site['name']}"] = censoring.own(site).indicators
                return censoring.blank(site, site["value"])

            trace = split.visit_observed(visit, z, row, public, supports.first_values(split))
            sites[:] = [s for s in trace.values() if s["type"] == "sample" and split.data_plate in plates_of(s)]
            latents[:] = [s for s in sites if s["name"] in dict(split.summed)]
            sites[:] = [s for s in sites if s["is_observed"]]
            given = {s["name"]: s["given"] for s in sites if not is_factor(s)}
            return given | indicators, [_law(s) for s in sites]

        shapes = split.latents, split.row, split.arguments.public
        jax.eval_shape(distributions, *shapes)
        _check(split, sites)
        if problem := why_not_own(
            lambda z, row, public: distributions(z, row, public)[0],
            lambda row: [
                (s["name"], s["value"], counted(s["fn"]))
                for s in _observed(split, row)
                if not censoring.is_censored(s["fn"])
            ],
            lambda row: _replaced_distributions(split, row),
            shapes,
        ):
            raise UnsupportedModelError(f"{problem}, or {FLAT}.")
        has_gaps = bool(split.missing) or any(is_masked(s) for s in sites)
        observed = tuple(s["name"] for s in sites)
        if split.missing and (censored := [s["name"] for s in sites if censoring.is_censored(s["fn"])]):
            raise UnsupportedModelError(
                f"site '{censored[0]}' is censored and '{split.missing[0]}' stands for missing values, which are not supported "
                f"together; {FLAT}."
            )
        sites = [*sites, *latents] if split.missing else sites
        scaled = tuple(s["name"] for s in sites if not _counts_once(s))
        is_single = len(sites) == 1 and not split.summed and not censoring.is_censored(sites[0]["fn"])
        listed = None if scaled else _supports(split, sites)
        return cls(split, num_draws, listed, scaled, observed, is_single, split.missing, has_gaps)

    @property
    def is_binary(self) -> bool:
        """Whether a row has one response, with two values."""
        return self.supports is not None and [len(values) for values in self.supports.values()] == [2]

    @property
    def redrawn(self) -> float:
        """The variance that draws give a row's centred score, over that of the score: it is one of as many and itself."""
        return 0.0 if self.supports is not None else 1.0 / (1 + self.num_draws)

    def __call__(self, z: Arrays, row: Arrays, public: Arrays, key: Any) -> tuple[Arrays, jax.Array]:
        """Responses by site, (m, ...), and the weights (1 + m,) of what was really observed and of these.

        All that are possible, with their probabilities, the real one weighing 0; otherwise draws, all weighing alike:
        the real one is exchangeable with them where z is the truth."""
        if self.supports is None:
            return self._draws(z, row, public, key), jnp.full(1 + self.num_draws, 1.0 / (1 + self.num_draws))
        shapes = self._shapes(z, row, public)
        grid = np.meshgrid(*self.supports.values(), indexing="ij")
        values = {n: jnp.asarray(g).reshape(-1, *shapes[n]) for n, g in zip(self.supports, grid)}
        log_probs = jax.vmap(lambda r: self.split.log_likelihood(z, row, public, r))(values)
        return values, jnp.append(jnp.zeros(1), jax.nn.softmax(log_probs))

    def own(self, z: Arrays, row: Arrays, public: Arrays) -> Arrays | None:
        """The responses that a row observes, by site, as `__call__` returns others; None for units of several rows."""
        return {site["name"]: censoring.own(site) for site in supports.observed(self.split, z, row, public)}

    def completions(self, z: Arrays, row: Arrays, public: Arrays) -> tuple[Arrays, jax.Array]:
        """The row with its missing values filled in, (m, ...) by site, as `__call__` returns others, and the probability of each,
        (m,), given what the row observes. These are equal where they are not finite: such a row says nothing, and is counted."""
        latents, log_probs = missing.completions(self.split, z, row, public)
        own = self.own(z, row, public) or {}
        repeated = {name: jnp.broadcast_to(value, (len(log_probs), *jnp.shape(value))) for name, value in own.items()}
        chances = jax.nn.softmax(log_probs)
        return repeated | latents, jnp.where(jnp.all(jnp.isfinite(chances)), chances, 1.0 / len(chances))

    def has_gap(self, z: Arrays, row: Arrays, public: Arrays) -> jax.Array:
        """Whether a row has a missing value."""
        sites = supports.observed(self.split, z, row, public)
        in_use = missing.in_use(self.split, z, row, public)
        masked = [~jnp.all(counted(site["fn"])) for site in sites]
        return jnp.any(jnp.stack([*masked, *(in_use[name] for name in self.missing)]))

    def is_outside(self, z: Arrays, row: Arrays, public: Arrays) -> jax.Array:
        """Whether a row observes a finite value that its site's distribution cannot produce."""
        return supports.is_outside(self.split, z, row, public)

    def totals(self, z: Arrays, row: Arrays, public: Arrays, values: Arrays) -> jax.Array:
        """The sum of all that a row observes, and the same of `values` by site, (m, ...) each: (1 + m,). Masked entries are
        left out. Of rows with missing values `values` alone are summed: (m,)."""
        total: Any = 0.0
        in_use = missing.in_use(self.split, z, row, public) if self.missing else {}
        others = {name: _number(value) for name, value in values.items()}
        counts: dict[str, Any] = in_use
        for site in supports.observed(self.split, z, row, public):
            name, counts[site["name"]] = site["name"], counted(site["fn"])
            if not self.missing:
                others[name] = jnp.concatenate([_number(censoring.own(site))[None], others[name]])
        for name, value in others.items():
            both = jnp.where(counts[name], value, 0.0)
            total += jnp.sum(both, axis=tuple(range(1, both.ndim)))
        return total

    def _draws(self, z: Arrays, row: Arrays, public: Arrays, key: Any) -> Arrays:
        """`num_draws` of a row's responses; of a single site all from one key, which is several times as fast."""
        if self.from_one_key:
            return self._draw(z, row, public, key, (self.num_draws,))
        keys = jax.random.split(key, self.num_draws)
        found: Arrays = jax.vmap(lambda key: self._draw(z, row, public, key))(keys)
        return found

    def _draw(self, z: Arrays, row: Arrays, public: Arrays, key: Any, count: tuple[int, ...] = ()) -> Arrays:
        """One of a row's responses; with a `count`, of the last site so many."""
        found: Arrays = {}
        censored: dict[str, Site] = {}

        def draw(site: Site) -> Any:
            name, site_key = site["name"], jax.random.fold_in(key, len(found))
            if not censoring.is_censored(site["fn"]):
                found[name] = drawn(site["fn"], site_key, (*count, *site["kwargs"]["sample_shape"]))
                return found[name]
            found[name] = censoring.draw(site, site_key)
            censored[name] = dict(site)
            return censoring.provisional(site, found)

        names = dict(self.split.summed)
        self.split.visit_observed(draw, z, row, public, dict.fromkeys(names, draw))
        responses = {name: censoring.observed(site, found) for name, site in censored.items()}
        return {name: value for name, value in (found | responses).items() if self.missing or name not in names}

    def _shapes(self, z: Arrays, row: Arrays, public: Arrays) -> dict[str, tuple[int, ...]]:
        trace = self.split.visit_observed(lambda site: None, z, row, public, supports.first_values(self.split))
        return {name: jnp.shape(trace[name]["value"]) for name in self.supports or ()}


def _observed(split: SplitModel, row: Arrays) -> list[Site]:
    return supports.observed(split, *_zeros(split, row))


def _zeros(split: SplitModel, row: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    return {n: jnp.zeros(s.shape, s.dtype) for n, s in split.latents.items()}, row, split.placeholder_public()


def _replaced_distributions(split: SplitModel, row: Arrays) -> Any:
    """The parameters of the responses' distributions when other responses are observed."""
    z, row, public = _zeros(split, row)
    blank = lambda site: censoring.blank(site, jnp.zeros_like(site["value"]))  # noqa: E731
    trace = split.visit_observed(blank, z, row, public, supports.first_values(split))
    return [_law(s) for s in trace.values() if s["type"] == "sample" and s["is_observed"]]


def _number(value: Any) -> jax.Array:
    return jnp.asarray(value.value if isinstance(value, censoring.Censored) else value, jnp.float32)


def _law(site: Site) -> Any:
    """All that a site's responses are distributed by, but its scale and indicators."""
    return jax.tree.leaves(site["fn"]), site["scale"], censoring.leaves(site)


def _check(split: SplitModel, sites: list[Site]) -> None:
    cure = f"{FLAT}."
    for site in sites:
        name = site["name"]
        if is_factor(site):
            raise UnsupportedModelError(
                f"site '{name}' is a factor inside the data plate, whose responses cannot be simulated; observe them "
                f"under a distribution, or {cure}"
            )
    check_declarations(split, sites, FLAT)
    shapes = split.latents, split.row, split.arguments.public
    try:
        jax.eval_shape(Responses(split)._draw, *shapes, jax.eval_shape(lambda: jax.random.key(0)))
    except NotImplementedError as error:
        names = ", ".join(f"'{s['name']}' ({type(unwrapped(s['fn'])).__name__})" for s in sites)
        raise UnsupportedModelError(f"responses of site {names} cannot be simulated ({error}); {cure}") from None


def _counts_once(site: Site) -> bool:
    return site["scale"] is None or (isinstance(site["scale"], int | float) and site["scale"] == 1)


def _supports(split: SplitModel, sites: list[Site]) -> dict[str, np.ndarray[Any, Any]] | None:
    """The values of each site, where all are scalars of few values."""
    found = {}
    for site in sites:
        fn = site["fn"]
        if not fn.has_enumerate_support or math.prod(site["value"].shape) != 1:
            return None
        try:
            with jax.ensure_compile_time_eval():
                found[site["name"]] = np.asarray(fn.enumerate_support(expand=False)).ravel()
        except Exception:  # a support that is not known before the run
            return None
    return found if math.prod(len(values) for values in found.values()) <= _MOST_RESPONSES else None
