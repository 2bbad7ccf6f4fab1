"""Splits a NumPyro model into a log prior and a log likelihood of one row.

NumPyro itself runs the model, on one row at a time: arrays of leading axis 1 inside a data plate whose indices are
`arange(1)` and whose size / subsample_size factor is divided out again. Structure is found from shapes and dtypes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.extend.core import get_opaque_trace_state
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from dpppl import model_checks as checks
from dpppl.arguments import Arguments, Arrays, Shapes
from dpppl.errors import UnsupportedModelError


@dataclass(frozen=True, eq=False)
class SplitModel:
    """A model's log prior and per-row log likelihood. Holds no array argument.

    `rows` and `public` are as `arrays` returns them: dicts by argument. `row` is `rows` without the leading axis. `z`
    maps each latent site to its unconstrained value, with the shape and dtype in `latents`. `local` names the latents
    of rows; the log likelihood has them, and the model's parameters, at made-up values.
    """

    latents: Shapes
    num_rows: int
    assumed_public: tuple[str, ...]
    model: Callable = field(repr=False)
    arguments: Arguments = field(repr=False)
    data_plate: str = field(repr=False)
    params: dict[str, Any] = field(repr=False)
    deterministic: tuple[str, ...] = field(repr=False)
    local: tuple[str, ...] = ()
    discrete: tuple[tuple[str, int], ...] = ()  # latents of a row that are summed out, and the sizes of their supports

    def arrays(self, args: tuple, kwargs: dict) -> tuple[Arrays, Arrays]:
        """The private rows (leading axis `num_rows`) and the Public arrays of a call; they may be tracers.

        Raises ConfigurationError if the call has another structure or other shapes than the one that was split."""
        return self.arguments.arrays(self.model, args, kwargs)

    @partial(jax.jit, static_argnums=0, inline=True)
    def log_prior(self, z, public):
        """Log prior density of `z`, a scalar: latent sites, Jacobians and `factor` sites outside the data plate."""
        return _total(_log_prob(site) for site in self._sites(self._at(z, self.placeholder_rows(), public), False))

    @partial(jax.jit, static_argnums=0, inline=True)
    def log_likelihood(self, z, row, public):
        """Log likelihood of one row, a scalar: observed and `factor` sites inside the data plate, not its N/B scale.

        Discrete latents of the row are summed out: all joint values of their supports are tried."""
        rows = jax.tree.map(lambda value: jnp.asarray(value)[None], row)
        return jnp.sum(self._joint(z, rows, public, 1))

    @partial(jax.jit, static_argnums=0, inline=True)
    def constrain(self, z, public) -> Arrays:
        """Values of the latent sites, and of the deterministic sites that depend on latents only."""
        trace = self._at(z, self.placeholder_rows(), public)
        return {name: trace[name]["value"] for name in (*self.latents, *self.deterministic)}

    def visit_latents(self, visit: Callable, public) -> None:
        """Run the model with the unconstrained value `visit(site, transform)` at each latent site, rows made up."""
        self._run(visit, self.placeholder_rows(), public)

    def terms(self, num_rows: int) -> Callable:
        """The function of (z, rows, public) that gives all that a run computes, by role and by site."""

        def function(z, rows, public):
            trace = self._at(z, rows, public, num_rows)
            inside = self._sites(trace, True)
            likelihood = {site["name"]: _sum_but(_log_prob(site), self._plate_dim(site)) for site in inside}
            if self.discrete:
                likelihood = {"+".join(s["name"] for s in inside): self._joint(z, rows, public, num_rows)}
            return {
                "latent": {name: trace[name]["value"] for name in self.latents},
                "prior": {site["name"]: jnp.sum(_log_prob(site)) for site in self._sites(trace, False)},
                "observed": {s["name"]: s["value"] for s in inside if s["is_observed"] and not _is_factor(s)},
                "likelihood": likelihood,
                "deterministic": {name: s["value"] for name, s in trace.items() if s["type"] == "deterministic"},
            }

        return function

    def _joint(self, z, rows, public, num_rows: int):
        """Log likelihood of each of `num_rows` rows, shape (num_rows,), discrete latents of rows summed out."""

        def given(assignment):
            inside = self._sites(self._at(z, rows, public, num_rows, assignment), True)
            return sum((_sum_but(_log_prob(s), self._plate_dim(s)) for s in inside), start=jnp.zeros(num_rows))

        if not self.discrete:
            return given({})
        names, sizes = zip(*self.discrete)
        values = np.indices(sizes).reshape(len(sizes), -1)
        return jax.nn.logsumexp(jax.vmap(given)(dict(zip(names, values))), axis=0)

    def _at(self, z, rows, public, num_rows: int = 1, assignment=None) -> dict:
        def latent(site, transform):
            return _placeholder(site, transform) if site["name"] in self.local else z[site["name"]]

        return self._run(latent, rows, public, num_rows, assignment)

    def _run(self, latent: Callable, rows, public, num_rows: int = 1, assignment=None) -> dict:
        if assignment is None:  # any value will do, but what follows from it is marked as depending on the rows
            first = jnp.ravel(next(iter(rows.values())))[0]
            assignment = dict.fromkeys(dict(self.discrete), (first != first).astype(int))
        bind = _BindRows(latent, self.data_plate, num_rows, self.params, assignment)
        with checks.explained():
            return _trace(self.model, self.arguments, bind, rows, public)

    def _sites(self, trace, inside: bool) -> list[dict]:
        return [s for s in trace.values() if s["type"] == "sample" and (self.data_plate in _plates_of(s)) == inside]

    def _plate_dim(self, site) -> int:
        return next(frame.dim for frame in site["cond_indep_stack"] if frame.name == self.data_plate)

    def placeholder_rows(self) -> Arrays:
        """One row of zeros."""
        return {name: jnp.zeros((1, *s.shape[1:]), s.dtype) for name, s in self.arguments.rows.items()}

    def placeholder_public(self) -> Arrays:
        """Zeros for the Public arrays."""
        return {name: jnp.zeros(s.shape, s.dtype) for name, s in self.arguments.public.items()}


def split_model(
    model: Callable, args: tuple, kwargs: dict, *, data_plate: str | None = None, variational: bool = False
) -> SplitModel:
    """Split `model`, called as `model(*args, **kwargs)`, from the shapes and dtypes of its arguments alone.

    Every array argument that is not `Public` is private and has one row a datum along its leading axis; a
    jax.ShapeDtypeStruct may stand for it. `data_plate` names the plate that holds the rows where two fit.
    `variational` inference also takes models with numpyro.param sites and with continuous latents of rows.

    Raises UnsupportedModelError, which names the site, the cause and the cure, for a model that is not a prior and
    independent rows; ConfigurationError for arguments that do not fit together. Neither tells a data value."""
    arguments = Arguments.of(model, args, kwargs)
    structure = checks.Structure()
    with checks.explained():
        closed = jax.make_jaxpr(partial(_explore, model, arguments, structure))(arguments.rows, arguments.public)
    checks.check_structure(structure, variational)
    data_plate = checks.find_data_plate(structure, arguments.num_rows, data_plate)
    local, discrete = checks.check_sites(structure, data_plate, variational)
    assumed_public = checks.check_captured(closed, {arguments.num_rows, structure.plates[data_plate][0]})
    checks.check_effects(closed)
    latents = {n: latent for n, latent in structure.latents.items() if latent is not None and n not in local}
    split = SplitModel(
        latents, arguments.num_rows, assumed_public, model, arguments, data_plate, structure.params, (), local, discrete
    )
    deterministic = checks.check_split(split.terms, latents, arguments.rows, arguments.public)
    checks.check_rows_independent(split.terms, latents, arguments.rows, arguments.public_values(model, args, kwargs))
    return replace(split, deterministic=deterministic)


def _explore(model, arguments: Arguments, structure: checks.Structure, rows, public):
    """Run the model on all rows as NumPyro does, note its sites in `structure`, and return all it computes."""
    with handlers.seed(rng_seed=0):
        trace = _trace(model, arguments, _BindLatents(_placeholder), rows, public)
    for name, site in trace.items():
        if site["type"] == "plate":
            structure.plates[name] = (site["args"][0], site["value"].shape[0])
        elif site["type"] == "sample":
            structure.plates_of[name] = tuple(_plates_of(site))
            if not site["is_observed"]:
                structure.latents[name] = _unconstrained_shape(site)
                structure.supports[name] = _support_size(site)
            elif not site["infer"].get("is_jacobian"):
                (structure.factors if _is_factor(site) else structure.observed).append(name)
        elif site["type"] == "param":
            structure.params[name] = _made_up_param(site)
        elif site["type"] == "mutable":
            structure.mutable.append(name)
    values = [site["value"] for site in trace.values() if site["type"] == "deterministic"]
    return values, [_log_prob(site) for site in trace.values() if site["type"] == "sample"]


def _trace(model, arguments: Arguments, bind: "_BindLatents", rows, public) -> dict:
    """NumPyro's trace of one run, with its checks of values off."""
    args, kwargs = arguments.join(rows, public)
    with numpyro.validation_enabled(False), handlers.trace() as trace, bind:
        model(*args, **kwargs)
    return trace


class _BindLatents(Messenger):
    """Gives each continuous latent site the unconstrained value `latent(site, transform)`."""

    def __init__(self, latent: Callable):
        self.latent = latent
        super().__init__()

    def __enter__(self):
        self.trace_state = get_opaque_trace_state(convention="nnx")
        return super().__enter__()

    def process_message(self, msg):
        if msg["type"] == "control_flow":
            raise UnsupportedModelError(checks.control_flow_message())
        if msg["type"] in ("sample", "deterministic") and self.trace_state != get_opaque_trace_state(convention="nnx"):
            raise UnsupportedModelError(checks.nested_message(msg["name"]))
        if msg["type"] == "sample" and not msg["is_observed"] and not msg["fn"].support.is_discrete:
            msg["value"] = self._constrain(msg)

    def _constrain(self, msg):
        """Add the Jacobian as NumPyro does: a factor that the handlers around the site act on, too."""
        transform = _transform(msg)
        unconstrained = self.latent(msg, transform)
        value = transform(unconstrained)
        log_det = transform.log_abs_det_jacobian(unconstrained, value)
        event_dims = jnp.ndim(log_det) - jnp.ndim(value) + len(msg["fn"].event_shape)
        factor = dist.Unit(jnp.sum(log_det, axis=tuple(range(-event_dims, 0))))
        infer = {"is_auxiliary": True, "is_jacobian": True}
        numpyro.sample(f"_{msg['name']}_log_det", factor, obs=factor.sample(None), infer=infer)
        return value


class BindPlate(Messenger):
    """Makes `num_rows` rows the whole of the data plate, each counted once."""

    def __init__(self, data_plate: str, num_rows: int = 1):
        self.data_plate, self.num_rows = data_plate, num_rows
        super().__init__()

    def process_message(self, msg):
        if msg["type"] == "plate" and msg["name"] == self.data_plate:
            size, _ = msg["args"]
            self.plate_scale = size / self.num_rows
            msg["args"] = (size, self.num_rows)
            msg["value"] = jnp.arange(self.num_rows)
        elif msg["type"] == "subsample":
            msg["kwargs"]["event_dim"] = None  # the rows are the subsample already
        elif msg["type"] == "sample" and self.data_plate in _plates_of(msg) and self.plate_scale != 1.0:
            msg["scale"] = msg["scale"] / self.plate_scale


class _BindRows(_BindLatents):
    """Also binds the data plate, the parameters, and discrete latents of rows to values of their supports."""

    def __init__(self, latent: Callable, data_plate: str, num_rows: int, params: dict, assignment: dict):
        self.plate, self.params, self.assignment = BindPlate(data_plate, num_rows), params, assignment
        super().__init__(latent)

    def process_message(self, msg):
        self.plate.process_message(msg)
        if msg["type"] == "sample" and msg["name"] in self.assignment:
            support = msg["fn"].enumerate_support(expand=False)
            value = support[self.assignment[msg["name"]]]
            msg["value"] = jnp.broadcast_to(value, msg["kwargs"]["sample_shape"] + msg["fn"].batch_shape)
        if msg["type"] == "param":
            msg["value"] = self.params[msg["name"]]
        elif msg["type"] == "prng_key":
            raise UnsupportedModelError(checks.random_message())
        super().process_message(msg)


def _transform(site):
    try:
        return biject_to(site["fn"].support)
    except NotImplementedError:
        raise UnsupportedModelError(
            f"site '{site['name']}' has a support without a bijection from real vectors; sample an unconstrained site "
            "and map it with numpyro.deterministic."
        ) from None


def _made_up_param(site):
    """A value of the param site's shape, inside its constraint."""
    transform = biject_to(site["kwargs"].get("constraint", dist.constraints.real))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), site["value"])
    if isinstance(shapes, jax.ShapeDtypeStruct):
        shapes = jax.ShapeDtypeStruct(transform.inverse_shape(shapes.shape), shapes.dtype)
    rng = np.random.default_rng(0)
    with jax.ensure_compile_time_eval():
        return jax.tree.map(lambda s: transform(jnp.asarray(0.1 * rng.standard_normal(s.shape), s.dtype)), shapes)


def _unconstrained_shape(site) -> jax.ShapeDtypeStruct | None:
    if site["fn"].support.is_discrete:
        return None
    return jax.ShapeDtypeStruct(_transform(site).inverse_shape(jnp.shape(site["value"])), jnp.result_type(float))


def _support_size(site) -> int | None:
    """The number of values of a discrete scalar site, or None where they cannot be listed."""
    fn = site["fn"]
    if not fn.support.is_discrete or not fn.has_enumerate_support or fn.event_shape:
        return None
    return int(fn.enumerate_support(expand=False).shape[0])


def _placeholder(site, transform):
    return jnp.zeros(transform.inverse_shape(site["kwargs"]["sample_shape"] + site["fn"].shape()))


def _plates_of(site) -> list[str]:
    return [frame.name for frame in site["cond_indep_stack"]]


def _is_factor(site) -> bool:
    return site["infer"].get("is_auxiliary", False)


def _log_prob(site):
    log_prob = site["fn"].log_prob(site["value"])
    return log_prob if site["scale"] is None else site["scale"] * log_prob


def _total(log_probs: Iterator):
    return sum((jnp.sum(log_prob) for log_prob in log_probs), start=jnp.zeros(()))


def _sum_but(log_prob, axis: int):
    """Sum over all axes but `axis`, counted from the right."""
    return jnp.sum(log_prob, axis=tuple(a for a in range(-jnp.ndim(log_prob), 0) if a != axis))
