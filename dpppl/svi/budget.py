"""What private SVI may spend, has spent, and says of it."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpyro.infer import autoguide, init_to_feasible, init_to_mean, init_to_median, init_to_sample, init_to_uniform

from dpppl import accounting, random
from dpppl.errors import BudgetExceededError, ConfigurationError
from dpppl.mechanism import Mechanism
from dpppl.report import SUPPLIED, PrivacyReport, and_also
from dpppl.svi.elbo import Objective

_OVERFLOW_SHARE = 1e-3
_WITHOUT_VALUES = (init_to_feasible, init_to_mean, init_to_median, init_to_sample, init_to_uniform)


class Charge(NamedTuple):
    """What one run has charged so far: the steps first, first + 1, ..., at what they were run with."""

    first: int
    num_steps: int
    noise_multiplier: float
    mechanism: Mechanism

    @property
    def event(self) -> accounting.GaussianEvent:
        """For the accountant."""
        return self.mechanism.event(np.full(self.num_steps, self.noise_multiplier), self.first)


class Budgeted:
    """The accounts of an SVI object: its mechanism, the steps of each run, and queries."""

    mechanism: Mechanism
    guide: Any
    gradient: str
    num_particles: int
    num_data: int | None

    def _set_budget(self, noise_multiplier, target_epsilon, target_delta) -> None:
        for name, value in (("noise_multiplier", noise_multiplier), ("target_epsilon", target_epsilon)):
            if value is not None and not (isinstance(value, int | float) and 0.0 < value < math.inf):
                raise ConfigurationError(f"{name} must be positive and finite, got {value!r}.")
        if target_delta is not None:
            accounting.accountants.check_delta(target_delta)
        if target_epsilon is not None and target_delta is None:
            raise ConfigurationError("target_epsilon needs target_delta.")
        if (target_epsilon is None) == (noise_multiplier is None):
            raise ConfigurationError("give either noise_multiplier or target_epsilon with target_delta.")
        self.noise_multiplier: float | None = noise_multiplier
        self.target_epsilon: float | None = target_epsilon
        self.target_delta: float | None = target_delta
        self._objective: Objective | None = None
        self._charged: list[Charge] = []
        self._queries: list[accounting.GaussianEvent] = []
        self._facts: dict = {}
        self._start = start_of(self.guide)
        self._at_init: tuple | None = None
        self._captured: tuple[str, ...] = ()  # by functions of queries

    def _calibrate(self, num_steps: int) -> tuple[float, Mechanism]:
        """The noise multiplier that the budget gives, and the mechanism with its bound on overflow. Without data."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier, self.mechanism
        assert self.target_epsilon is not None and self.target_delta is not None
        share = _OVERFLOW_SHARE * self.target_delta / ((1.0 + math.exp(min(self.target_epsilon, 500.0))) * num_steps)
        mechanism = self.mechanism.with_overflow_probability(max(1e-300, min(1e-9, share / 3.0)))

        def events(noise_multiplier):
            return (*self._queries, Charge(0, num_steps, noise_multiplier, mechanism).event)

        return accounting.calibrate_noise_multiplier(events, self.target_epsilon, self.target_delta), mechanism

    def privacy_plan(self, num_steps: int) -> PrivacyReport:
        """The report that a `run` of `num_steps` more steps would add up to, without data."""
        noise_multiplier, mechanism = self._calibrate(positive_int(num_steps))
        first = sum(charge.num_steps for charge in self._charged)
        charged = [*self._charged, Charge(first, num_steps, noise_multiplier, mechanism)]
        facts = {"key_origin": "chosen when the run starts", "status": "planned"}
        return self._report(charged, self._queries, **(self._facts | facts))

    def privacy_report(self, state=None) -> PrivacyReport:
        """What everything run so far has cost, an interrupted run included.

        With a `state` that `update` returned: what its steps have cost, without the runs and queries of this object. Such
        states hold the key: keep them secret."""
        if state is not None:
            facts = {"key_origin": "supplied to SVI.init, whose states hold the key: keep states and pickles secret"}
            charged = [Charge(0, int(state.i), self._noise(), self.mechanism)] if int(state.i) else []
            return self._report(charged, [], **facts, status="run step by step")
        facts = {"key_origin": "none yet", "status": "nothing run"} | self._facts
        return self._report(self._charged, self._queries, **facts)

    def _report(self, charged, asked, **facts) -> PrivacyReport:
        steps = sum(charge.num_steps for charge in charged)
        mechanism = charged[-1].mechanism if charged else self.mechanism
        more = ("Guides are set up on made-up rows.",)
        return PrivacyReport(
            method=f"SVI ({getattr(type(self.guide), '__name__', 'guide')}, {self.gradient})",
            events=(*asked, *(charge.event for charge in charged if charge.num_steps)),
            delta=self.target_delta,
            num_data=self.num_data,
            neighboring_relation=mechanism.neighboring_relation,
            clipping=mechanism.clipping.describe(),
            clipping_norm=mechanism.clipping.clipping_norm,
            subsampling=mechanism.subsampling.describe(),
            sampling_rate=mechanism.subsampling.rate,
            num_steps=steps,
            assumed_public=tuple(dict.fromkeys((*getattr(self._objective, "captured", ()), *self._captured))),
            details=(
                ("steps", f"{steps}, each an access of the data"),
                ("queries", f"{len(asked)}, each an access of the data"),
                ("particles", f"{self.num_particles} a step, clipped together: one access"),
            ),
            more_assumptions=more,
            **({"initial_values": self._start} | facts),
        )

    def _admit(self, charged, queries) -> PrivacyReport:
        plan = self._report(charged, queries, key_origin="chosen when the run starts", status="planned")
        if self.target_epsilon is not None and plan.epsilon is not None and plan.epsilon > self.target_epsilon:
            raise BudgetExceededError(
                f"epsilon {self.privacy_report().epsilon:.4g} of {self.target_epsilon:g} is spent and this would bring "
                f"it to {plan.epsilon:.4g} at delta {self.target_delta:g}; nothing was run and nothing was charged. A "
                "budget is for all that one SVI object runs: plan the steps in one call, or make a new object with its "
                "own budget (their costs add up)."
            )
        return plan

    def _noise(self) -> float:
        if self.target_epsilon is not None or self.noise_multiplier is None:
            raise ConfigurationError(
                "update keeps no budget, and the noise follows from the number of steps, which only "
                "run(rng_key, num_steps, ...) knows; give noise_multiplier without target_epsilon to use init and update."
            )
        if self._at_init not in (None, (self.noise_multiplier, self.mechanism)):
            raise ConfigurationError("noise_multiplier or mechanism changed since init: make a new SVI object.")
        return self.noise_multiplier

    def admit_query(self, event: accounting.GaussianEvent, key) -> None:
        """Charge a query before it runs, or refuse it."""
        self._admit(self._charged, [*self._queries, event])
        random.claim(key)
        self._queries.append(event)
        origin = and_also(self._facts.get("key_origin"), random.origin(key))
        self._facts = {"status": "complete"} | self._facts | {"key_origin": origin}


def positive_int(value) -> int:
    """`value`, if it is one."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigurationError("num_steps and thinning must be positive integers.")
    return int(value)


def start_of(guide) -> str:
    """Where a guide's first parameters come from, in words, for the report."""
    for part in guide if isinstance(guide, autoguide.AutoGuideList) else [guide]:
        strategy = getattr(part, "init_loc_fn", init_to_median)
        if getattr(strategy, "func", strategy) not in _WITHOUT_VALUES:
            return SUPPLIED
    return "the guide's, on made-up rows"
