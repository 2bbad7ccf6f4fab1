"""Wrong arguments of a model's call, and wrong models."""

import atexit

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from numpyro import handlers
from refused_common import (
    FOLDER,
    GAPS,
    GROUP,
    NPY,
    OK,
    F,
    N,
    X,
    Y,
    chain,
    linear,
    logistic,
    mean,
    noise_aware,
    normal,
    offset,
    rows,
    slope,
    split,
)

import dpppl
from dpppl import Public

# fmt: off


def frame_model(frame):
    mean(frame["y"])


def batches():
    for start in range(0, N, 10):
        yield X[start : start + 10], Y[start : start + 10]


def of_table(group, y, table):
    u = normal("u", 4)
    with rows(y):
        numpyro.sample("y", dist.Normal(u[group] + table[group], 1.0), obs=y)


NPZ, H5 = FOLDER / "rows.npz", FOLDER / "rows.h5"
np.savez(NPZ, y=F)
OPEN = np.load(NPZ)  # until the tests end: a file that the collector closes warns in another test
atexit.register(OPEN.close)
with h5py.File(H5, "w") as file:
    file["y"] = F
TABLE = np.arange(4.0, dtype=np.float32)

ARGUMENTS = [
    ("a column's name beside a frame", lambda: chain(pd.DataFrame({"x": F, "y": F})[["x"]], "y", model=linear), "x float32[40, 1]|y str, no array|(1,)", lambda: chain(X, F, model=linear)),
    ("None as the data", lambda: chain(None), "'y'|None|array", lambda: chain(F)),
    ("an npz file", lambda: chain(OPEN), "'y'|NpzFile", lambda: chain(OPEN["y"])),
    ("an HDF5 file", lambda: chain(h5py.File(H5)), "'y'|File", lambda: chain(h5py.File(H5)["y"][:])),
    ("three lengths", lambda: chain(GROUP, F[:-1], TABLE, model=of_table), "'group' has 40|'y' has 39|'table' has 4", lambda: chain(GROUP, F, Public(TABLE), model=of_table)),
    ("a table by group without its mark", lambda: chain(GROUP, F, TABLE, model=of_table), "'group' and 'y' have 40|'table' has 4|the same for all rows|dpppl.Public(table)", lambda: chain(GROUP, F, Public(TABLE), model=of_table)),
    ("a dict of columns of different length", lambda: chain({"x": F, "y": F[:5]}, model=lambda data: slope(data["x"], data["y"])), "data['x']|40|data['y']|5", lambda: chain({"x": F, "y": F}, model=lambda data: slope(data["x"], data["y"]))),
    ("a list one number short", lambda: chain(F, F.tolist()[:-1], model=slope), "'y'|39|40", lambda: chain(F, F.tolist(), model=slope)),
    ("a generator of batches", lambda: chain(batches()), "'y'|generator|read only once", lambda: chain(F)),
    ("a list of batches", lambda: chain(list(batches()), model=lambda data: linear(data[0], data[1])), "data float32[4]|a list is one number a row|numpy.concatenate", lambda: chain(np.concatenate([x for x, _ in batches()]), np.concatenate([y for _, y in batches()]), model=linear)),
    ("a tuple of both", lambda: chain((X, Y), model=logistic), "x[0] float32[40, 3]|tuple|arguments of their own", lambda: chain(*(X, Y), model=lambda x, y: logistic(x, y))),
    ("a frame where the model takes an array", lambda: chain(pd.DataFrame({"y": F}), model=frame_model), "frame float32[40, 1]|data frame|dict", lambda: chain(dict(pd.DataFrame({"y": F})), model=frame_model)),
    ("a misspelt keyword", lambda: chain(X, Y=Y, model=logistic), "'Y'|did you mean y", lambda: chain(X, y=Y, model=logistic)),
    ("the key among the data", lambda: chain(jax.random.key(0), model=mean), "'y'|key", lambda: chain(F)),
    ("rows without columns", lambda: chain(X[:, :0], Y, model=lambda x, y: slope(x.sum(1), y)), "'x'|no columns", lambda: chain(X, Y, model=lambda x, y: slope(x.sum(1), y))),
    ("a table with one column too few", lambda: chain(X[:, :2], Y, model=logistic), "x float32[40, 2]|(3,)", lambda: chain(X, Y, model=logistic)),
    ("a public response", lambda: chain(X, Public(Y), model=logistic), "'y'|dpppl.Public|private", lambda: chain(X, Y, model=logistic)),
    ("Public of a file's path", lambda: chain(F, Public(str(NPY)), model=offset), "table str|taken for an array", lambda: chain(F, Public(np.load(NPY)), model=offset)),
    ("Public of a source", lambda: chain(F, Public(dpppl.from_disk(NPY)), model=offset), "'table'|on disk", lambda: chain(F, Public(np.load(NPY)), model=offset)),
    ("Public of words", lambda: chain(F, Public(np.array(["a", "b"])), model=offset), "'table'|numbers", lambda: chain(F, Public(np.array([0, 1])), model=offset)),
    ("the class Public", lambda: chain(F, Public, model=offset), "'table'|Public", lambda: chain(F, Public(TABLE), model=offset)),
]


# Models


def forgot_obs(x, y):
    w = normal("w")
    with rows(x):
        numpyro.sample("y", dist.Normal(w * x, 1.0))


def negative_scale(y):
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, -1.0), obs=y)


def of_arrays(x, y):
    w = normal("w", 3)
    with rows(x):
        numpyro.sample("y", dist.Normal(x * w, 1.0), obs=y)


def scalar_indexed(y):
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.Normal(mu[0], 1.0), obs=y)


def same_name(y):
    mu = normal()
    numpyro.deterministic("mu", 2 * mu)
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def with_default():
    def model(y, x=jnp.asarray(F)):  # noqa: B008
        slope(x, y)

    return model


def random_effect(y):
    mu = normal()
    with rows(y):
        e = numpyro.sample("e", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Poisson(jnp.exp(mu + e)), obs=y)


def string_law(y):
    numpyro.sample("mu", "Normal")
    mean(y)


def of_key(rng_key, y):
    mean(y)


def two_plates(x, y):
    w = normal("w")
    with numpyro.plate("a", x.shape[0]):
        numpyro.sample("x", dist.Normal(w, 1.0), obs=x)
    with numpyro.plate("b", y.shape[0]):
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


def one_plate(x, y):
    w = normal("w")
    with rows(x):
        numpyro.sample("x", dist.Normal(w, 1.0), obs=x)
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


MODELS = [
    ("obs forgotten", lambda: split(forgot_obs, F, F), "obs|'y'", lambda: split(slope, F, F)),
    ("x * w for x @ w", lambda: split(of_arrays, X, F), "x * w|x float32[40, 3]|(40, 3)", lambda: split(linear, X, F)),
    ("an index of a scalar latent", lambda: split(scalar_indexed, F), "mu[0]|ind", lambda: split(mean, F)),
    ("a deterministic of a latent's name", lambda: split(same_name, F), "two sites are named 'mu'", lambda: split(mean, F)),
    ("a default that is the data", lambda: split(with_default(), F), "captures|a default|argument", lambda: split(with_default(), F, F)),
    ("a random effect of each row", lambda: split(random_effect, Y), "'e'|each row|obs_mask", lambda: split(mean, F)),
    ("a law by name", lambda: split(string_law, F), "\"mu\"|Distribution|str|dist.Normal", lambda: split(mean, F)),
    ("a model that wants a key", lambda: split(of_key, F), "rng_key|'y'", lambda: split(mean, F)),
    ("two plates for two columns", lambda: split(two_plates, F, F), "different plates|one numpyro.plate", lambda: split(one_plate, F, F)),
    ("a model's result in place of a model", lambda: chain(F, model=handlers.seed(mean, 0)(F)), "the model is None|function", lambda: chain(F, model=mean)),
    ("a negative scale", lambda: split(negative_scale, F), "'y'|scale|positive", lambda: split(mean, F)),
]

# Missing values


def covariate(law):
    """A model whose covariate has this law and missing values."""
    def model(x, y, ok):
        w = normal("w")
        with rows(x):
            x = numpyro.sample("x", law(), obs=x, obs_mask=ok)
            numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    return model


summed = covariate(lambda: dist.Normal(0.0, 1.0))


def missing(count):
    """A model of three covariates, the first of which have missing values."""
    def model(x, y, ok):
        w = normal("w", 3)
        with rows(x):
            columns = [numpyro.sample(f"x{k}", dist.Normal(0.0, 1.0), obs=x[:, k], obs_mask=ok) for k in range(count)]
            numpyro.sample("y", dist.Normal(jnp.stack([*columns, *x[:, count:].T], -1) @ w, 1.0), obs=y)

    return model


def masked(y, ok):
    mu = normal()
    with rows(y), handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


IDS = np.arange(N) // 2

MISSING = [
    ("a mask of 0 and 1", lambda: split(masked, GAPS, OK.astype(int)), "mask|bool", lambda: split(masked, GAPS, OK.astype(bool))),
    ("an obs_mask of 0 and 1 as floats", lambda: split(summed, GAPS, F, OK.astype(float)), "mask|bool", lambda: split(summed, GAPS, F, OK)),
    ("a public mask", lambda: split(masked, GAPS, Public(OK)), "'ok'|Public|private", lambda: split(masked, GAPS, OK)),
    ("a covariate with a Gamma law", lambda: split(covariate(lambda: dist.Gamma(2.0, 1.0)), GAPS, F, OK), "missing values of 'x'|LogNormal", lambda: split(covariate(lambda: dist.LogNormal(0.0, 1.0)), GAPS, F, OK)),
    ("a covariate with a Poisson law", lambda: split(covariate(lambda: dist.Poisson(2.0)), GAPS, F, OK), "'x|finite|support", lambda: split(covariate(lambda: dist.Binomial(8, 0.3)), GAPS, F, OK)),
    ("three missing covariates", lambda: split(missing(3), X, F, OK), "'x0|4096|256", lambda: split(missing(2), X, F, OK)),
    ("missing covariates and persons", lambda: noise_aware(GAPS, F, OK, model=summed, settings={"unit": "person", "max_rows_per_unit": 2}, person=IDS), "missing|unit", lambda: noise_aware(GAPS, F, OK, model=summed)),
]

# Survival


def lives(time, censored, end=None, how=None):
    place = normal("place")
    with rows(time):
        law = dist.RightCensoredDistribution(dist.Weibull(jnp.exp(place), 1.5), censored)
        numpyro.sample("time", law, obs=time, infer={} if how is None else {"censored_by": end if how == "end" else how})


END = np.random.default_rng(1).uniform(0.5, 2.0, N).astype(np.float32)
LIFE = np.random.default_rng(2).weibull(1.5, N).astype(np.float32)
TIME, CENSORED = np.minimum(LIFE, END), LIFE > END


def survive(*args, **kwargs):
    return noise_aware(*args, model=kwargs.pop("model", lives), **kwargs)


SURVIVAL = [
    ("words as indicators", lambda: survive(TIME, np.where(CENSORED, "yes", "no"), END, "end"), "'censored'|str", lambda: survive(TIME, np.where(CENSORED, "yes", "no") == "yes", END, "end")),
    ("a negative end", lambda: survive(TIME, CENSORED, -1.0, "end"), "'time'|censored_by|positive", lambda: survive(TIME, CENSORED, END, "end")),
]

AREAS = {"arguments": ARGUMENTS, "models": MODELS, "missing": MISSING, "survival": SURVIVAL}
