"""What SVI leaves behind tells no row: guides, states, results, pickles, prints, errors, programs. See test_leaks.py."""

import contextlib
import dataclasses
import functools
import gc
import io
import pickle
import re
import traceback
import weakref

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoDelta, AutoIAFNormal, AutoMultivariateNormal, AutoNormal
from test_leaks import (  # noqa: F401
    DIGITS,
    MARKER,
    arrays_within,
    data,
    holds_rows,
    mcmc_of,
    raises,
    regression,
    reusable_keys,
)
from test_svi import amortised_guide, factor_analysis

import dpppl
from dpppl.errors import DPPPLError
from dpppl.mcmc import runner as chains
from dpppl.report.provenance import KeyOrigin
from dpppl.runs import query
from dpppl.svi import runner


def svi_of(model=regression, guide=AutoNormal, **options):
    settings = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "subsampling": dpppl.FullBatch()} | options
    return dpppl.SVI(model, guide(model), optax.adam(0.01), **settings)


def dropout(model):
    return dpppl.AutoDropout(model, rate=0.5, sites=["w"])


def with_deterministic(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.deterministic("size", jnp.sum(w**2))
    with numpyro.plate("data", x.shape[0]):
        score = numpyro.deterministic("score", x @ w)
        numpyro.sample("y", dist.Normal(score, 1.0), obs=y)


# Guides


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("guide", [AutoNormal, AutoDelta, AutoMultivariateNormal, AutoIAFNormal, dropout])
def test_guides_are_set_up_without_rows(guide):
    """Their starting values and all that they hold are the same for other rows, and they work without any."""
    held, params = [], []
    for row in (MARKER, np.nan):
        svi = svi_of(with_deterministic, guide)
        state = svi.init(jax.random.key(0), *data(row))
        fitted, start = svi.objective().guide, svi.get_params(state)
        held.append([np.asarray(a) for a in arrays_within((fitted, fitted.prototype_trace, state, svi))])
        params.append(start)
        assert not holds_rows((svi, fitted.prototype_trace), *data(row))
    jax.tree.map(np.testing.assert_array_equal, *held)
    jax.tree.map(np.testing.assert_array_equal, *params)
    draws = fitted.sample_posterior(jax.random.key(1), start, sample_shape=(2,))
    assert draws.keys() == {"w", "size"} and draws["w"].shape == (2, 3)
    if guide is not AutoIAFNormal:
        assert fitted.median(start)["w"].shape == (3,)
    if guide in (AutoNormal, AutoMultivariateNormal):
        assert fitted.quantiles(start, [0.1, 0.9])["w"].shape == (2, 3)


@pytest.mark.slow
def test_latents_of_rows_are_not_released():
    svi = svi_of(factor_analysis, lambda model: amortised_guide, gradient="per_parameter")
    x = data(MARKER)[0]
    params = svi.get_params(svi.init(jax.random.key(0), x))
    assert svi.objective().sample(params, jax.random.key(1), 2, {}).keys() == {"mean"}
    assert not holds_rows((svi, params), x, x[:, 0])


# Runs


@functools.cache
def ran(row):
    """(The SVI object, its result, what was printed) with row 4 replaced; the data are gone by then."""
    x, y = data(row)
    references, printed = [weakref.ref(x), weakref.ref(y)], io.StringIO()
    svi = svi_of(with_deterministic, noise_multiplier=None, target_epsilon=1.0, target_delta=1e-5)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        result = svi.run(jax.random.key(7), 4, x, y)
    del x, y
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    # without the bar's times, and how often it was written before the first step
    return svi, result, re.sub(r"\[.*?\]|\r\w+:   0%[^\r\n]*", "", printed.getvalue())


def test_all_but_what_was_learned_is_the_same_for_other_rows():
    """Reports, prints, the progress bar, counters and shapes; no losses, no energies."""
    seen = []
    for row in (MARKER, np.nan):
        svi, result, printed = ran(row)
        report, shapes = result.privacy_report(), jax.tree.map(jnp.shape, (result.state, result.trajectory))
        assert result.clipped is not None and result.clipped == report.details.clipped
        report = dataclasses.replace(report, details=dataclasses.replace(report.details, clipped=None, counted=None))
        seen.append(
            [
                str(report),
                report.to_json(),
                printed,
                shapes,
                int(result.state.i),
                svi.privacy_report().events,
                sorted(vars(svi)),
            ]
        )
    assert seen[0] == seen[1] and "SVI: 100%" in printed and "This run will spend" in printed
    assert result.state.rng_key is None and result.state._fields == ("i", "optim_state", "rng_key")
    kept = {
        "last_params",
        "state",
        "trajectory",
        "gradients",
        "transforms",
        "report",
        "clipped",
        "counted",
        "objective",
        "public",
        "labels",
    }
    assert kept <= {*vars(result)} <= kept | {"params", "convergence"}  # the last two are computed from the others
    assert result.params["w_auto_loc"].tolist() != ran(MARKER)[1].params["w_auto_loc"].tolist()  # the row took part


def test_nothing_that_a_run_leaves_holds_rows_or_its_key():
    x, y = data(MARKER)
    svi, result, _ = ran(MARKER)
    left = (svi, result, result.guide.prototype_trace, result.sample_posterior(jax.random.key(1), 2))
    assert len(list(arrays_within(left))) > 20 and not holds_rows(left, x, y)
    run_key = dpppl.randomness.keys.stream(jax.random.key(7), "run")
    secrets = [
        jax.random.key(7),
        run_key,
        *(dpppl.randomness.keys.stream(run_key, n) for n in ("noise", "subsampling", "guide")),
    ]
    found = [np.asarray(array) for array in arrays_within(left)]
    assert not any(np.array_equal(array, jax.random.key_data(key)) for array in found for key in secrets)


def test_pickles_hold_no_rows():
    """Nor does cloudpickle, which takes functions, find any."""
    x, y = data(MARKER)
    svi, result, _ = ran(MARKER)
    needles = [np.float32(MARKER).tobytes(), np.float64(MARKER).tobytes(), y.tobytes(), x[0].tobytes(), x.tobytes()]
    pickles = [pickle.dumps(result), *(cloudpickle.dumps(thing) for thing in (svi, result, result.guide, svi.guide))]
    assert not any(needle in pickled for pickled in pickles for needle in needles)
    assert needles[0] in pickle.dumps((x, y))
    for restored in (pickle.loads(pickles[0]), pickle.loads(pickles[2])):
        assert restored.state.i == 4 and str(restored.convergence) == str(result.convergence)
        np.testing.assert_array_equal(restored.averaged_params()["w_auto_loc"], result.params["w_auto_loc"])


def test_inference_data_hold_no_rows():
    pytest.importorskip("arviz")
    inference_data = ran(MARKER)[1].to_arviz(jax.random.key(1), 3)
    assert [*inference_data] == ["posterior"] and {*inference_data.posterior} == {"w", "size"}
    assert not any(np.any(values == MARKER) for values in inference_data.posterior.values())
    assert not any(digits in str(inference_data.attrs) for digits in DIGITS)


# What errors say


def guide_that_raises(x, y):
    raise ValueError(f"bad data: {x} {y}")


def guide_that_branches(x, y):
    numpyro.sample("w", dist.Normal(0.0 if y[4] > 0 else 1.0, 1.0).expand([3]).to_event(1))


def guide_that_reads(x, y):
    numpyro.sample("w", dist.Normal(numpyro.param("loc", y[4]), 1.0).expand([3]).to_event(1))


def guide_that_prints(y):
    jax.debug.print("{}", y)
    amortised_guide(y)


def text_of_failure(capfd, function, error=DPPPLError):
    with pytest.raises(error) as caught:
        function()
    text = "".join(traceback.format_exception(caught.value)) + "".join(capfd.readouterr())
    assert len(text) > 100 and not any(digits in text for digits in DIGITS), text
    return text


@pytest.mark.parametrize("guide", [guide_that_raises, guide_that_branches])
def test_errors_of_the_guide_tell_no_value(guide, capfd):
    text_of_failure(capfd, lambda: svi_of(guide=lambda model: guide).run(jax.random.key(0), 3, *data(MARKER)))


def test_a_guide_that_starts_from_rows_starts_from_made_up_ones():
    params = []
    for row in (MARKER, 1.0):
        svi = svi_of(guide=lambda model: guide_that_reads)
        params.append(svi.get_params(svi.init(jax.random.key(0), *data(row))))
    assert params[0] == params[1]


def test_guides_and_queries_that_print_rows_are_refused(capfd):
    x, y = data(MARKER)
    svi = svi_of(factor_analysis, lambda model: guide_that_prints, gradient="per_parameter")
    assert "PrivacyLeakError" in text_of_failure(capfd, lambda: svi.run(jax.random.key(0), 1, x))
    svi = svi_of(num_data=9)
    params = svi.get_params(svi.init(jax.random.key(0), x, y))

    def asked(correct):
        settings = {"noise_multiplier": 1.0, "num_particles": 2}
        return lambda: svi.estimate_accuracy(jax.random.key(1), params, correct, x, y, **settings)

    def printing(samples, x, y):
        jax.debug.print("{}", y)
        return y > 0

    assert "PrivacyLeakError" in text_of_failure(capfd, asked(printing))
    text_of_failure(capfd, asked(lambda samples, x, y: raises(x, y)), ValueError)
    text = text_of_failure(capfd, asked(lambda samples, x, y: 1.0 if y > 0 else 0.0))
    assert "the function correct branches on" in text
    assert svi.privacy_report().num_accesses == 0


def test_errors_of_the_call_tell_no_value(capfd):
    x, y = data(MARKER)
    for args, kwargs in (
        ((3, x, y[:5]), {}),
        ((3, x, [None, *y.tolist()]), {}),
        ((3, x, y.astype(object)), {}),
        ((3, x, y), {"nothing": y}),
        ((y, x, y), {}),
        ((3, x, y), {"init_params": {"w": y}}),
        ((3, x, y), {"init_params": {"w_auto_loc": y}}),
        ((3, x, y), {"init_params": {"w_auto_loc": y.astype(object)}}),
    ):
        text_of_failure(capfd, lambda: svi_of().run(jax.random.key(0), *args, **kwargs))  # noqa: B023


# Starting values and keys


@pytest.mark.slow
def test_starting_values_of_the_user_are_an_assumption_of_every_later_report(monkeypatch):

    def begun(run, plan, budget, conclude, *_):
        plan.begin(plan.charges, KeyOrigin.of(run.key))
        return conclude([plan.chain_groups[0]._replace(rng_key=None)], [({}, ({}, None))])

    monkeypatch.setattr(runner, "drive", begun)
    svi, start = svi_of(), {"w_auto_loc": np.ones(3, np.float32)}
    assert "made-up rows" in svi.privacy_report().provenance.initial_values
    result = svi.run(jax.random.key(0), 2, *data(), init_params=start)
    assert svi.privacy_report().provenance.initial_values == "supplied by the user: assumed independent of the data"
    svi.run(dpppl.secret_key("threefry"), 2, *data(), init_state=result.state)
    report = svi.privacy_report()
    assert re.search(r"independent of the data, and a state .* private output", report.provenance.initial_values)
    assert "short seed" in report.provenance.key_origin and "operating system" in report.provenance.key_origin
    steps = svi_of()
    state = steps.init(jax.random.key(0), *data(), init_params=start)
    assert "assumed independent" in steps.privacy_report(state._replace(i=1)).provenance.initial_values


def test_one_key_gives_each_kind_of_access_noise_of_its_own(monkeypatch):
    """A run, single steps and a query of SVI, and two chains of MCMC: where claims of keys would not stop it."""

    class Stop(Exception):
        pass

    keys, key = [], jax.random.key(0)

    def take(found):
        keys.append(found)
        raise Stop

    monkeypatch.setattr(runner, "drive", lambda run, plan, *_: take(plan.chain_groups[0].rng_key))
    monkeypatch.setattr(query, "prepare", lambda program, arguments, rows: take(arguments[2]))
    monkeypatch.setattr(chains, "drive", lambda run, plan, *_: take(plan.chain_groups[0].rng_key))
    svi = svi_of()
    state = svi.init(key, *data())
    keys.append(state.rng_key)
    with pytest.raises(Stop):
        svi.run(key, 2, *data())
    with pytest.raises(Stop):
        svi.estimate_elbo(key, svi.get_params(state), *data(), bound=1.0, noise_multiplier=1.0)
    with pytest.raises(Stop):
        mcmc_of(num_chains=2, chain_method="vectorized").run(key, *data())
    used = [
        jax.random.fold_in(dpppl.randomness.keys.stream(k, "noise"), 0) for part in keys for k in jnp.atleast_1d(part)
    ]
    used += [key, *jax.random.split(key), *keys[:3], *keys[3]]
    assert len({tuple(np.asarray(jax.random.key_data(k))) for k in used}) == len(used) - 1  # `init` keeps the key


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("row", [1e300, -1e300, 1e-300])
def test_rows_beyond_float32_show_in_no_warning_and_no_error(row):
    """NumPy's float64 is what users hold; casting it to JAX's float32 overflows, or underflows, for some rows only."""
    x, y = (values.astype(np.float64) for values in data())
    y[4] = row
    mcmc = dpppl.MCMC(dpppl.DPSGLD(regression, clipping_norm=1.0, step_size=0.01), num_warmup=0, num_samples=1,
                      progress_bar=False)  # fmt: skip
    with np.errstate(all="raise"):  # warnings are errors here anyway
        mcmc.run(jax.random.key(0), x, y)
        result = svi_of().run(jax.random.key(1), 1, x, y, progress_bar=False)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((mcmc.get_samples(), result.params)))


@pytest.mark.slow
def test_arrays_that_queries_and_guides_capture_are_refused_or_reported():
    x, y = data()
    svi = svi_of(num_data=len(y))
    params = svi.run(jax.random.key(0), 1, x, y, progress_bar=False).params
    asked = dict(noise_multiplier=1.0, num_particles=1)
    with pytest.raises(dpppl.UnsupportedModelError, match=r"captures an array float32\[N\]"):
        svi.estimate_accuracy(jax.random.key(1), params, lambda samples, *row: jnp.mean(jnp.asarray(y)), x, y, **asked)
    few = np.float32([1.0, 2.0])
    svi.estimate_accuracy(jax.random.key(1), params, lambda samples, x, y: jnp.sum(jnp.asarray(few)) > y, x, y, **asked)
    assert svi.privacy_report().assumed_public == ("1 number", "float32[2]")

    def guide(x, y):
        loc = numpyro.param("loc", jnp.zeros(3)) + jnp.asarray(np.float32([0.0, 1.0, 2.0]))
        numpyro.sample("w", dist.Normal(loc, 1.0).to_event(1))

    assert svi_of(guide=lambda model: guide).run(
        jax.random.key(2), 1, x, y, progress_bar=False
    ).report.assumed_public == ("1 number", "float32[3]")


@pytest.mark.slow
def test_a_guides_own_starting_values_are_an_assumption():
    x, y = data()
    for strategy, words in ((init_to_value(values={"w": jnp.ones(3)}), "supplied by the user"), (None, "made-up rows")):
        options = {} if strategy is None else {"init_loc_fn": strategy}
        svi = svi_of(guide=lambda model, options=options: AutoNormal(model, **options))
        assert words in svi.run(jax.random.key(0), 1, x, y, progress_bar=False).report.provenance.initial_values
