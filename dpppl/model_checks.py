"""What a model must satisfy to be split by rows. Every refusal names the site, the cause and the cure, never a value.

All but the last check look at abstract traces only; `check_rows_independent` runs the model on made-up rows.
"""

import math
import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.interpreters.partial_eval import dce_jaxpr

from dpppl.errors import ConfigurationError, UnsupportedModelError

Arrays = dict[str, Any]
Shapes = dict[str, jax.ShapeDtypeStruct]
_JAX, _NUMPYRO, _NUMPY, _HERE = (
    os.path.dirname(str(f)) for f in (jax.__file__, numpyro.__file__, np.__file__, __file__)
)
_LIBRARIES = tuple(
    os.path.join(p, "") for p in (_JAX, _NUMPYRO, _NUMPY, _HERE, os.path.join(os.path.dirname(_JAX), "flax"))
)
_VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)

_MOST_COMBINATIONS = 1024


@dataclass
class Structure:
    """Names and shapes found by one abstract run on all rows; holds no array and no tracer."""

    plates: dict[str, tuple[int, int]] = field(default_factory=dict)  # size, number of indices
    latents: dict[str, jax.ShapeDtypeStruct | None] = field(default_factory=dict)  # None: discrete
    supports: dict[str, int | None] = field(default_factory=dict)  # sizes of finite supports
    observed: list[str] = field(default_factory=list)
    factors: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    mutable: list[str] = field(default_factory=list)
    plates_of: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the plates around each sample site


@contextmanager
def without_value_checks() -> Iterator[None]:
    """Inside, a row that is not finite raises nothing even where the user has switched JAX's checks of values on."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


@contextmanager
def explained() -> Iterator[None]:
    """Re-raise what JAX and NumPyro say about a model that cannot be traced, with the user's line and the cure."""
    try:
        yield
    except _VALUE_ERRORS as error:
        raise UnsupportedModelError(
            f"the model branches on, or converts to Python or NumPy, the value of an array{user_line(error)}; use "
            "jnp.where, jax.lax.cond or jax.numpy, and pass sizes and switches as Python numbers."
        ) from None
    except NotImplementedError as error:
        if "control flow" not in str(error):
            raise
        raise UnsupportedModelError(control_flow_message()) from None


def control_flow_message() -> str:
    return (
        "the model uses numpyro.contrib.control_flow, whose sample sites cannot be split by rows; write the sites "
        "outside of it, as one vectorised site each, and use jax.lax.scan or jax.lax.cond for what is not a site."
    )


def nested_message(name: str) -> str:
    return (
        f"site '{name}' is inside jax.lax control flow, jax.jit or jax.vmap, where NumPyro counts it once; write it "
        "outside, as one vectorised site."
    )


def random_message() -> str:
    return (
        "the model draws random numbers of its own (numpyro.prng_key, dropout, handlers.block), so its density is not "
        "a function of its latents; switch the randomness off or make it a latent site."
    )


def user_line(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_LIBRARIES)]
    return f" ({frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""


def shape_of(label: str, array) -> jax.ShapeDtypeStruct:
    try:
        return jax.eval_shape(jnp.asarray, array)
    except TypeError:
        raise ConfigurationError(
            f"argument '{label}' is an array of dtype {array.dtype}; arrays are numbers."
        ) from None


def check_static(label: str, value):
    """Refuse array-likes, which would count as public settings."""
    is_array_like = hasattr(value, "__array__") or hasattr(value, "__jax_array__")
    if is_array_like and not isinstance(value, (np.generic, type)):
        raise ConfigurationError(f"argument '{label}' is a {type(value).__name__}; pass a NumPy or JAX array.")
    return value


def check_rows(rows: Shapes) -> None:
    if not rows:
        raise UnsupportedModelError(
            "the model has no private argument: pass the data as array arguments, not by closure and not all of them "
            "wrapped in dpppl.Public."
        )
    for label, shape in rows.items():
        if not shape.shape:
            raise ConfigurationError(
                f"argument '{label}' is an array without rows; wrap it in dpppl.Public, or pass a Python number."
            )
        if shape.shape[0] == 0:
            raise ConfigurationError(f"argument '{label}' has no rows: its leading axis has length 0.")
    first, *others = rows
    for label in others:
        if rows[label].shape[0] != rows[first].shape[0]:
            raise ConfigurationError(
                f"arguments '{first}' and '{label}' have leading axes of different length; the leading axis of a "
                "private array is the data axis, and every other array is wrapped in dpppl.Public."
            )


def check_lists(names: list[str], values: list, num_rows: int, public: type) -> None:
    """Refuse lists of numbers that may be data: as Python numbers they would count as public settings."""

    def is_column(value):
        return isinstance(value, (list, tuple)) and len(value) == num_rows and _all_numbers(value)

    for name, value in zip(names, values):
        for leaf in jax.tree.leaves(value, is_leaf=lambda v: is_column(v) or isinstance(v, public)):
            if is_column(leaf):
                raise ConfigurationError(
                    f"argument '{name}' holds a {type(leaf).__name__} of numbers as long as the data; pass it as an "
                    "array if it is data, in dpppl.Public if it is not."
                )


def _all_numbers(value) -> bool:
    return all(isinstance(leaf, (int, float, complex, np.generic)) for leaf in jax.tree.leaves(value))


def check_structure(structure: Structure, variational: bool = False) -> None:
    """Refuse the kinds of site that no split supports."""
    for name in structure.mutable:
        raise UnsupportedModelError(
            f"site '{name}' is mutable state (batch norm, running statistics), which carries data from row to row; use "
            "a layer without state, such as layer or group normalisation."
        )
    for name, value in structure.params.items():
        if jax.tree.leaves(value) and not variational:
            raise UnsupportedModelError(
                f"site '{name}' is a numpyro.param, which would stay at its initial value; give it a prior "
                "(numpyro.sample, numpyro.handlers.lift, random_flax_module) or pass it as an argument."
            )
    for name in structure.latents:
        base = name.removesuffix("_unobserved")
        if base != name and f"{base}_observed" in structure.observed:
            raise UnsupportedModelError(
                f"site '{base}' has an obs_mask, which makes every missing value a latent of its own; leave missing "
                "values out of the density with numpyro.handlers.mask instead."
            )


def find_data_plate(structure: Structure, num_rows: int, data_plate: str | None) -> str:
    """The one plate as long as the private arrays and around every observed site."""
    observed = structure.observed
    if not observed:
        observed = [name for name in structure.factors if structure.plates_of[name]]
    if not observed:
        raise UnsupportedModelError(
            "the model has no observed site: pass the private array that it observes (obs=y inside the data plate)."
        )
    fits = [name for name, lengths in structure.plates.items() if num_rows in lengths]
    if data_plate is not None:
        if data_plate not in fits:
            raise ConfigurationError(f"data_plate '{data_plate}' is not a plate of the model as long as its arrays.")
        fits = [data_plate]
    for name in observed:
        if not set(fits) & set(structure.plates_of[name]):
            raise UnsupportedModelError(
                f"site '{name}' is observed outside the data plate; wrap it in "
                'numpyro.plate("data", x.shape[0]), the plate as long as the private arrays.'
            )
    around_all = [name for name in fits if all(name in structure.plates_of[site] for site in observed)]
    if not around_all:
        raise UnsupportedModelError(
            f"sites {_quoted(observed)} are observed in different plates, so there is more than one data plate; "
            "observe them in one numpyro.plate, or in plates of one name."
        )
    if len(around_all) > 1:
        raise ConfigurationError(
            f"plates {_quoted(around_all)} are both as long as the private arrays and around every observed site; "
            f"say which one holds the rows: data_plate='{around_all[0]}'."
        )
    return around_all[0]


def check_sites(
    structure: Structure, data_plate: str, variational: bool = False
) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Refuse latents and plates that do not fit the data plate; name the latents of rows, continuous and discrete."""
    locals_, discrete = [], []
    for name, (size, length) in structure.plates.items():
        if name != data_plate and size != length:
            raise UnsupportedModelError(
                f"plate '{name}' subsamples, but only the data plate '{data_plate}' may; remove its subsample_size."
            )
    for name, latent in structure.latents.items():
        local = data_plate in structure.plates_of[name]
        if local and latent is None:
            values = structure.supports[name]
            if values is None or structure.plates_of[name] != (data_plate,):
                raise UnsupportedModelError(
                    f"site '{name}' is a discrete latent of each row that cannot be summed out: it needs a finite "
                    f"support and the data plate '{data_plate}' as its only plate; sum it out by hand "
                    "(numpyro.distributions.MixtureSameFamily, or numpyro.factor with a logsumexp)."
                )
            discrete.append((name, values))
        elif local and variational:
            locals_.append(name)
        elif local:
            raise UnsupportedModelError(
                f"site '{name}' is a continuous latent of each row, which MCMC could not release without revealing "
                "the row; integrate it out by hand, or move it out of the data plate if it is global."
            )
        elif latent is None:
            raise UnsupportedModelError(
                f"site '{name}' is a global discrete latent, which has no gradient; sum it out by hand "
                "(numpyro.distributions.MixtureSameFamily, or numpyro.factor with a logsumexp)."
            )
    combinations = math.prod(size for _, size in discrete)
    if combinations > _MOST_COMBINATIONS:
        raise UnsupportedModelError(
            f"the discrete latents of a row, {_quoted([name for name, _ in discrete])}, have {combinations} joint "
            f"values, too many to sum out (at most {_MOST_COMBINATIONS}); use fewer or sum some out by hand."
        )
    return tuple(locals_), tuple(discrete)


def check_captured(jaxpr, lengths: set[int]) -> tuple[str, ...]:
    """Refuse captured arrays as long as the data; describe the other ones."""
    described = []
    for value in _constants(jaxpr):
        if np.size(value) <= 1:
            continue  # a number, often one that NumPyro reshaped
        axes = ["N" if axis in lengths else str(axis) for axis in np.shape(value)]
        description = f"{value.dtype}[{', '.join(axes)}]"
        if "N" in axes:
            raise UnsupportedModelError(
                f"the model captures an array {description} with an axis as long as the data plate (a closure, "
                "functools.partial, numpyro.handlers.condition); pass it as an argument of the model, wrapped in "
                "dpppl.Public if it is not private. If the model makes it itself, use jax.numpy instead of NumPy."
            )
        described.append(description)
    return tuple(dict.fromkeys(described))


def check_effects(jaxpr) -> None:
    if jaxpr.effects:
        raise UnsupportedModelError(
            "the model has a side effect (jax.debug.print, a callback, checkify), which would show private values; "
            "remove it."
        )
    if any(equation.primitive.name == "custom_vmap_call" for equation in _equations(jaxpr)):
        raise UnsupportedModelError(
            "the model uses jax.custom_batching.custom_vmap, whose rule would see all rows at once; remove it."
        )


def check_split(terms: Callable, latents: Shapes, rows: Shapes, public: Shapes) -> tuple[str, ...]:
    """Refuse priors that depend on data and sites that do not depend on a row; name the deterministic sites to return.

    `terms(num_rows)(z, rows, public)` is all that a run on `num_rows` rows computes, by role and site.
    """
    try:
        one, three = (_Dependence(terms(n), latents, _batch(rows, n), public) for n in (1, 3))
    except UnsupportedModelError:
        raise
    except Exception as error:  # it ran on all rows, so the cause is their number
        raise UnsupportedModelError(_fixed_rows(f"the model{user_line(error)}")) from None
    for name in latents:
        _check_prior(one, three, name)
    for name in one.sites("prior"):
        if one.rows("prior", name):
            raise UnsupportedModelError(
                f"factor site '{name}' depends on the data but is outside the data plate; move it into the plate, "
                "one value a row."
            )
        _check_number_of_rows(one, three, "prior", name)
    for name in one.sites("observed"):
        if not one.rows("observed", name):
            raise UnsupportedModelError(
                f"the observed value of site '{name}' does not depend on a private argument; observe the private "
                "array itself (obs=y), or use numpyro.factor."
            )
    if not any(one.rows("likelihood", name) for name in one.sites("likelihood")):
        raise UnsupportedModelError(
            f"sites {_quoted(one.sites('likelihood'))} inside the data plate do not depend on a private argument; "
            "pass the private arrays as arguments and use them there."
        )
    for name in one.sites("likelihood"):
        if one.shape("likelihood", name) != (1,) or three.shape("likelihood", name) != (3,):
            raise UnsupportedModelError(_fixed_rows(f"site '{name}'"))
    return tuple(
        name
        for name in one.sites("deterministic")
        if not one.rows("deterministic", name) and one.text("deterministic", name) == three.text("deterministic", name)
    )


def _check_prior(one: "_Dependence", three: "_Dependence", name: str) -> None:
    others = one.latents("latent", name) - {name}
    if others:
        raise UnsupportedModelError(
            f"the support of site '{name}' depends on site {_quoted(sorted(others))} (dynamic support); sample it on a "
            "fixed support and transform it with numpyro.deterministic."
        )
    for role, what in (("latent", "support"), ("prior", "prior")):
        if one.rows(role, name):
            raise UnsupportedModelError(
                f"the {what} of site '{name}' depends on the data; make it a constant, or pass what it needs as a "
                "public argument (dpppl.Public)."
            )
        _check_number_of_rows(one, three, role, name)


def _check_number_of_rows(one: "_Dependence", three: "_Dependence", role: str, name: str) -> None:
    if one.text(role, name) != three.text(role, name):
        raise UnsupportedModelError(
            f"the prior of site '{name}' depends on the number of rows (x.shape[0], or a plate of that size around a "
            "latent); pass a public number as an argument instead."
        )


def _fixed_rows(what: str) -> str:
    return (
        f"{what} fixes the number of rows: the model cannot be run on fewer rows than it was called with; take the "
        "number of rows from the arrays (x.shape[0]) and pass every array with one entry a row as a private argument."
    )


def check_rows_independent(terms: Callable, latents: Shapes, rows: Shapes, public: Arrays) -> None:
    """Compare a batch of three made-up rows with the three rows one by one, at made-up latents."""

    @jax.default_matmul_precision("highest")
    def both(z, rows, public):
        def alone(row):
            return terms(1)(z, jax.tree.map(lambda value: value[None], row), public)["likelihood"]

        return terms(3)(z, rows, public)["likelihood"], jax.vmap(alone)(rows)

    traced = jax.jit(both).trace(*_made_up(latents, rows, public, seed=0))
    tolerance = 0.03 if re.search(r"\bb?f16\[", str(traced.jaxpr)) else 1e-4
    compiled = traced.lower().compile()
    for seed in range(3):
        with jax.debug_nans(False):  # made-up values may be outside a support
            together, alone = jax.device_get(compiled(*_made_up(latents, rows, public, seed)))
        for name, expected in together.items():
            if not np.allclose(alone[name][:, 0], expected, rtol=tolerance, atol=tolerance, equal_nan=True):
                raise UnsupportedModelError(
                    f"site '{name}' couples the rows, or depends on their number or position (a mean over rows, "
                    "x.shape[0], an array indexed by the plate): on a batch its log likelihood is not that of each "
                    "row by itself; pass what belongs to one row as an unmarked argument and what is publicly known of "
                    "all rows as a dpppl.Public one."
                )


def _made_up(latents: Shapes, rows: Shapes, public: Arrays, seed: int) -> tuple[Arrays, Arrays, Arrays]:
    """Latents, three rows and Public arrays; the real ones, unless they are unknown or as long as the data."""
    rng = np.random.default_rng(seed)
    num_rows = next(iter(rows.values())).shape[0]

    def draw(shape, dtype):  # in most supports: floats in (0, 1), integers 0 and 1, the last time 1 only
        if jnp.issubdtype(dtype, jnp.inexact):
            return np.asarray(rng.uniform(0.1, 0.9, shape), dtype)
        return np.asarray(rng.integers(seed // 2, 2, shape), dtype)

    z = {name: np.asarray(0.3 * rng.standard_normal(s.shape), s.dtype) for name, s in latents.items()}
    batch = {name: draw((3, *s.shape[1:]), s.dtype) for name, s in rows.items()}
    known = {}
    for name, value in public.items():
        unknown = isinstance(value, (jax.core.Tracer, jax.ShapeDtypeStruct)) or value.shape[:1] == (num_rows,)
        known[name] = draw(value.shape, value.dtype) if unknown else value
    return z, batch, known


class _Dependence:
    """Which outputs of an abstract trace depend on which inputs, by dead-code elimination."""

    def __init__(self, function: Callable, z: Shapes, rows: Shapes, public: Shapes):
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(z, rows, public)
        outputs = [(path[0].key, path[1].key) for path, _ in jax.tree_util.tree_flatten_with_path(shapes)[0]]
        self._constants, self._shapes = closed.consts, shapes
        groups = {"latent": z, "row": rows, "public": public}
        inputs = [(kind, name) for kind, group in groups.items() for name in sorted(group)]
        self._jaxprs = {}  # of each role: what it needs of the trace, its inputs, its outputs
        for role in shapes:
            used_outputs = [output_role == role for output_role, _ in outputs]
            jaxpr, used = dce_jaxpr(closed.jaxpr, used_outputs)
            self._jaxprs[role] = jaxpr, list(compress(inputs, used)), [n for r, n in outputs if r == role]

    def sites(self, role: str) -> list[str]:
        return list(dict.fromkeys(self._jaxprs[role][2]))

    def shape(self, role: str, name: str) -> tuple[int, ...]:
        return self._shapes[role][name].shape

    def latents(self, role: str, name: str) -> set[str]:
        return {n for kind, n in self._reduced(role, name)[1] if kind == "latent"}

    def rows(self, role: str, name: str) -> set[str]:
        return {n for kind, n in self._reduced(role, name)[1] if kind == "row"}

    def text(self, role: str, name: str) -> list[str]:
        """What is computed, without memory addresses, and the constants it is computed from."""
        jaxpr, _ = self._reduced(role, name)
        numbers: dict[Any, int] = {}

        def show(v):
            return f"{v.val if hasattr(v, 'val') else numbers.setdefault(v, len(numbers))}:{v.aval}"

        equations = [([*e.invars, *e.outvars], f"{e.primitive} {e.params}") for e in jaxpr.eqns]
        lines = [f"{list(map(show, variables))} {what}" for variables, what in equations]
        lines.append(f"{list(map(show, [*jaxpr.invars, *jaxpr.outvars]))}")
        own = zip(jaxpr.constvars, getattr(jaxpr, "consts", self._constants))  # JAX 0.10 keeps them beside the jaxpr
        constants = [value for v, value in own if v in numbers] + list(_inner_constants(jaxpr))
        lines += [repr(_plain(v).tobytes()) for v in constants if not isinstance(v, jax.core.Tracer)]
        return [re.sub(r"0x[0-9a-f]+", "", line) for line in lines]

    def _reduced(self, role: str, name: str) -> tuple[Any, list[tuple[str, str]]]:
        jaxpr, inputs, sites = self._jaxprs[role]
        jaxpr, used = dce_jaxpr(jaxpr, [site == name for site in sites])
        return jaxpr, list(compress(inputs, used))


def _batch(rows: Shapes, num_rows: int) -> Shapes:
    return {name: jax.ShapeDtypeStruct((num_rows, *s.shape[1:]), s.dtype) for name, s in rows.items()}


def _constants(jaxpr) -> Iterator[Any]:
    """The arrays that a jaxpr and the jaxprs inside it captured."""
    yield from (value for value in getattr(jaxpr, "consts", ()) if hasattr(value, "dtype"))
    yield from _inner_constants(jaxpr)


def _inner_constants(jaxpr) -> Iterator[Any]:
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield from (v.val for v in equation.invars if hasattr(v, "val") and np.ndim(v.val))
        for inner in _programs(equation):
            yield from _constants(inner)


def _equations(jaxpr) -> Iterator[Any]:
    """All equations, also of the jaxprs inside."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for inner in _programs(equation):
            yield from _equations(inner)


def _programs(equation) -> Iterator[Any]:
    leaves = jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns"))
    return (parameter for parameter in leaves if hasattr(parameter, "eqns"))


def _plain(value) -> np.ndarray:
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if is_key else value)


def _quoted(names) -> str:
    return " and ".join(f"'{name}'" for name in names)
