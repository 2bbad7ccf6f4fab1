"""Steps that are found in the warmup, samples in the middle of positions, and what of them may be read."""

from contextlib import nullcontext
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from test_kernels import Telling

import dpppl
from dpppl import ConfigurationError
from dpppl.access.clipping import Centred, Flat
from dpppl.access.door import noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.errors import KeyReuseError, PrivacyLeakError, UnsupportedModelError
from dpppl.findings.counted_rows import IGNORED, ClippedRows, CountedRows, rows_of
from dpppl.mcmc.bound import BoundKernel
from dpppl.mcmc.measured import Arrival, MeasuredChains, mean_counts
from dpppl.mcmc.step_search import after, no_search, probe, steps_of
from dpppl.mcmc.verdict import CLIPPED, READ, SHORT, UNSTABLE, reading
from dpppl.runs.histogram import SHARE
from dpppl.subsampling import FullBatch, Poisson


def search(curvatures, matched, steps, key):
    """(the step found, the last position) on a quadratic whose noise is that of the matched step."""
    size, std = len(curvatures), (2.0 / matched) ** 0.5
    turn = jnp.asarray(np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))[0], jnp.float32)
    hidden = 0.25 * std**2

    def body(i, carry):
        state, x = carry
        at = probe(state, i, x, hidden)
        noise = std * jax.random.normal(jax.random.fold_in(key, i), (size,))
        return after(
            state, i, x, noise - turn @ (curvatures * (turn.T @ at)), gradient_std=std, hidden=hidden,
            largest_step=lambda bound: 0.5 / jnp.maximum(bound, hidden), length_of=jnp.linalg.norm,
        )  # fmt: skip

    start = no_search(jnp.zeros(size))._replace(until=steps_of(steps / 0.4)), jnp.full(size, 0.5)
    state, x = jax.lax.fori_loop(0, steps, body, start)
    return jnp.minimum(matched, 0.5 / state.steepest), x


def test_a_matched_step_is_shortened_where_it_would_explode():
    """Twenty latents of curvatures 1e4 to 1e3, 16 searches each; `too_long`: matched step times the largest curvature."""
    curvatures = jnp.asarray(np.geomspace(1e4, 1e3, 20), jnp.float32)
    keys = jax.random.split(jax.random.key(0), 16)
    find = jax.jit(jax.vmap(lambda matched, key: search(curvatures, matched, 240, key), (None, 0)))
    for too_long in (300.0, 10.0, 1.0):
        found, x = find(too_long / 1e4, keys)
        assert np.all(np.asarray(found) * 1e4 < 1.05) and np.all(np.asarray(found) * 1e4 > 0.2)
        assert np.all(np.abs(x) < 0.15)  # it has climbed, too: 5 sds of the flattest
    assert np.median(find(0.1 / 1e4, keys)[0]) > 0.09 / 1e4


def precise(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


Y = (0.3 + 0.2 * np.random.default_rng(0).standard_normal((5_000, 3))).astype(np.float32)


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("kernel", [dpppl.DPSGLD, dpppl.DPSGHMC, dpppl.DPSGNHT], ids=lambda kernel: kernel.__name__)
def test_samples_are_right_at_a_large_epsilon(kernel):
    """At epsilon 30 the matched step is 20 times what a curvature of 5,000 stands. The sd's standard error is 4 %."""
    mcmc = dpppl.MCMC(
        kernel(precise, clipping_norm=2.0), num_warmup=200, num_samples=200, num_chains=8, target_epsilon=30.0,
        target_delta=1e-5, chain_method="vectorized", progress_bar=False, print_cost=False,
    )  # fmt: skip
    planned = mcmc.privacy_plan().details.step_sizes[1]
    mcmc.run(dpppl.secret_key(), Y, extra_fields=("z",))
    report, samples = mcmc.privacy_report(), np.asarray(mcmc.get_samples()["mean"], np.float64)
    assert report.details.step_sizes[1] < planned and report.epsilon == pytest.approx(30.0, rel=1e-2)
    assert report.details.temperatures == pytest.approx((1.0, 1.0), rel=1e-3)
    assert np.all(np.abs(samples.mean(0) - Y.mean(0)) * 5_001**0.5 < 0.5)
    assert np.all(np.abs(samples.std(0) * 5_001**0.5 - 1) < 0.15)
    positions = np.asarray(mcmc.get_extra_fields()["z"]["mean"], np.float64)
    assert np.mean(positions.std(0)) > 1.05 * np.mean(samples.std(0))  # it would see the wrong one of the two
    assert set(mcmc.verdict.by_site["mean"]) == {READ} and "of rows were clipped" in str(report)
    clipped = report.details.measured.clipped
    assert abs(clipped.share) < 4 * clipped.error < 0.01


def test_the_door_is_never_called_with_less_noise_than_was_charged():
    """While it searches: with the plan's. After it: with what a shorter step needs, which is more."""
    kernel = dpppl.DPSGLD(precise, clipping_norm=2.0, noise_multiplier=5.0)
    state = kernel.init(jax.random.key(0), 0, None, (Y[:10],), {})
    rows, public = kernel.bind((Y[:10],), {}).split.arrays((Y[:10],), {})
    for curvature, until, step_size in ((0.0, 0, kernel.step_size), (1e6, 0, 5e-7), (1e6, 10, kernel.step_size)):
        told = Telling.like(kernel.bind((Y[:10],), {}))
        search = state.search._replace(curvature=jnp.float32(curvature), until=jnp.int32(until))
        told.step(state._replace(search=search), rows=rows, public=public)
        [multiplier] = [Telling.seen.pop()]
        assert float(multiplier) == pytest.approx((2.0 / step_size) ** 0.5 / kernel.mechanism.noise_scale, rel=1e-5)
        assert float(multiplier) >= 5.0


@pytest.mark.slow
def test_unstable_steps_are_named():
    kernel = dpppl.DPSGLD(precise, clipping_norm=50.0, step_size=1.9 / 5_001)
    mcmc = dpppl.MCMC(kernel, num_warmup=50, num_samples=300, progress_bar=False, print_cost=False)
    with pytest.warns(UserWarning, match="too long for mean: raise num_samples"):
        mcmc.run(dpppl.secret_key(), Y)
    assert set(mcmc.verdict.by_site["mean"]) == {UNSTABLE}
    assert "too long for mean" in str(mcmc.privacy_report())


# Counts of clipped rows


def counted(clipping, rows, share=0.01, sampling=None, noise_multiplier=1e-6, **options):
    mechanism = Mechanism(clipping=clipping, subsampling=sampling or FullBatch(), count_share=share, **options)
    z = {"a": jnp.zeros(2), "b": jnp.zeros(())}

    def linear(z, row, public):
        return jnp.vdot(z["a"], row[:2]) + z["b"] * row[2]

    draw = lambda key: noisy_sum(mechanism, linear, z, rows, {}, key=key, noise_multiplier=noise_multiplier)  # noqa: E731
    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 4_000 if noise_multiplier > 1e-3 else 1))


ROWS = np.random.default_rng(1).standard_normal((300, 3)).astype(np.float32)


@pytest.mark.slow
def test_clipped_rows_are_counted():
    norms = np.linalg.norm(ROWS, axis=1)
    assert counted(Flat(1.5), ROWS).count[0, 0] == pytest.approx(np.sum(norms > 1.5) - 150.0, abs=0.01)
    assert counted(Flat(1.5), ROWS, sampling=Poisson(0.5)).count[0, 0] != pytest.approx(
        np.sum(norms > 1.5) - 150.0, abs=1
    )


def test_sum_and_count_together_cost_one_access():
    """4,000 draws: each sd is known to 1.1 %; the scales themselves add up to noise_multiplier^-2 exactly."""
    mechanism = Mechanism(clipping=Flat(1.5), subsampling=dpppl.FullBatch(), count_share=0.01)
    (scale, count_scale), _, _ = mechanism._scales(np.float64(3.0), [4, 3])
    assert scale**-2 + (count_scale / 0.5) ** -2 == pytest.approx(3.0**-2, rel=1e-9)
    noisy = counted(Flat(1.5), ROWS, noise_multiplier=3.0)
    total = np.mean(np.var(np.asarray(noisy.total["a"]), axis=0)) ** 0.5 / 1.5
    count = np.mean(np.var(np.asarray(noisy.count), axis=0)) ** 0.5 / 0.5  # a row moves the count by at most a half
    assert total**-2 + count**-2 == pytest.approx(3.0**-2, rel=0.05)
    assert count**-2 / 3.0**-2 == pytest.approx(0.01, rel=0.1)


@pytest.mark.slow
def test_the_histogram_of_norms_is_charged_with_the_run():
    mcmc = dpppl.MCMC(
        dpppl.DPSGLD(precise), num_warmup=5, num_samples=5, target_epsilon=9.0,
        target_delta=1e-5, progress_bar=False, print_cost=False,
    )  # fmt: skip
    plan = mcmc.privacy_plan()
    mcmc.run(jax.random.key(2), Y)
    report = mcmc.privacy_report()
    assert report.num_accesses == plan.num_accesses == 11 and report.epsilon == pytest.approx(plan.epsilon, rel=1e-6)
    assert report.epsilon == pytest.approx(9.0, rel=5e-3) and report.epsilon <= 9.0
    costs = sorted((sigma**-2.0, count) for event in report.events for sigma, count in event.noise_multipliers)
    by_count = {count: cost * count for cost, count in costs}
    assert by_count[1] / (by_count[1] + by_count[10]) == pytest.approx(SHARE, rel=1e-3)
    # Longer than the .9 quantile of rows at 0, since the time allows; found to half an octave.
    norm, norms = report.mechanism.clipping_norm, np.linalg.norm(Y, axis=1)
    time = report.details.diffusion_time * norm**2
    exact = np.sqrt(time * np.sum(norms**2) / Y.shape[1] / 3200.0)
    assert 1.2 * np.quantile(norms, 0.9) < exact < 3.0 * np.quantile(norms, 0.99) and 0.7 < norm / exact < 1.4
    with pytest.raises(ConfigurationError, match="matched"):
        dpppl.DPSGLD(precise, clipping_norm="auto", step_size=0.1)


@pytest.mark.slow
def test_clipping_is_centred_unless_a_norm_is_given():
    def unnormalised(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.factor("likelihood", -((y[:, 0] - mu) ** 2))

    budget = {"target_epsilon": 2.0, "target_delta": 1e-5, "print_cost": False}

    def chain(model, **given):
        return dpppl.MCMC(dpppl.DPSGLD(model, **given), num_warmup=2, num_samples=2, progress_bar=False, **budget)

    def svi(model, **given):
        return dpppl.SVI(model, AutoNormal(model), **given, **budget)

    def mechanism(given):
        return [chain(precise, **given).calibrated_kernel().mechanism, svi(precise, **given).mechanism]

    assert [type(door.clipping) for door in mechanism({})] == [Centred, Centred]
    assert [type(door.clipping) for door in mechanism({"clipping_norm": 1.0})] == [Flat, Flat]
    for clipping, refused in ((None, True), ("flat", False)):
        said = pytest.raises(UnsupportedModelError, match=r"'likelihood'.*flat") if refused else nullcontext()
        method, guide = chain(unnormalised, clipping=clipping), svi(unnormalised, clipping=clipping)
        with said:
            method.run(dpppl.secret_key(), Y)
        with said:
            guide.run(dpppl.secret_key(), 2, Y, progress_bar=False)
        assert bool(method.budget.charged) == bool(guide.budget.charged) != refused


class LeakyBound(BoundKernel):
    def step(self, state, *, rows, public):
        state = super().step(state, rows=rows, public=public)
        return state._replace(z=jax.tree.map(lambda x: x + jax.tree.leaves(rows)[0][0], state.z))


class Leaky(dpppl.DPSGLD):
    def bind(self, args, kwargs):
        bound = super().bind(args, kwargs)
        return LeakyBound(bound.kernel, bound.split, bound.responses, bound.scales)


@pytest.mark.slow
def test_what_a_run_is_refused_for_is_asked_before_the_histogram():
    used, budget = dpppl.secret_key(), {"target_epsilon": 2.0, "target_delta": 1e-5, "print_cost": False}
    dpppl.randomness.keys.claim(used)
    for kernel, key, error in ((dpppl.DPSGLD, used, KeyReuseError), (Leaky, dpppl.secret_key(), PrivacyLeakError)):
        mcmc = dpppl.MCMC(
            kernel(precise, clipping_norm="auto"), num_warmup=5, num_samples=5, progress_bar=False, **budget
        )
        with pytest.raises(error):
            mcmc.run(key, Y)
        assert not mcmc.budget.charged
    svi = dpppl.SVI(precise, AutoNormal(precise), **budget)
    with pytest.raises(KeyReuseError):
        svi.run(used, 5, Y, progress_bar=False)
    assert not svi.budget.charged


# Verdicts


def test_verdicts():
    rng = np.random.default_rng(2)
    white, walk = rng.standard_normal((1, 400, 1)), np.cumsum(rng.standard_normal((1, 400, 1)), axis=1)
    samples = {"w": np.concatenate([white, walk], axis=2), "twice": 2.0 * white}
    few, many = (ClippedRows(share=0.02, error=0.001, num_rows=number) for number in (1_000, 1_000_000))
    fine = MeasuredChains(step_size=0.1, excess={"w": 0.2}, clipped=few)
    prior = {site: rng.normal(0.0, 30.0, (1_000, value.shape[2])) for site, value in samples.items()}
    found = lambda measured, draws=samples: reading(draws, measured, Arrival(), prior).words  # noqa: E731
    assert list(found(fine)["w"]) == [READ, SHORT]
    assert list(found(replace(fine, clipped=many))["w"]) == [CLIPPED, SHORT]
    assert list(found(MeasuredChains(step_size=0.1, excess={"w": 0.7}))["twice"]) == [UNSTABLE]
    lost = {"w": np.where(np.arange(400)[None, :, None] == 7, np.nan, samples["w"])}
    assert list(found(fine, lost)["w"]) == [UNSTABLE, UNSTABLE]
    ignored = CountedRows(outside=None, missing=0.109, silent=0.0, std=0.001)
    assert list(found(replace(fine, counted=ignored))["w"]) == [IGNORED, SHORT]
    assert list(found(replace(fine, counted=replace(ignored, missing=0.009, silent=0.5)))["w"]) == [READ, SHORT]


@pytest.mark.slow
def test_counts_of_rows_are_read_from_their_sums():
    """A quarter of the rows that have a norm is clipped, 30 % are missing, 20 % silent; few of either are noise."""
    counts = [0.5 * (0.125 - 0.375), 0.5 * 0.3, 0.5 * 0.2]
    found, error = mean_counts(np.cumsum(np.full((1, 100, 4), [*counts, 0.04]), axis=1), 1)
    assert error == pytest.approx(0.2 / 99**0.5)
    clipped, counted = rows_of(found, 1e-3, Flat(1.0), 1_000, ())
    assert (clipped.share, clipped.error) == pytest.approx((0.125, 1e-3)) and counted.std == pytest.approx(2e-3)
    assert (counted.missing, counted.silent) == pytest.approx((0.3, 0.2)) and counted.outside is None
    assert rows_of([0.1, 2e-3, -2e-3], 1e-2, Flat(1.0), 9, ())[0].share == pytest.approx(0.6)
    assert rows_of(found, 1e-3, Centred(1.0), 9, ())[0] is None
