"""The progress bar: seconds go on while a program compiles, and nothing is shown or started where it is not asked for."""

import threading
import time

import numpy as np
import pytest
from small_models import latent, seen

import dpppl
from dpppl.runs import progress


def test_seconds_go_on_while_no_access_ends(monkeypatch, capfd):
    """Without its clock (a mutant) the bar is written once before its end."""
    monkeypatch.setattr(progress, "SECONDS", 0.01)

    def times(visible):
        with progress.bar_for(3, visible=visible):
            time.sleep(0.2)
        return capfd.readouterr().err.count("compiling:")

    before = threading.active_count()
    assert times(True) >= 5 and times(False) == 0 and threading.active_count() <= max(before, 2)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    assert times(True) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["MCMC", "NoiseAware"])
def test_a_run_says_that_it_compiles_and_then_what_it_does(method, capfd, monkeypatch):
    for name in ("CI", "PYTEST_XDIST_WORKER"):  # where these are set, NumPyro's MCMC shows no bar
        monkeypatch.delenv(name, raising=False)

    def model(y):
        seen(y, latent("mu"))

    budget = {"target_epsilon": 1.0, "target_delta": 1e-5, "print_cost": True}
    if method == "MCMC":
        run = dpppl.MCMC(dpppl.DPSGLD(model), num_warmup=20, num_samples=20, **budget)
    else:
        run = dpppl.NoiseAware(model, num_samples=50, **budget)
    run.run(dpppl.secret_key(), np.zeros(100, np.float32))
    printed, shown = capfd.readouterr()
    last = "sample: 100%" if method == "MCMC" else "posterior: 100%"
    assert shown.index("compiling:   0%") < shown.index(last) and "%|" not in printed
