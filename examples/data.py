"""Loads the data that the examples and benchmarks use, with public constants only."""

import csv
import os
from pathlib import Path

import numpy as np

# Categories and ranges as published with the data set (UCI Machine Learning Repository, "Adult"), not read from rows.
ADULT_CATEGORIES = {
    "workclass": "? Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay",
    "education": "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate HS-grad Masters "
    "Preschool Prof-school Some-college",
    "marital-status": "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated "
    "Widowed",
    "occupation": "? Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners "
    "Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support "
    "Transport-moving",
    "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
    "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    "sex": "Female Male",
    "native-country": "? Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France "
    "Germany Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan "
    "Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South "
    "Taiwan Thailand Trinadad&Tobago United-States Vietnam Yugoslavia",
}
ADULT_NUMBERS = {
    "age": lambda v: (v - 40.0) / 20.0,
    "fnlwgt": lambda v: v / 3e6,
    "education-num": lambda v: (v - 10.0) / 4.0,
    "capital-gain": lambda v: np.log1p(v) / 5.0,
    "capital-loss": lambda v: np.log1p(v) / 5.0,
    "hours-per-week": lambda v: (v - 40.0) / 20.0,
}

# How much a category is expected to matter, a guess: it sizes the column, so the prior and its share of the norm.
ADULT_SCALES = {
    "workclass": 0.5,
    "education": 0.3,
    "relationship": 0.7,
    "race": 0.2,
    "sex": 0.3,
    "native-country": 0.2,
}


def data_folder() -> Path | None:
    """The folder that DPPPL_DATA names, or ../shared/data beside the project; None where neither exists."""
    named = os.environ.get("DPPPL_DATA")
    for folder in [Path(named)] if named else [Path(__file__).resolve().parents[2] / "shared" / "data"]:
        if folder.is_dir():
            return folder
    return None


def has_adult() -> bool:
    """Whether the UCI Adult files are there."""
    folder = data_folder()
    return folder is not None and (folder / "adult-train.csv").exists() and (folder / "adult-test.csv").exists()


def adult():
    """UCI Adult: (x_train, y_train, x_test, y_test); x float32 (N, 108), y float32 (N,), 1 for an income above 50K."""
    folder = data_folder()
    return (*_read_adult(folder / "adult-train.csv"), *_read_adult(folder / "adult-test.csv"))


def adult_in_brief():
    """UCI Adult in eight columns, centred and scaled by public constants: their names, then as `adult`, x (N, 8)."""
    folder = data_folder()
    parts = [_brief(_rows(folder / f"adult-{part}.csv")) for part in ("train", "test")]
    return list(parts[0][0]), *(array for columns, y in parts for array in (_stacked(columns), y))


def _brief(rows):
    number = lambda name: np.array([float(row[name]) for row in rows])  # noqa: E731
    among = lambda name, *values: np.array([row[name] in values for row in rows], float)  # noqa: E731
    age = (number("age") - 40.0) / 20.0
    columns = {
        "age, 20 years": age,
        "its square": np.minimum(age**2, 2.0) - 0.5,
        "education, 4 years": (number("education-num") - 10.0) / 4.0,
        "work, 20 hours a week": np.clip((number("hours-per-week") - 40.0) / 20.0, -1.0, 1.0),
        "married": among("marital-status", "Married-civ-spouse") - 0.5,
        "male": among("sex", "Male") - 0.5,
        "manager or professional": among("occupation", "Exec-managerial", "Prof-specialty") - 0.3,
        "capital gain above 5,000": (number("capital-gain") > 5_000).astype(float),
    }
    return columns, among("income", ">50K").astype(np.float32)


def _stacked(columns):
    return np.stack(list(columns.values()), axis=1).astype(np.float32)


def _read_adult(path: Path):
    rows = _rows(path)
    columns = [scale(np.array([float(row[name]) for row in rows])) for name, scale in ADULT_NUMBERS.items()]
    for name, categories in ADULT_CATEGORIES.items():
        values = np.array([row[name] for row in rows])
        columns += [ADULT_SCALES.get(name, 1.0) * (values == category) for category in categories.split()]
    labels = np.array([row["income"] == ">50K" for row in rows])
    return np.stack(columns, axis=1).astype(np.float32), labels.astype(np.float32)


def _rows(path: Path):
    with open(path) as file:
        return list(csv.DictReader(file))


def digits():
    """scikit-learn's bundled digits, odd against even: as `adult`, x (N, 64) in [0, 1/4], every fourth for testing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = (images / 64.0).astype(np.float32), (labels % 2).astype(np.float32)
    test = np.arange(len(y)) % 4 == 0
    return x[~test], y[~test], x[test], y[test]


def has(name: str) -> bool:
    """Whether the data folder holds this file."""
    folder = data_folder()
    return folder is not None and (folder / name).exists()


def abalone():
    """UCI Abalone, rings > 9: (x_train, y_train, x_test, y_test), x float32 (N, 10); every fifth row is for testing.

    Centres and widths are round numbers for the shell's dimensions and weights, as the data set's page describes them.
    """
    rows = _abalone_rows()
    centred = {"length": (0.5, 0.12), "diameter": (0.4, 0.1), "height": (0.14, 0.04), "whole-weight": (0.8, 0.5)}
    centred |= {"shucked-weight": (0.35, 0.2), "viscera-weight": (0.18, 0.1), "shell-weight": (0.24, 0.14)}
    columns = [(np.array([float(r[n]) for r in rows]) - middle) / width for n, (middle, width) in centred.items()]
    columns += [np.array([r["sex"] == sex for r in rows], float) for sex in "MFI"]
    x, y = np.stack(columns, axis=1).astype(np.float32), np.array([float(r["rings"]) > 9 for r in rows], np.float32)
    test = np.arange(len(y)) % 5 == 0
    return x[~test], y[~test], x[test], y[test]


def abalone_rings():
    """The numbers of rings of the rows of `abalone`, for training and for testing, int32."""
    rings = np.array([int(r["rings"]) for r in _abalone_rows()], np.int32)
    test = np.arange(len(rings)) % 5 == 0
    return rings[~test], rings[test]


def _abalone_rows():
    return _rows(data_folder() / "abalone.csv")


def mnist(flat: bool = True):
    """MNIST: (x_train, y_train, x_test, y_test), pixels in [0, 1], (N, 784) or (N, 28, 28, 1); labels int32 (N,)."""
    with np.load(data_folder() / "mnist.npz") as file:
        arrays = {name: file[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    shape = (784,) if flat else (28, 28, 1)
    images = [(arrays[f"x_{part}"] / 255.0).astype(np.float32).reshape(-1, *shape) for part in ("train", "test")]
    labels = [arrays[f"y_{part}"].astype(np.int32) for part in ("train", "test")]
    return images[0], labels[0], images[1], labels[1]
