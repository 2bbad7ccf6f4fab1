"""Programs that leak are refused, each for its reason; the library's own, whole, are accepted."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import DropVar, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec
from test_mutations import PROGRAM, Mutation, mutated

import dpppl
from dpppl import information_flow, mechanism
from dpppl.clipping import Flat
from dpppl.errors import PrivacyLeakError
from dpppl.information_flow.door import Inside
from dpppl.information_flow.values import Axis, Rows, Value
from dpppl.information_flow.walk import Walk
from dpppl.mechanism import Mechanism
from dpppl.subsampling import FullBatch, Poisson

information_flow.register_door(mechanism.door_p)

X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
Z = np.zeros(3, np.float32)


def likelihood(z, row, public):
    return -0.5 * (jnp.vdot(z, row) - 1.0) ** 2


def access(z, x, key, step=0, **options):
    """One access of the data, as a kernel would do it."""
    settings = {"clipping": Flat(1.0), "subsampling": FullBatch()} | options
    return Mechanism(**settings).noisy_sum(likelihood, z, x, None, key=key, noise_multiplier=1.0, step=step).total


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
    "a part of the rows": (lambda z, x, key: x[1:3], "returned"),
    "noise of its own": (noise_of_its_own, "rows"),
    "the loss beside the gradient": (loss_beside_the_gradient, "rows"),
    "a gradient's residuals": (residuals, "rows"),
    "a function with its own derivative": (custom_derivative, "rows"),
    "rematerialised": (lambda z, x, key: jax.grad(jax.checkpoint(lambda z: jnp.sum(jnp.sin(z * x[0]))))(z), "rows"),
    "a sum over shards": (sharded_sum, "rows"),
    "a sum over devices": (pmapped_sum, "rows"),
    "a key made of rows": (lambda z, x, key: jax.random.normal(jax.random.fold_in(key, x[0, 0].astype(int))), "rows"),
}


@pytest.mark.parametrize(("function", "kind"), LEAKS.values(), ids=LEAKS)
def test_a_leak_is_refused(function, kind):
    found, message = kinds(function)
    assert found == {kind}
    assert kind == "python" or re.search(r"Path: x -> .*test_information_flow\.py:\d+|Path: x\.", message)


# What a likelihood may not do with other rows


def odd(primitive, jvp=True):
    """A primitive that JAX does not know, the identity on paper."""
    primitive = Primitive(primitive)
    primitive.def_abstract_eval(lambda x: x)
    batching.primitive_batchers[primitive] = lambda arguments, axes: (primitive.bind(*arguments), axes[0])
    ad.deflinear2(primitive, lambda ct, x: [primitive.bind(ct)])
    return primitive


ODD = odd("odd")


def in_shards(z, x, key, exchange):
    door = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
    noisy = lambda part, key: (  # noqa: E731
        door.noisy_sum(
            lambda z, row, _: jnp.vdot(z, exchange(row)), z, part, None, key=key[0], noise_multiplier=1.0
        ).total
    )
    specs = {"in_specs": (PartitionSpec("i"), PartitionSpec("i")), "out_specs": PartitionSpec("i"), "check_vma": False}
    return in_pieces(lambda part, key: noisy(part, key)[None], **specs)(x, jax.random.split(key, 2))


EXCHANGES = {
    "psum": lambda row: lax.psum(row, "i"),
    "pmean": lambda row: lax.pmean(row, "i"),
    "pmax": lambda row: lax.pmax(lax.stop_gradient(row), "i"),
    "all_gather": lambda row: jnp.sum(lax.all_gather(row, "i"), 0),
    "ppermute": lambda row: lax.ppermute(row, "i", [(0, 1), (1, 0)]),
    "psum_scatter": lambda row: jnp.pad(lax.psum_scatter(row[:2], "i", tiled=True), (0, 2)),
    "all_to_all": lambda row: jnp.append(lax.all_to_all(row[:2], "i", 0, 0, tiled=True), 0.0),
}


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
def test_devices_exchange_no_rows_inside_the_door(exchange):
    check(functools.partial(in_shards, exchange=lambda row: row))
    found, message = kinds(functools.partial(in_shards, exchange=exchange))
    assert "door" in found and re.search("exchange rows|is not known here", message)


def of_all_rows(rule):
    """A likelihood that hands the rows, all at once, to a rule of its own."""

    @jax.custom_batching.custom_vmap
    def function(row):
        return row

    function.def_vmap(lambda size, batched, rows: (rule(rows), True))
    return lambda z, row, public: jnp.vdot(z, function(row))


RULES = {
    "reduced": lambda x: x + lax.reduce(x, np.float32(0.0), lambda a, b: a + 2 * b, (0,))[None],
    "added up": lambda x: x + jnp.sum(x, 0)[None],
    "scaled by the largest": lambda x: x / jnp.max(x),
    "turned around": lambda x: x[::-1],
    "rolled": lambda x: jnp.roll(x, 1, 0),
    "sorted": lambda x: jnp.sort(x, 0),
    "an eigenvalue": lambda x: x + jnp.linalg.eigh(x[:3].T @ x[:3])[0],
    "a linear solve": lambda x: x + jnp.linalg.solve(x.T @ x + jnp.eye(3), x.T)[:, :1].T,
    "the first, looked up": lambda x: x[jnp.zeros(len(x), int)],
    "computed and looked up": lambda x: jnp.tanh(x)[jnp.zeros(len(x), int)],
    "shuffled": lambda x: x[jax.random.permutation(jax.random.key(0), len(x))],
    "stacked": lambda x: jnp.stack([x[0]] * len(x)),
    "the first, copied": lambda x: jnp.broadcast_to(x[:1], x.shape),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_of_batching_does_not_mix_rows(rule):
    door = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
    once = lambda rule: (  # noqa: E731
        lambda z, x, key: door.noisy_sum(of_all_rows(rule), z, x, None, key=key, noise_multiplier=1.0).total
    )
    assert check(once(jnp.tanh)).doors == 1
    assert "door" in kinds(once(rule))[0]


def test_a_linear_solve_does_nothing_else():
    def likelihood(z, row, public):
        def solve(_, b):
            return jax.pure_callback(lambda b: b, jax.ShapeDtypeStruct((3,), np.float32), b, vmap_method="expand_dims")

        return jnp.vdot(z, lax.custom_linear_solve(lambda v: 9.0 * v, row, solve, symmetric=True))

    door = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
    assert (
        "effect"
        in kinds(lambda z, x, key: door.noisy_sum(likelihood, z, x, None, key=key, noise_multiplier=1.0).total)[0]
    )


def test_a_primitive_without_a_rule_is_refused_inside_the_door():
    door = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
    likelihood = lambda z, row, _: jnp.vdot(z, ODD.bind(row))  # noqa: E731
    found, message = kinds(
        lambda z, x, key: door.noisy_sum(likelihood, z, x, None, key=key, noise_multiplier=1.0).total
    )
    assert "unknown" in found and "odd is not known here" in message


def test_what_may_hold_arrays_of_its_own_is_refused():
    exported = jax.export.export(jax.jit(lambda z: z + jnp.asarray(X[0])))(Z)
    for function in (exported.call, ODD.bind):
        found, message = kinds(lambda z, x, key, function=function: function(z) + access(z, x, key))
        assert found == {"unknown"} and "may hold private values" in message
        assert check(lambda z, x, key, function=function: function(z) + access(z, x, key), public_constants=True).doors


# What is done, not returned


@pytest.mark.parametrize(
    "function",
    [
        lambda z, x, key: jax.debug.callback(lambda row: None, x[0]),
        lambda z, x, key: jax.debug.print("{}", x[0, 0]),
        lambda z, x, key: (io_callback(lambda row: None, None, x[0]), z)[1],
        lambda z, x, key: (jax.pure_callback(lambda row: row, jax.ShapeDtypeStruct((3,), np.float32), x[0]), z)[1],
        lambda z, x, key: (jax.ffi.ffi_call("log", jax.ShapeDtypeStruct((3,), np.float32))(x[0]), z)[1],
        lambda z, x, key: lax.cond(x[0, 0] > 0, lambda: jax.debug.print("positive"), lambda: None),
        lambda z, x, key: lax.while_loop(lambda i: i < x[0, 0], lambda i: (jax.debug.print("turn"), i + 1)[1], 0.0),
        lambda z, x, key: jax.jit(jax.vmap(lambda row: jax.debug.print("{}", row)))(x),
        lambda z, x, key: jax.debug.print("{}", jax.random.key_data(key)),
    ],
    ids=["effect", "print", "io", "pure", "foreign", "in a branch", "in a loop", "of rows", "of a key"],
)
def test_an_effect_is_refused(function):
    assert "effect" in kinds(lambda z, x, key: (function(z, x, key), z)[1])[0]


def test_a_callback_on_what_is_public_is_accepted():
    def function(z, x, key):
        noisy = access(z, x, key)
        jax.debug.print("{}", noisy)
        return noisy

    assert check(function).doors == 1


# Keys


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
    from dpppl import random

    again = random.standard_normal(jax.random.fold_in(random.stream(key, "noise"), 0), 3)
    return access(z, x, key) - again.astype(np.float32)


REUSED = {
    "two accesses": lambda z, x, key: access(access(z, x, key), x, key),
    "two accesses of one step": lambda z, x, key: access(access(z, x, key, 3), x, key, 1 + 2),
    "two accesses of unknown steps": lambda z, x, key: access(access(z, x, key, z[0].astype(int)), x, key, 1),
    "an access and a draw": lambda z, x, key: access(z, x, key) + jax.random.normal(key),
    "the noise again": undo,
    "two draws": lambda z, x, key: jax.random.normal(key) + jax.random.uniform(key),
    "two draws of raw keys": lambda z, x, key: jax.random.normal(jax.random.key_data(key)) + jax.random.normal(key),
    "a loop": loop_with(lambda i: 0),
    "a loop that repeats steps": loop_with(lambda i: i // 2),
    "steps that overlap": lambda z, x, key: access(loop_with(lambda i: i)(z, x, key), x, key, 4),
    "loops that overlap": lambda z, x, key: loop_with(lambda i: i + 4)(loop_with(lambda i: i)(z, x, key), x, key),
    "two steps a turn": lambda z, x, key: lax.fori_loop(
        0, 5, lambda i, z: access(access(z, x, key, i), x, key, i + 1), z
    ),
    "a while loop": in_while(lambda i: i + 0),
    "a step that stands still": in_while(lambda i: i * 2),
    "a key carried on": key_in_carry(lambda key: (key, key)),
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
        lambda part: access(z, part, key)[None], in_specs=PartitionSpec("i"), out_specs=PartitionSpec("i"), check_vma=False
    )(x),
}  # fmt: skip


@pytest.mark.parametrize("function", REUSED.values(), ids=REUSED)
def test_a_key_used_twice_is_refused(function):
    assert kinds(function)[0] == {"key reuse"}


USED_ONCE = {
    "steps": lambda z, x, key: access(access(z, x, key, 0), x, key, 1),
    "later steps": lambda z, x, key: access(access(z, x, key, z[0].astype(int)), x, key, z[0].astype(int) + 1),
    "children": lambda z, x, key: access(access(z, x, jax.random.split(key)[0]), x, jax.random.split(key)[1]),
    "unpacked children": lambda z, x, key: (lambda a, b: access(access(z, x, a), x, b))(*jax.random.split(key)),
    "raw children": lambda z, x, key: (
        lambda a, b: access(access(z, x, jax.random.wrap_key_data(a)), x, jax.random.wrap_key_data(b))
    )(*jax.random.split(jax.random.key_data(key))),
    "branches": lambda z, x, key: lax.cond(z[0] > 0, lambda: access(z, x, key), lambda: access(-z, x, key)),
    "a loop": loop_with(lambda i: i),
    "a loop and a later step": lambda z, x, key: access(loop_with(lambda i: i)(z, x, key), x, key, 5),
    "two loops": lambda z, x, key: loop_with(lambda i: 5 + i)(loop_with(lambda i: i)(z, x, key), x, key),
    "two loops of one counter": lambda z, x, key: jax.jit(counted)(jax.jit(counted)((z, z[0].astype(int)), x, key), x, key),
    "one turn": loop_with(lambda i: 0, num_turns=1),
    "two steps a turn": lambda z, x, key: in_while(lambda i: i + 2)(z, x, jax.random.fold_in(key, 1)),
    "a while loop": in_while(lambda i: i + 1),
    "a scan over steps": lambda z, x, key: lax.scan(lambda z, i: (access(z, x, key, i), None), z, jnp.arange(4))[0],
    "a scan over keys": lambda z, x, key: lax.scan(
        lambda z, key: (access(z, x, key), None), z, jax.random.split(key, 4)
    )[0],
    "loops in loops": lambda z, x, key: lax.fori_loop(
        0, 3, lambda i, c: lax.fori_loop(0, 4, lambda _, c: (access(c[0], x, key, c[1]), c[1] + 1), c), (z, 0)
    )[0],
    "a key in the carry": key_in_carry(jax.random.split),
    "chains": lambda z, x, key: jax.vmap(lambda key: access(z, x, key))(jax.random.split(key, 3)),
    "what varies over shards": lambda z, x, key: in_pieces(
        lambda z, key: (z * jax.random.normal(key[0]))[None],
        in_specs=(PartitionSpec(), PartitionSpec("i")), out_specs=PartitionSpec("i"),
    )(z, jax.random.split(key, 2)),
    "devices": lambda z, x, key: jax.pmap(lambda key: access(z, x, key))(jax.random.split(key, 2)),
    "shards": lambda z, x, key: in_pieces(
        lambda part, key: access(z, part, key[0])[None], in_specs=PartitionSpec("i"), out_specs=PartitionSpec("i"),
        check_vma=False,
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


def test_raw_keys_are_declared_and_outputs_that_are_kept_may_hold_them():
    raw = np.array([1, 2], np.uint32)

    def function(z, x, key):
        return {"z": access(z, x, jax.random.wrap_key_data(key)), "rng_key": key}

    assert kinds(function, Z, X, raw, keys="key")[0] == {"key"}
    assert check(function, Z, X, raw, keys="key", secret_outputs=("['rng_key']",)).keys == 1
    assert kinds(lambda z, x, key: {"rng_key": x}, secret_outputs=("['rng_key']",))[0] == {"returned"}


def test_a_door_without_a_secret_key_is_refused():
    found, message = kinds(lambda z, x, key: access(z, x, jax.random.key(0)))
    assert found == {"noise"} and "without noise" in message
    assert kinds(lambda z, x, key: access(z, x, key), Z, X, np.zeros(2, np.uint32))[0] == {"noise"}


@pytest.mark.parametrize(
    "function",
    [
        lambda z, x, key: jax.vmap(lambda z: access(z, x, key))(jnp.stack([z, z + 1])),
        lambda z, x, key: jax.vmap(lambda key: access(z, x, key))(jnp.stack([key, key])),
        lambda z, x, key: access(z, x, jnp.where(z[0] > 0, key, jax.random.fold_in(key, 1))),
    ],
    ids=["one key for all chains", "a key twice", "a key that cannot be followed"],
)
def test_chains_that_share_noise_are_refused(function):
    assert "noise" in kinds(function)[0]


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

    def door(likelihood, z, x, key):
        return (
            Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
            .noisy_sum(likelihood, z, x, None, key=key, noise_multiplier=1.0)
            .total
        )

    found, message = kinds(lambda z, x, key: door(lambda z, row, _: jnp.sum(z @ captured.T) * row[0], z, x, key))
    assert found == {"constant"} and "declare it in public_constants" in message
    for total in (jnp.asarray(X.sum(0)), X.sum(0), jnp.asarray(X.sum()) * jnp.ones(3), jnp.asarray(X.sum())):
        likelihood = lambda z, row, _, total=total: jnp.sum(z * total) * row[0]  # noqa: E731
        inside = functools.partial(door, likelihood)
        assert kinds(inside)[0] == {"constant"}
        assert check(inside, public_constants=[total]).constants
    assert kinds(lambda z, x, key: door(lambda z, row, _: jnp.sum(z @ x.T) * row[0], z, x, key))[0] >= {"constant"}


# What the door is given


@pytest.mark.parametrize(
    "function",
    [
        lambda z, x, key: access(z, x - jnp.mean(x, 0), key),
        lambda z, x, key: access(jnp.mean(x, 0), x, key),
        lambda z, x, key: access(z, x[jnp.argsort(x[:, 0])], key),
        lambda z, x, key: access(z, jnp.concatenate([x, x]), key),
        lambda z, x, key: access(z, x.reshape(3, 6)[:, :3], key),
        lambda z, x, key: access(z[0], x[2], key),
        lambda z, x, key: lax.scan(lambda z, row: (access(z, row, key), None), z[0], x)[0],
        lambda z, x, key: (
            Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
            .noisy_sum(likelihood, z, x, None, key=key, noise_multiplier=1.0 + jnp.abs(x[0, 0]))
            .total
        ),
    ],
    ids=[
        "centred rows",
        "latents from rows",
        "sorted rows",
        "rows twice",
        "rows merged",
        "a row",
        "row by row",
        "noise by the rows",
    ],
)
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
    door = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
    assert (
        "door" in kinds(lambda z, x, key: door.noisy_sum(likelihood, z, x, x, key=key, noise_multiplier=1.0).total)[0]
    )


def test_rows_may_be_chosen_and_converted_before_the_door():
    assert check(lambda z, x, key: access(z, x[1:4].astype(np.float16), key)).doors == 1
    part = lambda x, i: lax.dynamic_slice_in_dim(x, 2 * i, 2)  # noqa: E731
    assert check(lambda z, x, key: lax.fori_loop(0, 3, lambda i, z: access(z, part(x, i), key, i), z)).doors == 1


def paired(z, rows, key):
    """One access of private rows that stand in a dictionary."""
    door = Mechanism(clipping=Flat(1.0), subsampling=Poisson(0.5))
    return door.noisy_sum(
        lambda z, row, _: jnp.sum(z * sum(row.values())), z, rows, None, key=key, noise_multiplier=1.0
    ).total


def row(x, i):
    return lax.dynamic_slice_in_dim(x, i, 1)


OTHERS = {
    "overlapping windows": lambda z, x, key: paired(z, {"a": x[:-1], "b": x[1:]}, key),
    "many windows": lambda z, x, key: paired(z, {str(k): x[k : k + 3] for k in range(4)}, key),
    "windows of two arrays": lambda z, x, key, y: paired(z, {"a": x[:-1], "b": y[1:]}, key),
    "windows that never meet": lambda z, x, key: Mechanism(clipping=Flat(1.0), subsampling=FullBatch()).noisy_sum(
        lambda z, row, public: jnp.sum(z * row), z, x[:3], x[3:], key=key, noise_multiplier=1.0
    ).total,
    "moving windows": lambda z, x, key: paired(
        z, {"a": lax.dynamic_slice_in_dim(x, z[0].astype(int), 2), "b": lax.dynamic_slice_in_dim(x, 0, 2)}, key
    ),
    "windows of windows": lambda z, x, key: paired(z, {"a": x[1:][:3], "b": x[:-1][:3]}, key),
    "every second row and every third": lambda z, x, key: paired(z, {"a": x[:4:2], "b": x[::3]}, key),
    "a window of the last turn": lambda z, x, key: lax.fori_loop(
        0, 3, lambda i, c: (paired(c[0], {"a": c[1], "b": row(x, i)}, jax.random.fold_in(key, i)), row(x, i)), (z, x[:1])
    )[0],
    "a shard and a window": lambda z, x, key: in_pieces(
        lambda part, x, key: paired(z, {"a": part, "b": x[:3]}, key[0])[None],
        in_specs=(PartitionSpec("i"), PartitionSpec(), PartitionSpec("i")), out_specs=PartitionSpec("i"), check_vma=False,
    )(x, x, jax.random.split(key, 2)),
    "rows copied by devices": lambda z, x, key: access(
        z, in_pieces(lambda x: x, in_specs=PartitionSpec(), out_specs=PartitionSpec("i"), check_vma=False)(x), key
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_different_parts_of_the_rows_do_not_enter_one_door(name):
    options = {"private": (1, 3)} if name == "windows of two arrays" else {}
    found, message = kinds(OTHERS[name], Z, X, jax.random.key(0), *([X] if options else []), **options)
    assert "door" in found and ("one row would stand in two places" in message or "copied" in name or "last" in name)


@pytest.mark.parametrize(
    "choose",
    [
        lambda x: x[1:4],
        lambda x: x[::2],
        lambda x: x[1:][:, :2][:2],
        lambda x: lax.dynamic_slice_in_dim(x, 2, 3),
        lambda x: x,
    ],
)
def test_the_same_part_of_several_arrays_enters(choose):
    def function(z, x, y, key):
        z = z[: choose(x).shape[1]]
        return paired(z, {"a": choose(x), "b": choose(y), "c": choose(x).astype(np.float16)}, key)

    assert check(function, Z, X, X, jax.random.key(0), private=(1, 2)).doors == 1


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


# Bugs of the door itself


def bug(name, where, old, new, kind, **options):
    return pytest.param(Mutation(name, where, old, new, ""), kind, options, id=name)


CLIP, SUM, RANDOM = "dpppl.clipping:clip_rows", "dpppl.gradients:clipped_sum", "dpppl.random:standard_normal"
NOISY = "(part + scale * piece.reshape(leaf.shape)) * norm"
TOTAL = "total = clipped_sum(lambda z, row: log_likelihood(z, row, public), z, drawn, mask, clip, self.strategy, steps)"
NOISE_KEY = 'jax.random.fold_in(random.stream(key, "noise"), step)'
BUGS = [
    bug("noise dropped", PROGRAM, NOISY, "part * norm", "noise"),
    bug("noise times zero", PROGRAM, NOISY, "(part + 0.0 * scale * piece.reshape(leaf.shape)) * norm", "noise"),
    bug("noise from a public key", PROGRAM, NOISE_KEY, "jax.random.key(7)", "noise"),
    bug("noise of the subsampling", PROGRAM, NOISE_KEY, 'jax.random.fold_in(random.stream(key, "subsampling"), step)',
        "key reuse"),
    bug("the same noise at every step", PROGRAM, NOISE_KEY, 'random.stream(key, "noise")', "key reuse", loop=True),
    bug("one stream for all", "dpppl.random:stream", "np.uint32(zlib.crc32(name.encode()))", "np.uint32(0)", "key reuse"),
    bug("the same rows at every step", "dpppl.subsampling.poisson:Poisson.draw", "jax.random.fold_in(key, step)", "key",
        "key reuse", loop=True),
    bug("one number for all noise", RANDOM, "return np.sqrt(2.0) * lax.erf_inv(centred)",
        "return jnp.broadcast_to(np.sqrt(2.0) * lax.erf_inv(centred[:1]), centred.shape)", "noise"),
    bug("one noise for all sites", PROGRAM, "pieces = jnp.split(noise, np.cumsum(sizes)[:-1])",
        "pieces = [noise[:size] for size in sizes]", "noise"),
    bug("noise that overlaps", RANDOM, "words = jax.random.bits(key, (2, size), jnp.uint32)",
        "words = jax.random.bits(key, (size + 1,), jnp.uint32); words = (words[1:], words[:-1])", "noise"),
    bug("noise subtracted again", PROGRAM, ").astype(leaf.dtype)", " - scale * piece.reshape(leaf.shape)).astype(leaf.dtype)",
        "door"),
    bug("noise less itself", RANDOM, "return np.sqrt(2.0) * lax.erf_inv(centred)",
        "normal = lax.erf_inv(centred); return normal - 1.0 * normal", "noise"),
    bug("the same row many times", PROGRAM, TOTAL,
        "drawn = jax.tree.map(lambda x: x[jnp.zeros(len(x), int)], drawn); " + TOTAL, "door"),
    bug("noise times the sum", PROGRAM, NOISY, "(part * scale * piece.reshape(leaf.shape)) * norm", "door"),
    bug("a sum without noise beside it", PROGRAM, NOISY,
        "(part + (scale * piece if leaf.ndim else 0.0 * scale)).reshape(leaf.shape) * norm", "noise"),
    bug("noise scaled by rows", PROGRAM, "self._scales(noise_multiplier.astype(jnp.float64),",
        "self._scales(noise_multiplier.astype(jnp.float64) * jnp.max(jax.tree.leaves(rows)[0]),", "door"),
    bug("the norm from rows", CLIP, "scaled = jax.tree.map(lambda g: g.astype(dtype) * np.asarray(1.0 / clipping_norm, dtype),"
        " gradients)", "scaled = jax.tree.map(lambda g: g.astype(dtype) / jnp.max(jnp.abs(g)), gradients)", "door"),
    bug("not clipped", CLIP, "leaf * factors.reshape(shape)", "leaf", "door"),
    bug("clipped by value", CLIP, "leaf * factors.reshape(shape)", "jnp.clip(leaf, -1.0, 1.0)", "door"),
    bug("clipped by another norm", CLIP, "norm = jnp.sqrt(squared)", "norm = jnp.sqrt(jnp.mean(squared))", "door"),
    bug("clipped by half the norm", CLIP, "squared = sum(_squared_norm(leaf) for leaf in jax.tree.leaves(scaled))",
        "squared = _squared_norm(jax.tree.leaves(scaled)[0])", "door"),
    bug("multiplied by the norm", CLIP, "1.0 / norm", "norm", "door"),
    bug("rows that are not finite pass", CLIP, "squared <= np.finfo(dtype).max", "squared == squared", "door"),
    bug("rows that are infinite pass", CLIP, "squared <= np.finfo(dtype).max", "squared <= np.inf", "door"),
    bug("clipped after the sum", SUM, "clip(gradients, mask)",
        "clip(jax.tree.map(lambda g: jnp.sum(g, 0, keepdims=True), gradients), None)", "door"),
    bug("gradients centred", SUM, "gradients = gradient(z, rows)",
        "gradients = jax.tree.map(lambda g: g - jnp.mean(g, 0), gradient(z, rows))", "door"),
    bug("gradients sorted", SUM, "gradients = gradient(z, rows)",
        "gradients = jax.tree.map(lambda g: jnp.sort(g, 0), gradient(z, rows))", "door"),
    bug("gradients of pairs", SUM, "gradients = gradient(z, rows)",
        "gradients = jax.tree.map(lambda g: g + g[::-1], gradient(z, rows))", "door"),
    bug("gradients of neighbours", SUM, "gradients = gradient(z, rows)",
        "gradients = jax.tree.map(lambda g: g + jnp.concatenate([g[1:], g[:1]]), gradient(z, rows))", "door"),
    bug("gradients of windows", SUM, "gradients = gradient(z, rows)",
        "gradients = jax.tree.map(lambda g: lax.reduce_window(g, 0.0, lax.add, (2,) + (1,) * (g.ndim - 1), (1,) * g.ndim,"
        " 'SAME'), gradient(z, rows))", "door"),
    bug("the largest row", "dpppl.gradients:_sum_rows", "return jnp.sum(steps, axis=0, dtype=jnp.int32)",
        "return jnp.max(steps, axis=0)", "door"),
    bug("the sum squared", PROGRAM, NOISY, "(part**2 + scale * piece.reshape(leaf.shape)) * norm", "door"),
    bug("divided by the rows drawn", PROGRAM, NOISY, "(part / jnp.sum(mask) + scale * piece.reshape(leaf.shape)) * norm",
        "door"),
    bug("divided by the rows counted", PROGRAM, NOISY,
        "(part / jnp.sum(jax.tree.leaves(rows)[0] != 0) + scale * piece.reshape(leaf.shape)) * norm", "door"),
    bug("a callback", PROGRAM, TOTAL, TOTAL + '; jax.debug.print("{}", jax.tree.leaves(total)[0])', "effect"),
    bug("rows beside the sum", PROGRAM, "return jax.tree.unflatten(tree, noisy)",
        "return jax.tree.unflatten(tree, [noisy[0], *(jax.tree.leaves(rows)[0][0, :leaf.size].reshape(leaf.shape)"
        " for leaf in noisy[1:])])", "door"),
    bug("the key beside the sum", PROGRAM, "return jax.tree.unflatten(tree, noisy)",
        "return jax.tree.unflatten(tree, [noisy[0], *(leaf + jax.random.key_data(key)[0] for leaf in noisy[1:])])", "key"),
    bug("noise outside the door", "dpppl.mechanism:Mechanism.noisy_sum", "door_p.bind(*flat, program=closed)",
        "jaxpr_as_fun(closed)(*flat)", "rows"),
    bug("rows after the door", "dpppl.mechanism:Mechanism.noisy_sum", "door_p.bind(*flat, program=closed)",
        "[leaf + 0.0 * jnp.sum(jax.tree.leaves(rows)[0]) for leaf in door_p.bind(*flat, program=closed)]", "rows"),
]  # fmt: skip


def two_sites(z, row, public):
    return -0.5 * (jnp.vdot(z["a"], row) + z["b"] - 1.0) ** 2


def door_of_two_sites(z, x, key, loop=False, **options):
    door = Mechanism(clipping=Flat(1.0), subsampling=options.pop("subsampling", Poisson(0.5)), strategy="vmap")
    once = lambda i, z: door.noisy_sum(two_sites, z, x, None, key=key, noise_multiplier=1.0, step=i).total  # noqa: E731
    return lax.fori_loop(0, 3, once, z) if loop else once(0, z)


@pytest.mark.parametrize(("mutation", "kind", "options"), BUGS)
def test_a_bug_of_the_door_is_refused(mutation, kind, options, monkeypatch):
    arguments = {"a": Z, "b": np.zeros((), np.float32)}, X, jax.random.key(0)
    check(functools.partial(door_of_two_sites, **options), *arguments)
    mutated(mutation, monkeypatch)
    jax.clear_caches()
    assert kind in kinds(functools.partial(door_of_two_sites, **options), *arguments)[0]


# Norms that do not contain what they divide


class Blocks(Flat):
    """Rows of matrices, (B, 3, 3), multiplied by what `factors` makes of them."""

    factors = None

    def clip(self, gradients, mask):
        scaled = gradients * 1.0
        factor, finite = type(self).factors(scaled)
        return jnp.where(finite, scaled * factor, 0.0)


def inverse(square):
    norm = jnp.sqrt(square)
    return jnp.minimum(1.0, 1.0 / norm), square < 1e30


def of_blocks(scaled, axis, where, condition=None):
    factor, finite = inverse(jnp.sum(scaled**2, axis))
    return jnp.expand_dims(factor, where), jnp.expand_dims(finite, where if condition is None else condition)


def by_turns(scaled):
    """A loop finds the norm of each block; the last one is taken for all."""
    squares = lax.scan(
        lambda c, block: (jnp.sum(block**2, 1), None), jnp.zeros(len(scaled)), jnp.moveaxis(scaled, 1, 0)
    )[0]
    factor, finite = inverse(squares)
    return factor[:, None, None], finite[:, None, None]


def trace_of_square(scaled):
    factor, finite = inverse(lax.dot_general(scaled, scaled, (((1, 2), (2, 1)), ((0,), (0,)))))
    return factor[:, None, None], finite[:, None, None]


def of_two_loops(scaled):
    """The norm of one array, the outcome of a loop, for another."""
    first, second = (lax.fori_loop(0, 2, lambda i, g, c=c: g * c, scaled) for c in (0.0, 1.0))
    factor, finite = inverse(jnp.sum(first**2, (1, 2)))
    return factor[:, None, None] * (second / scaled), finite[:, None, None]


FACTORS = {
    "whole rows": (lambda g: of_blocks(g, (1, 2), (1, 2)), True),
    "each line of a matrix": (lambda g: of_blocks(g, 2, 2), True),
    "each column": (lambda g: of_blocks(g, 1, 1), True),
    "norms of lines for columns": (lambda g: of_blocks(g, 2, 1), False),
    "norms of columns for lines": (lambda g: of_blocks(g, 1, 2), False),
    "lines, kept where columns are finite": (lambda g: of_blocks(g, 2, 2, 1), False),
    "transposed norms": (lambda g: tuple(jnp.swapaxes(v, 1, 2) for v in of_blocks(g, 2, 2)), False),
    "norms of the transposed": (lambda g: of_blocks(jnp.swapaxes(g, 1, 2), 2, 2), False),
    "norms of the transposed, aligned": (lambda g: of_blocks(jnp.swapaxes(g, 1, 2), 2, 1), True),
    "norms of the reshaped": (lambda g: of_blocks(g.reshape(-1, 9), 1, (1, 2)), True),
    "norms of single turns": (by_turns, False),
    "the trace of the square": (trace_of_square, False),
    "norms of another loop": (of_two_loops, False),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORS)
def test_a_norm_contains_what_it_divides(name, monkeypatch):
    factors, accepted = FACTORS[name]
    monkeypatch.setattr(Blocks, "factors", factors)
    door = Mechanism(clipping=Blocks(1.0), subsampling=FullBatch())
    likelihood = lambda z, row, _: row @ z @ row  # noqa: E731
    once = lambda z, x, key: door.noisy_sum(likelihood, z, x, None, key=key, noise_multiplier=1.0).total  # noqa: E731
    chains = lambda z, x, key: jax.vmap(once, (0, None, 0))(jnp.stack([z] * 3), x, jax.random.split(key, 3))  # noqa: E731
    for function in (once, chains):
        if accepted:
            assert check(function, np.eye(3, dtype=np.float32), X, jax.random.key(0)).doors == 1
        else:
            assert "door" in kinds(function, np.eye(3, dtype=np.float32), X, jax.random.key(0))[0]


# The rules inside the door, against numbers


def several(z, row):
    """A little of everything: rows in batch, feature, window and matrix axes."""
    image = jnp.outer(row, row)[None, :, :, None]
    kernel = jnp.outer(z, z)[:, :, None, None]
    numbers = ("NHWC", "HWIO", "NHWC")
    convolved = lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=numbers)
    return jnp.sum(jnp.tanh(convolved)) + jnp.sum(
        lax.reduce_window(image, -jnp.inf, lax.max, (1, 2, 2, 1), (1,) * 4, "SAME")
    )


LIKELIHOODS = {
    "matrix product": lambda z, row: jnp.sum(jnp.outer(z, row) @ row),
    "convolution and window": several,
    "convolution of parameters": lambda z, row: jnp.sum(jnp.convolve(z, row) ** 2),
    "Fourier transform": lambda z, row: jnp.sum(jnp.abs(jnp.fft.fft(z * row))),
    "Cholesky": lambda z, row: jnp.sum(jnp.linalg.cholesky(jnp.outer(row, row) + jnp.eye(3) * (1 + jnp.sum(z**2)))),
    "linear solve": lambda z, row: jnp.sum(jnp.linalg.solve(jnp.outer(row, z) + jnp.eye(3) * 9, z)),
    "triangular solve": lambda z, row: jnp.sum(jax.scipy.linalg.solve_triangular(jnp.diag(1 + z**2), row)),
    "eigenvalues": lambda z, row: jnp.sum(jnp.linalg.eigvalsh(jnp.outer(row, row) + jnp.diag(z))),
    "tridiagonal solve": lambda z, row: jnp.sum(lax.linalg.tridiagonal_solve(row, 9 + z**2, row, (z * row)[:, None])),
    "reduction of its own": lambda z, row: jnp.sum(z) * lax.reduce(row, 0.0, lambda a, b: a + 2 * b, (0,)),
    "largest, nearly": lambda z, row: jnp.sum(lax.approx_max_k(z * row, 2)[0]),
    "sort": lambda z, row: jnp.vdot(jnp.sort(z * row), jnp.arange(3.0)),
    "cumulative sum": lambda z, row: jnp.sum(jnp.cumsum(z * row)[::-1] ** 2),
    "largest": lambda z, row: jnp.sum(lax.top_k(z * row, 2)[0]) + jnp.max(z * row),
    "look-up": lambda z, row: z[row[0].astype(int)] ** 2,
    "look-up in the row": lambda z, row: jnp.take_along_axis(z * row, jnp.argsort(row), 0)[0],
    "interpolation": lambda z, row: jnp.interp(row[0], jnp.linspace(-2.0, 2.0, 3), z),
    "search": lambda z, row: z[jnp.searchsorted(jnp.arange(2.0), row[0])],
    "scatter": lambda z, row: jnp.sum(jnp.zeros(5).at[row[0].astype(int)].add(z[0] * row[1]) ** 2),
    "scatter into the row": lambda z, row: jnp.sum((z * row).at[1].set(z[0]) ** 2),
    "moving slice": lambda z, row: lax.dynamic_slice(z * row, [row[0].astype(int)], [1])[0],
    "moving update": lambda z, row: jnp.sum(lax.dynamic_update_slice(z * row, 2 * z[:1], [row[0].astype(int)]) ** 2),
    "branch": lambda z, row: lax.cond(row[0] > 0, lambda: jnp.sum(z * row), lambda: jnp.sum(z)),
    "while loop": lambda z, row: lax.stop_gradient(lax.while_loop(lambda c: c < row[0], lambda c: c + 1, 0.0)) * z[0],
    "scan": lambda z, row: lax.scan(lambda c, t: (jnp.tanh(c * t + z[0]), None), 0.0, row)[0],
    "pad and join": lambda z, row: jnp.sum(jnp.concatenate([jnp.pad(z * row, 2), row]) ** 3),
    "mean over groups": lambda z, row: jnp.sum(jax.ops.segment_sum(z * row, jnp.array([0, 0, 1]), 2) ** 2),
    "special functions": lambda z, row: jnp.sum(jax.scipy.special.gammaln(1 + z**2 * row**2)) + jax.nn.logsumexp(z * row),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "chains"), [*((name, True) for name in LIKELIHOODS), ("convolution and window", False), ("scatter", False)]
)
def test_only_a_rows_own_part_of_an_array_moves_with_it(name, chains):
    """Every number that a per-row gradient computes, on two data sets that differ in one row, lies where the rules say."""
    row, changed = 2, X.copy()
    changed[row] = X[row] * 3.0 + 1.0
    gradients = jax.vmap(jax.grad(LIKELIHOODS[name]), (None, 0))
    z = np.linspace(0.5, 1.5, 3).astype(np.float32)
    if chains:
        gradients, z = jax.vmap(gradients, (0, None)), np.stack([z, z + 1])
    closed = jax.make_jaxpr(gradients)(z, X)
    outputs = [v for e in closed.jaxpr.eqns for v in e.outvars if not isinstance(v, DropVar)]
    debug_info = closed.jaxpr.debug_info._replace(result_paths=("",) * len(outputs))
    closed = closed.replace(jaxpr=closed.jaxpr.replace(outvars=outputs, debug_info=debug_info))
    walk = Walk({}, Inside, lambda value, door: None)
    walk.door = Inside()
    rows = Rows((Axis(0, 1, len(X)),), "rows", ident=1)
    results = walk.program(closed, [Value(ident=walk.ident("z")), Value(form=rows, ident=walk.ident("x"))])
    assert not walk.findings
    seen = 0
    for value, before, after in zip(results, *(jaxpr_as_fun(closed)(z, data) for data in (X, changed))):
        before, after = np.asarray(before), np.asarray(after)
        moved = ~((before == after) | ((before != before) & (after != after)))
        if value.form is None:
            assert not moved.any()
            continue
        assert isinstance(value.form, Rows)
        inside = np.ones(before.shape, bool)
        for axis, inner, count in value.form.axes:
            shape = [-1 if k == axis else 1 for k in range(before.ndim)]
            inside &= ((np.arange(before.shape[axis]) // inner) % count == row).reshape(shape)
        assert not moved[~inside].any()
        seen += moved.any()
    assert seen


# What is said


def test_the_report_counts_and_says_what_it_does_not_prove():
    report = check(lambda z, x, key: access(z, x, key))
    assert (report.doors, report.outputs, report.private, report.keys) == (1, 1, 1, 1) and report.equations > 20
    assert "1 private array(s) through 1 door(s) only" in str(report) and "Not proved: the clipping norm" in str(report)
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
    with pytest.raises(dpppl.ConfigurationError, match="no array argument 'batches'"):
        check(function, *arguments, scale=2.0, private="batches")


def test_a_traced_function_is_taken_as_it_is():
    traced = jax.jit(lambda z, x, key: access(z, x, key)).trace(Z, X, jax.random.key(0))
    assert information_flow.verify(traced, private=1).doors == 1
    traced = jax.jit(lambda z, x, key: x.sum()).trace(Z, X, jax.random.key(0))
    with pytest.raises(PrivacyLeakError, match="argument 1"):
        information_flow.verify(traced, private=1)


@pytest.mark.parametrize(
    "function",
    [
        lambda z, x, key: (jnp.sum(x), z)[1],
        lambda z, x, key: z / x.shape[0] + jnp.zeros_like(x)[0],
        lambda z, x, key: lax.cond(z[0] > 0, lambda: z, lambda: -z),
        lambda z, x, key: jax.grad(lambda z: jnp.sum(jnp.tanh(z) ** 2))(access(z, x, key)),
        lambda z, x, key: jnp.sort(access(z, x, key) + jax.random.normal(jax.random.fold_in(key, 1))),
    ],
    ids=["computed and dropped", "shapes", "a public branch", "after the door", "more randomness"],
)
def test_what_tells_nothing_of_rows_is_accepted(function):
    assert check(function).outputs == 1
