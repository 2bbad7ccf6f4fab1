"""Responses that a row could have given, and what follows from their scores."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp


def moment(weights: Any, psi: Any, scores: Any) -> Any:
    """The matrix (k, k) of sum weights psi scores', for psi, scores (m, k)."""
    return jnp.sum(weights[:, None, None] * psi[:, :, None] * scores[:, None, :], axis=0)


class Members(NamedTuple):
    """Responses that a row could have given, the real one first.

    - **log_probs** - (1 + m,).
    - **scores** - (1 + m, d), in u; with a `jacobian` of k numbers in blocks of u they are its products with `scores` (1 + m, k).
    - **weights** - (1 + m,).
    - **jacobian** - of the k numbers that a distribution is made of, in blocks of u, or None.
    - **others** - by site, (m, ...)."""

    log_probs: Any
    scores: Any
    weights: Any
    jacobian: Any
    others: Any


class Influence(NamedTuple):
    """A row's score and its curvature.

    - **score** - of the real response, (d,).
    - **psi** - the same, centred and clipped, (d,).
    - **length** - the Frobenius norm of the row's curvature.
    - **is_clipped** - whether the centred score was longer than the norm.
    - **matrix** - computes the curvature, as its `geometry` has it.
    - **squares** - of directions (d, n): the model's variance of scores along each.
    - **along** - of directions (d, n): the row's curvature along each."""

    score: Any
    psi: Any
    length: Any
    is_clipped: Any
    matrix: Callable[[], Any]
    squares: Callable[[Any], Any]
    along: Callable[[Any], Any]
