"""Words that readers do not understand at first sight stay out of the package, its docs and its README."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN = {
    r"deal\w* (?:\w+ )?out\b|dealt out": "sharded",
    r"\ba (?:budget|name|number) that is none\b": "an invalid budget, an unknown name",
    r"walks? at random": "is a random walk",
    r"\bequal noise on changed data cancels\b": "the noise could be subtracted",
    r"\bin the place of a target\b": "instead of a target",
    r"\bone alone asks nobody\b": "a single process does no communication",
    r"\bof what is no \w+": "name what it is",
    r"\bseveral beside each other\b": "several columns stacked",
    r"\bWhat can go wrong\b": "Exceptions",
    r"\bis that of the way\b": "reflects the transient",
    r"\bas it were\b": "leave it out",
    r"\bwhat .{1,30} (?:is|are) to (?:say|tell)\b": "name the value",
}
"""Patterns, and what to write instead."""
FIRST = r'(?:"""|[.:;] |# |- )(?:What|That of|Of these|Of those|So many|Whoever|Beside)\b'
"""No sentence of the code begins with these words: name the thing."""


def flat(text):
    """A text on one line."""
    return re.sub(r"\s+", " ", re.sub(r'["\']\s*\n\s*f?["\']', "", text))


def found_in(text):
    """The forbidden patterns of a text, over line ends."""
    return [pattern for pattern in FORBIDDEN if re.search(pattern, flat(text))]


@pytest.mark.parametrize("folder, kind", [("dpppl", "*.py"), ("docs", "*.md"), (".", "*.md")])
def test_forbidden_words_are_not_used(folder, kind):
    paths = (ROOT / folder).rglob(kind) if folder != "." else ROOT.glob(kind)
    found = {
        path.name: words for path in paths if path.name != "CHANGELOG.md" and (words := found_in(path.read_text()))
    }
    assert not found, {name: {word: FORBIDDEN[word] for word in words} for name, words in found.items()}


def test_sentences_begin_with_the_thing_they_are_about():
    found = {path.name: re.findall(FIRST + ".{30}", flat(path.read_text())) for path in (ROOT / "dpppl").rglob("*.py")}
    assert not {name: sentences for name, sentences in found.items() if sentences}


def test_they_would_be_found():
    assert found_in("rows are dealt\n    out over devices") and found_in('"a budget that " \n "is none"')
    assert not found_in("rows are sharded over devices")
    assert re.search(FIRST, '"""What a run adds.') and not re.search(FIRST, "# Added by a run; what it costs")
