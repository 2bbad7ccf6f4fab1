"""The abstract values: what is known of a variable of a traced program.

The order of information: how a value depends on private rows is PUBLIC < ROWS < DERIVED; a key is known exactly, or
by a prefix of its path, or not at all; a number is an affine form of counters, or a value that has no other name.
"""

from collections.abc import Callable, Hashable
from enum import Enum
from typing import Any, NamedTuple

Variable = tuple[Hashable, ...]
"""What a form varies with: ("axis", k) runs along axis k of the array at hand; others are turns, devices, chains."""
Affine = tuple[int, tuple[tuple[Variable, int], ...]]
"""(offset, ((variable, coefficient), ...)), sorted, no coefficient 0."""


class Trail(NamedTuple):
    """How a secret came here: an equation (or a few words) and the trail before it."""

    step: Any
    before: "Trail | None" = None


class Data(Enum):
    """How a value depends on private rows."""

    PUBLIC = 0
    """Not at all, or through the door only."""
    ROWS = 1
    """It is a private array, as it was given."""
    DERIVED = 2
    """It was computed from rows, or a row decided whether it was."""


class Base(NamedTuple):
    """An unknown integer, read at one place. `which`: in which turns of the loops around it, and which element."""

    name: Hashable
    which: tuple[Affine, ...]


class Number(NamedTuple):
    """An integer, base + offset + coefficients * variables, modulo 2**bits; base None: nothing unknown in it."""

    base: Base | None
    affine: Affine
    bits: int


class Step(NamedTuple):
    """From a key to a key below: `how` ("fold"; "split", shape, axis; "element", axis), and the number of the child."""

    how: tuple[Hashable, ...]
    child: Number


class Key(NamedTuple):
    """A secret key, or an array of them: a path from an input. `root` None: any key. `exact`: the key at the path's
    end; else one below it, or its bits. `words`: raw key data, whose last axis is that of the words."""

    root: Hashable = None
    path: tuple[Step, ...] = ()
    exact: bool = False
    words: bool = False


LOST = Key()


class Value(NamedTuple):
    """`data`: see Data; `spread`: along which mesh axes rows are dealt out to devices; `key`: None if nothing secret is
    in it; `number`: of integers; `truth`: of a condition, where it is known; `below`: of a condition, (a, b) where it
    says a < b; `trail`: how rows or a key came here."""

    data: Data = Data.PUBLIC
    spread: Hashable = None
    key: Key | None = None
    number: Number | None = None
    truth: bool | None = None
    below: tuple[Number, Number] | None = None
    trail: Trail | None = None

    @property
    def is_secret(self) -> bool:
        """Whether it holds key material or depends on rows."""
        return self.key is not None or self.data is not Data.PUBLIC


def join(first: Value, second: Value) -> Value:
    """The least upper bound: what is known of a value that is the one or the other."""
    same_rows = (first.data, first.spread) == (second.data, second.spread)
    return Value(
        data=first.data if same_rows else Data.DERIVED,
        spread=first.spread if same_rows else None,
        key=join_keys(first.key, second.key),
        number=first.number if first.number == second.number else None,
        truth=first.truth if first.truth == second.truth else None,
        below=first.below if first.below == second.below else None,
        trail=first.trail or second.trail,
    )


def join_keys(first: Key | None, second: Key | None) -> Key | None:
    """The key, or the keys below the longest common path."""
    if first is None or second is None:
        known = first or second
        return None if known is None else known._replace(exact=False)
    if first == second:
        return first
    if first.root != second.root or first.words != second.words:
        return LOST
    common = 0
    while common < min(len(first.path), len(second.path)) and first.path[common] == second.path[common]:
        common += 1
    return Key(first.root, first.path[:common], False, first.words)


# Affine forms


def affine(offset: int, terms: dict[Variable, int] | None = None) -> Affine:
    """The form with these coefficients."""
    return offset, tuple(sorted(((v, c) for v, c in (terms or {}).items() if c), key=repr))


def combine(first: Affine, second: Affine, factor: int = 1) -> Affine:
    """first + factor * second."""
    terms = dict(first[1])
    for variable, coefficient in second[1]:
        terms[variable] = terms.get(variable, 0) + factor * coefficient
    return affine(first[0] + factor * second[0], terms)


def substitute(form: Affine, rule: Callable[[Variable], Affine | None]) -> Affine | None:
    """The form with `rule(variable)` in the place of each variable; None where the rule gives None."""
    result = affine(form[0])
    for variable, coefficient in form[1]:
        replacement = rule(variable)
        if replacement is None:
            return None
        result = combine(result, replacement, coefficient)
    return result


def renamed(number: Number | None, rule: Callable[[Variable], Affine | None]) -> Number | None:
    """A number after a substitution, or None if it cannot be said."""
    if number is None:
        return None
    form, base = substitute(number.affine, rule), number.base
    if base is not None:
        which = tuple(one for one in (substitute(old, rule) for old in base.which) if one is not None)
        if len(which) < len(base.which):
            return None
        base = base._replace(which=which)
    return None if form is None else Number(base, form, number.bits)


def renamed_key(key: Key | None, rule: Callable[[Variable], Affine | None]) -> Key | None:
    """A key after a substitution: up to the first step that it cannot be said of."""
    if key is None:
        return None
    path: list[Step] = []
    for step in key.path:
        child = renamed(step.child, rule)
        if child is None:
            return key._replace(path=tuple(path), exact=False)
        path.append(Step(step.how, child))
    return key._replace(path=tuple(path))
