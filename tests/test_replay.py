"""Record and replay of every method: with the same releases a row changes nothing else, and planted faults are found."""

import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from test_mutations import Mutation, mutated

from benchmarks.replays import HOSTILE, RUNNERS, chains, data, key, neighbour, query, replayed
from dpppl.audit import replay
from dpppl.errors import ConfigurationError
from dpppl.runs import watching

QUICK = ("query", "query from disk")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in RUNNERS if name not in QUICK)]
)
@pytest.mark.thinned(3)
def test_a_row_changes_nothing_but_releases(name):
    found = replayed(name, HOSTILE[(list(RUNNERS).index(name) + 2) % len(HOSTILE)])
    assert found.consistent, found.differences
    assert found.num_accesses >= 1 and found.num_programs >= 1 and found.num_results > 3
    assert 1e-3 < found.moved <= 1.0 + 2e-4  # rows did take part


def test_every_sharding_of_chains_is_replayed():
    """Chains one after the other, and one on each of two devices."""
    for method in ("sequential", "parallel"):
        run = functools.partial(chains, clipping_norm=1.0, chain_method=method)
        found = replay(run, data(), neighbour(1e30, 1.0), rng_key=key())
        assert found.consistent and found.num_accesses == 20, found.differences


# What it finds


def leaks(what):
    """A runner that publishes this of the rows beside its query."""

    def runner(rng_key, x, y):
        found = query(rng_key, x, y)
        return found, what(x, y)

    return runner


def prints(x, y):
    print(f"the largest is {x.max()}")


def warns(x, y):
    import warnings

    warnings.warn(f"{np.sum(x > 1e3)} rows are long", stacklevel=1)


def raises(x, y):
    if x.max() > 1e3:
        raise ValueError("a row is long")


def writes(x, y):
    return SimpleNamespace(name="a result", rows=int(np.sum(x > 1e3)))


def asks_again(x, y):
    if x.max() > 1e3:
        query(jax.random.fold_in(key(), 5), x, y)


LEAKS = {
    "a number": (lambda x, y: float(x.max()), "results: [1] differs"),
    "a length": (lambda x, y: np.zeros(int(np.sum(x < 1e3))), "results: [1] differs"),
    "a type": (lambda x, y: np.zeros(2, np.float64 if x.max() > 1e3 else np.float32), "results: [1] differs"),
    "an object": (writes, "results: [1] differs"),
    "print": (prints, "standard output differ"),
    "warning": (warns, "warnings differ"),
    "error": (raises, "errors differ"),
    "an access more": (asks_again, "charges differ"),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_what_is_published_beside_releases_is_found(leak):
    what, words = LEAKS[leak]
    found = replay(leaks(what), data(), neighbour(1e30, 1.0), rng_key=key())
    assert not found.consistent and words in found.differences


PLANTED = [
    ("query", "a public number from data", "dpppl.runs.query:noisy_query", "(query.rows, query.public, keys.stream",
     "(query.rows, dict(query.public, most=jnp.max(query.rows['x'])), keys.stream", "another public arrays"),
    ("query", "a constant from data", "dpppl.runs.query:noisy_query", "jnp.asarray(query.statistic(row, public), float)",
     "jnp.asarray(query.statistic(row, public), float) * float(1.0 + np.max(np.asarray(query.rows['x'])) / 1e31)", "program 0 differs"),
    ("query", "noise from data", "dpppl.runs.query:query_charge", "query.charge(positive(noise, name=\"noise_multiplier\"))",
     "query.charge(float(noise) * (1.0 if np.max(np.asarray(query.rows['x'])) < 1e3 else 1.1))", "charges differ"),
    ("query", "an access that is not charged", "dpppl.runs.query:noisy_query", "opened.charge(0, 1)", "pass", "made before it was charged"),
    ("query", "less noise than is charged", "dpppl.runs.query:noisy_query", "noise_multiplier = float(charge.noise_multipliers[0])",
     "noise_multiplier = 0.9 * float(charge.noise_multipliers[0])", "less noise than was charged"),
    ("query", "rows that are not clipped", "dpppl.access.clipping:clip_rows", "leaf * factors.reshape(shape)", "7.0 * leaf",
     "moved an access's sum by"),
    ("query", "the sum twice", "dpppl.access.mechanism:Mechanism.access", "part + scale * piece", "2.0 * part + scale * piece",
     "moved an access's sum by"),
    ("query", "one access again", "dpppl.runs.query:noisy_query", "return np.asarray(compiled(*arguments), np.float64)",
     "return np.asarray(max(float(compiled(*arguments)), float(compiled(*arguments))))", "has key and step of an earlier one"),
    ("query", "an exception for some rows", "dpppl.uncertainty.private_score:private_score", "total, *squares = np",
     "1 / (float(jnp.max(rows['x'])) < 1e3); total, *squares = np", "errors differ"),
    ("chains that choose their norm", "a histogram that is not charged", "dpppl.runs.prelude:measure_norms", "opened.charge(0, 1)", "pass",
     "made before it was charged"),
    ("chains that choose their norm", "a norm from data", "dpppl.runs.prelude:NormPhase.found", "self.scale, number_of(self.rows)",
     "self.scale, number_of(self.rows) + 1000 * int(np.sum(np.asarray(self.rows['x']) > 1e3))", "program 1 differs"),
    ("SVI", "fewer iterates of some data", "dpppl.svi.runner:SVI.run", "thinning = thinning_for(state.optim_state, num_steps, thinning)",
     "thinning = thinning_for(state.optim_state, num_steps, thinning) + int(np.sum(np.asarray(rows['x']) > 1e3))", "program 1 differs"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=[f"{name}: {bug}" for name, bug, *_ in PLANTED])
def test_a_planted_fault_is_found(planted, monkeypatch):
    name, bug, where, old, new, words = planted
    mutated(Mutation(bug, where, old, new, ""), monkeypatch)
    jax.clear_caches()
    found = replayed(name, (1.0, 1.0) if words.startswith("moved") else (1e30, 1.0))
    jax.clear_caches()
    assert any(words in text for text in found.differences), found


def test_nothing_watches_an_ordinary_run():
    """Neither after a replay nor in another thread; what a replay compiled is not kept, and its keys count as unused."""
    import threading

    from dpppl.audit import tape
    from dpppl.information_flow import executables
    from dpppl.randomness import keys

    seen = []

    def inside(rng_key, x, y):
        assert watching.watcher() is not None
        threading.Thread(target=lambda: seen.append(watching.watcher())).start()
        return query(rng_key, x, y)

    before, claimed = set(executables._kept), set(keys._claimed)
    assert replay(inside, data(), neighbour(1e30, 1.0), rng_key=key()).consistent
    assert watching.watcher() is None and seen == [None, None]
    assert set(executables._kept) == before and keys._claimed == claimed
    with pytest.raises(ConfigurationError, match="made no access"):
        replay(lambda rng_key, x, y: None, data(), data())
    program = jax.make_jaxpr(lambda x: x)(1.0)
    assert tape.Tape().program(program, "digest").jaxpr.eqns == program.jaxpr.eqns
