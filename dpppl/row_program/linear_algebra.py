"""Linear algebra of rows: on finite numbers only, and by products with one inverse where all rows solve with one matrix.

Given other numbers, LAPACK may print, once for each matrix, or not return. It solves for a handful of unknowns in several times
the time of a product. The inverse of a triangular matrix, found by substitution, is as exact as the factor allows; but sums of
its products with ill-conditioned factors' right-hand sides cancel, more so the larger they are: beyond `_REFINED` unknowns one
step of iterative refinement (Higham 2002, chapter 12) makes up for it.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, primitives

from dpppl.jaxprs import bind, equations, inputs_of, is_literal, open_jaxpr, rewritten, varying
from dpppl.row_program.incomplete_beta import betainc
from dpppl.types import Equation, Traced, Tree

_LINEAR = {primitive for name, primitive in vars(lax.linalg).items() if name.endswith("_p")}
"""Others that call LAPACK are not public, and a row's program with one is refused."""
_BETA = primitives.regularized_incomplete_beta_p
_HALVES = {lax.linalg.cholesky_p: True, lax.linalg.eigh_p: None, lax.linalg.triangular_solve_p: None}
"""Those that read one half of their first operand: whether the lower one; None where a parameter says so."""
_REFINED, _LARGEST = 10, 512


def on_finite(program: Traced, varies: Sequence[bool]) -> Traced:
    """An open program whose linear algebra, where inputs that vary enter it, is of finite matrices: one that is not, or a vector
    beside it, is replaced by zeros, and what comes out by NaN. `incomplete_beta` takes the place of JAX's function. Constants
    are the first inputs.

    >>> program = jax.make_jaxpr(lax.linalg.triangular_solve)(jnp.eye(3), jnp.ones((1, 3))).jaxpr
    >>> names = [equation.primitive.name for equation in on_finite(program, (True, True)).eqns]
    >>> names.count("is_finite"), names.count("triangular_solve")
    (2, 1)
    """
    if not any(equation.primitive is _BETA or equation.primitive in _LINEAR for equation in equations(program)):
        return program
    varied = varying(program, varies)
    of_row = lambda equation: any(not is_literal(v) and v in varied for v in equation.invars)  # noqa: E731
    return rewritten(program, lambda equation, given: _outputs(equation, given) if of_row(equation) else None)


def _outputs(equation: Equation, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Of an equation that a row may enter, and of the programs in it."""
    if equation.primitive in _LINEAR:
        return _of_finite(equation, operands)
    if equation.primitive is _BETA:
        return [betainc(*jnp.broadcast_arrays(*operands))]

    def inside(leaf: jax.Array) -> Tree:
        if (program := open_jaxpr(leaf)) is None:
            return leaf
        program = on_finite(program, [True] * len(inputs_of(program)))
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


# Systems with one matrix for all rows


def by_products(program: Traced, varies: Sequence[bool]) -> Traced:
    """An open program in which triangular systems whose matrix depends on no input that `varies`, but whose right-hand side
    does, are solved by products. Constants are the first inputs. The program itself, where there is none.

    >>> program = jax.make_jaxpr(jax.lax.linalg.triangular_solve)(jnp.eye(3), jnp.ones((1, 3))).jaxpr
    >>> [equation.primitive.name for equation in by_products(program, (False, True)).eqns][-2:]
    ['triangular_solve', 'dot_general']
    """
    varied = varying(program, varies)

    def is_shared(equation: Equation) -> bool:
        if not is_system(equation):
            return False
        matrix_varies, given_varies = (not is_literal(v) and v in varied for v in equation.invars)
        shape = equation.invars[0].aval.shape
        return given_varies and not matrix_varies and len(shape) == 2 and shape[0] <= _LARGEST

    product = lambda e, given: [_solution(*given, **e.params)] if is_shared(e) else None  # noqa: E731
    return rewritten(program, product) if any(map(is_shared, program.eqns)) else program


def is_system(equation: Equation) -> bool:
    """Whether an equation solves a triangular system of real numbers."""
    return equation.primitive.name == "triangular_solve" and equation.invars[0].aval.dtype in (jnp.float32, jnp.float64)


def applied(
    matrix: jax.Array, x: jax.Array, *, left_side: bool, lower: bool, transpose_a: bool, unit_diagonal: bool,
    **_: object,
) -> Tree:  # fmt: skip
    """op(matrix) x, or x op(matrix), of which `lax.linalg.triangular_solve` with these settings is the inverse."""
    half = jnp.tril(matrix) if lower else jnp.triu(matrix)
    if unit_diagonal:
        half = jnp.where(jnp.eye(matrix.shape[-1], dtype=bool), jnp.ones((), matrix.dtype), half)
    return _times(jnp.swapaxes(half, -1, -2) if transpose_a else half, x, left_side)


def _solution(matrix: jax.Array, given: Tree, **settings: bool) -> Tree:
    """x for which `applied(matrix, x, **settings)` is `given`."""
    identity, left_side = jnp.eye(len(matrix), dtype=matrix.dtype), settings["left_side"]
    inverse = lax.linalg.triangular_solve(matrix, identity, **settings | {"left_side": True})
    found = _times(inverse, given, left_side)
    if len(matrix) <= _REFINED:
        return found
    return found + _times(inverse, given - applied(matrix, found, **settings), left_side)


def _times(matrix: jax.Array, x: jax.Array, left_side: bool) -> Tree:
    return jnp.matmul(*((matrix, x) if left_side else (x, matrix)), precision=lax.Precision.HIGHEST)
