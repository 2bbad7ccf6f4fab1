"""Do intervals cover the truth where a covariate is missing at random? NoiseAware beside complete cases and a posterior without privacy.

python benchmarks/calibration/missing_values.py normal binary --num-data-sets 100 --keep runs.jsonl    # may be broken off and taken up again
python benchmarks/calibration/missing_values.py --nodes                     # error of the rule that sums a normal covariate out

y ~ Bernoulli(logit^-1(-.3 + .5 x1 + x2)), x1 ~ N(0, 1); x2 given x1 is normal, or binary. The chance that x2 is missing depends on y,
which is always observed: .36 where y is 1, .04 where it is 0, about .2 in all. So complete cases have too few rows with y = 1.
A line a kind: coverage of 90 % intervals, by latent, too, its standard error over data sets, mean error in sds, and the median sd over
that without privacy, of NoiseAware; without privacy (a normal posterior at the mode of the observed data's likelihood); of complete cases
without privacy. `--nuts` adds NUTS's sd on the first data set.
"""

import argparse
import functools
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.infer import MCMC, NUTS
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.lib.repeated import Once, recorded
from benchmarks.lib.results import written
from dpppl.model import structure

TRUTH = {"b": np.array([-0.3, 0.5, 1.0]), "normal": np.array([0.0, 0.5, np.log(0.8)]), "binary": np.array([-0.2, 0.7])}
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(16)


def law(kind, c, x1):
    eta = c[0] + c[1] * x1
    return dist.Normal(eta, jnp.exp(c[2])) if kind == "normal" else dist.Bernoulli(logits=eta)


def priors(kind):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
    return b, numpyro.sample("c", dist.Normal(0, 1).expand([len(TRUTH[kind])]).to_event(1))


def model(kind):
    def model(x1, x2, ok, y):
        b, c = priors(kind)
        with numpyro.plate("data", x1.shape[0]):
            x2 = numpyro.sample("x2", law(kind, c, x1), obs=x2, obs_mask=ok)
            numpyro.sample("y", dist.Bernoulli(logits=b[0] + b[1] * x1 + b[2] * x2), obs=y)

    return model


def simulated(kind, seed, count):
    rng = np.random.default_rng(seed)
    b, c = TRUTH["b"], TRUTH[kind]
    x1 = rng.standard_normal(count)
    eta = c[0] + c[1] * x1
    x2 = (
        eta + np.exp(c[-1]) * rng.standard_normal(count)
        if kind == "normal"
        else rng.random(count) < 1 / (1 + np.exp(-eta))
    )
    y = rng.random(count) < 1 / (1 + np.exp(-(b[0] + b[1] * x1 + b[2] * x2)))
    ok = rng.random(count) > np.where(y, 0.36, 0.04)
    x2 = np.where(ok, x2, np.nan if kind == "normal" else 0)
    return x1.astype(np.float32), x2.astype(np.float32 if kind == "normal" else np.int32), ok, y.astype(np.float32)


def log_density(theta, kind, x1, x2, ok, y, of_missing=1.0):
    """Prior times the observed data's likelihood; rows with a missing value count `of_missing` times."""
    b, c = theta[:3], theta[3:]
    of_y = lambda x: dist.Bernoulli(logits=b[0] + b[1] * x1 + b[2] * x).log_prob(y)  # noqa: E731
    if kind == "normal":
        values = (c[0] + c[1] * x1)[None] + jnp.exp(c[2]) * NODES[:, None]
        log_weights = jnp.broadcast_to(np.log(WEIGHTS / WEIGHTS.sum())[:, None], values.shape)
    else:
        values = jnp.broadcast_to(jnp.arange(2.0)[:, None], (2, len(x1)))
        log_weights = law(kind, c, x1).log_prob(values)
    summed = logsumexp(log_weights + jax.vmap(of_y)(values), axis=0)
    known = jnp.where(ok, x2, 0)
    complete = of_y(known) + law(kind, c, x1).log_prob(known)
    return jnp.sum(jnp.where(ok, complete, of_missing * summed)) - 0.5 * jnp.sum(theta**2)


@functools.partial(jax.jit, static_argnames="kind")
def derivatives(theta, kind, of_missing, *data):
    return tuple(f(log_density)(theta, kind, *data, of_missing) for f in (jax.grad, jax.hessian))


def normal_posterior(kind, data, of_missing):
    """Mode and sds."""
    theta = np.concatenate([TRUTH["b"], TRUTH[kind]])
    for _ in range(6):
        found = derivatives(theta.astype(np.float32), kind, of_missing, *data)
        g, h = (np.asarray(x, np.float64) for x in found)
        theta = theta - np.linalg.solve(h, g)
    return theta, np.sqrt(np.diag(np.linalg.inv(-h)))


def nuts_sds(kind, data):
    def marginal():
        b, c = priors(kind)
        theta = jnp.concatenate([b, c])
        numpyro.factor("rows", log_density(theta, kind, *data) + 0.5 * jnp.sum(theta**2))

    mcmc = MCMC(NUTS(marginal), num_warmup=300, num_samples=700, progress_bar=False)
    mcmc.run(jax.random.key(0))
    return np.concatenate([np.std(mcmc.get_samples()[name], axis=0) for name in ("b", "c")])


ONCE = {}


def one(kind, options, seed):
    data, truth = simulated(kind, seed, options.rows), np.concatenate([TRUTH["b"], TRUTH[kind]])
    start = time.perf_counter()
    private = dpppl.NoiseAware(
        model(kind),
        target_epsilon=options.epsilon,
        target_delta=1e-5,
        num_samples=2_000,
        print_cost=False,
        progress_bar=False,
    )
    with ONCE.setdefault(kind, Once()):
        private.run(jax.random.fold_in(jax.random.key(seed), list(TRUTH).index(kind)), *data)
    samples = private.get_samples(allow_unconverged=True)
    draws = np.concatenate([samples["b"], samples["c"]], axis=1)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    found = {
        "missing": float(1 - data[2].mean()),
        "seconds": time.perf_counter() - start, "verdict": private.verdict.line().split(":")[0],
        "private": {"inside": ((low < truth) & (truth < high)).tolist(), "sd": draws.std(0).tolist(),
                    "z": ((draws.mean(0) - truth) / draws.std(0)).tolist()},
    }  # fmt: skip
    for name, of_missing in (("without", 1.0), ("complete", 0.0)):
        mean, sd = normal_posterior(kind, data, of_missing)
        z = (mean - truth) / sd
        found[name] = {"inside": (np.abs(z) < 1.6449).tolist(), "sd": sd.tolist(), "z": z.tolist()}
    if options.nuts and seed == options.first:
        found["nuts"] = {"sd": nuts_sds(kind, data).tolist()}
    return found


def summary(runs):
    """The numbers of a kind's runs."""
    reference = np.array([run["without"]["sd"] for run in runs])
    numbers = {
        "data sets": len(runs), "missing": np.mean([run["missing"] for run in runs]),
        "refused": sum(run["verdict"] == "do not read" for run in runs), "seconds": np.median([run["seconds"] for run in runs]),
    }  # fmt: skip
    for name in ("private", "without", "complete"):
        inside, z, sd = (np.array([run[name][key] for run in runs], float) for key in ("inside", "z", "sd"))
        numbers |= {
            f"{name}: coverage": inside.mean(), f"{name}: its se": inside.mean(1).std() / np.sqrt(len(runs)),
            f"{name}: by latent": np.round(inside.mean(0), 2).tolist(), f"{name}: mean z": np.round(z.mean(0), 2).tolist(),
            f"{name}: sd / without": np.median(sd / reference),
        }  # fmt: skip
    for run in runs:
        if "nuts" in run:
            numbers["sd / NUTS's"] = np.round(np.array(run["private"]["sd"]) / run["nuts"]["sd"], 2).tolist()
    return {name: round(float(value), 3) if isinstance(value, float) else value for name, value in numbers.items()}


def node_errors():
    """The rule of nodes and Gauss-Hermite's: root mean square error of the log likelihood of y ~ N(r x, 1), x ~ N(0, 1)."""
    rules = (structure.NODES, np.exp(structure.LOG_WEIGHTS)), (NODES, WEIGHTS / WEIGHTS.sum())
    rng = np.random.default_rng(0)
    for r in (1.0, 2.0, 3.0, 4.0, 6.0):
        y = rng.standard_normal(400) * np.sqrt(1 + r**2)
        exact = stats.norm.logpdf(y, 0, np.sqrt(1 + r**2))
        errors = [np.log(stats.norm.pdf(y[:, None], r * t, 1) @ w) - exact for t, w in rules]
        print(f"sd {1 / np.sqrt(1 + r**2):.2f}:", *(f"{np.sqrt(np.mean(e**2)):.1g}" for e in errors))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=["normal", "binary", []])
    parser.add_argument("--num-data-sets", type=int, default=10)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--first", type=int, default=0, help="seed of the first data set")
    parser.add_argument("--seconds", type=float, default=np.inf, help="no more data sets of a kind after so long")
    parser.add_argument("--keep", help="a file of JSON lines that holds what each data set gave")
    parser.add_argument("--nuts", action="store_true")
    parser.add_argument("--nodes", action="store_true", help="errors of the rule of nodes")
    options = parser.parse_args()
    if options.nodes:
        node_errors()
    for kind in options.kinds:
        cell, seeds = (
            f"{kind}, epsilon {options.epsilon:g}, {options.rows} rows",
            range(options.first, options.first + options.num_data_sets),
        )
        numbers = summary(recorded(options.keep, cell, seeds, functools.partial(one, kind, options), options.seconds))
        written("missing_values", cell, numbers)
        print(cell, numbers, flush=True)


if __name__ == "__main__":
    main()
