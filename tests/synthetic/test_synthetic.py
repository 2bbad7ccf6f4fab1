"""Synthetic tables: what a schema encodes, rules that combine analyses, tables from the command line."""

import io
import json
import sys

import jax
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer import Predictive
from scipy import stats

import dpppl
from dpppl.contrib import synthetic
from dpppl.contrib.cli import tables
from dpppl.contrib.cli.main import main
from dpppl.contrib.synthetic import Category, Intervals, Number, Schema, table_model
from dpppl.contrib.synthetic.table import labels_of_model
from dpppl.errors import ConfigurationError

SCHEMA = Schema(
    (Category("sex", ("F", "M")), Number("age", 18, 90, decimals=0), Number("income", 0, 1e6, log=True), Category("job", (1, 2, 3)))
)  # fmt: skip


def test_a_schema_encodes_and_decodes_what_it_names():
    table = {
        "sex": ["F", "M", "M", None], "age": [18, 90, 54, 40], "income": [0.0, 1e6, 999.0, 5.0], "job": [1, 2, 3.0, 1],
        "secret": ["a", "b", "c", "d"],
    }  # fmt: skip
    columns, gaps = SCHEMA.encoded(table)
    assert list(columns) == ["sex", "age", "income", "job"] and np.isnan(gaps).tolist() == [False, False, False, True]
    for column in SCHEMA.columns:
        decoded = list(column.decoded(columns[column.name], np.random.default_rng(0)))[:3]
        assert (
            np.allclose(decoded, table[column.name][:3], rtol=1e-4)
            if isinstance(column, Number)
            else decoded == table[column.name][:3]
        )
    assert SCHEMA.columns[1].decoded(np.array([0.0]), np.random.default_rng(0)).dtype == np.int64


def test_intervals_keep_the_shares_of_any_shape():
    """Whole numbers come back into their intervals, each of these as often as another, the last one too."""
    hours, random = Intervals("hours", (1, 40, 41, 44), decimals=0), np.random.default_rng(0)
    codes, known = hours.encoded([-5, 39, 40, 41, 44, 60, None])
    assert codes.tolist() == [0, 0, 1, 2, 2, 2, 0] and known.tolist() == [True] * 6 + [False]
    values = hours.decoded(np.repeat([0, 1, 2], 10_000), random)
    assert values.dtype == np.int64 and set(values[10_000:20_000]) == {40} and set(values[:10_000]) == set(range(1, 40))
    counts = np.bincount(values[20_000:] - 41)
    assert stats.chisquare(counts).pvalue > 1e-3 and len(counts) == 4  # false alarm in 1 of 1,000
    assert Intervals("x", (0, 0.5, 1), decimals=1).decoded(np.array([1] * 99), random).min() == 0.5


@pytest.mark.slow
def test_a_model_of_intervals_has_any_shares_and_a_trend():
    """By `NoiseAware`: a peak that no normal law has, and a group whose values are larger."""
    rng = np.random.default_rng(0)
    group = rng.random(4_000) < 0.5
    value = np.where(rng.random(4_000) < 0.5, 40, rng.integers(1, 80, 4_000)) + np.where(
        group & (rng.random(4_000) < 0.3), 20, 0
    )
    table = {"group": np.where(group, "b", "a"), "value": value}
    schema = Schema((Category("group", ("a", "b")), Intervals("value", (1, 20, 40, 41, 60, 61, 99), decimals=0)))
    model = synthetic.table_model(schema)
    private = dpppl.NoiseAware(model, target_epsilon=3.0, target_delta=1e-6, print_cost=False, progress_bar=False)
    private.run(dpppl.secret_key(), *schema.encoded(table))
    (drawn,) = synthetic.datasets(
        jax.random.key(0), model, private.get_samples(allow_unconverged=True), schema, num_rows=40_000, num_datasets=1
    )
    for of in (lambda t: np.mean(np.asarray(t["value"]) == 40), lambda t: np.mean(np.asarray(t["value"]) == 60)):
        assert abs(of(drawn) - of(table)) < 0.03  # sampling of 4,000 rows .008
    means = [[np.mean(np.asarray(t["value"])[np.asarray(t["group"]) == g]) for g in "ab"] for t in (table, drawn)]
    assert np.abs(np.subtract(*means)).max() < 2.0 and means[1][1] - means[1][0] > 3.0


@pytest.mark.parametrize("value", ["X", np.nan, None, 3, object(), ["F"]])
def test_an_unknown_entry_leaves_its_row_out(value):
    column = {"sex": ["F", value], "age": [20, 30], "income": [1, 2], "job": [1, 1]}
    assert np.isnan(SCHEMA.encoded(column)[1]).tolist() == [False, True]


def test_numbers_outside_of_their_range_are_moved_and_text_is_missing():
    values, known = Number("x", 0, 10).encoded([-5, 20, "secret", np.inf, 5])
    assert values.tolist()[:2] == [-1.0, 1.0] and known.tolist() == [True, True, False, False, True]


WRONG_COLUMNS = {  # what the file gives of a column: what the refusal names
    '"name": "a"': "gives its name, and categories",
    '"name": "a", "categories": ["x"]': "two or more different categories",
    '"name": "a", "categories": "FM"': "two or more different categories",
    '"name": "a", "categories": {"F": 1, "M": 2}': "two or more different categories",
    '"name": "a", "categories": ["F", "M"], "range": [0, 9]': "leave out all else",
    '"name": "a", "categories": ["F", "M"], "log": true': "leave out all else",
    '"name": "a", "edges": [0, 1, 2], "log": true': "leave out all else",
    '"name": "a", "range": [0, 9], "unit": "kg"': "leave out all else",
    '"range": [0, 9]': "gives its name, and categories",
    '"name": 3, "range": [0, 9]': "name must be text",
    '"name": "a", "range": [1, 0]': "low below high",
    '"name": "a", "range": [0, Infinity]': "low below high",
    '"name": "a", "range": ["0", "9"]': "low must be a number, got a str",
    '"name": "a", "range": "09"': "low must be a number, got a str",
    '"name": "a", "range": [0, 9], "log": "no"': "log must be True or False, got a str",
    '"name": "a", "range": [0, 9], "decimals": 1.7': "decimals must be a whole number, got a float",
    '"name": "a", "edges": [0, 1, 2], "decimals": true': "decimals must be a whole number, got a bool",
    '"name": "a", "range": [0, 9.5], "decimals": 0': "has the end 9.5: give more decimals",
    '"name": "a", "edges": [0, 0.125, 2]': "has the end 0.125: give more decimals",
    '"name": "a", "edges": [1, 0, 2]': "in increasing order",
    '"name": "a", "edges": ["0", "1", "2"]': "in increasing order",
    '"name": "a", "edges": "012"': "in increasing order",
}


def test_a_wrong_schema_is_refused(tmp_path):
    """Nothing is converted: a type of its own, a key too many and a key too few are named, with the column's number."""
    path = tmp_path / "schema.json"
    for text, words in WRONG_COLUMNS.items():
        path.write_text(f'{{"columns": [{{"name": "b", "range": [0, 1]}}, {{{text}}}]}}')
        with pytest.raises(ConfigurationError, match=f"schema.json, column 2: .*{words}"):
            Schema.from_json(path)
    for text in ("", "[]", '{"columns": []}', '{"columns": [{"name": "a", "range": [0, 1, 2]}]}'):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match="schema"):
            Schema.from_json(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Schema.from_json(tmp_path / "none.json")
    with pytest.raises(ConfigurationError, match="path of a schema file, got a dict"):
        Schema.from_json({"columns": []})
    path.write_bytes('\ufeff{"columns": [{"name": "größe", "range": [0, 1]}]}'.encode())  # as some editors write it
    assert Schema.from_json(path).columns[0].name == "größe"


PAIR = Schema((Category("a", (0, 1)), Category("b", (0, 1))))
OTHER = Schema((Category("a", (0, 1)), Category("c", (0, 1, 2))))
DRAWS = {"a given the columns before": np.zeros((5, 1, 1)), "b given the columns before": np.zeros((5, 2, 1))}
FITS = {  # a model and a table in place of the right ones: what the refusal names
    "no rows": (synthetic.table_model(PAIR), {"a": [], "b": []}, "no rows"),
    "another model": (synthetic.table_model(OTHER), None, "fails on the schema's columns a, b"),
    "no site": (lambda columns: None, None, "no site 'a', a column"),
    "a model that fails": (lambda columns: columns["z"], None, "fails on the schema's columns a, b"),
}


@pytest.mark.parametrize("name", FITS)
def test_a_fit_that_cannot_be_made_is_not_charged(name, tmp_path):
    model, table, words = FITS[name]
    ledger = dpppl.PrivacyLedger(tmp_path / "ledger", 9.0, 1e-5)
    with pytest.raises((ConfigurationError, dpppl.UnsupportedModelError), match=words):
        synthetic.fit_cells(
            dpppl.secret_key(), model, PAIR, table or {"a": [0, 1], "b": [0, 1]}, noise_multiplier=1.0, ledger=ledger
        )
    with pytest.raises(ConfigurationError, match="num_samples=7 is too few for R-hat: give 8 or more"):
        synthetic.fit_cells(
            dpppl.secret_key(), model, PAIR, table or {}, noise_multiplier=1.0, ledger=ledger, num_samples=7
        )
    assert ledger.spent == 0.0


@pytest.mark.parametrize(
    ("schema", "samples", "words"),
    [
        (OTHER, DRAWS, r"samples lack the model's latent 'c given the columns before', \(2, 2\)"),
        (PAIR, DRAWS | {"b given the columns before": np.zeros((5, 3, 1))}, r"elements of shape \(3, 1\) .*, \(2, 1\)"),
        (PAIR, {site: draws.ravel() for site, draws in DRAWS.items()}, r"elements of shape \(\)"),
        (PAIR, {}, "samples are arrays"),
        (PAIR, {site: draws[:1] for site, draws in DRAWS.items()}, "2 tables .* give num_samples=8 or more"),
    ],
)
def test_samples_of_another_model_are_refused(schema, samples, words):
    """What samples lack was drawn from the prior, without a word."""
    with pytest.raises(ConfigurationError, match=words):
        synthetic.datasets(
            jax.random.key(0), synthetic.table_model(schema), samples, schema, num_rows=3, num_datasets=2
        )
    with pytest.raises(ConfigurationError, match="no site 'c'"):
        synthetic.datasets(jax.random.key(0), synthetic.table_model(PAIR), DRAWS, OTHER, num_rows=3, num_datasets=2)


def test_a_missing_column_is_named():
    with pytest.raises(ConfigurationError, match="no column 'age'"):
        SCHEMA.encoded({"sex": ["F"]})


def combined_coverage(num_tables, ratio, rule, factor=1.0, repetitions=4_000):
    """Coverage of 90 % intervals of a mean: posterior N(estimate, v), tables of `ratio` times the data, normal analysis.

    `factor`: an error in the variance that is given to the rule. A false alarm has a standard error of .0047."""
    rng = np.random.default_rng(1)
    size, v = (num_tables, repetitions), 1.0
    drawn = np.sqrt(v) * (rng.standard_normal(repetitions) + rng.standard_normal(size))  # the truth is 0
    analysed = drawn + np.sqrt(v / ratio) * rng.standard_normal(size)
    found = synthetic.combine(analysed, np.full(size, factor * v / ratio), rule=rule, size_ratio=ratio)
    low, high = found.interval(0.9)
    return np.mean((low <= 0.0) & (0.0 <= high))


def test_the_rule_for_fully_synthetic_tables_covers():
    """.9 within 3.5 standard errors (false alarm 1 in 2,000); with a within variance 1.5 times as large it is seen to cover less."""
    assert abs(combined_coverage(20, 10.0, "fully_synthetic") - 0.9) < 0.0166
    assert abs(combined_coverage(100, 1.0, "fully_synthetic") - 0.9) < 0.0166
    assert combined_coverage(100, 1.0, "fully_synthetic", factor=1.5) < 0.9 - 0.0166
    assert (
        combined_coverage(20, 1.0, "fully_synthetic", repetitions=1_000) > 0.9
    )  # too wide, where few tables are small


def test_a_mixture_of_posteriors_has_its_quantiles():
    means, variances = np.array([[0.0], [1.0], [4.0]]), np.array([[0.1], [0.4], [0.2]])
    low, high = synthetic.combine(means, variances, rule="mixture").interval(0.8)
    cdf = lambda x: np.mean(stats.norm.cdf(x, means[:, 0], np.sqrt(variances[:, 0])))  # noqa: E731
    assert cdf(low[0]) == pytest.approx(0.1) and cdf(high[0]) == pytest.approx(0.9)
    assert abs(combined_coverage(60, 20.0, "mixture", repetitions=400) - 0.9) < 0.06


def test_a_negative_variance_is_said():
    found = synthetic.combine([1.0, 1.01], [1.0, 1.0])
    assert found.was_negative and found.variance == 1.0 and np.all(np.isfinite(found.interval()))


@pytest.mark.parametrize(
    "arguments, options",
    [(([1.0], [1.0]), {}), (([1.0, 2.0], [1.0]), {}), (([1.0, 2.0], [0.0, 1.0]), {}), (([1.0, np.nan], [1.0, 1.0]), {}),
     (([1.0, 2.0], [1.0, 1.0]), {"rule": "mean"}), (([1.0, 2.0], [1.0, 1.0]), {"size_ratio": 0.0})],
)  # fmt: skip
def test_wrong_analyses_are_refused(arguments, options):
    with pytest.raises(ConfigurationError):
        synthetic.combine(*arguments, **options)


def test_tables_have_the_schemas_columns_and_relations():
    model = synthetic.table_model(SCHEMA, interactions=True)
    samples = Predictive(model, num_samples=8)(jax.random.key(0), num_rows=1)
    samples = {site: value for site, value in samples.items() if site not in {c.name for c in SCHEMA.columns}}
    samples["age given the columns before"] = np.tile(np.array([[[-0.5], [1.0]]]), (8, 1, 1))
    samples["sd of age"] = np.full(8, 1e-3)
    tables = synthetic.datasets(jax.random.key(1), model, samples, SCHEMA, num_rows=50, num_datasets=3)
    assert [str(kind) for kind in tables[0].dtypes] == ["category", "int64", "float64", "category"]
    for table in tables:
        assert len(table) == 50 and list(table.columns) == [column.name for column in SCHEMA.columns]
        assert set(table.age[table.sex == "F"]) <= {36} and set(table.age[table.sex == "M"]) <= {72}
        assert table.income.between(0, 1e6).all()
    assert not tables[0].equals(tables[1])
    with pytest.raises(ConfigurationError, match="fewer tables"):
        synthetic.datasets(jax.random.key(1), model, samples, SCHEMA, num_rows=50, num_datasets=9)
    for wrong in (7, object(), None, {}, [1.0], {"a": 1.0}):
        words = r"pass private\.get_samples\(\)" if isinstance(wrong, dict) else "samples must be a dict, got"
        with pytest.raises(ConfigurationError, match=words):
            synthetic.datasets(jax.random.key(1), model, wrong, SCHEMA, num_rows=50)
    for schema, key, words in (
        (SCHEMA, 7, "rng_key"),
        (Schema, jax.random.key(1), "schema must be a Schema, got a type"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            synthetic.datasets(key, model, samples, schema, num_rows=50)


def cells(noise, **columns):
    schema = Schema(tuple(Category(name, (0, 1)) for name in columns))
    model = synthetic.table_model(schema)
    return synthetic.fit_cells(dpppl.secret_key(), model, schema, columns, noise_multiplier=noise, num_samples=1_000)


@pytest.mark.slow
def test_cells_are_counted_and_incomplete_rows_apart():
    first, second = (
        np.repeat([0, 0, 1, 1, 5, 0], [7, 20, 30, 40, 2, 1]),
        np.repeat([0, 1, 0, 1, 1, 9], [7, 20, 30, 40, 2, 1]),
    )
    found = cells(1e-4, a=first, b=second)
    np.testing.assert_allclose(found.counts, [7, 20, 30, 40, 3], atol=1e-2)
    assert found.details.line().startswith(
        "read with care: 3.0% of the rows are left out: an entry is missing, or not in"
    )
    assert found.details.noise_sd == 1e-4 and found.report.num_accesses == 1
    assert found.report.num_rows == 100 and not any("clipped" in line for line in found.report.not_covered())


@pytest.mark.slow
def test_the_posterior_given_noisy_counts_is_that_of_a_grid():
    """Noise of sd 12 on 400 rows: the mean within .25 sd and the sd within 15 % of those by the full covariance; 300 draws count, so one false
    alarm in 10,000."""
    found = cells(12.0, a=np.repeat([0, 1], [280, 120]))
    logit, counts = np.linspace(-4.0, 3.0, 2_001), found.counts[:2]
    total = np.clip(400 - found.counts[2], 1.0, 400.0)
    p = np.stack([1 / (1 + np.exp(logit)), 1 / (1 + np.exp(-logit))], axis=1)
    covariances = total * (np.eye(2) * p[:, None, :] - p[:, :, None] * p[:, None, :]) + 144.0 * np.eye(2)
    logs = [stats.multivariate_normal(total * q, c).logpdf(counts) for q, c in zip(p, covariances)]
    weights = np.exp(logs - np.max(logs) + stats.norm(0, 1.5).logpdf(logit))
    mean = np.average(logit, weights=weights)
    sd = np.sqrt(np.average((logit - mean) ** 2, weights=weights))
    drawn = found.samples["a given the columns before"].ravel()
    assert len(drawn) == 1_000 and not found.refusals
    assert abs(drawn.mean() - mean) < 0.25 * sd and abs(drawn.std() / sd - 1.0) < 0.15


@pytest.mark.slow
def test_counts_that_the_model_cannot_have_are_refused():
    """Independent columns are all that a model without interactions of three columns' parity knows."""
    a, b = np.arange(4_000) % 2, np.arange(4_000) // 2 % 2
    assert "does not fit" in cells(3.0, a=a, b=b, c=a ^ b).refusals[0]


@pytest.mark.parametrize(
    "columns", [(Number("x", 0, 1),), tuple(Category(f"c{k}", tuple(range(10))) for k in range(5))]
)
def test_cells_of_numbers_or_too_many_are_refused(columns):
    schema = Schema(columns)
    with pytest.raises(ConfigurationError, match="NoiseAware"):
        synthetic.fit_cells(dpppl.secret_key(), synthetic.table_model(schema), schema, {}, noise_multiplier=1.0)


def test_covariates_of_a_schema_are_the_same_whatever_the_rows_hold():
    """Labels and the width come from the schema; an entry that it does not know leaves its row out and moves no other.
    Mutant: categories of the column."""
    schema = Schema((Category("sex", ("F", "M", "X")), Number("age", 0, 100), Intervals("hours", (0, 10, 40))))
    given = {"sex": ["F", "M", "F"], "age": ["20", "100", "50"], "hours": ["5", "20", "40"]}
    x, labels = schema.design(schema.encoded(given)[0], ["age", "sex", "hours"])
    assert labels == ("age", "sex=M", "sex=X", "hours")
    np.testing.assert_allclose(x, [[-0.6, 0, 0, -0.75], [1.0, 1, 0, 0.25], [0.0, 0, 0, 0.25]], rtol=1e-6)
    for entry in ("?", "", None, "1e400"):
        columns, gaps = schema.encoded({**given, "sex": [entry, "M", "F"], "age": [entry, "100", "50"]})
        other, same = schema.design(columns, ["age", "sex", "hours"])
        assert same == labels and other.dtype == np.float32 and np.isnan(gaps).tolist() == [True, False, False]
        np.testing.assert_array_equal(other[1:], x[1:])
    for names in ("age", [], ["height"]):
        with pytest.raises(
            ConfigurationError, match="names is a list of the schema's columns, which are sex, age, hours"
        ):
            schema.design(columns, names)
    with pytest.raises(ConfigurationError, match=r"columns is a list; give schema.encoded\(table\)\[0\]"):
        schema.design([1.0], ["age"])


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("--rows", "-5", "--rows"), ("--rows", "0", "--rows"), ("--datasets", "0", "--datasets"),
        ("--datasets", "-1", "--datasets"), ("--out", "t.csv/sub", "t.csv"), ("--out", "/proc/tables", "/proc"),
        ("--epsilon", "-1", "epsilon"),
    ],
)  # fmt: skip
def test_the_command_refuses_what_it_cannot_write_before_it_charges(name, value, named, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a\n" + "0\n1\n" * 50)
    (tmp_path / "schema.json").write_text(json.dumps({"columns": [{"name": "a", "categories": [0, 1]}]}))
    command = [
        "synthesize",
        "t.csv",
        "--schema",
        "schema.json",
        "--epsilon",
        "1",
        "--delta",
        "1e-5",
        "--ledger",
        "ledger",
    ]
    assert main([*command, "--out", "tables", name, value]) == 1
    assert (
        named in capsys.readouterr().err and not (tmp_path / "ledger").exists() and not (tmp_path / "tables").exists()
    )
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert main([*command, "--out", "tables"]) == 1 and "dpppl[synthetic]" in capsys.readouterr().err
    assert not (tmp_path / "ledger").exists()
    with pytest.raises(ConfigurationError, match=r"dpppl\[synthetic\]"):
        synthetic.datasets(jax.random.key(0), table_model(SCHEMA), {}, SCHEMA, num_rows=3, num_datasets=2)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["synthetic.fit_cells", "NoiseAware"])
def test_the_command_writes_tables_that_give_the_truth(method, tmp_path, capsys, monkeypatch):
    """One run of 3,000 rows at epsilon 4; the coefficient of 1.5 lies inside the combined 99.9 % interval, and 0 does not."""
    import pandas as pd

    if method == "NoiseAware":
        monkeypatch.setattr("dpppl.contrib.cli.tables.MOST_CELLS", 3)
    monkeypatch.setattr(io, "text_encoding", lambda encoding, *_: encoding or "ascii")  # the locale's
    rng = np.random.default_rng(0)
    group, noise = rng.random(3_000) < 0.4, rng.random(3_000)
    answer = noise < 1 / (1 + np.exp(-(-0.5 + 1.5 * group)))
    named = np.where(group, "treated", "control").astype(object)
    named[:5] = "someone else"
    pd.DataFrame({"group": named, "answer": answer.astype(int)}).to_csv(tmp_path / "t.csv", index=False)
    columns = [{"name": "group", "categories": ["control", "treated"]}, {"name": "answer", "categories": [0, 1]}]
    (tmp_path / "schema.json").write_text(json.dumps({"columns": columns}))
    out, ledger = tmp_path / "tables", tmp_path / "t.ledger"
    dpppl.PrivacyLedger(ledger, 5.0, 1e-4)
    command = ["synthesize", str(tmp_path / "t.csv"), "--schema", str(tmp_path / "schema.json"), "--epsilon", "4",
               "--delta", "1e-5", "--licence", "© 2026", "--name", "week two", "--ledger", str(ledger), "--out", str(out),
               "--datasets", "30", "--rows", "9000"]  # fmt: skip
    assert main(command) == 0
    assert "30 tables of 9,000 rows" in capsys.readouterr().out
    files = sorted(out.glob("synthetic_*.csv"))
    assert len(files) == 30 and {"report.json", "report.html", "README.txt"} <= {file.name for file in out.iterdir()}
    report = json.loads((out / "report.json").read_text())
    assert report["method"] == method and report["name"] == "week two"
    assert "week two" in ledger.read_text()
    estimates, variances = [], []
    for file in files:
        counts = pd.crosstab(*(pd.read_csv(file)[name] for name in ("group", "answer"))).to_numpy(float)
        estimates.append(np.log(counts[1, 1] * counts[0, 0] / counts[1, 0] / counts[0, 1]))
        variances.append(np.sum(1.0 / counts))
    low, high = synthetic.combine(estimates, variances).interval(0.999)
    assert 0.5 < low < 1.5 < high
    assert main(command) == 1 and "exists" in capsys.readouterr().err
    assert main([*command[:-6], "--datasets", "3", "--out", str(tmp_path / "new"), "--ledger", str(tmp_path)]) == 1


def test_files_with_other_separators_and_decimals_are_read(tmp_path, capsys):
    schema = Schema((Category("sex", ("F", "M")), Number("weight", 0, 200)))
    file = tmp_path / "t.csv"
    file.write_text("sex;weight\nF;61,5\nM;80.5\nM;80\n")

    def read(separator, decimal):
        return tables._read(file, schema, separator, decimal)

    table, count = read(";", ",")
    columns, gaps = schema.encoded(table)
    assert count == 3 and columns["weight"][0] == np.float32(-0.385) and np.isnan(gaps).tolist() == [False, True, False]
    assert "weight are numbers" in (note := capsys.readouterr().err) and "such as 1.5, or a date" in note
    with pytest.raises(ConfigurationError, match="write --separator ';' --decimal ','"):
        read(None, ".")
    for separator, decimal, words in (
        (None, ",", "two characters"),
        (";;", ".", "two characters"),
        (";", "", "two characters"),
        ("", ".", "two characters"),
        (";", None, "weight are numbers, .* write --decimal ',' or --decimal '.'"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            read(separator, decimal)
    file.write_text("sex\tweight\nF\t61,5\n")
    assert read(r"\t", ",") == ({"sex": ["F"], "weight": ["61.5"]}, 1)


@pytest.mark.parametrize("interactions", [False, True])
def test_coefficients_have_labels(interactions):
    schema = Schema(
        (Category("job", ("a", "b", "c")), Number("age", 18, 90), Intervals("pay", (0, 1, 2)), Category("ill", (0, 1)))
    )
    labels = labels_of_model(schema, interactions)
    trace = handlers.trace(handlers.seed(table_model(schema, interactions=interactions), 0)).get_trace(num_rows=2)
    shapes = {site: value["value"].shape for site, value in trace.items() if "given" in site}
    assert {site: tuple(map(len, both)) for site, both in labels.items()} == shapes
    features, outputs = labels["ill given the columns before"]
    assert features[:5] == ["constant", "job=b", "job=c", "age", "pay"] and outputs == ["ill=1"]
    assert (
        features[5:]
        == ["job=b x job=c", "job=b x age", "job=b x pay", "job=c x age", "job=c x pay", "age x pay"] * interactions
    )


@pytest.mark.slow
def test_tables_that_the_verdict_refuses_are_written_by_the_advised_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a\n" + "0\n1\n?\n?\n?\n" * 50)
    (tmp_path / "schema.json").write_text(json.dumps({"columns": [{"name": "a", "categories": [0, 1]}]}))
    command = "synthesize t.csv --schema schema.json --epsilon 4 --delta 1e-5 --datasets 2 --out".split()
    assert main([*command, "refused"]) == 1
    assert "--allow-unconverged and another --out write tables" in capsys.readouterr().err
    assert {file.name for file in (tmp_path / "refused").iterdir()} == {"report.json", "report.html"}
    assert main([*command, "new", "--allow-unconverged"]) == 0 and (tmp_path / "new" / "synthetic_1.csv").exists()


def test_the_key_comes_first_and_may_still_come_last():
    model, key = synthetic.table_model(PAIR), jax.random.key(0)
    (first,) = synthetic.datasets(key, model, DRAWS, PAIR, num_rows=3, num_datasets=1)
    for args, named in (((model, DRAWS, PAIR, key), {}), ((model, DRAWS, PAIR), {"rng_key": key})):
        with pytest.warns(DeprecationWarning, match=r"datasets\(rng_key, model, samples, schema, ...\)"):
            (last,) = synthetic.datasets(*args, num_rows=3, num_datasets=1, **named)
        assert last.equals(first)
