"""The runner: NumPyro's calls and results, every access charged before it happens, nothing of the data kept."""

import dataclasses
import gc
import pickle
import weakref

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC as NumPyroMCMC
from patches import forget_keys, run_through

import dpppl
from dpppl.access.mechanism import ACCOUNTED
from dpppl.errors import BudgetExceededError, ConfigurationError, KeyReuseError
from dpppl.report.provenance import Start

CHAIN_METHODS = ["sequential", "vectorized", "parallel", jax.vmap]
X = np.random.default_rng(0).standard_normal((7, 2)).astype(np.float32)
Y = (X @ np.array([1.0, -1.0]) + np.random.default_rng(1).standard_normal(7)).astype(np.float32)


def regression(x, y, prior_scale=1.0):
    w = numpyro.sample("w", dist.Normal(0.0, prior_scale).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 0.1))
    numpyro.deterministic("size", jnp.sum(w**2))
    with numpyro.plate("data", x.shape[0]):
        score = numpyro.deterministic("score", x @ w)
        numpyro.sample("y", dist.Normal(score, sd), obs=y)


def normal_mean(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def flat(y):
    """Neither a prior nor a likelihood."""
    z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), ()))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0 * z, 1.0), obs=y)


def kernel_of(model=normal_mean, **options):
    return dpppl.DPSGLD(model, **({"clipping_norm": 20.0, "step_size": 0.01} | options))


def mcmc_of(kernel=None, num_warmup=5, num_samples=11, progress_bar=False, **options):
    kernel = kernel_of() if kernel is None else kernel
    return dpppl.MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, progress_bar=progress_bar, **options)


def accesses(mcmc):
    return mcmc.privacy_report().num_accesses


# As numpyro.infer.MCMC


def numpyro_key(key):
    """The key from which `dpppl.MCMC.run(key)` starts its chains."""
    return dpppl.randomness.keys.stream(key, "chains")


def shapes(values):
    return jax.tree.map(jnp.shape, values)


def assert_same_results(ours, theirs, values=True):
    for by_chain in (True, False):
        got, wanted = ours.get_samples(by_chain), theirs.get_samples(by_chain)
        assert got.keys() == wanted.keys() - {"score"}  # a function of the rows is not returned
        extra, wanted_extra = ours.get_extra_fields(by_chain), theirs.get_extra_fields(by_chain)
        assert extra.keys() == wanted_extra.keys()
        for mine, reference in [(got, wanted), (extra, wanted_extra)]:
            for name, value in mine.items():
                assert value.shape == reference[name].shape and value.dtype == reference[name].dtype
                if values:
                    np.testing.assert_allclose(value, reference[name], rtol=1e-5, atol=1e-6)
    last, reference = ours.last_state, theirs.last_state
    assert type(last) is type(reference) and shapes(last.z) == shapes(reference.z)
    np.testing.assert_array_equal(last.i, reference.i)
    assert last.rng_key is None and reference.rng_key is not None


@pytest.mark.slow
def test_every_chain_method_gives_what_numpyro_gives():
    """The same chain keys give the same samples here and under NumPyro: shapes, thinning, extra fields, last states."""
    settings = dict(num_warmup=5, num_samples=11, num_chains=2, thinning=3, progress_bar=False)
    kernel, key, fields = kernel_of(regression), jax.random.key(0), ("i", "z.w")
    theirs = NumPyroMCMC(kernel, chain_method="vectorized", **settings)
    theirs.run(numpyro_key(key), X, Y, extra_fields=fields)
    for method in CHAIN_METHODS:
        forget_keys()
        ours = dpppl.MCMC(kernel, chain_method=method, **settings)
        ours.run(key, X, Y, extra_fields=fields)
        assert ours.chain_method == method
        assert_same_results(ours, theirs)
        assert accesses(ours) == 2 * 16
    chains = ours.get_samples(group_by_chain=True)["w"]
    assert not np.allclose(chains[0], chains[1], atol=1e-3)
    np.testing.assert_array_equal(ours.get_extra_fields(group_by_chain=True)["i"], [[10, 13, 16]] * 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")  # NumPyro's own, under jax.vmap
@pytest.mark.parametrize("method", CHAIN_METHODS)
def test_kernels_run_under_numpyro(method):
    """The kernel then reports what its last state says has been spent, and that states hold the key."""
    kernel = kernel_of(noise_multiplier=30.0)
    theirs = NumPyroMCMC(kernel, num_warmup=5, num_samples=6, num_chains=2, chain_method=method, progress_bar=False)
    theirs.run(jax.random.key(0), Y)
    ours = mcmc_of(kernel, num_samples=6, num_chains=2, chain_method="vectorized")
    ours.run(jax.random.key(0), Y)
    assert theirs.get_samples(True)["mean"].shape == (2, 6)
    report = kernel.privacy_report(theirs.last_state, 1e-5)
    assert report.epsilon == pytest.approx(ours.privacy_report().epsilon_at(1e-5), rel=1e-9)
    assert report.num_accesses == 22 and report.details.num_chains == 2
    assert (
        "states hold the key" in report.provenance.key_origin
        and kernel.privacy_report(theirs.last_state).epsilon is None
    )


@pytest.mark.slow
def test_kernels_under_numpyro_follow_the_arguments_of_each_run():
    """One kernel, several data sets and settings, with and without jit_model_args."""
    kernel = kernel_of(regression)
    plain = NumPyroMCMC(kernel, num_warmup=0, num_samples=40, progress_bar=False)
    plain.run(jax.random.key(0), X, Y)
    wide = plain.get_samples()["w"]
    plain.run(jax.random.key(0), X, Y, prior_scale=0.1)
    narrow = plain.get_samples()["w"]
    assert np.abs(narrow).mean() < 0.15 < 0.2 < np.abs(wide).mean()
    plain.run(jax.random.key(0), X[:5], Y[:5])
    assert not np.allclose(wide, plain.get_samples()["w"])
    compiled = NumPyroMCMC(kernel, num_warmup=0, num_samples=40, progress_bar=False, jit_model_args=True)
    compiled.run(jax.random.key(0), X, Y)
    np.testing.assert_allclose(compiled.get_samples()["w"], wide, rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigurationError, match="run without it"):
        compiled.run(jax.random.key(0), X, Y, prior_scale=0.1)
    cloudpickle.dumps(kernel)


@pytest.mark.slow
def test_warmup_then_run_as_in_numpyro():
    settings = dict(num_warmup=8, num_samples=11, thinning=3, progress_bar=False)
    ours = dpppl.MCMC(kernel_of(regression), **settings)
    theirs = NumPyroMCMC(kernel_of(regression), **settings)
    for mcmc, key in ((ours, jax.random.key(0)), (theirs, numpyro_key(jax.random.key(0)))):
        mcmc.warmup(key, X, Y, collect_warmup=True, extra_fields=("i",))
    assert_same_results(ours, theirs)
    assert accesses(ours) == 8
    for mcmc in (ours, theirs):
        mcmc.run(jax.random.key(1), X, Y, extra_fields=("i",))
    assert_same_results(ours, theirs, values=False)  # other noise: the key of a run is split first
    assert accesses(ours) == 8 + 11
    for mcmc in (ours, theirs):
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(jax.random.key(2), X, Y, extra_fields=("i",))
    assert_same_results(ours, theirs, values=False)
    assert accesses(ours) == 8 + 11 + 11
    assert int(ours.last_state.i) == 30


def beside_nothing(y):
    """A mean, and a latent of size 0."""
    numpyro.deterministic("none", numpyro.sample("empty", dist.Normal(0.0, 1.0).expand([0]).to_event(1)))
    normal_mean(y)


def test_warmup_is_read_pickled_and_printed_and_run_goes_on_from_it_alone():
    mcmc = mcmc_of(kernel_of(beside_nothing))
    mcmc.warmup(dpppl.secret_key(), Y)
    assert mcmc.get_samples(allow_unconverged=True)["mean"].shape == (0,)
    assert "too short: 1 of 1 (mean)" in mcmc.verdict.line() == pickle.loads(pickle.dumps(mcmc)).verdict.line()
    mcmc.print_summary()
    with pytest.raises(ConfigurationError, match="leave init_params out"):
        mcmc.run(dpppl.secret_key(), Y, init_params={"empty": np.zeros(0), "mean": 3.0})
    mcmc.run(dpppl.secret_key(), Y)
    assert accesses(mcmc) == 16 and mcmc.privacy_report().provenance.initial_values == "prior median"
    assert mcmc.get_samples(allow_unconverged=True)["empty"].shape == (11, 0)
    mcmc.print_summary()
    mcmc.post_warmup_state = mcmc.last_state
    assert mcmc.privacy_plan().provenance.starts[-1] is Start.STATE
    mcmc.run(dpppl.secret_key(), Y)
    assert mcmc.privacy_report().provenance.starts[-1] is Start.STATE


@pytest.mark.slow
def test_a_run_from_a_state_has_no_frame():
    """Of a run that had one, of which velocities are of other coordinates, and of one that searched for its steps."""
    settings, y = dict(num_samples=200, target_epsilon=2.0, target_delta=1e-5), np.tile(Y, 100)
    kernels = dpppl.DPSGHMC(beside_nothing), dpppl.DPSGHMC(beside_nothing, clipping_norm=3.0)
    for kernel in kernels:
        first, mcmc = mcmc_of(kernel, **settings), mcmc_of(kernels[0], **settings)
        first.run(dpppl.secret_key(), y)
        assert first.verdict.by_site["empty"].shape == (0,)
        mcmc.post_warmup_state = first.last_state
        plan = mcmc.privacy_plan()
        mcmc.run(dpppl.secret_key(), y)
        report = mcmc.privacy_report()
        assert report.num_accesses == plan.num_accesses == 1 + 200 and report.epsilon == pytest.approx(plan.epsilon)
        np.testing.assert_allclose(np.mean(mcmc.get_samples(allow_unconverged=True)["mean"]), np.mean(y), atol=0.3)
    framed = mcmc_of(kernels[0], frame=True, **settings)
    framed.post_warmup_state = first.last_state
    with pytest.raises(ConfigurationError, match="frame=True finds the start"):
        framed.run(dpppl.secret_key(), y)
    assert not framed.budget.charged
    framed.post_warmup_state = None
    framed.warmup(dpppl.secret_key(), y)  # of which no state is collected
    framed.run(dpppl.secret_key(), y)
    assert framed.get_samples(allow_unconverged=True)["mean"].shape == (200,)


@pytest.mark.slow
def test_one_step_and_no_warmup():
    mcmc = mcmc_of(num_warmup=0, num_samples=1)
    mcmc.warmup(jax.random.key(0), Y)
    assert accesses(mcmc) == 0 and mcmc.privacy_report().epsilon_at(1e-5) == 0.0
    mcmc.run(jax.random.key(1), Y)
    assert mcmc.get_samples()["mean"].shape == (1,) and accesses(mcmc) == 1


@pytest.mark.slow
def test_init_params_are_used_and_recorded():
    mcmc = mcmc_of(kernel_of(step_size=1e-12), num_chains=2, chain_method="vectorized")
    assert "prior median" in str(mcmc.privacy_plan())
    mcmc.run(jax.random.key(0), Y, init_params={"mean": np.array([3.0, -3.0])})
    np.testing.assert_allclose(mcmc.last_state.z["mean"], [3.0, -3.0], atol=1e-4)
    assert mcmc.privacy_report().provenance.initial_values == "supplied by the user: assumed independent of the data"
    mcmc.run(jax.random.key(1), Y)
    np.testing.assert_allclose(mcmc.last_state.z["mean"], 0.0, atol=1e-4)
    both = mcmc.privacy_report().provenance.initial_values
    assert "supplied by the user" in both and "prior median" in both


@pytest.mark.slow
def test_print_summary(capsys):
    mcmc = mcmc_of(kernel_of(regression, step_size=1e-9), num_chains=2, chain_method="vectorized")
    mcmc.run(jax.random.key(0), X, Y, init_params={"w": np.array([[0.0, 0.0], [5.0, 5.0]]), "sd": np.zeros(2)})
    capsys.readouterr()
    mcmc.print_summary()
    printed = capsys.readouterr().out
    assert "w[0]" in printed and "n_eff" in printed and "size" not in printed
    assert "do not read: too short: 3 of 3 (w, sd)" in printed or "do not read: too short" in printed
    assert "total diffusion time" in printed and "rows were clipped" in printed
    mcmc.print_summary(exclude_deterministic=False)
    assert "size" in capsys.readouterr().out


# What is charged, and when


class Watch:
    """Replaces the compiled chunk: notes, at each call, the steps charged and the steps that have run."""

    def __init__(self, monkeypatch, fail_at=None, error=None):
        self.calls, self.done, self.fail_at, self.error = [], 0, fail_at, error

        def watched(call, program, states, rows, public, start, count):
            chains = len(states.i) if np.ndim(states.i) else 1
            self.done += int(count) * chains
            self.calls.append((sum(c.num_steps * c.chains for c in self.mcmc.budget.charged), self.done))
            if len(self.calls) == self.fail_at:
                raise self.error
            return call()

        run_through(monkeypatch, watched)


@pytest.mark.slow
@pytest.mark.parametrize("method", CHAIN_METHODS)
def test_every_step_of_every_chain_is_charged_before_it_runs(method, monkeypatch):
    watch = Watch(monkeypatch)
    watch.mcmc = mcmc_of(num_warmup=13, num_samples=29, thinning=4, num_chains=2, chain_method=method)
    watch.mcmc.run(jax.random.key(0), Y)
    assert len(watch.calls) > 10 and watch.done == 2 * 42
    assert all(charged == done for charged, done in watch.calls)
    assert accesses(watch.mcmc) == 2 * 42


@pytest.mark.slow
def test_an_interrupted_chain_among_sequential_ones(monkeypatch):
    """The first chain has run to its end and the second has begun: all of it is charged."""
    watch = Watch(monkeypatch, fail_at=22, error=KeyboardInterrupt())
    watch.mcmc = mcmc = mcmc_of(num_warmup=20, num_samples=20, num_chains=2, chain_method="sequential")
    with pytest.raises(KeyboardInterrupt):
        mcmc.run(jax.random.key(0), Y)
    assert accesses(mcmc) == 40 + 2 * 2


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("method", ["sequential", "vectorized"])
def test_the_plan_is_the_report(method):
    mcmc = mcmc_of(
        kernel_of(step_size="matched", clipping_norm=1.0), num_chains=2, chain_method=method, target_epsilon=1.0,
        target_delta=1e-5,
    )  # fmt: skip
    plan = mcmc.privacy_plan()
    assert plan.status == "planned" and 0.99 <= plan.epsilon <= 1.0 and plan.num_accesses == 32
    mcmc.run(dpppl.secret_key(), Y)
    report = mcmc.privacy_report()
    for name in "epsilon delta num_accesses noise_multipliers".split():
        assert getattr(report, name) == getattr(plan, name)
    assert dataclasses.replace(report.details, measured=None) == plan.details
    assert plan.details.temperatures == pytest.approx((1.0, 1.0), rel=1e-5)


def test_the_cost_is_printed_first(capsys, monkeypatch):
    watch = Watch(monkeypatch, fail_at=1, error=KeyboardInterrupt())
    watch.mcmc = mcmc = mcmc_of(target_delta=1e-5)
    with pytest.raises(KeyboardInterrupt):
        mcmc.run(dpppl.secret_key(), Y)
    printed = capsys.readouterr().out
    assert f"epsilon = {mcmc.privacy_plan().epsilon:.4g} at delta = 1e-05" not in printed  # the plan adds to the charge
    assert f"epsilon = {mcmc_of(target_delta=1e-5).privacy_plan().epsilon:.4g} at delta = 1e-05" in printed


@pytest.mark.slow
def test_the_budget_is_for_all_that_the_object_runs(monkeypatch, claimed):
    budget = dict(target_epsilon=1.0, target_delta=1e-5)
    mcmc = mcmc_of(kernel_of(step_size="matched"), **budget)
    mcmc.warmup(jax.random.key(0), Y)
    assert accesses(mcmc) == 5 and 0 < mcmc.privacy_report().epsilon < 0.6
    kept = mcmc.post_warmup_state
    mcmc.run(jax.random.key(1), Y)
    report = mcmc.privacy_report()
    assert accesses(mcmc) == 16 and 0.99 <= report.epsilon <= 1.0
    assert kept is mcmc.post_warmup_state
    samples, used = mcmc.get_samples()["mean"], set(claimed)
    watch = Watch(monkeypatch)
    watch.mcmc = mcmc
    monkeypatch.setattr("dpppl.runs.driver.prepare_all", None)  # refused before programs are traced
    with pytest.raises(BudgetExceededError, match="nothing was run and nothing was charged"):
        mcmc.run(jax.random.key(2), Y)
    mcmc.post_warmup_state = mcmc.last_state
    with pytest.raises(BudgetExceededError):
        mcmc.run(jax.random.key(2), Y)
    with pytest.raises(BudgetExceededError):
        mcmc.warmup(jax.random.key(2), Y)
    assert mcmc.post_warmup_state is mcmc.last_state  # what was paid for is not lost
    assert not watch.calls and claimed == used and mcmc.privacy_report().epsilon == report.epsilon
    assert mcmc.get_samples()["mean"] is samples


@pytest.mark.slow
def test_what_was_charged_stays_charged_at_its_noise(claimed):
    """Neither the kernel that was handed in nor the calibrated one changes what runs cost, or are noised with."""
    kernel = kernel_of()
    mcmc = mcmc_of(kernel, target_delta=1e-5)
    mcmc.run(jax.random.key(0), Y)
    before = mcmc.privacy_report().events
    for other in (kernel, mcmc.sampler, mcmc.calibrated_kernel()):
        with pytest.raises(ConfigurationError, match="noise_multiplier is a setting of this DPSGLD, fixed when"):
            other.noise_multiplier = 1e3
    assert mcmc.privacy_report().events == before
    mcmc.run(jax.random.key(1), Y)
    assert len(set(mcmc.privacy_report().events)) == 1


@pytest.mark.slow
def test_without_a_budget_runs_add_up():
    """Two runs of n steps at constant noise are one of 2n: the exact Gaussian's mu grows by sqrt(2)."""
    mcmc = mcmc_of(kernel_of(noise_multiplier=30.0, clipping_norm=1.0), target_delta=1e-5)
    planned = dpppl.accounting.GaussianEvent(noise_multipliers=((30.0, 32),))
    for run in (1, 2):
        mcmc.run(jax.random.key(run), Y)
        assert mcmc.privacy_report().details.diffusion_time == pytest.approx(
            16 * 0.01, rel=1e-6
        )  # the second starts anew
    assert mcmc.privacy_report().epsilon == pytest.approx(dpppl.accounting.epsilon(planned, 1e-5), rel=5e-4)


# Keys


def test_keys(claimed):
    mcmc = mcmc_of(num_chains=2, chain_method="vectorized")
    key = dpppl.secret_key()
    mcmc.run(key, Y, extra_fields=("i",))
    assert "operating system's entropy" in mcmc.privacy_report().provenance.key_origin
    with pytest.raises(KeyReuseError, match=r"call dpppl\.secret_key\(\) again"):
        mcmc.run(key, Y)
    with pytest.raises(KeyReuseError):
        mcmc_of().run(jax.random.key_data(key), Y)
    assert accesses(mcmc) == 32
    for name in ("rng_key", "6"):  # NumPyro would take the position
        with pytest.raises(ConfigurationError, match="extra_fields cannot name rng_key"):
            mcmc.run(dpppl.secret_key(), Y, extra_fields=(name,))
    for wrong in (0, None, np.zeros(2), jax.random.split(jax.random.key(0)), np.zeros((2, 2), np.uint32)):
        with pytest.raises(ConfigurationError, match="rng_key must be"):
            mcmc.run(wrong, Y)
    assert mcmc.last_state.rng_key is None and "rng_key" in mcmc.last_state._fields
    mcmc.run(jax.random.key(7), Y, extra_fields=("i",))
    origins = mcmc.privacy_report().provenance.key_origin
    assert "operating system's entropy" in origins and "short seed that can be guessed" in origins


def test_raw_key_data_is_the_same_key_and_steps_draw_noise_of_their_own():
    """Two steps of equal size and no gradient are two independent draws. No state keeps the key."""
    mcmc = mcmc_of(kernel_of(flat), num_warmup=0, num_samples=3)
    mcmc.run(jax.random.key_data(jax.random.key(0)), Y)
    assert mcmc.last_state.rng_key is None
    assert not np.allclose(*np.diff(mcmc.get_samples()["z"], axis=0))
    with pytest.raises(KeyReuseError):
        mcmc.run(jax.random.key(0), Y)


def refused(match, kernel=None, num_chains=1, args=(X, Y), error=ConfigurationError, **kwargs):
    """A call of `run` that is refused: the kernel's settings, the arguments, and what the message says."""
    return match, kernel or {}, num_chains, args, error, kwargs


REFUSED = {
    "no noise to match": refused("needs a noise multiplier", {"step_size": "matched"}),
    "negative steps": refused("step 0 is not", {"step_size": lambda count: -0.1}),
    "steps that reach zero": refused("at every step; step 11", {"step_size": lambda count: 0.105 - 0.01 * count}),
    "field of no site": refused("has no field 'z.nothing'", extra_fields=("z.nothing",)),
    "a method": refused("has no field '_asdict'", extra_fields=("_asdict",)),
    "sites missing": refused("latent sites are", init_params={"w": np.zeros(2)}),
    "a start that is not finite": refused("finite", init_params={"w": np.zeros(2), "sd": np.nan}),
    "a start for each of other chains": refused(
        "same leading dimension", num_chains=2, init_params={"w": np.zeros((3, 2)), "sd": np.zeros(3)}
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_run_takes_nothing(name, claimed):
    """No charge, no key, no result."""
    match, options, num_chains, args, error, kwargs = REFUSED[name]
    mcmc = mcmc_of(kernel_of(regression, **options), num_chains=num_chains, chain_method="vectorized")
    with pytest.raises(error, match=match):
        mcmc.run(jax.random.key(0), *args, **kwargs)
    assert not mcmc.budget.charged and not claimed and mcmc.last_state is None


def test_deterministic_sites_of_latents_only_are_returned_and_a_refused_run_keeps_earlier_results():
    mcmc = mcmc_of(kernel_of(regression))
    mcmc.run(jax.random.key(0), X, Y, extra_fields=("~z.sd",))
    samples, last = mcmc.get_samples(), mcmc.last_state
    assert samples.keys() == {"w", "size"}
    np.testing.assert_allclose(samples["size"], np.sum(np.square(samples["w"]), axis=1), rtol=1e-6)
    with pytest.raises(ConfigurationError):
        mcmc.run(jax.random.key(1), X, Y, extra_fields=("nothing",))
    mcmc.post_warmup_state = last._replace(z={"w": np.zeros(3), "sd": np.zeros(())})
    with pytest.raises(ConfigurationError, match="post_warmup_state does not fit"):
        mcmc.run(jax.random.key(1), X, Y)
    assert mcmc.get_samples() is samples and mcmc.last_state is last and accesses(mcmc) == 16


def test_a_target_that_cannot_be_met_is_refused_before_access(claimed):
    kernel = kernel_of(step_size="matched", subsampling=dpppl.Poisson(0.5))  # drawn exactly but for 1e-48 a step
    mcmc = mcmc_of(kernel, target_epsilon=1.0, target_delta=1e-200)
    with pytest.raises(ConfigurationError, match="cannot be met"):
        mcmc.run(jax.random.key(0), Y)
    assert not mcmc.budget.charged and not claimed


def test_an_explicit_step_gets_the_noise_that_the_budget_needs_and_no_more():
    small = mcmc_of(kernel_of(step_size=1e-7, clipping_norm=1.0), target_epsilon=1.0, target_delta=1e-5).privacy_plan()
    assert small.epsilon < 0.9 and small.details.temperatures == pytest.approx((1.0, 1.0), rel=1e-5)
    large = mcmc_of(kernel_of(step_size=0.1, clipping_norm=1.0), target_epsilon=1.0, target_delta=1e-5).privacy_plan()
    assert 0.99 <= large.epsilon <= 1.0 and large.details.temperatures[0] > 1.5


def test_every_step_draws_the_noise_that_is_accounted_for(altered):
    """With every normal draw replaced by 1, no prior and no likelihood, z moves by s_t at step t."""

    def ones(key, size):
        with jax.enable_x64(True):
            return jnp.ones(size, jnp.float64)

    altered.setattr(dpppl.randomness.normal, "standard_normal", ones)
    altered.setattr("dpppl.information_flow.verify_jaxpr", lambda *_, **__: None)  # it would refuse ones for noise
    kernel = kernel_of(flat, step_size=dpppl.polynomial_decay(0.5), clipping_norm=2.0, noise_multiplier=1.3)
    mcmc = mcmc_of(kernel, num_warmup=0, num_samples=6)
    mcmc.run(jax.random.key(0), Y, extra_fields=("z",))
    increments = np.diff(mcmc.get_extra_fields()["z"]["z"], prepend=0.0)
    steps, multipliers = kernel.schedule(0, 6)
    scale = kernel.mechanism.noise_scale
    assert scale == pytest.approx(2.0 / 0.99**0.5)  # a hundredth of the cost counts clipped rows
    np.testing.assert_allclose(increments, steps * scale * multipliers, rtol=3e-6)
    langevin = np.sqrt(2 * steps) / (scale * steps)
    assert np.any(langevin < 1.3) and np.any(langevin > 1.3)  # either side of the larger of the two is used
    accounted = [sigma for event in mcmc.privacy_report().events for sigma, _ in event.noise_multipliers]
    np.testing.assert_allclose(accounted, np.unique(multipliers) * ACCOUNTED, rtol=1e-9)


# Rows of every kind


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_bad_rows_are_bounded_and_the_run_goes_on(bad):
    y = np.array(Y)
    y[3] = bad
    mcmc = mcmc_of(kernel_of(clipping_norm=1.0))
    mcmc.run(jax.random.key(0), y)
    assert np.all(np.isfinite(mcmc.get_samples()["mean"]))
    assert mcmc.privacy_report().details.failed_chains == () and mcmc.privacy_report().status == "complete"


@pytest.mark.slow
def test_a_chain_that_must_explode_is_refused_before_it_is_charged(claimed):
    """At C = .001 the matched step is 1e6 times what the prior stands: refused, by every kernel, for nothing."""
    for kind in (dpppl.DPSGLD, dpppl.DPSGHMC, dpppl.DPSGNHT):
        mcmc = mcmc_of(kind(regression, clipping_norm=1e-3), num_samples=200, target_epsilon=2.0, target_delta=1e-5)
        with pytest.raises(
            ConfigurationError, match="explode on the prior alone, whatever the data: no step was run or charged"
        ):
            mcmc.run(jax.random.key(0), X, Y)
        assert not mcmc.budget.charged and not claimed
    mcmc_of(kernel_of(regression, step_size=0.005), num_samples=200).run(jax.random.key(0), X, Y)


@pytest.mark.slow
def test_a_chain_that_turns_infinite_is_charged_and_named(monkeypatch):
    monkeypatch.setattr("dpppl.mcmc.runner.check_prior_stability", lambda *_: None)
    mcmc = mcmc_of(kernel_of(step_size=1e20), num_chains=2, chain_method="vectorized", target_delta=1e-5)
    with pytest.warns(UserWarning, match=r"chains \[0, 1\] hold values that are not finite"):
        mcmc.run(jax.random.key(0), Y)
    report = mcmc.privacy_report()
    assert report.details.failed_chains == (0, 1) and report.num_accesses == 32
    assert "Chains with values that are not finite: 0, 1" in str(report)
    assert mcmc.get_samples()["mean"].shape == (22,) and not np.all(np.isfinite(mcmc.get_samples()["mean"]))


# Nothing of the data is kept


def _live(references):
    gc.collect()
    return [reference() is not None for reference in references]


def test_no_reference_outlives_a_refused_an_interrupted_or_a_whole_run(monkeypatch):
    rows = np.array(Y)
    reference = weakref.ref(rows)
    watch = Watch(monkeypatch, fail_at=2, error=KeyboardInterrupt)
    watch.mcmc = mcmc = mcmc_of()
    with pytest.raises(ConfigurationError):
        mcmc.run(jax.random.key(0), rows, extra_fields=("nothing",))
    with pytest.raises(KeyboardInterrupt):
        mcmc.run(jax.random.key(0), rows)
    mcmc_of(num_chains=2, chain_method="parallel").run(jax.random.key(1), rows)
    del rows
    assert _live([reference]) == [False]


@pytest.mark.slow
def test_pickles_hold_no_data():
    """A marker row appears in no pickle, as float32 or as float64; the restored object works and charges on."""
    marker = np.float32(1234.5677)
    x = np.array(X)
    x[2] = marker
    mcmc = mcmc_of(kernel_of(regression, clipping_norm=1.0, step_size=1e-3), num_chains=2, chain_method="vectorized")
    mcmc.run(jax.random.key(0), x, Y, extra_fields=("i",))
    mcmc.privacy_report()
    for module in (pickle, cloudpickle):
        data = module.dumps(mcmc)
        for needle in (marker.tobytes(), np.float64(marker).tobytes(), Y.tobytes(), x[0].tobytes()):
            assert needle not in data
        restored = pickle.loads(data)
        np.testing.assert_array_equal(restored.get_samples()["w"], mcmc.get_samples()["w"])
        assert restored.privacy_report().to_json() == mcmc.privacy_report().to_json()
    restored.post_warmup_state = restored.last_state
    restored.run(jax.random.key(1), x, Y)
    assert accesses(restored) == 2 * (16 + 11)
    assert marker.tobytes() in pickle.dumps(x)  # the search finds what is there
