"""Are NoiseAware's posteriors calibrated where columns are real? Logistic regression, truths drawn from the prior.

python benchmarks/calibration/real_columns.py digits@1 breast@1 adult@1 independent_2000_10@1 --num-data-sets 10
python benchmarks/calibration/real_columns.py digits@1 --rotated        # columns turned at random, which the prior does not notice
python benchmarks/calibration/real_columns.py --results docs/results/real_columns                # the table: all cells, resumed
python benchmarks/calibration/real_columns.py --results docs/results/real_columns --num-data-sets 0   # the table so far
python benchmarks/calibration/real_columns.py --results docs/results/real_columns --summary   # a line a design, rotated ones too, and counts

A cell is a design and an epsilon: digits and breast (scikit-learn's), adult (one-hot, 6,000 rows; DPPPL_DATA), or one of
independent, factor (one shared factor), correlated (.98) and dummies, each with rows and columns.
A line: coverage of central 90 % intervals; root mean square of (mean - truth) / sd; the share of the prior variance that was
learned, 1 - mean square error: each as it is for the truth, and "given rows", for the posterior without privacy, of which the
truth is one draw: less noisy, with the same mean. The share that the posterior says; its sd over that with the true curvature in place of the
draws, and over the non-private one's; coverage with the true curvature, given rows; data sets that the verdict doubts and refuses;
those with an error above 5 sd, and those of them that it does not refuse. Standard errors are over data sets.
In the summary an entry has a number for each epsilon; refused and doubted are of all data sets of the line.
"""

import argparse
import json
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
import pandas as pd
from scipy.optimize import minimize
from scipy.stats import norm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.noise_aware_wide import dummies, mu_of
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from dpppl.noise_aware.bounds import Bounds
from dpppl.noise_aware.curvature import Curvature
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.recipe import run_recipe
from dpppl.noise_aware.settings import Verdict
from dpppl.noise_aware.surrogate import moments
from dpppl.randomness import keys
from dpppl.row_statistics.coordinates import Coordinates
from dpppl.row_statistics.plan import plan_of
from dpppl.row_statistics.releases import Accesses, prepared
from dpppl.row_statistics.statistics import RowStatistics
from examples import data

DESIGNS = (
    "independent_2000_5", "independent_2000_10", "correlated_2000_10", "factor_2000_20", "independent_5000_30", "breast",
    "dummies_2000_40", "digits", "adult",
)  # fmt: skip
"""Cheapest first."""
EPSILONS = (0.3, 1.0, 3.0, 8.0)
REAL = {"breast": "breast cancer, 569 x 31", "digits": "digits, 1,797 x 65", "adult": "Adult one-hot, 6,000 x 107"}


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

    def __init__(self, x, rotated=False):
        self.x = x
        if rotated:
            self.x = self.x @ np.linalg.qr(np.random.default_rng(1).standard_normal((self.x.shape[1],) * 2))[0]
        self.x = self.x.astype(np.float32).astype(np.float64)
        split = split_model(model, self.data(0)[:2], {})
        self.split, self.coordinates = split, Coordinates.of(split)
        rows, self.public = split.arrays(self.data(0)[:2], {})
        self.prior, _ = self.coordinates.prior(self.public, jax.random.key(0))
        statistics = RowStatistics(Responses.of(split), self.coordinates.latents, self.prior.first())
        self.key = keys.as_key(np.arange(8, dtype=np.uint32))
        self.programs = prepared(statistics, self.key, rows, self.public, self.x.shape[1])

    def data(self, seed):
        rng = np.random.default_rng(7_000 + seed)
        truth = rng.standard_normal(self.x.shape[1])
        y = rng.random(len(self.x)) < 1.0 / (1.0 + np.exp(-self.x @ truth))
        return self.x.astype(np.float32), y.astype(np.float32), truth

    def without_privacy(self, y):
        """Mean and covariance of the normal distribution nearest to the posterior (Gaussian variational inference, by Newton's
        method): where NUTS was run beside it, its means were within .03 posterior sds of NUTS's, the mode .1 to .2 away."""

        def potential(w):
            logits = self.x @ w
            slope = self.x.T @ (1.0 / (1.0 + np.exp(-logits)) - y) + w
            return np.sum(np.logaddexp(0.0, logits) - y * logits) + w @ w / 2.0, slope

        nodes, weights = np.polynomial.hermite_e.hermegauss(15)
        identity = np.eye(self.x.shape[1])
        mean, covariance = minimize(potential, identity[0] * 0.0, jac=True).x, identity * 0.0
        for _ in range(15):
            spread = np.sqrt(np.sum((self.x @ covariance) * self.x, axis=1))
            p = 1.0 / (1.0 + np.exp(-(self.x @ mean)[:, None] - spread[:, None] * nodes))
            p, slope = p @ weights / weights.sum(), (p * (1.0 - p)) @ weights / weights.sum()
            covariance = np.linalg.inv((self.x.T * slope) @ self.x + identity)
            mean = mean + covariance @ (self.x.T @ (y - p) - mean)
        return mean, covariance

    def true_curvature(self, outcome):
        """Where late looks were made, on average."""
        surrogate, basis = outcome.surrogate, outcome.surrogate.basis
        p = 1.0 / (1.0 + np.exp(-self.x @ surrogate.point(self.prior.mean)))
        x = self.x * basis.scales @ basis.roots[0]
        length = np.linalg.norm(x, axis=1)
        factor = np.minimum(1.0, outcome.norm / (np.maximum(p, 1.0 - p) * length))
        weight = np.minimum(1.0, outcome.curvature_bound / np.maximum(factor * p * (1.0 - p) * length**2, 1e-30))
        h, scores = ((x.T * (weight**k * factor**k * p * (1.0 - p))) @ x for k in (1, 2))
        values, vectors = np.linalg.eigh(h)
        values = np.maximum(values, 1e-9)
        inverse = (vectors / np.sqrt(values)) @ vectors.T
        return Curvature(values[None, None], vectors[None, None], (inverse @ scores @ inverse)[None])

    def run(self, seed, mu):
        x, y, truth = self.data(seed)
        start = time.perf_counter()
        rows, _ = self.split.arrays((x, y), {})
        plan = plan_of(True, x.shape[1], len(x))
        key = keys.stream(self.key, str(seed))
        ask = Accesses(self.programs, key, rows, self.public, lambda count: None).asker()
        outcome = run_recipe(ask, plan, 1.0 / mu, self.prior, Bounds(), len(x))
        mixture = Mixture.of(outcome.surrogate, self.prior)
        drawn = mixture.draw(np.random.default_rng(seed), 2_000)
        seconds = time.perf_counter() - start
        names = self.coordinates.names()
        verdict = Verdict.from_releases(outcome, mixture.moments(), self.prior, names, len(x))
        basis = mixture.surrogate.basis
        exact = outcome.surrogate._replace(curvature=self.true_curvature(outcome))
        mean, spread = moments(*exact.posteriors(mixture.prior))
        known, known_sd = self.prior.mean + basis.to_latents(mean), np.sqrt(basis.variances(spread))
        rank, mean, sd = (drawn < truth).mean(axis=0), drawn.mean(axis=0), drawn.std(axis=0)
        z = (mean - truth) / sd
        # Given the rows a truth drawn from the prior is a draw of the posterior without privacy: means over it are less noisy.
        exact_mean, exact_covariance = self.without_privacy(y)
        exact_sd = np.sqrt(np.diag(exact_covariance))
        within = lambda ends: np.mean(np.diff(norm.cdf((ends - exact_mean) / exact_sd), axis=0))  # noqa: E731
        error = (mean - exact_mean) ** 2 + exact_sd**2
        half = norm.ppf(0.95) * known_sd
        found = {
            "cover90": np.mean(np.abs(rank - 0.5) < 0.45), "cover50": np.mean(np.abs(rank - 0.5) < 0.25),
            "z_squared": np.mean(z**2), "learned": 1.0 - np.mean((mean - truth) ** 2), "said": 1.0 - np.mean(sd**2),
            "expected90": within(np.quantile(drawn, [0.05, 0.95], axis=0)), "expected_z_squared": np.mean(error / sd**2),
            "expected_learned": 1.0 - np.mean(error), "expected90_true": within(known + half * np.array([[-1.0], [1.0]])),
            "width": np.median(sd / known_sd), "width_non_private": np.median(sd / exact_sd),
            "cover90_true": np.mean(np.abs(known - truth) < half), "largest": np.max(np.abs(z)),
            "agreement": verdict.agreement, "resolved": verdict.resolved, "refused": bool(verdict.refusals), "doubted": bool(verdict.doubts),
            "seconds": seconds,
        }  # fmt: skip
        return {"seed": seed} | {name: round(float(value), 4) for name, value in found.items()}


TITLES = (
    "columns | epsilon | data sets | 90 % (se) | given rows (se) | z rms | given rows | learned | given rows | said | "
    "sd / true curvature's | sd / non-private | true curvature 90 % | doubted | refused | above 5 sd | not refused"
)


def line(name, epsilon, found):
    """A line of the table from a cell's data sets."""
    of = {key: np.array([one[key] for one in found], float) for key in found[0]}
    error = lambda key: np.std(of[key], ddof=1) / np.sqrt(len(found)) if len(found) > 1 else np.nan  # noqa: E731
    share = lambda key: f"{of[key].mean():.3f} ({error(key):.3f})"  # noqa: E731
    rms = lambda key: f"{np.sqrt(of[key].mean()):.2f}"  # noqa: E731
    off = of["largest"] > 5.0
    return (
        f"| {name} | {epsilon:g} | {len(found)} | {share('cover90')} | {share('expected90')} | {rms('z_squared')} | "
        f"{rms('expected_z_squared')} | {of['learned'].mean():.2f} | {of['expected_learned'].mean():.2f} | "
        f"{of['said'].mean():.2f} | {np.median(of['width']):.2f} | {np.median(of['width_non_private']):.2f} | "
        f"{of['expected90_true'].mean():.3f} | {of['doubted'].sum():.0f} | {of['refused'].sum():.0f} | {off.sum()} | "
        f"{np.sum(off & (of['refused'] == 0))} |"
    )


def titled(name):
    """A design with its numbers of rows and columns."""
    kind, *size = name.removesuffix("_rotated").split("_")
    of_size = f"{kind}, {int(size[0]):,} x {int(size[1]) + 1}" if size else REAL[kind]
    return of_size + ", rotated" * name.endswith("_rotated")


def data_sets(folder, name, epsilon):
    """A cell's file, and the data sets that are in it."""
    path = folder / f"{name}@{epsilon:g}.jsonl"
    return path, [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def summary(folder):
    """The means of all cells: a line for each design, and how many cells have what is asked of them."""
    titles = "columns | data sets | 90 % | given rows | z rms, given rows | learned, given rows | said | sd / true curvature's | doubted | refused"
    print(f"| {titles} |\n{'|---' * (titles.count('|') + 1)}|")
    cells, num_data_sets, off, refused = [], 0, 0, 0
    for name in (design + rotated for rotated in ("", "_rotated") for design in DESIGNS):
        found = [pd.DataFrame(data_sets(folder, name, epsilon)[1]) for epsilon in EPSILONS]
        means = [one.mean().to_dict() | {"width": one["width"].median()} for one in found]
        several = lambda entry: " / ".join(f"{value:.2f}".lstrip("0") for value in map(entry, means))  # noqa: E731, B023
        counts = [sum(int(one[key].sum()) for one in found) for key in ("doubted", "refused")]
        sizes = [len(one) for one in found]
        entries = [
            titled(name), "/".join(map(str, dict.fromkeys(sizes))), several(lambda of: of["cover90"]),
            several(lambda of: of["expected90"]), several(lambda of: np.sqrt(of["expected_z_squared"])),
            several(lambda of: of["expected_learned"]), several(lambda of: of["said"]), several(lambda of: of["width"]), *map(str, counts),
        ]  # fmt: skip
        print(f"| {' | '.join(entries)} |")
        cells, num_data_sets, refused = cells + means, num_data_sets + sum(sizes), refused + counts[1]
        off += sum(int(((one["largest"] > 5.0) & (one["refused"] == 0)).sum()) for one in found)
    for title, cover, z_squared, learned in (
        ("given rows", "expected90", "expected_z_squared", "expected_learned"), ("by truths", "cover90", "z_squared", "learned"),
    ):  # fmt: skip
        cover, z, said = (
            np.array(v) for v in zip(*((of[cover], of[z_squared] ** 0.5, of["said"] - of[learned]) for of in cells))
        )
        print(
            f"\n{title}, {len(cells)} cells: 90 % intervals cover .87 to .93 in {np.sum(np.abs(cover - 0.9) <= 0.03)}, more in "
            f"{np.sum(cover > 0.93)}, below .85 in {np.sum(cover < 0.85)}, least {cover.min():.3f}; z .9 to 1.12 in "
            f"{np.sum((z >= 0.9) & (z <= 1.12))}, {z.min():.2f} to {z.max():.2f}; said within .07 in {np.sum(np.abs(said) <= 0.07)}, "
            f"{said.min():.2f} to {said.max():.2f}"
        )
    print(
        f"\nwidth at most 1.3 in {sum(of['width'] <= 1.3 for of in cells)}; of {num_data_sets} data sets {refused} refused, "
        f"{off} above 5 sd and not refused"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", default=[f"{name}@{e:g}" for name in DESIGNS for e in EPSILONS])
    parser.add_argument("--num-data-sets", type=int, default=10)
    parser.add_argument("--rotated", action="store_true")
    parser.add_argument("--results", type=Path, help="a folder with a file for each cell, which is added to")
    parser.add_argument("--summary", action="store_true", help="a line a design of what is in the folder")
    options = parser.parse_args()
    if options.summary:
        return summary(options.results)
    print(f"| {TITLES} |\n{'|---' * (TITLES.count('|') + 1)}|", flush=True)
    for name in dict.fromkeys(cell.split("@")[0] for cell in options.cells):
        bench, full = None, name + "_rotated" * options.rotated
        for epsilon in (float(cell.split("@")[1]) for cell in options.cells if cell.split("@")[0] == name):
            path, found = data_sets(options.results, full, epsilon) if options.results else (None, [])
            for seed in range(len(found), options.num_data_sets):
                bench = bench or Bench(design(name), options.rotated)
                found.append(bench.run(seed, mu_of(epsilon)))
                if path:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("a") as file:
                        file.write(json.dumps(found[-1]) + "\n")
            if found:
                print(line(full.replace("_", " "), epsilon, found), flush=True)


if __name__ == "__main__":
    main()
