import math

import numpy as np
import pytest

from dpppl.errors import ConfigurationError
from dpppl.validation import check_target, positive, positive_integer


def test_positive_numbers_become_floats():
    for value in (2, 2.0, np.float32(2.0), np.int64(2)):
        found = positive(value, name="step_size")
        assert found == 2.0 and type(found) is float


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, 10**400, True, "1", None, np.ones(1), 1j])
def test_what_is_no_positive_number_is_refused_by_name(value):
    with pytest.raises(ConfigurationError, match=r"^step_size must be "):
        positive(value, name="step_size")


def test_positive_integers_become_ints():
    for value in (3, np.int32(3), np.uint8(3)):
        found = positive_integer(value, name="num_steps")
        assert found == 3 and type(found) is int


@pytest.mark.parametrize("value", [0, -2, 3.0, np.float64(3.0), True, "3", None])
def test_what_is_no_positive_integer_is_refused_by_name(value):
    with pytest.raises(ConfigurationError, match=r"^num_steps must be a positive integer"):
        positive_integer(value, name="num_steps")


def test_targets():
    for epsilon, delta in [(None, None), (None, 0.5), (1.0, 1e-5), (50, 1e-300)]:
        check_target(epsilon, delta)
    for epsilon, delta, message in [
        (1.0, None, "target_epsilon needs target_delta"),
        (0.0, 1e-5, "target_epsilon must be positive"),
        (math.inf, 1e-5, "target_epsilon must be positive"),
        (None, 1.0, "target_delta 1.0 must be in"),
        (1.0, 0.0, "target_delta must be positive"),
        (1.0, "1e-5", "target_delta must be a positive number"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            check_target(epsilon, delta)
