"""The baselines on Adult in 8 columns: weights of a logistic regression as `examples/adult.py` scores them.

All of these are for replacing one row by another, which is a stronger neighbour than adding or removing one; PATE and one
posterior sample look at public rows or draw their noise with NumPy, so they are for comparison only.
"""

import numpy as np
from scipy.optimize import brentq

import dpppl
from examples.baselines import hybrid, pate, perturbation, posterior_sample

SCALE = 2.5
"""Rows of Adult in 8 columns with an intercept are about this long: a public constant. Longer ones are shrunk."""
NUM_TEACHERS, NUM_QUERIES = 250, 200


def design(x):
    """With an intercept, in units in which rows are about 1 long."""
    return np.c_[x, np.ones(len(x))] / SCALE


def output_perturbation(rng, x, y, epsilon):
    return perturbation.output_perturbation(rng, design(x), 2 * y - 1, epsilon=epsilon, regularization=3e-3)


def objective_perturbation(rng, x, y, epsilon):
    return perturbation.objective_perturbation(rng, design(x), 2 * y - 1, epsilon=epsilon, regularization=1e-4)


def one_posterior_sample(rng, x, y, epsilon):
    return posterior_sample.one_posterior_sample(
        rng, design(x), 2 * y - 1, epsilon=epsilon, radius=4.0, num_tries=100_000
    )


def hybrid_chain(rng, x, y, epsilon, delta=1e-5):
    """Half of epsilon for the sample that a DP-SGLD chain starts from."""
    budget = {"epsilon": epsilon, "delta": delta}
    return hybrid.hybrid_samples(rng, dpppl.secret_key(), design(x), 2 * y - 1, radius=4.0, **budget)[0]


def pate_student(rng, x, y, epsilon, queries, delta=1e-5):
    """A student of GNMax answers on public `queries` (NUM_QUERIES, D); its noise by the bound that looks at no vote."""
    parts = np.array_split(rng.permutation(len(x)), NUM_TEACHERS)
    teachers = np.stack([perturbation.minimize(design(x[p]), 2 * y[p] - 1, 1e-2) for p in parts])
    ones = np.sum(teachers @ design(queries).T > 0, axis=0)
    cost = lambda sigma: NUM_QUERIES * pate.ORDERS / sigma**2  # noqa: E731
    sigma = brentq(lambda sigma: pate.epsilon(cost(sigma), delta) - epsilon, 1.0, 1e5)
    labels = pate.gnmax(rng, np.stack([NUM_TEACHERS - ones, ones], axis=1), sigma)
    return perturbation.minimize(design(queries), 2 * labels - 1, 1e-2)


WEIGHTS = {
    "output perturbation": output_perturbation,
    "objective perturbation": objective_perturbation,
    "one posterior sample": one_posterior_sample,
    "hybrid sampler": hybrid_chain,
    "PATE": pate_student,
}


def draws(method, seed, x, y, epsilon, **public):
    """As `methods.draws`: one draw of the weights and the intercept, of the hybrid sampler 200."""
    w = np.atleast_2d(WEIGHTS[method](np.random.default_rng(seed), x, y, epsilon, **public)) / SCALE
    return {"weights": w[:, :-1], "intercept": w[:, -1]}
