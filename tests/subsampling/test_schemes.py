"""Partitions, fixed-size batches, clipping by site and schedules: what they draw, and what they are charged."""

import functools
import math
import warnings
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from scipy import stats
from small_models import seen

import dpppl
from dpppl import ConfigurationError, Partition, accounting
from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_sum
from dpppl.access.mechanism import ACCOUNTED, Mechanism
from dpppl.accounting.events import gaussian_mu


def fixed_size(batch_size, num_data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dpppl.WithoutReplacement(batch_size, num_data)


def model(y):
    a, b = (
        numpyro.sample("a", dist.Normal(0.0, 1.0)),
        numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1)),
    )
    seen(y, dist.Normal(a + 3.0 * b, 1.0).to_event(1))


def rows(num_rows=24):
    return np.random.default_rng(0).standard_normal((num_rows, 2)).astype(np.float32)


def drawn(scheme, num_rows, steps, seed=0):
    """The rows of each step, as arrays."""
    draw = jax.jit(lambda key, step: scheme.draw(key, num_rows, step))
    selections = [draw(jax.random.key(seed), step) for step in range(steps)]
    positions = [np.arange(num_rows) if index is None else np.asarray(index) for index, _ in selections]
    return [p if mask is None else p[np.asarray(mask)] for p, (_, mask) in zip(positions, selections)]


def mechanism(scheme):
    return Mechanism(clipping=Flat(1.0), subsampling=scheme)


def mu(event):
    """Gaussian-DP parameter of full-batch events, the slack of the sensitivity taken off."""
    return gaussian_mu([event]) * ACCOUNTED


# Partition


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("num_rows", "num_batches"), [(12, 4), (11, 4), (5, 5), (1_000, 7), (6, 1)])
def test_a_partition_draws_each_row_once_an_epoch(num_rows, num_batches):
    steps = drawn(Partition(num_batches), num_rows, 3 * num_batches)
    for epoch in range(3):
        batches = steps[epoch * num_batches : (epoch + 1) * num_batches]
        assert sorted(np.concatenate(batches)) == list(range(num_rows))
        sizes = sorted(map(len, batches))
        assert sizes[-1] - sizes[0] <= 1
    if num_rows > 100:
        first, second = set(steps[0]), set(steps[num_batches])
        assert len(first & second) < 50  # 20 are expected of 143 by chance


def test_a_partition_puts_rows_and_pairs_of_rows_where_chance_would():
    """24 rows in 4 batches of 6, 20,000 epochs: a pair shares a batch with probability 5 / 23, a row is in the first
    one with 1 / 4. False-alarm rate 1e-6 a test; both see 10 % off, for one row or for ten pairs of 276."""
    scheme, epochs = Partition(4), 20_000
    draw = jax.vmap(lambda step: scheme.draw(jax.random.key(1), 24, step).index)
    index = jax.jit(draw)(jnp.arange(4 * epochs))
    inside = np.asarray(jnp.zeros((4 * epochs, 24)).at[jnp.arange(4 * epochs)[:, None], index].set(1.0))
    pairs = (inside.T @ inside)[np.triu_indices(24, 1)]
    first = inside[::4].sum(0)

    def pvalue(counts, probability, constraints):
        # Every row has 5 companions, and the first batch 6 rows: so many linear constraints, and the rest is isotropic.
        free = len(counts) - constraints
        squares = np.sum((counts - epochs * probability) ** 2) / (epochs * probability * (1 - probability))
        return stats.chi2.sf(squares * free / len(counts), free)

    assert pvalue(pairs, 5 / 23, 24) > 1e-6 and pvalue(first, 1 / 4, 1) > 1e-6
    assert pvalue(pairs * np.where(np.arange(276) < 10, 1.1, 1.0), 5 / 23, 24) < 1e-6
    assert pvalue(first * np.where(np.arange(24) < 1, 1.1, 1.0), 1 / 4, 1) < 1e-6


@pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (20, 1), (21, 2), (40, 2), (99, 5), (100, 5)])
def test_an_epoch_is_charged_as_one_access_once_it_is_begun(steps, epochs):
    event = mechanism(Partition(20)).event(np.full(steps, 2.0))
    assert event.sampling_rate == 1.0 and event.num_accesses == epochs
    assert mu(event) == pytest.approx(math.sqrt(epochs) / 2.0)


def test_an_epoch_costs_what_its_least_noisy_step_costs():
    """mu^2 is the sum over epochs of the largest 1 / sigma^2; the sum over all steps would be much more."""
    sigmas = np.array([3.0, 1.0, 2.0, 4.0, 5.0, 6.0])
    assert mu(mechanism(Partition(3)).event(sigmas)) == pytest.approx(math.sqrt(1 / 1.0 + 1 / 16.0))
    # Steps 2 .. 7 belong to the epochs 0, 1 and 2.
    assert mu(mechanism(Partition(3)).event(sigmas, first=2)) == pytest.approx(math.sqrt(1 / 9 + 1 / 1 + 1 / 25))
    assert mu(mechanism(Partition(3)).event(sigmas, repeats=4)) == pytest.approx(2 * math.sqrt(1 + 1 / 16.0))


def run(kernel, *data, seed=0, mcmc=None, **options):
    if mcmc is None:
        options = {"num_warmup": 0, "num_samples": 6} | options
        mcmc = dpppl.MCMC(kernel, progress_bar=False, **options)
    mcmc.run(jax.random.key(seed), *data)
    return mcmc


@pytest.mark.slow
def test_continuing_a_run_charges_the_begun_epoch_again():
    """The split comes from the run's key: a row may be in a later batch of the epoch's second split."""
    kernel = dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=3.0, subsampling=Partition(4))
    mcmc = run(kernel, rows())
    assert mcmc.privacy_report().num_accesses == 2
    mcmc.post_warmup_state = mcmc.last_state
    assert mcmc.privacy_plan().num_accesses == 4
    run(None, rows(), seed=1, mcmc=mcmc)
    assert int(mcmc.last_state.i) == 12 and mcmc.privacy_report().num_accesses == 4
    in_one = run(kernel, rows(), seed=2, num_samples=12).privacy_report()
    assert in_one.num_accesses == 3 and in_one.epsilon_at(1e-5) < mcmc.privacy_report().epsilon_at(1e-5)
    assert "redrawn every epoch" in str(in_one)


@pytest.mark.slow
def test_a_chain_walks_through_its_partition():
    """With a huge clipping norm and tiny noise, an epoch's sums at one place add up to the sum over all rows."""
    y = rows(23)
    kernel = dpppl.DPSGLD(model, clipping_norm=1e3, noise_multiplier=1e-6, step_size=1e-12, subsampling=Partition(4))
    state = kernel.init(jax.random.key(0), 0, None, (y,), {})
    bound = kernel.bind((y,), {})
    data, _ = bound.split.arrays((y,), {})
    likelihood, settings = bound.split.log_likelihood, dict(key=state.rng_key, noise_multiplier=1e-6)
    noisy = jax.jit(lambda k: noisy_sum(kernel.mechanism, likelihood, state.z, data, {}, step=k, **settings).total)
    sums = [noisy(step) for step in range(4)]
    total = jax.tree.map(lambda *leaves: sum(leaves), *sums)
    np.testing.assert_allclose(total["b"], 3.0 * y.sum(0), rtol=0.02, atol=0.1)
    assert np.abs(sums[0]["b"] - total["b"]).max() > 1.0


# Fixed-size batches


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("batch_size", "num_rows"), [(1, 7), (3, 8), (5, 8), (7, 8), (8, 8), (40, 1_000), (990, 1_000)]
)
def test_batches_have_exactly_their_size(batch_size, num_rows):
    for batch in drawn(fixed_size(batch_size, num_rows), num_rows, 20):
        assert len(np.unique(batch)) == len(batch) == batch_size


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("batch_size", [2, 4])
def test_every_subset_of_its_size_is_as_likely(batch_size):
    """All 15 subsets of 2 (or 4) of 6 rows, 60,000 draws: false-alarm rate 1e-6; one subset 20 % off is seen."""
    scheme = fixed_size(batch_size, 6)

    def subset(step):
        index, mask = scheme.draw(jax.random.key(3), 6, step)
        inside = jnp.zeros(6, bool).at[index].max(mask) if index is not None else mask
        return jnp.sum(inside << jnp.arange(6))

    counts = np.bincount(np.asarray(jax.jit(jax.vmap(subset))(jnp.arange(60_000))), minlength=64)
    counts = counts[[sum(1 << i for i in chosen) for chosen in combinations(range(6), batch_size)]]
    assert counts.sum() == 60_000
    assert stats.chisquare(counts).pvalue > 1e-6
    tilted = counts * np.where(np.arange(15) == 0, 1.2, 1.0)
    assert stats.chisquare(tilted, np.full(15, tilted.mean())).pvalue < 1e-6


def test_fixed_size_batches_are_accounted_under_replace_one_by_rdp_only():
    """At rate .01, noise multiplier 1 and 1,000 steps the docstring says 21; Poisson rows would cost 2 or so."""
    fixed = mechanism(fixed_size(10, 1_000))
    event = fixed.event(np.full(1_000, 1.0))
    assert (event.neighboring_relation, event.batch_size, event.num_data) == ("replace_one", 10, 1_000)
    assert fixed.sensitivity(fixed.neighboring_relation) == 2.0
    spent = accounting.spent([event], 1e-5)
    assert "RDP" in spent.accountant and spent.epsilon == pytest.approx(21, abs=1)
    poisson = accounting.spent([mechanism(dpppl.Poisson(0.01)).event(np.full(1_000, 1.0))], 1e-5)
    assert "PLD" in poisson.accountant and poisson.epsilon < 3


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("kernel", "scheme"),
    [
        (dpppl.DPSGLD, Partition(4)),
        (dpppl.DPSGHMC, Partition(4)),
        (dpppl.DPSGNHT, Partition(4)),
        (dpppl.DPSGLD, fixed_size(6, 24)),
    ],
)
def test_budgets_hold_for_every_scheme(kernel, scheme):
    mcmc = dpppl.MCMC(
        kernel(model, clipping_norm=1.0, subsampling=scheme),
        num_warmup=4,
        num_samples=9,
        target_epsilon=2.0,
        target_delta=1e-5,
        progress_bar=False,
    )
    assert 1.9 < mcmc.privacy_plan().epsilon <= 2.0


REFUSED = [
    ({"subsampling": Partition(25)}, "more batches than there are rows"),
    ({"subsampling": fixed_size(5, 23)}, "num_data = 23, but there are 24 rows"),
    ({"preconditioner": {"a": 1.0}}, "preconditioner is given for sites"),
]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(("settings", "words"), REFUSED)
def test_settings_for_other_data_are_refused_before_anything_is_charged(settings, words):
    kernel = dpppl.DPSGLD(model, **({"clipping_norm": 1.0, "noise_multiplier": 9.0} | settings))
    mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=1, progress_bar=False)
    with pytest.raises(ConfigurationError, match=words):
        mcmc.run(jax.random.key(0), rows())
    assert mcmc.privacy_report().num_accesses == 0


# Schedules


def cyclical(count):
    """A cosine that starts again every 10 steps."""
    return 1e-3 * (0.05 + jnp.cos(0.5 * jnp.pi * (count % 10) / 10) ** 2)


SCHEDULES = {
    "constant": (1e-3, lambda t: np.full_like(t, 1e-3)),
    "polynomial": (dpppl.polynomial_decay(1e-3), lambda t: 1e-3 * (t + 1) ** (-1 / 3)),
    "cosine": (
        optax.cosine_decay_schedule(1e-3, 40, alpha=0.1),
        lambda t: 1e-3 * (0.9 * 0.5 * (1 + np.cos(np.pi * np.minimum(t, 40) / 40)) + 0.1),
    ),
    "cyclical": (cyclical, lambda t: 1e-3 * (0.05 + np.cos(0.5 * np.pi * (t % 10) / 10) ** 2)),
    "joined": (
        optax.join_schedules([optax.constant_schedule(1e-3), optax.constant_schedule(1e-4)], [5]),
        lambda t: np.where(t < 5, 1e-3, 1e-4),
    ),
}


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("kernel", [dpppl.DPSGLD, dpppl.DPSGHMC, functools.partial(dpppl.DPSGNHT, diffusion=5.0)])
def test_the_noise_of_every_step_follows_its_size(name, kernel):
    """Langevin noise for a step of size h has a noise multiplier in proportion to h^(-1/2): each step is charged its
    own, on a grid that never rounds up."""
    schedule, expected = SCHEDULES[name]
    kernel = kernel(model, clipping_norm=2.0, step_size=schedule, measure_clipping=False)
    steps, multipliers = kernel.schedule(0, 60)
    np.testing.assert_allclose(steps, expected(np.arange(60.0)), rtol=1e-5)
    factor = {dpppl.DPSGLD: 2.0, dpppl.DPSGHMC: 2.0 * 0.1, dpppl.DPSGNHT: 2.0 * 5.0}[type(kernel)]
    np.testing.assert_allclose(multipliers, np.sqrt(factor / steps) / 2.0, rtol=1e-5)
    report = dpppl.MCMC(kernel, num_warmup=20, num_samples=40, progress_bar=False).privacy_plan()
    assert report.details.step_sizes == pytest.approx((steps.min(), steps.max()))
    assert report.details.temperatures == pytest.approx((1.0, 1.0), rel=1e-4)
    assert gaussian_mu(report.events) ** 2 >= np.sum(multipliers**-2.0)
    assert gaussian_mu(report.events) ** 2 == pytest.approx(np.sum(multipliers**-2.0), rel=0.1)


def test_a_later_part_of_a_schedule_is_the_same_schedule():
    kernel = dpppl.DPSGLD(model, clipping_norm=2.0, step_size=dpppl.polynomial_decay(1e-3))
    for whole, part in zip(kernel.schedule(0, 30), kernel.schedule(12, 18)):
        np.testing.assert_array_equal(whole[12:], part)
