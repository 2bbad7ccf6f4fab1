"""DP-SGNHT: a Nose-Hoover thermostat that keeps the temperature whatever the privacy noise adds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.mcmc.kernel import DPKernel
from dpppl.randomness import keys
from dpppl.validation import checked_call, positive

_FRICTION = 0.1
_COUPLING = 3e-3
"""How far the friction of a step, h zeta, moves when the kinetic temperature is off by one: it settles within some
hundred steps, whatever the scale of the problem."""


class DPSGNHTState(NamedTuple):
    """The state of `DPSGNHT`.

    - **i**, **z**, **midpoint**, **search**, **clipped**, **rng_key** - as in `DPSGLDState`.
    - **p** - the momentum, by site.
    - **zeta** - the friction.
    - **hold** - steps before the friction starts to move.
    """

    i: Any
    z: Any
    midpoint: Any
    search: Any
    clipped: Any
    p: Any
    zeta: Any
    hold: Any
    rng_key: Any


def thermostat_step(
    z: Any, p: Any, zeta: Any, noisy_gradient: Any, step_size: Any, temperature: Any, coupling: Any
) -> Any:
    """p <- (1 - zeta h) p + h G; z <- z + h p; zeta <- zeta + coupling ((m.m / d) / temperature - 1), m the mean of p
    before and after.

    Where the posterior is Gaussian, m.m / d is the temperature at every stable step, in every direction, for any noise
    variance below 2 * temperature; those need h zeta below 1, so zeta is kept there."""
    h = step_size
    before = p
    p = jax.tree.map(lambda momentum, g: (1.0 - zeta * h) * momentum + h * g, p, noisy_gradient)
    z = jax.tree.map(lambda position, momentum: position + h * momentum, z, p)
    middle = jax.tree.leaves(jax.tree.map(lambda one, other: 0.5 * (one + other), before, p))
    kinetic = sum(jnp.sum(leaf**2) for leaf in middle) / sum(leaf.size for leaf in middle)
    zeta = zeta + coupling * (kinetic / temperature - 1.0)
    return z, p, jnp.minimum(zeta, 1.0 / h)


class DPSGNHT(DPKernel):
    """Differentially private stochastic gradient Nose-Hoover thermostat, a NumPyro kernel.

    p <- (1 - zeta h) p + h (grad log prior + sum of clipped row gradients / rate) + s * xi; z <- z + h p;
    zeta <- min(zeta + (0.003 / h) ((m.m / d) / temperature - 1), 1 / h), m the mean of p before and after, with
    s = max(sqrt(2 * diffusion * h * temperature), h * clipping_norm * noise_multiplier / rate).

    - **model** - a NumPyro model with one data plate.
    - **diffusion** - positive, or None for 0.1 / h: then s^2 = 0.2 * temperature and momentum lasts about ten steps.

    The thermostat absorbs isotropic excess noise (privacy noise above the sampler's own, and the isotropic part of
    minibatch noise) as long as s^2 < 2 * temperature; a run beyond that is refused. One scalar zeta cures isotropic
    noise only. The other arguments, guarantee and errors are `DPSGLD`'s.
    Reference: Ding et al. (2014), Algorithm 1, with the middle of the momenta for a finite step and a thermostat whose
    mass is in proportion to h^2 (Algorithm 1 has a mass of 1, which takes diffusion / h steps to settle).

    >>> import dpppl
    >>> round(dpppl.DPSGNHT(lambda y: None, clipping_norm=1.0, noise_multiplier=10.0, diffusion=2.0).step_size, 6)
    0.0396
    >>> round(dpppl.DPSGNHT(lambda y: None, clipping_norm=1.0, noise_multiplier=10.0).step_size, 6)
    0.044497
    """

    @checked_call
    def __init__(self, model: Callable[..., Any], *, diffusion: float | None = None, **settings: Any) -> None:
        self.diffusion = None if diffusion is None else positive(diffusion, name="diffusion")
        super().__init__(model, **settings)

    def matched_step_size(self, noise_multiplier: Any) -> Any:
        rate, norm = self.mechanism.subsampling.rate, self.mechanism.noise_scale
        ratio = rate / (norm * noise_multiplier)
        if self.diffusion is None:
            return (2.0 * _FRICTION * self.temperature) ** 0.5 * ratio
        return 2.0 * self.diffusion * self.temperature * ratio**2

    def langevin_std(self, step_size: Any) -> Any:
        friction = _FRICTION if self.diffusion is None else self.diffusion * step_size
        return jnp.sqrt(2.0 * friction * self.temperature)

    def longest_step(self, curvature: Any) -> Any:
        return (0.8 / curvature) ** 0.5

    def check_noise(self, std: Any) -> None:
        largest = float(np.max(std)) ** 2
        if largest >= 2.0 * self.temperature:
            raise ConfigurationError(
                f"the variance of a step's noise, {largest:.3g}, is not below 2 * temperature: the thermostat would "
                "diverge. Take more steps, a smaller step_size or a smaller diffusion, or a larger epsilon."
            )

    def temperature_at(self, step_size: Any, std: Any) -> Any:
        return np.full_like(step_size, self.temperature)

    def temperature_note(self, std: Any) -> Any:
        share = float(np.max(std**2)) / (2.0 * self.temperature)
        return (
            f"{self.temperature:g}, kept by the thermostat for isotropic noise (largest s^2 / 2 tau = {share:.3g}, "
            "must be below 1); anisotropic minibatch noise is not cured"
        )

    def diffusion_time(self, step_size: Any, std: Any) -> Any:
        friction = std**2 / (2.0 * step_size * self.temperature)
        return step_size / friction

    def friction_at(self, std: Any) -> float:
        return float(np.mean(std)) ** 2 / (2.0 * self.temperature)

    def first_state(self, z: Any, rng_key: Any, num_warmup: Any = 0) -> Any:
        leaves, tree = jax.tree.flatten(z)
        subkeys = jax.random.split(keys.stream(rng_key, "momentum"), len(leaves))
        p = [
            jnp.sqrt(self.temperature) * jax.random.normal(key, leaf.shape, leaf.dtype)
            for key, leaf in zip(subkeys, leaves)
        ]
        step_size, noise_multiplier = self.step_and_noise(0)
        zeta = self.noise_std(step_size, noise_multiplier) ** 2 / (2.0 * step_size * self.temperature)
        start, hold = jnp.zeros((), jnp.int32), jnp.asarray(num_warmup // 2, jnp.int32)
        return DPSGNHTState(start, z, z, None, None, jax.tree.unflatten(tree, p), zeta, hold, rng_key)

    def advance(self, state: Any, noisy_gradient: Any, step_size: Any) -> Any:
        coupling = jnp.where(state.i < state.hold, 0.0, _COUPLING / step_size)
        zeta = state.zeta
        if state.search is not None:  # it is held at its value for the step that was found
            held = self.langevin_std(step_size) ** 2 / (2.0 * step_size * self.temperature)
            zeta = jnp.where(state.i <= state.hold, held, zeta)
        z, p, zeta = thermostat_step(state.z, state.p, zeta, noisy_gradient, step_size, self.temperature, coupling)
        return state._replace(z=z, p=p, zeta=zeta)
