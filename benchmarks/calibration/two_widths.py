"""Do intervals cover the pseudo-true value where the model is wrong? The sandwich beside the model-based width of the same releases.

python benchmarks/calibration/two_widths.py student dispersed clustered omitted --num-data-sets 50
python benchmarks/calibration/two_widths.py flipped --num-data-sets 10      # 5 % of labels flipped: distance from the truth in logits
python benchmarks/calibration/two_widths.py weighted --num-data-sets 100    # informative sampling, weights of cv 1

With --keep FILE a measurement may be broken off and taken up again.

A line a design and a width: coverage of 90 % intervals of the latents that misspecification concerns, and of all; the mean distance
from the pseudo-true value in sds; the median sd over that of the estimate without privacy; runs that the verdict refuses.
5,000 rows, truths fixed, pseudo-true values in closed form.
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

CAP = 6.0
WEIGHTS = np.array([0.5, 0.8, -0.6])


def linear(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    log_sd = numpyro.sample("log_sd", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, jnp.exp(log_sd)), obs=y)


def poisson(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def covariates(rng, count):
    return np.column_stack([np.ones(count), rng.standard_normal((count, 2))])


def student(rng, count):
    """Normal errors assumed, Student-t with 7 degrees of freedom; their scale is what a model-based width knows too well."""
    x = covariates(rng, count)
    y = x @ WEIGHTS + 0.7 * rng.standard_t(7.0, count)
    return linear, dict(x=x, y=y), np.append(WEIGHTS, np.log(0.7 * np.sqrt(7.0 / 5.0))), [3]


def dispersed(rng, count):
    """Counts with twice the variance of the Poisson model's."""
    x = covariates(rng, count)
    mean = np.exp(x @ WEIGHTS)
    return poisson, dict(x=x, y=rng.poisson(rng.gamma(mean, 1.0))), WEIGHTS, [0, 1, 2]


def clustered(rng, count, size=5):
    """Rows of a person share half of the error's variance, and covariates; the model has them independent."""
    person = np.repeat(np.arange(count // size), size)
    x = covariates(rng, count // size)[person]
    y = x @ WEIGHTS + 0.7 * (rng.standard_normal(count // size)[person] + rng.standard_normal(count))
    return linear, dict(x=x, y=y, person=person), np.append(WEIGHTS, np.log(0.7 * np.sqrt(2.0))), [0, 1, 2]


def omitted(rng, count):
    """A covariate that changes the slope of another is left out, so that errors vary more where that is large."""
    x = covariates(rng, count)
    y = x @ WEIGHTS + 0.7 * (rng.standard_normal(count) * x[:, 1] + rng.standard_normal(count))
    return linear, dict(x=x, y=y), np.append(WEIGHTS, np.log(0.7 * np.sqrt(2.0))), [1]


def flipped(rng, count):
    """Labels of which 5 % are flipped: the truth is that of the others, which the clipped root should be near."""
    x = covariates(rng, count)
    y = (rng.random(count) < 1 / (1 + np.exp(-x @ (2.0 * WEIGHTS)))) ^ (rng.random(count) < 0.05)
    return logistic, dict(x=x, y=y.astype(float)), 2.0 * WEIGHTS, [0, 1, 2]


def weighted(rng, count):
    """A stratum of rows whose responses are mostly large is sampled at a sixth of the others' rate: weights 1 and 6, cv 1."""
    pool = covariates(rng, 20 * count)
    y = pool @ WEIGHTS + 0.8 * rng.standard_normal(len(pool))
    inverse = np.where(y + rng.standard_normal(len(pool)) > 0.1, CAP, 1.0)
    # Systematic sampling in random order: as many rows as asked for, each with a probability that is proportional to 1 / inverse.
    order = rng.permutation(len(pool))
    share = np.cumsum(1.0 / inverse[order])
    chosen = order[np.searchsorted(share, share[-1] * (rng.random() + np.arange(count)) / count)]
    data = dict(x=pool[chosen], y=y[chosen], weight=inverse[chosen])
    return linear, data, np.append(WEIGHTS, np.log(0.8)), [0, 1, 2, 3]


DESIGNS = {f.__name__: f for f in (student, dispersed, clustered, omitted, flipped, weighted)}


def without_privacy(model, data):
    """Sandwich sds of the (weighted) maximum likelihood estimate, and that."""
    x, y, weight = data["x"], data["y"], data.get("weight", np.ones(len(data["y"])))
    theta = np.zeros(3 if model is not linear else 4)
    for _ in range(30):
        eta = x @ theta[:3]
        if model is linear:
            variance = np.exp(2 * theta[3])
            r = y - eta
            scores = np.column_stack([x * (r / variance)[:, None], r**2 / variance - 1])
            h = np.zeros((4, 4))
            h[:3, :3] = (x * weight[:, None]).T @ x / variance
            h[3, 3] = 2 * np.sum(weight)
        else:
            mean, slope = (np.exp(eta),) * 2 if model is poisson else (1 / (1 + np.exp(-eta)), None)
            slope = mean * (1 - mean) if slope is None else slope
            scores, h = x * (y - mean)[:, None], (x * (weight * slope)[:, None]).T @ x
        theta = theta + np.linalg.solve(h, weight @ scores)
    inverse = np.linalg.inv(h)
    return theta, np.sqrt(np.diag(inverse @ ((scores * weight[:, None] ** 2).T @ scores) @ inverse))


def vector(samples):
    return np.concatenate([np.asarray(v).reshape(len(v), -1) for _, v in sorted(samples.items(), reverse=True)], axis=1)


ONCE = {}


def private(design, options, seed):
    """By width: inside or not, distances in sds, sds over those without privacy; and whether it is refused."""
    model, data, truth, concerned = DESIGNS[design](np.random.default_rng(seed), options.rows)
    best, spread = without_privacy(model, data)
    data = {name: np.asarray(value, np.int32 if name == "person" else np.float32) for name, value in data.items()}
    rows = {name: value for name, value in data.items() if name in ("x", "y")}
    special = {"weights": "weight", "max_weight": CAP} if "weight" in data else {"width": "sandwich"}
    special |= {"unit": "person", "max_rows_per_unit": 5} if "person" in data else {}
    settings = {"sandwich": (special, data)} | ({"default": ({}, rows)} if options.with_default else {})
    settings = {} if options.no_fits else settings
    found = {}

    def noted(name, fitted):
        draws = vector(fitted.get_samples(allow_unconverged=True))
        low, high, sds = *np.quantile(draws, [0.05, 0.95], axis=0), draws.std(0)
        inside, off = (low <= truth) & (truth <= high), (draws.mean(0) - truth) / sds
        ratio, std = fitted.verdict.widths.ratio, fitted.verdict.widths.std
        found[name] = {
            "inside": inside.tolist(), "off": off.tolist(), "wide": (sds / spread).tolist(),
            "refused": bool(fitted.verdict.refusals), "dispersion": [ratio, std],
        }  # fmt: skip

    for name, (chosen, arguments) in settings.items():
        fitted = dpppl.NoiseAware(
            model, target_epsilon=options.epsilon, target_delta=1e-5, print_cost=False, progress_bar=False, **chosen
        )
        with ONCE.setdefault((design, name), Once()):
            fitted.run(dpppl.secret_key(), **arguments)
            noted(name, fitted)
            if name == "sandwich" and "weight" not in data:
                fitted.sample_model_width(dpppl.secret_key(), **arguments)
                noted("model", fitted)
    estimates = {"without privacy": (best, spread)}
    if "weight" in data:
        estimates["without privacy or weights"] = without_privacy(model, rows)
    for name, (estimate, sd) in estimates.items():
        found[name] = {
            "inside": (np.abs(estimate - truth) < 1.645 * sd).tolist(), "off": ((estimate - truth) / sd).tolist(),
            "wide": (sd / spread).tolist(), "refused": False, "dispersion": [1.0, 0.0],
        }  # fmt: skip
    return {"widths": found, "concerned": concerned}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("designs", nargs="+", choices=list(DESIGNS))
    parser.add_argument("--num-data-sets", type=int, default=50)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=np.inf, help="no more data sets of a design after so long")
    parser.add_argument("--with-default", action="store_true", help="also a run without width=, weights= and unit=")
    parser.add_argument("--no-fits", action="store_true", help="only the estimate without privacy")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", help="a file of JSON lines that holds what each data set gave")
    options = parser.parse_args()
    for design in options.designs:
        seeds, cell = (
            range(options.first, options.first + options.num_data_sets),
            f"{design} {options.epsilon:g} {options.rows}",
        )
        cell += " with default" * options.with_default + " without fits" * options.no_fits
        runs = recorded(options.keep, cell, seeds, partial(private, design, options), options.seconds)
        concerned = runs[0]["concerned"]
        for width in runs[0]["widths"]:
            of_width = [run["widths"][width] for run in runs]
            inside, off, wide = (np.array([run[name] for run in of_width], float) for name in ("inside", "off", "wide"))
            line = {
                "coverage": np.mean(inside[:, concerned]),
                "its se": np.std(inside[:, concerned].mean(axis=1)) / np.sqrt(len(runs)), "of all": np.mean(inside),
                "mean distance": np.round(off[:, concerned].mean(axis=0), 2).tolist(),
                "sd of distances": np.std(off[:, concerned]), "sd / without privacy": np.median(wide[:, concerned]),
                "refused": sum(run["refused"] for run in of_width), "data sets": len(runs),
                "scores vary, times the model's": float(np.median([run["dispersion"][0] for run in of_width])),
            }  # fmt: skip
            line = {name: round(float(v), 3) if isinstance(v, float) else v for name, v in line.items()}
            written("two_widths", f"{design}, {width}, epsilon {options.epsilon:g}, {options.rows} rows", line)
            print(design, width, line, flush=True)


if __name__ == "__main__":
    main()
