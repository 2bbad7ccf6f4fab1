"""The account of one object, without a run: host-side numbers only."""

import bisect
import copy
import pickle
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dpppl import PrivacyLedger, accounting
from dpppl.access.clipping import Flat
from dpppl.access.mechanism import Mechanism
from dpppl.accounting.selection import SelectionEvent
from dpppl.errors import BudgetExceededError, ConfigurationError, KeyReuseError, PrivacyWarning
from dpppl.runs.budget import Budget, Charge, events_of, steps_of_state
from dpppl.subsampling import FullBatch, Poisson

MECHANISM = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
DELTA = 1e-5


def steps(count, noise=120.0, **options):
    return Charge(MECHANISM, np.full(count, noise), **options)


def cost(*charges):
    return accounting.epsilon(events_of(charges), DELTA)


def most(epsilon):
    """The steps that epsilon pays for, exactly."""
    return bisect.bisect_right(range(1, 10_000), epsilon, key=lambda count: cost(steps(count)))


ROOM = most(1.0)


def spent(budget):
    return [(charge.num_steps, charge.chains) for charge in budget.charged]


def test_a_target_is_met_to_the_last_step():
    budget = Budget(1.0, DELTA)
    budget.account().admit([steps(ROOM)])
    with pytest.raises(
        BudgetExceededError, match=r"epsilon 0 of 1 is spent or reserved and this would bring it to 1 at"
    ):
        budget.account().admit([steps(ROOM + 1)])
    with pytest.raises(BudgetExceededError):
        budget.account().admit([steps(ROOM // 2), steps(ROOM - ROOM // 2 + 1, noise=119.99)])
    budget.account().admit([steps(ROOM // 2)], share=0.8)
    Budget(cost(steps(10)), DELTA).account().admit([steps(10)])  # all of it
    with pytest.raises(BudgetExceededError):
        budget.account().admit([steps(ROOM)], share=0.8)
    assert not budget.charged and "epsilon 0 of 1 spent" in repr(budget)


def test_what_is_reserved_is_not_free():
    """Before it is charged, and once a part of it is; what did not run is free again in the end."""
    budget = Budget(1.0, DELTA)
    with budget.reserve_for([steps(ROOM - 10)], "a test") as reservation:
        for begun in (0, 7, ROOM - 10):
            if begun:
                reservation.charge(0, begun)
            budget.account().admit([steps(10)])
            with pytest.raises(BudgetExceededError, match="nothing was charged"):
                budget.account().admit([steps(11)])
            with pytest.raises(BudgetExceededError):
                budget.reserve_for([steps(11)], "another")
            assert spent(budget) == ([(begun, 1)] if begun else []) and len(budget.runs) == 1
    with budget.reserve_for([steps(10)], "a test") as reservation:
        reservation.charge(0, 4)
    assert spent(budget) == [(ROOM - 10, 1), (4, 1)]
    budget.account().admit([steps(6)])
    with pytest.raises(BudgetExceededError):
        budget.account().admit([steps(7)])


def test_a_run_that_did_not_begin_leaves_nothing():
    budget = Budget(1.0, DELTA)
    with pytest.raises(KeyboardInterrupt), budget.reserve_for([steps(ROOM)], "a test"):
        raise KeyboardInterrupt
    assert not budget.runs and not budget.charged
    budget.account().admit([steps(ROOM)])


def test_a_run_that_goes_on_replaces_what_it_was_charged():
    budget = Budget(1.0, DELTA)
    with budget.reserve_for([steps(ROOM)], "a test", "name") as first:
        first.charge(0, 10)
    with pytest.raises(BudgetExceededError):
        budget.account().admit([steps(ROOM)])
    budget.account("name").admit([steps(ROOM)])
    with budget.reserve_for([steps(ROOM)], "a test", "name") as again:
        again.charge(0, 10)
        assert spent(budget) == [(10, 1)]
        again.charge(0, 12)
        again.charge(0, 11)  # a chunk that is run again
        assert spent(budget) == [(12, 1)]
    with pytest.raises(AssertionError):
        again.charge(0, 13)
    with pytest.raises(BudgetExceededError):
        budget.reserve_for([steps(ROOM + 1)], "a test", "name")
    assert spent(budget) == [(12, 1)]


def test_no_more_is_charged_than_was_planned():
    budget = Budget(1.0, DELTA)
    with budget.reserve_for([steps(3), steps(2, noise=700.0)], "a test") as reservation:
        reservation.charge(1, 2)
        assert [charge.noise_multipliers.tolist() for charge in budget.charged] == [[700.0] * 2]
        reservation.charge(0, 1)
        with pytest.raises(AssertionError):
            reservation.charge(0, 4)
        assert spent(budget) == [(1, 1), (2, 1)]


def test_a_ledger_knows_of_each_step_before_it_begins(tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger", 2.0, DELTA, full_batch_only=True)
    budget, room = Budget(1.0, DELTA, ledger=ledger), most(2.0)
    with budget.reserve_for([steps(10), steps(5, chains=2)], "a test", "name") as reservation:
        assert ledger.admits(events_of([steps(room - 20)])) and not ledger.admits(events_of([steps(room - 19)]))
        for number, until, charged in ((0, 4, 4), (1, 5, 14), (0, 10, 20)):
            reservation.charge(number, until)
            assert sum(event.num_accesses for event in ledger.events) == charged
            assert ledger.spent == pytest.approx(cost(*budget.charged), rel=1e-9)
    assert ledger.charged_steps("name") == range(15)
    (entry,) = ledger.report().runs
    assert (entry.what, entry.status) == ("a test", "complete")
    with pytest.raises(BudgetExceededError), budget.reserve_for([steps(room)], "too much"):
        pass
    other = Budget(ledger=ledger)
    with pytest.raises(KeyboardInterrupt), other.reserve_for([steps(30)], "another", "other") as reservation:
        reservation.charge(0, 2)
        raise KeyboardInterrupt
    assert [entry.status for entry in ledger.report().runs] == ["complete", "interrupted"]
    assert ledger.admits(events_of([steps(room - 22)])) and not ledger.admits(events_of([steps(room - 21)]))
    with pytest.raises(BudgetExceededError):
        other.reserve_for([steps(room)], "no room")
    assert list(other.runs) == ["other"]


def test_the_ledgers_copy_of_a_chunk_that_was_cut_off_is_charged_once(tmp_path):
    """It charged ten steps; the checkpoint knows of five. The chunk runs again, then the next."""
    ledger = PrivacyLedger(tmp_path / "ledger", 2.0, DELTA, full_batch_only=True)
    with Budget(ledger=ledger).reserve_for([steps(20)], "a test", "name") as reservation:
        reservation.charge(0, 10)
    before, budget = (tmp_path / "ledger").read_text(), Budget(ledger=ledger)
    with budget.reserve_for([steps(20)], "a test", "name") as reservation:
        added = (tmp_path / "ledger").read_text().removeprefix(before)
        reservation.charge(0, 5)
        reservation.charge(0, 10)
        assert (tmp_path / "ledger").read_text() == before + added and spent(budget) == [(10, 1)]
        reservation.charge(0, 11)
        assert ledger.charged_steps("name") == range(11)


def test_single_steps_are_one_run_of_as_many_chains(tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger", 2.0, DELTA, full_batch_only=True)
    for budget in (Budget(1.0, DELTA), Budget(1.0, DELTA, ledger=ledger)):
        claims = []
        for count in (1, 2, 3):
            budget.charge_one(steps(1), "steps", "key", partial(claims.append, None))
            assert spent(budget) == [(1, count)] and len(claims) == count

        def refuses():
            raise KeyReuseError("used")

        with pytest.raises(KeyReuseError):
            budget.charge_one(steps(1), "steps", "key", refuses)
        assert spent(budget) == [(1, 3)]
        with pytest.raises(BudgetExceededError):
            budget.charge_one(steps(1, noise=0.1), "steps", "other", partial(claims.append, None))
        assert spent(budget) == [(1, 3)] and len(claims) == 3
    assert sum(event.num_accesses for event in ledger.events) == 3 and ledger.charged_steps("key") == range(3)
    assert {entry.status for entry in ledger.report().runs} == {"complete"}
    there = Budget(1.0, DELTA, ledger=ledger)
    with pytest.raises(KeyReuseError, match="the ledger counts other steps"):
        there.charge_one(steps(1), "steps", "key", partial(claims.append, None))
    assert len(claims) == 3 and ledger.charged_steps("key") == range(3)


def test_charges_that_differ_in_chains_are_one_event():
    alike = events_of([steps(3, chains=2), steps(3, chains=5), steps(0)])
    assert len(alike) == 1 and alike[0].num_accesses == 21
    apart = [
        steps(3), steps(3, noise=121.0), steps(3, neighboring_relation="add_or_remove_one"),
        replace(steps(3), mechanism=replace(MECHANISM, subsampling=Poisson(0.5))),
    ]  # fmt: skip
    assert len(events_of(apart)) == 4 == len(set(events_of(apart)))
    assert {event.neighboring_relation for event in events_of(apart)} == {"zero_out", "add_or_remove_one"}
    selection = SelectionEvent(candidates=((steps(3).event,),), mean=5.0, shape=1.0)
    assert events_of([steps(3), steps(1, selection=selection)]) == (steps(3).event, selection)
    assert steps(5, first=3).begun(2).num_steps == 2 and steps(5).is_steps
    assert not steps(5, is_query=True).is_steps and not steps(5, is_frame=True).is_steps
    assert steps_of_state(1) == 1
    with pytest.raises(ConfigurationError, match="counts no step"):
        steps_of_state(0)


def test_noise_is_calibrated_to_what_is_left():
    budget = Budget(1.0, DELTA, reserve=0.25)
    at = lambda sigma: steps(100, noise=sigma)  # noqa: E731
    noise = budget.account().calibrate(at)
    assert 0.749 < cost(at(noise)) <= 0.75
    assert (
        0.999
        < cost(replace(at(budget.account().calibrate(lambda s: replace(at(s), is_query=True))), is_query=True))
        <= 1.0
    )
    assert budget.account().calibrate(lambda sigma: [steps(1, noise=30.0, is_query=True), at(sigma)]) > noise
    with budget.reserve_for([at(1.5 * noise)], "a test", "name"):
        assert budget.account().calibrate(at) > noise == budget.account("name").calibrate(at)
    with budget.reserve_for([at(noise)], "a test", "name") as reservation:
        reservation.charge(0, 100)
    with pytest.raises(BudgetExceededError, match=r"epsilon 0\.7.* of 1 \(25% of it kept for queries\) is spent"):
        budget.account().calibrate(at)
    assert budget.account("name").calibrate(at) == noise
    left = budget.account().calibrate(lambda sigma: replace(at(sigma), is_query=True))
    assert 0.999 < cost(at(noise), at(left)) <= 1.0


def test_overflow_takes_little_of_delta(tmp_path):
    """Of the smaller of target's and ledger's allowances, over all steps."""
    poisson = Mechanism(clipping=Flat(1.0), subsampling=Poisson(0.01))
    default = poisson.subsampling.overflow_probability
    assert Budget().affordable(poisson, 100) == poisson and Budget(1.0, 0.5).affordable(MECHANISM, 100) == MECHANISM
    target = 1e-5 / (1 + np.e)
    found = Budget(1.0, DELTA).affordable(poisson, 100).subsampling.overflow_probability
    assert found == pytest.approx(min(1e-9, 1e-3 * target / 300)) and found <= max(default, 1e-9)
    ledger = PrivacyLedger(tmp_path / "ledger", 1.0, 1e-7)
    found = Budget(1.0, DELTA, ledger=ledger).affordable(poisson, 100).subsampling.overflow_probability
    assert found == pytest.approx(1e-3 * ledger.failure_allowance / 300)
    assert Budget(1.0, 0.5).affordable(poisson, 1).subsampling.overflow_probability == 1e-9
    assert Budget(1.0, 1e-300).affordable(poisson, 9).subsampling.overflow_probability >= 1e-300


def test_copies_hold_no_reservation_and_are_named():
    budget = Budget(1.0, DELTA)
    with budget.reserve_for([steps(ROOM)], "a test") as reservation:
        reservation.charge(0, 3)
        for copied in (copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))):
            with pytest.warns(PrivacyWarning, match="by pickle or deepcopy"):
                other = copied(budget)
            assert spent(other) == [(3, 1)] and other.lock is not budget.lock
            other.account().admit([steps(ROOM - 3)])
        with pytest.raises(BudgetExceededError):
            budget.account().admit([steps(1)])
        reservation.charge(0, ROOM)
    copy.deepcopy(budget)  # nothing is left: no warning
    copy.deepcopy(Budget())


def test_a_fork_is_told_once_of_its_budget(monkeypatch):
    budget = Budget(1.0, DELTA)
    budget.reserve_for([], "a test")
    monkeypatch.setattr("dpppl.runs.budget.os.getpid", lambda: -1)
    with pytest.warns(PrivacyWarning, match="by a fork"):
        budget.reserve_for([], "a test")
    budget.reserve_for([], "a test")


def test_threads_that_ask_at_once_get_what_there_is():
    budget, outcomes, gate = Budget(1.0, DELTA), [], threading.Barrier(8)

    def ask():
        gate.wait()
        try:
            budget.reserve_for([steps(ROOM // 3)], "a test")
            outcomes.append("admitted")
        except BudgetExceededError:
            outcomes.append("refused")

    threads = [threading.Thread(target=ask) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(outcomes) == ["admitted"] * 3 + ["refused"] * 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"reserve": 0.5}, "reserve is a share of target_epsilon"),
        ({"target_epsilon": 1.0, "target_delta": DELTA, "reserve": 1.0}, r"in \[0, 1\)"),
        ({"target_epsilon": 1.0, "target_delta": DELTA, "reserve": -0.1}, r"in \[0, 1\)"),
        ({"target_epsilon": 1.0, "target_delta": DELTA, "reserve": "a half"}, r"in \[0, 1\)"),
        ({"target_epsilon": 1.0}, "target_delta"),
        ({"ledger": 1}, "path of one"),
        ({"ledger": "nowhere"}, "there is no ledger"),
    ],
)
def test_settings_that_are_none_are_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        Budget(**settings)
