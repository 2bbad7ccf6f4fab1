"""What the private kernels share: configuration, NumPyro's calling convention, and what a run of steps costs."""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from dpppl.access.centring import noisy_centred_sum
from dpppl.access.clipping import Centred, clipping_of
from dpppl.access.mechanism import Mechanism
from dpppl.access.norm_histogram import gradient_norm
from dpppl.errors import ConfigurationError
from dpppl.mcmc.details import chain_report
from dpppl.mcmc.preconditioning import diagonal_of, scale_of
from dpppl.mcmc.step import kernel_step
from dpppl.mcmc.step_search import no_search, steps_of
from dpppl.model.arguments import Public, name_of
from dpppl.model.initialization import STRATEGIES, initial_values
from dpppl.model.responses import Responses
from dpppl.model.split import SplitModel
from dpppl.model.units import responses_of, split_in_units
from dpppl.runs.budget import Charge, counted
from dpppl.runs.clipped_rows import count_share_of
from dpppl.runs.provenance import KeyOrigin, KeySource, Provenance, Start, Status
from dpppl.runs.report import PrivacyReport
from dpppl.subsampling import FullBatch, Subsampling
from dpppl.validation import Fixed, checked_call, full_signature, plain, positive, positive_integer

_COUNTED = (
    "Counted are the steps of this state, if each was taken once. Other runs add to them; steps from one state on several data "
    "sets have equal noise, and nothing protects those: use dpppl.MCMC, which claims keys and counts."
)


class DPKernel(Fixed, MCMCKernel):
    """A NumPyro kernel whose every step looks at the data once, through the door.

    The Langevin noise is the privacy noise: the door is called with noise multiplier
    max(s * rate / (h * clipping_norm), noise_multiplier), where s is the standard deviation that the sampler wants for
    a step of size h; no kernel draws noise of its own.

    Samples are midpoints of successive positions. Where the posterior is Gaussian they have its variance at every stable
    step, for all three kernels; the positions themselves are too wide by the factor 1 / (1 - h L / 2) in the
    overdamped case. A matched step that would be too long is shortened in the warmup: see `step_search`.

    Settings are fixed when a kernel is made. The state is a named tuple with at least `i` (steps done, which count data
    accesses), `z` (the position: unconstrained latents by site), `midpoint` (the sample), `search`, `clipped` (sums
    over steps: the measured share of clipped rows, and the variance of its noise) and `rng_key`.
    """

    sample_field = "midpoint"

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        cls.__signature__ = full_signature(cls)

    @checked_call
    def __init__(
        self,
        model: Callable[..., Any],
        *,
        clipping_norm: float | str | Mapping[str, float] = "auto",
        clipping: str | None = None,
        subsampling: Subsampling | None = None,
        step_size: float | str | Callable[..., Any] = "matched",
        noise_multiplier: float | None = None,
        temperature: float = 1.0,
        preconditioner: Mapping[str, Any] | None = None,
        row_curvature: float | None = None,
        num_data: int | None = None,
        data_plate: str | None = None,
        init_strategy: str | Mapping[str, Any] = "prior_median",
        gradient_strategy: str = "auto",
        discretise: bool = False,
        measure_clipping: bool = True,
    ) -> None:
        subsampling = FullBatch() if subsampling is None else subsampling
        if not isinstance(subsampling, Subsampling):
            raise ConfigurationError(
                "subsampling must be dpppl.FullBatch(), Poisson(rate), Partition(num_batches), ..."
            )
        self.auto_norm, step_size = isinstance(clipping_norm, str) and clipping_norm == "auto", plain(step_size)
        if self.auto_norm and step_size != "matched":
            raise ConfigurationError(
                'clipping_norm="auto" needs step_size="matched": a step\'s noise depends on the norm.'
            )
        norm: Any = 1.0 if self.auto_norm else clipping_norm
        if clipping is None:
            clipping = "centred" if self.auto_norm else "flat"
        clip = clipping_of(clipping, norm)
        self.mechanism = Mechanism(
            clipping=clip, subsampling=subsampling, strategy=gradient_strategy, discretise=discretise,
            count_share=count_share_of(clip, measure_clipping),
        )  # fmt: skip
        self._model = model
        self.temperature = positive(temperature, name="temperature")
        self.noise_multiplier = (
            None if noise_multiplier is None else positive(noise_multiplier, name="noise_multiplier")
        )
        self.num_data = None if num_data is None else positive_integer(num_data, name="num_data")
        self.row_curvature = None if row_curvature is None else positive(row_curvature, name="row_curvature")
        if row_curvature is not None and num_data is None:
            raise ConfigurationError("row_curvature needs num_data, the declared number of rows.")
        self.preconditioner = None if preconditioner is None else diagonal_of(preconditioner)
        self.data_plate = data_plate
        if not (init_strategy in STRATEGIES if isinstance(init_strategy, str) else isinstance(init_strategy, Mapping)):
            raise ConfigurationError(
                "init_strategy is 'prior_median', 'prior_sample' or a dict of unconstrained values by site."
            )
        self.init_strategy = init_strategy
        if not (callable(step_size) or step_size == "matched"):
            step_size = positive(step_size, name="step_size")
        self.step_size = step_size
        self.searches = step_size == "matched"
        self._split: SplitModel | None = None
        self._responses: Responses | None = None
        self._schedule: Callable[..., Any] | None = None
        self._scales: dict[str, Any] = {}
        if self.noise_multiplier is not None:
            self.__dict__.update(self._matched(self.noise_multiplier))

    def __repr__(self) -> str:
        clipping = 'clipping_norm "auto"' if self.auto_norm else self.mechanism.clipping.describe()
        noise = "" if self.noise_multiplier is None else f"; noise multiplier {self.noise_multiplier:g}"
        known = f"{self.step_size:.4g}" if isinstance(self.step_size, float) else self.step_size
        step_size = "scheduled" if callable(known) else known
        of = f"{type(self).__name__}({name_of(self._model)}"
        return f"{of}; {clipping}; {self.mechanism.subsampling.describe()}; step size {step_size}{noise})"

    @property
    def model(self) -> Any:
        """The NumPyro model."""
        return self._model

    @property
    def is_matched(self) -> bool:
        """Whether something is to be matched to a noise multiplier that is not known yet."""
        return self.step_size == "matched"

    @abstractmethod
    def matched_step_size(self, noise_multiplier: float) -> float:
        """The largest step at which the noise required for privacy is no more than the sampler's own."""

    @abstractmethod
    def langevin_std(self, step_size: Any) -> Any:
        """Standard deviation of the one Gaussian draw of a step of this size, at the kernel's temperature."""

    @abstractmethod
    def longest_step(self, curvature: Any) -> Any:
        """The step size at which the stiffest direction, of this curvature of the log posterior, is sampled well."""

    @abstractmethod
    def temperature_at(self, step_size: Any, std: Any) -> Any:
        """Lower bound on the temperature at which steps of this size with noise of this std sample; exact at rate 1."""

    @abstractmethod
    def diffusion_time(self, step_size: Any, std: Any) -> Any:
        """Time of the overdamped diffusion for which one such step stands."""

    def friction_at(self, std: Any) -> float:
        """The share of its momentum that a chain which nothing pulls loses in a step with noise of this std: 1 without one."""
        return 1.0

    def check_noise(self, std: np.ndarray) -> None:
        """Raise ConfigurationError if the sampler cannot stand noise of these standard deviations."""

    def temperature_note(self, std: Any) -> str | None:
        """What to say of the temperature instead of the usual line, where something else sets it."""
        return None

    def sample_weight(self, step_size: Any) -> Any:
        """The share of the posterior average that a sample after such a step deserves: the time it stands for."""
        return step_size

    @abstractmethod
    def first_state(self, z: Any, rng_key: Any) -> Any:
        """The state before the first step."""

    @abstractmethod
    def advance(self, state: Any, noisy_gradient: Any, step_size: Any) -> Any:
        """The state after a step, given the noisy gradient of the log posterior at `state.z` (a dict by site)."""

    def __getstate__(self) -> Any:
        return self.__dict__ | {"_split": None, "_responses": None, "_schedule": None, "_scales": {}}

    def copy(self, **settings: Any) -> Self:
        """A copy with other settings, not bound to a model's arguments."""
        kernel = copy.copy(self)
        kernel.__dict__.update(settings, _split=None, _responses=None, _schedule=None, _scales={})
        return kernel

    def with_noise(self, noise_multiplier: float) -> Self:
        """A copy at this noise multiplier and what is to be matched to it."""
        return self.copy(noise_multiplier=noise_multiplier, **self._matched(noise_multiplier))

    def with_mechanism(self, mechanism: Mechanism) -> Self:
        """A copy that looks at the data through this mechanism, bound to the same arguments."""
        kernel = self.copy(mechanism=mechanism)
        kernel._split, kernel._responses, kernel._scales = self._split, self._responses, self._scales
        return kernel

    def with_norm(self, clipping_norm: float) -> Self:
        """A copy at this flat norm, with what is to be matched to it, in place of one that was to be chosen."""
        mechanism = self.mechanism.with_norm(clipping_norm)
        kernel = self.copy(mechanism=mechanism, step_size="matched", auto_norm=False)
        assert self.noise_multiplier is not None
        return kernel.with_noise(self.noise_multiplier)

    def _matched(self, noise_multiplier: float) -> dict[str, Any]:
        """Settings that this noise multiplier decides."""
        return {"step_size": self.matched_step_size(noise_multiplier)} if self.step_size == "matched" else {}

    # NumPyro's calling convention

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find the model's structure for these arguments, from shapes and dtypes alone."""
        split = split_in_units(self._model, args, kwargs, data_plate=self.data_plate)
        for name, sites in (
            ("clipping_norm", getattr(self.mechanism.clipping, "norms", None)),
            ("preconditioner", self.preconditioner),
        ):
            if sites is not None and set(sites) != set(split.latents):
                raise ConfigurationError(
                    f"{name} is given for sites {sorted(sites)}, but the latent sites are {sorted(split.latents)}."
                )
        self._scales = {
            site: scale_of(site, diagonal, split.latents[site])
            for site, diagonal in (self.preconditioner or {}).items()
        }
        clipping = self.mechanism.clipping
        self._responses = responses_of(split, clipping.num_draws) if isinstance(clipping, Centred) else None
        self._split = split

    @property
    def split(self) -> SplitModel:
        """The structure of the model, once it is bound to a run's arguments."""
        if self._split is None:
            raise ConfigurationError("the kernel is not bound to a model's arguments yet: call init or run.")
        return self._split

    def init(self, rng_key: Any, num_warmup: Any, init_params: Any, model_args: Any, model_kwargs: Any) -> Any:
        """The first state. Pure: looks at no data, charges nothing. A batch of keys gives a batch of states."""
        self.bind(model_args, model_kwargs)
        _, public = self.split.arrays(model_args, model_kwargs)
        start = partial(self._start, public, steps_of(num_warmup))
        if is_prng_key(rng_key):
            return start(rng_key, init_params)
        return jax.vmap(start, in_axes=(0, None if init_params is None else 0))(rng_key, init_params)

    def _start(self, public: Any, search_steps: Any, rng_key: Any, init_params: Any) -> Any:
        key, start_key = jax.random.split(rng_key)
        strategy = self.init_strategy if init_params is None else init_params
        state = self.first_state(initial_values(self.split, public, start_key, strategy), key)
        if self.searches:
            state = state._replace(search=no_search(state.z)._replace(until=search_steps))
        return state._replace(clipped=jnp.zeros(2)) if self.mechanism.counts else state

    def sample(self, state: Any, model_args: Any, model_kwargs: Any) -> Any:
        """One step: one access of the data. Vectorised when the state holds a batch of keys."""
        leaves = jax.tree.leaves((model_args, model_kwargs), is_leaf=lambda value: isinstance(value, Public))
        if any(isinstance(leaf, jax.core.Tracer) and not leaf.ndim for leaf in leaves):
            raise ConfigurationError(
                "jit_model_args=True turns the model's numbers into arrays, which would keep the values of the first "
                "run; run without it, or fix the numbers by functools.partial."
            )
        rows, public = self.split.arrays(model_args, model_kwargs)
        step = partial(self.step, rows=rows, public=public)
        return step(state) if is_prng_key(state.rng_key) else jax.vmap(step)(state)

    def step(self, state: Any, *, rows: Any, public: Any) -> Any:
        """One step from a single state, given the private rows (passed on to the door) and the Public arrays.

        With a preconditioner M the whole step happens in u = M^(-1/2) z: there the gradient is clipped and noised."""
        if self.auto_norm:
            raise ConfigurationError('clipping_norm="auto" needs dpppl.MCMC, which pays for the histogram of norms.')
        return kernel_step(self, state, rows, public)

    def norm_statistic(self, state: Any) -> tuple[Any, Any]:
        """(statistic of a row for a histogram of norms, where to evaluate it)."""
        # Not at the start itself: NumPyro's Bernoulli, for one, has another gradient at logits of exactly 0.
        return gradient_norm(self._log_likelihood), jax.tree.map(lambda u: u + 1e-3, self._unscaled(state.z))

    def noisy_sum(self, position: Any, rows: Any, public: Any, **settings: Any) -> Any:
        """One access: a NoisySum of the rows' clipped gradients in the preconditioned `position`. `settings`: key,
        noise_multiplier and step."""
        if self._responses is None:
            return self.mechanism.noisy_sum(self._log_likelihood, position, rows, public, **settings)
        return noisy_centred_sum(
            self.mechanism, self._responses, self._responses.is_binary, self._log_likelihood,
            lambda u, public: (self._scaled(u), public), position, rows, public, **settings,
        )  # fmt: skip

    def _log_likelihood(self, position: Any, row: Any, public: Any, responses: Any = None) -> Any:
        return self.split.log_likelihood(self._scaled(position), row, public, responses)

    def _scaled(self, position: Any) -> Any:
        return {s: u * self._scales[s] for s, u in position.items()} if self._scales else position

    def _unscaled(self, z: Any) -> Any:
        return {s: value / self._scales[s] for s, value in z.items()} if self._scales else z

    def postprocess_fn(self, model_args: Any, model_kwargs: Any) -> Any:
        """Maps unconstrained latents to constrained ones and to deterministic sites that depend on latents only."""
        _, public = self.split.arrays(model_args, model_kwargs)
        return lambda z: self.split.constrain(z, public)

    # What steps cost

    def _at(self, count: Any) -> Any:
        """(step size, noise multiplier) of the step number `count`, from 0; pure, used on the device and off it."""
        if self.step_size == "matched":
            raise ConfigurationError(
                'step_size="matched" needs a noise multiplier to match: give noise_multiplier, or target_epsilon and '
                "target_delta to dpppl.MCMC."
            )
        step_size = jnp.asarray(
            self.step_size(count) if callable(self.step_size) else self.step_size, jnp.result_type(float)
        )
        langevin = self._langevin_multiplier(step_size)
        return step_size, jnp.maximum(langevin, 0.0 if self.noise_multiplier is None else self.noise_multiplier)

    def _langevin_multiplier(self, step_size: Any) -> Any:
        """The noise multiplier at which a step's noise is the sampler's own."""
        mechanism = self.mechanism
        return self.langevin_std(step_size) * (mechanism.subsampling.rate / mechanism.noise_scale) / step_size

    def taken(self, first: int, count: int, longest: float) -> tuple[np.ndarray, np.ndarray]:
        """`schedule`, of steps that a search has cut to `longest`, with the noise that they then had."""
        steps, multipliers = self.schedule(first, count)
        cut = np.minimum(steps, longest)
        return cut, np.where(cut < steps, np.asarray(self._langevin_multiplier(cut), np.float64), multipliers)

    def found_steps(self, state: Any) -> np.ndarray:
        """The longest step size of each chain that its search allows, infinity where it did not search; (chains,)."""
        bound = np.atleast_1d(0.0 if state.search is None else np.asarray(state.search.bound, np.float64))
        with np.errstate(divide="ignore"):
            return np.asarray(self.longest_step(bound))

    def noise_std(self, step_size: Any, noise_multiplier: Any) -> Any:
        """Standard deviation s of the Gaussian draw of a step."""
        return noise_multiplier * step_size * self.mechanism.noise_scale / self.mechanism.subsampling.rate

    def schedule(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Step sizes and noise multipliers of steps first .. first+count-1, float64 (count,).

        The multipliers come from the same arithmetic as on the device. Raises ConfigurationError if a step is not
        positive and finite."""
        counts = np.arange(first, first + count, dtype=np.int32)  # the type of a state's counter
        at = self._at
        if callable(self.step_size):
            at = self._schedule = self._schedule or jax.jit(jax.vmap(self._at))
        steps, multipliers = (np.broadcast_to(np.asarray(x, np.float64), count) for x in at(counts))
        bad = ~(np.isfinite(steps) & (steps > 0) & np.isfinite(multipliers) & (multipliers > 0))
        if bad.any():
            raise ConfigurationError(
                f"the step size must be positive and finite at every step; step {first + int(np.argmax(bad))} is not."
            )
        return steps, multipliers

    def total_time(self, count: int, longest: float = np.inf) -> float:
        """Diffusion time of the first `count` steps of a chain, matched ones no longer than `longest`."""
        steps, multipliers = self.taken(0, count, longest)
        return float(np.sum(self.diffusion_time(steps, self.noise_std(steps, multipliers))))

    @property
    def num_latents(self) -> int:
        """Coordinates in all, once the kernel is bound."""
        return sum(math.prod(latent.shape) for latent in self.split.latents.values())

    def charge(self, first: int, count: int, chains: int = 1) -> Charge:
        """What steps first .. first+count-1 of so many chains cost."""
        return Charge(self.mechanism, self.schedule(first, count)[1], first, chains)

    def privacy_report(self, last_state: Any, delta: float | None = None) -> PrivacyReport:
        """What a run under plain `numpyro.infer.MCMC` has cost, from the step counter of its last state.

        Plain NumPyro keeps the key in the state and may compile the data into the program: both are outside the
        guarantee, and the report says so. Other runs, and steps from other states, are not in it. Raises
        ConfigurationError for a state that counts no step."""
        counters = np.atleast_1d(np.asarray(last_state.i))
        charges = [self.charge(0, counted(count)) for count in counters]
        key = KeyOrigin(KeySource.STATE, "as NumPyro was given")
        provenance = Provenance().and_now(Status.UNDER_NUMPYRO, key, start_of(self.init_strategy))
        return chain_report(
            self, charges, provenance, delta=delta, num_chains=len(counters), num_rows=self.split.num_rows,
            assumed_public=self.split.assumed_public, left_out=(_COUNTED,),
        )  # fmt: skip


def start_of(strategy: str | Mapping[str, Any]) -> Start:
    """Where the starting values come from."""
    return Start(strategy.replace("_", " ")) if isinstance(strategy, str) else Start.SUPPLIED
