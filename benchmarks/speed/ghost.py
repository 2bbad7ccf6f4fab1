"""The cost of a sum of clipped gradients of networks, in units of the sum of gradients that are not clipped.

Each network's clipped sum by "ghost" and by "vmap" (chunk by chunk), and its plain gradient with the same rules for
convolutions, in a scan, interleaved: ratios of medians and of processor times, which other work on the machine disturbs
less. Then a whole step of `SVI(AutoDelta)`, beside an Adam step in JAX on uniform indices, and what its noise takes.

python benchmarks/speed/ghost.py [--networks "MLP 784-256-10" ...] [--seconds 10]
"""

import argparse
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from numpyro.infer.autoguide import AutoDelta

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from dpppl.access import ghost_sum
from dpppl.access.clipping import Flat
from dpppl.access.convolutions import rewrite
from dpppl.access.drawn import Drawn
from dpppl.access.exact_sum import sum_of_rows
from dpppl.randomness import normal
from dpppl.row_program.hoist import gradient
from models.bayesian_mlp import bayesian_mlp

STEPS, NUM_DATA = 5, 60_000


def cross_entropy(logits, label):
    return jax.nn.log_softmax(logits)[label]


def mlp(z, row, public=None):
    x, y = row
    return cross_entropy(jax.nn.relu(x @ z["w0"] + z["b0"]) @ z["w1"] + z["b1"], y)


def cnn(z, row, public=None):
    """16 filters 8x8 by 2, pool, 32 filters 4x4 by 2, pool, 32, 10."""
    x, y = row
    layout = ("NHWC", "HWIO", "NHWC")
    pool = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")  # noqa: E731
    x = lax.conv_general_dilated(x[None], z["k0"], (2, 2), [(3, 3), (3, 3)], dimension_numbers=layout) + z["c0"]
    x = lax.conv_general_dilated(pool(jax.nn.relu(x)), z["k1"], (2, 2), "VALID", dimension_numbers=layout) + z["c1"]
    return mlp(z, (pool(jax.nn.relu(x)).ravel(), y))


def text(z, row, public=None):
    """An embedding of 2,000 words, 32 of them a row, a dense layer a word, their mean."""
    words, y = row
    return cross_entropy(jnp.tanh(z["table"][words] @ z["w"] + z["b"]).mean(0) @ z["v"], y)


def lstm(z, row, public=None):
    """64 units, 20 positions of 32 numbers."""
    x, y = row

    def step(carry, x):
        h, c = carry
        i, f, o, u = jnp.split(x @ z["w"] + h @ z["r"] + z["b"], 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    (h, _), _ = lax.scan(step, (jnp.zeros(64), jnp.zeros(64)), x)
    return cross_entropy(h @ z["v"], y)


def dense(inputs, hidden, outputs):
    return {"w0": (inputs, hidden), "b0": (hidden,), "w1": (hidden, outputs), "b1": (outputs,)}


NETWORKS = {  # program, latents, shape of a row, rows
    "MLP 784-256-10": (mlp, dense(784, 256, 10), (784,), 256),
    "MLP 784-400-10": (mlp, dense(784, 400, 10), (784,), 2048),
    "CNN": (cnn, {"k0": (8, 8, 1, 16), "c0": (16,), "k1": (4, 4, 16, 32), "c1": (32,)} | dense(512, 32, 10),
            (28, 28, 1), 256),
    "text": (text, {"table": (2000, 64), "w": (64, 64), "b": (64,), "v": (64, 5)}, (32,), 256),
    "LSTM": (lstm, {"w": (32, 256), "r": (64, 256), "b": (256,), "v": (64, 5)}, (20, 32), 64),
}  # fmt: skip


def interleaved(programs, seconds, unit):
    """Prints the cost of a step of each compiled program of (function, arguments), in units of the first."""
    wall, processor = {name: [] for name in programs}, {name: [] for name in programs}
    for function, arguments in programs.values():
        jax.block_until_ready(function(*arguments))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(wall[unit]) < 5:
        for name, (function, arguments) in programs.items():
            start = time.perf_counter(), time.process_time()
            jax.block_until_ready(function(*arguments))
            wall[name].append((time.perf_counter() - start[0]) / STEPS)
            processor[name].append((time.process_time() - start[1]) / STEPS)
    for name in programs:
        ratios = [np.median(times[name]) / np.median(times[unit]) for times in (wall, processor)]
        print(
            f"  {name:22} {1e3 * np.median(wall[name]):8.2f} ms a step, ratio {ratios[0]:6.2f}, "
            f"of processor times {ratios[1]:6.2f}",
            flush=True,
        )


def looped(function):
    """STEPS steps in a scan, in which the latents move a little so that nothing is computed once for all."""

    def run(z, rows):
        move = lambda x, g: x + 1e-9 * g.astype(x.dtype)  # noqa: E731
        return lax.scan(lambda z, _: (jax.tree.map(move, z, function(z, rows)), None), z, length=STEPS)[0]

    return jax.jit(run)


def sums(name, seconds):
    program, shapes, row, num_rows = NETWORKS[name]
    rng = np.random.default_rng(0)
    z = {k: jnp.asarray(rng.standard_normal(s) / s[0] ** 0.5, jnp.float32) for k, s in shapes.items()}
    x = rng.integers(0, 2000, (num_rows, *row)) if program is text else rng.standard_normal((num_rows, *row))
    kind = jnp.int32 if program is text else jnp.float32
    rows = jnp.asarray(x, kind), jnp.asarray(rng.integers(0, 5, num_rows), jnp.int32)
    found = ghost_sum.factored(program, z, jax.tree.map(lambda x: x[0], rows), None, always=True)
    plain = rewrite(lambda z, rows: jnp.sum(jax.vmap(program, (None, 0))(z, rows)))
    statistic = lambda z, rows: ghost_sum.clipped_sum(  # noqa: E731
        lambda row: found.statistic(z, row, None), found.forms, Drawn(rows), Flat(1.0)
    )
    formed = lambda z, rows: sum_of_rows(  # noqa: E731
        lambda row: gradient(program)(z, row), Drawn(rows), Flat(1.0).clip
    )
    programs = {
        "plain gradient": (looped(jax.grad(plain)), (z, rows)),
        "ghost": (looped(statistic), (z, rows)),
        "vmap": (looped(formed), (z, rows)),
    }
    print(f"{name}, {num_rows} rows")
    interleaved(programs, seconds, "plain gradient")


def steps(seconds, num_rows=256, hidden=256):
    """`SVI(AutoDelta)` on an MLP 784-256-10, as `run` compiles it, and its parts."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.random((NUM_DATA, 784)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 10, NUM_DATA), jnp.int32)
    model = lambda x, y: bayesian_mlp(x, y, hidden=(hidden,))  # noqa: E731
    optim = optax.adam(1e-3)
    z = {k: jnp.zeros(s) for k, s in dense(784, hidden, 10).items()}
    size = sum(leaf.size for leaf in jax.tree.leaves(z))

    def private(strategy):
        svi = dpppl.SVI(
            model, AutoDelta(model), optim, clipping_norm=1.0, noise_multiplier=1.0, gradient_strategy=strategy,
            subsampling=dpppl.Poisson.of_batch(num_rows, NUM_DATA),
        )  # fmt: skip
        state = svi.init(dpppl.secret_key(), x, y)
        rows, public = svi.objective().split.arrays((x, y), {})
        step = svi.step_function(svi.objective(), svi.mechanism, 1.0)
        run = lambda state, rows: lax.scan(lambda s, _: (step(s, rows, public)[0], None), state, length=STEPS)[0]  # noqa: E731
        return jax.jit(run), (state, rows)

    def adam(state, x, y):
        def step(state, key):
            z, moments = state
            index = jax.random.randint(key, (num_rows,), 0, NUM_DATA)
            loss = lambda z: -jnp.sum(jax.vmap(mlp, (None, 0))(z, (x[index], y[index])))  # noqa: E731
            updates, moments = optim.update(jax.grad(loss)(z), moments)
            return (optax.apply_updates(z, updates), moments), None

        return lax.scan(step, state, jax.random.split(jax.random.key(0), STEPS))[0]

    def noise(key):
        def draw(total, k):
            return total + normal.standard_normal(jax.random.fold_in(key, k), size).astype(jnp.float32), None

        return lax.scan(draw, jnp.zeros(size), jnp.arange(STEPS))[0]

    print(f"a step of SVI(AutoDelta), MLP 784-{hidden}-10, {num_rows} rows")
    programs = {
        "Adam in JAX": (jax.jit(adam), ((z, optim.init(z)), x, y)),
        "SVI, ghost": private("auto"),
        "SVI, vmap": private("vmap"),
        "its noise": (jax.jit(noise), (dpppl.secret_key(),)),
    }
    interleaved(programs, seconds, "Adam in JAX")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=10.0, help="of measurements, each table")
    args = parser.parse_args()
    for name in args.networks:
        sums(name, args.seconds)
    steps(args.seconds)


if __name__ == "__main__":
    main()
