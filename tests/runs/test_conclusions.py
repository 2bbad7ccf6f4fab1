"""Nothing that fails after the last access of a run costs its results: they are kept, and the error says how to read them."""

import importlib
import sys
import threading
import warnings

import jax
import numpy as np
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal
from small_models import normal_mean

import dpppl
from dpppl.runs import progress
from dpppl.runs.checkpoint import Checkpoint

Y = np.random.default_rng(0).normal(0.5, 1.0, 200).astype(np.float32)
BUDGET = {"target_epsilon": 20.0, "target_delta": 1e-5, "print_cost": False}


def noise_aware():
    runner = dpppl.NoiseAware(normal_mean, num_samples=20, progress_bar=False, **BUDGET)
    return runner, lambda: runner.run(dpppl.secret_key(), Y)


def mcmc():
    runner = dpppl.MCMC(dpppl.DPSGLD(normal_mean), num_warmup=2, num_samples=8, progress_bar=False, **BUDGET)
    return runner, lambda: runner.run(dpppl.secret_key(), Y)


def svi():
    runner = dpppl.SVI(normal_mean, AutoNormal(normal_mean), **BUDGET)
    return runner, lambda: runner.run(dpppl.secret_key(), 4, Y, progress_bar=False)


def samples(runner):
    """What the error names, typed."""
    if isinstance(runner, dpppl.SVI):
        params = runner.result.averaged_params(allow_unconverged=True)
        return runner.result.sample_posterior(jax.random.key(0), 5, params)["mu"]
    return runner.get_samples(allow_unconverged=True)["mu"]


NAMED = {
    "noise_aware": "get_samples(allow_unconverged=True) returns the samples, and sample_again(dpppl.secret_key(), ...)",
    "mcmc": "get_samples(allow_unconverged=True) returns the samples",
    "svi": "svi.result.averaged_params(allow_unconverged=True) returns the parameters",
}
NUMBERS = {  # what is computed of the releases at the end of a run
    "noise_aware": "dpppl.noise_aware.verdict.NoiseAwareVerdict.from_releases",
    "mcmc": "dpppl.mcmc.outcome.measure",
    "svi": "dpppl.svi.runner.counted_rows",
}
WORDS = {  # what is worded when results are read
    "noise_aware": "dpppl.noise_aware.verdict.findings_of",
    "mcmc": "dpppl.mcmc.outcome.ranked",
    "svi": "dpppl.svi.result.convergence",
}


def fails(*_, **__):
    raise KeyError("planted")


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMED)
def test_a_verdict_that_fails_costs_no_samples(method, monkeypatch):
    """Planted at the end of a run, and where the verdict is worded: what the error names works while the fault is there. Once it is
    gone, sample_again gives the verdict at no cost."""
    runner, run = globals()[method]()
    with monkeypatch.context() as patch:
        patch.setattr(NUMBERS[method], fails)
        with pytest.raises(dpppl.ConclusionError) as caught:
            run()
        assert NAMED[method] in str(caught.value) and isinstance(caught.value.__cause__, KeyError)
        spent = runner.privacy_report().epsilon
        assert np.all(np.isfinite(samples(runner))) and spent > 10.0
        if method != "svi":  # whose verdict then has no counts of rows
            with pytest.raises(dpppl.ConclusionError, match="could not be computed"):
                _ = runner.verdict.findings
    if method == "noise_aware":
        runner.sample_again(dpppl.secret_key(), Y)
        assert runner.verdict.line().startswith("read") and runner.privacy_report().epsilon == spent
    else:
        runner, run = globals()[method]()
        run()
    monkeypatch.setattr(WORDS[method], fails)
    with pytest.raises(
        dpppl.ConclusionError, match=r"allow_unconverged=True\) returns the results without their verdict"
    ):
        _ = runner.result.params if method == "svi" else runner.get_samples()
    assert np.all(np.isfinite(samples(runner)))


@pytest.mark.slow
def test_draws_that_fail_are_made_again_from_the_releases(monkeypatch):
    runner, run = noise_aware()
    with monkeypatch.context() as patch:
        patch.setattr("dpppl.noise_aware.posterior.draw", fails)
        with pytest.raises(
            dpppl.ConclusionError, match=r"kept: sample_again\(dpppl.secret_key\(\), ...\) with the arguments of run"
        ):
            run()
    spent = runner.privacy_report().epsilon
    runner.sample_again(dpppl.secret_key(), Y)
    assert samples(runner).shape == (20,) and runner.privacy_report().epsilon == spent


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", ["surrogate.OneSided.of", "measured.excess_spread", "measured.largest_sampled", "measured.dispersion"]
)
def test_a_number_for_the_verdict_that_fails_costs_no_samples(number, monkeypatch):
    runner, run = noise_aware()
    monkeypatch.setattr(f"dpppl.noise_aware.{number}", fails)
    with pytest.raises(dpppl.ConclusionError, match=r"^the verdict could not.*returns the samples"):
        run()
    assert np.all(np.isfinite(samples(runner)))


@pytest.mark.slow
def test_arithmetic_that_fails_between_accesses_goes_on_from_the_checkpoint(tmp_path, monkeypatch):
    runner = dpppl.NoiseAware(
        normal_mean, num_samples=20, progress_bar=False, checkpoint=tmp_path / "run.npz", **BUDGET
    )
    with monkeypatch.context() as patch:
        patch.setattr("dpppl.noise_aware.recipe._turned", fails)
        with pytest.raises(
            dpppl.ConclusionError, match="those to come are not: once the cause is mended, run with the same"
        ):
            runner.run(dpppl.secret_key(), Y)
    with pytest.raises(dpppl.ConfigurationError, match="interrupted before it had released all"):
        runner.sample_again(dpppl.secret_key(), Y)
    assert 0.0 < runner.privacy_report().epsilon < 10.0
    runner.run(dpppl.secret_key(), Y)
    assert samples(runner).shape == (20,) and 19.0 < runner.privacy_report().epsilon <= 20.0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mcmc", "svi", "svi's report"])
def test_results_that_fail_are_made_again_of_the_checkpoint(method, tmp_path, monkeypatch):
    settings = dict(print_cost=False, clipping_norm=1.0, noise_multiplier=3.0)
    path = tmp_path / "run.npz"
    if method == "mcmc":
        kernel = dpppl.DPSGLD(normal_mean, clipping_norm=1.0, noise_multiplier=3.0)
        planted, runner = (
            "dpppl.mcmc.runner.ChainOutcome.of",
            dpppl.MCMC(kernel, num_warmup=2, num_samples=8, progress_bar=False, print_cost=False, checkpoint=path),
        )
        run = lambda: runner.run(dpppl.secret_key(), Y)  # noqa: E731
    else:
        runner = dpppl.SVI(normal_mean, AutoNormal(normal_mean), checkpoint=path, **settings)
        planted = (
            "dpppl.svi.runner.SVI._params"
            if method == "svi"
            else "dpppl.runs.private_runner.PrivateRunner.privacy_report"
        )
        run = lambda: runner.run(dpppl.secret_key(), 4, Y, progress_bar=False)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(planted, (lambda *_: fails) if method == "svi" else fails)
        with pytest.raises(
            dpppl.ConclusionError,
            match=r"is kept: run with the same arguments makes the results of its checkpoint at no cost",
        ):
            run()
    assert path.exists()
    events = runner.privacy_report().events
    run()
    assert np.all(np.isfinite(samples(runner))) and runner.privacy_report().events == events and not path.exists()


@pytest.mark.slow
@pytest.mark.parametrize("planted", ["dpppl.frame.locate._normal", "dpppl.runs.driver.prepare"])
def test_a_frame_or_steps_that_fail_name_a_norm_of_one_s_own(planted, tmp_path, monkeypatch):
    settings = dict(
        num_warmup=100,
        num_samples=200,
        progress_bar=False,
        ledger=dpppl.PrivacyLedger(tmp_path / "ledger", epsilon=40.0, delta=1e-3),
    )
    runner = dpppl.MCMC(dpppl.DPSGLD(normal_mean), frame=True, **settings, **BUDGET)
    module, name = planted.rsplit(".", 1)
    original = getattr(importlib.import_module(module), name)
    with monkeypatch.context() as patch:
        patch.setattr(planted, lambda *args, **named: fails() if runner.budget.charged else original(*args, **named))
        with pytest.raises(
            dpppl.ConclusionError, match=r"those to come are not: with a norm of your own, as clipping_norm=1.0"
        ):
            runner.run(dpppl.secret_key(), Y)
    assert 0.0 < runner.privacy_report().epsilon < 10.0
    runner = dpppl.MCMC(dpppl.DPSGLD(normal_mean, clipping_norm=1.0), **settings, **BUDGET)
    runner.run(dpppl.secret_key(), Y)
    assert samples(runner).shape == (200,)


@pytest.mark.slow
def test_a_warning_that_is_an_error_costs_no_result():
    """Of parameters that are not finite SVI warns; where warnings are errors, the result is kept."""
    runner = dpppl.SVI(normal_mean, AutoNormal(normal_mean), optax.sgd(1e38), clipping_norm=1e6, **BUDGET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="parameters are not finite"):
            runner.run(dpppl.secret_key(), 4, Y, progress_bar=False)
    assert runner.result.last_params.keys() == {"mu_auto_loc", "mu_auto_scale"}


def test_a_bar_that_cannot_be_shown_ends_nothing(monkeypatch):
    """A stream that closes while a run is under way: a notebook that is gone."""

    class Closing:
        is_open, written = True, 0

        def write(self, text):
            if not self.is_open:
                raise OSError("the stream is gone")
            self.written += len(text)

        def flush(self):
            pass

    stream = Closing()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.bar_for(3, visible=True) as bar:
        assert stream.written
        stream.is_open = False
        bar.set_description("accesses")
        for _ in range(3):
            bar.update(1)
        bar.refresh()
    monkeypatch.undo()

    def another():
        with progress.bar_for(3, visible=True) as bar:
            bar.refresh()

    other = threading.Thread(target=another, daemon=True)
    other.start()
    other.join(10.0)
    assert not other.is_alive(), "a bar that failed keeps tqdm's lock"


def test_an_error_after_the_accesses_is_one_of_ours():
    """An interrupt stays one, and an error that says it already stays as it is."""
    with pytest.raises(
        dpppl.ConclusionError, match=r"samples could not be computed \(KeyError, shown above\).*kept: call f"
    ):
        with dpppl.errors.concluding("samples", "call f"):
            fails()
    with pytest.raises(dpppl.ConclusionError, match=r"^inner"), dpppl.errors.concluding("samples", "call f"):
        raise dpppl.ConclusionError("inner")
    with pytest.raises(KeyboardInterrupt), dpppl.errors.concluding("samples", "call f"):
        raise KeyboardInterrupt


def test_an_error_between_accesses_says_that_those_to_come_are_not_charged():
    """One of ours, such as that of a ledger that cannot be written, stays as it is; once all accesses were made none does."""
    done = []
    between = lambda: dpppl.errors.concluding("samples", "call f", lambda: bool(done), "mend it")  # noqa: E731
    with (
        pytest.raises(
            dpppl.ConclusionError, match=r"KeyError, shown above\)\. Accesses so far stay charged.*: mend it\."
        ),
        between(),
    ):
        fails()
    with pytest.raises(dpppl.LedgerError, match="full"), between():
        raise dpppl.LedgerError("full")
    done.append(True)
    with (
        pytest.raises(dpppl.ConclusionError, match=r"LedgerError, shown above\)\. All accesses.*kept: call f\."),
        between(),
    ):
        raise dpppl.LedgerError("full")


def test_a_warning_about_what_was_charged_is_printed_where_warnings_are_errors(capsys, tmp_path, monkeypatch):
    nan = lambda y: jax.numpy.where(y > 0.0, jax.numpy.nan, 0.5)  # noqa: E731
    kept = Checkpoint(tmp_path / "run.npz")

    def denied(*_):
        raise PermissionError(1, "not permitted")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = dpppl.private_score(dpppl.secret_key(), nan, Y, bounds=(0.0, 1.0), noise_multiplier=1.0)
        missing = np.where(Y > 0.5, np.nan, Y).astype(np.float32)
        scale = dpppl.private_scale(dpppl.secret_key(), missing, target_epsilon=5.0, target_delta=1e-5)
        monkeypatch.setattr(Checkpoint, "_remove", denied)
        kept.remove()
    assert found.nan_share > 0.5 and scale.events
    assert capsys.readouterr().err.count("Warning: ") == 3
