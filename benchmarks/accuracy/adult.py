"""The UCI Adult table: accuracy, AUC and NLL of private posteriors, five seeds a cell, and the non-private fit.

python benchmarks/accuracy/adult.py
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from examples.adult import posterior_predictive, scores
from examples.data import adult, has_adult
from examples.logistic import laplace
from models.logistic_regression import gaussian

KERNELS = {"DPSGLD": dpppl.DPSGLD, "DPSGHMC": dpppl.DPSGHMC, "DPSGNHT": dpppl.DPSGNHT}
NUM_WARMUP, NUM_SAMPLES, CLIPPING_NORM, DELTA = 1600, 400, 1.0, 1e-5


def nonprivate(x, y, draws=200):
    """Samples of the Laplace approximation of the non-private posterior, and its standard deviations."""
    mode, precision = laplace(np.c_[x, np.ones(len(y))], y)
    samples = np.random.default_rng(0).multivariate_normal(mode, np.linalg.inv(precision), size=draws)
    return {"weights": samples[:, :-1], "intercept": samples[:, -1]}, np.diag(np.linalg.inv(precision)) ** 0.5


def private(kernel, epsilon, x, y, discretise=False):
    """One private run: samples and report."""
    mcmc = dpppl.MCMC(
        kernel(gaussian, clipping_norm=CLIPPING_NORM, discretise=discretise),
        num_warmup=NUM_WARMUP,
        num_samples=NUM_SAMPLES,
        target_epsilon=epsilon,
        target_delta=DELTA,
        progress_bar=False,
        print_cost=False,
    )
    mcmc.run(dpppl.secret_key(), x, y)
    return mcmc.get_samples(), mcmc.privacy_report()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument("--kernels", nargs="+", default=["DPSGLD"], choices=KERNELS)
    parser.add_argument("--discretise", action="store_true", help="discrete noise on whole numbers")
    args = parser.parse_args()
    if not has_adult():
        print("UCI Adult is missing: set DPPPL_DATA to a folder that holds adult-train.csv and adult-test.csv")
        return
    x, y, x_test, y_test = adult()
    samples, sds = nonprivate(x, y)
    print("| method | epsilon | accuracy | AUC | NLL | diffusion time | coefficients whose spread is readable |")
    print("|---|---|---|---|---|---|---|")
    accuracy, auc, nll = scores(posterior_predictive(samples, x_test), y_test)
    print(f"| not private (Laplace) | | {accuracy:.4f} | {auc:.4f} | {nll:.4f} | | |", flush=True)
    for name in args.kernels:
        for epsilon in args.epsilons:
            results = []
            for _ in range(args.seeds):
                samples, report = private(KERNELS[name], epsilon, x, y, args.discretise)
                results.append(scores(posterior_predictive(samples, x_test), y_test))
            mean, spread = np.mean(results, axis=0), np.std(results, axis=0)
            readable = np.sum(sds < report.details.readable_curvature**-0.5)
            cells = " | ".join(f"{m:.4f} ± {s:.4f}" for m, s in zip(mean, spread))
            print(
                f"| {name} | {report.epsilon:.3f} | {cells} | {report.details.diffusion_time:.3g} | {readable} of {len(sds)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
