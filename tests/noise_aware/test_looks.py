"""The recipe without rows: looks at a likelihood that is exactly quadratic, and what it makes of them."""

import functools

import numpy as np
import pytest

from dpppl.access.norm_histogram import FINE, FINE_SIZE, LOWEST, SIZE
from dpppl.frame import locate
from dpppl.noise_aware import line as line_module
from dpppl.noise_aware import recipe
from dpppl.noise_aware.bounds import Bounds
from dpppl.noise_aware.curvature import ReleasedCurvature
from dpppl.noise_aware.line import Line, Look
from dpppl.noise_aware.mixture import Mixture
from dpppl.row_statistics.accesses import At, Kind, num_directions
from dpppl.row_statistics.basis import Basis, coordinate_blocks
from dpppl.row_statistics.coordinates import Prior
from dpppl.row_statistics.matrices import isometric
from dpppl.row_statistics.plan import METRICS, plan_of
from dpppl.row_statistics.response_ranks import Order
from dpppl.row_statistics.statistics import units

WIDTH, NUM_ROWS = 4, 20_000


def full(dimension):
    """A standard normal prior, one block."""
    return Prior(np.zeros(dimension), np.ones(dimension), [np.arange(dimension)], np.eye(dimension))


def wide(dimension=60):
    """Of several blocks."""
    return Prior(np.zeros(dimension), np.full(dimension, 2.0), coordinate_blocks([dimension], 30))


# A likelihood that is exactly quadratic, in the place of rows


class Quadratic:
    """Answers accesses as rows would whose scores sum to H (x - theta): theta and H, of latents; and notes what it was asked.

    - **far** - the number of a look, and by how much its scores are off, in sds of its noise."""

    def __init__(self, x, h, rng, noise=1.0, far=None):
        self.x, self.h, self.rng, self.noise, self.far = x, h, rng, noise, far
        self.asked, self.looks = [], []

    def in_u(self, basis):
        """H in u, and its blocks."""
        root = np.array([basis.to_latents(basis.layout.gathered(one)) for one in np.eye(len(self.x))]).T
        inside = root.T @ self.h @ root
        padded = np.pad(inside, (0, 1))
        return root, inside, np.array([padded[np.ix_(i, i)] for i in basis.layout.numbers])

    def __call__(self, kind, at, sigma):
        self.asked.append((kind, sigma))
        basis, noisy = at.basis, lambda v: v + self.noise * sigma * self.rng.standard_normal(np.shape(v))
        if kind is Kind.SCALARS:
            return noisy(np.zeros(Order(2, num_directions(len(self.x))).size))
        root, inside, blocks = self.in_u(basis)
        if kind is Kind.BINS:
            lengths = np.sqrt(np.trace(inside) / NUM_ROWS) * np.exp(
                0.3 * np.random.default_rng(1).standard_normal(NUM_ROWS)
            )
            at_bins = [np.floor(n * (np.log2(lengths) - LOWEST)).astype(int) for n in (1, FINE)]
            counts = [np.bincount(of, minlength=size) for of, size in zip(at_bins, (SIZE, FINE_SIZE))]
            return noisy(np.concatenate(counts) / np.sqrt(2.0))
        self.looks.append(at)
        unit, unit_a, unit_j = units(at.score_share, 1.0)
        score, flat = root.T @ self.h @ (self.x - at.point), np.ravel(isometric(blocks))
        if self.far is not None and len(self.looks) == self.far[0]:
            score = score + self.far[1] * sigma * at.norm / unit
        found = {
            "score": unit / at.norm * score,
            "A": at.kept * unit_a / at.curvature_bound * np.append(flat, inside @ basis.sketch),
            "J": unit_j / at.norm**2 * flat,
        }
        return {name: noisy(value) for name, value in found.items()}


def run(seed, mu, noise=1.0, far=None):
    """An outcome, the truth from the prior, mean and variances of the posterior without privacy noise, and what was asked."""
    prior, rng = full(WIDTH), np.random.default_rng((7, seed))
    axes = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    h = NUM_ROWS * (axes * np.array([0.02, 0.1, 0.3, 0.6])) @ axes.T
    truth = rng.standard_normal(WIDTH)
    ask = Quadratic(truth + np.linalg.solve(np.linalg.cholesky(h).T, rng.standard_normal(WIDTH)), h, rng, noise, far)
    found = recipe.run_recipe(ask, plan_of(True, WIDTH, NUM_ROWS), 1.0 / mu, prior, Bounds(), NUM_ROWS)
    spread = np.linalg.inv(h + np.eye(WIDTH))
    return found, truth, spread @ h @ ask.x, np.diag(spread), ask


@functools.cache
def runs(mu, noise=1.0, count=80):
    """Of runs: distances of the truth in sds (count, d), squared distances of means from those without noise and by how much
    variances are larger, and chi-squared."""
    prior, z, moved, added, scatter = full(WIDTH), [], [], [], []
    for seed in range(count):
        found, truth, exact, least, _ = run(seed, mu, noise)
        mean, variance = Mixture.of(found.surrogate, prior).moments()
        z.append((mean - truth) / np.sqrt(variance))
        moved.append((mean - exact) ** 2 / variance)
        added.append((variance - least) / variance)
        scatter.append(found.chi_squared)
    return np.array(z), np.array(moved), np.array(added), np.array(scatter)


# Lines


def made(at, h, scores, std, curvature_std=1e-6, noisy=0.0):
    """A look in u at a point in u with a curvature in u."""
    released = ReleasedCurvature(h + noisy, curvature_std, np.zeros((h.shape[-1], 0)), h, 1.0)
    return Look(At(np.zeros(h.shape[-1]), 1.0, 1.0, None), at, scores, std, released)


def sequence(rng, count=5):
    """A curvature, and looks at the mean so far whose scores lie around one line; sds of their noise fall."""
    axes = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    h = (axes * np.array([3.0, 10.0, 30.0, 90.0])) @ axes.T
    return h[None], rng.standard_normal((1, WIDTH)), 20.0 * 0.7 ** np.arange(count)


def test_a_line_is_kalmans_filter_where_slopes_are_known(monkeypatch):
    """What five looks say is one regression of all scores on the place; the rows' own sampling, alike in all, counts once, in the
    mean."""
    monkeypatch.setattr(line_module, "_SLOPE", 0.0)
    monkeypatch.setattr(line_module, "_KEPT", 1.0)
    rng, prior = np.random.default_rng(0), 2.0 * np.eye(WIDTH)[None]
    h, theta, stds = sequence(rng)
    line, at = Line.none(full(WIDTH).first()), np.zeros((1, WIDTH))
    total, told, inverse = np.zeros((WIDTH, WIDTH)), np.zeros(WIDTH), np.linalg.inv
    for std in stds:
        scores = (theta - at) @ h[0] + std * rng.standard_normal((1, WIDTH))
        total = total + h[0] @ h[0] / std**2
        told = told + h[0] @ (scores[0] + h[0] @ at[0]) / std**2
        line, mean = line.with_look(made(at, h, scores, std), prior)
        np.testing.assert_allclose(line.information[0], total, rtol=1e-6)
        np.testing.assert_allclose(line.pull[0], told, rtol=1e-5)
        known = inverse(inverse(total) + inverse(h[0]))
        np.testing.assert_allclose(
            mean[0], np.linalg.solve(known + inverse(prior[0]), known @ inverse(total) @ told), rtol=1e-5
        )
        at = mean
    np.testing.assert_allclose(line.curvature, h, rtol=1e-6)


def test_where_the_mean_moves_far_its_slope_is_in_error():
    """The covariance of what a look says grows by the squared error of slopes along all of the curvature's directions; the place
    stays. In units of the curvature, over its d directions."""
    rng, prior = np.random.default_rng(1), 1e4 * np.eye(WIDTH)[None]
    h, theta, _ = sequence(rng)
    start = np.zeros((1, WIDTH))
    line, mean = Line.none(full(WIDTH).first()).with_look(made(start, h, theta @ h[0], 0.5), prior)
    squared = (mean[0] @ h[0] @ mean[0]) / WIDTH
    expected = 0.25 * np.linalg.inv(h[0] @ h[0]) + line_module._SLOPE**2 * squared * np.linalg.inv(h[0])
    np.testing.assert_allclose(np.linalg.inv(line.information[0]), expected, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.solve(line.information[0], line.pull[0]), theta[0], rtol=1e-5)
    again, _ = line.with_look(made(theta, h, np.zeros((1, WIDTH)), 0.5), prior)
    np.testing.assert_allclose(
        again.information[0], line.information[0] + h[0] @ h[0] / 0.25, rtol=0.05
    )  # at the mean nothing is lost


def test_looks_before_count_four_fifths():
    """At one place with one noise, where curvatures are known: the second look is worth more than the first."""
    h, theta, _ = sequence(np.random.default_rng(1))
    line, look = Line.none(full(WIDTH).first()), made(theta, h, np.zeros((1, WIDTH)), 0.5)
    for times_one in (1.0, 1.8, 1.0 + 0.8 * 1.8):
        line, _ = line.with_look(look, 1e4 * np.eye(WIDTH)[None])
        np.testing.assert_allclose(line.information[0], times_one * h[0] @ h[0] / 0.25, rtol=1e-3, atol=1.0)


class Shorter(Quadratic):
    """Rows whose scores are half as long in one of the metrics that are tried before the late looks."""

    best = 0

    def __call__(self, kind, at, sigma):
        found = super().__call__(kind, at, sigma)
        if kind is Kind.BINS:
            self.bins = [*getattr(self, "bins", []), at]
            if len(self.bins) == 5 - METRICS + self.best + 1:  # the three candidates come last
                return np.concatenate([np.roll(one, -by) for one, by in zip(np.split(found, [SIZE]), (1, FINE))])
        return found


@pytest.mark.parametrize("best", range(METRICS))
def test_late_looks_are_made_in_the_metric_of_the_shortest_scores(best):
    rng = np.random.default_rng((7, best))
    ask = Shorter(rng.standard_normal(WIDTH), NUM_ROWS * np.diag([0.02, 0.1, 0.3, 0.6]), rng, noise=0.1)
    ask.best = best
    recipe.run_recipe(ask, plan_of(True, WIDTH, NUM_ROWS), 0.2, full(WIDTH), Bounds(), NUM_ROWS)
    assert len(ask.bins) == 5
    same = [np.allclose(ask.looks[-1].basis.roots, at.basis.roots, rtol=1e-6) for at in ask.bins[-METRICS:]]
    assert same == [number == best for number in range(METRICS)]


def test_curvatures_of_looks_are_weighed_by_their_noise():
    """Noise without a trace, so that their sizes are alike; then the first at half the size, as rows that are clipped shorter have it."""
    rng, prior = np.random.default_rng(2), 1e6 * np.eye(WIDTH)[None]
    h, theta, _ = sequence(rng)
    noisy = rng.standard_normal((2, 1, WIDTH, WIDTH))
    noisy = noisy + noisy.swapaxes(2, 3)
    noisy[..., range(WIDTH), range(WIDTH)] = 0.0
    for size in (1.0, 0.5):
        line, at = Line.none(full(WIDTH).first()), theta
        scores = np.zeros((1, WIDTH))
        line, _ = line.with_look(made(at, size * h, scores, 1.0, 0.4 * size, 0.1 * size * noisy[0]), prior)
        line, _ = line.with_look(made(at, h, scores, 1.0, 0.2, 0.1 * noisy[1]), prior)
        np.testing.assert_allclose(line.curvature, h + 0.1 * (0.2 * noisy[0] + 0.8 * noisy[1]), rtol=0.02, atol=0.02)
        assert line.error == pytest.approx((0.2**-2 + 0.4**-2) ** -0.5, rel=0.05)


def test_a_curvature_that_noise_hides_is_not_taken_for_one():
    """Of noise alone no direction has more than the floor, and what is known of the place is next to nothing."""
    rng, prior = np.random.default_rng(3), np.eye(WIDTH)[None]
    noisy = rng.standard_normal((1, WIDTH, WIDTH))
    noisy = 30.0 * (noisy + noisy.swapaxes(1, 2)) / 2.0
    line, mean = Line.none(full(WIDTH).first()).with_look(
        made(np.zeros((1, WIDTH)), np.zeros((1, WIDTH, WIDTH)), 900.0 * rng.standard_normal((1, WIDTH)), 900.0, 30.0, noisy), prior
    )  # fmt: skip
    assert np.linalg.eigvalsh(line.slope[0]).min() >= line_module.FLOOR * 30.0 * 0.99
    assert np.linalg.eigvalsh(line.information[0]).max() < 0.1 and np.abs(mean).max() < 0.5


@pytest.mark.parametrize("prior", [full(6), wide()], ids=["one block", "blocks"])
def test_a_line_says_the_same_in_other_coordinates(prior):
    """How far a displacement of latents is pulled; what is known of the place, and the curvature, where the blocks stay."""
    rng, first = np.random.default_rng(4), prior.first()
    dimension, shape = len(prior.mean), first.roots.shape
    symmetric = lambda: (lambda a: first.real(a @ a.swapaxes(1, 2)))(rng.standard_normal(shape))  # noqa: E731
    pull = first.layout.real * rng.standard_normal(shape[:2])
    line = Line.none(first)._replace(information=symmetric(), pull=pull, curvature=symmetric(), error=0.3)
    other = first.whitened(symmetric(), prior.covariance(first))
    carried = line.carried(other)
    moved = rng.standard_normal((3, dimension))
    for before, after in ((line.information, carried.information), (line.curvature, carried.curvature)):
        squared = [
            np.sum(u * (m @ u[..., None])[..., 0], axis=(1, 2))
            for u, m in ((first.to_u(moved), before), (other.to_u(moved), after))
        ]
        np.testing.assert_allclose(*squared, rtol=1e-6)
    directions = np.linalg.qr(rng.standard_normal((dimension, 2)))[0]
    turned = Basis.of(prior.scales, directions, prior.pieces) if len(prior.pieces) > 1 else other
    for basis in (other, turned):
        pulls = [np.sum(one.basis.to_u(moved) * one.pull, axis=(1, 2)) for one in (line, line.carried(basis))]
        np.testing.assert_allclose(*pulls, rtol=1e-6)
    back = carried.carried(first)
    np.testing.assert_allclose(back.pull, line.pull, atol=1e-8)
    scaled = first._replace(roots=first.layout.padded(first.real(3.0 * first.roots)))
    assert line.carried(scaled).error == pytest.approx(9.0 * 0.3) and Line.none(first).carried(scaled).error == 1e60


# Runs


def test_a_run_is_twenty_accesses_with_the_noise_of_their_charge():
    """In order, and twice with the same numbers: late looks are in one metric with one norm."""
    found, _, _, _, ask = run(0, 0.5)
    plan = plan_of(True, WIDTH, NUM_ROWS)
    assert plan.num_accesses == len(plan.accesses) <= 20 and sum(share for _, share in plan.accesses) == pytest.approx(
        1.0
    )
    assert [kind for kind, _ in ask.asked] == [kind for kind, _ in plan.accesses]
    np.testing.assert_allclose([sigma for _, sigma in ask.asked], plan.noise_multipliers(2.0), rtol=1e-12)
    assert np.sum(1.0 / plan.noise_multipliers(2.0) ** 2) == pytest.approx(0.25)
    shares = [at.score_share for at in ask.looks]
    assert shares == [look.score_share for look in plan.looks]
    late = ask.looks[recipe.EARLY :]
    assert {(at.norm, at.curvature_bound) for at in late} == {(found.norm, found.curvature_bound)}
    assert all(at.basis is late[0].basis for at in late) and len(late) > 1
    assert np.array_equal(run(0, 0.5)[0].belief.mean, found.belief.mean)


@pytest.mark.parametrize("has_bins", [True, False])
def test_shares_of_every_plan_sum_to_one(has_bins):
    """Also of small and wide data, where most of a look is curvature; charges do not depend on these."""
    plans = [plan_of(has_bins, d, n) for d, n in ((1, np.inf), (5, 500), (200, 1_000), (10_000, 10_000))]
    for plan in plans:
        assert sum(share for _, share in plan.accesses) == pytest.approx(1.0) and plan.num_accesses <= 20
        assert all(0.0 < look.score_share < 1.0 for look in plan.looks) and all(
            share > 0.0 for _, share in plan.accesses
        )
        assert plan.noise_multipliers(3.0).tolist() == plans[0].noise_multipliers(3.0).tolist()
        assert {kind for kind, _ in plan.accesses} == {Kind.LOOK, Kind.SCALARS} | ({Kind.BINS} if has_bins else set())
    of = lambda plan: [look.score_share for look in plan.looks]  # noqa: E731
    assert of(plans[2])[-1] < of(plans[1])[-1] < of(plans[0])[-1]


def test_bounds_that_are_given_are_those_of_late_looks():
    for bounds, has_bins in (
        (Bounds(norm=0.7), True),
        (Bounds(curvature=3.0), True),
        (Bounds(norm=0.7, curvature=3.0), False),
    ):
        prior, rng = full(2), np.random.default_rng(0)
        ask = Quadratic(np.array([0.4, -0.2]), 500.0 * np.eye(2), rng)
        found = recipe.run_recipe(ask, plan_of(has_bins, 2, NUM_ROWS), 1.0, prior, bounds, NUM_ROWS)
        assert bounds.norm in (None, found.norm) and bounds.curvature in (None, found.curvature_bound)
        assert {at.norm for at in ask.looks[recipe.EARLY :]} == {found.norm}


@pytest.mark.slow
def test_posteriors_of_a_quadratic_likelihood_are_calibrated():
    """80 truths from the prior, four latents, mu = .1, where noise adds an eighth to the data's variance. Of 320 intervals that hold
    90 % of the posterior 288 hold the truth, sd 5.4; squared distances from the posterior without noise are those that were stated,
    and late scores scatter around one line as their noise does. Noise of 1.4 times its charge fails both of the last."""
    z, moved, added, scatter = runs(0.1)
    assert 0.83 < np.mean(np.abs(z) < 1.645) < 0.97
    assert 0.7 < np.mean(moved) / np.mean(added) < 1.35
    assert abs(np.mean(scatter) - 1.0) < 0.2
    _, moved, added, scatter = runs(0.1, 1.4)
    assert np.mean(moved) / np.mean(added) > 1.4 and np.mean(scatter) > 1.5


def test_a_late_look_off_the_line_is_seen():
    """By twelve sds of its noise, in the scatter around one line."""
    right, wrong = (run(0, 0.5, far=far)[0] for far in (None, (recipe.EARLY + 2, 12.0)))
    assert right.chi_squared < 1.0 + 4.0 * np.sqrt(2.0 / right.degrees) and wrong.chi_squared > 4.0
    assert right.degrees == wrong.degrees == WIDTH * (len(plan_of().looks) - recipe.EARLY - 1)


def test_looks_are_made_where_the_posterior_is_not_where_the_likelihood_is():
    """Data as strong as the prior, which pulls half of the way back; of noise that hides nothing."""
    h = np.array([[2.0, 0.5], [0.5, 1.0]])
    ask = Quadratic(np.array([2.0, -1.5]), h, np.random.default_rng(0))
    found = recipe.run_recipe(ask, plan_of(True, 2, NUM_ROWS), 1e-3, full(2), Bounds(), NUM_ROWS)
    exact = np.linalg.solve(h + np.eye(2), h @ ask.x)
    np.testing.assert_allclose(found.belief.mean, exact, atol=0.05)
    np.testing.assert_allclose(found.earlier.mean, exact, atol=0.05)
    for at in ask.looks[recipe.EARLY :]:
        np.testing.assert_allclose(at.point, exact, atol=0.2)


def test_steps_are_short_and_arrive():
    """At a place ten prior sds away, no latent by more than 1.5 of them a look."""
    prior, rng, h = full(2), np.random.default_rng(0), np.array([[400.0, 100.0], [100.0, 900.0]])
    ask = Quadratic(np.array([10.0, -3.0]), h, rng)
    found = recipe.run_recipe(ask, plan_of(True, 2, NUM_ROWS), 1.0, prior, Bounds(), NUM_ROWS)
    points = np.array([at.point for at in ask.looks])
    assert np.abs(np.diff(points, axis=0)).max() <= 1.5 + 1e-9
    np.testing.assert_allclose(found.belief.mean, np.linalg.solve(h + np.eye(2), h @ ask.x), atol=0.3)


def test_a_frame_takes_the_posterior_in_the_units_of_the_latents():
    """Of latents whose prior sds are 1/4 to 8: centre and covariance of the posterior without noise, within a fifth."""
    scales, rng = np.array([0.25, 1.0, 4.0, 8.0]), np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    h = NUM_ROWS * ((axes * np.array([0.02, 0.1, 0.3, 0.6])) @ axes.T) / np.outer(scales, scales)
    prior = Prior(np.zeros(WIDTH), scales, [np.arange(WIDTH)], np.eye(WIDTH))
    ask = Quadratic(rng.standard_normal(WIDTH) * scales, h, rng)
    found = recipe.run_recipe(ask, plan_of(True, WIDTH, NUM_ROWS), 1e-2, prior, Bounds(), NUM_ROWS)
    centre, root, information, unknown = locate._normal(found, prior)
    expected = np.linalg.inv(h + np.diag(scales**-2.0))
    sds = np.sqrt(np.diag(expected))
    assert np.all(np.abs(centre - expected @ h @ ask.x) < 0.2 * sds) and not np.any(unknown)
    assert np.all(np.abs(root @ root.T - expected) < 0.2 * np.outer(sds, sds)) and abs(information - WIDTH) < 0.1
