"""Samples and report for ArviZ."""

from collections.abc import Mapping
from typing import Any

from dpppl.report.report import PrivacyReport


def to_inference_data(posterior: Mapping[str, object], report: PrivacyReport, **groups: Any) -> Any:
    """InferenceData (ArviZ 1: a DataTree) with the report as attributes, no observed data: those would be private rows."""
    import arviz

    attributes = {"inference_library": "dpppl", "privacy_report": report.to_json(), "epsilon": str(report.epsilon)}
    groups = {"posterior": dict(posterior)} | groups
    if arviz.__version__.startswith("0."):
        from dpppl.report.inference_data import PrivateInferenceData

        found = arviz.from_dict(**groups, attrs=attributes)
        found.__class__ = PrivateInferenceData
        return found
    return arviz.from_dict(groups, attrs={"/": attributes} | dict.fromkeys(groups, attributes))
