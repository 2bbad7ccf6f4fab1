"""Epsilon against values that other libraries and exact formulas gave: benchmarks/privacy/independent_accounts.py writes them."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.privacy.calibrations import draw
from dpppl import accounting
from dpppl.accounting import GaussianEvent

FOLDER = Path(__file__).parents[2] / "benchmarks" / "privacy"
VALUES = json.loads((FOLDER / "independent_accounts.json").read_text())


def test_there_are_enough_of_them():
    assert len(VALUES) >= 60 and {row["rate"] for row in VALUES} == {1.0, 0.1, 0.01, 0.001}
    assert sum(row["prv"] is not None for row in VALUES) >= 30


@pytest.mark.parametrize("row", VALUES[::5])
def test_epsilon_is_never_too_small_and_at_most_a_hundredth_too_large(row):
    event = GaussianEvent(noise_multipliers=((row["sigma"], row["steps"]),), sampling_rate=row["rate"])
    found = accounting.epsilon(event, row["delta"])
    assert row["below"] * (1 - 1e-7) <= found <= 1.01 * row["above"]
    if row["rdp"] is not None:
        assert found <= row["rdp"]


def test_values_of_different_libraries_agree():
    """Else the test above would say little: bounds from below and above are close to each other, and to Opacus' PRV."""
    for row in VALUES:
        assert row["below"] <= row["above"] * (1 + 1e-9) and row["above"] < 1.05 * row["below"]
        if row["prv"] is not None:
            assert row["below"] * 0.999 <= row["prv"] < 1.03 * row["above"] + 0.004


@pytest.mark.slow
def test_random_calibrations_spend_what_they_may():
    rng = np.random.default_rng(1)
    shares = [draw(rng) for _ in range(10)]
    assert all(0.99 <= share <= 1.0 for share, _ in shares), shares
