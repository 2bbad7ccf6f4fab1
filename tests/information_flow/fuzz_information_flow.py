"""Random programs of loops, branches, keys and accesses: what `verify` accepts must leak nothing and repeat no noise.

Each program is a tree of accesses, draws, loops, branches and chains, with random key and step expressions. If `verify`
accepts it, it is run with a door that writes down the key and step of every access: no pair may occur twice, nor may a
draw come from a key of an access. Then it runs on two data sets, with a door that returns a constant: nothing may differ.

`python tests/information_flow/fuzz_information_flow.py 10000` makes 10,000 programs; the suite makes some hundreds.
"""

import sys
import zlib
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dpppl import information_flow
from dpppl.access.clipping import Flat
from dpppl.access.door import STREAMS, noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.errors import ConfigurationError, PrivacyLeakError
from dpppl.subsampling import FullBatch

X = np.arange(8, dtype=np.float32).reshape(4, 2) - 3.0
Z = np.linspace(0.1, 0.2, 2).astype(np.float32)
DOOR = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
ACCESS, DRAW = 0, 1


def likelihood(z, row, public):
    return jnp.vdot(z, row)


class Program:
    """A random program, written by `seed`; `self(z, x, key, do)` runs it, `do` being what an access does.

    The same random choices are made at every run, from a generator for each place in the tree."""

    def __init__(self, seed: int):
        self.seed = seed

    def __call__(self, z, x, key, do, draw):
        self.do, self.draw, self.x = do, draw, x
        rng = np.random.default_rng(self.seed)
        return self.block(rng, z, {"keys": [key], "counters": [], "arrays": []}, depth=0)

    # Expressions

    def number(self, rng, scope, z):
        """An integer: constants and counters, sums, products, casts; sometimes what is computed from z."""
        counters = scope["counters"]
        kind = rng.integers(0, 30)
        if not counters or kind == 0:
            return jnp.asarray(int(rng.integers(0, 4)), jnp.int32) if kind else int(rng.integers(0, 4))
        i = counters[rng.integers(len(counters))]
        if kind <= 4 or kind >= 19:
            return i
        if kind == 5 or kind >= 13:
            return i + int(rng.integers(0, 4))
        if kind == 6:
            return int(rng.integers(2, 6)) * i
        if kind == 7:
            return int(rng.integers(0, 8)) - i
        if kind == 8:
            j = counters[rng.integers(len(counters))]
            return int(rng.integers(1, 6)) * i + j
        if kind == 9:
            return (i.astype(jnp.int8) + int(rng.integers(0, 3))) * np.int8(rng.choice([1, 64, -128]))
        if kind == 10:
            return rng.choice(
                [lambda: i // 2, lambda: i % 2, lambda: jnp.minimum(i, 1), lambda: jnp.where(i < 1, 5, i)]
            )()
        if kind == 11:
            return i.astype(rng.choice([jnp.int4, jnp.uint8, jnp.int8])).astype(jnp.int32) * int(rng.integers(1, 4))
        if rng.integers(2):
            return (i + int(rng.integers(0, 3))) * counters[rng.integers(len(counters))]
        return (z[0] * 10).astype(jnp.int32) + i

    def key(self, rng, scope, z):
        keys = scope["keys"]
        key = keys[rng.integers(len(keys))]
        if rng.integers(4):
            key = jax.random.fold_in(key, int(rng.integers(100, 10**6)))  # a name of this place
        for _ in range(rng.integers(0, 3)):
            key = self.child(rng, scope, z, key)
        return key

    def child(self, rng, scope, z, key):
        kind, size = rng.integers(0, 24), int(rng.integers(2, 5))
        place = int(rng.integers(size))
        if kind <= 5:
            return jax.random.fold_in(key, self.number(rng, scope, z))
        if kind <= 11:
            return jax.random.split(key, size)[place]
        if kind <= 15:
            return jax.random.split(key, size + 2)[1 : 1 + size][place]
        other = [
            lambda: jax.random.split(key, size)[self.number(rng, scope, z)],
            lambda: jax.random.split(key, size)[::-1][place],
            lambda: jax.random.split(key, 6)[1::2][self.number(rng, scope, z)],
            lambda: jax.random.split(key, (2, 2)).T[place % 2, int(rng.integers(2))],
            lambda: jax.random.split(key, 4).reshape(2, 2).T.reshape(4)[place % 4],
            lambda: jax.random.split(key, ()),
            lambda: jnp.where(z[0] > 0, key, jax.random.fold_in(key, place)),
            lambda: jax.random.wrap_key_data(jax.random.key_data(key)),
        ]
        return other[kind - 16]()

    # Statements

    def block(self, rng, z, scope, depth):
        for _ in range(rng.integers(1, 3 if depth else 4)):
            z = self.statement(rng, z, scope, depth)
        return z

    def statement(self, rng, z, scope, depth):
        kind = rng.integers(0, 14) if depth < 3 else 0
        if kind <= 4:
            key, step = self.key(rng, scope, z), self.number(rng, scope, z)
            return self.do(z, self.x, key, step)
        if kind == 5:
            return z + self.draw(self.key(rng, scope, z))
        if kind == 6:
            return (
                z
                + rng.choice(
                    [lambda: 0.0] * 4 + [lambda: 1e-3 * self.x[0, 0], lambda: 0.0 * z, lambda: jnp.sum(self.x * 0)]
                )()
            )
        inner = np.random.SeedSequence(int(rng.integers(2**31)))
        again = lambda: np.random.default_rng(inner)  # noqa: E731  a body may be traced more than once
        if kind <= 8:
            return self.fori(rng, again, z, scope, depth)
        if kind <= 10:
            return self.scan(rng, again, z, scope, depth)
        if kind == 11:
            return self.while_loop(rng, again, z, scope, depth)
        if kind == 12:
            return self.branches(rng, again, z, scope, depth)
        return self.chains(rng, again, z, scope, depth)

    def fori(self, rng, again, z, scope, depth):
        start, length, dynamic = int(rng.integers(0, 3)), int(rng.integers(1, 4)), rng.integers(2)
        stop = start + length + (jnp.asarray(z[0] > 1e9, jnp.int32) if dynamic else 0)
        counter = rng.integers(3)

        def body(i, carry):
            z, c = carry
            inner = scope | {"counters": [*scope["counters"], i, *([c] if counter else [])]}
            z = self.block(again(), z, inner, depth + 1)
            return z, c + (1 if counter != 2 else i * 0 + 3)

        return lax.fori_loop(start, stop, body, (z, jnp.int32(rng.integers(0, 3))))[0]

    def scan(self, rng, again, z, scope, depth):
        length, kind = int(rng.integers(1, 4)), rng.integers(9)
        reverse = rng.integers(5) == 0
        keys = scope["keys"]
        if kind == 0:
            xs = jax.random.split(keys[rng.integers(len(keys))], length)
        elif kind == 1:
            xs = jnp.arange(length) * int(rng.integers(0, 3)) if rng.integers(3) == 0 else jnp.arange(length)
        elif kind == 2:
            xs = jnp.repeat(jnp.arange(1 + length // 2), 2)[:length]
        elif kind == 3:
            xs = np.arange(length)[:: rng.choice([1, -1])]
        elif kind == 4:
            xs = jax.random.split(keys[rng.integers(len(keys))], 4)[1 : 1 + length]
        elif kind == 5:
            xs = jax.vmap(lambda i: jax.random.fold_in(keys[0], i))(jnp.arange(length))
        elif kind == 6:
            xs = lax.broadcasted_iota(jnp.int32, (2, 2), int(rng.integers(2))).reshape(4, order=rng.choice(["C", "F"]))
        elif kind == 7:
            xs = lax.reshape(lax.broadcasted_iota(jnp.int32, (2, 2), 0), (4,), dimensions=(1, 0))[:length]
        else:
            xs = jnp.arange(length + 1)[int(rng.integers(2)) :]

        def body(z, x):
            is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            changes = {"keys": [*keys, x]} if is_key else {"counters": [*scope["counters"], x]}
            return self.block(again(), z, scope | changes, depth + 1), None

        return lax.scan(body, z, xs, reverse=reverse)[0]

    def while_loop(self, rng, again, z, scope, depth):
        length = int(rng.integers(1, 4))
        by_data, moving, stride = rng.integers(8) == 0, rng.integers(8) == 0, 1 + int(rng.integers(8) == 0)
        if scope["counters"] and rng.integers(4) == 0:
            length = scope["counters"][rng.integers(len(scope["counters"]))].astype(jnp.int32) + length

        def condition(carry):
            if moving:
                return (carry[1] < length + carry[1]) & (carry[1] < length)
            return (carry[1] < length) & (self.x[0, 0] < 1e9) if by_data else carry[1] < length

        def body(carry):
            z, i = carry
            return self.block(again(), z, scope | {"counters": [*scope["counters"], i]}, depth + 1), i + stride

        return lax.while_loop(condition, body, (z, jnp.int32(0)))[0]

    def branches(self, rng, again, z, scope, depth):
        counters = scope["counters"]
        kind = rng.integers(3)
        if kind == 0 and counters:
            predicate = counters[rng.integers(len(counters))] % 2 == 0
        else:
            predicate = z[0] > 0 if kind < 2 else self.x[1, 1] > 0 if rng.integers(2) else z[1] > 0
        seeds = [again().integers(2**31), again().integers(2**31) + 1]
        ways = [lambda z, s=s: self.block(np.random.default_rng(s), z, scope, depth + 1) for s in seeds]
        return lax.cond(predicate, *ways, z)

    def chains(self, rng, again, z, scope, depth):
        count, kind, keys = 2, rng.integers(4), scope["keys"]
        mapped = {"z": jnp.stack([z, z + 1.0])}
        if kind <= 1:
            mapped["key"] = jax.random.split(keys[rng.integers(len(keys))], count)
        if kind in (1, 2):
            mapped["i"] = jnp.arange(count) * int(rng.integers(0, 3)) if rng.integers(3) == 0 else jnp.arange(count)

        def one(mapped):
            changes = {"keys": [*keys, mapped["key"]]} if "key" in mapped else {}
            changes |= {"counters": [*scope["counters"], mapped["i"]]} if "i" in mapped else {}
            return self.block(again(), mapped["z"], scope | changes, depth + 1)

        return jnp.sum(jax.vmap(one)(mapped), 0)


def access(z, x, key, step):
    return noisy_sum(DOOR, likelihood, z, x, None, key=key, noise_multiplier=1.0, step=step).total


def executed(program):
    """The outputs on two data sets, where accesses return what depends on no row, and of the first run the keys and
    steps of all accesses and the keys of all draws."""
    records = []

    def note(kind, data, step, value):
        records.append((int(kind), np.asarray(data).tobytes(), int(step)))
        return np.asarray(value)

    def noted(kind, key, step, value):  # the result is used, so that no call is dropped; one call for each chain
        words, step = jax.random.key_data(key), jnp.asarray(step).astype(jnp.uint32)
        shape = jax.ShapeDtypeStruct(value.shape, value.dtype)
        return jax.pure_callback(note, shape, np.int32(kind), words, step, value, vmap_method="sequential")

    def do(z, x, key, step):
        return noted(ACCESS, key, step, jnp.tanh(z))

    def draw(key):
        return noted(DRAW, key, 0, jax.random.normal(key, (2,)))

    run = jax.jit(lambda z, x, key: program(z, x, key, do, draw))
    first = np.asarray(run(Z, X, jax.random.key(7)))
    before = list(records)
    return first, np.asarray(run(Z, -2.0 * X[::-1] + 0.5, jax.random.key(7))), before


def collisions(records):
    """How many accesses share a key and step, and how many draws are from an access' key or below it."""
    accesses = Counter((key, step) for kind, key, step in records if kind == ACCESS)
    repeated = sum(count - 1 for count in accesses.values())
    below = set()
    for key, step in accesses:
        root = jax.random.wrap_key_data(jnp.asarray(np.frombuffer(key, np.uint32)))
        below.add(key)
        for name in STREAMS:
            stream = jax.random.fold_in(root, np.uint32(zlib.crc32(name.encode())))
            below.add(np.asarray(jax.random.key_data(stream)).tobytes())
            below.add(np.asarray(jax.random.key_data(jax.random.fold_in(stream, np.uint32(step)))).tobytes())
    return repeated + sum(kind == DRAW and key in below for kind, key, _ in records)


def attack(seed: int) -> str:
    """ "accepted", "refused" or "invalid"; AssertionError for an accepted program that leaks or repeats noise."""
    program = Program(seed)
    try:
        information_flow.verify(
            lambda z, x, key: program(z, x, key, access, lambda key: jax.random.normal(key, (2,))),
            Z,
            X,
            jax.random.key(7),
            private=1,
        )
    except (PrivacyLeakError, ConfigurationError):
        return "refused"
    except (TypeError, OverflowError, IndexError):
        return "invalid"
    one, other, records = executed(program)
    assert np.array_equal(one, other, equal_nan=True), f"program {seed} is accepted, and its output depends on rows"
    found = collisions(records)
    assert not found, f"program {seed} is accepted, and {found} of its accesses share noise"
    return "accepted"


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    outcomes: Counter = Counter()
    for seed in range(first, first + count):
        outcomes[attack(seed)] += 1
        if seed % 100 == 99:
            jax.clear_caches()
    print(dict(outcomes))


if __name__ == "__main__":
    main()
