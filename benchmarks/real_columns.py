"""Are NoiseAware's posteriors calibrated where columns are real? Logistic regression, truths drawn from the prior.

python benchmarks/real_columns.py digits@1 breast@1 adult@1 independent_2000_10@1 --num-data-sets 10
python benchmarks/real_columns.py digits@1 --rotated        # columns turned at random, which the prior does not notice

A cell is a design and an epsilon: digits and breast (scikit-learn's), adult (one-hot, 6,000 rows; DPPPL_DATA), or one of
independent, factor (one shared factor), correlated (.98) and dummies, each with rows and columns.
A line: coverage of central 90 and 50 % intervals with its standard error over data sets; root mean square of (mean - truth) /
sd; the share of the prior variance that was learned, 1 - mean square error, and that the posterior says; its sd over that with
the true curvature in place of the draws, and over the non-private one's; coverage of 90 % with the true curvature; data
sets that the verdict does not read, and seconds.
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
import numpyro
import numpyro.distributions as dist
from scipy.optimize import minimize
from scipy.stats import norm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.noise_aware_wide import dummies, mu_of
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from dpppl.noise_aware.coordinates import Coordinates
from dpppl.noise_aware.curvature import Curvature
from dpppl.noise_aware.details import Verdict
from dpppl.noise_aware.plan import default_plan
from dpppl.noise_aware.posterior import Mixture
from dpppl.noise_aware.recipe import Bounds, run_recipe
from dpppl.noise_aware.releases import Releases, prepared
from dpppl.noise_aware.statistics import RowStatistics
from dpppl.noise_aware.surrogate import moments
from dpppl.randomness import keys
from examples import data


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def design(name):
    """Columns of `name`, a one first."""
    kind, *size = name.split("_")
    rng = np.random.default_rng(5)
    if kind in ("digits", "breast"):
        from sklearn import datasets

        x = datasets.load_digits().data / 16.0 if kind == "digits" else datasets.load_breast_cancer().data
        x = x if kind == "digits" else (x - x.mean(axis=0)) / x.std(axis=0) / 2.0
    elif kind == "adult":
        x = data.adult()[0][:6_000]
        x = x[:, x.std(axis=0) > 0]
    else:
        rows, columns = map(int, size)
        noise, shared = rng.standard_normal((rows, columns)), rng.standard_normal((rows, 1))
        x = {
            "independent": lambda: noise,
            "factor": lambda: (0.5 * noise + 0.8 * shared) * 2.0 / np.sqrt(columns),
            "correlated": lambda: np.sqrt(0.02) * noise + np.sqrt(0.98) * shared,
            "dummies": lambda: dummies(rng, rows, columns) / np.sqrt(20.0),
        }[kind]()
    return np.column_stack([np.ones(len(x)), x])


class Bench:
    """A design's programs, compiled once for all data sets."""

    def __init__(self, name, rotated):
        self.x = design(name)
        if rotated:
            self.x = self.x @ np.linalg.qr(np.random.default_rng(1).standard_normal((self.x.shape[1],) * 2))[0]
        self.x = self.x.astype(np.float32).astype(np.float64)
        split = split_model(model, self.data(0)[:2], {})
        self.split, self.coordinates = split, Coordinates.of(split)
        rows, self.public = split.arrays(self.data(0)[:2], {})
        self.prior, _ = self.coordinates.prior(self.public, jax.random.key(0))
        statistics = RowStatistics(Responses.of(split), self.coordinates.latents, self.prior.geometry())
        self.key = keys.as_key(np.arange(8, dtype=np.uint32))
        self.programs = prepared(statistics, self.key, rows, self.public, self.x.shape[1])

    def data(self, seed):
        rng = np.random.default_rng(7_000 + seed)
        truth = rng.standard_normal(self.x.shape[1])
        y = rng.random(len(self.x)) < 1.0 / (1.0 + np.exp(-self.x @ truth))
        return self.x.astype(np.float32), y.astype(np.float32), truth

    def without_privacy(self, y):
        """Standard deviations at the mode."""

        def potential(w):
            logits = self.x @ w
            slope = self.x.T @ (1.0 / (1.0 + np.exp(-logits)) - y) + w
            return np.sum(np.logaddexp(0.0, logits) - y * logits) + w @ w / 2.0, slope

        p = 1.0 / (1.0 + np.exp(-self.x @ minimize(potential, np.zeros(self.x.shape[1]), jac=True).x))
        precision = (self.x.T * (p * (1.0 - p))) @ self.x + np.eye(self.x.shape[1])
        return np.sqrt(np.diag(np.linalg.inv(precision)))

    def true_curvature(self, stage):
        """Where the last gradients were taken."""
        surrogate, frame = stage.surrogate, stage.surrogate.frame
        p = 1.0 / (1.0 + np.exp(-self.x @ surrogate.point(self.prior.mean)))
        x = self.x * frame.scales @ frame.roots[0]
        length = np.linalg.norm(x, axis=1)
        factor = np.minimum(1.0, stage.norm / (np.maximum(p, 1.0 - p) * length))
        weight = np.minimum(1.0, stage.bound / np.maximum(factor * p * (1.0 - p) * length**2, 1e-30))
        h, scores = ((x.T * (weight**k * factor**k * p * (1.0 - p))) @ x for k in (1, 2))
        values, vectors = np.linalg.eigh(h)
        values = np.maximum(values, 1e-9)
        inverse = (vectors / np.sqrt(values)) @ vectors.T
        return Curvature(values[None, None], vectors[None, None], (inverse @ scores @ inverse)[None])

    def run(self, seed, mu):
        x, y, truth = self.data(seed)
        start = time.perf_counter()
        rows, _ = self.split.arrays((x, y), {})
        plan = default_plan()
        key = keys.stream(self.key, str(seed))
        ask = Releases(self.programs, key, rows, self.public, lambda count: None).asker()
        stages, scalars = run_recipe(ask, plan, 1.0 / mu, self.prior, Bounds(), len(x))
        mixture = Mixture.of(stages[-1].surrogate, self.prior)
        drawn = mixture.draw(np.random.default_rng(seed), 2_000)
        seconds = time.perf_counter() - start
        std, names = plan.noise_multipliers(1.0 / mu)[-1], self.coordinates.names()
        verdict = Verdict.of(stages, mixture.moments(), scalars, std, self.prior, names, len(x))
        frame = mixture.surrogate.frame
        exact = stages[-1].surrogate._replace(curvature=self.true_curvature(stages[-1]))
        mean, spread = moments(*exact.posteriors(mixture.prior))
        known, known_sd = self.prior.mean + frame.latents(mean), np.sqrt(frame.variances(spread))
        rank, mean, sd = (drawn < truth).mean(axis=0), drawn.mean(axis=0), drawn.std(axis=0)
        return (
            np.mean(np.abs(rank - 0.5) < 0.45), np.mean(np.abs(rank - 0.5) < 0.25), np.mean(((mean - truth) / sd) ** 2),
            1.0 - np.mean((mean - truth) ** 2), 1.0 - np.mean(sd**2), np.median(sd / known_sd),
            np.median(sd / self.without_privacy(y)), np.mean(np.abs(known - truth) < norm.ppf(0.95) * known_sd),
            not verdict.line().startswith("read"), seconds,
        )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+")
    parser.add_argument("--num-data-sets", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rotated", action="store_true")
    options = parser.parse_args()
    titles = "90 % (se) | 50 % (se) | z rms | learned | said | sd / true curvature's | sd / non-private | "
    titles = f"| design | epsilon | {titles}true curvature 90 % | refused | seconds |"
    print(f"{titles}\n{'|---' * (titles.count('|') - 1)}|", flush=True)
    for name in dict.fromkeys(cell.split("@")[0] for cell in options.cells):
        bench = Bench(name, options.rotated)
        for epsilon in (float(cell.split("@")[1]) for cell in options.cells if cell.split("@")[0] == name):
            seeds = range(options.first, options.first + options.num_data_sets)
            found = np.array([bench.run(seed, mu_of(epsilon)) for seed in seeds], float)
            mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(len(found))
            print(
                f"| {name}{' rotated' * options.rotated} ({bench.x.shape[1]}) | {epsilon:g} | {mean[0]:.3f} ({error[0]:.3f}) | "
                f"{mean[1]:.3f} ({error[1]:.3f}) | {np.sqrt(mean[2]):.2f} | {mean[3]:.2f} | {mean[4]:.2f} | "
                f"{np.median(found[:, 5]):.2f} | {np.median(found[:, 6]):.2f} | {mean[7]:.3f} ({error[7]:.3f}) | "
                f"{found[:, 8].sum():.0f} | {mean[9]:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
