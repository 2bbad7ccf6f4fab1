"""A report as text and as a notebook's cell, from the numbers and sentences in it."""

import html
import math
from collections.abc import Mapping, Sequence

import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.output import aligned
from dpppl.types import Tree

SCHEMA_VERSION = "1.0"
ABOUT = {
    "data_name": "What are the data, and whose records are they?",
    "record": "What is one row, and how many rows may one person have?",
    "variables": "What are the variables, in which units?",
    "model": "What does the model say, in words?",
    "purpose": "What are the results for?",
    "actors": "Who holds the data, who sees the results, and who is trusted with what?",
    "justification": "Why are this epsilon and delta, or this advantage, acceptable here?",
    "preprocessing": "What was looked at before this run, and was it accounted for?",
    "usefulness": "How useful are the results, and for whom are they worse?",
    "collection": "How were the data collected, and who may see them?",
    "date": "When was it run or published?",
}
"""Facts that a report cannot know: names, and the questions that their texts answer."""

Rows = Sequence[Sequence[str]]
Sections = Sequence[tuple[str, Sequence[str]]]


def about_of(given: Mapping[str, str] | None) -> dict[str, str | None]:
    """Each name in `ABOUT` with the text that was given, or None. Raises ConfigurationError for other names."""
    if not (given is None or isinstance(given, Mapping)):
        raise ConfigurationError(
            f"about is a {type(given).__name__}; give a dict of texts: about={{'purpose': '...'}}."
        )
    unknown = sorted(set(given or {}) - set(ABOUT))
    if unknown:
        raise ConfigurationError(f"about has the unknown key {', '.join(unknown)}; its keys are {', '.join(ABOUT)}.")
    return {name: (given or {}).get(name) for name in ABOUT}


def json_value(value: object) -> Tree:
    """JSON's form of a value: lists for tuples and arrays, strings for numbers that are not finite."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def table(rows: Rows) -> list[str]:
    """Lines of two columns: names and texts."""
    return [f"  {line}" for line in aligned(rows)]


def text(headline: str, rows: Rows, sections: Sections) -> str:
    """The report as text for terminals."""
    lines = ["Privacy report", headline, *table(rows)]
    for title, sentences in sections:
        lines += [title, *(f"  - {sentence}" for sentence in sentences)]
    return "\n".join(lines)


def summary(headline: str, rows: Rows, sections: Sections, title: str = "Privacy report", is_open: bool = False) -> str:
    """For notebooks: the headline, and all else under a title but for warnings, folded unless it is open."""
    parts = [f"<p><strong>{_words(headline)}</strong></p>"]
    parts += [_list(sentences) for name, sentences in sections if name == "Warnings"]
    parts.append(f"<details{' open' * is_open}><summary>{title}</summary>{_table(rows)}")
    parts += [f"<p>{name}</p>{_list(sentences)}" for name, sentences in sections if name != "Warnings"]
    return "".join(parts) + "</details>"


def cell(words: str, report: str) -> str:
    """For notebooks: an object in words, and the cell of its report."""
    return f"<pre>{html.escape(words)}</pre>{report}"


def _words(sentence: str) -> str:
    """Words as HTML; a number and its % stay on one line."""
    return html.escape(sentence).replace(" %", "&nbsp;%")


def _table(rows: Rows) -> str:
    return "<table>" + "".join(f"<tr><th>{html.escape(n)}</th><td>{_words(t)}</td></tr>" for n, t in rows) + "</table>"


def _list(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{_words(sentence)}</li>" for sentence in sentences) + "</ul>"
