"""Wrong files, schemas, synthetic tables and command lines."""

import contextlib
import io
import json
import shlex

import jax
import numpy as np
import pandas as pd
from refused_common import CSV, FOLDER, GROUP, NPY, SHARED, F, Later, N, key

import dpppl
from dpppl import from_disk
from dpppl.contrib import synthetic
from dpppl.contrib.cli import main
from dpppl.contrib.synthetic import Category, Number, Schema

# fmt: off
np.savez(FOLDER / "two.npz", y=F)
(FOLDER / "empty.csv").write_text("")
(FOLDER / "book.xlsx").write_bytes(b"PK\x03\x04")
PARQUET = FOLDER / "rows.parquet"
pd.DataFrame({"age": F, "job": ["x"] * N}).to_parquet(PARQUET)

DISK = [
    ("a pattern of files", lambda: from_disk(str(FOLDER / "*.npy")), "*.npy|one file|pattern", lambda: from_disk(NPY)),
    ("an address", lambda: from_disk("https://example.org/rows.npy"), "https|download", lambda: from_disk(NPY)),
    ("an npz file", lambda: from_disk(FOLDER / "two.npz"), "two.npz|.npy", lambda: from_disk(NPY)),
    ("an empty file", lambda: from_disk(FOLDER / "empty.csv"), "empty", lambda: from_disk(CSV, "age")),
    ("a column by number", lambda: from_disk(CSV)[0], "column 0|first line|names", lambda: from_disk(CSV)["age"]),
    ("a column of text", lambda: from_disk(PARQUET, "job"), "'job'|numbers", lambda: from_disk(PARQUET, "age")),
]

SCHEMA = Schema((Category("group", ("a", "b")), Number("x", -4.0, 4.0)))
CELLS = Schema((Category("group", ("a", "b")), Category("ill", (0, 1))))
TABLE = {"group": np.where(GROUP > 1, "a", "b"), "x": F}
COUNTED = {"group": np.where(GROUP > 1, "a", "b"), "ill": GROUP % 2}


def cells(schema=CELLS, table=COUNTED, model=None, **settings):
    model = synthetic.table_model(CELLS) if model is None else model
    return synthetic.fit_cells(key(), model, schema, table, **({"num_samples": 50, "noise_multiplier": 5.0} | settings))


draws = Later(lambda: cells().samples)
SHARED.append(draws)


def tables(samples=None, schema=CELLS, rng_key=None, **settings):
    rng_key = jax.random.key(0) if rng_key is None else rng_key
    return synthetic.datasets(rng_key, synthetic.table_model(CELLS), draws() if samples is None else samples, schema, **({"num_rows": 20, "num_datasets": 3} | settings))


def schema_of(document):
    file = FOLDER / "schema.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return Schema.from_json(file)


SYNTHETIC = [
    ("a range exchanged", lambda: Number("age", 90, 17), "'age'|low|high", lambda: Number("age", 17, 90)),
    ("decimals of 1.5", lambda: Number("wage", 0.0, 1e6, decimals=1.5), "decimals|int(decimals)", lambda: Number("wage", 0.0, 1e6, decimals=1)),
    ("the log by a word", lambda: Number("wage", 0.0, 5.0, log="natural"), "log|True", lambda: Number("wage", 0.0, 5.0, log=True)),
    ("a name that is a number", lambda: Number(3, 0.0, 1.0), "name|text", lambda: Number("3", 0.0, 1.0)),
    ("a table without a column", lambda: SCHEMA.encoded({"group": TABLE["group"]}), "'x'", lambda: SCHEMA.encoded(TABLE)),
    ("columns of different length", lambda: SCHEMA.encoded({"group": TABLE["group"], "x": F[:3]}), "'group'|40|'x'|3", lambda: SCHEMA.encoded(TABLE)),
    ("a path for a table", lambda: SCHEMA.encoded("table.csv"), "table|path|read_csv", lambda: SCHEMA.encoded(TABLE)),
    ("a file that is no JSON", lambda: schema_of("{"), "schema|columns", lambda: schema_of({"columns": [{"name": "x", "range": [0, 1]}]})),
    ("JSON of another kind", lambda: schema_of({"columns": [{"name": "x", "kind": "number"}]}), "column 1|range", lambda: schema_of({"columns": [{"name": "x", "range": [0, 1]}]})),
    ("a model of no schema", lambda: synthetic.table_model(TABLE), "Schema|dict", lambda: synthetic.table_model(SCHEMA)),
    ("a scale of -1", lambda: synthetic.table_model(SCHEMA, scale=-1.0), "scale|positive", lambda: synthetic.table_model(SCHEMA, scale=1.0)),
    ("cells by half a sample", lambda: cells(num_samples=0.5), "num_samples|whole number", lambda: cells()),
    ("a fit for its samples", lambda: tables(samples=cells()), "samples|.samples", lambda: tables(samples=cells().samples)),
    ("no rows in tables", lambda: tables(num_rows=0), "num_rows|positive", lambda: tables(num_rows=10)),
    ("half a data set", lambda: tables(num_datasets=1.5), "num_datasets|whole number", lambda: tables(num_datasets=2)),
    ("variances of another length", lambda: synthetic.combine([1.0, 2.0, 1.5], [1.0]), "variances|(3,)|(1,)", lambda: synthetic.combine([1.0, 2.0, 1.5], [1.0, 1.0, 1.0])),
    ("an unknown rule", lambda: synthetic.combine([1.0, 2.0], [1.0, 1.0], rule="rubin"), "'rubin'|mixture", lambda: synthetic.combine([1.0, 2.0], [1.0, 1.0], rule="mixture")),
    ("negative variances", lambda: synthetic.combine([1.0, 2.0], [-1.0, 1.0]), "variances|positive", lambda: synthetic.combine([1.0, 2.0], [1.0, 1.0])),
]


class Failed(dpppl.ConfigurationError):
    """What a command prints when its exit status is not 0."""


def command(line):
    text = io.StringIO()
    with contextlib.redirect_stderr(text), contextlib.redirect_stdout(io.StringIO()):
        try:
            status = main(shlex.split(line))
        except SystemExit as error:
            status = error.code
    if status:
        raise Failed(text.getvalue())


MODEL = FOLDER / "model.py"
MODEL.write_text("import numpyro, numpyro.distributions as dist\n\ndef mean(y):\n    mu = numpyro.sample('mu', dist.Normal(0, 1))\n    with numpyro.plate('data', y.shape[0]):\n        numpyro.sample('y', dist.Normal(mu, 1), obs=y)\n")
SCHEMA_FILE, TABLE_FILE = FOLDER / "cells.json", FOLDER / "cells.csv"
SCHEMA_FILE.write_text(json.dumps({"columns": [{"name": "group", "categories": ["a", "b"]}, {"name": "ill", "categories": [0, 1]}]}))
pd.DataFrame(COUNTED).to_csv(TABLE_FILE, index=False)
SYNTH = f"synthesize {TABLE_FILE} --schema {SCHEMA_FILE} --epsilon 3 --delta 1e-3 --datasets 2 --out {FOLDER}/out"
EPSILON = "epsilon --noise-multiplier 10 --steps 10 --delta 1e-5"

COMMANDS = [
    ("an unknown command", lambda: command("epsilons"), "epsilons|epsilon", lambda: command(EPSILON)),
    ("delta forgotten", lambda: command("epsilon --noise-multiplier 10 --steps 10"), "--delta", lambda: command(EPSILON)),
    ("a rate of 2", lambda: command(EPSILON + " --rate 2"), "rate|(0, 1]", lambda: command(EPSILON + " --rate .2")),
    ("steps of 1e3", lambda: command("epsilon --noise-multiplier 10 --steps 1e3 --delta 1e-5"), "--steps|1e3", lambda: command("epsilon --noise-multiplier 10 --steps 1000 --delta 1e-5")),
    ("a schema that is not there", lambda: command(SYNTH.replace("cells.json", "none.json")), "none.json", lambda: command(SYNTH)),
    ("a table that is not there", lambda: command(SYNTH.replace("cells.csv", "none.csv") + "n2"), "none.csv", lambda: command(SYNTH + "2")),
    ("a schema that is a table", lambda: command(SYNTH.replace(str(SCHEMA_FILE), str(TABLE_FILE)) + "n3"), "no schema|columns", lambda: command(SYNTH + "3")),
    ("0 data sets", lambda: command(SYNTH.replace("--datasets 2", "--datasets 0") + "n4"), "--datasets|positive", lambda: command(SYNTH + "4")),
    ("a table of other columns", lambda: command(SYNTH.replace(str(TABLE_FILE), str(CSV)) + "n5"), "columns group, ill", lambda: command(SYNTH + "5")),
    ("epsilon of -1", lambda: command(SYNTH.replace("--epsilon 3", "--epsilon -1") + "n6"), "epsilon|positive", lambda: command(SYNTH + "6")),
    ("a model's name", lambda: command(f"verify {MODEL}:maen --argument y=float32[40]"), "maen|mean", lambda: command(f"verify {MODEL}:mean --argument y=float32[40]")),
    ("a model without its colon", lambda: command(f"verify {MODEL} --argument y=float32[40]"), ":", lambda: command(f"verify {MODEL}:mean --argument y=float32[40]")),
    ("an unknown argument", lambda: command(f"verify {MODEL}:mean --argument x=float32[40]"), "'x'", lambda: command(f"verify {MODEL}:mean --argument y=float32[40]")),
    ("an unknown type", lambda: command(f"verify {MODEL}:mean --argument y=float[40]"), "argument y|float32[100, 3]", lambda: command(f"verify {MODEL}:mean --argument y=float32[40]")),
    ("plan without N", lambda: command("plan --epsilon 1 --delta 1e-5"), "--num-data", lambda: command("plan --num-data 1000 --epsilon 1 --delta 1e-5 --latents 2 --steps 100 --rate 1")),
]

AREAS = {"disk": DISK, "synthetic": SYNTHETIC, "commands": COMMANDS}
