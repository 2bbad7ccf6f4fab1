"""Rows that are read from disk inside an access: the same bits as in memory, each row once, and errors that are clear."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpppl.access.clipping import Flat
from dpppl.access.mechanism import ROW_NUMBER, Mechanism
from dpppl.data import disk
from dpppl.subsampling import FullBatch, Partition, Poisson

N, D = 1_003, 3
SCHEMES = {
    "full": FullBatch(),
    "sparse": Poisson(0.05),
    "dense": Poisson(0.6),
    "partition": Partition(3),
}


def of_row(z, row, _):
    return -jnp.sum((row["x"] @ z - row["y"]) ** 2) * (1.0 + row[ROW_NUMBER] / N)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """An array in memory, and the same in a file."""
    array = np.random.default_rng(0).standard_normal((N, D + 1)).astype(np.float32)
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, array)
    return array, np.load(path, mmap_mode="r")


def parts(array):
    return {"x": array[:, :D], "y": array[:, D]}


def access(rows, subsampling, strategy="auto", chains=1):
    mechanism = Mechanism(clipping=Flat(2.0), subsampling=subsampling, strategy=strategy)

    def one(key, rows):
        return mechanism.noisy_sum(
            of_row, jnp.ones(D), rows, None, key=key, noise_multiplier=1e-3, step=3, number=ROW_NUMBER
        ).total

    keys = jax.random.split(jax.random.key(0), chains)
    return np.asarray(jax.jit(jax.vmap(one, (0, None)))(keys, rows))


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(disk, "_BLOCK_ROWS", 100)


@pytest.mark.parametrize("strategy", ["microbatch", "ghost"])
@pytest.mark.parametrize("name", SCHEMES)
def test_sums_have_the_bits_of_those_in_memory(name, strategy, data, monkeypatch):
    monkeypatch.setattr("dpppl.access.exact_sum._INT32_GRIDS", ((32, 65_536, 21), (32, 2**22, 24)))
    monkeypatch.setattr("dpppl.access.ghost_sum._MOST_ROWS", 32)
    array, on_file = data
    in_memory = access(jax.tree.map(jnp.asarray, parts(array)), SCHEMES[name], strategy, 2)
    for rows in (64, 100, 2_000):
        monkeypatch.setattr(disk, "_BLOCK_ROWS", rows)
        found = access(disk.on_disk(parts(on_file), None), SCHEMES[name], strategy, 2)
        np.testing.assert_array_equal(in_memory, found)
    assert not [t for t in threading.enumerate() if t.name.startswith("dpppl-reader")]
