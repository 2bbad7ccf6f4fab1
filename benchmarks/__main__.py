"""List all benchmarks, each with the claim that it measures: `python -m benchmarks`."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent


def claims():
    """Paths of benchmarks that are commands, and the first lines of their docstrings."""
    for path in sorted(ROOT.glob("*/*.py")):
        source = path.read_text()
        if 'if __name__ == "__main__"' in source:
            yield path.relative_to(ROOT.parent), ast.get_docstring(ast.parse(source)).splitlines()[0]


if __name__ == "__main__":
    for found, claim in claims():
        print(f"{found}\n    {claim}")
