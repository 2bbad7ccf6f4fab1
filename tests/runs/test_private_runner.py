"""One vocabulary: `dpppl.Privacy`, and the same settings by themselves, in each runner."""

import inspect

import pytest
from numpyro.infer.autoguide import AutoNormal
from small_models import normal_mean as model

import dpppl
from dpppl.errors import ConfigurationError


def mcmc(clipping_norm=1.0, kernel=None, **settings):
    kernel = kernel or dpppl.DPSGLD(model, clipping_norm=clipping_norm)
    return dpppl.MCMC(kernel, num_warmup=5, num_samples=20, **settings)


WAYS = {
    "MCMC": mcmc,
    "SVI": lambda **settings: dpppl.SVI(model, AutoNormal(model), clipping_norm=1.0, **settings),
    "NoiseAware": lambda **settings: dpppl.NoiseAware(model, **settings),
}
COMMON = {
    "privacy", "target_epsilon", "target_delta", "noise_multiplier", "ledger", "reserve", "unit", "max_rows_per_unit",
    "num_data", "checkpoint", "print_cost", "mesh",
}  # fmt: skip
REST = {"reserve": 0.2, "unit": "person", "max_rows_per_unit": 3, "num_data": 50}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_privacy_is_the_same_as_its_settings_by_themselves(way):
    one = way(privacy=dpppl.Privacy(epsilon=1.0, delta=1e-5, **REST))
    other = way(target_epsilon=1.0, target_delta=1e-5, **REST)
    assert one.privacy == other.privacy and one.unit == other.unit
    assert str(one.privacy_plan()) == str(other.privacy_plan()) and "'person'" in str(one.privacy_plan())
    assert one.privacy_plan().num_data == 50 and 0.75 < one.privacy_plan().epsilon <= 0.8
    assert str(one.privacy_report()) == str(other.privacy_report())
    assert way(privacy=dpppl.Privacy(noise_multiplier=7.0)).privacy_plan().events == (
        way(noise_multiplier=7.0).privacy_plan().events
    )


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_privacy_that_does_not_fit_is_refused(way, tmp_path):
    known = inspect.signature(type(way(noise_multiplier=7.0))).parameters
    assert COMMON <= set(known)
    budget = dpppl.Privacy(epsilon=1.0, delta=1e-5)
    for settings, message in {
        "twice": (
            {"privacy": budget, "reserve": 0.1},
            r"and reserve outside: give all to Privacy\(\.\.\., reserve=",
        ),
        "a number": ({"privacy": 1.0}, r"privacy is a float; give privacy=dpppl.Privacy\("),
        "two noises": ({"privacy": dpppl.Privacy(epsilon=1.0, delta=1e-5, noise_multiplier=7.0)}, "noise_multiplier"),
        "misspelt": ({"target_epsilom": 1.0}, "did you mean target_epsilon?"),
        "no delta": ({"privacy": dpppl.Privacy(epsilon=1.0)}, "target_epsilon needs target_delta"),
        "folder": ({"privacy": budget, "checkpoint": tmp_path}, "cannot be written"),
    }.values():
        with pytest.raises(ConfigurationError, match=message):
            way(**settings)
    with pytest.raises(ConfigurationError, match="did you mean epsilon"):
        dpppl.Privacy(epsilom=1.0)


def test_a_kernel_and_its_runner_do_not_contradict_each_other():
    kernel = dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=7.0, num_data=50)
    alike = mcmc(kernel=kernel, num_data=50)
    assert alike.privacy_plan().events == mcmc(noise_multiplier=7.0, num_data=50).privacy_plan().events
    for settings in ({"num_data": 51}, {"noise_multiplier": 6.0}):
        with pytest.raises(ConfigurationError, match="is given to the kernel and to MCMC, and differs"):
            mcmc(kernel=kernel, **settings)
