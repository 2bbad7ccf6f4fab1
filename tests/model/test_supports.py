"""Responses that a distribution cannot produce: which they are, and the remedy."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from small_models import latent, seen

from dpppl.model.split import split_model
from dpppl.model.supports import codes, is_outside

HALF = np.float32([0.5, 0.5])
KINDS = {  # distribution, values that it takes, values that it does not take, what the message says of it
    "binary": (dist.BernoulliLogits, [0, 1], [-1, 2], "takes 0 and 1; pass (y + 1) / 2"),
    "classes": (lambda a: dist.CategoricalLogits(a * HALF), [0, 1], [2, -1], "takes classes 0 to K - 1; pass y - 1"),
    "ordered": (lambda a: dist.OrderedLogistic(a, HALF.cumsum()), [0, 1, 2], [3], "takes classes 0 to K - 1"),
    "counts": (lambda a: dist.Poisson(jnp.exp(a)), [0.0, 7.0], [0.5, -1.0], "takes whole numbers from 0"),
    "overdispersed": (lambda a: dist.NegativeBinomial2(jnp.exp(a), 3.0), [0.0, 2.0], [1.5], "takes whole numbers from 0"),
    "no event": (lambda a: dist.ZeroInflatedPoisson(0.3, jnp.exp(a)), [0.0], [-2.0, 0.5], "takes whole numbers from 0"),
    "trials": (lambda a: dist.Binomial(5, logits=a), [0, 5], [6, -1], "from 0 to its total_count"),
    "dice": (lambda a: dist.DiscreteUniform(1, 6), [1, 6], [0, 7], "takes whole numbers within its bounds"),
    "times": (lambda a: dist.Weibull(jnp.exp(a), 2.0), [0.1, 9.0], [-1.0, 0.0], "takes positive numbers"),
    "amounts": (lambda a: dist.LogNormal(a, 1.0), [0.1, 9.0], [-1.0, 0.0], "takes positive numbers"),
    "proportions": (lambda a: dist.Beta(2.0 * jnp.exp(a), 2.0), [0.1, 0.9], [0.0, 1.0, 1.2, 55.0], "divide percentages by 100"),
    "angles": (lambda a: dist.VonMises(a, 1.0), [-3.0, 3.0], [4.0, 180.0], "pass jnp.arctan2"),
    "shares": (lambda a: dist.Dirichlet(jnp.exp(a) * jnp.ones(2)), [[0.3, 0.7]], [[0.3, 0.5], [-0.1, 1.1]], "divide each row"),
    "votes": (lambda a: dist.Multinomial(4, logits=a * HALF), [[1, 3]], [[1, 2], [-1, 5]], "pass total_count=y.sum(-1)"),
    "pairs": (lambda a: dist.Poisson(jnp.exp(a)).expand([2]).to_event(1), [[1.0, 2.0]], [[1.0, 0.5]], "takes whole numbers"),
    "bounded": (lambda a: dist.TruncatedNormal(a, 1.0, low=2.0), [2.5], [1.0], "check the bounds"),
    "unbounded": (lambda a: dist.Normal(a, 1.0), [-1e9, 1e9, np.nan], [], None),
}  # fmt: skip


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("kind", KINDS)
def test_responses_outside_the_support_are_told_from_others(kind):
    law, inside, outside, words = KINDS[kind]

    def model(y):
        seen(y, law(latent("a")))

    y = jnp.asarray([*inside, *outside])
    split = split_model(model, (y,), {})
    rows, public = split.arrays((y,), {})
    of_rows = jax.jit(jax.vmap(lambda row: is_outside(split, {"a": jnp.zeros(())}, row, public)))
    assert of_rows(rows).tolist() == [False] * len(inside) + [True] * len(outside)
    lines = codes(split)
    assert not lines if words is None else len(lines) == 1 and lines[0].startswith("site 'y': ") and words in lines[0]


@pytest.mark.parametrize(
    ("law", "words"),
    [(dist.Normal(0, 1), "site 'y': times"), (dist.Exponential(1), "site 'y': LeftCensoredDistribution takes")],
)
def test_censored_responses_are_worded_whatever_their_law(law, words):
    """Of a law of all real numbers, as with detection limits, too: that raised KeyError once a run was charged."""

    def model(y, beyond, end):
        latent("a")
        with numpyro.plate("data", 3):
            numpyro.sample("y", dist.LeftCensoredDistribution(law, beyond), obs=y, infer={"censored_by": end})

    args = np.ones(3, np.float32), np.array([True, False, False]), np.ones(3, np.float32)
    (line,) = codes(split_model(model, args, {}))
    assert line.startswith(words) and line.endswith("times and indicators must agree with the declared censoring times")
