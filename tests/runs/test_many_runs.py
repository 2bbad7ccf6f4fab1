"""What a process holds does not grow with the runs that it makes, and JAX's persistent cache learns nothing of data."""

import gc
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from small_models import latent, seen

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
    """A persistent cache of the test's own, of all programs, however fast they are compiled."""
    from jax.experimental.compilation_cache import compilation_cache

    settings = {"jax_compilation_cache_dir": str(tmp_path), "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
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


def holds(folder, *arrays):
    """Whether an entry of the cache holds two neighbouring float32 of one of the arrays, by rows or by columns, as bytes."""
    from jax._src.compilation_cache import decompress_executable

    laid = [np.ravel(array, order) for array in arrays for order in "CF"]
    pairs = np.concatenate([np.stack([a[:-1], a[1:]], axis=1).ravel().view(np.uint64) for a in laid])
    entries = [path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-atime")]
    assert entries
    every = b"".join(map(decompress_executable, entries))
    words = (np.frombuffer(every, np.uint64, (len(every) - start) // 8, start) for start in range(8))
    return any(np.isin(word, pairs).any() for word in words)


def regression(x, y):
    seen(y, latent("slope") * x[:, 0] - x[:, 1])


@pytest.mark.slow
def test_the_persistent_cache_holds_no_row(folder):
    """Runs of all three methods leave no entry that holds a row; a program that captured the rows as a constant leaves one."""
    numbers = np.random.default_rng(0).normal(size=(1_203, 3)).astype(np.float32)
    rows, given = (numbers[:, :2], numbers[:, 2]), {"noise_multiplier": 50.0, "print_cost": False}
    executables.clear()
    dpppl.NoiseAware(regression, progress_bar=False, **given).run(dpppl.secret_key(), *rows)
    kernel = dpppl.DPSGLD(regression, clipping_norm=1.0, noise_multiplier=50.0)
    mcmc = dpppl.MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False, print_cost=False)
    mcmc.run(dpppl.secret_key(), *rows)
    svi = dpppl.SVI(regression, AutoNormal(regression), clipping_norm=1.0, **given)
    svi.run(dpppl.secret_key(), 5, *rows, progress_bar=False)
    assert not holds(folder, *rows)
    jax.block_until_ready(jax.jit(lambda scale: scale * rows[0])(2.0))
    assert holds(folder, *rows)
