"""Private survival curves: error and coverage of the bands, against NUTS without privacy, by what is known of censoring times.

python benchmarks/calibration/survival.py column --num-data-sets 60     # censoring times of all rows: end of follow-up, random, heavy
python benchmarks/calibration/survival.py dropout --num-data-sets 60    # a site of dropout times, and a public end of follow-up
python benchmarks/calibration/survival.py law --num-data-sets 60        # a public law of censoring times, right and wrong
python benchmarks/calibration/survival.py none --num-data-sets 60       # no law at all: censoring ignored in the centre
python benchmarks/calibration/survival.py column --keep runs.jsonl      # may be broken off and taken up again
python benchmarks/calibration/survival.py --bias                        # of each design from 20,000 rows without noise, in a minute

Weibull regression, two covariates, 1,000 rows, delta 1e-5, truths from the prior. Curves of three people at ten times. A line a design:
root mean square error and mean error of the curve, coverage of 90 % bands, width over that of NUTS, mean errors of latents in sds.
--bias solves the equation of clipped, centred scores by one step from the truth, norm at the median: what is left as rows grow.
"""

import argparse
import functools
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.infer import MCMC, NUTS

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.calibration.noise_aware import Bench
from benchmarks.lib.noise_aware_wide import mu_of
from benchmarks.lib.repeated import recorded
from benchmarks.lib.results import written
from dpppl.access.centring import ROW_NUMBER, centred_gradient
from dpppl.contrib.uncertainty import survival_curve
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from dpppl.noise_aware.bounds import Bounds
from models.survival import weibull_survival

PRIOR_SCALE, END, RATE = 0.5, 2.0, 0.5
TIMES = np.linspace(0.2, 2.0, 10)
PEOPLE = np.array([[0.0, 0.0], [1.0, -1.0], [-1.0, 0.5]], np.float32)
TRUTH = {"concentration": 1.5, "intercept": 0.2, "weights": np.array([0.5, -0.3])}
SITES = "concentration", "intercept", "weights"


def column(x, time=None, censored=False, end=None):
    weibull_survival(x, time, censored, end, prior_scale=PRIOR_SCALE)


def dropout(x, time=None, censored=False):
    weibull_survival(x, time, censored, END, dropout=True, prior_scale=PRIOR_SCALE)


def law(x, time=None, censored=False):
    weibull_survival(x, time, censored, dist.Exponential(RATE), prior_scale=PRIOR_SCALE)


def none(x, time=None, censored=False):
    """As if nobody could have been censored."""
    weibull_survival(x, time, censored, jnp.inf, prior_scale=PRIOR_SCALE)


MODELS = {model.__name__: model for model in (column, dropout, law, none)}
UNIFORM, DROPOUT = (lambda rng, n: rng.uniform(0.3, END, n)), (lambda rng, n: rng.exponential(1.0 / RATE, n))
DESIGNS = {
    "column": {"administrative": UNIFORM, "random": DROPOUT, "heavy": lambda rng, n: rng.uniform(0.0, 0.12, n)},
    "dropout": {"modelled": lambda rng, n: np.minimum(DROPOUT(rng, n), END)},
    "law": {"public law": DROPOUT, "wrong law": UNIFORM},
    "none": {"ignored": UNIFORM},
}
"""By model, and by name, the censoring times that are the truth."""


def simulated(model, design, seed, num_rows, truth=None):
    """Arguments of the model, the truth by site, from the prior unless given, and the share of censored rows."""
    rng = np.random.default_rng(seed)
    truth = truth or {
        "concentration": np.exp(0.5 * rng.standard_normal()),
        "intercept": PRIOR_SCALE * rng.standard_normal(),
        "weights": PRIOR_SCALE * rng.standard_normal(2),
    }
    x = rng.standard_normal((num_rows, 2))
    event = np.exp(truth["intercept"] + x @ truth["weights"]) * rng.weibull(truth["concentration"], num_rows)
    event, end = event.astype(np.float32), DESIGNS[model][design](rng, num_rows).astype(np.float32)
    args = x.astype(np.float32), np.minimum(event, end), event > end
    return (*args, end) if model == "column" else args, truth, np.mean(event > end)


class SurvivalBench(Bench):
    """Programs that are compiled once for all data sets of a model."""

    def __init__(self, model, num_rows):
        self.name = model
        self.nuts = MCMC(NUTS(MODELS[model]), num_warmup=300, num_samples=400, progress_bar=False, jit_model_args=True)
        super().__init__(MODELS[model], None, num_rows)

    def data(self, seed):
        return simulated(self.name, next(iter(DESIGNS[self.name])), seed, self.num_rows)[0], None

    def found(self, design, seed, epsilon):
        """By method: errors of the curve and whether its band covers them, (30,), widths of the band, and errors of latents in sds."""
        args, truth, share = simulated(self.name, design, seed, self.num_rows)
        rows, _ = self.coordinates.split.arrays(args, {})
        _, mixture, verdict = self.released(rows, mu_of(epsilon), Bounds())
        drawn, _ = self.draws(mixture, seed)
        self.nuts.run(jax.random.key(seed), *args)
        scale = np.exp(truth["intercept"] + PEOPLE @ truth["weights"])
        exact = np.exp(-((TIMES / scale[:, None]) ** truth["concentration"]))
        private = jax.vmap(self.coordinates.split.constrain, (0, None))(drawn, self.public)
        lines = {}
        for method, samples in (("private", private), ("NUTS", self.nuts.get_samples())):
            curve = survival_curve(MODELS[self.name], samples, TIMES, PEOPLE)
            z = np.concatenate([
                np.ravel((np.mean(samples[s], axis=0) - truth[s]) / np.std(samples[s], axis=0)) for s in SITES
            ])  # fmt: skip
            inside = (curve.lower <= exact) & (exact <= curve.upper)
            lines[method] = np.ravel(curve.mean - exact), np.ravel(inside), np.ravel(curve.upper - curve.lower), z
        found = {method: [np.asarray(values, float).tolist() for values in line] for method, line in lines.items()}
        return found | {"refused": bool(verdict.refusals), "censored": float(share)}


def bias(model, design, num_rows=20_000, of_rows=1_000):
    """Bias of latents (concentration, intercept, weights, unconstrained) in posterior sds of 1,000 rows, and the largest of curves."""
    args, truth, share = simulated(model, design, 0, num_rows, TRUTH)
    split = split_model(MODELS[model], args, {})
    rows, public = split.arrays(args, {})
    z = {name: np.log(truth[name]) if name == "concentration" else truth[name] for name in SITES} | {
        "dropout_rate": np.log(RATE)
    }
    z = {name: jnp.asarray(z[name], jnp.float32) for name in split.latents}
    flat, unflatten = ravel_pytree(z)
    own = lambda row: ravel_pytree(jax.grad(split.log_likelihood)(z, row, public))[0]  # noqa: E731
    scores = np.asarray(jax.jit(jax.vmap(own))(rows))
    norm = float(np.median(np.linalg.norm(scores, axis=1)))
    statistic = centred_gradient(split.log_likelihood, Responses.of(split), norm)
    of_row = lambda row: ravel_pytree(statistic(z, row, (public, jax.random.key(1))))[0]  # noqa: E731
    psi = np.asarray(jax.jit(jax.vmap(of_row))({**rows, ROW_NUMBER: np.arange(num_rows, dtype=np.int32)}))
    psi = psi * np.minimum(1.0, norm / np.maximum(np.linalg.norm(psi, axis=1, keepdims=True), 1e-30))
    inverse = np.linalg.inv(psi.T @ scores)
    step, spread = inverse @ psi.sum(0), np.sqrt(np.diag(inverse @ (psi.T @ psi) @ inverse.T) * num_rows / of_rows)

    def curve(vector):
        samples = split.constrain(unflatten(vector), public)
        scale = jnp.exp(samples["intercept"] + PEOPLE @ samples["weights"])
        return jnp.exp(-((TIMES / scale[:, None]) ** samples["concentration"]))

    moved = np.asarray(curve(flat + step) - curve(flat))
    error = np.sqrt(np.diag(inverse @ (psi.T @ psi) @ inverse.T))
    return {
        "bias / sd of 1,000 rows": _by_site(split, step / spread, unflatten),
        "its standard error": round(float(np.max(error / spread)), 2), "largest bias of a curve": round(float(np.max(np.abs(moved))), 3),
        "censored": round(float(share), 3), "clipped": round(float(np.mean(np.linalg.norm(psi, axis=1) > 0.999 * norm)), 2),
    }  # fmt: skip


def _by_site(split, vector, unflatten):
    found = unflatten(jnp.asarray(vector, jnp.float32))
    return {name: np.round(np.asarray(found[name], np.float64), 2).tolist() for name in split.latents}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="column", choices=list(MODELS))
    parser.add_argument("--bias", action="store_true", help="the bias of all designs, without noise")
    parser.add_argument("--designs", nargs="+", help="some of the model's designs; all by default")
    parser.add_argument("--num-data-sets", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", help="a file of JSON lines that holds what each data set gave")
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=np.inf, help="no more data sets after so long")
    options = parser.parse_args()
    if options.bias:
        for model, designs in DESIGNS.items():
            for design in designs:
                found = bias(model, design)
                written("survival_bias", design, found)
                print(design, found, flush=True)
        return
    bench = functools.cache(lambda: SurvivalBench(options.model, options.rows))
    for design in options.designs or DESIGNS[options.model]:
        seeds = range(options.first, options.first + options.num_data_sets)
        one = lambda seed: bench().found(design, seed, options.epsilon)  # noqa: B023, E731
        cell = f"{design}, epsilon {options.epsilon:g}, {options.rows} rows"
        numbers = summary(recorded(options.keep, cell, seeds, one, options.seconds))
        written("survival", cell, numbers)
        print(design, numbers, flush=True)


def summary(runs):
    """The numbers of a design's runs."""
    numbers = {
        "data sets": len(runs), "refused": sum(run["refused"] for run in runs),
        "censored": float(np.mean([run["censored"] for run in runs])),
    }  # fmt: skip
    widths = {method: np.stack([run[method][2] for run in runs]) for method in ("private", "NUTS")}
    numbers["width / NUTS"] = float(np.mean(widths["private"]) / np.mean(widths["NUTS"]))
    for method in widths:
        errors, inside, _, z = (np.stack([run[method][k] for run in runs]) for k in range(4))
        each = inside.mean(axis=1)
        numbers |= {
            f"{method}: rmse": float(np.sqrt(np.mean(errors**2))), f"{method}: mean error": float(np.mean(errors)),
            f"{method}: coverage": float(each.mean()), f"{method}: its se": float(each.std() / np.sqrt(len(each))),
            f"{method}: mean z": np.round(z.mean(axis=0), 2).tolist(), f"{method}: rms z": float(np.sqrt(np.mean(z**2))),
        }  # fmt: skip
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in numbers.items()}


if __name__ == "__main__":
    main()
