"""What the private kernels share: configuration, NumPyro's calling convention, and what a run of steps costs."""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from dpppl.clipping import Flat
from dpppl.errors import ConfigurationError
from dpppl.initialization import initial_values
from dpppl.mechanism import Mechanism
from dpppl.model import split_model
from dpppl.report import PrivacyReport
from dpppl.subsampling import FullBatch, Poisson

_LOWERED = 1.0 - 1e-6


class DPKernel(MCMCKernel):
    """A NumPyro kernel whose every step looks at the data once, through the door.

    The Langevin noise is the privacy noise: the door is called with noise multiplier
    max(s * rate / (h * clipping_norm), noise_multiplier), where s is the standard deviation that the sampler wants for
    a step of size h; no kernel draws noise of its own.

    The state is a named tuple with at least `i` (steps done, which count data accesses), `z` (unconstrained latents by
    site) and `rng_key`.
    """

    sample_field = "z"

    def __init__(
        self,
        model: Callable,
        *,
        clipping_norm: float,
        subsampling: FullBatch | Poisson | None = None,
        step_size: float | str | Callable = "matched",
        noise_multiplier: float | None = None,
        temperature: float = 1.0,
        num_data: int | None = None,
        data_plate: str | None = None,
        init_strategy: str | Mapping = "prior_median",
    ):
        subsampling = FullBatch() if subsampling is None else subsampling
        if not isinstance(subsampling, FullBatch | Poisson):
            raise ConfigurationError("subsampling must be dpppl.FullBatch() or dpppl.Poisson(rate).")
        self.mechanism = Mechanism(clipping=Flat(clipping_norm), subsampling=subsampling)
        self._model = model
        self.temperature = _positive("temperature", temperature)
        self.noise_multiplier = None if noise_multiplier is None else _positive("noise_multiplier", noise_multiplier)
        if num_data is not None and (not isinstance(num_data, int) or num_data < 1):
            raise ConfigurationError("num_data is the declared, public number of rows: a positive integer.")
        self.num_data = num_data
        self.data_plate = data_plate
        self.init_strategy = init_strategy
        if not (callable(step_size) or step_size == "matched"):
            step_size = _positive("step_size", step_size)
        self.step_size = step_size
        self._split = None
        self._schedule = None
        if step_size == "matched" and self.noise_multiplier is not None:
            self.step_size = self.matched_step_size(self.noise_multiplier)

    @property
    def model(self):
        """The NumPyro model."""
        return self._model

    @abstractmethod
    def matched_step_size(self, noise_multiplier: float) -> float:
        """The largest step at which the noise required for privacy is no more than the sampler's own."""

    @abstractmethod
    def langevin_std(self, step_size):
        """Standard deviation of the one Gaussian draw of a step of this size, at the kernel's temperature."""

    @abstractmethod
    def temperature_at(self, step_size, std):
        """Lower bound on the temperature at which steps of this size with noise of this std sample; exact at rate 1."""

    @abstractmethod
    def diffusion_time(self, step_size, std):
        """Time of the overdamped diffusion for which one such step stands."""

    @abstractmethod
    def first_state(self, z, rng_key):
        """The state before the first step."""

    @abstractmethod
    def advance(self, state, noisy_gradient, step_size):
        """The state after a step, given the noisy gradient of the log posterior at `state.z` (a dict by site)."""

    def with_noise(self, noise_multiplier: float | None) -> "DPKernel":
        """A copy without cached structure, at this noise multiplier and, if the step is matched, at its matched step."""
        kernel = copy.copy(self)
        kernel._split = kernel._schedule = None
        if noise_multiplier is not None:
            kernel.noise_multiplier = noise_multiplier
            if self.step_size == "matched":
                kernel.step_size = self.matched_step_size(noise_multiplier)
        return kernel

    def with_overflow_probability(self, probability: float) -> "DPKernel":
        """A copy whose subsampling overflows its static cap with at most this probability a step."""
        kernel = self.with_noise(None)
        kernel.mechanism = self.mechanism.with_overflow_probability(probability)
        return kernel

    # NumPyro's calling convention

    def bind(self, args: tuple, kwargs: dict) -> None:
        """Find the model's structure for these arguments, from shapes and dtypes alone."""
        self._split = split_model(self._model, args, kwargs, data_plate=self.data_plate)

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        """The first state. Pure: it looks at no data and charges nothing. A batch of keys gives a batch of states."""
        if self._split is None:
            self.bind(model_args, model_kwargs)
        _, public = self._split.arrays(model_args, model_kwargs)
        start = partial(self._start, public)
        if is_prng_key(rng_key):
            return start(rng_key, init_params)
        return jax.vmap(start, in_axes=(0, None if init_params is None else 0))(rng_key, init_params)

    def _start(self, public, rng_key, init_params):
        key, start_key = jax.random.split(rng_key)
        strategy = self.init_strategy if init_params is None else init_params
        return self.first_state(initial_values(self._split, public, start_key, strategy), key)

    def sample(self, state, model_args, model_kwargs):
        """One step: one access of the data. Vectorised when the state holds a batch of keys."""
        rows, public = self._split.arrays(model_args, model_kwargs)
        step = partial(self.step, rows=rows, public=public)
        return step(state) if is_prng_key(state.rng_key) else jax.vmap(step)(state)

    def step(self, state, *, rows, public):
        """One step from a single state, given the private rows (passed on to the door) and the Public arrays."""
        step_size, noise_multiplier = self._at(state.i)
        noisy_sum = self.mechanism.noisy_sum(
            self._split.log_likelihood, state.z, rows, public, state.rng_key, noise_multiplier, state.i
        )
        prior_gradient = jax.grad(self._split.log_prior)(state.z, public)
        rate = self.mechanism.subsampling.rate
        gradient = jax.tree.map(lambda prior, noisy: prior + noisy / rate, prior_gradient, noisy_sum)
        return self.advance(state, gradient, step_size)._replace(i=state.i + 1)

    def postprocess_fn(self, model_args, model_kwargs):
        """Maps unconstrained latents to constrained ones and to deterministic sites that depend on latents only."""
        _, public = self._split.arrays(model_args, model_kwargs)
        return lambda z: self._split.constrain(z, public)

    # What steps cost

    def _at(self, count):
        """(step size, noise multiplier) of the step number `count`, from 0; pure, used on the device and off it."""
        if self.step_size == "matched":
            raise ConfigurationError(
                'step_size="matched" needs a noise multiplier to match: give noise_multiplier, or target_epsilon and '
                "target_delta to dpppl.MCMC."
            )
        step_size = jnp.asarray(self.step_size(count) if callable(self.step_size) else self.step_size, jnp.result_type(float))
        mechanism = self.mechanism
        langevin = self.langevin_std(step_size) * (
            mechanism.subsampling.rate / mechanism.clipping.clipping_norm
        ) / step_size
        return step_size, jnp.maximum(langevin, 0.0 if self.noise_multiplier is None else self.noise_multiplier)

    def schedule(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Step sizes and noise multipliers of steps first .. first+count-1, float64 (count,).

        The multipliers come from the same arithmetic as on the device and are lowered by 1e-6, so that rounding cannot
        make the account too small. Raises ConfigurationError if a step is not positive and finite."""
        if self._schedule is None:
            self._schedule = jax.jit(jax.vmap(self._at))
        steps, multipliers = jax.tree.map(lambda x: np.asarray(x, np.float64), self._schedule(first + jnp.arange(count)))
        bad = ~(np.isfinite(steps) & (steps > 0) & np.isfinite(multipliers) & (multipliers > 0))
        if bad.any():
            raise ConfigurationError(
                f"the step size must be positive and finite at every step; step {first + int(np.argmax(bad))} is not."
            )
        return steps, multipliers * _LOWERED

    def report(self, ranges, *, delta: float | None, num_chains: int = 1, **facts) -> PrivacyReport:
        """The report of the steps in `ranges`, a sequence of (first, count, chains)."""
        ranges = [r for r in ranges if r[1]]
        pairs = [self.schedule(first, count) for first, count, _ in ranges]
        multipliers = [np.repeat(multiplier, chains) for (_, multiplier), (_, _, chains) in zip(pairs, ranges)]
        rate, norm = self.mechanism.subsampling.rate, self.mechanism.clipping.clipping_norm
        steps = np.concatenate([step for step, _ in pairs]) if pairs else np.zeros(0)
        std = np.concatenate([m * h for h, m in pairs]) * norm / rate if pairs else np.zeros(0)
        temperatures = self.temperature_at(steps, std)
        weights = np.concatenate([np.full(count, chains / num_chains) for _, count, chains in ranges]) if pairs else 0.0
        return PrivacyReport(
            method=type(self).__name__,
            events=(self.mechanism.event(np.concatenate(multipliers)),) if pairs else (),
            delta=delta,
            num_data=self.num_data,
            clipping=self.mechanism.clipping.describe(),
            clipping_norm=norm,
            subsampling=self.mechanism.subsampling.describe(),
            num_chains=num_chains,
            target_temperature=self.temperature,
            temperatures=(float(temperatures.min()), float(temperatures.max())) if pairs else (math.nan, math.nan),
            step_sizes=(float(steps.min()), float(steps.max())) if pairs else (math.nan, math.nan),
            diffusion_time=float(np.sum(weights * self.diffusion_time(steps, std))),
            assumed_public=self._split.assumed_public if self._split is not None else (),
            **({"initial_values": describe_start(self.init_strategy)} | facts),
        )

    def privacy_report(self, last_state, delta: float | None = None) -> PrivacyReport:
        """What a run under plain `numpyro.infer.MCMC` has cost, from the step counter of its last state.

        Plain NumPyro keeps the key in the state and may compile the data into the program: both are outside the
        guarantee, and the report says so."""
        counters = np.atleast_1d(np.asarray(last_state.i))
        return self.report(
            [(0, int(count), 1) for count in counters],
            delta=delta,
            num_chains=len(counters),
            key_origin="supplied to numpyro.infer.MCMC, whose states hold the key: keep states and pickles secret",
            status="run under numpyro.infer.MCMC",
        )


def describe_start(strategy) -> str:
    """The starting values in words, for the report."""
    if isinstance(strategy, str):
        return strategy.replace("_", " ")
    return "supplied by the user: assumed independent of the data"


def _positive(name: str, value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise ConfigurationError(f"{name} must be a positive number, got {type(value).__name__}.")
    if not (value > 0 and math.isfinite(value)):
        raise ConfigurationError(f"{name} must be positive and finite, got {value!r}.")
    return float(value)
