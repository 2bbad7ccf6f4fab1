"""Kills of one of three processes at random times, and what the ledger, the others and a restart say of it.

    python benchmarks/privacy/kills.py [kills] [rounds at a time]

A round starts three processes on this machine (`jax.distributed`, gloo), which run chains on rows that are sharded over all of them.
Each writes a line before it enters a chunk, so that what was begun can be compared with what the ledger charged. One is killed
(SIGKILL) while they start or between any two instructions of the chunks. Counted are: accesses that a process entered and the
ledger had not charged; processes that were still there 30 seconds after the kill; survivors that ended without an error that
names the cause. A third of the rounds go on, from the checkpoint, with one or two processes; samples are compared with those
of a run that nobody disturbed.
"""

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpyro
import numpyro.distributions as dist

ROWS, PROCESSES, DEVICES, LIMIT, HEARTBEAT = 120, 3, 12, 30.0, 5
ERRORS = ("ProcessError", "JAX distributed service detected fatal errors", "coordinator")
PAUSE = 0.02


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def worker(process, count, port, folder):
    """One process of a run; what it prints goes to a file, and a line for each chunk that it enters."""
    output = os.open(folder / f"output{process}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    import jax
    import numpy as np

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES // count)
    jax.config.update("jax_compilation_cache_dir", str(folder.parent / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"127.0.0.1:{port}",
            count,
            process,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=HEARTBEAT,
            initialization_timeout=20,
        )
    import dpppl
    from dpppl.runs import placing

    ran, log = placing.ran, os.open(folder / f"entered{process}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def logged(call, arguments):
        os.write(log, f"{int(arguments[-2]) + int(arguments[-1])}\n".encode())
        time.sleep(PAUSE)
        found = ran(call, arguments)
        time.sleep(PAUSE)
        return found

    placing.ran = logged
    key = jax.random.wrap_key_data(np.array([2**31 + 11, 2**30 + 5], np.uint32), impl="threefry2x32")
    kernel = dpppl.DPSGLD(model, clipping_norm=2.0, subsampling=dpppl.Poisson(0.2), noise_multiplier=4.0)
    mcmc = dpppl.MCMC(
        kernel, num_warmup=0, num_samples=40, ledger=str(folder / "ledger"), checkpoint=str(folder / "checkpoint"),
        progress_bar=False, mesh=jax.make_mesh((DEVICES,), ("rows",)),
    )  # fmt: skip
    mcmc.run(key, np.linspace(-1.0, 1.0, ROWS, dtype=np.float32))
    told = hashlib.sha256(np.asarray(mcmc.get_samples()["mu"]).tobytes()).hexdigest()
    (folder / f"done{process}").write_text(told)
    if count > 1:
        jax.distributed.shutdown()
    os._exit(0)


def launched(context, folder, count):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [context.Process(target=worker, args=(p, count, port, folder), daemon=True) for p in range(count)]
    for process in started:
        process.start()
    return started


def lines(folder, process):
    path = folder / f"entered{process}"
    return path.read_text().split() if path.exists() else []


def ended(processes, limit=LIMIT):
    """How many had not ended within so many seconds, and were killed."""
    until = time.monotonic() + limit
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    hangs = [process for process in processes if process.is_alive()]
    for process in hangs:
        process.kill()
        process.join()
    return len(hangs)


def ledger_at(folder):
    import dpppl

    folder.mkdir()
    return dpppl.PrivacyLedger(folder / "ledger", 20.0, 1e-5)


def undisturbed(context, folder):
    ledger_at(folder)
    [alone] = launched(context, folder, 1)
    alone.join(120)
    return (folder / "done0").read_text()


def one_round(context, folder, number, expected):
    """A kill, and what was found."""
    chance, began = random.Random(number), time.monotonic()
    ledger = ledger_at(folder)
    processes, victim = launched(context, folder, PROCESSES), chance.randrange(PROCESSES)
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0.0, 4.0))
    else:
        while not lines(folder, victim) and processes[victim].is_alive() and time.monotonic() < began + 60:
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, 20 * 2.5 * PAUSE))
    is_over = (folder / f"done{victim}").exists()
    with contextlib.suppress(ProcessLookupError):
        os.kill(processes[victim].pid, signal.SIGKILL)
    killed = time.monotonic()
    hangs = ended(processes)
    seconds = time.monotonic() - killed
    entered = max([int(line) for p in range(PROCESSES) for line in lines(folder, p)], default=0)
    charged = sum(run.num_accesses for run in ledger.report().runs)
    unclear = 0
    for p in range(PROCESSES):
        if p != victim and not (folder / f"done{p}").exists():
            unclear += not any(error in (folder / f"output{p}").read_text(errors="replace") for error in ERRORS)
    found = dict(
        victim=victim, entered=entered, charged=charged, uncharged=max(0, entered - charged), hangs=hangs, unclear=unclear,
        seconds=round(seconds, 1), over=is_over, resumed=None,
    )  # fmt: skip
    if number % 3 == 0 and (folder / "checkpoint").exists():
        count = chance.choice([1, 2])
        found["hangs"] += ended(again := launched(context, folder, count), 4 * LIMIT)
        told = [(folder / f"done{p}").read_text() if not process.exitcode else None for p, process in enumerate(again)]
        total = sum(run.num_accesses for run in ledger.report().runs)
        found["resumed"] = all(text == expected for text in told) and total == 40
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kills", nargs="?", type=int, default=200)
    parser.add_argument("at_a_time", nargs="?", type=int, default=2)
    options = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dpppl", "jax", "numpyro", "__main__"])
    began, results = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_a_time) as pool:
        folder = Path(folder)
        expected = undisturbed(context, folder / "undisturbed")
        rounds = [pool.submit(one_round, context, folder / str(n), n, expected) for n in range(options.kills)]
        for number, found in enumerate(rounds):
            results.append(found.result())
            print(number, json.dumps(results[-1]), flush=True)
    total = lambda name: sum(found[name] for found in results)  # noqa: E731
    resumed = [found["resumed"] for found in results if found["resumed"] is not None]
    print(
        f"{len(results)} kills in {(time.monotonic() - began) / 60:.1f} minutes, {sum(found['entered'] > 0 for found in results)} of "
        f"them after the first chunk began: {total('uncharged')} uncharged accesses, {total('hangs')} hangs, {total('unclear')} "
        f"survivors without a clear error; the slowest ended after {max(found['seconds'] for found in results)} s; "
        f"{sum(resumed)} of {len(resumed)} restarts with the same samples and every access charged once"
    )
    sys.exit(bool(total("uncharged") or total("hangs") or total("unclear") or not all(resumed)))


if __name__ == "__main__":
    main()
