"""Rows that do not inform a posterior: when they are reported, and in which words."""

import numpy as np

from dpppl.report.counted_rows import SHARE, CountedRows, stands_out


def counted(**shares):
    return CountedRows(**dict.fromkeys(("outside", "missing", "silent"), 0.0) | shares, codes=("site 'y': counts",))


def test_right_runs_are_doubted_at_most_once_in_1000():
    """Three counts of 0 with noise alone, a million runs: 1 in 10,000 is expected; 3.2 sd would give 21."""
    noise = np.random.default_rng(0).standard_normal((1_000_000, 3))
    for std in (0.004, 0.038, 0.5):
        rate = np.mean([any(stands_out(share, std) for share in std * row) for row in noise[:200_000]])
        assert rate < 1e-3
    assert np.mean(np.any(noise > 4.0, axis=1)) < 2e-4 and np.mean(np.any(noise > 3.2, axis=1)) > 1e-3


def test_each_kind_is_reported_from_one_percent_on():
    assert SHARE == 0.01
    lines = counted(outside=0.011, missing=0.02, silent=0.5, std=0.002).lines
    assert [line.split(" of the rows ")[0] for line in lines] == ["1.1% ± 0.2%", "2.0% ± 0.2%", "50.0% ± 0.2%"]
    assert "outside the support: site 'y': counts." in lines[0] and "drop these rows" in lines[1] and "mask" in lines[2]
    assert not counted(outside=0.0099, missing=0.0099, silent=0.0099, std=0.001).lines
    assert not counted(outside=0.03, missing=0.03, silent=0.03, std=0.01).lines
    assert len(counted(silent=0.5, std=0.01).refusals) == 0
