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

from dpppl.information_flow.lattice import LOST, Key, Number, Step, Value, Variable, affine, renamed, renamed_key
from dpppl.information_flow.numbers import Lengths, Rule
from dpppl.information_flow.primitives import known

FOLD_BITS = 32
"""How many bits of a number `fold_in` reads."""


def given(root: Any, shape: Sequence[int], words: bool) -> Key:
    """The key, or array of different keys, that a program is given. `words`: raw data, the last axis is a key's words."""
    axes = range(len(shape) - words)
    path = tuple(Step(("element", k), Number(None, affine(0, {("axis", k): 1}), 64)) for k in axes)
    return Key(root, path, True, words)


def derived(equation: Any, inputs: Sequence[Value]) -> Key:
    """Which key an equation makes of its inputs, of which one is secret; LOST where that cannot be said."""
    primitive, groups = equation.primitive, known().keys
    key = inputs[0].key
    if key is None or any(value.key is not None for value in inputs[1:]):
        return LOST
    rank = len(np.shape(equation.invars[0].aval))
    if primitive is groups.fold_in:
        key, number = (renamed_key(key, _single(equation, 0)) or LOST), renamed(inputs[1].number, _single(equation, 1))
        if number is None or not key.exact or key.words:
            return key._replace(exact=False)
        return key._replace(path=(*key.path, Step(("fold",), number)))
    if primitive is groups.split:
        if not key.exact or key.words:
            return key._replace(exact=False)
        shape = tuple(equation.params["shape"])
        children = tuple(
            Step(("split", shape, k), Number(None, affine(0, {("axis", rank + k): 1}), 64)) for k in range(len(shape))
        )
        return key._replace(path=(*key.path, *children))
    if primitive in groups.wrap:
        return key._replace(words=False) if key.words else LOST
    if primitive in groups.unwrap:
        return key._replace(words=True)
    if primitive in groups.same:
        return key
    return LOST


def _single(equation: Any, operand: int) -> Rule:
    """Axes of length 1, which are repeated where the other operand's are longer, have one element."""
    shape: Any = np.shape(equation.invars[operand].aval)
    return lambda v: affine(0) if v[0] == "axis" and shape[v[1]] == 1 else affine(0, {v: 1})


def keeps_words(equation: Any, rule: Rule) -> bool:
    """Whether a rearrangement of raw keys leaves each key's words together, in order, on the last axis."""
    shape, new = np.shape(equation.invars[0].aval), np.shape(equation.outvars[0].aval)
    last = rule(("axis", len(shape) - 1))
    return bool(new) and new[-1] == shape[-1] and last == affine(0, {("axis", len(new) - 1): 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A key that is used. `step`, `streams`: of an access, which draws from children with these numbers, and from their
    children with the number of the step; without, the key is as good as known. `variables`: of the loops, devices and
    chains around it, each execution of it being one choice of these. `branches`: (branch point, branch, variables
    around it)."""

    key: Key
    equation: Any
    step: Number | None = None
    streams: tuple[int, ...] = ()
    variables: frozenset[Variable] = frozenset()
    branches: tuple[tuple[Any, int, frozenset[Variable]], ...] = ()

    @property
    def is_access(self) -> bool:
        return bool(self.streams)

    def paths(self) -> list[tuple[Step, ...]]:
        """What it draws from, or gives away."""
        if self.step is None:
            return [self.key.path]
        step = Step(("fold",), self.step._replace(bits=min(FOLD_BITS, self.step.bits)))
        named_ = [Step(("fold",), Number(None, affine(stream), FOLD_BITS)) for stream in self.streams]
        return [(*self.key.path, stream, step) for stream in named_]


def conflicts(uses: Sequence[Use], lengths: Lengths) -> Iterator[tuple[Use, Use]]:
    """Pairs of uses, one of them an access, that may be of one key and step."""
    for number, second in enumerate(uses):
        for first in uses[: number + 1]:
            if (first.is_access or second.is_access) and not _apart(first, second, lengths):
                yield first, second


def _apart(first: Use, second: Use, lengths: Lengths) -> bool:
    """Whether no two executions (of one use: no two different ones) meet on one path."""
    if first is second and not first.is_access:
        return True
    if None in (first.key.root, second.key.root):
        return False
    if first.key.root != second.key.root:
        return True
    once = [first.variables] if first is second else []
    for point, branch, around in first.branches:
        once += [around for other, their, _ in second.branches if other == point and their != branch]
    shared = first.variables & second.variables
    return all(_Equations(one, two, shared, lengths).exclude(once) for one in first.paths() for two in second.paths())


class _Equations:
    """Two paths are one: equal numbers of children of equal kinds, in two executions.

    Unknown integers are, by (variable, side), a variable's value in the first execution less that in the second (side
    0), or in one of them alone (sides 1 and 2); `bounds` are what is known of them."""

    def __init__(
        self, first: Sequence[Step], second: Sequence[Step], shared: frozenset[Variable], lengths: Lengths
    ) -> None:
        self.shared, self.lengths, self.pairs = shared, lengths, []
        self.bounds: dict[Any, tuple[int | float, int | float]] = {}
        for one, two in zip(first, second):
            if one.how != two.how:
                break
            self.pairs.append((one.child, two.child))
        for variable in shared:
            self._bound(variable, 0)

    def _bound(self, variable: Variable, side: int) -> Any:
        """The unknown's name; it has bounds from now on."""
        length = self.lengths.get(variable)
        high = math.inf if length is None else max(0, length - 1)
        self.bounds.setdefault((variable, side), (0 if side else -high, high))
        return variable, side

    def is_zero(self, name: Any) -> bool:
        """Whether an unknown is certain to be 0."""
        return self.bounds.get(name) == (0, 0)

    def exclude(self, once: Sequence[frozenset[Variable]]) -> bool:
        """Whether there is no solution but where all variables of one of these sets agree."""
        for _ in range(2 * (len(self.pairs) + len(self.shared)) + 2):  # what is not forced by then counts as free
            before = dict(self.bounds)
            if not all(self._tighten(one, two) for one, two in self.pairs):
                return True
            if before == self.bounds:
                break
        return any(all(self.is_zero((variable, 0)) for variable in around) for around in once)

    def _tighten(self, one: Number, two: Number) -> bool:
        """Bounds that one equation implies; False if it has no solution."""
        if not self._same_base(one, two):
            return True
        terms: dict[Any, int] = {}
        first, second = dict(one.affine[1]), dict(two.affine[1])
        for variable in first.keys() | second.keys():
            a, b = first.get(variable, 0), second.get(variable, 0)
            if variable in self.shared and a == b:
                terms[self._bound(variable, 0)] = a
            elif variable in self.shared and self.is_zero((variable, 0)):
                terms[self._bound(variable, 1)] = a - b
            else:
                terms.update({self._bound(variable, side): c for side, c in ((1, a), (2, -b)) if c})
        return self._solve(terms, two.affine[0] - one.affine[0], 2 ** min(one.bits, two.bits))

    def _same_base(self, one: Number, two: Number) -> bool:
        if one.base is None or two.base is None:
            return one.base is two.base
        together = all(self.is_zero((variable, 0)) for form in one.base.which for variable, _ in form[1])
        return one.base == two.base and together

    def _solve(self, terms: dict[Any, int], wanted: int, modulus: int) -> bool:
        """sum(coefficient * unknown) = wanted, modulo `modulus`: tighten the unknowns; False if it cannot be."""
        divisor = math.gcd(modulus, *terms.values())
        if wanted % divisor:
            return False
        free = {name: c for name, c in terms.items() if not self.is_zero(name)}
        if len(free) == 1:
            return self._solve_one(*free.popitem(), wanted, modulus)
        ranges = {name: sorted(c * end for end in self.bounds[name]) for name, c in free.items()}
        low, high = sum(r[0] for r in ranges.values()), sum(r[1] for r in ranges.values())
        if math.isinf(low) or math.isinf(high):
            return True
        total = wanted + modulus * -((wanted - low) // modulus)  # the smallest that is not below `low`
        if total > high:
            return False
        if total + modulus <= high:
            return True
        for name, c in free.items():
            least, most = total - high + ranges[name][1], total - low + ranges[name][0]
            ends = (-(-least // c), most // c) if c > 0 else (-(-most // c), least // c)
            start, stop = max(self.bounds[name][0], ends[0]), min(self.bounds[name][1], ends[1])
            if start > stop:
                return False
            self.bounds[name] = (start, stop)
        return True

    def _solve_one(self, name: Any, coefficient: int, wanted: int, modulus: int) -> bool:
        period = modulus // math.gcd(coefficient, modulus)
        first = (
            wanted * period // modulus * pow(coefficient * period // modulus, -1, period) % period if period > 1 else 0
        )
        low, high = self.bounds[name]
        if math.isinf(low) or math.isinf(high):
            return True
        start = first + period * -((first - low) // period)
        if start > high:
            return False
        if start + period > high:
            self.bounds[name] = (start, start)
        return True
