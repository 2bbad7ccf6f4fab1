"""A summary table: weighted samples, and whether they may be read."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin


def print_table(
    samples: Any, weights: np.ndarray, prob: float, verdicts: Mapping[str, np.ndarray], max_rows: int
) -> None:
    """Print weighted mean, sd and quantiles and the verdict of the first `max_rows` elements; n_eff and r_hat ignore the
    weights.

    `samples`: {site: (chains, draws, ...)}; `weights`: (chains, draws); `verdicts`: {site: words (...)}."""
    flat = weights.reshape(-1) / weights.sum()
    low, high = (1.0 - prob) / 2.0, (1.0 + prob) / 2.0
    header = ["mean", "std", "median", f"{low:.1%}", f"{high:.1%}", "n_eff", "r_hat"]
    lines: list[list[str]] = []
    left = 0
    for site, value in samples.items():
        value = np.asarray(value, np.float64)
        elements = list(np.ndindex(value.shape[2:]))
        shown, left = elements[: max_rows - len(lines)], left + len(elements[max(0, max_rows - len(lines)) :])
        for index in shown:
            draws = value[(slice(None), slice(None), *index)]
            mean = flat @ draws.ravel()
            with np.errstate(all="ignore"):
                std = np.sqrt(flat @ (draws.ravel() - mean) ** 2)
                quantiles = np.quantile(draws, (0.5, low, high), weights=weights / weights.sum(), method="inverted_cdf")
                columns = [mean, std, *quantiles, effective_sample_size(draws), split_gelman_rubin(draws)]
            name = site + (f"[{','.join(map(str, index))}]" if index else "")
            lines.append([name, *(f"{float(column):.2f}" for column in columns), str(verdicts[site][index])])
    width = max(len(line[0]) for line in lines)
    print("\n" + " " * width + "".join(f"{title:>10}" for title in header) + "  verdict")
    for name, *numbers, verdict in lines:
        print(f"{name:>{width}}" + "".join(f"{number:>10}" for number in numbers) + f"  {verdict}")
    if left:
        print(f"... and {left} more: print_summary(max_rows=...), verdict.by_site")
    if np.ptp(weights) > 1e-6 * weights.max():
        print("mean, std and quantiles are weighted; n_eff and r_hat are not")
    print()
