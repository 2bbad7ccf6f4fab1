"""Posteriors under priors that the run did not have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS, Predictive, init_to_median

from dpppl.errors import ConfigurationError
from dpppl.output import aligned
from dpppl.published.records import Owner, wrong
from dpppl.published.supports import Site, coordinates, element_names
from dpppl.types import BySite, Distribution, Function, Numbers, Tree
from dpppl.validation import a

Prior = Mapping[str, Distribution] | Callable[[], object]
_WARMUP, _CHAINS, _MOST_DENSE, _R_HAT, _DIVERGING, _PRIOR_DRAWS = 500, 2, 100, 1.05, 0.02, 1_000


def as_function(sites: Sequence[Site], prior: Tree) -> Function:
    """The prior as a NumPyro model without arguments that returns values by site.

    - **prior** - distributions by site, or a NumPyro model without arguments that has a site of each name.

    Raises ConfigurationError for a prior that lacks a site, or has one of another shape."""
    names = [site.name for site in sites]
    if isinstance(prior, Mapping):
        if set(prior) != set(names):
            raise ConfigurationError(f"a prior has a distribution for each of {names}; got {sorted(map(str, prior))}.")
        laws = {site.name: _fitted(site, prior[site.name]) for site in sites}
        return lambda: {name: numpyro.sample(name, law) for name, law in laws.items()}
    if not callable(prior):
        raise ConfigurationError(
            f"a prior is a dict of distributions by site, or a NumPyro model without arguments; got {a(type(prior).__name__)}."
        )
    given: Function = prior

    def values() -> dict[str, Tree]:
        with handlers.trace() as trace:
            given()
        if missing := [name for name in names if name not in trace]:
            raise ConfigurationError(
                f"the prior has no site for {missing}: name one so, by numpyro.deterministic if need be."
            )
        found = {name: trace[name]["value"] for name in names}
        if wrong := [site for site in sites if np.shape(found[site.name]) != site.shape]:
            shape = np.shape(found[wrong[0].name])
            raise ConfigurationError(
                f"site '{wrong[0].name}' of the prior has shape {shape}; the likelihood's is {wrong[0].shape}."
            )
        return found

    return values


def _fitted(site: Site, law: Distribution) -> Distribution:
    """The law of one element, or of all, as one of all."""
    if not isinstance(law, numpyro.distributions.Distribution):
        raise ConfigurationError(
            f"the prior of site '{site.name}' is {a(type(law).__name__)}; give a NumPyro distribution."
        )
    if law.shape() == site.shape:
        return law.to_event(len(law.batch_shape)) if law.batch_shape else law
    events = len(site.shape) - len(law.event_shape)
    try:
        if events < 0 or site.shape[events:] != law.event_shape:
            raise ValueError
        return law.expand(site.shape[:events]).to_event(events)
    except ValueError:
        raise ConfigurationError(
            f"the prior of site '{site.name}' has shape {law.shape()}, which does not give {site.shape}: expand it."
        ) from None


def sampled(
    sites: Sequence[Site], model: Function, rng_key: jax.Array, num_samples: int
) -> tuple[dict[str, Numbers], str | None]:
    """Draws of all sites of a model, by NUTS, and what is wrong with them, if anything."""
    kernel = NUTS(
        model, dense_mass=sum(site.size for site in sites) <= _MOST_DENSE, target_accept_prob=0.9,
        init_strategy=init_to_median(num_samples=20),
    )  # fmt: skip
    each = -(-num_samples // _CHAINS)
    mcmc = MCMC(
        kernel, num_warmup=_WARMUP, num_samples=each, num_chains=_CHAINS, chain_method="sequential", progress_bar=False
    )
    mcmc.run(rng_key)
    chains = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    diverging = float(np.mean(np.asarray(mcmc.get_extra_fields()["diverging"])))
    with np.errstate(all="ignore"):
        spread = {n: x for n, x in chains.items() if x.size and np.any(np.ptp(x, axis=(0, 1)) > 0.0)}
        r_hat = max((float(np.nanmax(split_gelman_rubin(value))) for value in spread.values()), default=1.0)
    is_right = diverging <= _DIVERGING and r_hat <= _R_HAT
    problem = f"NUTS did not explore this posterior ({diverging:.0%} divergences, split R-hat {r_hat:.2f})"
    return {n: np.concatenate(x)[:num_samples] for n, x in chains.items()}, None if is_right else problem


def far(sites: Sequence[Site], owners: Sequence[Owner], values: BySite) -> list[str]:
    """A sentence for each owner whose looks say nothing of the likelihood where most of these draws lie."""
    from scipy.stats import chi2

    z, found = coordinates(sites, {site.name: values[site.name] for site in sites}), list[str]()
    for mixture, name in ((owner.mixture, owner.facts.name) for owner in owners):
        places = (
            (mixture.distance(z), mixture.reach,
             f"where {name} made no look at its rows, farther away than 99 in 100 draws of its own posterior"),
            (mixture.fall(z), chi2.ppf(0.99, z.shape[-1]) ** 0.5,
             f"farther from the maximum of the likelihood of {name} than 99 in 100 draws of it, so prior and data disagree"),
        )  # fmt: skip
        words = [
            f"{share:.0%} of the posterior lies {place}: the likelihood is extrapolated there, so ask for a run with this prior."
            for far, most, place in places
            if (share := float(np.mean(np.asarray(far) > most))) > 0.5
        ]
        found += words[:1]
    return found


class Row(NamedTuple):
    """The posterior of one element under one prior.

    - **prior**, **element** - names.
    - **mean**, **sd**, **low**, **high** - of the posterior, and its central interval.
    - **learned** - by which share the squared width of the prior's interval shrank: what the data decided."""

    prior: str
    element: str
    mean: float
    sd: float
    low: float
    high: float
    learned: float


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Posteriors under several priors.

    - **rows** - of the table, by element and then by prior.
    - **samples** - draws by prior and site; `contrib.plotting.posteriors_by_name` draws them.
    - **findings** - by prior, sentences that a reader must know.
    - **prob** - the mass of the intervals."""

    rows: tuple[Row, ...]
    samples: Mapping[str, BySite] = field(repr=False)
    findings: tuple[tuple[str, str], ...]
    prob: float

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The table as words, its head first: element, prior, mean, sd, interval, and the share from the data."""
        head = ("element", "prior", "mean", "sd", f"{self.prob:.0%} interval", "from the data")
        texts: list[tuple[str, ...]] = [
            (r.element, r.prior, f"{r.mean:.3g}", f"{r.sd:.2g}", f"{r.low:.3g} to {r.high:.3g}", f"{r.learned:.0%}")
            for r in self.rows
        ]
        return [head, *texts]

    def __str__(self) -> str:
        return "\n".join([*aligned(self.cells), *(f"{prior}: {words}" for prior, words in self.findings)])


def compared(
    sites: Sequence[Site], owners: Sequence[Owner], factor: Callable[[BySite], None], priors: Mapping[str, Prior],
    rng_key: jax.Array, num_samples: int, prob: float,
) -> Sensitivity:  # fmt: skip
    """Posteriors under each of the priors, by name."""
    if not priors or not all(isinstance(name, str) for name in priors):
        raise ConfigurationError("priors is a dict of priors by name, {'wide': {...}, 'narrow': {...}}.")
    functions = {name: as_function(sites, prior) for name, prior in priors.items()}
    rows: list[list[Row]] = []
    samples, findings = {}, []
    for (name, values), key in zip(functions.items(), jax.random.split(rng_key, len(priors))):
        found, problem = sampled(sites, lambda values=values: factor(values()), key, num_samples)
        samples[name] = {site.name: found[site.name] for site in sites}
        findings += [(name, words) for words in ([problem] if problem else []) + far(sites, owners, found)]
        before = _draws(values, key)
        rows.append([row for site in sites for row in _rows(name, site, found[site.name], before, prob)])
    findings += [
        ("all", f"{o.facts.name} refuses its own posterior: {o.facts.verdict}") for o in owners if o.facts.is_refused
    ]
    findings += [("all", words) for _, words in wrong(owners)]
    return Sensitivity(tuple(row for each in zip(*rows) for row in each), samples, tuple(findings), prob)


def _draws(prior: Function, key: jax.Array) -> Mapping[str, Numbers] | None:
    """Draws from a prior; None where it is improper."""
    try:
        found: Mapping[str, Numbers] = Predictive(prior, num_samples=_PRIOR_DRAWS)(key)
        return found
    except NotImplementedError:
        return None


def _rows(name: str, site: Site, draws: Numbers, before: Mapping[str, Numbers] | None, prob: float) -> list[Row]:
    tails = [(1.0 - prob) / 2.0, (1.0 + prob) / 2.0]
    values = np.asarray(draws, float).reshape(len(draws), -1)
    low, high = np.quantile(values, tails, axis=0)
    if before is None:
        learned = np.ones(len(low))
    else:
        prior = np.asarray(before[site.name], float).reshape(_PRIOR_DRAWS, -1)
        width = np.subtract(*np.quantile(prior, tails[::-1], axis=0))
        learned = np.clip(1.0 - ((high - low) / np.where(width > 0.0, width, np.inf)) ** 2, 0.0, 1.0)
    columns = values.mean(axis=0), values.std(axis=0), low, high, learned
    return [Row(name, element, *map(float, numbers)) for element, *numbers in zip(element_names(site), *columns)]
