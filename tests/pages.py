"""Cells of the documentation's pages, as the site runs them."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def cells(text: str) -> list[str]:
    """The code of each cell, without its tags."""
    return [re.sub(r"^:tags:.*\n", "", code, flags=re.MULTILINE) for code in _CELL.findall(text)]
