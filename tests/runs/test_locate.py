"""What is charged before a run's steps, and when: the accesses of a frame and the histogram of norms, without programs."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_budget import DELTA, MECHANISM, most, spent, steps

import dpppl
from dpppl import PrivacyLedger
from dpppl.access.norm_histogram import histogram_mechanism
from dpppl.errors import BudgetExceededError, KeyReuseError
from dpppl.frame import locate
from dpppl.runs import histogram
from dpppl.runs.budget import Budget
from dpppl.runs.driver import RunPlan
from dpppl.runs.histogram import SHARE, Histogram, histogram_charge
from dpppl.runs.session import Run
from dpppl.subsampling import Poisson

STEPS, HISTOGRAM, FRAME = steps(20), steps(1, noise=60.0, is_query=True), steps(7, noise=80.0, is_frame=True)
ROWS = {"y": np.ones(5, np.float32)}


class First:
    """The first accesses of a run, whose programs note what was charged when they were called."""

    def __init__(self, monkeypatch, budget, key=None, fails=""):
        self.budget, self.fails, self.metrics, self.charged, self.proved = budget, fails, [], [], []
        self.run = Run(dpppl.secret_key() if key is None else key, "name")
        method = SimpleNamespace(mapped_chunk="chunk", num_steps=20)
        self.plan = RunPlan(
            what="a run", charges=[STEPS], rows=ROWS, public={}, print_cost=False, method=method, chain_groups=["start"],
            describe=str,
        )  # fmt: skip
        monkeypatch.setattr(locate, "prove", lambda *what, rows: self.proved.append(what))

    def looks(self, name):
        assert self.proved == [("chunk", self.plan.arguments)], "proved before anything is charged"
        if name == self.fails:
            raise KeyboardInterrupt
        kinds = {c.is_frame: c.num_steps for c in self.budget.charged}
        in_ledger = 0 if self.budget.ledger is None else sum(e.num_accesses for e in self.budget.ledger.events)
        self.charged.append((name, kinds.get(True, 0), kinds.get(False, 0), in_ledger))

    def histogram_in(self, metric):
        def counts():
            self.looks("histogram")
            return np.arange(3.0)

        def found(counts, num_rows):
            if self.fails == "choosing":
                raise KeyboardInterrupt
            return (counts.tolist(), num_rows, metric), "counted"

        self.metrics.append(metric)
        counts.digest = "p"
        return SimpleNamespace(charge=HISTOGRAM, scale=2.0, program=lambda *_: (counts, ()), found=found)

    def metric(self, before):
        for until in (3, 7):
            before(until)
            self.looks("frame")
        return "metric"

    def located(self, has_frame):
        locator = SimpleNamespace(charge=FRAME, programs={}, metric=self.metric) if has_frame else None
        return locate.locate(self.run, self.plan, self.budget, self.histogram_in, locator)


@pytest.mark.parametrize("has_frame", [True, False])
def test_each_access_is_charged_before_it_is_made(monkeypatch, tmp_path, has_frame):
    """In one session, whose steps cost what was planned."""
    ledger = PrivacyLedger(tmp_path / "ledger", 2.0, DELTA, full_batch_only=True)
    budget = Budget(1.0, DELTA, ledger=ledger)
    made = First(monkeypatch, budget)
    with made.located(has_frame) as (opened, found):
        frames = [("frame", 3, 0, 3), ("frame", 7, 0, 7)] if has_frame else []
        assert made.charged == [*frames, ("histogram", 7, 1, 8) if has_frame else ("histogram", 0, 1, 1)]
        assert made.metrics == [None, "metric"][: 1 + has_frame]
        metric = made.metrics[-1]
        assert (found.metric, found.norms, found.scale, found.counted) == (
            metric, ([0.0, 1.0, 2.0], 5, metric), 2.0, "counted",
        )  # fmt: skip
        with pytest.raises(BudgetExceededError):  # the steps are reserved
            budget.account().admit([steps(most(1.0) - 20)])
        for other in ([steps(19)], [steps(20, noise=119.0)], [steps(20, chains=2)], [STEPS] * 4):
            with pytest.raises(AssertionError, match="cost more than was planned"):
                opened.last(other)
        opened.last([steps(20, noise=121.0)]).charge(0, 20)
        assert spent(budget) == [*([(7, 1)] if has_frame else []), (1, 1), (20, 1)]
    assert list(budget.runs) == ["name"] and len(budget.charged) == 2 + has_frame
    assert [(entry.what, entry.status) for entry in ledger.report().runs] == [("a run", "complete")]
    assert sum(e.num_accesses for e in ledger.events) == 21 + 7 * has_frame
    with pytest.raises(KeyReuseError), First(monkeypatch, budget, made.run.key).located(has_frame):
        pass
    assert len(budget.charged) == 2 + has_frame


@pytest.mark.parametrize(
    ("fails", "frames", "histograms"), [("frame", 3, 0), ("histogram", 7, 1), ("choosing", 7, 1), ("steps", 7, 1)]
)
def test_what_had_begun_stays_charged_and_the_rest_is_free(monkeypatch, fails, frames, histograms):
    """A failure after the histogram says that it was charged."""
    budget = Budget(1.0, DELTA)
    with pytest.raises(KeyboardInterrupt) as caught, First(monkeypatch, budget, fails=fails).located(True):
        raise KeyboardInterrupt
    assert [c.num_steps for c in budget.charged] == [frames, *[1] * histograms] and list(budget.runs) == ["name"]
    budget.account().admit([steps(most(1.0) - 30)])
    notes = getattr(caught.value, "__notes__", [])
    assert ["was charged before" in note for note in notes] == [True] * (fails in ("choosing", "steps"))


@pytest.mark.parametrize("epsilon", [0.05, 0.16])
def test_a_budget_that_does_not_pay_for_all_of_it_pays_for_none(monkeypatch, epsilon):
    """Of the second the histogram alone would be admitted. Its key is not used either."""
    budget = Budget(epsilon, DELTA)
    made = First(monkeypatch, budget)
    with pytest.raises(BudgetExceededError), made.located(True):
        pass
    assert not made.charged and not budget.runs
    with First(monkeypatch, Budget(1.0, DELTA), made.run.key).located(True):
        pass


def test_the_histogram_costs_its_share():
    """In mu^2; steps of few rows are counted as many of them are, by a central limit theorem."""
    found = histogram_charge(40.0, 500, MECHANISM)
    cost, steps_cost = found.noise_multipliers[0] ** -2.0, 500 / 40.0**2
    assert cost / (cost + steps_cost) == pytest.approx(SHARE) and found.is_query and not found.is_frame
    assert found.num_steps == 1 and found.neighboring_relation == "zero_out"
    assert found.mechanism == histogram_mechanism(False)
    few = histogram_charge(1.0, 500, replace(MECHANISM, subsampling=Poisson(0.01), discretise=True))
    cost = few.noise_multipliers[0] ** -2.0
    assert cost / (cost + 500 * 0.01**2 * np.expm1(1.0)) == pytest.approx(SHARE)
    assert few.mechanism == histogram_mechanism(True) and few.event.is_full_batch
    assert 0 < histogram_charge(1e-3, 1, few.mechanism).noise_multipliers[0] < 1e-1
    # what costs next to nothing gets a histogram that costs something, and what has next to no noise a number
    assert histogram_charge(1e9, 1, MECHANISM).noise_multipliers[0] == pytest.approx(99.0**0.5 * 1e6)
    batches = replace(MECHANISM, subsampling=Poisson(0.01))
    noises = [histogram_charge(noise, 1, batches).noise_multipliers[0] for noise in (50.0**-0.5, 1e-3)]
    assert noises[0] == pytest.approx((99.0 * 1e4 / np.expm1(50.0)) ** 0.5) == noises[1]


def test_norms_are_measured_near_the_start_and_half_a_prior_sd_from_it():
    start, scales = {"w": np.arange(30, dtype=np.float32)}, {"w": np.tile([1.0, 2.0, 4.0], 10)}
    made = Histogram(None, start, scales, (), HISTOGRAM)
    at = made.at()
    assert made.scale == 2.0 and np.allclose(at["start"]["w"] - start["w"], 1e-4, rtol=1e-2)
    apart = np.asarray(at["far"]["w"]) - start["w"]
    assert np.allclose(np.abs(apart), 0.5 * scales["w"], rtol=1e-5) and np.allclose(apart[0], -apart[1])
    assert at["far"]["w"].dtype == np.float32 and {-1.0, 1.0} == set(np.sign(apart[0]).tolist())


@pytest.mark.parametrize("discretise", [False, True])
def test_the_program_of_the_histogram_takes_the_rows_for_private(monkeypatch, discretise):
    """The second of its arguments; its noise is that which is charged, discrete where the run's is."""
    given = {}
    monkeypatch.setattr(histogram, "noisy_histogram", lambda *places, **named: (places, named))
    monkeypatch.setattr(
        histogram, "prepare", lambda query, arguments, **named: given.update(named) or query(*arguments)
    )
    charge = histogram_charge(40.0, 500, replace(MECHANISM, discretise=discretise))
    made = Histogram("statistic", {"w": np.ones(2, np.float32)}, {"w": np.ones(2)}, (), charge)
    ((statistic, _, rows, public), named), arguments = made.program(dpppl.secret_key(), ROWS, {"n": 3})
    assert statistic == "statistic" and rows is ROWS and arguments[given["rows"]] is ROWS and public == {"n": 3}
    assert named["discretise"] is discretise and named["noise_multiplier"] == float(charge.noise_multipliers[0])
    assert given == {"rows": 1, "quickly": True} and named["key"] is arguments[3]
