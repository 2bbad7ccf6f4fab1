"""Likelihoods of made-up surrogates, without a run."""

import numpy as np

from dpppl.noise_aware.curvature import Curvature
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.publishing import published
from dpppl.noise_aware.surrogate import Surrogate
from dpppl.published.likelihood import Likelihood
from dpppl.published.records import Owner, OwnerFacts
from dpppl.published.supports import Site
from dpppl.row_statistics.coordinates import Prior
from dpppl.row_statistics.matrices import eigh, times

SITES = (Site("scale", (), "positive"), Site("w", (2,)))
WIDE = Prior(np.zeros(3), np.array([1.0, 2.0, 2.0]), [np.arange(3)], np.eye(3))


def facts(name="A", **changed):
    fields = dict(
        name=name, epsilon=1.0, delta=1e-5, relation="add or remove one row", unit="one row", num_rows=100, width="model",
        verdict="read: all agrees", is_refused=False, columns={"x": "float32[2]"}, public={}, program="p",
        versions={"jax": "1"},
    )  # fmt: skip
    return OwnerFacts(**(fields | changed))


def surrogate_of(prior, information, pull, noise, draws=7, spread=0.2, rng=None):
    """The surrogate of a likelihood with this information (d, d) and its mode where it has the gradient `pull` at 0. The gradient is
    taken near the mode, with noise; draws of the curvature are its multiples, of this relative spread. All in latents."""
    basis = prior.first()
    root = basis.scales[:, None] * basis.roots[0]
    h = root.T @ information @ root
    values, vectors = eigh(h[None])
    times_by = 1.0 + spread * np.linspace(-1.0, 1.0, draws) if draws > 1 else np.ones(1)
    curvature = Curvature(times_by[:, None, None] * values, np.tile(vectors, (draws, 1, 1, 1)), np.eye(len(h))[None])
    centre = np.linalg.solve(information, pull) + 0.5 * np.diag(information) ** -0.5
    released = root.T @ (pull - information @ centre) + (
        0.0 if rng is None else np.sqrt(noise) * rng.standard_normal(len(pull))
    )
    zeros = np.zeros((1, len(h)))
    return Surrogate(basis, np.linalg.solve(root, centre)[None], released[None], noise, curvature, zeros, 1.0, zeros)


def mixture_of(seed=0, noise=0.5, prior=WIDE, draws=7):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((3, 3))
    information = 20.0 * (root @ root.T + np.eye(3))
    return Mixture.of(
        surrogate_of(prior, information, information @ rng.normal(0, 0.7, 3), noise, draws, rng=rng), prior
    )


def likelihood_of(seed=0, name="A", **changed):
    return Likelihood(SITES, (Owner(facts(name, **changed), published(mixture_of(seed))),))


def log_density(mixture, z):
    """Log posterior density of coordinates (m, d), of a mixture in one basis, but for a constant."""
    basis = mixture.surrogate.basis
    u = basis.to_u(z - mixture.mean)
    logs = []
    for mean, covariance in zip(mixture.means, mixture.covariances):
        off = u - mean
        squares = np.sum(off * times(np.linalg.inv(covariance), off) * basis.layout.real, axis=(1, 2))
        logs.append(-0.5 * squares - 0.5 * np.sum(np.linalg.slogdet(covariance)[1]))
    return np.logaddexp.reduce(logs)


def log_prior(mixture, z):
    u = mixture.surrogate.basis.to_u(z - mixture.mean)
    return -0.5 * np.sum(u * times(np.linalg.inv(mixture.prior), u) * mixture.surrogate.basis.layout.real, axis=(1, 2))
