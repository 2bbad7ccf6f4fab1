"""Models and covariates whose posteriors `benchmarks/calibration/noise_aware.py` judges."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from models.linear_regression import linear_regression
from models.logistic_regression import gaussian
from models.poisson_regression import poisson_regression


def student_t(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, x @ weights, scale), obs=y)


def ordinal(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    first = numpyro.sample("first", dist.Normal(-1.0, 1.0))
    gaps = numpyro.sample("gaps", dist.LogNormal(0.0, 0.5).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        cuts = jnp.concatenate([first[None], first + jnp.cumsum(gaps)])
        numpyro.sample("y", dist.OrderedLogistic(x @ weights, cuts), obs=y)


def groups(x, y=None, num_groups=8):
    """`x` holds group numbers. Group effects are latents of their own (centred), so that they enter the likelihood."""
    mean, spread = numpyro.sample("mean", dist.Normal(0.0, 1.0)), numpyro.sample("spread", dist.LogNormal(-0.7, 0.5))
    with numpyro.plate("groups", num_groups):
        effects = numpyro.sample("effects", dist.Normal(mean, spread))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=effects[x]), obs=y)


def normal_covariates(dimension, scale=1.0):
    return lambda rng, n: (scale * rng.standard_normal((n, dimension)) / np.sqrt(dimension)).astype(np.float32)


def negative_binomial(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    concentration = numpyro.sample("concentration", dist.LogNormal(1.0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(x @ weights + 1.0), concentration), obs=y)


def mixture(x, y=None):
    """Two kinds of rows, which the model does not know. `x` counts them."""
    places = numpyro.sample("places", dist.Normal(jnp.array([-1.5, 1.5]), 0.3).to_event(1))
    share = numpyro.sample("share", dist.Beta(4.0, 4.0))
    with numpyro.plate("data", x.shape[0]):
        kind = numpyro.sample("kind", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(jnp.where(kind, places[1], places[0]), 0.7), obs=y)


def symmetric(x, y=None):
    """A mixture whose kinds may change places. `x` counts rows."""
    places = numpyro.sample("places", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    with numpyro.plate("data", x.shape[0]):
        kind = numpyro.sample("kind", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(places[kind], 0.7), obs=y)


def heavy_tailed(x, y=None):
    """`linear_regression`, with the scaled noise of a Student t with 3 degrees of freedom."""
    weights, intercept, noise = _linear(x)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.StudentT(3.0, x @ weights + intercept, noise), obs=y)


def overdispersed(x, y=None):
    """`poisson_regression`, with 1.5 times its variance."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    mean = jnp.exp(x @ weights + numpyro.sample("intercept", dist.Normal(0.0, 1.0)))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(mean, 2.0 * mean), obs=y)


def cauchit(x, y=None):
    """`logistic_regression.gaussian`, with another link."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(0.5 + jnp.arctan(3.0 * (x @ weights + intercept)) / jnp.pi), obs=y)


def squared(x, y=None):
    """`linear_regression`, with the square of the first column, .2 noise sds for a column one sd away."""
    weights, intercept, noise = _linear(x)
    column = x[:, 0] / jnp.std(x[:, 0])
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights + intercept + 0.2 * noise * (column**2 - 1.0), noise), obs=y)


def squared_logit(x, y=None):
    """`logistic_regression.gaussian`, with the square of the first column, half a logit for a column one sd away."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    square = (x[:, 0] / jnp.std(x[:, 0])) ** 2
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights + intercept + 0.5 * (square - 1.0)), obs=y)


def outliers(x, y=None):
    """`linear_regression`, with 20 times the noise in one row of 100."""
    weights, intercept, noise = _linear(x)
    with numpyro.plate("data", x.shape[0]):
        kind = numpyro.sample("kind", dist.Bernoulli(0.01))
        numpyro.sample("y", dist.Normal(x @ weights + intercept, jnp.where(kind, 20.0, 1.0) * noise), obs=y)


def weibull(x, y=None):
    """Times whose log is a linear predictor and noise of Gumbel's law."""
    weights, intercept, noise = _linear(x)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Weibull(jnp.exp(x @ weights + intercept), 1.0 / noise), obs=y)


def lognormal(x, y=None):
    """`weibull`, with normal noise of .4."""
    weights, intercept, _ = _linear(x)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.LogNormal(x @ weights + intercept, 0.4), obs=y)


def coded(x, y=None):
    """`logistic_regression.gaussian`, with responses coded -1 and 1."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.deterministic("y", 2 * numpyro.sample("kind", dist.Bernoulli(logits=x @ weights + intercept)) - 1)


def diabetes(x, y=None):
    """Responses of scikit-learn's diabetes, 25 to 346, in no units of a prior N(0, 1)."""
    from sklearn.datasets import load_diabetes

    numpyro.deterministic("y", load_diabetes().target.astype(np.float32))


def _diabetes_columns(rng, num_rows):
    from sklearn.datasets import load_diabetes

    x = load_diabetes().data
    return (x / x.std(axis=0) / np.sqrt(10.0)).astype(np.float32)


def _linear(x):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    return weights, numpyro.sample("intercept", dist.Normal(0.0, 1.0)), numpyro.sample("noise", dist.HalfNormal(1.0))


def _sizes(num_groups):
    """Group numbers; the first group has as many times the rows of the last as there are groups."""
    shares = np.arange(num_groups, 0, -1) / (num_groups * (num_groups + 1) / 2)
    return lambda rng, n: rng.choice(num_groups, n, p=shares).astype(np.int32)


MODELS = {
    "linear": (linear_regression, normal_covariates(3)),
    "poisson": (poisson_regression, normal_covariates(4)),
    "weibull": (weibull, normal_covariates(3)),
    "student_t": (student_t, normal_covariates(4)),
    "ordinal": (ordinal, normal_covariates(3)),
    "negative_binomial": (negative_binomial, normal_covariates(3)),
    "groups": (groups, _sizes(8)),
    "groups_50": (partial(groups, num_groups=50), _sizes(50)),
    "mixture": (mixture, lambda rng, n: np.zeros((n, 1), np.float32)),
    "symmetric": (symmetric, lambda rng, n: np.zeros((n, 1), np.float32)),
}
"""By name: a model, and covariates from a generator and a number of rows."""
WRONG = {
    "heavy_tailed": (linear_regression, normal_covariates(3), heavy_tailed),
    "overdispersed": (poisson_regression, normal_covariates(4), overdispersed),
    "cauchit": (gaussian, normal_covariates(3, 2.0), cauchit),
    "squared": (linear_regression, normal_covariates(3), squared),
    "squared_logit": (gaussian, normal_covariates(3, 2.0), squared_logit),
    "outliers": (linear_regression, normal_covariates(3), outliers),
    "lognormal": (weibull, normal_covariates(3), lognormal),
    "coded": (gaussian, normal_covariates(3, 2.0), coded),
    "diabetes": (linear_regression, _diabetes_columns, diabetes),
}
"""The same, and the model that the data are from."""
