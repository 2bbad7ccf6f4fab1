"""Plans before data: what they say of each method is what the method does, and what they recommend runs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from small_models import normal_mean

import dpppl
from dpppl import accounting
from dpppl.access.clipping import Flat
from dpppl.access.mechanism import Mechanism
from dpppl.accounting import GaussianEvent, looks
from dpppl.contrib import plotting
from dpppl.errors import ConfigurationError
from dpppl.noise_aware.settings import check_budget
from dpppl.row_statistics.plan import LATE, plan_of
from dpppl.subsampling import FullBatch, Poisson


def with_factor(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.factor("y", -0.5 * (y - mu) ** 2)


@pytest.fixture(scope="module")
def plan():
    return accounting.plan(num_data=20_000, target_epsilon=1.0, target_delta=1e-5, rates=(1.0, 0.1), num_steps=(200,))


def test_steps_and_times_are_those_of_the_kernels(plan):
    options = [option for option in plan.options if option.method.startswith("DPSG")]
    assert {option.rate < 1 for option in options} == {True, False}
    for option in options:
        kernel = getattr(dpppl, option.method)(
            normal_mean, clipping_norm=plan.clipping_norm, noise_multiplier=option.noise_multiplier,
            subsampling=Poisson(option.rate) if option.rate < 1 else FullBatch(), measure_clipping=False,
        )  # fmt: skip
        assert option.step_size == pytest.approx(float(kernel.matched_step_size(option.noise_multiplier)), rel=1e-6)
        assert option.diffusion_time == pytest.approx(kernel.total_time(option.num_steps), rel=1e-5)
        assert option.explored_above * plan.num_data == pytest.approx(100 / option.diffusion_time)


def test_every_option_costs_the_target_as_the_door_charges_it(plan):
    assert {o.method for o in plan.options} == {"NoiseAware", "DPSGLD", "DPSGHMC", "DPSGNHT", "SVI"}
    for option in plan.options:
        if option.method == "NoiseAware":  # its noise is 1 / mu of all accesses together
            noise, subsampling = plan_of().noise_multipliers(option.noise_multiplier), FullBatch()
        else:
            noise = np.full(option.num_steps, option.noise_multiplier)
            subsampling = Poisson(option.rate) if option.rate < 1 else FullBatch()
        event = Mechanism(clipping=Flat(1.0), subsampling=subsampling).event(noise)
        assert 0.995 < accounting.epsilon(event, 1e-5) <= 1.0


def test_what_is_said_of_noise_aware_is_its_own_plan():
    """Its noise is more than that of its late scores alone: by 1.7 times where the curvature is known."""
    own, of_run = plan_of(True, 5, 20_000), looks.shares(5, 20_000)
    late = own.looks[-LATE:]
    assert own.num_accesses == looks.ACCESSES and sum(a.share for a in late) == pytest.approx(of_run.late)
    assert {a.score_share for a in late} == {1.0 - of_run.curvature}
    alone = 4.0 * 50.0**2 / (sum(a.share * a.score_share for a in late) * 20_000)
    assert 2.7 * alone < looks.added_variance(5, 20_000, 50.0, 4.0)
    assert looks.added_variance(5, 20_000, 50.0, 4e6) == pytest.approx(2.7e6 * alone, rel=1e-4)


def test_a_run_is_read_from_the_least_epsilon_and_the_least_rows_on():
    """The verdicts of 12 runs of logistic regressions: epsilon, rows, and whether they were read, or with care."""
    for epsilon, rows, is_read in (
        (1.0, 1_000, True), (0.6, 1_000, False), (0.6, 4_000, True), (0.35, 4_000, False), (0.35, 16_000, True), (0.2, 16_000, False),
    ):  # fmt: skip
        found = accounting.plan(num_data=rows, target_epsilon=epsilon, target_delta=1e-6, rates=(1.0,))
        assert (found.least_epsilon < epsilon, found.least_num_data < rows) == (is_read, is_read)
        again = accounting.plan(num_data=rows, target_epsilon=found.least_epsilon, target_delta=1e-6, rates=(1.0,))
        assert again.least_num_data == pytest.approx(rows, rel=5e-3)
        assert f"from epsilon {found.least_epsilon:.2g} on" in str(found)


def test_subsampling_never_narrows_an_interval(plan):
    widths = {o.rate: o.interval for o in plan.options if o.method == "SVI"}
    assert plan.interval_without_privacy < widths[1.0] < widths[0.1]


@pytest.mark.slow
def test_the_first_run_works_and_is_as_wide_as_planned():
    plan = accounting.plan(
        num_data=3_000, target_epsilon=0.15, target_delta=1e-5, num_latents=1, row_curvature=1.0, rates=(1.0,)
    )
    assert plan.recommended.method == "NoiseAware"
    found, ends = [], []
    # One run knows its curvature within a third or so; of ten runs the median is .997 of the plan's.
    for key in range(7):
        data = 0.3 + jax.random.normal(jax.random.key(key), (3_000,))
        names = {"dpppl": dpppl, "model": normal_mean, "data": (data,)}
        assert "dpppl.secret_key()" in plan.recommended.call
        names["jax"] = jax
        exec(plan.recommended.call.replace("dpppl.secret_key()", f"jax.random.key({key})"), names)
        found.append(np.asarray(names["inference"].get_samples()["mu"]))
        ends.append(np.quantile(found[-1], 0.95) - np.quantile(found[-1], 0.05))
        assert names["inference"].privacy_report().epsilon <= 0.15
    assert np.median(ends) == pytest.approx(plan.recommended.interval, rel=0.25)
    assert 1.4 < plan.recommended.interval / plan.interval_without_privacy < 1.8
    assert sum(abs(x.mean() - 0.3) < 2.6 * x.std() for x in found) >= 6


@pytest.mark.slow
def test_models_with_factors_get_a_call_that_runs():
    plan = accounting.plan(
        num_data=500, target_epsilon=1.0, target_delta=1e-4, num_latents=1, row_curvature=1.0, rates=(1.0,),
        num_steps=(20,), simulates=False,
    )  # fmt: skip
    assert plan.recommended.method == "SVI" and "NoiseAware needs responses" in plan.reason
    svi = plan.recommended.call.replace("numpyro.infer.autoguide.AutoNormal(model)", 'guide, clipping="flat"')
    names = {"dpppl": dpppl, "model": with_factor, "data": (jnp.ones(500),)}
    names["guide"] = numpyro.infer.autoguide.AutoNormal(with_factor)
    exec(svi, names)
    assert 0.9 < names["inference"].privacy_report().epsilon <= 1.0


def test_the_reason_says_whether_anything_is_learned():
    settings = dict(target_epsilon=0.5, target_delta=1e-5, num_latents=1, rates=(1.0,), num_steps=(10,), num_data=2_000)
    assert "times as wide" in accounting.plan(row_curvature=1.0, **settings).reason
    assert "stay near the prior" in accounting.plan(row_curvature=1e-4, clipping_norm=1.0, **settings).reason


def test_a_budget_that_can_tell_nothing_is_said_to():
    plan = accounting.plan(num_data=40, target_epsilon=0.1, target_delta=1e-3, rates=(1.0,), num_steps=(100,))
    assert plan.recommended is None and plan.reason.startswith("No method can work")
    assert "NoiseAware" not in {o.method for o in plan.options}
    noise = accounting.calibrate_noise_multiplier(lambda s: GaussianEvent(noise_multipliers=((s, 1),)), 0.1, 1e-3)
    with pytest.raises(ConfigurationError, match="can tell nothing"):
        check_budget(noise, 40)


def test_wide_models_get_svi_or_a_chain_that_explores():
    settings = dict(target_epsilon=3.0, target_delta=1e-7, num_latents=20_000, rates=(1.0,), num_steps=(100,))
    wide = accounting.plan(num_data=100_000, **settings)
    assert wide.recommended.method == "SVI" and "more than NoiseAware's 10,000" in wide.reason
    few = accounting.plan(num_data=10**7, clipping_norm=1.0, **settings)
    assert few.recommended.method == "DPSGLD" and few.recommended.coverage == 0.9


def test_an_advantage_is_met_and_asked_for_as_an_epsilon():
    plan = accounting.plan(num_data=20_000, target_advantage=0.1, target_delta=1e-5, rates=(1.0,), num_steps=(50,))
    assert {option.method for option in plan.options} > {"NoiseAware"}
    for option in plan.options:
        event = GaussianEvent(
            noise_multipliers=((option.noise_multiplier, 1 if option.method == "NoiseAware" else 50),)
        )
        assert 0.098 < accounting.delta(event, 0.0) < 0.1001
        asked = accounting.calibrate_noise_multiplier(
            lambda sigma: GaussianEvent(noise_multipliers=((sigma, 1),)), option.epsilon, 1e-5
        )
        assert accounting.delta(GaussianEvent(noise_multipliers=((asked, 1),)), 0.0) < 0.1001


def test_coverage_is_that_of_intervals_without_the_noise():
    plan = accounting.plan(
        num_data=1_000, target_epsilon=0.5, target_delta=1e-4, num_latents=1, row_curvature=1.0, prior_sd=1e6, clipping_norm=1.0,
        rates=(1.0,), num_steps=(100,),
    )  # fmt: skip
    svi = next(o for o in plan.options if o.method == "SVI")
    mu = math.sqrt(100) / svi.noise_multiplier
    rng = np.random.default_rng(0)
    errors = rng.normal(size=200_000) / math.sqrt(1_000) + rng.normal(size=200_000) / (mu * 1_000)
    assert svi.coverage == pytest.approx(np.mean(np.abs(errors) < 1.645 / math.sqrt(1_000)), abs=0.005)
    assert np.quantile(np.abs(errors), 0.9) * 2 == pytest.approx(svi.interval, rel=0.01)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"target_epsilon": None}, "target_epsilon or target_advantage"),
        ({"target_advantage": 0.1}, "target_epsilon or target_advantage"),
        ({"num_data": 0}, "num_data"),
        ({"row_curvature": -1.0}, "row_curvature"),
        ({"num_steps": (0,)}, "num_steps must be"),
        ({"rates": (2.0,)}, "rates must be"),
        ({"rates": (1e-300,)}, "rates must be"),
        ({"target_delta": 0.0}, "delta"),
    ],
)
def test_numbers_out_of_range_are_refused(changed, words):
    settings = dict(num_data=100, target_epsilon=1.0, target_delta=1e-5, rates=(1.0,), num_steps=(10,)) | changed
    with pytest.raises(ConfigurationError, match=words):
        accounting.plan(**settings)


def test_a_delta_that_publishes_rows_is_warned_about():
    plan = accounting.plan(num_data=1_000, target_epsilon=1.0, target_delta=0.01, rates=(1.0,), num_steps=(10,))
    assert "delta is not below" in plan.warnings[0] and "delta is not below" in str(plan)


def test_compared_runs_add_up():
    first = GaussianEvent(noise_multipliers=((10.0, 20),))
    second = GaussianEvent(noise_multipliers=((1.0, 50),), sampling_rate=0.01)
    before = GaussianEvent(noise_multipliers=((30.0, 5),))
    priced = accounting.compare({"a": first, "b": second}, 1e-6, before)
    assert [p.epsilon for p in priced] == [accounting.epsilon(e, 1e-6) for e in (first, second)]
    assert priced[1].total_epsilon == accounting.epsilon([before, first, second], 1e-6) > priced[0].total_epsilon
    assert priced[0].advantage == accounting.delta(first, 0.0)


def test_the_picture_shows_every_kind(plan):
    labels = [text.get_text() for text in plotting.plan_picture(plan).get_legend().get_texts()]
    assert [label.split(",")[0] for label in labels] == ["without privacy", "NoiseAware", "SVI", "DPSGLD"]


def test_what_looks_cost_and_add():
    """Fitted constants, for two sizes of a model; a half of one of them moves each number by a hundredth or more."""
    assert looks.shares(5, 20_000).curvature == pytest.approx(0.0871410, rel=1e-5)
    assert looks.shares(2, 1e6).curvature == 0.05  # the least
    assert looks.added_variance(5, 20_000, 1.0, 3.0) == pytest.approx(0.00337266, rel=1e-5)
    assert looks.added_variance(10, 1_000, 2.0, 12.0) == pytest.approx(0.80980553, rel=1e-5)
