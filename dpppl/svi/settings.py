"""The arguments of `dpppl.SVI`, checked, and their defaults; its budget, and the results of its runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import jax
import numpy as np
from numpyro.optim import _NumPyroOptim

from dpppl.access.clipping import Centred, Flat, clipping_of
from dpppl.access.mechanism import Mechanism
from dpppl.errors import ConfigurationError
from dpppl.findings.counted_rows import BIASED, ClippedRows, CountedRows, count_share_of, rows_of
from dpppl.frame.locate import FEWEST_STEPS, RunCharges, checked_frame, frame_line
from dpppl.frame.metric import Metric
from dpppl.frame.moved_guides import NAMES, moves
from dpppl.model.arguments import name_of
from dpppl.report.provenance import Start, Status
from dpppl.report.report import MechanismFacts
from dpppl.runs.budget import Account, Charge
from dpppl.runs.driver import Program
from dpppl.runs.private_runner import PrivateRunner, ReportFacts, after_run
from dpppl.subsampling import FullBatch, Poisson, Subsampling
from dpppl.subsampling.scheme import BATCH
from dpppl.svi import optimizers
from dpppl.svi.elbo import Objective, checked_loss
from dpppl.svi.guides import check_guide, start_at_median, start_of
from dpppl.svi.result import SVIResult
from dpppl.svi.step import svi_step
from dpppl.svi.verdict import TAIL, Convergence, tail_of
from dpppl.types import Foreign, Function, Tree
from dpppl.validation import Fixed, checked_call, positive_integer

NUM_STEPS, LEARNING_RATE, LAST_SHARE = 400, 0.04, 0.1
"""The defaults of a run: its steps; the learning rate of Adam at the first of them, and the share of it that the last has."""
_BATCH = 4_096
"""Rows of a step of a wide model."""
_ITERATES_KEPT, _NUMBERS_KEPT = 1_000, 2**26
"""Most iterates that a run keeps by default, and most numbers in them."""


class DefaultOptimizer(_NumPyroOptim):
    """Adam with a cosine learning-rate schedule from .04 to .004. Its pickle holds `num_steps` only.

    One configuration for every epsilon, that of Adult's table in docs/appendix/chains-measured.md: 400 steps on full batches,
    then the average of the last half of the iterates. Adam's step does not depend on the scale of the gradients, so it suits all
    norms and budgets.

    - **num_steps** - length of the schedule."""

    def __init__(self, num_steps: int) -> None:
        import optax

        schedule = optax.cosine_decay_schedule(LEARNING_RATE, num_steps, alpha=LAST_SHARE)
        super().__init__(optimizers.of_optax, optax.adam(schedule))
        self.num_steps = num_steps

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return type(self), (self.num_steps,)


class SVISettings(Fixed, PrivateRunner):
    """The arguments of `dpppl.SVI`, checked, and what changes: the norm that a run chose, and what the last run was."""

    _NO_ARGUMENT: ClassVar = {"batch_size": BATCH, "num_steps": "run takes it, svi.run(rng_key, num_steps, ...)."}

    @checked_call
    def __init__(
        self, model: Function, guide: Function, optim: Foreign = None, loss: Foreign = None, *,
        clipping_norm: float | str = "auto", subsampling: Subsampling | None = None,
        gradient: str = "aligned", num_particles: int = 1, clipping: str | None = None,
        data_plate: str | None = None, gradient_strategy: str = "auto", discretise: bool = False,
        measure_clipping: bool = True, frame: bool | None = None, **common: Tree,
    ) -> None:  # fmt: skip
        super().__init__(**common)
        if gradient not in ("aligned", "per_parameter"):
            raise ConfigurationError('gradient must be "aligned" or "per_parameter".')
        check_guide(guide)
        self.model, self.guide, self.gradient, self.data_plate = model, guide, gradient, data_plate
        self._optim = None if optim is None else optimizers.without_loss(optim)
        self.frame, scheme = frame, FullBatch() if subsampling is None else subsampling
        if not isinstance(scheme, Subsampling):
            raise ConfigurationError("subsampling must be dpppl.Poisson(rate), FullBatch(), Partition(...), ...")
        self._metric: Metric | None = None
        self._is_clipping_open, self._may_batch = clipping is None and not frame, subsampling is None
        self._wide: Objective | None = None  # of the last model, if it is wide
        self._has_auto_norm = isinstance(clipping_norm, str) and clipping_norm == "auto"
        fits = {
            "target_epsilon": self.privacy.epsilon is not None, "clipping_norm='auto'": self._has_auto_norm,
            "clipping='centred'": clipping is None or (isinstance(clipping, str) and clipping == "centred"),
            "subsampling=FullBatch()": scheme.rate == 1.0,
            "optim=None": optim is None, "a guide without a start of its own": start_of(guide) is Start.GUIDE,
            NAMES: moves(guide), "a guide without init_scale": getattr(guide, "_init_scale", 0.1) == 0.1,  # NumPyro's
            "discretise=False": not discretise,
        }  # fmt: skip
        self._may_have_frame = checked_frame(frame, fits)
        if self._optim is None:
            start_at_median(guide)
        self.num_particles = positive_integer(num_particles, name="num_particles")
        self.loss = checked_loss(guide, loss)
        is_plain = gradient == "aligned" and self.checkpoint is None
        if self._has_auto_norm and not is_plain:
            raise ConfigurationError(
                'clipping_norm="auto" is for aligned gradients, and runs without a checkpoint; '
                "give the norm as a number: clipping_norm=1.0."
            )
        self.clipping = clipping_of(clipping, clipping_norm)  # at norm 1 where a run chooses it
        if self.num_particles > 1 and gradient == "per_parameter" and isinstance(self.clipping, Centred):
            raise ConfigurationError(
                'clipping="centred" of several particles needs gradient="aligned"; else take clipping="flat" or num_particles=1.'
            )
        self._mechanism = Mechanism(  # of models that are not wide
            clipping=self.clipping, subsampling=scheme, strategy=gradient_strategy, discretise=discretise
        )
        self.measure_clipping = measure_clipping
        self._check_one_noise()
        self._first_start = start_of(guide)
        self._objective: Objective | None = None
        self._clipped: ClippedRows | None = None
        self._counted: CountedRows | None = None
        self._captured: tuple[str, ...] = ()  # by functions of queries
        self._programs: dict[object, Program] = {}  # of single steps
        self._result: SVIResult | None = None

    @property
    def optim(self) -> Foreign:
        """The optimiser, with NumPyro's interface; the default one, for 400 steps, where none was given or run yet."""
        if self._optim is None:
            self._optim = DefaultOptimizer(NUM_STEPS)
        if self._optim == optimizers.LOST:
            raise ConfigurationError(
                "this SVI was pickled without its optimiser, whose functions pickle does not take; install cloudpickle before "
                "you pickle, or make a new SVI."
            )
        return self._optim

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of an access; with clipping_norm="auto" at norm 1 until a run has chosen it."""
        return self.mechanism_for(self._wide)

    @property
    def result(self) -> SVIResult:
        """The result of the last run, as `run` returned it; a pickle has none."""
        return after_run(self._result, "result")

    @property
    def verdict(self) -> Convergence:
        """Whether the parameters of the last run may be read: `.line()`, `.by_site`, `.refusals`. Free; a pickle has none."""
        return after_run(self._result, "verdict").verdict

    def objective(self) -> Objective:
        """The ELBO, split, for the arguments of the last init or run."""
        if self._objective is None:
            raise ConfigurationError("call init or run first: the guide is not set up yet.")
        return self._objective

    @property
    def may_be_wide(self) -> bool:
        """Whether a wide model has a mechanism of its own: the user chose neither norm nor clipping."""
        return self._has_auto_norm and self._is_clipping_open

    def mechanism_for(self, objective: Objective | None) -> Mechanism:
        """The mechanism of an access. Of a wide model clipping is flat, and steps take batches, where the user chose neither.

        The norm is mu / s, s the latents' median prior sd. The mean gradient of all steps has noise of norm / mu, and the prior
        pulls a latent by 1 / s where it is one sd away. A longer norm lets noise outweigh the prior where rows say little, a
        shorter one the prior outweigh clipped rows."""
        if objective is None or objective.wide_scale is None:
            return self._mechanism
        rate = min(1.0, _BATCH / objective.split.num_rows)
        scheme = Poisson(rate) if self._may_batch else self._mechanism.subsampling
        return replace(self._mechanism, clipping=Flat(1.0), subsampling=scheme)

    def _start_from(self, init_state: object, init_params: object) -> Start:
        """Where a run starts that finds no frame. Raises ConfigurationError for a start of the user's own with frame=True."""
        if self.frame and self._metric is None and not (init_state is None and init_params is None):
            raise ConfigurationError("frame=True finds the start: leave out init_state and init_params, or frame.")
        if init_state is not None and init_params is not None:
            raise ConfigurationError(
                "init_state holds the parameters that a run goes on from: leave init_params out, or init_state."
            )
        usual = Start.STATE if init_state is not None else start_of(self.guide) if self._metric is None else Start.FRAME
        return usual if init_params is None else Start.SUPPLIED

    def _also_captured(self, names: Iterable[str]) -> None:
        """Note arrays, in words, that functions of this object captured: the report says that they are assumed public."""
        self._captured = tuple(dict.fromkeys((*self._captured, *names)))

    def _charges(self, account: Account, num_steps: int, first: int, frame: bool | None = None) -> RunCharges:
        """A run's charges at the noise multiplier that its account gives. Looks at no data.

        Before, where the norm is still to come from it, the histogram, and before that a `frame`, by default where settings and
        number of steps fit one."""
        has_frame = (self._may_have_frame and (self.frame or num_steps >= FEWEST_STEPS)) if frame is None else frame
        share = count_share_of(self.mechanism.clipping, self.measure_clipping, self._has_auto_norm)
        mechanism = replace(self.budget.affordable(self.mechanism, num_steps), count_share=share)

        def charges_at(sigma: float) -> RunCharges:
            steps = Charge(mechanism, np.full(num_steps, sigma), first)
            if self._wide is not None and self._wide.wide_scale is not None:
                scale, rate = self._wide.wide_scale, mechanism.subsampling.rate
                norm = rate * (num_steps * self.num_particles) ** 0.5 / (sigma * scale)
                return RunCharges(None, None, replace(steps, mechanism=mechanism.with_norm(float(f"{norm:.4g}"))))
            return RunCharges.of(steps, sigma, has_frame) if self._has_auto_norm else RunCharges(None, None, steps)

        noise = self.noise_multiplier
        return charges_at(account.calibrate(lambda sigma: charges_at(sigma).listed()) if noise is None else noise)

    def step_function(self, objective: Objective, mechanism: Mechanism, noise_multiplier: Tree) -> Function:
        """`svi_step` with these settings, a function of (state, rows, public)."""
        return partial(svi_step, objective, mechanism, noise_multiplier, self.optim, self.gradient)

    def _facts(self, charges: Sequence[Charge], status: Status) -> ReportFacts:
        inputs, queries = self._inputs, [charge for charge in charges if charge.is_query]
        captured = () if self._objective is None else self._objective.captured
        steps = [charge for charge in charges if charge.is_steps]
        mechanism = steps[-1].mechanism if steps else self.mechanism
        if self._wide is None:  # a norm may have been chosen after the steps were planned
            mechanism = replace(mechanism, clipping=self.mechanism.clipping)
        num_steps, num_queries = (sum(c.num_steps * c.chains for c in found) for found in (steps, queries))
        return ReportFacts(
            method=f"SVI ({getattr(type(self.guide), '__name__', 'guide')}, {self.gradient})",
            mechanism=MechanismFacts.of(mechanism, inputs.num_rows),
            details=SVIDetails(
                num_steps=num_steps, num_queries=num_queries, num_particles=self.num_particles, clipped=self._clipped,
                counted=self._counted, frame=frame_line(charges), is_wide=self._wide is not None,
            ),
            inputs=inputs._replace(assumed_public=tuple(dict.fromkeys((*captured, *self._captured)))),
        )  # fmt: skip

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_programs": {}, "_result": None, "_optim": optimizers.Pickled(self._optim)}

    def __setstate__(self, state: dict[str, Tree]) -> None:
        vars(self).update(state | {"_optim": state["_optim"].optim})

    def __repr__(self) -> str:
        clipping = 'clipping_norm "auto"' if self._has_auto_norm else self.mechanism.clipping.describe()
        fit = f"SVI of {name_of(self.model)} by {name_of(self.guide)}; {clipping}; {self.mechanism.subsampling.describe()}"
        return f"{fit}: {self._provenance.status}; {self.budget!r}"


@dataclass(frozen=True, kw_only=True)
class SVIDetails:
    """The report's lines about SVI.

    - **num_steps** - accesses that were optimisation steps.
    - **num_queries** - accesses that were queries.
    - **num_particles** - guide draws a step.
    - **clipped** - share of clipped rows at the end of the last run, None where it was not counted.
    - **counted** - rows that do not inform the posterior, None where they were not counted.
    - **frame** - its accesses in words, None without one.
    - **is_wide** - whether clipping and norm are those of a wide model."""

    num_steps: int
    num_queries: int
    num_particles: int
    clipped: ClippedRows | None = None
    counted: CountedRows | None = None
    frame: str | None = None
    is_wide: bool = False

    def rows(self) -> list[tuple[str, str]]:
        lines = {
            "steps": f"{self.num_steps}, each an access of the data", "frame": self.frame,
            "wide model": "clipped flat, where noise and prior weigh the same" if self.is_wide else None,
            "queries": f"{self.num_queries}, each an access of the data",
            "particles": f"{self.num_particles} a step, clipped together: one access",
            "clipped rows": self.clipped, "counted rows": self.counted,
        }  # fmt: skip
        return [(name, str(words)) for name, words in lines.items() if words]

    def warnings(self) -> list[str]:
        biased = self.clipped is not None and self.clipped.is_biased
        lines = [f"The posterior is {BIASED}; {self.clipped}."] if biased else []
        return lines if self.counted is None else [*self.counted.warnings, *lines]

    def assumptions(self) -> list[str]:
        return ["Guides are set up on made-up rows."]


def counted_rows(
    shares: object, charge: Charge, num_steps: int, objective: Objective
) -> tuple[ClippedRows | None, CountedRows | None]:
    """In the last half of a run that cost `charge`, from the kept counts of rows (number kept, NUM_COUNTS) or None."""
    if shares is None:
        return None, None
    split = objective.split
    mechanism, tail = charge.mechanism, tail_of(np.asarray(shares, np.float64), TAIL)
    noise = mechanism.count_std * float(charge.noise_multipliers[0]) / (mechanism.subsampling.rate * split.num_rows)
    counts, error = np.mean(tail, axis=0), noise / (TAIL * num_steps) ** 0.5
    return rows_of(counts, error, mechanism.clipping, split.num_rows, objective.codes)


def thinning_for(optim_state: Tree, num_steps: int, asked: int | None = None) -> int:
    """How many steps an iterate stands for: as `asked`, else about 1,000 are kept, or fewer where they are large."""
    if asked is not None:
        return positive_integer(asked, name="thinning")
    size = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(optim_state))
    kept = min(_ITERATES_KEPT, max(2, _NUMBERS_KEPT // max(1, size)))
    return max(1, -(-num_steps // kept))
