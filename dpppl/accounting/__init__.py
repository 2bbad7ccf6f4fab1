"""Privacy accounting: events to (epsilon, delta), and targets to parameters. Host-side numbers only."""

from dpppl.accounting.accountants import PrivacySpent, delta, epsilon, group_epsilon, spent
from dpppl.accounting.additive import gaussian_mu_squared, rdp
from dpppl.accounting.calibration import (
    calibrate_advantage,
    calibrate_noise_multiplier,
    calibrate_num_steps,
    calibrate_sampling_rate,
    calibrate_step_size,
)
from dpppl.accounting.dp_events import from_dp_event, to_dp_event
from dpppl.accounting.events import GaussianEvent, round_down
from dpppl.accounting.planning import Plan, plan
from dpppl.accounting.prices import compare
from dpppl.accounting.selection import SelectionEvent
from dpppl.accounting.tradeoff import TradeOff, trade_off

__all__ = [
    "GaussianEvent",
    "Plan",
    "PrivacySpent",
    "SelectionEvent",
    "TradeOff",
    "calibrate_advantage",
    "calibrate_noise_multiplier",
    "calibrate_num_steps",
    "calibrate_sampling_rate",
    "calibrate_step_size",
    "compare",
    "delta",
    "epsilon",
    "from_dp_event",
    "gaussian_mu_squared",
    "group_epsilon",
    "plan",
    "rdp",
    "round_down",
    "spent",
    "to_dp_event",
    "trade_off",
]
