"""Random keys: a tree of which every access must have a branch, or a step on a branch, of its own.

A key is a path from an input, through numbered children. Two uses are apart if their paths are certain to differ in the
number of some child of the same kind, in every pair of turns, chains and devices. That is a system of linear equations
in bounded integers, which must have no solution: bounds are tightened until nothing changes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpppl.information_flow.lattice import LOST, Key, Names, Number, Step, Value, Variable, multiple
from dpppl.information_flow.numbers import Lengths
from dpppl.information_flow.primitives import is_key, named

FOLD_BITS = 32
"""How many bits of a number `fold_in` reads."""


def given(root: Any, shape: Sequence[int]) -> Key:
    """The key, or array of different keys, that a program is given."""
    return Key(root, tuple(Step(("element", k), multiple(("axis", k))) for k in range(len(shape))), True)


def derived(equation: Any, inputs: Sequence[Value]) -> Key:
    """Which key an equation makes of its inputs, of which one is secret; LOST where that cannot be said."""
    key, aval = inputs[0].key, equation.invars[0].aval
    if key is None or not is_key(aval) or any(value.key is not None for value in inputs[1:]):
        return LOST
    if equation.primitive is named("random_fold_in"):
        parent, number = key.renamed(_single(aval)), inputs[1].renamed(_single(equation.invars[1].aval)).number
        if number is None or not parent.exact:
            return parent._replace(exact=False)
        return parent._replace(path=(*parent.path, Step(("fold",), number)))
    if equation.primitive is named("random_split"):
        shape, rank = tuple(equation.params["shape"]), len(aval.shape)
        children = (Step(("split", shape, k), multiple(("axis", rank + k))) for k in range(len(shape)))
        return key._replace(path=(*key.path, *children)) if key.exact else key
    return LOST


def _single(aval: Any) -> Names:
    """Axes of length 1, which are repeated where the other operand's are longer, have one element."""
    return {("axis", k): Number(0) for k, length in enumerate(np.shape(aval)) if length == 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A key that is used. `step`, `streams`: of an access, which draws from children with these numbers, and from their
    children with the number of the step; without, the key is as good as known. `variables`: of the loops, devices and
    chains around it, each execution of it being one choice of these."""

    key: Key
    equation: Any
    step: Number | None = None
    streams: tuple[int, ...] = ()
    variables: frozenset[Variable] = frozenset()

    @property
    def is_access(self) -> bool:
        return bool(self.streams)

    def paths(self) -> list[tuple[Step, ...]]:
        """What it draws from, or gives away."""
        if self.step is None:
            return [self.key.path]
        step = Step(("fold",), self.step._replace(bits=min(FOLD_BITS, self.step.bits)))
        return [(*self.key.path, Step(("fold",), Number(stream, (), FOLD_BITS)), step) for stream in self.streams]


def conflicts(uses: Sequence[Use], lengths: Lengths) -> Iterator[tuple[Use, Use]]:
    """Pairs of uses, one of them an access, that may be of one key and step."""
    for number, second in enumerate(uses):
        for first in uses[: number + 1]:
            if (first.is_access or second.is_access) and not _apart(first, second, lengths):
                yield first, second


def _apart(first: Use, second: Use, lengths: Lengths) -> bool:
    """Whether no two executions (of one use: no two different ones) meet on one path."""
    if None in (first.key.root, second.key.root):
        return False
    if first.key.root != second.key.root:
        return True
    shared, itself = first.variables & second.variables, first is second
    return all(_Equations(shared, lengths).exclude(one, two, itself) for one in first.paths() for two in second.paths())


class _Equations:
    """Two paths are one: equal numbers of children of equal kinds, in two executions.

    Unknown integers are, by (variable, side), a variable's value in the first execution less that in the second (side
    0), or in one of them alone (sides 1 and 2); `bounds` are what is known of them."""

    def __init__(self, shared: frozenset[Variable], lengths: Lengths) -> None:
        self.shared, self.lengths = shared, lengths
        self.bounds: dict[Any, tuple[int | float, int | float]] = {}
        for variable in shared:
            self._bound(variable, 0)

    def _bound(self, variable: Variable, side: int) -> Any:
        """The unknown's name; it has bounds from now on."""
        length = self.lengths.get(variable)
        high = math.inf if length is None else max(0, length - 1)
        low = -high if side == 0 or variable[0] == "unknown" else 0
        self.bounds.setdefault((variable, side), (low, high))
        return variable, side

    def _together(self, variable: Variable) -> bool:
        """Whether a variable is certain to have one value in both executions."""
        if variable[0] == "unknown":
            return all(self._together(inner) for number in variable[2] for inner, _ in number.terms)
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
        return itself and all(map(self._together, self.shared))

    def _tighten(self, one: Number, two: Number) -> bool:
        """Bounds that one equation implies; False if it has no solution."""
        terms: dict[Any, int] = {}
        first, second = dict(one.terms), dict(two.terms)
        for variable in first.keys() | second.keys():
            a, b = first.get(variable, 0), second.get(variable, 0)
            if self._together(variable):
                terms[self._bound(variable, 1)] = a - b
            elif variable in self.shared and a == b:
                terms[self._bound(variable, 0)] = a
            else:
                terms |= {self._bound(variable, side): c for side, c in ((1, a), (2, -b))}
        return self._solve({n: c for n, c in terms.items() if c}, two.offset - one.offset, 2 ** min(one.bits, two.bits))

    def _solve(self, terms: dict[Any, int], wanted: int, modulus: int) -> bool:
        """sum(coefficient * unknown) = wanted, modulo `modulus`: tighten the unknowns; False if it cannot be."""
        if wanted % math.gcd(modulus, *terms.values()):
            return False
        ranges = {name: sorted(c * end for end in self.bounds[name]) for name, c in terms.items()}
        low, high = sum(r[0] for r in ranges.values()), sum(r[1] for r in ranges.values())
        if math.isinf(low) or math.isinf(high):
            return True
        total = wanted + modulus * -((wanted - low) // modulus)  # the smallest that is not below `low`
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
