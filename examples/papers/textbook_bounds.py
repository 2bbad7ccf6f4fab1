"""Textbook bounds for teaching and comparison, and how large a Langevin step may be for a given epsilon.

None of the published bounds here sets anything in this library: runs are accounted by `dpppl.accounting.epsilon`.

Step sizes are in the convention of Li et al. 2019 and Wang et al. 2015: theta moves by eta times the mean gradient plus
Gaussian noise of variance eta / num_data. In the time of the diffusion that is h = eta / num_data at temperature 1/2,
and on Poisson batches the noise multiplier is sampling_rate sqrt(num_data / eta) / clipping_norm.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import brentq

from dpppl.accounting import privacy_spent
from dpppl.accounting.curves import gaussian_epsilon
from dpppl.accounting.events import GaussianEvent, round_down
from dpppl.accounting.privacy_spent import check_delta
from dpppl.contrib.plotting.axes import BLUE, GREY, ORANGE, SKY, new_axes
from dpppl.errors import ConfigurationError
from examples.papers.central_limit_gdp import approximate_epsilon

# Li et al. publish no constants. These two are backed out of their worked example: a bound of 0.103 for epsilon = 0.1,
# delta = 1e-5, 50,000 rows, 10,000 steps, L = 1, read as the first of decreasing steps or as a constant step.
LI_2019_DECREASING = 0.909
LI_2019_CONSTANT = 0.0422


def basic_composition(epsilon: float, delta: float, num_accesses: int) -> tuple[float, float]:
    """(epsilon, delta) of `num_accesses` adaptive uses of an (epsilon, delta)-DP mechanism: both are multiplied.

    Guarantee: an upper bound (Dwork, Roth 2014, theorem 3.16).

    >>> basic_composition(0.1, 0.0, 10)
    (1.0, 0.0)
    """
    _check(epsilon, delta, num_accesses)
    return num_accesses * epsilon, min(1.0, num_accesses * delta)


def advanced_composition(epsilon: float, delta: float, num_accesses: int, slack: float) -> tuple[float, float]:
    """(epsilon', k delta + slack) of k = `num_accesses` adaptive uses of an (epsilon, delta)-DP mechanism, with
    epsilon' = epsilon sqrt(2 k log(1/slack)) + k epsilon (e^epsilon - 1).

    - **epsilon**, **delta** - of one use.
    - **num_accesses** - number of uses.
    - **slack** - what delta' has beyond k delta, in (0, 1).

    Guarantee: an upper bound (Dwork, Roth 2014, theorem 3.20). For small k `basic_composition` is smaller.

    >>> advanced_composition(0.01, 0.0, 1000, 1e-5)[0] < basic_composition(0.01, 0.0, 1000)[0]
    True
    """
    _check(epsilon, delta, num_accesses)
    check_delta(slack)
    growth = num_accesses * epsilon * math.expm1(epsilon) if epsilon < 700 else math.inf
    return epsilon * math.sqrt(-2 * num_accesses * math.log(slack)) + growth, min(1.0, num_accesses * delta + slack)


def amplification_by_sampling(epsilon: float, delta: float, sampling_rate: float) -> tuple[float, float]:
    """(log(1 + q (e^epsilon - 1)), q delta): an (epsilon, delta)-DP mechanism run on a random part q of the rows.

    Guarantee: an upper bound under add/remove for Poisson sampling at rate q; under replace-one for batches of fixed
    size q num_data, where (epsilon, delta) must then be the mechanism's replace-one guarantee.
    Reference: Balle, Barthe, Gaboardi 2018, theorems 8 and 9.

    >>> round(amplification_by_sampling(1.0, 1e-5, 0.01)[0], 4)
    0.017
    """
    _check(epsilon, delta, 1)
    if not 0 < sampling_rate <= 1:
        raise ConfigurationError(f"sampling_rate {sampling_rate} must be in (0, 1].")
    if epsilon > 1:  # the same number without overflow
        amplified = epsilon + math.log(sampling_rate + (1 - sampling_rate) * math.exp(-epsilon))
    else:
        amplified = math.log1p(sampling_rate * math.expm1(epsilon))
    return amplified, sampling_rate * delta


def compared(event: GaussianEvent, delta: float) -> dict[str, float]:
    """Epsilon at `delta` of accesses that are alike, by every rule: textbook bounds and today's accountants.

    - **event** - full batches or Poisson sampling with one noise multiplier, zero-out or add/remove.

    "tight" is `accounting.epsilon`; "RDP" the moments accountant; "advanced composition" and "basic composition" use an access's
    own epsilon, at a delta of delta / 2T, after amplification by sampling where there is any, and "without amplification" the
    better of both without it. All are upper bounds but "GDP, central limit (approximate)", which may be too small.

    Raises ConfigurationError for other events.

    >>> from dpppl.accounting import GaussianEvent
    >>> found = compared(GaussianEvent(noise_multipliers=((2.0, 1000),), sampling_rate=0.01), 1e-5)
    >>> round(found["tight"], 2), round(found["advanced composition"], 2), round(found["basic composition"], 2)
    (0.62, 22.01, 88.49)
    """
    check_delta(delta)
    if len(event.noise_multipliers) != 1 or event.batch_size is not None or event.neighboring_relation == "replace_one":
        raise ConfigurationError(
            "compared is for full batches or Poisson sampling with one noise multiplier, zero-out or add/remove."
        )
    ((sigma, count),) = event.noise_multipliers

    def composed(rate: float) -> tuple[float, float]:
        one = amplification_by_sampling(
            gaussian_epsilon(1 / sigma, delta / (2 * count * rate)), delta / (2 * count * rate), rate
        )
        return basic_composition(*one, count)[0], advanced_composition(*one, count, delta / 2)[0]

    found = {
        "tight": privacy_spent.epsilon(event, delta),
        "GDP, central limit (approximate)": approximate_epsilon(event, delta),
        "RDP": privacy_spent.epsilon(event, delta, "rdp"),
    }
    basic, advanced = composed(event.sampling_rate)
    found |= {"advanced composition": advanced, "basic composition": basic}
    if event.sampling_rate < 1:
        found["without amplification"] = min(composed(1.0))
    return found


def bounds_picture(event: GaussianEvent, delta: float, *, axes: Any = None) -> Any:
    """Epsilon by the number of accesses, by our accountant and by textbook rules: see `compared`.

    - **event**: full batches or Poisson sampling with one noise multiplier; drawn up to its number of accesses.
    - **delta**: at which epsilon is meant.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    The dashed line is an approximation that may be too small; all others are bounds. Returns the Axes.

    >>> axes = bounds_picture(GaussianEvent(noise_multipliers=((10.0, 100),)), 1e-5)
    >>> axes.get_ylabel()
    'epsilon at delta 1e-05'
    """
    axes = new_axes(axes, figsize=(6.0, 4.0))
    ((sigma, most),) = event.noise_multipliers
    counts = np.unique(np.geomspace(1, most, 12).astype(int))
    rows = [compared(replace(event, noise_multipliers=((sigma, int(n)),)), delta) for n in counts]
    looks = {
        "tight": ("black", "-"), "GDP, central limit (approximate)": (ORANGE, "--"), "RDP": (BLUE, "-"),
        "advanced composition": (SKY, "-."), "basic composition": (GREY, "-."), "without amplification": (GREY, ":"),
    }  # fmt: skip
    for name in rows[0]:
        colour, style = looks[name]
        axes.plot(counts, [row[name] for row in rows], color=colour, linestyle=style, label=name)
    axes.set(xscale="log", yscale="log", xlabel="accesses", ylabel=f"epsilon at delta {delta:g}")
    axes.legend(frameon=False, fontsize="small")
    return axes


def li_2019_decreasing_step_size(
    epsilon: float,
    delta: float,
    *,
    num_data: int,
    num_steps: int,
    clipping_norm: float,
    constant: float = LI_2019_DECREASING,
) -> float:
    """Theorem 3 of Li et al. 2019 as published: largest first step eta_1 of eta_t = eta_1 t^(-1/3),
    epsilon^2 N / (c L^2 T^(2/3) log(1/delta)).

    - **epsilon**, **delta** - the target.
    - **num_data** - number of rows, N.
    - **num_steps** - steps, T.
    - **clipping_norm** - bound on a row's gradient, L.
    - **constant** - their c_2^2, which depends on all other arguments and is not published; the default is backed out of their
      worked example.

    Not a guarantee: see `largest_step_size` for a valid bound.

    >>> round(li_2019_decreasing_step_size(0.1, 1e-5, num_data=50_000, num_steps=10_000, clipping_norm=1.0), 3)
    0.103
    """
    _check_steps(epsilon, delta, num_data, num_steps, clipping_norm)
    return epsilon**2 * num_data / (constant * clipping_norm**2 * math.pow(num_steps, 2 / 3) * math.log(1 / delta))


def li_2019_constant_step_size(
    epsilon: float,
    delta: float,
    *,
    num_data: int,
    num_steps: int,
    clipping_norm: float,
    constant: float = LI_2019_CONSTANT,
) -> float:
    """Theorem 4 of Li et al. 2019 as published: largest constant step eta, epsilon^2 N / (c L^2 T log(1/delta)).

    - **epsilon**, **delta** - the target.
    - **num_data** - number of rows, N.
    - **num_steps** - steps, T.
    - **clipping_norm** - bound on a row's gradient, L.
    - **constant** - their c^2, as in `li_2019_decreasing_step_size`.

    Not a guarantee.

    >>> round(li_2019_constant_step_size(0.1, 1e-5, num_data=50_000, num_steps=10_000, clipping_norm=1.0), 3)
    0.103
    """
    _check_steps(epsilon, delta, num_data, num_steps, clipping_norm)
    return epsilon**2 * num_data / (constant * clipping_norm**2 * num_steps * math.log(1 / delta))


def wang_2015_step_size(epsilon: float, delta: float, *, num_data: int, num_steps: int, clipping_norm: float) -> float:
    """Step size of Wang et al. 2015 as printed by Li et al. 2019:
    epsilon^2 N / (128 L^2 T log(2.5 T / delta) log(2 / delta)).

    - **epsilon**, **delta** - the target.
    - **num_data** - number of rows, N.
    - **num_steps** - steps, T.
    - **clipping_norm** - bound on a row's gradient, L.

    For the worked example Li et al. state 1.54e-6; the formula they print gives 1.48e-6.

    >>> round(1e6 * wang_2015_step_size(0.1, 1e-5, num_data=50_000, num_steps=10_000, clipping_norm=1.0), 2)
    1.48
    """
    _check_steps(epsilon, delta, num_data, num_steps, clipping_norm)
    logs = math.log(2.5 * num_steps / delta) * math.log(2 / delta)
    return epsilon**2 * num_data / (128 * clipping_norm**2 * num_steps * logs)


def largest_step_size(
    epsilon: float,
    delta: float,
    *,
    num_data: int,
    num_steps: int,
    clipping_norm: float,
    sampling_rate: float,
    power: float = 0.0,
    accountant: str = "auto",
    max_values: int = 64,
) -> float:
    """Largest first step eta_1 for which the run is (epsilon, delta)-DP, by root finding on the accountant.

    - **epsilon**, **delta** - the target.
    - **num_data** - number of rows.
    - **num_steps** - steps.
    - **clipping_norm** - bound on a row's gradient.
    - **sampling_rate** - rate of the Poisson batches.
    - **power** - steps are eta_t = eta_1 t^-power: 0 for a constant step, 1/3 for the decreasing steps of Li et al. 2019.
    - **accountant** - as for `accounting.epsilon`.
    - **max_values** - the most distinct noise multipliers of a schedule; fewer are faster and more cautious.

    Neighbouring data sets differ by zeroing out one row, and Langevin noise is the only noise.

    Guarantee: the returned step's own epsilon, by the accountant named, is at most `epsilon`.
    Raises ValueError where no step between 1e-12 and 1e3 meets the target.

    >>> setting = dict(num_data=50_000, num_steps=10_000, clipping_norm=1.0, sampling_rate=1.0)
    >>> round(largest_step_size(0.1, 1e-5, **setting), 5)
    0.00528
    """
    _check_steps(epsilon, delta, num_data, num_steps, clipping_norm)
    settings: Any = dict(
        num_data=num_data, num_steps=num_steps, clipping_norm=clipping_norm, sampling_rate=sampling_rate
    )
    settings |= dict(power=power, max_values=max_values)

    def excess(log_step: float) -> float:
        event = langevin_event(math.exp(log_step), **settings)
        return float(np.log(np.clip(privacy_spent.epsilon(event, delta, accountant) / epsilon, 1e-9, 1e9))) + 5e-4

    return math.exp(brentq(excess, math.log(1e-12), math.log(1e3), xtol=2e-4))


def langevin_event(
    step_size: float,
    *,
    num_data: int,
    num_steps: int,
    clipping_norm: float,
    sampling_rate: float,
    power: float = 0.0,
    max_values: int = 64,
) -> GaussianEvent:
    """What a run of stochastic gradient Langevin dynamics with steps step_size t^-power asks of the data.

    - **step_size** - the first step.
    - **num_data**, **num_steps**, **clipping_norm**, **sampling_rate**, **power**, **max_values** - as for `largest_step_size`.

    >>> langevin_event(0.1, num_data=10_000, num_steps=5, clipping_norm=4.0, sampling_rate=0.01).noise_multipliers
    ((0.7905694150420949, 5),)
    """
    steps = step_size * np.arange(1, num_steps + 1) ** -power
    sigmas = sampling_rate * np.sqrt(num_data / steps) / clipping_norm
    return GaussianEvent(noise_multipliers=round_down(sigmas, max_values), sampling_rate=sampling_rate)


def _check(epsilon: float, delta: float, num_accesses: int) -> None:
    if not epsilon >= 0:
        raise ConfigurationError(f"epsilon {epsilon} must not be negative.")
    if not 0 <= delta <= 1:
        raise ConfigurationError(f"delta {delta} must be in [0, 1].")
    if num_accesses < 1:
        raise ConfigurationError(f"num_accesses {num_accesses} must be at least 1.")


def _check_steps(epsilon: float, delta: float, num_data: int, num_steps: int, clipping_norm: float) -> None:
    check_delta(delta)
    for name, value in (
        ("epsilon", epsilon),
        ("num_data", num_data),
        ("num_steps", num_steps),
        ("clipping_norm", clipping_norm),
    ):
        if not 0 < value < math.inf:
            raise ConfigurationError(f"{name} {value} must be positive and finite.")
