"""A kernel bound to a model's arguments: first states, and one step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.util import is_prng_key

from dpppl.access.centring import noisy_centred_sum
from dpppl.access.clipping import NUM_COUNTS, Centred
from dpppl.access.door import NoisySum, noisy_sum
from dpppl.data.rows import number_of
from dpppl.errors import ConfigurationError
from dpppl.mcmc.dynamics import ChainState, Dynamics
from dpppl.mcmc.step_search import after, no_search, probe, steps_of
from dpppl.model.arguments import Arrays
from dpppl.model.initialization import initial_values
from dpppl.model.responses import Responses
from dpppl.model.split import SplitModel
from dpppl.model.supports import codes
from dpppl.model.units import responses_of
from dpppl.types import BySite, Tree


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A kernel with the structure that its model has for a run's arguments. Holds shapes and dtypes, no values of rows.

    Positions u are those in which the chain moves, gradients are clipped and noise is added: z / scale with a preconditioner,
    those of the kernel's metric with one, else z.

    - **kernel** - the settings.
    - **split** - the model's log prior and the log likelihood of one row.
    - **responses** - distributions of the responses, None unless clipping is centred.
    - **scales** - square roots of the preconditioner by site, empty without one.
    - **codes** - which values the observed sites take; see `supports.codes`."""

    kernel: Dynamics
    split: SplitModel
    responses: Responses | None
    scales: BySite
    codes: tuple[str, ...] = ()

    @classmethod
    def of(cls, kernel: Dynamics, split: SplitModel, public: Arrays) -> "BoundKernel":
        """Bind a kernel. Raises ConfigurationError for settings by site that do not fit the model's sites."""
        clipping = kernel.mechanism.clipping
        sites = kernel.preconditioner
        if sites is not None and set(sites) != set(split.latents):
            raise ConfigurationError(
                f"preconditioner is given for sites {sorted(sites)}, but the latent sites are {sorted(split.latents)}."
            )
        diagonals = kernel.preconditioner or {}
        scales = {site: scale_of(site, diagonal, split.latents[site]) for site, diagonal in diagonals.items()}
        responses = responses_of(split, clipping.num_draws, public) if isinstance(clipping, Centred) else None
        return cls(kernel, split, responses, scales, codes(split))

    @property
    def num_latents(self) -> int:
        """Number of unconstrained coordinates."""
        return sum(math.prod(latent.shape) for latent in self.split.latents.values())

    def coordinates(self, z: Tree) -> Tree:
        """Preconditioned positions u, by site."""
        if self.kernel.metric is not None:
            return self.kernel.metric.coordinates(z)
        return {s: value / self.scales[s] for s, value in z.items()} if self.scales else z

    def latents(self, position: BySite) -> Tree:
        """Unconstrained latents z, by site."""
        if self.kernel.metric is not None:
            return self.kernel.metric.latents(position)
        return {s: u * self.scales[s] for s, u in position.items()} if self.scales else position

    # The start

    def init(self, rng_key: jax.Array, num_warmup: Tree, init_params: Tree, public: Tree) -> Tree:
        """The first state, as of `DPKernel.init`. Pure: looks at no data, charges nothing."""
        start = partial(self._start, public, num_warmup)
        if is_prng_key(rng_key):
            return start(rng_key, init_params)
        return jax.vmap(start, in_axes=(0, None if init_params is None else 0))(rng_key, init_params)

    def _start(self, public: Tree, num_warmup: jax.Array, rng_key: jax.Array, init_params: Tree) -> ChainState:
        key, start_key = jax.random.split(rng_key)
        metric = self.kernel.metric
        own = self.kernel.init_strategy if metric is None else metric.start
        strategy = own if init_params is None else init_params
        z = initial_values(self.split, public, start_key, strategy)
        search = no_search(z)._replace(until=steps_of(num_warmup)) if self.kernel.searches else None
        counts = jnp.zeros(NUM_COUNTS + 1) if self.kernel.mechanism.counts else None
        return ChainState(
            jnp.zeros((), jnp.int32), z, z, search, counts, self.kernel.first_own(z, key, num_warmup), key
        )

    # A step

    def step(self, state: Tree, *, rows: Tree, public: Tree) -> Tree:
        """The next state of one chain: one access of the data, and a move. See `step_search` for steps of a search."""
        kernel = self.kernel
        planned, noise_multiplier = kernel.step_and_noise(state.i)
        position = self.coordinates(state.z)
        if not kernel.searches:
            gradient, state = self._gradient(state, position, rows, public, noise_multiplier)
            return self._moved(state, position, gradient, planned)
        search, searching = state.search, state.i < state.search.until
        step_size = jnp.minimum(planned, kernel.longest_step(search.steepest))
        own_noise = jnp.maximum(noise_multiplier, kernel.langevin_multiplier(step_size))  # never less than was charged
        std = noise_multiplier * kernel.mechanism.noise_scale / kernel.mechanism.subsampling.rate
        hidden = 0.25 * std**2 / kernel.temperature
        multiplier = jnp.where(searching, noise_multiplier, own_noise)
        gradient, state = self._gradient(state, probe(search, state.i, position, hidden), rows, public, multiplier)
        searched, climbed = after(
            search, state.i, position, gradient, gradient_std=std, hidden=hidden,
            largest_step=lambda curvature: 0.5 / jnp.maximum(curvature, hidden),
            length_of=lambda move: jnp.sqrt(sum(jnp.sum(m**2) for m in jax.tree.leaves(self.latents(move)))),
        )  # fmt: skip
        climbed = self.latents(climbed)
        climbed = state._replace(z=climbed, midpoint=climbed, search=searched)
        moved = self._moved(state, position, gradient, step_size)
        left_out = dict(i=None, rng_key=None)  # neither is chosen between: the proof follows the counter and the key
        choose = lambda one, other: jnp.where(searching, one, other)  # noqa: E731
        chosen = jax.tree.map(choose, climbed._replace(**left_out), moved._replace(**left_out))
        return chosen._replace(i=moved.i, rng_key=state.rng_key)

    def _gradient(
        self, state: Tree, position: BySite, rows: Tree, public: Tree, noise_multiplier: jax.Array
    ) -> tuple[Tree, Tree]:
        """The noisy gradient of the log posterior, and the state that has counted the clipped rows: one access."""
        mechanism = self.kernel.mechanism
        noisy = self.noisy_sum(
            position, rows, public, key=state.rng_key, noise_multiplier=noise_multiplier, step=state.i
        )
        prior_gradient = jax.grad(lambda u: self.split.log_prior(self.latents(u), public))(position)
        rate = mechanism.subsampling.rate
        curvature_kept = 1.0 if self.kernel.metric is None else self.kernel.metric.kept
        gradient = jax.tree.map(lambda prior, total: curvature_kept * prior + total / rate, prior_gradient, noisy.total)
        if noisy.count is None:
            return gradient, state
        num_drawn = rate * number_of(rows)
        variance = (mechanism.count_std * noise_multiplier / num_drawn) ** 2
        counted = jnp.append(noisy.count / num_drawn, variance).astype(state.clipped.dtype)
        return gradient, state._replace(clipped=state.clipped + counted)

    def _moved(self, state: Tree, position: BySite, gradient: Tree, step_size: jax.Array) -> Tree:
        moved = self.kernel.advance(state._replace(z=position), gradient, step_size)
        z = self.latents(moved.z)
        midpoint = jax.tree.map(lambda one, other: 0.5 * (one + other), state.z, z)
        return moved._replace(i=state.i + 1, z=z, midpoint=midpoint)

    def noisy_sum(self, position: Tree, rows: Tree, public: Tree, **settings: Tree) -> NoisySum:
        """One access: the rows' clipped gradients in u. `settings`: key, noise_multiplier and step of `door.noisy_sum`."""
        mechanism, responses = self.kernel.mechanism, self.responses
        if responses is None:
            return noisy_sum(mechanism, self.log_likelihood, position, rows, public, **settings)
        return noisy_centred_sum(
            mechanism, responses, responses.is_binary, self.log_likelihood, lambda u, public: (self.latents(u), public),
            position, rows, public, **settings,
        )  # fmt: skip

    def log_likelihood(self, position: BySite, row: Tree, public: Tree, responses: object = None) -> jax.Array:
        """The log likelihood of one row; `responses`: in place of its own, or None."""
        found: jax.Array = self.split.log_likelihood(self.latents(position), row, public, responses)
        return found


def diagonal_of(preconditioner: Mapping[str, object]) -> dict[str, Tree]:
    """By site, float64. Raises ConfigurationError unless all of it is positive and finite."""
    if not isinstance(preconditioner, Mapping):
        raise ConfigurationError(
            f"preconditioner is a {type(preconditioner).__name__}; give a dict of positive numbers by site, {{'mu': 4.0}}."
        )
    try:
        values = {site: np.asarray(value, np.float64) for site, value in preconditioner.items()}
    except (TypeError, ValueError):
        raise ConfigurationError("preconditioner must hold positive numbers by site, {'mu': 4.0}.") from None
    for site, value in values.items():
        if not np.all(np.isfinite(value) & (value > 0)):
            raise ConfigurationError(f"the preconditioner of site '{site}' must be positive and finite.")
    return values


def scale_of(site: str, diagonal: Tree, latent: jax.ShapeDtypeStruct) -> jax.Array:
    """Square root of a preconditioner's diagonal, with the latent's shape and type."""
    scale = jnp.sqrt(jnp.asarray(diagonal, latent.dtype))
    try:
        return jnp.broadcast_to(scale, latent.shape)
    except ValueError:
        raise ConfigurationError(
            f"the preconditioner of site '{site}' has shape {scale.shape}, which does not broadcast to the shape "
            f"{latent.shape} of the unconstrained site."
        ) from None
