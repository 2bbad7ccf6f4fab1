"""The privacy budget of one object: what it may spend, has reserved and has spent."""

import math
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dpppl import accounting
from dpppl.access.mechanism import Mechanism
from dpppl.accounting.events import GaussianEvent
from dpppl.accounting.privacy_spent import LARGEST_MEANINGFUL_EPSILON
from dpppl.accounting.selection import SelectionEvent
from dpppl.accounting.unit import ROW, Unit
from dpppl.errors import BudgetExceededError, ConfigurationError, KeyReuseError, LedgerError, warn
from dpppl.ledger.book import Events
from dpppl.ledger.follower import ledger_of
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.ledger.report import CombinedRisk
from dpppl.processes import messages
from dpppl.runs import watching
from dpppl.types import Tree
from dpppl.validation import check_target, in_words, plain

_OVERFLOW_SHARE = 1e-3  # of delta, for steps that draw more rows than fit


@dataclass(frozen=True, eq=False)
class Charge:
    """Accesses of one mechanism, for an account.

    - **mechanism**, **noise_multipliers** - the mechanism, and that of each planned step, (steps,) float64.
    - **first**, **chains** - number of the first step, and how many chains take these steps.
    - **is_query**, **is_frame** - whether it may use what was kept for queries; whether it finds where a run starts.
    - **neighboring_relation** - relation of the account that it belongs to, where it differs from the mechanism's.
    - **selection** - where this is the access of one score of a random number of runs: the event of all these runs."""

    mechanism: Mechanism
    noise_multipliers: np.ndarray = field(repr=False)
    first: int = 0
    chains: int = 1
    is_query: bool = False
    neighboring_relation: str | None = None
    selection: SelectionEvent | None = None
    is_frame: bool = False

    @property
    def is_steps(self) -> bool:
        """Whether its accesses are steps of a method."""
        return not (self.is_query or self.is_frame)

    @property
    def num_steps(self) -> int:
        """Steps of each chain."""
        return len(self.noise_multipliers)

    @property
    def event(self) -> GaussianEvent | SelectionEvent:
        """The event for the accountant."""
        if self.selection is not None:
            return self.selection
        event = self.mechanism.event(self.noise_multipliers, self.first, self.chains)
        relation = self.neighboring_relation
        return event if relation is None else replace(event, neighboring_relation=relation)

    def pays_for(self, other: "Charge") -> bool:
        """Whether another charge is of as many accesses, which draw rows alike, and have no less noise: up to 1e-6 of it, which
        arithmetic may round off and the account allows for."""
        one, two = (
            (c.mechanism.subsampling, c.mechanism.discretise, c.first, c.chains, c.num_steps) for c in (self, other)
        )
        return one == two and bool(np.all(other.noise_multipliers >= (1.0 - 1e-6) * self.noise_multipliers))

    def begun(self, count: int) -> "Charge":
        """Its first `count` steps."""
        return replace(self, noise_multipliers=self.noise_multipliers[:count])


def events_of(charges: Sequence[Charge]) -> Events:
    """Events for the accountant: one for charges that differ in the number of chains only."""
    alike: dict[tuple[object, ...], Charge] = {}
    for charge in charges:
        if charge.num_steps:
            noise = charge.noise_multipliers.tobytes()
            key = (charge.mechanism, charge.neighboring_relation, charge.selection, charge.first, noise)
            before = alike.get(key)
            alike[key] = charge if before is None else replace(charge, chains=before.chains + charge.chains)
    return tuple(charge.event for charge in alike.values())


def steps_of_state(steps: Tree) -> int:
    """The steps that a state counts. Raises ConfigurationError if there is none: the cost of later states does not follow from
    a first state."""
    count = int(steps)
    if count < 1:
        raise ConfigurationError(
            "this state counts no step, so its cost is unknown: give the state after the last step."
        )
    return count


@dataclass(frozen=True, kw_only=True, eq=False)
class Account:
    """The target of one object, and its charges so far. Admission and noise are functions of these values.

    - **target_epsilon**, **target_delta**, **reserve** - see `Budget`.
    - **group_size** - rows of a unit of privacy.
    - **held** - charges that were made or are reserved."""

    target_epsilon: float | None
    target_delta: float | None
    reserve: float
    group_size: int
    held: Sequence[Charge]

    def epsilon(self, *more: Charge) -> float:
        """Epsilon of all charges and these, at the target's delta, for the unit of privacy."""
        assert self.target_delta is not None
        return accounting.group_epsilon(events_of([*self.held, *more]), self.target_delta, self.group_size)

    def is_used_up(self, target: float) -> bool:
        """Whether the charges leave nothing of this epsilon."""
        return self.epsilon() >= target * (1.0 - 1e-3)

    def calibrate(self, charge_at: Callable[[float], Charge | Sequence[Charge]]) -> float:
        """The least noise multiplier at which earlier charges and `charge_at(noise_multiplier)` together meet the target. If
        `charge_at` gives several charges, the last one is that of the run's steps.

        Of the target, `reserve` is left, unless the charge is a query. Raises BudgetExceededError if what was charged leaves
        nothing, ConfigurationError if no noise is enough."""
        assert self.target_epsilon is not None and self.target_delta is not None

        def charges_at(sigma: float) -> list[Charge]:
            charges = charge_at(sigma)
            return [charges] if isinstance(charges, Charge) else list(charges)

        target = self.target_epsilon * (1.0 if charges_at(1.0)[-1].is_query else 1.0 - self.reserve)
        if self.is_used_up(target):
            raise self._exceeded(())
        events_at = lambda sigma: events_of([*self.held, *charges_at(sigma)])  # noqa: E731
        return accounting.calibrate_noise_multiplier(events_at, target, self.target_delta, group_size=self.group_size)

    def admit(self, charges: Sequence[Charge], share: float = 1.0) -> None:
        """Raise BudgetExceededError if a share of the target cannot pay for the charges. Charges nothing."""
        if self.target_epsilon is not None and self.epsilon(*charges) > share * self.target_epsilon:
            raise self._exceeded(charges)

    def _exceeded(self, charges: Sequence[Charge]) -> BudgetExceededError:
        would = f" and this would bring it to {self.epsilon(*charges):.4g}" if charges else ""
        kept = f" ({self.reserve:.0%} of it kept for queries)" if self.reserve else ""
        return BudgetExceededError(
            f"epsilon {self.epsilon():.4g} of {self.target_epsilon:g}{kept} is spent or reserved{would} at delta "
            f"{self.target_delta:g}; for this nothing was run and nothing was charged. A budget is for all that one object runs: "
            "plan the steps in one call, or make a new object with its own budget (their costs add up)."
        )


class Budget:
    """The account of one object.

    - **target_epsilon**, **target_delta** - bound on all that it runs; None: no bound.
    - **ledger** - the account of the data themselves, which must agree to every run as well.
    - **reserve** - the share of the target, in [0, 1), that calibrated runs leave for queries and later runs.
    - **unit** - whose loss the target bounds.
    - **name** - of the analysis, for the ledger.

    Guarantee: reservations and charges together never exceed the target, with any number of threads. A run is admitted and
    reserved in one step. It is charged before each chunk of its accesses, and returns the reservation of steps that did not
    run. `one_at_a_time` is a lock for what an object does once, such as choosing its clipping norm."""

    def __init__(
        self, target_epsilon: float | None = None, target_delta: float | None = None, *,
        ledger: PrivacyLedger | str | os.PathLike[str] | None = None, reserve: float = 0.0, unit: Unit = ROW,
        name: str | None = None,
    ) -> None:  # fmt: skip
        target_epsilon, target_delta, reserve = plain(target_epsilon), plain(target_delta), plain(reserve)
        check_target(target_epsilon, target_delta)
        if not (isinstance(reserve, int | float) and 0.0 <= reserve < 1.0):
            raise ConfigurationError(f"reserve is the share of the target to keep, in [0, 1), got {in_words(reserve)}.")
        if reserve and target_epsilon is None:
            raise ConfigurationError("reserve is a share of target_epsilon: give target_epsilon and target_delta.")
        self.target_epsilon, self.target_delta, self.reserve = target_epsilon, target_delta, reserve
        if name is not None and not (name and name.isprintable() and len(name) <= 200):
            raise ConfigurationError("name is one printable line of at most 200 letters: name='Readmissions by age'.")
        self.ledger, self.unit, self.name = ledger_of(ledger), unit, name
        if self.ledger is not None:
            unit.check_ledger(self.ledger.unit)
        if target_epsilon is not None and target_epsilon > LARGEST_MEANINGFUL_EPSILON:
            warn(
                f"target_epsilon={target_epsilon:g} bounds next to nothing: above {LARGEST_MEANINGFUL_EPSILON:g} an attacker may "
                "be certain of each row. Choose a budget such as target_epsilon=1.0."
            )
        self.runs: dict[str, _Run] = {}
        self.lock, self.one_at_a_time, self._process = threading.Lock(), threading.RLock(), os.getpid()

    def __getstate__(self) -> dict[str, object]:
        runs = {name: run.ended() for name, run in self.runs.items()}
        return vars(self) | {"lock": None, "one_at_a_time": None, "runs": runs}

    def __setstate__(self, state: dict[str, object]) -> None:
        own = {"lock": threading.Lock(), "one_at_a_time": threading.RLock(), "_process": os.getpid()}
        vars(self).update(state | own)
        self._warn_of_copies("by pickle or deepcopy")

    def _warn_of_copies(self, how: str) -> None:
        """Warn that this budget is a copy, where its original may spend the rest as well."""
        target, account = self.target_epsilon, self._account(self.charged)
        if target is not None and self.ledger is None and not account.is_used_up(target):
            warn(
                f"this is a copy ({how}) of a budget of epsilon {target:g} that is not used up: the "
                "original and every copy may spend the rest, and what they spend adds up. Give a dpppl.PrivacyLedger, which "
                "counts them together, or let one of them run."
            )

    def __repr__(self) -> str:
        """The target, and what is spent of it."""
        if self.target_epsilon is None or self.target_delta is None:
            return "no target"
        spent = self._account(self.charged).epsilon() if self.events else 0.0
        return f"epsilon {spent:.4g} of {self.target_epsilon:g} spent at delta {self.target_delta:g}"

    @property
    def charged(self) -> tuple[Charge, ...]:
        """All charges so far, interrupted runs included."""
        return tuple(charge for run in tuple(self.runs.values()) for charge in run.charged)

    @property
    def events(self) -> Events:
        """All charges so far, as events for the accountant."""
        return events_of(self.charged)

    def affordable(self, mechanism: Mechanism, num_steps: int) -> Mechanism:
        """The mechanism, with a cap on a step's rows whose overflow, over this many steps, costs little of delta."""
        shares = []
        if self.target_epsilon is not None and self.target_delta is not None:
            shares.append(self.target_delta / (1.0 + math.exp(min(self.target_epsilon, 500.0))))
        if self.ledger is not None:
            shares.append(self.ledger.failure_allowance)
        if not shares:
            return mechanism
        share = _OVERFLOW_SHARE * min(shares) / (3 * num_steps)
        return mechanism.with_overflow_probability(max(1e-300, min(1e-9, share)))

    def account(self, without: str = "") -> Account:
        """The account as it is now; `without`: the name of a run that is resumed, which pays for the same steps once."""
        return self._account([c for name, run in tuple(self.runs.items()) if name != without for c in run.held])

    def _account(self, held: Sequence[Charge]) -> Account:
        target = dict(target_epsilon=self.target_epsilon, target_delta=self.target_delta)
        return Account(**target, reserve=self.reserve, group_size=self.unit.group_size, held=held)

    def _admit(self, charges: Sequence[Charge], run_id: str) -> None:
        """Raise BudgetExceededError if the target cannot pay for the charges, which are all that run `run_id` has."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._warn_of_copies("by a fork")
        self.account(run_id).admit(charges)

    def ledger_line(self) -> str | None:
        """The report's line about the ledger."""
        if self.ledger is None:
            return None
        name, left = self.ledger.name or os.path.basename(self.ledger.path), ""
        if isinstance(self.ledger, PrivacyLedger) and messages.count() == 1:  # of several, one alone could say it
            more, largest = self.ledger.room(events_of(self.charged))
            like = f"at least {more} more like all of these, or for " if more else ""
            left = (
                f"what is left pays for {like}one run of epsilon {largest:.3g} on all rows (squares add up, roughly). "
            )
        return (
            f"The ledger '{name}' counts what is run on these data, epsilon {self.ledger.spent:.4g} so far of "
            f"{self.ledger.epsilon:g} at delta {self.ledger.delta:g}; {left}Runs outside the ledger add to this."
        )

    def combined_risk(self) -> CombinedRisk | None:
        """The knowledge of an attacker who sees all runs of the ledger; None where this process has none."""
        is_alone = messages.count() == 1  # of several processes, one alone could say it
        return self.ledger.combined_risk if isinstance(self.ledger, PrivacyLedger) and is_alone else None

    def _named(self, what: str) -> str:
        return what if self.name is None else f"{self.name} ({what})"

    def reserve_for(self, charges: Sequence[Charge], what: str, run_id: str | None = None) -> "Reservation":
        """Admit the charges and hold what they cost, in one step; in the ledger, too, where there is one.

        `run_id`: that of an earlier run which is resumed: its charges are replaced, not added to."""
        name = uuid.uuid4().hex if run_id is None else run_id
        with self.lock:
            self._admit(charges, name)
            if self.ledger is not None:
                self.ledger.reserve(name, events_of(charges), self._named(what))
            before = self.runs.get(name)  # what it was charged stays, whatever becomes of it now
            self.runs[name] = _Run(tuple(charges), [] if before is None else list(before.begun))
            others = [charge for other, run in self.runs.items() if other != name for charge in run.charged]
            return Reservation(self, name, events_of(others))

    def charge_one(self, charge: Charge, what: str, run_id: str, claim: Callable[[], None]) -> None:
        """Charge one more access like `charge`, now, as part of run `run_id`; `claim()` refuses one that was made before.

        Raises BudgetExceededError, or KeyReuseError; then nothing was charged."""
        with self.lock:
            before = self.runs.get(run_id)
            all_of_it = charge if before is None else replace(charge, chains=before.planned[0].chains + 1)
            self._admit([all_of_it], run_id)
            if self.ledger is None:
                claim()
            else:
                events = events_of([all_of_it])
                self.ledger.reserve(run_id, events, self._named(what))
                try:
                    if len(self.ledger.charged_steps(run_id)) != all_of_it.chains - 1:
                        raise KeyReuseError(
                            "the ledger counts other steps of this state's key than this object took: another process, or a copy "
                            "of this object, took some. Make a new state by init(dpppl.secret_key(), ...). Nothing was charged."
                        )
                    claim()
                    self.ledger.charge(run_id, events, 0, all_of_it.chains)
                finally:
                    self.ledger.release(run_id, "complete")
            self.runs[run_id] = _Run((all_of_it,), [charge.num_steps], is_open=False)


@dataclass(eq=False)
class _Run:
    """The charges that one run may make, and how many steps of each it has begun."""

    planned: tuple[Charge, ...]
    begun: list[int] = field(default_factory=list)
    is_open: bool = True

    def __post_init__(self) -> None:
        self.begun = self.begun or [0] * len(self.planned)

    @property
    def charged(self) -> list[Charge]:
        return [charge.begun(count) for charge, count in zip(self.planned, self.begun) if count]

    @property
    def held(self) -> Sequence[Charge]:
        return self.planned if self.is_open else self.charged

    def ended(self) -> "_Run":
        return replace(self, is_open=False)


class Reservation:
    """A run that was admitted. As a context manager it gives back in the end what did not run.

    - **budget**, **run_id** - the account, and the run's name.
    - **before** - events of all other runs of the account."""

    def __init__(self, budget: Budget, run_id: str, before: Events = ()) -> None:
        self._budget, self.run_id, self.before = budget, run_id, before
        self._run = budget.runs[run_id]
        # Of a run that is resumed the ledger may know a chunk that was charged and cut off: it is run again, once.
        self._known = 0 if budget.ledger is None else len(budget.ledger.charged_steps(run_id))

    def charge(self, number: int, until: int) -> None:
        """Record, before the access, that steps of planned charge `number` begin, up to the step `until` of it."""
        budget, run = self._budget, self._run
        with budget.lock:
            first, planned = run.begun[number], run.planned[number]
            assert run.is_open and until <= planned.num_steps
            if until <= first:
                return  # a chunk that is run again under the same keys: one access
            after = replace(run, begun=[*run.begun[:number], until, *run.begun[number + 1 :]])
            if planned.selection is None and (audit := watching.watcher()) is not None:
                audit.charged((self.run_id, number), planned, first, until)
            if budget.ledger is not None and sum(after.begun) > self._known:
                budget.ledger.charge(self.run_id, events_of(after.charged), run.planned[0].first, sum(after.begun))
            run.begun = after.begun  # last: a charge that was refused or interrupted is made again, before any access

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        budget = self._budget
        with budget.lock:
            self._run.is_open = False
            if not any(self._run.begun):
                budget.runs.pop(self.run_id, None)
            if budget.ledger is not None:
                try:
                    budget.ledger.release(self.run_id, "complete" if kind is None else "interrupted")
                except LedgerError as error:  # what was charged stands, and so do results that it paid for
                    warn(
                        f"run '{self.run_id}' is over, and holds what it reserved until this process ends: {error}",
                        UserWarning,
                        charged=True,
                    )
