"""Locations and scales of private columns: right, charged as three accesses, and no row adds more than it is charged for."""

import jax
import numpy as np
import pytest
from tight import gaussian_epsilon

import dpppl
from dpppl.runs.private_scale import _statistic

N = 5_000


def columns():
    rng = np.random.default_rng(0)
    every = (
        rng.uniform(20.0, 90.0, N), rng.integers(1950, 2021, N), np.exp(rng.normal(10.0, 0.7, N)).clip(1e3, 1e5),
        rng.random(N) < 0.05, np.full(N, 7.0), rng.standard_cauchy(N).clip(-50.0, 50.0), np.zeros(N),
        np.where(rng.random(N) < 0.5, np.nan, rng.normal(3.0, 1.0, N)),
    )  # fmt: skip
    return np.column_stack(every).astype(np.float32)


def test_locations_and_scales_are_about_right_and_cost_three_accesses():
    x = columns()
    with pytest.warns(
        dpppl.UnconvergedWarning, match=r"(49|50|51)\.\d% ± 0\.\d% of the values of a column are missing"
    ):
        found = dpppl.private_scale(dpppl.secret_key(), x, target_epsilon=1.0, target_delta=1e-5)
    usual = slice(0, 6)
    mean, sd = x[:, usual].mean(axis=0), x[:, usual].std(axis=0)
    ratio = found.scale[usual][[0, 1, 2, 3, 5]] / sd[[0, 1, 2, 3, 5]]
    assert np.all(np.abs(found.location[usual] - mean) < 5.0 * found.noise_sd[usual] + 0.5 * sd)
    assert np.all((ratio > 0.5) & (ratio < 2.0)) and found.scale[4] < 0.5
    assert (
        found.is_resolved[:6].all()
        and not found.is_resolved[6]
        and np.all(np.isfinite(found.scale))
        and np.all(found.scale > 0.0)
    )
    assert 0.99 < found.epsilon_at(1e-5) <= 1.0
    once = dpppl.private_scale(dpppl.secret_key(), x[:, 0], noise_multiplier=30.0)
    assert once.location.shape == (1,)
    mu = 3.0**0.5 / 30.0
    assert once.epsilon_at(1e-5) == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-3)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_row_adds_at_most_its_sensitivity(kind):
    rng = np.random.default_rng(1)
    state = {"kind": np.int32(kind), "centre": np.ones(3, np.float32), "bound": np.full(3, 0.5, np.float32)}
    for x in (rng.standard_normal(3), [np.nan, np.inf, -1e38], [0.0, 1.0, 1e-40], [1e30, -1e30, 0.5]):
        length = np.linalg.norm(np.asarray(_statistic(state, jax.numpy.asarray(x, "float32"))))
        assert length <= np.sqrt(3.0) * (1.0 + 1e-6)


def test_what_is_refused_costs_nothing(tmp_path):
    x = columns()
    ledger = dpppl.PrivacyLedger(tmp_path / "ledger.jsonl", 0.1, 1e-5)
    with pytest.raises(dpppl.BudgetExceededError):
        dpppl.private_scale(dpppl.secret_key(), x, noise_multiplier=1.0, ledger=ledger)
    for wrong, message in (((x,), "target_epsilon"), ((np.zeros((9, 2, 2)),), "columns")):
        with pytest.raises(dpppl.ConfigurationError, match=message):
            dpppl.private_scale(
                dpppl.secret_key(), *wrong, **({"noise_multiplier": 1.0} if message == "columns" else {})
            )


def test_inside_a_transform_it_is_refused_before_a_charge(tmp_path):
    ledger, key = dpppl.PrivacyLedger(tmp_path / "ledger", epsilon=2.0, delta=1e-5), dpppl.secret_key()
    with pytest.raises(dpppl.ConfigurationError, match=r"inside jax\.jit"):
        jax.jit(lambda x: dpppl.private_scale(key, x, noise_multiplier=10.0, ledger=ledger).location)(np.arange(100.0))
    assert ledger.spent == 0.0


def test_words_and_dicts_are_said_to_be_no_numbers():
    for entry in ("tall", {"height": 1.8}, [1.8, 1.7]):
        with pytest.warns(
            dpppl.UnconvergedWarning,
            match=r"% of the values .*\. Argument 'x' is a list: an entry that is not one number",
        ):
            found = dpppl.private_scale(dpppl.secret_key(), [entry] * 2_000, noise_multiplier=5.0)
        assert not found.is_resolved[0] and abs(found.missing[0] - 1.0) < 6.0 * 5.0 / 2_000
