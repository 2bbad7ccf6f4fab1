"""Draws of common responses, fast for many rows at once.

NumPyro's own samplers go on until the slowest of all rows is done, and each turn draws new random bits. Here counts come from
one uniform number by inversion of their distribution function, and Student-t from two (Bailey 1994, polar method).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax

_WRAPPERS = (dist.Independent, dist.ExpandedDistribution, dist.MaskedDistribution)
_SMALL, _MOST, _DISPERSED = 80.0, 1000, 50.0
"""Minus log probabilities of zero below which counts are drawn by inversion (float32 ends at 87), turns after which it ends, and
a negative binomial's variance over its mean, less one, below which its tail has ended by then."""


def unwrapped(fn: Any) -> Any:
    """A distribution without its masks and axes."""
    while isinstance(fn, _WRAPPERS):
        fn = fn.base_dist
    return fn


def drawn(fn: Any, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
    """What `fn.sample(key, sample_shape)` gives in law, up to the rounding of probabilities to float32.

    >>> drawn(dist.Poisson(jnp.array([0.0, 3.0])).to_event(1), jax.random.key(0), (4,)).shape
    (4, 2)
    """
    law, shape = unwrapped(fn), (*sample_shape, *fn.batch_shape, *fn.event_shape)
    draw = _DRAWS.get(type(law))
    return fn.sample(key, sample_shape) if draw is None else draw(law, key, shape)


def _poisson(law: Any, key: Any, shape: tuple[int, ...]) -> Any:
    rate = jnp.broadcast_to(law.rate, shape)
    inside = jnp.where(rate < _SMALL, rate, 0.0)

    def sample(is_found: Any) -> Any:
        return jax.random.poisson(jax.random.fold_in(key, 1), jnp.where(is_found, _SMALL, rate), shape)

    return _or_else(rate < _SMALL, _inverted(key, jnp.exp(-inside), lambda k: inside / k), sample)


def _binomial(law: Any, key: Any, shape: tuple[int, ...]) -> Any:
    count, p = jnp.broadcast_to(law.total_count, shape), jnp.broadcast_to(law.probs, shape)
    rarer = jnp.minimum(p, 1.0 - p)
    is_small = -count * jnp.log1p(-rarer) < _SMALL
    n, q = jnp.where(is_small, count, 0), jnp.where(is_small, rarer, 0.0)
    rare = _inverted(key, jnp.exp(n * jnp.log1p(-q)), lambda k: (n - k + 1.0) / k * q / (1.0 - q))

    def sample(is_found: Any) -> Any:
        others = dist.BinomialProbs(jnp.where(is_found, 0.5, p), jnp.where(is_found, 100, count))
        return others.sample(jax.random.fold_in(key, 1))

    return _or_else(is_small, jnp.where(p > 0.5, n - rare, rare), sample)


def _negative_binomial(law: Any, key: Any, shape: tuple[int, ...]) -> Any:
    concentration, rate = jnp.broadcast_to(law.concentration, shape), jnp.broadcast_to(law.rate, shape)
    is_small = (concentration < _SMALL * rate) & (1.0 < _DISPERSED * rate)
    r, b = jnp.where(is_small, concentration, 1.0), jnp.where(is_small, rate, 1.0)
    found = _inverted(key, jnp.exp(-r * jnp.log1p(1.0 / b)), lambda k: (k - 1.0 + r) / (k * (1.0 + b)))

    def sample(is_found: Any) -> Any:
        others = dist.GammaPoisson(jnp.where(is_found, 1.0, concentration), jnp.where(is_found, 1.0, rate))
        return others.sample(jax.random.fold_in(key, 1))

    return _or_else(is_small, found, sample)


def _student_t(law: Any, key: Any, shape: tuple[int, ...]) -> Any:
    df, dtype = law.df, jnp.result_type(float)
    u, v = jax.random.uniform(key, (2, *shape), dtype)
    standard = jnp.sqrt(df * ((1.0 - u) ** (-2.0 / df) - 1.0)) * jnp.cos(2.0 * jnp.pi * v)
    return law.loc + law.scale * standard


def _or_else(is_found: Any, found: Any, sample: Callable[[Any], Any]) -> Any:
    """`found` where it is, else what `sample(is_found)` gives: in a loop, so that of many rows at once nothing is sampled
    where all are found."""
    found = found.astype(jax.eval_shape(sample, is_found).dtype)

    def turn(state: Any) -> Any:
        return jnp.ones_like(state[0]), jnp.where(state[0], state[1], sample(state[0]))

    return lax.while_loop(lambda state: ~jnp.all(state[0]), turn, (is_found, found))[1]


def _inverted(key: Any, first: Any, ratio: Callable[[Any], Any]) -> Any:
    """Draws of counts with probability `first` of 0, and `ratio(k)` times that of k - 1 of k."""
    u = jax.random.uniform(key, first.shape, first.dtype)

    def is_above(state: Any) -> Any:
        return state[2] <= u

    def turn(state: Any) -> Any:
        k, p, below = state
        above, p = is_above(state), p * ratio(k + 1.0)
        return jnp.where(above, k + 1.0, k), jnp.where(above, p, state[1]), jnp.where(above, below + p, below)

    start = (jnp.zeros_like(first), first, first)
    return lax.while_loop(lambda state: jnp.any(is_above(state) & (state[0] < _MOST)), turn, start)[0]


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
