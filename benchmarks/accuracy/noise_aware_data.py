"""NoiseAware on real data: predictions on UCI Adult, and posteriors beside NUTS without privacy.

python benchmarks/accuracy/noise_aware_data.py adult --epsilons .1 .3 1
python benchmarks/accuracy/noise_aware_data.py beside        # Abalone (rings above 9; rings as counts) and simulated counts

`beside`, by data set: root mean square and largest difference of posterior means over NoiseAware's sd, the median sd over
NUTS's, the log likelihood of a test row under both posteriors, whether the verdict reads the samples, what it says against
the model, and seconds.
"""

import argparse
import sys
import time
from pathlib import Path

import jax
import numpy as np
import numpyro
from numpyro.infer import MCMC, NUTS, log_likelihood

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.lib.noise_aware_models import poisson_regression
from benchmarks.lib.results import written
from examples import data
from models.logistic_regression import gaussian


def on_adult(epsilons, num_runs):
    """NLL, AUC and expected calibration error of posterior predictive probabilities."""
    from sklearn.metrics import roc_auc_score

    x, y, x_test, y_test = data.adult()
    print("| epsilon | NLL | AUC | ECE | verdict | seconds |\n|---|---|---|---|---|---|")
    scores = {}
    for epsilon in np.repeat(epsilons, num_runs).tolist():
        start = time.perf_counter()
        private = dpppl.NoiseAware(
            gaussian, target_epsilon=epsilon, target_delta=1e-5, print_cost=False, progress_bar=False, num_samples=500
        )
        private.run(dpppl.secret_key(), x, y)
        seconds = time.perf_counter() - start
        samples = {site: np.asarray(value) for site, value in private.get_samples(allow_unconverged=True).items()}
        logits = x_test @ samples["weights"].T + samples["intercept"]
        p = np.mean(1.0 / (1.0 + np.exp(-logits)), axis=1)
        nll = -np.mean(y_test * np.log(p) + (1 - y_test) * np.log1p(-p))
        bins = np.minimum((p * 10).astype(int), 9)
        gaps = [abs(np.sum(p[bins == k] - y_test[bins == k])) for k in range(10)]
        ece, auc = np.sum(gaps) / len(p), roc_auc_score(y_test, p)
        scores[epsilon] = [*scores.get(epsilon, []), round(float(nll), 4)]
        written("noise_aware_adult", f"epsilon {epsilon:g}", {"NLL": scores[epsilon]})
        print(
            f"| {epsilon:g} | {nll:.4f} | {auc:.4f} | {ece:.3f} | {private.verdict.line()} | {seconds:.1f} |",
            flush=True,
        )


def sets():
    """By name: model, rows and test rows."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((6_000, 4)) / 2.0).astype(np.float32)
    seeded = numpyro.handlers.seed(poisson_regression, jax.random.key(1))
    y = np.asarray(numpyro.handlers.trace(seeded).get_trace(x)["y"]["value"])
    found = {"counts, simulated": (poisson_regression, (x[:5_000], y[:5_000]), (x[5_000:], y[5_000:]))}
    if data.has("abalone.csv"):
        x, y, x_test, y_test = data.abalone()
        rings, rings_test = data.abalone_rings()
        found["Abalone, rings above 9"] = gaussian, (x, y), (x_test, y_test)
        found["Abalone, rings as counts"] = poisson_regression, (x, rings), (x_test, rings_test)
    return found


def moments(samples):
    """Means and standard deviations, flat, by site in alphabetical order."""
    values = [np.asarray(samples[site], np.float64).reshape(len(samples[site]), -1) for site in sorted(samples)]
    return np.concatenate(values, axis=1).mean(axis=0), np.concatenate(values, axis=1).std(axis=0)


def beside(epsilons, delta):
    """Posteriors with and without privacy."""
    print(
        "| data | epsilon | rms | largest | sd / NUTS | test, private | test, NUTS | verdict | rank | chi-squared | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, (model, rows, test) in sets().items():
        nuts = MCMC(NUTS(model), num_warmup=500, num_samples=1_000, progress_bar=False)
        nuts.run(jax.random.key(0), *rows)

        def score(samples, model=model, test=test):
            found = log_likelihood(model, samples, *test)["y"]
            return float(np.mean(jax.nn.logsumexp(found, axis=0) - np.log(len(found))))

        for epsilon in epsilons:
            start = time.perf_counter()
            private = dpppl.NoiseAware(
                model, target_epsilon=epsilon, target_delta=delta, print_cost=False, progress_bar=False
            )
            private.run(dpppl.secret_key(), *rows)
            seconds = time.perf_counter() - start
            ours, reference = private.get_samples(allow_unconverged=True), nuts.get_samples()
            (mean, sd), (expected, without) = moments(ours), moments(reference)
            off, width = (mean - expected) / sd, np.median(sd / without)
            rank, error = private.verdict.rank
            print(
                f"| {name} | {epsilon:g} | {np.sqrt(np.mean(off**2)):.2f} | {np.abs(off).max():.2f} | {width:.2f} | "
                f"{score(ours):.4f} | {score(reference):.4f} | {private.verdict.line()[:11]} | {rank:.3f} ± {error:.3f} | "
                f"{private.verdict.fit[1]:.1f} | {seconds:.0f} |",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["adult", "beside"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    parser.add_argument("--delta", type=float, default=1e-5, help="of `beside`")
    parser.add_argument("--num-runs", type=int, default=1, help="of `adult`")
    options = parser.parse_args()
    if options.what == "beside":
        beside(options.epsilons, options.delta)
    elif data.has_adult():
        on_adult(options.epsilons, options.num_runs)
    else:
        print("UCI Adult is missing: set DPPPL_DATA")


if __name__ == "__main__":
    main()
