"""Samples and report for ArviZ."""

from collections.abc import Mapping, Sequence

import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.report.labels import Labels
from dpppl.report.report import PrivacyReport
from dpppl.types import Document, Foreign, Tree


def halves(draws: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Independent draws by site, (S, ...), as two chains (2, S / 2, ...), which ArviZ's r-hat needs; as one where S is odd."""
    arrays = {site: np.asarray(value) for site, value in draws.items()}
    return {site: x.reshape(1 if len(x) % 2 else 2, -1, *x.shape[1:]) for site, x in arrays.items()}


def to_inference_data(
    posterior: Mapping[str, object], report: PrivacyReport, plates: Mapping[str, Sequence[str]],
    coords: Document | None, dims: Document | None, labels: Labels, **groups: Tree,
) -> Foreign:  # fmt: skip
    """InferenceData (ArviZ 1: a DataTree) with the report as attributes, no observed data: those would be private rows.

    - **plates** - by site, names of its leading axes.
    - **coords**, **dims** - as ArviZ takes them; `dims` replaces the names of plates, site by site.
    - **labels** - of elements, where `coords` gives no others.

    Raises ConfigurationError where these do not fit the samples."""
    try:
        import arviz
    except ImportError:
        raise ConfigurationError('to_arviz needs ArviZ: pip install "dpppl[arviz]".') from None
    attributes = {"inference_library": "dpppl", "privacy_report": report.to_json(), "epsilon": str(report.epsilon)}
    groups = dict[str, Tree](posterior=dict(posterior)) | groups
    if not all(given is None or isinstance(given, Mapping) for given in (coords, dims)):
        raise ConfigurationError('coords and dims are dicts: coords={"group": labels}, dims={"effect": ["group"]}.')
    axes = {site: list(names) for site, names in plates.items() if site in posterior}
    own_coords, own_dims = labels.coords(axes, posterior)
    axes, coords = axes | own_dims | dict(dims or {}), own_coords | dict(coords or {})
    shapes = {site: getattr(value, "shape", ())[2:] for site, value in posterior.items()}
    try:
        if any(len(axes[site]) > len(shapes[site]) for site in axes):
            raise ValueError("there are more names than axes")
        if not arviz.__version__.startswith("0."):
            return arviz.from_dict(groups, coords=coords, dims=axes, attrs=dict.fromkeys(["/", *groups], attributes))
        from dpppl.report.inference_data import PrivateInferenceData

        found: Foreign = arviz.from_dict(**groups, coords=coords, dims=axes, attrs=attributes)
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"coords and dims do not fit the samples, whose elements have the shapes {shapes}: {error}. Give one name for each "
            "axis in dims, and as many labels for each name in coords as that axis is long."
        ) from None
    found.__class__ = PrivateInferenceData
    return found
