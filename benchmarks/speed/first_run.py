"""How long the first run takes, most of it compilation, and a second one of the same shapes: README's data beside NUTS.

Each run is one of a fresh process that has imported all it needs; processes of different methods follow each other in turn.
Numbers are medians of seconds of processor time (of all threads, which other programs on the machine change least) and of
seconds by the clock, ratios to NUTS's first run, and how many programs XLA compiled.

python benchmarks/speed/first_run.py [--methods NUTS NoiseAware] [--repeats 3] [--cache FOLDER] [--of OTHER_CHECKOUT]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
METHODS = ("NUTS", "NoiseAware", "MCMC", "SVI, MLP 784-256-10")


def readme(rows=5_000):
    """README's model and data."""
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    def model(x, y=None):
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(rows, 3)).astype(np.float32)
    return model, x, (rng.random(rows) < 1 / (1 + np.exp(-x @ [2.0, -1.0, 0.0]))).astype(np.float32)


def digits(rows=2_560):
    """An MLP, and rows like MNIST's."""
    import numpy as np

    from models.bayesian_mlp import bayesian_mlp

    rng = np.random.default_rng(0)
    x, y = rng.random((rows, 784), np.float32), rng.integers(0, 10, rows).astype(np.int32)
    return lambda x, y=None: bayesian_mlp(x, y, hidden=(256,)), x, y


def run_of(method):
    """A function that makes one run from the start, as a user's first and second calls would."""
    import jax

    import dpppl

    target = {"target_epsilon": 1.0, "target_delta": 1e-5, "print_cost": False}
    model, x, y = digits() if method.startswith("SVI") else readme()

    def nuts():
        from numpyro.infer import MCMC, NUTS

        mcmc = MCMC(NUTS(model), num_warmup=1_000, num_samples=1_000, progress_bar=False)
        mcmc.run(jax.random.key(0), x, y)
        return mcmc.get_samples()

    def noise_aware():
        private = dpppl.NoiseAware(model, num_samples=1_000, progress_bar=False, **target)
        private.run(dpppl.secret_key(), x, y)
        return private.get_samples()

    def chain():
        mcmc = dpppl.MCMC(dpppl.DPSGLD(model), num_warmup=1_000, num_samples=1_000, progress_bar=False, **target)
        mcmc.run(dpppl.secret_key(), x, y)
        return mcmc.get_samples()

    def first_step():
        import optax
        from numpyro.infer.autoguide import AutoDelta

        poisson = dpppl.Poisson.of_batch(256, len(x))
        svi = dpppl.SVI(model, AutoDelta(model), optax.adam(1e-3), clipping_norm=1.0, subsampling=poisson, **target)
        return svi.run(dpppl.secret_key(), 1, x, y, progress_bar=False).params

    return dict(zip(METHODS, (nuts, noise_aware, chain, first_step)))[method]


def worker(method, cache):
    import jax
    from jax import monitoring

    if cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    compiled = []
    monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(seconds) if name.endswith("backend_compile_duration") else None
    )
    run, found = run_of(method), []
    for _ in range(2):
        start, processor, before = time.perf_counter(), time.process_time(), len(compiled)
        jax.block_until_ready(run())
        found.append((time.process_time() - processor, time.perf_counter() - start, len(compiled) - before))
    print(json.dumps(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cache", help="a folder for JAX's persistent compilation cache, which the runs share")
    parser.add_argument("--of", default=ROOT, help="the checkout whose dpppl runs")
    parser.add_argument("--worker", choices=METHODS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker, args.cache)
    found = {method: [] for method in args.methods}
    for _ in range(args.repeats):
        for method, runs in found.items():
            command = [sys.executable, __file__, "--worker", method] + (["--cache", args.cache] if args.cache else [])
            environment = os.environ | {"PYTHONPATH": str(args.of)}
            output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
            runs.append(json.loads(output.splitlines()[-1]))
    middle = {
        m: [[statistics.median(run[k][i] for run in runs) for i in range(3)] for k in range(2)]
        for m, runs in found.items()
    }
    unit = middle[args.methods[0]][0]
    print(f"{'':22}{'processor':>10}{'clock':>8}{'/ ' + args.methods[0] + ', first':>16}{'programs':>10}")
    for method, runs in middle.items():
        for name, (processor, clock, programs) in zip(("first", "second"), runs):
            ratio = f"{processor / unit[0]:.2f} ({clock / unit[1]:.2f})"
            print(f"{method + ', ' + name:22.22}{processor:10.2f}{clock:8.2f}{ratio:>16}{programs:10.0f}")


if __name__ == "__main__":
    main()
