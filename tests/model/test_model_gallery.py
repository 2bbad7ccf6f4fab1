"""NumPyro's gallery at tiny size: each example splits as NumPyro computes it, or is refused with the true cause and cure."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.contrib.funsor import enum
from numpyro.contrib.hsgp.approximation import hsgp_squared_exponential
from numpyro.infer.util import potential_energy
from small_models import seen

from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.model.arguments import Public
from dpppl.model.split import split_model

N, T = 7, 5
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def integers(high, *shape):
    return RNG.integers(0, high, shape)


def draw(name, distribution=None):
    return numpyro.sample(name, dist.Normal(0.0, 1.0) if distribution is None else distribution)


def rows(array, **kwargs):
    return numpyro.plate("data", array.shape[0], **kwargs)


# Models that split


def baseball(at_bats, hits):
    phi = draw("phi", dist.Uniform(0.0, 1.0))
    seen(hits, dist.Binomial(at_bats, probs=phi), "obs")


def ucbadmit(department, male, applications, admitted, num_departments):
    mean = draw("mean", dist.Normal(0.0, jnp.array([4.0, 1.0])))
    scale = draw("scale", dist.HalfNormal(jnp.ones(2)))
    root = scale[:, None] * draw("correlation", dist.LKJCholesky(2, concentration=2.0))
    effects = mean + draw("z", dist.Normal(jnp.zeros((num_departments, 2)), 1.0)) @ root.T
    with rows(department):
        logits = effects[department, 0] + effects[department, 1] * male
        numpyro.sample("admit", dist.Binomial(applications, logits=logits), obs=admitted)


def bnn(x, y, hidden=3):
    w1 = draw("w1", dist.Normal(jnp.zeros((x.shape[1], hidden)), 1.0))
    w2 = draw("w2", dist.Normal(jnp.zeros((hidden, 1)), 1.0))
    precision = draw("precision", dist.Gamma(3.0, 1.0))
    seen(y, dist.Normal(jnp.tanh(x @ w1) @ w2, precision**-0.5).to_event(1))


def hilbert_space_gp(x, y):
    amplitude, length = draw("amplitude", dist.LogNormal(0.0, 1.0)), draw("length", dist.LogNormal(0.0, 1.0))
    values = hsgp_squared_exponential(x=x, alpha=amplitude, length=length, ell=2.0, m=4)
    seen(y, dist.Normal(values, 0.5))


def zero_inflated(x, y):
    gate, rate = x @ draw("b1", dist.Normal(jnp.zeros(2), 1.0)), x @ draw("b2", dist.Normal(jnp.zeros(2), 1.0))
    seen(y, dist.ZeroInflatedPoisson(jax.nn.sigmoid(gate), jnp.exp(rate)))


def annotators(positions, annotations, num_annotators=3, classes=2):
    with numpyro.plate("annotator", num_annotators, dim=-2), numpyro.plate("class", classes):
        beta = draw("beta", dist.Dirichlet(jnp.ones(classes)))
    pi = draw("pi", dist.Dirichlet(jnp.ones(classes)))
    with numpyro.plate("item", annotations.shape[0], dim=-2):
        kind = numpyro.sample("kind", dist.Categorical(pi), infer={"enumerate": "parallel"})
        with numpyro.plate("position", annotations.shape[1]):
            numpyro.sample("y", dist.Categorical(beta[positions, kind, :]), obs=annotations)


def missing_labels(a, b, missing, c):
    p = draw("p", dist.Beta(jnp.ones(2), 1.0).to_event(1))
    loc = draw("loc", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with rows(a):
        made_up = numpyro.sample("b", dist.Bernoulli(p[a]), infer={"enumerate": "parallel"})
        numpyro.sample("c", dist.Normal(loc[jnp.where(missing, made_up, b)], 1.0), obs=c)


def survival(time, event, x):
    rate, shape = jnp.exp(draw("w") * x), draw("shape", dist.LogNormal(0.0, 1.0))
    with rows(time):
        lifetime = dist.Weibull(rate, shape)
        numpyro.factor("y", jnp.where(event, lifetime.log_prob(time), jnp.log1p(-lifetime.cdf(time))))


def autoregressions(y):
    a, b, scale = draw("a"), draw("b"), draw("scale", dist.HalfNormal(1.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(a * y[:, 1:-1] + b * y[:, :-2], scale).to_event(1), obs=y[:, 2:])


def autoregressions_in_plates(y):
    a, scale = draw("a"), draw("scale", dist.HalfNormal(1.0))
    with rows(y, dim=-2), numpyro.plate("time", y.shape[1] - 1):
        numpyro.sample("y", dist.Normal(a * y[:, :-1], scale), obs=y[:, 1:])


def random_walks(y):
    scale = draw("scale", dist.HalfNormal(1.0))
    seen(y, dist.GaussianRandomWalk(scale, num_steps=y.shape[1]))


def hidden_states(y, states=2):
    transition = draw("transition", dist.Dirichlet(jnp.ones((states, states))).to_event(1))
    loc = draw("loc", dist.Normal(jnp.zeros(states), 1.0).to_event(1))

    def forward(sequence):
        def step(alpha, value):
            seen = dist.Normal(loc, 1.0).log_prob(value)
            return jax.nn.logsumexp(alpha[:, None] + jnp.log(transition), axis=0) + seen, None

        return jax.nn.logsumexp(lax.scan(step, jnp.zeros(states), sequence)[0])

    with rows(y):
        numpyro.factor("y", jax.vmap(forward)(y))


SPLIT = [
    (baseball, (np.full(N, 9), integers(9, N)), None),
    (ucbadmit, (integers(3, N), integers(2, N), np.full(N, 9), integers(9, N), 3), None),
    (bnn, (normal(N, 2), normal(N, 1)), None),
    (hilbert_space_gp, (normal(N, 1), normal(N)), None),
    (zero_inflated, (normal(N, 2), integers(4, N)), None),
    (annotators, (Public(np.array([0, 1, 1, 2])), integers(2, N, 4)), -3),
    (missing_labels, (integers(2, N), integers(2, N), integers(2, N).astype(bool), normal(N)), -2),
    (survival, (np.abs(normal(N)) + 0.1, integers(2, N).astype(bool), normal(N)), None),
    (autoregressions, (normal(N, T),), None),
    (autoregressions_in_plates, (normal(N, T),), None),
    (random_walks, (normal(N, T),), None),
    (hidden_states, (normal(N, T),), None),
]


@pytest.mark.quick_cases(2)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("model, args, enumerated", SPLIT, ids=[entry[0].__name__ for entry in SPLIT])
def test_it_splits_into_what_numpyro_computes(model, args, enumerated):
    split = split_model(model, args, {})
    arrays, public = split.arrays(args, {})
    z = {name: jnp.asarray(0.3 * RNG.standard_normal(s.shape), s.dtype) for name, s in split.latents.items()}

    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def both(z, arrays, public):
        ours = split.log_prior(z, public)
        ours += jnp.sum(jax.vmap(lambda row: split.log_likelihood(z, row, public))(arrays))
        reference = model if enumerated is None else enum(model, first_available_dim=enumerated)
        plain, _ = split.arguments.join(arrays, public)
        return ours, -potential_energy(reference, plain, {}, z, enum=enumerated is not None)

    ours, theirs = both(z, arrays, public)
    assert ours == pytest.approx(float(theirs), rel=2e-5)


def torsion_angles(angles, num_data, components=2):
    weights = draw("weights", dist.Dirichlet(jnp.ones(components)))
    with numpyro.plate("mixture", components):
        phi, psi = draw("phi", dist.VonMises(3.0, 2.0)), draw("psi", dist.VonMises(-1.5, 2.0))
        correlation = draw("correlation", dist.Beta(2.0, 10.0))
        skewness = draw("skewness", dist.Normal(0.0, 0.1).expand([2]).to_event(1))
    with numpyro.plate("data", num_data):
        kind = numpyro.sample("kind", dist.Categorical(weights), infer={"enumerate": "parallel"})
        sine = dist.SineBivariateVonMises(phi[kind], psi[kind], 5.0, 4.0, weighted_correlation=correlation[kind])
        numpyro.sample("angles", dist.SineSkewed(sine, jnp.tanh(skewness[kind]) / 3.0), obs=angles)


@pytest.mark.slow
def test_a_mixture_of_torsion_angles_splits():
    """Its density under NumPyro's enumeration takes ten seconds to compile, and is not compared."""
    assert split_model(torsion_angles, (normal(N, 2), N), {}).summed == (("kind", 2),)


# Models that are refused


def squared_exponential(x):
    return jnp.exp(-0.5 * (x[:, None] - x) ** 2) + 0.1 * jnp.eye(x.shape[0])


def gp(x, y):
    covariance = draw("variance", dist.LogNormal(0.0, 1.0)) * squared_exponential(x)
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), covariance), obs=y)


def latent_gp(x, y):
    values = draw("f", dist.MultivariateNormal(jnp.zeros(x.shape[0]), squared_exponential(x)))
    seen(y, dist.Bernoulli(logits=values))


def capture_recapture(history):
    phi, rho = draw("phi", dist.Uniform(0.0, 1.0)), draw("rho", dist.Uniform(0.0, 1.0))

    def transition(alive, seen):
        with rows(history):
            alive = numpyro.sample("alive", dist.Bernoulli(phi * alive), infer={"enumerate": "parallel"})
            numpyro.sample("seen", dist.Bernoulli(rho * alive), obs=seen)
        return alive, None

    scan(transition, jnp.ones(history.shape[0], int), history.T)


def ar2_by_numpyros_scan(y):
    a, b = draw("a"), draw("b")

    def transition(carry, _):
        value = numpyro.sample("y", dist.Normal(a * carry[0] + b * carry[1], 1.0))
        return (value, carry[0]), None

    with handlers.condition(data={"y": y[2:]}):
        scan(transition, (y[1], y[0]), jnp.arange(y.shape[0] - 2))


def ar2(y):
    numpyro.sample("y", dist.Normal(draw("a") * y[1:-1] + draw("b") * y[:-2], 1.0), obs=y[2:])


def ar2_in_a_plate(y):
    a, b = draw("a"), draw("b")
    with numpyro.plate("time", y.shape[0] - 2):
        numpyro.sample("y", dist.Normal(a * y[1:-1] + b * y[:-2], 1.0), obs=y[2:])


def ar2_by_lax_scan(y):
    a, b = draw("a"), draw("b")
    _, means = lax.scan(lambda carry, value: ((value, carry[0]), a * carry[0] + b * carry[1]), (y[1], y[0]), y[2:])
    with numpyro.plate("time", y.shape[0] - 2):
        numpyro.sample("y", dist.Normal(means, 1.0), obs=y[2:])


def ar1_of_all_rows(y):
    a = draw("a")
    _, means = lax.scan(lambda previous, value: (value, a * previous), 0.0, y)
    seen(y, means)


def ar1_of_declared_length(y, length):
    a = draw("a")
    with numpyro.plate("time", length - 1):
        numpyro.sample("y", dist.Normal(a * y[:-1], 1.0), obs=y[1:])


def stochastic_volatility(y):
    s = draw("s", dist.GaussianRandomWalk(draw("sigma", dist.Exponential(50.0)), num_steps=y.shape[0]))
    numpyro.sample("y", dist.StudentT(draw("nu", dist.Exponential(0.1)), 0.0, jnp.exp(s)), obs=y)


def stochastic_volatility_in_a_plate(y):
    s = draw("s", dist.GaussianRandomWalk(0.1, num_steps=y.shape[0]))
    seen(y, dist.Normal(0.0, jnp.exp(s)))


def stochastic_volatility_of_declared_length(y, length):
    s = draw("s", dist.GaussianRandomWalk(0.1, num_steps=length))
    with numpyro.plate("time", length):
        numpyro.sample("y", dist.Normal(0.0, jnp.exp(s)), obs=y)


def observed_random_walk(y):
    numpyro.sample("y", dist.GaussianRandomWalk(draw("s", dist.HalfNormal(1.0)), num_steps=y.shape[0]), obs=y)


def eight_schools(schools, y, scale):
    theta = draw("theta", dist.Normal(jnp.zeros(schools), 1.0))
    numpyro.sample("y", dist.Normal(draw("mu") + theta, scale), obs=y)


def regression(x, y, shape=(2,)):
    w = draw("w", dist.Normal(jnp.zeros(shape), 1.0).to_event(len(shape)))
    seen(y, dist.Bernoulli(logits=x @ w))


SERIES = "rows must be independent, and this is one series; pass many sequences as rows: arrays of shape (num_sequences"
REFUSED = [
    (gp, (normal(N), normal(N)), ["one MultivariateNormal of all rows together", "numpyro.contrib.hsgp"]),
    (latent_gp, (normal(N), integers(2, N)), ["'f' (MultivariateNormal) is one draw that ties", "numpyro.contrib.hsgp"]),
    (capture_recapture, (integers(2, N, T),), ["carry the recursion with jax.lax.scan", "numpyro.factor"]),
    (ar2_by_numpyros_scan, (normal(N),), ["If all data are one series, rows must be independent: pass many sequences"]),
    (ar2, (normal(N),), [f"site 'y' observes 5 of the 7 rows, each given others: {SERIES}"]),
    (ar2_in_a_plate, (normal(N),), [f"site 'y' observes 5 of the 7 rows, each given others: {SERIES}"]),
    (ar2_by_lax_scan, (normal(N),), [SERIES]),
    (ar1_of_all_rows, (normal(N),), ["the row before", "one time series are no rows: pass many sequences"]),
    (ar1_of_declared_length, (normal(N), N), ["plate 'time' of length 6, but the private arrays have 7", "pass many seq"]),
    (stochastic_volatility, (normal(N),), [f"site 's' (GaussianRandomWalk) is one draw that ties all rows together: {SERIES}"]),
    (stochastic_volatility_in_a_plate, (normal(N),), [SERIES]),
    (stochastic_volatility_of_declared_length, (normal(N), N), ["Site 's' has an axis as long as the data"]),
    (observed_random_walk, (normal(N),), [f"one GaussianRandomWalk of all rows together: {SERIES}"]),
    (eight_schools, (N, normal(N), normal(N)), ["site 'theta' is a latent of each row", "run dpppl.SVI"]),
    (regression, (normal(N, 2), integers(2, N), Public((2, 4))), ["the model fails on x float32[", "(7, 4)"]),
]  # fmt: skip


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("model, args, said", REFUSED, ids=[entry[0].__name__ for entry in REFUSED])
def test_it_is_refused_with_cause_and_cure(model, args, said):
    with pytest.raises((UnsupportedModelError, ConfigurationError)) as caught:
        split_model(model, args, {})
    assert [what for what in said if what not in str(caught.value)] == [], str(caught.value)


def test_rows_that_miss_a_value_are_imputed_by_svi():
    def model(age, missing, survived):
        mean, slope = draw("mean"), draw("slope")
        with rows(age):
            imputed = numpyro.sample("imputed", dist.Normal(mean, 1.0))
            with handlers.mask(mask=~missing):
                numpyro.sample("age", dist.Normal(mean, 1.0), obs=age)
            numpyro.sample("y", dist.Bernoulli(logits=slope * jnp.where(missing, imputed, age)), obs=survived)

    split = split_model(model, (normal(N), integers(2, N).astype(bool), integers(2, N)), {}, variational=True)
    assert split.local == ("imputed",) and set(split.latents) == {"mean", "slope"}
