"""Abstract values of the variables of a traced program, and uses of secret keys.

How a value depends on private rows is PUBLIC < ROWS < DERIVED; a key is known exactly or not at all; an integer is a
constant, or an input and counters with constants added, or anything.

Every access must have its own branch of the tree of keys, or its own step on a branch. A key is a path from an input, through
numbered children. Two uses are apart if their paths are certain to differ in the number of some child of the same kind, in
every pair of iterations, chains and devices.
"""

import itertools
import math
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from dpppl.information_flow.leaks import Trail
from dpppl.types import Equation

_names = itertools.count()
FOLDED = 2**32  # count of numbers that `fold_in` tells apart


class Data(Enum):
    """How a value depends on private rows: not, or through the door only; it is a private array, as given; or
    it was computed from rows."""

    PUBLIC, ROWS, DERIVED = range(3)


class Variable(NamedTuple):
    """A source of variation of an integer.

    - **kind** - the place along an axis of the array at hand; a counter of iterations, devices or chains; or an unknown integer.
    - **name** - the number of the axis, or a unique number.
    - **length** - it ranges from 0 to length - 1; None: unknown.
    - **indices** - an unknown integer is another one for other indices."""

    kind: str
    name: int
    length: int | None = None
    indices: tuple["Integer", ...] = ()


class Integer(NamedTuple):
    """An integer modulo 2**32, which is what `fold_in` reads.

    - **offset**, **terms** - their sum: a constant, and variables, sorted and unique."""

    offset: int
    terms: tuple[Variable, ...] = ()

    def plus(self, other: "Integer") -> "Integer":
        """self + other."""
        return Integer(self.offset + other.offset, tuple(sorted(self.terms + other.terms)))

    def renamed(self, names: "Names") -> "Integer | None":
        """Substitute variables."""
        result = Integer(self.offset)
        for variable in self.terms:
            indices = [known for index in variable.indices if (known := index.renamed(names)) is not None]
            other = names.get(variable, number_of(variable._replace(indices=tuple(indices))))
            if other is None or len(indices) < len(variable.indices):
                return None
            result = result.plus(other)
        return result


Names = Mapping[Variable, Integer | None]
"""Replacements for variables in another context; None: unknown. Others stay as they are."""


def counter(length: int | None) -> Variable:
    """A new counter; `length` None: without an end."""
    return Variable("counter", next(_names), length)


def axis(k: int) -> Variable:
    """The place along axis k of the array at hand."""
    return Variable("axis", k)


def number_of(variable: Variable, offset: int = 0) -> Integer:
    """variable + offset."""
    return Integer(offset, (variable,))


def unknown(rank: int) -> Integer:
    """New unknown integers, in an array with this number of axes."""
    return number_of(Variable("unknown", next(_names), None, tuple(number_of(axis(k)) for k in range(rank))))


class Step(NamedTuple):
    """The step from a key to one of its children.

    - **how**, **child** - ("fold",), ("split", number of children) or ("element", axis); and the number of the child."""

    how: tuple[Hashable, ...]
    child: Integer


class Key(NamedTuple):
    """A secret key, or an array of them.

    - **root** - the input that it comes from; None: any secret key, or what was made of one.
    - **path** - the steps from the root."""

    root: Hashable = None
    path: tuple[Step, ...] = ()

    def renamed(self, names: Names) -> "Key":
        """Substitute variables."""
        path = [Step(step.how, child) for step in self.path if (child := step.child.renamed(names)) is not None]
        return Key(self.root, tuple(path)) if len(path) == len(self.path) else LOST


LOST = Key()


class Value(NamedTuple):
    """The abstract value of a variable: an element of the lattice.

    - **data**, **key** - how it depends on private rows; the secret key in it, None where there is none.
    - **number**, **trail** - its value, where it is an integer that is followed; how it became secret."""

    data: Data = Data.PUBLIC
    key: Key | None = None
    number: Integer | None = None
    trail: Trail | None = None

    @property
    def is_secret(self) -> bool:
        return self.key is not None or self.data is not Data.PUBLIC

    def renamed(self, names: Names) -> "Value":
        """Substitute variables."""
        return self._replace(
            key=self.key and self.key.renamed(names), number=self.number and self.number.renamed(names)
        )

    def derived(self) -> "Value":
        """A part of it."""
        return self if self.data is Data.PUBLIC else self._replace(data=Data.DERIVED)

    def lost(self) -> "Value":
        """The result of an operation that is not followed."""
        return self.derived()._replace(key=self.key and LOST, number=None)


def join(first: Value, second: Value) -> Value:
    """Least upper bound of two abstract values."""
    data = first.data if first.data is second.data else Data.DERIVED
    key = first.key if first.key == second.key else LOST
    return Value(data, key, first.number if first.number == second.number else None, first.trail or second.trail)


class Use(NamedTuple):
    """One use of a key.

    - **key**, **equation** - where it is used.
    - **variables** - the counters of the loops, devices and chains around it: each execution is one choice of these.
    - **step** - the number of the access, for an access; without one the key counts as known.
    - **streams** - numbers of the children that an access draws from, at `step`."""

    key: Key
    equation: Equation
    variables: frozenset[Variable]
    step: Integer | None = None
    streams: tuple[int, ...] = ()

    def paths(self) -> list[tuple[Step, ...]]:
        """The paths that it draws from, or gives away."""
        if self.step is None:
            return [self.key.path]
        last = Step(("fold",), self.step)
        return [(*self.key.path, Step(("fold",), Integer(stream)), last) for stream in self.streams]


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
