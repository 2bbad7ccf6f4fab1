"""Privacy accounting: events to (epsilon, delta), and targets to parameters. Host-side numbers only.

In reading order:

    events        what was asked of the data, as plain numbers
    relations     neighbouring data sets: zero-out, add or remove, replace
    additive      costs that add up over accesses that earlier answers chose: mu^2 and Renyi divergence
    unit          the unit of privacy: a row, or the rows of a person
    privacy_spent events -> epsilon(delta), delta(epsilon)
    dp_events     from the events of dp_accounting to ours, and back
    curves        exact Gaussian, PLD and RDP behind one interface
    pld           privacy loss distributions, composed by a tilted Fourier transform
    losses        the privacy loss of one access, and on a grid
    calibration   target -> noise multiplier, steps, rate or step size
    looks         how a NoiseAware run spends its budget, and what its noise adds
    planning      what a budget buys, before any data: noise, widths, cost, a recommendation
    selection     the price of the best of a random number of runs
    prices        what several runs would cost, one after the other
    tradeoff      delta(epsilon) -> what an attack can achieve: error rates, advantage, mu, predictive value
"""

from dpppl.accounting.additive import gaussian_mu_squared, rdp
from dpppl.accounting.calibration import (
    calibrate_advantage,
    calibrate_noise_multiplier,
)
from dpppl.accounting.dp_events import from_dp_event, to_dp_event
from dpppl.accounting.events import GaussianEvent, round_down
from dpppl.accounting.planning import Plan, plan
from dpppl.accounting.prices import compare
from dpppl.accounting.privacy_spent import PrivacySpent, delta, epsilon, group_epsilon, spent
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
