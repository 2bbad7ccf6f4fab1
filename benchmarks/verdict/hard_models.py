"""Models and data sets that try to get a prior, a wrong sign or a wrong scale called readable: for `wrong_and_read.py`.

An entry returns the model, its arguments and None: the posterior without privacy (NUTS) is the reference.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit


def _normals(name, size, scale=1.0):
    return numpyro.sample(name, dist.Normal(0.0, scale).expand([size]).to_event(1))


def _plate(y):
    return numpyro.plate("data", y.shape[0])


def regression(law, prior_scale=1.0):
    """A regression whose response has the law `law(predictor)`."""

    def model(x, y):
        weights = _normals("weights", x.shape[1], prior_scale)
        with _plate(y):
            numpyro.sample("y", law(x @ weights), obs=y)

    return model


logistic = regression(lambda eta: dist.Bernoulli(logits=eta))
linear = regression(lambda eta: dist.Normal(eta, 1.0))
counts = regression(lambda eta: dist.Poisson(jnp.exp(eta)))
wide_prior = regression(lambda eta: dist.Normal(eta, 1.0), 100.0)


def cauchy_prior(x, y):
    weights = numpyro.sample("weights", dist.Cauchy(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with _plate(y):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def horseshoe(x, y):
    local = numpyro.sample("local", dist.HalfCauchy(1.0).expand([x.shape[1]]).to_event(1))
    weights = _normals("weights", x.shape[1])
    with _plate(y):
        numpyro.sample("y", dist.Normal(x @ (local * weights), 1.0), obs=y)


def unknown_scale(x, y):
    weights, scale = _normals("weights", x.shape[1]), numpyro.sample("scale", dist.HalfNormal(1.0))
    with _plate(y):
        numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def student(x, y):
    weights, freedom = _normals("weights", x.shape[1]), numpyro.sample("freedom", dist.Gamma(2.0, 0.1))
    with _plate(y):
        numpyro.sample("y", dist.StudentT(freedom, x @ weights, 1.0), obs=y)


def dispersed(x, y):
    weights, shape = _normals("weights", x.shape[1]), numpyro.sample("shape", dist.Exponential(1.0))
    with _plate(y):
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(x @ weights), shape), obs=y)


def inflated(x, y):
    weights, gate = _normals("weights", x.shape[1]), numpyro.sample("gate", dist.Beta(1.0, 1.0))
    with _plate(y):
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, jnp.exp(x @ weights)), obs=y)


def shares(x, y):
    weights, precision = _normals("weights", x.shape[1]), numpyro.sample("precision", dist.LogNormal(1.0, 1.0))
    mean = 1.0 / (1.0 + jnp.exp(-x @ weights))
    with _plate(y):
        numpyro.sample("y", dist.Beta(mean * precision, (1.0 - mean) * precision), obs=y)


def sum_of_two(y):
    a, b = numpyro.sample("a", dist.Normal(0.0, 1.0)), numpyro.sample("b", dist.Normal(0.0, 1.0))
    with _plate(y):
        numpyro.sample("y", dist.Normal(a + b, 1.0), obs=y)


def square(y):
    root = numpyro.sample("root", dist.Normal(0.0, 1.0))
    with _plate(y):
        numpyro.sample("y", dist.Normal(root**2, 1.0), obs=y)


def unused(x, y):
    weights, _ = _normals("weights", x.shape[1]), numpyro.sample("unused", dist.Gamma(2.0, 1.0))
    with _plate(y):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def classes(x, y):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1], 11]).to_event(2))
    with _plate(y):
        logits = jnp.concatenate([jnp.zeros((x.shape[0], 1)), x @ weights], axis=1)
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def _columns(rng, n, k=2):
    return np.concatenate([np.ones((n, 1)), rng.standard_normal((n, k))], axis=1)


W = np.array([0.5, -1.0, 0.7])


def _binary(rng, eta):
    return (rng.random(len(eta)) < expit(eta)).astype(float)


def _given(model, make):
    def problem(rng, n):
        return model, make(rng, n), None

    return problem


def _regression(model, response, k=2):
    def make(rng, n):
        x = _columns(rng, n, k)
        return x, response(rng, x @ W[: k + 1], x)

    return _given(model, make)


def _outliers(rng, eta, x):
    y = eta + rng.standard_normal(len(eta))
    return np.where(rng.random(len(eta)) < 0.01, 1e6, y)


def _near_collinear(rng, n):
    x = rng.standard_normal(n)
    x = np.stack([np.ones(n), x, x + 0.02 * rng.standard_normal(n), x + 0.02 * rng.standard_normal(n)], axis=1)
    return x, _binary(rng, x @ np.array([0.5, -1.0, 0.7, 0.2]))


def _repeated(rng, n):
    x = np.repeat(_columns(rng, max(n // 20, 1)), 20, axis=0)
    return x, _binary(rng, x @ W)


def _copies(rng, n):
    x, y = np.tile(_columns(rng, 1), (n, 1)), np.ones(n)
    return x, y


def _rare_both(rng, n):
    """An event in .5 % of rows, and a covariate in 2 % of them, which doubles it."""
    x = np.stack([np.ones(n), rng.random(n) < 0.02, rng.standard_normal(n)], axis=1)
    return x, _binary(rng, x @ np.array([-2.5, 2.0, 0.3]))


ODD = {
    "cauchy_prior": _regression(cauchy_prior, lambda rng, eta, x: _binary(rng, 6.0 * eta)),
    "separated": _regression(logistic, lambda rng, eta, x: (eta > 0).astype(float)),
    "no_signal": _regression(logistic, lambda rng, eta, x: _binary(rng, 0.0 * eta)),
    "horseshoe": _regression(horseshoe, lambda rng, eta, x: 0.05 * eta + rng.standard_normal(len(eta))),
    "tiny_scale": _regression(unknown_scale, lambda rng, eta, x: 1e-3 * (eta + rng.standard_normal(len(eta)))),
    "large_scale": _regression(unknown_scale, lambda rng, eta, x: 30.0 * (eta + rng.standard_normal(len(eta)))),
    "wide_prior": _regression(wide_prior, lambda rng, eta, x: 50.0 * eta + rng.standard_normal(len(eta))),
    "uneven_noise": _regression(unknown_scale, lambda rng, eta, x: eta + np.exp(x[:, 1]) * rng.standard_normal(len(eta))),
    "heavy_noise": _regression(linear, lambda rng, eta, x: eta + rng.standard_t(2, len(eta))),
    "outliers": _regression(linear, _outliers),
    "freedom": _regression(student, lambda rng, eta, x: eta + rng.standard_t(3, len(eta))),
    "counts_dispersed": _regression(counts, lambda rng, eta, x: rng.poisson(np.exp(eta) * rng.gamma(0.5, 2.0, len(eta)))),
    "dispersed": _regression(dispersed, lambda rng, eta, x: rng.poisson(np.exp(eta) * rng.gamma(0.2, 5.0, len(eta)))),
    "inflated": _regression(inflated, lambda rng, eta, x: rng.poisson(np.exp(eta)) * (rng.random(len(eta)) < 0.05)),
    "shares": _regression(shares, lambda rng, eta, x: np.clip(rng.beta(0.2 * expit(eta), 0.2 * expit(-eta)), 1e-6, 1 - 1e-6)),
    "rounded": _regression(unknown_scale, lambda rng, eta, x: np.round(0.1 * (eta + rng.standard_normal(len(eta))))),
    "missing": _regression(linear, lambda rng, eta, x: np.where(x[:, 1] > 0.5, np.nan, eta + rng.standard_normal(len(eta)))),
    "sum_of_two": _given(sum_of_two, lambda rng, n: (1.0 + rng.standard_normal(n),)),
    "square": _given(square, lambda rng, n: (1.5 + rng.standard_normal(n),)),
    "unused": _regression(unused, lambda rng, eta, x: _binary(rng, eta)),
    "classes": _given(classes, lambda rng, n: (_columns(rng, n), np.minimum(rng.geometric(0.6, n) - 1, 11))),
    "near_collinear": _given(logistic, _near_collinear),
    "repeated": _given(logistic, _repeated),
    "copies": _given(logistic, _copies),
    "rare_both": _given(logistic, _rare_both),
}  # fmt: skip
"""Problems by name: f(rng, n) -> (model, arguments, None)."""
