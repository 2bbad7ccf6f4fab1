"""A private Bayesian low-rank adapter in a public network that already knows CIFAR-10's classes by name.

    python examples/cifar10_features.py --data DATA
    python examples/cifar10_adapter.py --data DATA

The network is the ImageNet classifier of EfficientNet-Lite0: the probability of a CIFAR class is that of the ImageNet classes
which its name covers. It costs no budget, and is right on .6 of the test images. The adapter changes the classifier's layer by a
product of rank 8, fitted by Bayes by Backprop with ghost sums at epsilon 1 and 3, delta = 1e-5.
"""

import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpyro.infer import init_to_value

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.cifar10 import DELTA, labels
from examples.cifar10_features import missing, stored
from examples.efficientnet import load_body
from examples.methods import draws
from examples.mnist import class_scores
from examples.results import Row, command
from models import lora

RANK, NUM_DRAWS, SCALE = 8, 20, 20.0
"""SCALE: about the length of a row's features, a round number."""
NAMES = {  # numbers of ImageNet classes
    "airplane": [404, 895],
    "automobile": [436, 468, 511, 609, 627, 656, 661, 751, 817],
    "bird": [*range(7, 25), *range(80, 101), *range(127, 147)],
    "cat": [*range(281, 288)],
    "deer": [*range(348, 354)],
    "dog": [*range(151, 269)],
    "frog": [30, 31, 32],
    "horse": [339, 340, 603],
    "ship": [403, 484, 510, 554, 625, 628, 724, 780, 814, 871, 914],
    "truck": [555, 569, 586, 675, 717, 847, 864, 867],
}


class Named(nnx.Module):
    """Log probabilities (N, 10) of features (N, 1280): ImageNet's classes, added up by CIFAR's names."""

    def __init__(self, kernel):
        columns = np.concatenate(list(NAMES.values()))
        self.classifier = nnx.Linear(kernel.shape[0], len(columns), rngs=nnx.Rngs(0))
        self.classifier.kernel[...] = jnp.asarray(SCALE * kernel[:, columns])
        self.ends = tuple(np.cumsum([len(numbers) for numbers in NAMES.values()]))

    def __call__(self, x):
        found = jax.nn.log_softmax(self.classifier(x))
        parts = jnp.split(found, self.ends[:-1], axis=-1)
        return jnp.stack([jax.nn.logsumexp(part, axis=-1) for part in parts], axis=-1)


def inputs(part):
    """Features (N, 1280), about 1 long."""
    return np.load(stored(part)[0]) / np.float32(SCALE)


def run(seed, *, method, target, **settings):
    """Scores of one run; without an adapter where `method` is "by name"."""
    network = Named(load_body().classifier)
    if method == "by name":
        return class_scores(np.asarray(jax.nn.softmax(network(inputs("test")))), labels("test"))
    graph, adapter, public = lora.parts(lora.adapted(network, "classifier", RANK))
    structure = {"graph": graph, "adapter": adapter}
    a, b = (np.asarray(leaf) for leaf in jax.tree.leaves(adapter))
    start = np.random.default_rng(seed).normal(size=a.shape).astype(np.float32)
    samples, epsilon = draws(
        method, partial(lora.low_rank_adapter, public=public, **structure), (inputs("train"), labels("train")),
        epsilon=target, delta=DELTA, num_draws=NUM_DRAWS, start=init_to_value(values={"a": start, "b": 0.0 * b}), **settings,
    )  # fmt: skip
    x = inputs("test")
    predicted = jax.lax.map(lambda draw: jax.nn.softmax(lora.logits(x, draw, public, **structure)), samples).mean(0)
    return {"epsilon": epsilon, **class_scores(np.asarray(predicted), labels("test"))}


SETTINGS = {"num_steps": 150, "batch_size": 4_000, "learning_rate": 0.03, "clipping_norm": 1.0, "average": 0.5}
GUIDE = {"init_scale": 0.03, "scale_share": 0.2, "gradient_strategy": "ghost"}
FIT = {"method": "Bayes by Backprop"} | SETTINGS | GUIDE
ROWS = [
    Row("by-name", run, {"method": "by name", "target": None}),
    *(Row(f"adapter-eps{target:g}", run, FIT | {"target": target}, 3) for target in (1.0, 3.0)),
    Row("adapter-not-private", run, FIT | {"target": None}),
]


def main(arguments=None):
    command(__doc__, ROWS, "cifar10_adapter", missing, lambda folder: None, arguments)


if __name__ == "__main__":
    main()
