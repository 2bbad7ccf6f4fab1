"""Runs whose unit is a person: they cost what runs on rows cost, their reports say so, and what knows rows only is refused."""

import json
from pathlib import Path

import jax
import jsonschema
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from small_models import normal_mean, seen

import dpppl
import dpppl.contrib.audit
from dpppl import accounting
from dpppl.errors import ConfigurationError

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report-schema.json").read_text())


IDS = np.random.default_rng(0).integers(0, 40, 160)
Y = (0.5 + np.random.default_rng(1).normal(size=160)).astype(np.float32)
PERSONS = dict(unit="person", max_rows_per_unit=5)


def chain(noise=20.0, **settings):
    kernel = dpppl.DPSGLD(normal_mean, clipping_norm=2.0, noise_multiplier=noise, measure_clipping=False)
    return dpppl.MCMC(
        kernel, num_warmup=10, num_samples=20, progress_bar=False, print_cost=False, target_delta=1e-4, **settings
    )


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return dpppl.PrivacyLedger(tmp_path_factory.mktemp("ledger") / "persons", 5.0, 1e-4, unit="person")


@pytest.fixture(scope="module")
def ran(ledger):
    mcmc = chain(ledger=ledger, **PERSONS)
    mcmc.run(jax.random.key(3), Y, person=IDS)
    return mcmc


@pytest.mark.slow
def test_equal_noise_gives_a_person_the_epsilon_of_a_row(ran):
    rows = chain()
    rows.run(jax.random.key(4), Y)
    assert ran.privacy_report().events == rows.privacy_report().events
    assert ran.privacy_report().epsilon == rows.privacy_report().epsilon > 0
    assert ran.privacy_report().num_rows == len(np.unique(IDS)) and rows.privacy_report().num_rows == 160


@pytest.mark.slow
def test_names_of_persons_do_not_matter(ran, claimed):
    claimed.clear()
    again = chain(**PERSONS)
    again.run(jax.random.key(3), Y, person=[f"id {i}" for i in IDS])
    assert np.array_equal(again.get_samples()["mu"], ran.get_samples()["mu"])


def test_the_report_says_what_the_unit_is(ran):
    report = ran.privacy_report()
    document = report.to_dict()
    jsonschema.validate(document, SCHEMA)
    assert document["unit"] == "all rows with one 'person', of which at most 5 are used"
    assert document["comparisons"]["groups_of"] == "unit"
    assert "up to 5 records of one person were used" in report.headline
    assert any("5 are used, chosen at random" in line for line in report.assumptions())
    assert dict(report.rows())["neighbouring data sets"] == "add or remove one unit, N public (zero-out)"
    assert not any("The unit of privacy is one row" in line for line in report.assumptions())
    assert str(sorted(IDS)[:3]) not in report.to_json()


@pytest.mark.parametrize("subsampling", [dpppl.FullBatch(), dpppl.Poisson(0.1)])
def test_a_declared_cap_is_a_group_in_the_account(subsampling):
    kernel = dpppl.DPSGLD(normal_mean, clipping_norm=2.0, subsampling=subsampling, measure_clipping=False)
    settings = dict(num_warmup=0, num_samples=50, target_epsilon=1.0, target_delta=1e-4, progress_bar=False)
    one, five = dpppl.MCMC(kernel, **settings), dpppl.MCMC(kernel, max_rows_per_unit=5, **settings)
    report = five.privacy_plan()
    assert 0.98 < report.epsilon <= 1.0
    assert report.epsilon == accounting.group_epsilon(report.events, 1e-4, 5)
    assert report.noise_multipliers[0] > (4.9 if subsampling.rate == 1 else 2) * one.privacy_plan().noise_multipliers[0]
    assert report.risk.advantage > accounting.trade_off(report.events).advantage
    jsonschema.validate(report.to_dict(), SCHEMA)
    assert "declared, not checked" in str(report) and "at most 5 rows of one person, as a group" in str(report)
    assert report.to_dict()["comparisons"]["groups"][0]["rows"] == 10


@pytest.mark.slow
def test_queries_and_svi_know_units():
    svi = dpppl.SVI(
        normal_mean, AutoNormal(normal_mean), clipping_norm=3.0, target_epsilon=3.0, target_delta=1e-3, reserve=0.3,
        print_cost=False, num_data=len(np.unique(IDS)), **PERSONS,
    )  # fmt: skip
    result = svi.run(dpppl.secret_key(), 30, Y, person=IDS, progress_bar=False)
    elbo = svi.estimate_elbo(dpppl.secret_key(), result.params, Y, bound=30.0, person=IDS)
    assert np.isfinite(elbo) and svi.privacy_report().num_rows == len(np.unique(IDS))
    before = svi.privacy_report().epsilon
    assert before <= 3.0
    correct = lambda samples, y: y > 0  # noqa: E731
    with pytest.raises(ConfigurationError, match="single rows"):
        svi.estimate_accuracy(dpppl.secret_key(), result.params, correct, Y)
    with pytest.raises(ConfigurationError, match="single rows"):
        svi.init(dpppl.secret_key(), Y)
    with pytest.raises(ConfigurationError, match="give person="):
        svi.run(dpppl.secret_key(), 30, Y, progress_bar=False)
    assert svi.privacy_report().epsilon == before


def test_a_ledger_counts_for_one_kind_of_unit(tmp_path, ledger, ran):
    rows = dpppl.PrivacyLedger(tmp_path / "rows", 5.0, 1e-4)
    with pytest.raises(ConfigurationError, match="counts for one row, and this run for one person"):
        chain(ledger=rows, **PERSONS)
    with pytest.raises(ConfigurationError, match="counts for one person, and this run for one row"):
        chain(ledger=ledger)
    with pytest.raises(ConfigurationError, match="not for groups of declared size"):
        chain(ledger=rows, max_rows_per_unit=3)
    with pytest.raises(ConfigurationError, match="unit"):
        dpppl.PrivacyLedger(ledger.path, 5.0, 1e-4)
    found = dpppl.PrivacyLedger.open(ledger.path).report()
    assert found.unit == "person" and len(found.runs) == 1 and "for one person" in found.statement


@pytest.mark.slow
def test_an_audit_of_a_person_of_many_rows_stays_below_the_account():
    kernel = dpppl.DPSGLD(normal_mean, clipping_norm=2.0, noise_multiplier=5.0, step_size=0.05, measure_clipping=False)
    settings = dict(num_steps=10, delta=1e-5, num_trials=4000, rng_key=jax.random.key(1))
    found = dpppl.contrib.audit.audit(kernel, Y[:12], person=[0] * 6 + [1, 1, 2, 3, 3, 4], **PERSONS, **settings)
    assert 0.7 * found.epsilon_reported < found.epsilon_lower <= found.epsilon_reported


@pytest.mark.parametrize("value", [[0.0, 1.0], {0: 0.0}], ids=["list", "dict"])
def test_public_values_that_are_no_arrays_stay_public(value):
    def model(y, prior):
        mu = numpyro.sample("mu", dist.Normal(prior[0], 1.0))
        seen(y, mu)

    kernel = dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=9.0)
    settings = dict(num_warmup=0, num_samples=3, progress_bar=False, print_cost=False, max_rows_per_unit=2)
    mcmc = dpppl.MCMC(kernel, unit="person", **settings)
    mcmc.run(dpppl.secret_key(), np.zeros(6, np.float32), prior=dpppl.Public(value), person=np.repeat(np.arange(3), 2))
    assert mcmc.get_samples(allow_unconverged=True)["mu"].shape == (3,)
