"""Regression on fixed bumps along one input, with noise whose size depends on the input: few latents, all identified."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

CENTRES = tuple(-2.5 + 5.0 * k / 7 for k in range(8))


def basis_regression(x, y=None):
    """`x` of shape (N, 1), within about [-3, 3]; `y` of shape (N,). Sites: w (bumps of width 1), s (log scale of the noise)."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([len(CENTRES)]).to_event(1))
    s = numpyro.sample("s", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    mean, spread = response({"w": w, "s": s}, x)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, spread), obs=y)


def response(latents, x):
    """Mean and sd of the response at inputs (N, 1)."""
    bumps = jnp.exp(-0.5 * (x - jnp.asarray(CENTRES)) ** 2)
    spread = jax.nn.softplus(latents["s"][0] + latents["s"][1] * x[:, 0]) + 1e-2
    return bumps @ latents["w"], spread
