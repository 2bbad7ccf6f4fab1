"""One answer to "may I read this?" of MCMC, SVI and NoiseAware, and a warning where results are refused."""

import contextlib
import io
import warnings

import jax
import numpy as np
import pytest
from numpyro.infer.autoguide import AutoNormal
from small_models import normal_mean as model

import dpppl

Y = np.random.default_rng(1).normal(0.4, 1.0, 400).astype(np.float32)


def chain(num_samples):
    kernel = dpppl.DPSGLD(model, clipping_norm=2.0, step_size=1e-3)
    mcmc = dpppl.MCMC(kernel, num_warmup=100, num_samples=num_samples, print_cost=False, progress_bar=False)
    mcmc.run(dpppl.secret_key(), Y)
    return mcmc, mcmc.get_samples


def variational(num_steps):
    svi = dpppl.SVI(
        model, AutoNormal(model), clipping_norm=1.0, target_epsilon=8.0, target_delta=1e-5, print_cost=False
    )
    result = svi.run(dpppl.secret_key(), num_steps, Y, progress_bar=False)
    return svi, result.averaged_params


@pytest.mark.slow
@pytest.mark.parametrize(("run", "short", "long"), [(chain, 3, 2_000), (variational, 30, 1_000)], ids=["MCMC", "SVI"])
def test_results_that_are_refused_are_returned_with_a_warning(run, short, long):
    runner, results = run(short)
    assert runner.verdict.refusals and runner.verdict.line().startswith("do not read: ")
    assert runner.verdict.line().count("do not read") == 1
    assert all(str(word).startswith("do not read") for word in np.ravel(runner.verdict.by_site["mu"]))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runner.print_summary() if isinstance(runner, dpppl.MCMC) else print(runner.verdict)
    shown = printed.getvalue() + runner.verdict._repr_html_()
    assert "from the data" not in shown and "latents: " not in shown and "learned" not in shown
    with pytest.warns(dpppl.UnconvergedWarning, match="should not be read: .*allow_unconverged=True"):
        refused = results()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.tree.map(np.testing.assert_array_equal, refused, results(allow_unconverged=True))
        runner, results = run(long)
        assert not runner.verdict.refusals and runner.verdict.line().startswith("read")
        results()
    assert set(runner.verdict.by_site) == {"mu"}


def test_the_old_name_of_a_chain_s_words_has_one_release_left():
    mcmc, _ = chain(3)
    with pytest.warns(DeprecationWarning, match=r"mcmc\.verdicts\(\) is now mcmc\.verdict\.by_site"):
        assert mcmc.verdicts() == mcmc.verdict.by_site


def test_before_a_run_there_is_no_verdict():
    common = {"target_epsilon": 1.0, "target_delta": 1e-5}
    mcmc = dpppl.MCMC(dpppl.DPSGLD(model), num_warmup=10, num_samples=10, **common)
    for runner in (mcmc, dpppl.SVI(model, AutoNormal(model), **common), dpppl.NoiseAware(model, **common)):
        with pytest.raises(dpppl.ConfigurationError, match="`run` must be called before `verdict`"):
            _ = runner.verdict
