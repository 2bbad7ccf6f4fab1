"""Private logistic regression by noise on the result, or on the objective (Chaudhuri, Monteleoni, Sarwate 2011).

Both minimise J(w) = mean of log(1 + exp(-y w.x)) + regularization / 2 |w|^2 over rows with |x| <= 1 and y in {-1, 1}. One row
replaced by another: pure epsilon-DP, for the exact minimiser; Newton's method stops where the gradient's norm is below 1e-10,
and noise is NumPy's, so these are for comparison with dpppl and not for release.
"""

import math

import numpy as np

CURVATURE = 0.25
"""Largest second derivative of the logistic loss."""


def clipped_rows(x):
    """Rows (N, D) shrunk to norm at most 1, as the sensitivity assumes."""
    return x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))


def noise(rng, dimension, rate):
    """A draw (D,) with density proportional to exp(-rate |b|): a uniform direction, and a length that is Gamma(D, 1 / rate)."""
    direction = rng.standard_normal(dimension)
    return direction / np.linalg.norm(direction) * rng.gamma(dimension, 1.0 / rate)


def minimize(x, y, regularization, linear=0.0):
    """argmin of J(w) + linear.w, shape (D,), by Newton's method; steps are halved until the gradient is shorter."""
    signed = x * y[:, None]

    def gradient_at(w):
        wrong = np.exp(-np.logaddexp(0.0, signed @ w))  # the probability that the model gives to the other label
        return -signed.T @ wrong / len(x) + regularization * w + linear, wrong * (1.0 - wrong)

    w = np.zeros(x.shape[1])
    for _ in range(200):
        gradient, weights = gradient_at(w)
        length, size = np.linalg.norm(gradient), 1.0
        if length < 1e-10:
            return w
        hessian = (x * weights[:, None]).T @ x / len(x) + regularization * np.eye(len(w))
        step = np.linalg.solve(hessian, gradient)
        while size > 1e-10 and np.linalg.norm(gradient_at(w - size * step)[0]) > (1.0 - 0.1 * size) * length:
            size /= 2.0
        w = w - size * step
    raise RuntimeError(
        "Newton's method did not converge, and the guarantee is for the minimiser: raise regularization."
    )


def sensitivity(num_rows, regularization):
    """How far replacing one row moves the minimiser: 2 / (N regularization). Their Corollary 8."""
    return 2.0 / (num_rows * regularization)


def output_perturbation(rng, x, y, *, epsilon, regularization):
    """The minimiser plus noise of density proportional to exp(-(epsilon / sensitivity) |b|). Their Algorithm 1.

    `x`: (N, D); `y`: (N,) of -1 and 1. *Guarantee*: epsilon-DP for replacing one row."""
    w = minimize(clipped_rows(x), y, regularization)
    return w + noise(rng, len(w), epsilon / sensitivity(len(x), regularization))


def objective_settings(num_rows, *, epsilon, regularization):
    """(rate of the noise, regularization that is used) of objective perturbation.

    Of epsilon, 2 log(1 + c / (N regularization)) pays for the change of variables; where that is too much, half does, and
    the regularization is raised to N regularization = c / (exp(epsilon / 4) - 1)."""
    rest = epsilon - 2.0 * math.log1p(CURVATURE / (num_rows * regularization))
    if rest <= 0.0:
        rest, regularization = epsilon / 2.0, CURVATURE / (num_rows * math.expm1(epsilon / 4.0))
    return rest / 2.0, regularization


def objective_perturbation(rng, x, y, *, epsilon, regularization):
    """argmin of J(w) + b.w / N, where b has density proportional to exp(-rate |b|). Their Algorithm 2.

    `x`: (N, D); `y`: (N,) of -1 and 1. *Guarantee*: epsilon-DP for replacing one row."""
    rate, regularization = objective_settings(len(x), epsilon=epsilon, regularization=regularization)
    return minimize(clipped_rows(x), y, regularization, noise(rng, x.shape[1], rate) / len(x))
