"""Results of the examples: rows by name, runs kept in JSON as soon as they are done, tables and pictures made of these.

A row is a function, its settings, and how many runs of it are wanted. A killed command goes on where it was; a row whose settings
changed starts anew. `python examples/results.py` writes the tables of docs/results.md from the JSON beside it.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


FOLDER = Path(__file__).resolve().parents[1] / "docs" / "results"
SECONDS = "processor seconds"
"""Of a run, of all threads, with what it compiles; waiting for a busy machine does not count."""


@dataclass(frozen=True)
class Row:
    """`run(seed, **settings)` gives the scores of one run, numbers by name, with the epsilon that it spent."""

    name: str
    run: Callable[..., dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    num_runs: int = 1


def load(path):
    """Rows by name; none where the file is missing."""
    return json.loads(path.read_text()) if path.exists() else {}


def save(path, rows):
    """Whole or not at all, also when the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(_text(rows))
    os.replace(partial, path)


def _text(rows):
    """JSON with a line for each run."""
    parts = []
    for name, row in rows.items():
        runs = ",\n   ".join(json.dumps(run) for run in row["runs"])
        parts.append(
            f' {json.dumps(name)}: {{\n  "settings": {json.dumps(row["settings"])},\n  "runs": [\n   {runs}\n  ]\n }}'
        )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def make(rows, path, only=None, num_runs=None):
    """Run what is missing of `rows` (of those named, if any), and keep each run in `path`. Returns all rows of the file."""
    names = [row.name for row in rows]
    unknown = set(only or ()) - set(names)
    if unknown:
        raise SystemExit(f"no such row: {', '.join(sorted(unknown))}. There are: {', '.join(names)}")
    for row in rows:
        if only and row.name not in only:
            continue
        stored = load(path)
        found = stored.get(row.name, {})
        runs = found.get("runs", []) if found.get("settings") == row.settings else []
        for seed in range(len(runs), num_runs or row.num_runs):
            start = time.process_time()
            scores = {name: _plain(value) for name, value in row.run(seed, **row.settings).items()}
            runs.append(scores | {SECONDS: round(time.process_time() - start, 1)})
            stored = load(path) | {row.name: {"settings": row.settings, "runs": runs}}
            save(path, {name: stored[name] for name in [*names, *stored] if name in stored})
            shown = {name: value for name, value in runs[-1].items() if not isinstance(value, list)}
            print(f"{row.name}, run {seed + 1}: {json.dumps(shown)}", flush=True)
    return load(path)


@contextmanager
def programs_compiled_once():
    """Runs that differ in keys and data alone share what is compiled, for as long as this lasts."""
    if jax.config.jax_compilation_cache_dir:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="dpppl-results-") as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        yield
        jax.config.update("jax_compilation_cache_dir", None)


def _plain(value):
    """Numbers that JSON has, with five digits; of lists, each."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return None if value is None or not np.isfinite(value) else float(f"{float(value):.5g}")


def command(description, rows, name, missing, picture, arguments=None):
    """The command line of an example: `missing()` says which file is not there, `picture(folder)` draws when rows are done."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, help="folder of the data; else what the environment variable DPPPL_DATA names"
    )
    parser.add_argument("--only", nargs="+", metavar="ROW", help="these rows alone")
    parser.add_argument("--num-runs", type=int, help="of each row, instead of its own number")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the JSON and the pictures")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    args = parser.parse_args(arguments)
    if args.list:
        print("\n".join(row.name for row in rows))
        return
    if args.data is not None:
        os.environ["DPPPL_DATA"] = str(args.data)
    lacking = missing()
    if lacking:
        raise SystemExit(f"{lacking} is missing: name its folder by --data or in the environment variable DPPPL_DATA.")
    with programs_compiled_once():
        make(rows, args.output / f"{name}.json", args.only, args.num_runs)
        picture(args.output)


def cell(runs: Sequence[dict[str, Any]], column: str) -> str:
    """Mean and standard deviation over runs of the score `column`, or the median for "median SCORE"; empty without one."""
    score = column.removeprefix("median ")
    values = [run[score] for run in runs if run.get(score) is not None]
    if not values:
        return ""
    if score in ("epsilon", SECONDS):
        return f"{np.median(values):.4g}"
    if column != score or len(values) == 1:
        return f"{np.median(values):.4f}"
    digits = 4 if max(values) < 10.0 else 1
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


def table(rows, selected, columns):
    """Markdown of the rows whose name matches the pattern `selected`; `columns`: settings or scores, epsilon among them."""
    lines = [f"| {' | '.join(columns)} | runs |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        if re.fullmatch(selected, name):
            settings, runs = row["settings"], row["runs"]
            cells = [str(settings[c] or "") if c in settings else cell(runs, c) for c in columns]
            lines.append(f"| {' | '.join(cells)} | {len(runs)} |")
    return "\n".join(lines)


def grid(rows, selected, line, column, score):
    """Markdown of the mean of a score: a line for each value of the setting `line`, a column for each of the setting `column`."""
    found: dict[Any, Any] = {}
    for name, row in rows.items():
        if re.fullmatch(selected, name):
            found.setdefault(row["settings"][line], {})[row["settings"][column]] = cell(row["runs"], score).split(
                " ± "
            )[0]
    columns = sorted({each for cells in found.values() for each in cells}, key=lambda each: (each is None, each or 0.0))
    heads = ["none" if each is None else str(each) for each in columns]
    lines = [f"| {line} | {' | '.join(f'{column} {head}' for head in heads)} |", "|---" * (len(columns) + 1) + "|"]
    for name, cells in found.items():
        lines.append(f"| {name} | {' | '.join(cells.get(each, '') for each in columns)} |")
    return "\n".join(lines)


def budget_curves(folder, name, selected, score, limits=None):
    """Picture NAME.png: a score against the target epsilon, by method, of the rows that match; `limits` of its axis."""
    found: dict[str, Any] = {}
    for row_name, row in load(folder / f"{name}.json").items():
        if re.fullmatch(selected, row_name):
            by_target = found.setdefault(row["settings"]["method"], {})
            by_target[row["settings"]["target"]] = [run[score] for run in row["runs"]]
    level = found.pop("not private", {None: None})[None]
    if not found:
        return
    from matplotlib.figure import Figure

    axes = Figure(figsize=(6.0, 4.0), layout="constrained").subplots()
    for method, scores in found.items():
        means, sds = ([measure(scores[epsilon]) for epsilon in sorted(scores)] for measure in (np.mean, np.std))
        axes.errorbar(sorted(scores), means, yerr=sds, marker="o", capsize=3, label=method)
    if level:
        axes.axhline(np.mean(level), color="black", linestyle=":", label="without privacy")
    axes.set(xscale="log", xlabel="epsilon", ylabel=f"{score} of test rows", ylim=limits)
    axes.legend(loc="lower right", frameon=False, fontsize="small")
    axes.figure.savefig(folder / f"{name}.png", dpi=110)


def costs(folder, names):
    """Markdown of what the files `names` took: rows, runs, processor minutes.

    A run that was not timed counts as the mean of its row's, or else of its file's."""
    lines, total = ["| example | rows | runs | processor minutes |", "|---|---|---|---|"], np.zeros(3)
    for name in names:
        rows = [row["runs"] for row in load(folder / f"{name}.json").values()]
        timed = [[run[SECONDS] for run in runs if SECONDS in run] for runs in rows]
        mean = np.mean([seconds for known in timed for seconds in known] or [0.0])
        seconds = sum(len(runs) * (np.mean(known) if known else mean) for runs, known in zip(rows, timed, strict=True))
        found = np.array([len(rows), sum(map(len, rows)), seconds / 60.0])
        lines.append(f"| {name} | {found[0]:.0f} | {found[1]:.0f} | {found[2]:.1f} |")
        total += found
    return "\n".join([*lines, f"| all | {total[0]:.0f} | {total[1]:.0f} | {total[2]:.1f} |"])


MARK = re.compile(r"(<!-- (table|grid|costs): (.*?) -->\n)(?:\|.*\n)*")
"""Before each table: `table: FILE NAMES | COLUMNS`, `grid: FILE NAMES | LINE by COLUMN | SCORE`, `costs: FILES`."""


def written(text, folder):
    """A page with its tables made anew from the JSON in `folder`."""

    def anew(match):
        head, kind, what = match.groups()
        if kind == "costs":
            return f"{head}{costs(folder, what.split(', '))}\n"
        (file, selected), *rest = what.split(" | ")[0].split(" "), *what.split(" | ")[1:]
        rows = load(folder / f"{file}.json")
        if kind == "table":
            return f"{head}{table(rows, selected, rest[0].split(', '))}\n"
        return f"{head}{grid(rows, selected, *rest[0].split(' by '), rest[1])}\n"

    return MARK.sub(anew, text)


def main():
    page = FOLDER.parent / "results.md"
    text = page.read_text()
    changed = written(text, FOLDER)
    page.write_text(changed)
    print(f"{page}: {'tables written' if changed != text else 'nothing to change'}", file=sys.stderr)


if __name__ == "__main__":
    main()
