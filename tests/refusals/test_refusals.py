"""What users write wrongly: an error of ours names the cause, blames nothing else, and the call that it advises runs.

A row of a table is (name, wrong call, words of the error, its cure). A new message gets a row; `test_remedies` types cures that are code.
"""

import contextlib
import io
import re
import warnings

import numpy as np
import pytest
import refused_accounts
import refused_calls
import refused_common
import refused_models
import refused_results
import refused_runs
import refused_tables

import dpppl

TABLES = (refused_models, refused_runs, refused_calls, refused_results, refused_accounts, refused_tables)
ROWS = {
    f"{area}: {name}": rest for table in TABLES for area, rows in table.AREAS.items() for name, *rest in rows
}  # fmt: skip
NEVER = (
    "object has no attribute",
    "every other array is wrapped",
    "NoneType",
    "<class",
    "Traceback",
    "0x7f",
    "unexpected keyword argument 'self'",
)
"""Words that blame nothing that a user wrote."""


SHARED = {"CHAIN", "FITTED", "AWARE", "REPORT", "draws", "tables", "cells", "used_key", "tuned"}


LATE = ("kernels: a scheme of another N",)
"""Refused after seconds of calibration."""


def makes_a_run(call):
    """Whether a call makes a run before it fails, or waits for one."""
    inner = [function for function in call.__defaults__ or () if callable(function)]
    return bool(SHARED & set(call.__code__.co_names)) or any(map(makes_a_run, inner))


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """Runs that rows share end with this file."""
    yield
    for later in refused_common.SHARED:
        later.found = None


@contextlib.contextmanager
def quiet():
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


@pytest.mark.quick_cases(60)
@pytest.mark.parametrize(
    "name", sorted(ROWS, key=lambda name: (name in LATE or makes_a_run(ROWS[name][0]), name[::-1]))
)  # of all areas
def test_it_is_refused_for_its_cause(name):
    wrong, words, _ = ROWS[name]
    with quiet(), pytest.raises(dpppl.DPPPLError) as caught:
        wrong()
    message = f"{type(caught.value).__name__}: {caught.value}".lower()
    assert [word for word in words.split("|") if word.lower() not in message] == [], caught.value
    assert [word for word in NEVER if word.lower() in message] == [], caught.value
    shown = [float(number) for number in re.findall(r"-?\d+\.\d{3,}", message)]
    held = np.float64([*refused_common.F, *refused_common.X.ravel()])
    assert not np.isin(np.round(shown, 3), np.round(held, 3)).any(), "it shows a number of the rows"


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ROWS)
def test_its_cure_runs(name, monkeypatch):
    """Runs of NoiseAware up to their first access, others to their end."""
    monkeypatch.setattr(refused_common, "RUNS", [False])
    with quiet():
        ROWS[name][2]()
