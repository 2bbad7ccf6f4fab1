"""Rows on several devices: time of a full-batch step of logistic regression, beside a step on one device without a mesh.

    XLA_FLAGS="--xla_force_host_platform_device_count=8" python benchmarks/scale.py [rows] [columns]

Prints for each number of devices the median time of a step, and its ratio to the step without a mesh, measured in turn.
"""

import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.clipping import Flat
from dpppl.access.mechanism import Mechanism
from dpppl.data.sharded import sharded
from dpppl.runs import placing
from dpppl.subsampling import FullBatch

MECHANISM = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
STEPS, REPEATS = 3, 7


def log_likelihood(z, row, public):
    logit = row["x"] @ z
    return row["y"] * logit - jax.nn.softplus(logit)


def steps(rows, z, key):
    """A few steps, as a run makes them."""

    def body(number, z):
        noisy = MECHANISM.noisy_sum(log_likelihood, z, rows, None, key=key, noise_multiplier=1.0, step=number)
        return z + 1e-6 * noisy.total

    return jax.lax.fori_loop(0, STEPS, body, z)


def program(rows, size):
    """Compiled as a run's programs are."""
    arguments = rows, jnp.zeros(size, jnp.float32), jax.random.key(0)
    closed = jax.make_jaxpr(steps)(*arguments)
    call, leaves = placing.lowered(closed, arguments, False).compiled(), placing.placed(arguments)
    return lambda: jax.block_until_ready(call(*leaves))


def main(num_rows=1_000_000, size=20):
    random = np.random.default_rng(0)
    x = random.standard_normal((num_rows, size), dtype=np.float32)
    arrays = {"x": x, "y": (random.random(num_rows) < 0.5).astype(np.float32)}
    runs = {0: program(jax.tree.map(jnp.asarray, arrays), size)}
    for count in (1, 2, 4, 8):
        if count <= len(jax.devices()):
            mesh = jax.make_mesh((count,), ("rows",), devices=jax.devices()[:count])
            runs[count] = program(sharded(arrays, mesh), size)
    results = {count: run() for count, run in runs.items()}
    times = {count: [] for count in runs}
    for _ in range(REPEATS):
        for count, run in runs.items():
            start = time.process_time()
            run()
            times[count].append((time.process_time() - start) / STEPS)
    median = {count: statistics.median(found) for count, found in times.items()}
    ratios = {c: statistics.median(b / a for a, b in zip(times[0], times[c])) for c in runs}
    print(f"{num_rows:,} rows of {size} columns, full batch")
    for count in runs:
        name = "no mesh" if not count else f"{count} device(s)"
        same = all(np.array_equal(a, b) for a, b in zip(results[count], results[min(count, 1)]))
        print(
            f"{name:>12}: {1e3 * median[count]:8.1f} ms a step, {ratios[count]:.2f} of no mesh; bits of one device: {same}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
