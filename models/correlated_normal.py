"""Rows from a multivariate normal distribution with unknown mean, scales and correlations."""

import numpyro
import numpyro.distributions as dist


def correlated_normal(y):
    """`y` (N, D)."""
    size = y.shape[1]
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([size]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0).expand([size]).to_event(1))
    correlation = numpyro.sample("correlation", dist.LKJCholesky(size, 2.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.MultivariateNormal(mean, scale_tril=scale[:, None] * correlation), obs=y)
