"""`dpppl.MCMC`: NumPyro's calls for private chains, with a budget and a report."""

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import ClassVar

import jax
import numpy as np
import numpyro.infer

from dpppl.access.clipping import Centred
from dpppl.errors import BudgetExceededError, ConfigurationError, concluding
from dpppl.findings.counted_rows import CountedRows
from dpppl.findings.finding import warn_of
from dpppl.frame.locate import Located, RunCharges, locate, locator_or_none
from dpppl.frame.metric import Metric
from dpppl.frame.norms import affordable_norm, chosen_norm
from dpppl.information_flow.row_free import proved
from dpppl.mcmc.bound import BoundKernel
from dpppl.mcmc.chains import Call, Chains, fields_to_collect
from dpppl.mcmc.checks import checked_kernel, has_frame
from dpppl.mcmc.details import ChainDetails, chain_facts
from dpppl.mcmc.kernel import DPKernel
from dpppl.mcmc.outcome import ChainOutcome, print_table
from dpppl.mcmc.rehearsal import check_prior_stability
from dpppl.mcmc.verdict import ChainVerdict
from dpppl.report.provenance import KeyOrigin, Start, Status
from dpppl.report.report import PrivacyReport
from dpppl.report.to_arviz import to_inference_data
from dpppl.runs.budget import Account, Charge
from dpppl.runs.driver import TRACING, RunPlan, drive, on_host
from dpppl.runs.histogram import Histogram
from dpppl.runs.private_runner import PrivateRunner, ReportFacts, after_run
from dpppl.runs.session import Run, Session
from dpppl.subsampling.scheme import BATCH
from dpppl.types import Foreign, Function, Tree
from dpppl.validation import check_num_data, checked, checked_call, full_signature, not_set, plain, positive_integer

QUANTILE, MARGIN = 0.99, 1.25
"""Of the norms at the start: few rows exceed 1.25 times the .99 quantile."""
_FIXED = {"frame", "budget", *full_signature(PrivateRunner).parameters} - {"print_cost"}
"""Attributes that are set once; others are NumPyro's, whose calls set them."""


class MCMC(PrivateRunner, numpyro.infer.MCMC):
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
      and the model at most 500 latents, and at most 200 coordinates of the likelihood.
    - **print_cost** - print a line with the cost before a run.
    - **mesh** - a jax.sharding.Mesh, over whose axis "rows" (its only one, else) rows are sharded; rows that are sharded
      already stay as they lie.
    - **name**, **labels** - of the analysis, for report and ledger; of elements, for all output: {"w": ["age", "smoker=yes"]}.

    Guarantee: every step of every chain is charged before it runs, warmup and thinned-away steps included. Samples, states,
    extra fields, the progress bar and pickles are functions of the mechanism's outputs and public values. After `run` the
    object keeps no reference to an array argument, and returned states hold no key. Raises ConfigurationError or
    BudgetExceededError before any data are touched and before anything is charged. A chain that explodes on the prior alone is
    refused before its steps are charged; with `clipping_norm="auto"` frame and histogram are charged by then.

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

    _outcome: ChainOutcome | None = None
    _counted: CountedRows | None = None
    _warmed: Tree = None  # the state that `warmup` left

    _NO_ARGUMENT: ClassVar = {"batch_size": f"it is the kernel's, whose {BATCH}"}

    @checked_call
    def __init__(
        self, kernel: DPKernel, *, num_warmup: int, num_samples: int, num_chains: int = 1, thinning: int = 1,
        chain_method: str | Function = "parallel", progress_bar: bool = True, progress_rate: int | None = None,
        frame: bool | None = None, **common: Tree,
    ) -> None:  # fmt: skip
        PrivateRunner.__init__(self, **common)
        kernel = checked_kernel(kernel, self.privacy, self.checkpoint)
        thinning = positive_integer(thinning, name="thinning")
        if positive_integer(num_samples, name="num_samples") < thinning:
            raise ConfigurationError("num_samples must be at least thinning: one sample in this number is kept.")
        if isinstance(plain(num_warmup), bool):
            raise ConfigurationError("num_warmup must be a whole number of steps, 0 or more, got a bool.")
        try:
            numpyro.infer.MCMC.__init__(
                self, kernel, num_warmup=plain(num_warmup), num_samples=plain(num_samples),
                num_chains=positive_integer(num_chains, name="num_chains"), thinning=thinning, chain_method=chain_method,
                progress_bar=progress_bar, progress_rate=progress_rate,
            )  # fmt: skip
        except ConfigurationError:
            raise
        except ValueError as error:
            raise ConfigurationError(f"{error}.") from None
        self.frame = frame
        self._has_frame = has_frame(frame, kernel, self.privacy, self.num_warmup + self.num_samples)
        self.num_data, self.noise_multiplier = kernel.num_data, kernel.noise_multiplier
        self._kernel: DPKernel | None = None  # calibrated once, then at the norm that a run chose
        self._first_start = kernel.start

    def __setattr__(self, name: str, value: object) -> None:
        is_found = getattr(getattr(type(self), name, None), "fset", self) is None
        if is_found or (name in _FIXED and "_kernel" in vars(self)):
            raise not_set(self, name)
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        steps = f"{self.num_chains} x ({self.num_warmup} + {self.num_samples}) steps"
        return f"MCMC of {self.sampler!r}: {steps}, {self._provenance.status}; {self.budget!r}"

    @checked
    def calibrated_kernel(self) -> DPKernel:
        """The kernel of all runs, with the noise multiplier and the step size that the budget gives. Looks at no data."""
        if self._kernel is None:  # found once: what was charged stays charged at its noise
            self._kernel = self._calibrated(self._has_frame)
        return self._kernel

    def _calibrated(self, frame: bool) -> DPKernel:
        """The kernel with the noise multiplier and the step size that the budget gives, all of which but its reserve is used."""
        budget, num_steps, num_chains = self.budget, self.num_warmup + self.num_samples, self.num_chains
        kernel = self.sampler.copy(mechanism=budget.affordable(self.sampler.mechanism, num_steps * num_chains))
        if budget.target_epsilon is None:
            return kernel
        if not kernel.is_matched:
            try:
                budget.account().admit([kernel.charge(0, num_steps, num_chains)], share=1.0 - budget.reserve)
            except BudgetExceededError:
                pass
            else:
                return kernel  # the sampler's own noise is enough

        return kernel.with_noise(
            budget.account().calibrate(lambda noise: self._charges(kernel.with_noise(noise), frame).listed())
        )

    def _charges(self, kernel: DPKernel, frame: bool) -> RunCharges:
        """The cost of all steps of this kernel, and of the accesses before that its clipping norm comes from."""
        steps = kernel.charge(0, self.num_warmup + self.num_samples, self.num_chains)
        if not kernel.auto_norm or kernel.noise_multiplier is None:
            return RunCharges(None, None, steps)
        return RunCharges.of(steps, kernel.noise_multiplier, frame)

    @checked
    def privacy_plan(self) -> PrivacyReport:
        """The report that the next `run` would add up to, without data. A model without a frame has fewer accesses."""
        kernel, resume = self.calibrated_kernel(), self._warmup_state
        has_frame = self._has_frame and resume is None
        if kernel.auto_norm and has_frame != self._has_frame:
            kernel = self._calibrated(has_frame)
        first = 0 if resume is None else int(np.max(np.asarray(resume.i)))
        steps = self.num_samples + (self.num_warmup if resume is None else 0)
        charges = self._charges(kernel, has_frame).listed(kernel.charge(first, steps, self.num_chains))
        return self._planned(charges, self._start_of(resume))

    def _start_of(self, resume: Tree) -> Start | None:
        """Where a run that goes on from a state starts, if that is not where `warmup` did."""
        return None if resume is None or resume is self._warmed else Start.STATE

    def _facts(self, charges: Sequence[Charge], status: Status) -> ReportFacts:
        failed, found = ((), None) if self._outcome is None else (self._outcome.failed, self._outcome.measured)
        measured = None if found is None else found[0]
        return chain_facts(self.calibrated_kernel(), charges, self.num_chains, self._inputs, failed, measured)

    @on_host
    @checked
    def warmup(
        self, rng_key: jax.Array, *args: object, extra_fields: object = (), collect_warmup: bool = False,
        init_params: Tree = None, **kwargs: object,
    ) -> None:  # fmt: skip
        """Run the warmup steps only, charged; the next `run` continues with the sampling steps. As in NumPyro.

        - **rng_key**, **args**, **extra_fields**, **init_params**, **kwargs** - as for `run`.
        - **collect_warmup** - whether to keep the warmup's samples."""
        kept = self.num_warmup // self.thinning if collect_warmup else 0
        self._execute(rng_key, args, kwargs, extra_fields, init_params, self.num_warmup, self.num_warmup, kept)
        self._warmed = self._warmup_state = self._last_state
        if self.sampler.auto_norm and self._outcome is not None and self._outcome.measured is not None:
            self._counted = self._outcome.measured[0].counted

    @on_host
    def run(
        self, rng_key: jax.Array, *args: object, extra_fields: object = (), init_params: Tree = None, **kwargs: object
    ) -> None:
        """Run the chains and collect samples. As `numpyro.infer.MCMC.run`; prints what it will cost first.

        - **rng_key** - one key, used once; take it from `dpppl.secret_key()`.
        - **args**, **kwargs** - the model's arguments; arrays are private rows unless marked `dpppl.Public`. Later runs
          keep the norm of the first histogram; their steps count rows that are clipped or do not inform the posterior.
        - **extra_fields** - names of fields of the state, but not the key.
        - **init_params** - unconstrained starting values by site, with a leading axis of chains if there are several."""
        resume, kept = self._warmup_state, self.num_samples // self.thinning
        warmup = self.num_warmup if resume is None else 0
        num_steps = warmup + self.num_samples
        self._execute(rng_key, args, kwargs, extra_fields, init_params, warmup, num_steps, kept, resume)

    def _execute(
        self, rng_key: jax.Array, args: Tree, kwargs: Tree, extra_fields: object, init_params: Tree, warmup: int,
        num_steps: int, num_collected: int, resume: Tree = None,
    ) -> None:  # fmt: skip
        """The phases of a run: bind the model; find frame and norm; prove, charge and run; judge."""
        fields, removed = fields_to_collect(self._sample_field, self._default_fields, extra_fields)
        checkpoint, account = self._resumed()
        run, kernel = Run.opened(rng_key, checkpoint), self.calibrated_kernel()
        args, kwargs = self.grouped(kernel.model, args, kwargs, run.key)
        with TRACING:
            bound = kernel.bind(args, kwargs)
            self._label(bound.split)
        check_num_data(kernel.num_data, bound.split.num_rows)
        rows, public = bound.split.arrays(args, kwargs, self.mesh)
        call = Call(
            rows=rows, public=public, fields=fields, removed=removed, init_params=init_params, resume=resume,
            discarded=num_steps - num_collected * self.thinning, num_collected=num_collected, thinning=self.thinning,
            num_chains=self.num_chains, num_warmup=self.num_warmup, chain_method=self.chain_method,
        )  # fmt: skip
        counted = self._counted if resume is self._warmed else None  # of a warmup that has just ended
        opened: Session | None = None
        with ExitStack() as held:
            if self.sampler.auto_norm:
                with self.budget.one_at_a_time:
                    kernel = self.calibrated_kernel()
                    if kernel.auto_norm:  # else an earlier run, or another thread, has chosen the norm
                        opened, kernel, counted = self._located(held, account, run, bound, call)
                        self._kernel = kernel
                bound = replace(bound, kernel=kernel.counting() if counted is None else kernel)
            chains = Chains.starting(bound, run.key, call)
            account.admit(call.charges(bound.kernel))
            constrain, plan = self._constrain(chains), self._plan(chains, bound, bound.kernel.start, warmup)
            ended, of_states = drive(
                run, plan, self.budget, partial(ChainOutcome.of, chains, constrain=constrain), opened
            )
        self._conclude(chains, replace(ended, labels=self._names), of_states, counted)

    def _located(
        self, held: ExitStack, account: Account, run: Run, bound: BoundKernel, call: Call
    ) -> tuple[Session, DPKernel, CountedRows]:
        """The session, `held` open, that has made the run's first accesses; kernel and counts of rows that these gave."""
        has_given_start = not (call.init_params is None and call.resume is None)
        if self.frame and has_given_start:
            raise ConfigurationError(
                "frame=True finds the start: leave init_params and post_warmup_state out, or leave frame out."
            )
        locator, kernel = None, self.calibrated_kernel()
        if self._has_frame and not has_given_start:
            arguments = kernel.model, bound.split, call.rows, call.public, self._charges(kernel, True).frame
            locator = locator_or_none(self.frame is True, run.key, *arguments, self.unit)
        if self._has_frame and locator is None:
            kernel = self._calibrated(False)
        chains = Chains.starting(replace(bound, kernel=kernel), run.key, call)
        charges = self._charges(kernel, locator is not None)
        of_histogram = charges.histogram
        assert of_histogram is not None
        account.admit(charges.listed(*call.charges(kernel)))

        def histogram_in(metric: Metric | None) -> Histogram:
            z, space = (chains.one.z, chains.bound) if metric is None else (metric.start, metric)
            settings = call.public, of_histogram, space, metric is not None, kernel.mechanism.marked
            return Histogram.starting(z, bound.split, *settings)

        plan = self._plan(chains, bound, kernel.start if locator is None else Start.FRAME)
        opened, found = held.enter_context(locate(run, plan, self.budget, histogram_in, locator))
        if call.resume is None:  # the norm is that of the steps of `run` after `warmup`, too
            kept, rest = divmod(self.num_samples, self.thinning)
            call = replace(call, discarded=self.num_warmup + rest, num_collected=kept)
        return opened, _with_norm(kernel, bound, call, found), found.counted

    def _plan(self, chains: Chains, bound: BoundKernel, start: Start, warmup: int = 0) -> RunPlan:
        """The plan of a run that begins with the kernel of `bound`, and at `start` unless the caller gives a start."""
        begin = partial(self._begin, bound, chains.call, start)
        return replace(chains.plan(warmup, self.print_cost, self.progress_bar), begin=begin)

    def _constrain(self, chains: Chains) -> Function:
        """The function from samples of all chains to constrained ones, proved. Refuses chains that explode without rows."""
        split, call = chains.bound.split, chains.call
        with TRACING:
            collected = (self.num_chains, call.num_collected)
            shapes = {n: jax.ShapeDtypeStruct((*collected, *s.shape), s.dtype) for n, s in split.latents.items()}
            constrain: Function = jax.vmap(jax.vmap(split.constrain, (0, None)), (0, None))
            check_prior_stability(chains.bound, chains.one, call.public, call.num_steps)
            return proved(constrain, shapes, call.public, num_rows=split.num_rows)

    def _conclude(self, chains: Chains, ended: ChainOutcome, of_states: Tree, counted: CountedRows | None) -> None:
        self._outcome, self._states, self._last_state = ended, ended.samples, ended.last_state
        self._provenance = self._provenance.ended(Status.COMPLETE)
        with concluding("the verdict", "get_samples(allow_unconverged=True) returns the samples"):
            self._outcome = ended.judged(chains, of_states, counted)
            measured, _ = self._outcome.measured or (None, None)
        if ended.failed:
            warnings.warn(f"chains {[*ended.failed]} hold values that are not finite; see the report.", stacklevel=5)
        elif measured is not None and measured.over_long:
            warnings.warn(f"{measured.too_long}.", stacklevel=5)

    def _begin(
        self, bound: BoundKernel, call: Call, usual: Start, charges: Sequence[Charge], origin: KeyOrigin
    ) -> PrivacyReport:
        cleared: Tree = None
        assert isinstance(bound.kernel, DPKernel)
        self._kernel = bound.kernel
        self._outcome = self._states = self._states_flat = self._last_state = cleared
        self._warmup_state, self._counted = call.resume, None
        own = usual if call.init_params is None else Start.SUPPLIED
        start = own if call.resume is None else self._start_of(call.resume)
        return self._begun(bound.split, start, call.rows, charges, origin)

    # Results of the last run

    def _ended(self, method: str) -> ChainOutcome:
        return after_run(self._outcome, method)

    @property
    def verdict(self) -> ChainVerdict:
        """Whether the samples may be read: `.line()`, `.refusals`, and `.by_site`, a word for each element of each site.

        "read", "read the mean only", "biased by clipping", "prior", "do not read: too short", "do not read: still moving",
        "do not read: depends on ...", "do not read: unstable", "do not read: the model is wrong" or "do not
        read: rows are ignored", in constrained space. Computed from releases and prior draws: free."""
        return self._ended("verdict").reading

    @checked
    def get_samples(self, group_by_chain: bool = False, *, allow_unconverged: bool = False) -> dict[str, jax.Array]:
        """Samples by site, constrained, (num_samples, ...). As in NumPyro.

        - **group_by_chain** - keep chains apart: (num_chains, num_samples, ...).
        - **allow_unconverged** - whether to return samples with elements that have not arrived without an UnconvergedWarning.
        """
        ended = self._ended("get_samples")
        warn_of(lambda: ended.refusals, "get_samples(allow_unconverged=True)", allow_unconverged)
        return super().get_samples(group_by_chain)

    @checked
    def get_extra_fields(self, group_by_chain: bool = False) -> dict[str, Tree]:
        """The `extra_fields` of the last run, by name. As in NumPyro.

        - **group_by_chain** - keep chains apart: (num_chains, num_samples, ...)."""
        self._ended("get_extra_fields")
        return super().get_extra_fields(group_by_chain)

    @checked
    def get_weights(self) -> np.ndarray:
        """Weights of the collected samples in a posterior average, float64 (chains, draws), each chain summing to 1.

        A sample stands for the diffusion time of the steps since the one collected before it: with decreasing steps later
        samples count less (Teh, Thiery, Vollmer 2016). Equal for a constant step and no thinning."""
        return self._ended("get_weights").weights.copy()

    @checked
    def verdicts(self) -> dict[str, np.ndarray]:
        """Return `verdict.by_site`, its name in later versions."""
        found = self._ended("verdicts").reading.by_site
        warnings.warn("mcmc.verdicts() is now mcmc.verdict.by_site.", DeprecationWarning, stacklevel=2)
        return found

    @checked
    def print_summary(self, prob: float = 0.9, exclude_deterministic: bool = True, max_rows: int = 10) -> None:
        """Print a table of elements with their verdicts, then the verdicts of all in words.

        - **prob** - probability of the interval between the quantiles.
        - **exclude_deterministic** - leave out deterministic sites.
        - **max_rows** - elements in the table."""
        ended, max_rows = self._ended("print_summary"), positive_integer(max_rows, name="max_rows")
        samples, words = self.get_samples(group_by_chain=True, allow_unconverged=True), ended.reading.words
        if exclude_deterministic:
            samples = {site: value for site, value in samples.items() if site in ended.last_state.z}
        self._print_name()
        if ended.weights.size:
            print_table(samples, self.get_weights(), prob, words, max_rows, self._labels)
        details = self.privacy_report().details
        assert isinstance(details, ChainDetails)
        print("\n".join(ended.reading.of_sites(samples).lines))
        print(f"mixing budget: {details.mixing_line()}")

    @property
    def _args(self) -> tuple[object, ...]:  # arviz.from_numpyro reads it
        raise ConfigurationError("the arguments of a run are not kept, they hold the data: use mcmc.to_arviz().")

    @checked
    def to_arviz(self, *, allow_unconverged: bool = False, coords: Tree = None, dims: Tree = None) -> Foreign:
        """InferenceData (ArviZ 1: a DataTree) of the samples and their weights, with the privacy report as attributes.

        It holds no observed data and no log likelihood: both would be private rows. Needs the [arviz] extra.

        - **allow_unconverged** - as for `get_samples`.
        - **coords**, **dims** - labels of axes, and names of each site's axes, as ArviZ takes them; a plate's axis has its name.
        """
        self._ended("to_arviz")
        samples = jax.tree.map(np.asarray, self.get_samples(group_by_chain=True, allow_unconverged=allow_unconverged))
        stats = {"weight": self.get_weights()}
        return to_inference_data(
            samples, self.privacy_report(), self._dims, coords, dims, self._labels, sample_stats=stats
        )


def _with_norm(kernel: DPKernel, bound: BoundKernel, call: Call, found: Located) -> DPKernel:
    """The kernel with the metric that a run found, and the norm that private norms of the rows suggest, or the least at which
    the prior alone is sampled well.

    Rows with shorter gradients do not inform the posterior: their sum is smaller than the noise of a step that suits the
    prior."""
    norms, num_rows = found.norms, bound.split.num_rows
    affordable = None
    if isinstance(kernel.mechanism.clipping, Centred):
        time = kernel.total_time(call.first + call.num_steps)
        affordable = affordable_norm(norms, bound.num_latents, num_rows * norms.share, time)
    # Clipped scores have the share `kept` of the curvature: at this temperature widths are right.
    collected = call.num_collected * call.thinning / call.num_steps or 1.0
    steps = kernel.charge(call.first, call.num_steps, call.num_chains)
    norm, metric = chosen_norm(
        found, num_rows, steps, collected, quantile=QUANTILE, margin=MARGIN, affordable=affordable
    )
    if metric is not None:
        kernel = kernel.copy(metric=metric, searches=False, temperature=metric.kept)
    step_size = kernel.with_norm(norm).step_size
    assert isinstance(step_size, float)
    too_long = step_size / float(kernel.longest_step(found.scale**-2.0))  # steps fall as norm^-2
    return kernel.with_norm(float(f"{norm * max(1.0, too_long) ** 0.5:.4g}"))
