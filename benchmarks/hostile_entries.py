"""Record and replay of tables in which one entry is not what its column declares: whether it decides how others are read.

    python benchmarks/hostile_entries.py                      # every case; prints a table and "N of N equal"
    python benchmarks/hostile_entries.py --sources list items --entries '"?"'

A case is a source, an entry and its place. The neighbouring table has that entry in its first, middle or last row. All but the
releases must be equal: types, shapes, names, number of rows, programs, charges, results, printed text, warnings and errors.
"""

import argparse
import contextlib
import fractions
import io
import itertools
import json
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
import pyarrow as pa
import pyarrow.feather

import dpppl
from benchmarks.replays import key
from dpppl.audit import replay
from dpppl.cli.main import main as command_line
from dpppl.synthetic import Category, Intervals, Schema, fit_cells, table_model

N = 40
PLACES = {"first": 0, "middle": N // 2, "last": N - 1}
ENTRIES = {
    '"?"': "?",
    '""': "",
    '"NA"': "NA",
    "None": None,
    "1e400": 1e400,
    "10**400": 10**400,
    "a fraction": fractions.Fraction(10**400, 3),
    "1": 1,
    "1.0": 1.0,
    "True": True,
    '"1"': "1",
    "2**80": 2**80,
    "a longer row": [1.0, 0.0, 1.0],
    "bytes": b"\xff",
    "a dict": {"t": 1},
    "an array": np.ones(5),
    "an object": object(),
    "a date": np.datetime64("2020-01-01"),
}
USUAL = [float(number % 2) for number in range(N)]
X = np.linspace(-1.0, 1.0, N).astype(np.float32)
FOLDER = tempfile.TemporaryDirectory(prefix="dpppl-hostile-")


def score(rng_key, *columns):
    """A mean that depends on the types of columns, too."""

    def of_row(*row):
        size = sum(value.size for value in row) + sum(value.dtype.itemsize for value in row)
        return sum(value.sum() for value in row) / size

    return dpppl.private_score(rng_key, of_row, *columns, bounds=(0.0, 1.0), noise_multiplier=3.0)


def written(name, content):
    path = Path(tempfile.mkdtemp(dir=FOLDER.name)) / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
    return path


def text(entry):
    """An entry as a file has it."""
    entry = "" if entry is None else ",".join(map(str, entry)) if isinstance(entry, list) else entry
    return (
        entry.decode("utf-8", "surrogateescape")
        if isinstance(entry, bytes)
        else str(entry).replace("inf", "1e400")[:500]
    )


def csv(rows):
    return "t,x\n" + "".join(f"{text(entry)},{x}\n" for entry, x in zip(rows, X))


def from_csv(rng_key, rows):
    source = dpppl.from_disk(written("t.csv", csv(rows)))
    return score(rng_key, source["t"], source["x"]), source.shape, source["t"].dtype, repr(source)


def one_column(rng_key, rows):
    source = dpppl.from_disk(written("t.csv", "t\n" + "".join(f"{text(entry)}\n" for entry in rows)))
    return score(rng_key, source), source.shape


def no_header(rng_key, rows):
    """The first row stands where names belong: nothing shows it."""
    source = dpppl.from_disk(written("t.tsv", "".join(f"{text(entry)}\t{x}\n" for entry, x in zip(rows, X))))
    try:
        source["t"]
    except dpppl.ConfigurationError as error:
        told = str(error)
    return score(rng_key, X), told, repr(source), source.shape


class Held:
    """Items by number."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


def items(rng_key, rows):
    source = dpppl.from_disk(
        Held([{"t": entry, "x": x} for entry, x in zip(rows, X)]), dtype=[("t", "f4"), ("x", "f4")]
    )
    return score(rng_key, source["t"], source["x"]), source.shape, source["t"].dtype


def tuples(rng_key, rows):
    """An odd entry stands in place of a whole item."""
    held = [(entry, x) if isinstance(entry, float) else entry for entry, x in zip(rows, X)]
    source = dpppl.from_disk(Held(held), dtype=[("t", "f4"), ("x", "f4")])
    return score(rng_key, source[["t", "x"]]), source.shape, source["t"].dtype


def arrays(rng_key, rows):
    held = [np.array([entry, x], np.float32) if isinstance(entry, float) else entry for entry, x in zip(rows, X)]
    source = dpppl.from_disk(Held(held), dtype=("f4", (2,)))
    return score(rng_key, source), source.shape, source.dtype


def arrow(rng_key, rows):
    """What the declared type cannot hold is missing."""
    held = [entry if isinstance(entry, float) and abs(entry) < 9 else None for entry in rows]
    path = written("t.feather", b"")
    pa.feather.write_feather(pa.table({"t": pa.array(held, pa.int32())}), str(path), compression="uncompressed")
    source = dpppl.from_disk(path)
    return score(rng_key, source), source.shape, source.dtype


SCHEMA = Schema((Category("t", (0, 1)), Intervals("x", (-1.0, 0.0, 1.0))))


def schema(rng_key, rows):
    found = fit_cells(rng_key, table_model(SCHEMA), SCHEMA, {"t": rows, "x": X}, noise_multiplier=5.0, num_samples=8)
    return found.counts, found.samples, found.details, found.report, SCHEMA.encoded({"t": rows, "x": X})[0]["x"]


def synthesize(rng_key, rows):
    """The command, whose tables have keys of their own: what it prints."""
    folder, names = Path(tempfile.mkdtemp(dir=FOLDER.name)), ("t.csv", "s.json", "out")
    file, declared, out = (folder / name for name in names)
    file.write_text(csv(rows), errors="surrogateescape")
    declared.write_text(
        json.dumps({"columns": [{"name": "t", "categories": [0, 1]}, {"name": "x", "edges": [-1, 0, 1]}]})
    )
    line = [
        file,
        "--schema",
        declared,
        "--epsilon",
        "1",
        "--delta",
        "1e-5",
        "--out",
        out,
        "--datasets",
        "2",
        "--allow-unconverged",
    ]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = command_line(["synthesize", *map(str, line)])
    return score(rng_key, X), code, printed.getvalue().replace(str(folder), "")


def persons(rng_key, rows):
    """Ids: an odd one is another person's, or nobody's; what a row is in the unit's arrays stays."""
    ids = [f"p{number // 2}" if isinstance(entry, float) else (entry, None) for number, entry in enumerate(rows)]
    return score(rng_key, X), dpppl.model.units._codes("person", ids)[N // 4 : N // 4 + 2]


SOURCES = {
    "list": lambda rng_key, rows: score(rng_key, rows, X),
    "tuple": lambda rng_key, rows: score(rng_key, tuple(rows), X),
    "lists alone": lambda rng_key, rows: score(rng_key, rows),
    "dict of lists": lambda rng_key, rows: dpppl.private_score(
        rng_key, lambda d: d["t"] / d["t"].dtype.itemsize, {"t": rows}, bounds=(0.0, 1.0), noise_multiplier=3.0
    ),
    "CSV": from_csv,
    "CSV of one column": one_column,
    "CSV without names": no_header,
    "items": items,
    "items that are tuples": tuples,
    "items that are arrays": arrays,
    "Arrow": arrow,
    "schema": schema,
    "synthesize": synthesize,
    "persons": persons,
}


def replayed(source, entry, place):
    """The replay of a source with this entry in a row of its own."""
    rows = list(USUAL)
    rows[PLACES[place]] = ENTRIES[entry]
    return replay(SOURCES[source], (list(USUAL),), (rows,), rng_key=key())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--entries", nargs="+", choices=ENTRIES, default=list(ENTRIES))
    options = parser.parse_args(arguments)
    total = equal = 0
    for source, entry in itertools.product(options.sources, options.entries):
        found = {place: replayed(source, entry, place) for place in PLACES}
        total, equal = total + len(found), equal + sum(each.consistent for each in found.values())
        told = {place: "equal" if each.consistent else "; ".join(each.differences) for place, each in found.items()}
        print(f"{source:24} {entry:14}", *(f"{place}: {words}" for place, words in told.items()), flush=True)
    jax.clear_caches()
    print(f"{equal} of {total} equal")
    return equal == total


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
