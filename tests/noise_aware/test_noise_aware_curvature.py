"""Curvatures that are drawn given their noisy releases: the law of the draws, what turns along, and releases that are absurd."""

import pickle

import numpy as np
import pytest
from test_noise_aware import bench, compiled_once, data, full, noise_aware, split_rows  # noqa: F401

import dpppl
from dpppl.access.norm_histogram import FINE_SIZE, SIZE
from dpppl.errors import ConclusionError, ConfigurationError
from dpppl.noise_aware import recipe
from dpppl.noise_aware.curvature import Curvature, ReleasedCurvature, drawn_curvature
from dpppl.noise_aware.eigen_draws import eigen_draws
from dpppl.noise_aware.mixture import Linear, Mixture
from dpppl.noise_aware.surrogate import Surrogate, moments, resolved
from dpppl.row_statistics.accesses import Kind, num_directions
from dpppl.row_statistics.plan import plan_of
from dpppl.row_statistics.response_ranks import Order

WIDTH = 6


def noise(rng, *shape):
    """Symmetric, of sd 1 on the diagonal and 1 / sqrt 2 off it."""
    entries = rng.standard_normal((*shape, shape[-1]))
    return (entries + entries.swapaxes(-1, -2)) / 2.0


def turning(seed, width=WIDTH):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((width, width)))[0]


def matrices(noisy, std, real=None, count=200, smallest=0.02):
    real = np.ones(noisy.shape[:2], bool) if real is None else real
    values, vectors = eigen_draws(noisy, std, real, noise(np.random.default_rng(1), *noisy.shape[:2]), smallest, count)
    return Curvature(values, vectors, np.eye(noisy.shape[-1])).matrices


def test_releases_are_averaged_by_their_noise():
    """Two, of noise 1 and 2: their mean has the weights 4 : 1 and noise of 2 / sqrt 5; blocks, products and scores alike. Of 400
    pairs the sd of the mean is that which is stated, within 4 standard errors, 14 %."""
    rng, errors = np.random.default_rng(0), []
    for _ in range(400):
        one, two = (
            ReleasedCurvature(
                std * noise(rng, 1, 3), std, std * np.ones((3, 2)), 3.0 * std * noise(rng, 1, 3), 3.0 * std
            )
            for std in (1.0, 2.0)
        )
        found = ReleasedCurvature.mean([one, two])
        np.testing.assert_allclose(found.curvature, 0.8 * one.curvature + 0.2 * two.curvature)
        np.testing.assert_allclose(found.score_variance, 0.8 * one.score_variance + 0.2 * two.score_variance)
        errors.append(found.curvature[0, 0, 0])
    np.testing.assert_allclose(found.products, 1.2)
    assert found.curvature_std == pytest.approx(2.0 / np.sqrt(5.0)) == found.score_variance_std / 3.0
    assert abs(np.std(errors) / found.curvature_std - 1.0) < 0.14


# The law of the draws


def test_draws_have_the_law_of_the_truth():
    """Truths from the prior itself, 400 at once: ranks of the trace, of an entry and of a quadratic form among 40 draws are
    uniform (means within 5 standard errors, .014 each; 31 of 41 possible ranks within .4 of the middle, within 4 standard
    errors), and not where noise is thought half as large."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((400, 4, 4)))[0]
    true = (axes * np.exp(1.0 + 1.2 * rng.standard_normal((400, 1, 4)))) @ axes.swapaxes(1, 2)
    noisy, direction = true + 3.0 * noise(rng, 400, 4), np.array([0.5, 0.5, -0.5, 0.5])

    def ranks(std):
        found = matrices(noisy, std, count=40, smallest=1e-3)
        of = lambda h: np.stack([np.trace(h, axis1=-2, axis2=-1), h[..., 0, 1], direction @ h @ direction])  # noqa: E731
        return np.mean(of(found) < of(true)[:, None], axis=1)

    right, wrong = ranks(3.0), ranks(1.5)
    assert np.max(np.abs(right.mean(axis=1) - 0.5)) < 0.07
    np.testing.assert_allclose(np.mean(np.abs(right - 0.5) < 0.399, axis=1), 31 / 41, atol=0.085)
    assert np.max(np.mean(np.abs(wrong - 0.5) < 0.399, axis=1)) < 0.6


def test_without_noise_draws_are_what_was_released():
    true = turning(0) @ np.diag(np.geomspace(0.1, 1e4, WIDTH)) @ turning(0).T
    np.testing.assert_allclose(matrices(true[None], 1e-6)[:, 0], np.broadcast_to(true, (200, WIDTH, WIDTH)), atol=1e-4)


def test_a_direction_that_many_entries_make_is_found():
    """A curvature that is 0 along the sum of 40 columns: entries alone are lost in the noise, 40 together are not."""
    true, sums = 100.0 * (np.eye(40) - 1.0 / 40), np.ones(40) / np.sqrt(40)
    found = matrices((true + 5.0 * noise(np.random.default_rng(0), 40))[None], 5.0, count=20)[:, 0].mean(axis=0)
    assert sums @ found @ sums < 15.0 and 95.0 < np.trace(found) / 39.0 < 105.0


def test_a_small_eigenvalue_is_not_taken_for_one_of_many_large_ones():
    """One of 5 among ten of 37, as along the scale of all weights of a logistic regression: at most 22 in each of 8 releases
    (19 here). Where eigenvalues are thought to be alike a priori (_SHAPE, _SCALE = .5, .1) it is up to 26."""
    rng, alone = np.random.default_rng(1), np.ones(11) / np.sqrt(11)
    true = 37.0 * np.eye(11) - 32.0 * np.outer(alone, alone)
    found = [matrices((true + 4.0 * noise(rng, 11))[None], 4.0, count=20)[:, 0].mean(axis=0) for _ in range(8)]
    assert np.max(alone @ np.array(found) @ alone) < 22.0


def test_padding_stays_empty_and_changes_nothing_else():
    """Blocks of 5 of 8 places; the same block alone."""
    rng, real = np.random.default_rng(0), np.arange(8) < np.array([[5], [8]])
    noisy = 30.0 * np.eye(8) + 3.0 * noise(rng, 2, 8)
    inside = real[:, :, None] & real[:, None, :]
    found = matrices(noisy * inside, 3.0, real)
    assert not np.any(found[:, ~inside]) and np.all(np.linalg.eigvalsh(found[:, 0, :5, :5]) > 0.0)
    alone = matrices(noisy[:1, :5, :5], 3.0)[:, 0]
    np.testing.assert_allclose(found[:, 0, :5, :5].mean(axis=0), alone.mean(axis=0), atol=1.5)


def test_a_curvature_in_tiny_units_is_drawn_as_any_other():
    """Of rows clipped to a norm of 1e-3, as where most responses are certain: no prior precision holds it up."""
    real, identity = np.ones((1, 5), bool), np.eye(5)[None]
    released = lambda unit: drawn_curvature(unit * 40.0 * identity, unit, identity, 1.0, real, identity, 50).mean[0]  # noqa: E731
    np.testing.assert_allclose(released(1e-6) / 1e-6, released(1.0), rtol=0.05, atol=2.0)


@pytest.mark.parametrize("variance", [1.0, 2.0])
def test_draws_of_responses_are_averaged_over_gradients(variance):
    """Scores centred on eight draws for each of 28 gradients: the variance of their mean is 107/121 of that of one, by 20,000
    rows (standard error .01) within .03. Also where rows vary by more than the model has it."""
    rng, shape = np.random.default_rng(0), (20_000, 28)
    real = np.sqrt(variance) * rng.standard_normal((shape[0], 1))
    draws = rng.standard_normal((8, *shape))
    centred = real - (real + draws.sum(axis=0)) / 9.0
    curvature = ((real**2 + (draws**2).sum(axis=0)) / 9.0 - ((real + draws.sum(axis=0)) / 9.0) ** 2).mean()
    ratio = np.array([[[np.var(centred[:, 0]) / curvature]]])
    one = Curvature(np.full((1, 1, 1), curvature), np.ones((1, 1, 1, 1)), ratio)
    found, expected = one.averaged(1.0 / 9.0, 28).score_variance.item(), np.var(centred.mean(axis=1))
    assert found == pytest.approx(expected, rel=0.03) and one.score_variance.item() > 1.05 * expected


def test_how_far_draws_agree_on_what_was_learned():
    """All in one direction: 1, also under a prior of other units that couples latents. Each in a direction of its own, of as
    many: one share of each. Nothing learned: 1."""
    root = np.tril(np.random.default_rng(0).standard_normal((WIDTH, WIDTH))) + 3.0 * np.eye(WIDTH)
    learned = lambda i: np.diag(1.0 - 0.9 * (np.arange(WIDTH) == i))  # noqa: E731
    posterior = lambda i: (root @ learned(i) @ root.T)[None]  # noqa: E731
    prior = (root @ root.T)[None]
    assert resolved(np.array([posterior(2)] * 5), prior) == pytest.approx(1.0)
    assert resolved(np.array([posterior(i) for i in range(WIDTH)]), prior) == pytest.approx(1.0 / WIDTH)
    assert resolved(np.array([np.eye(2)[None]] * 3), np.eye(2)[None]) == 1.0


# What turns along


def released(seed):
    """A release, and a gradient with a centre."""
    rng = np.random.default_rng(seed)
    true = np.diag(np.geomspace(2.0, 200.0, WIDTH))[None]
    products = np.zeros((WIDTH, 0))
    scores = 0.8 * true + 20.0 * noise(rng, 1, WIDTH)
    return ReleasedCurvature(true + 10.0 * noise(rng, 1, WIDTH), 10.0, products, scores, 20.0), rng.standard_normal(
        (2, 1, WIDTH)
    )


def posterior_of(release, centre, gradient, prior, roots):
    basis = prior.first()._replace(roots=roots)
    law = release.posterior(basis, basis.covariance_of_u(prior.covariance(basis)), 60)
    flat = np.zeros((1, WIDTH))
    return Mixture.of(Surrogate(basis, centre, 5.0 * gradient, 4.0, law, flat, 1.0, flat), prior)


def test_releases_that_are_turned_give_the_posterior_turned():
    """By any orthogonal matrix, to rounding: means and covariances of every draw. An entrywise rule is off by tenths (entries off the diagonal of the release halved)."""
    (release, (centre, gradient)), q = released(0), turning(3)
    reflected = release._replace(curvature=q @ release.curvature @ q.T, score_variance=q @ release.score_variance @ q.T)
    prior, identity = full(WIDTH), np.eye(WIDTH)[None]
    one = posterior_of(release, centre, gradient, prior, identity)
    two = posterior_of(reflected, centre @ q.T, gradient @ q.T, prior, identity)
    np.testing.assert_allclose(two.means, one.means @ q.T, atol=1e-8)
    np.testing.assert_allclose(two.covariances, q @ one.covariances @ q.T, atol=1e-8)
    halved = lambda a: a * np.where(np.eye(WIDTH) > 0, 1.0, 0.5)  # noqa: E731
    by_entries = [r._replace(curvature=halved(r.curvature)) for r in (release, reflected)]
    one, two = (posterior_of(r, centre, gradient, prior, identity).covariances for r in by_entries)
    assert np.abs(two - q @ one @ q.T).max() > 0.05


def test_columns_in_other_units_give_the_same_posterior():
    """Latents in other units, and the prior with them: the first basis makes the same coordinates of both, also where the prior
    couples them."""
    (release, (centre, gradient)), scales = released(1), np.geomspace(0.01, 100.0, WIDTH)
    correlation = 0.5 * np.eye(WIDTH) + 0.5
    one = recipe.Prior(np.zeros(WIDTH), np.ones(WIDTH), [np.arange(WIDTH)], correlation)
    two = one._replace(scales=scales)
    np.testing.assert_allclose(one.first().roots, two.first().roots)
    root = one.first().roots[0]
    np.testing.assert_allclose(root @ root.T, correlation, atol=1e-12)
    found = [posterior_of(release, centre, gradient, prior, prior.first().roots).moments() for prior in (one, two)]
    np.testing.assert_allclose(found[1].mean, scales * found[0].mean, rtol=1e-9)
    np.testing.assert_allclose(found[1].variance, scales**2 * found[0].variance, rtol=1e-9)


# Priors that are wrong


@pytest.mark.slow
def test_looks_go_as_far_as_their_scores_say():
    """A weight of 10 under a prior of sd 1: they end where the posterior is, beyond six prior sds."""
    rng, found = np.random.default_rng(0), bench()
    x = 0.2 * rng.standard_normal((1_000, 3)).astype(np.float32)
    y = (rng.random(1_000) < 1.0 / (1.0 + np.exp(-10.0 * x[:, 0]))).astype(np.float32)
    outcome = found.run(split_rows(found, (x, y)), 0, 5.0)
    assert outcome.surrogate.point(found.prior.mean)[0] > 6.0
    assert found.verdict(outcome).arrival < 4.0  # a doubt from there on


# Releases that are absurd


def absurd(rng, width):
    """A symmetric matrix: ordinary, huge, zero, negative definite or of rank one."""
    size = 10.0 ** rng.uniform(-30, 30)
    vector = rng.standard_normal(width)
    kinds = (
        lambda: noise(rng, width) * size,
        lambda: np.zeros((width, width)),
        lambda: -size * np.eye(width),
        lambda: size * np.outer(vector, vector),
        lambda: size * np.ones((width, width)),
        lambda: np.diag(10.0 ** rng.uniform(-30, 30, width)),
    )
    return kinds[rng.integers(len(kinds))]()


def test_no_release_makes_the_posterior_fail():
    """2,000 of them, in blocks of one curvature: nothing is raised, and all is finite."""
    rng, count, width = np.random.default_rng(0), 100, 3
    for _ in range(20):
        noisy, scores = (np.array([absurd(rng, width) for _ in range(count)]) for _ in range(2))
        std, variance = 10.0 ** rng.uniform(-20, 20, 2)
        real, covariance = np.ones((count, width), bool), np.tile(np.eye(width), (count, 1, 1))
        law = drawn_curvature(noisy, std, scores, 10.0 ** rng.uniform(-20, 20), real, covariance, 5)
        vectors = rng.standard_normal((2, count, width)) * 10.0 ** rng.uniform(-20, 20, (2, count, 1))
        flat = np.zeros((count, width))
        surrogate = Surrogate(None, *vectors, variance, law, flat, 1.0, flat)
        mean, spread = moments(*surrogate.posteriors(covariance))
        assert all(np.all(np.isfinite(a)) for a in (mean, spread, law.matrices))
        assert np.linalg.eigvalsh(spread).min() > -1e-6


@pytest.mark.slow
def test_no_release_makes_a_run_fail():
    """The whole recipe, histograms and scalars included: 20 of them. Samples are finite."""
    rng, width = np.random.default_rng(1), 3
    prior, upper = full(width), np.triu_indices(width)

    def ask(kind, at, noise_multiplier):
        size = 10.0 ** rng.uniform(-20, 20)
        if kind is Kind.LOOK:
            return {name: absurd(rng, width)[upper] for name in ("A", "J")} | {
                "score": size * rng.standard_normal(width)
            }
        return size * rng.standard_normal(
            Order(2, num_directions(width)).size if kind is Kind.SCALARS else SIZE + FINE_SIZE
        )

    for _ in range(20):
        plan, scale = plan_of(True, width, 1_000), 10.0 ** rng.uniform(-3, 3)
        found = recipe.run_recipe(ask, plan, scale, prior, recipe.Bounds(), 1_000)
        samples = np.asarray(Mixture.of(found.surrogate, prior).draw(rng, 100), np.float32)
        assert np.all(np.isfinite(samples))


# Releases that are kept


@pytest.mark.slow
def test_a_posterior_can_be_computed_again_from_what_was_released(compiled_once, monkeypatch):  # noqa: F811
    """Also where computing it had failed after the charge; at no cost, and whatever the private values are by then."""
    x, y, _ = data(1)
    found, of = noise_aware(num_samples=300), Mixture.of
    with pytest.raises(ConfigurationError, match="`run` must be called before `releases`"):
        found.sample_again(dpppl.secret_key(), x, y)
    monkeypatch.setattr(Mixture, "of", lambda *_: 1 / 0)
    with pytest.raises(ConclusionError, match="sample_again"):
        found.run(dpppl.secret_key(), x, y)
    assert found.privacy_report().status == "interrupted"
    monkeypatch.setattr(Mixture, "of", of)
    found.sample_again(dpppl.secret_key(), np.zeros_like(x), np.zeros_like(y))
    first, charged = found.get_samples(allow_unconverged=True)["w"], found.privacy_report().epsilon
    assert found.privacy_report().status == "complete"
    verdict, kept = found.verdict, pickle.loads(pickle.dumps(found.releases))
    assert len(kept.values) == plan_of().num_accesses and kept.prior.mean.shape == (3,)
    found.sample_again(dpppl.secret_key(), x, y)
    second = found.get_samples(allow_unconverged=True)["w"]
    assert found.verdict == verdict and found.privacy_report().epsilon == charged
    assert not np.array_equal(first, second)
    np.testing.assert_allclose(np.mean(first, axis=0), np.mean(second, axis=0), atol=5 * np.std(second) / np.sqrt(150))


@pytest.mark.parametrize("width", [0.5, 1.0, 3.0])
def test_a_mixture_that_is_wider_than_the_prior_is_a_flat_likelihood(width):
    """Of one latent, as where a release says nothing: finite, and at most as narrow as the posterior says."""
    basis, identity = full(1).first(), np.eye(1)[None]
    found = Linear.of(np.full((1, 1, 1), 0.3), width**2 * identity[None], identity, np.zeros(1), basis)
    slope = found.slopes[0, 0, 0, 0] * basis.scales[0] * basis.roots[0, 0, 0]
    assert np.isfinite(found.start).all() and slope**2 == pytest.approx(max(0.0, width**-2 - 1.0), abs=1e-6)
