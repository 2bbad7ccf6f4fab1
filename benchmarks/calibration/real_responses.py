"""Do NoiseAware's intervals hold the posterior without privacy where responses are real, too?

python benchmarks/calibration/real_responses.py wine diabetes breast digits adult --epsilons .3 1 3 8 --num-runs 6

Logistic regression of breast cancer, digits (above 4 or not), wine (the first kind or not) and Adult (6,000 rows, one-hot), and
linear regression, of unknown noise, of diabetes, the response in sds; N(0, 1) priors. A line: the mass of the posterior
without privacy (Laplace's, or NUTS's for diabetes) in the private central 90 % intervals, a mean over latents and runs, with
its standard error over runs; the mass in the prior's own intervals; the median sd over that without privacy; what is said to be learned; and how many runs the verdict refuses.
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
from numpyro.infer import MCMC, NUTS

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.accuracy.alternatives import diabetes, linear
from benchmarks.accuracy.prediction import columns, exact, model
from benchmarks.calibration.noise_aware import Bench
from benchmarks.lib.noise_aware_wide import mu_of
from benchmarks.lib.results import written
from dpppl.noise_aware.bounds import Bounds
from examples import data


def rows_of(name):
    """A column of ones and the others, and responses."""
    from sklearn import datasets

    if name in ("breast", "digits"):
        return columns(name)
    if name == "diabetes":
        y = datasets.load_diabetes().target
        return diabetes(None, None), ((y - y.mean()) / y.std()).astype(np.float32)
    if name == "adult":
        x, y, *_ = data.adult()
        x, y = x[:6_000], y[:6_000]
        x = x[:, x.std(axis=0) > 0]
    else:
        wine = datasets.load_wine()
        x, y = (wine.data - wine.data.mean(0)) / wine.data.std(0) / 2.0, wine.target == 0
    return np.column_stack([np.ones(len(x)), x]).astype(np.float32), np.asarray(y, np.float32)


def without_privacy(name, x, y):
    """Draws (n, d) in the coordinates of a run, unconstrained."""
    if name != "diabetes":
        return exact(x.astype(np.float64), y)
    nuts = MCMC(NUTS(linear), num_warmup=500, num_samples=1_000, progress_bar=False)
    nuts.run(jax.random.key(0), x, y)
    found = nuts.get_samples()
    return np.column_stack([np.log(found["noise"]), found["w"]])


def run(bench, reference, seed, mu):
    """The mass of the reference in 90 % intervals, by latent; the median sd over its own; the share learned; whether refused."""
    rows, _ = bench.coordinates.split.arrays(bench.data(0)[0], {})
    _, mixture, verdict = bench.released(rows, mu, Bounds())
    drawn = np.asarray(bench.vectors(bench.draws(mixture, seed)[0]))
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    mass = np.mean((low <= reference) & (reference <= high), axis=0)
    said = 1.0 - np.mean(drawn.var(axis=0) / bench.prior.variance)
    return mass.mean(), np.median(drawn.std(axis=0) / reference.std(axis=0)), said, bool(verdict.refusals)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", choices=["wine", "diabetes", "breast", "digits", "adult"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.3, 1.0, 3.0, 8.0])
    parser.add_argument("--num-runs", type=int, default=6)
    options = parser.parse_args()
    print(
        "| data | epsilon | runs | mass in 90 % (se) | sd / non-private | said | refused |\n|---|---|---|---|---|---|---|"
    )
    for name in options.data:
        x, y = rows_of(name)
        reference = without_privacy(name, x, y)
        response = partial(numpyro.deterministic, "y", y)
        made = linear if name == "diabetes" else model
        bench = Bench(made, lambda rng, n, x=x: x, len(x), lambda x, response=response: response())
        own = float(np.mean(np.abs(reference - bench.prior.mean) < 1.645 * bench.prior.scales))
        for epsilon in options.epsilons:
            runs = [run(bench, reference, seed, mu_of(epsilon)) for seed in range(options.num_runs)]
            mass, width, said, refused = (np.array(each, float) for each in zip(*runs))
            error = mass.std(ddof=1) / np.sqrt(len(mass))
            line = f"{mass.mean():.3f} ({error:.3f}) | {own:.2f} | {np.median(width):.2f} | {said.mean():.2f} | {refused.sum():.0f}"
            print(f"| {name} | {epsilon:g} | {len(runs)} | {line} |", flush=True)
            numbers = {
                "runs": len(runs),
                "mass": round(float(mass.mean()), 3),
                "standard error": round(float(error), 3),
            }
            numbers |= {"sd / non-private": round(float(np.median(width)), 2), "said": round(float(said.mean()), 3)}
            written("real_responses", f"{name}, epsilon {epsilon:g}", numbers | {"refused": int(refused.sum())})
        jax.clear_caches()


if __name__ == "__main__":
    main()
