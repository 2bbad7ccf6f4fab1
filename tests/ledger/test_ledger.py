"""A budget in a file: nothing is looked at without a charge, nothing is lost, whoever is killed and whenever."""

import bisect
import contextlib
import copy
import dataclasses
import errno
import json
import math
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from small_models import latent, seen

import dpppl
from dpppl import BudgetExceededError, ConfigurationError, LedgerError, PrivacyLedger, accounting
from dpppl.accounting import GaussianEvent, SelectionEvent, round_down
from dpppl.accounting.curves import gaussian_delta
from dpppl.ledger import append_only, book
from dpppl.ledger.book import PROCESS_GONE, is_gone, this_process
from dpppl.ledger.privacy_filter import PrivacyFilter

DELTA = 1e-5
BENCHMARK = Path(dpppl.__file__).parents[1] / "benchmarks" / "privacy" / "ledger.py"


def gaussian(steps, noise=50.0, **options):
    return [GaussianEvent(noise_multipliers=((noise, steps),), **options)]


def gaussian_event(noise):
    return gaussian(1, noise)


RELATIONS = ("zero_out", "add_or_remove_one", "replace_one")


def poisson(steps, noise=1.5, rate=0.01, **options):
    return gaussian(steps, noise, sampling_rate=rate, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger"


def full_batch_ledger(path, epsilon=1.0):
    """A budget with room for 179 steps of `gaussian` at epsilon 1."""
    return PrivacyLedger(path, epsilon, DELTA, full_batch_only=True)


ROOM = 179


def run(ledger, run_id, steps, event=gaussian):
    ledger.reserve(run_id, event(steps), "a test")
    ledger.charge(run_id, event(steps), 0, steps)
    ledger.release(run_id, "complete")


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# One process


def test_a_refusal_names_the_flag_that_would_have_room(path, tmp_path):
    """Full batches of nearly all of the budget; not where they are subsampled, where the flag is set, or where it would not help."""
    ledger, steps = PrivacyLedger(path, 1.0, DELTA), ROOM - 1
    with pytest.raises(
        BudgetExceededError, match=r"PrivacyLedger\(path, 1, 1e-05, full_batch_only=True\) keeps none: make it"
    ):
        ledger.reserve("run", gaussian(steps), "a test")
    run(full_batch_ledger(tmp_path / "made"), "run", steps)
    run(ledger, "small", 2)
    for named, events in (
        (r"keeps none\. For", gaussian(steps - 4)),
        (r"that fits\. For", gaussian(2 * steps)),
        (r"that fits\. For", poisson(10**6)),
    ):
        with pytest.raises(BudgetExceededError, match=named):
            ledger.reserve("run", events, "a test")
    with pytest.raises(BudgetExceededError, match=r"that fits\. For"):
        full_batch_ledger(tmp_path / "full").reserve("run", gaussian(ROOM + 1), "a test")


def test_the_budget_is_what_the_accountant_says(path):
    """Without subsampling the ledger admits exactly the runs whose total the exact Gaussian formula allows."""
    ledger = full_batch_ledger(path)
    assert accounting.epsilon(gaussian(ROOM), DELTA) <= 1.0 < accounting.epsilon(gaussian(ROOM + 1), DELTA)
    assert math.isclose(ledger.remaining(), 1.0, rel_tol=1e-6)
    run(ledger, "a", 100)
    assert ledger.admits(gaussian(ROOM - 100)) and not ledger.admits(gaussian(ROOM - 99))
    assert math.isclose(ledger.spent, accounting.epsilon(gaussian(100), DELTA))
    third = (ROOM - 100) // 3
    for size, fit in (
        (third, 3),
        (third + 1, 2),
        (ROOM - 99, 0),
        (1, 50),
    ):  # of 79 or 80 runs of one access 50 is the next step
        assert ledger.room(gaussian(size)) == (fit, ledger.remaining())
    whole = full_batch_ledger(path.with_name("whole"))
    assert whole.room() == (0, whole.remaining())
    for fit in (1, 2, 3, 5, 10, 20, 50, 100):
        assert whole.room(gaussian(ROOM // fit))[0] == fit
    # what remains is an epsilon at the same delta: mu^2 adds up, epsilon does not
    cost = lambda n: accounting.epsilon(gaussian(n, 1000.0), DELTA)  # noqa: E731
    largest = bisect.bisect_right(range(1, 10**6), ledger.remaining(), key=cost)
    assert ledger.admits(gaussian(largest, 1000.0)) and not ledger.admits(
        gaussian(largest + largest // 1000 + 1, 1000.0)
    )
    assert len(ledger.events) == 1 and ledger.charged_steps("a") == range(100) and not ledger.charged_steps("b")


def test_what_does_not_fit_is_refused_and_leaves_no_trace(path):
    ledger = full_batch_ledger(path)
    run(ledger, "a", 100)
    ledger.reserve("b", gaussian(50), "a test")
    before = path.read_bytes()
    with pytest.raises(
        BudgetExceededError, match=r"55\.\d % of it is spent, 83\.\d % with .* would be 10\d %.*nothing was charged"
    ):
        ledger.reserve("c", gaussian(40), "a test")
    assert path.read_bytes() == before
    ledger.charge("b", gaussian(10), 0, 10)
    ledger.release("b", "interrupted")
    ledger.reserve("c", gaussian(ROOM - 110), "a test")  # the 40 steps that were not charged are free again


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda ledger: ledger.charge("a", gaussian(19), 0, 20), "never less than before"),
        (lambda ledger: ledger.charge("a", gaussian(30), 0, 19), "never less than before"),
        (lambda ledger: ledger.charge("a", gaussian(30), 1, 30), "never less than before"),
        (lambda ledger: ledger.charge("a", gaussian(20, 60.0), 0, 20), "never less than before"),
        (lambda ledger: ledger.charge("a", gaussian(51), 0, 51), "reserve the whole run"),
        (lambda ledger: ledger.charge("a", gaussian(50, 40.0), 0, 50), "reserve the whole run"),
        (lambda ledger: ledger.charge("a", [], 0, 50), "at least one access"),
        (lambda ledger: ledger.charge("a", gaussian(30), 0, 0), "count is at least 1"),
        (lambda ledger: ledger.charge("b", gaussian(30), 0, 30), "reserve it first"),
        (lambda ledger: ledger.release("b"), "reserve it first"),
        (lambda ledger: ledger.reserve("a", gaussian(1), "again"), "running already"),
        (lambda ledger: ledger.reserve("", gaussian(1), "no name"), "has a name"),
        (lambda ledger: ledger.reserve("b", gaussian(1, neighboring_relation="replace_one"), ""), "relation"),
        (lambda ledger: ledger.reserve("b", gaussian(1, neighboring_relation="add_or_remove_one"), ""), "relation"),
        (lambda ledger: ledger.reserve("b", poisson(1), ""), "full_batch_only=True"),
        (lambda ledger: ledger.reserve("b", gaussian(1, discrete=True), ""), "full_batch_only=True"),
        (lambda ledger: ledger.reserve("b", gaussian(1, failure_probability=1e-20), ""), "full_batch_only=True"),
    ],
)  # fmt: skip
def test_a_call_that_contradicts_the_plan_is_refused(path, wrong, message):
    ledger = full_batch_ledger(path)
    ledger.reserve("a", gaussian(50), "a test")
    ledger.charge("a", gaussian(20), 0, 20)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=message):
        wrong(ledger)
    assert path.read_bytes() == before
    for until in (20, 50, 50):  # the same charge may be stated again
        ledger.charge("a", gaussian(until), 0, until)
    ledger.release("a", "complete")
    with pytest.raises(ConfigurationError, match=r"holds no reservation \(complete\)"):
        ledger.charge("a", gaussian(50), 0, 50)


def test_a_run_that_goes_on_is_not_charged_twice(path):
    ledger = full_batch_ledger(path)
    ledger.reserve("a", gaussian(ROOM), "a test")
    ledger.charge("a", gaussian(100), 0, 100)
    ledger.release("a", "interrupted")
    later = PrivacyLedger.open(path)
    assert later.charged_steps("a") == range(100)
    later.reserve("a", gaussian(ROOM), "goes on")
    later.charge("a", gaussian(ROOM), 0, ROOM)
    later.release("a", "complete")
    assert later.charged_steps("a") == range(ROOM) and not later.admits(gaussian(1))


def test_rounding_of_schedules_does_not_stop_a_run(path):
    """Noise multipliers are rounded to 64 values anew for each part of a run, which moves a part's cost by up to .3 %."""
    ledger = PrivacyLedger(path, 20.0, DELTA)
    schedule = 0.8 * (1 + np.arange(1000)) ** (1 / 6)

    def events(stop):
        return [GaussianEvent(noise_multipliers=round_down(schedule[:stop]), sampling_rate=0.01)]

    ledger.reserve("a", events(1000), "a schedule")
    for stop in (1, 65, 130, 500, 998, 999, 1000):
        ledger.charge("a", events(stop), 0, stop)
    assert ledger.events == tuple(events(1000))


def test_events_come_back_exactly(path):
    ledger = PrivacyLedger(path, 50.0, DELTA, neighboring_relation="replace_one")
    event = GaussianEvent(
        noise_multipliers=((1 / 3, 1), (math.nextafter(2.0, 3), 7)), batch_size=3, num_data=1000,
        neighboring_relation="replace_one", failure_probability=1e-300, sampling_rate=0.1 + 0.2,
    )  # fmt: skip
    ledger.reserve("a", [event], "a test")
    ledger.charge("a", [event], 0, 8)
    assert PrivacyLedger.open(path).events == (event,)


def test_numbers_of_numpys_and_lists_are_written_as_pythons(path):
    sizes = dict(batch_size=np.int64(3), num_data=np.int32(1000), neighboring_relation="replace_one")
    chosen = SelectionEvent(candidates=[gaussian(1)], mean=np.float32(3), shape=np.float64(1))
    odd = dict(sampling_rate=np.float32(0.25), failure_probability=np.float32(0), discrete=np.bool_(False))
    for number, event in enumerate(
        (GaussianEvent(noise_multipliers=[[np.float32(20), np.int64(2)]], **odd), chosen,
         GaussianEvent(noise_multipliers=((20.0, 2),), **sizes))
    ):  # fmt: skip
        at = path.with_name(f"{number}")
        PrivacyLedger(at, 50.0, DELTA, neighboring_relation=event.neighboring_relation).reserve("a", [event], "a test")
        ledger = PrivacyLedger.open(at)
        ledger.release("a")
        assert hash(event) and ledger.charged_steps("a") == range(0)


def test_a_ledger_has_one_head_by_whatever_name_it_is_reached(path):
    link, folder = path.with_name("link"), path.with_name("folder")
    link.symlink_to(path)  # to a file that is not there yet
    folder.symlink_to(path.parent)
    names = (PrivacyLedger(link, 3.0, DELTA), PrivacyLedger.open(path), PrivacyLedger.open(folder / "link"))
    for ledger, number in zip((*names, *names), "abcdef"):
        run(ledger, number, 1)
    assert sorted(each.name for each in path.parent.iterdir()) == ["folder", "ledger", "ledger.head", "link"]
    assert all(list(ledger.events) == gaussian(1) * 6 and ledger.path == str(path.resolve()) for ledger in names)


def test_another_budget_is_refused(path):
    PrivacyLedger(path, 1.0, DELTA, name="Adult")
    assert PrivacyLedger(path, 1.0, DELTA).name == "Adult"
    for options in ({"epsilon": 2.0}, {"delta": 1e-6}, {"neighboring_relation": "replace_one"}, {"full_batch_only": True},
                    {"name": "MNIST"}):  # fmt: skip
        with pytest.raises(ConfigurationError, match=f"was made with {next(iter(options))}="):
            PrivacyLedger(path, **{"epsilon": 1.0, "delta": DELTA, **options})
    with pytest.raises(ConfigurationError, match="no folder"):
        PrivacyLedger(path / "in" / "a file", 1.0, DELTA)
    for epsilon, delta in (
        (0.0, DELTA),
        (math.inf, DELTA),
        (math.nan, DELTA),
        (101.0, DELTA),
        (True, DELTA),
        (1.0, 0.0),
        (1.0, 1.0),
    ):
        with pytest.raises(ConfigurationError):
            PrivacyLedger(path.with_name("new"), epsilon, delta)
    assert [file.name for file in path.parent.iterdir()] == ["ledger"]


def test_the_report(path):
    ledger = PrivacyLedger(path, 3.0, DELTA, name="<Adult>")
    run(ledger, "first", 10)
    ledger.reserve("second", poisson(400), "SVI")
    ledger.charge("second", poisson(200), 0, 200)
    report = ledger.report()
    assert [(r.run_id, r.status, r.num_steps) for r in report.runs] == [
        ("first", "complete", 10),
        ("second", "running", 200),
    ]
    alone = [accounting.epsilon(poisson(steps), DELTA) for steps in (200, 400)]
    assert [report.runs[1].epsilon, report.runs[1].planned_epsilon] == alone
    assert (
        max(alone[0], report.runs[0].epsilon) < report.spent <= accounting.epsilon(gaussian(10) + poisson(200), DELTA)
    )
    assert 0 < report.used < 1 and report.remaining < 3.0 and report.epsilon == 3.0
    text = str(ledger)
    assert "(3, 1e-05)-differentially private for one row (add or remove one row, N public" in text
    assert "chosen after looking at the results" in text and "without this ledger" in text and "0-199" in text
    assert json.loads(json.dumps(report.to_dict()))["runs"][1]["what"] == "SVI"
    assert "&lt;Adult&gt;" in ledger._repr_html_() and report.statement in text


# The rule


def test_counts_are_those_of_the_accountants():
    """Renyi divergences against dpppl.accounting's, through the epsilon at one order; full batches are alpha mu^2 / 2."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    from dpppl.accounting import to_dp_event

    rule = PrivacyFilter.of(2.0, DELTA, "zero_out", False)
    orders = np.array([alpha for alpha, _ in rule.orders])
    assert np.all(orders == np.round(orders)), "discrete noise is counted at whole orders"
    for events in (
        poisson(500),
        poisson(3, 4.0, 0.3) + poisson(7),
        poisson(500, discrete=True),
        gaussian(9, discrete=True),
    ):
        cost = rule.cost(events)
        for alpha, divergence in zip(orders, cost[1:-1]):
            accountant = RdpAccountant([alpha], dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
            accountant.compose(to_dp_event(events))
            assert accountant.rdp[0] <= divergence <= accountant.rdp[0] * (1 + 1e-6) + 1e-9
    np.testing.assert_allclose(rule.cost(gaussian(9))[:-1], [9 / 2500, *(orders * 9 / 5000)], rtol=1e-9)
    replaced = PrivacyFilter.of(2.0, DELTA, "replace_one", False).cost(gaussian(9, neighboring_relation="replace_one"))
    np.testing.assert_allclose(replaced[:-1], 4 * rule.cost(gaussian(9))[:-1], rtol=1e-9)
    np.testing.assert_array_equal(
        PrivacyFilter.of(2.0, DELTA, "add_or_remove_one", False).cost(
            poisson(9, neighboring_relation="add_or_remove_one")
        ),
        rule.cost(poisson(9)),
    )


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_the_branches_share_delta(epsilon, delta):
    """Each branch at its bound is (epsilon, its part of delta)-DP, and the parts add up to delta: by a direct maximum of
    (1 - e^(epsilon - L)) / e^((alpha - 1) L) over losses L, not by the formula that the rule uses."""
    for full_batch_only in (False, True):
        rule = PrivacyFilter.of(epsilon, delta, "zero_out", full_batch_only)
        parts = [gaussian_delta(math.sqrt(rule.bounds[0]), epsilon)]
        for (alpha, _), bound in zip(rule.orders, rule.bounds[1:-1]):
            above = np.geomspace(1e-6, 700 / alpha, 200_000)  # L - epsilon
            parts.append(np.max(-np.expm1(-above) * np.exp((alpha - 1) * (bound - epsilon - above))))
        parts.append((1 + math.exp(epsilon)) * rule.bounds[-1])
        assert 0.999 * delta < sum(parts) <= delta
        assert len(rule.orders) <= 16 and any(alpha == round(alpha) for alpha, _ in rule.orders) != full_batch_only


@pytest.mark.parametrize("own", RELATIONS)
@pytest.mark.parametrize("other", RELATIONS)
def test_costs_under_other_relations_do_not_add_up(path, own, other):
    ledger = PrivacyLedger(path, 1.0, DELTA, neighboring_relation=own)
    if own == other:
        return ledger.reserve("a", gaussian(1, neighboring_relation=other), "a test")
    with pytest.raises(ConfigurationError, match="Keep a ledger for each"):
        ledger.reserve("a", gaussian(1, neighboring_relation=other), "a test")


def test_what_remains_after_subsampled_runs_is_what_their_orders_leave(path):
    ledger = PrivacyLedger(path, 1.0, DELTA)
    run(ledger, "a", 430, poisson)
    largest = ledger.remaining()

    def fits(epsilon):
        return ledger.admits(gaussian_event(accounting.calibrate_noise_multiplier(gaussian_event, epsilon, DELTA)))

    assert 0.2 < largest < 0.9 and fits(0.995 * largest) and not fits(1.005 * largest)


@pytest.mark.parametrize(
    ("event", "least"),
    [(gaussian, 0.94), (poisson, 0.84), (lambda n: poisson(n, 4.0, 0.05), 0.85)],
    ids=["full", "small", "large"],
)
def test_what_the_rule_loses_is_what_the_docstring_says(path, event, least):
    ledger = PrivacyLedger(path, 2.0, DELTA)
    steps = 1
    while ledger.admits(event(steps + max(1, steps // 100))):
        steps += max(1, steps // 100)
    assert least < accounting.epsilon(event(steps), DELTA) / 2.0 < 1.0


def test_mixed_runs_are_counted_by_one_rule(path):
    """Full batches alone use the Gaussian bound; once a run is subsampled, all must fit at one order."""
    ledger, rule = PrivacyLedger(path, 1.0, DELTA), PrivacyFilter.of(1.0, DELTA, "zero_out", False)
    by_orders = int(max(bound / (alpha / 5000) for (alpha, _), bound in zip(rule.orders, rule.bounds[1:])))
    by_gaussian = int(rule.bounds[0] * 2500)
    assert by_orders + 5 < by_gaussian
    run(ledger, "a", by_orders + 1)
    assert ledger.admits(gaussian(by_gaussian - by_orders - 1)) and not ledger.admits(poisson(1, 100.0))
    assert not ledger.admits(gaussian(by_gaussian - by_orders))


def test_failed_sampling_has_a_budget_of_its_own(path):
    ledger = PrivacyLedger(path, 1.0, DELTA)
    assert math.isclose((1 + math.e) * ledger.failure_allowance, DELTA / 100)
    run(ledger, "a", 1, lambda n: poisson(n, failure_probability=0.6 * ledger.failure_allowance))
    assert ledger.admits(poisson(1, failure_probability=0.3 * ledger.failure_allowance))
    with pytest.raises(BudgetExceededError):
        ledger.reserve("b", poisson(1, failure_probability=0.5 * ledger.failure_allowance), "a test")


def test_what_a_budget_counts_of_failures_and_of_discrete_noise():
    rule = PrivacyFilter.of(20.0, DELTA, "zero_out", False)
    assert [alpha for alpha, _ in rule.orders] == [2.4, 2.0]
    cost = rule.cost(poisson(5, discrete=True))  # has bounds at whole orders alone
    assert np.isinf(cost[:2]).all() and 0 < cost[2] < 1
    for share in (0.5, 2.0):
        total = rule.cost(poisson(1, 50.0, failure_probability=share * rule.failure_allowance))
        assert rule.used(total) == pytest.approx(share, rel=1e-6) and rule.admits(total) == (share < 1)
    assert 0 < rule.used(rule.cost(poisson(1, 50.0))) < 0.1
    alone = PrivacyFilter.of(20.0, DELTA, "zero_out", True)
    assert alone.used(alone.bounds) == 1.0 and alone.used(alone.nothing) == 0.0


@pytest.mark.parametrize(
    "options", [{}, {"sampling_rate": 0.1}, {"discrete": True}, {"sampling_rate": 0.1, "discrete": True}]
)
def test_an_access_without_noise_fits_no_budget(options):
    rule = PrivacyFilter.of(20.0, DELTA, "zero_out", False)
    assert np.isinf(rule.cost(gaussian(1, 0.0, **options))[:-1]).all()
    assert np.isinf(rule.cost(gaussian(1, 1.0) + gaussian(1, 0.0, **options))[:-1]).all()


def test_what_has_no_bound_is_refused(path):
    ledger = PrivacyLedger(path, 1.0, DELTA, neighboring_relation="replace_one")
    with pytest.raises(ConfigurationError, match="another combination"):
        ledger.reserve("a", poisson(1, neighboring_relation="replace_one"), "a test")
    with pytest.raises(BudgetExceededError, match="inf %"):
        ledger.reserve("a", gaussian(1, 0.0, neighboring_relation="replace_one"), "a test")
    with pytest.raises(ConfigurationError, match="another combination"):
        PrivacyLedger(path.with_name("b"), 1.0, DELTA).reserve("a", gaussian(1, batch_size=1, num_data=9), "a test")


# The file


def test_a_charge_is_on_the_disk_before_it_returns(path, monkeypatch):
    """Every byte written is followed by an fsync of that file before the call returns, and before the lock is given up."""
    import fcntl

    ledger, calls = full_batch_ledger(path), []
    ledger.reserve("a", gaussian(5), "a test")
    for module, name in ((os, "pwrite"), (os, "fsync"), (os, "replace"), (fcntl, "flock")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, name=name, real=real: (calls.append((name, a[1:])), real(*a))[1])
    ledger.charge("a", gaussian(5), 0, 5)
    names = [name if name != "flock" else ("lock", "unlock")[a == (fcntl.LOCK_UN,)] for name, a in calls]
    assert names == ["lock", "pwrite", "fsync", "fsync", "replace", "unlock"] and calls[0][1] == (fcntl.LOCK_EX,)


def no_room(number):
    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    return fails


def half_written(descriptor, data, offset, write=os.pwrite):
    """The first bytes find room, the next ones do not."""
    if len(data) > 60:
        return write(descriptor, data[:60], offset)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


FULL = {
    "in a line": ("pwrite", half_written),
    "before a line": ("pwrite", no_room(errno.ENOSPC)),
    "over a quota": ("pwrite", no_room(errno.EDQUOT)),
    "in fsync": ("fsync", no_room(errno.EIO)),
    "for the head": ("replace", no_room(errno.ENOSPC)),
    "to cut a line": ("ftruncate", no_room(errno.EROFS)),
}


@pytest.mark.parametrize("where", FULL)
def test_a_disk_that_is_full_charges_nothing_and_says_so(path, monkeypatch, where):
    """Neither the file nor its head is touched, for reservations, charges and releases; then the ledger goes on."""
    ledger, (name, fails) = full_batch_ledger(path), FULL[where]
    ledger.reserve("a", gaussian(5), "a test")
    before, head = path.read_bytes(), head_of(path).read_bytes()
    if where == "to cut a line":
        path.write_bytes(before + b"torn")
    held = path.read_bytes()
    for act in (
        lambda: ledger.charge("a", gaussian(5), 0, 5),
        lambda: ledger.reserve("b", gaussian(1), "another"),
        lambda: ledger.release("a"),
    ):
        with (
            monkeypatch.context() as patched,
            pytest.raises(LedgerError, match=r"cannot be written .*nothing was admitted"),
        ):
            patched.setattr(os, name, fails)
            act()
        assert path.read_bytes() == held and head_of(path).read_bytes() == head
        assert not ledger.charged_steps("a") and sorted(path.parent.iterdir()) == [path, head_of(path)]
    ledger.charge("a", gaussian(5), 0, 5)
    assert ledger.charged_steps("a") == range(5) and path.read_bytes().startswith(before) and len(lines(path)) == 3
    with monkeypatch.context() as patched, pytest.raises(ConfigurationError, match=r"cannot be made|cannot be written"):
        patched.setattr(os, "link", no_room(errno.ENOSPC))
        full_batch_ledger(path.with_name("new"))
    with monkeypatch.context() as patched, pytest.raises(LedgerError, match="cannot be locked or read"):
        patched.setattr(os, "pread", no_room(errno.EIO))
        PrivacyLedger.open(path)


@pytest.mark.slow
def test_a_run_on_a_full_disk_charges_no_access_and_makes_none(path, monkeypatch):
    """The object's budget and the ledger agree on what was charged, and a run that is over keeps its results."""
    ledger = dpppl.PrivacyLedger(path, 20.0, 1e-5)

    def model(y):
        seen(y, latent("mu"))

    def chain():
        kernel = dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=20.0)
        return dpppl.MCMC(kernel, num_warmup=0, num_samples=40, progress_bar=False, print_cost=False, ledger=ledger)

    mcmc, y, charge = chain(), np.ones(20, np.float32), PrivacyLedger.charge

    def third(self, *given):
        if given[2:] == (0, 6):
            monkeypatch.setattr(os, "pwrite", half_written)
        charge(self, *given)

    with monkeypatch.context() as patched, pytest.warns(UserWarning, match="is over, and holds what it reserved"):
        patched.setattr(PrivacyLedger, "charge", third)
        with pytest.raises(LedgerError, match="cannot be written"):
            mcmc.run(dpppl.secret_key(), y)
    monkeypatch.undo()
    assert [e.num_accesses for e in ledger.events] == [4] == [e.num_accesses for e in mcmc.budget.events]
    done, release = chain(), PrivacyLedger.release
    with monkeypatch.context() as patched, pytest.warns(UserWarning, match="is over, and holds what it reserved"):
        patched.setattr(PrivacyLedger, "release", lambda *a: (patched.setattr(os, "pwrite", half_written), release(*a)))
        done.run(dpppl.secret_key(), y)
    assert len(done.get_samples(allow_unconverged=True)["mu"]) == 40


def test_a_line_cut_off_anywhere_was_never_written(path):
    """For many lengths of what a crash may have left of the last line, also with zeros in place of unwritten bytes."""
    ledger = full_batch_ledger(path)
    ledger.reserve("a", gaussian(5), "a test")
    before, head = path.read_bytes(), head_of(path).read_bytes()
    ledger.charge("a", gaussian(5), 0, 5)
    after = path.read_bytes()
    head_of(path).write_bytes(head)  # which is replaced after the line
    for length in (*range(len(before), len(before) + 50), *range(len(after) - 50, len(after))):
        for rest in (b"", bytes(50)):
            path.write_bytes(after[:length] + rest)
            again = PrivacyLedger.open(path)
            assert (
                not again.charged_steps("a") and path.read_bytes() == after[:length] + rest
            )  # reading changes nothing
    again.charge("a", gaussian(4), 0, 4)
    assert [line["kind"] for line in lines(path)] == ["ledger", "reserve", "charge"]
    assert PrivacyLedger.open(path).charged_steps("a") == range(4)


def head_of(path):
    return path.with_name(path.name + ".head")


def test_a_line_without_its_head_counts(path):
    """A crash between the two: the charge stands, and so does it when there was no head yet."""
    ledger = full_batch_ledger(path)
    ledger.reserve("a", gaussian(5), "a test")
    first = head_of(path).read_bytes()
    head_of(path).unlink()
    assert PrivacyLedger.open(path).report().runs[0].status == "running"
    head_of(path).write_bytes(first)
    ledger.charge("a", gaussian(5), 0, 5)
    head_of(path).write_bytes(first)
    again = PrivacyLedger.open(path)
    assert again.charged_steps("a") == range(5)
    again.release("a")
    assert PrivacyLedger.open(path).charged_steps("a") == range(5) and len(lines(path)) == 4


def test_two_crashes_before_the_first_head(path, monkeypatch):
    """Each after a line was written and before its head was: both lines count, and the ledger goes on."""
    full_batch_ledger(path).reserve("a", gaussian(5), "a test")
    head_of(path).unlink()
    ledger, replace = PrivacyLedger.open(path), append_only._replace

    def crash(head, line):
        if b"charge" in line:
            raise KeyboardInterrupt
        replace(head, line)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(append_only, "_replace", crash)
        ledger.charge("a", gaussian(5), 0, 5)
    again = PrivacyLedger.open(path)
    assert again.charged_steps("a") == range(5)
    again.release("a")
    assert head_of(path).read_bytes() == path.read_bytes().splitlines(keepends=True)[-1]


def test_a_file_that_lost_its_end_is_refused(path):
    """The last lines removed were read as fewer charges; also an older copy put in its place, in a new process."""
    ledger = full_batch_ledger(path)
    ledger.reserve("a", gaussian(120), "a test")
    for steps in range(1, 101):
        ledger.charge("a", gaussian(steps), 0, steps)
    whole, head = path.read_bytes(), head_of(path).read_bytes()
    parts = whole.splitlines(keepends=True)
    assert head == parts[-1]
    for left in (1, 2, 3, 101):
        path.write_bytes(b"".join(parts[:left]))
        for call in (lambda: PrivacyLedger.open(path), lambda: full_batch_ledger(path)):
            with pytest.raises(LedgerError, match=r"lacks line 102, .* tail -n 1"):
                call()
    other = path.with_name("other")
    run(theirs := full_batch_ledger(other), "b", 50)
    while len(lines(other)) <= 102:
        run(theirs, str(len(lines(other))), 1)
    path.write_bytes(other.read_bytes())
    with pytest.raises(LedgerError, match="lacks line 102"):
        PrivacyLedger.open(path)
    path.write_bytes(whole)
    head_of(path).unlink()
    with pytest.raises(LedgerError, match="is missing, without which nobody sees"):
        PrivacyLedger.open(path)
    head_of(path).write_bytes(head[:-9])
    with pytest.raises(LedgerError, match="head is damaged"):
        ledger.remaining()
    head_of(path).write_bytes(head)  # what `tail -n 1` gives
    assert ledger.charged_steps("a") == range(100)


def test_a_ledger_of_the_version_without_heads_goes_on(path):
    """Its charges are read; what is written from now on cannot be cut off unseen."""
    rule = dataclasses.asdict(PrivacyFilter.of(1.0, DELTA, "zero_out", True))
    header = {"kind": "ledger", "version": 1, "created": "2025", "name": None, **rule}
    append_only.create(str(path), header)
    run(PrivacyLedger.open(path), "a", 20)
    head_of(path).unlink()
    ledger = PrivacyLedger.open(path)
    assert ledger.charged_steps("a") == range(20)
    run(ledger, "b", 20)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(LedgerError, match="lacks line 7"):
        PrivacyLedger.open(path)


def test_a_charge_with_a_little_more_noise_takes_nothing_back(path):
    """Within what rounding may move; a hundred of them had made .11 of .93."""
    ledger, noise = full_batch_ledger(path), 50.0
    ledger.reserve("a", gaussian(160, 50.0), "a test")
    ledger.charge("a", gaussian(160, noise), 0, 160)
    spent, left = ledger.spent, ledger.remaining()
    with pytest.raises(ConfigurationError, match="never less than before"):
        for _ in range(100):
            noise *= 1.004
            ledger.charge("a", gaussian(160, noise), 0, 160)
    for reader in (ledger, PrivacyLedger.open(path)):
        assert reader.spent == spent and reader.remaining() == left and reader.report().runs[0].epsilon == spent
    ledger.release("a")
    assert ledger.remaining() == left and 50.0 < noise < 51.0


def changed(data, number, change):
    parts = data.splitlines(keepends=True)
    return b"".join([*parts[:number], *change(parts[number]), *parts[number + 1 :]])


@pytest.mark.parametrize(
    ("number", "change", "named"),
    [
        (2, lambda line: [line.replace(b'"first":0', b'"first":9')], 3),
        (2, lambda line: [], 3),
        (2, lambda line: [line, line], 4),
        (2, lambda line: [line[:40] + b"\n"], 3),
        (4, lambda line: [line[:-2] + b" \n"], 5),
        (1, lambda line: [line.replace(b"50.0", b"51.0")], 2),
        (0, lambda line: [line.replace(b'"epsilon":1.0', b'"epsilon":9.0')], None),
    ],
    ids=["changed", "lost", "doubled", "cut", "the last one", "less noise", "another budget"],
)
def test_damage_names_the_line_and_admits_nothing(path, number, change, named):
    ledger = full_batch_ledger(path)
    ledger.reserve("a", gaussian(50), "a test")
    for steps in (10, 20, 30):
        ledger.charge("a", gaussian(steps), 0, steps)
    path.write_bytes(damaged := changed(path.read_bytes(), number, change))
    with pytest.raises(LedgerError, match=f"line {named} of .* is damaged" if named else "not a ledger"):
        full_batch_ledger(path)
    assert path.read_bytes() == damaged


def test_a_file_that_is_replaced_while_a_process_waits_for_it_is_opened_again(path, monkeypatch):
    ledger, stat, calls = full_batch_ledger(path), os.stat, []

    def gone_at_first(name):
        calls.append(name)
        if len(calls) == 1:
            raise FileNotFoundError
        return stat(name)

    monkeypatch.setattr(append_only.os, "stat", gone_at_first)
    monkeypatch.setattr(append_only.os.path, "isdir", lambda name: False)
    ledger.reserve("a", gaussian(1), "a test")
    assert len(calls) == 2 and len(lines(path)) == 2


def test_a_file_of_another_kind_or_of_a_later_version_is_refused(path):
    full_batch_ledger(path)
    header = {name: value for name, value in lines(path)[0].items() if name not in ("seq", "check")}
    for change, words in (
        ({"kind": "charge"}, "is not a ledger"), ({"version": 3}, "is a ledger of version 3; this dpppl reads up to 2"),
        ({"version": 0}, "of version 0"),
    ):  # fmt: skip
        other = path.with_name("-".join(change) + words[-1])
        append_only.create(str(other), header | change)
        with pytest.raises(LedgerError, match=words):
            PrivacyLedger.open(other)
    with pytest.raises(ConfigurationError, match="a ledger's epsilon is a number above 0"):
        PrivacyFilter.of(True, DELTA, "zero_out", True)


def test_a_record_of_a_kind_that_is_not_known_is_refused(path):
    ledger = full_batch_ledger(path)
    ledger.reserve("a", gaussian(1), "a test")
    with append_only.opened(str(path), append_only.Position(), write=True) as session:
        session.append({"kind": "zeal", "time": "now", "run": "a"})
    with pytest.raises(LedgerError, match="unknown kind, 'zeal'"):
        PrivacyLedger.open(path)


def test_two_that_make_a_ledger_at_once_share_it(path, monkeypatch):
    """The one that comes too late finds the file where it had seen none, and leaves no draft."""
    first = full_batch_ledger(path)
    run(first, "a", 10)
    exists, asked = os.path.exists, []

    def not_at_first(name):
        asked.append(name)
        return len(asked) > 1 and exists(name)

    with monkeypatch.context() as patch:
        patch.setattr(append_only.os.path, "exists", not_at_first)
        second = full_batch_ledger(path)
    assert second.charged_steps("a") == range(10) and len(asked) == 3
    assert sorted(path.parent.iterdir()) == [path, head_of(path)]


def test_a_file_that_is_gone_older_or_another_is_refused(path):
    ledger = full_batch_ledger(path)
    run(ledger, "a", 10)
    older = path.read_bytes()
    run(ledger, "b", 10)
    path.write_bytes(older)
    with pytest.raises(LedgerError, match="shorter than it was"):
        ledger.remaining()
    path.unlink()
    with pytest.raises(LedgerError, match="no ledger"):
        ledger.reserve("c", gaussian(1), "a test")
    with pytest.raises(LedgerError, match="only its head is left: restore it"):
        full_batch_ledger(path)
    head_of(path).unlink()
    other = full_batch_ledger(path)
    for steps in range(9):
        run(other, str(steps), 1)
    with pytest.raises(LedgerError, match="damaged, or does not follow"):
        ledger.remaining()
    head_of(path).unlink()
    path.write_text("")
    with pytest.raises(LedgerError, match="not a ledger"):
        full_batch_ledger(path)
    path.write_text('{"a": 1}\n')
    with pytest.raises(LedgerError, match="not a ledger"):
        full_batch_ledger(path)


def test_the_file_holds_plain_numbers(path):
    ledger = PrivacyLedger(path, 1.0, DELTA, name="Adult")
    run(ledger, "a", 1)
    keys = {key for line in lines(path) for key in line}
    assert keys == {
        "seq", "kind", "check", "version", "created", "name", "unit", "epsilon", "delta", "neighboring_relation", "gaussian_share",
        "orders", "failure_share", "time", "run", "what", "events", "owner", "first", "count", "status",
    }  # fmt: skip
    assert oct(path.stat().st_mode & 0o777) == oct(0o666 & ~current_umask()) and lines(path)[0]["version"] == 2


def current_umask():
    os.umask(mask := os.umask(0))
    return mask


# Several threads and processes


def test_objects_that_are_copied_share_the_budget(path):
    ledger = full_batch_ledger(path)
    others = [copy.copy(ledger), copy.deepcopy(ledger), pickle.loads(pickle.dumps(ledger)), PrivacyLedger.open(path)]
    for number, other in enumerate(others):
        run(other, str(number), 40)
    assert {round(other.remaining(), 12) for other in (ledger, *others)} == {round(ledger.remaining(), 12)}
    assert not ledger.admits(gaussian(ROOM - 159))


def test_threads_race_for_the_last_of_the_budget(path):
    """Sixteen threads, one object: as many are admitted as fit, never one more."""
    ledger, start, admitted = full_batch_ledger(path), threading.Barrier(16), []

    def attempt(name):
        start.wait()
        with contextlib.suppress(BudgetExceededError):
            run(ledger, name, 50)
            admitted.append(name)

    threads = [threading.Thread(target=attempt, args=(str(number),)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 3 and sum(event.num_accesses for event in ledger.events) == 150
    assert sorted(record["seq"] for record in lines(path)) == list(range(1 + 9))


@pytest.mark.parametrize(("locked", "number"), [(True, 1), (False, 2)])
def test_the_lock_is_held_from_reading_to_writing(path, monkeypatch, locked, number):
    """Two threads that decide at the same moment: one waits for the other, unless nothing is locked."""
    ledger, both, admitted, admit = full_batch_ledger(path), threading.Barrier(2), [], PrivacyLedger._admit

    def admit_together(*arguments):
        admit(*arguments)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)

    def attempt(name):
        with contextlib.suppress(BudgetExceededError, LedgerError):
            ledger.reserve(name, gaussian(100), "a test")
            admitted.append(name)

    monkeypatch.setattr(PrivacyLedger, "_admit", admit_together)
    if not locked:
        monkeypatch.setattr("fcntl.flock", lambda descriptor, operation: None)
        monkeypatch.setattr(append_only, "_replace", lambda *_: None)
    threads = [threading.Thread(target=attempt, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == number


CHILD = f"""
import sys, types
sys.modules["dpppl"] = types.ModuleType("dpppl")  # without JAX, which a ledger does not need
sys.modules["dpppl"].__path__ = [{str(Path(dpppl.__file__).parent)!r}]
from dpppl.accounting import GaussianEvent
from dpppl.errors import DPPPLError
from dpppl.ledger.privacy_ledger import PrivacyLedger
assert "jax" not in sys.modules
ledger = PrivacyLedger.open(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    call, name, *steps = line.split()
    events = [GaussianEvent(noise_multipliers=((50.0, int(steps[-1])),))] if steps else None
    arguments = dict(reserve=(events, "a test"), charge=(events, 0, *map(int, steps)), release=())[call]
    try:
        getattr(ledger, call)(name, *arguments)
        print("done", flush=True)
    except DPPPLError as error:
        print(type(error).__name__, flush=True)
"""
"""A process that does what it is told, line by line."""


def children(path, number):
    started = [
        subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdin=-1, stdout=-1, text=True)
        for _ in range(number)
    ]
    assert all(child.stdout.readline() == "ready\n" for child in started)
    return started


def tell(child, *words):
    print(*words, file=child.stdin, flush=True)


def answer(child):
    return child.stdout.readline().strip()


def test_processes_share_a_budget_until_they_die(path):
    ledger = full_batch_ledger(path)
    first, second = children(path, 2)
    with first, second:
        for number in range(30):  # a race for the last of the budget: one is admitted, and one only
            for child in (first, second):
                tell(child, "reserve", f"{child.pid}.{number}", 100)
            answers = [answer(child) for child in (first, second)]
            assert sorted(answers) == ["BudgetExceededError", "done"]
            winner = (first, second)[answers.index("done")]
            tell(winner, "release", f"{winner.pid}.{number}")
            assert answer(winner) == "done"
        tell(first, "reserve", "x", 100), tell(first, "charge", "x", 30)
        assert (answer(first), answer(first)) == ("done", "done")
        with pytest.raises(ConfigurationError, match=f"belongs to process {first.pid}"):
            ledger.charge("x", gaussian(40), 0, 40)
        with pytest.raises(ConfigurationError, match=f"running already, in process {first.pid}"):
            ledger.reserve("x", gaussian(100), "a test")
        assert not ledger.admits(gaussian(100)) and ledger.report().runs[-1].status == "running"
        first.kill()  # SIGKILL; it is a zombie until this process asks for its end
        while Path(f"/proc/{first.pid}/stat").read_text().split(")")[1].split()[0] != "Z":
            pass
        assert ledger.report().runs[-1].status == PROCESS_GONE and ledger.admits(gaussian(ROOM - 30))
        tell(second, "reserve", "y", ROOM - 100)
        assert (
            answer(second) == "done"
            and [r["status"] for r in lines(path) if r["kind"] == "release"][-1] == PROCESS_GONE
        )
        ledger.reserve("x", gaussian(100), "goes on")
        ledger.charge("x", gaussian(60), 0, 60)
        assert ledger.charged_steps("x") == range(60) and not ledger.admits(gaussian(1))
        second.kill()


def test_a_copy_within_the_process_gives_up_no_lock(path):
    """Locks that belong to a process are dropped when any of its threads closes the file: a charge would be lost."""
    ledger, admit = full_batch_ledger(path), PrivacyLedger._admit
    [other] = children(path, 1)

    def admit_while_others_copy_and_ask(*arguments):
        admit(*arguments)
        path.read_bytes()
        tell(other, "reserve", "b", 100)
        assert not select.select([other.stdout], [], [], 0.3)[0]

    with other, pytest.MonkeyPatch.context() as patched:
        patched.setattr(PrivacyLedger, "_admit", admit_while_others_copy_and_ask)
        try:
            ledger.reserve("a", gaussian(100), "a test")
            assert answer(other) == "BudgetExceededError"
        finally:
            other.kill()


def test_a_process_that_was_only_thought_dead_is_stopped_not_overspent(path, monkeypatch):
    ledger = full_batch_ledger(path)
    ledger.reserve("a", gaussian(100), "a test")
    with monkeypatch.context() as patch:
        patch.setattr("dpppl.ledger.book.is_gone", lambda owner: True)
        run(PrivacyLedger.open(path), "b", ROOM)
    with pytest.raises(ConfigurationError, match=f"holds no reservation .{PROCESS_GONE}"):
        ledger.charge("a", gaussian(1), 0, 1)
    with pytest.raises(BudgetExceededError):
        ledger.reserve("a", gaussian(1), "goes on")


def test_a_charge_that_costs_more_than_was_reserved_needs_room_of_its_own(path):
    """Rounding may move a charge by 1 % above its reservation, which is refused where others hold the rest."""
    ledger = full_batch_ledger(path)
    ledger.reserve("a", gaussian(100), "a test")
    ledger.reserve("b", gaussian(ROOM - 100), "a test")
    ledger.charge("a", gaussian(99, 49.8), 0, 99)
    before = path.read_bytes()
    with pytest.raises(BudgetExceededError, match="no room for this charge"):
        ledger.charge("a", gaussian(100, 49.8), 0, 100)
    assert path.read_bytes() == before
    ledger.release("b")
    ledger.charge("a", gaussian(100, 49.8), 0, 100)
    assert len(lines(path)) == 1 + 2 + 3


def test_a_run_is_charged_by_the_process_that_holds_it(path, monkeypatch):
    ledger = full_batch_ledger(path)
    ledger.reserve("a", gaussian(100), "a test")
    with monkeypatch.context() as patch:
        other = dataclasses.replace(this_process(), pid=os.getppid(), started="")
        patch.setattr("dpppl.ledger.privacy_ledger.this_process", lambda: other)
        with pytest.raises(ConfigurationError, match="belongs to process"):
            PrivacyLedger.open(path).charge("a", gaussian(1), 0, 1)
    with pytest.raises(ConfigurationError, match="numbered from 0"):
        ledger.charge("a", gaussian(2), -1, 2)
    assert not ledger.events
    ledger.charge("a", gaussian(1), 0, 1)


def test_the_reservation_of_another_machine_counts_until_it_is_released(path, monkeypatch):
    ledger = full_batch_ledger(path)
    with monkeypatch.context() as patch:
        elsewhere = dataclasses.replace(this_process(), host="elsewhere", boot="another")
        patch.setattr("dpppl.ledger.privacy_ledger.this_process", lambda: elsewhere)
        ledger.reserve("a", gaussian(100), "a test")
        ledger.charge("a", gaussian(10), 0, 10)
    with pytest.raises(ConfigurationError, match=r"on elsewhere.*call release"):
        ledger.reserve("a", gaussian(100), "goes on")
    assert not ledger.admits(gaussian(100))
    ledger.release("a", "its machine is off")
    assert ledger.admits(gaussian(ROOM - 10)) and ledger.charged_steps("a") == range(10)


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({}, False),
        ({"host": "its name before it moved"}, False),
        ({"started": "1"}, True),
        ({"boot": "before the last start"}, True),
        ({"boot": "another", "host": "elsewhere"}, False),
        ({"namespace": "another container's", "started": "1"}, False),
        ({"pid": 2**30}, True),
        ({"boot": "", "started": "", "namespace": ""}, True),
    ],
)
def test_which_processes_are_gone(changes, gone):
    assert is_gone(dataclasses.replace(this_process(), **changes)) == gone


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux")
def test_a_later_process_of_the_same_number_is_another_one():
    """It has another start, in ticks of a hundredth of a second."""
    time.sleep(0.02)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        (own, since), (_, later) = (book._stat(pid) for pid in (os.getpid(), child.pid))
        child.communicate(b"\n")
    assert own in "RS" and 0 < int(since) < int(later)


def test_without_proc_a_process_counts_while_its_number_is_taken(monkeypatch):
    """Outside Linux; and where others' processes may not be seen or signalled."""
    monkeypatch.setattr("dpppl.ledger.book._stat", lambda pid: ("", ""))
    monkeypatch.setattr("dpppl.ledger.book._boot", lambda: "")
    monkeypatch.setattr("dpppl.ledger.book._namespace", lambda: "")
    here = this_process()
    assert not is_gone(here) and is_gone(dataclasses.replace(here, pid=2**30))
    assert not is_gone(dataclasses.replace(here, pid=2**30, host="elsewhere"))

    def others(pid, signal):
        raise PermissionError

    monkeypatch.setattr(os, "kill", others)
    assert not is_gone(here)


def test_reading_needs_no_permission_to_write_and_sees_whole_lines(path, monkeypatch):
    ledger, done = full_batch_ledger(path), threading.Event()
    ledger.reserve("a", gaussian(ROOM), "a test")
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: write(descriptor, data[:5], offset))  # slowly

    def charge():
        for steps in range(1, 60):
            ledger.charge("a", gaussian(steps), 0, steps)
        done.set()

    (writer := threading.Thread(target=charge)).start()
    real, flags, seen = os.open, set(), []
    monkeypatch.setattr(
        os, "open", lambda name, flag, *mode: (flags.add((threading.get_ident(), flag)), real(name, flag, *mode))[1]
    )
    while not done.is_set():
        seen.append(PrivacyLedger.open(path).charged_steps("a").stop)
    writer.join()
    assert seen == sorted(seen) and len(set(seen)) > 5 and (threading.get_ident(), os.O_RDWR) not in flags


@pytest.mark.slow
def test_kills_at_random_moments():
    """Thirty SIGKILLs among processes that share a ledger; and the comparison finds workers that are wrong."""
    command = [sys.executable, str(BENCHMARK), "--kills", "30", "--kills-a-round", "15", "--faults"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    right, *faulty = map(json.loads, result.stdout.splitlines())
    assert right["wrong"] == [] and right["kills"] == 30 and right["records"]["charge"] > 5
    assert [bool(line["wrong"]) for line in faulty] == [True] * 3
    assert "was looked at" in faulty[0]["wrong"][0]
