"""Handlers to run a model with given latents, the data plate bound to some rows, and errors explained."""

import contextlib
import functools
import inspect
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.extend.core import get_opaque_trace_state
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.primitives import Messenger

from dpppl.errors import DPPPLError, UnsupportedModelError
from dpppl.jaxprs import VALUE_ERRORS
from dpppl.model.arguments import Arguments, Arrays, Model
from dpppl.model.censoring import Censored, with_indicators
from dpppl.model.refusals import CONTROL_FLOW, check_shape
from dpppl.model.structure import Site, Trace, is_observed, log_prob_of, plates_of, scalar_of, transform_of, value_at
from dpppl.types import Distribution, Tree
from dpppl.validation import a

_trace_state = functools.partial(get_opaque_trace_state, convention="nnx")
Latent = Callable[[Site, Distribution], Tree]
"""`latent(site, transform)`: the unconstrained value of a continuous latent site."""
Observe = Callable[[Site], Tree]
"""`observe(site)`: the value of an observed site, or None for the one that the model gives."""
_FOLDERS = [os.path.dirname(str(module.__file__)) for module in (jax, numpyro, np)]
_FOLDERS += [os.path.join(os.path.dirname(_FOLDERS[0]), "flax"), os.path.dirname(os.path.dirname(__file__))]
_LIBRARIES = (*(os.path.join(folder, "") for folder in _FOLDERS), contextlib.__file__, functools.__file__)
_CURES = {
    "string indexing": "; a data frame arrives as an array: for columns by name pass a dict of them.",
    "[Ii]nd(ex|ices).*integer": "; ids are integers, counted from 0: give rows without one (NaN, NA) an id of their "
    'own, and pass ids.astype("int32").',
    "tuple index out of range": "; an array has too few axes (a list is one number a row: pass arrays, those of batches joined "
    "by numpy.concatenate).",
    "`mask` should be a bool": " Write mask.astype(bool).",
    "Invalid type for 'fn'": " Write numpyro.sample('mu', dist.Normal(0, 1)).",
}
"""Cures, by words of the error."""


@contextlib.contextmanager
def explained(what: str = "model") -> Iterator[None]:
    """Re-raise what JAX and NumPyro say about a model or a score that cannot be traced, with the user's line and the cure."""
    try:
        yield
    except jax.errors.NonConcreteBooleanIndexError as error:
        raise UnsupportedModelError(
            f"the {what} chooses entries of an array by truth values{user_line(error)}, so that their number depends on rows; "
            "keep all rows, and mask those that do not count: with numpyro.handlers.mask(mask=ok)."
        ) from None
    except VALUE_ERRORS as error:
        raise UnsupportedModelError(
            f"the {what} branches on, or converts to Python or NumPy, the value of an array{user_line(error)}; use jnp.where, "
            "jax.lax.cond or jax.numpy. A size, a number of groups or a switch is public: pass it as an argument of its own, a "
            "Python number, model(group, y, num_groups=5) instead of int(group.max()) + 1."
        ) from None
    except NotImplementedError as error:
        if "control flow" not in str(error):
            raise
        raise UnsupportedModelError(CONTROL_FLOW) from None


@contextlib.contextmanager
def failing_explained(words: str, what: str = "model") -> Iterator[None]:
    """Re-raise what else a model or a score that is traced fails with: it tells shapes and dtypes, since rows are abstract.

    - **words** - names, types and shapes of the arguments."""
    try:
        yield
    except DPPPLError:
        raise
    except Exception as error:
        if isinstance(error, VALUE_ERRORS) or "control flow" in str(error):  # `explained` says it
            raise
        cure = next((cure for pattern, cure in _CURES.items() if re.search(pattern, str(error))), "")
        said = str(error)
        if isinstance(error, AttributeError) and isinstance(error.obj, str | tuple | list | dict | None):
            said = f"{a(type(error.obj).__name__)} is taken for an array"
            cure = "; pass an array."
            if isinstance(error.obj, tuple | list):
                cure = "; pass its arrays as arguments of their own, those of batches joined by numpy.concatenate."
        if any(f.filename.endswith("censored.py") for f in traceback.extract_tb(error.__traceback__)):
            said = "NumPyro censors no law without a cdf, nor one that is made of vectors, as Beta and mixtures are"
            cure = "; take another law, such as dist.Weibull or dist.LogNormal, or write its density by numpyro.factor."
        raise UnsupportedModelError(f"the {what} fails on {words}{user_line(error)}: {said}{cure}") from None


def user_line(error: BaseException) -> str:
    """Where in the user's code an error arose, in brackets."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_LIBRARIES)]
    return f" ({frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""


def trace_of(model: Model, arguments: Arguments, bind: "BindLatents", rows: Arrays, public: Arrays) -> Trace:
    """NumPyro's trace of one run, with its checks of values off."""
    args, kwargs = arguments.join(rows, public)
    with numpyro.validation_enabled(False), handlers.trace() as trace, bind:
        returned = model(*args, **kwargs)
    if not trace and (inspect.isgenerator(returned) or inspect.iscoroutine(returned)):
        returned.close()
        raise UnsupportedModelError(
            "the model yields or is async, so calling it runs none of it: write def, without yield."
        )
    if callable(returned) and not trace:
        raise UnsupportedModelError(
            "the model has no site and returns a function: pass the function that it returns, model() in place of model."
        )
    return trace


def explained_log_prob(site: Site) -> jax.Array:
    """`log_prob_of`. Raises UnsupportedModelError, with the cure, where shapes or types do not go together."""
    check_shape(site)
    try:
        log_prob = log_prob_of(site)
    except (TypeError, ValueError) as error:
        if "integer" not in str(error):
            raise UnsupportedModelError(
                f"the log density of site '{site['name']}' cannot be computed: {error}; give parameters, handlers.mask and "
                "handlers.scale the shape of their plate, (n,)."
            ) from None
        raise UnsupportedModelError(
            f"the {type(site['fn']).__name__} of site '{site['name']}' takes no values of dtype "
            f"{jnp.result_type(site['value'])} ({error}); labels of classes are integers: observe y.astype(int)."
        ) from None
    if jnp.iscomplexobj(log_prob):
        raise UnsupportedModelError(
            f"the log density of site '{site['name']}' is a complex number, because its values are complex; observe "
            "their real and imaginary parts, jnp.stack([y.real, y.imag], -1) with .to_event(1), or write a real density "
            "with numpyro.factor."
        )
    return log_prob


class BindLatents(Messenger):
    """An effect handler that gives each continuous latent site an unconstrained value.

    - **latent** - of (site, transform to the site's support): the value."""

    def __init__(self, latent: Latent) -> None:
        self.latent = latent
        super().__init__()

    def __enter__(self) -> Tree:
        self.trace_state, self.names, self.sizes = _trace_state(), set[str](), dict[str, int]()
        return super().__enter__()

    def process_message(self, msg: Site) -> None:
        if msg["type"] == "control_flow":
            raise UnsupportedModelError(CONTROL_FLOW)
        if msg["type"] in ("sample", "plate", "deterministic", "param") and not isinstance(msg["name"], str):
            raise UnsupportedModelError(
                f"a site's name is {msg['name']!r}; names are strings: numpyro.sample('mu', ...)."
            )
        if msg["type"] == "plate":
            size = self.sizes.setdefault(msg["name"], msg["args"][0])
            if size != msg["args"][0]:
                raise UnsupportedModelError(
                    f"two plates of different length are named '{msg['name']}' ({size} and {msg['args'][0]}); give each a name "
                    "of its own: numpyro.plate('groups', num_groups) for groups, numpyro.plate('data', y.shape[0]) for rows."
                )
        if msg["type"] in ("sample", "deterministic"):
            if self.trace_state != _trace_state():
                raise UnsupportedModelError(
                    f"site '{msg['name']}' is inside jax.lax control flow, jax.jit or jax.vmap, where NumPyro counts it once; "
                    "write it outside, as one vectorised site."
                )
            if msg["name"] in self.names:
                raise UnsupportedModelError(
                    f"two sites are named '{msg['name']}'; give each a name of its own (in a loop f\"{msg['name']}_{{i}}\", "
                    "or numpyro.handlers.scope)."
                )
            self.names.add(msg["name"])
        is_free = msg["type"] == "sample" and msg["value"] is None
        if is_free and not msg["is_observed"] and not msg["fn"].support.is_discrete:
            msg["value"] = self._constrain(msg)

    def _constrain(self, msg: Site) -> Tree:
        """Add the Jacobian as NumPyro does: a factor that the handlers around the site act on, too."""
        transform = transform_of(msg)
        value = transform(unconstrained := self.latent(msg, transform))
        log_det = transform.log_abs_det_jacobian(unconstrained, value)
        event_dims = jnp.ndim(log_det) - jnp.ndim(value) + len(msg["fn"].event_shape)
        factor = dist.Unit(jnp.sum(log_det, axis=tuple(range(-event_dims, 0))))
        infer = {"is_auxiliary": True, "is_jacobian": True}
        numpyro.sample(f"_{msg['name']}_log_det", factor, obs=factor.sample(None), infer=infer)
        return value


class BindPlate(Messenger):
    """An effect handler that makes the data plate as long as the rows given, each counted once.

    - **data_plate** - the plate's name.
    - **num_rows** - the number of rows."""

    def __init__(self, data_plate: str, num_rows: int = 1) -> None:
        self.data_plate, self.num_rows = data_plate, num_rows
        super().__init__()

    def process_message(self, msg: Site) -> None:
        if msg["type"] == "plate" and msg["name"] == self.data_plate:
            size, _ = msg["args"]
            self.plate_scale = size / self.num_rows
            msg["args"] = (size, self.num_rows)
            msg["value"] = jnp.arange(self.num_rows)
        elif msg["type"] == "subsample":
            msg["kwargs"]["event_dim"] = None  # the rows are the subsample already
        elif msg["type"] == "sample" and self.data_plate in plates_of(msg) and self.plate_scale != 1.0:
            scale = msg["scale"] / self.plate_scale
            is_one = isinstance(scale, float) and scale == 1.0  # as in a plate that is as long as the rows
            msg["scale"] = None if is_one else scale


class BindRows(BindLatents):
    """An effect handler that also binds the data plate, the parameters, and latents of rows that are summed out.

    - **latent** - as for `BindLatents`.
    - **data_plate**, **num_rows** - as for `BindPlate`.
    - **params** - values of parameters, by name.
    - **assignment** - numbers of the values of latents of rows, for `value_at`, or functions of the site that give values.
    - **observe** - of an observed site of rows: the value it gets; what the model observes there is kept as "given". None: that.
    - **held** - values of deterministic sites, by name, whatever the model computes there."""

    def __init__(
        self, latent: Latent, data_plate: str, num_rows: int, params: Mapping[str, Tree], assignment: Mapping[str, Tree],
        observe: Observe | None, held: Mapping[str, Tree],
    ) -> None:  # fmt: skip
        self.plate, self.params = BindPlate(data_plate, num_rows), params
        self.assignment, self.observe, self.held = assignment, observe, held
        super().__init__(latent)

    def process_message(self, msg: Site) -> None:
        self.plate.process_message(msg)
        name = str(msg.get("name"))
        if msg["type"] == "sample" and name in self.assignment:
            choice = self.assignment[name]
            value = choice(msg) if callable(choice) else value_at(msg, choice)
            msg["value"] = jnp.broadcast_to(value, msg["kwargs"]["sample_shape"] + msg["fn"].batch_shape)
        elif self.observe is not None and is_observed(msg, self.plate.data_plate):
            value = self.observe(msg)
            msg["given"] = msg["value"]
            if isinstance(value, Censored):
                msg["fn"], value = with_indicators(msg["fn"], value.indicators), value.value
            msg["value"] = msg["given"] if value is None else value
        elif msg["type"] == "deterministic" and name in self.held:
            msg["value"] = self.held[name]
        elif msg["type"] == "param":
            msg["value"] = self.params[name]
        elif msg["type"] == "prng_key":
            raise UnsupportedModelError(
                "the model draws random numbers of its own (numpyro.prng_key, dropout, handlers.block), so its density is not "
                "a function of its latents; switch the randomness off or make it a latent site."
            )
        super().process_message(msg)


def made_up_value(support: Distribution, noise: Tree) -> jax.Array | None:
    """Values in a support, from uniform numbers in (0, 1) of the values' shape; None where the support is not known."""
    support = scalar_of(support)
    if isinstance(support, type(constraints.boolean)):
        return noise > 0.5
    if isinstance(support, constraints.integer_interval):
        low, high = support.lower_bound, support.upper_bound
        return jnp.minimum(low + jnp.floor(noise * (high - low + 1)), high)
    if isinstance(support, constraints.integer_greater_than):
        return support.lower_bound + jnp.floor(4.0 * noise)
    if isinstance(support, constraints.interval):
        return support.lower_bound + noise * (support.upper_bound - support.lower_bound)
    if isinstance(support, constraints.greater_than):
        return support.lower_bound + 1.0 + 2.0 * noise
    if isinstance(support, constraints.less_than):
        return support.upper_bound - 1.0 - 2.0 * noise
    if isinstance(support, type(constraints.simplex)):
        return noise / jnp.sum(noise, axis=-1, keepdims=True)
    if isinstance(support, type(constraints.real)):
        return 4.0 * noise - 2.0
    try:
        return support.feasible_like(noise)
    except NotImplementedError:
        return None
