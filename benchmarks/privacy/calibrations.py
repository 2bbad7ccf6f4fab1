"""Random calibrations: of what was asked, is .99 to 1 spent, and how long does it take?

    python benchmarks/privacy/calibrations.py --number 200

Targets epsilon .05 to 20 at delta 1e-9 to 1e-4, or advantages .01 to .5 of the largest; full batches and Poisson rates from .0005; 1 to 10,000 steps.
"""

import argparse
import time

import numpy as np

from dpppl import accounting
from dpppl.accounting import GaussianEvent


def draw(rng):
    """One calibration: the share of its target that is spent, and what it was."""
    rate = 1.0 if rng.random() < 0.3 else float(10 ** rng.uniform(-3.3, -0.3))
    steps, delta = int(10 ** rng.uniform(0, 4)), float(10 ** rng.uniform(-9, -4))

    def event(sigma):
        return GaussianEvent(noise_multipliers=((sigma, steps),), sampling_rate=rate)

    if rng.random() < 0.25:
        # Without noise, an attack's advantage is the chance that a row is drawn at all.
        target = float(10 ** rng.uniform(-2, np.log10(0.5)) * -np.expm1(steps * np.log1p(-min(rate, 1 - 1e-12))))
        noise = accounting.calibrate_advantage(event, target)
        spent, what = accounting.delta(event(noise), 0.0), "advantage"
    else:
        target = float(10 ** rng.uniform(np.log10(0.05), np.log10(20)))
        noise = accounting.calibrate_noise_multiplier(event, target, delta)
        spent, what = accounting.epsilon(event(noise), delta), f"epsilon at {delta:.2g}"
    return spent / target, f"{what} {target:.3g}, rate {rate:.3g}, {steps} steps: noise {noise:.4g}"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rng, shares, seconds = np.random.default_rng(options.seed), [], []
    for _ in range(options.number):
        start = time.perf_counter()
        share, what = draw(rng)
        seconds.append(time.perf_counter() - start)
        shares.append(share)
        if not 0.99 <= share <= 1.0:
            print(f"{share:.5f} of {what}")
    outside = int(np.sum((np.array(shares) < 0.99) | (np.array(shares) > 1.0)))
    print(
        f"{options.number} calibrations: {outside} outside [.99, 1]; spent {min(shares):.5f} to {max(shares):.5f}; median "
        f"{np.median(seconds):.2f} s, longest {max(seconds):.1f} s"
    )
    return outside


if __name__ == "__main__":
    raise SystemExit(main())
