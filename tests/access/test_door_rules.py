"""Each rule of clipping, of weights of factors and of what is stored, by itself: what rows add and count, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpppl.access import ghost_sum as sums
from dpppl.access.clipping import SLACK, Adaptive, Centred, Flat, Normalised, PerSite, with_count
from dpppl.access.drawn import Drawn
from dpppl.access.exact_sum import over_chunks, sum_of_rows
from dpppl.access.factors import Form
from dpppl.errors import ConfigurationError

SQUARES = np.array([0.01, 4.0, 25.0])
KEEP = np.array([True, False, True])
ZEROS = np.zeros((3, 3), np.float32)
ONE = {"a": SQUARES, "b": np.zeros(3)}
KINDS = {
    Flat(2.0): 2.0, PerSite({"a": 1.2, "b": 1.6}): 2.0, Normalised(2.0): 2.0, Adaptive(quantile=0.3, clipping_norm=9.0): 2.0,
}  # fmt: skip


def weighed(clipping, squares=ONE, keep=KEEP):
    with jax.enable_x64(True):
        squares = jax.tree.map(jnp.asarray, squares)
        bounds = squares, jnp.asarray(keep), jnp.float32(2.0)
        found = jax.jit(lambda *bounds: (sums.weigh(clipping, *bounds), sums.count(clipping, *bounds)))(*bounds)
        return jax.tree.map(np.asarray, found)


@pytest.mark.parametrize("clipping", KINDS, ids=lambda clipping: type(clipping).__name__)
def test_weights_leave_room_for_rounding_and_are_zero_of_rows_that_do_not_count(clipping):
    """Room of 1.1e-3 (see `ghost_sum`); PerSite gives each site the share of its own norm."""
    found, counted = weighed(clipping)
    length, own = np.sqrt(SQUARES), {"PerSite": 1.2}.get(type(clipping).__name__, 2.0)
    if isinstance(clipping, Normalised):
        expected = 1.0 / (length / sums._BELOW + 0.01)
    else:
        expected = np.minimum(1.0 / own, sums._BELOW / length) * own / 2.0
    np.testing.assert_allclose(found["a"], np.where(KEEP, expected, 0.0), rtol=1e-12)
    assert np.max(found["a"] * length) <= (1.0 - 1.09e-3) * own / 2.0
    joint = np.sqrt(sum(w**2 * s for w, s in zip(jax.tree.leaves(found), jax.tree.leaves(ONE))))
    assert np.max(joint) <= 1.0 - 1.09e-3
    if isinstance(clipping, Adaptive):
        np.testing.assert_allclose(counted, [[0.7, 0.0, 0.0], [0.0, 0.0, 0.0], [-0.3, 0.0, 0.0]])
    for bad in (np.nan, np.inf, 1e38):
        assert not np.any(weighed(clipping, {"a": np.full(3, bad), "b": np.zeros(3)}, np.ones(3, bool))[0]["a"])


def test_rows_that_do_not_count_are_not_counted_as_clipped():
    """Of gradients, and of factors; each site counts where each is clipped by itself."""
    gradients, mask = {"a": jnp.array([[0.1], [3.0], [9.0]]), "b": jnp.zeros((3, 1))}, jnp.array([True, False, True])
    for clipping in (Flat(2.0), PerSite({"a": 2.0, "b": 5.0})):
        with jax.enable_x64(True):
            found = sums.count(clipping, jax.tree.map(jnp.asarray, {**ONE, "a": SQUARES}), mask, None)
        for counts in (found, with_count(clipping)((gradients, ZEROS), mask)[1]):
            np.testing.assert_array_equal(counts, [[-0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
    _, counted = with_count(Adaptive(quantile=0.3, clipping_norm=1.0), jnp.float32(2.0))((gradients, ZEROS), mask)
    np.testing.assert_allclose(counted, [[0.7, 0.0, 0.0], [0.0, 0.0, 0.0], [-0.3, 0.0, 0.0]])


@pytest.mark.parametrize("clipping", KINDS, ids=lambda clipping: type(clipping).__name__)
def test_rows_without_a_norm_have_counts_of_their_own(clipping):
    """One row moves the counts by `count_sensitivity` at most, whatever it is: that is what they are charged for. A row that is
    silent in one site only is not silent."""
    norm, size = jnp.float32(2.0), clipping.count_sensitivity
    values = [jnp.nan, jnp.inf, -jnp.inf, 0.0, 1e-25, 0.3, 1e9]
    gradients = {"a": jnp.array(values)[:, None], "b": jnp.zeros((len(values), 1))}
    count = jax.jit(lambda rows: with_count(clipping, norm)(rows, None)[1])
    found = np.asarray(count((gradients, jnp.zeros((len(values), 3)))))
    np.testing.assert_allclose(found[:, 1], [size] * 3 + [0.0] * 4)
    np.testing.assert_allclose(found[:, 2], [0.0] * 3 + [size] * 2 + [0.0] * 2)
    assert not found[:5, 0].any() and np.max(np.linalg.norm(found, axis=1)) <= size * (1.0 + 1e-6)
    with jax.enable_x64(True):
        squares = {"a": jnp.square(jnp.asarray(values, float)), "b": jnp.full(len(values), 1e-37)}
        count = jax.jit(lambda squares: sums.count(clipping, squares, jnp.ones(len(values), bool), norm))
        np.testing.assert_allclose(count(squares), found, atol=1e-7)


def test_an_adaptive_norm_finds_the_quantile_of_rows_that_have_one():
    """Nine rows in ten are silent or missing; before, the norm fell to its lower bound, or rose to the upper one."""
    clipping, norm = Adaptive(quantile=0.8, learning_rate=1.0, clipping_norm=100.0), jnp.float32(100.0)
    lengths = np.abs(np.random.default_rng(0).standard_normal(1000)).astype(np.float32)
    for silent in (0.0, jnp.nan):
        rows = {"a": jnp.concatenate([lengths, jnp.full(9000, silent)])[:, None]}
        counts = jax.jit(
            lambda rows, norm: jnp.sum(with_count(clipping, norm)((rows, jnp.zeros((10_000, 3))), None)[1], axis=0)
        )
        found = norm
        for _ in range(300):
            found = clipping.next_norm(found, counts(rows, found), 10_000.0)
        assert float(found) == pytest.approx(np.quantile(lengths, 0.8), rel=0.02)


def test_only_kinds_with_a_rule_are_weighed():
    z = {"a": np.zeros(2), "b": np.zeros(3)}
    assert all(sums.supports(clipping, z) for clipping in KINDS)
    assert not sums.supports(Centred(1.0), z) and not sums.supports(PerSite({"a": 1.0}), z)


FORMS = {
    "outer": (Form("outer", (3, 2), np.dtype(np.float32), (1, 1, 3, 2), (("reshape", (3, 2)),)), ((1, 3), (1, 2))),
    "whole": (Form("whole", (3,), np.dtype(np.float32)), ((3,),)),
    "lookup": (Form("lookup", (4, 2), np.dtype(np.float32), (1, 3, 4, 2), (("reshape", (4, 2)),)), ((3,), (3, 2))),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", FORMS)
def test_rows_of_weight_zero_add_exactly_nothing(kind):
    """Whatever they hold: zero times infinity is none. Numbers outside of a table add nothing, either."""
    form, shapes = FORMS[kind]
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((5, *shape)).astype(np.float32) for shape in shapes]
    if kind == "lookup":
        parts[0] = np.array([[0, 1, 4], [2, 3, 4], [1, 0, 2], [3, 4, 4], [4, 4, 4]], np.int32)
    weight = np.array([0.5, 0.0, 1.0, 0.0, 0.25])
    weighted = jax.jit(lambda parts, weights: sums.weighted(form, parts, weights))
    with jax.enable_x64(True):
        some = np.asarray(weighted([p[weight > 0] for p in parts], weight[weight > 0]))
        for bad in (np.nan, np.inf, -3e38):
            changed = [p.copy() for p in parts]
            for part in changed[kind == "lookup" :]:
                part[weight == 0] = bad
            np.testing.assert_allclose(weighted(changed, weight), some, rtol=1e-6, atol=1e-7)


def test_norms_are_bounded_from_above():
    """Sums of squares in float32 come out below their value in one of two rows."""
    x = np.random.default_rng(0).standard_normal((400, 1, 1000)).astype(np.float32)
    exact = np.sum(x.astype(np.float64) ** 2, axis=(1, 2))
    with jax.enable_x64(True):
        assert np.any(np.asarray(sums._squares(jnp.asarray(x)))[:, 0] < exact)
        whole = np.asarray(sums.upper_squares(FORMS["whole"][0], jnp.asarray(x)))
        outer = np.asarray(sums.upper_squares(FORMS["outer"][0], jnp.asarray(x), jnp.ones((400, 1, 1), jnp.float32)))
    assert np.all(whole >= exact) and np.all(outer >= exact) and np.all(outer <= exact * 1.0003)


def test_sites_together_are_at_most_1_long():
    clipping = PerSite({"a": 3.0, "b": 4.0})
    found = jax.jit(lambda rows: clipping.clip(rows, None))({"a": jnp.full((2, 2), 1e3), "b": jnp.full((2, 5), -1e3)})
    lengths = {site: np.linalg.norm(leaf, axis=1) for site, leaf in found.items()}
    np.testing.assert_allclose(lengths["a"], 0.6, rtol=1e-4)
    np.testing.assert_allclose(lengths["b"], 0.8, rtol=1e-4)
    with pytest.raises(ConfigurationError, match="is given for sites"):
        clipping.clip({"a": jnp.ones((2, 2))}, None)


def test_an_adaptive_norm_stays_in_bounds():
    """Whatever the noised count is, an infinity included."""
    clipping = Adaptive(clipping_norm=2.0)
    for count, expected in ((1e9, 2.0 / np.e), (-1e9, 2.0 * np.e), (0.0, 2.0)):
        assert float(clipping.next_norm(jnp.float32(2.0), [count, 0.0, 0.0], 10.0)) == pytest.approx(expected)
        assert float(clipping.next_norm(jnp.float32(2.0), [count, 1e9, -1e12], 10.0)) == pytest.approx(expected)
    assert 0.9e-6 < float(clipping.next_norm(jnp.float32(1e-9), [1e9, 0.0, 0.0], 10.0)) and float(
        clipping.next_norm(jnp.float32(1e9), [-1e9, 0.0, 0.0], 10.0)
    ) == pytest.approx(2e6)


def test_each_row_of_uneven_chunks_counts_once_and_those_left_out_do_not():
    rows, mask = np.arange(1.0, 12.0, dtype=np.float32)[:, None] / 20.0, np.arange(11) % 5 != 4

    def chunk_sum(rows, mask):
        return jnp.sum(jnp.where(mask[:, None], rows, 0.0)), jnp.sum(mask)

    for until_last in (False, True):
        total, count = jax.jit(lambda: over_chunks(chunk_sum, rows, jnp.asarray(mask), 4, until_last))()  # noqa: B023
        assert float(total) == pytest.approx(rows[mask].sum()) and int(count) == mask.sum()
    fetch = lambda number: jnp.asarray(rows)[number]  # noqa: E731
    drawn = Drawn(np.arange(11), jnp.asarray(mask), fetch)
    found = jax.jit(lambda: sum_of_rows(lambda row: row, drawn, Flat(1.0).clip))()
    np.testing.assert_allclose(found, rows[mask].sum(), atol=1e-5)


def test_rows_of_many_latents_take_a_finer_grid():
    """Each entry of a row of length 1 is just above half a step of 2^-21: rounded to these it would be 1.5e-4 longer."""
    sizes = np.arange(400_000, 401_000)
    size = int(sizes[np.abs(2.0**21 / np.sqrt(sizes) % 1 - 0.55) < 0.04][0])
    total = sum_of_rows(lambda row: row, Drawn(np.full((1, size), size**-0.5, np.float32)), Flat(1.0).clip)
    assert abs(np.linalg.norm(total) - 1.0) <= SLACK
