"""Which part of a posterior costs predictions on UCI Adult, all columns? N(0, 1) priors, delta 1e-5.

python benchmarks/accuracy/adult_profile.py --epsilons .1 .3 1 --num-runs 3

Negative log likelihood of a test row by the mean probability over draws, and by the mean of draws alone. "as it is": a run;
of the same releases: "mean curvature": that of the draws in their place; "J = A": scores that vary as the model's curvature says;
"true curvature": that where late looks were made, on average, and its variance of scores; "looks' point": that point alone. "true
in all looks": another run, in which every look knows its curvature. "without privacy": Laplace's posterior; "prior": the mean probability under the prior, 1/2.
"""

import argparse
import os
import sys
from pathlib import Path
from unittest import mock

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.accuracy.prediction import exact, scores
from benchmarks.calibration import real_columns
from benchmarks.lib.noise_aware_wide import mu_of
from benchmarks.lib.results import written
from dpppl.noise_aware.bounds import Bounds
from dpppl.noise_aware.curvature import Curvature, ReleasedCurvature
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.recipe import run_recipe
from dpppl.randomness import keys
from dpppl.row_statistics.accesses import Kind
from dpppl.row_statistics.plan import plan_of
from dpppl.row_statistics.releases import Accesses
from examples import data

_NO_NOISE = 1e-6


def with_one(x):
    return np.column_stack([np.ones(len(x)), x]).astype(np.float32)


class Bench(real_columns.Bench):
    """Programs for the training rows."""

    def __init__(self, x, y):
        self.responses = y.astype(np.float32)
        super().__init__(x)

    def data(self, seed):
        return self.x.astype(np.float32), self.responses, None

    def outcome(self, seed, mu, knows_curvature=False):
        """That of a run. With `knows_curvature` a look releases its scores with noise, and its curvature as it is."""
        rows, _ = self.split.arrays(self.data(0)[:2], {})
        ask = Accesses(self.programs, keys.stream(self.key, str(seed)), rows, self.public, lambda count: None).asker()
        of, given = ReleasedCurvature.of, (1.0 / mu, self.prior, Bounds(), len(self.x))
        plan = plan_of(True, self.x.shape[1], len(self.x))
        if not knows_curvature:
            return run_recipe(ask, plan, *given)

        def knowing(kind, at, noise_multiplier):
            values = ask(kind, at, noise_multiplier)
            return (
                values | {n: v for n, v in ask(kind, at, _NO_NOISE).items() if n != "score"}
                if kind is Kind.LOOK
                else values
            )

        def known(values, sigma, at, most_scores=1.0):
            return of(values, _NO_NOISE * sigma, at, most_scores)

        with mock.patch.multiple(ReleasedCurvature, of=known, posterior=lambda released, *_: exactly(released)):
            return run_recipe(knowing, plan, *given)


def exactly(release):
    """One draw, that of a release without noise."""
    values, vectors = np.linalg.eigh(release.curvature)
    values = np.maximum(values, 1e-9)
    inverse = (vectors / np.sqrt(values)[:, None, :]) @ vectors.swapaxes(1, 2)
    return Curvature(values[None], vectors[None], inverse @ release.score_variance @ inverse)


def drawn_from(surrogate, prior):
    return Mixture.of(surrogate, prior).draw(np.random.default_rng(0), 1_000)


def profile(bench, seed, mu):
    """Draws by what is replaced."""
    outcome, prior = bench.outcome(seed, mu), bench.prior
    surrogate, curvature = outcome.surrogate, outcome.surrogate.curvature
    values, vectors = np.linalg.eigh(curvature.mean)
    mean = curvature._replace(values=values[None], vectors=vectors[None])
    knowing = bench.outcome(seed, mu, knows_curvature=True).surrogate
    return {
        "as it is": drawn_from(surrogate, prior),
        "mean curvature": drawn_from(surrogate._replace(curvature=mean), prior),
        "J = A": drawn_from(outcome.modelled, prior),
        "true curvature": drawn_from(surrogate._replace(curvature=bench.true_curvature(outcome)), prior),
        "looks' point": surrogate.point(prior.mean)[None],
        "true in all looks": drawn_from(knowing, prior),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument("--num-runs", type=int, default=3)
    options = parser.parse_args()
    if not data.has_adult():
        return print("UCI Adult is missing: set DPPPL_DATA")
    x, y, x_test, y_test = data.adult()
    x, x_test = with_one(x), with_one(x_test)
    bench = Bench(x, y)
    reference = scores(exact(x.astype(np.float64), y), x_test, y_test)
    print(f"without privacy: {reference[0]:.4f}, {reference[1]:.4f}", flush=True)
    written("adult_profile", "without privacy", np.round(reference, 4).tolist())
    for epsilon in options.epsilons:
        found = {}
        for seed in range(options.num_runs):
            for name, drawn in profile(bench, seed, mu_of(epsilon)).items():
                found.setdefault(name, []).append(scores(drawn, x_test, y_test))
        for name, each in found.items():
            mean, low, high = np.mean(each, 0), np.min(each, 0), np.max(each, 0)
            print(
                f"epsilon {epsilon:g}, {name}: by draws {mean[0]:.4f} ({low[0]:.4f} to {high[0]:.4f}), by the mean {mean[1]:.4f}"
            )
            written("adult_profile", f"epsilon {epsilon:g}, {name}", np.round([mean, low, high], 4).tolist())
        sys.stdout.flush()


if __name__ == "__main__":
    main()
