"""What is public is said: numbers that a model captured one by one, and arguments by name and type."""

import warnings

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


@pytest.mark.parametrize("method", [m if m == "MCMC" else pytest.param(m, marks=pytest.mark.slow) for m in METHODS])
def test_numbers_that_a_model_captured_are_counted_and_warned_of(method):
    """All private responses as single numbers: a run warns before it is charged. The report says so, and names arguments that
    are public, with their types and without their values."""
    runner, run = METHODS[method](copying(in_one_site))
    table = dpppl.Public({"rates": np.full((2, 3), 0.25, np.float32), "words": ["low", "high"], "size": 4})
    with pytest.warns(dpppl.PrivacyWarning, match="12 single numbers, at least as many numbers as there are rows"):
        run(Y.astype(np.float32), 1.5, table, word="probit", switch=True)
    report = runner.privacy_report()
    assert report.assumed_public == (
        "12 numbers",
        "argument 'scale' (float)",
        "argument 'table' (int, 2 str, float32[2, 3])",
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


def test_fifty_of_fifty():
    many = np.linspace(-1.0, 1.0, 50).astype(np.float32)
    with pytest.warns(dpppl.PrivacyWarning, match="50 single numbers"):
        model = copying(lambda w: numpyro.deterministic("copy", jnp.stack([jnp.asarray(float(y) + 2.0) for y in many])))
        assert split_model(model, (many,), {}).assumed_public == ("50 numbers",)


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
        assert split_model(copying(lambda w: None), (Y,), {}).assumed_public == ()


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
