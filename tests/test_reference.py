"""Each public name has an entry in the reference and an example that runs: a doctest, or a cell of a page that the site runs."""

import re
from pathlib import Path

import pytest
from pages import cells

import dpppl
from dpppl import accounting, information_flow
from dpppl.contrib import audit, plotting, synthetic, uncertainty

ROOT = Path(__file__).resolve().parents[1]
MODULES = (dpppl, accounting, audit, information_flow, plotting, synthetic, uncertainty)
NAMES = [(module.__name__, name) for module in MODULES for name in module.__all__]
_PROMPT = re.compile(r"^\s*(?:>>>|\.\.\.) ?(.*)$", re.MULTILINE)


def examples(text):
    """The code of a text that is run: lines after a prompt, and cells."""
    return "\n".join(_PROMPT.findall(text) + cells(text))


def without_example(names, code):
    """Those names that the code does not use."""
    used = set(re.findall(r"\w+", code))
    return [name for name in names if name[1] not in used]


@pytest.fixture(scope="module")
def code():
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "dpppl").rglob("*.py"),
    ]
    return "\n".join(examples(path.read_text()) for path in pages)


def test_each_name_has_an_example(code):
    assert not without_example(NAMES, code)
    assert without_example([("dpppl", "no_such_name")], code)
    assert examples("x = 1\n>>> y = 2\n... z\n```{code-cell} ipython3\nw\n```\n") == "y = 2\nz\nw\n"


def test_each_name_is_in_the_reference():
    text = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    submodules = {module.__name__.partition(".")[2] for module in MODULES}
    entries = {
        (f"dpppl.{module}".rstrip("."), name) for module, name in re.findall(r"dpppl\.(?:([\w.]+)\.)?(\w+)\n", text)
    }
    entries |= {("dpppl", name) for name in re.findall(r"\w+(?:Error|Warning)", text)}
    assert not [n for n in NAMES if n not in entries and n[1] not in submodules]


def test_each_error_has_a_code_of_its_own_that_the_page_explains():
    page, kinds = (ROOT / "docs/reference/errors.md").read_text(), dpppl.DPPPLError.__subclasses__()
    assert len({kind.code for kind in kinds}) == len(kinds) >= 9 and "DP00" not in {kind.code for kind in kinds}
    assert [k.__name__ for k in kinds if f"## {k.code} {k.__name__}\n" not in page] == []
    assert dpppl.LedgerError("gone").__notes__ == ['[DP05: see "Errors" in the documentation of dpppl]']
