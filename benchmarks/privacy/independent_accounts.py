"""Epsilon against independent values: exact formulas, dp_accounting's PLD from both sides, Opacus' PRV and RDP accountants.

    python benchmarks/privacy/independent_accounts.py             # a table; fails if an epsilon is too small, or 1 % too large
    python benchmarks/privacy/independent_accounts.py --write     # also writes independent_accounts.json, which a test reads
    python benchmarks/privacy/independent_accounts.py --pld       # our PLD and dp_accounting's: values, times, small deltas

Opacus is asked where it can be imported (`pip install opacus`); its accountants need no more than NumPy and SciPy, so a folder `opacus`
on PYTHONPATH that holds an empty __init__.py, optimizers.py with `class DPOptimizer: pass`, and accountants of its wheel will do, without
PyTorch.
"""

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path

import numpy as np

from dpppl import accounting
from dpppl.accounting import GaussianEvent

FILE = Path(__file__).with_suffix(".json")
SETTINGS = [
    *itertools.product((1.0,), (1.0, 5.0, 20.0, 50.0, 100.0), (1, 100, 1_000, 10_000), (1e-5, 1e-7)),
    *itertools.product((0.1, 0.01), (0.8, 1.0, 2.0), (10, 100, 1_000), (1e-5, 1e-7)),
    *itertools.product((0.001,), (0.8,), (10,), (1e-5, 1e-7)),
]
LARGEST = 20.0


def exact(sigma, steps, delta):
    """Of full batches (Balle, Wang 2018, theorem 8), with 60 digits."""
    import mpmath as mp

    with mp.workdps(60):
        mu = mp.sqrt(steps) / mp.mpf(sigma)
        low, high = mp.mpf(0), mp.mpf(10) ** 4
        for _ in range(160):
            middle = (low + high) / 2
            found = mp.ncdf(mu / 2 - middle / mu) - mp.exp(middle) * mp.ncdf(-mu / 2 - middle / mu)
            low, high = (middle, high) if found > delta else (low, middle)
        return float(high)


def pld(rate, sigma, steps, delta, epsilon):
    """Epsilon from below and from above, by dp_accounting."""
    from dp_accounting.pld import privacy_loss_distribution

    interval = float(np.clip(epsilon / 3e4, 5e-6, 1e-3) / max(1.0, math.sqrt(steps) / 30))
    return [
        privacy_loss_distribution.from_gaussian_mechanism(
            sigma, sampling_prob=rate, pessimistic_estimate=pessimistic, value_discretization_interval=interval,
            use_connect_dots=pessimistic,
        ).self_compose(steps).get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    ]  # fmt: skip


def opacus(rate, sigma, steps, delta, epsilon):
    """By its PRV accountant (an upper end) and by RDP; None where it is not installed or gives up."""
    try:
        from opacus.accountants import PRVAccountant, RDPAccountant
    except ImportError:
        return None, None
    found = []
    for kind, settings in ((PRVAccountant, {"eps_error": max(0.01 * epsilon, 0.002)}), (RDPAccountant, {})):
        accountant = kind()
        accountant.history = [(sigma, rate, steps)]
        try:
            found.append(float(accountant.get_epsilon(delta, **settings)))
        except (RuntimeError, ValueError, MemoryError):
            found.append(None)
    return tuple(found)


PLD_SETTINGS = list(itertools.product(
    ((0.01, 1.0, 1_000), (0.1, 2.0, 1_000), (0.001, 0.6, 100_000), (2.561e-5, 0.62054, 96_712)), (1e-5, 1e-8, 1e-11, 1e-14)
))  # fmt: skip


def timed(function):
    start = time.perf_counter()
    return function(), time.perf_counter() - start


def compare_plds():
    """Epsilon by our PLD and by dp_accounting's, with its default interval, over that of tests/tight.py, right to 1e-4."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    sys.path.insert(0, str(FILE.parents[2] / "tests"))
    import tight

    def theirs(rate, sigma, steps, delta):
        accountant = PLDAccountant()
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)
        return accountant.get_epsilon(delta)

    def ours(rate, sigma, steps, delta):
        return accounting.epsilon(GaussianEvent(noise_multipliers=((sigma, steps),), sampling_rate=rate), delta, "pld")

    print("  rate   noise   steps  delta    truth   dpppl / truth   dp_accounting / truth   seconds of each")
    below = {"dpppl": 0, "dp_accounting": 0}
    for (rate, sigma, steps), delta in PLD_SETTINGS:
        truth = tight.epsilon([(sigma, steps)], rate, delta)
        (own, seconds), (their, their_seconds) = (timed(lambda: f(rate, sigma, steps, delta)) for f in (ours, theirs))  # noqa: B023
        below["dpppl"] += own < truth * (1 - 2e-4)
        below["dp_accounting"] += their < truth * (1 - 2e-4)
        print(
            f"{rate:9.3g} {sigma:6g} {steps:7d} {delta:6g} {truth:8.4f} {own / truth:12.4f} {their / truth:18.4f} "
            f"{seconds:18.2f} {their_seconds:6.2f}", flush=True,
        )  # fmt: skip
    print(", ".join(f"{name} below the truth in {count} of {len(PLD_SETTINGS)}" for name, count in below.items()))
    return below["dpppl"]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--every", type=int, default=1, help="only every n-th setting")
    parser.add_argument("--pld", action="store_true", help="compare with dp_accounting's PLD instead")
    options = parser.parse_args(arguments)
    if options.pld:
        return compare_plds()
    rows, wrong = [], 0
    for rate, sigma, steps, delta in SETTINGS[:: options.every]:
        start = time.perf_counter()
        own = accounting.epsilon(GaussianEvent(noise_multipliers=((sigma, steps),), sampling_rate=rate), delta)
        seconds = time.perf_counter() - start
        if not 0.01 < own < LARGEST:
            continue
        below, above = [exact(sigma, steps, delta)] * 2 if rate == 1 else pld(rate, sigma, steps, delta, own)
        prv, rdp = opacus(rate, sigma, steps, delta, own)
        fine = below * (1 - 1e-7) <= own <= 1.01 * above and (rdp is None or own <= rdp * (1 + 1e-6))
        wrong += not fine
        kept = dict(below=math.floor(1e5 * below) / 1e5, above=math.ceil(1e5 * above) / 1e5)  # rounded outwards
        kept |= {name: None if v is None else math.ceil(1e5 * v) / 1e5 for name, v in (("prv", prv), ("rdp", rdp))}
        rows.append(dict(rate=rate, sigma=sigma, steps=steps, delta=delta) | kept)
        shown = "  ".join("-".rjust(9) if v is None else f"{v:9.5f}" for v in (own, below, above, prv, rdp))
        print(
            f"{rate:6g} {sigma:5g} {steps:6d} {delta:6g}  {shown}  {seconds:5.2f} s{'' if fine else '  WRONG'}",
            flush=True,
        )
    print(f"{len(rows)} settings (rate, noise, steps, delta: dpppl, from below, from above, PRV, RDP); {wrong} wrong")
    if options.write:
        FILE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
