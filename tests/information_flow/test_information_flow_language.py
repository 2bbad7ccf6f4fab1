"""What the proof does not follow is refused with the cure, and what was once accepted although it leaks is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.random import define_prng_impl
from test_information_flow import X, Z, access, check, kinds

from dpppl import information_flow
from dpppl.errors import PrivacyLeakError

fold, split = jax.random.fold_in, jax.random.split
CURE = "Loop over jax.random.split(key, n), or count a step by one"


def turns(step, count=4):
    return lambda z, x, key: lax.fori_loop(0, count, lambda i, z: access(z, x, key, step(i)), z)


def over(xs, of_key=False, **options):
    """A loop over an array of steps, or of keys that are made of one."""

    def function(z, x, key):
        one = lambda z, item: (access(z, x, item) if of_key else access(z, x, key, item), None)  # noqa: E731
        return lax.scan(one, z, xs(key) if of_key else xs(), **options)[0]

    return function


def element(of_children):
    return lambda z, x, key: access(z, x, of_children(key))


def counted(stride):
    """A step that a loop counts by `stride`."""
    return lambda z, x, key: lax.fori_loop(0, 4, lambda _, c: (access(c[0], x, key, c[1]), c[1] + stride), (z, 0))[0]


FORMS = {
    "every second step": counted(2),
    "a count backwards": counted(-1),
    "epochs that count on": lambda z, x, key: lax.fori_loop(
        0, 5, lambda e, c: lax.fori_loop(0, 3, lambda b, c: (access(c[0], x, key, c[1]), c[1] + 1), c), (z, 0)
    )[0],
    "two steps a turn": lambda z, x, key: lax.fori_loop(
        0, 5, lambda _, c: (access(access(c[0], x, key, c[1]), x, key, c[1] + 1), c[1] + 2), (z, 0)
    )[0],
    "small integers": lambda z, x, key: access(z, x, key, np.int8(1)),
    "a product": turns(lambda i: 2 * i),
    "a difference": turns(lambda i: 3 - i),
    "a sum of counters": lambda z, x, key: lax.fori_loop(
        0, 5, lambda e, z: lax.fori_loop(0, 3, lambda b, z: access(z, x, key, e + 5 * b), z), z
    ),
    "a computed step": lambda z, x, key: access(z, x, key, z[0].astype(int)),
    "a computed start": lambda z, x, key: lax.fori_loop(z[0].astype(int), 4, lambda i, z: access(z, x, key, i), z),
    "more bits": turns(lambda i: i.astype(jnp.int8).astype(jnp.int32)),
    "a counted index": lambda z, x, key: lax.fori_loop(0, 4, lambda i, z: access(z, x, split(key, 4)[i]), z),
    "children backwards": element(lambda key: split(key, 4)[::-1][0]),
    "every second child": element(lambda key: split(key, 4)[::2][1]),
    "children in a square": element(lambda key: split(key, 4).reshape(2, 2)[1, 0]),
    "a square of children": element(lambda key: split(key, (2, 2))[1, 0]),
    "children turned": element(lambda key: jax.vmap(split)(split(key, 2)).T[1, 0]),
    "children joined": element(lambda key: jnp.concatenate([split(key, 2), split(key, 3)])[1]),
    "no children": element(lambda key: split(key, ())),
    "raw and wrapped": element(lambda key: jax.random.wrap_key_data(jax.random.key_data(key))),
    "a clone": element(jax.random.clone),
    "one key or another": element(lambda key: jnp.where(True, key, fold(key, 1))),
    "a key from a branch": lambda z, x, key: access(z, x, lax.cond(z[0] > 0, lambda: key, lambda: fold(key, 1))),
    "steps backwards": over(lambda: jnp.arange(4), reverse=True),
    "keys backwards": over(lambda key: split(key, 4), of_key=True, reverse=True),
    "stacked numbers": over(lambda: lax.scan(lambda c, _: (c + 1, c), jnp.int32(5), None, length=4)[1]),
    "stacked keys": over(lambda key: lax.scan(lambda c, k: (c, fold(k, 1)), 0, split(key, 4))[1], of_key=True),
    "a key that changes": lambda z, x, key: lax.fori_loop(
        0, 4, lambda _, c: (access(c[0], x, split(c[1])[0]), split(c[1])[1]), (z, key)
    )[0],
    "a loop that may not end": lambda z, x, key: lax.while_loop(
        lambda c: (c[1] < 9) & (c[0][0] < 1.0), lambda c: (access(c[0], x, key, c[1]), c[1] + 1), (z, 0)
    )[0],
    "a loop to the end and one more": lambda z, x, key: lax.while_loop(
        lambda c: c[1] <= 9, lambda c: (access(c[0], x, key, c[1]), c[1] + 1), (z, 0)
    )[0],
    "the step of the turn before": lambda z, x, key: lax.fori_loop(
        0, 4, lambda i, c: (access(c[0], x, key, c[1]), i + 1), (z, 1)
    )[0],
    "a child of any number": lambda z, x, key: access(z, x, fold(key, z[0].astype(int))),
    "a draw from a key that changes": lambda z, x, key: lax.fori_loop(
        0, 4, lambda _, c: (c[0] + jax.random.normal(c[1]), split(c[1])[1]), (access(z, x, fold(key, 1)), fold(key, 2))
    )[0],
    "chains of one key": lambda z, x, key: jax.vmap(lambda i: access(z, x, key, i))(jnp.arange(3)),
    "keys for chains of chains": lambda z, x, key: jax.vmap(
        lambda keys, i: jax.vmap(lambda k: access(z, x, k, i))(keys), (None, 0)
    )(split(key, 3), jnp.arange(4)),
}  # fmt: skip


@pytest.mark.parametrize("function", FORMS.values(), ids=FORMS)
def test_what_is_not_followed_is_refused_with_the_cure(function):
    found, message = kinds(function)
    assert found == {"key reuse"} and CURE in message


BRANCHES = {
    "of equal keys": lambda z, x, key: lax.cond(z[0] > 0, lambda: access(z, x, key), lambda: access(-z, x, key)),
    "of different keys": lambda z, x, key: lax.cond(
        z[0] > 0, lambda: access(z, x, key), lambda: access(-z, x, fold(key, 1))
    ),
    "in a loop": lambda z, x, key: lax.fori_loop(
        0, 4, lambda i, z: lax.cond(z[0] > 0, lambda: access(z, x, key, i), lambda: z), z
    ),
    "of draws": lambda z, x, key: lax.cond(z[0] > 0, lambda: z + jax.random.normal(key), lambda: z),
}  # fmt: skip


@pytest.mark.parametrize("function", BRANCHES.values(), ids=BRANCHES)
def test_branches_are_given_no_keys(function):
    found, message = kinds(function)
    assert "key reuse" in found and "choose between results by jax.numpy.where" in message


def test_branches_of_what_is_public_are_accepted():
    branch = lambda z: lax.switch(z[0].astype(int), [lambda z: z, lambda z: -z, jnp.sin], z)  # noqa: E731
    assert check(lambda z, x, key: branch(access(branch(z), x, key))).doors == 1


# What was once accepted although it leaks


def square(order):
    return lax.broadcasted_iota(jnp.int32, (2, 2), 0).reshape(4, order=order)


def turned():
    return lax.reshape(lax.broadcasted_iota(jnp.int32, (2, 2), 1), (4,), dimensions=(1, 0))


def keys_of_numbers(steps):
    return over(lambda key: jax.vmap(fold, (None, 0))(key, steps()), of_key=True)


SQUARES = {
    "in columns": lambda: square("F"), "in rows": lambda: square("C"), "with dimensions": turned,
    "column by column": lambda: square("F")[1:3],
}  # fmt: skip


@pytest.mark.parametrize("steps", SQUARES.values(), ids=SQUARES)
def test_numbers_in_a_square_repeat(steps):
    for function in (over(steps), keys_of_numbers(steps)):
        found, message = kinds(function)
        assert found == {"key reuse"} and CURE in message


def test_a_split_of_no_shape_is_the_child_of_0():
    """`split(key, ())` has the words of `fold_in(key, 0)`."""
    for shape in ((), 1, 2):
        found = kinds(lambda z, x, key: access(access(z, x, split(key, shape).ravel()[0]), x, fold(key, 0)))[0]  # noqa: B023
        assert found == {"key reuse"}


def own_generator(bits=None):
    """A generator all of whose children are one, and whose draws may be what it captured."""
    return define_prng_impl(
        key_shape=(2,),
        seed=lambda seed: jnp.zeros(2, jnp.uint32),
        split=lambda key, shape: jnp.broadcast_to(key, (*shape, 2)),
        random_bits=lambda key, width, shape: jnp.zeros(shape, jnp.uint32) if bits is None else jnp.asarray(bits),
        fold_in=lambda key, data: key,
        tag="fry",
    )


def through_own_generator(z, x, key):
    """Children of one's own generator, wrapped as threefry's again."""
    own = jax.random.wrap_key_data(jax.random.key_data(key), impl=own_generator())
    words = [jax.random.key_data(child) for child in split(own, 2)]
    one, other = (jax.random.wrap_key_data(word, impl="threefry2x32") for word in words)
    return access(access(z, x, one), x, other)


def drawn_rows(z, x, key):
    """Rows that a generator captured, as its draws from a public key: they are not in the traced program."""
    rows = X.view(np.uint32)
    return access(z, x, key) + jnp.sum(
        jax.random.bits(jax.random.key(0, impl=own_generator(rows)), rows.shape, jnp.uint32)
    )


@pytest.mark.parametrize("function", [through_own_generator, drawn_rows, element(lambda key: fold(key, 1))])
def test_only_two_generators_are_known(function):
    key = (
        jax.random.key(0, impl=own_generator())
        if function not in (through_own_generator, drawn_rows)
        else jax.random.key(0)
    )
    found, message = kinds(function, Z, X, key, public_constants=True)
    assert "noise" in found and "another generator than threefry2x32 or ChaCha20" in message


def test_generators_are_known_inside_operations():
    own = own_generator()
    draw = lambda: jax.random.uniform(jax.random.key(0, impl=own))  # noqa: E731
    assert "noise" in kinds(lambda z, x, key: lax.cond(x[0, 0] > 0, draw, lambda: 1.0))[0]


# Numbers


def labels_of(function):
    """A function of z that has as many numbers in it as there are rows, of two values."""
    labels = [float(k % 2) for k in range(120)]
    rows = np.tile(X, (20, 1))
    return lambda z, x, key: access(z, x, key) + function(z, labels), (Z, rows)


NUMBERS = {
    "added": lambda z, labels: sum(z[0] * label for label in labels),
    "stacked": lambda z, labels: jnp.sum(jnp.stack([z[0] + label for label in labels])),
    "in a function": lambda z, labels: jax.jit(lambda z: sum(z[0] * label for label in labels))(z),
    "in a loop": lambda z, labels: lax.fori_loop(0, 2, lambda _, c: c + sum(z[0] * label for label in labels), 0.0),
    "in a branch": lambda z, labels: lax.cond(z[0] > 0, lambda: sum(z[0] * label for label in labels), lambda: 0.0),
    "captured": lambda z, labels: sum(z[0] * np.float32(label).reshape(1) for label in labels),
    "as places": lambda z, labels: sum(z[int(label)] for label in labels),
    "as powers": lambda z, labels: sum(z[0] ** (3 + int(label)) for label in labels),
    "returned": lambda z, labels: z[0] * 0 + sum(jax.jit(lambda: tuple(labels))()),
}


@pytest.mark.parametrize("function", NUMBERS.values(), ids=NUMBERS)
def test_as_many_numbers_as_rows(function):
    program, arguments = labels_of(function)
    found, message = kinds(program, *arguments, jax.random.key(0), public_constants=True)
    assert "constant" in found and "as many as there are rows" in message
    more = np.tile(arguments[1], (10, 1))
    assert check(program, arguments[0], more, jax.random.key(0), public_constants=True).doors == 1


@pytest.mark.slow
def test_numbers_in_a_likelihood_are_counted():
    from test_information_flow import with_likelihood

    labels = [float(k % 2) for k in range(400)]
    likelihood = lambda z, row, _: jnp.vdot(z, row) * sum(z[0] * label for label in labels)  # noqa: E731
    rows = np.tile(X, (67, 1))[:400]
    found, _ = kinds(functools.partial(with_likelihood, likelihood), Z, rows, jax.random.key(0), public_constants=True)
    assert found == {"constant"}


def test_arrays_as_long_as_the_rows_are_not_public():
    captured = jnp.asarray(X[:, 0])
    found, message = kinds(lambda z, x, key: access(z, x, key) + jnp.sum(captured), public_constants=True)
    assert found == {"constant"} and "an axis as long as the private rows" in message
    assert check(lambda z, x, key: access(z, x, key) + jnp.sum(captured), public_constants=[captured]).doors == 1


# What deleted rules would have to be


SURVIVORS = {
    "keys of a reversed scan": (
        lambda z, x, key: (
            lax.scan(lambda z, k: (access(z, x, k), None), z, split(key, 3), reverse=True)[0]
            + access(z, x, split(key, 3)[0])
        )
    ),
    "outputs of a reversed scan": over(
        lambda: lax.scan(lambda c, _: (c + 1, c), jnp.int32(0), None, length=4, reverse=True)[1]
    ),
    "the start of a slice": lambda z, x, key: access(access(z, x, split(key, 4)[1]), x, split(key, 4)[1:3][0]),
    "every second child": lambda z, x, key: access(access(z, x, split(key, 5)[0:3][2]), x, split(key, 5)[::2][1]),
    "one element in two ways": lambda z, x, key: access(access(z, x, split(key, 4)[2]), x, split(key, 4)[1:3][1]),
    "a key that changes": lambda z, x, key: access(
        lax.fori_loop(0, 4, lambda i, c: (access(c[0], x, c[1], c[2]), fold(key, 1), c[2] + 1), (z, key, 0))[0],
        x,
        fold(key, 1),
        2,
    ),
    "equal numbers for chains": lambda z, x, key: jax.vmap(lambda i: access(z, x, fold(key, i)))(
        jnp.zeros(2, jnp.int32)
    ),
    "numbers of a square": lambda z, x, key: lax.scan(
        lambda z, i: (access(z, x, key, i[0]), None), z, lax.broadcasted_iota(jnp.int32, (3, 2), 1)
    )[0],
    "no children": lambda z, x, key: access(access(z, x, split(key, ())), x, fold(key, 0)),
    "two strides": lambda z, x, key: lax.fori_loop(
        0, 5, lambda i, c: (access(access(c[0], x, key, c[1]), x, key, i + 5), c[1] + 2), (z, 0)
    )[0],
    "epochs that overlap": lambda z, x, key: lax.scan(
        lambda c, e: ((lax.fori_loop(0, 4, lambda _, c: (access(c[0], x, key, c[1]), c[1] + 1), c)[0], c[1] + 3), None),
        (z, 0),
        None,
        length=5,
    )[0][0],
    "a turn that another counter meets": lambda z, x, key: lax.fori_loop(
        0,
        5,
        lambda e, z: lax.fori_loop(0, 5, lambda b, z: access(z, x, fold(key, b), e + 1), access(z, x, fold(key, e), e)),
        z,
    ),
    "one step in a loop without an end": lambda z, x, key: lax.while_loop(
        lambda z: jnp.sum(z) < 9.0, lambda z: access(z, x, key, 0), z
    ),
    "a count after a loop": lambda z, x, key: (lambda c: access(c[0], x, key, c[1]) + access(z, x, key, 4))(
        lax.fori_loop(0, 4, lambda _, c: (c[0] + 1.0, c[1] + 1), (z, 0))
    ),
    "a start in two axes": lambda z, x, key: access(
        access(z, x, jax.vmap(split)(split(key, 2))[0, 1]), x, jax.vmap(split)(split(key, 2))[0:1, 1][0]
    ),
    "a converted word of a key": lambda z, x, key: access(
        access(z, x, fold(key, 1)), x, fold(key, jax.random.key_data(key)[0].astype(jnp.uint16))
    ),
}


@pytest.mark.parametrize("function", SURVIVORS.values(), ids=SURVIVORS)
def test_once_a_rule_that_no_test_held(function):
    assert "key reuse" in kinds(function)[0]


def test_integer_arguments_may_be_equal():
    key, one, three = jax.random.key(0), np.int32(0), np.zeros(3, np.int32)
    two = lambda z, x, key, n, m: access(access(z, x, key, n), x, key, m + 100)  # noqa: E731
    scanned = lambda z, x, key, steps: over(lambda: steps)(z, x, key)  # noqa: E731
    shifted = lambda z, x, key, steps: lax.scan(  # noqa: E731
        lambda z, c: (access(access(z, x, fold(key, c[0]), c[1]), x, fold(key, c[0] + 1), c[1] + 1), None),
        z, (jnp.arange(3), steps),
    )[0]  # fmt: skip
    fixed = lambda z, x, key, n: access(access(z, x, key, n), x, key, 100)  # noqa: E731
    assert kinds(shifted, Z, X, key, three)[0] == kinds(fixed, Z, X, key, one)[0] == {"key reuse"}
    assert kinds(two, Z, X, key, one, one)[0] == kinds(scanned, Z, X, key, three)[0] == {"key reuse"}
    assert check(lambda z, x, key, n: two(z, x, key, n, n), Z, X, key, one).doors == 2


def test_a_converted_word_of_a_key_is_no_name():
    word = lambda key: jax.random.key_data(key)[0].astype(jnp.int32)  # noqa: E731
    with pytest.raises(PrivacyLeakError, match="key material"):
        information_flow.verify(lambda x, key: word(key), X, jax.random.key(0), private=0)
    assert kinds(lambda z, x, key: access(z, x, key, word(key)))[0] == {"key reuse"}
