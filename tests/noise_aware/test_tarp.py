"""The joint calibration error that benchmarks report."""

import numpy as np
import pytest

from benchmarks.lib.tarp import calibration_error


@pytest.mark.parametrize(
    ("width", "bias", "low", "high"), [(1.0, 0.0, 0.0, 0.03), (0.7, 0.0, 0.04, 0.3), (1.0, 0.7, 0.04, 0.3)]
)
def test_it_is_small_for_right_posteriors_alone(width, bias, low, high):
    """400 posteriors of three latents; where right, chance leaves .015, and .03 is passed in one of 100 seeds at most."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((400, 3))
    truths = centres + rng.standard_normal((400, 3))
    drawn = centres[:, None] + bias + width * rng.standard_normal((400, 200, 3))
    assert low <= calibration_error(drawn, truths, rng) < high
