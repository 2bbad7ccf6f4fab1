"""Results of benchmarks, kept in docs/results/ as small JSON files: a name, an entry a cell, its numbers."""

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"


def written(name, cell, numbers):
    """Put the numbers of one cell into a file, in place of those that it had."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(found | {cell: numbers}, indent=1, sort_keys=True) + "\n")
