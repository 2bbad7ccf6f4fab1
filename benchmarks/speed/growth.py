"""How steps of MCMC and SVI, and the time before the first, grow: exponents of powers of rows, latents, categories and sites.

Rows lie in a file of 10 columns, 181 drawn a step on average, or all of them. Latents are the weights of a logistic regression,
categories those of a softmax regression with 4 covariates, and sites have 3 weights each. Processor time, medians over chunks of
one run of each size; the exponent is the slope of logarithms over the last three sizes, where what is fixed weighs least.
"Before" is the run without its chunks: tracing, the proof, compiling, the budget.

`--beside` measures whole runs on full batches, steps compared with NumPyro's: seconds of a processor and the peak of memory of a
process each, JSON on request. NUTS takes 100 draws and 100 of warm-up, whatever the number of steps.

python benchmarks/speed/growth.py [--series rows "all rows" latents categories sites] [--most-rows 1e7] [--folder FOLDER]
python benchmarks/speed/growth.py --beside [--most-rows 1e6] [--json docs/results/growth.json]
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer.autoguide import AutoNormal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from dpppl.runs import driver

BATCH, NUM_ROWS, COLUMNS, ALLOWED = 181, 4_000, 10, 0.1
SIZES = {
    "rows": [10**k for k in range(4, 9)],
    "all rows": [10**k for k in range(4, 8)],
    "latents": [10, 100, 1_000, 10_000],
    "categories": [2, 16, 128, 1_024, 4_096],
    "sites": [1, 3, 10, 30],
}
EXPECTED = {"rows": 0.0, "all rows": 1.0, "latents": 1.0, "categories": 1.0, "sites": 1.0}
"""Exponents of a step: what is drawn does not grow with the rows, all else is read or multiplied once."""


def linear(x, y=None):
    """A logistic regression."""
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def softmax(count):
    def model(x, y=None):
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1], count]).to_event(2))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Categorical(logits=x @ weights), obs=y)

    return model


def of_sites(count):
    def model(x, y=None):
        normal = dist.Normal(0, 1).expand([3]).to_event(1)
        weights = [numpyro.sample(f"weights{k}", normal) for k in range(count)]
        logits = sum(x[:, 3 * k : 3 * k + 3] @ w for k, w in enumerate(weights))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    return model


def file_of_rows(folder, num_rows):
    """A file (num_rows, 1 + COLUMNS) float32, responses first; blocks of 131,072 rows repeat."""
    path = Path(folder) / f"{num_rows}.npy"
    if not path.exists():
        array = np.lib.format.open_memmap(path, "w+", np.float32, (num_rows, 1 + COLUMNS))
        block = np.random.default_rng(0).random((2**17, 1 + COLUMNS), np.float32) - np.float32(0.5)
        block[:, 0] = block[:, 1] > 0.0
        for start in range(0, num_rows, len(block)):
            array[start : start + len(block)] = block[: num_rows - start]
        array.flush()
    found = np.load(path, mmap_mode="r")
    return found[:, 1:], found[:, 0]


def problem(series, size, folder):
    """A model and its arguments."""
    if series in ("rows", "all rows"):
        return linear, *file_of_rows(folder, size)
    columns = {"latents": size, "categories": 4, "sites": 3 * size}[series]
    random = np.random.default_rng(0)
    x = random.standard_normal((NUM_ROWS, columns), np.float32) / np.float32(math.sqrt(columns))
    if series == "categories":
        return softmax(size), jnp.asarray(x), jnp.asarray(random.integers(0, size, NUM_ROWS))
    return of_sites(size) if series == "sites" else linear, jnp.asarray(x), jnp.asarray(x[:, 0] > 0, jnp.float32)


def measured(method, series, size, folder):
    """Microseconds of a processor that a step takes, and seconds of one before the steps."""
    model, x, y = problem(series, size, folder)
    chunks, call = [], driver.Program.__call__

    def timed(self, *arguments):
        start = time.process_time()
        result = jax.block_until_ready(call(self, *arguments))
        chunks.append((time.process_time() - start, int(arguments[-1])))
        return result

    if series == "all rows":
        settings, steps = dict(subsampling=dpppl.FullBatch()), 20 if size > 10**5 else 40
    else:
        settings = dict(subsampling=dpppl.Poisson.of_batch(BATCH, len(x)))
        steps = 400 if size < 1_000 or series == "rows" else 100
    budget = dict(target_epsilon=3.0, target_delta=1e-9, print_cost=False)
    driver.Program.__call__ = timed
    start = time.process_time()
    if method == "MCMC":
        kernel = dpppl.DPSGLD(model, clipping_norm=1.0, **settings)
        mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=steps, progress_bar=False, **budget)
        mcmc.run(dpppl.secret_key(), x, y)
    else:
        svi = dpppl.SVI(model, AutoNormal(model), optax.adam(1e-3), clipping_norm=1.0, **settings, **budget)
        svi.run(dpppl.secret_key(), steps, x, y, progress_bar=False)
    before = time.process_time() - start - sum(seconds for seconds, _ in chunks)
    driver.Program.__call__ = call
    return 1e6 * float(np.median([seconds / count for seconds, count in chunks[1:] if count])), before


def whole_run(method, num_rows, columns, steps):
    """Seconds of a processor of a first and of a second run in this process, and its peak of memory, as a JSON line."""
    random = np.random.default_rng(0)
    x = jnp.asarray(random.standard_normal((num_rows, columns), np.float32))
    y = (x[:, 0] > 0).astype(jnp.float32)
    budget = dict(target_epsilon=3.0, target_delta=1e-9, print_cost=False)
    clipped = dict(clipping_norm=1.0, subsampling=dpppl.FullBatch())

    def run(seed):
        key = jax.random.key(seed)
        if method == "NUTS":
            mcmc = numpyro.infer.MCMC(numpyro.infer.NUTS(linear), num_warmup=100, num_samples=100, progress_bar=False)
            return mcmc.run(key, x, y) or mcmc.get_samples()
        if method == "NumPyro SVI":
            svi = numpyro.infer.SVI(linear, AutoNormal(linear), optax.adam(1e-3), numpyro.infer.TraceMeanField_ELBO())
            return svi.run(key, steps, x, y, progress_bar=False).params
        if method == "SVI":
            svi = dpppl.SVI(linear, AutoNormal(linear), optax.adam(1e-3), **clipped, **budget)
            return svi.run(dpppl.secret_key(), steps, x, y, progress_bar=False).last_params
        mcmc = dpppl.MCMC(
            dpppl.DPSGLD(linear, **clipped), num_warmup=0, num_samples=steps, progress_bar=False, **budget
        )
        mcmc.run(dpppl.secret_key(), x, y)
        return mcmc.get_samples()

    seconds = []
    for seed in range(2):
        start = time.process_time()
        jax.block_until_ready(run(seed))
        seconds.append(round(time.process_time() - start, 2))
    peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps({"first": seconds[0], "second": seconds[1], "peak_mib": peak}))


BESIDE = (
    [(10**k, 12, 100) for k in (3, 4, 5, 6)] + [(10**5, d, 100) for d in (3, 50)] + [(10**4, 12, 10**k) for k in (3, 4)]
)
"""Rows, columns and steps."""


def beside(most_rows, path):
    """All cells of BESIDE, each in a process of its own."""
    methods, found = ("MCMC", "SVI", "NumPyro SVI", "NUTS"), []
    print(f"| rows, columns, steps | {' | '.join(methods)} |\n|---" + "|---" * len(methods) + "|")
    for cell in (cell for cell in BESIDE if cell[0] <= most_rows):
        shown = []
        for method in methods:
            command = [sys.executable, __file__, "--worker", method, *map(str, cell)]
            line = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]
            found.append({"rows": cell[0], "columns": cell[1], "steps": cell[2], "method": method} | json.loads(line))
            shown.append("{first}, {second}; {peak_mib}".format(**found[-1]))
        print(f"| {', '.join(f'{size:,}' for size in cell)} | {' | '.join(shown)} |", flush=True)
        if path:
            Path(path).write_text(json.dumps(found, indent=1) + "\n")


def exponent(sizes, values):
    """The slope of logarithms over the last three sizes."""
    return float(np.polyfit(np.log(sizes[-3:]), np.log(values[-3:]), 1)[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", nargs="+", default=SIZES, choices=SIZES)
    parser.add_argument("--methods", nargs="+", default=("MCMC", "SVI"), choices=("MCMC", "SVI"))
    parser.add_argument(
        "--most-rows", type=float, default=1e8, help="4.4 GB of disk at 1e8; all rows go to a tenth of it"
    )
    parser.add_argument("--folder", help="where the files of rows are kept; by default a temporary one")
    parser.add_argument("--beside", action="store_true", help="whole runs beside NUTS and NumPyro's SVI, instead")
    parser.add_argument("--json", help="where --beside writes")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return whole_run(args.worker[0], *map(int, args.worker[1:]))
    if args.beside:
        return beside(args.most_rows, args.json)
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = args.folder or temporary
        print("| of | method | sizes | us a step | exponent | expected | s before | exponent |\n" + "|---" * 8 + "|")
        for series in args.series:
            most = args.most_rows / (10 if series == "all rows" else 1) if "rows" in series else math.inf
            sizes = [size for size in SIZES[series] if size <= most]
            for method in args.methods:
                steps, before = zip(*(measured(method, series, size, folder) for size in sizes))
                found, expected = exponent(sizes, steps), EXPECTED[series]
                late = " !" * (found > expected + ALLOWED)
                print(
                    f"| {series} | {method} | {', '.join(f'{size:,}' for size in sizes)} "
                    f"| {', '.join(f'{value:,.0f}' for value in steps)} | {found:.2f}{late} | {expected:.0f} "
                    f"| {', '.join(f'{value:.1f}' for value in before)} | {exponent(sizes, before):.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
