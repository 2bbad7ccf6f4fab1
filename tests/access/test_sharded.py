"""Accesses of rows that are sharded over devices: the numbers of one device, each row counted once, one noise."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_statistic, noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.data.rows import checked_mesh, described, number_of, sharded
from dpppl.errors import ConfigurationError
from dpppl.randomness import chacha, keys
from dpppl.subsampling import FullBatch, Partition, Poisson

N = 1_003  # odd: the last device has a row of padding

SCHEMES = {"full": FullBatch(), "sparse": Poisson(0.05), "dense": Poisson(0.7), "partition": Partition(7)}


def meshes():
    return [jax.make_mesh((count,), ("rows",), devices=jax.devices()[:count]) for count in (1, 2)]


def rows_of(seed=0, num_rows=N, size=5):
    random = np.random.default_rng(seed)
    x = random.standard_normal((num_rows, size)).astype(np.float32)
    return {"x": x, "y": (random.random(num_rows) < 0.5).astype(np.float32)}


def log_likelihood(z, row, public):
    logit = row["x"] @ z
    return row["y"] * logit - jax.nn.softplus(logit)


def released(mechanism, rows, steps=range(3), noise_multiplier=0.5):
    """The noisy sums of a few steps, and those of two chains."""
    z, key = jnp.linspace(-1.0, 1.0, 5), jax.random.key(7)

    def at(z, rows, key, step):
        return noisy_sum(
            mechanism, log_likelihood, z, rows, None, key=key, noise_multiplier=noise_multiplier, step=step
        )

    alone = jax.jit(at)
    chains = jax.jit(jax.vmap(at, (0, None, 0, None)))(jnp.stack([z, -z]), rows, jax.random.split(key), 1)
    return [np.asarray(x) for x in jax.tree.leaves([*(alone(z, rows, key, step) for step in steps), chains])]


@pytest.mark.slow
@pytest.mark.parametrize("discretise", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_bits_do_not_depend_on_the_number_of_devices(scheme, discretise):
    mechanism = Mechanism(clipping=Flat(1.0), subsampling=SCHEMES[scheme], discretise=discretise, count_share=0.1)
    found = [released(mechanism, rows) for rows in (rows_of(), *(sharded(rows_of(), mesh) for mesh in meshes()))]
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_chains_have_the_same_float64_noise_on_any_number_of_devices():
    """XLA may round a product and a sum once in one program, and twice in another."""
    several = jax.vmap(partial(jax.random.fold_in, chacha.wrap(np.arange(8))))(np.arange(2))
    mechanism, rows = (
        Mechanism(clipping=Flat(1.0), subsampling=FullBatch()),
        {"x": np.random.default_rng(0).normal(size=(40, 700))},
    )

    def access(key, rows):
        x = lambda _, row, __: row["x"]  # noqa: E731
        return noisy_statistic(mechanism, x, 0.0, rows, None, key=key, noise_multiplier=0.73).total

    with jax.enable_x64(True):
        one, two = (jax.jit(jax.vmap(access, (0, None)))(several, each) for each in (rows, sharded(rows, meshes()[1])))
    np.testing.assert_array_equal(one, two)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_row_that_is_drawn_counts_once(scheme):
    mechanism = Mechanism(clipping=Flat(1.0), subsampling=SCHEMES[scheme])
    assert (SCHEMES["sparse"].batch_cap(N), SCHEMES["dense"].batch_cap(N)) == (130, None)
    rows, key = sharded({"number": np.arange(N, dtype=np.int32)}, meshes()[1]), jax.random.key(3)

    @jax.jit
    def counted(rows, step):
        one = lambda _, row, __: jax.nn.one_hot(row["number"], N)  # noqa: E731
        return noisy_statistic(mechanism, one, 0.0, rows, None, key=key, noise_multiplier=1e-9, step=step).total

    for step in range(8):
        index, mask = SCHEMES[scheme].draw(keys.stream(key, "subsampling"), N, step)
        mask = np.ones(N if index is None else len(index), bool) if mask is None else np.asarray(mask)
        index = np.arange(N) if index is None else np.asarray(index)
        np.testing.assert_allclose(counted(rows, step), np.bincount(index[mask], minlength=N), atol=1e-6)


@pytest.mark.slow
def test_a_batch_of_more_chunks_than_one_device_has_rows():
    mechanism = Mechanism(clipping=Flat(1.0), subsampling=Poisson(0.4))
    rows = rows_of(num_rows=3_001)
    found = [released(mechanism, sharded(rows, mesh)) for mesh in meshes()]
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_thresholds_of_many_rows_are_drawn_by_blocks():
    scheme, key = Poisson(0.6), jax.random.key(5)
    _, mask = scheme.draw(key, 150_000, 2)
    assert abs(float(jnp.mean(mask)) - 0.6) < 0.01  # sd .0013
    for first in (0, 75_000, 149_000):
        part = scheme.draw_part(key, 150_000, 2, jnp.int32(first), 75_000).mask
        whole = np.pad(np.asarray(mask), (0, 75_000))[first : first + 75_000]
        np.testing.assert_array_equal(part, whole)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["full", "sparse"])
def test_ghost_sums_are_equal_to_rounding(scheme):
    mechanism = Mechanism(clipping=Flat(1.0), subsampling=SCHEMES[scheme], strategy="ghost", count_share=0.1)
    one, *others = [released(mechanism, rows) for rows in (rows_of(), *(sharded(rows_of(), m) for m in meshes()))]
    for other in others:
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_arrays_that_are_dealt_out_are_taken_as_they_lie(axis_type):
    mesh = jax.make_mesh((2,), ("devices",), axis_types=(axis_type,))
    given = rows_of(num_rows=204)
    lying = {n: jax.device_put(x, NamedSharding(mesh, P("devices"))) for n, x in given.items()}
    rows = sharded(lying, None)
    assert number_of(rows) == 204 and "2 device(s)" in described(rows)
    for name, array in rows.arrays.items():
        pointers = [[s.data.unsafe_buffer_pointer() for s in x.addressable_shards] for x in (array, lying[name])]
        assert pointers[0] == pointers[1]
    mechanism = Mechanism(clipping=Flat(1.0), subsampling=SCHEMES["sparse"])
    for one, two in zip(released(mechanism, given), released(mechanism, rows), strict=True):
        np.testing.assert_array_equal(one, two)


def test_rows_on_one_device_stay_plain():
    assert sharded({"x": jnp.ones((4, 2))}, None) is None
    everywhere = NamedSharding(meshes()[1], P())
    assert sharded({"x": jax.device_put(np.ones((4, 2)), everywhere)}, None) is None


def test_what_is_dealt_out_in_other_ways_is_refused():
    two = meshes()[1]
    columns = jax.device_put(np.ones((4, 2), np.float32), NamedSharding(two, P(None, "rows")))
    with pytest.raises(ConfigurationError, match="argument 'x' lies on several devices, but not by rows"):
        sharded({"x": columns}, None)
    by_rows = jax.device_put(np.ones((4, 2), np.float32), NamedSharding(two, P("rows")))
    with pytest.raises(ConfigurationError, match="shard all private arrays alike"):
        sharded({"x": by_rows}, jax.make_mesh((2,), ("others",)))
    with pytest.raises(ConfigurationError, match=r"mesh must be a jax\.sharding\.Mesh"):
        checked_mesh((2,))
    with pytest.raises(ConfigurationError, match="name the one that rows are sharded over 'rows'"):
        checked_mesh(jax.make_mesh((1, 2), ("data", "model")))


@pytest.mark.slow
def test_chains_on_an_axis_of_their_own_have_the_same_bits():
    mechanism, z, found = Mechanism(clipping=Flat(1.0), subsampling=SCHEMES["sparse"]), jnp.linspace(-1.0, 1.0, 5), []
    starts, chain_keys = jnp.stack([z, -z, 2.0 * z, 0.0 * z]), jax.random.split(jax.random.key(7), 4)

    def at(z, rows, key):
        return noisy_sum(mechanism, log_likelihood, z, rows, None, key=key, noise_multiplier=0.5).total

    chains = jax.jit(jax.vmap(at, (0, None, 0)))
    for over in ((1, 1), (2, 1), (1, 2)):
        mesh = jax.make_mesh(over, ("chains", "rows"), devices=jax.devices()[: over[0] * over[1]])
        found.append(np.asarray(chains(starts, sharded(rows_of(), mesh), chain_keys)))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_allclose(
        found[0], chains(starts, sharded(rows_of(), meshes()[0]), chain_keys), rtol=1e-5, atol=1e-5
    )
    with pytest.raises(ConfigurationError, match="3 chains cannot be laid over 2 devices of the mesh's axis 'chains'"):
        chains(starts[:3], sharded(rows_of(), jax.make_mesh((2, 1), ("chains", "rows"))), chain_keys[:3])
