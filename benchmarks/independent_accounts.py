"""Epsilon against independent values: exact formulas, dp_accounting's PLD from both sides, Opacus' PRV and RDP accountants.

    python benchmarks/independent_accounts.py             # a table; fails if an epsilon is too small, or 1 % too large
    python benchmarks/independent_accounts.py --write     # also writes independent_accounts.json, which a test reads

Opacus is asked where it can be imported (`pip install opacus`); its accountants need no more than NumPy and SciPy, so a folder `opacus`
on PYTHONPATH that holds an empty __init__.py, optimizers.py with `class DPOptimizer: pass`, and accountants of its wheel will do, without
PyTorch.
"""

import argparse
import itertools
import json
import math
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


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--every", type=int, default=1, help="only every n-th setting")
    options = parser.parse_args(arguments)
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
