"""Missing values: what a row releases of them, in the three methods."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.autoguide import AutoNormal
from scipy import integrate, stats

import dpppl
from dpppl.access.mechanism import ROW_NUMBER
from dpppl.access.norm_histogram import MISSING, SILENT, SIZE
from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.model import structure
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from dpppl.model.structure import unwrapped
from dpppl.row_statistics.accesses import At, narrow, num_directions
from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.matrices import from_vector
from dpppl.row_statistics.statistics import RowStatistics, units

TRUTH = np.array([-0.3, 0.5, 1.0, 0.0, 0.5, np.log(0.8)], np.float32)
BINARY = np.array([-0.3, 0.5, 1.0, -0.2, 0.7], np.float32)


def law(c, x1):
    eta = c[0] + c[1] * x1
    return dist.Normal(eta, jnp.exp(c[2])) if len(c) == 3 else dist.Bernoulli(logits=eta)


def model(x1, x2, ok, y, size=6):
    z = numpyro.sample("z", dist.Normal(0, 1).expand([size]).to_event(1))
    with numpyro.plate("data", x1.shape[0]):
        x2 = numpyro.sample("x2", law(z[3:], x1), obs=x2, obs_mask=ok)
        numpyro.sample("y", dist.Bernoulli(logits=z[0] + z[1] * x1 + z[2] * x2), obs=y)


def by_where(x1, x2, ok, y, size=6):
    z = numpyro.sample("z", dist.Normal(0, 1).expand([size]).to_event(1))
    with numpyro.plate("data", x1.shape[0]):
        unknown = numpyro.sample("x_missing", law(z[3:], x1))
        with handlers.mask(mask=ok):
            x2 = numpyro.sample("x2", law(z[3:], x1), obs=x2)
        x2 = jnp.where(ok, x2, unknown)
        numpyro.sample("y", dist.Bernoulli(logits=z[0] + z[1] * x1 + z[2] * x2), obs=y)


def simulated(count, seed=0, fill=np.nan, truth=TRUTH):
    """Rows whose x2 is more often missing where y is 1."""
    rng = np.random.default_rng(seed)
    x1 = rng.standard_normal(count)
    eta = truth[3] + truth[4] * x1
    is_binary = len(truth) == 5
    x2 = rng.random(count) < 1 / (1 + np.exp(-eta)) if is_binary else eta + 0.8 * rng.standard_normal(count)
    y = rng.random(count) < 1 / (1 + np.exp(-(truth[0] + truth[1] * x1 + truth[2] * x2)))
    ok = rng.random(count) > np.where(y, 0.5, 0.05)
    return tuple(x.astype(np.float32) for x in (x1, np.where(ok, x2, fill))) + (ok, y.astype(np.float32))


def released(kind, model, data, truth=TRUTH, norm=0.5, bound=1.0, moved=0.0, most=10**9, **changes):
    """A statistic of each row at the truth, or `moved` from it, (N, ...); the numbers of rows start again at `most`."""
    split = replace(split_model(model, data, {"size": len(truth)}), **changes)
    responses = Responses.of(split)
    size = len(truth)
    basis = Basis.of(np.ones(size), np.zeros((size, 0)), [np.arange(size)])
    at = At(np.asarray(truth) + moved, norm, bound, basis, directions=np.eye(size, num_directions(size)))
    rows, public = split.arrays(data, {"size": len(truth)})
    statistics = RowStatistics(responses, lambda point: {"z": point}, basis)
    key = jax.random.key(0, impl="threefry2x32")
    of_row = lambda row: getattr(statistics, kind)(narrow(at), row, (public, key))  # noqa: E731
    numbered = dict(rows) | {ROW_NUMBER: jnp.arange(len(data[0])) % most}
    return jax.tree.map(np.asarray, jax.jit(lambda rows: jax.lax.map(of_row, rows, batch_size=500))(numbered))


def gradients(model, data, truth=TRUTH, **changes):
    """Clipped, centred scores at the truth in units of the norm, (N, d)."""
    return released("look", model, data, truth, **changes)["score"] / np.sqrt(0.7)


def largest_t(psi):
    """The largest mean of a column in standard errors."""
    return float(np.max(np.abs(psi.mean(axis=0) / (psi.std(axis=0) / np.sqrt(len(psi))))))


def log_likelihoods(model, data):
    split = split_model(model, data, {})
    rows, public = split.arrays(data, {})
    return np.asarray(jax.vmap(lambda row: split.log_likelihood({"z": jnp.asarray(TRUTH)}, row, public))(rows))


def exact(x1, x2, ok, y):
    z, mean, sd = TRUTH.astype(float), TRUTH[3] + TRUTH[4] * float(x1), 0.8
    sign = 1.0 if y else -1.0
    of_y = lambda x: 1 / (1 + np.exp(-sign * (z[0] + z[1] * x1 + z[2] * x)))  # noqa: E731
    if ok:
        return np.log(of_y(x2)) + stats.norm.logpdf(x2, mean, sd)
    return np.log(integrate.quad(lambda x: of_y(x) * stats.norm.pdf(x, mean, sd), mean - 8, mean + 8)[0])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("fill", [0.0, np.nan, 1e30])
def test_a_missing_covariate_is_integrated_out_whatever_stands_in_its_place(fill, monkeypatch):
    data = simulated(40, fill=fill)
    expected = np.array([exact(*row) for row in zip(*data)])
    for idiom in model, by_where:
        np.testing.assert_allclose(log_likelihoods(idiom, data), expected, atol=2e-5)
    with monkeypatch.context() as mutant:  # the placeholder enters the sum
        mutant.setattr("dpppl.model.split.log_prob_of", lambda site: unwrapped(site["fn"]).log_prob(site["value"]))
        assert not np.max(np.abs(log_likelihoods(by_where, data) - expected)) < 1e-3
    wrong = np.roll(structure.LOG_WEIGHTS, 1)  # mutant: a weight of a node is wrong
    monkeypatch.setattr(structure, "LOG_WEIGHTS", wrong)
    assert np.max(np.abs(log_likelihoods(model, data) - expected)) > 1e-3


def test_a_placeholder_does_not_reach_the_releases():
    tables = zip(*(simulated(60, fill=fill) for fill in (0.0, np.nan, 1e30)))
    found = np.split(gradients(model, tuple(map(np.concatenate, tables)), most=60), 3)
    assert np.all(np.isfinite(found[0])) and len(np.unique(found[0], axis=0)) > 30
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.slow
def test_scores_are_centred_although_missingness_depends_on_the_response():
    """Six means, two-sided: above 4 standard errors in one of 2,600 seeds. Mutant: centred for each pattern by itself."""
    data = simulated(6_000, seed=1)
    psi = gradients(model, data)
    assert np.max(np.linalg.norm(psi, axis=1)) < 1.0 + 1e-5
    assert largest_t(psi) < 4.0
    assert largest_t(gradients(model, data, missing=())) > 6.0


@pytest.mark.slow
def test_the_curvature_of_incomplete_rows_is_the_slope_of_their_scores():
    """By finite differences along one direction, over 6,000 rows of which a quarter lack a value, within 5 % (standard error 2 %)."""
    data, along = simulated(6_000, seed=1), np.array([0.4, 0.4, 0.5, 0.4, 0.4, 0.3], np.float32)
    unit, unit_a, _ = map(float, units(0.7, 1.0))
    sums = [released("look", model, data, moved=d * along)["score"].sum(axis=0) for d in (-0.1, 0.1)]
    slope = -along @ (sums[1] - sums[0]) / 0.2 * 0.5 / unit
    total = released("look", model, data, bound=50.0)["A"].astype(float).sum(axis=0) * 50.0 / unit_a
    assert along @ from_vector(total, 6) @ along == pytest.approx(slope, rel=0.05)


@pytest.mark.slow
def test_a_binary_covariate_is_summed_out():
    data = simulated(12_000, seed=2, fill=0.0, truth=BINARY)
    data = (data[0], data[1].astype(np.int32), *data[2:])
    assert largest_t(gradients(model, data, BINARY)) < 4.0
    assert largest_t(gradients(model, data, BINARY, missing=())) > 5.0


def test_rows_with_missing_values_are_counted():
    data = simulated(50)
    split = split_model(model, data, {})
    rows, public = split.arrays(data, {})
    responses = Responses.of(split)
    assert responses.has_gaps and responses.missing == ("x2_unobserved",)
    found = jax.jit(jax.vmap(lambda row: responses.has_gap({"z": jnp.asarray(TRUTH)}, row, public)))(rows)
    np.testing.assert_array_equal(found, ~data[2])


HOSTILE = np.array(
    [[np.nan, 0.0, 0.0], [0.0, 0.0, np.nan], [0.0, 0.0, 3.0], [1e30, 0.0, 1.0], [0.0, 1e30, 1.0]], np.float32
).T
"""Values of x1, x2, y, a column a row."""


@pytest.mark.slow
def test_rows_that_say_nothing_are_counted(monkeypatch):
    """Rows with and without a missing value; the third response is outside the support. Mutant: their probabilities stay NaN."""
    x1, x2, y = np.tile(HOSTILE, 2)
    data = x1, x2, np.repeat([True, False], len(x1) // 2), y
    found = released("scalars", model, data)
    is_silent = np.array([1, 1, 0, 1, 1, 1, 1, 0, 1, 0])  # what stands in for a missing value has no effect
    np.testing.assert_allclose(found[:, 1], [0, 0, 1, 0, 0] * 2, atol=1e-5)
    np.testing.assert_allclose(found[:, 2], is_silent, atol=1e-5)
    assert np.all(np.linalg.norm(found, axis=1) <= 1.0 + 1e-5)
    right = Responses.completions

    def wrong(self, z, row, public):
        values, chances = right(self, z, row, public)
        return values, chances + jnp.where(jnp.isfinite(self.split.log_likelihood(z, row, public)), 0.0, jnp.nan)

    monkeypatch.setattr(Responses, "completions", wrong)
    assert not np.allclose(released("scalars", model, data)[:, 2], is_silent, atol=1e-5)


@pytest.mark.slow
def test_rows_that_say_nothing_are_in_the_bin_of_those_not_finite(monkeypatch):
    """A response outside the support, and values that are not finite, with and without a missing value. Mutant: such scores count as 0."""
    x1, x2, y = np.array([[0.0, 0.0, 3.0], [np.nan, 0.0, 1.0], [0.5, 0.2, 1.0]], np.float32).T
    data = np.tile(x1, 2), np.tile(x2, 2), np.repeat([True, False], 3), np.tile(y, 2)
    bins = lambda: np.argmax(released("bins", model, data)[:, :SIZE], axis=1) - SIZE  # noqa: E731
    assert ((bins() == MISSING) == [True, True, False] * 2).all()
    right = RowStatistics.drawn_influence

    def wrong(*arguments):
        found = right(*arguments)
        return found._replace(score=jnp.where(jnp.isfinite(found.score), found.score, 0.0))

    monkeypatch.setattr(RowStatistics, "drawn_influence", wrong)
    assert (bins()[[0, 1, 3, 4]] == SILENT).all()


def test_which_latents_stand_for_missing_values():
    data = simulated(20)
    assert split_model(by_where, data, {}).missing == ("x_missing",)

    def labels(x1, x2, ok, y):
        z = numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", x1.shape[0]):
            kind = numpyro.sample("kind", dist.Bernoulli(0.5))
            numpyro.sample("y", dist.Normal(jnp.where(kind == 1, z[0], z[1]), 1.0), obs=x1)

    assert split_model(labels, data, {}).missing == ()


def two_means(y, locs):
    w = numpyro.sample("w", dist.Beta(1.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        kind = numpyro.sample("kind", dist.Bernoulli(w))
        numpyro.sample("y", dist.Normal(jnp.where(kind == 1, locs[1], locs[0]), 1.0), obs=y)


def shifted(y, locs):
    w = numpyro.sample("w", dist.Beta(1.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        kind = numpyro.sample("kind", dist.Bernoulli(w))
        numpyro.sample("y", dist.Normal(locs[0] + (locs[1] - locs[0]) * (kind == 1), 1.0), obs=y)


def of_a_group(y, g, locs):
    w = numpyro.sample("w", dist.Beta(1.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        kind = numpyro.sample("kind", dist.Bernoulli(w))
        numpyro.sample("y", dist.Normal(jnp.where((g == 7) & (kind == 1), locs[1], locs[0]), 1.0), obs=y)


@pytest.mark.parametrize("mixture", [two_means, shifted, of_a_group])
def test_a_label_whose_effect_is_public_or_rare_is_no_missing_value(mixture):
    """The law of the label counts in the density of a completed row. Planted fault: the label stands for a missing value."""
    locs = np.array([-2.0, 2.0], np.float32)
    groups = (np.full(20, 7),) if mixture is of_a_group else ()
    split = split_model(mixture, (np.ones(20, np.float32), *groups, dpppl.Public(locs)), {})
    assert split.missing == ()
    row = {"y": jnp.float32(1.5)} | ({"g": jnp.int32(7)} if groups else {})
    given = {"y": jnp.full(1, 1.5), "kind": jnp.ones(1, int)}
    density = lambda split: float(split.log_likelihood({"w": jnp.float32(1.0)}, row, {"locs": locs}, given))  # noqa: E731
    expected = stats.norm.logpdf(1.5, 2.0) - np.log1p(np.exp(-1.0))
    assert density(split) == pytest.approx(expected, abs=1e-5)
    assert density(replace(split, missing=("kind",))) == pytest.approx(stats.norm.logpdf(1.5, 2.0), abs=1e-5)


@pytest.mark.slow
def test_a_mixture_whose_means_are_public_has_its_posterior():
    rng = np.random.default_rng(0)
    y = (np.where(rng.random(5000) < 0.8, 2.0, -2.0) + rng.normal(size=5000)).astype(np.float32)
    mcmc = dpppl.NoiseAware(two_means, noise_multiplier=2.0, num_samples=500, progress_bar=False)
    mcmc.run(dpppl.secret_key(), y, dpppl.Public(np.array([-2.0, 2.0], np.float32)))
    w = mcmc.get_samples()["w"]
    assert abs(np.mean(w) - 0.8) < 5 * np.std(w) < 0.1


def test_a_mask_that_is_taken_as_public_is_refused():
    x1, x2, ok, y = simulated(20)
    with pytest.raises(
        UnsupportedModelError, match=r"argument 'ok', which is marked dpppl\.Public, as one value for each row"
    ):
        split_model(model, (x1, x2, dpppl.Public(ok), y), {})
    with pytest.raises(ConfigurationError, match="different numbers of rows"):
        split_model(model, (x1, x2, ok[1:], y), {})
    captured = lambda x1, x2, y: model(x1, x2, ok, y)  # noqa: E731
    with pytest.raises(UnsupportedModelError, match="the model captures an array"):
        split_model(captured, (x1, x2, y), {})


def test_models_that_cannot_be():
    data = simulated(20)

    def refused(model, *data):
        with pytest.raises(UnsupportedModelError) as caught:
            split_model(model, data, {})
        return str(caught.value)

    def three(x1, x2, ok, y):
        z = numpyro.sample("z", dist.Normal(0, 1))
        with numpyro.plate("data", x1.shape[0]):
            columns = [numpyro.sample(f"x{i}", dist.Normal(0, 1), obs=x2, obs_mask=ok) for i in range(3)]
            numpyro.sample("y", dist.Normal(z * sum(columns), 1), obs=y)

    def shared(x1, x2, ok, y):
        unknown = numpyro.sample("unknown", dist.Normal(0, 1).expand([x1.shape[0]]).to_event(1))
        with numpyro.plate("data", x1.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.where(ok, x2, unknown), 1), obs=y)

    def hidden(x1, x2, ok, y):
        z = numpyro.sample("z", dist.Normal(0, 1))
        with numpyro.plate("data", x1.shape[0]):
            above = jnp.where(ok, x2, numpyro.sample("unknown", dist.Normal(0, 1))) > 0.0
            numpyro.sample("y", dist.Normal(jnp.where(above, z, 0.0), 1), obs=y)

    assert "4096 joint values, too many to sum out (at most 256" in refused(three, *data)
    assert "site 'unknown'" in refused(shared, *data)
    assert "latent 'unknown' of each row stands for missing values and has no mask" in refused(hidden, *data)


@pytest.mark.slow
@pytest.mark.parametrize("clipping", ["flat", "centred"])
def test_chains_and_guides_take_missing_values(clipping):
    data = simulated(300)
    mcmc = dpppl.MCMC(
        dpppl.DPSGLD(model, clipping_norm=1.0, clipping=clipping, step_size=1e-3), num_warmup=50, num_samples=50,
        target_epsilon=3.0, target_delta=1e-5, progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.key(0), *data)
    assert np.all(np.isfinite(mcmc.get_samples()["z"]))
    svi = dpppl.SVI(
        model, AutoNormal(model), clipping_norm=1.0, clipping=clipping, target_epsilon=3.0, target_delta=1e-5
    )
    result = svi.run(jax.random.key(1), 20, *data, progress_bar=False)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result.params))


def test_weights_of_nodes_add_up_to_one():
    assert structure.NODES[0] == -structure.NODES[-1]
    assert np.exp(structure.LOG_WEIGHTS).sum() == pytest.approx(1.0)
