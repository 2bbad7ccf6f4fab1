"""blackjax's SGLD on logistic regression, positions kept."""

import blackjax
import jax
import jax.numpy as jnp
import problems
from jax import lax

asked = problems.arguments()
x, y = map(jnp.asarray, problems.logistic(asked.problem))
num_rows, batch = len(y), problems.batch_of(asked.problem)


def log_likelihood(z, row):
    logit = row[0] @ z
    return row[1] * logit - jax.nn.softplus(logit)


gradient = blackjax.sgmcmc.gradients.grad_estimator(lambda z: -0.5 * jnp.sum(z**2), log_likelihood, num_rows)
sgld = blackjax.sgld(gradient)


@jax.jit
def scanned(z, keys, x, y):
    def body(z, key):
        index_key, key = jax.random.split(key)
        index = jax.random.randint(index_key, (batch,), 0, num_rows)
        rows = (x, y) if batch == num_rows else (x[index], y[index])
        z = sgld.step(key, z, rows, 1e-4)
        return z, z

    return lax.scan(body, z, keys)


def run(z, steps):
    jax.block_until_ready(scanned(z, jax.random.split(jax.random.key(0), steps), x, y))


problems.measured(lambda: jnp.zeros(x.shape[1]), run, asked.steps)
