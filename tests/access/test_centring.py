"""Centred clipping: sums of clipped scores have mean zero at the truth, whatever share of the rows is clipped."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer.autoguide import AutoNormal
from zoo import ZOO

import dpppl
from dpppl.access import centring
from dpppl.access.centring import ROW_NUMBER
from dpppl.access.clipping import Centred
from dpppl.access.mechanism import Mechanism
from dpppl.errors import UnsupportedModelError
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from models.linear_regression import linear_regression
from models.logistic_regression import gaussian
from models.survival_regression import survival_regression
from models.zero_inflated_poisson import zero_inflated_poisson

BY_NAME = {entry.name: entry for entry in ZOO}
NUM_ROWS = 20_000
INPUTS = {
    "linear": (linear_regression, lambda rng: ()),
    "zero inflated": (zero_inflated_poisson, lambda rng: ()),
    "survival": (survival_regression, lambda rng: (rng.uniform(0.5, 3.0, NUM_ROWS).astype(np.float32),)),
    "ordinal": (BY_NAME["ordinal_regression"].model, lambda rng: ()),
    "logistic": (gaussian, lambda rng: ()),
}


@functools.cache
def worst(name, share_clipped=1 / 3):
    """The largest |mean / standard error| of a latent's clipped scores at the truth: flat, and centred."""
    model, more = INPUTS[name]
    rng = np.random.default_rng(0)
    inputs = (rng.standard_normal((NUM_ROWS, 3)).astype(np.float32), *more(rng))
    truth = {
        n: jnp.asarray(rng.normal(0.0, 0.4, s.shape), s.dtype)
        for n, s in split_model(model, (*inputs, np.zeros(NUM_ROWS, int)), {}).latents.items()
    }
    split = split_model(model, (*inputs, np.zeros(NUM_ROWS, np.int32 if name != "linear" else np.float32)), {})
    seeded = numpyro.handlers.seed(model, jax.random.key(1))
    trace = numpyro.handlers.trace(numpyro.handlers.substitute(seeded, data=split.constrain(truth, {}))).get_trace(
        *inputs, None
    )
    y = np.asarray(trace["y"]["value"])
    split = split_model(model, (*inputs, y), {})
    rows, _ = split.arrays((*inputs, y), {})
    score = jax.jit(jax.vmap(lambda row: ravel_pytree(jax.grad(split.log_likelihood)(truth, row, {}))[0]))
    flat = np.asarray(score(rows))
    norm = float(np.quantile(np.linalg.norm(flat, axis=1), 1 - share_clipped))
    responses = Responses.of(split)
    if responses.is_binary:
        statistic = centring.binary_gradient(split.log_likelihood, norm)
    else:
        statistic = centring.centred_gradient(split.log_likelihood, responses, norm)
    row_of = jax.jit(jax.vmap(lambda row: ravel_pytree(statistic(truth, row, ({}, jax.random.key(2))))[0]))
    centred = np.asarray(row_of({**rows, ROW_NUMBER: np.arange(NUM_ROWS, dtype=np.int32)}))
    found = []
    for rows_ in (flat, centred):
        rows_ = rows_ * np.minimum(1.0, norm / np.maximum(np.linalg.norm(rows_, axis=1, keepdims=True), 1e-30))
        found.append(np.max(np.abs(rows_.mean(axis=0)) / (rows_.std(axis=0) / np.sqrt(NUM_ROWS) + 1e-30)))
    return found


@pytest.mark.thinned(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", INPUTS)
def test_centred_scores_have_mean_zero_at_the_truth(name):
    """|t| below 5 for at most 4 latents: false alarm 2e-6. Flat clipping, on the same rows, is off by far more."""
    flat, centred = worst(name)
    assert centred < 5.0
    assert flat > 8.0 or name == "logistic"  # symmetric covariates: a logistic score is biased less


@pytest.mark.slow
def test_of_two_responses_the_centre_is_known():
    """One gradient gives what the equation over both responses gives."""
    args, kwargs = BY_NAME["logistic_gaussian"].data(0)
    split = split_model(BY_NAME["logistic_gaussian"].model, args, kwargs)
    rows, public = split.arrays(args, kwargs)
    responses, norm = Responses.of(split), 0.4
    z = {n: jnp.full(s.shape, 0.7) for n, s in split.latents.items()}
    rows = {**rows, ROW_NUMBER: np.arange(split.num_rows, dtype=np.int32)}
    listed = centring.centred_gradient(split.log_likelihood, responses, norm)
    short = centring.binary_gradient(split.log_likelihood, norm)
    both = [
        jax.vmap(lambda row, f=f: ravel_pytree(f(z, row, (public, jax.random.key(0))))[0])(rows)
        for f in (listed, short)
    ]
    found, expected = both[1], centring.clipped(both[0], norm)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert np.max(np.linalg.norm(found, axis=1)) <= norm * 1.0001


@pytest.mark.slow
def test_the_centre_solves_its_equation():
    """To the error of ten steps; members that are not finite are left out."""
    rng = np.random.default_rng(0)
    for norm in (0.5, 2.0, 100.0):
        scores, weights = rng.standard_normal((6, 3)), rng.dirichlet(np.ones(6))
        a = centring.centre(jnp.asarray(scores), jnp.asarray(weights), norm)
        assert np.linalg.norm(weights @ centring.clipped(scores - a, norm)) < 0.02 * norm
        spoilt = jnp.asarray(np.vstack([scores, np.full(3, np.nan)]))
        again = centring.centre(spoilt, jnp.asarray([*weights, 0.3]), norm)
        np.testing.assert_allclose(again, a, rtol=1e-4, atol=1e-5)


def censored(y, is_censored):
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.RightCensoredDistribution(dist.Weibull(scale, 1.0), is_censored), obs=y)


def hurdle(y):
    b, m = numpyro.sample("b", dist.Normal(0.0, 1.0)), numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("any", dist.Bernoulli(logits=b), obs=(y > 0) * 1.0)
        numpyro.sample("size", dist.LogNormal(m, 1.0).mask(y > 0), obs=jnp.where(y > 0, y, 1.0))


def test_whole_numbers_under_a_continuous_law_are_drawn_as_such():
    """Draws cut to integers would move the mean by 22 standard errors."""

    def ages(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, 3.0), obs=y)

    y = np.round(np.random.default_rng(0).normal(40.0, 3.0, NUM_ROWS)).astype(np.int32)
    split = split_model(ages, (y,), {})
    statistic = centring.centred_gradient(split.log_likelihood, Responses.of(split), 0.3)
    rows = {**split.arrays((y,), {})[0], ROW_NUMBER: np.arange(NUM_ROWS, dtype=np.int32)}
    psi = jax.jit(jax.vmap(lambda row: statistic({"mu": jnp.float32(40.0)}, row, ({}, jax.random.key(1)))["mu"]))(rows)
    psi = np.clip(np.asarray(psi), -0.3, 0.3)
    assert abs(psi.mean()) < 5.0 * psi.std() / np.sqrt(NUM_ROWS)


@pytest.mark.parametrize(
    ("model", "data", "match"),
    [
        (BY_NAME["factor_inside"].model, BY_NAME["factor_inside"].data(0), "'hinge' is a factor inside the data plate"),
        (
            BY_NAME["sequences"].model,
            BY_NAME["sequences"].data(0),
            "argument 'y', and a distribution or mask is computed from",
        ),
        (hurdle, ((np.ones(5, np.float32),), {}), "argument 'y', and a distribution or mask is computed from"),
        (censored, ((np.ones(5, np.float32), np.zeros(5, np.float32)), {}), "does not say when an uncensored row"),
    ],
    ids=["factor", "own value", "own mask", "censored"],
)
def test_models_that_cannot_be_simulated_are_refused_by_name(model, data, match):
    with pytest.raises(UnsupportedModelError, match=match):
        Responses.of(split_model(model, *data))


def test_several_positions_are_clipped_each_around_its_own_centre():
    """As accesses at each of them with a part of the norm; clipped as one vector more is kept of the shorter score."""
    y = np.random.default_rng(0).normal(0.3, 1.0, 300).astype(np.float32)

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    split = split_model(model, (y,), {})
    rows, responses, key = split.arrays((y,), {})[0], Responses.of(split), dpppl.secret_key()

    def total(mu, norm, *count):
        mechanism = Mechanism(clipping=Centred(clipping_norm=norm), subsampling=dpppl.FullBatch())
        return jax.jit(
            lambda z, rows: centring.noisy_centred_sum(
                mechanism, responses, False, split.log_likelihood, lambda z, public: (z, public), z, rows, {}, *count,
                key=key, noise_multiplier=1e-4, step=0,
            ).total["mu"]
        )({"mu": jnp.asarray(mu)}, rows)  # fmt: skip

    together = total([0.0, 0.5], 0.4 * 2**0.5, 2)
    np.testing.assert_allclose(together, [total(0.0, 0.4), total(0.5, 0.4)], atol=0.01)
    assert np.all(np.abs(np.diff(together)) > 1.0)


@pytest.mark.slow
def test_kernels_and_svi_clip_around_centres():
    """Proved and run; nothing clipped and nothing noised, the gradients are the plain ones, so results agree."""
    args, kwargs = BY_NAME["linear_regression"].data(0)
    model = BY_NAME["linear_regression"].model

    def chain(clipping):
        kernel = dpppl.DPSGLD(model, clipping_norm=1e6, clipping=clipping, step_size=1e-3, temperature=1e-12)
        mcmc = dpppl.MCMC(kernel, num_warmup=1, num_samples=3, progress_bar=False, print_cost=False)
        mcmc.run(dpppl.secret_key(), *args, **kwargs)
        return mcmc.get_samples()["weights"], mcmc.privacy_report()

    samples, report = chain("centred")
    assert "centred" in report.mechanism.clipping
    assert np.all(np.isfinite(samples))
    for gradient, particles in (("aligned", 2), ("per_parameter", 1)):
        svi = dpppl.SVI(
            model, AutoNormal(model), optax.adam(0.01), clipping_norm=1.0, clipping="centred", gradient=gradient,
            num_particles=particles, subsampling=dpppl.Poisson(0.5), noise_multiplier=5.0, print_cost=False,
        )  # fmt: skip
        result = svi.run(dpppl.secret_key(), 3, *args, progress_bar=False, **kwargs)
        assert all(np.all(np.isfinite(value)) for value in result.params.values())
