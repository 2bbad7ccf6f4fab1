"""Uses of secret keys, of which every access must have a branch of the tree of keys, or a step on a branch, of its own.

A key is a path from an input, through numbered children. Two uses are apart if their paths are certain to differ in the
number of some child of the same kind, in every pair of turns, chains and devices. That is a system of linear equations
in bounded integers, which must have no solution: bounds are tightened until nothing changes.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dpppl.information_flow.lattice import LOST, Key, Number, Step, Variable

FOLD_BITS = 32  # of a number, which `fold_in` reads


class Use(NamedTuple):
    """A key that is used. `step`, `streams`: of an access, which draws from children with these numbers, and from their
    children with the number of the step; without, the key is as good as known. `variables`: of the loops, devices and
    chains around it, each execution of it being one choice of these."""

    key: Key
    equation: Any
    variables: frozenset[Variable]
    step: Number | None = None
    streams: tuple[int, ...] = ()

    def paths(self) -> list[tuple[Step, ...]]:
        """What it draws from, or gives away."""
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
    return all(_Equations(shared).exclude(one, two, itself) for one in first.paths() for two in second.paths())


class _Equations:
    """Two paths are one: equal numbers of children of equal kinds, in two executions.

    Unknown integers are, by (variable, side), a variable's value in the first execution less that in the second (side
    0), or in one of them alone (sides 1 and 2); `bounds` are what is known of them."""

    def __init__(self, shared: frozenset[Variable]) -> None:
        self.shared = shared
        self.bounds: dict[tuple[Variable, int], tuple[float, float]] = {}
        for variable in shared:
            self._bound(variable, 0)

    def _bound(self, variable: Variable, side: int) -> tuple[Variable, int]:
        high = math.inf if variable.length is None else max(0, variable.length - 1)
        low = -high if side == 0 or variable.kind == "unknown" else 0
        self.bounds.setdefault((variable, side), (low, high))
        return variable, side

    def _agrees(self, variable: Variable) -> bool:
        """Whether a variable is certain to have one value in both executions."""
        if variable.kind == "unknown":
            return all(self._agrees(inner) for index in variable.indices for inner, _ in index.terms)
        return self.bounds.get((variable, 0)) == (0, 0)

    def exclude(self, first: Sequence[Step], second: Sequence[Step], itself: bool) -> bool:
        """Whether there is no solution; but for one, of `itself`, in which all variables agree."""
        alike = [one.how == two.how for one, two in zip(first, second)]
        same = alike.index(False) if False in alike else len(alike)
        pairs = [(one.child, two.child) for one, two in zip(first[:same], second[:same])]
        for _ in range(2 * (len(pairs) + len(self.shared)) + 2):  # what is not forced by then counts as free
            before = dict(self.bounds)
            if not all(self._tighten(one, two) for one, two in pairs):
                return True
            if before == self.bounds:
                break
        return itself and all(map(self._agrees, self.shared))

    def _tighten(self, one: Number, two: Number) -> bool:
        """Bounds that one equation implies; False if it has no solution."""
        terms: dict[tuple[Variable, int], int] = {}
        first, second = dict(one.terms), dict(two.terms)
        for variable in first.keys() | second.keys():
            a, b = first.get(variable, 0), second.get(variable, 0)
            if a == b and variable in self.shared:
                terms[self._bound(variable, 0)] = a
            elif a != b or not self._agrees(variable):
                terms |= {self._bound(variable, side): c for side, c in ((1, a), (2, -b)) if c}
        return self._solve(terms, two.offset - one.offset, 2 ** min(one.bits, two.bits, FOLD_BITS))

    def _solve(self, terms: dict[tuple[Variable, int], int], wanted: int, modulus: int) -> bool:
        """sum(coefficient * unknown) = wanted, modulo `modulus`: tighten the unknowns; False if it cannot be."""
        if wanted % math.gcd(modulus, *terms.values()):
            return False
        ranges = {name: sorted(c * end for end in self.bounds[name]) for name, c in terms.items()}
        low, high = sum(r[0] for r in ranges.values()), sum(r[1] for r in ranges.values())
        if math.isinf(low) or math.isinf(high):
            return True
        total = int(wanted + modulus * -((wanted - low) // modulus))  # the smallest that is not below `low`
        if total > high:
            return False
        if total + modulus <= high:
            return True
        for name, c in terms.items():
            least, most = total - high + ranges[name][1], total - low + ranges[name][0]
            ends = (-(-least // c), most // c) if c > 0 else (-(-most // c), least // c)
            start, stop = max(self.bounds[name][0], ends[0]), min(self.bounds[name][1], ends[1])
            if start > stop:
                return False
            self.bounds[name] = (start, stop)
        return True
