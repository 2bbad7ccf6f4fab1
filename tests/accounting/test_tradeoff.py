"""What an attack can achieve, against closed forms, other libraries and attacks that are carried out."""

import functools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as theirs
from scipy.optimize import brentq
from scipy.stats import norm

import dpppl
from dpppl.accounting import GaussianEvent, tradeoff

RATES = np.concatenate([10.0 ** np.arange(-8, -1), np.linspace(0.02, 0.98, 49), [0.0, 1.0]])


def poisson(sigma=1.0, count=1000, rate=0.01, **options):
    return GaussianEvent(noise_multipliers=((sigma, count),), sampling_rate=rate, **options)


@functools.cache
def risk_of(event):
    return dpppl.accounting.trade_off(event)


def gaussian_rates(mu, rates=RATES):
    return norm.sf(norm.ppf(rates) + mu)


def gaussian_of(epsilon, delta):
    """mu of the Gaussian mechanism whose guarantee goes through this point."""
    return brentq(lambda mu: dpppl.accounting.curves.gaussian_delta(mu, epsilon) - delta, 1e-3, 10.0)


@pytest.mark.parametrize("mu", [0.01, 0.5, 1.0, 4.0])
def test_full_batches_are_exactly_gaussian(mu):
    risk = risk_of(GaussianEvent(noise_multipliers=((10.0 / mu, 60), (20.0 / mu, 160))))
    assert risk.gaussian.exact and risk.gaussian.mu == pytest.approx(mu) and risk.gaussian.regret == 0
    np.testing.assert_allclose(risk.false_negative_rate(RATES), gaussian_rates(mu), atol=1e-12)
    assert risk.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, abs=1e-6)
    for prior in (0.5, 0.01, 0.9):  # the best test says "used" where the likelihood ratio exceeds the odds
        cut = math.log((1 - prior) / prior) / mu
        best = (1 - prior) * norm.sf(cut + mu / 2) + prior * norm.cdf(cut - mu / 2)
        assert risk.bayes_risk(prior) == pytest.approx(best, abs=1e-9)
    hits = 1 - gaussian_rates(mu, 0.01)
    assert risk.positive_predictive_value(0.01, 0.01) == pytest.approx(hits / (hits + 0.99))
    assert risk.inference_success(0.1) == pytest.approx(1 - gaussian_rates(mu, 0.1))


def test_replacing_a_row_is_twice_as_far_as_zeroing_it_out():
    event = GaussianEvent(noise_multipliers=((10.0, 100),), neighboring_relation="replace_one")
    assert risk_of(event).gaussian.mu == pytest.approx(2.0)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_points_alone_lose_little_and_never_fall_on_the_wrong_side(mu):
    """The same Gaussian without its closed form: from points of delta(epsilon)."""
    exact = risk_of(GaussianEvent(noise_multipliers=((10.0 / mu, 100),)))
    points = tradeoff.TradeOff(epsilons=exact.epsilons, deltas=exact.deltas * (1 + 1e-8))
    lost = gaussian_rates(mu) - points.false_negative_rate(RATES)
    assert np.all(lost >= -1e-12) and np.all(lost < 1e-3)
    assert mu <= points.gaussian.mu < mu + 1e-3 and points.gaussian.regret < 1e-3 and not points.gaussian.exact
    between = (exact.epsilons[1:] + exact.epsilons[:-1]) / 2
    for epsilon in between[::37]:
        assert exact.delta(epsilon) <= points.delta(epsilon) < exact.delta(epsilon) + 1e-4
    assert points.delta(2 * exact.epsilons[-1]) <= 1.1e-12 and points.delta(0.0) == points.advantage


@pytest.mark.parametrize("rate", [0.5, 0.05])
def test_one_poisson_batch_in_closed_form(rate):
    """Removing a row: a shift with probability `rate`. Its error rates are on either side of the reported curve."""
    risk = risk_of(poisson(1.0, 1, rate))
    cut = np.linspace(-3, 5, 81)
    false_positive, false_negative = norm.sf(cut), (1 - rate) * norm.cdf(cut) + rate * norm.cdf(cut - 1)
    for a, b in ((false_positive, false_negative), (false_negative, false_positive)):
        assert np.all(risk.false_negative_rate(a) <= b + 1e-12)
    assert risk.advantage == pytest.approx(rate * (2 * norm.cdf(0.5) - 1), abs=1e-4)
    low = false_positive < 0.3  # where removing is easier to see than adding
    np.testing.assert_allclose(risk.false_negative_rate(false_positive[low]), false_negative[low], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("event", [poisson(), poisson(5.0, 1000, 0.1)])
def test_gdpnum_and_riskcal_agree_on_subsampled_runs(event):
    """Both take dp_accounting's pessimistic distributions: a curve not above theirs by more than rounding of the grid."""
    gdpnum, riskcal = pytest.importorskip("gdpnum"), pytest.importorskip("riskcal.analysis")
    (sigma, count), risk = event.noise_multipliers[0], risk_of(event)
    losses = theirs.from_gaussian_mechanism(
        sigma, sampling_prob=event.sampling_rate, value_discretization_interval=1e-4
    ).self_compose(count)
    inner = RATES[(RATES > 1e-5) & (RATES < 1)]
    np.testing.assert_allclose(
        risk.false_negative_rate(inner), riskcal.get_beta_from_pld(losses, alpha=inner), atol=1e-3
    )
    assert risk.advantage == pytest.approx(riskcal.get_advantage_from_pld(losses), abs=1e-3)
    for prior in (0.5, 0.01):
        assert risk.bayes_risk(prior) == pytest.approx(riskcal.get_bayes_risk_from_pld(losses, prior), abs=1e-3)
    # gdpnum's curve leaves out false positive rates below about 1e-4 at a rate of .01, so its mu is smaller there.
    assert gdpnum.PLDConverter(losses).get_mu(1e-10) <= risk.gaussian.mu * 1.001
    implied = [gaussian_of(losses.get_epsilon_for_delta(delta), delta) for delta in (0.1, 1e-3, 1e-5, 1e-7, 1e-9)]
    assert max(implied) <= risk.gaussian.mu * 1.001 and risk.gaussian.mu < 1.03 * max(implied)
    grid = np.linspace(0, 1, 10_001)
    regret = gdpnum.get_worst_case_regret(grid, risk.false_negative_rate(grid), risk.gaussian.mu)
    assert risk.gaussian.regret == pytest.approx(regret, abs=1e-3) and risk.gaussian.regret > 0
    optimistic = theirs.from_gaussian_mechanism(
        sigma, sampling_prob=event.sampling_rate, value_discretization_interval=1e-4, pessimistic_estimate=False
    ).self_compose(count)
    for epsilon in (0.0, 0.5, 1.5):
        assert optimistic.get_delta_for_epsilon(epsilon) <= risk.delta(epsilon) + 1e-9


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "event",
    [
        poisson(),
        poisson(neighboring_relation="replace_one"),
        poisson(failure_probability=1e-4),
        GaussianEvent(noise_multipliers=((2.0, 50),), batch_size=10, num_data=500, neighboring_relation="replace_one"),
        GaussianEvent(noise_multipliers=((50.0, 100),), discrete=True),
    ],
)
def test_every_accountant_gives_a_curve_that_keeps_its_own_deltas(event):
    """No epsilon of the accountants allows an attack less than the curve does; mu, too, keeps every delta down to 1e-9."""
    risk = risk_of(event)
    rates = risk.false_negative_rate(RATES)
    order = np.argsort(RATES)
    assert np.all(np.diff(rates[order]) <= 0) and np.all(rates + RATES <= 1) and rates[RATES == 1] == 0
    mu = risk.gaussian.mu
    for share in (0.0, 0.1, 0.4):
        epsilon = share * float(risk.epsilons[-1])
        delta = dpppl.accounting.delta(event, epsilon)
        assert risk.delta(epsilon) == pytest.approx(delta, rel=5e-3, abs=1e-12)
        assert delta < 1e-9 or delta <= dpppl.accounting.curves.gaussian_delta(mu, epsilon) * 1.005
        assert np.all(rates >= 1 - 1.005 * delta - math.exp(epsilon) * RATES - 1e-3)


def test_an_attack_that_is_carried_out_stays_below_the_bounds():
    """Sums of 30 Poisson batches: the best test between a row and none, 200,000 runs each; 4 standard errors."""
    rate, sigma, steps, runs = 0.2, 1.0, 30, 200_000
    rng = np.random.default_rng(0)

    def losses(present):
        total = np.zeros(runs)
        for _ in range(steps):
            z = rng.normal(size=runs) * sigma + present * (rng.random(runs) < rate)
            total += np.log1p(rate * np.expm1((2 * z - 1) / (2 * sigma**2)))
        return np.sort(total)

    used, unused = losses(1.0), losses(0.0)
    risk = risk_of(poisson(sigma, steps, rate))
    gains = []
    for cut in np.quantile(unused, [0.5, 0.8, 0.9, 0.99, 0.999]):
        false_positive, hit = np.mean(unused > cut), np.mean(used > cut)
        gains.append(hit - false_positive)
        spread = 4 * math.sqrt(0.25 / runs)
        assert hit <= risk.true_positive_rate(false_positive) + spread + 4 * math.sqrt(false_positive / runs)
    assert risk.advantage - 0.02 < max(gains) < risk.advantage + 2 * spread


def test_nothing_run_no_noise_and_numbers_out_of_range():
    nothing = dpppl.accounting.trade_off([])
    assert nothing.advantage == 0 and nothing.gaussian.mu == 0 and nothing.true_positive_rate(0.25) == 0.25
    none, next_to_none = ([GaussianEvent(noise_multipliers=((sigma, 1),))] for sigma in (0.0, 1e-200))
    for event in (none, next_to_none, poisson(0.05)):
        bare = dpppl.accounting.trade_off(event)
        assert bare.advantage == 1 and bare.bayes_risk(0.01) == 0 and bare.gaussian.mu == math.inf
        assert np.all(bare.false_negative_rate(RATES) == 0)
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(dpppl.ConfigurationError, match="false_positive_rate"):
            nothing.false_negative_rate(wrong)
    for wrong in (0, -1, 1.5):
        with pytest.raises(dpppl.ConfigurationError, match="group_size"):
            dpppl.accounting.trade_off(poisson(20.0), group_size=wrong)
    for wrong in (-0.1, math.nan):
        with pytest.raises(dpppl.ConfigurationError, match="epsilon"):
            nothing.delta(wrong)
    with pytest.raises(dpppl.ConfigurationError, match="prior"):
        nothing.bayes_risk(0.0)
    with pytest.raises(dpppl.ConfigurationError, match="false_positive_rate"):
        nothing.positive_predictive_value(0.5, 0.0)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("target", [0.01, 0.3])
def test_noise_for_an_advantage(target):
    sigma = dpppl.accounting.calibrate_advantage(lambda noise: GaussianEvent(noise_multipliers=((noise, 100),)), target)
    exact = 10 / (2 * norm.ppf((1 + target) / 2))
    assert exact <= sigma < exact * 1.0011
    event = poisson(dpppl.accounting.calibrate_advantage(poisson, target))
    assert 0.998 * target < risk_of(event).advantage <= target
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(dpppl.ConfigurationError, match="target_advantage"):
            dpppl.accounting.calibrate_advantage(poisson, wrong)
    leaky = functools.partial(poisson, rate=1.0, failure_probability=0.2)
    with pytest.raises(dpppl.ConfigurationError, match=r"target advantage .* cannot be met"):
        dpppl.accounting.calibrate_advantage(leaky, target)


def test_corners_of_a_trade_off():
    """Without noise, sampled or not, and where 1 / noise^2 is more than a float; a rate of 1; rates that are words."""
    for event in (
        GaussianEvent(noise_multipliers=((0.0, 1),), sampling_rate=0.1),
        GaussianEvent(noise_multipliers=((1e-160, 1),)),
    ):
        assert dpppl.accounting.trade_off(event).deltas.tolist() == [1.0]
    found = dpppl.accounting.trade_off(GaussianEvent(noise_multipliers=((2.0, 1),)))
    assert found.positive_predictive_value(0.3, 1.0) == pytest.approx(0.3)
    with pytest.raises(dpppl.ConfigurationError, match="must be a number in"):
        found.true_positive_rate(["a", 0.2])
