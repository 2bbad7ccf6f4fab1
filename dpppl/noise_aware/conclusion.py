"""From the releases of a run to its verdict, samples, summary and Bayes factors, without a look at private values."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import print_summary
from numpyro.distributions.transforms import IndependentTransform

from dpppl.errors import ConfigurationError
from dpppl.findings.learned import Learned
from dpppl.findings.verdict import warn_of
from dpppl.model import supports
from dpppl.model.initialization import prior_draws
from dpppl.noise_aware import posterior
from dpppl.noise_aware.binding import BoundModel
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.plan import Ask
from dpppl.noise_aware.recipe import Outcome, run_recipe
from dpppl.noise_aware.releases import Released
from dpppl.noise_aware.settings import NoiseAwareSettings
from dpppl.noise_aware.verdict import HIDDEN, Verdict
from dpppl.runs.driver import TRACING
from dpppl.runs.private_runner import after_run
from dpppl.types import Distribution, Document, Tree
from dpppl.validation import checked, fraction


def print_table(samples: dict[str, Tree], verdict: Verdict, prob: float) -> None:
    """Print NumPyro's summary of samples by site (1, num_samples, ...), the verdict, and what was learned of each latent."""
    print_summary(samples, prob=fraction(prob, name="prob"), group_by_chain=True)
    print(f"verdict: {verdict.line()}")
    for line in [*verdict.refusals, *verdict.doubts][1:] + [*filter(None, [verdict.released])]:
        print(f"verdict: {line}")
    shares = verdict.share_learned()
    for word in ("learned", "partly", "prior"):
        if names := [name for name, found in shares if found == word]:
            shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
            print(f"{word}: {shown}")


def staged(settings: NoiseAwareSettings, bound: BoundModel, releases: Released, ask: Ask) -> Outcome:
    """The stages of a run and its scalars: see `run_recipe`."""
    plan = settings._plan(bound.coordinates.dimension)
    arguments = releases.scale, releases.prior, settings.bounds, bound.split.num_rows, bound.responses.redrawn
    return run_recipe(ask, plan, *arguments, settings._most_scores, added=bound.responses.added)


def concluded(
    settings: NoiseAwareSettings,
    bound: BoundModel,
    releases: Released,
    found: Outcome,
    key: jax.Array,
    is_modelled: bool,
) -> tuple[Mixture, Verdict, dict[str, Tree]]:
    """The posterior, the verdict on it, and samples by site."""
    (stages, scalars), coordinates, prior = found, bound.coordinates, releases.prior
    surrogate = stages[-1].modelled if is_modelled else stages[-1].surrogate
    assert surrogate is not None
    mixture = Mixture.of(surrogate, prior)
    names, num_rows = coordinates.names(), bound.split.num_rows
    verdict = Verdict.from_releases(stages, mixture.moments(), scalars, prior, names, num_rows)
    with TRACING:
        z, problem = posterior.draw(coordinates, mixture, releases.is_normal, bound.public, key, settings.num_samples)
        beyond = {site: z[site] for site in coordinates.split.latents if site not in coordinates.sites}
        expected = prior_draws(coordinates.split, bound.public, is_constrained=False) if beyond else {}
        words = {s: Learned.of(np.asarray(x), float(len(x)), expected[s]).words for s, x in beyond.items()}
        verdict = replace(
            verdict, sampler=problem, beyond=words, sites=coordinates.site_of, through=coordinates.through,
            symmetric=bound.symmetric, unnamed=bound.unnamed,
            codes=supports.codes(bound.split), in_units=settings._rows_per_unit > 1,
            has_columns=verdict.hidden < HIDDEN or bound.split.has_columns,
            widths=verdict.widths._replace(is_sandwich=settings.width == "sandwich" and not is_modelled),
        )  # fmt: skip
        return mixture, verdict, bound.constrain(z, bound.public)


@checked
def bayes_factor(
    noise_aware: NoiseAwareSettings, element: str, value: float = 0.0, *, allow_unconverged: bool = False
) -> float:
    """Compute the Bayes factor of the point null `element` = `value` against the model; above 1 it favours the null.

    The ratio of posterior to prior density at the value (Dickey 1971), both in closed form: the posterior is a mixture of
    normal laws and counts the privacy noise. Free: a function of the releases and public values.

    - **element** - a latent, with its index where it is an array: "mu", "weights[2]", "w[0,1]".
    - **value** - the null's value, in the latent's own unit.
    - **allow_unconverged** - whether to answer without an UnconvergedWarning where the verdict refuses the posterior.

    Assumes that nuisance latents have the same prior under the null as in the model given the null. Of many elements some look
    significant by chance: give each null higher prior odds, or use `uncertainty.discoveries`.
    Raises ConfigurationError before `run`, and for a model whose unconstrained priors are not normal."""
    name = "bayes_factor"
    mixture, verdict = after_run(noise_aware._mixture, name), after_run(noise_aware._verdict, name)
    coordinates, releases = after_run(noise_aware._coordinates, name), after_run(noise_aware._releases, name)
    names = coordinates.names()
    if not releases.is_normal or element not in names:
        known = f"elements: {', '.join(names[:6])}" if releases.is_normal else "the coordinates have other priors"
        raise ConfigurationError(
            f"bayes_factor needs the name of a latent's element, in a model whose priors are all normal (or log-normal); {known}."
        )
    warn_of(verdict.refusals, "bayes_factor(..., allow_unconverged=True)", allow_unconverged)
    number, prior = names.index(element), releases.prior
    split, site, transforms = coordinates.split, coordinates.site_of[element], {}

    def visit(site: Document, transform: Distribution) -> Tree:
        transforms[site["name"]] = transform
        return jnp.zeros(split.latents[site["name"]].shape)

    with TRACING:
        split.visit_latents(visit, split.placeholder_public() if releases.public is None else releases.public)
        transform = transforms[site]
        while isinstance(transform, IndependentTransform):
            transform = transform.base_transform
        if transform.domain.event_dim:
            raise ConfigurationError(
                f"the elements of '{site}' depend on each other: bayes_factor has no value for one alone."
            )
        place = float(transform.inv(jnp.asarray(value, float)))
    if not np.isfinite(place):
        raise ConfigurationError(f"value is outside the support of '{site}'.")
    variance = float(prior.variance[number])
    before = -0.5 * ((place - prior.mean[number]) ** 2 / variance + np.log(2.0 * np.pi * variance))
    return float(np.exp(mixture.log_density(number, place) - before))
