"""From the releases of a run to its verdict and samples, without a look at private values."""

from dataclasses import replace
from typing import Any

import numpy as np

from dpppl.model import supports
from dpppl.model.initialization import prior_draws
from dpppl.noise_aware import posterior
from dpppl.noise_aware.binding import Bound
from dpppl.noise_aware.posterior import Mixture
from dpppl.noise_aware.recipe import run_recipe
from dpppl.noise_aware.releases import Released
from dpppl.noise_aware.settings import NoiseAwareSettings
from dpppl.noise_aware.verdict import Verdict
from dpppl.report.learned import Learned
from dpppl.runs.driver import TRACING


def staged(settings: NoiseAwareSettings, bound: Bound, releases: Released, ask: Any) -> Any:
    """The stages of a run and its scalars: see `run_recipe`."""
    plan = settings._plan(bound.coordinates.dimension)
    arguments = releases.scale, releases.prior, settings.bounds, bound.split.num_rows, bound.responses.redrawn
    return run_recipe(ask, plan, *arguments, settings._most_scores, settings._is_robust)


def concluded(
    settings: NoiseAwareSettings, bound: Bound, releases: Released, found: Any, key: Any, is_modelled: bool
) -> tuple[Mixture, Verdict, dict[str, Any]]:
    """The posterior, the verdict on it, and samples by site.

    - **settings**, **bound**, **releases** - of the run.
    - **found** - what `staged` returned.
    - **key** - key of the samples.
    - **is_modelled** - whether the variance of scores is the model's."""
    (stages, scalars), coordinates, prior = found, bound.coordinates, releases.prior
    scalar_std = float(settings._plan(coordinates.dimension).noise_multipliers(releases.scale)[-1])
    mixture = Mixture.of(stages[-1].modelled if is_modelled else stages[-1].surrogate, prior)
    names, num_rows = coordinates.names(), bound.split.num_rows
    verdict = Verdict.of(stages, mixture.moments(), scalars, scalar_std, prior, names, num_rows)
    with TRACING:
        z, problem = posterior.draw(coordinates, mixture, releases.is_normal, bound.public, key, settings.num_samples)
        beyond = {site: z[site] for site in coordinates.split.latents if site not in coordinates.sites}
        expected = prior_draws(coordinates.split, bound.public, is_constrained=False) if beyond else {}
        words = {s: Learned.of(np.asarray(x), float(len(x)), expected[s]).words for s, x in beyond.items()}
        verdict = replace(
            verdict, sampler=problem, beyond=words, through=coordinates.through, symmetric=bound.symmetric,
            codes=supports.codes(bound.split), in_units=settings._rows_per_unit > 1,
            widths=verdict.widths._replace(is_sandwich=settings.width == "sandwich" and not is_modelled),
        )  # fmt: skip
        return mixture, verdict, bound.constrain(z, bound.public)
