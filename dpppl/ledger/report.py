"""The report of a ledger: its budget, what is left of it, and its runs."""

import functools
import html
import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, replace
from typing import Any

from dpppl import accounting
from dpppl.accounting import GaussianEvent, SelectionEvent
from dpppl.accounting.relations import relation_of
from dpppl.ledger.book import Book, Events, number
from dpppl.output import aligned


@dataclass(frozen=True, kw_only=True)
class LedgerRun:
    """One run of a ledger.

    - **run_id** - its name.
    - **what** - a line for people.
    - **status** - how it stands.
    - **first**, **num_steps** - steps first, first + 1, ..., num_steps many, are charged.
    - **num_accesses** - number of accesses charged.
    - **epsilon** - of what it was charged, alone, at the ledger's delta.
    - **planned_epsilon** - of all that it still keeps reserved, None once it ended."""

    run_id: str
    what: str
    status: str
    first: int
    num_steps: int
    num_accesses: int
    epsilon: float
    planned_epsilon: float | None


@dataclass(frozen=True)
class CombinedRisk:
    """The knowledge of an attacker who sees the results of all runs of a ledger, and all other records.

    - **runs** - how many there are.
    - **right** - how often at most a guess is right whether one record was used, as if all had been planned in advance.
    - **right_in_the_end** - the same when the budget is used up, whatever the runs are chosen by."""

    runs: int
    right: float
    right_in_the_end: float

    def __str__(self) -> str:
        runs = ("no run", "the one run")[self.runs] if self.runs < 2 else f"all {self.runs} runs"
        right, end = _of_hundred(self.right), _of_hundred(self.right_in_the_end)
        return (
            f"whoever sees the results of {runs} so far can tell whether a record was used in at most {right} of 100 cases, if "
            f"all were planned in advance, and at the budget's end in at most {end}, however chosen; a coin is right in 50"
        )


def _of_hundred(share: float) -> str:
    """A share of 100, rounded up: a bound stays one."""
    return f"{math.ceil(1000.0 * share - 1e-6) / 10.0:g}"


@dataclass(frozen=True, kw_only=True)
class LedgerReport:
    """The state of a budget. `str(report)` is the text, `to_dict()` is ready for JSON.

    - **name**, **path**, **created** - what the data are called, the file, and when it was made.
    - **epsilon**, **delta** - the guarantee, fixed when the ledger was made.
    - **neighboring_relation**, **unit** - what the guarantee compares, and whose rows it is for.
    - **rule** - how runs are admitted, in words.
    - **spent** - for information: epsilon at `delta` that all charges would have as one plan made in advance.
    - **used** - the share of the budget that charges and reservations take up by the rule that admits.
    - **remaining** - epsilon at `delta`, alone, of the largest run on full batches that would still be admitted.
    - **combined_risk** - what all runs let an attacker know.
    - **runs** - the runs, in order."""

    name: str | None
    path: str
    created: str
    epsilon: float
    delta: float
    neighboring_relation: str
    unit: str
    rule: str
    spent: float
    used: float
    remaining: float
    combined_risk: CombinedRisk
    runs: tuple[LedgerRun, ...]

    @property
    def _relation(self) -> str:
        return relation_of(self.neighboring_relation).words.format(unit=self.unit)

    @property
    def statement(self) -> str:
        """The guarantee and its conditions."""
        return (
            f"All that is charged here is together ({self.epsilon:g}, {self.delta:g})-differentially private for one {self.unit} "
            f"({self._relation}), also where a run was chosen after looking at the results of those "
            "before it: the budget and its rule were fixed first, and every access is charged before it happens. Budget spent "
            "so far is information, not a smaller guarantee. Not counted: whatever looked at the same data without this "
            "ledger."
        )

    @property
    def _squares(self) -> str:
        """Why what is left is no difference."""
        if not 0.0 < self.used < 1.0:
            return ""
        left = f"{100 * self.used:.3g} % is used, {100 * (1 - self.used):.3g} %"
        return (
            f", not {self.epsilon:g} - {self.spent:.4g}: squares of epsilon add up, roughly; of the budget {left} left"
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields, and the statement, as plain values."""
        return {**asdict(self), "runs": [asdict(run) for run in self.runs], "statement": self.statement}

    def __str__(self) -> str:
        head = ("run", "what", "steps", "epsilon", "status")
        rows = [head, *(_row(run) for run in self.runs)]
        lines = [
            f"Privacy ledger {'' if self.name is None else repr(self.name) + ' '}at {self.path}, since {self.created}",
            f"  budget     epsilon {self.epsilon:g} at delta {self.delta:g}, {self._relation}",
            f"  rule       {self.rule}",
            f"  spent      epsilon {self.spent:.4g}; {100 * self.used:.3g} % of the budget is used or reserved",
            f"  remaining  epsilon {self.remaining:.4g} for a run on full batches, alone{self._squares}",
            f"  attacker   {self.combined_risk}",
            *(f"  {line}" for line in aligned(rows)),
            self.statement,
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _row(run: LedgerRun) -> tuple[str, str, str, str, str]:
    steps = f"{run.first}-{run.first + run.num_steps - 1}" if run.num_steps else "none"
    planned = "" if run.planned_epsilon is None else f" of {run.planned_epsilon:.4g} reserved"
    return run.run_id, run.what, steps, f"{run.epsilon:.4g}{planned}", run.status


def report_of(book: Book, path: str) -> LedgerReport:
    """The report of what was read of a ledger."""
    rule, total = book.rule, book.committed()
    runs = tuple(
        LedgerRun(
            run_id=run_id, what=run.what, status=run.status, first=run.steps.start, num_steps=len(run.steps),
            num_accesses=number(run.charged), epsilon=epsilon_of_plan(run.charged, rule.delta),
            planned_epsilon=None if run.owner is None else epsilon_of_plan(run.reserved, rule.delta),
        )
        for run_id, run in book.runs.items()
    )  # fmt: skip
    return LedgerReport(
        name=book.header["name"], path=path, created=book.header["created"], epsilon=rule.epsilon, delta=rule.delta,
        neighboring_relation=rule.neighboring_relation, unit=str(book.header.get("unit", "row")),
        rule=rule.describe(), spent=epsilon_of_plan(book.events, rule.delta), used=rule.used(total),
        remaining=rule.remaining(total), combined_risk=combined_risk(book), runs=runs,
    )  # fmt: skip


def combined_risk(book: Book) -> CombinedRisk:
    """Bound what all charged runs let an attacker know."""
    charged = {name.removesuffix(".norms") for name, run in book.runs.items() if run.charged}
    return CombinedRisk(len(charged), (1.0 + _advantage(book.events)) / 2.0, (1.0 + book.rule.advantage) / 2.0)


@functools.lru_cache(maxsize=1024)
def _advantage(events: Events) -> float:
    return accounting.delta(merged(events), 0.0) if events else 0.0


@functools.lru_cache(maxsize=1024)
def epsilon_of_plan(events: Events, delta: float) -> float:
    """Epsilon of events that were planned together."""
    return accounting.epsilon(merged(events), delta) if events else 0.0


def merged(events: Events) -> Events:
    """Events with accesses of one kind merged, which spares the accountant much."""
    counts: dict[GaussianEvent, Counter[float]] = defaultdict(Counter)
    failures: dict[GaussianEvent, float] = defaultdict(float)
    selections = [event for event in events if isinstance(event, SelectionEvent)]
    for event in events:
        if isinstance(event, SelectionEvent):
            continue
        kind = replace(event, noise_multipliers=(), failure_probability=0.0)
        failures[kind] += event.failure_probability
        for sigma, count in event.noise_multipliers:
            counts[kind][sigma] += count
    each_kind = [
        replace(kind, noise_multipliers=tuple(sorted(pairs.items())), failure_probability=failures[kind])
        for kind, pairs in counts.items()
    ]
    return (*each_kind, *selections)
