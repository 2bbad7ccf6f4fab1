import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dpppl.access.clipping import SLACK, Flat, clip_rows
from dpppl.errors import ConfigurationError

pytestmark = pytest.mark.numerical

NORM_ERROR = 3.2e-5
"""What clip_rows promises: at most a third of SLACK, the rest is for rounding rows in the sum."""

clip = jax.jit(clip_rows, static_argnums=2)


def joint_norms(tree):
    """The norm of each row over all leaves, in float64."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.sqrt(sum(np.sum(leaf.reshape(len(leaf), -1) ** 2, axis=1) for leaf in leaves))


def reference(tree, mask, clipping_norm):
    """The same in float64 NumPy."""
    norms = joint_norms(tree)
    keep = np.isfinite(norms) if mask is None else np.isfinite(norms) & mask
    factor = np.where(keep, 1 / np.maximum(norms, clipping_norm), 0.0)

    def scale(leaf):
        leaf = np.asarray(leaf, np.float64)
        factors = factor.reshape(-1, *[1] * (leaf.ndim - 1))
        return np.where(factors > 0, leaf, 0.0) * factors

    return jax.tree.map(scale, tree)


def hostile_rows(shape, seed):
    """Rows with norms awkward to sum: sizes from 1e-12 to 1e12, aligned, spiked, and terms that float32 sums lose."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    dust = np.full(size, 2.4e-4)  # its square is just below half a unit in the last place of 1
    dust[0] = 1.0
    rows = [
        rng.standard_normal(size) * 10.0 ** rng.uniform(-12, 12),
        rng.standard_normal(size) * 10.0 ** rng.uniform(-15, 3, size),
        np.full(size, 10.0 ** rng.uniform(-6, 6)),
        np.eye(1, size, rng.integers(size))[0] * 10.0 ** rng.uniform(-12, 12),
        dust,
        dust[::-1] * 3.0,
        np.zeros(size),
    ]
    return np.stack(rows).reshape(len(rows), *shape)


axes = st.sampled_from([1, 2, 5, 33])
shapes = st.one_of(
    st.lists(axes, max_size=3).map(tuple),
    st.sampled_from([(1024,), (1025,), (20_000,), (3, 1024), (2, 2, 2000), (1023, 1), (1500, 2)]),
)


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    shapes=st.lists(shapes, min_size=1, max_size=3),
    dtype=st.sampled_from([np.float32, np.float64, ml_dtypes.bfloat16]),
    clipping_norm=st.sampled_from([1e-3, 1.0, 50.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_norms_are_bounded_and_values_right_for_any_shape_and_dtype(shapes, dtype, clipping_norm, seed):
    with jax.enable_x64(dtype == np.float64):
        tree = {str(i): hostile_rows(shape, [seed, i]).astype(dtype) for i, shape in enumerate(shapes)}
        clipped = clip(jax.tree.map(jnp.asarray, tree), None, clipping_norm)
        assert np.all(joint_norms(clipped) <= 1 + NORM_ERROR)
        for result, exact in zip(jax.tree.leaves(clipped), jax.tree.leaves(reference(tree, None, clipping_norm))):
            assert result.dtype == (np.float64 if dtype == np.float64 else np.float32)
            np.testing.assert_allclose(result, exact, rtol=1.1 * NORM_ERROR, atol=1e-12)


def test_a_naive_float32_norm_breaks_the_bound():
    """What the float64 sums over long axes are for: rows of 300,000 terms, most lost when added to 1 one by one."""
    dust = np.full((1, 300_000), 2.4e-4, np.float32)
    dust[0, 0] = 1.0
    naive = np.sqrt(np.cumsum(dust**2, axis=1, dtype=np.float32)[:, -1])
    assert joint_norms(dust / naive) > 1 + 50 * SLACK
    assert joint_norms(clip(jnp.asarray(dust), None, 1.0)) <= 1 + NORM_ERROR


def test_squares_of_many_leaves_are_not_summed_in_float32():
    """A float32 sum over these 100 leaves would lose 99 of them, 3e-6 of the norm."""
    leaves = [jnp.full(1, 1.0 if i == 0 else 2.4e-4) for i in range(100)]
    assert abs(joint_norms(clip_rows(leaves, None, 1.0))[0] - 1) < 5e-7


def test_the_factor_of_a_huge_long_row_is_no_subnormal_number():
    """A norm of 3e41 has a factor of which float32 holds 12 bits; rounded up it would break the bound where the device,
    unlike a CPU, does not flush it to zero."""
    row = np.full((1, 1_000_000), 3e38, np.float32)
    factor = np.float32(1 / joint_norms(row)[0])
    assert float(factor) * joint_norms(row)[0] > 1 + SLACK
    assert joint_norms(clip(jnp.asarray(row), None, 1.0))[0] == 0


def test_short_rows_are_left_alone_and_divided_by_the_norm():
    rows = jnp.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [6.0, 8.0]])
    expected = [[0.6, 0.8], [0.06, 0.08], [0.0, 0.0], [0.6, 0.8]]
    np.testing.assert_allclose(clip(rows, None, 5.0), expected, rtol=3e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30, 3e38])
@pytest.mark.parametrize("leaf", ["a", "b"])
def test_a_row_that_is_not_finite_contributes_exactly_zero_everywhere(bad, leaf, x64):
    tree = {"a": np.ones((3, 2), np.float32), "b": np.ones((3, 4, 3), np.float32)}
    tree[leaf].reshape(3, -1)[1, -1] = bad
    clipped = clip(jax.tree.map(jnp.asarray, tree), None, 1.0)
    for value in jax.tree.leaves(clipped):
        assert np.array_equal(value[1], np.zeros_like(value[1]))
        assert np.all(value[0] == value[2]) and np.all(value[0] > 0.2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_denormal_and_huge_rows_are_bounded(dtype):
    with jax.enable_x64(dtype == np.float64):
        tiny, largest = ml_dtypes.finfo(dtype).smallest_subnormal, ml_dtypes.finfo(dtype).max
        rows = np.array(
            [[tiny, 0], [tiny, tiny], [1e-38, 1e-38], [largest, largest], [1e18, 1e18], [1e-20, 1e20]], dtype
        )
        clipped = np.asarray(clip(jnp.asarray(rows), None, 1.0))
        norms = joint_norms(clipped)
        assert np.all(np.isfinite(clipped)) and np.all(norms <= 1 + NORM_ERROR)
        assert np.all(norms[:3] < 1e-30) and norms[4] > 0.99


@pytest.mark.parametrize("clipping_norm", [1e-30, 1e-10, 1e10, 1e18])
def test_extreme_clipping_norms_keep_the_bound(clipping_norm):
    rows = np.array([[1e-36, 0], [1e-20, 1e-20], [1.0, 2.0], [1e19, 1e19], [1e38, 1e38]], np.float32)
    clipped = np.asarray(clip(jnp.asarray(rows), None, clipping_norm))
    norms = joint_norms(clipped)
    assert np.all(np.isfinite(clipped)) and np.all(norms <= 1 + NORM_ERROR)
    inside = joint_norms(rows) < 1e18 * clipping_norm  # beyond, squares overflow and the row is dropped
    exact = joint_norms(reference(rows, None, clipping_norm))
    np.testing.assert_allclose(norms[inside], exact[inside], rtol=NORM_ERROR, atol=1e-30)


def test_masked_rows_are_exactly_zero_and_others_unchanged(x64):
    rng = np.random.default_rng(0)
    tree = {"a": rng.standard_normal((6, 3)).astype(np.float32), "b": rng.standard_normal(6).astype(np.float32)}
    tree["a"][4] = np.nan
    mask = np.array([True, False, True, False, False, True])
    arrays = jax.tree.map(jnp.asarray, tree)
    masked, unmasked = clip(arrays, jnp.asarray(mask), 1.0), clip(arrays, None, 1.0)
    for value, plain in zip(jax.tree.leaves(masked), jax.tree.leaves(unmasked)):
        assert not np.asarray(value)[~mask].any()
        np.testing.assert_array_equal(np.asarray(value)[mask], np.asarray(plain)[mask])


def test_norms_ask_for_full_matrix_precision_and_short_sums(equations):
    """No TF32 or bfloat16 in a norm, whatever the user's default, and no float32 sum over more than 1,024 terms; on a
    CPU, whose products are exact and whose sums are blocked, only the program shows it."""
    with jax.default_matmul_precision("bfloat16"):
        program = jax.make_jaxpr(lambda g: clip_rows(g, None, 1.0))(
            {"a": jnp.ones((4, 1024)), "b": jnp.ones((4, 2, 3)), "c": jnp.ones((4, 1025)), "d": jnp.ones((4, 2, 2000))}
        )
    products = [e for e in equations(program) if e.primitive.name == "dot_general"]
    assert all(e.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2 for e in products)
    assert sorted(e.invars[1].aval.shape for e in products) == [(3,), (1024,)]
    sums = [e for e in equations(program) if e.primitive.name == "reduce_sum"]
    assert len(sums) == 3 and all(e.invars[0].aval.dtype == jnp.float64 for e in sums)


@pytest.mark.parametrize(
    "wrong", [0, 0.0, -1.0, float("nan"), float("inf"), 1e19, 1e-31, True, None, "1", [1.0], np.array([1.0])]
)
def test_a_clipping_norm_that_bounds_nothing_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="clipping_norm"):
        Flat(wrong)


def test_flat_clips_at_its_norm_and_says_so():
    rows = jnp.array([[3.0, 4.0], [30.0, 40.0]])
    np.testing.assert_array_equal(Flat(10).clip(rows, None), clip_rows(rows, None, 10.0))
    assert Flat(np.float32(2)).describe() == "flat, clipping_norm 2"
