"""One posterior sample as a private release (Wang, Fienberg, Smola 2015).

A sample of the posterior is private by itself where every row's log likelihood is bounded. *The guarantee is for exact samples
only*: a chain in their place gives none, since how far it is from the posterior is not known. So samples are drawn by
rejection here, which is exact and feasible for few latents only; how long it takes depends on the rows. A second sample
costs as much again.
"""

import numpy as np


def temper(epsilon, bound):
    """The power rho = min(1, epsilon / (4 bound)) of the likelihood at which one sample is epsilon-DP. Their Theorem 1.

    `bound`: of |log likelihood| of any row at any latents. One row replaced moves rho times the log likelihood by at most
    2 rho bound, and its normaliser by as much."""
    return min(1.0, epsilon / (4.0 * bound))


def row_bound(radius):
    """Largest |log likelihood| of logistic regression for rows of norm at most 1 and weights of norm at most `radius`."""
    return float(np.logaddexp(0.0, radius))


def log_likelihood(w, x, y):
    """Of all rows, for weights (..., D); `y` of -1 and 1. Shape (...)."""
    return -np.sum(np.logaddexp(0.0, -(w @ (x * y[:, None]).T)), axis=-1)


def upper_bound(x, y, radius):
    """No smaller than the log likelihood of any weights of norm at most `radius`, and close to the largest.

    It is concave: from any w it grows by at most the gradient's largest product with a step inside of the ball, so the bound
    holds wherever projected gradient ascent stops."""
    w, signed = np.zeros(x.shape[1]), x * y[:, None]
    step = 4.0 / max(1e-300, np.linalg.norm(x, 2) ** 2)
    for _ in range(2_000):
        gradient = signed.T @ np.exp(-np.logaddexp(0.0, signed @ w))
        growth = radius * np.linalg.norm(gradient) - gradient @ w
        if growth < 1e-3:
            break
        w = w + step * gradient
        w = w * min(1.0, radius / max(1e-300, np.linalg.norm(w)))
    return log_likelihood(w, x, y) + growth


def one_posterior_sample(rng, x, y, *, epsilon, radius, num_tries=10_000_000):
    """One sample (D,) of the weights, uniform in a ball of `radius` before the data, given rows of norm at most 1.

    `x`: (N, D), shrunk to norm 1; `y`: (N,) of -1 and 1. *Guarantee*: epsilon-DP for replacing one row.
    Raises RuntimeError after `num_tries` proposals; that a release failed tells of the rows, too."""
    x = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    rho, highest, batch = temper(epsilon, row_bound(radius)), upper_bound(x, y, radius), 1_000
    for _ in range(-(-num_tries // batch)):
        direction = rng.standard_normal((batch, x.shape[1]))
        length = radius * rng.random((batch, 1)) ** (1.0 / x.shape[1])
        w = length * direction / np.linalg.norm(direction, axis=1, keepdims=True)
        kept = np.log(rng.random(batch)) < rho * (log_likelihood(w, x, y) - highest)
        if kept.any():
            return w[np.argmax(kept)]
    raise RuntimeError("no proposal was accepted: exact sampling is for few latents, few rows or a small epsilon.")
