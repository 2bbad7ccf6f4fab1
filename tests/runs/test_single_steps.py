"""Steps by `SVI.init` and `SVI.update`: charged, and never two with the same noise."""

import copy
import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from numpyro.infer.autoguide import AutoNormal
from small_models import normal_mean as model

import dpppl
from dpppl import ConfigurationError, KeyReuseError, PrivacyWarning

Y = np.random.default_rng(1).standard_normal(50).astype(np.float32)


def svi_of(norm=3.0, **options):
    settings = {"clipping_norm": norm, "noise_multiplier": 5.0, "target_delta": 1e-5, "print_cost": False} | options
    return dpppl.SVI(model, AutoNormal(model), optax.sgd(1.0), subsampling=dpppl.FullBatch(), **settings)


def spent(svi):
    return sum(charge.num_steps * charge.chains for charge in svi.budget.charged)


def test_a_key_starts_one_state():
    """Two objects with norms 1 and 2, both from one key, gave 2 a - b without noise. A key that can be guessed is named."""
    key = jax.random.key(987654)
    with pytest.warns(PrivacyWarning, match="guessable seed") as caught:
        svi_of(1.0).init(key, Y)
    assert caught[0].filename == __file__
    for again in (lambda: svi_of(2.0).init(key, Y), lambda: svi_of().run(key, 1, Y, progress_bar=False)):
        with pytest.raises(KeyReuseError):
            again()
    used = dpppl.secret_key()
    svi_of().run(used, 1, Y, progress_bar=False)
    with pytest.raises(KeyReuseError):
        svi_of().init(used, Y)


def test_a_state_steps_once():
    """On data without a row it gave that row: also as a copy, as a pickle, set back, and by another object."""
    svi = svi_of()
    first = svi.init(dpppl.secret_key(), Y)
    second, _ = svi.update(first, Y)
    other = svi_of()
    other.init(dpppl.secret_key(), Y)
    again = {
        "itself": (svi, first),
        "copied": (svi, copy.copy(first)),
        "pickled": (svi, first._replace(rng_key=_pickled(first.rng_key))),
        "set back": (svi, second._replace(i=jnp.int32(0))),
        "wrapped around": (svi, second._replace(i=np.int64(2**32))),
        "elsewhere": (other, first),
        "a copy of the object": (copy.copy(svi), first),
    }
    without = np.where(np.arange(50) == 7, 0.0, Y).astype(np.float32)
    for name, (thing, state) in again.items():
        with pytest.raises((KeyReuseError, ConfigurationError)):
            thing.update(state, without)
            raise AssertionError(name)
    assert spent(svi) == 1 and spent(other) == 0
    with pytest.raises(KeyReuseError, match="not from init"):
        svi.update(first._replace(rng_key=jax.random.split(first.rng_key)[0]), Y)
    with pytest.raises(ConfigurationError, match=r"init_state=state"):
        svi.update(svi.run(dpppl.secret_key(), 1, Y, progress_bar=False).state, Y)
    svi.update(second, Y)
    assert spent(svi) == 3


def _pickled(key):
    """A key after its data were stored and loaded."""
    data = pickle.loads(pickle.dumps(np.asarray(jax.random.key_data(key))))
    return dpppl.randomness.keys.as_key(data)


TRACED = {
    "jit": lambda svi, state: jax.jit(lambda state: svi.update(state, Y)[0])(state),
    "jit of nothing": lambda svi, state: jax.jit(lambda: svi.update(state, Y)[0])(),
    "scan": lambda svi, state: lax.scan(lambda s, _: (svi.update(s, Y)[0], None), state, length=20),
    "map": lambda svi, state: lax.map(lambda fold: svi.update(state, fold)[0].optim_state, jnp.stack([Y, 0 * Y])),
    "vmap": lambda svi, state: jax.vmap(lambda fold: svi.update(state, fold)[0].optim_state)(jnp.stack([Y, 0 * Y])),
    "eval_shape": lambda svi, state: jax.eval_shape(lambda y: svi.update(state, y)[0].optim_state, Y),
    "init": lambda svi, state: jax.jit(lambda key: svi.init(key, Y).optim_state)(state.rng_key),
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("call", TRACED.values(), ids=TRACED)
def test_a_step_that_cannot_be_counted_is_refused(call):
    """Folds under one noise, and twenty steps of which the report said epsilon 0."""
    svi = svi_of()
    state = svi.init(dpppl.secret_key(), Y)
    with pytest.raises(ConfigurationError, match=r"run\(rng_key, num_steps, ..., init_state=result.state\)"):
        call(svi, state)
    assert spent(svi) == 0
    state, _ = svi.update(state, Y)  # nothing was used up
    assert spent(svi) == 1 and svi.privacy_report().epsilon == svi.privacy_report(state).epsilon > 0


@pytest.mark.slow
def test_no_report_says_zero_of_a_state_that_counts_nothing():
    svi, kernel = svi_of(), dpppl.DPSGLD(model, clipping_norm=3.0, step_size=1e-3)
    state = svi.init(dpppl.secret_key(), Y)
    svi.update(state, Y)
    with pytest.raises(ConfigurationError, match="counts no step"):
        svi.privacy_report(state)
    state = kernel.init(jax.random.key(0), 0, None, (Y,), {})
    with pytest.raises(ConfigurationError, match="counts no step"):
        kernel.privacy_report(state)
    report = kernel.privacy_report(kernel.sample(state, (Y,), {}), 1e-5)
    assert report.epsilon > 0 and "these are not protected" in report.warnings()[0]


FORK = """
import os, sys, warnings
import dpppl
from dpppl.errors import KeyReuseError, ProcessError
from dpppl.randomness.keys import claim
from dpppl.runs.budget import Budget
key, budget = dpppl.secret_key(), Budget(1.0, 1e-5)
child = os.fork()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for name in "ab":
        budget.reserve_for([], name)
copies = sum("by a fork" in str(w.message) for w in seen)
try:
    claim(key)
    refused = False
except KeyReuseError:
    refused = True
claim(dpppl.secret_key())
if child == 0:
    words = []
    for run in (lambda: dpppl.check(print, 1), lambda: dpppl.private_scale(key, [1.0] * 9, noise_multiplier=1.0)):
        try:
            run()
        except ProcessError as error:
            words.append("get_context('spawn')" in str(error))
    os._exit(0 if (copies, refused, words) == (1, True, [True, True]) else 1)
in_child = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # not the status, of which an exit code has 8 bits
sys.exit(2 if in_child else 3 * ((copies, refused) != (0, False)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_does_not_use_its_parents_keys_is_told_of_its_budget_and_runs_nothing():
    """JAX's threads are not in the child: a run there would never end."""
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], timeout=120, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_cannot_step_a_state_of_its_parent(tmp_path, monkeypatch):
    """Nor a process that was handed the state: here only its number tells."""
    ledger = dpppl.PrivacyLedger(tmp_path / "y.ledger", 50.0, 1e-5)
    svi = svi_of(ledger=ledger)
    state = svi.init(dpppl.secret_key(), Y)
    with monkeypatch.context() as patch:
        patch.setattr("dpppl.runs.single_steps.os.getpid", lambda: -1)
        with pytest.raises(KeyReuseError, match=r"init_state=state"):
            svi.update(state, Y)
    assert spent(svi) == 0 == len(ledger.events)
    svi.update(state, Y)
    assert sum(event.num_accesses for event in ledger.events) == 1


@pytest.mark.slow
def test_a_ledger_knows_the_steps_of_a_key_in_every_process(tmp_path, monkeypatch):
    """Another process that was given the same key: what this one has claimed is not known there."""
    ledger, key = dpppl.PrivacyLedger(tmp_path / "y.ledger", 50.0, 1e-5), dpppl.secret_key()
    svi = svi_of(ledger=ledger)
    state = svi.init(key, Y)
    for _ in range(2):
        state, _ = svi.update(state, Y)
    with monkeypatch.context() as patch:
        patch.setattr("dpppl.randomness.keys._claimed", set())
        patch.setattr("dpppl.runs.single_steps._next", {})
        there = svi_of(ledger=dpppl.PrivacyLedger.open(ledger.path))
        theirs = there.init(key, Y)
        with pytest.raises(KeyReuseError, match="the ledger counts other steps"):
            there.update(theirs, Y)
    assert spent(there) == 0 and sum(event.num_accesses for event in ledger.events) == 2
    svi.update(state, Y)
    assert sum(event.num_accesses for event in ledger.events) == 3 == spent(svi)
    assert str(np.asarray(jax.random.key_data(key)).tobytes().hex()) not in (tmp_path / "y.ledger").read_text()
