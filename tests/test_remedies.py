"""Each message's remedy runs: what was refused, what the message says, and the same with the remedy."""

import dataclasses
import decimal
import functools
import importlib
import importlib.metadata
import logging
import re
import tomllib
import warnings
from pathlib import Path

import datasets
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd  # noqa: F401  (for the code of the table)
import pyarrow as pa
import pytest
from cures import PACKAGE, messages
from flax import nnx
from jax.experimental import sparse
from made_up import likelihood_of
from numpyro import handlers, infer
from numpyro.contrib.module import nnx_module, random_nnx_module
from numpyro.infer.autoguide import AutoNormal
from small_models import latent, linear, seen
from small_models import normal_mean as mean

import dpppl
from dpppl import accounting as ac
from dpppl.contrib import pages, plotting, synthetic
from dpppl.contrib.audit import audit
from dpppl.errors import ConfigurationError, DataReadError, UnsupportedModelError
from dpppl.information_flow.proof import verify_jaxpr
from dpppl.information_flow.rules import check_row_program
from dpppl.model.arguments import Arguments
from dpppl.model.initialization import initial_values
from dpppl.model.split import split_model
from dpppl.model.supports import codes
from dpppl.noise_aware.binding import bind
from dpppl.published.supports import Site
from dpppl.randomness import keys
from dpppl.svi.binding import bind_objective

N = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = X[:, 0]
OK = Y > -0.5
GROUP = np.arange(N) % 4


def split(model, *args, **kwargs):
    return split_model(model, args, kwargs)


def refused(kind, words, call, *args, **kwargs):
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert caught.value.code == kind.code and all(part in message for part in words), message


# Models


def one_name(groups):
    def model(group, y):
        with numpyro.plate(groups, 5):
            theta = latent("theta")
        seen(y, theta[group])

    return model


def imputed(x, y):
    w, missing = latent("w"), jnp.isnan(x)
    with numpyro.plate("data", x.shape[0]):
        filled = jnp.where(missing, numpyro.sample("filled", dist.Normal(0.0, 1.0).mask(missing)), x)
        numpyro.sample("x", dist.Normal(0.0, 1.0), obs=filled)
        numpyro.sample("y", dist.Normal(w * filled, 1.0), obs=y)


def imputed_at(x, y, places=(0, 3)):
    w = latent("w")
    filled = x.at[jnp.array(places)].set(latent("filled", len(places)))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("x", dist.Normal(0.0, 1.0), obs=filled)
        numpyro.sample("y", dist.Normal(w * filled, 1.0), obs=y)


def summed_out(x, y, ok):
    w = latent("w")
    with numpyro.plate("data", x.shape[0]):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0), obs=x, obs_mask=ok)
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def left_out(x, y, ok):
    w, known = latent("w"), jnp.where(ok, x, 0.0)
    with numpyro.plate("data", x.shape[0]), handlers.mask(mask=ok):
        numpyro.sample("x", dist.Normal(0.0, 1.0), obs=known)
        numpyro.sample("y", dist.Normal(w * known, 1.0), obs=jnp.where(ok, y, 0.0))


def with_obs_mask(y, ok):
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Exponential(jnp.exp(latent("mu"))), obs=y, obs_mask=ok)


def by_group(group, y, num_groups=None):
    num_groups = int(group.max()) + 1 if num_groups is None else num_groups
    theta = latent("theta", num_groups)
    seen(y, theta[group])


def in_coordinates(x):
    """Made of its numbers and their places: `BCOO.fromdense` compiles two dozen programs."""
    return sparse.BCOO(
        (x.ravel(), np.argwhere(np.isfinite(x))), shape=x.shape, indices_sorted=True, unique_indices=True
    )


class Layer(nnx.Module):
    def __init__(self, wrap=None):
        rngs = nnx.Rngs(0)
        self.linear = nnx.Linear(3, 1, rngs=rngs)
        self.layer = self.linear if wrap is None else wrap(self.linear, rngs=rngs)

    def __call__(self, x):
        if self.layer is not self.linear:
            return self.layer(x)
        return x @ (self.linear.kernel / jnp.linalg.norm(self.linear.kernel))


def network(make):
    def model(x, y):
        net = make("net")
        seen(y, net(x)[:, 0])

    return model


def random_network(wrap=None):
    return network(lambda name: random_nnx_module(name, Layer(wrap), prior=dist.Normal(0.0, 1.0)))


def classes(law):
    def model(x, y):
        logits = x @ latent("w", 3, 3)
        seen(y, law(logits))

    return model


categorical = classes(lambda logits: dist.Categorical(logits=logits))
multinomial = classes(lambda logits: dist.Multinomial(total_count=1, logits=logits))
ONE_HOT = np.eye(3, dtype=np.int32)[np.arange(N) % 3]
MODELS = {
    "imputed": (imputed, (Y, Y), "x = numpyro.sample('x', dist.Normal(mu, sigma), obs=x, obs_mask=ok)", summed_out, (Y, Y, OK)),
    "imputed at places": (imputed_at, (Y, Y), "Latents stand in what site 'x' observes: if for missing values, leave them out", left_out, (Y, Y, OK)),
    "obs_mask": (with_obs_mask, (Y, OK), "handlers.mask(mask=ok)", left_out, (Y, Y, OK)),
    "BCOO": (linear, (in_coordinates, Y), "argument 'x' is a BCOO; pass x.todense()", linear, (X, Y)),
    "BCSR": (linear, (lambda x: sparse.BCSR.from_bcoo(in_coordinates(x)), Y), "argument 'x' is a BCSR; pass x.todense()", linear, (X, Y)),
    "spectral norm": (random_network(nnx.SpectralNorm), (X, Y), "x @ (kernel / jnp.linalg.norm(kernel)), instead of SpectralNorm", random_network(), (X, Y)),
    "weight norm": (random_network(nnx.WeightNorm), (X, Y), "instead of SpectralNorm or WeightNorm", random_network(), (X, Y)),
    "one-hot floats": (categorical, (X, ONE_HOT * 1.0), "or dist.Multinomial(total_count=1, logits=logits)", multinomial, (X, ONE_HOT)),
    "two responses": (linear, (X, X[:, :2]), "site 'y' observes an array of shape (12, 2) under a Normal of shape (12,)", linear, (X, Y)),
    "a typing error": (lambda y: mean(z), (Y,), "name 'z' is not defined", mean, (Y,)),  # noqa: F821
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    model, args, words, remedy, its_args = MODELS[name]
    args = [arg(X) if callable(arg) else arg for arg in args]  # no JAX arrays at import
    kind = ConfigurationError if "argument" in words else UnsupportedModelError
    refused(kind, [words], split, model, *args)
    assert split(remedy, *its_args).num_rows == len(its_args[-1] if np.ndim(its_args[-1]) else its_args[-2])


# Guides


def param(name="loc", shape=()):
    return dist.Normal(numpyro.param(name, jnp.zeros(shape)), 1.0)


def draw(law=None, **options):
    """The guide's draw of the latent."""
    return numpyro.sample("mu", param() if law is None else law, **options)


def guide(y):
    draw()


def in_the_plate(y):
    with numpyro.plate("data", y.shape[0]):
        draw()


CURE = "a guide takes the model's arguments, (y), and draws each latent once"
GUIDES = {
    "more arguments": (lambda y, z: draw(), ["cannot be called as the model is, missing a required argument: 'z'", CURE]),
    "no argument": (lambda: draw(), ["too many positional arguments", CURE]),
    "a keyword": (lambda rows, *, extra: draw(), ["missing a required argument: 'extra'", CURE]),
    "a vector": (lambda y: draw(param(shape=(3,)).to_event(1)),
                 ["draws site 'mu' in shape (3,) with 1 event axes, the model in shape () with 0", "jnp.zeros(())), 1.0) without to_event"]),
    "a batch": (lambda y: draw(param(shape=(3,))), ["draws site 'mu' in shape (3,)"]),
    "too many": (lambda y: (draw(), numpyro.sample("nu", param("other"))), ["unknown to the model ['nu']"]),
    "observes": (lambda y: draw(obs=0.5), ["without obs"]),
    "twice": (lambda y: (draw(), draw()), ["duplicated", CURE]),
    "undefined": (lambda y: draw(dist.Normal(loc, 1.0)), ["name 'loc' is not defined"]),  # noqa: F821
    "too many axes": (lambda y: (draw(), y[0, 0]), ["y[0, 0]", CURE]),
    "in the plate": (in_the_plate, ["inside the data plate 'data' in one of guide and model only; write the guide's site where"]),
    "side effect": (lambda y: (jax.debug.callback(lambda y: None, y), draw()), ["the guide has a side effect"]),
}  # fmt: skip


def bind_guide(chosen, model=mean, args=(Y,), **settings):
    fit = dpppl.SVI(model, chosen, **({"noise_multiplier": 1.0, "clipping_norm": 1.0} | settings))
    return bind_objective(fit, jax.random.key(0), args, {})


@pytest.mark.parametrize("name", GUIDES)
def test_guides(name):
    chosen, words = GUIDES[name]
    with pytest.raises((ConfigurationError, UnsupportedModelError)) as caught:
        bind_guide(chosen)
    assert all(part in str(caught.value) for part in words), str(caught.value)


def test_the_guides_that_are_advised_run():
    assert bind_guide(guide)[1].keys() == {"loc"} and "mu_auto_loc" in bind_guide(AutoNormal(mean))[1]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("chosen", [AutoNormal, lambda model: lambda *args: None], ids=["auto", "none"])
def test_networks_without_a_prior_under_the_defaults_of_svi(chosen):
    model = network(lambda name: nnx_module(name, nnx.Linear(3, 1, rngs=nnx.Rngs(0))))
    words = ["site 'net$params' is a parameter", 'gradient="per_parameter", clipping_norm=1.0', "random_nnx_module"]
    refused(UnsupportedModelError, words, bind_guide, chosen(model), model, (X, Y), clipping_norm="auto")
    _, phi = bind_guide(chosen(model), model, (X, Y), gradient="per_parameter", clipping_norm=1.0)
    assert "net$params" in phi
    if chosen is AutoNormal:
        _, phi = bind_guide(AutoNormal(random_network()), random_network(), (X, Y), clipping_norm="auto")
        assert "net/layer.kernel_auto_loc" in phi


# Starts


def positive(y, high):
    scale, mu = numpyro.sample("scale", dist.HalfNormal(2.0)), latent("mu", 2)
    share = numpyro.sample("share", dist.Uniform(0.0, high))
    seen(y, dist.Normal(mu[0] + share, scale))


HIGH = np.float32(3.0)


def started(strategy):
    found = split(positive, Y, dpppl.Public(HIGH))
    z = initial_values(found, {"high": HIGH}, jax.random.key(0), strategy)
    return {name: np.asarray(x) for name, x in found.constrain(z, {"high": HIGH}).items()}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "make", ["init_to_median", "init_to_uniform", "init_to_sample", "init_to_feasible", "init_to_mean"]
)
def test_strategies_of_numpyro(make):
    """Taken as they are and called, and as NumPyro takes them: constrained, inside the supports."""
    for strategy in (getattr(infer, make), getattr(infer, make)()):
        values = started(strategy)
        assert values["scale"] > 0.0 and values["mu"].shape == (2,) and 0.0 < values["share"] < 3.0
    if make == "init_to_mean":
        np.testing.assert_allclose(values["scale"], 2.0 * (2.0 / np.pi) ** 0.5, rtol=1e-5)
    if make == "init_to_median":
        assert abs(started(infer.init_to_median(num_samples=4_001))["share"] - 1.5) < 0.15  # 6 standard errors


def test_values_of_numpyro():
    values = started(infer.init_to_value(values={"scale": 0.25, "mu": [1.0, -2.0], "share": 2.5}))
    np.testing.assert_allclose(values["scale"], 0.25, rtol=1e-5)
    np.testing.assert_allclose(values["mu"], [1.0, -2.0])
    np.testing.assert_allclose(values["share"], 2.5, rtol=1e-5)
    assert started(infer.init_to_value(values={"scale": 0.25}))["mu"].shape == (2,)  # the others: init_to_uniform
    for wrong, words in (
        ({"scale": -1.0}, "'scale' is outside of its support"),
        ({"mu": 0.0}, "'mu' has shape (); give one of shape (2,), constrained"),
        ({"sigma": 1.0}, "init_to_value names ['sigma'], but the latent sites are ['mu', 'scale', 'share']"),
        ([1.0], "init_to_value takes values={'site': value}, not a list"),
    ):
        refused(ConfigurationError, [words], started, infer.init_to_value(values=wrong))
    for wrong in ("prior_mode", len, infer.init_to_value, 3.0, lambda site: 0.0):
        if wrong is not infer.init_to_value:
            refused(ConfigurationError, ["init_to_value(values={'mu': 0.3})"], dpppl.DPSGLD, mean, init_strategy=wrong)
    chain = {"start": infer.init_to_value(values={"mu": 0.3})}
    assert (
        dpppl.DPSGLD(mean, init_strategy=chain["start"]).start
        == "supplied by the user: assumed independent of the data"
    )
    assert "NumPyro" in dpppl.DPSGLD(mean, init_strategy=infer.init_to_median).start


# Calls

COST = {"target_epsilon": 5.0, "target_delta": 1e-3, "print_cost": False}


def mcmc(kernel=None, **settings):
    steps = {"num_warmup": 2, "num_samples": 4, "progress_bar": False}
    kernel = dpppl.DPSGLD(mean, clipping_norm=1.0, measure_clipping=False) if kernel is None else kernel
    return dpppl.MCMC(kernel, **(steps | COST | settings))


@pytest.mark.slow
def test_runs_inside_transforms():
    """Refused before anything is charged, with what to do instead, which runs."""
    key, fit = dpppl.secret_key(), dpppl.SVI(mean, AutoNormal(mean), clipping_norm=1.0, **COST)
    sampler, noise_aware = mcmc(), dpppl.NoiseAware(mean, progress_bar=False, **COST)
    tuned = lambda y: dpppl.private_score(key, lambda y: y, y, bounds=(0.0, 1.0), noise_multiplier=1.0)  # noqa: E731
    for name, run in (
        ("MCMC.run", lambda y: sampler.run(key, y)),
        ("MCMC.warmup", lambda y: sampler.warmup(key, y)),
        ("SVI.run", lambda y: fit.run(key, 2, y, progress_bar=False)),
        ("NoiseAware.run", lambda y: noise_aware.run(key, y)),
        ("private_score", tuned),
    ):
        for transform in (jax.jit, jax.vmap, jax.grad, lambda f: lambda y: jax.lax.map(f, y)):
            words = [f"{name} was called inside jax.jit, jax.vmap or another transform of JAX", "Call it from Python"]
            refused(ConfigurationError, words, transform(run), np.stack([Y, Y]))
    refused(ConfigurationError, ["MCMC.run was called inside"], jax.jit(lambda: sampler.run(key, Y)))
    refused(ConfigurationError, ["make the key outside and pass it in"], jax.jit(lambda: dpppl.secret_key()))
    refused(ConfigurationError, ["MCMC.run"], jax.vmap(lambda k: sampler.run(k, Y)), jax.random.split(key, 2))
    assert all(thing.budget.events == () for thing in (sampler, fit, noise_aware))
    for y in (Y, -Y):
        sampler = mcmc()
        sampler.run(dpppl.secret_key(), y)
    assert sampler.get_samples()["mu"].shape == (4,)


@pytest.mark.slow
def test_a_short_run_says_how_long_one_has_to_be():
    """Steps of 70 are too long for 5,000 rows; what the warning says makes them short enough, at the same cost."""
    y = (1.0 + np.random.default_rng(0).normal(size=5_000)).astype(np.float32)
    settings = {"target_epsilon": 3.0, "target_delta": 1e-5, "progress_bar": False, "print_cost": False}
    run = lambda times: dpppl.MCMC(dpppl.DPSGLD(mean), num_warmup=20 * times, num_samples=50 * times, **settings)  # noqa: E731
    short = run(1)
    with pytest.warns(UserWarning, match="too long for mu: raise num_samples and num_warmup [0-9]+-fold") as caught:
        short.run(dpppl.secret_key(), y)
    times = int(str(caught[0].message).split("-fold")[0].split()[-1])
    longer = run(times)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        longer.run(dpppl.secret_key(), y)
    assert 2 <= times <= 10 and longer.privacy_report().epsilon <= 3.0


@pytest.mark.slow
def test_leave_one_out_of_arviz_points_to_the_private_score():
    arviz = pytest.importorskip("arviz")
    sampler = mcmc()
    sampler.run(dpppl.secret_key(), Y)
    data = sampler.to_arviz()
    for ask in (arviz.loo, arviz.waic):
        refused(ConfigurationError, ["dpppl.private_score(dpppl.secret_key(), score"], ask, data)
    assert list(arviz.summary(data).index) == ["mu"] and isinstance(data, arviz.InferenceData)
    score = lambda samples, y: jnp.exp(-0.5 * jnp.mean((y - samples["mu"]) ** 2))  # noqa: E731
    found = dpppl.private_score(
        dpppl.secret_key(),
        score,
        dpppl.Public(sampler.get_samples()),
        Y,
        bounds=(0.0, 1.0),
        target_epsilon=0.1,
        target_delta=1e-6,
    )
    assert np.isfinite(found.mean)


# Files


MARK = "77123.25"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("damaged.npy", b"\x93NUMPY\x01\x00" + MARK.encode()),
        ("damaged.parquet", b"PAR1" + MARK.encode()),
        ("damaged.arrow", b"ARROW1" + MARK.encode()),
        ("empty.csv", b""),
        ("names.csv", b"a,b\n"),
        ("rows.xlsx", b"PK\x03\x04" + MARK.encode()),
    ],
)
def test_files_that_cannot_be_read(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((ConfigurationError, DataReadError)) as caught:
        dpppl.from_disk(tmp_path / name)
    assert MARK not in str(caught.value)


# Every cure that is code

SHORT = {"num_warmup": 2, "num_samples": 4}
QUIET = COST | {"progress_bar": False}


def noise_aware(model=mean, **settings):
    return dpppl.NoiseAware(model, **(QUIET | settings))


def svi(model=mean, **settings):
    return dpppl.SVI(
        model, settings.pop("guide", None) or AutoNormal(model), **(COST | {"clipping_norm": 1.0} | settings)
    )


def kernel(model=mean, **settings):
    return dpppl.DPSGLD(model, **({"clipping_norm": 1.0} | settings))


def read(*args):
    """The arguments of a model of as many."""
    return Arguments.of(lambda *args: None, args, {})


def observing(law, *args):
    """A model of `law(mu, *args)` under which its last argument is observed."""

    def model(*args):
        mu = latent("mu")
        with numpyro.plate("data", args[-1].shape[0]):
            numpyro.sample("y", law(mu, *args[:-1]), obs=args[-1])

    return split(model, *args)


class DataSet(list):
    """Items by number."""


def disk():
    np.save("rows.npy", Y)
    return dpppl.from_disk("rows.npy")


def arrow(columns):
    with pa.OSFile("rows.arrow", "wb") as file, pa.ipc.new_file(file, (table := pa.table(columns)).schema) as writer:
        writer.write_table(table)
    return dpppl.from_disk("rows.arrow")


def table_on_disk():
    return arrow({"a": Y, "b": Y})


def steep(y):
    """A prior without a density where an AutoGuide starts."""
    mu = latent("mu")
    numpyro.factor("bound", jnp.where(mu > 3.0, 0.0, -jnp.inf))
    seen(y, mu)


def ignored(make):
    return make()


# What a user writes, words of the error, the cure in it, and what is then typed, {} for the cure as it stands there. Statements share
# their names, and take those of this file, `path` in a new folder, `key()`, and `x`, `y`, `group`: rows.
CURES = [
    ("noise_aware().likelihood('')", "name is the owner's, in printable letters", "likelihood('Hospital A')", "fit = noise_aware(); fit.run(key(), Y); fit.{}"),
    ("dpppl.pool(['a.likelihood'])", "pool takes likelihoods", "pool([a, b])", "a, b = likelihood_of(0), likelihood_of(1, 'B'); dpppl.{}"),
    ("pair = dpppl.pool([likelihood_of(0), likelihood_of(1, 'B')]); pair.log_prob({'scale': 1.0, 'w': np.zeros(2)}, by_owner=True)", "one for each owner", "numpyro.plate('owners', 2)", "def m():\n with {}:\n  values = {'w': numpyro.sample('w', dist.Normal(0, 1).expand([2]).to_event(1)), 'scale': numpyro.sample('scale', dist.HalfNormal(1))}\n pair.factor(values, by_owner=True)\nhandlers.seed(m, 0)()"),
    ("Site.from_support('w', (2,), dist.constraints.sphere)", "is not one that a file can name", "numpyro.sample('w_raw', dist.Normal(0, 1))", "handlers.seed(lambda: {}, 0)()"),
    ("PrivacyLedger(path, epsilon=0.0, delta=1e-3)", "a ledger's epsilon is a number above 0", "at most 100", "PrivacyLedger(path, epsilon=100, delta=1e-3)"),
    ("PrivacyLedger(path, epsilon=1e-5, delta=0.5)", "they seem to be swapped", "epsilon=0.5, delta=1e-05", "PrivacyLedger(path, {})"),
    ("noise_aware(target_epsilon=1e-5, target_delta=0.5)", "they seem to be swapped", "target_epsilon=0.5, target_delta=1e-05", "noise_aware({})"),
    ("fit = noise_aware(); fit.num_samples = 7", "is a setting of this NoiseAware, fixed when it was made", "NoiseAware(..., num_samples=...)", "noise_aware(num_samples=7)"),
    ("fit = svi(); fit.num_particles = 2", "is a setting of this SVI, fixed when it was made", "SVI(..., num_particles=...)", "svi(num_particles=2)"),
    ("own = kernel(); own.temperature = 0.5", "is a setting of this DPSGLD, fixed when it was made", "DPSGLD(..., temperature=...)", "kernel(temperature=0.5)"),
    ("fit = noise_aware(); fit.releases = []", "follows from its settings and its runs, and is not set", "a variable of your own", "releases = []"),
    ("svi(num_data=3).run(key(), 2, Y)", "num_data=3 is declared", "num_data=12", "svi({})"),
    ("dpppl.NoiseAware(epsilon=1.0)", "unexpected keyword argument 'epsilon'; did you mean", "target_epsilon", "dpppl.NoiseAware(mean, {}=1.0, target_delta=1e-5)"),
    ("kernel(batch_size=32)", "has no argument batch_size: rows are drawn", "subsampling=dpppl.Poisson.of_batch(32, num_data=1_000)", "kernel({})"),
    ("svi(batch_size=32)", "has no argument batch_size: rows are drawn", "subsampling=dpppl.Poisson.of_batch(32, num_data=1_000)", "svi({})"),
    ("mcmc(batch_size=32)", "it is the kernel's", "subsampling=dpppl.Poisson.of_batch(32, num_data=1_000)", "dpppl.MCMC(kernel({}), **SHORT, **COST)"),
    ("noise_aware(batch_size=32)", "every access of NoiseAware looks at all rows", "leave batch_size out", "noise_aware()"),
    ("kernel(epsilon=1.0)", "a budget is for all steps", "dpppl.MCMC(kernel, num_warmup=500, num_samples=1_000, target_epsilon=1.0, target_delta=1e-5)", "kernel = kernel(); {}"),
    ("svi(num_steps=5)", "run takes it", "svi.run(rng_key, num_steps, ...)", "svi(target_epsilon=None, target_delta=None, noise_multiplier=1.0).run(key(), 2, Y, progress_bar=False)"),
    ("kernel(sigma=3.0)", "did you mean", "noise_multiplier", "kernel({}=3.0)"),
    ("dpppl.DPSGLD(mean, max_grad_norm=3.0)", "did you mean", "clipping_norm", "dpppl.DPSGLD(mean, {}=3.0)"),
    ("dpppl.Poisson(0.1, overflow_probability=2)", "overflow_probability must lie in (0, 1e-3)", "leave it out", "dpppl.Poisson(0.1)"),
    ("dpppl.WithoutReplacement(4, N, failure_probability=2)", "failure_probability must lie in (0, 1e-3)", "leave it out", "ignored(lambda: dpppl.WithoutReplacement(4, N))"),
    ("dpppl.FullBatch(0.5)", "FullBatch has rate 1", "Poisson(rate)", "rate = 0.5; dpppl.{}"),
    ("mcmc(num_samples=4.0)", "must be a positive integer, got a float", "int(num_samples)", "num_samples = 4.0; mcmc(num_samples={})"),
    ("noise_aware(unit=GROUP, max_rows_per_unit=3)", "unit is the name under which run gets the ids", 'unit="person"', "noise_aware({}, max_rows_per_unit=3)"),
    ("noise_aware(max_rows_per_unit=3, ledger=PrivacyLedger(path, 1.0, 1e-5))", "not for groups of declared size", "unit=...", "noise_aware(unit='person', max_rows_per_unit=3)"),
    ("noise_aware(unit='person', max_rows_per_unit=3, ledger=PrivacyLedger(path, 1.0, 1e-5))", "costs for different units do not add up",
     "dpppl.PrivacyLedger(path, epsilon, delta, unit='person')", "path, epsilon, delta = path + '2', 1.0, 1e-5; noise_aware(unit='person', max_rows_per_unit=3, ledger={})"),
    ("noise_aware(weights=Y)", "weights is the name under which run gets the column", 'weights="weight", max_weight=...', "noise_aware(weights='weight', max_weight=2.0)"),
    ("noise_aware(weights='weight', max_weight=2.0, width='model')", "a pseudo-likelihood of single rows", 'width="sandwich"', "noise_aware(weights='weight', max_weight=2.0, {})"),
    ("noise_aware(coordinates=3)", "names of sites", "coordinates=['w']", "noise_aware(linear, {})"),
    ("noise_aware(checkpoint=3)", "checkpoint is a int", "checkpoint='run.npz'", "noise_aware({})"),
    ("noise_aware(privacy=3)", "privacy is a int", "privacy=dpppl.Privacy(epsilon=1.0, delta=1e-5)", "dpppl.NoiseAware(mean, {})"),
    ("noise_aware(privacy=dpppl.Privacy(epsilon=1.0, delta=1e-5))", "give all to Privacy", "privacy=dpppl.Privacy(...)", "dpppl.NoiseAware(mean, privacy=dpppl.Privacy(epsilon=1.0, delta=1e-5))"),
    ("noise_aware(ledger=path)", "there is no ledger at", "dpppl.PrivacyLedger(", "epsilon, delta = 1.0, 1e-5; noise_aware(ledger=dpppl.PrivacyLedger(path, epsilon, delta))"),
    ("PrivacyLedger(path, 1.0, 1e-5); PrivacyLedger(path, 2.0, 1e-5)", "a budget does not change once it is made", "PrivacyLedger.open(path)", "{}"),
    ("kernel(linear, gradient_strategy='ghost', discretise=True)", "adds products of floating-point numbers", '"auto"', "kernel(linear, gradient_strategy={}, discretise=True)"),
    ("kernel(step_size='matched', noise_multiplier=None).schedule(0, 3)", "needs a noise multiplier to match", "noise_multiplier", "kernel(step_size='matched', {}=2.0).schedule(0, 3)"),
    ("kernel(step_size=lambda step: 'a', noise_multiplier=1.0).schedule(0, 3)", "gives no number", "lambda step: 0.1 / (1.0 + step)", "kernel(step_size={}, noise_multiplier=1.0).schedule(0, 3)"),
    ("kernel(step_size=lambda step: 'a', noise_multiplier=1.0).schedule(0, 3)", "gives no number", "dpppl.polynomial_decay(0.1)", "kernel(step_size={}, noise_multiplier=1.0).schedule(0, 3)"),
    ("mcmc(frame=True)", "frame=True goes with", "leave frame out", "mcmc()"),
    ("dpppl.MCMC(dpppl.DPSGLD(mean), **SHORT, **COST, checkpoint=path)", "takes no checkpoint", "give it the norm as a number", "mcmc(checkpoint=path)"),
    ("svi(clipping_norm='auto', gradient='per_parameter')", "is for aligned gradients", "clipping_norm=1.0", "svi(gradient='per_parameter', {})"),
    ("svi(clipping='centred', num_particles=2, gradient='per_parameter')", "of several particles needs", 'gradient="aligned"', "svi(clipping='centred', num_particles=2, {})"),
    ("svi(clipping='centred', num_particles=2, gradient='per_parameter')", "of several particles needs", 'clipping="flat"', "svi({}, num_particles=2, gradient='per_parameter')"),
    ("svi(loss=infer.TraceGraph_ELBO())", "loss must be NumPyro's", "Trace_ELBO()", "svi(loss=infer.{})"),
    ("svi(guide=AutoNormal)", "the guide is the class AutoNormal", "AutoNormal(model)", "model = mean; svi(guide={})"),
    ("svi(optim=numpyro.optim.Adam)", "optim must be an optimiser of optax", "Adam(0.01)", "svi(optim=numpyro.optim.{})"),
    ("fit = svi(); fit.init(key(), Y); fit.update(None, Y)", "the noise of update follows from the number of steps", "give noise_multiplier without target_epsilon",
     "fit = svi(target_epsilon=None, target_delta=None, noise_multiplier=1.0); fit.update(fit.init(key(), Y), Y)"),
    ("fit = svi(subsampling=dpppl.Partition(2), target_epsilon=None, target_delta=None, noise_multiplier=1.0); fit.update(fit.init(key(), Y), Y)", "a Partition charges each row once an epoch", "Poisson(rate)",
     "rate = 0.5; fit = svi(subsampling=dpppl.{}, target_epsilon=None, target_delta=None, noise_multiplier=1.0); fit.update(fit.init(key(), Y), Y)"),
    ("fit = svi(clipping_norm='auto', target_epsilon=None, target_delta=None, noise_multiplier=1.0); fit.update(fit.init(key(), Y), Y)", "update needs the norm as a number", "the norm as a number",
     "fit = svi(clipping_norm=1.0, target_epsilon=None, target_delta=None, noise_multiplier=1.0); fit.update(fit.init(key(), Y), Y)"),
    ("noise_aware().run(3, Y)", "rng_key must be a JAX random key", "dpppl.secret_key()", "keys.as_key({})"),
    ("ac.epsilon(mcmc().privacy_plan(), 1e-5)", "is given in place of events", "give its events", "ac.epsilon(mcmc().privacy_plan().events, 1e-5)"),
    ("ac.epsilon([3], 1e-5)", "events are GaussianEvents", "accounting.GaussianEvent(noise_multipliers=((10.0, 400),))", "ac.epsilon({}, 1e-5)"),
    ("ac.epsilon(REPLACED, 1e-5, accountant='pld')", "does not support batches drawn without replacement", "'rdp'", "ac.epsilon(REPLACED, 1e-5, accountant={})"),
    ("ac.epsilon(FIXED, 1e-5)", "drawn without replacement are accounted under", "neighboring_relation='replace_one'", "ac.epsilon(dataclasses.replace(FIXED, {}), 1e-5)"),
    ("ac.epsilon(dataclasses.replace(EVENT, discrete=True), 1e-5, accountant='pld')", "is accounted by 'rdp' only", "accountant='auto'", "ac.epsilon(dataclasses.replace(EVENT, discrete=True), 1e-5, {})"),
    ("plan().width_at(0.25, 3)", "give one of plan.options", "plan.options[0]", "plan = plan(); plan.width_at(0.25, {})"),
    ("audit(mean, Y, num_steps=3, delta=1e-5)", "a function is taken as runner(rng_key, *args)", "audit(dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=3.0), y, num_steps=10, delta=1e-5)", "model, y = mean, Y; {}"),
    ("audit(kernel(noise_multiplier=3.0), Y, delta=1e-5)", "give num_steps with a kernel or an SVI", "audit(kernel, y, num_steps=10, delta=1e-5)", "kernel, y = kernel(noise_multiplier=3.0), Y; {}"),
    ("audit(mcmc(), Y, delta=1e-5, attack='black_box')", "is for kernels and SVI", '"white_box"', "audit(mcmc(), Y, delta=1e-5, attack={}, num_trials=100)"),
    ("audit(mcmc(ledger=PrivacyLedger(path, 1.0, 1e-5)), Y, delta=1e-5)", "which no ledger counts", "leave out the object's ledger=", "audit(mcmc(), Y, delta=1e-5, num_trials=100)"),
    ("pages.to_html(3)", "found is", "privacy_report()", "pages.to_html(mcmc().privacy_plan())"),
    ("plotting.learned_share({'mu': 0.5}, axes=3)", "axes must be matplotlib's Axes", "plt.subplots()[1]", "import matplotlib.pyplot as plt; plotting.learned_share({'mu': 0.5}, axes={})"),
    ("synthetic.fit_cells(key(), TABLE, NUMBERS, {'age': Y}, **COST_ALONE)", "fit_cells needs columns of categories", "dpppl.NoiseAware(table_model(schema), ...)", "dpppl.NoiseAware(synthetic.table_model(NUMBERS), **COST)"),
    ("synthetic.fit_cells(key(), TABLE, SEXES, {'sex': ['F', 'M']}, num_samples=2, **COST_ALONE)", "is too few for R-hat", "give 8 or more", "synthetic.fit_cells(key(), TABLE, SEXES, {'sex': ['F', 'M'] * 20}, num_samples=8, **COST_ALONE)"),
    ("synthetic.datasets(key(), TABLE, {}, SEXES, num_rows=3)", "samples are arrays (draws, ...) by site", "private.get_samples()", "synthetic.datasets(jax.random.key(0), TABLE, SEX_DRAWS, SEXES, num_rows=3, num_datasets=2)"),
    ("synthetic.datasets(jax.random.key(0), TABLE, SEX_DRAWS, SEXES, num_rows=3)", "tables need as many posterior draws", "num_samples=20", "noise_aware({})"),
    ("synthetic.datasets(jax.random.key(0), mean, {'mu': np.zeros(30)}, SEXES, num_rows=3)", "and this one does not take that", "table_model(schema)", "schema = SEXES; synthetic.datasets(jax.random.key(0), synthetic.{}, SEX_DRAWS, SEXES, num_rows=3, num_datasets=2)"),
    ("synthetic.Category('sex', ('F',))", "needs two or more different categories", "Category('sex', ('F', 'M'))", "synthetic.{}"),
    ("SEXES.design([1], ['sex'])", "columns is a list", "schema.encoded(table)[0]", "schema, table = SEXES, {'sex': ['F', 'M']}; schema.design({}, ['sex'])"),
    ("synthetic.Schema(3)", "a schema is a tuple of columns", 'Schema((Category("sex", ("F", "M")), Number("age", 0, 100)))', "{}"),
    ("arrow({'x': pa.array([[1.0], [2.0]])})['x']", "the lengths of lists may differ from row to row", "table['x'].cast(pyarrow.list_(pyarrow.float32(), LENGTH))",
     "LENGTH, table = 1, pa.table({'x': pa.array([[1.0], [2.0]])}); arrow({'x': {}})"),
    ("arrow({'x': pa.array([[1.0], [2.0]])})['x']", "the lengths of lists may differ from row to row", "data.cast_column('x', datasets.Sequence(datasets.Value('float32'), LENGTH))",
     "LENGTH, data = 1, datasets.Dataset.from_dict({'x': [[1.0], [2.0]]}); {}"),
    ("arrow({'x': pa.array([decimal.Decimal('1.5')])})['x']", "whose rows are no arrays of numbers of one shape", "table['x'].cast('float64')", "table = pa.table({'x': pa.array([decimal.Decimal('1.5')])}); arrow({'x': {}})"),
    ("np.save(path + '.npy', Y); x = np.load(path + '.npy', mmap_mode='c'); dpppl.from_disk(x)", "shows changes that its file does not hold", "numpy.array(x)", "read({})"),
    ("np.save(path + '.npy', X); path += '.npy'; x = np.load(path, mmap_mode='r').T; dpppl.from_disk(x)", "do not lie one after the other in its file",
     "numpy.save(path, numpy.ascontiguousarray(x)) and pass dpppl.from_disk(path)", "path += '2.npy'; numpy.save(path, numpy.ascontiguousarray(x)); dpppl.from_disk(path)"),
    ("np.save(path + '.npy', np.zeros(3, [('field', 'f4')])); dpppl.from_disk(path + '.npy')", "are no numbers", "dpppl.from_disk(numpy.load(path, mmap_mode='r')['field'])", "path += '.npy'; {}"),
    ("np.asarray(disk())", "a source is no array in memory", "source.read(0, len(source))", "source = disk(); {}"),
    ("dpppl.from_disk(DataSet(Y))", "no item decides what", "from_disk(dataset, dtype=('float32', (3,)))", "dataset = DataSet(X); dpppl.{}"),
    ("dpppl.from_disk(DataSet(Y))", "no item decides what", "dtype=[('x', 'float32', (3,)), ('y', 'float32')]", "dpppl.from_disk(DataSet(zip(X, Y)), {})"),
    ("dpppl.from_disk(datasets.DatasetDict(train=datasets.Dataset.from_dict({'x': [1.0]})))", "has no rows by number", "dataset['train']", "dataset = datasets.DatasetDict(train=HUGGING); dpppl.from_disk({})"),
    ("dpppl.from_disk(HUGGING.select([1, 0]))", "was shuffled or selected from", "dataset.flatten_indices()", "dataset = HUGGING.select([1, 0]); dpppl.from_disk({})"),
    ("pd.DataFrame({'x': np.zeros(9_000)}).to_parquet(path); svi(subsampling=dpppl.Poisson(1e-3)).run(key(), 2, dpppl.from_disk(path))", "Parquet decodes a group of rows", "preserve_order=True)",
     "import pyarrow.dataset as ds; ds.write_dataset(ds.dataset(path), 'rows', format='feather', preserve_order=True); dpppl.from_disk('rows/part-0.feather').take([0])"),
    ("read(table_on_disk())", "is a table: choose columns by their names", "source[NAME]", "source, NAME = table_on_disk(), 'a'; read({})"),
    ("read(table_on_disk())", "is a table: choose columns by their names", "source[[NAME, OTHER]]", "source, NAME, OTHER = table_on_disk(), 'a', 'b'; read({})"),
    ("x = np.array([1.0, 2.0], object); split(lambda x: None, x)", "arrays are numbers: pass", "x.astype('float32')", "read({})"),
    ("split(linear, X.T, Y)", "has shape (3, 12): pass", "x.T", "x = X.T; split(linear, {}, Y)"),
    ("x = np.ma.masked_less(Y, 0.0); split(mean, x)", "is a NumPy masked array", "y.filled(0.0)", "y = x; read({})"),
    ("x = np.ma.masked_less(Y, 0.0); split(mean, x)", "is a NumPy masked array", "~numpy.ma.getmaskarray(y)", "y = x; read({})"),
    ("frame = pd.DataFrame(X); x, y = frame, pd.Series(Y)[::-1]; split(linear, x, y)", "have different indices", "y.reindex(x.index)", "split(linear, x, {})"),
    ("frame = pd.DataFrame(X); x, y = frame, pd.Series(Y)[::-1]; split(linear, x, y)", "have different indices", "y.to_numpy()", "split(linear, x, {})"),
    ("x, y = pd.DataFrame(X)[::-1], Y; split(linear, x, y)", "are not in the order of its index", "x.sort_index()", "split(linear, {}, y)"),
    ("x, y = pd.DataFrame(X)[::-1], Y; split(linear, x, y)", "are not in the order of its index", "x.to_numpy()", "split(linear, {}, y)"),
    ("split(linear, pd.DataFrame({'a': ['1'] * N, 'b': Y, 'c': Y}), Y)", "arrays are numbers: pass .astype('float32') of it", ".astype('float32')", "split(linear, pd.DataFrame({'a': ['1'] * N, 'b': Y, 'c': Y}){}, Y)"),
    ("path += '.npy'; np.save(path, X); split(linear, path, Y)", "is a file's path; pass its rows", "dpppl.from_disk(x)", "x = path; split(linear, {}, Y)"),
    ("x = {f'person {n}': row for n, row in enumerate(X)}; split(linear, x, Y)", "one for each row, it seems", "numpy.stack(list(x.values()))", "split(linear, {}, Y)"),
    ("x = {'a': 1.0, 'b': 2.0}; split(lambda x, y: mean(y), x, Y)", "If 'x' holds rows, pass", "numpy.array(list(x.values()), float)", "read({})"),
    ("x = {'a': 1.0, 'b': 2.0}; split(lambda x, y: mean(y), x, Y)", "if it tells nothing of a row, pass", "dpppl.Public(x)", "split(lambda x, y: mean(y), {}, Y)"),
    ("split(linear, X, Y[:3])", "is the same for all rows, as a table by group, pass", "dpppl.Public(y)", "split(lambda x, y: seen(x[:, 0], latent('mu')), X, dpppl.Public(Y[:3]))"),
    ("def model(y):\n    mu = latent('mu')\n    if y.sum() > 0:\n        seen(y, mu)\nsplit(model, Y)", "branches on, or converts to Python", "jnp.where", "split(lambda y: seen(y, latent('mu') * jnp.where(y.shape[0] > 0, 1.0, 2.0)), Y)"),
    ("split(lambda: mean, Y)", "does not take the arguments", "its arguments are", "split(mean, Y)"),
    ("split(lambda y: mean, Y)", "the model has no site and returns a function", "model() in place of model", "model = lambda: mean; split(model(), Y)"),
    ("split(mean, Y + 1j)", "because its values are complex", "jnp.stack([y.real, y.imag], -1) with .to_event(1)", "observing(lambda mu: dist.Normal(mu, 1.0).expand([2]).to_event(1), np.stack([Y, Y], -1))"),
    ("observing(lambda mu: dist.Categorical(logits=mu * jnp.arange(3.0)), OK * 1.0)", "labels of classes are integers", "y.astype(int)", "y = OK * 1.0; observing(lambda mu: dist.Categorical(logits=mu * jnp.arange(3.0)), {})"),
    ("split(lambda y: numpyro.sample(3, dist.Normal(0.0, 1.0)), Y)", "names are strings", "numpyro.sample('mu', ...)", "split(lambda y: seen(y, numpyro.sample('mu', dist.Normal(0.0, 1.0))), Y)"),
    ("def model(y):\n    mu = latent('mu')\n    numpyro.sample('y', dist.Normal(mu, 1.0), obs=y)\nsplit(model, Y)", "is observed outside the data plate", 'numpyro.plate("data", x.shape[0])',
     "def model(y):\n    mu, x = latent('mu'), y\n    with {}:\n        numpyro.sample('y', dist.Normal(mu, 1.0), obs=y)\nsplit(model, Y)"),
    ("def model(y):\n    mu = latent('mu')\n    numpyro.factor('f', -jnp.sum((y - mu) ** 2))\nsplit(model, Y)", "is outside the data plate", 'numpyro.plate("data", x.shape[0])',
     "def model(y):\n    mu, x = latent('mu'), y\n    with {}:\n        numpyro.factor('f', -((y - mu) ** 2))\nsplit(model, Y)"),
    ("raise UserWarning(split(lambda y: seen(y, numpyro.sample('mu', dist.ImproperUniform(dist.constraints.real, (), ()))), Y).notes)", "is improper", "dist.Normal(0, 10)", "split(lambda y: seen(y, numpyro.sample('mu', {})), Y)"),
    ("noise_aware(lambda y: seen(y, latent('mu') * (y > 0))).run(key(), Y)", ", and a distribution or mask is computed from the same argument", "model(x, y) instead of model(data)", "split(lambda x, y: seen(y, latent('mu') * (x > 0)), Y, Y)"),
    ("split(lambda x, y: seen(y, jnp.where(x > latent('at'), 1.0, 0.0)), Y, Y)", "enters the likelihood through steps only", "jax.nn.sigmoid((t - at) / width)", "split(lambda t, y: seen(y, (lambda at, width: {})(latent('at'), 0.1)), Y, Y)"),
    ("split(lambda x, y: seen(y, (x @ latent('w', 3, 1))), X, Y)", "broadcasts, each row against all", "logits[:, 0]", "split(lambda x, y: seen(y, (lambda logits: {})(x @ latent('w', 3, 1))), X, Y)"),
    ("split(mean, Y[:, None])", "y[:, 0], of shape (n,), instead of y of shape (n, 1)", "y[:, 0]", "y = Y[:, None]; split(mean, {})"),
    ("split(lambda x, y: seen(y, x @ latent('w', 3, 1)), X, Y)", "of its parameters has shape (n, 1)", "(n,)", "split(linear, X, Y)"),
    ("def model(y):\n    mu = latent('mu')\n    with handlers.scale(scale=2.0):\n        seen(y, mu)\nnoise_aware(model).run(key(), Y)", "takes each response for one observation", "NoiseAware(..., weights='weight', max_weight=...)", "noise_aware(weights='weight', max_weight=2.0)"),
    ("def model(x, y, ok):\n    with handlers.scale(scale=2.0):\n        summed_out(x, y, ok)\nsplit(model, Y, Y, OK)", "the scale would be inside the sum", "dpppl.NoiseAware(..., weights='weight', max_weight=2.0)", "dpppl.NoiseAware(summed_out, weights='weight', max_weight=2.0, **COST)"),
    ("def model(x, y):\n    seen(y, x[:, 0] * numpyro.param('w', 1.0))\nsplit(model, X, Y)", "is a numpyro.param", "numpyro.sample", "split(lambda x, y: seen(y, x[:, 0] * numpyro.sample('w', dist.Normal(0.0, 1.0))), X, Y)"),
    ("bind_guide(lambda y: None)", "missing from the guide", "numpyro.infer.autoguide.AutoNormal(model)", "model = mean; bind_guide({})"),
    ("bind_guide(AutoNormal(steep), steep)", "has no finite density where", "AutoNormal(steep, init_loc_fn=numpyro.infer.init_to_value(values={'mu': 0.5}))", "bind_guide(AutoNormal(steep, init_loc_fn=infer.init_to_value(values={'mu': 4.0})), steep)"),
    ("def model(ids, y):\n    with numpyro.plate('groups', 4):\n        effect = numpyro.sample('effect', dist.Normal(0.0, 1.0))\n    seen(y, effect[ids])\nsplit(model, GROUP * 1.0, Y)", "ids are integers, counted from 0", 'ids.astype("int32")', "ids = GROUP * 1.0; split(model, {}, Y)"),
    ("dpppl.secret_key() if not jax.jit(lambda: dpppl.secret_key())() else 0", "make the key outside and pass it in", "make the key outside", "jax.jit(lambda key: jax.random.key_data(key))(key())"),
    ("fit = mcmc(); fit.warmup(key(), Y); fit.run(key(), Y, init_params={'mu': 0.0})", "post_warmup_state, which warmup() leaves", "warmup(rng_key, ..., init_params=...)", "fit = mcmc(); fit.warmup(key(), Y, init_params={'mu': 0.0}); fit.run(key(), Y)"),
    ("fit = svi(target_epsilon=None, target_delta=None, noise_multiplier=1.0); result = fit.run(key(), 2, Y, progress_bar=False); fit.update(result.state, Y)", "a state that run returned holds no key",
     "init(dpppl.secret_key(), ..., init_params=get_params(state))", "fit.update(fit.init(dpppl.secret_key(), Y, init_params=fit.get_params(result.state)), Y)"),
    ("fit = svi(target_epsilon=None, target_delta=None, noise_multiplier=1.0); result = fit.run(key(), 2, Y, progress_bar=False); fit.update(result.state, Y)", "a state that run returned holds no key",
     "run(rng_key, num_steps, ..., init_state=state)", "fit.run(key(), 2, Y, init_state=result.state, progress_bar=False)"),
    ("observing(lambda mu: dist.Normal(mu, 1.0), Y[:, None])", "of shape (n,), instead of y of shape (n, 1)", "y[:, 0]", "y = Y[:, None]; observing(lambda mu: dist.Normal(mu, 1.0), {})"),
    ("split(lambda x, y: seen(y, x @ latent('w', 3)), dpppl.Public(X), Y)", "as one value for each row: that is private, pass it without the mark", "without the mark", "split(linear, X, Y)"),
    ("frame = 3; dpppl.MCMC(mean, **SHORT, **COST)", "NumPyro's kernels, such as NUTS, read the data", "dpppl.DPSGLD(model, ...)", "dpppl.MCMC(dpppl.DPSGLD(mean), **SHORT, **COST)"),
    ("mcmc(mesh=3)", "mesh must be a jax.sharding.Mesh", "jax.make_mesh((8,), ('rows',))", "mcmc(mesh=jax.make_mesh((1,), ('rows',)))"),
    ("raise UserWarning(codes(observing(lambda mu, size: dist.Multinomial(size, probs=jax.nn.softmax(mu * jnp.arange(3.0))), ONE_HOT.sum(-1), ONE_HOT)))", "takes whole numbers that add up to total_count", "total_count=y.sum(-1)",
     "split(lambda y: seen(y, dist.Multinomial(probs=jax.nn.softmax(latent('mu') * jnp.arange(3.0)), {})), ONE_HOT)"),
    ("raise UserWarning(codes(observing(lambda mu: dist.VonMises(mu, 1.0), Y)))", "takes angles from -pi to pi", "jnp.arctan2(jnp.sin(y), jnp.cos(y))", "split(lambda y: seen({}, dist.VonMises(latent('mu'), 1.0)), Y)"),
    ("raise UserWarning(codes(observing(lambda mu: dist.Bernoulli(logits=mu), OK)))", "takes 0 and 1", "(y + 1) / 2", "y = 2 * OK - 1; observing(lambda mu: dist.Bernoulli(logits=mu), {})"),
    ("with warnings.catch_warnings(record=True) as told: warnings.simplefilter('always'); dpppl.private_score(key(), lambda y: jnp.nan * y, Y, bounds=(0.0, 1.0), noise_multiplier=0.1)\nraise told[-1].message", "the score is NaN for about", "jnp.where(jnp.isnan(score), low, score)",
     "dpppl.private_score(key(), lambda y: (lambda score, low: {})(jnp.nan * y, 0.0), Y, bounds=(0.0, 1.0), noise_multiplier=0.1)"),
    ("warnings.simplefilter('error'); noise_aware(target_epsilon=1e6)", "bounds next to nothing", "target_epsilon=1.0", "noise_aware({})"),
    ("mcmc(kernel=kernel(subsampling=dpppl.Poisson.of_batch(4, 40))).run(key(), Y)", "so batches have another size", "num_data=12", "mcmc(kernel=kernel(subsampling=dpppl.Poisson.of_batch(4, {}))).run(key(), Y)"),
    ("svi(subsampling=dpppl.Poisson.of_batch(4, 40)).run(key(), 2, Y, progress_bar=False)", "so batches have another size", "num_data=12", "svi(subsampling=dpppl.Poisson.of_batch(4, {})).run(key(), 2, Y, progress_bar=False)"),
    ("mcmc(kernel=kernel(clipping_norm=1e9), num_warmup=150, num_samples=150).run(key(), Y)", "are too small for float32", "a smaller clipping_norm", "mcmc(kernel=kernel(clipping_norm=1.0)).run(key(), Y)"),
    ("fit = mcmc(); fit.target_epsilon = 9.0", "is a setting of this MCMC, fixed when it was made", "MCMC(..., target_epsilon=...)", "mcmc(target_epsilon=9.0)"),
    ("split_model(mean, (Y,), {}, data_plate=3)", "data_plate is the name of a plate", "data_plate='data'", "split_model(mean, (Y,), dict(), {})"),
    ("observing(lambda mu: dist.Normal(0.0, mu), Y)", ", or write jnp.exp(", "jnp.exp(mu)", "observing(lambda mu: dist.Normal(0.0, {}), Y)"),
    ("observing(lambda mu: dist.Bernoulli(mu), OK)", ", or write jax.nn.sigmoid(", "jax.nn.sigmoid(mu)", "observing(lambda mu: dist.Bernoulli({}), OK)"),
    ("split(lambda y: seen(y, dist.Categorical(latent('mu', 3))), GROUP)", ", or write jax.nn.softmax(", "jax.nn.softmax(mu)",
     "split(lambda y: seen(y, (lambda mu: dist.Categorical({}))(latent('mu', 4))), GROUP)"),
    ("split(lambda y: seen(y, dist.OrderedLogistic(0.0, latent('cuts', 2))), OK * 1)", "is not in increasing order: give it one that is, such as",
     "dist.TransformedDistribution(dist.Normal(0, 2).expand([2]), dist.transforms.OrderedTransform())",
     "split(lambda y: seen(y, dist.OrderedLogistic(0.0, numpyro.sample('cuts', {}))), OK * 1)"),
    ("split(lambda y: seen(y, numpyro.sample('mu', dist.Normal(jnp.nan, 1.0))), Y)", "must be a number, not NaN: correct the constant", "correct the constant",
     "split(lambda y: seen(y, numpyro.sample('mu', dist.Normal(0.0, 1.0))), Y)"),
    ("split(lambda y: seen(y, numpyro.sample('mu', dist.Uniform(1.0, 0.0))), Y)", "is above its upper one", "exchange them",
     "split(lambda y: seen(y, numpyro.sample('mu', dist.Uniform(0.0, 1.0))), Y)"),
    ("bind(noise_aware(lambda y: (latent('mu'), seen(y, 0.0))), (Y,), {}, key())", "no latent enters the likelihood, so the rows inform none",
     "numpyro.infer.Predictive(model, num_samples=1000)", "model = lambda y: latent('mu'); {}(jax.random.key(0), Y)"),
    ("path += '.csv'; Path(path).write_text('a;b\\n1,5;2\\n'); dpppl.from_disk(path, 'a')", ", and decimal=',' for numbers such as 1,5", "decimal=','",
     "path += '.csv'; Path(path).write_text('a;b\\n1,5;2\\n'); dpppl.from_disk(path, 'a', separator=';', {}).read(0, 1)"),
    ("fit = mcmc(); fit.verdict = None", "of this MCMC follows from its settings and its runs", "a variable of your own", "verdict = None"),
    ("verify_jaxpr(3, [0])", "; give jax.make_jaxpr(function)(*args), or use verify.", "jax.make_jaxpr(function)(*args)", "function, args = jnp.sin, (1.0,); verify_jaxpr({}, [])"),
    ("check_row_program(3)", "; give jax.make_jaxpr(function)(*args).jaxpr.", "jax.make_jaxpr(function)(*args).jaxpr", "function, args = jnp.sin, (1.0,); check_row_program({})"),
    ("ac.SelectionEvent(candidates=((EVENT,),), mean=2.0).draw(3)", "; give numpy.random.default_rng().", "numpy.random.default_rng()", "ac.SelectionEvent(candidates=((EVENT,),), mean=2.0).draw({})"),
    ("mcmc(kernel=dpppl.DPSGLD(mean), frame=True).run(key(), Y, init_params={'mu': 0.0})", "frame=True finds the start: leave init_params", "leave frame out", "mcmc().run(key(), Y, init_params={'mu': 0.0})"),
    ("dpppl.SVI(mean, AutoNormal(mean), frame=True, **COST).run(key(), 2, Y, init_params={'mu_auto_loc': 0.0}, progress_bar=False)", "frame=True finds the start: leave out init_state and init_params", "or frame",
     "svi().run(key(), 2, Y, init_params={'mu_auto_loc': 0.0, 'mu_auto_scale': 1.0}, progress_bar=False)"),
    ("ledger = PrivacyLedger(path, 1.0, 1e-5, full_batch_only=True); svi(subsampling=dpppl.Poisson(0.5), target_epsilon=0.5, target_delta=1e-6, ledger=ledger).run(key(), 2, Y, progress_bar=False)",
     "full_batch_only=True: it admits", "a ledger made without it", "svi(subsampling=dpppl.Poisson(0.5), target_epsilon=0.5, target_delta=1e-6, ledger=PrivacyLedger(path + '2', 1.0, 1e-5)).run(key(), 2, Y, progress_bar=False)"),
    ("warnings.simplefilter('error'); mcmc().run(jax.random.key(0), Y)", "rng_key has a guessable seed", "dpppl.secret_key()", "mcmc().run({}, Y)"),
    ("k = key(); mcmc().run(k, Y); mcmc().run(k, -Y)", "this key was already used", "dpppl.secret_key()", "mcmc().run({}, -Y)"),
    ("split(lambda y: seen(jnp.zeros(y.shape[0]), latent('mu')), Y)", "does not depend on a private argument; observe the private array itself", "obs=y", "split(mean, Y)"),
    ("split(lambda y: numpyro.sample('y', dist.GaussianRandomWalk(jnp.exp(latent('mu')), 12), obs=y), Y)", "each sequence observed whole", 'numpyro.plate("data", num_sequences)',
     "def model(y):\n    scale, num_sequences = jnp.exp(latent('mu')), y.shape[0]\n    with {}:\n        numpyro.sample('y', dist.GaussianRandomWalk(scale, 3), obs=y)\nsplit(model, X)"),
    ("split(lambda x, y: seen(y, latent('w') * (x - x.mean())), Y, Y)", "couples the rows, or depends on their number", "a dpppl.Public one", "split(lambda x, m, y: seen(y, latent('w') * (x - m)), Y, dpppl.Public(0.5), Y)"),
    ("def model(group, y):\n    with numpyro.plate('data', y.shape[0]):\n        theta = numpyro.sample('theta', dist.Normal(0.0, 1.0).expand([y.shape[0]]).mask(y > 0))\n        numpyro.sample('u', dist.Gamma(2.0, 1.0))\n        numpyro.sample('y', dist.Normal(theta, 1.0), obs=y)\nsplit(model, GROUP, Y)",
     "is a continuous latent of each row", "theta[group]", "split(lambda group, y: (lambda theta: seen(y, {}))(latent('theta', 4)), GROUP, Y)"),
    ("split(lambda x, y=None: (latent('mu'), numpyro.sample('z', dist.Normal(0.0, 1.0)))[0], Y)", "the model has no observed site", "obs=y", "split(mean, Y)"),
    ("split(lambda y: seen(y, latent('mu') / jnp.zeros(y.shape[0])), Y)", "is not finite on any of the rows", "obs=y", "split(mean, Y)"),
    ("split(lambda x, y: seen(y, latent('w') * x + jnp.zeros(12), size=12), Y, Y)", "fixes the number of rows", "x.shape[0]", "split(lambda x, y: seen(y, latent('w') * x + jnp.zeros({}), size=x.shape[0]), Y, Y)"),
    ("def model(y):\n    mu = latent('mu')\n    numpyro.sample('y', dist.Normal(mu, 1.0), obs=y[0])\nsplit(model, Y)", "one number, of one row or of all", 'numpyro.plate("data", x.shape[0])',
     "def model(y):\n    mu, x = latent('mu'), y\n    with {}:\n        numpyro.sample('y', dist.Normal(mu, 1.0), obs=y)\nsplit(model, Y)"),
    ("observing(lambda mu: dist.Normal(mu, 1.0).expand([12, 1]).to_event(1), Y)", "observe y[:, None], of shape (n, 1)", "y[:, None]", "y = Y; split(lambda y: seen(y, dist.Normal(latent('mu'), 1.0).expand([y.shape[0], 1]).to_event(1)), {})"),
    ("bind_guide(lambda y: draw(dist.Normal(0.0, 1.0)))", "has a parameter to fit", "numpyro.param('mu_loc', 0.0)", "bind_guide(lambda y: draw(dist.Normal({}, 1.0)))"),
    ("bind_guide(lambda y: draw(dist.Normal(y.mean(), 1.0)))", "computes latents that all rows share from rows", "numpyro.param('loc', 0.0)", "bind_guide(lambda y: draw(dist.Normal({}, 1.0)))"),
    ("bind_guide(lambda y: draw(param(shape=(3,)).to_event(1)))", "the guide draws site '", "dist.Normal(numpyro.param('mu_loc', jnp.zeros(())), 1.0)", "bind_guide(lambda y: draw({}))"),
    ("bind_guide(AutoNormal(lambda x, y: linear(x, y)))", "make it of the model that runs", "AutoNormal(normal_mean)", "normal_mean = mean; bind_guide({})"),
    ("split(one_name('data'), GROUP, Y)", "two plates of different length are named", "numpyro.plate('groups', num_groups)",
     "num_groups = 5\ndef model(group, y):\n    with {}:\n        theta = latent('theta')\n    seen(y, theta[group])\nsplit(model, GROUP, Y)"),
    ("split(by_group, GROUP, Y)", "branches on, or converts to Python", "model(group, y, num_groups=5)", "model, group, y = functools.partial(split, by_group), GROUP, Y; {}"),
    ("split(lambda y: seen(y[y > 0], latent('mu')), Y)", "chooses entries of an array by truth values", "with numpyro.handlers.mask(mask=ok)",
     "def model(y, ok):\n    mu = latent('mu')\n    {}:\n        seen(y, mu)\nsplit(model, Y, OK)"),
    ("observing(lambda mu: dist.Normal(mu, 1.0), X[:, :2])", "give both one shape", ".to_event(1)", "split(lambda y: seen(y, (lambda law: law{})(dist.Normal(latent('mu'), 1.0).expand([y.shape[0], 2]))), X[:, :2])"),
    ("split(categorical, X, ONE_HOT)", "observe y.argmax(-1) in place of one-hot rows", "y.argmax(-1)", "y = ONE_HOT; split(categorical, X, {})"),
    ("split(lambda y: seen(y, numpyro.sample('mu', dist.Normal(0.0, 1.0 / y.shape[0]))), Y)", "depends on the number of rows", "a public number", "split(lambda y, n: seen(y, numpyro.sample('mu', dist.Normal(0.0, 1.0 / n))), Y, 12)"),
    ("split(network(lambda name: random_nnx_module(name, nnx.Dropout(0.5, rngs=nnx.Rngs(0)), prior=dist.Normal(0.0, 1.0))), X, Y)", "holds a random generator as mutable state", "flax.nnx.Dropout(rate, deterministic=True)",
     "import flax; rate = 0.5; split(lambda x, y: seen(y, {}(x) @ latent('w', 3)), X, Y)"),
    ("def model(y):\n    from numpyro.contrib.control_flow import scan\n    mu = latent('mu')\n    scan(lambda c, v: (numpyro.sample('y', dist.Normal(mu * c, 1.0), obs=v), None), 0.0, y)\nsplit(model, Y)", "numpyro.contrib.control_flow", "carry the recursion with jax.lax.scan and write one site for all times, in the data plate, with .to_event(1)",
     "def model(y):\n    mu = latent('mu')\n    _, means = jax.lax.scan(lambda c, v: (v, mu * c), jnp.zeros(y.shape[0]), y.T)\n    with numpyro.plate('data', y.shape[0]):\n        numpyro.sample('y', dist.Normal(means.T, 1.0).to_event(1), obs=y)\nsplit(model, X)"),
    ("mcmc(name='')", "name is one printable line", "name='Readmissions by age'", "mcmc({})"),
    ("dpppl.Poisson.of_batch(4, Y)", "; for their number write len(", "len(num_data)", "num_data = Y; dpppl.Poisson.of_batch(4, {})"),
]  # fmt: skip


EXEMPT = {
    'with a norm of your own, as clipping_norm=1.0,': 'said of a planted fault; tests/runs/test_conclusions.py types it',
    "with checkpoint='run.npz' a run keeps": 'said of a planted fault; tests/runs/test_conclusions.py types it',
    '; full_batch_only=True at its making has no such loss': 'a line of the report; tests/ledger types the argument',
    '; call it: §(0.01)': 'a part of the message on optimisers; typed in the table',
    'pass §.T': 'a part of the message about other numbers of rows; typed in the table',
    'make a new one, §(..., §=...)': 'typed in the table by its three classes',
    'make a new state by init(': 'a part of messages on states; typed in the table',
    "Write numpyro.sample('mu', dist.Normal(0, 1)).": 'a part of messages on models without latents; every model here writes it',
    "and another name than that of the model's argument": 'a name, and no code',
    '--about': "a shell's argument: tests/test_cli.py",
    '--argument': "a shell's argument: tests/test_cli.py",
    'np.savez(path, x=x, y=y)': "NumPy's own call: tests/test_cli.py reads such a file",
    'round it, int(§)': 'a part of messages on numbers; typed in the table',
    'pip install': 'test_extras_that_messages_name_are_declared',
    'set DPPPL_NATIVE=0': "an environment's variable",
    'to_arviz()': 'test_leave_one_out_of_arviz_points_to_the_private_score calls it',
    'pass §.reindex(§.index)': 'a part of the message on indices; typed in the table',
    'a start (init_strategy, init_params) is': 'test_values_of_numpyro, test_strategies_of_numpyro',
    'about is a §': 'a second line of defence: calls are checked by their signature',
    'columns is §': 'typed in the table',
    'give the draw a key of its own': "tests/information_flow: proofs of programs, no call of a user's",
    'has a key of another generator': 'tests/information_flow',
    'canaries="row" needs gradients': "tests/test_audit.py: a setting of the method's",
    'copy it by numpy.array(x)': 'typed in the table',
    'checkpoint is a §': 'typed in the table',
    'privacy is a §': 'typed in the table',
    'num_data=§ is declared': 'typed in the table',
    'the guide is the class §': 'typed in the table',
    'discretise=True draws at most': 'needs a model of more latents than a test has time for',
    'for a covariate with missing values write': 'MODELS: imputed',
    'leave them out of the density': 'MODELS: imputed at places',
    'frame=True needs': 'leaves an argument out',
    'gradient_strategy="ghost" is proved for': 'needs more devices than machines have',
    'with end an argument that holds': 'tests/model/test_censoring.py types censored_by in all its forms',
    'which no censoring enters': 'tests/model/test_censoring.py',
    'does not say when rows are censored': 'tests/model/test_censoring.py',
    'which no censoring time informs': 'tests/model/test_censoring.py',
    'inference = dpppl.': 'the code of a plan: tests/accounting/test_planning.py runs it',
    'jit_model_args=True': 'leaves an argument out',
    '.to_event(1) on the distribution, or': 'MODELS: two responses',
    'use a layer without state': 'MODELS: spectral norm, weight norm',
    'name the value through which alone rows know': 'tests/noise_aware/test_noise_aware_coordinates.py',
    'processes 0 and §': 'tests/processes',
    'this process was forked': 'tests/processes',
    'is running already, in process': 'tests/ledger: another process',
    'the ledger counts other steps': 'tests/ledger: another process',
    'this state comes from another process': 'tests/svi: another process; what it advises is typed in the table',
    "the data set's own code raised": "a loop over a user's own data set",
    "the model has no site '§', a column": 'typed in the table by datasets',
    'should be noise=..., steps=...': "a shell's argument: tests/test_cli.py",
    'use clipping="flat"': 'a part of messages; typed in the table with SVI',
    'pathlib.Path(§).write_text': 'tests/test_cli.py',
    'inside jax.jit, lax.scan': 'test_runs_inside_transforms',
    'was called inside jax.jit': 'test_runs_inside_transforms',
    'needs the guide, which a pickled': 'tests/svi/test_svi_habits.py',
    'do not reach it: write': 'test_networks_without_a_prior_under_the_defaults_of_svi',
    'declare one by its dtype': 'typed in the table',
    '; wrap it in numpyro.plate': 'typed in the table',
    'an entry that is no number such as 1234.5': 'a part of reports; tests/data/test_sources.py reads such a file',
    'sample_again(dpppl.secret_key(), ...) with the arguments': 'tests/runs/test_conclusions.py calls it',
    'the verdict of the last run could not be computed': 'tests/runs/test_conclusions.py calls it',
    'responses of all owners together have': 'a finding on a pool; width="sandwich" is typed in the table',
}  # fmt: skip
"""Messages with a cure that is code, and why the table does not type it."""


@functools.cache
def makers():
    """What the table's code takes beside the names of this file."""
    sexes = synthetic.Schema((synthetic.Category("sex", ("F", "M")),))
    event = ac.GaussianEvent(noise_multipliers=((10.0, 10),))
    return {
        "key": dpppl.secret_key, "PrivacyLedger": dpppl.PrivacyLedger, "numpy": np, "pyarrow": pa, "Category": synthetic.Category,
        "Number": synthetic.Number, "Schema": synthetic.Schema, "SEXES": sexes, "TABLE": synthetic.table_model(sexes),
        "NUMBERS": synthetic.Schema((synthetic.Number("age", 0, 100),)), "accounting": ac, "EVENT": event,
        "SEX_DRAWS": {"sex given the columns before": np.zeros((5, 1, 1))}, "HUGGING": datasets.Dataset.from_dict({"x": [1.0, 2.0]}),
        "FIXED": dataclasses.replace(event, batch_size=5, num_data=50), "COST_ALONE": {"target_epsilon": 5.0, "target_delta": 1e-3},
        "REPLACED": dataclasses.replace(event, batch_size=5, num_data=50, neighboring_relation="replace_one"),
        "plan": lambda: ac.plan(num_data=1_000, target_epsilon=1.0, target_delta=1e-5), "pages": pages, "plotting": plotting,
        "audit": audit, "bind": bind, "codes": codes, "keys": keys, "decimal": decimal,
        "verify_jaxpr": verify_jaxpr, "likelihood_of": likelihood_of, "Site": Site, "check_row_program": check_row_program,
    }  # fmt: skip


SLOW = ("audit(", "run(", "update(", "datasets(", "fit_cells(", "steep", "to_parquet", "private_score(")


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[pytest.mark.slow] * any(word in row[0] + row[3] for word in SLOW)) for row in CURES],
    ids=lambda row: f"{row[0][:40]} {row[2][:20]}",
)
def test_cures_that_are_code_run_when_they_are_typed(row, tmp_path, monkeypatch):
    wrong, words, cure, typed = row
    monkeypatch.chdir(tmp_path)
    names = globals() | makers() | {"path": str(tmp_path / "file")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((dpppl.errors.DPPPLError, UserWarning)) as caught:
            exec(wrong, names)
        message = str(caught.value)
        assert words in message and cure in message, message
        exec(typed.replace("{}", cure), names)


def test_every_cure_that_is_code_is_typed():
    """A message of the package that is neither in the table nor exempt, for a reason, was written without typing its cure."""
    found = messages()
    assert len(found) > 150 and any("they seem to be swapped" in text for text in found)
    typed = [words for _, words, _, _ in CURES]
    assert not [text for text in found if not any(words in text for words in [*typed, *EXEMPT])]
    assert not [words for words in EXEMPT if not any(words in text for text in found)]


def test_extras_that_messages_name_are_declared():
    extras = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [name for text in messages() for name in re.findall(r"pip install \"?dpppl\[(\w+)\]", text)]
    assert len(named) > 4 and not set(named) - set(extras)


# Imports


def test_a_checkout_that_is_not_installed_is_imported(monkeypatch):
    def missing(name):
        if name == "dpppl":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0"

    monkeypatch.setattr(importlib.metadata, "version", missing)
    from dpppl.report import report

    monkeypatch.setattr(report, "version", missing)
    assert importlib.reload(dpppl).__version__ == dpppl.report.version.VERSION
    assert '"dpppl": "' in mcmc().privacy_plan().to_json()


def test_the_citation_and_the_changelog_name_the_version():
    root = Path(__file__).resolve().parents[1]
    assert f"\nversion: {dpppl.__version__}\n" in (root / "CITATION.cff").read_text()
    assert (root / "CHANGELOG.md").read_text().split("\n## ")[1].startswith(f"{dpppl.__version__} (")


def test_a_star_hides_no_module_of_pythons():
    names = {"logging": logging}
    exec("from dpppl import *", names)
    assert names["logging"] is logging and names["MCMC"] is dpppl.MCMC
