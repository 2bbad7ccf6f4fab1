"""Every kind of source gives the rows that it holds, whole blocks and single ones, and says what it cannot do."""

import os
import shutil

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

import dpppl
from dpppl import ConfigurationError, DataReadError, from_disk
from dpppl.data.sources import fitted
from dpppl.model.arguments import Arguments

N, D = 53, 3
X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def table():
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), D)
    names = {f"x{k}": pa.array(X[:, k]) for k in range(D)}
    return pa.table({"x": lists, "y": pa.array(Y), "is": pa.array(Y > 0), "name": pa.array(["a"] * N), **names})


def npy(folder):
    np.save(folder / "rows.npy", np.column_stack([X, Y]).astype(np.float32))
    source = from_disk(folder / "rows.npy")
    return source[:, :D], source[:, D]


def structured(folder):
    rows = np.zeros(N, [("y", np.int32), ("x", np.float32, (D,))])
    rows["x"], rows["y"] = X, Y
    np.save(folder / "rows.npy", rows)
    mapped = np.load(folder / "rows.npy", mmap_mode="r")
    return from_disk(mapped["x"]), from_disk(mapped["y"])


def ipc(folder):
    with pa.OSFile(str(folder / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, table().schema) as writer:
        writer.write_table(table(), max_chunksize=10)
    source = from_disk(str(folder / "rows.arrow"))
    return source["x"], source["y"]


def stream(folder):
    with pa.OSFile(str(folder / "rows.arrow"), "wb") as file, pa.ipc.new_stream(file, table().schema) as writer:
        writer.write_table(table(), max_chunksize=7)
    source = from_disk(folder / "rows.arrow")
    return source[["x0", "x1", "x2"]], source["is"]


def feather(folder):
    pa.feather.write_feather(table(), str(folder / "rows.feather"), compression="uncompressed")
    source = from_disk(folder / "rows.feather")
    return source["x"], source["y"]


def parquet(folder):
    pa.parquet.write_table(table(), folder / "rows.parquet", row_group_size=11)
    source = from_disk(folder / "rows.parquet")
    return source[["x0", "x1", "x2"]], source["y"]


def hugging_face(folder):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist(), "name": ["a"] * N})
    data = data.cast_column("x", datasets.Sequence(datasets.Value("float32"), D))
    data.save_to_disk(str(folder / "rows"))
    source = from_disk(datasets.load_from_disk(str(folder / "rows")))
    return source["x"], source["y"]


class Dicts:
    """As a Grain data source: items one by one."""

    def __len__(self):
        return N

    def __getitem__(self, number):
        return {"x": X[number], "y": Y[number]}


class Many(Dicts):
    """As ArrayRecord: many at once."""

    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


ITEM = [("x", "float32", (D,)), ("y", "int32")]
"""What is declared of an item."""


def items(_):
    source = from_disk(Dicts(), dtype=ITEM)
    return source["x"], source["y"]


def many(_):
    source = from_disk(Many(), dtype=ITEM)
    return source["x"], source["y"]


KINDS = [npy, structured, ipc, stream, feather, hugging_face, items, many]


@pytest.mark.parametrize("kind", [*KINDS, parquet])
def test_a_source_gives_its_rows(kind, tmp_path):
    for source, rows in zip(kind(tmp_path), (X, Y)):
        assert (source.shape, source.num_rows, len(source)) == (rows.shape, N, N)
        for start, count in ((0, N), (0, 5), (6, 13), (N - 3, 3), (N - 1, 1)):
            found = source.read(start, count)
            np.testing.assert_array_equal(found, rows[start : start + count].astype(source.dtype))
        if kind is not parquet:
            drawn = np.array([7, 0, N - 1, 7, 30, 12])
            np.testing.assert_array_equal(source.take(drawn), rows[drawn].astype(source.dtype))


@pytest.mark.parametrize("kind", [npy, ipc, parquet])
@pytest.mark.parametrize("change", ["in place", "another file"])
def test_a_file_that_changes_during_a_pass_is_noticed(kind, change, tmp_path):
    source, _ = kind(tmp_path)
    opened, path = source.table.opened([source]), next(tmp_path.iterdir())
    opened.read(0, 5)
    if change == "in place":
        os.utime(path, ns=(0, 0))
    else:
        shutil.copy2(path, tmp_path / "new")
        os.replace(tmp_path / "new", path)
    acts = [lambda: opened.read(5, 5)] + [lambda: opened.take(np.array([1]))] * (kind is not parquet)
    for act in acts:
        with pytest.raises(OSError, match="was changed or replaced"):
            act()
    opened.close()


def test_the_cure_of_parquet_keeps_the_order_of_rows(tmp_path):
    source, _ = parquet(tmp_path)
    assert "format='feather', preserve_order=True)" in source.table.why_not_drawn
    statement = source.table.why_not_drawn.split("once, ")[1].split("; ")[1].split(", and use")[0]
    exec(statement.replace("'rows'", repr(str(tmp_path / "rows"))), {"ds": pyarrow.dataset})
    np.testing.assert_array_equal(from_disk(tmp_path / "rows" / "part-0.feather")["y"].read(0, N), Y)


def test_descriptors_are_closed(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for kind in KINDS[:1]:
        x, _ = kind(tmp_path)
        x.read(0, 3), x.take([1])
    assert len(os.listdir("/proc/self/fd")) == before


def test_columns_in_one_file_are_parts_of_one_table(tmp_path):
    x, y = npy(tmp_path)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert x.table == y.table == from_disk(mapped[:, 1]).table == from_disk(tmp_path / "rows.npy").table
    a, b = ipc(tmp_path)
    assert a.table == b.table == from_disk(tmp_path / "rows.arrow").table


def test_what_a_memory_map_cannot_be(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((5, 4)))
    mapped = np.load(path, mmap_mode="r")
    for wrong in (mapped.T, mapped[::-1], mapped[::2], np.load(path, mmap_mode="c")):
        with pytest.raises(
            ConfigurationError, match=r"numpy\.save\(path, numpy\.ascontiguousarray\(x\)\).*from_disk\(path\)"
        ):
            from_disk(wrong)
        np.save(tmp_path / "cure.npy", np.ascontiguousarray(wrong))
        np.testing.assert_array_equal(from_disk(tmp_path / "cure.npy").read(0, len(wrong)), wrong)
    np.testing.assert_array_equal(from_disk(mapped[1:4]).read(0, 3), mapped[1:4])
    with pytest.raises(ConfigurationError, match="all its rows"):
        from_disk(path)[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: from_disk(3), "not an int"),
        (lambda folder: from_disk({"a": Y}), "not a dict"),
        (lambda folder: from_disk(None), "not a NoneType"),
        (
            lambda folder: from_disk(X),
            "not a ndarray; an array in memory, a dict of arrays or a data frame is passed to the model itself",
        ),
        (lambda folder: from_disk(folder / "none.npy"), "none.npy cannot be read: No such file or directory"),
        (lambda folder: from_disk(folder), "cannot be read: Is a directory"),
        (lambda folder: from_disk(folder / "text"), r"no \.npy, \.csv, \.tsv, Arrow or Parquet"),
        (
            lambda folder: from_disk(Dicts(), dtype=ITEM)["z"],
            "no column 'z' of numbers without missing values; choose of 'x', 'y'",
        ),
        (lambda folder: from_disk(Dicts(), dtype=ITEM)[["x", "y"]], "different shapes"),
        (
            lambda folder: dpppl.private_score(None, lambda x: x[0], from_disk(Dicts(), dtype=ITEM), bounds=(0, 1)),
            "choose columns",
        ),
        (lambda folder: from_disk(Dicts()), "declare one by its dtype"),
        (lambda folder: from_disk(Dicts(), dtype="U3"), "declare one by its dtype"),
        (lambda folder: from_disk(Dicts(), dtype=[("x", "O")]), "declare one by its dtype"),
        (lambda folder: from_disk(folder / "text", dtype=ITEM), "dtype= is for objects"),
        (lambda folder: from_disk([folder / "text"]), "what a list holds: .* its path alone"),
        (lambda folder: from_disk(pandas.DataFrame({"x": [1.0]})), "not a DataFrame; an array in memory"),
        (lambda folder: from_disk(Dicts(), 3, dtype=ITEM), "columns must be a name or a list of names"),
        (lambda folder: 2.0 * from_disk(Dicts(), dtype=ITEM), "a source is no array in memory"),
        (lambda folder: np.asarray(from_disk(Dicts(), dtype=ITEM)), "a source is no array in memory"),
    ],
)
def test_errors_say_what_to_do(make, message, tmp_path):
    (tmp_path / "text").write_text("rows")
    with pytest.raises((ConfigurationError, DataReadError), match=message):
        make(tmp_path)


# One row never decides what a column is, or whether a run fails

DICTIONARIES = pa.chunked_array([pa.array([k + i for i in range(N)]).dictionary_encode() for k in (0, 100)])
FIXED, DEEP = pa.list_(pa.float32(), 2), pa.list_(pa.list_(pa.int32(), 2), 1)
ODD = {  # by name: the type, a row like the others, and rows that are not
    "floats": (pa.float64(), 1.5, [None, float("nan"), float("inf"), 1e300]),
    "whole numbers": (pa.int32(), 3, [None, 2**31 - 1]),
    "large whole numbers": (pa.int64(), 3, [None, 2**40]),
    "bytes": (pa.uint8(), 3, [None, 255]),
    "truth values": (pa.bool_(), True, [None, False]),
    "codes": (pa.dictionary(pa.int32(), pa.int64()), 3, [None, 4]),
    "halves": (pa.float16(), np.float16(1), [None]),
    "lists": (FIXED, [1.0, 2.0], [None, [None, 2.0]]),
    "lists of lists": (DEEP, [[1, 2]], [None, [None], [[1, None]]]),
}


@pytest.mark.parametrize("parquet", [False, True], ids=["feather", "parquet"])
def test_types_and_not_rows_decide_what_a_column_is(parquet, tmp_path):
    """The first, the last and a middle row, each of all its odd values: shape and type stay, all other rows are the same."""
    places = (0, 3, N - 1)
    for name, (kind, usual, odd) in ODD.items():
        found = {}
        for place, value in [(0, usual), *((place, value) for place in places for value in odd)]:
            rows = [usual] * N
            rows[place] = value
            stored = pa.table({"x": pa.array(rows, kind), "y": pa.array(Y)})
            write = pa.parquet.write_table if parquet else pa.feather.write_feather
            write(
                stored,
                str(tmp_path / "rows"),
                **({"row_group_size": 11} if parquet else {"compression": "uncompressed"}),
            )
            source = from_disk(tmp_path / "rows")["x"]
            found[place, str(value)] = source.shape, source.dtype
            others = np.delete(source.read(0, N), place, axis=0)
            assert np.all(others == np.asarray(usual, float)), name
            last = source.read(place, 1)[0]
            assert value is not None or np.all(np.isnan(last)), name
            if not parquet:
                np.testing.assert_array_equal(source.take([place, 1])[0], last)
        assert len(set(found.values())) == 1, (name, found)


def test_lists_without_a_length_are_refused_by_their_type_and_the_cure_runs(tmp_path):
    write = lambda column: pa.feather.write_feather(  # noqa: E731
        pa.table({"x": column, "y": pa.array(Y)}), str(tmp_path / "rows"), compression="uncompressed"
    )
    messages = []
    for last in ([1.0, 2.0], [1.0], [], None):
        column = pa.array([[1.0, 2.0]] * (N - 1) + [last])
        write(column)
        with pytest.raises(ConfigurationError) as caught:
            from_disk(tmp_path / "rows")["x"]
        messages.append(str(caught.value))
    assert len(set(messages)) == 1 and "table['x'].cast(pyarrow.list_(pyarrow.float32(), LENGTH))" in messages[0]
    write(pa.array([[1.0, 2.0]] * N).cast(pa.list_(pa.float32(), 2)))
    assert from_disk(tmp_path / "rows")["x"].shape == (N, 2)
    write(pa.array([1] * N, pa.int32()).cast(pa.decimal128(20, 2)))
    with pytest.raises(ConfigurationError, match=r"of type decimal128\(20, 2\).*cast\('float64'\)"):
        from_disk(tmp_path / "rows")["x"]
    write(pa.array([1] * N, pa.int32()).cast(pa.decimal128(20, 2)).cast("float64"))
    assert from_disk(tmp_path / "rows")["x"].dtype == float


def test_dictionaries_may_differ_between_chunks_and_nullable_is_what_the_schema_says(tmp_path):
    schema = pa.schema([pa.field("x", DICTIONARIES.type), pa.field("y", pa.int32(), nullable=False)])
    rows = pa.table([DICTIONARIES, pa.array([*range(2 * N)], pa.int32())], schema=schema)
    pa.parquet.write_table(rows, tmp_path / "rows.parquet", row_group_size=N)
    source = from_disk(tmp_path / "rows.parquet")
    np.testing.assert_array_equal(source["x"].read(0, 2 * N), [*range(N), *range(100, 100 + N)])
    assert source["y"].dtype == np.int32 and source["x"].dtype == float


BEYOND = 2**53 + np.arange(1, 7)
"""Numbers that a float does not hold."""
PAIR = pa.list_(pa.field("item", pa.int64(), nullable=False), 2)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "values", "absent"),
    [
        (pa.int64(), BEYOND.tolist(), -(2**63)),
        (pa.uint64(), (BEYOND.astype(np.uint64) + 2**63).tolist(), 2**64 - 1),
        (pa.int8(), [1, 2, 3, 4, 5, 6], -128),
        (pa.bool_(), [True] * 6, False),
        (pa.dictionary(pa.int8(), pa.int64()), BEYOND.tolist(), -(2**63)),
        (PAIR, np.stack([BEYOND, BEYOND], 1).tolist(), [-(2**63)] * 2),
        (PAIR, np.stack([BEYOND, BEYOND], 1).tolist(), [-(2**63), 1]),
    ],
    ids=str,
)
def test_a_null_that_the_schema_excludes_changes_no_other_row(kind, values, absent, stream, tmp_path):
    """Without this one null turns its chunk to floats, which round the others, and a list of nulls to garbage, with a warning."""
    null = [None, 1] if absent == [-(2**63), 1] else None
    schema = pa.schema([pa.field("x", kind, nullable=False)])
    rows = pa.Table.from_arrays([pa.array([*values[:2], null, *values[3:]], kind)], schema=schema)
    with pa.OSFile(str(tmp_path / "rows"), "wb") as file:
        with (pa.ipc.new_stream if stream else pa.ipc.new_file)(file, schema) as writer:
            writer.write_table(rows)
    source = from_disk(tmp_path / "rows")
    assert source.dtype.kind in "iub" and source.read(0, 6).tolist() == [*values[:2], absent, *values[3:]]
    assert source.take([0, 5]).tolist() == [values[0], values[5]]


def test_tensors_of_pyarrow_are_read_as_their_shape_says(tmp_path):
    """They lie as one list a row, where Hugging Face's lie as lists of lists: the first read failed, after the charge."""
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(X[:48].reshape(12, 4, 3))
    pa.feather.write_feather(pa.table({"x": tensors}), str(tmp_path / "rows"), compression="uncompressed")
    source = from_disk(tmp_path / "rows")
    assert source.shape == (12, 4, 3)
    np.testing.assert_array_equal(source.read(0, 12), X[:48].reshape(12, 4, 3))
    np.testing.assert_array_equal(source.take([3])[0], X[12:16])


@pytest.mark.parametrize("order", [">f4", ">f8", ">i8", ">u2"])
def test_numbers_in_another_order_of_bytes_are_numbers(order, tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(6).astype(order))
    for given in (from_disk(tmp_path / "rows.npy"), np.arange(6).astype(order)):
        arguments = Arguments.of(lambda y: None, (given,), {})
        assert arguments.rows["y"].dtype.isnative
    np.testing.assert_array_equal(arguments.arrays(lambda y: None, (given,), {})[0]["y"], np.arange(6))
    np.testing.assert_array_equal(from_disk(tmp_path / "rows.npy").read(0, 6), np.arange(6))


def test_whole_numbers_beyond_the_range_do_not_wrap_round():
    large = np.array([2**40, -(2**40), 7])
    assert fitted(large, np.dtype(np.int32)).tolist() == [2**31 - 1, -(2**31), 7]
    assert fitted(np.array([2**63], np.uint64), np.dtype(np.uint32)).tolist() == [2**32 - 1]
    assert fitted(np.array([-1]), np.dtype(np.uint32)).tolist() == [0]


HEADERS = {  # text, the column asked for, what is found, or words of the refusal
    "semicolons": (
        "a;b\n1;2\n3;4\n",
        "a",
        "a semicolon stands there: from_disk(path, 'a', separator=';'), and decimal=','",
    ),
    "tabs": ("a\tb\n1\t2\n", "a", "a tab stands there: from_disk(path, 'a', separator='\\t')."),
    "bars": ("a|b\n1|2\n", "b", "a bar stands there"),
    "another column": ("a,b;c\n1,2\n", "c", "the file's first line, which names the columns."),
    "blanks": ("c, a ,b\n1, 2,3\n", "a", [2.0]),
    "the name with its blanks": ("a, a\n1,2\n", " a", [2.0]),
    "two of a name but for blanks": ("c,b , b\n1,2,3\n", "b", "names column 'b' twice"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_first_line_that_has_no_such_column_says_why(name, tmp_path):
    content, column, expected = HEADERS[name]
    (tmp_path / "t.csv").write_text(content)
    if isinstance(expected, list):
        assert from_disk(tmp_path / "t.csv", column).read(0, 1).tolist() == expected
    else:
        with pytest.raises(ConfigurationError) as caught:
            from_disk(tmp_path / "t.csv", column)
        assert expected in str(caught.value)


def test_separator_and_decimal_are_declared(tmp_path):
    """Both cures run; 1.234,5 is no number, rather than a guess. Other files, and marks of two characters, are refused."""
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1,5;2\n1.234,5;x\n-2;,5\n")
    found = from_disk(path, ["a", "b"], separator=";", decimal=",").read(0, 3)
    np.testing.assert_array_equal(found, [[1.5, 2.0], [np.nan, np.nan], [-2.0, 0.5]])
    path.write_text('a,b\n"1,5",2\n')
    assert from_disk(path, decimal=",")["a"].read(0, 1).tolist() == [1.5]
    np.save(tmp_path / "t.npy", np.zeros(3))
    for what, settings in (("t.npy", {"decimal": ","}), ("t.npy", {"separator": ";"}), ("t.csv", {"separator": ", "})):
        with pytest.raises(
            ConfigurationError, match=f"{next(iter(settings))}= is one character, of a .csv or .tsv file"
        ):
            from_disk(tmp_path / what, **settings)
    with pytest.raises(ConfigurationError, match="columns must be a name or a list of names, got none"):
        from_disk(path, [])
    path.write_text("a,b\n1,2\n", encoding="utf-16")
    with pytest.raises(ConfigurationError, match="is in UTF-16: save it as UTF-8"):
        from_disk(path)
