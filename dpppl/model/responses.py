"""The responses that a model could have given in a row's place: all of them with their probabilities, or draws; refusals."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import UnsupportedModelError
from dpppl.model import censoring, missing, supports
from dpppl.model.arguments import Arrays, zeros
from dpppl.model.censoring_checks import check_declarations
from dpppl.model.own_values import entering, why_not_own
from dpppl.model.refusals import FLAT
from dpppl.model.row_independence import known
from dpppl.model.samplers import drawn
from dpppl.model.split import SplitModel
from dpppl.model.structure import Site, is_factor, is_masked, plates_of, unmasked, unwrapped
from dpppl.types import Scalar, Tree

NUM_DRAWS = 7  # with the real one they are eight, as many as a vector register holds: nine take three times as long
_MOST_RESPONSES, _MOST_SHARED = 16, 1_024  # how many are listed: for each row, and once for all rows
_FEW_LATENTS, _FEW_RESPONSES, _LEAST_DRAWS = 32, 4, 4_096


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
    - **has_gaps** - whether rows may have missing values: these, or masked responses.
    - **is_shared** - whether all rows have one law, and share its responses: see `shared`."""

    split: SplitModel
    num_draws: int = NUM_DRAWS
    supports: Mapping[str, np.ndarray] | None = field(default=None, repr=False)
    scaled: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    from_one_key: bool = False
    missing: tuple[str, ...] = ()
    has_gaps: bool = False
    is_shared: bool = False

    @classmethod
    def of(
        cls, split: SplitModel, num_draws: int = NUM_DRAWS, may_share: bool = False, public: Arrays | None = None
    ) -> "Responses":
        """Responses of a model: looks at no private data.

        - **split** - the model.
        - **num_draws** - number of responses that are drawn for a row.
        - **may_share** - whether rows may share their responses where no row enters the law: then more are listed.
        - **public** - Public arrays as `row_independence.known` takes them; ones stand for those that are unknown.

        Raises UnsupportedModelError, naming the site, where the model's responses cannot be simulated."""
        if split.local:
            raise UnsupportedModelError(
                f"site '{split.local[0]}' is a latent of each row, so that the latents which all rows share do not decide "
                f"what else a row might have been; {FLAT}."
            )
        sites: list[Site] = []
        latents: list[Site] = []

        def distributions(z: Arrays, row: Arrays, public: Arrays) -> tuple[Tree, Tree]:
            indicators: dict[str, Tree] = {}

            def visit(site: Site) -> Tree:
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
        public = known(split.arguments.public if public is None else public, split.num_rows, np.ones)
        z, public = zeros(split.latents), jax.tree.map(jnp.asarray, public)

        def laws(row: Arrays) -> Tree:
            """The parameters of the responses' distributions when other responses are observed."""
            blank = lambda site: censoring.blank(site, jnp.zeros_like(site["value"]))  # noqa: E731
            trace = split.visit_observed(blank, z, row, public, supports.first_values(split))
            return [_law(s) for s in trace.values() if s["type"] == "sample" and s["is_observed"]]

        if problem := why_not_own(
            lambda z, row, public: distributions(z, row, public)[0],
            lambda row, public: [
                (s["name"], s["value"], unmasked(s["fn"]))
                for s in supports.observed(split, z, row, public)
                if not censoring.is_censored(s["fn"])
            ],
            laws,
            shapes,
            public,
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
        is_unscaled = lambda scale: scale is None or (isinstance(scale, int | float) and scale == 1)  # noqa: E731
        scaled = tuple(s["name"] for s in sites if not is_unscaled(s["scale"]))
        is_open = not split.summed and not any(censoring.is_censored(s["fn"]) for s in sites)
        is_single, is_plain = is_open and len(sites) == 1, is_open and not (scaled or has_gaps)
        may_share = may_share and is_plain and _is_free_of_rows(cls(split, 1, from_one_key=is_single))
        listed = None if scaled else supports.listed(sites, _MOST_SHARED if may_share else _MOST_RESPONSES)
        num_latents = sum(math.prod(shape.shape) for shape in split.latents.values())
        is_short = listed is None or supports.count(listed) <= _FEW_RESPONSES
        is_shared = may_share and not (is_single and num_latents <= _FEW_LATENTS and is_short)
        return cls(split, num_draws, listed, scaled, observed, is_single, split.missing, has_gaps, is_shared)

    def size_of(self, row: Arrays) -> Scalar:
        """How many numbers this row observes, those that are masked among them."""
        return self.size

    @cached_property
    def size(self) -> int:
        """How many numbers a row may observe."""
        split, is_leaf = self.split, lambda x: isinstance(x, censoring.Censored)
        others = jax.eval_shape(self, split.latents, split.row, split.arguments.public, jax.random.key(0))[0]
        values = (x.value if is_leaf(x) else x for x in jax.tree.leaves(others, is_leaf=is_leaf))
        return sum(math.prod(x.shape[1:]) for x in values)

    @property
    def is_binary(self) -> bool:
        """Whether a row has one response, with two values."""
        return self.supports is not None and [len(values) for values in self.supports.values()] == [2]

    @property
    def redrawn(self) -> float:
        """The share of the variance of a row's centred score that its draws give: it is one of as many and itself."""
        return 0.0 if self.supports is not None or self.is_shared else 1.0 / (1 + self.num_draws)

    @property
    def added(self) -> float:
        """The variance that shared draws give the sum of centred scores, over the variance that its rows give."""
        shared = self.is_shared and self.supports is None
        return self.split.num_rows / self._num_shared if shared else 0.0

    @property
    def _num_shared(self) -> int:
        return max(_LEAST_DRAWS, self.split.num_rows // 2)

    def __call__(self, z: Arrays, row: Arrays, public: Arrays, key: jax.Array) -> tuple[Arrays, jax.Array]:
        """Responses by site, (m, ...), and the weights (1 + m,) of what was really observed and of these.

        All that are possible, with their probabilities, the real one weighing 0; otherwise draws, all weighing alike:
        the real one is exchangeable with them where z is the truth."""
        if self.supports is None:
            # of a single site all from one key, which is several times as fast
            one = lambda key: self.draw(z, row, public, key)  # noqa: E731
            if self.from_one_key:
                values = self.draw(z, row, public, key, (self.num_draws,))
            else:
                values = dict(jax.vmap(one)(jax.random.split(key, self.num_draws)))
            return values, jnp.full(1 + self.num_draws, 1.0 / (1 + self.num_draws))
        trace = self.split.visit_observed(lambda site: None, z, row, public, supports.first_values(self.split))
        shapes = {name: jnp.shape(trace[name]["value"]) for name in self.supports}
        grid = np.meshgrid(*self.supports.values(), indexing="ij")
        values = {n: jnp.asarray(g).reshape(-1, *shapes[n]) for n, g in zip(self.supports, grid)}
        log_probs = jax.vmap(lambda r: self.split.log_likelihood(z, row, public, r))(values)
        if self.has_gaps:  # values that differ in masked entries alone are one response
            counts, firsts = partial(self._counted, z, row, public), {n: v[0] for n, v in self.supports.items()}
            masked = lambda r: [jnp.any(~jnp.asarray(c) & (r[n] != firsts[n])) for n, c in counts(r).items()]  # noqa: E731
            log_probs = jnp.where(jax.vmap(lambda r: jnp.any(jnp.stack(masked(r))))(values), -jnp.inf, log_probs)
        return values, jnp.append(jnp.zeros(1), jax.nn.softmax(log_probs))

    def shared(self, z: Arrays, public: Arrays, key: jax.Array) -> tuple[Arrays, jax.Array, Arrays]:
        """All responses of the law that all rows have, or half as many draws as rows, by site; weights (m,); a row for all."""
        row = zeros(self.split.row)
        values, weights = replace(self, num_draws=self._num_shared)(z, row, public, key)
        return values, weights[1:], row

    def place(self, z: Arrays, row: Arrays, public: Arrays) -> tuple[jax.Array, jax.Array]:
        """The number of a row's own response among those listed, and whether it is one of them."""
        own, number, is_listed = self.own(z, row, public) or {}, jnp.zeros((), jnp.int32), jnp.ones((), bool)
        for name, values in (self.supports or {}).items():
            matches = jnp.ravel(own[name]) == values
            number = number * len(values) + jnp.argmax(matches).astype(jnp.int32)
            is_listed &= jnp.any(matches)
        return number, is_listed

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
        masked = [~jnp.all(unmasked(site["fn"])) for site in sites]
        return jnp.any(jnp.stack([*masked, *(in_use[name] for name in self.missing)]))

    def is_outside(self, z: Arrays, row: Arrays, public: Arrays) -> jax.Array:
        """Whether a row observes a finite value that its site's distribution cannot produce."""
        return supports.is_outside(self.split, z, row, public)

    def totals(self, z: Arrays, row: Arrays, public: Arrays, values: Arrays) -> jax.Array:
        """The sum of a row's observed values, and m sums of `values` by site, (m, ...) each: (1 + m,). Masked entries are left
        out, by the mask that goes with the same values. For rows with missing values, only the sums of `values`: (m,)."""
        if not self.missing:
            own = self.own(z, row, public) or {}
            joined = lambda one, more: jnp.concatenate([jnp.asarray(one, jnp.result_type(more))[None], more])  # noqa: E731
            values = jax.tree.map(joined, {name: own[name] for name in values}, values)
        in_use = missing.in_use(self.split, z, row, public) if self.missing else {}

        def total(given: Arrays) -> Tree:
            counts = in_use | self._counted(z, row, public, given)
            numbers = {
                n: jnp.asarray(x.value if isinstance(x, censoring.Censored) else x, jnp.float32)
                for n, x in given.items()
            }
            return sum(jnp.sum(jnp.where(counts[name], number, 0.0)) for name, number in numbers.items())

        return jnp.asarray(jax.vmap(total)(values))

    def _counted(self, z: Arrays, row: Arrays, public: Arrays, given: Arrays) -> Arrays:
        """Which entries of the values `given` no mask takes out where a row has these, by site; not of latents without a mask."""
        if not self.has_gaps:
            return dict.fromkeys(given, True)
        trace, others = missing.trace_of(self.split, z, row, public, given), {*self.missing} - {*self.split.masked}
        return {name: unmasked(trace[name]["fn"]) for name in given if name not in others}

    def draw(self, z: Arrays, row: Arrays, public: Arrays, key: jax.Array, count: tuple[int, ...] = ()) -> Arrays:
        """One of a row's responses; with a `count`, of the last site so many."""
        found: Arrays = {}
        censored: dict[str, Site] = {}

        def draw(site: Site) -> Tree:
            name, site_key = site["name"], jax.random.fold_in(key, len(found)) if found else key
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


def _law(site: Site) -> Tree:
    """All that a site's responses are distributed by, but its scale and indicators."""
    return jax.tree.leaves(site["fn"]), site["scale"], censoring.leaves(site)


def _check(split: SplitModel, sites: list[Site]) -> None:
    for site in filter(is_factor, sites):
        raise UnsupportedModelError(
            f"site '{site['name']}' is a factor inside the data plate, whose responses cannot be simulated; observe them "
            f"under a distribution, if need be one of your own with log_prob and sample, or {FLAT}."
        )
    check_declarations(split, sites)
    shapes = split.latents, split.row, split.arguments.public
    try:
        jax.eval_shape(Responses(split).draw, *shapes, jax.eval_shape(lambda: jax.random.key(0)))
    except NotImplementedError as error:
        names = ", ".join(f"'{s['name']}' ({type(unwrapped(s['fn'])).__name__})" for s in sites)
        raise UnsupportedModelError(f"responses of site {names} cannot be simulated ({error}); {FLAT}.") from None


def _is_free_of_rows(responses: Responses) -> bool:
    """Whether no row enters what is drawn, nor the log likelihood of what is given."""
    split, key = responses.split, jax.eval_shape(lambda: jax.random.key(0))
    shapes = split.latents, split.row, split.arguments.public
    given = jax.eval_shape(responses.draw, *shapes, key)
    return not (entering(split.log_likelihood, *shapes, given)[1] or entering(responses.draw, *shapes, key)[1])
