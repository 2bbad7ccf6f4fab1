"""Private selection: what it costs, that it chooses well, and that nothing tells how many runs there were."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from small_models import seen

import dpppl
import dpppl.contrib.tuning
from dpppl import accounting
from dpppl.accounting import SelectionEvent
from dpppl.contrib import pages
from dpppl.errors import BudgetExceededError, ConfigurationError

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "report-schema.json").read_text())


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    seen(y, mu)


def make(norm, **settings):
    kernel = dpppl.DPSGLD(model, clipping_norm=norm, noise_multiplier=2.0, step_size=3e-4, measure_clipping=False)
    return dpppl.MCMC(kernel, num_warmup=100, num_samples=20, progress_bar=False, **settings)


def score(samples, y):
    return -((y - samples["mu"].mean()) ** 2)


ASKED = dict(bounds=(-16.0, 0.0), score_noise=1.0, mean_runs=6.0)


def data():
    return 3.0 + jax.random.normal(jax.random.key(0), (1000,))


@pytest.mark.slow
def test_the_better_setting_wins_and_the_cost_is_that_of_a_selection(capsys, tmp_path):
    ledger = dpppl.PrivacyLedger(tmp_path / "ledger", 90.0, 1e-5)
    found = dpppl.contrib.tuning.tune(
        jax.random.key(2),
        [1e-4, 5.0],
        make,
        score,
        data(),
        target_epsilon=89.0,
        target_delta=1e-5,
        ledger=ledger,
        **ASKED,
    )
    assert found.settings == 5.0 and abs(np.mean(found.samples["mu"]) - 3.0) < 0.5 and -2.0 < found.score < 0.0
    (event,) = found.report.events
    assert isinstance(event, SelectionEvent) and event.mean == 6.0 and ledger.events == (event,)
    runs = [(*make(norm).privacy_plan().events, event.candidates[0][-1]) for norm in (1e-4, 5.0)]
    assert set(event.candidates) == set(runs)
    assert found.report.epsilon == accounting.epsilon(event, 1e-5) > accounting.epsilon(runs[0], 1e-5)
    printed = capsys.readouterr()
    assert printed.out.count("This run will spend") == 1 and printed.err == ""
    jsonschema.validate(found.report.to_dict(), SCHEMA)
    text = str(found.report)
    assert (
        "secret, drawn: truncated negative binomial, shape 1, 6 expected" in text and "running time reveals it" in text
    )
    assert "tune" in str(ledger.report()) and pages.to_html(found.report).startswith("<!doctype html>")


@pytest.mark.slow
def test_a_poisson_number_of_runs_may_be_none(tmp_path):
    settings = ASKED | {"mean_runs": 1.0, "shape": None, "print_cost": False}
    ledgers = [dpppl.PrivacyLedger(tmp_path / str(seed), 90.0, 1e-5) for seed in range(10, 14)]
    found = [
        dpppl.contrib.tuning.tune(jax.random.key(seed), [5.0], make, score, data(), ledger=ledger, **settings)
        for seed, ledger in zip(range(10, 14), ledgers)
    ]
    assert [ledger.events for ledger in ledgers] == [f.report.events for f in found]
    assert {f.settings for f in found} == {5.0, None}
    assert len({f.report.events for f in found}) == 1  # the account tells nothing of how many there were


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"make": lambda norm: make(norm, max_rows_per_unit=3)}, "rows as the unit"),
        ({"mean_runs": 1e13, "shape": 0.0}, r"mean \(mean_runs\)"),
        ({"score": lambda samples, y: samples["nu"].mean()}, "score of one row fails"),
        ({"rows": (np.ones(10), np.ones(9))}, "different numbers of rows"),
        ({"make": lambda noise: dpppl.NoiseAware(model, noise_multiplier=100.0)}, "can tell nothing of 10 rows"),
    ],
)
def test_what_cannot_be_selected_is_refused(changed, words, tmp_path):
    settings = dict(candidates=[1.0], make=make, score=score, rows=jnp.ones(10)) | ASKED | changed
    first = [settings.pop(name) for name in ("candidates", "make", "score", "rows")]
    ledger = dpppl.PrivacyLedger(tmp_path / "ledger", 99.0, 1e-5)
    with pytest.raises((ConfigurationError, dpppl.UnsupportedModelError), match=words):
        dpppl.contrib.tuning.tune(jax.random.key(7), *first, ledger=ledger, **settings)
    assert ledger.events == ()


@pytest.mark.slow
def test_a_selection_beyond_the_target_is_refused_before_it_runs(tmp_path, monkeypatch):
    def spent(*_):
        raise AssertionError("a run was made")

    monkeypatch.setattr(dpppl.contrib.tuning, "_samples", spent)
    ledger = dpppl.PrivacyLedger(tmp_path / "ledger", 1.0, 1e-5)
    with pytest.raises(BudgetExceededError, match="the selection costs"):
        dpppl.contrib.tuning.tune(
            jax.random.key(7), [1.0], make, score, jnp.ones(10), target_epsilon=1.0, target_delta=1e-5, **ASKED
        )
    with pytest.raises(BudgetExceededError, match="no room"):
        dpppl.contrib.tuning.tune(jax.random.key(7), [1.0], make, score, jnp.ones(10), ledger=ledger, **ASKED)
    with pytest.raises(ConfigurationError, match="without a ledger"):
        dpppl.contrib.tuning.tune(
            jax.random.key(7), [1.0], lambda n: make(n, ledger=ledger), score, jnp.ones(10), **ASKED
        )
    assert ledger.events == ()


def test_wide_models_are_charged_for_the_batches_that_they_take(monkeypatch):
    """The plan of SVI before it knows a model is that of full batches."""
    monkeypatch.setattr("dpppl.svi.binding._MOST_NUMBERS", 1)
    monkeypatch.setattr(dpppl.contrib.tuning, "_samples", lambda *_: {"mu": np.zeros(3, np.float32)})
    y, guide = np.zeros(50_000, np.float32), AutoNormal(model)
    make = lambda _: dpppl.SVI(model, guide, noise_multiplier=4.0, print_cost=False)  # noqa: E731
    assert getattr(make(0).privacy_plan().events[-1], "sampling_rate", 1.0) == 1.0
    score = lambda samples, y: 0.0 * samples["mu"].mean() - 1.0  # noqa: E731
    found = dpppl.contrib.tuning.tune(
        dpppl.secret_key(), [0], make, score, y, bounds=(-4.0, 0.0), score_noise=10.0, mean_runs=1.0, target_delta=1e-5
    )
    first, *_ = found.report.events[0].candidates[0]
    assert first.sampling_rate == pytest.approx(4_096 / 50_000)
