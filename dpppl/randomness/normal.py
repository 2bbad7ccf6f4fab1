"""Standard normal draws with full tails: two from 128 random bits."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.randomness import chacha, native
from dpppl.types import Scalar, Tree

_CALLED = {np.dtype(np.float32), np.dtype(np.float64)}
_LOG = (
    6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
    1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01,
)  # fmt: skip
_SINE = (
    -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04, 2.75573137070700676789e-06,
    -2.50507602534068634195e-08, 1.58969099521155010221e-10,
)  # fmt: skip
_COSINE = (
    4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05, -2.75573143513906633035e-07,
    2.08757232129817482790e-09, -1.13596475577881948265e-11,
)  # fmt: skip


def standard_normal(key: jax.Array, size: int) -> jax.Array:
    """`size` standard normal draws, shape (size,), float64 whatever `jax_enable_x64` says; each two from 128 random bits.

    Box and Muller (1958): a radius from 64 bits, a direction from 64. The largest possible radius is that of
    U = 2^-65, sqrt(-2 log U) = 9.49 standard deviations, and the mass beyond it is U: 2.8e-20 a pair. Rounding moves the
    squared radius by less than 2.3e-16, and all else by less than a part in 1e15. (`jax.random.normal` in float32 stops
    at 5.42, a missing mass of 6e-8 a draw, which is a privacy failure of the same size.)
    Only element-wise arithmetic may touch the result outside `jax.enable_x64(True)`."""
    count = -(-size // 8)

    def by_xla(key: jax.Array) -> jax.Array:
        return _box_muller(jax.random.bits(key, (4, 4 * count), jnp.uint32)).reshape(-1)

    with jax.enable_x64(True):
        if not (chacha.is_chacha(key) and native.available()):
            return by_xla(key)[:size]
        by_call = partial(chacha.native_normal, count=count)
        return lax.platform_dependent(key, cpu=by_call, default=by_xla)[:size]


def noised(
    key: jax.Array, totals: Sequence[jax.Array], scales: Sequence[Scalar], norms: Sequence[Scalar],
    dtypes: Sequence[Tree],
) -> list[jax.Array]:  # fmt: skip
    """`added` of `standard_normal(key, ...)`, on CPUs in one call, which stores no draws.

    Its last bits are another's: XLA makes one operation of a product and a sum. Arguments as for `added`."""

    def by_xla(key: jax.Array, totals: Tree, scales: Tree, norms: Tree) -> list[jax.Array]:
        return added(standard_normal(key, sum(total.size for total in totals)), totals, scales, norms, dtypes)

    def by_call(key: jax.Array, totals: Tree, scales: Tree, norms: Tree) -> list[jax.Array]:
        like = [jax.ShapeDtypeStruct(total.shape, dtype) for total, dtype in zip(totals, dtypes)]
        return list(native.call(native.NOISED, like, *chacha.words_of_normal(key), scales, norms, *totals))

    with jax.enable_x64(True):
        if not (chacha.is_chacha(key) and native.available() and {*map(np.dtype, dtypes)} <= _CALLED):
            return by_xla(key, totals, scales, norms)
        factors = [jnp.stack([jnp.asarray(x, jnp.float64) for x in each]) for each in (scales, norms)]
        return lax.platform_dependent(key, list(totals), *factors, cpu=by_call, default=by_xla)


def added(
    draws: jax.Array, totals: Sequence[jax.Array], scales: Sequence[Scalar], norms: Sequence[Scalar],
    dtypes: Sequence[Tree],
) -> list[jax.Array]:  # fmt: skip
    """(total + scale * draws) * norm for each of `totals`, as its type of `dtypes`.

    - **draws** - (S,) float64: a number for each of the totals, in order.
    - **totals** - L arrays of S numbers together.
    - **scales**, **norms** - L factors.
    - **dtypes** - L types of results."""
    pieces = jnp.split(draws, np.cumsum([total.size for total in totals])[:-1])
    return [
        ((total + scale * piece.reshape(total.shape)) * norm).astype(dtype)
        for total, scale, piece, norm, dtype in zip(totals, scales, pieces, norms, dtypes)
    ]


def _box_muller(words: jax.Array) -> jax.Array:
    """Normal draws (2, M) from words (4, M): two for a uniform number in (0, 1], and two for a direction, of which the first
    two bits choose between sine and cosine and a sign. Logarithm, sine and cosine are those of fdlibm (Sun, 1993)."""
    high, low, angle, fine = words
    u = high.astype(jnp.float64) * 2.0**-32 + (low.astype(jnp.float64) + 0.5) * 2.0**-64
    bits = lax.bitcast_convert_type(u, jnp.uint64)
    exponent = ((bits >> 32).astype(jnp.int32) - 0x3FE6A09E) >> 20
    mantissa = lax.bitcast_convert_type(bits - (exponent.astype(jnp.int64).astype(jnp.uint64) << 52), jnp.float64)
    f = mantissa - 1.0
    s = f / (2.0 + f)
    logarithm = exponent.astype(jnp.float64) * np.log(2.0) + (f - s * (f - s * s * _polynomial(_LOG, s * s)))
    radius = jnp.sqrt(-2.0 * logarithm)
    turn = (angle << 2).astype(jnp.int32).astype(jnp.float64) * 2.0**-32 + (fine.astype(jnp.float64) + 0.5) * 2.0**-62
    x = turn * (0.5 * np.pi)  # within a quarter of pi
    sine = x + x * (x * x) * _polynomial(_SINE, x * x)
    cosine = 1.0 - 0.5 * (x * x) + (x * x) ** 2 * _polynomial(_COSINE, x * x)
    cosine = jnp.where(angle >> 31, -cosine, cosine)
    swap = (angle >> 30) & 1 == 1
    return radius * jnp.stack([jnp.where(swap, sine, cosine), jnp.where(swap, cosine, sine)])


def _polynomial(coefficients: tuple[float, ...], x: jax.Array) -> Scalar:
    total: Scalar = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = coefficient + x * total
    return total
