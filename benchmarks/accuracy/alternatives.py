"""Alternatives to NoiseAware: ten problems, epsilon 1, delta 1e-5, compared with four other methods.

python benchmarks/accuracy/alternatives.py --num-data-sets 3
python benchmarks/accuracy/alternatives.py --problems "linear, 5" "Abalone" --methods NoiseAware SVI

A line: the root mean square over latents and data sets of (mean - mean of the posterior without privacy), in sds of that
posterior, which NUTS samples; then the coverage of 90 % intervals: of the truth where it is known, otherwise of the posterior
without privacy. "sums": X'X, X'y and y'y with noise, then the conjugate posterior as if they were exact; rows are bounded by their
largest norm as if that were public. "output": output perturbation with the best of three strengths of its penalty, chosen with
the answer in hand; a point, so without intervals; rows scaled by their largest norm as if that were public.
"""

import argparse
import os
import sys
import time
import warnings
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from numpyro.infer.autoguide import AutoNormal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.accuracy.prediction import columns, model
from benchmarks.lib.noise_aware_models import groups, normal_covariates, ordinal, student_t
from benchmarks.lib.noise_aware_wide import mu_of
from benchmarks.lib.results import written
from examples import data
from examples.baselines.perturbation import output_perturbation
from models.poisson_regression import poisson_regression

BUDGET = {"target_epsilon": 1.0, "target_delta": 1e-5, "print_cost": False}


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)


def with_one(x):
    return np.column_stack([np.ones(len(x)), x]).astype(np.float32)


def correlated(rng, n):
    x = np.sqrt(0.02) * rng.standard_normal((n, 5)) + np.sqrt(0.98) * rng.standard_normal((n, 1))
    return with_one(x)


def diabetes(rng, n):
    from sklearn.datasets import load_diabetes

    x = load_diabetes().data
    return with_one(x / x.std(axis=0) / np.sqrt(10.0))


def normal(dimension):
    drawn = normal_covariates(dimension, 2.0)
    return lambda rng, n: with_one(drawn(rng, n))


PROBLEMS = {
    "linear, 5": (linear, normal(5), 2_000),
    "linear, diabetes": (linear, diabetes, 442),
    "logistic, 5": (model, normal(5), 5_000),
    "logistic, breast cancer": (model, lambda rng, n: columns("breast")[0], 569),
    "logistic, correlated": (model, correlated, 2_000),
    "Poisson": (poisson_regression, normal_covariates(4), 5_000),
    "8 groups": (groups, lambda rng, n: rng.integers(0, 8, n).astype(np.int32), 5_000),
    "Student-t": (student_t, normal_covariates(4), 5_000),
    "ordered logistic": (ordinal, normal_covariates(3), 5_000),
    "Abalone": (model, None, None),
}


def simulated(name, seed):
    """Covariates, responses, and the truth by site, where it is known."""
    made, covariates, num_rows = PROBLEMS[name]
    if covariates is None:
        x, y, *_ = data.abalone()
        return with_one(x), np.asarray(y, np.float32), None
    x = covariates(np.random.default_rng(seed), num_rows)
    trace = numpyro.handlers.trace(numpyro.handlers.seed(made, jax.random.key(seed))).get_trace(x)
    truth = {site: t["value"] for site, t in trace.items() if t["type"] == "sample" and site != "y"}
    return x, np.asarray(trace["y"]["value"]), truth


def flat(samples):
    """Draws (n, d), by site in alphabetical order."""
    return np.concatenate([np.asarray(v, np.float64).reshape(len(v), -1) for _, v in sorted(samples.items())], axis=1)


def noise_aware(made, x, y):
    private = dpppl.NoiseAware(made, progress_bar=False, **BUDGET)
    private.run(dpppl.secret_key(), x, y)
    return flat(private.get_samples(allow_unconverged=True)), bool(private.verdict.refusals)


def svi(made, x, y):
    fitted = dpppl.SVI(made, AutoNormal(made), **BUDGET)
    result = fitted.run(dpppl.secret_key(), None, x, y, progress_bar=False)
    return flat(fitted.guide.sample_posterior(jax.random.key(0), result.params, sample_shape=(1_000,))), False


def langevin(made, x, y):
    mcmc = dpppl.MCMC(dpppl.DPSGLD(made), num_warmup=1_000, num_samples=1_000, progress_bar=False, **BUDGET)
    mcmc.run(dpppl.secret_key(), x, y)
    return flat(mcmc.get_samples()), any(np.any(np.ravel(v) != "read") for v in mcmc.verdict.by_site.values())


def sums(made, x, y):
    """The noise scale is put at its estimate; its own latent, the first, too."""
    if made is not linear:
        return None
    rng, rows = np.random.default_rng(), np.column_stack([x, y]).astype(np.float64)
    bound = np.max(np.sum(rows**2, axis=1))
    noise = rng.standard_normal((rows.shape[1],) * 2) * bound / mu_of(1.0)
    total = (
        rows.T @ rows + (noise + noise.T) / 2.0
    )  # sd 1 on the diagonal, 1 / sqrt 2 off it, in units of the sensitivity
    values, vectors = np.linalg.eigh(total)
    total = (vectors * np.maximum(values, 1e-3)) @ vectors.T
    xx, xy, yy = total[:-1, :-1], total[:-1, -1], total[-1, -1]
    rest = yy - xy @ np.linalg.solve(xx, xy)
    variance = max(rest / len(x), 1e-3)
    covariance = np.linalg.inv(xx / variance + np.eye(len(xx)))
    weights = rng.multivariate_normal(covariance @ xy / variance, covariance, 1_000)
    return np.column_stack([np.full(1_000, np.sqrt(variance)), weights]), False


def output(made, x, y, reference):
    if made is not model:
        return None
    length = np.max(np.linalg.norm(x, axis=1))
    rng, signs = np.random.default_rng(), 2.0 * y - 1.0
    points = [
        output_perturbation(rng, x / length, signs, epsilon=1.0, regularization=strength) / length
        for strength in (1e-3, 1e-2, 1e-1)
    ]
    return min(points, key=lambda w: np.sum((w - reference.mean(axis=0)) ** 2))[None], False


METHODS = {"NoiseAware": noise_aware, "SVI": svi, "DPSGLD": langevin, "sums": sums, "output": output}


def without_privacy(made, x, y):
    nuts = MCMC(NUTS(made), num_warmup=500, num_samples=1_000, progress_bar=False)
    nuts.run(jax.random.key(0), x, y)
    return flat(nuts.get_samples())


def judged(drawn, reference, truth):
    """Squared errors in sds of the reference, and coverage of 90 %, by latent."""
    errors = ((drawn.mean(axis=0) - reference.mean(axis=0)) / reference.std(axis=0)) ** 2
    if len(drawn) == 1:
        return errors, np.full(len(errors), np.nan)
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    goal = reference if truth is None else flat({site: np.asarray(v)[None] for site, v in truth.items()})
    return errors, np.mean((low <= goal) & (goal <= high), axis=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=[*PROBLEMS], choices=[*PROBLEMS])
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=[*METHODS])
    parser.add_argument("--num-data-sets", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| problem | method | error | coverage of 90 % | not read | seconds |\n|---|---|---|---|---|---|", flush=True)
    for name in options.problems:
        made = PROBLEMS[name][0]
        sets = [simulated(name, seed) for seed in range(options.first, options.first + options.num_data_sets)]
        references = [without_privacy(made, x, y) for x, y, _ in sets]
        for method in options.methods:
            start, found, refused = time.perf_counter(), [], 0
            for (x, y, truth), reference in zip(sets, references):
                run = METHODS[method] if method != "output" else partial(output, reference=reference)
                if (result := run(made, x, y)) is None:
                    break
                found.append(judged(result[0], reference, truth))
                refused += result[1]
            if not found:
                continue
            error, cover = np.sqrt(np.mean([f[0] for f in found])), np.mean([f[1] for f in found])
            seconds = (time.perf_counter() - start) / len(found)
            print(f"| {name} | {method} | {error:.2f} | {cover:.2f} | {refused} | {seconds:.0f} |", flush=True)
            numbers = {"data sets": len(found), "error": round(float(error), 3), "not read": refused}
            numbers |= {} if np.isnan(cover) else {"cover 90 %": round(float(cover), 3)}
            written("otherwise", f"{name}, {method}", numbers)
        jax.clear_caches()


if __name__ == "__main__":
    main()
