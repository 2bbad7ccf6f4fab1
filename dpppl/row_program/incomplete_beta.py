"""The regularised incomplete beta function, one row at a time: as of Student's t, beta and binomial distribution functions.

XLA computes JAX's own by one loop over the numbers of all rows, which improves each until the slowest has converged: a row's
value would depend on the other rows. In a loop that JAX maps over rows, a row that has converged stays as it is.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import betaln, gammaln, xlog1py, xlogy

from dpppl.types import Tree

_MOST_TERMS = 500


def betainc(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    """I_x(a, b) of arrays of one shape and dtype, by its continued fraction (DLMF 8.17.22) with the algorithm of Lentz (1976).

    >>> print(f"{betainc(jnp.float32(2.0), jnp.float32(3.0), jnp.float32(0.4)):.4f}")
    0.5248
    """
    given, dtype = x.dtype, jnp.promote_types(x.dtype, jnp.float32)
    a, b, x = (u.astype(dtype) for u in (a, b, x))
    tiny, precise = jnp.asarray(jnp.finfo(dtype).tiny * 1e4, dtype), jnp.finfo(dtype).eps
    is_far = x > (a + 1.0) / (a + b + 2.0)  # there the fraction of 1 - I_{1-x}(b, a) converges sooner
    inside = (a > 0.0) & (b > 0.0) & (x > 0.0) & (x < 1.0)
    p, q, t = (
        jnp.where(inside, u, 0.5)
        for u in (jnp.where(is_far, b, a), jnp.where(is_far, a, b), jnp.where(is_far, 1 - x, x))
    )

    def away(u: jax.Array) -> jax.Array:
        return jnp.where(jnp.abs(u) < tiny, tiny, u)

    def better(state: Tree) -> Tree:
        count, c, d, fraction, _ = state
        m = (count // 2).astype(dtype)
        even = m * (q - m) * t / ((p + 2.0 * m - 1.0) * (p + 2.0 * m))
        odd = -(p + m) * (p + q + m) * t / ((p + 2.0 * m) * (p + 2.0 * m + 1.0))
        term = jnp.where(count % 2 == 0, even, odd)
        d, c = 1.0 / away(1.0 + term * d), away(1.0 + term / c)
        return count + 1, c, d, fraction * c * d, jnp.max(jnp.abs(c * d - 1.0), initial=0.0)

    goes_on = lambda state: (state[0] < _MOST_TERMS) & (state[4] > precise)  # noqa: E731
    first = 1.0 / away(1.0 - (p + q) * t / (p + 1.0))
    start = jnp.full((), 2, jnp.int32), jnp.ones_like(t), first, first, jnp.asarray(jnp.inf, dtype)
    fraction = lax.while_loop(goes_on, better, start)[3]
    # The first is better in float32; the second has all digits of float64.
    log_beta = betaln(p, q) if dtype == jnp.float32 else gammaln(p) + gammaln(q) - gammaln(p + q)
    value = jnp.exp(xlogy(p, t) + xlog1py(q, -t) - log_beta) * fraction / p
    outside = jnp.where((a > 0.0) & (b > 0.0), jnp.where(x >= 1.0, 1.0, jnp.where(x <= 0.0, 0.0, jnp.nan)), jnp.nan)
    return jnp.where(inside, jnp.where(is_far, 1.0 - value, value), outside).astype(given)
