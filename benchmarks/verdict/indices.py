"""Ids out of range, and missing ids cast to integers: what the three methods say of them, in a table.

    python benchmarks/verdict/indices.py [runs]     # of each kind and method, 4 by default: 60 runs in all, about 20 minutes on two cores

A run fails where neither its verdict nor its report names the ids, whatever it is called.
"""

import sys
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl

ROWS, GROUPS = 2_000, 12
EDGES = np.linspace(-1.5, 1.5, GROUPS).astype(np.float32)


def model_of(look_up):
    def model(ids, y):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([GROUPS]).to_event(1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(look_up(u, ids), 1.0), obs=y)

    return model


KINDS = {  # how a row's id is looked up, and the ids that the table holds, of groups from 0
    "ids from 1": (model_of(lambda u, ids: u[ids]), lambda g, rng: g + 1),
    "ids from -1": (model_of(lambda u, ids: jnp.take(u, ids, mode="clip")), lambda g, rng: g - 1),
    "missing float ids": (
        model_of(lambda u, ids: u[ids.astype(int)]),
        lambda g, rng: np.where(rng.random(len(g)) < 0.1, np.nan, g).astype(np.float32),
    ),
    "embedding, an id more": (
        model_of(lambda u, ids: jnp.stack([u, 0.5 * u], axis=1)[ids].sum(-1)),
        lambda g, rng: np.where(rng.random(len(g)) < 0.1, GROUPS, g),
    ),
    "a bin more": (
        model_of(lambda u, x: u[jnp.searchsorted(EDGES, x)]),
        lambda g, rng: np.append(EDGES, 2.0).astype(np.float32)[np.where(rng.random(len(g)) < 0.1, GROUPS, g)],
    ),
}


def said_by(method, model, ids, y):
    """The verdict's first line, and all that it says."""
    target = dict(target_epsilon=3.0, target_delta=1e-5, print_cost=False)
    key = dpppl.secret_key()
    if method == "NoiseAware":
        found = dpppl.NoiseAware(model, num_samples=100, progress_bar=False, **target)
        found.run(key, ids, y)
        return found.verdict.line(), " ".join([*found.verdict.refusals, *found.verdict.doubts])
    if method == "MCMC":
        found = dpppl.MCMC(dpppl.DPSGLD(model), num_warmup=200, num_samples=400, progress_bar=False, **target)
        found.run(key, ids, y)
        return found.verdict.line(), str(found.privacy_report())
    svi = dpppl.SVI(model, AutoNormal(model), numpyro.optim.Adam(0.02), **target)
    found = svi.run(key, 400, ids, y, progress_bar=False)
    return found.verdict.line(), " ".join([found.verdict.line(), *found.verdict.refusals, str(found.verdict)])


def main(runs):
    failed = 0
    print(f"| kind | method | {runs} runs |\n|---|---|---|")
    for kind, (model, table) in KINDS.items():
        for method in ("NoiseAware", "MCMC", "SVI"):
            lines, named = [], 0
            for seed in range(runs):
                rng = np.random.default_rng(seed)
                group = rng.integers(0, GROUPS, ROWS)
                y = np.float32(rng.normal(0.5, 0.7, GROUPS)[group] + rng.standard_normal(ROWS))
                line, words = said_by(method, model, np.asarray(table(group, rng)), y)
                names = "ids that index site 'u' go from 0 to 11" in words
                failed += not names
                named += names
                lines.append(line)
            print(f"| {kind} | {method} | {named} name the ids; {lines[0][:160]} |", flush=True)
    print(f"\nwithout a word on the ids: {failed} of {runs * 3 * len(KINDS)}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
