"""Private stochastic variational inference: NumPyro's calls, a budget, parameters, report."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.clipping import Adaptive
from dpppl.access.mechanism import Mechanism
from dpppl.accounting.bayesian import BayesianSpent
from dpppl.errors import ConfigurationError
from dpppl.information_flow.row_free import proved
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.model.arguments import name_of
from dpppl.randomness import keys
from dpppl.runs import single_steps
from dpppl.runs.budget import Budget, Charge, counted
from dpppl.runs.clipped_rows import ClippedRows, count_share_of
from dpppl.runs.driver import TRACING, Method, Program, Run, drive, forgetful, prepare, prove
from dpppl.runs.norm_choice import after_histogram, histogram_charge
from dpppl.runs.provenance import KeyOrigin, KeySource, Provenance, Start, Status
from dpppl.runs.report import PrivacyReport
from dpppl.subsampling import FullBatch, Partition, Subsampling
from dpppl.svi import defaults, optimizers, queries
from dpppl.svi.bayesian import svi_spent
from dpppl.svi.binding import bind_objective
from dpppl.svi.details import clipped_rows, start_of, svi_report
from dpppl.svi.elbo import Objective, default_loss
from dpppl.svi.guides import check_guide
from dpppl.svi.result import SVIResult
from dpppl.svi.step import SVIState, continued, svi_clipping_of, svi_step
from dpppl.svi.trajectory import method_of, thinning_for
from dpppl.validation import Fixed, checked_call, positive, positive_integer


class SVI(Fixed):
    """Differentially private SVI with the calls of `numpyro.infer.SVI`, a privacy budget, and a report. No losses.

    `model`: a NumPyro model with one data plate. `guide`: an AutoGuide that was not called yet, or a guide written by
    hand. `optim`: an optimiser of optax, numpyro.optim or jax.example_libraries that needs no loss value; by default Adam
    whose learning rate falls from .04 to .004, and guides that have no start of their own begin at the prior's median.
    `clipping_norm`: bound on the norm of one row's gradient (a dict by site or parameter clips each by itself); "auto",
    the default, spends 1 % of the cost on a histogram of norms at the start and takes its .9 quantile.
    `clipping`: "centred", the default where the norm is "auto", shrinks what a row's gradient has beyond its expectation under
    the model, so that the posterior is unbiased however many rows are clipped; "flat", the default where you give a norm,
    shrinks the gradient, and works for every model and guide; also "normalised" or dpppl.Adaptive(...).
    `measure_clipping`: spend 1 % of the cost on the share of rows that are clipped, so that `convergence` and report can
    say whether clipping has biased the posterior.
    `subsampling`: FullBatch(), the default, Poisson(rate), Partition(num_batches). `gradient`: "aligned" clips and noises the
    gradient with respect to the latents and pulls it back through the guide; "per_parameter" that with respect to the
    guide's parameters, as guides that read their row need. `num_particles`: guide draws a step, one access together.
    `noise_multiplier`, or `target_epsilon` with
    `target_delta`: the budget of this object, all of which the first `run` uses but for the share `reserve`, kept for
    queries and later runs. `ledger`, `checkpoint`, `print_cost`: as for `dpppl.MCMC`. `loss`: NumPyro's ELBO for prior and
    entropy, Trace_ELBO() or TraceMeanField_ELBO() (closed-form KL), the latter by default for AutoNormal.
    `num_data`: the number of rows, if it may be public. `data_plate`: the plate of the rows, where two fit.
    `gradient_strategy`, `discretise`: how rows' gradients are summed, and discrete noise on whole numbers, as for the
    kernels.

    With AutoDelta this is DP-SGD for the maximum a posteriori; with AutoNormal and Partition, Bayes by Backprop.

    Guarantee: every step is charged before it runs. Parameters, states and trajectories are functions of the
    mechanism's outputs and public values; guides are set up on made-up rows; returned states hold no key.
    Raises ConfigurationError or BudgetExceededError before any data are touched and before anything is charged.

    >>> import dpppl, jax.numpy as jnp, numpyro, numpyro.distributions as dist, optax
    >>> from numpyro.infer.autoguide import AutoNormal
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> svi = dpppl.SVI(model, AutoNormal(model), optax.adam(0.05), clipping_norm=3.0, subsampling=dpppl.Poisson(0.1),
    ...                 target_epsilon=1.0, target_delta=1e-5)
    >>> result = svi.run(dpppl.secret_key(), 50, jnp.ones(1000), progress_bar=False)
    This run will spend epsilon = 0.9994 at delta = 1e-05: add or remove one row, N public (zero-out).
    >>> sorted(result.params)
    ['mu_auto_loc', 'mu_auto_scale']
    """

    @checked_call
    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: Any = None,
        loss: Any = None,
        *,
        clipping_norm: float | str | Mapping[str, float] = "auto",
        subsampling: Subsampling | None = None,
        gradient: str = "aligned",
        num_particles: int = 1,
        clipping: str | Adaptive | None = None,
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        ledger: PrivacyLedger | str | os.PathLike[str] | None = None,
        reserve: float = 0.0,
        checkpoint: str | os.PathLike[str] | None = None,
        num_data: int | None = None,
        data_plate: str | None = None,
        gradient_strategy: str = "auto",
        discretise: bool = False,
        measure_clipping: bool = True,
        print_cost: bool = True,
    ) -> None:
        if gradient not in ("aligned", "per_parameter"):
            raise ConfigurationError('gradient must be "aligned" or "per_parameter".')
        subsampling = FullBatch() if subsampling is None else subsampling
        if not isinstance(subsampling, Subsampling):
            raise ConfigurationError("subsampling must be dpppl.Poisson(rate), FullBatch(), Partition(...), ...")
        check_guide(guide)
        self.model, self.guide = model, guide
        self._optim = None if optim is None else optimizers.without_loss(optim)
        if optim is None:
            defaults.start_at_median(guide)
        self.gradient = gradient
        self.num_particles = positive_integer(num_particles, name="num_particles")
        self.num_data = None if num_data is None else positive_integer(num_data, name="num_data")
        self.data_plate = data_plate
        self.loss = default_loss(guide) if loss is None else loss
        if getattr(self.loss, "num_particles", None) != 1:
            raise ConfigurationError(
                "loss must be a NumPyro ELBO with one particle, such as Trace_ELBO(); use SVI's own num_particles."
            )
        self._auto = isinstance(clipping_norm, str) and clipping_norm == "auto"
        if clipping is None:
            clipping = "centred" if self._auto else "flat"
        if self._auto:
            defaults.check_auto(gradient, clipping, checkpoint)
        clip = svi_clipping_of(clipping, 1.0 if self._auto else clipping_norm, num_data)
        self._mechanism = Mechanism(
            clipping=clip, subsampling=subsampling, strategy=gradient_strategy, discretise=discretise
        )
        self._count_share = count_share_of(clip, measure_clipping)
        self.budget = Budget(target_epsilon, target_delta, ledger=ledger, reserve=reserve)
        if (target_epsilon is None) == (noise_multiplier is None):
            raise ConfigurationError("give either noise_multiplier or target_epsilon with target_delta.")
        self.noise_multiplier = (
            None if noise_multiplier is None else positive(noise_multiplier, name="noise_multiplier")
        )
        self.checkpoint, self.print_cost = checkpoint, print_cost
        self._objective: Objective | None = None
        self._clipped: ClippedRows | None = None
        self._provenance, self._start = Provenance(), start_of(guide)
        self._captured: tuple[str, ...] = ()  # by functions of queries
        self._programs: dict[Any, Program] = {}

    @property
    def optim(self) -> Any:
        """The optimiser, with NumPyro's interface; the default one, for 400 steps, where none was given or run yet."""
        if self._optim is None:
            self._optim = defaults.DefaultOptimizer(defaults.NUM_STEPS)
        if self._optim == optimizers.LOST:
            raise ConfigurationError(
                "this SVI was pickled without its optimiser, whose functions pickle does not take; install cloudpickle before "
                "you pickle, or make a new SVI."
            )
        return self._optim

    @property
    def mechanism(self) -> Mechanism:
        """What an access does; with clipping_norm="auto" at norm 1 until a run has chosen it."""
        return self._mechanism

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_programs": {}, "_optim": optimizers.Pickled(self._optim)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"_optim": state["_optim"].optim})

    def __repr__(self) -> str:
        clipping = 'clipping_norm "auto"' if self._auto else self.mechanism.clipping.describe()
        of = f"SVI of {name_of(self.model)} by {name_of(self.guide)}; {clipping}; {self.mechanism.subsampling.describe()}"
        return f"{of}: {self._provenance.status}; {self.budget!r}"

    # Budget

    def privacy_plan(self, num_steps: int = defaults.NUM_STEPS) -> PrivacyReport:
        """The report that a `run` of `num_steps` more steps would add up to, without data."""
        charged = self.budget.charged
        charges = self._charges(positive_integer(num_steps, name="num_steps"), sum(c.num_steps for c in charged))
        start = None if self._provenance.starts else self._start
        planned = self._provenance.and_now(Status.PLANNED, start=start)
        return svi_report(self, [*charged, *charges], planned)

    def privacy_report(self, state: SVIState | None = None) -> PrivacyReport:
        """What everything run so far has cost: runs, interrupted ones too, queries, and steps by `update`.

        With a `state` that `update` returned: what its steps have cost, without all else; ConfigurationError if it counts
        none. Such states hold the key: keep them secret."""
        if state is not None:
            charges = [Charge(self.mechanism, np.full(counted(state.i), self._fixed_noise()))]
            origin = KeyOrigin(KeySource.STATE, "as init was given")
            return svi_report(self, charges, Provenance().and_now(Status.BY_HAND, origin, self._start))
        start = None if self._provenance.starts else self._start
        provenance = self._provenance.and_now(self._provenance.status, start=start)
        return svi_report(self, self.budget.charged, provenance)

    def _charges(self, num_steps: int, first: int, run_id: str | None = None) -> list[Charge]:
        """A run's charges, the last that of its steps, at the noise multiplier that the budget gives. Looks at no data.

        The one before, if any: the histogram that the norm is still to come from. `run_id`: of a run that is resumed."""
        mechanism = replace(self.budget.affordable(self.mechanism, num_steps), count_share=self._count_share)

        def charges_at(sigma: float) -> list[Charge]:
            steps = Charge(mechanism, np.full(num_steps, sigma), first)
            return [histogram_charge(sigma, num_steps, mechanism), steps] if self._auto else [steps]

        noise = self.noise_multiplier
        return charges_at(self.budget.calibrate(charges_at, run_id) if noise is None else noise)

    def _fixed_noise(self) -> float:
        if self._auto:
            raise ConfigurationError('clipping_norm="auto" is chosen by run; update needs the norm as a number.')
        if self.noise_multiplier is None:
            raise ConfigurationError(
                "the noise of update follows from the number of steps, which only run(rng_key, num_steps, ...) knows; give "
                "noise_multiplier without target_epsilon to use init and update."
            )
        return self.noise_multiplier

    # NumPyro's calls

    @forgetful
    def init(self, rng_key: Any, *args: Any, init_params: Any = None, **kwargs: Any) -> SVIState:
        """The first state, for steps by `update`, with the guide's parameters set up without data.

        `rng_key`: one key, used once, which the state holds; take it from `dpppl.secret_key()`. Looks at no data and charges
        nothing. Raises KeyReuseError for a key that was used, ConfigurationError inside a function that JAX traces."""
        single_steps.check_eager("init", rng_key)
        key = keys.as_key(rng_key)
        state = self._set_up(key, args, kwargs, init_params)
        single_steps.begin(key)
        return state

    @forgetful
    def update(self, state: SVIState, *args: Any, **kwargs: Any) -> tuple[SVIState, None]:
        """One step: one access of the data, charged first. NumPyro's pair of the state and the loss, but there is no loss.

        Compiled by itself. A state is updated once, in the process whose `init` made it, because two steps from one state
        have the same noise. Raises KeyReuseError otherwise; ConfigurationError inside jax.jit and other transformations
        (use `run`), with a Partition, and where a target sets the budget; then nothing was looked at or charged."""
        objective, noise = self.objective(), self._fixed_noise()
        if isinstance(self.mechanism.subsampling, Partition):
            raise ConfigurationError(
                "a Partition charges each row once an epoch, which holds only while the rows keep their order; update "
                "cannot know that they do. Use run, or Poisson(rate)."
            )
        arguments = (state, *objective.arrays(args, kwargs))
        single_steps.check_eager("update", arguments)
        key, count = single_steps.key_of(state), int(state.i)
        kind = tuple((np.shape(leaf), str(leaf.dtype)) for leaf in jax.tree.leaves(arguments))
        if kind not in self._programs:
            step = self._step(objective, self.mechanism, noise)
            self._programs[kind] = prepare(lambda *arguments: step(*arguments)[0], arguments, rows=1)
        charge, take = Charge(self.mechanism, np.array([noise])), partial(single_steps.take, key, count)
        self.budget.charge_one(charge, "SVI.update", single_steps.name_of(key), take)
        for origin in (KeyOrigin.of(key), KeyOrigin(KeySource.STATE, "as init was given")):
            self._provenance = self._provenance.and_now(Status.BY_HAND, origin, self._start)
        return self._programs[kind](*arguments), None

    def get_params(self, state: SVIState) -> dict[str, Any]:
        """The constrained parameters of a state."""
        if isinstance(state, SVIResult):
            raise ConfigurationError("get_params takes a state; result.params are the parameters of a result.")
        with TRACING:
            return self._params(self.objective(), state.optim_state)(state.optim_state)

    def evaluate(self, state: SVIState, *args: Any, **kwargs: Any) -> None:
        """NumPyro's loss of a state: not available."""
        raise ConfigurationError(
            "evaluate would be another look at the data: estimate_elbo is a charged query, and a result's convergence "
            "says for free whether the run has arrived."
        )

    @forgetful
    def run(
        self, rng_key: Any, num_steps: int | None, *args: Any, progress_bar: bool = True, init_state: SVIState | None = None,
        init_params: Any = None, thinning: int | None = None, **kwargs: Any,
    ) -> SVIResult:  # fmt: skip
        """Run `num_steps` steps (None: 400), as `numpyro.infer.SVI.run`; prints what they will cost first.

        `rng_key`: one key, used once; take it from `dpppl.secret_key()`. `init_state`: the state of a result, to go on
        from. `thinning`: the trajectory keeps every so many-th iterate; by default about 1,000 of them in all."""
        return self._execute(rng_key, num_steps, args, kwargs, progress_bar, init_state, init_params, thinning)

    def _execute(
        self, rng_key: Any, num_steps: int | None, args: tuple[Any, ...], kwargs: dict[str, Any], progress_bar: bool,
        init_state: SVIState | None, init_params: Any, thinning: int | None,
    ) -> SVIResult:  # fmt: skip
        num_steps = positive_integer(defaults.NUM_STEPS if num_steps is None else num_steps, name="num_steps")
        if self._optim is None:
            self._optim = defaults.DefaultOptimizer(num_steps)
        run = Run.opened(rng_key, self.checkpoint)
        params_of = lambda state: self.optim.get_params(state.optim_state)  # noqa: E731
        start = Start.STATE if init_state is not None else start_of(self.guide)
        start = start if init_params is None else Start.SUPPLIED
        with self.budget.turn:  # until the clipping norm is known
            # A stream of its own: whatever else is made from this key has other noise.
            objective, state = self._bound(keys.stream(run.key, "run"), args, kwargs, init_params)
            state = state if init_state is None else continued(init_state, state)
            with TRACING:
                constrained = self._params(objective, state.optim_state)
            *histogram, charge = self._charges(num_steps, int(state.i), run.run_id)
            self.budget.admit([*histogram, charge], run.run_id)
            rows, public = objective.arrays(args, kwargs)
            thinning = thinning_for(state.optim_state, num_steps) if thinning is None else thinning
            thinning = positive_integer(thinning, name="thinning")

            def method_at(mechanism: Mechanism) -> Method:
                step = self._step(objective, mechanism, charge.noise_multipliers[0])
                return method_of(step, params_of, num_steps, thinning, mechanism.counts)

            if histogram:
                number = np.asarray(0, np.int32)
                prove(method_at(charge.mechanism).mapped_chunk, (state, rows, public, number, number), rows=1)
                both = [*histogram, charge]
                run = defaults.choose_norm(self, objective, params_of(state), rows, public, run, both, start)
                norm = self.mechanism.clipping.clipping_norm
                charge = replace(charge, mechanism=charge.mechanism.with_norm(norm))
        with after_histogram(run):
            [(state, (trajectory, (gradients, shares)))] = drive(
                run, method_at(charge.mechanism), [state], rows, public, self.budget, [charge],
                lambda origin: self._begun(objective, [charge], origin, start), what="SVI", settings=(thinning,),
                notes=objective.split.notes, print_cost=self.print_cost, progress_bar=progress_bar,
                describe=lambda done: "SVI",
            )  # fmt: skip
        params = constrained(state.optim_state)
        self._clipped = clipped_rows(shares, charge, num_steps, objective.split.num_rows)
        finite = all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(params))
        self._provenance = self._provenance.ended(Status.COMPLETE if finite else Status.NOT_FINITE)
        if not finite:
            warnings.warn("parameters are not finite: lower the learning rate. The run stays charged.", stacklevel=4)
        return SVIResult(
            last_params=params,
            state=state,
            trajectory=trajectory,
            gradients=gradients,
            clipped=self._clipped,
            transforms=objective.transforms,
            guide=objective.guide,
            objective=objective,
            public=public,
            report=self.privacy_report(),
        )

    def _begun(self, objective: Objective, charges: Sequence[Charge], origin: KeyOrigin, start: Start) -> PrivacyReport:
        """Note that a run begins; the report of its charges alone."""
        self._objective, self._programs, self._clipped = objective, {}, None
        self._provenance = self._provenance.and_now(Status.INTERRUPTED, origin, start)
        return svi_report(self, charges, self._provenance)

    # Queries: charged accesses that say how good a fit is

    @forgetful
    def estimate_elbo(
        self, rng_key: Any, params: Any, *args: Any, bound: float, noise_multiplier: float | None = None,
        num_particles: int = 16, **kwargs: Any,
    ) -> float:  # fmt: skip
        """A noised estimate of the ELBO at `params`, with all rows: one access of noise `bound * noise_multiplier`.

        `bound`: each row's log likelihood is clipped to [-bound, bound]. Without `noise_multiplier`: as little noise as
        what is left of the target allows (see `reserve`)."""
        key = keys.as_key(rng_key)
        objective, _ = self._bound(key, args, kwargs, None)
        return queries.estimate_elbo(self, objective, key, params, args, kwargs, bound, noise_multiplier, num_particles)

    @forgetful
    def estimate_accuracy(
        self, rng_key: Any, params: Any, correct: Callable[..., Any], *args: Any, noise_multiplier: float | None = None,
        num_particles: int = 16, **kwargs: Any,
    ) -> float:  # fmt: skip
        """A noised estimate of the share of rows that are predicted right: one access of noise `noise_multiplier`.

        `correct(samples, *args, **kwargs)`: whether one row is, given posterior samples by site (num_particles, ...)
        and the model's arguments for that row, without their leading axis. Needs `num_data`, of which it is a share.
        Without `noise_multiplier`: as for `estimate_elbo`."""
        key = keys.as_key(rng_key)
        objective, _ = self._bound(key, args, kwargs, None)
        return queries.estimate_accuracy(
            self, objective, key, params, correct, args, kwargs, noise_multiplier, num_particles
        )

    @forgetful
    def bayesian_privacy(
        self, result: SVIResult, *args: Any, num_rows: int = 1000, delta: float = 1e-10, **kwargs: Any
    ) -> BayesianSpent:
        """What a run cost rows like the data's, by the Bayesian accountant: not private, no part of the report.

        - **result**: of this object's last run; the more iterates it keeps, the better: steps between them count at the
          clipping norm.
        - **args**, **kwargs**: those of `run`.
        - **num_rows**, **delta**: as in `runs.bayesian.bayesian_spent`.

        Raises ConfigurationError for clipping that is not flat, subsampling that is neither Poisson nor of full batches, and
        a guide that draws latents of rows.
        """
        charge = next(charge for charge in reversed(self.budget.charged) if not charge.is_query)
        return svi_spent(self.objective(), self.gradient, charge, result.trajectory, args, kwargs, num_rows, delta)

    def _set_up(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], init_params: Any = None) -> SVIState:
        """See `init`, without its claim of the key."""
        objective, state = self._bound(key, args, kwargs, init_params)
        self._objective, self._programs = objective, {}
        self._start = self._start if init_params is None else Start.SUPPLIED
        return state

    def _bound(
        self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], init_params: Any
    ) -> tuple[Objective, SVIState]:
        """The ELBO, split, for these arguments, and the first state."""
        with TRACING:
            objective, phi = bind_objective(self, keys.stream(key, "initial values"), args, kwargs, init_params)
            captured = optimizers.check_without_loss(self.optim, phi, objective.split.num_rows)
            self._captured = tuple(dict.fromkeys((*self._captured, *captured)))
            adaptive = isinstance(self.mechanism.clipping, Adaptive)
            norm = jnp.float32(self.mechanism.clipping.clipping_norm) if adaptive else None
            init = proved(self.optim.init, phi, num_rows=objective.split.num_rows)
            return objective, SVIState(jnp.zeros((), jnp.int32), init(phi), norm, key)

    def _params(self, objective: Objective, optim_state: Any) -> Callable[[Any], dict[str, Any]]:
        """From an optimiser's state, like this one, to constrained parameters."""
        constrained = lambda optim_state: objective.constrain(self.optim.get_params(optim_state))  # noqa: E731
        return proved(constrained, optim_state, num_rows=objective.split.num_rows)

    def _step(self, objective: Objective, mechanism: Mechanism, noise_multiplier: Any) -> Callable[..., Any]:
        """See `svi_step`: of (state, rows, public)."""
        return partial(svi_step, objective, mechanism, noise_multiplier, self.optim, self.gradient, self.num_data)

    def objective(self) -> Objective:
        """The ELBO, split, for the arguments of the last init or run."""
        if self._objective is None:
            raise ConfigurationError("call init or run first: the guide is not set up yet.")
        return self._objective
