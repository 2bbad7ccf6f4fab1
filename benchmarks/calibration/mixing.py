"""The picture of docs/mixing.md: spread of private samples over the posterior's, by direction, against curvature.

UCI Adult (or, where it is missing, scikit-learn's digits), logistic regression, full batch, clipping norm 1.

python benchmarks/calibration/mixing.py --output docs/mixing.png
"""

import argparse
import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from examples.data import adult, digits, has_adult
from models.logistic_regression import gaussian

NUM_WARMUP, NUM_SAMPLES, DELTA = 1_000, 1_000, 1e-5
RUNS = [(dpppl.DPSGLD, 1.0), (dpppl.DPSGHMC, 1.0), (dpppl.DPSGNHT, 1.0), (dpppl.DPSGHMC, 3.0)]


def directions(x, y):
    """Laplace's approximation: curvatures of the log posterior at its mode, ascending, and directions as columns."""
    design, mode = np.c_[x, np.ones(len(y))].astype(np.float64), np.zeros(x.shape[1] + 1)
    for _ in range(20):
        probability = 1.0 / (1.0 + np.exp(-design @ mode))
        precision = (design * (probability * (1.0 - probability))[:, None]).T @ design + np.eye(len(mode))
        mode += np.linalg.solve(precision, design.T @ (y - probability) - mode)
    return np.linalg.eigh(precision)


def private_draws(kernel, epsilon, seed, x, y):
    """Draws (draws, coefficients) of one private chain, and its report."""
    mcmc = dpppl.MCMC(
        kernel(gaussian, clipping_norm=1.0),
        num_warmup=NUM_WARMUP,
        num_samples=NUM_SAMPLES,
        target_epsilon=epsilon,
        target_delta=DELTA,
        progress_bar=False,
        print_cost=False,
    )
    mcmc.run(jax.random.key(seed), x, y)  # a fixed key, so that the picture can be made again
    samples = mcmc.get_samples()
    draws = np.c_[np.asarray(samples["weights"]), np.asarray(samples["intercept"])]
    return draws, mcmc.privacy_report()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/mixing.png"))
    parser.add_argument("--digits", action="store_true", help="use scikit-learn's digits even where Adult is there")
    args = parser.parse_args()
    x, y, *_ = adult() if has_adult() and not args.digits else digits()
    curvatures, vectors = directions(x, y)

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    print("| kernel | epsilon | diffusion time | 100 / time | directions above | median sd ratio above | below |")
    print("|---|---|---|---|---|---|---|")
    for number, (kernel, epsilon) in enumerate(RUNS):
        draws, report = private_draws(kernel, epsilon, number, x, y)
        ratios, line = np.std(draws @ vectors, axis=0) * np.sqrt(curvatures), report.details.readable_curvature
        above = curvatures > line
        medians = [f"{np.median(part):.2f}" if part.size else "-" for part in (ratios[above], ratios[~above])]
        print(
            f"| {kernel.__name__} | {report.epsilon:.3f} | {report.details.diffusion_time:.3g} | {line:.0f} | "
            f"{above.sum()} of {above.size} | {medians[0]} | {medians[1]} |",
            flush=True,
        )
        style = {"color": f"C{number}", "label": f"{kernel.__name__}, epsilon = {epsilon:g}"}
        axes.plot(curvatures, ratios, ".", markersize=5, alpha=0.7, **style)
        axes.axvline(line, color=f"C{number}", linewidth=1, linestyle="--" if epsilon == 1 else ":")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="curvature of the posterior along a direction")
    axes.set(ylabel="sd of private samples / posterior sd", ylim=(0.02, 5))
    axes.set_title("dashed, dotted: curvature 100 / diffusion time of the report", fontsize=9)
    axes.legend(fontsize=8)
    figure.savefig(args.output, dpi=90)


if __name__ == "__main__":
    main()
