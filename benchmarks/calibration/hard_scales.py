"""Scales that are hard to learn: the sd among 20 groups, and a small sd of the responses of a linear regression.

python benchmarks/calibration/hard_scales.py groups sigma_.14 sigma_.1 --epsilons 1 --num-data-sets 20

`groups`: 20 groups of equal size, 4,000 binary responses, truths drawn from the prior; `sigma_S`: 2,000 rows, 3 covariates,
truths drawn from the prior but for the sd of responses, which is S, under HalfNormal(1). A line: the mean, the root mean square and
the largest of (mean - truth) / sd of the scale's logarithm; the share of truths in 90 % intervals; how many data sets the verdict
refuses, and how many it doubts; errors above 5 sd that it does not refuse.
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np
import numpyro

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.calibration.noise_aware import Bench
from benchmarks.lib.noise_aware_models import groups, normal_covariates
from benchmarks.lib.noise_aware_wide import mu_of
from benchmarks.lib.results import written
from dpppl.noise_aware.bounds import Bounds
from models.linear_regression import linear_regression


def problem(name):
    """A bench, and the scale's site."""
    if name == "groups":
        numbers = lambda rng, n: np.arange(n, dtype=np.int32) % 20  # noqa: E731
        return Bench(partial(groups, num_groups=20), numbers, 4_000), "spread"
    truth = numpyro.handlers.condition(linear_regression, {"noise": np.float32(name.removeprefix("sigma_"))})
    return Bench(linear_regression, normal_covariates(3), 2_000, truth), "noise"


def run(bench, site, seed, mu):
    """(mean - truth) / sd of the log scale, the share of draws below the truth, whether refused, whether doubted."""
    args, trace = bench.data(seed)
    rows, _ = bench.coordinates.split.arrays(args, {})
    _, mixture, verdict = bench.released(rows, mu, Bounds())
    drawn = np.asarray(bench.draws(mixture, seed)[0][site], np.float64)
    truth = np.log(float(trace[site]["value"]))
    doubted = bool(verdict.doubts) or bool(verdict.blurred and bench.coordinates.through)
    return (drawn.mean() - truth) / drawn.std(), np.mean(drawn < truth), bool(verdict.refusals), doubted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", help="groups, or sigma_ and a number")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--num-data-sets", type=int, default=20)
    options = parser.parse_args()
    print(
        "| scale | epsilon | data sets | mean z | z rms | largest | 90 % | refused | doubted | above 5, read |\n"
        + "|---" * 10
        + "|"
    )
    for name in options.problems:
        bench, site = problem(name)
        for epsilon in options.epsilons:
            runs = [run(bench, site, seed, mu_of(epsilon)) for seed in range(300, 300 + options.num_data_sets)]
            z, below, refused, doubted = (np.array(each, float) for each in zip(*runs))
            numbers = {
                "data sets": len(runs), "mean z": z.mean(), "z rms": np.sqrt(np.mean(z**2)), "largest": z[np.argmax(np.abs(z))],
                "cover 90 %": np.mean(np.abs(below - 0.5) < 0.45), "refused": refused.sum(), "doubted": doubted.sum(),
                "above 5, read": np.sum((np.abs(z) > 5.0) & (refused == 0)),
            }  # fmt: skip
            numbers = {key: round(float(value), 2) for key, value in numbers.items()}
            print(f"| {name} | {epsilon:g} | {' | '.join(f'{value:g}' for value in numbers.values())} |", flush=True)
            written("scales", f"{name}, epsilon {epsilon:g}", numbers)
        jax.clear_caches()


if __name__ == "__main__":
    main()
