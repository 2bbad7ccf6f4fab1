"""Wrong inputs in none of the other lists: what a user of NumPyro, of pandas or of a hospital's statistics gets wrong at first.

`python benchmarks/errors/fresh_inputs.py` runs all and prints how many are raw, charged before a refusal, accepted although wrong, refused
well, or accepted rightly. An entry is (name, call, words): words of the refusal, in lower case, or None where the call is right after all.
"Raw" is an exception that is not one of dpppl's. Names of areas run these alone; `--show` prints each message.
"""

import argparse
import contextlib
import copy
import datetime
import functools
import io
import sys
import warnings
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
from numpyro import handlers
from numpyro.infer import MCMC as NUMPYRO_MCMC
from numpyro.infer import Predictive, Trace_ELBO, TraceGraph_ELBO
from numpyro.infer.autoguide import AutoBNAFNormal, AutoGuideList, AutoLowRankMultivariateNormal, AutoNormal
from numpyro.optim import Adam

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/refusals"))
from refused_accounts import EVENT, ledger
from refused_common import (
    AWARE,
    CHAIN,
    COST,
    FITTED,
    FOLDER,
    F,
    N,
    X,
    Y,
    chain,
    fit,
    kernel,
    key,
    linear,
    logistic,
    mcmc,
    mean,
    noise_aware,
    normal,
    rows,
    slope,
    split,
    svi,
)
from refused_tables import CELLS, COUNTED, EPSILON, MODEL, SYNTH, Failed, cells, command, draws, tables

import dpppl
from dpppl import DPSGHMC, DPSGNHT, NoiseAware, PrivacyLedger, Public, from_disk
from dpppl import accounting as ac
from dpppl.contrib import synthetic
from dpppl.contrib import uncertainty as un
from dpppl.contrib.audit import audit
from dpppl.contrib.synthetic import Category, Intervals, Number, Schema
from dpppl.runs import budget

# fmt: off
FREE = {"target_epsilon": None, "target_delta": None}


# Models


def in_plate(law, obs=None, **more):
    """A model whose rows have this law, of the latent."""
    def model(y):
        mu = normal()
        with rows(y):
            numpyro.sample("y", law(mu), obs=y if obs is None else obs(y), **more)
    return model


def half_cauchy_wrong(y):
    tau = numpyro.sample("tau", dist.HalfCauchy(jnp.zeros(())))
    with rows(y):
        numpyro.sample("y", dist.Normal(0.0, tau), obs=y)


def uniform_wrong(y):
    u = numpyro.sample("u", dist.Uniform(1.0, 0.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(u, 1.0), obs=y)


def two_responses(y, z):
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
        numpyro.sample("y", dist.Normal(mu, 2.0), obs=z)


def nested(y):
    mu = normal()
    with rows(y), numpyro.plate("again", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def subsampled(y):
    mu = normal()
    with numpyro.plate("data", y.shape[0], subsample_size=10) as places:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[places])


def scanned(y):
    from numpyro.contrib.control_flow import scan
    mu = normal()
    def step(before, value):
        numpyro.sample("y", dist.Normal(mu * before, 1.0), obs=value)
        return value, None
    scan(step, 0.0, y)


def ar1(y):
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.Normal(mu * jnp.roll(y, 1), 1.0), obs=y)


def gaussian_process(x, y):
    length = numpyro.sample("length", dist.LogNormal(0.0, 1.0))
    covariance = jnp.exp(-((x[:, None] - x[None]) ** 2) / length) + jnp.eye(x.shape[0])
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), covariance), obs=y)


def simplex_rows(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    with rows(y):
        numpyro.sample("y", dist.Categorical(p), obs=y)


def bad_simplex(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.zeros(3)))
    with rows(y):
        numpyro.sample("y", dist.Categorical(p), obs=y)


def centred_in_model(x, y):
    w = normal("w")
    with rows(x):
        numpyro.sample("y", dist.Normal(w * (x - x.mean()), 1.0), obs=y)


def standardised(x, y):
    w = normal("w", 3)
    x = (x - x.min(axis=0)) / (x.max(axis=0) - x.min(axis=0))
    with rows(x):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def returns_mean(y):
    return y.mean()


def generator(y):
    mu = normal()
    with rows(y):
        yield numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


async def coroutine(y):
    mean(y)


class Model:
    def __call__(self, y):
        mean(y)

    def model(self, y):
        mean(y)


def improper(y):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def delta_prior(y):
    mu = numpyro.sample("mu", dist.Delta(0.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def observed_latent(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0), obs=0.3)
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def reparametrised(y):
    with handlers.reparam(config={"mu": numpyro.infer.reparam.LocScaleReparam(0.0)}):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def wrong_plate_of_group(group, y):
    with numpyro.plate("groups", group.max() + 1):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(u[group], 1.0), obs=y)


def latent_index(y):
    k = normal("k")
    with rows(y):
        numpyro.sample("y", dist.Normal(y[k.astype(int)], 1.0), obs=y)


def missing_parenthesis(y):
    mu = numpyro.sample("mu", dist.Normal)
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def truncated_nothing(y):
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.TruncatedNormal(mu, 1.0, low=2.0, high=1.0), obs=y)


def unordered_cuts(y):
    cuts = normal("cuts", 2)
    with rows(y):
        numpyro.sample("y", dist.OrderedLogistic(0.0, cuts), obs=y)


def wrong_event(x):
    mu = normal("mu", 2)
    with rows(x):
        numpyro.sample("x", dist.MultivariateNormal(mu, jnp.eye(3)), obs=x)


def text_site(y):
    mu = numpyro.sample("", dist.Normal(0.0, 1.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


COUNTS = np.arange(N) % 5
MODELS = [
    ("a prior of scale 0", lambda: chain(F, model=half_cauchy_wrong), "'tau'|scale|positive"),
    ("two sites of one name", lambda: chain(F, F, model=two_responses), "'y'|two sites"),
    ("a plate within a plate of rows", lambda: chain(F, model=nested), "'data' and 'again'|data_plate='data'"),
    ("NumPyro's subsampling", lambda: chain(F, model=subsampled), None),
    ("scan over rows", lambda: chain(F, model=scanned), "scan|rows"),
    ("an autoregression", lambda: chain(F, model=ar1), "'y'|couples the rows"),
    ("a Gaussian process", lambda: chain(F, F, model=gaussian_process), "'y'|independent|hsgp"),
    ("labels as booleans", lambda: chain(Y.astype(bool), model=in_plate(lambda mu: dist.Bernoulli(logits=mu))), None),
    ("classes from 1", lambda: split(simplex_rows, COUNTS + 1), None),
    ("a Dirichlet of zeros", lambda: chain(COUNTS % 3, model=bad_simplex), "'p'|positive"),
    ("a column less its mean", lambda: chain(F, F, model=centred_in_model), "'y'|couples the rows"),
    ("columns scaled by their range", lambda: chain(X, F, model=standardised), "'y'|couples the rows"),
    ("a function without sites", lambda: chain(F, model=returns_mean), "no observed site|obs="),
    ("a model that yields", lambda: chain(F, model=generator), "yields|write def"),
    ("a coroutine", lambda: chain(F, model=coroutine), "async|write def"),
    ("an object that is called", lambda: split(Model(), F), None),
    ("a method", lambda: split(Model().model, F), None),
    ("a method of the class", lambda: chain(F, model=Model.model), "'y'|missing"),
    ("an improper prior, NoiseAware", lambda: noise_aware(F, model=improper), "'mu'|proper prior"),
    ("a prior of one point", lambda: chain(F, model=delta_prior), "'mu'|delta|constant"),
    ("no latent is left", lambda: chain(F, model=observed_latent), "latent"),
    ("a reparametrised latent", lambda: split(reparametrised, F), None),
    ("as many groups as the rows have", lambda: chain(COUNTS, F, model=wrong_plate_of_group), "number of|group"),
    ("rows indexed by a latent", lambda: chain(F, model=latent_index), "'k'|steps only|index"),
    ("a distribution's class as a prior", lambda: chain(F, model=missing_parenthesis), "dist.normal|expected an instance"),
    ("a truncation that leaves nothing", lambda: chain(F, model=truncated_nothing), "'y'|lower bound"),
    ("cutpoints that are not ordered", lambda: chain(COUNTS % 3, model=unordered_cuts), "'y'|cutpoints|order"),
    ("cutpoints that are written in a wrong order", lambda: chain(COUNTS % 3, model=in_plate(lambda mu: dist.OrderedLogistic(mu, jnp.array([1.0, -1.0])))), "'y'|cutpoints|order"),
    ("a regression whose scale may be negative", lambda: chain(F, model=in_plate(lambda mu: dist.Normal(jnp.zeros(N), mu))), "'y'|scale|positive"),
    ("a uniform prior from 1 to 0", lambda: chain(F, model=uniform_wrong), "'u'|lower bound"),
    ("a mean of another length than its covariance", lambda: chain(X, model=wrong_event), "dist.multivariatenormal(mu|(2, 1), (3, 3)"),
    ("a site without a name", lambda: chain(F, model=text_site), None),
    ("a scale that may be negative", lambda: chain(F, model=in_plate(lambda mu: dist.Normal(0.0, mu))), "'y'|scale|positive"),
    ("a rate that may be negative", lambda: chain(COUNTS, model=in_plate(lambda mu: dist.Poisson(mu))), "'y'|rate|positive"),
    ("a probability that may be above 1", lambda: chain(Y, model=in_plate(lambda mu: dist.Bernoulli(mu))), "'y'|probs|between 0 and 1"),
    ("obs as a list", lambda: chain(F, model=in_plate(lambda mu: dist.Normal(mu, 1.0), obs=lambda y: [v for v in y])), "jax.numpy"),
    ("obs of another shape", lambda: chain(F, model=in_plate(lambda mu: dist.Normal(mu, 1.0), obs=lambda y: y[:, None])), "'y'|shape"),
]

# Data of pandas and hospitals

DATES = pd.date_range("2020-01-01", periods=N)
ADMISSIONS = pd.DataFrame({"age": F, "ward": pd.Categorical(["a", "b"] * (N // 2)), "admitted": DATES})
GAPPY = pd.Series(pd.array([1, None] * (N // 2), dtype="Int64"))
LONG = from_text = FOLDER / "semicolons.csv"
LONG.write_text("age;wage\n" + "".join(f"{i},5;{i}\n" for i in range(N)))
BLANK = FOLDER / "blank.csv"
BLANK.write_text("\n\n\n")
ONLY_NAMES = FOLDER / "names.csv"
ONLY_NAMES.write_text("age,wage\n")


DATA = [
    ("ages as timedeltas", lambda: chain(pd.Series(DATES - DATES[0])), "'y'|timedelta|numbers"),
    ("a birth date", lambda: chain(pd.Series(DATES)), "'y'|datetime|days"),
    ("a ward as categories", lambda: chain(ADMISSIONS["ward"]), "'y'|category|numbers"),
    ("a frame with a date", lambda: chain(ADMISSIONS[["age", "admitted"]], Y, model=linear), "'admitted'|datetime"),
    ("a frame's values of mixed types", lambda: chain(ADMISSIONS.to_numpy(), Y, model=linear), "'x'|object|numbers"),
    ("nullable integers", lambda: chain(GAPPY), None),
    ("a series of two indices", lambda: chain(F, pd.Series(F, index=np.arange(N)[::-1]), model=slope), "'y'|order of its index|y.to_numpy()"),
    ("two series in different orders", lambda: chain(pd.Series(F), pd.Series(F, index=np.arange(N)[::-1]), model=slope), "different indices|y.reindex(x.index)"),
    ("a grouped column", lambda: chain(ADMISSIONS.groupby("ward", observed=True)["age"]), "'y'|seriesgroupby|array"),
    ("a rolling mean", lambda: chain(pd.Series(F).rolling(3)), "'y'|rolling|array"),
    ("a frame's shape", lambda: chain(ADMISSIONS.shape), None),
    ("columns of a frame by a list of series", lambda: chain([pd.Series(F), pd.Series(F)], model=lambda c: slope(c[0], c[1])), None),
    ("a dict of series of two lengths", lambda: chain({"x": pd.Series(F), "y": pd.Series(F[:9])}, model=lambda d: slope(d["x"], d["y"])), "40|9"),
    ("a sparse column of pandas", lambda: chain(pd.Series(pd.arrays.SparseArray(F))), None),
    ("a date of Python", lambda: chain(F, datetime.date(2020, 1, 1), model=slope), "'y'|date"),
    ("numbers in half precision", lambda: chain(F.astype(np.float16)), None),
    ("numbers of 128 bits", lambda: chain(F.astype(np.longdouble)), "longdouble|astype('float32')"),
    ("big-endian numbers", lambda: chain(F.astype(">f4")), None),
    ("a view with negative strides", lambda: chain(F[::-1]), None),
    ("bytes of a file", lambda: chain(LONG.read_bytes()), "'y'|bytes"),
    ("an open file", lambda: chain(open(LONG)), "'y'"),
    ("semicolons in a file", lambda: chain(from_disk(LONG, "age")), "'age'|separator=';'|decimal=','"),
    ("a file of empty lines", lambda: chain(from_disk(BLANK)), "names"),
    ("a file of names only", lambda: chain(from_disk(ONLY_NAMES, "age")), "no rows"),
    ("a decimal mark of two characters", lambda: from_disk(LONG, "age", separator=";", decimal=",,"), "decimal=|one character"),
    ("a column of a .npy file by name", lambda: from_disk(FOLDER / "rows.npy", "age"), "source[:, 0]"),
    ("a folder", lambda: from_disk(FOLDER), "is a directory"),
    ("two columns where one belongs", lambda: chain(from_disk(FOLDER / "rows.csv", ["age", "wage"])), "'y'|(40, 2)"),
    ("no columns of a file", lambda: from_disk(FOLDER / "rows.csv", []), "columns|none"),
    ("a source and a shorter array", lambda: chain(from_disk(FOLDER / "rows.csv", "age"), F[:5], model=slope), "40|5"),
]

# Keys, kernels, schedules, guides, optimisers, checkpoints


def two_guides(model):
    guide = AutoGuideList(model)
    guide.append(AutoNormal(handlers.block(model, hide=[])))
    return guide


def interrupted(path, again):
    mcmc(checkpoint=path).run(key(), F)
    again(path)


METHODS = [
    ("the key as bytes", lambda: mcmc().run(b"secret", F), "rng_key|secret_key"),
    ("a key for each row", lambda: mcmc().run(jax.random.split(jax.random.key(0), N), F), "key|one"),
    ("a key of another generator", lambda: mcmc().run(jax.random.key(0, impl="rbg"), F), "generator|secret_key()"),
    ("the function secret_key", lambda: mcmc().run(dpppl.secret_key, F), "secret_key()"),
    ("a key in a list", lambda: mcmc().run([key()], F), "rng_key"),
    ("NumPyro's MCMC of a private kernel", lambda: NUMPYRO_MCMC(kernel(), num_warmup=1, num_samples=1, progress_bar=False).run(jax.random.key(0), F), "dpppl.mcmc"),
    ("a clipping norm of 0", lambda: kernel(clipping_norm=0.0), "clipping_norm|positive"),
    ("a clipping norm of infinity", lambda: kernel(clipping_norm=np.inf), "clipping_norm|finite"),
    ("a step size by its name", lambda: kernel(step_size="auto"), "step_size|number"),
    ("a step size for each latent", lambda: kernel(step_size={"mu": 0.1}), "step_size|number"),
    ("a schedule of two arguments", lambda: chain(F, own=kernel(step_size=lambda i, n: 0.1)), "step_size"),
    ("a schedule that returns text", lambda: chain(F, own=kernel(step_size=lambda i: "0.1"), settings=FREE | {"noise_multiplier": 5.0}), "step"),
    ("a schedule that returns an array", lambda: chain(F, own=kernel(step_size=lambda i: jnp.ones(3)), settings=FREE | {"noise_multiplier": 5.0}), "step"),
    ("a schedule that becomes NaN", lambda: chain(F, own=kernel(step_size=lambda i: 0.1 * jnp.sqrt(1.0 - i)), settings=FREE | {"noise_multiplier": 5.0}), "step size"),
    ("optax's schedule", lambda: chain(F, own=kernel(step_size=optax.exponential_decay(0.1, 10, 0.9)), settings=FREE | {"noise_multiplier": 5.0}), None),
    ("friction of 1", lambda: DPSGHMC(mean, friction=1.0), "friction|(0, 1)"),
    ("a thermostat's diffusion below 0", lambda: DPSGNHT(mean, diffusion=-0.1), "diffusion|positive"),
    ("a data plate of another name", lambda: chain(F, own=kernel(data_plate="rows")), "'rows'|'data'"),
    ("a data plate that is a plate", lambda: chain(F, own=kernel(data_plate=numpyro.plate("data", N))), "data_plate|name"),
    ("chains of text", lambda: mcmc(num_chains="4"), "num_chains"),
    ("negative warmup", lambda: mcmc(num_warmup=-1), "num_warmup"),
    ("thousands as 1e3", lambda: mcmc(num_samples=1e3), "num_samples|int(num_samples)"),
    ("num_samples as text", lambda: mcmc(num_samples="1000"), "num_samples"),
    ("the path of a chain's checkpoint that is over, for SVI", lambda: interrupted(FOLDER / "s.check", lambda p: svi(checkpoint=p).run(key(), 2, F, progress_bar=False)), None),
    ("the path of a checkpoint that is over, for other rows", lambda: interrupted(FOLDER / "r.check", lambda p: mcmc(checkpoint=p).run(key(), F[:-1])), None),
    ("a checkpoint by True", lambda: mcmc(checkpoint=True), "checkpoint|path"),
    ("optax's transform not called", lambda: svi(optim=optax.sgd), "call it"),
    ("an optimiser of NumPyro without a rate", lambda: svi(optim=Adam), "adam|call it"),
    ("optax with a negative rate", lambda: svi(optim=optax.adam(-0.1)), None),
    ("a schedule as the optimiser", lambda: svi(optim=optax.cosine_decay_schedule(0.1, 10)), "optim"),
    ("the number of steps as a float", lambda: fit(num_steps=2.0), "num_steps|int(num_steps)"),
    ("steps by text", lambda: fit(num_steps="2"), "num_steps"),
    ("TraceGraph_ELBO", lambda: fit(svi(loss=TraceGraph_ELBO())), "loss must be|trace_elbo()"),
    ("an ELBO of no particles", lambda: fit(svi(loss=Trace_ELBO(num_particles=0))), "num_particles"),
    ("a normalising flow", lambda: fit(svi(guide=AutoBNAFNormal(linear), model=linear), X, F), None),
    ("a list of guides", lambda: fit(svi(guide=two_guides(mean))), None),
    ("a rank above the latents", lambda: fit(svi(guide=AutoLowRankMultivariateNormal(mean, rank=9))), None),
    ("NumPyro's Predictive of a chain", lambda: Predictive(mean, CHAIN().get_samples(allow_unconverged=True))(jax.random.key(0), F), None),
    ("a fit copied", lambda: copy.deepcopy(svi()), None),
    ("a width by a number", lambda: NoiseAware(mean, width=0.9, **COST), "width"),
    ("coordinates by a string", lambda: NoiseAware(mean, coordinates="mu", **COST).run(key(), F), None),
    ("draws of 0", lambda: NoiseAware(mean, num_samples=0, **COST), "num_samples"),
    ("an extra argument of the model", lambda: noise_aware(F, scale=2.0), "'scale'"),
    ("a partial of the model without data", lambda: chain(model=functools.partial(mean, y=F)), "no private argument"),
    ("a Bayes factor of two elements", lambda: AWARE().bayes_factor(["mu"], allow_unconverged=True), "element"),
    ("a posterior of a guide by a seed", lambda: FITTED().sample_posterior(0, 10), "rng_key"),
]

# Ledgers, accounts, queries, tables, the command line


def score(function=lambda y: jnp.clip(y, 0, 1), *args, **settings):
    return dpppl.private_score(key(), function, *(args or (F,)), **({"bounds": (0.0, 1.0), "noise_multiplier": 5.0} | settings))


OTHERS = [
    ("a ledger in a file of the data", lambda: PrivacyLedger(LONG, 1.0, 1e-5), "semicolons.csv|ledger"),
    ("a delta of 1 / 10", lambda: PrivacyLedger(FOLDER / "tenth.ledger", 1.0, 0.1), None),
    ("a budget as a tuple", lambda: PrivacyLedger(FOLDER / "t.ledger", (1.0, 1e-5)), "delta"),
    ("NaN as epsilon", lambda: PrivacyLedger(FOLDER / "nan.ledger", float("nan"), 1e-5), "epsilon"),
    ("events of a plan as a dict", lambda: ledger().admits({"noise": 1.0}), "events"),
    ("a run id that is empty", lambda: ledger().reserve("", (EVENT,), "a run"), "run_id"),
    ("a release of text", lambda: ledger().release(3), "run"),
    ("an unknown delta of an account", lambda: ac.epsilon(EVENT, [1e-5, 1e-6]), "delta"),
    ("a complex epsilon", lambda: ac.delta(EVENT, 1j), "epsilon"),
    ("a composition of text", lambda: ac.epsilon("gaussian", 1e-5), "events"),
    ("an account of no steps", lambda: ac.GaussianEvent(noise_multipliers=((1.0, 0),)), "number of accesses 0"),
    ("a rate of NaN", lambda: ac.GaussianEvent(noise_multipliers=((1.0, 1),), sampling_rate=float("nan")), "sampling_rate"),
    ("a plan of a negative number of rows", lambda: ac.plan(num_data=-10, target_epsilon=1.0, target_delta=1e-5), "num_data"),
    ("a plan with rates in percent", lambda: ac.plan(num_data=1000, target_epsilon=1.0, target_delta=1e-5, rates=(10,)), "rates"),
    ("bounds of a score that are equal", lambda: score(bounds=(1.0, 1.0)), "bounds"),
    ("bounds by NaN", lambda: score(bounds=(0.0, float("nan"))), "bounds"),
    ("a score that takes no row", lambda: score(lambda: 0.0), "argument"),
    ("a score of pandas", lambda: score(lambda y: pd.Series(y).mean()), "one row|y float32[40]"),
    ("a score of two numbers", lambda: score(lambda y: (y, y)), "must be a number"),
    ("a score of whole numbers", lambda: score(lambda y: (y > 0).astype(int)), None),
    ("a private scale of dates", lambda: dpppl.private_scale(key(), pd.Series(DATES), noise_multiplier=5.0), "datetime"),
    ("a private scale of no columns", lambda: dpppl.private_scale(key(), np.zeros((N, 0)), noise_multiplier=5.0), "columns"),
    ("a private scale of a number of rows", lambda: dpppl.private_scale(key(), N, noise_multiplier=5.0), "'x'|array"),
    ("a schema's category of floats and words", lambda: Category("grade", (1.5, "b")), None),
    ("a number column from text", lambda: Number("age", low="0", high=90), "low"),
    ("intervals with NaN", lambda: Intervals("age", (0.0, float("nan"), 9.0)), "edges"),
    ("a schema's JSON as a dict", lambda: Schema.from_json({"columns": []}), "path"),
    ("a table of a series", lambda: Schema((Number("x", -4.0, 4.0),)).encoded(pd.Series(F)), "table|frame"),
    ("cells of a table without rows", lambda: cells(table={name: column[:0] for name, column in COUNTED.items()}), "no rows"),
    ("cells with a negative target", lambda: cells(noise_multiplier=None, target_epsilon=-1.0, target_delta=1e-5), "epsilon"),
    ("tables of rows by text", lambda: tables(num_rows="20"), "num_rows"),
    ("tables of another schema", lambda: tables(schema=Schema((Number("x", 0.0, 1.0),))), "schema"),
    ("datasets without samples", lambda: synthetic.datasets(synthetic.table_model(CELLS), {}, CELLS, jax.random.key(0), num_rows=9), "samples"),
    ("combining words", lambda: synthetic.combine(["a", "b"], [1.0, 1.0]), "estimates"),
    ("combining with NaN", lambda: synthetic.combine([1.0, np.nan], [1.0, 1.0]), "estimates|finite"),
    ("draws of a table for a calibration", lambda: un.expected_calibration_error(draws(), Y), "probabilities"),
    ("an audit of no trials", lambda: audit(kernel(noise_multiplier=3.0), F, num_steps=1, delta=1e-5, num_trials=0), "num_trials"),
    ("an audit of NoiseAware's class", lambda: audit(NoiseAware, F, num_steps=1, delta=1e-5), "num_steps|kernel"),
    ("check of a guide", lambda: dpppl.check(AutoNormal(mean), F), "model"),
    ("a command with commas in a number", lambda: command("epsilon --noise-multiplier 1,5 --steps 10 --delta 1e-5"), "1,5"),
    ("a command with a rate in percent", lambda: command(EPSILON + " --rate 10%"), "10%"),
    ("a command without its value", lambda: command("epsilon --noise-multiplier"), "expected one argument"),
    ("verify of a class", lambda: command(f"verify {MODEL}:dist --argument y=float32[40]"), "dist"),
    ("verify of a shape without numbers", lambda: command(f"verify {MODEL}:mean --argument y=float32[many]"), "y"),
    ("synthesize of semicolons", lambda: command(SYNTH.replace("cells.csv", "semicolons.csv") + "f1"), "';'|commas"),
    ("synthesize with a licence only", lambda: command("synthesize --licence MIT"), "required"),
    ("a number of public rows", lambda: chain(F, Public(3), model=lambda y, n: mean(y)), None),
    ("weights that are Public", lambda: noise_aware(F, settings={"weights": "weight", "max_weight": 2.0}, weight=Public(np.ones(N))), "weight"),
    ("weights as a frame", lambda: noise_aware(F, settings={"weights": "weight", "max_weight": 2.0}, weight=pd.DataFrame({"w": F})), "weight|(n,)"),
    ("ids as floats", lambda: noise_aware(F, settings={"unit": "person", "max_rows_per_unit": 2}, person=F), None),
    ("ids of two columns", lambda: noise_aware(F, settings={"unit": "person", "max_rows_per_unit": 2}, person=X), "person"),
    ("logistic regression of percents", lambda: split(logistic, X, 50.0 * Y), None),
]

AREAS = {"models": MODELS, "data": DATA, "methods": METHODS, "others": OTHERS}
OUTCOMES = ("raw", "charged before refusal", "accepted although wrong", "refused for another cause", "refused although right", "refused well", "accepted rightly")


def judge(call, words):
    """One of `OUTCOMES`, and the message."""
    charged, before = [], (budget.Reservation.charge, budget.Budget.charge_one)

    def counting(function):
        return lambda *args, **kwargs: (charged.append(1), function(*args, **kwargs))[1]

    budget.Reservation.charge, budget.Budget.charge_one = map(counting, before)
    error = None
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            call()
    except (Exception, SystemExit) as found:
        error = found
    finally:
        budget.Reservation.charge, budget.Budget.charge_one = before
    if error is None:
        return "accepted rightly" if words is None else "accepted although wrong", "nothing was raised"
    message = f"{type(error).__name__}: {error}"
    if not isinstance(error, dpppl.DPPPLError | Failed):
        return "raw", message
    if charged:
        return "charged before refusal", message
    if words is None:
        return "refused although right", message
    return "refused well" if all(word in message.lower() for word in words.split("|")) else "refused for another cause", message


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", choices=[*AREAS, []])
    parser.add_argument("--show", action="store_true", help="print each message")
    asked, counts = parser.parse_args(), Counter()
    for make in (CHAIN, AWARE, FITTED, draws):  # runs that entries look at: their charges are not of these
        judge(make, None)
    for area in asked.areas or AREAS:
        for name, call, words in AREAS[area]:
            outcome, message = judge(call, words)
            counts[outcome] += 1
            if asked.show or outcome not in OUTCOMES[-2:]:
                print(f"{outcome}: {area}: {name}\n    {message}", flush=True)
    print(f"{counts.total()} fresh inputs: " + ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES))
    return int(any(counts[outcome] for outcome in OUTCOMES[:-2]))


if __name__ == "__main__":
    raise SystemExit(main())
