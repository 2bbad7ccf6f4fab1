"""One problem, one budget, every method with its defaults: logistic regression simulated from the prior, epsilon = 1.

python benchmarks/accuracy/which_method.py --num-data-sets 10

A line: coverage of the central 90 % intervals of all coefficients, the root mean square of (mean - truth) / sd, the median sd
over that of the non-private posterior, the log likelihood of a new row less that of the non-private posterior's mean, the
share of coefficients that the method's own verdict lets be read, and the median of processor seconds (compiling included).
"""

import argparse
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import jax
import numpy as np
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.lib.noise_aware_models import normal_covariates
from examples.logistic import laplace
from models.logistic_regression import gaussian

BUDGET = {"target_epsilon": 1.0, "target_delta": 1e-5, "print_cost": False}


def noise_aware(x, y):
    private = dpppl.NoiseAware(gaussian, progress_bar=False, **BUDGET)
    private.run(dpppl.secret_key(), x, y)
    return private.get_samples(allow_unconverged=True), float(not private.verdict.refusals)


def svi(x, y, *, guide):
    fitted = dpppl.SVI(gaussian, guide(gaussian), **BUDGET)
    result = fitted.run(dpppl.secret_key(), None, x, y, progress_bar=False)
    words = np.concatenate([np.ravel(v) for v in result.verdict.by_site.values()])
    params = result.averaged_params(allow_unconverged=True)
    read = 0.0 if result.verdict.refusals else np.mean((words == "learned") | (words == "partly"))
    return fitted.guide.sample_posterior(jax.random.key(0), params, sample_shape=(1_000,)), read


def chain(x, y, *, kernel):
    mcmc = dpppl.MCMC(kernel(gaussian), num_warmup=200, num_samples=1_300, progress_bar=False, **BUDGET)
    mcmc.run(dpppl.secret_key(), x, y)
    words = np.concatenate([np.ravel(v) for v in mcmc.verdict.by_site.values()])
    return mcmc.get_samples(allow_unconverged=True), np.mean(words == "read")


METHODS = {
    "NoiseAware": noise_aware,
    "SVI, AutoNormal": partial(svi, guide=AutoNormal),
    "SVI, AutoMultivariateNormal": partial(svi, guide=AutoMultivariateNormal),
    "DPSGLD": partial(chain, kernel=dpppl.DPSGLD),
    "DPSGHMC": partial(chain, kernel=dpppl.DPSGHMC),
    "DPSGNHT": partial(chain, kernel=dpppl.DPSGNHT),
}


def data_set(seed, num_rows, dimension):
    """(x, y, new x, new y, coefficients with the intercept last)."""
    rng = np.random.default_rng(seed)
    truth, x = rng.standard_normal(dimension), normal_covariates(dimension - 1, 2.0)(rng, num_rows + 5_000)
    y = (rng.random(len(x)) < 1.0 / (1.0 + np.exp(-x @ truth[:-1] - truth[-1]))).astype(np.float32)
    return x[:num_rows], y[:num_rows], x[num_rows:], y[num_rows:], truth


def score(x, y, draws):
    """The mean log posterior predictive probability of rows."""
    logits = x @ draws[:, :-1].T + draws[:, -1]
    return float(np.mean(np.log(np.mean(1.0 / (1.0 + np.exp(-(2.0 * y[:, None] - 1.0) * logits)), axis=1))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-data-sets", type=int, default=10)
    parser.add_argument("--num-rows", type=int, default=20_000)
    parser.add_argument("--dimension", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    options = parser.parse_args()
    print(
        "| method | 90 % (se) | z rms | sd | log likelihood | read | seconds |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    problems = []
    for seed in range(options.num_data_sets):
        *rows, truth = data_set(seed, options.num_rows, options.dimension)
        mode, precision = laplace(np.c_[rows[0], np.ones(len(rows[1]))], rows[1])
        without = np.sqrt(np.diag(np.linalg.inv(precision)))
        problems.append((*rows, truth, without, score(*rows[2:], mode[None])))
    for name in options.methods:
        method, found = METHODS[name], []
        for x, y, x_new, y_new, truth, without, reference in problems:
            start = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                samples, read = method(x, y)
            seconds = time.process_time() - start
            draws = np.concatenate(
                [np.asarray(samples[s], np.float64).reshape(len(samples[s]), -1) for s in ("weights", "intercept")],
                axis=1,
            )
            low, high = np.quantile(draws, [0.05, 0.95], axis=0)
            z, sd = (draws.mean(axis=0) - truth) / draws.std(axis=0), np.median(draws.std(axis=0) / without)
            found.append(
                (
                    np.mean((low < truth) & (truth < high)),
                    np.mean(z**2),
                    sd,
                    score(x_new, y_new, draws) - reference,
                    read,
                    seconds,
                )
            )
        covered, square, sd, likelihood, read, seconds = np.array(found).T
        error = covered.std(ddof=1) / np.sqrt(len(covered))
        print(
            f"| {name} | {covered.mean():.3f} ({error:.3f}) | {np.sqrt(square.mean()):.2f} | {np.median(sd):.2f} | "
            f"{likelihood.mean():.4f} | {read.mean():.0%} | {np.median(seconds):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
