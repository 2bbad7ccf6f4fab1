"""Two host devices for every test, programs that compile fast, reproducible hypothesis runs, and what tests share."""

import collections
import contextlib
import functools
import gc
import hashlib
import itertools
import os
import sys
import tempfile
import types
from importlib.metadata import version

# Small matrices and arrays, and another worker on the other core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=2"
# Compiling is most of what the tests take: level 1 without fusion emitters takes half of the time. Level 0 takes a third, but long
# chains are slow, so quick tests alone take it. The tests of rounding are compiled as users' programs are.
os.environ.setdefault("DPPPL_TESTS", "quick" if "not slow" in " ".join(sys.argv) else "all")  # for workers, too
if (tests := os.environ["DPPPL_TESTS"]) != "numerical" and version("jaxlib").startswith("0.10."):
    level = "0 --xla_llvm_disable_expensive_passes=true" if tests == "quick" else 1
    os.environ["XLA_FLAGS"] += f" --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level={level}"
    os.environ["XLA_FLAGS"] += (
        " --xla_cpu_parallel_codegen_split_count=1"  # one part of a program for each thread costs more
    )

import hypothesis
import jax
import pytest
from jax._src.interpreters import mlir

if version("jaxlib").startswith("0.10."):  # it makes a context for each program, and keeps most of them
    mlir.make_ir_context = functools.partial(lambda context: context, mlir.make_ir_context())

hypothesis.settings.register_profile("dpppl", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("dpppl")


DEAR_EXAMPLES = "README.md replay attacks.audit discrepancy tune table_model".split()
"""Slow doctests, whose code has quick tests, too."""


class Everywhere:
    """A plugin: what this file has does not reach README.md and docstrings, whose examples take secret keys and time, too."""

    def pytest_itemcollected(self, item):
        if isinstance(item, pytest.DoctestItem) and item.name.endswith(tuple(DEAR_EXAMPLES)):
            item.add_marker("slow")

    @pytest.fixture(autouse=True)
    def same_secrets(self, request):
        """Secret keys of a test are its own, and the same each time: what holds with noise holds in every run."""
        numbers = itertools.count()

        def urandom(count):
            return hashlib.shake_256(f"{request.node.nodeid} {next(numbers)}".encode()).digest(count)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dpppl.randomness.keys.os", types.SimpleNamespace(urandom=urandom))
            yield


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run every case of the tests that are marked as thinned")


def pytest_configure(config):
    """Tests compile many programs again and again: all workers share them, for as long as the session lasts."""
    config.pluginmanager.register(Everywhere())
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="dpppl-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder.name  # for workers and subprocesses
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
        jax.config.update("jax_compilation_cache_dir", folder.name)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


_cases: collections.Counter = collections.Counter()


def pytest_itemcollected(item):
    """Cases of a test beyond the n of quick_cases(n) are slow: they run in `make test-all`."""
    if mark := item.get_closest_marker("quick_cases"):
        test = item.nodeid.split("[")[0]
        _cases[test] += 1
        if _cases[test] > mark.args[0]:
            item.add_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Keep every n-th case of a test that is marked as thinned(n), the first of those selected included."""
    if config.getoption("--all"):
        return
    met, kept, left_out = collections.Counter(), [], []
    for item in items:
        mark, test = item.get_closest_marker("thinned"), item.nodeid.split("[")[0]
        (left_out if mark and met[test] % mark.args[0] else kept).append(item)
        met[test] += 1
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_collection_finish(session):
    """Test modules must not make arrays when they are imported: leak tests count the live ones. Then collect garbage less often:
    tracing makes many objects."""
    if jax.live_arrays():
        raise pytest.UsageError("a test module makes JAX arrays at import; make them inside tests or fixtures.")
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def claimed():
    """The keys that a test has used, none at first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpppl.randomness.keys._claimed", keys := set())
        yield keys


@pytest.fixture
def altered(monkeypatch):
    """`monkeypatch` for functions that draw, clip, add up or read rows: programs made of others are not used."""
    from dpppl.information_flow import executables

    executables.clear()
    yield monkeypatch
    executables.clear()


@pytest.fixture(params=[False, True], ids=["float32", "float64"])
def x64(request):
    """Run the test with `jax_enable_x64` off and on."""
    with jax.enable_x64(request.param):
        yield request.param


@pytest.fixture(scope="session")
def equations():
    """`equations(jaxpr)` iterates over all equations of a jaxpr, those inside others included."""

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            yield equation
            for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: _jaxpr_of(x) is not None):
                if _jaxpr_of(inner) is not None:
                    yield from walk(_jaxpr_of(inner))

    return lambda closed: walk(closed.jaxpr)


def _jaxpr_of(value):
    """The open jaxpr in an equation's parameter, or None."""
    value = getattr(value, "jaxpr", value)
    return value if hasattr(value, "eqns") else None


@pytest.fixture
def dies_at_third_checkpoint(monkeypatch):
    """A context in which a run is interrupted, and must be, once it has saved its checkpoint three times."""
    from dpppl.runs import checkpoint

    save, saved = checkpoint.Checkpoint.save, []

    def save_then_die(self, at, finished):
        save(self, at, finished)
        saved.append(at.done)
        if len(saved) == 3:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def inside():
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(checkpoint.Checkpoint, "save", save_then_die)
            yield

    return inside
