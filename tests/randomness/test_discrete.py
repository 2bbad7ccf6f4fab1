"""Discrete Gaussian noise on whole numbers: the sampler, the mechanism that uses it, and its account."""

import functools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.infer.autoguide import AutoNormal
from scipy import stats
from small_models import linear as regression
from test_gradients import clipped_sum

import dpppl
from dpppl import accounting
from dpppl.access.clipping import SLACK, Flat
from dpppl.access.door import noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.accounting import GaussianEvent
from dpppl.randomness import discrete_gaussian as discrete
from dpppl.subsampling import FullBatch, Partition, Poisson

draw = jax.jit(discrete.discrete_normal, static_argnums=1)


def draws(size=200_000, seed=0):
    return np.asarray(draw(dpppl.randomness.chacha.wrap(np.full(8, seed, np.uint32)), size))


# The sampler


def test_strips_have_the_probabilities_of_their_inner_edges():
    """Exact arithmetic: the buckets' thresholds add up to the probabilities, to 1e-28 in total."""
    upper, lower, others = discrete._tables()
    full, weights = 2**92, [0] * 4096
    for k, (high, low, other) in enumerate(zip(upper, lower, others)):
        threshold = int(high) * 2**32 + int(low)
        assert 0 <= threshold <= full
        weights[k] += threshold
        weights[int(other)] += full - threshold
    with localcontext() as context:
        context.prec = 50
        density = [(-((Decimal(k) / 256) ** 2) / 2).exp() for k in range(3328)]
        total = sum(density)
        off = [abs(Decimal(w) / (full * 4096) - p / total) for w, p in zip(weights, density)]
    assert sum(weights) == full * 4096 and not any(weights[3328:])
    assert sum(off) / 2 < Decimal("1e-28") < discrete.FAILURE_PROBABILITY / discrete.MOST_NUMBERS


def test_the_exponential_is_right_to_its_last_bits():
    y = np.random.default_rng(0).integers(0, 2**60, 5000, dtype=np.uint64)
    y[:4] = 0, 1, 2**58, int(0.0509 * 2**64)
    with jax.enable_x64(True):
        result = np.asarray(discrete._one_minus_exp(jnp.asarray(y)))
    with localcontext() as context:
        context.prec = 40
        off = [Decimal(int(r)) - (1 - (-Decimal(int(v)) / 2**64).exp()) * 2**64 for r, v in zip(result, y)]
    assert -0.1 < min(off) and max(off) < 3.5


def test_a_candidate_is_kept_with_the_stated_probability():
    """The words of one candidate, put together by hand: place 5 in strip 300, kept from the coin's threshold on."""
    strip, place = 300, 5 << 18
    y = Fraction((2 * strip * 2**23 + place) * place, 2**63)
    threshold = int((1 - Decimal(-(y.numerator / Decimal(y.denominator))).exp()) * 2**64)
    words = np.zeros((6, 2), np.uint32)
    words[0] = (1 << 31) | (place << 8)
    words[1] = strip << 20
    words[4], words[5] = threshold >> 32, threshold & (2**32 - 1)
    words[5] += np.array([1_000_000, -1_000_000], np.int64).astype(np.uint32)
    candidates = jax.jit(lambda words: discrete._candidates(words))
    with jax.enable_x64(True):
        number, kept = candidates(words)
    assert number.tolist() == [-(strip * 2**23 + place)] * 2 and kept.tolist() == [True, False]
    words[:, :] = 0
    words[0, 0], words[4] = 1 << 31, 2**31
    with jax.enable_x64(True):
        number, kept = candidates(words)
    assert number.tolist() == [0, 0] and kept.tolist() == [False, True]  # zero has one sign


def test_a_bucket_is_its_own_strip_below_its_threshold():
    """All 92 bits: one less is the bucket's own strip, and the threshold itself is the other's."""
    thresholds, lower, others = discrete._tables()
    bucket = next(
        k for k in range(len(others)) if 0 < thresholds[k] % 2**40 and others[k] != k and 0 < lower[k] < 2**32
    )
    rest, words = int(thresholds[bucket]), np.zeros((6, 5), np.uint32)
    for column, (own, last) in enumerate(
        [(rest - 1, 2**32 - 1), (rest, lower[bucket] - 1), (rest, lower[bucket]), (rest + 1, 0), (rest - 256, 0)]
    ):
        words[:4, column] = own & 255, (bucket << 20) | (own >> 40), (own >> 8) & (2**32 - 1), last
    with jax.enable_x64(True):
        number, _ = jax.jit(lambda words: discrete._candidates(words))(words)
    assert (np.asarray(number) >> discrete._PLACE_BITS).tolist() == [
        bucket,
        bucket,
        others[bucket],
        others[bucket],
        bucket,
    ]


@pytest.mark.slow
def test_the_numbers_are_gaussian():
    """Kolmogorov-Smirnov and the fourth moment, 2 million draws, false-alarm rate 2e-6; 1 % more or less is rejected."""
    numbers = np.concatenate([draws(1_000_000, seed) for seed in (0, 1)]) / discrete.STD
    assert stats.kstest(numbers, "norm").pvalue > 1e-6 > stats.kstest(1.01 * numbers, "norm").pvalue
    assert stats.kstest(numbers / 1.01, "norm").pvalue < 1e-6
    assert abs(stats.kurtosis(numbers)) < 4.9 * np.sqrt(24 / len(numbers))


@pytest.mark.parametrize("shift", [0, 11, 18, 23])
def test_every_bit_of_a_place_is_random(shift):
    """Chi-square of eight bits, false-alarm rate 1e-6: strips join without gaps, up to their highest bits."""
    counts = np.bincount((np.abs(draws()) >> shift) & 31, minlength=32)
    expected = None
    if shift == 23:  # whole strips
        edges = np.arange(33 * 100) / 256.0
        mass = np.diff(stats.norm.cdf(edges)) * 2
        expected = np.bincount(np.arange(len(mass)) & 31, weights=mass) * counts.sum()
        expected *= counts.sum() / expected.sum()
    assert stats.chisquare(counts, expected).pvalue > 1e-6


def test_keys_in_a_batch_have_numbers_of_their_own():
    keys = jax.random.split(jax.random.key(0), 3)
    together = np.asarray(jax.jit(jax.vmap(lambda key: discrete.discrete_normal(key, 50)))(keys))
    assert together.dtype == np.int64 and len(np.unique(together)) == 150
    np.testing.assert_array_equal(together[1], discrete.discrete_normal(keys[1], 50))


def test_too_many_numbers_are_refused():
    with pytest.raises(dpppl.ConfigurationError, match="at most 1,000,000 numbers"):
        discrete.discrete_normal(jax.random.key(0), 10**6 + 1)


# The mechanism


def linear(z, row, public):
    return sum(jnp.vdot(leaf, part) for leaf, part in zip(jax.tree.leaves(z), jnp.split(row, [2])))


ROWS = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
FLAT = Flat(0.7)
Z = {"a": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)}


@functools.partial(jax.jit, static_argnums=0)
def compiled(door, z, rows, key, noise_multiplier):
    return noisy_sum(door, linear, z, rows, None, key=key, noise_multiplier=noise_multiplier)


def access(rows=ROWS, noise_multiplier=2.0, clipping=FLAT, seed=0, discretise=True, **options):
    """One access in float64, as one vector."""
    door = Mechanism(clipping=clipping, subsampling=FullBatch(), discretise=discretise, **options)
    with jax.enable_x64(True):
        z, rows = jax.tree.map(np.float64, Z), rows.astype(np.float64)
        result = compiled(door, z, rows, jax.random.key(seed), noise_multiplier)
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(result)])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("strategy", ["vmap", "microbatch"])
def test_it_is_the_clipped_sum_with_noise_of_the_same_scale(strategy, clipping=FLAT):
    quiet = access(noise_multiplier=1e-6, clipping=clipping, discretise=False)
    np.testing.assert_allclose(access(noise_multiplier=1e-6, clipping=clipping, strategy=strategy), quiet, atol=1e-4)
    noise = np.concatenate([access(0 * ROWS, 3.0, clipping, seed) for seed in range(400)])
    assert stats.kstest(noise / (3.0 * clipping.clipping_norm), "norm").pvalue > 1e-6


def test_the_noise_has_standard_deviation_norm_times_multiplier(clipping=FLAT):
    """Kolmogorov-Smirnov, 200,000 draws, false-alarm rate 1e-6; 5 % more or less is rejected."""
    door = Mechanism(clipping=clipping, subsampling=FullBatch(), discretise=True)
    z = {"a": np.zeros(120_000, np.float32), "b": np.zeros(80_000, np.float32)}

    def zero(z, row, public):
        return row[0] * (jnp.sum(z["a"]) + jnp.sum(z["b"]))

    step = jax.jit(lambda z, rows, key: noisy_sum(door, zero, z, rows, None, key=key, noise_multiplier=3.0).total)
    noise = np.concatenate(jax.tree.leaves(step(z, np.zeros((2, 1), np.float32), jax.random.key(0))))
    scale = 3.0 * clipping.clipping_norm
    assert stats.kstest(noise / scale, "norm").pvalue > 1e-6
    assert stats.kstest(noise / (1.05 * scale), "norm").pvalue < 1e-6
    assert stats.kstest(noise / (scale / 1.05), "norm").pvalue < 1e-6


def test_outputs_are_whole_numbers_of_steps():
    """In float64, where no rounding follows; without `discretise` they are not."""
    step = 0.7 * 2.0 / discrete.STD
    assert np.abs(access() / step - np.round(access() / step)).max() < 1e-5
    assert np.abs(access(discretise=False) / step - np.round(access(discretise=False) / step)).max() > 0.01


def test_one_key_gives_noise_that_rows_do_not_change():
    moved = access(ROWS[:-1]) - access()
    np.testing.assert_allclose(np.linalg.norm(moved), 0.7, rtol=1e-4)


@functools.partial(jax.jit, static_argnames="room")
def whole(row, noise_multiplier, room=True):
    """A row as whole numbers, with room for rounding or without."""
    door = Mechanism(clipping=Flat(1.0), subsampling=FullBatch(), discretise=True)
    with jax.enable_x64(True):
        noise_multiplier = noise_multiplier.astype(jnp.float64)
        steps = door._scales(noise_multiplier, [row.size])[2][0]
        steps = steps if room else discrete.STD / noise_multiplier
    return clipped_sum(jnp.vdot, jnp.zeros_like(row), row[None], None, Flat(1.0).clip, "vmap", steps)


def length(row, noise_multiplier, room=True):
    """The norm of these whole numbers, in steps that make up the clipping norm."""
    with jax.enable_x64(row.dtype == np.float64):
        numbers = np.asarray(whole(row, np.float32(noise_multiplier), room))
    assert numbers.dtype == np.int64
    numbers = numbers.astype(object)
    return math.sqrt(numbers @ numbers) / (discrete.STD / float(np.float32(noise_multiplier)))


NUMBERS = st.sampled_from([0.0, 1.0, -0.3, 1e-3, np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-40, 5.5, 1e-20])


@settings(max_examples=60)
@given(
    row=st.lists(NUMBERS, min_size=6, max_size=6),
    noise_multiplier=st.sampled_from([0.1, 3.0, 1e4, 1e7]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_a_row_of_whole_numbers_is_never_longer_than_the_sensitivity(row, noise_multiplier, dtype):
    assert length(np.asarray(row, dtype), noise_multiplier) <= 1.0 + SLACK


def test_norms_make_room_for_rounding():
    """Ten thousand numbers that all round up, on a coarse grid: without room the norm would be exceeded."""
    size, noise_multiplier = 10_000, 3e5
    steps = discrete.STD / noise_multiplier
    up = (np.floor(steps / 100) + 0.51) / steps
    row = np.random.default_rng(0).choice([-1.0, 1.0], size) * up
    assert length(row, noise_multiplier) <= 1.0 + SLACK < length(row, noise_multiplier, room=False)


@pytest.mark.parametrize("subsampling", [FullBatch(), Poisson(0.3)], ids=["full", "poisson"])
def test_the_proof_accepts_it_and_sees_noise_used_twice(subsampling):
    door = Mechanism(clipping=Flat(1.0), subsampling=subsampling, discretise=True)

    def step(z, rows, key):
        return noisy_sum(door, linear, z, rows, None, key=key, noise_multiplier=1.0).total

    def twice(z, rows, key):
        return step(z, rows, key), step(z, 2 * z["a"][0] + rows, key)

    arguments = (Z, ROWS, jax.random.key(0))
    assert dpppl.information_flow.verify(step, *arguments, private=1).doors == 1
    with pytest.raises(dpppl.PrivacyLeakError):
        dpppl.information_flow.verify(twice, *arguments, private=1)


# The account


def brute_force(order, rate, shift, std, reverse):
    """The Renyi divergence between sums over whole numbers: with one row of this shift at this rate, and without it."""
    n = np.arange(-60 * std, 60 * std + 1)
    absent = stats.norm.logpdf(n / std)
    absent -= np.logaddexp.reduce(absent)
    moved = stats.norm.logpdf((n - shift) / std)
    moved -= np.logaddexp.reduce(moved)
    present = np.logaddexp(np.log1p(-rate), np.log(rate) - absent + moved) + absent if rate < 1 else moved
    first, second = (absent, present) if reverse else (present, absent)
    return np.logaddexp.reduce(order * first + (1 - order) * second) / (order - 1)


@pytest.mark.parametrize("rate", [0.05, 0.4, 1.0])
def test_whole_moments_are_those_of_continuous_noise(rate):
    """Noise of four steps, a row of five: integer orders equal dp_accounting's for a continuous Gaussian, exactly; and
    removing a row is never dearer than adding it."""
    from dp_accounting import dp_event, rdp

    std, shift = 4, 5
    for order in (2, 3, 7):
        accountant = rdp.RdpAccountant([order])
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(std / shift)))
        assert brute_force(order, rate, shift, std, reverse=False) == pytest.approx(float(accountant.rdp[0]), rel=1e-9)
        assert brute_force(order, rate, shift, std, True) <= brute_force(order, rate, shift, std, False) * (1 + 1e-9)


def test_the_account_is_rdps_and_a_little_dearer():
    for rate in (1.0, 0.1):
        pairs = ((20.0 * rate**0.5, 500),)
        event = GaussianEvent(noise_multipliers=pairs, sampling_rate=rate, discrete=True)
        spent = accounting.spent(event, 1e-5)
        tight = accounting.epsilon(GaussianEvent(noise_multipliers=pairs, sampling_rate=rate), 1e-5)
        assert "RDP" in spent.accountant and tight < spent.epsilon < 1.25 * tight
    rho = 500 / (2 * 20.0**2)  # zCDP: epsilon by the conversion of Bun and Steinke is never smaller
    full = accounting.epsilon(GaussianEvent(noise_multipliers=((20.0, 500),), discrete=True), 1e-5)
    assert full < rho + 2 * math.sqrt(rho * math.log(1e5))


def test_poisson_orders_are_whole():
    """At fractional orders the two distributions differ."""
    event = GaussianEvent(noise_multipliers=((2.0, 100),), sampling_rate=0.1, discrete=True)
    (curve,) = accounting.curves.build((event,), "auto")
    continuous = GaussianEvent(noise_multipliers=((2.0, 100),), sampling_rate=0.1)
    (any_order,) = accounting.curves.build((continuous,), "rdp")
    assert curve.epsilon(1e-5) > any_order.epsilon(1e-5) * (1 + 1e-4)


@pytest.mark.parametrize(
    ("event", "accountant"),
    [
        ({"sampling_rate": 0.1}, "pld"),
        ({}, "gaussian"),
        ({"batch_size": 2, "num_data": 9, "neighboring_relation": "replace_one"}, "auto"),
    ],
)
def test_accounts_for_continuous_noise_are_refused(event, accountant):
    with pytest.raises(dpppl.ConfigurationError, match="discrete noise"):
        accounting.epsilon(GaussianEvent(noise_multipliers=((2.0, 1),), discrete=True, **event), 1e-5, accountant)


def test_imprecise_probabilities_are_charged():
    door = Mechanism(clipping=Flat(1.0), subsampling=FullBatch(), discretise=True)
    event = door.event(np.full(10, 5.0))
    assert event.discrete and event.failure_probability == pytest.approx(10 * discrete.FAILURE_PROBABILITY)


# The runners


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [dpppl.DPSGLD, dpppl.DPSGHMC, dpppl.DPSGNHT])
def test_kernels_run_within_the_target(kernel, capsys):
    mcmc = dpppl.MCMC(
        kernel(regression, clipping_norm=1.0, discretise=True), num_warmup=5, num_samples=5, num_chains=2,
        chain_method="vectorized", target_epsilon=1.0, target_delta=1e-5, progress_bar=False,
    )  # fmt: skip
    planned = mcmc.privacy_plan().epsilon
    mcmc.run(dpppl.secret_key(), ROWS, ROWS[:, 0])
    samples = mcmc.get_samples(group_by_chain=True)["w"]
    assert np.all(np.isfinite(samples)) and not np.any(samples[0] == samples[1])
    report = mcmc.privacy_report()
    assert 0.99 < report.epsilon <= 1.0 and "RDP" in str(report)
    assert "discrete Gaussian" in str(report) and "lattice" not in str(report)
    assert planned == report.epsilon


@pytest.mark.slow
def test_svi_and_its_queries_are_discrete():
    svi = dpppl.SVI(
        regression, AutoNormal(regression), optax.adam(0.1), clipping_norm=1.0, subsampling=Partition(4),
        noise_multiplier=5.0, discretise=True,
    )  # fmt: skip
    result = svi.run(dpppl.secret_key(), 8, ROWS, ROWS[:, 0], progress_bar=False)
    svi.estimate_elbo(dpppl.secret_key(), result.params, ROWS, ROWS[:, 0], bound=5.0, noise_multiplier=9.0)
    report = svi.privacy_report()
    assert report.is_discrete and len(report.events) == 2 and any("RDP" in text for _, text in report.rows())
