"""Weights of samples under decreasing steps, the summary table, and what goes to ArviZ."""

import copy
import functools
import json
import sys

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from small_models import seen

import dpppl


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.3))
    numpyro.deterministic("twice", 2.0 * mean)
    seen(y, dist.Normal(mean, scale).to_event(1))


@functools.cache
def run(kernel=dpppl.DPSGLD, warmup=3, samples=40, step_size=None, **options):
    step_size = dpppl.polynomial_decay(0.01, 0.9) if step_size is None else step_size
    kernel = kernel(model, clipping_norm=3.0, step_size=step_size)
    mcmc = dpppl.MCMC(
        kernel, num_warmup=warmup, num_samples=samples, progress_bar=False, **{"chain_method": "vectorized"} | options
    )
    y = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
    mcmc.run(jax.random.key(0), y)
    return mcmc


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("kernel", "power"), [(dpppl.DPSGLD, 1.0), (dpppl.DPSGHMC, 1.0), (dpppl.DPSGNHT, 2.0)])
def test_samples_weigh_the_time_they_stand_for(kernel, power):
    """h_t = .01 * t^(-.9) with t from 1; warmup shifts t. With a friction of a tenth a step, positions diffuse by 10 h_t in a
    step of SGHMC; momenta last ten steps in SGNHT, too, so that positions diffuse by 10 h_t^2."""
    weights = run(kernel, num_chains=2).get_weights()
    assert weights.shape == (2, 40) and weights.dtype == np.float64
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)
    expected = (np.arange(4, 44.0) ** -0.9) ** power
    np.testing.assert_allclose(weights, np.tile(expected / expected.sum(), (2, 1)), rtol=1e-5)


@pytest.mark.parametrize(("kernel", "others"), [(dpppl.DPSGHMC, (0.0, 0.5, 1.5)), (dpppl.DPSGNHT, (0.0, 1.0, 3.0))])
def test_other_weights_have_a_larger_variance(kernel, others):
    """Of the mean of midpoints of 3,000 steps h = .5 t^(-1/3), at a curvature of .02. The variance is exact: states are a linear
    map of noise, and that of an average is found backwards. `others` are powers of h; .5 and 1 are Hamiltonian time."""
    kernel, curvature = kernel(model, clipping_norm=1.0), 0.02
    h = 0.5 * np.arange(301, 3301.0) ** (-1 / 3)
    std = np.broadcast_to(np.asarray(kernel.langevin_std(h), np.float64), h.shape)
    moves = h if isinstance(kernel, dpppl.DPSGNHT) else np.ones_like(h)  # z <- z + moves * p

    def variance(weights):
        found, z, p = 0.0, 0.0, 0.0
        for w, step, s, move in zip((weights / weights.sum())[::-1], h[::-1], std[::-1], moves[::-1]):
            p += move * (z + 0.5 * w)
            found += (s * p) ** 2
            z, p = z + w - curvature * step * p, 0.9 * p
        return found + z**2 / curvature

    times = kernel.diffusion_time(h, std)
    assert all(variance(times) < 0.999 * variance(h**power) for power in others)


@pytest.mark.slow
def test_thinned_steps_count_for_the_sample_that_follows():
    """7 steps are left over at the start of 3 + 40: the 13 samples stand for 3 steps each."""
    mcmc = run(thinning=3)
    assert mcmc.get_samples()["mean"].shape == (13, 2)
    times = (np.arange(5, 44.0) ** -0.9).reshape(13, 3).sum(axis=1)
    np.testing.assert_allclose(mcmc.get_weights(), [times / times.sum()], rtol=1e-5)


@pytest.mark.slow
def test_equal_steps_have_equal_weights():
    np.testing.assert_allclose(run(step_size=0.01).get_weights(), np.full((1, 40), 1 / 40), rtol=1e-12)


@pytest.mark.slow
def test_a_continued_run_weighs_its_own_steps():
    mcmc = run.__wrapped__()
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(1), np.zeros((30, 2), np.float32))
    expected = np.arange(44, 84.0) ** -0.9
    np.testing.assert_allclose(mcmc.get_weights(), [expected / expected.sum()], rtol=1e-5)


def table(text):
    """Rows of a printed summary: {name: numbers}."""
    split = [line.split() for line in text.splitlines()]
    return {
        words[0]: [float(word) for word in words[1:8]]
        for words in split
        if " ".join(words[8:]).startswith(("read", "do not read:"))
    }


def test_the_summary_shows_weighted_moments(capsys):
    mcmc = run(dpppl.DPSGLD, num_chains=2)
    mcmc.print_summary(prob=0.8)
    printed = capsys.readouterr().out
    shown, weights = table(printed), mcmc.get_weights().ravel() / 2
    draws = np.asarray(mcmc.get_samples()["mean"], np.float64)
    differs = False
    for index in range(2):
        value = draws[:, index]
        mean = np.average(value, weights=weights)
        sd = np.sqrt(np.average((value - mean) ** 2, weights=weights))
        order = np.argsort(value)
        quantiles = [value[order][np.searchsorted(np.cumsum(weights[order]), p)] for p in (0.5, 0.1, 0.9)]
        np.testing.assert_allclose(shown[f"mean[{index}]"][:5], [mean, sd, *quantiles], atol=0.0051)
        differs |= abs(mean - value.mean()) > 0.011
    assert differs and set(shown) == {"mean[0]", "mean[1]", "scale"}
    assert "10.0%" in printed and "mixing budget: total diffusion time" in printed


@pytest.mark.slow
def test_the_summary_is_as_long_as_asked_and_names_weights_only_where_they_differ(capsys):
    mcmc = run(step_size=0.01)
    capsys.readouterr()
    mcmc.print_summary(max_rows=2)
    printed = capsys.readouterr().out
    assert set(table(printed)) == {"mean[0]", "mean[1]"} and "... and 1 more" in printed
    assert "n_eff" in printed and "weighted" not in printed and "mixing budget" in printed


@pytest.mark.slow
def test_chains_that_did_not_mix_are_named(capsys):
    """Steps of 1e-7 leave two chains where their priors put them."""
    kernel = dpppl.DPSGLD(model, clipping_norm=3.0, step_size=1e-7, init_strategy="prior_sample")
    mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=20, num_chains=2, progress_bar=False, chain_method="vectorized")
    mcmc.run(jax.random.key(0), np.zeros((30, 2), np.float32))
    mcmc.print_summary()
    assert "do not read: too short: 3 of 3 (mean, scale)" in capsys.readouterr().out


def test_arviz_holds_samples_weights_and_the_report_but_no_rows():
    mcmc = run(dpppl.DPSGLD, num_chains=2)
    data = mcmc.to_arviz()
    assert sorted(data) == ["posterior", "sample_stats"]
    np.testing.assert_array_equal(data.posterior["mean"], mcmc.get_samples(group_by_chain=True)["mean"])
    assert data.posterior["twice"].shape == (2, 40, 2)
    np.testing.assert_array_equal(data.sample_stats["weight"], mcmc.get_weights())
    report = json.loads(data.attrs["privacy_report"])
    assert report["events"] and report["epsilon_at"]["1e-05"] == mcmc.privacy_report().epsilon_at(1e-5)
    assert data.attrs["inference_library"] == "dpppl"


@pytest.mark.slow
def test_without_arviz_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(dpppl.ConfigurationError, match=r'pip install "dpppl\[arviz\]"'):
        run().to_arviz(allow_unconverged=True)


def test_arviz_computes_its_diagnostics():
    data = run(num_chains=2, samples=100, step_size=0.002).to_arviz()
    for diagnostic in (arviz.rhat, arviz.ess):
        result = diagnostic(data)
        assert result["mean"].shape == (2,) and np.all(np.isfinite(result["mean"]))


def grouped(g, y):
    numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", 3):
        effect = numpyro.sample("effect", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        with numpyro.plate("times", 4):
            numpyro.sample("pulse", dist.Normal(0.0, 1.0))
    seen(y, effect[g, 0])


G, V = np.arange(30) % 3, np.zeros(30, np.float32)


def of_chains(model=grouped):
    kernel = dpppl.DPSGLD(model, clipping_norm=3.0, noise_multiplier=5.0)
    mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=8, num_chains=2, chain_method="vectorized", progress_bar=False)
    mcmc.run(dpppl.secret_key(), G, V)
    return lambda **options: mcmc.to_arviz(allow_unconverged=True, **options)


def of_guide():
    svi = dpppl.SVI(grouped, AutoNormal(grouped), clipping_norm=1.0, noise_multiplier=5.0)
    result = svi.run(dpppl.secret_key(), 4, G, V, progress_bar=False)
    return lambda **options: result.to_arviz(jax.random.key(0), 5, result.last_params, **options)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("to_arviz", [of_chains, of_guide])
def test_arviz_takes_names_of_axes_and_those_of_plates_are_kept(to_arviz):
    made = to_arviz()
    plain, named = made(), made(coords={"groups": ["a", "b", "c"]}, dims={"effect": ["groups", "part"]})
    assert plain.posterior["pulse"].dims[2:] == ("times", "groups") == named.posterior["pulse"].dims[2:]
    assert plain.posterior["effect"].dims[2] == "groups" and named.posterior["effect"].dims[2:] == ("groups", "part")
    assert plain.posterior["mean"].ndim == 2 and named.posterior.sel(groups="b")["effect"].shape[-1] == 2
    for options in (dict(coords={"groups": ["a"]}), dict(dims=["groups"]), dict(dims={"mean": ["groups"]})):
        with pytest.raises(dpppl.ConfigurationError, match="coords"):
            made(**options)


@pytest.mark.slow
def test_arviz_says_why_there_are_no_rows_and_takes_public_ones():
    data = of_chains()()
    calls = {
        "log likelihood": (arviz.loo, arviz.waic, lambda d: arviz.compare({"a": d, "b": d})),
        "observed rows": (arviz.plot_ppc, arviz.plot_bpv, lambda d: arviz.plot_loo_pit(d, y="y")),
    }
    for words, functions in calls.items():
        for function in functions:
            with pytest.raises(dpppl.ConfigurationError, match=f"{words}.*private and not stored"):
                function(data)
    assert not hasattr(data, "prior") and copy.deepcopy(data).posterior.equals(data.posterior)
    made_up = {"y": np.zeros((2, 8, 30))}
    data.extend(arviz.from_dict(posterior_predictive=made_up, observed_data={"y": V}, log_likelihood=made_up))
    assert data.log_likelihood["y"].shape == (2, 8, 30) and type(data).__name__ == "PrivateInferenceData"
    assert sorted(data.groups()) == [
        "log_likelihood",
        "observed_data",
        "posterior",
        "posterior_predictive",
        "sample_stats",
    ]
