"""`dpppl.MCMC`: NumPyro's calls for private chains, with a budget and a report."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import jax

from dpppl.data.rows import described
from dpppl.errors import ConfigurationError
from dpppl.findings.counted_rows import CountedRows
from dpppl.frame.locate import Locator, locator_or_none
from dpppl.information_flow.row_free import proved
from dpppl.mcmc.bound import BoundKernel, check_prior_stability
from dpppl.mcmc.chains import Call, Chains, Layout, fields_to_collect
from dpppl.mcmc.dynamics import Dynamics
from dpppl.mcmc.kernel import DPKernel
from dpppl.mcmc.outcome import Outcome
from dpppl.mcmc.planning import norm_phase, plan_of
from dpppl.mcmc.settings import MCMCSettings
from dpppl.model.units import grouped
from dpppl.randomness import keys
from dpppl.report.provenance import KeyOrigin, Status
from dpppl.report.report import PrivacyReport
from dpppl.runs.budget import Charge
from dpppl.runs.driver import TRACING, drive, on_host, prove
from dpppl.runs.prelude import Earlier, NormPhase, after_histogram, measure_norms
from dpppl.runs.private_runner import Inputs
from dpppl.runs.session import Run
from dpppl.types import Function, Tree
from dpppl.validation import check_num_data, checked


class MCMC(MCMCSettings):
    """NumPyro's MCMC for private kernels: the same calls, a privacy budget, and a report.

    - **kernel** - a dpppl kernel.
    - **num_warmup** - steps of each chain that are not collected.
    - **num_samples** - further steps of each chain.
    - **num_chains** - number of chains.
    - **thinning** - keep one sample in this number.
    - **privacy** - a `dpppl.Privacy` that holds the budget and all that goes with it, instead of the next keywords.
    - **target_epsilon**, **target_delta** - the budget of this object for everything it runs. The first call is calibrated to
      use all of it over num_chains * (num_warmup + num_samples) steps, and a later call that would exceed it is refused.
      Without a target the kernel's own step size and noise decide, and the report says what that cost.
    - **noise_multiplier**, **num_data** - settings for the kernel, where it has none of its own.
    - **ledger**, **reserve**, **unit**, **max_rows_per_unit** - as in `dpppl.Privacy`; unit="person" goes with
      run(key, x, y, person=ids).
    - **checkpoint** - path of a file that lets a run that was killed go on where it was, with the same numbers and no second
      charge. It holds the run's keys: keep it secret.
    - **chain_method** - "parallel", "vectorized", "sequential" or a transform like jax.vmap, as in NumPyro.
    - **progress_bar**, **progress_rate** - as in NumPyro.
    - **frame** - whether to spend 16 % of the cost on where the posterior is and how wide, by the accesses of `dpppl.NoiseAware`:
      chains start there, and move in coordinates in which the posterior is nearly white. Norm and steps follow from it. None: a
      frame where target_epsilon is given, the kernel's norm, start and step are its defaults, the chain has 200 steps or more,
      and the model at most 500 latents of which 200 numbers enter the likelihood.
    - **print_cost** - print a line with the cost before a run.
    - **mesh** - a jax.sharding.Mesh, over whose axis "rows" (its only one, else) rows are sharded; rows that are sharded
      already stay as they lie.

    Guarantee: every step of every chain is charged before it runs, warmup and thinned-away steps included. Samples, states,
    extra fields, the progress bar and pickles are functions of the mechanism's outputs and public values. After `run` the
    object keeps no reference to an array argument, and returned states hold no key. Raises ConfigurationError or
    BudgetExceededError before any data are touched and before anything is charged.

    >>> import dpppl, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> kernel = dpppl.DPSGLD(model, clipping_norm=3.0)
    >>> mcmc = dpppl.MCMC(kernel, num_warmup=50, num_samples=50, target_epsilon=1.0, target_delta=1e-5,
    ...                   progress_bar=False)
    >>> mcmc.run(dpppl.secret_key(), jnp.ones(1000))
    This run will spend epsilon = 0.9995 at delta = 1e-05: add or remove one row, N public (zero-out).
    >>> mcmc.get_samples()["mu"].shape
    (50,)
    """

    @on_host
    @checked
    def warmup(
        self, rng_key: jax.Array, *args: object, extra_fields: object = (), collect_warmup: bool = False,
        init_params: Tree = None, **kwargs: object,
    ) -> None:  # fmt: skip
        """Run the warmup steps only, charged; the next `run` continues with the sampling steps. As in NumPyro.

        - **rng_key**, **args**, **extra_fields**, **init_params**, **kwargs** - as for `run`.
        - **collect_warmup** - whether to keep the warmup's samples.
        """
        kept = self.num_warmup // self.thinning if collect_warmup else 0
        fields = fields_to_collect(self._sample_field, self._default_fields, extra_fields)
        call = Call(args, kwargs, init_params, *fields, self.num_warmup - kept * self.thinning, kept)
        self._execute(rng_key, call, self.num_warmup)
        self._warmup_state = self._last_state

    @on_host
    def run(
        self, rng_key: jax.Array, *args: object, extra_fields: object = (), init_params: Tree = None, **kwargs: object
    ) -> None:
        """Run the chains and collect samples. As `numpyro.infer.MCMC.run`; prints what it will cost first.

        - **rng_key** - one key, used once; take it from `dpppl.secret_key()`.
        - **args**, **kwargs** - the model's arguments; arrays are private rows unless marked `dpppl.Public`.
        - **extra_fields** - names of fields of the state, but not the key.
        - **init_params** - unconstrained starting values by site, with a leading axis of chains if there are several.
        """
        warmup, kept = self.num_warmup if self._warmup_state is None else 0, self.num_samples // self.thinning
        fields = fields_to_collect(self._sample_field, self._default_fields, extra_fields)
        discarded = warmup + self.num_samples % self.thinning
        self._execute(rng_key, Call(args, kwargs, init_params, *fields, discarded, kept, self._warmup_state), warmup)

    def _execute(self, rng_key: jax.Array, call: Call, warmup: int) -> None:
        """The phases of a run: bind the model; choose the norm; prove, charge and run."""
        run, kernel = Run.opened(rng_key, self.checkpoint), self.calibrated_kernel()
        unit = self.unit
        given, key = (call.args, call.kwargs), keys.stream(run.key, "units")
        args, kwargs = grouped(kernel.model, *given, unit.ids, unit.max_rows, key)
        call = replace(call, args=args, kwargs=kwargs)
        layout = Layout(self.num_chains, self.num_warmup, self.thinning, self.chain_method, self.mesh)
        with TRACING:
            bound = kernel.bind(call.args, call.kwargs)
        check_num_data(kernel.num_data, bound.split.num_rows)
        if kernel.auto_norm:
            with self.budget.one_at_a_time:
                if self.calibrated_kernel().auto_norm:  # else another thread has chosen the norm meanwhile
                    located = self._locator(bound, run.key, call, given)
                    bound = replace(bound, kernel=self.calibrated_kernel())
                    run = self._choose_norm(run, Chains.starting(bound, run.key, call, layout), located)
            bound = replace(bound, kernel=self.calibrated_kernel())
        with after_histogram(run):
            self._sample(run, Chains.starting(bound, run.key, call, layout), warmup)

    def _locator(self, bound: BoundKernel, key: jax.Array, call: Call, given: tuple[Tree, Tree]) -> Locator | None:
        """The accesses of a frame, or None and a kernel calibrated without one. `given`: the arguments, not grouped."""
        if self.frame and call.init_params is not None:
            raise ConfigurationError("frame=True finds the start: leave init_params out, or leave frame out.")
        located = None
        if self._has_frame and call.init_params is None:
            kernel = self.calibrated_kernel()
            charge, _ = self._prelude(kernel)
            settings = charge, self.unit, kernel.data_plate, self.mesh
            located = locator_or_none(self.frame is True, bound.split, kernel.model, *given, key, *settings)
        if self._has_frame and located is None:
            self._has_frame, self._kernel = False, None
        return located

    def _choose_norm(self, run: Run, chains: Chains, located: Locator | None) -> Run:
        """Choose the norm from a charged histogram, after a frame where there is one; the run, whose steps are reserved since
        before these charges."""
        *_, histogram = prelude = self._prelude(self.calibrated_kernel())
        charges = [*prelude, *chains.charges]
        self.budget.admit(charges, run.run_id)
        prove(chains.method.mapped_chunk, plan_of(chains, 0, False, False).arguments(), rows=1)

        def choose(kernel: Dynamics, counted: CountedRows) -> None:
            assert isinstance(kernel, DPKernel)
            self._kernel, self._counted = kernel, counted

        def then(located: Locator, before: Callable[[int], None]) -> NormPhase:
            self._kernel = self.calibrated_kernel().copy(metric=located.metric(before), searches=False)
            framed = Chains.starting(replace(chains.bound, kernel=self._kernel), run.key, chains.call, chains.layout)
            with TRACING:
                return norm_phase(framed, histogram, self.print_cost, choose)

        with TRACING:
            phase = norm_phase(chains, histogram, self.print_cost, choose)
        earlier = None
        if located is not None:
            earlier = Earlier(charge=located.charge, digest=located.digest, then=partial(then, located))
        begun = lambda origin: self._begun(chains, charges, origin)  # noqa: E731
        return measure_norms(run, phase, self.budget, begun, earlier)

    def _sample(self, run: Run, chains: Chains, warmup: int) -> None:
        bound, plan = chains.bound, plan_of(chains, warmup, self.print_cost, self.progress_bar)
        self.budget.admit(plan.charges, run.run_id)
        with TRACING:
            collected = (self.num_chains, chains.call.num_collected)
            shapes = {n: jax.ShapeDtypeStruct((*collected, *s.shape), s.dtype) for n, s in bound.split.latents.items()}
            constrain: Function = jax.vmap(jax.vmap(bound.split.constrain, (0, None)), (0, None))
            constrain = proved(constrain, shapes, chains.public, num_rows=bound.split.num_rows)
            check_prior_stability(bound, chains.one, chains.public, chains.num_steps)

        def begin(origin: KeyOrigin) -> PrivacyReport:
            self._warmup_state = chains.call.resume
            return self._begun(chains, plan.charges, origin)

        states, records = drive(run, plan, self.budget, begin)
        ended = Outcome.of(chains, states, records, constrain, self._counted)
        self._outcome, self._states, self._last_state = ended, ended.samples, ended.last_state
        self._provenance = self._provenance.ended(Status.COMPLETE)
        if ended.failed:
            warnings.warn(f"chains {[*ended.failed]} hold values that are not finite; see the report.", stacklevel=5)
        elif ended.measured.over_long:
            warnings.warn(f"{ended.measured.too_long}.", stacklevel=5)

    def _begun(self, chains: Chains, charges: Sequence[Charge], origin: KeyOrigin) -> PrivacyReport:
        """Note that a run begins; the report of its charges alone."""
        split = chains.bound.split
        self._inputs, self._placement = Inputs.of(split), described(chains.rows)
        self._dims = split.dims
        self._provenance = self._provenance.and_now(Status.INTERRUPTED, origin, chains.start_values)
        cleared: Tree = None
        self._outcome = self._states = self._states_flat = self._last_state = cleared
        return self._report(charges, self._provenance)
