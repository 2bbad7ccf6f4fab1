"""jax-privacy: clipped gradients by its `clipped_grad`, Gaussian noise, microbatches of the size asked for (0: none)."""

import jax
import jax.numpy as jnp
import jax_privacy
import optax
import problems
from jax import lax

asked = problems.arguments()
if asked.problem.startswith("logistic"):
    x, y = map(jnp.asarray, problems.logistic(asked.problem))
    batch, params = problems.batch_of(asked.problem), {"w": jnp.zeros(x.shape[1])}

    def loss(params, x, y):
        logit = x @ params["w"]
        return jnp.sum(jax.nn.softplus(logit) - y * logit)

else:
    x, y = map(jnp.asarray, problems.images())
    batch, layout = 256, ("NHWC", "HWIO", "NHWC")
    width = 32 if asked.problem.startswith("cnn") else problems.width_of(asked.problem)
    inputs = 512 if asked.problem.startswith("cnn") else 784
    shapes = {"w0": (inputs, width), "b0": (width,), "w1": (width, 10), "b1": (10,)}
    if asked.problem.startswith("cnn"):
        shapes |= {"k0": (8, 8, 1, 16), "c0": (16,), "k1": (4, 4, 16, 32), "c1": (32,)}
    params = {k: jnp.zeros(s) for k, s in shapes.items()}

    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")

    def loss(params, x, y):
        p = params
        if "k0" in p:
            x = x.reshape(-1, 28, 28, 1)
            x = lax.conv_general_dilated(x, p["k0"], (2, 2), [(3, 3), (3, 3)], dimension_numbers=layout) + p["c0"]
            x = pool(jax.nn.relu(x))
            x = lax.conv_general_dilated(x, p["k1"], (2, 2), "VALID", dimension_numbers=layout) + p["c1"]
            x = pool(jax.nn.relu(x)).reshape(x.shape[0], -1)
        logits = jax.nn.relu(x @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"]
        return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, y))


size = int(asked.method.split()[-1])
gradient = jax_privacy.clipped_grad(
    loss, argnums=0, batch_argnums=(1, 2), l2_clip_norm=1.0, keep_batch_dim=True, microbatch_size=size or None
)
noise = jax_privacy.noise_addition.gaussian_privatizer(stddev=1.0, prng_key=jax.random.key(1))
optim = optax.sgd(1e-3)


@jax.jit
def step(state, key, x, y):
    params, moments, noise_state = state
    index = jax.random.randint(key, (batch,), 0, len(y))
    rows = (x, y) if batch == len(y) else (x[index], y[index])
    noisy, noise_state = noise.update(gradient(params, *rows), noise_state)
    updates, moments = optim.update(noisy, moments)
    return optax.apply_updates(params, updates), moments, noise_state


def run(state, steps):
    for key in jax.random.split(jax.random.key(0), steps):
        state = step(state, key, x, y)
    jax.block_until_ready(state)


problems.measured(lambda: (params, optim.init(params), noise.init(params)), run, asked.steps)
