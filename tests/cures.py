"""The messages of the package whose cure is code: found in its source by their words, so that none is forgotten."""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "dpppl"
_CURE = re.compile(
    r"\b(give|write|use|pass|call|set|take|make|in place of|instead|wrap|choose|store|declare|observe|run|put|install|round|copy|"
    r"load|such as|keep|leave|name|build|fix)\b",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"(?<![\w'])[A-Za-z_§][\w.§]*\((?![ )])[^)]|\b\w+=[^\s=,;:]|[\w§]\[[^\]]+\]|pip install|§\.\w|\w\(\)|import \w"
)


def messages():
    """Each text with such a cure, as it stands in the source, with § in the place of a value that is filled in."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        inner = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in ast.walk(node)
            if part is not node
        }
        inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in inner:
                text = _text(node)
                if _CURE.search(text) and _CODE.search(text) and len(text.split()) > 3:
                    found.add(text)
    return sorted(found)


def _text(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) for value in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "§"
