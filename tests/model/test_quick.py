"""Numbers that need not be secret: uniform, and independent between keys, counters and streams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpppl.model import quick

COUNT = 4_096


def numbers(stream=0):
    keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), number))(
        jnp.arange(COUNT)
    )
    return np.asarray(jax.vmap(lambda key: quick.uniform(key, (8,), stream))(keys), np.float64)


def neighbours(words):
    """Keys whose words differ by little, as no threefry key's do."""
    keys = jax.vmap(lambda pair: jax.random.wrap_key_data(pair, impl="threefry2x32"))(words)
    return np.asarray(jax.vmap(lambda key: quick.uniform(key, (8,)))(keys), np.float64)


def farthest(u):
    """The largest of standardised correlations: of all pairs of columns, of their squares, and of successive rows."""
    z = stats.norm.ppf(u)
    found = []
    for x in (z, z**2 - 1.0):
        x = (x - x.mean(0)) / x.std(0)
        found += [(x.T @ x / len(x) - np.eye(x.shape[1])).ravel(), (x[1:].T @ x[:-1] / len(x)).ravel()]
    return np.max(np.abs(np.concatenate(found))) * np.sqrt(len(z))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["folded", "first words", "second words", "streams"])
def test_numbers_are_uniform_and_independent(kind):
    """256 correlations within 5.2 standard errors, and a chi-squared of 64 bins within 1e-6 of its law: false alarm below 1e-4 in
    all."""
    counts = np.arange(COUNT, dtype=np.uint32)
    if kind == "folded":
        u = numbers()
    elif kind == "streams":
        u = np.concatenate([numbers(stream)[:, :2] for stream in (0, 1, 2, 255)], axis=1)
    else:
        pair = np.stack([counts, np.zeros_like(counts) + 7], axis=1)
        u = neighbours(pair if kind == "first words" else pair[:, ::-1])
    assert 0.0 < u.min() and u.max() < 1.0 and len(np.unique(u)) > 0.99 * u.size
    expected = u.size / 64
    assert stats.chi2.sf(np.sum((np.histogram(u, 64, (0, 1))[0] - expected) ** 2) / expected, 63) > 1e-6
    assert farthest(u) < 5.2


def test_normal_numbers_are_quantiles():
    u = quick.uniform(jax.random.key(3), (1_000,))
    np.testing.assert_allclose(quick.normal(jax.random.key(3), (1_000,)), stats.norm.ppf(np.asarray(u)), atol=2e-5)
