"""The laws of a model's responses and latents in words, for reports."""

import jax

from dpppl.model import censoring
from dpppl.model.arguments import Arrays
from dpppl.model.split import SplitModel
from dpppl.model.structure import unwrapped
from dpppl.model.supports import first_values
from dpppl.types import Distribution

_POSITIVE = ("Exponential", "Gamma", "HalfCauchy", "HalfNormal", "InverseGamma", "LogNormal", "Pareto", "Weibull")
_WORDS = dict.fromkeys(_POSITIVE, "a positive number") | {
    "Bernoulli": "yes or no", "Beta": "a share", "Binomial": "a number of successes", "Categorical": "one of several categories",
    "Multinomial": "counts by category", "NegativeBinomial2": "a count", "Normal": "a number", "OrderedLogistic":
    "one of several ordered categories", "Poisson": "a count", "StudentT": "a number, with outliers", "Unit": "a term of its own",
    "ZeroInflatedPoisson": "a count, with more zeros",
}  # fmt: skip


def laws(split: SplitModel) -> tuple[str, ...]:
    """For each response and each latent of a model, its law in words; looks at no data."""
    found = dict[str, str]()

    def visit(z: Arrays, row: Arrays, public: Arrays) -> None:
        for name, site in split.visit_observed(lambda site: None, z, row, public, first_values(split)).items():
            if site["type"] == "sample" and not site["infer"].get("is_auxiliary"):
                own = _name(site["fn"])
                words = f"{_WORDS[own]} ({own})" if own in _WORDS else own
                censored = ", censored" if censoring.is_censored(site["fn"]) else ""
                found[name] = f"{name}: {words}{censored}" if site["is_observed"] else f"{name}: prior {own}"

    jax.eval_shape(visit, split.latents, split.row, split.arguments.public)
    return tuple(found.values())


def _name(fn: Distribution) -> str:
    """The name of a law, without its parametrisation and what it is wrapped in."""
    inner = unwrapped(fn)
    inner = unwrapped(inner.base_dist) if censoring.is_censored(fn) else inner
    return type(inner).__name__.removesuffix("Probs").removesuffix("Logits")
