"""A report and an audit as pages of HTML that load nothing."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpppl.contrib import charts
from dpppl.report.render import ABOUT, Rows, html_list, html_table, html_words
from dpppl.report.report import PrivacyReport
from dpppl.types import Document
from dpppl.validation import checked

_NIST = (
    "Near, Darais, Lefkovitz, Howarth: Guidelines for Evaluating Differential Privacy Guarantees (2025), the pyramid from the "
    "guarantee to the collection of data. Questions that a program cannot answer are open."
)
_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--soft:#57606a;--rule:#d0d7de;--mark:#0a58a8;--warn:#9a3412}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#11151a;--soft:#9aa4af;--rule:#343b44;--mark:#6cb2ff;
--warn:#ffa657}}
*{box-sizing:border-box}body{margin:0 auto;padding:1.2rem 1rem 3rem;max-width:56rem;background:var(--paper);
color:var(--ink);font:1rem/1.5 system-ui,sans-serif}h1{font-size:1.6rem;line-height:1.25;margin:.4rem 0}
h2{font-size:1.2rem;margin:2rem 0 .5rem}.headline{font-size:1.25rem;line-height:1.4;border-left:.3rem solid var(--mark);
padding:.2rem 0 .2rem .9rem;margin:1rem 0}.soft,figcaption{color:var(--soft)}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem .35rem 0;border-bottom:1px solid var(--rule);
overflow-wrap:anywhere}th{font-weight:600;width:30%;min-width:8.4rem;overflow-wrap:normal}.charts{display:grid;gap:1.2rem;
grid-template-columns:repeat(auto-fit,minmax(min(20rem,100%),1fr))}figure{margin:0}svg{width:100%;height:auto;
fill:none;stroke:none}svg text{fill:var(--ink);font-size:12px}.grid{stroke:var(--rule)}.line{stroke:var(--mark);
stroke-width:2.5}.guess{stroke:var(--soft);stroke-dasharray:5 4}.attack{stroke:var(--warn);stroke-width:2}
.warnings li{color:var(--warn)}.open{color:var(--warn)}
li{margin:.25rem 0}@media print{:root{--ink:#000;--paper:#fff;--soft:#333;--rule:#999;--mark:#000;--warn:#000}
body{max-width:none;padding:0;font-size:10pt}figure,tr,li{break-inside:avoid}h2{break-after:avoid}}
"""


@checked
def to_html(report: PrivacyReport, about: Mapping[str, str] | None = None) -> str:
    """Lay a report out as a page of HTML that needs nothing else: for screens in light and dark, for phones, and for paper.

    - **report** - of a run, a plan or a query.
    - **about** - what only people know, by the names in `dpppl.report.render.ABOUT`; what is missing is marked open.
    """
    return page(report.to_dict(about))


def sections_of(document: Document) -> list[tuple[str, list[str]]]:
    """Titles and sentences below the rows."""
    titled = [("Warnings", "warnings"), ("Assumptions", "assumptions"), ("Not covered", "not_covered")]
    return [(title, document[name]) for title, name in titled if document[name]]


def page(document: Document) -> str:
    """A page that needs nothing else, from a report's `to_dict()`."""
    warnings = [(title, lines) for title, lines in sections_of(document) if title == "Warnings"]
    others = [(title, lines) for title, lines in sections_of(document) if title != "Warnings"]
    about, comparisons = document["about"], document["comparisons"]
    parts = [
        f"<h1>Privacy report: {html.escape(document['method'])}</h1>",
        f'<p class="headline">{html_words(document["headline"])}</p>',
        f'<p class="soft">{html.escape(_caption(document))}</p>',
        *(f'<section class="warnings"><h2>{title}</h2>{html_list(lines)}</section>' for title, lines in warnings),
        f"<h2>The guarantee and its conditions</h2>{html_table(document['rows'])}",
        f'<h2>What an attack can achieve</h2><div class="charts">{_charts(document["risk"])}</div>',
        "<h2>Parts, groups, fewer steps, no sampling</h2>",
        f'<p class="soft">Epsilon at delta {comparisons["delta"]:g}.</p>{html_table(_compared(comparisons))}',
        *(f"<h2>{title}</h2>{html_list(lines)}" for title, lines in others),
        "<h2>For people to answer</h2>",
        '<p class="soft">No program can know this.</p>',
        html_table([(ABOUT[name], about[name] or "open") for name in ABOUT]),
        "<h2>What NIST SP 800-226 asks</h2>",
        f'<p class="soft">{_NIST}</p>{html_table(nist(document))}',
        f"<h2>Versions</h2>{html_table(list(document['versions'].items()))}",
    ]
    return _framed(f"Privacy report: {document['method']}", parts)


def audit_page(
    title: str,
    headline: str,
    rows: Rows,
    curve: tuple[Sequence[float], Sequence[float]],
    points: Sequence[tuple[float, float]],
) -> str:
    """A page of an audit, which needs nothing else.

    - **title**, **headline**, **rows** - name, finding (a sentence) and table.
    - **curve** - false and true positive rates of the account's trade-off curve.
    - **points** - pairs of these rates of the attack."""
    shares = [(i / 5, f"{20 * i} %") for i in range(6)]
    alarms, found = zip(*sorted(points))
    lines: Any = [("guess", (0, 1), (0, 1)), ("line", *curve), ("attack", alarms, found)]
    chart = charts.line_chart(
        "Rates of the attack and of the account", lines, ("false alarms", "canaries found"), (shares, shares)
    )
    figure = _figure(chart, "Thin: the attack. Thick: no attack is above it but by chance. Dashes: mere guessing.")
    words = f'<h1>{html.escape(title)}</h1><p class="headline">{html_words(headline)}</p>'
    return _framed(title, [words, html_table(rows), f'<div class="charts">{figure}</div>'])


def _framed(title: str, parts: Sequence[str]) -> str:
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>"
    )
    return f"{head}<body><main>{''.join(parts)}</main></body></html>"


def nist(document: Document) -> list[tuple[str, str]]:
    """Questions for whoever evaluates a claim of differential privacy, each answered or open."""
    rows, about = dict(document["rows"]), document["about"]
    said = lambda name: about[name] or "open"  # noqa: E731
    implementation = "; ".join(line for line in document["assumptions"] if "noise" in line.lower() or "keys" in line)
    composed = f"{document['num_accesses']} accesses, accounted together"
    epsilon = "no delta was chosen" if document["epsilon"] is None else f"{rows['epsilon']} at delta {rows['delta']}"
    return [
        (
            "Which definition, between which data sets?",
            f"Approximate differential privacy: {rows['neighbouring data sets']}",
        ),
        ("What is the unit of privacy?", rows["unit of privacy"]),
        ("Which epsilon and delta?", epsilon),
        ("Why are they small enough?", said("justification")),
        ("Who is trusted?", rows["trust"] + ("" if about["actors"] is None else f". {about['actors']}")),
        (
            "How does it compose with other releases?",
            f"{composed}. {document['ledger'] or 'No ledger counts other releases: open'}",
        ),
        (
            "Which mechanism, and how is sensitivity bounded?",
            f"Gaussian noise {rows['noise multiplier']}; {rows['clipping']}",
        ),
        ("How are noise, randomness and rounding implemented?", implementation),
        ("Which hazards does the guarantee leave?", "; ".join(document["not_covered"])),
        ("How useful are the results, and for whom are they worse?", "open"),
        ("Was the choice of data and settings accounted for?", said("preprocessing")),
        ("How were the data collected, and who may see them?", "open"),
    ]


def _caption(document: Document) -> str:
    """The runs, their data, and when they ran."""
    about, status = document["about"], document["provenance"]["status"]
    return "; ".join([status[0].upper() + status[1:], *(about[name] for name in ("data_name", "date") if about[name])])


def _compared(comparisons: Document) -> list[tuple[str, str]]:
    grown = [
        f"{_number(point['epsilon'])} after {100 * point['share_of_steps']:g} %" for point in comparisons["growth"]
    ]
    of = "rows of one person" if comparisons["groups_of"] == "row" else "units together"
    parts = comparisons["parts"]
    return [
        *(
            (f"{p['part']}", f"{_number(p['epsilon'])} alone, {100 * p['share']:.3g} % of all")
            for p in parts
            if len(parts) > 1
        ),
        *((f"{group['rows']} {of}", _number(group["epsilon"])) for group in comparisons["groups"]),
        ("as steps are taken", ", ".join(grown)),
        ("if each step used every row", _number(comparisons["without_amplification"])),
    ]


def _number(value: float | str) -> str:
    return "no bound" if isinstance(value, str) else f"{value:.4g}"


def _charts(risk: Document) -> str:
    """The trade-off curve, and epsilon(delta)."""
    shares = [(i / 5, f"{20 * i} %") for i in range(6)]
    rates = risk["trade_off"]
    errors = charts.line_chart(
        "Least share of used records that an attack misses, by its share of false alarms",
        [("guess", (0, 1), (1, 0)), ("line", rates["false_positive_rate"], rates["false_negative_rate"])],
        ("false alarms", "used records missed"),
        (shares, shares),
    )
    figures = [_figure(errors, "No attack on one record is below the line; mere guessing is on the dashed one.")]
    deltas, epsilons = risk["epsilon_of_delta"]["delta"], risk["epsilon_of_delta"]["epsilon"]
    if deltas:
        costs = charts.line_chart(
            "epsilon by delta",
            [("line", [math.log10(delta) for delta in deltas], epsilons)],
            ("delta", "epsilon"),
            ([(power, f"1e{power}") for power in range(-10, 1, 2)], charts.rising_ticks(max(epsilons))),
        )
        figures.append(_figure(costs, "Each point is a guarantee; all hold at once."))
    return "".join(figures)


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"
