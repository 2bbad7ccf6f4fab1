"""A report, an audit, a likelihood or a table of priors as a page of HTML that loads nothing: one template, and charts."""

import io
from collections.abc import Mapping
from typing import Any

from dpppl.contrib.audit.result import AuditResult
from dpppl.contrib.plotting.axes import BLUE, GREY
from dpppl.contrib.plotting.posteriors import posteriors_by_name
from dpppl.contrib.plotting.privacy import attack_picture
from dpppl.errors import ConfigurationError
from dpppl.findings.finding import Verdict
from dpppl.published.likelihood import Likelihood
from dpppl.published.priors import Sensitivity
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
_TEMPLATES.filters |= {"percent": percent, "sentence": lambda text: f"{text[:1].upper()}{text[1:].removesuffix('.')}."}
_TEMPLATES.filters["number"] = lambda value: "no bound" if isinstance(value, str) else f"{value:.4g}"


@checked
def to_html(
    found: PrivacyReport | AuditResult | Likelihood | Sensitivity, about: Mapping[str, str] | None = None,
    verdict: Verdict | None = None,
) -> str:  # fmt: skip
    """Lay out a page of HTML that needs nothing else, for screens in light and dark, phones, and paper.

    - **found** - the report of a run, a plan or a query; the result of an audit; a published likelihood, or a pool of several; or
      posteriors under several priors.
    - **about** - of a report, what only people know, by the names in `dpppl.report.render.ABOUT`; what is missing is marked open.
    - **verdict** - of the run, `mcmc.verdict` or `result.verdict`: it says what may be concluded. A report of NoiseAware has it.
    """
    if isinstance(found, PrivacyReport):
        return page(found.to_dict(about), None if verdict is None else verdict.line())
    if isinstance(found, Likelihood):
        return _page(title="Published likelihood", headline=found.headline, rows=found.rows, figures=[])
    if isinstance(found, Sensitivity):
        rows = [(f"{r.element}, {r.prior}", " | ".join(cells[2:])) for r, cells in zip(found.rows, found.cells[1:])]
        rows = [("element, prior", " | ".join(found.cells[0][2:])), *rows, *found.findings]
        size = 1.1 + 0.2 * (1 + len(found.samples)) * len(found.rows) / len(found.samples)
        drawn = posteriors_by_name(found.samples, level=found.prob, axes=_axes(height=size))
        figures = [(_svg(drawn), "Where priors disagree, the data decided little.")]
        headline = f"Posteriors under the priors {', '.join(found.samples)}"
        return _page(title="Priors compared", headline=headline, rows=rows, figures=figures)
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
    noise = " ".join(line for line in document["assumptions"] if "noise" in line.lower() or "keys" in line)
    title = f"Privacy report: {document.get('name') or document['method']}"
    return _page(**document, title=title, figures=figures, questions=ABOUT, implementation=noise, verdict=verdict)


def _page(**content: Any) -> str:
    return _TEMPLATES.get_template("page.html.jinja").render(content)


def _axes(height: float = 3.0, **settings: Any) -> Any:
    axes = Figure(figsize=(4.6, height), layout="constrained").subplots()
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
