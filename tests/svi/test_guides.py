"""Guides: set up without data, or refused; optimisers without a loss; MC Dropout."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.optim
import optax
import pytest
from jax.example_libraries import optimizers as jax_optimizers
from numpyro import handlers
from numpyro.contrib.module import flax_module
from numpyro.infer import Trace_ELBO, autoguide, init_to_median
from numpyro.infer.autoguide import AutoBNAFNormal, AutoDelta, AutoGuideList, AutoNormal
from test_svi import N, X, Y, bind_objective, direction_of, logistic, make, normal, run, without_privacy

import dpppl
from dpppl.svi import optimizers
from dpppl.svi.settings import NUM_STEPS


def layers(x, y):
    first = numpyro.sample("first", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    second = numpyro.sample("second", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.tanh(x @ first) @ second, scale), obs=y)


@pytest.mark.parametrize(
    "guide",
    [
        autoguide.AutoLaplaceApproximation,
        autoguide.AutoDAIS,
        lambda model: autoguide.AutoSurrogateLikelihoodDAIS(model, model),
        lambda model: autoguide.AutoSemiDAIS(model, lambda theta: None, AutoNormal(model)),
    ],
    ids=["Laplace", "DAIS", "SurrogateLikelihoodDAIS", "SemiDAIS"],
)
def test_guides_that_read_data_are_refused_by_name(guide):
    with pytest.raises(dpppl.ConfigurationError, match=r"Auto(Laplace|DAIS|SemiDAIS|Surr).* outside the mechanism"):
        make(guide=guide(logistic))


def test_a_part_that_reads_data_is_refused():
    guide = AutoGuideList(logistic)
    guide.append(autoguide.AutoLaplaceApproximation(handlers.block(logistic, hide=["scale"])))
    with pytest.raises(dpppl.ConfigurationError, match="AutoLaplaceApproximation"):
        make(guide=guide)


def test_set_up_computes_nothing_on_rows_behind_the_last_latent():
    """An operation that is not traced is compiled for itself. The strategy that starts the guide stays the user's."""
    traced = []

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        traced.append(isinstance(y.sum(), jax.core.Tracer))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu.sum(), 1.0), obs=y)

    guide = AutoDelta(model)
    _, phi = bind_objective(make(model, guide=guide), jax.random.key(0), (Y,), {})
    assert traced and all(traced)
    assert guide.init_loc_fn is init_to_median
    plain = AutoDelta(model)
    handlers.seed(plain, jax.random.split(jax.random.key(0))[0])(Y)
    np.testing.assert_allclose(phi["mu_auto_loc"], plain._init_locs["mu"], rtol=1e-5)


@pytest.mark.slow
def test_guides_start_alike_whatever_the_data():
    def positive(y):  # zeros, the made-up rows, are outside the likelihood's support
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Pareto(1.0, rate), obs=y)

    def mean_guide(y):
        numpyro.sample("rate", dist.LogNormal(numpyro.param("loc", jnp.mean(y)), 0.1))

    for guide in (AutoNormal(positive), mean_guide):
        svi = make(positive, guide)
        states = [svi.set_up(jax.random.key(0), (s * np.ones(N, np.float32),), {}) for s in (2.0, 50.0)]
        first, second = (jax.tree.leaves(svi.get_params(state)) for state in states)
        assert all(np.array_equal(a, b) for a, b in zip(first, second))


@pytest.mark.slow
def test_a_guide_starts_where_the_prior_has_a_density():
    """As NumPyro's own: of several draws the first at which it is finite, or an error."""

    def above(bound):
        def model(y):
            mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
            numpyro.factor("bound", jnp.where(mu > bound, 0.0, -jnp.inf))
            with numpyro.plate("data", y.shape[0]):
                numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

        return model

    def start(bound, key):
        svi = make(above(bound), AutoNormal(above(bound)))
        return svi.get_params(svi.set_up(jax.random.key(key), (Y,), {}))["mu_auto_loc"]

    assert all(1.0 < start(1.0, key) < 2.0 for key in range(3))  # three draws above 1 at once: 1 in 64
    with pytest.raises(
        dpppl.ConfigurationError, match="no finite density where AutoNormal starts; give it a start of your own"
    ):
        start(3.0, 0)


def test_a_point_of_shares_starts_at_the_priors_median():
    """`AutoDelta` keeps its starts constrained: four shares are three unconstrained numbers."""

    def model(y):
        shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(4)))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(shares[0], 1.0), obs=y)

    svi = make(model, AutoDelta(model))
    found = svi.get_params(svi.set_up(jax.random.key(0), (Y,), {}))["shares_auto_loc"]
    assert found.shape == (4,) and np.allclose(found, 0.25, atol=0.1)


def test_made_up_rows_are_weights_that_may_be_divided_by():
    """NumPyro refuses a scale of zero, which weights of rows would be if made-up rows were zeros."""

    def weighted(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", y.shape[0]), handlers.scale(scale=y**2):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    svi = make(weighted, AutoNormal(weighted))
    assert svi.get_params(svi.init(jax.random.key(0), Y)).keys() == {"mu_auto_loc", "mu_auto_scale"}


@pytest.mark.slow
def test_lists_of_guides_have_numpyros_gradient():
    guide = AutoGuideList(logistic)
    guide.append(AutoNormal(handlers.block(logistic, hide=["scale"])))
    guide.append(AutoDelta(handlers.block(logistic, expose=["scale"])))
    svi = make(guide=guide, loss=Trace_ELBO())
    objective, phi = bind_objective(svi, jax.random.key(1), (X, Y), {})
    rows, public = objective.split.arrays((X, Y), {})
    direction = direction_of(objective.aligned(phi, jax.random.key(2), public), without_privacy(rows))

    def reference(phi):
        params = objective.constrain(phi)
        return -Trace_ELBO().loss(jax.random.key(2), params, logistic, objective.guide, X, Y)

    for name, expected in jax.grad(reference)(phi).items():
        np.testing.assert_allclose(direction[name], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_flows_run():
    result = run(make(guide=AutoBNAFNormal(logistic, hidden_factors=[2]), optim=optax.adam(0.01)), 3, X, Y)
    assert result.sample_posterior(jax.random.key(0), 5)["w"].shape == (5, 2)


def discrete(x, y):
    numpyro.sample("w", dist.Normal(numpyro.param("loc", jnp.zeros(2)), 1.0).to_event(1))
    numpyro.sample("scale", dist.Gamma(2.0, numpyro.param("rate", 1.0)))
    numpyro.sample("extra", dist.Bernoulli(0.5), infer={"is_auxiliary": True})


def captures(x, y):
    numpyro.sample("w", dist.Normal(numpyro.param("loc", 0.0) + jnp.asarray(X).mean(0), 1.0).to_event(1))
    numpyro.sample("scale", dist.LogNormal(0.0, 0.1))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "guide, message",
    [
        (discrete, "'extra'.*rsample"),
        (captures, "captures an array"),
    ],
    ids=["discrete", "captures"],
)
def test_written_guides_that_do_not_fit_are_refused(guide, message):
    with pytest.raises((dpppl.UnsupportedModelError, dpppl.ConfigurationError), match=message):
        make(guide=guide).init(jax.random.key(0), X, Y)


def local(y):
    with numpyro.plate("data", y.shape[0]):
        latent = numpyro.sample("latent", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(latent, 1.0), obs=y)


def per_row(y):
    loc = numpyro.param("loc", jnp.zeros(y.shape[0]))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("latent", dist.Normal(loc, 1.0))


def amortised(y):
    slope = numpyro.param("slope", 0.1)
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("latent", dist.Normal(slope * y, 1.0))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "guide, gradient, message",
    [
        (AutoNormal(local), "per_parameter", "amortised"),
        (per_row, "per_parameter", "'loc' has entries for single rows"),
        (amortised, "aligned", "per_parameter"),
    ],
    ids=["auto", "per_row", "aligned"],
)
def test_latents_of_rows_need_an_amortised_guide_and_gradients_per_parameter(guide, gradient, message):
    with pytest.raises(dpppl.UnsupportedModelError, match=message):
        make(local, guide, gradient=gradient).init(jax.random.key(0), Y)
    with pytest.raises(dpppl.UnsupportedModelError, match="MCMC"):
        dpppl.DPSGLD(local, clipping_norm=1.0, noise_multiplier=1.0).bind((Y,), {})


@pytest.mark.slow
def test_networks_as_parameters_are_learned_through_the_door():
    def network(x, y):
        net = flax_module("net", nn.Dense(1), input_shape=(2,))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(net(x)[:, 0], scale), obs=y)

    settings = {"clipping_norm": 50.0, "noise_multiplier": 1e-8}
    svi = make(network, AutoDelta(network), optax.adam(0.1), gradient="per_parameter", **settings)
    result = run(svi, 150, X, Y)
    design = np.c_[X, np.ones(N)]
    expected = np.linalg.lstsq(design, Y, rcond=None)[0]
    np.testing.assert_allclose(result.params["net$params"]["kernel"][:, 0], expected[:2], atol=0.02)
    with pytest.raises(dpppl.UnsupportedModelError, match=r"is a parameter of the model.*per_parameter"):
        make(network, AutoDelta(network)).init(jax.random.key(0), X, Y)


# Optimisers

PARAMS = {"a": np.ones(2, np.float32)}


@pytest.mark.parametrize(
    "optim",
    [
        lambda: optax.lbfgs(),
        lambda: optax.polyak_sgd(),
        lambda: optax.chain(optax.adam(1e-2), optax.contrib.reduce_on_plateau()),
        lambda: numpyro.optim.optax_to_numpyro(optax.polyak_sgd()),
        lambda: numpyro.optim.Minimize(),
    ],
    ids=["lbfgs", "polyak", "plateau", "wrapped", "Minimize"],
)
def test_optimisers_that_take_the_loss_are_refused(optim):
    with pytest.raises(dpppl.ConfigurationError, match="value of the loss"):
        optimizers.check_without_loss(optimizers.without_loss(optim()), PARAMS, 100)


@pytest.mark.parametrize(
    "optim",
    [
        lambda: optax.chain(optax.clip(1.0), optax.adamw(1e-2)),
        lambda: optax.MultiSteps(optax.sgd(1e-2), 3).gradient_transformation(),
        lambda: numpyro.optim.optax_to_numpyro(optax.adam(1e-2)),
        lambda: numpyro.optim.ClippedAdam(1e-2),
        lambda: jax_optimizers.momentum(1e-2, 0.9),
    ],
    ids=["optax", "MultiSteps", "wrapped", "numpyro", "jax"],
)
def test_optimisers_without_a_loss_are_taken(optim):
    optim = optimizers.without_loss(optim())
    optimizers.check_without_loss(optim, PARAMS, 100)
    state = optim.init(PARAMS)
    for _ in range(4):
        state = optimizers.update(optim, {"a": np.ones(2, np.float32)}, state)
    assert np.all(optim.get_params(state)["a"] < 1.0)


ROWS = np.arange(120, dtype=np.float32)
CAPTURING = {
    "as its state": (lambda params: ROWS, lambda g, state: g),
    "in its update": (lambda params: (), lambda g, state: g + jnp.sum(jnp.asarray(ROWS))),
    "as single numbers": (lambda params: (), lambda g, state: g + sum(g * float(k % 2) for k in range(120))),
}


@pytest.mark.parametrize(("init", "move"), CAPTURING.values(), ids=CAPTURING)
def test_rows_that_an_optimiser_captured_are_refused(init, move):
    update = lambda gradients, state, params=None: (jax.tree.map(lambda g: move(g, state), gradients), state)  # noqa: E731
    optim = optimizers.without_loss(optax.GradientTransformation(init, update))
    with pytest.raises(dpppl.UnsupportedModelError, match="the optimiser captures"):
        optimizers.check_without_loss(optim, PARAMS, len(ROWS))
    assert optimizers.check_without_loss(optim, PARAMS, 10 * len(ROWS)) is not None


# MC Dropout


@pytest.mark.slow
def test_dropout_drops_input_units_and_keeps_the_mean():
    guide = dpppl.AutoDropout(layers, rate=0.25)
    result = run(make(layers, guide), 1, X, Y)
    draws = result.sample_posterior(jax.random.key(0), 4000)
    theta = result.params["first_auto_loc"]
    kept = np.asarray(draws["first"] != 0.0)
    assert np.all(kept == kept[:, :, :1]) and np.mean(kept) == pytest.approx(0.75, abs=0.03)
    np.testing.assert_allclose(draws["first"].mean(0), theta, atol=0.05)
    np.testing.assert_allclose(draws["second"], np.broadcast_to(result.params["second_auto_loc"], (4000, 3)), rtol=1e-5)


@pytest.mark.slow
def test_the_objective_of_dropout_is_the_masked_likelihood_and_the_prior_of_what_is_masked():
    svi = make(layers, dpppl.AutoDropout(layers, rate=0.5, sites=["first", "second"]))
    objective, phi = bind_objective(svi, jax.random.key(1), (X, Y), {})
    rows, public = objective.split.arrays((X, Y), {})
    direction = direction_of(objective.aligned(phi, jax.random.key(2), public), without_privacy(rows))
    _, z = objective.draws(phi, jax.random.key(2), public)
    weights = {name: phi[f"{name}_auto_loc"] for name in ("first", "second")}
    masks = {name: jax.lax.stop_gradient(z[name] / weights[name]) for name in weights}
    assert set(np.unique(np.round(np.asarray(masks["second"]), 5))) <= {0.0, 2.0}

    def reference(phi):
        z = {name: phi[f"{name}_auto_loc"] * masks[name] for name in weights} | {"scale": phi["scale_auto_loc"]}
        likelihood = jnp.sum(jax.vmap(lambda row: objective.split.log_likelihood(z, row, public))(rows))
        log_prior = sum(jnp.sum(dist.Normal(0.0, 1.0).log_prob(phi[f"{name}_auto_loc"])) for name in weights)
        return likelihood + log_prior + dist.HalfNormal(1.0).log_prob(jnp.exp(phi["scale_auto_loc"]))

    for name, expected in jax.grad(reference)(phi).items():
        np.testing.assert_allclose(direction[name], expected, rtol=1e-3, atol=1e-3)


def test_dropout_says_what_it_cannot_drop():
    with pytest.raises(dpppl.ConfigurationError, match="'scale' is not real-valued"):
        make(layers, dpppl.AutoDropout(layers, rate=0.5, sites=["scale"])).init(jax.random.key(0), X, Y)


def scaled(y, scale):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, scale[0]), obs=y)


def scaled_guide(y, scale):
    numpyro.sample("mu", dist.Normal(numpyro.param("loc", 1.0) * scale.sum(), 0.01))


def test_guides_that_read_a_public_array_are_drawn_with_it():
    """3.0 * (1.0 + 3.0); draws lie within .01 of it but for one test in a million, and of accuracies one decides."""
    y, scale, params = np.ones(9, np.float32), np.array([1.0, 3.0], np.float32), {"loc": jnp.float32(3.0)}
    svi = make(scaled, scaled_guide, clipping_norm=1.0, num_data=9)
    found = run(svi, 1, y, dpppl.Public(scale)).sample_posterior(jax.random.key(1), 100, params)
    assert abs(float(np.mean(found["mu"])) - 12.0) < 0.01
    asked = params, lambda samples, *_: samples["mu"].mean() > 11.0, y, dpppl.Public(scale)
    assert svi.estimate_accuracy(dpppl.secret_key(), *asked, noise_multiplier=0.01) > 0.9


def spread(scale, start=lambda y: 0.0, width=lambda y: 1.0):
    """A guide of `both`: the scale and the start of what all rows share, and the width of what each row has, made of y."""

    def guide(y, number):
        numpyro.sample("mu", dist.Normal(numpyro.param("loc", start(y)), scale(y, number)))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("latent", dist.Normal(numpyro.param("slope", 0.1) * y, width(y)))

    return guide


def both(y, number):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        latent = numpyro.sample("latent", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(latent, 1.0), obs=y)


def test_guides_that_depend_on_the_number_of_rows_are_refused():
    """They are run on one row, so `y.shape[0]` would be 1; a public number, and lengths of arrays of rows, are right."""
    by_size = lambda y: 0.5 if y.shape[0] > 4 else 1.0  # noqa: E731
    constant = lambda y, number: 0.1  # noqa: E731
    for guide, what in (
        (spread(lambda y, number: 1.0 / jnp.sqrt(y.shape[0])), "site 'mu'"),
        (spread(lambda y, number: by_size(y)), "site 'mu'"),
        (spread(constant, start=by_size), "start of parameter 'loc'"),
        (spread(constant, width=by_size), "site 'latent'"),
        (spread(constant, width=lambda y: 1.0 / jnp.sqrt(y.shape[0])), "site 'latent'"),
    ):
        svi = make(both, guide, gradient="per_parameter")
        with pytest.raises(dpppl.UnsupportedModelError, match=f"the guide's {what} depends on the number of rows"):
            svi.init(jax.random.key(0), Y, len(Y))
    taken = spread(lambda y, number: 1.0 / jnp.sqrt(number), width=lambda y: jnp.ones(y.shape[0]) + 0.0 * y)
    state = make(both, taken, gradient="per_parameter").init(jax.random.key(0), Y, len(Y))
    assert state.i == 0


def test_the_default_schedule_is_as_long_as_each_run_that_begins_anew():
    """Whatever looked at the optimiser, was refused or charged, before."""
    svi = dpppl.SVI(normal, AutoNormal(normal), clipping_norm=1.0, noise_multiplier=1.0, print_cost=False)
    assert svi.optim.num_steps == NUM_STEPS
    with pytest.raises(dpppl.UnsupportedModelError):
        run(svi, 3, "no rows")
    svi.estimate_elbo(
        dpppl.secret_key(), {"mu_auto_loc": 0.0, "mu_auto_scale": 1.0}, Y, bound=1.0, noise_multiplier=9.0
    )
    first = run(svi, 7, Y)
    assert svi.optim.num_steps == 7
    run(svi, 2, Y, seed=1, init_state=first.state)
    assert svi.optim.num_steps == 7
    run(svi, 3, Y, seed=2)
    assert svi.optim.num_steps == 3


def test_what_a_call_would_ignore_is_refused_before_a_charge():
    svi = make(normal)
    state = run(svi, 2, Y).state
    spent = svi.privacy_report().events
    with pytest.raises(dpppl.ConfigurationError, match="leave init_params out, or init_state"):
        run(svi, 2, Y, seed=1, init_state=state, init_params={"mu_auto_loc": 5.0})
    params = {"mu_auto_loc": 0.0, "mu_auto_scale": 1.0}
    with pytest.raises(dpppl.ConfigurationError, match="num_particles"):
        svi.estimate_elbo(dpppl.secret_key(), params, Y, bound=1.0, noise_multiplier=9.0, num_particles=0)
    assert svi.privacy_report().events == spent


def test_parameters_of_the_model_have_no_noise_aware_location():
    def shifted(y):
        shift = numpyro.param("shift_loc", 0.0)
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu + shift, 1.0), obs=y)

    result = run(make(shifted, gradient="per_parameter"), 100, Y)
    assert result.noise_aware_params().keys() == result.last_params.keys()
