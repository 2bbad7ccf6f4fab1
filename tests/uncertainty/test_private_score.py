"""A score of private rows: right, clipped, noised as it says, charged once and before it looks."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm
from small_models import latent, seen

import dpppl
from dpppl.model.arguments import Arguments
from dpppl.randomness import keys
from dpppl.randomness.normal import standard_normal
from dpppl.runs.private_score import traced_score

N = 64
ROWS = np.linspace(-2.0, 4.0, N).astype(np.float32)


def square(scale, x):
    return scale * x**2


def ask(seed=0, rows=ROWS, score=square, bounds=(0.0, 6.0), **settings):
    settings = settings or {"noise_multiplier": 1e-6}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "rng_key has a guessable|the score is NaN")
        return dpppl.private_score(
            jax.random.key(seed), score, dpppl.Public(np.float32(0.5)), rows, bounds=bounds, **settings
        )


def test_the_mean_is_that_of_clipped_scores():
    scores = np.clip(0.5 * ROWS.astype(float) ** 2, 0.0, 6.0)
    assert scores.max() == 6.0  # some are clipped
    assert ask().mean == pytest.approx(scores.mean(), abs=1e-5)
    rows = ROWS.copy()
    rows[0], rows[1] = np.nan, np.inf
    scores[0], scores[1] = 3.0, 6.0
    assert ask(1, rows).mean == pytest.approx(scores.mean(), abs=1e-5)


def test_one_row_moves_the_sum_by_half_the_range_and_noise_is_as_it_says(claimed):
    """Equal keys have equal noise: what is left is one row's contribution, at most half of the range away from the middle's.
    The noise is the key's own standard normal number times the sd that is stated: half as much would not pass."""
    near, far = ROWS.copy(), ROWS.copy()
    near[-1], far[-1] = np.nan, 1e30
    first = ask(2, near, noise_multiplier=3.0)
    claimed.clear()
    second = ask(2, far, noise_multiplier=3.0)
    assert N * (second.mean - first.mean) == pytest.approx(3.0, abs=1e-3)
    assert second.noise_sd == pytest.approx(3.0 * 3.0 / N)
    key = keys.stream(keys.stream(jax.random.key(2), "query"), "noise")
    normal = float(jax.jit(lambda key: standard_normal(key, 1))(jax.random.fold_in(key, 0))[0])
    exact = np.clip(0.5 * far.astype(float) ** 2, 0.0, 6.0).mean()
    assert second.mean - exact == pytest.approx(second.noise_sd * normal, rel=1e-3)


HALF_NONE = np.where(np.arange(N) % 2, ROWS, np.nan).astype(np.float32)


@pytest.mark.parametrize("settings", [{}, {"measure_spread": True}], ids=["mean", "spread"])
def test_rows_whose_score_is_nan_are_counted_and_said(settings):
    """Their share comes from the same access, at no further cost: a row is in it or in the mean."""
    settings = settings | {"noise_multiplier": 1e-3}
    assert ask(40, HALF_NONE, **settings).nan_share == pytest.approx(0.5, abs=1e-3)
    assert abs(ask(41, **settings).nan_share) < 1e-3
    ask_new = lambda noise: dpppl.private_score(  # noqa: E731
        dpppl.secret_key(), lambda x: x, HALF_NONE, bounds=(0.0, 1.0), noise_multiplier=noise
    )
    with pytest.warns(UserWarning, match="the score is NaN for about 50% of the rows"):
        ask_new(1e-3)
    ask_new(100.0)  # noise that hides the share says nothing of it


@pytest.mark.parametrize("spread", [False, True])
def test_no_row_is_longer_than_the_bound_with_its_count_of_nan(spread):
    """So what a row moves is what is charged: a count beside the score of every row would be longer by its root."""
    scores = np.array([np.nan, -np.inf, np.inf, 0.0, 3.0, 6.0, -1e30, 7.0], np.float32)
    arguments = Arguments.of(lambda x: x, (scores,), {})
    statistic, _ = traced_score(lambda x: x, arguments, 0.0, 6.0, spread)
    rows = np.stack([np.asarray(statistic({"x": x}, {})) for x in scores])
    bound = 3.0 * np.hypot(1.0, 0.5) if spread else 3.0
    assert np.isfinite(rows).all() and rows[0].tolist() == [0.0] * (rows.shape[1] - 1) + [3.0]
    assert np.linalg.norm(rows, axis=1).max() == pytest.approx(bound) and np.all(rows[1:, -1] == 0.0)


def test_the_account_is_that_of_one_gaussian_access():
    """Balle and Wang (2018), theorem 8, with sensitivity half the range."""
    found = ask(20, target_epsilon=1.0, target_delta=1e-3)
    sigma = found.noise_sd * N / 3.0
    delta = norm.cdf(0.5 / sigma - sigma) - np.e * norm.cdf(-0.5 / sigma - sigma)
    assert delta == pytest.approx(1e-3, rel=0.01) and 0.99 < found.epsilon_at(1e-3) <= 1.0
    assert "epsilon" in str(found) and "zero-out" in str(found)


def test_a_delta_that_allows_to_publish_rows_is_warned_of():
    with pytest.warns(dpppl.PrivacyWarning, match="whole rows"):
        dpppl.private_score(
            dpppl.secret_key(), jnp.tanh, ROWS, bounds=(-1, 1), target_epsilon=1.0, target_delta=1.0 / N
        )


@pytest.mark.slow
def test_a_ledger_is_charged_once_and_refuses_what_is_too_dear(tmp_path):
    ledger = dpppl.PrivacyLedger(tmp_path / "held-out.ledger", 1.0, 1e-5, full_batch_only=True)
    ask(30, noise_multiplier=10.0, ledger=ledger)
    spent = ledger.spent
    assert 0.3 < spent < 0.5
    with pytest.raises(dpppl.BudgetExceededError):
        dpppl.private_score(
            dpppl.secret_key(), square, dpppl.Public(1.0), ROWS, bounds=(0, 1), noise_multiplier=1.0, ledger=ledger
        )
    key = dpppl.secret_key()
    settings = dict(bounds=(0, 1), noise_multiplier=20.0, ledger=ledger)
    dpppl.private_score(key, square, dpppl.Public(1.0), ROWS, **settings)
    spent = ledger.spent
    with pytest.raises(dpppl.KeyReuseError):
        dpppl.private_score(key, square, dpppl.Public(1.0), ROWS, **settings)
    assert ledger.spent == spent


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("score", "rows", "settings", "error", "words"),
    [
        (square, ROWS, dict(bounds=(1.0, 0.0), noise_multiplier=1.0), dpppl.ConfigurationError, "low below high"),
        (square, ROWS, dict(bounds=1.0, noise_multiplier=1.0), dpppl.ConfigurationError, "pair"),
        (square, ROWS, dict(bounds=(0.0, 1.0)), dpppl.ConfigurationError, "target_epsilon"),
        (lambda s, x: x * jnp.ones(2), ROWS, dict(bounds=(0, 1), noise_multiplier=1.0), dpppl.ConfigurationError, "number"),
        (lambda s, x: x + jnp.sum(jnp.asarray(ROWS)), ROWS, dict(bounds=(0, 1), noise_multiplier=1.0), dpppl.UnsupportedModelError, "score captures"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_before_anything_is_charged(score, rows, settings, error, words, tmp_path):
    ledger = dpppl.PrivacyLedger(tmp_path / "ledger", 1.0, 1e-5)
    with pytest.raises(error, match=words):
        dpppl.private_score(dpppl.secret_key(), score, dpppl.Public(1.0), rows, ledger=ledger, **settings)
    assert ledger.spent == 0.0


def test_a_score_that_prints_rows_is_refused(capfd):
    def loud(scale, x):
        jax.debug.print("{}", x)
        return x

    with pytest.raises((dpppl.PrivacyLeakError, dpppl.UnsupportedModelError)):
        dpppl.private_score(dpppl.secret_key(), loud, dpppl.Public(1.0), ROWS, bounds=(0, 1), noise_multiplier=1.0)
    assert "0.5" not in capfd.readouterr().out


def spread(rows, seed, **settings):
    with pytest.warns(dpppl.PrivacyWarning, match="guessable"):
        return dpppl.private_score(
            jax.random.key(seed), lambda x: x, rows, bounds=(-3.0, 3.0), measure_spread=True, **settings
        )


@pytest.mark.slow
def test_intervals_of_the_population_cover():
    """150 data sets of 500 rows, noise about as large as the sampling error: .9 within 3.3 standard errors (false alarm 1 in
    1,000). Without the noise, or without sampling, intervals cover less."""
    rng, found = np.random.default_rng(0), []
    for seed in range(150):
        rows = (0.5 + rng.uniform(-2.0, 2.0, 500)).astype(np.float32)
        found.append(spread(rows, 5_000 + seed, noise_multiplier=8.0))
    covered = lambda sd: np.mean([abs(one.mean - 0.5) < 1.6449 * sd(one) for one in found])  # noqa: E731
    assert np.mean([low < 0.5 < high for low, high in (one.interval(0.9) for one in found)]) > 0.9 - 0.08
    assert abs(covered(lambda one: np.hypot(one.noise_sd, one.sampling_sd)) - 0.9) < 0.08
    assert covered(lambda one: one.noise_sd) < 0.8 and covered(lambda one: one.sampling_sd) < 0.8
    assert np.median([one.sampling_sd for one in found]) == pytest.approx(np.sqrt(4.0 / 3.0 / 500), rel=0.2)


def test_score_and_square_together_cost_one_access():
    """A row at the end of the range moves the released vector by its bound and not by more; equal cost means 12 % more noise."""
    alone, both = (
        dpppl.private_score(
            dpppl.secret_key(), lambda x: x, ROWS, bounds=(-3.0, 3.0), target_epsilon=1.0, target_delta=1e-3,
            measure_spread=measured,
        )
        for measured in (False, True)
    )  # fmt: skip
    assert both.epsilon_at(1e-3) == pytest.approx(alone.epsilon_at(1e-3))
    assert both.noise_sd == pytest.approx(np.sqrt(1.25) * alone.noise_sd, rel=1e-6)
    with pytest.raises(dpppl.ConfigurationError, match="measure_spread=True"):
        alone.interval()


def test_elpd_differences_have_the_sign_of_the_better_model():
    from dpppl.contrib.uncertainty import elpd_difference

    def model(y, scale=1.0):
        seen(y, dist.Normal(latent("mu"), scale))

    rows = np.random.default_rng(0).normal(0.3, 1.0, 2_000).astype(np.float32)
    samples = dpppl.Public({"mu": np.array([0.2, 0.4], np.float32)})
    wide = lambda y: model(y, 3.0)  # noqa: E731
    settings = dict(bounds=(-3.0, 3.0), noise_multiplier=5.0, measure_spread=True)
    found = dpppl.private_score(dpppl.secret_key(), elpd_difference(model, wide), samples, samples, rows, **settings)
    density = lambda sd: np.log(np.mean(norm.pdf(rows[:, None], [0.2, 0.4], sd), axis=1))  # noqa: E731
    expected = np.clip(density(1.0) - density(3.0), -3.0, 3.0).mean()
    low, high = found.interval(0.999)
    assert low < expected < high and 0.0 < low


def test_models_get_public_arguments_as_they_are():
    """Public effects of groups as an argument, and a setting: the elpd and the discrepancy of the model that captures them."""
    from dpppl.contrib.uncertainty import discrepancy, elpd_difference

    effects, group = np.array([-2.0, 0.0, 2.0], np.float32), np.arange(600) % 3
    rows = (effects[group] + np.random.default_rng(0).normal(size=600)).astype(np.float32)
    samples, settings = dpppl.Public({"mu": np.zeros(2, np.float32)}), dict(bounds=(-9.0, 9.0), noise_multiplier=1.0)

    def model(effects, group, y, kind="grouped"):
        assert kind == "grouped"
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        seen(y, mu + effects[group])

    flat = lambda effects, *rest, **settings: model(0.0 * effects, *rest, **settings)  # noqa: E731
    far = lambda draw, seen, effects, group, y, kind: jnp.abs(seen["y"] - effects[group])  # noqa: E731
    asked = lambda score, *given: dpppl.private_score(  # noqa: E731
        dpppl.secret_key(), score, *given, dpppl.Public(effects), group, rows, kind="grouped", **settings
    )
    exact = np.mean(norm.logpdf(rows, effects[group]) - norm.logpdf(rows))
    assert asked(elpd_difference(model, flat), samples, samples).mean == pytest.approx(exact, abs=0.1)
    assert asked(discrepancy(model, far, bounds=(0.0, 9.0)), samples).mean == pytest.approx(0.0, abs=0.15)
