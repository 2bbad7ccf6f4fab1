"""Record and replay of tables in which one entry is not what its column declares: whether it decides how others are read.

    python benchmarks/privacy/hostile_entries.py                      # every case; prints a table and "N of N equal"
    python benchmarks/privacy/hostile_entries.py --sources list items --entries '"?"'

A case is an entry and its place: tables of all kinds hold it in their first, middle or last row, and one access looks at all of
them. All but the releases must be equal to those of usual tables: types, shapes, names, number of rows, programs, charges, results,
printed text, warnings and errors. 60 replays take 2 minutes of an idle core.
"""

import argparse
import fractions
import itertools
import sys
import tempfile
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import numpy as np
import pyarrow as pa
import pyarrow.feather

import dpppl
from benchmarks.privacy.replays import key
from dpppl.contrib.audit import replay
from dpppl.contrib.cli import tables
from dpppl.contrib.synthetic import Category, Intervals, Number, Schema

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
    "a quote": '"1',
    "a complex": 1j,
}
USUAL = [float(number % 2) for number in range(N)]
X = np.linspace(-1.0, 1.0, N).astype(np.float32)
FOLDER = tempfile.TemporaryDirectory(prefix="dpppl-hostile-")


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


def of_csv(rows):
    source = dpppl.from_disk(written("t.csv", csv(rows)))
    return source["t"], (source.shape, source[["t", "x"]].shape, repr(source["t"]), repr(source))


def one_column(rows):
    source = dpppl.from_disk(written("t.tsv", "t\n" + "".join(f"{text(entry)}\n" for entry in rows)))
    return source["t"], source.shape


def no_names(rows):
    """The first row stands where names belong: nothing shows it, and all other rows are rows."""
    source = dpppl.from_disk(written("t.tsv", "".join(f"{text(entry)}\t{x}\n" for entry, x in zip(rows, X))))
    try:
        source["t"]
    except dpppl.ConfigurationError as error:
        return X, (str(error), repr(source), source.shape)


class Held:
    """Items by number."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


def items(rows):
    source = dpppl.from_disk(
        Held([{"t": entry, "x": x} for entry, x in zip(rows, X)]), dtype=[("t", "f4"), ("x", "f4")]
    )
    return source["t"], repr(source)


def tuples(rows):
    """An odd entry stands in place of a whole item."""
    held = [(entry, x) if isinstance(entry, float) else entry for entry, x in zip(rows, X)]
    source = dpppl.from_disk(Held(held), dtype=[("t", "f4"), ("x", "f4")])
    return source[["t", "x"]], repr(source)


def arrays(rows):
    held = [np.array([entry, x], np.float32) if isinstance(entry, float) else entry for entry, x in zip(rows, X)]
    return dpppl.from_disk(Held(held), dtype=("f4", (2,))), None


def arrow(rows):
    """An entry that the declared type cannot hold is null."""
    held = [int(entry) if isinstance(entry, float) and abs(entry) < 9 else None for entry in rows]
    path = written("t.feather", b"")
    pa.feather.write_feather(pa.table({"t": pa.array(held, pa.int32())}), str(path), compression="uncompressed")
    return dpppl.from_disk(path), None


def encoded(rows):
    """A schema's categories: the codes of complete rows."""
    columns, offset = Schema((Category("t", (0, 1)), Intervals("x", (-1.0, 0.0, 1.0)))).encoded({"t": rows, "x": X})
    return columns["t"] + offset, columns["x"]


def command(rows):
    """The table that `dpppl synthesize` reads."""
    table, count = tables._read(written("t.csv", csv(rows)), Schema((Category("t", (0, 1)), Number("x", -1, 1))))
    codes, known = Category("t", (0, 1)).encoded(table["t"])
    return np.where(known, codes, np.nan), count


SOURCES = {
    "list": lambda rows: (rows, None),
    "tuple": lambda rows: (tuple(rows), None),
    "dict of lists": lambda rows: ({"t": rows}, None),
    "CSV": of_csv,
    "TSV of one column": one_column,
    "TSV without names": no_names,
    "items": items,
    "items that are tuples": tuples,
    "items that are arrays": arrays,
    "Arrow": arrow,
    "schema": encoded,
    "synthesize": command,
}


def of_row(*row):
    """A number that depends on values and types."""
    values = jax.tree.leaves(row)
    return sum(value.sum() / value.dtype.itemsize for value in values) / sum(value.size for value in values)


def runner(sources, rng_key, rows):
    """One access of the rows of all these sources, and all that can be seen of them."""
    columns, facts = zip(*(SOURCES[name](rows) for name in sources))
    return dpppl.private_score(rng_key, of_row, *columns, bounds=(0.0, 1.0), noise_multiplier=3.0), facts


def replayed(entry, place, sources=tuple(SOURCES)):
    """The replay of tables in which one row has this entry."""
    rows = list(USUAL)
    rows[PLACES[place]] = ENTRIES[entry]
    return replay(partial(runner, sources), (list(USUAL),), (rows,), rng_key=key())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--entries", nargs="+", choices=ENTRIES, default=list(ENTRIES))
    options = parser.parse_args(arguments)
    total = equal = 0
    for entry, place in itertools.product(options.entries, PLACES):
        found = replayed(entry, place, options.sources)
        total, equal = total + 1, equal + found.consistent
        print(f"{entry:14} {place:8}", "equal" if found.consistent else "; ".join(found.differences), flush=True)
    print(f"{equal} of {total} equal, each of {len(options.sources)} kinds of tables")
    return equal == total


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
