"""Regression with noise that grows with the input: Bayesian networks under privacy (Zhang, Bu, Chen, Long 2021, section 5.2).

    python examples/heteroscedastic.py --only noise-aware bayes-by-backprop

Their 20 data sets, by the seed of their published code: 400 inputs uniform in [-3, 3], a Gaussian process with length scale 1
and noise of sd 0.3 |x + 2|; the 250 rows in the middle are private. Epsilon 4.21, delta 1/250. They print the mean square
error of the 250 training rows; here are those of the predictive mean, on these rows and on 500 new ones. A run is a data set.
"""

import sys
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.infer import init_to_uniform
from scipy.special import logsumexp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpppl.contrib import plotting, uncertainty
from examples.methods import draws
from examples.results import Row, command, load
from models.basis_regression import basis_regression, response
from models.heteroscedastic_regression import heteroscedastic_regression

EPSILON, DELTA, NUM_ROWS, NUM_DRAWS = 4.21, 0.999 / 250, 250, 200  # a delta of 1 / N draws a warning


def covariance(one, other):
    """Of the process, a Gaussian kernel of length scale 1."""
    return np.exp(-0.5 * (one[:, None] - other) ** 2)


@cache
def data_sets(num_sets=20):
    """(x, y) of all 400 rows, as their code draws them after np.random.seed(5): (num_sets, 2, 400)."""
    rng, found = np.random.RandomState(5), []
    for _ in range(num_sets):
        x = np.sort(rng.uniform(-3.0, 3.0, 400))
        y = rng.multivariate_normal(np.zeros(400), covariance(x, x) + np.diag(0.09 * (x + 2.0) ** 2))
        found.append((x, y))
    return np.array(found)


def simulated(seed, num_new=500):
    """(x, y, new x, new y): the 250 rows in the middle, and new ones of the same process and the same range."""
    x, y = data_sets()[seed]
    rng, rows = np.random.default_rng(seed), slice(75, 75 + NUM_ROWS)
    x_new = rng.uniform(x[75], x[324], num_new)
    weights = np.linalg.solve(covariance(x, x) + np.diag(0.09 * (x + 2.0) ** 2), covariance(x, x_new))
    rest = covariance(x_new, x_new) - covariance(x_new, x) @ weights + np.diag(0.09 * (x_new + 2.0) ** 2)
    y_new = weights.T @ y + rng.multivariate_normal(np.zeros(num_new), rest)
    return tuple(a.astype(np.float32) for a in (x[rows, None], y[rows] - y.mean(), x_new[:, None], y_new - y.mean()))


def network(params, x):
    """Mean and sd of the response for inputs (N, 1): what heteroscedastic_regression says."""
    outputs = jnp.tanh(x @ params["w0"] + params["b0"]) @ params["w1"] + params["b1"]
    return outputs[..., 0], jax.nn.softplus(outputs[..., 1]) + 1e-3


MODELS = {"network": (heteroscedastic_regression, network), "basis": (basis_regression, response)}


def scores(samples, predict, data):
    """Mean square errors, and on new rows the log score, coverage and the epistemic share of the variance."""
    x, y, x_new, y_new = data
    means, _ = jax.vmap(predict, (0, None))(samples, x)
    new_means, new_sds = jax.vmap(predict, (0, None))(samples, x_new)
    responses = new_means + new_sds * jax.random.normal(jax.random.key(0), new_means.shape)
    parts = uncertainty.decompose_variance(new_means, new_sds**2)
    low, high = np.quantile(responses, [0.05, 0.95], axis=0)
    log_likelihoods = dist.Normal(new_means, new_sds).log_prob(y_new)
    return {
        "training MSE": np.mean((np.mean(means, axis=0) - y) ** 2),
        "MSE": np.mean((np.mean(new_means, axis=0) - y_new) ** 2),
        "NLL": np.log(len(new_means)) - np.mean(logsumexp(log_likelihoods, axis=0)),
        "coverage": np.mean((low <= y_new) & (y_new <= high)) if len(responses) > 1 else None,
        "epistemic": np.mean(parts.epistemic) / np.mean(parts.total),
    }


def fitted(data, *, method, model, private, **settings):
    """Draws of the latents, what they predict of an input, and the epsilon that was spent."""
    density, predict = MODELS[model]
    budget = {"epsilon": EPSILON if private == "yes" else None, "delta": DELTA}
    start = init_to_uniform(radius=1.0)
    samples, epsilon = draws(method, density, data[:2], num_draws=NUM_DRAWS, start=start, **budget, **settings)
    return samples, predict, epsilon


def run(seed, **settings):
    """Scores of one data set."""
    data = simulated(seed)
    samples, predict, epsilon = fitted(data, **settings)
    return {"epsilon": epsilon, **scores(samples, predict, data)}


CHAIN = {"num_warmup": 200, "num_samples": 400, "clipping_norm": 4.0}
GUIDE = {"num_steps": 300, "learning_rate": 0.02, "clipping_norm": 4.0}
NETWORK = GUIDE | {"init_scale": 0.1}
FITS = {  # by name: (method, model, private, settings); norms, rates and steps were chosen on the first six data sets
    "noise-aware-basis": ("NoiseAware", "basis", "yes", {}),
    "sgld-basis": ("DP-SGLD", "basis", "yes", CHAIN),
    "sghmc-basis": ("DP-SGHMC", "basis", "yes", CHAIN),
    "bbp-basis": ("Bayes by Backprop", "basis", "yes", GUIDE | {"learning_rate": 0.04, "init_scale": 0.3}),
    "sgld-network": ("DP-SGLD", "network", "yes", CHAIN),
    "bbp-network": ("Bayes by Backprop", "network", "yes", NETWORK),
    "bbp-per-parameter-network": ("Bayes by Backprop, per parameter", "network", "yes", NETWORK),
    "mc-dropout-network": ("MC Dropout", "network", "yes", GUIDE),
    "dp-sgd-network": ("DP-SGD", "network", "yes", GUIDE),
    "sgld-basis-not-private": ("DP-SGLD", "basis", "no", CHAIN),
    "bbp-network-not-private": ("Bayes by Backprop", "network", "no", NETWORK),
    "mc-dropout-network-not-private": ("MC Dropout", "network", "no", GUIDE),
}
ROWS = [
    Row(name, run, {"method": method, "model": model, "private": private, **settings}, num_runs=20)
    for name, (method, model, private, settings) in FITS.items()
]
BANDS = ("noise-aware-basis", "bbp-network", "bbp-network-not-private")


def picture(folder):
    """Predictive bands of the first data set, of those BANDS whose rows are there."""
    import matplotlib.pyplot as plt

    kept = load(folder / "heteroscedastic.json")
    names = [name for name in BANDS if name in kept]
    if not names:
        return
    data, inputs = simulated(0), np.linspace(-3.0, 3.0, 121, dtype=np.float32)
    size = (4.2 * len(names), 3.6)
    figure, all_axes = plt.subplots(1, len(names), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for name, axes in zip(names, all_axes[0], strict=True):
        settings = kept[name]["settings"]
        samples, predict, _ = fitted(data, **settings)
        means, sds = jax.vmap(predict, (0, None))(samples, inputs[:, None])
        plotting.predictive_band(inputs, means, sds**2, observed=(data[0][:, 0], data[1]), axes=axes)
        budget = f"epsilon {EPSILON:g}" if settings["private"] == "yes" else "not private"
        axes.set(title=f"{settings['method']}, {settings['model']},\n{budget}", xlabel="input", ylabel="response")
    figure.savefig(folder / "heteroscedastic.png", dpi=110)
    plt.close(figure)


def main(arguments=None):
    command(__doc__, ROWS, "heteroscedastic", lambda: None, picture, arguments)


if __name__ == "__main__":
    main()
