"""The order of what a session does before it looks at data, without programs."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from test_budget import DELTA, most, spent, steps

import dpppl
from dpppl.errors import BudgetExceededError, KeyReuseError
from dpppl.report.provenance import KeySource
from dpppl.runs import session as room
from dpppl.runs.budget import Budget, Charge
from dpppl.runs.checkpoint import Checkpoint
from dpppl.runs.session import Request, Run, session

ROWS = {"y": np.ones(5, np.float32)}


@pytest.fixture
def told(monkeypatch):
    """What was announced, and the reading lines that were asked for."""
    found = SimpleNamespace(announced=[], read=[])
    monkeypatch.setattr(room, "announce", lambda *arguments: found.announced.append(arguments))
    monkeypatch.setattr(room, "reading_line", lambda rows, costs: found.read.append(list(costs)) or "a line")
    return found


def asked(*charges, **options):
    return Request(what="a run", charges=charges, rows=ROWS, duration="a second", notes=["a note"], **options)


def test_what_is_announced(told):
    """What other runs of the object were charged, and not what this one was; once."""
    budget, reports, origins = Budget(target_delta=DELTA), iter(["first", "second", None]), []

    def begin(charges, origin):
        assert isinstance(charges[0], Charge)
        origins.append(origin.source)
        return next(reports)

    with session(Run(dpppl.secret_key(), "m"), asked(steps(3), steps(7), begin=begin), budget) as opened:
        opened.charge(0, 2)
        assert spent(budget) == [(2, 1)]
        opened.last([steps(7)]).charge(0, 1)
        assert spent(budget) == [(2, 1), (1, 1)]
    assert told.announced == [("first", (), ["a note"], True, ["a line", "a second"])]
    assert [[charge.num_steps for charge in costs] for costs in told.read] == [[3, 7]]
    with session(Run(dpppl.secret_key(), "a"), asked(steps(4), begin=begin, print_cost=False), budget):
        pass
    report, before, _, print_cost, times = told.announced[1]
    assert (report, print_cost, times) == ("second", False, [None, "a second"]) and len(told.read) == 1
    assert sorted(event.num_accesses for event in before) == [1, 2]
    with session(Run(dpppl.secret_key(), "z"), asked(steps(4), begin=begin), budget):
        pass  # a run that has no report says nothing
    assert len(told.announced) == 2 and set(origins) == {KeySource.ENTROPY} and len(origins) == 3


def test_a_run_that_is_resumed_does_not_count_itself_as_before(told):
    budget = Budget(target_delta=DELTA)
    for name in ("b", "a", "c"):
        with session(Run(dpppl.secret_key(), name), asked(steps(1)), budget) as opened:
            opened.charge(0, 1)
    with session(Run(dpppl.secret_key(), "b"), asked(steps(9), begin=lambda *_: "again"), budget):
        pass
    ((_, before, *_),) = told.announced
    assert sum(event.num_accesses for event in before) == 2


def test_a_refusal_leaves_everything_as_it_was(told, claimed):
    budget, key, begun = Budget(1.0, DELTA), dpppl.secret_key(), []
    begin = lambda charges, origin: begun.append(origin)  # noqa: E731
    request = asked(steps(most(1.0) + 1), begin=begin)
    with pytest.raises(BudgetExceededError), session(Run(key, "a"), request, budget):
        begun.append("inside")
    with pytest.raises(BudgetExceededError), session(Run(key, "a"), asked(steps(2), steps(most(1.0) - 1)), budget):
        begun.append("inside")
    assert not budget.runs and not begun and not claimed and not told.announced
    with session(Run(key, "a"), asked(steps(1)), budget):
        pass
    with pytest.raises(KeyReuseError), session(Run(key, "b"), asked(steps(1), begin=begin), budget):
        begun.append("inside")
    assert not budget.runs and not begun
    with session(Run(key, "b", SimpleNamespace(resumed=True)), asked(steps(1)), budget):
        pass  # it goes on under its key
    assert Run(key, "b", SimpleNamespace(resumed=False)).goes_on is False


def test_a_run_opens_the_key_of_its_checkpoint(tmp_path, claimed):
    path, key = tmp_path / "run.ckpt", dpppl.secret_key()
    alone, new = Run.opened(key), Run.opened(key, Checkpoint(path))
    assert alone.checkpoint is None and alone.key is key and alone.run_id != new.run_id and len(new.run_id) == 32
    new.checkpoint.hold(new.key, new.run_id, "digest", ())
    new.checkpoint.write([])
    again = Run.opened(dpppl.secret_key(), Checkpoint(path))
    assert again.goes_on and again.run_id == new.run_id and not new.goes_on and not alone.goes_on
    np.testing.assert_array_equal(jax.random.key_data(again.key), jax.random.key_data(key))
    again.forget()
    alone.forget()
    assert not path.exists() and not Run.opened(key, Checkpoint(path)).goes_on
