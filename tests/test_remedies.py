"""Each message's remedy runs: what was refused, what the message says, and the same with the remedy."""

import importlib
import importlib.metadata
import logging
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from flax import nnx
from jax.experimental import sparse
from numpyro import handlers, infer
from numpyro.contrib.module import nnx_module, random_nnx_module
from numpyro.infer.autoguide import AutoNormal
from small_models import latent, linear, seen
from small_models import normal_mean as mean

import dpppl
from dpppl.errors import ConfigurationError, DataReadError, UnsupportedModelError
from dpppl.model.initialization import initial_values
from dpppl.model.split import split_model
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
SQUARE = np.eye(N, dtype=np.int32)

MODELS = {
    "one plate name": (one_name("data"), (GROUP, Y), "two plates of different length are named 'data' (5 and 12)", one_name("groups"), (GROUP, Y)),
    "imputed": (imputed, (Y, Y), "x = numpyro.sample('x', dist.Normal(mu, sigma), obs=x, obs_mask=ok)", summed_out, (Y, Y, OK)),
    "imputed at places": (imputed_at, (Y, Y), "Latents stand in what site 'x' observes: if for missing values, leave them out", left_out, (Y, Y, OK)),
    "obs_mask": (with_obs_mask, (Y, OK), "handlers.mask(mask=ok)", left_out, (Y, Y, OK)),
    "BCOO": (linear, (in_coordinates, Y), "argument 'x' is a BCOO; pass x.todense()", linear, (X, Y)),
    "BCSR": (linear, (lambda x: sparse.BCSR.from_bcoo(in_coordinates(x)), Y), "argument 'x' is a BCSR; pass x.todense()", linear, (X, Y)),
    "number of groups": (by_group, (GROUP, Y), "a Python number, model(group, y, num_groups=5)", by_group, (GROUP, Y, 5)),
    "spectral norm": (random_network(nnx.SpectralNorm), (X, Y), "x @ (kernel / jnp.linalg.norm(kernel)), instead of SpectralNorm", random_network(), (X, Y)),
    "weight norm": (random_network(nnx.WeightNorm), (X, Y), "instead of SpectralNorm or WeightNorm", random_network(), (X, Y)),
    "one-hot": (categorical, (X, ONE_HOT), "shape (12, 3) under a CategoricalLogits of shape (12,); labels are numbers", categorical, (X, ONE_HOT.argmax(-1))),
    "one-hot floats": (categorical, (X, ONE_HOT * 1.0), "or dist.Multinomial(total_count=1, logits=logits)", multinomial, (X, ONE_HOT)),
    "one-hot, as many": (categorical, (X, SQUARE), "labels are numbers of classes: observe y.argmax(-1)", categorical, (X, SQUARE.argmax(-1))),
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
    "nothing": (lambda y: None, ["missing from the guide ['mu']", "AutoNormal(model)"]),
    "too many": (lambda y: (draw(), numpyro.sample("nu", param("other"))), ["unknown to the model ['nu']"]),
    "observes": (lambda y: draw(obs=0.5), ["without obs"]),
    "twice": (lambda y: (draw(), draw()), ["duplicated", CURE]),
    "undefined": (lambda y: draw(dist.Normal(loc, 1.0)), ["name 'loc' is not defined"]),  # noqa: F821
    "too many axes": (lambda y: (draw(), y[0, 0]), ["y[0, 0]", CURE]),
    "in the plate": (in_the_plate, ["inside the data plate 'data' in one of guide and model only; write the guide's site where"]),
    "of data": (lambda y: draw(dist.Normal(y.mean(), 1.0)), ["from rows", "numpyro.param('loc', 0.0) instead of y.mean()"]),
    "side effect": (lambda y: (jax.debug.callback(lambda y: None, y), draw()), ["the guide has a side effect"]),
    "another model": (AutoNormal(lambda x, y: linear(x, y)), ["make it of the model that runs: AutoNormal(normal_mean)"]),
    "another latent": (AutoNormal(lambda y: seen(y, latent("nu"))), ["missing from the guide ['mu'], unknown to the model ['nu']"]),
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


def mcmc(**settings):
    steps = {"num_warmup": 2, "num_samples": 4, "progress_bar": False}
    return dpppl.MCMC(dpppl.DPSGLD(mean, clipping_norm=1.0, measure_clipping=False), **(steps | COST | settings))


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


def test_columns_and_text_files(tmp_path):
    """Text files hold floats, whatever one row holds; the other files have types of their own."""
    frame = pd.DataFrame({"age": np.arange(N), "income": np.arange(N) + 0.5, "job": "x"})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_csv(tmp_path / "rows.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "rows.parquet")
    for name in ("rows.csv", "rows.tsv", "rows.parquet"):
        both = dpppl.from_disk(tmp_path / name, columns=["age", "income"])
        np.testing.assert_array_equal(both.read(0, N), frame[["age", "income"]])
        np.testing.assert_array_equal(dpppl.from_disk(tmp_path / name, "income").read(3, 2), [3.5, 4.5])
        refused(ConfigurationError, ["no column 'wage'"], dpppl.from_disk, tmp_path / name, "wage")
        assert "0.5" not in repr(both)
    refused(ConfigurationError, ["column 'job' is of type"], dpppl.from_disk, tmp_path / "rows.parquet", "job")
    (tmp_path / "odd.csv").write_bytes(b"a,b\n1,2e-1\nx,-.5\n,+3\nNA,\xe9\n")
    odd = dpppl.from_disk(tmp_path / "odd.csv", ["a", "b"])
    np.testing.assert_allclose(odd.read(0, 4), [[1.0, 0.2], [np.nan, -0.5], [np.nan, 3.0], [np.nan, np.nan]])
    sampler = mcmc()
    sampler.run(dpppl.secret_key(), dpppl.from_disk(tmp_path / "rows.csv")["income"])
    assert sampler.get_samples()["mu"].shape == (4,)


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
    assert f"({dpppl.__version__})" in (root / "CHANGELOG.md").read_text().split("## ")[1]


def test_a_star_hides_no_module_of_pythons():
    names = {"logging": logging}
    exec("from dpppl import *", names)
    assert names["logging"] is logging and names["MCMC"] is dpppl.MCMC
