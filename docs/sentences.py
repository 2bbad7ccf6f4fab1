"""Draw ten sentences at random from docstrings, errors and pages, to be restated by a reader who has not seen the code.

python docs/sentences.py SEED
"""

import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
NUMBER = 10


def sentences(text: str) -> Iterator[str]:
    """Split prose into sentences of at least four words; items of a list are by themselves."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        words = " ".join(paragraph.split())
        found = re.split(r"(?<=[.!?]) (?=[A-Z`*\"])", re.sub(r"^(?:[-*]|\d+\.) ", "", words))
        yield from (sentence for sentence in found if len(re.sub("`[^`]*`", "", sentence).split()) > 3)


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Sentences of all docstrings, without doctests."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield from sentences(
                re.sub(r"^ *>>> .*?(?=\n\s*\n|\Z)", "", ast.get_docstring(node) or "", flags=re.S | re.M)
            )


def errors(tree: ast.Module) -> Iterator[str]:
    """Sentences of errors and warnings; values that they fill in are shown as <name>."""
    for node in ast.walk(tree):
        name = ast.unparse(node.func).split(".")[-1] if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and node.args and (name.endswith("Error") or name == "warn"):
            match node.args[0]:
                case ast.Constant(value=str(text)):
                    yield from sentences(text)
                case ast.JoinedStr(values=parts):
                    texts = (p.value if isinstance(p, ast.Constant) else f"<{ast.unparse(p.value)}>" for p in parts)
                    yield from sentences("".join(map(str, texts)))


def prose(page: str) -> Iterator[str]:
    """Sentences of a page, without code, tables, headings and directives."""
    page = re.sub(r"```.*?```|<!--.*?-->|\A---.*?^---$", "\n", page, flags=re.S | re.M)
    yield from sentences(re.sub(r"^(?: {4}|\s*[|#:(]).*$", "\n", page, flags=re.M))


def all_sentences() -> dict[str, list[tuple[str, str]]]:
    """By kind, pairs of a file and a sentence."""
    found: dict[str, list[tuple[str, str]]] = {"docstring": [], "error": [], "page": []}
    for path in sorted((ROOT / "dpppl").rglob("*.py")):
        tree, name = ast.parse(path.read_text()), str(path.relative_to(ROOT))
        found["docstring"] += [(name, sentence) for sentence in docstrings(tree)]
        found["error"] += [(name, sentence) for sentence in errors(tree)]
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        if "_build" not in path.parts:
            found["page"] += [(str(path.relative_to(ROOT)), sentence) for sentence in prose(path.read_text())]
    return found


def drawn(seed: int) -> list[tuple[str, str, str]]:
    """Ten sentences (kind, file, sentence), each of a kind at random."""
    rng, found = random.Random(seed), all_sentences()
    kinds = [rng.choice(list(found)) for _ in range(NUMBER)]
    return [(kind, *rng.choice(found[kind])) for kind in kinds]


if __name__ == "__main__":
    for number, (kind, file, sentence) in enumerate(drawn(int(sys.argv[1])), start=1):
        print(f"{number}. {sentence}\n   ({kind}, {file})")
