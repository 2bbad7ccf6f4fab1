"""Sparse Gaussian process regression: the function is known through its values at a few inducing points."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular


def gaussian_process(x, y=None, num_inducing=8, residual=False):
    """`x` (N,) within [-2, 2]. With `residual`, what the inducing points leave unknown adds to the noise of each row (FITC),
    which then solves a triangular system; without it, rows use one common solution."""
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
    length = numpyro.sample("length", dist.LogNormal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    white = numpyro.sample("white", dist.Normal(0.0, 1.0).expand([num_inducing]).to_event(1))
    points = np.linspace(-2.0, 2.0, num_inducing, dtype=np.float32)

    def kernel(a, b):
        return variance * jnp.exp(-0.5 * ((a[:, None] - b) / length) ** 2)

    root = jnp.linalg.cholesky(kernel(points, points) + 1e-4 * jnp.eye(num_inducing))
    with numpyro.plate("data", x.shape[0]):
        if residual:
            seen = solve_triangular(root, kernel(points, x), lower=True)
            mean, unknown = seen.T @ white, variance - jnp.sum(seen**2, axis=0)
        else:
            mean, unknown = kernel(x, points) @ solve_triangular(root.T, white), 0.0
        numpyro.sample("y", dist.Normal(mean, jnp.sqrt(unknown + noise**2)), obs=y)
