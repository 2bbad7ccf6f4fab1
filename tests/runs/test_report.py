"""The report's numbers, computed a second time from what ran; and its text."""

import functools
import json
import math

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import brentq
from small_models import latent, seen
from tight import gaussian_epsilon

import dpppl
from dpppl.report.report import NOT_COVERED

NUM_ROWS = 1_000
RATE, CLIPPING_NORM, STEPS, STEP_SIZE = 0.1, 2.0, 2 * (20 + 30), 1e-3


def normal_mean(y):
    seen(y, dist.Normal(latent("mean", 2), 1.0).to_event(1))


def fresh_run(subsampling, **options):
    """A finished run of two chains, 20 warmup and 30 thinned steps each."""
    settings = {"step_size": STEP_SIZE, "num_data": NUM_ROWS} | options.pop("kernel", {})
    kernel = dpppl.DPSGLD(normal_mean, clipping_norm=CLIPPING_NORM, subsampling=subsampling, **settings)
    mcmc = dpppl.MCMC(
        kernel, num_warmup=20, num_samples=30, num_chains=2, thinning=7, chain_method="vectorized", progress_bar=False,
        **options,
    )  # fmt: skip
    mcmc.run(dpppl.secret_key(), np.random.default_rng(0).standard_normal((NUM_ROWS, 2)).astype(np.float32))
    return mcmc


@functools.cache
def run_of(name):
    options = {
        "full": (dpppl.FullBatch(), {"target_delta": 1e-5}),
        "poisson": (dpppl.Poisson(RATE), {"target_delta": 1e-5}),
        "schedule": (dpppl.FullBatch(), {"kernel": {"step_size": dpppl.polynomial_decay(STEP_SIZE), "num_data": None}}),
        "matched": (
            dpppl.FullBatch(),
            {"target_epsilon": 1.0, "target_delta": 1e-5, "kernel": {"step_size": "matched"}},
        ),
    }
    subsampling, settings = options[name]
    return fresh_run(subsampling, **settings)


def langevin_multiplier(rate, step_size=STEP_SIZE):
    """s * rate / (h * C) with s = sqrt(2 h), written out; a hundredth of the cost counts clipped rows."""
    return math.sqrt(2 * step_size) * rate / (step_size * CLIPPING_NORM) * 0.99**0.5


# The numbers


def test_full_batch_epsilon_by_hand():
    """mu = sqrt(steps) / noise multiplier; the report may exceed it by the slack of the sensitivity, 1.0001, only."""
    report = run_of("full").privacy_report()
    mu = math.sqrt(STEPS) / langevin_multiplier(1.0)
    assert report.noise_multipliers[0] == pytest.approx(langevin_multiplier(1.0), rel=1.2e-4)
    assert report.noise_multipliers[1] < langevin_multiplier(1.0)
    for delta in (1e-5, 1e-3, 1e-9):
        exact, slack = gaussian_epsilon(mu, delta), gaussian_epsilon(1.00011 * mu, delta)
        assert exact < report.epsilon_at(delta) < slack
    assert report.epsilon == report.epsilon_at(1e-5) and report.delta == 1e-5


def test_a_schedule_is_accounted_step_by_step():
    """Both chains and all steps: mu^2 is the sum of the squared inverse multipliers of h_t = h t^(-1/3), t from 1."""
    report = run_of("schedule").privacy_report()
    steps = STEP_SIZE * np.arange(1, 51) ** (-1 / 3)
    multipliers = np.array([langevin_multiplier(1.0, h) for h in steps])
    mu = math.sqrt(2 * np.sum(multipliers**-2.0))
    assert gaussian_epsilon(mu, 1e-5) < report.epsilon_at(1e-5) < gaussian_epsilon(1.00011 * mu, 1e-5)
    assert report.details.step_sizes == pytest.approx((steps.min(), steps.max()), rel=1e-6)
    assert report.noise_multipliers == pytest.approx((multipliers.min(), multipliers.max()), rel=1.2e-4)
    assert report.details.temperatures == pytest.approx((1.0, 1.0), rel=1e-5)
    assert report.details.diffusion_time == pytest.approx(steps.sum(), rel=1e-6)
    one_more = math.sqrt(mu**2 + multipliers[-1] ** -2.0)  # one step more would be seen
    assert report.epsilon_at(1e-5) < gaussian_epsilon(one_more, 1e-5)


@pytest.mark.slow
def test_a_matched_run_spends_its_budget_and_says_what_it_can_explore():
    """Diffusion time a chain = 2 tau mu^2 / C^2 with mu the chain's Gaussian-DP parameter (SPEC section 5)."""
    report = run_of("matched").privacy_report()
    assert 0.99 < report.epsilon <= 1.0
    mu = brentq(lambda mu: gaussian_epsilon(mu, 1e-5) - report.epsilon, 1e-3, 10.0)
    assert report.details.diffusion_time == pytest.approx(0.99 * 2 * (mu**2 / 2) / CLIPPING_NORM**2, rel=1e-3)
    assert report.details.readable_curvature == pytest.approx(100.0 / report.details.diffusion_time)
    assert report.details.temperatures == pytest.approx((1.0, 1.0), rel=1e-5)
    line = report.details.mixing_line()
    assert f"{report.details.diffusion_time:.3g}" in line and f"{100 / report.details.diffusion_time:.3g}" in line
    assert f"sd above {math.sqrt(report.details.diffusion_time / 100):.3g}" in line


def test_nothing_run_costs_nothing():
    kernel = dpppl.DPSGLD(normal_mean, clipping_norm=1.0, step_size=1e-3)
    report = dpppl.MCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False).privacy_report()
    assert report.epsilon_at(1e-5) == 0.0 and report.epsilon_for_group(3, 1e-5) == 0.0 and report.details.num_steps == 0
    document = json.loads(report.to_json())
    assert "nothing run" in str(report) and document["num_accesses"] == 0
    assert document["details"]["temperatures"] == ["nan", "nan"]  # numbers that are not finite survive
    with pytest.raises(dpppl.ConfigurationError, match="delta"):
        report.epsilon_at(2.0)


# The text


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["full", "poisson", "schedule", "matched"])
def test_the_text_states_every_number_and_every_condition(name):
    mcmc = run_of(name)
    report = mcmc.privacy_report()
    assert report.details.num_steps == report.num_accesses == int(np.sum(mcmc.last_state.i)) == STEPS
    assert report.details.num_chains == 2 and report.status == "complete"
    text = str(report)
    facts = [
        "DPSGLD, complete",
        "add or remove one row, N public (zero-out)",
        "one row",
        "flat, clipping_norm 2",
        "100 (all chains, warmup and thinned steps included)",
        report.details.temperature,
        report.details.mixing_line(),
        "operating system's entropy",
        "Starting values: prior median",
        "clipping_norm * 1.0001",
        "128 random bits",
        "number of rows is public",
        *report.assumptions(),
        *NOT_COVERED,
        *report.warnings(),
    ]
    if report.delta is None:
        for delta in ("1e-05", "1e-06", "1e-08"):
            facts.append(f"epsilon at delta {delta}")
            facts.append(f"{report.epsilon_at(float(delta)):.4g} (exact Gaussian (analytic))")
    else:
        facts += [f"{report.epsilon:.4g}", "1e-05", report.spent.accountant]
    if name == "poisson":
        facts += [
            "PLD (tilted Fourier transform)",
            "rate 0.1",
            "charged to delta",
            f"cap {report.mechanism.batch_cap} rows",
        ]
        assert report.mechanism.batch_cap > RATE * NUM_ROWS
    else:
        facts += ["exact Gaussian (analytic)", "full batch: every row at every step"]
        assert "cap" not in dict(report.rows())["subsampling"] and report.mechanism.batch_cap is None
    for fact in facts:
        assert fact in text, fact
    shown = [float(number) for number in dict(report.rows())["noise multiplier"].split(" to ")]
    np.testing.assert_allclose(shown, report.noise_multipliers[: len(shown)], rtol=1e-3)
    shown = [float(number) for number in dict(report.rows())["step size"].split(" to ")]
    np.testing.assert_allclose(shown, report.details.step_sizes[: len(shown)], rtol=1e-3)


def test_the_temperature_line():
    """Exact at rate 1; otherwise a lower bound, with the public condition where num_data is declared."""
    assert "exact but for discretisation, since" in run_of("full").privacy_report().details.temperature
    drawn = _plan(dpppl.FullBatch(), step_size=1e-5, clipping="centred").details.temperature
    assert "exact but for discretisation and responses that centred clipping draws, since" in drawn
    line = run_of("poisson").privacy_report().details.temperature
    ratio = RATE * NUM_ROWS * (1 - RATE) / langevin_multiplier(RATE) ** 2
    assert "lower bound" in line and f"= {ratio:.3g}," in line and "not shown to be negligible" in line
    plan = functools.partial(_plan, dpppl.Poisson(0.5))
    assert "is negligible" in plan(step_size=1e-5, num_data=NUM_ROWS).details.temperature
    assert "declare num_data" in plan(step_size=1e-5).details.temperature
    hot = plan(step_size=1e-3, noise_multiplier=100.0, measure_clipping=False)
    assert hot.details.temperatures[0] == pytest.approx((100.0 * 1e-3 * 2.0 / 0.5) ** 2 / 2e-3, rel=1e-4)
    assert f"{hot.details.temperatures[0]:.6g} from the noise (target 1)" in hot.details.temperature


def _plan(subsampling, delta=None, **options):
    kernel = dpppl.DPSGLD(normal_mean, clipping_norm=CLIPPING_NORM, subsampling=subsampling, **options)
    mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=10, target_delta=delta, progress_bar=False)
    return mcmc.privacy_plan()


def test_warnings():
    small = functools.partial(_plan, dpppl.FullBatch(), 1e-3, step_size=1e-5)
    assert small(num_data=999).warnings() == []
    for num_data in (1_000, 10_000):
        (warning,) = small(num_data=num_data).warnings()
        assert "delta is not below 1 / number of rows" in warning
    assert small().warnings() == []
    report = _plan(dpppl.FullBatch(), 1e-5, step_size=1e3)
    assert report.epsilon > 100 and "not a meaningful guarantee" in report.warnings()[0]
    assert "not a meaningful guarantee" in str(report)


def test_relations_units_and_captured_arrays_are_stated():
    captured = np.ones((2, 3), np.float32)

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(jax.numpy.asarray(captured).sum(0), 1.0).to_event(1))
        seen(y, dist.Normal(mean, 1.0).to_event(1))

    kernel = dpppl.DPSGLD(model, clipping_norm=1.0, step_size=1e-3)
    mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=2, progress_bar=False)
    mcmc.run(jax.random.key(123_456), np.zeros((5, 3), np.float32))
    report = mcmc.privacy_report()
    assert "What the model captured, and its arguments that are not private, are assumed public: float32[2, 3]" in str(
        report
    )
    assert "made from a short seed that can be guessed (64-bit threefry)" in str(report)
    assert "123456" not in str(report) and report.mechanism.neighboring_relation == "zero_out"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["full", "poisson", "schedule"])
def test_json_round_trip(name):
    """The JSON holds every field and every derived number, and the events in it give the same epsilon again."""
    report = run_of(name).privacy_report()
    loaded = json.loads(report.to_json())
    assert loaded == json.loads(json.dumps(loaded, allow_nan=False))
    for part, names in {
        "": ("delta", "epsilon", "num_data", "num_rows", "method"),
        "mechanism": ("clipping_norm", "subsampling", "batch_cap"),
        "provenance": ("key_origin", "initial_values", "status"),
        "details": ("num_steps", "num_chains", "diffusion_time"),
    }.items():
        for name in names:
            assert (loaded[part] if part else loaded)[name] == getattr(getattr(report, part) if part else report, name)
    events = [
        dpppl.accounting.GaussianEvent(**(event | {"noise_multipliers": tuple(map(tuple, event["noise_multipliers"]))}))
        for event in loaded["events"]
    ]
    assert tuple(events) == report.events
    assert dpppl.accounting.epsilon(events, 1e-5) == loaded["epsilon_at"]["1e-05"] == report.epsilon_at(1e-5)
    assert loaded["warnings"] == report.warnings() and loaded["assumptions"] == report.assumptions()
    assert set(loaded["not_covered"]) == set(NOT_COVERED) and loaded["unit"] == "one row"
