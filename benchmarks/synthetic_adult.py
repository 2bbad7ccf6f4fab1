"""Ten mixed columns of UCI Adult: time of a fit with 20 data sets, and total variation of 2-way marginals beside `mbi` on a tree.

python benchmarks/synthetic_adult.py --epsilons 1 [--peer PYTHON]    # PYTHON: one of an environment that has mbi 2 and networkx

Numbers are cut into 8 intervals for the marginals. Total variation is the mean over the 45 pairs of columns, of one synthetic table with
as many rows as the data; that of two halves of the data is the noise of sampling.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dpppl
from benchmarks.results import written
from dpppl import synthetic
from examples.data import data_folder

CATEGORIES = {
    "sex": ("Female", "Male"), "race": ("White", "other"), "country": ("United-States", "other"),
    "marital": ("Married", "Never-married", "other"), "work": ("Private", "government", "other"),
    "gain": ("no", "yes"), "income": ("<=50K", ">50K"),
}  # fmt: skip
NUMBERS = {"age": (17, 90), "education": (1, 16), "hours": (1, 99)}
ORDER = ("sex", "race", "country", "age", "education", "marital", "work", "hours", "gain", "income")
SCHEMA = synthetic.Schema(
    tuple(
        synthetic.Category(n, CATEGORIES[n]) if n in CATEGORIES else synthetic.Number(n, *NUMBERS[n], decimals=0)
        for n in ORDER
    )
)


def table():
    import pandas as pd

    raw = pd.read_csv(data_folder() / "adult-train.csv", skipinitialspace=True)
    named = lambda values, kept: np.where(np.isin(values, kept), values, "other")  # noqa: E731
    work = raw["workclass"].astype(str)
    return {
        "sex": raw["sex"], "race": named(raw["race"], ["White"]), "country": named(raw["native-country"], ["United-States"]),
        "age": raw["age"], "education": raw["education-num"],
        "marital": named(np.where(raw["marital-status"].str.startswith("Married"), "Married", raw["marital-status"]),
                         ["Married", "Never-married"]),
        "work": np.where(work.str.endswith("-gov"), "government", named(work, ["Private"])),
        "hours": raw["hours-per-week"], "gain": np.where(raw["capital-gain"] > 0, "yes", "no"), "income": raw["income"],
    }  # fmt: skip


def codes(columns):
    """Categories as numbers, and numbers as one of 8 intervals."""
    found = []
    for name in ORDER:
        values = np.asarray(columns[name])
        if name in CATEGORIES:
            found.append(np.array([CATEGORIES[name].index(str(v)) for v in values]))
        else:
            low, high = NUMBERS[name]
            found.append(np.clip(((values.astype(float) - low) / (high - low) * 8).astype(int), 0, 7))
    return np.stack(found, axis=1)


SIZES = np.array([len(CATEGORIES[name]) if name in CATEGORIES else 8 for name in ORDER])


def variation(one, other):
    """The mean over pairs of columns of the total variation of their joint shares."""

    def shares(table, a, b):
        return np.bincount(table[:, a] * SIZES[b] + table[:, b], minlength=SIZES[a] * SIZES[b]) / len(table)

    pairs = itertools.combinations(range(len(SIZES)), 2)
    return float(np.mean([0.5 * np.abs(shares(one, a, b) - shares(other, a, b)).sum() for a, b in pairs]))


def mu_of(private):
    """The mu of mu-Gaussian differential privacy that a run has spent."""
    (event,) = private.privacy_report().events
    return float(np.sqrt(np.sum(np.asarray(event.noise_multipliers, float) ** -2)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--peer", help="a Python that has mbi 2")
    options = parser.parse_args()
    data, model = table(), synthetic.table_model(SCHEMA)
    real = codes(data)
    halves = np.random.default_rng(0).permutation(len(real))
    line = {"two halves": variation(real[halves[::2]], real[halves[1::2]])}
    for eps in options.epsilons:
        start, used = time.monotonic(), time.process_time()
        private = dpppl.NoiseAware(
            model, target_epsilon=eps, target_delta=options.delta, print_cost=False, progress_bar=False
        )
        private.run(dpppl.secret_key(), *SCHEMA.encoded(data))
        samples = private.get_samples(allow_unconverged=True)
        tables = synthetic.datasets(model, samples, SCHEMA, jax.random.key(0), num_rows=len(real), num_datasets=20)
        line |= {"seconds": time.monotonic() - start, "processor seconds": time.process_time() - used}
        line |= {"total variation": float(np.mean([variation(real, codes(t)) for t in tables[:3]]))}
        line["refused"] = bool(private.verdict.refusals)
        if options.peer:
            with tempfile.TemporaryDirectory() as place:
                np.savez(f"{place}/in.npz", codes=real, sizes=SIZES)
                worker = Path(__file__).parent / "peer_workers" / "mbi_tree.py"
                arguments = [
                    options.peer,
                    "-W",
                    "ignore",
                    worker,
                    f"{place}/in.npz",
                    f"{place}/out.npz",
                    str(mu_of(private)),
                ]
                subprocess.run(arguments, check=True, env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0"})
                line["mbi on a tree"] = variation(real, np.load(f"{place}/out.npz")["codes"])
        line = {name: round(value, 4) if isinstance(value, float) else value for name, value in line.items()}
        written("synthetic", f"Adult, ten columns, epsilon {eps:g}", line)
        print(eps, line, private.verdict.line(), flush=True)


if __name__ == "__main__":
    main()
