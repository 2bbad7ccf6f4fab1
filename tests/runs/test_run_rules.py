"""Rules of runs, each by itself: without data on disk, without several processes or devices, and with next to no program."""

import contextlib
import inspect
import io
import math
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpppl
from dpppl.data.disk import OnDisk
from dpppl.data.rows import Rows
from dpppl.errors import ConfigurationError, KeyReuseError
from dpppl.ledger.follower import FollowedLedger
from dpppl.report.provenance import Start, Status
from dpppl.runs import (
    announcement,
    driver,
    duration,
    placing,
    private_scale,
    private_score,
    processes,
    progress,
    single_steps,
    watching,
)
from dpppl.runs import query as query_room
from dpppl.runs.budget import Budget
from dpppl.runs.processes import ProcessGroup
from dpppl.runs.query import Query, query_charge
from dpppl.runs.session import Request, Run, session

SPLIT = SimpleNamespace(
    log_likelihood=lambda z, row, public: jnp.sum(z["a"]) * row + jnp.sum(z["b"]),
    latents={"a": np.zeros(3), "b": np.zeros(2)}, row=np.zeros(()), arguments=SimpleNamespace(public=None),
)  # fmt: skip


def lasts(moves=("b",), **responses):
    given = dict(is_binary=False, is_shared=False, num_draws=7, supports=None) | responses
    return duration.Duration.of(SPLIT, 1e9, SimpleNamespace(**given), moves)


def test_how_long_a_run_takes_by_its_responses_and_latents():
    without = duration.Duration.of(SPLIT, 1e9)
    assert without.chains == 0.0 and lasts().chains == pytest.approx(3.0 + 1e-3 * 5**2 + 1e-3 * 2**3)
    assert lasts(moves=()).chains == pytest.approx(3.0 + 1e-3 * 5**2)
    ratios = [lasts(**given).accesses / without.accesses for given in ({}, {"is_binary": True}, {"is_shared": True})]
    listed = lasts(supports={"y": np.arange(4), "x": np.arange(3)}).accesses / without.accesses
    assert [*ratios, listed] == pytest.approx([7.0, 1.0, 1.0, 12.0])


@pytest.mark.parametrize(
    "seconds, rows", [([0.2, 0.2, 9.0], 20), ([0.0] * 64 + [9.0], 640), ([0.1, 0.0], 20)], ids=["slow", "many", "all"]
)
def test_blocks_are_read_until_it_is_known_how_long_that_takes(seconds, rows, monkeypatch):
    times = iter(seconds)
    monkeypatch.setattr(announcement, "_timed", lambda act: next(times))
    total = 20 if rows == 20 and len(seconds) == 2 else 1_000
    found = announcement._block_time(SimpleNamespace(at_once=10, num_rows=total))
    assert found == pytest.approx(sum(seconds[: rows // 10]) / rows)


@dataclass(frozen=True)
class Disk(OnDisk):
    """Every second scheme draws 50 rows at once."""

    row_bytes = 7e9

    def drawn_by(self, scheme):
        return scheme


def charge(scheme, num_steps, chains):
    return SimpleNamespace(num_steps=num_steps, chains=chains, mechanism=SimpleNamespace(subsampling=scheme))


def test_what_a_run_reads_from_disk_is_said(monkeypatch):
    monkeypatch.setattr(announcement, "reading", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(announcement, "_block_time", lambda _: 0.01)
    monkeypatch.setattr(announcement, "_timed", lambda act: 2.0)
    rows = Rows({}, Disk(num_rows=1_000, sources=()))
    line = announcement.reading_line(rows, [charge(None, 3, 2), charge(50.2, 4, 2), charge(50.2, 1, 3)])
    assert line.startswith(
        "It will read 3 full passes and 11 batches of about 50 rows of 1,000 rows, 24.9 TB in all: 32 s of reading"
    )
    assert "read 1 full pass of" in announcement.reading_line(rows, [charge(None, 1, 5)])
    assert "read 2 batches of" in announcement.reading_line(rows, [charge(50.2, 1, 2)])
    more = Rows({}, Disk(num_rows=10**12, sources=()))
    assert " 7e+06 PB in all" in announcement.reading_line(more, [charge(None, 1, 1)])  # the largest unit


def test_the_first_process_alone_prints_the_cost(monkeypatch, capsys):
    report = SimpleNamespace(delta_warning=lambda: None)
    monkeypatch.setattr(announcement.messages, "leads", lambda: False)
    announcement.announce(report, (), [], True)
    assert capsys.readouterr().out == ""


def test_digests_are_of_structure_type_and_value():
    key, trees = jax.random.key(0), []
    for data in (
        key,
        jax.random.key(1),
        np.asarray(jax.random.key_data(key), np.int64),
        np.ones(2),
        np.ones((2, 1)),
        [1.0, 1.0],
    ):
        trees.append({"a": data, "b": "word", "c": b"bytes"})
    trees += [
        {"a": key, "b": "words", "c": b"bytes"},
        {"a": key, "b": "word", "c": b"byte"},
        {"x": key, "b": "word", "c": b"bytes"},
    ]
    assert len({processes.digest(tree) for tree in trees}) == len(trees)
    assert processes.digest(trees[0]) == processes.digest(dict(trees[0], a=jax.random.key(0)))


def test_processes_agree_or_are_told_in_what_they_differ(monkeypatch):
    group = ProcessGroup(True, SimpleNamespace(ledger=None))
    for changes, words in (
        ({}, None),
        ({"program": "b"}, "and 2 differ in: program."),
        ({"a_b": "c"}, "and 2 differ in: a b."),
    ):
        monkeypatch.setattr(processes.messages, "exchange", lambda _, mine, c=changes: [mine, dict(mine), mine | c])
        with pytest.raises(ConfigurationError, match=words) if words else contextlib.nullcontext():
            group.agree(jax.random.key(0), "a", a_b=1.0)
    for number, many in ((1, False), (2, True)):
        monkeypatch.setattr(processes, "devices_of", lambda _, n=number: SimpleNamespace(processes=n))
        assert ProcessGroup.of({}, None).many == many


def test_a_process_follows_what_the_first_has_spent(monkeypatch):
    ledger = FollowedLedger("", None, "row", 1.0, 1e-5, "zero_out", 0.0, spent=0.25)
    asked = []

    def enter(what, act, spent):
        asked.append((what, spent()))
        return act(), 0.75

    monkeypatch.setattr(processes.messages, "enter", enter)
    assert ProcessGroup(True, SimpleNamespace(ledger=ledger)).enter("charge", lambda: "made") == "made"
    assert asked == [("charge", 0.25)] and ledger.spent == 0.75
    assert ProcessGroup(True, SimpleNamespace(ledger=None)).enter("charge", lambda: 3) == 3 and asked[1][1] is None


def test_rows_that_are_sharded_are_given_as_such(monkeypatch):
    """All else of a program's arguments and results is on every device."""
    monkeypatch.setattr(placing, "_placement", lambda _: SimpleNamespace(of_rows="rows", of_others="others"))
    monkeypatch.setattr(placing, "Lowered", lambda *given, **options: (given, options))
    arguments = [1.0, 2.0], Rows({"x": 3.0, "y": 4.0}, None), 5.0
    (_, leaves, quickly, shardings), options = placing.lowered("closed", arguments, True)
    assert leaves == [1.0, 2.0, 3.0, 4.0, 5.0] and quickly and options == {"kept": True}
    assert shardings == {"in_shardings": ("others", "others", "rows", "rows", "others"), "out_shardings": "others"}


def test_the_digest_of_sharded_rows_is_that_of_their_number_on_one_device(monkeypatch):
    placement = SimpleNamespace(num_rows=3)
    monkeypatch.setattr(placing, "_placement", lambda _: placement)
    monkeypatch.setattr(placing, "Lowered", lambda program, leaves, devices: SimpleNamespace(digest=leaves[0].shape))
    rows = Rows({"x": np.zeros((8, 2), np.float32)}, placement)
    found = placing.program_digest(SimpleNamespace(digest="of all"), lambda rows: rows["x"], (rows,))
    assert found == (3, 2)
    monkeypatch.setattr(placing, "_placement", lambda _: None)
    assert placing.program_digest(SimpleNamespace(digest="of all"), None, (rows,)) == "of all"


def test_results_leave_the_devices_of_sharded_rows(monkeypatch):
    stand_in = SimpleNamespace(device_get=lambda tree: ("host", tree), device_put=lambda tree: ("one", tree))
    monkeypatch.setattr(placing, "jax", stand_in)
    assert placing.on_one("states", {}) == "states"
    monkeypatch.setattr(placing, "devices_of", lambda _: "devices")
    assert placing.on_one("states", {}) == ("one", ("host", "states"))


def test_processes_agree_on_what_a_session_shares(monkeypatch):
    agreed = []
    monkeypatch.setattr(ProcessGroup, "agree", lambda self, key, program, **shared: agreed.append((program, shared)))
    request = Request(what="a run", charges=[], rows={}, program="digest", shared={"settings": 3}, print_cost=False)
    with session(Run(dpppl.secret_key(), "run"), request, Budget(target_delta=1e-5)):
        assert agreed == [("digest", {"settings": 3})]


def test_steps_of_a_key_are_taken_once_and_in_order():
    key = dpppl.secret_key()
    assert single_steps.begin(key).source.name == "ENTROPY"
    for step in (0, 1, 5):
        single_steps.take(key, step)
        with pytest.raises(KeyReuseError, match="updated before"):
            single_steps.take(key, step)
    with pytest.raises(KeyReuseError, match="another process"):
        single_steps.take(dpppl.secret_key(), 0)
    with pytest.raises(ConfigurationError, match="2\\^31"):
        single_steps.take(key, 2**31 - 1)
    single_steps.take(key, 2**31 - 2)


def test_a_bar_says_how_many_accesses_there_are_and_is_closed(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.bar_for(31, visible=True) as bar:
        inner = bar._bar
        assert "0/31" in stream.getvalue() and not inner.disable
    assert inner.disable


def test_a_query_without_a_noise_multiplier_takes_what_the_budget_leaves():
    query = Query(statistic=None, bound=2.0, rows={}, public={}, what="a query")
    account = SimpleNamespace(calibrate=lambda charge_at: charge_at(3.0).noise_multipliers[0] + 4.0)
    budget = SimpleNamespace(account=lambda: account)
    assert [float(query_charge(query, budget, given).noise_multipliers[0]) for given in (None, 2.5)] == [7.0, 2.5]


def test_the_spread_of_scores_is_raised_by_the_noise_of_their_squares(monkeypatch):
    """Of four rows between 0 and 8: squares are released in units of half the range, at half of the mean's length."""
    monkeypatch.setattr(
        private_score, "noisy_query", lambda query, charge, key, budget: 4.0 * np.array([1.0, 0.5, 0.0])
    )
    found = dpppl.private_score(
        dpppl.secret_key(),
        lambda y: y,
        np.ones(4, np.float32),
        bounds=(0.0, 8.0),
        noise_multiplier=1.0,
        measure_spread=True,
    )
    noise_sd = 4.0 * math.hypot(1.0, 0.5) / 4
    assert found.mean == 5.0 and found.sampling_sd == pytest.approx(math.sqrt((3.0 + noise_sd * 8.0) / 4))


def test_the_processes_of_a_query_agree_on_its_noise_and_public_arrays(monkeypatch):
    requests = []

    def opened(run, request, budget):
        requests.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr(query_room, "session", opened)
    monkeypatch.setattr(query_room, "prepare", lambda program, arguments, rows: SimpleNamespace(digest="digest"))
    query = Query(statistic=None, bound=2.0, rows={}, public={"w": 1.0}, what="a query")
    with pytest.raises(KeyboardInterrupt):
        query_room.noisy_query(query, query.charge(3.0), dpppl.secret_key(), Budget(target_delta=1e-5))
    (request,) = requests
    assert request.shared == {"settings": np.array([3.0]), "public_arrays": {"w": 1.0}} and request.program == "digest"


def test_a_report_says_where_runs_have_started_and_not_where_one_would():
    runner = dpppl.MCMC(
        dpppl.DPSGLD(lambda y: None, clipping_norm=1.0, noise_multiplier=1.0), num_warmup=0, num_samples=1
    )
    assert runner.privacy_report().provenance.starts == (runner._first_start,)
    runner._provenance = runner._provenance.and_now(Status.COMPLETE, start=Start.SUPPLIED)
    assert runner.privacy_report().provenance.starts == (Start.SUPPLIED,) != (runner._first_start,)


def test_programs_are_watched_inside_alone():
    with watching.watched_by("a tape"):
        assert watching.watcher() == "a tape"
    assert watching.watcher() is None


def test_a_method_s_own_settings_stand_in_its_signature():
    class Mine(dpppl.MCMC):
        pass

    assert list(vars(Mine)["__signature__"].parameters) == list(inspect.signature(dpppl.MCMC).parameters)
    assert "target_epsilon" in vars(Mine)["__signature__"].parameters


def test_records_of_a_chunk_are_last_values_and_means():
    """Ten steps, the first three discarded, each record of three: a last one of a single step is its mean."""
    method = driver.Method(
        step=lambda state, rows, public: (state + 1.0, state + 1.0), num_steps=10, length=10, last=lambda state: state,
        mean=lambda state: state, discarded=3, thinning=3,
    )  # fmt: skip
    state, (last, means) = jax.jit(method.chunk)(jnp.zeros(()), None, None, jnp.int32(0), jnp.int32(10))
    places = method.filled(0, 10)
    assert state == 10.0 and places.tolist() == [0, 1, 2] and method.filled(0, 3).tolist() == []
    assert last[places].tolist() == [6.0, 9.0, 10.0] and np.allclose(means[places], [5.0, 8.0, 10.0])
    assert method.filled(6, 3).tolist() == [0] and method.filled(9, 1).tolist() == [0]


def test_groups_of_chains_start_at_their_own_states():
    states, charges = [np.float32(3.0), np.float32(5.0)], []
    method = SimpleNamespace(mapping=None, num_steps=2, length=1, filled=lambda start, count: np.arange(1))
    plan = SimpleNamespace(method=method, chain_groups=states, rows=None, public=None, describe=str)
    bar = SimpleNamespace(unpause=lambda: None, set_description=lambda *_, **__: None, update=lambda _: None)
    opened = SimpleNamespace(charge=lambda *given: charges.append(given))
    program = lambda state, rows, public, start, count: (state + 1.0, np.reshape(state, 1))  # noqa: E731
    found = driver._chunks(plan, program, opened, None, bar)
    assert charges == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [(float(state), kept.tolist()) for state, kept in found] == [(5.0, [3.0, 4.0]), (7.0, [5.0, 6.0])]


@pytest.fixture(scope="module")
def exact():
    """The three accesses of a scale without noise: (values, rows) -> ask."""

    def of(x):
        sums = jax.jit(lambda state: jnp.sum(jax.vmap(lambda row: private_scale._statistic(state, row))(x), axis=0))

        def ask(kind, centre=None, bound=None):
            known = {
                "centre": np.zeros(1) if centre is None else centre,
                "bound": np.ones(1) if bound is None else bound,
            }
            return np.asarray(sums({name: jnp.float32(v) for name, v in known.items()} | {"kind": jnp.int32(kind)}))

        return ask

    return of


def test_a_scale_is_the_root_mean_square_around_the_mean(exact):
    """Within a quarter; and a sum that noise has moved beyond all rows is the bound."""
    x = np.random.default_rng(0).normal(500.0, 200.0, (4_000, 1)).astype(np.float32)
    ask, budget = exact(x), SimpleNamespace(events=())
    found = private_scale._found(ask, 1e-3, len(x), budget)
    assert found.location[0] == pytest.approx(500.0, rel=0.05) and found.scale[0] == pytest.approx(200.0, rel=0.25)
    bounds = []

    def beyond(kind, **known):
        bounds.append(known.get("bound"))
        return -3.0 * len(x) * np.ones((1, private_scale.SIZE)) if kind == private_scale._SUM else ask(kind, **known)

    assert private_scale._found(beyond, 1e-3, len(x), budget).location[0] == -bounds[1][0]
    with pytest.raises(ConfigurationError, match="one array of private rows"):
        dpppl.private_scale(dpppl.secret_key(), {"a": x, "b": x}, noise_multiplier=math.e)
