"""What private SVI reaches: tables for UCI Adult, Abalone, MNIST, a VAE and a mixture, and checks of its spread.

python benchmarks/svi.py adult|spread|coverage|abalone|mnist|vae|mixture
"""

import argparse
import contextlib
import io
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.infer
import optax
from numpyro.infer.autoguide import AutoNormal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dpppl
from benchmarks.adult import nonprivate
from examples import data
from examples.adult import posterior_predictive, scores
from models import vae as vae_model
from models.bayesian_mlp import bayesian_mlp, logits
from models.logistic_regression import gaussian


def guide_for(model, init_scale=0.1):
    """A mean-field guide that starts at 0."""
    return AutoNormal(model, init_loc_fn=numpyro.infer.init_to_median, init_scale=init_scale)


def fit(model, arrays, num_steps, *, guide=None, learning_rate=0.05, seed=None, optim=optax.adam, **settings):
    """A quiet private run."""
    decay = optax.cosine_decay_schedule(learning_rate, num_steps, alpha=0.1)
    guide = guide_for(model) if guide is None else guide
    svi = dpppl.SVI(model, guide, optim(decay), **settings)
    key = dpppl.secret_key() if seed is None else jax.random.key(seed)
    with contextlib.redirect_stdout(io.StringIO()):
        return svi.run(key, num_steps, *arrays, progress_bar=False)


def variational(model, arrays, num_steps=3000, learning_rate=0.02, num_particles=4, guide=None):
    """The non-private fit: NumPyro's own SVI. Returns the guide and its parameters."""
    guide = guide_for(model) if guide is None else guide
    decay = optax.cosine_decay_schedule(learning_rate, num_steps, alpha=0.01)
    svi = numpyro.infer.SVI(model, guide, optax.adam(decay), numpyro.infer.Trace_ELBO(num_particles))
    return guide, svi.run(jax.random.key(0), num_steps, *arrays, progress_bar=False).params


def adult(args):
    """NLL and AUC of aligned and per-parameter gradients at equal epsilon."""
    x, y, x_test, y_test = data.adult()

    def evaluate(guide, params):
        draws = guide.sample_posterior(jax.random.key(1), params, sample_shape=(200,))
        return scores(posterior_predictive(draws, x_test), y_test)

    print("| gradient | epsilon | accuracy | AUC | NLL |\n|---|---|---|---|---|")
    exact = evaluate(*variational(gaussian, (x, y), num_steps=args.nonprivate_steps))
    print("| not private | | " + " | ".join(f"{value:.4f}" for value in exact) + " |", flush=True)
    for epsilon in args.epsilons:
        for gradient in ("aligned", "per_parameter"):
            results = []
            for _ in range(args.seeds):
                result = fit(
                    gaussian, (x, y), args.num_steps, gradient=gradient, clipping_norm=args.clipping_norm,
                    subsampling=dpppl.Poisson(args.rate), target_epsilon=epsilon, target_delta=1e-5,
                    learning_rate=args.learning_rate,
                )  # fmt: skip
                results.append(evaluate(result.guide, result.averaged_params(0.3)))
            cells = [f"{m:.4f} ± {s:.4f}" for m, s in zip(np.mean(results, axis=0), np.std(results, axis=0))]
            print(f"| {gradient} | {result.report.epsilon:.3f} | " + " | ".join(cells) + " |", flush=True)


def spread(args):
    """Posterior sds over those of the Laplace posterior, on Adult: SVI, noise-aware SVI, and DP-SGLD."""
    x, y, _, _ = data.adult()
    _, sds = nonprivate(x, y)
    result = fit(
        gaussian, (x, y), args.num_steps, clipping_norm=args.clipping_norm, subsampling=dpppl.Poisson(args.rate),
        target_epsilon=1.0, target_delta=1e-5, learning_rate=args.learning_rate, optim=optax.sgd,
        guide=guide_for(gaussian, init_scale=1.0),
    )  # fmt: skip
    kernel = dpppl.DPSGLD(gaussian, clipping_norm=args.clipping_norm)
    mcmc = dpppl.MCMC(
        kernel, num_warmup=1600, num_samples=400, target_epsilon=1.0, target_delta=1e-5, progress_bar=False
    )
    with contextlib.redirect_stdout(io.StringIO()):
        mcmc.run(dpppl.secret_key(), x, y)
    chains = mcmc.get_samples()
    ratios = {"DP-SGLD": np.r_[chains["weights"].std(0), chains["intercept"].std()] / sds}
    for name, params in (("SVI", result.averaged_params()), ("noise-aware SVI", result.noise_aware_params())):
        ratios[name] = np.r_[params["weights_auto_scale"], params["intercept_auto_scale"]] / sds
    for name, ratio in ratios.items():
        low, median, high = np.quantile(ratio, [0.1, 0.5, 0.9])
        print(f"{name:16} sd ratio to Laplace: median {median:.2f}, 10 % {low:.2f}, 90 % {high:.2f}")


def simulated(seed, num_rows, dimension=5):
    """A logistic data set with rows of norm at most 1, so that a clipping norm of 1 never clips; and its weights."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(dimension)
    x = rng.standard_normal((num_rows, dimension))
    x = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    y = rng.uniform(size=num_rows) < 1.0 / (1.0 + np.exp(-x @ weights))
    return x.astype(np.float32), y.astype(np.float32), weights


def logistic(x, y):
    """Logistic regression without intercept."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def coverage(args):
    """How often 90 % intervals hold the true weights, over simulated data sets."""
    inside = {"SVI": [], "noise-aware SVI": []}
    for seed in range(args.data_sets):
        x, y, weights = simulated(seed, args.num_rows)
        result = fit(
            logistic, (x, y), args.num_steps, clipping_norm=1.0, subsampling=dpppl.Poisson(args.rate),
            target_epsilon=1.0, target_delta=1e-5, learning_rate=args.learning_rate,
        )  # fmt: skip
        for name, params in (("SVI", result.averaged_params()), ("noise-aware SVI", result.noise_aware_params())):
            off = np.abs(params["weights_auto_loc"] - weights) / params["weights_auto_scale"]
            inside[name] += list(np.asarray(off < 1.6449))
    for name, hits in inside.items():
        print(f"{name:16} N = {args.num_rows}: coverage of 90 % intervals {np.mean(hits):.3f} ({len(hits)} intervals)")


def abalone(args):
    """Test accuracy of mean-field SVI at epsilon 1, delta 1e-3."""
    x, y, x_test, y_test = data.abalone()

    def evaluate(guide, params):
        draws = guide.sample_posterior(jax.random.key(1), params, sample_shape=(200,))
        return scores(posterior_predictive(draws, x_test), y_test)[0]

    print(f"not private: accuracy {evaluate(*variational(gaussian, (x, y))):.4f}")
    accuracies = []
    for _ in range(args.seeds):
        result = fit(
            gaussian, (x, y), args.num_steps, clipping_norm=args.clipping_norm, subsampling=dpppl.Poisson(args.rate),
            target_epsilon=1.0, target_delta=1e-3, learning_rate=args.learning_rate,
        )  # fmt: skip
        accuracies.append(evaluate(result.guide, result.averaged_params(0.5)))
    print(f"epsilon {result.report.epsilon:.3f}: accuracy {np.mean(accuracies):.4f} ± {np.std(accuracies):.4f}")


def mnist(args):
    """Bayes by Backprop on MNIST, an MLP 784-400-10 with a Gaussian prior."""
    x, y, x_test, y_test = data.mnist()

    def model(x, y):
        bayesian_mlp(x, y, hidden=(400,), prior_scale=args.prior_scale)

    start = time.perf_counter()
    uniform = numpyro.infer.init_to_uniform(radius=0.08)
    result = fit(
        model, (x, y), args.num_steps, guide=AutoNormal(model, init_loc_fn=uniform, init_scale=args.init_scale),
        clipping_norm=args.clipping_norm, subsampling=dpppl.Poisson.of_batch(args.batch_size, len(y)),
        target_epsilon=args.epsilon, target_delta=1e-5, learning_rate=args.learning_rate,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    for name, params in (("last", result.params), ("averaged", result.averaged_params(0.3))):
        draws = result.sample_posterior(jax.random.key(1), 20, params)
        probability = np.mean([
            jax.nn.softmax(logits(x_test, [(draws[f"w{i}"][s], draws[f"b{i}"][s]) for i in (0, 1)])) for s in range(20)
        ], axis=0)  # fmt: skip
        print(f"{name}: test accuracy {np.mean(probability.argmax(1) == y_test):.4f}", flush=True)
    print(f"epsilon {result.report.epsilon:.3f}, {args.num_steps} steps, {seconds:.0f} s in all")


def vae(args):
    """Test ELBO of a small VAE on binarised MNIST, private and not."""
    x, _, x_test, _ = data.mnist()
    x, x_test = (x[: args.num_rows] > 0.5).astype(np.float32), (x_test > 0.5).astype(np.float32)

    def elbo(params):
        loss = jax.jit(lambda p: numpyro.infer.Trace_ELBO(4).loss(jax.random.key(2), p, *both, x_test))
        return -float(loss(params)) / len(x_test)

    both = (vae_model.model, vae_model.guide)
    rate = args.batch_size / len(x)

    svi = numpyro.infer.SVI(*both, optax.adam(1e-3), numpyro.infer.Trace_ELBO())
    state, rng = svi.init(jax.random.key(0), x[: args.batch_size]), np.random.default_rng(0)
    update = jax.jit(lambda state, batch: svi.update(state, batch)[0])
    for _ in range(args.num_steps):
        state = update(state, x[rng.integers(0, len(x), args.batch_size)])
    exact = elbo(svi.get_params(state))
    print(f"not private: test ELBO {exact:.2f} nats a row", flush=True)
    result = fit(
        vae_model.model, (x,), args.num_steps, guide=vae_model.guide, gradient="per_parameter",
        clipping_norm=args.clipping_norm, subsampling=dpppl.Poisson(rate), target_epsilon=8.0, target_delta=1e-5,
        learning_rate=args.learning_rate,
    )  # fmt: skip
    for name, params in (("last", result.params), ("averaged", result.averaged_params(0.2))):
        value = elbo(params)
        print(f"epsilon {result.report.epsilon:.3f}, {name}: test ELBO {value:.2f}, {(exact - value) / -exact:+.1%}")


def mixture_model(y):
    """A mixture of two Gaussians with ordered means, the components summed out."""
    means = numpyro.sample("means", dist.TransformedDistribution(
        dist.Normal(0.0, 5.0).expand([2]).to_event(1), dist.transforms.OrderedTransform()))  # fmt: skip
    weight = numpyro.sample("weight", dist.Beta(2.0, 2.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    mixing = dist.Categorical(probs=jnp.stack([weight, 1.0 - weight]))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.MixtureSameFamily(mixing, dist.Normal(means, scale)), obs=y)


def mixture(args):
    """Recovery of the ordered means of a mixture."""
    rng = np.random.default_rng(0)
    y = np.where(rng.uniform(size=args.num_rows) < 0.3, -2.0, 1.5) + 0.7 * rng.standard_normal(args.num_rows)
    result = fit(
        mixture_model, (y.astype(np.float32),), args.num_steps, clipping_norm=args.clipping_norm,
        subsampling=dpppl.Poisson(args.rate), target_epsilon=1.0, target_delta=1e-5, learning_rate=args.learning_rate,
    )  # fmt: skip
    draws = result.sample_posterior(jax.random.key(0), 500, result.averaged_params())
    for name in ("means", "weight", "scale"):
        print(
            name,
            "posterior mean",
            np.round(np.mean(draws[name], axis=0), 3),
            "sd",
            np.round(np.std(draws[name], axis=0), 3),
        )
    print(f"true means -2.0 and 1.5, weight 0.3, scale 0.7; epsilon {result.report.epsilon:.3f}")


SETTINGS = {  # (function, defaults)
    "adult": (adult, {"num_steps": 1000, "rate": 0.05, "clipping_norm": 2.0, "learning_rate": 0.03, "seeds": 5}),
    "spread": (spread, {"num_steps": 2000, "rate": 0.05, "clipping_norm": 2.0, "learning_rate": 1e-4}),
    "coverage": (coverage, {"num_steps": 1000, "rate": 0.05, "learning_rate": 0.02}),
    "abalone": (abalone, {"num_steps": 300, "rate": 1.0, "clipping_norm": 2.0, "learning_rate": 0.15, "seeds": 5}),
    "mnist": (mnist, {"num_steps": 600, "batch_size": 1024, "clipping_norm": 1.0, "learning_rate": 0.002}),
    "vae": (vae, {"num_steps": 1500, "batch_size": 256, "clipping_norm": 5.0, "learning_rate": 0.003}),
    "mixture": (mixture, {"num_steps": 1000, "rate": 0.1, "clipping_norm": 10.0, "learning_rate": 0.03}),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (function, defaults) in SETTINGS.items():
        command = commands.add_parser(name, help=function.__doc__)
        for key, value in defaults.items():
            command.add_argument(f"--{key.replace('_', '-')}", type=type(value), default=value)
        if name == "adult":
            command.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0])
            command.add_argument("--nonprivate-steps", type=int, default=1500)
        elif name == "coverage":
            command.add_argument("--num-rows", type=int, default=60_000)
            command.add_argument("--data-sets", type=int, default=40)
        elif name == "mnist":
            command.add_argument("--epsilon", type=float, default=3.0)
            command.add_argument("--init-scale", type=float, default=0.005)
            command.add_argument("--prior-scale", type=float, default=20.0)
        elif name in ("vae", "mixture"):
            command.add_argument("--num-rows", type=int, default=60_000 if name == "vae" else 20_000)
    args = parser.parse_args()
    SETTINGS[args.command][0](args)


if __name__ == "__main__":
    main()
