"""UCI Abalone, more than 9 rings: logistic regression by every method, at delta = 1e-3.

python examples/abalone.py --only NoiseAware-eps1
"""

import sys
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples import data, logistic
from examples.results import Row, budget_curves, command

DELTA, EPSILONS = 1e-3, (0.3, 1.0, 3.0, 7.6)
METHODS = ("NoiseAware", "Bayes by Backprop", "DP-SGLD", "DP-SGD", "output perturbation", "objective perturbation")
OWN = {"Bayes by Backprop": {"learning_rate": 0.1}, "DP-SGD": {"learning_rate": 0.1}}


@cache
def rows():
    """(x, y, x_test, y_test), 3,341 and 836 rows."""
    return data.abalone()


def run(seed, **settings):
    """Scores of one run."""
    return logistic.run(seed, rows(), delta=DELTA, **settings)


ROWS = [
    Row("not-private", run, {"method": "not private", "target": None}),
    *(
        Row(
            f"{method.replace(' ', '-')}-eps{e:g}",
            run,
            logistic.settings(method, e) | OWN.get(method, {}),
            5,
        )
        for method in METHODS
        for e in EPSILONS
    ),
]


def main(arguments=None):
    missing = lambda: None if data.has("abalone.csv") else "abalone.csv"  # noqa: E731
    command(
        __doc__, ROWS, "abalone", missing, lambda folder: budget_curves(folder, "abalone", ".*", "accuracy"), arguments
    )


if __name__ == "__main__":
    main()
