"""The power of NoiseAware's verdict: data that the model describes, and data that it does not; by `NoiseAware.run`.

python benchmarks/verdict/verdict.py squared_logit squared outliers symmetric --epsilons .5 2 --num-data-sets 20
python benchmarks/verdict/verdict.py logistic_4 logistic_10 linear poisson --compiled-once --num-data-sets 40
python benchmarks/verdict/verdict.py coded diabetes outliers squared --compiled-once --epsilons 2

A line: of the data sets, truths drawn from the prior, how many the verdict finds the model wrong for, refuses for another reason,
reads with care, and warns of labels that may change places (by `NoiseAware.run` alone); the largest error in sd of the
posterior, its median over data sets (none where responses are real); seconds.
"""

import argparse
import functools
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.calibration.noise_aware import Bench
from benchmarks.lib.noise_aware_models import MODELS, WRONG, normal_covariates
from benchmarks.lib.noise_aware_wide import mu_of
from benchmarks.lib.results import written
from dpppl.noise_aware.bounds import Bounds
from models.logistic_regression import gaussian

LOGISTIC = {f"logistic_{d}": (gaussian, normal_covariates(d - 1, 2.0)) for d in (4, 10)}


def run(name, num_rows, epsilon, seed):
    """What the verdict says of one data set."""
    model, covariates, *truth = (LOGISTIC | MODELS | WRONG)[name]
    x = covariates(np.random.default_rng(seed), num_rows)
    seeded = numpyro.handlers.seed(truth[0] if truth else model, jax.random.key(seed))
    trace = numpyro.handlers.trace(seeded).get_trace(x)
    private = dpppl.NoiseAware(model, target_epsilon=epsilon, target_delta=1e-5, print_cost=False, progress_bar=False)
    private.run(dpppl.secret_key(), x, np.asarray(trace["y"]["value"]))
    verdict, off = private.verdict, []
    for site, drawn in private.get_samples(allow_unconverged=True).items():
        if site not in trace:  # responses that are real
            continue
        off.append(np.max(np.abs(np.mean(drawn, 0) - trace[site]["value"]) / np.std(drawn, 0)))
    doubted = verdict.misfit is not None
    return {
        "doubted": doubted, "refused otherwise": bool(verdict.refusals) and not doubted,
        "with care": bool(verdict.doubts) and not verdict.refusals,
        "labels": bool(verdict.symmetric), "error": float(max(off, default=np.nan)),
    }  # fmt: skip


@functools.cache
def bench_of(name, num_rows):
    model, covariates, *truth = (LOGISTIC | MODELS | WRONG)[name]
    return Bench(model, covariates, num_rows, *truth)


def run_compiled(name, num_rows, epsilon, seed):
    """The same recipe and verdict by programs that all data sets share; no samples."""
    bench = bench_of(name, num_rows)
    args, trace = bench.data(seed)
    rows, _ = bench.coordinates.split.arrays(args, {})
    _, mixture, verdict = bench.released(rows, mu_of(epsilon), Bounds())
    doubted, found = verdict.misfit is not None, mixture.moments()
    with_care = bool(verdict.doubts) and not verdict.refusals
    numbers = {"doubted": doubted, "refused otherwise": bool(verdict.refusals) and not doubted, "with care": with_care}
    latents = bench.coordinates.split.latents
    if not all(site in trace for site in latents):  # responses that are real
        return numbers
    truth = {s: dist.biject_to(trace[s]["fn"].support).inv(trace[s]["value"]) for s in latents}
    off = np.asarray(bench.coordinates.vector(truth, bench.public), np.float64) - found.mean
    return numbers | {"error": float(np.max(np.abs(off) / np.sqrt(found.variance)))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=[*LOGISTIC, *MODELS, *WRONG])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 2.0])
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--num-data-sets", type=int, default=20)
    parser.add_argument("--compiled-once", action="store_true", help="many data sets in little time, without samples")
    parser.add_argument("--first", type=int, default=100)
    options = parser.parse_args()
    print(
        "| model | epsilon | data sets | doubted | refused otherwise | with care | labels | error, median | seconds |\n|---"
        + "|---" * 8
        + "|"
    )
    for name in options.models:
        for epsilon in options.epsilons:
            start = time.perf_counter()
            seeds = range(options.first, options.first + options.num_data_sets)
            one = run_compiled if options.compiled_once else run
            rows = 442 if name == "diabetes" else options.rows
            runs = [one(name, rows, epsilon, seed) for seed in seeds]
            seconds = (time.perf_counter() - start) / len(runs)
            counts = {
                key: sum(run.get(key, 0) for run in runs)
                for key in ("doubted", "refused otherwise", "with care", "labels")
            }
            errors = [run.get("error", np.nan) for run in runs]
            error = float(np.median(errors))
            numbers = {"rows": rows, "data sets": len(runs)} | counts
            numbers |= (
                {} if np.isnan(error) else {"error, median": round(error, 2), "error, largest": round(max(errors), 2)}
            )
            written("verdict", f"{name}, epsilon {epsilon:g}{', compiled once' * options.compiled_once}", numbers)
            print(
                f"| {name} | {epsilon:g} | {len(runs)} | {' | '.join(map(str, counts.values()))} | {error:.2f} | {seconds:.1f} |",
                flush=True,
            )
            jax.clear_caches()


if __name__ == "__main__":
    main()
