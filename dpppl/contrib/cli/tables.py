"""The command `dpppl synthesize`: synthetic tables from a CSV file and its public schema."""

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpppl.contrib.cli.models import Answer
from dpppl.contrib.synthetic import RULES, Category, Schema, datasets, fit_cells, table_model
from dpppl.contrib.synthetic.cells import MOST_CELLS, num_cells
from dpppl.contrib.synthetic.table import labels_of_model
from dpppl.data.entries import other_separator, text_rows
from dpppl.errors import ConfigurationError
from dpppl.noise_aware.runner import NoiseAware
from dpppl.randomness.keys import secret_key
from dpppl.report.report import PrivacyReport
from dpppl.validation import positive_integer

_README = """Synthetic tables
================
{count} tables of {rows} rows, drawn from a private posterior. No row describes a person.
Privacy: {cost}
Verdict on the posterior: {verdict}

Analyse every table as if it were real, then combine the analyses:

    from dpppl.contrib import synthetic
    combined = synthetic.combine(estimates, variances)     # arrays (tables, ...)
    combined.interval(0.95)

A single table analysed as if it were real gives intervals that are too narrow. Conditions of the rule:
{conditions}
The tables hold the relations that their model describes: each column given those before it, in the order
{order}{interactions}. Other relations are not in them.

Licence: {licence}
"""


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command. `command(name, function, words)` makes its parser."""
    added = command("synthesize", _synthesize, "synthetic tables from a private CSV file, with valid inference")
    added.add_argument("file", type=Path, metavar="TABLE.csv", help="the private table; the first line names columns")
    added.add_argument("--schema", type=Path, required=True, help="JSON with public categories and ranges of columns")
    added.add_argument("--epsilon", type=float, required=True, help="the budget of all tables together")
    added.add_argument("--delta", type=float, required=True, help="at which epsilon holds")
    added.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a folder that does not exist yet")
    added.add_argument("--datasets", type=int, default=20, help="number of tables; 20 unless given")
    added.add_argument("--rows", type=int, help="rows of each table; as many as the file has unless given")
    added.add_argument("--interactions", action="store_true", help="model products of pairs of columns, too")
    added.add_argument("--separator", help="between the entries of the file, '\\t' for a tab; a comma unless given")
    added.add_argument("--decimal", help="the mark in numbers such as 1,5; a point unless given")
    added.add_argument("--ledger", help="path of the data's ledger")
    added.add_argument("--name", help="what report and ledger call the run")
    added.add_argument("--licence", default="not stated by the owner of the data.", help="licence text of the tables")
    added.add_argument("--allow-unconverged", action="store_true", help="write tables that the verdict refuses")


def _synthesize(options: argparse.Namespace) -> Answer:
    try:
        import pandas  # noqa: F401
    except ImportError:
        raise ConfigurationError('tables need pandas: pip install "dpppl[synthetic]".') from None
    from dpppl.contrib.pages import to_html  # fails before anything is charged, as pandas does

    schema = Schema.from_json(options.schema)
    if options.out.exists():
        raise ConfigurationError(f"--out {options.out} exists: name a new folder, so that no file is replaced.")
    for name, value in (("--datasets", options.datasets), ("--rows", 1 if options.rows is None else options.rows)):
        positive_integer(value, name=name)
    table, count = _read(options.file, schema, options.separator, options.decimal)
    model = table_model(schema, interactions=options.interactions)
    rows = options.rows or count
    options.out.mkdir(parents=True)
    try:
        samples, report, verdict = _fitted(options, model, schema, table)
    except BaseException:
        with contextlib.suppress(OSError):
            options.out.rmdir()  # the same command may run again
        raise
    (options.out / "report.json").write_text(report.to_json(), encoding="utf-8")
    (options.out / "report.html").write_text(to_html(report), encoding="utf-8")
    if verdict.refusals and not options.allow_unconverged:
        raise ConfigurationError(
            f"the budget is spent, and the tables should not be used: {verdict.refusals[0]} The report is in {options.out}; "
            "--allow-unconverged and another --out write tables all the same, at a new cost."
        )
    tables = datasets(secret_key(), model, samples, schema, num_rows=rows, num_datasets=options.datasets)
    for number, table in enumerate(tables, start=1):
        table.to_csv(options.out / f"synthetic_{number:0{len(str(len(tables)))}d}.csv", index=False)
    (options.out / "README.txt").write_text(_README.format(
        count=options.datasets, rows=rows, cost=report.headline, verdict=verdict.line(), conditions=RULES["fully_synthetic"],
        order=", ".join(column.name for column in schema.columns), licence=options.licence,
        interactions=", with products of pairs" if options.interactions else "",
    ), encoding="utf-8")  # fmt: skip
    document = {"folder": str(options.out), "tables": len(tables), "rows": rows, "verdict": verdict.line()}
    return document | {"epsilon": report.epsilon, "delta": report.delta}, (
        f"{len(tables)} tables of {rows:,} rows in {options.out}, epsilon {report.epsilon:.4g} at delta {report.delta:g}\n"
        f"verdict: {verdict.line()}"
    )


def _fitted(options: argparse.Namespace, model: Any, schema: Schema, table: Any) -> tuple[Any, PrivacyReport, Any]:
    """Samples of the posterior, its report and its verdict: from counts of all cells where these are few, else by NoiseAware."""
    count = max(1_000, options.datasets)
    budget = dict(target_epsilon=options.epsilon, target_delta=options.delta, ledger=options.ledger, name=options.name)
    if 0 < (num_cells(schema) or 0) <= MOST_CELLS:
        found = fit_cells(secret_key(), model, schema, table, num_samples=count, **budget)
        return found.samples, found.report, found.details
    labels = {site: both for site, both in labels_of_model(schema, options.interactions).items() if both[0]}
    private = NoiseAware(model, num_samples=count, progress_bar=False, print_cost=False, labels=labels, **budget)
    private.run(secret_key(), *schema.encoded(table))
    return private.get_samples(allow_unconverged=True), private.privacy_report(), private.verdict


def _read(
    path: Path, schema: Schema, separator: str | None = None, decimal: str | None = None
) -> tuple[dict[str, list[str | None]], int]:
    """The text of the schema's columns, None in rows of another length, and the number of rows. Errors contain no data value."""
    separator = "\t" if separator == "\\t" else separator
    numbers = [column.name for column in schema.columns if not isinstance(column, Category)]
    if separator == ";" and decimal is None and numbers:
        raise ConfigurationError(
            f"{', '.join(numbers)} are numbers, written 1,5 in most files with ';': write --decimal ',' or --decimal '.'."
        )
    decimal, mark = "." if decimal is None else decimal, "," if separator is None else separator
    if not len(mark) == len(decimal) == 1 or decimal == mark:
        raise ConfigurationError("--separator and --decimal are two characters: write --separator ';' --decimal ','.")
    try:
        names, rows, count = text_rows(path, separator)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    wanted = [column.name for column in schema.columns]
    names = names if set(wanted).issubset(names) else [name.strip() for name in names]
    if not count or any(names.count(name) != 1 for name in wanted):
        mark = other_separator(names)
        cure = f"; between its names is {mark!r}: write --separator {mark!r}" if mark else ""
        cure += " --decimal ',' where numbers are 1,5" if mark == ";" else ""
        raise ConfigurationError(
            f"{path} is no table with rows whose first line names each of the columns {', '.join(wanted)} once{cure}."
        )
    places = [names.index(name) for name in wanted]
    table = dict(zip(wanted, map(list, zip(*([row[k] if row else None for k in places] for row in rows)))))
    if decimal != ".":
        table |= {name: [x and x.replace(".", "?").replace(decimal, ".") for x in table[name]] for name in numbers}
    if numbers:
        other = "1.5" if decimal == "," else "1,5"
        print(
            f"Note: {', '.join(numbers)} are numbers by the schema. An entry such as {other}, or a date, counts as missing: give "
            "--decimal for other decimals, and write dates as days since a public date.",
            file=sys.stderr,
        )
    return table, count
