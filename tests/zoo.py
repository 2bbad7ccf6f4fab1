"""Ordinary NumPyro models of every supported kind, on tiny data: what splits, kernels and guides must handle."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import nnx
from numpyro import handlers
from numpyro.contrib.module import random_flax_module, random_nnx_module
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

from dpppl.model.arguments import Public
from models.gaussian_mixture import enumerated_gaussian_mixture
from models.hierarchical_logistic_regression import hierarchical_logistic_regression
from models.linear_regression import linear_regression
from models.logistic_regression import gaussian, laplace
from models.poisson_regression import poisson_regression
from models.zero_inflated_poisson import zero_inflated_poisson

N, D, J, G = 11, 3, 4, 5


@dataclass(frozen=True)
class ZooModel:
    """`model(*args, **kwargs)` with `args, kwargs = data(seed)`; NumPyro's own density needs `reference` overrides."""

    name: str
    model: Callable
    data: Callable[[int], tuple[tuple, dict]]
    reference: dict[str, Any] = field(default_factory=dict)
    enumerated: bool = False  # discrete latents of rows, which NumPyro sums out with funsor

    def plain(self, seed: int = 0) -> tuple[tuple, dict]:
        """The arguments for NumPyro: JAX arrays, without `Public`, without subsampling."""
        leaves, treedef = jax.tree.flatten(self.data(seed), is_leaf=lambda leaf: isinstance(leaf, Public))
        leaves = [leaf.value if isinstance(leaf, Public) else leaf for leaf in leaves]
        args, kwargs = jax.tree.map(
            lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf,
            jax.tree.unflatten(treedef, leaves),
        )
        return args, {**kwargs, **self.reference}

    def __repr__(self):
        return self.name


class _Data:
    """Columns of made-up data."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape):
        return self.rng.standard_normal((N, *shape)).astype(np.float32)

    def binary(self, *shape):
        return self.rng.integers(0, 2, (N, *shape)).astype(np.float32)

    def integers(self, high, *shape):
        return self.rng.integers(0, high, (N, *shape)).astype(np.int32)

    def positive(self, *shape):
        return self.rng.gamma(2.0, 1.0, (N, *shape)).astype(np.float32)


ZOO: list[ZooModel] = []


def _add(model, data, name=None, **reference):
    """Add `model` with `data(columns) -> args` or `-> (args, kwargs)`."""

    def arguments(seed):
        built = data(_Data(seed))
        return built if len(built) == 2 and isinstance(built[1], dict) else (built, {})

    ZOO.append(ZooModel(name or model.__name__, model, arguments, reference))


def _regression(d):
    return d.normal(D), d.binary()


def _weights(prior=None, size=D):
    prior = dist.Normal(0.0, 1.0) if prior is None else prior
    return numpyro.sample("w", prior.expand([size]).to_event(1))


_add(gaussian, _regression, "logistic_gaussian")
_add(laplace, _regression, "logistic_laplace")
_add(linear_regression, lambda d: (d.normal(D), d.normal()))
_add(poisson_regression, lambda d: (d.normal(D), d.integers(4)))
_add(
    hierarchical_logistic_regression,
    lambda d: ((d.normal(D), d.integers(G)), {"num_groups": G, "y": d.binary()}),
)


def subsample_idiom(x, y, batch_size=4):
    w = _weights()
    with numpyro.plate("data", x.shape[0], subsample_size=batch_size):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def index_idiom(x, y, batch_size=4):
    w = _weights()
    with numpyro.plate("data", y.shape[0], subsample_size=batch_size) as index:
        numpyro.sample("y", dist.Bernoulli(logits=x[index] @ w), obs=y[index])


def declared_size(x, y, num_data=1_000):
    """The caller passes a batch of a larger data set, scaled by its declared size."""
    w = _weights()
    with numpyro.plate("data", num_data, subsample_size=x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def subsample_declared(x, y, num_data, batch_size=4):
    w = _weights()
    with numpyro.plate("data", num_data, subsample_size=batch_size):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


_add(subsample_idiom, _regression, batch_size=None)
_add(subsample_declared, lambda d: (_regression(d), {"num_data": N}), batch_size=None)
_add(index_idiom, _regression, batch_size=None)
_add(declared_size, _regression, num_data=N)


def pytree_arguments(batch, *, settings):
    w = _weights(dist.Normal(0.0, settings["scale"]))
    with numpyro.plate("data", batch["inputs"][0].shape[0]):
        logits = batch["inputs"][0] @ w + batch["inputs"][1]
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=batch["y"])


_add(
    pytree_arguments,
    lambda d: (
        ({"inputs": (d.normal(D), d.normal()), "y": d.binary()},),
        {"settings": Public({"scale": 2.0, "tag": "any"})},
    ),
)


def public_arguments(x, scales, y):
    w = _weights(dist.Normal(scales["loc"], scales["scale"]))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


_add(
    public_arguments,
    lambda d: (d.normal(D), Public({"loc": np.linspace(0.0, 1.0, D), "scale": np.float32(2.0)}), d.binary()),
)


def double_precision(x, group, y, flag):
    w, a = _weights(), numpyro.sample("a", dist.Normal(0.0, 1.0).expand([G]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w + jnp.where(flag, a[group], 0.0))), obs=y)


_add(
    double_precision,
    lambda d: (
        d.normal(D).astype(np.float64),
        d.integers(G).astype(np.int64),
        d.integers(3).astype(np.int64),
        d.integers(2).astype(bool),
    ),
)


def beta_bernoulli(y):
    p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


def gamma_shape(y):
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    rate = numpyro.sample("rate", dist.Exponential(1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Gamma(shape, rate), obs=y)


def dirichlet_categorical(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(J)))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Categorical(probs=p), obs=y)


def correlated_outcomes(y):
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0).expand([D]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0).expand([D]).to_event(1))
    correlation = numpyro.sample("correlation", dist.LKJCholesky(D, 2.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.MultivariateNormal(loc, scale_tril=scale[:, None] * correlation), obs=y)


def ordinal_regression(x, y):
    w = _weights()
    cuts = numpyro.sample("cuts", dist.ImproperUniform(dist.constraints.ordered_vector, (), (J - 1,)))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(x @ w, cuts), obs=y)


def flat_priors(x, y):
    w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), (D,)))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).mask(False))
    scale = numpyro.sample("scale", dist.ImproperUniform(dist.constraints.positive, (), ()))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, x @ w + b, scale), obs=y)


_add(beta_bernoulli, lambda d: (d.binary(),))
_add(gamma_shape, lambda d: (d.positive(),))
_add(dirichlet_categorical, lambda d: (d.integers(J),))
_add(correlated_outcomes, lambda d: (d.normal(D),))
_add(ordinal_regression, lambda d: (d.normal(D), d.integers(J)))
_add(flat_priors, lambda d: (d.normal(D), d.normal()))


def centred_groups(y, group):
    mean, spread = numpyro.sample("mean", dist.Normal(0.0, 1.0)), numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", G):
        a = numpyro.sample("a", dist.Normal(mean, spread))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(a[group], 1.0), obs=y)


def loc_scale_reparam(y, group):
    with handlers.reparam(config={"a": LocScaleReparam(centered=0.0)}):
        centred_groups(y, group)


def transform_reparam(y, group):
    mean, spread = numpyro.sample("mean", dist.Normal(0.0, 1.0)), numpyro.sample("spread", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("groups", G), handlers.reparam(config={"a": TransformReparam()}):
        affine = dist.transforms.AffineTransform(mean, spread)
        a = numpyro.sample("a", dist.TransformedDistribution(dist.Normal(0.0, 1.0), affine))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(a[group], 1.0), obs=y)


_add(centred_groups, lambda d: (d.normal(), d.integers(G)))
_add(loc_scale_reparam, lambda d: (d.normal(), d.integers(G)))
_add(transform_reparam, lambda d: (d.normal(), d.integers(G)))


def horseshoe(x, y):
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    local = numpyro.sample("local", dist.HalfCauchy(jnp.ones(D)).to_event(1))
    w = numpyro.deterministic("effect", scale * local * numpyro.sample("w", dist.Normal(0.0, 1.0), sample_shape=(D,)))
    with numpyro.plate("data", x.shape[0]):
        score = numpyro.deterministic("score", x @ w)
        numpyro.sample("y", dist.Bernoulli(logits=score), obs=y)


def softmax_regression(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([D, J]).to_event(2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=x @ w), obs=y)


def binomial_counts(x, total, y):
    w = _weights()
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Binomial(total, logits=x @ w), obs=y)


def bounded_latents(y):
    low = numpyro.sample("low", dist.Uniform(-3.0, 0.0))
    power = numpyro.sample("power", dist.TruncatedNormal(1.0, 0.5, low=0.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(low + power, 1.0), obs=y)


def gaussian_mixture(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.full(2, 2.0)))
    loc = numpyro.sample("loc", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        components = dist.Normal(loc, 1.0)
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=p), components), obs=y)


_add(horseshoe, _regression)
_add(softmax_regression, lambda d: (d.normal(D), d.integers(J)))
_add(binomial_counts, lambda d: (d.normal(D), np.full(N, 5), d.integers(5)))
_add(bounded_latents, lambda d: (d.normal(),))
_add(gaussian_mixture, lambda d: (d.normal(),))


def several_observed(x, count, amount):
    w, v = _weights(), numpyro.sample("v", dist.Normal(0.0, 1.0).expand([D]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("count", dist.Poisson(jnp.exp(x @ w)), obs=count)
        numpyro.sample("amount", dist.Normal(x @ v, 1.0), obs=amount)


def plate_opened_twice(x, count, amount):
    w, v = _weights(), numpyro.sample("v", dist.Normal(0.0, 1.0).expand([D]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("count", dist.Poisson(jnp.exp(x @ w)), obs=count)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("amount", dist.Normal(x @ v, 1.0), obs=amount)


def plate_inside(y):
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0).expand([J]).to_event(1))
    with numpyro.plate("data", y.shape[0], dim=-2), numpyro.plate("items", J, dim=-1):
        numpyro.sample("y", dist.Normal(loc, 1.0), obs=y)


def plate_outside(y):
    with numpyro.plate("items", J, dim=-2):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", y.shape[0], dim=-1):
            numpyro.sample("y", dist.Normal(loc, 1.0), obs=y.T)


_add(several_observed, lambda d: (d.normal(D), d.integers(3), d.normal()))
_add(plate_opened_twice, lambda d: (d.normal(D), d.integers(3), d.normal()))
_add(plate_inside, lambda d: (d.normal(J),))
_add(plate_outside, lambda d: (d.normal(J),))


def scaled_and_masked(x, weight, y):
    with handlers.scale(scale=0.3):
        w = _weights()
        s = numpyro.sample("s", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        with handlers.scale(scale=weight):
            numpyro.sample("y", dist.Normal(x @ w, s), obs=y)
        with handlers.mask(mask=y > 0):
            numpyro.sample("twice", dist.Normal(x @ w, 2.0), obs=y)


def missing_values(x, observed, y):
    w = _weights()
    with numpyro.plate("data", x.shape[0]), handlers.mask(mask=observed):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def scaled_subsample(x, y, batch_size=4):
    w = _weights()
    with (
        handlers.scale(scale=2.0),
        numpyro.plate("data", x.shape[0], subsample_size=batch_size),
        handlers.scale(scale=0.3),
    ):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def factor_inside(x, y):
    w = _weights()
    with numpyro.plate("data", x.shape[0]):
        numpyro.factor("hinge", -jax.nn.relu(1.0 - (2.0 * y - 1.0) * (x @ w)))


def factor_outside(x, y):
    w = _weights()
    numpyro.factor("smoothness", -jnp.sum(jnp.diff(w) ** 2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


_add(scaled_and_masked, lambda d: (d.normal(D), d.positive(), d.normal()))
_add(missing_values, lambda d: (d.normal(D), d.binary().astype(bool), d.binary()))
_add(scaled_subsample, _regression, batch_size=None)
_add(factor_inside, _regression)
_add(factor_outside, _regression)


def scoped(x, y):
    with handlers.scope(prefix="first"):
        gaussian(x, y)


def sequences(y):
    """A first-order autoregression along each row, by an ordinary scan."""
    phi, s = numpyro.sample("phi", dist.Uniform(-1.0, 1.0)), numpyro.sample("s", dist.HalfNormal(1.0))
    _, means = jax.lax.scan(lambda previous, current: (phi * current, previous), jnp.zeros_like(y[:, 0] * phi), y.T)
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(means.T, s).to_event(1), obs=y)


_add(scoped, _regression)
_add(sequences, lambda d: (d.normal(J),))


class _Net(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x):
        return flax.linen.Dense(1)(jnp.tanh(flax.linen.Dense(4)(x)))[..., 0]


def flax_network(x, y):
    net = random_flax_module("net", _Net(), dist.Normal(0.0, 1.0), input_shape=(1, D))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=net(x)), obs=y)


def nnx_network(x, y):
    net = random_nnx_module("net", nnx.Linear(D, 1, rngs=nnx.Rngs(0)), dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=net(x)[..., 0]), obs=y)


_add(flax_network, _regression)
_add(nnx_network, _regression)


def chained_switches(x, y):
    """Two discrete latents of a row, the second depending on the first."""
    rate, shift = numpyro.sample("rate", dist.Beta(2.0, 3.0)), numpyro.sample("shift", dist.Normal(0.0, 1.0))
    probs = jnp.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    with numpyro.plate("data", x.shape[0]):
        first = numpyro.sample("first", dist.Bernoulli(rate), infer={"enumerate": "parallel"})
        second = numpyro.sample("second", dist.Categorical(probs[first]), infer={"enumerate": "parallel"})
        numpyro.deterministic("label", second)
        numpyro.sample("y", dist.Normal(shift * second + x[:, 0], 1.0), obs=y)


ZOO += [
    ZooModel("enumerated_gaussian_mixture", enumerated_gaussian_mixture, lambda seed: ((_Data(seed).normal(),), {}),
             enumerated=True),
    ZooModel("zero_inflated_poisson", zero_inflated_poisson,
             lambda seed: ((_Data(seed).normal(D), _Data(seed + 1).integers(4)), {}), enumerated=True),
    ZooModel("chained_switches", chained_switches,
             lambda seed: ((_Data(seed).normal(D), _Data(seed + 1).normal()), {}), enumerated=True),
]  # fmt: skip
