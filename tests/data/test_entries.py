"""No row decides what a column is: each entry is read by itself, in all kinds of tables, and what is not declared is missing."""

from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from test_mutations import Mutation, planted

from benchmarks.privacy.hostile_entries import ENTRIES, PLACES, USUAL, Held, N, X, csv, text
from dpppl import ConfigurationError, from_disk
from dpppl.contrib.cli import tables
from dpppl.contrib.synthetic import Category, Intervals, Number, Schema
from dpppl.data import entries
from dpppl.model.arguments import Arguments
from dpppl.model.units import _codes

DECLARED = [("t", "f4"), ("x", "f4")]


def of_list(rows, folder):
    model = lambda t, x: None  # noqa: E731
    found = Arguments.of(model, (rows, X), {})
    return found.arrays(model, (rows, X), {})[0]["t"], found.rows


def alone(rows, folder):
    model = lambda d: None  # noqa: E731
    found = Arguments.of(model, ({"t": tuple(rows)},), {})
    return found.arrays(model, ({"t": tuple(rows)},), {})[0]["d['t']"], found.rows


def of_csv(rows, folder):
    (folder / "t.csv").write_bytes(csv(rows).encode("utf-8", "surrogateescape"))
    source = from_disk(folder / "t.csv")
    return source["t"].read(0, N), source["t"].take([0, N - 1]).shape, source[["t", "x"]].shape, repr(source)


def one_column(rows, folder):
    lines = ["t", *map(text, rows)]
    (folder / "t.tsv").write_bytes("\r\n".join([*lines, ""]).encode("utf-8", "surrogateescape"))
    return from_disk(folder / "t.tsv", "t").read(0, N), len(from_disk(folder / "t.tsv"))


def items(rows, folder):
    source = from_disk(Held([{"t": entry, "x": x} for entry, x in zip(rows, X)]), dtype=DECLARED)
    return source["t"].read(0, N), source["t"].dtype, source.shape, repr(source["t"])


def whole_items(rows, folder):
    source = from_disk(Held(rows), dtype="int16")
    return source.read(0, N), source.dtype, source.shape


def vectors(rows, folder):
    held = [np.array([entry, 1.0]) if type(entry) is float else entry for entry in rows]
    source = from_disk(Held(held), dtype=("f4", (2,)))
    return source.read(0, N)[:, 0], source.dtype, source.shape


def category(rows, folder):
    codes, known = Category("t", (0, 1)).encoded(rows)
    return np.where(known, codes, np.nan), codes.dtype


def schema(rows, folder):
    """An incomplete row is left out; numbers are scaled."""
    columns, offset = Schema((Number("t", 0, 1), Intervals("x", (-1, 0, 1)))).encoded(
        {"t": pd.Series(rows, dtype=object), "x": X}
    )
    return (columns["t"] + 1.0) / 2.0 + offset, columns["x"].tolist(), columns["t"].dtype


def command(rows, folder):
    (folder / "t.csv").write_bytes(csv(rows).encode("utf-8", "surrogateescape"))
    declared = Schema((Category("t", (0, 1)), Number("x", -1, 1)))
    table, count = tables._read(folder / "t.csv", declared)
    codes, known = declared.columns[0].encoded(table["t"])
    return np.where(known, codes, np.nan), count


READERS = [of_list, alone, of_csv, one_column, items, whole_items, vectors, category, schema, command]


@pytest.mark.quick_cases(9)
@pytest.mark.parametrize("reader", READERS)
def test_no_entry_decides_how_others_are_read(reader, tmp_path):
    """18 entries in the first, the middle and the last row: all other rows, types, shapes and words are as before."""
    usual, *facts = reader(list(USUAL), tmp_path)
    np.testing.assert_array_equal(np.asarray(usual, float), USUAL)
    for name, entry in ENTRIES.items():
        for place in PLACES.values():
            rows = list(USUAL)
            rows[place] = entry
            found, *told = reader(rows, tmp_path)
            assert (found.shape, found.dtype, told) == (usual.shape, usual.dtype, facts), name
            np.testing.assert_array_equal(np.delete(found, place), np.delete(usual, place), err_msg=name)
            is_number = name in ("1", "1.0", "True", '"1"') and reader is not vectors
            assert found[place] == 1.0 if is_number else not 0.0 <= found[place] < 1.0 or np.isnan(found[place]), name


def test_what_is_a_number():
    """The same in all tables, also where Python's `float` would take more."""
    numbers = {
        "7": 7,
        " -.5E1 ": -5,
        "+1.": 1,
        "FALSE": 0,
        b"2": 2,
        np.int8(3): 3,
        True: 1,
        Decimal("1.5"): 1.5,
        np.float32(2): 2,
    }
    assert [entries.number(entry) for entry in numbers] == [*numbers.values()]
    for entry in (
        "1_000",
        "nan",
        "infinity",
        "\uff11",
        "0x1",
        "1,5",
        "",
        "-",
        1j,
        np.complex64(1),
        np.timedelta64(1, "ns"),
    ):
        assert np.isnan(entries.number(entry)), entry


def test_the_lines_of_a_text_file_are_its_rows(tmp_path):
    """Whatever they hold: a quote that is not closed, an empty line, a line of another length, a name twice, no names."""
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbfa,"b, c",d,d\r\n1,"2",3,4\r\n"5,6,7,8\n\n9,10,11\n1,2,3,4,5\n,"1e1",TRUE,"?"')
    found = from_disk(path)[["a", "b, c"]].read(0, 6)
    np.testing.assert_array_equal(found, [[1, 2], *[[np.nan] * 2] * 4, [np.nan, 10]])
    for name, words in (("d", "names column 'd' twice"), ("e", "no column 'e' in the file's first line")):
        with pytest.raises(ConfigurationError, match=words):
            from_disk(path)[name]
    path.write_bytes(b"a\n1\n\n2\n")
    np.testing.assert_array_equal(from_disk(path, "a").read(0, 3), [1, np.nan, 2])
    path.write_bytes(b"77123,secret\n77123,secret\n")
    with pytest.raises(ConfigurationError) as caught:
        from_disk(path, "age")
    assert not {"77123", "secret"} & set(repr(from_disk(path)) + str(caught.value)) and "secret" not in str(
        caught.value
    )


@pytest.mark.parametrize(
    "missing",
    [None, float("nan"), (1, float("nan")), ((None,), 2), frozenset({float("nan")}), ["a"], {}, pd.NA, pd.NaT],
)
def test_an_id_that_is_none_is_no_person(missing):
    assert _codes("person", ["a", missing, "b", missing, "a"]).tolist() == [0, -1, 1, -1, 0]


@pytest.mark.parametrize(
    "ids",
    [pa.array([1, None, 2, None, 1]), pa.chunked_array([[1, None], [2, None, 1]]), pl.Series([1, None, 2, None, 1]),
     pd.Series([1, None, 2, None, 1], dtype="Int64"), np.ma.masked_equal([1, 9, 2, 9, 1], 9)],
    ids=["Arrow", "chunks", "polars", "pandas", "masked"],
)  # fmt: skip
def test_null_ids_are_no_person(ids):
    assert _codes("person", ids).tolist() == [0, -1, 1, -1, 0]


DAYS = pd.Series(pd.date_range("2020-01-01", periods=2))


@pytest.mark.parametrize(
    ("column", "table", "words"),
    [
        (Number("a", 0, 1), DAYS, "is of type datetime64.*days since"),
        (Number("a", 0, 1), np.array([1, 2], "timedelta64[D]"), "is of type timedelta64"),
        (Intervals("a", (0, 1, 2)), pa.array(DAYS), "is of type timestamp"),
        (Category("a", (1, 2)), pl.Series(DAYS.to_list()), "is of type Datetime"),
        (Category("a", ("F", "M")), np.zeros(2), "is of type float64"),
        (Number("a", 0, 1), pd.DataFrame({"a": [1, 2]}), "several columns 'a'"),
        (Number("a", 0, 1), np.zeros((2, 2)), "an entry a row"),
        (Number("a", 0, 1), "12", "an entry a row"),
        (Number("a", 0, 1), 12, "an entry a row"),
    ],
)  # fmt: skip
def test_what_a_type_declares_otherwise_is_refused(column, table, words):
    with pytest.raises(ConfigurationError, match=words):
        Schema((column,)).encoded({"a": table})


@pytest.mark.parametrize("entries", [["f", "m"], ["f", "F"], [None, None], ["f", None]])
def test_no_row_decides_by_its_category_whether_a_column_is_taken(entries):
    """pandas collects the categories of a column from its rows: a row of another one made the column acceptable."""
    column = pd.Series(entries, dtype="category")
    _, known = Category("a", ("F", "M")).encoded(column)
    assert known.tolist() == [entry == "F" for entry in entries]


def test_columns_of_other_lengths_are_refused():
    with pytest.raises(ConfigurationError, match="differ in length, 'a' has"):
        Schema((Number("a", 0, 1), Number("b", 0, 1))).encoded({"a": [1, 2], "b": [1]})


@pytest.mark.parametrize(
    "make",
    [lambda: Number("a", pd.Timestamp("2020"), pd.Timestamp("2021")), lambda: Number("a", "0", "1"), lambda: Number("a", None, 1),
     lambda: Category("a", 3), lambda: Category("a", "FM"), lambda: Category("a", ([1], [2])), lambda: Category("a", (1, "1")),
     lambda: Category("a", (1, 1.0)), lambda: Intervals("a", 3), lambda: Intervals("a", ("x", 1, 2)), lambda: Schema(Category),
     lambda: Schema(Number("a", 0, 1)), lambda: Schema((Number,)), lambda: Schema("a"), lambda: Schema((Number("a", 0, 1),) * 2)],
)  # fmt: skip
def test_a_wrong_declaration_is_refused(make):
    with pytest.raises(ConfigurationError, match=r"column|low must be a number"):
        make()


def test_object_arrays_have_a_cure_that_runs():
    model, column = lambda y: None, np.array([1.0, 2.0], object)
    for wrong in (column, pd.Series(column)):
        with pytest.raises(ConfigurationError, match=r"\.astype\('float32'\)"):
            Arguments.of(model, (wrong,), {})
        assert Arguments.of(model, (wrong.astype("float32"),), {}).num_rows == 2


HERE = "test_entries:test_no_entry_decides_how_others_are_read"
LINES = "test_entries:test_the_lines_of_a_text_file_are_its_rows"
FILE = ("tmp_path",)
READ = "dpppl.data.entries:"
MUTATIONS = [
    Mutation("text that writes no number fails", f"{READ}number", "if _TEXT.fullmatch(entry) else", "if True else", "test_entries:test_what_is_a_number"),
    Mutation("numbers beyond the range of floats fail", f"{READ}number", "except Exception", "except TypeError", HERE, (lambda: of_list, "tmp_path")),
    Mutation("a word ends the reading of a list", f"{READ}numbers_of", "np.fromiter(map(number, entries), float)", "np.asarray(list(entries), float)", HERE, (lambda: of_list, "tmp_path")),
    Mutation("a longer row is shortened", f"{READ}text_rows", "len(row) == len(known)", "True", LINES, FILE),
    Mutation("a quote swallows lines", f"{READ}text_rows", '.split("\\n")', ".splitlines()[:4]", LINES, FILE),
    Mutation("empty lines are left out", f"{READ}text_rows", "for line in rest", "for line in rest if line", LINES, FILE),
    Mutation("an item of another shape is spread out", f"{READ}_of_shape", "found.shape == shape", "True", HERE, (lambda: vectors, "tmp_path")),
    Mutation("a null id is a person", f"{READ}is_missing", "entry is None or", "False or", "test_entries:test_null_ids_are_no_person", (lambda: pa.array([1, None, 2, None, 1]),)),
    Mutation("a tuple with NaN is a person", f"{READ}is_missing", "any(map(is_missing, entry))", "False", "test_entries:test_an_id_that_is_none_is_no_person", (lambda: (1, float("nan")),)),
    Mutation("an unknown category is the last", f"{READ}categories_of", "known.get(number(entry), -1)", "known.get(number(entry), 0)", HERE, (lambda: category, "tmp_path")),
    Mutation("the first line is shown", "dpppl.data.entries:place_of", "in the file's first line", "in {names}", LINES, FILE),
]  # fmt: skip


test_a_bug_in_reading_entries_is_caught, test_every_line_is_in_the_code_as_it_is = planted(MUTATIONS)
