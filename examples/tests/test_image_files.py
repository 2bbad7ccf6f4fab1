"""The loaders of image files, on files made here in the published formats."""

import json
import pickle

import numpy as np
import pytest

from examples import image_files

PIXELS = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(10) % 7


def check(images, labels, pixels=PIXELS, expected=LABELS):
    assert images.dtype == np.float32 and labels.dtype == np.int32
    np.testing.assert_allclose(images, pixels / 255.0, atol=1e-6)
    np.testing.assert_array_equal(labels, expected)


def test_svhn(tmp_path):
    from scipy.io import savemat

    labels = np.where(LABELS == 0, 10, LABELS).reshape(-1, 1).astype(np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": PIXELS.transpose(1, 2, 3, 0), "y": labels})
    check(*image_files.svhn(tmp_path, "test"))
    with pytest.raises(FileNotFoundError, match=r"no train_32x32\.mat"):
        image_files.svhn(tmp_path)


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_cifar_binary(tmp_path, inner):
    folder = tmp_path / inner
    folder.mkdir(exist_ok=True)
    flat = PIXELS.transpose(0, 3, 1, 2).reshape(10, -1)  # all of red, then green, then blue
    records = np.concatenate([LABELS[:, None].astype(np.uint8), flat], axis=1)
    for number in range(5):
        records[2 * number : 2 * number + 2].tofile(folder / f"data_batch_{number + 1}.bin")
    check(*image_files.cifar10(tmp_path))
    (folder / "data_batch_5.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match="cut off"):
        image_files.cifar10(tmp_path)


def test_cifar_python(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    batch = {b"data": PIXELS.transpose(0, 3, 1, 2).reshape(10, -1), b"labels": LABELS.tolist()}
    (folder / "test_batch").write_bytes(pickle.dumps(batch))
    check(*image_files.cifar10(tmp_path, "test"))
    with pytest.raises(FileNotFoundError, match="data_batch_1"):
        image_files.cifar10(tmp_path)


def test_cifar_sprites(tmp_path):
    """The npm package: a picture with a row of 1,024 pixels for each image, and labels as JSON."""
    from PIL import Image

    folder = tmp_path / "package"
    folder.mkdir()
    Image.fromarray(PIXELS.reshape(10, 1024, 3)).save(folder / "test_batch.png")
    (folder / "test_lables.json").write_text(json.dumps(LABELS.tolist()))
    check(*image_files.cifar10(tmp_path, "test"))


@pytest.mark.parametrize("channels", [1, 3])
def test_folders_of_png_files(tmp_path, channels):
    from PIL import Image

    pixels = PIXELS[..., 0] if channels == 1 else PIXELS
    for image, label, number in zip(pixels, LABELS, range(10)):
        (tmp_path / f"class {label}").mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / f"class {label}" / f"{number}.png")
    order = np.argsort(LABELS, kind="stable")
    check(*image_files.png_folder(tmp_path), pixels.reshape(10, 32, 32, channels)[order], LABELS[order])
    Image.fromarray(pixels[0, :16, :16]).save(tmp_path / "class 0" / "small.png")
    with pytest.raises(ValueError, match="2 sizes"):
        image_files.png_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match="PNG"):
        image_files.png_folder(tmp_path / "class 0")


@pytest.mark.slow
def test_a_private_classifier_of_png_folders(tmp_path, monkeypatch):
    """Stripes up and down against stripes across: told apart by private weights on public features, 100 test images."""
    from matplotlib.image import imsave

    from examples import image_sets, results

    rng = np.random.default_rng(1)
    for part, number in (("train", 300), ("test", 50)):
        for label, waves in enumerate((np.ones((16, 1)) * np.arange(16), np.arange(16)[:, None] * np.ones(16))):
            folder = tmp_path / part / f"class {label}"
            folder.mkdir(parents=True)
            for image in range(number):
                phase, noise = rng.uniform(0, 6), rng.normal(0, 0.15, (16, 16))
                pixels = np.clip(0.5 + 0.3 * np.sin(waves * 1.5 + phase) + noise, 0, 1)
                imsave(folder / f"{image}.png", np.stack([pixels] * 3, axis=-1))
    monkeypatch.setenv("DPPPL_DATA", str(tmp_path))
    image_sets.data_of.cache_clear()
    out = ["--only", "png-eps3", "--num-runs", "1", "--output", str(tmp_path / "out")]
    image_sets.main(out)
    [scores] = results.load(tmp_path / "out" / "image_sets.json")["png-eps3"]["runs"]
    assert scores["epsilon"] <= 3.0 and scores["accuracy"] > 0.9
