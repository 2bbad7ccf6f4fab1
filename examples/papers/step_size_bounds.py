"""How large a Langevin step may be for a given epsilon: two figures of Li et al. 2019 with the valid bound on top.

    python examples/papers/step_size_bounds.py --output figures

Figure 1: step size against epsilon, 50,000 rows, 10,000 steps, L = 1, delta = 1e-5. Figure 2: step size against the
number of rows N (L = 1) and against L (N = 10,000), delta = 1/N, N steps, epsilon = 0.1 (the paper does not print its
epsilon). Batches hold sqrt(N) rows on average, as in the paper's experiments. Tables are printed and written as CSV;
pictures need matplotlib. Li et al. publish no constants: theirs are backed out of their one worked example.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.papers import textbook_bounds as bounds

CURVES = (
    "valid, constant",
    "valid, decreasing",
    "Li et al. 2019, constant (as published)",
    "Li et al. 2019, decreasing (as published)",
    "Wang et al. 2015 (as published)",
)


def step_sizes(epsilon, delta, num_data, num_steps, clipping_norm, max_values):
    """First step of each bound in CURVES, in the papers' convention."""
    setting = dict(num_data=num_data, num_steps=num_steps, clipping_norm=clipping_norm)
    valid = dict(setting, sampling_rate=num_data**-0.5, max_values=max_values)
    return [
        bounds.largest_step_size(epsilon, delta, **valid),
        bounds.largest_step_size(epsilon, delta, power=1 / 3, **valid),
        bounds.li_2019_constant_step_size(epsilon, delta, **setting),
        bounds.li_2019_decreasing_step_size(epsilon, delta, **setting),
        bounds.wang_2015_step_size(epsilon, delta, **setting),
    ]


def report(name, label, xs, rows, output):
    """Print one table; with an output folder also write NAME.csv and, where matplotlib is installed, NAME.png."""
    print(f"\n{name}\n{label:>10}  " + "  ".join(f"{curve:>42}" for curve in CURVES))
    for x, row in zip(xs, rows, strict=True):
        print(f"{x:10.4g}  " + "  ".join(f"{value:42.3g}" for value in row))
    if output is None:
        return
    output.mkdir(parents=True, exist_ok=True)
    with open(output / f"{name}.csv", "w", newline="") as file:
        csv.writer(file).writerows([[label, *CURVES], *([x, *row] for x, row in zip(xs, rows, strict=True))])
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: no picture")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4.5), layout="constrained")
    for curve, values, style in zip(CURVES, np.transpose(rows), ("k-", "k--", "C0-", "C0--", "C1:"), strict=True):
        axes.loglog(xs, values, style, marker=".", label=curve)
    axes.set(xlabel=label, ylabel="largest (first) step size")
    axes.legend(fontsize="small")
    figure.savefig(output / f"{name}.png", dpi=150)
    plt.close(figure)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for CSV files and pictures")
    parser.add_argument("--points", type=int, default=7, help="values of epsilon in figure 1")
    parser.add_argument("--rows", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6], help="N in figure 2")
    parser.add_argument("--norms", type=float, nargs="+", default=[0.1, 0.5, 1.0, 10.0], help="L in figure 2")
    parser.add_argument("--fixed-rows", type=int, default=10**4, help="N where L varies in figure 2")
    parser.add_argument("--max-values", type=int, default=32, help="distinct noise multipliers of decreasing steps")
    args = parser.parse_args(argv)

    epsilons = np.geomspace(0.02, 1.7, args.points)
    rows = [step_sizes(epsilon, 1e-5, 50_000, 10_000, 1.0, args.max_values) for epsilon in epsilons]
    report("step_size_against_epsilon", "epsilon", epsilons, rows, args.output)
    rows = [step_sizes(0.1, 1 / n, n, n, 1.0, args.max_values) for n in args.rows]
    report("step_size_against_rows", "N", args.rows, rows, args.output)
    n = args.fixed_rows
    rows = [step_sizes(0.1, 1 / n, n, n, norm, args.max_values) for norm in args.norms]
    report("step_size_against_norm", "L", args.norms, rows, args.output)


if __name__ == "__main__":
    main()
