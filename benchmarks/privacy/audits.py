"""Audits of planted faults, of clean runs, and of a mechanism whose account is exact.

python benchmarks/privacy/audits.py tight        # one-run lower bounds of a Gaussian mechanism, epsilon 4, 2,000 canaries, 400 runs
python benchmarks/privacy/audits.py faults       # planted faults, each found by a replay or an attack
python benchmarks/privacy/audits.py clean        # 200 clean runs of MCMC, SVI, NoiseAware and queries
"""

import argparse
import contextlib
import importlib
import inspect
import os
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal
from scipy import optimize

import dpppl
import dpppl.contrib.audit
from benchmarks.privacy import replays
from dpppl.contrib.audit import bounds
from dpppl.contrib.audit.canaries import Recorded, scored, with_rows
from dpppl.randomness.keys import claims_apart
from dpppl.runs.watching import watched_by

DELTA, CONFIDENCE = 1e-5, 0.95
REFUTED, MOVED = "refuted", "moved an access's sum by"
ACCESS, QUERY = "dpppl.access.mechanism:Mechanism.access", "dpppl.runs.query:noisy_query"


@dataclass(frozen=True)
class Fault:
    """A few characters of one function that make it wrong: `old` for `new` at `where`, "module:function".

    - **case** - the case of `replays.RUNNERS` that finds it.
    - **words** - what the replay then says; REFUTED where an attack finds it.
    - **values**, **before** - of the rows that differ, on the neighbouring data set and on the first.
    - **rows**, **relation** - which rows these are, and the neighbouring relation."""

    case: str
    bug: str
    where: str
    old: str
    new: str
    words: str
    values: tuple = (1e30, 1.0)
    before: tuple | None = None
    rows: object = 7
    relation: str = "replace_one"

    @contextlib.contextmanager
    def planted(self):
        """Inside, the function with the fault, in the place of the right one."""
        module, _, path = self.where.partition(":")
        owner = module = importlib.import_module(module)
        *classes, name = path.split(".")
        for each in classes:
            owner = getattr(owner, each)
        right = inspect.unwrap(getattr(owner, name))
        source = textwrap.dedent(inspect.getsource(right))
        assert self.old in source, self.bug
        lines = source.replace(self.old, self.new).splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("def "))  # decorators left out
        made = dict(vars(module))
        exec(compile("\n".join(lines[start:]), f"<{self.bug}>", "exec"), made)
        code, right.__code__ = right.__code__, made[name].__code__
        try:
            yield
        finally:
            right.__code__ = code

    def found(self):
        """What an audit says of the fault, None if nothing."""
        jax.clear_caches()
        try:
            with self.planted():
                if self.words == REFUTED:
                    run = lambda key, x, y: svi(noise_multiplier=4.0).run(key, 4, x, y)  # noqa: E731
                    result = dpppl.contrib.audit.audit(run, *replays.data(), delta=DELTA, rng_key=jax.random.key(0))
                    return (
                        None
                        if result.consistent
                        else f"{REFUTED}: {result.epsilon_lower:.3f} > {result.epsilon_reported:.3f}"
                    )
                first = replays.data() if self.before is None else replays.neighbour(*self.before, self.rows)
                other = replays.neighbour(*self.values, self.rows)
                result = dpppl.contrib.audit.replay(
                    RUNNERS[self.case], first, other, rng_key=replays.key(), neighboring_relation=self.relation
                )
        finally:
            jax.clear_caches()
        return next((text for text in result.differences if self.words in text), None)


def long_chains(key, x, y):
    return replays.chains(key, x, y, clipping_norm=1.0, run={"num_samples": 300})


def level_and_slopes(x, y):
    level, slopes = (
        numpyro.sample("level", dist.Normal(0, 1)),
        numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1)),
    )
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=level + x @ slopes), obs=y)


def two_latents(key, x, y):
    kernel = dpppl.DPSGLD(level_and_slopes, clipping_norm=1.0, noise_multiplier=8.0)
    chains = dpppl.MCMC(kernel, num_warmup=0, num_samples=4, progress_bar=False)
    chains.run(key, x, y)
    return chains


RUNNERS = replays.RUNNERS | {"long chains": long_chains, "two latents": two_latents}
FAULTS = [
    Fault('query', 'a public number from data', 'dpppl.runs.query:noisy_query',
          '(query.rows, query.public, keys.stream',
          "(query.rows, dict(query.public, most=jnp.max(query.rows['x'])), keys.stream", 'another public arrays'),
    Fault('query', 'a constant from data', 'dpppl.runs.query:noisy_query',
          'jnp.asarray(query.statistic(row, public), float)',
          "jnp.asarray(query.statistic(row, public), float) * float(1.0 + np.max(np.asarray(query.rows['x'])) / 1e31)", 'program 0 differs'),
    Fault('query', 'noise from data', 'dpppl.runs.query:query_charge',
          'query.charge(positive(noise, name="noise_multiplier"))',
          "query.charge(float(noise) * (1.0 if np.max(np.asarray(query.rows['x'])) < 1e3 else 1.1))", 'charges differ'),
    Fault('query', 'an access that is not charged', 'dpppl.runs.query:noisy_query',
          'opened.charge(0, 1)',
          'pass', 'made before it was charged'),
    Fault('query', 'less noise than is charged', 'dpppl.runs.query:noisy_query',
          'noise_multiplier = float(charge.noise_multipliers[0])',
          'noise_multiplier = 0.9 * float(charge.noise_multipliers[0])', 'less noise than was charged'),
    Fault('query', 'rows that are not clipped', 'dpppl.access.clipping:clip_rows',
          'jnp.where(factor > 0.0, leaf * factor, np.zeros((), dtype))',
          '7.0 * leaf', "moved an access's sum by", values=(1.0, 1.0)),
    Fault('query', 'the sum twice', 'dpppl.access.mechanism:Mechanism.access',
          'jax.tree.leaves(total), scales, norms',
          '[2.0 * part for part in jax.tree.leaves(total)], scales, norms', "moved an access's sum by", values=(1.0, 1.0)),
    Fault('query', 'one access again', 'dpppl.runs.query:noisy_query',
          'return np.asarray(compiled(*arguments), np.float64)',
          'return np.maximum(np.asarray(compiled(*arguments), np.float64), np.asarray(compiled(*arguments), np.float64))', 'has key and step of an earlier one'),
    Fault('query', 'an exception for some rows', 'dpppl.runs.private_score:private_score',
          'total, *squares, nones = noisy_query',
          "1 / (float(jnp.max(rows['x'])) < 1e3); total, *squares, nones = noisy_query", 'errors differ'),
    Fault('chains that choose their norm', 'a histogram that is not charged', 'dpppl.frame.locate:locate',
          'opened.charge(len(frame), 1)',
          'pass', 'made before it was charged'),
    Fault('chains that choose their norm', 'a norm from data', 'dpppl.frame.locate:locate',
          'histogram.found(counts, number_of(rows))',
          "histogram.found(counts, number_of(rows) + 1000 * int(np.sum(np.asarray(rows['x']) > 1e3)))", 'program 1 differs'),
    Fault('SVI', 'fewer iterates of some data', 'dpppl.svi.runner:SVI.run',
          'thinning = thinning_for(state.optim_state, num_steps, thinning)',
          "thinning = thinning_for(state.optim_state, num_steps, thinning) + int(np.sum(np.asarray(rows['x']) > 1e3))", 'program 1 differs'),
    Fault("long chains", "noise a tenth too small", ACCESS, "jax.tree.leaves(total), scales, norms",
          "jax.tree.leaves(total), [0.9 * scale for scale in scales], norms",
          "the noise is smaller than"),
    Fault("chains", "noise without the step's number", ACCESS, 'jax.random.fold_in(keys.stream(key, "noise"), step)',
          'keys.stream(key, "noise")', "the same noise"),
    Fault("two latents", "a clip that forgets one leaf", "dpppl.access.clipping:clip_rows", "scaled(gradients, 1.0 / clipping_norm)",
          "scaled(gradients, 1.0 / clipping_norm)[0], scaled(jax.tree.leaves(gradients)[0], 1.0 / clipping_norm)[1]", MOVED,
          values=(1e3, 1.0)),
    Fault("chains from disk", "a row that is read twice", "dpppl.access.drawn:_on_disk", "(placement.block(start, size), places)",
          "(jax.tree.map(lambda x: x.at[8].set(x[7]), placement.block(start, size)), places)", MOVED, values=(np.nan, np.nan),
          before=(3.0, 0.0), relation="zero_out"),
    Fault("persons", "rows beyond those that count are another person", "dpppl.model.units:_codes",
          "known.setdefault(entry, len(known))",
          "known.setdefault((entry, len(known) % 2), len(known))", MOVED, values=(np.nan, np.nan),
          before=(3.0, 0.0), rows=slice(6, 9), relation="zero_out"),
    Fault("chains on a mesh", "noise shared out among devices", ACCESS, "jax.tree.leaves(total), scales, norms",
          "jax.tree.leaves(total), [scale / placement.devices for scale in scales], norms", "the noise is smaller than"),
    Fault("query", "a count from data in a shape", QUERY, "(query.rows, query.public, keys.stream",
          "({n: v[np.asarray(query.rows['x'])[:, 0] < 1e3] for n, v in query.rows.items()}, query.public, keys.stream", "program 0 differs"),
    Fault("query", "a line that is printed", QUERY, "budget.account().admit([charge])",
          "budget.account().admit([charge]); print(float(np.max(np.asarray(query.rows['x']))))", "standard output differ"),
    Fault("ledger", "a name in the ledger from data", QUERY, "what=query.what, charges",
          "what=query.what + str(np.max(np.asarray(query.rows['x']))), charges", "results: [2]"),
]  # fmt: skip


def wide(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([y.shape[1]]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


def mcmc(model, num_samples, **budget):
    kernel = dpppl.DPSGLD(model, clipping_norm=1.0, subsampling=dpppl.FullBatch(), measure_clipping=False)
    settings = dict(num_warmup=0, num_samples=num_samples, progress_bar=False, print_cost=False)
    return dpppl.MCMC(kernel, **settings, **budget)


def svi(**budget):
    guide = AutoNormal(replays.model)
    return dpppl.SVI(
        replays.model, guide, clipping_norm=1.0, subsampling=dpppl.FullBatch(), num_data=replays.N, **budget
    )


def one_runs(runner, args, num_runs, num_rows, seed=0):
    """Lower bounds of one-run attacks on `num_runs` repetitions of the accesses of a run, with coins and noise of their own."""
    watcher = Recorded()
    with watched_by(watcher), claims_apart():
        runner(dpppl.secret_key(), *args)

    def scores(coins, key):
        total = jnp.zeros(num_rows)
        for number, (access, (shapes, made)) in enumerate(watcher.made.items()):
            rows = [jnp.zeros((num_rows, *x.shape[1:]), x.dtype) for x in shapes]

            def one(total, given, access=access, rows=rows, number=number):
                own = jax.random.fold_in(jax.random.fold_in(key, number), given[0])
                operands = with_rows(access, rows, given[1:], own)
                return total + scored(access, "gradient", coins, *operands)[1], None

            stacked = [jnp.asarray(np.stack(values)) for values in zip(*made)]
            total = jax.lax.scan(one, total, (jnp.arange(len(made), dtype=jnp.uint32), *stacked))[0]
        return total

    compiled, rng = jax.jit(scores), np.random.default_rng(seed)
    reported = dpppl.accounting.epsilon(watcher.events, DELTA)
    settings = dict(delta=DELTA, confidence=CONFIDENCE, gaussian=watcher.sees_all, reported=reported)
    lower = []
    for number in range(num_runs):
        coins = rng.random(num_rows) < 0.5
        found = compiled(jnp.asarray(coins, jnp.float32), jax.random.fold_in(jax.random.key(seed), number))
        lower.append(bounds.one_run(np.asarray(found, np.float64), coins, **settings))
    return np.array(lower), reported


def ideal(num_runs, m=2_000, epsilon=4.0):
    """Lower bounds from the scores of a Gaussian mechanism that costs epsilon, each canary alone."""
    mu = optimize.brentq(lambda mu: bounds.gaussian_epsilon(mu, DELTA) - epsilon, 1e-6, 10.0)
    rng, settings = np.random.default_rng(2), dict(delta=DELTA, confidence=CONFIDENCE, gaussian=True, reported=epsilon)
    coins = rng.random((num_runs, m)) < 0.5
    scores = rng.standard_normal((num_runs, m)) + mu * coins
    return np.array([bounds.one_run(x, coin, **settings) for x, coin in zip(scores, coins)]), epsilon


def tight(options):
    """The account is exact: scores of a Gaussian mechanism, and the accesses of 50 steps of DPSGLD with 200 latents, every row."""
    num_runs, y = options.runs or 400, np.zeros((2_000, 200), np.float32)
    budget = dict(target_epsilon=4.0, target_delta=DELTA)
    run = lambda key, y: mcmc(wide, 50, **budget).run(key, y)  # noqa: E731
    for name, make in (
        ("scores", lambda: ideal(num_runs)),
        ("accesses", lambda: one_runs(run, (y,), num_runs, len(y))),
    ):
        lower, reported = make()
        shares, ends = lower[:, 0] / reported, np.quantile(lower[:, 0] / reported, [0.05, 0.95]).round(3)
        print(f"{name}: epsilon {reported:.3f}, {len(y)} canaries, {len(shares)} runs at confidence {CONFIDENCE}")
        print(
            f"  lower bound / epsilon: median {np.median(shares):.3f}, 5 % to 95 % {ends}, strongest {lower[0, 1] / reported:.2f}"
        )
        print(f"  at least .5 in {np.mean(shares >= 0.5):.1%}; above 1 in {np.sum(shares > 1.0)}", flush=True)


def clean(options):
    """One-run attacks of each method as it runs, on 600 made-up rows; none should be flagged but by chance, 5 % at most."""
    rng, total, flagged = np.random.default_rng(0), 0, 0
    x, y = rng.standard_normal((600, 2)).astype(np.float32), (rng.random(600) < 0.5).astype(np.float32)
    budget = dict(target_epsilon=4.0, target_delta=DELTA)
    methods = {
        "MCMC": lambda key, x, y: mcmc(replays.model, 200, **budget).run(key, x, y),
        "SVI": lambda key, x, y: dpppl.SVI(replays.model, AutoNormal(replays.model), clipping_norm=1.0, **budget).run(
            key, 200, x, y
        ),
        "NoiseAware": lambda key, x, y: dpppl.NoiseAware(replays.model, num_samples=20, **budget).run(key, x, y),
        "query": replays.query,
    }
    for name, runner in methods.items():
        lower, reported = one_runs(runner, (x, y), (options.runs or 200) // len(methods), len(y))
        total, flagged = total + len(lower), flagged + int(np.sum(lower[:, 0] > reported))
        print(
            f"{name:10} epsilon {reported:.3f}: lower bounds up to {lower[:, 0].max():.3f}, median {np.median(lower[:, 0]):.3f}"
        )
    print(f"{flagged} of {total} clean runs flagged")


def faults(options):
    found = 0
    for fault in FAULTS:
        start, cpu = time.perf_counter(), time.process_time()
        said = fault.found()
        found += said is not None
        times = f"{time.perf_counter() - start:.0f} s, {time.process_time() - cpu:.0f} s of processor"
        print(f"{fault.bug:50} {fault.case:24} {times}: {said or 'NOT FOUND'}", flush=True)
    print(f"{found} of {len(FAULTS)} faults found")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("tight", "faults", "clean"))
    parser.add_argument("--runs", type=int, help="fewer runs")
    options = parser.parse_args(arguments)
    {"tight": tight, "faults": faults, "clean": clean}[options.part](options)


if __name__ == "__main__":
    main()
