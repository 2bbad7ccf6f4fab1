"""Whether chains with default settings are right at large epsilon, where matched steps are long.

python benchmarks/calibration/stability.py [--models ...] [--kernels ...] [--epsilons 3 10 50]

Seven models, standard-normal covariates, full batch, matched steps. Per run, over the coordinates of the unconstrained
posterior: the largest error of a mean in posterior sds, the ratios of sds, and what the run's own verdict said. The
reference is Laplace's approximation at the mode (the data sets are large). A run is right if no mean is off by .5 sd
and every sd is within 15 %; it is silently wrong if this fails for latents that its verdict lets be read.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model, unconstrain_fn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl

KERNELS = {"DPSGLD": dpppl.DPSGLD, "DPSGHMC": dpppl.DPSGHMC, "DPSGNHT": dpppl.DPSGNHT}
D = 5


def linear_part(x):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    return numpyro.sample("intercept", dist.Normal(0.0, 1.0)) + x @ weights


def logistic(x, y):
    score = linear_part(x)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=score), obs=y)


def linear(x, y):
    score, scale = linear_part(x), numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(score, scale), obs=y)


def student_t(x, y):
    score, scale = linear_part(x), numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, score, scale), obs=y)


def poisson(x, y):
    score = linear_part(x)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(score)), obs=y)


def negative_binomial(x, y):
    score, concentration = linear_part(x), numpyro.sample("concentration", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(score), concentration), obs=y)


def weibull(x, y):
    score, shape = linear_part(x), numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Weibull(jnp.exp(score), shape), obs=y)


def ordered_logistic(x, y):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    first = numpyro.sample("first", dist.Normal(0.0, 2.0))
    widths = numpyro.sample("widths", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    cuts = first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(widths)])
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(x @ weights, cuts), obs=y)


def responses(name, rng, score):
    """Made-up responses of the model."""
    size = len(score)
    if name == "logistic":
        return rng.random(size) < 1 / (1 + np.exp(-score))
    if name in ("linear", "student-t"):
        return score + 0.8 * (rng.standard_normal(size) if name == "linear" else rng.standard_t(4.0, size))
    if name == "poisson":
        return rng.poisson(np.exp(score))
    if name == "negative binomial":
        return rng.poisson(np.exp(score) * rng.gamma(2.0, 0.5, size))
    if name == "weibull":
        return np.exp(score) * rng.weibull(1.5, size)
    return np.searchsorted([-1.0, 0.3, 1.2], score + rng.logistic(size=size))


MODELS = {
    "logistic": (logistic, 50_000), "linear": (linear, 10_000), "student-t": (student_t, 10_000),
    "poisson": (poisson, 10_000), "negative binomial": (negative_binomial, 10_000), "weibull": (weibull, 10_000),
    "ordered logistic": (ordered_logistic, 10_000),
}  # fmt: skip


def data_set(name):
    """Rows, the same in every run."""
    rng, (_, size) = np.random.default_rng(7), MODELS[name]
    x = rng.standard_normal((size, D))
    y = responses(name, rng, 0.3 + x @ (0.4 * rng.standard_normal(D)))
    return x.astype(np.float32), y.astype(np.int32 if name == "ordered logistic" else np.float32)


def laplace(model, arrays, steps=60):
    """(mode, sds) of the posterior in unconstrained space, by damped Newton steps in float64; flat, in the sites' order."""
    with jax.enable_x64(True):
        info = initialize_model(jax.random.key(0), model, model_args=tuple(map(jnp.asarray, arrays)))
        start, unravel = ravel_pytree(jax.tree.map(lambda v: jnp.zeros_like(v, float), info.param_info.z))
        energy = jax.jit(lambda v: info.potential_fn(unravel(v)))
        gradient, hessian = jax.jit(jax.grad(energy)), jax.jit(jax.hessian(energy))
        z = start
        for _ in range(steps):
            values, vectors = np.linalg.eigh(hessian(z))
            move = vectors @ ((vectors.T @ np.asarray(gradient(z))) / np.maximum(np.abs(values), 1.0))
            length = min(1.0, 1.0 / np.linalg.norm(move))
            z = z - length * move
        return np.asarray(z), np.diag(np.linalg.inv(hessian(z))) ** 0.5


def unconstrained(mcmc, model, arrays):
    """Samples of all sites in unconstrained space, in the order of `laplace`: (draws, coordinates)."""
    arrays = tuple(map(jnp.asarray, arrays))
    samples = {site: value for site, value in mcmc.get_samples().items() if site in mcmc.last_state.z}
    samples = jax.vmap(lambda values: unconstrain_fn(model, arrays, {}, values))(samples)
    draws = len(next(iter(samples.values())))
    return np.concatenate([np.asarray(samples[s], np.float64).reshape(draws, -1) for s in sorted(samples)], axis=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=KERNELS)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0, 10.0, 50.0])
    parser.add_argument("--clipping", default=None, choices=["flat", "centred"])
    parser.add_argument("--clipping-norm", type=float, default=None, help="by default chosen privately")
    parser.add_argument("--steps", type=int, nargs=2, default=[1000, 1000], help="of warmup and of sampling")
    args = parser.parse_args()
    print(
        "| model | kernel | epsilon | error of mean, sds | ratio of sds | right | verdict | of those read | clipped |\n"
        "|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    started, wrong, silent = time.monotonic(), 0, 0
    for name in args.models:
        model, arrays = MODELS[name][0], data_set(name)
        mean, sd = laplace(model, arrays)
        for kernel in args.kernels:
            for epsilon in args.epsilons:
                norm = "auto" if args.clipping_norm is None else args.clipping_norm
                warmup, samples = args.steps
                mcmc = dpppl.MCMC(
                    KERNELS[kernel](model, clipping_norm=norm, clipping=args.clipping), num_warmup=warmup, num_samples=samples,
                    target_epsilon=epsilon, target_delta=1e-5, progress_bar=False, print_cost=False,
                )  # fmt: skip
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    mcmc.run(dpppl.secret_key(), *arrays)
                z = unconstrained(mcmc, model, arrays)
                error, ratio = np.abs(z.mean(0) - mean) / sd, z.std(0) / sd
                right = bool(np.all(error < 0.5) and np.all(np.abs(ratio - 1.0) < 0.15))
                found = mcmc.verdict.by_site
                words = np.concatenate([np.ravel(found[site]) for site in sorted(mcmc.last_state.z)])
                read = words == "read"  # every site here has as many elements as coordinates
                of_read = (
                    f"{error[read].max():.2f}, {ratio[read].min():.2f} to {ratio[read].max():.2f}" if any(read) else ""
                )
                said = "; ".join(f"{word} {np.sum(words == word)}" for word in sorted(set(words)))
                wrong += not right
                silent += bool(np.any(error[read] > 0.5) or np.any(np.abs(ratio[read] - 1.0) > 0.15))
                counted = mcmc.privacy_report().details.measured.clipped
                clipped = "" if counted is None else f"{counted.share:.1%}"
                print(
                    f"| {name} | {kernel} | {epsilon:g} | {error.max():.2f} | {ratio.min():.2f} to {ratio.max():.2f} | "
                    f"{'yes' if right else 'NO'} | {said} | {of_read} | {clipped} |",
                    flush=True,
                )
                print(f"{time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    print(f"\n{wrong} runs are not right; {silent} have a verdict to read what is not")


if __name__ == "__main__":
    main()
