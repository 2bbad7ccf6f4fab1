"""Each refusal names the site, the cause and the cure, and never a data value."""

import functools
import itertools
import random
import traceback

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro import handlers
from numpyro.contrib.control_flow import cond, scan
from numpyro.contrib.module import flax_module, random_flax_module, random_nnx_module
from numpyro.infer.reparam import LocScaleReparam
from small_models import latent, seen

from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.model.arguments import Public
from dpppl.model.split import split_model

N = 7
SECRET = 98765.25
X = np.full(N, SECRET, np.float32)
Y = np.full(N, SECRET, np.float32)


def refused(model, *args, kind=UnsupportedModelError, **kwargs) -> str:
    """The message that refuses `model`, which tells no data value."""
    with pytest.raises(kind) as caught:
        split_model(model, args, kwargs)
    printed = "".join(traceback.format_exception(caught.value))
    assert "98765" not in printed and "9876" not in str(caught.value)
    return str(caught.value)


def any_model(x, y=None, extra=None):
    w = latent()
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def changing(kept, change):
    """A model whose mean, prior or sites follow what `change(kept)` returns, another value at each call."""
    return lambda y: seen(y, change(kept))


def more(kept, make):
    kept.append(make())
    return kept


def drawn(mean=0.0, count=()):
    return jnp.sum(numpyro.sample("w", dist.Normal(mean, 1.0).expand(count).to_event(len(count))))


CHANGING = {
    "tracers in a list": changing([], lambda kept: sum(more(kept, latent))),
    "numbers in a list": changing([], lambda kept: latent() * len(more(kept, int))),
    "a cache": changing({}, lambda kept: kept.setdefault("w", latent())),
    "names": changing(itertools.count(), lambda kept: latent(f"w{next(kept)}")),
    "sites": changing(itertools.count(), lambda kept: latent() + (latent("more") if next(kept) % 2 else 0.0)),
    "shapes": changing(itertools.count(1), lambda kept: drawn(0.0, (next(kept),))),
    "an iterator": changing(iter((1.0, 2.0)), lambda kept: drawn(next(kept))),
    "NumPy's numbers": changing(np.random.default_rng(0), lambda kept: drawn(kept.normal())),
    "Python's numbers": changing(random.Random(0), lambda kept: latent() + kept.random()),
}


@pytest.mark.parametrize("change", CHANGING)
def test_a_model_that_changes_from_call_to_call(change):
    message = refused(CHANGING[change], Y)
    assert "another one each time it is called" in message and "anew in each call" in message


def test_observed_outside_the_data_plate():
    def model(x, y):
        numpyro.sample("y", dist.Normal(latent() * x, 1.0).to_event(1), obs=y)

    assert refused(model, X, Y) == (
        "site 'y' is observed outside the data plate; wrap it in numpyro.plate(\"data\", x.shape[0]), without .to_event, "
        "the plate as long as the private arrays, whose rows must be independent (the steps of one time series are not)."
    )


def two_plates(y):
    with numpyro.plate("people", N, dim=-2), numpyro.plate("items", N, dim=-1):
        numpyro.sample("y", dist.Normal(latent(), 1.0), obs=y)


def test_two_plates_that_fit_ask_for_data_plate():
    message = refused(two_plates, np.full((N, N), SECRET), kind=ConfigurationError)
    assert "plates 'people' and 'items'" in message and "data_plate='people'" in message


def observes(law):
    """A model that observes y, each row under `law(x, y)`, or around it if it is a number."""

    def model(x, y):
        of_rows = law(x, y)
        seen(y, of_rows if isinstance(of_rows, dist.Distribution) else dist.Normal(of_rows, 1.0))

    return model


def drawn_from(prior, name="w"):
    return numpyro.sample(name, prior)


OF_ROWS, OF_NUMBER = "the prior of site 'w' depends on the data", "the prior of site 'w' depends on the number of rows"
OF_NUMBER_TOO = "the likelihood of site 'y' depends on the number of rows"
COUPLED = "site 'y' couples the rows, or depends on their number or position"
IN_JAX = "site 'step' is inside jax.lax control flow, jax.jit or jax.vmap"
IN_NUMPYRO = "numpyro.contrib.control_flow, whose sample sites cannot be split"

LAWS = {
    "a prior of rows": (lambda x, y: drawn_from(dist.Normal(x.mean(), 1.0)), f"{OF_ROWS}; make it a constant"),
    "a prior of rows through a loop":
        (lambda x, y: drawn_from(dist.Normal(0.0, jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + x[0]), (0, 1.0))[1])), OF_ROWS),
    "a support of rows": (lambda x, y: drawn_from(dist.Uniform(0.0, y.max())), "the support of site 'w' depends on the data"),
    "a support of a latent": (lambda x, y: x * drawn_from(dist.Uniform(0.0, drawn_from(dist.HalfNormal(1.0), "top"))),
                              "the support of site 'w' depends on site 'top' (dynamic support)"),
    "a float of the number of rows": (lambda x, y: x * drawn_from(dist.Normal(0.0, 1.0 / x.shape[0])), OF_NUMBER),
    "JAX's number of rows": (lambda x, y: x * drawn_from(dist.Normal(0.0, jnp.ones(2)[0] / x.shape[0])), OF_NUMBER),
    "NumPy's number of rows": (lambda x, y: x * drawn_from(dist.Normal(0.0, (np.arange(2.0) / x.shape[0])[1])), OF_NUMBER),
    "an array of the number of rows": (lambda x, y: x * drawn_from(dist.Normal(np.arange(2.0) / x.shape[0], 1.0).to_event(1))[0], OF_NUMBER),
    "a threshold of the number of rows": (lambda x, y: x * drawn_from(dist.Normal(0.0, 0.01 if x.shape[0] > 4 else 10.0)), OF_NUMBER),
    "a part of the number of rows": (lambda x, y: x * drawn_from(dist.Normal(0.0, 1.0 + x.shape[0] // 4)), OF_NUMBER),
    "a threshold in the likelihood": (lambda x, y: dist.Normal(latent() * x, 0.01 if x.shape[0] > 4 else 10.0), OF_NUMBER_TOO),
    "a part in the likelihood": (lambda x, y: dist.Normal(latent() * x, jnp.ones(x.shape[0]) * (1 + x.shape[0] // 4)), OF_NUMBER_TOO),
    "another program from some rows on": (lambda x, y: latent() * (x if x.shape[0] > 4 else jnp.exp(x)), OF_NUMBER_TOO),
    "a latent for each row": (lambda x, y: x * drawn_from(dist.Normal(0.0, 1.0).expand([x.shape[0]]).to_event(1)),
                              "site 'w' is a latent of each row, one value for each"),
    "a factor of rows": (lambda x, y: (w := latent(), numpyro.factor("penalty", -jnp.sum(w * x)))[0],
                         "factor site 'penalty' depends on the data but is outside the data plate; move it into"),
    "standardised": (lambda x, y: latent() * (x - x.mean()), COUPLED),
    "the number of rows in the likelihood": (lambda x, y: dist.Normal(latent() * x, jnp.sqrt(x.shape[0])), COUPLED),
    "neighbours": (lambda x, y: latent() * jnp.roll(x, 1), COUPLED),
    "a deviation of the batch": (lambda x, y: latent() * x / x.std(), COUPLED),
    "rows in a jit": (lambda x, y: jax.jit(lambda w: w * jnp.asarray(X))(latent()), "captures an array float32[N]"),
    "rows along another axis": (lambda x, y: (latent() * np.tile(X, (2, 1)))[0], "captures an array float32[2, N]"),
    "an array by NumPy": (lambda x, y: dist.Normal(latent() * x, np.ones(x.shape[0])), "use jax.numpy instead of NumPy"),
    "a param": (lambda x, y: x * numpyro.param("w", 1.0), "site 'w' is a numpyro.param"),
    "a network of params": (lambda x, y: flax_module("net", flax.linen.Dense(1), input_shape=(1, 1))(x[:, None])[:, 0],
                            "site 'net$params' is a numpyro.param"),
    "jax.lax.scan": (lambda x, y: x * jax.lax.scan(lambda total, _: (total + latent("step"), None), 0.0, jnp.arange(3))[0], IN_JAX),
    "jax.jit": (lambda x, y: x * jax.jit(lambda: latent("step"))(), IN_JAX),
    "numpyro's scan": (lambda x, y: x * scan(lambda total, _: (total + latent("step"), None), 0.0, jnp.arange(3))[0], IN_NUMPYRO),
    "numpyro's cond": (lambda x, y: x * cond(True, lambda _: latent("a"), lambda _: latent("a"), None), IN_NUMPYRO),
    "a global discrete latent": (lambda x, y: x * drawn_from(dist.Bernoulli(0.5), "kind"), "site 'kind' is a global discrete latent, which has no gradient"),
    "no bijection": (lambda x, y: x * drawn_from(dist.ProjectedNormal(jnp.ones(3)), "direction")[0], "site 'direction' has a support without a bijection"),
    "a side effect": (lambda x, y: (jax.debug.print("{}", y), latent() * x)[1], "side effect (jax.debug.print, a callback, checkify)"),
    "a latent that is hidden": (lambda x, y: handlers.block(latent)() * x, "the model draws random numbers of its own"),
    "a centring that is learnt": (lambda x, y: handlers.reparam(latent, config={"w": LocScaleReparam()})() * x, "site 'w_centered' is a numpyro.param"),
    "random numbers of its own": (lambda x, y: latent() * x * jax.random.bernoulli(numpyro.prng_key(), 0.5), "the model draws random numbers of its own"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAWS)
def test_what_a_row_is_observed_under(name):
    law, words = LAWS[name]
    assert words in refused(observes(law), X, Y)


@pytest.mark.parametrize("size", [lambda x: x.shape[0], lambda x: N])
def test_the_number_of_rows_where_it_changes_nothing(size):
    """As lengths of arrays and plates, as a public number, and in deterministic sites, which are then left out."""

    def model(x, y, n):
        w = numpyro.sample("w", dist.Normal(0.0, 0.01 if n > 4 else 10.0))
        numpyro.deterministic("few", w if x.shape[0] < 4 else -w)
        numpyro.deterministic("twice", 2.0 * w)
        with numpyro.plate("data", size(x)) as index:
            mean = jnp.broadcast_to(w, x.shape) * x + jnp.zeros(x.shape[0])[index] + jnp.stack([x, y], -1) @ jnp.ones(2)
            numpyro.sample("y", dist.Normal(mean, jnp.ones_like(x)), obs=y)

    split = split_model(model, (X, Y, N), {})
    assert split.deterministic == ("twice",)
    expected = dist.Normal(0.0, 0.01).log_prob(0.0)
    np.testing.assert_allclose(split.log_prior({"w": jnp.zeros(())}, {}), expected, rtol=1e-5)


def test_constant_array_bounds_are_not_dynamic():
    model = observes(lambda x, y: x * drawn_from(dist.Uniform(jnp.zeros(2), jnp.ones(2)).to_event(1))[0])
    assert split_model(model, (X, Y), {}).latents["w"].shape == (2,)


def test_rows_of_a_fixed_number():
    def constant(x, y, n):
        seen(y, latent() * jnp.zeros(n), size=n)

    def reshaped(x, y):
        seen(y, latent() * x.reshape(N), size=N)

    message = refused(reshaped, X, Y)
    assert "fixes the number of rows" in message and "x.reshape(N)" in message
    assert "the model" in refused(constant, X, Y, N)
    assert "site 'y' fixes the number of rows" in refused(constant, X[:3], Y[:3], 3)


class Normalised(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x):
        return flax.linen.Dense(1)(flax.linen.BatchNorm(use_running_average=False)(x))[..., 0]


def test_mutable_state():
    def with_network(make):
        def model(x, y):
            net = make()
            seen(y, lambda _: net(x[:, None]).reshape(-1))

        return model

    normalised = dict(input_shape=(1, 1), mutable=["batch_stats"])
    for make in (
        lambda: random_flax_module("net", Normalised(), dist.Normal(), **normalised),
        lambda: random_nnx_module("net", nnx.BatchNorm(1, rngs=nnx.Rngs(0)), dist.Normal()),
    ):
        assert "site 'net$state' is mutable state (batch norm" in refused(with_network(make), X, Y)

    def with_dropout(**options):
        return with_network(lambda: random_nnx_module("net", Dropping(nnx.Rngs(0), **options), dist.Normal()))

    for options in ({}, {"deterministic": True}):
        message = refused(with_dropout(**options, draws=True), X, Y)
        assert "holds a random generator" in message and "rngs left out" in message
    assert split_model(with_dropout(deterministic=True), (X, Y), {}).latents


class Dropping(nnx.Module):
    def __init__(self, rngs, draws=False, **options):
        self.linear, self.dropout = (
            nnx.Linear(1, 1, rngs=rngs),
            nnx.Dropout(0.5, rngs=rngs if draws else None, **options),
        )

    def __call__(self, x):
        return self.dropout(self.linear(x))


def test_factor_that_does_not_depend_on_a_private_argument():
    def model(x):
        w = latent()
        with numpyro.plate("data", x.shape[0]):
            numpyro.factor("constant", -(w**2))

    assert "sites 'constant' inside the data plate do not depend on a private argument" in refused(model, X)


def test_captured_rows():
    def closure(x):
        seen(Y, latent() * x)

    def listed(x):
        seen(jnp.asarray(Y.tolist()), latent() * x)

    conditioned = handlers.condition(any_model, data={"y": jnp.asarray(Y)})
    for model in (closure, listed, functools.partial(any_model, y=Y), conditioned):
        message = refused(model, X)
        assert "captures an array float32[N] with an axis as long as the data plate" in message
        assert "pass it as an argument" in message


@pytest.mark.parametrize(("num_rows", "written"), [(N, False), (6, False), (120, True), (400, None)])
def test_as_many_captured_numbers_as_rows(num_rows, written):
    """They could be the rows: N numbers of a closure came back in a deterministic site."""
    numbers = [SECRET + k * (written is not None) for k in range(num_rows)]  # or equal ones

    def model(x, numbers):
        w = latent()
        numpyro.deterministic("copy", jnp.stack([w + number for number in numbers]))
        seen(x, w)

    def closure(some):
        some = some if written is not False else [jnp.float32(number) for number in some]
        return lambda x: model(x, some)

    rows = np.full(num_rows, SECRET, np.float32)
    message = refused(closure(numbers), rows)
    assert "single numbers, as many as there are rows" in message and "pass them as one array" in message
    few = num_rows // 3 if written is not False else num_rows // 2  # what is written is traced twice
    listed = split_model(closure(numbers[:few]), (rows,), {}).assumed_public
    assert listed == (f"{few} numbers", f"captured 'some' (list of {few} numbers)")
    given = split_model(model, (rows, Public(np.asarray(numbers, np.float32)[: num_rows // 2])), {})
    assert given.assumed_public == (f"argument 'numbers' (float32[{num_rows // 2}])",)


def test_no_private_argument():
    def model():
        seen(Y, latent(), size=N)

    def public(y):
        seen(y, latent(), size=N)

    assert "has no private argument: pass the data as array arguments" in refused(model)
    assert "has no private argument" in refused(public, Public(Y))
    assert "has no private argument" in refused(public, 1.0)


def test_obs_mask():
    def model(x, y, observed):
        w = latent()
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", law(jnp.exp(w * x)), obs=y, obs_mask=observed)

    for law in (dist.Poisson, dist.Exponential):  # noqa: B007
        message = refused(model, X, Y, np.arange(N) > 2)
        assert "site 'y_unobserved'" in message and "If nothing depends on 'y', leave them out" in message

    def weighted(x, y, observed, weight):
        with numpyro.plate("data", x.shape[0]), handlers.scale(scale=weight):
            x = numpyro.sample("x", dist.Normal(0.0, 1.0), obs=x, obs_mask=observed)
            numpyro.sample("y", dist.Normal(latent() * x, 1.0), obs=y)

    message = refused(weighted, X, Y, np.arange(N) > 2, np.ones(N, np.float32))  # log(sum p^w) is not w log(sum p)
    assert "is scaled, and 'x_unobserved' is summed out in each row" in message


def test_observed_sites_in_control_flow():
    def model(x, y):
        w = latent()
        with numpyro.plate("data", x.shape[0]):
            scan(lambda c, v: (c, numpyro.sample("y", dist.Normal(w, 1.0), obs=v)), 0.0, y[None])

    assert IN_NUMPYRO in refused(model, X, Y)


def branch(x, y):
    w = latent()
    with numpyro.plate("data", x.shape[0]):
        if y[0] > 0:
            w = -w
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def selected(x, y):
    w = latent()
    seen(y, w * x[y > 0].sum())


def revealing(x, y):
    with numpyro.plate("data", x.shape[0]):
        if np.any(np.asarray(y) > 0):
            raise ValueError(f"bad value {y}")
        numpyro.sample("y", dist.Normal(latent(), 1.0), obs=y)


@pytest.mark.parametrize(
    "model, line",
    [
        (branch, "if y[0] > 0:"),
        (selected, "x[y > 0].sum()"),
        (revealing, "if np.any(np.asarray(y) > 0):"),
    ],
)
def test_a_model_that_branches_on_values(model, line):
    message = refused(model, X, Y)
    cause = "chooses entries of an array by truth values" if model is selected else "the value of an array"
    assert cause in message
    assert "test_model_refusals.py" in message and line in message
    with pytest.raises(UnsupportedModelError) as caught:
        split_model(model, (X, Y), {})
    assert caught.value.__suppress_context__ and caught.value.__cause__ is None


def test_latents_of_a_row():
    def infinite(x, y):
        with numpyro.plate("data", x.shape[0]):
            kind = numpyro.sample("kind", dist.Poisson(0.5))
            numpyro.sample("y", dist.Normal(kind * x, 1.0), obs=y)

    def many(x, y):
        with numpyro.plate("data", x.shape[0]):
            kinds = [numpyro.sample(f"kind{i}", dist.Bernoulli(0.5)) for i in range(11)]
            numpyro.sample("y", dist.Normal(sum(kinds) * x, 1.0), obs=y)

    assert "site 'kind' is a discrete latent of each row that cannot be summed out" in refused(infinite, X, Y)
    assert "have 2048 joint values, too many to sum out" in refused(many, X, Y)


STEPS = {
    "comparison": lambda at, x: jnp.where(x < at, 1.0, -1.0),
    "rounding": lambda at, x: jnp.round(at) * x,
    "sign": lambda at, x: jnp.sign(at) * x,
    "index": lambda at, x: jnp.array([0.0, 1.0, 2.0])[jnp.clip(at, 0, 2).astype(int)] * x,
    "mask": lambda at, x: jax.jit(lambda at: (at > 0).astype(float))(at) * x,
}
SLOPES = {
    "logistic": lambda at, x: jax.nn.sigmoid((x - at) / 0.1),
    "kink": lambda at, x: jnp.maximum(x - at, 0.0),
    "step and slope": lambda at, x: jnp.where(x < at, 1.0, at),
    "straight through": lambda at, x: (at + jax.lax.stop_gradient(jnp.round(at) - at)) * x,
    "scan": lambda at, x: jax.lax.scan(lambda c, _: (c * at, None), jnp.ones_like(x), None, 3)[0],
}


def of_latent(mean):
    return observes(lambda x, y: mean(latent("at"), x))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("mean", STEPS.values(), ids=STEPS)
def test_latents_whose_gradient_is_zero_everywhere(mean):
    """Such a latent would keep its prior, whatever the data are, and samples of the others would follow it."""
    message = refused(of_latent(mean), X, Y)
    assert (
        "site 'at' enters the likelihood through steps only" in message
        and "jax.nn.sigmoid((t - at) / width)" in message
    )


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("mean", SLOPES.values(), ids=SLOPES)
def test_latents_with_a_gradient_somewhere(mean):
    assert "at" in split_model(of_latent(mean), (X, Y), {}).latents


def test_a_rounding_that_is_not_known_passes(monkeypatch):
    """A mutant: without the names of roundings two of the steps above would be taken."""
    monkeypatch.setattr("dpppl.jaxprs._STEPS", set())
    assert all("at" in split_model(of_latent(STEPS[name]), (X, Y), {}).latents for name in ("rounding", "sign"))


def test_another_plate_that_subsamples():
    def model(y):
        w = latent()
        with numpyro.plate("data", N, dim=-2), numpyro.plate("items", 4, subsample_size=2, dim=-1) as index:
            numpyro.sample("y", dist.Normal(w, 1.0), obs=y[:, index])

    assert "plate 'items' subsamples, but only the data plate 'data' may" in refused(model, np.full((N, 4), SECRET))


class Frame:
    def __array__(self, dtype=None, copy=None):
        raise AssertionError(SECRET)


@pytest.mark.parametrize(
    "extra, message",
    [
        (np.full(N + 1, SECRET), "different numbers of rows: 'x' and 'y' have 7, 'extra' has 8"),
        (np.asarray(SECRET), "argument 'extra' is an array without rows; wrap it in dpppl.Public"),
        (
            {"y": [(SECRET,), *[(SECRET, 1)] * N]},
            "argument 'extra['y']' is a list of 8 entries, and the data have 7 rows",
        ),
        (Frame(), "argument 'extra' is a Frame that gives no array of numbers; pass a NumPy or JAX array"),
        (np.array(["98765"] * N), "argument 'extra' is an array of dtype str_; arrays are numbers"),
        (
            np.array([SECRET] * N, object),
            "argument 'extra' is an array of dtype object_; arrays are numbers: pass extra.astype('float32')",
        ),
    ],
    ids=["other_axis", "scalar", "nested_list", "array_like", "strings", "objects"],
)
def test_arguments_that_are_neither_rows_nor_public(extra, message):
    assert message in refused(any_model, X, Y, extra=extra, kind=ConfigurationError)


@pytest.mark.parametrize(
    "extra", [Public(np.ones(N + 1)), Public([1.0] * N), Public(len), np.float64(2.0), "name", None]
)
def test_public_and_other_arguments_pass(extra):
    assert split_model(any_model, (X, Y), {"extra": extra}).num_rows == N


def with_prior(prior, law):
    def model(y):
        sigma = numpyro.sample("sigma", prior())
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", law(sigma), obs=y)

    return model


NORMAL = lambda sigma: dist.Normal(0.0, sigma)  # noqa: E731
PARAMETERS = {
    "scale": (lambda: dist.Normal(0.0, 1.0), NORMAL, "the scale of site 'y' is latent 'sigma', whose prior is not positive: give it one"),
    "rate": (lambda: dist.StudentT(5.0, 1.0, 1.0), dist.Poisson, "write jnp.exp(sigma)"),
    "probability": (lambda: dist.Normal(0.5, 1.0), dist.Bernoulli, "whose prior is not between 0 and 1: give it one that is, or write jax.nn"),
    "traced": (lambda: dist.Normal(jnp.zeros(()), 1.0), NORMAL, "the scale of site 'y' is latent 'sigma', whose prior is not positive"),
    "of a regression": (lambda: dist.Normal(0.0, 1.0), lambda s: dist.Normal(jnp.zeros(9), s), "the scale of site 'y' is latent 'sigma'"),
    "in a mixture": (
        lambda: dist.Normal(0.0, 1.0),
        lambda s: dist.MixtureSameFamily(dist.Categorical(logits=jnp.zeros(2)), dist.NegativeBinomial2(jnp.ones(2), s)),
        "the concentration of site 'y' is latent 'sigma'",
    ),
    "cutpoints": (
        lambda: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        lambda cuts: dist.OrderedLogistic(0.0, cuts),
        "the cutpoints of site 'y' is latent 'sigma', whose prior is not in increasing order: give it one that is, such as dist.Tr",
    ),
    "ordered": (
        lambda: dist.TransformedDistribution(dist.Normal(0, 2).expand([2]), dist.transforms.OrderedTransform()),
        lambda cuts: dist.OrderedLogistic(0.0, cuts),
        None,
    ),
    "in absolute value": (lambda: dist.Normal(0.0, 1.0), lambda s: dist.Normal(0.0, jnp.abs(s)), None),
    "traced and far from 0": (lambda: dist.Normal(5.0 * jnp.ones(()), 1.0), NORMAL, None),
    "constant": (lambda: dist.Delta(1.0), NORMAL, "latent 'sigma' is a Delta, which is a constant"),
    "far from 0": (lambda: dist.Normal(5.0, 1.0), NORMAL, None),
    "positive": (lambda: dist.HalfNormal(1.0), NORMAL, None),
    "a share": (lambda: dist.Normal(0.5, 0.1), dist.Bernoulli, None),
    "without moments": (lambda: dist.Cauchy(0.0, 1.0), lambda mu: dist.Normal(mu, 1.0), None),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_latent_that_may_be_no_scale_is_refused(name):
    """By its prior: more than a fiftieth of it is outside of what the parameter takes."""
    prior, law, words = PARAMETERS[name]
    whole = ("rate", "probability", "a share", "in a mixture", "cutpoints", "ordered")
    y = np.arange(9) % 2 if name in whole else np.linspace(-1.0, 1.0, 9, dtype=np.float32)
    if words is None:
        assert split_model(with_prior(prior, law), (y,), {}).num_rows == 9
    else:
        with pytest.raises(UnsupportedModelError) as caught:
            split_model(with_prior(prior, law), (y,), {})
        assert words in str(caught.value)


ZERO = functools.partial(jnp.zeros, ())  # a traced constant, which NumPyro itself does not look at
CONSTANTS = {
    "Normal": (lambda: dist.Normal(0.0, ZERO()), "parameter 'scale' of site 'sigma' (Normal) must be positive: correct the constant"),
    "Gamma": (lambda: dist.Gamma(ZERO(), 1.0), "parameter 'concentration' of site 'sigma' (Gamma) must be positive"),
    "HalfCauchy": (lambda: dist.HalfCauchy(ZERO()), "'scale' of site 'sigma' (HalfCauchy) must be positive"),
    "StudentT": (lambda: dist.StudentT(ZERO(), 0.0, 1.0), "'df' of site 'sigma' (StudentT) must be positive"),
    "Exponential": (lambda: dist.Exponential(ZERO() - 1.0), "'rate' of site 'sigma' (Exponential) must be positive"),
    "Dirichlet": (lambda: dist.Dirichlet(jnp.zeros(3)), "'concentration' of site 'sigma' (Dirichlet) must be positive"),
    "one of three": (lambda: dist.Normal(0.0, jnp.arange(3.0)).to_event(1), "'scale' of site 'sigma' (Normal) must be positive"),
    "expanded": (lambda: dist.Normal(0.0, ZERO()).expand([3]).to_event(1), "'scale' of site 'sigma' (Normal) must be positive"),
    "truncated": (lambda: dist.TruncatedNormal(0.0, ZERO(), low=0.0), "'scale' of site 'sigma' (Normal) must be positive"),
    "a factor": (lambda: dist.MultivariateNormal(jnp.zeros(2), jnp.zeros((2, 2))), "'scale_tril' of site 'sigma' (MultivariateNormal) must"),
    "NaN": (lambda: dist.Normal(ZERO() / 0.0, 1.0), "'loc' of site 'sigma' (Normal) must be a number, not NaN"),
    "bounds": (lambda: dist.Uniform(1.0, ZERO()), "the lower bound of site 'sigma' is above its upper one: exchange them."),
    "shares": (
        lambda: dist.MixtureSameFamily(dist.Categorical(jnp.full(2, 0.4)), dist.Normal(jnp.zeros(2), 1.0)),
        "'probs' of site 'sigma' (CategoricalProbs) must be shares that add up to 1",
    ),
    "right": (lambda: dist.Normal(ZERO(), ZERO() + 1.0), None),
    "rounded": (lambda: dist.MixtureSameFamily(dist.Categorical(jnp.full(3, 0.3333)), dist.Normal(jnp.zeros(3), 1.0)), None),
    "no upper bound": (lambda: dist.TruncatedNormal(0.0, 1.0, low=ZERO()), None),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_that_is_no_parameter_is_refused(name):
    prior, words = CONSTANTS[name]
    model = with_prior(prior, lambda sigma: dist.Normal(jnp.sum(sigma), 1.0))
    if words is None:
        assert split_model(model, (np.linspace(-1.0, 1.0, 9, dtype=np.float32),), {}).num_rows == 9
    else:
        assert words in refused(model, Y)


def test_parameters_of_responses_are_checked_where_they_follow_from_constants_and_public_arrays():
    def model(y, cuts, scale=1.0):
        mu = numpyro.sample("mu", dist.Normal(0.0, scale))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.OrderedLogistic(mu, jnp.asarray(cuts)), obs=y)

    y, unordered = np.arange(9) % 3, "parameter 'cutpoints' of site 'y' (OrderedLogistic) must be in increasing order"
    assert unordered in refused(lambda y: model(y, (1.0, -1.0)), y)
    assert unordered in refused(model, y, Public(np.float32([1.0, -1.0])))
    assert "'scale' of site 'mu' (Normal)" in refused(model, y, Public(np.float32([-1.0, 1.0])), Public(np.zeros(1)))
    assert split_model(model, (y, Public(np.float32([-1.0, 1.0]))), {}).num_rows == 9


def test_what_runs_no_model_is_refused():
    def yields(y):
        yield numpyro.sample("mu", dist.Normal(0.0, 1.0))

    async def awaited(y):
        numpyro.sample("mu", dist.Normal(0.0, 1.0))

    for model in (yields, awaited):
        with pytest.raises(UnsupportedModelError, match="the model yields or is async, so calling it runs none of it"):
            split_model(model, (np.zeros(9, np.float32),), {})
