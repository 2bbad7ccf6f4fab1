"""What is public is said: numbers that a model captured one by one, and arguments by name and type."""

import functools
import warnings
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from wrong_inputs import COST, METHODS, x

import dpppl
from dpppl.model.split import split_model

N = 12
Y = np.random.default_rng(0).normal(size=N)


def copying(captured):
    """A model that gives back captured numbers, `captured(w)`, beside an ordinary likelihood."""

    def model(x, scale=1.0, table=None, word="any", *, switch=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        captured(w)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(w, scale), obs=x)

    return model


def in_one_site(w):
    numpyro.deterministic("copy", jnp.stack([jnp.asarray(float(y)) for y in Y]))


WAYS = {
    "in one site": in_one_site,
    "in a site each": lambda w: [numpyro.deterministic(f"copy{i}", float(y)) for i, y in enumerate(Y)],
    "added to a latent": lambda w: numpyro.deterministic("copy", jnp.stack([w + float(y) for y in Y])),
    "as JAX's numbers": lambda w: numpyro.deterministic("copy", jnp.stack([jnp.asarray(np.float32(y)) for y in Y])),
    "as a factor": lambda w: numpyro.factor("copy", -sum((w - float(y)) ** 2 for y in Y) / 1e6),
    "of truth values": lambda w: numpyro.deterministic("copy", jnp.stack([w + (2.0 if y > 0 else 3.0) for y in Y])),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_numbers_that_a_model_captured_are_counted_and_warned_of(method):
    """All private responses as single numbers: a run warns before it is charged. The report says so, and names arguments that
    are public, with their types and without their values. NoiseAware's program holds each of them ten times, and is refused."""
    runner, run = METHODS[method](copying(in_one_site))
    table = dpppl.Public({"rates": np.full((2, 3), 0.25, np.float32), "words": ["low", "high"], "size": 4})
    if method == "NoiseAware":
        with pytest.warns(dpppl.PrivacyWarning), pytest.raises(dpppl.PrivacyLeakError, match="single numbers stand in"):
            run(Y.astype(np.float32), 1.5, table, word="probit", switch=True)
        assert not runner.budget.charged
        return
    with pytest.warns(dpppl.PrivacyWarning, match="12 single numbers, at least as many numbers as there are rows"):
        run(Y.astype(np.float32), 1.5, table, word="probit", switch=True)
    report = runner.privacy_report()
    assert report.assumed_public == (
        "12 numbers",
        "argument 'scale' (float)",
        "argument 'table' (3 str in the keys of a dict, int, 2 str, float32[2, 3])",
        "argument 'switch' (bool)",
        "argument 'word' (str)",
    )
    assert "are assumed public: 12 numbers, argument" in str(report) and "probit" not in str(report)


@pytest.mark.parametrize("way", WAYS)
def test_however_they_are_written(way):
    with pytest.warns(dpppl.PrivacyWarning, match="at least as many numbers as there are rows"):
        said = split_model(copying(WAYS[way]), (Y.astype(np.float32),), {}).assumed_public
    (count,) = [int(line.split()[0]) for line in said if line.endswith(" numbers")]
    assert N <= count <= 3 * N


@pytest.mark.parametrize("shape", [(2, 6), (3, 4), (1, 2, 6)])
def test_captured_arrays_of_as_many_numbers_as_rows_are_warned_of(shape):
    """Responses in another shape are no axis as long as the data."""
    folded = Y.reshape(shape).astype(np.float32)
    model = copying(lambda w: numpyro.deterministic("copy", jnp.asarray(folded) + w))
    with pytest.warns(
        dpppl.PrivacyWarning, match="captures an array float32.*, at least as many numbers as there are rows"
    ):
        assert split_model(model, (Y.astype(np.float32),), {}).assumed_public


def test_a_few_numbers_are_counted_and_not_warned_of():
    few = copying(lambda w: numpyro.deterministic("copy", jnp.stack([w + k for k in (2.5, 3.5, 4.5)])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "3 numbers" in split_model(few, (Y,), {}).assumed_public
        assert split_model(copying(lambda w: None), (Y,), {}).assumed_public == ("captured 'scale' (float)",)


MEAN = 0.5


@dataclass(frozen=True)
class Config:
    mean: float


def of_prior(mean):
    """A model whose prior has the mean that `mean()` gives."""

    def model(x, scale=1.0):
        w = numpyro.sample("w", dist.Normal(mean(), 1.0))
        with numpyro.plate("data", len(jax.tree.leaves(x)[0])):
            numpyro.sample("y", dist.Normal(w, scale), obs=jax.tree.leaves(x)[0])

    return model


class Called:
    def __init__(self):
        self.mean = 0.5

    def __call__(self, x):
        of_prior(lambda: self.mean)(x)


def closed_over(value, read=lambda value: value):
    return of_prior(lambda: read(value))


def with_default(mean=0.5):
    return mean


CAPTURED = {
    "a closure": (closed_over(0.5), "captured 'value' (float)"),
    "a global": (of_prior(lambda: MEAN), "captured 'MEAN' (float)"),
    "a default of a helper": (of_prior(with_default), "captured 'mean' (float)"),
    "a partial": (of_prior(functools.partial(with_default, mean=0.25)), "captured 'mean' (float)"),
    "NumPy's number": (closed_over(np.float32(0.5)), "captured 'value' (float32)"),
    "an array of one": (closed_over(np.ones(1), lambda value: value[0]), "captured 'value' (float64)"),
    "a list": (closed_over([0.5, 1.5], lambda value: value[0]), "captured 'value' (list of 2 numbers)"),
    "a dict": (closed_over({"mean": 0.5}, lambda value: value["mean"]), "captured 'value' (dict of 1 number)"),
    "an object": (closed_over(Config(0.5), lambda value: value.mean), "captured 'value' (Config of 1 number)"),
    "an object that is called": (Called(), "captured 'mean' (float)"),
    "a method": (Called().__call__, "captured 'mean' (float)"),
}


@pytest.mark.parametrize("way", CAPTURED)
def test_a_number_that_is_captured_in_a_prior_is_named_with_its_type(way):
    model, words = CAPTURED[way]
    listed = split_model(model, (Y.astype(np.float32),), {}).assumed_public
    assert words in listed and not any("0.5" in each for each in listed)


def test_what_structures_of_arguments_hold_is_named_with_its_type():
    """Keys of dicts, aux data of a pytree and meta fields of a dataclass, of private arguments, too."""

    @jax.tree_util.register_pytree_node_class
    @dataclass
    class Rows:
        y: object
        weight: float

        def tree_flatten(self):
            return (self.y,), (self.weight, "name")

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(children[0], aux[0])

    @dataclass
    class Meta:
        y: object
        weight: float

    meta = jax.tree_util.register_dataclass(Meta, ["y"], ["weight"])
    y, model = Y.astype(np.float32), of_prior(lambda: jnp.zeros(()))
    listed = lambda x: split_model(model, (x,), {}).assumed_public[-1]  # noqa: E731
    assert listed({7.5: y}) == "argument 'x' (float in the keys of a dict)"
    assert listed({"a": y, "b": y}) == "argument 'x' (2 str in the keys of a dict)"
    assert listed([{"a": y}]) == "argument 'x' (str in the keys of a dict)"
    assert listed(Rows(y, 7.5)) == "argument 'x' (float in a Rows, str in a Rows)"
    assert listed(meta(y, 7.5)) == "argument 'x' (float in a Meta)"


def test_queries_name_them_too():
    found = dpppl.private_score(
        dpppl.secret_key(), lambda x, scale: x * scale, x(N), 2.0, bounds=(0.0, 1.0), noise_multiplier=9.0
    )
    assert found.assumed_public[-1] == "argument 'scale' (float)"


def test_as_many_arguments_as_rows_that_are_single_numbers_are_refused():
    """One by one they would be public: by position and by name."""

    def model(x, *numbers, **named):
        copying(lambda w: None)(x)

    for count in (N, N + 3):
        given = [float(k) for k in range(count)]
        for args, kwargs in ((given, {}), ([], {f"patient{k}": value for k, value in enumerate(given)})):
            with pytest.raises(dpppl.ConfigurationError, match=f"{count} arguments are single numbers"):
                dpppl.NoiseAware(model, **COST).run(dpppl.secret_key(), Y, *args, **kwargs)
    assert split_model(model, (Y, 1.0, 2.0), {"other": 3}).num_rows == N
