"""Sums by chunks and by blocks, events, and what an access refuses, each by itself: most without a program that is compiled."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_ghost
from jax import lax

from dpppl.access import centring, convolutions, door, drawn, exact_sum, factors, ghost_sum, norm_histogram
from dpppl.access.clipping import Centred, Flat, scaled, with_count
from dpppl.access.drawn import Blocks, Drawn
from dpppl.access.mechanism import Mechanism
from dpppl.data.rows import Sharded
from dpppl.errors import ConfigurationError, PrivacyLeakError
from dpppl.row_program import passes
from dpppl.subsampling import FullBatch
from dpppl.subsampling.scheme import Selection

FLAT = Flat(1.0)


def total(rows, mask):
    """An exact sum of whole numbers."""
    with jax.enable_x64(True):
        return jnp.sum(jnp.where(mask[:, None], rows, 0).astype(jnp.int64), axis=0) * 2**40


def over_chunks(num_rows, chunk, first=None, mask=None, until_last=False, before=0):
    rows = np.arange(1, num_rows + 1, dtype=np.int32)[:, None]
    with jax.enable_x64(True):
        before = jnp.full(1, before * 2**40, jnp.int64)
    mask = None if mask is None else jnp.asarray(mask)
    run = jax.jit(
        lambda rows, before: exact_sum.over_chunks(
            total,
            rows,
            mask,
            chunk,
            until_last,
            None if first is None else jnp.int32(first),
            None if first is None else before,
        )
    )
    return int(np.asarray(run(rows, before))[0]) // 2**40


@pytest.mark.parametrize(
    ("num_rows", "chunk", "first", "mask", "expected"),
    [
        (4, 4, 1, None, 100 + 2 + 3 + 4),  # one chunk, and rows before it that do not count
        (6, 4, 1, None, 100 + 2 + 3 + 4 + 5 + 6),  # a last chunk of one row
        (7, 3, None, None, 28),
        (7, 3, None, [True, False, True, False, False, False, False], 4),
        (7, 3, None, [False] * 7, 0),
    ],
)
def test_chunks_sum_each_row_once(num_rows, chunk, first, mask, expected):
    """In 64-bit whole numbers, added to what was summed before."""
    for until_last in (False, True):
        assert over_chunks(num_rows, chunk, first, mask, until_last, before=100) == expected


def loops(*arguments, **settings):
    rows = np.ones((9, 1), np.float32)
    program = jax.make_jaxpr(lambda rows: exact_sum.over_chunks(total, rows, *arguments, **settings))(rows)
    return {equation.primitive.name for equation in program.eqns} & {"scan", "while"}


def test_chunks_behind_the_last_row_that_counts_are_left_out():
    """By a loop whose length depends on the rows; where all count, it does not."""
    mask = jnp.arange(9) < 4
    assert loops(None, 2) == loops(mask, 2) == loops(None, 2, until_last=True) == {"scan"}
    assert loops(mask, 2, until_last=True) == {"while"}
    with jax.enable_x64(True):
        assert loops(None, 2, first=jnp.int32(1), total=jnp.zeros(1, jnp.int64)) == {"while"}

    def drawn(likely):
        run = lambda rows: exact_sum.sum_of_rows(  # noqa: E731
            lambda row: row, Drawn(rows, jnp.arange(600) < 4, likely=likely), lambda rows, mask: rows
        )
        program = jax.make_jaxpr(run)(np.ones((600, 1), np.float32))
        return {equation.primitive.name for equation in program.eqns} & {"scan", "while"}

    assert drawn(None) == {"scan"} and drawn(300) == {"while"}


@pytest.mark.parametrize("mask", [None, [True] * 7 + [False] * 3])
def test_blocks_sum_each_row_once(mask):
    rows = jnp.arange(1, 11, dtype=jnp.int32)[:, None]
    known = None if mask is None else jnp.asarray(mask)

    def fetch(start, size):
        part = lambda x: jax.lax.dynamic_slice_in_dim(x, start, size)  # noqa: E731
        return part(rows), None if known is None else part(known)

    like = jax.ShapeDtypeStruct((1, 1), np.int32)
    blocks = Blocks(length=10, at_once=4, like=like, fetch=fetch, mask=known)
    assert blocks.size(2) == 4
    found = jax.jit(lambda: exact_sum.over_blocks(total, blocks, 2))()
    assert int(np.asarray(found)[0]) // 2**40 == (55 if mask is None else 28)


def test_many_rows_of_norm_1_do_not_overflow():
    """1,500 rows of 2^21 steps are more than 32 bits hold: such chunks are summed in steps of 64 bits."""
    run = jax.jit(
        lambda rows: exact_sum.sum_of_rows(lambda row: row, Drawn(rows), lambda rows, mask: rows, strategy="vmap")
    )
    assert run(np.ones((1_500, 1), np.float32)).tolist() == [1_500.0]


def test_grids_and_sizes_of_chunks():
    with jax.enable_x64(True):
        steps = exact_sum._sum_rows(jnp.asarray([[0.25], [0.5]], jnp.float64), None)
    assert steps.tolist() == [3 * 2**24]
    sizes = [
        exact_sum._chunk_rows(size, rows, "auto")
        for size, rows in ((10, 10_000), (2**15, 10_000), (10, 9), (2**20, 99))
    ]
    assert sizes == [512, 4, 9, 4]
    assert exact_sum._chunk_rows(10, 9, "microbatch") == 4 and exact_sum._chunk_rows(10, 10**6, "vmap") == 65_536


def test_squared_norms_are_those_of_each_row():
    """Also of a site that is one number; long float32 rows are summed in float64, where float32 would lose the small ones."""
    assert scaled({"a": jnp.array([1.0, 2.0, 3.0])}, 1.0)[1].tolist() == [1.0, 4.0, 9.0]
    rows = np.full((1, 5_000), 2.0**-12, np.float32)
    rows[:, 0] = 1.0
    assert scaled({"a": jnp.asarray(rows)}, 1.0)[1].tolist() == [1.0 + 4_999 * 2.0**-24]


def test_rows_are_counted_with_and_without_a_mask():
    gradients, zeros = {"a": jnp.array([[0.1], [3.0]])}, jnp.zeros((2, 3), jnp.float32)
    assert with_count(FLAT)((gradients, zeros), None)[1][:, 0].tolist() == [-0.5, 0.5]
    assert with_count(FLAT)((gradients, zeros), jnp.array([False, True]))[1][:, 0].tolist() == [0.0, 0.5]


def log_likelihood(z, row, public):
    return -0.5 * (row["x"] - z["a"]) ** 2


def access(mechanism, rows, **settings):
    return jax.eval_shape(
        lambda z, rows, key: door.noisy_sum(
            mechanism, log_likelihood, z, rows, {}, key=key, noise_multiplier=1.0, step=0, **settings
        ),
        {"a": np.float32(0.0)}, rows, jax.random.key(0),
    )  # fmt: skip


def test_rows_of_different_lengths_and_mechanisms_of_other_classes_are_refused():
    class Own(Mechanism):
        pass

    made = dict(clipping=FLAT, subsampling=FullBatch())
    with pytest.raises(ConfigurationError, match="must have equally many rows"):
        access(Mechanism(**made), {"x": np.zeros(4, np.float32), "y": np.zeros(3, np.float32)})
    with pytest.raises(PrivacyLeakError, match="an access with a Own"):
        access(Own(**made), {"x": np.zeros(4, np.float32)})
    assert Sharded in door._EXACT["placement"] and type(None) in door._EXACT["placement"]


def test_only_clipping_with_a_rule_for_factors_is_tried_with_factors(monkeypatch):
    asked = []
    monkeypatch.setattr(ghost_sum, "factored", lambda *_, **__: asked.append(1))
    rows = {"x": np.zeros(4, np.float32)}
    access(Mechanism(clipping=FLAT, subsampling=FullBatch()), rows)
    assert asked == [1]
    access(Mechanism(clipping=Centred(1.0), subsampling=FullBatch()), rows)
    access(Mechanism(clipping=FLAT, subsampling=FullBatch(), discretise=True), rows)
    assert asked == [1]


def test_factors_keep_the_products_that_a_gradient_leaves_out(monkeypatch):
    monkeypatch.setattr(passes, "rewritten", lambda program, holds_row, chosen: chosen)
    made = dict(parts=([0], [1], [], [], 2, 3, 4), program=SimpleNamespace(invars=[0, 1]))
    row_program = door.Access.row_program.func
    assert row_program(SimpleNamespace(**made, forms=None)) is passes.GRADIENT
    assert row_program(SimpleNamespace(**made, forms="forms")) is passes.FACTORS


def clipped_words(z, row, public):
    """Numbers beyond the table are those of its ends, and two stand twice."""
    return jnp.sum(jnp.tanh(z["table"].at[row[0]].get(mode="clip") @ z["v"]) ** 2)


def rearranged(z, row, public):
    """A kernel that comes flat, and whose input is no row's; images in another order of axes; an image whose kernel is the row's."""
    kernel = lax.conv_general_dilated(z["k"].reshape(1, 2, 3, 3).transpose(0, 3, 2, 1), z["l"], (1, 1), "SAME",
                                      dimension_numbers=("NHWC", "HWIO", "NHWC"))  # fmt: skip
    x = lax.conv_general_dilated(row[0], kernel.reshape(3, 3, 2, 4), (2, 1), [(1, 0), (0, 2)], rhs_dilation=(1, 2),
                                 dimension_numbers=("CHWN", "HWIO", "NCHW"))  # fmt: skip
    of_row = lax.conv_general_dilated(
        z["image"], row[0][:, :2, :3], (1, 1), "VALID", dimension_numbers=("NHWC", "IHWO", "NHWC")
    )
    return jnp.sum(jnp.tanh(x) ** 2) + jnp.sum(jnp.tanh(of_row) ** 2)


RNG = np.random.default_rng(0)
ONE_ROW = {
    clipped_words: (
        {"table": (60, 12), "v": (12, 9)},
        (np.int32([3, 0, 99, 3, 59]),),
        ["lookup", "whole"],
    ),
    rearranged: (
        {"image": (1, 4, 4, 2), "k": (18,), "l": (3, 3, 2, 8)},
        (RNG.normal(size=(2, 7, 6, 1)).astype(np.float32),),
        ["whole", "whole", "whole"],
    ),
}


def whole(form, found):
    """A gradient from what a form says of it."""
    if form.kind == "lookup":
        number, b = found
        table = np.zeros((form.sizes[2] + 1, form.sizes[3]))
        np.add.at(table, number, b)
        return factors.restored(table[:-1], form.restore)
    return factors.restored(found[0] if form.kind == "whole" else np.einsum("gm,gn->gmn", *found), form.restore)


SUMMED = {
    clipped_words: 0,
    rearranged: 1,
    test_ghost.grouped: 0,
    test_ghost.convolutions: 2,
    test_ghost.recurrent: 2,
    test_ghost.loops: 4,
}
"""By program, in how many products the positions are summed."""


@pytest.mark.parametrize("program", SUMMED, ids=lambda program: program.__name__)
def test_factors_of_a_row_are_its_gradient(program):
    if program in ONE_ROW:
        shapes, row, kinds = ONE_ROW[program]
        z = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    else:
        (z, row), kinds = test_ghost.drawn(program, 1, 0), test_ghost.NETWORKS[program][2]
        row = jax.tree.map(lambda leaf: leaf[0], row)
    planned = factors.factor_plan(program, z, row)
    assert [form.kind for form in planned.forms] == kinds and len(planned.summed) == SUMMED[program]
    found = jax.jit(lambda leaves: factors.factors(planned, leaves))(jax.tree.leaves((z, row)))
    expected = jax.tree.leaves(jax.jit(jax.grad(program))(z, row, None))
    for form, own, gradient in zip(planned.forms, found, expected):
        np.testing.assert_allclose(whole(form, jax.tree.map(np.asarray, own)), gradient, rtol=2e-4, atol=2e-5)


def test_a_lookup_of_many_rows_of_a_table_is_no_saving():
    """Of a table of 20 rows five are; its rows' numbers are the row's own, though those below 0 were counted from the end."""
    z = {"table": np.zeros((20, 12), np.float32), "v": np.zeros((12, 9), np.float32)}
    for count, kind in ((5, "lookup"), (6, "whole")):
        form = factors.factor_plan(clipped_words, z, (np.zeros(count, np.int32),)).forms[0]
        assert (form.kind, form.exact) == (kind, kind == "lookup")


NHWC = ("NHWC", "HWIO", "NHWC")


def test_dilated_convolutions_are_left_as_they_are():
    x, w = RNG.normal(size=(1, 7, 7, 2)).astype(np.float32), RNG.normal(size=(3, 3, 2, 4)).astype(np.float32)
    for dilation in ({"lhs_dilation": (2, 1)}, {"rhs_dilation": (1, 2)}):
        run = partial(
            lax.conv_general_dilated, window_strides=(1, 1), padding=[(0, 0)] * 2, dimension_numbers=NHWC, **dilation
        )
        np.testing.assert_array_equal(jax.jit(convolutions.rewrite(run))(x, w), jax.jit(run)(x, w))


@pytest.mark.parametrize("convolved", [False, True])
def test_chunks_of_convolutions_fit_into_the_cache(convolved, monkeypatch):
    """And all are whole multiples of four, in equal blocks."""
    chunks = []
    monkeypatch.setattr(ghost_sum, "over_drawn", lambda chunk_sum, drawn, chunk, placement: chunks.append(chunk))
    form = factors.Form("whole", (50, 50), np.float32, convolved=convolved)
    forms = ghost_sum.Forms((form,), jax.tree.structure(0))
    for num_rows in (1_001, 100_000):
        ghost_sum.clipped_sum(None, forms, Drawn(np.zeros((num_rows, 1), np.float32)), FLAT)
    assert chunks == CHUNKS[convolved]


CHUNKS = {False: [1_001, 2_048], True: [432, 432]}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_summed_over_all_blocks_of_rows(groups, dtype):
    """Also where there are more blocks than are taken at once, and a last one that is not full."""
    rng, rows = np.random.default_rng(0), 21 * ghost_sum.BLOCK + 5
    with jax.enable_x64(True):
        a, b = (jnp.asarray(rng.integers(-3, 4, (rows, groups, k)), dtype) for k in (2, 3))
        found = jax.jit(ghost_sum._product)(a, b)
        is_one = "length=0" in str(jax.make_jaxpr(ghost_sum._product)(a, b))  # no block but the first
        assert is_one == (dtype == np.float64)
        np.testing.assert_array_equal(found, np.einsum("bgm,bgn->gmn", np.asarray(a, int), np.asarray(b, int)))


class Odd(FullBatch):
    """Rows of odd number, by a mask; `Parts` draws of a part of the rows the even ones."""

    def draw(self, key, num_rows, step=0):
        return Selection(None, jnp.arange(num_rows) % 2 == 1)


class Parts(Odd):
    def draw_part(self, key, num_rows, step, first, length):
        return Selection(None, (first + jnp.arange(length)) % 2 == 0)


@pytest.mark.parametrize(
    ("scheme", "counts"), [(FullBatch, None), (Odd, [False, True, False]), (Parts, [True, False, True])]
)
def test_rows_on_disk_are_drawn_by_parts_where_a_scheme_can(scheme, counts):
    placement = SimpleNamespace(
        num_rows=10,
        at_once=7,
        at_once_to_draw=5,
        rows_like=lambda n: {"y": jnp.zeros((n,))},
        block=lambda start, size: (start, size),
    )
    found = drawn._on_disk(scheme(), jax.random.key(0), jnp.int32(0), None, placement)
    (block, places), mask = found.blocks.fetch(4, 3)
    assert block == (4, 3) and places.tolist() == [4, 5, 6] and (mask if mask is None else mask.tolist()) == counts
    assert found.length == 10 and found.blocks.at_once == (7 if counts is None else 5)


def test_rows_of_a_device_are_those_of_the_draw_that_it_has():
    """Places among all that were drawn come with them, in their order; without a mask all that were drawn count."""
    index = jnp.array([7, 2, 5, 4, 9, 5], jnp.int32)
    for mask, own, places in (
        (None, [1, 0, 1], [2, 3, 5]),
        (jnp.array([True, True, False, True, True, True]), [0, 1], [3, 5]),
    ):
        found, counts, where = jax.jit(drawn._own, static_argnums=3)(index, mask, jnp.int32(4), 3)
        assert counts.tolist() == [True] * len(own) + [False] * (6 - len(own))
        assert found[: len(own)].tolist() == own and where[: len(own)].tolist() == places


def test_each_number_of_a_lookup_stands_once_with_the_sum_of_its_rows():
    number, b = jnp.array([2, 0, 2, 5, 0, 2]), jnp.arange(6.0)[:, None] + 1.0
    found, total = jax.jit(factors._distinct, static_argnums=2)(number, b, 5)
    assert found.tolist() == [2, 0, 5, 5, 5, 5]  # 5 is no number of the table
    assert total[:, 0].tolist() == [1.0 + 3.0 + 6.0, 2.0 + 5.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("gram", [None, np.eye(2, dtype=np.float32)], ids=["many", "few"])
def test_a_centre_is_where_clipped_scores_have_mean_zero(gram):
    """Weights need not add up to 1; scores that are not finite do not count."""
    scores = np.float32([[0.0, 0.0], [1.0, 2.0], [9.0, -3.0], [0.5, 0.1], [np.nan, 0.0]])
    weights = np.float32([0.02, 0.03, 0.01, 0.04, 0.2])
    a = np.asarray(
        jax.jit(lambda s, w: centring.centre(s, w, 1.5, None if gram is None else jnp.asarray(gram)))(scores, weights)
    )
    moved = scores[:4] - a
    clipped = moved * np.minimum(1.0, 1.5 / np.linalg.norm(moved, axis=1))[:, None]
    assert np.max(np.abs(weights[:4] @ clipped)) < 1e-3 * 0.1 and np.linalg.norm(moved, axis=1).max() > 1.5


def test_the_norm_of_a_row_is_that_at_the_start_or_the_shorter_of_two_others():
    """The latter where that at the start is 1,000 times shorter, as where a product of latents starts at 0."""
    statistic = norm_histogram.gradient_norm(lambda z, row, public: row["y"] * jnp.sum(z["a"] ** 2))
    at = lambda start, far: {"start": {"a": start}, "far": {"a": far}}  # noqa: E731
    bins = jax.jit(lambda start, far: jnp.argmax(statistic(at(start, far), {"y": jnp.float32(1.0)}, {})))
    of = lambda *lengths: np.float32([[0.6 * length, 0.8 * length, 0.0] for length in lengths])  # noqa: E731
    number = lambda slope: int(np.floor(np.log2(slope))) - norm_histogram.LOWEST  # noqa: E731
    assert int(bins(of(1e-5)[0], of(1.1, 4.0))) == number(2.2)
    assert int(bins(of(1e-5)[0], of(4.0, 1.1))) == number(2.2)
    assert int(bins(of(1.1)[0], of(400.0, 100.0))) == number(2.2)
    norms = norm_histogram.Norms(edges=np.arange(4.0), mass=np.array([0.5, 0.25, 0.25]), error=0.1)
    assert [norms.quantile(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)] == [1.0, 2.0**0.5, 2.0, 4.0, 8.0]
