"""Predictions where rows are few for the columns: breast cancer (569 x 30) and digits (above 4 or not, 1,797 x 64), epsilon 1.

python benchmarks/accuracy/prediction.py breast digits --num-splits 4

A line: mean negative log likelihood of a test row over splits (a quarter of the rows), and its range. NoiseAware predicts by
the mean of its draws' probabilities, or by the mean weights alone; under the prior N(0, 1) of all, and under narrower ones.
"exact": Laplace's posterior without privacy; "curvature known": the same late looks with the true curvature where they
were made, on average; "looks' point": that point alone. Columns are centred and scaled as if that were public knowledge.
"""

import argparse
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal
from scipy.optimize import minimize
from scipy.special import expit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.calibration import real_columns
from benchmarks.lib.results import written
from dpppl.noise_aware.bounds import Bounds
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.recipe import run_recipe
from dpppl.row_statistics.plan import plan_of

BUDGET = {"target_epsilon": 1.0, "target_delta": 1e-5, "print_cost": False}


def model(x, y=None, scale=1.0):
    w = numpyro.sample("w", dist.Normal(0.0, scale).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def hierarchical(x, y=None):
    """A prior scale that all weights share."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    standard = numpyro.sample("standard", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    w = numpyro.deterministic("w", scale * standard)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def columns(name):
    """A column of ones and the others, and responses of 0 and 1."""
    from sklearn import datasets

    found = datasets.load_digits() if name == "digits" else datasets.load_breast_cancer()
    x = found.data / 16.0 if name == "digits" else (found.data - found.data.mean(0)) / found.data.std(0) / 2.0
    y = found.target > 4 if name == "digits" else found.target
    return np.column_stack([np.ones(len(x)), x]).astype(np.float32), y.astype(np.float32)


def exact(x, y):
    """Draws of Laplace's approximation of the non-private posterior, and its mode."""

    def potential(w):
        logits = x @ w
        return np.sum(np.logaddexp(0.0, logits) - y * logits) + w @ w / 2.0, x.T @ (expit(logits) - y) + w

    mode = minimize(potential, np.zeros(x.shape[1]), jac=True).x
    p = expit(x @ mode)
    covariance = np.linalg.inv((x.T * (p * (1.0 - p))) @ x + np.eye(len(mode)))
    return np.random.default_rng(0).multivariate_normal(mode, covariance, 1_000)


def noise_aware(x, y, model=model, **arguments):
    private = dpppl.NoiseAware(model, progress_bar=False, num_samples=1_000, **BUDGET)
    private.run(dpppl.secret_key(), x, y, **arguments)
    return np.asarray(private.get_samples(allow_unconverged=True)["w"])


def outcome_of(x, y):
    """A run's outcome, computed anew from what it released, and the prior."""
    private = dpppl.NoiseAware(model, progress_bar=False, num_samples=10, **BUDGET)
    private.run(dpppl.secret_key(), x, y)
    found, plan = private.releases, plan_of(True, x.shape[1], len(x))
    return run_recipe(found.asker(), plan, found.scale, found.prior, Bounds(), len(x)), found.prior


def known_curvature(x, y):
    """What the same looks would say, had the curvature where they were made been known."""
    outcome, prior = outcome_of(x, y)
    bench = SimpleNamespace(x=x.astype(np.float64), prior=prior)
    surrogate = outcome.surrogate._replace(curvature=real_columns.Bench.true_curvature(bench, outcome))
    covariance = surrogate.basis.covariance_of_u(prior.covariance(surrogate.basis))
    mixture = Mixture(prior.mean, covariance, *surrogate.posteriors(covariance), surrogate)
    return mixture.draw(np.random.default_rng(0), 1_000)


def point_of_looks(x, y):
    """Where late looks were made, on average."""
    outcome, prior = outcome_of(x, y)
    return outcome.surrogate.point(prior.mean)[None]


def svi(x, y):
    fitted = dpppl.SVI(model, AutoNormal(model), **BUDGET)
    result = fitted.run(dpppl.secret_key(), None, x, y, progress_bar=False)
    return np.asarray(fitted.guide.sample_posterior(jax.random.key(0), result.params, sample_shape=(1_000,))["w"])


def langevin(x, y):
    kernel = dpppl.DPSGLD(model, clipping_norm=1.0)
    mcmc = dpppl.MCMC(kernel, num_warmup=1_000, num_samples=1_000, progress_bar=False, **BUDGET)
    mcmc.run(dpppl.secret_key(), x, y)
    return np.asarray(mcmc.get_samples()["w"])


METHODS = {
    "exact": exact,
    "NoiseAware": noise_aware,
    "NoiseAware, curvature known": known_curvature,
    "NoiseAware, looks' point": point_of_looks,
    "NoiseAware, prior sd .5": lambda x, y: noise_aware(x, y, scale=0.5),
    "NoiseAware, prior sd .25": lambda x, y: noise_aware(x, y, scale=0.25),
    "NoiseAware, prior sd unknown": lambda x, y: noise_aware(x, y, hierarchical),
    "SVI": svi,
    "DPSGLD": langevin,
}


def scores(drawn, x, y):
    """Negative log likelihood of a row by the mean probability over draws (n, d), and by the mean of draws."""
    signs = 1.0 - 2.0 * y[:, None]
    losses = np.logaddexp(0.0, signs * (x @ drawn.T))
    return float(np.mean(-np.log(np.mean(np.exp(-losses), axis=1)))), float(
        np.mean(np.logaddexp(0.0, signs[:, 0] * (x @ drawn.mean(axis=0))))
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("columns", nargs="+", choices=["breast", "digits"])
    parser.add_argument("--num-splits", type=int, default=4)
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=[*METHODS])
    options = parser.parse_args()
    print("| columns | method | by draws | range | by their mean | range |\n|---|---|---|---|---|---|")
    for name in options.columns:
        x, y = columns(name)
        for method in options.methods:
            found = []
            for split in range(options.num_splits):
                order = np.random.default_rng(split).permutation(len(x))
                train, test = np.split(order, [len(x) * 3 // 4])
                found.append(scores(METHODS[method](x[train], y[train]), x[test], y[test]))
            mean, low, high = np.mean(found, 0), np.min(found, 0), np.max(found, 0)
            parts = " | ".join(f"{mean[k]:.3f} | {low[k]:.3f} to {high[k]:.3f}" for k in (0, 1))
            print(f"| {name} | {method} | {parts} |", flush=True)
            written("prediction", f"{name}, {method}", np.round([mean, low, high], 4).tolist())
            jax.clear_caches()


if __name__ == "__main__":
    main()
