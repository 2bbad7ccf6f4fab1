"""Whether a row's responses are its own: what a distribution says of them is not computed from them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl import jaxprs
from dpppl.jaxprs import depends_on, used_inputs
from dpppl.model.arguments import Arrays, Shapes

_ATTEMPTS, _ALTERNATIVES = 8, 8


def why_not_own(
    values: Callable[..., Arrays],
    observed: Callable[[Arrays], Sequence[tuple[str, Any, Any]]],
    laws: Callable[[Arrays], Any],
    shapes: tuple[Shapes, Shapes, Shapes],
) -> str | None:
    """Why a row's values might not be replaced by draws, and the cure, without its end; None where they may. Looks at no data.

    Values must be free given the arguments that distributions and masks are computed from. A value that is computed from such
    arguments alone is not free. One that is computed from others, too, is free where it changes with those while it counts, on
    made-up rows: jnp.where(ok, y, 0.0) under mask(ok) does.

    - **values** - `values(z, row, public)`: observed values by site, as the model gives them.
    - **observed** - `observed(row)`: name, value, and which of its entries count under masks, of each observed site.
    - **laws** - `laws(row)`: distributions, where other values were observed.
    - **shapes** - shapes of z, row and public."""
    row, used = shapes[1], _used_by(laws, shapes[1])
    shared: dict[str, str] = {}
    for name in jax.eval_shape(values, *shapes):
        of_z, of_row, _ = depends_on(lambda *given: values(*given)[name], *shapes)  # noqa: B023
        if latents := [latent for latent, is_used in of_z.items() if is_used]:
            return (
                f"site '{name}' observes what is computed from the latent '{latents[0]}', as a residual y - {latents[0]} is; "
                f"observe y itself, with {latents[0]} in its distribution"
            )
        inputs = {label for label, is_used in of_row.items() if is_used}
        if inputs and inputs <= used:
            return _shared(name, min(inputs))
        if inputs & used:
            shared[name] = min(inputs & used)
    for name, value, counts in jax.device_get(_on_made_up_rows(observed, row, used)) if shared else ():
        is_fixed = np.all((value == value[:, :1]) | (value != value), axis=1, keepdims=True)
        if name in shared and np.any(is_fixed & counts):
            return _shared(name, shared[name])
    return None


def _shared(name: str, argument: str) -> str:
    return (
        f"site '{name}' observes values of argument '{argument}', and a distribution or mask is computed from the same argument, "
        "so the model cannot say what else might have been observed; pass responses as an argument of their own, model(x, y) "
        "instead of model(data), let later sites use what numpyro.sample returns for earlier ones, "
        "y1 = numpyro.sample('y1', ..., obs=y1)"
    )


def _used_by(laws: Callable[[Arrays], Any], row: Shapes) -> set[str]:
    """The arguments of a row that distributions are computed from, other than by whether values are missing: a mask
    ~jnp.isnan(y) leaves y a response."""
    jaxpr = jax.make_jaxpr(laws)(row).jaxpr
    told = [equation for equation in jaxpr.eqns if _tells_missing(equation)]
    kept = [equation for equation in jaxpr.eqns if not any(equation is other for other in told)]
    known = [v for equation in told for v in equation.outvars]
    used = used_inputs(jaxpr.replace(constvars=[*jaxpr.constvars, *known], eqns=kept))
    return {name for name, is_used in zip(sorted(row), used) if is_used}


def _tells_missing(equation: Any) -> bool:
    """Whether an equation only asks which numbers are missing: isnan or isfinite."""
    name, inputs = equation.primitive.name, equation.invars
    if name == "is_finite" or (name == "ne" and inputs[0] is inputs[1]):
        return True
    inner = [jaxprs.open_jaxpr(value) for value in equation.params.values() if hasattr(value, "jaxpr")]
    return len(inner) == 1 and len(inner[0].eqns) == 1 and _tells_missing(inner[0].eqns[0])


def _on_made_up_rows(function: Callable[[Arrays], Any], row: Shapes, used: set[str]) -> Any:
    """`function` of rows (attempts, alternatives, ...); alternatives differ in the arguments that are not `used`."""
    rng, found = np.random.default_rng(0), {}
    for name, shape in row.items():
        size = _ATTEMPTS, 1 if name in used else _ALTERNATIVES, *shape.shape
        is_float = jnp.issubdtype(shape.dtype, jnp.inexact)
        number = rng.normal(1.0, 2.0, size) if is_float else rng.integers(0, 2 if shape.dtype == bool else 4, size)
        if name in used:  # as masks are
            number[0], number[1] = 1, 0
        found[name] = np.broadcast_to(number, (_ATTEMPTS, _ALTERNATIVES, *shape.shape)).astype(shape.dtype)
    names: list[str] = []

    def numbers(row: Arrays) -> Any:
        sites = function(row)
        names[:] = [name for name, *_ in sites]
        return [jnp.broadcast_arrays(value, counts) for _, value, counts in sites]

    return [(name, *rest) for name, rest in zip(names, jax.jit(jax.vmap(jax.vmap(numbers)))(found))]
