"""Optimisers that need no loss value, since a loss would be another access of the data."""

import importlib

import jax
import numpy as np
from jax.example_libraries import optimizers
from numpyro.optim import _NumPyroOptim

from dpppl.errors import ConfigurationError
from dpppl.jaxprs import depends_on
from dpppl.model.refusals import check_captured
from dpppl.types import BySite, Foreign, Function, Tree

_REFUSED = (
    "this optimiser uses the value of the loss, which private inference does not compute (it would be another access "
    "of the data); use one that needs gradients only, such as optax.adam."
)


LOST = "lost"
"""Replacement for an optimiser that could not be pickled."""


class Pickled:
    """Keeps an optimiser in a pickle.

    - **optim** - the optimiser. Its functions are local ones, which `pickle` refuses and `cloudpickle`, where it is installed,
      takes; otherwise `LOST` is what comes back. A copy shares it."""

    def __init__(self, optim: Foreign) -> None:
        self.optim = optim

    def __deepcopy__(self, _: object) -> "Pickled":
        return self

    def __reduce__(self) -> tuple[object, ...]:
        for name in ("pickle", "cloudpickle"):
            try:
                return _unpickled, (name, importlib.import_module(name).dumps(self.optim))
            except Exception:  # functions inside functions, or not installed
                continue
        return Pickled, (LOST,)


def _unpickled(name: str, data: bytes) -> Pickled:
    return Pickled(importlib.import_module(name).loads(data))


def without_loss(optim: object) -> _NumPyroOptim:
    """`optim`, of optax, numpyro.optim or jax.example_libraries, with NumPyro's interface and no loss value.

    Raises ConfigurationError for anything else."""
    if isinstance(optim, _NumPyroOptim):
        if type(optim).eval_and_update is not _NumPyroOptim.eval_and_update:
            raise ConfigurationError(_REFUSED)
        return optim
    if isinstance(optim, optimizers.Optimizer):
        return _NumPyroOptim(lambda: tuple(optim))
    import optax

    if isinstance(optim, optax.GradientTransformation):
        return _NumPyroOptim(of_optax, optim)
    what = f"{getattr(optim, '__name__', type(optim).__name__)}"
    cure = f"; call it: {what}(0.01)" if callable(optim) else ""
    raise ConfigurationError(
        f"optim must be an optimiser of optax, numpyro.optim or jax.example_libraries, such as numpyro.optim.Adam(0.01), got "
        f"{what}{cure}."
    )


def of_optax(optim: Foreign) -> tuple[Function, Function, Function]:
    """An optax transformation as the three functions of `jax.example_libraries.optimizers.Optimizer`."""
    import optax

    def update(_: object, gradients: Tree, state: Tree) -> Tree:
        params, inner = state
        updates, inner = optim.update(gradients, inner, params)
        return optax.apply_updates(params, updates), inner

    return lambda params: (params, optim.init(params)), update, lambda state: state[0]


def update(optim: _NumPyroOptim, gradients: BySite, state: Tree) -> Tree:
    """The next state."""
    return optim.update(gradients, state, value=0.0) if optim.update_with_value else optim.update(gradients, state)


def check_without_loss(optim: _NumPyroOptim, params: Tree, num_rows: int) -> tuple[str, ...]:
    """Refuse an optimiser whose update fails without the loss value, or depends on it, or that captured what may be rows.

    Returns the arrays that it captured, in words."""
    state = jax.eval_shape(optim.init, params)
    captured = check_captured(jax.make_jaxpr(optim.init)(params), {num_rows}, "optimiser")
    if not optim.update_with_value:
        try:
            program = jax.make_jaxpr(optim.update)(params, state)
        except TypeError:
            raise ConfigurationError(_REFUSED) from None
        return captured + check_captured(program, {num_rows}, "optimiser")
    leaves, tree = jax.tree.flatten((params, state))

    def flat(value: jax.Array, *leaves: object) -> Tree:
        gradients, state = jax.tree.unflatten(tree, leaves)
        return jax.tree.leaves(optim.update(gradients, state, value=value))

    if depends_on(flat, np.float32(0.0), *leaves)[0]:
        raise ConfigurationError(_REFUSED)
    return captured + check_captured(jax.make_jaxpr(flat)(np.float32(0.0), *leaves), {num_rows}, "optimiser")
