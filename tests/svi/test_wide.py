"""Wide models: the default call clips flat, at a norm from prior and noise, in batches; other models keep their defaults."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta

import dpppl
from dpppl.access.clipping import Centred, Flat
from dpppl.subsampling import FullBatch, Poisson

BUDGET = {"target_epsilon": 1.0, "target_delta": 1e-5, "print_cost": False}
ROWS, COLUMNS, WIDTH, SD = 6_000, 100, 64, 0.25
X = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
Y = (np.arange(ROWS) % 10).astype(np.int32)


def network(x, y=None, width=WIDTH):
    first = numpyro.sample("first", dist.Normal(0, SD).expand([x.shape[1], width]).to_event(2))
    second = numpyro.sample("second", dist.Normal(0, SD).expand([width, 10]).to_event(2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=jnp.tanh(x @ first) @ second), obs=y)


def fitted(model=network, x=X, y=Y, num_steps=4, **options):
    svi = dpppl.SVI(model, AutoDelta(model), **(BUDGET | options))
    svi.run(dpppl.secret_key(), num_steps, x, y, progress_bar=False)
    return svi


def norm_of(svi):
    return svi.privacy_report().mechanism.clipping_norm


def is_public_norm(svi, num_steps=4):
    """Whether the norm is mu of the steps over the prior's sd, within the error of prior draws."""
    sigma = svi.privacy_report().events[0].noise_multipliers[0][0]
    return norm_of(svi) == pytest.approx(svi.mechanism.subsampling.rate * num_steps**0.5 / sigma / SD, rel=0.02)


@pytest.mark.slow
def test_a_wide_model_is_clipped_flat_at_a_public_norm_in_batches():
    """70,400 numbers in the gradients of ten responses. Rows a thousand times as long have the same norm; one event, of steps."""
    svi = fitted()
    assert type(svi.mechanism.clipping) is Flat and svi.mechanism.subsampling == Poisson(4_096 / ROWS)
    assert is_public_norm(svi)
    report = svi.privacy_report()
    assert len(report.events) == 1 and 0.99 < report.epsilon <= 1.0
    assert "wide model" in repr(report) and "clipped rows" in repr(report)
    assert norm_of(fitted(x=1e3 * X)) == norm_of(svi)


@pytest.mark.slow
def test_what_the_user_chose_stays():
    assert type(fitted(clipping="centred").mechanism.clipping) is Centred
    mine = fitted(subsampling=Poisson(0.1))
    assert mine.mechanism.subsampling.rate == 0.1 and is_public_norm(mine)
    assert fitted(clipping_norm=2.0).mechanism.clipping == Flat(2.0)
    assert fitted(clipping_norm=2.0).mechanism.subsampling == FullBatch()
    few = fitted(x=X[:1_000], y=Y[:1_000])
    assert few.mechanism.subsampling == Poisson(1.0) and type(few.mechanism.clipping) is Flat


@pytest.mark.slow
def test_a_model_that_is_not_wide_keeps_its_histogram():
    """Also after the same object has been set up for a wide one."""
    svi = dpppl.SVI(network, AutoDelta(network), **BUDGET)
    svi.init(dpppl.secret_key(), X, Y)
    assert type(svi.mechanism.clipping) is Flat
    svi.run(dpppl.secret_key(), 4, X[:, :50], Y, progress_bar=False)
    assert type(svi.mechanism.clipping) is Centred and svi.mechanism.subsampling == FullBatch()
    report = svi.privacy_report()
    assert len(report.events) == 2 and "wide model" not in repr(report)


@pytest.mark.slow
def test_check_says_what_is_chosen():
    found = {columns: dict(dpppl.check(network, X[:, :columns], Y).methods)["SVI"] for columns in (50, COLUMNS)}
    assert "a step takes 4,096 rows" in found[COLUMNS] and "the model is wide" not in found[50]
