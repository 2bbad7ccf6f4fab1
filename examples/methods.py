"""Draws of a private posterior by the name of a method, for the tables of results: one call for every example."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from numpyro.infer import init_to_median
from numpyro.infer.autoguide import AutoDelta, AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal

import dpppl

KERNELS = {"DP-SGLD": dpppl.DPSGLD, "DP-SGHMC": dpppl.DPSGHMC, "DP-SGNHT": dpppl.DPSGNHT}
GUIDES = (
    "Bayes by Backprop",
    "Bayes by Backprop, per parameter",
    "full-rank SVI",
    "low-rank SVI",
    "MC Dropout",
    "DP-SGD",
)
METHODS = ("NoiseAware", *KERNELS, *GUIDES)
NOT_PRIVATE = {"clipping_norm": 1e5, "noise_multiplier": 1e-9}
"""No row is clipped and the noise is below rounding: the same steps without privacy."""

Draws = tuple[dict[str, Any], float | None]


def draws(
    method: str, model: Callable[..., Any], arrays: tuple[Any, ...], *, epsilon: float | None, delta: float, num_draws: int,
    start: Callable[..., Any] = init_to_median, batch_size: int | None = None, **settings: Any,
) -> Draws:  # fmt: skip
    """(`num_draws` draws by site, epsilon that was spent) of `method`, one of METHODS; without privacy where epsilon is None.

    `start`: NumPyro's init strategy of guides. `batch_size`: on average, of Poisson batches; None: all rows.
    `settings`: of chains num_warmup, num_samples and the kernel's own; of guides num_steps, learning_rate, init_scale, rate (of
    dropout), rank (of low-rank SVI), average (the share of iterates that are averaged), scale_share (of the learning rate, for a
    guide's spreads), noise_aware (whether to widen the guide for the noise) and SVI's own."""
    target = {} if epsilon is None else {"target_epsilon": epsilon, "target_delta": delta}
    if method == "NoiseAware":
        private = dpppl.NoiseAware(model, num_samples=num_draws, progress_bar=False, print_cost=False, **target)
        private.run(dpppl.secret_key(), *arrays)
        return private.get_samples(allow_unconverged=True), private.privacy_report().epsilon
    if batch_size is not None:
        settings["subsampling"] = dpppl.Poisson.of_batch(batch_size, len(arrays[-1]))
    if method in KERNELS:
        return _chain(KERNELS[method], model, arrays, target, num_draws, **settings)
    return _guide(method, model, arrays, target, num_draws, start, **settings)


def _chain(kernel, model, arrays, target, num_draws, *, num_warmup, num_samples, **settings) -> Draws:
    if not target:
        settings = {"step_size": 1e-4} | settings | {"clipping_norm": NOT_PRIVATE["clipping_norm"]}
    mcmc = dpppl.MCMC(
        kernel(model, **settings), num_warmup=num_warmup, num_samples=num_samples, thinning=max(1, num_samples // num_draws),
        progress_bar=False, print_cost=False, **target,
    )  # fmt: skip
    mcmc.run(dpppl.secret_key(), *arrays)
    return mcmc.get_samples(), mcmc.privacy_report().epsilon if target else None


def _adam(learning_rate, num_steps):
    return optax.adam(optax.cosine_decay_schedule(learning_rate, num_steps, alpha=0.1))


def _guide(
    method, model, arrays, target, num_draws, start, *, num_steps, learning_rate, init_scale=0.01, scale_share=1.0, rate=0.1,
    rank=8, average=0.3, noise_aware=False, **settings,
) -> Draws:  # fmt: skip
    guides = {
        "MC Dropout": partial(dpppl.AutoDropout, rate=rate),
        "DP-SGD": AutoDelta,
        "full-rank SVI": partial(AutoMultivariateNormal, init_scale=init_scale),
        "low-rank SVI": partial(AutoLowRankMultivariateNormal, init_scale=init_scale, rank=rank),
    }
    guide = guides.get(method, partial(AutoNormal, init_scale=init_scale))(model, init_loc_fn=start)
    if method == "Bayes by Backprop, per parameter":
        settings["gradient"] = "per_parameter"
    kinds = {"scale": _adam(scale_share * learning_rate, num_steps), "location": _adam(learning_rate, num_steps)}
    spreads = ("_scale", "_scale_tril", "_cov_factor")
    kind_of = lambda params: {name: "scale" if name.endswith(spreads) else "location" for name in params}  # noqa: E731
    optimiser = optax.partition(kinds, kind_of)
    settings |= target or NOT_PRIVATE
    svi = dpppl.SVI(model, guide, optimiser, print_cost=False, **settings)
    result = svi.run(dpppl.secret_key(), num_steps, *arrays, progress_bar=False)
    params = result.noise_aware_params(average) if noise_aware else result.averaged_params(average)
    found = result.sample_posterior(jax.random.key(0), 1 if method == "DP-SGD" else num_draws, params)
    return {name: np.asarray(value) for name, value in found.items()}, result.report.epsilon if target else None
