"""Settings of a private kernel, and step sizes, noise and cost of each step, which follow from them alone."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property, partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.mechanism import Mechanism
from dpppl.errors import ConfigurationError
from dpppl.frame.metric import Metric
from dpppl.mcmc.step_search import StepSearch
from dpppl.model.initialization import Strategy, of_numpyro
from dpppl.report.provenance import Start
from dpppl.runs.budget import Charge
from dpppl.types import BySite, Function, Numbers, Scalar, Tree
from dpppl.validation import Fixed, checked


class ChainState(NamedTuple):
    """The state of a chain between steps, the same for all kernels.

    - **i** - steps done, each an access of the data.
    - **z** - the position: unconstrained latents by site.
    - **midpoint** - the sample: the mean of this position and the one before.
    - **search** - see `step_search`; None where steps are not searched for.
    - **clipped** - sums over steps: counts of rows as shares of all (see `access.clipping.counted`), then the variance of their
      noise; None without.
    - **own** - what a kernel adds, or None. The fields of a named tuple are found as the state's own, too: `state.v`.
    - **rng_key** - the chain's key; None in states that MCMC returns."""

    i: jax.Array
    z: BySite
    midpoint: BySite
    search: StepSearch | None
    clipped: jax.Array | None
    own: Tree
    rng_key: jax.Array | None

    def __getattr__(self, name: str) -> Tree:
        if name in getattr(self.own, "_fields", ()):
            return getattr(self.own, name)
        raise AttributeError(f"the state of this kernel has no field '{name}'")


class Dynamics(Fixed, ABC):
    """The settings of a kernel and its mathematics; looks at no model and no data.

    In its methods `step_size` is h, `std` the standard deviation of a step's one Gaussian draw, `noise_multiplier` the noise in
    units of the clipping norm, and steps count from 0. Settings that are not listed are those of `dpppl.DPSGLD`.

    - **mechanism** - how a step looks at the rows: clipping, subsampling, noise.
    - **noise_multiplier** - noise for privacy in units of the clipping norm, None before it is known.
    - **step_size** - h: a number, a function of the step count from 0, or "matched" before the noise is known.
    - **auto_norm** - whether the clipping norm is still to be chosen from a private histogram.
    - **searches** - whether the warmup shortens steps that would be unstable.
    - **metric** - the frame in which chains start and move, None without one.
    - **friction** - the share of its momentum that a chain without forces loses in a step; 1 without momentum. Noise, time and
      temperature of a step follow from it; kernels that override these, as `DPSGNHT` with a friction that moves, leave it at 1.
    """

    mechanism: Mechanism
    noise_multiplier: float | None
    step_size: float | str | Function
    temperature: float
    preconditioner: Mapping[str, object] | None
    row_curvature: float | None
    num_data: int | None
    init_strategy: Strategy
    auto_norm: bool
    searches: bool
    metric: Metric | None
    friction: Tree = 1.0

    # Supplied by a method

    @property
    def is_matched(self) -> bool:
        """Whether a setting is to be matched to a noise multiplier that is not known yet."""
        return self.step_size == "matched"

    @property
    def start(self) -> Start:
        """Origin of the starting values, for the report."""
        strategy = self.init_strategy
        if self.metric is not None:
            return Start.FRAME
        if isinstance(strategy, str):
            return Start(strategy.replace("_", " "))
        return Start.NUMPYRO if of_numpyro(strategy) not in (None, "init_to_value") else Start.SUPPLIED

    @abstractmethod
    def longest_step(self, curvature: Numbers) -> Numbers:
        """The step size at which the stiffest direction is sampled well."""

    def matched_step_size(self, noise_multiplier: float) -> float:
        """The largest step size at which the noise required for privacy is no more than the sampler's own."""
        rate, norm = self.mechanism.subsampling.rate, self.mechanism.noise_scale
        return float(2.0 * self.friction * self.temperature * (rate / (norm * noise_multiplier)) ** 2)

    def langevin_std(self, step_size: Numbers) -> Numbers:
        """Standard deviation of the one Gaussian draw of a step, at the kernel's temperature."""
        return jnp.sqrt(2.0 * self.friction * self.temperature * step_size)

    def temperature_at(self, step_size: Numbers, std: Numbers) -> Numbers:
        """Lower bound on the temperature that steps sample at; exact where each sees every row and draws no responses."""
        return std**2 / (2.0 * self.friction * step_size)

    def diffusion_time(self, step_size: Numbers, std: Numbers) -> Numbers:
        """Time of the overdamped diffusion that one step stands for."""
        return step_size / self.friction

    def friction_at(self, std: Numbers) -> float:
        """`friction` of steps with this noise."""
        return float(self.friction)

    def check_noise(self, std: Numbers) -> None:
        """Raise ConfigurationError if the sampler diverges with this noise."""

    def temperature_note(self, std: Numbers) -> str | None:
        """The report's line about the temperature, if not the usual one."""
        return None

    def first_own(self, z: BySite, rng_key: jax.Array, num_warmup: Tree = 0) -> Tree:
        """`own` of the state before the first step."""
        return None

    @abstractmethod
    def advance(self, state: ChainState, noisy_gradient: BySite, step_size: jax.Array) -> ChainState:
        """The state after a step, with a new position and `own`."""

    # Copies

    def copy(self, **settings: object) -> Self:
        """A copy with other settings, not bound to a model's arguments."""
        kernel = copy.copy(self)
        kernel._settle(**settings)
        return kernel

    def _settle(self, **settings: object) -> None:
        """Set attributes, also those that are set already: for a kernel that nobody else holds yet."""
        for name, value in settings.items():
            object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_compiled_schedule"}

    def with_noise(self, noise_multiplier: float) -> Self:
        """A copy with this noise multiplier, and the settings that are matched to it."""
        return self.copy(noise_multiplier=noise_multiplier, **self._matched(noise_multiplier))

    def with_norm(self, clipping_norm: float) -> Self:
        """A copy with this clipping norm in place of one that was to be chosen, and the settings that are matched to it."""
        return self.with_mechanism(self.mechanism.with_norm(clipping_norm), auto_norm=False)

    def with_mechanism(self, mechanism: Mechanism, **settings: object) -> Self:
        """A copy with another mechanism and a step that is matched to it; its noise is known."""
        assert self.noise_multiplier is not None
        return self.copy(mechanism=mechanism, step_size="matched", **settings).with_noise(self.noise_multiplier)

    def _matched(self, noise_multiplier: float) -> dict[str, Tree]:
        """Settings that this noise multiplier decides."""
        return {"step_size": self.matched_step_size(noise_multiplier)} if self.step_size == "matched" else {}

    # Step sizes and noise

    def step_and_noise(self, count: object) -> tuple[Tree, Tree]:
        """Step size and noise multiplier of a step; pure, used on the device and off it."""
        if self.step_size == "matched":
            raise ConfigurationError(
                'step_size="matched" needs a noise multiplier to match: give noise_multiplier, or target_epsilon and '
                "target_delta to dpppl.MCMC."
            )
        given = self.step_size(count) if callable(self.step_size) else self.step_size
        if isinstance(given, str):
            raise TypeError("it is text")
        step_size = jnp.asarray(given, jnp.result_type(float))
        langevin = self.langevin_multiplier(step_size)
        return step_size, jnp.maximum(langevin, 0.0 if self.noise_multiplier is None else self.noise_multiplier)

    def langevin_multiplier(self, step_size: Numbers) -> Numbers:
        """The noise multiplier at which a step's noise is the sampler's own."""
        mechanism = self.mechanism
        return self.langevin_std(step_size) * (mechanism.subsampling.rate / mechanism.noise_scale) / step_size

    def noise_std(self, step_size: Numbers, noise_multiplier: Numbers) -> Numbers:
        """Standard deviation of the Gaussian draw of a step."""
        return noise_multiplier * step_size * self.mechanism.noise_scale / self.mechanism.subsampling.rate

    @cached_property
    def _compiled_schedule(self) -> Function:
        return jax.jit(jax.vmap(self.step_and_noise))

    def schedule(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Step sizes and noise multipliers of consecutive steps, float64 (count,).

        The multipliers come from the same arithmetic as on the device. Raises ConfigurationError if a step size is not
        positive and finite."""
        counts = np.arange(first, first + count, dtype=np.int32)  # the type of a state's counter
        compute = self._compiled_schedule if callable(self.step_size) else self.step_and_noise
        try:
            steps, multipliers = (np.broadcast_to(np.asarray(x, np.float64), count) for x in compute(counts))
        except ConfigurationError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"step_size, called with the number of a step, gives no number: {error}; give a function such as "
                "lambda step: 0.1 / (1.0 + step), written with jax.numpy, or dpppl.polynomial_decay(0.1)."
            ) from None
        bad = ~(np.isfinite(steps) & (steps > 0) & np.isfinite(multipliers) & (multipliers > 0))
        if bad.any():
            raise ConfigurationError(
                f"the step size must be positive and finite at every step; step {first + int(np.argmax(bad))} is not."
            )
        return steps, multipliers

    def shortened_schedule(self, first: int, count: int, longest: float) -> tuple[np.ndarray, np.ndarray]:
        """`schedule` after a search has shortened steps, with the noise multipliers that shorter steps then have."""
        steps, multipliers = self.schedule(first, count)
        cut = np.minimum(steps, longest)
        return cut, np.where(cut < steps, np.asarray(self.langevin_multiplier(cut), np.float64), multipliers)

    def longest_steps(self, search: StepSearch | None) -> np.ndarray:
        """The longest step size of each chain after its search, infinity where there was none; (chains,)."""
        steepest = np.atleast_1d(0.0 if search is None else np.asarray(search.steepest, np.float64))
        with np.errstate(divide="ignore"):
            return np.asarray(self.longest_step(steepest))

    def total_time(self, count: int, longest: float = np.inf) -> float:
        """Diffusion time of the first steps of a chain, with the longest step size that a search allows."""
        steps, multipliers = self.shortened_schedule(0, count, longest)
        return float(np.sum(self.diffusion_time(steps, self.noise_std(steps, multipliers))))

    def charge(self, first: int, count: int, chains: int = 1) -> Charge:
        """The cost of consecutive steps."""
        return Charge(self.mechanism, self.schedule(first, count)[1], first, chains)


@checked
def polynomial_decay(initial_step_size: float, power: float = 1.0 / 3.0) -> Function:
    """The schedule h_t = initial_step_size * t^(-power), where t = count + 1 counts from 1.

    A power of 1/3 is optimal for the mean squared error of posterior averages (Li, Chen, Liu, Carin 2019, section 3).
    Raises ConfigurationError unless both are positive and finite and power is at most 1.

    >>> float(polynomial_decay(0.1)(7))
    0.05000000074505806
    """
    if not 0.0 < initial_step_size < float("inf"):
        raise ConfigurationError("polynomial_decay: initial_step_size must be positive and finite.")
    if not 0.0 < power <= 1.0:
        raise ConfigurationError("polynomial_decay: power must lie in (0, 1].")
    return partial(_decayed, initial_step_size, power)


def _decayed(initial_step_size: Scalar, power: Scalar, count: Scalar) -> Numbers:
    return initial_step_size * (jnp.asarray(count, jnp.result_type(float)) + 1.0) ** -power
