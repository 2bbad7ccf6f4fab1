"""Ghost clipping: gradients of rows as factors, their norms, and sums in which a row counts for no more than the norm."""

import functools
import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from patches import stored_by

from dpppl.access import ghost_sum as sums
from dpppl.access.clipping import SLACK, Flat, with_count
from dpppl.access.convolutions import patches, rewrite
from dpppl.access.door import noisy_sum
from dpppl.access.drawn import Drawn
from dpppl.access.factors import Form, factor_plan, restored
from dpppl.access.mechanism import Mechanism
from dpppl.errors import PrivacyLeakError
from dpppl.subsampling import FullBatch, Poisson

pytestmark = pytest.mark.numerical

NORM = 0.5


def cross_entropy(logits, label):
    return jax.nn.log_softmax(logits)[label]


def dense(z, row, public):
    x, y = row
    return cross_entropy(jax.nn.relu(jax.jit(jnp.dot)(x[None], z["w"]) + z["b"])[0] @ z["v"].T, y)


def particles(z, row, public):
    return jnp.sum(jax.vmap(dense, (0, None, None))(z, row, public))


def tied(z, row, public):
    x, y = row
    h = jnp.tanh(jnp.tanh(x @ z["w"]) @ z["r"]) @ z["r"]
    return cross_entropy(h @ z["v"], y) - jnp.sum((h @ (2.0 * z["w"]).T - x) ** 2)


def grouped(z, row, public):
    x, y = row
    h = jnp.einsum("gi,gio->go", x.reshape(2, 10), z["w"])
    return cross_entropy(jnp.tanh(h.ravel()) @ z["v"], y)


def words(z, row, public):
    numbers, y = row
    return cross_entropy(jnp.tanh(z["table"].at[numbers - 2].get(mode="fill", fill_value=0.0).mean(0)) @ z["v"], y)


def convolutions(z, row, public):
    x, y = row
    x = lax.conv_general_dilated(x[None], z["k"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = lax.reduce_window(jnp.tanh(x + z["b"]), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
    x = lax.conv_general_dilated(x, z["l"], (1, 1), [(1, 0), (0, 1)], dimension_numbers=("NHWC", "OHWI", "NCHW"))
    return cross_entropy(x.ravel() @ z["v"], y)


def recurrent(z, row, public):
    x, y = row

    def step(carry, x):
        h, scale = carry
        h = jnp.tanh(x @ z["w"] + h @ z["r"] * jnp.exp(z["s"]) + h @ jax.nn.softplus(z["q"]))
        return (h, scale + 1.0), h

    (h, _), seen = lax.scan(step, (jnp.zeros(10), 0.0), x, reverse=True)
    return cross_entropy((h + seen.mean(0)) @ z["v"], y)


def loops(z, row, public):
    """A loop in a loop; "u" is used in both and after them."""
    x, y = row

    def outer(h, x):
        def inner(h, k):
            return jnp.tanh(h @ z["r"].T + x @ z["w"] + h @ z["u"]), k * jnp.sum(h)

        h, sums = lax.scan(inner, h, jnp.arange(3.0))
        return h @ z["u"], jnp.sum(sums)

    h, sums = lax.scan(outer, jnp.zeros(10), x)
    return cross_entropy(h @ z["u"] @ z["v"], y) + 0.1 * jnp.sum(sums)


NETWORKS = {  # program, shapes of latents, shape of a row, kinds of the latents' gradients
    dense: ({"w": (20, 24), "b": (24,), "v": (8, 24)}, (20,), ["whole", "outer", "outer"]),
    particles: ({"w": (3, 20, 24), "b": (3, 24), "v": (3, 8, 24)}, (20,), ["whole", "outer", "outer"]),
    tied: ({"w": (20, 24), "r": (24, 24), "v": (24, 8)}, (20,), ["whole", "outer", "whole"]),
    grouped: ({"w": (2, 10, 16), "v": (32, 8)}, (20,), ["outer", "outer"]),
    words: ({"table": (60, 12), "v": (12, 8)}, (9,), ["lookup", "outer"]),
    convolutions: (
        {"k": (3, 3, 2, 9), "b": (9,), "l": (6, 2, 2, 9), "v": (54, 8)},
        (8, 8, 2),
        ["whole"] * 3 + ["outer"],
    ),
    recurrent: (
        {"w": (7, 10), "r": (10, 10), "q": (10, 10), "s": (10,), "v": (10, 8)},
        (5, 7),
        ["whole", "whole", "whole", "outer", "whole"],
    ),
    loops: (
        {"r": (10, 10), "u": (10, 10), "v": (10, 8), "w": (7, 10)},
        (5, 7),
        ["whole", "whole", "outer", "whole"],
    ),
}


def drawn(program, num_rows, seed, scale=1.0):
    """Latents and rows of a network."""
    shapes, row, _ = NETWORKS[program]
    rng = np.random.default_rng(seed)
    z = {name: (scale * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    x = rng.standard_normal((num_rows, *row)).astype(np.float32)
    x = rng.integers(0, 70, x.shape).astype(np.int32) if program is words else x
    return z, (x, rng.integers(0, 8, num_rows).astype(np.int32))


def compiled(program):
    """(forms, (z, rows, mask) -> clipped sum, (z, rows) -> gradients of rows)."""
    z, rows = drawn(program, 2, 0)
    found = sums.factored(program, z, jax.tree.map(lambda x: x[0], rows), None, always=True)

    def run(z, rows, mask):
        return sums.clipped_sum(lambda row: found.statistic(z, row, None), found.forms, Drawn(rows, mask), Flat(NORM))

    gradients = jax.vmap(jax.grad(program), (None, 0, None))
    return found.forms, jax.jit(run), jax.jit(lambda z, rows: gradients(z, rows, None))


def reference(gradients, mask, norm=NORM):
    """The sum of clipped rows in units of the norm, float64; and the rows' lengths. Long rows are clipped to a little less."""
    flat = {name: np.asarray(g, np.float64).reshape(len(g), -1) for name, g in gradients.items()}
    length = np.sqrt(sum(np.sum(g**2, axis=1) for g in flat.values()))
    factor = np.where(mask, np.minimum(1.0 / norm, 0.9989 / np.maximum(length, 1e-30)), 0.0)
    return {name: np.einsum("r,r...->...", factor, np.asarray(g, np.float64)) for name, g in gradients.items()}, length


@pytest.mark.parametrize("program", NETWORKS, ids=lambda program: program.__name__)
def test_it_is_the_sum_of_clipped_gradients(program):
    """Tied weights, gradients by position, repeated words, loops: at several scales, so that some rows are clipped."""
    forms, run, gradients_of = compiled(program)
    assert [form.kind for form in forms.of_latents] == NETWORKS[program][2]
    mask, clipped = np.arange(70) % 5 != 2, []
    for seed, scale in ((0, 1.0), (1, 0.3), (2, 0.1)):
        z, rows = drawn(program, 70, seed, scale)
        expected, length = reference(gradients_of(z, rows), mask)
        found = run(z, rows, mask)
        clipped.append(np.mean(length[mask] > NORM))
        for name, leaf in expected.items():
            assert found[name].dtype == np.float64 and found[name].shape == z[name].shape
            np.testing.assert_allclose(found[name], leaf, atol=70 * 3e-6, rtol=2e-4, err_msg=name)
    assert max(clipped) > 0.5


def test_products_in_loops_are_found():
    """Over all turns of each; those of what a loop itself computes of latents are left to JAX."""
    for program, expected in (
        (recurrent, [(5, 7, 10), (5, 10, 10)]),
        (loops, [(15, 10, 10), (15, 7, 10), (15, 10, 10), (5, 10, 10)]),
    ):
        z, rows = drawn(program, 2, 0)
        found = factor_plan(program, z, jax.tree.map(lambda x: x[0], rows), None)
        assert [use.sizes()[1:] for use in found.summed] == expected


@hypothesis.settings(max_examples=2)
@hypothesis.given(
    widths=st.lists(st.integers(9, 40), min_size=2, max_size=4), bias=st.booleans(), transposed=st.booleans(),
    seed=st.integers(0, 9), num_rows=st.sampled_from([1, 31, 65, 200]),
)  # fmt: skip
def test_random_networks(widths, bias, transposed, seed, num_rows):
    def program(z, row, public):
        for name in sorted(z["weights"]):
            weight = z["weights"][name]
            row = jnp.tanh(row @ (weight.T if transposed else weight) + (z["bias"][name] if bias else 0.0))
        return jnp.sum(row**2)

    rng = np.random.default_rng(seed)
    pairs = list(itertools.pairwise(widths))
    weights = {f"w{k}": rng.standard_normal(p[::-1] if transposed else p) for k, p in enumerate(pairs)}
    z = {"weights": weights, "bias": {f"w{k}": rng.standard_normal(n) for k, (_, n) in enumerate(pairs)}}
    z = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), z)
    rows = jnp.asarray(rng.standard_normal((num_rows, widths[0])), jnp.float32)
    found = sums.factored(program, z, rows[0], None, always=True)
    hypothesis.assume(found is not None)
    run = lambda z, rows: sums.clipped_sum(  # noqa: E731
        lambda row: found.statistic(z, row, None), found.forms, Drawn(rows), Flat(NORM)
    )
    total = jax.jit(run)(z, rows)
    gradients = jax.jit(jax.vmap(jax.grad(program), (None, 0, None)))(z, rows, None)
    leaves = dict(enumerate(jax.tree.leaves(gradients)))
    expected, _ = reference(leaves, np.ones(num_rows, bool))
    for leaf, exact in zip(jax.tree.leaves(total), expected.values()):
        np.testing.assert_allclose(leaf, exact, atol=num_rows * 3e-6, rtol=3e-4)


# One row moves the sum by at most the norm, whatever the factors are

M, N, ROWS = 48, 40, 33
FORMS = (
    Form("outer", (M, N), np.dtype(np.float32), (1, 1, M, N), (("reshape", (M, N)),)),
    Form("outer", (N, 2), np.dtype(np.float32), (2, 1, N // 2, 2), (("transpose", (1, 0, 2)), ("reshape", (N, 2)))),
    Form("lookup", (9, N), np.dtype(np.float32), (1, 3, 9, N), (("reshape", (9, N)),)),
    Form("whole", (N,), np.dtype(np.float32)),
)
HOSTILE = [np.nan, np.inf, -np.inf, 3e38, 1e30, 1e18, 1.0, -7.0, 1e-3, 2e-20, 1e-22, 1e-30, 1e-38, 1e-41, 0.0]


@functools.cache
def given():
    """(factors of all rows, mask) -> their clipped sum as one vector, compiled."""

    def run(rows, mask):
        tree = jax.tree.structure(dict.fromkeys("abcd"[: len(FORMS)], 0))
        total = sums.clipped_sum(lambda row: row, sums.Forms(tuple(FORMS), tree), Drawn(rows, mask), Flat(NORM))
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(total)])

    return jax.jit(run)


def factors(seed, scale):
    rng = np.random.default_rng(seed)
    number = np.stack([rng.permutation(10)[:3] for _ in range(ROWS)]).astype(np.int32)  # 9 is beyond the table
    draw = lambda *shape: (scale * rng.standard_normal((ROWS, *shape))).astype(np.float32)  # noqa: E731
    return [(draw(1, M), draw(1, N)), (draw(2, N // 2), draw(2, 2)), (number, draw(3, N)), (draw(N),)]


@hypothesis.settings(max_examples=150)
@hypothesis.example(values=[2e-20, 1e18, 0.0, 0.0, 0.0, 0.0], seed=0, scale=1.0, at=3, some=False)  # squares underflow
@hypothesis.example(values=[1.0, 1.0, np.nan, 1.0, 1.0, 1.0], seed=0, scale=1.0, at=3, some=True)
@hypothesis.given(
    values=st.lists(st.sampled_from(HOSTILE), min_size=6, max_size=6), seed=st.integers(0, 3),
    scale=st.sampled_from([1e-3, 0.3, 1e3]), at=st.integers(0, ROWS - 1), some=st.booleans(),
)  # fmt: skip
def test_a_hostile_row_moves_the_sum_by_at_most_the_norm(values, seed, scale, at, some):
    rows = factors(seed, scale)
    parts = [rows[0][0], rows[0][1], rows[1][0], rows[1][1], rows[2][1], rows[3][0]]
    with np.errstate(over="ignore"):
        for part, value in zip(parts, values):
            if some:  # else all entries alike
                part[at, ..., ::7] = value
            else:
                part[at] *= np.float32(value)
    mask = np.ones(ROWS, bool)
    total = np.asarray(given()(rows, mask))
    mask[at] = False
    moved = np.linalg.norm(total - np.asarray(given()(rows, mask)))
    assert np.all(np.isfinite(total)) and moved <= 1.0 + SLACK


@pytest.mark.parametrize(("scale", "shortest"), [(1e3, 0.9985), (3e-3, 0.0)])
def test_the_bound_is_reached(scale, shortest):
    """Long rows move the sum by nearly the norm, so the bounds of norms are tight; short ones are not changed."""
    rows = factors(0, scale)
    total = np.asarray(given()(rows, np.ones(ROWS, bool)))
    for at in (0, 31, 32):
        mask = np.arange(ROWS) != at
        moved = total - np.asarray(given()(rows, mask))
        alone = np.asarray(given()(rows, ~mask))
        assert shortest <= np.linalg.norm(moved) <= 1.0 + SLACK
        np.testing.assert_allclose(moved, alone, atol=1e-5 * max(1.0, np.abs(total).max()))
    assert shortest or np.abs(total).max() > 0


def test_blocks_are_added_in_float64():
    """One long row and many of length 1 in other blocks: an odd number above 2^24, which float32 cannot hold."""
    a, b = np.ones((64 * sums.BLOCK, 1, 20), np.float32), np.ones((64 * sums.BLOCK, 1, 30), np.float32)
    b[0], b[1 : sums.BLOCK], b[-1] = 2.0**24, 0.0, 0.0
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(sums._product)(a, b))
    assert np.all(found == 2.0**24 + 63 * sums.BLOCK - 1)


def test_factors_are_stored_once():
    """What is computed passes through a call that the compiler keeps; what is copied from the row does not."""
    copied = Form("outer", (M, N), np.dtype(np.float32), (1, 1, M, N), (("reshape", (M, N)),), exact=True)
    run = jax.jit(lambda rows: sums.stored(lambda row: [(row[None], jnp.sin(row[None, :N]))], [copied], rows))
    rows = np.ones((5, M), np.float32)
    (kept,) = stored_by(run.lower(rows).compile())
    assert f"f32[5,1,{N}]" in kept and f"f32[5,1,{M}]" not in kept
    exact = {name: form.exact for name, form in zip(sorted(NETWORKS[dense][0]), compiled(dense)[0].of_latents)}
    assert exact == {"b": False, "v": False, "w": True}
    first, second = run(rows)[0]
    np.testing.assert_allclose(second, np.sin(rows[:, None, :N]), rtol=1e-6)
    assert np.array_equal(first[:, 0], rows)


# Behind the door


@pytest.mark.parametrize("counts", [False, True])
def test_factors_are_clipped_as_gradients(counts):
    """As of gradients that are formed; short rows and long ones."""
    z, (x, y) = drawn(dense, 70, 0, 0.3)
    rows = (x * np.logspace(-2, 1, 70, dtype=np.float32)[:, None], y)
    found = sums.factored(dense, z, jax.tree.map(lambda x: x[0], rows), None, always=True)
    clipping = Flat(NORM)

    @jax.jit
    def both(z, rows, mask):
        gradients = jax.vmap(jax.grad(dense), (None, 0, None))(z, rows, None)
        clip = clipping.clip
        if counts:
            clip, gradients = with_count(clipping), (gradients, jnp.zeros((len(mask), 3)))
        total = jax.tree.map(lambda g: jnp.sum(g, axis=0), clip(gradients, mask))
        factors = lambda row: found.statistic(z, row, None)  # noqa: E731
        return total, sums.clipped_sum(factors, found.forms, Drawn(rows, mask), clipping, counts)

    one, other = both(z, rows, np.arange(70) % 5 != 2)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for formed, from_factors in zip(jax.tree.leaves(one), jax.tree.leaves(other)):
        np.testing.assert_allclose(from_factors, formed, atol=1.4e-3, rtol=1.4e-3)


def access(mechanism, z, rows, key, program=dense, **options):
    return noisy_sum(mechanism, program, z, rows, None, key=key, **{"noise_multiplier": 1e-6, **options})


@functools.cache
def door():
    """(z, rows) -> what an access returns, with little noise, compiled."""
    mechanism = Mechanism(clipping=Flat(NORM), subsampling=FullBatch(), strategy="ghost")
    return jax.jit(lambda z, rows: access(mechanism, z, rows, jax.random.key(0), noise_multiplier=1e-3).total)


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    values=st.lists(st.sampled_from([*HOSTILE, 1e-19, 1e9, -1e20]) | st.floats(-5, 5, width=32), min_size=20, max_size=20),
    scale=st.sampled_from([1e-12, 0.3, 1e10, 1e30]), at=st.integers(0, 69),
)  # fmt: skip
def test_a_hostile_row_moves_the_door_by_at_most_the_norm(values, scale, at):
    z, (x, y) = drawn(dense, 70, 0, 0.3)
    z["w"] *= np.float32(scale)
    found = []
    for row in (values, [np.nan] * 20):
        x[at] = row
        leaves = jax.tree.leaves(door()(z, (x, y)))
        found.append(np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves]))
    assert np.all(np.isfinite(found))
    assert np.linalg.norm(found[0] - found[1]) / NORM <= 1.0 + SLACK + 2e-5  # outputs are rounded to float32


def to_bits(x, bits):
    return jnp.asarray(x, f"{x.dtype.kind}{bits // 8}")


def test_chains_counts_and_double_precision():
    """The same access, whatever the strategy, and whatever JAX takes for the type of numbers."""
    z, rows = drawn(dense, 70, 0, 0.3)
    found = []
    for strategy, bits in (("vmap", 64), ("ghost", 64), ("ghost", 32)):
        mechanism = Mechanism(clipping=Flat(NORM), subsampling=Poisson(0.7), strategy=strategy, count_share=0.1)
        with jax.enable_x64(bits == 64):
            cast = functools.partial(to_bits, bits=bits)
            stacked = jax.tree.map(lambda x: jnp.stack([x, -x]), jax.tree.map(cast, z))
            data = jax.tree.map(cast, rows)
            keys = jax.random.split(jax.random.key(0), 2)
            run = jax.vmap(lambda z, key: access(mechanism, z, data, key))  # noqa: B023
            found.append(jax.jit(run)(stacked, keys))
            assert all(leaf.dtype == f"float{bits}" for leaf in jax.tree.leaves(found[-1]))
    for other in found[1:]:
        for one, leaf in zip(*map(jax.tree.leaves, (found[0], other))):
            np.testing.assert_allclose(one, leaf, atol=1e-3, rtol=1e-3)


def test_auto_takes_factors_where_they_save_much(equations):
    """No array of all rows' gradients; and with discrete noise, whole numbers of each row as ever."""
    rng = np.random.default_rng(0)
    z = {"w": jnp.zeros((20, 150)), "b": jnp.zeros(150), "v": jnp.zeros((8, 150))}
    rows = (jnp.asarray(rng.standard_normal((64, 20)), jnp.float32), jnp.zeros(64, jnp.int32))

    def largest(**settings):
        mechanism = Mechanism(clipping=Flat(NORM), subsampling=FullBatch(), **settings)
        traced = jax.make_jaxpr(lambda z: access(mechanism, z, rows, key))(z)
        (door,) = [e for e in traced.eqns if e.primitive.name == "dpppl_door"]
        inside = jax.make_jaxpr(door.params["access"])(*(v.aval for v in door.invars))
        return max(v.aval.size for e in equations(inside) for v in e.outvars if hasattr(v.aval, "size"))

    key = jax.random.key(0)
    assert largest() == largest(strategy="ghost") <= 64 * 170
    assert min(largest(strategy="vmap"), largest(discretise=True)) >= 16 * 20 * 150


def test_what_a_derivative_does_is_checked():
    """A callback in a rule of differentiation, which runs only where the factors are computed."""

    @jax.custom_vjp
    def spy(x):
        return x

    spy.defvjp(
        lambda x: (x, None), lambda _, d: (jax.pure_callback(lambda d: d, jax.ShapeDtypeStruct((), d.dtype), d),)
    )
    z, rows = drawn(dense, 5, 0)
    mechanism = Mechanism(clipping=Flat(1.0), subsampling=FullBatch(), strategy="ghost")
    with pytest.raises(PrivacyLeakError):
        access(mechanism, z, rows, jax.random.key(0), lambda z, row, public: spy(dense(z, row, public)))


@pytest.mark.parametrize(
    ("layout", "padding"), [(("NHWC", "HWIO", "NHWC"), "SAME"), (("NCHW", "OIHW", "NCHW"), ((2, 0), (1, 3)))]
)
def test_rewritten_convolutions_and_pools_are_the_same(layout, padding):
    rng = np.random.default_rng(0)
    shape = lambda spec, **sizes: [sizes[c] for c in spec]  # noqa: E731
    x = jnp.asarray(rng.integers(-3, 3, shape(layout[0], N=3, H=9, W=8, C=2)), jnp.float32)  # with ties
    w = jnp.asarray(rng.integers(-2, 2, shape(layout[1], H=3, W=2, I=2, O=4)), jnp.float32)
    window = shape(layout[2], N=1, H=2, W=3, C=1)

    def program(x, w):
        y = lax.conv_general_dilated(x, w, (2, 1), padding, dimension_numbers=layout)
        y = lax.reduce_window(y, -jnp.inf, lax.max, window, shape(layout[2], N=1, H=1, W=2, C=1), "SAME")
        return jnp.sum(y * jnp.arange(y.size).reshape(y.shape))

    found = [jax.jit(jax.value_and_grad(f, (0, 1)))(x, w) for f in (program, rewrite(program))]
    for one, other in zip(*found):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_patches_are_those_of_jax_and_rows_of_convolutions_come_in_chunks(monkeypatch):
    x, layout = jnp.arange(2 * 9 * 11 * 3.0).reshape(2, 9, 11, 3), dict(dimension_numbers=("NHWC", "HWIO", "NHWC"))
    settings = dict(window_strides=(1, 2), padding=[(1, 2), (0, 1)], lhs_dilation=(2, 1), rhs_dilation=(1, 2), **layout)
    equation = jax.make_jaxpr(lambda x: lax.conv_general_dilated(x, jnp.zeros((3, 2, 3, 5)), **settings))(x).eqns[-1]
    expected = lax.conv_general_dilated_patches(x, (3, 2), **settings).reshape(-1, 3, 6).swapaxes(1, 2).reshape(-1, 18)
    np.testing.assert_array_equal(patches(x, equation.params, (3, 2, 3, 5)), expected)

    z, rows = drawn(convolutions, 70, 1)
    lengths, over, all_rows = [], sums.over_drawn, np.ones(70, bool)
    monkeypatch.setattr(
        sums, "over_drawn", lambda f, rows, chunk, *rest: lengths.append(chunk) or over(f, rows, chunk, *rest)
    )
    at_once = compiled(convolutions)[1](z, rows, all_rows)
    monkeypatch.setattr(sums, "_CACHED", 1)
    by_chunks = compiled(convolutions)[1](z, rows, all_rows)
    assert lengths == [70, 8]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=70 * 3e-6), by_chunks, at_once)


def test_restored_undoes_what_the_model_did():
    leaf = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(
        restored(leaf.transpose(2, 0, 1).reshape(1, 4, 6), (("reshape", (4, 2, 3)), ("transpose", (1, 2, 0)))), leaf
    )
