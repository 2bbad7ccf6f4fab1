"""A report or an audit as a page of HTML that loads nothing: one template, and charts by matplotlib."""

import io
from collections.abc import Mapping
from typing import Any

from dpppl.contrib.audit.result import AuditResult
from dpppl.contrib.plotting.axes import BLUE, GREY
from dpppl.contrib.plotting.privacy import attack_picture
from dpppl.errors import ConfigurationError
from dpppl.findings.verdict import Verdict
from dpppl.report.render import ABOUT
from dpppl.report.report import PrivacyReport
from dpppl.report.risk import percent
from dpppl.types import Document
from dpppl.validation import a, checked

try:
    import jinja2
    import markupsafe
    import matplotlib
    from matplotlib.figure import Figure
except ImportError:
    raise ConfigurationError('pages need jinja2 and matplotlib: pip install "dpppl[pages]".') from None

_TEMPLATES = jinja2.Environment(loader=jinja2.PackageLoader("dpppl.contrib"), autoescape=True)
_TEMPLATES.filters["words"] = lambda text: markupsafe.escape(text).replace(" %", markupsafe.Markup("&nbsp;%"))
_TEMPLATES.filters["percent"] = percent
_TEMPLATES.filters["number"] = lambda value: "no bound" if isinstance(value, str) else f"{value:.4g}"


@checked
def to_html(
    found: PrivacyReport | AuditResult, about: Mapping[str, str] | None = None, verdict: Verdict | None = None
) -> str:
    """Lay a report or an audit out as a page of HTML that needs nothing else, for screens in light and dark, phones, and paper.

    - **found** - the report of a run, a plan or a query, or the result of an audit.
    - **about** - of a report, what only people know, by the names in `dpppl.report.render.ABOUT`; what is missing is marked open.
    - **verdict** - of the run, `mcmc.verdict` or `result.verdict`: it says what may be concluded. A report of NoiseAware has it.
    """
    if isinstance(found, PrivacyReport):
        return page(found.to_dict(about), None if verdict is None else verdict.line())
    if not isinstance(found, AuditResult):
        raise ConfigurationError(f"found is {a(type(found).__name__)}; give privacy_report() of a run, or audit(...).")
    figure = _svg(attack_picture(found, axes=_axes())), "Points above the line refute the account, unless by chance."
    return _page(title=f"Audit: {found.audited}", headline=found.headline, rows=found.rows, figures=[figure])


def page(document: Document, verdict: str | None = None) -> str:
    """Lay out a report's `to_dict()`, also one that was read from its JSON; `verdict`: the line of the run's verdict."""
    rates, costs = document["risk"]["trade_off"], document["risk"]["epsilon_of_delta"]
    errors = _axes(xlabel="false alarms, share", ylabel="used records missed, share")
    errors.plot([0, 1], [1, 0], color=GREY, linestyle="--")
    errors.plot(rates["false_positive_rate"], rates["false_negative_rate"], color=BLUE)
    figures = [(_svg(errors), "No attack on one record is below the line; mere guessing is on the dashed one.")]
    if costs["delta"]:
        axes = _axes(xscale="log", xlabel="delta", ylabel="epsilon")
        axes.plot(costs["delta"], costs["epsilon"], color=BLUE)
        figures.append((_svg(axes), "Each point is a guarantee; all hold at once."))
    noise = "; ".join(line for line in document["assumptions"] if "noise" in line.lower() or "keys" in line)
    title = f"Privacy report: {document.get('name') or document['method']}"
    return _page(**document, title=title, figures=figures, questions=ABOUT, implementation=noise, verdict=verdict)


def _page(**content: Any) -> str:
    return _TEMPLATES.get_template("page.html.jinja").render(content)


def _axes(**settings: Any) -> Any:
    axes = Figure(figsize=(4.6, 3.0), layout="constrained").subplots()
    axes.set(**settings)
    axes.grid(alpha=0.3)
    return axes


def _svg(axes: Any) -> markupsafe.Markup:
    """The figure as SVG: text as text, black as the page's ink, nothing from outside, the same at each call."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dpppl"}):
        nameless = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        axes.figure.savefig(text, format="svg", transparent=True, metadata=nameless)
    svg = text.getvalue()
    return markupsafe.Markup(svg[svg.index("<svg") :].replace("#000000", "currentColor"))
