"""Habits of NumPyro's users: 60 models with defaults, by three methods: each runs, or is refused with a cure that was run.

python benchmarks/habits.py --results FOLDER [--only NAME ...]     # runs what FOLDER lacks, a process for each model
python benchmarks/habits.py --results FOLDER --table               # the table, in Markdown

Epsilon 2, delta 1e-6, 2,000 simulated rows, seeds fixed but for secret keys. A run is *wrong* where its verdict refuses nothing and the
mean of a latent lies more than 5 of its own posterior sds, and more than 5 of NUTS's, from NUTS's mean. *Raw* is an exception that is
no DPPPLError. Seconds are processor time with compilation, of dpppl and of NUTS (500 + 500 steps) in one process.
"""

import argparse
import json
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

METHODS = ("NoiseAware", "SVI", "MCMC")
BUDGET = {"target_epsilon": 2.0, "target_delta": 1e-6, "print_cost": False}
FAR = 5.0
LIMIT = 300


def private(method, model, arguments):
    """Samples by site and the verdict's refusals of a run with defaults."""
    import jax
    from numpyro.infer.autoguide import AutoNormal

    import dpppl

    key = dpppl.secret_key()
    if method == "NoiseAware":
        run = dpppl.NoiseAware(model, progress_bar=False, **BUDGET)
        run.run(key, *arguments)
        return run.get_samples(allow_unconverged=True), list(run.verdict.refusals)
    if method == "MCMC":
        run = dpppl.MCMC(dpppl.DPSGLD(model), num_warmup=500, num_samples=500, progress_bar=False, **BUDGET)
        run.run(key, *arguments)
        return run.get_samples(allow_unconverged=True), list(run.verdict.refusals)
    run = dpppl.SVI(model, AutoNormal(model), **BUDGET)
    result = run.run(key, None, *arguments, progress_bar=False)
    return result.sample_posterior(jax.random.key(0), 500), list(result.verdict.refusals)


def nuts(model, arguments):
    """Samples of NUTS without privacy."""
    import jax
    from numpyro.infer import MCMC, NUTS

    chain = MCMC(NUTS(model), num_warmup=500, num_samples=500, progress_bar=False)
    chain.run(jax.random.key(1), *arguments)
    return chain.get_samples()


def distance(samples, reference):
    """The largest distance of means, in the larger of both sds."""
    import numpy as np

    found = [0.0]
    for name in samples.keys() & reference.keys():
        a, b = (np.asarray(s[name], float) for s in (samples, reference))
        if a.shape[1:] == b.shape[1:]:
            found.append(np.max(np.abs(a.mean(0) - b.mean(0)) / (np.maximum(a.std(0), b.std(0)) + 1e-9)))
    return float(max(found))


def tried(method, name):
    """One row, what came of a model with a method, and what was run: samples, model and arguments, or nothing."""
    from benchmarks.habits_models import HABITS
    from dpppl.errors import DPPPLError

    habit = HABITS[name]
    row = {"model": name, "source": habit.source, "method": method}
    model, arguments = habit.model, habit.arguments
    start = time.process_time()
    try:
        samples, refusals = private(method, model, arguments)
        row["outcome"] = "runs"
    except DPPPLError as error:
        row |= {"outcome": "refused", "error": str(error)}
        if habit.cure is None:
            return row, None
        model, arguments = habit.cure
        try:
            samples, refusals = private(method, model, arguments)
            row["outcome"] = "refused, cure runs"
        except DPPPLError as again:
            return row | {"outcome": "refused, and so is the cure", "error": str(again)}, None
        except Exception as again:
            return row | {"outcome": "raw", "error": repr(again)[:300]}, None
    except Exception as error:
        return row | {"outcome": "raw", "error": repr(error)[:300]}, None
    row |= {"seconds": time.process_time() - start, "read": not refusals, "refusals": [str(r) for r in refusals]}
    return row, (samples, model, arguments)


def tried_all(name, paths):
    """Each method of `paths` on a model, a file for each, and then the comparison with NUTS."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 5))
    warnings.simplefilter("ignore")
    found = []
    for method, path in paths.items():
        row, run = tried(method, name)
        path.write_text(json.dumps(row))
        if run is not None:
            found.append((path, row, *run))
    known = {}
    for path, row, samples, model, arguments in found:
        try:
            if id(model) not in known:
                start = time.process_time()
                known[id(model)] = nuts(model, arguments), time.process_time() - start
            exact, row["nuts"] = known[id(model)]
            row["distance"] = distance(samples, exact)
        except Exception as error:
            row["nuts_error"] = repr(error)[:200]
        row["wrong"] = bool(row["read"] and row.get("distance", 0.0) > FAR)
        path.write_text(json.dumps(row))


def table(folder):
    """Markdown: a line a model, and the counts."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    by_model = {}
    for row in found:
        by_model.setdefault((row["source"], row["model"]), {})[row["method"]] = row
    print(f"| source | model | {' | '.join(METHODS)} | NUTS, s |\n|---|---|{'---|' * (len(METHODS) + 1)}")
    for (source, model), methods in sorted(by_model.items()):
        cells = []
        for method in METHODS:
            row = methods.get(method, {"outcome": "not run"})
            seconds = f", {row['seconds']:.0f} s" if "seconds" in row else ""
            cells.append(
                row["outcome"]
                + seconds
                + (", WRONG" if row.get("wrong") else "" if row.get("read", True) else ", not read")
            )
        times = [row["nuts"] for row in methods.values() if "nuts" in row]
        print(f"| {source} | {model} | {' | '.join(cells)} | {f'{min(times):.0f}' if times else ''} |")
    count = lambda test: sum(map(test, found))  # noqa: E731
    print(f"\n{len(by_model)} models, {len(found)} runs: {count(lambda r: r['outcome'] == 'raw')} raw exceptions, "
          f"{count(lambda r: r.get('wrong', False))} wrong posteriors called read, "
          f"{count(lambda r: r['outcome'] in ('refused', 'refused, and so is the cure'))} refused without a cure that ran.")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.table:
        table(args.results)
        return
    from benchmarks.habits_models import HABITS

    args.results.mkdir(parents=True, exist_ok=True)
    for name in args.only or HABITS:
        stem = name.replace(" ", "_").replace(",", "")
        paths = {method: args.results / f"{stem}-{method}.json" for method in args.methods}
        paths = {method: path for method, path in paths.items() if not path.exists()}
        if args.one:
            return tried_all(name, paths)
        while missing := {method: path for method, path in paths.items() if not path.exists()}:
            command = [sys.executable, __file__, "--results", str(args.results), "--one", "--only", name]
            done = subprocess.run([*command, "--methods", *missing], capture_output=True, text=True)
            method = next((method for method, path in missing.items() if not path.exists()), None)
            if method is not None:
                outcome = "too slow" if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL) else "raw"
                row = {"model": name, "source": HABITS[name].source, "method": method, "outcome": outcome}
                paths[method].write_text(json.dumps(row | {"error": done.stderr[-300:]}))
        for path in paths.values():
            print(path.read_text()[:300], flush=True)


if __name__ == "__main__":
    main()
