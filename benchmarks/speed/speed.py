"""Steps of MCMC and SVI in units of a step in JAX without privacy, in the same process: the price of privacy.

Logistic regression, N = 32,561, 109 latents, 181 rows a step on average: `MCMC.run` with DP-SGLD in units of SGLD, and `SVI.run`
with AutoNormal in units of an Adam step. An MLP 784-256-10 and a CNN, 256 of 60,000 rows: `SVI.run` with AutoDelta in units of an
Adam step, of the CNN with the same rules for convolutions. "dense": 105 columns of normal numbers, without zeros; "plain MLP": SGD in place
of Adam. Steps without privacy draw uniform indices and noise with threefry. After each
chunk of a run the same number of steps without privacy is timed; ratios are medians over chunks, of processor time and of time on the clock. `--of` measures another
checkout in turn with this one.

With `--details` also normal draws in C and by XLA, the step of DP-SGLD in one loop, with JAX's own generator ("threefry") and with `discretise=True`
("discrete"), runs with a ledger and with checkpoints, and the import. With `--profile` the XLA operations of a step that take
most of the time.

python benchmarks/speed/speed.py [--of OTHER_CHECKOUT] [--problems MCMC SVI MLP CNN] [--rounds 3] [--details] [--profile]
"""

import argparse
import collections
import json
import os
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
from jax import lax
from numpyro.infer.autoguide import AutoDelta, AutoNormal

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # last: PYTHONPATH may name another checkout

import dpppl  # noqa: E402
from benchmarks.speed import ghost  # noqa: E402
from dpppl.access.convolutions import rewrite  # noqa: E402
from dpppl.randomness import normal  # noqa: E402
from dpppl.runs import driver  # noqa: E402
from models.bayesian_mlp import bayesian_mlp  # noqa: E402

NUM_DATA, DIMENSION, BATCH = 32_561, 109, 181
STEPS = {
    "MCMC": 20_000, "SVI": 20_000, "MLP": 120, "CNN": 120, "dense MCMC": 20_000, "dense SVI": 20_000, "plain MLP": 120,
}  # fmt: skip
DENSE = 105
WIDTH, NUM_IMAGES, IMAGE_BATCH = 256, 60_000, 256
available = normal.native.available


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


def data(dense=False):
    rng = np.random.default_rng(0)
    x = (rng.random((NUM_DATA, DIMENSION)) < 0.1).astype(np.float32)
    x = rng.standard_normal((NUM_DATA, DENSE), np.float32) / 10.0 if dense else x
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


def plain_step(optim, log_likelihood, batch, num_rows):
    """A step of an optimiser on the log likelihood (z, rows) of uniform rows: of (state, *arrays)."""

    def step(state, *arrays):
        z, moments, key = state
        key, index_key = jax.random.split(key)
        index = jax.random.randint(index_key, (batch,), 0, num_rows)
        gradient = jax.grad(lambda z: -log_likelihood(z, *(x[index] for x in arrays)))(z)
        updates, moments = optim.update(gradient, moments)
        return optax.apply_updates(z, updates), moments, key

    return lambda z: (z, optim.init(z), jax.random.key(0)), step


def logistic_log_likelihood(z, x, y):
    return jnp.sum(y * (x @ z) - jax.nn.softplus(x @ z))


def mlp_log_likelihood(z, x, y):
    logits = jax.nn.relu(x @ z["w0"] + z["b0"]) @ z["w1"] + z["b1"]
    return jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))


def mlp(x, y=None):
    return bayesian_mlp(x, y, hidden=(WIDTH,))


def cnn_row(z, x, y):
    return ghost.cnn(z, (x.reshape(28, 28, 1), y))


def cnn(x, y=None):
    shapes = ghost.NETWORKS["CNN"][1]
    z = {site: numpyro.sample(site, dist.Normal(0, 1).expand(s).to_event(len(s))) for site, s in shapes.items()}
    with numpyro.plate("data", x.shape[0]):
        numpyro.factor("likelihood", jax.vmap(cnn_row, (None, 0, 0))(z, x, y))


def images():
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.random((NUM_IMAGES, 784), np.float32)), jnp.asarray(
        rng.integers(0, 10, NUM_IMAGES, np.int32)
    )


def problem(name):
    """The arrays, a function that runs so many private steps, and a step without privacy with its first state."""
    network, dense = name in ("MLP", "CNN", "plain MLP"), name.startswith("dense")
    arrays = images() if network else data(dense)
    dimension = DENSE if dense else DIMENSION
    optim = optax.sgd(1e-3) if name == "plain MLP" else optax.adam(1e-3)
    batch, num_rows = (IMAGE_BATCH, NUM_IMAGES) if network else (BATCH, NUM_DATA)
    settings = dict(clipping_norm=1.0, subsampling=dpppl.Poisson.of_batch(batch, num_rows))
    budget = dict(target_epsilon=3.0, target_delta=1e-6, print_cost=False)
    if name.endswith("MCMC"):

        def run(steps):
            kernel = dpppl.DPSGLD(model, **settings)
            mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=steps, progress_bar=False, **budget)
            mcmc.run(dpppl.secret_key(), *arrays)

        start, step = (jnp.zeros(dimension), jax.random.key(0)), lambda s, x, y: nonprivate_step(s, x, y, 1e-4)
        return arrays, run, start, step
    one, guide, likelihood, z = model, AutoNormal, logistic_log_likelihood, jnp.zeros(dimension)
    if network:
        one, guide, likelihood = mlp, AutoDelta, mlp_log_likelihood
        shapes = ghost.dense(784, WIDTH, 10)
        if name == "CNN":
            one, shapes = cnn, ghost.NETWORKS["CNN"][1]
            likelihood = rewrite(lambda z, x, y: jnp.sum(jax.vmap(cnn_row, (None, 0, 0))(z, x, y)))
        z = {site: 0.03 * jax.random.normal(jax.random.key(1), shape) for site, shape in shapes.items()}

    def run(steps):
        svi = dpppl.SVI(one, guide(one), optim, **settings, **budget)
        svi.run(dpppl.secret_key(), steps, *arrays, progress_bar=False)

    init, step = plain_step(optim, likelihood, batch, num_rows)
    return arrays, run, init(z), step


def clocks():
    return np.array([time.process_time(), time.perf_counter()])


def worker(name):
    """Prints the medians over chunks of microseconds of a step and of a step without privacy, and of their ratio, by both clocks."""
    arrays, run, start, step = problem(name)
    found, call = [], driver.Program.__call__
    plain = jax.jit(lambda count, state, *arrays: lax.fori_loop(0, count, lambda _, s: step(s, *arrays), state))
    jax.block_until_ready(plain(1, start, *arrays))

    def timed(self, *arguments):
        begin, count = clocks(), int(arguments[-1])
        result = jax.block_until_ready(call(self, *arguments))
        middle = clocks()
        jax.block_until_ready(plain(count, start, *arrays))
        found.append(np.stack([middle - begin, clocks() - middle]) * 1e6 / count)
        return result

    driver.Program.__call__ = timed
    run(STEPS[name])
    found = np.array(found[1:])
    print(json.dumps([*np.median(found, 0).tolist(), np.median(found[:, 0] / found[:, 1], 0).tolist()]))


def show_profile(name, most=25):
    """Print microseconds a step of XLA's operations, of the second chunk of a run; tracing adds to those that are short."""
    _, run, *_ = problem(name)
    chunks, call = [], driver.Program.__call__
    times, counts = collections.Counter(), collections.Counter()

    def traced(self, *arguments):
        chunks.append(int(arguments[-1]))
        if len(chunks) != 2:
            return jax.block_until_ready(call(self, *arguments))
        with jax.profiler.trace(folder):
            return jax.block_until_ready(call(self, *arguments))

    driver.Program.__call__ = traced
    with tempfile.TemporaryDirectory() as folder:
        run(STEPS[name])
        for path in Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
                for line in plane.lines:
                    for event in line.events:
                        times[event.name] += event.duration_ns / 1e3 / chunks[1]
                        counts[event.name] += 1 / chunks[1]
    print(f"{name}: {sum(counts[event] for event in counts if counts[event] > 0.5):.0f} operations a step")
    for name in [name for name, _ in times.most_common() if not name.startswith("$") and counts[name] > 0.5][:most]:
        print(f"{times[name]:8.2f} us {counts[name]:6.2f} times a step  {name[:80]}")


def compared(problems, checkouts, rounds):
    """Print a line for each problem and checkout, measured in turn, each time in a process of its own."""
    print(f"Noise is drawn by {normal.native.instructions()}; DPPPL_NATIVE=avx512, avx2 or generic chooses.")
    print("| steps of | checkout | us of a processor | without privacy | ratio of processor times | on the clock |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in problems:
        found = {checkout: [] for checkout in checkouts}
        for _ in range(rounds):
            for checkout in checkouts:
                command = [sys.executable, str(Path(__file__).resolve()), "--worker", name]
                environment = os.environ | {"PYTHONPATH": str(checkout)}
                run = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
                found[checkout].append(json.loads(run.stdout.splitlines()[-1]))
        for checkout, numbers in found.items():
            (own, _), (unit, _), (processor, clock) = np.median(np.array(numbers), 0)
            print(f"| {name} | {checkout.name} | {own:.1f} | {unit:.1f} | {processor:.2f} | {clock:.2f} |", flush=True)


def import_seconds(statement: str, repeats: int) -> float:
    """Median seconds that a fresh interpreter takes for an import statement."""
    program = f"import time; s = time.perf_counter(); {statement}; print(time.perf_counter() - s)"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True) for _ in range(repeats)]
    return float(np.median([float(run.stdout) for run in runs]))


def show_noise(size, repeats):
    """Print the processor time of normal draws in C and by XLA, in turn, and the seconds that XLA compiles them."""
    key, calls, times = dpppl.secret_key(), {}, {"in C": [], "by XLA": []}
    for name in times:
        normal.native.available = lambda name=name: name == "in C" and available()
        start = time.perf_counter()
        calls[name] = jax.jit(lambda key, name=name: normal.standard_normal(key, size)).lower(key).compile()
        print(f"{size:,} normal draws {name}: compiled in {time.perf_counter() - start:.2f} s")
    normal.native.available = available
    for _ in range(repeats + 1):
        for name, call in calls.items():
            start = time.process_time()
            jax.block_until_ready([call(key) for _ in range(10)])
            times[name].append((time.process_time() - start) / 10)
    own, other = (1e3 * float(np.median(values[1:])) for values in times.values())
    print(
        f"{size:,} normal draws: {own:.3f} ms of a processor in C, {other:.3f} by XLA, {other / own:.1f} times as much"
    )


def show_details(num_steps, repeats):
    for size in (DIMENSION, 203_530):
        show_noise(size, 3 * repeats)
    seconds, compile_seconds = measure(num_steps, repeats)
    for name, value in seconds.items():
        print(
            f"{name:12} {value * 1e6:7.1f} us a step  {1 / value:8.0f} steps/s  compile {compile_seconds[name]:.2f} s"
        )
    print(f"ratio private / non-private: {seconds['private'] / seconds['non-private']:.2f}")
    print(f"ratio private (ChaCha20) / threefry: {seconds['private'] / seconds['threefry']:.2f}")
    print(f"ratio discrete / private: {seconds['discrete'] / seconds['private']:.2f}")
    runs = measure_runs(4 * num_steps, max(3, repeats // 3))
    for name, value in runs.items():
        print(f"{name:16} of {4 * num_steps:,} steps: {value:.2f} s, {value / runs['run']:.2f} of a plain run")
    with_dpppl, alone = (import_seconds(s, 5) for s in ("import numpyro, dpppl", "import numpyro"))
    print(f"import dpppl over import numpyro: {with_dpppl - alone:.2f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=STEPS, choices=STEPS)
    parser.add_argument("--of", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each problem and checkout")
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--num-steps", type=int, default=5_000, help="of the details")
    parser.add_argument("--repeats", type=int, default=9, help="of the details")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker)
    if args.profile:
        for name in args.problems:
            show_profile(name)
        return None
    compared(args.problems, [ROOT, *([args.of.resolve()] if args.of else [])], args.rounds)
    if args.details:
        show_details(args.num_steps, args.repeats)
    return None


if __name__ == "__main__":
    main()
