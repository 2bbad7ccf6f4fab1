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


def _read_adult(path: Path):
    with open(path) as file:
        rows = list(csv.DictReader(file))
    columns = [scale(np.array([float(row[name]) for row in rows])) for name, scale in ADULT_NUMBERS.items()]
    for name, categories in ADULT_CATEGORIES.items():
        values = np.array([row[name] for row in rows])
        columns += [ADULT_SCALES.get(name, 1.0) * (values == category) for category in categories.split()]
    labels = np.array([row["income"] == ">50K" for row in rows])
    return np.stack(columns, axis=1).astype(np.float32), labels.astype(np.float32)


def digits():
    """scikit-learn's bundled digits, odd against even: as `adult`, x (N, 64) in [0, 1/4], every fourth for testing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = (images / 64.0).astype(np.float32), (labels % 2).astype(np.float32)
    test = np.arange(len(y)) % 4 == 0
    return x[~test], y[~test], x[test], y[test]
