"""Coupled rows are found whatever the labels are, on rows that the library makes up; what is left out is noted."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from small_models import latent, seen

from dpppl.errors import UnsupportedModelError
from dpppl.model import row_independence
from dpppl.model.handlers import made_up_value
from dpppl.model.split import split_model

N = 9
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 2)).astype(np.float32)
LABELS = RNG.integers(0, 2, N)
POSITIVE = RNG.gamma(2.0, 1.0, N).astype(np.float32)


def logistic(x, y):
    seen(y, dist.Bernoulli(logits=x @ latent("w", 2)))


def standardised_logistic(x, y):
    logistic((x - x.mean(0)) / x.std(0), y)


def factor(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.factor("y", dist.Bernoulli(logits=w * x[:, 0]).log_prob(y))


def centred_factor(x, y):
    factor(x - x.mean(0), y)


def refused(model, *args):
    with pytest.raises(UnsupportedModelError) as caught:
        split_model(model, args, {})
    return str(caught.value)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, bool])
def test_labels_of_any_type_work_and_hide_no_coupled_rows(dtype):
    """Between 0 and 1 no float has a finite log likelihood: on such labels coupled rows would pass for independent."""
    y = LABELS.astype(dtype)
    split = split_model(logistic, (X, y), {})
    rows, public = split.arrays((X, y), {})
    found = jax.vmap(lambda row: split.log_likelihood({"w": jnp.ones(2)}, row, public))(rows)
    np.testing.assert_allclose(found, -np.log1p(np.exp((1 - 2 * LABELS) * X.sum(1))), rtol=1e-5)
    assert "a mean or a standard deviation over rows" in refused(standardised_logistic, X, y)


def test_labels_in_a_factor_are_made_up_until_something_is_finite():
    y = LABELS.astype(np.float32)
    split_model(factor, (X, y), {})
    assert "site 'y' couples the rows" in refused(centred_factor, X, y)


@pytest.mark.parametrize("kinds", [3, len(row_independence._KINDS)])
def test_rows_on_which_nothing_is_finite_decide_nothing(kinds, monkeypatch):
    """Without responses from the supports, and other kinds of rows, even the labels above leave it undecided."""

    def never(x):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.factor("y", w * jnp.log(x[:, 0] - 1e6))

    assert "log likelihood of site 'y' is not finite on any of the rows that were made up" in refused(never, X)
    monkeypatch.setattr(row_independence, "_KINDS", row_independence._KINDS[:kinds])
    monkeypatch.setattr("dpppl.model.split.made_up_value", lambda support, noise: None)
    message = refused(standardised_logistic, X, LABELS.astype(np.float32))
    assert "not finite" in message or (kinds > 3 and "couples the rows" in message)


def observing(transform, distribution=lambda: dist.Normal(0.0, 1.0)):
    def model(y):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.factor("loc_is_used", -(loc**2))
            numpyro.sample("y", distribution(), obs=transform(y))

    return model


@pytest.mark.parametrize(
    "transform, y",
    [
        (jnp.log, POSITIVE),
        (lambda y: y[:, 0], X),
        (lambda y: y[:, 1].astype(int), X),
        (lambda y: jnp.squeeze(y, 1), X[:, :1]),
    ],
    ids=["log", "column", "integer", "squeeze"],
)
def test_functions_of_a_row_may_be_observed_and_functions_of_all_rows_may_not(transform, y):
    split_model(observing(transform), (y,), {})
    message = refused(observing(lambda y: transform(y) - jnp.max(transform(y))), y)
    assert "site 'y' couples the rows" in message and "on a batch its observed value is not that of each row" in message


def test_a_support_that_depends_on_all_rows():
    def model(y):
        top = numpyro.sample("top", dist.HalfNormal(1.0))
        seen(y, dist.Uniform(0.0, top + y.max()))

    assert "site 'y' couples the rows" in refused(model, POSITIVE)


def supports():
    return [
        dist.Normal(0.0, 1.0),
        dist.Bernoulli(0.3),
        dist.Categorical(probs=jnp.array([0.2, 0.3, 0.5])),
        dist.OrderedLogistic(0.3, jnp.array([-1.0, 0.5])),
        dist.Binomial(5, 0.3),
        dist.BetaBinomial(2.0, 3.0, 4),
        dist.Poisson(2.0),
        dist.Geometric(0.3),
        dist.ZeroInflatedPoisson(0.2, 2.0),
        dist.NegativeBinomial2(2.0, 1.0),
        dist.DiscreteUniform(2, 5),
        dist.Gamma(2.0, 1.0),
        dist.LogNormal(0.0, 1.0),
        dist.Pareto(2.0, 1.5),
        dist.Beta(2.0, 3.0),
        dist.Uniform(-3.0, -1.0),
        dist.TruncatedNormal(0.0, 1.0, low=2.0),
        dist.TruncatedNormal(0.0, 1.0, high=-2.0),
        dist.VonMises(0.0, 1.0),
        dist.Dirichlet(jnp.ones(3)),
        dist.Multinomial(4, probs=jnp.ones(3) / 3.0),
        dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)),
        dist.LKJCholesky(3, 2.0),
        dist.ImproperUniform(dist.constraints.ordered_vector, (), (3,)),
        dist.Normal(0.0, 1.0).expand([3]).to_event(1),
        dist.MixtureSameFamily(dist.Categorical(probs=jnp.ones(2) / 2), dist.Normal(jnp.zeros(2), 1.0)),
    ]  # fmt: skip


@pytest.mark.slow
def test_made_up_values_lie_in_the_support():
    @jax.jit
    def check(noise):
        found = []
        for distribution in supports():
            uniform = jnp.reshape(noise[: 40 * int(np.prod(distribution.event_shape))], (40, *distribution.event_shape))
            value = made_up_value(distribution.support, uniform)
            assert value.shape == uniform.shape
            value = value.astype(int) if distribution.support.is_discrete else value
            found.append(distribution.support(value).all() & jnp.isfinite(distribution.log_prob(value)).all())
        return found

    found = check(RNG.uniform(0.05, 0.95, 400).astype(np.float32))
    assert [type(d).__name__ for d, right in zip(supports(), found) if not right] == []


def test_what_a_run_leaves_out_is_noted_once():
    def model(x, y, batch_size):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.deterministic("twice", 2.0 * w)
        with numpyro.plate("data", x.shape[0], subsample_size=batch_size):
            x, y = numpyro.subsample(x, event_dim=0), numpyro.subsample(y, event_dim=0)
            mean = numpyro.deterministic("mean", w * x)
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    split = split_model(model, (X[:, 0], X[:, 1], 4), {})
    assert split.deterministic == ("twice",)
    subsample, deterministic = split.notes
    assert "the subsample_size of plate 'data' is ignored" in subsample
    assert "deterministic sites 'mean' depend on rows" in deterministic and "'twice'" not in deterministic
    assert len(split_model(model, (X[:, 0], X[:, 1], None), {}).notes) == 1
    assert split_model(logistic, (X, LABELS), {}).notes == ()
