"""Labels and names of analyses: in every text about a run in place of numbers of elements and hashes of runs."""

import math

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

import dpppl
from dpppl import accounting
from dpppl.contrib import pages
from dpppl.contrib.synthetic import Category, Schema, fit_cells, table_model
from dpppl.contrib.tuning import tune
from dpppl.errors import ConfigurationError
from dpppl.findings.finding import care, sites_with
from dpppl.ledger.report import merged
from dpppl.mcmc.outcome import print_table
from dpppl.report.labels import Labels
from dpppl.svi.verdict import Convergence

SHAPES = {"w": (3,), "level": (2, 3), "tau": (), "probs": (3,)}
LABELS = Labels.of({"w": ["age", "smoker=yes", "0"], "level": [["Akaa", "Espoo"], ["x", "y", "z"]]}, SHAPES)


def test_numbers_of_elements_are_replaced_once_and_only_those_of_the_site():
    assert LABELS.named("'w[1]' and w[0], v[0], my.w[0], aw[1], w[3], w[0,1]") == (
        "'w[smoker=yes]' and w[age], v[0], my.w[0], aw[1], w[3], w[0,1]"
    )
    assert LABELS.named("level[1, 2]; level[0,0]") == "level[Espoo,z]; level[Akaa,x]"
    assert Labels().named("w[0]") == "w[0]"
    assert Labels.of({"level": np.array(["x", "y", "z"])}, SHAPES).named("level[1,2]") == "level[1,z]"  # the last axis


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["age"], "give a list by site"), ({"v": ["age"]}, "'v', which is no latent; the sites are w, level"),
        ({"w": "age"}, "'w' are a str"), ({"w": ["a", "b"]}, "'w' are 2, and its elements have the shape \\(3,\\)"),
        ({"w": ["a", "a", "b"]}, "label of its own"), ({"tau": ["a"]}, "shape \\(\\)"), ({"w": []}, "shape \\(3,\\)"),
    ],
)  # fmt: skip
def test_labels_that_do_not_fit_are_refused_by_site(given, words):
    with pytest.raises(dpppl.errors.ConfigurationError, match=words):
        Labels.of(given, SHAPES)


def test_a_simplex_has_fewer_coordinates_than_labels():
    labels = Labels.of({"probs": ["a", "b", "c"], "w": ["a", "b", "c"]}, SHAPES)
    assert set(labels.fitting({"probs": (2,), "w": (3,)}).axes) == {"w"}


def test_findings_name_labelled_elements():
    count, names = sites_with("prior", {"w": np.array(["prior", "read", "prior"]), "level": np.full((2, 3), "prior")})
    assert (count, names) == (8, "w[0], w[2], level")
    words = {"w": np.array(["learned", "partly", "learned"])}
    verdict = Convergence(verdict="arrived", parameters=(), num_iterates=0, latents=words, labels=LABELS)
    assert "latents: 2 learned (w[age], w[0]), 1 partly (w[smoker=yes])" in str(verdict)
    [finding] = verdict.by_label([care(f"prior: {names}", "drop w[0]", names)])
    assert str(finding) == "prior: w[age], w[0], level; drop w[age]" and finding.latent == "w[age], w[0], level"


def test_the_table_of_chains_has_labels(capsys):
    draws = {"w": np.random.default_rng(0).normal(size=(1, 8, 3))}
    print_table(draws, np.full((1, 8), 0.125), 0.9, {"w": np.full(3, "read", object)}, 10, LABELS)
    out = capsys.readouterr().out
    assert "w[smoker=yes]" in out and "w[1]" not in out
    assert [*LABELS.apart(draws | {"tau": draws["w"][..., 0]})] == ["w[age]", "w[smoker=yes]", "w[0]", "tau"]


def test_axes_of_arviz_keep_the_plates_where_labels_agree():
    coords, dims = LABELS.coords({"level": ["region"]}, {"w", "level"})
    assert dims == {"w": ["w_dim_0"], "level": ["region", "level_dim_1"]}
    assert coords["region"] == ("Akaa", "Espoo") and coords["w_dim_0"] == ("age", "smoker=yes", "0")


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def rows(n=1_000):
    x = np.random.default_rng(0).uniform(-1, 1, (n, 2)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.float32)


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 201])
def test_a_name_is_one_line(name):
    with pytest.raises(dpppl.errors.ConfigurationError, match="one printable line"):
        dpppl.NoiseAware(model, noise_multiplier=1.0, name=name)


def test_what_all_runs_let_an_attacker_know(tmp_path):
    ledger = dpppl.PrivacyLedger(tmp_path / "a.ledger", 2.0, 1e-6, full_batch_only=True)
    assert ledger.combined_risk.right == 0.5 and "of no run" in str(ledger.combined_risk)
    event = accounting.GaussianEvent(noise_multipliers=((40.0, 50),))
    for run in ("one", "one.norms", "two"):
        ledger.reserve(run, [event], "by hand")
        ledger.charge(run, [event], 0, 50)
        ledger.release(run)
    found = ledger.combined_risk
    mu = math.sqrt(150.0) / 40.0
    assert found.runs == 2 and found.right == pytest.approx(0.5 + 0.5 * math.erf(mu / 8**0.5), abs=1e-3)
    full = (1.0 + accounting.delta(whole_budget(ledger), 0.0)) / 2.0
    assert found.right_in_the_end == pytest.approx(full, abs=2e-3) and found.right < found.right_in_the_end
    assert merged((event, event))[0].num_accesses == 100
    text = str(ledger)
    assert "squares of epsilon add up" in text and f"at most {math.ceil(found.right * 1000) / 10:g} of 100" in text
    loose = dpppl.PrivacyLedger(tmp_path / "b.ledger", 2.0, 1e-6)
    assert loose.combined_risk.right_in_the_end > full + 0.1 and "full_batch_only=True" in str(loose)


def whole_budget(ledger):
    """One run that takes all of it."""

    def event(sigma):
        return accounting.GaussianEvent(noise_multipliers=((sigma, 1),))

    return event(accounting.calibrate_noise_multiplier(event, ledger.epsilon, ledger.delta))


@pytest.mark.slow
def test_names_and_labels_go_all_the_way(tmp_path, capsys):
    path = tmp_path / "all.ledger"
    ledger = dpppl.PrivacyLedger(path, 8.0, 1e-6)
    common = {"target_epsilon": 2.0, "target_delta": 1e-6, "ledger": ledger, "labels": {"w": ["age", "smoker"]}}
    aware = dpppl.NoiseAware(model, progress_bar=False, name="first", **common)
    aware.run(dpppl.secret_key(), *rows())
    aware.print_summary()
    assert set(aware.verdict.learned) == {"w[age]", "w[smoker]"}
    assert aware.bayes_factor("w[age]", allow_unconverged=True) == aware.bayes_factor("w[0]", allow_unconverged=True)
    priors = {"wide": {"w": dist.Normal(0, 3).expand([2]).to_event(1)}}
    table = str(aware.sensitivity(jax.random.key(0), priors, 100, allow_unconverged=True))
    assert "w[age]" in table and "w[0]" not in table
    mcmc = dpppl.MCMC(dpppl.DPSGLD(model), num_warmup=100, num_samples=100, progress_bar=False, name="second", **common)
    mcmc.run(dpppl.secret_key(), *rows())
    mcmc.print_summary()
    svi = dpppl.SVI(model, AutoNormal(model), name="third", **common)
    result = svi.run(dpppl.secret_key(), 100, *rows(), progress_bar=False)
    printed = capsys.readouterr().out
    assert printed.count("w[age]") >= 2 and "w[0]" not in printed and "This run, 'second', will spend" in printed
    assert "SVIResult 'third'" in repr(result) and list(result.to_arviz(jax.random.key(0)).posterior["w_dim_0"]) == [
        "age",
        "smoker",
    ]
    assert {"first (NoiseAware)", "second (DPSGLD)", "third (SVI)"} <= {run.what for run in ledger.report().runs}
    report = aware.privacy_report()
    assert report.name == "first" and report.combined_risk.runs == 3 and "y: yes or no (Bernoulli)" in report.laws
    page = pages.to_html(report, {"variables": "age in decades"})
    studied = "Age in decades. In a statistician&#39;s words, w: prior Normal; y: yes or no (Bernoulli)."
    assert "<h1>Privacy report: first" in page and studied in page


def test_queries_have_names_in_results_and_ledger(tmp_path):
    ledger = dpppl.PrivacyLedger(tmp_path / "all.ledger", 8.0, 1e-6)
    settings = {"bounds": (0.0, 1.0), "noise_multiplier": 10.0, "ledger": ledger}
    found = dpppl.private_score(dpppl.secret_key(), lambda y: y, np.ones(100), name="share of smokers", **settings)
    assert str(found).startswith("share of smokers: ") and found.name == "share of smokers"
    assert ledger.report().runs[0].what.startswith("share of smokers (private_score(")
    dpppl.private_scale(dpppl.secret_key(), np.ones(100), noise_multiplier=10.0, ledger=ledger, name="scale of age")
    assert ledger.report().runs[1].what == "scale of age (private_scale)"
    before = ledger.spent
    with pytest.raises(ConfigurationError, match="name is one printable line"):
        dpppl.private_score(dpppl.secret_key(), lambda y: y, np.ones(100), name="two\nlines", **settings)
    assert ledger.spent == before


@pytest.mark.slow
def test_choices_and_tables_of_cells_have_names(tmp_path, capsys):
    ledger = dpppl.PrivacyLedger(tmp_path / "all.ledger", 8.0, 1e-6)
    schema = Schema((Category("smokes", (0, 1)), Category("coughs", (0, 1))))
    table = {"smokes": np.arange(2_000) % 2, "coughs": np.arange(2_000) % 3 == 0}
    table["coughs"] = table["coughs"].astype(int)
    fit = fit_cells(
        dpppl.secret_key(), table_model(schema), schema, table, noise_multiplier=10.0, num_samples=8, ledger=ledger,
        name="cells",
    )  # fmt: skip

    def make(norm):
        kernel = dpppl.DPSGLD(model, clipping_norm=norm, noise_multiplier=40.0)
        return dpppl.MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False)

    found = tune(
        dpppl.secret_key(), [1.0, 3.0], make, lambda samples, x, y: y, *rows(), bounds=(0.0, 1.0), score_noise=20.0,
        mean_runs=1.0, target_delta=1e-6, ledger=ledger, name="norms",
    )  # fmt: skip
    assert fit.report.name == "cells" and found.report.name == "norms"
    assert [run.what for run in ledger.report().runs] == ["cells (synthetic.fit_cells)", "norms (tune)"]
    assert "This run, 'norms', will spend" in capsys.readouterr().out
