"""The posterior in closed form: a mixture of normal laws, one for each draw of the curvature."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dpppl.noise_aware.surrogate import Surrogate, moments
from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.coordinates import Known, Prior
from dpppl.row_statistics.matrices import Array, eigh, root_of, times
from dpppl.types import Tree

_CHAINS = 30
CANDIDATES, _TAIL, _LEAST, _HEAVY = 8, 0.2, 0.25, 0.7


class Linear(NamedTuple):
    """Residuals (k b,) that are linear in coordinates: minus log likelihoods are half their squares.

    - **start**, **slopes** - (n, k, b): residuals at `centre`; (n, k, b, b), by scaled and reflected latents.
    - **centre**, **basis** - coordinates (d,), and how latents are scaled and reflected."""

    start: Array
    slopes: Array
    centre: Array
    basis: Basis

    @classmethod
    def of(cls, means: Array, covariances: Array, prior: Array, origin: Array, basis: Basis) -> "Linear":
        """Those that make means (n, k, b) and covariances of u under a normal prior of covariance `prior`, where latents have the
        mean `origin`."""
        centre = means.mean(axis=0)
        total = np.linalg.inv(covariances)
        values, vectors = eigh(total - np.linalg.inv(prior))
        # a mixture may be wider than the prior
        roots = np.sqrt(np.maximum(values, 1e-9 * np.linalg.eigvalsh(total).max()))
        slopes = (vectors * roots[..., None, :]).swapaxes(-1, -2)
        missing = times(vectors.swapaxes(-1, -2), times(total, means)) / roots
        return cls(times(slopes, centre) - missing, slopes @ basis.inverse, origin + basis.to_latents(centre), basis)

    def arrays(self) -> dict[str, Tree]:
        """For `_residual`, without the leading axis where all share them."""
        basis = self.basis
        found = {"start": self.start, "slopes": self.slopes, "centre": self.centre, "scales": basis.scales}
        floats = {name: jnp.asarray(a, jnp.float32) for name, a in (found | {"turn": basis.turn}).items()}
        return floats | {"index": jnp.asarray(basis.layout.numbers)}


class Mixture(NamedTuple):
    """A posterior under a normal prior: normal given the curvature, which is drawn from what its release left open.

    - **mean**, **prior** - latents at u = 0, and (k, b, b): the prior covariance of u.
    - **means**, **covariances** - (n, k, b) and (n, k, b, b), equally weighted.
    - **surrogate** - the likelihood.

    Draws are not weighted by the evidence of the gradients: near the posterior mean these say next to nothing of the curvature,
    and would prefer small ones, whose posteriors are wide."""

    mean: Array
    prior: Array
    means: Array
    covariances: Array
    surrogate: Surrogate

    @classmethod
    def of(cls, surrogate: Surrogate, prior: Prior) -> "Mixture":
        """A function of the releases alone: the draws of curvatures have a seed of their own."""
        basis = surrogate.basis
        covariance = basis.covariance_of_u(prior.covariance(basis))
        return cls(prior.mean, covariance, *surrogate.posteriors(covariance), surrogate)

    def moments(self) -> Known:
        """Mean and variances of the coordinates."""
        basis, (mean, spread) = self.surrogate.basis, moments(self.means, self.covariances)
        return Known(self.mean + basis.to_latents(mean), basis.variances(spread))

    def log_density(self, number: int, value: float) -> float:
        """Log posterior density of one coordinate, by its number, at a value."""
        from scipy.special import logsumexp

        basis = self.surrogate.basis
        means = self.mean[number] + basis.to_latents(self.means)[:, number]
        variances = np.array([basis.variances(covariance)[number] for covariance in self.covariances])
        logs = -0.5 * ((value - means) ** 2 / variances + np.log(2.0 * np.pi * variances))
        return float(logsumexp(logs) - np.log(len(logs)))

    def linear(self) -> tuple[Linear, Linear, Array]:
        """Likelihoods: one for each normal distribution of a part of them, and that of all together, whose covariance (k, b, b)
        is the last."""
        step, basis = max(1, len(self.means) // _CHAINS), self.surrogate.basis
        mean, spread = moments(self.means, self.covariances)
        each = Linear.of(self.means[::step], self.covariances[::step], self.prior, self.mean, basis)
        return each, Linear.of(mean[None], spread[None], self.prior, self.mean, basis), spread

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Independent draws (count, d), as many of each normal distribution."""
        chosen, drawn = rng.permutation(np.arange(count) % len(self.means)), np.empty((count, len(self.mean)))
        for number in np.unique(chosen):
            own = np.flatnonzero(chosen == number)
            drawn[own] = self.mean + self.surrogate.basis.to_latents(self._drawn(number, len(own), rng))
        return drawn

    def _drawn(self, number: int, count: int, rng: np.random.Generator) -> Array:
        noise = rng.standard_normal((count, *self.means.shape[1:]))
        return np.asarray(self.means[number] + times(root_of(self.covariances[number]), noise))

    def weighted(self, log_prior: Callable[[Array], Array], rng: np.random.Generator, count: int) -> Array | None:
        """Draws (count, d) under another prior than the normal one, or None where the two differ too much for weights.

        Of each normal distribution `CANDIDATES` times as many are drawn, weighted by the priors' ratio, and resampled.

        - **log_prior** - the exact log density of coordinates (n, d), but for a constant."""
        numbers, wanted = np.unique(np.arange(count) % len(self.means), return_counts=True)
        u = [self._drawn(number, CANDIDATES * more, rng) for number, more in zip(numbers, wanted)]
        points = [self.mean + self.surrogate.basis.to_latents(each) for each in u]
        together, precision = np.concatenate(u) * self.surrogate.basis.layout.real, np.linalg.inv(self.prior)
        ratios = log_prior(np.concatenate(points)) + 0.5 * np.sum(together * times(precision, together), axis=(1, 2))
        chosen = resampled(np.split(ratios, np.cumsum([len(each) for each in u])[:-1]), wanted, rng)
        if chosen is None:
            return None
        return rng.permutation(np.concatenate([each[places] for each, places in zip(points, chosen)]))


def resampled(ratios: Sequence[Array], wanted: Array, rng: np.random.Generator) -> list[Array] | None:
    """Of each group of candidates, by the logs of their weights, the places of as many as are wanted, resampled evenly (Kitagawa
    1996); None where weights cannot be trusted: few candidates hold them, or the largest ones follow a generalised Pareto law of
    a large shape (Vehtari, Simpson, Gelman, Yao, Gabry 2024)."""
    from scipy.stats import genpareto

    shares = [np.exp(each - np.max(each)) for each in ratios]
    shares = [each / np.sum(each) for each in shares]
    every = np.sort(np.concatenate([each * len(each) for each in shares]))
    tail = every[-int(_TAIL * len(every)) :]
    if not (np.isfinite(tail).all() and 1.0 / np.mean(every**2) >= _LEAST):
        return None
    if tail[-1] > 1.1 * tail[0] and genpareto.fit(tail - tail[0], floc=0.0)[0] > _HEAVY:
        return None
    places = [np.searchsorted(np.cumsum(s), (rng.random() + np.arange(n)) / n) for s, n in zip(shares, wanted)]
    return [np.minimum(each, len(share) - 1) for each, share in zip(places, shares)]
