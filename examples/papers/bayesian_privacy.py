"""The Bayesian accountant of Triastcyn and Faltings (2020): their figures 1, 3, 4 and 5, their table 1 on UCI Adult and Abalone,
and their test that gradients of training and test rows are alike. Beside each Bayesian epsilon stands the one that holds for
every row.

python examples/papers/bayesian_privacy.py --out docs/results
"""

import argparse
import json
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
from numpyro.infer.autoguide import AutoDiagonalNormal
from scipy.stats import levene, ttest_ind

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from examples.data import abalone, adult, data_folder
from examples.papers.bayesian_accountant import ORDERS, BayesianAccountant
from examples.papers.bayesian_price import svi_spent
from models.logistic_regression import gaussian

DELTA, BAYESIAN_DELTA = 1e-5, 1e-10
SHAPE = 0.9
"""Of the Weibull distribution of gradient norms: below 1, heavy tails. The paper does not print its value."""
PUBLISHED = {"abalone": (0.76, 7.6, 0.61), "adult": (0.81, 0.5, 0.2)}
"""Accuracy, epsilon and Bayesian epsilon of their table 1."""
SETTINGS = {"abalone": (26.0, 0.1, 300), "adult": (6.4, 0.02, 300)}
"""Clipping norm, sampling rate and steps, chosen here: the paper prints none for these rows."""


def guarantee(sigma, rate, steps):
    """Epsilon for every row at DELTA, by the moments accountant (Abadi et al. 2016): all are as long as the clipping norm."""
    return typical(lambda step: np.ones(2), sigma, rate, steps)


def typical(norms, sigma, rate, steps):
    """Bayesian epsilon at DELTA of rows with these norms in units of the noise's, drawn anew for each step."""
    accountant = BayesianAccountant(noise_multipliers=np.full(steps, sigma), sampling_rate=rate, delta=DELTA)
    return accountant.spent(norms(step) for step in range(steps)).epsilon


def weibull_norms(unit, num_rows=500, clip=False):
    """Of rows at a step, by its number, in units of `unit`."""

    def norms(step):
        drawn = np.random.default_rng(step).weibull(SHAPE, num_rows) / unit
        return np.minimum(drawn, 1.0) if clip else drawn

    return norms


def quantile(share):
    """Of the norms."""
    return (-np.log1p(-share)) ** (1.0 / SHAPE)


def growth(rate=0.01):
    """Figure 1: epsilon after so many steps with noise of one clipping norm, at four quantiles of the norms; unclipped."""
    steps = [1, 3, 10, 30, 100, 300, 1000]
    found = {"steps": steps, "dp": [guarantee(1.0, rate, t) for t in steps]}
    for share in (0.05, 0.25, 0.75, 0.95):
        found[f"{share:g}"] = [typical(weibull_norms(quantile(share)), 1.0, rate, t) for t in steps]
    return found


def noise_needed(clip, shares, rate=0.01, steps=100):
    """Figures 3 and 4: epsilon by noise, with the norms' quantile as unit, with clipping for both or for one."""
    sigmas = np.geomspace(0.5, 4.0, 10).tolist()
    found = {"sigmas": sigmas, "dp": [guarantee(sigma, rate, steps) for sigma in sigmas]}
    for share in shares:
        norms = weibull_norms(quantile(share), clip=clip)
        found[f"{share:g}"] = [typical(norms, sigma, rate, steps) for sigma in sigmas]
    return found


def orders(rate=64 / 60_000, steps=10_000):
    """Figure 5: epsilon by order, for rows that are all as long as the clipping norm, and noise of standard deviation 1."""
    found = {"orders": list(ORDERS)}
    for norm in (0.1, 0.7, 1.0):
        accountant = BayesianAccountant(
            noise_multipliers=np.ones(steps), sampling_rate=rate, delta=DELTA, failure_probability=1e-9
        )
        found[f"{norm:g}"] = list(accountant.spent(np.full((steps, 2), norm)).epsilons)
    return found


def table_row(name, num_rows=1000):
    """Table 1: variational inference at their epsilon, what it costs typical rows, and whether test rows' gradients differ."""
    x, y, x_test, y_test = {"adult": adult, "abalone": abalone}[name]()
    published_accuracy, epsilon, published = PUBLISHED[name]
    norm, rate, steps = SETTINGS[name]
    svi = dpppl.SVI(
        gaussian, AutoDiagonalNormal(gaussian), clipping_norm=norm, clipping="flat", measure_clipping=False,
        subsampling=dpppl.Poisson(rate), target_epsilon=epsilon, target_delta=DELTA, print_cost=False,
    )  # fmt: skip
    result = svi.run(dpppl.secret_key(), steps, x, y, progress_bar=False, thinning=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpppl.PrivacyWarning)
        spent = svi_spent(svi, result, x, y, num_rows=num_rows, delta=BAYESIAN_DELTA)
    published_rule = without_hoelder(result, x, y, norm, rate)
    samples = {name: np.asarray(v) for name, v in result.sample_posterior(jax.random.key(0), 200).items()}
    logits = x_test @ samples["weights"].T + samples["intercept"]
    accuracy = float(np.mean((np.mean(1.0 / (1.0 + np.exp(-logits)), axis=1) > 0.5) == y_test))
    mean = {name: v.mean(axis=0) for name, v in samples.items()}
    train, test = (pairwise_distances(mean, *data) for data in ((x, y), (x_test, y_test)))
    return {
        "accuracy": accuracy,
        "epsilon": result.report.epsilon,
        "bayesian_epsilon": spent.epsilon,
        "by_their_equation_14": published_rule,
        "attack_success": spent.attack_success,
        "published": {"accuracy": published_accuracy, "epsilon": epsilon, "bayesian_epsilon": published},
        "p_values_train_and_test": alike(train, test),
    }


def without_hoelder(result, x, y, norm, rate, num_rows=1000):
    """Bayesian epsilon by their equation 14, which takes the mean over rows anew at each step: no bound where the same rows are
    long at all steps. Their theorem 1, and `BayesianAccountant`, take the mean of the T-th power."""
    rng = np.random.default_rng(1)
    rows = rng.choice(len(y), num_rows, replace=False)
    (sigma, _steps), *_ = result.report.events[-1].noise_multipliers
    accountant = BayesianAccountant(noise_multipliers=[sigma], sampling_rate=rate, failure_probability=1e-15)
    rest = np.log(accountant.delta - accountant.failure_probability)
    locations, scales = np.asarray(result.trajectory["auto_loc"]), np.asarray(result.trajectory["auto_scale"])
    costs = np.zeros(len(ORDERS))
    for location, scale in zip(locations, np.log1p(np.exp(scales))):
        intercept, *weights = (location + scale * rng.standard_normal((num_rows, len(location)))).T
        lengths = np.linalg.norm(gradients_at(np.transpose(weights), intercept, x[rows], y[rows]), axis=1)
        costs += np.array(accountant.spent([np.minimum(lengths / norm, 1.0)]).epsilons) * ORDERS + rest
    return float(np.min((costs - rest) / ORDERS))


def gradients_at(weights, intercept, x, y):
    """Of the rows' log likelihoods, (rows, D + 1); the latents may be those of each row."""
    residual = y - 1.0 / (1.0 + np.exp(-(np.sum(x * weights, axis=1) + intercept)))
    return residual[:, None] * np.concatenate([x, np.ones((len(y), 1))], axis=1)


def pairwise_distances(mean, x, y, num_pairs=1000):
    """Of the rows' gradients at these latents, for distinct random rows."""
    rows = np.random.default_rng(0).choice(len(y), 2 * num_pairs, replace=len(y) < 2 * num_pairs)
    gradients = gradients_at(mean["weights"], mean["intercept"], x[rows], y[rows])
    return np.linalg.norm(gradients[::2] - gradients[1::2], axis=1)


def alike(train, test):
    """P-values of Student's test that means are equal, and of Levene's that variances are."""
    return {"mean": ttest_ind(train, test).pvalue, "variance": levene(train, test).pvalue}


def draw(found, path):
    """Their figures 1, 3, 4 and 5, a panel each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 8.0), layout="constrained")
    panels = figure.subplots(2, 2).ravel()
    titles = {
        "figure_1": ("steps", "Noise at a quantile of the norms, unclipped"),
        "figure_3": ("sigmas", "Both clipped at a quantile of the norms"),
        "figure_4": ("sigmas", "Noise at a quantile; clipped for DP only"),
        "figure_5": ("orders", "10,000 steps, noise 1, by norm of the rows"),
    }
    styles = [("#0072B2", "o"), ("#E69F00", "s"), ("#56B4E9", "^"), ("#7F7F7F", "D")]
    for axes, (name, (across, title)) in zip(panels, titles.items()):
        curves = [key for key in found[name] if key not in (across, "dp")]
        for key, (colour, marker) in zip(curves, styles):
            values = np.array(found[name][key], float)
            shown = values < 200
            label = key if shown.any() else f"{key}: above 200"
            axes.plot(
                np.array(found[name][across])[shown], values[shown], color=colour, marker=marker, ms=4, label=label
            )
        if "dp" in found[name]:
            axes.plot(found[name][across], found[name]["dp"], color="black", ls="--", label="every row (DP)")
        axes.set(xscale="log", yscale="log", title=title, xlabel={"sigmas": "noise multiplier"}.get(across, across))
        axes.set_ylabel("epsilon")
        axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


def plain(value):
    """JSON has no infinity: beyond all meaning."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return "inf" if isinstance(value, float) and not np.isfinite(value) else value


def line(name, row):
    """A row of table 1."""
    theirs, p = row["published"], row["p_values_train_and_test"]
    return (
        f"{name}: accuracy {row['accuracy']:.3f} (published {theirs['accuracy']}); epsilon {row['epsilon']:.3g}; typical rows "
        f"{row['bayesian_epsilon']:.3g}, by equation 14 {row['by_their_equation_14']:.3g} (published "
        f"{theirs['bayesian_epsilon']}); gradients of train and test: p = {p['mean']:.2f} for means, {p['variance']:.2f} for "
        "variances"
    )


PARTS = {
    "figure_1": growth,
    "figure_3": lambda: noise_needed(True, (0.01, 0.5, 0.99)),
    "figure_4": lambda: noise_needed(False, (0.05, 0.5, 0.95)),
    "figure_5": orders,
    "adult": lambda: table_row("adult"),
    "abalone": lambda: table_row("abalone"),
}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts to compute; else those that the JSON lacks")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/results"), help="folder of bayesian_privacy.json and .png"
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "bayesian_privacy.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    wanted = options.only or [name for name in PARTS if name not in found]
    if data_folder() is None and {"adult", "abalone"} & set(wanted):
        parser.error("table 1 needs the folder with the data: set DPPPL_DATA, or use --only figure_1 ...")
    for name in wanted:
        found[name] = plain(PARTS[name]())
        path.write_text(json.dumps(found, indent=1) + "\n")
        if name in PUBLISHED:
            print(line(name, found[name]))
    if {"figure_1", "figure_3", "figure_4", "figure_5"} <= set(found):
        draw(found, options.out / "bayesian_privacy.png")


if __name__ == "__main__":
    main()
