"""A draft card for OpenDP's registry of deployments (github.com/opendp/deployments-registry-data, schema of July 2026)."""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from dpppl.errors import ConfigurationError
from dpppl.report.report import PrivacyReport
from dpppl.validation import checked

TO_BE_STATED = "To be stated: "


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
    if document["delta"] is None or not isinstance(document["epsilon"], float):
        raise ConfigurationError("a card states a finite epsilon at a delta: give the run target_delta, and noise.")
    said, row, mechanism = document["about"], dict(document["rows"]), document["mechanism"]
    try:
        published = date.fromisoformat(said["date"] or "").isoformat()
    except ValueError:
        raise ConfigurationError('a card has a date: about={"date": "YYYY-MM-DD"}.') from None

    def stated(given: str | None, what: str) -> str:
        return TO_BE_STATED + what if given is None else given

    on_data = "" if said["data_name"] is None else f" on {said['data_name']}"
    product = f"Bayesian inference by {document['method']}{on_data}"
    number = "public" if document["num_rows"] is None else document["num_rows"]
    noise = next(line for line in document["assumptions"] if "noise" in line)
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    unprotected = "The number of rows, array shapes, hyperparameters, the model's code, and running time."
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", product.lower()).strip("-"), "status": "Draft", "tier": 3,
        "deployment": {
            "basic": {
                "name": product, "data_curators": list(curators) or [f"{TO_BE_STATED}who publishes it."],
                "description": document["headline"], "intended_use": stated(said["purpose"], "what the results are for."),
                "data_product_type": "Machine learning model", "publication_date": published,
                "data_product_region": stated(region, "whose region the data describe."),
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"Rows of arrays, each row independent of the others given the model; their number is {number}.",
                "unprotected_quantities": " ".join([unprotected, *document["assumed_public"]]),
            },
            "privacy_loss": {
                "privacy_unit": document["unit"], "privacy_unit_details": row["neighbouring data sets"],
                "privacy_parameters": {"epsilon": document["epsilon"], "delta": document["delta"]},
                "privacy_parameters_details": f"Accountant: {document['accountant']}. mu: {row['mu']}.",
            },
            "deployment_model": {
                "model_name": "Central", "data_source_type": "Static", "access_type": "Non-interactive",
                "actors": stated(said["actors"], "who holds the data, who sees the results, who is trusted with what."),
                "release_type": "One release",
                "release_type_details": "What else is released from the same data adds to this.",
            },
            "accounting": {
                "post_processing": "All that is computed from the noisy sums: samples, parameters, predictions, this card.",
                "composition": f"{document['num_accesses']} accesses, composed as one plan. {document['ledger'] or ''}".strip(),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": said["preprocessing"]
                or f"Not accounted for: {document['not_covered'][0]}.",
                "mechanisms": f"Gaussian mechanism on sums of clipped rows: {mechanism['clipping']}; {mechanism['subsampling']}; "
                f"noise multiplier {row['noise multiplier']}. {noise} {versions}.",
                "justification": stated(said["justification"], "why these numbers are acceptable here."),
            },
            "administrative": {"registry_authors": list(curators) or ["drafted by dpppl"]},
        },
    }  # fmt: skip
