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
            jax.random.key(0),
            model,
            model_args=args,
            dynamic_args=True,
            init_strategy=numpyro.infer.init_to_median(num_samples=200),
        )
        first, shaped = ravel_pytree(start.param_info.z)
        latents = lambda z, *args: start.postprocess_fn(*args)(shaped(z))  # noqa: E731
        whole = lambda z, *args: start.potential_fn(*args)(shaped(z))  # noqa: E731

        def rows(z, *args):
            given = handlers.substitute(handlers.seed(model, 0), latents(z, *args))
            sites = handlers.trace(given).get_trace(*args).values()
            seen = [site for site in sites if site["type"] == "sample" and site["is_observed"]]
            return sum(site["fn"].log_prob(site["value"]) for site in seen)

        likelihood = lambda z, *args: -jnp.sum(rows(z, *args))  # noqa: E731
        slope, bend = jax.jit(jax.value_and_grad(whole)), _curvature(whole)
        mode = minimize(slope, first, args, "trust-exact", jac=True, hess=bend, options={"gtol": 1e-6}).x
        h, whole_h = (np.asarray(f(mode, *args)) for f in (_curvature(likelihood), bend))
        values, vectors = np.linalg.eigh(h)
        metric = vectors / np.sqrt(np.maximum(values, 1e-9 * values[-1]))
        lengths = np.sqrt(
            _mapped(lambda v, z, *args: jax.jvp(lambda z: rows(z, *args), (z,), (v,))[1] ** 2, 8)(
                metric.T, mode, *args
            ).sum(axis=0)
        )
        z = np.random.default_rng(seed).standard_normal((pairs, len(mode)))
        z = np.concatenate([z, -z])
        z = z @ np.linalg.inv(np.linalg.cholesky(z.T @ z / len(z))).T  # of exactly the normal law's covariance
        places = mode + z @ np.linalg.inv(np.linalg.cholesky(whole_h))
        log_weights = 0.5 * np.sum(z**2, axis=1) - np.asarray(_mapped(whole, 16)(places, *args))
        weights = np.exp(log_weights - log_weights.max())
        weights = weights / weights.sum()
        found = _mapped(latents, 256)(places, *args)
        draws, names = flat({site: found[site] for site in start.param_info.z})
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


def _mapped(f, size):
    """`f` of each row of its first argument, some at a time."""
    return jax.jit(lambda rows, *rest: jax.lax.map(lambda row: f(row, *rest), rows, batch_size=size))


def _curvature(f):
    """Hessian of `f` in its first argument, a few columns at a time."""
    columns = _mapped(lambda v, z, *args: jax.jvp(jax.grad(lambda z: f(z, *args)), (z,), (v,))[1], 8)
    return lambda z, *args: np.asarray(columns(np.eye(len(z)), z, *args))
