"""Whether a row's observed values are its own, so that others may take their place: no law and no mask is computed from them."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from dpppl import jaxprs
from dpppl.jaxprs import depends_on, used_inputs
from dpppl.model.arguments import Arrays, Shapes
from dpppl.types import Function, Tree

_ATTEMPTS, _ALTERNATIVES = 8, 8


def entering(function: Function, *shapes: Tree) -> list[list[str]]:
    """Names of the latents, of a row's arguments and of others that enter a function of dicts by name."""
    return [[name for name, is_used in part.items() if is_used] for part in depends_on(function, *shapes)[:3]]


def why_not_own(
    values: Callable[..., Arrays], observed: Callable[[Arrays, Arrays], Sequence[tuple[str, jax.Array, jax.Array]]],
    laws: Callable[[Arrays], Tree], shapes: tuple[Shapes, Shapes, Shapes], public: Arrays,
) -> str | None:  # fmt: skip
    """Why a row's values might not be replaced by draws, and the cure, without its end; None where they may. Looks at no rows.

    Values must be free given the arguments that distributions and masks are computed from. A value that is computed from such
    arguments alone is not free. A value that is computed from such arguments and from others is free if, on made-up rows, it
    changes with the others wherever it counts: jnp.where(ok, y, 0.0) under mask(ok), for example.

    - **values** - `values(z, row, public)`: observed values by site, as the model gives them.
    - **observed** - `observed(row, public)`: name, value, and which of its entries count under masks, of each observed site.
    - **laws** - `laws(row)`: distributions, where other values were observed.
    - **shapes**, **public** - shapes of z, row and public; Public arrays, since one may be a factor of a value, or a mask."""
    row, used = shapes[1], _used_by(laws, shapes[1])
    shared: dict[str, str] = {}
    for name in jax.eval_shape(values, *shapes):
        latents, inputs, _ = entering(lambda *given: values(*given)[name], *shapes)  # noqa: B023
        if latents:
            return (
                f"site '{name}' observes what is computed from the latent '{latents[0]}', as a residual y - {latents[0]} is; "
                f"observe y itself, with {latents[0]} in its distribution"
            )
        if inputs and used.issuperset(inputs):
            return _shared(name, min(inputs))
        if both := used.intersection(inputs):
            shared[name] = min(both)
    for name, value, counts in jax.device_get(_on_made_up_rows(observed, row, used, public)) if shared else ():
        is_fixed = np.all((value == value[:, :1]) | (value != value), axis=1, keepdims=True)
        if name in shared and np.any(is_fixed & counts):
            return _shared(name, shared[name])
    return None


def _shared(name: str, argument: str) -> str:
    return (
        f"site '{name}' observes values of argument '{argument}', and a distribution or mask is computed from the same argument, "
        "so the model cannot say what else might have been observed; pass responses as an argument of their own, model(x, y) "
        "instead of model(data), let later sites use what numpyro.sample returns for earlier ones, "
        "y1 = numpyro.sample('y1', ..., obs=y1), or, where some values are missing, write x = numpyro.sample('x', "
        "dist.Normal(mu, sigma), obs=x, obs_mask=ok), ok an argument of its own"
    )


def _used_by(laws: Callable[[Arrays], Tree], row: Shapes) -> set[str]:
    """The arguments of a row that distributions are computed from, other than by whether values are missing: a mask
    ~jnp.isnan(y) leaves y a response."""
    jaxpr = jax.make_jaxpr(laws)(row).jaxpr
    told = [equation for equation in jaxpr.eqns if _tells_missing(equation)]
    kept = [equation for equation in jaxpr.eqns if not any(equation is other for other in told)]
    known = [v for equation in told for v in equation.outvars]
    used = used_inputs(jaxpr.replace(constvars=[*jaxpr.constvars, *known], eqns=kept))
    return {name for name, is_used in zip(sorted(row), used) if is_used}


def _tells_missing(equation: JaxprEqn) -> bool:
    """Whether an equation only asks which numbers are missing: isnan or isfinite."""
    name, inputs = equation.primitive.name, equation.invars
    if name == "is_finite" or (name == "ne" and inputs[0] is inputs[1]):
        return True
    inner = [jaxprs.open_jaxpr(value) for value in equation.params.values() if hasattr(value, "jaxpr")]
    return len(inner) == 1 and len(inner[0].eqns) == 1 and _tells_missing(inner[0].eqns[0])


def _on_made_up_rows(function: Callable[..., Tree], row: Shapes, used: set[str], public: Arrays) -> Tree:
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

    def numbers(row: Arrays, public: Arrays) -> Tree:
        sites = function(row, public)
        names[:] = [name for name, *_ in sites]
        return [jnp.broadcast_arrays(value, counts) for _, value, counts in sites]

    of_all = jax.vmap(jax.vmap(numbers, (0, None)), (0, None))
    return [(name, *rest) for name, rest in zip(names, jax.jit(of_all)(found, public))]
