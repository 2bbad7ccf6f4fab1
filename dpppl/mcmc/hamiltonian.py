"""DP-SGHMC: stochastic gradient Hamiltonian Monte Carlo whose friction noise is the privacy noise."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpppl.errors import ConfigurationError
from dpppl.mcmc.kernel import DPKernel
from dpppl.validation import checked_call, in_words, plain, positive


class DPSGHMCState(NamedTuple):
    """The state of `DPSGHMC`.

    - **i**, **z**, **midpoint**, **search**, **clipped**, **rng_key** - as in `DPSGLDState`.
    - **v** - the velocity, by site.
    """

    i: Any
    z: Any
    midpoint: Any
    search: Any
    clipped: Any
    v: Any
    rng_key: Any


def hamiltonian_step(z: Any, v: Any, noisy_gradient: Any, step_size: Any, friction: Any) -> Any:
    """v <- (1 - friction) v + step_size * G, then z <- z + v. The friction's noise is already in G."""
    v = jax.tree.map(lambda velocity, g: (1.0 - friction) * velocity + step_size * g, v, noisy_gradient)
    return jax.tree.map(jnp.add, z, v), v


class DPSGHMC(DPKernel):
    """Differentially private stochastic gradient Hamiltonian Monte Carlo, a NumPyro kernel.

    v <- (1 - friction) v + eta * (grad log prior + sum of clipped row gradients / rate) + s * xi; z <- z + v, with
    s = max(sqrt(2 * friction * temperature * eta), eta * clipping_norm * noise_multiplier / rate) and eta = step_size.

    - **model** - a NumPyro model with one data plate.
    - **friction** - in (0, 1), or "matched" together with a number for `step_size`: then the friction that restores the
      temperature for the noise that privacy needs, eta * (clipping_norm * noise_multiplier / rate)^2 / (2 temperature).

    The other arguments, guarantee and errors are `DPSGLD`'s.
    Reference: Li, Chen, Liu, Carin (2019), Algorithm 2, with the sign and the noise variance corrected; Chen, Fox,
    Guestrin (2014), equation 15.

    >>> import dpppl
    >>> kernel = dpppl.DPSGHMC(lambda y: None, clipping_norm=1.0, noise_multiplier=10.0, friction=0.1)
    >>> round(kernel.step_size, 5)
    0.00198
    """

    @checked_call
    def __init__(self, model: Callable[..., Any], *, friction: float | str = 0.1, **settings: Any) -> None:
        friction = plain(friction)
        if friction != "matched" and not (isinstance(friction, int | float) and 0.0 < friction < 1.0):
            raise ConfigurationError(f'friction must lie in (0, 1) or be "matched", got {in_words(friction)}.')
        if friction == "matched" and not isinstance(plain(settings.get("step_size")), int | float):
            raise ConfigurationError('friction="matched" needs a number for step_size: one is matched to the other.')
        self.friction: Any = friction
        super().__init__(model, **settings)

    def _matched(self, noise_multiplier: float) -> dict[str, Any]:
        if self.friction != "matched":
            return super()._matched(noise_multiplier)
        rate, norm = self.mechanism.subsampling.rate, self.mechanism.noise_scale
        friction = (
            positive(self.step_size, name="step_size")
            * (norm * noise_multiplier / rate) ** 2
            / (2.0 * self.temperature)
        )
        if not friction < 1.0:
            raise ConfigurationError(
                f"the noise that privacy needs would take a friction of {friction:.3g}, which must be below 1; lower "
                "step_size."
            )
        return {"friction": friction}

    @property
    def is_matched(self) -> Any:
        return "matched" in (self.step_size, self.friction)

    def matched_step_size(self, noise_multiplier: Any) -> Any:
        rate, norm = self.mechanism.subsampling.rate, self.mechanism.noise_scale
        return 2.0 * self.friction * self.temperature * (rate / (norm * noise_multiplier)) ** 2

    def langevin_std(self, step_size: Any) -> Any:
        if self.friction == "matched":
            raise ConfigurationError('friction="matched" needs a noise multiplier or a target epsilon.')
        return jnp.sqrt(2.0 * self.friction * self.temperature * step_size)

    def longest_step(self, curvature: Any) -> Any:
        return 0.8 / curvature

    def temperature_at(self, step_size: Any, std: Any) -> Any:
        return std**2 / (2.0 * self.friction * step_size)

    def diffusion_time(self, step_size: Any, std: Any) -> Any:
        return step_size / self.friction

    def friction_at(self, std: Any) -> float:
        return float(self.friction)

    def sample_weight(self, step_size: Any) -> Any:
        return step_size**0.5

    def first_state(self, z: Any, rng_key: Any, num_warmup: Any = 0) -> Any:
        return DPSGHMCState(jnp.zeros((), jnp.int32), z, z, None, None, jax.tree.map(jnp.zeros_like, z), rng_key)

    def advance(self, state: Any, noisy_gradient: Any, step_size: Any) -> Any:
        z, v = hamiltonian_step(state.z, state.v, noisy_gradient, step_size, self.friction)
        return state._replace(z=z, v=v)
