"""Two processes on this machine: the numbers, reports and refusals of one."""

import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import cluster
import jax
import methods
import numpy as np
import pytest

import dpppl


def launched(folder, count, script=cluster.__file__, **environment):
    """Processes that run `script`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    path = os.pathsep.join([str(Path(dpppl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ours = {
        name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_XDIST_WORKER")
    }  # no bars there
    environment = ours | {"XLA_FLAGS": " ".join(kept), "PYTHONPATH": path} | environment
    return [
        subprocess.Popen(
            [sys.executable, script, str(process), str(count), str(port), str(folder)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for process in range(count)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two processes found, what they printed, and their folder."""
    folder = tmp_path_factory.mktemp("two")
    for name in ("ledger", "failing"):
        dpppl.PrivacyLedger(folder / name, 5.0, 1e-5)
    dpppl.PrivacyLedger(folder / "poor", 0.01, 1e-5)
    started = launched(folder, 2)
    printed = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0], printed
    return [json.loads((folder / f"found{p}").read_text()) for p in (0, 1)], printed, folder


@pytest.mark.slow
def test_all_processes_have_the_same_numbers_and_reports(two):
    (first, second), _, folder = two
    assert {**first, "failed": ""} == {**second, "failed": ""}
    assert first["samples"] == first["copy"]
    report = " ".join(first["report"].split())
    assert "Rows are sharded over 2 device(s)" in report and "The ledger 'ledger' counts" in report
    [run] = dpppl.PrivacyLedger.open(folder / "ledger").report().runs
    assert (run.num_accesses, run.status) == (20, "complete")


@pytest.mark.slow
def test_the_bits_are_those_of_one_process(two, claimed):
    (first, _), _, folder = two
    dpppl.PrivacyLedger(folder / "alone", 5.0, 1e-5)
    mesh = jax.make_mesh((2,), ("rows",), devices=jax.devices()[:2])
    alone = cluster.chains(f"{folder}/alone", print_cost=False, progress_bar=False, mesh=mesh)
    alone.run(cluster.a_key(), cluster.rows(), dpppl.Public(np.float32(1.0)))
    np.testing.assert_array_equal(np.float32(first["samples"]), alone.get_samples()["mu"])
    report = dataclasses.replace(
        alone.privacy_report(), combined_risk=None
    )  # a process alone tells this, and what is left
    told = re.sub(r"what is left pays .*? add up, roughly\). ", "", str(report))
    assert told.replace("'alone'", "'ledger'") == first["report"]


@pytest.mark.slow
def test_process_0_alone_prints(two):
    _, ((first, bar), (second, no_bar)), _ = two
    assert first.count("This run will spend epsilon") == 1 and "sample: 100%" in bar
    assert "This run will spend" not in second and "sample" not in no_bar


@pytest.mark.slow
def test_all_processes_refuse_alike(two):
    (first, _), _, folder = two
    assert first["keys"].startswith("ConfigurationError: processes 0 and 1 differ in: key, starting values.")
    assert first["unlike"].startswith("ConfigurationError: argument 'y' is not the same in all processes")
    assert first["refused"].startswith("BudgetExceededError: ")
    assert first["by_hand"].startswith("ConfigurationError: SVI.update takes rows of one process")
    assert dpppl.PrivacyLedger.open(folder / "poor").spent == 0.0


@pytest.mark.slow
def test_a_process_that_fails_ends_the_run_of_all(two):
    (first, second), _, folder = two
    words = "process 1 was ended by ValueError: see its output. All that had begun is charged."
    assert first["failed"] == f"ProcessError: {words}" and second["failed"] == "ValueError: not to be told"
    [run] = dpppl.PrivacyLedger.open(folder / "failing").report().runs
    assert (run.num_accesses, run.status) == (2, "interrupted")


@pytest.mark.slow
def test_svi_and_noise_aware_find_what_one_process_finds(tmp_path):
    started = [process for count in (2, 1) for process in launched(tmp_path, count, methods.__file__)]
    printed = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], printed
    found = [json.loads((tmp_path / name).read_text()) for name in ("of0in2", "of1in2", "of0in1")]
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_kills_of_one_of_three_processes():
    """Killed in the middle; the ledger has charged what was entered, the others end, and a restart has the same samples."""
    script = Path(dpppl.__file__).parents[1] / "benchmarks" / "privacy" / "kills.py"
    run = subprocess.run([sys.executable, str(script), "4", "1"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]
    assert "0 uncharged accesses, 0 hangs, 0 survivors without a clear error" in run.stdout


@pytest.mark.slow
def test_the_page_on_clusters_runs_as_it_is_printed(tmp_path):
    page = (Path(dpppl.__file__).parents[1] / "docs" / "devices.md").read_text()
    script = tmp_path / "cluster.py"
    script.write_text(page.split("```python\n")[1].split("```")[0])
    started = launched(tmp_path, 2, str(script))
    (first, _), (second, _) = [process.communicate(timeout=300) for process in started]
    assert first.count("This run will spend epsilon = ") == 1 and "This run" not in second
    means = [printed.split("mu = ")[1].strip() for printed in (first, second)]
    assert means[0] == means[1] and abs(float(means[0]) - 0.5) < 0.5
