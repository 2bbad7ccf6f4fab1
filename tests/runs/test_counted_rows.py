"""Rows that do not inform a posterior: when they are reported, and in which words."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dpppl import Public, from_disk
from dpppl.findings.counted_rows import BIASED, SHARE, ClippedRows, CountedRows, stands_out
from dpppl.mcmc.measured import MeasuredChains
from dpppl.mcmc.verdict import IGNORED, MEAN, MOVING, READ, SHORT, ChainVerdict
from dpppl.model.arguments import Arguments
from dpppl.row_statistics.weights import Weights
from dpppl.svi.verdict import Convergence, ParameterConvergence


def counted(**shares):
    return CountedRows(**dict.fromkeys(("outside", "missing", "silent"), 0.0) | shares, codes=("site 'y': counts",))


@pytest.mark.slow
def test_right_runs_are_doubted_at_most_once_in_1000():
    """Three counts of 0 with noise alone, a million runs: 1 in 10,000 is expected; 3.2 sd would give 21."""
    noise = np.random.default_rng(0).standard_normal((1_000_000, 3))
    for std in (0.004, 0.038, 0.5):
        rate = np.mean([any(stands_out(share, std) for share in std * row) for row in noise[:200_000]])
        assert rate < 1e-3
    assert np.mean(np.any(noise > 4.0, axis=1)) < 2e-4 and np.mean(np.any(noise > 3.2, axis=1)) > 1e-3


def test_each_kind_is_reported_from_one_percent_on():
    assert SHARE == 0.01
    lines = list(map(str, counted(outside=0.011, missing=0.02, silent=0.5, std=0.002).findings))
    assert [line.split(" of the rows ")[0] for line in lines] == ["1.1% ± 0.2%", "2.0% ± 0.2%", "50.0% ± 0.2%"]
    assert "outside the support: site 'y': counts." in lines[0] and "obs_mask=ok" in lines[1] and "mask" in lines[2]
    assert not counted(outside=0.0099, missing=0.0099, silent=0.0099, std=0.001).lines
    assert not counted(outside=0.03, missing=0.03, silent=0.03, std=0.01).lines
    assert len(counted(silent=0.5, std=0.01).refusals) == 0


def test_rows_that_are_ignored_name_how_their_argument_was_read():
    """A list and a column of text declare no type, and uint64 has numbers that JAX has not: by types alone, and no other argument."""
    folder = Path(tempfile.mkdtemp())
    (folder / "rows.csv").write_text("a;b\n1,5;2\n2,5;x\n")
    column, public = from_disk(folder / "rows.csv", "a", separator=";", decimal=","), Public(["a", "b"])
    model = lambda a, b, c, d, e: None  # noqa: E731
    given = (["x", 1.0], column, np.zeros(2, np.uint64), np.zeros(2), public)
    read = Arguments.of(model, given, {}).by_entry
    assert [words.split(": ")[0] for words in read] == [
        "argument 'a' is a list", "argument 'b' is a column of a text file", "argument 'c' is uint64",
    ]  # fmt: skip
    found = CountedRows(outside=0.0, missing=1.0, silent=0.0, std=0.01, codes=("site 'y': counts", *read)).findings
    (line,) = map(str, found)
    assert "overflow. Argument 'a' is a list: an entry that is not one number" in line and "site 'y'" not in line
    assert Weights("w", 1.0).code.startswith("argument 'w' holds weights: rows with a negative")


def chains(word, rows, **measured):
    """The verdict on elements of which two have this word."""
    found = MeasuredChains(step_size=0.1, excess={"w": 0.0}, counted=rows, **measured)
    return ChainVerdict(
        words={"w": np.array([word, word, READ], object)}, learned={"w": np.array([""] * 3, object)}, measured=found
    )


def descent(word, rows, num_iterates=100, **found):
    parameters = (ParameterConvergence(name="w_loc", verdict=word, slow_power=1.0, p_value=0.5),)
    return Convergence(verdict=word, parameters=parameters, num_iterates=num_iterates, counted=rows, **found)


OUTSIDE, ANY = {"outside": 0.33}, {"outside": None, "missing": 1.0}
CLIPPED = ClippedRows(share=0.9, error=0.01, num_rows=400)


FIRST = {  # a verdict, what was measured of the rows, what comes first, how many findings follow
    "short": (partial(chains, SHORT), OUTSIDE, "do not read: 33.0% ± 1.0% of the rows have responses outside", 1),
    "moving": (partial(chains, MOVING), ANY, "do not read: 100.0% ± 1.0% of the rows are ignored: they", 1),
    "mean": (partial(chains, MEAN), {"missing": 0.1}, "do not read: 10.0% ± 1.0% of the rows are ignored", 1),
    "clipped": (partial(chains, IGNORED, clipped=CLIPPED), OUTSIDE, "do not read: 33.0% ± 1.0% of the rows have", 0),
    "short, silent": (partial(chains, SHORT), {"silent": 0.9}, "do not read: 90.0% ± 1.0% of the rows have a grad", 1),
    "prior, silent": (partial(chains, "prior"), {"silent": 0.9}, "read with care: 90.0% ± 1.0% of the rows have a", 1),
    "short, few silent": (partial(chains, SHORT), {"silent": 0.2}, "do not read: too short: 2 of 3 (w[0], w[1])", 0),
    "read, silent": (partial(chains, READ), {"silent": 0.9}, "read: all elements have arrived", 0),
    "SVI moving": (partial(descent, "still moving"), OUTSIDE, "do not read: 33.0% ± 1.0% of the rows have resp", 1),
    "SVI prior": (partial(descent, "prior"), {"missing": 0.1}, "do not read: 10.0% ± 1.0% of the rows are ignored", 1),
    "SVI in part": (partial(descent, "hidden in part"), ANY, "do not read: 100.0% ± 1.0% of the rows are ignored", 1),
    "SVI clipped": (partial(descent, BIASED, clipped=CLIPPED), OUTSIDE, "do not read: 33.0% ± 1.0% of the rows", 1),
    "SVI few steps": (partial(descent, "too few steps to tell", num_iterates=9), ANY, "do not read: 100.0% ± 1.0%", 1),
    "SVI hidden": (
        partial(descent, "hidden by noise"),
        {"silent": 0.9},
        "do not read: 90.0% ± 1.0% of the rows have",
        1,
    ),
    "SVI ignored": (partial(descent, IGNORED), OUTSIDE, "do not read: 33.0% ± 1.0% of the rows have responses", 0),
    "SVI arrived, silent": (partial(descent, "arrived"), {"silent": 0.9}, "read: nothing moves beyond its noise", 0),
}


@pytest.mark.parametrize("name", FIRST)
def test_what_was_measured_of_the_rows_comes_first(name):
    """More rows or a larger epsilon cure no response outside the support, whatever else was found."""
    of, rows, first, more = FIRST[name]
    found = of(rows=counted(std=0.01, **rows))
    assert found.line().startswith(first) and found.line().endswith(f" ({more} more finding)") == bool(more)
    if "silent" not in rows:
        assert "of the rows" in found.refusals[0] and not any("of the rows" in line for line in found.refusals[1:])
        assert found.lines[0] == f"do not read: {found.refusals[0]}"
