"""The cost of a private full-batch step where rows share work, in units of a gradient of the log posterior without privacy.

A Gaussian process with 8 inducing points, with a solution common to all rows and with one for each (FITC), and a
multivariate normal distribution with an LKJ prior; 4,000 rows. Steps of `DPSGLD` on the full batch, with rows differentiated one by
one ("by row") and as the library does; beside them NumPyro's potential energy, which NUTS differentiates, all in scans,
interleaved. OPENBLAS_NUM_THREADS=1 keeps LAPACK's threads from waiting for each other.

python benchmarks/speed/shared_work.py [--seconds 10] [--rows 4000]
"""

import argparse
import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.infer.util import initialize_model, potential_energy

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.speed.ghost import STEPS, interleaved, looped
from dpppl.access import door
from dpppl.row_program.hoist import gradient
from models.correlated_normal import correlated_normal
from models.gaussian_process import gaussian_process


def problems(num_rows):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, num_rows)
    pairs = tuple(jnp.asarray(v, jnp.float32) for v in (x, np.sin(3.0 * x) + 0.3 * rng.standard_normal(num_rows)))
    fitc = functools.partial(gaussian_process, residual=True)
    yield "Gaussian process, 8 inducing points", gaussian_process, pairs
    yield "the same, FITC", fitc, pairs
    for size in (2, 5, 10):
        rows = jnp.asarray(rng.standard_normal((num_rows, size)), jnp.float32)
        yield f"normal in {size} dimensions, LKJ", correlated_normal, (rows,)


def chain(model, arrays, differentiate):
    """Steps of DPSGLD on all rows, and its first state; `differentiate` stands for the library's `gradient`."""
    mcmc = dpppl.MCMC(
        dpppl.DPSGLD(model, clipping_norm=1.0), num_warmup=0, num_samples=1_000, target_epsilon=1.0, target_delta=1e-6,
        print_cost=False,
    )  # fmt: skip
    kernel = mcmc.calibrated_kernel()
    state = kernel.init(dpppl.secret_key(), 0, None, arrays, {})

    def run(state, arrays):
        door.gradient = differentiate
        step = lambda state, _: (kernel.sample(state, arrays, {}), None)  # noqa: E731
        try:
            return lax.scan(step, state, length=STEPS)[0]
        finally:
            door.gradient = gradient

    return jax.jit(run), (state, arrays)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of measurements, each table")
    parser.add_argument("--rows", type=int, default=4_000)
    args = parser.parse_args()
    for name, model, arrays in problems(args.rows):
        z = initialize_model(jax.random.key(0), model, model_args=arrays)[0].z
        programs = {
            "NumPyro's gradient": (looped(jax.grad(lambda z, arrays, m=model: potential_energy(m, arrays, {}, z))), (z, arrays)),
            "step": chain(model, arrays, gradient),
            "step, by row": chain(model, arrays, jax.grad),
        }  # fmt: skip
        print(f"{name}, {args.rows} rows")
        interleaved(programs, args.seconds, "NumPyro's gradient")


if __name__ == "__main__":
    main()
