"""Each rule of clipping, of weights of factors and of what is stored, by itself: what rows add and count, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpppl.access import ghost_sum as sums
from dpppl.access.clipping import SLACK, Centred, Flat, clipping_counts, with_count
from dpppl.access.drawn import Drawn
from dpppl.access.exact_sum import over_chunks, sum_of_rows
from dpppl.access.factors import Form

SQUARES = np.array([0.01, 4.0, 25.0])
KEEP = np.array([True, False, True])
ZEROS = np.zeros((3, 3), np.float32)


def weighed(squares=SQUARES, keep=KEEP):
    with jax.enable_x64(True):
        return np.asarray(
            jax.jit(lambda *bounds: sums.weigh(Flat(2.0), *bounds))(jnp.asarray(squares), jnp.asarray(keep))
        )


def test_weights_leave_room_for_rounding_and_are_zero_of_rows_that_do_not_count():
    """Room of 1.1e-3 (see `ghost_sum`)."""
    found, length = weighed(), np.sqrt(SQUARES)
    np.testing.assert_allclose(found, np.where(KEEP, np.minimum(0.5, sums._BELOW / length), 0.0), rtol=1e-12)
    assert np.max(found * length) <= 1.0 - 1.09e-3
    for bad in (np.nan, np.inf, 1e38):
        assert not np.any(weighed(np.full(3, bad), np.ones(3, bool)))


def test_rows_that_do_not_count_are_not_counted_as_clipped():
    gradients, mask = {"a": jnp.array([[0.1], [3.0], [9.0]]), "b": jnp.zeros((3, 1))}, jnp.array([True, False, True])
    found = with_count(Flat(2.0))((gradients, ZEROS), mask)[1]
    np.testing.assert_array_equal(found, [[-0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0]])


def test_rows_without_a_norm_have_counts_of_their_own():
    """One row moves the counts by 1/2 at most, whatever it is: that is what they are charged for. A row that is silent in one
    site only is not silent."""
    values = [jnp.nan, jnp.inf, -jnp.inf, 0.0, 1e-25, 0.3, 1e9]
    gradients = {"a": jnp.array(values)[:, None], "b": jnp.zeros((len(values), 1))}
    count = jax.jit(lambda rows: with_count(Flat(2.0))(rows, None)[1])
    found = np.asarray(count((gradients, jnp.zeros((len(values), 3)))))
    np.testing.assert_allclose(found[:, 1], [0.5] * 3 + [0.0] * 4)
    np.testing.assert_allclose(found[:, 2], [0.0] * 3 + [0.5] * 2 + [0.0] * 2)
    assert not found[:5, 0].any() and np.max(np.linalg.norm(found, axis=1)) <= 0.5 * (1.0 + 1e-6)
    with jax.enable_x64(True):
        np.testing.assert_allclose(clipping_counts(jnp.square(jnp.asarray(values, float)) / 4.0), found, atol=1e-7)


def test_only_a_kind_with_a_rule_is_weighed():
    class Own(Flat):
        pass

    assert sums.supports(Flat(1.0)) and not sums.supports(Centred(1.0)) and not sums.supports(Own(1.0))


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
