"""Wrong arguments of a model's call, and wrong models."""

import functools
import math

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from numpyro import handlers
from refused_common import (
    CSV,
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


def factory(scale=1.0):
    def model(y):
        mu = normal()
        with rows(y):
            numpyro.sample("y", dist.Normal(mu, scale), obs=y)

    return model


def batches():
    for start in range(0, N, 10):
        yield X[start : start + 10], Y[start : start + 10]


def of_table(group, y, table):
    u = normal("u", 4)
    with rows(y):
        numpyro.sample("y", dist.Normal(u[group] + table[group], 1.0), obs=y)


def with_time(y, at):
    """A model with an array that is the same for all rows."""
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.Normal(mu * at.sum(), 1.0), obs=y)


NPZ, H5 = FOLDER / "rows.npz", FOLDER / "rows.h5"
np.savez(NPZ, y=F)
with h5py.File(H5, "w") as file:
    file["y"] = F
TABLE = np.arange(4.0, dtype=np.float32)

ARGUMENTS = [
    ("a path as the data", lambda: chain(str(NPY)), "'y'|path|from_disk", lambda: chain(dpppl.from_disk(str(NPY)))),
    ("a Path object as the data", lambda: chain(NPY), "'y'|path|from_disk", lambda: chain(dpppl.from_disk(NPY))),
    ("a path beside an array", lambda: chain(F, str(NPY), model=slope), "'y'|path|from_disk", lambda: chain(F, dpppl.from_disk(str(NPY)), model=slope)),
    ("a column's name beside a frame", lambda: chain(pd.DataFrame({"x": F, "y": F})[["x"]], "y", model=linear), "x float32[40, 1]|y str, no array|(1,)", lambda: chain(X, F, model=linear)),
    ("a CSV file's path", lambda: chain(str(CSV)), "'y'|path|from_disk", lambda: chain(dpppl.from_disk(str(CSV), "age"))),
    ("None as the data", lambda: chain(None), "'y'|None|array", lambda: chain(F)),
    ("None as the only response", lambda: chain(X, None, model=logistic), "'y'|None|obs", lambda: chain(X, Y, model=logistic)),
    ("the response left out", lambda: chain(X, model=logistic), "'y'|obs", lambda: chain(X, Y, model=logistic)),
    ("a number as the data", lambda: chain(2.5), "'y'|float|array", lambda: chain(F)),
    ("True as the data", lambda: chain(True), "'y'|bool|array", lambda: chain(F)),
    ("an npz file", lambda: chain(np.load(NPZ)), "'y'|NpzFile", lambda: chain(np.load(NPZ)["y"])),
    ("an HDF5 data set", lambda: chain(h5py.File(H5)["y"], np.zeros(3), model=slope), "'x'|'y'|40|3", lambda: chain(h5py.File(H5)["y"], F, model=slope)),
    ("an HDF5 file", lambda: chain(h5py.File(H5)), "'y'|File", lambda: chain(h5py.File(H5)["y"][:])),
    ("a response that is one row short", lambda: chain(X, Y[:-1], model=logistic), "'x' has 40|'y' has 39|same row", lambda: chain(X, Y, model=logistic)),
    ("three lengths", lambda: chain(GROUP, F[:-1], TABLE, model=of_table), "'group' has 40|'y' has 39|'table' has 4", lambda: chain(GROUP, F, Public(TABLE), model=of_table)),
    ("a table by group without its mark", lambda: chain(GROUP, F, TABLE, model=of_table), "'group' and 'y' have 40|'table' has 4|the same for all rows|dpppl.Public(table)", lambda: chain(GROUP, F, Public(TABLE), model=of_table)),
    ("a grid of times without its mark", lambda: chain(F, np.linspace(0, 1, 7), model=with_time), "'y' has 40|'at' has 7|dpppl.Public(at)", lambda: chain(F, Public(np.linspace(0, 1, 7)), model=with_time)),
    ("a transposed table", lambda: chain(X.T, Y, model=logistic), "'x' has 3|'y' has 40|x.T", lambda: chain(X, Y, model=logistic)),
    ("one row as a matrix", lambda: chain(X[:1], Y, model=logistic), "'x' has 1|'y' has 40", lambda: chain(X, Y, model=logistic)),
    ("a dict of columns of different length", lambda: chain({"x": F, "y": F[:5]}, model=lambda data: slope(data["x"], data["y"])), "data['x']|40|data['y']|5", lambda: chain({"x": F, "y": F}, model=lambda data: slope(data["x"], data["y"]))),
    ("a frame and a shorter series", lambda: chain(pd.DataFrame(X), pd.Series(F[:9]), model=linear), "'x' has 40|'y' has 9", lambda: chain(pd.DataFrame(X), pd.Series(F), model=linear)),
    ("a list one number short", lambda: chain(F, F.tolist()[:-1], model=slope), "'y'|39|40", lambda: chain(F, F.tolist(), model=slope)),
    ("the train and test parts together", lambda: chain(X[:30], Y[30:], model=logistic), "'x' has 30|'y' has 10", lambda: chain(X[:30], Y[:30], model=logistic)),
    ("a column from disk of another length", lambda: chain(dpppl.from_disk(NPY)[:], F[:7], model=slope), "'x' has 40|'y' has 7", lambda: chain(dpppl.from_disk(NPY), F, model=slope)),
    ("a generator of batches", lambda: chain(batches()), "'y'|generator|read only once", lambda: chain(F)),
    ("a list of batches", lambda: chain(list(batches()), model=lambda data: linear(data[0], data[1])), "data float32[4]|a list is one number a row|numpy.concatenate", lambda: chain(np.concatenate([x for x, _ in batches()]), np.concatenate([y for _, y in batches()]), model=linear)),
    ("a tuple of both", lambda: chain((X, Y), model=logistic), "x[0] float32[40, 3]|tuple|arguments of their own", lambda: chain(*(X, Y), model=lambda x, y: logistic(x, y))),
    ("a frame where the model takes an array", lambda: chain(pd.DataFrame({"y": F}), model=frame_model), "frame float32[40, 1]|data frame|dict", lambda: chain(dict(pd.DataFrame({"y": F})), model=frame_model)),
    ("a misspelt keyword", lambda: chain(X, Y=Y, model=logistic), "'Y'|did you mean y", lambda: chain(X, y=Y, model=logistic)),
    ("the key among the data", lambda: chain(jax.random.key(0), model=mean), "'y'|key", lambda: chain(F)),
    ("rows without columns", lambda: chain(X[:, :0], Y, model=lambda x, y: slope(x.sum(1), y)), "'x'|no columns", lambda: chain(X, Y, model=lambda x, y: slope(x.sum(1), y))),
    ("a table with one column too few", lambda: chain(X[:, :2], Y, model=logistic), "x float32[40, 2]|(3,)", lambda: chain(X, Y, model=logistic)),
    ("a column where numbers belong", lambda: chain(F[:, None], F, model=slope), "'y'|(40, 40)|(n, 1)", lambda: chain(F, F, model=slope)),
    ("complex numbers", lambda: chain(F + 1j), "'y'|complex", lambda: chain((F + 1j).real)),
    ("everything marked as public", lambda: chain(Public(F)), "no private argument|dpppl.Public", lambda: chain(F)),
    ("a public response", lambda: chain(X, Public(Y), model=logistic), "'y'|dpppl.Public|private", lambda: chain(X, Y, model=logistic)),
    ("Public without a value", lambda: chain(F, Public(), model=offset), "Public|value", lambda: chain(F, Public(TABLE), model=offset)),
    ("Public of a file's path", lambda: chain(F, Public(str(NPY)), model=offset), "table str|taken for an array", lambda: chain(F, Public(np.load(NPY)), model=offset)),
    ("Public of a source", lambda: chain(F, Public(dpppl.from_disk(NPY)), model=offset), "'table'|on disk", lambda: chain(F, Public(np.load(NPY)), model=offset)),
    ("Public of words", lambda: chain(F, Public(np.array(["a", "b"])), model=offset), "'table'|numbers", lambda: chain(F, Public(np.array([0, 1])), model=offset)),
    ("the class Public", lambda: chain(F, Public, model=offset), "'table'|Public", lambda: chain(F, Public(TABLE), model=offset)),
    ("a public frame with words", lambda: chain(F, Public(pd.DataFrame({"a": ["x"]})), model=offset), "'table'|numbers", lambda: chain(F, Public(pd.DataFrame({"a": [1.0]}).to_numpy()), model=offset)),
]


# Models


def forgot_obs(x, y):
    w = normal("w")
    with rows(x):
        numpyro.sample("y", dist.Normal(w * x, 1.0))


def python_float(y):
    mu = float(normal())
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def with_math(y):
    mu = math.exp(normal())
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def with_numpy(y):
    mu = np.exp(normal())
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def with_jax(y):
    mu = jnp.exp(normal())
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def negative_scale(y):
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, -1.0), obs=y)


def negative_prior(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, -1.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def one_dim(y):
    mu = normal()
    with numpyro.plate("data", y.shape[0], dim=-2):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


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


class OfData:
    def __init__(self):
        self.x = jnp.asarray(F)

    def model(self, y):
        slope(self.x, y)


def global_data():
    mean(jnp.asarray(F))


def while_true(y):
    mu = normal()
    while mu > 0:
        mu = mu - 1.0
    mean(y)


def if_latent(y):
    mu = normal("nu")
    if mu > 0:
        mu = -mu
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def where_latent(y):
    mu = normal("nu")
    with rows(y):
        numpyro.sample("y", dist.Normal(jnp.where(mu > 0, -mu, mu), 1.0), obs=y)


def loop_of_sites(y):
    w = [normal("w") for _ in range(3)]
    with rows(y):
        numpyro.sample("y", dist.Normal(sum(w), 1.0), obs=y)


def loop_of_names(y):
    w = [normal(f"w{i}") for i in range(3)]
    with rows(y):
        numpyro.sample("y", dist.Normal(sum(w), 1.0), obs=y)


def outside_with(y):
    mu = normal()
    numpyro.plate("data", y.shape[0])
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def len_of_table(x, y):
    w = normal("w", 3)
    with numpyro.plate("data", x.size):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def prior_of_rows(y):
    mu = numpyro.sample("mu", dist.Normal(y[0], 1.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def scaled_rows(y):
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, y.std()), obs=y)


def random_effect(y):
    mu = normal()
    with rows(y):
        e = numpyro.sample("e", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Poisson(jnp.exp(mu + e)), obs=y)


def student_latent(y):
    mu = normal()
    with rows(y):
        e = numpyro.sample("e", dist.StudentT(3.0, mu, 1.0))
        numpyro.sample("y", dist.Normal(e, 1.0), obs=y)


def discrete_global(y):
    k = numpyro.sample("k", dist.Poisson(3.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(1.0 * k, 1.0), obs=y)


def mixture_global(y):
    mu = normal("mu", 2)
    with rows(y):
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), dist.Normal(mu, 1.0)), obs=y)


def rng_inside(y):
    noise = jax.random.normal(jax.random.PRNGKey(0), y.shape)
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.Normal(mu + 0.1 * noise, 1.0), obs=y)


def string_law(y):
    numpyro.sample("mu", "Normal")
    mean(y)


def of_key(rng_key, y):
    mean(y)


def sizes_in_prior(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0 / y.shape[0]))
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


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


def threshold(x, y):
    at = normal("at")
    with rows(x):
        numpyro.sample("y", dist.Normal(jnp.where(x > at, 1.0, 0.0), 1.0), obs=y)


def smooth(x, y):
    at = normal("at")
    with rows(x):
        numpyro.sample("y", dist.Normal(jax.nn.sigmoid((x - at) / 0.1), 1.0), obs=y)


def ranks(y):
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.argsort(y) * 1.0)


def diffs(y):
    mu = normal()
    with numpyro.plate("data", y.shape[0] - 1):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.diff(y))


def matrix(y):
    L = numpyro.sample("L", dist.LKJCholesky(3, 1.0))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(3), scale_tril=L), obs=y)


def matrix_plated(y):
    L = numpyro.sample("L", dist.LKJCholesky(3, 1.0))
    with rows(y):
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(3), scale_tril=L), obs=y)


def to_event_of_rows(y):
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.Normal(mu * jnp.ones_like(y), 1.0).to_event(1), obs=y)


def beta_of_counts(y):
    a = numpyro.sample("a", dist.HalfNormal(1.0))
    with rows(y):
        numpyro.sample("y", dist.Bernoulli(a), obs=y)


def ok_mean(y):
    return mean(y)


MODELS = [
    ("obs forgotten", lambda: split(forgot_obs, F, F), "obs|'y'", lambda: split(slope, F, F)),
    ("float() of a latent", lambda: split(python_float, F), "float|Python", lambda: split(mean, F)),
    ("math.exp of a latent", lambda: split(with_math, F), "math|jnp|Python", lambda: split(with_jax, F)),
    ("numpy.exp of a latent", lambda: split(with_numpy, F), "NumPy|jnp", lambda: split(with_jax, F)),
    ("a plate at dim -2", lambda: split(one_dim, F), "'y'|broadcast", lambda: split(mean, F)),
    ("x * w for x @ w", lambda: split(of_arrays, X, F), "x * w|x float32[40, 3]|(40, 3)", lambda: split(linear, X, F)),
    ("an index of a scalar latent", lambda: split(scalar_indexed, F), "mu[0]|ind", lambda: split(mean, F)),
    ("a deterministic of a latent's name", lambda: split(same_name, F), "two sites are named 'mu'", lambda: split(mean, F)),
    ("a default that is the data", lambda: split(with_default(), F), "captures|a default|argument", lambda: split(with_default(), F, F)),
    ("a method with the data in self", lambda: split(OfData().model, F), "captures|argument", lambda: split(slope, F, F)),
    ("a model without arguments", lambda: split(global_data), "no private argument|closure", lambda: split(mean, F)),
    ("while on a latent", lambda: split(while_true, F), "branches|Python|while mu > 0", lambda: split(mean, F)),
    ("if on a latent", lambda: split(if_latent, F), "jnp.where", lambda: split(where_latent, F)),
    ("one name in a loop", lambda: split(loop_of_sites, F), "two sites are named 'w'", lambda: split(loop_of_names, F)),
    ("a plate without with", lambda: split(outside_with, F), "'y'|plate|with", lambda: split(mean, F)),
    ("a plate of x.size", lambda: split(len_of_table, X, F), "120|40", lambda: split(linear, X, F)),
    ("a prior at the first row", lambda: split(prior_of_rows, F), "'mu'|prior", lambda: split(mean, F)),
    ("the rows' standard deviation", lambda: split(scaled_rows, F), "'y'|couples the rows", lambda: split(mean, F)),
    ("a random effect of each row", lambda: split(random_effect, Y), "'e'|each row|obs_mask", lambda: split(mean, F)),
    ("a Student's t latent of each row", lambda: split(student_latent, F), "'e'|each row", lambda: split(mean, F)),
    ("a discrete latent of all rows", lambda: split(discrete_global, F), "'k'|discrete", lambda: split(mixture_global, F)),
    ("fixed random numbers inside", lambda: split(rng_inside, F), "random", lambda: split(mean, F)),
    ("a law by name", lambda: split(string_law, F), "\"mu\"|Distribution|str|dist.Normal", lambda: split(mean, F)),
    ("a model that wants a key", lambda: split(of_key, F), "rng_key|'y'", lambda: split(mean, F)),
    ("a prior that narrows with the rows", lambda: split(sizes_in_prior, F), "'mu'|number of rows", lambda: split(mean, F)),
    ("two plates for two columns", lambda: split(two_plates, F, F), "different plates|one numpyro.plate", lambda: split(one_plate, F, F)),
    ("a threshold", lambda: split(threshold, F, F), "'at'|steps|sigmoid", lambda: split(smooth, F, F)),
    ("ranks of rows", lambda: split(ranks, F), "'y'|couples the rows", lambda: split(mean, F)),
    ("differences of rows", lambda: split(diffs, F), "'y'|39|series", lambda: split(mean, F)),
    ("a normal of rows without a plate", lambda: split(matrix, X), "'y'|plate", lambda: split(matrix_plated, X)),
    ("to_event over the rows", lambda: split(to_event_of_rows, F), "'y'|to_event", lambda: split(mean, F)),
    ("a factory in place of its model", lambda: split(factory, F), "returns a function|model()", lambda: split(factory(), F)),
    ("a model's result in place of a model", lambda: chain(F, model=handlers.seed(mean, 0)(F)), "the model is None|function", lambda: chain(F, model=mean)),
    ("a seeded model", lambda: split(functools.partial(mean, F)), "no private argument|closure", lambda: split(mean, F)),
    ("a negative scale", lambda: split(negative_scale, F), "'y'|scale|positive", lambda: split(mean, F)),
    ("a prior of negative scale", lambda: split(negative_prior, F), "'mu'|scale|positive", lambda: split(mean, F)),
]

# Missing values


def summed(x, y, ok):
    w = normal("w")
    with rows(x):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0), obs=x, obs_mask=ok)
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def gamma_covariate(x, y, ok):
    w = normal("w")
    with rows(x):
        x = numpyro.sample("x", dist.Gamma(2.0, 1.0), obs=x, obs_mask=ok)
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def lognormal_covariate(x, y, ok):
    w = normal("w")
    with rows(x):
        x = numpyro.sample("x", dist.LogNormal(0.0, 1.0), obs=x, obs_mask=ok)
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def poisson_covariate(x, y, ok):
    w = normal("w")
    with rows(x):
        x = numpyro.sample("x", dist.Poisson(2.0), obs=x, obs_mask=ok)
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def binomial_covariate(x, y, ok):
    w = normal("w")
    with rows(x):
        x = numpyro.sample("x", dist.Binomial(8, 0.3), obs=x, obs_mask=ok)
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def many_missing(x, y, ok):
    w = normal("w", 3)
    with rows(x):
        columns = [numpyro.sample(f"x{k}", dist.Normal(0.0, 1.0), obs=x[:, k], obs_mask=ok) for k in range(3)]
        numpyro.sample("y", dist.Normal(jnp.stack(columns, -1) @ w, 1.0), obs=y)


def two_missing(x, y, ok):
    w = normal("w", 3)
    with rows(x):
        columns = [numpyro.sample(f"x{k}", dist.Normal(0.0, 1.0), obs=x[:, k], obs_mask=ok) for k in range(2)]
        numpyro.sample("y", dist.Normal(jnp.stack([*columns, x[:, 2]], -1) @ w, 1.0), obs=y)


def masked(y, ok):
    mu = normal()
    with rows(y), handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def gamma_response(y, ok):
    a = numpyro.sample("a", dist.LogNormal(0.0, 1.0))
    with rows(y):
        numpyro.sample("y", dist.Gamma(a, 1.0), obs=y, obs_mask=ok)


def gamma_masked(y, ok):
    a = numpyro.sample("a", dist.LogNormal(0.0, 1.0))
    with rows(y), handlers.mask(mask=ok):
        numpyro.sample("y", dist.Gamma(a, 1.0), obs=jnp.where(ok, y, 1.0))


def vector_missing(x, y, ok):
    w = normal("w", 3)
    with rows(x):
        x = numpyro.sample("x", dist.Normal(jnp.zeros(3), 1.0).to_event(1), obs=x, obs_mask=ok)
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def dropped_inside(y, ok):
    mu = normal()
    y = y[ok]
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


IDS = np.arange(N) // 2

MISSING = [
    ("a mask of 0 and 1", lambda: split(masked, GAPS, OK.astype(int)), "mask|bool", lambda: split(masked, GAPS, OK.astype(bool))),
    ("an obs_mask of 0 and 1 as floats", lambda: split(summed, GAPS, F, OK.astype(float)), "mask|bool", lambda: split(summed, GAPS, F, OK)),
    ("a mask of another length", lambda: split(masked, GAPS, OK[:-1]), "'y' has 40|'ok' has 39", lambda: split(masked, GAPS, OK)),
    ("a public mask", lambda: split(masked, GAPS, Public(OK)), "'ok'|Public|private", lambda: split(masked, GAPS, OK)),
    ("a covariate with a Gamma law", lambda: split(gamma_covariate, GAPS, F, OK), "missing values of 'x'|LogNormal", lambda: split(lognormal_covariate, GAPS, F, OK)),
    ("a covariate with a Poisson law", lambda: split(poisson_covariate, GAPS, F, OK), "'x|finite|support", lambda: split(binomial_covariate, GAPS, F, OK)),
    ("three missing covariates", lambda: split(many_missing, X, F, OK), "'x0|4096|256", lambda: split(two_missing, X, F, OK)),
    ("a response with a Gamma law", lambda: split(gamma_response, GAPS, OK), "'y|mask", lambda: split(gamma_masked, GAPS, OK)),
    ("a vector of missing covariates", lambda: split(vector_missing, X, F, OK), "'x|one number a row", lambda: split(two_missing, X, F, OK)),
    ("rows chosen inside the model", lambda: split(dropped_inside, GAPS, OK), "y[ok]|truth values|handlers.mask(mask=ok)", lambda: split(masked, GAPS, OK)),
    ("missing covariates and persons", lambda: noise_aware(GAPS, F, OK, model=summed, settings={"unit": "person", "max_rows_per_unit": 2}, person=IDS), "missing|unit", lambda: noise_aware(GAPS, F, OK, model=summed)),
    ("a masked array", lambda: split(mean, np.ma.masked_invalid(GAPS)), "'y'|masked array|filled", lambda: split(masked, np.ma.masked_invalid(GAPS).filled(0.0), ~np.ma.getmaskarray(np.ma.masked_invalid(GAPS)))),
]

# Survival


def lives(time, censored, end=None, how=None):
    place = normal("place")
    with rows(time):
        law = dist.RightCensoredDistribution(dist.Weibull(jnp.exp(place), 1.5), censored)
        numpyro.sample("time", law, obs=time, infer={} if how is None else {"censored_by": end if how == "end" else how})


def inspected(bounds, visits=None, how="right"):
    place = normal("place")
    with rows(bounds):
        law = dist.IntervalCensoredDistribution(dist.Weibull(jnp.exp(place), 1.5), bounds[:, 0], bounds[:, 1])
        given = {"none": {}, "right": {"inspected_at": visits}, "other": {"censored_by": 1.0}}[how]
        numpyro.sample("time", law, obs=bounds, infer=given)


def by_latent(time, censored):
    place, end = normal("place"), numpyro.sample("end", dist.LogNormal(0.0, 1.0))
    with rows(time):
        law = dist.RightCensoredDistribution(dist.Weibull(jnp.exp(place), 1.5), censored)
        numpyro.sample("time", law, obs=time, infer={"censored_by": end})


def not_censored(time, end):
    place = normal("place")
    with rows(time):
        numpyro.sample("time", dist.Weibull(jnp.exp(place), 1.5), obs=time, infer={"censored_by": end})


END = np.random.default_rng(1).uniform(0.5, 2.0, N).astype(np.float32)
LIFE = np.random.default_rng(2).weibull(1.5, N).astype(np.float32)
TIME, CENSORED = np.minimum(LIFE, END), LIFE > END
FINE = {"settings": {"num_samples": 50}}


def survive(*args, **kwargs):
    return noise_aware(*args, model=kwargs.pop("model", lives), **kwargs)


SURVIVAL = [
    ("no censoring times", lambda: survive(TIME, CENSORED), "'time'|censored_by", lambda: survive(TIME, CENSORED, END, "end")),
    ("an unknown site", lambda: survive(TIME, CENSORED, END, "dropout"), "'dropout'|site", lambda: survive(TIME, CENSORED, END, "end")),
    ("censored by a latent", lambda: survive(TIME, CENSORED, model=by_latent), "latent", lambda: survive(TIME, CENSORED, END, "end")),
    ("a mark where nothing is censored", lambda: survive(TIME, END, model=not_censored), "'time'|censored", lambda: survive(TIME, CENSORED, END, "end")),
    ("indicators of another length", lambda: survive(TIME, CENSORED[:-1], END, "end"), "'time'|40|'censored'|39", lambda: survive(TIME, CENSORED, END, "end")),
    ("ends of another length", lambda: survive(TIME, CENSORED, END[:3], "end"), "'end'|3|40", lambda: survive(TIME, CENSORED, END, "end")),
    ("words as indicators", lambda: survive(TIME, np.where(CENSORED, "yes", "no"), END, "end"), "'censored'|str", lambda: survive(TIME, np.where(CENSORED, "yes", "no") == "yes", END, "end")),
    ("a negative end", lambda: survive(TIME, CENSORED, -1.0, "end"), "'time'|censored_by|positive", lambda: survive(TIME, CENSORED, END, "end")),
    ("intervals without inspections", lambda: survive(np.stack([TIME, TIME + 1], 1), model=lambda b: inspected(b, how="none")), "'time'|inspected_at", lambda: survive(np.stack([TIME, TIME + 1], 1), np.stack([TIME, TIME + 1], 1), model=inspected)),
    ("intervals with censored_by", lambda: survive(np.stack([TIME, TIME + 1], 1), model=lambda b: inspected(b, how="other")), "'time'|inspected_at", lambda: survive(np.stack([TIME, TIME + 1], 1), np.stack([TIME, TIME + 1], 1), model=inspected)),
]

AREAS = {"arguments": ARGUMENTS, "models": MODELS, "missing": MISSING, "survival": SURVIVAL}
