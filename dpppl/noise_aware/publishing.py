"""From the posterior of a run to the likelihood that it publishes."""

import hashlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from dpppl import jaxprs
from dpppl.information_flow.executables import digest_of
from dpppl.noise_aware.mixture import Linear, Mixture
from dpppl.noise_aware.verdict import NoiseAwareVerdict
from dpppl.published import records
from dpppl.published.likelihood import Likelihood
from dpppl.published.supports import Site
from dpppl.report.report import PrivacyReport
from dpppl.report.version import VERSION
from dpppl.row_statistics.coordinates import Coordinates
from dpppl.row_statistics.matrices import posterior_covariance, root_of, times
from dpppl.runs.driver import TRACING
from dpppl.types import Distribution, Document, Tree

_DELTA, _REACH_DRAWS, _REACH = 1e-5, 2_000, 0.99


def likelihood_of(
    coordinates: Coordinates,
    mixture: Mixture,
    public: Tree,
    report: PrivacyReport,
    verdict: NoiseAwareVerdict,
    name: str,
) -> Likelihood:
    """The likelihood of a run whose posterior is `mixture`, and whose owner has this name."""
    sites = _sites(coordinates, public or {})
    delta = report.delta or _DELTA
    split, is_sandwich = coordinates.split, verdict.widths.is_sandwich
    facts = records.OwnerFacts(
        name=name, epsilon=report.epsilon_at(delta), delta=delta,
        relation=report.unit.relation(report.mechanism.neighboring_relation), unit=report.unit.describe(),
        num_rows=split.num_rows, width="sandwich" if is_sandwich else "model", verdict=verdict.line(),
        is_refused=bool(verdict.refusals), columns={n: f"{s.dtype}{list(s.shape)}" for n, s in split.row.items()},
        public={label: digest_of(array) for label, array in (public or {}).items()}, program=_program(coordinates),
        versions={"dpppl": VERSION, "jax": jax.__version__, "numpyro": numpyro.__version__},
    )  # fmt: skip
    found = published(mixture)._replace(ranks=np.array(verdict.moments), cut=np.array(verdict.cut))
    return Likelihood(sites, (records.Owner(facts, found),))


def _sites(coordinates: Coordinates, public: Mapping[str, Tree]) -> tuple[Site, ...]:
    """The sites of the coordinates. Raises ConfigurationError for a support that a file cannot name."""
    split, found = coordinates.split, dict[str, Site]()

    def visit(site: Document, _: Distribution) -> Tree:
        name, shape = site["name"], site["kwargs"]["sample_shape"] + site["fn"].shape()
        if name in coordinates.shapes:
            found[name] = Site.from_support(name, shape, site["fn"].support)
        return jnp.zeros(split.latents[name].shape)

    with TRACING:
        split.visit_latents(visit, split.placeholder_public() | dict(public))
    return tuple(found.get(name, Site(name, s.shape)) for name, s in coordinates.shapes.items())


def _program(coordinates: Coordinates) -> str:
    """A digest of the program that computes the log likelihood of a row, without the prior."""
    split = coordinates.split
    function = lambda z, row, public: split.log_likelihood(z, row, public)  # noqa: E731
    with TRACING:
        arguments = split.latents, split.row, split.arguments.public
        constants = jaxprs.constants(jax.make_jaxpr(function)(*arguments))
        text = jax.jit(function).lower(*arguments).as_text()
    return hashlib.sha256("\n".join([text, *map(digest_of, constants)]).encode()).hexdigest()


def published(mixture: Mixture) -> records.PublishedMixture:
    """The likelihood of each draw of the curvature, as it makes the posterior of the run; of all draws; without ranks."""
    surrogate, prior = mixture.surrogate, mixture.prior
    basis = surrogate.basis
    linear = Linear.of(mixture.means, mixture.covariances, prior, mixture.mean, basis)
    slopes = linear.slopes @ basis.roots  # by u
    place = mixture.means.mean(axis=0)
    offsets = linear.start + times(slopes, surrogate.centre - place)
    spread = posterior_covariance(slopes.swapaxes(-1, -2) @ slopes, root_of(prior))
    mean = times(spread, times(slopes.swapaxes(-1, -2), times(slopes, place) - linear.start))
    evidence = -0.5 * np.sum((linear.start + times(slopes, mean - place)) ** 2, axis=(1, 2))
    evidence -= 0.5 * np.sum(mean * times(np.linalg.inv(prior), mean), axis=(1, 2))
    evidence += 0.5 * np.sum(np.linalg.slogdet(spread)[1] - np.linalg.slogdet(prior)[1], axis=1)
    found = records.PublishedMixture(
        surrogate.point(mixture.mean), basis.scales, basis.turn, np.asarray(basis.layout.numbers, np.int64), offsets,
        linear.slopes, evidence.max() - evidence, np.ones(()), np.ones(()), np.ones((3, 3)),
        np.zeros(()),
    )  # fmt: skip
    drawn = mixture.draw(np.random.default_rng(0), _REACH_DRAWS)
    far = lambda z: np.asarray(found.distance(jnp.asarray(z, float)), np.float64)  # noqa: E731
    return found._replace(reach=np.asarray(np.quantile(far(drawn), _REACH)), arrival=far(mixture.moments().mean))
