"""Habits of NumPyro's users: 63 models with defaults, by three methods: each runs, or is refused with a cure that was run.

python benchmarks/verdict/habits.py [--only NAME ...]     # runs what docs/results/habits.json lacks, a process for each model
python benchmarks/verdict/habits.py --write               # writes its part of docs/appendix/inputs.md, and docs/results/habits.json from the runs

Epsilon 2, delta 1e-6, 2,000 simulated rows, seeds fixed but for secret keys. A run is *wrong* where its verdict refuses nothing and the
mean of a latent lies more than 5 of its own posterior sds, and more than 5 of NUTS's, from NUTS's mean. *Raw* is an exception that is
no DPPPLError. Seconds are processor time with compilation, of dpppl and of NUTS (500 + 500 steps) in one process.
"""

import argparse
import json
import re
import resource
import signal
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

METHODS = ("NoiseAware", "SVI", "MCMC")
BUDGET = {"target_epsilon": 2.0, "target_delta": 1e-6, "print_cost": False}
FAR, LIMIT = 5.0, 300
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, KEPT = DOCS / "appendix" / "inputs.md", DOCS / "results" / "habits.json"


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
    """Samples of NUTS without privacy, from the prior's median: from a random start it may end in a mode of little weight."""
    import jax
    from numpyro.infer import MCMC, NUTS, init_to_median

    chain = MCMC(NUTS(model, init_strategy=init_to_median), num_warmup=500, num_samples=500, progress_bar=False)
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
    from benchmarks.verdict.habits_models import HABITS
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


def cell(row):
    """What came of a run, in a cell of the table."""
    if "seconds" not in row:
        return row["outcome"]
    words = "WRONG" if row.get("wrong") else "read" if row["read"] else "not read"
    return f"{'refused; cure: ' if row['outcome'] != 'runs' else ''}{words}"


def page(rows):
    """The page in Markdown: counts, then a line for each model."""
    from benchmarks.verdict.habits_models import HABITS

    by_model = {}
    for row in rows:
        by_model.setdefault((row["source"], row["model"]), {})[row["method"]] = row
    ran = [row for row in rows if "seconds" in row]
    wrong = [f"{row['model']} ({row['method']})" for row in rows if row.get("wrong")]
    count = lambda **want: sum(all(row.get(k) == v for k, v in want.items()) for row in rows)  # noqa: E731
    found = {
        "raw exceptions": count(outcome="raw"),
        "wrong posteriors that the verdict lets be read": count(wrong=True),
        "too slow": count(outcome="too slow"),
        "refused, and a cure was run": count(outcome="refused, cure runs"),
        "refused without a cure that ran": count(outcome="refused") + count(outcome="refused, and so is the cure"),
        "read": sum(row["read"] for row in ran),
        "not to be read": sum(not row["read"] for row in ran),
    }
    lines = [
        "## Habits of NumPyro's users",
        "",
        f"{len(by_model)} of {len(HABITS)} models as NumPyro's gallery, Stan's user guide and d3p's examples write them "
        "(`benchmarks/verdict/habits_models.py`), each with three",
        f"methods and their defaults: {len(rows)} of {len(METHODS) * len(HABITS)} runs, epsilon 2, delta 1e-6, 2,000 simulated rows.",
        "`python benchmarks/verdict/habits.py --write` makes this section from `docs/results/habits.json`; `python benchmarks/verdict/habits.py` first",
        "runs what is not there yet. A run is *wrong* where its verdict refuses nothing and the mean of a latent lies more than 5 of its own",
        "sds, and more than 5 of NUTS's, from NUTS's mean without privacy. *Raw* is an exception that is no `DPPPLError`. *Too slow* is",
        f"a model whose three runs and NUTS took more than {LIMIT:,} s of processor time.",
        "",
        "| runs | number |",
        "|---|---|",
        *(f"| {words} | {number} |" for words, number in found.items()),
        "",
        "Processor time with compilation, in one process; NUTS made 500 + 500 steps without privacy.",
        "",
        "| method | runs | read | median seconds | median ratio to NUTS's | largest ratio |",
        "|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        own = [row for row in ran if row["method"] == method]
        ratios = sorted(row["seconds"] / row["nuts"] for row in own if "nuts" in row)
        if ratios:
            middle = statistics.median(row["seconds"] for row in own)
            read = sum(row["read"] for row in own)
            lines.append(
                f"| {method} | {len(own)} | {read} | {middle:.0f} | {statistics.median(ratios):.1f} | {ratios[-1]:.1f} |"
            )
    lines += [
        "",
        f"Wrong ones: {', '.join(wrong) or 'none'}.",
        "Centred clipping expects the model's responses. Where data are of another law, its estimates differ from NUTS's. `NoiseAware` tests",
        "the model; SVI and chains do not ([Which method](../which-method.md)).",
        "",
        "A budget of epsilon 2 for 2,000 rows is too small for most chains: their verdicts say so.",
        "",
        f"| {' | '.join(METHODS)} | models |",
        f"|{'---|' * (len(METHODS) + 1)}",
    ]
    alike = {}
    for (_, model), methods in by_model.items():
        cells = tuple(cell(methods[method]) if method in methods else "not run" for method in METHODS)
        alike.setdefault(cells, []).append(model)
    lines += [f"| {' | '.join(cells)} | {'; '.join(models)} |" for cells, models in sorted(alike.items())]
    return "\n".join(lines) + "\n"


def rows_of(folder):
    """All rows in a folder, in the order of the models."""
    from benchmarks.verdict.habits_models import HABITS

    rows = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(rows, key=lambda row: ([*HABITS].index(row["model"]), METHODS.index(row["method"])))


def place(folder, name, method):
    """The file of a row."""
    return folder / f"{re.sub(r'[,:]', '', name).replace(' ', '_')}-{method}.json"


def main():
    from benchmarks.verdict.habits_models import HABITS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("build/habits"), help="a folder with a file for each run")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="models")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--again", action="store_true", help="also run what was run")
    parser.add_argument(
        "--write", action="store_true", help="run nothing; write docs/appendix/inputs.md and docs/results/habits.json"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    for row in json.loads(KEPT.read_text()) if KEPT.exists() and not args.one else ():
        path = place(args.results, row["model"], row["method"])
        if not path.exists():
            path.write_text(json.dumps(row))
    if args.write:
        rows = rows_of(args.results)
        KEPT.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
        before, _, rest = PAGE.read_text().partition("<!-- habits -->\n")
        after = rest.partition("<!-- end of habits -->\n")[2]
        PAGE.write_text(f"{before}<!-- habits -->\n{page(rows)}<!-- end of habits -->\n{after}")
        return
    for name in args.only or HABITS:
        paths = {method: place(args.results, name, method) for method in args.methods}
        if args.again:
            for path in paths.values():
                path.unlink(missing_ok=True)
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
