"""Every kind of source gives the rows that it holds, whole blocks and single ones, and says what it cannot do."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

import dpppl
from dpppl import ConfigurationError, from_disk

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
    data = data.cast_column("x", datasets.Sequence(datasets.Value("float32")))
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


def items(_):
    source = from_disk(Dicts())
    return source["x"], source["y"]


def many(_):
    source = from_disk(Many())
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
        with pytest.raises(ConfigurationError, match=r"dpppl\.from_disk\(path\)"):
            from_disk(wrong)
    np.testing.assert_array_equal(from_disk(mapped[1:4]).read(0, 3), mapped[1:4])
    with pytest.raises(ConfigurationError, match="all of its rows"):
        from_disk(path)[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: from_disk(3), "not a int"),
        (lambda folder: from_disk(folder / "text"), r"no \.npy, Arrow or Parquet"),
        (lambda folder: from_disk(Dicts())["z"], "no column 'z': x, y"),
        (lambda folder: from_disk(Dicts())[["x", "y"]], "different shapes"),
        (lambda folder: dpppl.private_score(None, lambda x: x[0], from_disk(Dicts()), bounds=(0, 1)), "choose columns"),
    ],
)
def test_errors_say_what_to_do(make, message, tmp_path):
    (tmp_path / "text").write_text("rows")
    with pytest.raises(ConfigurationError, match=message):
        make(tmp_path)


def test_a_shuffled_data_set_is_to_be_stored(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"y": Y.tolist()})
    with pytest.raises(ConfigurationError, match="flatten_indices"):
        from_disk(data.shuffle(seed=0))
    np.testing.assert_array_equal(from_disk(data).read(0, N), Y)
