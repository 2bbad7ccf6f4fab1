"""PATE on MNIST and UCI Adult by each of its mechanisms, at published noise and numbers of queries (Papernot et al. 2017, 2018).

    python examples/pate_students.py --only mnist-confident-gnmax

250 teachers on disjoint rows vote on public queries, the first test rows; a student learns the answers and is scored on the other
test rows. Teachers are ridge classifiers and students logistic regressions, on the features of `cnn` in examples/mnist.py, or 8
columns of Adult: theirs were networks, forests, and students that also saw unlabelled rows. delta = 1e-5, one row replaced.
"""

import sys
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples import adult, mnist
from examples.baselines import pate
from examples.data import has, has_adult
from examples.results import Row, command

DELTA, NUM_TEACHERS = 1e-5, 250


@cache
def data_in(name):
    """(x, y, x_test, y_test)."""
    return mnist.data_in("cnn") if name == "mnist" else adult.data_in(8)


def ridge(x, labels, num_classes, penalty=0.1):
    """Weights (D, K) of least squares on indicators of the classes, -1 and 1."""
    targets = 2.0 * np.eye(num_classes)[labels] - 1.0
    if len(x) < x.shape[1]:
        return x.T @ np.linalg.solve(x @ x.T + penalty * np.eye(len(x)), targets)
    return np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ targets)


def votes(rng, x, y, queries, num_classes):
    """Counts (Q, K) of the teachers' labels of the queries."""
    with_one = lambda x: np.c_[x, np.ones(len(x))]  # noqa: E731
    counts = np.zeros((len(queries), num_classes))
    for rows in np.array_split(rng.permutation(len(x)), NUM_TEACHERS):
        labels = np.argmax(with_one(queries) @ ridge(with_one(x[rows]), y[rows], num_classes), axis=1)
        counts[np.arange(len(queries)), labels] += 1
    return counts


def answers(rng, mechanism, counts, noise):
    """(labels (Q,), which were answered (Q,), cost given the votes (R,), cost whatever the votes (R,))."""
    tied, everyone = np.ones_like(counts), np.ones(len(counts), bool)
    if mechanism == "LNMax":
        return pate.lnmax(rng, counts, **noise), everyone, *(pate.lnmax_cost(v, **noise) for v in (counts, tied))
    if mechanism == "GNMax":
        return pate.gnmax(rng, counts, **noise), everyone, *(pate.gnmax_cost(v, **noise) for v in (counts, tied))
    labels, answered = pate.confident_gnmax(rng, counts, **noise)
    worst = noise["threshold"] * tied
    return labels, answered, *(pate.confident_gnmax_cost(v, answered, **noise) for v in (counts, worst))


def run(seed, *, data, method, num_queries, inverse_penalty, **noise):
    """Scores of one run; `epsilon` holds for any votes, `epsilon given votes` for these and may not be published."""
    from sklearn.linear_model import LogisticRegression

    x, y, x_test, y_test = data_in(data)
    y, y_test, rng = y.astype(int), y_test.astype(int), np.random.default_rng(seed)
    counts = votes(rng, x, y, x_test[:num_queries], int(y.max()) + 1)
    labels, answered, given_votes, anyway = answers(rng, method, counts, noise)
    student = LogisticRegression(C=inverse_penalty, max_iter=1_000).fit(
        x_test[:num_queries][answered], labels[answered]
    )
    probabilities = np.full((len(x_test) - num_queries, counts.shape[1]), 1e-6)  # a class may have had no answer
    probabilities[:, student.classes_] += student.predict_proba(x_test[num_queries:])
    scores = mnist.class_scores(probabilities / probabilities.sum(1, keepdims=True), y_test[num_queries:])
    return {
        "epsilon": pate.epsilon(anyway, DELTA),
        "epsilon given votes": pate.epsilon(given_votes, DELTA),
        "answered": answered.sum(),
        "right": np.mean(labels[answered] == y_test[:num_queries][answered]),
        **{name: scores[name] for name in ("accuracy", "NLL", "ECE")},
    }


MECHANISMS = {
    "LNMax": {"num_queries": 100, "gamma": 0.05},
    "GNMax": {"num_queries": 286, "sigma": 40.0},
    "Confident-GNMax": {"num_queries": 640, "threshold": 200.0, "sigma_threshold": 150.0, "sigma": 40.0},
}
DATA = {"mnist": {"inverse_penalty": 1_000.0}, "adult": {"inverse_penalty": 1.0}}
ROWS = [
    Row(f"{data}-{mechanism.lower()}", run, {"data": data, "method": mechanism} | noise | student, 5)
    for data, student in DATA.items()
    for mechanism, noise in MECHANISMS.items()
]


def main(arguments=None):
    def missing():
        """MNIST and Adult are both needed."""
        return "mnist.npz" if not has("mnist.npz") else None if has_adult() else "adult-train.csv"

    command(__doc__, ROWS, "pate_students", missing, lambda folder: None, arguments)


if __name__ == "__main__":
    main()
