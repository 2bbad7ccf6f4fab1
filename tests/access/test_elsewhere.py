"""Defects of other libraries' mechanisms, each as a test that this mechanism passes; `test_mutations_elsewhere` plants them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from test_gradients import clipped_sum

from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.access.norm_histogram import SIZE, in_bin, noisy_histogram
from dpppl.randomness import chacha
from dpppl.subsampling import FullBatch, Partition, Poisson

N = 700


def linear(z, row, _=None):
    """A log likelihood whose gradient in z is the row."""
    return sum(jnp.vdot(z[name], row[name]) for name in z)


def rows_of(seed=0, num_rows=N):
    """Rows (num_rows, 4) and (num_rows, 3), of norms on both sides of 1."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-1.5, 1.0, (num_rows, 1))
    draw = lambda size: (scale * rng.standard_normal((num_rows, size))).astype(np.float32)  # noqa: E731
    return {"a": draw(4), "b": draw(3)}


def changed(rows, index, value):
    """The rows with every number of one of them replaced."""
    rows = {name: x.copy() for name, x in rows.items()}
    for x in rows.values():
        x[index] = value
    return rows


def latents(rows):
    return {name: jnp.zeros(x.shape[1]) for name, x in rows.items()}


# One row moves no other


def steps_of(clipping, strategy):
    """The un-noised clipped sum as whole numbers of 2^-26, as a function of rows."""

    @jax.jit
    def total(rows):
        return clipped_sum(linear, latents(rows), rows, None, clipping.clip, strategy)

    def steps(rows):
        flat = np.concatenate([np.asarray(x) for x in jax.tree.leaves(total(rows))]) * 2.0**26
        assert np.array_equal(flat, np.round(flat))
        return flat.astype(np.int64)

    return steps


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("strategy", ["auto", "vmap"])
def test_an_extreme_row_leaves_the_stored_bits_of_all_others(strategy):
    """Sums differ by what the row adds on its own, in whole steps of the grid, wherever it stands in a chunk."""
    rows, steps = rows_of(), steps_of(Flat(1.0), strategy)
    for index, value in ((0, 1e15), (1, 3e38), (511, np.nan), (512, np.inf), (N - 1, 1e30), (N // 2, -1e-40)):
        without, alone = changed(rows, index, 0.0), changed({n: 0.0 * x for n, x in rows.items()}, index, value)
        moved = steps(changed(rows, index, value)) - steps(without)
        np.testing.assert_array_equal(moved, steps(alone))
        np.testing.assert_array_equal(steps(rows) - steps(without), steps(rows_alone(rows, index)))


def rows_alone(rows, index):
    """All rows zero but one."""
    return {name: np.where(np.arange(len(x))[:, None] == index, x, 0.0).astype(x.dtype) for name, x in rows.items()}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("strategy", ["auto", "vmap", "microbatch"])
def test_rows_in_another_order_have_the_same_sum(strategy):
    """Also where they are padded by rows of zeros or by rows that do not count. A processor may round a row elsewhere in a vector to
    its neighbour on the grid; sums of floats in another order differ by more."""
    rows, clipping = rows_of(1), Flat(1.0)

    @jax.jit
    def total(rows, mask):
        return clipped_sum(linear, latents(rows), rows, mask, clipping.clip, strategy)

    near = functools.partial(np.testing.assert_allclose, rtol=0.0, atol=6e-7)
    every = np.ones(N, bool)
    expected = total(rows, every)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(N)
        jax.tree.map(near, expected, total({n: x[order] for n, x in rows.items()}, every))
    for fill, mask in ((0.0, True), (np.nan, False), (1e30, False), (np.inf, False)):
        padded = {n: np.concatenate([x, np.full((113, x.shape[1]), fill, np.float32)]) for n, x in rows.items()}
        jax.tree.map(near, expected, total(padded, np.concatenate([every, np.full(113, mask)])))


# Noise


LENGTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 64, 65, 127, 128, 129)
DRAWS = 400


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("generator", [chacha.chacha20, "threefry2x32"], ids=["chacha", "threefry"])
@pytest.mark.parametrize("discretise", [False, True])
def test_every_released_coordinate_has_its_noise(discretise, generator):
    """The last one, too, of any length and of several leaves: variances of 400 draws, false-alarm rate 1e-9 each; and
    neighbours among coordinates are uncorrelated."""
    low, high = stats.chi2.ppf([5e-10, 1 - 5e-10], DRAWS - 1) / (DRAWS - 1)
    pairs = [(n, 1) for n in LENGTHS] if generator == "threefry2x32" else [(1, 1), (8, 1), (5, 4), (129, 2)]
    mechanism = Mechanism(clipping=Flat(2.0), subsampling=FullBatch(), discretise=discretise)
    keys = jax.random.split(jax.random.key(3, impl=generator), DRAWS)
    for first, second in pairs[:: 5 if discretise else 1]:
        rows = {"a": np.zeros((2, first), np.float32), "b": np.zeros((2, second), np.float32)}

        def access(key, rows=rows):
            return noisy_sum(mechanism, linear, latents(rows), rows, {}, key=key, noise_multiplier=1.5).total

        found = jax.jit(jax.vmap(access))(keys)
        noise = np.concatenate([np.asarray(found[name], np.float64) for name in "ab"], axis=1) / 3.0
        assert noise.shape == (DRAWS, first + second)
        variances = noise.var(axis=0, ddof=1)
        assert np.all((low < variances) & (variances < high)), (first, second, variances)
        alike = np.corrcoef(noise.T)[np.triu_indices(first + second, 1)] * DRAWS**0.5
        assert np.max(np.abs(alike)) < 6.5


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("clipping", ["sum and count", "histogram"])
def test_counts_and_histograms_have_noise_in_every_coordinate(clipping):
    low, high = stats.chi2.ppf([5e-10, 1 - 5e-10], DRAWS - 1) / (DRAWS - 1)
    rows = {"a": np.zeros((2, 3), np.float32)}
    keys = jax.random.split(jax.random.key(4), DRAWS)
    if clipping == "histogram":
        nothing = lambda z, row, public: in_bin(jnp.nan * row["a"][0])  # noqa: E731
        access = lambda key: noisy_histogram(nothing, 0.0, rows, {}, key=key, noise_multiplier=1.5)  # noqa: E731
        noise = np.asarray(jax.jit(jax.vmap(access))(keys), np.float64) / 1.5
        assert noise.shape == (DRAWS, SIZE)
    else:
        mechanism = Mechanism(clipping=Flat(1.0), subsampling=FullBatch(), count_share=0.2)

        def access(key):
            return noisy_sum(mechanism, linear, latents(rows), rows, {}, key=key, noise_multiplier=1.5)

        found = jax.jit(jax.vmap(access))(keys)
        sums = np.asarray(found.total["a"], np.float64) / (1.5 / 0.8**0.5)
        noise = np.column_stack([sums, np.asarray(found.count, np.float64) / (1.5 * mechanism.count_std)])
    variances = noise.var(axis=0, ddof=1)
    assert np.all((low < variances) & (variances < high)), variances


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("subsampling", [FullBatch(), Poisson(0.5), Poisson(1e-9), Partition(1)], ids=repr)
@pytest.mark.parametrize("num_rows", [1, 2])
def test_one_row_and_no_row_are_accesses_like_others(num_rows, subsampling):
    """The noise is there, finite, and of the same size where no row is drawn: nothing is divided by a number of rows."""
    mechanism = Mechanism(clipping=Flat(1.0), subsampling=subsampling)
    rows = rows_of(2, num_rows)
    keys = jax.random.split(jax.random.key(5), DRAWS)

    @functools.partial(jax.vmap, in_axes=(0, None))
    def access(key, rows):
        return noisy_sum(mechanism, linear, latents(rows), rows, {}, key=key, noise_multiplier=2.0).total["a"]

    found, nothing = (np.asarray(jax.jit(access)(keys, r)) for r in (rows, {n: 0.0 * x for n, x in rows.items()}))
    assert np.all(np.isfinite(found))
    assert 0.75 < np.std(nothing) / 2.0 < 1.25  # of 1,600 draws
    assert np.max(np.linalg.norm(found - nothing, axis=1)) <= num_rows * (1.0 + 1e-4)
