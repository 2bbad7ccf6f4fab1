"""Does NoiseAware agree with NUTS, and does its verdict tell where not, on data sets that nobody chose for their results?

python benchmarks/accuracy/unseen_data.py --nuts-only                 # open half: NUTS without privacy, kept in build/nuts
python benchmarks/accuracy/unseen_data.py --most-rows 8000            # runs of the open half; those of the results file are kept
python benchmarks/accuracy/unseen_data.py --half shut                 # once, at the end
python benchmarks/accuracy/unseen_data.py --table                     # tables of the page, from docs/results/unseen.json

The sets and models are in benchmarks/accuracy/unseen_sets.py. A cell is a set, a scaling of its columns, and an epsilon. In units of NUTS's sds,
over latents: `rms` and `worst` offset of a private mean, and `own`, the worst in the run's own sds; `mass`, the share of NUTS's draws in
private 90 % intervals; `width`, the median ratio of sds; `plan`, the width that `dpppl.accounting.plan` forecasts.

A run is *wrong* if a mean is more than 1 of NUTS's sds and 2.5 of its own off, or if the mass of its cell, over keys, is below .75.
"""

import argparse
import collections
import json
import os
import re
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import numpy as np
from scipy.stats import norm

from benchmarks.accuracy.oracle import planned, private
from benchmarks.accuracy.real_data import is_wrong, nuts
from benchmarks.accuracy.unseen_sets import OPEN, SETS, SHUT, frame, problem
from benchmarks.lib.oracle import flat
from benchmarks.lib.results import FOLDER, in_page, written

LEAST_MASS, SMALL = 0.75, (200, 3_000)


def reference(name, columns, folder):
    """The problem, NUTS's draws (n, d) and names; prints the seconds that it took and how far its halves are apart."""
    start = time.process_time()
    model, args, sd = problem(name, columns)
    draws, names = flat(nuts(model, args, folder / f"{name}-{columns}.npz"))
    first, second = np.split(draws[: len(draws) // 2 * 2], 2)
    apart = np.max(np.abs(first.mean(axis=0) - second.mean(axis=0)) / draws.std(axis=0))
    spent = time.process_time() - start
    print(
        f"  {name}, {columns}: {len(args[0]):,} rows, {len(names)} latents; NUTS {spent:.0f} s, halves {apart:.2f} sd apart",
        flush=True,
    )
    return model, args, sd, draws, names


def measured(name, columns, epsilon, keys, reference):
    """Numbers of a cell; each run's in lists."""
    model, args, sd, draws, names = reference
    centre, spread = draws.mean(axis=0), draws.std(axis=0)
    found = collections.defaultdict(list)
    for _ in range(keys):
        try:
            samples, verdict, line, seconds = private(model, args, epsilon)
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            print(f"    {name}, {columns}, epsilon {epsilon:g}: {type(error).__name__}: {error}"[:300], flush=True)
            return {"rows": len(args[0]), "latents": len(names), "failed": f"{type(error).__name__}: {error}"[:200]}
        drawn, own_names = flat({site: samples[site] for site in {name.split("[")[0] for name in names}})
        assert own_names == names
        off, width = (drawn.mean(axis=0) - centre) / spread, drawn.std(axis=0) / spread
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        mass = np.mean((low <= draws) & (draws <= high), axis=0)
        numbers = {
            "rms": np.sqrt(np.mean(off**2)), "worst": np.max(np.abs(off)), "own": np.max(np.abs(off) / width),
            "mass": mass.mean(), "width": np.median(width), "widest": width.max(), "seconds": seconds,
        }  # fmt: skip
        for key, value in numbers.items():
            found[key].append(round(float(value), 3))
        found["off"].append(is_wrong(off, width))
        found["verdict"].append(verdict)
        found["line"].append(line[:160])
        print(
            f"    {name}, {columns}, epsilon {epsilon:g}: rms {numbers['rms']:.2f}, worst {numbers['worst']:.2f} at {names[np.argmax(np.abs(off))]}, "
            f"{numbers['own']:.1f} of its own, mass {mass.mean():.2f}, width {np.median(width):.2f} (max {width.max():.1f}), "
            f"{'WRONG' if found['off'][-1] else 'right'}, {seconds:.0f} s; {line[:110]}",
            flush=True,
        )
    plan = planned(len(args[0]), len(names), epsilon, sd, float(np.median(spread**2)))
    return {"rows": len(args[0]), "latents": len(names), "plan": plan and round(plan, 3)} | dict(found)


def runs_of(cells):
    """(cell's key, rows, verdict, whether it is wrong) of all runs."""
    for key, cell in cells.items():
        if "failed" not in cell:
            low = np.mean(cell["mass"]) < LEAST_MASS
            for verdict, off in zip(cell["verdict"], cell["off"]):
                yield key, cell["rows"], verdict, off or low


def by_chance(cells):
    """How many runs that were read would be wrong, if posteriors of their widths were right given what was released."""
    total = 0.0
    for cell in cells.values():
        for verdict, *widths in zip(cell.get("verdict", ()), cell.get("width", ()), cell.get("widest", ())):
            ratios = np.maximum(widths, 1.01)  # of own sd to NUTS's: means are apart by (ratio^2 - 1)^(1/2) of NUTS's
            chances = 2.0 * norm.sf(np.maximum(2.5 * ratios, 1.0) / np.sqrt(ratios**2 - 1.0))
            total += (verdict == "read") * (1.0 - (1.0 - chances[0]) ** (cell["latents"] - 1) * (1.0 - chances[1]))
    return total


def summary(cells):
    """Of each epsilon and half: what the verdict says of right and wrong runs, and how near forecasts are."""
    lines = [
        "| half | epsilon | runs | read and wrong | of these by chance | with care and wrong | refused and wrong | right: read, care, refused | 200 to 3,000 rows: read of right "
        "| plan / measured width: median, within 30 % | failed |",
        "|" + "---|" * 11,
    ]
    for half, names in (("open", OPEN), ("shut", SHUT)):
        for epsilon in sorted({key.split("@")[1] for key in cells}, key=float):
            kept = {
                key: cell for key, cell in cells.items() if key.split(",")[0] in names and key.split("@")[1] == epsilon
            }
            runs = list(runs_of(kept))
            if not runs:
                continue
            wrong = [sum(w and verdict == kind for _, _, verdict, w in runs) for kind in ("read", "care", "refused")]
            right = [
                sum(not w and verdict == kind for _, _, verdict, w in runs) for kind in ("read", "care", "refused")
            ]
            small = [verdict == "read" for _, rows, verdict, w in runs if not w and SMALL[0] <= rows <= SMALL[1]]
            ratios = np.array([c["plan"] / np.median(c["width"]) for c in kept.values() if c.get("plan")])
            near = f"{np.median(ratios):.2f}, {np.mean(abs(ratios - 1.0) <= 0.3):.0%}" if len(ratios) else ""
            share = f"{np.mean(small):.0%} of {len(small)}" if small else ""
            failed = sum("failed" in cell for cell in kept.values())
            shares = ", ".join(f"{count / max(sum(right), 1):.0%}" for count in right)
            lines.append(
                f"| {half} | {epsilon} | {len(runs)} | {wrong[0]} | {by_chance(kept):.1f} | {wrong[1]} | {wrong[2]} | {shares} | {share} | {near} | {failed} |"
            )
    return "\n".join(lines)


def table(cells):
    """A line a set: for each kind of columns and epsilon the mass, the median width, verdicts, and runs that are wrong."""
    columns = [(kind, epsilon) for kind in ("public", "standard") for epsilon in ("1", "3")]
    titles = [f"{kind} columns, epsilon {epsilon}" for kind, epsilon in columns]
    lines = [f"| set | half | rows, latents | {' | '.join(titles)} |", "|" + "---|" * 7]
    sets = {key.split(",")[0]: (cell["rows"], cell["latents"]) for key, cell in cells.items()}
    for name, (rows, latents) in sorted(sets.items(), key=lambda item: (item[1], item[0])):
        words = [f"{name} | {'open' if name in OPEN else 'shut'} | {rows:,}, {latents}"]
        for kind, epsilon in columns:
            key = f"{name}, {kind}@{epsilon}"
            cell = cells.get(key, {"failed": "none"})
            if "failed" in cell:
                words.append(cell["failed"])
                continue
            counts = "/".join(str(cell["verdict"].count(word)) for word in ("read", "care", "refused"))
            wrong = sum(w for *_, w in runs_of({key: cell}))
            told = f", {wrong} wrong" if wrong else ""
            words.append(f"{np.mean(cell['mass']):.2f}, {np.median(cell['width']):.2f}, {counts}{told}")
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines)


def reasons(cells):
    """First findings of runs that are not read, by how many runs they are of: right, wrong."""
    found = collections.defaultdict(lambda: [0, 0])
    for cell in cells.values():
        low = np.mean(cell.get("mass", 1.0)) < LEAST_MASS
        for verdict, off, line in zip(cell.get("verdict", ()), cell.get("off", ()), cell.get("line", ())):
            if verdict != "read":
                found[" ".join(re.sub(r"[-.\d]*\d", "#", line).split()[:9])][int(off or low)] += 1
    lines = ["| first finding | right runs | wrong runs |", "|---|---|---|"]
    ordered = sorted(found.items(), key=lambda item: -sum(item[1]))
    return "\n".join([*lines, *(f"| {line} ... | {right} | {wrong} |" for line, (right, wrong) in ordered)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), help="by name, instead of a half")
    parser.add_argument("--half", choices=["open", "shut"], default="open")
    parser.add_argument("--columns", nargs="+", choices=["public", "standard"], default=["public", "standard"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--most-rows", type=int, default=50_000)
    parser.add_argument(
        "--nuts", type=Path, default=FOLDER.parents[1] / "build" / "nuts", help="folder where draws of NUTS are kept"
    )
    parser.add_argument("--nuts-only", action="store_true", help="data and NUTS alone")
    parser.add_argument("--results", default="unseen", help="name of the file in docs/results")
    parser.add_argument("--again", action="store_true", help="measure cells that the file has, too")
    parser.add_argument("--table", action="store_true", help="write the tables of the page from the file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    path = FOLDER / f"{options.results}.json"
    load = lambda: json.loads(path.read_text()) if path.exists() else {}  # noqa: E731
    if options.table:
        cells = load()
        for mark, text in (("summary", summary(cells)), ("reasons", reasons(cells)), ("sets", table(cells))):
            print(in_page(f"{options.results} {mark}", text))
        return
    names = options.sets or (OPEN if options.half == "open" else SHUT)
    sizes = {name: len(frame(name)) for name in names}
    for name in sorted(names, key=sizes.get):
        for columns in options.columns if sizes[name] <= options.most_rows else ():
            wanted = [e for e in options.epsilons if options.again or f"{name}, {columns}@{e:g}" not in load()]
            if wanted or options.nuts_only:
                found = reference(name, columns, options.nuts)
                for epsilon in [] if options.nuts_only else wanted:
                    written(
                        options.results,
                        f"{name}, {columns}@{epsilon:g}",
                        measured(name, columns, epsilon, options.keys, found),
                    )
            jax.clear_caches()
    if not options.nuts_only:
        print(f"{summary(load())}\n\n{reasons(load())}\n\n{table(load())}")


if __name__ == "__main__":
    main()
