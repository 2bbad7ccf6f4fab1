"""What a process holds does not grow with the runs that it makes, and JAX's persistent cache learns nothing of data."""

import gc
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpppl
from dpppl.information_flow import executables


def model(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def run(seed, rows=37):
    x = np.random.default_rng(seed).uniform(-1, 1, (rows, 2)).astype(np.float32)
    kernel = dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=50.0)
    mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=3, progress_bar=False, print_cost=False)
    mcmc.run(dpppl.secret_key(), x, (x[:, 0] > 0).astype(np.float32))


def held():
    """Memory maps, and programs that are alive, by fingerprint: those of other tests may go meanwhile, and hide none that come."""
    gc.collect()
    maps = len(Path("/proc/self/maps").read_text().splitlines()) if Path("/proc/self/maps").exists() else 0
    return maps, Counter(program.fingerprint for program in jax.devices()[0].client.live_executables())


@pytest.mark.slow
def test_runs_of_the_same_shapes_add_no_programs_and_no_maps():
    run(0)
    run(1)
    maps, programs = held()
    for seed in range(2, 12):
        run(seed)
    assert held()[1] <= programs
    assert held()[0] <= maps + 20  # the allocator's; a program has several


@pytest.mark.slow
def test_runs_of_other_shapes_hold_no_programs_but_those_that_are_kept(monkeypatch):
    monkeypatch.setattr(executables, "MOST", 0)
    run(0)
    programs = held()[1]
    for rows in (38, 39):
        run(0, rows)
    assert held()[1] <= programs


@pytest.fixture
def folder(tmp_path):
    """A persistent cache of the test's own."""
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    compilation_cache.reset_cache()
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


@pytest.mark.slow
def test_the_persistent_cache_is_used_and_depends_on_no_data(folder):
    """Other rows and keys of the same shapes add no entry: nothing of them is in a program."""
    executables.clear()
    run(0)
    entries = sorted(path.name for path in folder.iterdir() if not path.name.endswith("-atime"))
    assert any("jaxpr_as_fun" in name for name in entries)
    executables.clear()
    run(1)
    assert sorted(path.name for path in folder.iterdir() if not path.name.endswith("-atime")) == entries
