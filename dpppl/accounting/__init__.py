"""Privacy accounting: events to (epsilon, delta), and targets to parameters. Host-side numbers only."""

from dpppl.accounting import bounds, gdp
from dpppl.accounting.accountants import PrivacySpent, delta, epsilon, group_epsilon, spent
from dpppl.accounting.calibration import (
    calibrate_noise_multiplier,
    calibrate_num_steps,
    calibrate_sampling_rate,
    calibrate_step_size,
)
from dpppl.accounting.events import GaussianEvent, round_down, to_dp_event

__all__ = [
    "GaussianEvent",
    "PrivacySpent",
    "bounds",
    "calibrate_noise_multiplier",
    "calibrate_num_steps",
    "calibrate_sampling_rate",
    "calibrate_step_size",
    "delta",
    "epsilon",
    "gdp",
    "group_epsilon",
    "round_down",
    "spent",
    "to_dp_event",
]
