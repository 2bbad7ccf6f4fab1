"""One path for all that looks at data: the same cases run over chains, SVI, steps by hand and queries."""

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal
from patches import run_through
from small_models import normal_mean as model
from small_models import seen

import dpppl
from dpppl.errors import BudgetExceededError, CheckpointError, ConfigurationError, KeyReuseError, PrivacyWarning
from dpppl.runs import session
from dpppl.runs.budget import Budget
from dpppl.runs.checkpoint import Checkpoint
from dpppl.runs.query import Query

Y = np.random.default_rng(1).standard_normal(50).astype(np.float32)
TARGET = {"target_epsilon": 1.0, "target_delta": 1e-5}
STEPS = 40


@dataclass
class Way:
    """One way to look at data: an object, and how it is run for 40 steps (a query: for one)."""

    make: Any
    run: Any
    values: Any
    steps: int = STEPS

    def spent(self, thing):
        return sum(c.num_steps * c.chains for c in thing.budget.charged)


def mcmc_of(chains=1, **options):
    settings = {"clipping_norm": 3.0} | ({} if "target_epsilon" in options else {"step_size": 1e-3})
    return dpppl.MCMC(
        dpppl.DPSGLD(model, **settings), num_warmup=10, num_samples=30 // chains + 10 * (1 - chains) // chains,
        num_chains=chains, chain_method="sequential", progress_bar=False, **options,
    )  # fmt: skip


def svi_of(optim=None, **options):
    noise = {} if "target_epsilon" in options else {"noise_multiplier": 5.0}
    return dpppl.SVI(
        model,
        AutoNormal(model),
        optim or optax.adam(0.05),
        clipping_norm=3.0,
        subsampling=dpppl.FullBatch(),
        **noise,
        **options,
    )


def ask(svi, key):
    """A query; with a target it takes all that is left."""
    params = {"mu_auto_loc": jnp.zeros(()), "mu_auto_scale": jnp.ones(())}
    noise = 50.0 if svi.budget.target_epsilon is None else None
    return svi.estimate_elbo(key, params, Y, bound=3.0, noise_multiplier=noise)


WAYS = {
    "MCMC": Way(mcmc_of, lambda m, key: m.run(key, Y), lambda m, _: np.asarray(m.get_samples()["mu"])),
    "SVI": Way(
        svi_of, lambda s, key: s.run(key, STEPS, Y, progress_bar=False), lambda _, r: r.trajectory["mu_auto_loc"]
    ),
    "query": Way(svi_of, ask, lambda _, value: np.asarray(value), steps=1),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def broken(monkeypatch, error, at=1):
    """The compiled program, which raises at its call number `at`; what was charged when it was called is noted."""
    calls = []

    def failing(call, *_):
        calls.append(None)
        if len(calls) == at:
            raise error
        return call()

    run_through(monkeypatch, failing)
    return calls


@pytest.mark.quick_cases(1)
@every_way
def test_a_run_that_is_refused_changes_nothing(way, claimed, monkeypatch):
    """Refused by the budget, by the proof, for its key or its data: no charge, no key used, no access."""
    thing = way.make(**TARGET)
    calls = broken(monkeypatch, AssertionError("an access"), at=1)
    key = dpppl.secret_key()
    with monkeypatch.context() as patch:
        patch.setattr("dpppl.information_flow.verify_jaxpr", _leak)
        with pytest.raises(dpppl.PrivacyLeakError):
            way.run(thing, key)
    with monkeypatch.context() as patch:
        patch.setattr("dpppl.accounting.group_epsilon", lambda *_: 2.0)
        with pytest.raises((BudgetExceededError, ConfigurationError)):
            way.run(thing, key)
    claimed.add(dpppl.randomness.keys._digest(key))
    with pytest.raises(KeyReuseError):
        way.run(thing, key)
    assert not calls and way.spent(thing) == 0 and len(claimed) == 1
    assert thing.privacy_report().status == "nothing run" and not thing.budget.runs


def _leak(*_, **__):
    raise dpppl.PrivacyLeakError("refused")


def assert_no_rows(traceback):
    """A debugger, or a log with locals, finds no array of the call below the caller's own frame."""
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    ours = [frame for frame in frames if os.sep + "dpppl" + os.sep in frame.f_code.co_filename]
    assert len(ours) >= 3
    for frame in ours:
        assert not any(leaf is Y or getattr(leaf, "shape", ()) == Y.shape for leaf in jax.tree.leaves(frame.f_locals))


@pytest.mark.quick_cases(1)
@every_way
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=["interrupt", "failure"])
def test_a_run_that_stops_stays_charged_for_what_it_began(way, error, monkeypatch):
    """The third chunk of two steps (a query: its one access); what was planned beyond is given back. No frame holds rows."""
    thing = way.make(target_delta=1e-5)
    with monkeypatch.context() as patch:
        broken(patch, error, at=1 if way.steps == 1 else 3)
        with pytest.raises(type(error)) as caught:
            way.run(thing, dpppl.secret_key())
    assert_no_rows(caught.tb)
    begun = 1 if way.steps == 1 else 6
    assert way.spent(thing) == begun == thing.privacy_report().num_accesses
    way.run(thing, dpppl.secret_key())
    assert way.spent(thing) == begun + way.steps


@pytest.mark.quick_cases(1)
@every_way
def test_what_an_interrupted_run_left_can_be_spent(way, monkeypatch):
    """With a target: after an interrupt the object still meets it, and the rest is not lost."""
    thing = way.make(**TARGET)
    with monkeypatch.context() as patch:
        broken(patch, KeyboardInterrupt(), at=1 if way.steps == 1 else 3)
        with pytest.raises(KeyboardInterrupt):
            way.run(thing, dpppl.secret_key())
    spent = thing.privacy_report().epsilon
    assert 0 < spent <= 1.0 and (way.steps == 1 or spent < 0.5)
    if way is WAYS["SVI"]:  # its noise is found anew
        assert 0.99 < way.run(thing, dpppl.secret_key()).report.epsilon <= 1.0
    else:
        with pytest.raises(BudgetExceededError):
            way.run(thing, dpppl.secret_key())


@pytest.mark.slow
@every_way
def test_runs_beside_each_other_are_charged_apart(way, monkeypatch):
    """A second run begins while the first one is between two chunks."""
    thing, calls = way.make(target_delta=1e-5), []

    def nested(call, *_):
        calls.append(None)
        if len(calls) == 1:
            way.run(thing, dpppl.secret_key())
        return call()

    run_through(monkeypatch, nested)
    way.run(thing, dpppl.secret_key())
    assert way.spent(thing) == 2 * way.steps


def test_a_query_is_accounted_without_amplification():
    """It reads every row, also where the steps sample them."""
    svi = dpppl.SVI(
        model, AutoNormal(model), optax.adam(0.05), clipping_norm=3.0, subsampling=dpppl.Poisson(0.1), noise_multiplier=5.0
    )  # fmt: skip
    ask(svi, dpppl.secret_key())
    expected = dpppl.accounting.epsilon(dpppl.accounting.GaussianEvent(noise_multipliers=((50.0, 1),)), 1e-5)
    assert svi.privacy_report().epsilon_at(1e-5) == pytest.approx(expected, rel=1e-3)


@pytest.mark.quick_cases(1)
@every_way
def test_copies_share_an_account_and_pickles_remember_it(way):
    thing = way.make(target_delta=1e-5, print_cost=False)
    way.run(thing, dpppl.secret_key())
    other = copy.copy(thing)
    way.run(other, dpppl.secret_key())
    assert way.spent(thing) == way.spent(other) == 2 * way.steps
    if way is WAYS["MCMC"]:  # SVI objects hold functions: their budget is what pickles
        other = pickle.loads(pickle.dumps(thing))
        way.run(other, dpppl.secret_key())
        assert way.spent(other) == 3 * way.steps
    budget = pickle.loads(pickle.dumps(thing.budget))
    assert budget.events == thing.budget.events and way.spent(thing) == 2 * way.steps


@pytest.mark.parametrize("kind", ["MCMC", "SVI", "NoiseAware"])
def test_a_copy_of_a_budget_that_is_not_used_up_is_named(kind, tmp_path):
    """Loaded twice it can be spent twice, unless a ledger counts both."""
    make = {"MCMC": mcmc_of, "SVI": svi_of, "NoiseAware": lambda **options: dpppl.NoiseAware(model, **options)}[kind]
    whole = lambda thing: thing.budget if kind == "SVI" else thing  # noqa: E731  (SVI objects hold functions)
    for load in (lambda thing: pickle.loads(pickle.dumps(thing)), copy.deepcopy):
        with pytest.warns(PrivacyWarning, match="every copy may spend the rest") as caught:
            load(whole(make(**TARGET)))
        assert len(caught) == 1
        load(whole(make(ledger=dpppl.PrivacyLedger(tmp_path / "y.ledger", 1.0, 1e-5), **TARGET)))
    copy.copy(make(**TARGET))  # shares the budget
    if kind == "MCMC":
        used = make(print_cost=False, **TARGET)
        used.run(dpppl.secret_key(), Y)
        assert pickle.loads(pickle.dumps(used)).privacy_report().epsilon == used.privacy_report().epsilon


@pytest.mark.slow
@every_way
def test_a_reserve_is_kept_for_what_comes_later(way):
    thing = way.make(reserve=0.4, **TARGET)
    if way is WAYS["query"]:
        with pytest.raises(ConfigurationError, match="share of the target to keep"):
            way.make(reserve=1.0, **TARGET)
        with pytest.raises(ConfigurationError, match="share of target_epsilon"):
            way.make(reserve=0.5)
        WAYS["SVI"].run(thing, dpppl.secret_key())
        assert 0.59 < thing.privacy_report().epsilon <= 0.6
        way.run(thing, dpppl.secret_key())
        assert 0.99 < thing.privacy_report().epsilon <= 1.0
    else:
        way.run(thing, dpppl.secret_key())
        assert 0.59 < thing.privacy_report().epsilon <= 0.6
    if way is WAYS["MCMC"]:
        thing.post_warmup_state = thing.last_state
        thing.num_samples = 10
        way.run(thing, dpppl.secret_key())
        assert 0.6 < thing.privacy_report().epsilon <= 1.0


@pytest.mark.quick_cases(1)
@every_way
def test_the_cost_is_printed_once_by_itself_and_in_all(way, capsys):
    """Where it is printed; and a key that can be guessed is named, by a warning at the caller's line and in the report."""
    with pytest.warns(PrivacyWarning, match="guessable seed") as caught:
        way.run(quiet := way.make(print_cost=False), jax.random.PRNGKey(0))
    assert caught[0].filename == __file__ and "short seed that can be guessed" in str(quiet.privacy_report())
    assert not capsys.readouterr().out and way.spent(quiet) == way.steps
    thing = way.make(target_delta=1e-5)
    way.run(thing, dpppl.secret_key())
    first = capsys.readouterr().out
    way.run(thing, dpppl.secret_key())
    second = capsys.readouterr().out
    if way is WAYS["query"]:
        assert not first + second  # its price is an argument
        return
    both = thing.privacy_report().epsilon
    assert first.startswith("This run will spend epsilon = ") and "in all" not in first
    assert second.startswith(first.split(" at delta")[0]) and f"in all {both:.4g} with what was spent before" in second


def test_a_delta_that_may_publish_rows_is_named():
    with pytest.warns(PrivacyWarning, match="delta is not below 1 / number of rows"):
        mcmc_of(target_epsilon=1.0, target_delta=0.05, print_cost=False).run(dpppl.secret_key(), Y)


# Steps by hand


def test_steps_by_update_are_charged_by_their_object():
    svi = svi_of(target_delta=1e-5, print_cost=False)
    svi.run(dpppl.secret_key(), 5, Y, progress_bar=False)
    state = svi.init(dpppl.secret_key(), Y)
    for _ in range(3):
        state, _ = svi.update(state, Y)
    report = svi.privacy_report()
    assert report.num_accesses == 8 and report.details.num_steps == 8 and report.status == "run step by step"
    assert svi.privacy_report(state).num_accesses == 3 and int(state.i) == 3


def test_a_partition_cannot_be_stepped_by_hand():
    """Rows that are shuffled between calls would enter more than one batch of an epoch that is charged once."""
    svi = dpppl.SVI(model, AutoNormal(model), optax.adam(0.05), clipping_norm=3.0, subsampling=dpppl.Partition(5),
                    noise_multiplier=1.0)  # fmt: skip
    state = svi.init(dpppl.secret_key(), Y)
    with pytest.raises(ConfigurationError, match="only while the rows keep their order"):
        svi.update(state, Y)
    assert not svi.budget.charged


# Checkpoints


CHECKPOINTED = {
    "one chain": Way(mcmc_of, WAYS["MCMC"].run, WAYS["MCMC"].values),
    "chains in turn": Way(lambda **o: mcmc_of(2, **o), WAYS["MCMC"].run, WAYS["MCMC"].values, steps=40),
    "SVI": Way(  # with an optimiser of types that NumPy's files do not know
        lambda **o: svi_of(optax.adam(0.05, mu_dtype=jnp.bfloat16), **o), WAYS["SVI"].run, WAYS["SVI"].values
    ),
}


@pytest.mark.quick_cases(1)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("way", CHECKPOINTED.values(), ids=CHECKPOINTED)
@pytest.mark.parametrize("at", [1, 4, 30])
def test_a_run_that_was_cut_off_goes_on_as_if_it_had_not_been(way, at, tmp_path, monkeypatch, claimed, capfd):
    """Bit by bit the same numbers under the same key, in a new object or in the same one, and the price of one run."""
    path, key = tmp_path / "run.ckpt", dpppl.secret_key()
    thing = way.make(print_cost=False, **TARGET)
    whole = way.values(thing, way.run(thing, key))
    report, steps = thing.privacy_report(), way.spent(thing)
    claimed.clear()
    cut = way.make(checkpoint=path, **TARGET)
    with monkeypatch.context() as patch:
        broken(patch, KeyboardInterrupt(), at)
        try:
            way.run(cut, key)
            assert at == 30 and way is not CHECKPOINTED["chains in turn"]
        except KeyboardInterrupt:
            assert path.stat().st_mode & 0o777 == 0o600
    again = cut if at == 4 else way.make(checkpoint=path, **TARGET)
    resumed = path.exists()
    other = dpppl.secret_key() if resumed else key  # the key in the file is used
    claimed.clear()
    np.testing.assert_array_equal(way.values(again, way.run(again, other)), whole)
    assert again.privacy_report().epsilon == report.epsilon and way.spent(again) == steps
    assert not path.exists() and "in all" not in capfd.readouterr().out
    if resumed:  # also in the object that was cut off, where the charges of before are the same ones
        assert again is cut or way.spent(cut) < steps
        with pytest.raises(KeyReuseError):  # the key of a resumed run is used up
            way.run(way.make(), key)


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_refused(tmp_path, monkeypatch, claimed):
    path = tmp_path / "run.ckpt"
    with monkeypatch.context() as patch:
        broken(patch, KeyboardInterrupt(), 4)
        with pytest.raises(KeyboardInterrupt):
            mcmc_of(checkpoint=path).run(dpppl.secret_key(), Y)
    kept, used = path.read_bytes(), set(claimed)
    others = {
        "rows": (mcmc_of(checkpoint=path), np.where(np.arange(50) == 7, 0.0, Y).astype(np.float32)),
        "number of rows": (mcmc_of(checkpoint=path), Y[:-1]),
        "settings": (mcmc_of(checkpoint=path, **TARGET), Y),
    }
    for thing, rows in others.values():
        with pytest.raises(CheckpointError, match="of another run"):
            thing.run(dpppl.secret_key(), rows)
        assert not thing.budget.charged and path.read_bytes() == kept
    path.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(CheckpointError, match="no checkpoint that this version can read"):
        mcmc_of(checkpoint=path).run(dpppl.secret_key(), Y)
    assert claimed == used


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    key, path = np.ones(2, np.uint32), tmp_path / "run.npz"
    known = {"format": 1, "generator": "threefry2x32", "run_id": "x", "digest": "", "leg": 0, "done": 0, "count": 0}
    np.save(tmp_path / "rows.npy", Y)
    for header, arrays in (
        (known, {}),
        ([1], {"key": key}),
        ({"format": 1}, {"key": key}),
        (known | {"count": 1}, {"key": key}),
        (known | {"generator": "none"}, {"key": key}),
        (known, {"key": np.uint32(1)}),
    ):
        np.savez(path, header=json.dumps(header), **arrays)
        for file in (path, tmp_path / "rows.npy"):
            with pytest.raises(CheckpointError, match="no checkpoint that this version can read: give another path"):
                Checkpoint(file)
    np.savez(path, header=json.dumps(known), key=key)
    assert Checkpoint(path).resumed


KILLED = """
import sys, jax, numpy as np, test_runs as t, dpppl
from dpppl.runs import driver
call, calls = driver.Program.__call__, []
def slow(program, *arguments):
    calls.append(None)
    if len(calls) == 8 and sys.argv[2] == "die":
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    return call(program, *arguments)
driver.Program.__call__ = slow
ledger = dpppl.PrivacyLedger(sys.argv[1] + ".ledger", 2.0, 1e-5)
mcmc = t.mcmc_of(checkpoint=sys.argv[1], ledger=ledger, print_cost=False)
mcmc.run(jax.random.wrap_key_data(np.array([1234567, 7654321], np.uint32)), t.Y)
print(mcmc.get_samples()["mu"].tobytes().hex(), mcmc.privacy_report().epsilon_at(1e-5), ledger.remaining())
"""


SAME = """
import sys
import dpppl, numpy as np, numpyro, numpyro.distributions as dist, test_runs as t
from dpppl.runs import driver, placing
from numpyro.infer.autoguide import AutoMultivariateNormal
def stopped(function, arguments, rows):
    sys.exit("found " + placing.lowered(driver.prove(function, arguments, rows)[0], arguments, False).digest)
driver.prepare = stopped
def model(x, y):
    a, b, c, d = (numpyro.sample(name, dist.Normal(0, 1)) for name in "abcd")
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(a + b * c + x @ w, 1 + d**2), obs=y)
svi = dpppl.SVI(model, AutoMultivariateNormal(model), clipping_norm=1.0, noise_multiplier=5.0)
svi.run(dpppl.secret_key(), 40, np.ones((50, 9), np.float32), t.Y, progress_bar=False)
"""


def in_another(script, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )  # fmt: skip


@pytest.mark.slow
def test_a_program_is_the_same_in_every_process():
    """Checkpoints, and several processes, compare digests. Neither hashes of names nor addresses of variables enter it."""
    found = {in_another(SAME, PYTHONHASHSEED=str(seed)).stderr.splitlines()[-1] for seed in range(1, 5)}
    assert len(found) == 1 and found.pop().startswith("found ")


@pytest.mark.slow
def test_after_kill_9_a_rerun_goes_on_and_nothing_is_charged_twice(tmp_path):
    """In other processes, with a ledger: the samples of a run in this one, and the ledger counts one run."""

    go = lambda path, how: in_another(KILLED, str(path), how)  # noqa: E731
    ledger = dpppl.PrivacyLedger(tmp_path / "a.ledger", 2.0, 1e-5)
    mcmc = mcmc_of(ledger=ledger, print_cost=False)
    mcmc.run(jax.random.wrap_key_data(np.array([1234567, 7654321], np.uint32)), Y)
    found = mcmc.get_samples()["mu"].tobytes().hex(), mcmc.privacy_report().epsilon_at(1e-5), ledger.remaining()
    whole = " ".join(map(str, found)).split()
    killed = go(tmp_path / "b", "die")
    assert killed.returncode == -signal.SIGKILL and (tmp_path / "b").exists()
    resumed = go(tmp_path / "b", "live")
    assert resumed.stdout.split() == whole, resumed.stderr


# Ledgers


@pytest.mark.slow
def test_a_ledger_is_one_budget_for_all_objects(tmp_path):
    """Chains, SVI, a query and steps by hand: each is charged in the ledger, and what no longer fits is refused."""
    ledger = dpppl.PrivacyLedger(tmp_path / "y.ledger", 1.0, 1e-5, name="y", full_batch_only=True)
    half = {"target_epsilon": 0.5, "target_delta": 1e-5, "ledger": ledger, "print_cost": False}
    mcmc, svi = mcmc_of(**half), svi_of(**half)
    mcmc.run(dpppl.secret_key(), Y)
    used = [ledger.spent]
    svi.run(dpppl.secret_key(), STEPS, Y, progress_bar=False)
    used.append(ledger.spent)
    by_hand = svi_of(ledger=ledger, print_cost=False)
    params = {"mu_auto_loc": jnp.zeros(()), "mu_auto_scale": jnp.ones(())}
    by_hand.estimate_elbo(dpppl.secret_key(), params, Y, bound=3.0, noise_multiplier=20.0)
    used.append(ledger.spent)
    assert 0.49 < used[0] <= 0.5 < used[1] < used[2] < 1.0
    assert sum(event.num_accesses for event in ledger.events) == 81
    greedy = mcmc_of(**(half | {"target_epsilon": 0.9}))
    with pytest.raises(BudgetExceededError, match="has no room for this run"):
        greedy.run(dpppl.secret_key(), Y)
    state = by_hand.init(dpppl.secret_key(), Y)  # noise of 5: the first step does not fit
    with pytest.raises(BudgetExceededError):
        for _ in range(5):
            state, _ = by_hand.update(state, Y)
    assert not greedy.budget.charged and by_hand.privacy_report().num_accesses == 1 + int(state.i)
    assert ledger.spent <= 1.0 and "The ledger 'y' counts what is run on these data" in str(svi.privacy_report())
    assert "no ledger counts it" in str(svi_of().privacy_report())


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, BudgetExceededError])
def test_a_charge_that_was_cut_off_or_refused_is_made_again(error, tmp_path, monkeypatch):
    ledger = dpppl.PrivacyLedger(tmp_path / "y.ledger", 1.0, 1e-5)
    budget = Budget(ledger=ledger)

    def cut_off(*_):
        raise error

    with budget.reserve_for(
        [Query(statistic=None, bound=1.0, rows=None, public=None, what="").charge(50.0)], "a test"
    ) as run:
        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(dpppl.PrivacyLedger, "charge", cut_off)
            run.charge(0, 1)
        assert not budget.events and not ledger.events
        run.charge(0, 1)
    assert budget.events == ledger.events and len(ledger.events) == 1


# What was found by attacking all this


def test_a_ledger_counts_the_steps_of_an_object_and_of_its_copy(tmp_path):
    ledger = dpppl.PrivacyLedger(tmp_path / "y.ledger", 50.0, 1e-5)
    svi = svi_of(ledger=ledger, print_cost=False)
    first, second = svi.init(dpppl.secret_key(), Y), svi.init(dpppl.secret_key(), Y)
    other = copy.copy(svi)
    for number in range(1, 4):
        first, second = svi.update(first, Y)[0], other.update(second, Y)[0]
        counted = sum(event.num_accesses for event in ledger.events)
        assert counted == 2 * number == svi.privacy_report().num_accesses


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["MCMC", "SVI"])
def test_what_was_charged_survives_a_resume_that_fails(name, tmp_path, monkeypatch, claimed):
    """Interrupted, resumed, interrupted before the first chunk: nothing is forgotten, and the object still goes on."""
    way, path = WAYS[name], tmp_path / "run.ckpt"
    thing = way.make(checkpoint=path, print_cost=False, **TARGET)
    with monkeypatch.context() as patch:
        broken(patch, KeyboardInterrupt(), 16)
        with pytest.raises(KeyboardInterrupt):
            way.run(thing, dpppl.secret_key())
    spent = way.spent(thing)
    with monkeypatch.context() as patch:
        patch.setattr(session, "announce", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            way.run(thing, dpppl.secret_key())
    assert way.spent(thing) == spent == 32
    way.run(thing, dpppl.secret_key())
    assert way.spent(thing) == STEPS and 0.99 < thing.privacy_report().epsilon <= 1.0
    assert not path.exists() and not list(tmp_path.iterdir())


def _interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_update_follows_the_arguments_that_init_was_given():
    def scaled(y, scale):
        mu = numpyro.sample("mu", dist.Normal(0.0, scale))
        seen(y, mu)

    svi = dpppl.SVI(scaled, AutoNormal(scaled), optax.adam(0.05), clipping_norm=3.0, subsampling=dpppl.FullBatch(),
                    noise_multiplier=5.0, print_cost=False)  # fmt: skip
    state = svi.init(dpppl.secret_key(), Y, 1.0)
    svi.update(state, Y, 1.0)
    with pytest.raises(ConfigurationError, match="argument 'scale' has another value"):
        svi.update(state, Y, 7.0)
    svi.run(dpppl.secret_key(), 3, Y, 50.0, progress_bar=False)
    with pytest.raises(ConfigurationError, match="argument 'scale' has another value"):
        svi.update(state, Y, 1.0)
    assert len(svi._programs) == 0
