"""Are NoiseAware's posteriors calibrated? Simulation-based, truths drawn from the prior anew for every data set.

python benchmarks/calibration/noise_aware.py cells --num-data-sets 40      # logistic regression, by latents, rows and epsilon
python benchmarks/calibration/noise_aware.py models --num-data-sets 40     # other likelihoods and priors, N = 5,000
python benchmarks/calibration/noise_aware.py wrong --num-data-sets 100     # data that the model does not describe: "doubted" counts
python benchmarks/calibration/noise_aware.py bands --num-data-sets 40      # 90 % predictive intervals of a linear regression, by norm
python benchmarks/calibration/noise_aware.py wide --num-data-sets 3 --rows 20000 60000 --epsilons 1 3 --dimensions 300 1000

A line: coverage of central 50 and 90 % intervals with its standard error over data sets, and root mean square of
(mean - truth) / sd; the median sd over that of the non-private posterior, and over that of an oracle that knows the
curvature and the variance of scores exactly; data sets off by more than 5 sd, data sets that the verdict refuses, and both;
the share for which the verdict doubts the model; the share of rows that are clipped in late looks; seconds a data set.
`--clipping`: a norm that is chosen privately, the default; or set so that no score at the truth is clipped, or two thirds are, in
the coordinates of late looks, as another run has found them. `bands` multiplies the norm of another run.
"""

import argparse
import contextlib
import dataclasses
import functools
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.lib import noise_aware_wide
from benchmarks.lib.noise_aware_models import MODELS, WRONG, normal_covariates
from benchmarks.lib.noise_aware_wide import mu_of
from dpppl.access.mechanism import ROW_NUMBER
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from dpppl.noise_aware import posterior, recipe
from dpppl.noise_aware.verdict import NoiseAwareVerdict
from dpppl.row_statistics.accesses import At, narrow
from dpppl.row_statistics.coordinates import Coordinates
from dpppl.row_statistics.matrices import from_vector
from dpppl.row_statistics.plan import plan_of
from dpppl.row_statistics.releases import Accesses, prepared
from dpppl.row_statistics.statistics import RowStatistics
from models.logistic_regression import gaussian


class Bench:
    """A model's programs, compiled once for all data sets."""

    def __init__(self, model, covariates, num_rows, truth=None):
        self.truth, self.covariates, self.num_rows = model if truth is None else truth, covariates, num_rows
        args, _ = self.data(0)
        self.coordinates = Coordinates.of(split_model(model, args, {}))
        self.rows, self.public = self.coordinates.split.arrays(args, {})
        self.prior, self.is_normal = self.coordinates.prior(self.public, jax.random.key(0))
        self.sampler = None if self.is_normal else posterior.Narrow(self.coordinates, 2_000)
        dimension = self.coordinates.dimension
        responses = Responses.of(self.coordinates.split)
        self.redrawn, self.added = responses.redrawn, responses.added
        statistics = RowStatistics(responses, self.coordinates.latents, self.prior.first())
        self.programs = prepared(statistics, dpppl.secret_key(), self.rows, self.public, dimension)

        def log_joint(x, rows):
            z, split = self.coordinates.latents(x), self.coordinates.split
            likelihood = jax.vmap(lambda row: split.log_likelihood(z, row, self.public))(rows)
            return jnp.sum(likelihood) - 0.5 * (x - mean) @ precision @ (x - mean)

        covariance = self.prior.correlation * np.outer(self.prior.scales, self.prior.scales)
        mean, precision = jnp.asarray(self.prior.mean), jnp.asarray(np.linalg.inv(covariance))
        self.hessian = jax.jit(jax.hessian(log_joint))
        self.vectors = jax.jit(lambda drawn: jax.vmap(self.coordinates.vector, (0, None))(drawn, self.public))

        @jax.jit
        def exact(at, rows):
            """Sums of rows' curvatures and squared scores, and the lengths of scores: no noise, no bound on curvatures."""
            numbered = rows | {ROW_NUMBER: jnp.arange(num_rows, dtype=jnp.uint32)}
            found = jax.vmap(
                lambda row: (lambda f: (f.matrix(), at.basis.outer(f.psi)))(
                    statistics._influence(at, row, (self.public, jax.random.key(0)))
                )
            )
            own = jax.vmap(lambda row: jnp.linalg.norm(statistics._own(at, row, self.public)[1]))
            parts = jax.lax.map(
                lambda part: jax.tree.map(lambda x: x.sum(0), found(part)),
                jax.tree.map(lambda x: x.reshape(-1, 500, *x.shape[1:]), numbered),
            )
            return jax.tree.map(lambda x: x.sum(0), parts), own(numbered)

        self.exact = exact

    def data(self, seed):
        """(covariates, responses) and the truth by site, from the model itself or the one that is the truth."""
        x = self.covariates(np.random.default_rng(seed), self.num_rows)
        seeded = numpyro.handlers.seed(self.truth, jax.random.key(seed))
        trace = numpyro.handlers.trace(seeded).get_trace(x)
        return (x, np.asarray(trace["y"]["value"])), trace

    def at(self, point, basis, norm):
        return narrow(At(point, norm, 1.0, basis))

    def bounds(self, truth, rows, mu, clipping):
        """The norm that a way of `clipping` asks for, at the truth and in the coordinates of the late looks of another run."""
        if clipping == "chosen":
            return recipe.Bounds()
        basis = self.released(rows, mu, recipe.Bounds())[0].surrogate.basis
        lengths = self.exact(self.at(truth, basis, 1.0), rows)[1]
        return recipe.Bounds(norm=float(np.quantile(lengths, {"none": 1.0, "two_thirds": 1 / 3}[clipping])))

    def oracle(self, outcome, rows):
        """The sd of a posterior from the same gradients, had curvature and variance of scores been known."""
        surrogate, basis = outcome.surrogate, outcome.surrogate.basis
        found = self.exact(self.at(surrogate.point(self.prior.mean), basis, outcome.norm), rows)[0]
        h, scores = (from_vector(np.asarray(x, np.float64), len(basis.scales)) for x in found)
        noise = scores + surrogate.noise_variance * np.eye(len(h))
        prior = basis.covariance_of_u(self.prior.covariance(basis))[0]
        precision = np.linalg.inv(prior) + h @ np.linalg.solve(noise, h)
        return np.sqrt(basis.variances(np.linalg.inv(precision)[None]))

    def released(self, rows, mu, bounds):
        """The outcome, the posterior and the verdict of one data set."""
        plan = plan_of(None in (bounds.norm, bounds.curvature), self.coordinates.dimension, self.num_rows)
        ask = Accesses(self.programs, dpppl.secret_key(), rows, self.public, lambda count: None).asker()
        given = 1.0 / mu, self.prior, bounds, self.num_rows, self.redrawn
        outcome = recipe.run_recipe(ask, plan, *given, added=self.added)
        mixture = posterior.Mixture.of(outcome.surrogate, self.prior)
        names = self.coordinates.names()
        verdict = NoiseAwareVerdict.from_releases(outcome, mixture.moments(), self.prior, names, self.num_rows)
        return outcome, mixture, verdict

    def draws(self, mixture, seed):
        """Of the posterior, by site, unconstrained; and what is wrong with them."""
        key = jax.random.key(seed)
        if self.is_normal:
            return posterior.draw(self.coordinates, mixture, True, self.public, key, 2_000)
        return self.sampler(*mixture.linear(), self.public, key)

    def run(self, seed, mu, clipping):
        """(errors / sd, shares of draws below the truth, sd / non-private sd, sd / oracle's, verdict) of one data set."""
        args, trace = self.data(seed)
        rows, _ = self.coordinates.split.arrays(args, {})
        latents = self.coordinates.split.latents
        truth = {s: dist.biject_to(trace[s]["fn"].support).inv(trace[s]["value"]) for s in latents}
        truth = np.asarray(self.coordinates.vector(truth, self.public), np.float64)
        outcome, mixture, verdict = self.released(rows, mu, self.bounds(truth, rows, mu, clipping))
        drawn, problem = self.draws(mixture, seed)
        drawn = np.asarray(self.vectors(drawn))
        mean, sd = drawn.mean(axis=0), drawn.std(axis=0)
        verdict = dataclasses.replace(verdict, sampler=problem)
        without = np.sqrt(np.diag(np.linalg.inv(-np.asarray(self.hessian(jnp.asarray(truth, jnp.float32), rows)))))
        return (
            (mean - truth) / sd,
            np.mean(drawn < truth, axis=0),
            sd / without,
            sd / self.oracle(outcome, rows),
            verdict,
        )

    def coverage(self, seed, mu, multiple):
        """The share of new responses of a linear regression, noise sd .5, in their 90 % predictive intervals, where the norm is this
        multiple of that of another run (None: chosen)."""
        rng = np.random.default_rng(seed)
        weights, x = rng.standard_normal(4), self.covariates(rng, self.num_rows + 1_000)
        y = (x @ weights[1:] + weights[0] + 0.5 * rng.standard_normal(len(x))).astype(np.float32)
        rows, _ = self.coordinates.split.arrays((x[: self.num_rows], y[: self.num_rows]), {})
        bounds = recipe.Bounds()
        if multiple:
            bounds = recipe.Bounds(norm=multiple * self.released(rows, mu, bounds)[0].norm)
        _, mixture, verdict = self.released(rows, mu, bounds)
        drawn = {n: np.asarray(v, np.float64) for n, v in self.draws(mixture, seed)[0].items()}
        x, y = x[self.num_rows :], y[self.num_rows :]
        predicted = x @ drawn["weights"].T + drawn["intercept"]
        predicted += np.exp(drawn["noise"]) * rng.standard_normal(predicted.shape)
        low, high = np.quantile(predicted, [0.05, 0.95], axis=1)
        return np.mean((low < y) & (y < high)), not verdict.refusals


@functools.cache
def bench_of(what, name, num_rows):
    """The bench of a cell; each process makes it once."""
    if what == "cells":
        return Bench(gaussian, normal_covariates(int(name.split()[-1]) - 1, 2.0), num_rows)
    model, covariates, *truth = WRONG[name] if what == "wrong" else MODELS[name]
    return Bench(model, covariates, num_rows, *truth)


def run_one(what, name, num_rows, epsilon, clipping, seed):
    """One data set of a cell; and its seconds."""
    bench = bench_of(what, name, num_rows)
    if seed % 80 == 0:  # compiled programs are memory maps, of which the kernel allows 65,530
        jax.clear_caches()
    start = time.perf_counter()
    return *bench.run(seed, mu_of(epsilon), clipping), time.perf_counter() - start


def line(cell, runs):
    """A cell's line of the table."""
    name, num_rows, epsilon, clipping = cell
    z, below, width, to_oracle = (np.array([run[k] for run in runs]) for k in range(4))
    refused = np.array([bool(run[4].refusals) for run in runs])
    doubted = np.mean([run[4].misfit is not None for run in runs])
    clipped = np.mean([run[4].clipped[0] for run in runs])

    def with_error(values):
        return f"{values.mean():.3f} ({values.std(ddof=1) / np.sqrt(len(values)):.3f})"

    covered = [with_error((np.abs(below - 0.5) < level / 2).mean(axis=1)) for level in (0.5, 0.9)]
    bad = np.abs(z).max(axis=1) > 5.0
    return (
        f"| {name} | {num_rows} | {epsilon:g} | {clipping} | {' | '.join(covered)} | {np.sqrt((z**2).mean()):.2f} | "
        f"{np.median(width):.2f} | {np.median(to_oracle):.2f} | {bad.sum()} | {refused.sum()} | {(bad & refused).sum()} | "
        f"{doubted:.2f} | {clipped:.2f} | {np.median([run[5] for run in runs]):.2f} |"
    )


def cover_one(epsilon, multiple, seed):
    """Coverage of new responses in one data set."""
    return bench_of("models", "linear", 5_000).coverage(seed, mu_of(epsilon), multiple)


def bands(pool, epsilons, count):
    """Coverage of 90 % predictive intervals, by multiples of the clipping norm that is chosen."""
    print("| epsilon | clipping norm over the chosen one | coverage (se) | refused |\n|---|---|---|---|", flush=True)
    for epsilon in epsilons:
        for multiple in (0.3, 1.0, 3.0, 10.0, None):
            runs = [pool.submit(cover_one, epsilon, multiple, seed) for seed in range(count)]
            values, good = (np.array(x, float) for x in zip(*(run.result() for run in runs)))
            error = values.std(ddof=1) / np.sqrt(count)
            print(
                f"| {epsilon:g} | {multiple or 'chosen'} | {values.mean():.3f} ({error:.3f}) | {(good == 0).sum():.0f} |",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cells", "models", "wrong", "bands", "wide"])
    parser.add_argument("--num-data-sets", type=int, default=200)
    parser.add_argument("--num-slow", type=int, default=60, help="data sets where a run takes more than a second")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.3, 1.0, 3.0])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[3, 10, 30])
    parser.add_argument("--rows", type=int, nargs="+", help="of cells, wide and wrong")
    parser.add_argument("--models", nargs="+", help="by default all")
    parser.add_argument("--clipping", nargs="+", default=["chosen"], choices=["chosen", "none", "two_thirds"])
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    options.rows = options.rows or ([500, 5_000, 60_000] if options.what in ("cells", "wide") else [5_000])
    with contextlib.ExitStack() as stack:
        # NumPyro compiles NUTS anew for every data set: the same program, which workers find here.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
        pool = stack.enter_context(ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")))
        if options.what == "bands":
            return bands(pool, options.epsilons, options.num_data_sets)
        if options.what == "wide":
            kinds = options.models or [*noise_aware_wide.KINDS]
            return noise_aware_wide.table(
                pool, kinds, options.dimensions, options.rows, options.epsilons, options.num_data_sets
            )
        every = {"models": [*MODELS], "wrong": [*WRONG], "cells": [f"logistic {d}" for d in options.dimensions]}
        names = options.models or every[options.what]
        cells = [(n, r, e, c) for n in names for r in options.rows for c in options.clipping for e in options.epsilons]
        titles = (
            "model | rows | epsilon | norm | 50 % (se) | 90 % (se) | z rms | sd | to oracle | off | refused | both | "
        )
        titles = f"| {titles}doubted | clipped | seconds |"
        print(f"{titles}\n{'|---' * (titles.count('|') - 1)}|", flush=True)
        pending = []
        for cell in cells:
            count = options.num_data_sets if cell[1] * (cell[0] != "logistic 3") < 60_000 else options.num_slow
            pending.append((cell, [pool.submit(run_one, options.what, *cell, 1 + seed) for seed in range(count)]))
        for cell, runs in pending:
            print(line(cell, [run.result() for run in runs]), flush=True)


if __name__ == "__main__":
    main()
