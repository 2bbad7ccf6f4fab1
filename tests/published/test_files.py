"""Files of likelihoods: what is written is read, and nothing else is."""

import io
import json
import pickle
import re
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from made_up import likelihood_of

import dpppl
from dpppl.published import files
from dpppl.published.records import PublishedMixture
from dpppl.published.supports import KINDS


def parts(path):
    """Head and arrays of a file."""
    with np.load(path, allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    return json.loads(arrays.pop("head").tobytes()), arrays


def archive(path, head, arrays, text=None, compress=False, digest=True, extra=()):
    """A file with this head and these arrays, with a digest that agrees."""
    if digest and isinstance(head, dict):
        head = {name: value for name, value in head.items() if name != "digest"}
        head["digest"] = files._digest(json.loads(json.dumps(head)), arrays) if text is None else ""
    text = json.dumps(head).encode() if text is None else text
    members = {"head": np.frombuffer(text, np.uint8), **arrays}
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as opened:
        for name, array in members.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=True)
            opened.writestr(f"{name}.npy", buffer.getvalue())
        for name, content in extra:
            with warnings.catch_warnings(action="ignore"):  # of a second name
                opened.writestr(name, content)


class Bomb:
    """An object that leaves a mark where it is unpickled."""

    def __reduce__(self):
        return exec, ("import builtins; builtins.exploded = True",)


def header(shape, dtype="<f8", body=b""):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + body


def changed(name, change):
    def corrupt(path, head, arrays):
        archive(path, head, arrays | {name: change(np.array(arrays[name]))})

    return corrupt


def head_with(*place, value=None, drop=False):
    def corrupt(path, head, arrays):
        at = head
        for step in place[:-1]:
            at = at[step]
        if drop:
            del at[place[-1]]
        else:
            at[place[-1]] = value
        archive(path, head, arrays)

    return corrupt


def raw(change):
    def corrupt(path, head, arrays):
        path.write_bytes(change(path.read_bytes()))

    return corrupt


def at(place, value):
    def change(array):
        array[place] = value
        return array

    return change


def text_of(make):
    return lambda path, head, arrays: archive(
        path, head, arrays, text=make(json.dumps(head)).encode("utf-8", "surrogatepass")
    )


def without(name):
    return lambda path, head, arrays: archive(path, head, {n: a for n, a in arrays.items() if n != name})


def extra(name, content):
    return lambda path, head, arrays: archive(path, head, arrays, extra=[(name, content)])


def in_place_of(name, content):
    def corrupt(path, head, arrays):
        archive(path, head, {n: a for n, a in arrays.items() if n != name}, extra=[(f"{name}.npy", content)])

    return corrupt


FIRST = (0,)
CORRUPTIONS = {
    "empty": raw(lambda b: b""), "text": raw(lambda b: b"likelihood"), "half": raw(lambda b: b[: len(b) // 2]),
    "a pickle": raw(lambda b: pickle.dumps(Bomb())), "no end": raw(lambda b: b[:-30]), "zeros": raw(lambda b: bytes(len(b))),
    "a flipped byte": raw(lambda b: b[: len(b) // 2] + bytes([b[len(b) // 2] ^ 255]) + b[len(b) // 2 + 1 :]),
    "compressed": lambda path, head, arrays: archive(path, head, arrays, compress=True),
    "a bomb": lambda path, head, arrays: archive(path, head, arrays | {"0.zeros": np.zeros(10**7)}, compress=True),
    "a pickled array": changed("0.reach", lambda a: np.array(Bomb(), object)),
    "a pickled head": in_place_of("head", pickle.dumps(Bomb())),
    "a huge shape": in_place_of("0.centre", header((10**15,))), "an overflowing shape": in_place_of("0.centre", header((2**40, 2**40))),
    "a negative shape": in_place_of("0.centre", header((-3,))), "a short array": in_place_of("0.centre", header((3,), body=bytes(8))),
    "a long array": in_place_of("0.centre", header((3,), body=bytes(48))), "code for a header": in_place_of(
        "0.centre", b"\x93NUMPY\x01\x00" + (40).to_bytes(2, "little") + b"__import__('builtins').exploded".ljust(40)),
    "another numpy version": in_place_of("0.centre", b"\x93NUMPY\x03\x00" + bytes(60)),
    "no magic": in_place_of("0.centre", bytes(64)), "a path": extra("../../evil.npy", header((1,), body=bytes(8))),
    "a second name": extra("head.npy", header((1,), "|u1", b"1")), "no array": extra("run.py", b"import builtins; builtins.exploded = True"),
    "another array": extra("0.more.npy", header((1,), body=bytes(8))),
    "an array of an owner too many": extra("7.centre.npy", header((1,), body=bytes(8))),
    **{f"no {name}": without(f"0.{name}") for name in PublishedMixture._fields}, "no head": in_place_of("head", header((0,), "|u1")),
    **{f"NaN in {name}": changed(f"0.{name}", at((...,) if name == "reach" else (0,), np.nan)) for name in
       ("centre", "scales", "offsets", "slopes", "log_weights", "reach")},
    "infinite": changed("0.offsets", at(FIRST, np.inf)), "too large": changed("0.slopes", at(FIRST, 1e200)),
    "negative scale": changed("0.scales", at(FIRST, -1.0)), "scale of zero": changed("0.scales", at(FIRST, 0.0)),
    "negative reach": changed("0.reach", lambda a: -a),
    "a share above 1": changed("0.cut", lambda a: 2.0 + a), "ranks of no error": changed("0.ranks", lambda a: 0.0 * a),
    "ranks of four moments": changed("0.ranks", lambda a: np.ones((4, 4))),
    "negative arrival": changed("0.arrival", lambda a: -1.0 - a), "float32": changed("0.centre", lambda a: a.astype(np.float32)),
    "complex": changed("0.centre", lambda a: a.astype(complex)), "text in an array": changed("0.centre", lambda a: a.astype(str)),
    "big endian": changed("0.centre", lambda a: a.astype(">f8")), "one more coordinate": changed("0.centre", lambda a: np.append(a, 1.0)),
    "one more axis": changed("0.centre", lambda a: a[None]), "one draw fewer": changed("0.log_weights", lambda a: a[1:]),
    "no draws": lambda path, head, arrays: archive(path, head, arrays | {
        f"0.{n}": arrays[f"0.{n}"][:0] for n in ("offsets", "slopes", "log_weights")}),
    "slopes of other sizes": changed("0.slopes", lambda a: a[..., :-1]), "transposed": changed("0.offsets", lambda a: a.T.copy()),
    "a number twice": changed("0.numbers", at((0, 0), 1)), "a number beyond": changed("0.numbers", at((0, 0), 9)),
    "a negative number": changed("0.numbers", at((0, 0), -1)), "numbers as floats": changed("0.numbers", lambda a: a.astype(float)),
    "no JSON": text_of(lambda t: t[:-1]), "deep JSON": text_of(lambda t: "[" * 100_000), "a list": text_of(lambda t: "[1]"),
    "NaN in JSON": text_of(lambda t: t.replace('"epsilon": 1.0', '"epsilon": NaN')), "no UTF-8": text_of(lambda t: "\udcff" + t),
    "an infinite epsilon": text_of(lambda t: t.replace('"epsilon": 1.0', '"epsilon": 1e999')),
    "a huge head": text_of(lambda t: " " * 2**21 + t), "another format": head_with("format", value="other"),
    "version 2": head_with("version", value=2), "version true": head_with("version", value=True), "version 1.0": head_with("version", value=1.0),
    "no version": head_with("version", drop=True), "another entry": head_with("code", value="print(1)"),
    "no sites": head_with("sites", value=[]), "no owners": head_with("owners", value=[]), "owners in a dict": head_with("owners", value={}),
    "an unknown support": head_with("sites", 0, "kind", value="os.system"), "a support that is none": head_with("sites", 0, "kind", value=["real"]),
    "bounds too many": head_with("sites", 0, "bounds", value=[0.0]), "bounds in words": head_with("sites", 0, "bounds", value=["0"]),
    "a negative axis": head_with("sites", 1, "shape", value=[-2]), "a huge axis": head_with("sites", 1, "shape", value=[10**9]),
    "many axes": head_with("sites", 1, "shape", value=[2] * 9), "an axis true": head_with("sites", 1, "shape", value=[True]),
    "another size": head_with("sites", 1, "shape", value=[3]), "a simplex of nothing": head_with("sites", 0, "kind", value="simplex"),
    "no name": head_with("sites", 0, "name", value=""), "one name": head_with("sites", 0, "name", value="w"),
    "a name in bytes": head_with("sites", 0, "name", value=3), "an escape in a name": head_with("sites", 0, "name", value="\x1b[2J"),
    "another entry of a site": head_with("sites", 0, "prior", value="x"), "another entry of an owner": head_with("owners", 0, "key", value="x"),
    "no epsilon": head_with("owners", 0, "epsilon", drop=True), "epsilon of 0": head_with("owners", 0, "epsilon", value=0.0),
    "a negative epsilon": head_with("owners", 0, "epsilon", value=-1.0), "epsilon true": head_with("owners", 0, "epsilon", value=True),
    "delta of 1": head_with("owners", 0, "delta", value=1.0), "epsilon in words": head_with("owners", 0, "epsilon", value="1"),
    "rows in halves": head_with("owners", 0, "num_rows", value=1.5), "no rows": head_with("owners", 0, "num_rows", value=0),
    "refused in words": head_with("owners", 0, "is_refused", value="no"), "another width": head_with("owners", 0, "width", value="narrow"),
    "columns in a list": head_with("owners", 0, "columns", value=["x"]), "columns of numbers": head_with("owners", 0, "columns", value={"x": 1}),
    "a verdict without end": head_with("owners", 0, "verdict", value="x" * 10**5), "a verdict of lines": head_with("owners", 0, "verdict", value="a\nb"),
    "an owner too many": lambda path, head, arrays: archive(path, head | {"owners": head["owners"] * 2}, arrays),
    "another budget with the old digest": lambda path, head, arrays: archive(
        path, head | {"owners": [head["owners"][0] | {"epsilon": 0.1}]}, arrays, digest=False),
    "another slope with the old digest": lambda path, head, arrays: archive(
        path, head, arrays | {"0.slopes": 1.01 * arrays["0.slopes"]}, digest=False),
    "a digest of words": lambda path, head, arrays: archive(path, head | {"digest": "right"}, arrays, digest=False),
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "a.likelihood"
    likelihood_of().to_file(path)
    return path


def test_malformed_and_hostile_files_are_refused_and_none_is_executed(written, tmp_path):
    import builtins

    assert len(CORRUPTIONS) >= 60
    original, path = written.read_bytes(), tmp_path / "bad.likelihood"
    taken = {}
    for name, corrupt in CORRUPTIONS.items():
        path.write_bytes(original)
        corrupt(path, *parts(written))
        try:
            dpppl.Likelihood.from_file(path)
            taken[name] = "read"
        except dpppl.ConfigurationError as error:
            if "is not a likelihood's file: " not in str(error) or "Ask its owner" not in str(error):
                taken[name] = str(error)
        except Exception as error:
            taken[name] = repr(error)
    assert not taken and not hasattr(builtins, "exploded")


def test_the_archive_that_corruptions_start_from_is_read(written, tmp_path):
    archive(tmp_path / "same.likelihood", *parts(written))
    assert dpppl.Likelihood.from_file(tmp_path / "same.likelihood").sites == likelihood_of().sites


def test_what_is_written_is_read_and_equal_likelihoods_give_equal_files(written, tmp_path):
    likelihood = likelihood_of()
    found = dpppl.Likelihood.from_file(written)
    assert found.sites == likelihood.sites and [o.facts for o in found.owners] == [o.facts for o in likelihood.owners]
    assert all(np.array_equal(a, b) for a, b in zip(found.owners[0].mixture, likelihood.owners[0].mixture))
    found.to_file(tmp_path / "again.likelihood")
    assert (tmp_path / "again.likelihood").read_bytes() == written.read_bytes()


def test_the_schema_describes_each_head(written):
    import jsonschema

    page = (Path(__file__).parents[2] / "docs" / "likelihood-schema.json").read_text()
    schema = jsonschema.Draft202012Validator(json.loads(page))
    head, arrays = parts(written)
    assert schema.is_valid(head) and not schema.is_valid({n: x for n, x in head.items() if n != "digest"})
    of_sites = json.loads(page)["properties"]["sites"]["items"]["properties"]
    assert set(of_sites["kind"]["enum"]) == set(KINDS)
    described = set(
        re.findall(
            r"^\| `(\w+)` \|",
            (Path(__file__).parents[2] / "docs" / "reference" / "likelihood-file.md").read_text(),
            re.M,
        )
    )
    assert described == set(PublishedMixture._fields) == {name.split(".")[1] for name in arrays}


def test_files_that_cannot_be_opened_or_are_too_large(written, tmp_path, monkeypatch):
    with pytest.raises(dpppl.ConfigurationError, match="No such file"):
        dpppl.Likelihood.from_file(tmp_path / "none")
    with pytest.raises(dpppl.ConfigurationError, match="give a path that can be written"):
        likelihood_of().to_file(tmp_path / "no folder" / "a")
    monkeypatch.setattr(files, "MOST_BYTES", 1_000)
    with pytest.raises(dpppl.ConfigurationError, match="more than 1,000"):
        dpppl.Likelihood.from_file(written)
    with pytest.raises(dpppl.ConfigurationError, match="more than the 1,000"):
        likelihood_of().to_file(tmp_path / "a")
    assert not (tmp_path / "a").exists()
