"""Differentially private Bayes by Backprop, written out, and the same with dpppl.SVI.

python examples/bayes_by_backprop.py --epsilon 3.0

The 2020 note "DP Bayes by Backprop: algorithm and analysis" in a page of NumPy-like code, with its errata: the gradient
of log q must be the total derivative through w (Algorithm 1 omits it from g and writes P for q), and one epoch over a
random partition costs one Gaussian event under add-or-remove, where a row moves the sum by C (2C under replace-one).
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from numpyro.infer import Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoDiagonalNormal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dpppl
from examples.adult import posterior_predictive, scores
from examples.data import adult, digits, has_adult
from models.logistic_regression import gaussian


def directions(mu, rho, eps, rows, labels, noise, *, clipping_norm, rate):
    """One step of Algorithm 1 for logistic regression under a N(0, 1) prior: the directions of mu and rho.

    Ascent, so signs are the note's turned round. `eps`, `noise`: standard normal draws and the privacy noise, (d,);
    `rows`: (B, d); `rate`: the share of all rows that a batch holds."""
    w = mu + jax.nn.softplus(rho) * eps
    g = rows * (labels - jax.nn.sigmoid(rows @ w))[:, None]  # grad_w log P(y_i | x_i, w), one row each
    g = g / jnp.maximum(1.0, jnp.linalg.norm(g, axis=1, keepdims=True) / clipping_norm)
    g = (g.sum(0) + noise) / rate  # of all rows
    g = g - w  # plus grad_w log P(w)
    # log q(w | mu, rho) = -log softplus(rho) - eps^2 / 2: its total derivative is 0 in mu
    return g, (g * eps + 1.0 / jax.nn.softplus(rho)) * jax.nn.sigmoid(rho)


def written_out(key, x, y, *, num_batches, num_epochs, clipping_norm, noise_multiplier, learning_rate):
    """The whole of Algorithm 1. For study only: it draws its noise in float32 and shuffles rows in the open; dpppl.SVI
    does neither."""
    design = jnp.concatenate([jnp.asarray(x), jnp.ones((len(x), 1))], axis=1)
    mu, rho = jnp.zeros(design.shape[1]), jnp.full(design.shape[1], jnp.log(jnp.expm1(0.1)))
    width = len(x) // num_batches

    @jax.jit
    def step(mu, rho, rows, labels, key):
        eps, xi = jax.random.normal(key, (2, *mu.shape))
        noise = clipping_norm * noise_multiplier * xi
        d_mu, d_rho = directions(mu, rho, eps, rows, labels, noise, clipping_norm=clipping_norm, rate=1.0 / num_batches)
        return mu + learning_rate * d_mu, rho + learning_rate * d_rho

    for _ in range(num_epochs):
        key, split_key = jax.random.split(key)
        order = jax.random.permutation(split_key, len(x))
        for batch in range(num_batches):
            key, step_key = jax.random.split(key)
            rows = order[batch * width : (batch + 1) * width]
            mu, rho = step(mu, rho, design[rows], jnp.asarray(y)[rows], step_key)
    return mu, jax.nn.softplus(rho)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--num-epochs", type=int, default=10)
    parser.add_argument("--num-batches", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--digits", action="store_true", help="use scikit-learn's digits even where Adult is there")
    args = parser.parse_args(arguments)

    x, y, x_test, y_test = adult() if has_adult() and not args.digits else digits()
    start = {"weights": jnp.zeros(x.shape[1]), "intercept": jnp.zeros(())}
    guide = AutoDiagonalNormal(gaussian, init_loc_fn=init_to_value(values=start), init_scale=0.1)
    svi = dpppl.SVI(
        gaussian, guide, optax.sgd(args.learning_rate), clipping_norm=1.0,
        subsampling=dpppl.Partition(args.num_batches), target_epsilon=args.epsilon, target_delta=args.delta,
        loss=Trace_ELBO(),
    )  # fmt: skip
    result = svi.run(dpppl.secret_key(), args.num_epochs * args.num_batches, x, y)
    draws = result.sample_posterior(jax.random.key(1), 200)
    line = "{}: accuracy {:.4f}, AUC {:.4f}, NLL {:.4f}"
    print(line.format("dpppl.SVI", *scores(posterior_predictive(draws, x_test), y_test)))

    mu, sd = written_out(
        jax.random.key(0), x, y, num_batches=args.num_batches, num_epochs=args.num_epochs, clipping_norm=1.0,
        noise_multiplier=svi.budget.charged[0].noise_multipliers[0], learning_rate=args.learning_rate,
    )  # fmt: skip
    w = mu + sd * jax.random.normal(jax.random.key(1), (200, len(mu)))
    own = {"weights": w[:, :-1], "intercept": w[:, -1]}
    print(line.format("written out", *scores(posterior_predictive(own, x_test), y_test)))
    print(f"\n{result.privacy_report()}")


if __name__ == "__main__":
    main()
