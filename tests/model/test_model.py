import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro.contrib.funsor import enum
from numpyro.contrib.module import random_nnx_module
from numpyro.infer.util import potential_energy
from small_models import seen
from zoo import ZOO, N

from dpppl.errors import ConfigurationError
from dpppl.model.arguments import Public
from dpppl.model.split import split_model
from dpppl.model.structure import log_prob_of

BY_NAME = {entry.name: entry for entry in ZOO}


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


X = np.random.default_rng(0).standard_normal((N, 3))
Y = (X[:, 0] > 0).astype(float)


def random_z(split, count, seed=1):
    rng = np.random.default_rng(seed)
    return {n: jnp.asarray(rng.standard_normal((count, *s.shape)), s.dtype) for n, s in split.latents.items()}


def log_joint(split, rows, public):
    def function(z):
        per_row = jax.vmap(lambda row: split.log_likelihood(z, row, public))(rows)
        return split.log_prior(z, public) + jnp.sum(per_row)

    return function


DTYPES = [  # thinned by three, two of three models are met, and they take turns
    pytest.param(entry, (number + second) % 2 == 0, id=f"{entry.name}-float{64 if (number + second) % 2 == 0 else 32}")
    for number, entry in enumerate(ZOO)
    for second in (False, True)
]


@pytest.mark.quick_cases(2)
@pytest.mark.thinned(3)
@pytest.mark.parametrize("entry, x64", DTYPES)
def test_prior_and_rows_add_up_to_numpyros_potential(entry, x64):
    with jax.enable_x64(x64):
        args, kwargs = entry.data(0)
        split = split_model(entry.model, args, kwargs)
        ours = jax.value_and_grad(log_joint(split, *split.arrays(args, kwargs)))
        plain_args, plain_kwargs = entry.plain(0)
        model = enum(entry.model, first_available_dim=-2) if entry.enumerated else entry.model
        theirs = jax.value_and_grad(
            lambda z: -potential_energy(model, plain_args, plain_kwargs, z, enum=entry.enumerated)
        )
        values, gradients = jax.jit(jax.vmap(lambda z: (ours(z), theirs(z))))(random_z(split, 10))
        for a, b in zip(jax.tree.leaves(values), jax.tree.leaves(gradients)):
            assert a.dtype == jnp.result_type(float)
            scale = np.maximum(1.0, np.max(np.abs(b), axis=tuple(range(1, b.ndim)), keepdims=True))
            assert np.max(np.abs(a - b) / scale) < (1e-10 if x64 else 1e-5)


@pytest.mark.parametrize("name", ["hierarchical_logistic_regression", "horseshoe", "scoped", "loc_scale_reparam"])
def test_constrain_gives_the_latents_and_their_deterministic_functions_only(name):
    entry = BY_NAME[name]
    args, kwargs = entry.data(0)
    split = split_model(entry.model, args, kwargs)
    z = jax.tree.map(lambda a: a[0], random_z(split, 1))
    constrained = split.constrain(z, split.arrays(args, kwargs)[1])
    plain_args, plain_kwargs = entry.plain(0)
    expected = numpyro.infer.util.constrain_fn(entry.model, plain_args, plain_kwargs, z, return_deterministic=True)
    assert constrained.keys() == expected.keys() - {"score"}  # the horseshoe's score is a function of the rows
    for site, value in constrained.items():
        np.testing.assert_allclose(value, expected[site], rtol=1e-6)


def test_a_deterministic_site_as_long_as_the_data_is_not_returned():
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.deterministic("count", x.shape[0])
        numpyro.deterministic("constant", 2.0 * jnp.ones(2))
        with numpyro.plate("data", x.shape[0]):
            numpyro.deterministic("broadcast", w * jnp.ones(x.shape[0]))
            numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    assert split_model(model, (X[:, 0], Y), {}).deterministic == ("constant",)


def test_structure_is_found_without_running_the_model_on_real_rows():
    """The model sees tracers and made-up rows."""
    given = []

    def model(x, y):
        given.extend((x, y))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        seen(y, w * x)

    secret = np.full(N, 1_234.5, np.float32)
    split = split_model(model, (secret, secret), {})
    split.constrain({"w": 0.0}, {})
    split.log_prior({"w": 0.0}, {})
    assert given and not any(value is secret for value in given)
    made_up = [np.asarray(v) for v in given if not isinstance(v, jax.core.Tracer)]
    assert not any(np.any(values > 1_000) for values in made_up) and len(made_up) < len(given)


def test_the_split_keeps_no_array_alive():
    x, y, scale = np.array(X), np.array(Y), np.ones(3)
    references = [weakref.ref(array) for array in (x, y, scale)]

    def model(x, scale, y):
        w = numpyro.sample("w", dist.Normal(0.0, scale).to_event(1))
        seen(y, dist.Bernoulli(logits=x @ w))

    split = split_model(model, (x, Public(scale)), {"y": y})
    del x, y, scale
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert split.num_rows == N


def test_arrays_have_canonical_types_and_may_be_tracers():
    split = split_model(logistic, (X, Y.astype(bool)), {})
    rows, public = split.arrays((X, Y.astype(bool)), {})
    assert {name: value.dtype for name, value in rows.items()} == {"x": jnp.float32, "y": jnp.bool_} and public == {}
    assert jax.jit(lambda x, y: split.arrays((x, y), {})[0]["x"].sum())(X, Y.astype(bool)) == jnp.sum(X)
    with jax.enable_x64(True):
        assert split_model(logistic, (X, Y), {}).latents["w"].dtype == jnp.float64


def test_arrays_of_another_call_must_fit():
    split = split_model(logistic, (X, Y), {})
    for args in [(X, Y[:-1]), (X, Public(Y)), (X,), ((X, X), Y)]:
        with pytest.raises(ConfigurationError, match="when the model was split"):
            split.arrays(args, {})


def test_arguments_are_named_and_public_ones_apart():
    entry = BY_NAME["public_arguments"]
    args, kwargs = entry.data(0)
    rows, public = split_model(entry.model, args, kwargs).arrays(args, kwargs)
    assert rows.keys() == {"x", "y"} and public.keys() == {"scales['loc']"}
    entry = BY_NAME["pytree_arguments"]
    args, kwargs = entry.data(0)
    rows, _ = split_model(entry.model, args, kwargs).arrays(args, kwargs)
    assert rows.keys() == {"batch['inputs'][0]", "batch['inputs'][1]", "batch['y']"}


def test_a_model_can_be_split_while_tracing():
    @jax.jit
    def density(x, y, scale, z):
        def model(x, scale, y):
            w = numpyro.sample("w", dist.Normal(0.0, scale))
            seen(y, dist.Bernoulli(logits=x[:, 0] * w))

        split = split_model(model, (x, Public(scale), y), {})
        return log_joint(split, *split.arrays((x, Public(scale), y), {}))(z)

    assert jnp.isfinite(density(X, Y, jnp.asarray(2.0), {"w": jnp.asarray(0.5)}))


def test_captured_arrays_are_listed_by_shape():
    offsets = jnp.ones((2, 3))

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(offsets.sum(0), 1.0).to_event(1))
        seen(y, dist.Bernoulli(logits=x @ w))

    key = jax.random.key(0)

    def with_a_key(x, y):
        w = numpyro.sample("w", dist.Normal(jax.random.normal(key, (3,)), 1.0).to_event(1))
        seen(y, dist.Bernoulli(logits=x @ w))

    assert split_model(model, (X, Y), {}).assumed_public == ("float32[2, 3]", "1 number")
    assert split_model(with_a_key, (X, Y), {}).assumed_public == ("1 number",)
    assert split_model(logistic, (X, Y), {}).assumed_public == ()


def test_a_network_built_outside_the_model():
    network = nnx.Linear(3, 1, rngs=nnx.Rngs(0))

    def model(x, y):
        net = random_nnx_module("net", network, dist.Normal(0.0, 1.0))
        seen(y, dist.Bernoulli(logits=net(x)[..., 0]))

    split = split_model(model, (X, Y), {})
    assert {name: s.shape for name, s in split.latents.items()} == {"net/kernel": (3, 1), "net/bias": (1,)}


def test_data_plate_chooses_between_two_that_fit():
    def model(y):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        with numpyro.plate("people", N, dim=-2), numpyro.plate("items", N, dim=-1):
            numpyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    y = np.random.default_rng(0).standard_normal((N, N))
    split = split_model(model, (y,), {}, data_plate="people")
    rows, public = split.arrays((y,), {})
    expected = -potential_energy(model, (jnp.asarray(y),), {}, {"loc": 0.3})
    assert log_joint(split, rows, public)({"loc": jnp.asarray(0.3)}) == pytest.approx(float(expected), rel=1e-5)


def test_argument_checks_say_nothing_about_values():
    def model(y):
        rate = numpyro.sample("rate", dist.Exponential(1.0, validate_args=True))
        seen(y, dist.Poisson(rate, validate_args=True))

    split = split_model(model, (np.arange(N),), {})
    with numpyro.validation_enabled():
        split.log_likelihood({"rate": jnp.zeros(())}, {"y": jnp.asarray(-3)}, {})


def test_made_up_rows_outside_a_support_do_no_harm():
    def model(y):
        shape = numpyro.sample("shape", dist.Exponential(1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.factor("y", jnp.log(y - 5.0) * shape)

    with jax.debug_nans(True):
        split_model(model, (np.full(N, 6.0),), {})


def test_half_precision_models_are_not_taken_for_coupled_ones():
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([32, 64]).to_event(2))
        with numpyro.plate("data", x.shape[0]):
            hidden = jnp.tanh(x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16))
            numpyro.sample("y", dist.Bernoulli(logits=hidden.sum(-1).astype(jnp.float32)), obs=y)

    split_model(model, (np.ones((N, 32)), Y), {})


def test_what_follows_from_a_discrete_latent_of_a_row_is_not_returned():
    args, kwargs = BY_NAME["chained_switches"].data(0)
    split = split_model(BY_NAME["chained_switches"].model, args, kwargs)
    assert dict(split.summed) == {"first": 2, "second": 3} and split.deterministic == ()
    assert split.constrain(jax.tree.map(lambda a: a[0], random_z(split, 1)), {}).keys() == {"rate", "shift"}


def test_whole_numbers_of_a_law_on_the_reals_have_a_derivative():
    """NumPyro's power law differentiates in them, which JAX refuses of whole numbers."""
    site = {"fn": dist.DoublyTruncatedPowerLaw(0.5, 1.0, 9.0), "value": jnp.array([2, 3]), "scale": None}
    slope = jax.grad(lambda a: jnp.sum(log_prob_of(site | {"fn": dist.DoublyTruncatedPowerLaw(a, 1.0, 9.0)})))(0.5)
    assert np.isfinite(slope)
    np.testing.assert_allclose(log_prob_of(site), site["fn"].log_prob(jnp.array([2.0, 3.0])), rtol=1e-6)
    counted = {"fn": dist.Poisson(2.0), "value": jnp.array([2, 3]), "scale": 3.0}
    np.testing.assert_allclose(log_prob_of(counted), 3.0 * dist.Poisson(2.0).log_prob(jnp.array([2, 3])))
