"""Right models of several responses of a row: how many runs are "read"? Hurdle, zero-inflated, two-part and mixture models.

python benchmarks/verdict/two_parts.py --num-runs 20 --kinds hurdle "two answers"

A line for each kind: verdicts of that many data sets of 4,000 rows, drawn from the model with latents from its prior, by
`dpppl.NoiseAware` at epsilon 1; the largest error of a posterior mean in posterior sds; the refusals.
"""

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import Predictive

import dpppl
from dpppl.noise_aware import runner
from dpppl.row_statistics import releases

NUM_ROWS, DELTA = 4_000, 1e-5


def normal(name, mean=0.0, sd=1.0):
    return numpyro.sample(name, dist.Normal(mean, sd))


def hurdle(x, any=None, amount=None):
    a, b, m, c = normal("a"), normal("b"), normal("m"), normal("c")
    scale = numpyro.sample("scale", dist.LogNormal(-0.5, 0.3))
    with numpyro.plate("data", x.shape[0]):
        found = numpyro.sample("any", dist.BernoulliLogits(a + b * x), obs=any)
        numpyro.sample("amount", dist.LogNormal(m + c * x, scale).mask(found > 0), obs=amount)


def two_part(x, any=None, amount=None):
    a, b, m, c = normal("a"), normal("b"), normal("m"), normal("c", 0.0, 0.5)
    with numpyro.plate("data", x.shape[0]):
        found = numpyro.sample("any", dist.BernoulliLogits(a + b * x), obs=any)
        with numpyro.handlers.mask(mask=found > 0):
            numpyro.sample("amount", dist.Gamma(2.0, jnp.exp(-m - c * x)), obs=amount)


def two_answers(x, first=None, second=None):
    a, b, m, c = normal("a"), normal("b"), normal("m"), normal("c")
    with numpyro.plate("data", x.shape[0]):
        found = numpyro.sample("first", dist.BernoulliLogits(a + b * x), obs=first)
        numpyro.sample("second", dist.BernoulliLogits(m + c * x).mask(found > 0), obs=second)


def zero_inflated(x, y=None):
    gate, m, c = normal("gate"), normal("m", 0.5, 0.5), normal("c", 0.0, 0.5)
    with numpyro.plate("data", x.shape[0]):
        law = dist.ZeroInflatedPoisson(jax.nn.sigmoid(gate), jnp.exp(m + c * x))
        numpyro.sample("y", law, obs=y)


def mixture(x, y=None):
    share, low, gap = normal("share"), normal("low"), numpyro.sample("gap", dist.LogNormal(1.0, 0.3))
    scale = numpyro.sample("scale", dist.LogNormal(-0.5, 0.3))
    p = jax.nn.sigmoid(share)
    with numpyro.plate("data", x.shape[0]):
        parts = dist.Normal(jnp.stack([low, low + gap]), scale)
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(jnp.stack([p, 1.0 - p])), parts), obs=y)


KINDS = {
    "hurdle": (hurdle, ("any", "amount")),
    "two-part": (two_part, ("any", "amount")),
    "two answers": (two_answers, ("first", "second")),
    "zero-inflated": (zero_inflated, ("y",)),
    "mixture": (mixture, ("y",)),
}


def runs(kind, num_runs, epsilon):
    """The verdict of each run, and the largest error in posterior sds."""
    model, sites = KINDS[kind]
    programs = {}  # of one shape: proved and compiled once
    runner.prepared = lambda *given: programs.get(kind) or programs.setdefault(kind, releases.prepared(*given))
    draw = jax.jit(lambda key, x: Predictive(model, num_samples=1)(key, x))
    for seed in range(num_runs):
        x = jnp.asarray(np.random.default_rng(seed).standard_normal(NUM_ROWS), jnp.float32)
        drawn = {name: value[0] for name, value in draw(jax.random.key(seed), x).items()}
        private = dpppl.NoiseAware(
            model, target_epsilon=epsilon, target_delta=DELTA, print_cost=False, progress_bar=False
        )
        private.run(dpppl.secret_key(), x, *(drawn[site] for site in sites))
        found = private.get_samples(allow_unconverged=True)
        error = max(abs(float(drawn[s]) - np.mean(v)) / np.std(v) for s, v in found.items() if np.ndim(v) == 1)
        yield private.verdict, error


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-runs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=KINDS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for kind in options.kinds:
        words, errors, refusals = Counter(), [], []
        for verdict, error in runs(kind, options.num_runs, options.epsilon):
            words[verdict.line().split(":")[0]] += 1
            errors.append(error)
            refusals += [line for line in (*verdict.refusals, *verdict.doubts)[:1]]
            print(f"  {kind} {len(errors)}: {verdict.line()[:200]} (error {error:.1f} sd)", file=sys.stderr, flush=True)
        print(f"{kind}: {dict(words)}, largest error {max(errors):.1f} sd", *refusals, sep="\n    ", flush=True)


if __name__ == "__main__":
    main()
