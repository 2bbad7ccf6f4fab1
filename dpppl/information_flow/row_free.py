"""Programs of a user's functions that get no rows: each is proved to have captured none, and the proved program is what runs."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from dpppl import jaxprs
from dpppl.errors import DPPPLError, PrivacyLeakError
from dpppl.information_flow import executables, verify_jaxpr
from dpppl.information_flow.rules import is_table
from dpppl.types import Function, Traced, Tree

R = TypeVar("R")


def proved(function: Function, *arguments: object, num_rows: int | None) -> Function:
    """`function`, traced once with arguments of these shapes, and proved: what is returned runs the program that was, compiled.

    Raises PrivacyLeakError for a program that calls out of JAX, or that captured an array with an axis as long as the data:
    either may bring rows in. It names the site, if the function returns values by site. `num_rows`: None where arrays are not
    asked for, as NumPyro's own samplers and quantiles capture some."""
    program, outputs = jax.make_jaxpr(function, return_shape=True)(*arguments)
    by_site(partial(_check, num_rows=num_rows), program, outputs)

    def run(*given: object) -> Tree:
        leaves = jax.tree.leaves(given)
        is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        call = jaxpr_as_fun(program) if is_traced else executables.Lowered(program, leaves, quickly=True).compiled()
        return jax.tree.unflatten(jax.tree.structure(outputs), call(*leaves))

    return run


def known(program: Traced, given: Sequence[Tree]) -> list[np.ndarray | None]:
    """The numbers of those outputs of a closed program that are computed from constants and from known inputs; None for others.

    - **given** - an array for each input; None, or no array, where it is not known.

    >>> known(jax.make_jaxpr(lambda x, y: (x + 1.0, y, jax.numpy.zeros(())))(0.0, 0.0), [np.float32(1.0), None])
    [array(2., dtype=float32), None, array(0., dtype=float32)]
    """
    jaxpr, unknown = program.jaxpr, jax.core.Tracer | jax.ShapeDtypeStruct
    is_array = lambda x: hasattr(x, "dtype") and not isinstance(x, unknown)  # noqa: E731
    inputs = dict(zip(jaxpr.invars, given, strict=True)) | dict(zip(jaxpr.constvars, program.consts))
    varies = jaxprs.varying(jaxpr, [not is_array(inputs[v]) for v in jaxprs.inputs_of(jaxpr)])
    wanted = [v for v in jaxpr.outvars if jaxprs.is_literal(v) or v not in varies]
    names = [v for v, value in inputs.items() if is_array(value)]
    evaluated = partial(jaxprs.evaluate, jaxpr, wanted=wanted)
    run = lambda *values: evaluated(dict(zip(names, values)))  # noqa: E731
    numbers = iter(jax.device_get(executables.run_once(run, *(inputs[v] for v in names))) if wanted else ())
    return [next(numbers) if jaxprs.is_literal(v) or v not in varies else None for v in jaxpr.outvars]


def by_site(check: Callable[[Traced], R], program: Traced, outputs: Tree) -> R:
    """`check(program)`. An error names the first of the program's `outputs`, a pytree of dicts, that has it, too, alone."""
    try:
        return check(program)
    except DPPPLError as error:
        for name, part in _parts(program, outputs):
            try:
                check(part)
            except DPPPLError as own:
                raise type(error)(f"{name}{own}") from None
        raise


def _check(program: Traced, num_rows: int | None) -> None:
    verify_jaxpr(program, (), public_constants=True)
    for value in jaxprs.constants(program):
        if num_rows in np.shape(value) and not is_table(value):
            raise PrivacyLeakError(
                f"the program captures an array of shape {np.shape(value)}, with an axis as long as the data "
                "(a closure, functools.partial), and may hold rows; pass it as an argument, wrapped in dpppl.Public."
            )


def _parts(program: Traced, outputs: Tree) -> Iterator[tuple[str, Traced]]:
    """For each output its name, in words, and the program that computes it."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(outputs)]
    for number, path in enumerate(paths):
        jaxpr, _ = dce_jaxpr(program.jaxpr, [number == other for other in range(len(paths))])
        variables = [v for equation in jaxpr.eqns for v in equation.invars] + jaxpr.outvars
        used = {v for v in variables if not jaxprs.is_literal(v)}
        kept = [(v, value) for v, value in zip(program.jaxpr.constvars, program.consts) if v in used]
        part = jaxpr.replace(constvars=[v for v, _ in kept])
        names = [key.key for key in path if isinstance(getattr(key, "key", None), str)]
        yield f"site '{names[-1]}': " if names else "", ClosedJaxpr(part, [value for _, value in kept])
