"""What no row enters is differentiated once: the same gradients, and another program only where that saves work."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from numpyro.infer.autoguide import AutoMultivariateNormal

import dpppl
from dpppl.access.door import door_p, noisy_sum
from dpppl.jaxprs import equations as all_equations
from dpppl.model.split import split_model
from dpppl.row_program.hoist import gradient, value_and_gradient
from dpppl.svi.binding import bind_objective
from models.correlated_normal import correlated_normal
from models.gaussian_process import gaussian_process
from models.logistic_regression import gaussian as logistic_regression

N = 43
RNG = np.random.default_rng(0)
PAIRS = RNG.uniform(-2.0, 2.0, N).astype(np.float32), RNG.standard_normal(N).astype(np.float32)
fitc = functools.partial(gaussian_process, residual=True)
MODELS = {
    "Gaussian process": (gaussian_process, PAIRS),
    "solved by rows": (fitc, PAIRS),
    "LKJ": (correlated_normal, (RNG.standard_normal((N, 4)).astype(np.float32),)),
}


def of_model(name):
    """(log likelihood of a row, latents, rows)"""
    model, arrays = MODELS[name]
    split = split_model(model, arrays, {})
    z = {k: jnp.asarray(RNG.normal(0.0, 0.3, s.shape), s.dtype) for k, s in split.latents.items()}
    return split.log_likelihood, z, split.arrays(arrays, {})[0]


def mixed(z, row, public):
    """A factor, what follows from it in whole numbers or not at all, a loop, and latents that are also used elsewhere."""
    root = jnp.linalg.cholesky(jnp.diag(jnp.exp(z["s"])) + 0.1 * public)
    order = jnp.argsort(-jnp.diag(root))
    walked = lax.scan(lambda c, x: (jnp.tanh(c @ root + x), None), z["w"], jnp.tile(z["s"], (20, 1)))[0]
    away = lax.stop_gradient(root).sum() * z["b"]
    return row["x"] @ walked[order] + jax.nn.relu(row["x"] @ root @ z["w"]) + z["s"] @ row["x"] + away


def of_mixed():
    z = {"s": jnp.array([0.3, -0.2, 0.5, 0.1]), "w": jnp.array([0.2, -0.4, 0.1, 0.3]), "b": jnp.array(0.7)}
    return mixed, z, {"x": RNG.standard_normal((N, 4)).astype(np.float32)}


@pytest.mark.quick_cases(1)
@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", [*MODELS, "mixed"])
def test_the_gradients_are_jaxs(case, x64):
    log_likelihood, z, rows = of_mixed() if case == "mixed" else of_model(case)
    z = {k: leaf.astype(float) for k, leaf in z.items()}
    public = jnp.ones((4, 4)) if case == "mixed" else {}
    both = [f(log_likelihood) for f in (value_and_gradient, jax.value_and_grad)]
    (values, found), (expected, slopes) = (jax.jit(jax.vmap(f, (None, 0, None)))(z, rows, public) for f in both)
    tolerance = 1e-11 if x64 else 1e-4  # kernels of close points are ill-conditioned
    assert np.allclose(values, expected, rtol=tolerance)
    for name in z:
        assert found[name].dtype == z[name].dtype
        size = np.max(np.abs(slopes[name]), initial=1e-3)
        assert np.max(np.abs(found[name] - slopes[name])) < tolerance * size and size > 1e-2, name


def kernel_of(a):
    x = jnp.arange(16.0)
    return jnp.exp(-jnp.exp(a) * (x[:, None] - x) ** 2 / 9) + jnp.eye(16)


@jax.custom_vjp
def root_of(k):
    return jnp.linalg.cholesky(k)


root_of.defvjp(lambda k: (root_of(k), k), lambda k, g: jax.vjp(jnp.linalg.cholesky, k)[1](g))


def vectors_as_they_are(z, r, _):
    values, vectors = jnp.linalg.eigh(jnp.eye(16) * jnp.exp(z))
    return values @ r**2 + jnp.sum(lax.stop_gradient(vectors @ r))


AWKWARD = {
    "complex numbers": lambda z, r, _: (
        jnp.sum(jnp.real(jnp.fft.rfft(kernel_of(z)[0]) * jnp.fft.rfft(r)))
        + jnp.sum(jnp.tanh(jnp.linalg.cholesky(kernel_of(z)) @ r))
    ),
    "whole numbers alone": lambda z, r, _: z * r[jnp.argmax(jnp.diag(jnp.linalg.cholesky(kernel_of(z))))],
    "a derivative of its own": lambda z, r, _: jnp.sum(root_of(kernel_of(z)) @ r),
    "sums of matrices": lambda z, r, _: jnp.sum(
        jnp.tanh(jnp.sum(jnp.linalg.cholesky(kernel_of(z)).reshape(4, 4, 16) * r, -1))
    ),
    "sums of nothing": lambda z, r, _: (
        jnp.sum(jnp.linalg.cholesky(kernel_of(z)) @ r) + jnp.sum(jnp.sum(jnp.zeros((0, 3)) * r[0], 1))
    ),
    "no derivative where it is infinite": vectors_as_they_are,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", AWKWARD)
def test_awkward_gradients_are_jaxs(case):
    rows = jnp.asarray(RNG.standard_normal((3, 16)), jnp.float32)
    both = (f(AWKWARD[case]) for f in (value_and_gradient, jax.value_and_grad))
    found, expected = (jax.vmap(f, (None, 0, None))(jnp.float32(0.3), rows, None) for f in both)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def by_row(function, log_likelihood, z, rows, public, names, numbers=1):
    """The equations of these names, in the program for all rows, that compute so many numbers for each row (N is prime)."""
    program = jax.make_jaxpr(jax.vmap(function(log_likelihood), (None, 0, None)))(z, rows, public)
    found = [e for e in all_equations(program) if e.primitive.name in names]
    return [e for e in found if any(v.aval.size % N == 0 and v.aval.size >= N * numbers for v in e.outvars)]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "case, names, numbers",
    [
        ("Gaussian process", {"triangular_solve"}, 64),  # a row solves for 8 numbers
        ("solved by rows", {"triangular_solve"}, 64),
        ("LKJ", {"gather", "scatter-add"}, 1),
        ("mixed", {"scan", "triangular_solve"}, 1),
    ],
)
def test_what_no_row_enters_is_differentiated_once(case, names, numbers):
    log_likelihood, z, rows = of_mixed() if case == "mixed" else of_model(case)
    arguments = log_likelihood, z, rows, jnp.ones((4, 4)) if case == "mixed" else {}
    assert not by_row(gradient, *arguments, names, numbers)
    assert by_row(jax.grad, *arguments, names, numbers)


def many_latents(z, row, public):
    """One number is spread over many, and a matrix is large: neither is worth a Jacobian."""
    return row["x"] @ jnp.tanh(z["w"] * jnp.exp(z["s"])) + jnp.sum(jnp.sin(jnp.linalg.cholesky(z["m"])) * row["x"][0])


@pytest.mark.parametrize("case", ["logistic", "many latents"])
def test_the_program_is_jaxs_where_little_is_shared(case):
    if case == "logistic":
        split = split_model(logistic_regression, (np.ones((N, 5), np.float32), np.ones(N, np.float32)), {})
        arguments = split.log_likelihood, {k: jnp.zeros(s.shape) for k, s in split.latents.items()}, split.row, {}
    else:
        z = {"w": jnp.ones(500), "s": jnp.ones(()), "m": jnp.eye(40)}
        arguments = many_latents, z, {"x": jnp.ones(500)}, None
    own, jaxs = (str(jax.make_jaxpr(f(arguments[0]))(*arguments[1:])) for f in (gradient, jax.grad))
    assert own == jaxs


def access_of(kernel, arrays):
    """The door of a step, and what it would release without noise."""
    state, bound = kernel.init(dpppl.secret_key(), 0, None, arrays, {}), kernel.bind(arrays, {})
    rows, public = bound.split.arrays(arrays, {})

    def quiet(z, rows):
        return noisy_sum(
            kernel.mechanism, bound.split.log_likelihood, z, rows, public, key=jax.random.key(0), noise_multiplier=1e-9
        ).total

    doors = [e for e in all_equations(jax.make_jaxpr(quiet)(state.z, rows)) if e.primitive is door_p]
    return doors[0].params["access"], quiet(state.z, rows), state.z, rows


def clipped_sum_of(log_likelihood, z, rows, norm):
    gradients = jax.jit(jax.vmap(jax.grad(log_likelihood), (None, 0, None)))(z, rows, {})
    lengths = jnp.sqrt(sum(jnp.sum(g.reshape(N, -1) ** 2, axis=1) for g in jax.tree.leaves(gradients)))
    return jax.tree.map(lambda g: jnp.tensordot(jnp.minimum(1.0, norm / lengths), g, 1), gradients)


@pytest.mark.slow
def test_the_door_computes_it_before_any_chunk_of_rows():
    """And the clipped sum is that of the rows' gradients."""
    kernel = dpppl.DPSGLD(gaussian_process, clipping_norm=2.0, step_size=1e-3, gradient_strategy="microbatch")
    mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=2, target_epsilon=1.0, target_delta=1e-3, print_cost=False)
    kernel = mcmc.calibrated_kernel()
    access, total, z, rows = access_of(kernel, PAIRS)
    before, after = (
        [e.primitive.name for e in all_equations(part)]
        for part in (access.row_program.before, access.row_program.of_row)
    )
    assert "cholesky" in before and before.count("triangular_solve") > 1
    assert "cholesky" not in after and "triangular_solve" not in after
    expected = clipped_sum_of(kernel.bind(PAIRS, {}).split.log_likelihood, z, rows, 2.0)
    assert all(jnp.allclose(total[name], expected[name], rtol=1e-3, atol=1e-3) for name in z)


@pytest.mark.slow
def test_chains_are_proved_and_run():
    kernel = dpppl.DPSGLD(correlated_normal, clipping_norm=2.0, step_size=1e-3)
    mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=2, num_chains=2, chain_method="vectorized", target_epsilon=1.0,
                      target_delta=1e-3, progress_bar=False, print_cost=False)  # fmt: skip
    mcmc.run(dpppl.secret_key(), *MODELS["LKJ"][1])
    assert mcmc.get_samples()["correlation"].shape == (4, 4, 4)


@pytest.mark.slow
def test_gradients_in_the_parameters_of_a_guide_are_jaxs():
    arrays = (MODELS["LKJ"][1][0][:, :3],)
    guide = AutoMultivariateNormal(correlated_normal)
    svi = dpppl.SVI(correlated_normal, guide, optax.sgd(1e-3), clipping_norm=1.0, noise_multiplier=1.0,
                    subsampling=dpppl.FullBatch(), gradient="per_parameter", print_cost=False)  # fmt: skip
    objective, phi = bind_objective(svi, jax.random.key(1), arrays, {})
    rows, public = objective.split.arrays(arrays, {})
    arguments = phi, rows, (public, jax.random.key(2))
    both = [jax.vmap(f(objective.mean_log_likelihood), (None, 0, None)) for f in (gradient, jax.grad)]
    found, expected = (jax.jit(f)(*arguments) for f in both)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), found, expected)
    names = {"gather", "scatter-add"}
    assert not by_row(gradient, objective.mean_log_likelihood, *arguments, names)
    assert by_row(jax.grad, objective.mean_log_likelihood, *arguments, names)
