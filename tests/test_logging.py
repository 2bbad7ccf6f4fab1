"""The logger logs what was released and public values, and nothing of a row, a loss or a key."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

import dpppl
from dpppl import logging
from dpppl.errors import ConfigurationError


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu.sum(), 1), obs=y)


class Fake:
    """MLflow's fluent interface, with its rules for names."""

    def __init__(self):
        self.tags, self.metrics, self.texts = {}, [], {}

    def set_tags(self, tags):
        assert all(re.fullmatch(r"[/\w.\- :]*", name) for name in tags)
        self.tags |= tags

    def log_metrics(self, metrics, step=None):
        assert all(re.fullmatch(r"[/\w.\- :]*", name) and np.isfinite(value) for name, value in metrics.items())
        self.metrics.append((step, metrics))

    def log_text(self, text, artifact_file):
        self.texts[artifact_file] = text


def chain(y, key):
    kernel = dpppl.DPSGLD(model, clipping_norm=2.0, noise_multiplier=20.0, measure_clipping=False)
    mcmc = dpppl.MCMC(kernel, num_warmup=5, num_samples=20, target_delta=1e-4, progress_bar=False, print_cost=False)
    mcmc.run(key, y)
    return mcmc


ROWS = np.linspace(-3.14159, 7.77777, 200).astype(np.float32)


def test_artefacts_change_with_a_row_only_where_samples_do(claimed):
    changed, found = ROWS.copy(), []
    changed[17] = 1234.5
    for rows in (ROWS, changed):
        claimed.clear()
        found.append(logging.record(chain(rows, jax.random.key(1))))
    one, other = found
    assert one.tags == other.tags and one.step == other.step == 25
    assert one.metrics.keys() == other.metrics.keys()
    apart = {name for name in one.metrics if one.metrics[name] != other.metrics[name]}
    assert apart == {f"{kind}.mu.{i}" for kind in ("mean", "sd") for i in (0, 1)}
    for name in ("privacy_report.txt", "privacy_report.json", "privacy_report.html"):
        assert one.texts[name] == other.texts[name]
    assert one.texts["summary.csv"] != other.texts["summary.csv"]


def test_no_row_and_no_key_is_in_it():
    key = dpppl.secret_key()
    tracker = Fake()
    mcmc = chain(ROWS, key)
    logging.mlflow(mcmc, tracker, about={"data_name": "Survey"})
    everything = repr((tracker.tags, tracker.metrics, tracker.texts))
    assert "Survey" in everything and tracker.tags["method"] == "DPSGLD, complete"
    for word in np.asarray(jax.random.key_data(key)):
        assert str(word) not in everything
    assert not any(f"{row:.4f}" in everything for row in ROWS[[0, 17, 100]])
    assert "loss" not in str([*tracker.tags, *tracker.metrics[0][1]])
    ((step, metrics),) = tracker.metrics
    samples = np.asarray(mcmc.get_samples()["mu"], np.float64)
    assert step == 25 and metrics["epsilon"] == mcmc.privacy_report().epsilon
    assert np.isclose(metrics["mean.mu.0"], samples[:, 0].mean()) and np.isclose(
        metrics["sd.mu.1"], samples[:, 1].std()
    )


def test_progress_is_what_was_charged_so_far():
    svi = dpppl.SVI(model, AutoNormal(model), clipping_norm=2.0, noise_multiplier=9.0, print_cost=False)
    tracker = Fake()
    logging.mlflow(svi, tracker)
    result = svi.run(dpppl.secret_key(), 12, jnp.asarray(ROWS), progress_bar=False)
    logging.mlflow(svi, tracker)
    logging.mlflow(result, tracker)
    assert [step for step, _ in tracker.metrics] == [0, 12, 12]
    assert (
        "mean.mu_auto_loc.0" in tracker.metrics[2][1] and "epsilon" not in tracker.metrics[2][1]
    )  # no delta was chosen


def test_wide_posteriors_are_logged_in_part_and_kept_in_full():
    found = logging._summary({"w": np.zeros((3, 40, 10)), "b": np.arange(3.0)})
    assert len(found) == 401 and found[0] == ("b", 1.0, float(np.std([0, 1, 2])))


def test_the_real_mlflow_takes_it(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("dpppl")
    svi = dpppl.SVI(model, AutoNormal(model), clipping_norm=2.0, noise_multiplier=9.0, print_cost=False)
    with mlflow.start_run() as run:
        logging.mlflow(svi)
        logging.mlflow(svi.run(dpppl.secret_key(), 12, jnp.asarray(ROWS), progress_bar=False))
    logged = mlflow.get_run(run.info.run_id).data
    assert logged.tags["method"].endswith(", complete") and "mean.mu_auto_loc.0" in logged.metrics


@pytest.mark.parametrize("thing", [ROWS, {"y": ROWS}, jax.random.PRNGKey, "text"])
def test_nothing_else_can_be_logged(thing):
    tracker = Fake()
    with pytest.raises(ConfigurationError, match="what may be logged"):
        logging.mlflow(thing, tracker)
    assert not (tracker.tags or tracker.metrics or tracker.texts)


def test_without_mlflow_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    svi = dpppl.SVI(model, AutoNormal(model), clipping_norm=2.0, noise_multiplier=9.0)
    with pytest.raises(ConfigurationError, match=r"pip install dpppl\[mlflow\]"):
        logging.mlflow(svi)
