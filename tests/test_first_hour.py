"""What a NumPyro user tries first: it works, or the error names the site, the cause and a cure that can be followed."""

import copy
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpyro import handlers
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.util import log_density
from small_models import latent, logistic
from small_models import normal_mean as mean

import dpppl
from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.model.split import split_model

N = 12
SECRET = 98765.25
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def normal(y, ok=True):
    mu, tau = latent("mu"), numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("data", y.shape[0]), handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(mu, tau), obs=y)


def split(model, *args, **kwargs):
    return split_model(model, args, kwargs)


def refused(model, *args, kind=UnsupportedModelError, **kwargs):
    """The error of a split; it tells no data value."""
    with pytest.raises(kind) as caught:
        split(model, *args, **kwargs)
    assert "98765" not in str(caught.value)
    return str(caught.value)


# Models


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("value", [1.5, jnp.float32, np.float64], ids=["python", "jax", "numpy"])
def test_a_condition_is_a_part_of_the_prior(value):
    """Of a site outside the plates: what it observes is public, as the numbers in a factor are."""
    conditioned = handlers.condition(normal, {"tau": 1.5 if value == 1.5 else value(1.5)})
    found = split(conditioned, X[:, 0])
    assert list(found.latents) == ["mu"]
    for mu in (-0.7, 0.4):
        z = {"mu": jnp.float32(mu)}
        rows, public = found.arrays((X[:, 0],), {})
        ours = found.log_prior(z, public) + sum(found.log_likelihood(z, {"y": y}, public) for y in rows["y"])
        np.testing.assert_allclose(ours, log_density(conditioned, (X[:, 0],), {}, z)[0], rtol=1e-5)


def test_responses_drawn_from_a_model_leave_its_conditions_alone():
    from dpppl.model.responses import Responses

    found = split(handlers.condition(normal, {"tau": 1e-4}), X[:, 0])
    drawn, _ = Responses.of(found)({"mu": jnp.float32(2.0)}, {"y": jnp.float32(0.0)}, {}, jax.random.key(0))
    assert list(drawn) == ["y"] and np.allclose(drawn["y"], 2.0, atol=1e-2)


def test_nothing_to_infer():
    everything = handlers.condition(normal, {"tau": 1.0, "mu": 0.0})
    message = refused(everything, X[:, 0])
    assert (
        "no continuous latent site, so there is nothing to infer: 'mu' and 'tau' and 'y' have their values" in message
    )
    for run in (
        lambda: dpppl.NoiseAware(everything, noise_multiplier=1.0).run(dpppl.secret_key(), X[:, 0]),
        lambda: dpppl.SVI(everything, lambda y: None, noise_multiplier=1.0).run(dpppl.secret_key(), 1, X[:, 0]),
    ):
        with pytest.raises(UnsupportedModelError, match="nothing to infer"):
            run()


FRAME = pd.DataFrame(X, columns=list("abc"))


# Arguments


@pytest.mark.parametrize(
    "args",
    [
        (X, Y.tolist()),
        (X, tuple(Y.tolist())),
        (FRAME, pd.Series(Y)),
        (FRAME, pd.Series(Y, dtype="Int64")),
        (FRAME, Y > 0),
        (pl.DataFrame(X, schema=list("abc")), pl.Series(Y)),
        (FRAME.assign(a=pl.Series(X[:, 0]).to_list()), pd.Index(Y)),
        (pa.table(dict(zip("abc", X.T))), pl.Series(Y)),
    ],
    ids=["lists", "tuple", "pandas", "nullable", "bool", "polars", "index", "arrow"],
)
def test_lists_and_data_frames_are_arrays(args):
    found = split(logistic, *args)
    rows, _ = found.arrays(args, {})
    assert np.array_equal(rows["x"], X) and np.array_equal(rows["y"], Y)
    may_miss = isinstance(args[1], pl.Series | list | tuple) or str(getattr(args[1], "dtype", "")) == "Int64"
    assert jnp.issubdtype(rows["y"].dtype, jnp.floating) == may_miss  # whether any is missing or not


def test_data_frames_may_be_public_and_parts():
    def model(data, table):
        w = latent()
        with numpyro.plate("data", data["y"].shape[0]):
            numpyro.sample("y", dist.Normal(w + table[data["group"].astype(int), 1], 1.0), obs=data["y"])

    found = split(model, {"y": FRAME["a"], "group": list(range(N))}, dpppl.Public(FRAME))
    assert set(found.row) == {"data['y']", "data['group']"} and list(found.arguments.public) == ["table"]


def test_columns_with_missing_values_are_nan():
    frame = FRAME.assign(a=pd.array([None] + [1] * (N - 1), dtype="Int64"), b=True)
    rows, _ = split(logistic, frame, Y).arrays((frame, Y), {})
    assert np.isnan(rows["x"][0, 0]) and rows["x"][1:, :2].tolist() == [[1.0, 1.0]] * (N - 1)
    for first in (None, True):  # no row decides the type
        for kind in (pa.table, pa.RecordBatch.from_pydict):
            table = kind({"a": [first] + [True] * (N - 1), "b": [1] * N, "c": [1] * N})
            rows, _ = split(logistic, table, Y).arrays((table, Y), {})
            assert rows["x"].dtype == np.float32 and np.isnan(rows["x"][0, 0]) == (first is None)


TEXT = [str(SECRET)] * N


@pytest.mark.parametrize(
    ("frame", "dtype"),
    [
        (FRAME.assign(job=TEXT), "str"),
        (FRAME.assign(job=pd.Categorical(TEXT)), "category"),
        (FRAME.assign(job=pd.Series([SECRET] * N, dtype=object)), "object"),
        (FRAME.assign(job=pd.Timestamp("2020-01-01")), "datetime64"),
        (pl.DataFrame({"job": TEXT}), "String"),
        (pl.DataFrame({"job": pl.Series(TEXT, dtype=pl.Enum(TEXT[:1]))}), "Enum"),
    ],
    ids=["text", "category", "object", "date", "polars", "enum"],
)
def test_columns_that_are_no_numbers(frame, dtype):
    message = refused(logistic, frame, Y, kind=ConfigurationError)
    assert (
        f"column 'job' of argument 'x' is of dtype {dtype}" in message
        and "arrays are numbers: pass .astype('float32')" in message
    )
    assert "argument 'y' is of dtype" in refused(normal, frame["job"], kind=ConfigurationError)


class Sparse:
    def toarray(self):
        return X


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: (y for y in Y), "argument 'x' is a generator, which has no order or is read only once; pass an array"),
        (lambda: {1.0, 2.0}, "argument 'x' is a set, which has no order or is read only once"),
        (lambda: range(N), "argument 'x' is a range. Arrays and data frames of numbers are private rows."),
        (Sparse, "argument 'x' is a Sparse; pass x.toarray()."),
        (lambda: pl.LazyFrame({"a": [1.0]}), "argument 'x' is a LazyFrame; pass x.collect()."),
    ],
    ids=["generator", "set", "range", "sparse", "lazy"],
)
def test_what_is_no_array(value, message):
    with pytest.raises((ConfigurationError, UnsupportedModelError)) as caught:
        split(logistic, value())
    assert message in str(caught.value) and "closure and" not in message


# Settings

KERNELS = dpppl.DPSGLD, dpppl.DPSGHMC, dpppl.DPSGNHT


@pytest.mark.parametrize("number", [jnp.array, np.array, np.float32], ids=["jax", "numpy", "scalar"])
def test_numbers_may_be_arrays_without_axes(number):
    settings = {name: number(2.0) for name in ("clipping_norm", "noise_multiplier", "temperature", "step_size")}
    kernel = dpppl.DPSGHMC(logistic, friction=number(0.5), subsampling=dpppl.Poisson(number(0.5)), **settings)
    mechanism = kernel.mechanism
    values = [kernel.friction, mechanism.clipping.clipping_norm, mechanism.subsampling.rate, kernel.step_size]
    assert values == [0.5, 2.0, 0.5, 2.0] and all(type(value) is float for value in values)
    assert dpppl.Partition(number(3).astype(int)).num_batches == 3
    with pytest.raises(ConfigurationError, match="clipping_norm must be a positive"):
        dpppl.DPSGLD(logistic, clipping_norm=np.ones(2))


def test_american_spelling():
    assert dpppl.DPSGLD(logistic, clipping="centered").mechanism == dpppl.DPSGLD(logistic).mechanism


def test_signatures_and_names_are_complete():
    common = {name: p for name, p in inspect.signature(dpppl.DPSGLD).parameters.items() if name != "model"}
    for kernel in KERNELS:
        parameters = inspect.signature(kernel).parameters
        assert common.items() <= parameters.items() and "settings" not in parameters
    assert list(inspect.signature(dpppl.DPSGHMC).parameters)[:3] == ["model", "friction", "clipping_norm"]
    documented = inspect.getdoc(dpppl.DPSGLD)
    assert all(f"\n- **{name}**" in documented for name in ("model", *common))
    assert set(dir(dpppl)) == {*dpppl.__all__, "__doc__", "__version__"}


def test_kernels_print_in_a_line():
    for kernel in KERNELS:
        assert repr(kernel(logistic, noise_multiplier=3.0)).startswith(
            f'{kernel.__name__}(logistic; clipping_norm "auto"; '
        )
    assert repr(dpppl.DPSGLD(logistic, clipping_norm=2.0, step_size=0.1, noise_multiplier=3.0)) == (
        "DPSGLD(logistic; flat, clipping_norm 2; full batch: every row at every step; step size 0.1; noise multiplier 3)"
    )


# Runs

TARGET = dict(target_epsilon=1.0, target_delta=1e-5)


def chains(kernel=None, **settings):
    steps = dict(num_warmup=5, num_samples=5, progress_bar=False)
    return dpppl.MCMC(kernel or dpppl.DPSGLD(logistic), **(steps | TARGET | settings))


def svi(guide=None, **settings):
    return dpppl.SVI(logistic, guide or AutoNormal(logistic), **(TARGET | settings))


def noise_aware(**settings):
    return dpppl.NoiseAware(logistic, **(TARGET | settings))


def test_a_ledger_may_be_named_by_its_path(tmp_path):
    path = tmp_path / "data.ledger"
    for make in (chains, svi, noise_aware):
        with pytest.raises(
            ConfigurationError, match=r"there is no ledger at .*PrivacyLedger\('.*data.ledger', epsilon, delta\)"
        ):
            make(ledger=path)
        assert not path.exists()
    ledger = dpppl.PrivacyLedger(path, 1.0, 1e-5)
    for make in (chains, svi, noise_aware):
        assert make(ledger=str(path)).budget.ledger.epsilon == ledger.epsilon == 1.0
    assert dpppl.PrivacyLedger(path, jnp.array(1.0), np.array(1e-5)).epsilon == 1.0
    assert repr(ledger) == f"PrivacyLedger('{path}', epsilon=1, delta=1e-05)"


def test_objects_print_in_a_line_and_reports_as_tables():
    start = "nothing run; epsilon 0 of 1 spent at delta 1e-05"
    line = f"{chains().sampler!r}: 1 x (5 + 5) steps, {start}"
    assert repr(chains()) == f"MCMC of {line}"
    assert repr(noise_aware()) == f"NoiseAware of logistic: {start}"
    assert (
        repr(svi())
        == f'SVI of logistic by AutoNormal; clipping_norm "auto"; full batch: every row at every step: {start}'
    )
    report = chains().privacy_plan()
    assert repr(report) == str(report) and "epsilon" in repr(report)


@pytest.fixture(scope="module")
def fitted():
    """SVI with the default optimiser, and its result."""
    fit = dpppl.SVI(mean, AutoNormal(mean), noise_multiplier=5.0, clipping_norm=1.0, print_cost=False)
    return fit, fit.run(dpppl.secret_key(), 3, X[:, 0], progress_bar=False)


@pytest.mark.slow
def test_svi_has_a_pickle(fitted, monkeypatch):
    import sys

    fit, result = fitted
    restored = pickle.loads(pickle.dumps(fit))
    assert repr(restored) == repr(fit) and str(restored.privacy_report()) == str(fit.privacy_report())
    jax.tree.map(np.testing.assert_array_equal, restored.get_params(result.state), result.last_params)
    assert isinstance(restored.init(dpppl.secret_key(), X[:, 0]).i, jax.Array) and restored.optim.num_steps == 3
    chosen = dpppl.SVI(mean, AutoNormal(mean), optax.adam(0.1), noise_multiplier=5.0, clipping_norm=1.0)
    assert pickle.loads(pickle.dumps(chosen)).optim.init({"x": 1.0}) and copy.deepcopy(chosen).optim is chosen.optim
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    lost = pickle.loads(pickle.dumps(chosen))
    assert lost.privacy_plan(2).epsilon_at(1e-5) == chosen.privacy_plan(2).epsilon_at(1e-5)
    with pytest.raises(ConfigurationError, match="pickled without its optimiser"):
        lost.init(dpppl.secret_key(), X[:, 0])


def test_draws_from_a_fit(fitted):
    """As NumPyro's users write them."""
    fit, result = fitted
    key = jax.random.PRNGKey(0)
    assert fit.guide.sample_posterior(key, result.params)["mu"].shape == ()
    for args in ((), (X[:, 0],)):
        assert Predictive(fit.guide, params=result.params, num_samples=3)(key, *args)["mu"].shape == (3,)
    drawn = Predictive(mean, guide=fit.guide, params=result.params, num_samples=3)(key, np.zeros(4))
    assert drawn["y"].shape == (3, 4) and result.sample_posterior(key, 3)["mu"].shape == (3,)
    with pytest.raises(ConfigurationError, match="num_samples must be a whole number, got a tuple"):
        result.sample_posterior(key, (3,))


def test_arviz_is_told_where_to_go():
    import arviz

    for make, name in ((noise_aware, "noise_aware"), (chains, "mcmc")):
        thing = make()
        thing.get_samples = lambda group_by_chain: {"w": np.zeros((1, 5, 3))}
        with pytest.raises(ConfigurationError, match=f"{name}.to_arviz"):
            arviz.from_numpyro(thing)


# Remedies, followed to their end


def of_rows(y):
    mu = latent("mu")
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(numpyro.sample("z", dist.Normal(mu, 1.0)), 1.0), obs=y)


def amortised(y):
    loc, slope = numpyro.param("loc", 0.0), numpyro.param("slope", 0.0)
    numpyro.sample("mu", dist.Normal(loc, 0.1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("z", dist.Normal(slope * y, 1.0))


@pytest.mark.slow
def test_latents_of_rows_are_led_to_per_parameter_gradients():
    settings = dict(noise_multiplier=1.0, clipping="centred")
    bind = lambda **more: dpppl.SVI(of_rows, amortised, **(settings | more)).init(dpppl.secret_key(), X[:, 0])  # noqa: E731
    with pytest.raises(UnsupportedModelError, match=r'gradient="per_parameter", clipping_norm=1\.0'):
        bind()
    with pytest.raises(UnsupportedModelError, match=r'use clipping="flat", with a dpppl kernel or dpppl\.SVI'):
        bind(gradient="per_parameter", clipping_norm=1.0)
    assert bind(gradient="per_parameter", clipping_norm=1.0, clipping="flat").i == 0
    with pytest.raises(ConfigurationError, match=r"give the norm as a number: clipping_norm=1\.0"):
        bind(gradient="per_parameter")


def hinge(x, y):
    w = latent("w", 3)
    with numpyro.plate("data", x.shape[0]):
        numpyro.factor("hinge", -jnp.maximum(0.0, 1.0 - (2 * y - 1) * (x @ w)))


@pytest.mark.slow
def test_factors_of_rows_are_led_to_flat_clipping():
    """NoiseAware has none: it names the methods that have."""
    with pytest.raises(UnsupportedModelError, match=r'use clipping="flat", with a dpppl kernel or dpppl\.SVI'):
        dpppl.NoiseAware(hinge, noise_multiplier=1.0).run(dpppl.secret_key(), X, Y)
    init = lambda kernel: kernel.init(dpppl.secret_key(), 0, None, (X, Y), {})  # noqa: E731
    with pytest.raises(UnsupportedModelError, match='use clipping="flat"'):
        init(dpppl.DPSGLD(hinge, noise_multiplier=1.0))
    assert init(dpppl.DPSGLD(hinge, noise_multiplier=1.0, clipping="flat")).i == 0
    assert (
        dpppl.SVI(hinge, AutoNormal(hinge), noise_multiplier=1.0, clipping_norm=1.0).init(dpppl.secret_key(), X, Y).i
        == 0
    )
