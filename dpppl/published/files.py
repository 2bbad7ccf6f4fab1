"""The file of a likelihood: a zip archive of arrays in NumPy's format, with a head in JSON. Nothing in it is executed.

A reader checks sizes before it reads, takes uncompressed members of known names alone, and allocates no more than the file has.
"""

import io
import json
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn, cast

import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.output import replace_file
from dpppl.published.records import Array, Owner, OwnerFacts, PublishedMixture, content_digest
from dpppl.published.supports import KINDS, Site, dimension_of
from dpppl.types import Tree

FORMAT, VERSION = "dpppl-likelihood", 1
MOST_BYTES, _MOST_HEAD, _MOST_ELEMENTS, _MOST_TEXT, _LARGEST = 2**29, 2**20, 10**6, 10_000, 1e30
_SHAPES = {
    "centre": "d", "scales": "d", "turn": "dr", "numbers": "kb", "offsets": "nkb", "slopes": "nkbb", "log_weights": "n",
    "reach": "", "arrival": "", "ranks": "mm", "cut": "",
}  # fmt: skip
_DAMAGED = zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError, KeyError, IndexError, TypeError


class _Malformed(Exception):
    """A file is not as `write` makes it."""


def _require(holds: object, otherwise: str) -> None:
    if not holds:
        raise _Malformed(otherwise)


def write(path: str | os.PathLike[str], sites: Sequence[Site], owners: Sequence[Owner]) -> None:
    """Write a file, whole or not at all."""
    arrays = {f"{i}.{name}": x for i, owner in enumerate(owners) for name, x in owner.mixture._asdict().items()}
    head: dict[str, Any] = {
        "format": FORMAT, "version": VERSION, "sites": [site._asdict() for site in sites],
        "owners": [owner.facts.document() for owner in owners],
    }  # fmt: skip
    head = json.loads(json.dumps(head, allow_nan=False))
    text = json.dumps(head | {"digest": _digest(head, arrays)}, indent=1).encode()
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **cast(Tree, {"head": np.frombuffer(text, np.uint8)} | arrays))
    if (size := buffer.tell()) > MOST_BYTES:
        raise ConfigurationError(f"the file would have {size:,} bytes, more than the {MOST_BYTES:,} of the format.")
    name = os.fspath(path)
    try:
        replace_file(name, f"{name}.part", lambda file: file.write(buffer.getbuffer()))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; give a path that can be written.") from None


def read(path: str | os.PathLike[str]) -> tuple[tuple[Site, ...], tuple[Owner, ...]]:
    """The sites and owners of a file. Raises ConfigurationError for a file that is not as `write` makes it."""
    try:
        return _parsed(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; give the path of a file that can be read.") from None
    except _Malformed as error:
        reason = str(error)
    except _DAMAGED:
        reason = "it is damaged, or no archive of arrays"
    raise ConfigurationError(f"{path} is not a likelihood's file: {reason}. Ask its owner for it again.")


def _parsed(path: str | os.PathLike[str]) -> tuple[tuple[Site, ...], tuple[Owner, ...]]:
    members = _members(path)
    text = members.pop("head", np.zeros(0))
    _require(text.dtype == np.uint8 and text.ndim == 1 and len(text) <= _MOST_HEAD, "it has no head")
    head = _head(text.tobytes())
    sites = tuple(map(_site, head["sites"]))
    _require(len({site.name for site in sites}) == len(sites), "two sites have one name")
    facts = list(map(_facts, head["owners"]))
    owners = tuple(Owner(each, _mixture(members, number, sites)) for number, each in enumerate(facts))
    _require(len(members) == len(_SHAPES) * len(owners), "it has other arrays than the format")
    digest = head.pop("digest")
    _require(digest == _digest(head, members), "its digest does not agree with its content")
    return sites, owners


def _digest(head: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """Of all that a file holds but the digest itself."""
    return content_digest(json.dumps(head, sort_keys=True, allow_nan=False), arrays)


def _members(path: str | os.PathLike[str]) -> dict[str, Array]:
    """All arrays of the archive by name."""
    size = os.stat(path).st_size
    _require(size <= MOST_BYTES, f"it has {size:,} bytes, more than {MOST_BYTES:,}")
    found: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        plain = [e.compress_type == zipfile.ZIP_STORED and e.compress_size == e.file_size for e in entries]
        _require(all(plain) and sum(e.file_size for e in entries) <= size, "a member is compressed, or they overlap")
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            _require(name != entry.filename and name not in found, "a member is no array, or two have one name")
            found[name] = _array(archive.read(entry))
    return found


def _array(content: bytes) -> Array:
    """An array in NumPy's format, version 1, of a type that the format has; never of more numbers than there are bytes."""
    stream = io.BytesIO(content)
    _require(np.lib.format.read_magic(stream) == (1, 0), "an array has another version of NumPy's format")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    is_known = dtype.str in ("<f8", "<i8", "|u1") and not (is_fortran and len(shape) > 1)
    _require(is_known, "an array has another type or order than the format")
    rest = content[stream.tell() :]
    fits = min(shape, default=1) >= 0 and len(shape) <= 4 and math.prod(shape) * dtype.itemsize == len(rest)
    _require(fits, "an array has another size than its shape")
    return np.frombuffer(rest, dtype).reshape(shape)


def _head(text: bytes) -> dict[str, Any]:
    def constant(_: str) -> NoReturn:
        raise _Malformed("its head holds a number that is not finite")

    try:
        head = json.loads(text.decode(), parse_constant=constant)
    except (ValueError, RecursionError):
        raise _Malformed("its head is no JSON") from None
    _require(isinstance(head, dict) and head.get("format") == FORMAT, f"its head does not say {FORMAT}")
    is_known = type(head.get("version")) is int and head["version"] == VERSION
    _require(is_known, f"its version is not {VERSION}, the one that this dpppl reads")
    _require(
        head.keys() == {"format", "version", "sites", "owners", "digest"}, "its head has other entries than the format"
    )
    for name in ("sites", "owners"):
        _require(isinstance(head[name], list) and head[name], f"its {name} are no list, or there are none")
    return cast(dict[str, Any], head)


def _site(document: Any) -> Site:
    _require(
        isinstance(document, dict) and document.keys() == set(Site._fields), "a site has other entries than the format"
    )
    name, shape, kind, bounds = (document[field] for field in Site._fields)
    _require(_is_text(name) and name, "a site has no name")
    _require(isinstance(kind, str) and kind in KINDS, "a site has an unknown support")
    is_shape = isinstance(shape, list) and len(shape) <= 8 and all(type(n) is int and n >= 0 for n in shape)
    _require(is_shape and math.prod(shape) <= _MOST_ELEMENTS, "the shape of a site is not a list of sizes")
    fits = isinstance(bounds, list) and len(bounds) == KINDS[kind] and all(map(_is_number, bounds))
    _require(fits and bounds == sorted(set(bounds)), "the bounds of a site do not fit its support")
    site = Site(name, tuple(shape), kind, tuple(map(float, bounds)))
    try:
        fits = site.transform.forward_shape(site.transform.inverse_shape(site.shape)) == site.shape
    except _DAMAGED:
        fits = False
    _require(fits, "the shape of a site does not fit its support")
    return site


def _facts(document: Any) -> OwnerFacts:
    types = {field.name: field.type for field in fields(OwnerFacts)}
    _require(
        isinstance(document, dict) and document.keys() == types.keys(), "an owner has other entries than the format"
    )
    for name, value in document.items():
        is_right = {
            str: _is_text(value), float: _is_number(value) and value > 0, bool: isinstance(value, bool),
            int: type(value) is int and 0 < value < 2**53,
        }.get(cast(Any, types[name]), isinstance(value, dict) and all(map(_is_text, [*value, *value.values()])))  # fmt: skip
        _require(is_right, f"{name} of an owner is not of the format's type")
    _require(document["delta"] < 1.0, "delta of an owner is not below 1")
    _require(
        document["width"] in ("model", "sandwich") and document["name"], "an owner has no name, or an unknown width"
    )
    return OwnerFacts(**document)


def _mixture(members: Mapping[str, Array], number: int, sites: Sequence[Site]) -> PublishedMixture:
    """The arrays of an owner, checked."""
    sizes = {"d": dimension_of(sites)}
    for name, axes in _SHAPES.items():
        _require((at := f"{number}.{name}") in members, f"an owner has no array {name}")
        array, kind = members[at], np.int64 if name == "numbers" else np.float64
        _require(
            array.dtype == kind and array.ndim == len(axes), f"{name} has another type, or other axes, than the format"
        )
        fits = all(sizes.setdefault(axis, size) == size for axis, size in zip(axes, array.shape))
        _require(fits, f"{name} has another shape than the other arrays")
        _require(np.all(np.abs(array) <= _LARGEST), f"{name} holds a number that is not finite, or too large")
    found = PublishedMixture(*(members[f"{number}.{name}"] for name in PublishedMixture._fields))
    _require(all(sizes[axis] for axis in "nkbd") and sizes["r"] <= sizes["d"], "an array is empty")
    _require(np.all(found.scales >= 1.0 / _LARGEST) and found.reach > 0.0, "scales or reach are not positive")
    _require(found.arrival >= 0.0, "arrival is negative")
    _require(0.0 <= found.cut <= 1.0, "cut is no share")
    _require(
        sizes["m"] == 3 and np.all(found.ranks[1:] > 0.0), "ranks are not of three moments, or have no positive errors"
    )
    places = np.sort(found.numbers[found.numbers != sizes["d"]])
    _require(np.array_equal(places, np.arange(sizes["d"])), "its blocks do not hold each coordinate once")
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_TEXT and value.isprintable()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
