"""NoiseAware's processor seconds in units of NUTS's, for models that the grid of `families.py` leaves out.

One law of all rows with 12 and 40 categories; a random walk over 30 weeks behind a deterministic site, of counts and of zeros and ones; a
mixture of two normal laws; a covariate whose values are missing more often where the response is 1; a synthetic table of three columns, one
an age with a uniform law. A line is one process with empty caches: the default call at epsilon 1, NUTS with 500 + 1,000 steps, and a second
run of each.

python benchmarks/speed/laws.py [--models "walk, Poisson" mixture]
"""

import argparse
import subprocess
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import dpppl
from dpppl.contrib import synthetic

RNG = np.random.default_rng(0)


def categories(count, num_rows=5_000):
    def model(y):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(count)))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Categorical(p), obs=y)

    return model, (RNG.choice(count, num_rows, p=RNG.dirichlet(np.ones(count))),)


def walk(law, num_rows=4_000, weeks=30):
    def model(week, y):
        sd = numpyro.sample("sd", dist.HalfNormal(0.5))
        steps = numpyro.sample("steps", dist.Normal(0.0, 1.0).expand([weeks]).to_event(1))
        level = numpyro.deterministic("level", jnp.cumsum(sd * steps))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", law(level[week]), obs=y)

    week, level = RNG.integers(0, weeks, num_rows), np.cumsum(0.2 * RNG.standard_normal(weeks))
    return model, (week, np.asarray(law(jnp.asarray(level[week])).sample(jax.random.key(0)), np.int32))


def mixture(num_rows=4_000):
    def model(y):
        share = numpyro.sample("share", dist.Beta(2.0, 2.0))
        mean = numpyro.sample("mean", dist.Normal(jnp.array([-2.0, 2.0]), 1.0).to_event(1))
        sd = numpyro.sample("sd", dist.HalfNormal(1.0).expand([2]).to_event(1))
        parts = dist.Categorical(jnp.stack([share, 1.0 - share]))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.MixtureSameFamily(parts, dist.Normal(mean, sd)), obs=y)

    y = np.where(RNG.random(num_rows) < 0.3, RNG.normal(-2.0, 0.7, num_rows), RNG.normal(1.5, 1.0, num_rows))
    return model, (y.astype(np.float32),)


def missing(num_rows=1_000):
    def model(x, known, y):
        mean, sd = numpyro.sample("mean", dist.Normal(0.0, 1.0)), numpyro.sample("sd", dist.LogNormal(0.0, 0.5))
        a, b = numpyro.sample("a", dist.Normal(0.0, 1.0)), numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            x = numpyro.sample("x", dist.Normal(mean, sd), obs=x, obs_mask=known)
            numpyro.sample("y", dist.Bernoulli(logits=a + b * x), obs=y)

    x = RNG.normal(0.5, 1.0, num_rows)
    y = (RNG.random(num_rows) < 1.0 / (1.0 + np.exp(0.3 - 1.2 * x))).astype(np.int32)
    known = RNG.random(num_rows) < np.where(y == 1, 0.6, 0.9)
    return model, (np.where(known, x, 0.0).astype(np.float32), known, y)


def table(num_rows=5_000):
    schema = synthetic.Schema((
        synthetic.Number("age", 0, 100, decimals=0), synthetic.Category("b", (0, 1)),
        synthetic.Category("c", ("x", "y", "z")),
    ))  # fmt: skip
    rows = {
        "age": RNG.integers(0, 101, num_rows),
        "b": RNG.integers(0, 2, num_rows),
        "c": RNG.choice(["x", "y", "z"], num_rows),
    }
    return synthetic.table_model(schema), schema.encoded(rows)


MODELS = {
    "Dirichlet(12)": lambda: categories(12),
    "Dirichlet(40)": lambda: categories(40),
    "walk, Poisson": lambda: walk(lambda level: dist.Poisson(jnp.exp(level))),
    "walk, Bernoulli": lambda: walk(lambda level: dist.Bernoulli(logits=level)),
    "mixture": mixture,
    "missing covariate": missing,
    "table with a uniform age": table,
}


def line(name):
    """A line of the table: ratios of first and second runs, and processor seconds."""
    model, args = MODELS[name]()

    def private():
        found = dpppl.NoiseAware(model, target_epsilon=1.0, target_delta=1e-5, print_cost=False, progress_bar=False)
        found.run(dpppl.secret_key(), *args)
        return found.get_samples(allow_unconverged=True)

    def nuts():
        found = MCMC(NUTS(model), num_warmup=500, num_samples=1_000, progress_bar=False)
        found.run(jax.random.key(0), *args)
        return found.get_samples()

    taken = []
    for run in (private, nuts, private, nuts):
        start = time.process_time()
        jax.block_until_ready(run())
        taken.append(time.process_time() - start)
    first, of_nuts, second, of_second = taken
    return (
        f"| {name} | {first / of_nuts:.2f} | {second / of_second:.2f} | {first:.1f}, {second:.1f} | "
        f"{of_nuts:.1f}, {of_second:.1f} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--line", action="store_true", help="the first model, in this process")
    given = parser.parse_args()
    if given.line:
        warnings.simplefilter("ignore")
        print(line(given.models[0]), flush=True)
    else:
        print("| model | first run | second run | seconds | NUTS's |\n|---|---|---|---|---|", flush=True)
        for name in given.models:
            subprocess.run([sys.executable, __file__, "--line", "--models", name], check=False)
