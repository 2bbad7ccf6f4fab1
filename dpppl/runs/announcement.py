"""The lines printed before a run: its cost, and notes for its user."""

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from dpppl import accounting
from dpppl.accounting.privacy_spent import LARGEST_MEANINGFUL_EPSILON
from dpppl.data.disk import Block, Draw, OnDisk, reading
from dpppl.data.rows import placement_of
from dpppl.errors import warn
from dpppl.ledger.book import Events
from dpppl.processes import messages
from dpppl.report.report import PrivacyReport
from dpppl.runs.budget import Charge
from dpppl.types import Function, Tree


def announce(
    report: PrivacyReport, before: Events, notes: Sequence[str], print_cost: bool,
    times: Sequence[str | None] = (),
) -> None:  # fmt: skip
    """Before a run: what it will spend, and what its user should know and may not expect. `report`: of this run alone;
    `times`: what it will read from disk, and how long it will take."""
    if print_cost and messages.leads():
        delta, unit = 1e-6 if report.delta is None else report.delta, report.unit
        epsilon = partial(accounting.group_epsilon, delta=delta, group_size=unit.group_size)
        total = f", in all {epsilon((*before, *report.events)):.4g} with what was spent before," if before else ""
        relation = unit.relation(report.mechanism.neighboring_relation)
        spent, most = epsilon(report.events), LARGEST_MEANINGFUL_EPSILON
        called = "This run" if report.name is None else f"This run, '{report.name}',"
        little = f". An epsilon above {most:g} bounds next to nothing: raise the noise" if spent > most else ""
        print(f"{called} will spend epsilon = {spent:.4g}{total} at delta = {delta:g}: {relation}{little}.")
        for line in filter(None, times):
            print(line)
        for note in () if before else notes:  # once
            print(f"Note: {note}")
    if warning := report.delta_warning():
        warn(warning)


_DRAWN = 1_000
_LONG_ENOUGH, _MOST_BLOCKS = 0.3, 64
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def reading_line(rows: Tree, charges: Sequence[Charge]) -> str | None:
    """How often, and how much, accesses that cost `charges` will read of `rows`, in one line; None where these are in memory.

    It reads some blocks, or some rows drawn at random, to see how long that takes. Raises DataReadError."""
    placement = placement_of(rows)
    if not isinstance(placement, OnDisk):
        return None
    passes, batches, size, drawn = 0, 0, 0, 0.0
    for charge in charges:
        each = placement.drawn_by(charge.mechanism.subsampling)
        if each is None:  # chains that run together share what is read
            passes += charge.num_steps
        else:
            number = charge.num_steps * charge.chains
            batches, size, drawn = batches + number, round(each), drawn + number * each
    parts = [f"{passes:,} full pass{'es' * (passes > 1)}"] * bool(passes)
    parts += [f"{batches:,} batches of about {size:,} rows"] * bool(batches)
    with reading(placement):
        seconds = passes * placement.num_rows * _block_time(placement) if passes else 0.0
        if batches:
            index = np.random.default_rng().integers(placement.num_rows, size=_DRAWN)
            seconds += drawn * _timed(lambda: Draw(placement)(index)) / _DRAWN
    amount, unit = placement.row_bytes * (passes * placement.num_rows + drawn), 0
    while amount >= 1000.0 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000.0, unit + 1
    duration = f"{seconds / 3600.0:.2g} h" if seconds >= 3600.0 else f"{max(1.0, np.ceil(seconds)):.0f} s"
    return (
        f"It will read {' and '.join(parts)} of {placement.num_rows:,} rows, {amount:.3g} {_UNITS[unit]} in all: {duration} of "
        "reading if all goes as fast as the first of it."
    )


def _block_time(placement: OnDisk) -> float:
    """Seconds a row, of blocks from the first on that take a while together."""
    size = min(placement.at_once, placement.num_rows)
    seconds, number = 0.0, 0
    for start in range(0, placement.num_rows - size + 1, size):
        seconds, number = seconds + _timed(lambda: Block(placement, size)(start)), number + 1  # noqa: B023
        if seconds > _LONG_ENOUGH or number == _MOST_BLOCKS:
            break
    return seconds / (number * size)


def _timed(act: Function) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start
