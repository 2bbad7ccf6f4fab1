"""Logging of a run's report, settings, progress and summaries of releases; never rows, losses or keys.

A record is built from a method's own report and released values alone. Trackers that log a model's call, its data or its losses
(as automatic logging does) publish rows; these functions take nothing but dpppl's objects.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.mcmc.runner import MCMC
from dpppl.noise_aware.runner import NoiseAware
from dpppl.report.report import PrivacyReport
from dpppl.report.risk import risk_numbers
from dpppl.svi.result import SVIResult
from dpppl.svi.runner import SVI
from dpppl.uncertainty.decomposition import by_element
from dpppl.validation import checked

Loggable = MCMC | NoiseAware | SVI | SVIResult
_MOST_METRICS = 200
_LONGEST = 500
_TOLD = (
    "method",
    "neighbouring data sets",
    "unit of privacy",
    "subsampling",
    "clipping",
    "noise multiplier",
    "step size",
)


class Tracker(Protocol):
    """The part of mlflow's interface that is called."""

    def set_tags(self, tags: dict[str, Any]) -> object: ...
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> object: ...
    def log_text(self, text: str, artifact_file: str) -> object: ...


@dataclass(frozen=True, kw_only=True)
class Record:
    """The logged values.

    - **tags** - status and settings, as text; tags, since MLflow refuses to log another value of a parameter.
    - **metrics** - what it cost so far, and posterior means and standard deviations of the first 200 elements: `mean.w.0.1` for
      element [0, 1] of w. A character that MLflow refuses in a name is an underscore.
    - **texts** - files by name: the report as text, JSON and HTML, and all of the summary as CSV.
    - **step** - accesses charged so far, for a metric's step.
    """

    tags: dict[str, str]
    metrics: dict[str, float]
    texts: dict[str, str]
    step: int


@checked
def record(finished: Loggable, about: Mapping[str, str] | None = None) -> Record:
    """All that may be logged of a run, or of one that still runs or was interrupted.

    - **finished** - an MCMC, NoiseAware or SVI, or what SVI.run returned; that has parameters to summarise.
    - **about** - as for `PrivacyReport.to_html`.

    *Guarantee*: a function of what was released and of public values. Raises ConfigurationError for anything else.

    >>> import dpppl
    >>> kernel = dpppl.DPSGLD(lambda y: None, clipping_norm=1.0, noise_multiplier=20.0, step_size=0.01)
    >>> found = record(dpppl.MCMC(kernel, num_warmup=0, num_samples=10, target_delta=1e-5))
    >>> found.tags["method"], found.metrics["epsilon"], sorted(found.texts)
    ('DPSGLD, nothing run', 0.0, ['privacy_report.html', 'privacy_report.json', 'privacy_report.txt', 'summary.csv'])
    """
    if not isinstance(finished, Loggable):
        raise ConfigurationError(
            f"got a {type(finished).__name__}; what may be logged is a dpppl.MCMC, NoiseAware or SVI, or the result of SVI.run: "
            "their reports and released values, and no array of yours."
        )
    report: PrivacyReport = finished.report if isinstance(finished, SVIResult) else finished.privacy_report()
    summary, rows = _summary(_released(finished)), dict(report.rows())
    numbers = {"accesses": float(report.num_accesses)}
    numbers |= {"advantage": report.risk.advantage, "mu": float(risk_numbers(report.risk)["mu"])}
    if report.delta is not None:
        numbers |= {"delta": report.delta, "epsilon": float(report.epsilon or 0.0)}
    shown = {
        f"{kind}.{_allowed(name)}": value
        for name, *two in summary[:_MOST_METRICS]
        for kind, value in zip(("mean", "sd"), two)
    }
    return Record(
        tags={name.replace(" ", "_"): rows[name][:_LONGEST] for name in _TOLD if name in rows}
        | {"status": report.status},
        metrics={name: value for name, value in (numbers | shown).items() if np.isfinite(value)},
        texts={
            "privacy_report.txt": str(report),
            "privacy_report.json": report.to_json(about),
            "privacy_report.html": report.to_html(about),
            "summary.csv": "\n".join(
                ["element,mean,sd", *(f"{json.dumps(n)},{m:.9g},{s:.9g}" for n, m, s in summary), ""]
            ),
        },
        step=report.num_accesses,
    )


@checked
def mlflow(finished: Loggable, tracker: Tracker | None = None, about: Mapping[str, str] | None = None) -> Record:
    """Log `record(finished, about)` to the active MLflow run; call it again for progress, while a run goes on.

    - **tracker** - the `mlflow` module (extra `mlflow`), or an object with its `set_tags`, `log_metrics` and `log_text`;
      None imports it.

    Do not use MLflow's automatic logging with it: it would log what it can reach. Returns the record. Raises
    ConfigurationError without MLflow, and as `record`.
    """
    found = record(finished, about)
    if tracker is None:
        try:
            import mlflow as tracker  # type: ignore[no-redef]
        except ImportError:
            raise ConfigurationError("this needs MLflow: pip install dpppl[mlflow], or give a tracker.") from None
    if tracker is None or not hasattr(tracker, "set_tags"):
        raise ConfigurationError(
            f"tracker is a {type(tracker).__name__}; give the mlflow module, or an object with set_tags, log_metrics, log_text."
        )
    tracker.set_tags(found.tags)
    tracker.log_metrics(found.metrics, step=found.step)
    for name, text in found.texts.items():
        tracker.log_text(text, name)
    return found


def _released(finished: Any) -> dict[str, Any]:
    """Samples (draws, ...), or parameters (1, ...), by name; nothing where nothing has run."""
    if isinstance(finished, SVIResult):
        return {
            name: np.asarray(value)[None] for name, value in finished.averaged_params(allow_unconverged=True).items()
        }
    if isinstance(finished, SVI):
        return {}
    try:
        return dict(finished.get_samples(allow_unconverged=True))
    except ConfigurationError:  # not run yet
        return {}


def _summary(released: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Name, mean and standard deviation of each element."""
    elements = by_element(released, like={site: released[site] for site in sorted(released)})
    return [(name, float(draws.mean()), float(draws.std())) for name, draws in elements.items()]


def _allowed(name: str) -> str:
    """The name of an element in the letters that MLflow allows.

    >>> _allowed("w[0, 1]"), _allowed("auto_loc$params")
    ('w.0.1', 'auto_loc_params')
    """
    return re.sub(r"[^\w.\- :]", "_", name.replace("[", ".").replace(", ", ".").replace("]", ""))
