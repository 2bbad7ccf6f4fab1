"""Seconds of NoiseAware where no row enters the law: a log-linear model of 384 cells with 59 latents.

python benchmarks/speed/shared_law.py [--rows 32561] [--runs 2]
python benchmarks/speed/shared_law.py --coverage 10 --rows 8000    # coverage of 90 % intervals, of data sets from the prior

Seven columns of two values and one of three, with main effects, all pairs, and fifteen triples of the first six columns.
"""

import argparse
import itertools
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.lib.results import written

SIZES = (2,) * 7 + (3,)


def design():
    """The features (384, 59) of all cells."""
    cells = np.stack(np.meshgrid(*map(np.arange, SIZES), indexing="ij"), axis=-1).reshape(-1, len(SIZES))
    single = [np.stack([cells[:, k] == v for v in range(1, size)], 1).astype(float) for k, size in enumerate(SIZES)]
    pairs = [a[:, :, None] * b[:, None, :] for a, b in itertools.combinations(single, 2)]
    triples = [a * b * c for a, b, c in itertools.islice(itertools.combinations(single[:6], 3), 15)]
    return np.concatenate([*single, *(p.reshape(len(cells), -1) for p in pairs), *triples], 1).astype(np.float32)


FEATURES = design()


def model(cell, features):
    effects = numpyro.sample("effects", dist.Normal(0.0, 0.5).expand([features.shape[1]]).to_event(1))
    logits = features @ effects
    with numpyro.plate("rows", cell.shape[0]):
        numpyro.sample("cell", dist.Categorical(logits=logits), obs=cell)


def data(seed, num_rows):
    """Cells of rows (N,), and the effects that they are drawn with."""
    rng = np.random.default_rng(seed)
    effects = 0.5 * rng.standard_normal(FEATURES.shape[1])
    logits = FEATURES @ effects
    shares = np.exp(logits - logits.max())
    return rng.choice(len(shares), num_rows, p=shares / shares.sum()).astype(np.int32), effects


def fit(cells, options):
    private = dpppl.NoiseAware(
        model, target_epsilon=options.epsilon, target_delta=1e-6, print_cost=False, progress_bar=False
    )
    private.run(dpppl.secret_key(), jnp.asarray(cells), dpppl.Public(FEATURES))
    return private, np.asarray(jax.block_until_ready(private.get_samples(allow_unconverged=True)["effects"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32_561)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--coverage", type=int, default=0)
    options = parser.parse_args()
    covered, squares, seconds, refused = [], [], [], 0
    for seed in range(options.coverage or options.runs):
        cells, effects = data(seed, options.rows)
        start, used = time.monotonic(), time.process_time()
        private, samples = fit(cells, options)
        seconds.append((time.monotonic() - start, time.process_time() - used))
        refused += bool(private.verdict.refusals)
        low, high = np.quantile(samples, (0.05, 0.95), axis=0)
        covered.append(np.mean((low < effects) & (effects < high)))
        squares.append(np.mean((samples.mean(0) - effects) ** 2 / samples.var(0)))
    line = {
        "seconds": [round(a, 1) for a, _ in seconds], "processor seconds": [round(b, 1) for _, b in seconds],
        "90 % intervals cover": round(float(np.mean(covered)), 3), "squared error": round(float(np.mean(squares)), 2),
        "data sets": len(covered), "refused": refused,
    }  # fmt: skip
    written("shared_law", f"384 cells, epsilon {options.epsilon:g}, {options.rows} rows", line)
    print(line)


if __name__ == "__main__":
    main()
