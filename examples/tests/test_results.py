"""Examples with results: rows that go on where they were, tables that are those of the JSON, and every example once, tiny."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

from dpppl import accounting
from examples import (
    abalone,
    adult,
    comparators,
    heteroscedastic,
    logistic,
    methods,
    mnist,
    pate_students,
    results,
    scattering,
)
from examples.data import has_adult

FOLDER = results.FOLDER


@pytest.fixture
def small_adult(monkeypatch):
    """Simulated rows in the place of Adult, in 8 columns."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1_200, 8)).astype(np.float32) / 2.0
    y = (rng.random(1_200) < 1.0 / (1.0 + np.exp(-x @ np.linspace(-3.0, 3.0, 8)))).astype(np.float32)
    monkeypatch.setattr(adult, "data_in", lambda columns: (x[:600], y[:600], x[600:], y[600:]))


@pytest.fixture
def small_mnist(monkeypatch):
    """A few made-up images of two kinds in the place of MNIST."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 240).astype(np.int32)
    images = (0.1 * rng.random((240, 28, 28, 1)) + np.eye(28)[:, :, None] * y[:, None, None, None]).astype(np.float32)
    monkeypatch.setattr(mnist, "mnist", lambda flat: (images[:200], y[:200], images[200:], y[200:]))
    mnist.data_in.cache_clear()
    yield
    mnist.data_in.cache_clear()


def test_a_killed_command_goes_on_where_it_was_and_changed_settings_start_anew(tmp_path):
    path, seen = tmp_path / "some.json", []

    def run(seed, size, fail_at=None):
        seen.append((seed, size))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return {"epsilon": 1.0, "score": np.float32(size + seed), "missing": None, "infinite": np.inf, "bins": [[0.5]]}

    rows = [results.Row("one", run, {"size": 10}, num_runs=2), results.Row("two", run, {"size": 20}, num_runs=2)]
    with pytest.raises(KeyboardInterrupt):
        results.make(rows, path)
    found = results.make(rows, path)
    assert seen == [(0, 10), (1, 10), (0, 20), (0, 20), (1, 20)]
    assert [run["score"] for run in found["two"]["runs"]] == [20.0, 21.0] and found["one"]["runs"][0][
        "infinite"
    ] is None
    results.make(rows, path)
    assert len(seen) == 5
    changed = [rows[0], replace(rows[1], settings={"size": 30})]
    assert [run["score"] for run in results.make(changed, path, only=["two"])["two"]["runs"]] == [30.0, 31.0]
    assert json.loads(path.read_text()) == results.load(path) and list(results.load(path)) == ["one", "two"]
    with pytest.raises(SystemExit, match=r"no such row: three\. There are: one, two"):
        results.make(rows, path, only=["three"])


def test_tables_hold_means_standard_deviations_and_medians(tmp_path):
    runs = [{"epsilon": 0.9995, "MSE": value, "NLL": None} for value in (1.0, 2.0, 6.0)]
    results.save(
        tmp_path / "file.json",
        {"a-1": {"settings": {"method": "X"}, "runs": runs}, "b": {"settings": {}, "runs": runs}},
    )
    page = "before\n<!-- table: file a-.* | method, epsilon, MSE, median MSE, NLL -->\n| old | table |\nafter\n"
    made = results.written(page, tmp_path)
    assert made == (
        "before\n<!-- table: file a-.* | method, epsilon, MSE, median MSE, NLL -->\n"
        "| method | epsilon | MSE | median MSE | NLL | runs |\n|---|---|---|---|---|---|\n"
        "| X | 0.9995 | 3.0000 ± 2.6458 | 2.0000 |  | 3 |\nafter\n"
    )
    assert results.written(made, tmp_path) == made


def test_a_grid_has_a_line_for_a_method_and_a_column_for_a_budget(tmp_path):
    runs = lambda *values: [{"NLL": value} for value in values]  # noqa: E731
    cells = (("X", 0.3, runs(1.0, 2.0)), ("X", None, runs(0.5)), ("Y", 0.1, runs(4.0)))
    rows = {f"{m}{t}": {"settings": {"method": m, "target": t}, "runs": found} for m, t, found in cells}
    results.save(tmp_path / "file.json", rows | {"other": {"settings": {}, "runs": []}})
    head = "<!-- grid: file [XY].* | method by target | NLL -->\n"
    assert results.written(head, tmp_path) == (
        f"{head}| method | target 0.1 | target 0.3 | target none |\n|---|---|---|---|\n"
        "| X |  | 1.5000 | 0.5000 |\n| Y | 4.0000 |  |  |\n"
    )


def test_costs_count_a_run_that_was_not_timed_as_the_mean_of_the_others(tmp_path):
    timed, rows = [{results.SECONDS: 30.0}, {results.SECONDS: 90.0}, {}], {}
    results.make(
        [results.Row("c", lambda seed: {"score": sum(range(10_000_000)), "epsilon": None})], tmp_path / "d.json"
    )
    assert results.load(tmp_path / "d.json")["c"]["runs"][0][results.SECONDS] > 0.0
    for name, runs in (("a", timed), ("b", timed[:1]), ("c", [{}, {}])):
        rows[name] = {"settings": {}, "runs": runs}
    results.save(tmp_path / "file.json", rows)
    found = results.written("<!-- costs: file, none -->\n| old |\n", tmp_path)
    assert "| file | 3 | 6 | 5.2 |\n| none | 0 | 0 | 0.0 |\n| all | 3 | 6 | 5.2 |\n" in found


def test_the_page_of_results_shows_what_the_json_says():
    text = (FOLDER.parent / "results.md").read_text()
    assert results.MARK.search(text) and results.written(text, FOLDER) == text


def test_what_published_steps_cost():
    """Li et al. 2019: noise multipliers q sqrt(N) / (L sqrt(step size)), step sizes .1 t^(-1/3). Zhang et al. 2021: equation of
    theorem 2 at rate 1, 200 steps, solved for the noise at which it says epsilon 4.21."""
    page, steps = (FOLDER.parent / "results.md").read_text(), np.arange(1, 10_001)
    noise = accounting.round_down(1.0 / (4.0 * np.sqrt(0.1 * steps ** (-1.0 / 3.0))))
    li = accounting.GaussianEvent(noise_multipliers=noise, sampling_rate=60_000**-0.5)
    assert f"| 0.10 | {accounting.epsilon(li, 1e-5):.2f} (10,000 steps)" in page

    def exact(noise_multiplier):
        event = accounting.GaussianEvent(noise_multipliers=((noise_multiplier, 200),))
        return accounting.epsilon(event, 1 / 250)

    claimed_mu = brentq(lambda mu: exact(np.sqrt(200) / mu) - 4.21, 0.1, 10.0)
    noise = np.log1p(claimed_mu**2 / 200) ** -0.5
    assert f"noise\nmultiplier of {noise:.1f}, which costs {exact(noise):.2f}" in page


@pytest.mark.parametrize("example", [abalone, adult, heteroscedastic, mnist, pate_students])
def test_stored_rows_are_rows_of_the_example_under_the_settings_it_has_now(example):
    rows = {row.name: row for row in example.ROWS}
    assert len(rows) == len(example.ROWS)
    for name, stored in results.load(FOLDER / f"{example.__name__.split('.')[-1]}.json").items():
        assert rows[name].settings == stored["settings"] and 0 < len(stored["runs"]) <= rows[name].num_runs
        target = stored["settings"].get("target")
        assert target is None or all(run["epsilon"] <= target for run in stored["runs"])


@pytest.mark.parametrize(
    ("main", "file"), [(adult.main, "adult-train.csv"), (abalone.main, "abalone.csv"), (mnist.main, "mnist.npz")]
)
def test_missing_data_are_named_with_the_cure(main, file, monkeypatch, tmp_path):
    monkeypatch.delenv("DPPPL_DATA", raising=False)
    with pytest.raises(SystemExit, match=rf"{file}.* is missing: .*--data or .*DPPPL_DATA"):
        main(["--data", str(tmp_path), "--output", str(tmp_path)])
    os.environ.pop("DPPPL_DATA")


def test_scattering_maps_move_with_the_image_and_do_not_see_a_constant():
    image = np.random.default_rng(0).random((1, 28, 28)).astype(np.float32)
    maps = np.asarray(scattering.maps(image))
    assert maps.shape == (1, scattering.CHANNELS, 7, 7)
    moved = np.asarray(scattering.maps(np.roll(image, (4, -8), axis=(1, 2))))
    np.testing.assert_allclose(moved, np.roll(maps, (1, -2), axis=(2, 3)), atol=1e-4)
    constant = np.asarray(scattering.maps(np.ones((1, 28, 28), np.float32)))[0]
    np.testing.assert_allclose(constant[0], 1.0, atol=1e-5)  # the low pass keeps it
    np.testing.assert_allclose(constant[1:], 0.0, atol=1e-5)
    turned = np.asarray(scattering.maps(np.transpose(image, (0, 2, 1))))  # angles 0 and 90 degrees change places
    np.testing.assert_allclose(turned[0, 1], maps[0, 5].T, atol=1e-4)
    assert not np.allclose(turned[0, 1], maps[0, 1].T, atol=1e-2)


def test_features_of_an_image_say_nothing_of_other_images():
    images = np.random.default_rng(0).random((5, 28, 28)).astype(np.float32)
    together = scattering.features(images, batch=2)
    np.testing.assert_allclose(together[3:4], scattering.features(images[3:4]), atol=1e-5)
    norms = np.linalg.norm(together, axis=1)
    assert np.all(norms <= 1.0) and np.all(norms > 0.5)


def test_coverage_of_groups_is_right_for_the_truth_and_wrong_for_certainty():
    """20,000 rows in 200 groups: a coverage of 90 % has a standard error of 2.1 %."""
    rng = np.random.default_rng(0)
    truth = rng.beta(1.0, 3.0, 20_000)
    y = (rng.random(20_000) < truth).astype(int)
    assert abs(logistic.binary_scores(truth[None], y)["coverage"] - 0.9) < 0.07
    sharper = 1.0 / (1.0 + np.exp(-1.3 * np.log(truth / (1.0 - truth))))
    assert logistic.binary_scores(sharper[None], y)["coverage"] < 0.8


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[pytest.mark.slow] * (m == "hybrid sampler")) for m in comparators.WEIGHTS]
)
def test_every_comparator_learns_at_a_large_epsilon(method, small_adult, monkeypatch):
    monkeypatch.setattr(comparators, "NUM_TEACHERS", 12)
    monkeypatch.setattr(comparators, "NUM_QUERIES", 60)
    if method in ("one posterior sample", "hybrid sampler"):
        monkeypatch.setattr(comparators.posterior_sample, "temper", lambda epsilon, bound: 0.1)
    target = 5.0 if method == "hybrid sampler" else 50.0  # at 50 its chain's steps are too long
    assert adult.run(0, method=method, columns=8, target=target)["accuracy"] > 0.65


@pytest.mark.parametrize("mechanism", pate_students.MECHANISMS)
def test_a_student_of_pate_learns_from_noised_votes_which_cost_less_than_any_votes(mechanism, monkeypatch):
    """Twenty teachers on rows of three classes that lie apart: they agree, so that costs given the votes are small."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 1_000)
    x = (2.0 * np.eye(3)[y] + 0.3 * rng.standard_normal((1_000, 3))).astype(np.float32)
    monkeypatch.setattr(pate_students, "data_in", lambda name: (x[:600], y[:600], x[600:], y[600:]))
    monkeypatch.setattr(pate_students, "NUM_TEACHERS", 20)
    noise = {
        "LNMax": {"gamma": 0.5},
        "GNMax": {"sigma": 3.0},
        "Confident-GNMax": {"threshold": 15.0, "sigma_threshold": 3.0, "sigma": 3.0},
    }[mechanism]
    found = pate_students.run(0, data="made up", method=mechanism, num_queries=100, inverse_penalty=1.0, **noise)
    assert found["accuracy"] > 0.95 and found["right"] > 0.95
    assert found["epsilon given votes"] < 0.8 * found["epsilon"]
    assert (found["answered"] == 100) == (mechanism != "Confident-GNMax") and found["answered"] > 80


@pytest.mark.slow
@pytest.mark.parametrize("model", ["basis", "network"])
def test_a_tiny_heteroscedastic_run_learns_something(model):
    settings = {"num_steps": 60, "learning_rate": 0.1, "clipping_norm": 4.0, "init_scale": 0.1}
    found = heteroscedastic.run(0, method="Bayes by Backprop", model=model, private="yes", **settings)
    y = heteroscedastic.simulated(0)[1]
    assert found["training MSE"] < 0.9 * np.var(y) and 4.0 < found["epsilon"] <= 4.21


def test_new_rows_come_from_the_process_of_the_private_ones():
    """Their noise has sd 0.3 |x + 2|: around the mean of private rows close by the mean square is about that."""
    x, y, x_new, y_new = heteroscedastic.simulated(3)
    near = np.array([y[np.argsort(np.abs(x[:, 0] - point))[:9]].mean() for point in x_new[:, 0]])
    ratio = np.mean((y_new - near) ** 2) / np.mean(0.09 * (x_new[:, 0] + 2.0) ** 2)
    assert len(x) == 250 and 0.85 < ratio < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in methods.METHODS if name != "MC Dropout"])  # which is for layers
def test_every_method_runs_on_the_logistic_regression(method, small_adult):
    settings = {"num_steps": 60, "learning_rate": 0.1} if method in methods.GUIDES else {}
    settings |= {"num_warmup": 60, "num_samples": 60} if method in methods.KERNELS else {}
    settings |= {"clipping_norm": 1.0} if settings else {}
    found = adult.run(0, method=method, columns=8, target=20.0, **settings)
    assert 10.0 < found["epsilon"] <= 20.0 and found["accuracy"] > 0.7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "method", "target"),
    [("cnn", "DP-SGD", 50.0), ("mlp", "MC Dropout", None), ("learned-cnn", "DP-SGD", 50.0)],
)
def test_every_network_takes_private_steps_and_steps_without_privacy(network, method, target, small_mnist):
    settings = {"num_steps": 40, "learning_rate": 0.05, "clipping_norm": 1.0, "batch_size": 100, "prior_scale": 20.0}
    found = mnist.run(0, network=network, method=method, prior="gaussian", target=target, **settings)
    assert found["accuracy"] > 0.8 and (found["epsilon"] is None) == (target is None)


@pytest.mark.skipif(not has_adult(), reason="UCI Adult is missing: set DPPPL_DATA")
def test_a_row_of_adult_by_its_name(tmp_path):
    adult.main(["--only", "objective-perturbation-8-eps1", "--num-runs", "1", "--output", str(tmp_path)])
    found = results.load(tmp_path / "adult.json")["objective-perturbation-8-eps1"]["runs"]
    assert len(found) == 1 and found[0]["NLL"] < 0.34 and (tmp_path / "adult.png").read_bytes()[1:4] == b"PNG"
