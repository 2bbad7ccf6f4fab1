"""What every method gives at fixed keys stays what it was: see record.py, which writes the file anew."""

import json
import re

import pytest
from golden.record import FILE, METHODS, REFUSALS, facts, quiet, refusal

GOLDEN = json.loads(FILE.read_text())
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
ACCOUNT = {"events", "epsilon", "key", "status", "noise_sd"}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_samples_and_accounts_are_those_of_the_file(name):
    """Bit for bit where versions, processor features and compiler flags are those of the file; elsewhere rounding differs,
    and with it what chains do, but no account does by more than rounding."""
    found, golden = quiet(METHODS[name]), GOLDEN["methods"][name]
    if facts() != GOLDEN["facts"]:
        found, golden = ({key: each[key] for key in ACCOUNT & set(golden)} for each in (found, golden))
        assert numbers_of(found) == pytest.approx(numbers_of(golden), rel=1e-12)
        found, golden = NUMBER.sub("", str(found)), NUMBER.sub("", str(golden))
    assert found == golden


def numbers_of(account):
    return [float(number) for number in NUMBER.findall(str(account))]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_say_what_they_said(name):
    assert quiet(lambda: refusal(REFUSALS[name])) == GOLDEN["refusals"][name]
