"""Steps a second of DP-SGLD against a non-private SGLD step in the same process: the price of privacy.

Logistic regression, N = 32,561, 109 latents, 181 rows a step on average. The non-private step draws uniform indices
and its Langevin noise with threefry. "threefry" and "discrete" are the private step with JAX's own generator instead of
ChaCha20, and with `discretise=True`. Numbers are ratios of the medians of interleaved repetitions.

python benchmarks/speed.py
"""

import argparse
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
from jax import lax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dpppl
from dpppl.runs import driver

NUM_DATA, DIMENSION, BATCH = 32_561, 109, 181


def model(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def nonprivate_step(state, x, y, step_size):
    """SGLD with uniform indices, gradient of the same posterior written by hand."""
    z, key = state
    key, index_key, noise_key = jax.random.split(key, 3)
    index = jax.random.randint(index_key, (BATCH,), 0, NUM_DATA)

    def log_posterior(z):
        logits = x[index] @ z
        return NUM_DATA / BATCH * jnp.sum(y[index] * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(z**2)

    noise = jax.random.normal(noise_key, z.shape)
    return z + step_size * jax.grad(log_posterior)(z) + jnp.sqrt(2.0 * step_size) * noise, key


def chain(step, num_steps):
    """A compiled chain that keeps every state's latents."""

    def run(state, x, y):
        def body(state, _):
            state = step(state, x, y)
            return state, state[0] if isinstance(state, tuple) and not hasattr(state, "z") else state.z

        return lax.scan(body, state, None, length=num_steps)

    return jax.jit(run)


def data():
    rng = np.random.default_rng(0)
    x = (rng.random((NUM_DATA, DIMENSION)) < 0.1).astype(np.float32)
    return jnp.asarray(x), jnp.asarray((rng.random(NUM_DATA) < 0.3).astype(np.float32))


def measure(num_steps: int, repeats: int):
    x, y = data()
    plain = chain(lambda state, x, y: nonprivate_step(state, x, y, 1e-4), num_steps)
    runs = {"non-private": (plain, (jnp.zeros(DIMENSION), jax.random.key(0)))}
    for name, discretise, generator in (
        ("private", False, "chacha20"), ("threefry", False, "threefry"), ("discrete", True, "chacha20"),
    ):  # fmt: skip
        subsampling = dpppl.Poisson.of_batch(BATCH, NUM_DATA)
        kernel = dpppl.DPSGLD(model, clipping_norm=1.0, subsampling=subsampling, discretise=discretise)
        mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=num_steps, target_epsilon=1.0, target_delta=1e-5)
        kernel = mcmc.calibrated_kernel()
        start = kernel.init(dpppl.secret_key(generator), 0, None, (x, y), {})
        runs[name] = (chain(lambda state, x, y, kernel=kernel: kernel.sample(state, (x, y), {}), num_steps), start)
    times, compile_times = {name: [] for name in runs}, {}
    for name, (run, state) in runs.items():
        start = time.perf_counter()
        compiled = run.lower(state, x, y).compile()
        compile_times[name] = time.perf_counter() - start
        runs[name] = (compiled, state)
        jax.block_until_ready(compiled(state, x, y))
    for _ in range(repeats):
        for name, (run, state) in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run(state, x, y))
            times[name].append((time.perf_counter() - start) / num_steps)
    return {name: float(np.median(t)) for name, t in times.items()}, compile_times


def measure_runs(num_steps: int, repeats: int) -> dict[str, float]:
    """Median seconds of the steps of `MCMC.run` (not of compiling): plain, with a ledger, with a checkpoint."""
    x, y = data()
    times: dict[str, list[float]] = {"run": [], "run, ledger": [], "run, checkpoint": []}
    chunks = driver._chunks

    def timed(*arguments):
        start = time.perf_counter()
        result = chunks(*arguments)
        times[name].append(time.perf_counter() - start)
        return result

    driver._chunks = timed
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for name in times:
                options = (
                    {"ledger": dpppl.PrivacyLedger(f"{folder}/{repeat}.ledger", 2.0, 1e-5)} if "ledger" in name else {}
                )
                options |= {"checkpoint": f"{folder}/{repeat}.ckpt"} if "checkpoint" in name else {}
                kernel = dpppl.DPSGLD(model, clipping_norm=1.0, subsampling=dpppl.Poisson.of_batch(BATCH, NUM_DATA))
                mcmc = dpppl.MCMC(kernel, num_warmup=num_steps // 2, num_samples=num_steps // 2, target_epsilon=1.0,
                                  target_delta=1e-5, progress_bar=False, print_cost=False, **options)  # fmt: skip
                mcmc.run(dpppl.secret_key(), x, y)
    driver._chunks = chunks
    return {name: float(np.median(values)) for name, values in times.items()}


def import_seconds(statement: str, repeats: int) -> float:
    """Median seconds that a fresh interpreter takes for an import statement."""
    program = f"import time; s = time.perf_counter(); {statement}; print(time.perf_counter() - s)"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True) for _ in range(repeats)]
    return float(np.median([float(run.stdout) for run in runs]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-steps", type=int, default=5_000)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    seconds, compile_seconds = measure(args.num_steps, args.repeats)
    for name, value in seconds.items():
        print(
            f"{name:12} {value * 1e6:7.1f} us a step  {1 / value:8.0f} steps/s  compile {compile_seconds[name]:.2f} s"
        )
    print(f"ratio private / non-private: {seconds['private'] / seconds['non-private']:.2f}")
    print(f"ratio private (ChaCha20) / threefry: {seconds['private'] / seconds['threefry']:.2f}")
    print(f"ratio discrete / private: {seconds['discrete'] / seconds['private']:.2f}")
    runs = measure_runs(4 * args.num_steps, max(3, args.repeats // 3))
    for name, value in runs.items():
        print(f"{name:16} of {4 * args.num_steps:,} steps: {value:.2f} s, {value / runs['run']:.2f} of a plain run")
    with_dpppl, alone = (import_seconds(s, 5) for s in ("import numpyro, dpppl", "import numpyro"))
    print(f"import dpppl over import numpyro: {with_dpppl - alone:.2f} s")


if __name__ == "__main__":
    main()
