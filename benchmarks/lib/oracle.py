"""The posterior without privacy, and the least error that a budget allows: for models whose posterior is nearly normal.

`Reference.of(model, args)` finds the mode of the unconstrained latents, and draws from the normal law of the curvature there. It weighs
the draws by the exact posterior, in pairs around the mode, so that their mean is exact to the third order of the skew. All in 64 bits.

An *oracle* stands at this mode, in the metric of the likelihood's curvature, and spends the whole budget on one clipped gradient at the
best norm. `oracle` is what the noise of this gradient adds to the squared width, relative to the posterior's, by coordinate.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from scipy.optimize import brentq, minimize
from scipy.stats import norm

LEAST_EFFECTIVE = 0.3


def noise_multiplier(epsilon, delta):
    """That of one Gaussian release (Balle and Wang 2018)."""

    def excess(sigma):
        first, second = (norm.cdf(sign * 0.5 / sigma - epsilon * sigma) for sign in (1.0, -1.0))
        return first - np.exp(epsilon) * second - delta

    return brentq(excess, 0.01, 1e3)


def flat(samples):
    """Samples (n, d) of all elements, sites by name; and their names."""
    arrays = {site: np.reshape(np.asarray(x, float), (len(x), -1)) for site, x in sorted(samples.items())}
    names = [f"{site}[{i}]" for site, x in arrays.items() for i in range(x.shape[1])]
    return np.concatenate(list(arrays.values()), axis=1), names


class Reference(NamedTuple):
    """Weighted draws (n, d) of the latents; at the mode curvatures (d, d) of likelihood and prior, unconstrained, and lengths (N,) of
    rows' scores in the likelihood's metric; the share of draws that count."""

    draws: np.ndarray
    weights: np.ndarray
    likelihood: np.ndarray
    prior: np.ndarray
    lengths: np.ndarray
    effective: float
    names: list

    @classmethod
    def of(cls, model, args, pairs=2_048, seed=0):
        with jax.enable_x64(True):
            return cls._of(model, jax.tree.map(_wide, args), pairs, seed)

    @classmethod
    def _of(cls, model, args, pairs, seed):
        start = numpyro.infer.util.initialize_model(
            jax.random.key(0), model, model_args=args, init_strategy=numpyro.infer.init_to_median(num_samples=200)
        )
        first, shaped = ravel_pytree(start.param_info.z)
        seeded = handlers.seed(model, 0)

        def rows(z):
            trace = handlers.trace(handlers.substitute(seeded, start.postprocess_fn(shaped(z)))).get_trace(*args)
            seen = [site for site in trace.values() if site["type"] == "sample" and site["is_observed"]]
            return sum(site["fn"].log_prob(site["value"]) for site in seen)

        whole = jax.jit(lambda z: start.potential_fn(shaped(z)))
        likelihood = lambda z: -jnp.sum(rows(z))  # noqa: E731
        mode = minimize(
            whole,
            first,
            jac=jax.jit(jax.grad(whole)),
            hess=_curvature(whole),
            method="trust-exact",
            options={"gtol": 1e-6},
        ).x
        h, whole_h = (np.asarray(_curvature(f)(mode)) for f in (likelihood, whole))
        values, vectors = np.linalg.eigh(h)
        metric = vectors / np.sqrt(np.maximum(values, 1e-9 * values[-1]))
        along = lambda v: jax.jvp(rows, (mode,), (v,))[1]  # noqa: E731
        scores = jax.jit(lambda m: jax.lax.map(lambda v: along(v) ** 2, m, batch_size=8).sum(axis=0))
        lengths = np.sqrt(scores(metric.T))
        z = np.random.default_rng(seed).standard_normal((pairs, len(mode)))
        z = np.concatenate([z, -z])
        z = z @ np.linalg.inv(np.linalg.cholesky(z.T @ z / len(z))).T  # of exactly the normal law's covariance
        places = jnp.asarray(mode + z @ np.linalg.inv(np.linalg.cholesky(whole_h)))
        log_weights = 0.5 * np.sum(z**2, axis=1) - jax.jit(lambda p: jax.lax.map(whole, p, batch_size=16))(places)
        weights = np.asarray(jnp.exp(log_weights - jnp.max(log_weights)))
        weights = weights / weights.sum()
        latents = jax.jit(jax.vmap(lambda p: start.postprocess_fn(shaped(p))))(places)
        draws, names = flat({site: latents[site] for site in start.param_info.z})
        effective = 1.0 / np.sum(weights**2) / len(weights)
        if not effective > LEAST_EFFECTIVE:
            raise ValueError(f"{effective:.0%} of draws count: the posterior is far from normal.")
        return cls(draws, weights, h, whole_h - h, lengths, effective, names)

    def mean(self):
        return self.weights @ self.draws

    def covariance(self):
        off = self.draws - self.mean()
        return (off * self.weights[:, None]).T @ off

    def oracle(self, epsilon, delta):
        """Mean over coordinates of (the oracle's variance / the posterior's) - 1."""
        n, sigma, best = self.lengths, noise_multiplier(epsilon, delta), np.inf
        alone = np.diag(np.linalg.inv(self.likelihood + self.prior))
        for c in np.quantile(n, np.linspace(0.2, 1.0, 60)):
            kept, squared = (
                np.mean(n * np.minimum(n, c)) / np.mean(n**2),
                np.mean(np.minimum(n, c) ** 2) / np.mean(n**2),
            )
            information = kept**2 / (squared + (sigma * c) ** 2) * self.likelihood
            best = min(best, np.mean(np.diag(np.linalg.inv(information + self.prior)) / alone) - 1.0)
        return float(best)

    def compared(self, draws):
        """Of draws (n, d) of a private run: squared distance of means by coordinate in the posterior's metric, offsets and sds in its
        sds, and the posterior's mass in central 90 % intervals."""
        off, sd = draws.mean(axis=0) - self.mean(), np.sqrt(np.diag(self.covariance()))
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        mass = self.weights @ ((low <= self.draws) & (self.draws <= high))
        return float(off @ np.linalg.solve(self.covariance(), off) / len(off)), off / sd, draws.std(axis=0) / sd, mass


def _wide(x):
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype == np.float32 else x


def _curvature(f):
    """Hessian of `f`, a few columns at a time."""
    column = lambda z, v: jax.jvp(jax.grad(f), (z,), (v,))[1]  # noqa: E731
    return jax.jit(lambda z: jax.lax.map(lambda v: column(z, v), jnp.eye(len(z), dtype=jnp.float64), batch_size=8))
