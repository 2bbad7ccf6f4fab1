"""Triangular systems of rows as products with one inverse: the same solutions, as exact as substitution's."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dpppl.row_program.linear_algebra import by_products

pytestmark = pytest.mark.numerical
RNG = np.random.default_rng(0)


def factor(size, jitter=1e-4):
    """That of a Gaussian process's kernel, whose inverse is about a hundred times as large."""
    points = np.linspace(-2.0, 2.0, size)
    return points, np.linalg.cholesky(np.exp(-0.5 * (points[:, None] - points) ** 2) + jitter * np.eye(size))


def names(program):
    return [equation.primitive.name for equation in program.eqns]


SETTINGS = "left_side", "lower", "transpose_a", "unit_diagonal"
SIDES = [dict(zip(SETTINGS, chosen)) for chosen in itertools.product([False, True], repeat=4)]


@pytest.mark.parametrize("size", [7, 23])
def test_solutions_are_those_of_substitution(size):
    """For all 16 ways to ask for one; what is in the other half of the matrix does not matter."""
    for settings in SIDES:
        solve = functools.partial(lax.linalg.triangular_solve, **settings)
        left_side = settings["left_side"]
        matrix = RNG.standard_normal((size, size)).astype(np.float32) / size + 2.0 * np.eye(size, dtype=np.float32)
        matrix[np.triu_indices(size, 1) if settings["lower"] else np.tril_indices(size, -1)] = np.inf
        given = RNG.standard_normal((size, 2) if left_side else (2, size)).astype(np.float32)
        program = by_products(jax.make_jaxpr(solve)(matrix, given).jaxpr, (False, True))
        assert names(program).count("triangular_solve") == 1 and names(program)[-1] in ("dot_general", "add")
        (found,) = jax.core.eval_jaxpr(program, (), matrix, given)
        np.testing.assert_allclose(found, solve(matrix, given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [8, 32, 100])
def test_ill_conditioned_systems_are_solved_as_exactly(size):
    """Errors at most twice those of substitution in float32 (100 right-hand sides), to float64's solution."""
    points, root = factor(size)
    given = np.exp(-0.5 * (RNG.uniform(-2.0, 2.0, 100)[:, None] - points) ** 2)[..., None].astype(np.float32)
    root = root.astype(np.float32)
    solve = jax.make_jaxpr(lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True))(root, given[0])
    exact = np.linalg.solve(root.astype(float), given.astype(float))

    def error(program):
        found = jax.jit(jax.vmap(lambda b: jax.core.eval_jaxpr(program, (), root, b)[0]))(given)
        return np.max(np.abs(found - exact))

    ours, theirs = error(by_products(solve.jaxpr, (False, True))), error(solve.jaxpr)
    assert ours <= 2.0 * theirs + 1e-7


def test_other_systems_are_left_as_they_are():
    solve = jax.make_jaxpr(lax.linalg.triangular_solve)(np.eye(3, dtype=np.float32), np.ones((1, 3), np.float32)).jaxpr
    assert by_products(solve, (True, True)) is solve and by_products(solve, (False, False)) is solve
    several = jax.make_jaxpr(lax.linalg.triangular_solve)(jnp.ones((2, 3, 3)), jnp.ones((2, 1, 3))).jaxpr
    assert by_products(several, (False, True)) is several
