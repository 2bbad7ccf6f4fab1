"""The base class of private kernels: their settings, and NumPyro's calling convention."""

from dataclasses import replace
from functools import partial
from typing import ClassVar, Self

import jax
import numpy as np
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from dpppl.access.clipping import clipping_of
from dpppl.access.mechanism import Mechanism
from dpppl.data.rows import of_one_process
from dpppl.errors import ConfigurationError
from dpppl.findings.counted_rows import count_share_of
from dpppl.mcmc.bound import BoundKernel, diagonal_of
from dpppl.mcmc.details import chain_facts
from dpppl.mcmc.dynamics import Dynamics
from dpppl.model.arguments import Public, name_of
from dpppl.model.initialization import Strategy, checked_strategy
from dpppl.model.units import public_values, split_in_units
from dpppl.report.provenance import KeyOrigin, KeySource, Provenance, Status
from dpppl.report.report import PrivacyReport
from dpppl.runs.budget import steps_of_state
from dpppl.runs.private_runner import Inputs
from dpppl.subsampling import FullBatch, Subsampling
from dpppl.subsampling.scheme import BATCH
from dpppl.types import BySite, Function, Tree
from dpppl.validation import checked_call, full_signature, optional, plain, positive, positive_integer

_COUNTED = (
    "Counted are the steps of this state, if each was taken once. Other runs add to them; steps from one state on several data "
    "sets have equal noise, and these are not protected: use dpppl.MCMC, which tracks keys and cost."
)


class DPKernel(Dynamics, MCMCKernel):
    """A NumPyro kernel whose every step looks at the data once, through the door.

    The Langevin noise is the privacy noise: no kernel draws noise of its own. The door's noise multiplier is max(s * rate / (h
    * clipping_norm), noise_multiplier), where s is the sd that the sampler needs for a step of size h.

    Samples are midpoints of successive positions. Where the posterior is Gaussian, midpoints have its variance at every stable
    step, for all three kernels. In the overdamped case the variance of positions is too large by the factor 1 / (1 - h L / 2).
    The warmup shortens a matched step that is too long: see `step_search`.

    Settings are fixed when a kernel is made; they are those of `dpppl.DPSGLD`, which documents them. A run adds a
    `BoundKernel`; as NumPyro's own kernels do, this one remembers that of the last `init` for NumPyro's other calls.

    The state of a chain is a `ChainState`."""

    sample_field = "midpoint"
    _NO_ARGUMENT: ClassVar = {"batch_size": BATCH} | dict.fromkeys(
        ("epsilon", "delta", "target_epsilon", "target_delta"),
        "a budget is for all steps: dpppl.MCMC(kernel, num_warmup=500, num_samples=1_000, target_epsilon=1.0, "
        "target_delta=1e-5).",
    )

    def __init_subclass__(cls, **settings: object) -> None:
        super().__init_subclass__(**settings)
        cls.__signature__ = full_signature(cls)

    @checked_call
    def __init__(
        self, model: Function, *, clipping_norm: float | str = "auto",
        clipping: str | None = None, subsampling: Subsampling | None = None,
        step_size: float | str | Function = "matched", noise_multiplier: float | None = None,
        temperature: float = 1.0, preconditioner: BySite | None = None, row_curvature: float | None = None,
        num_data: int | None = None, data_plate: str | None = None, init_strategy: Strategy = "prior_median",
        gradient_strategy: str = "auto", discretise: bool = False, measure_clipping: bool = True,
    ) -> None:  # fmt: skip
        self.auto_norm, step_size = isinstance(clipping_norm, str) and clipping_norm == "auto", plain(step_size)
        subsampling = FullBatch() if subsampling is None else subsampling
        if not isinstance(subsampling, Subsampling):
            raise ConfigurationError(
                "subsampling must be dpppl.FullBatch(), Poisson(rate), Partition(num_batches), ..."
            )
        self.searches = isinstance(step_size, str) and step_size == "matched"
        if self.auto_norm and not self.searches:
            raise ConfigurationError(
                'clipping_norm="auto" needs step_size="matched": a step\'s noise depends on the norm.'
            )
        checked_strategy(init_strategy)
        clip = clipping_of(clipping, clipping_norm)
        self.mechanism = Mechanism(
            clipping=clip, subsampling=subsampling, strategy=gradient_strategy, discretise=discretise,
            count_share=count_share_of(clip, measure_clipping, self.auto_norm),
        )  # fmt: skip
        self.model, self.measure_clipping = model, measure_clipping
        self.temperature = positive(temperature, name="temperature")
        self.noise_multiplier = optional(positive, noise_multiplier, name="noise_multiplier")
        self.num_data = optional(positive_integer, num_data, name="num_data")
        self.row_curvature = optional(positive, row_curvature, name="row_curvature")
        if row_curvature is not None and num_data is None:
            raise ConfigurationError("row_curvature needs num_data, the declared number of rows.")
        self.preconditioner = None if preconditioner is None else diagonal_of(preconditioner)
        self.data_plate, self.init_strategy, self.metric = data_plate, init_strategy, None
        is_given = callable(step_size) or self.searches
        self.step_size = step_size if is_given else positive(step_size, name="step_size")
        self._bound: BoundKernel | None = None
        if self.noise_multiplier is not None:
            self._settle(**self._matched(self.noise_multiplier))

    def __repr__(self) -> str:
        clipping = 'clipping_norm "auto"' if self.auto_norm else self.mechanism.clipping.describe()
        noise = "" if self.noise_multiplier is None else f"; noise multiplier {self.noise_multiplier:g}"
        known = f"{self.step_size:.4g}" if isinstance(self.step_size, float) else self.step_size
        step_size = "scheduled" if callable(known) else known
        head = f"{type(self).__name__}({name_of(self.model)}; {clipping}; {self.mechanism.subsampling.describe()}"
        return f"{head}; step size {step_size}{noise})"

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"_bound": None}

    def counting(self) -> Self:
        """A copy whose steps count rows, for a run without a histogram of its own at a norm that an earlier one chose."""
        share = count_share_of(self.mechanism.clipping, self.measure_clipping, has_histogram=False)
        return self.with_mechanism(replace(self.mechanism, count_share=share))

    # Added by a run

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> BoundKernel:
        """The kernel with its model's structure for these arguments, found from shapes and dtypes alone."""
        split = split_in_units(self.model, args, kwargs, data_plate=self.data_plate)
        return BoundKernel.of(self, split, public_values(split, args, kwargs))

    def _last_bound(self) -> BoundKernel:
        if self._bound is None:
            raise ConfigurationError("the kernel is not bound to a model's arguments yet: call init or run.")
        return self._bound

    # NumPyro's calling convention

    def init(
        self, rng_key: jax.Array, num_warmup: object, init_params: Tree, model_args: Tree, model_kwargs: Tree
    ) -> Tree:
        """The first state, as NumPyro calls for it. Looks at no data, charges nothing.

        - **rng_key** - a key, or a batch of keys, which gives a batch of states.
        - **num_warmup** - warmup steps.
        - **init_params** - unconstrained values by site (batched as the keys are), or None.
        - **model_args**, **model_kwargs** - the model's arguments."""
        self._bound = self.bind(model_args, model_kwargs)
        _, public = self._bound.split.arrays(model_args, model_kwargs)
        return self._bound.init(rng_key, num_warmup, init_params, public)

    def sample(self, state: Tree, model_args: Tree, model_kwargs: Tree) -> Tree:
        """One step, one access of the data, as NumPyro calls for it. Vectorised when the state holds a batch of keys.

        - **state** - the state before the step.
        - **model_args**, **model_kwargs** - the model's arguments."""
        leaves = jax.tree.leaves((model_args, model_kwargs), is_leaf=lambda value: isinstance(value, Public))
        if any(isinstance(leaf, jax.core.Tracer) and not leaf.ndim for leaf in leaves):
            raise ConfigurationError(
                "jit_model_args=True turns the model's numbers into arrays, which would keep the values of the first "
                "run; run without it, or fix the numbers by functools.partial."
            )
        bound = self._last_bound()
        rows, public = bound.split.arrays(model_args, model_kwargs)
        self.check_norm()
        step = partial(bound.step, rows=of_one_process(rows, "a kernel by itself"), public=public)
        return step(state) if is_prng_key(state.rng_key) else jax.vmap(step)(state)

    def check_norm(self) -> None:
        """Raise ConfigurationError where the norm is still to come from a histogram."""
        if self.auto_norm:
            raise ConfigurationError('clipping_norm="auto" needs dpppl.MCMC, which pays for the histogram of norms.')

    def postprocess_fn(self, model_args: Tree, model_kwargs: Tree) -> Function:
        """A function from unconstrained latents to constrained ones and deterministic sites that depend on latents only.

        - **model_args**, **model_kwargs** - the model's arguments."""
        split = self._last_bound().split
        _, public = split.arrays(model_args, model_kwargs)
        return lambda z: split.constrain(z, public)

    def privacy_report(self, last_state: Tree, delta: float | None = None) -> PrivacyReport:
        """The cost of a run under plain `numpyro.infer.MCMC`, from the step counter of its last state.

        Plain NumPyro keeps the key in the state and may compile the data into the program: both are outside the
        guarantee, and the report says so. Other runs, and steps from other states, are not in it. Raises
        ConfigurationError for a state that counts no step.

        - **last_state** - `mcmc.last_state`.
        - **delta** - at which epsilon is reported."""
        counters = np.atleast_1d(np.asarray(last_state.i))
        charges = [self.charge(0, steps_of_state(count)) for count in counters]
        key = KeyOrigin(KeySource.STATE, "as NumPyro was given")
        provenance = Provenance().and_now(Status.UNDER_NUMPYRO, key, self.start)
        facts = chain_facts(self, charges, len(counters), Inputs.of(self._last_bound().split))
        return facts.report(charges, provenance, delta=delta, num_data=self.num_data, left_out=(_COUNTED,))
