"""One privacy budget for all that looks at the same data, across objects, processes and days."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import numpy as np

from dpppl.accounting import GaussianEvent
from dpppl.accounting.dp_events import as_events
from dpppl.errors import BudgetExceededError, ConfigurationError
from dpppl.ledger import append_only
from dpppl.ledger.append_only import LockedFile
from dpppl.ledger.book import PROCESS_GONE, VERSION, Book, Events, as_json, number, open_book, this_process
from dpppl.ledger.privacy_filter import Costs, PrivacyFilter
from dpppl.ledger.report import CombinedRisk, LedgerReport, combined_risk, epsilon_of_plan, report_of
from dpppl.validation import checked, checked_fields

_MOVED_BY_ROUNDING = 0.01  # what rounding noise multipliers down to a few values may move in the cost of part of a run


@checked_fields
class PrivacyLedger:
    """A budget (epsilon, delta) in a file: whatever looks at the data is admitted and charged there before it looks.

    - **path** - a file on a local disk, made if there is none. An existing one must have this `epsilon`, `delta`,
      `neighboring_relation`, `unit` and `full_batch_only`.
    - **epsilon**, **delta** - the budget.
    - **neighboring_relation** - what the guarantee compares.
    - **name** - what you call the data. That a ledger's runs all look at the same data, and nothing else does, is yours to
      see to.
    - **unit** - "row", or the `unit` of the runs that it counts.
    - **full_batch_only** - True refuses subsampled runs and discrete noise, and loses nothing of the budget; without it full
      batches lose 2 to 5 % of epsilon, subsampled runs about 11 % (`PrivacyFilter` has the numbers).

    A *run* is planned, admitted and charged as one: `reserve` all that it will do, `charge` what it is about to do, `release`
    it when it ends. Reserved budget that it did not charge is free again then, also when its process dies. A run that goes on
    later reserves again under its own name; `charged_steps` says which of its steps are charged already.

    Guarantee: all that is ever charged is together (epsilon, delta)-DP for one row, also if each run was chosen after looking
    at the results of those before it (`dpppl.ledger.privacy_filter` has the proof). A charge is on the disk when `charge`
    returns, and stands there once, whenever a process is killed. Threads and processes may share a ledger; it can be copied,
    pickled and forked.

    The file holds names of runs, noise multipliers, counts, times and process numbers, no data value and no key (of a key that
    steps by hand a digest); its mode follows the umask. `path`.head has its last line: move and restore both together.
    Lines changed or lost, at the end too, are seen; an older copy of both files is not, nor what somebody who may write rewrites.
    Raises ConfigurationError for numbers that contradict the file, LedgerError for a file that is damaged.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = PrivacyLedger(folder.name + "/adult.ledger", 1.0, 1e-5, name="Adult", full_batch_only=True)
    >>> ledger.reserve("first", [GaussianEvent(noise_multipliers=((100.0, 400),))], "DPSGLD, 400 steps")
    >>> ledger.charge("first", [GaussianEvent(noise_multipliers=((100.0, 200),))], first=0, count=200)
    >>> ledger.release("first", "interrupted")
    >>> ledger.charged_steps("first"), round(ledger.spent, 3), round(ledger.remaining(), 3)
    (range(0, 200), 0.497, 0.836)
    >>> folder.cleanup()
    """

    def __init__(
        self, path: str | os.PathLike[str], epsilon: float, delta: float, *, neighboring_relation: str = "zero_out",
        name: str | None = None, full_batch_only: bool = False, unit: str = "row",
    ) -> None:  # fmt: skip
        rule = PrivacyFilter.of(epsilon, delta, neighboring_relation, full_batch_only)
        self._path = _checked(path)
        header = {"kind": "ledger", "version": VERSION, "created": _now(), "name": name, "unit": unit}
        append_only.create(self._path, {**header, **dataclasses.asdict(rule)})
        self._book = open_book(self._path)
        fields = ("epsilon", "delta", "neighboring_relation", "full_batch_only")
        for field, found, asked in (
            *((field, getattr(self._book.rule, field), getattr(rule, field)) for field in fields),
            ("unit", self.unit, unit),
            ("name", self.name, self.name if name is None else name),
        ):
            if found != asked:
                raise ConfigurationError(
                    f"the ledger at {self._path} was made with {field}={found!r}, not {asked!r}: a budget does not change once "
                    "it is made. Give the numbers it has, or take them from the file with PrivacyLedger.open(path)."
                )

    @classmethod
    @checked
    def open(cls, path: str | os.PathLike[str]) -> PrivacyLedger:
        """The ledger that stands at `path`, with the budget it was made with."""
        self = cls.__new__(cls)
        self._path = _checked(path)
        self._book = open_book(self._path)
        return self

    def __repr__(self) -> str:
        return f"PrivacyLedger({self.path!r}, epsilon={self.epsilon:g}, delta={self.delta:g})"

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._path

    @property
    def name(self) -> str | None:
        """The data's name."""
        return self._book.header["name"]

    @property
    def unit(self) -> str:
        """Whose loss it counts: "row", or the name under which runs get ids."""
        return str(self._book.header.get("unit", "row"))  # the first ledgers counted rows and did not say so

    @property
    def epsilon(self) -> float:
        """Of the budget."""
        return self._book.rule.epsilon

    @property
    def delta(self) -> float:
        """Of the budget."""
        return self._book.rule.delta

    @property
    def neighboring_relation(self) -> str:
        """The neighbouring relation of the guarantee."""
        return self._book.rule.neighboring_relation

    @property
    def failure_allowance(self) -> float:
        """The largest sum of failure probabilities of all events. Let a run take a thousandth of it."""
        return self._book.rule.failure_allowance

    @checked
    def reserve(self, run_id: str, events: Sequence[GaussianEvent], what: str) -> None:
        """Admit a run with all that it is planned to ask of the data, before it asks anything.

        - **run_id** - a name for the run.
        - **events** - its whole plan; for a run that goes on, what it was charged before included.
        - **what** - a line for the report.

        Raises BudgetExceededError if the budget has no room for it, ConfigurationError if it is running already or its events
        cannot be counted here; then nothing is reserved."""
        if not (isinstance(run_id, str) and run_id and isinstance(what, str)):
            raise ConfigurationError("a run has a name, run_id, and what it is: strings.")
        planned = _accesses(events)
        needed = self._book.rule.cost(planned)
        with self._opened(write=True) as locked:
            for gone in [k for k, run in self._book.runs.items() if run.gone]:
                self._add(locked, "release", gone, status=PROCESS_GONE)
            run = self._book.runs.get(run_id)
            if run is not None and run.owner is not None:
                raise ConfigurationError(
                    f"run {run_id!r} is running already, in process {run.owner.pid} on {run.owner.host}. Give this one "
                    "another run_id; if that process was ended on another machine, call release(run_id) first."
                )
            needed = needed if run is None else np.maximum(needed, run.charged_cost)
            self._admit(self._book, run_id, needed, "run", planned)
            owner = dataclasses.asdict(this_process())
            self._add(locked, "reserve", run_id, what=what, events=as_json(planned), owner=owner)

    @checked
    def charge(self, run_id: str, events: Sequence[GaussianEvent], first: int, count: int) -> None:
        """Charge a run for what it is about to do: look at the data only after this has returned.

        - **run_id** - the run's name, as it was reserved.
        - **events** - all that the run will have asked of the data then, what was charged before included, which this replaces.
        - **first**, **count** - steps first, first + 1, ..., count many, are charged then.

        Nothing charged is ever taken back: of both costs the larger stays.
        Raises ConfigurationError, and charges nothing, if this is less than before, more than reserved, or if
        this process holds no reservation of the run."""
        asked, steps = _accesses(events), range(int(first), int(first) + int(count))
        if first < 0 or count < 1:
            raise ConfigurationError(
                "charge(run_id, events, first, count): steps are numbered from 0; count is at least 1."
            )
        cost = self._book.rule.cost(asked)
        with self._opened(write=True) as locked:
            run = self._book.run(run_id)
            if run.owner is None:
                raise ConfigurationError(f"run {run_id!r} holds no reservation ({run.status}): reserve again to go on.")
            if run.owner != this_process():
                raise ConfigurationError(
                    f"run {run_id!r} belongs to process {run.owner.pid} on {run.owner.host}: a run is charged by the "
                    "process that reserved it; give runs of other processes names of their own."
                )
            covers = not run.steps or (steps.start <= run.steps.start and steps.stop >= run.steps.stop)
            if not covers or not _at_least(asked, cost, run.charged, run.charged_cost):
                raise ConfigurationError(
                    f"run {run_id!r} was charged {number(run.charged)} accesses for {len(run.steps)} steps: a charge states "
                    f"all that a run asked so far, never less than before; this one has {number(asked)} for {count}."
                )
            if not _at_least(run.reserved, run.reserved_cost, asked, cost):
                raise ConfigurationError(
                    f"run {run_id!r} reserved {number(run.reserved)} accesses, and this charge of {number(asked)} is more "
                    "or costs more: reserve the whole run. Nothing was charged."
                )
            self._admit(self._book, run_id, np.maximum(run.taken, cost), "charge", asked)
            self._add(locked, "charge", run_id, first=steps.start, count=len(steps), events=as_json(asked))

    @checked
    def release(self, run_id: str, status: str = "released") -> None:
        """The run ended, as `status` says: what it reserved and was not charged is free again.

        - **run_id** - the run's name.
        - **status** - a word for the report.

        Any process may release a run, for one that was ended on another machine, say; its own next charge is refused then."""
        with self._opened(write=True) as locked:
            if self._book.run(run_id).owner is not None:
                self._add(locked, "release", run_id, status=status)

    @checked
    def admits(self, events: Sequence[GaussianEvent]) -> bool:
        """Whether a run with this plan would be admitted now; nothing is reserved. To calibrate a run to what is left.

        - **events** - the plan."""
        book = self._read().without_the_gone()
        return book.rule.admits(book.committed() + book.rule.cost(_accesses(events)))

    @checked
    def remaining(self) -> float:
        """Epsilon, alone and at the ledger's delta, of the largest run on full batches that would be admitted now.

        Reservations count as spent. For subsampled runs it is a guide: see `admits`."""
        return self.room()[1]

    @checked
    def room(self, events: Sequence[GaussianEvent] = ()) -> tuple[int, float]:
        """How many more runs with this plan fit, rounded down to one of 0, 1, 2, 3, 5, 10, 20, 50 and 100; and `remaining`.

        - **events** - the plan."""
        book = self._read().without_the_gone()
        total, fitting = book.committed(), [0]
        if events:
            cost = book.rule.cost(_accesses(events))
            fitting += [n for n in (1, 2, 3, 5, 10, 20, 50, 100) if book.rule.admits(total + n * cost)]
        return fitting[-1], book.rule.remaining(total)

    @checked
    def charged_steps(self, run_id: str) -> range:
        """The steps that a run was charged for, as numbered in `charge`; none for a run that is not known.

        - **run_id** - the run's name."""
        runs = self._read().runs
        return runs[run_id].steps if run_id in runs else range(0)

    @property
    def events(self) -> Events:
        """All that was charged."""
        return self._read().events

    @checked
    def events_of(self, run_id: str) -> Events:
        """One run's charges, for the accountant; none for an unknown run.

        - **run_id** - the run's name."""
        run = self._read().runs.get(run_id)
        return () if run is None else run.charged

    @property
    def spent(self) -> float:
        """Epsilon at the ledger's delta that all charges would have as one plan made in advance: for information."""
        return epsilon_of_plan(self.events, self.delta)

    @property
    def combined_risk(self) -> CombinedRisk:
        """The knowledge of an attacker who sees the results of all runs."""
        return combined_risk(self._read())

    @checked
    def report(self) -> LedgerReport:
        """The runs, their cost, the remaining budget, and the guarantee."""
        return report_of(self._read().without_the_gone(), self._path)

    def __str__(self) -> str:
        return str(self.report())

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def _admit(self, book: Book, run_id: str, cost: Costs, what: str, events: Events) -> None:
        others = book.committed(without=run_id)
        if book.rule.admits(others + cost):
            return
        now = book.committed()
        raise BudgetExceededError(
            f"the budget (epsilon {self.epsilon:g}, delta {self.delta:g}) at {self._path} has no room for this {what}: "
            f"{100 * book.rule.used(book.charged()):.3g} % of it is spent, {100 * book.rule.used(now):.3g} % with what "
            f"running runs have reserved, and with this {what} it would be {100 * book.rule.used(others + cost):.3g} %. A "
            f"run on full batches of epsilon {book.rule.remaining(now):.4g}, alone, is the largest that fits"
            f"{book.flag(run_id, events)}. For this {what} nothing was run and nothing was charged."
        )

    @contextlib.contextmanager
    def _opened(self, *, write: bool) -> Iterator[LockedFile]:
        """The locked file. `_book` is what it says, until the lock is given up."""
        book = self._book
        with append_only.opened(self._path, book.position, write=write) as locked:
            self._book = book.read(locked, self._path)
            yield locked

    def _read(self) -> Book:
        with self._opened(write=False):
            return self._book

    def _add(self, locked: LockedFile, kind: str, run_id: str, **fields: object) -> None:
        record = {"kind": kind, "time": _now(), "run": run_id, **fields}
        locked.append(record)
        self._book = self._book.after([record], locked.position)


def _accesses(events: Sequence[GaussianEvent]) -> Events:
    """The events that access data. There is at least one."""
    found = as_events(events)
    if not found:
        raise ConfigurationError("a run in a ledger has at least one access of the data.")
    return found


def _at_least(events: Events, cost: Costs, others: Events, other_cost: Costs) -> bool:
    """Whether events are as many and cost as much as others, but for rounding of noise multipliers."""
    return number(events) >= number(others) and bool(np.all(cost * (1 + _MOVED_BY_ROUNDING) >= other_cost))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _checked(path: object) -> str:
    """The real path: a file has one head, by whatever links it is reached. Raises ConfigurationError for what is no path."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(
            f"the path of a ledger is a {type(path).__name__}; give that of a file: 'survey.ledger'."
        )
    return os.path.realpath(path)
