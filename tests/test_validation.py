import functools
import inspect
import math

import numpy as np
import pytest

import dpppl
from dpppl import accounting, information_flow
from dpppl.contrib import audit, pages, plotting, registry, synthetic, tuning, uncertainty
from dpppl.errors import ConfigurationError
from dpppl.validation import check_num_data, check_target, positive, positive_integer

NUMBERS = [  # a check, the type of its numbers, what it takes, what it does not, and what it says then
    (positive, float, (2, 2.0, np.float32(2.0), np.int64(2)), (0, -1.0, math.nan, math.inf, 10**400, True, "1", None, np.ones(1), 1j), ""),
    (positive_integer, int, (2, np.int32(2), np.uint8(2)), (0, -2, 3.0, np.float64(3.0), True, "3", None), "a positive integer"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "kind", "right", "wrong", "words"), NUMBERS)
def test_numbers_are_made_pythons_or_refused_by_name(check, kind, right, wrong, words):
    for value in right:
        found = check(value, name="num_steps")
        assert found == 2 and type(found) is kind
    for value in wrong:
        with pytest.raises(ConfigurationError, match=f"^num_steps must be {words}"):
            check(value, name="num_steps")
    for value, told in ((-77123, "a negative number"), (0, "0")):
        with pytest.raises(ConfigurationError, match=f"got {told}"):
            check(value, name="num_steps")


def test_targets():
    for epsilon, delta in [(None, None), (None, 0.5), (1.0, 1e-5), (50, 1e-300), (1e-3, 1e-3)]:
        check_target(epsilon, delta)
    for epsilon, delta, message in [
        (1.0, None, "target_epsilon needs target_delta"),
        (0.0, 1e-5, "target_epsilon must be positive"),
        (math.inf, 1e-5, "target_epsilon must be positive"),
        (None, 1.0, "target_delta 1.0 must be in"),
        (1.0, 0.0, "target_delta must be positive"),
        (1.0, "1e-5", "target_delta must be a positive number"),
        (1e-6, 0.9, r"seem to be swapped: write target_epsilon=0.9, target_delta=1e-06\."),
        (1e-5, np.float32(0.5), "swapped"),
        (1e-9, 1e-6, "swapped"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            check_target(epsilon, delta)


def test_a_declared_number_of_rows_is_that_of_the_rows():
    check_num_data(None, 400)
    check_num_data(400, 400)
    for declared in (100, 399, 401):
        with pytest.raises(ConfigurationError, match=f"num_data={declared} is declared, and there are 400 rows"):
            check_num_data(declared, 400)


SCHEMA = synthetic.Schema((synthetic.Category("sex", ("F", "M")),))
RETURNED = {
    "AuditResult", "CellDetails", "CellFit", "Checked", "Combined", "Likelihood", "Plan", "PrivacyReport", "PrivacySpent", "PrivateScale",
    "PrivateScore", "ProofReport", "Replayed", "Roles", "SVIResult", "SurvivalCurve", "TradeOff", "VarianceParts",
}  # fmt: skip
"""Records that functions return, and a tuple for who writes a door: nobody calls these."""
WITHOUT_A_RUN = {
    dpppl.MCMC: "run warmup get_samples get_extra_fields get_weights verdicts print_summary to_arviz privacy_plan privacy_report",
    dpppl.NoiseAware: "run sample_again get_samples print_summary to_arviz privacy_plan privacy_report",
    dpppl.SVI: "run init update evaluate get_params estimate_elbo estimate_accuracy privacy_plan privacy_report",
    dpppl.SVIResult: "averaged_params noise_aware_params sample_posterior to_arviz privacy_report",
    dpppl.PrivacyReport: "epsilon_at epsilon_for_group to_dict to_json", dpppl.PrivateScale: "epsilon_at",
    dpppl.PrivateScore: "epsilon_at interval p_value", dpppl.PrivacyLedger: "open admits events_of remaining report",
    accounting.TradeOff: "delta bayes_risk false_negative_rate true_positive_rate positive_predictive_value inference_success",
    accounting.SelectionEvent: "draw", accounting.Plan: "width_at", dpppl.Poisson: "of_batch",
    synthetic.Schema: "encoded from_json", synthetic.Combined: "interval",
}  # fmt: skip
"""By class, methods that users call: on an object without attributes, so that nothing else is looked at first."""


def public():
    """Functions and classes that users call, by name, and what they are inside."""
    for module in (dpppl, accounting, audit, information_flow, plotting, synthetic, uncertainty):
        for name in set(module.__all__) - RETURNED:
            found = getattr(module, name)
            if callable(found) and not (isinstance(found, type) and issubclass(found, Exception)):
                yield f"{module.__name__}.{name}", found, found
    for function in (tuning.tune, pages.to_html, registry.card):
        yield function.__name__, function, function
    for cls, names in WITHOUT_A_RUN.items():
        for name in names.split():
            found = getattr(cls, name)
            bound = functools.partial(found, SCHEMA if cls is synthetic.Schema else object.__new__(cls))
            yield f"{cls.__name__}.{name}", found if inspect.ismethod(found) else bound, found


def required(function):
    """Names of the arguments that a call has to give."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    given = inspect.signature(function).parameters.values()
    return [p.name for p in given if p.default is p.empty and p.kind in kinds and p.name not in ("self", "svi")]


TAKES_ANYTHING = ("dpppl.DPSG", "dpppl.Public", "MCMC.", "NoiseAware.", "SVI.")
"""What a kernel or a run is given is refused with the model and the data: `refusals`."""


def test_every_public_function_says_what_is_wrong_with_its_arguments():
    """A name that it does not have, no argument, too many, objects of no kind: the message names the function or an argument, and
    what it takes."""
    wrong, count = {}, 0
    for name, call, function in public():
        needed = required(function)
        calls = {"a name": ((), {"zzz": 1}), "many": ((object(),) * 40, {})}
        calls |= {"none": ((), {}), "objects": ((), dict.fromkeys(needed, object()))} if needed else {}
        if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(function).parameters.values()):
            del calls["many"]
        for what, (args, kwargs) in calls.items():
            if what == "objects" and name.startswith(TAKES_ANYTHING):
                continue
            count += 1
            try:
                call(*args, **kwargs)
                wrong[name, what] = "nothing was raised"
            except dpppl.DPPPLError as error:
                known, words = (
                    [name.rpartition(".")[2], *inspect.signature(function).parameters],
                    ("must", "needs", "give", ":", ";"),
                )
                if not all(any(each in str(error) for each in some) for some in (known, words)):
                    wrong[name, what] = str(error)
            except Exception as error:
                wrong[name, what] = repr(error)
    assert not wrong and count > 250, (count, wrong)
