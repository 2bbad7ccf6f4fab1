"""Two models under one budget, as docs/comparing-models.md compares them."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "comparing-models.md").read_text()


@pytest.mark.slow
def test_the_larger_model_predicts_better_within_the_plan():
    """Without privacy the larger model is .005 better a row, five of the query's sds; each ledger keeps to what was planned."""
    found = {}
    exec("\n".join(re.findall(r"```\{code-cell\} ipython3\n(.*?)```", PAGE, re.S)), found)
    assert found["middle"] + found["half"] < 0.0 and 0.0 <= found["check"].p_value() <= 1.0
    assert all(each["large"].bayes_factor("w[0]", 0.0) < 0.01 for each in found["fits"])
    assert all(1.2 < ledger.spent < 1.6 for ledger in found["ledgers"])
