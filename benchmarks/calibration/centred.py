"""Is clipping unbiased? Posterior means under flat and centred clipping, over simulated data sets, without noise to speak of.

Truths come from the prior. The clipping norm is the median over data sets of the 2/3 quantile of the norms of
the rows' scores at the truth: about a third of the rows is clipped. Prints, for each model, the mean over data sets and latents of (mean - truth) / sd, sd that of the
non-private posterior, with its standard error, the root mean square, and the largest |t| of a latent's mean error.

python benchmarks/calibration/centred.py                     # all models, 40 data sets
python benchmarks/calibration/centred.py --models linear --num-data-sets 10
python benchmarks/calibration/centred.py --cost              # seconds of a centred sum over those of a flat one
"""

import argparse
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from models.linear_regression import linear_regression
from models.logistic_regression import gaussian
from models.survival_regression import survival_regression

ITERATIONS = 60


def proportions(group, total, y=None):
    """Binomial counts of two groups, as in NumPyro's example of a proportion test."""
    effects = numpyro.sample("effects", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", group.shape[0]):
        numpyro.sample("y", dist.Binomial(total, logits=effects[0] + effects[1] * group), obs=y)


def student_t(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, x @ weights, scale), obs=y)


def covariates(rng, num_rows, dimension=3):
    """Heavy-tailed ones, as counts and distances are."""
    return (rng.standard_normal((num_rows, dimension)) * rng.lognormal(0.0, 0.5, (num_rows, 1))).astype(np.float32)


INPUTS = {
    "proportions": (proportions, lambda rng, n: (np.arange(n, dtype=np.float32) % 2, rng.integers(5, 40, n))),
    "linear": (linear_regression, lambda rng, n: (covariates(rng, n),)),
    "student_t": (student_t, lambda rng, n: (covariates(rng, n),)),
    "survival": (survival_regression,
                 lambda rng, n: (covariates(rng, n) * 0.5, rng.uniform(0.5, 3.0, n).astype(np.float32))),
    "logistic": (gaussian, lambda rng, n: (covariates(rng, n, 10),)),
}  # fmt: skip


def simulated(model, inputs, key):
    """(arguments with responses, latents) from the prior."""
    seeded = numpyro.handlers.seed(model, key)
    trace = numpyro.handlers.trace(seeded).get_trace(*inputs)
    latents = {n: s["value"] for n, s in trace.items() if s["type"] == "sample" and n != "y"}
    return (*inputs, np.asarray(trace["y"]["value"])), latents


def errors(name, num_rows, num_data_sets, clippings=("flat", "centred")):
    """(mean - truth) / sd by clipping, (data sets, unconstrained latents), and the mean share of rows clipped."""
    model, inputs = INPUTS[name]
    data_sets = [
        simulated(model, inputs(np.random.default_rng(seed), num_rows), jax.random.key(seed))
        for seed in range(num_data_sets)
    ]
    args, truth = data_sets[0]
    split = bound(model, args, clipping_norm=1.0).split
    sites = numpyro.handlers.trace(numpyro.handlers.seed(model, jax.random.key(0))).get_trace(*args)
    _, unravel = ravel_pytree(truth)
    prior = lambda z: split.log_prior(unravel(z), {})  # noqa: E731

    @jax.jit
    def norms(z, rows):
        score = lambda row: ravel_pytree(jax.grad(split.log_likelihood)(unravel(z), row, {}))[0]  # noqa: E731
        return jnp.linalg.norm(jax.vmap(score)(rows), axis=1)

    @jax.jit
    def covariance(z, rows):
        likelihood = lambda z: jnp.sum(jax.vmap(lambda row: split.log_likelihood(unravel(z), row, {}))(rows))  # noqa: E731
        return jnp.linalg.inv(-jax.hessian(lambda z: likelihood(z) + prior(z))(z))

    def solver(kernel):
        def solve(z, covariance, rows, key):
            def better(z, i):
                total = kernel.noisy_sum(unravel(z), rows, {}, key=key, noise_multiplier=1e-9, step=i).total
                step = covariance @ (ravel_pytree(total)[0] + jax.grad(prior)(z))
                longest = jnp.max(jnp.abs(step) / jnp.sqrt(jnp.diag(covariance)))
                z = z + step * jnp.minimum(1.0, 10.0 / longest)
                return z, z

            return jnp.mean(jax.lax.scan(better, z, jnp.arange(ITERATIONS))[1][ITERATIONS // 2 :], axis=0)

        return jax.jit(solve)

    points = []
    for _, latents in data_sets:
        unconstrained = {n: dist.biject_to(sites[n]["fn"].support).inv(v) for n, v in latents.items()}
        points.append(ravel_pytree(unconstrained)[0])
    rows = [split.arrays(args, {})[0] for args, _ in data_sets]
    lengths = [np.asarray(norms(z, r)) for z, r in zip(points, rows)]
    clipping_norm = float(np.median([np.quantile(length, 2 / 3) for length in lengths]))
    found = {}
    for clipping in clippings:
        solve = solver(bound(model, args, clipping_norm=clipping_norm, clipping=clipping))
        found[clipping] = []
        for seed, (z, r) in enumerate(zip(points, rows)):
            posterior = covariance(z, r)
            found[clipping].append((solve(z, posterior, r, jax.random.key(seed)) - z) / jnp.sqrt(jnp.diag(posterior)))
    return {clipping: np.array(z) for clipping, z in found.items()}, np.mean(np.array(lengths) > clipping_norm)


def cost(name, num_rows, repeats=15):
    """Seconds of an access with centred clipping over those of one with flat clipping, medians of alternating repeats."""
    model, inputs = INPUTS[name]
    args = simulated(model, inputs(np.random.default_rng(0), num_rows), jax.random.key(0))[0]
    programs = {}
    for clipping in ("flat", "centred"):
        kernel = bound(model, args, clipping_norm=1.0, clipping=clipping)
        z = {n: jnp.zeros(s.shape, s.dtype) for n, s in kernel.split.latents.items()}
        rows = kernel.split.arrays(args, {})[0]
        access = jax.jit(
            lambda z, rows, key, kernel=kernel: (
                kernel.noisy_sum(z, rows, {}, key=key, noise_multiplier=1.0, step=0).total
            )
        )
        programs[clipping] = lambda key, access=access, z=z, rows=rows: jax.block_until_ready(access(z, rows, key))
        programs[clipping](jax.random.key(0))
    seconds = {clipping: [] for clipping in programs}
    for repeat in range(repeats):
        for clipping, program in programs.items():
            start = time.perf_counter()
            program(jax.random.key(repeat))
            seconds[clipping].append(time.perf_counter() - start)
    return np.median(seconds["centred"]) / np.median(seconds["flat"])


def bound(model, args, **settings):
    kernel = dpppl.DPSGLD(model, noise_multiplier=1e-9, **settings)
    return kernel.bind(args, {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=[*INPUTS], choices=[*INPUTS])
    parser.add_argument("--num-data-sets", type=int, default=40)
    parser.add_argument("--num-data", type=int, default=2_000)
    parser.add_argument("--cost", action="store_true")
    options = parser.parse_args()
    if options.cost:
        for name in options.models:
            print(f"{name:<12} {cost(name, options.num_data):.2f}", flush=True)
        return
    print(f"{'model':<12} {'clipping':<8} clipped {'mean (se)':>16} {'rms':>6} {'worst |t| of a latent':>22}  seconds")
    for name in options.models:
        start = time.perf_counter()
        found, share = errors(name, options.num_data, options.num_data_sets)
        for clipping, z in found.items():
            se = z.std(axis=0, ddof=1) / np.sqrt(len(z))
            means, worst = z.mean(axis=1), np.max(np.abs(z.mean(axis=0)) / se)
            mean, error = means.mean(), means.std(ddof=1) / np.sqrt(len(z))
            took = time.perf_counter() - start
            print(f"{name:<12} {clipping:<8} {share:7.2f} {mean:>8.2f} ({error:.2f}) {np.sqrt((z**2).mean()):>7.2f} {worst:>22.1f}"
                  f"  {took:.0f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
