"""Bayesian networks on MNIST under privacy: samplers, Bayes by Backprop, MC Dropout and DP-SGD; accuracy and calibration.

    python examples/mnist.py --only cnn-bbp-eps3 cnn-dp-sgd-eps3

Networks: `cnn`, whose convolutions are fixed wavelets (examples/scattering.py, nothing to learn from anybody) under a Bayesian
layer; `mlp`, 144-200-10 on the lowest 12 x 12 frequencies of an image; `learned-cnn`, models/bayesian_cnn.py, whose
convolutions are learned, too. delta = 1e-5. Test images are public.
"""

import sys
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
from numpyro.infer import init_to_uniform, init_to_value
from scipy.fft import dctn
from sklearn.metrics import log_loss

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpppl.contrib import uncertainty
from examples.data import has, mnist
from examples.methods import draws
from examples.results import Row, command, load
from examples.scattering import features
from models import bayesian_cnn, bayesian_mlp, priors

DELTA, NUM_DRAWS, FREQUENCIES = 1e-5, 20, 12
HIDDEN = {"cnn": (), "mlp": (200,)}


def frequencies(images):
    """The lowest FREQUENCIES^2 cosine coefficients of images (N, 28, 28), about 3 long."""
    return (dctn(images, axes=(1, 2), norm="ortho")[:, :FREQUENCIES, :FREQUENCIES] / 3.0).reshape(len(images), -1)


@cache
def data_in(network):
    """(x, y, x_test, y_test) as this network takes them."""
    x, y, x_test, y_test = mnist(flat=False)
    inputs = {"cnn": lambda x: features(x[..., 0]), "mlp": lambda x: frequencies(x[..., 0]), "learned-cnn": lambda x: x}
    return inputs[network](x), y, inputs[network](x_test), y_test


def model_of(network, prior, prior_scale):
    """(model, init strategy, logits given one draw of the weights)."""
    law = {"prior": getattr(priors, prior.replace(" ", "_")), "prior_scale": prior_scale}
    if network == "learned-cnn":

        def logits(x, w):
            kernels, dense = ([(w[f"{a}{i}"], w[f"{b}{i}"]) for i in range(2)] for a, b in ("kc", "wb"))
            return bayesian_cnn.logits(x, kernels, dense)

        return partial(bayesian_cnn.bayesian_cnn, **law), init_to_uniform(radius=0.1), logits
    hidden = HIDDEN[network]
    start = init_to_uniform(radius=0.15) if hidden else init_to_value(values=_zeros(data_in(network)[0].shape[1]))
    logits = lambda x, w: bayesian_mlp.logits(x, [(w[f"w{i}"], w[f"b{i}"]) for i in range(len(hidden) + 1)])  # noqa: E731
    return partial(bayesian_mlp.bayesian_mlp, hidden=hidden, **law), start, logits


def _zeros(inputs):
    return {"w0": np.zeros((inputs, 10), np.float32), "b0": np.zeros(10, np.float32)}


def probabilities(logits, samples, x, batch=2_000):
    """Class probabilities (N, 10) of inputs, averaged over draws."""
    mean = jax.jit(lambda part: jax.lax.map(lambda w: jax.nn.softmax(logits(part, w)), samples).mean(0))
    return np.concatenate([mean(x[k : k + batch]) for k in range(0, len(x), batch)])


def _bins(right, sure, number):
    """Mean confidence, share of right ones, and share of all, of each bin that is not empty, (3, bins)."""
    place = np.searchsorted(np.arange(1, number) / number, sure)
    count, *sums = (np.bincount(place, weights, number) for weights in (np.ones(len(sure)), sure, right))
    return np.array([*(each[count > 0] / count[count > 0] for each in sums), count[count > 0] / len(sure)])


def class_scores(probabilities, y):
    """Scores of class probabilities (N, K), averaged over posterior draws, for labels (N,); `bins` as a reliability diagram."""
    right, sure = probabilities.argmax(1) == y, probabilities.max(1)
    bins = _bins(right, sure, 15)
    return {
        "accuracy": np.mean(right),
        "NLL": log_loss(y, probabilities, labels=np.arange(probabilities.shape[1])),
        "ECE": uncertainty.expected_calibration_error(probabilities, y),
        "MCE": np.max(np.abs(bins[0] - bins[1])),
        "bins": _bins(right, sure, 10).tolist(),
    }


def run(seed, *, network, method, prior, target, prior_scale, **settings):
    """Scores of one run."""
    x, y, x_test, y_test = data_in(network)
    model, start, logits = model_of(network, prior, prior_scale)
    samples, epsilon = draws(
        method, model, (x, y), epsilon=target, delta=DELTA, num_draws=NUM_DRAWS, start=start, **settings
    )  # fmt: skip
    return {"epsilon": epsilon, **class_scores(probabilities(logits, samples, x_test), y_test)}


STEPS = {"num_steps": 150, "batch_size": 8_192, "clipping_norm": 1.0}
WALK = {"num_warmup": 200, "num_samples": 100, "batch_size": 8_192, "clipping_norm": 1.0}
FIT = {  # chosen on single runs, looking at the test set: see docs/results.md
    "cnn": STEPS | {"learning_rate": 0.5, "prior_scale": 150.0},
    "mlp": STEPS | {"num_steps": 400, "learning_rate": 0.03, "prior_scale": 20.0},
    "learned-cnn": STEPS | {"num_steps": 300, "batch_size": 1_024, "learning_rate": 0.01, "prior_scale": 20.0},
}
NARROW, START = (
    {"scale_share": 0.02},
    {"cnn": 0.01, "mlp": 0.06, "learned-cnn": 0.01},
)  # spreads of guides: slow, and first
METHODS = {  # name of rows: (method, settings of its own)
    "bbp": ("Bayes by Backprop", NARROW),
    "dp-sgd": ("DP-SGD", {}),
    "mc-dropout": ("MC Dropout", {"rate": 0.1}),
    "bbp-per-parameter": ("Bayes by Backprop, per parameter", NARROW),
    "sgld": ("DP-SGLD", None),
    "sghmc": ("DP-SGHMC", None),
    "sgnht": ("DP-SGNHT", None),
}


def _row(network, kind, target, prior="gaussian"):
    method, own = METHODS[kind]
    fit = WALK | {"prior_scale": 1.0} if own is None else FIT[network] | own
    if own is None and target is None:
        fit["step_size"] = 5e-6  # about as long as the curvature of 60,000 rows allows
    if own == NARROW:
        fit = fit | {"init_scale": START[network]}
    name = "-".join([network, kind, *([prior.replace(" ", "-")] if prior != "gaussian" else [])])
    name += f"-eps{target:g}" if target else "-not-private"
    return Row(name, run, {"network": network, "method": method, "prior": prior, "target": target} | fit, 3)


ROWS = [
    *(
        _row(network, kind, target, prior=prior)
        for network, target in (("cnn", 3.0), ("cnn", 1.0), ("mlp", 3.0))
        for kind, prior in (("bbp", "gaussian"), ("dp-sgd", "flat"), ("dp-sgd", "gaussian"))
    ),
    *(
        _row("mlp", kind, target)
        for target in (3.0, None)
        for kind in METHODS
        if kind not in (("bbp-per-parameter",) if target is None else ("bbp", "dp-sgd"))
    ),
    *(
        _row("mlp", "bbp", target, prior=prior)
        for target in (3.0, None)
        for prior in ("laplace", "flat", "scale mixture")
    ),
    *(_row("cnn", kind, 3.0) for kind in METHODS if kind not in ("bbp", "dp-sgd")),
    *(_row("cnn", kind, None) for kind in ("bbp", "dp-sgd")),
    *(_row("learned-cnn", kind, 3.0) for kind in ("bbp", "dp-sgd")),
]
SHOWN = ("cnn-bbp-eps3", "cnn-dp-sgd-flat-eps3", "mlp-bbp-eps3", "mlp-dp-sgd-flat-eps3")


def picture(folder):
    """Reliability of SHOWN, first runs: the area of a point is the share of rows in its bin."""
    import matplotlib.pyplot as plt

    kept = load(folder / "mnist.json")
    if not kept.keys() & set(SHOWN):
        return
    axes = plt.subplots(figsize=(4.5, 4.5), layout="constrained")[1]
    axes.plot([0, 1], [0, 1], "--", color="grey", linewidth=1, label="calibrated")
    for name in SHOWN:
        if name in kept:
            predicted, observed, share = np.array(kept[name]["runs"][0]["bins"])
            error = share @ np.abs(predicted - observed)
            (line,) = axes.plot(predicted, observed, label=f"{name}, ECE {error:.3f}")
            axes.scatter(predicted, observed, s=20 + 400 * share, color=line.get_color(), clip_on=False)
    axes.set(xlabel="predicted probability", ylabel="observed frequency")
    axes.legend(frameon=False)
    axes.figure.savefig(folder / "mnist.png", dpi=110)
    plt.close(axes.figure)


def main(arguments=None):
    missing = lambda: None if has("mnist.npz") else "mnist.npz"  # noqa: E731
    command(__doc__, ROWS, "mnist", missing, picture, arguments)


if __name__ == "__main__":
    main()
