"""Three kernels whose own noise is the privacy noise: DP-SGLD, DP-SGHMC with momentum, DP-SGNHT with a thermostat."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.mcmc.dynamics import ChainState
from dpppl.mcmc.kernel import DPKernel
from dpppl.randomness import keys
from dpppl.types import BySite, Function, Numbers, Scalar, Tree
from dpppl.validation import checked_call, in_words, optional, plain, positive

_FRICTION = 0.1
_COUPLING = 3e-3
"""How far the friction of a step, h zeta, moves when the kinetic temperature is off by one: it settles within some
hundred steps, whatever the scale of the problem."""


def langevin_step(z: BySite, noisy_gradient: BySite, step_size: jax.Array) -> Tree:
    """z + h * G. The Langevin noise is already in G: the door was called with noise multiplier s * rate / (h * C)."""
    return jax.tree.map(lambda position, gradient: position + step_size * gradient, z, noisy_gradient)


class DPSGLD(DPKernel):
    """Differentially private stochastic gradient Langevin dynamics, a NumPyro kernel.

    z <- z + h * (grad log prior + sum of clipped row gradients / rate) + s * xi with
    s = max(sqrt(2 * temperature * h), h * clipping_norm * noise_multiplier / rate).

    The samples are midpoints of successive positions z. Where the posterior is Gaussian they have exactly its variance at
    every step h below 2 / (its largest curvature).

    All arguments are fixed when the kernel is made:

    - **model** - a NumPyro model with one data plate.
    - **clipping_norm** - bound on the norm of one row's gradient, in unconstrained space. "auto", the default, spends 1 % of
      the cost on a histogram of norms at the start. Its norm clips a tenth of the rows at most, and a fifth where chains start
      from a frame; of flat clipping it is 1.25 times the .99 quantile of norms.
    - **clipping** - "centred" clips the difference of a row's gradient and its expectation under the model: the posterior is
      unbiased however many rows are clipped. "flat" clips the gradient itself, and works for every model. The default is
      "centred" where the norm is "auto", and "flat" where you give a norm.
    - **subsampling** - FullBatch(), the default, Poisson(rate), Partition(num_batches), WithoutReplacement(...).
    - **step_size** - h in the time of the diffusion: a number, a function of the step count from 0 (an optax schedule, say), or
      "matched". A matched step is the largest whose Langevin noise is at least the noise for privacy; the warmup shortens it
      where it is unstable.
    - **noise_multiplier** - noise for privacy in units of clipping_norm, where no target_epsilon gives it.
    - **temperature** - 1 targets the (clipped) posterior.
    - **preconditioner** - a public diagonal, by site, in whose coordinates z / sqrt(diagonal) the chain moves and gradients are
      clipped.
    - **row_curvature** - a public bound on the curvature of one row's log likelihood; with num_data the report then checks that
      steps are stable.
    - **num_data** - the number of rows, declared before the run; it is public in any case.
    - **data_plate** - the plate that holds the rows, where two fit.
    - **init_strategy** - "prior_median", "prior_sample", unconstrained values by site, or one of NumPyro's `init_to_value`,
      `init_to_median`, `init_to_uniform` and `init_to_sample`.
    - **gradient_strategy** - "ghost" sums clipped gradients of rows without forming them, where latents are weights of products
      (docs/mechanism.md); "vmap" forms those of all rows at once, "microbatch" chunk by chunk; "auto" chooses.
    - **discretise** - whole numbers and discrete Gaussian noise inside the mechanism, against attacks on floating-point noise;
      accounted by RDP, so epsilon is larger (docs/mechanism.md).
    - **measure_clipping** - whether to spend 1 % of the cost on three shares of rows: clipped ones, those whose gradient is not
      finite, and those whose gradient is 0. It applies where a norm is given or clipping is flat.

    Guarantee: each step is one access of the mechanism in `DPKernel.mechanism`; all states may be released.
    Raises ConfigurationError for arguments out of range; UnsupportedModelError when a run binds an unsuitable model.
    Reference: Li, Chen, Liu, Carin (2019), Algorithm 1, with the sign and the noise variance corrected.

    >>> import dpppl, numpyro, numpyro.distributions as dist
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=50.0, measure_clipping=False).step_size
    0.0008
    """

    def longest_step(self, curvature: Numbers) -> Numbers:
        return 0.5 / curvature

    def advance(self, state: ChainState, noisy_gradient: BySite, step_size: jax.Array) -> ChainState:
        return state._replace(z=langevin_step(state.z, noisy_gradient, step_size))


class Velocity(NamedTuple):
    """The part of `DPSGHMC` in the state of a chain.

    - **v** - the velocity, by site."""

    v: BySite


def hamiltonian_step(z: BySite, v: Tree, noisy_gradient: BySite, step_size: jax.Array, friction: jax.Array) -> Tree:
    """v <- (1 - friction) v + step_size * G, then z <- z + v. The friction's noise is already in G."""
    v = jax.tree.map(lambda velocity, g: (1.0 - friction) * velocity + step_size * g, v, noisy_gradient)
    return jax.tree.map(jnp.add, z, v), v


class DPSGHMC(DPKernel):
    """Differentially private stochastic gradient Hamiltonian Monte Carlo, a NumPyro kernel.

    v <- (1 - friction) v + eta * (grad log prior + sum of clipped row gradients / rate) + s * xi; z <- z + v, with
    s = max(sqrt(2 * friction * temperature * eta), eta * clipping_norm * noise_multiplier / rate) and eta = step_size.

    - **model** - a NumPyro model with one data plate.
    - **friction** - in (0, 1), or "matched" together with a number for `step_size`. A matched friction restores the temperature
      under the noise for privacy: eta * (clipping_norm * noise_multiplier / rate)^2 / (2 temperature).

    The other arguments, guarantee and errors are `DPSGLD`'s.
    Reference: Li, Chen, Liu, Carin (2019), Algorithm 2, with the sign and the noise variance corrected; Chen, Fox,
    Guestrin (2014), equation 15.

    >>> import dpppl
    >>> kernel = dpppl.DPSGHMC(lambda y: None, clipping_norm=1.0, noise_multiplier=10.0, friction=0.1)
    >>> round(kernel.step_size, 5)
    0.00198
    """

    @checked_call
    def __init__(self, model: Function, *, friction: float | str = 0.1, **settings: Tree) -> None:
        friction = plain(friction)
        if friction != "matched" and not (isinstance(friction, int | float) and 0.0 < friction < 1.0):
            raise ConfigurationError(f'friction must lie in (0, 1) or be "matched", got {in_words(friction)}.')
        if friction == "matched" and not isinstance(plain(settings.get("step_size")), int | float):
            raise ConfigurationError('friction="matched" needs a number for step_size: one is matched to the other.')
        self.friction = friction
        super().__init__(model, **settings)

    def _matched(self, noise_multiplier: float) -> dict[str, Tree]:
        if self.friction != "matched":
            return super()._matched(noise_multiplier)
        rate, norm = self.mechanism.subsampling.rate, self.mechanism.noise_scale
        step_size = positive(self.step_size, name="step_size")
        friction = step_size * (norm * noise_multiplier / rate) ** 2 / (2.0 * self.temperature)
        if not friction < 1.0:
            raise ConfigurationError(
                f"the noise that privacy needs would take a friction of {friction:.3g}, which must be below 1; lower "
                "step_size."
            )
        return {"friction": friction}

    @property
    def is_matched(self) -> bool:
        return "matched" in (self.step_size, self.friction)

    def langevin_std(self, step_size: Numbers) -> Numbers:
        if self.friction == "matched":
            raise ConfigurationError('friction="matched" needs a noise multiplier or a target epsilon.')
        return super().langevin_std(step_size)

    def longest_step(self, curvature: Numbers) -> Numbers:
        return 0.8 / curvature

    def first_own(self, z: BySite, rng_key: jax.Array, num_warmup: Tree = 0) -> Velocity:
        return Velocity(jax.tree.map(jnp.zeros_like, z))

    def advance(self, state: ChainState, noisy_gradient: BySite, step_size: jax.Array) -> ChainState:
        z, v = hamiltonian_step(state.z, state.own.v, noisy_gradient, step_size, self.friction)
        return state._replace(z=z, own=Velocity(v))


class Thermostat(NamedTuple):
    """The part of `DPSGNHT` in the state of a chain.

    - **p** - the momentum, by site.
    - **zeta** - the friction.
    - **hold** - steps before the friction starts to move."""

    p: BySite
    zeta: jax.Array
    hold: jax.Array


def thermostat_step(
    z: Tree, p: Tree, zeta: Tree, noisy_gradient: Tree, step_size: Scalar, temperature: Scalar, coupling: Scalar
) -> Tree:
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

    In the first half of the warmup zeta stays as it is. The thermostat absorbs isotropic excess noise (privacy noise above the
    sampler's own, and the isotropic part of minibatch noise) as long as s^2 < 2 * temperature; a run beyond that is refused. One
    scalar zeta cures isotropic noise only. The other arguments, guarantee and errors are `DPSGLD`'s.
    Reference: Ding et al. (2014), Algorithm 1, with the middle of the momenta for a finite step and a thermostat whose
    mass is in proportion to h^2 (Algorithm 1 has a mass of 1, which takes diffusion / h steps to settle).

    >>> import dpppl
    >>> round(dpppl.DPSGNHT(lambda y: None, clipping_norm=1.0, noise_multiplier=10.0, diffusion=2.0).step_size, 6)
    0.0396
    >>> round(dpppl.DPSGNHT(lambda y: None, clipping_norm=1.0, noise_multiplier=10.0).step_size, 6)
    0.044497
    """

    @checked_call
    def __init__(self, model: Function, *, diffusion: float | None = None, **settings: Tree) -> None:
        self.diffusion = optional(positive, diffusion, name="diffusion")
        super().__init__(model, **settings)

    def matched_step_size(self, noise_multiplier: float) -> float:
        rate, norm = self.mechanism.subsampling.rate, self.mechanism.noise_scale
        ratio = rate / (norm * noise_multiplier)
        if self.diffusion is None:
            return (2.0 * _FRICTION * self.temperature) ** 0.5 * ratio
        return 2.0 * self.diffusion * self.temperature * ratio**2

    def langevin_std(self, step_size: Numbers) -> jax.Array:
        friction = _FRICTION if self.diffusion is None else self.diffusion * step_size
        return jnp.sqrt(2.0 * friction * self.temperature)

    def longest_step(self, curvature: Numbers) -> Numbers:
        return (0.8 / curvature) ** 0.5

    def check_noise(self, std: Numbers) -> None:
        largest = float(np.max(std)) ** 2
        if largest >= 2.0 * self.temperature:
            raise ConfigurationError(
                f"the variance of a step's noise, {largest:.3g}, is not below 2 * temperature: the thermostat would "
                "diverge. Take more steps, a smaller step_size or a smaller diffusion, or a larger epsilon."
            )

    def temperature_at(self, step_size: Numbers, std: Numbers) -> np.ndarray:
        return np.full_like(step_size, self.temperature)

    def temperature_note(self, std: Numbers) -> str:
        share = float(np.max(std**2)) / (2.0 * self.temperature)
        return (
            f"{self.temperature:g}, kept by the thermostat for isotropic noise (largest s^2 / 2 tau = {share:.3g}, "
            "must be below 1); anisotropic minibatch noise is not cured"
        )

    def diffusion_time(self, step_size: Numbers, std: Numbers) -> Numbers:
        friction = std**2 / (2.0 * step_size * self.temperature)
        return step_size / friction

    def friction_at(self, std: Numbers) -> float:
        return float(np.mean(std)) ** 2 / (2.0 * self.temperature)

    def first_own(self, z: BySite, rng_key: jax.Array, num_warmup: Tree = 0) -> Thermostat:
        leaves, tree = jax.tree.flatten(z)
        subkeys = jax.random.split(keys.stream(rng_key, "momentum"), len(leaves))
        p = [
            jnp.sqrt(self.temperature) * jax.random.normal(key, leaf.shape, leaf.dtype)
            for key, leaf in zip(subkeys, leaves)
        ]
        step_size, noise_multiplier = self.step_and_noise(0)
        zeta = self.noise_std(step_size, noise_multiplier) ** 2 / (2.0 * step_size * self.temperature)
        return Thermostat(jax.tree.unflatten(tree, p), zeta, jnp.asarray(num_warmup // 2, jnp.int32))

    def advance(self, state: ChainState, noisy_gradient: Tree, step_size: jax.Array) -> ChainState:
        p, zeta, hold = state.own
        coupling = jnp.where(state.i < hold, 0.0, _COUPLING / step_size)
        if state.search is not None:  # it is held at its value for the step that was found
            held = self.langevin_std(step_size) ** 2 / (2.0 * step_size * self.temperature)
            zeta = jnp.where(state.i <= hold, held, zeta)
        z, p, zeta = thermostat_step(state.z, p, zeta, noisy_gradient, step_size, self.temperature, coupling)
        return state._replace(z=z, own=Thermostat(p, zeta, hold))
