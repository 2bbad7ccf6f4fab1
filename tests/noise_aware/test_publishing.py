"""The likelihood of a run: which sites it takes, what it says of the model, and that it is the run's own."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpppl
from dpppl.contrib import pages
from dpppl.contrib.audit import replay
from dpppl.information_flow.executables import digest_of
from dpppl.model.split import split_model
from dpppl.noise_aware.publishing import _program, _sites
from dpppl.published.likelihood import Likelihood
from dpppl.published.records import Owner
from dpppl.published.supports import Site
from dpppl.row_statistics.coordinates import Coordinates


def regression_of(w, scale, power=1.0):
    """A model with these priors, whose scale enters by a power."""

    def regression(x, y):
        coefficients = numpyro.sample("w", w.expand([x.shape[1]]).to_event(1))
        spread = numpyro.sample("scale", scale)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ coefficients, spread**power), obs=y)

    return regression


regression = regression_of(dist.Normal(0, 2), dist.HalfNormal(1.0))


def effects(y, group):
    mean, spread = numpyro.sample("mean", dist.Normal(0, 1)), numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 4):
        z = numpyro.sample("z", dist.Normal(0, 1))
    shift = numpyro.deterministic("shift", mean + spread * z)
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(shift[group], 1.0), obs=y)


def coordinates(model, *args, named=None):
    return Coordinates.of(split_model(model, args, {}), named=named)


X, Y = np.zeros((50, 2), np.float32), np.zeros(50, np.float32)


def test_sites_have_the_supports_of_the_model():
    found = _sites(coordinates(regression, X, Y), {})
    assert found == (Site("scale", (), "positive"), Site("w", (2,)))
    bounded = _sites(coordinates(regression_of(dist.Normal(0, 2), dist.Uniform(0.5, 2.0)), X, Y), {})
    assert bounded[0] == Site("scale", (), "interval", (0.5, 2.0))
    held = _sites(coordinates(effects, Y, np.zeros(50, np.int32), named=["shift"]), {})
    assert held == (Site("shift", (4,)),)  # a deterministic site, as it is


def test_a_support_that_a_file_cannot_name_is_refused_by_the_site():
    def model(y):
        low = numpyro.sample("low", dist.Uniform(jnp.zeros(2), jnp.array([1.0, 2.0])).to_event(1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(low.sum(), 1), obs=y)

    with pytest.raises(dpppl.ConfigurationError, match=r"the support of site 'low' .* numpyro.sample\('low_raw'"):
        _sites(coordinates(model, Y), {})


def test_the_program_of_a_row_knows_the_likelihood_and_neither_prior_nor_rows():
    own = _program(coordinates(regression, X, Y))
    assert own == _program(coordinates(regression, np.ones((70, 2), np.float32), np.ones(70, np.float32)))
    assert own == _program(coordinates(regression_of(dist.StudentT(3.0, 1.0, 0.1), dist.LogNormal(0.0, 3.0)), X, Y))
    assert own != _program(coordinates(regression_of(dist.Normal(0, 2), dist.HalfNormal(1.0), power=2.0), X, Y))
    assert own != _program(coordinates(regression, np.zeros((50, 3), np.float32), Y))
    knots = jnp.arange(2.0)
    captured = lambda by: lambda x, y: regression(x * by, y)  # noqa: E731
    one, two = (_program(coordinates(captured(by), X, Y)) for by in (knots, 2.0 * knots))
    assert one != two and digest_of(knots) != digest_of(2.0 * knots)


@pytest.mark.slow
def test_a_run_gives_the_likelihood_of_its_own_posterior(tmp_path):
    """Of 2,000 draws, means and sds within .15 and 15 % of each other, at five sds of their errors."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3_000, 2)).astype(np.float32)
    y = (x @ [1.0, -0.5] + rng.normal(size=3_000)).astype(np.float32)
    run = dpppl.NoiseAware(regression, target_epsilon=1.0, target_delta=1e-5, print_cost=False, progress_bar=False)
    run.run(dpppl.secret_key(), x, y)
    with pytest.raises(dpppl.ConfigurationError, match="name is the owner's"):
        run.likelihood("two\nlines")
    run.likelihood("A").to_file(tmp_path / "a.likelihood")
    likelihood = dpppl.Likelihood.from_file(tmp_path / "a.likelihood")
    facts = likelihood.owners[0].facts
    assert facts.epsilon == run.privacy_report().epsilon and facts.num_rows == 3_000 and not facts.is_refused
    assert facts.columns == {"x": "float32[2]", "y": "float32[]"}
    prior = {"w": dist.Normal(0, 2), "scale": dist.HalfNormal(1.0)}
    found, own = likelihood.sample(jax.random.key(0), prior), run.get_samples()
    for site in prior:
        a, b = np.asarray(found[site]), np.asarray(own[site])
        assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) < 0.2 * b.std(axis=0)), site
        assert np.all(np.abs(a.std(axis=0) / b.std(axis=0) - 1.0) < 0.15), site
    tables = [each.sensitivity(jax.random.key(1), {"own": prior}, num_samples=100) for each in (run, likelihood)]
    assert str(tables[0]) == str(tables[1]).replace("A refuses", "the owner refuses")


@pytest.mark.slow
def test_file_pool_table_and_pages_are_functions_of_releases_and_public_values(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = (x @ [1.0, -0.5] + rng.normal(size=200)).astype(np.float32)
    priors = {"wide": {"w": dist.Normal(0, 2), "scale": dist.HalfNormal(1.0)}}

    def runner(rng_key, x, y, also=lambda y: 0.0):
        run = dpppl.NoiseAware(regression, target_epsilon=1.0, target_delta=1e-5, print_cost=False, progress_bar=False)
        run.run(rng_key, x, y)
        own = run.likelihood("A", allow_unconverged=True)
        other = own.owners[0].mixture._replace(centre=own.owners[0].mixture.centre + 0.1 + also(y))
        pooled = dpppl.pool([own, Likelihood(own.sites, (Owner(replace(own.owners[0].facts, name="B"), other),))])
        for name, each in {"own": own, "pooled": pooled}.items():
            each.to_file(tmp_path / name)
        table = run.sensitivity(jax.random.key(0), priors, num_samples=20, allow_unconverged=True)
        return (
            [(tmp_path / name).read_bytes() for name in ("own", "pooled")],
            str(table),
            *map(pages.to_html, (pooled, table)),
        )

    other = (np.append(x[:-1], np.full((1, 2), 1e30, np.float32), axis=0), np.append(y[:-1], np.float32(-7.0)))
    found = replay(runner, (x, y), other)
    assert found.consistent and found.num_results > 5, found.differences
    leaked = replay(lambda *args: runner(*args, also=lambda y: 1e-9 * float(y.min())), (x, y), other)
    assert "results: [0][1] differs" in leaked.differences
