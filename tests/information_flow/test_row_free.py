"""What is computed beside the accesses, of a user's functions, holds no rows: no callback brings them in, no captured array."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.example_libraries import optimizers
from numpyro.infer.autoguide import AutoNormal

import dpppl
from dpppl.errors import PrivacyLeakError, UnsupportedModelError
from dpppl.information_flow.row_free import proved

Y = np.arange(1.0, 9.0, dtype=np.float32)
REFUSED = (PrivacyLeakError, UnsupportedModelError)


def fetched():
    return jax.pure_callback(lambda: 2.0 * Y, jax.ShapeDtypeStruct(Y.shape, Y.dtype))


def normal(y, more=lambda mean: None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    more(mean)
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def calls(y):
    normal(y, lambda mean: numpyro.deterministic("spied", mean + fetched()))


def captures(y):
    normal(y, lambda mean: numpyro.deterministic("spied", mean + jnp.asarray(2.0 * Y)))


def mcmc(model):
    return dpppl.MCMC(dpppl.DPSGLD(model, clipping_norm=1.0, step_size=0.01), num_warmup=0, num_samples=2)


def svi(model, guide=None, optim=None):
    guide, optim = guide or AutoNormal(model), optim or optax.sgd(0.01)
    return dpppl.SVI(model, guide, optim, clipping_norm=1.0, noise_multiplier=1.0)


METHODS = {
    "MCMC": lambda model: mcmc(model).run(jax.random.key(0), Y),
    "SVI": lambda model: svi(model).run(jax.random.key(0), 2, Y),
    "NoiseAware": lambda model: dpppl.NoiseAware(model, noise_multiplier=1.0).run(jax.random.key(0), Y),
    "a kernel": lambda model: dpppl.DPSGLD(model, clipping_norm=1.0).init(jax.random.key(0), 0, None, (Y,), {}),
}


def short(y):
    """On one row, as which samples are constrained, it is another model."""
    if y.shape[0] != len(Y):
        return calls(y)
    return normal(y, lambda mean: numpyro.deterministic("spied", mean + jnp.zeros(len(Y))))


class Fetching(dist.Normal):
    """Its draws and its median, with which chains start, are called for; its density is not."""

    def sample(self, key, sample_shape=()):
        return jnp.zeros(sample_shape) + fetched()[0]

    def icdf(self, q):
        return fetched()[0]


def starts(y):
    mean = numpyro.sample("mean", Fetching(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


SPIED, RUN = r"site 'spied': the model (has a side effect|captures an array)", "what pure_callback returns"
ROWS_IN = [
    ("MCMC", calls, SPIED), ("MCMC", short, RUN), ("NoiseAware", short, RUN), ("MCMC", starts, RUN), ("NoiseAware", starts, RUN),
    ("MCMC", captures, SPIED), *((method, model, SPIED) for method in list(METHODS)[1:] for model in (calls, captures)),
]  # fmt: skip


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("method", "model", "words"), ROWS_IN)
def test_models_bring_no_rows_in_and_what_runs_is_what_is_proved(method, model, words, capfd):
    with pytest.raises(REFUSED, match=words):
        METHODS[method](model)
    assert "will spend" not in "".join(capfd.readouterr())


def transformed(init=lambda params: (), spied=lambda: 0.0):
    return optax.GradientTransformation(init, lambda g, s, p=None: (jax.tree.map(lambda x: x + spied(), g), s))


def of_examples():
    init, update, get = optimizers.sgd(0.01)
    return optimizers.Optimizer(init, update, lambda state: jax.tree.map(lambda x: x + fetched()[0], get(state)))


OPTIMISERS = {
    "init": lambda: transformed(init=lambda params: fetched()),
    "init that captures": lambda: transformed(init=lambda params: jnp.asarray(Y)),
    "update": lambda: transformed(spied=lambda: fetched()[0]),
    "parameters": of_examples,
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("optim", OPTIMISERS)
def test_optimisers_bring_no_rows_in(optim, capfd):
    with pytest.raises(REFUSED, match=r"pure_callback|captures an array"):
        svi(normal, optim=OPTIMISERS[optim]()).run(jax.random.key(0), 2, Y)
    assert "will spend" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_guides_bring_no_rows_in():
    def guide(y):
        loc = numpyro.param("loc", lambda key: fetched()[0])
        numpyro.sample("mean", dist.Normal(loc, 1.0))

    with pytest.raises(REFUSED, match="side effect"):
        svi(normal, guide).run(jax.random.key(0), 2, Y)


@pytest.mark.slow
def test_what_was_proved_is_what_runs():
    """A function that changes its mind after it was traced is not asked again."""
    times = []

    def changing(x):
        times.append(1)
        return {"a": x * len(times)}

    run = proved(changing, np.float32(1.0), num_rows=len(Y))
    assert run(np.float32(3.0)) == run(np.float32(3.0)) == {"a": 3.0} and len(times) == 1
    with pytest.raises(PrivacyLeakError, match="site 'b': the program captures an array of shape"):
        proved(lambda x: {"a": x + np.ones(3), "b": x + jnp.asarray(Y)}, np.float32(1.0), num_rows=len(Y))
