"""Scores of many responses by way of the parameters of their distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from dpppl.row_program.parameters import scores_by_parameters

LAWS = {
    "normal": (lambda eta, s: dist.Normal(eta, s), [0.3, -4.0, 1e3], 2),
    "gamma": (lambda eta, s: dist.Gamma(s, s * jnp.exp(-eta)), [0.3, 4.0, 1e3], 2),
    "Poisson": (lambda eta, s: dist.Poisson(jnp.exp(eta)), [0.0, 3.0, 1e4], 1),
    "negative binomial": (lambda eta, s: dist.NegativeBinomial2(jnp.exp(eta), s), [0.0, 3.0, 500.0], 2),
    "Student-t": (lambda eta, s: dist.StudentT(4.0 + s, eta, s), [0.1, -9.0, 1e5], 2),
    "beta": (lambda eta, s: dist.Beta(s * jnp.exp(eta), s), [0.2, 1e-5, 0.999], 2),
    "Weibull": (lambda eta, s: dist.Weibull(jnp.exp(eta), s), [0.1, 1.0, 40.0], 2),
    "mixture": (
        lambda eta, s: dist.MixtureSameFamily(
            dist.Categorical(logits=jnp.stack([eta, 0.0 * eta])), dist.Normal(jnp.stack([eta, -eta]), s)
        ),
        [0.3, -4.0, 20.0],
        2,
    ),
}


def scores(law, z, x, responses):
    """Those by parameters, their Jacobian, and those of JAX for one response after another. The last latent is a log scale."""

    def log_likelihood(z, row, public, response):
        return law(row @ z[:-1], jnp.exp(z[-1])).log_prob(response)

    def both(z, x, responses):
        every = jax.vmap(jax.grad(log_likelihood), (None, None, None, 0))
        return scores_by_parameters(log_likelihood, z, x, (), responses)[1:], every(z, x, (), responses)

    return jax.jit(both)(z, x, responses)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", LAWS)
def test_scores_are_those_of_jax(name):
    law, responses, most = LAWS[name]
    z = jnp.array([0.4, -0.3, 0.2, 0.1, 0.3])
    (inner, jacobian), expected = scores(law, z, jnp.array([1.0, -2.0, 0.5, 3.0]), jnp.array(responses))
    assert inner.shape[1] <= most and jacobian.shape == (inner.shape[1], 5)
    np.testing.assert_allclose(inner @ jacobian, expected, rtol=2e-4, atol=1e-5 * float(jnp.abs(expected).max()))


def test_hostile_rows_are_not_finite_in_both():
    law, _, _ = LAWS["normal"]
    z = jnp.array([0.4, -0.3, 0.2, 0.1, 0.3])
    for x, y in (([jnp.nan, 1.0, 1.0, 1.0], 0.0), ([1.0, 1.0, 1.0, jnp.inf], 0.0), ([1.0, 1.0, 1.0, 1.0], jnp.nan)):
        (inner, jacobian), expected = scores(law, z, jnp.array(x), jnp.array([y]))
        assert not jnp.all(jnp.isfinite(inner @ jacobian)) and not jnp.all(jnp.isfinite(expected))


def test_no_parameters_where_as_many_numbers_enter_as_latents():
    likelihood = lambda z, x, _, y: -0.5 * jnp.sum((y - x * z) ** 2)  # noqa: E731
    assert scores_by_parameters(likelihood, jnp.zeros(40), jnp.ones(40), (), jnp.zeros((3, 40))) is None
