"""Tests of accuracy with random points (Lemos, Coogan, Hezaveh, Perreault-Levasseur 2023): are posteriors right jointly?"""

import numpy as np

LEVELS = np.linspace(0.0, 1.0, 101)


def calibration_error(drawn, truths, rng, num_references=20):
    """Mean distance of expected coverage from the nominal: of balls around random points that hold as many draws as they may.

    `drawn`: (k, n, d), n draws of each of k posteriors; `truths`: (k, d). Points are uniform over the box of the truths; 0 where
    posteriors are right, up to chance, which leaves about .3 / sqrt(k)."""
    low, high = truths.min(axis=0), truths.max(axis=0)
    below = []
    for _ in range(num_references):
        point = rng.uniform(low, high, size=truths.shape)
        own = np.linalg.norm(truths - point, axis=1)
        below.append(np.mean(np.linalg.norm(drawn - point[:, None], axis=2) < own[:, None], axis=1))
    expected = np.mean(np.array(below)[:, :, None] < LEVELS, axis=(0, 1))
    return float(np.mean(np.abs(expected - LEVELS)))
