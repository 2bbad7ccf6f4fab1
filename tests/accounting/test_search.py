"""How settings are searched for: few tries, and never above the target."""

import math

import pytest

from dpppl.accounting import calibration, curves
from dpppl.accounting.curves import Curve


@pytest.mark.parametrize("power", [-1.0, -0.5, -2.0, -0.05])
def test_a_smooth_cost_needs_few_tries(power):
    """Secants of logarithms: of a power of the value, the second is right."""
    tried = []

    def cost(value):
        tried.append(value)
        return 3.0 * value**power

    low, high = (0.5 / 3.0) ** (1.0 / power), (2.0 / 3.0) ** (1.0 / power)
    found = calibration._refine(cost, 1.0, (low, 0.5), (high, 2.0))
    assert 1.0 - calibration._TOLERANCE <= 3.0 * found**power <= 1.0 and len(tried) <= 3


def test_a_bent_cost_needs_a_few_tries_more():
    tried = []

    def cost(value):
        tried.append(value)
        return 1.0 / value + 1.0 / value**3 + 1e-2

    found = calibration._refine(cost, 1.0, (1e4, cost(1e4)), (1e-3, cost(1e-3)))
    assert 1.0 - calibration._TOLERANCE <= cost(found) <= 1.0 and len(tried) <= 2 + 12


def test_a_cost_that_jumps_is_met_from_below_by_halving():
    tried = []

    def cost(value):
        tried.append(value)
        return 0.1 if value < 7.3 else 5.0

    found = calibration._refine(cost, 1.0, (1.0, 0.1), (100.0, 5.0))
    assert 7.3 - 1e-6 < found < 7.3 and len(tried) < 150


def test_a_group_that_no_epsilon_covers_has_an_infinite_one():
    sure = Curve(epsilon=lambda delta: math.inf, delta=lambda epsilon: 1.0, name="nothing is hidden")
    assert curves._group(sure, 2).epsilon(1e-5) == math.inf
    orders = curves._FEW_ORDERS
    assert list(orders) == sorted(set(orders)) and 1.0 < orders[0] < 2.0 and orders[-1] >= 1024
