"""Results of benchmarks, kept in docs/results/ as small JSON files: a name, an entry a cell, its numbers."""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"


def written(name, cell, numbers):
    """Put the numbers of one cell into a file, in place of those that it had."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(found | {cell: numbers}, indent=1, sort_keys=True) + "\n")


def in_page(mark, table, page=FOLDER.parent / "appendix" / "unseen-data.md"):
    """Put a table after `<!-- table: MARK -->` of a page, in place of the one there, if the page has this mark. Returns the table."""
    head, text = f"<!-- table: {mark} -->\n", page.read_text()
    if head in text:
        before, after = text.split(head)
        rest = re.sub(r"\A(?:\|.*\n)*", "", after)
        page.write_text(f"{before}{head}{table}\n{rest}")
    return table
