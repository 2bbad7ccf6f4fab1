"""Attack private inference on a model of your own: does it lose what its report says, and no more?

python examples/audit.py --epsilon 2.0
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from numpyro.infer.autoguide import AutoNormal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dpppl
import dpppl.contrib.audit
from models.linear_regression import linear_regression as model  # put your own here, and made-up rows

NUM_ROWS, NUM_STEPS, DELTA = 200, 16, 1e-5


def methods(epsilon):
    """Each method as it would run, at this epsilon."""
    budget = {"target_epsilon": epsilon, "target_delta": DELTA, "print_cost": False}
    settings = {"clipping_norm": 1.0, "subsampling": dpppl.FullBatch()}
    kernel = dpppl.DPSGLD(model, **settings)
    yield dpppl.MCMC(kernel, num_warmup=0, num_samples=NUM_STEPS, progress_bar=False, **budget), None
    yield dpppl.SVI(model, AutoNormal(model), **settings, **budget), NUM_STEPS
    yield dpppl.NoiseAware(model, num_samples=NUM_STEPS, progress_bar=False, **budget), None


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--num-trials", type=int, default=20_000, help="of white-box attacks")
    parser.add_argument("--attacks", nargs="+", default=["white_box", "one_run"])
    parser.add_argument("--methods", nargs="+", default=["MCMC", "SVI", "NoiseAware"])
    args = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((NUM_ROWS, 3)).astype(np.float32), np.ones(NUM_ROWS, np.float32)
    for method, num_steps in methods(args.epsilon):
        if (name := type(method).__name__) not in args.methods:
            continue
        for attack in args.attacks:
            options = {"attack": attack, "num_steps": num_steps, "num_trials": args.num_trials, "delta": DELTA}
            found = dpppl.contrib.audit.audit(method, *rows, **options)
            text = f"epsilon at least {found.epsilon_lower:.3f}, reported {found.epsilon_reported:.3f}"
            print(f"{name:10} {attack:10} {text}: {'consistent' if found.consistent else 'REFUTED'}", flush=True)


if __name__ == "__main__":
    main()
