"""Private stochastic variational inference: NumPyro's calls, a budget, parameters, report."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.clipping import NUM_COUNTS
from dpppl.errors import ConfigurationError, concluding
from dpppl.frame.locate import Located, locate, locator_or_none
from dpppl.frame.metric import Metric
from dpppl.frame.moved_guides import MovedOptimizer, Movement
from dpppl.frame.norms import chosen_norm
from dpppl.information_flow.row_free import proved
from dpppl.randomness import keys
from dpppl.report.provenance import KeyOrigin, KeySource, Provenance, Start, Status
from dpppl.report.report import PrivacyReport
from dpppl.runs.budget import Charge, steps_of_state
from dpppl.runs.driver import NUM_CHUNKS, TRACING, Method, RunPlan, drive, on_host
from dpppl.runs.histogram import Histogram
from dpppl.runs.session import Run, Session
from dpppl.svi.by_hand import SVIByHand
from dpppl.svi.elbo import Objective
from dpppl.svi.result import SVIResult
from dpppl.svi.settings import NUM_STEPS, DefaultOptimizer, counted_rows, thinning_for
from dpppl.svi.step import SVIState, check_state, continued
from dpppl.types import Tree
from dpppl.validation import check_num_data, checked, positive_integer

QUANTILE = 0.9
"""Of the norms at the start: what is clipped costs less than the noise of a larger norm."""


class SVI(SVIByHand):
    """Differentially private SVI with the calls of `numpyro.infer.SVI`, a privacy budget, and a report. No losses.

    - **model** - a NumPyro model with one data plate.
    - **guide** - an AutoGuide that was not called yet, or a guide written by hand.
    - **optim** - an optimiser of optax, numpyro.optim or jax.example_libraries that needs no loss value. None: Adam whose
      learning rate falls from .04 to .004, and guides that have no start of their own begin at the prior's median.
    - **loss** - NumPyro's ELBO for prior and entropy: Trace_ELBO() or TraceMeanField_ELBO() (closed-form KL). None: the
      latter for AutoNormal, else the former.
    - **clipping_norm** - bound on the L2 norm of one row's gradient. "auto" spends 1 % of the cost on a histogram of norms at
      the start and takes its .9 quantile (.8 or more from a frame). Where the gradients of all responses of a row hold more
      than 65,536 numbers, latents times responses, the model is wide: "auto" is then flat clipping, in each run at the norm
      mu / s for a median prior sd s of latents, which looks at no row.
    - **subsampling** - Poisson(rate), Partition(num_batches) or FullBatch(), the default but of wide models, which take
      Poisson batches of 4,096 rows.
    - **gradient** - "aligned" clips and noises the gradient with respect to the latents, and multiplies it by the guide's
      Jacobian. "per_parameter" clips and noises the gradient with respect to the guide's parameters; guides that read their row
      need it.
    - **num_particles** - guide draws a step, one access together: the clipping norm is that of all their gradients as one vector.
    - **clipping** - "centred", the default where the norm is "auto" and the model not wide, clips the difference of a row's
      gradient and its expectation under the model: the posterior is unbiased however many rows are clipped. "flat", else the
      default, clips the gradient itself, and works for every model and guide.
    - **privacy** - a `dpppl.Privacy` that holds the budget and all that goes with it, instead of the next keywords.
    - **noise_multiplier** - noise sd in units of the norm, instead of a target.
    - **target_epsilon**, **target_delta** - the budget of this object, all of which the first `run` uses but for `reserve`.
    - **ledger**, **reserve**, **unit**, **max_rows_per_unit**, **num_data** - as in `dpppl.Privacy`.
    - **checkpoint** - a file that lets a killed run go on without a second charge; it holds the run's key: keep it secret.
    - **data_plate** - the name of the rows' plate, where two fit.
    - **gradient_strategy** - "auto", "vmap", "microbatch" or "ghost": how rows' gradients are summed.
    - **discretise** - whether to add discrete noise to whole numbers, as the kernels do.
    - **measure_clipping** - whether to spend 1 % of the cost on the shares of rows that are clipped, whose gradient is not
      finite, and whose gradient is 0, for `convergence` and report. The histogram of "auto" counts the last two at no cost.
    - **frame** - whether to spend 16 % of the cost on where the posterior is and how wide, by the accesses of `dpppl.NoiseAware`:
      the guide starts there; gradients are clipped, and parameters move, in coordinates in which the posterior is nearly white.
      For AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal and AutoDelta, whose parameters and family stay as they are.
      None: a frame for these, where target_epsilon is given, norm, start, `init_scale` and optimiser are the defaults, the run
      has 200 steps or more, and the model at most 500 latents, and at most 200 coordinates of the likelihood.
    - **print_cost** - whether to print a line with the cost before a run.
    - **mesh** - a jax.sharding.Mesh to shard rows over, as for `dpppl.MCMC`.
    - **name**, **labels** - of the analysis, for report and ledger; of elements, for all output: {"w": ["age", "smoker=yes"]}.

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

    @checked
    def privacy_plan(self, num_steps: int = NUM_STEPS, init_state: SVIState | None = None) -> PrivacyReport:
        """The report that a `run` of `num_steps` more steps would add up to, without data; before a first run, of no wide model.

        - **num_steps** - steps of the run.
        - **init_state** - the state that it goes on from: parts of `Partition` go round with its steps."""
        if init_state is not None:
            check_state(init_state, "init_state", self.optim)
        account, num_steps = self.budget.account(), positive_integer(num_steps, name="num_steps")
        first, frame = (0, None) if init_state is None else (int(init_state.i), False)
        return self._planned(self._charges(account, num_steps, first, frame).listed())

    @checked
    def privacy_report(self, state: SVIState | None = None) -> PrivacyReport:
        """The cost of everything run so far: runs, interrupted ones too, queries, and steps by `update`.

        - **state** - a state that `update` returned: what its steps have cost, without all else; ConfigurationError if it
          counts none. Such states hold the key: keep them secret."""
        if state is not None:
            charges = [Charge(self.mechanism, np.full(steps_of_state(state.i), self.fixed_noise()))]
            origin = KeyOrigin(KeySource.STATE, "as init was given")
            return self._report(charges, Provenance().and_now(Status.BY_HAND, origin, self._first_start))
        return super().privacy_report()

    @checked
    def get_params(self, state: SVIState | SVIResult) -> dict[str, jax.Array]:
        """The constrained parameters, by name, of a state that `init`, `update` or a result holds.

        - **state** - an `SVIState`."""
        if isinstance(state, SVIResult):
            raise ConfigurationError("get_params takes a state; result.params are the parameters of a result.")
        objective = self.objective()
        check_state(state, "get_params(state): state", self.optim)
        with TRACING:
            return self._params(objective, state.optim_state)(state.optim_state)

    @checked
    def evaluate(self, state: SVIState, *args: object, **kwargs: object) -> None:
        """NumPyro's loss of a state: not available."""
        raise ConfigurationError(
            "evaluate would be another look at the data: estimate_elbo is a charged query, and a result's convergence "
            "says for free whether the run has arrived."
        )

    @on_host
    @checked
    def run(
        self, rng_key: jax.Array, num_steps: int | None, *args: object, progress_bar: bool = True,
        init_state: SVIState | None = None, init_params: Tree = None, thinning: int | None = None, **kwargs: object,
    ) -> SVIResult:  # fmt: skip
        """Run `num_steps` steps, as `numpyro.infer.SVI.run`; prints what they will cost first.

        - **rng_key** - one key, used once; take it from `dpppl.secret_key()`.
        - **num_steps** - steps, each one access; None: 400.
        - **args**, **kwargs** - the model's arguments; arrays are private rows unless marked `dpppl.Public`. Later runs
          keep the norm of the first histogram; their steps count rows that are clipped or do not inform the posterior.
        - **progress_bar** - whether to show one.
        - **init_state** - the state of a result, to go on from.
        - **init_params** - constrained starting values, by the name of the parameter.
        - **thinning** - the trajectory keeps one iterate in this number; None: about 1,000 of them in all."""
        num_steps = positive_integer(NUM_STEPS if num_steps is None else num_steps, name="num_steps")
        if init_state is None and isinstance(self._optim, MovedOptimizer):
            self._optim = MovedOptimizer(num_steps, self._optim.movement)
        elif self._optim is None or (init_state is None and isinstance(self._optim, DefaultOptimizer)):
            self._optim = DefaultOptimizer(num_steps)
        opened: Session | None = None
        with ExitStack() as held:
            with self.budget.one_at_a_time:  # until the clipping norm is known
                checkpoint, account = self._resumed()
                run = Run.opened(rng_key, checkpoint)
                args, kwargs = self.grouped(self.model, args, kwargs, run.key)
                start = self._start_from(init_state, init_params)
                # A stream of its own: whatever else is made from this key has other noise.
                objective, state = self._bind(keys.stream(run.key, "run"), args, kwargs, init_params)
                check_num_data(self.num_data, objective.split.num_rows)
                if init_state is not None:
                    check_state(init_state, "init_state", self.optim)
                    state = continued(init_state, state)
                charges = self._charges(account, num_steps, int(state.i))
                locator, (rows, public) = None, objective.split.arrays(args, kwargs, self.mesh)
                if charges.frame is not None and init_state is None and init_params is None:
                    rest = self.model, objective.split, rows, public, charges.frame, self.unit
                    locator = locator_or_none(self.frame is True, run.key, *rest)
                if charges.frame is not None and locator is None:
                    charges = self._charges(account, num_steps, int(state.i), False)
                account.admit(charges.listed())
                charge = charges.steps
                thinning = thinning_for(state.optim_state, num_steps, thinning)
                begin = partial(self._begin, objective, rows, start if locator is None else Start.FRAME)

                def plan(objective: Objective, state: SVIState, charge: Charge) -> RunPlan:
                    counts = jnp.zeros(NUM_COUNTS) if charge.mechanism.counts else None
                    method = Method(
                        step=self.step_function(objective, charge.mechanism, charge.noise_multipliers[0]), num_steps=num_steps,
                        length=-(-num_steps // NUM_CHUNKS // thinning) * thinning, thinning=thinning, last=self._phi,
                        mean=lambda state: (self._phi(state), counts),
                    )  # fmt: skip
                    return RunPlan(
                        method=method, chain_groups=[state], rows=rows, public=public, charges=[charge], what="SVI",
                        settings=(thinning,), notes=objective.split.notes, print_cost=self.print_cost, begin=begin,
                        progress_bar=progress_bar, describe=lambda done: "SVI",
                    )  # fmt: skip

                if charges.histogram is not None:
                    at_start = run.key, objective, self._phi(state), public, charges.histogram
                    histogram_in = partial(self._histogram_in, *at_start)
                    steps = plan(objective, state, charge)
                    opened, found = held.enter_context(locate(run, steps, self.budget, histogram_in, locator))
                    objective, state, charge = self._adopted(found, objective, state, charge)
            with TRACING:
                constrained = self._params(objective, state.optim_state)

            def conclude(states: list[Tree], records: list[Tree]) -> Tree:
                with TRACING:
                    return states[0], records[0], constrained(states[0].optim_state), self.privacy_report()

            steps = plan(objective, state, charge)
            state, (trajectory, (gradients, shares)), params, report = drive(run, steps, self.budget, conclude, opened)
        finite = all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(params))
        self._provenance = self._provenance.ended(Status.COMPLETE if finite else Status.NOT_FINITE)
        self._result = SVIResult(
            last_params=params, state=state, trajectory=trajectory, gradients=gradients, transforms=objective.transforms,
            objective=objective, public=public, report=report, labels=self._labels,
        )  # fmt: skip
        with concluding("the verdict", "svi.result.averaged_params(allow_unconverged=True) returns the parameters"):
            self._clipped, own = counted_rows(shares, charge, num_steps, objective)
            self._counted = self._counted or own  # a histogram knows more
            report = self.privacy_report()
            self._result = replace(self._result, clipped=self._clipped, counted=self._counted, report=report)
        if not finite:
            warnings.warn("parameters are not finite: lower the learning rate. The run stays charged.", stacklevel=3)
        return self._result

    def _begin(
        self, objective: Objective, rows: Tree, start: Start, charges: Sequence[Charge], origin: KeyOrigin
    ) -> PrivacyReport:
        self._objective, self._programs = objective, {}
        self._counted = self._clipped = self._result = None
        return self._begun(objective.split, start, rows, charges, origin)

    def _histogram_in(
        self, key: jax.Array, objective: Objective, phi: Tree, public: Tree, charge: Charge, metric: Metric | None
    ) -> Histogram:
        """The histogram of norms at a draw of the first guide: of the one in a metric, or of that with parameters phi."""
        if metric is not None:
            phi = Movement.of(metric, objective.guide, objective.transforms).start()
        with TRACING:
            _, z = jax.jit(replace(objective, metric=metric).draw)(phi, keys.stream(key, "start"), public)
        return Histogram.starting(z, objective.split, public, charge, metric, is_white=metric is not None)

    def _adopted(
        self, found: Located, objective: Objective, state: SVIState, charge: Charge
    ) -> tuple[Objective, SVIState, Charge]:
        """Keep norm and metric for all runs from now on; objective, first state and steps with them."""
        norm, metric = chosen_norm(found, objective.split.num_rows, charge, quantile=QUANTILE)
        if metric is not None:  # from now on parameters start and move in it
            self._metric, movement = metric, Movement.of(metric, objective.guide, objective.transforms)
            self._first_start, self._optim = Start.FRAME, MovedOptimizer(charge.num_steps, movement)
            objective = replace(objective, metric=metric)
            state = state._replace(optim_state=self.optim.init(movement.start()))
        if self.num_particles > 1:  # whose gradients are clipped as one vector
            norm = float(f"{norm * self.num_particles**0.5:.4g}")
        self._mechanism, self._has_auto_norm = self._mechanism.with_norm(norm), False
        self._objective, self._counted = objective, found.counted
        return objective, state, replace(charge, mechanism=charge.mechanism.with_norm(norm))

    def _phi(self, state: Tree) -> Tree:
        """The unconstrained parameters of a state."""
        return self.optim.get_params(state.optim_state)

    def _params(self, objective: Objective, optim_state: Tree) -> Callable[[Tree], dict[str, Tree]]:
        """The function from an optimiser's state, like this one, to constrained parameters."""
        constrained = lambda optim_state: objective.constrain(self.optim.get_params(optim_state))  # noqa: E731
        return proved(constrained, optim_state, num_rows=objective.split.num_rows)
