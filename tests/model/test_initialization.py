import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from small_models import seen
from zoo import ZOO, N

from dpppl.errors import ConfigurationError
from dpppl.model.initialization import initial_values
from dpppl.model.split import split_model

ROWS = jax.ShapeDtypeStruct((N,), jnp.float32)


def priors(y):
    mean = numpyro.sample("mean", dist.Normal(2.0, 3.0))
    numpyro.sample("scale", dist.LogNormal(0.5, 1.0))
    numpyro.sample("cauchy", dist.HalfCauchy(4.0))
    numpyro.sample("uniform", dist.Uniform(-2.0, 4.0))
    numpyro.sample("below", dist.Normal(mean, 1.0).expand([2, 3]).to_event(2))
    with numpyro.plate("groups", 5):
        numpyro.sample("group", dist.Laplace(mean, jnp.ones(5)).mask(False))
    numpyro.sample("gamma", dist.Gamma(2.0, 1.0).expand([200]).to_event(1))
    numpyro.sample("improper", dist.ImproperUniform(dist.constraints.positive, (), (3,)))
    seen(y, mean)


@pytest.fixture(scope="module")
def split():
    return split_model(priors, (ROWS,), {})


@pytest.fixture(scope="module")
def start(split):
    z = initial_values(split, {}, jax.random.key(0))
    return z, split.constrain(z, {})


def test_prior_median(start):
    z, values = start
    assert values["mean"] == pytest.approx(2.0)
    assert values["scale"] == pytest.approx(np.exp(0.5), rel=1e-5)
    assert values["cauchy"] == pytest.approx(4.0, rel=1e-5)
    assert values["uniform"] == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(values["below"], np.full((2, 3), 2.0), rtol=1e-5)
    np.testing.assert_allclose(values["group"], np.full(5, 2.0), rtol=1e-5)
    np.testing.assert_array_equal(z["improper"], np.zeros(3))


def test_prior_median_by_draws(start):
    """The mean of 200 medians of 1,000 draws, within 5 standard errors: false-alarm rate 6e-7, 5 % off is rejected."""
    gamma, prior = start[1]["gamma"], scipy.stats.gamma(2.0)
    error = 0.5 / prior.pdf(prior.median()) / np.sqrt(1_000 * 200)
    assert abs(np.mean(gamma) - prior.median()) < 5 * error < abs(np.mean(gamma) - 1.05 * prior.median())


def test_prior_sample_is_a_draw_from_the_prior():
    """False-alarm rate 1e-6 a test; a scale that is 5 % off is rejected."""

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(2.0, 3.0))
        numpyro.sample("scale", dist.LogNormal(0.5, 1.0))
        numpyro.sample("below", dist.Normal(mean, 1.0))
        numpyro.sample("improper", dist.ImproperUniform(dist.constraints.positive, (), (3,)))
        seen(y, mean)

    split = split_model(model, (ROWS,), {})
    z = jax.vmap(lambda key: initial_values(split, {}, key, "prior_sample"))(
        jax.random.split(jax.random.key(0), 50_000)
    )
    z = {name: np.asarray(value, np.float64) for name, value in z.items()}
    below = z["below"] - z["mean"]
    for values, loc, scale in [(z["mean"], 2.0, 3.0), (z["scale"], 0.5, 1.0), (below, 0.0, 1.0)]:
        assert scipy.stats.kstest(values, scipy.stats.norm(loc, scale).cdf).pvalue > 1e-6
        assert scipy.stats.kstest(values, scipy.stats.norm(loc, 1.05 * scale).cdf).pvalue < 1e-6
    assert abs(np.corrcoef(below, z["mean"])[0, 1]) < 5 / np.sqrt(50_000)
    np.testing.assert_array_equal(z["improper"], np.zeros((50_000, 3)))


@pytest.mark.quick_cases(1)
@pytest.mark.thinned(6)
@pytest.mark.parametrize("entry", ZOO, ids=repr)
def test_every_model_has_a_start(entry):
    args, kwargs = entry.data(0)
    split = split_model(entry.model, args, kwargs)
    _, public = split.arrays(args, kwargs)
    z = initial_values(split, public, jax.random.key(0))
    assert {name: (v.shape, v.dtype) for name, v in z.items()} == {
        name: (s.shape, s.dtype) for name, s in split.latents.items()
    }
    assert jnp.isfinite(split.log_prior(z, public))


def test_own_values_are_taken_as_they_are(split):
    own = {name: np.full(s.shape, 0.25) for name, s in split.latents.items()}
    z = initial_values(split, {}, jax.random.key(0), own)
    assert all(np.all(value == 0.25) and value.dtype == jnp.float32 for value in z.values())
    jax.jit(lambda own: initial_values(split, {}, jax.random.key(0), own))(own)


def test_own_values_must_fit(split):
    own = {name: np.zeros(s.shape) for name, s in split.latents.items()}
    for wrong, message in [
        ({**own, "other": np.zeros(())}, "the latent sites are"),
        ({"mean": np.zeros(())}, "the latent sites are"),
        ({**own, "gamma": np.zeros(3)}, r"'gamma' has shape \(3,\), but its unconstrained shape is \(200,\)"),
        ({**own, "mean": np.nan}, "the initial value of site 'mean' is not finite"),
        ("prior_mean", "'prior_median', 'prior_sample', a dict"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            initial_values(split, {}, jax.random.key(0), wrong)
