"""What is clipped are the bits that its norm was computed from, and no more is stored than that needs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from patches import stored_by

from dpppl.access.clipping import NUM_COUNTS, SLACK, Flat, with_count
from dpppl.access.door import noisy_sum
from dpppl.access.drawn import Drawn
from dpppl.access.exact_sum import sum_of_rows
from dpppl.access.mechanism import Mechanism
from dpppl.randomness import native
from dpppl.row_program.hoist import Marked, gradient
from dpppl.row_program.materialize import Statistic, ending
from dpppl.subsampling import FullBatch

pytestmark = pytest.mark.numerical
RNG = np.random.default_rng(0)


def cancelling(row):
    """Terms of which one may be computed by one operation with the difference, or not: c d - rd(c d) is 0, or it is what was
    rounded away, as the compiler likes. Another latent has the term alone."""
    return {"v": row[0] * row[1] * 1e-30, "w": row[0] * row[1] - row[2] * row[3]}


def hostile(num_rows):
    c, d = (RNG.standard_normal(num_rows).astype(np.float32) * scale for scale in (1e10, 1e6))
    product, ones = c * d, np.ones_like(c)
    rows = np.stack([product, ones, c, d], 1), np.stack([c, d, product, ones], 1)
    return np.concatenate(rows).astype(np.float32)


def length(total):
    return np.sqrt(sum(np.sum(np.square(np.asarray(leaf))) for leaf in jax.tree.leaves(total)))


@pytest.mark.parametrize(("counted", "by"), [(False, "C"), (True, "C"), (True, "XLA")])
def test_rows_whose_terms_cancel_move_the_sum_by_at_most_the_norm(counted, by, monkeypatch):
    if by == "XLA":
        monkeypatch.setattr(native, "available", lambda: False)
    rows, clipping = hostile(8), Flat(0.7)
    statistic = Statistic(cancelling, lambda stored, row: (stored, jnp.zeros(NUM_COUNTS)) if counted else stored)
    clip = with_count(clipping) if counted else clipping.clip
    of_one = jax.jit(lambda mask: sum_of_rows(statistic, Drawn(rows, mask), clip))
    totals = [of_one(np.arange(len(rows)) == k) for k in range(len(rows))]
    assert max(length(total[0] if counted else total) for total in totals) <= 1 + SLACK
    if counted:  # each row once: as clipped or not, or, below 1e-15 of the norm, as silent; none as not finite
        for counts in (np.asarray(total[1]) for total in totals):
            assert sorted(np.abs(counts)) == [0.0, 0.0, 0.5] and counts[1] == 0.0


def test_programs_for_gpus_call_no_c():
    """Nor where CPUs are JAX's default."""
    whole = jax.jit(lambda rows: sum_of_rows(jnp.sin, Drawn(rows), Flat(1.0).clip))
    lowered = whole.trace(np.ones((7, 30), np.float32)).lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.while" in lowered and "dpppl_stored" not in lowered


@pytest.mark.parametrize("by", ["C", "XLA"])
def test_statistics_are_stored_once(by, monkeypatch):
    """They pass through a call, or a loop, that the compiler keeps, what only multiplies them does not."""
    if by == "XLA":
        monkeypatch.setattr(native, "available", lambda: False)
    rows = RNG.standard_normal((7, 30)).astype(np.float32)
    whole = jax.jit(lambda rows: sum_of_rows(jnp.sin, Drawn(rows), Flat(1.0).clip))
    (carried,) = stored_by(whole.lower(rows).compile())
    assert "f32[7,30]" in carried
    parts = Statistic(lambda row: jnp.sin(row[0]), lambda stored, row: stored * row)
    carried = stored_by(jax.jit(lambda rows: sum_of_rows(parts, Drawn(rows), Flat(1.0).clip)).lower(rows).compile())
    assert len(carried) == 1 and "f32[7]" in carried[0] and "f32[7,30]" not in carried[0]


def parts_of(function, *arguments, of_rows):
    found = ending(jax.make_jaxpr(function)(*arguments).jaxpr, of_rows)
    return found and [[equation.primitive.name for equation in part.eqns] for part in found]


W, X = np.ones(9, np.float32), RNG.standard_normal(9).astype(np.float32)


def test_products_are_not_stored():
    """The gradients of linear predictors are numbers times covariates."""
    first, last = parts_of(jax.grad(lambda w, x: jnp.logaddexp(0.0, x @ w)), W, X, of_rows=(False, True))
    assert "mul" in last and len(last) <= 3 and "dot_general" in first
    several = jax.grad(lambda w, x: jax.nn.logsumexp(w @ x))
    first, last = parts_of(several, np.ones((4, 9), np.float32), X, of_rows=(False, True))
    assert "exp" in first and set(last) <= {"mul", "dot_general", "transpose", "reshape", "broadcast_in_dim"}
    with jax.enable_x64(True):
        assert parts_of(lambda w, x: jnp.sin(w[0]) * x, np.ones(9), np.ones(9), of_rows=(False, True))[1][-1] == "mul"


def test_marks_are_not_stored():
    """Rows whose log likelihood is -infinity have a gradient of NaN, by a product: with a sum, gradients would be stored."""
    outside = lambda w, x, public: jnp.where(x[0] < 0.0, -jnp.inf, jnp.sin(x @ w))  # noqa: E731
    marked = gradient(Marked(outside))
    first, last = parts_of(lambda w, x: marked(w, x, None), W, X, of_rows=(False, True))
    assert "eq" in first and set(last) <= {"mul", "dot_general"}
    found = [marked(W, sign * jnp.abs(X), None) for sign in (1.0, -1.0)]
    assert np.isfinite(found[0]).all() and np.isnan(found[1]).all()
    assert np.array_equal(gradient(outside)(W, -jnp.abs(X), None), np.zeros(9))


STORED = [
    lambda a, b, x: a * x - b * x,
    lambda a, b, x: a * x - x,
    lambda a, b, x: a * (x * x - x[::-1]),
    lambda a, b, x: (a * x.astype(jnp.bfloat16)).astype(jnp.float32),
    lambda a, b, x: jnp.cumsum(a * x),
    lambda a, b, x: (jnp.stack([x, x]) * a).sum(0),
    lambda a, b, x: jnp.outer(a * x, x).T @ x,
    lambda a, b, x: a * jnp.sin(x),  # no fewer numbers than it gives
]


def test_differences_are_stored():
    """Sums, and what is no float32, are: nothing but products can be computed twice with the same bits."""
    for function in STORED:
        found = parts_of(lambda w, x, f=function: f(jnp.sin(w[0]), jnp.sin(w[1]), x), W, X, of_rows=(False, True))
        assert found is None, found


def test_both_parts_together_are_the_program():
    def program(w, x, labels):
        return jax.grad(lambda w: jnp.tanh(w["a"] @ x * 0.3) * labels - w["b"])(w)

    rows = RNG.standard_normal((50, 9)).astype(np.float32), RNG.standard_normal(50).astype(np.float32)
    w = {"a": X, "b": np.float32(0.2)}
    leaves, tree = jax.tree.flatten(w)
    flat = lambda *given: jax.tree.leaves(program(jax.tree.unflatten(tree, given[:2]), *given[2:]))  # noqa: E731
    first, last = ending(jax.make_jaxpr(flat)(*leaves, rows[0][0], rows[1][0]).jaxpr, (False, False, True, True))

    def in_two(*given):
        stored = jax.core.eval_jaxpr(first.jaxpr, first.consts, *given)
        return jax.core.eval_jaxpr(last.jaxpr, last.consts, *given, *stored)

    for row in zip(*rows):
        for found, expected in zip(in_two(*leaves, *row), flat(*leaves, *row)):
            assert np.array_equal(found, expected)


def through_the_door(log_likelihood, z, rows):
    """Compiled, and what came out."""
    mechanism = Mechanism(clipping=Flat(0.7), subsampling=FullBatch())
    noisy = jax.jit(
        lambda rows: (
            noisy_sum(mechanism, log_likelihood, z, rows, {}, key=jax.random.key(0), noise_multiplier=1e-9).total
        )
    )
    return noisy.lower(rows).compile(), noisy(rows)


def test_the_door_stores_numbers_of_a_regression():
    rows = RNG.standard_normal((41, 29)).astype(np.float32)
    compiled, total = through_the_door(lambda w, x, _: jnp.logaddexp(0.0, x @ w), np.zeros(29, np.float32), rows)
    carried = stored_by(compiled)
    assert any("f32[41]" in of for of in carried) and not any("[41,29]" in of for of in carried)
    clipped = rows / 2 * np.minimum(1.0, 0.7 / np.linalg.norm(rows / 2, axis=1, keepdims=True))
    np.testing.assert_allclose(total, clipped.sum(0), atol=1e-4)


def test_the_door_stores_gradients_that_are_sums():
    z = {"v": np.float32(0.0), "w": np.float32(0.0)}
    for row in hostile(1):
        _, total = through_the_door(lambda z, x, _: sum(z[k] * g for k, g in cancelling(x).items()), z, row[None])
        assert length(total) <= 0.7 * (1 + SLACK)


def test_conversions_and_half_precision_are_stored():
    """A compiler may leave out a conversion to fewer digits and back, in one of two places; and so may its products of few digits."""
    half = X.astype(jnp.bfloat16)
    assert parts_of(lambda w, x: jnp.sin(w[0]) * x, half, half, of_rows=(False, True)) is None
    functions = [
        lambda w, x: (jnp.sin(w[0]) * x).astype(jnp.float32),
        lambda w, x: (jnp.sin(w[0]) * x).astype(jnp.float32).astype(jnp.float64) * x,
    ]
    with jax.enable_x64(True):
        for function in functions:
            assert parts_of(function, np.ones(9), np.ones(9), of_rows=(False, True)) is None


def test_sums_of_what_a_row_holds_are_stored():
    rows = np.stack([X, X])
    assert parts_of(lambda w, x: (jnp.sin(w[0]) * x).sum(0), W, rows, of_rows=(False, True)) is None
    assert parts_of(lambda w, x: (jnp.sin(w[0]) * x[:1]).sum(0), W, rows, of_rows=(False, True)) is None
    assert parts_of(lambda w, x: (jnp.sin(w[0]) * x).sum(0), W, X[None], of_rows=(False, True))[1][-1] == "reduce_sum"
