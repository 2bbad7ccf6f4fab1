"""The posterior of a softmax head without privacy, by NUTS, and the mass of it that private intervals hold."""

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS, init_to_value
from scipy.linalg import helmert

NUM_WEIGHTS, MASS = 200, 0.9


def newton(x, y, prior_scale, num_steps=12):
    """Mode and Laplace covariance of the contrasts, as (intercepts, weights) of `softmax_regression`, each flattened."""
    design = jnp.concatenate([jnp.ones((len(x), 1)), jnp.asarray(x)], axis=1)
    contrasts = jnp.asarray(helmert(10), jnp.float32)
    observed = jax.nn.one_hot(y, 10)

    @jax.jit
    def terms(w):
        p = jax.nn.softmax(design @ w @ contrasts)
        gradient = design.T @ ((observed - p) @ contrasts.T) - w / prior_scale**2
        mean = p @ contrasts.T

        def between(pair):
            weights = (p * contrasts[pair[0]] * contrasts[pair[1]]).sum(1) - mean[:, pair[0]] * mean[:, pair[1]]
            return design.T @ (weights[:, None] * design)

        return gradient, jax.lax.map(between, jnp.indices((9, 9)).reshape(2, -1).T)

    w = jnp.zeros((design.shape[1], 9))
    for _ in range(num_steps):
        gradient, blocks = terms(w)
        curvature = (
            np.asarray(blocks, np.float64)
            .reshape(9, 9, *2 * design.shape[1:])
            .transpose(2, 0, 3, 1)
            .reshape(w.size, w.size)
        )
        curvature += np.eye(w.size) / prior_scale**2
        w = w + np.linalg.solve(curvature, np.asarray(gradient, np.float64).ravel()).reshape(w.shape)
    return np.asarray(w), np.linalg.inv(curvature)


def reference(model, x, y, path, *, prior_scale, num_warmup=150, num_samples=500):
    """NUTS draws without privacy by site, kept in `path`; Newton's mode is the start, the Laplace covariance the mass
    matrix. 500 draws of 64 directions take 2 minutes of a core."""
    if path.exists():
        return dict(np.load(path))
    mode, covariance = newton(x, y, prior_scale)
    start = init_to_value(values={"intercepts": mode[0], "weights": mode[1:]})
    kernel = NUTS(
        model, init_strategy=start, dense_mass=True, inverse_mass_matrix={("intercepts", "weights"): covariance},
        adapt_mass_matrix=False, max_tree_depth=6,
    )  # fmt: skip
    mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, progress_bar=False)
    mcmc.run(jax.random.key(0), x, y)
    samples = {site: np.asarray(value) for site, value in mcmc.get_samples().items()}
    np.savez(path, **samples)
    return samples


def beside(private, exact, rng):
    """Scores of random weights: "mass", the share of exact draws in private intervals; "sd", the median ratio of private sds."""
    size = private["weights"][0].size
    chosen = rng.choice(size, min(NUM_WEIGHTS, size), replace=False)
    ours, theirs = (np.asarray(draws["weights"]).reshape(-1, size)[:, chosen] for draws in (private, exact))
    low, high = np.quantile(ours, [(1 - MASS) / 2, (1 + MASS) / 2], axis=0)
    held = (theirs >= low) & (theirs <= high)
    return {"mass": held.mean(), "sd": np.median(ours.std(0) / theirs.std(0))}
