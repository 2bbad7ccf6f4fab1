"""dpppl through its public API, and without privacy: NumPyro's SVI, and steps written in JAX."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import problems
from jax import lax
from numpyro.infer.autoguide import AutoDelta, AutoNormal

import dpppl
from benchmarks.speed.ghost import cnn as cnn_row
from benchmarks.speed.ghost import dense, mlp
from dpppl.access.convolutions import rewrite
from dpppl.runs import driver
from models.bayesian_mlp import bayesian_mlp


def logistic(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def cnn_shapes():
    return {"k0": (8, 8, 1, 16), "c0": (16,), "k1": (4, 4, 16, 32), "c1": (32,)} | dense(512, 32, 10)


def cnn(x, y=None):
    z = {k: numpyro.sample(k, dist.Normal(0, 1).expand(s).to_event(len(s))) for k, s in cnn_shapes().items()}
    with numpyro.plate("data", x.shape[0]):
        numpyro.factor("likelihood", jax.vmap(lambda x, y: cnn_row(z, (x, y)))(x.reshape(-1, 28, 28, 1), y))


def problem(name):
    """(model, arrays, rows a step, log likelihood of a row, shapes of latents)."""
    if name.startswith("logistic"):
        x, y = problems.logistic(name)
        one = lambda z, row: row[1] * (row[0] @ z["w"]) - jax.nn.softplus(row[0] @ z["w"])  # noqa: E731
        return logistic, (x, y), problems.batch_of(name), one, {"w": (x.shape[1],)}
    x, y = problems.images()
    if name.startswith("cnn"):
        return cnn, (x, y), 256, lambda z, row: cnn_row(z, (row[0].reshape(28, 28, 1), row[1])), cnn_shapes()
    width = problems.width_of(name)
    return lambda x, y=None: bayesian_mlp(x, y, hidden=(width,)), (x, y), 256, mlp, dense(784, width, 10)


def private(method, name, steps):
    """Seconds of the chunks of one run, the first left out."""
    model, arrays, batch, *_ = problem(name)
    num_rows = len(arrays[0])
    whole = batch == num_rows
    subsampling = dpppl.FullBatch() if whole else dpppl.Poisson.of_batch(batch, num_rows)
    settings = dict(clipping_norm=1.0, subsampling=subsampling)
    budget = dict(target_epsilon=3.0, target_delta=1e-6, print_cost=False)
    calls, call = [], driver.Program.__call__

    def timed(self, *arguments):
        start = problems.clocks()
        result = jax.block_until_ready(call(self, *arguments))
        calls.append((problems.clocks() - start, int(arguments[-1])))
        return result

    driver.Program.__call__ = timed
    arrays = tuple(map(jnp.asarray, arrays))
    start = time.perf_counter()
    if method == "dpppl MCMC":
        kernel = dpppl.DPSGLD(model, **settings)
        run = dpppl.MCMC(kernel, num_warmup=0, num_samples=steps, progress_bar=False, **budget)
        run.run(dpppl.secret_key(), *arrays)
    else:
        guide = AutoNormal(model) if name.startswith(("bbb", "logistic")) else AutoDelta(model)
        run = dpppl.SVI(model, guide, optax.adam(1e-3), **settings, **budget)
        run.run(dpppl.secret_key(), steps, *arrays, progress_bar=False)
    total = time.perf_counter() - start
    problems.tell(
        total - sum(seconds[0] for seconds, _ in calls),
        np.median([seconds / count for seconds, count in calls[1:]], axis=0),
    )


def without(method, name, steps):
    """A step in JAX or by NumPyro's SVI, on uniform indices, in a scan."""
    model, arrays, batch, row, shapes = problem(name)
    arrays = tuple(map(jnp.asarray, arrays))
    num_rows, optim = len(arrays[0]), optax.adam(1e-3)

    def rows_of(key, arrays):
        if batch == num_rows:
            return arrays
        index = jax.random.randint(key, (batch,), 0, num_rows)
        return tuple(x[index] for x in arrays)

    if method == "NumPyro SVI":
        guide = AutoNormal(model)
        svi = numpyro.infer.SVI(model, guide, optim, numpyro.infer.TraceMeanField_ELBO())
        start = svi.init(jax.random.key(0), *(x[:batch] for x in arrays))
        step = lambda state, key, arrays: svi.update(state, *rows_of(key, arrays))[0]  # noqa: E731
    else:
        total = lambda z, rows: -jnp.sum(jax.vmap(row, (None, 0))(z, rows))  # noqa: E731
        total = rewrite(total) if method == "JAX, same rules" else total
        z = {k: jnp.zeros(s) for k, s in shapes.items()}
        start = z, optim.init(z)

        def step(state, key, arrays):
            z, moments = state
            updates, moments = optim.update(jax.grad(total)(z, rows_of(key, arrays)), moments)
            return optax.apply_updates(z, updates), moments

    if method == "JAX, a call a step":
        one = jax.jit(step)

        def run(state, steps):
            for key in jax.random.split(jax.random.key(0), steps):
                state = one(state, key, arrays)
            jax.block_until_ready(state)

    else:

        @jax.jit
        def scanned(state, keys, arrays):
            return lax.scan(lambda state, key: (step(state, key, arrays), None), state, keys)[0]

        def run(state, steps):
            jax.block_until_ready(scanned(state, jax.random.split(jax.random.key(0), steps), arrays))

    problems.measured(lambda: start, run, steps)


if __name__ == "__main__":
    asked = problems.arguments()
    (private if asked.method.startswith("dpppl") else without)(asked.method, asked.problem, asked.steps)
