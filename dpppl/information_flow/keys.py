"""Uses of secret keys: every access must have its own branch of the tree of keys, or its own step on a branch.

A key is a path from an input, through numbered children. Two uses are apart if their paths are certain to differ in the
number of some child of the same kind, in every pair of iterations, chains and devices.
"""

import math
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from jax.extend.core import JaxprEqn

from dpppl.information_flow.lattice import LOST, Key, Number, Step, Variable

FOLDED = 2**32  # count of numbers that `fold_in` tells apart


class Use(NamedTuple):
    """One use of a key.

    - **key** - the key.
    - **equation** - where it is used.
    - **variables** - the counters of the loops, devices and chains around it: each execution is one choice of these.
    - **step** - the number of the access, for an access; without one the key counts as known.
    - **streams** - numbers of the children that an access draws from, at `step`."""

    key: Key
    equation: JaxprEqn
    variables: frozenset[Variable]
    step: Number | None = None
    streams: tuple[int, ...] = ()

    def paths(self) -> list[tuple[Step, ...]]:
        """The paths that it draws from, or gives away."""
        if self.step is None:
            return [self.key.path]
        last = Step(("fold",), self.step)
        return [(*self.key.path, Step(("fold",), Number(stream)), last) for stream in self.streams]


def conflicts(uses: Sequence[Use]) -> Iterator[tuple[Use, Use]]:
    """Pairs of uses, one of them an access, that may be of one key and step."""
    for number, second in enumerate(uses):
        for first in uses[: number + 1]:
            if (first.streams or second.streams) and not _apart(first, second):
                yield first, second


def _apart(first: Use, second: Use) -> bool:
    """Whether no two executions (of one use: no two different ones) meet on one path."""
    if LOST in (first.key, second.key):
        return False
    if first.key.root != second.key.root:
        return True
    shared, itself = first.variables & second.variables, first is second
    return all(_differ(one, two, shared, itself) for one in first.paths() for two in second.paths())


def _differ(first: Sequence[Step], second: Sequence[Step], shared: frozenset[Variable], itself: bool) -> bool:
    """Whether two paths are certain to differ in two executions; of `itself`, in two in which a variable differs.

    From the key of the input on: either two children differ, or they may be one, which says which variables agree."""
    agreed = {variable for variable in shared if variable.length in (0, 1)}
    for one, two in zip(first, second):
        if one.how != two.how:  # of which nothing is known: they may be one
            break
        common = {v for v in one.child.terms if v in two.child.terms and _agrees(v, agreed)}
        left, right = ([v for v in step.child.terms if v not in common] for step in (one, two))
        highest = one.child.offset - two.child.offset + sum(map(_largest, left))
        lowest = one.child.offset - two.child.offset - sum(map(_largest, right))
        if -math.inf < lowest and highest < math.inf and -(-lowest // FOLDED) * FOLDED > highest:  # no multiple
            return True
        if left == right and len(left) == 1 and one.child.offset == two.child.offset and _largest(left[0]) < FOLDED:
            agreed |= shared.intersection(left)
    return itself and agreed == shared


def _agrees(variable: Variable, agreed: Container[Variable]) -> bool:
    """Whether a variable has one value in both executions: an unknown integer does at one place in its array."""
    if variable.kind == "unknown":
        return all(_agrees(inner, agreed) for index in variable.indices for inner in index.terms)
    return variable in agreed


def _largest(variable: Variable) -> float:
    """The largest value of a counter; of others, and without an end, any."""
    return math.inf if variable.length is None else variable.length - 1
