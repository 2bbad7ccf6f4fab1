"""Logistic regression on UCI Adult by many methods, rows of a table, see examples/results.py.

    python examples/adult.py --only NoiseAware-8-eps1

Each method on UCI Adult at delta = 1e-5, in the 8 columns of the picture, or in 108 where the name of a row says so.
"""

import sys
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples import comparators, logistic
from examples.data import adult, adult_in_brief, has_adult
from examples.results import Row, budget_curves, command


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


def main(arguments=None):
    missing = lambda: None if has_adult() else "UCI Adult (adult-train.csv, adult-test.csv)"  # noqa: E731
    command(__doc__, ROWS, "adult", missing, picture, arguments)


if __name__ == "__main__":
    main()
