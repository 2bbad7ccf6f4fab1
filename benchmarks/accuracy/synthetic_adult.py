"""Ten mixed columns of UCI Adult: time of a fit with 20 data sets, and total variation of 2-way marginals beside `mbi` on a tree.

python benchmarks/accuracy/synthetic_adult.py --epsilons 1 [--peer PYTHON]    # PYTHON: one of an environment that has mbi 2 and networkx
python benchmarks/accuracy/synthetic_adult.py --coverage 10 --rows 8000 --keep runs.jsonl    # may be broken off and taken up again

Numbers are cut into 8 intervals for the marginals. Total variation is the mean over the 45 pairs of columns, of one synthetic table with
as many rows as the data; that of two halves of the data is the noise of sampling.

--coverage: tables of --rows rows from a table's model that was fitted to Adult, the truth; each is fitted anew, and 20 synthetic tables are
analysed in ten ways, of which five are coefficients of the model. Coverage of 95 % intervals, and the width of these five over that of the
private posterior itself.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.lib.repeated import Once, recorded
from benchmarks.lib.results import written
from dpppl.contrib import synthetic
from examples.data import data_folder

CATEGORIES = {
    "sex": ("Female", "Male"), "race": ("White", "other"), "country": ("United-States", "other"),
    "marital": ("Married", "Never-married", "other"), "work": ("Private", "government", "other"),
    "gain": ("no", "yes"), "income": ("<=50K", ">50K"),
}  # fmt: skip
NUMBERS = {"age": (17, 90), "education": (1, 16), "hours": (1, 99)}
ORDER = ("sex", "race", "country", "age", "education", "marital", "work", "hours", "gain", "income")
EDGES = {
    "age": (17, *range(20, 75, 5), 90), "education": (*range(1, 17), 16.4),
    "hours": (1, *(edge for fifth in range(10, 75, 5) for edge in (fifth, fifth + 1)), 99),
}  # fmt: skip
"""For --intervals: years of school one by one, and multiples of five hours one by one."""


def schema_of(has_intervals):
    def number(n):
        if has_intervals:
            return synthetic.Intervals(n, EDGES[n], decimals=0)
        return synthetic.Number(n, *NUMBERS[n], decimals=0)

    return synthetic.Schema(
        tuple(synthetic.Category(n, CATEGORIES[n]) if n in CATEGORIES else number(n) for n in ORDER)
    )


SCHEMA = schema_of(False)


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


def margin(one, other, number):
    """The total variation of one column."""
    first, second = (np.bincount(t[:, number], minlength=SIZES[number]) / len(t) for t in (one, other))
    return float(0.5 * np.abs(first - second).sum())


def income(columns):
    """The coefficients of income's logistic regression on all columns before it, as the table's model has it, and their variances."""
    encoded, _ = SCHEMA.encoded(columns)
    x = np.concatenate(
        [np.ones((len(encoded["sex"]), 1)), *(np.asarray(c.features(encoded[c.name])) for c in SCHEMA.columns[:-1])], 1
    )
    y, weights = encoded["income"], np.zeros(x.shape[1])
    for _ in range(12):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        curvature = (x * (p * (1 - p))[:, None]).T @ x + 1e-6 * np.eye(len(weights))
        weights = weights + np.linalg.solve(curvature, x.T @ (y - p))
    return weights, np.diag(np.linalg.inv(curvature))


LATENTS = {"education": 5, "married: never": 6, "hours": 10, "sex": 1, "age": 4}
"""Coefficients of income, by their number."""


def analyses(columns):
    """Ten estimates and their variances: five coefficients, two means, two shares, and a difference of means."""
    of = {name: np.asarray(columns[name]) for name in ORDER}
    weights, variances = income(columns)
    numbers = list(LATENTS.values())
    estimates, spread = list(weights[numbers]), list(variances[numbers])

    def mean(values, among):
        chosen = np.asarray(values, float)[among]
        return chosen.mean(), chosen.var() / len(chosen)

    woman, rich, married = of["sex"] == "Female", of["income"] == ">50K", of["marital"] == "Married"
    every = np.ones(len(woman), bool)
    more = [
        mean(of["hours"], woman),
        mean(of["age"], married),
        mean(rich, woman),
        mean(of["work"] == "government", every),
    ]
    high, low = mean(of["education"], rich), mean(of["education"], ~rich)
    more.append((high[0] - low[0], high[1] + low[1]))
    return np.array(estimates + [one[0] for one in more]), np.array(spread + [one[1] for one in more])


ONCE = Once()


def private_fit(model, data, eps, options, schema=SCHEMA):
    private = dpppl.NoiseAware(
        model, target_epsilon=eps, target_delta=options.delta, print_cost=False, progress_bar=False
    )
    private.run(dpppl.secret_key(), *schema.encoded(data))
    return private, private.get_samples(allow_unconverged=True)


def drawn(model, latents, rows, seed):
    """A table of the model's at these latents."""
    one = {site: np.asarray(value)[None] for site, value in latents.items()}
    return synthetic.datasets(jax.random.key(seed), model, one, SCHEMA, num_rows=rows, num_datasets=1)[0]


def covered(model, truth, values, eps, options, seed):
    with ONCE:
        private, samples = private_fit(model, drawn(model, truth, options.rows, seed), eps, options)
    size = options.larger * options.rows
    tables = synthetic.datasets(jax.random.key(seed), model, samples, SCHEMA, num_rows=size, num_datasets=20)
    estimates, variances = (np.array(found) for found in zip(*map(analyses, tables)))
    low, high = synthetic.combine(estimates, variances, size_ratio=options.larger).interval(0.95)
    numbers = list(LATENTS.values())
    ends = np.quantile(np.asarray(samples["income given the columns before"])[:, numbers, 0], [0.025, 0.975], axis=0)
    own = np.asarray(truth["income given the columns before"])[numbers, 0]
    return {
        "inside": ((low <= values) & (values <= high)).astype(float).tolist(), "width": (high - low).tolist(),
        "direct width": (ends[1] - ends[0]).tolist(), "direct inside": ((ends[0] <= own) & (own <= ends[1])).astype(float).tolist(),
        "refused": float(bool(private.verdict.refusals)),
    }  # fmt: skip


def coverage(model, options):
    """Coverage of ten analyses, where the truth is a table's model that was fitted to Adult."""
    eps, keep = options.epsilons[0], options.keep
    place = Path(keep).with_suffix(".npz") if keep else None
    if place and place.exists():
        truth = dict(np.load(place))
    else:
        truth = {site: np.asarray(v).mean(axis=0) for site, v in private_fit(model, table(), 8.0, options)[1].items()}
        if place:
            np.savez(place, **truth)
    values = analyses(drawn(model, truth, 1_000_000, 10**6))[0]
    run = partial(covered, model, truth, values, eps, options)
    runs = recorded(keep, f"coverage {eps:g} {options.rows}", range(options.coverage), run, options.seconds)
    mean = lambda name: np.mean([one[name] for one in runs], axis=0)  # noqa: E731
    ratio = np.array([np.array(one["width"])[: len(LATENTS)] / one["direct width"] for one in runs])
    line = {
        "coverage": float(np.mean(mean("inside"))), "by analysis": np.round(mean("inside"), 2).tolist(),
        "coverage of the posterior": float(np.mean(mean("direct inside"))), "width over the posterior's": float(np.median(ratio)),
        "refused": float(mean("refused")), "repetitions": len(runs),
    }  # fmt: skip
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in line.items()}


def mu_of(private):
    """The mu of mu-Gaussian differential privacy that a run has spent."""
    (event,) = private.privacy_report().events
    return float(np.sqrt(np.sum(np.asarray(event.noise_multipliers, float) ** -2)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--intervals", action="store_true", help="numbers as intervals, and a prior scale of 3")
    parser.add_argument("--peer", help="a Python that has mbi 2")
    parser.add_argument("--coverage", type=int, default=0, help="repetitions of ten analyses")
    parser.add_argument("--rows", type=int, default=8_000)
    parser.add_argument(
        "--larger", type=int, default=5, help="rows of a synthetic table over rows of the data, for --coverage"
    )
    parser.add_argument("--seconds", type=float, default=np.inf, help="no more repetitions after so long")
    parser.add_argument("--keep", help="a file of JSON lines that holds what each repetition found")
    options = parser.parse_args()
    schema = schema_of(options.intervals)
    model = synthetic.table_model(schema, scale=3.0 if options.intervals else 1.5)
    if options.coverage:
        line = coverage(model, options)
        written("synthetic", f"Adult, ten analyses, epsilon {options.epsilons[0]:g}, {options.rows} rows", line)
        print(line)
        return
    data = table()
    real = codes(data)
    halves = np.random.default_rng(0).permutation(len(real))
    line = {"two halves": variation(real[halves[::2]], real[halves[1::2]])}
    for eps in options.epsilons:
        start, used = time.monotonic(), time.process_time()
        private, samples = private_fit(model, data, eps, options, schema)
        line["seconds of the fit"] = time.monotonic() - start
        tables = synthetic.datasets(jax.random.key(0), model, samples, schema, num_rows=len(real), num_datasets=20)
        line |= {"seconds": time.monotonic() - start, "processor seconds": time.process_time() - used}
        line |= {"total variation": float(np.mean([variation(real, codes(t)) for t in tables[:3]]))}
        line |= {f"variation of {n}": margin(real, codes(tables[0]), k) for k, n in enumerate(ORDER) if n in NUMBERS}
        line["refused"] = bool(private.verdict.refusals)
        if options.peer:
            with tempfile.TemporaryDirectory() as place:
                np.savez(f"{place}/in.npz", codes=real, sizes=SIZES)
                worker = Path(__file__).parents[1] / "speed" / "peer_workers" / "mbi_tree.py"
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
        written("synthetic", f"Adult, ten columns{', intervals' * options.intervals}, epsilon {eps:g}", line)
        print(eps, line, private.verdict.line(), flush=True)


if __name__ == "__main__":
    main()
