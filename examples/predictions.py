"""How well posterior draws predict public test rows: the scores that the tables of Adult, Abalone and MNIST show."""

import numpy as np
from scipy import optimize

from dpppl import uncertainty


def binary_scores(probabilities, y, group=100, num_draws=200):
    """Scores of P(y = 1), one of each posterior draw and row (S, N), for labels (N,).

    Coverage is of groups of `group` test rows with similar predictions: how often the 90 % interval of the number of ones, over
    draws of weights and labels, holds the number that occurred. 90 % is right; counts are whole, so both are jittered."""
    from sklearn.metrics import roc_auc_score

    mean, rng = np.mean(probabilities, axis=0), np.random.default_rng(0)
    order = np.argsort(mean)[: len(y) // group * group]
    chosen = np.asarray(probabilities)[np.arange(num_draws) % len(probabilities)][:, order]
    counts = (rng.random(chosen.shape) < chosen).reshape(num_draws, -1, group).sum(-1)
    observed = y[order].reshape(-1, group).sum(-1)
    jitter = lambda values: values + rng.random(values.shape) - 0.5  # noqa: E731
    return {
        "accuracy": np.mean((mean > 0.5) == y),
        "AUC": roc_auc_score(y, mean),
        "NLL": uncertainty.log_score(mean, y),
        "ECE": uncertainty.expected_calibration_error(mean, y),
        "coverage": uncertainty.interval_coverage(jitter(counts), jitter(observed), level=0.9),
    }


def class_scores(probabilities, y):
    """Scores of class probabilities (N, K), averaged over posterior draws, for labels (N,); `bins` as a reliability diagram."""
    return {
        "accuracy": np.mean(probabilities.argmax(1) == y),
        "NLL": uncertainty.log_score(probabilities, y),
        "ECE": uncertainty.expected_calibration_error(probabilities, y),
        "MCE": uncertainty.maximum_calibration_error(probabilities, y),
        "bins": [part.tolist() for part in uncertainty.reliability_bins(probabilities, y, num_bins=10)],
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
