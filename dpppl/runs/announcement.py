"""The lines printed before a run: its cost, and notes for its user."""

from collections.abc import Sequence
from functools import partial

from dpppl import accounting
from dpppl.errors import warn
from dpppl.ledger.book import Events
from dpppl.processes import messages
from dpppl.runs.report import PrivacyReport
from dpppl.runs.unit import ROW, Unit


def cost_line(
    before: Events,
    run: Events,
    delta: float | None,
    relation: str,
    unit: Unit = ROW,
) -> str:
    """The cost of a run by itself, and its object's total after it, in one line."""
    delta = 1e-6 if delta is None else delta
    epsilon = partial(accounting.group_epsilon, delta=delta, group_size=unit.group_size)
    line = f"This run will spend epsilon = {epsilon(run):.4g}"
    if before:
        line += f", in all {epsilon((*before, *run)):.4g} with what was spent before,"
    return f"{line} at delta = {delta:g}: {unit.relation(relation)}."


def announce(
    report: PrivacyReport, before: Events, notes: Sequence[str], print_cost: bool,
    reading: str | None = None,
) -> None:  # fmt: skip
    """Before a run: what it will spend, and what its user should know and may not expect. `report`: of this run alone;
    `reading`: what it will read from disk."""
    if print_cost and messages.leads():
        print(cost_line(before, report.events, report.delta, report.mechanism.neighboring_relation, report.unit))
        if reading is not None:
            print(reading)
        for note in () if before else notes:  # once
            print(f"Note: {note}")
    if warning := report.delta_warning():
        warn(warning)
