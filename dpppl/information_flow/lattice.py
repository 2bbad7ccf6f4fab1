"""The abstract values: what is known of a variable of a traced program.

The order of information: how a value depends on private rows is PUBLIC < ROWS < DERIVED; a key is known exactly, or
by a prefix of its path, or not at all; an integer is an affine form of counters and of unknown integers.
"""

import itertools
from collections.abc import Hashable
from enum import Enum
from typing import Any, NamedTuple

Variable = tuple[Any, ...]
"""What a number varies with. ("axis", k) runs along axis k of the array at hand; ("turn", ...), ("chain", ...) and
("device", ...) say which execution it is; ("unknown", name, numbers): any integer, another one for other numbers."""


class Trail(NamedTuple):
    """How a secret came here: an equation (or a few words) and the trail before it."""

    step: Any
    before: "Trail | None" = None


class Data(Enum):
    """How a value depends on private rows."""

    PUBLIC = 0
    """Not at all, or through the door only."""
    ROWS = 1
    """It is a private array, as it was given, or a device's rows of it."""
    DERIVED = 2
    """It was computed from rows, or a row decided whether it was."""


class Number(NamedTuple):
    """An integer, offset + sum of coefficient * variable, modulo 2**bits. `terms`: sorted, no coefficient is 0."""

    offset: int
    terms: tuple[tuple[Variable, int], ...] = ()
    bits: int = 64

    def plus(self, other: "Number", factor: int = 1) -> "Number":
        """self + factor * other."""
        terms = dict(self.terms)
        for variable, coefficient in other.terms:
            terms[variable] = terms.get(variable, 0) + factor * coefficient
        left = sorted(((variable, c) for variable, c in terms.items() if c), key=repr)
        return Number(self.offset + factor * other.offset, tuple(left), min(self.bits, other.bits))

    def renamed(self, names: "Names") -> "Number | None":
        """With others in the place of its variables."""
        result = Number(self.offset, (), self.bits)
        for variable, coefficient in self.terms:
            replacement = names.get(variable, multiple(variable))
            if variable[0] == "unknown":
                which = tuple(number.renamed(names) for number in variable[2])
                replacement = None if None in which else multiple(("unknown", variable[1], which))
            if replacement is None:
                return None
            result = result.plus(replacement, coefficient)
        return result


Names = dict[Variable, Number | None]
"""What stands for a variable elsewhere; None: that cannot be said. Others stay as they are."""


def multiple(variable: Variable, coefficient: int = 1, offset: int = 0) -> Number:
    """offset + coefficient * variable."""
    return Number(offset, ((variable, coefficient),) if coefficient else ())


class Step(NamedTuple):
    """From a key to a key below: `how` ("fold"; "split", shape, axis; "element", axis), and the number of the child."""

    how: tuple[Hashable, ...]
    child: Number


class Key(NamedTuple):
    """A secret key, or an array of them: a path from an input. `root` None: any key. `exact`: the key at the path's
    end, or its words; else one below it, or something made of one."""

    root: Hashable = None
    path: tuple[Step, ...] = ()
    exact: bool = False

    def renamed(self, names: Names) -> "Key":
        """With others in the place of its variables: up to the first step that this cannot be said of."""
        path: list[Step] = []
        for step in self.path:
            child = step.child.renamed(names)
            if child is None:
                return Key(self.root, tuple(path), False)
            path.append(Step(step.how, child))
        return self._replace(path=tuple(path))


LOST = Key()


class Value(NamedTuple):
    """`data`: see Data; `key`: None if nothing secret is in it; `number`: of integers and truths; `below`: of a
    condition, (a, b) where it is true only if a < b; `trail`: how rows or a key came here."""

    data: Data = Data.PUBLIC
    key: Key | None = None
    number: Number | None = None
    below: tuple[Number, Number] | None = None
    trail: Trail | None = None

    @property
    def is_secret(self) -> bool:
        """Whether it holds key material or depends on rows."""
        return self.key is not None or self.data is not Data.PUBLIC

    def renamed(self, names: Names) -> "Value":
        """With others in the place of variables."""
        key, number = self.key and self.key.renamed(names), self.number and self.number.renamed(names)
        return self._replace(key=key, number=number, below=None)

    def derived(self) -> "Value":
        """What is made of it."""
        return self if self.data is Data.PUBLIC else self._replace(data=Data.DERIVED)


def join(first: Value, second: Value) -> Value:
    """The least upper bound: what is known of a value that is the one or the other."""
    return Value(
        data=first.data if first.data is second.data else Data.DERIVED,
        key=join_keys(first.key, second.key),
        number=first.number if first.number == second.number else None,
        below=first.below if first.below == second.below else None,
        trail=first.trail or second.trail,
    )


def join_keys(first: Key | None, second: Key | None) -> Key | None:
    """The key, or the keys below the longest common path."""
    if first is None or second is None:
        known = first or second
        return None if known is None else known._replace(exact=False)
    if first == second or first.root != second.root:
        return first if first == second else LOST
    common = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first.path, second.path))
    return Key(first.root, tuple(step for step, _ in common), False)
