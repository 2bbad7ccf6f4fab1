"""Rows from disk beside the same rows in memory: bits, memory, and the speed of passes and of batches.

    python benchmarks/speed/disk.py --rows 2_500_000            # 1 GB; every part
    python benchmarks/speed/disk.py --rows 100_000_000 --parts memory pass    # 40 GB in the folder, deleted afterwards

`bits` compares whole runs; `memory` takes full passes and reads RssAnon; `pass` compares a pass with `dd`; `batches` compares steps
of 1,024 drawn rows with those in memory; `noise-aware` runs NoiseAware from disk, and in memory.
"""

import argparse
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal

import dpppl
from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_statistic, noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.data.disk import on_disk, reading
from dpppl.randomness import keys

COLUMNS = 100


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def made(folder, num_rows, columns=COLUMNS):
    """A file of rows: the first column is 0 or 1, the others are uniform with sd .1."""
    path = folder / f"rows-{num_rows}-{columns}.npy"
    array = np.lib.format.open_memmap(path, "w+", np.float32, (num_rows, columns))
    header, dtype = array.offset, array.dtype
    del array
    random = np.random.default_rng(0)
    with open(path, "r+b") as file:
        file.seek(header)
        for start in range(0, num_rows, 2**17):
            size = min(2**17, num_rows - start)
            rows = random.random((size, columns), np.float32) * np.float32(0.35) - np.float32(0.175)
            rows[:, 0] = random.random(size, np.float32) < 1 / (1 + np.exp(-10 * rows[:, 1]))
            file.write(np.ascontiguousarray(rows, dtype).data)
    return path


def key_of(number):
    """Equal noise in two runs, whose numbers are to be compared."""
    keys._claimed.clear()
    return jax.random.wrap_key_data(np.array([2**31 + 11, number + 2**30], np.uint32), impl="threefry2x32")


def parts(array):
    return array[:, 1:], array[:, 0]


# Bits


def network(x, y):
    a = numpyro.sample("a", dist.Normal(0, 1).expand([x.shape[1], 20]).to_event(2))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([20, 20]).to_event(2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=jnp.sum(jnp.tanh(x @ a) @ w, -1)), obs=y)


def chain(subsampling, model=logistic, **settings):
    def run(x, y):
        kernel = dpppl.DPSGLD(model, clipping_norm=1.0, subsampling=subsampling, **settings)
        mcmc = dpppl.MCMC(
            kernel,
            num_warmup=2,
            num_samples=6,
            target_epsilon=2.0,
            target_delta=1e-9,
            progress_bar=False,
            print_cost=False,
        )
        mcmc.run(key_of(1), x, y)
        return mcmc.get_samples()

    return run


def guide(x, y):
    svi = dpppl.SVI(
        logistic,
        AutoNormal(logistic),
        subsampling=dpppl.Partition(4),
        target_epsilon=2.0,
        target_delta=1e-9,
        reserve=0.2,
        num_data=len(x),
        print_cost=False,
    )
    found = svi.run(key_of(2), 10, x, y, progress_bar=False)

    def right(samples, x, y):
        return jnp.mean(((samples["w"] @ x) > 0) == (y > 0.5))

    return found.params, svi.estimate_accuracy(key_of(3), found.params, right, x, y)


def posterior(x, y, **settings):
    private = dpppl.NoiseAware(
        logistic, target_epsilon=2.0, target_delta=1e-9, num_samples=100, progress_bar=False, **settings
    )
    private.run(key_of(4), x, y)
    return private.releases.values, private.get_samples(allow_unconverged=True)["w"]


def bits(path):
    num_rows = min(200_003, len(np.load(path, mmap_mode="r")))
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/some.npy", np.load(path, mmap_mode="r")[:num_rows, :11])
        file = np.load(f"{folder}/some.npy", mmap_mode="r")
        memory = np.array(file)
        methods = {
            "MCMC, full batch": chain(dpppl.FullBatch()),
            "MCMC, ghost sums": chain(dpppl.FullBatch(), network, gradient_strategy="ghost"),
            "MCMC, Poisson .005": chain(dpppl.Poisson(0.005)),
            "MCMC, Poisson .6": chain(dpppl.Poisson(0.6)),
            "MCMC, Partition": chain(dpppl.Partition(20)),
            "MCMC, WithoutReplacement": chain(dpppl.WithoutReplacement(1_000, num_rows)),
            "SVI, and an accuracy": guide,
            "NoiseAware": lambda x, y: posterior(x, y, print_cost=False),
        }
        for name, run in methods.items():
            jax.tree.map(np.testing.assert_array_equal, run(*parts(memory)), run(*parts(file)))
            print(f"bits of {name}: those in memory", flush=True)


# Memory and speed


def resident():
    """Memory of the process that is no page of a file, in GB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024 / 1e9
    raise RuntimeError("no RssAnon")


class Peak:
    """The largest RssAnon inside, above that at the start."""

    def __enter__(self):
        self.base, self.most, self.over = resident(), 0.0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.over.wait(0.02):
            self.most = max(self.most, resident() - self.base)

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def memory(path):
    x, y = parts(np.load(path, mmap_mode="r"))
    kernel = dpppl.DPSGLD(logistic, clipping_norm=1.0)
    mcmc = dpppl.MCMC(kernel, num_warmup=1, num_samples=2, target_epsilon=2.0, target_delta=1e-10, progress_bar=False)
    with Peak() as peak:
        start = time.perf_counter()
        mcmc.run(key_of(5), x, y)
        seconds = time.perf_counter() - start
    print(
        f"MCMC, 3 full passes: {seconds:.1f} s, RssAnon at most {peak.most:.2f} GB above the {peak.base:.2f} before",
        flush=True,
    )
    for name, subsampling in {
        "dense Poisson .6": dpppl.Poisson(0.6),
        "sparse Poisson": dpppl.Poisson(1024 / len(x)),
    }.items():
        kernel = dpppl.DPSGLD(logistic, clipping_norm=1.0, subsampling=subsampling)
        settings = dict(target_epsilon=2.0, target_delta=1e-10, progress_bar=False, print_cost=False)
        mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=2, **settings)
        with Peak() as peak:
            mcmc.run(key_of(6), x, y)
        print(f"MCMC, 2 steps, {name}: RssAnon at most {peak.most:.2f} GB above", flush=True)


def program(of_row, z, rows, subsampling=None, steps=1):
    """`steps` accesses as one compiled program."""
    mechanism = Mechanism(clipping=Flat(1.0), subsampling=subsampling or dpppl.FullBatch())

    def run(z, rows, key):
        def step(number, z):
            access = noisy_statistic if subsampling is None and of_row is first_number else noisy_sum
            total = access(mechanism, of_row, z, rows, None, key=key, noise_multiplier=1.0, step=number).total
            return jax.tree.map(lambda a, b: a + 1e-9 * b, z, total)

        return jax.lax.fori_loop(0, steps, step, z)

    call = jax.jit(run)
    return lambda key: jax.block_until_ready(call(z, rows, key))


def first_number(z, row, _):
    """The smallest statistic: a number of each row."""
    return jnp.tanh(row["y"])


def of_row(z, row, _):
    logit = row["x"] @ z
    return row["y"] * logit - jnp.logaddexp(0.0, logit)


def timed(act, argument):
    start = time.perf_counter()
    act(argument)
    return time.perf_counter() - start


def dd(path):
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=16M"], check=True, capture_output=True)


def one_pass(path, times):
    file = np.load(path, mmap_mode="r")
    size, (x, y) = file.nbytes / 1e9, parts(file)
    rows = on_disk({"x": x, "y": y}, None)
    latents = jnp.zeros(COLUMNS - 1)
    programs = {
        "smallest statistic": program(first_number, jnp.zeros(()), rows),
        "logistic gradient": program(of_row, latents, rows),
    }
    ratios = {name: [] for name in programs}
    with reading(rows.placement):
        for run in programs.values():
            run(jax.random.key(0))
        for number in range(times):
            before = timed(dd, path)
            for name, run in programs.items():
                seconds = timed(run, jax.random.key(number))
                ratios[name].append(before / seconds)
                print(f"pass, {name}: {size / seconds:.2f} GB/s; dd {size / before:.2f}", flush=True)
    for name, found in ratios.items():
        print(f"pass, {name}: {100 * np.median(found):.0f} % of dd", flush=True)
    if size < 4.0:
        run = program(of_row, latents, {"x": jnp.asarray(x), "y": jnp.asarray(y)})
        run(jax.random.key(0))
        seconds = min(timed(run, jax.random.key(number)) for number in range(times))
        print(f"pass, logistic gradient, in memory: {size / seconds:.2f} GB/s", flush=True)


def batches(path, times, steps=200):
    file = np.load(path, mmap_mode="r")[:2_500_000]
    x, y = parts(file)
    for name, subsampling in {
        "Poisson": dpppl.Poisson(1024 / len(x)),
        "WithoutReplacement": dpppl.WithoutReplacement(1024, len(x)),
    }.items():
        rows = on_disk({"x": x, "y": y}, None)
        run = program(of_row, jnp.zeros(COLUMNS - 1), rows, subsampling, steps)
        inside = program(of_row, jnp.zeros(COLUMNS - 1), {"x": jnp.asarray(x), "y": jnp.asarray(y)}, subsampling, steps)
        np.asarray(x).sum()  # into the page cache
        with reading(rows.placement):
            np.testing.assert_array_equal(run(jax.random.key(0)), inside(jax.random.key(0)))
            ratios = []
            for number in range(times):
                ours, theirs = (timed(act, jax.random.key(number)) for act in (run, inside))
                ratios.append((ours / theirs, ours, theirs))
        ratio, ours, theirs = sorted(ratios)[len(ratios) // 2]
        print(
            f"steps of 1,024 rows, {name}: {1e3 * ours / steps:.2f} ms, in memory {1e3 * theirs / steps:.2f}: {ratio:.2f} times",
            flush=True,
        )


def noise_aware(folder, num_rows):
    path = made(folder, num_rows, 6)
    try:
        file = np.load(path, mmap_mode="r")
        found = []
        for name, array in {"from disk": file, "in memory": None}.items():
            array = np.array(file) if array is None else array
            with Peak() as peak:
                start = time.perf_counter()
                found.append(posterior(*parts(array)))
                seconds = time.perf_counter() - start
            print(
                f"NoiseAware, {num_rows:,} rows {name}: {seconds:.1f} s, RssAnon at most {peak.most:.2f} GB above",
                flush=True,
            )
        disk, memory = (np.asarray(samples) for _, samples in found)
        apart = np.max(np.abs(disk - memory) / memory.std(axis=0))
        print(f"NoiseAware: samples of both runs differ by at most {apart:.2g} posterior sd", flush=True)
    finally:
        path.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_500_000)
    parser.add_argument("--noise-aware-rows", type=int, default=None, help="by default a tenth of --rows")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--parts", nargs="+", default=["bits", "memory", "pass", "batches", "noise-aware"])
    options = parser.parse_args()
    path = made(options.folder, options.rows)
    try:
        for part in options.parts:
            if part == "bits":
                bits(path)
            elif part == "memory":
                memory(path)
            elif part == "pass":
                one_pass(path, options.times)
            elif part == "batches":
                batches(path, options.times)
            else:
                noise_aware(options.folder, options.noise_aware_rows or options.rows // 10)
    finally:
        path.unlink()


if __name__ == "__main__":
    main()
