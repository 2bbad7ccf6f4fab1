"""A draft card for OpenDP's registry of deployments (github.com/opendp/deployments-registry-data, schema of July 2026)."""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from dpppl.errors import ConfigurationError
from dpppl.report.report import PrivacyReport
from dpppl.types import Document
from dpppl.validation import checked

TO_BE_STATED = "To be stated: "
_DOMAIN = "Rows of arrays, each row independent of the others given the model; their number is {number}."
_UNPROTECTED = "The number of rows, array shapes, hyperparameters, the model's code, and running time."


@checked
def card(
    report: PrivacyReport, about: Mapping[str, str], *, curators: Sequence[str] = (), region: str | None = None
) -> dict[str, Any]:
    """Draft a card for OpenDP's registry of deployments; JSON of it is the YAML that is asked for.

    - **report** - of a run or a plan, with a finite epsilon.
    - **about** - what only people know, by the names in `dpppl.report.render.ABOUT`; with a date.
    - **curators** - who publishes.
    - **region** - whose data, a country, say.

    A field that nobody stated begins with "To be stated". Raises ConfigurationError without a date, or without a finite epsilon.
    """
    document = report.to_dict(about)
    about, product = document["about"], _product(document)
    if document["delta"] is None or not isinstance(document["epsilon"], float):
        raise ConfigurationError("a card states a finite epsilon at a delta: give the run target_delta, and noise.")
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", product.lower()).strip("-"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": product,
                "data_curators": list(curators) or [f"{TO_BE_STATED}who publishes it."],
                "description": document["headline"],
                "intended_use": _said(about["purpose"], "what the results are for."),
                "data_product_type": "Machine learning model",
                "data_product_region": _said(region, "whose region the data describe."),
                "publication_date": _date(about["date"]),
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": _DOMAIN.format(
                    number="public" if document["num_rows"] is None else document["num_rows"]
                ),
                "unprotected_quantities": " ".join([_UNPROTECTED, *document["assumed_public"]]),
            },
            "privacy_loss": {
                "privacy_unit": document["unit"],
                "privacy_unit_details": _row(document, "neighbouring data sets"),
                "privacy_parameters": {"epsilon": document["epsilon"], "delta": document["delta"]},
                "privacy_parameters_details": f"Accountant: {document['accountant']}. mu: {_row(document, 'mu')}.",
            },
            "deployment_model": {
                "model_name": "Central",
                "actors": _said(
                    about["actors"], "who holds the data, who sees the results, and who is trusted with what."
                ),
                "release_type": "One release",
                "release_type_details": "What else is released from the same data adds to this.",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": "All that is computed from the noisy sums: samples, parameters, predictions, this card.",
                "composition": f"{document['num_accesses']} accesses, composed as one plan. {document['ledger'] or ''}".strip(),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": about["preprocessing"]
                or f"Not accounted for: {document['not_covered'][0]}.",
                "mechanisms": _mechanisms(document),
                "justification": _said(about["justification"], "why these numbers are acceptable here."),
            },
            "administrative": {"registry_authors": list(curators) or ["drafted by dpppl"]},
        },
    }


def _product(document: Document) -> str:
    name = document["about"]["data_name"]
    return f"Bayesian inference by {document['method']}" + ("" if name is None else f" on {name}")


def _said(given: str | None, what: str) -> str:
    return TO_BE_STATED + what if given is None else given


def _row(document: Document, name: str) -> str:
    return dict(document["rows"])[name]


def _date(given: str | None) -> str:
    try:
        return date.fromisoformat(given or "").isoformat()
    except ValueError:
        raise ConfigurationError('a card has a date: about={"date": "YYYY-MM-DD"}.') from None


def _mechanisms(document: Document) -> str:
    """The noise's mechanism, its library, and the measures against floating-point leaks."""
    noise = next(line for line in document["assumptions"] if "noise" in line)
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    facts = (document["mechanism"]["clipping"], document["mechanism"]["subsampling"])
    multiplier = _row(document, "noise multiplier")
    return f"Gaussian mechanism on sums of clipped rows: {'; '.join(facts)}; noise multiplier {multiplier}. {noise} {versions}."
