"""Are comparisons of models calibrated? Bayes factors of point nulls, discoveries among many of them, and differences in elpd.

python benchmarks/calibration/comparisons.py bayes_factors --repetitions 60 --keep runs.jsonl    # may be broken off and taken up again
python benchmarks/calibration/comparisons.py elpd --repetitions 200

bayes_factors: a logistic regression with an intercept, ten nulls and coefficients from .05 to .4; shares of data sets in which the Bayes
factor against a null exceeds 10, private and by Laplace's method without privacy; false and true shares of `discoveries` at a false discovery rate
of .05. elpd: 90 % intervals of the difference in expected log predictive density of two models on 2,000 held-out rows; coverage of
its value in the population, mean width over the width without privacy.
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.lib.repeated import Once, recorded
from benchmarks.lib.results import written
from dpppl.contrib.uncertainty import discoveries, elpd_difference

EFFECTS = np.array([0.0] * 10 + [0.05, 0.1, 0.15, 0.2, 0.3, 0.4])
STRONG = 10.0
ONCE = Once()


def logistic(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b + x @ w), obs=y)


def rows(rng, count, effects):
    x = rng.standard_normal((count, len(effects))).astype(np.float32)
    return x, (rng.random(count) < 1 / (1 + np.exp(0.3 - x @ effects))).astype(np.float32)


def laplace(x, y):
    """Posterior mean and sds of (b, w) without privacy."""
    x, z = np.column_stack([np.ones(len(x)), x]).astype(float), np.zeros(x.shape[1] + 1)
    for _ in range(15):
        p = 1 / (1 + np.exp(-x @ z))
        precision = (x * (p * (1 - p))[:, None]).T @ x + np.eye(len(z))
        z = z + np.linalg.solve(precision, x.T @ (y - p) - z)
    return z, np.linalg.inv(precision)


def bayes_factors(options, seed):
    x, y = rows(np.random.default_rng(seed), options.rows, EFFECTS)
    private = dpppl.NoiseAware(
        logistic, target_epsilon=options.epsilon, target_delta=1e-5, print_cost=False, progress_bar=False
    )
    with ONCE:
        private.run(dpppl.secret_key(), x, y)
    factors = [private.bayes_factor(f"w[{k}]", allow_unconverged=True) for k in range(len(EFFECTS))]
    mean, covariance = laplace(x, y)
    mean, sd = mean[1:], np.sqrt(np.diag(covariance))[1:]
    exact = np.exp(-0.5 * (mean / sd) ** 2) / sd  # a normal density at 0 over that of the prior
    return {
        "private": factors, "without privacy": exact.tolist(), "refused": bool(private.verdict.refusals),
        "found": discoveries(factors).tolist(), "found without privacy": discoveries(exact).tolist(),
        "sd ratio": float(np.median(private.get_samples(allow_unconverged=True)["w"].std(0) / sd)),
    }  # fmt: skip


def of_factors(runs):
    line, is_null = {"repetitions": len(runs), "refused": sum(run["refused"] for run in runs)}, EFFECTS == 0.0
    line["sd over that without privacy"] = float(np.median([run["sd ratio"] for run in runs]))
    for name in ("private", "without privacy"):
        against = 1.0 / np.array([run[name] for run in runs]) > STRONG
        line[f"{name}, against a true null"] = float(against[:, is_null].mean())
        line[f"{name}, power by effect"] = {
            str(effect): round(float(against[:, EFFECTS == effect].mean()), 3) for effect in EFFECTS[~is_null]
        }
        found = np.array([run["found" if name == "private" else f"found {name}"] for run in runs])
        line[f"{name}, false discoveries"] = float(np.mean(found[:, is_null].sum(1) / np.maximum(found.sum(1), 1)))
        line[f"{name}, power"] = float(against[:, ~is_null].mean())
        line[f"{name}, found of effects"] = float(found[:, ~is_null].mean())
    return line


def small(x, y):
    return logistic(x[:, :1], y)


def elpd(options, seed):
    rng, effects = np.random.default_rng(seed), np.array([0.5, 0.3, -0.2])
    train, scores = rows(rng, 4_000, effects), []
    for columns, model in ((3, logistic), (1, small)):
        mean, covariance = laplace(train[0][:, :columns], train[1])
        drawn = rng.multivariate_normal(mean, covariance, 50).astype(np.float32)
        scores.append((model, {"b": drawn[:, 0], "w": drawn[:, 1:]}))
    (first, of_first), (second, of_second) = scores
    score, found = elpd_difference(first, second), {}

    def exactly(x, y):
        """The score of rows by hand, clipped as the query clips it."""
        logs = []
        for drawn, columns in ((of_first, 3), (of_second, 1)):
            logits = drawn["b"] + x[:, :columns] @ drawn["w"].T
            logs.append(np.log(np.mean(1 / (1 + np.exp(np.where(y[:, None] > 0, -logits, logits))), axis=1)))
        return np.clip(logs[0] - logs[1], -options.bound, options.bound)

    truth = float(np.mean(exactly(*rows(np.random.default_rng(10**6 + seed), 400_000, effects))))
    x, y = rows(rng, options.rows, effects)
    query = dpppl.private_score(
        dpppl.secret_key(), score, dpppl.Public(of_first), dpppl.Public(of_second), jnp.asarray(x), jnp.asarray(y),
        bounds=(-options.bound, options.bound), target_epsilon=options.epsilon, target_delta=1e-5, measure_spread=True,
    )  # fmt: skip
    low, high = query.interval(0.9)
    alone = exactly(x, y)
    half = 1.645 * alone.std() / np.sqrt(len(y))
    found |= {"covers": low <= truth <= high, "width": high - low, "above zero": low > 0.0}
    found |= {"covers without privacy": bool(abs(alone.mean() - truth) <= half), "width without privacy": 2 * half}
    return {name: float(value) for name, value in found.items()}


def of_elpd(runs):
    means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    error = float(np.std([run["covers"] for run in runs]) / np.sqrt(len(runs)))
    return means | {"covers, se": error, "repetitions": len(runs)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("bayes_factors", "elpd"), nargs="+")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--rows", type=int, help="10,000 for Bayes factors, and 2,000 for elpd")
    parser.add_argument(
        "--bound", type=float, default=1.0, help="of the difference of a row's log predictive densities"
    )
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=np.inf, help="no more repetitions after so long")
    parser.add_argument("--keep", help="a file of JSON lines that holds what each repetition found")
    options = parser.parse_args()
    given = options.rows
    for what in options.what:
        run, summed, default = {"bayes_factors": (bayes_factors, of_factors, 10_000), "elpd": (elpd, of_elpd, 2_000)}[
            what
        ]
        options.rows = given or default
        cell = f"{what}, epsilon {options.epsilon:g}, {options.rows} rows"
        runs = recorded(options.keep, cell, range(options.repetitions), partial(run, options), options.seconds)
        line = {name: round(v, 4) if isinstance(v, float) else v for name, v in summed(runs).items()}
        written("comparisons", cell, line)
        print(cell, line, flush=True)


if __name__ == "__main__":
    main()
