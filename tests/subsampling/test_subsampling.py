import collections
import functools
from fractions import Fraction
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpppl.randomness import native
from dpppl.subsampling import (
    SAMPLING_BITS,
    FullBatch,
    Poisson,
    Selection,
    draw_dense,
    draw_sparse,
    sparse_sizes,
)
from dpppl.subsampling.distinct import distinct_rows
from dpppl.subsampling.poisson import _binomial_thresholds

SUBSET_ROWS, SUBSET_RATE, SUBSET_DRAWS = 12, 0.8, 200_000
GENEROUS = (SUBSET_ROWS, 110)
"""Cap and tries for subsets of 12 rows: the tries run out with probability 6e-5 a draw, 12 draws of one subset."""


def many(draw, count, seed=0, batch=25_000):
    """Selections of `count` independent draws, on the host, stacked."""
    draws = jax.jit(jax.vmap(draw))
    keys = jax.random.split(jax.random.key(seed), count)
    parts = [jax.tree.map(np.asarray, draws(keys[start : start + batch])) for start in range(0, count, batch)]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def rows_of(selection):
    """The rows drawn, one array a draw."""
    if selection.index is None:
        return [np.flatnonzero(mask) for mask in selection.mask]
    return [index[mask] for index, mask in zip(selection.index, selection.mask)]


def chi_square(counts, probabilities):
    """p-value of Pearson's test; cells expected below 5 are merged with cells of the nearest probability."""
    order = np.argsort(-np.asarray(probabilities), kind="stable")
    counts, expected = np.asarray(counts)[order], np.sum(counts) * np.asarray(probabilities)[order]
    cells = np.unique(np.floor(np.cumsum(expected) / 5), return_inverse=True)[1]
    if np.sum(expected[cells == cells[-1]]) < 4:
        cells[cells == cells[-1]] -= 1
    counts, expected = np.bincount(cells, counts), np.bincount(cells, expected)
    return stats.chi2.sf(np.sum((counts - expected) ** 2 / expected), len(counts) - 1)


def size_pvalue(sizes, num_rows, rate):
    """p-value of batch sizes against their binomial distribution."""
    low, high = stats.binom.ppf([1e-12, 1 - 1e-12], num_rows, rate).astype(int)
    values = np.arange(low, high + 1)
    counts = np.bincount(np.clip(sizes, low, high) - low, minlength=len(values))
    return chi_square(counts, stats.binom.pmf(values, num_rows, rate))


def fixed_bits(monkeypatch, *words):
    """Make `jax.random.bits` return these words, whatever the key."""
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: jnp.asarray(words, jnp.uint32).reshape(shape))


def both_ways(monkeypatch):
    """In C, where it is there, and by XLA."""
    yield
    monkeypatch.setattr(native, "available", lambda: False)
    yield


# Every subset


@functools.cache
def subset_counts(sparse):
    """How often each of the 2^12 subsets came up."""

    def draw(key):
        if sparse:
            selection = draw_sparse(key, SUBSET_ROWS, SUBSET_RATE, *GENEROUS)
            return jnp.sum(jnp.where(selection.mask, 1 << selection.index, 0))
        return jnp.sum(jnp.where(draw_dense(key, SUBSET_ROWS, SUBSET_RATE).mask, 1 << jnp.arange(SUBSET_ROWS), 0))

    return np.bincount(many(draw, SUBSET_DRAWS, seed=1), minlength=2**SUBSET_ROWS)


def subset_pvalue(counts, rate):
    sizes = np.array([bin(subset).count("1") for subset in range(2**SUBSET_ROWS)])
    return chi_square(counts, rate**sizes * (1 - rate) ** (SUBSET_ROWS - sizes))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_every_subset_has_its_probability(sparse):
    """False-alarm rate 1e-6 over some 2,400 groups of the 4,096 subsets; a rate 1 % off is rejected (power .99)."""
    counts = subset_counts(sparse)
    assert subset_pvalue(counts, SUBSET_RATE) > 1e-6
    assert subset_pvalue(counts, 1.01 * SUBSET_RATE) < 1e-6
    assert subset_pvalue(counts, SUBSET_RATE / 1.01) < 1e-6


# Sizes, rows and positions


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("rate", "num_rows", "count", "sparse"),
    [
        (1e-6, 10_000_000, 10_000, True),
        (1e-4, 1_000_000, 2_000, True),
        (0.01, 10_000, 2_000, True),
        (1e-6, 4, 1_000, False),
        (0.3, 50, 10_000, False),
        (0.5, 1_000, 5_000, False),
    ],
)
def test_poisson_draws_distinct_rows_in_binomial_numbers(rate, num_rows, count, sparse):
    """False-alarm rate 1e-6 a test; a rate 5 % off is rejected wherever rows are drawn at all."""
    selection = many(lambda key: Poisson(rate).draw(key, num_rows), count)
    assert (selection.index is not None) == sparse
    rows = rows_of(selection)
    assert all(len(np.unique(drawn)) == len(drawn) for drawn in rows)
    flat = np.concatenate(rows)
    assert flat.size == 0 or (flat.min() >= 0 and flat.max() < num_rows)
    sizes = np.array([len(drawn) for drawn in rows])
    if count * num_rows * rate < 1:
        assert np.sum(sizes) <= 2  # P(3 or more) is below 1e-6
        return
    assert size_pvalue(sizes, num_rows, rate) > 1e-6
    assert size_pvalue(sizes, num_rows, 1.05 * rate) < 1e-6
    assert size_pvalue(sizes, num_rows, rate / 1.05) < 1e-6
    blocks = 50
    assert chi_square(np.bincount(flat * blocks // num_rows, minlength=blocks), np.full(blocks, 1 / blocks)) > 1e-6
    squeezed = (flat * 0.97).astype(int)  # the last 3 % of the rows never come up
    assert chi_square(np.bincount(squeezed * blocks // num_rows, minlength=blocks), np.full(blocks, 1 / blocks)) < 1e-6


def test_rows_are_uniform_although_their_number_does_not_divide_the_range_of_a_word():
    """With 3 * 2^29 rows a bare remainder would put 3/4 of the draws below 2^30 instead of 2/3."""
    num_rows = 3 * 2**29
    rows = np.concatenate(rows_of(many(lambda key: draw_sparse(key, num_rows, 1e-7, 250, 420), 100)))
    below = np.sum(rows < 2**30)
    assert stats.binomtest(int(below), len(rows), 2 / 3).pvalue > 1e-6
    assert stats.binomtest(int(below), len(rows), 3 / 4).pvalue < 1e-6


def test_a_word_beyond_the_last_whole_multiple_is_rejected(monkeypatch):
    largest = 2**32 // 12 * 12 - 1
    size = [2**32 - 1] * (SAMPLING_BITS // 32)  # the largest uniform: every row
    fixed_bits(monkeypatch, *size, largest + 1, largest, 2**32 - 1, 0)
    for _ in both_ways(monkeypatch):
        selection = jax.jit(lambda key: draw_sparse(key, 12, 0.5, 12, 4))(jax.random.key(0))
        assert selection.mask.tolist() == [False, True, False, True]
        assert selection.index[selection.mask].tolist() == [11, 0]


def test_repeats_are_dropped_and_the_first_distinct_rows_are_kept(monkeypatch):
    smallest, table = _binomial_thresholds(0.5, 12, 12)
    fixed_bits(monkeypatch, *table[3 - smallest - 1], 5, 5, 7, 5, 7, 9, 2, 1)  # P(size <= 2) exactly: size 3
    for _ in both_ways(monkeypatch):
        selection = jax.jit(lambda key: draw_sparse(key, 12, 0.5, 12, 8))(jax.random.key(0))
        assert selection.index[selection.mask].tolist() == [5, 7, 9]


@pytest.mark.parametrize("num_rows", [1, 3, 100, 60_000, 2**31 - 1])
def test_both_ways_choose_the_same_rows(num_rows, monkeypatch):
    draws = np.random.default_rng(0).integers(0, 2**32, (3, 257), dtype=np.uint32)
    draws[1, ::2] = draws[1, 0]
    draws[2, ::5] = 2**32 - 1
    chosen = [
        jax.jit(jax.vmap(lambda draws, size: distinct_rows(draws, num_rows, size)))(draws, np.int32([0, 20, 300]))
        for _ in both_ways(monkeypatch)
    ]
    jax.tree.map(np.testing.assert_array_equal, *chosen)


def test_the_rows_are_the_same_with_x64_on():
    draw = jax.jit(lambda key: (Poisson(0.01).draw(key, 10_000), draw_dense(key, 100, 0.3)))
    narrow = draw(jax.random.key(4))
    with jax.enable_x64(True):
        wide = draw(jax.random.key(4))
    jax.tree.map(np.testing.assert_array_equal, narrow, wide)


def test_steps_under_one_key_draw_independent_rows():
    """The overlap of two steps' rows is binomial at the squared rate: z above 4.9 is a false alarm of 1e-6."""
    selection = many(lambda key: tuple(Poisson(0.3).draw(key, 100, step) for step in (0, 1)), 2_000)
    overlap = np.sum(selection[0].mask & selection[1].mask)
    assert abs(overlap - 200_000 * 0.09) < 4.9 * (200_000 * 0.09 * 0.91) ** 0.5
    assert np.array_equal(selection[0].mask, many(lambda key: Poisson(0.3).draw(key, 100), 2_000).mask)


# Exactness


@pytest.mark.parametrize(("rate", "num_rows"), [(0.1, 60), (0.5, 12), (1 / 3, 40), (1e-6, 30), (0.97, 25)])
def test_the_table_is_the_binomial_distribution_to_190_bits(rate, num_rows):
    smallest, table = _binomial_thresholds(rate, num_rows, num_rows)
    success, running = Fraction(rate), Fraction(0)
    exact = {}
    for k in range(num_rows):
        running += comb(num_rows, k) * success**k * (1 - success) ** (num_rows - k)
        exact[k] = running
    assert all(exact[k] < Fraction(1, 2**250) for k in range(smallest))
    assert all(1 - exact[k] < Fraction(1, 2**190) for k in range(smallest + len(table), num_rows))
    for offset, words in enumerate(table):
        threshold = sum(int(word) << shift for word, shift in zip(words, reversed(range(0, SAMPLING_BITS, 32))))
        assert abs(Fraction(threshold, 2**SAMPLING_BITS) - exact[smallest + offset]) < Fraction(1, 2**190)


def test_the_table_of_many_rows_agrees_with_scipy():
    rate, num_rows, cap = 1e-4, 10_000_000, 1_400
    smallest, table = _binomial_thresholds(rate, num_rows, cap)
    probabilities = table.astype(float) @ 2.0 ** (-32.0 * np.arange(1, SAMPLING_BITS // 32 + 1))
    exact = stats.binom.cdf(np.arange(smallest, smallest + len(table)), num_rows, rate)
    np.testing.assert_allclose(probabilities, exact, rtol=1e-9, atol=2.0**-190)
    assert smallest + len(table) == cap


def test_the_batch_size_compares_all_words(monkeypatch):
    """Just below a threshold and at it: one row fewer, one row more."""
    _, table = _binomial_thresholds(0.3, 50, 50)
    draws = list(range(50))
    for words in table[[0, 7, 20]]:
        number = sum(int(word) << shift for word, shift in zip(words, reversed(range(0, SAMPLING_BITS, 32))))
        sizes = []
        for value in (number - 1, number):
            fixed_bits(monkeypatch, *[(value >> s) & 0xFFFFFFFF for s in reversed(range(0, SAMPLING_BITS, 32))], *draws)
            sizes.append(int(draw_sparse(jax.random.key(0), 50, 0.3, 50, 50).mask.sum()))
        assert sizes[1] == sizes[0] + 1


@pytest.mark.parametrize("rate", [0.1, 0.5, 1e-6, 1 - 2**-53, 2.0**-40])
def test_the_dense_threshold_is_the_rate_rounded_down(monkeypatch, rate):
    threshold = int(Fraction(rate) * 2**64)
    assert 0 <= Fraction(rate) - Fraction(threshold, 2**64) < Fraction(1, 2**64)
    words = [0, threshold - 1, threshold, min(threshold + 2**32, 2**64 - 1), 2**64 - 1]
    fixed_bits(monkeypatch, *[word >> 32 for word in words], *[word & 0xFFFFFFFF for word in words])
    assert draw_dense(jax.random.key(0), 5, rate).mask.tolist() == [True, True, False, False, False]


def exact_shortfall(cap, tries, num_rows):
    """P(fewer than `cap` distinct rows in `tries` words), by dynamic programming over the number of distinct rows."""
    accepted = (2**32 // num_rows * num_rows) / 2**32
    state = np.zeros(cap + 1)
    state[0] = 1.0
    new = accepted * (num_rows - np.arange(cap)) / num_rows
    for _ in range(tries):
        moved = state[:cap] * new
        state[:cap] -= moved
        state[1:] += moved
    return state[:cap].sum()


@pytest.mark.parametrize(
    ("rate", "num_rows", "probability"),
    [
        (0.01, 5_000, 1e-22),
        (1e-3, 100_000, 1e-9),
        (1e-6, 10_000_000, 1e-40),
        (0.05, 2_000, 1e-6),
        (1e-7, 3 * 2**29, 1e-12),
    ],
)
def test_cap_and_tries_bound_the_overflow(rate, num_rows, probability):
    cap, tries = sparse_sizes(rate, num_rows, probability)
    assert stats.binom.sf(cap, num_rows + 1, rate) <= probability < stats.binom.sf(cap - 1, num_rows + 1, rate)
    assert exact_shortfall(cap, tries, num_rows) <= probability
    assert exact_shortfall(cap, int(0.85 * tries), num_rows) > probability or tries < 1.2 * cap


def test_the_failure_probability_covers_the_table():
    assert Poisson(0.01).failure_probability == 3 * Poisson(0.01).overflow_probability
    assert Poisson(0.01, overflow_probability=1e-300).failure_probability >= 2**31 * 2.0 ** (1 - SAMPLING_BITS)
    assert Poisson(1.0).failure_probability == FullBatch().failure_probability == 0.0


def test_a_tiny_cap_truncates_without_bias():
    """Chi-square over 100 rows, false-alarm rate 1e-6; truncating by position would leave the last rows out."""
    num_rows, cap = 100, 4
    selection = many(lambda key: draw_sparse(key, num_rows, 0.1, cap, 12), 20_000)
    rows = rows_of(selection)
    assert max(map(len, rows)) == cap and all(len(set(drawn)) == len(drawn) for drawn in rows)
    counts = collections.Counter(np.concatenate(rows).tolist())
    uniform = np.full(num_rows, 1 / num_rows)
    assert chi_square(np.array([counts[row] for row in range(num_rows)]), uniform) > 1e-6
    by_position = np.bincount(np.concatenate([np.sort(drawn)[:3] for drawn in rows]), minlength=num_rows)
    assert chi_square(by_position, uniform) < 1e-6


def test_a_cap_below_every_likely_size_is_kept():
    selection = many(lambda key: draw_sparse(key, 1_000, 0.5, 5, 50), 200)
    assert np.all(selection.mask.sum(axis=1) == 5)


# Cost and configuration


def test_the_cost_does_not_grow_with_the_number_of_rows(equations):
    def largest(num_rows, batch_size=100):
        program = jax.make_jaxpr(lambda key: Poisson(batch_size / num_rows).draw(key, num_rows))(jax.random.key(0))
        shapes = [v.aval.shape for equation in equations(program) for v in equation.outvars if hasattr(v.aval, "shape")]
        return max(int(np.prod(shape)) for shape in shapes)

    assert largest(10_000_000) <= 1.02 * largest(100_000) < 2_000
    assert largest(100_000, 50_000) >= 100_000  # where the dense draw is chosen, it does


def test_rate_one_is_the_full_batch():
    key = jax.random.key(0)
    assert Poisson(1.0).draw(key, 7) == Poisson(1).draw(key, 7) == FullBatch().draw(key, 7) == Selection(None, None)
    assert Poisson(1).rate == FullBatch().rate == 1.0


def test_schemes_say_what_they_do():
    assert "every row" in FullBatch().describe()
    assert "rate 0.01" in Poisson(0.01).describe() and "3.0e-22" in Poisson(0.01).describe()
