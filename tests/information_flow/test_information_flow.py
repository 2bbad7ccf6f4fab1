"""Programs that leak are refused, each for its reason; the library's own, whole, are accepted."""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

import dpppl
from dpppl import information_flow
from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.errors import PrivacyLeakError
from dpppl.subsampling import FullBatch, Poisson

X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
Z = np.zeros(3, np.float32)


def likelihood(z, row, public):
    return -0.5 * (jnp.vdot(z, row) - 1.0) ** 2


def access(z, x, key, step=0, **options):
    """One access of the data, as a kernel would do it."""
    settings = {"clipping": Flat(1.0), "subsampling": FullBatch()} | options
    return noisy_sum(Mechanism(**settings), likelihood, z, x, None, key=key, noise_multiplier=1.0, step=step).total


def check(function, *arguments, **options):
    """Verify a function of (z, x, key): x is private, and the key too."""
    arguments = arguments or (Z, X, jax.random.key(0))
    return information_flow.verify(function, *arguments, **({"private": 1} | options))


def kinds(function, *arguments, **options):
    """What `function` is refused for, and the message."""
    with pytest.raises(PrivacyLeakError) as caught:
        check(function, *arguments, **options)
    return {finding.kind for finding in caught.value.findings}, str(caught.value)


# Leaks outside the door


def loss_beside_the_gradient(z, x, key):
    total = lambda z: jnp.sum(jax.vmap(likelihood, (None, 0, None))(z, x, None))  # noqa: E731
    return access(z, x, key), jax.value_and_grad(total)(z)[0]


def noise_of_its_own(z, x, key):
    return jnp.sum(jnp.clip(x, -1.0, 1.0), 0) + jax.random.normal(key, (3,))


def residuals(z, x, key):
    @jax.custom_vjp
    def f(z):
        return jnp.sum(z)

    f.defvjp(lambda z: (jnp.sum(z), x), lambda saved, g: (g * jnp.sum(saved, 0),))
    return jax.grad(f)(z)


def custom_derivative(z, x, key):
    @jax.custom_jvp
    def f(z, x):
        return jnp.sum(z) + x[0, 0]

    f.defjvp(lambda primals, tangents: (f(*primals), jnp.sum(tangents[0])))
    return f(z, x)


def in_pieces(function, **options):
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(function, mesh=mesh, **options)


def sharded_sum(z, x, key):
    specs = {"in_specs": PartitionSpec("i"), "out_specs": PartitionSpec()}
    return in_pieces(lambda part: lax.psum(jnp.sum(part, 0), "i"), **specs)(x)


def pmapped_sum(z, x, key):
    return jax.pmap(lambda part: lax.psum(jnp.sum(part), "i"), axis_name="i")(x.reshape(2, -1))


def late_leak(z, x, key):
    """The row reaches the output only in the third turn."""
    start = (jnp.zeros(()), jnp.zeros(()), x[0, 0])
    return lax.fori_loop(0, 5, lambda _, c: (c[1], c[2], c[2]), start)[0]


LEAKS = {
    "a branch on a row": (lambda z, x, key: lax.cond(x[0, 0] > 0, lambda: z, lambda: -z), "rows"),
    "a branch whose ways end alike": (lambda z, x, key: lax.cond(x[0, 0] > 0, lambda: 1.0, lambda: 1.0), "rows"),
    "a switch": (lambda z, x, key: lax.switch(x[0, 0].astype(int), [lambda: 0.0, lambda: 1.0]), "rows"),
    "a branch in Python": (lambda z, x, key: z if x[0, 0] > 0 else -z, "python"),
    "a number in Python": (lambda z, x, key: z * float(x[0, 0]), "python"),
    "an array outside JAX": (lambda z, x, key: z * np.asarray(x)[0], "python"),
    "the end of a while loop": (lambda z, x, key: lax.while_loop(lambda i: i < x[0, 0], lambda i: i + 1, 0.0), "rows"),
    "the number of turns": (lambda z, x, key: lax.fori_loop(0, x[0, 0].astype(int), lambda _, z: z + 1, z), "rows"),
    "the carry of a scan": (lambda z, x, key: lax.scan(lambda c, row: (c + row, None), z, x)[0], "rows"),
    "the outputs of a scan": (lambda z, x, key: lax.scan(lambda c, row: (c, 2 * row), z, x)[1], "rows"),
    "the outputs of a scan, as they are": (lambda z, x, key: lax.scan(lambda c, row: (c, x), z, x)[1], "rows"),
    "a carry in later turns": (late_leak, "rows"),
    "the index of the largest": (lambda z, x, key: z[jnp.argmax(x[0])], "rows"),
    "a dynamic index": (lambda z, x, key: lax.dynamic_slice(z, [x[0, 0].astype(int)], [1]), "rows"),
    "the order of rows": (lambda z, x, key: jnp.argsort(x[:, 0]), "rows"),
    "a choice by a row": (lambda z, x, key: jnp.where(x[0] > 0, z, 0.0), "rows"),
    "a sum": (lambda z, x, key: jnp.sum(x), "rows"),
    "whether all are finite": (lambda z, x, key: jnp.all(jnp.isfinite(x)), "rows"),
    "an overflow": (lambda z, x, key: jnp.isinf(x.astype(jnp.float16)).any(), "rows"),
    "a row times zero": (lambda z, x, key: z + 0 * x[0], "rows"),
    "rows as they are": (lambda z, x, key: x, "returned"),
    "rows through a function": (lambda z, x, key: jax.jit(lambda a: a)(x), "returned"),
    "a part of the rows": (lambda z, x, key: x[1:3], "rows"),
    "noise of its own": (noise_of_its_own, "rows"),
    "the loss beside the gradient": (loss_beside_the_gradient, "rows"),
    "a gradient's residuals": (residuals, "rows"),
    "a function with its own derivative": (custom_derivative, "rows"),
    "rematerialised": (lambda z, x, key: jax.grad(jax.checkpoint(lambda z: jnp.sum(jnp.sin(z * x[0]))))(z), "rows"),
    "a sum over shards": (sharded_sum, "rows"),
    "a sum over devices": (pmapped_sum, "rows"),
    "rows, or zeros": (lambda z, x, key: lax.cond(z[0] > 0, lambda: jnp.zeros_like(x), lambda: x), "rows"),
    "a key made of rows": (lambda z, x, key: jax.random.normal(jax.random.fold_in(key, x[0, 0].astype(int))), "rows"),
}


@pytest.mark.parametrize(("function", "kind"), LEAKS.values(), ids=LEAKS)
def test_a_leak_is_refused(function, kind):
    found, message = kinds(function)
    assert found == {kind}
    assert kind == "python" or re.search(r"Path: x -> .*test_information_flow\.py:\d+|Path: x\.", message)


# What the program of one row may not do


def odd(primitive):
    """A primitive that JAX does not know, the identity on paper."""
    primitive = Primitive(primitive)
    primitive.def_abstract_eval(lambda x: x)
    batching.primitive_batchers[primitive] = lambda arguments, axes: (primitive.bind(*arguments), axes[0])
    ad.deflinear2(primitive, lambda ct, x: [primitive.bind(ct)])
    return primitive


ODD = odd("odd")


def with_likelihood(likelihood, z, x, key, public=None, noise_multiplier=1.0):
    door = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
    return noisy_sum(door, likelihood, z, x, public, key=key, noise_multiplier=noise_multiplier).total


def in_shards(z, x, key, exchange):
    """One access of all rows on each of two devices, whose likelihood hands the row to `exchange`."""

    def noisy(x, key):
        return with_likelihood(lambda z, row, _: jnp.vdot(z, exchange(row)), z, x, key[0])[None]

    specs = {"in_specs": (PartitionSpec(), PartitionSpec("i")), "out_specs": PartitionSpec("i"), "check_vma": False}
    return in_pieces(noisy, **specs)(x, jax.random.split(key, 2))


EXCHANGES = {
    "psum": lambda row: lax.psum(row, "i"),
    "pmean": lambda row: lax.pmean(row, "i"),
    "pmax": lambda row: lax.pmax(lax.stop_gradient(row), "i"),
    "all_gather": lambda row: jnp.sum(lax.all_gather(row, "i"), 0),
    "ppermute": lambda row: lax.ppermute(row, "i", [(0, 1), (1, 0)]),
    "psum_scatter": lambda row: jnp.pad(lax.psum_scatter(row[:2], "i", tiled=True), (0, 2)),
    "all_to_all": lambda row: jnp.append(lax.all_to_all(row[:2], "i", 0, 0, tiled=True), 0.0),
    "axis_index": lambda row: row * lax.axis_index("i"),
}


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
def test_devices_exchange_no_rows_inside_the_door(exchange):
    found, message = kinds(functools.partial(in_shards, exchange=exchange))
    assert found <= {"door", "unknown"} and re.search("exchange rows|is not known here", message)


def test_primitives_are_known_whoever_asks_first():
    """What is found out about JAX once is found out the same inside a mesh: the door asks while it is traced."""
    from dpppl.information_flow import rules

    before = dict(rules._kinds())
    rules._kinds.cache_clear()
    in_pieces(lambda part: rules._kinds() and part, in_specs=PartitionSpec("i"), out_specs=PartitionSpec("i"))(X)
    assert rules._kinds() == before and rules.Kind.DEVICES in before.values()


def test_shards_without_exchange_are_accepted():
    assert check(functools.partial(in_shards, exchange=lambda row: row)).doors == 1


def custom_rule(row):
    """The identity, whose rule of batching would return the first row for every row."""

    @jax.custom_batching.custom_vmap
    def function(row):
        return row

    function.def_vmap(lambda size, batched, rows: (rows[jnp.zeros(size, int)], True))
    return function(row)


def own_derivative(row):
    """A derivative that prints what it is given."""

    @jax.custom_vjp
    def function(z):
        return jnp.vdot(z, z)

    def backward(z, cotangent):
        jax.debug.print("{}", cotangent)
        return (cotangent * z,)

    function.defvjp(lambda z: (function(z), z), backward)
    return function


def pure(value):
    return jax.pure_callback(lambda b: b, jax.ShapeDtypeStruct((3,), np.float32), value, vmap_method="expand_dims")


REFUSED_ROW_PROGRAMS = {
    "a rule of batching": (lambda z, row, _: jnp.vdot(z, custom_rule(row)), "unknown"),
    "the same under jit": (lambda z, row, _: jnp.vdot(z, jax.jit(custom_rule)(row)), "unknown"),
    "a primitive that is not JAX's": (lambda z, row, _: jnp.vdot(z, ODD.bind(row)), "unknown"),
    "a print": (lambda z, row, _: (jax.debug.print("{}", row), jnp.vdot(z, row))[1], "effect"),
    "a print in a branch": (
        lambda z, row, _: lax.cond(row[0] > 0, lambda: jax.debug.print("positive"), lambda: None) or jnp.vdot(z, row),
        "effect",
    ),
    "a callback": (lambda z, row, _: jnp.vdot(z, lax.stop_gradient(pure(row))), "effect"),
    "a callback without rows": (lambda z, row, _: jnp.vdot(z, lax.stop_gradient(pure(jnp.ones(3)))), "effect"),
    "a callback in a solver": (
        lambda z, row, _: jnp.vdot(z, lax.custom_linear_solve(lambda v: 9.0 * v, row, lambda _, b: pure(b), symmetric=True)),
        "effect",
    ),
    "a print in a derivative": (lambda z, row, _: own_derivative(row)(z * row), "effect"),
    "a foreign function": (
        lambda z, row, _: jnp.vdot(z, jax.ffi.ffi_call("log", jax.ShapeDtypeStruct((3,), np.float32))(row)), "effect",
    ),
    "a reference": (lambda z, row, _: jnp.vdot(z, jax.new_ref(row)[...]), "effect"),
}  # fmt: skip
if "empty" in str(jax.make_jaxpr(lambda: jnp.empty(3))()):  # newer JAX leaves it unset on some devices
    REFUSED_ROW_PROGRAMS["unset memory"] = (lambda z, row, _: jnp.vdot(z, row * jnp.empty(3)), "effect")


@pytest.mark.parametrize(("likelihood", "kind"), REFUSED_ROW_PROGRAMS.values(), ids=REFUSED_ROW_PROGRAMS)
def test_a_row_program_only_computes(likelihood, kind):
    """Refused where the door is made, with or without a proof."""
    found, message = kinds(lambda z, x, key: with_likelihood(likelihood, z, x, key))
    assert found == {kind} and "the likelihood of a row calls" in message and "test_information_flow.py" in message
    with pytest.raises(PrivacyLeakError, match="the likelihood of a row calls"):
        with_likelihood(likelihood, Z, X, jax.random.key(0))


def of_row(row):
    """A little of everything: rows in batch, feature, window and matrix axes."""
    image = jnp.outer(row, row)[None, :, :, None]
    return lax.reduce_window(image, -jnp.inf, lax.max, (1, 2, 2, 1), (1,) * 4, "SAME")


ROW_PROGRAMS = {
    "window": lambda z, row, _: jnp.sum(z) * jnp.sum(of_row(row)),
    "convolution": lambda z, row, _: jnp.sum(jnp.convolve(z, row) ** 2),
    "Fourier transform": lambda z, row, _: jnp.sum(jnp.abs(jnp.fft.fft(z * row))),
    "Cholesky": lambda z, row, _: jnp.sum(jnp.linalg.cholesky(jnp.outer(row, row) + jnp.eye(3) * (1 + jnp.sum(z**2)))),
    "linear solve": lambda z, row, _: jnp.sum(jnp.linalg.solve(jnp.outer(row, z) + jnp.eye(3) * 9, z)),
    "eigenvalues": lambda z, row, _: jnp.sum(jnp.linalg.eigvalsh(jnp.outer(row, row) + jnp.diag(z))),
    "determinant": lambda z, row, _: jnp.linalg.slogdet(jnp.outer(row, z) + jnp.eye(3) * 9)[1],
    "sort and search": lambda z, row, _: z[jnp.searchsorted(jnp.arange(2.0), row[0])] + jnp.sort(z * row)[0],
    "scatter": lambda z, row, _: jnp.sum(jnp.zeros(5).at[row[0].astype(int)].add(z[0] * row[1]) ** 2),
    "branch": lambda z, row, _: lax.cond(row[0] > 0, lambda: jnp.sum(z * row), lambda: jnp.sum(z)),
    "while loop": lambda z, row, _: (
        lax.stop_gradient(lax.while_loop(lambda c: c < row[0], lambda c: c + 1, 0.0)) * z[0]
    ),
    "scan": lambda z, row, _: lax.scan(lambda c, t: (jnp.tanh(c * t + z[0]), None), 0.0, row)[0],
    "reduction of its own": lambda z, row, _: jnp.sum(z) * lax.reduce(row, 0.0, lambda a, b: a + 2 * b, (0,)),
    "Python numbers": lambda z, row, _: dist.VonMises(z[0], 2.0).log_prob(row[0]),
    "draws": lambda z, row, _: jnp.vdot(z, jax.random.orthogonal(jax.random.key(0), 3) @ row),
    "JAX's own table": lambda z, row, _: jnp.vdot(z, row) * jax.random.binomial(jax.random.key(0), 10, 0.3),
    "complex numbers": lambda z, row, _: jnp.abs(jnp.vdot(z, row * (1 + 1j))),
    "nothing": lambda z, row, _: jnp.vdot(z, row) + jnp.sum(jnp.empty(0)),
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", ROW_PROGRAMS)
def test_row_programs_are_accepted_and_keep_rows_apart(name):
    """Chains, compiled with 64-bit noise around them: what one row adds does not depend on the others."""

    def chains(z, x, key):
        one = lambda z, key: with_likelihood(ROW_PROGRAMS[name], z, x, key)  # noqa: E731
        return jax.vmap(one)(jnp.stack([z + 0.5, z + 0.7]), jax.random.split(key, 2))

    assert check(chains).doors == 1
    run = jax.jit(chains)
    moved = []
    for others in (X, np.roll(X, 1, 1)):
        rows = others.copy()
        rows[2] = X[2]
        without = rows.copy()
        without[2] = np.nan  # as good as no row
        moved.append(np.asarray(run(Z, rows, jax.random.key(0))) - np.asarray(run(Z, without, jax.random.key(0))))
    np.testing.assert_allclose(moved[0], moved[1], atol=1e-5)


def test_what_may_hold_arrays_of_its_own_is_refused():
    exported = jax.export.export(jax.jit(lambda z: z + jnp.asarray(X[0])))(Z)
    for function, public in itertools.product((exported.call, ODD.bind), ((), True)):
        with_it = lambda z, x, key, function=function: function(z) + access(z, x, key)  # noqa: E731
        found, message = kinds(with_it, public_constants=public)
        assert found == {"unknown"} and "may hold private values" in message


def test_a_stranger_in_a_branch_is_refused():
    """What it does may tell of the row that decides whether it runs."""
    branch = lambda z, x: lax.cond(x[0, 0] > 0, lambda: ODD.bind(z), lambda: z)  # noqa: E731
    assert kinds(lambda z, x, key: (branch(z, x), access(z, x, key))[1], public_constants=True)[0] == {"unknown"}


# What is done, not returned


EFFECTS = {
    "effect": lambda z, x, key: jax.debug.callback(lambda row: None, x[0]),
    "print": lambda z, x, key: jax.debug.print("{}", x[0, 0]),
    "io": lambda z, x, key: (io_callback(lambda row: None, None, x[0]), z)[1],
    "pure": lambda z, x, key: (jax.pure_callback(lambda row: row, jax.ShapeDtypeStruct((3,), np.float32), x[0]), z)[1],
    "foreign": lambda z, x, key: (jax.ffi.ffi_call("log", jax.ShapeDtypeStruct((3,), np.float32))(x[0]), z)[1],
    "in a branch": lambda z, x, key: lax.cond(x[0, 0] > 0, lambda: jax.debug.print("positive"), lambda: None),
    "in a loop": lambda z, x, key: lax.while_loop(
        lambda i: i < x[0, 0], lambda i: (jax.debug.print("turn"), i + 1)[1], 0.0
    ),
    "in a reduction": lambda z, x, key: lax.reduce(
        x[0], np.float32(0), lambda a, b: (jax.debug.print("{}", a), a + b)[1], (0,)
    ),
    "of rows": lambda z, x, key: jax.jit(jax.vmap(lambda row: jax.debug.print("{}", row)))(x),
    "of a key": lambda z, x, key: jax.debug.print("{}", jax.random.key_data(key)),
}


@pytest.mark.parametrize("function", EFFECTS.values(), ids=EFFECTS)
def test_an_effect_is_refused(function):
    assert "effect" in kinds(lambda z, x, key: (function(z, x, key), z)[1])[0]


def test_a_callback_on_what_is_public_is_accepted():
    def function(z, x, key):
        noisy = access(z, x, key)
        jax.debug.print("{}", noisy)
        return noisy

    assert check(function).doors == 1


# Keys

fold_in = jax.random.fold_in


def loop_with(step, num_turns=5):
    return lambda z, x, key: lax.fori_loop(0, num_turns, lambda i, z: access(z, x, key, step(i)), z)


def counted(carry, x, key):
    return lax.fori_loop(0, 4, lambda _, c: (access(c[0], x, key, c[1]), c[1] + 1), carry)


def in_while(advance):
    def function(z, x, key):
        turn = lambda c: (access(c[0], x, key, c[1]), advance(c[1]))  # noqa: E731
        return lax.while_loop(lambda c: c[1] < 5, turn, (z, 0))[0]

    return function


def key_in_carry(following):
    def function(z, x, key):
        def turn(carry, _):
            z, key = carry
            key, used = following(key)
            return (access(z, x, used), key), None

        return lax.scan(turn, (z, key), None, length=4)[0][0]

    return function


def undo(z, x, key):
    """Subtract the noise, drawn once more."""
    from dpppl.randomness import keys, normal

    again = normal.standard_normal(jax.random.fold_in(keys.stream(key, "noise"), 0), 3)
    return access(z, x, key) - again.astype(np.float32)


REUSED = {
    "raw children": lambda z, x, key: (
        lambda a, b: access(access(z, x, jax.random.wrap_key_data(a)), x, jax.random.wrap_key_data(b))
    )(*jax.random.split(jax.random.key_data(key))),
    "a while loop by two": in_while(lambda i: i + 2),
    "two accesses": lambda z, x, key: access(access(z, x, key), x, key),
    "two accesses of one step": lambda z, x, key: access(access(z, x, key, 3), x, key, 1 + 2),
    "two accesses of unknown steps": lambda z, x, key: access(access(z, x, key, z[0].astype(int)), x, key, 1),
    "an access and a draw": lambda z, x, key: access(z, x, key) + jax.random.normal(key),
    "the noise again": undo,
    "a loop": loop_with(lambda i: 0),
    "a loop that repeats steps": loop_with(lambda i: i // 2),
    "a counter and its double": lambda z, x, key: lax.fori_loop(
        0, 5, lambda i, z: access(access(z, x, key, i + 5), x, key, 2 * i), z
    ),
    "steps that overlap": lambda z, x, key: access(loop_with(lambda i: i)(z, x, key), x, key, 4),
    "loops that overlap": lambda z, x, key: loop_with(lambda i: i + 4)(loop_with(lambda i: i)(z, x, key), x, key),
    "two steps a turn": lambda z, x, key: lax.fori_loop(
        0, 5, lambda i, z: access(access(z, x, key, i), x, key, i + 1), z
    ),
    "a while loop": in_while(lambda i: i + 0),
    "a step that stands still": in_while(lambda i: i * 2),
    "a key carried on": key_in_carry(lambda key: (key, key)),
    "a key in the carry": key_in_carry(jax.random.split),
    "a key split and kept": key_in_carry(lambda key: (key, jax.random.split(key)[1])),
    "a key used and split": key_in_carry(lambda key: (jax.random.split(key)[0], jax.random.split(key)[0])),
    "a key carried and used outside": lambda z, x, key: access(
        key_in_carry(jax.random.split)(z, x, key), x, jax.random.split(key)[1]
    ),
    "both children alike": lambda z, x, key: access(access(z, x, jax.random.split(key)[0]), x, jax.random.split(key)[0]),
    "loops in turns": lambda z, x, key: lax.while_loop(
        lambda c: c[1] < 50, lambda c: (counted(counted(c, x, key), x, key)[0], c[1] + 4), (z, 0)
    )[0],
    "every device": lambda z, x, key: jax.pmap(lambda z: access(z, x, key))(jnp.stack([z, -z])),
    "every shard": lambda z, x, key: in_pieces(
        lambda x: access(z, x, key)[None], in_specs=PartitionSpec(), out_specs=PartitionSpec("i"), check_vma=False
    )(x),
    # chains that share noise
    "one key for all chains": lambda z, x, key: jax.vmap(lambda z: access(z, x, key))(jnp.stack([z, z + 1])),
    "a key twice": lambda z, x, key: jax.vmap(lambda key: access(z, x, key))(jnp.stack([key, key])),
    "one key or another, lost": lambda z, x, key: access(
        z, x, lax.scan(lambda c, k: (c, fold_in(k, 1)), 0, jax.random.split(key, 3))[1][0]
    ),
    "a secret key or a public one": lambda z, x, key: access(
        z, x, lax.cond(z[0] > 0, lambda: key, lambda: jax.random.key(0))
    ),
    "repeated": lambda z, x, key: jax.vmap(lambda key: access(z, x, key))(jnp.broadcast_to(key, (2,))),
}  # fmt: skip


@pytest.mark.parametrize("function", REUSED.values(), ids=REUSED)
def test_a_key_used_twice_is_refused(function):
    assert kinds(function)[0] == {"key reuse"}


USED_ONCE = {
    "steps": lambda z, x, key: access(access(z, x, key, 0), x, key, 1),
    "children": lambda z, x, key: access(access(z, x, jax.random.split(key)[0]), x, jax.random.split(key)[1]),
    "unpacked children": lambda z, x, key: (lambda a, b: access(access(z, x, a), x, b))(*jax.random.split(key)),
    "a loop": loop_with(lambda i: i),
    "a loop and a later step": lambda z, x, key: access(loop_with(lambda i: i)(z, x, key), x, key, 5),
    "two loops": lambda z, x, key: loop_with(lambda i: 5 + i)(loop_with(lambda i: i)(z, x, key), x, key),
    "two loops of one counter": lambda z, x, key: jax.jit(counted)(jax.jit(counted)((z, jnp.int32(7)), x, key), x, key),
    "one turn": loop_with(lambda i: 0, num_turns=1),
    "a while loop": in_while(lambda i: i + 1),
    "a scan over steps": lambda z, x, key: lax.scan(lambda z, i: (access(z, x, key, i), None), z, jnp.arange(4))[0],
    "a scan over keys": lambda z, x, key: lax.scan(
        lambda z, key: (access(z, x, key), None), z, jax.random.split(key, 4)
    )[0],
    "loops in loops": lambda z, x, key: lax.fori_loop(
        0, 3, lambda i, z: lax.fori_loop(0, 4, lambda j, z: access(z, x, fold_in(key, i), j), z), z
    ),
    "chains": lambda z, x, key: jax.vmap(lambda key: access(z, x, key))(jax.random.split(key, 3)),
    "what varies over shards": lambda z, x, key: in_pieces(
        lambda z, key: (z * jax.random.normal(key[0]))[None],
        in_specs=(PartitionSpec(), PartitionSpec("i")), out_specs=PartitionSpec("i"),
    )(z, jax.random.split(key, 2)),
    "devices": lambda z, x, key: jax.pmap(lambda key: access(z, x, key))(jax.random.split(key, 2)),
    "shards": lambda z, x, key: in_pieces(
        lambda x, key: access(z, x, key[0])[None], in_specs=(PartitionSpec(), PartitionSpec("i")),
        out_specs=PartitionSpec("i"), check_vma=False,
    )(x, jax.random.split(key, 2)),
    "a draw rematerialised": lambda z, x, key: jax.grad(
        jax.checkpoint(lambda z: jnp.sum(jnp.sin(z * jax.random.normal(jax.random.fold_in(key, 2), (3,)))))
    )(access(z, x, jax.random.fold_in(key, 1))),
}  # fmt: skip


@pytest.mark.parametrize("function", USED_ONCE.values(), ids=USED_ONCE)
def test_keys_used_once_are_accepted(function):
    assert check(function).keys == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda z, x, key: (access(z, x, key), key),
        lambda z, x, key: jax.random.split(key),
        lambda z, x, key: jax.random.key_data(key)[0] > 7,
        lambda z, x, key: lax.cond(jax.random.key_data(key)[0] > 7, lambda: z, lambda: -z),
    ],
    ids=["itself", "a child", "a bit of it", "a branch on it"],
)
def test_a_key_that_leaves_is_refused(function):
    assert kinds(function)[0] == {"key"}


def test_outputs_that_are_kept_may_hold_keys():
    function = lambda z, x, key: {"z": access(z, x, key), "rng_key": key}  # noqa: E731
    assert kinds(function)[0] == {"key"}
    assert check(function, secret_outputs=("['rng_key']",)).keys == 1
    assert kinds(lambda z, x, key: {"rng_key": x}, secret_outputs=("['rng_key']",))[0] == {"returned"}


def test_a_door_without_a_secret_key_is_refused():
    found, message = kinds(lambda z, x, key: access(z, x, jax.random.key(0)))
    assert found == {"noise"} and "without noise" in message
    found, message = kinds(lambda z, x, key: access(z, x, jax.random.wrap_key_data(key)), Z, X, np.zeros(2, np.uint32))
    assert found == {"noise"} and "jax.random.key" in message


# Constants


def test_captured_arrays_are_refused_unless_they_are_declared():
    captured, row = jnp.asarray(X), jnp.asarray(X[0, 0])
    assert kinds(lambda z, x, key: z + jnp.sum(captured))[0] == {"constant"}
    assert kinds(lambda z, x, key: z + row)[0] == {"constant"}
    assert kinds(lambda z, x, key: jax.jit(lambda z: z + X[0])(z))[0] == {"constant"}
    assert kinds(lambda z, x, key: lax.reduce(z, np.float32(0), lambda a, b: a + b * row, (0,)))[0] == {"constant"}
    report = check(lambda z, x, key: z + jnp.sum(captured), public_constants=[captured])
    assert report.constants == ("(6, 3) float32",) and "(6, 3) float32" in str(report)
    assert check(lambda z, x, key: z + row, public_constants=True).constants == ("() float32",)


def test_rows_captured_by_a_likelihood_are_refused():
    captured = jnp.asarray(X)
    for total in (captured, jnp.asarray(X.sum(0)), X.sum(0), jnp.asarray(X.sum()) * jnp.ones(3), jnp.asarray(X.sum())):
        likelihood = lambda z, row, _, total=total: jnp.sum(z * total) * row[0]  # noqa: E731
        inside = functools.partial(with_likelihood, likelihood)
        found, message = kinds(inside)
        assert found == {"constant"} and "declare it in public_constants" in message
        assert check(inside, public_constants=[total]).constants
        assert kinds(functools.partial(with_likelihood, jax.jit(likelihood)))[0] == {"constant"}
    inside = lambda z, x, key: with_likelihood(lambda z, row, _: jnp.sum(z @ x.T) * row[0], z, x, key)  # noqa: E731
    assert kinds(inside)[0] == {"door"}
    inside = lambda z, x, key: with_likelihood(lambda z, row, _: jnp.sum(z * y) * row[0], z, x, key)  # noqa: E731
    y = None

    def captures_public(z, x, key):
        nonlocal y
        y = 2 * z
        return inside(z, x, key)

    assert check(captures_public).doors == 1


# What the door is given


COMPUTED = {
    "centred rows": lambda z, x, key: access(z, x - jnp.mean(x, 0), key),
    "latents from rows": lambda z, x, key: access(jnp.mean(x, 0), x, key),
    "sorted rows": lambda z, x, key: access(z, x[jnp.argsort(x[:, 0])], key),
    "rows twice": lambda z, x, key: access(z, jnp.concatenate([x, x]), key),
    "rows merged": lambda z, x, key: access(z, x.reshape(3, 6)[:, :3], key),
    "a row": lambda z, x, key: access(z[0], x[2], key),
    "row by row": lambda z, x, key: lax.scan(
        lambda z, row: (with_likelihood(lambda z, number, _: z * number, z, row, key), None), z[0], x
    )[0],
    "noise by the rows": lambda z, x, key: with_likelihood(
        likelihood, z, x, key, noise_multiplier=1.0 + jnp.abs(x[0, 0])
    ),
}


@pytest.mark.parametrize("function", COMPUTED.values(), ids=COMPUTED)
def test_what_was_computed_from_rows_does_not_enter_the_door(function):
    found, message = kinds(function)
    assert "door" in found and "Path: x" in message


@pytest.mark.parametrize(
    "likelihood",
    [
        lambda z, row, rows: jnp.vdot(z, row) * rows[0, 0],
        lambda z, row, rows: jnp.vdot(z, rows[3]),
        lambda z, row, rows: jnp.sum(rows @ z) * row[0],
        lambda z, row, rows: jnp.sum(jnp.tanh(rows * z - row)),
        lambda z, row, rows: jnp.vdot(z, row) * rows.shape[0] * jnp.max(rows),
    ],
    ids=["one number", "another row", "their sum", "pairs", "the largest"],
)
def test_rows_that_enter_twice_stay_apart(likelihood):
    """The private rows are handed in once more as a public argument, which every row's likelihood sees whole."""
    assert "door" in kinds(lambda z, x, key: with_likelihood(likelihood, z, x, key, x))[0]


WORK_ON_ROWS = {
    "standardised": lambda x: (x - 1.0) / 2.0,
    "an intercept": lambda x: jnp.concatenate([x, jnp.ones((len(x), 1))], 1)[:, 1:],
    "reshaped": lambda x: x.reshape(-1, 3, 1)[..., 0],
    "squeezed": lambda x: x[:, None].squeeze(1),
    "columns": lambda x: x[:, ::-1],
    "turned twice": lambda x: x.T.T,
    "stop_gradient": lambda x: lax.stop_gradient(x) * 1.0,
    "another type": lambda x: x.astype(np.float16),
    "windows": lambda x: x[1:4],
    "a moving window": lambda x: lax.dynamic_slice_in_dim(x, 2, 3),
}


@pytest.mark.parametrize("work", WORK_ON_ROWS.values(), ids=WORK_ON_ROWS)
def test_work_on_rows_belongs_into_the_likelihood(work):
    """It says so, and there it is accepted."""
    found, message = kinds(lambda z, x, key: access(z, work(x), key))
    assert found == {"door"} and "belongs in the log likelihood" in message
    if jax.eval_shape(work, X).shape == X.shape:
        inside = lambda z, row, _: jnp.vdot(z, work(row[None])[0])  # noqa: E731
        assert check(functools.partial(with_likelihood, inside)).doors == 1


@pytest.mark.parametrize(
    "unchanged",
    [
        lambda x: jnp.asarray(x),
        lambda x: jax.jit(lambda a: a)(x),
        lambda x: lax.optimization_barrier(x),
        lambda x: lax.cond(True, lambda: x, lambda: x),
        lambda x: lax.fori_loop(0, 3, lambda _, a: a, x),
        lambda x: lax.stop_gradient(x),
        lambda x: x.astype(np.float32),
    ],
)
def test_rows_may_be_passed_on(unchanged):
    assert check(lambda z, x, key: access(z, unchanged(x), key)).doors == 1


def paired(z, rows, key):
    """One access of private rows that stand in a dictionary."""
    door = Mechanism(clipping=Flat(1.0), subsampling=Poisson(0.5))
    return noisy_sum(
        door, lambda z, row, _: jnp.sum(z * sum(row.values())), z, rows, None, key=key, noise_multiplier=1.0
    ).total


def test_several_private_arrays_enter_together():
    def function(z, x, y, key):
        return paired(z, {"a": x, "b": y, "c": jnp.arange(6.0)[:, None]}, key)

    assert check(function, Z, X, X, jax.random.key(0), private=(1, 2)).doors == 1
    with pytest.raises(dpppl.ConfigurationError, match="equally many rows"):
        check(function, Z, X, X[:3], jax.random.key(0), private=(1, 2))


def test_rows_are_not_dealt_out_to_devices():
    def function(z, x, y, key):
        return in_pieces(
            lambda part, y, key: paired(z, {"a": part, "b": y}, key[0])[None],
            in_specs=(PartitionSpec("i"), PartitionSpec(), PartitionSpec("i")), out_specs=PartitionSpec("i"), check_vma=False,
        )(x, y, jax.random.split(key, 2))  # fmt: skip

    found, message = kinds(function, Z, X, X[:3], jax.random.key(0), private=(1, 2))
    assert found == {"door"} and "sharded over devices although each device needs all" in message
    copies = {"in_specs": PartitionSpec(), "out_specs": PartitionSpec("i"), "check_vma": False}
    copied = functools.partial(in_pieces, lambda x: x, **copies)
    assert kinds(lambda z, x, key: access(z, copied()(x), key))[0] == {"door"}
    parts = PartitionSpec(None, "i")
    columns = lambda x, key: in_pieces(  # noqa: E731
        lambda part, key: access(jnp.zeros(2), part, key[0])[None],
        in_specs=(parts, PartitionSpec("i")), out_specs=PartitionSpec("i"), check_vma=False,
    )(x, jax.random.split(key, 2))  # fmt: skip
    assert kinds(lambda z, x, key: columns(x, key), Z, np.ones((6, 4), np.float32), jax.random.key(0))[0] == {"door"}


def test_batched_rows_are_refused():
    with pytest.raises(dpppl.ConfigurationError, match="call it once for each"):
        check(
            lambda z, x, key: jax.vmap(lambda x, key: access(z, x, key))(x.reshape(2, 3, 3), jax.random.split(key, 2))
        )


def test_a_derivative_through_the_door_is_refused():
    found, message = kinds(jax.grad(lambda z, x, key: jnp.sum(access(z, x, key))))
    assert found == {"derivative"} and "test_information_flow.py" in message


def test_a_lookalike_of_the_door_is_refused():
    """Same name, same parameters, another object."""
    lookalike = Primitive("dpppl_door")
    lookalike.multiple_results = True
    lookalike.def_abstract_eval(lambda *arguments, program: program.out_avals)
    mlir.register_lowering(lookalike, lambda *arguments, program: None)

    def function(z, x, key):
        program = jax.make_jaxpr(lambda z, x: jnp.sum(x, 0))(z, x)
        return lookalike.bind(z, x, program=program)[0]

    found, message = kinds(function)
    assert found == {"unknown", "rows"} and "dpppl_door is not known here" in message


# What is said


def test_the_report_counts_and_says_what_it_does_not_prove():
    report = check(lambda z, x, key: access(z, x, key))
    assert (report.doors, report.outputs, report.private, report.keys) == (1, 1, 1, 1) and report.equations >= 1
    assert "1 private array(s) through 1 door(s) only" in str(
        report
    ) and "Not proved: the computation of an access" in str(report)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.doors = 2


def test_the_message_names_the_output_and_the_way():
    def function(z, x, key):
        shift = jnp.mean(x)
        return {"first": z, "second": [z, z - shift]}

    _, message = kinds(function)
    line = function.__code__.co_firstlineno + 1
    assert message.startswith("output['second'][1]: a private row reaches it outside the door. Path: x -> ")
    assert re.search(rf"test_information_flow\.py:{line}.*reduce_sum -> .*:{line + 1}.*: sub\.$", message)


def test_arguments_are_named_by_position_or_name():
    function = lambda batch, *rest, scale: jnp.sum(batch["x"]) * scale + rest[0]  # noqa: E731
    arguments = {"x": X, "y": X}, Z
    for private in (0, "batch", ["batch", "scale"]):
        found, message = kinds(function, *arguments, scale=2.0, private=private)
        assert found == {"rows"} and "Path: batch['x']" in message
    assert kinds(function, *arguments, scale=2.0, private=1)[1].endswith("add.") and kinds(
        function, *arguments, scale=2.0, private="scale"
    )
    with pytest.raises(dpppl.ConfigurationError, match=r"private names arrays .*'scale'"):
        check(function, *arguments, scale=2.0, private="batches")


def test_a_traced_function_is_taken_as_it_is():
    traced = jax.jit(lambda z, x, key: access(z, x, key)).trace(Z, X, jax.random.key(0))
    assert information_flow.verify(traced, private="x").doors == 1
    traced = jax.jit(lambda n, x, y: n * x, static_argnums=0).trace(3, X, Z)
    with pytest.raises(PrivacyLeakError, match="Path: x"):
        information_flow.verify(traced, private="x")
    with pytest.raises(dpppl.ConfigurationError, match="by name"):  # static ones are left out: 1 would be y
        information_flow.verify(traced, private=1)


@pytest.mark.parametrize(
    "function",
    [
        lambda z, x, key: (jnp.sum(x), z)[1],
        lambda z, x, key: z / x.shape[0] + jnp.zeros_like(x)[0],
        lambda z, x, key: lax.cond(z[0] > 0, lambda: z, lambda: -z),
        lambda z, x, key: jax.grad(lambda z: jnp.sum(jnp.tanh(z) ** 2))(access(z, x, key)),
        lambda z, x, key: jnp.sort(access(z, x, key) + jax.random.normal(jax.random.fold_in(key, 1))),
        lambda z, x, key: jax.random.normal(key) + jax.random.uniform(key),
    ],
    ids=[
        "computed and dropped",
        "shapes",
        "a public branch",
        "after the door",
        "more randomness",
        "draws of no access",
    ],
)
def test_what_tells_nothing_of_rows_is_accepted(function):
    assert check(function).outputs == 1
