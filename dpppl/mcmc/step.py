"""One step of a kernel: an access, and a move; while it searches for a step size, see `step_search`."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from dpppl.data.rows import number_of
from dpppl.mcmc.step_search import after, probe

if TYPE_CHECKING:
    from dpppl.mcmc.kernel import DPKernel


def kernel_step(kernel: "DPKernel", state: Any, rows: Any, public: Any) -> Any:
    """See `DPKernel.step`."""
    planned, noise_multiplier = kernel._at(state.i)
    position = kernel._unscaled(state.z)
    if not kernel.searches:
        gradient, state = _gradient(kernel, state, position, rows, public, noise_multiplier)
        return _moved(kernel, state, position, gradient, planned)
    search, searching = state.search, state.i < state.search.until
    step_size = jnp.minimum(planned, kernel.longest_step(search.bound))
    own_noise = jnp.maximum(noise_multiplier, kernel._langevin_multiplier(step_size))  # never less than was charged
    std = noise_multiplier * kernel.mechanism.noise_scale / kernel.mechanism.subsampling.rate
    hidden = 0.25 * std**2 / kernel.temperature
    multiplier = jnp.where(searching, noise_multiplier, own_noise)
    gradient, state = _gradient(kernel, state, probe(search, state.i, position, hidden), rows, public, multiplier)
    searched, found = after(
        search, state.i, position, gradient, gradient_std=std, hidden=hidden,
        largest_step=lambda curvature: 0.5 / jnp.maximum(curvature, hidden),
        length_of=lambda move: jnp.sqrt(sum(jnp.sum(m**2) for m in jax.tree.leaves(kernel._scaled(move)))),
    )  # fmt: skip
    found = kernel._scaled(found)
    climbed = state._replace(z=found, midpoint=found, search=searched)
    moved = _moved(kernel, state, position, gradient, step_size)
    kept = dict(i=None, rng_key=None)  # neither is chosen between: the proof follows the counter and the key
    choose = lambda one, other: jnp.where(searching, one, other)  # noqa: E731
    chosen = jax.tree.map(choose, climbed._replace(**kept), moved._replace(**kept))
    return chosen._replace(i=moved.i, rng_key=state.rng_key)


def _gradient(kernel: "DPKernel", state: Any, position: Any, rows: Any, public: Any, noise_multiplier: Any) -> Any:
    """The noisy gradient of the log posterior, and the state that has counted the clipped rows: one access."""
    noisy = kernel.noisy_sum(position, rows, public, key=state.rng_key, noise_multiplier=noise_multiplier, step=state.i)
    prior_gradient = jax.grad(lambda u: kernel.split.log_prior(kernel._scaled(u), public))(position)
    rate = kernel.mechanism.subsampling.rate
    gradient = jax.tree.map(lambda prior, total: prior + total / rate, prior_gradient, noisy.total)
    if noisy.count is None:
        return gradient, state
    num_drawn = rate * number_of(rows)
    share = kernel.mechanism.clipped_share(noisy.count, num_drawn)
    variance = (kernel.mechanism.count_std * noise_multiplier / num_drawn) ** 2
    return gradient, state._replace(clipped=state.clipped + jnp.stack([share, variance]).astype(state.clipped.dtype))


def _moved(kernel: "DPKernel", state: Any, position: Any, gradient: Any, step_size: Any) -> Any:
    moved = kernel.advance(state._replace(z=position), gradient, step_size)
    z = kernel._scaled(moved.z)
    midpoint = jax.tree.map(lambda one, other: 0.5 * (one + other), state.z, z)
    return moved._replace(i=state.i + 1, z=z, midpoint=midpoint)
