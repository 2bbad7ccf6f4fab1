"""Do combined analyses of synthetic tables cover? Three binary columns, a logistic coefficient, as NAPSU-MQ was measured.

python benchmarks/synthetic.py --repetitions 20 --epsilons .25 1

A line an epsilon: coverage of 95 % intervals of the two slopes by each rule, and of one table analysed as if real; median width;
NAPSU-MQ's published width at that epsilon (Räisä, Jälkö, Kaski, Honkela 2023); runs that the verdict refuses; seconds a fit.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dpppl
from benchmarks.results import written
from dpppl import synthetic

TRUTH = np.array([-0.5, 1.0, -0.8])
PUBLISHED = {0.1: 1.77, 0.25: 0.77, 0.5: 0.50, 1.0: 0.43}
SCHEMA = synthetic.Schema(tuple(synthetic.Category(name, (0, 1)) for name in ("a", "b", "y")))


def table(rng, num_rows):
    a, b = rng.random(num_rows) < 0.5, rng.random(num_rows) < 0.5
    y = rng.random(num_rows) < 1 / (1 + np.exp(-(TRUTH[0] + TRUTH[1] * a + TRUTH[2] * b)))
    return {"a": a.astype(int), "b": b.astype(int), "y": y.astype(int)}


def logistic(columns):
    """Maximum likelihood estimates of (intercept, a, b), and their variances."""
    a, b, y = (np.asarray(columns[name], float) for name in ("a", "b", "y"))
    x, weights = np.stack([np.ones_like(a), a, b], axis=1), np.zeros(3)
    for _ in range(15):
        p = 1 / (1 + np.exp(-x @ weights))
        curvature = (x * (p * (1 - p))[:, None]).T @ x
        weights = weights + np.linalg.solve(curvature, x.T @ (y - p))
    return weights, np.diag(np.linalg.inv(curvature))


def run(seed, epsilon, options):
    rng = np.random.default_rng(seed)
    model, start = synthetic.table_model(SCHEMA), time.process_time()
    private = dpppl.NoiseAware(
        model, target_epsilon=epsilon, target_delta=options.delta, print_cost=False, progress_bar=False
    )
    private.run(dpppl.secret_key(), *SCHEMA.encoded(table(rng, options.rows)))
    seconds = time.process_time() - start
    samples = private.get_samples(allow_unconverged=True)
    tables = synthetic.datasets(
        model,
        samples,
        SCHEMA,
        jax.random.key(seed),
        num_rows=options.larger * options.rows,
        num_datasets=options.tables,
    )
    estimates, variances = (np.array(values) for values in zip(*map(logistic, tables)))
    found = {"seconds": seconds, "refused": float(bool(private.verdict.refusals))}
    for rule in synthetic.RULES:
        low, high = synthetic.combine(estimates, variances, rule=rule, size_ratio=options.larger).interval(0.95)
        found[f"{rule} covers"] = np.mean((low <= TRUTH)[1:] & (TRUTH <= high)[1:])
        found[f"{rule} width"] = np.mean((high - low)[1:])
    half = 1.96 * np.sqrt(variances[0] * options.larger)
    found["one table covers"] = np.mean(np.abs(estimates[0] - TRUTH)[1:] <= half[1:])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.25, 0.5, 1.0])
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=np.inf, help="no more repetitions of an epsilon after so long")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--larger", type=int, default=10, help="rows of a synthetic table over rows of the data")
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--delta", type=float, default=2.5e-7)
    options = parser.parse_args()
    for epsilon in options.epsilons:
        runs, start = [], time.monotonic()
        for i in range(options.repetitions):
            if time.monotonic() - start < options.seconds:
                runs.append(run(options.first + i, epsilon, options))
        median = lambda name: float(np.median([one[name] for one in runs]))  # noqa: B023, E731
        line = {
            n: round(float(np.mean([one[n] for one in runs])), 3) for n in runs[0] if "covers" in n or n == "refused"
        }
        line |= {n: round(median(n), 3) for n in runs[0] if "width" in n or n == "seconds"}
        line |= {"repetitions": len(runs), "NAPSU-MQ width": PUBLISHED.get(epsilon)}
        written("synthetic", f"three binary columns, epsilon {epsilon:g}", line)
        print(epsilon, line, flush=True)


if __name__ == "__main__":
    main()
