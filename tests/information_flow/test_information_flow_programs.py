"""The library's own programs are accepted: every kernel and every guide on every model, traced and never run."""

import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import lax
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from small_models import linear as regression
from small_models import seen
from test_svi import amortised_guide, factor_analysis
from zoo import ZOO

import dpppl
from dpppl import information_flow
from dpppl.errors import PrivacyLeakError
from dpppl.mcmc.chains import Call
from dpppl.model.split import split_model
from dpppl.subsampling import FullBatch, Partition, Poisson
from models import vae
from models.bayesian_cnn import bayesian_cnn
from models.bayesian_mlp import bayesian_mlp
from models.heteroscedastic_regression import heteroscedastic_regression

X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
BY_NAME = {entry.name: entry for entry in ZOO}


STRATEGIES = ("vmap", "microbatch", "auto")


def kernels_of(model, number):
    """Three kernels with three ways of subsampling; other pairs, and other ways to sum, for other numbers."""
    schemes = [FullBatch(), Poisson(0.4), Partition(3)]
    makers = [
        functools.partial(dpppl.DPSGLD, step_size=0.01),
        functools.partial(dpppl.DPSGHMC, step_size=0.01, friction=0.1),
        functools.partial(dpppl.DPSGNHT, step_size=0.01),
    ]
    for k, maker in enumerate(makers):
        kernel = maker(model, clipping_norm=1.0, subsampling=schemes[(k + number) % 3])
        strategy = STRATEGIES[(k + number // 3) % 3]
        yield kernel.copy(mechanism=dataclasses.replace(kernel.mechanism, strategy=strategy))


def num_chains_of(k, number):
    return 3 if (k + number // 9) % 3 == 0 else 1


def program_of(kernel, args, kwargs, num_chains=1):
    """A chunk of a run of one chain, or of vectorised ones: what verify_jaxpr takes."""
    one = jax.eval_shape(lambda: jax.random.key(0))
    key = one if num_chains == 1 else jax.eval_shape(lambda key: jax.random.split(key, num_chains), one)
    state = jax.eval_shape(lambda key: kernel.init(key, 1, None, args, kwargs), key)
    bound = kernel.bind(args, kwargs)
    rows, public = bound.split.arrays(args, kwargs)
    call = Call(rows=rows, public=public, fields=("z", "i"), discarded=0, num_collected=3)
    chunk = call.method(bound.step, call.fields, None if num_chains == 1 else jax.vmap).mapped_chunk
    number = jax.ShapeDtypeStruct((), np.int32)
    closed, outputs = jax.make_jaxpr(chunk, return_shape=True)(state, rows, public, number, number)
    first, count = len(jax.tree.leaves(state)), len(jax.tree.leaves(rows))
    return closed, dict(
        private_inputs=range(first, first + count),
        output_names=[jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(outputs)],
        secret_outputs=(".rng_key",),
        public_constants=True,
    )


@functools.cache
def split_of(number):
    args, kwargs = ZOO[number].data(0)
    return split_model(ZOO[number].model, args, kwargs)


def use_split(split, monkeypatch):
    for module in ("dpppl.mcmc.kernel", "dpppl.svi.binding"):
        monkeypatch.setattr(f"{module}.split_in_units", lambda *args, **kwargs: split)


@pytest.fixture
def split_once(number, monkeypatch):
    """The structure of a model is found once for all kernels and guides."""
    use_split(split_of(number), monkeypatch)


@pytest.mark.quick_cases(1)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("number", range(len(ZOO)), ids=[entry.name for entry in ZOO])
def test_every_kernel_on_every_model_is_accepted(number, split_once):
    args, kwargs = ZOO[number].data(0)
    for k, kernel in enumerate(kernels_of(ZOO[number].model, number)):
        closed, options = program_of(kernel, args, kwargs, num_chains_of(k, number))
        report = information_flow.verify_jaxpr(closed, **options)
        assert (report.doors, report.keys) == (1, 1)


def test_all_pairs_are_met():
    met = {
        (k, type(kernel.mechanism.subsampling), kernel.mechanism.strategy, num_chains_of(k, number))
        for number in range(len(ZOO))
        for k, kernel in enumerate(kernels_of(None, number))
    }
    assert len(met) == 3 * 3 * 3 * 2


def test_a_kernel_whose_key_is_released_is_refused():
    closed, options = program_of(dpppl.DPSGLD(regression, clipping_norm=1.0, step_size=0.01), (X, X[:, 0]), {})
    with pytest.raises(PrivacyLeakError, match=r"\[0\]\.rng_key: it holds key material\. Path: input \d"):
        information_flow.verify_jaxpr(closed, **options | {"secret_outputs": ()})


def test_a_rule_of_batching_in_a_model_is_refused():
    """Its rule, which only `jax.vmap` calls, would return the first row for every row."""

    @jax.custom_batching.custom_vmap
    def first(row):
        return row

    first.def_vmap(lambda size, batched, rows: (rows[jnp.zeros(size, int)], True))
    for model in (lambda x, y: regression(first(x), y), lambda x, y: regression(jax.jit(first)(x), y)):
        with pytest.raises(dpppl.UnsupportedModelError, match="custom_vmap"):
            split_model(model, (X, X[:, 0]), {})


SETTINGS = {
    "mean field": (AutoNormal, {}),
    "particles": (AutoNormal, {"num_particles": 2, "subsampling": Partition(2)}),
    "per parameter": (AutoLowRankMultivariateNormal, {"gradient": "per_parameter", "num_particles": 2}),
    "a point": (AutoDelta, {"subsampling": Partition(2)}),
    "a flow": (AutoIAFNormal, {}),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("guide", "options"), SETTINGS.values(), ids=SETTINGS)
def test_svi_is_accepted(guide, options):
    settings = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "subsampling": Poisson(0.3)} | options
    assert accepted(dpppl.SVI(regression, guide(regression), optax.adam(0.1), **settings), (X, X[:, 0]))


def test_svi_with_latents_of_rows_is_accepted():
    settings = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "subsampling": Poisson(0.3), "gradient": "per_parameter"}
    assert accepted(dpppl.SVI(factor_analysis, amortised_guide, optax.adam(0.1), **settings), (X,))


# Every guide on every model


def dropout(model):
    return dpppl.AutoDropout(model, rate=0.5)


def written(model):
    """A guide of the models whose only latent is `w`."""

    def guide(*args, **kwargs):
        factor = numpyro.param("factor", 0.1 * jnp.eye(3), constraint=dist.constraints.lower_cholesky)
        numpyro.sample("w", dist.MultivariateNormal(numpyro.param("loc", jnp.zeros(3)), scale_tril=factor))

    return guide


GUIDES = [
    AutoDelta,
    AutoDiagonalNormal,
    AutoMultivariateNormal,
    AutoLowRankMultivariateNormal,
    AutoIAFNormal,
    AutoNormal,
]
GRADIENTS = ["aligned", "per_parameter"]


def svi_program_of(svi, args, kwargs):
    """A few steps, as a run makes them: what verify_jaxpr takes."""
    state = jax.eval_shape(lambda key: svi.set_up(key, args, kwargs), jax.random.key(0))
    objective = svi.objective()
    arguments = state, *objective.split.arrays(args, kwargs)
    step = svi.step_function(objective, svi.mechanism, svi.noise_multiplier)

    def steps(state, rows, public):
        return lax.fori_loop(0, 3, lambda _, state: step(state, rows, public)[0], state)

    closed, outputs = jax.make_jaxpr(steps, return_shape=True)(*arguments)
    first, count = (len(jax.tree.leaves(argument)) for argument in arguments[:2])
    return closed, dict(
        private_inputs=range(first, first + count),
        output_names=[jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(outputs)],
        secret_outputs=(".rng_key",),
        public_constants=True,
    )


def accepted(svi, args, kwargs=None):
    closed, options = svi_program_of(svi, args, {} if kwargs is None else kwargs)
    report = information_flow.verify_jaxpr(closed, **options)
    return (report.doors, report.keys) == (1, 1)


def svi_of(model, guide, gradient, subsampling):
    settings = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "subsampling": subsampling, "gradient": gradient}
    return dpppl.SVI(model, guide(model), optax.adam(0.1), **settings)


def accepted_on(number, guide, gradient):
    subsampling = [FullBatch(), Poisson(0.3), Partition(3)][number % 3]
    return accepted(svi_of(ZOO[number].model, guide, gradient, subsampling), *ZOO[number].data(0))


@pytest.mark.quick_cases(1)
@pytest.mark.thinned(4)
@pytest.mark.parametrize("number", range(len(ZOO)), ids=[entry.name for entry in ZOO])
def test_guides_on_every_model_are_accepted(number, split_once):
    """AutoNormal; on every second model also another guide, in turns, so that each guide meets both gradients."""
    assert accepted_on(number, AutoNormal, "aligned")
    turn, second = divmod(number, 2)
    assert second or accepted_on(number, GUIDES[turn % 6], GRADIENTS[turn // 6 % 2])


NUMBERS = {entry.name: number for number, entry in enumerate(ZOO)}
SPECIAL = {
    dropout: ["softmax_regression", "plate_outside", "flax_network", "nnx_network"],
    written: ["index_idiom", "pytree_arguments", "public_arguments", "factor_inside"],
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("guide", "number", "gradient"),
    [
        pytest.param(guide, NUMBERS[name], GRADIENTS[k % 2], id=f"{guide.__name__}-{name}")
        for guide, names in SPECIAL.items()
        for k, name in enumerate(names)
    ],
)
def test_dropout_and_written_guides_are_accepted(guide, number, gradient, split_once):
    assert accepted_on(number, guide, gradient)


# Time

NETWORKS = {
    "bayesian_mlp": (bayesian_mlp, (X, np.arange(6))),
    "bayesian_cnn": (bayesian_cnn, (np.zeros((6, 28, 28, 1), np.float32), np.arange(6))),
    "heteroscedastic_regression": (heteroscedastic_regression, (X, X[:, 0])),
}
TIMED = ["logistic_gaussian", "linear_regression", "poisson_regression", "hierarchical_logistic_regression",
         "enumerated_gaussian_mixture", "zero_inflated_poisson", *NETWORKS, "vae"]  # fmt: skip


@pytest.mark.quick_cases(1)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", TIMED)
def test_the_proof_takes_no_time(name, monkeypatch):
    """The models of `models/`, with long programs. Processor time; usually below 0.06 s."""
    information_flow.verify(lambda x: x, 1.0, private=())  # what is found out about JAX once
    if name == "vae":
        arguments, programs = ((X,), {"latent": 2, "hidden": 3}), []
        svi = svi_of(vae.model, lambda model: vae.guide, "per_parameter", Partition(3))
    else:
        entry = BY_NAME.get(name)
        model, arguments = (entry.model, entry.data(0)) if entry else (NETWORKS[name][0], (NETWORKS[name][1], {}))
        split = split_of(NUMBERS[name]) if entry else split_model(model, *arguments)
        use_split(split, monkeypatch)
        kernel = dpppl.DPSGNHT(model, clipping_norm=1.0, step_size=0.01, subsampling=Partition(3))
        programs = [program_of(kernel, *arguments, num_chains=3)]
        svi = svi_of(model, AutoNormal, "per_parameter", Partition(3))
    for closed, options in [*programs, svi_program_of(svi, *arguments)]:
        seconds = []
        for _ in range(3):  # other work on the machine
            start = time.process_time()
            information_flow.verify_jaxpr(closed, **options)
            seconds.append(time.process_time() - start)
        assert min(seconds) < 0.3


# Models that were once refused for no reason


def observing(y, distribution):
    seen(y, distribution)


def weights(size=3):
    return numpyro.sample("w", dist.Normal(0.0, 1.0).expand([size]).to_event(1))


def python_numbers(x, y):
    observing(y, dist.VonMises(numpyro.sample("mu", dist.VonMises(0, 2)), 2.0))


def complex_numbers(x, y):
    w = weights()
    with numpyro.plate("data", y.shape[0]):
        numpyro.factor("y", -(jnp.abs(y * (1 + 2j) - x @ w) ** 2))


def determinant(x, y):
    w = weights()
    numpyro.factor("prior", jnp.linalg.slogdet(jnp.outer(w, w) + jnp.eye(3))[1])
    observing(y, dist.Normal(x @ w, jnp.exp(0.0 * jnp.linalg.slogdet(jnp.outer(w, w) + jnp.eye(3))[1])))


def fixed_draws(x, y):
    turned = jax.random.orthogonal(jax.random.key(0), 3) @ weights()
    observing(y, dist.Normal(x @ turned, jax.random.binomial(jax.random.key(1), 10, 0.3) + 1.0))


def work_on_rows(x, y):
    """Standardised row by row and by public numbers, an intercept added, reshaped, columns chosen."""
    x = lax.stop_gradient(((x - 1.0) / 2.0).T.T.reshape(-1, 3, 1).squeeze(-1))[:, ::-1]
    x = jnp.concatenate([x - x.mean(1, keepdims=True), jnp.ones((x.shape[0], 1))], 1)
    observing(y, dist.Normal(x @ weights(4), 1.0))


ONCE_REFUSED = [python_numbers, complex_numbers, determinant, fixed_draws, work_on_rows]


@pytest.mark.quick_cases(2)
@pytest.mark.filterwarnings("ignore:the model captures")  # a few rows, and draws that are fixed
@pytest.mark.parametrize(("model", "x64"), [(python_numbers, True), *((model, False) for model in ONCE_REFUSED)])
def test_what_was_refused_for_no_reason_is_accepted(model, x64):
    """Lowered too: Python's numbers once met the 64 bits of the noise."""
    with jax.enable_x64(x64):
        kernel = dpppl.DPSGLD(model, clipping_norm=1.0, step_size=0.01)
        closed, options = program_of(kernel, (X, X[:, 0]), {})
        assert information_flow.verify_jaxpr(closed, **options).doors == 1
        assert jax.jit(jax.extend.core.jaxpr_as_fun(closed)).lower(*closed.in_avals).as_text()
