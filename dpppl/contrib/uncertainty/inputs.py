"""Predictions, responses, weights and masks as checked NumPy arrays."""

import jax
import numpy as np
from numpy.typing import ArrayLike

from dpppl.errors import ConfigurationError


def as_array(value: ArrayLike, name: str) -> np.ndarray:
    """`value` as a float64 array. Raises ConfigurationError inside JAX transformations and for what is not numbers."""
    if isinstance(value, jax.core.Tracer):
        raise ConfigurationError(f"{name} is traced: call this outside of jax.jit and other transformations.")
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name} must be an array of real numbers, got {type(value).__name__}.") from None


def row_weights(num_rows: int, weights: ArrayLike | None, mask: ArrayLike | None) -> np.ndarray:
    """Weights (N,) that sum to 1; 0 where `mask` is False. Raises ConfigurationError unless some weight is positive."""
    found = np.ones(num_rows) if weights is None else as_array(weights, "weights")
    if found.shape != (num_rows,):
        raise ConfigurationError(f"weights must have shape ({num_rows},), one for each row, got {found.shape}.")
    if mask is not None:
        kept = as_array(mask, "mask")
        if kept.shape != (num_rows,) or not np.all((kept == 0.0) | (kept == 1.0)):
            raise ConfigurationError(f"mask must have shape ({num_rows},) and hold True or False only.")
        found = np.where(kept == 1.0, found, 0.0)
    if not (np.all(np.isfinite(found)) and np.all(found >= 0.0) and found.sum() > 0.0):
        raise ConfigurationError(
            "weights must be finite and not negative, and at least one unmasked row needs a positive weight."
        )
    return found / found.sum()


def class_predictions(
    probabilities: ArrayLike, labels: ArrayLike, weights: ArrayLike | None, mask: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities (N,) or (N, K), labels (N,) int and weights (N,), of the rows that have a weight.

    Raises ConfigurationError where shapes differ, a probability is outside of [0, 1], those of a row do not sum to 1, or
    a label is not a class. Rows without a weight may hold anything."""
    chances, classes = as_array(probabilities, "probabilities"), as_array(labels, "labels")
    if chances.ndim not in (1, 2) or (chances.ndim == 2 and chances.shape[1] < 2):
        raise ConfigurationError(
            "probabilities must have shape (N,), those of class 1, or (N, K) with K of at least 2; average over posterior "
            f"samples first. Got {chances.shape}."
        )
    if classes.shape != chances.shape[:1]:
        raise ConfigurationError(f"labels must have shape {chances.shape[:1]}, got {classes.shape}.")
    share = row_weights(len(chances), weights, mask)
    chances, classes, share = chances[share > 0.0], classes[share > 0.0], share[share > 0.0]
    if not np.all((chances >= 0.0) & (chances <= 1.0 + 1e-6)):
        raise ConfigurationError("probabilities must lie in [0, 1]: give probabilities, not logits.")
    if chances.ndim == 2 and np.any(np.abs(chances.sum(axis=1) - 1.0) > 1e-3):
        raise ConfigurationError("the probabilities of each row must sum to 1.")
    num_classes = 2 if chances.ndim == 1 else chances.shape[1]
    if not np.all((classes >= 0) & (classes < num_classes) & (classes == np.round(classes))):
        raise ConfigurationError(
            f"labels must be whole numbers from 0 to {num_classes - 1}: pass (y + 1) / 2 for labels -1 and 1, y - 1 for 1 to K."
        )
    return np.minimum(chances, 1.0), classes.astype(int), share


def real_predictions(
    samples: ArrayLike, responses: ArrayLike, weights: ArrayLike | None, mask: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictive samples (S, N), responses (N,) and weights (N,), of the rows that have a weight.

    Raises ConfigurationError where shapes differ or a number is not finite."""
    draws, observed = as_array(samples, "samples"), as_array(responses, "responses")
    if draws.ndim != 2 or draws.shape[0] < 1:
        raise ConfigurationError(f"samples must have shape (S, N), S draws for each of N rows, got {draws.shape}.")
    if observed.shape == draws.shape[:1] != draws.shape[1:]:
        raise ConfigurationError(
            f"samples must have shape (S, N), S draws for each of N rows, got {draws.shape} for {len(observed)} responses; pass "
            "samples.T."
        )
    if observed.shape != draws.shape[1:]:
        raise ConfigurationError(f"responses must have shape {draws.shape[1:]}, got {observed.shape}.")
    share = row_weights(draws.shape[1], weights, mask)
    draws, observed, share = draws[:, share > 0.0], observed[share > 0.0], share[share > 0.0]
    if not (np.all(np.isfinite(draws)) and np.all(np.isfinite(observed))):
        raise ConfigurationError("samples and responses must be finite; leave rows out by mask.")
    return draws, observed, share
