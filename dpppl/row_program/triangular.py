"""Triangular systems that all rows solve with one matrix: products with its inverse, which is computed once.

LAPACK solves for a handful of unknowns in several times the time of a product. The inverse of a triangular matrix, found by
substitution, is as exact as the factor allows; but sums of its products with ill-conditioned factors' right-hand sides
cancel, more so the larger they are: beyond `_REFINED` unknowns one step of iterative refinement (Higham 2002, chapter 12)
makes up for it.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpppl.jaxprs import is_literal, rewritten, varying
from dpppl.types import Equation, Traced, Tree

_REFINED, _LARGEST = 10, 512


def by_products(program: Traced, varies: Sequence[bool]) -> Traced:
    """An open program in which triangular systems whose matrix depends on no input that `varies`, but whose right-hand side
    does, are solved by products. Constants are the first inputs. The program itself, where there is none.

    >>> import jax
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

    def product(equation: Equation, operands: Sequence[jax.Array]) -> list[jax.Array] | None:
        return [_solution(*operands, **equation.params)] if is_shared(equation) else None

    return rewritten(program, product) if any(map(is_shared, program.eqns)) else program


def is_system(equation: Equation) -> bool:
    """Whether an equation solves a triangular system of real numbers."""
    return equation.primitive.name == "triangular_solve" and equation.invars[0].aval.dtype in (jnp.float32, jnp.float64)


def applied(
    matrix: jax.Array, x: jax.Array, *, left_side: bool, lower: bool, transpose_a: bool, unit_diagonal: bool, **_: Any
) -> Tree:
    """op(matrix) x, or x op(matrix), of which `lax.linalg.triangular_solve` with these settings is the inverse."""
    half = jnp.tril(matrix) if lower else jnp.triu(matrix)
    if unit_diagonal:
        half = jnp.where(jnp.eye(matrix.shape[-1], dtype=bool), jnp.ones((), matrix.dtype), half)
    return _times(jnp.swapaxes(half, -1, -2) if transpose_a else half, x, left_side)


def _solution(matrix: jax.Array, given: Tree, **settings: Any) -> Tree:
    """x for which `applied(matrix, x, **settings)` is `given`."""
    identity, left_side = jnp.eye(len(matrix), dtype=matrix.dtype), settings["left_side"]
    inverse = lax.linalg.triangular_solve(matrix, identity, **settings | {"left_side": True})
    found = _times(inverse, given, left_side)
    if len(matrix) <= _REFINED:
        return found
    return found + _times(inverse, given - applied(matrix, found, **settings), left_side)


def _times(matrix: jax.Array, x: jax.Array, left_side: bool) -> Tree:
    return jnp.matmul(*((matrix, x) if left_side else (x, matrix)), precision=lax.Precision.HIGHEST)
