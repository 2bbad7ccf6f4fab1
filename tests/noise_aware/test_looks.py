"""The recipe without rows: looks at a likelihood that is exactly quadratic, and what it makes of them."""

import functools

import numpy as np
import pytest

from dpppl.access.norm_histogram import LOWEST, SIZE
from dpppl.noise_aware import recipe
from dpppl.noise_aware.bounds import Bounds
from dpppl.noise_aware.curvature import ReleasedCurvature
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.recipe import Line, Look
from dpppl.row_statistics.accesses import At, Kind, num_directions
from dpppl.row_statistics.basis import Basis, coordinate_blocks
from dpppl.row_statistics.coordinates import Prior
from dpppl.row_statistics.fit import Order
from dpppl.row_statistics.matrices import isometric
from dpppl.row_statistics.plan import plan_of
from dpppl.row_statistics.statistics import units

WIDTH, NUM_ROWS = 4, 20_000


def full(dimension):
    """A standard normal prior, one block."""
    return Prior(np.zeros(dimension), np.ones(dimension), [np.arange(dimension)], np.eye(dimension))


def wide(dimension=60):
    return Prior(np.zeros(dimension), np.full(dimension, 2.0), coordinate_blocks([dimension], 30))


# A likelihood that is exactly quadratic, in the place of rows


class Quadratic:
    """Answers accesses as rows would whose scores sum to H (x - theta): theta and H, of latents; and notes what it was asked.

    - **far** - the number of a look, and by how much its scores are off, in sds of its noise."""

    def __init__(self, x, h, rng, noise=1.0, far=None):
        self.x, self.h, self.rng, self.noise, self.far = x, h, rng, noise, far
        self.asked, self.looks = [], []

    def in_u(self, basis):
        """H in u, and its blocks."""
        root = np.array([basis.to_latents(basis.layout.gathered(one)) for one in np.eye(len(self.x))]).T
        inside = root.T @ self.h @ root
        padded = np.pad(inside, (0, 1))
        return root, inside, np.array([padded[np.ix_(i, i)] for i in basis.layout.numbers])

    def __call__(self, kind, at, sigma):
        self.asked.append((kind, sigma))
        basis, noisy = at.basis, lambda v: v + self.noise * sigma * self.rng.standard_normal(np.shape(v))
        if kind is Kind.SCALARS:
            return noisy(np.zeros(Order(2, num_directions(len(self.x))).size))
        root, inside, blocks = self.in_u(basis)
        if kind is Kind.BINS:
            lengths = np.sqrt(np.trace(inside) / NUM_ROWS) * np.exp(0.3 * np.random.default_rng(1).standard_normal(NUM_ROWS))
            counts = np.bincount(np.floor(np.log2(lengths)).astype(int) - LOWEST, minlength=SIZE)
            return noisy(np.tile(counts, (2, 1)) / np.sqrt(2.0))
        self.looks.append(at)
        unit, unit_a, unit_j = units(at.score_share, 1.0)
        score, flat = root.T @ self.h @ (self.x - at.point), np.ravel(isometric(blocks))
        if self.far is not None and len(self.looks) == self.far[0]:
            score = score + self.far[1] * sigma * at.norm / unit
        found = {
            "score": unit / at.norm * score,
            "A": unit_a / at.curvature_bound * np.append(flat, inside @ basis.sketch),
            "J": unit_j / at.norm**2 * flat,
        }
        return {name: noisy(value) for name, value in found.items()}


def run(seed, mu, noise=1.0, far=None):
    """An outcome, the truth from the prior, mean and variances of the posterior without privacy noise, and what was asked."""
    prior, rng = full(WIDTH), np.random.default_rng((7, seed))
    axes = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    h = NUM_ROWS * (axes * np.array([0.02, 0.1, 0.3, 0.6])) @ axes.T
    truth = rng.standard_normal(WIDTH)
    ask = Quadratic(truth + np.linalg.solve(np.linalg.cholesky(h).T, rng.standard_normal(WIDTH)), h, rng, noise, far)
    found = recipe.run_recipe(ask, plan_of(True, WIDTH, NUM_ROWS), 1.0 / mu, prior, Bounds(), NUM_ROWS)
    spread = np.linalg.inv(h + np.eye(WIDTH))
    return found, truth, spread @ h @ ask.x, np.diag(spread), ask


@functools.cache
def runs(mu, noise=1.0, count=100):
    """Of runs: distances of the truth in sds (count, d), squared distances of means from those without noise and by how much
    variances are larger, and chi-squared."""
    prior, z, moved, added, scatter = full(WIDTH), [], [], [], []
    for seed in range(count):
        found, truth, exact, least, _ = run(seed, mu, noise)
        mean, variance = Mixture.of(found.surrogate, prior).moments()
        z.append((mean - truth) / np.sqrt(variance))
        moved.append((mean - exact) ** 2 / variance)
        added.append((variance - least) / variance)
        scatter.append(found.chi_squared)
    return np.array(z), np.array(moved), np.array(added), np.array(scatter)
