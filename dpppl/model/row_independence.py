"""Checks that a model is a prior times independent rows.

Whether the prior depends on rows is read off abstract traces; coupled rows are found by running the model on made-up rows.
"""

import re
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from dpppl import jaxprs
from dpppl.errors import UnsupportedModelError
from dpppl.information_flow.executables import Lowered
from dpppl.jaxprs import Dependence, abstract
from dpppl.model.arguments import Arguments, Arrays, Shapes
from dpppl.model.handlers import user_line
from dpppl.model.refusals import NUMBER, quoted
from dpppl.types import Function, Tree

Terms = Callable[[int], Function]
"""`terms(num_rows)(z, rows, public)`: all terms of a run on this number of rows, by role and by site."""
_WHAT = {"likelihood": "log likelihood", "value": "observed value"}
_HALF = (jnp.float16, jnp.bfloat16)
_Kind = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
_inside: _Kind = lambda rng, shape: rng.uniform(0.1, 0.9, shape)  # noqa: E731
_KINDS: tuple[tuple[_Kind, _Kind], ...] = (
    (_inside, lambda rng, shape: rng.integers(0, 2, shape)),
    (lambda rng, shape: 1.5 * rng.standard_normal(shape), lambda rng, shape: rng.integers(0, 10, shape)),
    (_inside, lambda rng, shape: np.ones(shape)),
    (lambda rng, shape: rng.integers(0, 2, shape), lambda rng, shape: rng.integers(-3, 4, shape)),
    (lambda rng, shape: np.exp(rng.uniform(2.5, 5.0, shape)), lambda rng, shape: rng.integers(10, 150, shape)),
    (lambda *of: (x := _inside(*of)) / np.sum(x, axis=-1, keepdims=True), lambda rng, shape: np.zeros(shape)),
    (lambda *of: np.cumsum(_inside(*of), axis=-1), lambda rng, shape: -np.ones(shape)),
)
"""Floats and integers of made-up rows. The first three are always compared, the others while nothing finite was."""
_ALWAYS = 3
_NUMBER = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)")


def check_dependence(
    terms: Terms, latents: Shapes, arguments: Arguments
) -> tuple[tuple[str, ...], Shapes, tuple[str, ...]]:
    """Refuse priors that depend on data, or on the number of rows, and sites that do not depend on a row.

    Returns the deterministic sites that depend on neither, the shapes of the observed values of three rows, and the sites whose
    log likelihood is another program on all rows than on three, which a threshold of x.shape[0] makes of it."""
    try:
        one, three, whole = (
            Dependence(terms(n), latent=latents, row=arguments.shapes(n), public=arguments.public)
            for n in (1, 3, arguments.num_rows)
        )
    except UnsupportedModelError:
        raise
    except Exception as error:  # it ran on all rows, so the cause is their number
        raise UnsupportedModelError(_fixed_rows(f"the model{user_line(error)}", terms, latents, arguments)) from None

    def has_rows(role: str, name: str) -> bool:
        return any(kind == "row" for kind, _ in one.inputs(role, name))

    def is_same(role: str, name: str) -> bool:
        return one.text(role, name) == (whole if arguments.num_rows > 1 else three).text(role, name)

    def check_number_of_rows(role: str, name: str) -> None:
        if not is_same(role, name):
            raise UnsupportedModelError(NUMBER.format(f"prior of site '{name}'"))

    for name in latents:
        others = {other for kind, other in one.inputs("latent", name) if kind == "latent"} - {name}
        if others:
            raise UnsupportedModelError(
                f"the support of site '{name}' depends on site {quoted(sorted(others))} (dynamic support); sample it on a "
                "fixed support and transform it with numpyro.deterministic."
            )
        for role, what in (("latent", "support"), ("prior", "prior")):
            if has_rows(role, name):
                raise UnsupportedModelError(
                    f"the {what} of site '{name}' depends on the data; make it a constant, or pass what it needs as a "
                    "public argument (dpppl.Public)."
                )
            check_number_of_rows(role, name)
    for name in (n for n in one.names("prior") if n not in latents):
        if has_rows("prior", name):
            raise UnsupportedModelError(
                f"factor site '{name}' depends on the data but is outside the data plate; move it into the plate, "
                "one value a row."
            )
        check_number_of_rows("prior", name)
    for name in one.names("observed"):
        if not has_rows("observed", name):
            raise UnsupportedModelError(
                f"the observed value of site '{name}' does not depend on a private argument; observe the private "
                "array itself (obs=y, not marked dpppl.Public), or use numpyro.factor in the data plate."
            )
    likelihood = one.names("likelihood")
    if not any(has_rows("likelihood", name) for name in likelihood):
        raise UnsupportedModelError(
            f"sites {quoted(likelihood)} inside the data plate do not depend on a private argument; "
            "pass the private arrays as arguments and use them there."
        )
    for kind, name in one.without_slope("likelihood"):
        if kind == "latent":
            raise UnsupportedModelError(
                f"site '{name}' enters the likelihood through steps only (a comparison, a rounding, an index), where its "
                "gradient is zero, and a run learns from gradients alone; write a slope, as jax.nn.sigmoid((t - at) / width) in "
                "place of t > at, with a width that is public."
            )
    for name in likelihood:
        if one.shape("likelihood", name).shape != (1,) or three.shape("likelihood", name).shape != (3,):
            raise UnsupportedModelError(_fixed_rows(f"site '{name}'", terms, latents, arguments))
    kept = "deterministic"
    unlike = tuple(name for name in likelihood if not is_alike(three, whole, "likelihood", name, arguments.num_rows))
    own = tuple(name for name in one.names(kept) if not has_rows(kept, name) and is_same(kept, name))
    return own, {name: three.shape("observed", name) for name in three.names("observed")}, unlike


def is_alike(three: Dependence, whole: Dependence, role: str, name: str, num_rows: int) -> bool:
    """Whether the texts of an output's programs on three rows and on all rows differ in lengths of axes only: in whole numbers
    that grow with the number of rows."""
    if num_rows in (1, 3):
        return True
    some, others = (_NUMBER.split(re.sub(r"[\s;]", "", "".join(of.text(role, name)))) for of in (three, whole))

    def is_length(a: str, b: str) -> bool:
        if not (a.isdecimal() and b.isdecimal()):
            return all(map(_NUMBER.fullmatch, (a, b))) and bool(np.isclose(float(a), float(b), rtol=1e-6, atol=0.0))
        slope, rest = divmod(int(b) - int(a), num_rows - 3)
        return slope > 0 and rest == 0

    return len(some) == len(others) and all(a == b or is_length(a, b) for a, b in zip(some, others))


def _fixed_rows(what: str, terms: Terms, latents: Shapes, arguments: Arguments) -> str:
    """For models that cannot be run on fewer rows; arguments or latents that are as long as the data are likely causes."""
    marked = {label: shape for label, shape in arguments.public.items() if shape.shape[:1] == (arguments.num_rows,)}
    short = {label: abstract((1, *shape.shape[1:]), shape.dtype) for label, shape in marked.items()}
    try:  # whether the model would run on one row if the arguments marked as public had one, too
        shapes = {"latent": latents, "row": arguments.shapes(1), "public": arguments.public | short}
        found = marked and Dependence(terms(1), **shapes)
        runs = found and all(found.shape("likelihood", name).shape == (1,) for name in found.names("likelihood"))
    except Exception:  # only asked to explain a refusal
        runs = False
    if runs:
        return (
            f"{what} uses argument {quoted(marked)}, which is marked dpppl.Public, as one value for each row: that is private, "
            "pass it without the mark. A public table is for all rows, which look it up by a private argument: table[group]."
        )
    names = [name for name, latent in latents.items() if arguments.num_rows in latent.shape]
    return (
        f"{what} fixes the number of rows: the model cannot be run on fewer rows than it was called with; take the "
        "number of rows from the arrays (x.shape[0]) and pass every array with one entry a row as a private argument."
    ) + (f" Site {quoted(names)} has an axis as long as the data; rows share their latents." if names else "")


def check_coupling(
    run: Callable[[int], Function], latents: Shapes, arguments: Arguments, public: Arrays, observed: Shapes,
    axes: Mapping[str, int], explain: Callable[[str, str], str],
) -> None:  # fmt: skip
    """Compare a batch of three made-up rows with the three rows one by one, at made-up latents; refuse coupled rows.

    - **run** - `run(n)(z, rows, public, noise)` gives, for n rows, log likelihoods (n,) and observed values by site, which are
      made up inside their supports from `noise`, uniform numbers in (0, 1).
    - **latents** - shapes of the latents by site.
    - **observed**, **axes** - by observed site, the shape of its noise and which axis is that of rows.
    - **explain** - `explain(site, "likelihood" or "value")`, the message of the refusal.

    Refuses to decide, too, where nothing finite could be compared."""

    def both(z: Arrays, rows: Arrays, public: Arrays, noise: Arrays) -> tuple[Tree, Tree]:
        def alone(row: Arrays, noise: Arrays) -> dict[str, Arrays]:
            one_row = {name: value[None] for name, value in row.items()}
            one_noise = {name: jnp.expand_dims(value, axes[name]) for name, value in noise.items()}
            likelihood, values = run(1)(z, one_row, public, one_noise)
            first = {name: value[0] for name, value in likelihood.items()}
            return {"likelihood": first, "value": {n: jnp.squeeze(v, axes[n]) for n, v in values.items()}}

        likelihood, values = run(3)(z, rows, public, noise)
        together = {"likelihood": likelihood, "value": {n: jnp.moveaxis(v, axes[n], 0) for n, v in values.items()}}
        return together, jax.vmap(alone, in_axes=(0, {name: axes[name] for name in noise}))(rows, noise)

    rng = np.random.default_rng(0)
    with jax.default_matmul_precision("highest"):
        first = _made_up(_KINDS[0], latents, arguments, public, observed, rng)
        traced = jax.jit(both).trace(*first)
    made = (v.aval for equation in jaxprs.equations(traced.jaxpr) for v in equation.outvars)
    tolerance = 0.03 if any(getattr(aval, "dtype", None) in _HALF for aval in made) else 1e-4
    outputs = jax.tree.structure(traced.out_info)
    call = Lowered(traced.jaxpr, jax.tree.leaves(first), quickly=True).compiled()
    compared, finite = set[tuple[str, str]](), set[tuple[str, str]]()
    for attempt, kind in enumerate(_KINDS):
        if attempt >= _ALWAYS and compared <= finite:
            break
        made_up = _made_up(kind, latents, arguments, public, observed, rng)
        with jax.debug_nans(False):  # made-up values may be outside a support
            together, alone = jax.device_get(jax.tree.unflatten(outputs, call(*jax.tree.leaves(made_up))))
        for what, name in ((what, name) for what, sites in together.items() for name in sites):
            expected, found = (np.asarray(values[what][name], np.float64) for values in (together, alone))
            compared.add((what, name))
            if not np.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
                raise UnsupportedModelError(explain(name, what))
            if np.all(np.isfinite(found) & np.isfinite(expected)):
                finite.add((what, name))
    for what, name in sorted(compared - finite):
        raise UnsupportedModelError(
            f"the {_WHAT[what]} of site '{name}' is not finite on any of the rows that were made up to see whether rows "
            "are independent, so this cannot be decided; let it be finite for inputs between 0 and 1, and observe "
            "private arrays (obs=y) rather than write their density as a numpyro.factor: values are then made up inside "
            "the distribution's support."
        )


def _made_up(
    kind: tuple[_Kind, _Kind], latents: Shapes, arguments: Arguments, public: Arrays, observed: Shapes, rng: np.random.Generator
) -> tuple[Arrays, Arrays, Arrays, Arrays]:  # fmt: skip
    """Latents, three rows, Public arrays as `known`, and noise."""

    def draw(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return np.asarray(kind[not jnp.issubdtype(dtype, jnp.inexact)](rng, shape)).astype(dtype)

    z = {name: np.asarray(0.3 * rng.standard_normal(s.shape), s.dtype) for name, s in latents.items()}
    batch = {name: draw(s.shape, s.dtype) for name, s in arguments.shapes(3).items()}
    noise = {name: np.asarray(rng.uniform(0.05, 0.95, s.shape), jnp.result_type(float)) for name, s in observed.items()}
    return z, batch, known(public, arguments.num_rows, draw), noise


def known(public: Arrays, num_rows: int, draw: Callable[[tuple[int, ...], np.dtype], np.ndarray]) -> Arrays:
    """Public arrays as given; those that are unknown or as long as the data are drawn, of a shape and dtype."""
    is_unknown = lambda x: isinstance(x, (jax.core.Tracer, jax.ShapeDtypeStruct)) or x.shape[:1] == (num_rows,)  # noqa: E731
    return {name: draw(x.shape, x.dtype) if is_unknown(x) else x for name, x in public.items()}
