"""Splits a NumPyro model into a log prior and a log likelihood of one row.

NumPyro itself runs the model, on one row at a time: arrays of leading axis 1 inside a data plate whose indices are
`arange(1)` and whose size / subsample_size factor is divided out again. Structure is found from shapes and dtypes.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.sharding import Mesh

from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.information_flow.row_free import by_site, known
from dpppl.jaxprs import Dependence, abstract, is_rearranged, used_inputs
from dpppl.model import censoring, handlers, missing, refusals
from dpppl.model.arguments import Arguments, Arrays, Model, Shapes, zeros
from dpppl.model.handlers import BindLatents, BindRows, Latent, Observe, made_up_value, trace_of
from dpppl.model.indices import IndexedTable, followed
from dpppl.model.public_values import captured
from dpppl.model.refusals import MASK_CURE
from dpppl.model.row_independence import check_coupling, check_dependence
from dpppl.model.structure import (
    Site,
    Structure,
    Trace,
    is_observed,
    joint_name,
    log_prob_of,
    log_weight,
    plate_dim,
    plates_of,
    unconstrained_shape,
)
from dpppl.types import BySite, Distribution, Function, Traced, Tree
from dpppl.validation import a


@dataclass(frozen=True, eq=False)
class SplitModel:
    """A model's log prior and per-row log likelihood. Holds no array argument.

    - **latents** - shapes and dtypes of the unconstrained latents, by site.
    - **num_rows** - the number of rows.
    - **assumed_public** - what the model captured, and its public arguments, in words.
    - **model** - the NumPyro model.
    - **arguments** - the call that it was split for, without its arrays.
    - **data_plate** - the name of the rows' plate.
    - **params** - values of the model's parameters.
    - **deterministic** - deterministic sites that depend on latents only.
    - **local** - the latents of rows; the log likelihood has them, and the model's parameters, at made-up values.
    - **summed** - latents of a row that are summed out, and how many values each is tried at.
    - **masked** - summed latents that have a mask.
    - **missing** - summed latents that stand for missing values: masked ones, and continuous ones that some rows do not use.
    - **notes** - sentences about declarations of the model that a run leaves out; they contain no information about rows.
    - **dims** - names of the axes of latents in plates: those of the plates.

    `rows` and `public` are as `arrays` returns them: dicts by argument. `row` is `rows` without the leading axis. `z` maps each
    latent site to its unconstrained value; it may also map deterministic sites to values, which then replace those that the model
    computes there."""

    latents: Shapes
    num_rows: int
    assumed_public: tuple[str, ...]
    model: Model = field(repr=False)
    arguments: Arguments = field(repr=False)
    data_plate: str = field(repr=False)
    params: dict[str, object] = field(repr=False)
    deterministic: tuple[str, ...] = field(repr=False)
    local: tuple[str, ...] = ()
    summed: tuple[tuple[str, int], ...] = ()
    masked: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def arrays(self, args: tuple[Tree, ...], kwargs: dict[str, Tree], mesh: Mesh | None = None) -> tuple[Tree, Arrays]:
        """The private rows (leading axis `num_rows`) and the Public arrays of a call; they may be tracers. `mesh`: devices to
        shard rows over.

        Raises ConfigurationError if the call has another structure or other shapes than the one that was split."""
        return self.arguments.arrays(self.model, args, kwargs, mesh)

    @partial(jax.jit, static_argnums=0, inline=True)
    def log_prior(self, z: Arrays, public: Arrays) -> jax.Array:
        """Log prior density of `z`, a scalar: latent sites, Jacobians and `factor` sites outside the data plate."""
        return _total(log_prob_of(site) for site in self._sites(self._at(z, self.placeholder_rows(), public), False))

    @partial(jax.jit, static_argnums=0, inline=True)
    def log_likelihood(self, z: Arrays, row: Arrays, public: Arrays, responses: BySite | None = None) -> jax.Array:
        """Log likelihood of one row, a scalar: observed and `factor` sites inside the data plate, not its N/B scale.

        NaN where an index of the row is out of range (`indices`). Latents of the row are summed out: all joint values are tried.
        `responses`: what to observe instead, by site, on a batch of one row; where they give values to those latents, too, the
        log density of the row that they complete."""
        given = responses or {}
        if self.summed and self.summed[0][0] in given:
            return missing.log_density(self, z, row, public, dict(given))
        if responses is not None:
            return self._log_likelihood(z, row, public, given)
        return followed(self._log_likelihood, z, row, public).value

    def _log_likelihood(self, z: Arrays, row: Arrays, public: Arrays, given: BySite | None = None) -> jax.Array:
        rows, given = jax.tree.map(lambda value: jnp.asarray(value)[None], row), given or {}
        return _total(self._likelihood(z, rows, public, 1, lambda site: given.get(site["name"]))[0].values())

    def is_out_of_range(self, z: Arrays, row: Arrays, public: Arrays) -> jax.Array | None:
        """Whether a row holds an index out of range, or no number where an integer is made of it: see `indices`."""
        return followed(self._log_likelihood, z, row, public).is_out

    @property
    def tables(self) -> tuple[IndexedTable, ...]:
        """Tables that rows index outside of NumPyro's densities."""
        found: list[IndexedTable] = []
        explore = lambda *arguments: found.extend(followed(self._log_likelihood, *arguments).tables)  # noqa: E731
        jax.eval_shape(explore, self.latents, self.row, self.arguments.public)
        return tuple(found)

    def visit_observed(self, visit: Observe, z: Arrays, row: Arrays, public: Arrays, assignment: Arrays) -> Trace:
        """Run the model on one row, with the value `visit(site)` at each observed site; `assignment` numbers the
        values of discrete latents in their supports, or gives them by a function of the site. NumPyro's trace."""
        rows = jax.tree.map(lambda value: jnp.asarray(value)[None], row)
        return self._at(z, rows, public, 1, assignment, visit)

    @partial(jax.jit, static_argnums=0, inline=True)
    def constrain(self, z: Arrays, public: Arrays) -> Arrays:
        """Values of the latent sites, and of the deterministic sites that depend on latents only."""
        trace = self._at(z, self.placeholder_rows(), public)
        return {name: trace[name]["value"] for name in (*self.latents, *self.deterministic)}

    def visit_latents(self, visit: Latent, public: Arrays) -> None:
        """Run the model with the unconstrained value `visit(site, transform)` at each latent site, rows made up."""
        self._run(visit, self.placeholder_rows(), public)

    @property
    def row(self) -> Shapes:
        """Shapes and dtypes of one row."""
        return {name: abstract(s.shape[1:], s.dtype) for name, s in self.arguments.shapes(1).items()}

    def placeholder_rows(self) -> Arrays:
        """One row of zeros."""
        return zeros(self.arguments.shapes(1))

    def placeholder_public(self) -> Arrays:
        """Zeros for the Public arrays."""
        return zeros(self.arguments.public)

    def imputed_words(self) -> str:
        """A sentence on observed values that have latents in them; nothing where none have."""
        found = Dependence(
            self.terms(1), latent=self.latents, row=self.arguments.shapes(1), public=self.arguments.public
        )
        sites = [n for n in found.names("observed") if "latent" in dict(found.inputs("observed", n))]
        return f" Latents stand in what site '{sites[0]}' observes: if for missing values, {MASK_CURE}" if sites else ""

    def terms(self, num_rows: int) -> Function:
        """The function of (z, rows, public) that gives all that a run computes, by role and by site."""

        def function(z: Arrays, rows: Arrays, public: Arrays) -> dict[str, Arrays]:
            trace = self._at(z, rows, public, num_rows)
            inside = self._sites(trace, True)
            likelihood = self._likelihood(z, rows, public, num_rows)[0] if self.summed else self._by_row(inside)
            return {
                "latent": {name: trace[name]["value"] for name in self.latents},
                "prior": {site["name"]: jnp.sum(log_prob_of(site)) for site in self._sites(trace, False)},
                "observed": {s["name"]: s["value"] for s in inside if is_observed(s, self.data_plate)},
                "likelihood": likelihood,
                "deterministic": {name: s["value"] for name, s in trace.items() if s["type"] == "deterministic"},
            }

        return function

    def likelihoods(self, num_rows: int) -> Callable[..., tuple[Arrays, Arrays]]:
        """The function of (z, rows, public, noise) that gives log likelihoods, at values made up from noise, and the
        values that the model observes, both by site."""

        def function(z: Arrays, rows: Arrays, public: Arrays, noise: Arrays) -> tuple[Arrays, Arrays]:
            def observe(site: Site) -> Tree:
                name, given = site["name"], site["value"]
                value = made_up_value(site["fn"].support, noise[name]) if name in noise else None
                return None if value is None else value.astype(jnp.result_type(given))

            return self._likelihood(z, rows, public, num_rows, observe)

        return function

    def _likelihood(
        self, z: Arrays, rows: Arrays, public: Arrays, num_rows: int, observe: Observe | None = None
    ) -> tuple[Arrays, Arrays]:
        """Log likelihood of each row, (num_rows,), and the values observed, by site; latents of rows summed out."""

        def given(assignment: Arrays) -> tuple[Arrays, Arrays]:
            inside = self._sites(self._at(z, rows, public, num_rows, assignment, observe), True)
            values = {s["name"]: s.get("given", s["value"]) for s in inside if is_observed(s, self.data_plate)}
            return self._by_row(inside, assignment), values

        if not self.summed:
            return given({})
        terms, values = jax.vmap(given)(missing.assignments(self))
        joint = jax.nn.logsumexp(sum(terms.values(), start=jnp.zeros(num_rows)), axis=0)
        return {"+".join(terms): joint}, {name: value[0] for name, value in values.items()}

    def _by_row(self, sites: list[Site], assignment: Arrays | None = None) -> Arrays:
        """Log probabilities of sites inside the data plate, by site, of each row; weights of latents that are summed out."""

        def of(site: Site) -> Tree:
            number, rows = (assignment or {}).get(site["name"]), plate_dim(site, self.data_plate)
            log_prob = log_prob_of(site) if number is None else log_weight(site, number)
            return jnp.sum(log_prob, axis=tuple(axis for axis in range(-jnp.ndim(log_prob), 0) if axis != rows))

        return {site["name"]: of(site) for site in sites}

    def _at(
        self, z: Arrays, rows: Arrays, public: Arrays, num_rows: int = 1, assignment: Arrays | None = None,
        observe: Observe | None = None,
    ) -> Trace:  # fmt: skip
        def latent(site: Site, transform: Distribution) -> Tree:
            if site["name"] in self.local:
                return jnp.zeros(unconstrained_shape(site, transform))
            if unconstrained_shape(site, transform) != self.latents[site["name"]].shape:
                message = refusals.latent_of_each_row_message(site["name"], joint_name(site["fn"]))
                raise UnsupportedModelError(message)
            return z[site["name"]]

        return self._run(latent, rows, public, num_rows, assignment, observe, z)

    def _run(
        self, latent: Latent, rows: Arrays, public: Arrays, num_rows: int = 1, assignment: Arrays | None = None,
        observe: Observe | None = None, held: Arrays | None = None,
    ) -> Trace:  # fmt: skip
        if assignment is None:  # any value will do, but what follows from it is marked as depending on the rows
            first = jnp.ravel(next(iter(rows.values())))[0]
            assignment = dict.fromkeys(dict(self.summed), (first != first).astype(int))
        bind = BindRows(latent, self.data_plate, num_rows, self.params, assignment, observe, held or {})
        with handlers.explained():
            return trace_of(self.model, self.arguments, bind, rows, public)

    def _sites(self, trace: Trace, inside: bool) -> list[Site]:
        return [s for s in trace.values() if s["type"] == "sample" and (self.data_plate in plates_of(s)) == inside]


def split_model(
    model: Model, args: tuple[object, ...], kwargs: dict[str, object], *, data_plate: str | None = None,
    variational: bool = False,
) -> SplitModel:  # fmt: skip
    """Split `model`, called as `model(*args, **kwargs)`, from the shapes and dtypes of its arguments alone.

    Every array argument that is not `Public` is private and has one row a datum along its leading axis; a
    jax.ShapeDtypeStruct may stand for it. `data_plate` names the plate that holds the rows where two fit.
    `variational` inference also takes models with numpyro.param sites and with continuous latents of rows.

    Raises UnsupportedModelError, which names the site, the cause and the cure, for a model that is not a prior and independent
    rows; ConfigurationError for arguments that do not fit together. Neither shows a data value."""
    if not callable(model):
        raise ConfigurationError(
            f"the model is {'None' if model is None else a(type(model).__name__)}; pass the function that has the NumPyro sites."
        )
    if not isinstance(data_plate, str | None):
        raise ConfigurationError(
            f"data_plate is the name of a plate, data_plate='data', got {a(type(data_plate).__name__)}."
        )
    arguments = Arguments.of(model, args, kwargs)
    refusals.check_lengths(arguments.unequal, lambda: _explore(model, arguments)[0])
    with handlers.failing_explained(arguments.words), handlers.explained():
        structure, program, outputs, claims = _explore(model, arguments)

    def again() -> object:
        """The same of another call of the model, or the kind of its error where it fails."""
        try:
            return _seen(*_explore(model, arguments)[:2])
        except Exception as error:
            return type(error)

    try:
        return _split(model, args, kwargs, arguments, structure, (program, outputs), claims, data_plate, variational)
    except Exception:
        first = _seen(structure, program)
        if any(again() != first for _ in range(2)):
            raise UnsupportedModelError(refusals.CHANGES) from None
        raise


def _split(
    model: Model, args: tuple[object, ...], kwargs: dict[str, object], arguments: Arguments, structure: Structure,
    program: tuple[Traced, Tree], claims: Function, data_plate: str | None, variational: bool,
) -> SplitModel:  # fmt: skip
    """`split_model`, from what the model is on all rows."""

    @cache
    def more() -> Structure | None:
        try:
            return _explore(model, arguments, arguments.num_rows + 1)[0]
        except Exception:  # only asked to explain a refusal
            return None

    refusals.check_structure(structure, variational)
    data_plate = refusals.find_data_plate(structure, arguments.num_rows, data_plate, more, arguments.missing)
    local, summed = refusals.check_sites(structure, data_plate, variational)
    lengths = {arguments.num_rows, structure.plates[data_plate][0]}
    by_site(refusals.check_effects, *program)
    assumed_public = by_site(partial(refusals.check_captured, lengths=lengths), *program)
    assumed_public = (*assumed_public, *captured(model, arguments.names), *arguments.assumed_public)
    of_rows = {*local, *dict(summed)}
    latents = {n: latent for n, latent in structure.latents.items() if latent is not None and n not in of_rows}
    masked = tuple(name for name in dict(summed) if name in structure.masked)
    split = SplitModel(
        latents, arguments.num_rows, assumed_public, model, arguments, data_plate, structure.params, (), local, summed, masked
    )  # fmt: skip
    public = arguments.public_values(model, args, kwargs)
    claims(public)
    stand_ins = missing.stand_ins(split, structure.latents, public)
    deterministic, observed, unlike = check_dependence(split.terms, latents, arguments)
    refusals.check_latents(structure)
    axes = {name: structure.observed[name].axes[data_plate] for name in observed}
    explain = lambda name, what: refusals.coupled_message(name, what, structure, more()) + split.imputed_words()  # noqa: E731
    check_coupling(split.likelihoods, latents, arguments, public, observed, axes, explain)
    if unlike:
        raise UnsupportedModelError(refusals.NUMBER.format(f"likelihood of site '{unlike[0]}'"))
    notes = structure.notes(data_plate, deterministic)
    return replace(split, deterministic=deterministic, missing=stand_ins, notes=notes, dims=structure.dims)


def _seen(structure: Structure, program: Traced) -> tuple[list[str], str]:
    """Names of latents and the text of a model's program, to compare two calls."""
    return list(structure.latents), re.sub(r"0x[0-9a-f]+", "", str(program))


def _explore(
    model: Model, arguments: Arguments, num_rows: int | None = None
) -> tuple[Structure, Traced, Tree, Function]:
    """Run the model abstractly as NumPyro does, on all rows or on so many: its structure, the program of all that it computes,
    and a function that checks, given Public arrays, the parameters that are computed from these and from constants alone.

    Sites outside of all plates that observe what depends on no row, as handlers.condition makes them, are a part of the prior."""
    rows = arguments.rows if num_rows is None else arguments.shapes(num_rows)
    found: list[Structure] = []
    claims: list[refusals.Claim] = []
    outside: dict[str, Tree] = {}

    def run(rows: Arrays, public: Arrays, unknown: jax.Array) -> Tree:
        latent = lambda site, transform: jnp.full(unconstrained_shape(site, transform), unknown, float)  # noqa: E731
        with numpyro.handlers.seed(rng_seed=unknown):
            trace = trace_of(model, arguments, BindLatents(latent), rows, public)
        claims.extend(refusals.claims(trace))
        found.append(Structure.of(trace))
        outside.update({name: trace[name]["value"] for name in found[0].observed if not plates_of(trace[name])})
        values = {name: site["value"] for name, site in trace.items() if site["type"] == "deterministic"}
        samples = {name: site for name, site in trace.items() if site["type"] == "sample"}
        log_probs = {name: handlers.explained_log_prob(site) for name, site in samples.items()}
        limits = {name: censoring.leaves(site) for name, site in samples.items()}
        return (list(outside.values()), values, log_probs, limits), [(claim.numbers, claim.same) for claim in claims]

    whole, (outputs, numbers) = jax.make_jaxpr(run, return_shape=True)(rows, arguments.public, abstract((), np.int32))
    last = len(jax.tree.leaves(outputs))
    program = whole.replace(jaxpr=whole.jaxpr.replace(outvars=whole.jaxpr.outvars[:last]))
    for number, name in enumerate(outside):
        used = used_inputs(program, [output == number for output in range(last)])
        if not any(used[: len(rows)]):
            del found[0].observed[name]
            found[0].fixed.append(name)

    def check(public: Arrays) -> None:
        made_of = partial(jax.tree.unflatten, jax.tree.structure(numbers))
        values = made_of(known(whole, [*[None] * len(rows), *jax.tree.leaves(public), None])[last:])
        for claim, (given, _), (_, same) in zip(claims, values, made_of(whole.jaxpr.outvars[last:])):
            is_known = all(value is not None for value in given)
            if is_known and not claim.holds(*given) and (not same or is_rearranged(whole, *same)):
                raise UnsupportedModelError(claim.message)

    return found[0], program, outputs, check


def _total(log_probs: Iterable[Tree]) -> jax.Array:
    return sum((jnp.sum(log_prob) for log_prob in log_probs), start=jnp.zeros(()))
