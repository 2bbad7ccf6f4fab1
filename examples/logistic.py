"""Logistic regression by every method, and how well its draws predict public test rows: for the tables of Adult and Abalone."""

import numpy as np
from scipy import optimize

from dpppl.contrib import uncertainty
from examples import comparators, methods
from models.logistic_regression import gaussian

CHAIN = {"num_warmup": 800, "num_samples": 400, "clipping_norm": 1.0}
GUIDE = {"num_steps": 300, "learning_rate": 0.04, "clipping_norm": 2.0}
SETTINGS = {
    "NoiseAware": {},
    "Bayes by Backprop": GUIDE | {"init_scale": 0.1},
    "DP-SGLD": CHAIN,
    "DP-SGD": GUIDE,
    "full-rank SVI": GUIDE | {"init_scale": 0.1},
    "DP-SGHMC": CHAIN,
    "DP-SGNHT": CHAIN,
    **{name: {} for name in comparators.WEIGHTS},
}
NUM_DRAWS = 200


def settings(method, target):
    """Of a row: where noise is small, chains clip later, for less bias."""
    late = {"clipping_norm": 2.0} if method in methods.KERNELS and target >= 1.0 else {}
    return {"method": method, "target": target} | SETTINGS.get(method, {}) | late


def run(seed, data, *, method, target, delta, num_queries=0, **settings):
    """Scores of one run on `data`, (x, y, x_test, y_test); the first `num_queries` test rows are for PATE alone."""
    x, y, *test = data
    (queries, x_test), (_, y_test) = (np.split(part, [num_queries]) for part in test)
    if method == "not private":
        mode, precision = laplace(np.c_[x, np.ones(len(y))], y)
        w = np.random.default_rng(seed).multivariate_normal(mode, np.linalg.inv(precision), size=NUM_DRAWS)
        samples, epsilon = {"weights": w[:, :-1], "intercept": w[:, -1]}, None
    elif method in comparators.WEIGHTS:
        public = {"queries": queries} if method == "PATE" else {}
        samples, epsilon = comparators.draws(method, seed, x, y, target, **public), target
    else:
        budget = {"epsilon": target, "delta": delta}
        samples, epsilon = methods.draws(method, gaussian, (x, y), num_draws=NUM_DRAWS, **budget, **settings)
    return {"epsilon": epsilon, **binary_scores(linear_probabilities(samples, x_test), y_test)}


def binary_scores(probabilities, y, group=100, num_draws=200):
    """Scores of P(y = 1), one of each posterior draw and row (S, N), for labels (N,).

    Coverage is of groups of `group` test rows with similar predictions: how often the 90 % interval of the number of ones, over
    draws of weights and labels, holds the number that occurred. 90 % is right; counts are whole, so both are jittered."""
    from sklearn.metrics import log_loss, roc_auc_score

    mean, rng = np.mean(probabilities, axis=0), np.random.default_rng(0)
    order = np.argsort(mean)[: len(y) // group * group]
    chosen = np.asarray(probabilities)[np.arange(num_draws) % len(probabilities)][:, order]
    counts = (rng.random(chosen.shape) < chosen).reshape(num_draws, -1, group).sum(-1)
    observed = y[order].reshape(-1, group).sum(-1)
    jitter = lambda values: values + rng.random(values.shape) - 0.5  # noqa: E731
    low, high = np.quantile(jitter(counts), [0.05, 0.95], axis=0)
    true = jitter(observed)
    return {
        "accuracy": np.mean((mean > 0.5) == y),
        "AUC": roc_auc_score(y, mean),
        "NLL": log_loss(y, mean),
        "ECE": uncertainty.expected_calibration_error(mean, y),
        "coverage": np.mean((low <= true) & (true <= high)),
    }


def linear_probabilities(samples, x):
    """P(y = 1) of models/logistic_regression.py for inputs (N, D): (S, N)."""
    logits = np.asarray(samples["weights"]) @ x.T + np.asarray(samples["intercept"])[:, None]
    return 1.0 / (1.0 + np.exp(-logits))


def laplace(design, y):
    """Mode and precision of the non-private posterior of logistic regression with N(0, 1) coefficients."""
    design = design.astype(np.float64)

    def loss(w):
        logits = design @ w
        probability = 1.0 / (1.0 + np.exp(-logits))
        return np.sum(np.logaddexp(0.0, logits) - y * logits) + 0.5 * w @ w, design.T @ (probability - y) + w

    mode = optimize.minimize(loss, np.zeros(design.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 5000}).x
    probability = 1.0 / (1.0 + np.exp(-design @ mode))
    return mode, (design * (probability * (1.0 - probability))[:, None]).T @ design + np.eye(len(mode))
