"""Memory maps of one process over many runs, of the same shapes and of differing ones, without jax.clear_caches().

A compiled program holds memory maps, of which Linux allows a process 65,530. Prints, every tenth run, the maps, the programs that
are alive, and the megabytes that the process holds.

Methods take turns.

python benchmarks/speed/many_runs.py [--runs 300] [--methods NoiseAware MCMC SVI] [--shapes same others]
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer.autoguide import AutoNormal

import dpppl

TARGET = {"target_epsilon": 3.0, "target_delta": 1e-5, "print_cost": False}


def model(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def noise_aware(x, y):
    dpppl.NoiseAware(model, num_samples=20, progress_bar=False, **TARGET).run(dpppl.secret_key(), x, y)


def chain(x, y):
    kernel = dpppl.DPSGLD(model, clipping_norm=1.0)
    mcmc = dpppl.MCMC(kernel, num_warmup=10, num_samples=40, progress_bar=False, **TARGET)
    mcmc.run(dpppl.secret_key(), x, y)


def variational(x, y):
    svi = dpppl.SVI(model, AutoNormal(model), optax.adam(0.01), clipping_norm=1.0, **TARGET)
    svi.run(dpppl.secret_key(), 5, x, y, progress_bar=False)


METHODS = {"NoiseAware": noise_aware, "MCMC": chain, "SVI": variational}


def held():
    """(memory maps, programs alive, megabytes)."""
    status = Path("/proc/self/status").read_text()
    kilobytes = int(status.split("VmRSS:")[1].split()[0])
    return (
        len(Path("/proc/self/maps").read_text().splitlines()),
        len(jax.devices()[0].client.live_executables()),
        kilobytes // 1024,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["MCMC"])
    parser.add_argument("--shapes", nargs="+", choices=["same", "others"], default=["same", "others"])
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{'shapes':>8}{'run':>6}{'maps':>8}{'programs':>10}{'MB':>7}")
    for shapes in args.shapes:
        for number in range(args.runs):
            rows = 200 if shapes == "same" else 201 + number
            x = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
            METHODS[args.methods[number % len(args.methods)]](x, (x[:, 0] > 0).astype(np.float32))
            if number % 10 == 9 or number < 2:
                print(f"{shapes:>8}{number + 1:>6}{held()[0]:>8}{held()[1]:>10}{held()[2]:>7}", flush=True)


if __name__ == "__main__":
    main()
