"""The models of the examples split, under every prior, and take a private step."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoDelta
from scipy import stats

import dpppl
from dpppl.model.split import split_model
from models import priors, vae
from models.bayesian_cnn import bayesian_cnn
from models.bayesian_mlp import bayesian_mlp
from models.heteroscedastic_regression import heteroscedastic_regression

N = 20


def rows(*shape):
    return np.random.default_rng(0).uniform(size=(N, *shape)).astype(np.float32)


LABELS = np.arange(N, dtype=np.int32) % 10
PRIORS = [priors.gaussian, priors.laplace, priors.scale_mixture]
MODELS = [
    (lambda x, y, prior: bayesian_mlp(x, y, hidden=(5,), prior=prior), (rows(4), LABELS)),
    (lambda x, y, prior: bayesian_cnn(x, y, hidden=3, prior=prior), (rows(28, 28, 1), LABELS)),
    (lambda x, y, prior: heteroscedastic_regression(x, y, hidden=4, prior=prior), (rows(2), rows())),
]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: prior.__name__)
@pytest.mark.parametrize("model, arrays", MODELS, ids=["mlp", "cnn", "heteroscedastic"])
def test_networks_split_and_their_prior_is_the_one_asked_for(model, arrays, prior):
    split = split_model(model, (*arrays, dpppl.Public(prior)), {})
    z = {name: jnp.full(latent.shape, 0.1) for name, latent in split.latents.items()}
    moved = z | {"b0" if "b0" in z else "c0": z["b0" if "b0" in z else "c0"] + 0.5}
    site = moved["b0" if "b0" in z else "c0"]
    expected = jnp.sum(prior(1.0).log_prob(site) - prior(1.0).log_prob(site - 0.5))
    assert split.log_prior(moved, {}) - split.log_prior(z, {}) == pytest.approx(float(expected), rel=1e-3)


def test_priors_have_the_stated_spread():
    assert priors.laplace(2.0).variance == pytest.approx(4.0)
    assert priors.scale_mixture(2.0, weight=0.25, ratio=0.5).variance == pytest.approx(0.25 * 4.0 + 0.75 * 1.0)
    density = priors.scale_mixture(1.0).log_prob(0.3)
    expected = np.log(0.5 * stats.norm.pdf(0.3) + 0.5 * stats.norm.pdf(0.3, scale=0.1))
    assert density == pytest.approx(expected, rel=1e-4)
    assert isinstance(priors.gaussian(), dist.Normal)


@pytest.mark.slow
def test_the_vae_takes_private_steps():
    x = (rows(12) > 0.5).astype(np.float32)
    svi = dpppl.SVI(vae.model, vae.guide, optax.adam(1e-2), clipping_norm=1.0, noise_multiplier=1.0,
                    subsampling=dpppl.FullBatch(), gradient="per_parameter", print_cost=False)  # fmt: skip
    result = svi.run(dpppl.secret_key(), 2, x, latent=2, hidden=3, progress_bar=False)
    assert result.params["decoder1_weights"].shape == (3, 12) and "code" not in result.params


@pytest.mark.slow
def test_heteroscedastic_noise_is_learned():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1.0, 1.0, (300, 1)).astype(np.float32)
    y = (np.where(x[:, 0] > 0, 1.0, 0.1) * rng.standard_normal(300)).astype(np.float32)
    start = {"w0": 0.5 * jnp.ones((1, 4)) * jnp.arange(1, 5), "b0": jnp.zeros(4), "w1": jnp.zeros((4, 2)),
             "b1": jnp.zeros(2)}  # fmt: skip

    def model(x, y):
        heteroscedastic_regression(x, y, hidden=4)

    guide = AutoDelta(model, init_loc_fn=init_to_value(values=start))
    svi = dpppl.SVI(model, guide, optax.adam(0.03), clipping_norm=100.0, noise_multiplier=1e-7,
                    subsampling=dpppl.FullBatch(), print_cost=False)  # fmt: skip
    params = svi.run(dpppl.secret_key(), 400, x, y, progress_bar=False).params
    hidden = jnp.tanh(jnp.array([[-0.8], [0.8]]) @ params["w0_auto_loc"] + params["b0_auto_loc"])
    spread = jax.nn.softplus((hidden @ params["w1_auto_loc"] + params["b1_auto_loc"])[:, 1])
    assert spread[0] < 0.35 and spread[1] > 0.7
