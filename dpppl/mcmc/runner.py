"""Runs a private kernel with NumPyro's calls: chains, samples, a budget and a report."""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer

from dpppl.accounting.bayesian import BayesianSpent
from dpppl.data.rows import described
from dpppl.data.sharded import checked_mesh
from dpppl.errors import BudgetExceededError, ConfigurationError
from dpppl.information_flow.row_free import proved
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.mcmc.arrival import Arrival
from dpppl.mcmc.auto_norm import choose_norm
from dpppl.mcmc.bayesian import chain_spent
from dpppl.mcmc.chains import initial_states, mapping_of, not_finite, unstack
from dpppl.mcmc.collection import Collection, check_fields, fields_to_collect
from dpppl.mcmc.details import ChainDetails, chain_report
from dpppl.mcmc.kernel import DPKernel, start_of
from dpppl.mcmc.stability import check_prior_stability
from dpppl.mcmc.summary import print_table
from dpppl.mcmc.verdict import Measured, measure, verdict_lines, verdicts
from dpppl.model.units import grouped
from dpppl.randomness import keys
from dpppl.runs import placing
from dpppl.runs.budget import Budget, Charge
from dpppl.runs.driver import TRACING, Run, drive, forgetful
from dpppl.runs.norm_choice import after_histogram, histogram_charge
from dpppl.runs.provenance import KeyOrigin, Provenance, Start, Status
from dpppl.runs.report import PrivacyReport, to_inference_data
from dpppl.runs.unit import Unit
from dpppl.validation import checked_call, plain, positive_integer

_MOST_NUMBERS = 2**26


class MCMC(numpyro.infer.MCMC):
    """NumPyro's MCMC for private kernels: the same calls, a privacy budget, and a report.

    `kernel`: a dpppl kernel. `target_epsilon`, `target_delta`: the budget of this object for everything it runs; the
    first call is calibrated to use all of it over num_chains * (num_warmup + num_samples) steps, but for the share
    `reserve`, and a later call that would exceed it is refused. Without a target the kernel's own step size and noise
    decide, and the report says what that cost. `ledger`: a dpppl.PrivacyLedger, which counts all that is run on the same
    data and must agree, too, or the path of one that stands there. `checkpoint`: a file that lets a run that was killed go
    on where it was, with the same numbers and no second charge; it holds the run's keys: keep it secret. `unit`: the name under
    which `run` gets one id a row, `run(key, x, y, person=ids)` for unit="person": all rows with one id are then one record, of
    which at most `max_rows_per_unit` are used. Without `unit`, `max_rows_per_unit` declares that nobody has more rows, and
    epsilon is that of a group of so many. `print_cost`: print
    a line with the cost before a run. `mesh`: a jax.sharding.Mesh, over whose axis "rows" (its only one, else) rows are dealt
    out; rows that are dealt out already stay as they lie. The other arguments are `numpyro.infer.MCMC`'s.

    Guarantee: every step of every chain is charged before it runs, warmup and thinned-away steps included. Samples,
    states, extra fields, the progress bar and pickles are functions of the mechanism's outputs and public values; no
    reference to an array argument is kept after `run`, and returned states hold no key.
    Raises ConfigurationError or BudgetExceededError before any data are touched and before anything is charged.

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

    @checked_call
    def __init__(
        self,
        kernel: DPKernel,
        *,
        num_warmup: int,
        num_samples: int,
        num_chains: int = 1,
        thinning: int = 1,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        ledger: PrivacyLedger | str | os.PathLike[str] | None = None,
        reserve: float = 0.0,
        checkpoint: str | os.PathLike[str] | None = None,
        unit: str | None = None,
        max_rows_per_unit: int | None = None,
        chain_method: Any = "parallel",
        progress_bar: bool = True,
        progress_rate: int | None = None,
        print_cost: bool = True,
        mesh: Any = None,
    ) -> None:
        if not isinstance(kernel, DPKernel):
            what = f"the class {kernel.__name__}" if isinstance(kernel, type) else f"a {type(kernel).__name__}"
            raise ConfigurationError(
                f"the kernel is {what}; dpppl.MCMC runs dpppl.DPSGLD(model, ...), DPSGHMC and DPSGNHT, whose noise is the "
                "privacy noise. NumPyro's kernels, such as NUTS, read the data without noise; dpppl.NoiseAware(model, ...) "
                "runs NUTS on what was released."
            )
        thinning = positive_integer(thinning, name="thinning")
        if positive_integer(num_samples, name="num_samples") < thinning:
            raise ConfigurationError("num_samples must be at least thinning: one sample in so many is kept.")
        try:
            super().__init__(
                kernel,
                num_warmup=plain(num_warmup),
                num_samples=plain(num_samples),
                num_chains=positive_integer(num_chains, name="num_chains"),
                thinning=thinning,
                chain_method=chain_method,
                progress_bar=progress_bar,
                progress_rate=progress_rate,
            )
        except ValueError as error:
            raise ConfigurationError(f"{error}.") from None
        self.unit = Unit.of(unit, max_rows_per_unit)
        self.budget = Budget(target_epsilon, target_delta, ledger=ledger, reserve=reserve, unit=self.unit)
        if target_epsilon is not None and kernel.noise_multiplier is not None:
            raise ConfigurationError("give noise_multiplier or target_epsilon, not both: one follows from the other.")
        if checkpoint is not None and kernel.auto_norm:
            raise ConfigurationError(
                'a run with clipping_norm="auto" takes no checkpoint; give it the norm as a number.'
            )
        self.checkpoint, self.print_cost, self.mesh = checkpoint, print_cost, checked_mesh(mesh)
        self._placement: str | None = None
        self._last_state: Any = None
        self._kernel: DPKernel | None = None
        self._provenance = Provenance()
        self._failed: tuple[int, ...] = ()
        self._measured: Measured | None = None
        self._arrival = Arrival()
        self._num_rows: int | None = None
        self._assumed_public: tuple[str, ...] = ()
        self._collected = (0, 0, 1)

    def __repr__(self) -> str:
        steps = f"{self.num_chains} x ({self.num_warmup} + {self.num_samples}) steps"
        return f"MCMC of {self.sampler!r}: {steps}, {self._provenance.status}; {self.budget!r}"

    # Budget

    def calibrated_kernel(self) -> DPKernel:
        """A copy of the kernel with the noise multiplier and the step size that the budget gives. Looks at no data."""
        return self._fixed_kernel().copy()

    def _fixed_kernel(self) -> DPKernel:
        """The kernel of all runs, found once: what was charged stays charged at its noise."""
        if self._kernel is None:
            self._kernel = self._calibrated()
        return self._kernel

    def _calibrated(self) -> DPKernel:
        steps, budget = self.num_warmup + self.num_samples, self.budget
        kernel = self.sampler.with_mechanism(budget.affordable(self.sampler.mechanism, steps * self.num_chains))
        if budget.target_epsilon is None:
            return kernel
        if not kernel.is_matched:
            try:
                budget.admit([kernel.charge(0, steps, self.num_chains)], share=1.0 - budget.reserve)
            except BudgetExceededError:
                pass
            else:
                return kernel  # the sampler's own noise is enough
        noise = budget.calibrate(lambda sigma: self._with_histogram(kernel.with_noise(sigma), 0, steps))
        return kernel.with_noise(noise)

    def _with_histogram(self, kernel: DPKernel, first: int, steps: int) -> list[Charge]:
        """What so many steps of all chains cost, and before them the histogram that the norm is still to come from."""
        charges = [kernel.charge(first, steps, self.num_chains)]
        if kernel.auto_norm:
            assert kernel.noise_multiplier is not None
            total = self.num_chains * (self.num_warmup + self.num_samples)
            charges.insert(0, histogram_charge(kernel.noise_multiplier, total, kernel.mechanism))
        return charges

    def privacy_plan(self) -> PrivacyReport:
        """The report that the next `run` would add up to, without data."""
        charges = self._with_histogram(self._fixed_kernel(), *self._next_steps(warmup_only=False))
        planned = self._provenance.and_now(Status.PLANNED, start=start_of(self.sampler.init_strategy))
        return self._report([*self.budget.charged, *charges], planned)

    def privacy_report(self) -> PrivacyReport:
        """What everything run so far has cost, an interrupted run included."""
        start = None if self._provenance.starts else start_of(self.sampler.init_strategy)
        return self._report(self.budget.charged, self._provenance.and_now(self._provenance.status, start=start))

    def _report(self, charges: Any, provenance: Provenance) -> PrivacyReport:
        budget = self.budget
        return chain_report(
            self._fixed_kernel(), charges, provenance, delta=budget.target_delta, num_chains=self.num_chains,
            failed_chains=self._failed, measured=self._measured, num_rows=self._num_rows, assumed_public=self._assumed_public,
            ledger=budget.ledger_line(), unit=self.unit, placement=self._placement,
        )  # fmt: skip

    def _next_steps(self, warmup_only: bool) -> tuple[int, int]:
        """(first step number, steps a chain) of the next run."""
        if warmup_only or self._warmup_state is None:
            return 0, self.num_warmup if warmup_only else self.num_warmup + self.num_samples
        return int(np.max(np.asarray(self._warmup_state.i))), self.num_samples

    # Running

    @forgetful
    def warmup(
        self, rng_key: Any, *args: Any, extra_fields: Any = (), collect_warmup: bool = False, init_params: Any = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        """Run the warmup steps only, charged; the next `run` continues with the sampling steps. As in NumPyro."""
        thinned = self.num_warmup % self.thinning, self.num_warmup // self.thinning
        collect = thinned if collect_warmup else (self.num_warmup, 0)
        self._execute(rng_key, args, kwargs, extra_fields, init_params, self.num_warmup, collect, None)
        self._warmup_state = self._last_state

    @forgetful
    def run(self, rng_key: Any, *args: Any, extra_fields: Any = (), init_params: Any = None, **kwargs: Any) -> None:
        """Run the chains and collect samples. As `numpyro.infer.MCMC.run`; prints what it will cost first.

        `rng_key`: one key, used once; take it from `dpppl.secret_key()`. `extra_fields`: fields of the state, but not
        the key. Arrays among the arguments are private unless marked `dpppl.Public`."""
        warmup = self.num_warmup if self._warmup_state is None else 0
        collect = (warmup + self.num_samples % self.thinning, self.num_samples // self.thinning)
        self._execute(rng_key, args, kwargs, extra_fields, init_params, warmup, collect, self._warmup_state)

    def _execute(
        self, rng_key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], extra_fields: Any, init_params: Any, warmup: int,
        collect: tuple[int, int], resume: Any, run: Run | None = None,
    ) -> None:  # fmt: skip
        run = Run.opened(rng_key, self.checkpoint) if run is None else run
        kernel = self.calibrated_kernel()
        args, kwargs = grouped(
            kernel.model, args, kwargs, self.unit.ids, self.unit.max_rows, keys.stream(run.key, "units")
        )
        fields, removed = fields_to_collect(self._sample_field, self._default_fields, extra_fields)
        with TRACING:
            # A stream of its own: keys that the caller splits off the same key must give a run other noise.
            states = initial_states(
                kernel,
                keys.stream(run.key, "chains"),
                self.num_chains,
                self.num_warmup,
                init_params,
                resume,
                args,
                kwargs,
            )
        check_fields(fields, states)
        asked, own = fields, {"clipped"} if kernel.mechanism.counts else set()
        if sum(np.size(leaf) for leaf in jax.tree.leaves(states.z)) * collect[1] <= _MOST_NUMBERS:
            own.add("z")  # positions, which tell with the samples how long steps are
        fields = (*fields, *sorted(own - set(fields)))
        first = 0 if resume is None else int(np.max(np.asarray(resume.i)))
        steps = collect[0] + collect[1] * self.thinning
        together = self.num_chains == 1 or self.chain_method != "sequential"
        legs = [states] if together else unstack(states)
        charges = [kernel.charge(first, steps, self.num_chains if together else 1)] * len(legs)
        kernel.check_noise(kernel.noise_std(*kernel.schedule(first, steps)))
        rows, public = kernel.split.arrays(args, kwargs, self.mesh)
        self._placement = described(rows)
        collection = Collection(
            fields=fields, num_steps=steps, first=collect[0], num_collected=collect[1], thinning=self.thinning
        )
        mapping = None if len(legs) == self.num_chains else placing.together(mapping_of(self.chain_method), rows)
        start = start_of(kernel.init_strategy) if init_params is None else Start.SUPPLIED
        if kernel.auto_norm:
            with self.budget.turn:
                if self._fixed_kernel().auto_norm:  # else another thread has chosen the norm meanwhile
                    histogram = self._with_histogram(kernel, first, steps)[0]
                    chunk = lambda step: collection.method(step, mapping).mapped_chunk  # noqa: E731
                    run = choose_norm(
                        self, run, kernel, chunk, legs, (args, kwargs), first + steps, [histogram, *charges], start
                    )
            with after_histogram(run):
                return self._execute(rng_key, args, kwargs, extra_fields, init_params, warmup, collect, resume, run)
        self.budget.admit(charges, run.run_id)
        with TRACING:
            shapes = {
                n: jax.ShapeDtypeStruct((self.num_chains, collect[1], *s.shape), s.dtype)
                for n, s in kernel.split.latents.items()
            }
            constrain = jax.vmap(jax.vmap(kernel.split.constrain, (0, None)), (0, None))
            to_constrained = proved(constrain, shapes, public, num_rows=kernel.split.num_rows)
            check_prior_stability(kernel, unstack(states)[0] if self.num_chains > 1 else states, public, steps)
        method = collection.method(kernel.step, mapping)

        def begin(origin: KeyOrigin) -> PrivacyReport:
            self._kernel, self._states, self._states_flat, self._last_state = kernel, None, None, None
            self._warmup_state, self._failed, self._measured = resume, (), None
            return self._begun(kernel, charges, origin, start)

        finished = drive(
            run, method, legs, rows, public, self.budget, charges, begin, what=type(kernel).__name__,
            settings=(first, *collect, self.thinning), notes=kernel.split.notes,
            print_cost=self.print_cost, progress_bar=self.progress_bar,
            describe=lambda done: "warmup" if done <= warmup else "sample",
        )  # fmt: skip
        finished = [(state, dict(zip(fields, recorded))) for state, recorded in finished]
        states, collected = finished[0] if together else jax.tree.map(lambda *leaves: np.stack(leaves), *finished)
        if self.num_chains == 1:
            collected = jax.tree.map(lambda leaf: leaf[None], collected)
        self._last_state = states
        self._measured, self._arrival = measure(kernel, states, collected, first + collect[0], self.thinning)
        found: Any = {name: jax.tree.map(jnp.asarray, collected[name]) for name in asked}
        constrained = to_constrained(collected[self._sample_field], public)
        found[self._sample_field] = {s: v for s, v in constrained.items() if s not in removed}
        self._states = found
        self._collected = (first + collect[0], collect[1], self.thinning)
        self._failed = not_finite(states.z, self.num_chains)
        self._provenance = self._provenance.ended(Status.COMPLETE)
        if self._failed:
            warnings.warn(f"chains {[*self._failed]} hold values that are not finite; see the report.", stacklevel=4)
        elif self._measured.over_long:
            warnings.warn(
                f"steps of {self._measured.step_size:.3g} are too long for {', '.join(self._measured.over_long)}: raise "
                "num_samples, which shortens matched steps, or give a smaller step_size.",
                stacklevel=4,
            )

    def _begun(self, kernel: DPKernel, charges: Sequence[Charge], origin: KeyOrigin, start: Start) -> PrivacyReport:
        """Note that a run begins; the report of its charges alone."""
        self._num_rows, self._assumed_public = kernel.split.num_rows, kernel.split.assumed_public
        self._provenance = self._provenance.and_now(Status.INTERRUPTED, origin, start)
        return self._report(charges, self._provenance)

    # Results

    def get_samples(self, group_by_chain: bool = False) -> dict[str, Any]:
        """Samples by site, (num_samples, ...) or, by chain, (num_chains, num_samples, ...). As in NumPyro."""
        self._check_ran("get_samples")
        return super().get_samples(group_by_chain)

    def get_extra_fields(self, group_by_chain: bool = False) -> dict[str, Any]:
        """The `extra_fields` of the last run, by name. As in NumPyro."""
        self._check_ran("get_extra_fields")
        return super().get_extra_fields(group_by_chain)

    def _check_ran(self, method: str) -> None:
        if self._states is None:
            raise ConfigurationError(f"`run` must be called before `{method}`.")

    def get_weights(self) -> np.ndarray:
        """Weights of the collected samples in a posterior average, float64 (chains, draws), each chain summing to 1.

        A sample stands for the time of the steps since the one collected before it: with decreasing steps later
        samples count less (Li et al. 2019, section 3). Equal for a constant step and no thinning."""
        self._check_ran("get_weights")
        kernel, (first, draws, thinning) = self._fixed_kernel(), self._collected
        step_sizes, _ = kernel.schedule(first, draws * thinning)
        weights = kernel.sample_weight(step_sizes).reshape(draws, thinning).sum(axis=1)
        return np.tile(weights / weights.sum(), (np.size(self._last_state.i), 1))

    @forgetful
    def bayesian_privacy(self, *args: Any, num_rows: int = 1000, delta: float = 1e-10, **kwargs: Any) -> BayesianSpent:
        """What the last run cost rows like the data's, by the Bayesian accountant: not private, no part of the report.

        - **args**, **kwargs**: those of `run`, which needs `extra_fields=("z",)`.
        - **num_rows**, **delta**: as in `runs.bayesian.bayesian_spent`; what was not collected counts at the clipping norm.

        Raises ConfigurationError for clipping that is not flat, and other subsampling than Poisson or full batches.
        """
        positions = self.get_extra_fields(group_by_chain=True).get("z")
        kernel, (first, _, thinning) = self.calibrated_kernel(), self._collected
        return chain_spent(kernel, positions, first, thinning, args, kwargs, num_rows, delta)

    def verdicts(self) -> dict[str, np.ndarray]:
        """What may be read of each element of each site, in constrained space: "read", "read the mean only",
        "biased by clipping", "do not read: too short", "do not read: still moving" or "do not read: unstable". Arrays of
        words, by site. Computed from what was released."""
        if self._measured is None:
            raise ConfigurationError("`run` must be called before `verdicts`.")
        return verdicts(self.get_samples(group_by_chain=True), self._measured, self._arrival)

    def print_summary(self, prob: float = 0.9, exclude_deterministic: bool = True, max_rows: int = 10) -> None:
        """A table of at most `max_rows` elements, each with its verdict, then the verdicts of all in words."""
        self._check_ran("print_summary")
        samples, found = self.get_samples(group_by_chain=True), self.verdicts()
        if exclude_deterministic:
            samples = {site: value for site, value in samples.items() if site in self._last_state.z}
        print_table(samples, self.get_weights(), prob, found, max_rows)
        details = self.privacy_report().details
        assert isinstance(details, ChainDetails) and self._measured is not None
        for line in verdict_lines({site: found[site] for site in samples}, self._measured):
            print(line)
        print(f"mixing budget: {details.mixing_line()}")

    @property
    def _args(self) -> Any:  # arviz.from_numpyro reads it
        raise ConfigurationError("the arguments of a run are not kept, they hold the data: use mcmc.to_arviz().")

    def to_arviz(self) -> Any:
        """ArviZ InferenceData of the samples and their weights, with the privacy report as attributes.

        It holds no observed data and no log likelihood: both would be private rows. Needs the [arviz] extra."""
        self._check_ran("to_arviz")
        samples = {site: np.asarray(value) for site, value in self.get_samples(group_by_chain=True).items()}
        return to_inference_data(samples, self.privacy_report(), sample_stats={"weight": self.get_weights()})
