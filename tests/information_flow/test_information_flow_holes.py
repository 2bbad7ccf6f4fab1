"""Programs that an earlier proof accepted although they leak, each of them refused for its reason."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import random_fold_in_p
from jax.extend.random import define_prng_impl
from test_information_flow import X, Z, access, check, kinds, with_likelihood

from dpppl import information_flow
from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.errors import PrivacyLeakError
from dpppl.subsampling import FullBatch

fold = jax.random.fold_in


def while_condition(effect):
    """An effect in a loop's condition, which runs as often as a row says."""

    def function(z, x, key):
        lax.while_loop(lambda i: (effect(), i < x[0, 0] * 1000)[1], lambda i: i + 1, 0.0)
        return z

    return function


def counted_turns(z, x, key):
    """A mutable counter in a loop's condition."""
    counter = jax.new_ref(jnp.zeros((), jnp.int32))

    def condition(i):
        counter[...] += 1
        return i < x[0, 0] * 1000

    lax.while_loop(condition, lambda i: i + 1, 0.0)
    return counter[...]


def branches_in_turns(z, x, key):
    """Branches exclude each other within one turn only: the second turn subtracts the first one's noise."""
    branch = lambda i: lax.cond(i % 2 == 0, lambda: access(0 * z, x, key, i + 1), lambda: access(z, x, key, i))  # noqa: E731
    return lax.map(branch, jnp.arange(2))


def shifted_keys(z, x, key):
    """The second access of a turn has the key and step of the first one of the next turn."""
    pair = lambda i: (access(z, x, fold(key, i), i), access(0 * z, x, fold(key, i + 1), i + 1))  # noqa: E731
    return lax.map(pair, jnp.arange(2))


def clamped(z, x, key):
    """Indices 1 and 7 of two keys are one: slices clamp."""
    keys = jax.random.split(key, 2)
    pick = lambda i: lax.dynamic_slice(keys, ((1 + 6 * i).astype(jnp.uint32),), (1,))[0]  # noqa: E731
    return lax.map(lambda i: access(z * i, x, pick(i)), jnp.arange(2))


def carried(start, stride):
    """A step that is carried from turn to turn."""

    def function(z, x, key):
        turn = lambda c, _: ((access(c[0], x, key, c[1]), c[1] + stride), None)  # noqa: E731
        return lax.scan(turn, (z, start), None, length=4)[0][0]

    return function


def over(steps, length=None):
    """A loop over an array of steps."""
    return lambda z, x, key: lax.scan(lambda z, step: (access(z, x, key, step), None), z, steps(), length=length)[0]


def through(convert, turns):
    """A step that is converted."""
    return lambda z, x, key: lax.fori_loop(0, turns, lambda i, z: access(z, x, key, convert(i)), z)


def chained(z, x, key):
    """Keys of one loop are carried on to the next."""
    keys = jax.random.split(key, 4)
    first = lax.scan(lambda z, k: (access(z, x, k), None), z, keys)[0]
    return first, access(0 * z, x, keys[2])


def stale(z, x, key):
    """The step of the turn before."""
    turn = lambda i, c: (access(c[0], x, key, c[1]) + access(0 * z, x, key, i + 1), i)  # noqa: E731
    return lax.fori_loop(0, 3, turn, (z, jnp.int32(0)))[0]


def every_second_device(z, x, key):
    """Devices 0 and 1 share a key, which a loop counts instead."""
    return jax.pmap(lambda z: lax.fori_loop(0, 2, lambda i, z: access(z, x, key, i), z))(jnp.stack([z, -z]))


def gathered(z, x, key):
    """The devices' noise is known from the keys of the others."""
    keys = jax.random.split(key, 2)
    other = jax.pmap(lambda k: access(z, x, k))(keys)
    return other, jax.pmap(lambda i: access(0 * z, x, keys[1 - i]))(jnp.arange(2))


def unbounded(z, x, key):
    """Nothing says that the loop ends before its counter wraps."""
    return lax.while_loop(
        lambda c: jnp.sum(c[0]) < 9.0, lambda c: (access(c[0], x, key, c[1]), c[1] + 1), (z, jnp.uint32(0))
    )[0]


def pick(keys, index):
    return lax.dynamic_slice(keys, (index,), (1,), allow_negative_indices=False)[0]


def indexed(size, index, turns):
    """Elements of a split, at indices that clamp."""

    def function(z, x, key):
        keys = jax.random.split(key, size)
        return lax.fori_loop(0, turns, lambda i, z: access(z, x, pick(keys, index(i))), z)

    return function


def pair(first, second):
    """Two accesses, of steps that are computed from two numbers that nobody knows."""

    def function(z, x, key):
        n, m = (z[:2] * 10).astype(jnp.int32)
        return access(z, x, key, first(n, m)), access(0 * z, x, key, second(n, m))

    return function


def shifted_unknown_steps(z, x, key):
    """Keys coincide in neighbouring turns, and so may steps that cannot be followed."""
    unknown = (z[0] * 10).astype(jnp.int32)

    def turn(i):
        n = lax.rem(i, unknown)
        return access(z, x, fold(key, i), n), access(0 * z, x, fold(key, i + 1), n + 1)

    return lax.map(turn, jnp.arange(3))


def jumping(z, x, key):
    """A counter that steps over its limit, and wraps."""
    start, limit = (z[:2] * 10).astype(jnp.uint32)
    turn = lambda c: (access(c[0], x, key, c[2]), c[1] + jnp.uint32(2**31), c[2] + 1)  # noqa: E731
    return lax.while_loop(lambda c: c[1] < limit, turn, (z, start, jnp.uint32(0)))[0]


def jumping_from_behind(z, x, key):
    """The same, where the counter starts a little below the largest number."""
    turn = lambda c: (access(c[0], x, key, c[2]), c[1] + jnp.uint32(4), c[2] + 1)  # noqa: E731
    start = jnp.uint32(0) - jnp.uint32(10)
    return lax.while_loop(lambda c: c[1] < jnp.uint32(0) - jnp.uint32(1), turn, (z, start, jnp.uint8(0)))[0]


def rising(z, x, key):
    """A loop that goes on while its counter is above what does not change."""
    limit = z[0].astype(jnp.uint32)
    turn = lambda c: (access(c[0], x, key, c[1]), c[1] + 1)  # noqa: E731
    return lax.while_loop(lambda c: c[1] > limit, turn, (z, jnp.uint32(5)))[0]


def chasing(z, x, key):
    """A loop that goes on while a counter is below another one that moves as fast."""
    turn = lambda c: (access(c[0], x, key, c[1]), c[1] + 1, c[2] + 1)  # noqa: E731
    return lax.while_loop(lambda c: c[1] < c[2], turn, (z, jnp.int32(0), jnp.int32(5)))[0]


def counted_out(z, x, key):
    """What a loop counted is its number of turns."""
    z, count = lax.while_loop(lambda c: c[1] < 4, lambda c: (c[0] + 1.0, c[1] + 1), (z, jnp.int32(0)))
    return access(z, x, key, count), access(0 * z, x, key, 4)


def changing_places(z, x, key):
    """Steps 0, 1, 1, 2."""
    turn = lambda _, c: (access(c[0], x, key, c[1]), c[2] + 1, c[1])  # noqa: E731
    return lax.fori_loop(0, 4, turn, (z, jnp.int32(0), jnp.int32(0)))[0]


def reshaped(z, x, key):
    """The third of four keys is the first in the second row."""
    keys = jax.random.split(key, (2, 2))
    return access(z, x, keys.reshape(4)[2]), access(0 * z, x, keys[1, 0])


def drawn_from_all(z, x, key):
    keys = jax.random.split(key, 3)
    return jax.vmap(jax.random.normal)(keys), access(z, x, keys[2])


def going_back(z, x, key):
    """A count that a loop leaves is at its end: one less is its last turn."""
    turn = lambda _, c: (access(c[0], x, key, c[1]), c[1] + 1)  # noqa: E731
    z, count = lax.fori_loop(0, 4, turn, (z, jnp.int32(0)))
    return z, access(0 * z, x, key, count - 1)


def drawn_in_condition(z, x, key):
    """A condition runs once more than its loop: the last draw is from the key of the access after it."""

    def condition(c):
        return (c[1] < 3) & (jax.random.uniform(fold(key, c[1])) < 2.0)

    z, _ = lax.while_loop(condition, lambda c: (c[0], c[1] + 1), (z, jnp.int32(0)))
    return z, access(z, x, fold(key, 3))


def broadcast(z, x, key):
    """One key, folded with equal numbers along an axis that it has not."""
    keys = random_fold_in_p.bind(jax.random.split(key, 1), jnp.full((3,), 5, jnp.uint32))
    return jax.vmap(lambda key: access(z, x, key))(keys)


HOLES = {
    "keys that are broadcast": (broadcast, "key reuse"),
    "a loop that a row may never end": (
        lambda z, x, key: (lax.while_loop(lambda i: i < x[0, 0], lambda i: i + 1, 0.0), access(z, x, key))[1], "rows"),
    "clamped at the end": (indexed(3, lambda i: i, 4), "key reuse"),
    "negative indices": (indexed(4, lambda i: i - 2, 4), "key reuse"),
    "an unknown index": (lambda z, x, key: access(z, x, pick(jax.random.split(key, 3), z[0].astype(int))), "key reuse"),
    "a counter that is cast and cast back": (through(lambda i: i.astype(jnp.uint8).astype(jnp.int32), 300), "key reuse"),
    "a counter that is cast and cast back, in the key": (
        lambda z, x, key: lax.fori_loop(
            0, 300, lambda i, z: access(z, x, fold(key, i.astype(jnp.uint8).astype(jnp.int32))), z), "key reuse"),
    "the remainder": (through(lambda i: lax.rem(i, 3), 4), "key reuse"),
    "numbers chosen": (through(lambda i: jnp.where(i < 2, 0, i), 4), "key reuse"),
    "numbers chosen in turn": (through(lambda i: jnp.where(i % 2 == 0, 0, i), 4), "key reuse"),
    "integers of four bits": (through(lambda i: i.astype(jnp.int4), 20), "key reuse"),
    "integers of two bits and back": (through(lambda i: i.astype(jnp.uint2).astype(jnp.int32), 5), "key reuse"),
    "truths": (through(lambda i: (i > 0).astype(jnp.int32), 3), "key reuse"),
    "numbers as truths": (through(lambda i: i.astype(bool).astype(jnp.int32), 3), "key reuse"),
    "a product of counters": (through(lambda i: (i + 1) * (4 - i), 4), "key reuse"),
    "numbers that change places": (changing_places, "key reuse"),
    "keys in another shape": (reshaped, "key reuse"),
    "keys unstacked": (
        lambda z, x, key: (lambda keys: (access(z, x, keys[1]), access(0 * z, x, jnp.unstack(keys)[1])))(
            jax.random.split(key, 2)
        ),
        "key reuse",
    ),
    "draws of an array of keys": (drawn_from_all, "key reuse"),
    "two unknown numbers": (pair(lambda n, m: n + m, lambda n, m: n + 1), "key reuse"),
    "unknown numbers far apart": (pair(lambda n, m: n, lambda n, m: m + 100), "key reuse"),
    "an unknown number subtracted": (pair(lambda n, m: 4 - n, lambda n, m: n + 2), "key reuse"),
    "an unknown number multiplied": (pair(lambda n, m: 3 * n, lambda n, m: 3), "key reuse"),
    "unknown numbers in shifted turns": (shifted_unknown_steps, "key reuse"),
    "the inner loop forgotten": (
        lambda z, x, key: lax.fori_loop(
            0, 3, lambda e, z: lax.fori_loop(0, 2, lambda b, z: access(z, x, fold(key, e), 7), z), z), "key reuse"),
    "epochs that overlap": (
        lambda z, x, key: lax.fori_loop(
            0, 5, lambda e, z: lax.fori_loop(0, 4, lambda b, z: access(z, x, key, e * 3 + b), z), z), "key reuse"),
    "one branch, two accesses": (
        lambda z, x, key: lax.cond(z[0] > 0, lambda: access(access(z, x, key), x, key), lambda: z), "key reuse"),
    "a counter that jumps over the end": (jumping, "key reuse"),
    "a counter that jumps over the largest number": (jumping_from_behind, "key reuse"),
    "a counter above its end": (rising, "key reuse"),
    "a limit that moves": (chasing, "key reuse"),
    "a count that goes back": (going_back, "key reuse"),
    "a count after a loop": (counted_out, "key reuse"),
    "the access' key in the likelihood": (
        lambda z, x, key: with_likelihood(lambda z, row, key: jnp.vdot(z, row + jax.random.normal(key, (3,))), z, x, key, key),
        "key reuse"),
    "a draw in a condition": (drawn_in_condition, "key reuse"),
    "a draw from a key that was computed": (
        lambda z, x, key: (
            access(z, x, key), jax.random.normal(jax.random.wrap_key_data(jax.random.key_data(key) ^ jnp.uint32(0)))),
        "key reuse"),
    "a draw from a key that was computed with": (
        lambda z, x, key: (
            access(z, x, key), jax.random.normal(jnp.where(z[0] > 0, jax.random.key(3), key))), "key reuse"),
    "a key that a device made": (
        lambda z, x, key: access(
            z, x, jax.pmap(lambda k: fold(k, lax.axis_index("i")), axis_name="i")(jax.random.split(key, 2))[0]),
        "key reuse"),
    "a callback in a condition": (while_condition(lambda: jax.debug.callback(lambda: None)), "effect"),
    "a counter in a condition": (counted_turns, "effect"),
    "branches in turns": (branches_in_turns, "key reuse"),
    "shifted keys": (shifted_keys, "key reuse"),
    "indices that clamp": (clamped, "key reuse"),
    "a step that wraps": (carried(np.uint32(0), np.uint32(2**31)), "key reuse"),
    "a step that wraps sooner": (carried(np.int8(0), np.int8(-128)), "key reuse"),
    "small numbers": (over(lambda: lax.iota(jnp.int8, 300)), "key reuse"),
    "numbers of 64 bits": (through(lambda i: (i * np.int64(2**16)).astype(np.uint32) * np.uint32(2**16), 4), "key reuse"),
    "a constant that is cast": (
        lambda z, x, key: (access(z, x, key, 0), access(0 * z, x, key, jnp.asarray(256).astype(jnp.uint8))), "key reuse"),
    "a counter that is cast": (through(lambda i: i.astype(jnp.uint8), 300), "key reuse"),
    "a sum that overflows": (through(lambda i: i.astype(jnp.int8) + i.astype(jnp.int8), 200), "key reuse"),
    "numbers repeated": (over(lambda: jnp.repeat(jnp.arange(1), 4)), "key reuse"),
    "numbers taken again": (over(lambda: jnp.arange(4)[jnp.zeros(4, int)]), "key reuse"),
    "numbers modulo": (through(lambda i: i % 3, 4), "key reuse"),
    "numbers that bounce": (through(lambda i: jnp.abs(i - 1), 4), "key reuse"),
    "related children": (  # where threefry is not partitionable, split(key, 1)[0] is fold_in(key, 1)
        lambda z, x, key: (access(z, x, jax.random.split(key, 1)[0]), access(0 * z, x, fold(key, 1))), "key reuse"),
    "two splits": (  # children of splits of different sizes may be the same
        lambda z, x, key: (access(z, x, jax.random.split(key, 2)[0]), access(0 * z, x, jax.random.split(key, 3)[1])), "key reuse"),
    "bits of the parent": (  # a draw from a key tells what its children are
        lambda z, x, key: (access(z, x, jax.random.split(key)[0]), jax.random.bits(key, (4,), jnp.uint32)), "key reuse"),
    "split and used": (lambda z, x, key: (access(z, x, key), access(0 * z, x, jax.random.split(key)[0])), "key reuse"),
    "an element of a loop's keys": (chained, "key reuse"),
    "the step of the turn before": (stale, "key reuse"),
    "a loop on each device": (every_second_device, "key reuse"),
    "keys of other devices": (gathered, "key reuse"),
    "a loop without an end": (unbounded, "key reuse"),
}  # fmt: skip


@pytest.mark.quick_cases(20)
@pytest.mark.parametrize(("function", "kind"), HOLES.values(), ids=HOLES)
def test_a_hole_is_closed(function, kind):
    assert kind in kinds(function)[0]


def test_numbers_of_64_bits_wrap_when_they_are_folded_in():
    with jax.enable_x64(True):
        assert kinds(carried(np.int64(0), np.int64(2**32)))[0] == {"key reuse"}
        assert kinds(through(lambda i: i * np.int64(2**31), 4))[0] == {"key reuse"}
        in_keys = lambda z, x, key: lax.fori_loop(  # noqa: E731
            0, 4, lambda i, z: access(z, x, fold(key, i * np.int64(2**32))), z
        )
        assert kinds(in_keys)[0] == {"key reuse"}
        assert check(carried(np.int64(0), np.int64(1))).doors == 1
        assert check(through(lambda i: i, 4)).doors == 1


def test_only_named_generators():
    keys = {name: jax.random.key(0, impl=name) for name in ("threefry2x32", "rbg", "unsafe_rbg")}
    assert check(access, Z, X, keys["threefry2x32"]).doors == 1
    for name in ("rbg", "unsafe_rbg"):
        found, message = kinds(access, Z, X, keys[name])
        assert found == {"noise"} and "ChaCha20" in message


def rbg_of_row(row):
    return jax.random.bits(jax.random.key(row, impl="rbg"), (), jnp.uint32)


def rbg_words_of_row(row):
    return lax.rng_bit_generator(jnp.full(4, row, jnp.uint32), (), dtype=jnp.uint32)[1]


def own_generator_of_row(row):
    impl = define_prng_impl(
        key_shape=(1,),
        seed=lambda seed: jnp.asarray(seed, jnp.uint32).reshape(1),
        split=lambda key, shape: jnp.broadcast_to(key, (*shape, 1)),
        random_bits=lambda key, width, shape: jnp.broadcast_to(key[0], shape).astype(jnp.uint32),
        fold_in=lambda key, data: key,
    )
    return jax.random.bits(jax.random.key(row, impl=impl), (), jnp.uint32)


@pytest.mark.parametrize("bits", [rbg_of_row, rbg_words_of_row, own_generator_of_row])
def test_rows_do_not_meet_in_a_generator(bits):
    """The bits of rbg for all rows of a batch come from the first row's key: replacing it moved the sum by 30 norms."""
    mechanism = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
    settings = {"key": jax.random.key(0), "noise_multiplier": 1e-6}
    of = lambda bits: lambda z, row, public: z * jnp.where(bits(row) > np.uint32(2**31), 1.0, -1.0)  # noqa: E731
    with pytest.raises(PrivacyLeakError, match="random generator"):
        noisy_sum(mechanism, of(bits), 0.0, jnp.arange(9), None, **settings)
    threefry = lambda row: jax.random.bits(jax.random.key(row, impl="threefry2x32"), (), jnp.uint32)  # noqa: E731
    assert jnp.isfinite(noisy_sum(mechanism, of(threefry), 0.0, jnp.arange(9), None, **settings).total)


@pytest.mark.parametrize("result", [X, X[0], np.float32(1.0)])
def test_what_a_callback_returns_is_refused_whatever_is_public(result):
    shape = jax.ShapeDtypeStruct(np.shape(result), np.float32)
    function = lambda z, x, key: access(z, x, key) + jnp.sum(jax.pure_callback(lambda: result, shape))  # noqa: E731
    found, message = kinds(function, public_constants=True)
    assert found == {"constant"} and "pass it as an argument" in message


def test_captured_scalars_are_counted():
    numbers = [jnp.float32(value) for value in X[:, 0]]
    function = lambda z, x, key: access(z, x, key) + sum(numbers)  # noqa: E731
    assert kinds(function)[0] == {"constant"}
    report = check(function, public_constants=True)
    assert len(report.constants) == len(numbers) and f"{len(numbers)} captured array(s)" in str(report)


def test_an_empty_name_keeps_no_output_secret():
    with pytest.raises(ValueError, match="end of every output's path"):
        check(lambda z, x, key: key, secret_outputs=("",))
    with pytest.raises(PrivacyLeakError, match="key material"):
        check(lambda z, x, key: key, secret_outputs=(".rng_key",))


def test_what_was_proved_is_what_is_compiled():
    """A function that computes something else each time it is traced is traced once."""
    times = []

    def function(z, x, key):
        times.append(None)
        return access(z, x, key) + (jnp.sum(x) if len(times) > 1 else 0.0)

    traced = jax.jit(function).trace(Z, X, jax.random.key(0))
    assert information_flow.verify(traced, private="x").doors == 1
    compiled = traced.lower().compile()
    moved = np.asarray(compiled(Z, 1e9 * X, jax.random.key(0))) - np.asarray(compiled(Z, X, jax.random.key(0)))
    assert len(times) == 1 and np.linalg.norm(moved) < 2 * len(X)
    with pytest.raises(PrivacyLeakError, match="a private row reaches it"):
        information_flow.verify(jax.jit(lambda *a: function(*a)).trace(Z, X, jax.random.key(0)), private="a[1]")


def test_chains_on_devices_are_proved_from_their_trace():
    mapped = jax.pmap(lambda z, x, key: access(z, x, key), in_axes=(None, None, 0))
    traced = jax.jit(mapped).trace(Z, X, jax.random.split(jax.random.key(0), 2))
    assert information_flow.verify(traced, private="x").doors == 1
    assert traced.lower().compile()(Z, X, jax.random.split(jax.random.key(0), 2)).shape == (2, 3)
    with pytest.raises(PrivacyLeakError):
        information_flow.verify(
            jax.jit(lambda *a: (mapped(*a), a[1])).trace(Z, X, jax.random.split(jax.random.key(0), 2)), private="a[1]"
        )


def counted(start, turns):
    """A step that is carried, and counted from `start` on."""
    turn = lambda c, _: ((access(c[0], c[1], c[2], c[3]), c[1], c[2], c[3] + 1), None)  # noqa: E731
    return lambda z, x, key: lax.scan(turn, (z, x, key, jnp.int32(start)), None, length=turns)[0][0]


ACCEPTED = {
    "some elements of a split": lambda z, x, key: lax.scan(
        lambda z, keys: (access(z, x, keys[1]), None), z, jax.vmap(jax.random.split)(jax.random.split(key, 6)[1:4])
    )[0],
    "a scan backwards that counts": lambda z, x, key: lax.scan(
        lambda c, row: ((access(c[0], x, key, c[1]), c[1] + 1), None), (z, 0), jnp.ones(4), reverse=True
    )[0][0],
    "a loop whose length is computed": lambda z, x, key: lax.fori_loop(
        0, z[1].astype(int), lambda i, z: access(z, x, key, i), z
    ),
    "a later step, and one more": lambda z, x, key: access(counted(0, 4)(z, x, key), x, key, 4),
    "two accesses a turn": lambda z, x, key: lax.fori_loop(
        0, 5, lambda i, z: access(access(z, x, fold(key, 1), i), x, fold(key, 2), i), z
    ),
    "keys of numbers": lambda z, x, key: jax.vmap(lambda i: access(z, x, fold(key, i)))(jnp.arange(3)),
    "a draw of another name": lambda z, x, key: lax.fori_loop(
        0, 4, lambda i, z: access(z, x, key, i) + jax.random.normal(fold(fold(key, 7), i), (3,)), z
    ),
}  # fmt: skip


@pytest.mark.parametrize("function", ACCEPTED.values(), ids=ACCEPTED)
def test_counted_keys_and_steps_are_accepted(function):
    assert check(function).keys == 1


def test_a_loop_from_an_argument_on_is_accepted():
    """As the chunks of a run: from a step on, so many steps, also of several chains."""

    def chunk(z, x, key, step, start, count):
        turn = lambda _, c: (access(c[0], x, key, c[1]), c[1] + 1)  # noqa: E731
        return lax.fori_loop(start, start + count, turn, (z, step))

    def chains(z, x, keys, steps, start, count):
        return jax.vmap(lambda key, step: chunk(z, x, key, step, start, count))(keys, steps)

    key, zero = jax.random.key(0), np.int32(0)
    assert check(chunk, Z, X, key, zero, zero, zero).doors == 1
    assert check(chains, Z, X, jax.random.split(key, 2), np.zeros(2, np.int32), zero, zero).doors == 1


def test_a_count_wraps_after_32_bits():
    """The bounds are exact: after the steps from 0 to 2^31 - 1, as many from -2^31 on are others, and one more is the first."""
    halves = lambda turns: lambda z, x, key: counted(-(2**31), turns)(counted(0, 2**31)(z, x, key), x, key)  # noqa: E731
    assert check(halves(2**31)).doors == 2
    assert check(counted(0, 2**32)).doors == 1
    last = lambda z, x, key: access(access(z, x, key, np.uint32(2**32 - 1)), x, key, np.int32(-1))  # noqa: E731
    for function in (halves(2**31 + 1), counted(0, 2**32 + 1), last):
        assert kinds(function)[0] == {"key reuse"}
