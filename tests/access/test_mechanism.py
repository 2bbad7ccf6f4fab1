import itertools
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr
from scipy import stats

from dpppl.access.clipping import SLACK, Flat
from dpppl.access.door import Access, door_p, noisy_sum
from dpppl.access.door import compiled as compiled_access
from dpppl.access.mechanism import Mechanism
from dpppl.errors import PrivacyLeakError
from dpppl.information_flow import verify_jaxpr
from dpppl.randomness import chacha
from dpppl.subsampling import FullBatch, Partition, Poisson

pytestmark = pytest.mark.numerical

ROWS = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
Z = {"a": np.zeros(2, np.float32), "b": np.zeros((), np.float32)}


def linear(z, row, public):
    """A log likelihood whose gradient is the row, times a public number."""
    return public * (jnp.vdot(z["a"], row[:2]) + z["b"] * row[2])


def flat_sum(z, row, public):
    return jnp.vdot(z, row)


def door(clipping_norm=1.0, subsampling=None, **options):
    return Mechanism(clipping=Flat(clipping_norm), subsampling=subsampling or FullBatch(), **options)


compiled = jax.jit(
    lambda mechanism, likelihood, z, rows, public, key, noise_multiplier: (
        noisy_sum(mechanism, likelihood, z, rows, public, key=key, noise_multiplier=noise_multiplier).total
    ),
    static_argnums=(0, 1),
)


def access(mechanism, rows=ROWS, seed=0, noise_multiplier=2.0, z=Z, likelihood=linear, public=1.0):
    """One access, compiled, as one float64 vector."""
    result = compiled(mechanism, likelihood, z, rows, public, jax.random.key(seed), noise_multiplier)
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(result)])


def clipped_rows(rows, clipping_norm=1.0):
    return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True) / clipping_norm)


def noise_only(mechanism, size, seed=0, noise_multiplier=2.0):
    """`size` draws of the noise: the rows' gradients are zero."""
    return access(mechanism, np.zeros((2, 1), np.float32), seed, noise_multiplier, np.zeros(size, np.float32), zero)


def zero(z, row, public):
    return row[0] * jnp.sum(z)


# What comes out


def test_it_is_the_clipped_sum_plus_noise():
    for clipping_norm in (0.5, 1.5):
        expected = clipped_rows(ROWS, clipping_norm).sum(axis=0)
        result = access(door(clipping_norm), noise_multiplier=1e-6)
        np.testing.assert_allclose(result, expected, atol=1e-4 * clipping_norm)
        assert np.max(np.abs(result - ROWS.sum(axis=0))) > 0.1  # not the unclipped one


def test_public_values_reach_the_likelihood():
    expected = clipped_rows(0.1 * ROWS).sum(axis=0)
    np.testing.assert_allclose(access(door(), noise_multiplier=1e-6, public=0.1), expected, atol=1e-4)


@pytest.mark.parametrize(("clipping_norm", "noise_multiplier"), [(1.0, 2.0), (0.03, 50.0), (20.0, 0.1)])
def test_the_noise_has_standard_deviation_norm_times_multiplier(clipping_norm, noise_multiplier):
    """Kolmogorov-Smirnov, 200,000 draws, false-alarm rate 1e-6; 5 % more or less is rejected."""
    noise = noise_only(door(clipping_norm), 200_000, noise_multiplier=noise_multiplier)
    scale = clipping_norm * noise_multiplier
    assert stats.kstest(noise / scale, "norm").pvalue > 1e-6
    assert stats.kstest(noise / (1.05 * scale), "norm").pvalue < 1e-6
    assert stats.kstest(noise / (scale / 1.05), "norm").pvalue < 1e-6


def test_the_noise_reaches_beyond_float32s_tails(monkeypatch):
    """Random words of 0, which jax.random.normal would turn into 5.4 standard deviations or an infinity."""
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: jnp.zeros(shape, jnp.uint32))
    assert np.all(np.abs(noise_only(door(), 3, noise_multiplier=1.0) - 9.5) < 0.1)


def test_sites_coordinates_and_accesses_have_independent_noise():
    """|r| sqrt(n) is nearly standard normal: false-alarm rate 1e-6 a pair. 5 % of shared noise is seen."""
    size = 100_000
    one, two = noise_only(door(), 2 * size, seed=1), noise_only(door(), size, seed=2)
    pieces = [one[:size], one[size:], two]

    def related(a, b):
        return abs(np.corrcoef(a, b)[0, 1]) * size**0.5 > 4.9

    assert not any(related(a, b) for a, b in itertools.combinations(pieces, 2))
    assert not related(one[:-1], one[1:])
    assert related(pieces[0], pieces[1] + 0.05 * pieces[0])


def test_two_sites_have_independent_noise():
    """|r| sqrt(n) as above; and the noise of a vector is not one number repeated."""
    size = 50_000
    z = {"a": np.zeros(size, np.float32), "b": np.zeros((2, size), np.float32)}

    def no_gradient(z, row, public):
        return row[0] * sum(jnp.sum(leaf) for leaf in z.values())

    noise = access(door(), np.zeros((2, 1), np.float32), 3, 1.0, z, no_gradient).reshape(3, size)
    assert all(abs(np.corrcoef(a, b)[0, 1]) * size**0.5 < 4.9 for a, b in itertools.combinations(noise, 2))
    assert len(np.unique(noise)) > 2.9 * size


def keys_drawn_from(mechanism, step, monkeypatch):
    """The keys from which one access draws random bits, without compiling."""
    keys, bits = [], jax.random.bits

    def noting(key, shape, dtype):
        keys.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
        return bits(key, shape, dtype)

    with monkeypatch.context() as patch:
        patch.setattr(jax.random, "bits", noting)
        arguments = None, jax.random.key(0), jnp.asarray(1.0), jnp.asarray(step)
        mechanism.access(lambda row: row, jnp.asarray(ROWS), *arguments)
    return keys


@pytest.mark.parametrize(
    "subsampling", [Poisson(0.5), Poisson(0.01), Partition(3)], ids=["dense", "sparse", "partition"]
)
def test_every_draw_of_every_step_has_a_key_of_its_own(subsampling, monkeypatch):
    """Noise, rows: nothing is drawn twice, but the split of an epoch, which its steps share."""
    steps = [0, 1, 2**16, 2**31 - 1]
    drawn = [keys_drawn_from(door(subsampling=subsampling), step, monkeypatch) for step in steps]
    assert all(len(keys) == 2 for keys in drawn)
    rows, noise = zip(*drawn)
    assert len(set(noise)) == len(steps) and not set(noise) & set(rows)
    assert len(set(rows)) == (len(steps) - 1 if isinstance(subsampling, Partition) else len(steps))


@pytest.mark.parametrize("generator", ["threefry2x32", chacha.chacha20], ids=["threefry", "chacha"])
def test_all_32_bits_of_a_step_make_another_key(generator):
    """What the proof relies on: children of different numbers, and streams of different names, are different keys."""
    numbers = [0, *(2**bit for bit in range(32)), *(2**bit + 1 for bit in range(1, 32))]
    key = jax.random.key(3, impl=generator)
    made = jax.vmap(lambda n: jax.random.key_data(jax.random.fold_in(key, n)))(np.array(numbers, np.uint32))
    assert len(np.unique(np.asarray(made), axis=0)) == len(numbers)
    others = np.asarray(made)[np.array(numbers) >= 5]  # a part of a split may be the child of its place's number
    parts = np.concatenate([np.asarray(jax.random.key_data(jax.random.split(key, 5))), others])
    assert len(np.unique(parts, axis=0)) == len(parts)


def test_rows_that_were_not_drawn_are_not_counted():
    """Noise aside, the count is -1/2 for each drawn row that is short, 1/2 for a long one."""
    for rate, expected in ((1e-9, 0.0), (1.0, 4 * 0.5 - 3 * 0.5)):
        mechanism = Mechanism(clipping=Flat(1.0), subsampling=Poisson(rate), count_share=0.1)
        rows = np.array([0.1, 0.5, 1.0, 1.1, 2.0, 1e9, -7.0], np.float32)[:, None]
        settings = dict(key=jax.random.key(0), noise_multiplier=1e-6)
        count = jax.jit(lambda rows: noisy_sum(mechanism, flat_sum, jnp.zeros(1), rows, None, **settings).count)(rows)  # noqa: B023
        assert abs(float(count[0]) - expected) < 1e-3


def test_the_same_key_gives_the_same_output_and_another_key_another():
    assert np.array_equal(access(door(), seed=3), access(door(), seed=3))
    assert np.all(access(door(), seed=3) != access(door(), seed=4))


def test_an_empty_batch_still_adds_noise():
    mechanism = door(subsampling=Poisson(1e-9))
    result = access(mechanism)
    assert np.array_equal(result, access(mechanism, 1000 * ROWS)) and np.all(np.abs(result) > 1e-3)
    assert access(mechanism, noise_multiplier=4.0) == pytest.approx(2 * result, rel=1e-6)


@pytest.mark.parametrize("subsampling", [FullBatch(), Poisson(0.5)], ids=["full batch", "poisson"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_row_that_is_not_finite_is_as_good_as_zero(bad, subsampling):
    rows, zeroed = ROWS.copy(), ROWS.copy()
    rows[::2, 1], zeroed[::2] = bad, 0.0
    result = access(door(subsampling=subsampling), rows)
    assert np.all(np.isfinite(result)) and np.array_equal(result, access(door(subsampling=subsampling), zeroed))


@pytest.mark.parametrize("subsampling", [FullBatch(), Poisson(0.5)], ids=["full", "poisson"])
def test_one_row_moves_the_output_by_at_most_the_sensitivity(subsampling):
    """Under equal keys, whatever the row: this is what the noise is for."""
    mechanism = door(3.0, subsampling)
    zeroed = ROWS.copy()
    zeroed[7] = 0.0
    base, moved = access(mechanism, zeroed), []
    for row in ([1e3, -1e3, 10.0], [1e30, 0, 0], [np.nan, 0, 0], [2.9, 0, 0], [-1e-3, 0, 1e9]):
        changed = ROWS.copy()
        changed[7] = row
        moved.append(np.linalg.norm(access(mechanism, changed) - base))
    assert max(moved) <= 3.0 * (1 + SLACK) + 1e-5  # outputs near 30 are rounded to float32
    assert max(moved) > 2.99


def test_nothing_is_scaled_by_the_batch_size():
    """Rows drawn at rate 1/2 add 1 each: the sum has a binomial mean, and doubling the rows doubles it."""
    rows = np.ones((4000, 1), np.float32)
    z = np.zeros(1, np.float32)
    draws = {
        count: access(door(subsampling=Poisson(0.5)), rows[:count], 1, 1e-6, z, flat_sum)[0] for count in (2000, 4000)
    }
    for count, value in draws.items():
        assert abs(value - count / 2) < 4.9 * (count / 4) ** 0.5


# Transformations


def test_a_derivative_through_the_door_is_refused():
    """It would be a second access that nobody charges."""

    def total(z, rows, noise):
        return jnp.sum(noisy_sum(door(), flat_sum, z, rows, None, key=jax.random.key(0), noise_multiplier=noise).total)

    arguments = jnp.zeros(3), jnp.asarray(ROWS), jnp.asarray(1.0)
    for number in range(3):
        with pytest.raises(NotImplementedError, match="dpppl_door"):
            jax.grad(total, argnums=number)(*arguments)
        with pytest.raises(NotImplementedError, match="dpppl_door"):
            jax.jit(jax.jacfwd(total, argnums=number))(*arguments)


@pytest.mark.parametrize(
    ("subsampling", "generator", "x64"),
    [
        (FullBatch(), "threefry2x32", True),
        (Poisson(0.5), "threefry2x32", False),
        (Poisson(0.01), chacha.chacha20, True),
    ],
    ids=["full-64", "dense", "sparse-chacha-64"],
)
def test_transformations_change_nothing(subsampling, generator, x64):
    """vmap over keys and latents, scan and jit give each key what it gets alone."""
    with jax.enable_x64(x64):
        rows = np.tile(ROWS, (50, 1)) if subsampling.rate == 0.01 else ROWS
        keys = jax.random.split(jax.random.key(5, impl=generator), 2)
        z = {"a": jnp.arange(4.0).reshape(2, 2), "b": jnp.arange(2.0)}

        def log_likelihood(z, row, public):
            return -0.5 * (row[2] - jnp.vdot(z["a"], row[:2]) - z["b"]) ** 2

        def one(z, key):
            return noisy_sum(
                door(subsampling=subsampling), log_likelihood, z, rows, None, key=key, noise_multiplier=1.5
            ).total

        @jax.jit
        def everywhere(z, keys):
            scanned = jax.lax.scan(lambda carry, inputs: (carry, one(*inputs)), 0, (z, keys))[1]
            return jax.vmap(one)(z, keys), scanned

        alone = jax.jit(one)
        each = [alone(jax.tree.map(lambda x: x[i], z), keys[i]) for i in range(2)]  # noqa: B023
        assert {leaf.dtype for leaf in jax.tree.leaves(each)} == {jnp.dtype(jnp.float64 if x64 else jnp.float32)}
        expected = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
        for result in everywhere(z, keys):
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-6), result, expected)
        assert np.all(np.abs(expected["b"][0] - expected["b"][1]) > 1e-3)


# Whose classes


class Loose(Flat):
    def clip(self, gradients, mask):
        return gradients


class EveryRow(FullBatch):
    def draw(self, key, num_rows, step=0):
        return super().draw(key, num_rows, step)


class Noiseless(Mechanism):
    def access(self, statistic, rows, *_, **__):
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.vmap(statistic)(rows))


@pytest.mark.parametrize(
    "changed",
    [
        {"clipping": Loose(1.0)},
        {"subsampling": EveryRow()},
    ],
    ids=lambda changed: type(*changed.values()).__name__,
)
def test_clipping_and_subsampling_are_of_the_doors_own_classes(changed):
    """A class made of one of them may do anything with rows."""
    mechanism = replace(door(), **changed)
    with pytest.raises(PrivacyLeakError, match=rf"an access with a {type(*changed.values()).__name__}: the door takes"):
        noisy_sum(mechanism, linear, Z, ROWS, 1.0, key=jax.random.key(0), noise_multiplier=2.0)


@jax.tree_util.register_pytree_node_class
class Meeting:
    """A container that adds up the rows of a matrix that it is put together from."""

    def __init__(self, value):
        self.value = value

    def tree_flatten(self):
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        (value,) = children
        is_matrix = isinstance(value, jax.Array) and value.ndim == 2
        return cls(jnp.broadcast_to(jnp.sum(value, axis=0), value.shape) if is_matrix else value)


@pytest.mark.parametrize("rows_in, latents_in", [(Meeting, list), (list, Meeting)])
def test_no_container_of_the_callers_is_put_together_behind_the_door(rows_in, latents_in):
    """Its class would have all rows at hand: one of them would be in every row's part, before it is clipped or after."""
    only = lambda tree: jax.tree.leaves(tree)[0]  # noqa: E731
    wrapped = lambda kind, value: kind([value] if kind is list else value)  # noqa: E731

    @jax.jit
    def total(rows):
        z, rows = wrapped(latents_in, jnp.zeros(2)), wrapped(rows_in, rows)
        likelihood = lambda z, row, _: jnp.vdot(only(z), only(row))  # noqa: E731
        found = noisy_sum(door(), likelihood, z, rows, None, key=jax.random.key(0), noise_multiplier=2.0).total
        assert type(found) is latents_in
        return only(found)

    rows = jnp.zeros((50, 2))
    np.testing.assert_allclose(jnp.linalg.norm(total(rows.at[0].set(1.0)) - total(rows)), 1.0, rtol=1e-4)


def test_a_door_bound_with_another_mechanism_is_refused(equations):
    """Where the access is made, where it is bound, and where an equation that holds one is proved."""

    def function(rows):
        return noisy_sum(door(), flat_sum, jnp.zeros(3), rows, None, key=jax.random.key(0), noise_multiplier=2.0).total

    program, (equation,) = door_programs(function, ROWS, equations=equations)
    access, stranger = equation.params["access"], Noiseless(clipping=Flat(1.0), subsampling=FullBatch())
    refused = pytest.raises(PrivacyLeakError, match="the door takes dpppl's own Mechanism")
    for changed in ({"mechanism": stranger}, {"forms": stranger}):
        with refused:
            replace(access, **changed)

    class Duck(Access):
        def __post_init__(self):
            pass

    forged = Duck(**{field: getattr(access, field) for field in access.__dataclass_fields__})
    with refused:
        jax.eval_shape(lambda *given: door_p.bind(*given, access=forged), *(v.aval for v in equation.invars))
    jaxpr = program.jaxpr.replace(
        eqns=[e if e is not equation else e.replace(params={"access": forged}) for e in program.jaxpr.eqns]
    )
    with refused:
        verify_jaxpr(ClosedJaxpr(jaxpr, program.consts), [0], public_constants=True)


# What can be seen of the rows


def door_programs(function, *arguments, equations):
    """The whole program of `function`, and those of its accesses."""
    program = jax.make_jaxpr(function)(*arguments)
    return program, [e for e in equations(program) if e.primitive.name == "dpppl_door"]


def test_the_noised_sum_is_the_only_output(equations):
    """One access, one output for each site, of its shape; the rows go nowhere else."""

    def function(z, rows, key):
        return noisy_sum(door(subsampling=Poisson(0.1)), linear, z, rows, 1.0, key=key, noise_multiplier=2.0).total

    program, doors = door_programs(function, Z, ROWS, jax.random.key(0), equations=equations)
    assert len(doors) == 1
    assert [v.aval.shape for v in doors[0].outvars] == [v.aval.shape for v in program.jaxpr.outvars] == [(2,), ()]
    rows = program.jaxpr.invars[2]
    assert rows.aval.shape == ROWS.shape
    assert [e.primitive.name for e in program.jaxpr.eqns if rows in e.invars] == ["dpppl_door"]
    assert rows not in program.jaxpr.outvars


def holds(text, value):
    """Whether a lowered program holds this float32 as a literal, in decimals or in hexadecimal bytes."""
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+(?:[eE][-+]?\d+)?", text)]
    return bool(np.any(np.isclose(numbers, value, rtol=1e-6, atol=0))) or value.tobytes().hex() in text.lower()


def test_the_compiled_door_gets_the_rows_as_arguments(monkeypatch):
    """Outside jit the door compiles itself: that program holds no row either."""
    accesses = []

    def noting(access):
        accesses.append(access)
        return compiled_access(access)

    monkeypatch.setattr("dpppl.access.door.compiled", noting)
    rows = np.random.default_rng(1).uniform(100, 900, (5, 3)).astype(np.float32)
    noisy_sum(door(), linear, Z, rows, 1.0, key=jax.random.key(0), noise_multiplier=2.0)
    assert len(accesses) == 1
    assert not any(holds(str(accesses[0]), value) for value in rows.ravel())


def test_a_sparse_rate_does_no_work_of_the_size_of_the_data(equations):
    """Nothing but the rows themselves is as long as they are; the dense draw shows that this would be seen."""

    def longest(rate, num_rows):
        rows = {
            "x": jax.ShapeDtypeStruct((num_rows, 3), jnp.float32),
            "y": jax.ShapeDtypeStruct((num_rows,), jnp.float32),
        }

        def log_likelihood(z, row, public):
            return row["y"] * jnp.vdot(z, row["x"])

        def function(z, rows, key):
            return noisy_sum(
                door(subsampling=Poisson(rate)), log_likelihood, z, rows, None, key=key, noise_multiplier=1.0
            ).total

        _, (access,) = door_programs(function, jnp.zeros(3), rows, jax.random.key(0), equations=equations)
        program = jax.make_jaxpr(access.params["access"])(*(v.aval for v in access.invars))
        inside = [v for e in equations(program) for v in e.outvars]
        return max(np.prod(v.aval.shape, dtype=int) for v in inside if hasattr(v.aval, "shape"))

    assert longest(1e-4, 1_000_003) < 5_000
    assert longest(1e-5, 10_000_019) < 5_000
    assert longest(0.9, 100_003) >= 100_003
