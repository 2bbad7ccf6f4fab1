"""Persons with several rows, as docs/repeated-rows.md writes them: private posteriors compared with those without privacy."""

import numpy as np
import pytest
from pages import DOCS, cells

PAGE = (DOCS / "repeated-rows.md").read_text()
BLOCKS = cells(PAGE)


def episodes():
    """The page's persons and spells."""
    found = {}
    for block in BLOCKS[:3]:
        exec(block, found)
    return found["persons"], found["spells"]


def test_episodes_hold_each_persons_follow_up_once():
    """Lengths of a person's spells add up to the time until the event or the end; one spell at most has the event."""
    persons, spells = episodes()
    by_person = spells.groupby("person")
    assert np.allclose(by_person["time"].sum().to_numpy(), persons["stop"])
    events = (~spells["censored"]).groupby(spells["person"]).sum().to_numpy()
    assert np.array_equal(events, persons["event"].to_numpy()) and by_person.size().max() == 2
    assert np.all(spells["time"] > 0) and np.all(spells["time"] <= spells["end"] + 1e-12)
    assert np.allclose(spells["time"][spells["censored"]], spells["end"][spells["censored"]])


@pytest.mark.slow
@pytest.mark.parametrize(("section", "rows"), [("Start-stop data", 2), ("Repeated measures", 2), ("Clusters", 3)])
def test_private_posteriors_agree_with_nuts(section, rows, capsys):
    """Means within 4 sds of both together, and sds of 0.7 to 3 times NUTS's, of every latent that the page compares."""
    own = PAGE[PAGE.index(f"## {section}") :].split("\n## ")[0]
    blocks = [block for block in BLOCKS[1:] if block in cells(own)]
    found = {}
    exec(BLOCKS[0], found)
    found["rng"] = np.random.default_rng(1)
    for block in blocks[:-1]:
        exec(block, found)
    *lines, last = blocks[-1].rstrip().split("\n")
    exec("\n".join([*lines, f"table = {last}"]), found)
    table = found["table"]
    assert capsys.readouterr().out.startswith("read") and len(table) == rows
    off = (table["private, mean"] - table["NUTS, mean"]) / np.hypot(table["private, sd"], table["NUTS, sd"])
    widths = table["private, sd"] / table["NUTS, sd"]
    assert np.all(np.abs(off) < 4.0) and np.all((widths > 0.7) & (widths < 3.0))
