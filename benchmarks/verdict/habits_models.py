"""Models as NumPyro's gallery, Stan's user guide and d3p's examples write them, each with simulated rows.

An entry is (source, model, arguments, cure). A cure is the same question for a model that dpppl takes, with its own arguments. It is
None where the model is expected to run as it is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam

N = 2_000
RNG = np.random.default_rng(0)


class Habit(NamedTuple):
    """A model with its arguments, where it comes from, and what to write instead where it is refused."""

    source: str
    model: Callable[..., Any]
    arguments: tuple[Any, ...]
    cure: tuple[Callable[..., Any], tuple[Any, ...]] | None = None


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def expit(v: Any) -> Any:
    return 1 / (1 + np.exp(-v))


def coin(p: Any) -> Any:
    return (RNG.random(np.shape(p)) < p).astype(np.float32)


def sample(name: str, law: Any, **rest: Any) -> Any:
    return numpyro.sample(name, law, **rest)


def rows(y: Any) -> Any:
    return numpyro.plate("data", y.shape[0])


def weights(size: int, name: str = "w", scale: float = 1.0) -> Any:
    return sample(name, dist.Normal(0, scale).expand([size]).to_event(1))


X3, X8 = normal(N, 3), normal(N, 8)
W3 = np.array([1.0, -0.5, 0.0], np.float32)
GROUP = RNG.integers(0, 8, N)
EFFECT = 0.5 * normal(8)
LINE = X3 @ W3


def regression(likelihood: Callable[..., Any], size: int = 3, prior: Any = None) -> Callable[..., Any]:
    """A model with linear predictor x @ w + b and a likelihood of it."""

    def model(x: Any, y: Any) -> None:
        w = weights(size) if prior is None else sample("w", prior.expand([size]).to_event(1))
        b = sample("b", dist.Normal(0, 2))
        law = likelihood()
        with rows(x):
            sample("y", law(x @ w + b), obs=y)

    return model


def noisy(law: Callable[..., Any], prior: Any = None) -> Callable[..., Any]:
    """A likelihood with an unknown scale."""

    def likelihood() -> Any:
        s = sample("sigma", dist.HalfNormal(1.0) if prior is None else prior)
        return lambda v: law(v, s)

    return likelihood


def fixed(law: Callable[..., Any]) -> Callable[..., Any]:
    return lambda: law


def hierarchical(centred: bool, law: Callable[..., Any]) -> Callable[..., Any]:
    def model(group: Any, y: Any, num_groups: int = 8) -> None:
        mu, tau = sample("mu", dist.Normal(0, 1)), sample("tau", dist.HalfNormal(1))
        with numpyro.plate("groups", num_groups):
            if centred:
                theta = sample("theta", dist.Normal(mu, tau))
            else:
                theta = numpyro.deterministic("theta", mu + tau * sample("raw", dist.Normal(0, 1)))
        with rows(y):
            sample("y", law(theta[group]), obs=y)

    return model


def slopes(group: Any, x: Any, y: Any, num_groups: int = 8) -> None:
    a, b = sample("a", dist.Normal(0, 1)), sample("b", dist.Normal(0, 1))
    ta, tb = sample("ta", dist.HalfNormal(1)), sample("tb", dist.HalfNormal(1))
    with numpyro.plate("groups", num_groups):
        za, zb = sample("za", dist.Normal(0, 1)), sample("zb", dist.Normal(0, 1))
    ga, gb = numpyro.deterministic("ga", a + ta * za), numpyro.deterministic("gb", b + tb * zb)
    with rows(y):
        sample("y", dist.Normal(ga[group] + gb[group] * x, 0.5), obs=y)


def horseshoe(x: Any, y: Any) -> None:
    tau = sample("tau", dist.HalfCauchy(1))
    lam = sample("lam", dist.HalfCauchy(1).expand([8]).to_event(1))
    w = numpyro.deterministic("w", weights(8, "z") * lam * tau)
    with rows(x):
        sample("y", dist.Normal(x @ w, 1.0), obs=y)


def one_way(name: str, prior: Any, law: Callable[..., Any]) -> Callable[..., Any]:
    def model(y: Any) -> None:
        value = sample(name, prior)
        with rows(y):
            sample("y", law(value), obs=y)

    return model


def two_parameters(law: Callable[..., Any], first: Any, second: Any) -> Callable[..., Any]:
    def model(y: Any) -> None:
        a, b = sample("a", first), sample("b", second)
        with rows(y):
            sample("y", law(a, b), obs=y)

    return model


def softmax(x: Any, y: Any) -> None:
    w = sample("w", dist.Normal(0, 1).expand([3, 3]).to_event(2))
    with rows(x):
        sample("y", dist.Categorical(logits=x @ w), obs=y)


def ordered(x: Any, y: Any) -> None:
    w = weights(3)
    cuts = sample(
        "cuts", dist.TransformedDistribution(dist.Normal(0, 1).expand([3]), dist.transforms.OrderedTransform())
    )
    with rows(x):
        sample("y", dist.OrderedLogistic(x @ w, cuts), obs=y)


def mixture(y: Any) -> None:
    share = sample("share", dist.Beta(2, 2))
    m = sample("m", dist.TransformedDistribution(dist.Normal(0, 2).expand([2]), dist.transforms.OrderedTransform()))
    with rows(y):
        mixing = dist.Categorical(probs=jnp.stack([share, 1 - share]))
        sample("y", dist.MixtureSameFamily(mixing, dist.Normal(m, 1.0)), obs=y)


def enumerated_mixture(y: Any) -> None:
    m = sample("m", dist.Normal(0, 2).expand([2]).to_event(1))
    with rows(y):
        k = sample("k", dist.Categorical(probs=jnp.ones(2) / 2), infer={"enumerate": "parallel"})
        sample("y", dist.Normal(m[k], 1.0), obs=y)


def zero_inflated(x: Any, y: Any) -> None:
    w, gate = weights(3), sample("gate", dist.Beta(1, 1))
    with rows(x):
        sample("y", dist.ZeroInflatedPoisson(gate, jnp.exp(x @ w)), obs=y)


def binomial(x: Any, total: Any, y: Any) -> None:
    w = weights(3)
    with rows(x):
        sample("y", dist.Binomial(total, logits=x @ w), obs=y)


def heteroscedastic(x: Any, y: Any) -> None:
    w, v = weights(3), weights(3, "v", 0.5)
    with rows(x):
        sample("y", dist.Normal(x @ w, jnp.exp(0.5 * x @ v)), obs=y)


def network(x: Any, y: Any) -> None:
    a = sample("a", dist.Normal(0, 1).expand([3, 5]).to_event(2))
    b = weights(5, "b")
    with rows(x):
        sample("y", dist.Normal(jnp.tanh(x @ a) @ b, 0.5), obs=y)


def multivariate(y: Any) -> None:
    mean = weights(2, "mean")
    sd = sample("sd", dist.HalfNormal(1).expand([2]).to_event(1))
    corr = sample("corr", dist.LKJCholesky(2, 2.0))
    with rows(y):
        sample("y", dist.MultivariateNormal(mean, scale_tril=sd[:, None] * corr), obs=y)


def basis(x: Any, y: Any) -> None:
    w = weights(6)
    with rows(x):
        features = jnp.stack([jnp.sin((k + 1) * x) for k in range(6)], -1)
        sample("y", dist.Normal(features @ w, 0.5), obs=y)


def change_point(t: Any, y: Any) -> None:
    at, before, after = (
        sample("at", dist.Uniform(0, 1)),
        sample("before", dist.Normal()),
        sample("after", dist.Normal()),
    )
    with rows(y):
        sample("y", dist.Normal(jnp.where(t < at, before, after), 0.5), obs=y)


def smooth_change(t: Any, y: Any) -> None:
    at, before, after = (
        sample("at", dist.Uniform(0, 1)),
        sample("before", dist.Normal()),
        sample("after", dist.Normal()),
    )
    with rows(y):
        sample("y", dist.Normal(before + (after - before) * jax.nn.sigmoid((t - at) / 0.05), 0.5), obs=y)


def item_response(person: Any, item: Any, y: Any, num_persons: int = 100, num_items: int = 10) -> None:
    ability = weights(num_persons, "ability")
    difficulty = weights(num_items, "difficulty")
    with rows(y):
        sample("y", dist.Bernoulli(logits=ability[person] - difficulty[item]), obs=y)


def dawid_skene(label: Any, num_classes: int = 2) -> None:
    prevalence, right = sample("prevalence", dist.Beta(2, 2)), sample("right", dist.Beta(8, 2).expand([4]).to_event(1))
    with rows(label):
        truth = sample("truth", dist.Bernoulli(prevalence), infer={"enumerate": "parallel"})
        p = jnp.where(truth[..., None] == 1, right, 1 - right)
        sample("label", dist.Bernoulli(probs=p).to_event(1), obs=label)


def no_plate(x: Any, y: Any) -> None:
    w = weights(3)
    sample("y", dist.Normal(x @ w, 1.0), obs=y)


def plated(x: Any, y: Any) -> None:
    w = weights(3)
    with rows(x):
        sample("y", dist.Normal(x @ w, 1.0), obs=y)


def standardised(x: Any, y: Any) -> None:
    w = weights(3)
    with rows(x):
        sample("y", dist.Normal((x - x.mean(0)) / x.std(0) @ w, 1.0), obs=y)


def counted_groups(group: Any, y: Any) -> None:
    theta = weights(int(group.max()) + 1, "theta")
    with rows(y):
        sample("y", dist.Normal(theta[group], 1.0), obs=y)


def declared_groups(group: Any, y: Any, num_groups: int = 8) -> None:
    theta = weights(num_groups, "theta")
    with rows(y):
        sample("y", dist.Normal(theta[group], 1.0), obs=y)


def random_walk(y: Any) -> None:
    s = sample("s", dist.HalfNormal(1))
    with numpyro.plate("data", y.shape[0] - 1):
        sample("y", dist.Normal(y[:-1], s), obs=y[1:])


def walks(y: Any) -> None:
    s = sample("s", dist.HalfNormal(1))
    with rows(y):
        sample("y", dist.Normal(jnp.zeros(5), s).to_event(1), obs=jnp.diff(y, axis=1))


def measurement_error(y: Any) -> None:
    mean = sample("mean", dist.Normal())
    with rows(y):
        true = sample("true", dist.Normal(mean, 1.0))
        sample("y", dist.Normal(true, 0.5), obs=y)


def integrated_error(y: Any) -> None:
    mean = sample("mean", dist.Normal())
    with rows(y):
        sample("y", dist.Normal(mean, 1.25**0.5), obs=y)


def factor_model(y: Any) -> None:
    mean = sample("mean", dist.Normal())
    with rows(y):
        numpyro.factor("likelihood", -0.5 * (y - mean) ** 2)


def gaussian_process(x: Any, y: Any) -> None:
    length = sample("length", dist.LogNormal(0, 1))
    kernel = jnp.exp(-0.5 * ((x[:, None] - x[None]) / length) ** 2) + 0.1 * jnp.eye(x.shape[0])
    sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), kernel), obs=y)


def flat_prior(x: Any, y: Any) -> None:
    w = sample("w", dist.ImproperUniform(dist.constraints.real_vector, (), event_shape=(3,)))
    with rows(x):
        sample("y", dist.Normal(x @ w, 1.0), obs=y)


def subsampled(x: Any, y: Any, batch: int = 100) -> None:
    w = weights(3)
    with numpyro.plate("data", x.shape[0], subsample_size=batch):
        xb, yb = numpyro.subsample(x, 1), numpyro.subsample(y, 0)
        sample("y", dist.Normal(xb @ w, 1.0), obs=yb)


def masked(x: Any, y: Any, ok: Any) -> None:
    w = weights(3)
    with rows(x), handlers.mask(mask=ok):
        sample("y", dist.Normal(x @ w, 1.0), obs=y)


def imputed(x: Any, y: Any) -> None:
    w, m = sample("w", dist.Normal()), sample("m", dist.Normal())
    missing = jnp.isnan(x)
    with rows(x):
        filled = jnp.where(missing, sample("filled", dist.Normal(m, 1.0).mask(missing)), x)
        sample("x", dist.Normal(m, 1.0).mask(~missing), obs=jnp.where(missing, 0.0, x))
        sample("y", dist.Normal(w * filled, 1.0), obs=y)


def incomplete(x: Any, ok: Any, y: Any) -> None:
    w, m = sample("w", dist.Normal()), sample("m", dist.Normal())
    with rows(x):
        x = sample("x", dist.Normal(m, 1.0), obs=x, obs_mask=ok)
        sample("y", dist.Normal(w * x, 1.0), obs=y)


def changed() -> tuple[Any, Any]:
    """Times, and values that change at .4, with generators of their own."""
    rng = np.random.default_rng(2)
    t = rng.random(N).astype(np.float32)
    return t, (np.where(t < 0.4, -0.5, 0.8) + 0.5 * rng.standard_normal(N)).astype(np.float32)


REAL, POSITIVE = LINE + 0.7 * normal(N), np.exp(0.3 * normal(N))
COUNT, FEW = RNG.poisson(np.exp(0.5 * LINE)).astype(np.int32), RNG.poisson(2.0, N).astype(np.int32)
YES, GROUPED = coin(expit(LINE)), EFFECT[GROUP] + normal(N)
SERIES = normal(N, 6).cumsum(axis=1)
HOLES = np.where(RNG.random(N) < 0.1, np.nan, X3[:, 0]).astype(np.float32)
TWO = np.where(RNG.random(N) < 0.4, -2.0, 2.0).astype(np.float32) + normal(N)
HALF, UNIT = dist.HalfNormal(1.0), dist.Normal(0, 1)
logistic = regression(fixed(lambda v: dist.Bernoulli(logits=v)))
linear = regression(noisy(dist.Normal))
weibull = regression(noisy(lambda v, s: dist.Weibull(jnp.exp(v), 1 / s)))

HABITS: dict[str, Habit] = {
    "linear regression": Habit("Stan", linear, (X3, REAL)),
    "logistic regression": Habit("Stan", logistic, (X3, YES)),
    "probit regression": Habit("Stan", regression(fixed(lambda v: dist.Bernoulli(dist.Normal().cdf(v)))), (X3, YES)),
    "robust regression": Habit("Stan", regression(noisy(lambda v, s: dist.StudentT(4.0, v, s))), (X3, REAL)),
    "Laplace errors": Habit("Stan", regression(noisy(dist.Laplace)), (X3, REAL)),
    "logistic errors": Habit("Stan", regression(noisy(dist.Logistic)), (X3, REAL)),
    "lognormal regression": Habit("Stan", regression(noisy(dist.LogNormal)), (X3, np.exp(0.3 * REAL))),
    "Poisson regression": Habit("Stan", regression(fixed(lambda v: dist.Poisson(jnp.exp(v)))), (X3, COUNT)),
    "negative binomial": Habit("Stan", regression(noisy(lambda v, s: dist.NegativeBinomial2(jnp.exp(v), 1 / s))), (X3, COUNT)),
    "gamma regression": Habit("Stan", regression(noisy(lambda v, s: dist.Gamma(1 / s, jnp.exp(-v) / s))), (X3, POSITIVE)),
    "beta regression": Habit("NumPyro", regression(fixed(lambda v: dist.BetaProportion(1 / (1 + jnp.exp(-v)), 5.0))), (X3, RNG.beta(2, 3, N).astype(np.float32))),
    "Weibull regression": Habit("NumPyro", weibull, (X3, np.random.default_rng(1).weibull(2.0, N).astype(np.float32))),
    "Weibull, wrong: log-normal data": Habit("NumPyro", weibull, (X3, POSITIVE)),
    "geometric regression": Habit("NumPyro", regression(fixed(lambda v: dist.GeometricLogits(v))), (X3, COUNT)),
    "ridge prior": Habit("Stan", regression(noisy(dist.Normal), 8, dist.Normal(0, 0.3)), (X8, X8[:, 0] + normal(N))),
    "lasso prior": Habit("d3p", regression(noisy(dist.Normal), 8, dist.Laplace(0, 0.3)), (X8, X8[:, 0] + normal(N))),
    "Student prior": Habit("Stan", regression(fixed(lambda v: dist.Bernoulli(logits=v)), 3, dist.StudentT(3, 0, 1)), (X3, YES)),
    "Cauchy prior": Habit("Stan", regression(fixed(lambda v: dist.Bernoulli(logits=v)), 3, dist.Cauchy(0, 1)), (X3, YES)),
    "uniform prior of a scale": Habit("Stan", regression(noisy(dist.Normal, dist.Uniform(0, 10))), (X3, REAL)),
    "inverse gamma scale": Habit("Stan", regression(noisy(dist.Normal, dist.InverseGamma(2, 1))), (X3, REAL)),
    "half-Cauchy scale": Habit("Stan", regression(noisy(dist.Normal, dist.HalfCauchy(1))), (X3, REAL)),
    "horseshoe": Habit("NumPyro", horseshoe, (X8, X8[:, 0] + normal(N))),
    "softmax regression": Habit("Stan", softmax, (X3, RNG.integers(0, 3, N))),
    "ordered logistic": Habit("NumPyro", ordered, (X3, np.digitize(LINE + RNG.logistic(size=N), [-1, 0, 1]))),
    "binomial regression": Habit("NumPyro", binomial, (X3, np.full(N, 5), RNG.binomial(5, expit(LINE)))),
    "zero-inflated Poisson": Habit("NumPyro", zero_inflated, (X3, COUNT * (RNG.random(N) < 0.7))),
    "heteroscedastic": Habit("NumPyro", heteroscedastic, (X3, REAL)),
    "neural network": Habit("NumPyro", network, (X3, REAL)),
    "basis expansion": Habit("NumPyro", basis, (X3[:, 0], np.sin(X3[:, 0]) + 0.5 * normal(N))),
    "change point": Habit("Stan", change_point, (RNG.random(N).astype(np.float32), normal(N)), (smooth_change, changed())),
    "centred groups": Habit("Stan", hierarchical(True, lambda v: dist.Normal(v, 1.0)), (GROUP, GROUPED)),
    "non-centred groups": Habit("Stan", hierarchical(False, lambda v: dist.Normal(v, 1.0)), (GROUP, GROUPED)),
    "reparametrised groups": Habit("NumPyro", handlers.reparam(hierarchical(True, lambda v: dist.Normal(v, 1.0)), {"theta": LocScaleReparam(0)}), (GROUP, GROUPED)),
    "logistic groups": Habit("Stan", hierarchical(False, lambda v: dist.Bernoulli(logits=v)), (GROUP, coin(expit(EFFECT[GROUP])))),
    "Poisson groups": Habit("Stan", hierarchical(False, lambda v: dist.Poisson(jnp.exp(v))), (GROUP, RNG.poisson(np.exp(EFFECT[GROUP])).astype(np.int32))),
    "varying slopes": Habit("Stan", slopes, (GROUP, X3[:, 0], GROUPED)),
    "item response": Habit("Stan", item_response, (RNG.integers(0, 100, N), RNG.integers(0, 10, N), YES)),
    "Bernoulli": Habit("d3p", one_way("p", dist.Beta(1, 1), dist.Bernoulli), (coin(np.full(N, 0.3)),)),
    "normal mean": Habit("d3p", one_way("m", UNIT, lambda m: dist.Normal(m, 1.0)), (0.4 + normal(N),)),
    "Poisson rate": Habit("Stan", one_way("rate", dist.Gamma(2, 1), dist.Poisson), (FEW,)),
    "exponential rate": Habit("Stan", one_way("rate", dist.Gamma(2, 1), dist.Exponential), (POSITIVE,)),
    "geometric": Habit("NumPyro", one_way("p", dist.Beta(1, 1), dist.GeometricProbs), (FEW,)),
    "categorical": Habit("Stan", one_way("p", dist.Dirichlet(jnp.ones(4)), dist.Categorical), (RNG.integers(0, 4, N),)),
    "normal, both unknown": Habit("Stan", two_parameters(dist.Normal, UNIT, HALF), (0.4 + normal(N),)),
    "gamma, both unknown": Habit("Stan", two_parameters(dist.Gamma, dist.LogNormal(0, 1), dist.LogNormal(0, 1)), (POSITIVE,)),
    "beta, both unknown": Habit("Stan", two_parameters(dist.Beta, dist.LogNormal(0, 1), dist.LogNormal(0, 1)), (RNG.beta(2, 3, N).astype(np.float32),)),
    "Gumbel": Habit("Stan", two_parameters(dist.Gumbel, UNIT, HALF), (RNG.gumbel(size=N).astype(np.float32),)),
    "von Mises": Habit("NumPyro", two_parameters(dist.VonMises, UNIT, dist.HalfNormal(3.0)), (RNG.vonmises(0.3, 2.0, N).astype(np.float32),)),
    "mixture, ordered": Habit("Stan", mixture, (TWO,)),
    "mixture, enumerated": Habit("NumPyro", enumerated_mixture, (TWO,)),
    "annotators": Habit("NumPyro", dawid_skene, (coin(np.where(coin(np.full(N, 0.4))[:, None] == 1, 0.8, 0.2) * np.ones((N, 4))),)),
    "multivariate normal": Habit("Stan", multivariate, (normal(N, 2),)),
    "masked rows": Habit("NumPyro", masked, (X3, REAL, RNG.random(N) < 0.9)),
    "subsampled plate": Habit("NumPyro", subsampled, (X3, REAL)),
    "no plate": Habit("Stan", no_plate, (X3, REAL), (plated, (X3, REAL))),
    "standardised in the model": Habit("Stan", standardised, (X3, REAL), (plated, (X3, REAL))),
    "size from the data": Habit("NumPyro", counted_groups, (GROUP, GROUPED), (declared_groups, (GROUP, GROUPED))),
    "random walk": Habit("Stan", random_walk, (SERIES[0],), (walks, (SERIES,))),
    "measurement error": Habit("Stan", measurement_error, (normal(N),), (integrated_error, (normal(N),))),
    "target += in the plate": Habit("Stan", factor_model, (normal(N),), (one_way("mean", UNIT, lambda m: dist.Normal(m, 1.0)), (normal(N),))),
    "Gaussian process": Habit("NumPyro", gaussian_process, (X3[:50, 0], REAL[:50]), (basis, (X3[:, 0], REAL))),
    "improper prior": Habit("Stan", flat_prior, (X3, REAL), (plated, (X3, REAL))),
    "imputed covariate": Habit("NumPyro", imputed, (HOLES, REAL), (incomplete, (np.nan_to_num(HOLES), ~np.isnan(HOLES), REAL))),
}  # fmt: skip
