"""Responses that the model does not describe, by `NoiseAware.run`: miscoded ones, and labels that are wrong now and then."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from golden.record import key_of

import dpppl

LAWS = {
    "classes": lambda a: dist.Categorical(logits=a[..., None] * jnp.array([0.0, 1.0, -1.0])),
    "ordered": lambda a: dist.OrderedLogistic(a, jnp.array([-1.0, 1.0])),
    "counts": lambda a: dist.Poisson(jnp.exp(a)),
    "trials": lambda a: dist.Binomial(5, logits=a),
    "times": lambda a: dist.Exponential(jnp.exp(-a)),
    "shares": lambda a: dist.Beta(2.0 * jnp.exp(a), 2.0),
}


def model(kind):
    def of_rows(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", LAWS[kind](x @ w), obs=y)

    return of_rows


def run(model, number, *args, epsilon=3.0, num_samples=10):
    key = key_of(number)
    private = dpppl.NoiseAware(
        model, target_epsilon=epsilon, target_delta=1e-5, num_samples=num_samples, print_cost=False, progress_bar=False
    )
    private.run(key, *args)
    return private.verdict, private.get_samples(allow_unconverged=True)


@pytest.mark.slow  # a model each: 10 s to compile
@pytest.mark.parametrize(
    ("kind", "coded", "words"),
    [
        ("classes", lambda y: y + 1, "takes classes 0 to K - 1; pass y - 1 for classes 1 to K"),
        ("ordered", lambda y: y + 1, "takes classes 0 to K - 1; pass y - 1 for classes 1 to K"),
        ("counts", lambda y: y + 0.5 * (np.arange(len(y)) % 3 == 0), "takes whole numbers from 0"),
        ("trials", lambda y: y / 5.0, "pass counts, not shares"),
        ("times", lambda y: np.where(np.arange(len(y)) % 5 == 0, -y, y), "takes positive numbers"),
        ("shares", lambda y: 100.0 * y, "divide percentages by 100"),
    ],
)  # fmt: skip
def test_miscoded_responses_are_refused_with_their_cause_and_remedy(kind, coded, words):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1_000, 2)).astype(np.float32)
    a = x @ np.float32([0.5, -0.5])
    draws = {
        "classes": np.argmax(np.stack([0 * a, a, -a], axis=1) + rng.gumbel(size=(1_000, 3)), axis=1),
        "ordered": np.sum((a + rng.logistic(size=1_000))[:, None] > [-1.0, 1.0], axis=1),
        "counts": rng.poisson(np.exp(a)), "trials": rng.binomial(5, 1.0 / (1.0 + np.exp(-a))),
        "times": rng.exponential(np.exp(a)), "shares": rng.beta(2.0 * np.exp(a), 2.0),
    }  # fmt: skip
    y = coded(draws[kind])
    found, _ = run(model(kind), 0, x, y.astype(np.float32 if y.dtype.kind == "f" else np.int32))
    assert (
        found.line().startswith("do not read: ")
        and "outside the support: site 'y'" in found.line()
        and words in found.line()
    )
    assert found.outside > 0.05


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.mark.slow  # 60,000 rows
def test_labels_that_are_wrong_now_and_then_are_no_reason_to_refuse():
    """5 % of 60,000 labels flipped: means within 1 sd of those without privacy on the same labels, noise .1 to .2; a note."""
    rng = np.random.default_rng(0)
    x = np.concatenate([np.ones((60_000, 1)), rng.standard_normal((60_000, 3))], axis=1).astype(np.float32)
    y = rng.random(60_000) < 1.0 / (1.0 + np.exp(-x @ [0.5, 1.5, -1.0, 0.5]))
    y = np.where(rng.random(60_000) < 0.05, ~y, y).astype(np.int32)
    found, samples = run(logistic, 0, x, y, num_samples=1_000)
    assert not found.refusals and "the model does not fit" in found.misfit and found.moved < 1.0
    w = np.zeros(4)
    for _ in range(20):  # Newton's steps to the mode
        p = 1.0 / (1.0 + np.exp(-x @ w))
        precision = (x.T * (p * (1.0 - p))) @ x + np.eye(4)
        w = w + np.linalg.solve(precision, x.T @ (y - p) - w)
    assert np.max(np.abs(samples["w"].mean(axis=0) - w) / samples["w"].std(axis=0)) < 1.0


def lifetimes(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Weibull(jnp.exp(x @ w), 1.0 / spread), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize(("is_right", "least", "most"), [(False, 3, 3), (True, 0, 1)], ids=["lognormal", "right"])
def test_another_skewness_than_the_models_is_seen(is_right, least, most):
    """Weibull's law for lognormal times: ranks by surprise hardly differ. Three keys; a right model is refused or doubted in 2 % of
    runs at most, so in two of three in 1 of 800 tests."""
    refused = 0
    for number in range(3):
        rng = np.random.default_rng(number)
        x = rng.standard_normal((2_000, 2)).astype(np.float32)
        noise = 0.3 * np.log(rng.exponential(size=2_000)) if is_right else 0.3 * rng.standard_normal(2_000)
        y = np.exp(x @ [0.3, -0.2] + noise).astype(np.float32)
        found, _ = run(lifetimes, number, x, y, epsilon=2.0)
        refused += not found.line().startswith("read: ") and found.misfit is not None
    assert least <= refused <= most


def ordered(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    law = dist.TransformedDistribution(
        dist.Normal(0.0, 2.0).expand([3]).to_event(1), dist.transforms.OrderedTransform()
    )
    cuts = numpyro.sample("cuts", law)
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(x @ slopes, cuts), obs=y)


def simplex(y):
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Categorical(probs=shares), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("model", [ordered, simplex])
def test_right_models_with_rows_in_all_categories_are_read(model):
    """5,000 rows at epsilon 1, two keys; means within 4.5 sds of the truth, in all 13 numbers once in 2,000 tests."""
    rng = np.random.default_rng(3)
    x, shares = rng.standard_normal((5_000, 3)).astype(np.float32), np.array([0.4, 0.3, 0.2, 0.1])
    slopes, cuts = np.array([0.5, -0.3, 0.2]), np.array([-1.0, 0.0, 1.5])
    y = np.sum((x @ slopes + rng.logistic(size=5_000))[:, None] > cuts, axis=1)
    args = (x, y.astype(np.int32)) if model is ordered else (rng.choice(4, 5_000, p=shares).astype(np.int32),)
    for number in range(2):
        found, samples = run(model, number, *args, epsilon=1.0, num_samples=1_000)
        assert found.line().startswith("read: "), found.line()
        for site, truth in {"slopes": slopes, "cuts": cuts, "shares": shares}.items():
            if site in samples:
                drawn = np.asarray(samples[site], float)
                assert np.max(np.abs(drawn.mean(axis=0) - truth) / drawn.std(axis=0)) < 4.5
