"""Rows on several devices: time of a full-batch step of logistic regression, beside a step on one device without a mesh.

    XLA_FLAGS="--xla_force_host_platform_device_count=8" python benchmarks/speed/scale.py [--rows N] [--columns d]
    XLA_FLAGS="--xla_force_host_platform_device_count=2 --xla_cpu_multi_thread_eigen=false" python benchmarks/speed/scale.py --wall
    python benchmarks/speed/scale.py --processes 2 [--wall]

Prints for each number of devices the median time of a step, and its ratio to the step without a mesh, measured in turn: processor
time of all threads, or with `--wall` the time on the clock, which says something on idle cores only. Then a model of how a step
grows, from the time of a row and of a step of 8 rows. With `--processes` two devices lie in one and in so many processes.
"""

import argparse
import math
import os
import socket
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.data.rows import sharded
from dpppl.runs import placing
from dpppl.subsampling import FullBatch

MECHANISM = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
STEPS, REPEATS = 3, 7
BANDWIDTH, LATENCY = 10e9, 20e-6
"""Between machines, for the model: bytes a second and seconds a message, as of 100-gigabit Ethernet."""


def log_likelihood(z, row, public):
    logit = row["x"] @ z
    return row["y"] * logit - jax.nn.softplus(logit)


def steps(rows, z, key):
    """A few steps, as a run makes them."""

    def body(number, z):
        noisy = noisy_sum(MECHANISM, log_likelihood, z, rows, None, key=key, noise_multiplier=1.0, step=number)
        return z + 1e-6 * noisy.total

    return jax.lax.fori_loop(0, STEPS, body, z)


def program(rows, size):
    """Compiled as a run's programs are."""
    arguments = rows, jnp.zeros(size, jnp.float32), jax.random.key(0)
    closed = jax.make_jaxpr(steps)(*arguments)
    call, leaves = placing.lowered(closed, arguments, False).compiled(), placing.placed(arguments)
    return lambda: jax.block_until_ready(call(*leaves))


def data(num_rows, size):
    random = np.random.default_rng(0)
    x = random.standard_normal((num_rows, size), dtype=np.float32)
    return {"x": x, "y": (random.random(num_rows) < 0.5).astype(np.float32)}


def programs(num_rows, size):
    """By the number of devices; 0: no mesh."""
    arrays = data(num_rows, size)
    runs = {0: program(jax.tree.map(jnp.asarray, arrays), size)}
    for count in (1, 2, 4, 8):
        if count <= len(jax.devices()):
            mesh = jax.make_mesh((count,), ("rows",), devices=jax.devices()[:count])
            runs[count] = program(sharded(arrays, mesh), size)
    return runs


def timed(runs, clock):
    """Seconds of a step, several times, of each run in turn."""
    times = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append((clock() - start) / STEPS)
    return times


def shown(num_rows, size, clock):
    runs = programs(num_rows, size)
    results = {count: run() for count, run in runs.items()}
    times = timed(runs, clock)
    ratios = {c: statistics.median(b / a for a, b in zip(times[0], times[c])) for c in runs}
    print(f"{num_rows:,} rows of {size} columns, full batch")
    for count in runs:
        name = "no mesh" if not count else f"{count} device(s)"
        same = all(np.array_equal(a, b) for a, b in zip(results[count], results[min(count, 1)]))
        median = 1e3 * statistics.median(times[count])
        print(f"{name:>12}: {median:8.1f} ms a step, {ratios[count]:.2f} of no mesh; bits of one device: {same}")
    if clock is time.perf_counter and 2 in times:
        gain = statistics.median(one / two for one, two in zip(times[1], times[2]))
        print(f"2 devices against 1 at {num_rows:,} rows, full batch logistic step: {gain:.2f} times as fast")
    return statistics.median(times[0]) / num_rows, times


def grown(of_row, size, num_rows=10**10):
    """A model: rows divide; sums of 64 bits and noise go around a tree; nothing else depends on the number of devices."""
    runs = programs(8, size)
    for run in runs.values():
        run()
    fixed = {count: 1e3 * statistics.median(found) for count, found in timed(runs, time.perf_counter).items()}
    print("a step of 8 rows, on the clock: " + ", ".join(f"{count}: {found:.2f} ms" for count, found in fixed.items()))
    print(f"model at {num_rows:.0e} rows, {1e9 * of_row:.0f} ns a row:")
    for devices in (1, 8, 64, 1024):
        wire = math.log2(devices) * 2 * (LATENCY + 16 * size / BANDWIDTH)
        compute, memory = of_row * num_rows / devices, 4 * (size + 1) * num_rows / devices
        print(
            f"{devices:>6} devices: {compute:.3g} s of rows, {1e3 * wire:.2g} ms of sums, {memory / 1e9:.3g} GB a device"
        )


def one_of(process, count, port, num_rows, size, clock):
    """Two devices in `count` processes; process 0 prints."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2 // count)
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", count, process)
    run = program(sharded(data(num_rows, size), jax.make_mesh((2,), ("rows",))), size)
    run()
    found = 1e3 * statistics.median(timed({0: run}, clock)[0])
    if process == 0:
        print(f"2 devices in {count} process(es): {found:.1f} ms a step in this process", flush=True)


def spread(options):
    for count in (1, options.processes):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        given = ["--rows", str(options.rows), "--columns", str(options.columns)] + ["--wall"] * options.wall
        flags = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
        started = [
            subprocess.Popen(
                [sys.executable, __file__, *given, "--one", *map(str, (p, count, port))], env=os.environ | flags
            )
            for p in range(count)
        ]
        assert not any([process.wait() for process in started])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--processes", type=int, choices=[2])
    parser.add_argument("--one", type=int, nargs=3)
    options = parser.parse_args()
    clock = time.perf_counter if options.wall else time.process_time
    if options.one:
        one_of(*options.one, options.rows, options.columns, clock)
    elif options.processes:
        spread(options)
    else:
        of_row, _ = shown(options.rows, options.columns, clock)
        grown(of_row, options.columns)


if __name__ == "__main__":
    main()
