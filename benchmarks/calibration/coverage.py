"""Coverage of the central 90 % intervals of private posteriors, over simulated logistic data sets at epsilon = 1.

Coefficients come from the prior, so exact posterior intervals would cover 90 %. Covariates lie in the unit ball, so a
row's gradient is shorter than the clipping norm, 1, and nothing is ever clipped. Every data set is a run with a budget
of its own.

python benchmarks/calibration/coverage.py                          # 60,000 rows, then 5,000, where the spread is not readable
python benchmarks/calibration/coverage.py --num-data 60000 --num-data-sets 20 --kernels DPSGLD
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl

KERNELS = {"DPSGLD": dpppl.DPSGLD, "DPSGHMC": dpppl.DPSGHMC, "DPSGNHT": dpppl.DPSGNHT}
DIMENSION, NUM_WARMUP, NUM_SAMPLES, EPSILON, DELTA, LEVEL = 5, 300, 700, 1.0, 1e-5, 0.9


class Coverage(NamedTuple):
    """`covered`: (data sets, coefficients) bool. `curvatures`: smallest posterior curvature of each data set."""

    covered: np.ndarray
    curvatures: np.ndarray
    report: dpppl.PrivacyReport

    @property
    def readable(self) -> np.ndarray:
        """Data sets for which the report's mixing line lets every coefficient's spread be read."""
        return self.curvatures > self.report.details.readable_curvature


def model(x, y):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def data_set(rng, num_data, dimension=DIMENSION):
    """(x, y, coefficients, smallest curvature of the log posterior at the coefficients); |x| <= 1, mostly near 1."""
    weights = rng.standard_normal(dimension)
    x = rng.standard_normal((num_data, dimension))
    x *= rng.random((num_data, 1)) ** 0.1 / np.linalg.norm(x, axis=1, keepdims=True)
    probability = 1.0 / (1.0 + np.exp(-x @ weights))
    precision = (x.T * (probability * (1.0 - probability))) @ x + np.eye(dimension)
    y = rng.random(num_data) < probability
    return x.astype(np.float32), y.astype(np.float32), weights, np.linalg.eigvalsh(precision)[0]


def coverage(kernel, num_data: int, num_data_sets: int, seed: int = 0) -> Coverage:
    """One private run a data set, of one compiled program: the kernel's own steps, without the runner's bookkeeping."""
    rng = np.random.default_rng(seed)
    mcmc = dpppl.MCMC(
        kernel(model, clipping_norm=1.0, num_data=num_data),
        num_warmup=NUM_WARMUP,
        num_samples=NUM_SAMPLES,
        target_epsilon=EPSILON,
        target_delta=DELTA,
    )
    kernel = mcmc.calibrated_kernel()

    @jax.jit
    def draws(key, x, y):
        bound = kernel.bind((x, y), {})
        rows, public = bound.split.arrays((x, y), {})
        state = bound.init(key, NUM_WARMUP, None, public)

        def step(state, _):
            state = bound.step(state, rows=rows, public=public)
            return state, state.z["weights"]

        return lax.scan(step, state, length=NUM_WARMUP + NUM_SAMPLES)[1][NUM_WARMUP:]

    covered, curvatures = [], []
    for key in jax.random.split(jax.random.key(seed), num_data_sets):
        x, y, weights, curvature = data_set(rng, num_data)
        low, high = np.quantile(draws(key, x, y), [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], axis=0)
        covered.append((low < weights) & (weights < high))
        curvatures.append(curvature)
    return Coverage(np.array(covered), np.array(curvatures), mcmc.privacy_plan())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-data", type=int, nargs="+", default=[60_000, 5_000])
    parser.add_argument("--num-data-sets", type=int, default=200)
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=KERNELS)
    args = parser.parse_args()
    print("| rows | kernel | epsilon | coverage of 90 % | by coefficient | smallest curvature | readable above |")
    print("|---|---|---|---|---|---|---|")
    for num_data in args.num_data:
        for name in args.kernels:
            covered, curvatures, report = result = coverage(KERNELS[name], num_data, args.num_data_sets)
            by = covered.mean(axis=0)
            error = covered.mean(axis=1).std() / len(covered) ** 0.5
            flag = "" if result.readable.all() else f" (flags {np.mean(~result.readable):.0%} of the data sets)"
            print(
                f"| {num_data:,} | {name} | {report.epsilon:.3f} | {covered.mean():.1%} ± {error:.1%} | "
                f"{by.min():.1%} to {by.max():.1%} | {curvatures.min():.0f} | {report.details.readable_curvature:.0f}{flag} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
