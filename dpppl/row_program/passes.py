"""Passes over the program of one row before it is mapped over rows: functions RowProgram -> RowProgram."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpppl.jaxprs import split
from dpppl.row_program.linear_algebra import by_products, on_finite
from dpppl.row_program.materialize import ending
from dpppl.types import Traced


@dataclass(frozen=True)
class RowProgram:
    """The program of one row's statistic, in up to three open programs that run one after another.

    - **of_row** - the program that is mapped over rows.
    - **holds_row** - for each input of `of_row`, its constants first, whether it is a number that a row holds.
    - **before** - what no row enters, computed once for all rows: its outputs are the first inputs of `of_row`; or None.
    - **last** - products of what `of_row` gives and of its inputs, which need not be stored before they are clipped: from
      the inputs of `of_row` and then its outputs to the statistic. None where `of_row` gives the statistic."""

    of_row: Traced
    holds_row: tuple[bool, ...]
    before: Traced = None
    last: Traced = None


Pass = Callable[[RowProgram], RowProgram]


def solve_by_products(program: RowProgram) -> RowProgram:
    """Solve triangular systems with one matrix for all rows by products with its inverse."""
    return replace(program, of_row=by_products(program.of_row, program.holds_row))


def hoist(program: RowProgram) -> RowProgram:
    """Move to `before` what does not depend on rows."""
    halves = split(program.of_row, program.holds_row)
    if halves is None:
        return program
    before, of_row = (half.jaxpr for half in halves)
    crossing = len(of_row.invars) - len(program.holds_row)
    return replace(program, before=before, of_row=of_row, holds_row=(False,) * crossing + program.holds_row)


def guard(program: RowProgram) -> RowProgram:
    """Show LAPACK finite numbers of rows only, and keep rows apart in the incomplete beta function."""
    return replace(program, of_row=on_finite(program.of_row, program.holds_row))


def leave_out_products(program: RowProgram) -> RowProgram:
    """Move to `last` products that have the same bits wherever they are computed: see `materialize`."""
    ends = ending(program.of_row, program.holds_row)
    return program if ends is None else replace(program, of_row=ends[0].jaxpr, last=ends[1].jaxpr)


FACTORS: tuple[Pass, ...] = (solve_by_products, hoist, guard)
"""For factors of a gradient, all of which are stored (`ghost_sum.stored`)."""
GRADIENT: tuple[Pass, ...] = (*FACTORS, leave_out_products)  # For a statistic that is clipped as it is


def rewritten(program: Traced, holds_row: Sequence[bool], passes: Sequence[Pass]) -> RowProgram:
    """An open program of one row after all of these passes, in order. Constants are the first inputs."""
    found = RowProgram(program, tuple(holds_row))
    for each in passes:
        found = each(found)
    return found
