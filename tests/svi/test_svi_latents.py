"""What SVI's verdict says of the prior, and of latents that noise hides."""

import pickle

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoIAFNormal, AutoMultivariateNormal, AutoNormal
from test_svi import run

import dpppl
from dpppl.svi.verdict import convergence


def masked(y, ok):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]), handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def scales(y, ok):
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("groups", 3):
        level = scale * numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]), handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(level.sum(), 1.0), obs=y)


def line(x, y):
    a, b = numpyro.sample("a", dist.Normal(0.0, 1.0)), numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(a + b * x, 1.0), obs=y)


def plane(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


RNG = np.random.default_rng(0)
Y, OK = (1.0 + RNG.standard_normal(400)).astype(np.float32), np.arange(400) % 2 == 0
X = (RNG.standard_normal((5_000, 7)) * np.array([1.0] * 6 + [0.0])).astype(np.float32)
PRIVATE = {"target_epsilon": 1.0, "target_delta": 1e-5, "print_cost": False, "frame": False}


def fitted(model, guide, *args, num_steps=None, seed=0, **settings):
    return run(dpppl.SVI(model, guide(model), **(PRIVATE | settings)), num_steps, *args, seed=seed)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "model, guide",
    [
        (masked, AutoNormal),
        (masked, AutoDelta),
        pytest.param(masked, AutoMultivariateNormal, marks=pytest.mark.slow),
        pytest.param(masked, AutoDiagonalNormal, marks=pytest.mark.slow),
        pytest.param(scales, AutoNormal, marks=pytest.mark.slow),
    ],
)
def test_a_guide_that_is_the_prior_says_so(model, guide):
    """A norm far below every gradient: nothing reaches the guide, and all that it knows is the prior."""
    result = fitted(model, guide, Y, OK, clipping_norm=6e-5, clipping="centred")
    assert result.convergence.verdict == "prior" and set(
        np.ravel(result.convergence.latents["mu" if model is masked else "level"])
    ) == {"prior"}
    assert "nothing was learned" in repr(result) and "latents: " in repr(result)
    assert str(pickle.loads(pickle.dumps(result)).convergence) == str(result.convergence)


@pytest.mark.slow
def test_latents_that_noise_hides_are_named(monkeypatch):
    """The last of seven columns is 0. Its guide stays where it started, a tenth as wide as the posterior, which is the prior."""
    y = (RNG.random(5_000) < 1 / (1 + np.exp(-X @ [0.8, -0.5, 0.3, 0.2, -1.0, 0.5, 0.0]))).astype(np.float32)
    result = fitted(logistic, AutoNormal, X, y)
    found = result.convergence.latents["w"]
    assert found[-1] == "hidden by noise" and np.mean(found[:-1] == "learned") >= 0.5
    assert result.convergence.verdict in ("hidden in part", "still moving")
    assert convergence(result.gradients, latents=result.convergence.latents, by_parameter=False).verdict != "arrived"
    monkeypatch.setattr("dpppl.svi.latents.LARGEST_ERROR", np.inf)  # a mutant
    monkeypatch.setattr("dpppl.svi.latents.LARGEST_DISTANCE", np.inf)
    monkeypatch.setattr("dpppl.svi.latents._GROWING", np.inf)
    del result.__dict__["convergence"]
    assert set(result.convergence.latents["w"]) == {"learned"}


def empty(y):
    numpyro.sample("a", dist.Normal(0.0, 1.0).expand([0]).to_event(1))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=y)


def by_hand(y):
    tril = numpyro.param("w_scale_tril", 0.1 * np.eye(2, dtype=np.float32))
    numpyro.sample("w", dist.MultivariateNormal(numpyro.param("w_loc", np.zeros(2, np.float32)), scale_tril=tril))
    numpyro.sample("a", dist.Normal(0.0, 1.0).expand([0]).to_event(1))


@pytest.mark.parametrize("guide", [AutoNormal, lambda model: by_hand], ids=["no elements", "any matrix"])
def test_a_verdict_of_latents_without_elements_and_of_matrices_of_a_guide(guide):
    found = fitted(empty, guide, Y, num_steps=60, clipping_norm=1.0)
    assert str(found.verdict) and repr(pickle.loads(pickle.dumps(found)))


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
def test_parameters_that_count_the_noise_of_a_frame_are_as_wide_as_it(x64):
    """Gradients of a frame have white noise in its coordinates: that of a diagonal made these spreads 1.9 times as wide."""
    with jax.enable_x64(x64):
        x = np.random.default_rng(1).normal(size=(20_000, 2)) @ np.array([[1.0, 0.97], [0.0, 0.24]])
        y = x @ [0.5, -0.3] + np.random.default_rng(2).normal(size=len(x))
        found = fitted(plane, AutoMultivariateNormal, x, y, target_epsilon=2.0, frame=None, seed=5)
        factors = [np.asarray(params["auto_scale_tril"]) for params in (found.params, found.noise_aware_params())]
    spread, wider = (np.sqrt(np.sum(factor**2, axis=1)) for factor in factors)
    exact = np.sqrt(np.diag(np.linalg.inv(x.T @ x + np.eye(2))))
    assert np.all(np.abs(np.log(spread / exact)) < 0.35) and np.all((wider > spread) & (wider < 1.35 * spread))
    assert factors[0].dtype == (np.float64 if x64 else np.float32)


CASES = {
    "age": lambda rng, n: (rng.uniform(20, 90, n), 0.05),
    "euros": lambda rng, n: (np.exp(10.0 + 0.7 * rng.standard_normal(n)), 3e-5),
    "year": lambda rng, n: (rng.integers(1950, 2021, n), 5e-4),
    "grams": lambda rng, n: (3_400.0 + 500.0 * rng.standard_normal(n), 1e-3),
}


@pytest.mark.slow
@pytest.mark.parametrize("guide", [AutoNormal, AutoMultivariateNormal, AutoDelta])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_column_in_its_own_units_arrives_in_a_frame_only(case, guide):
    """With a frame, the default, within 5 of the posterior's sds; the verdict holds nothing back, or names what is hidden."""
    x, slope = case(rng := np.random.default_rng(1), 5_000)
    y = 1.0 + slope * x + rng.standard_normal(5_000)
    result = fitted(line, guide, np.float32(x), np.float32(y), target_epsilon=3.0)
    assert result.convergence.verdict not in ("arrived", "biased by clipping")
    if guide is not AutoDelta:
        assert {str(word) for word in result.convergence.latents.values()} == {"hidden by noise"}
    framed = fitted(line, guide, np.float32(x), np.float32(y), target_epsilon=3.0, frame=None, seed=1)
    columns = np.stack([np.ones_like(x), x], 1).astype(float)
    covariance = np.linalg.inv(columns.T @ columns + np.eye(2))
    found = (
        np.array([framed.params["a_auto_loc"], framed.params["b_auto_loc"]])
        if guide in (AutoNormal, AutoDelta)
        else None
    )
    found = np.asarray(framed.params["auto_loc"]) if found is None else found
    off = np.abs(found - covariance @ columns.T @ y) / np.sqrt(np.diag(covariance))
    words = np.array([str(framed.convergence.latents.get(site, "learned")) for site in ("a", "b")])
    assert np.all((off < 5.0) | (words == "hidden by noise") | bool(framed.convergence.refusals)), (off, words)


@pytest.mark.slow
def test_rare_events_in_few_rows_have_not_arrived(monkeypatch):
    """Four of 400 responses are 1. The intercept stops 5 to 12 of the guide's sds from -4, where NUTS finds it."""
    rng = np.random.default_rng(3)
    x = np.stack([np.ones(400), rng.standard_normal(400)], 1).astype(np.float32)
    y = (np.arange(400) < 4).astype(np.float32)
    results = [fitted(logistic, AutoNormal, x, y, target_epsilon=2.0, seed=seed) for seed in range(6)]
    far = [np.mean(result.sample_posterior(random.key(0), 100)["w"][:, 0]) > -3.5 for result in results]
    assert np.mean(far) > 0.5 and not any(result.convergence.verdict == "arrived" for result in results)
    monkeypatch.setattr("dpppl.svi.latents.LARGEST_DISTANCE", np.inf)  # a mutant
    for result in results:
        del result.__dict__["convergence"]
    assert any(result.convergence.verdict == "arrived" for result in results)


@pytest.mark.slow
def test_right_runs_have_arrived():
    """Ten runs at epsilon 5, and one with a flow, which has no locations: none is the prior, and at most one has latents that
    noise hides."""
    rng = np.random.default_rng(2)
    x = X[:, :5]
    y = (rng.random(5_000) < 1 / (1 + np.exp(-x @ [0.8, -0.5, 0.3, 0.2, -1.0]))).astype(np.float32)
    found = [fitted(logistic, AutoNormal, x, y, target_epsilon=5.0, seed=seed).convergence for seed in range(10)]
    assert sum(set(c.latents["w"]) == {"learned"} for c in found) >= 9
    assert all(c.verdict in ("arrived", "still moving") for c in found if set(c.latents["w"]) == {"learned"})
    flow = fitted(logistic, AutoIAFNormal, x, y, target_epsilon=3.0, seed=10).convergence
    assert set(flow.latents["w"]) <= {"learned", "partly"} and flow.verdict != "prior"
