"""Laws of NumPyro's that once failed raw, or after a charge: `benchmarks/errors/laws_grid.py` runs them all."""

from types import SimpleNamespace

import pytest

import dpppl
from benchmarks.errors import laws_grid
from benchmarks.errors.laws_grid import CHARGED, RAN, RAW, REFUSED
from dpppl.runs import placing

ONCE_FAILED = [
    (law, variant, method)
    for law, variant in (("Normal", "left"), ("BetaBinomial", "float arguments"), ("StudentT", "right"), ("Binomial", "float arguments"),
                         ("Levy", "interval"), ("DoublyTruncatedPowerLaw", "whole numbers"), ("HurdlePoisson", "integer arguments"))
    for method in laws_grid.METHODS
]  # fmt: skip


@pytest.fixture
def traced(monkeypatch):
    monkeypatch.setattr(placing, "lowered", placing.lowered)  # put back afterwards
    laws_grid.stop_when_traced()


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("case", ONCE_FAILED, ids=", ".join)
def test_laws_that_once_failed_come_to_their_programs(case, traced):
    assert laws_grid.judge(*case) == (RAN, laws_grid._TRACED)


@pytest.mark.parametrize("law", ["TruncatedPolyaGamma", "DiscreteUniform"])
def test_a_law_without_a_latent_is_refused(law, traced):
    kind, words = laws_grid.judge(law, "plain", "NoiseAware")
    assert kind == REFUSED and "no latent enters the likelihood" in words


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [("Normal", "left", "NoiseAware"), ("BetaBinomial", "float arguments", "NoiseAware")], ids=", ".join
)
def test_they_run_to_samples(case):
    assert laws_grid.judge(*case) == (RAN, "")


def test_the_grid_tells_what_comes_of_a_case(monkeypatch):
    def outcome(error=None, charged=(), samples=None):
        def run():
            if error is not None:
                raise error

        runner = SimpleNamespace(budget=SimpleNamespace(charged=charged))
        monkeypatch.setitem(laws_grid._RUNS, "SVI", lambda *_: (runner, run, lambda: None))
        monkeypatch.setattr(laws_grid, "_read", lambda _: samples)
        return laws_grid.judge("Normal", "plain", "SVI")[0]

    ours = dpppl.UnsupportedModelError("no")
    found = outcome(samples={"a": 1}), outcome(ours), outcome(KeyError("a")), outcome(ours, [1]), outcome(charged=[1])
    assert found == (RAN, REFUSED, RAW, CHARGED, CHARGED)


def test_cases_are_run_once(tmp_path, monkeypatch, capsys):
    """What the file holds is not run again, and what failed is told by the exit status."""
    path, judged = tmp_path / "grid.jsonl", []
    monkeypatch.setattr(laws_grid, "judge", lambda *case: judged.append(case) or (RAW, "KeyError: 'y'"))
    monkeypatch.setattr("sys.argv", ["laws_grid.py", "Normal", "--file", str(path), "--here", "--methods", "SVI"])
    assert laws_grid.main() == 0 and len(judged) == 12
    assert laws_grid.main() == 0 and len(judged) == 12
    monkeypatch.setattr("sys.argv", ["laws_grid.py", "Normal", "--file", str(path), "--methods", "SVI"])
    assert laws_grid.main() == 1 and "Normal, left, SVI: raw: KeyError: 'y'" in capsys.readouterr().out


def test_a_sample_takes_each_variant_and_method_in_turn():
    every = laws_grid.cases(laws_grid.LAWS)
    chosen = laws_grid.sampled(every, 60)
    assert len(every) == 1_944 and len(set(chosen)) == 60 and set(chosen) <= set(every)
    groups = {each[1:] for each in every}
    assert {each[1:] for each in chosen[: len(groups)]} == groups and chosen == laws_grid.sampled(every, 60)
