"""What all peers train: data of the right shapes, and how a worker tells what it measured. NumPy only."""

import argparse
import json
import resource
import time

import numpy as np

ADULT = 32_561, 109
IMAGES = 60_000


def arguments():
    """Of a worker: which method, on which problem, for how many steps."""
    parser = argparse.ArgumentParser()
    for name in ("method", "problem"):
        parser.add_argument(name)
    parser.add_argument("steps", type=int)
    return parser.parse_args()


def batch_of(problem):
    """Rows a step on average; of "logistic 181 of 1e6", 181; of "logistic full", all."""
    word = problem.split()[1]
    return ADULT[0] if word == "full" else int(word)


def logistic(problem):
    """Rows (N, d) and labels, for "logistic 181", "logistic 181 of 1e6"."""
    words = problem.split()
    num_rows, size = (int(float(words[3])), 10) if "of" in words else ADULT
    rng = np.random.default_rng(0)
    x = (rng.random((num_rows, size), np.float32) < 0.1).astype(np.float32)
    return x, (rng.random(num_rows) < 0.3).astype(np.float32)


def images():
    """784 numbers a row, and labels below 10."""
    rng = np.random.default_rng(0)
    return rng.random((IMAGES, 784), np.float32), rng.integers(0, 10, IMAGES).astype(np.int32)


def width_of(problem):
    """Of the MLP's hidden layer: "mlp 256", or "mlp 256 wide 1258"."""
    words = problem.split()
    return int(words[3]) if "wide" in words else 256


def clocks():
    """Seconds on the wall, and of the processors, which other work on the machine disturbs less."""
    return np.array([time.perf_counter(), time.process_time()])


def measured(prepare, run, steps):
    """Runs `run(state, steps)` once to compile and once for its time, and prints a JSON line."""
    start = clocks()
    state = prepare()
    run(state, steps)
    first = clocks() - start
    start = clocks()
    run(state, steps)
    tell(first[0], (clocks() - start) / steps)


def tell(compile_seconds, seconds):
    """`compile_seconds`: all that comes before the first step can be timed; `seconds` of a step, by both clocks."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"seconds": seconds[0], "processor": seconds[1], "compile": compile_seconds, "peak_mib": peak}
    print(json.dumps(found), flush=True)
