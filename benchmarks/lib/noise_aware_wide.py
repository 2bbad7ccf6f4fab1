"""Logistic regressions of more than 200 latents for `benchmarks/calibration/noise_aware.py wide`: whose curvatures come in blocks."""

import functools
import time

import jax
import numpy as np

import dpppl
from dpppl import accounting
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from dpppl.noise_aware.bounds import Bounds
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.recipe import run_recipe
from dpppl.noise_aware.verdict import NoiseAwareVerdict
from dpppl.row_statistics.coordinates import Coordinates
from dpppl.row_statistics.plan import plan_of
from dpppl.row_statistics.releases import MECHANISM, Accesses, prepared
from dpppl.row_statistics.statistics import RowStatistics
from dpppl.runs.budget import Charge
from models.logistic_regression import gaussian

DELTA, LEVELS = 1e-5, 20


def independent(rng, num_rows, dimension):
    return rng.standard_normal((num_rows, dimension))


def equicorrelated(rng, num_rows, dimension):
    shared = rng.standard_normal((num_rows, 1))
    return np.sqrt(0.3) * shared + np.sqrt(0.7) * rng.standard_normal((num_rows, dimension))


def dummies(rng, num_rows, dimension):
    """Of factors with 20 unequal levels each, all of them coded, so that the columns of every two add up to the same."""
    found = np.zeros((num_rows, dimension))
    for start in range(0, dimension, LEVELS):
        levels = min(LEVELS, dimension - start)
        level = rng.choice(levels, num_rows, p=rng.dirichlet(np.full(levels, 2.0)))
        found[np.arange(num_rows), start + level] = np.sqrt(LEVELS)
    return found


KINDS = {"independent": independent, "equicorrelated": equicorrelated, "dummies": dummies}


class Bench:
    """A design's programs, compiled once for all data sets; its covariates have joint size 2."""

    def __init__(self, kind, dimension, num_rows):
        self.kind, self.dimension, self.num_rows = kind, dimension, num_rows
        args = self.data(0)[:2]
        self.coordinates = Coordinates.of(split_model(gaussian, args, {}))
        self.rows, self.public = self.coordinates.split.arrays(args, {})
        self.prior, _ = self.coordinates.prior(self.public, jax.random.key(0))
        responses = Responses.of(self.coordinates.split)
        statistics = RowStatistics(responses, self.coordinates.latents, self.prior.first())
        self.programs = prepared(statistics, dpppl.secret_key(), self.rows, self.public, self.coordinates.dimension)

    def data(self, seed):
        """Covariates, responses and true latents: intercept, then weights."""
        rng = np.random.default_rng(seed)
        x = KINDS[self.kind](rng, self.num_rows, self.dimension - 1)
        x = (2.0 * x / np.sqrt(self.dimension)).astype(np.float32)
        truth = rng.standard_normal(self.dimension)
        logits = truth[0] + x @ truth[1:]
        return x, (rng.random(self.num_rows) < 1.0 / (1.0 + np.exp(-logits))).astype(np.float32), truth

    def run(self, seed, mu):
        """(errors / sd, sd, non-private sd, share unknown, verdict, seconds) of one data set."""
        x, y, truth = self.data(seed)
        start = time.perf_counter()
        rows, _ = self.coordinates.split.arrays((x, y), {})
        plan = plan_of(True, self.dimension, self.num_rows)
        ask = Accesses(self.programs, dpppl.secret_key(), rows, self.public, lambda count: None).asker()
        outcome = run_recipe(ask, plan, 1.0 / mu, self.prior, Bounds(), self.num_rows)
        mixture = Mixture.of(outcome.surrogate, self.prior)
        found = mixture.moments()
        names = self.coordinates.names()
        verdict = NoiseAwareVerdict.from_releases(outcome, found, self.prior, names, self.num_rows)
        seconds = time.perf_counter() - start
        design = np.column_stack([np.ones(self.num_rows), x]).astype(np.float64)
        p = 1.0 / (1.0 + np.exp(-design @ truth))
        precision = (design * (p * (1.0 - p))[:, None]).T @ design + np.eye(self.dimension)
        without = np.sqrt(np.diag(np.linalg.inv(precision)))
        sd = np.sqrt(found.variance)
        return (found.mean - truth) / sd, sd, without, float(outcome.surrogate.unknown.max()), verdict, seconds


@functools.cache
def bench_of(kind, dimension, num_rows):
    """The bench of a cell; each process makes it once."""
    return Bench(kind, dimension, num_rows)


@functools.cache
def mu_of(epsilon, delta=DELTA):
    """mu of the Gaussian mechanism of this epsilon and delta."""
    return 1.0 / accounting.calibrate_noise_multiplier(
        lambda sigma: (Charge(MECHANISM, np.full(1, sigma)).event,), epsilon, delta
    )


def run_one(kind, dimension, num_rows, epsilon, seed):
    """One data set of a cell."""
    return bench_of(kind, dimension, num_rows).run(seed, mu_of(epsilon))


def table(pool, kinds, dimensions, rows, epsilons, count):
    """Prints a line for each cell."""
    titles = "covariates | latents | rows | epsilon | 50 % (se) | 90 % (se) | z rms | sd | non-private sd | "
    titles = f"| {titles}unknown | off | refused | seconds |"
    print(f"{titles}\n{'|---' * (titles.count('|') - 1)}|", flush=True)
    cells = [(k, d, n, e) for d in dimensions for k in kinds for n in rows for e in epsilons]
    for cell in cells:
        runs = [run.result() for run in [pool.submit(run_one, *cell, 1 + seed) for seed in range(count)]]
        z, sd, without = (np.array([run[k] for run in runs]) for k in range(3))
        covered = [(np.abs(z) < quantile).mean(axis=1) for quantile in (0.6745, 1.6449)]
        errors = [c.std(ddof=1) / np.sqrt(count) if count > 1 else np.nan for c in covered]
        shares = " | ".join(f"{c.mean():.3f} ({error:.3f})" for c, error in zip(covered, errors))
        refused = sum(bool(run[4].refusals) for run in runs)
        print(
            f"| {' | '.join(map(str, cell))} | {shares} | {np.sqrt((z**2).mean()):.2f} | {np.median(sd):.3f} | "
            f"{np.median(without):.3f} | {np.mean([run[3] for run in runs]):.3f} | {(np.abs(z).max(axis=1) > 5).sum()} | "
            f"{refused} | {np.median([run[5] for run in runs]):.0f} |",
            flush=True,
        )
