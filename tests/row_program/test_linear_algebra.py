"""Linear algebra in the program of a row: LAPACK is given finite numbers only, and rows with others count as zero."""

import ctypes

import jax
import jax.numpy as jnp
import jax.scipy.linalg as scipy_linalg
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from scipy import special

from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.jaxprs import equations
from dpppl.row_program.linear_algebra import on_finite
from dpppl.subsampling import FullBatch

RNG = np.random.default_rng(0)
SIZE = 4


def in_a_loop(a):
    return lax.scan(lambda carry, x: (carry + jnp.linalg.svd(x * a, compute_uv=False), 0.0), jnp.zeros(SIZE), a)[0]


def in_a_branch(a):
    return lax.cond(a[0, 0] > 0, lambda a: jnp.linalg.svd(a)[1], lambda a: jnp.linalg.eigvalsh(a @ a.T), a)


def some_times(a):
    return lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, jnp.linalg.qr(s[1])[1]), (0, a))[1]


SMOOTH = {
    "svd": lambda a: jnp.linalg.svd(a)[1], "eigh": lambda a: jnp.linalg.eigh(a + a.T), "qr": jnp.linalg.qr,
    "cholesky": lambda a: jnp.linalg.cholesky(a @ a.T + jnp.eye(SIZE)), "lu": scipy_linalg.lu,
    "solve": lambda a: jnp.linalg.solve(a, a[0]), "triangular": lambda a: scipy_linalg.solve_triangular(a, a[0]),
    "tridiagonal": lambda a: lax.linalg.tridiagonal_solve(a[0], a[1], a[2], a), "loop": in_a_loop, "branch": in_a_branch,
}  # fmt: skip
FORWARD = {
    "eig": jnp.linalg.eig, "schur": scipy_linalg.schur, "hessenberg": lambda a: scipy_linalg.hessenberg(a, calc_q=True),
    "pivoted": lambda a: scipy_linalg.qr(a, pivoting=True), "tridiagonalised": lax.linalg.tridiagonal,
    "householder": lambda a: lax.linalg.householder_product(a, a[0]), "times": some_times,
}  # fmt: skip


GRADIENTS = ("svd", "eigh", "solve", "loop", "branch")


def total(function):
    return lambda a: sum(
        jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(function(a)) if jnp.iscomplexobj(x) or x.dtype != int
    )


def guarded(function):
    program = jax.make_jaxpr(function)(np.zeros((SIZE, SIZE), np.float32))
    varies = [False] * len(program.consts) + [True]
    run = jaxpr_as_fun(ClosedJaxpr(on_finite(program.jaxpr, varies), program.consts))
    return lambda a: run(a)[0]


def printed(capfd):
    """What was, LAPACK's own lines included, which C keeps back."""
    ctypes.CDLL(None).fflush(None)
    return "".join(capfd.readouterr())


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("names", [("cholesky", "loop", "gradient of solve"), ()], ids=["some", "all"])
def test_all_of_it_is_nan_of_what_is_not_finite_and_the_same_of_the_rest(names, capfd):
    """Forward and in gradients, in calls, loops and branches: LAPACK prints nothing and returns, as it does not of infinities."""
    rows = RNG.standard_normal((5, SIZE, SIZE)).astype(np.float32)
    bad = rows.copy()
    bad[1, 2, 2], bad[3, 0, 0], bad[3, 2, 1] = np.nan, np.inf, -np.inf
    every = {name: total(f) for name, f in {**SMOOTH, **FORWARD}.items()}
    every |= {f"gradient of {name}": jax.grad(total(f)) for name, f in SMOOTH.items() if name in GRADIENTS}
    every = {name: every[name] for name in names or every}
    plain = jax.jit(lambda rows: {name: jax.vmap(f)(rows) for name, f in every.items()})(rows)
    found = jax.device_get(jax.jit(lambda rows: {name: jax.vmap(guarded(f))(rows) for name, f in every.items()})(bad))
    good = np.array([0, 2, 4])
    for name in every:
        np.testing.assert_allclose(found[name][good], plain[name][good], rtol=2e-3, atol=1e-4, err_msg=name)
        assert np.all(np.isnan(np.reshape(found[name][np.array([1, 3])], (2, -1))).any(axis=1)), name
    assert printed(capfd) == ""


def access(program, rows, z):
    mechanism = Mechanism(clipping=Flat(1.0), subsampling=FullBatch(), strategy="vmap")
    return noisy_sum(mechanism, program, z, rows, None, key=jax.random.key(0), noise_multiplier=1e-6).total


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("where", ["value", "slope"])
def test_nothing_is_printed_of_rows_that_are_not_finite(where, capfd):
    """LAPACK says twice of each matrix of infinities, from 26 columns on, that SLASCL was given an illegal value."""
    rows = RNG.standard_normal((6, 26 * 26)).astype(np.float32)

    def log_likelihood(z, row, public):
        matrix = row.reshape(26, 26) * (z if where == "slope" else 1.0)
        return z * jnp.max(jnp.linalg.svd(matrix, compute_uv=where == "slope")[-1 if where == "value" else 1])

    run = jax.jit(lambda rows: access(log_likelihood, rows, 0.7))
    bad, zeroed = rows.copy(), rows.copy()
    bad[[1, 4]], zeroed[[1, 4]] = np.inf, np.nan
    few = np.delete(rows, [1, 4], axis=0)
    totals = jax.device_get([run(bad), run(zeroed)])
    assert printed(capfd) == ""
    np.testing.assert_array_equal(*totals)
    np.testing.assert_allclose(totals[0], access(log_likelihood, few, 0.7), atol=1e-5)


@pytest.mark.slow
def test_what_is_not_read_may_be_infinite():
    """The other half of a triangular matrix; and a row's other matrices."""
    matrix = np.tril(RNG.standard_normal((SIZE, SIZE))).astype(np.float32) + 3.0 * np.eye(SIZE, dtype=np.float32)
    other = matrix.copy()
    other[np.triu_indices(SIZE, 1)] = np.inf
    solve = lambda a: lax.linalg.triangular_solve(a, jnp.ones((SIZE, 1)), left_side=True, lower=True)  # noqa: E731
    np.testing.assert_array_equal(guarded(solve)(other), solve(matrix))
    program = jax.make_jaxpr(jnp.linalg.svdvals)(np.stack([matrix, matrix]))
    run = jaxpr_as_fun(ClosedJaxpr(on_finite(program.jaxpr, [True]), program.consts))
    first, second = run(np.stack([matrix, np.full_like(matrix, np.nan)]))[0]
    assert np.all(np.isfinite(first)) and np.all(np.isnan(second))


def test_programs_without_rows_stay_as_they_are():
    program = jax.make_jaxpr(lambda a, x: jnp.linalg.svdvals(a)[0] * x)(np.eye(SIZE), 1.0).jaxpr
    names = [equation.primitive.name for equation in on_finite(program, (False, True)).eqns]
    assert "is_finite" not in names
    plain = jax.make_jaxpr(lambda a: jnp.sin(a))(1.0).jaxpr
    assert on_finite(plain, (True,)) is plain


@pytest.mark.numerical  # with XLA's usual optimisations
def test_rows_stay_apart_in_the_incomplete_beta_function():
    """XLA's loop for JAX's own runs over all rows until the slowest has converged; a row's value shall have the bits that it has
    beside any others."""
    a = b = np.full(300, 1.5, np.float32)
    x, own = (3.0 / (3.0 + RNG.uniform(5.0, 30.0, 300) ** 2)).astype(np.float32), lax.betainc
    program = jax.make_jaxpr(own)(a[0], b[0], x[0])
    apart = jaxpr_as_fun(ClosedJaxpr(on_finite(program.jaxpr, (True, True, True)), program.consts))
    found = []
    for function in (lambda *row: apart(*row)[0], own):
        values = [np.asarray(jax.jit(jax.vmap(function))(a, b, x))]
        slow = [np.append(u[:-1], np.float32(v)) for u, v in zip((a, b, x), (1e5, 1e5, 0.5))]
        values.append(np.asarray(jax.jit(jax.vmap(function))(*slow)))
        np.testing.assert_allclose(values[0], special.betainc(*np.float64([a, b, x])), atol=2e-5)
        found.append(np.array_equal(values[0][:-1], values[1][:-1]))
    assert found == [True, False]


def test_the_incomplete_beta_function_of_a_row_is_a_loop_of_its_own():
    program = jax.make_jaxpr(jax.jit(jax.value_and_grad(lax.betainc, 2)))(2.0, 3.0, 0.4)
    alone = on_finite(program.jaxpr, (True, True, True))
    names = {equation.primitive.name for equation in equations(alone)}
    assert "while" in names and "regularized_incomplete_beta" not in names
    value = lambda *row: jaxpr_as_fun(ClosedJaxpr(alone, program.consts))(*map(np.float32, row))[0]  # noqa: E731
    points = [(2, 3, 0.4), (0.3, 40, 0.01), (300, 200, 0.62)]
    np.testing.assert_allclose([value(*row) for row in points], special.betainc(*zip(*points)), atol=2e-5)
    for dtype, within in ((np.float16, 1e-3), (jnp.bfloat16, 1e-2), (np.float64, 1e-12)):
        with jax.enable_x64(dtype == np.float64):
            rows = [jnp.asarray(u, dtype) for u in zip(*points[:2])]
            again = on_finite(jax.make_jaxpr(lax.betainc)(*rows).jaxpr, (True, True, True))
            found = np.asarray(jaxpr_as_fun(ClosedJaxpr(again, ()))(*rows)[0])
        assert found.dtype == dtype
        exact = special.betainc(*(np.asarray(u, np.float64) for u in rows))
        np.testing.assert_allclose(found.astype(float), exact, rtol=0, atol=within)
    edges = [(2, 2, 0), (2, 2, 1), (0, 2, 0.5), (2, 2, np.nan), (np.inf, 2, 0.5)]
    np.testing.assert_array_equal([value(*row) for row in edges], [0.0, 1.0, np.nan, np.nan, np.nan])
