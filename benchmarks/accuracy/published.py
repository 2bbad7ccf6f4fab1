"""NoiseAware on problems for which others have published figures.

python benchmarks/accuracy/published.py napsu napsu_wide --num-data-sets 100       # next to NAPSU-MQ and DP-GLM
python benchmarks/accuracy/published.py linear --epsilons .1 .3 1 --num-data-sets 100    # next to noise-aware DPVI
python benchmarks/accuracy/published.py exponential bernoulli categorical --epsilons .1 1 --num-data-sets 100

`napsu`: three binary columns, two fair coins and a response with logistic coefficients (1, 0); N = 2,000, delta = 2.5e-7. Width
and coverage of the 95 % interval of the first coefficient; widths over those without privacy; priors N(0, 1) or
N(0, 3^2), and an intercept, which is 0.
The others: truths drawn from the prior. TARP's calibration error (Lemos, Coogan, Hezaveh, Perreault-Levasseur 2023), the mean
distance of its expected coverage from the nominal, with what as many data sets give by chance where coverage is exact; the
least p-value of latents' symmetry, shares of draws below the truth p against 1 - p, the test that NumPyro's vsbc_diagnostic
makes for its own SVI fits; coverage of 90 %.
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
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import ks_2samp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.calibration.noise_aware import Bench
from benchmarks.lib.noise_aware_wide import mu_of
from benchmarks.lib.results import written
from benchmarks.lib.tarp import calibration_error
from dpppl.noise_aware.bounds import Bounds


def binary(x, y=None, scale=3.0):
    weights = numpyro.sample("weights", dist.Normal(0.0, scale).expand([2]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, scale))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights + intercept), obs=y)


def linear(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, noise), obs=y)


def exponential(x, y=None):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 2.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Exponential(rate), obs=y)


def bernoulli(x, y=None):
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def categorical(x, y=None):
    p = numpyro.sample("p", dist.Dirichlet(jnp.full(4, 2.0)))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Categorical(p), obs=y)


def counted(rng, num_rows):
    """No covariates: a column that counts rows."""
    return np.zeros((num_rows, 1), np.float32)


PROBLEMS = {
    "linear": (linear, lambda rng, n: rng.standard_normal((n, 10)).astype(np.float32), 5_000),
    "exponential": (exponential, counted, 1_000),
    "bernoulli": (bernoulli, counted, 1_000),
    "categorical": (categorical, counted, 1_000),
}


def draws_of(bench, seed, mu):
    """Unconstrained draws of coordinates (n, d), the truth (d,), and the verdict."""
    args, trace = bench.data(seed)
    rows, _ = bench.coordinates.split.arrays(args, {})
    sites = bench.coordinates.split.latents
    truth = {s: dist.biject_to(trace[s]["fn"].support).inv(trace[s]["value"]) for s in sites}
    _, mixture, verdict = bench.released(rows, mu, Bounds())
    drawn = np.asarray(bench.vectors(bench.draws(mixture, seed)[0]), np.float64)
    return drawn, np.asarray(bench.coordinates.vector(truth, bench.public), np.float64), verdict


def calibration(name, epsilon, seeds):
    model, covariates, num_rows = PROBLEMS[name]
    bench, mu = Bench(model, covariates, num_rows), mu_of(epsilon)
    runs = [draws_of(bench, seed, mu) for seed in seeds]
    drawn, truths = np.array([run[0] for run in runs]), np.array([run[1] for run in runs])
    scales = bench.prior.scales
    error = calibration_error(drawn / scales, truths / scales, np.random.default_rng(0))
    # As many truths that are draws of the posteriors themselves: what is left is chance.
    rng = np.random.default_rng(1)
    as_good = [
        calibration_error(drawn / scales, drawn[:, rng.integers(drawn.shape[1])] / scales, rng) for _ in range(20)
    ]
    below = np.mean(drawn < truths[:, None], axis=1)
    covered = np.abs(below - 0.5) < 0.45
    return {
        "data sets": len(runs), "rows": num_rows, "TARP error": round(error, 4), "by chance": round(float(np.mean(as_good)), 4),
        "symmetry p": round(float(min(ks_2samp(p, 1.0 - p).pvalue for p in below.T)), 4),
        "cover 90 %": round(float(covered.mean()), 3),
        "standard error": round(float(covered.mean(axis=1).std(ddof=1) / np.sqrt(len(runs))), 3),
        "sd / prior sd": round(float(np.median(drawn.std(axis=1) / scales)), 4),
        "refused": sum(bool(run[2].refusals) for run in runs),
    }  # fmt: skip


def napsu(bench, epsilon, seeds):
    """The 95 % interval of the first coefficient."""
    mu, widths, without, covered, refused = mu_of(epsilon, 2.5e-7), [], [], [], 0
    for seed in seeds:
        drawn, truth, verdict = draws_of(bench, seed, mu)
        first = list(bench.coordinates.names()).index("weights[0]")
        low, high = np.quantile(drawn[:, first], [0.025, 0.975])
        rows, _ = bench.coordinates.split.arrays(bench.data(seed)[0], {})
        precision = -np.asarray(bench.hessian(jnp.asarray(truth, jnp.float32), rows))
        without.append(2 * 1.96 * np.sqrt(np.linalg.inv(precision)[first, first]))
        widths.append(high - low)
        covered.append(low < truth[first] < high)
        refused += bool(verdict.refusals)
    return {
        "data sets": len(widths), "width": round(float(np.mean(widths)), 3), "median": round(float(np.median(widths)), 3),
        "without privacy": round(float(np.mean(without)), 3), "cover 95 %": round(float(np.mean(covered)), 3),
        "refused": refused,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", choices=["napsu", "napsu_wide", *PROBLEMS])
    parser.add_argument("--epsilons", type=float, nargs="+")
    parser.add_argument("--num-data-sets", type=int, default=100)
    options = parser.parse_args()
    seeds = range(1_000, 1_000 + options.num_data_sets)
    for name in options.problems:
        if name.startswith("napsu"):
            model = partial(binary, scale=3.0 if name == "napsu_wide" else 1.0)
            truth = numpyro.handlers.condition(model, {"weights": jnp.array([1.0, 0.0]), "intercept": jnp.array(0.0)})
            bench = Bench(model, lambda rng, n: rng.integers(0, 2, size=(n, 2)).astype(np.float32), 2_000, truth)
            judged = partial(napsu, bench)
        else:
            judged = partial(calibration, name)
        for epsilon in options.epsilons or ([0.1, 0.25, 0.5, 1.0] if name.startswith("napsu") else [0.1, 0.3, 1.0]):
            start = time.perf_counter()
            found = judged(epsilon, seeds)
            written("published", f"{name}, epsilon {epsilon:g}", found)
            seconds = (time.perf_counter() - start) / len(seeds)
            print(f"{name}, epsilon {epsilon:g}: {found}; {seconds:.1f} s a data set", flush=True)
        jax.clear_caches()


if __name__ == "__main__":
    main()
