"""Two host devices for every test, reproducible hypothesis runs, and what several test files share."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"

import hypothesis
import jax
import pytest

hypothesis.settings.register_profile("dpppl", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("dpppl")


def pytest_collection_finish(session):
    """Test modules must not make arrays when they are imported: leak tests count the live ones."""
    if jax.live_arrays():
        raise pytest.UsageError("a test module makes JAX arrays at import; make them inside tests or fixtures.")


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
