"""Public bodies and private heads: weights are read, features are made once, heads and adapters take private steps."""

import pickle
from collections import OrderedDict
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoNormal
from scipy import stats

import dpppl
from dpppl.access import ghost_sum
from dpppl.access.clipping import Flat
from dpppl.access.drawn import Drawn
from dpppl.model.split import split_model
from examples import cifar10, cifar10_adapter, cifar10_features, cifar10_reference, efficientnet
from examples.efficientnet import Layer
from models import lora
from models.softmax_regression import logits

RNG = np.random.default_rng(0)


# The body


def convolution(x, kernel, stride, groups=1):
    names = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=names, feature_group_count=groups
    )


@pytest.mark.parametrize("size, stride, side", [(3, 1, 6), (3, 2, 6), (5, 2, 7), (5, 1, 7)])
def test_shifted_products_are_a_grouped_convolution(size, stride, side):
    x, kernel = RNG.normal(size=(2, side, side, 4)), RNG.normal(size=(size, size, 1, 4))
    layer = Layer(kernel.astype(np.float32), np.full(4, 0.5, np.float32))
    expected = convolution(jnp.asarray(x, jnp.float32), layer.kernel, stride, groups=4) + 0.5
    np.testing.assert_allclose(efficientnet._depthwise(layer, x.astype(np.float32), stride), expected, atol=1e-5)


class _Fake:
    """Pickles as a call of a function of PyTorch's, which is not installed."""

    def __init__(self, module, name, arguments=None):
        self.module, self.name, self.arguments = module, name, arguments


class _Pickler(pickle._Pickler):
    """Writes PyTorch's format before version 1.6."""

    def persistent_id(self, value):
        return value if isinstance(value, tuple) and value[:1] == ("storage",) else None

    def save_fake(self, value):
        self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        if value.arguments is not None:
            self.save(value.arguments)
            self.write(pickle.REDUCE)

    dispatch = pickle._Pickler.dispatch | {_Fake: save_fake}


def write(path, state, magic=0x1950A86A20F9469CFC6C):
    with open(path, "wb") as file:
        for value in (magic, 1001, {}, state, ["0"]):
            _Pickler(file, 2).dump(value)
        file.write(np.int64(6).tobytes() + np.arange(6, dtype="<f4").tobytes())


def tensor(offset, shape, strides):
    storage = ("storage", _Fake("torch", "FloatStorage"), "0", "cpu", 6, None)
    return _Fake("torch._utils", "_rebuild_tensor_v2", (storage, offset, shape, strides, False, OrderedDict()))


def test_tensors_are_read_with_their_strides_and_no_code_is_run(tmp_path):
    path = tmp_path / "weights.pth"
    write(path, OrderedDict(turned=tensor(0, (3, 2), (1, 3)), last=tensor(5, (1,), (1,))))
    found = efficientnet.read_tensors(path)
    np.testing.assert_array_equal(found["turned"], np.arange(6).reshape(2, 3).T)
    np.testing.assert_array_equal(found["last"], [5.0])
    write(path, OrderedDict(bad=_Fake("os", "getcwd", ())))
    with pytest.raises(pickle.UnpicklingError, match=r"os\.getcwd"):
        efficientnet.read_tensors(path)
    write(path, OrderedDict(), magic=1)
    with pytest.raises(ValueError, match=r"before version 1\.6"):
        efficientnet.read_tensors(path)


def test_a_killed_run_continues_from_its_last_chunk(tmp_path, capsys):
    images, path = RNG.random((25, 2, 2, 3)).astype(np.float32), tmp_path / "train-0.npy"
    double = lambda x: x.reshape(len(x), -1) * 2.0  # noqa: E731
    cifar10_features.make(images, path, double, chunk=10, batch=4)
    np.testing.assert_allclose(np.load(path), double(images))
    assert "3 of 3 chunks" in capsys.readouterr().out and list(tmp_path.iterdir()) == [path]
    with open(path.with_suffix(".10.part"), "wb") as file:  # a chunk that an earlier run finished
        np.save(file, np.zeros((10, 12), np.float32))
    cifar10_features.make(images, path, double, chunk=10, batch=4)
    found = np.load(path)
    assert np.all(found[10:20] == 0.0)
    np.testing.assert_allclose(found[20:], double(images)[20:])


# Heads


def test_contrasts_give_the_predictions_of_a_weight_for_every_class():
    """Equal variances of the differences of two classes' logits, in 20,000 prior draws: within 5 %; sd .7 % by chance."""
    draws = jax.random.normal(jax.random.key(0), (20_000, 1, 2))
    found = jax.vmap(lambda w: logits(jnp.ones((1, 1)), w, jnp.zeros(2)))(draws)[:, 0]
    np.testing.assert_allclose(found.sum(1), 0.0, atol=1e-5)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert np.var(found[:, a] - found[:, b]) == pytest.approx(2.0, rel=0.05)


@pytest.mark.slow
def test_the_reference_is_the_mode_and_its_curvature():
    x, y = RNG.normal(size=(300, 2)).astype(np.float32), RNG.integers(0, 10, 300)

    def log_density(w):
        p = jax.nn.log_softmax(logits(x, w[1:], w[0]))
        return p[jnp.arange(300), y].sum() - 0.5 * jnp.sum((w / 0.5) ** 2)

    mode, covariance = cifar10_reference.newton(x, y, 0.5)
    np.testing.assert_allclose(jax.grad(log_density)(mode), 0.0, atol=2e-3)
    curvature = -jax.hessian(log_density)(mode).reshape(27, 27)
    np.testing.assert_allclose(curvature @ covariance, np.eye(27), atol=1e-2)


def test_intervals_hold_their_share_of_equal_draws_and_less_of_moved_ones():
    """.9 for 300 weights of 2,000 draws each, with a standard error of .001; .55 where they are moved by 1.5 sds."""
    draws = {"weights": RNG.normal(size=(2, 2_000, 30, 10))}
    found = cifar10_reference.beside({"weights": draws["weights"][0]}, {"weights": draws["weights"][1]}, RNG)
    assert found["mass"] == pytest.approx(0.9, abs=0.01) and found["sd"] == pytest.approx(1.0, abs=0.02)
    moved = {"weights": draws["weights"][1] + 1.5}
    assert cifar10_reference.beside({"weights": draws["weights"][0]}, moved, RNG)["mass"] < 0.6


def test_scores_of_predictions():
    confidence, right = np.array([0.9, 0.6, 0.8, 0.7]), np.array([True, False, True, False])
    assert cifar10.selective(confidence, right, (1.0, 0.75, 0.5)) == [0.5, pytest.approx(2 / 3), 1.0]
    known, unknown = RNG.normal(size=300), RNG.normal(1.0, size=200)
    expected = stats.mannwhitneyu(unknown, known).statistic / (300 * 200)
    assert cifar10.detection(known, unknown) == pytest.approx(expected)
    agreeing, opposed = np.full((2, 1, 2), 0.5), np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert cifar10.mutual_information(agreeing)[0] == 0.0
    assert cifar10.mutual_information(opposed)[0] == pytest.approx(np.log(2.0))


def test_tempering_finds_the_temperature():
    """4,000 labels drawn from the probabilities, which are then sharpened by 2: standard error of the temperature about .05."""
    scores = 2.0 * RNG.normal(size=(4_000, 3))
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    y = (p.cumsum(1) > RNG.random((4_000, 1))).argmax(1)
    sharp = p**2 / (p**2).sum(1, keepdims=True)
    temperature, nll, ece = cifar10.tempered(sharp, y)
    assert temperature == pytest.approx(2.0, abs=0.3) and ece < 0.05
    assert nll < -np.log(sharp[np.arange(4_000), y])[1::2].mean()


# Adapters


class Network(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.out = nnx.Linear(16, 12, rngs=rngs), nnx.Linear(12, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.hidden(x)))


X, Y = RNG.normal(size=(40, 16)).astype(np.float32), RNG.integers(0, 3, 40).astype(np.int32)
DRAW = {"a": RNG.normal(size=(16, 8)).astype(np.float32), "b": RNG.normal(size=(8, 12)).astype(np.float32)}


def adapter():
    """(public network, its arrays, a model with an adapter of rank 8 in the layer `hidden`, the adapter's structure)."""
    network = Network(nnx.Rngs(0))
    graph, factors, public = lora.parts(lora.adapted(network, "hidden", rank=8))
    structure = {"graph": graph, "adapter": factors}
    return network, dpppl.Public(public), partial(lora.low_rank_adapter, **structure), structure


def test_classes_by_name_are_sums_of_public_classes():
    kernel, x = RNG.normal(0.0, 0.05, (4, 1000)).astype(np.float32), RNG.normal(size=(3, 4)).astype(np.float32)
    named = np.concatenate(list(cifar10_adapter.NAMES.values()))
    assert len(np.unique(named)) == len(named) and named.max() < 1000
    scores = np.exp(cifar10_adapter.SCALE * x @ kernel)
    expected = [scores[:, numbers].sum(1) / scores[:, named].sum(1) for numbers in cifar10_adapter.NAMES.values()]
    np.testing.assert_allclose(np.exp(cifar10_adapter.Named(kernel)(x)).T, expected, rtol=1e-3, atol=1e-6)


def test_an_adapter_of_zeros_is_the_public_network():
    network, public, _, structure = adapter()
    found = lora.logits(X, DRAW | {"b": 0.0 * DRAW["b"]}, public.value, **structure)
    np.testing.assert_allclose(found, network(X), atol=1e-5)
    assert not np.allclose(lora.logits(X, DRAW, public.value, **structure), network(X), atol=1e-2)


def test_ghost_sums_of_an_adapter_are_its_clipped_gradients():
    """The forms of both factors are outer products; their sum is that of the rows' gradients, most of which are clipped."""
    _, public, model, _ = adapter()
    split = split_model(model, (X, Y, public), {})
    rows, arrays = split.arrays((X, Y, public), {})
    one = jax.tree.map(lambda value: value[0], rows)
    found = ghost_sum.factored(split.log_likelihood, DRAW, one, arrays, always=True)
    assert found is not None and [form.kind for form in found.forms.of_latents] == ["outer", "outer"]
    statistic = lambda row: found.statistic(DRAW, row, arrays)  # noqa: E731
    total = jax.jit(
        lambda rows: ghost_sum.clipped_sum(statistic, found.forms, Drawn(rows, np.ones(40, bool)), Flat(0.5))
    )(rows)
    gradients = jax.vmap(jax.grad(split.log_likelihood), (None, 0, None))(DRAW, rows, arrays)
    length = np.sqrt(sum(np.sum(np.square(g), axis=(1, 2), dtype=np.float64) for g in gradients.values()))
    assert np.mean(length > 0.5) > 0.5
    for name, leaf in gradients.items():
        expected = np.einsum("r,rij->ij", np.minimum(2.0, 0.9989 / length), np.asarray(leaf, np.float64))
        np.testing.assert_allclose(total[name], expected, rtol=2e-4, atol=2e-4)


@pytest.mark.slow
def test_an_adapter_takes_private_steps():
    _, public, model, _ = adapter()
    guide = AutoNormal(model, init_loc_fn=init_to_value(values=DRAW))
    svi = dpppl.SVI(model, guide, optax.adam(1e-2), clipping_norm=0.5, noise_multiplier=1.0, print_cost=False,
                    subsampling=dpppl.FullBatch(), gradient_strategy="ghost")  # fmt: skip
    result = svi.run(dpppl.secret_key(), 2, X, Y, public, progress_bar=False)
    assert result.params["a_auto_loc"].shape == (16, 8) and np.all(np.isfinite(result.params["b_auto_loc"]))
