"""Private aggregation of teacher ensembles: noisy votes, and what they cost given the votes (Papernot et al. 2017, 2018).

Teachers are trained on disjoint rows, so one row added, removed or replaced changes one teacher's vote: one count falls by 1
and another rises by 1. Renyi costs of queries add up. Bounds that look at the votes hold for these votes against all neighbours,
D(M(votes) || M(neighbour)), not in the other direction, and are *themselves not private*: publish their epsilon only after
smoothing it (2018, appendix B), or publish the one that does not look at votes. Votes are (Q, K), Q
queries and K classes; orders (R,) are above 1; Renyi costs are (Q, R) or (R,). Noise is NumPy's: for comparison, not release.
"""

import numpy as np
from dp_accounting.rdp import compute_epsilon
from scipy.special import log_ndtr, logsumexp

ORDERS = np.concatenate([np.arange(1.5, 16.0, 0.25), np.arange(16, 256, 2), np.arange(256, 1025, 16)])


def lnmax(rng, votes, gamma):
    """Labels (Q,): the class with most votes after Laplace noise of scale 1 / gamma. 2017, equation 2."""
    return np.argmax(votes + rng.laplace(0.0, 1.0 / gamma, np.shape(votes)), axis=1)


def gnmax(rng, votes, sigma):
    """Labels (Q,): the class with most votes after Gaussian noise of sd sigma. 2018, section 4.1."""
    return np.argmax(votes + rng.normal(0.0, sigma, np.shape(votes)), axis=1)


def confident_gnmax(rng, votes, *, threshold, sigma_threshold, sigma):
    """(labels (Q,), answered (Q,)): GNMax where the noised largest count reaches the threshold. 2018, Algorithm 1."""
    votes = np.asarray(votes)
    answered = votes.max(axis=1) + rng.normal(0.0, sigma_threshold, len(votes)) >= threshold
    return np.where(answered, gnmax(rng, votes, sigma), -1), answered


def _gaps(votes):
    """How far each class but the largest is behind: (Q, K - 1)."""
    ordered = np.sort(np.asarray(votes, float), axis=1)
    return ordered[:, -1:] - ordered[:, :-1]


def log_q_laplace(votes, gamma):
    """Upper bound (Q,) on log P(LNMax does not say the class with most votes). 2017, Lemma 4."""
    gaps = gamma * _gaps(votes)
    bound = logsumexp(np.log(2.0 + gaps) - np.log(4.0) - gaps, axis=1)
    return np.minimum(bound, np.log1p(-1.0 / np.shape(votes)[1]))


def log_q_gaussian(votes, sigma):
    """The same of GNMax. 2018, Proposition 7."""
    bound = logsumexp(log_ndtr(-_gaps(votes) / (np.sqrt(2.0) * sigma)), axis=1)
    return np.minimum(bound, np.log1p(-1.0 / np.shape(votes)[1]))


def rdp_laplace(log_q, gamma, orders=ORDERS):
    """Renyi costs (Q, R) of LNMax, which is 2 gamma-DP, for outcomes that differ with probability q. 2017, Theorems 2, 3."""
    pure, log_q = 2.0 * gamma, np.asarray(log_q)[:, None]
    independent = np.minimum(pure, 0.5 * pure**2 * orders) + np.zeros_like(log_q)
    with np.errstate(divide="ignore", invalid="ignore"):
        same = np.log1p(-np.exp(log_q))
        moved = np.log1p(-np.exp(np.minimum(0.0, pure + log_q)))
        first = same + (orders - 1.0) * (same - moved)
        found = np.logaddexp(first, log_q + pure * (orders - 1.0)) / (orders - 1.0)
    applies = log_q < -np.logaddexp(0.0, pure)  # q < 1 / (1 + exp(pure))
    return np.where(applies, np.fmin(independent, found), independent)


def rdp_gaussian(log_q, sigma, orders=ORDERS):
    """Renyi costs (Q, R) of GNMax for outcomes that differ with probability q. 2018, Theorem 6 and Propositions 8, 10."""
    log_q = np.asarray(log_q)[:, None]
    independent = orders / sigma**2 + np.zeros_like(log_q)
    second = sigma * np.sqrt(-log_q)  # the higher orders of the theorem
    first = second + 1.0
    with np.errstate(all="ignore"):
        exponent = (log_q + second / sigma**2) * (1.0 - 1.0 / second)
        same = np.log1p(-np.exp(log_q))
        log_a = same - np.log1p(-np.exp(exponent))
        log_b = first / sigma**2 - log_q / (first - 1.0)
        found = np.logaddexp(same + (orders - 1.0) * log_a, log_q + (orders - 1.0) * log_b) / (orders - 1.0)
        largest = (second - 1.0) * second / sigma**2 - second * (
            np.log(first / (first - 1.0)) + np.log(second / (second - 1.0))
        )
    applies = (second > 1.0) & (orders < first) & (log_q <= largest) & (exponent < 0.0)
    found = np.where(np.isneginf(log_q), 0.0, found)
    return np.where(applies | np.isneginf(log_q), np.fmin(independent, found), independent)


def rdp_threshold(votes, threshold, sigma, orders=ORDERS):
    """Renyi costs (Q, R) of asking whether a noised largest count, which one vote moves by 1, reaches the threshold.

    2018, section 4.2: as GNMax with noise sqrt(2) sigma, whose counts a vote moves by sqrt(2)."""
    ahead = (np.max(votes, axis=1) - threshold) / sigma
    return rdp_gaussian(log_ndtr(-np.abs(ahead)), np.sqrt(2.0) * sigma, orders)


def lnmax_cost(votes, gamma, orders=ORDERS):
    """Renyi cost (R,) of answering all queries by LNMax."""
    return rdp_laplace(log_q_laplace(votes, gamma), gamma, orders).sum(axis=0)


def gnmax_cost(votes, sigma, orders=ORDERS):
    """Renyi cost (R,) of answering all queries by GNMax."""
    return rdp_gaussian(log_q_gaussian(votes, sigma), sigma, orders).sum(axis=0)


def confident_gnmax_cost(votes, answered, *, threshold, sigma_threshold, sigma, orders=ORDERS):
    """Renyi cost (R,) of a run of Confident-GNMax: all queries pass the threshold's test, those `answered` (Q,) are asked."""
    votes = np.asarray(votes)
    return rdp_threshold(votes, threshold, sigma_threshold, orders).sum(axis=0) + gnmax_cost(
        votes[np.asarray(answered, bool)], sigma, orders
    )


def epsilon(cost, delta, orders=ORDERS):
    """Epsilon at delta of a Renyi cost (R,); by dp_accounting."""
    return float(compute_epsilon(orders, cost, delta)[0])
