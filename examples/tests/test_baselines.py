"""The papers' comparators against densities and Renyi divergences that are worked out here."""

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import expit

import dpppl
from examples.baselines import hybrid, pate, perturbation, posterior_sample


def one_dimensional(num_rows):
    """Rows of one column, and the same with one row replaced by its opposite: neighbours that differ most."""
    x, y = np.ones((num_rows, 1)), np.resize([1.0, 1.0, -1.0], num_rows)
    return (x, y), (x, np.r_[-y[:1], y[1:]])


def test_noise_has_the_density_of_the_papers_and_not_its_inverse():
    """Lengths are Gamma(D, 1 / rate): Kolmogorov's test accepts that at level 1e-6 and rejects a rate 5 % larger."""
    draws = np.array([perturbation.noise(rng, 5, 3.0) for rng in [np.random.default_rng(0)] for _ in range(20_000)])
    lengths = np.linalg.norm(draws, axis=1)
    assert stats.kstest(lengths, stats.gamma(5, scale=1 / 3.0).cdf).pvalue > 1e-6
    assert stats.kstest(lengths, stats.gamma(5, scale=1 / 3.15).cdf).pvalue < 1e-6
    assert np.all(np.abs(draws.mean(0)) < 5 * draws.std(0) / np.sqrt(20_000))


def test_the_minimiser_moves_by_at_most_the_sensitivity_and_nearly_that():
    """With much regularization the loss is steep nowhere else: each row pulls by up to a half, two rows apart by one."""
    first, second = (perturbation.minimize(*rows, 10.0)[0] for rows in one_dimensional(9))
    assert 0.45 * perturbation.sensitivity(9, 10.0) < abs(first - second) <= perturbation.sensitivity(9, 10.0)
    w = perturbation.minimize(*one_dimensional(9)[0], 0.1)
    assert 0.1 * w[0] == pytest.approx(np.mean(np.where(np.arange(9) % 3 < 2, expit(-w), -expit(w))), abs=1e-9)
    rng = np.random.default_rng(1)
    assert perturbation.sensitivity(100, 0.1) == pytest.approx(0.2)
    x, y = rng.normal(size=(100, 3)), rng.choice([-1.0, 1.0], 100)
    draws = [perturbation.output_perturbation(rng, x, y, epsilon=2.0, regularization=0.1) for _ in range(400)]
    away = np.linalg.norm(draws - perturbation.minimize(perturbation.clipped_rows(x), y, 0.1), axis=1)
    assert stats.kstest(away, stats.gamma(3, scale=0.2 / 2.0).cdf).pvalue > 1e-6


@pytest.mark.parametrize(
    ("regularization", "expected"),
    [
        (0.5, (0.5 - np.log(1 + 0.25 / 2.0), 0.5)),  # 2 log(1 + c / (N regularization)) of epsilon for the Jacobian
        (1e-3, (0.25, 0.25 / (4 * (np.exp(0.25) - 1)))),  # half of epsilon, and more regularization
    ],
)
def test_objective_perturbation_keeps_the_ratio_of_densities(regularization, expected):
    """In one dimension the noise that gives w is -N times the gradient, so densities are known on a grid. Gradients of two
    rows then differ by at most 1, not 2, so that neighbours' densities differ by up to `rate`, and not by twice that."""
    epsilon, num_rows = 1.0, 4
    rate, used = perturbation.objective_settings(num_rows, epsilon=epsilon, regularization=regularization)
    assert (rate, used) == pytest.approx(expected)
    w = np.linspace(-60.0, 60.0, 24_001)

    def log_density(x, y):
        margins = (x * y[:, None]) * w
        noise = np.sum((x * y[:, None]) * expit(-margins), axis=0) - num_rows * used * w
        jacobian = np.sum(expit(margins) * expit(-margins), axis=0) + num_rows * used
        return np.log(rate / 2.0) - rate * np.abs(noise) + np.log(jacobian)

    first, second = (log_density(*rows) for rows in one_dimensional(num_rows))
    for density in (first, second):
        assert np.trapezoid(np.exp(density), w) == pytest.approx(1.0, abs=1e-3)
    assert np.max(np.abs(first - second)) == pytest.approx(rate)
    x, y = one_dimensional(num_rows)[0]
    rng = np.random.default_rng(3)
    draws = [
        perturbation.objective_perturbation(rng, x, y, epsilon=epsilon, regularization=regularization)[0]
        for _ in range(400)
    ]
    grid = integrate.cumulative_trapezoid(np.exp(first), w, initial=0.0)
    assert stats.kstest(draws, lambda at: np.interp(at, w, grid)).pvalue > 1e-6


def test_one_posterior_sample_is_exact_and_as_private_as_it_says():
    """Against the density on a grid; neighbours' log densities differ by at most epsilon, and by more than a tenth of it."""
    (x, y), other = one_dimensional(12)
    epsilon, radius = 2.0, 3.0
    bound = posterior_sample.row_bound(radius)
    rho = posterior_sample.temper(epsilon, bound)
    assert rho == pytest.approx(2.0 / (4.0 * np.log1p(np.exp(3.0)))) and posterior_sample.temper(1e9, bound) == 1.0
    w = np.linspace(-radius, radius, 4_001)

    def log_density(x, y):
        values = rho * posterior_sample.log_likelihood(w[:, None], x, y)
        return values - np.log(np.trapezoid(np.exp(values), w))

    assert 0.1 * epsilon < np.max(np.abs(log_density(x, y) - log_density(*other))) <= epsilon
    highest = posterior_sample.upper_bound(x, y, radius)
    assert 0.0 <= highest - posterior_sample.log_likelihood(w[:, None], x, y).max() < 1e-2
    rng = np.random.default_rng(4)
    draws = [posterior_sample.one_posterior_sample(rng, x, y, epsilon=epsilon, radius=radius)[0] for _ in range(1_000)]
    grid = integrate.cumulative_trapezoid(np.exp(log_density(x, y)), w, initial=0.0)
    assert stats.kstest(draws, lambda at: np.interp(at, w, grid)).pvalue > 1e-6
    assert stats.kstest(draws, stats.uniform(-radius, 2 * radius).cdf).pvalue < 1e-3


# PATE: of two classes the gap alone decides, so the distribution of the answer is known


def exact_q(gap, noise, kind):
    """P(the second class wins), of two classes."""
    if kind == "laplace":  # the difference of two Laplace variables
        z = gap * noise
        return (2.0 + z) / 4.0 * np.exp(-z) if z >= 0 else 1.0 - exact_q(-gap, noise, kind)
    return stats.norm.sf(gap / (np.sqrt(2.0) * noise))


def renyi(p, q, order):
    """Divergence of Bernoulli distributions, from the smaller outcomes' probabilities."""
    terms = [order * np.log(a) + (1.0 - order) * np.log(b) for a, b in ((p, q), (1.0 - p, 1.0 - q))]
    return np.logaddexp(*terms) / (order - 1.0)


@pytest.mark.parametrize(
    ("kind", "noise", "gaps"), [("laplace", 0.3, (0, 6, 14, 30)), ("gaussian", 4.0, (0, 10, 20, 34))]
)
def test_costs_of_votes_bound_the_exact_divergence(kind, noise, gaps):
    """For each gap and order, and both neighbours; where votes agree they are far below what holds for any votes. The
    other direction of the divergence, which takes the neighbour's votes, may be larger: the bound is of these votes only."""
    orders = np.array([1.5, 2.0, 4.0, 8.0])
    for gap in gaps:
        votes = np.array([[50 + gap, 50]])
        if kind == "laplace":
            log_q = pate.log_q_laplace(votes, noise)
            cost = pate.rdp_laplace(log_q, noise, orders)[0]
            anyway = np.minimum(2 * noise, 2 * noise**2 * orders)
        else:
            log_q = pate.log_q_gaussian(votes, noise)
            cost, anyway = pate.rdp_gaussian(log_q, noise, orders)[0], orders / noise**2
        q = exact_q(gap, noise, kind)
        assert np.exp(log_q[0]) == pytest.approx(q)
        for neighbour in (gap - 2, gap + 2):
            p = exact_q(neighbour, noise, kind)
            for order, bound in zip(orders, cost):
                assert renyi(q, p, order) <= bound * (1 + 1e-9)
        assert np.all(cost <= anyway) and (gap < gaps[-1] or np.all(cost < 0.2 * anyway))


def test_the_bound_of_the_paper_written_out():
    """2018, Theorem 6 at q = 1e-6, sigma 20, order 5; and the threshold's cost without votes, order / (2 sigma^2)."""
    q, sigma, order = 1e-6, 20.0, 5.0
    second = sigma * np.sqrt(np.log(1 / q))
    first = second + 1
    a = (1 - q) / (1 - (q * np.exp(second / sigma**2)) ** ((second - 1) / second))
    b = np.exp(first / sigma**2) / q ** (1 / (first - 1))
    bound = np.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)
    assert bound < order / sigma**2
    assert pate.rdp_gaussian([np.log(q)], sigma, np.array([order]))[0, 0] == pytest.approx(bound, rel=1e-9)
    at_threshold = pate.rdp_threshold(np.array([[30, 10]]), 30, 5.0, np.array([2.0]))
    assert at_threshold[0, 0] == pytest.approx(2.0 / (2 * 25.0))


def test_the_account_of_lnmax_gives_the_published_example():
    """The 2017 paper's account as PySyft's `perform_analysis` prints it: 100 teachers agree on 100 queries of ten classes, noise
    0.1, delta 1e-5, the best of eight moments."""
    agreed, moments = np.tile(100.0 * np.eye(10)[3], (100, 1)), np.arange(1.0, 9.0)

    def epsilon(log_q):
        cost = pate.rdp_laplace(log_q, 0.1, moments + 1.0).sum(0)
        return np.min(cost + np.log(1e5) / moments)

    assert epsilon(pate.log_q_laplace(agreed, 0.1)) == pytest.approx(1.52655213289881, rel=1e-9)
    assert epsilon(np.full(100, np.log(0.9))) == pytest.approx(11.756462732485115, rel=1e-9)
    assert pate.epsilon(pate.lnmax_cost(agreed, 0.1), 1e-5) < 1.52  # more orders, and a tighter conversion


def test_epsilon_without_votes_is_that_of_gaussian_accesses():
    """Tied votes: each GNMax query is a Gaussian access of sensitivity sqrt(2), as dp_accounting composes them."""
    import dp_accounting

    votes = np.full((50, 2), 20.0)
    accountant = dp_accounting.rdp.RdpAccountant(pate.ORDERS)
    accountant.compose(dp_accounting.GaussianDpEvent(40.0 / np.sqrt(2.0)), 50)
    assert pate.epsilon(pate.gnmax_cost(votes, 40.0), 1e-5) == pytest.approx(accountant.get_epsilon(1e-5))
    agreed = np.tile([250.0, 0.0], (50, 1))
    assert pate.epsilon(pate.gnmax_cost(agreed, 40.0), 1e-5) < 0.6 * accountant.get_epsilon(1e-5)
    assert pate.epsilon(pate.lnmax_cost(agreed, 0.1), 1e-5) < 0.3 * pate.epsilon(pate.lnmax_cost(votes, 0.1), 1e-5)


def test_answers_follow_the_votes_as_often_as_they_should():
    rng = np.random.default_rng(5)
    votes = np.tile([60, 50], (20_000, 1))
    for answers, kind, noise in (
        (pate.lnmax(rng, votes, 0.1), "laplace", 0.1),
        (pate.gnmax(rng, votes, 8.0), "gaussian", 8.0),
    ):
        q = exact_q(10, noise, kind)
        assert np.mean(answers == 1) == pytest.approx(q, abs=5 * np.sqrt(q / 20_000))
    settings = dict(threshold=65, sigma_threshold=5.0, sigma=8.0)
    answers, answered = pate.confident_gnmax(rng, votes, **settings)
    assert np.mean(answered) == pytest.approx(stats.norm.sf(1.0), abs=0.015) and np.all((answers >= 0) == answered)
    cost = pate.confident_gnmax_cost(votes, answered, **settings)
    asked = pate.rdp_threshold(votes, 65, 5.0).sum(0)
    assert np.allclose(cost - asked, pate.gnmax_cost(votes[answered], 8.0)) and np.all(cost > asked)


def test_the_hybrid_sampler_starts_at_one_sample_and_spends_what_it_was_given():
    """With all but nothing left for the chain, its steps are so short that it stays where the exact sample is."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)) / 3.0
    y = np.where(rng.random(300) < expit(4.0 * x[:, 0]), 1.0, -1.0)
    settings = dict(epsilon=2.0, delta=1e-5, radius=5.0, num_samples=20)
    samples, (epsilon, delta) = hybrid.hybrid_samples(np.random.default_rng(1), dpppl.secret_key(), x, y, **settings)
    assert samples.shape == (20, 2) and delta == 1e-5 and 1.99 < epsilon <= 2.0
    shrunk = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    start = posterior_sample.one_posterior_sample(np.random.default_rng(1), shrunk, y, epsilon=1.998, radius=5.0)
    samples, _ = hybrid.hybrid_samples(
        np.random.default_rng(1), dpppl.secret_key(), x, y, **settings | {"epsilon": 2.0}, share=0.999
    )
    assert np.all(np.abs(samples - start) < 0.05)
