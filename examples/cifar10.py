"""Private Bayesian heads on public features of CIFAR-10: accuracy, calibration, unknown images, selective prediction.

    python examples/cifar10_features.py --data DATA
    python examples/cifar10.py --data DATA --only svi-64-eps1 dp-sgd-64-eps1

A head is a softmax regression on 24 to 256 directions of EfficientNet-Lite0's 1,280 features. The directions are public: they
are the principal directions of the network's ImageNet classifier, so no CIFAR image decides them. delta = 1e-5; 50,000
private training rows; the 10,000 test images and MNIST's digits are public. No NoiseAware run was finished. Of
all 50,000 rows it is made only if it is named.
"""

import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
from numpyro.infer import init_to_value
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, xlogy
from scipy.stats import rankdata
from sklearn.metrics import log_loss

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dpppl
from dpppl.contrib import uncertainty
from examples.cifar10_features import missing, stored
from examples.cifar10_reference import beside, reference
from examples.efficientnet import load_body
from examples.methods import draws
from examples.results import Row, command
from models.softmax_regression import logits, softmax_regression

DELTA, NUM_DRAWS, PRIOR_SCALE = 1e-5, 100, 0.3
COVERAGES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


@cache
def directions(number):
    """(1280, number): the first principal directions of the ImageNet classifier's columns, centred. They look at no image."""
    columns = load_body().classifier
    return np.linalg.svd(columns - columns.mean(1, keepdims=True), full_matrices=False)[0][:, :number]


@cache
def inputs(part, number):
    """Features of `train`, `test` or `digits` along `number` public directions, float32 (N, number), about sqrt(number) long."""
    return np.load(stored(part)[0], mmap_mode="r") @ directions(number)


@cache
def labels(part):
    """Classes of CIFAR-10's `train` or `test` part."""
    return np.load(stored(part)[1])


def posterior(method, number, target, num_rows=None, **settings):
    """({site: draws}, epsilon) of a head on the first `num_rows` rows, None: all. Without privacy where target is None."""
    arrays = (inputs("train", number)[:num_rows], labels("train")[:num_rows])
    if method == "NUTS":
        return exact(number, num_rows), None
    if method == "NoiseAware":
        private = dpppl.NoiseAware(MODEL, target_epsilon=target, target_delta=DELTA, **QUIET | settings)
        private.run(dpppl.secret_key(), *arrays)
        return private.get_samples(allow_unconverged=True), private.privacy_report().epsilon
    zeros = {"weights": np.zeros((number, 9), np.float32), "intercepts": np.zeros(9, np.float32)}
    start = init_to_value(values=zeros)
    return draws(method, MODEL, arrays, epsilon=target, delta=DELTA, num_draws=NUM_DRAWS, start=start, **settings)


def exact(number, num_rows=None):
    """NUTS draws without privacy by site, of the first `num_rows` rows, made once and kept in the data folder."""
    x, y = inputs("train", number)[:num_rows], labels("train")[:num_rows]
    part = f"-{num_rows}" if num_rows else ""
    path = stored("train")[0].with_suffix(f".nuts-{number}-{PRIOR_SCALE:g}{part}.npz")
    return reference(MODEL, x, y, path, prior_scale=PRIOR_SCALE)


MODEL = partial(softmax_regression, prior_scale=PRIOR_SCALE)
QUIET = {"progress_bar": False, "print_cost": False}


# Scores


def probabilities(samples, x):
    """Class probabilities (draws, N, 10) of `x` (N, D), of at most NUM_DRAWS draws."""
    some = {site: np.asarray(value)[:: max(1, len(value) // NUM_DRAWS)][:NUM_DRAWS] for site, value in samples.items()}
    return np.asarray(jax.jit(jax.vmap(lambda w: jax.nn.softmax(logits(x, **w))))(some))


def mutual_information(by_draw):
    """Of the class and the draw, in nats (N,): what the draws disagree about."""
    entropy = lambda p: -xlogy(p, p).sum(-1)  # noqa: E731
    return entropy(by_draw.mean(0)) - entropy(by_draw).mean(0)


def detection(known, unknown):
    """The area under the ROC curve: the chance that an unknown image has the larger value."""
    ranks = rankdata(np.concatenate([known, unknown]))[len(known) :]
    return (ranks.mean() - (len(unknown) + 1) / 2) / len(known)


def selective(confidence, right, coverages=COVERAGES):
    """Accuracy among the share of rows with the largest confidence, for each share."""
    right = right[np.argsort(-confidence)]
    return [float(right[: int(len(right) * share)].mean()) for share in coverages]


def tempered(predicted, y):
    """(temperature, NLL, ECE): the temperature is fitted to every second public test row, the others are scored."""
    powers = lambda t, p: np.exp(log_softmax(np.log(np.maximum(p, 1e-12)) / t, axis=1))  # noqa: E731
    score = lambda t: log_loss(y[::2], powers(t, predicted[::2]), labels=np.arange(predicted.shape[1]))  # noqa: E731
    temperature = minimize_scalar(score, bounds=(0.2, 5.0), method="bounded").x
    rest = powers(temperature, predicted[1::2])
    return (
        temperature,
        log_loss(y[1::2], rest, labels=np.arange(predicted.shape[1])),
        uncertainty.expected_calibration_error(rest, y[1::2]),
    )


def scores(samples, number):
    """All scores of posterior draws, on the public test images and digits."""
    y, by_draw = labels("test"), probabilities(samples, inputs("test", number))
    predicted, parts = by_draw.mean(0), uncertainty.decompose_variance(by_draw)
    temperature, nll, ece = tempered(predicted, y)
    right = predicted.argmax(1) == y
    found = {
        "accuracy": right.mean(),
        "NLL": log_loss(y, predicted, labels=np.arange(predicted.shape[1])),
        "ECE": uncertainty.expected_calibration_error(predicted, y),
        "NLL, one draw": log_loss(y, by_draw[0], labels=np.arange(predicted.shape[1])),
        "temperature": temperature,
        "NLL, tempered": nll,
        "ECE, tempered": ece,
        "epistemic share": parts.epistemic.sum() / parts.total.sum(),
        "selective": selective(predicted.max(1), right),
        "selective .8": selective(predicted.max(1), right, (0.8,))[0],
    }
    digits = probabilities(samples, inputs("digits", number))
    found["digits by confidence"] = detection(-predicted.max(1), -digits.mean(0).max(1))
    if len(by_draw) > 1:
        found["digits by mutual information"] = detection(mutual_information(by_draw), mutual_information(digits))
    return found


def run(seed, *, method, directions, target, num_rows=None, **settings):
    """Scores of one run."""
    samples, epsilon = posterior(method, directions, target, num_rows, **settings)
    found = {"epsilon": epsilon, **scores(samples, directions)}
    if method not in ("NUTS", "DP-SGD") and directions <= 64:
        found |= beside(samples, exact(directions, num_rows), np.random.default_rng(seed))
    return found


STEPS = {"num_steps": 150, "batch_size": 4_000, "learning_rate": 0.05, "average": 0.5}
NORMS = {1.0: 0.75, 3.0: 1.5}
"""Of centred clipping, by target. Flat clipping makes a head overconfident: see docs/networks.md."""
SPREADS = {"init_scale": 0.03, "scale_share": 0.2}
METHODS = {  # name of rows: (method, settings of its own)
    "svi": ("Bayes by Backprop", SPREADS),
    "full-rank": ("full-rank SVI", SPREADS),
    "low-rank": ("low-rank SVI", SPREADS),
    "dp-sgd": ("DP-SGD", {}),
    "noise-aware": ("NoiseAware", None),
    "nuts": ("NUTS", None),
}


def row(kind, number, target, num_rows=None):
    """The row of a method's name, a number of directions and a target, three runs; on the first `num_rows` training rows."""
    method, own = METHODS[kind]
    settings = (
        {} if own is None else STEPS | own | ({"clipping": "centred", "clipping_norm": NORMS[target]} if target else {})
    )
    name = f"{kind}-{number}-{f'eps{target:g}' if target else 'not-private'}"
    if num_rows:
        name, settings = f"{name}-{num_rows}-rows", settings | {"num_rows": num_rows}
    return Row(name, run, {"method": method, "directions": number, "target": target} | settings, 3 if target else 1)


GUIDES = ("svi", "dp-sgd", "low-rank", "full-rank")
ROWS = [
    *(row("nuts", number, None) for number in (64, 24)),
    *(row(kind, 64, target) for kind in GUIDES for target in (1.0, 3.0)),
    row("svi", 64, None),
    Row("svi-64-flat-eps1", run, row("svi", 64, 1.0).settings | {"clipping": "flat", "clipping_norm": 3.0}, 3),
    *(row("svi", number, target) for number in (24, 256) for target in (1.0, 3.0)),
    *(replace(row("noise-aware", number, 1.0), num_runs=0) for number in (24, 64)),  # only by --only and --num-runs
    *(row(kind, 24, target, 20_000) for kind, target in (("nuts", None), ("svi", 1.0), ("noise-aware", 1.0))),
    Row("svi-24-widened-eps1-20000-rows", run, row("svi", 24, 1.0, 20_000).settings | {"noise_aware": True}, 3),
]


def main(arguments=None):
    command(__doc__, ROWS, "cifar10", missing, lambda folder: None, arguments)


if __name__ == "__main__":
    main()
