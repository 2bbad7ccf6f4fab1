"""Draws of common responses, fast for many rows at once.

NumPyro's own samplers of counts iterate until the slowest of all rows is done, with new random bits each time. Here a count
comes from one number: a uniform one by inversion of its distribution function, or where many are expected a normal one by
Cornish and Fisher's expansion (1938). A gamma variate, of which a negative binomial one is the mean, is one of four
proposals that is accepted (Marsaglia and Tsang 2000); Student-t comes from two uniform numbers (Bailey 1994, polar method).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax

from dpppl.model.structure import unwrapped

_SMALL, _MOST, _AT_A_TIME, _NEGLIGIBLE, _PROPOSALS = 40.0, 1000, 8, 1e-10, 4
"""Minus log probabilities of 0 below which counts are drawn by inversion, terms after which it ends, of which so many are added
at a time, and a term that ends a tail; proposals of a gamma variate, none of which is accepted in 5e-6 of draws at most."""


def drawn(fn: Any, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
    """Draws distributed as `fn.sample(key, sample_shape)`: to float32, and where counts are large within 1e-4 (total variation).

    >>> drawn(dist.Poisson(jnp.array([0.0, 3.0])).to_event(1), jax.random.key(0), (4,)).shape
    (4, 2)
    """
    distribution, shape = unwrapped(fn), (*sample_shape, *fn.batch_shape, *fn.event_shape)
    draw = _DRAWS.get(type(distribution))
    if draw is None:
        return fn.sample(key, sample_shape)
    return draw(distribution, key, shape).astype(jax.eval_shape(distribution.sample, key).dtype)


def _poisson(distribution: Any, key: Any, shape: tuple[int, ...]) -> Any:
    rate = jnp.broadcast_to(distribution.rate, shape)
    return _poisson_of(rate.astype(jnp.promote_types(rate.dtype, jnp.float32)), key)


def _poisson_of(rate: Any, key: Any) -> Any:
    inside = jnp.where(rate < _SMALL, rate, 0.0)
    few = _inverted(key, jnp.exp(-inside), lambda k: inside * (1.0 / k))
    return jnp.where(rate < _SMALL, few, _many(jax.random.normal(key, rate.shape, rate.dtype), rate, rate, 1.0, 1.0))


def _binomial(distribution: Any, key: Any, shape: tuple[int, ...]) -> Any:
    count, p = jnp.broadcast_to(distribution.total_count, shape), jnp.broadcast_to(distribution.probs, shape)
    rarer = jnp.minimum(p, 1.0 - p)
    is_small = -count * jnp.log1p(-rarer) < _SMALL
    n, q = jnp.where(is_small, count, 0), jnp.where(is_small, rarer, 0.0)
    odds = q / (1.0 - q)
    few = _inverted(key, jnp.exp(n * jnp.log1p(-q)), lambda k: jnp.maximum(n - k + 1.0, 0.0) / k * odds)
    product = rarer * (1.0 - rarer)
    w = jax.random.normal(key, p.shape, p.dtype)
    many = _many(w, count * rarer, count * product, 1.0 - 2.0 * rarer, 1.0 - 6.0 * product)
    rare = jnp.where(is_small, few, jnp.minimum(many, count))
    return jnp.where(p > 0.5, count - rare, rare)


def _negative_binomial(distribution: Any, key: Any, shape: tuple[int, ...]) -> Any:
    gamma_key, key = jax.random.split(key)
    gamma = _gamma(jnp.broadcast_to(distribution.concentration, shape), gamma_key)
    return _poisson_of(gamma / distribution.rate, key)


def _gamma(concentration: Any, key: Any) -> Any:
    """Gamma variates of scale 1: those of one more, times a power of a uniform number."""
    normal_key, key, power_key = jax.random.split(key, 3)
    shape, dtype = concentration.shape, jnp.result_type(float)
    d = concentration + (1.0 - 1.0 / 3.0)
    found = d
    normals = jax.random.normal(normal_key, (_PROPOSALS, *shape), dtype)
    for x, u in zip(normals, jax.random.uniform(key, normals.shape, dtype)):
        v = (1.0 + x / jnp.sqrt(9.0 * d)) ** 3
        is_good = (v > 0.0) & (jnp.log1p(-u) < 0.5 * x**2 + d - d * v + d * jnp.log(jnp.maximum(v, 1e-30)))
        found = jnp.where(is_good, d * v, found)  # the last that is accepted: as good as the first
    return found * (1.0 - jax.random.uniform(power_key, shape, dtype)) ** (1.0 / concentration)


def _many(w: Any, mean: Any, variance: Any, third: Any, fourth: Any) -> Any:
    """Counts that are nearly normal, from standard normal `w` and their cumulants, the last two over the variance.

    Fisher and Cornish (1938), with the variance less 1/12 for whole numbers; as Giles (2016, equation 6) has it for Poisson."""
    sd = jnp.sqrt(jnp.maximum(variance, 1.0))
    bent = third * (w**2 - 1.0) / 6.0
    small = (fourth * (w**3 - 3.0 * w) - w) / 24.0 - third**2 * (2.0 * w**3 - 5.0 * w) / 36.0
    return jnp.maximum(jnp.floor(mean + 0.5 + sd * w + bent + small / sd), 0.0)


def _student_t(distribution: Any, key: Any, shape: tuple[int, ...]) -> Any:
    df, dtype = jnp.minimum(distribution.df, 1e30), jnp.result_type(float)
    u, v = jax.random.uniform(key, (2, *shape), dtype)
    standard = jnp.sqrt(df * jnp.expm1(-2.0 / df * jnp.log1p(-u))) * jnp.cos(2.0 * jnp.pi * v)
    return distribution.loc + distribution.scale * standard


def _inverted(key: Any, first: Any, ratio: Callable[[Any], Any]) -> Any:
    """Draws of counts with probability `first` of 0, and `ratio(k)` times that of k - 1 of k.

    A count is how many sums of probabilities a uniform number exceeds, up to where these are so small that they no longer
    grow: rounded, they may never reach it."""
    u = jax.random.uniform(key, first.shape, first.dtype)

    def iteration(state: Any) -> Any:
        k, p, below, count, _ = state
        is_left = jnp.zeros(())
        for _ in range(_AT_A_TIME):
            grows = ratio(k + 1.0)
            is_left = (below <= u) & ((p > _NEGLIGIBLE) | (grows > 1.0))
            count += is_left
            p *= grows
            below += p
            k += 1.0
        return k, p, below, count, jnp.any(is_left)

    start = (jnp.zeros((), first.dtype), first, first, jnp.zeros_like(first), jnp.array(True))
    return lax.while_loop(lambda state: state[-1] & (state[0] < _MOST), iteration, start)[3]


_DRAWS: dict[type, Callable[..., Any]] = {
    dist.Poisson: _poisson,
    dist.BinomialProbs: _binomial,
    dist.BinomialLogits: _binomial,
    dist.GammaPoisson: _negative_binomial,
    dist.NegativeBinomial2: _negative_binomial,
    dist.NegativeBinomialLogits: _negative_binomial,
    dist.NegativeBinomialProbs: _negative_binomial,
    dist.StudentT: _student_t,
}
