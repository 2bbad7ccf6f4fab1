"""The list of mutants that no test can kill: each is in the code as it is, and says why."""

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("mutants", ROOT / "benchmarks" / "privacy" / "mutants.py")


@pytest.fixture(scope="module")
def mutants():
    module = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(module)
    return module


def missing(mutants, rows):
    """Rows whose line is not in the function that they name, which change nothing, or which give no reason."""
    found = []
    for (file, function, before, after), reason in rows.items():
        source = (ROOT / file).read_text() if (ROOT / file).exists() else ""
        spans = {name: (first, last) for first, last, name in mutants.places(ast.parse(source))}
        first, last = spans.get(function, (1, 0))
        text = " ".join(line.strip() for line in source.split("\n")[first - 1 : last])
        if before not in text or before == after or len(reason.split()) < 4:
            found.append((file, function, before))
    return found


def test_each_mutant_that_is_listed_is_in_the_code_as_it_is(mutants):
    rows = mutants.equivalent()
    assert not missing(mutants, rows)
    name, reason = ("dpppl/runs/budget.py", "Account.admit", "no such line", "pass"), "a reason of enough words"
    assert missing(mutants, {name: reason}) == [name[:3]]
    assert missing(mutants, {(name[0], "Budget.gone", *name[2:]): reason}) == [(name[0], "Budget.gone", name[2])]


def test_faults_that_cosmic_ray_does_not_plant(mutants):
    """Elements, arguments, statements and conditions left out."""
    source = "def f(a):\n    if a > 1 and a:\n        a.x = max(a, 2)\n    g(a, by=2)\n    return (a, 3)\n"
    lines = source.encode().split(b"\n")
    offsets = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]
    made = set()
    for node, text in mutants.own(ast.parse(source)):
        span = (
            node
            if isinstance(node, tuple)
            else ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        )
        first, last = (offsets[line - 1] + column for line, column in span)
        changed = source[:first] + text + source[last:]
        compile(changed, "a mutant", "exec")
        made |= set(changed.split("\n")) - set(source.split("\n"))
    assert made == {
        "    if True:", "    if False:", "    if a:", "    if a > 1 and a:"[:12] + ":", "        pass", "        a.x = min(a, 2)", "    pass",
        "    g(a)", "    return None", "    return (3)", "    return (a)",
    }  # fmt: skip
