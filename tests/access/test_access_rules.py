"""Sums by chunks and by blocks, events, and what an access refuses, each by itself: most without a program that is compiled."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpppl.access import door, exact_sum, ghost_sum
from dpppl.access.clipping import Adaptive, Flat, PerSite, british, scaled, with_count
from dpppl.access.drawn import Blocks, Drawn
from dpppl.access.mechanism import Mechanism
from dpppl.data.rows import Sharded
from dpppl.errors import ConfigurationError, PrivacyLeakError
from dpppl.row_program import passes
from dpppl.subsampling import FullBatch, Poisson

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


def test_settings_of_clipping():
    assert Adaptive(quantile=0.25).clipped_share(0.1, 0.8) == pytest.approx(0.75 * 0.8 - 0.1)
    assert FLAT.clipped_share(0.1, 0.8) == pytest.approx(0.5)
    for rate in (0.0, 10.1):
        with pytest.raises(ConfigurationError, match="learning_rate"):
            Adaptive(learning_rate=rate)
    assert [british(name) for name in ("normalized", "centered", "flat")] == ["normalised", "centred", "flat"]


def test_settings_of_a_mechanism():
    full = Mechanism(clipping=FLAT, subsampling=FullBatch())
    for strategy in ("auto", "vmap", "microbatch", "ghost"):
        assert Mechanism(clipping=FLAT, subsampling=FullBatch(), strategy=strategy).strategy == strategy
    with pytest.raises(ConfigurationError, match="gradient_strategy must be"):
        Mechanism(clipping=FLAT, subsampling=FullBatch(), strategy="fast")
    assert not full.counts and Mechanism(clipping=FLAT, subsampling=FullBatch(), count_share=0.1).counts
    noises = np.linspace(1.0, 2.0, 200)
    assert len(full.event(noises).noise_multipliers) == 200
    assert len(Mechanism(clipping=FLAT, subsampling=Poisson(0.1)).event(noises).noise_multipliers) == 64


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
    access(Mechanism(clipping=Adaptive(clipping_norm=1.0), subsampling=FullBatch()), rows, clipping_norm=1.0)
    assert asked == [1, 1]
    monkeypatch.setattr(ghost_sum, "supports", lambda clipping, z: False)
    access(Mechanism(clipping=PerSite({"a": 1.0}), subsampling=FullBatch()), rows)
    access(Mechanism(clipping=FLAT, subsampling=FullBatch(), discretise=True), rows)
    assert asked == [1, 1]


def test_factors_keep_the_products_that_a_gradient_leaves_out(monkeypatch):
    monkeypatch.setattr(passes, "rewritten", lambda program, holds_row, chosen: chosen)
    made = dict(parts=([0], [1], [], [], 2, 3, 4, 5), program=SimpleNamespace(invars=[0, 1]))
    row_program = door.Access.row_program.func
    assert row_program(SimpleNamespace(**made, forms=None)) is passes.GRADIENT
    assert row_program(SimpleNamespace(**made, forms="forms")) is passes.FACTORS
