"""Which latents a posterior knows only together: from released covariances alone."""

from collections.abc import Sequence

import numpy as np

Array = np.ndarray
SINGULAR = 0.05
"""The smallest eigenvalue of a precision matrix of unit diagonal that is no finding: a variance is then about twenty times
that of the latent where all others are known."""
_PART, _MOST_NAMED, _ROUNDING = 0.15, 6, 1e-13


def known_together(names: Sequence[str], covariance: Array) -> tuple[str, ...]:
    """Name the latents of a posterior covariance (d, d) that are known together and not one by one; none where each is known.

    Columns that add up to a constant leave the likelihood flat along one direction (Belsley, Kuh, Welsch 1980, chapter 3). Its
    latents are the large entries of the eigenvector for the smallest eigenvalue, which no unit of a column changes.

    >>> known_together("abc", np.array([[1.0, -0.999, 0.0], [-0.999, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    ('a', 'b')
    >>> known_together("abc", np.diag([1.0, 1e-9, 1e9]))
    ()"""
    sd = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.outer(sd, sd))
    precision = (vectors / np.maximum(values, _ROUNDING)) @ vectors.T
    scales = np.sqrt(np.diag(precision))
    values, vectors = np.linalg.eigh(precision / np.outer(scales, scales))
    return _large(names, vectors[:, 0]) if values[0] < SINGULAR else ()


def _large(names: Sequence[str], vector: Array) -> tuple[str, ...]:
    size = np.abs(vector)
    chosen = [number for number in np.argsort(-size, kind="stable")[:_MOST_NAMED] if size[number] > _PART * size.max()]
    return tuple(names[number] for number in sorted(chosen))


def add_up(latents: Sequence[str]) -> str:
    """The cure where these latents are known only together; "" for none."""
    words = (
        f"the rows know {listed(latents)} together and hardly one by one, as where a column is there twice, or dummies of all "
        "levels or all B-splines stand next to an intercept: leave one of these columns out, centre one that is nearly constant"
    )
    return words if latents else ""


def listed(latents: Sequence[str]) -> str:
    """Latents in a sentence; there may be more where it names six."""
    more = " and others" if len(latents) == _MOST_NAMED else ""
    return f"{' and '.join(map(repr, latents))}{more}"
