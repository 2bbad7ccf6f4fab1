"""A session with the data: the one protocol by which every run, histogram and query charges before it looks.

In this order: the processes agree; the charges are reserved; the key is used up; the run is noted and its cost printed; then
each access is charged before it is made. A refusal up to the third leaves everything as it was.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import jax

from dpppl.errors import warn
from dpppl.randomness import keys
from dpppl.report.provenance import KeyOrigin, KeySource
from dpppl.report.report import PrivacyReport
from dpppl.runs.announcement import announce, reading_line
from dpppl.runs.budget import Budget, Charge, Reservation
from dpppl.runs.checkpoint import Checkpoint
from dpppl.runs.processes import ProcessGroup
from dpppl.types import Tree


@dataclass(frozen=True)
class Run:
    """A run, before its steps.

    - **key**, **run_id**, **checkpoint** - its key, its name, and its file, if one is kept."""

    key: Tree
    run_id: str
    checkpoint: Checkpoint | None = None

    @property
    def goes_on(self) -> bool:
        """Whether it is resumed: its key was used up before."""
        return self.checkpoint is not None and self.checkpoint.resumed

    def forget(self) -> None:
        """Remove its checkpoint, which is not needed any more."""
        if self.checkpoint is not None:
            self.checkpoint.remove()

    @classmethod
    def opened(cls, rng_key: Tree, checkpoint: Checkpoint | None = None) -> "Run":
        """Open a new run, or the one that the checkpoint holds, whose key then replaces `rng_key`."""
        key = keys.as_key(rng_key)
        if checkpoint is not None and checkpoint.resumed:
            return cls(checkpoint.key, checkpoint.run_id, checkpoint)
        return cls(key, uuid.uuid4().hex, checkpoint)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The charges of a session and what its start needs, fixed before it looks at data.

    - **what** - name of the run in a ledger; **charges** - costs of its accesses.
    - **rows** - private rows (N, ...); **program** - digest of the compiled programs, "" before they are.
    - **shared** - further values that several processes must have in common, by name.
    - **begin** - `begin(charges, origin of the key)` notes that the run begins; its report, if any, is announced.
    - **notes**, **print_cost** - lines printed with the cost, and whether to print it; **duration** - a line on its time."""

    what: str
    charges: Sequence[Charge]
    rows: Tree
    program: str = ""
    shared: Mapping[str, object] = field(default_factory=dict)
    begin: Callable[[Sequence[Charge], KeyOrigin], PrivacyReport | None] = lambda charges, origin: None
    notes: Sequence[str] = ()
    print_cost: bool = True
    duration: str | None = None


@dataclass(frozen=True)
class Session:
    """An open session.

    - **charges**, **reservation** - what was planned, and its reservation.
    - **processes** - those that take part.
    - **first** - the number of the planned charge that is numbered 0 from now on."""

    charges: Sequence[Charge]
    reservation: Reservation
    processes: ProcessGroup
    first: int = 0

    def charge(self, number: int, until: int) -> None:
        """Charge the accesses of charge `number` up to the one numbered `until`, before they are made."""
        self.processes.enter("charge", partial(self.reservation.charge, self.first + number, until))

    def last(self, charges: Sequence[Charge]) -> "Session":
        """The session, with numbers from 0 for its last charges. These have settings now that were not known when they were
        planned, and the same cost. Raises AssertionError for any other."""
        first = len(self.charges) - len(charges)
        if first < 0 or not all(map(Charge.pays_for, self.charges[first:], charges)):
            raise AssertionError("steps cost more than was planned, or other than it")
        return replace(self, first=first)


def claim(key: jax.Array, *, again: bool = False) -> KeyOrigin:
    """Use up a run's key, and say where it comes from; `again`: the key of a run that is resumed.

    Raises KeyReuseError; warns of a key that can be guessed."""
    keys.claim(key, again=again)
    origin = KeyOrigin.of(key)
    if origin.source is KeySource.SEED:
        warn(
            "rng_key has a guessable seed: whoever guesses it can subtract the noise, and with it goes the guarantee. "
            "Take keys from dpppl.secret_key()."
        )
    return origin


@contextlib.contextmanager
def session(run: Run, request: Request, budget: Budget) -> Iterator[Session]:
    """Open a session; at its end, what was reserved and not charged is given back.

    - **run** - key, name and checkpoint of the run.

    Raises BudgetExceededError, KeyReuseError or ConfigurationError before anything is charged."""
    processes = ProcessGroup.of(request.rows, budget)
    processes.agree(run.key, request.program, **request.shared)
    reading = reading_line(request.rows, request.charges) if request.print_cost else None
    reserve = partial(budget.reserve_for, request.charges, request.what, run.run_id)
    with processes.watched(), processes.enter("reservation", reserve) as reservation:
        origin = processes.enter("key", partial(claim, run.key, again=run.goes_on))
        report = request.begin(request.charges, origin)
        if report is not None:
            announce(report, reservation.before, request.notes, request.print_cost, [reading, request.duration])
        yield Session(request.charges, reservation, processes)
