"""Coordinates of NoiseAware: deterministic sites that stand between latents and the likelihood, found or named."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.reparam import LocScaleReparam

import dpppl
from dpppl.errors import ConfigurationError
from dpppl.likelihood.unnamed import cure_of
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from dpppl.noise_aware import mixture, posterior
from dpppl.row_statistics.coordinates import Coordinates

NUM_GROUPS, NUM_ROWS = 8, 2_000


def hyper():
    return numpyro.sample("mu", dist.Normal(0.0, 1.0)), numpyro.sample("tau", dist.HalfNormal(1.0))


def standard():
    return numpyro.sample("z", dist.Normal(0.0, 1.0).expand([NUM_GROUPS]).to_event(1))


def non_centred(group, y):
    mu, tau = hyper()
    scaled = numpyro.deterministic("scaled", tau * standard())  # would do, with mu: one coordinate more
    effects = numpyro.deterministic("effects", mu + scaled)
    numpyro.deterministic("count", jnp.argmax(effects))
    numpyro.deterministic("total", jnp.sum(y))
    with numpyro.plate("data", y.shape[0]):
        logits = numpyro.deterministic("logits", effects[group])
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def centred(group, y):
    mu, tau = hyper()
    with numpyro.plate("groups", NUM_GROUPS):
        effects = numpyro.sample("effects", dist.Normal(mu, tau))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=effects[group]), obs=y)


reparametrised = numpyro.handlers.reparam(centred, config={"effects": LocScaleReparam(0.0)})


def spread_out(group, y):
    """Both hyperparameters enter beside the effects."""
    mu, tau = hyper()
    effects = numpyro.deterministic("effects", mu + tau * standard())
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(effects[group] + mu, tau), obs=y)


def linear(group, y):
    """In the latents already: a normal prior is lost by replacing them."""
    effects = numpyro.deterministic("effects", 0.5 + 2.0 * standard())
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=effects[group]), obs=y)


def bounded(group, y):
    """Probabilities are no coordinates; neither are effects that sum to zero, of rank 7."""
    _, tau = hyper()
    z = standard()
    effects = numpyro.deterministic("effects", tau * (z - jnp.mean(z)))
    probs = numpyro.deterministic("probs", jax.nn.sigmoid(effects))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=probs[group]), obs=y)


def designed(design, group, y):
    """Effects by a Public matrix of contrasts."""
    _, tau = hyper()
    effects = numpyro.deterministic("effects", design @ (tau * standard()))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=effects[group]), obs=y)


def data():
    rng = np.random.default_rng(0)
    effects, group = 0.3 + 0.8 * rng.standard_normal(NUM_GROUPS), rng.integers(0, NUM_GROUPS, NUM_ROWS).astype(np.int32)
    return group, (rng.random(NUM_ROWS) < 1.0 / (1.0 + np.exp(-effects[group]))).astype(np.float32)


@functools.cache
def split_of(model):
    return split_model(model, data(), {})


def coordinates_of(model, named=None):
    return Coordinates.of(split_of(model), {}, named)


# What is found


@pytest.mark.parametrize(
    "model, sites, through",
    [
        (non_centred, {"effects"}, {"tau"}),
        (reparametrised, {"effects"}, {"tau"}),
        (centred, {"effects"}, {"mu", "tau"}),
        (spread_out, {"effects", "mu", "tau"}, set()),
        (linear, {"z"}, set()),
        (bounded, {"tau", "z"}, {"mu"}),
    ],
)
def test_deterministic_sites_are_found_where_they_replace_latents(model, sites, through):
    """`through`: latents that are known through coordinates only, or not at all."""
    found = coordinates_of(model)
    assert set(found.sites) == sites and set(found.through) == through
    assert found.dimension == len(found.names()) == sum(NUM_GROUPS if s in ("effects", "z") else 1 for s in sites)


def standards(*shape):
    return numpyro.sample("z", dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)))


def other():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    return scale, numpyro.sample("other", dist.Normal(0.0, 1.0).expand([2]).to_event(1))


MU, OTHER = "'mu' and 'tau' and 'z'", "'other' and 'scale'"
UNNAMED = {  # a row's mean, from mu, tau and its group, and the sites of which a value has no name
    "indexed after": (lambda mu, tau, g: (mu + tau * standard())[g], MU),
    "indexed before": (lambda mu, tau, g: mu + tau * standard()[g], MU),
    "taken": (lambda mu, tau, g: standard().take(g) * tau, "'tau' and 'z'"),
    "one-hot": (lambda mu, tau, g: jax.nn.one_hot(g, NUM_GROUPS) @ (mu + tau * standard()), MU),
    "another link": (lambda mu, tau, g: jnp.exp(mu + tau * standard())[g], MU),
    "slopes": (lambda mu, tau, g: ((mu + tau * standards(NUM_GROUPS, 2))[g] * jnp.stack([g, g + 1.0], 1)).sum(1), MU),
    "correlated slopes": (
        lambda mu, tau, g: (lambda both: both[g, 0] + both[g, 1])(mu + standards(NUM_GROUPS, 2) @ (tau * jnp.eye(2))),
        MU,
    ),
    "two indices": (lambda mu, tau, g: mu + tau * standards(NUM_GROUPS, 2)[g, g % 2], MU),
    "beside a slope": (lambda mu, tau, g: mu * g + tau * standard()[g], "'tau' and 'z'"),
    "a walk": (lambda mu, tau, g: mu + jnp.cumsum(tau * standard())[g], MU),
    "nested": (
        lambda mu, tau, g: (mu + jnp.multiply(*other())[jnp.arange(NUM_GROUPS) % 2] + tau * standard())[g],
        "'mu' and 'other' and 'scale' and 'tau' and 'z'",
    ),
    "coefficients": (lambda mu, tau, g: jnp.stack([g] * 3, 1) @ (tau * standards(3)), "'tau' and 'z'"),
    "two tables of one array": (
        lambda mu, tau, g: mu + tau * standard()[g] + jnp.multiply(*other())[g % 2],
        f"{MU}; {OTHER}",
    ),
    "named": (lambda mu, tau, g: numpyro.deterministic("effect", mu + tau * standard())[g], None),
    "one named": (
        lambda mu, tau, g: numpyro.deterministic("effect", mu + tau * standard())[g] + jnp.multiply(*other())[g % 2],
        OTHER,
    ),
    "sums": (lambda mu, tau, g: mu + standard()[g], None),
    "sums to zero": (lambda mu, tau, g: (lambda z: tau * (z - jnp.mean(z)))(standard())[g], None),
    "shared": (lambda mu, tau, g: (lambda z: mu * z[g] + jnp.exp(tau * z[g] + mu))(standard()), None),
    "beside itself": (lambda mu, tau, g: (lambda z: tau * z[g] + z[g] ** 2)(standard()), None),
    "contrasts of no full rank": (
        lambda mu, tau, g: (mu + tau * ((jnp.eye(NUM_GROUPS) - 1.0 / NUM_GROUPS) @ standard()))[g],
        None,
    ),
    "more values than latents": (
        lambda mu, tau, g: (mu + tau * jnp.outer(standard(), jnp.arange(2.0)))[g, g % 2],
        None,
    ),
    "single numbers": (lambda mu, tau, g: mu * g + tau, None),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_values_without_a_name_are_found_with_their_cure(name):
    mean, sites = UNNAMED[name]

    def model(group, y):
        mu, tau = hyper()
        center = mean(mu, tau, group)
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(center, 1.0), obs=y)

    split = split_model(model, data(), {})
    cure = cure_of(split, Coordinates.of(split).shapes)
    assert cure is None if sites is None else f"rows know sites {sites}: effect = numpyro.deterministic(" in cure


def test_public_arrays_decide_whether_sites_take_every_value():
    contrasts = np.eye(NUM_GROUPS, dtype=np.float32) - 1.0 / NUM_GROUPS  # of rank 7
    split = split_model(designed, (dpppl.Public(contrasts), *data()), {})
    assert Coordinates.of(split, {"design": 0.5 + np.eye(NUM_GROUPS)}).sites == ("effects",)
    assert Coordinates.of(split, {"design": contrasts}).sites == ("tau", "z")


def test_the_prior_of_coordinates_is_that_of_draws_pushed_through():
    """Effects have variance E[1 + tau^2] = 2 and covariance 1; 10,000 draws: standard errors are at most .05."""
    prior, is_normal = coordinates_of(non_centred).prior({}, jax.random.key(0))
    assert not is_normal
    np.testing.assert_allclose(prior.mean, 0.0, atol=0.08)
    covariance = prior.correlation * np.outer(prior.scales, prior.scales)
    np.testing.assert_allclose(covariance, 1.0 + np.eye(NUM_GROUPS), atol=0.25)


# What is computed there


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("model", [non_centred, reparametrised, spread_out])
def test_the_likelihood_at_coordinates_is_the_models_own(model):
    """At latents that give these coordinates; also responses, drawn or listed. Fails where sites are not replaced."""
    found = coordinates_of(model)
    split = found.split
    keys = jax.random.split(jax.random.key(0), len(split.latents))
    z = {site: jax.random.normal(key, s.shape) for key, (site, s) in zip(keys, split.latents.items())}
    held = found.latents(found.vector(z, {}))
    forgotten = {site: value for site, value in held.items() if site in split.latents}
    respond, rows = Responses.of(split), split.arrays(data(), {})[0]

    def of(row):
        at = lambda z: (split.log_likelihood(z, row, {}), respond(z, row, {}, jax.random.key(1)))  # noqa: E731
        return at(z), at(held), at(forgotten)

    found = jax.jit(jax.vmap(of))({name: value[:5] for name, value in rows.items()})
    own, replaced, wrong = (jax.tree.leaves(values) for values in found)
    for a, b in zip(own, replaced, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)
    likelihood, *responses = (not np.allclose(a, b, rtol=5e-4) for a, b in zip(own, wrong))
    assert likelihood and any(responses)


# Sites that are named


def test_sites_can_be_named():
    assert coordinates_of(non_centred, ("mu", "tau", "z")).sites == ("mu", "tau", "z")
    assert coordinates_of(non_centred, ("scaled", "mu")).sites == ("mu", "scaled")


@pytest.mark.parametrize(
    "model, named, message",
    [
        (non_centred, ("efects",), "'efects', which the model does not have; it could be .*'effects'"),
        (non_centred, ("logits",), "'logits' lies in the data plate.*name the latents"),
        (non_centred, ("y",), "'y' lies in the data plate"),
        (non_centred, ("total",), "'total' depends on rows.*compute it from latents"),
        (non_centred, ("count",), "'count' is neither a continuous latent nor"),
        (non_centred, ("scaled",), "depends on site 'mu', which coordinates .*leave out; name it too"),
        (non_centred, ("effects", "tau"), "does not depend on site 'tau'.*leave it out"),
        (bounded, ("probs",), "'probs' cannot be shown to take every real value.*unbounded site"),
        (bounded, ("effects",), "'effects' cannot be shown to take every real value"),
    ],
)
def test_sites_that_cannot_be_coordinates_are_refused_by_name(model, named, message):
    with pytest.raises(ConfigurationError, match=message):
        coordinates_of(model, named)


def test_a_run_that_is_refused_costs_nothing():
    found = dpppl.NoiseAware(non_centred, target_epsilon=1.0, target_delta=1e-5, coordinates="logits")
    with pytest.raises(ConfigurationError, match="'logits' lies in the data plate"):
        found.run(dpppl.secret_key(), *data())
    assert found.coordinates == ("logits",) and not found.budget.charged


# Whether it is right


def exact_moments():
    """Posterior means and sds of mu, tau and the effects, by sums over grids."""
    group, y = data()
    grid, mus, taus = np.linspace(-3.0, 3.0, 601), np.linspace(-2.5, 3.0, 111), np.linspace(0.02, 3.5, 117)
    likelihood, means = [], []
    density = np.exp(-0.5 * ((grid - mus[:, None, None]) / taus[:, None]) ** 2) / taus[:, None]  # (mu, tau, effect)
    joint = -0.5 * (mus[:, None] ** 2 + taus**2)
    for g in range(NUM_GROUPS):
        log = np.sum(y[group == g]) * grid - np.sum(group == g) * np.log1p(np.exp(grid))
        likelihood.append(np.exp(log - log.max()))
        means.append([density @ (likelihood[-1] * grid**power) for power in range(3)])
        joint = joint + np.log(means[-1][0])
    weights = np.exp(joint - joint.max())
    weights /= weights.sum()
    first = [np.sum(weights * mus[:, None]), np.sum(weights * taus)]
    first += [np.sum(weights * m[1] / m[0]) for m in means]
    second = [np.sum(weights * mus[:, None] ** 2), np.sum(weights * taus**2)]
    second += [np.sum(weights * m[2] / m[0]) for m in means]
    return np.array(first), np.sqrt(np.array(second) - np.array(first) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("least_share", [mixture._LEAST, 2.0], ids=["weights", "chains"])
def test_with_budget_to_spare_the_posterior_is_the_models_own(least_share, monkeypatch):
    """mu = 100: means within .2 sd, sds within 15 %; Monte Carlo errors are at most .04 sd and 4 %. NUTS draws where no weights
    can be trusted.

    The verdict says of a latent that enters no likelihood that it is the prior."""

    def with_another(group, y):
        numpyro.sample("another", dist.Gamma(2.0, 1.0))
        return non_centred(group, y)

    monkeypatch.setattr(mixture, "_LEAST", least_share)
    if least_share < 1.0:
        monkeypatch.setattr(posterior.Sampler, "_chain", "not needed")
    found = dpppl.NoiseAware(
        with_another, noise_multiplier=0.01, coordinates=("effects",), num_samples=2_000, print_cost=False
    )
    found.run(dpppl.secret_key(), *data())
    assert not found.verdict.refusals and set(found.verdict.learned) == {f"effects[{g}]" for g in range(NUM_GROUPS)}
    words = found.verdict.by_site
    assert list(words["another"]) == ["prior"] and list(words["mu"]) == ["learned"] and set(words["z"]) != {"prior"}
    samples = found.get_samples()
    assert {"another", "mu", "tau", "z", "scaled", "effects"} <= set(samples)
    np.testing.assert_allclose(
        samples["effects"], samples["mu"][:, None] + samples["tau"][:, None] * samples["z"], atol=1e-4
    )
    points = np.column_stack([samples["mu"], samples["tau"], samples["effects"]]).astype(np.float64)
    mean, sd = exact_moments()
    assert np.max(np.abs(points.mean(axis=0) - mean) / sd) < 0.2
    np.testing.assert_allclose(points.std(axis=0), sd, rtol=0.15)


def test_priors_without_a_variance_have_a_scale():
    """The same from three keys, within a tenth; a normal prior's is exact, a Laplace prior's hardly changed."""

    def model(y, law):
        mu = numpyro.sample("mu", law)
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    def variance(law, seed=0):
        coordinates = Coordinates.of(split_model(functools.partial(model, law=law), (np.zeros(10, np.float32),), {}))
        return coordinates.prior({}, jax.random.key(seed))[0].variance.item()

    found = np.array([variance(dist.Cauchy(0.0, 1.0), seed) for seed in range(3)])
    assert 10.0 < found.min() and found.max() < 1.1 * found.min()
    assert variance(dist.Laplace(0.0, 1.0)) == pytest.approx(2.0, rel=0.1)
    assert variance(dist.Normal(0.0, 3.0)) == pytest.approx(9.0, rel=1e-5)


SUPPORTS = {
    "correlation": lambda: dist.LKJCholesky(3, 2.0),
    "matrix": lambda: dist.LKJ(3, 2.0),
    "simplex": lambda: dist.Dirichlet(np.ones(3, np.float32)),
    "ordered": lambda: dist.TransformedDistribution(dist.Normal(0, 1).expand([3]), dist.transforms.OrderedTransform()),
    "zero sum": lambda: dist.ZeroSumNormal(1.0, (3,)),
    "circle": lambda: dist.VonMises(0.0, 1.0),
    "wishart": lambda: dist.WishartCholesky(4.0, np.eye(2, dtype=np.float32)),
    "wall": lambda: dist.TruncatedNormal(0.0, 1.0, low=-1.0),
}


@pytest.mark.parametrize(
    "support",
    [pytest.param(s, marks=[pytest.mark.slow] * (s not in ("ordered", "wall"))) for s in SUPPORTS],
)
def test_priors_on_every_kind_of_support_have_moments(support):
    """NumPyro's Cholesky transform mixes 64-bit and 32-bit numbers where 64 bits are on, and raised a TypeError of JAX's."""

    def model(y):
        value = numpyro.sample("value", SUPPORTS[support]())
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.ravel(value)[-1], 1.0), obs=y)

    prior, is_normal = Coordinates.of(split_model(model, (np.zeros(10, np.float32),), {})).prior({}, jax.random.key(0))
    assert np.all(np.isfinite(prior.variance)) and np.all(prior.variance > 0.0)
    assert is_normal == (support in ("ordered", "zero sum"))
