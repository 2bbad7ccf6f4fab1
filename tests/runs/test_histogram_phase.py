"""A phase that has charged is in the report whatever fails after it, and threads do not meet in it."""

import threading

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from patches import run_through
from small_models import seen
from test_runs import STEPS, TARGET, Y, model

import dpppl
from dpppl import BudgetExceededError, ConfigurationError
from dpppl.mcmc import runner
from dpppl.runs import driver


def mcmc_of(model=model, **options):
    kernel = dpppl.DPSGLD(model, clipping="flat")
    return dpppl.MCMC(kernel, num_warmup=10, num_samples=STEPS - 10, progress_bar=False, **(TARGET | options))


def svi_of(model=model, **options):
    return dpppl.SVI(model, AutoNormal(model), **TARGET, **options)


def run(thing):
    if isinstance(thing, dpppl.SVI):
        return thing.run(dpppl.secret_key(), STEPS, Y, progress_bar=False)
    return thing.run(dpppl.secret_key(), Y)


every_way = pytest.mark.parametrize("make", [mcmc_of, svi_of], ids=["MCMC", "SVI"])


def steps_of(thing):
    return sorted(charge.num_steps for charge in thing.budget.charged)


@pytest.mark.slow
@every_way
@pytest.mark.parametrize("at", ["compiling", "the first chunk"])
def test_the_histogram_is_in_the_report_of_a_run_that_failed_after_it(make, at, monkeypatch, tmp_path, capsys):
    ledger = dpppl.PrivacyLedger(tmp_path / "y.ledger", 2.0, 1e-5, full_batch_only=True)
    thing, calls = make(ledger=ledger), []

    def failing(real, number):
        def call(*arguments, **options):
            calls.append(None)
            if len(calls) == number:
                raise MemoryError
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        if at == "compiling":  # of the histogram's program, and of the run's
            patch.setattr(driver, "prepare_all", failing(driver.prepare_all, 2))
        else:
            patch.setattr(driver.Program, "__call__", failing(driver.Program.__call__, 2))
        with pytest.raises(dpppl.ConclusionError if at == "compiling" else MemoryError) as caught:
            run(thing)
    assert "The histogram that the clipping norm came from was charged" in str(caught.value) + "".join(
        caught.value.__notes__
    )
    report = thing.privacy_report()
    begun = [1] if at == "compiling" else [1, 2]
    assert steps_of(thing) == begun and report.num_accesses == sum(begun) and 0 < report.epsilon < 0.5
    assert report.status == "interrupted" and "operating system" in str(report) and report.num_rows == 50
    assert [entry.status for entry in ledger.report().runs] == ["interrupted"]
    assert capsys.readouterr().out.startswith("This run will spend epsilon = 0.99")
    run(thing) if make is svi_of else None  # what was reserved is free again
    assert thing.privacy_report().epsilon <= 1.0


def faint(y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    seen(y, dist.Normal(scale, 1e4))


@pytest.mark.slow
def test_rows_that_are_too_faint_to_inform_a_posterior_give_a_norm_that_the_prior_stands():
    """Gradients of 1e-8, in 10,000 rows."""
    mcmc = mcmc_of(faint, print_cost=False, target_epsilon=8.0)
    mcmc.run(dpppl.secret_key(), jnp.tile(Y, 200))
    assert bool(jnp.all(jnp.isfinite(mcmc.get_samples()["scale"]))) and mcmc.privacy_report().status == "complete"


@pytest.mark.slow
def test_a_chain_that_explodes_at_the_norm_that_was_found_says_what_was_charged(monkeypatch):
    """The histogram was charged by then."""

    def refuse(*_):
        raise ConfigurationError("steps explode on the prior alone, whatever the data: no step was run or charged.")

    monkeypatch.setattr(runner, "check_prior_stability", refuse)
    mcmc = mcmc_of(print_cost=False)
    with pytest.raises(ConfigurationError, match="explode on the prior alone") as caught:
        run(mcmc)
    assert "nothing was charged" not in str(caught.value) and any(
        "was charged" in note for note in caught.value.__notes__
    )
    assert steps_of(mcmc) == [1] and mcmc.privacy_report().epsilon > 0
    assert mcmc.privacy_report().status == "interrupted"


@pytest.mark.quick_cases(1)
@every_way
def test_a_ledger_without_room_for_the_run_refuses_its_histogram(make, tmp_path, claimed):
    ledger = dpppl.PrivacyLedger(tmp_path / "y.ledger", 0.5, 1e-5, full_batch_only=True)
    thing = make(ledger=ledger)
    with pytest.raises(BudgetExceededError, match="has no room for this run"):
        run(thing)
    assert not ledger.events and not thing.budget.charged and not claimed
    assert thing.privacy_report().status == "nothing run"


@pytest.mark.quick_cases(1)
@every_way
def test_the_cost_of_histogram_and_steps_is_printed_once_and_first(make, capsys, monkeypatch):
    thing, printed = make(), []

    def listening(call, *_):
        printed.append(capsys.readouterr().out)
        return call()

    run_through(monkeypatch, listening)
    run(thing)
    assert printed[0].startswith("This run will spend epsilon = 0.99") and "in all" not in printed[0]
    assert not any(printed[1:])


# Threads


@pytest.mark.slow
@every_way
@pytest.mark.filterwarnings("ignore:steps of")  # which thread runs decides the key, and the step size that is found
def test_threads_on_one_object_take_turns(make):
    """One charges a histogram and runs; the others find the budget used and have charged nothing."""
    thing, outcomes, start = make(print_cost=False), [], threading.Barrier(3)

    def go():
        start.wait()
        try:
            run(thing)
            outcomes.append("ran")
        except BudgetExceededError:
            outcomes.append("refused")
        except BaseException as error:
            outcomes.append(repr(error))

    threads = [threading.Thread(target=go) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(outcomes) == ["ran", "refused", "refused"] and steps_of(thing) == [1, STEPS]


@pytest.mark.slow
def test_models_are_traced_by_one_thread_at_a_time():
    """Wherever a model or a guide of the user's is called, this thread holds the lock of all handlers."""
    held = []

    def watched(y):
        held.append(driver.TRACING._is_owned())
        model(y)

    mcmc, svi = mcmc_of(watched, print_cost=False), svi_of(watched, print_cost=False, reserve=0.5)
    run(mcmc)
    mcmc.get_samples(), mcmc.verdict.by_site, mcmc.get_weights(), mcmc.privacy_report()
    result = run(svi)
    result.sample_posterior(dpppl.secret_key("threefry"), 2)
    params = result.params
    svi.estimate_elbo(dpppl.secret_key(), params, Y, bound=1.0)
    by_hand = dpppl.SVI(watched, AutoNormal(watched), clipping_norm=1.0, noise_multiplier=1.0)
    by_hand.update(by_hand.init(dpppl.secret_key(), Y), Y)
    noise_aware = dpppl.NoiseAware(watched, **TARGET, num_samples=10, print_cost=False)
    noise_aware.run(dpppl.secret_key(), jnp.asarray(Y))
    assert len(held) > 20 and all(held)
