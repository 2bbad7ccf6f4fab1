"""Attack private inference on a model of your own: does it lose what its report says, and no more?

python examples/audit.py --epsilon 2.0
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import optax
from numpyro.infer.autoguide import AutoNormal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dpppl
from models.linear_regression import linear_regression as model  # put your own here, and made-up rows


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--num-trials", type=int, default=40_000)
    parser.add_argument("--attacks", nargs="+", default=["white_box", "black_box"])
    args = parser.parse_args(arguments)
    settings, accesses = {"clipping_norm": 1.0, "subsampling": dpppl.FullBatch()}, {"num_steps": 16, "delta": 1e-5}
    rows = np.eye(4, 3, dtype=np.float32), np.ones(4, np.float32)
    target = {"target_epsilon": args.epsilon, "target_delta": 1e-5}
    kernel = dpppl.MCMC(dpppl.DPSGLD(model, **settings), num_warmup=0, num_samples=16, **target).calibrated_kernel()
    svi = dpppl.SVI(model, AutoNormal(model), optax.sgd(0.01), **settings, noise_multiplier=kernel.noise_multiplier)
    for audited in (kernel, svi):
        for attack in args.attacks:
            found = dpppl.audit.audit(audited, *rows, **accesses, attack=attack, num_trials=args.num_trials)
            text = f"epsilon at least {found.epsilon_lower:.3f}, reported {found.epsilon_reported:.3f}"
            print(f"{type(audited).__name__:8} {attack:10} {text}: {'consistent' if found.consistent else 'REFUTED'}")


if __name__ == "__main__":
    main()
