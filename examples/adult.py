"""A private posterior compared with NUTS on the raw data: logistic regression on UCI Adult (or, where its files are
missing, on scikit-learn's breast cancer data), as a table and a picture; then a private chain on the same data.

    python examples/adult.py --epsilon 1.0
    python examples/adult.py results --only NoiseAware-8-eps1       # rows of a table, see examples/results.py

The table: each method on UCI Adult at delta = 1e-5, in the 8 columns of the picture, or in 108 where the name of a row says so.
"""

import argparse
import sys
from functools import cache
from pathlib import Path

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dpppl
from examples import comparators, logistic
from examples.data import adult, adult_in_brief, breast_cancer, has_adult
from examples.results import Row, budget_curves, command
from models.logistic_regression import gaussian


def posterior_predictive(samples, x):
    """P(y = 1 | x), averaged over the posterior samples; shape (N,)."""
    return logistic.linear_probabilities(samples, x).mean(axis=0)


def scores(probability, y):
    """Accuracy, area under the ROC curve, and negative log likelihood of the predictive distribution."""
    from sklearn.metrics import log_loss, roc_auc_score

    return np.mean((probability > 0.5) == y), roc_auc_score(y, probability), log_loss(y, probability)


DELTA = 1e-5
EPSILONS = (0.03, 0.1, 0.3, 1.0, 3.0, 8.0)


@cache
def data_in(columns):
    """(x, y, x_test, y_test) in 8 or 108 columns."""
    return adult_in_brief()[1:] if columns == 8 else adult()


def run(seed, *, columns, **settings):
    """Scores of one run."""
    return logistic.run(seed, data_in(columns), delta=DELTA, num_queries=comparators.NUM_QUERIES, **settings)


def _row(method, columns, target, num_runs=5):
    settings = logistic.settings(method, target) | {"columns": columns}
    return Row(
        f"{method.replace(' ', '-')}-{columns}-eps{target:g}" if target else f"not-private-{columns}",
        run,
        settings,
        num_runs,
    )


ROWS = [
    *(_row("not private", columns, None, 1) for columns in (8, 108)),
    *(
        _row(method, 8, e)
        for method in logistic.SETTINGS
        for e in EPSILONS
        if method not in ("one posterior sample", "hybrid sampler") or e < 0.1
    ),
    *(
        _row(method, 108, e)
        for method in ("Bayes by Backprop", "DP-SGLD", "DP-SGD", "NoiseAware")
        for e in EPSILONS[1:4]
    ),
]
"""One posterior sample is drawn by rejection, which accepts nothing at larger epsilons."""


def picture(folder):
    """NLL by epsilon in 8 columns, of four methods."""
    shown = "(not-private|NoiseAware|Bayes-by-Backprop|DP-SGLD|objective-perturbation)-8(-.*)?"
    budget_curves(folder, "adult", shown, "NLL", limits=(0.32, 0.4))


def coefficients(samples):
    """Samples (n, D + 1) of the weights and the intercept."""
    return np.concatenate([samples["weights"], np.asarray(samples["intercept"])[:, None]], axis=1)


def print_table(names, private, exact, learned):
    """Posterior means and standard deviations side by side; `learned`: the verdict's word for each."""
    width = max(map(len, names))
    print(f"\n{'':{width}}  private           without privacy   difference,")
    print(f"{'':{width}}     mean     sd      mean     sd    in private sd   from the data")
    for name, ours, theirs, word in zip(names, private.T, exact.T, learned, strict=True):
        difference = (ours.mean() - theirs.mean()) / ours.std()
        columns = f"{ours.mean():7.2f} {ours.std():6.3f}  {theirs.mean():8.2f} {theirs.std():6.3f}  {difference:15.1f}"
        print(f"{name:{width}}  {columns}   {word}")


def draw_picture(path, title, names, private, exact):
    """Means and 90 % intervals side by side. Returns whether matplotlib is there."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8.0, 1.2 + 0.42 * len(names)), layout="constrained")
    axes, places = figure.subplots(), np.arange(len(names))
    for samples, shift, style, label in (
        (exact, -0.13, dict(color="black", marker="o"), "NUTS, without privacy"),
        (private, 0.13, dict(color="tab:blue", marker="s"), "dpppl.NoiseAware"),
    ):
        middle, ends = samples.mean(axis=0), np.quantile(samples, (0.05, 0.95), axis=0)
        reach = np.abs(ends - middle)
        axes.errorbar(middle, places + shift, xerr=reach, linestyle="", markersize=4, capsize=3, label=label, **style)
    axes.axvline(0.0, color="lightgrey", zorder=0)
    axes.set(yticks=places, yticklabels=names, xlabel="coefficient: posterior mean and 90 % interval", title=title)
    axes.invert_yaxis()
    axes.legend(loc="best")
    figure.savefig(path, dpi=120)
    return True


def results(arguments):
    """The table's command line."""
    missing = lambda: None if has_adult() else "UCI Adult (adult-train.csv, adult-test.csv)"  # noqa: E731
    command(__doc__, ROWS, "adult", missing, picture, arguments)


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["results"]:
        return results(arguments[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, help="of NoiseAware; 1 on Adult, 4 on the smaller data")
    parser.add_argument("--chain-epsilon", type=float, default=3.0, help="of the chain, which needs more")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--num-samples", type=int, default=1_000)
    parser.add_argument("--breast-cancer", action="store_true", help="the smaller data even where Adult is there")
    parser.add_argument("--output", type=Path, default=Path("demo.png"), help="where the picture goes")
    args = parser.parse_args(arguments)

    use_adult = has_adult() and not args.breast_cancer
    data = "UCI Adult, income above 50K" if use_adult else "scikit-learn's breast cancer data, malignant or not"
    names, x, y, x_test, y_test = adult_in_brief() if use_adult else breast_cancer()
    epsilon = args.epsilon or (1.0 if use_adult else 4.0)
    print(f"Data: {data}; {len(x):,} rows, logistic regression with {x.shape[1]} columns, N(0, 1) priors\n")
    print("1. A private posterior by dpppl.NoiseAware, beside one without privacy by NumPyro's NUTS")
    private = dpppl.NoiseAware(gaussian, target_epsilon=epsilon, target_delta=args.delta, num_samples=args.num_samples)
    private.run(dpppl.secret_key(), x, y)
    exact = MCMC(NUTS(gaussian), num_warmup=200, num_samples=400, progress_bar=False)
    exact.run(jax.random.key(0), x, y)

    names, words = [*names, "intercept"], dict(private.verdict.share_learned())
    learned = [words[f"weights[{k}]"] for k in range(x.shape[1])] + [words["intercept"]]
    both = [private.get_samples(allow_unconverged=True), exact.get_samples()]  # the verdict is printed below
    print_table(names, *map(coefficients, both), learned)
    # The test rows are public here. Scoring private rows would be a new release.
    accuracies = [scores(posterior_predictive(samples, x_test), y_test)[0] for samples in both]
    print("test accuracy: private {:.3f}, without privacy {:.3f}".format(*accuracies))
    print(f"verdict: {private.verdict.line()}")
    title = f"{data}\n{len(x):,} rows, epsilon = {epsilon:g}, delta = {args.delta:g}"
    drawn = draw_picture(args.output, title, names, *map(coefficients, both))
    print(f"picture: {args.output.resolve()}" if drawn else "picture: none, matplotlib is not installed")

    print(f"\n2. A private chain, dpppl.DPSGHMC, at epsilon = {args.chain_epsilon:g}")
    print("Chains need more rows or budget than NoiseAware; the last column says what may be read of them.")
    chain = dpppl.MCMC(
        dpppl.DPSGHMC(gaussian), num_warmup=args.num_samples, num_samples=args.num_samples,
        target_epsilon=args.chain_epsilon, target_delta=args.delta,
    )  # fmt: skip
    chain.run(dpppl.secret_key(), x, y)
    chain.print_summary()
    print("Costs add up: privacy_report() tells that of one object, a dpppl.PrivacyLedger counts those of all.")


if __name__ == "__main__":
    main()
