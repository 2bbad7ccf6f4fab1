"""Events, accountants and calibration, against closed forms, dp_accounting's own numbers and published pitfalls."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy.stats import norm

from dpppl import accounting
from dpppl.accounting import (
    GaussianEvent,
    SelectionEvent,
    calibrate_noise_multiplier,
    delta,
    epsilon,
    from_dp_event,
    group_epsilon,
    privacy_spent,
    round_down,
    spent,
    to_dp_event,
)
from dpppl.accounting.curves import Curve
from dpppl.accounting.losses import DominatingPair
from dpppl.accounting.unit import Unit
from dpppl.errors import ConfigurationError


def event(sigma, steps=1, rate=1.0, **kwargs):
    return GaussianEvent(noise_multipliers=((sigma, steps),), sampling_rate=rate, **kwargs)


def fixed_size(sigma, steps, batch_size, num_data, relation="replace_one"):
    return event(sigma, steps, batch_size=batch_size, num_data=num_data, neighboring_relation=relation)


def subsampled_delta(sigma, rate, eps):
    """delta of one Poisson-subsampled Gaussian access, in closed form, the larger of both directions."""

    def threshold(ratio):
        return sigma**2 * math.log((ratio - 1 + rate) / rate) + 0.5

    def tails(sign, x):
        absent, present = norm.sf(sign * x / sigma), norm.sf(sign * (x - 1) / sigma)
        return absent, (1 - rate) * absent + rate * present

    absent, present = tails(1, threshold(math.exp(eps)))
    removed, added = present - math.exp(eps) * absent, 0.0
    if math.exp(-eps) > 1 - rate:
        absent, present = tails(-1, threshold(math.exp(-eps)))
        added = absent - math.exp(eps) * present
    return max(removed, added)


class TestEvents:
    def test_counts_and_composition(self):
        e = GaussianEvent(noise_multipliers=((1.0, 3), (2.0, 4)))
        assert e.num_accesses == 7
        assert epsilon(e, 1e-5) == epsilon([event(1.0, 3), event(2.0, 4)], 1e-5)
        assert epsilon(GaussianEvent(noise_multipliers=()), 1e-5) == 0
        for accountant in ("auto", "gaussian", "rdp", "pld"):
            assert delta([], 1.0, accountant) == 0

    def test_no_noise_is_no_privacy(self):
        for rate in (1.0, 0.01):
            report = spent(event(0.0, rate=rate), 1e-5)
            assert report.epsilon == math.inf and not report.meaningful
            assert delta([event(1.0), event(0.0, rate=rate)], 1.0) == 1

    @pytest.mark.parametrize(
        "kwargs, text",
        [
            (dict(noise_multipliers=((-1.0, 1),)), "noise multiplier"),
            (dict(noise_multipliers=((math.nan, 1),)), "noise multiplier"),
            (dict(noise_multipliers=((math.inf, 1),)), "noise multiplier"),
            (dict(noise_multipliers=((1.0, 0),)), "at least 1"),
            (dict(noise_multipliers=((1.0, 1.5),)), "whole number"),
            (dict(noise_multipliers=(), sampling_rate=0.0), "sampling_rate"),
            (dict(noise_multipliers=(), sampling_rate=1.1), "sampling_rate"),
            (dict(noise_multipliers=(), sampling_rate=math.nan), "sampling_rate"),
            (dict(noise_multipliers=(), neighboring_relation="swap"), "zero_out"),
            (dict(noise_multipliers=(), failure_probability=1.0), "failure_probability"),
            (dict(noise_multipliers=(), batch_size=10), "both or none"),
            (dict(noise_multipliers=(), batch_size=10, num_data=9), "batch_size"),
        ],
    )
    def test_refuses_impossible_numbers(self, kwargs, text):
        with pytest.raises(ConfigurationError, match=text):
            GaussianEvent(**kwargs)

    def test_relations_do_not_mix(self):
        with pytest.raises(ConfigurationError, match="use one relation"):
            epsilon([event(1.0), event(1.0, neighboring_relation="replace_one")], 1e-5)

    def test_round_down_is_exact_for_few_values(self):
        assert round_down(np.array([3.0, 1.0, 3.0, 0.0])) == ((0.0, 1), (1.0, 1), (3.0, 2))

    @pytest.mark.parametrize("zeros", [0, 3])
    def test_round_down_never_raises_a_multiplier(self, zeros):
        sigmas = np.sort(np.concatenate([np.zeros(zeros), 0.5 + np.random.default_rng(0).lognormal(size=1000)]))
        pairs = round_down(sigmas, max_values=20)
        rounded = np.repeat([s for s, _ in pairs], [n for _, n in pairs])
        assert len(pairs) <= 20 and rounded.shape == sigmas.shape
        assert np.all(rounded <= sigmas) and np.count_nonzero(rounded == 0) == zeros
        assert np.sum(rounded[zeros:] ** -2.0) < 1.2 * np.sum(sigmas[zeros:] ** -2.0)
        assert len(round_down(np.geomspace(1e-200, 1e200, 1000), 8)) <= 8
        with pytest.raises(ConfigurationError, match="finite"):
            round_down(np.array([1.0, np.nan]))

    def test_dp_events(self):
        assert "GaussianDpEvent(noise_multiplier=0.5" in str(to_dp_event(event(1.0, 4)))
        assert "PoissonSampledDpEvent(sampling_probability=0.1" in str(to_dp_event(event(1.0, 4, 0.1)))
        assert "SampledWithoutReplacementDpEvent" in str(to_dp_event(fixed_size(1.0, 4, 10, 100)))


class TestAccountants:
    @pytest.mark.parametrize("mu", [1e-4, 1e-2, 0.3, 1.0, 5.0, 12.0])
    @pytest.mark.parametrize("at_delta", [1e-2, 1e-5, 1e-10, 1e-30])
    def test_exact_gaussian(self, mu, at_delta):
        from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

        e = event(1 / mu)
        value = epsilon(e, at_delta)
        assert value == pytest.approx(get_epsilon_gaussian(1 / mu, at_delta), rel=1e-7, abs=1e-9)
        assert delta(e, value) <= at_delta * (1 + 1e-7)
        if value > 1e-3:
            assert delta(e, value * (1 - 1e-4)) > at_delta
        assert epsilon(event(1.05 / mu), at_delta) < value or value == 0

    def test_exact_gaussian_at_the_ends(self):
        assert epsilon(event(1e-3), 1e-5) == pytest.approx(1000**2 / 2 + 4.26489 * 1000, rel=1e-4)
        assert epsilon(event(1e30), 1e-5) == 0
        assert delta(event(1e-9), 1.0) == 1
        assert delta(event(1e9), 0.0) <= 1e-6
        assert epsilon(event(1e-50), 1e-5) > 1e6 and not spent(event(1e-50), 1e-5).meaningful

    def test_replacing_a_row_moves_a_sum_by_two_norms(self):
        """dp_accounting's RDP wants sigma / 2 for that, its PLD wants sigma; the other way they say 4.73 and 24.4."""
        ours = event(1.0, neighboring_relation="replace_one")
        assert epsilon(ours, 1e-5) == pytest.approx(9.99726, abs=1e-4)
        assert epsilon(ours, 1e-5, "pld") == pytest.approx(9.99726, abs=1e-3)
        assert epsilon(ours, 1e-5, "rdp") == pytest.approx(10.7255, abs=1e-3)
        # The exact formula is far from what the two mistakes give.
        assert delta(ours, 9.0) > 2e-5 and delta(ours, 11.0) < 5e-6

    @pytest.mark.parametrize("sigma, steps", [(1.0, 1), (10.0, 100), (100.0, 1000), (30.0, 10000)])
    def test_full_batch_accountants_agree(self, sigma, steps):
        for relation in ("zero_out", "add_or_remove_one", "replace_one"):
            e = event(sigma, steps, neighboring_relation=relation)
            exact, pld, rdp = (epsilon(e, 1e-5, name) for name in ("gaussian", "pld", "rdp"))
            assert exact <= pld * (1 + 1e-8) <= exact * 1.001
            assert exact < rdp < 1.25 * exact

    @pytest.mark.quick_cases(2)
    @pytest.mark.parametrize(
        "sigma, rate", [(0.2, 1e-4), (0.5, 0.01), (1.0, 0.01), (1.0, 0.5), (5.0, 0.1), (3.0, 0.99)]
    )
    def test_one_subsampled_access_in_closed_form(self, sigma, rate):
        for relation in ("zero_out", "add_or_remove_one"):
            e = event(sigma, rate=rate, neighboring_relation=relation)
            for at_delta in (1e-3, 1e-6, 1e-9):
                value = epsilon(e, at_delta)
                assert subsampled_delta(sigma, rate, value) <= at_delta * (1 + 1e-6)
                if value > 0:
                    assert subsampled_delta(sigma, rate, value * 0.995) > at_delta
                # A 5 % smaller multiplier is a different mechanism, and seen as one.
                assert value == 0 or subsampled_delta(0.95 * sigma, rate, value) > at_delta
                assert delta(e, 0.5) == pytest.approx(subsampled_delta(sigma, rate, 0.5), rel=2e-3, abs=1e-12)

    def test_two_different_subsampled_accesses_by_quadrature(self):
        """delta of a pair is the mean, over the first output, of delta of the second at epsilon less the first loss."""
        sigmas, rate, eps = (0.8, 1.3), 0.05, 1.0
        x = np.linspace(-12, 13, 100_001)

        def pair(sigma):
            absent = norm.pdf(x, 0, sigma)
            return (1 - rate) * absent + rate * norm.pdf(x, 1, sigma), absent

        def second(sigma, at):  # removing direction, at any real epsilon
            ratio = np.maximum((np.exp(at) - 1 + rate) / rate, 1e-300)
            cut = sigma**2 * np.log(ratio) + 0.5
            absent = norm.sf(cut / sigma)
            return (1 - rate) * absent + rate * norm.sf((cut - 1) / sigma) - np.exp(at) * absent

        present, absent = pair(sigmas[0])
        true = np.sum(present * second(sigmas[1], eps - np.log(present / absent))) * (x[1] - x[0])
        both = [event(s, rate=rate) for s in sigmas]
        assert delta(both, eps) == pytest.approx(true, rel=1e-3) and delta(both, eps) >= true * (1 - 1e-6)
        assert delta([event(0.95 * s, rate=rate) for s in sigmas], eps) > 1.05 * true

    def test_known_poisson_numbers(self):
        e = event(1.0, 1000, 0.005)
        assert epsilon(e, 1e-5) == pytest.approx(0.8639, rel=1e-3)
        assert epsilon(e, 1e-5, "rdp") == pytest.approx(1.2055, rel=1e-3)
        assert epsilon(event(1.0, 1000, 0.01, neighboring_relation="replace_one"), 1e-5) == pytest.approx(2.8, abs=0.05)
        assert epsilon(fixed_size(1.0, 1000, 100, 10_000), 1e-5) == pytest.approx(21.0, abs=0.05)
        assert epsilon(fixed_size(1.0, 10, 100, 100), 1e-5) == epsilon(
            event(1.0, 10, neighboring_relation="replace_one"), 1e-5
        )

    @pytest.mark.slow
    def test_very_many_tiny_accesses(self):
        """Rounding must not turn it into 0."""
        many = spent(event(2.0, 10**8, 1e-5), 1e-5)
        assert 0.1 < many.epsilon < 0.25
        assert epsilon(event(5.0, 10**9, 1e-9), 1e-9, "rdp") > 0
        fine = spent(event(100.0, 10_000, 0.01), 1e-5)
        assert fine.accountant.startswith("PLD") and fine.epsilon == pytest.approx(0.027225, rel=2e-3)

    def test_names(self):
        assert spent(event(1.0), 1e-5).accountant == "exact Gaussian (analytic)"
        assert spent(event(1.0, 10, 0.1), 1e-5).accountant == "PLD (tilted Fourier transform)"
        assert spent(event(1.0, 10, 0.1), 1e-5, "rdp").accountant.startswith("RDP (dp_accounting 0.6")

    @pytest.mark.parametrize(
        "e, accountant, text",
        [
            (event(1.0), "moments", "must be one of auto"),
            (event(1.0, rate=0.5), "gaussian", "use 'pld'"),
            (fixed_size(1.0, 1, 1, 10), "pld", "use 'rdp'"),
            (fixed_size(1.0, 1, 1, 10, "zero_out"), "auto", "replace_one"),
        ],
    )
    def test_unsupported_combinations_name_the_cure(self, e, accountant, text):
        with pytest.raises(ConfigurationError, match=text):
            epsilon(e, 1e-5, accountant)
        with pytest.raises(ConfigurationError, match=text):
            delta(e, 1.0, accountant)

    @pytest.mark.parametrize("bad", [0.0, 1.0, -1e-5, 1.5, math.nan])
    def test_delta_must_be_a_probability(self, bad):
        for call in (lambda: epsilon(event(1.0), bad), lambda: spent(event(1.0), bad)):
            with pytest.raises(ConfigurationError, match="delta"):
                call()
        with pytest.raises(ConfigurationError, match="delta"):
            group_epsilon(event(1.0), bad, 2)
        with pytest.raises(ConfigurationError, match="delta"):
            calibrate_noise_multiplier(event, 1.0, bad)

    @pytest.mark.parametrize("bad", [True, "1e-5", None, [1e-5]])
    def test_delta_must_be_a_number(self, bad):
        with pytest.raises(ConfigurationError, match="give a number in"):
            privacy_spent.check_delta(bad)

    def test_the_smallest_of_several_bounds_holds(self, monkeypatch):
        """Later curves are not asked where none can be below; one at the largest meaningful epsilon is meaningful."""
        asked = []

        def curve(name, epsilon, final=False):
            return Curve(
                lambda delta: asked.append(name) or epsilon, lambda _: epsilon, name, lambda delta, found: final
            )

        largest = privacy_spent.LARGEST_MEANINGFUL_EPSILON
        monkeypatch.setattr(privacy_spent.curves, "ROUND_UP", 1.0)
        for curves, found in (
            ([curve("a", 3.0), curve("b", 2.0), curve("c", 4.0)], (2.0, "b", True)),
            ([curve("a", 3.0), curve("b", 2.0, True), curve("c", 1.0)], (2.0, "b", True)),
            ([curve("a", largest)], (largest, "a", True)),
            ([curve("a", np.nextafter(largest, np.inf))], (np.nextafter(largest, np.inf), "a", False)),
        ):
            asked.clear()
            monkeypatch.setattr(privacy_spent.curves, "build", lambda *_, curves=curves: curves)
            report = spent(event(1.0), 1e-5)
            assert (report.epsilon, report.accountant, report.meaningful) == found
            assert asked == [c.name for c in curves if c.name != "c" or found[0] != 2.0 or not curves[1].final(0, 0)]

    @pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
    def test_epsilon_must_be_finite(self, bad):
        with pytest.raises(ConfigurationError, match="epsilon"):
            delta(event(1.0), bad)

    @pytest.mark.slow
    def test_rounded_down_schedule_is_a_tight_upper_bound(self):
        sigmas = 1.5 * np.arange(1, 201) ** (1 / 6)
        exact = epsilon(GaussianEvent(noise_multipliers=round_down(sigmas, 200), sampling_rate=0.01), 1e-5)
        bound = epsilon(GaussianEvent(noise_multipliers=round_down(sigmas, 30), sampling_rate=0.01), 1e-5)
        assert exact * 0.9999 <= bound <= 1.03 * exact
        assert (
            epsilon(GaussianEvent(noise_multipliers=round_down(0.95 * sigmas, 200), sampling_rate=0.01), 1e-5) > bound
        )


class TestFailureProbability:
    def test_epsilon_solves_at_a_smaller_delta(self):
        for rate in (1.0, 0.05):
            plain, beta = event(2.0, 5, rate), 1e-9
            value = epsilon(event(2.0, 5, rate, failure_probability=beta), 1e-5)
            remaining = 1e-5 - (1 + math.exp(value)) * beta
            assert epsilon(plain, remaining) <= value
            assert value == pytest.approx(epsilon(plain, remaining), rel=1e-4)
            assert value > epsilon(plain, 1e-5) * (1 + 1e-5)
        assert epsilon(event(2.0, 5, failure_probability=1e-30), 1e-5) == pytest.approx(
            epsilon(event(2.0, 5), 1e-5), rel=1e-5
        )

    def test_delta_adds_it(self):
        gap = delta(event(2.0, 5, failure_probability=1e-7), 1.0) - delta(event(2.0, 5), 1.0)
        assert gap == pytest.approx((1 + math.e) * 1e-7, rel=1e-6)
        assert delta(event(2.0, failure_probability=0.1), 500.0) == 1
        halves = [event(2.0, 2, failure_probability=5e-8), event(2.0, 3, failure_probability=5e-8)]
        assert delta(halves, 1.0) == pytest.approx(delta(event(2.0, 5, failure_probability=1e-7), 1.0), rel=1e-9)

    def test_impossible_is_infinite(self):
        assert epsilon(event(2.0, failure_probability=1e-5), 1e-5) == math.inf
        assert not spent(event(2.0, failure_probability=1e-5), 1e-5).meaningful
        assert epsilon(event(0.3, 10, failure_probability=1e-9), 1e-5) == math.inf  # e^epsilon beta > delta


class TestGroups:
    def test_full_batch_is_exact(self):
        for relation in ("zero_out", "replace_one"):
            e = event(10.0, 20, neighboring_relation=relation)
            assert group_epsilon(e, 1e-5, 4) == pytest.approx(
                epsilon(event(2.5, 20, neighboring_relation=relation), 1e-5), rel=1e-9
            )
            assert group_epsilon(e, 1e-5, 1) == epsilon(e, 1e-5)
            assert group_epsilon(e, 1e-5, 4, "rdp") >= group_epsilon(e, 1e-5, 4)
            for at in (0.0, 1.0):
                four = delta(event(2.5, 20, neighboring_relation=relation), at)
                assert delta(e, at, group_size=4) == pytest.approx(four, rel=1e-9) and delta(e, at) < 0.9 * four

    def test_poisson_group(self):
        e = event(2.0, 100, 0.02)
        one, two, three = (group_epsilon(e, 1e-5, k) for k in (1, 2, 3))
        assert one == epsilon(e, 1e-5)
        # Both rows always in one batch is worse than independently drawn; it costs more than twice the mean shift.
        assert 1.9 * one < two < epsilon(event(1.0, 100, 0.02), 1e-5) < epsilon(event(1.0, 100, 0.0392), 1e-5)
        assert two < three < group_epsilon(e, 1e-5, 3, "rdp")

    def test_poisson_group_of_two_in_closed_form(self):
        sigma, rate = 1.0, 0.3
        x = np.linspace(-12, 14, 400_001)
        absent = norm.pdf(x, 0, sigma)
        present = sum(
            p * norm.pdf(x, j, sigma) for j, p in enumerate([(1 - rate) ** 2, 2 * rate * (1 - rate), rate**2])
        )

        def true_delta(eps):
            step = x[1] - x[0]
            return max(
                np.maximum(a - math.exp(eps) * b, 0).sum() * step for a, b in ((absent, present), (present, absent))
            )

        value = group_epsilon(event(sigma, rate=rate), 1e-4, 2)
        assert true_delta(value) <= 1e-4 * (1 + 1e-3) and true_delta(0.99 * value) > 1e-4

    def test_general_bound(self):
        e = fixed_size(3.0, 10, 10, 1000)
        value = group_epsilon(e, 1e-5, 3)
        one_row = delta(e, value / 3)
        assert one_row * math.expm1(value) / math.expm1(value / 3) == pytest.approx(1e-5, rel=1e-3)
        poisson = event(3.0, 100, 0.01, neighboring_relation="replace_one")
        assert epsilon(poisson, 1e-5) < group_epsilon(poisson, 1e-5, 2) < math.inf

    def test_refuses_odd_sizes(self):
        for bad in (0, -1, 1.5, 10**200):
            with pytest.raises(ConfigurationError, match="group_size"):
                group_epsilon(event(1.0), 1e-5, bad)


@pytest.mark.parametrize("settings", [{}, {"discrete": True}, {"neighboring_relation": "replace_one"}, None])
def test_extreme_noise_is_no_loss_or_any_and_never_an_error(settings):
    """Divergences that overflow are inf: as NaN they passed for no loss."""
    fixed = {"batch_size": 1, "num_data": 10, "neighboring_relation": "replace_one"}
    settings = fixed if settings is None else {"sampling_rate": 0.5} | settings
    for sigma, least, most in ((1e-165, math.inf, math.inf), (1e-155, math.inf, math.inf), (1e-148, 1e290, math.inf),
                               (1e155, 0.0, 1e-3), (1e300, 0.0, 1e-3)):  # fmt: skip
        given = GaussianEvent(noise_multipliers=((sigma, 1),), **settings)
        assert least <= epsilon(given, 1e-6, "rdp") <= most
        if settings == {"sampling_rate": 0.5}:
            assert least <= epsilon(given, 1e-6) <= most
            assert (accounting.trade_off(given).advantage < 1e-4) == (most < 1)


@pytest.mark.parametrize(
    "pair",
    [("10", 5), (1.0, "5"), (1.0, math.nan), (1.0, math.inf), (10**400, 1), (1.0, 10**400), (1.0, 10**300), (True, 1)],
)
def test_what_is_no_pair_of_numbers_is_refused(pair):
    with pytest.raises(ConfigurationError, match=r"noise.multiplier|number of accesses"):
        GaussianEvent(noise_multipliers=(pair,))


def test_no_delta_is_left_at_a_huge_epsilon():
    for given in (event(1.0), event(1e150), event(1.0, 10, 0.1), fixed_size(3.0, 10, 10, 1000)):
        assert accounting.delta(given, 1e300) < 1e-12


class TestCalibration:
    @pytest.mark.quick_cases(16)
    @pytest.mark.parametrize(
        "target, target_delta", [(0.01, 1e-5), (0.3, 1e-8), (1.0, 1e-5), (10.0, 1e-6), (50.0, 1e-5)]
    )
    @pytest.mark.parametrize("rate, steps", [(1.0, 1), (1.0, 10_000), (0.1, 1000), (0.005, 10_000)])
    def test_noise_multiplier(self, rate, steps, target, target_delta):
        sigma = calibrate_noise_multiplier(lambda s: event(s, steps, rate), target, target_delta)
        value = epsilon(event(sigma, steps, rate), target_delta)
        assert target * (1 - 1e-3) <= value <= target
        assert epsilon(event(0.95 * sigma, steps, rate), target_delta) > target
        if rate == 1.0:
            mu = math.sqrt(steps) / sigma
            log_delta = norm.logcdf(mu / 2 - target / mu)
            true = math.exp(log_delta) - math.exp(target + norm.logcdf(-mu / 2 - target / mu))
            assert 0.9 * target_delta < true < target_delta

    @pytest.mark.slow
    def test_noise_multiplier_at_a_tiny_rate(self):
        sigma = calibrate_noise_multiplier(lambda s: event(s, 1000, 1e-4), 1.0, 1e-5)
        assert 0.999 <= epsilon(event(sigma, 1000, 1e-4), 1e-5) <= 1.0

    def test_other_accountants_and_relations(self):
        for relation, accountant in (("zero_out", "rdp"), ("replace_one", "auto")):

            def make(s, relation=relation):
                return event(s, 100, 0.05, neighboring_relation=relation)

            assert (
                0.999 <= epsilon(make(calibrate_noise_multiplier(make, 1.0, 1e-5, accountant)), 1e-5, accountant) <= 1
            )

    def test_several_events_and_failures(self):
        def make(s):
            return [event(s, 100), event(2 * s, 50, 0.1, failure_probability=1e-8)]

        assert 0.999 <= epsilon(make(calibrate_noise_multiplier(make, 1.0, 1e-5)), 1e-5) <= 1

    def test_unreachable_targets(self):
        with pytest.raises(ConfigurationError, match="cannot be met"):
            calibrate_noise_multiplier(lambda s: event(s, failure_probability=1e-5), 1.0, 1e-5)
        for bad in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ConfigurationError, match="target_epsilon"):
                calibrate_noise_multiplier(event, bad, 1e-5)


def leaky(beta, rate=0.01, noise=2.0, count=5, **options):
    return GaussianEvent(noise_multipliers=((noise, count),), sampling_rate=rate, failure_probability=beta, **options)


def risk(prior, mu=1.0):
    """The least probability of error of any test of N(0, 1) against N(mu, 1), by trying thresholds."""
    t = np.linspace(-10, 10, 200_001)
    return float(np.min(prior * norm.cdf(t - mu) + (1 - prior) * norm.sf(t)))


def planned():
    """One chain's option, with 200 steps at a rate of .1: a plan of 20,000 rows."""
    found = accounting.plan(
        num_data=20_000, target_epsilon=1.0, target_delta=1e-5, rates=(0.1,), num_steps=(200,), rows_per_second=1e5
    )
    return found, next(option for option in found.options if option.method == "DPSGLD")


def noise_of_a_composed_sample():
    """Two accesses to one batch are one of less noise; nested counts multiply."""
    pair = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(2.0)] * 2)
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, pair)
    nested = dp_accounting.SelfComposedDpEvent(dp_accounting.SelfComposedDpEvent(sampled, 3), 4)
    ((noise, count),) = from_dp_event(nested)[0].noise_multipliers
    return noise * count


BY_HAND = {
    "failures of a selection": (lambda: SelectionEvent(candidates=((leaky(2e-7), leaky(2e-7)), (leaky(3e-7),)), mean=4.0).failure_probability, 1.6e-6),
    "accesses of a selection": (lambda: SelectionEvent(candidates=((leaky(0.0),), (leaky(0.0), leaky(0.0))), mean=4.0).num_accesses, 10),
    "failures raise delta": (lambda: delta([leaky(1e-3)] * 2, 1.0) - delta([leaky(0.0)] * 2, 1.0), (1 + math.e) * 2e-3),
    "failures raise the advantage": (lambda: accounting.trade_off([leaky(1e-3)] * 2).advantage - accounting.trade_off([leaky(0.0)] * 2).advantage, 4e-3),
    "rounding of many accesses": (lambda: accounting.rdp(leaky(0.0, 1e-3, 1e6, 1_000), [2.0])[0], 1.0003e-11),
    "rounding of fractional orders": (lambda: accounting.rdp(leaky(0.0, 1e-3, 1e6, 1_000), [2.5])[0], 1.855e-10),
    "rounding of fixed-size batches": (lambda: accounting.rdp(event(1e6, batch_size=10, num_data=10_000, neighboring_relation="replace_one"), [64.0])[0], 6.991e-14),
    "rounding of discrete noise": (lambda: accounting.rdp(event(1e8, 5, discrete=True), [2.0])[0], 1.0057e-11),
    "a composed sample": (noise_of_a_composed_sample, math.sqrt(2.0) * 12),
    "costs before": (lambda: accounting.compare({"a": event(20.0), "b": event(20.0)}, 1e-5, event(10.0))[1].total_epsilon, epsilon(event(1 / math.sqrt(0.015)), 1e-5)),
    "risk of a rare row": (lambda: accounting.trade_off(event(1.0)).bayes_risk(0.1), risk(0.1)),
    "risk of a common row": (lambda: accounting.trade_off(event(1.0)).bayes_risk(0.8), risk(0.8)),
    "rows of a plan": (lambda: planned()[1].row_gradients, 0.1 * 200 * 20_000),
    "seconds of a plan": (lambda: planned()[1].seconds, 4.0),
    "learned by a plan": (lambda: planned()[1].learned_above / (planned()[0].clipping_norm * planned()[1].noise_multiplier / 0.1) ** 2, 1 / 200 / 20_000),
}  # fmt: skip
"""Numbers of the accounts, and what they are by hand."""


@pytest.mark.quick_cases(14)
@pytest.mark.parametrize("number", BY_HAND)
def test_a_number_is_what_it_is_by_hand(number):
    found, expected = BY_HAND[number]
    assert found() == pytest.approx(expected, rel=1e-3, abs=0.0)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("relation", ["replace_one", "zero_out", "add_or_remove_one"])
@pytest.mark.parametrize("rate", [1e-16, 1e-9])
def test_rates_at_which_nothing_is_lost(relation, rate):
    """Rounding leaves nothing of a divergence there: the logarithm of 1 - e^-0 was taken."""
    once = leaky(0.0, rate, 50.0, 1, neighboring_relation=relation)
    assert epsilon(once, 1e-5) == 0.0 and 0.0 <= delta(once, 1e-9) < 1e-9
    assert 0.0 < epsilon(once, 1e-12, "rdp") < 0.1 and 0.0 < epsilon(leaky(0.0, 0.01, 50.0, 1), 1e-12)


def test_corners_of_events():
    """Each by itself: accesses without noise, an empty batch, a pair of three, numbers that are not finite, two relations."""
    assert isinstance(to_dp_event(events((0.0, 1), (2.0, 3))), dp_accounting.NonPrivateDpEvent)
    empty = dp_accounting.SampledWithoutReplacementDpEvent(10, 0, dp_accounting.GaussianDpEvent(1.0))
    assert from_dp_event(empty) == ()
    with pytest.raises(ConfigurationError, match="are pairs"):
        events((1.0, 2, 3))
    with pytest.raises(ConfigurationError, match="must be finite"):
        round_down(np.array([1.0, np.inf]))
    other = GaussianEvent(noise_multipliers=((1.0, 1),), neighboring_relation="replace_one")
    with pytest.raises(ConfigurationError, match="the same neighbouring relation"):
        SelectionEvent(candidates=((events((1.0, 1)),), (other,)), mean=2.0)
    assert "the at most 3 rows of a person" in Unit(max_rows=3).relation("zero_out")


def events(*pairs):
    return GaussianEvent(noise_multipliers=pairs)


def test_losses_on_a_grid_begin_below_the_least():
    access = DominatingPair(np.ones(1), np.ones(1), np.zeros(1), np.ones(1), 1)
    least = access.nodes[1][0]
    assert least - 1e-3 <= access.on_grid(1e-3).index[0] * 1e-3 <= least
