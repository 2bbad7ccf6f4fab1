"""Textbook bounds, published step-size bounds and the central-limit approximation, against what they claim."""

import math

import pytest

from dpppl.accounting import GaussianEvent, delta, epsilon
from dpppl.errors import ConfigurationError
from examples.papers.central_limit_gdp import approximate_delta, approximate_epsilon, approximate_mu
from examples.papers.textbook_bounds import (
    advanced_composition,
    amplification_by_sampling,
    basic_composition,
    bounds_picture,
    compared,
    langevin_event,
    largest_step_size,
    li_2019_constant_step_size,
    li_2019_decreasing_step_size,
    wang_2015_step_size,
)

MNIST = dict(num_data=50_000, num_steps=10_000, clipping_norm=1.0)  # the worked example of Li et al. 2019


def event(sigma, steps=1, rate=1.0, **kwargs):
    return GaussianEvent(noise_multipliers=((sigma, steps),), sampling_rate=rate, **kwargs)


class TestComposition:
    def test_formulas(self):
        assert basic_composition(0.5, 1e-6, 4) == (2.0, 4e-6)
        value, at_delta = advanced_composition(0.1, 1e-8, 100, 1e-5)
        assert value == pytest.approx(0.1 * math.sqrt(200 * math.log(1e5)) + 10 * (math.exp(0.1) - 1))
        assert at_delta == pytest.approx(1e-6 + 1e-5)
        assert advanced_composition(1000.0, 0.0, 2, 1e-5)[0] == math.inf
        assert basic_composition(1.0, 0.5, 3)[1] == 1

    def test_they_bound_the_exact_composition(self):
        one = epsilon(event(100.0), 1e-10)
        true = epsilon(event(100.0, 10_000), 2e-6)
        assert true < advanced_composition(one, 1e-10, 10_000, 1e-6)[0] < basic_composition(one, 1e-10, 10_000)[0]

    @pytest.mark.parametrize("bad", [(-1.0, 0.0, 1), (1.0, -0.1, 1), (1.0, 1.1, 1), (1.0, 0.0, 0), (math.nan, 0.0, 1)])
    def test_refusals(self, bad):
        with pytest.raises(ConfigurationError):
            basic_composition(*bad)
        with pytest.raises(ConfigurationError, match="delta"):
            advanced_composition(1.0, 0.0, 10, 0.0)
        with pytest.raises(ConfigurationError, match="sampling_rate"):
            amplification_by_sampling(1.0, 0.0, 0.0)


class TestAmplification:
    def test_formula(self):
        assert amplification_by_sampling(1.0, 1e-5, 1.0) == pytest.approx((1.0, 1e-5))
        for eps in (0.01, 0.999, 1.001, 20.0):
            assert amplification_by_sampling(eps, 0, 0.01)[0] == pytest.approx(math.log(1 + 0.01 * (math.exp(eps) - 1)))
        assert amplification_by_sampling(5000.0, 0, 0.01)[0] == pytest.approx(5000 + math.log(0.01))
        # The slides' lemma: 1-DP on a fraction eps of the rows is 2 eps-DP.
        for rate in (0.01, 0.5, 0.99):
            assert amplification_by_sampling(1.0, 0.0, rate)[0] < 2 * rate

    @pytest.mark.parametrize("rate", [0.01, 0.3])
    def test_it_bounds_and_nearly_meets_the_subsampled_gaussian(self, rate):
        base_epsilon = 2.0
        amplified, at_delta = amplification_by_sampling(base_epsilon, delta(event(1.0), base_epsilon), rate)
        assert delta(event(1.0, rate=rate), amplified) == pytest.approx(at_delta, rel=0.01)
        assert delta(event(0.95, rate=rate), amplified) > 1.05 * at_delta


class TestStepSizes:
    def test_worked_example(self):
        assert li_2019_decreasing_step_size(0.1, 1e-5, **MNIST) == pytest.approx(0.103, abs=5e-4)
        assert li_2019_constant_step_size(0.1, 1e-5, **MNIST) == pytest.approx(0.103, abs=5e-4)
        assert wang_2015_step_size(0.1, 1e-5, **MNIST) == pytest.approx(1.48e-6, abs=5e-9)  # printed beside it: 1.54e-6

    def test_what_the_worked_example_really_costs(self):
        rate = 50_000**-0.5
        constant = epsilon(langevin_event(0.103, sampling_rate=rate, **MNIST), 1e-5)
        decreasing = epsilon(langevin_event(0.103, sampling_rate=rate, power=1 / 3, max_values=24, **MNIST), 1e-5)
        assert constant == pytest.approx(0.523, abs=0.002)
        assert decreasing == pytest.approx(0.121, abs=0.002)

    @pytest.mark.slow
    def test_what_their_mnist_run_really_costs(self):
        """Li et al. 2019 state epsilon = 0.10 for L = 4, eta_t = 0.1 t^(-1/3), q = 1/sqrt(N), delta = 1e-5."""
        run = langevin_event(
            0.1,
            num_data=60_000,
            num_steps=10_000,
            clipping_norm=4.0,
            sampling_rate=60_000**-0.5,
            power=1 / 3,
        )
        assert run.noise_multipliers[0][0] == pytest.approx(0.79, abs=0.005) and run.num_accesses == 10_000
        assert epsilon(run, 1e-5) == pytest.approx(0.512, abs=0.004)
        assert epsilon(run, 1e-5, "rdp") == pytest.approx(1.4, abs=0.03)

    def test_largest_step_meets_the_target(self):
        rate = 50_000**-0.5
        for power in (0.0, 1 / 3):
            setting = dict(MNIST, sampling_rate=rate, power=power, max_values=8)
            step = largest_step_size(0.5, 1e-5, **setting)
            assert 0.499 <= epsilon(langevin_event(step, **setting), 1e-5) <= 0.5
            assert epsilon(langevin_event(1.05 * step, **setting), 1e-5) > 0.5
        exact = largest_step_size(0.1, 1e-5, sampling_rate=1.0, **MNIST)
        mu = math.sqrt(10_000 * exact / 50_000)
        assert 0.0999 <= epsilon(event(1 / mu), 1e-5) <= 0.1
        # L^2 eta is all that matters.
        smaller = largest_step_size(0.1, 1e-5, sampling_rate=1.0, **dict(MNIST, clipping_norm=10.0))
        assert smaller == pytest.approx(exact / 100, rel=2e-3)

    def test_refusals(self):
        for name in MNIST:
            with pytest.raises(ConfigurationError, match=name):
                wang_2015_step_size(0.1, 1e-5, **dict(MNIST, **{name: 0}))
        with pytest.raises(ConfigurationError, match="delta"):
            li_2019_constant_step_size(0.1, 0.0, **MNIST)
        with pytest.raises(ConfigurationError, match="epsilon"):
            li_2019_decreasing_step_size(-0.1, 1e-5, **MNIST)


def test_example_draws_the_figures(tmp_path, capsys):
    from examples.papers.step_size_bounds import main

    main(f"--output {tmp_path} --points 2 --rows 100 --norms 1 --fixed-rows 100 --max-values 3".split())
    assert "valid, decreasing" in capsys.readouterr().out
    assert len((tmp_path / "step_size_against_epsilon.csv").read_text().splitlines()) == 3


class TestCentralLimit:
    def test_formulas(self):
        assert approximate_mu(event(1.0, 1000, 0.005)) == pytest.approx(0.005 * math.sqrt(1000 * (math.e - 1)))
        assert approximate_mu(event(2.0, 100)) == pytest.approx(5.0)
        assert approximate_mu(event(2.0, 100, neighboring_relation="replace_one")) == pytest.approx(10.0)
        fixed = event(2.0, 100, batch_size=10, num_data=1000, neighboring_relation="replace_one")
        phi = (1 + math.erf(1.5 / math.sqrt(2))) / 2, (1 - math.erf(0.5 / math.sqrt(2))) / 2
        expected = math.sqrt(2) * 0.01 * 10 * math.sqrt(math.e * phi[0] + 3 * phi[1] - 2)
        assert approximate_mu(fixed) == pytest.approx(expected)
        tiny = event(1e6, 1, batch_size=10, num_data=1000, neighboring_relation="replace_one")
        assert approximate_mu(tiny) == pytest.approx(0.01 * 2e-6, rel=1e-4)  # q times the base mechanism's mu
        both = [event(1.0, 1000, 0.005), event(10.0, 4)]
        assert approximate_mu(both) == pytest.approx(math.hypot(0.2073, 0.2), rel=1e-3)

    def test_it_is_exact_on_full_batches_and_close_for_many_accesses(self):
        assert approximate_epsilon(event(5.0, 20), 1e-5) == pytest.approx(epsilon(event(5.0, 20), 1e-5), rel=1e-6)
        assert approximate_delta(event(5.0, 20), 1.0) == pytest.approx(delta(event(5.0, 20), 1.0), rel=1e-6)
        many = event(20.0, 10_000, 0.05)
        assert approximate_epsilon(many, 1e-5) == pytest.approx(epsilon(many, 1e-5), rel=0.02)
        assert approximate_epsilon(event(19.0, 10_000, 0.05), 1e-5) > 1.03 * epsilon(many, 1e-5)

    def test_it_can_under_report(self):
        few = event(1.0, 1000, 0.005)
        assert approximate_epsilon(few, 1e-5) < 0.9 * epsilon(few, 1e-5)

    def test_too_little_noise_is_infinite(self):
        for e in (event(0.0), event(0.01, rate=0.5)):
            assert approximate_epsilon(e, 1e-5) == math.inf and approximate_delta(e, 1.0) == 1

    def test_refusals(self):
        with pytest.raises(ConfigurationError, match="zero-out"):
            approximate_mu(event(1.0, rate=0.5, neighboring_relation="replace_one"))
        with pytest.raises(ConfigurationError, match="replace_one"):
            approximate_mu(event(1.0, batch_size=1, num_data=10))
        with pytest.raises(ConfigurationError, match="delta"):
            approximate_epsilon(event(1.0), 0.0)
        with pytest.raises(ConfigurationError, match="epsilon"):
            approximate_delta(event(1.0), -1.0)


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(noise_multipliers=((8.0, 200),)),
        GaussianEvent(noise_multipliers=((1.5, 500),), sampling_rate=0.02),
    ],
)
def test_textbook_rules_stand_above_the_account(event):
    found = compared(event, 1e-6)
    assert found["tight"] == epsilon(event, 1e-6) <= found["RDP"] * (1 + 1e-6)
    assert found["RDP"] < found["advanced composition"] and found["tight"] < found["basic composition"]
    assert ("without amplification" in found) == (event.sampling_rate < 1)
    assert found["GDP, central limit (approximate)"] == pytest.approx(found["tight"], rel=0.2)
    axes = bounds_picture(event, 1e-6)
    drawn = {line.get_label(): line.get_ydata()[-1] for line in axes.get_lines()}
    assert drawn == pytest.approx(found)


def test_compared_is_for_accesses_that_are_alike():
    for event in (
        GaussianEvent(noise_multipliers=((8.0, 2), (9.0, 3))),
        GaussianEvent(noise_multipliers=((8.0, 2),), neighboring_relation="replace_one"),
    ):
        with pytest.raises(ConfigurationError, match="compared is for"):
            compared(event, 1e-6)
