"""Do combined analyses of synthetic tables cover? Three binary columns, a logistic coefficient, as NAPSU-MQ was measured.

python benchmarks/calibration/synthetic.py --repetitions 200 --epsilons .1 .25 .5 1 --keep runs.jsonl    # may be broken off and taken up again

A line an epsilon: coverage of 95 % intervals of the two slopes by each rule, and of one table analysed as if real; median width;
NAPSU-MQ's published width at that epsilon (Räisä, Jälkö, Kaski, Honkela 2023); runs that the verdict refuses; seconds a fit.
"""

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.lib.repeated import Once, recorded
from benchmarks.lib.results import written
from dpppl.contrib import synthetic

TRUTH = np.array([-0.5, 1.0, -0.8])
PUBLISHED = {0.1: 1.77, 0.25: 0.77, 0.5: 0.50, 1.0: 0.43}
SCHEMA = synthetic.Schema(tuple(synthetic.Category(name, (0, 1)) for name in ("a", "b", "y")))


def table(rng, num_rows):
    a, b = rng.random(num_rows) < 0.5, rng.random(num_rows) < 0.5
    y = rng.random(num_rows) < 1 / (1 + np.exp(-(TRUTH[0] + TRUTH[1] * a + TRUTH[2] * b)))
    return {"a": a.astype(int), "b": b.astype(int), "y": y.astype(int)}


def logistic(columns):
    """Maximum likelihood estimates of (intercept, a, b), and their variances, from counts of the eight cells."""
    cells = sum(np.asarray(columns[name], int) * 2**k for k, name in enumerate(("a", "b", "y")))
    counts = np.bincount(cells, minlength=8).reshape(2, 4)  # by y, and by a + 2 b
    x = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1]], float)
    total, weights = counts.sum(axis=0), np.zeros(3)
    for _ in range(15):
        p = 1 / (1 + np.exp(-x @ weights))
        curvature = (x * (total * p * (1 - p))[:, None]).T @ x
        weights = weights + np.linalg.solve(curvature, x.T @ (counts[1] - total * p))
    return weights, np.diag(np.linalg.inv(curvature))


MODEL, ONCE = synthetic.table_model(SCHEMA), Once()


def run(epsilon, options, seed):
    rng, start = np.random.default_rng(seed), time.process_time()
    target, data = dict(target_epsilon=epsilon, target_delta=options.delta), table(rng, options.rows)
    if options.method == "cells":
        found = synthetic.fit_cells(dpppl.secret_key(), MODEL, SCHEMA, data, **target)
        samples, refusals = found.samples, found.refusals
    else:
        private = dpppl.NoiseAware(MODEL, **target, print_cost=False, progress_bar=False)
        with ONCE:
            private.run(dpppl.secret_key(), *SCHEMA.encoded(data))
        samples, refusals = private.get_samples(allow_unconverged=True), private.verdict.refusals
    seconds, size, key = time.process_time() - start, options.larger * options.rows, jax.random.key(seed)
    tables = synthetic.datasets(key, MODEL, samples, SCHEMA, num_rows=size, num_datasets=options.tables)
    estimates, variances = (np.array(values) for values in zip(*map(logistic, tables)))
    found = {"seconds": seconds, "refused": float(bool(refusals))}
    for rule in synthetic.RULES:
        low, high = synthetic.combine(estimates, variances, rule=rule, size_ratio=options.larger).interval(0.95)
        found[f"{rule} covers"] = float(np.mean((low <= TRUTH)[1:] & (TRUTH <= high)[1:]))
        found[f"{rule} width"] = float(np.mean((high - low)[1:]))
    half = 1.96 * np.sqrt(variances[0] * options.larger)
    found["one table covers"] = float(np.mean(np.abs(estimates[0] - TRUTH)[1:] <= half[1:]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.25, 0.5, 1.0])
    parser.add_argument("--method", choices=("cells", "NoiseAware"), default="cells")
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--keep", help="a file of JSON lines that holds what each repetition found")
    parser.add_argument("--seconds", type=float, default=np.inf, help="no more repetitions of an epsilon after so long")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--larger", type=int, default=10, help="rows of a synthetic table over rows of the data")
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--delta", type=float, default=2.5e-7)
    options = parser.parse_args()
    for epsilon in options.epsilons:
        seeds = range(options.first, options.first + options.repetitions)
        runs = recorded(
            options.keep, f"{options.method} {epsilon:g}", seeds, partial(run, epsilon, options), options.seconds
        )
        median = lambda name: float(np.median([one[name] for one in runs]))  # noqa: B023, E731
        line = {
            n: round(float(np.mean([one[n] for one in runs])), 3) for n in runs[0] if "covers" in n or n == "refused"
        }
        line |= {n: round(median(n), 3) for n in runs[0] if "width" in n or n == "seconds"}
        spread = np.std([one["fully_synthetic covers"] for one in runs])
        line["fully_synthetic covers, se"] = round(float(spread / np.sqrt(len(runs))), 3)
        line |= {"repetitions": len(runs), "NAPSU-MQ width": PUBLISHED.get(epsilon)}
        written("synthetic", f"three binary columns by {options.method}, epsilon {epsilon:g}", line)
        print(options.method, epsilon, line, flush=True)


if __name__ == "__main__":
    main()
