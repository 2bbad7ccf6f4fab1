"""SVI: its gradients are NumPyro's where nothing is clipped or noised, and its accounts are those of what ran."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.infer
import optax
import pytest
from numpyro.distributions import constraints
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from numpyro.infer.initialization import init_to_value
from patches import forget_keys
from scipy import stats
from zoo import ZOO

import dpppl
from dpppl.svi.binding import bind_objective
from dpppl.svi.elbo import ROW_NUMBER

BY_NAME = {entry.name: entry for entry in ZOO}
N, D = 60, 2
X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
Y = (X[:, 0] + 0.5 * np.random.default_rng(1).standard_normal(N) > 0).astype(np.float32)


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([D]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=scale * (x @ w)), obs=y)


def normal(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def written_guide(x, y):
    loc = numpyro.param("loc", jnp.zeros(D))
    w = numpyro.sample("w", dist.MultivariateNormal(loc, scale_tril=numpyro.param("tril", 0.3 * jnp.eye(D))))
    spread = numpyro.param("spread", 0.2, constraint=constraints.positive)
    numpyro.sample("scale", dist.LogNormal(0.1 * w[0], spread))


def factor_analysis(y):
    loadings = numpyro.param("loadings", jnp.ones((1, 3)))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        latent = numpyro.sample("latent", dist.Normal(0.0, 1.0).expand([1]).to_event(1))
        numpyro.sample("y", dist.Normal(mean + latent @ loadings, 0.5).to_event(1), obs=y)


def amortised_guide(y):
    numpyro.sample("mean", dist.Normal(numpyro.param("mean_loc", jnp.zeros(3)), 0.05).to_event(1))
    recognition = numpyro.param("recognition", 0.1 * jnp.ones((3, 1)))
    spread = numpyro.param("spread", jnp.ones(1), constraint=constraints.positive)
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("latent", dist.Normal(y @ recognition, spread).to_event(1))


def make(model=logistic, guide=None, optim=None, **settings):
    settings = {
        "clipping_norm": 1.0,
        "noise_multiplier": 1.0,
        "subsampling": dpppl.FullBatch(),
        "print_cost": False,
    } | settings
    guide = AutoNormal(model) if guide is None else guide
    return dpppl.SVI(model, guide, optax.sgd(0.01) if optim is None else optim, **settings)


def run(svi, num_steps, *args, seed=0, **settings):
    return svi.run(jax.random.key(seed), num_steps, *args, progress_bar=False, **settings)


def without_privacy(rows):
    """In place of the door: the sum of the rows' gradients."""

    def access(log_likelihood, _, z, public):
        return jax.grad(lambda z: jnp.sum(jax.vmap(lambda row: log_likelihood(z, row, public))(rows)))(z)

    return access


def direction_of(asked, access):
    """The direction from a sum of row gradients, which `access` gives."""
    return asked.direction(access(*asked[:4]), 1.0)


def compare_with_numpyro(model, guide, args, kwargs, plain, loss):
    """Largest relative difference of both gradients from that of NumPyro's own ELBO with the same key."""
    svi = dpppl.SVI(model, guide, optax.sgd(1.0), clipping_norm=1.0, noise_multiplier=1.0,
                    subsampling=dpppl.FullBatch(), loss=loss)  # fmt: skip
    objective, phi = bind_objective(svi, jax.random.key(1), args, kwargs)
    rows, public = objective.split.arrays(args, kwargs)
    key, access = jax.random.key(2), without_privacy(rows)

    def differences(phi):
        def reference(phi):
            return -loss.loss(key, objective.constrain(phi), model, objective.guide, *plain[0], **plain[1])

        expected = jax.grad(reference)(phi)
        both = [
            direction_of(objective.aligned(phi, key, public), access),
            direction_of(objective.per_parameter(phi, key, public), access),
        ]
        size = 1.0 + sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(expected))
        return [
            sum(jnp.sum(jnp.abs(a - b)) for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected))) / size
            for got in both
        ]

    return np.array(jax.jit(differences)(phi))


@pytest.mark.quick_cases(1)
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "guide",
    [AutoDelta, AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal, AutoIAFNormal],
    ids=lambda guide: guide.__name__,
)
def test_gradients_of_every_guide_are_numpyros_where_nothing_is_clipped_or_noised(guide):
    differences = compare_with_numpyro(logistic, guide(logistic), (X, Y), {}, ((X, Y), {}), Trace_ELBO())
    assert np.all(differences < 2e-5)


@pytest.mark.slow
def test_gradients_of_a_written_guide_are_numpyros():
    assert np.all(compare_with_numpyro(logistic, written_guide, (X, Y), {}, ((X, Y), {}), Trace_ELBO()) < 2e-5)


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("closed_form", [False, True])
@pytest.mark.parametrize("name", ["linear_regression", "hierarchical_logistic_regression", "horseshoe"])
def test_gradients_of_the_zoo_are_numpyros(name, closed_form):
    entry = BY_NAME[name]
    loss = TraceMeanField_ELBO() if closed_form else Trace_ELBO()
    args, kwargs = entry.data(0)
    differences = compare_with_numpyro(entry.model, AutoNormal(entry.model), args, kwargs, entry.plain(0), loss)
    assert np.all(differences < 1e-4)


def test_the_gradient_takes_the_total_derivative_of_the_entropy():
    """For s = softplus(rho): d rho = (g eps + 1 / s) sigmoid(rho); the partial derivative at fixed z has mean 0."""
    svi = make(normal, AutoNormal(normal), loss=Trace_ELBO())
    objective, _ = bind_objective(svi, jax.random.key(1), (Y,), {})
    rho, drawn = jnp.asarray(-0.7), []

    def nothing(log_likelihood, _, z, public):
        drawn.append(z["mu"])
        return jax.tree.map(jnp.zeros_like, z)

    phi = {"mu_auto_loc": jnp.asarray(0.3), "mu_auto_scale": rho}
    direct = lambda phi: direction_of(objective.aligned(phi, jax.random.key(3), {}), nothing)  # noqa: E731
    direction, z = jax.jit(lambda phi: (direct(phi), drawn[-1]))(phi)
    spread = jax.nn.softplus(rho)
    eps, prior = (z - 0.3) / spread, -z / 4.0
    assert direction["mu_auto_loc"] == pytest.approx(float(prior), rel=1e-5)
    expected = (prior * eps + 1.0 / spread) * jax.nn.sigmoid(rho)
    assert direction["mu_auto_scale"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["aligned", "per_parameter"])
def test_a_run_is_numpyros_map_where_nothing_is_clipped_or_noised(gradient):
    start = {"w_auto_loc": jnp.array([0.5, -0.5]), "scale_auto_loc": jnp.asarray(0.7)}
    svi = make(guide=AutoDelta(logistic), optim=optax.adam(0.1), clipping_norm=20.0, noise_multiplier=1e-9,
               gradient=gradient)  # fmt: skip
    ours = run(svi, 60, X, Y, init_params=start)
    guide = AutoDelta(logistic, init_loc_fn=init_to_value(values={"w": start["w_auto_loc"], "scale": 0.7}))
    theirs = numpyro.infer.SVI(logistic, guide, optax.adam(0.1), Trace_ELBO())
    params = theirs.run(jax.random.key(0), 60, X, Y, progress_bar=False).params
    for name, value in params.items():
        np.testing.assert_allclose(ours.last_params[name], value, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("clipping", ["flat", "centred"])
def test_the_conjugate_posterior_is_reached_through_poisson_batches(clipping):
    """Centred on responses that all particles share, the spread had a quarter of the likelihood's curvature."""
    y = np.random.default_rng(3).normal(1.0, 1.0, 2000).astype(np.float32)
    svi = make(normal, optim=optax.adam(0.02), clipping_norm=8.0, noise_multiplier=1e-6,
               subsampling=dpppl.Poisson(0.2), num_particles=4, clipping=clipping)  # fmt: skip
    result = run(svi, 1500, y, init_params={"mu_auto_loc": jnp.asarray(0.5), "mu_auto_scale": jnp.asarray(0.1)})
    precision = len(y) + 0.25
    params = result.averaged_params(0.5)
    assert params["mu_auto_loc"] == pytest.approx(y.sum() / precision, abs=0.5 * precision**-0.5)
    assert params["mu_auto_scale"] == pytest.approx(precision**-0.5, rel=0.1)


@pytest.mark.slow
def test_amortised_guides_reach_numpyros_elbo():
    rng = np.random.default_rng(5)
    y = rng.standard_normal((200, 1)) @ np.array([[1.0, -1.0, 0.5]]) + 0.5 * rng.standard_normal((200, 3)) + 1.0
    y = y.astype(np.float32)
    svi = make(factor_analysis, amortised_guide, optax.adam(0.03), clipping_norm=200.0, noise_multiplier=1e-7,
               gradient="per_parameter")  # fmt: skip
    ours = run(svi, 400, y)
    theirs = numpyro.infer.SVI(factor_analysis, amortised_guide, optax.adam(0.03), Trace_ELBO())
    params = theirs.run(jax.random.key(0), 400, y, progress_bar=False).params
    elbo = Trace_ELBO(num_particles=500)
    values = [-elbo.loss(jax.random.key(1), p, factor_analysis, amortised_guide, y) for p in (ours.params, params)]
    start = {"loadings": jnp.ones((1, 3)), "mean_loc": jnp.zeros(3), "recognition": 0.1 * jnp.ones((3, 1)),
             "spread": jnp.ones(1)}  # fmt: skip
    gained = values[1] - -elbo.loss(jax.random.key(1), start, factor_analysis, amortised_guide, y)
    assert abs(values[0] - values[1]) < 0.01 * gained


def test_rows_draw_their_own_latents_and_share_the_common_ones():
    svi = make(factor_analysis, amortised_guide, gradient="per_parameter")
    y = np.zeros((4, 3), np.float32)
    objective, phi = bind_objective(svi, jax.random.key(0), (y,), {})
    rows, public = objective.split.arrays((y,), {})
    terms = jax.jit(jax.vmap(lambda row: objective.mean_log_likelihood(phi, row, (public, jax.random.key(1)))))
    for places, expected in (([0, 1, 2, 3], 4), ([0, 0, 0, 0], 1)):
        assert len(np.unique(terms({**rows, ROW_NUMBER: np.int32(places)}))) == expected


# Noise, clipping, accounts


def variance_p_value(values):
    """That the values, of mean 0, have variance 1."""
    below = stats.chi2.cdf(np.sum(values**2), len(values))
    return 2.0 * min(below, 1.0 - below)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("particles", [1, 4])
def test_the_noise_has_the_stated_scale(particles):
    """Rows that are not finite add 0, so steps are noise and prior. False alarms below 1e-6, a 5 % error is seen."""
    learning_rate, noise, norm, rate = 1e-9, 3.0, 2.0, 0.5

    def flat(y):
        mu = numpyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    svi = dpppl.SVI(flat, AutoDelta(flat, init_loc_fn=init_to_value(values={"mu": 0.0})), optax.sgd(learning_rate),
                    clipping_norm=norm, noise_multiplier=noise, subsampling=dpppl.Poisson(rate),
                    num_particles=particles)  # fmt: skip
    result = run(svi, 12_000, np.full(N, np.nan, np.float32), thinning=1)
    steps = np.diff(result.trajectory["mu_auto_loc"].astype(np.float64), prepend=0.0) / learning_rate
    scale = noise * norm / rate / np.sqrt(particles)  # each particle has noise of its own, and a 1/particles share
    assert stats.kstest(steps / scale, "norm").pvalue > 1e-6
    assert variance_p_value(steps / scale) > 1e-6 > variance_p_value(steps / (1.05 * scale))


def test_a_row_moves_a_step_by_at_most_the_clipping_norm():
    norm, rate = 0.5, 1.0
    far = Y.copy()
    far[7] = 1e6
    paths = []
    for y in (far, np.where(np.arange(N) == 7, np.nan, Y)):
        svi = make(normal, AutoDelta(normal), optax.sgd(1.0), clipping_norm=norm, noise_multiplier=1.0)
        forget_keys()
        result = run(svi, 1, y.astype(np.float32), init_params={"mu_auto_loc": jnp.zeros(())})
        paths.append(result.params["mu_auto_loc"])
    assert abs(paths[0] - paths[1]) == pytest.approx(norm / rate, rel=1e-3)


def test_a_plan_is_what_the_run_costs_and_its_result_holds_neither_the_key_nor_the_data(monkeypatch):
    svi = make(noise_multiplier=None, target_epsilon=0.7, target_delta=1e-5, subsampling=dpppl.Poisson(0.1))
    plan = svi.privacy_plan(40)
    assert 0.99 * 0.7 < plan.epsilon <= 0.7
    result = run(svi, 40, X, Y)
    report = result.privacy_report()
    assert report.epsilon == plan.epsilon and report.status == "complete" and report.details.num_steps == 40
    with monkeypatch.context() as patch, pytest.raises(dpppl.BudgetExceededError, match="nothing was run"):
        patch.setattr("dpppl.runs.driver.prepare_all", None)  # refused before programs are traced
        run(svi, 1, X, Y, seed=1, init_state=result.state)
    assert svi.privacy_report().details.num_steps == 40
    text = str(report)
    assert "aligned" in text and "chain" not in text and "temperature" not in report.to_dict()
    with pytest.raises(dpppl.KeyReuseError):
        run(make(), 3, X, Y)
    assert result.state.rng_key is None
    held = [leaf for leaf in jax.tree.leaves((result.params, result.state, result.trajectory))]
    assert not any(np.shape(leaf)[:1] == (N,) for leaf in held)
    assert pickle.loads(pickle.dumps(result.params)).keys() == result.params.keys()


@pytest.mark.slow
def test_a_plan_from_a_state_goes_round_with_its_parts():
    parts = make(noise_multiplier=2.0, subsampling=dpppl.Partition(4))
    state = run(parts, 2, X, Y, seed=2).state
    run(parts, 2, X, Y, seed=3)
    planned = [parts.privacy_plan(4, init_state=at).epsilon_at(1e-5) for at in (state, None)]
    run(parts, 4, X, Y, seed=4, init_state=state)
    assert parts.privacy_report().epsilon_at(1e-5) == pytest.approx(planned[0]) and planned[0] != planned[1]


@pytest.mark.slow
def test_a_run_that_fails_before_its_first_step_leaves_the_budget_as_it_was():
    svi = make(noise_multiplier=None, target_epsilon=1.0, target_delta=1e-5, subsampling=dpppl.Partition(50))
    rows = X[:20], Y[:20]
    for options, data, message in (
        ({"thinning": 0}, (X, Y), "positive integer"), ({}, rows, "more batches than there are rows")
    ):  # fmt: skip
        with pytest.raises(dpppl.ConfigurationError, match=message):
            run(svi, 2, *data, seed=1 + len(options), **options)
        assert svi.privacy_report().status == "nothing run"
    assert 0.99 < run(svi, 4, X, Y, seed=3).report.epsilon <= 1.0


@pytest.mark.slow
def test_an_epoch_is_one_event_wherever_it_begins():
    partition, sigmas = dpppl.Partition(4), np.arange(1.0, 6.0)
    assert partition.accounted(sigmas, -4).tolist() == [1.0, 5.0] == partition.accounted(sigmas, 0).tolist()
    assert partition.accounted(sigmas, 3).tolist() == [1.0, 2.0] and partition.accounted(sigmas[:0], 3).size == 0
    svi = make(subsampling=partition)
    state = run(svi, 1, X, Y).state
    with pytest.raises(dpppl.ConfigurationError, match="negative number of steps"):
        run(svi, 1, X, Y, seed=1, init_state=state._replace(i=jnp.int32(-4)))


# Results and queries


@pytest.mark.slow
def test_thinning_and_averages():
    svi = make(optim=optax.sgd(0.001))
    result = run(svi, 50, X, Y, thinning=7)
    assert result.trajectory["w_auto_loc"].shape == (8, D)
    np.testing.assert_array_equal(result.trajectory["w_auto_loc"][-1], result.last_params["w_auto_loc"])
    averaged = result.params["w_auto_loc"]
    np.testing.assert_allclose(averaged, result.trajectory["w_auto_loc"][-4:].mean(0), rtol=1e-5)
    with pytest.raises(dpppl.ConfigurationError, match="iterates"):
        result.noise_aware_params()


@pytest.mark.slow
@pytest.mark.parametrize(
    "guide", [AutoNormal, pytest.param(AutoMultivariateNormal, marks=pytest.mark.slow)], ids=["mean field", "full rank"]
)
def test_noise_aware_parameters_find_the_mean_and_how_well_it_is_known(guide):
    """A conjugate normal, a learning rate so small that iterates stay near their start: gradients tell where m* is."""
    y = np.random.default_rng(3).normal(1.0, 1.0, 400).astype(np.float32)
    precision, noise, norm, steps, prior = len(y) + 0.25, 60.0, 8.0, 2000, 4.0

    def twice(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu[0], 1.0), obs=y)

    settings = {"clipping_norm": norm, "noise_multiplier": noise}
    svi = make(twice, guide(twice), optax.sgd(1e-9), **settings)
    spread = jnp.array([precision**-0.5, 2.0])
    if guide is AutoNormal:
        start = {"mu_auto_loc": jnp.array([0.7, 0.0]), "mu_auto_scale": spread}
    else:
        start = {"auto_loc": jnp.array([0.7, 0.0]), "auto_scale_tril": jnp.diag(spread)}
    params = run(svi, steps, y, init_params=start).noise_aware_params(1.0)
    loc = params["mu_auto_loc"] if guide is AutoNormal else params["auto_loc"]
    scale = params["mu_auto_scale"] if guide is AutoNormal else jnp.linalg.norm(params["auto_scale_tril"], axis=1)
    draws = precision  # variance of the gradient from the guide's own draws
    known = ((norm * noise) ** 2 + draws) / steps / precision**2
    before = prior - 1 / precision
    assert scale[0] ** 2 == pytest.approx(1 / precision + 1 / (1 / known + 1 / before), rel=0.1)
    assert abs(loc[0] - y.sum() / precision) < 4.5 * known**0.5 < 0.25 < abs(0.7 - y.sum() / precision)
    assert scale[1] == pytest.approx(2.0, rel=0.05)  # of which the data say nothing: the prior, not wider


@pytest.mark.slow
def test_noise_aware_parameters_warn_of_spreads_that_noise_moves():
    svi = make(noise_multiplier=40.0, optim=optax.adam(0.2))
    with pytest.warns(UserWarning, match=r"still moves the spreads of \d of 3 latents"):
        run(svi, 100, X, Y).noise_aware_params()


@pytest.mark.slow
def test_posterior_draws_and_arviz():
    pytest.importorskip("arviz")
    svi = make()
    result = run(svi, 3, X, Y)
    draws = result.sample_posterior(jax.random.key(1), 50)
    assert draws["w"].shape == (50, D) and draws["scale"].shape == (50,) and np.all(draws["scale"] > 0)
    for params, words in (({"loc": 0.0}, "but the parameters are"), (result.params | {"w_auto_loc": 0.0}, "of shape")):
        with pytest.raises(dpppl.ConfigurationError, match=words):
            result.sample_posterior(jax.random.key(1), 5, params)
    data = result.to_arviz(jax.random.key(2), 30)
    assert data.posterior["w"].shape == (2, 15, D)
    assert "observed_data" not in data.groups() and "privacy_report" in data.attrs
    written = run(make(guide=written_guide), 3, X, Y, seed=1)
    assert written.sample_posterior(jax.random.key(1), 7)["w"].shape == (7, D)


@pytest.mark.slow
def test_queries_are_right_noised_and_charged():
    svi = make(guide=AutoDelta(logistic), num_data=N)
    result = run(svi, 3, X, Y)
    before = svi.privacy_report().epsilon_at(1e-5)
    theirs = -Trace_ELBO().loss(jax.random.key(0), result.params, logistic, result.guide, X, Y)
    elbo = svi.estimate_elbo(jax.random.key(5), result.params, X, Y, bound=5.0, noise_multiplier=1e-7)
    assert elbo == pytest.approx(float(theirs), rel=1e-3)
    noisy = svi.estimate_elbo(jax.random.key(6), result.params, X, Y, bound=5.0, noise_multiplier=20.0)
    assert 1.0 < abs(noisy - elbo) < 600.0

    def correct(samples, x, y):
        return (jnp.mean(samples["w"] @ x) > 0) == (y > 0.5)

    share = svi.estimate_accuracy(jax.random.key(7), result.params, correct, X, Y, noise_multiplier=1e-6)
    assert share == pytest.approx(np.mean((X @ np.asarray(result.params["w_auto_loc"]) > 0) == (Y > 0.5)), abs=1e-4)
    report = svi.privacy_report()
    assert report.num_accesses == 6 and report.epsilon_at(1e-5) > before
    with pytest.raises(dpppl.KeyReuseError):
        svi.estimate_elbo(jax.random.key(6), result.params, X, Y, bound=5.0, noise_multiplier=20.0)
    tight = make(noise_multiplier=None, target_epsilon=1.0, target_delta=1e-5)
    result = run(tight, 3, X, Y, seed=8)
    with pytest.raises(dpppl.BudgetExceededError):
        tight.estimate_elbo(jax.random.key(9), result.params, X, Y, bound=5.0, noise_multiplier=1.0)


def test_every_access_goes_through_one_door(equations):
    svi = make(num_particles=3, gradient="per_parameter")
    state = svi.init(jax.random.key(0), X, Y)
    step = svi.step_function(svi.objective(), svi.mechanism, 1.0)
    jaxpr = jax.make_jaxpr(lambda state, x, y: step(state, *svi.objective().split.arrays((x, y), {}))[0])(state, X, Y)
    private = set(jaxpr.jaxpr.invars[-2:])
    users = [e.primitive.name for e in jaxpr.jaxpr.eqns if private & {v for v in e.invars if hasattr(v, "count")}]
    doors = [e for e in equations(jaxpr) if e.primitive.name == "dpppl_door"]
    assert len(doors) == 1 and set(users) <= {"dpppl_door"}
