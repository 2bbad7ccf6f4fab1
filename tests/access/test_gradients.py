import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpppl.access.clipping import SLACK, Flat
from dpppl.access.drawn import Drawn
from dpppl.access.exact_sum import sum_of_rows
from dpppl.row_program.hoist import gradient

pytestmark = pytest.mark.numerical


def clipped_sum(log_likelihood, z, rows, mask, clip, strategy="auto", steps=None):
    """The sum over rows of the clipped gradient of `log_likelihood(z, row)` in z."""
    of_row = lambda row: gradient(log_likelihood)(z, row)  # noqa: E731
    return sum_of_rows(of_row, Drawn(rows, mask), clip, strategy=strategy, steps=steps)


def linear(z, row):
    """A log likelihood whose gradient in z is the row."""
    return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(z), jax.tree.leaves(row)))


@functools.partial(jax.jit, static_argnames=("clipping_norm", "strategy"))
def summed(z, rows, mask=None, clipping_norm=1.0, strategy="auto"):
    return clipped_sum(linear, z, rows, mask, Flat(clipping_norm).clip, strategy)


def clipped_reference(rows, mask, clipping_norm):
    """Clipped rows of given gradients in float64 NumPy, (B, all entries)."""
    flat = np.concatenate(
        [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in jax.tree.leaves(rows)], axis=1
    )
    norms = np.linalg.norm(flat, axis=1)
    keep = np.isfinite(norms) & (True if mask is None else mask)
    return flat[keep] / np.maximum(norms[keep], clipping_norm)[:, None]


def reference(rows, mask, clipping_norm):
    return np.sum(clipped_reference(rows, mask, clipping_norm), axis=0)


def vector(tree):
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    assert all(leaf.dtype == np.float64 for leaf in leaves)
    return np.concatenate([leaf.ravel() for leaf in leaves])


def random_rows(num_rows, seed=0):
    """Gradients of three leaves with norms on both sides of 1."""
    rng = np.random.default_rng(seed)
    rows = {
        "w": rng.standard_normal((num_rows, 3, 2)),
        "b": rng.standard_normal(num_rows),
        "s": rng.standard_normal((num_rows, 4)),
    }
    scale = 10.0 ** rng.uniform(-1.5, 2, num_rows)
    return {name: (leaf * scale.reshape(-1, *[1] * (leaf.ndim - 1))).astype(np.float32) for name, leaf in rows.items()}


def latents(rows):
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), rows)


@pytest.mark.parametrize(
    ("num_rows", "strategy"),
    [
        (1, "auto"),
        (5, "microbatch"),
        (512, "auto"),
        (513, "auto"),
        (1_003, "microbatch"),
        (1300, "auto"),
        (1300, "vmap"),
    ],
)
def test_every_strategy_and_uneven_chunks_agree_with_numpy(num_rows, strategy):
    """A row lost or counted twice would exceed the tolerance ten times."""
    rows = random_rows(num_rows)
    some = np.arange(num_rows) % 3 != 1
    tolerance = 1e-6 * num_rows**0.5
    for clipping_norm, mask in ((1.0, None), (0.05, some)):
        exact = clipped_reference(rows, mask, clipping_norm)
        result = vector(summed(latents(rows), rows, mask, clipping_norm, strategy))
        np.testing.assert_allclose(result, np.sum(exact, axis=0), atol=tolerance)
        assert np.min(np.max(np.abs(exact), axis=1)) > 10 * tolerance


@pytest.mark.parametrize(("num_rows", "strategy"), [(512, "auto"), (513, "vmap"), (1024, "vmap"), (4096, "vmap")])
def test_aligned_rows_do_not_overflow(num_rows, strategy):
    """1,024 rows of norm 1 on a grid of 2^-21 would add up to -1,024 in 32 bits."""
    rows = np.ones((num_rows, 1), np.float32)
    assert vector(summed(jnp.zeros(1), rows, strategy=strategy)) == [num_rows]


@pytest.mark.parametrize("strategy", ["auto", "vmap"])
def test_one_of_a_million_aligned_rows_moves_the_sum_by_at_most_the_norm(strategy):
    """The sum is exact: zeroing a row takes away what the row adds on its own, and nothing else."""
    num_rows = 1_000_000
    rows = np.tile(np.array([3.0, -4.0, 1.3], np.float32), (num_rows, 1))
    rows *= np.random.default_rng(0).uniform(0.2, 3.0, (num_rows, 1)).astype(np.float32)
    z = jnp.zeros(3)
    total = np.asarray(summed(z, rows, strategy=strategy))
    np.testing.assert_allclose(total, reference(rows, None, 1.0), rtol=1e-5)
    for index in (0, 1, 511, 512, 70_000, 499_999, 999_998, 999_999):
        changed = rows.copy()
        changed[index] = 0.0
        moved = total - np.asarray(summed(z, changed, strategy=strategy))
        changed[:] = 0.0
        changed[index] = rows[index]
        assert np.array_equal(moved, summed(z, changed, strategy=strategy))
        assert 0.5 < np.linalg.norm(moved) <= 1 + SLACK


@pytest.mark.parametrize(
    ("num_latents", "strategy", "step"), [(10, "auto", 2.0**-21), (10, "vmap", 2.0**-26), (70_000, "auto", 2.0**-24)]
)
def test_sums_are_whole_numbers_of_steps(num_latents, strategy, step):
    """So they are exact in any order. A plain float64 sum, which XLA makes of rounding by a large number, is not. Rows are
    rounded before they are added: many of .6 steps count as many steps."""
    rows = np.random.default_rng(0).standard_normal((600, num_latents)).astype(np.float32)[: 6_000_000 // num_latents]
    result = np.asarray(summed(jnp.zeros(num_latents), rows, strategy=strategy))
    assert np.array_equal(result / step, np.round(result / step))
    exact = reference(rows, None, 1.0)
    assert not np.array_equal(exact / step, np.round(exact / step))
    short = np.full_like(rows, 0.6 * step)
    assert np.all(np.asarray(summed(jnp.zeros(num_latents), short, strategy=strategy)) == len(rows) * step)


def test_rounding_keeps_the_bound_with_the_most_latents_of_the_fast_sum():
    """As many latents as the fast sum takes, each entry of a unit row .55 steps above the grid: all rounded up."""
    sizes = np.arange(60_000, 65_537)
    steps = 2.0**21 / np.sqrt(sizes)
    size = int(sizes[(steps % 1 > 0.55) & (steps % 1 < 0.6)].max())
    for length in (1.0, 1.00003, 7.0):
        row = np.full((1, size), length / size**0.5, np.float32)
        norm = np.linalg.norm(vector(summed(jnp.zeros(size), row)))
        assert 1 + 0.4 * SLACK < norm <= 1 + SLACK


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_every_dtype_gives_a_float64_sum_of_bounded_rows(dtype):
    with jax.enable_x64(dtype == "float64"):
        rows = jnp.asarray(np.random.default_rng(0).standard_normal((900, 7)) * 3).astype(dtype)
        result = np.asarray(summed(jnp.zeros(7, dtype), rows))
        assert result.dtype == np.float64
        np.testing.assert_allclose(result, reference(np.asarray(rows), None, 1.0), atol=1e-3)


def test_gradients_of_a_nonlinear_likelihood_are_clipped_row_by_row():
    """A hand-derived logistic gradient; averaging before clipping, or clipping the sum, would not give this."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((50, 3)) * 4, rng.integers(0, 2, 50).astype(float)
    z = np.array([0.3, -0.2, 0.5])

    def log_likelihood(z, row):
        eta = jnp.vdot(row[0], z)
        return row[1] * eta - jax.nn.softplus(eta)

    gradients = (y - 1 / (1 + np.exp(-x @ z)))[:, None] * x
    rows = (jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
    result = clipped_sum(log_likelihood, jnp.asarray(z, jnp.float32), rows, None, Flat(0.5).clip)
    np.testing.assert_allclose(result, reference(gradients, None, 0.5), atol=1e-4)
    assert np.linalg.norm(gradients.sum(axis=0) / 0.5 - np.asarray(result)) > 1


def test_all_rows_masked_or_zero_sum_to_exactly_zero(x64):
    rows = random_rows(600)
    assert not vector(summed(latents(rows), rows, np.zeros(600, bool))).any()
    assert not vector(summed(latents(rows), jax.tree.map(np.zeros_like, rows))).any()


def test_likelihoods_run_at_full_matrix_precision(equations):
    """No TF32 or bfloat16, forwards or backwards, whatever the user's default; on a CPU only the program shows it."""

    def log_likelihood(z, row):
        return jnp.sum(jnp.tanh(row @ z["first"]) @ z["second"])

    z = {"first": jnp.ones((4, 3)), "second": jnp.ones((3, 2))}
    with jax.default_matmul_precision("bfloat16"):
        program = jax.make_jaxpr(lambda z, rows: clipped_sum(log_likelihood, z, rows, None, Flat(1.0).clip))(
            z, jnp.ones((1100, 4))
        )
    precisions = [e.params["precision"] for e in equations(program) if e.primitive.name == "dot_general"]
    assert len(precisions) >= 5 and all(p == (jax.lax.Precision.HIGHEST,) * 2 for p in precisions)


def test_memory_is_bounded_by_chunks(equations):
    """100,000 rows of 1,000 latents: nothing as large as all gradients is ever made."""
    program = jax.make_jaxpr(lambda z, rows: clipped_sum(linear, z, rows, None, Flat(1.0).clip))(
        jnp.zeros(1000), jax.ShapeDtypeStruct((100_000, 1000), jnp.float32)
    )
    sizes = [int(np.prod(v.aval.shape)) for e in equations(program) for v in e.outvars if hasattr(v.aval, "shape")]
    assert max(sizes) <= 2**17
