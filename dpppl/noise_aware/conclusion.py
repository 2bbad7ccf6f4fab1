"""From the releases of a run to its verdict, samples and summary, without a look at private values."""

from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from numpyro.diagnostics import print_summary

from dpppl.findings.learned import WORDS, Learned
from dpppl.model.initialization import prior_draws
from dpppl.noise_aware import posterior
from dpppl.noise_aware.binding import BoundModel
from dpppl.noise_aware.bounds import Bounds
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.recipe import RecipeOutcome, run_recipe
from dpppl.noise_aware.settings import NoiseAwareSettings
from dpppl.noise_aware.verdict import NoiseAwareVerdict
from dpppl.report.labels import NO_LABELS, Labels
from dpppl.row_statistics.accesses import Ask
from dpppl.row_statistics.releases import Released
from dpppl.runs.driver import TRACING
from dpppl.types import Tree
from dpppl.validation import fraction


def print_conclusion(
    samples: dict[str, Tree], verdict: NoiseAwareVerdict, prob: float, labels: Labels = NO_LABELS
) -> None:
    """Print NumPyro's summary of samples by site (1, num_samples, ...), the verdict, and what was learned of each latent."""
    print_summary(labels.apart(samples), prob=fraction(prob, name="prob"), group_by_chain=True)
    print(f"verdict: {verdict.line()}")
    for line in [*verdict.refusals, *verdict.doubts][1:] + [*filter(None, [verdict.released])]:
        print(f"verdict: {line}")
    shares = verdict.share_learned()
    for word in WORDS:
        if names := [name for name, found in shares if found == word]:
            shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
            print(f"{word}: {shown}")


def run_recipe_for(
    settings: NoiseAwareSettings, bound: BoundModel, releases: Released, ask: Ask, bounds: Bounds | None = None
) -> RecipeOutcome:
    """Make all accesses of a run: `run_recipe` with its settings. `bounds`: in place of those of the settings."""
    num_rows = bound.split.num_rows
    plan = settings.plan_for(bound.coordinates.dimension, num_rows)
    arguments = releases.scale, releases.prior, bounds or settings.bounds, num_rows, bound.responses.redrawn
    return run_recipe(ask, plan, *arguments, settings.most_scores, bound.responses.added, settings.rows_per_unit)


class DrawnPosterior(NamedTuple):
    """A posterior.

    - **mixture** - of the coordinates; **z** - draws by site, unconstrained, (num_samples, ...).
    - **problem** - what is wrong with the draws, or None.
    - **is_modelled** - whether scores vary as the model has it."""

    mixture: Mixture
    z: dict[str, Tree]
    problem: str | None
    is_modelled: bool


def drawn_posterior(
    settings: NoiseAwareSettings, bound: BoundModel, releases: Released, found: RecipeOutcome, key: jax.Array, is_modelled: bool,
) -> tuple[DrawnPosterior, dict[str, Tree]]:  # fmt: skip
    """The posterior, and samples by site."""
    mixture = Mixture.of(found.modelled if is_modelled else found.surrogate, releases.prior)
    with TRACING:
        sampling = bound.coordinates, mixture, releases.is_normal, bound.public, key, settings.num_samples
        z, problem = posterior.draw(*sampling)
        return DrawnPosterior(mixture, z, problem, is_modelled), bound.constrain(z, bound.public)


def judged(
    settings: NoiseAwareSettings, bound: BoundModel, releases: Released, found: RecipeOutcome, of: DrawnPosterior, labels: Labels
) -> NoiseAwareVerdict:  # fmt: skip
    """The verdict on a posterior, whose coordinates have these labels."""
    coordinates, prior, z = bound.coordinates, releases.prior, of.z
    sites, num_rows = {labels.named(name): site for name, site in coordinates.site_of.items()}, bound.split.num_rows
    codes = bound.codes + (() if settings.weights is None else (settings.weights.code,))
    verdict = NoiseAwareVerdict.from_releases(
        found, of.mixture.moments(), prior, [*sites], num_rows, settings.rows_per_unit
    )
    with TRACING:
        beyond = {site: z[site] for site in coordinates.split.latents if site not in coordinates.sites}
        expected = prior_draws(coordinates.split, bound.public, is_constrained=False) if beyond else {}
        words = {s: Learned.of(np.asarray(x), float(len(x)), expected[s]).words for s, x in beyond.items()}
        return replace(
            verdict, sampler=of.problem, beyond=words, sites=sites, labels=labels, through=coordinates.through,
            symmetric=bound.symmetric, unnamed=bound.unnamed, codes=codes, poisson=bound.poisson,
            widths=verdict.widths._replace(is_sandwich=settings.width == "sandwich" and not of.is_modelled),
        )  # fmt: skip
