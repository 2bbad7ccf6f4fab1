"""Private Bayesian logistic regression on UCI Adult (or, where it is missing, on scikit-learn's digits).

python examples/adult.py --epsilon 1.0
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dpppl
from examples.data import adult, digits, has_adult
from models.logistic_regression import gaussian


def posterior_predictive(samples, x):
    """P(y = 1 | x), averaged over the posterior samples; shape (N,)."""
    logits = x @ np.asarray(samples["weights"]).T + np.asarray(samples["intercept"])
    return np.mean(1.0 / (1.0 + np.exp(-logits)), axis=1)


def scores(probability, y):
    """Accuracy, area under the ROC curve, and negative log likelihood of the predictive distribution."""
    from sklearn.metrics import log_loss, roc_auc_score

    return np.mean((probability > 0.5) == y), roc_auc_score(y, probability), log_loss(y, probability)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--num-warmup", type=int, default=1600)
    parser.add_argument("--num-samples", type=int, default=400)
    parser.add_argument("--clipping-norm", type=float, default=1.0)
    parser.add_argument("--digits", action="store_true", help="use scikit-learn's digits even where Adult is there")
    args = parser.parse_args(arguments)

    use_adult = has_adult() and not args.digits
    print("Data: UCI Adult" if use_adult else "Data: scikit-learn digits, odd against even")
    x, y, x_test, y_test = adult() if use_adult else digits()
    kernel = dpppl.DPSGLD(gaussian, clipping_norm=args.clipping_norm)
    mcmc = dpppl.MCMC(
        kernel,
        num_warmup=args.num_warmup,
        num_samples=args.num_samples,
        target_epsilon=args.epsilon,
        target_delta=args.delta,
    )
    mcmc.run(dpppl.secret_key(), x, y)
    mcmc.print_summary()
    # The test rows are public here. Scoring private rows would be a new release.
    accuracy, auc, nll = scores(posterior_predictive(mcmc.get_samples(), x_test), y_test)
    print(f"test accuracy {accuracy:.4f}, AUC {auc:.4f}, NLL {nll:.4f}\n")
    print(mcmc.privacy_report())


if __name__ == "__main__":
    main()
