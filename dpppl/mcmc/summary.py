"""A summary table for samples with unequal weights."""

from typing import Any

import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin


def weighted_quantile(values: np.ndarray, weights: np.ndarray, probability: float) -> np.ndarray:
    """Quantile of `values` (draws, ...) under `weights` (draws,), along the leading axis."""
    order = np.argsort(values, axis=0)
    cumulative = np.cumsum(weights[order], axis=0)
    position = np.argmax(cumulative >= probability * cumulative[-1], axis=0)
    return np.take_along_axis(np.take_along_axis(values, order, axis=0), position[None], axis=0)[0]


def print_weighted_summary(samples: Any, weights: np.ndarray, prob: float) -> None:
    """Print weighted mean, sd and quantiles by site; n_eff and r_hat ignore the weights.

    `samples`: {site: (chains, draws, ...)}; `weights`: (chains, draws)."""
    flat = weights.reshape(-1) / weights.sum()
    low, high = (1.0 - prob) / 2.0, (1.0 + prob) / 2.0
    header = ["mean", "std", "median", f"{low:.1%}", f"{high:.1%}", "n_eff*", "r_hat*"]
    lines = []
    for site, value in samples.items():
        value = np.asarray(value, np.float64)
        draws = value.reshape(-1, *value.shape[2:])
        mean = np.tensordot(flat, draws, axes=1)
        std = np.sqrt(np.tensordot(flat, (draws - mean) ** 2, axes=1))
        quantiles = [weighted_quantile(draws, flat, p) for p in (0.5, low, high)]
        with np.errstate(all="ignore"):
            columns = [mean, std, *quantiles, effective_sample_size(value), split_gelman_rubin(value)]
        for index in np.ndindex(mean.shape):
            name = site + (f"[{','.join(map(str, index))}]" if index else "")
            lines.append([name, *(f"{np.asarray(column)[index]:.2f}" for column in columns)])
    width = max(len(line[0]) for line in lines)
    print("\n" + " " * width + "".join(f"{title:>10}" for title in header))
    for name, *numbers in lines:
        print(f"{name:>{width}}" + "".join(f"{number:>10}" for number in numbers))
    print("\nmean, std and quantiles are weighted; * ignores the weights\n")


def print_what_not_to_read(samples: Any, mixing_line: str) -> None:
    """Print the sites whose chains disagree, and the mixing budget. `samples`: {site: (chains, draws, ...)}."""
    if min(np.shape(value)[1] for value in samples.values()) >= 4:
        with np.errstate(all="ignore"):
            worst = {site: np.max(split_gelman_rubin(np.asarray(value))) for site, value in samples.items()}
        poor = [site for site, value in worst.items() if not value <= 1.05]
        if poor:
            print(f"split R-hat above 1.05, do not read the spread as the posterior's: {', '.join(poor)}")
    print(f"mixing budget: {mixing_line}")
