"""Linear algebra of rows on finite numbers only: given others, LAPACK may print, once for each matrix, or not return."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr

from dpppl.jaxprs import bind, equations, is_literal, open_jaxpr, rewritten, varying
from dpppl.types import Equation, Traced, Tree

_PRIMITIVES = {primitive for name, primitive in vars(lax.linalg).items() if name.endswith("_p")}
"""Others that call LAPACK are not public, and a row's program with one is refused."""
_HALVES = {lax.linalg.cholesky_p: True, lax.linalg.eigh_p: None, lax.linalg.triangular_solve_p: None}
"""Those that read one half of their first operand: whether the lower one; None where a parameter says so."""


def on_finite(program: Traced, varies: Sequence[bool]) -> Traced:
    """An open program whose linear algebra, where inputs that vary enter it, is of finite matrices: one that is not, or a vector
    beside it, is replaced by zeros, and what comes out by NaN. Constants are the first inputs.

    >>> program = jax.make_jaxpr(lax.linalg.triangular_solve)(jnp.eye(3), jnp.ones((1, 3))).jaxpr
    >>> names = [equation.primitive.name for equation in on_finite(program, (True, True)).eqns]
    >>> names.count("is_finite"), names.count("triangular_solve")
    (2, 1)
    """
    if not any(equation.primitive in _PRIMITIVES for equation in equations(program)):
        return program
    varied = varying(program, varies)

    def guarded(equation: Equation, operands: Sequence[jax.Array]) -> list[jax.Array] | None:
        of_row = any(not is_literal(v) and v in varied for v in equation.invars)
        return _outputs(equation, operands) if of_row else None

    return rewritten(program, guarded)


def _outputs(equation: Equation, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Of an equation that a row may enter, and of the programs in it."""
    if equation.primitive in _PRIMITIVES:
        return _of_finite(equation, operands)

    def inside(leaf: jax.Array) -> Tree:
        if (program := open_jaxpr(leaf)) is None:
            return leaf
        program = on_finite(program, [True] * len([*program.constvars, *program.invars]))
        return ClosedJaxpr(program, leaf.consts) if hasattr(leaf, "consts") else program

    params = jax.tree.map(inside, equation.params, is_leaf=lambda leaf: open_jaxpr(leaf) is not None)
    return bind(equation.replace(params=params), operands)


def _of_finite(equation: Equation, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Each matrix of a batch by itself."""
    batch, given = max(jnp.ndim(x) for x in operands) - 2, list(operands)
    if equation.primitive in _HALVES:
        lower = _HALVES[equation.primitive] or equation.params["lower"]
        given[0] = jnp.tril(given[0]) if lower else jnp.triu(given[0])
    inexact = [jnp.issubdtype(jnp.result_type(x), jnp.inexact) for x in given]
    finite = [jnp.all(jnp.isfinite(x), axis=tuple(range(batch, x.ndim))) for x, is_one in zip(given, inexact) if is_one]
    if not finite:
        return bind(equation, operands)
    whole = jnp.all(jnp.stack(finite), axis=0)

    def chosen(x: jax.Array, otherwise: float) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        return jnp.where(whole.reshape(*whole.shape, *[1] * (x.ndim - batch)), x, jnp.asarray(otherwise, x.dtype))

    return [chosen(y, jnp.nan) for y in bind(equation, [chosen(x, 0.0) for x in given])]
